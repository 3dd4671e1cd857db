/* The AVX-512 products' own instructions, on registers: FMA for f32, vdpbf16ps for bf16, vpdpbusd for int8. Sixteen chains hide their latency. */
#include "kernel/x86/rows_avx512.h"

enum { CHAINS = 16 };

/* The value may have changed: the multiplication stays in the loop. */
#define HIDE(v) __asm__ volatile("" : "+v"(v))

double oz_burn_f32__avx512(int64_t n_steps) {
    __m512 acc[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i);
    for (int64_t s = 0; s < n_steps; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm512_fmadd_ps(acc[i], a, b);
            HIDE(acc[i]);
        }
    }
    return (double)n_steps * CHAINS * 16 * 2;
}

double oz_burn_bf16__avx512(int64_t n_steps) {
    __m512 acc[CHAINS];
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f7f), b = (__m512bh)_mm512_set1_epi16(0x3a83); /* about 1 and 0.001 */
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i);
    for (int64_t s = 0; s < n_steps; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
            HIDE(acc[i]);
        }
    }
    return (double)n_steps * CHAINS * 32 * 2;
}

double oz_burn_i8__avx512(int64_t n_steps) {
    __m512i acc[CHAINS], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_epi32(i);
    for (int64_t s = 0; s < n_steps; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm512_dpbusd_epi32(acc[i], w, x);
            HIDE(acc[i]);
        }
    }
    return (double)n_steps * CHAINS * 64 * 2;
}
