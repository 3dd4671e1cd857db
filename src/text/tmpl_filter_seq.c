/* Filters of sequences. Those that Python writes as generators are generators here: nothing is done, and nothing fails, before an item is
 * asked for, and they run out. */
#include "text/tmpl_internal.h"
#include <string.h>

#define GIVEN(v) ((v).kind != OZ_TM_ABSENT && (v).kind != OZ_TM_NONE)

static bool flag(oz_tm_val v) { return v.kind != OZ_TM_ABSENT && oz_tm_truth(v); }

static oz_tm_val lower(oz_tm *c, oz_tm_val v) {
    if (v.kind != OZ_TM_STR) return v;
    size_t mark = oz_tm_mark(c);
    oz_tm_put_case(c, v.s, v.n, OZ_TM_LOWER);
    return oz_tm_take(c, mark);
}

static oz_tm_val no_items(const char *hint) { return oz_tm_undef(OZ_TM_BY_HINT, hint, strlen(hint)); }

/* ---- map, select, reject and their kin ---- */

static bool next_attr(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) {
    if (!oz_tm_iter_next(c, &g->src, out)) return false;
    *out = oz_tm_get_path(c, *out, g->path, g->other);
    return true;
}

static bool next_mapped(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) {
    if (!oz_tm_iter_next(c, &g->src, out)) return false;
    if (!g->row)
        OZ_TM_FAIL(c, "No filter named '%.*s'.", (int)g->path.n, g->path.kind == OZ_TM_STR ? g->path.s : "");
    else
        *out = oz_tm_call_row(c, g->row, *out, &g->args);
    return c->st == OZ_OK;
}

static bool next_selected(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) {
    while (oz_tm_iter_next(c, &g->src, out)) {
        oz_tm_val v = oz_tm_get_path(c, *out, g->path, (oz_tm_val){0});
        if (g->other.kind != OZ_TM_ABSENT && !g->row) OZ_TM_FAIL(c, "No test of that name.");
        bool yes = c->st == OZ_OK && oz_tm_truth(g->row ? oz_tm_call_row(c, g->row, v, &g->args) : v);
        if (c->st != OZ_OK) return false;
        if (yes != g->flag) return true;
    }
    return false;
}

static bool next_plain(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) { return oz_tm_iter_next(c, &g->src, out); }

static oz_tm_val kwarg(const oz_tm_args *a, const char *name) {
    for (size_t i = 0; i < a->n_kw; i++)
        if (oz_slice_eq(a->kw[i].name, oz_slice_view(name))) return a->kw[i].val;
    return (oz_tm_val){0};
}

/* The arguments outlive the call, but not in the slots of the caller. */
static oz_tm_args rest_of(const oz_tm_args *a, size_t skip) {
    return (oz_tm_args){.pos = a->pos + skip, .n = a->n - skip, .kw = a->kw, .n_kw = a->n_kw};
}

static oz_tm_val f_map(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val attribute = kwarg(a, "attribute"), other = kwarg(a, "default");
    if (!oz_tm_truth(v))
        v = oz_tm_seq_val(NULL, OZ_TM_LIST); /* whatever it is, and the arguments are not looked at */
    else if (a->n == 0 && attribute.kind == OZ_TM_ABSENT)
        return OZ_TM_FAIL(c, "map requires a filter argument");
    oz_tm_gen *g = oz_tm_gen_new(c, a->n ? next_mapped : next_attr, v);
    if (!g) return oz_tm_gen_val(NULL);
    if (a->n) {
        g->path = a->pos[0];
        g->row = a->pos[0].kind == OZ_TM_STR ? oz_tm_find_filter((oz_slice){a->pos[0].s, a->pos[0].n}) : NULL;
        g->args = rest_of(a, 1);
    } else {
        if (a->n_kw > 1u + (other.kind != OZ_TM_ABSENT)) OZ_TM_FAIL(c, "map: unexpected keyword argument");
        g->path = attribute;
        g->other = other;
    }
    return oz_tm_gen_val(g);
}

static oz_tm_val choose(oz_tm *c, oz_tm_val v, const oz_tm_args *a, bool negate, bool by_attr) {
    if (!oz_tm_truth(v)) return oz_tm_gen_val(oz_tm_gen_new(c, next_plain, oz_tm_seq_val(NULL, OZ_TM_LIST)));
    if (by_attr && a->n == 0) return OZ_TM_FAIL(c, "Missing parameter for attribute name");
    oz_tm_gen *g = oz_tm_gen_new(c, next_selected, v);
    if (!g) return oz_tm_gen_val(NULL);
    g->flag = negate;
    if (by_attr) g->path = a->pos[0];
    if (a->n > by_attr) {
        oz_tm_val test = g->other = a->pos[by_attr];
        g->row = test.kind == OZ_TM_STR ? oz_tm_find_row(oz_tm_tests, (oz_slice){test.s, test.n}) : NULL;
        g->args = rest_of(a, 1u + by_attr);
    }
    return oz_tm_gen_val(g);
}

