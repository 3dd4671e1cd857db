/* Norm, gated activation and addition of one row, with vectors of 16: elementwise_avx2.c says what is rounded when. */
#include <math.h>
#include "kernel/x86/math_avx512.h"
#include "kernel/x86/rows_avx512.h"

/* Squares are summed in f64: no overflow, and the root is the correctly rounded one but for rare ties. */
void oz_norm__avx512(float *y, const float *x, const float *w, int64_t dim, float eps) {
    __m512d lo = _mm512_setzero_pd(), hi = lo;
    for (int64_t i = 0; i < dim; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(oz_lanes_avx512(dim - i), x + i);
        const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v)), b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        lo = _mm512_fmadd_pd(a, a, lo);
        hi = _mm512_fmadd_pd(b, b, hi);
    }
    const __m512 r = _mm512_set1_ps((float)(1.0 / sqrt(_mm512_reduce_add_pd(_mm512_add_pd(lo, hi)) / (double)dim + eps)));
    for (int64_t i = 0; i < dim; i += 16) {
        const __mmask16 m = oz_lanes_avx512(dim - i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r), _mm512_maskz_loadu_ps(m, w + i)));
    }
}

void oz_silu_mul__avx512(float *y, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = oz_lanes_avx512(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(m, gate + i), e = oz_exp_ps512(_mm512_sub_ps(_mm512_setzero_ps(), g));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e)), _mm512_maskz_loadu_ps(m, up + i)));
    }
}

void oz_add__avx512(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = oz_lanes_avx512(n - i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, y + i), _mm512_maskz_loadu_ps(m, x + i)));
    }
}
