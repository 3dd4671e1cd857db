/* tokenizer.json and its companions out of a GGUF's metadata. A GGUF keeps tokens, their kinds and their merges or scores; what kind of tokenizer
 * they belong to is named by tokenizer.ggml.model, a row each in the table below, and for byte-level BPE how text is cut into words by
 * tokenizer.ggml.pre (gguf_pre.c). */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct source { const oz_gguf *g; oz_tokens t; } source;

/* ---- metadata ---- */

static oz_status kinds_read(source *s, oz_err *err) {
    const oz_gguf_kv *types;
    OZ_TRY(oz_gguf_array(&types, s->g, "tokenizer.ggml.token_type", OZ_GGUF_I32, err));
    OZ_NEED(!types || types->n == s->t.n, err, OZ_E_FORMAT, "%s: tokenizer.ggml.token_type: expected %zu entries, found %" PRIu64, s->t.where, s->t.n, types->n);
    for (size_t i = 0; i < s->t.n && types; i++) {
        const int64_t type = oz_gguf_int_at(types, i);
        OZ_NEED(type >= OZ_TOKEN_NORMAL && type <= OZ_TOKEN_BYTE, err, OZ_E_FORMAT, "%s: tokenizer.ggml.token_type[%zu]: must be 1..%d, found %" PRId64, s->t.where, i, OZ_TOKEN_BYTE,
                type);
        s->t.type[i] = (uint8_t)type;
    }
    return OZ_OK;
}

static oz_status tokens_read(source *s, oz_err *err) {
    const oz_gguf_kv *tokens;
    OZ_TRY(oz_gguf_array(&tokens, s->g, "tokenizer.ggml.tokens", OZ_GGUF_STR, err));
    OZ_NEED(tokens, err, OZ_E_FORMAT, "%s: tokenizer.ggml.tokens is missing", s->g->where);
    OZ_TRY(oz_tokens_new(&s->t, (size_t)tokens->n, s->g->where, err));
    const uint8_t *p = tokens->data;
    for (size_t i = 0; i < s->t.n; i++) {
        const oz_slice text = s->t.text[i] = oz_gguf_next_str(&p);
        OZ_NEED(oz_utf8_valid(text.p, text.n) && !memchr(text.p, 0, text.n), err, OZ_E_FORMAT, "%s: tokenizer.ggml.tokens[%zu]: must be UTF-8 without NUL", s->t.where, i);
    }
    return kinds_read(s, err);
}

static oz_status scores_read(source *s, oz_err *err) {
    const oz_gguf_kv *kv = oz_gguf_find(s->g, "tokenizer.ggml.scores");
    OZ_NEED(kv && kv->is_array && kv->type == OZ_GGUF_F32 && kv->n == s->t.n, err, OZ_E_FORMAT, "%s: tokenizer.ggml.scores: expected an array of %zu float32", s->t.where, s->t.n);
    s->t.score = oz_alloc_array(s->t.n, sizeof *s->t.score);
    memcpy(s->t.score, kv->data, s->t.n * sizeof *s->t.score);
    for (size_t i = 0; i < s->t.n; i++) OZ_NEED(isfinite(s->t.score[i]), err, OZ_E_FORMAT, "%s: tokenizer.ggml.scores[%zu]: must be finite", s->t.where, i);
    return OZ_OK;
}

/* adds_: where the file does not say. */
static oz_status special_read(source *s, bool adds_bos, bool adds_eos, oz_err *err) {
    oz_tokens *t = &s->t;
    const struct {
        int64_t *id;
        const char *key;
    } ids[] = {{&t->bos, "tokenizer.ggml.bos_token_id"}, {&t->eos, "tokenizer.ggml.eos_token_id"}, {&t->unk, "tokenizer.ggml.unknown_token_id"}, {&t->pad, "tokenizer.ggml.padding_token_id"}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) OZ_TRY(oz_gguf_int(ids[i].id, s->g, ids[i].key, 0, (int64_t)t->n - 1, err));
    t->adds_bos = adds_bos, t->adds_eos = adds_eos;
    OZ_TRY(oz_gguf_bool(&t->adds_bos, s->g, "tokenizer.ggml.add_bos_token", err));
    OZ_TRY(oz_gguf_bool(&t->adds_eos, s->g, "tokenizer.ggml.add_eos_token", err));
    OZ_NEED(!t->adds_bos || t->bos >= 0, err, OZ_E_FORMAT, "%s: tokenizer.ggml.bos_token_id is missing, and it is to be added", t->where);
    OZ_NEED(!t->adds_eos || t->eos >= 0, err, OZ_E_FORMAT, "%s: tokenizer.ggml.eos_token_id is missing, and it is to be added", t->where);
    return OZ_OK;
}

