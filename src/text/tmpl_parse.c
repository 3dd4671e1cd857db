/* The parser of statements, and the hands that both parsers use. */
#include "base/map.h"
#include "text/tmpl_internal.h"
#include <string.h>

static bool ok(const oz_tm_parser *p) { return p->c.st == OZ_OK; }

/* ---- tokens ---- */

void oz_tm_advance(oz_tm_parser *p) {
    if (!ok(p)) return;
    p->cur = p->ahead;
    p->c.line = p->cur.line;
    if (p->cur.type != OZ_TM_T_EOF && !oz_tm_lex_next(p, &p->ahead)) p->cur = p->ahead = (oz_tm_token){.type = OZ_TM_T_EOF};
}

bool oz_tm_is_op(const oz_tm_parser *p, const char *op) { return p->cur.type == OZ_TM_T_OP && strcmp(p->cur.op, op) == 0; }

bool oz_tm_is_word(const oz_tm_parser *p, const char *word) {
    return p->cur.type == OZ_TM_T_NAME && p->cur.n == strlen(word) && memcmp(p->cur.s, word, p->cur.n) == 0;
}

bool oz_tm_skip_op(oz_tm_parser *p, const char *op) {
    bool is = oz_tm_is_op(p, op);
    if (is) oz_tm_advance(p);
    return is;
}

bool oz_tm_skip_word(oz_tm_parser *p, const char *word) {
    bool is = oz_tm_is_word(p, word);
    if (is) oz_tm_advance(p);
    return is;
}

oz_tm_val oz_tm_unexpected(oz_tm_parser *p, const char *expected) {
    static const char *const WHAT[] = {[OZ_TM_T_EOF] = "end of template", [OZ_TM_T_TEXT] = "text",        [OZ_TM_T_VAR_BEGIN] = "'{{'",
                                       [OZ_TM_T_VAR_END] = "'}}'",        [OZ_TM_T_BLOCK_BEGIN] = "'{%'", [OZ_TM_T_BLOCK_END] = "'%}'"};
    char found[64];
    if (p->cur.type < sizeof WHAT / sizeof *WHAT)
        snprintf(found, sizeof found, "%s", WHAT[p->cur.type]);
    else
        snprintf(found, sizeof found, "'%.*s'", p->cur.n < 40 ? (int)p->cur.n : 40, p->cur.s);
    return expected ? OZ_TM_FAIL(&p->c, "expected %s, found %s", expected, found) : OZ_TM_FAIL(&p->c, "unexpected %s", found);
}

bool oz_tm_expect_op(oz_tm_parser *p, const char *op) {
    char quoted[8];
    snprintf(quoted, sizeof quoted, "'%s'", op);
    if (!oz_tm_skip_op(p, op)) oz_tm_unexpected(p, quoted);
    return ok(p);
}

static bool expect_word(oz_tm_parser *p, const char *word) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", word);
    if (!oz_tm_skip_word(p, word)) oz_tm_unexpected(p, quoted);
    return ok(p);
}

const oz_tm_name *oz_tm_intern(oz_tm_parser *p, const char *s, size_t n) {
    oz_template *t = p->t;
    int64_t id;
    if (oz_map_get(p->names, s, n, &id)) return t->names[id];
    oz_tm_name *name = oz_tm_alloc(&p->c, 1, sizeof *name);
    static const oz_tm_name NOTHING = {"", 0, 0};
    if (!name) return &NOTHING;
    *name = (oz_tm_name){s, (uint32_t)n, (uint32_t)t->n_names};
    oz_map_add(p->names, s, n, (int64_t)t->n_names);
    oz_grow((void **)&t->names, &t->cap_names, t->n_names + 1, sizeof *t->names);
    t->names[t->n_names++] = name;
    return name;
}

const oz_tm_name *oz_tm_expect_name(oz_tm_parser *p) {
    if (p->cur.type != OZ_TM_T_NAME) {
        oz_tm_unexpected(p, "a name");
        return oz_tm_intern(p, "", 0);
    }
    const oz_tm_name *name = oz_tm_intern(p, p->cur.s, p->cur.n);
    oz_tm_advance(p);
    return name;
}

/* What a parser that has failed still builds on its way out goes to one shared node that nobody reads. */
oz_tm_node *oz_tm_node_new(oz_tm_parser *p, oz_tm_node_type type) {
    static _Thread_local oz_tm_node nowhere;
    oz_tm_node *n = oz_tm_alloc(&p->c, 1, sizeof *n);
    if (!n) n = memset(&nowhere, 0, sizeof nowhere);
    n->type = (uint8_t)type;
    n->line = p->cur.line;
    return n;
}

/* ---- statements ---- */

typedef oz_tm_node *statement_fn(oz_tm_parser *p);

