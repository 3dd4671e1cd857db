/* v.name, v[key], v[a:b:c] and len(v). What is not there is undefined, with the words that Jinja would use when it is used. */
#include "text/tmpl_internal.h"
#include <string.h>

/* ---- attributes and methods of Python's types ---- */

static bool is(oz_slice name, const char *s) { return name.n == strlen(s) && memcmp(name.p, s, name.n) == 0; }

static bool among(oz_slice name, const char *const *list) {
    for (; *list; list++)
        if (is(name, *list)) return true;
    return false;
}

static oz_tm_val m_get(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_val v;
    if (oz_tm_dict_get(c, self.dict, a->pos[0], &v)) return v;
    return a->pos[1].kind == OZ_TM_ABSENT ? oz_tm_none() : a->pos[1];
}

static oz_tm_val view(oz_tm *c, const oz_tm_dict *d, int flavour) {
    oz_tm_seq *s = oz_tm_seq_new(c, d->n);
    for (size_t i = 0; i < d->n && c->st == OZ_OK; i++) {
        const oz_tm_entry *e = &d->e[i];
        oz_tm_seq_push(c, s, flavour == OZ_TM_KEYS ? e->key : flavour == OZ_TM_VALUES ? e->val : oz_tm_tuple2(c, e->key, e->val));
    }
    return oz_tm_seq_val(s, flavour);
}

static oz_tm_val m_keys(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return view(c, self.dict, OZ_TM_KEYS); }
static oz_tm_val m_values(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return view(c, self.dict, OZ_TM_VALUES); }
static oz_tm_val m_items(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return view(c, self.dict, OZ_TM_ITEMS); }
static oz_tm_val m_copy(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return self; } /* nothing changes either of them */

static const oz_tm_row DICT_METHODS[] = {
    {"get", "key default?", m_get}, {"keys", "", m_keys}, {"values", "", m_values}, {"items", "", m_items}, {"copy", "", m_copy}, {0},
};

static oz_tm_val m_index(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    int64_t from = 0, to = INT64_MAX, n = (int64_t)self.seq->n;
    if (a->pos[1].kind != OZ_TM_ABSENT && !oz_tm_index(c, a->pos[1], &from)) return oz_tm_none();
    if (a->pos[2].kind != OZ_TM_ABSENT && !oz_tm_index(c, a->pos[2], &to)) return oz_tm_none();
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < n && i < to && oz_tm_charge(c, 1); i++)
        if (oz_tm_equal(c, oz_tm_seq_at(self.seq, (size_t)i), a->pos[0])) return oz_tm_int(i);
    return OZ_TM_FAIL(c, "the value is not in the %s", oz_tm_type(self));
}

static oz_tm_val m_count(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    int64_t n = 0;
    for (size_t i = 0; i < self.seq->n && oz_tm_charge(c, 1); i++) n += oz_tm_equal(c, oz_tm_seq_at(self.seq, i), a->pos[0]);
    return oz_tm_int(n);
}

static const oz_tm_row LIST_METHODS[] = {
    {"copy", "", m_copy},
    {"index", "value start? stop?", m_index},
    {"count", "value", m_count},
    {0},
};
static const oz_tm_row *const TUPLE_METHODS = LIST_METHODS + 1;

static oz_tm_val m_cycle_next(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_cycler *y = self.cycler;
    oz_tm_val v = y->v[y->pos];
    y->pos = (y->pos + 1) % y->n;
    return v;
}

static oz_tm_val m_cycle_reset(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    self.cycler->pos = 0;
    return oz_tm_none();
}

static const oz_tm_row CYCLER_METHODS[] = {
    {"next", "", m_cycle_next},
    {"reset", "", m_cycle_reset},
    {0},
};

/* dict.fromkeys, of the function `dict`. */
static oz_tm_val m_fromkeys(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_dict *d = oz_tm_dict_new(c, 8);
    oz_tm_iter it;
    oz_tm_val key;
    if (!oz_tm_iter_begin(c, &it, a->pos[0])) return oz_tm_none();
    while (oz_tm_iter_next(c, &it, &key)) oz_tm_dict_set(c, d, key, a->pos[1].kind == OZ_TM_ABSENT ? oz_tm_none() : a->pos[1]);
    return oz_tm_dict_val(d);
}

static const oz_tm_row DICT_FUNC_METHODS[] = {
    {"fromkeys", "iterable value?", m_fromkeys},
    {0},
};

