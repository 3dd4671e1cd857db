/* tokenizer.json and its companions out of a GGUF's metadata. A GGUF keeps tokens, their kinds and the merges; how text is cut into
 * words is only named (tokenizer.ggml.pre). What each name means stands in one table, in tokenizer.json's own words. A name that is
 * not there is an error: a guess would give other ids for some texts and right ones for most. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <string.h>

/* Kinds of tokens in tokenizer.ggml.token_type. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

#define BYTE_LEVEL(prefix, trim, regex) \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" prefix ",\"trim_offsets\":" trim ",\"use_regex\":" regex "}"
#define SPLIT(pattern) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(a, b) "{\"type\":\"Sequence\",\"pretokenizers\":[" a "," b "]}"
/* Contractions, words, numbers, punctuation, white space: the pattern that Llama 3 and Qwen share but for the length of a number. */
#define WORDS(number)                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" number \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

typedef struct pre {
    const char *name;
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder; /* JSON */
    bool ignore_merges, adds_bos;                                      /* adds_bos: where the file does not say */
} pre;

#define GPT2_DECODER BYTE_LEVEL("true", "true", "true")
#define GPT2_WORDS BYTE_LEVEL("false", "true", "true")
#define QWEN_BYTES BYTE_LEVEL("false", "false", "false")

static const pre pres[] = {
    {"gpt-2", "null", GPT2_WORDS, "null", GPT2_DECODER, false, false},
    {"smollm", "null", SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true}", GPT2_WORDS), "null", GPT2_DECODER, false, false},
    {"qwen2", "{\"type\":\"NFC\"}", SEQUENCE(SPLIT(WORDS("\\\\p{N}")), QWEN_BYTES), QWEN_BYTES, QWEN_BYTES, false, false},
    {"llama-bpe", "null", SEQUENCE(SPLIT(WORDS("\\\\p{N}{1,3}")), BYTE_LEVEL("false", "true", "false")),
     BYTE_LEVEL("true", "false", "true"), GPT2_DECODER, true, true},
};

typedef struct vocab {
    const oz_gguf *g;
    uint64_t n;
    oz_slice *tokens;           /* views of the file */
    const oz_gguf_kv *types;    /* NULL: all normal */
    int64_t bos, eos, unk, pad; /* -1: none */
    bool adds_bos, adds_eos;
    const pre *pre;
} vocab;

/* ---- metadata ---- */
static oz_status read_tokens(vocab *v, oz_err *err) {
    const oz_gguf_kv *tokens;
    OZ_TRY(oz_gguf_array(&tokens, v->g, "tokenizer.ggml.tokens", OZ_GGUF_STR, err));
    OZ_NEED(tokens, err, OZ_E_FORMAT, "%s: tokenizer.ggml.tokens is missing", v->g->where);
    OZ_NEED(tokens->n <= INT32_MAX, err, OZ_E_FORMAT, "%s: tokenizer.ggml.tokens: %" PRIu64 " tokens are too many", v->g->where, tokens->n);
    OZ_TRY(oz_gguf_array(&v->types, v->g, "tokenizer.ggml.token_type", OZ_GGUF_I32, err));
    OZ_NEED(!v->types || v->types->n == tokens->n, err, OZ_E_FORMAT,
            "%s: tokenizer.ggml.token_type: expected %" PRIu64 " entries, found %" PRIu64, v->g->where, tokens->n, v->types->n);
    v->n = tokens->n;
    v->tokens = oz_alloc_array((size_t)v->n, sizeof *v->tokens);
    const uint8_t *p = tokens->data;
    for (uint64_t i = 0; i < v->n; i++) {
        oz_slice s = v->tokens[i] = oz_gguf_next_str(&p);
        OZ_NEED(oz_utf8_valid(s.p, s.n) && !memchr(s.p, 0, s.n), err, OZ_E_FORMAT,
                "%s: tokenizer.ggml.tokens[%" PRIu64 "]: must be UTF-8 without NUL", v->g->where, i);
        int64_t type = v->types ? oz_gguf_int_at(v->types, i) : TOKEN_NORMAL;
        OZ_NEED(type >= TOKEN_NORMAL && type < TOKEN_BYTE, err, OZ_E_FORMAT,
                "%s: tokenizer.ggml.token_type[%" PRIu64 "]: must be 1..%d in a byte-level vocabulary, found %" PRId64, v->g->where, i,
                TOKEN_BYTE - 1, type);
    }
    return OZ_OK;
}

static int64_t token_type(const vocab *v, uint64_t i) { return v->types ? oz_gguf_int_at(v->types, i) : TOKEN_NORMAL; }

