/* The functions that every template has. */
#include "text/tmpl_internal.h"
#include <string.h>
#include <time.h>

static oz_tm_val g_range(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    int64_t v[3] = {0, 0, 1};
    if (a->n_kw || a->n < 1 || a->n > 3) return OZ_TM_FAIL(c, "range: expected 1 to 3 arguments, found %zu", a->n);
    for (size_t i = 0; i < a->n; i++)
        if (!oz_tm_index(c, a->pos[i], &v[a->n == 1 ? 1 : i])) return oz_tm_none();
    if (v[2] == 0) return OZ_TM_FAIL(c, "range() arg 3 must not be zero");
    __int128 span = v[2] > 0 ? (__int128)v[1] - v[0] : (__int128)v[0] - v[1], step = v[2] > 0 ? v[2] : -(__int128)v[2];
    __int128 n = span > 0 ? (span + step - 1) / step : 0;
    if (n > OZ_TM_MAX_RANGE) return OZ_TM_FAIL(c, "Range too big. The sandbox blocks ranges larger than %d.", OZ_TM_MAX_RANGE);
    oz_tm_seq *s = oz_tm_alloc(c, 1, sizeof *s);
    if (!s) return oz_tm_none();
    *s = (oz_tm_seq){.n = (size_t)n, .cap = (size_t)v[1] - (size_t)v[0], .start = v[0], .step = v[2]};
    return oz_tm_seq_val(s, OZ_TM_RANGE);
}

/* dict(pairs or mapping, name=value ...) */
static oz_tm_dict *make_dict(oz_tm *c, const oz_tm_args *a) {
    oz_tm_dict *d = oz_tm_dict_new(c, a->n_kw + 4);
    oz_tm_iter it;
    oz_tm_val item;
    if (a->n > 1) OZ_TM_FAIL(c, "dict expected at most 1 argument, got %zu", a->n);
    if (a->n == 1 && a->pos[0].kind == OZ_TM_DICT) {
        const oz_tm_dict *from = a->pos[0].dict;
        for (size_t i = 0; i < from->n && c->st == OZ_OK; i++) oz_tm_dict_set(c, d, from->e[i].key, from->e[i].val);
    } else if (a->n == 1 && oz_tm_iter_begin(c, &it, a->pos[0])) {
        while (oz_tm_iter_next(c, &it, &item)) {
            oz_tm_val pair = oz_tm_to_list(c, item);
            if (c->st == OZ_OK && pair.seq->n != 2)
                OZ_TM_FAIL(c, "dictionary update sequence element has length %zu; 2 is required", pair.seq->n);
            if (c->st == OZ_OK) oz_tm_dict_set(c, d, pair.seq->v[0], pair.seq->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw && c->st == OZ_OK; i++) oz_tm_dict_set(c, d, oz_tm_str(a->kw[i].name.p, a->kw[i].name.n), a->kw[i].val);
    return d;
}

static oz_tm_val g_dict(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return oz_tm_dict_val(make_dict(c, a)); }

static oz_tm_val g_namespace(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_dict *d = make_dict(c, a);
    for (size_t i = 0; d && i < d->n; i++)
        if (d->e[i].key.kind == OZ_TM_STR && d->e[i].key.n && d->e[i].key.s[0] == '_')
            OZ_TM_FAIL(
                c,
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'. Please rename the attribute.",
                (int)d->e[i].key.n, d->e[i].key.s);
    return c->st == OZ_OK ? (oz_tm_val){.kind = OZ_TM_NS, .dict = d} : oz_tm_none();
}

static oz_tm_val new_cycler(oz_tm *c, uint8_t kind, oz_tm_val *v, size_t n) {
    oz_tm_cycler *y = oz_tm_alloc(c, 1, sizeof *y);
    if (!y || !(y->v = oz_tm_alloc(c, n, sizeof *v))) return oz_tm_none();
    memcpy(y->v, v, n * sizeof *v);
    y->n = n;
    return (oz_tm_val){.kind = kind, .cycler = y};
}

static oz_tm_val g_cycler(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    if (a->n == 0 || a->n_kw) return OZ_TM_FAIL(c, "cycler: at least one item has to be provided");
    return new_cycler(c, OZ_TM_CYCLER, a->pos, a->n);
}

static oz_tm_val g_joiner(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_val sep = a->pos[0].kind == OZ_TM_ABSENT ? oz_tm_str(", ", 2) : a->pos[0];
    return new_cycler(c, OZ_TM_JOINER, &sep, 1);
}

static oz_tm_val g_raise(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, a->pos[0]);
    return OZ_TM_FAIL(c, "%.*s", s.n < 800 ? (int)s.n : 800, s.p);
}

static oz_tm_val g_strftime(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    if (a->pos[0].kind != OZ_TM_STR) return OZ_TM_FAIL(c, "strftime_now: expected a format, found '%s'", oz_tm_type(a->pos[0]));
    time_t now = c->now >= 0 ? (time_t)c->now : time(NULL);
    struct tm tm;
    if (!(c->now >= 0 ? gmtime_r(&now, &tm) : localtime_r(&now, &tm))) return OZ_TM_FAIL(c, "strftime_now: the time is out of range");
    size_t mark = oz_tm_mark(c);
    for (size_t i = 0; i < a->pos[0].n && c->st == OZ_OK;) { /* one directive at a time: %f, %z and %Z are Python's own */
        const char *f = a->pos[0].s + i;
        size_t left = a->pos[0].n - i, k = 1;
        char one[8] = {0}, text[256];
        while (f[0] == '%' && k < left && k < 4 && strchr("-_0^#EO", f[k]) && f[k]) k++;
        if (f[0] == '%' && k < left) k++;
        memcpy(one, f, k);
        if (one[0] != '%')
            oz_tm_put(c, f, 1);
        else if (strcmp(one, "%f") == 0)
            oz_tm_puts(c, "000000");
        else if (one[k - 1] != 'z' && one[k - 1] != 'Z')
            oz_tm_put(c, text, strftime(text, sizeof text, one, &tm));
        i += k;
    }
    return oz_tm_take(c, mark);
}

static oz_tm_val g_lipsum(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return OZ_TM_UNSUPPORTED(c, "lipsum is not supported"); }

const oz_tm_row oz_tm_globals[] = {
    {"cycler", "*", g_cycler},
    {"dict", "*", g_dict},
    {"joiner", "sep?", g_joiner},
    {"lipsum", "*", g_lipsum},
    {"namespace", "*", g_namespace},
    {"raise_exception", "message", g_raise},
    {"range", "*", g_range},
    {"strftime_now", "format", g_strftime},
    {0},
};

oz_tm_val oz_tm_global(oz_slice name) {
    const oz_tm_row *row = oz_tm_find_row(oz_tm_globals, name);
    return row ? (oz_tm_val){.kind = OZ_TM_FUNC, .row = row} : (oz_tm_val){0};
}
