/* The slots that work on one row, and sinks. */
#include "suites.h"

static int64_t draw_n(ck *c) {
    static const int64_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 576, 1000, 1536};
    return sizes[ck_int(c, 0, CK_COUNT(sizes) - 1)];
}

static size_t draw_skew(ck *c) { return 4 * (size_t)ck_int(c, 0, 7); }

static ck_buf draw_floats(ck *c, int64_t n, ck_pattern p) {
    ck_buf b = ck_buf_new((size_t)n * sizeof(float), draw_skew(c));
    ck_fill(c, b.p, n, p);
    return b;
}

/* f32 sums of n squares, half their relative error in the root, and four roundings. In place gives the same bits. */
void ck_norm(ck *c) {
    for (int i = 0; i < 400 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_pattern p = (ck_pattern)ck_int(c, 0, CK_PATTERNS - 1);
        ck_buf x = draw_floats(c, n, p), w = draw_floats(c, n, CK_NORMAL), y = ck_buf_new((size_t)n * sizeof(float), draw_skew(c));
        const float *xv = x.p, *wv = w.p, *yv = y.p;
        float eps = i % 3 ? 1e-5f : 0.25f;
        c->dev.table.norm(y.p, x.p, w.p, n, eps);
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += (double)xv[j] * xv[j];
        double r = 1 / sqrt(sum / (double)n + eps);
        for (int64_t j = 0; j < n; j++) {
            double want = xv[j] * r * wv[j];
            ck_bound(c, fabs(yv[j] - want), (4 + (double)n / 16) * 0x1p-24 * fabs(want) + 0x1p-149 * (1 + fabs(wv[j])),
                     "n %lld [%lld]: expected %.9g, found %.9g", (long long)n, (long long)j, want, yv[j]);
        }
        ck_buf_check(c, &y, "output");
        c->dev.table.norm(x.p, x.p, w.p, n, eps);
        ck_same(c, x.p, y.p, (size_t)n * sizeof(float), "in place");
        ck_buf_free(&x), ck_buf_free(&w), ck_buf_free(&y);
    }
}

/* Puts values where a rounding can go wrong: halves of a step, and the largest value. */
static void fill_for_quantize(ck *c, float *x, int64_t n, int i) {
    ck_fill(c, x, n, (ck_pattern)(i % CK_PATTERNS));
    if (i % 5 == 1) {
        for (int64_t j = 0; j < n; j++) x[j] = (float)ck_int(c, -254, 254) * 0.5f;
        x[ck_int(c, 0, n - 1)] = i % 2 ? 127 : 448;
    }
    if (i % 5 == 2) { /* halves of a step that is no power of two: a product with the reciprocal lands elsewhere */
        float step = (float)(0.5 + oz_rng_uniform(&c->rng));
        for (int64_t j = 0; j < n; j++) x[j] = step * ((float)ck_int(c, -126, 125) + 0.5f);
        x[ck_int(c, 0, n - 1)] = 127 * step;
    }
    if (i % 11 == 3) x[ck_int(c, 0, n - 1)] = i % 2 ? NAN : -INFINITY;
    if (i % 13 == 5) x[n - 1] = 5000; /* the largest stands in the tail */
}

void ck_quantize_q8(ck *c) {
    for (int i = 0; i < 600 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf x = draw_floats(c, n, CK_NORMAL), q = ck_buf_new((size_t)n, (size_t)ck_int(c, 0, 31));
        int8_t *want = oz_alloc_array((size_t)n, 1);
        fill_for_quantize(c, x.p, n, i);
        float s = c->dev.table.quantize_q8(q.p, x.p, n), want_s = oz_act_i8(want, x.p, n);
        if (ck_ulp(s, want_s) > 0) ck_fail(c, "n %lld: scale: expected %.9g, found %.9g", (long long)n, want_s, s);
        ck_same(c, q.p, want, (size_t)n, "codes");
        ck_buf_check(c, &q, "codes");
        oz_free(want);
        ck_buf_free(&x), ck_buf_free(&q);
    }
}

void ck_quantize_f8(ck *c) {
    for (int i = 0; i < 600 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf x = draw_floats(c, n, CK_NORMAL), q = ck_buf_new((size_t)n * sizeof(float), draw_skew(c));
        uint8_t *codes = oz_alloc_array((size_t)n, 1);
        float *want = oz_alloc_array((size_t)n, sizeof *want);
        fill_for_quantize(c, x.p, n, i);
        float s = c->dev.table.quantize_f8(q.p, x.p, n), want_s = oz_act_e4m3(codes, x.p, n);
        for (int64_t j = 0; j < n; j++) want[j] = oz_f32_from_e4m3(codes[j]);
        if (ck_ulp(s, want_s) > 0) ck_fail(c, "n %lld: scale: expected %.9g, found %.9g", (long long)n, want_s, s);
        ck_same(c, q.p, want, (size_t)n * sizeof *want, "values");
        ck_buf_check(c, &q, "values");
        oz_free(want), oz_free(codes);
        ck_buf_free(&x), ck_buf_free(&q);
    }
}

