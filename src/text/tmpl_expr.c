/* The parser of expressions: recursive descent over Jinja's levels. From loose to tight:
 *   a if b else c | or | and | not | == != < > in not-in, chained | + - | ~ | * / // % | ** (to the left) | unary | . [] () | filter, is */
#include "text/tmpl_internal.h"
#include <string.h>

static oz_tm_node *parse_postfix(oz_tm_parser *p, oz_tm_node *n);

static bool ok(const oz_tm_parser *p) { return p->c.st == OZ_OK; }

/* Every way down goes through here, so that no source can use up the stack. */
static bool enter(oz_tm_parser *p) {
    if (p->nest >= OZ_TM_MAX_NEST) {
        OZ_TM_FAIL(&p->c, "expressions are nested too deeply: at most %d", OZ_TM_MAX_NEST);
        return false;
    }
    p->nest++;
    return ok(p);
}

static oz_tm_node *wrap(oz_tm_parser *p, oz_tm_node_type type, oz_tm_node *a, oz_tm_node *b) {
    oz_tm_node *n = oz_tm_node_new(p, type);
    n->k[0] = a;
    n->k[1] = b;
    return n;
}

static oz_tm_node *constant(oz_tm_parser *p, oz_tm_val v) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_CONST);
    n->val = v;
    return n;
}

/* ---- literals ---- */

static oz_tm_val number(oz_tm_parser *p) {
    oz_tm_token t = p->cur;
    char *plain = oz_tm_alloc(&p->c, t.n + 1, 1);
    size_t n = 0;
    if (!plain) return oz_tm_none();
    for (size_t i = 0; i < t.n; i++)
        if (t.s[i] != '_') plain[n++] = t.s[i];
    if (t.type == OZ_TM_T_FLOAT) return oz_tm_float(strtod(plain, NULL));
    int base = n > 1 && plain[0] == '0' ? (plain[1] | 32) == 'x' ? 16 : (plain[1] | 32) == 'o' ? 8 : (plain[1] | 32) == 'b' ? 2 : 10 : 10;
    size_t skip = base == 10 ? 0 : 2;
    return oz_tm_big_parse(&p->c, plain + skip, n - skip, base, false);
}

static oz_tm_val strings(oz_tm_parser *p) {
    oz_tm_val v = oz_tm_lex_string(&p->c, p->cur.s + 1, p->cur.n - 2);
    oz_tm_advance(p);
    if (p->cur.type != OZ_TM_T_STRING) return v;
    size_t mark = oz_tm_mark(&p->c);
    oz_tm_put(&p->c, v.s, v.n);
    while (ok(p) && p->cur.type == OZ_TM_T_STRING) {
        v = oz_tm_lex_string(&p->c, p->cur.s + 1, p->cur.n - 2);
        oz_tm_put(&p->c, v.s, v.n);
        oz_tm_advance(p);
    }
    return oz_tm_take(&p->c, mark);
}

static oz_tm_node *parse_items(oz_tm_parser *p, oz_tm_node_type type, const char *end) {
    oz_tm_node *n = oz_tm_node_new(p, type), **tail = &n->k[0];
    oz_tm_advance(p);
    while (ok(p) && !oz_tm_is_op(p, end)) {
        if (n->k[0] && (!oz_tm_expect_op(p, ",") || oz_tm_is_op(p, end))) break;
        *tail = oz_tm_parse_expr(p);
        tail = &(*tail)->next;
        if (type != OZ_TM_N_DICT) continue;
        oz_tm_expect_op(p, ":");
        *tail = oz_tm_parse_expr(p);
        tail = &(*tail)->next;
    }
    oz_tm_expect_op(p, end);
    return n;
}

