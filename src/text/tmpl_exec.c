/* Statements, scopes, loops and macros. A frame holds the names that a loop's round, a macro's call or a block has set; names are looked
 * up from the innermost frame outwards and set in the innermost, which is what makes a `set` in a loop forgotten at the round's end. */
#include "text/tmpl_internal.h"
#include <string.h>

struct oz_tm_macro {
    const oz_tm_node *node;
    oz_tm_frame *frame;
};
struct oz_tm_loop {
    const oz_tm_seq *items;
    size_t i;
    int depth0;
    const oz_tm_node *node;
    oz_tm_frame *frame;
    oz_tm_val changed;
};

/* ---- frames ---- */

static oz_tm_frame *push(oz_tm *c, oz_tm_frame *up) {
    oz_tm_frame *f = c->spare;
    if (f)
        c->spare = f->up;
    else
        f = oz_tm_alloc(c, 1, sizeof *f);
    if (!f) return NULL;
    f->up = up;
    f->n = 0;
    c->frame = f;
    return f;
}

static void pop(oz_tm *c, oz_tm_frame *back) {
    oz_tm_frame *f = c->frame;
    c->frame = back;
    if (f->captured) return;
    f->up = c->spare;
    c->spare = f;
}

static void capture(oz_tm_frame *f) {
    for (; f && !f->captured; f = f->up) f->captured = true;
}

static void assign(oz_tm *c, const oz_tm_name *name, oz_tm_val v) {
    oz_tm_frame *f = c->frame;
    oz_tm_charge(c, f->n / 16);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->v[i].name == name) {
            f->v[i].val = v;
            return;
        }
    if (f->n == f->cap) {
        uint32_t cap = f->cap ? 2 * f->cap : 4;
        oz_tm_var *more = oz_tm_alloc(c, cap, sizeof *more);
        if (!more) return;
        if (f->n) memcpy(more, f->v, f->n * sizeof *more);
        f->v = more;
        f->cap = cap;
    }
    f->v[f->n++] = (oz_tm_var){name, v};
}

static void assign_attr(oz_tm *c, const oz_tm_node *n, oz_tm_val v) {
    oz_tm_val ns = oz_tm_lookup(c, n->name);
    if (ns.kind != OZ_TM_NS)
        OZ_TM_FAIL(c, "cannot assign attribute on non-namespace object");
    else if (n->val.n && n->val.s[0] == '_')
        OZ_TM_FAIL(
            c, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'. Please rename the attribute.",
            (int)n->val.n, n->val.s);
    else
        oz_tm_dict_set(c, ns.dict, n->val, v);
}

static void unpack(oz_tm *c, const oz_tm_node *target, oz_tm_val v) {
    if (c->st != OZ_OK) return;
    if (target->type == OZ_TM_N_NAME)
        assign(c, target->name, v);
    else if (target->type == OZ_TM_N_NSREF)
        assign_attr(c, target, v);
    else {
        oz_tm_iter it;
        oz_tm_val item;
        size_t n = 0, got = 0;
        for (const oz_tm_node *t = target->k[0]; t; t = t->next) n++;
        if (!oz_tm_iter_begin(c, &it, v)) return;
        oz_tm_val *items = oz_tm_alloc(c, n, sizeof *items);
        while (items && got <= n && oz_tm_iter_next(c, &it, &item)) {
            if (got < n) items[got] = item;
            got++;
        }
        if (got > n)
            OZ_TM_FAIL(c, "too many values to unpack (expected %zu)", n);
        else if (got < n)
            OZ_TM_FAIL(c, "not enough values to unpack (expected %zu, got %zu)", n, got);
        got = 0;
        for (const oz_tm_node *t = target->k[0]; t && c->st == OZ_OK; t = t->next) unpack(c, t, items[got++]);
    }
}

/* ---- loops ---- */

static oz_tm_val m_loop_cycle(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    if (a->n == 0) return OZ_TM_FAIL(c, "no items for cycling given");
    return a->pos[self.loop->i % a->n];
}