/* ---- gpt2: byte-level BPE ---- */

static oz_status merges_json(json_t **out, const source *s, oz_err *err) {
    const oz_gguf_kv *kv;
    *out = json_array();
    OZ_TRY(oz_gguf_array(&kv, s->g, "tokenizer.ggml.merges", OZ_GGUF_STR, err));
    OZ_NEED(kv, err, OZ_E_FORMAT, "%s: tokenizer.ggml.merges is missing", s->t.where);
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; i < kv->n; i++) {
        const oz_slice m = oz_gguf_next_str(&p);
        const char *space = memchr(m.p, ' ', m.n);
        const size_t left = space ? (size_t)(space - m.p) : 0, right = space ? m.n - left - 1 : 0;
        OZ_NEED(left > 0 && right > 0 && !memchr(space + 1, ' ', right) && oz_utf8_valid(m.p, m.n) && !memchr(m.p, 0, m.n), err, OZ_E_FORMAT,
                "%s: tokenizer.ggml.merges[%" PRIu64 "]: must be two tokens with a space between them", s->t.where, i);
        json_t *pair = json_array();
        json_array_append_new(pair, json_stringn(m.p, left));
        json_array_append_new(pair, json_stringn(space + 1, right));
        json_array_append_new(*out, pair);
    }
    return OZ_OK;
}

static oz_status gpt2_json(json_t **out, source *s, oz_err *err) {
    oz_slice name = {0};
    OZ_TRY(oz_gguf_str(&name, s->g, "tokenizer.ggml.pre", err));
    OZ_NEED(name.p, err, OZ_E_FORMAT, "%s: tokenizer.ggml.pre is missing: the file does not say how text is cut into words", s->g->where);
    oz_buf known = {0};
    bool adds_bos = false;
    const oz_bytes_rules *rules = oz_gguf_pre(name, &adds_bos, &known);
    if (!rules)
        oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: tokenizer.ggml.pre: must be one of %s, found %.*s", s->g->where, known.data, (int)(name.n < 100 ? name.n : 100), name.p);
    oz_buf_deinit(&known);
    if (!rules) return OZ_E_UNSUPPORTED;
    OZ_TRY(tokens_read(s, err));
    for (size_t i = 0; i < s->t.n; i++)
        OZ_NEED(s->t.type[i] != OZ_TOKEN_BYTE, err, OZ_E_FORMAT, "%s: tokenizer.ggml.token_type[%zu]: must be 1..%d in a byte-level vocabulary, found %d", s->t.where, i, OZ_TOKEN_BYTE - 1,
                OZ_TOKEN_BYTE);
    OZ_TRY(special_read(s, adds_bos, false, err));
    json_t *vocab = NULL, *merges = NULL;
    oz_status st = oz_tokens_vocab(&vocab, &s->t, err);
    if (st == OZ_OK) st = merges_json(&merges, s, err);
    if (st == OZ_OK) {
        *out = oz_tokens_bytes(&s->t, rules, vocab, merges);
        return OZ_OK;
    }
    json_decref(vocab);
    json_decref(merges);
    return st;
}

/* ---- llama, t5: SentencePiece ---- */