static oz_tm_val f_select(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return choose(c, v, a, false, false); }
static oz_tm_val f_reject(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return choose(c, v, a, true, false); }
static oz_tm_val f_selectattr(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return choose(c, v, a, false, true); }
static oz_tm_val f_rejectattr(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return choose(c, v, a, true, true); }

/* ---- other generators ---- */

static bool next_unique(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) {
    oz_tm_val seen;
    while (oz_tm_iter_next(c, &g->src, out)) {
        oz_tm_val key = oz_tm_get_path(c, *out, g->path, (oz_tm_val){0});
        if (!g->flag) key = lower(c, key);
        if (c->st == OZ_OK && !oz_tm_dict_get(c, g->other.dict, key, &seen)) {
            oz_tm_dict_set(c, g->other.dict, key, oz_tm_none());
            return c->st == OZ_OK;
        }
        if (c->st != OZ_OK) return false;
    }
    return false;
}

static oz_tm_val f_unique(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_gen *g = oz_tm_gen_new(c, next_unique, v);
    oz_tm_dict *seen = oz_tm_dict_new(c, 8);
    if (!g || !seen) return oz_tm_gen_val(NULL);
    g->flag = flag(a->pos[0]);
    g->path = a->pos[1];
    g->other = oz_tm_dict_val(seen);
    return oz_tm_gen_val(g);
}

static oz_tm_val f_items(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind == OZ_TM_UNDEF)
        v = oz_tm_seq_val(NULL, OZ_TM_LIST);
    else if (v.kind == OZ_TM_DICT)
        v = oz_tm_call(c, oz_tm_getattr(c, v, oz_slice_view("items")), &(oz_tm_args){0});
    else
        return OZ_TM_FAIL(c, "Can only get item pairs from a mapping.");
    return oz_tm_gen_val(oz_tm_gen_new(c, next_plain, v));
}

static bool next_batch(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) {
    oz_tm_seq *s = oz_tm_seq_new(c, 4);
    oz_tm_val item;
    while (s && (int64_t)s->n < (g->count > 0 ? g->count : INT64_MAX) && oz_tm_iter_next(c, &g->src, &item)) oz_tm_seq_push(c, s, item);
    if (!s || s->n == 0 || c->st != OZ_OK) return false;
    while (GIVEN(g->other) && (int64_t)s->n < g->count && oz_tm_charge(c, 1)) oz_tm_seq_push(c, s, g->other);
    *out = oz_tm_seq_val(s, OZ_TM_LIST);
    return true;
}

static oz_tm_val f_batch(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_gen *g = oz_tm_gen_new(c, next_batch, v);
    if (!g || !oz_tm_index(c, a->pos[0], &g->count)) return oz_tm_gen_val(NULL);
    if (g->count == 0) return OZ_TM_UNSUPPORTED(c, "a batch of 0 items is not supported");
    g->other = a->pos[1];
    return oz_tm_gen_val(g);
}

/* The list in `n` parts, the first ones longer by one where it does not divide. */
static oz_tm_val f_slice(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val list = oz_tm_to_list(c, v);
    int64_t n = 0;
    if (!oz_tm_index(c, a->pos[0], &n)) return list;
    if (n == 0) return OZ_TM_FAIL(c, "integer division or modulo by zero");
    oz_tm_seq *parts = oz_tm_seq_new(c, 4);
    size_t at = 0;
    for (int64_t i = 0; i < n && oz_tm_charge(c, 1); i++) {
        int64_t size = (int64_t)list.seq->n / n, extra = (int64_t)list.seq->n % n;
        oz_tm_seq *part = oz_tm_seq_new(c, (size_t)size + 1);
        for (int64_t k = 0; k < size + (i < extra); k++) oz_tm_seq_push(c, part, list.seq->v[at++]);
        if (GIVEN(a->pos[1]) && i >= extra) oz_tm_seq_push(c, part, a->pos[1]);
        oz_tm_seq_push(c, parts, oz_tm_seq_val(part, OZ_TM_LIST));
    }
    return oz_tm_gen_val(oz_tm_gen_new(c, next_plain, oz_tm_seq_val(parts, OZ_TM_LIST)));
}

