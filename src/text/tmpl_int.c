/* Integers. An int64 where it fits, and beyond it a sign and limbs of nine decimal digits, least significant first: printing, which is
 * what templates do with numbers, is then trivial, and arithmetic on a few limbs is fast enough. At most OZ_TM_MAX_DIGITS digits. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>

enum { BASE = 1000000000, MAX_LIMBS = OZ_TM_MAX_DIGITS / 9 + 8, SMALL = 3 };
struct oz_tm_big {
    bool negative;
    size_t n;
    uint32_t limb[];
};

/* A view of either kind; an int64 is split into `small`. */
typedef struct num {
    bool negative;
    size_t n;
    const uint32_t *limb;
    uint32_t small[SMALL];
} num;

static void view(num *out, oz_tm_val v) {
    if (v.kind == OZ_TM_BIG) {
        *out = (num){.negative = v.big->negative, .n = v.big->n, .limb = v.big->limb};
        return;
    }
    *out = (num){.negative = v.i < 0};
    for (uint64_t u = v.i < 0 ? 0 - (uint64_t)v.i : (uint64_t)v.i; u; u /= BASE) out->small[out->n++] = (uint32_t)(u % BASE);
    out->limb = out->small;
}

static oz_tm_big *big_new(oz_tm *c, size_t n) {
    if (n > MAX_LIMBS) {
        OZ_TM_FAIL(c, "an integer has more than %d digits", OZ_TM_MAX_DIGITS);
        return NULL;
    }
    oz_tm_big *b = oz_tm_charge(c, n) ? oz_tm_alloc(c, 1, sizeof *b + n * sizeof b->limb[0]) : NULL;
    if (b) b->n = n;
    return b;
}

/* The value of limbs, an int64 if it fits. */
static oz_tm_val normal(oz_tm_big *b) {
    if (!b) return oz_tm_int(0);
    while (b->n > 0 && b->limb[b->n - 1] == 0) b->n--;
    if (b->n <= SMALL) {
        unsigned __int128 u = 0;
        for (size_t i = b->n; i-- > 0;) u = u * BASE + b->limb[i];
        if (u <= (unsigned __int128)INT64_MAX) return oz_tm_int(b->negative ? -(int64_t)u : (int64_t)u);
        if (b->negative && u == (unsigned __int128)INT64_MAX + 1) return oz_tm_int(INT64_MIN);
    }
    return (oz_tm_val){.kind = OZ_TM_BIG, .big = b};
}

static int compare_size(const num *a, const num *b) {
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    for (size_t i = a->n; i-- > 0;)
        if (a->limb[i] != b->limb[i]) return a->limb[i] < b->limb[i] ? -1 : 1;
    return 0;
}

int oz_tm_big_compare(oz_tm *c, oz_tm_val a, oz_tm_val b) {
    num x, y;
    if (a.kind != OZ_TM_BIG && b.kind != OZ_TM_BIG) return (a.i > b.i) - (a.i < b.i);
    view(&x, a);
    view(&y, b);
    if (x.negative != y.negative) return x.negative ? -1 : 1;
    return x.negative ? -compare_size(&x, &y) : compare_size(&x, &y);
}

/* |a| + |b| or, where |a| >= |b|, |a| - |b|, with a's sign. */
static oz_tm_val add_sizes(oz_tm *c, const num *a, const num *b, bool minus) {
    size_t n = (a->n > b->n ? a->n : b->n) + 1;
    oz_tm_big *r = big_new(c, n);
    int64_t carry = 0;
    if (!r) return oz_tm_int(0);
    r->negative = a->negative;
    for (size_t i = 0; i < n; i++) {
        int64_t x = i < a->n ? a->limb[i] : 0, y = i < b->n ? b->limb[i] : 0, v = x + (minus ? -y : y) + carry;
        carry = v < 0 ? -1 : v >= BASE ? 1 : 0;
        r->limb[i] = (uint32_t)(v - carry * BASE);
    }
    return normal(r);
}

static oz_tm_val add(oz_tm *c, const num *a, const num *b) {
    if (a->negative == b->negative) return add_sizes(c, a, b, false);
    return compare_size(a, b) >= 0 ? add_sizes(c, a, b, true) : add_sizes(c, b, a, true);
}

static oz_tm_val multiply(oz_tm *c, const num *a, const num *b) {
    oz_tm_big *r = oz_tm_charge(c, a->n * b->n / 16) ? big_new(c, a->n + b->n) : NULL;
    if (!r) return oz_tm_int(0);
    r->negative = a->negative != b->negative;
    for (size_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < b->n || carry; j++) {
            uint64_t v = r->limb[i + j] + carry + (j < b->n ? (uint64_t)a->limb[i] * b->limb[j] : 0);
            r->limb[i + j] = (uint32_t)(v % BASE);
            carry = v / BASE;
        }
    }
    return normal(r);
}