static oz_tm_val bound(oz_tm *c, oz_tm_val self, const oz_tm_row *row) {
    oz_tm_bound *b = oz_tm_alloc(c, 1, sizeof *b);
    if (!b) return oz_tm_none();
    *b = (oz_tm_bound){self, row};
    return (oz_tm_val){.kind = OZ_TM_METHOD, .bound = b};
}

static oz_tm_val missing(oz_tm_val of, oz_slice name, int how) {
    oz_tm_val v = oz_tm_undef(how, name.p, name.n);
    v.owner = of.kind;
    v.owner_flavour = of.flavour;
    return v;
}

static const oz_tm_row *methods_of(oz_tm_val v) {
    static const oz_tm_row NONE[] = {
        {0},
    };
    switch (v.kind) {
    case OZ_TM_STR:
        return oz_tm_str_methods;
    case OZ_TM_DICT:
        return DICT_METHODS;
    case OZ_TM_SEQ:
        return v.flavour == OZ_TM_LIST ? LIST_METHODS : v.flavour <= OZ_TM_RANGE ? TUPLE_METHODS : NONE;
    case OZ_TM_CYCLER:
        return CYCLER_METHODS;
    case OZ_TM_FUNC:
        return strcmp(v.row->name, "dict") == 0 ? DICT_FUNC_METHODS : NONE;
    default:
        return NONE;
    }
}

/* Attributes that are values. */
static oz_tm_val data_attr(oz_tm *c, oz_tm_val v, oz_slice name) {
    oz_tm_val r;
    switch (v.kind) {
    case OZ_TM_NS:
        return oz_tm_dict_get(c, v.dict, oz_tm_str(name.p, name.n), &r) ? r : (oz_tm_val){0};
    case OZ_TM_LOOP:
        return oz_tm_loop_attr(c, v.loop, name);
    case OZ_TM_MACRO:
        return is(name, "name") ? oz_tm_macro_name(v.macro) : (oz_tm_val){0};
    case OZ_TM_CYCLER:
        return is(name, "current") ? v.cycler->v[v.cycler->pos] : is(name, "pos") ? oz_tm_int((int64_t)v.cycler->pos) : (oz_tm_val){0};
    case OZ_TM_SEQ:
        if (v.flavour == OZ_TM_GROUP && (is(name, "grouper") || is(name, "list"))) return v.seq->v[is(name, "list")];
        if (v.flavour != OZ_TM_RANGE) return (oz_tm_val){0};
        return is(name, "start")  ? oz_tm_int(v.seq->start)
               : is(name, "step") ? oz_tm_int(v.seq->step)
               : is(name, "stop") ? oz_tm_int(v.seq->start + (int64_t)v.seq->cap)
                                  : (oz_tm_val){0};
    default:
        return (oz_tm_val){0};
    }
}