void ck_round_bf16(ck *c) {
    for (int i = 0; i < 400 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf x = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS)), q = ck_buf_new((size_t)n * 2, 2 * (size_t)ck_int(c, 0, 15));
        float *v = x.p;
        for (int64_t j = 0; j < n && i % 3 == 0; j++) v[j] = oz_f32_from_bf16((uint16_t)ck_int(c, 0, 0xfffe)) * (1 + (float)ck_int(c, 0, 3) * 0x1p-9f); /* ties */
        if (i % 7 == 2) v[ck_int(c, 0, n - 1)] = i % 2 ? NAN : -INFINITY;
        uint16_t *want = oz_alloc_array((size_t)n, sizeof *want);
        for (int64_t j = 0; j < n; j++) want[j] = oz_bf16_from_f32(v[j]);
        c->dev.table.round_bf16(q.p, x.p, n);
        ck_same(c, q.p, want, (size_t)n * sizeof *want, "values");
        ck_buf_check(c, &q, "values");
        oz_free(want);
        ck_buf_free(&x), ck_buf_free(&q);
    }
}

/* Two products and a sum: three roundings of the magnitudes. */
static void rope_suite(ck *c, void (*turn)(float *, const float *, const float *, int64_t), bool pairs) {
    for (int i = 0; i < 300 && !ck_enough(c); i++, c->n_cases++) {
        int64_t half = i % 4 ? 8 * ck_int(c, 1, 8) : ck_int(c, 1, 40), n = 2 * half;
        ck_buf x = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS)), old = ck_buf_new((size_t)n * sizeof(float), 0);
        ck_buf cs = draw_floats(c, half, CK_NORMAL), sn = draw_floats(c, half, CK_NORMAL);
        memcpy(old.p, x.p, (size_t)n * sizeof(float));
        const float *o = old.p, *y = x.p, *co = cs.p, *si = sn.p;
        turn(x.p, cs.p, sn.p, half);
        for (int64_t j = 0; j < half; j++) {
            const int64_t i0 = pairs ? 2 * j : j, i1 = pairs ? 2 * j + 1 : j + half;
            double a = (double)o[i0] * co[j], b = (double)o[i1] * si[j], d = (double)o[i1] * co[j], e = (double)o[i0] * si[j];
            ck_bound(c, fabs(y[i0] - (a - b)), 0x1p-23 * (fabs(a) + fabs(b)) + 0x1p-148, "half %lld [%lld]", (long long)half, (long long)i0);
            ck_bound(c, fabs(y[i1] - (d + e)), 0x1p-23 * (fabs(d) + fabs(e)) + 0x1p-148, "half %lld [%lld]", (long long)half, (long long)i1);
        }
        ck_buf_check(c, &x, "head");
        ck_buf_free(&x), ck_buf_free(&old), ck_buf_free(&cs), ck_buf_free(&sn);
    }
}

void ck_rope(ck *c) { rope_suite(c, c->dev.table.rope, false); }
void ck_rope_pairs(ck *c) { rope_suite(c, c->dev.table.rope_pairs, true); }

/* Any gate: from far below where exp underflows to far above. */
void ck_silu_mul(ck *c) {
    for (int i = 0; i < 400 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf g = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS)), u = draw_floats(c, n, CK_NORMAL);
        ck_buf y = ck_buf_new((size_t)n * sizeof(float), draw_skew(c));
        float *gate = g.p;
        for (int64_t j = 0; j < n && i % 2; j++) gate[j] = (float)((oz_rng_uniform(&c->rng) - 0.5) * (i % 4 == 1 ? 40 : 300));
        c->dev.table.silu_mul(y.p, g.p, u.p, n);
        for (int64_t j = 0; j < n; j++) {
            double want = gate[j] / (1 + exp(-(double)gate[j])) * ((const float *)u.p)[j];
            ck_bound(c, ck_ulp(((const float *)y.p)[j], want), fabs(gate[j]) > 80 ? INFINITY : 6, "gate %.9g up %.9g: expected %.9g, found %.9g",
                     gate[j], ((const float *)u.p)[j], want, ((const float *)y.p)[j]);
            ck_bound(c, fabs(((const float *)y.p)[j] - want), 6 * 0x1p-23 * fabs(want) + 1e-33, "gate %.9g: expected %.9g, found %.9g", gate[j], want,
                     ((const float *)y.p)[j]);
        }
        ck_buf_check(c, &y, "output");
        ck_buf_free(&g), ck_buf_free(&u), ck_buf_free(&y);
    }
}

