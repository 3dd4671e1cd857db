/* exp for AVX-512, f32: as in math_avx2.h (the same polynomial and the same reduction), 2^n applied by vscalefps. */
#ifndef OZ_KERNEL_MATH_AVX512_H
#define OZ_KERNEL_MATH_AVX512_H
#include <immintrin.h>

/* exp(x) for any x: down to subnormals and 0, up to infinity; NaN stays. */
static inline __m512 oz_exp_ps512(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(_mm512_set1_ps(-104.0f), x)); /* of two operands the second is kept on NaN */
    const __m512 k = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0x1.62e4p-1f), x);
    r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    const __m512 r2 = _mm512_mul_ps(r, r);
    const __m512 q01 = _mm512_fmadd_ps(_mm512_set1_ps(0x1.555492p-3f), r, _mm512_set1_ps(0x1.fffffcp-2f));
    const __m512 q23 = _mm512_fmadd_ps(_mm512_set1_ps(0x1.1239e2p-7f), r, _mm512_set1_ps(0x1.5558f2p-5f));
    __m512 q = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_set1_ps(0x1.6a242cp-10f), r2, q23), r2, q01);
    q = _mm512_fmadd_ps(q, r2, r);
    return _mm512_scalef_ps(_mm512_add_ps(q, _mm512_set1_ps(1.0f)), k);
}

/* exp(x) for x <= 0, as softmax needs it: exactly 0 below -87 (and so for -inf); NaN gives 0. */
static inline __m512 oz_exp_neg_ps512(__m512 x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ), oz_exp_ps512(x));
}

#endif
