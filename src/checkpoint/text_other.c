/* The tokenizer of a folder that has no tokenizer.json: SentencePiece's tokenizer.model, or tiktoken's ranks. Those files hold the vocabulary alone;
 * what is added to it, and what is put around a text, stands in tokenizer_config.json and in the code of its tokenizer_class, whose part is the
 * tables here. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20 };

/* Classes whose ids are those of tokenizer.model (some shift them), and what they add where the config does not say. */
static const struct {
    const char *name; /* with or without "Fast" */
    bool adds_bos, adds_eos;
    int n_extra; /* <extra_id_N> behind the file's tokens, the last one first; the config's extra_ids says otherwise */
} CLASSES[] = {{"", false, false, 0}, {"LlamaTokenizer", true, false, 0}, {"CodeLlamaTokenizer", true, false, 0}, {"GemmaTokenizer", true, false, 0}, {"T5Tokenizer", false, true, 100},
               {"InternLMTokenizer", true, false, 0}, {"InternLM2Tokenizer", true, false, 0}};

/* Ranks whose split pattern is known, by the name of their file: a row of gguf_pre.c's table, and the tokens behind the ranks. */
static const struct {
    const char *file, *pre;
    struct { int32_t id; const char *text; } special[8];
    int n_extra; /* <|extra_0|> and so on behind those */
} RANKS[] = {
    {"qwen.tiktoken", "qwen2", {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}, 205},
    {"cl100k_base.tiktoken", "dbrx", {{100257, "<|endoftext|>"}, {100258, "<|fim_prefix|>"}, {100259, "<|fim_middle|>"}, {100260, "<|fim_suffix|>"}, {100276, "<|endofprompt|>"}}, 0},
    {"o200k_base.tiktoken", "gpt-4o", {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}, 0},
    {"tokenizer.model", "llama3", {{0}}, 0}, /* Llama 3's own */
};

/* ---- tokens that the configs add ---- */

static oz_status token_put(oz_tokens *t, int64_t id, oz_slice text, int type, oz_err *err) {
    OZ_NEED(id >= 0 && id < OZ_TOKENS_MAX, err, OZ_E_FORMAT, "added token \"%.80s\": its id must be below %d, found %" PRId64, text.p, OZ_TOKENS_MAX, id);
    OZ_NEED(text.n && strlen(text.p) == text.n, err, OZ_E_FORMAT, "added token %" PRId64 ": must be a string without NUL, and not empty", id);
    if (id >= (int64_t)t->n) {
        const size_t n = (size_t)id + 1;
        t->text = oz_realloc(t->text, n * sizeof *t->text);
        t->type = oz_realloc(t->type, n);
        for (size_t i = t->n; i < n; i++) t->text[i] = (oz_slice){0}, t->type[i] = OZ_TOKEN_UNUSED;
        t->n = n;
    }
    OZ_NEED(id >= (int64_t)t->n_model || oz_slice_eq(t->text[id], text), err, OZ_E_FORMAT, "added token %" PRId64 ": expected \"%.*s\" as in %s, found \"%.80s\"", id,
            (int)(t->text[id].n < 80 ? t->text[id].n : 80), t->text[id].p ? t->text[id].p : "", t->where, text.p);
    t->text[id] = (oz_slice){oz_arena_strndup(t->arena, text.p, text.n), text.n};
    t->type[id] = (uint8_t)type;
    return OZ_OK;
}

static oz_slice json_slice(const json_t *v) { return (oz_slice){json_is_string(v) ? json_string_value(v) : "", json_string_length(v)}; }

/* {"32000": {"content": ..., "special": ...}} */
static oz_status decoder_add(oz_tokens *t, const json_t *decoder, oz_err *err) {
    const char *key;
    json_t *v;
    OZ_NEED(json_is_object(decoder), err, OZ_E_FORMAT, "added_tokens_decoder: must be an object, found %s", oz_json_show(decoder));
    json_object_foreach((json_t *)decoder, key, v) {
        char *end;
        const long id = strtol(key, &end, 10);
        OZ_NEED(*key >= '0' && *key <= '9' && !*end, err, OZ_E_FORMAT, "added_tokens_decoder: expected an id, found \"%.40s\"", key);
        int special = 0;
        char path[80];
        snprintf(path, sizeof path, "added_tokens_decoder.%ld", id);
        OZ_TRY(oz_json_bool(&special, v, path, "special", err));
        OZ_TRY(token_put(t, id, json_slice(json_object_get(v, "content")), special ? OZ_TOKEN_CONTROL : OZ_TOKEN_USER, err));
    }
    t->flags = decoder;
    return OZ_OK;
}

