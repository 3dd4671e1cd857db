/* WordPiece (a word is cut from its beginning into the longest tokens) and WordLevel (a word is a token). */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { NONE = -1, ROOT = 0 };

typedef struct words {
    const oz_vocab *vocab;
    oz_trie trie;
    uint32_t inner; /* where tokens within a word begin; UINT32_MAX: there is none */
    int64_t max_chars;
    int32_t unk;
} words;

static oz_status load(words *m, oz_vocab *v, const json_t *obj, oz_err *err) {
    const char *unk = NULL;
    m->vocab = v;
    OZ_TRY(oz_vocab_read(v, json_object_get(obj, "vocab"), err));
    OZ_TRY(oz_json_str(&unk, obj, "model", "unk_token", err));
    OZ_NEED(unk, err, OZ_E_FORMAT, "model.unk_token: must be a string, found %s", oz_json_show(json_object_get(obj, "unk_token")));
    m->unk = oz_vocab_find(v, oz_slice_view(unk), OZ_TOK_MODEL);
    return OZ_OK;
}

static oz_status word_level_load(void **self, oz_vocab *v, const json_t *obj, bool byte_level, oz_err *err) {
    words *m = *self = oz_alloc(sizeof *m);
    return load(m, v, obj, err);
}

static oz_status word_piece_load(void **self, oz_vocab *v, const json_t *obj, bool byte_level, oz_err *err) {
    words *m = *self = oz_alloc(sizeof *m);
    const char *prefix = "##";
    OZ_TRY(load(m, v, obj, err));
    OZ_TRY(oz_json_str(&prefix, obj, "model", "continuing_subword_prefix", err));
    m->max_chars = 100;
    OZ_TRY(oz_json_int(&m->max_chars, obj, "model", "max_input_chars_per_word", 0, INT64_MAX, err));
    for (size_t id = 0; id < v->n; id++) {
        oz_slice s = oz_vocab_content(v, (int32_t)id);
        if (v->item[id].flags && s.n) OZ_TRY(oz_trie_add(&m->trie, s, (int32_t)id, err));
    }
    m->inner = ROOT;
    for (const char *p = prefix; *p && m->inner != UINT32_MAX; p++) {
        m->inner = oz_trie_step(&m->trie, m->inner, *p);
        if (m->inner == ROOT) m->inner = UINT32_MAX;
    }
    return OZ_OK;
}

static void words_free(void *self) {
    words *m = self;
    oz_trie_deinit(&m->trie);
    oz_free(m);
}

static oz_status put_unknown(oz_ids *out, const words *m, oz_err *err) {
    OZ_NEED(m->unk != NONE, err, OZ_E_FORMAT, "a word is not in model.vocab, and neither is model.unk_token");
    oz_ids_push(out, m->unk);
    return OZ_OK;
}

static oz_status word_level_encode(oz_ids *out, const void *self, oz_model_work *w, oz_slice word, oz_err *err) {
    const words *m = self;
    int32_t id = oz_vocab_find(m->vocab, word, OZ_TOK_MODEL);
    if (id < 0) return put_unknown(out, m, err);
    oz_ids_push(out, id);
    return OZ_OK;
}

/* The longest token at s, in bytes; 0: none. */
static size_t longest(int32_t *id, const words *m, uint32_t node, oz_slice s) {
    size_t best = 0;
    for (size_t i = 0; i < s.n && (node = oz_trie_step(&m->trie, node, s.p[i]));) {
        i++;
        if (m->trie.value[node] < 0) continue;
        best = i;
        *id = m->trie.value[node];
    }
    return best;
}

static oz_status word_piece_encode(oz_ids *out, const void *self, oz_model_work *w, oz_slice word, oz_err *err) {
    const words *m = self;
    size_t before = out->len, n = 0;
    for (size_t i = 0; i < word.n && (int64_t)n <= m->max_chars; i += oz_uc_len(word.p[i])) n++;
    bool good = (int64_t)n <= m->max_chars;
    for (size_t i = 0, len; i < word.n && good; i += len) {
        int32_t id = NONE;
        uint32_t from = i ? m->inner : ROOT;
        len = from == UINT32_MAX ? 0 : longest(&id, m, from, (oz_slice){word.p + i, word.n - i});
        good = len > 0;
        if (good) oz_ids_push(out, id);
    }
    if (good) return OZ_OK;
    out->len = before;
    return put_unknown(out, m, err);
}

const oz_model_row oz_model_word_piece = {"WordPiece",       "type|unk_token|continuing_subword_prefix|max_input_chars_per_word|vocab",
                                          word_piece_load,   NULL,
                                          word_piece_encode, words_free};
const oz_model_row oz_model_word_level = {"WordLevel", "type|unk_token|vocab", word_level_load, NULL, word_level_encode, words_free};
