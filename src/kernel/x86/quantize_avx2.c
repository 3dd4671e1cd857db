/* Dynamic quantization of one token's activations, bit by bit what number/ defines: amax, true division, ties to even. */
#include <math.h>
#include "kernel/x86/rows_avx2.h"

/* Largest magnitude; NaN where x holds a NaN or an infinity. Magnitudes order like their bits, and those two stand above all others. */
static float amax_of(const float *x, int64_t n) {
    const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        most = _mm256_max_epi32(most, _mm256_and_si256(no_sign, _mm256_loadu_si256((const __m256i *)(x + i))));
    }
    if (i < n) most = _mm256_max_epi32(most, _mm256_and_si256(no_sign, _mm256_maskload_epi32((const int *)(x + i), oz_lanes_avx2(n - i))));
    float lanes[8], amax = 0;
    _mm256_storeu_ps(lanes, _mm256_castsi256_ps(most));
    for (int l = 0; l < 8; l++) {
        if (!isfinite(lanes[l])) return NAN;
        if (lanes[l] > amax) amax = lanes[l];
    }
    return amax;
}

/* int32 codes of 8 elements. The quotient is at most 127 but for a subnormal scale's rounding, far from what int32 holds. */
static inline __m256i codes_q8(__m256 x, __m256 s) {
    __m256i v = _mm256_cvtps_epi32(_mm256_div_ps(x, s));
    return _mm256_max_epi32(_mm256_set1_epi32(-127), _mm256_min_epi32(_mm256_set1_epi32(127), v));
}

float oz_quantize_q8__avx2(int8_t *q, const float *x, int64_t n) {
    float amax = amax_of(x, n), s = amax / 127.0f;
    if (!(s > 0)) { /* all zero, or not a number: then the scale carries it on */
        for (int64_t i = 0; i < n; i++) q[i] = 0;
        return isnan(s) ? s : 1.0f;
    }
    __m256 sv = _mm256_set1_ps(s);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i w = _mm256_packs_epi32(codes_q8(_mm256_loadu_ps(x + i), sv), codes_q8(_mm256_loadu_ps(x + i + 8), sv));
        w = _mm256_permute4x64_epi64(w, 0xd8); /* packs works on halves: put the quarters in order */
        _mm_storeu_si128((__m128i *)(q + i), _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
    }
    for (; i < n; i += 8) {
        int32_t code[8];
        _mm256_storeu_si256((__m256i *)code, codes_q8(_mm256_maskload_ps(x + i, oz_lanes_avx2(n - i)), sv));
        for (int64_t l = 0; l < 8 && i + l < n; l++) q[i + l] = (int8_t)code[l];
    }
    return s;
}

/* The e4m3 value nearest to v, |v| <= 448 after clamping. Normal: 20 bits of the mantissa are rounded away. Below 2^-6 values are multiples
 * of 2^-9, which is what adding and taking away 1.5 * 2^14 rounds to. */
static inline __m256 round_e4m3(__m256 v) {
    const __m256 sign_bit = _mm256_set1_ps(-0.0f), magic = _mm256_set1_ps(0x1.8p14f);
    __m256 sign = _mm256_and_ps(v, sign_bit), mag = _mm256_min_ps(_mm256_andnot_ps(sign_bit, v), _mm256_set1_ps(448.0f));
    __m256i u = _mm256_castps_si256(mag), odd = _mm256_and_si256(_mm256_srli_epi32(u, 20), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
    __m256 normal = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xfff00000)));
    __m256 small = _mm256_sub_ps(_mm256_add_ps(mag, magic), magic);
    return _mm256_or_ps(sign, _mm256_blendv_ps(normal, small, _mm256_cmp_ps(mag, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ)));
}

float oz_quantize_f8__avx2(float *q, const float *x, int64_t n) {
    const float least = 1.0f / (448.0f * 512.0f);
    float amax = amax_of(x, n), s = amax / 448.0f;
    if (isnan(s)) {
        for (int64_t i = 0; i < n; i++) q[i] = 0;
        return s;
    }
    if (s < least) s = least;
    __m256 sv = _mm256_set1_ps(s);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(q + i, round_e4m3(_mm256_div_ps(_mm256_loadu_ps(x + i), sv)));
    if (i < n) {
        __m256i m = oz_lanes_avx2(n - i);
        _mm256_maskstore_ps(q + i, m, round_e4m3(_mm256_div_ps(_mm256_maskload_ps(x + i, m), sv)));
    }
    return s;
}
