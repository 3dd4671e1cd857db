/* Encoding a text, and what can be asked of a tokenizer. */
#include "text/tok_internal.h"
#include <string.h>

enum { CACHE_MAX_SLOTS = 1 << 16, CACHE_MAX_BYTES = 64, WHOLE_BYTES = 16 };
enum { MAX_GROWTH = 256, MIN_ARENA = 16 << 20 }; /* a list of pre-tokenizers must not make a text grow without bound */

/* Words come again: a slot says where a word stands in the text and where its ids in the output. Both stay until the text is done,
 * so nothing is copied; and the ids of a word do not depend on where it stands. */
typedef struct cached {
    const char *word;
    uint32_t n, n_ids;
    size_t ids;
} cached;

typedef struct encoder {
    const oz_tok *t;
    oz_ids *out;
    const char *begin; /* of the text */
    size_t zero;       /* see oz_split_run */
    oz_slice normal;   /* the part between added tokens that is cut now */
    oz_split_work split;
    oz_model_work model;
    oz_norm_work norm;
    cached *cache;
    size_t cache_mask;
} encoder;

void oz_ids_push(oz_ids *out, int32_t id) {
    oz_grow((void **)&out->data, &out->cap, out->len + 1, sizeof *out->data);
    out->data[out->len++] = id;
}

static uint64_t hash(const char *p, size_t n) { /* a collision costs one encoding, no more */
    uint64_t h = n, w;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    w = 0;
    if (n) memcpy(&w, p, n);
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static oz_status encode_part(encoder *e, oz_slice word, oz_err *err) {
    if (word.n > CACHE_MAX_BYTES) return e->t->row->encode(e->out, e->t->model, &e->model, word, err);
    cached *c = &e->cache[hash(word.p, word.n) & e->cache_mask];
    if (c->n == word.n && memcmp(c->word, word.p, word.n) == 0) {
        for (size_t i = 0; i < c->n_ids; i++) oz_ids_push(e->out, e->out->data[c->ids + i]);
        return OZ_OK;
    }
    size_t before = e->out->len;
    OZ_TRY(e->t->row->encode(e->out, e->t->model, &e->model, word, err));
    *c = (cached){word.p, (uint32_t)word.n, (uint32_t)(e->out->len - before), before};
    return OZ_OK;
}

static oz_status encode_word(void *self, oz_slice word, oz_err *err) {
    encoder *e = self;
    size_t (*part)(const void *, oz_slice) = word.n > WHOLE_BYTES ? e->t->row->part : NULL;
    for (size_t n; word.n; word = (oz_slice){word.p + n, word.n - n}) {
        n = part ? part(e->t->model, word) : word.n;
        OZ_TRY(encode_part(e, (oz_slice){word.p, n}, err));
    }
    return OZ_OK;
}

static oz_status encode_normalized(void *self, oz_slice part, int32_t id, oz_err *err) {
    encoder *e = self;
    if (id >= 0) return oz_ids_push(e->out, id), OZ_OK;
    size_t at = (size_t)(part.p - e->normal.p);
    return oz_split_run(&e->t->split, part, e->zero > at ? e->zero - at : 0, &e->split, encode_word, e, err);
}

static oz_status encode_raw(void *self, oz_slice part, int32_t id, oz_err *err) {
    encoder *e = self;
    if (id >= 0) return oz_ids_push(e->out, id), OZ_OK;
    oz_slice s = part;
    e->norm.zero = part.p == e->begin ? oz_uc_len(*part.p) : 0;
    OZ_TRY(oz_norms_run(&s, &e->t->norms, &e->norm, err));
    if (s.p != part.p) { /* words must stay where they are until the end */
        s.p = oz_arena_strndup(e->split.arena, s.p, s.n);
        OZ_NEED(s.p, err, OZ_E_NOMEM, "no memory for a text of %zu bytes", s.n);
    }
    e->normal = s;
    e->zero = e->norm.zero;
    return oz_added_cut(&e->t->normalized, s, encode_normalized, e, err);
}

static void append(oz_ids *out, const oz_ids *more) {
    for (size_t i = 0; i < more->len; i++) oz_ids_push(out, more->data[i]);
}

oz_status oz_tok_encode(oz_ids *out, const oz_tok *t, const char *text, size_t n, bool add_special, oz_err *err) {
    encoder e = {.t = t, .out = out};
    oz_buf fixed = {0};
    if (!oz_utf8_valid(text, n)) {
        oz_utf8_replace(&fixed, text, n);
        text = fixed.data;
        n = fixed.len;
    }
    size_t slots = 64;
    while (slots < n / 8 && slots < CACHE_MAX_SLOTS) slots *= 2;
    e.begin = text;
    e.split.arena = oz_arena_new(n > (SIZE_MAX - MIN_ARENA) / MAX_GROWTH ? SIZE_MAX : n * MAX_GROWTH + MIN_ARENA);
    e.cache = oz_alloc_array(slots, sizeof *e.cache);
    e.cache_mask = slots - 1;
    if (add_special) append(out, &t->prefix);
    oz_status st = oz_added_cut(&t->raw, (oz_slice){text, n}, encode_raw, &e, err);
    if (add_special && st == OZ_OK) append(out, &t->suffix);
    oz_split_work_deinit(&e.split);
    oz_model_work_deinit(&e.model);
    oz_norm_work_deinit(&e.norm);
    oz_buf_deinit(&fixed);
    oz_free(e.cache);
    return st;
}

int32_t oz_tok_vocab_size(const oz_tok *t) { return (int32_t)t->vocab.n; }

int32_t oz_tok_id(const oz_tok *t, const char *content) { return oz_vocab_find(&t->vocab, oz_slice_view(content), OZ_TOK_ANY); }

int32_t oz_tok_bos(const oz_tok *t) { return t->bos; }

int32_t oz_tok_eos(const oz_tok *t) { return t->eos; }

bool oz_tok_adds_bos(const oz_tok *t) { return t->bos >= 0 && t->prefix.len > 0 && t->prefix.data[0] == t->bos; }

bool oz_tok_is_special(const oz_tok *t, int32_t id) { return oz_vocab_has(&t->vocab, id) && t->vocab.item[id].flags & OZ_TOK_SPECIAL; }