static oz_tm_node *parse_name(oz_tm_parser *p, bool with_namespace) {
    static const struct {
        const char *word;
        uint8_t kind;
        bool b;
    } WORDS[] = {{"true", OZ_TM_BOOL, true},   {"True", OZ_TM_BOOL, true},  {"false", OZ_TM_BOOL, false},
                 {"False", OZ_TM_BOOL, false}, {"none", OZ_TM_NONE, false}, {"None", OZ_TM_NONE, false}};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        if (!oz_tm_is_word(p, WORDS[i].word)) continue;
        oz_tm_node *n = constant(p, WORDS[i].kind == OZ_TM_BOOL ? oz_tm_bool(WORDS[i].b) : oz_tm_none());
        oz_tm_advance(p);
        return n;
    }
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_NAME);
    static const struct {
        const char *word;
        uint8_t flag;
    } SPECIAL[] = {{"caller", OZ_TM_USES_CALLER}, {"kwargs", OZ_TM_USES_KWARGS}, {"varargs", OZ_TM_USES_VARARGS}};
    for (size_t i = 0; i < 3 && p->macro_flags; i++)
        if (oz_tm_is_word(p, SPECIAL[i].word)) *p->macro_flags |= SPECIAL[i].flag;
    n->name = oz_tm_expect_name(p);
    if (with_namespace && oz_tm_skip_op(p, ".")) {
        n->type = OZ_TM_N_NSREF;
        n->val = oz_tm_str(p->cur.s, p->cur.n);
        oz_tm_expect_name(p);
    }
    return n;
}

oz_tm_node *oz_tm_parse_primary(oz_tm_parser *p, bool with_namespace) {
    oz_tm_node *n;
    switch (p->cur.type) {
    case OZ_TM_T_NAME:
        return parse_name(p, with_namespace);
    case OZ_TM_T_STRING:
        return constant(p, strings(p));
    case OZ_TM_T_INT:
    case OZ_TM_T_FLOAT:
        n = constant(p, number(p));
        oz_tm_advance(p);
        return n;
    default:
        break;
    }
    if (oz_tm_is_op(p, "(")) {
        oz_tm_advance(p);
        n = oz_tm_parse_tuple(p, OZ_TM_IN_PARENS, NULL);
        oz_tm_expect_op(p, ")");
        return n;
    }
    if (oz_tm_is_op(p, "[")) return parse_items(p, OZ_TM_N_LIST, "]");
    if (oz_tm_is_op(p, "{")) return parse_items(p, OZ_TM_N_DICT, "}");
    oz_tm_unexpected(p, NULL);
    return constant(p, oz_tm_none());
}

/* `a` or `a, b, ...`; ends before `end_word`, a closing parenthesis or the end of the tag. */
oz_tm_node *oz_tm_parse_tuple(oz_tm_parser *p, int how, const char *end_word) {
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_TUPLE), **tail = &n->k[0];
    bool comma = false;
    while (ok(p)) {
        if (n->k[0]) oz_tm_advance(p); /* over the comma */
        if (p->cur.type == OZ_TM_T_VAR_END || p->cur.type == OZ_TM_T_BLOCK_END || oz_tm_is_op(p, ")") ||
            (end_word && oz_tm_is_word(p, end_word)))
            break;
        *tail = how & OZ_TM_TARGET    ? oz_tm_parse_primary(p, how & OZ_TM_NAMESPACE)
                : how & OZ_TM_NO_COND ? oz_tm_parse_or(p)
                                      : oz_tm_parse_expr(p);
        tail = &(*tail)->next;
        if (!oz_tm_is_op(p, ",")) break;
        comma = true;
    }
    if (comma) return n;
    if (n->k[0]) return n->k[0];
    if (!(how & OZ_TM_IN_PARENS)) oz_tm_unexpected(p, "an expression");
    return n;
}

/* ---- behind a value: .name [index] (call) | filter, is test ---- */

static oz_tm_node *parse_slice_part(oz_tm_parser *p) {
    if (oz_tm_is_op(p, ":") || oz_tm_is_op(p, "]") || oz_tm_is_op(p, ",")) return constant(p, oz_tm_none());
    return oz_tm_parse_expr(p);
}