static oz_status find_pre(vocab *v, oz_err *err) {
    oz_slice model = {0}, name = {0};
    OZ_TRY(oz_gguf_str(&model, v->g, "tokenizer.ggml.model", err));
    OZ_NEED(oz_slice_eq(model, oz_slice_view("gpt2")), err, OZ_E_UNSUPPORTED,
            "%s: tokenizer.ggml.model: must be gpt2 (byte-level BPE), found %.*s", v->g->where, (int)(model.n < 100 ? model.n : 100),
            model.p);
    OZ_TRY(oz_gguf_str(&name, v->g, "tokenizer.ggml.pre", err));
    OZ_NEED(name.p, err, OZ_E_FORMAT, "%s: tokenizer.ggml.pre is missing: the file does not say how text is cut into words", v->g->where);
    oz_buf known = {0};
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        if (oz_slice_eq(name, oz_slice_view(pres[i].name))) v->pre = &pres[i];
        oz_buf_printf(&known, "%s%s", i ? ", " : "", pres[i].name);
    }
    if (!v->pre) {
        oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: tokenizer.ggml.pre: must be one of %s, found %.*s", v->g->where,
                   known.data, (int)(name.n < 100 ? name.n : 100), name.p);
    }
    oz_buf_deinit(&known);
    return v->pre ? OZ_OK : OZ_E_UNSUPPORTED;
}

static oz_status read_vocab(vocab *v, oz_err *err) {
    OZ_TRY(find_pre(v, err));
    OZ_TRY(read_tokens(v, err));
    const struct {
        int64_t *id;
        const char *key;
    } ids[] = {
        {&v->bos, "tokenizer.ggml.bos_token_id"},
        {&v->eos, "tokenizer.ggml.eos_token_id"},
        {&v->unk, "tokenizer.ggml.unknown_token_id"},
        {&v->pad, "tokenizer.ggml.padding_token_id"},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        *ids[i].id = -1;
        OZ_TRY(oz_gguf_int(ids[i].id, v->g, ids[i].key, 0, (int64_t)v->n - 1, err));
    }
    v->adds_bos = v->pre->adds_bos;
    OZ_TRY(oz_gguf_bool(&v->adds_bos, v->g, "tokenizer.ggml.add_bos_token", err));
    OZ_TRY(oz_gguf_bool(&v->adds_eos, v->g, "tokenizer.ggml.add_eos_token", err));
    OZ_NEED(!v->adds_bos || v->bos >= 0, err, OZ_E_FORMAT, "%s: tokenizer.ggml.bos_token_id is missing, and it is to be added",
            v->g->where);
    OZ_NEED(!v->adds_eos || v->eos >= 0, err, OZ_E_FORMAT, "%s: tokenizer.ggml.eos_token_id is missing, and it is to be added",
            v->g->where);
    return OZ_OK;
}

/* ---- tokenizer.json ---- */
static json_t *text_json(oz_slice s) { return json_stringn(s.p, s.n); }

static json_t *token_json(const vocab *v, int64_t id) { return id < 0 ? json_null() : text_json(v->tokens[id]); }

/* Holes of the vocabulary (kind "unused") stand for no text and are left out, as in the file that the GGUF came from. */
static oz_status vocab_json(json_t **out, const vocab *v, oz_err *err) {
    json_t *ids = *out = json_object();
    for (uint64_t i = 0; i < v->n; i++) {
        oz_slice s = v->tokens[i];
        if (token_type(v, i) == TOKEN_UNUSED) continue;
        json_t *old = json_object_getn(ids, s.p, s.n);
        OZ_NEED(!old, err, OZ_E_FORMAT,
                "%s: tokenizer.ggml.tokens: entries %" JSON_INTEGER_FORMAT " and %" PRIu64 " are the same, \"%.*s\"", v->g->where,
                json_integer_value(old), i, (int)(s.n < 100 ? s.n : 100), s.p);
        json_object_setn_new_nocheck(ids, s.p, s.n, json_integer((json_int_t)i));
    }
    return OZ_OK;
}

static oz_status merges_json(json_t **out, const vocab *v, oz_err *err) {
    const oz_gguf_kv *kv;
    *out = json_array();
    OZ_TRY(oz_gguf_array(&kv, v->g, "tokenizer.ggml.merges", OZ_GGUF_STR, err));
    OZ_NEED(kv, err, OZ_E_FORMAT, "%s: tokenizer.ggml.merges is missing", v->g->where);
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; i < kv->n; i++) {
        oz_slice s = oz_gguf_next_str(&p);
        const char *space = memchr(s.p, ' ', s.n);
        size_t left = space ? (size_t)(space - s.p) : 0, right = space ? s.n - left - 1 : 0;
        OZ_NEED(left > 0 && right > 0 && !memchr(space + 1, ' ', right) && oz_utf8_valid(s.p, s.n) && !memchr(s.p, 0, s.n), err,
                OZ_E_FORMAT, "%s: tokenizer.ggml.merges[%" PRIu64 "]: must be two tokens with a space between them", v->g->where, i);
        json_t *pair = json_array();
        json_array_append_new(pair, text_json((oz_slice){s.p, left}));
        json_array_append_new(pair, text_json((oz_slice){space + 1, right}));
        json_array_append_new(*out, pair);
    }
    return OZ_OK;
}

