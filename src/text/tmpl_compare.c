/* Truth, equality, order, membership, hashes and sorting, as Python has them. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>

bool oz_tm_truth(oz_tm_val v) {
    switch (v.kind) {
    case OZ_TM_ABSENT:
    case OZ_TM_UNDEF:
    case OZ_TM_NONE:
        return false;
    case OZ_TM_BOOL:
    case OZ_TM_INT:
        return v.i != 0;
    case OZ_TM_FLOAT:
        return v.f != 0;
    case OZ_TM_STR:
        return v.n > 0;
    case OZ_TM_SEQ:
        return v.seq->n > 0;
    case OZ_TM_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

/* ---- numbers of different kinds ---- */

/* -1, 0, 1; 2 where a NaN is in it. Exact: a double is compared with an integer as the integer that it is. */
static int compare_numbers(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    if (a.kind == OZ_TM_FLOAT && b.kind == OZ_TM_FLOAT) return a.f < b.f ? -1 : a.f > b.f ? 1 : a.f == b.f ? 0 : 2;
    if (a.kind == OZ_TM_FLOAT) {
        int r = compare_numbers(c, b, a);
        return r == 2 ? 2 : -r;
    }
    if (b.kind != OZ_TM_FLOAT) return oz_tm_big_compare(c, a, b);
    if (isnan(b.f)) return 2;
    if (isinf(b.f)) return b.f > 0 ? -1 : 1;
    double whole = floor(b.f);
    int r = oz_tm_big_compare(c, a, oz_tm_big_from_double(c, whole));
    return r != 0 ? r : whole < b.f ? -1 : 0;
}

/* ---- equality ---- */

static bool is_tuple(oz_tm_val v) { return v.flavour == OZ_TM_TUPLE || v.flavour == OZ_TM_GROUP; }

static bool equal_seqs(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    bool same = a.flavour == b.flavour || (is_tuple(a) && is_tuple(b));
    if (!same || a.flavour >= OZ_TM_KEYS) return a.seq == b.seq;
    if (a.seq->n != b.seq->n) return false;
    for (size_t i = 0; i < a.seq->n; i++)
        if (!oz_tm_equal(c, oz_tm_seq_at(a.seq, i), oz_tm_seq_at(b.seq, i))) return false;
    return true;
}

static bool equal_dicts(oz_tm *c, const oz_tm_dict *a, const oz_tm_dict *b) {
    oz_tm_val other;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!oz_tm_dict_get(c, b, a->e[i].key, &other) || !oz_tm_equal(c, a->e[i].val, other)) return false;
    return true;
}

bool oz_tm_equal(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    if (oz_tm_is_num(a) && oz_tm_is_num(b)) {
        if (a.kind == b.kind && a.kind != OZ_TM_FLOAT && a.kind != OZ_TM_BIG) return a.i == b.i;
        return compare_numbers(c, a, b) == 0;
    }
    if (a.kind != b.kind) return false;
    bool deep = a.kind == OZ_TM_SEQ || a.kind == OZ_TM_DICT, r;
    switch (a.kind) {
    case OZ_TM_ABSENT:
    case OZ_TM_UNDEF:
    case OZ_TM_NONE:
        return true;
    case OZ_TM_STR:
        return a.n == b.n && oz_tm_charge(c, a.n / 64) && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
    default:
        break;
    }
    if (!deep) return a.i == b.i; /* the same object */
    if (!oz_tm_enter(c)) return false;
    r = a.kind == OZ_TM_SEQ ? equal_seqs(c, a, b) : equal_dicts(c, a.dict, b.dict);
    oz_tm_leave(c);
    return r && c->st == OZ_OK;
}

/* ---- order ---- */

static const char *op_name(oz_tm_op op) {
    static const char *const NAMES[] = {[OZ_TM_LT] = "<", [OZ_TM_LE] = "<=", [OZ_TM_GT] = ">", [OZ_TM_GE] = ">="};
    return NAMES[op];
}

static bool holds(int order, oz_tm_op op) {
    if (order == 2) return false;
    return op == OZ_TM_LT ? order < 0 : op == OZ_TM_LE ? order <= 0 : op == OZ_TM_GT ? order > 0 : order >= 0;
}

static int compare_strings(oz_tm_val a, oz_tm_val b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int r = n ? memcmp(a.s, b.s, n) : 0; /* UTF-8 sorts as code points do */
    return r ? (r > 0) - (r < 0) : (a.n > b.n) - (a.n < b.n);
}

static bool less_seqs(oz_tm *c, oz_tm_val a, oz_tm_val b, oz_tm_op op) {
    size_t n = a.seq->n < b.seq->n ? a.seq->n : b.seq->n;
    for (size_t i = 0; i < n && c->st == OZ_OK; i++) {
        oz_tm_val x = oz_tm_seq_at(a.seq, i), y = oz_tm_seq_at(b.seq, i);
        if (!oz_tm_equal(c, x, y)) return oz_tm_less(c, x, y, op);
    }
    return holds((a.seq->n > b.seq->n) - (a.seq->n < b.seq->n), op);
}

