/* Inside the chat-template interpreter: tmpl_*.c. Users include text.h.
 *
 * A template is lexed and parsed once to a tree in an arena (tmpl_lex, tmpl_parse, tmpl_expr). A rendering walks the tree (tmpl_exec:
 * statements, tmpl_eval: expressions) with values that live in a second arena, dropped as a whole at the end: no reference counts,
 * strings may share bytes, lists and dicts never change once built (the sandbox forbids it), only namespaces and loops have state.
 * All text, that of {% set %} blocks and of macros too, is written behind the output and cut off there when it becomes a value, so that one
 * limit bounds it. Errors are sticky in oz_tm: functions return a useless value after one, and loops look at `st`.
 * What Python and Jinja name (filters, tests, methods, functions) is a row of a table: name, parameters, function.
 * A rendering is bounded in steps, depth, output and memory (OZ_TM_*): templates and messages come from strangers. */
#ifndef OZ_TEXT_TMPL_H
#define OZ_TEXT_TMPL_H
#include "base/mem.h"
#include "text/text.h"

enum {
    OZ_TM_MAX_SOURCE = 1 << 20,   /* bytes of a template */
    OZ_TM_MAX_NEST = 100,         /* brackets and blocks in each other, in the source */
    OZ_TM_MAX_DEPTH = 500,        /* evaluations and statements in each other, at run time; also values in values */
    OZ_TM_MAX_STEPS = 4000000,    /* about one for each node visited and each 64 bytes or 4 items handled */
    OZ_TM_MAX_OUTPUT = 16 << 20,  /* bytes of text */
    OZ_TM_MAX_MEMORY = 64 << 20,  /* bytes of values */
    OZ_TM_MAX_RANGE = 100000,     /* length of a range, as in Jinja's sandbox */
    OZ_TM_MAX_DIGITS = 4300       /* of an integer, as in Python */
};

/* ---- values (tmpl_value.c) ---- */
typedef enum oz_tm_kind {
    OZ_TM_ABSENT, /* an argument or an attribute that is not there; never seen by a template */
    OZ_TM_UNDEF, OZ_TM_NONE, OZ_TM_BOOL, OZ_TM_INT, OZ_TM_BIG, OZ_TM_FLOAT, OZ_TM_STR, OZ_TM_SEQ, OZ_TM_DICT, OZ_TM_GEN, OZ_TM_NS,
    OZ_TM_FUNC, OZ_TM_METHOD, OZ_TM_MACRO, OZ_TM_LOOP, OZ_TM_CYCLER, OZ_TM_JOINER
} oz_tm_kind;

enum { OZ_TM_PLAIN, OZ_TM_MARKUP };                                              /* flavours of a string: Markup is escaped HTML */
enum { OZ_TM_LIST, OZ_TM_TUPLE, OZ_TM_GROUP, OZ_TM_RANGE, OZ_TM_KEYS, OZ_TM_VALUES, OZ_TM_ITEMS }; /* flavours of a sequence */
enum { OZ_TM_BY_NAME, OZ_TM_BY_HINT, OZ_TM_BY_ATTR, OZ_TM_BY_ELEMENT, OZ_TM_BY_UNSAFE };           /* how a value is undefined */

typedef struct oz_tm_big oz_tm_big;
typedef struct oz_tm_seq oz_tm_seq;
typedef struct oz_tm_dict oz_tm_dict;
typedef struct oz_tm_gen oz_tm_gen;
typedef struct oz_tm_bound oz_tm_bound;
typedef struct oz_tm_macro oz_tm_macro;
typedef struct oz_tm_loop oz_tm_loop;
typedef struct oz_tm_cycler oz_tm_cycler;
typedef struct oz_tm_row oz_tm_row;
typedef struct oz_tm_node oz_tm_node;
typedef struct oz_tm oz_tm;

typedef struct oz_tm_val {
    uint8_t kind, flavour;
    uint8_t owner, owner_flavour; /* undefined by attribute: of what */
    size_t n;                     /* bytes of s */
    union {
        int64_t i; /* a bool too */
        double f;
        const char *s; /* a string; of undefined the name or the hint. Not NUL-terminated */
        const oz_tm_big *big;
        const oz_tm_seq *seq;
        oz_tm_dict *dict; /* also a namespace's */
        oz_tm_gen *gen;
        const oz_tm_row *row; /* a function */
        const oz_tm_bound *bound;
        oz_tm_macro *macro;
        oz_tm_loop *loop;
        oz_tm_cycler *cycler; /* also a joiner's */
    };
} oz_tm_val;

