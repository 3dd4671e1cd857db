/* A vocabulary that was read from another format, written as tokenizer.json.
 *
 * SentencePiece's normalization becomes a chain of tokenizer.json's normalizers: its character map as it is, spaces collapsed, U+2581 in front,
 * spaces to U+2581. The chain runs on each piece of text between added tokens, where SentencePiece itself, which knows user-defined symbols only
 * inside its model, would put one U+2581 in front of all: the tokenizers library does the same, and so do those who run such models. */
#include "base/base64.h"
#include "base/json.h"
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* U+2581 */

oz_status oz_tokens_new(oz_tokens *t, size_t n, const char *where, oz_err *err) {
    *t = (oz_tokens){.where = where, .n = n, .n_model = n, .bos = -1, .eos = -1, .unk = -1, .pad = -1};
    OZ_NEED(n > 0 && n <= OZ_TOKENS_MAX, err, OZ_E_FORMAT, "%s: expected 1..%d tokens, found %zu", where, OZ_TOKENS_MAX, n);
    t->arena = oz_arena_new(0);
    t->text = oz_alloc_array(n, sizeof *t->text);
    t->type = oz_alloc_array(n, sizeof *t->type);
    memset(t->type, OZ_TOKEN_NORMAL, n);
    return OZ_OK;
}

void oz_tokens_deinit(oz_tokens *t) {
    oz_arena_free(&t->arena);
    oz_free(t->text);
    oz_free(t->type);
    oz_free(t->score);
    *t = (oz_tokens){0};
}

int64_t oz_tokens_find(const oz_tokens *t, oz_slice text) {
    for (size_t i = 0; i < t->n; i++)
        if (t->type[i] != OZ_TOKEN_UNUSED && oz_slice_eq(t->text[i], text)) return (int64_t)i;
    return -1;
}

static json_t *text_json(oz_slice s) { return json_stringn(s.p, s.n); }

json_t *oz_tokens_text(const oz_tokens *t, int64_t id) { return id < 0 ? json_null() : text_json(t->text[id]); }

/* Holes of the vocabulary (kind "unused") stand for no text and are left out, as in the file that a GGUF came from. */
oz_status oz_tokens_vocab(json_t **out, const oz_tokens *t, oz_err *err) {
    json_t *ids = *out = json_object();
    for (size_t i = 0; i < t->n_model; i++) {
        const oz_slice s = t->text[i];
        if (t->type[i] == OZ_TOKEN_UNUSED) continue;
        const json_t *old = json_object_getn(ids, s.p, s.n);
        OZ_NEED(!old, err, OZ_E_FORMAT, "%s: tokens %" JSON_INTEGER_FORMAT " and %zu are the same, \"%.*s\"", t->where, json_integer_value(old), i,
                (int)(s.n < 100 ? s.n : 100), s.p);
        json_object_setn_new_nocheck(ids, s.p, s.n, json_integer((json_int_t)i));
    }
    return OZ_OK;
}

/* Added tokens are cut out of a text before anything else; of them, the control tokens are special. What a config says of one wins. */
json_t *oz_tokens_added(const oz_tokens *t, bool normalized) {
    json_t *added = json_array();
    for (size_t i = 0; i < t->n; i++) {
        char id[24];
        snprintf(id, sizeof id, "%zu", i);
        const json_t *flags = json_object_get(t->flags, id);
        const int type = t->type[i];
        if (!flags && type != OZ_TOKEN_CONTROL && type != OZ_TOKEN_USER && type != OZ_TOKEN_UNKNOWN) continue;
        json_t *item = json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content", text_json(t->text[i]), "single_word", 0, "lstrip", 0, "rstrip", 0,
                                 "normalized", normalized && type == OZ_TOKEN_USER, "special", type != OZ_TOKEN_USER && type != OZ_TOKEN_NORMAL);
        if (flags) json_object_update_existing(item, (json_t *)flags);
        json_array_append_new(added, item);
    }
    return added;
}