static oz_tm_val f_reverse(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val none = oz_tm_none(), part[3] = {none, none, oz_tm_int(-1)};
    if (v.kind == OZ_TM_STR) return oz_tm_slice(c, v, part);
    bool generator = v.kind == OZ_TM_GEN; /* Python makes a list of it and reverses that */
    if (!oz_tm_iterable(v)) return OZ_TM_FAIL(c, "argument must be iterable");
    v = oz_tm_slice(c, oz_tm_to_list(c, v), part);
    return generator || c->st != OZ_OK ? v : oz_tm_gen_val(oz_tm_gen_new(c, next_plain, v));
}

/* ---- one value of many ---- */

static oz_tm_val f_length(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return oz_tm_int((int64_t)oz_tm_len(c, v)); }
static oz_tm_val f_list(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return oz_tm_to_list(c, v); }

static oz_tm_val f_first(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_iter it;
    oz_tm_val item;
    if (oz_tm_iter_begin(c, &it, v) && oz_tm_iter_next(c, &it, &item)) return item;
    return no_items("No first item, sequence was empty.");
}

static oz_tm_val f_last(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind == OZ_TM_GEN) return OZ_TM_FAIL(c, "'generator' object is not reversible");
    if (v.kind == OZ_TM_STR) {
        oz_tm_val last = v.n ? oz_tm_getitem(c, v, oz_tm_int(-1)) : v;
        return v.n ? last : no_items("No last item, sequence was empty.");
    }
    v = oz_tm_to_list(c, v);
    return v.seq->n ? v.seq->v[v.seq->n - 1] : no_items("No last item, sequence was empty.");
}

static oz_tm_val extreme(oz_tm *c, oz_tm_val v, const oz_tm_args *a, oz_tm_op op) {
    oz_tm_iter it;
    oz_tm_val best = {0}, best_key = {0}, item;
    if (!oz_tm_iter_begin(c, &it, v)) return best;
    while (oz_tm_iter_next(c, &it, &item)) {
        oz_tm_val key = oz_tm_get_path(c, item, a->pos[1], (oz_tm_val){0});
        if (!flag(a->pos[0])) key = lower(c, key);
        if (best.kind == OZ_TM_ABSENT || oz_tm_less(c, key, best_key, op)) best = item, best_key = key;
    }
    return best.kind == OZ_TM_ABSENT ? no_items("No aggregated item, sequence was empty.") : best;
}

static oz_tm_val f_min(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return extreme(c, v, a, OZ_TM_LT); }
static oz_tm_val f_max(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return extreme(c, v, a, OZ_TM_GT); }

static oz_tm_val f_sum(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_iter it;
    oz_tm_val sum = a->pos[1].kind == OZ_TM_ABSENT ? oz_tm_int(0) : a->pos[1], item;
    if (sum.kind == OZ_TM_STR) return OZ_TM_FAIL(c, "sum() can't sum strings [use ''.join(seq) instead]");
    if (!oz_tm_iter_begin(c, &it, v)) return sum;
    while (oz_tm_iter_next(c, &it, &item)) sum = oz_tm_binary(c, OZ_TM_ADD, sum, oz_tm_get_path(c, item, a->pos[0], (oz_tm_val){0}));
    return sum;
}

static oz_tm_val f_join(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_iter it;
    oz_tm_val item;
    oz_slice sep = a->pos[0].kind == OZ_TM_ABSENT ? (oz_slice){"", 0} : oz_tm_text(c, a->pos[0]);
    size_t mark = oz_tm_mark(c);
    bool first = true;
    if (!oz_tm_iter_begin(c, &it, v)) return oz_tm_none();
    while (oz_tm_iter_next(c, &it, &item)) {
        if (!first) oz_tm_put(c, sep.p, sep.n);
        first = false;
        oz_tm_print(c, oz_tm_get_path(c, item, a->pos[1], (oz_tm_val){0}));
    }
    return oz_tm_take(c, mark);
}

/* ---- sorting ---- */

/* The key of `sort`: a list with one part for each path of "a,b.c". */
static oz_tm_val multi_key(oz_tm *c, oz_tm_val item, oz_tm_val paths, bool exact) {
    oz_tm_seq *s = oz_tm_seq_new(c, 1);
    for (size_t i = 0; c->st == OZ_OK;) {
        oz_tm_val path = paths, key;
        const char *comma = paths.kind == OZ_TM_STR ? memchr(paths.s + i, ',', paths.n - i) : NULL;
        size_t end = paths.kind != OZ_TM_STR ? 0 : comma ? (size_t)(comma - paths.s) : paths.n;
        if (paths.kind == OZ_TM_STR) path = oz_tm_str(paths.s + i, end - i);
        key = oz_tm_get_path(c, item, path, (oz_tm_val){0});
        oz_tm_seq_push(c, s, exact ? key : lower(c, key));
        if (!comma) break;
        i = end + 1;
    }
    return oz_tm_seq_val(s, OZ_TM_LIST);
}

