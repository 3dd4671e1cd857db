/* Tests: `v is name(arg)`. */
#include "text/tmpl_internal.h"
#include <string.h>
#include <utf8proc.h>

#define YES(cond) oz_tm_bool(cond)

static oz_tm_val t_defined(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind != OZ_TM_UNDEF); }
static oz_tm_val t_undefined(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_UNDEF); }
static oz_tm_val t_none(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_NONE); }
static oz_tm_val t_boolean(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_BOOL); }
static oz_tm_val t_true(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_BOOL && v.i); }
static oz_tm_val t_false(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_BOOL && !v.i); }
static oz_tm_val t_integer(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_INT || v.kind == OZ_TM_BIG); }
static oz_tm_val t_float(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_FLOAT); }
static oz_tm_val t_number(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_is_num(v)); }
static oz_tm_val t_string(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_STR); }
static oz_tm_val t_mapping(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_DICT); }
static oz_tm_val t_iterable(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_iterable(v)); }
static oz_tm_val t_escaped(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(v.kind == OZ_TM_STR && v.flavour == OZ_TM_MARKUP); }
static oz_tm_val t_in(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_contains(c, v, a->pos[0])); }

static oz_tm_val t_sequence(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    return YES(v.kind == OZ_TM_UNDEF || v.kind == OZ_TM_STR || v.kind == OZ_TM_DICT || (v.kind == OZ_TM_SEQ && v.flavour <= OZ_TM_RANGE));
}

static oz_tm_val t_callable(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    return YES(v.kind == OZ_TM_UNDEF || (v.kind >= OZ_TM_FUNC && v.kind <= OZ_TM_LOOP) || v.kind == OZ_TM_JOINER);
}

static oz_tm_val remainder_is(oz_tm *c, oz_tm_val v, oz_tm_val by, int64_t rest) {
    oz_tm_val r = oz_tm_binary(c, OZ_TM_MOD, v, by);
    return YES(c->st == OZ_OK && oz_tm_equal(c, r, oz_tm_int(rest)));
}

static oz_tm_val t_odd(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return remainder_is(c, v, oz_tm_int(2), 1); }
static oz_tm_val t_even(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return remainder_is(c, v, oz_tm_int(2), 0); }
static oz_tm_val t_divisibleby(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return remainder_is(c, v, a->pos[0], 0); }

static oz_tm_val t_lower(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    return oz_tm_call_row(c, oz_tm_find_row(oz_tm_str_methods, oz_slice_view("islower")), oz_tm_str(s.p, s.n), &(oz_tm_args){0});
}

static oz_tm_val t_upper(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    return oz_tm_call_row(c, oz_tm_find_row(oz_tm_str_methods, oz_slice_view("isupper")), oz_tm_str(s.p, s.n), &(oz_tm_args){0});
}

static oz_tm_val t_filter(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    return YES(v.kind == OZ_TM_STR && oz_tm_find_filter((oz_slice){v.s, v.n}));
}
static oz_tm_val t_test(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    return YES(v.kind == OZ_TM_STR && oz_tm_find_row(oz_tm_tests, (oz_slice){v.s, v.n}));
}

/* The same object. Equal constants are one object in Python, mostly; where that is not sure there is no answer. */
static oz_tm_val t_sameas(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val b = a->pos[0];
    bool small = (v.kind == OZ_TM_INT || v.kind == OZ_TM_BOOL) && v.kind == b.kind;
    if (v.kind != b.kind) return YES(false);
    if (v.kind == OZ_TM_NONE || small) return YES(v.kind == OZ_TM_NONE || v.i == b.i);
    if (v.kind == OZ_TM_SEQ || v.kind >= OZ_TM_DICT) return YES(v.i == b.i);
    return oz_tm_equal(c, v, b) ? OZ_TM_UNSUPPORTED(c, "'sameas' of equal values of type '%s' is not supported", oz_tm_type(v))
                                : YES(false);
}

static oz_tm_val t_eq(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_equal(c, v, a->pos[0])); }
static oz_tm_val t_ne(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(!oz_tm_equal(c, v, a->pos[0])); }
static oz_tm_val t_lt(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_less(c, v, a->pos[0], OZ_TM_LT)); }
static oz_tm_val t_le(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_less(c, v, a->pos[0], OZ_TM_LE)); }
static oz_tm_val t_gt(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_less(c, v, a->pos[0], OZ_TM_GT)); }
static oz_tm_val t_ge(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return YES(oz_tm_less(c, v, a->pos[0], OZ_TM_GE)); }

const oz_tm_row oz_tm_tests[] = {
    {"!=", "other", t_ne},
    {"<", "other", t_lt},
    {"<=", "other", t_le},
    {"==", "other", t_eq},
    {">", "other", t_gt},
    {">=", "other", t_ge},
    {"boolean", "", t_boolean},
    {"callable", "", t_callable},
    {"defined", "", t_defined},
    {"divisibleby", "num", t_divisibleby},
    {"eq", "other", t_eq},
    {"equalto", "other", t_eq},
    {"escaped", "", t_escaped},
    {"even", "", t_even},
    {"false", "", t_false},
    {"filter", "", t_filter},
    {"float", "", t_float},
    {"ge", "other", t_ge},
    {"greaterthan", "other", t_gt},
    {"gt", "other", t_gt},
    {"in", "seq", t_in},
    {"integer", "", t_integer},
    {"iterable", "", t_iterable},
    {"le", "other", t_le},
    {"lessthan", "other", t_lt},
    {"lower", "", t_lower},
    {"lt", "other", t_lt},
    {"mapping", "", t_mapping},
    {"ne", "other", t_ne},
    {"none", "", t_none},
    {"number", "", t_number},
    {"odd", "", t_odd},
    {"sameas", "other", t_sameas},
    {"sequence", "", t_sequence},
    {"string", "", t_string},
    {"test", "", t_test},
    {"true", "", t_true},
    {"undefined", "", t_undefined},
    {"upper", "", t_upper},
    {0},
};
