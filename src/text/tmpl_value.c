/* Values: how they are made, sequences, dicts, iteration; and the limits of a rendering. */
#include "text/tmpl_internal.h"
#include <stdarg.h>
#include <string.h>

/* ---- the rendering: errors, limits, text ---- */

oz_tm_val oz_tm_fail_at(oz_tm *c, oz_status code, const char *file, int line, const char *fmt, ...) {
    if (c->st != OZ_OK) return (oz_tm_val){0};
    char msg[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    c->st = oz_err_set(c->err, code, file, line, "chat template, line %u: %s", c->line, msg);
    return (oz_tm_val){0};
}

bool oz_tm_charge(oz_tm *c, size_t n_steps) {
    if (c->st != OZ_OK) return false;
    if (n_steps <= (size_t)c->steps) {
        c->steps -= (int64_t)n_steps;
        return true;
    }
    OZ_TM_FAIL(c, "the template takes too long: more than %d steps", OZ_TM_MAX_STEPS);
    return false;
}

void *oz_tm_alloc(oz_tm *c, size_t n, size_t size) {
    size_t n_bytes;
    if (!oz_mul_size(&n_bytes, n, size)) n_bytes = SIZE_MAX;
    if (!oz_tm_charge(c, n_bytes / 64)) return NULL;
    void *p = oz_arena_alloc(c->arena, n_bytes);
    if (!p) oz_tm_fail_at(c, OZ_E_NOMEM, __FILE__, __LINE__, "the template takes too much memory: more than %d MB", OZ_TM_MAX_MEMORY >> 20);
    return p;
}

bool oz_tm_enter(oz_tm *c) {
    if (c->depth >= OZ_TM_MAX_DEPTH) OZ_TM_FAIL(c, "the template recurses too deeply: more than %d levels", OZ_TM_MAX_DEPTH);
    if (c->st != OZ_OK) return false;
    c->depth++;
    return oz_tm_charge(c, 1) || (c->depth--, false);
}

void oz_tm_leave(oz_tm *c) { c->depth--; }

static bool room(oz_tm *c, size_t n) {
    if (n > OZ_TM_MAX_OUTPUT || c->out->len - c->out_base > OZ_TM_MAX_OUTPUT - n)
        OZ_TM_FAIL(c, "the template writes too much: more than %d MB", OZ_TM_MAX_OUTPUT >> 20);
    return oz_tm_charge(c, n / 64);
}

void oz_tm_put(oz_tm *c, const char *s, size_t n) {
    if (room(c, n)) oz_buf_append(c->out, s, n);
}

void oz_tm_puts(oz_tm *c, const char *s) { oz_tm_put(c, s, strlen(s)); }

void oz_tm_put_cp(oz_tm *c, uint32_t cp) {
    char utf8[4];
    oz_tm_put(c, utf8, oz_utf8_encode(utf8, cp));
}

void oz_tm_put_repeat(oz_tm *c, const char *s, size_t n, int64_t times) {
    size_t total;
    if (times <= 0 || n == 0) return;
    if (!oz_mul_size(&total, n, (size_t)times)) total = SIZE_MAX;
    if (!room(c, total)) return;
    size_t from = c->out->len;
    oz_buf_append(c->out, s, n);
    while (c->out->len - from < total) { /* what is there once more, from a copy: the buffer may move */
        char block[4096];
        size_t k = c->out->len - from < sizeof block ? c->out->len - from : sizeof block / n * n;
        if (n > sizeof block)
            oz_buf_append(c->out, s, n);
        else
            oz_buf_append(c->out, memcpy(block, c->out->data + from, k),
                          k < total - (c->out->len - from) ? k : total - (c->out->len - from));
    }
}

void oz_tm_printf(oz_tm *c, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    oz_tm_put(c, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

size_t oz_tm_mark(const oz_tm *c) { return c->out->len; }

oz_tm_val oz_tm_take(oz_tm *c, size_t mark) {
    size_t n = c->out->len > mark ? c->out->len - mark : 0;
    oz_tm_val v = oz_tm_dup(c, n ? c->out->data + mark : "", n);
    if (c->out->len > mark) {
        c->out->len = mark;
        c->out->data[mark] = 0;
    }
    return v;
}

/* ---- simple values ---- */

oz_tm_val oz_tm_str(const char *s, size_t n) { return (oz_tm_val){.kind = OZ_TM_STR, .s = s, .n = n}; }
oz_tm_val oz_tm_cstr(const char *s) { return oz_tm_str(s, strlen(s)); }
oz_tm_val oz_tm_int(int64_t i) { return (oz_tm_val){.kind = OZ_TM_INT, .i = i}; }
oz_tm_val oz_tm_float(double f) { return (oz_tm_val){.kind = OZ_TM_FLOAT, .f = f}; }
oz_tm_val oz_tm_bool(bool b) { return (oz_tm_val){.kind = OZ_TM_BOOL, .i = b}; }
oz_tm_val oz_tm_none(void) { return (oz_tm_val){.kind = OZ_TM_NONE}; }
oz_tm_val oz_tm_undef(int how, const char *s, size_t n) {
    return (oz_tm_val){.kind = OZ_TM_UNDEF, .flavour = (uint8_t)how, .s = s, .n = n};
}

oz_tm_val oz_tm_dup(oz_tm *c, const char *s, size_t n) {
    char *p = oz_tm_alloc(c, n, 1);
    if (!p) return oz_tm_str("", 0);
    if (n) memcpy(p, s, n);
    return oz_tm_str(p, n);
}

bool oz_tm_is_num(oz_tm_val v) { return v.kind >= OZ_TM_BOOL && v.kind <= OZ_TM_FLOAT; }
bool oz_tm_is_str(oz_tm_val v, const char *s) { return v.kind == OZ_TM_STR && v.n == strlen(s) && memcmp(v.s, s, v.n) == 0; }

const char *oz_tm_type(oz_tm_val v) {
    static const char *const KINDS[] = {
        [OZ_TM_ABSENT] = "nothing", [OZ_TM_UNDEF] = "Undefined",  [OZ_TM_NONE] = "NoneType", [OZ_TM_BOOL] = "bool",
        [OZ_TM_INT] = "int",        [OZ_TM_BIG] = "int",          [OZ_TM_FLOAT] = "float",   [OZ_TM_DICT] = "dict",
        [OZ_TM_GEN] = "generator",  [OZ_TM_NS] = "Namespace",     [OZ_TM_FUNC] = "function", [OZ_TM_METHOD] = "method",
        [OZ_TM_MACRO] = "Macro",    [OZ_TM_LOOP] = "LoopContext", [OZ_TM_CYCLER] = "Cycler", [OZ_TM_JOINER] = "Joiner"};
    static const char *const SEQS[] = {
        [OZ_TM_LIST] = "list",      [OZ_TM_TUPLE] = "tuple",        [OZ_TM_GROUP] = "tuple",     [OZ_TM_RANGE] = "range",
        [OZ_TM_KEYS] = "dict_keys", [OZ_TM_VALUES] = "dict_values", [OZ_TM_ITEMS] = "dict_items"};
    if (v.kind == OZ_TM_STR) return v.flavour == OZ_TM_MARKUP ? "Markup" : "str";
    return v.kind == OZ_TM_SEQ ? SEQS[v.flavour] : KINDS[v.kind];
}

oz_tm_val oz_tm_fail_undef(oz_tm *c, oz_tm_val v) {
    oz_tm_val owner = {.kind = v.owner, .flavour = v.owner_flavour};
    int n = v.n < 200 ? (int)v.n : 200;
    const char *of = owner.kind == OZ_TM_NONE ? "None" : oz_tm_type(owner), *object = owner.kind == OZ_TM_NONE ? "" : " object";
    switch (v.flavour) {
    case OZ_TM_BY_NAME:
        return OZ_TM_FAIL(c, "'%.*s' is undefined", n, v.s);
    case OZ_TM_BY_ATTR:
        return OZ_TM_FAIL(c, "'%s%s' has no attribute '%.*s'", of, object, n, v.s);
    case OZ_TM_BY_ELEMENT:
        return OZ_TM_FAIL(c, "%s%s has no element %.*s", of, object, n, v.s);
    case OZ_TM_BY_UNSAFE:
        return OZ_TM_FAIL(c, "access to attribute '%.*s' of '%s' object is unsafe.", n, v.s, of);
    default:
        return OZ_TM_FAIL(c, "%.*s", n, v.s);
    }
}

/* ---- sequences ---- */

oz_tm_seq *oz_tm_seq_new(oz_tm *c, size_t cap) {
    oz_tm_seq *s = oz_tm_alloc(c, 1, sizeof *s);
    oz_tm_val *v = s ? oz_tm_alloc(c, cap ? cap : 1, sizeof *v) : NULL;
    if (!v) return NULL;
    *s = (oz_tm_seq){.v = v, .cap = cap ? cap : 1};
    return s;
}

void oz_tm_seq_push(oz_tm *c, oz_tm_seq *s, oz_tm_val v) {
    if (!s || c->st != OZ_OK) return;
    if (s->n == s->cap) {
        oz_tm_val *more = oz_tm_alloc(c, 2 * s->cap, sizeof *more);
        if (!more) return;
        memcpy(more, s->v, s->n * sizeof *more);
        s->v = more;
        s->cap *= 2;
    }
    s->v[s->n++] = v;
}

oz_tm_val oz_tm_seq_at(const oz_tm_seq *s, size_t i) { return s->v ? s->v[i] : oz_tm_int(s->start + (int64_t)i * s->step); }

oz_tm_val oz_tm_seq_val(const oz_tm_seq *s, int flavour) {
    static oz_tm_val none[1];
    static const oz_tm_seq EMPTY = {.v = none};
    return (oz_tm_val){.kind = OZ_TM_SEQ, .flavour = (uint8_t)flavour, .seq = s ? s : &EMPTY};
}

oz_tm_val oz_tm_tuple2(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    oz_tm_seq *s = oz_tm_seq_new(c, 2);
    oz_tm_seq_push(c, s, a);
    oz_tm_seq_push(c, s, b);
    return oz_tm_seq_val(s, OZ_TM_TUPLE);
}

/* ---- dicts: entries in the order of their coming; from 9 on an index of open addresses, each entry's number + 1 ---- */

enum { PLAIN_DICT = 8 };

oz_tm_dict *oz_tm_dict_new(oz_tm *c, size_t cap) {
    oz_tm_dict *d = oz_tm_alloc(c, 1, sizeof *d);
    if (!d) return NULL;
    d->e = oz_tm_alloc(c, cap ? cap : 1, sizeof *d->e);
    d->cap = cap ? cap : 1;
    return d->e ? d : NULL;
}

oz_tm_val oz_tm_dict_val(oz_tm_dict *d) {
    static oz_tm_dict empty;
    return (oz_tm_val){.kind = OZ_TM_DICT, .dict = d ? d : &empty};
}

/* The entry of a key, or NULL; *slot: where the index would take it. */
static oz_tm_entry *find(oz_tm *c, const oz_tm_dict *d, oz_tm_val key, uint64_t hash, size_t *slot) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == hash && oz_tm_equal(c, d->e[i].key, key)) return &d->e[i];
        return NULL;
    }
    for (size_t i = hash & (d->n_index - 1); oz_tm_charge(c, 1); i = (i + 1) & (d->n_index - 1)) {
        *slot = i;
        if (d->index[i] == 0) return NULL;
        oz_tm_entry *e = &d->e[d->index[i] - 1];
        if (e->hash == hash && oz_tm_equal(c, e->key, key)) return e;
    }
    return NULL;
}

