/* Quantizing and rounding of one token's activations, bit by bit what number/ defines. (vcvtneps2bf16 would take subnormals as zero.) */
#include <math.h>
#include "kernel/x86/rows_avx512.h"

void oz_round_bf16__avx512(uint16_t *y, const float *x, int64_t n) {
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1), quiet = _mm512_set1_epi32(0x400000);
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = oz_lanes_avx512(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        const __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        const __m512i r = _mm512_mask_or_epi32(_mm512_add_epi32(_mm512_add_epi32(u, half), odd), nan, u, quiet);
        _mm256_mask_storeu_epi16(y + i, m, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
    }
}

/* Largest magnitude; NaN where x holds a NaN or an infinity. Magnitudes order like their bits, and those two stand above all others. */
static float amax_of(const float *x, int64_t n) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 16) {
        const __m512i v = _mm512_maskz_loadu_epi32(oz_lanes_avx512(n - i), x + i);
        most = _mm512_max_epi32(most, _mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff)));
    }
    const float amax = _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(_mm512_reduce_max_epi32(most))));
    return isfinite(amax) ? amax : NAN;
}

/* The quotient is at most 127 but for a subnormal scale's rounding, far from what int32 holds; vpmovsdb saturates. */
float oz_quantize_q8__avx512(int8_t *q, const float *x, int64_t n) {
    const float amax = amax_of(x, n), s = amax / 127.0f;
    const bool zero = !(s > 0); /* all zero, or not a number: then the scale carries it on */
    const __m512 sv = _mm512_set1_ps(zero ? 1.0f : s);
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = oz_lanes_avx512(n - i);
        const __m512i v = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_maskz_loadu_ps(zero ? 0 : m, x + i), sv));
        _mm_mask_storeu_epi8(q + i, m, _mm512_cvtsepi32_epi8(_mm512_max_epi32(v, _mm512_set1_epi32(-127))));
    }
    return zero ? isnan(s) ? s : 1.0f : s;
}
