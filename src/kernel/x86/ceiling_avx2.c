/* The AVX2 products' own instructions, on registers: FMA for f32, vpmaddwd and an addition for int8. Twelve chains hide their latency. */
#include "kernel/x86/rows_avx2.h"

enum { CHAINS = 12 };

/* The value may have changed: the multiplication stays in the loop. */
#define HIDE(v) __asm__ volatile("" : "+x"(v))

double oz_burn_f32__avx2(int64_t n_steps) {
    __m256 acc[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_ps((float)i);
    for (int64_t s = 0; s < n_steps; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm256_fmadd_ps(acc[i], a, b);
            HIDE(acc[i]);
        }
    }
    return (double)n_steps * CHAINS * 8 * 2;
}

double oz_burn_i8__avx2(int64_t n_steps) {
    __m256i acc[CHAINS], w = _mm256_set1_epi16(3), x = _mm256_set1_epi16(5);
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_epi32(i);
    for (int64_t s = 0; s < n_steps; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            HIDE(w);
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(w, x));
            HIDE(acc[i]);
        }
    }
    return (double)n_steps * CHAINS * 16 * 2;
}

void oz_read__avx2(const uint8_t *p, size_t n_bytes) {
    __m256i sum[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) sum[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < n_bytes; at += 256) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) sum[i] = _mm256_or_si256(sum[i], _mm256_load_si256((const __m256i *)(p + at) + i));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) HIDE(sum[i]);
}