/* Added tokens are cut out of a text before it is cut into words; of them, the control tokens are special. */
static json_t *added_json(const vocab *v) {
    json_t *added = json_array();
    for (uint64_t i = 0; i < v->n; i++) {
        int64_t type = token_type(v, i);
        if (type != TOKEN_CONTROL && type != TOKEN_USER && type != TOKEN_UNKNOWN) continue;
        json_array_append_new(added,
                              json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content", text_json(v->tokens[i]),
                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", type != TOKEN_USER));
    }
    return added;
}

static json_t *literal(const char *json) { return json_loads(json, JSON_DECODE_ANY, NULL); }

/* What puts bos and eos around a text; the pre-tokenizer's own post-processor comes before it. */
static json_t *post_processor_json(const vocab *v) {
    json_t *own = literal(v->pre->post_processor);
    if (!v->adds_bos && !v->adds_eos) return own;
    json_t *single = json_array(), *pair = json_array(), *special = json_object();
    for (int text = 0; text < 2; text++) { /* a pair is both texts, each with its own bos and eos */
        const struct {
            bool adds;
            int64_t id;
        } around[] = {{v->adds_bos, v->bos}, {v->adds_eos, v->eos}};
        json_t *parts = json_array();
        for (int k = 0; k < 2; k++) {
            if (k == 1) json_array_append_new(parts, json_pack("{s:{s:s, s:i}}", "Sequence", "id", text ? "B" : "A", "type_id", text));
            if (!around[k].adds) continue;
            json_t *token = token_json(v, around[k].id);
            json_array_append_new(parts, json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", token, "type_id", text));
            json_object_set_new(special, json_string_value(token),
                                json_pack("{s:O, s:[I], s:[O]}", "id", token, "ids", (json_int_t)around[k].id, "tokens", token));
            json_decref(token);
        }
        if (text == 0) json_array_extend(single, parts);
        json_array_extend(pair, parts);
        json_decref(parts);
    }
    json_t *t = json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair", pair, "special_tokens", special);
    if (json_is_null(own)) return t;
    return json_pack("{s:s, s:[o, o]}", "type", "Sequence", "processors", own, t);
}

static oz_status tokenizer_json(json_t **out, const vocab *v, oz_err *err) {
    json_t *words = NULL, *merges = NULL;
    oz_status st = vocab_json(&words, v, err);
    if (st == OZ_OK) st = merges_json(&merges, v, err);
    if (st != OZ_OK) {
        json_decref(words);
        json_decref(merges);
        return st;
    }
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                              "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
                              v->pre->ignore_merges, "vocab", words, "merges", merges);
    *out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens",
                     added_json(v), "normalizer", literal(v->pre->normalizer), "pre_tokenizer", literal(v->pre->pre_tokenizer),
                     "post_processor", post_processor_json(v), "decoder", literal(v->pre->decoder), "model", model);
    return OZ_OK;
}

/* ---- the companions ---- */
static oz_status config_json(json_t **out, const vocab *v, const char *chat_template, oz_err *err) {
    oz_slice arch = {0};
    OZ_TRY(oz_gguf_str(&arch, v->g, "general.architecture", err));
    char key[128];
    snprintf(key, sizeof key, "%.*s.context_length", (int)(arch.n < 64 ? arch.n : 64), arch.p ? arch.p : "");
    int64_t max_len = -1;
    OZ_TRY(oz_gguf_int(&max_len, v->g, key, 1, INT32_MAX, err));
    json_t *c = *out = json_pack("{s:s, s:o, s:o, s:o, s:o, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "bos_token",
                                 token_json(v, v->bos), "eos_token", token_json(v, v->eos), "unk_token", token_json(v, v->unk), "pad_token",
                                 token_json(v, v->pad), "clean_up_tokenization_spaces", 0);
    if (max_len > 0) json_object_set_new(c, "model_max_length", json_integer(max_len));
    if (chat_template) json_object_set_new(c, "chat_template", json_string(chat_template));
    return OZ_OK;
}

static oz_status generation_json(json_t **out, const vocab *v, oz_err *err) {
    *out = json_object();
    return oz_gguf_special_ids(*out, v->g, (int64_t)v->n, err);
}

static oz_status fill(oz_text_files *out, vocab *v, oz_err *err) {
    oz_slice template = {0};
    if (!oz_gguf_find(v->g, "tokenizer.ggml.model")) return OZ_OK; /* weights alone: no tokenizer, as in a folder without one */
    OZ_TRY(read_vocab(v, err));
    OZ_TRY(tokenizer_json(&out->tokenizer, v, err));
    OZ_TRY(oz_gguf_str(&template, v->g, "tokenizer.chat_template", err));
    if (template.p) out->chat_template = oz_strndup(template.p, template.n);
    OZ_TRY(config_json(&out->tokenizer_config, v, out->chat_template, err));
    return generation_json(&out->generation_config, v, err);
}

oz_status oz_gguf_text_files(oz_text_files *out, const char *path, oz_err *err) {
    oz_mmap map;
    oz_gguf g;
    OZ_TRY(oz_mmap_open(&map, path, err));
    oz_status st = oz_gguf_parse(&g, map.data, map.n_bytes, path, false, err);
    if (st == OZ_OK) {
        vocab v = {.g = &g};
        st = fill(out, &v, err);
        oz_free(v.tokens);
        oz_gguf_deinit(&g);
    }
    oz_mmap_close(&map);
    if (st != OZ_OK) oz_text_files_close(out);
    return st;
}
