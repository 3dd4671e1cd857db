/* Byte-pair encoding.
 *
 * A word starts as its bytes (or characters); again and again the neighbouring pair of the lowest rank, the leftmost of equals, becomes
 * one token. A heap of (rank, place) over a linked list makes that n log n for a word of any length: an entry whose pair has changed
 * in the meantime is passed over. Pairs lie in one open-addressed table, built without an allocation an entry. */
#include "base/clock.h"
#include "base/json.h"
#include "text/tok_internal.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { NONE = -1 };
#define NO_RANK UINT32_MAX

typedef struct pair {
    int32_t a, b, to;
    uint32_t rank;
} pair; /* a -1: an empty slot */

typedef struct bpe {
    const oz_vocab *vocab;
    pair *pairs;
    size_t mask, n;
    uint64_t seed; /* odd, drawn anew each time: no file can make all its pairs collide */
    int32_t byte_id[256];
    int32_t unk;
    bool byte_level, fuse_unk, ignore_merges;
} bpe;

static size_t slot_of(const bpe *m, int32_t a, int32_t b) {
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * m->seed;
    return (size_t)((h ^ h >> 29) * m->seed >> 32) & m->mask;
}

static pair *slot(const bpe *m, int32_t a, int32_t b) {
    for (size_t i = slot_of(m, a, b);; i = (i + 1) & m->mask) {
        pair *p = &m->pairs[i];
        if (p->a == NONE || (p->a == a && p->b == b)) return p;
    }
}

/* ---- loading */

/* The two sides of a merge: "a b", or ["a", "b"]. */
static oz_status sides(oz_slice out[2], const json_t *v, size_t i, oz_err *err) {
    if (json_is_string(v)) {
        const char *s = json_string_value(v), *space = strchr(s, ' ');
        size_t n = json_string_length(v);
        OZ_NEED(space && !strchr(space + 1, ' '), err, OZ_E_FORMAT,
                "model.merges[%zu]: must be two tokens with one space between, found %s", i, oz_json_show(v));
        out[0] = (oz_slice){s, (size_t)(space - s)};
        out[1] = (oz_slice){space + 1, n - out[0].n - 1};
        return OZ_OK;
    }
    const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    OZ_NEED(json_is_string(a) && json_is_string(b) && json_array_size(v) == 2, err, OZ_E_FORMAT,
            "model.merges[%zu]: must be \"a b\" or [\"a\", \"b\"], found %s", i, oz_json_show(v));
    out[0] = (oz_slice){json_string_value(a), json_string_length(a)};
    out[1] = (oz_slice){json_string_value(b), json_string_length(b)};
    return OZ_OK;
}

static oz_status token(int32_t *id, const bpe *m, oz_slice s, size_t i, oz_err *err) {
    *id = oz_vocab_find(m->vocab, s, OZ_TOK_MODEL);
    OZ_NEED(*id >= 0, err, OZ_E_FORMAT, "model.merges[%zu]: \"%.*s\" is not in model.vocab", i, s.n < 60 ? (int)s.n : 60, s.p);
    return OZ_OK;
}

static oz_status merge_read(bpe *m, const json_t *v, size_t i, oz_buf *joined, oz_err *err) {
    oz_slice s[2] = {{0}, {0}};
    int32_t a, b, to;
    OZ_TRY(sides(s, v, i, err));
    OZ_TRY(token(&a, m, s[0], i, err));
    OZ_TRY(token(&b, m, s[1], i, err));
    oz_buf_clear(joined);
    oz_buf_append(joined, s[0].p, s[0].n);
    oz_buf_append(joined, s[1].p, s[1].n);
    OZ_TRY(token(&to, m, (oz_slice){joined->data, joined->len}, i, err));
    *slot(m, a, b) = (pair){a, b, to, (uint32_t)i}; /* of two equal merges the later counts, as in the reference */
    return OZ_OK;
}

static oz_status merges_read(bpe *m, const json_t *merges, oz_err *err) {
    OZ_NEED(json_is_array(merges), err, OZ_E_FORMAT, "model.merges: must be an array, found %s", oz_json_show(merges));
    size_t n = json_array_size(merges), size = 16;
    while (size < 2 * n) size *= 2;
    m->pairs = oz_alloc_array(size, sizeof *m->pairs);
    m->mask = size - 1;
    for (size_t i = 0; i < size; i++) m->pairs[i].a = NONE;
    if (getrandom(&m->seed, sizeof m->seed, GRND_NONBLOCK) != sizeof m->seed) m->seed = (uint64_t)oz_clock_us() * 0x9e3779b97f4a7c15u;
    m->seed |= 1;
    oz_buf joined = {0};
    oz_status st = OZ_OK;
    for (size_t i = 0; i < n && st == OZ_OK; i++) st = merge_read(m, json_array_get(merges, i), i, &joined, err);
    oz_buf_deinit(&joined);
    return st;
}

