/* What is kept of a row of logits, with exponentials and sums in f64. Two passes: the largest logit, then the sums, eight logits a step in two
 * vectors of f64 with sums of their own (an order set by the vocabulary's size alone). A row's end is padded with -inf, which adds nothing. */
#include <math.h>
#include "kernel/x86/math_avx2.h"
#include "kernel/x86/rows_avx2.h"

typedef struct row_max { float value; int32_t at; } row_max;

/* NaN is never the largest, unless it is the first: then all sums are NaN, and so they are if it stands elsewhere. */
static row_max find_max(const float *x, int64_t n) {
    __m256 most = _mm256_set1_ps(x[0]);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) most = _mm256_max_ps(_mm256_loadu_ps(x + i), most);
    float lanes[8];
    _mm256_storeu_ps(lanes, most);
    row_max m = {x[0], 0};
    for (int l = 0; l < 8; l++) m.value = lanes[l] > m.value ? lanes[l] : m.value;
    for (; i < n; i++) m.value = x[i] > m.value ? x[i] : m.value;
    while (m.at < n && x[m.at] != m.value) m.at++;
    if (m.at == n) m.at = 0;
    return m;
}

static inline __m256 load_padded(const float *x, int64_t left) {
    if (left >= 8) return _mm256_loadu_ps(x);
    __m256i m = oz_lanes_avx2(left);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_maskload_ps(x, m), _mm256_castsi256_ps(m));
}

static inline __m256d lower(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
static inline __m256d upper(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }

static double sum_pd(__m256d a, __m256d b) {
    double v[4];
    _mm256_storeu_pd(v, _mm256_add_pd(a, b));
    return (v[0] + v[2]) + (v[1] + v[3]);
}

void oz_stat__avx2(oz_row_stat *out, const float *logits, int32_t target, int64_t vocab) {
    row_max m = find_max(logits, vocab);
    __m256d top = _mm256_set1_pd(m.value), s0 = _mm256_setzero_pd(), s1 = s0;
    for (int64_t i = 0; i < vocab; i += 8) {
        __m256 x = load_padded(logits + i, vocab - i);
        s0 = _mm256_add_pd(s0, oz_exp_neg_pd(_mm256_sub_pd(lower(x), top)));
        s1 = _mm256_add_pd(s1, oz_exp_neg_pd(_mm256_sub_pd(upper(x), top)));
    }
    *out = (oz_row_stat){m.value, target < 0 ? 0 : logits[target], m.value + log(sum_pd(s0, s1)), m.at};
}

typedef struct kl_sums { __m256d ref, x, diff; } kl_sums;

/* A token that ref excludes (-inf) adds nothing, even where x excludes it too. */
static inline void kl_step(kl_sums *s, __m256d ref, __m256d x, __m256d top_ref, __m256d top) {
    __m256d d = _mm256_sub_pd(ref, top_ref), e = oz_exp_neg_pd(d), term = _mm256_mul_pd(e, _mm256_sub_pd(ref, x));
    s->ref = _mm256_add_pd(s->ref, e);
    s->x = _mm256_add_pd(s->x, oz_exp_neg_pd(_mm256_sub_pd(x, top)));
    s->diff = _mm256_add_pd(s->diff, _mm256_andnot_pd(_mm256_cmp_pd(d, _mm256_set1_pd(-INFINITY), _CMP_EQ_OQ), term));
}

/* KL(ref || x) = sum p_ref (ref - x) + lse - lse_ref */
void oz_kl__avx2(oz_kl_stat *out, const float *ref, const float *logits, int32_t target, int64_t vocab) {
    row_max mr = find_max(ref, vocab), m = find_max(logits, vocab);
    __m256d zero = _mm256_setzero_pd(), top_ref = _mm256_set1_pd(mr.value), top = _mm256_set1_pd(m.value);
    kl_sums a = {zero, zero, zero}, b = a;
    for (int64_t i = 0; i < vocab; i += 8) {
        __m256 r = load_padded(ref + i, vocab - i), x = load_padded(logits + i, vocab - i);
        kl_step(&a, lower(r), lower(x), top_ref, top);
        kl_step(&b, upper(r), upper(x), top_ref, top);
    }
    double sum_ref = sum_pd(a.ref, b.ref), lse_ref = mr.value + log(sum_ref), lse = m.value + log(sum_pd(a.x, b.x));
    *out = (oz_kl_stat){.kl = sum_pd(a.diff, b.diff) / sum_ref + lse - lse_ref, .argmax_ref = mr.at, .argmax = m.at};
    if (target < 0) return;
    out->nll_ref = lse_ref - ref[target];
    out->nll = lse - logits[target];
    out->p_ref = exp(-out->nll_ref);
    out->p = exp(-out->nll);
}
