/* Expressions: one function for each type of node, in a table. */
#include "text/tmpl_internal.h"
#include <string.h>

const oz_tm_row *oz_tm_find_row(const oz_tm_row *table, oz_slice name) {
    for (; table->name; table++)
        if (strlen(table->name) == name.n && memcmp(table->name, name.p, name.n) == 0) return table;
    return NULL;
}

const oz_tm_row *oz_tm_find_filter(oz_slice name) {
    const oz_tm_row *row = oz_tm_find_row(oz_tm_filters, name);
    return row ? row : oz_tm_find_row(oz_tm_filters_seq, name);
}

oz_tm_val oz_tm_lookup(oz_tm *c, const oz_tm_name *name) {
    for (const oz_tm_frame *f = c->frame; f && oz_tm_charge(c, f->n / 16); f = f->up)
        for (uint32_t i = 0; i < f->n; i++)
            if (f->v[i].name == name) return f->v[i].val;
    oz_tm_val v = c->context[name->id];
    return v.kind == OZ_TM_ABSENT ? oz_tm_undef(OZ_TM_BY_NAME, name->s, name->n) : v;
}

/* ---- calls ---- */

/* Puts arguments into the order of row->params. */
static bool bind(oz_tm *c, const oz_tm_row *row, const oz_tm_args *a, oz_tm_val slot[], size_t n_slots) {
    size_t n = 0, used = 0;
    for (const char *p = row->params; *p; n++) {
        size_t len = strcspn(p, " ?");
        bool optional = p[len] == '?';
        if (n < a->n)
            slot[n] = a->pos[n];
        else
            for (size_t k = 0; k < a->n_kw; k++)
                if (a->kw[k].name.n == len && memcmp(a->kw[k].name.p, p, len) == 0) slot[n] = a->kw[k].val, used++;
        if (slot[n].kind == OZ_TM_ABSENT && !optional) OZ_TM_FAIL(c, "%s: missing argument '%.*s'", row->name, (int)len, p);
        p += len + optional;
        p += *p == ' ';
    }
    if (a->n > n) OZ_TM_FAIL(c, "%s: expected at most %zu arguments, found %zu", row->name, n, a->n);
    if (used < a->n_kw) OZ_TM_FAIL(c, "%s: unexpected keyword argument '%.*s'", row->name, (int)a->kw[0].name.n, a->kw[0].name.p);
    return c->st == OZ_OK;
}

oz_tm_val oz_tm_call_row(oz_tm *c, const oz_tm_row *row, oz_tm_val self, const oz_tm_args *a) {
    enum { MAX_PARAMS = 8 };
    oz_tm_val slot[MAX_PARAMS] = {{0}}, r = oz_tm_none();
    if (!oz_tm_enter(c)) return r;
    if (row->params[0] == '*')
        r = row->fn(c, self, a);
    else if (bind(c, row, a, slot, MAX_PARAMS))
        r = row->fn(c, self, &(oz_tm_args){.pos = slot, .n = MAX_PARAMS});
    oz_tm_leave(c);
    return r;
}

static oz_tm_val call_joiner(oz_tm *c, oz_tm_cycler *j, const oz_tm_args *a) {
    if (a->n || a->n_kw) return OZ_TM_FAIL(c, "a joiner takes no arguments");
    return j->pos++ ? j->v[0] : oz_tm_str("", 0);
}

/* A method of escaped text escapes its arguments and returns escaped text. */
static oz_tm_val call_method(oz_tm *c, const oz_tm_bound *b, const oz_tm_args *a) {
    bool markup = b->self.kind == OZ_TM_STR && b->self.flavour == OZ_TM_MARKUP;
    if (markup && (a->n || a->n_kw)) return OZ_TM_UNSUPPORTED(c, "a method of escaped text with arguments is not supported");
    oz_tm_val v = oz_tm_call_row(c, b->row, b->self, a);
    if (markup && v.kind == OZ_TM_SEQ) return OZ_TM_UNSUPPORTED(c, "splitting escaped text is not supported");
    if (markup && v.kind == OZ_TM_STR) v.flavour = OZ_TM_MARKUP;
    return v;
}

oz_tm_val oz_tm_call(oz_tm *c, oz_tm_val f, const oz_tm_args *a) {
    switch (f.kind) {
    case OZ_TM_FUNC:
        return oz_tm_call_row(c, f.row, oz_tm_none(), a);
    case OZ_TM_METHOD:
        return call_method(c, f.bound, a);
    case OZ_TM_MACRO:
        return oz_tm_call_macro(c, f.macro, a);
    case OZ_TM_LOOP:
        return oz_tm_call_loop(c, f.loop, a);
    case OZ_TM_JOINER:
        return call_joiner(c, f.cycler, a);
    case OZ_TM_UNDEF:
        return oz_tm_fail_undef(c, f);
    default:
        return OZ_TM_FAIL(c, "'%s' object is not callable", oz_tm_type(f));
    }
}

/* Arguments as they are collected: lists in the arena that grow. */
typedef struct collect {
    oz_tm_args a;
    size_t cap, cap_kw;
} collect;