static bool grow(oz_tm *c, oz_tm_dict *d) {
    if (d->n == d->cap) {
        oz_tm_entry *more = oz_tm_alloc(c, 2 * d->cap, sizeof *more);
        if (!more) return false;
        memcpy(more, d->e, d->n * sizeof *more);
        d->e = more;
        d->cap *= 2;
    }
    if (d->n < PLAIN_DICT || d->n_index >= 2 * (d->n + 1)) return true;
    size_t n = d->n_index ? 2 * d->n_index : 4 * PLAIN_DICT;
    uint32_t *index = oz_tm_alloc(c, n, sizeof *index);
    if (!index) return false;
    for (size_t k = 0; k < d->n; k++) {
        size_t i = d->e[k].hash & (n - 1);
        while (index[i] && oz_tm_charge(c, 1)) i = (i + 1) & (n - 1);
        index[i] = (uint32_t)k + 1;
    }
    d->index = index;
    d->n_index = n;
    return c->st == OZ_OK;
}

void oz_tm_dict_set(oz_tm *c, oz_tm_dict *d, oz_tm_val key, oz_tm_val val) {
    if (!d) return;
    uint64_t hash = oz_tm_hash(c, key);
    size_t slot = 0;
    if (c->st != OZ_OK || !grow(c, d)) return;
    oz_tm_entry *e = find(c, d, key, hash, &slot);
    if (c->st != OZ_OK) return;
    if (e)
        e->val = val;
    else {
        d->e[d->n++] = (oz_tm_entry){key, val, hash};
        if (d->index) d->index[slot] = (uint32_t)d->n;
    }
}

