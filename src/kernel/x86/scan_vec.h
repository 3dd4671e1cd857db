/* The convolution and the selective scan of a segment's channels, side by side in the lanes of a vector: one text for AVX2 and AVX-512. Before including it a level defines
 *   vec, LANES; vec_load(p, n), vec_store(p, n, v) of n <= LANES lanes, no other being touched; vec_all(x); vec_fma(a, b, c);
 *   vec_exp(x); vec_less(a, b, then, otherwise); vec_split(u, &k): u = m 2^k with m in [1, 2), of u >= 1.
 *
 * All is f32, an FMA each tap and each value, in the order of ref/ops.c, so a token gives the same bits alone and in a prompt. In units of u = 2^-24:
 *   conv  taps of sum |w x| from the sum; from silu: exp 3, sum and division 2, and its argument's error, times at most 1.1.
 *   scan  dt errs by 9 of itself (exp 3, log1p 6), its product with b and x by 2 more. exp(dt a) errs by 3 and by its argument's error, |dt a| 10, of which
 *         z exp(-z) <= 0.37 leaves 4 of what was there: 8 a token, with its FMA. The sum over n values adds n; silu of the gate 6.
 * The checker's bounds (tests/check/scan.c) are these.
 *
 * The state of a vector of channels, and what they decay by, lie in local arrays while the segment is walked: in the slot their rows are as far apart as
 * there are channels, which is often a power of two, and would fall into the same lines of the cache. */
#ifndef OZ_KERNEL_SCAN_VEC_H
#define OZ_KERNEL_SCAN_VEC_H
#include "kernel/ref/ref.h"
#include "kernel/step.h"

enum { MAX_STATE = 256 /* values of a channel: more run the reference; no model that is run here has them */ };

static inline vec silu(vec x) { return x / (vec_all(1.0f) + vec_exp(vec_all(0.0f) - x)); }

/* log(1 + exp(x)), and x itself beyond 20. With y = exp(x): 2 atanh(y / (2 + y)) while 1 + y < sqrt 2, else 1 + y = m 2^k with m around 1, and
 * k log 2 + 2 atanh((m - 1) / (m + 1)). atanh(s) = s + s^3 (1/3 + s^2/5 + s^4/7 + s^6/9) for |s| <= 0.172. NaN stays. */
static inline vec softplus(vec x) {
    const vec one = vec_all(1.0f), y = vec_exp(x), root = vec_all(0x1.6a09e6p0f);
    vec k, m = vec_split(one + y, &k);
    const vec above = vec_less(m, root, vec_all(0.0f), one);
    m = m * (one - above * vec_all(0.5f)), k = k + above;
    const vec small = vec_all(0x1.a8279ap-2f);
    const vec s = vec_less(y, small, y, m - one) / vec_less(y, small, y + vec_all(2.0f), m + one), z = s * s;
    vec p = vec_fma(vec_all(0x1.c71c72p-4f), z, vec_all(0x1.24924ap-3f));
    p = vec_fma(vec_fma(p, z, vec_all(0x1.99999ap-3f)), z, vec_all(0x1.555556p-2f));
    const vec half = vec_fma(p * z, s, s);
    const vec r = vec_fma(vec_less(y, small, vec_all(0.0f), k), vec_all(0x1.62e43p-1f), half + half) + (y - y);
    return vec_less(vec_all(20.0f), x, x, r);
}

static inline void conv_vec(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    const int64_t kept = a->taps - 1;
    oz_state_begin(state, seg, kept, a->n, c0, c1);
    const float *x = a->x + seg->tok0 * a->ld;
    float *y = a->y + seg->tok0 * a->ld;
    for (int64_t t = 0; t < seg->n_tok; t++) {
        for (int64_t c = c0; c < c1; c += LANES) {
            const int64_t n = c1 - c < LANES ? c1 - c : LANES;
            vec sum = a->bias ? vec_load(a->bias + c, n) : vec_all(0.0f);
            for (int64_t k = 0; k < a->taps; k++) {
                const int64_t at = t - kept + k;
                sum = vec_fma(vec_load(a->w + k * a->n + c, n), vec_load((at < 0 ? state + (kept + at) * a->n : x + at * a->ld) + c, n), sum);
            }
            vec_store(y + t * a->ld + c, n, silu(sum));
        }
    }
    oz_conv_keep(a, seg, state, c0, c1);
}

static inline void scan_lanes(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c, int64_t n) {
    vec h[MAX_STATE], decay[MAX_STATE];
    for (int64_t i = 0; i < a->n_state; i++) h[i] = vec_load(state + i * a->n + c, n), decay[i] = vec_load(a->a + i * a->n + c, n);
    const vec skip = vec_load(a->d + c, n);
    for (int64_t t = seg->tok0; t < seg->tok0 + seg->n_tok; t++) {
        const float *b = a->b + t * a->ld, *cs = a->c + t * a->ld;
        const vec dt = softplus(vec_load(a->dt + t * a->ld + c, n)), x = vec_load(a->x + t * a->ld + c, n), put = dt * x;
        vec y = vec_all(0.0f);
        for (int64_t i = 0; i < a->n_state; i++) {
            h[i] = vec_fma(vec_exp(dt * decay[i]), h[i], put * vec_all(b[i]));
            y = vec_fma(vec_all(cs[i]), h[i], y);
        }
        vec_store(a->y + t * a->ld_y + c, n, vec_fma(skip, x, y) * silu(vec_load(a->gate + t * a->ld + c, n)));
    }
    for (int64_t i = 0; i < a->n_state; i++) vec_store(state + i * a->n + c, n, h[i]);
}

static inline void scan_vec(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    if (a->n_state > MAX_STATE) {
        oz_scan__ref(a, seg, state, c0, c1);
        return;
    }
    oz_state_begin(state, seg, a->n_state, a->n, c0, c1);
    for (int64_t c = c0; c < c1; c += LANES) scan_lanes(a, seg, state, c, c1 - c < LANES ? c1 - c : LANES);
}

#endif