static oz_tm_val m_loop_changed(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_seq *s = oz_tm_seq_new(c, a->n);
    for (size_t i = 0; i < a->n; i++) oz_tm_seq_push(c, s, a->pos[i]);
    oz_tm_val now = oz_tm_seq_val(s, OZ_TM_TUPLE), was = self.loop->changed;
    if (was.kind != OZ_TM_ABSENT && oz_tm_equal(c, was, now)) return oz_tm_bool(false);
    self.loop->changed = now;
    return oz_tm_bool(true);
}

oz_tm_val oz_tm_loop_attr(oz_tm *c, oz_tm_loop *l, oz_slice name) {
    static const oz_tm_row METHODS[] = {
        {"cycle", "*", m_loop_cycle},
        {"changed", "*", m_loop_changed},
        {0},
    };
    static const char NO_PREV[] = "there is no previous item", NO_NEXT[] = "there is no next item";
    size_t n = l->items->n, i = l->i;
    const struct {
        const char *name;
        oz_tm_val v;
    } ROWS[] = {{"index", oz_tm_int((int64_t)i + 1)},
                {"index0", oz_tm_int((int64_t)i)},
                {"revindex", oz_tm_int((int64_t)(n - i))},
                {"revindex0", oz_tm_int((int64_t)(n - i) - 1)},
                {"first", oz_tm_bool(i == 0)},
                {"last", oz_tm_bool(i + 1 >= n)},
                {"length", oz_tm_int((int64_t)n)},
                {"depth", oz_tm_int(l->depth0 + 1)},
                {"depth0", oz_tm_int(l->depth0)},
                {"previtem", i > 0 && i <= n ? oz_tm_seq_at(l->items, i - 1) : oz_tm_undef(OZ_TM_BY_HINT, NO_PREV, sizeof NO_PREV - 1)},
                {"nextitem", i + 1 < n ? oz_tm_seq_at(l->items, i + 1) : oz_tm_undef(OZ_TM_BY_HINT, NO_NEXT, sizeof NO_NEXT - 1)}};
    for (size_t k = 0; k < sizeof ROWS / sizeof *ROWS; k++)
        if (strlen(ROWS[k].name) == name.n && memcmp(ROWS[k].name, name.p, name.n) == 0) return ROWS[k].v;
    const oz_tm_row *row = oz_tm_find_row(METHODS, name);
    oz_tm_bound *b = row ? oz_tm_alloc(c, 1, sizeof *b) : NULL;
    if (!b) return (oz_tm_val){0};
    *b = (oz_tm_bound){{.kind = OZ_TM_LOOP, .loop = l}, row};
    return (oz_tm_val){.kind = OZ_TM_METHOD, .bound = b};
}

/* The items that pass the loop's `if`. */
static oz_tm_val select_items(oz_tm *c, const oz_tm_node *n, oz_tm_val of) {
    oz_tm_frame *around = c->frame, *f = push(c, around);
    oz_tm_seq *s = oz_tm_seq_new(c, 8);
    for (size_t i = 0; f && s && i < of.seq->n && c->st == OZ_OK; i++) {
        oz_tm_val item = oz_tm_seq_at(of.seq, i);
        f->n = 0;
        unpack(c, n->k[0], item);
        if (c->st == OZ_OK && oz_tm_truth(oz_tm_eval(c, n->k[4]))) oz_tm_seq_push(c, s, item);
    }
    if (f) pop(c, around);
    return oz_tm_seq_val(s, OZ_TM_LIST);
}

static void exec_scope(oz_tm *c, const oz_tm_node *body) {
    oz_tm_frame *around = c->frame;
    if (!push(c, around)) return;
    oz_tm_exec(c, body);
    pop(c, around);
}

