/* exp for AVX2, f32 and f64: x = n ln 2 + r with |r| <= ln 2 / 2, then 2^n times a polynomial in r.
 *
 * The polynomials are 1 + r + r^2 q(r), q fitted by Remez exchange to the smallest relative error of exp: degree 6 in all gives 2^-28.3 and 10
 * gives 2^-51.6, under the rounding of the type. n is found by adding 1.5 * 2^23 (2^52), whose last bits then hold it; ln 2 is split in two so
 * that r is exact enough. Terms are summed in pairs, not one after the other: a core looks ahead too little to fill a long chain's waits. */
#ifndef OZ_KERNEL_MATH_AVX2_H
#define OZ_KERNEL_MATH_AVX2_H
#include <immintrin.h>

/* The exponent's polynomial, and n in the last bits of *n. */
static inline __m256 oz_exp_poly_ps(__m256 x, __m256i *n) {
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(0x1.715476p0f), magic), k = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0x1.62e4p-1f), x);
    r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 r2 = _mm256_mul_ps(r, r);
    __m256 q01 = _mm256_fmadd_ps(_mm256_set1_ps(0x1.555492p-3f), r, _mm256_set1_ps(0x1.fffffcp-2f));
    __m256 q23 = _mm256_fmadd_ps(_mm256_set1_ps(0x1.1239e2p-7f), r, _mm256_set1_ps(0x1.5558f2p-5f));
    __m256 q = _mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_set1_ps(0x1.6a242cp-10f), r2, q23), r2, q01);
    q = _mm256_fmadd_ps(q, r2, r);
    *n = _mm256_castps_si256(t);
    return _mm256_add_ps(q, _mm256_set1_ps(1.0f));
}

/* exp(x) for x <= 0, as softmax needs it: exactly 0 below -87 (and so for -inf); NaN gives 0. */
static inline __m256 oz_exp_neg_ps(__m256 x) {
    const __m256 least = _mm256_set1_ps(-87.0f);
    __m256i n;
    __m256 p = oz_exp_poly_ps(_mm256_max_ps(x, least), &n);
    __m256 e = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(n, 23)));
    return _mm256_and_ps(e, _mm256_cmp_ps(x, least, _CMP_GE_OQ));
}

/* exp(x) for any x: down to subnormals and 0, up to infinity; NaN stays. 2^n is applied in two factors. */
static inline __m256 oz_exp_ps(__m256 x) {
    __m256i n, bias = _mm256_set1_epi32(127);
    x = _mm256_min_ps(_mm256_set1_ps(89.0f), _mm256_max_ps(_mm256_set1_ps(-104.0f), x)); /* of two operands the second is kept on NaN */
    __m256 p = oz_exp_poly_ps(x, &n);
    n = _mm256_srai_epi32(_mm256_slli_epi32(n, 16), 16);
    __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

/* tanh(x): x + x^3 p(x^2) up to 0.625, p of degree 4 fitted to the smallest relative error (2^-27.8); beyond, 1 - 2 / (exp(2 |x|) + 1). */
static inline __m256 oz_tanh_ps(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(-0x1.75e1cap-8f), z, _mm256_set1_ps(0x1.52269ap-6f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.b83c5ap-5f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0x1.110726p-3f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.555532p-2f));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = oz_exp_ps(_mm256_add_ps(a, a));
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
    large = _mm256_or_ps(large, _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(large, small, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

/* exp(x) for x <= 0; below -708, and for -inf, exp(-708): nothing beside a sum that is 1 or more. NaN stays. ln 2 is not split here: the error
 * is 2^-55 for each power of two below 1, least where a term weighs most. */
static inline __m256d oz_exp_neg_pd(__m256d x) {
    const __m256d magic = _mm256_set1_pd(0x1.8p52), least = _mm256_set1_pd(-708.0);
    __m256d c = _mm256_max_pd(least, x);
    __m256d t = _mm256_fmadd_pd(c, _mm256_set1_pd(0x1.71547652b82fep0), magic), k = _mm256_sub_pd(t, magic);
    __m256d r = _mm256_fnmadd_pd(k, _mm256_set1_pd(0x1.62e42fefa39efp-1), c);
    __m256d r2 = _mm256_mul_pd(r, r), r4 = _mm256_mul_pd(r2, r2);
    __m256d q01 = _mm256_fmadd_pd(_mm256_set1_pd(0x1.55555555507b8p-3), r, _mm256_set1_pd(0x1.ffffffffffed2p-2));
    __m256d q23 = _mm256_fmadd_pd(_mm256_set1_pd(0x1.11111125b6a76p-7), r, _mm256_set1_pd(0x1.555555558917dp-5));
    __m256d q45 = _mm256_fmadd_pd(_mm256_set1_pd(0x1.a0198d4dd0447p-13), r, _mm256_set1_pd(0x1.6c16c0c80f393p-10));
    __m256d q67 = _mm256_fmadd_pd(_mm256_set1_pd(0x1.72e9273a8747fp-19), r, _mm256_set1_pd(0x1.a01b7c965cea8p-16));
    __m256d low = _mm256_fmadd_pd(q23, r2, q01), high = _mm256_fmadd_pd(q67, r2, q45);
    high = _mm256_fmadd_pd(_mm256_set1_pd(0x1.270778dd2fe23p-22), r4, high);
    __m256d q = _mm256_fmadd_pd(_mm256_fmadd_pd(high, r4, low), r2, r);
    q = _mm256_add_pd(q, _mm256_set1_pd(1.0));
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(q), _mm256_slli_epi64(_mm256_castpd_si256(t), 52)));
}

#endif