/* added_tokens.json of older folders: {"token": id}; those that special_tokens_map.json names are special. */
static bool is_named(const json_t *map, oz_slice text) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)map, key, v) {
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (json_is_string(v) && oz_slice_eq(json_slice(v), text)) return true;
        for (size_t i = 0; i < json_array_size(v); i++)
            if (oz_slice_eq(json_slice(json_array_get(v, i)), text)) return true;
    }
    return false;
}

static oz_status file_add(oz_tokens *t, const char *dir, const json_t *map, oz_err *err) {
    char *path = oz_path_join(dir, "added_tokens.json");
    json_t *added = NULL, *v;
    const char *key;
    oz_status st = oz_path_exists(path) ? oz_json_load(&added, path, OZ_JSON_LIMIT, err) : OZ_OK;
    json_object_foreach(added, key, v) {
        const oz_slice text = oz_slice_view(key);
        if (st == OZ_OK && !json_is_integer(v)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: \"%.80s\": must be an id, found %s", path, key, oz_json_show(v));
        if (st == OZ_OK) st = token_put(t, json_integer_value(v), text, is_named(map, text) ? OZ_TOKEN_CONTROL : OZ_TOKEN_USER, err);
    }
    json_decref(added);
    oz_free(path);
    return st;
}

/* ---- what the config says of bos and eos ---- */

static oz_status special_set(int64_t *id, const oz_tokens *t, json_t *config, const char *key, oz_err *err) {
    const json_t *v = json_object_get(config, key), *text = json_is_object(v) ? json_object_get(v, "content") : v;
    if (!v && *id >= 0) return json_object_set_new(config, key, oz_tokens_text(t, *id)), OZ_OK; /* so that all readers of the config know it */
    if (!v || json_is_null(v)) return *id = -1, OZ_OK;
    *id = oz_tokens_find(t, json_slice(text));
    OZ_NEED(*id >= 0, err, OZ_E_FORMAT, "tokenizer_config.json: %s: %s is not in the vocabulary of %s", key, oz_json_show(text), t->where);
    return OZ_OK;
}

static oz_status config_apply(oz_tokens *t, const oz_text_files *f, const char *dir, oz_err *err) {
    json_t *config = f->tokenizer_config;
    const json_t *decoder = json_object_get(config, "added_tokens_decoder");
    oz_status st = decoder ? decoder_add(t, decoder, err) : file_add(t, dir, f->special_tokens_map, err);
    if (st != OZ_OK) return decoder ? oz_err_prefix(err, "tokenizer_config.json") : st;
    OZ_TRY(special_set(&t->bos, t, config, "bos_token", err));
    OZ_TRY(special_set(&t->eos, t, config, "eos_token", err));
    int bos = t->adds_bos, eos = t->adds_eos;
    OZ_TRY(oz_json_bool(&bos, config, "tokenizer_config.json", "add_bos_token", err));
    OZ_TRY(oz_json_bool(&eos, config, "tokenizer_config.json", "add_eos_token", err));
    t->adds_bos = bos && t->bos >= 0, t->adds_eos = eos && t->eos >= 0;
    return OZ_OK;
}

/* ---- the two formats ---- */

static oz_status extra_add(oz_tokens *t, const json_t *config, int64_t n, oz_err *err) {
    OZ_TRY(oz_json_int(&n, config, "tokenizer_config.json", "extra_ids", 0, 10000, err));
    for (int64_t i = n; i-- > 0 && !json_object_get(config, "added_tokens_decoder");) {
        char text[32];
        snprintf(text, sizeof text, "<extra_id_%" PRId64 ">", i);
        OZ_TRY(token_put(t, (int64_t)t->n, oz_slice_view(text), OZ_TOKEN_CONTROL, err));
    }
    return OZ_OK;
}

static oz_status class_apply(oz_tokens *t, const json_t *config, oz_err *err) {
    const char *name = "";
    OZ_TRY(oz_json_str(&name, config, "tokenizer_config.json", "tokenizer_class", err));
    const size_t n = strlen(name) - (oz_str_ends(name, "Fast") ? 4 : 0);
    for (size_t i = 0; i < sizeof CLASSES / sizeof *CLASSES; i++) {
        if (strlen(CLASSES[i].name) != n || memcmp(name, CLASSES[i].name, n) != 0) continue;
        t->adds_bos = CLASSES[i].adds_bos, t->adds_eos = CLASSES[i].adds_eos;
        return CLASSES[i].n_extra ? extra_add(t, config, CLASSES[i].n_extra, err) : OZ_OK;
    }
    OZ_FAIL(err, OZ_E_UNSUPPORTED, "tokenizer_config.json: tokenizer_class: %.80s with a tokenizer.model and no tokenizer.json: not known here how it numbers tokens", name);
}