static oz_tm_node *parse_subscript(oz_tm_parser *p, oz_tm_node *of) {
    oz_tm_advance(p);
    oz_tm_node *first = parse_slice_part(p), *n = wrap(p, OZ_TM_N_ITEM, of, first);
    if (oz_tm_is_op(p, ":")) {
        n->type = OZ_TM_N_SLICE;
        oz_tm_advance(p);
        oz_tm_node *to = parse_slice_part(p), *step = oz_tm_skip_op(p, ":") ? parse_slice_part(p) : constant(p, oz_tm_none());
        first->next = to;
        to->next = step;
    }
    if (oz_tm_is_op(p, ",")) {
        if (n->type == OZ_TM_N_SLICE) OZ_TM_UNSUPPORTED(&p->c, "a slice in several dimensions is not supported");
        oz_tm_node **tail = &first->next;
        n->k[1] = wrap(p, OZ_TM_N_TUPLE, first, NULL);
        while (ok(p) && oz_tm_skip_op(p, ",") && !oz_tm_is_op(p, "]")) {
            *tail = oz_tm_parse_expr(p);
            tail = &(*tail)->next;
        }
    }
    oz_tm_expect_op(p, "]");
    return n;
}

static oz_tm_node *parse_dot(oz_tm_parser *p, oz_tm_node *of) {
    oz_tm_advance(p);
    oz_tm_node *n = wrap(p, OZ_TM_N_ATTR, of, NULL);
    if (p->cur.type == OZ_TM_T_INT) {
        n->type = OZ_TM_N_ITEM;
        n->k[1] = constant(p, number(p));
        oz_tm_advance(p);
    } else if (p->cur.type == OZ_TM_T_NAME)
        n->name = oz_tm_expect_name(p);
    else
        oz_tm_unexpected(p, "name or number");
    return n;
}

static oz_tm_node *parse_arg(oz_tm_parser *p) {
    bool two = oz_tm_is_op(p, "**");
    if (two || oz_tm_is_op(p, "*")) {
        oz_tm_node *n = oz_tm_node_new(p, two ? OZ_TM_N_STARSTAR : OZ_TM_N_STAR);
        oz_tm_advance(p);
        n->k[0] = oz_tm_parse_expr(p);
        return n;
    }
    if (p->cur.type == OZ_TM_T_NAME && p->ahead.type == OZ_TM_T_OP && strcmp(p->ahead.op, "=") == 0) {
        oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_KWARG);
        n->name = oz_tm_expect_name(p);
        oz_tm_advance(p);
        n->k[0] = oz_tm_parse_expr(p);
        return n;
    }
    return oz_tm_parse_expr(p);
}

/* The order of Python: plain arguments, then *a and name=b, then **c. */
static oz_tm_node *parse_args(oz_tm_parser *p) {
    oz_tm_node *head = NULL, **tail = &head;
    int rank = 0;
    bool star = false;
    oz_tm_expect_op(p, "(");
    while (ok(p) && !oz_tm_is_op(p, ")")) {
        if (head && (!oz_tm_expect_op(p, ",") || oz_tm_is_op(p, ")"))) break;
        oz_tm_node *a = parse_arg(p);
        int r = a->type == OZ_TM_N_STARSTAR ? 2 : a->type == OZ_TM_N_STAR || a->type == OZ_TM_N_KWARG ? 1 : 0;
        if (r < rank || (r == 2 && rank == 2) || (a->type == OZ_TM_N_STAR && star))
            OZ_TM_FAIL(&p->c, "invalid syntax for function call expression");
        rank = r;
        star = star || a->type == OZ_TM_N_STAR;
        *tail = a;
        tail = &a->next;
    }
    oz_tm_expect_op(p, ")");
    return head;
}

static oz_tm_node *parse_call(oz_tm_parser *p, oz_tm_node *of) {
    oz_tm_node *n = wrap(p, OZ_TM_N_CALL, of, NULL);
    n->k[1] = parse_args(p);
    return n;
}