static void add_pos(oz_tm *c, collect *o, oz_tm_val v) {
    if (o->a.n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 4;
        oz_tm_val *more = oz_tm_alloc(c, cap, sizeof *more);
        if (!more) return;
        if (o->a.n) memcpy(more, o->a.pos, o->a.n * sizeof *more);
        o->a.pos = more;
        o->cap = cap;
    }
    o->a.pos[o->a.n++] = v;
}

static void add_kw(oz_tm *c, collect *o, oz_slice name, oz_tm_val v) {
    for (size_t i = 0; i < o->a.n_kw; i++)
        if (oz_slice_eq(o->a.kw[i].name, name)) OZ_TM_FAIL(c, "keyword argument repeated: %.*s", (int)name.n, name.p);
    if (o->a.n_kw == o->cap_kw) {
        size_t cap = o->cap_kw ? 2 * o->cap_kw : 4;
        oz_tm_kw *more = oz_tm_alloc(c, cap, sizeof *more);
        if (!more) return;
        if (o->a.n_kw) memcpy(more, o->a.kw, o->a.n_kw * sizeof *more);
        o->a.kw = more;
        o->cap_kw = cap;
    }
    o->a.kw[o->a.n_kw++] = (oz_tm_kw){name, v};
}

static void add_star(oz_tm *c, collect *o, oz_tm_val v) {
    oz_tm_iter it;
    oz_tm_val item;
    if (oz_tm_iter_begin(c, &it, v))
        while (oz_tm_iter_next(c, &it, &item)) add_pos(c, o, item);
}

static void add_star_star(oz_tm *c, collect *o, oz_tm_val v) {
    if (v.kind != OZ_TM_DICT) OZ_TM_FAIL(c, "argument after ** must be a mapping, not %s", oz_tm_type(v));
    for (size_t i = 0; c->st == OZ_OK && i < v.dict->n; i++) {
        oz_tm_val key = v.dict->e[i].key;
        if (key.kind != OZ_TM_STR)
            OZ_TM_FAIL(c, "keywords must be strings");
        else if (oz_tm_charge(c, 1 + o->a.n_kw))
            add_kw(c, o, (oz_slice){key.s, key.n}, v.dict->e[i].val);
    }
}

static oz_tm_args eval_args(oz_tm *c, const oz_tm_node *list, const oz_tm_val *caller) {
    collect o = {0};
    for (; list && c->st == OZ_OK; list = list->next) {
        switch (list->type) {
        case OZ_TM_N_KWARG:
            add_kw(c, &o, (oz_slice){list->name->s, list->name->n}, oz_tm_eval(c, list->k[0]));
            break;
        case OZ_TM_N_STAR:
            add_star(c, &o, oz_tm_eval(c, list->k[0]));
            break;
        case OZ_TM_N_STARSTAR:
            add_star_star(c, &o, oz_tm_eval(c, list->k[0]));
            break;
        default:
            add_pos(c, &o, oz_tm_eval(c, list));
        }
    }
    if (caller) add_kw(c, &o, oz_slice_view("caller"), *caller);
    return o.a;
}

oz_tm_val oz_tm_eval_call(oz_tm *c, const oz_tm_node *n, const oz_tm_val *caller) {
    oz_tm_val f = oz_tm_eval(c, n->k[0]);
    oz_tm_args a = eval_args(c, n->k[1], caller);
    c->line = n->line;
    return c->st == OZ_OK ? oz_tm_call(c, f, &a) : oz_tm_none();
}

/* ---- nodes ---- */

typedef oz_tm_val eval_fn(oz_tm *c, const oz_tm_node *n);

static oz_tm_val eval_const(oz_tm *c, const oz_tm_node *n) { return n->val; }

static oz_tm_val eval_name(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_lookup(c, n->name);
    return v.kind == OZ_TM_ABSENT ? oz_tm_undef(OZ_TM_BY_NAME, n->name->s, n->name->n) : v; /* a parameter whose default comes later */
}

static oz_tm_val eval_items(oz_tm *c, const oz_tm_node *n) {
    size_t k = 0;
    for (const oz_tm_node *i = n->k[0]; i; i = i->next) k++;
    oz_tm_seq *s = oz_tm_seq_new(c, k);
    for (const oz_tm_node *i = n->k[0]; i && c->st == OZ_OK; i = i->next) oz_tm_seq_push(c, s, oz_tm_eval(c, i));
    return oz_tm_seq_val(s, n->type == OZ_TM_N_TUPLE ? OZ_TM_TUPLE : OZ_TM_LIST);
}

static oz_tm_val eval_dict(oz_tm *c, const oz_tm_node *n) {
    oz_tm_dict *d = oz_tm_dict_new(c, 4);
    for (const oz_tm_node *i = n->k[0]; i && c->st == OZ_OK; i = i->next->next) {
        oz_tm_val key = oz_tm_eval(c, i);
        oz_tm_dict_set(c, d, key, oz_tm_eval(c, i->next));
    }
    return oz_tm_dict_val(d);
}