static oz_tm_val f_sort(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val list = oz_tm_to_list(c, v);
    size_t n = list.seq->n;
    oz_tm_seq *s = oz_tm_seq_new(c, n);
    oz_tm_val *keys = oz_tm_alloc(c, n, sizeof *keys);
    for (size_t i = 0; i < n && c->st == OZ_OK; i++) {
        oz_tm_seq_push(c, s, list.seq->v[i]);
        keys[i] = multi_key(c, list.seq->v[i], a->pos[2], flag(a->pos[1]));
    }
    if (c->st == OZ_OK) oz_tm_sort(c, keys, s->v, n, flag(a->pos[0]));
    return oz_tm_seq_val(s, OZ_TM_LIST);
}

static oz_tm_val f_dictsort(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    bool by_value = a->pos[1].kind != OZ_TM_ABSENT && oz_tm_is_str(a->pos[1], "value");
    if (a->pos[1].kind != OZ_TM_ABSENT && !by_value && !oz_tm_is_str(a->pos[1], "key"))
        return OZ_TM_FAIL(c, "You can only sort by either \"key\" or \"value\"");
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (v.kind != OZ_TM_DICT) return OZ_TM_FAIL(c, "dictsort: expected a dict, found '%s'", oz_tm_type(v));
    size_t n = v.dict->n;
    oz_tm_seq *s = oz_tm_seq_new(c, n);
    oz_tm_val *keys = oz_tm_alloc(c, n, sizeof *keys);
    for (size_t i = 0; i < n && c->st == OZ_OK; i++) {
        const oz_tm_entry *e = &v.dict->e[i];
        oz_tm_seq_push(c, s, oz_tm_tuple2(c, e->key, e->val));
        keys[i] = by_value ? e->val : e->key;
        if (!flag(a->pos[0])) keys[i] = lower(c, keys[i]);
    }
    if (c->st == OZ_OK) oz_tm_sort(c, keys, s->v, n, flag(a->pos[2]));
    return oz_tm_seq_val(s, OZ_TM_LIST);
}

static oz_tm_val f_groupby(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val list = oz_tm_to_list(c, v), path = a->pos[0], other = a->pos[1];
    size_t n = list.seq->n;
    oz_tm_val *keys = oz_tm_alloc(c, n + 1, 2 * sizeof *keys), *items = keys ? keys + n + 1 : NULL;
    oz_tm_seq *groups = oz_tm_seq_new(c, 4);
    for (size_t i = 0; i < n && c->st == OZ_OK; i++) {
        items[i] = list.seq->v[i];
        keys[i] = oz_tm_get_path(c, items[i], path, other);
        if (!flag(a->pos[2])) keys[i] = lower(c, keys[i]);
    }
    if (c->st == OZ_OK) oz_tm_sort(c, keys, items, n, false);
    for (size_t i = 0, k; i < n && c->st == OZ_OK; i = k) {
        oz_tm_seq *members = oz_tm_seq_new(c, 4), *group = oz_tm_seq_new(c, 2);
        for (k = i; k < n && oz_tm_equal(c, keys[k], keys[i]); k++) oz_tm_seq_push(c, members, items[k]);
        if (k == i) k++; /* a NaN is equal to nothing */
        oz_tm_seq_push(c, group, flag(a->pos[2]) ? keys[i] : oz_tm_get_path(c, items[i], path, other));
        oz_tm_seq_push(c, group, oz_tm_seq_val(members, OZ_TM_LIST));
        oz_tm_seq_push(c, groups, oz_tm_seq_val(group, OZ_TM_GROUP));
    }
    return oz_tm_seq_val(groups, OZ_TM_LIST);
}

const oz_tm_row oz_tm_filters_seq[] = {
    {"batch", "linecount fill_with?", f_batch},
    {"count", "", f_length},
    {"dictsort", "case_sensitive? by? reverse?", f_dictsort},
    {"first", "", f_first},
    {"groupby", "attribute default? case_sensitive?", f_groupby},
    {"items", "", f_items},
    {"join", "d? attribute?", f_join},
    {"last", "", f_last},
    {"length", "", f_length},
    {"list", "", f_list},
    {"map", "*", f_map},
    {"max", "case_sensitive? attribute?", f_max},
    {"min", "case_sensitive? attribute?", f_min},
    {"reject", "*", f_reject},
    {"rejectattr", "*", f_rejectattr},
    {"reverse", "", f_reverse},
    {"select", "*", f_select},
    {"selectattr", "*", f_selectattr},
    {"slice", "slices fill_with?", f_slice},
    {"sort", "reverse? case_sensitive? attribute?", f_sort},
    {"sum", "attribute? start?", f_sum},
    {"unique", "case_sensitive? attribute?", f_unique},
    {0},
};
