/* + - * / // % ** as Python has them. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>

static const char *op_name(oz_tm_op op) {
    static const char *const NAMES[] = {[OZ_TM_ADD] = "+",       [OZ_TM_SUB] = "-", [OZ_TM_MUL] = "*",          [OZ_TM_DIV] = "/",
                                        [OZ_TM_FLOORDIV] = "//", [OZ_TM_MOD] = "%", [OZ_TM_POW] = "** or pow()"};
    return NAMES[op];
}

static oz_tm_val refuse(oz_tm *c, oz_tm_op op, oz_tm_val a, oz_tm_val b) {
    return OZ_TM_FAIL(c, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op), oz_tm_type(a), oz_tm_type(b));
}

bool oz_tm_index(oz_tm *c, oz_tm_val v, int64_t *out) {
    if (v.kind == OZ_TM_INT || v.kind == OZ_TM_BOOL)
        *out = v.i;
    else if (v.kind == OZ_TM_BIG)
        *out = oz_tm_big_negative(v) ? -INT64_MAX : INT64_MAX;
    else
        OZ_TM_FAIL(c, "'%s' object cannot be interpreted as an integer", oz_tm_type(v));
    return c->st == OZ_OK;
}

double oz_tm_to_double(oz_tm *c, oz_tm_val v) {
    if (v.kind == OZ_TM_FLOAT) return v.f;
    double f = oz_tm_big_to_double(c, v);
    if (isinf(f)) OZ_TM_FAIL(c, "int too large to convert to float");
    return f;
}

/* ---- numbers ---- */

static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m == 0) return copysign(0, b);
    return (b < 0) != (m < 0) ? m + b : m;
}

static double float_floordiv(double a, double b) {
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) q -= 1;
    if (q == 0) return copysign(0, a / b);
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1 : whole;
}