/* What would change a list or a dict is there and may not be touched. */
static bool changes(oz_tm_val v, oz_slice name) {
    static const char *const LIST[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove", NULL};
    static const char *const DICT[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return v.kind == OZ_TM_DICT ? among(name, DICT) : v.kind == OZ_TM_SEQ && v.flavour == OZ_TM_LIST && among(name, LIST);
}

/* Attributes that Python's types have and a template can have no use for. */
static bool useless(oz_tm_val v, oz_slice name) {
    static const char *const STR[] = {"encode", "maketrans", "translate", "isidentifier", NULL}, *const DICT[] = {"fromkeys", NULL};
    static const char *const NUM[] = {"real",     "imag",       "numerator",        "denominator", "conjugate", "bit_length", "bit_count",
                                      "to_bytes", "from_bytes", "as_integer_ratio", "is_integer",  "hex",       "fromhex",    NULL};
    return v.kind == OZ_TM_STR ? among(name, STR) : v.kind == OZ_TM_DICT ? among(name, DICT) : oz_tm_is_num(v) && among(name, NUM);
}

oz_tm_val oz_tm_own_attr(oz_tm *c, oz_tm_val v, oz_slice name) {
    oz_tm_val r = data_attr(c, v, name);
    if (r.kind != OZ_TM_ABSENT || c->st != OZ_OK || v.kind == OZ_TM_NS) return r;
    const oz_tm_row *row = oz_tm_find_row(methods_of(v), name);
    if (row) return bound(c, v, row);
    bool dunder = name.n > 4 && memcmp(name.p, "__", 2) == 0 && memcmp(name.p + name.n - 2, "__", 2) == 0;
    if (changes(v, name) || dunder) return missing(v, name, OZ_TM_BY_UNSAFE);
    if (useless(v, name)) OZ_TM_UNSUPPORTED(c, "the attribute '%.*s' of '%s' is not supported", (int)name.n, name.p, oz_tm_type(v));
    return r;
}

/* ---- items ---- */

/* v[key] of what Python lets one index; ABSENT if there is nothing. */
static oz_tm_val own_item(oz_tm *c, oz_tm_val v, oz_tm_val key) {
    oz_tm_val r;
    int64_t i, n;
    if (v.kind == OZ_TM_DICT) {
        bool hashable = key.kind != OZ_TM_DICT && !(key.kind == OZ_TM_SEQ && key.flavour == OZ_TM_LIST);
        return hashable && oz_tm_dict_get(c, v.dict, key, &r) ? r : (oz_tm_val){0};
    }
    bool sequence = v.kind == OZ_TM_STR || (v.kind == OZ_TM_SEQ && v.flavour <= OZ_TM_RANGE),
         integer = key.kind >= OZ_TM_BOOL && key.kind <= OZ_TM_BIG;
    if (!sequence || !integer || !oz_tm_index(c, key, &i)) return (oz_tm_val){0};
    if (v.kind == OZ_TM_SEQ) {
        n = (int64_t)v.seq->n;
        if (i < 0) i += n;
        return i >= 0 && i < n ? oz_tm_seq_at(v.seq, (size_t)i) : (oz_tm_val){0};
    }
    n = (int64_t)oz_tm_n_chars(v.s, v.n);
    if (i < 0) i += n;
    if (i < 0 || i >= n || !oz_tm_charge(c, v.n / 64)) return (oz_tm_val){0};
    size_t at = oz_tm_char_at(v.s, v.n, (size_t)i);
    r = oz_tm_str(v.s + at, oz_tm_char_len(v.s + at, v.n - at));
    r.flavour = v.flavour;
    return r;
}

oz_tm_val oz_tm_getattr(oz_tm *c, oz_tm_val v, oz_slice name) {
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    oz_tm_val r = oz_tm_own_attr(c, v, name);
    if (r.kind == OZ_TM_ABSENT && c->st == OZ_OK) r = own_item(c, v, oz_tm_str(name.p, name.n));
    return r.kind == OZ_TM_ABSENT ? missing(v, name, OZ_TM_BY_ATTR) : r;
}

oz_tm_val oz_tm_getitem(oz_tm *c, oz_tm_val v, oz_tm_val key) {
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    oz_tm_val r = own_item(c, v, key);
    if (r.kind != OZ_TM_ABSENT || c->st != OZ_OK) return r;
    if (key.kind == OZ_TM_STR) {
        oz_slice name = {key.s, key.n};
        r = oz_tm_own_attr(c, v, name);
        return r.kind == OZ_TM_ABSENT ? missing(v, name, OZ_TM_BY_ATTR) : r;
    }
    if (!oz_tm_is_num(key) && key.kind != OZ_TM_NONE) return missing(v, (oz_slice){"of that key", 11}, OZ_TM_BY_ELEMENT);
    return missing(v, oz_tm_text(c, key), OZ_TM_BY_ELEMENT);
}

/* ---- slices ---- */

/* Python's rule: what lies beyond an end is that end. */
static bool slice_bounds(oz_tm *c, const oz_tm_val part[3], int64_t n, int64_t *from, int64_t *to, int64_t *step) {
    *step = 1;
    if (part[2].kind != OZ_TM_NONE && !oz_tm_index(c, part[2], step)) return false;
    if (*step == 0) OZ_TM_FAIL(c, "slice step cannot be zero");
    int64_t *const bound[2] = {from, to}, low = *step < 0 ? -1 : 0, high = *step < 0 ? n - 1 : n;
    *from = *step < 0 ? high : low;
    *to = *step < 0 ? low : high;
    for (int k = 0; k < 2 && c->st == OZ_OK; k++) {
        int64_t i;
        if (part[k].kind == OZ_TM_NONE) continue;
        if (!oz_tm_index(c, part[k], &i)) return false;
        if (i < 0) i += n;
        *bound[k] = i < low ? low : i > high ? high : i;
    }
    return c->st == OZ_OK;
}

static oz_tm_val slice_string(oz_tm *c, oz_tm_val v, int64_t from, int64_t to, int64_t step) {
    oz_tm_charge(c, v.n / 64);
    oz_tm_val r;
    if (step == 1) {
        size_t a = oz_tm_char_at(v.s, v.n, (size_t)from), b = from < to ? a + oz_tm_char_at(v.s + a, v.n - a, (size_t)(to - from)) : a;
        r = oz_tm_str(v.s + a, b - a);
    } else {
        size_t n = oz_tm_n_chars(v.s, v.n), *at = oz_tm_alloc(c, n + 1, sizeof *at), mark = oz_tm_mark(c);
        if (!at) return oz_tm_none();
        for (size_t k = 0; k < n; k++) at[k + 1] = at[k] + oz_tm_char_len(v.s + at[k], v.n - at[k]);
        for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
            if (!oz_tm_charge(c, 1)) break;
            oz_tm_put(c, v.s + at[i], at[i + 1] - at[i]);
            if (__builtin_add_overflow(i, step, &(int64_t){0})) break;
        }
        r = oz_tm_take(c, mark);
    }
    r.flavour = v.flavour;
    return r;
}

oz_tm_val oz_tm_slice(oz_tm *c, oz_tm_val v, const oz_tm_val part[3]) {
    int64_t from, to, step;
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (v.kind != OZ_TM_STR && !(v.kind == OZ_TM_SEQ && v.flavour <= OZ_TM_RANGE))
        return OZ_TM_FAIL(c, "'%s' object cannot be sliced", oz_tm_type(v));
    size_t n = v.kind == OZ_TM_STR ? oz_tm_n_chars(v.s, v.n) : v.seq->n;
    if (!slice_bounds(c, part, (int64_t)n, &from, &to, &step)) return oz_tm_none();
    if (v.kind == OZ_TM_STR) return slice_string(c, v, from, to, step);
    if (v.flavour == OZ_TM_RANGE) return OZ_TM_UNSUPPORTED(c, "a slice of a range is not supported");
    oz_tm_seq *s = oz_tm_seq_new(c, step == 1 && from < to ? (size_t)(to - from) : 4);
    for (int64_t i = from; (step > 0 ? i < to : i > to) && oz_tm_charge(c, 1);) {
        oz_tm_seq_push(c, s, v.seq->v[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return oz_tm_seq_val(s, v.flavour == OZ_TM_LIST ? OZ_TM_LIST : OZ_TM_TUPLE);
}

/* ---- paths of filters: attribute="a.b.0" ---- */

oz_tm_val oz_tm_get_path(oz_tm *c, oz_tm_val v, oz_tm_val path, oz_tm_val fallback) {
    if (path.kind == OZ_TM_NONE || path.kind == OZ_TM_ABSENT) return v;
    if (path.kind != OZ_TM_STR) return oz_tm_getitem(c, v, path);
    for (size_t i = 0; c->st == OZ_OK;) {
        const char *dot = memchr(path.s + i, '.', path.n - i);
        size_t end = dot ? (size_t)(dot - path.s) : path.n, digits = i;
        while (digits < end && path.s[digits] >= '0' && path.s[digits] <= '9') digits++;
        bool number = digits == end && end > i;
        v = oz_tm_getitem(c, v, number ? oz_tm_big_parse(c, path.s + i, end - i, 10, false) : oz_tm_str(path.s + i, end - i));
        if (v.kind == OZ_TM_UNDEF && fallback.kind != OZ_TM_ABSENT && fallback.kind != OZ_TM_NONE) v = fallback;
        if (!dot) break;
        i = end + 1;
    }
    return v;
}

size_t oz_tm_len(oz_tm *c, oz_tm_val v) {
    switch (v.kind) {
    case OZ_TM_UNDEF:
        return 0;
    case OZ_TM_STR:
        return oz_tm_charge(c, v.n / 64) ? oz_tm_n_chars(v.s, v.n) : 0;
    case OZ_TM_SEQ:
        return v.seq->n;
    case OZ_TM_DICT:
        return v.dict->n;
    case OZ_TM_LOOP:
        return (size_t)oz_tm_loop_attr(c, v.loop, oz_slice_view("length")).i;
    default:
        OZ_TM_FAIL(c, "object of type '%s' has no len()", oz_tm_type(v));
        return 0;
    }
}