struct oz_tm_seq { size_t n, cap; oz_tm_val *v; int64_t start, step; /* a range: v is NULL */ };
typedef struct oz_tm_entry { oz_tm_val key, val; uint64_t hash; } oz_tm_entry;
struct oz_tm_dict { size_t n, cap; oz_tm_entry *e; uint32_t *index; size_t n_index; /* open addressing, from 9 entries on */ };
struct oz_tm_bound { oz_tm_val self; const oz_tm_row *row; };
struct oz_tm_cycler { oz_tm_val *v; size_t n, pos; };

/* Walks anything that can be iterated. Undefined is empty, a string gives characters, a dict keys. */
typedef struct oz_tm_iter { oz_tm_val of; size_t i; } oz_tm_iter;
/* A generator: what map, select, unique ... return. Each item is made when it is asked for, and only once. */
typedef bool oz_tm_next(oz_tm *c, oz_tm_gen *g, oz_tm_val *out);

typedef struct oz_tm_kw { oz_slice name; oz_tm_val val; } oz_tm_kw;
typedef struct oz_tm_args { oz_tm_val *pos; size_t n; oz_tm_kw *kw; size_t n_kw; } oz_tm_args;
struct oz_tm_gen {
    oz_tm_next *next;
    oz_tm_iter src;
    const oz_tm_row *row; /* and the rest is what `next` makes of it */
    oz_tm_args args;
    oz_tm_val path, other;
    int64_t count;
    bool flag;
};

/* `params` names the parameters, "old new count?", optional ones with "?": they come in a->pos in that order, ABSENT where not given.
 * "*": the arguments come as they were written. */
typedef oz_tm_val oz_tm_fn(oz_tm *c, oz_tm_val self, const oz_tm_args *a);
struct oz_tm_row { const char *name, *params; oz_tm_fn *fn; };

oz_tm_val oz_tm_str(const char *s, size_t n);
oz_tm_val oz_tm_cstr(const char *s);
oz_tm_val oz_tm_int(int64_t i);
oz_tm_val oz_tm_float(double f);
oz_tm_val oz_tm_bool(bool b);
oz_tm_val oz_tm_none(void);
oz_tm_val oz_tm_undef(int how, const char *s, size_t n);
oz_tm_val oz_tm_dup(oz_tm *c, const char *s, size_t n);          /* a string with bytes of its own */
oz_tm_seq *oz_tm_seq_new(oz_tm *c, size_t cap);                  /* NULL after an error */
void oz_tm_seq_push(oz_tm *c, oz_tm_seq *s, oz_tm_val v);
oz_tm_val oz_tm_seq_at(const oz_tm_seq *s, size_t i);
oz_tm_val oz_tm_seq_val(const oz_tm_seq *s, int flavour);
oz_tm_val oz_tm_tuple2(oz_tm *c, oz_tm_val a, oz_tm_val b);
oz_tm_dict *oz_tm_dict_new(oz_tm *c, size_t cap);
void oz_tm_dict_set(oz_tm *c, oz_tm_dict *d, oz_tm_val key, oz_tm_val val);
bool oz_tm_dict_get(oz_tm *c, const oz_tm_dict *d, oz_tm_val key, oz_tm_val *out); /* an unhashable key is an error */
bool oz_tm_dict_has(const oz_tm_dict *d, const char *key, oz_tm_val *out);
oz_tm_val oz_tm_dict_val(oz_tm_dict *d);
oz_tm_gen *oz_tm_gen_new(oz_tm *c, oz_tm_next *next, oz_tm_val src); /* src must be iterable */
oz_tm_val oz_tm_gen_val(oz_tm_gen *g);
bool oz_tm_iterable(oz_tm_val v);
bool oz_tm_iter_begin(oz_tm *c, oz_tm_iter *it, oz_tm_val v); /* false with an error: not iterable */
bool oz_tm_iter_next(oz_tm *c, oz_tm_iter *it, oz_tm_val *out);
oz_tm_val oz_tm_to_list(oz_tm *c, oz_tm_val v);               /* always of flavour LIST */
const char *oz_tm_type(oz_tm_val v);                          /* Python's name of the type */
bool oz_tm_is_num(oz_tm_val v);                               /* bool, int or float */
bool oz_tm_is_str(oz_tm_val v, const char *s);