static void run_loop(oz_tm *c, const oz_tm_node *n, oz_tm_val of, int depth0) {
    oz_tm_frame *around = c->frame;
    if (of.kind != OZ_TM_SEQ) of = oz_tm_to_list(c, of);
    if (c->st == OZ_OK && n->k[4]) of = select_items(c, n, of);
    oz_tm_loop *l = c->st == OZ_OK ? oz_tm_alloc(c, 1, sizeof *l) : NULL;
    if (!l) return;
    *l = (oz_tm_loop){.items = of.seq, .depth0 = depth0, .node = n, .frame = around};
    if (n->flags & OZ_TM_RECURSIVE) capture(around);
    oz_tm_val loop = {.kind = OZ_TM_LOOP, .loop = l};
    bool done = false; /* a round came to its end; Jinja's `else` asks for that, so that a first round with a `break` does not count */
    for (; l->i < of.seq->n && oz_tm_charge(c, 1); l->i++) {
        if (!push(c, around)) return;
        assign(c, c->t->names[OZ_TM_NAME_LOOP], loop);
        unpack(c, n->k[0], oz_tm_seq_at(of.seq, l->i));
        oz_tm_exec(c, n->k[2]);
        pop(c, around);
        bool stop = c->flow == OZ_TM_FLOW_BREAK;
        done = done || c->flow == OZ_TM_FLOW_ON;
        c->flow = OZ_TM_FLOW_ON;
        if (stop) break;
    }
    if (!done) exec_scope(c, n->k[3]);
}

oz_tm_val oz_tm_call_loop(oz_tm *c, oz_tm_loop *l, const oz_tm_args *a) {
    if (!(l->node->flags & OZ_TM_RECURSIVE)) return OZ_TM_FAIL(c, "The loop must have the 'recursive' marker to be called recursively.");
    if (a->n != 1 || a->n_kw) return OZ_TM_FAIL(c, "loop(): expected one argument");
    oz_tm_frame *here = c->frame;
    size_t mark = oz_tm_mark(c);
    c->frame = l->frame;
    run_loop(c, l->node, a->pos[0], l->depth0 + 1);
    c->frame = here;
    return oz_tm_take(c, mark);
}

/* ---- macros ---- */

static oz_tm_val new_macro(oz_tm *c, const oz_tm_node *n) {
    oz_tm_macro *m = oz_tm_alloc(c, 1, sizeof *m);
    if (!m) return oz_tm_none();
    *m = (oz_tm_macro){n, c->frame};
    capture(c->frame);
    return (oz_tm_val){.kind = OZ_TM_MACRO, .macro = m};
}

oz_tm_val oz_tm_macro_name(const oz_tm_macro *m) { return oz_tm_str(m->node->name->s, m->node->name->n); }

/* The keyword argument of that name, which then counts as used. */
static bool take_kw(const oz_tm_args *a, bool *used, const oz_tm_name *name, oz_tm_val *out) {
    for (size_t i = 0; i < a->n_kw; i++) {
        if (used[i] || a->kw[i].name.n != name->n || memcmp(a->kw[i].name.p, name->s, name->n) != 0) continue;
        used[i] = true;
        *out = a->kw[i].val;
        return true;
    }
    return false;
}

static oz_tm_val not_given(oz_tm *c, const oz_tm_name *name) {
    size_t mark = oz_tm_mark(c);
    oz_tm_printf(c, "parameter '%.*s' was not provided", (int)name->n, name->s);
    oz_tm_val hint = oz_tm_take(c, mark);
    return oz_tm_undef(OZ_TM_BY_HINT, hint.s, hint.n);
}