static oz_tm_node *parse_list(oz_tm_parser *p, const char *const *ends);

/* The body of a block, from the end of its opening tag up to the word of `ends` that closes it, which stays the current token. */
static oz_tm_node *parse_body(oz_tm_parser *p, const char *const *ends) {
    oz_tm_skip_op(p, ":");
    if (p->cur.type != OZ_TM_T_BLOCK_END) oz_tm_unexpected(p, "'%}'");
    oz_tm_advance(p);
    return parse_list(p, ends);
}

static oz_tm_node *parse_body_to(oz_tm_parser *p, const char *end) {
    oz_tm_node *n = parse_body(p, (const char *const[]){end, NULL});
    oz_tm_advance(p);
    return n;
}

static oz_tm_node *parse_target(oz_tm_parser *p, int how, const char *end_word);

/* An unknown filter or test is an error of the template, but inside an `if` only when it is reached. A frame of its own (a loop, a macro, a
 * block whose text is taken) in that `if` is strict again. */
static bool check_unknown(oz_tm_parser *p) {
    const oz_tm_node *n = p->unknown;
    if (!n || !ok(p)) return ok(p);
    p->c.line = n->line;
    OZ_TM_FAIL(&p->c, "No %s named '%.*s'.", n->type == OZ_TM_N_TEST ? "test" : "filter", (int)n->val.n, n->val.s);
    return false;
}

static const oz_tm_node *enter_frame(oz_tm_parser *p) {
    const oz_tm_node *around = p->unknown;
    p->unknown = NULL;
    return around;
}

static void leave_frame(oz_tm_parser *p, const oz_tm_node *around) {
    check_unknown(p);
    p->unknown = around;
}

static oz_tm_node *parse_for(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_FOR);
    oz_tm_advance(p);
    p->loops++;
    n->k[0] = parse_target(p, 0, "in");
    p->loops--;
    expect_word(p, "in");
    n->k[1] = oz_tm_parse_tuple(p, OZ_TM_NO_COND, "recursive");
    const oz_tm_node *around = enter_frame(p);
    if (oz_tm_skip_word(p, "if")) n->k[4] = oz_tm_parse_expr(p);
    if (oz_tm_skip_word(p, "recursive")) n->flags |= OZ_TM_RECURSIVE;
    p->loops++;
    n->k[2] = parse_body(p, (const char *const[]){"endfor", "else", NULL});
    p->loops--;
    bool other = oz_tm_is_word(p, "else");
    oz_tm_advance(p);
    if (other) n->k[3] = parse_body_to(p, "endfor");
    leave_frame(p, around);
    return n;
}

static oz_tm_node *parse_if(oz_tm_parser *p) {
    oz_tm_node *head = oz_tm_node_new(p, OZ_TM_N_IF), *n = head;
    const oz_tm_node *unknown = p->unknown;
    for (;;) {
        oz_tm_advance(p);
        n->k[0] = oz_tm_parse_tuple(p, OZ_TM_NO_COND, NULL);
        n->k[1] = parse_body(p, (const char *const[]){"elif", "else", "endif", NULL});
        if (!ok(p) || !oz_tm_is_word(p, "elif")) break;
        n = n->k[2] = oz_tm_node_new(p, OZ_TM_N_IF);
    }
    bool other = oz_tm_is_word(p, "else");
    oz_tm_advance(p);
    if (other) n->k[2] = parse_body_to(p, "endif");
    p->unknown = unknown;
    return head;
}

static void check_target(oz_tm_parser *p, const oz_tm_node *n) {
    if (n->type == OZ_TM_N_TUPLE) {
        for (n = n->k[0]; n && ok(p); n = n->next) check_target(p, n);
    } else if (n->type != OZ_TM_N_NAME && n->type != OZ_TM_N_NSREF)
        OZ_TM_FAIL(&p->c, "can't assign to what stands here: expected a name");
    else if (p->loops > 0 && n->name->n == 4 && memcmp(n->name->s, "loop", 4) == 0)
        OZ_TM_FAIL(&p->c, "can't assign to 'loop' in a loop");
}

/* A name, a.b where NAMESPACE allows it, or a tuple of them. */
static oz_tm_node *parse_target(oz_tm_parser *p, int how, const char *end_word) {
    oz_tm_node *n = oz_tm_parse_tuple(p, OZ_TM_TARGET | how, end_word);
    check_target(p, n);
    return n;
}

static oz_tm_node *parse_set(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_SET);
    oz_tm_advance(p);
    n->k[0] = parse_target(p, OZ_TM_NAMESPACE, NULL);
    if (oz_tm_skip_op(p, "=")) {
        n->k[1] = oz_tm_parse_tuple(p, 0, NULL);
        return n;
    }
    n->type = OZ_TM_N_SETBLOCK;
    const oz_tm_node *around = enter_frame(p);
    n->k[1] = oz_tm_parse_filters(p, NULL, false);
    n->k[2] = parse_body_to(p, "endset");
    leave_frame(p, around);
    return n;
}

