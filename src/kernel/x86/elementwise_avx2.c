/* Norm, rotary embedding, gated activation, addition and weighted sum of one row. The row's end goes through masked loads and stores: no lane
 * outside of it is touched, and an element is computed the same wherever it stands. */
#include <math.h>
#include "kernel/x86/math_avx2.h"
#include "kernel/x86/rows_avx2.h"

static inline double sum_pd(__m256d v) {
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(s) + _mm_cvtsd_f64(_mm_unpackhi_pd(s, s));
}

/* Squares are summed in f64: no overflow, and the root is the correctly rounded one but for rare ties. */
void oz_norm__avx2(float *y, const float *x, const float *w, int64_t dim, float eps) {
    __m256d lo = _mm256_setzero_pd(), hi = lo;
    for (int64_t i = 0; i < dim; i += 8) {
        __m256 v = dim - i >= 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, oz_lanes_avx2(dim - i));
        __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
        lo = _mm256_fmadd_pd(a, a, lo);
        hi = _mm256_fmadd_pd(b, b, hi);
    }
    __m256 r = _mm256_set1_ps((float)(1.0 / sqrt(sum_pd(_mm256_add_pd(lo, hi)) / (double)dim + eps)));
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), r), _mm256_loadu_ps(w + i)));
    }
    if (i < dim) {
        __m256i m = oz_lanes_avx2(dim - i);
        _mm256_maskstore_ps(y + i, m, _mm256_mul_ps(_mm256_mul_ps(_mm256_maskload_ps(x + i, m), r), _mm256_maskload_ps(w + i, m)));
    }
}

/* Products and sums rounded one by one, as the reference does. */
static inline void rotate(__m256 *a, __m256 *b, __m256 c, __m256 s) {
    __m256 first = _mm256_sub_ps(_mm256_mul_ps(*a, c), _mm256_mul_ps(*b, s));
    *b = _mm256_add_ps(_mm256_mul_ps(*b, c), _mm256_mul_ps(*a, s));
    *a = first;
}

void oz_rope_pairs__avx2(float *head, const float *cos, const float *sin, int64_t half) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for (int64_t i = 0; i < half; i += 4) {
        const int64_t n = half - i < 4 ? half - i : 4;
        const __m256i m = oz_lanes_avx2(2 * n);
        const __m128i few = _mm256_castsi256_si128(oz_lanes_avx2(n));
        const __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_maskload_ps(cos + i, few)), twice);
        const __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_maskload_ps(sin + i, few)), twice);
        const __m256 x = _mm256_maskload_ps(head + 2 * i, m);
        _mm256_maskstore_ps(head + 2 * i, m, _mm256_addsub_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), s)));
    }
}

void oz_rope__avx2(float *head, const float *cos, const float *sin, int64_t half) {
    int64_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(head + i + half);
        rotate(&a, &b, _mm256_loadu_ps(cos + i), _mm256_loadu_ps(sin + i));
        _mm256_storeu_ps(head + i, a);
        _mm256_storeu_ps(head + i + half, b);
    }
    if (i < half) {
        __m256i m = oz_lanes_avx2(half - i);
        __m256 a = _mm256_maskload_ps(head + i, m), b = _mm256_maskload_ps(head + i + half, m);
        rotate(&a, &b, _mm256_maskload_ps(cos + i, m), _mm256_maskload_ps(sin + i, m));
        _mm256_maskstore_ps(head + i, m, a);
        _mm256_maskstore_ps(head + i + half, m, b);
    }
}

static inline __m256 silu_mul(__m256 gate, __m256 up) {
    __m256 e = oz_exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), gate));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

void oz_silu_mul__avx2(float *y, const float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, silu_mul(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) {
        __m256i m = oz_lanes_avx2(n - i);
        _mm256_maskstore_ps(y + i, m, silu_mul(_mm256_maskload_ps(gate + i, m), _mm256_maskload_ps(up + i, m)));
    }
}

static inline __m256 gelu_mul(__m256 gate, __m256 up) {
    __m256 c = _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), _mm256_mul_ps(gate, gate), _mm256_set1_ps(1.0f));
    __m256 e = oz_exp_ps(_mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(-0x1.988454p0f), gate), c)); /* -2 sqrt(2 / pi) */
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

void oz_gelu_mul__avx2(float *y, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i m = oz_lanes_avx2(n - i < 8 ? n - i : 8);
        _mm256_maskstore_ps(y + i, m, gelu_mul(_mm256_maskload_ps(gate + i, m), _mm256_maskload_ps(up + i, m)));
    }
}

void oz_scale__avx2(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i m = oz_lanes_avx2(n - i < 8 ? n - i : 8);
        _mm256_maskstore_ps(x + i, m, _mm256_mul_ps(_mm256_maskload_ps(x + i, m), _mm256_set1_ps(factor)));
    }
}

void oz_softcap__avx2(float *x, int64_t n, float cap) {
    const __m256 c = _mm256_set1_ps(cap);
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i m = oz_lanes_avx2(n - i < 8 ? n - i : 8);
        _mm256_maskstore_ps(x + i, m, _mm256_mul_ps(c, oz_tanh_ps(_mm256_div_ps(_mm256_maskload_ps(x + i, m), c))));
    }
}

void oz_add__avx2(float *y, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++) y[i] += x[i];
}

/* Products and sums rounded one by one, as the reference does. */
void oz_combine__avx2(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t top_k, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i m = oz_lanes_avx2(n - i < 8 ? n - i : 8);
        __m256 sum = _mm256_mul_ps(_mm256_set1_ps(weights[0]), _mm256_maskload_ps(x + rows[0] * ld + i, m));
        for (int64_t s = 1; s < top_k; s++) {
            sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(weights[s]), _mm256_maskload_ps(x + rows[s] * ld + i, m)));
        }
        _mm256_maskstore_ps(y + i, m, sum);
    }
}