static oz_tm_val eval_and(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]);
    return oz_tm_truth(v) ? oz_tm_eval(c, n->k[1]) : v;
}

static oz_tm_val eval_or(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]);
    return oz_tm_truth(v) ? v : oz_tm_eval(c, n->k[1]);
}

static oz_tm_val eval_not(oz_tm *c, const oz_tm_node *n) { return oz_tm_bool(!oz_tm_truth(oz_tm_eval(c, n->k[0]))); }

static oz_tm_val eval_sign(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]);
    return c->st == OZ_OK ? oz_tm_negate(c, v, n->type == OZ_TM_N_NEG) : v;
}

static oz_tm_val eval_binary(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val a = oz_tm_eval(c, n->k[0]), b = oz_tm_eval(c, n->k[1]);
    c->line = n->line;
    return c->st == OZ_OK ? oz_tm_binary(c, n->op, a, b) : a;
}

static oz_tm_val eval_concat(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val all = oz_tm_str("", 0);
    for (const oz_tm_node *i = n->k[0]; i && c->st == OZ_OK; i = i->next) {
        oz_slice s = oz_tm_text(c, oz_tm_eval(c, i));
        all = i == n->k[0] ? oz_tm_str(s.p, s.n) : oz_tm_concat(c, all, oz_tm_str(s.p, s.n));
    }
    return all;
}

static oz_tm_val eval_compare(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val a = oz_tm_eval(c, n->k[0]);
    for (const oz_tm_node *o = n->k[1]; o; o = o->next) {
        oz_tm_val b = oz_tm_eval(c, o->k[0]);
        c->line = o->line;
        if (c->st != OZ_OK || !oz_tm_compare(c, a, b, o->op)) return oz_tm_bool(false);
        a = b;
    }
    return oz_tm_bool(true);
}

static oz_tm_val eval_cond(oz_tm *c, const oz_tm_node *n) {
    static const char HINT[] = "the inline if-expression evaluated to false and no else section was defined.";
    if (oz_tm_truth(oz_tm_eval(c, n->k[1]))) return oz_tm_eval(c, n->k[0]);
    return n->k[2] ? oz_tm_eval(c, n->k[2]) : oz_tm_undef(OZ_TM_BY_HINT, HINT, sizeof HINT - 1);
}

static oz_tm_val eval_attr(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]);
    c->line = n->line;
    return c->st == OZ_OK ? oz_tm_getattr(c, v, (oz_slice){n->name->s, n->name->n}) : v;
}

static oz_tm_val eval_item(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]), key = oz_tm_eval(c, n->k[1]);
    c->line = n->line;
    return c->st == OZ_OK ? oz_tm_getitem(c, v, key) : v;
}

static oz_tm_val eval_slice(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]), part[3];
    const oz_tm_node *i = n->k[1];
    for (int k = 0; k < 3; k++, i = i->next) part[k] = oz_tm_eval(c, i);
    c->line = n->line;
    return c->st == OZ_OK ? oz_tm_slice(c, v, part) : v;
}

static oz_tm_val eval_call(oz_tm *c, const oz_tm_node *n) { return oz_tm_eval_call(c, n, NULL); }

static oz_tm_val eval_row(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = n->k[0] ? oz_tm_eval(c, n->k[0]) : c->block;
    oz_tm_args a = eval_args(c, n->k[1], NULL);
    c->line = n->line;
    if (!n->row) return OZ_TM_FAIL(c, "No %s named '%.*s' found.", n->type == OZ_TM_N_TEST ? "test" : "filter", (int)n->val.n, n->val.s);
    return c->st == OZ_OK ? oz_tm_call_row(c, n->row, v, &a) : v;
}

oz_tm_val oz_tm_eval(oz_tm *c, const oz_tm_node *n) {
    static eval_fn *const EVAL[OZ_TM_N_COUNT] = {
        [OZ_TM_N_CONST] = eval_const,     [OZ_TM_N_NAME] = eval_name, [OZ_TM_N_LIST] = eval_items,    [OZ_TM_N_TUPLE] = eval_items,
        [OZ_TM_N_DICT] = eval_dict,       [OZ_TM_N_AND] = eval_and,   [OZ_TM_N_OR] = eval_or,         [OZ_TM_N_NOT] = eval_not,
        [OZ_TM_N_NEG] = eval_sign,        [OZ_TM_N_POS] = eval_sign,  [OZ_TM_N_BINARY] = eval_binary, [OZ_TM_N_CONCAT] = eval_concat,
        [OZ_TM_N_COMPARE] = eval_compare, [OZ_TM_N_COND] = eval_cond, [OZ_TM_N_ATTR] = eval_attr,     [OZ_TM_N_ITEM] = eval_item,
        [OZ_TM_N_SLICE] = eval_slice,     [OZ_TM_N_CALL] = eval_call, [OZ_TM_N_FILTER] = eval_row,    [OZ_TM_N_TEST] = eval_row};
    if (!oz_tm_enter(c)) return oz_tm_none();
    c->line = n->line;
    oz_tm_val v = EVAL[n->type](c, n);
    oz_tm_leave(c);
    return v;
}
