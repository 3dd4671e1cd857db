/* Added tokens: found in a text before the model sees it, leftmost and longest.
 *
 * The tokens are sorted; at a byte that begins one, the range of tokens that still fit is narrowed byte by byte with a binary search.
 * That costs at most the longest token's length at each position, which is bounded, and almost nothing where no token begins; an
 * automaton would save the rest and cost a table. */
#include "text/tok_internal.h"
#include <stdlib.h>
#include <string.h>

void oz_added_push(oz_added *a, oz_added_token t, oz_slice text) {
    oz_grow((void **)&a->tok, &a->cap, a->n + 1, sizeof *a->tok);
    t.at = a->chars.len;
    t.n = text.n;
    t.order = a->n;
    oz_buf_append(&a->chars, text.p, text.n);
    a->tok[a->n++] = t;
}

static int compare(const void *x, const void *y, void *chars) {
    const oz_added_token *a = x, *b = y;
    size_t n = a->n < b->n ? a->n : b->n;
    int c = memcmp((const char *)chars + a->at, (const char *)chars + b->at, n);
    if (c) return c;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

void oz_added_seal(oz_added *a) {
    if (!a->n) return;
    qsort_r(a->tok, a->n, sizeof *a->tok, compare, a->chars.data);
    size_t w = 0;
    for (size_t i = 0; i < a->n; i++) {
        const oz_added_token *t = &a->tok[i], *last = &a->tok[w ? w - 1 : 0];
        const char *s = a->chars.data;
        if (w && last->n == t->n && memcmp(s + last->at, s + t->at, t->n) == 0) continue;
        a->first[(unsigned char)s[t->at]] = true;
        a->tok[w++] = *t;
    }
    a->n = w;
}

void oz_added_deinit(oz_added *a) {
    oz_free(a->tok);
    oz_buf_deinit(&a->chars);
}

/* The first index in [lo, hi) whose byte `depth` is at least b; all of them share the bytes before and are longer than depth. */
static size_t bound(const oz_added *a, size_t lo, size_t hi, size_t depth, int b) {
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((unsigned char)a->chars.data[a->tok[mid].at + depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static const oz_added_token *longest(const oz_added *a, const char *p, size_t n) {
    const oz_added_token *best = NULL;
    size_t lo = 0, hi = a->n;
    for (size_t depth = 0; depth < n; depth++) {
        int b = (unsigned char)p[depth];
        lo = bound(a, lo, hi, depth, b);
        hi = bound(a, lo, hi, depth, b + 1);
        if (lo == hi) break;
        if (a->tok[lo].n == depth + 1) best = &a->tok[lo++];
    }
    return best;
}

static bool is_next_to_word(oz_slice s, size_t begin, size_t end) {
    static const char name[] = "neighbour";
    const oz_uc_class *word = oz_uc_class_find(name, sizeof name - 1);
    uint32_t c;
    if (begin > 0) {
        size_t i = begin - 1;
        while (i > 0 && ((unsigned char)s.p[i] & 0xC0) == 0x80) i--;
        oz_uc_next(s.p + i, &c);
        if (oz_uc_in(word, c)) return true;
    }
    if (end < s.n) {
        oz_uc_next(s.p + end, &c);
        if (oz_uc_in(word, c)) return true;
    }
    return false;
}

/* White space that rstrip takes is searched again for tokens: a hit inside it is handed over too unless it strips on its left, and
 * what follows is cut from that hit's own end. That is how the reference does it. */
oz_status oz_added_cut(const oz_added *a, oz_slice s, oz_added_fn *fn, void *self, oz_err *err) {
    size_t done = 0;
    for (size_t i = 0; a->n && i < s.n;) {
        const oz_added_token *t = a->first[(unsigned char)s.p[i]] ? longest(a, s.p + i, s.n - i) : NULL;
        if (!t) {
            i++;
            continue;
        }
        size_t begin = i, end = i + t->n;
        i = end;
        if (t->single_word && is_next_to_word(s, begin, end)) continue;
        if (t->rstrip) end = oz_uc_spaces_behind(s, end);
        if (t->lstrip) begin = done < begin ? oz_uc_spaces_before(s, begin, done) : done;
        if (begin >= end) continue; /* the white space that it is made of was taken already */
        if (done < begin) OZ_TRY(fn(self, (oz_slice){s.p + done, begin - done}, -1, err));
        OZ_TRY(fn(self, (oz_slice){s.p + begin, end - begin}, t->id, err));
        done = end;
    }
    return done < s.n ? fn(self, (oz_slice){s.p + done, s.n - done}, -1, err) : OZ_OK;
}