bool oz_tm_less(oz_tm *c, oz_tm_val a, oz_tm_val b, oz_tm_op op) {
    bool r = false;
    if (!oz_tm_enter(c)) return false;
    bool lists = a.kind == OZ_TM_SEQ && b.kind == OZ_TM_SEQ &&
                 ((a.flavour == OZ_TM_LIST && b.flavour == OZ_TM_LIST) || (is_tuple(a) && is_tuple(b)));
    if (a.kind == OZ_TM_UNDEF)
        oz_tm_fail_undef(c, a);
    else if (b.kind == OZ_TM_UNDEF)
        oz_tm_fail_undef(c, b);
    else if (oz_tm_is_num(a) && oz_tm_is_num(b))
        r = holds(compare_numbers(c, a, b), op);
    else if (a.kind == OZ_TM_STR && b.kind == OZ_TM_STR)
        r = oz_tm_charge(c, a.n / 64) && holds(compare_strings(a, b), op);
    else if (lists)
        r = less_seqs(c, a, b, op);
    else
        OZ_TM_FAIL(c, "'%s' not supported between instances of '%s' and '%s'", op_name(op), oz_tm_type(a), oz_tm_type(b));
    oz_tm_leave(c);
    return r && c->st == OZ_OK;
}

bool oz_tm_contains(oz_tm *c, oz_tm_val item, oz_tm_val in) {
    oz_tm_iter it;
    oz_tm_val v;
    if (in.kind == OZ_TM_STR) {
        if (item.kind == OZ_TM_STR) return oz_tm_charge(c, in.n / 64) && oz_tm_find(in.s, in.n, item.s, item.n) != SIZE_MAX;
        OZ_TM_FAIL(c, "'in <string>' requires string as left operand, not %s", oz_tm_type(item));
        return false;
    }
    if (in.kind == OZ_TM_DICT) return oz_tm_dict_get(c, in.dict, item, &v);
    if (!oz_tm_iterable(in)) OZ_TM_FAIL(c, "argument of type '%s' is not iterable", oz_tm_type(in));
    if (c->st != OZ_OK || !oz_tm_iter_begin(c, &it, in)) return false;
    while (oz_tm_iter_next(c, &it, &v))
        if (oz_tm_equal(c, v, item)) return true;
    return false;
}

bool oz_tm_compare(oz_tm *c, oz_tm_val a, oz_tm_val b, oz_tm_op op) {
    switch (op) {
    case OZ_TM_EQ:
        return oz_tm_equal(c, a, b);
    case OZ_TM_NE:
        return !oz_tm_equal(c, a, b);
    case OZ_TM_IN:
        return oz_tm_contains(c, a, b);
    case OZ_TM_NOT_IN:
        return !oz_tm_contains(c, a, b);
    default:
        return oz_tm_less(c, a, b, op);
    }
}

/* ---- hashes ---- */

static uint64_t mix(uint64_t h) {
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return mix(h);
}

static uint64_t hash_tuple(oz_tm *c, const oz_tm_seq *s) {
    uint64_t h = s->n;
    if (!oz_tm_enter(c)) return 0;
    for (size_t i = 0; i < s->n && c->st == OZ_OK; i++) h = mix(h * 31 + oz_tm_hash(c, oz_tm_seq_at(s, i)));
    oz_tm_leave(c);
    return h;
}

/* Equal values have equal hashes: 1, 1.0 and True are one key. */
uint64_t oz_tm_hash(oz_tm *c, oz_tm_val v) {
    switch (v.kind) {
    case OZ_TM_UNDEF:
    case OZ_TM_NONE:
        return mix(v.kind);
    case OZ_TM_FLOAT:
        if (floor(v.f) == v.f && fabs(v.f) < 9.2e18) return mix((uint64_t)(int64_t)v.f);
        return mix((uint64_t)llrint(ldexp(frexp(v.f, &(int){0}), 53)));
    case OZ_TM_BIG: /* as a double of the same size has it */
        return mix((uint64_t)llrint(ldexp(frexp(oz_tm_big_to_double(c, v), &(int){0}), 53)));
    case OZ_TM_STR:
        return oz_tm_charge(c, v.n / 64) ? hash_bytes(v.s, v.n) : 0;
    case OZ_TM_SEQ:
        if (is_tuple(v)) return hash_tuple(c, v.seq);
        if (v.flavour == OZ_TM_RANGE) return mix(v.seq->n ? v.seq->n * 31 + (uint64_t)v.seq->start : 0);
        break;
    case OZ_TM_DICT:
        break;
    default:
        return mix((uint64_t)v.i);
    }
    OZ_TM_FAIL(c, "unhashable type: '%s'", oz_tm_type(v));
    return 0;
}

/* ---- sorting: a merge sort, whose order among equals is that of their coming ---- */

typedef struct pair {
    oz_tm_val key, item;
} pair;

static void merge_sort(oz_tm *c, pair *a, pair *tmp, size_t n, bool reverse) {
    if (n < 2 || c->st != OZ_OK) return;
    size_t half = n / 2, i = 0, j = half, k = 0;
    merge_sort(c, a, tmp, half, reverse);
    merge_sort(c, a + half, tmp + half, n - half, reverse);
    while (i < half && j < n) {
        bool second = reverse ? oz_tm_less(c, a[i].key, a[j].key, OZ_TM_LT) : oz_tm_less(c, a[j].key, a[i].key, OZ_TM_LT);
        tmp[k++] = second ? a[j++] : a[i++];
    }
    while (i < half) tmp[k++] = a[i++];
    while (j < n) tmp[k++] = a[j++];
    memcpy(a, tmp, n * sizeof *a);
}

void oz_tm_sort(oz_tm *c, oz_tm_val *keys, oz_tm_val *items, size_t n, bool reverse) {
    pair *a = oz_tm_alloc(c, n, 2 * sizeof *a);
    if (!a) return;
    for (size_t i = 0; i < n; i++) a[i] = (pair){keys[i], items[i]};
    merge_sort(c, a, a + n, n, reverse);
    for (size_t i = 0; i < n; i++) {
        keys[i] = a[i].key;
        items[i] = a[i].item;
    }
}