json_t *oz_tokens_around(const oz_tokens *t, json_t *own) {
    if (!t->adds_bos && !t->adds_eos) return own;
    json_t *single = json_array(), *pair = json_array(), *special = json_object();
    for (int text = 0; text < 2; text++) { /* a pair is both texts, each with its own bos and eos */
        const struct {
            bool adds;
            int64_t id;
        } around[] = {{t->adds_bos, t->bos}, {t->adds_eos, t->eos}};
        json_t *parts = json_array();
        for (int k = 0; k < 2; k++) {
            if (k == 1) json_array_append_new(parts, json_pack("{s:{s:s, s:i}}", "Sequence", "id", text ? "B" : "A", "type_id", text));
            if (!around[k].adds) continue;
            json_t *token = oz_tokens_text(t, around[k].id);
            json_array_append_new(parts, json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", token, "type_id", text));
            json_object_set_new(special, json_string_value(token),
                                json_pack("{s:O, s:[I], s:[O]}", "id", token, "ids", (json_int_t)around[k].id, "tokens", token));
            json_decref(token);
        }
        if (text == 0) json_array_extend(single, parts);
        json_array_extend(pair, parts);
        json_decref(parts);
    }
    json_t *template = json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair", pair, "special_tokens", special);
    if (json_is_null(own)) return template;
    return json_pack("{s:s, s:[o, o]}", "type", "Sequence", "processors", own, template);
}

json_t *oz_tokenizer_json(const oz_tokenizer_parts *p) {
    return json_pack("{s:s, s:n, s:n, s:o, s:o?, s:o?, s:o?, s:o?, s:o}", "version", "1.0", "truncation", "padding", "added_tokens", p->added, "normalizer", p->normalizer,
                     "pre_tokenizer", p->pre_tokenizer, "post_processor", p->post_processor, "decoder", p->decoder, "model", p->model);
}

static json_t *literal(const char *json) { return json_loads(json, JSON_DECODE_ANY, NULL); }

static json_t *bpe_json(json_t *vocab, json_t *merges) {
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                     "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

json_t *oz_tokens_bytes(const oz_tokens *t, const oz_bytes_rules *r, json_t *vocab, json_t *merges) {
    json_t *model = bpe_json(vocab, merges);
    json_object_set_new(model, "ignore_merges", json_boolean(r->ignore_merges));
    return oz_tokenizer_json(&(oz_tokenizer_parts){oz_tokens_added(t, false), literal(r->normalizer), literal(r->pre_tokenizer),
                                                   oz_tokens_around(t, literal(r->post_processor)), literal(r->decoder), model});
}

/* ---- SentencePiece ---- */

static json_t *replace(const char *kind, const char *pattern, const char *content) {
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, pattern, "content", content);
}

static json_t *normalizer_json(const oz_spm_rules *r) {
    json_t *steps = json_array();
    if (r->charsmap.n) {
        oz_buf b = {0};
        oz_base64_encode(&b, r->charsmap.p, r->charsmap.n);
        json_array_append_new(steps, json_pack("{s:s, s:s#}", "type", "Precompiled", "precompiled_charsmap", b.data, b.len));
        oz_buf_deinit(&b);
    }
    if (r->collapse_spaces) {
        json_array_append_new(steps, replace("Regex", "\\A +", ""));
        json_array_append_new(steps, replace("Regex", " {2,}", " "));
    }
    if (r->dummy_prefix && !r->first_only) json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE));
    json_array_append_new(steps, replace("String", " ", SPACE));
    if (r->collapse_spaces) json_array_append_new(steps, replace("Regex", SPACE "+\\z", ""));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *decoder_json(const oz_spm_rules *r) {
    json_t *steps = json_pack("[o]", replace("String", SPACE, " "));
    if (r->byte_fallback) json_array_append_new(steps, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(steps, json_pack("{s:s}", "type", "Fuse"));
    /* what is a single space in a text is at its beginning the prefix; where runs of spaces collapse, all of a run is */
    const int n_spaces = r->collapse_spaces ? 1 << 20 : 1;
    if (r->dummy_prefix) json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", n_spaces, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static oz_status spm_bpe_json(json_t **out, const oz_tokens *t, const oz_spm_rules *r, oz_err *err) {
    json_t *vocab = NULL, *merges = NULL;
    oz_status st = oz_tokens_vocab(&vocab, t, err);
    if (st == OZ_OK) st = oz_tokens_merges(&merges, t, err);
    if (st != OZ_OK) {
        json_decref(vocab);
        json_decref(merges);
        return st;
    }
    *out = bpe_json(vocab, merges);
    json_object_set_new(*out, "unk_token", oz_tokens_text(t, t->unk));
    json_object_set_new(*out, "fuse_unk", json_true());
    json_object_set_new(*out, "byte_fallback", json_boolean(r->byte_fallback));
    return OZ_OK;
}

/* A list by id: the unused at its end are left out, one in the middle cannot be. */
static oz_status unigram_json(json_t **out, const oz_tokens *t, const oz_spm_rules *r, oz_err *err) {
    json_t *vocab = json_array();
    *out = json_pack("{s:s, s:o, s:b}", "type", "Unigram", "vocab", vocab, "byte_fallback", r->byte_fallback);
    if (t->unk >= 0) json_object_set_new(*out, "unk_id", json_integer(t->unk));
    size_t n = t->n_model;
    while (n && t->type[n - 1] == OZ_TOKEN_UNUSED) n--;
    OZ_NEED(t->unk < (int64_t)n, err, OZ_E_FORMAT, "%s: the unknown token, %" PRId64 ", is not in use", t->where, t->unk);
    for (size_t i = 0; i < n; i++) {
        OZ_NEED(t->type[i] != OZ_TOKEN_UNUSED, err, OZ_E_UNSUPPORTED, "%s: token %zu: unused, among others that are used", t->where, i);
        json_array_append_new(vocab, json_pack("[o, f]", text_json(t->text[i]), (double)t->score[i]));
    }
    return OZ_OK;
}

/* A user's symbol with U+2581 in it is found behind normalization, where the prefix would be in front of the symbol, too. */
static oz_status symbols_check(const oz_tokens *t, const oz_spm_rules *r, oz_err *err) {
    for (size_t i = 0; i < t->n_model && r->dummy_prefix && !r->first_only; i++)
        OZ_NEED(t->type[i] != OZ_TOKEN_USER || !memmem(t->text[i].p, t->text[i].n, SPACE, 3), err, OZ_E_UNSUPPORTED,
                "%s: token %zu, \"%.*s\": a user-defined symbol with a space in it, together with add_dummy_prefix", t->where, i, (int)t->text[i].n, t->text[i].p);
    return OZ_OK;
}

oz_status oz_tokens_spm(json_t **out, const oz_tokens *t, const oz_spm_rules *r, oz_err *err) {
    json_t *model = NULL;
    OZ_TRY(symbols_check(t, r, err));
    oz_status st = r->is_bpe ? spm_bpe_json(&model, t, r, err) : unigram_json(&model, t, r, err);
    if (st != OZ_OK) {
        json_decref(model);
        return st;
    }
    json_t *first = r->dummy_prefix && r->first_only
                        ? json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", SPACE, "prepend_scheme", "first", "split", 0)
                        : NULL;
    const bool normalized = !r->collapse_spaces && !r->charsmap.n && (!r->dummy_prefix || r->first_only);
    *out = oz_tokenizer_json(&(oz_tokenizer_parts){oz_tokens_added(t, normalized), normalizer_json(r), first, oz_tokens_around(t, json_null()), decoder_json(r), model});
    return OZ_OK;
}
