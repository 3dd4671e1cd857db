/* The AVX2 slots that work on one row, and the loads of a row's end. */
#ifndef OZ_KERNEL_ROWS_AVX2_H
#define OZ_KERNEL_ROWS_AVX2_H
#include <immintrin.h>
#include "kernel/cpu.h"

/* Lanes 0 .. n - 1 of 8 (n <= 8): what maskload and maskstore touch. */
static inline __m256i oz_lanes_avx2(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

void oz_norm__avx2(float *y, const float *x, const float *w, int64_t dim, float eps);
void oz_rope__avx2(float *head, const float *cos, const float *sin, int64_t half);
void oz_rope_pairs__avx2(float *head, const float *cos, const float *sin, int64_t half);
void oz_silu_mul__avx2(float *y, const float *gate, const float *up, int64_t n);
void oz_gelu_mul__avx2(float *y, const float *gate, const float *up, int64_t n);
void oz_scale__avx2(float *x, int64_t n, float factor);
void oz_softcap__avx2(float *x, int64_t n, float cap);
void oz_add__avx2(float *y, const float *x, int64_t n);
void oz_combine__avx2(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t top_k, int64_t n);
float oz_quantize_q8__avx2(int8_t *q, const float *x, int64_t n);
float oz_quantize_f8__avx2(float *q, const float *x, int64_t n);
void oz_conv__avx2(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
void oz_scan__avx2(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
void oz_attention__avx2(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1);
void oz_stat__avx2(oz_row_stat *out, const float *logits, int32_t target, int64_t vocab);
void oz_kl__avx2(oz_kl_stat *out, const float *ref, const float *logits, int32_t target, int64_t vocab);
double oz_burn_f32__avx2(int64_t n_steps);
double oz_burn_i8__avx2(int64_t n_steps);
void oz_read__avx2(const uint8_t *p, size_t n_bytes);

#endif