/* ---- context of a rendering (tmpl_value.c) ---- */
typedef struct oz_tm_name { const char *s; uint32_t n, id; } oz_tm_name;
typedef struct oz_tm_var { const oz_tm_name *name; oz_tm_val val; } oz_tm_var;
typedef struct oz_tm_frame {
    struct oz_tm_frame *up;
    oz_tm_var *v;
    uint32_t n, cap;
    bool captured; /* a macro was made here: not reused */
} oz_tm_frame;
struct oz_tm {
    const oz_template *t;
    oz_arena *arena;
    oz_buf *out;
    size_t out_base; /* where this rendering began */
    int64_t steps, now;
    int depth;
    uint32_t line;
    enum { OZ_TM_FLOW_ON, OZ_TM_FLOW_BREAK, OZ_TM_FLOW_CONTINUE } flow;
    oz_tm_frame *frame, *spare; /* spare: frames for reuse */
    oz_tm_val block;            /* the text that the filter of a block takes */
    oz_tm_val *context; /* by the name's id: arguments and global functions */
    struct { char *end; size_t left; } tail[8]; /* room behind strings that + made: text that grows in a loop is not copied each time */
    oz_status st;
    oz_err *err;
};

oz_tm_val oz_tm_fail_at(oz_tm *c, oz_status code, const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define OZ_TM_FAIL(c, ...) oz_tm_fail_at((c), OZ_E_FORMAT, __FILE__, __LINE__, __VA_ARGS__)
#define OZ_TM_UNSUPPORTED(c, ...) oz_tm_fail_at((c), OZ_E_UNSUPPORTED, __FILE__, __LINE__, __VA_ARGS__)
oz_tm_val oz_tm_fail_undef(oz_tm *c, oz_tm_val v); /* what Jinja says of an operation on it */
bool oz_tm_charge(oz_tm *c, size_t n_steps);       /* false with an error when the steps are used up */
void *oz_tm_alloc(oz_tm *c, size_t n, size_t size); /* zeroed; NULL after an error */
bool oz_tm_enter(oz_tm *c);                        /* one deeper, false with an error; then no oz_tm_leave */
void oz_tm_leave(oz_tm *c);
/* Writing: behind the output. A value is made of all that was written since `mark`. */
void oz_tm_put(oz_tm *c, const char *s, size_t n);
void oz_tm_puts(oz_tm *c, const char *s);
void oz_tm_put_cp(oz_tm *c, uint32_t cp);
void oz_tm_put_repeat(oz_tm *c, const char *s, size_t n, int64_t times);
void oz_tm_printf(oz_tm *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
size_t oz_tm_mark(const oz_tm *c);
oz_tm_val oz_tm_take(oz_tm *c, size_t mark);

/* ---- the tree (tmpl_parse.c, tmpl_expr.c); children k[], lists linked by `next` ---- */
typedef enum oz_tm_node_type {
    /* expressions */
    OZ_TM_N_CONST, OZ_TM_N_NAME, OZ_TM_N_LIST, OZ_TM_N_TUPLE, OZ_TM_N_DICT /* k0: items; keys and values take turns */,
    OZ_TM_N_AND, OZ_TM_N_OR, OZ_TM_N_NOT, OZ_TM_N_NEG, OZ_TM_N_POS, OZ_TM_N_BINARY /* op */, OZ_TM_N_CONCAT /* k0: items */,
    OZ_TM_N_COMPARE /* k0, k1: list of OPERAND */, OZ_TM_N_OPERAND /* op, k0 */, OZ_TM_N_COND /* k0 if k1 else k2 */,
    OZ_TM_N_ATTR /* k0.name */, OZ_TM_N_ITEM /* k0[k1] */, OZ_TM_N_SLICE /* k0[k1], k1: three */, OZ_TM_N_CALL /* k0(k1) */,
    OZ_TM_N_FILTER /* k0 | row(k1); k0 NULL: of a block's text */, OZ_TM_N_TEST,
    OZ_TM_N_KWARG /* name=k0 */, OZ_TM_N_STAR, OZ_TM_N_STARSTAR, OZ_TM_N_NSREF /* target: name.val */,
    /* statements */
    OZ_TM_N_TEXT, OZ_TM_N_OUTPUT, OZ_TM_N_IF /* k0: test, k1: body, k2: else */,
    OZ_TM_N_FOR /* k0: target, k1: in, k2: body, k3: else, k4: if */,
    OZ_TM_N_SET /* k0 = k1 */, OZ_TM_N_SETBLOCK /* k0, k1: filter, k2: body */, OZ_TM_N_MACRO /* k0: params, k1: body */,
    OZ_TM_N_PARAM /* name, k0: default */, OZ_TM_N_CALLBLOCK /* k0: call, k1: macro */, OZ_TM_N_FILTERBLOCK /* k0: filter, k1: body */,
    OZ_TM_N_WITH /* k0: targets and values take turns, k1: body */, OZ_TM_N_SCOPE /* k0: body */, OZ_TM_N_BREAK, OZ_TM_N_CONTINUE,
    OZ_TM_N_COUNT
} oz_tm_node_type;
enum { OZ_TM_USES_CALLER = 1, OZ_TM_USES_KWARGS = 2, OZ_TM_USES_VARARGS = 4, OZ_TM_RECURSIVE = 8 }; /* flags of macros and loops */
typedef enum oz_tm_op {
    OZ_TM_ADD, OZ_TM_SUB, OZ_TM_MUL, OZ_TM_DIV, OZ_TM_FLOORDIV, OZ_TM_MOD, OZ_TM_POW,
    OZ_TM_EQ, OZ_TM_NE, OZ_TM_LT, OZ_TM_LE, OZ_TM_GT, OZ_TM_GE, OZ_TM_IN, OZ_TM_NOT_IN
} oz_tm_op;
struct oz_tm_node {
    uint8_t type, op, flags;
    uint32_t line;
    oz_tm_node *next, *k[5];
    const oz_tm_name *name;
    const oz_tm_row *row; /* of a filter or a test; NULL: there is none of that name, an error when it is reached */
    oz_tm_val val;
};

enum { OZ_TM_NAME_LOOP, OZ_TM_NAME_CALLER, OZ_TM_NAME_KWARGS, OZ_TM_NAME_VARARGS }; /* their ids in every template */
struct oz_template {
    oz_arena *arena;
    oz_tm_name **names;
    size_t n_names, cap_names;
    oz_tm_node *body;
    const char *source; /* line ends as the lexer sees them */
    size_t n_source;
};

/* ---- lexer (tmpl_lex.c) ---- */
typedef enum oz_tm_tok {
    OZ_TM_T_EOF, OZ_TM_T_TEXT, OZ_TM_T_VAR_BEGIN, OZ_TM_T_VAR_END, OZ_TM_T_BLOCK_BEGIN, OZ_TM_T_BLOCK_END,
    OZ_TM_T_NAME, OZ_TM_T_STRING, OZ_TM_T_INT, OZ_TM_T_FLOAT, OZ_TM_T_OP
} oz_tm_tok;
typedef struct oz_tm_token { uint8_t type; char op[3]; uint32_t line; const char *s; size_t n; } oz_tm_token; /* s: the source's text */
typedef struct oz_tm_lexer {
    const char *s;
    size_t n, i;
    uint32_t line;
    uint8_t state; /* text, block, variable */
    bool line_start;
    size_t n_open;
    char open[OZ_TM_MAX_NEST]; /* the brackets that wait for their ends */
} oz_tm_lexer;

typedef struct oz_tm_parser {
    oz_template *t;
    oz_tm c; /* carries the error and, for constants, the arena */
    oz_tm_lexer lex;
    oz_tm_token cur, ahead;
    struct oz_map *names;
    int nest, loops;       /* how deep; loops around, 0 again in a macro */
    uint8_t *macro_flags;  /* of the macro that is being read, or NULL */
    const oz_tm_node *unknown; /* first filter or test without a row that nothing excuses yet */
} oz_tm_parser;

void oz_tm_lex_normalize(oz_buf *out, const char *s, size_t n); /* line ends to LF, one at the end dropped */
bool oz_tm_lex_next(oz_tm_parser *p, oz_tm_token *out);         /* false with an error */
oz_tm_val oz_tm_lex_string(oz_tm *c, const char *s, size_t n);  /* the value of a literal, quotes stripped */
/* The parser's hands; after an error all of them do nothing. */
void oz_tm_advance(oz_tm_parser *p);
bool oz_tm_is_op(const oz_tm_parser *p, const char *op);
bool oz_tm_is_word(const oz_tm_parser *p, const char *word);
bool oz_tm_skip_op(oz_tm_parser *p, const char *op);
bool oz_tm_skip_word(oz_tm_parser *p, const char *word);
bool oz_tm_expect_op(oz_tm_parser *p, const char *op);
const oz_tm_name *oz_tm_expect_name(oz_tm_parser *p);
const oz_tm_name *oz_tm_intern(oz_tm_parser *p, const char *s, size_t n);
oz_tm_val oz_tm_unexpected(oz_tm_parser *p, const char *expected);
oz_tm_node *oz_tm_node_new(oz_tm_parser *p, oz_tm_node_type type); /* never NULL; with `line` of the current token */
oz_tm_node *oz_tm_parse_expr(oz_tm_parser *p);
oz_tm_node *oz_tm_parse_or(oz_tm_parser *p);                  /* without "a if b else c" */
oz_tm_node *oz_tm_parse_primary(oz_tm_parser *p, bool with_namespace);
enum { OZ_TM_IN_PARENS = 1, OZ_TM_NO_COND = 2, OZ_TM_TARGET = 4, OZ_TM_NAMESPACE = 8 };
oz_tm_node *oz_tm_parse_tuple(oz_tm_parser *p, int how, const char *end_word);
oz_tm_node *oz_tm_parse_filters(oz_tm_parser *p, oz_tm_node *of, bool first_bare);
void oz_tm_parse(oz_tm_parser *p); /* the whole template, to t->body */

/* ---- text (tmpl_chars.c) ---- */
bool oz_tm_is_space(uint32_t cp); /* str.isspace */
bool oz_tm_is_word_cp(uint32_t cp); /* \w */
bool oz_tm_is_printable(uint32_t cp);
size_t oz_tm_n_chars(const char *s, size_t n);
size_t oz_tm_char_at(const char *s, size_t n, size_t i); /* byte offset of character i; n if there are fewer */
size_t oz_tm_char_len(const char *s, size_t n);          /* bytes of the first character, n > 0 */
oz_slice oz_tm_strip(oz_slice s, const oz_slice *chars, bool left, bool right); /* chars NULL: white space */
size_t oz_tm_find(const char *s, size_t n, const char *what, size_t n_what);    /* SIZE_MAX: not there */
size_t oz_tm_rfind(oz_tm *c, const char *s, size_t n, const char *what, size_t n_what);
enum { OZ_TM_UPPER, OZ_TM_LOWER, OZ_TM_TITLE, OZ_TM_FOLD };
void oz_tm_put_case(oz_tm *c, const char *s, size_t n, int how); /* every character; TITLE too */
void oz_tm_put_escaped(oz_tm *c, oz_slice s);                     /* HTML */
extern const oz_tm_row oz_tm_str_methods[];                       /* tmpl_method.c */

/* ---- what Python does with values ---- */
bool oz_tm_truth(oz_tm_val v);                               /* tmpl_compare.c */
bool oz_tm_equal(oz_tm *c, oz_tm_val a, oz_tm_val b);
bool oz_tm_less(oz_tm *c, oz_tm_val a, oz_tm_val b, oz_tm_op op); /* op: LT, LE, GT or GE */
bool oz_tm_contains(oz_tm *c, oz_tm_val item, oz_tm_val in);
bool oz_tm_compare(oz_tm *c, oz_tm_val a, oz_tm_val b, oz_tm_op op); /* every comparison */
uint64_t oz_tm_hash(oz_tm *c, oz_tm_val v);                  /* an error for what cannot be a key */
void oz_tm_sort(oz_tm *c, oz_tm_val *keys, oz_tm_val *items, size_t n, bool reverse); /* stable, by keys */
void oz_tm_print(oz_tm *c, oz_tm_val v);                     /* tmpl_print.c: str(v) */
void oz_tm_repr(oz_tm *c, oz_tm_val v);
oz_slice oz_tm_text(oz_tm *c, oz_tm_val v);                  /* str(v) as bytes */
size_t oz_tm_format_float(char out[40], double f);           /* repr */
typedef struct oz_tm_json { int indent; oz_slice unit, item_sep, key_sep; bool ascii, sorted, pretty; } oz_tm_json;
void oz_tm_put_json(oz_tm *c, oz_tm_val v, const oz_tm_json *how, int level); /* tmpl_json.c */
oz_tm_val oz_tm_read_json(oz_tm *c, const char *s, size_t n);
oz_tm_val oz_tm_from_json(oz_tm *c, const json_t *j);
oz_tm_val oz_tm_binary(oz_tm *c, oz_tm_op op, oz_tm_val a, oz_tm_val b); /* tmpl_arith.c */
oz_tm_val oz_tm_negate(oz_tm *c, oz_tm_val v, bool minus);
oz_tm_val oz_tm_concat(oz_tm *c, oz_tm_val a, oz_tm_val b); /* of two strings */
double oz_tm_to_double(oz_tm *c, oz_tm_val v);               /* of a number */
bool oz_tm_index(oz_tm *c, oz_tm_val v, int64_t *out);       /* int or bool, clipped to int64; else an error */
oz_tm_val oz_tm_percent(oz_tm *c, oz_slice fmt, oz_tm_val args);                 /* tmpl_format.c: '%s' % args */
oz_tm_val oz_tm_format(oz_tm *c, oz_slice fmt, const oz_tm_args *a);             /* '{}'.format() */
oz_tm_val oz_tm_big_binary(oz_tm *c, oz_tm_op op, oz_tm_val a, oz_tm_val b);     /* tmpl_int.c: integers of any size */
int oz_tm_big_compare(oz_tm *c, oz_tm_val a, oz_tm_val b);
oz_tm_val oz_tm_big_parse(oz_tm *c, const char *digits, size_t n, int base, bool negative);
oz_tm_val oz_tm_big_from_double(oz_tm *c, double f);
void oz_tm_big_print(oz_tm *c, oz_tm_val v, int base);       /* INT too; lower-case digits */
double oz_tm_big_to_double(oz_tm *c, oz_tm_val v);
bool oz_tm_big_negative(oz_tm_val v);
bool oz_tm_big_odd(oz_tm_val v);

/* ---- evaluation ---- */
oz_tm_val oz_tm_eval(oz_tm *c, const oz_tm_node *n);         /* tmpl_eval.c */
oz_tm_val oz_tm_call(oz_tm *c, oz_tm_val f, const oz_tm_args *a);
oz_tm_val oz_tm_call_row(oz_tm *c, const oz_tm_row *row, oz_tm_val self, const oz_tm_args *a);
oz_tm_val oz_tm_eval_call(oz_tm *c, const oz_tm_node *n, const oz_tm_val *caller); /* of a CALL, with a call block's body or NULL */
oz_tm_val oz_tm_lookup(oz_tm *c, const oz_tm_name *name); /* undefined if there is none */
void oz_tm_exec(oz_tm *c, const oz_tm_node *list);           /* tmpl_exec.c */
oz_tm_val oz_tm_call_macro(oz_tm *c, oz_tm_macro *m, const oz_tm_args *a);
oz_tm_val oz_tm_call_loop(oz_tm *c, oz_tm_loop *l, const oz_tm_args *a);
oz_tm_val oz_tm_getattr(oz_tm *c, oz_tm_val v, oz_slice name); /* tmpl_attr.c: v.name */
oz_tm_val oz_tm_getitem(oz_tm *c, oz_tm_val v, oz_tm_val key); /* v[key] */
oz_tm_val oz_tm_own_attr(oz_tm *c, oz_tm_val v, oz_slice name); /* the attribute alone; ABSENT if there is none */
oz_tm_val oz_tm_slice(oz_tm *c, oz_tm_val v, const oz_tm_val part[3]);
oz_tm_val oz_tm_get_path(oz_tm *c, oz_tm_val v, oz_tm_val path, oz_tm_val fallback); /* "a.b.0" */
oz_tm_val oz_tm_macro_name(const oz_tm_macro *m);
oz_tm_val oz_tm_loop_attr(oz_tm *c, oz_tm_loop *l, oz_slice name);
size_t oz_tm_len(oz_tm *c, oz_tm_val v);                     /* len(v), or an error */

extern const oz_tm_row oz_tm_filters[], oz_tm_filters_seq[], oz_tm_tests[], oz_tm_globals[]; /* each ended by a row without name */
const oz_tm_row *oz_tm_find_row(const oz_tm_row *table, oz_slice name);
const oz_tm_row *oz_tm_find_filter(oz_slice name);
oz_tm_val oz_tm_global(oz_slice name);                       /* ABSENT if there is none */

#endif