/* What a macro can use besides its parameters: caller, kwargs, varargs. What it does not use must not be given. */
static void bind_rest(oz_tm *c, const oz_tm_node *n, const oz_tm_args *a, bool *used, size_t n_params, bool own_caller) {
    static const char NO_CALLER[] = "No caller defined";
    const oz_tm_name *const *names = (const oz_tm_name *const *)c->t->names;
    oz_tm_val v;
    if ((n->flags & OZ_TM_USES_CALLER) && !own_caller) {
        if (!take_kw(a, used, names[OZ_TM_NAME_CALLER], &v) || v.kind == OZ_TM_NONE)
            v = oz_tm_undef(OZ_TM_BY_HINT, NO_CALLER, sizeof NO_CALLER - 1);
        assign(c, names[OZ_TM_NAME_CALLER], v);
    }
    if (n->flags & OZ_TM_USES_KWARGS) {
        oz_tm_dict *d = oz_tm_dict_new(c, a->n_kw);
        for (size_t i = 0; i < a->n_kw; i++)
            if (!used[i]) oz_tm_dict_set(c, d, oz_tm_str(a->kw[i].name.p, a->kw[i].name.n), a->kw[i].val);
        assign(c, names[OZ_TM_NAME_KWARGS], oz_tm_dict_val(d));
    } else
        for (size_t i = 0; i < a->n_kw; i++)
            if (!used[i])
                OZ_TM_FAIL(c, "macro '%.*s' takes no keyword argument '%.*s'", (int)n->name->n, n->name->s, (int)a->kw[i].name.n,
                           a->kw[i].name.p);
    if (n->flags & OZ_TM_USES_VARARGS) {
        oz_tm_seq *s = oz_tm_seq_new(c, 4);
        for (size_t i = n_params; i < a->n; i++) oz_tm_seq_push(c, s, a->pos[i]);
        assign(c, names[OZ_TM_NAME_VARARGS], oz_tm_seq_val(s, OZ_TM_TUPLE));
    } else if (a->n > n_params)
        OZ_TM_FAIL(c, "macro '%.*s' takes not more than %zu argument(s)", (int)n->name->n, n->name->s, n_params);
}

static void bind_params(oz_tm *c, const oz_tm_node *n, const oz_tm_args *a) {
    bool *used = oz_tm_alloc(c, a->n_kw, sizeof *used), own_caller = false;
    size_t k = 0;
    if (!used) return;
    for (const oz_tm_node *p = n->k[0]; p; p = p->next, k++) {
        oz_tm_val v = {0};
        if (p->name->id == OZ_TM_NAME_CALLER) own_caller = true;
        if (k < a->n)
            v = a->pos[k];
        else
            take_kw(a, used, p->name, &v);
        assign(c, p->name, v);
    }
    bind_rest(c, n, a, used, k, own_caller);
    for (const oz_tm_node *p = n->k[0]; p && c->st == OZ_OK; p = p->next)
        if (oz_tm_lookup(c, p->name).kind == OZ_TM_ABSENT) assign(c, p->name, p->k[0] ? oz_tm_eval(c, p->k[0]) : not_given(c, p->name));
}

oz_tm_val oz_tm_call_macro(oz_tm *c, oz_tm_macro *m, const oz_tm_args *a) {
    oz_tm_frame *here = c->frame;
    size_t mark = oz_tm_mark(c);
    if (!oz_tm_enter(c)) return oz_tm_none();
    if (push(c, m->frame)) {
        bind_params(c, m->node, a);
        oz_tm_exec(c, m->node->k[1]);
        pop(c, here);
    }
    oz_tm_leave(c);
    return oz_tm_take(c, mark);
}

/* ---- statements ---- */

typedef void exec_fn(oz_tm *c, const oz_tm_node *n);

static void exec_text(oz_tm *c, const oz_tm_node *n) { oz_tm_put(c, n->val.s, n->val.n); }

static void exec_output(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[0]);
    if (c->st == OZ_OK) oz_tm_print(c, v);
}

static void exec_if(oz_tm *c, const oz_tm_node *n) {
    for (;;) {
        bool yes = oz_tm_truth(oz_tm_eval(c, n->k[0]));
        if (c->st != OZ_OK) return;
        if (yes) {
            oz_tm_exec(c, n->k[1]);
            return;
        }
        n = n->k[2];
        if (!n || n->type != OZ_TM_N_IF || n->next) break;
    }
    oz_tm_exec(c, n);
}

static void exec_for(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val of = oz_tm_eval(c, n->k[1]);
    if (c->st != OZ_OK) return;
    if (!(n->flags & OZ_TM_RECURSIVE)) {
        run_loop(c, n, of, 0);
        return;
    }
    size_t mark = oz_tm_mark(c); /* a recursive loop is a function that is called once: a part of the text comes when it ends */
    run_loop(c, n, of, 0);
    oz_tm_val text = oz_tm_take(c, mark);
    oz_tm_put(c, text.s, text.n);
}