static oz_tm_val float_pow(oz_tm *c, double a, double b) {
    if (a == 0 && b < 0) return OZ_TM_FAIL(c, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return OZ_TM_UNSUPPORTED(c, "a power that is a complex number is not supported");
    double r = pow(a, b);
    if (isinf(r) && isfinite(a) && isfinite(b)) return OZ_TM_FAIL(c, "(34, 'Numerical result out of range')");
    return oz_tm_float(r);
}

static oz_tm_val floats(oz_tm *c, oz_tm_op op, double a, double b) {
    if (b == 0 && (op == OZ_TM_DIV || op == OZ_TM_FLOORDIV || op == OZ_TM_MOD))
        return OZ_TM_FAIL(c, op == OZ_TM_DIV   ? "float division by zero"
                             : op == OZ_TM_MOD ? "float modulo by zero"
                                               : "float floor division by zero");
    switch (op) {
    case OZ_TM_ADD:
        return oz_tm_float(a + b);
    case OZ_TM_SUB:
        return oz_tm_float(a - b);
    case OZ_TM_MUL:
        return oz_tm_float(a * b);
    case OZ_TM_DIV:
        return oz_tm_float(a / b);
    case OZ_TM_FLOORDIV:
        return oz_tm_float(float_floordiv(a, b));
    case OZ_TM_MOD:
        return oz_tm_float(float_mod(a, b));
    default:
        return float_pow(c, a, b);
    }
}

static oz_tm_val numbers(oz_tm *c, oz_tm_op op, oz_tm_val a, oz_tm_val b) {
    bool ints = a.kind != OZ_TM_FLOAT && b.kind != OZ_TM_FLOAT, power = op == OZ_TM_POW && ints && !oz_tm_big_negative(b);
    bool zero = b.kind != OZ_TM_BIG && b.kind != OZ_TM_FLOAT && b.i == 0;
    if (ints && zero && (op == OZ_TM_DIV || op == OZ_TM_FLOORDIV || op == OZ_TM_MOD))
        return OZ_TM_FAIL(c, op == OZ_TM_DIV ? "division by zero" : "integer division or modulo by zero");
    if (ints && op != OZ_TM_DIV && (op != OZ_TM_POW || power)) {
        if (a.kind == OZ_TM_BOOL) a.kind = OZ_TM_INT;
        if (b.kind == OZ_TM_BOOL) b.kind = OZ_TM_INT;
        return oz_tm_big_binary(c, op, a, b);
    }
    double x = oz_tm_to_double(c, a), y = oz_tm_to_double(c, b);
    return c->st == OZ_OK ? floats(c, op, x, y) : oz_tm_none();
}

oz_tm_val oz_tm_negate(oz_tm *c, oz_tm_val v, bool minus) {
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (!oz_tm_is_num(v)) return OZ_TM_FAIL(c, "bad operand type for unary %s: '%s'", minus ? "-" : "+", oz_tm_type(v));
    if (v.kind == OZ_TM_FLOAT) return oz_tm_float(minus ? -v.f : v.f);
    return oz_tm_big_binary(c, minus ? OZ_TM_SUB : OZ_TM_ADD, oz_tm_int(0), v);
}

/* ---- strings and sequences ---- */

oz_tm_val oz_tm_concat(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    enum { N_TAILS = sizeof c->tail / sizeof *c->tail };
    size_t n = a.n + b.n;
    int slot = 0;
    if (b.n == 0 || !oz_tm_charge(c, b.n / 64)) return a;
    for (int i = 0; i < N_TAILS; i++) {
        if (a.n > 0 && c->tail[i].end == a.s + a.n && c->tail[i].left >= b.n) {
            memcpy(c->tail[i].end, b.s, b.n);
            c->tail[i].end += b.n;
            c->tail[i].left -= b.n;
            return oz_tm_str(a.s, n);
        }
        if (c->tail[i].left < c->tail[slot].left) slot = i;
    }
    char *p = oz_tm_alloc(c, n > 32 ? 2 * n : 64, 1);
    if (!p) return oz_tm_str("", 0);
    if (a.n) memcpy(p, a.s, a.n);
    memcpy(p + a.n, b.s, b.n);
    c->tail[slot].end = p + n;
    c->tail[slot].left = (n > 32 ? 2 * n : 64) - n;
    return oz_tm_str(p, n);
}

static oz_tm_val escaped(oz_tm *c, oz_tm_val v) {
    if (v.flavour == OZ_TM_MARKUP) return v;
    size_t mark = oz_tm_mark(c);
    oz_tm_put_escaped(c, (oz_slice){v.s, v.n});
    return oz_tm_take(c, mark);
}

static oz_tm_val add_strings(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    if (a.flavour != OZ_TM_MARKUP && b.flavour != OZ_TM_MARKUP) return oz_tm_concat(c, a, b);
    oz_tm_val v = oz_tm_concat(c, escaped(c, a), escaped(c, b));
    v.flavour = OZ_TM_MARKUP;
    return v;
}

static bool listlike(oz_tm_val v) { return v.kind == OZ_TM_SEQ && v.flavour <= OZ_TM_GROUP; }
static bool plain(oz_tm_val v, int flavour) { return listlike(v) && (v.flavour == OZ_TM_LIST) == (flavour == OZ_TM_LIST); }

static oz_tm_val add_seqs(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    oz_tm_seq *s = oz_tm_charge(c, (a.seq->n + b.seq->n) / 4) ? oz_tm_seq_new(c, a.seq->n + b.seq->n) : NULL;
    for (size_t i = 0; i < a.seq->n; i++) oz_tm_seq_push(c, s, a.seq->v[i]);
    for (size_t i = 0; i < b.seq->n; i++) oz_tm_seq_push(c, s, b.seq->v[i]);
    return oz_tm_seq_val(s, a.flavour == OZ_TM_LIST ? OZ_TM_LIST : OZ_TM_TUPLE);
}

static oz_tm_val repeat(oz_tm *c, oz_tm_val v, oz_tm_val times) {
    int64_t k = 0;
    if (times.kind == OZ_TM_BIG) return OZ_TM_FAIL(c, "cannot fit 'int' into an index-sized integer");
    if (!oz_tm_index(c, times, &k)) return oz_tm_none();
    if (v.kind == OZ_TM_STR) {
        size_t mark = oz_tm_mark(c);
        oz_tm_put_repeat(c, v.s, v.n, k);
        oz_tm_val r = oz_tm_take(c, mark);
        r.flavour = v.flavour;
        return r;
    }
    oz_tm_seq *s = oz_tm_seq_new(c, v.seq->n);
    for (int64_t i = 0; v.seq->n && i < k && oz_tm_charge(c, 1 + v.seq->n / 4); i++)
        for (size_t j = 0; j < v.seq->n; j++) oz_tm_seq_push(c, s, v.seq->v[j]);
    return oz_tm_seq_val(s, v.flavour == OZ_TM_LIST ? OZ_TM_LIST : OZ_TM_TUPLE);
}

static bool is_integer(oz_tm_val v) { return v.kind >= OZ_TM_BOOL && v.kind <= OZ_TM_BIG; }

oz_tm_val oz_tm_binary(oz_tm *c, oz_tm_op op, oz_tm_val a, oz_tm_val b) {
    if (oz_tm_is_num(a) && oz_tm_is_num(b)) return numbers(c, op, a, b);
    if (op == OZ_TM_MOD && a.kind == OZ_TM_STR) {
        if (a.flavour == OZ_TM_MARKUP) return OZ_TM_UNSUPPORTED(c, "%% of escaped text is not supported");
        return oz_tm_percent(c, (oz_slice){a.s, a.n}, b);
    }
    if (a.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, a);
    if (b.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, b);
    if (op == OZ_TM_ADD) {
        if (a.kind == OZ_TM_STR && b.kind == OZ_TM_STR) return add_strings(c, a, b);
        if (listlike(a) && plain(b, a.flavour)) return add_seqs(c, a, b);
        if (a.kind == OZ_TM_STR || listlike(a))
            return OZ_TM_FAIL(c, "can only concatenate %s (not \"%s\") to %s", oz_tm_type(a), oz_tm_type(b), oz_tm_type(a));
    }
    if (op == OZ_TM_MUL) {
        if ((a.kind == OZ_TM_STR || listlike(a)) && is_integer(b)) return repeat(c, a, b);
        if ((b.kind == OZ_TM_STR || listlike(b)) && is_integer(a)) return repeat(c, b, a);
    }
    return refuse(c, op, a, b);
}
