/* Rounding of one token's activations, bit by bit what number/ defines. (vcvtneps2bf16 would take subnormals as zero.) */
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
