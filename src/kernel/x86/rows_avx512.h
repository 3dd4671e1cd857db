/* The AVX-512 slots that work on one row, and the lanes of a row's end. */
#ifndef OZ_KERNEL_ROWS_AVX512_H
#define OZ_KERNEL_ROWS_AVX512_H
#include <immintrin.h>
#include "kernel/cpu.h"

/* Lanes 0 .. n - 1 of 16; all from 16 on. */
static inline __mmask16 oz_lanes_avx512(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

void oz_norm__avx512(float *y, const float *x, const float *w, int64_t dim, float eps);
void oz_silu_mul__avx512(float *y, const float *gate, const float *up, int64_t n);
void oz_add__avx512(float *y, const float *x, int64_t n);
float oz_quantize_q8__avx512(int8_t *q, const float *x, int64_t n);
void oz_conv__avx512(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
void oz_scan__avx512(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
void oz_attention__avx512(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1);
void oz_round_bf16__avx512(uint16_t *y, const float *x, int64_t n);
double oz_burn_f32__avx512(int64_t n_steps);
double oz_burn_bf16__avx512(int64_t n_steps);
double oz_burn_i8__avx512(int64_t n_steps);

#endif