static oz_tm_node *parse_params(oz_tm_parser *p) {
    oz_tm_node *head = NULL, **tail = &head;
    bool defaults = false;
    oz_tm_expect_op(p, "(");
    while (ok(p) && !oz_tm_is_op(p, ")")) {
        if (head && !oz_tm_expect_op(p, ",")) break;
        oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_PARAM);
        n->name = oz_tm_expect_name(p);
        if (oz_tm_skip_op(p, "="))
            n->k[0] = oz_tm_parse_expr(p), defaults = true;
        else if (defaults)
            OZ_TM_FAIL(&p->c, "non-default argument follows default argument");
        *tail = n;
        tail = &n->next;
    }
    oz_tm_expect_op(p, ")");
    return head;
}

/* The body of a macro or of a call block. What is used in it counts for the macros around it too. */
static void parse_macro_body(oz_tm_parser *p, oz_tm_node *n, uint8_t *around, const char *end) {
    const oz_tm_node *strict = enter_frame(p);
    int loops = p->loops;
    p->loops = 0;
    p->macro_flags = &n->flags;
    n->k[1] = parse_body_to(p, end);
    for (const oz_tm_node *a = n->k[0]; a && ok(p); a = a->next) {
        if (a->name->id == OZ_TM_NAME_KWARGS) n->flags &= (uint8_t)~OZ_TM_USES_KWARGS;
        if (a->name->id == OZ_TM_NAME_VARARGS) n->flags &= (uint8_t)~OZ_TM_USES_VARARGS;
    }
    p->macro_flags = around;
    p->loops = loops;
    if (around) *around |= n->flags & (OZ_TM_USES_CALLER | OZ_TM_USES_KWARGS | OZ_TM_USES_VARARGS);
    leave_frame(p, strict);
}

static oz_tm_node *parse_macro(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_MACRO);
    oz_tm_advance(p);
    n->name = oz_tm_expect_name(p);
    n->k[0] = parse_params(p);
    parse_macro_body(p, n, p->macro_flags, "endmacro");
    return n;
}

static oz_tm_node *parse_call_block(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_CALLBLOCK), *body = n->k[1] = oz_tm_node_new(p, OZ_TM_N_MACRO);
    oz_tm_advance(p);
    body->name = oz_tm_intern(p, "caller", 6);
    if (oz_tm_is_op(p, "(")) body->k[0] = parse_params(p);
    n->k[0] = oz_tm_parse_expr(p);
    if (n->k[0]->type != OZ_TM_N_CALL) OZ_TM_FAIL(&p->c, "expected call");
    parse_macro_body(p, body, p->macro_flags, "endcall");
    return n;
}

static oz_tm_node *parse_filter_block(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_FILTERBLOCK);
    oz_tm_advance(p);
    const oz_tm_node *around = enter_frame(p);
    n->k[0] = oz_tm_parse_filters(p, NULL, true);
    n->k[1] = parse_body_to(p, "endfilter");
    leave_frame(p, around);
    return n;
}

static oz_tm_node *parse_with(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_WITH), **tail = &n->k[0];
    oz_tm_advance(p);
    while (ok(p) && p->cur.type != OZ_TM_T_BLOCK_END) {
        if (n->k[0] && !oz_tm_expect_op(p, ",")) break;
        *tail = oz_tm_parse_primary(p, false);
        check_target(p, *tail);
        tail = &(*tail)->next;
        oz_tm_expect_op(p, "=");
        *tail = oz_tm_parse_expr(p);
        tail = &(*tail)->next;
    }
    const oz_tm_node *around = enter_frame(p);
    n->k[1] = parse_body_to(p, "endwith");
    leave_frame(p, around);
    return n;
}

/* Marks what the model says, for training; the text is the same. To Jinja it is a call block, so it is no place for `break`. */
static oz_tm_node *parse_generation(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_SCOPE);
    const oz_tm_node *around = enter_frame(p);
    int loops = p->loops;
    p->loops = 0;
    oz_tm_advance(p);
    n->k[0] = parse_body_to(p, "endgeneration");
    p->loops = loops;
    leave_frame(p, around);
    return n;
}

static oz_tm_node *parse_print(oz_tm_parser *p) {
    oz_tm_node *head = NULL, **tail = &head;
    oz_tm_advance(p);
    while (ok(p) && p->cur.type != OZ_TM_T_BLOCK_END) {
        if (head && !oz_tm_expect_op(p, ",")) break;
        *tail = oz_tm_node_new(p, OZ_TM_N_OUTPUT);
        (*tail)->k[0] = oz_tm_parse_expr(p);
        tail = &(*tail)->next;
    }
    return head;
}