/* The exponential's error grows with its argument. */
void ck_gelu_mul(ck *c) {
    for (int i = 0; i < 400 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf g = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS)), u = draw_floats(c, n, CK_NORMAL);
        ck_buf y = ck_buf_new((size_t)n * sizeof(float), draw_skew(c));
        float *gate = g.p;
        for (int64_t j = 0; j < n && i % 2; j++) gate[j] = (float)((oz_rng_uniform(&c->rng) - 0.5) * (i % 4 == 1 ? 8 : 40));
        c->dev.table.gelu_mul(y.p, g.p, u.p, n);
        for (int64_t j = 0; j < n; j++) {
            double x = gate[j], arg = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), want = x * (1 / (1 + exp(-2 * arg))) * ((const float *)u.p)[j];
            ck_bound(c, fabs(((const float *)y.p)[j] - want), (6 + 6 * fmin(fabs(arg), 90)) * 0x1p-23 * fabs(want) + 1e-33, "gate %.9g: expected %.9g, found %.9g", x, want,
                     ((const float *)y.p)[j]);
        }
        ck_buf_check(c, &y, "output");
        ck_buf_free(&g), ck_buf_free(&u), ck_buf_free(&y);
    }
}

void ck_scale(ck *c) {
    for (int i = 0; i < 300 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf x = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS));
        float *want = oz_alloc_array((size_t)n, sizeof *want), factor = (float)(oz_rng_uniform(&c->rng) * 60);
        for (int64_t j = 0; j < n; j++) want[j] = ((const float *)x.p)[j] * factor;
        c->dev.table.scale(x.p, n, factor);
        ck_same(c, x.p, want, (size_t)n * sizeof *want, "products");
        ck_buf_check(c, &x, "products");
        oz_free(want);
        ck_buf_free(&x);
    }
}

/* From far inside the cap, where it is nearly the identity, to far outside. */
void ck_softcap(ck *c) {
    for (int i = 0; i < 400 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf x = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS));
        float *v = x.p, *old = oz_alloc_array((size_t)n, sizeof *old), cap = (float)(oz_rng_uniform(&c->rng) * 60 + 0.5);
        for (int64_t j = 0; j < n && i % 2; j++) v[j] = (float)((oz_rng_uniform(&c->rng) - 0.5) * cap * (i % 4 == 1 ? 3 : 30));
        memcpy(old, v, (size_t)n * sizeof *old);
        c->dev.table.softcap(v, n, cap);
        for (int64_t j = 0; j < n; j++) {
            double want = cap * tanh((double)old[j] / cap);
            ck_bound(c, fabs(v[j] - want), 4 * 0x1p-23 * fabs(want) + 1e-37, "cap %.9g of %.9g: expected %.9g, found %.9g", cap, old[j], want, v[j]);
        }
        ck_buf_check(c, &x, "values");
        oz_free(old);
        ck_buf_free(&x);
    }
}

void ck_add(ck *c) {
    for (int i = 0; i < 300 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_n(c);
        ck_buf y = draw_floats(c, n, (ck_pattern)(i % CK_PATTERNS)), x = draw_floats(c, n, CK_NORMAL);
        float *want = oz_alloc_array((size_t)n, sizeof *want);
        for (int64_t j = 0; j < n; j++) want[j] = ((const float *)y.p)[j] + ((const float *)x.p)[j];
        c->dev.table.add(y.p, x.p, n);
        ck_same(c, y.p, want, (size_t)n * sizeof *want, "sums");
        ck_buf_check(c, &y, "sums");
        oz_free(want);
        ck_buf_free(&x), ck_buf_free(&y);
    }
}

/* ---- sinks: against long double ---- */

static int64_t draw_vocab(ck *c, int i) { return i == 0 ? 49152 : i % 7 == 0 ? ck_int(c, 1, 5) : ck_int(c, 1, 3000); }

static void fill_logits(ck *c, float *x, int64_t n, int i) {
    ck_fill(c, x, n, CK_NORMAL);
    float scale = i % 5 == 1 ? 0 : i % 5 == 2 ? 30 : i % 5 == 3 ? 400 : 4;
    for (int64_t j = 0; j < n; j++) x[j] *= scale;
    if (i % 4 == 3) { /* the largest twice */
        float top = fabsf(x[0]) + 1000;
        x[ck_int(c, 0, n - 1)] = top;
        x[ck_int(c, 0, n - 1)] = top;
    }
    if (i % 6 == 5 && n > 1) x[ck_int(c, 1, n - 1)] = -INFINITY;
}