static void exec_set(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = oz_tm_eval(c, n->k[1]);
    unpack(c, n->k[0], v);
}

/* The text of a body with a frame of its own, through the filters that come with it. */
static oz_tm_val block_text(oz_tm *c, const oz_tm_node *body, const oz_tm_node *filter) {
    oz_tm_frame *around = c->frame;
    size_t mark = oz_tm_mark(c);
    if (!push(c, around)) return oz_tm_none();
    oz_tm_exec(c, body);
    oz_tm_val v = oz_tm_take(c, mark);
    if (filter && c->st == OZ_OK) {
        c->block = v;
        v = oz_tm_eval(c, filter);
    }
    pop(c, around);
    return v;
}

static void exec_set_block(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val v = block_text(c, n->k[2], n->k[1]);
    unpack(c, n->k[0], v);
}

/* Blocks write what they get as it is: it must be text. */
static void put_block(oz_tm *c, oz_tm_val v) {
    if (v.kind == OZ_TM_STR)
        oz_tm_put(c, v.s, v.n);
    else
        OZ_TM_FAIL(c, "expected the block to result in a string, found '%s'", oz_tm_type(v));
}

static void exec_filter_block(oz_tm *c, const oz_tm_node *n) { put_block(c, block_text(c, n->k[1], n->k[0])); }

static void exec_macro(oz_tm *c, const oz_tm_node *n) { assign(c, n->name, new_macro(c, n)); }

static void exec_call_block(oz_tm *c, const oz_tm_node *n) {
    oz_tm_val caller = new_macro(c, n->k[1]);
    put_block(c, oz_tm_eval_call(c, n->k[0], &caller));
}

static void exec_with(oz_tm *c, const oz_tm_node *n) {
    oz_tm_frame *around = c->frame, *inner = push(c, around);
    for (const oz_tm_node *t = n->k[0]; inner && t && c->st == OZ_OK; t = t->next->next) {
        c->frame = around;
        oz_tm_val v = oz_tm_eval(c, t->next);
        c->frame = inner;
        unpack(c, t, v);
    }
    if (!inner) return;
    oz_tm_exec(c, n->k[1]);
    pop(c, around);
}

static void exec_block(oz_tm *c, const oz_tm_node *n) { exec_scope(c, n->k[0]); }
static void exec_break(oz_tm *c, const oz_tm_node *n) { c->flow = OZ_TM_FLOW_BREAK; }
static void exec_continue(oz_tm *c, const oz_tm_node *n) { c->flow = OZ_TM_FLOW_CONTINUE; }

void oz_tm_exec(oz_tm *c, const oz_tm_node *list) {
    static exec_fn *const EXEC[OZ_TM_N_COUNT] = {[OZ_TM_N_TEXT] = exec_text,
                                                 [OZ_TM_N_OUTPUT] = exec_output,
                                                 [OZ_TM_N_IF] = exec_if,
                                                 [OZ_TM_N_FOR] = exec_for,
                                                 [OZ_TM_N_SET] = exec_set,
                                                 [OZ_TM_N_SETBLOCK] = exec_set_block,
                                                 [OZ_TM_N_MACRO] = exec_macro,
                                                 [OZ_TM_N_CALLBLOCK] = exec_call_block,
                                                 [OZ_TM_N_FILTERBLOCK] = exec_filter_block,
                                                 [OZ_TM_N_WITH] = exec_with,
                                                 [OZ_TM_N_SCOPE] = exec_block,
                                                 [OZ_TM_N_BREAK] = exec_break,
                                                 [OZ_TM_N_CONTINUE] = exec_continue};
    if (!oz_tm_enter(c)) return;
    for (; list && c->st == OZ_OK && c->flow == OZ_TM_FLOW_ON; list = list->next) {
        c->line = list->line;
        if (oz_tm_charge(c, 1)) EXEC[list->type](c, list);
    }
    oz_tm_leave(c);
}