bool oz_tm_dict_get(oz_tm *c, const oz_tm_dict *d, oz_tm_val key, oz_tm_val *out) {
    size_t slot = 0;
    uint64_t hash = oz_tm_hash(c, key);
    const oz_tm_entry *e = c->st == OZ_OK ? find(c, d, key, hash, &slot) : NULL;
    if (e) *out = e->val;
    return e;
}

/* ---- iteration ---- */

oz_tm_gen *oz_tm_gen_new(oz_tm *c, oz_tm_next *next, oz_tm_val src) {
    oz_tm_gen *g = oz_tm_alloc(c, 1, sizeof *g);
    if (!g || !oz_tm_iter_begin(c, &g->src, src)) return NULL;
    g->next = next;
    return g;
}

static bool exhausted(oz_tm *c, oz_tm_gen *g, oz_tm_val *out) { return false; }

oz_tm_val oz_tm_gen_val(oz_tm_gen *g) {
    static oz_tm_gen nothing = {.next = exhausted};
    return (oz_tm_val){.kind = OZ_TM_GEN, .gen = g ? g : &nothing};
}

bool oz_tm_iterable(oz_tm_val v) { return v.kind == OZ_TM_UNDEF || (v.kind >= OZ_TM_STR && v.kind <= OZ_TM_GEN) || v.kind == OZ_TM_LOOP; }