static oz_tm_node *parse_jump(oz_tm_parser *p) {
    oz_tm_node *n = oz_tm_node_new(p, oz_tm_is_word(p, "break") ? OZ_TM_N_BREAK : OZ_TM_N_CONTINUE);
    if (p->loops == 0) OZ_TM_FAIL(&p->c, "'%.*s' outside of a loop", (int)p->cur.n, p->cur.s);
    oz_tm_advance(p);
    return n;
}

static oz_tm_node *parse_refused(oz_tm_parser *p) {
    OZ_TM_UNSUPPORTED(&p->c, "the tag '%.*s' is not supported: a chat template stands alone", (int)p->cur.n, p->cur.s);
    return NULL;
}

static const struct {
    const char *word;
    statement_fn *parse;
} STATEMENTS[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"print", parse_print},
    {"generation", parse_generation},
    {"break", parse_jump},
    {"continue", parse_jump},
    {"block", parse_refused},
    {"extends", parse_refused},
    {"include", parse_refused},
    {"import", parse_refused},
    {"from", parse_refused},
    {"autoescape", parse_refused},
};

static oz_tm_node *parse_statement(oz_tm_parser *p) {
    if (p->cur.type != OZ_TM_T_NAME) oz_tm_unexpected(p, "the name of a tag");
    for (size_t i = 0; ok(p) && i < sizeof STATEMENTS / sizeof *STATEMENTS; i++) {
        if (!oz_tm_is_word(p, STATEMENTS[i].word)) continue;
        if (++p->nest > OZ_TM_MAX_NEST) OZ_TM_FAIL(&p->c, "blocks are nested too deeply: at most %d", OZ_TM_MAX_NEST);
        oz_tm_node *n = ok(p) ? STATEMENTS[i].parse(p) : NULL;
        p->nest--;
        if (p->cur.type != OZ_TM_T_BLOCK_END) oz_tm_unexpected(p, "'%}'");
        oz_tm_advance(p);
        return n;
    }
    OZ_TM_FAIL(&p->c, "Encountered unknown tag '%.*s'.", p->cur.n < 80 ? (int)p->cur.n : 80, p->cur.s);
    return NULL;
}

static bool closes(const oz_tm_parser *p, const char *const *ends) {
    for (; *ends; ends++)
        if (oz_tm_is_word(p, *ends)) return true;
    return false;
}

static void fail_end(oz_tm_parser *p, const char *const *ends) {
    size_t mark = oz_tm_mark(&p->c);
    for (const char *const *e = ends; *e; e++) oz_tm_printf(&p->c, "%s'%s'", e == ends ? "" : " or ", *e);
    oz_tm_val list = oz_tm_take(&p->c, mark);
    OZ_TM_FAIL(&p->c, "Unexpected end of template: expected %.*s", (int)list.n, list.s);
}

/* Text, prints and statements, until a tag with a word of `ends` (then that is the current token) or, with no ends, the template's end. */
static oz_tm_node *parse_list(oz_tm_parser *p, const char *const *ends) {
    oz_tm_node *head = NULL, **tail = &head;
    while (ok(p)) {
        oz_tm_node *n = NULL;
        if (p->cur.type == OZ_TM_T_EOF) {
            if (*ends) fail_end(p, ends);
            break;
        }
        if (p->cur.type == OZ_TM_T_TEXT) {
            n = oz_tm_node_new(p, OZ_TM_N_TEXT);
            n->val = oz_tm_str(p->cur.s, p->cur.n);
            oz_tm_advance(p);
        } else if (p->cur.type == OZ_TM_T_VAR_BEGIN) {
            oz_tm_advance(p);
            n = oz_tm_node_new(p, OZ_TM_N_OUTPUT);
            n->k[0] = oz_tm_parse_tuple(p, 0, NULL);
            if (p->cur.type != OZ_TM_T_VAR_END) oz_tm_unexpected(p, "'}}'");
            oz_tm_advance(p);
        } else {
            oz_tm_advance(p);
            if (closes(p, ends)) break;
            n = parse_statement(p);
        }
        for (*tail = ok(p) ? n : NULL; *tail; tail = &(*tail)->next) {}
    }
    return head;
}

void oz_tm_parse(oz_tm_parser *p) {
    p->lex = (oz_tm_lexer){.s = p->t->source, .n = p->t->n_source, .line = 1, .line_start = true};
    if (!oz_tm_lex_next(p, &p->ahead)) return;
    oz_tm_advance(p);
    p->t->body = parse_list(p, (const char *const[]){NULL});
    check_unknown(p);
}