/* rest -= b * q, where that is not negative. */
static void take_away(oz_tm_big *rest, const num *b, uint32_t q) {
    int64_t borrow = 0;
    for (size_t i = 0; i < rest->n; i++) {
        int64_t v = (int64_t)rest->limb[i] - borrow - (i < b->n ? (int64_t)b->limb[i] * q : 0);
        borrow = v < 0 ? (-v + BASE - 1) / BASE : 0;
        rest->limb[i] = (uint32_t)(v + borrow * BASE);
    }
}

static bool fits(const oz_tm_big *rest, const num *b, uint32_t q) {
    uint64_t carry = 0;
    int order = 0;
    for (size_t i = 0; i < rest->n; i++) {
        uint64_t v = (i < b->n ? (uint64_t)b->limb[i] * q : 0) + carry;
        uint32_t low = (uint32_t)(v % BASE);
        carry = v / BASE;
        if (low != rest->limb[i]) order = low < rest->limb[i] ? -1 : 1;
    }
    return carry == 0 && order <= 0;
}

/* Long division of sizes; each digit of the quotient by halving. */
static void divide_sizes(oz_tm *c, const num *a, const num *b, oz_tm_big **quotient, oz_tm_big **rest) {
    *quotient = oz_tm_charge(c, a->n * (b->n + 1) * 2) ? big_new(c, a->n + 1) : NULL;
    *rest = *quotient ? big_new(c, b->n + 1) : NULL;
    for (size_t i = *rest ? a->n : 0; i-- > 0;) {
        memmove((*rest)->limb + 1, (*rest)->limb, b->n * sizeof(uint32_t));
        (*rest)->limb[0] = a->limb[i];
        uint32_t lo = 0, hi = BASE - 1;
        while (lo < hi) {
            uint32_t mid = lo + (hi - lo + 1) / 2;
            if (fits(*rest, b, mid))
                lo = mid;
            else
                hi = mid - 1;
        }
        (*quotient)->limb[i] = lo;
        take_away(*rest, b, lo);
    }
}

/* Floor division: the remainder has the sign of b. */
static oz_tm_val divide(oz_tm *c, oz_tm_val av, oz_tm_val bv, bool want_rest) {
    num a, b, q;
    oz_tm_big *quotient, *rest;
    view(&a, av);
    view(&b, bv);
    divide_sizes(c, &a, &b, &quotient, &rest);
    if (c->st != OZ_OK) return oz_tm_int(0);
    quotient->negative = a.negative != b.negative;
    rest->negative = a.negative;
    oz_tm_val r = normal(rest), n = normal(quotient);
    bool down = a.negative != b.negative && !(r.kind == OZ_TM_INT && r.i == 0);
    if (!down) return want_rest ? r : n;
    if (want_rest) {
        view(&a, r);
        return add(c, &a, &b);
    }
    num one;
    view(&q, n);
    view(&one, oz_tm_int(-1));
    return add(c, &q, &one);
}

static oz_tm_val power(oz_tm *c, oz_tm_val base, int64_t exponent) {
    oz_tm_val r = oz_tm_int(1);
    while (exponent > 0 && c->st == OZ_OK) {
        if (exponent & 1) r = oz_tm_big_binary(c, OZ_TM_MUL, r, base);
        if (exponent >>= 1) base = oz_tm_big_binary(c, OZ_TM_MUL, base, base);
    }
    return r;
}

