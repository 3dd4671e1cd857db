/* Byte-pair encoding.
 *
 * A word starts as its bytes (or characters); again and again the neighbouring pair of the lowest rank, the leftmost of equals, becomes
 * one token. A heap of (rank, place) over a linked list makes that n log n for a word of any length: an entry whose pair has changed
 * in the meantime is passed over. Pairs lie in one open-addressed table, built without an allocation an entry.
 *
 * A vocabulary without pre-tokeniser sees a whole text as one word. It falls apart all the same: between two characters that no merge
 * has at its seam (the last of its left side, the first of its right) nothing is ever joined, so what lies before and behind are words
 * of their own, which are short, and come again. The seams are a table of bits by hash: a collision only keeps two words together. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { NONE = -1, N_PAGES = 0x110000 >> 8, PAIR_BITS = 18, MAX_AFFIX = 64 };
#define NO_RANK UINT32_MAX

typedef struct pair {
    int32_t a, b, to;
    uint32_t rank;
} pair; /* a -1: an empty slot */

typedef struct bpe {
    const oz_vocab *vocab;
    pair *pairs;
    size_t mask, n;
    uint64_t seed;          /* odd, drawn anew each time: no file can make all its pairs collide */
    int32_t byte_id[256];   /* byte-level: of each byte; else of <0x00> .. */
    int32_t *page[N_PAGES]; /* of a character in a word's middle; NULL: of none of these 256 */
    uint8_t seam[1 << (PAIR_BITS - 3)];
    oz_slice prefix, suffix; /* of tokens within a word, and at its end; owned */
    const char *missing;     /* an unk_token that the vocabulary lacks; owned */
    int32_t unk;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    bool parts, lone_unknowns; /* words fall apart at all; characters that are no token never take part in a merge */
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

static uint32_t pair_bit(uint32_t a, uint32_t b) { return (a * 0x9e3779b1u ^ b * 0x85ebca6bu) >> (32 - PAIR_BITS); }

static bool has_seam(const bpe *m, uint32_t a, uint32_t b) {
    uint32_t bit = pair_bit(a, b);
    return m->seam[bit >> 3] >> (bit & 7) & 1;
}

static void seam_put(bpe *m, oz_slice left, oz_slice right) {
    if (!left.n || !right.n) return;
    size_t i = left.n - 1;
    uint32_t a, b, bit;
    while (i > 0 && ((unsigned char)left.p[i] & 0xC0) == 0x80) i--;
    oz_uc_next(left.p + i, &a);
    oz_uc_next(right.p, &b);
    bit = pair_bit(a, b);
    m->seam[bit >> 3] |= (uint8_t)(1u << (bit & 7));
}

static bool is_unknown(const bpe *m, int32_t id) {
    bool is = id == m->unk;
    for (int i = 0; i < 256 && m->byte_fallback; i++) is |= id == m->byte_id[i];
    return is;
}

static oz_status merge_read(bpe *m, const json_t *v, size_t i, oz_buf *joined, oz_err *err) {
    oz_slice s[2] = {{0}, {0}};
    int32_t a, b, to;
    OZ_TRY(sides(s, v, i, err));
    OZ_TRY(token(&a, m, s[0], i, err));
    OZ_TRY(token(&b, m, s[1], i, err));
    OZ_NEED(s[1].n >= m->prefix.n, err, OZ_E_FORMAT, "model.merges[%zu]: its right side must be longer than \"%s\", found %s", i,
            m->prefix.p, oz_json_show(v));
    oz_buf_clear(joined);
    oz_buf_append(joined, s[0].p, s[0].n);
    oz_buf_append(joined, s[1].p + m->prefix.n, s[1].n - m->prefix.n);
    OZ_TRY(token(&to, m, (oz_slice){joined->data, joined->len}, i, err));
    *slot(m, a, b) = (pair){a, b, to, (uint32_t)i}; /* of two equal merges the later counts, as in the reference */
    if (!m->byte_level) m->lone_unknowns = m->lone_unknowns && !is_unknown(m, a) && !is_unknown(m, b);
    seam_put(m, s[0], s[1]);
    return OZ_OK;
}

static oz_status merges_read(bpe *m, const json_t *merges, oz_err *err) {
    OZ_NEED(json_is_array(merges), err, OZ_E_FORMAT, "model.merges: must be an array, found %s", oz_json_show(merges));
    size_t n = json_array_size(merges), size = 16;
    while (size < 2 * n) size *= 2;
    m->pairs = oz_alloc_array(size, sizeof *m->pairs);
    m->mask = size - 1;
    for (size_t i = 0; i < size; i++) m->pairs[i].a = NONE;
    m->seed = oz_seed();
    oz_buf joined = {0};
    oz_status st = OZ_OK;
    for (size_t i = 0; i < n && st == OZ_OK; i++) st = merge_read(m, json_array_get(merges, i), i, &joined, err);
    oz_buf_deinit(&joined);
    return st;
}

/* null and "" are one for what goes before and behind characters. */
static oz_status affix_read(oz_slice *out, const json_t *obj, const char *key, oz_err *err) {
    const char *s = "";
    OZ_TRY(oz_json_str(&s, obj, "model", key, err));
    OZ_NEED(strlen(s) <= MAX_AFFIX, err, OZ_E_UNSUPPORTED, "model.%s: must be at most %d bytes, found %zu", key, MAX_AFFIX, strlen(s));
    *out = (oz_slice){oz_strdup(s), strlen(s)};
    return OZ_OK;
}

static oz_status options_read(bpe *m, const json_t *obj, oz_err *err) {
    oz_jpath path = {"model"};
    double dropout = 0; /* makes training text vary; nothing to do with running a model, so that a file that has it is refused */
    const char *unk = NULL;
    OZ_TRY(oz_json_float(&dropout, obj, "model", "dropout", 0, 0, err));
    OZ_TRY(affix_read(&m->prefix, obj, "continuing_subword_prefix", err));
    OZ_TRY(affix_read(&m->suffix, obj, "end_of_word_suffix", err));
    OZ_TRY(oz_json_flag(&m->byte_fallback, obj, path, "byte_fallback", err));
    OZ_TRY(oz_json_flag(&m->fuse_unk, obj, path, "fuse_unk", err));
    OZ_TRY(oz_json_flag(&m->ignore_merges, obj, path, "ignore_merges", err));
    OZ_TRY(oz_json_str(&unk, obj, "model", "unk_token", err));
    m->unk = unk ? oz_vocab_find(m->vocab, oz_slice_view(unk), OZ_TOK_MODEL) : NONE;
    if (unk && m->unk == NONE) m->missing = oz_strdup(unk);
    return OZ_OK;
}

static void bpe_free(void *self) {
    bpe *m = self;
    for (size_t i = 0; i < N_PAGES; i++) oz_free(m->page[i]);
    oz_free(m->pairs);
    oz_free((char *)m->prefix.p);
    oz_free((char *)m->suffix.p);
    oz_free((char *)m->missing);
    oz_free(m);
}

static void chars_index(bpe *m) {
    for (size_t id = 0; id < m->vocab->n; id++) {
        oz_slice s = oz_vocab_content(m->vocab, (int32_t)id);
        if (!m->vocab->item[id].flags || s.n <= m->prefix.n || memcmp(s.p, m->prefix.p, m->prefix.n) != 0) continue;
        uint32_t c;
        s = (oz_slice){s.p + m->prefix.n, s.n - m->prefix.n};
        if (oz_uc_next(s.p, &c) != s.n) continue;
        int32_t **page = &m->page[c >> 8];
        if (!*page) {
            *page = oz_alloc_array(256, sizeof **page);
            for (int i = 0; i < 256; i++) (*page)[i] = NONE;
        }
        (*page)[c & 255] = (int32_t)id;
    }
}

static int32_t char_id(const bpe *m, uint32_t c) { return m->page[c >> 8] ? m->page[c >> 8][c & 255] : NONE; }

static oz_status bpe_load(void **self, oz_vocab *v, const json_t *obj, bool byte_level, oz_err *err) {
    bpe *m = oz_alloc(sizeof *m);
    *self = m;
    m->vocab = v;
    m->byte_level = byte_level;
    OZ_TRY(oz_vocab_read(v, json_object_get(obj, "vocab"), err));
    OZ_TRY(options_read(m, obj, err));
    oz_vocab_byte_ids(m->byte_id, v);
    for (int i = 0; i < 256 && byte_level; i++) {
        char s[4];
        m->byte_id[i] = oz_vocab_find(v, (oz_slice){s, oz_utf8_encode(s, oz_byte_char((uint8_t)i))}, OZ_TOK_MODEL);
    }
    bool all_bytes = true;
    for (int i = 0; i < 256; i++) all_bytes &= m->byte_id[i] != NONE;
    m->lone_unknowns = m->unk != NONE || (m->byte_fallback && all_bytes); /* else they vanish, and their neighbours meet */
    chars_index(m);
    OZ_TRY(merges_read(m, json_object_get(obj, "merges"), err));
    m->parts = !byte_level && !m->prefix.n && !m->suffix.n && !m->ignore_merges;
    return OZ_OK;
}

bool oz_bpe_reads_bytes(const json_t *obj) { /* what goes around characters, and bytes for unknown ones, are of the spelled alphabet */
    const json_t *prefix = json_object_get(obj, "continuing_subword_prefix"), *suffix = json_object_get(obj, "end_of_word_suffix");
    return json_string_length(prefix) == 0 && json_string_length(suffix) == 0 && !json_is_true(json_object_get(obj, "byte_fallback"));
}

/* ---- encoding */

struct oz_symbol {
    int32_t id, to, prev, next;
    uint32_t rank;
}; /* rank, to: of the pair with the next symbol */
typedef struct oz_symbol symbol;

oz_status oz_model_work_room(void **p, size_t *cap, size_t n, size_t size, const char *what, oz_err *err) {
    if (n <= *cap) return OZ_OK;
    size_t want = 64;
    while (want < n) want *= 2;
    oz_big_free(*p);
    *p = NULL;
    *cap = 0;
    OZ_TRY(oz_big_new(p, want * size, what, err));
    *cap = want;
    return OZ_OK;
}

void oz_model_work_deinit(oz_model_work *w) {
    oz_big_free(w->symbols);
    oz_big_free(w->heap);
    oz_big_free(w->places);
    oz_buf_deinit(&w->spelled);
    *w = (oz_model_work){0};
}

/* A character as the vocabulary has it: with what goes before it within a word, and behind it at the end. */
static oz_slice spell(const bpe *m, oz_model_work *w, oz_slice word, size_t i, size_t n) {
    oz_slice c = {word.p + i, n};
    bool inner = i > 0 && m->prefix.n, last = i + n == word.n && m->suffix.n;
    if (!inner && !last) return c;
    oz_buf_clear(&w->spelled);
    if (inner) oz_buf_append(&w->spelled, m->prefix.p, m->prefix.n);
    oz_buf_append(&w->spelled, c.p, c.n);
    if (last) oz_buf_append(&w->spelled, m->suffix.p, m->suffix.n);
    return (oz_slice){w->spelled.data, w->spelled.len};
}

static int32_t spelled_id(const bpe *m, oz_slice c) {
    uint32_t cp;
    return c.n && oz_uc_next(c.p, &cp) == c.n && !m->prefix.n ? char_id(m, cp) : oz_vocab_find(m->vocab, c, OZ_TOK_MODEL);
}

static bool push_bytes(const bpe *m, symbol *s, size_t *k, oz_slice c) {
    for (size_t i = 0; i < c.n; i++)
        if (m->byte_id[(unsigned char)c.p[i]] == NONE) return false;
    for (size_t i = 0; i < c.n; i++) s[(*k)++].id = m->byte_id[(unsigned char)c.p[i]];
    return true;
}

/* An unknown character waits until the next known one (which may let bytes overtake it, as in the reference), to be one with others. */
static oz_status symbols_from_chars(size_t *n_symbols, const bpe *m, oz_model_work *w, oz_slice word, oz_err *err) {
    symbol *s = w->symbols;
    size_t k = 0;
    bool waits = false;
    for (size_t i = 0, n; i < word.n; i += n) {
        n = oz_uc_len(word.p[i]);
        oz_slice c = spell(m, w, word, i, n);
        int32_t id = spelled_id(m, c);
        if (id < 0 && m->byte_fallback && push_bytes(m, s, &k, c)) continue;
        OZ_NEED(id >= 0 || !m->missing, err, OZ_E_FORMAT, "a character is not in model.vocab, and neither is model.unk_token \"%.60s\"",
                m->missing);
        if (waits && (id >= 0 || !m->fuse_unk)) {
            s[k++].id = m->unk;
            waits = false;
        }
        if (id >= 0)
            s[k++].id = id;
        else
            waits = m->unk != NONE;
    }
    if (waits) s[k++].id = m->unk;
    *n_symbols = k;
    return OZ_OK;
}

static oz_status symbols_from_bytes(size_t *n_symbols, const bpe *m, oz_model_work *w, oz_slice word, oz_err *err) {
    symbol *s = w->symbols;
    size_t k = 0;
    int32_t last = 0;
    for (size_t i = 0; i < word.n; i++) {
        int32_t id = m->byte_id[(unsigned char)word.p[i]];
        OZ_NEED(id >= 0 || !m->missing, err, OZ_E_FORMAT, "a byte is not in model.vocab, and neither is model.unk_token \"%.60s\"",
                m->missing);
        bool fused = id < 0 && m->fuse_unk && last < 0 && k > 0;
        last = id;
        if (id < 0) id = m->unk;
        if (id >= 0 && !fused) s[k++].id = id;
    }
    *n_symbols = k;
    return OZ_OK;
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

/* How much of s is a word of its own. */
static size_t bpe_part(const void *self, oz_slice s) {
    const bpe *m = self;
    if (!m->parts) return s.n;
    uint32_t a, b;
    for (size_t i = oz_uc_next(s.p, &a), n; i < s.n; i += n, a = b) {
        n = oz_uc_next(s.p + i, &b);
        if (has_seam(m, a, b)) continue;
        int unknown = (char_id(m, a) == NONE) + (char_id(m, b) == NONE);
        if (unknown == 0 || (unknown == 1 && m->lone_unknowns)) return i;
    }
    return s.n;
}

static oz_status bpe_encode(oz_ids *out, const void *self, oz_model_work *w, oz_slice word, oz_err *err) {
    const bpe *m = self;
    int32_t id = m->ignore_merges ? whole(m, w, word) : NONE;
    if (id >= 0) return oz_ids_push(out, id), OZ_OK;
    size_t n = 0, most = word.n * (m->byte_fallback ? m->prefix.n + m->suffix.n + 1 : 1); /* an affix may become bytes too */
    OZ_NEED(most < INT32_MAX, err, OZ_E_ARG, "a word of %zu bytes is too long, at most 2 GiB are supported", word.n);
    OZ_TRY(oz_model_work_room((void **)&w->symbols, &w->cap_symbols, most, sizeof *w->symbols, "the symbols of a word", err));
    /* a merge takes one out and puts two in */
    OZ_TRY(oz_model_work_room((void **)&w->heap, &w->cap_heap, 2 * most, sizeof *w->heap, "the merges of a word", err));
    OZ_TRY((m->byte_level ? symbols_from_bytes : symbols_from_chars)(&n, m, w, word, err));
    if (!n) return OZ_OK;
    merge_all(m, w->symbols, n, w->heap);
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next) oz_ids_push(out, w->symbols[i].id);
    return OZ_OK;
}

const oz_model_row oz_model_bpe = {
    "BPE",      "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|fuse_unk|byte_fallback|ignore_merges|vocab|merges",
    bpe_load,   bpe_part,
    bpe_encode, bpe_free,
};