static oz_status need_empty(const json_t *obj, const char *key, oz_err *err) {
    const char *s = "";
    OZ_TRY(oz_json_str(&s, obj, "model", key, err));
    OZ_NEED(!*s, err, OZ_E_UNSUPPORTED, "model.%s: \"%.60s\" is not supported, expected null or \"\"", key, s);
    return OZ_OK;
}

static oz_status options_read(bpe *m, const json_t *obj, oz_err *err) {
    oz_jpath path = {"model"};
    bool byte_fallback = false;
    double dropout = 0;
    const char *unk = NULL;
    OZ_TRY(oz_json_float(&dropout, obj, "model", "dropout", 0, 0, err));
    OZ_TRY(need_empty(obj, "continuing_subword_prefix", err));
    OZ_TRY(need_empty(obj, "end_of_word_suffix", err));
    OZ_TRY(oz_json_flag(&byte_fallback, obj, path, "byte_fallback", err));
    OZ_NEED(!byte_fallback, err, OZ_E_UNSUPPORTED, "model.byte_fallback: true is not supported");
    OZ_TRY(oz_json_flag(&m->fuse_unk, obj, path, "fuse_unk", err));
    OZ_TRY(oz_json_flag(&m->ignore_merges, obj, path, "ignore_merges", err));
    OZ_TRY(oz_json_str(&unk, obj, "model", "unk_token", err));
    m->unk = unk ? oz_vocab_find(m->vocab, oz_slice_view(unk), OZ_TOK_MODEL) : NONE;
    OZ_NEED(!unk || m->unk != NONE, err, OZ_E_FORMAT, "model.unk_token: \"%.60s\" is not in model.vocab", unk);
    return OZ_OK;
}

static oz_status vocab_read(oz_vocab *v, const json_t *vocab, oz_err *err) {
    OZ_NEED(json_is_object(vocab), err, OZ_E_FORMAT, "model.vocab: must be an object, found %s", oz_json_show(vocab));
    if (!v->ids) v->ids = oz_map_new(json_object_size(vocab));
    const char *key;
    size_t n;
    json_t *id;
    json_object_keylen_foreach((json_t *)vocab, key, n, id) {
        OZ_NEED(json_is_integer(id), err, OZ_E_FORMAT, "model.vocab: the id of \"%.60s\" must be an integer, found %s", key,
                oz_json_show(id));
        OZ_TRY(oz_vocab_add(v, json_integer_value(id), (oz_slice){key, n}, OZ_TOK_MODEL, "model.vocab", err));
    }
    return OZ_OK;
}

static void bpe_free(void *self) {
    bpe *m = self;
    oz_free(m->pairs);
    oz_free(m);
}

static oz_status bpe_load(void **self, oz_vocab *v, const json_t *obj, bool byte_level, oz_err *err) {
    bpe *m = oz_alloc(sizeof *m);
    *self = m;
    m->vocab = v;
    m->byte_level = byte_level;
    OZ_TRY(vocab_read(v, json_object_get(obj, "vocab"), err));
    OZ_TRY(options_read(m, obj, err));
    OZ_TRY(merges_read(m, json_object_get(obj, "merges"), err));
    for (int i = 0; i < 256; i++) {
        char s[4];
        m->byte_id[i] = oz_vocab_find(v, (oz_slice){s, oz_utf8_encode(s, oz_byte_char((uint8_t)i))}, OZ_TOK_MODEL);
    }
    return OZ_OK;
}

/* ---- encoding */

struct oz_symbol {
    int32_t id, to, prev, next;
    uint32_t rank;
}; /* rank, to: of the pair with the next symbol */
typedef struct oz_symbol symbol;

static oz_status room(oz_model_work *w, size_t n, oz_err *err) {
    if (n <= w->cap) return OZ_OK;
    size_t cap = 64;
    while (cap < n) cap *= 2;
    oz_big_free(w->symbols);
    oz_big_free(w->heap);
    w->symbols = NULL;
    w->heap = NULL;
    w->cap = 0;
    OZ_TRY(oz_big_new((void **)&w->symbols, cap * sizeof *w->symbols, "the symbols of a word", err));
    OZ_TRY(
        oz_big_new((void **)&w->heap, 2 * cap * sizeof *w->heap, "the merges of a word", err)); /* a merge takes one out and puts two in */
    w->cap = cap;
    return OZ_OK;
}

void oz_model_work_deinit(oz_model_work *w) {
    oz_big_free(w->symbols);
    oz_big_free(w->heap);
    oz_buf_deinit(&w->spelled);
    *w = (oz_model_work){0};
}

