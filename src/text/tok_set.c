/* Sets of characters: sorted ranges of code points. */
#include "text/tok_internal.h"
#include <stdlib.h>
#include <string.h>

enum { LAST = 0x10FFFF };

void oz_set_add(oz_set *s, uint32_t lo, uint32_t hi) {
    oz_grow((void **)&s->r, &s->cap, s->n + 1, sizeof *s->r);
    s->r[s->n++] = (oz_range){lo, hi};
}

static int by_lo(const void *a, const void *b) {
    uint32_t x = ((const oz_range *)a)->lo, y = ((const oz_range *)b)->lo;
    return (x > y) - (x < y);
}

/* Sorts and joins. */
static void seal(oz_set *s) {
    if (!s->n) return;
    qsort(s->r, s->n, sizeof *s->r, by_lo);
    size_t w = 1;
    for (size_t i = 1; i < s->n; i++) {
        oz_range *last = &s->r[w - 1], r = s->r[i];
        if (r.lo <= last->hi + 1)
            last->hi = r.hi > last->hi ? r.hi : last->hi;
        else
            s->r[w++] = r;
    }
    s->n = w;
}

void oz_set_negate(oz_set *s) {
    oz_set old = *s;
    uint32_t next = 0;
    *s = (oz_set){0};
    seal(&old);
    for (size_t i = 0; i < old.n; i++) {
        if (old.r[i].lo > next) oz_set_add(s, next, old.r[i].lo - 1);
        next = old.r[i].hi + 1;
    }
    if (next <= LAST) oz_set_add(s, next, LAST);
    oz_free(old.r);
}

void oz_set_add_class(oz_set *s, const oz_uc_class *k, bool negate) {
    oz_set one = {0};
    for (size_t i = 0; i < k->n; i++) oz_set_add(&one, k->r[i].lo, k->r[i].hi);
    if (negate) oz_set_negate(&one);
    for (size_t i = 0; i < one.n; i++) oz_set_add(s, one.r[i].lo, one.r[i].hi);
    oz_free(one.r);
}

bool oz_set_has(const oz_set *s, uint32_t c) {
    for (size_t i = 0; i < s->n; i++)
        if (c >= s->r[i].lo && c <= s->r[i].hi) return true;
    return false;
}

oz_status oz_sets_put(int *index, oz_sets *all, oz_set *s, oz_err *err) {
    seal(s);
    for (size_t i = 0; i < all->n; i++) {
        const oz_set *o = &all->set[i];
        if (o->n == s->n && (s->n == 0 || memcmp(o->r, s->r, s->n * sizeof *s->r) == 0)) {
            oz_free(s->r);
            *s = (oz_set){0};
            *index = (int)i;
            return OZ_OK;
        }
    }
    if (all->n == OZ_MAX_SETS) {
        oz_free(s->r);
        *s = (oz_set){0};
        OZ_FAIL(err, OZ_E_UNSUPPORTED, "the patterns tell more than %d sets of characters apart", OZ_MAX_SETS);
    }
    all->set[all->n] = *s;
    *s = (oz_set){0};
    *index = (int)all->n++;
    return OZ_OK;
}

void oz_sets_deinit(oz_sets *all) {
    for (size_t i = 0; i < all->n; i++) oz_free(all->set[i].r);
    all->n = 0;
}