static oz_status spm_json(json_t **out, source *s, oz_spm_rules r, bool adds_bos, bool adds_eos, oz_err *err) {
    OZ_TRY(tokens_read(s, err));
    OZ_TRY(scores_read(s, err));
    OZ_TRY(special_read(s, adds_bos, adds_eos, err));
    const oz_gguf_kv *map = oz_gguf_find(s->g, "tokenizer.ggml.precompiled_charsmap");
    OZ_NEED(!map || (map->is_array && (map->type == OZ_GGUF_U8 || map->type == OZ_GGUF_I8)), err, OZ_E_FORMAT, "%s: tokenizer.ggml.precompiled_charsmap: expected an array of bytes", s->t.where);
    if (map) r.charsmap = (oz_slice){(const char *)map->data, (size_t)map->n};
    OZ_TRY(oz_gguf_bool(&r.dummy_prefix, s->g, "tokenizer.ggml.add_space_prefix", err));
    OZ_TRY(oz_gguf_bool(&r.collapse_spaces, s->g, "tokenizer.ggml.remove_extra_whitespaces", err));
    for (size_t i = 0; i < s->t.n; i++) { /* the file does not name its unknown token where that is the first of the kind */
        if (s->t.unk < 0 && s->t.type[i] == OZ_TOKEN_UNKNOWN) s->t.unk = (int64_t)i;
        r.byte_fallback |= s->t.type[i] == OZ_TOKEN_BYTE;
    }
    return oz_tokens_spm(out, &s->t, &r, err);
}

static oz_status llama_json(json_t **out, source *s, oz_err *err) { return spm_json(out, s, (oz_spm_rules){.is_bpe = true, .dummy_prefix = true}, true, false, err); }
static oz_status t5_json(json_t **out, source *s, oz_err *err) { return spm_json(out, s, (oz_spm_rules){0}, false, true, err); }

/* ---- bert: WordPiece, whose tokens a GGUF spells with U+2581 in front of those that begin a word, and bare where BERT has ## ---- */

static bool is_bracketed(oz_slice s) { return s.n > 1 && s.p[0] == '[' && s.p[s.n - 1] == ']'; } /* [CLS], [unused7]: spelled as they are */

static void bert_spell(oz_tokens *t) {
    for (size_t i = 0; i < t->n; i++) {
        const oz_slice s = t->text[i];
        if (t->type[i] != OZ_TOKEN_NORMAL || is_bracketed(s)) continue;
        if (s.n >= 3 && memcmp(s.p, "\xe2\x96\x81", 3) == 0) {
            t->text[i] = (oz_slice){s.p + 3, s.n - 3};
            continue;
        }
        char *spelled = oz_arena_alloc(t->arena, s.n + 3);
        memcpy(spelled, "##", 2);
        memcpy(spelled + 2, s.p, s.n);
        t->text[i] = (oz_slice){spelled, s.n + 2};
    }
}

/* The GGUF does not say whether case matters: where it is of a vocabulary without capitals, it does not. */
static bool bert_has_capitals(const oz_tokens *t) {
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; t->type[i] == OZ_TOKEN_NORMAL && !is_bracketed(t->text[i]) && k < t->text[i].n; k++)
            if (t->text[i].p[k] >= 'A' && t->text[i].p[k] <= 'Z') return true;
    return false;
}

static oz_status bert_json(json_t **out, source *s, oz_err *err) {
    OZ_TRY(tokens_read(s, err));
    OZ_TRY(special_read(s, false, false, err));
    oz_tokens *t = &s->t;
    int64_t cls = t->bos, sep = t->eos;
    OZ_TRY(oz_gguf_int(&cls, s->g, "tokenizer.ggml.cls_token_id", 0, (int64_t)t->n - 1, err));
    OZ_TRY(oz_gguf_int(&sep, s->g, "tokenizer.ggml.seperator_token_id", 0, (int64_t)t->n - 1, err)); /* spelled so in the format */
    OZ_NEED(cls >= 0 && sep >= 0 && t->unk >= 0, err, OZ_E_FORMAT, "%s: tokenizer.ggml: expected ids of the tokens cls, seperator and unknown", t->where);
    bert_spell(t);
    t->bos = cls, t->eos = sep, t->adds_bos = t->adds_eos = true;
    json_t *vocab = NULL;
    oz_status st = oz_tokens_vocab(&vocab, t, err);
    if (st != OZ_OK) return json_decref(vocab), st;
    json_t *model = json_pack("{s:s, s:o, s:s, s:i, s:o}", "type", "WordPiece", "unk_token", oz_tokens_text(t, t->unk), "continuing_subword_prefix", "##", "max_input_chars_per_word", 100,
                              "vocab", vocab);
    json_t *normalizer = json_pack("{s:s, s:b, s:b, s:n, s:b}", "type", "BertNormalizer", "clean_text", 1, "handle_chinese_chars", 1, "strip_accents", "lowercase", !bert_has_capitals(t));
    *out = oz_tokenizer_json(&(oz_tokenizer_parts){oz_tokens_added(t, false), normalizer, json_pack("{s:s}", "type", "BertPreTokenizer"), oz_tokens_around(t, json_null()),
                                                   json_pack("{s:s, s:s, s:b}", "type", "WordPiece", "prefix", "##", "cleanup", 1), model});
    return OZ_OK;
}