static oz_status spm_translate(oz_text_files *out, oz_tokens *t, oz_slice file, const char *dir, const char *where, oz_err *err) {
    oz_spm_rules r;
    OZ_TRY(oz_spm_read(t, &r, file, where, err));
    OZ_TRY(class_apply(t, out->tokenizer_config, err));
    OZ_TRY(config_apply(t, out, dir, err));
    int prefix = r.dummy_prefix, legacy = 1;
    OZ_TRY(oz_json_bool(&prefix, out->tokenizer_config, "tokenizer_config.json", "add_prefix_space", err));
    OZ_TRY(oz_json_bool(&legacy, out->tokenizer_config, "tokenizer_config.json", "legacy", err));
    r.dummy_prefix = prefix, r.first_only = !legacy;
    return oz_tokens_spm(&out->tokenizer, t, &r, err);
}

static oz_status ranks_translate(oz_text_files *out, oz_tokens *t, oz_slice file, const char *dir, const char *where, oz_err *err) {
    const char *name = strrchr(where, '/') ? strrchr(where, '/') + 1 : where;
    size_t row = 0;
    const size_t n_rows = sizeof RANKS / sizeof *RANKS;
    while (row < n_rows && strcmp(RANKS[row].file, name) != 0) row++;
    OZ_NEED(row < n_rows, err, OZ_E_UNSUPPORTED, "%s: not known how its tokenizer cuts text into words; known are qwen.tiktoken, cl100k_base.tiktoken, o200k_base.tiktoken and Llama 3's tokenizer.model",
            where);
    OZ_TRY(oz_tiktoken_read(t, file, where, err));
    oz_buf known = {0};
    oz_bytes_rules rules = *oz_gguf_pre(oz_slice_view(RANKS[row].pre), &t->adds_bos, &known);
    oz_buf_deinit(&known);
    rules.ignore_merges = true; /* tiktoken looks for a word as a whole first */
    if (!json_object_get(out->tokenizer_config, "added_tokens_decoder")) {
        int64_t last = -1;
        for (size_t i = 0; i < 8 && RANKS[row].special[i].text; i++)
            OZ_TRY(token_put(t, last = RANKS[row].special[i].id, oz_slice_view(RANKS[row].special[i].text), OZ_TOKEN_CONTROL, err));
        for (int i = 0; i < RANKS[row].n_extra; i++) {
            char text[24];
            snprintf(text, sizeof text, "<|extra_%d|>", i);
            OZ_TRY(token_put(t, ++last, oz_slice_view(text), OZ_TOKEN_CONTROL, err));
        }
    }
    OZ_TRY(config_apply(t, out, dir, err));
    json_t *vocab = NULL, *merges = NULL;
    oz_status st = oz_tokens_vocab(&vocab, t, err);
    if (st == OZ_OK) st = oz_tokens_merges(&merges, t, err);
    if (st == OZ_OK) return out->tokenizer = oz_tokens_bytes(t, &rules, vocab, merges), OZ_OK;
    json_decref(vocab);
    json_decref(merges);
    return st;
}

/* tokenizer.model, else the one file that ends in .tiktoken. *path: NULL if there is none. */
static oz_status file_find(char **path, const char *dir, oz_err *err) {
    *path = oz_path_join(dir, "tokenizer.model");
    if (oz_path_exists(*path)) return OZ_OK;
    oz_free(*path);
    *path = NULL;
    DIR *d = opendir(dir);
    OZ_NEED(d, err, OZ_E_IO, "%s: %s", dir, strerror(errno));
    size_t n = 0;
    for (const struct dirent *e; (e = readdir(d));)
        if (oz_str_ends(e->d_name, ".tiktoken") && n++ == 0) *path = oz_path_join(dir, e->d_name);
    closedir(d);
    if (n < 2) return OZ_OK;
    oz_free(*path);
    *path = NULL;
    OZ_FAIL(err, OZ_E_FORMAT, "%s: holds no tokenizer.json and %zu .tiktoken files; expected one", dir, n);
}

oz_status oz_text_files_translate(oz_text_files *out, const char *dir, oz_err *err) {
    char *path;
    oz_mmap map;
    oz_tokens t = {0};
    OZ_TRY(file_find(&path, dir, err));
    if (!path) return OZ_OK;
    oz_status st = oz_mmap_open(&map, path, err);
    if (st == OZ_OK) {
        const oz_slice file = {(const char *)map.data, map.n_bytes};
        if (!out->tokenizer_config) out->tokenizer_config = json_object();
        if (file.n > MAX_FILE_BYTES) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected at most %d bytes, found %zu", path, MAX_FILE_BYTES, file.n);
        else st = oz_is_tiktoken(file) ? ranks_translate(out, &t, file, dir, path, err) : spm_translate(out, &t, file, dir, path, err);
        oz_tokens_deinit(&t);
        oz_mmap_close(&map);
    }
    oz_free(path);
    return st;
}