typedef struct truth { int32_t argmax; long double lse; } truth;

static truth truth_of(const float *x, int64_t n) {
    truth t = {0, 0};
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > x[t.argmax]) t.argmax = (int32_t)i;
    }
    for (int64_t i = 0; i < n; i++) t.lse += expl((long double)x[i] - x[t.argmax]);
    t.lse = x[t.argmax] + logl(t.lse);
    return t;
}

static const double f64_slack = 1e-13; /* of the magnitude: sums of 50,000 terms in f64 */

void ck_stat(ck *c) {
    for (int i = 0; i < 150 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_vocab(c, i);
        ck_buf x = draw_floats(c, n, CK_NORMAL);
        fill_logits(c, x.p, n, i);
        const float *v = x.p;
        int32_t target = i % 3 ? (int32_t)ck_int(c, 0, n - 1) : -1;
        oz_row_stat s;
        c->dev.table.stat(&s, x.p, target, n);
        truth t = truth_of(v, n);
        if (s.argmax != t.argmax || s.max_logit != v[t.argmax]) ck_fail(c, "argmax: expected %d, found %d", t.argmax, s.argmax);
        if (target >= 0 && s.logit_target != v[target]) ck_fail(c, "target's logit: expected %.9g, found %.9g", v[target], s.logit_target);
        ck_bound(c, (double)fabsl(s.lse - t.lse), f64_slack * (1 + (double)fabsl(t.lse)), "vocabulary %lld: lse: expected %.17Lg, found %.17g", (long long)n,
                 t.lse, s.lse);
        ck_buf_free(&x);
    }
}

void ck_kl(ck *c) {
    for (int i = 0; i < 150 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = draw_vocab(c, i);
        ck_buf r = draw_floats(c, n, CK_NORMAL), x = draw_floats(c, n, CK_NORMAL);
        fill_logits(c, r.p, n, i % 5 == 3 ? 4 : i);
        float *rv = r.p, *xv = x.p;
        for (int64_t j = 0; j < n; j++) xv[j] = isinf(rv[j]) ? (i % 12 == 5 ? -INFINITY : -3) : rv[j] + (i % 8 == 0 ? 0 : xv[j] * (i % 2 ? 0.01f : 1));
        int32_t target = i % 3 ? (int32_t)ck_int(c, 0, n - 1) : -1;
        oz_kl_stat s;
        c->dev.table.kl(&s, rv, xv, target, n);
        truth tr = truth_of(rv, n), tx = truth_of(xv, n);
        long double kl = 0, mag = 0;
        for (int64_t j = 0; j < n; j++) {
            if (isinf(rv[j])) continue;
            long double p = expl(rv[j] - tr.lse), term = p * ((rv[j] - tr.lse) - (xv[j] - tx.lse));
            kl += term;
            mag += fabsl(term);
        }
        double slack = f64_slack * (1 + (double)mag + (double)fabsl(tr.lse) + (double)fabsl(tx.lse));
        ck_bound(c, (double)fabsl(s.kl - kl), slack, "vocabulary %lld: kl: expected %.17Lg, found %.17g", (long long)n, kl, s.kl);
        if (s.argmax_ref != tr.argmax || s.argmax != tx.argmax) ck_fail(c, "argmax: expected %d and %d, found %d and %d", tr.argmax, tx.argmax,
                                                                        s.argmax_ref, s.argmax);
        if (i % 8 == 0 && !memcmp(rv, xv, (size_t)n * sizeof *rv) && s.kl != 0) ck_fail(c, "kl of equal rows: expected 0, found %.17g", s.kl);
        double want_r = target < 0 ? 0 : (double)(tr.lse - rv[target]), want_x = target < 0 ? 0 : (double)(tx.lse - xv[target]);
        if (!isinf(want_r)) ck_bound(c, fabs(s.nll_ref - want_r), slack, "nll of ref: expected %.17g, found %.17g", want_r, s.nll_ref);
        if (!isinf(want_x)) ck_bound(c, fabs(s.nll - want_x), slack, "nll: expected %.17g, found %.17g", want_x, s.nll);
        ck_bound(c, fabs(s.p_ref - (target < 0 ? 0 : exp(-want_r))), slack, "p of ref: found %.17g", s.p_ref);
        ck_bound(c, fabs(s.p - (target < 0 ? 0 : exp(-want_x))), slack, "p: found %.17g", s.p);
        ck_buf_free(&x), ck_buf_free(&r);
    }
}