static size_t symbols_from_chars(const bpe *m, symbol *s, oz_slice word) {
    size_t k = 0;
    for (size_t i = 0, n; i < word.n; i += n) {
        n = oz_uc_len(word.p[i]);
        int32_t id = oz_vocab_find(m->vocab, (oz_slice){word.p + i, n}, OZ_TOK_MODEL);
        bool fused = id < 0 && m->fuse_unk && i > 0 && k > 0 && s[k - 1].id == m->unk;
        if (id < 0) id = m->unk;
        if (id >= 0 && !fused) s[k++].id = id;
    }
    return k;
}

static size_t symbols_from_bytes(const bpe *m, symbol *s, oz_slice word) {
    size_t k = 0;
    for (size_t i = 0; i < word.n; i++) {
        int32_t id = m->byte_id[(unsigned char)word.p[i]];
        if (id < 0) id = m->unk;
        if (id >= 0 && !(m->fuse_unk && id == m->unk && k > 0 && s[k - 1].id == id)) s[k++].id = id;
    }
    return k;
}

static void pair_with_next(const bpe *m, symbol *s, size_t i) {
    s[i].rank = NO_RANK;
    if (s[i].next < 0) return;
    const pair *p = slot(m, s[i].id, s[s[i].next].id);
    if (p->a == NONE) return;
    s[i].rank = p->rank;
    s[i].to = p->to;
}

static void sift_down(uint64_t *h, size_t n, size_t i) {
    uint64_t v = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1] < h[child]) child++;
        if (h[child] >= v) break;
        h[i] = h[child];
    }
    h[i] = v;
}

static void push(uint64_t *h, size_t *n, uint64_t v) {
    size_t i = (*n)++;
    for (size_t up; i > 0 && h[up = (i - 1) / 2] > v; i = up) h[i] = h[up];
    h[i] = v;
}

static uint64_t entry(const symbol *s, size_t i) { return (uint64_t)s[i].rank << 32 | i; }

/* Joins symbol i with the next; the pairs on both sides change. */
static void join(const bpe *m, symbol *s, size_t i, uint64_t *heap, size_t *n_heap) {
    size_t gone = (size_t)s[i].next;
    s[gone].rank = NO_RANK;
    s[i].id = s[i].to;
    s[i].next = s[gone].next;
    if (s[i].next >= 0) s[s[i].next].prev = (int32_t)i;
    pair_with_next(m, s, i);
    if (s[i].rank != NO_RANK) push(heap, n_heap, entry(s, i));
    if (s[i].prev < 0) return;
    size_t prev = (size_t)s[i].prev;
    pair_with_next(m, s, prev);
    if (s[prev].rank != NO_RANK) push(heap, n_heap, entry(s, prev));
}

static void merge_all(const bpe *m, symbol *s, size_t n, uint64_t *heap) {
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : NONE;
    }
    for (size_t i = 0; i < n; i++) {
        pair_with_next(m, s, i);
        if (s[i].rank != NO_RANK) heap[n_heap++] = entry(s, i);
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    while (n_heap) {
        uint64_t top = heap[0];
        heap[0] = heap[--n_heap];
        sift_down(heap, n_heap, 0);
        size_t i = (size_t)(uint32_t)top;
        if (s[i].rank == (uint32_t)(top >> 32)) join(m, s, i, heap, &n_heap);
    }
}

/* The word as the vocabulary spells it, if it is there as a whole. */
static int32_t whole(const bpe *m, oz_model_work *w, oz_slice word) {
    if (word.n > m->vocab->longest) return NONE;
    if (!m->byte_level) return oz_vocab_find(m->vocab, word, OZ_TOK_MODEL);
    oz_buf_clear(&w->spelled);
    for (size_t i = 0; i < word.n; i++) oz_buf_put_utf8(&w->spelled, oz_byte_char((uint8_t)word.p[i]));
    return oz_vocab_find(m->vocab, (oz_slice){w->spelled.data, w->spelled.len}, OZ_TOK_MODEL);
}

static oz_status bpe_encode(oz_ids *out, const void *self, oz_model_work *w, oz_slice word, oz_err *err) {
    const bpe *m = self;
    int32_t id = m->ignore_merges ? whole(m, w, word) : NONE;
    if (id >= 0) return oz_ids_push(out, id), OZ_OK;
    OZ_NEED(word.n < INT32_MAX, err, OZ_E_ARG, "a word of %zu bytes is too long, at most 2 GiB are supported", word.n);
    OZ_TRY(room(w, word.n, err));
    size_t n = m->byte_level ? symbols_from_bytes(m, w->symbols, word) : symbols_from_chars(m, w->symbols, word);
    if (!n) return OZ_OK;
    merge_all(m, w->symbols, n, w->heap);
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next) oz_ids_push(out, w->symbols[i].id);
    return OZ_OK;
}

const oz_model_row oz_model_bpe = {
    "BPE",    "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|byte_fallback|ignore_merges|vocab|merges",
    bpe_load, bpe_encode,
    bpe_free,
};