static oz_tm_node *parse_postfix(oz_tm_parser *p, oz_tm_node *n) {
    while (ok(p)) {
        if (oz_tm_is_op(p, "."))
            n = parse_dot(p, n);
        else if (oz_tm_is_op(p, "["))
            n = parse_subscript(p, n);
        else if (oz_tm_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* The name of a filter or a test, which may have dots, and its row. */
static void bind(oz_tm_parser *p, oz_tm_node *n) {
    size_t mark = oz_tm_mark(&p->c);
    do {
        if (oz_tm_mark(&p->c) > mark) oz_tm_put(&p->c, ".", 1);
        const oz_tm_name *name = oz_tm_expect_name(p);
        oz_tm_put(&p->c, name->s, name->n);
    } while (ok(p) && oz_tm_skip_op(p, "."));
    n->val = oz_tm_take(&p->c, mark);
    oz_slice name = {n->val.s, n->val.n};
    n->row = n->type == OZ_TM_N_TEST ? oz_tm_find_row(oz_tm_tests, name) : oz_tm_find_filter(name);
    if (!n->row && !p->unknown) p->unknown = n;
}

oz_tm_node *oz_tm_parse_filters(oz_tm_parser *p, oz_tm_node *of, bool first_bare) {
    while (ok(p) && (first_bare || oz_tm_is_op(p, "|"))) {
        if (!first_bare) oz_tm_advance(p);
        first_bare = false;
        oz_tm_node *n = wrap(p, OZ_TM_N_FILTER, of, NULL);
        bind(p, n);
        if (oz_tm_is_op(p, "(")) n->k[1] = parse_args(p);
        of = n;
    }
    return of;
}

static oz_tm_node *parse_test(oz_tm_parser *p, oz_tm_node *of) {
    oz_tm_advance(p);
    bool negated = oz_tm_skip_word(p, "not");
    oz_tm_node *n = wrap(p, OZ_TM_N_TEST, of, NULL);
    bind(p, n);
    bool value = (p->cur.type >= OZ_TM_T_NAME && p->cur.type <= OZ_TM_T_FLOAT) || oz_tm_is_op(p, "[") || oz_tm_is_op(p, "{");
    if (oz_tm_is_op(p, "("))
        n->k[1] = parse_args(p);
    else if (value && !oz_tm_is_word(p, "else") && !oz_tm_is_word(p, "or") && !oz_tm_is_word(p, "and")) {
        if (oz_tm_is_word(p, "is")) OZ_TM_FAIL(&p->c, "You cannot chain multiple tests with is");
        n->k[1] = parse_postfix(p, oz_tm_parse_primary(p, false));
    }
    return negated ? wrap(p, OZ_TM_N_NOT, n, NULL) : n;
}

static oz_tm_node *parse_filter_expr(oz_tm_parser *p, oz_tm_node *n) {
    while (ok(p)) {
        if (oz_tm_is_op(p, "|"))
            n = oz_tm_parse_filters(p, n, false);
        else if (oz_tm_is_word(p, "is"))
            n = parse_test(p, n);
        else if (oz_tm_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators ---- */

static oz_tm_node *parse_unary(oz_tm_parser *p, bool with_filter) {
    oz_tm_node *n;
    bool minus = oz_tm_is_op(p, "-");
    if ((minus || oz_tm_is_op(p, "+")) && enter(p)) {
        n = oz_tm_node_new(p, minus ? OZ_TM_N_NEG : OZ_TM_N_POS);
        oz_tm_advance(p);
        n->k[0] = parse_unary(p, false);
        p->nest--;
    } else
        n = oz_tm_parse_primary(p, false);
    n = parse_postfix(p, n);
    return with_filter ? parse_filter_expr(p, n) : n;
}

typedef struct level {
    const char *op[5];
    uint8_t code[5];
} level;

/* Left-associative levels, loose to tight; the level of ~ builds one node of any number of parts. */
static oz_tm_node *parse_binary(oz_tm_parser *p, int depth) {
    enum { CONCAT = 1, TIGHTEST = 3 };
    static const level LEVELS[] = {{{"+", "-"}, {OZ_TM_ADD, OZ_TM_SUB}},
                                   {{"~"}, {0}},
                                   {{"*", "/", "//", "%"}, {OZ_TM_MUL, OZ_TM_DIV, OZ_TM_FLOORDIV, OZ_TM_MOD}},
                                   {{"**"}, {OZ_TM_POW}}};
    if (depth > TIGHTEST) return parse_unary(p, true);
    oz_tm_node *n = parse_binary(p, depth + 1), **tail = NULL;
    for (const char *const *op = LEVELS[depth].op; *op && ok(p);) {
        if (!oz_tm_is_op(p, *op)) {
            op++;
            continue;
        }
        oz_tm_node *both = oz_tm_node_new(p, depth == CONCAT ? OZ_TM_N_CONCAT : OZ_TM_N_BINARY), *left = n;
        oz_tm_advance(p);
        oz_tm_node *right = parse_binary(p, depth + 1);
        if (!tail) { /* also every operator but ~: a new node around what is there */
            both->op = LEVELS[depth].code[op - LEVELS[depth].op];
            both->k[0] = left;
            n = both;
        }
        if (depth == CONCAT) {
            if (!tail) tail = &left->next;
            *tail = right;
            tail = &right->next;
        } else
            n->k[1] = right;
        op = LEVELS[depth].op;
    }
    return n;
}

static bool comparison(oz_tm_parser *p, uint8_t *op) {
    static const struct {
        const char *op;
        uint8_t code;
    } OPS[] = {{"==", OZ_TM_EQ}, {"!=", OZ_TM_NE}, {"<", OZ_TM_LT}, {"<=", OZ_TM_LE}, {">", OZ_TM_GT}, {">=", OZ_TM_GE}};
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        *op = OPS[i].code;
        if (oz_tm_skip_op(p, OPS[i].op)) return true;
    }
    *op = OZ_TM_IN;
    if (oz_tm_skip_word(p, "in")) return true;
    *op = OZ_TM_NOT_IN;
    bool not_in = oz_tm_is_word(p, "not") && p->ahead.type == OZ_TM_T_NAME && p->ahead.n == 2 && memcmp(p->ahead.s, "in", 2) == 0;
    if (not_in) oz_tm_advance(p), oz_tm_advance(p);
    return not_in;
}

static oz_tm_node *parse_compare(oz_tm_parser *p) {
    oz_tm_node *n = parse_binary(p, 0), **tail = NULL;
    uint8_t op;
    while (ok(p) && comparison(p, &op)) {
        oz_tm_node *o = oz_tm_node_new(p, OZ_TM_N_OPERAND);
        o->op = op;
        o->k[0] = parse_binary(p, 0);
        if (!tail) {
            n = wrap(p, OZ_TM_N_COMPARE, n, NULL);
            tail = &n->k[1];
        }
        *tail = o;
        tail = &o->next;
    }
    return n;
}

static oz_tm_node *parse_not(oz_tm_parser *p) {
    if (!oz_tm_is_word(p, "not") || !enter(p)) return parse_compare(p);
    oz_tm_node *n = oz_tm_node_new(p, OZ_TM_N_NOT);
    oz_tm_advance(p);
    n->k[0] = parse_not(p);
    p->nest--;
    return n;
}

static oz_tm_node *parse_and(oz_tm_parser *p) {
    oz_tm_node *n = parse_not(p);
    while (ok(p) && oz_tm_skip_word(p, "and")) n = wrap(p, OZ_TM_N_AND, n, parse_not(p));
    return n;
}

oz_tm_node *oz_tm_parse_or(oz_tm_parser *p) {
    oz_tm_node *n = parse_and(p);
    while (ok(p) && oz_tm_skip_word(p, "or")) n = wrap(p, OZ_TM_N_OR, n, parse_and(p));
    return n;
}

oz_tm_node *oz_tm_parse_expr(oz_tm_parser *p) {
    if (!enter(p)) return oz_tm_node_new(p, OZ_TM_N_CONST);
    const oz_tm_node *unknown = p->unknown;
    oz_tm_node *n = oz_tm_parse_or(p);
    while (ok(p) && oz_tm_skip_word(p, "if")) {
        n = wrap(p, OZ_TM_N_COND, n, oz_tm_parse_or(p));
        if (oz_tm_skip_word(p, "else")) n->k[2] = oz_tm_parse_expr(p);
        p->unknown = unknown; /* in a choice an unknown filter is an error only when it is reached */
    }
    p->nest--;
    return n;
}