static const struct {
    const char *name;
    oz_status (*json)(json_t **out, source *s, oz_err *err);
} MODELS[] = {{"gpt2", gpt2_json}, {"llama", llama_json}, {"t5", t5_json}, {"bert", bert_json}};

static oz_status tokenizer_json(json_t **out, source *s, oz_err *err) {
    oz_slice model = {0};
    OZ_TRY(oz_gguf_str(&model, s->g, "tokenizer.ggml.model", err));
    oz_buf known = {0};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        oz_buf_printf(&known, "%s%s", i ? ", " : "", MODELS[i].name);
        if (!oz_slice_eq(model, oz_slice_view(MODELS[i].name))) continue;
        oz_buf_deinit(&known);
        return MODELS[i].json(out, s, err);
    }
    oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: tokenizer.ggml.model: must be one of %s, found %.*s", s->g->where, known.data, (int)(model.n < 100 ? model.n : 100), model.p);
    oz_buf_deinit(&known);
    return OZ_E_UNSUPPORTED;
}

/* ---- the companions ---- */
static oz_status config_json(json_t **out, const source *s, const char *chat_template, oz_err *err) {
    oz_slice arch = {0};
    OZ_TRY(oz_gguf_str(&arch, s->g, "general.architecture", err));
    char key[128];
    snprintf(key, sizeof key, "%.*s.context_length", (int)(arch.n < 64 ? arch.n : 64), arch.p ? arch.p : "");
    int64_t max_len = -1;
    OZ_TRY(oz_gguf_int(&max_len, s->g, key, 1, INT32_MAX, err));
    json_t *c = *out = json_pack("{s:s, s:o, s:o, s:o, s:o, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "bos_token",
                                 oz_tokens_text(&s->t, s->t.bos), "eos_token", oz_tokens_text(&s->t, s->t.eos), "unk_token", oz_tokens_text(&s->t, s->t.unk), "pad_token",
                                 oz_tokens_text(&s->t, s->t.pad), "clean_up_tokenization_spaces", 0);
    if (max_len > 0) json_object_set_new(c, "model_max_length", json_integer(max_len));
    if (chat_template) json_object_set_new(c, "chat_template", json_string(chat_template));
    return OZ_OK;
}

static oz_status generation_json(json_t **out, const source *s, oz_err *err) {
    *out = json_object();
    return oz_gguf_special_ids(*out, s->g, (int64_t)s->t.n, err);
}

static oz_status fill(oz_text_files *out, source *s, oz_err *err) {
    oz_slice template = {0};
    if (!oz_gguf_find(s->g, "tokenizer.ggml.model")) return OZ_OK; /* weights alone: no tokenizer, as in a folder without one */
    OZ_TRY(tokenizer_json(&out->tokenizer, s, err));
    OZ_TRY(oz_gguf_str(&template, s->g, "tokenizer.chat_template", err));
    if (template.p) out->chat_template = oz_strndup(template.p, template.n);
    OZ_TRY(config_json(&out->tokenizer_config, s, out->chat_template, err));
    return generation_json(&out->generation_config, s, err);
}

oz_status oz_gguf_text_files(oz_text_files *out, const char *path, oz_err *err) {
    oz_mmap map;
    oz_gguf g;
    OZ_TRY(oz_mmap_open(&map, path, err));
    oz_status st = oz_gguf_parse(&g, map.data, map.n_bytes, path, false, NULL, err);
    if (st == OZ_OK) {
        source s = {.g = &g};
        st = fill(out, &s, err);
        oz_tokens_deinit(&s.t);
        oz_gguf_deinit(&g);
    }
    oz_mmap_close(&map);
    if (st != OZ_OK) oz_text_files_close(out);
    return st;
}