/* ADD SUB MUL FLOORDIV MOD of a non-zero b, POW of an exponent that is not negative. */
oz_tm_val oz_tm_big_binary(oz_tm *c, oz_tm_op op, oz_tm_val a, oz_tm_val b) {
    int64_t small;
    bool ints = a.kind != OZ_TM_BIG && b.kind != OZ_TM_BIG;
    if (ints && op == OZ_TM_ADD && !__builtin_add_overflow(a.i, b.i, &small)) return oz_tm_int(small);
    if (ints && op == OZ_TM_SUB && !__builtin_sub_overflow(a.i, b.i, &small)) return oz_tm_int(small);
    if (ints && op == OZ_TM_MUL && !__builtin_mul_overflow(a.i, b.i, &small)) return oz_tm_int(small);
    if (ints && (op == OZ_TM_FLOORDIV || op == OZ_TM_MOD) && b.i != -1) {
        bool down = a.i % b.i != 0 && (a.i < 0) != (b.i < 0);
        return oz_tm_int(op == OZ_TM_MOD ? a.i % b.i + (down ? b.i : 0) : a.i / b.i - down);
    }
    if (op == OZ_TM_FLOORDIV || op == OZ_TM_MOD) return divide(c, a, b, op == OZ_TM_MOD);
    if (op == OZ_TM_POW) {
        bool trivial = a.kind != OZ_TM_BIG && a.i >= -1 && a.i <= 1;
        if (trivial) return oz_tm_int(a.i == -1 ? (oz_tm_big_odd(b) ? -1 : 1) : a.i == 0 ? b.kind != OZ_TM_BIG && b.i == 0 : 1);
        if (b.kind == OZ_TM_BIG) return OZ_TM_FAIL(c, "an integer has more than %d digits", OZ_TM_MAX_DIGITS);
        return power(c, a, b.i);
    }
    num x, y;
    view(&x, a);
    view(&y, b);
    if (op == OZ_TM_MUL) return multiply(c, &x, &y);
    if (op == OZ_TM_SUB) y.negative = !y.negative;
    return add(c, &x, &y);
}

bool oz_tm_big_negative(oz_tm_val v) { return v.kind == OZ_TM_BIG ? v.big->negative : v.i < 0; }
bool oz_tm_big_odd(oz_tm_val v) { return v.kind == OZ_TM_BIG ? v.big->limb[0] & 1 : v.i & 1; }

/* ---- in and out ---- */

oz_tm_val oz_tm_big_parse(oz_tm *c, const char *digits, size_t n, int base, bool negative) {
    while (n > 1 && *digits == '0') digits++, n--;
    if (n > OZ_TM_MAX_DIGITS) return OZ_TM_FAIL(c, "an integer has more than %d digits", OZ_TM_MAX_DIGITS);
    oz_tm_big *r = oz_tm_charge(c, n * n / 512) ? big_new(c, n / (base > 10 ? 5 : 9) + 2) : NULL;
    if (!r) return oz_tm_int(0);
    r->negative = negative;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = digits[i];
        uint64_t carry = (uint64_t)(ch <= '9' ? ch - '0' : (ch | 32) - 'a' + 10);
        for (size_t k = 0; k < used || carry; k++) {
            uint64_t v = (uint64_t)r->limb[k] * (uint64_t)base + carry;
            r->limb[k] = (uint32_t)(v % BASE);
            carry = v / BASE;
            if (k == used) used++;
        }
    }
    return normal(r);
}

oz_tm_val oz_tm_big_from_double(oz_tm *c, double f) {
    f = trunc(f);
    if (fabs(f) < 9.2e18) return oz_tm_int((int64_t)f);
    char digits[400];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(f));
    return oz_tm_big_parse(c, digits, (size_t)n, 10, f < 0);
}

double oz_tm_big_to_double(oz_tm *c, oz_tm_val v) {
    if (v.kind != OZ_TM_BIG) return (double)v.i;
    size_t mark = oz_tm_mark(c);
    oz_tm_big_print(c, v, 10);
    oz_tm_put(c, "", 1);
    oz_tm_val text = oz_tm_take(c, mark);
    return text.n ? strtod(text.s, NULL) : 0;
}

void oz_tm_big_print(oz_tm *c, oz_tm_val v, int base) {
    num a;
    view(&a, v);
    if (a.negative) oz_tm_put(c, "-", 1);
    if (a.n == 0) oz_tm_put(c, "0", 1);
    if (base == 10) {
        for (size_t i = a.n; i-- > 0;) oz_tm_printf(c, i + 1 == a.n ? "%u" : "%09u", a.limb[i]);
        return;
    }
    oz_tm_big *rest = big_new(c, a.n);
    char *out = rest && oz_tm_charge(c, a.n * a.n) ? oz_tm_alloc(c, a.n + 1, 30) : NULL;
    if (!out || a.n == 0) return;
    memcpy(rest->limb, a.limb, a.n * sizeof *a.limb);
    size_t k = (a.n + 1) * 30;
    for (size_t n = a.n; n > 0;) {
        uint64_t carry = 0;
        for (size_t i = n; i-- > 0;) {
            uint64_t x = carry * BASE + rest->limb[i];
            rest->limb[i] = (uint32_t)(x / (uint64_t)base);
            carry = x % (uint64_t)base;
        }
        out[--k] = "0123456789abcdef"[carry];
        while (n > 0 && rest->limb[n - 1] == 0) n--;
    }
    oz_tm_put(c, out + k, (a.n + 1) * 30 - k);
}