bool oz_tm_iter_begin(oz_tm *c, oz_tm_iter *it, oz_tm_val v) {
    *it = (oz_tm_iter){.of = v};
    if (v.kind == OZ_TM_LOOP)
        OZ_TM_UNSUPPORTED(c, "iterating over 'loop' is not supported");
    else if (!oz_tm_iterable(v))
        OZ_TM_FAIL(c, "'%s' object is not iterable", oz_tm_type(v));
    return c->st == OZ_OK;
}

bool oz_tm_iter_next(oz_tm *c, oz_tm_iter *it, oz_tm_val *out) {
    if (!oz_tm_charge(c, 1)) return false;
    switch (it->of.kind) {
    case OZ_TM_SEQ:
        if (it->i >= it->of.seq->n) return false;
        *out = oz_tm_seq_at(it->of.seq, it->i++);
        return true;
    case OZ_TM_DICT:
        if (it->i >= it->of.dict->n) return false;
        *out = it->of.dict->e[it->i++].key;
        return true;
    case OZ_TM_STR: {
        if (it->i >= it->of.n) return false;
        size_t k = oz_tm_char_len(it->of.s + it->i, it->of.n - it->i);
        *out = oz_tm_str(it->of.s + it->i, k);
        it->i += k;
        return true;
    }
    case OZ_TM_GEN: {
        if (!oz_tm_enter(c)) return false;
        bool more = it->of.gen->next(c, it->of.gen, out);
        oz_tm_leave(c);
        return more && c->st == OZ_OK;
    }
    default:
        return false;
    }
}

oz_tm_val oz_tm_to_list(oz_tm *c, oz_tm_val v) {
    oz_tm_iter it;
    oz_tm_val item;
    if (v.kind == OZ_TM_SEQ && v.seq->v) return oz_tm_seq_val(v.seq, OZ_TM_LIST);
    oz_tm_seq *s = oz_tm_seq_new(c, v.kind == OZ_TM_SEQ ? v.seq->n : v.kind == OZ_TM_DICT ? v.dict->n : 8);
    if (!oz_tm_iter_begin(c, &it, v)) return oz_tm_seq_val(NULL, OZ_TM_LIST);
    while (oz_tm_iter_next(c, &it, &item)) oz_tm_seq_push(c, s, item);
    return oz_tm_seq_val(s, OZ_TM_LIST);
}
