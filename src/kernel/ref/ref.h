/* Internal to kernel/ref: plain C of every slot, which is what the other levels are checked against. */
#ifndef OZ_KERNEL_REF_H
#define OZ_KERNEL_REF_H
#include "kernel/cpu.h"

void oz_gemm_init__ref(oz_cpu_table *t);
void oz_attention__ref(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1);
void oz_conv__ref(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
void oz_scan__ref(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
void oz_state_begin(float *state, const oz_seg *seg, int64_t rows, int64_t n, int64_t c0, int64_t c1); /* zeros where the segment begins a sequence */
void oz_conv_keep(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);     /* the last inputs, for the next call */
void oz_stat__ref(oz_row_stat *out, const float *logits, int32_t target, int64_t vocab);
void oz_kl__ref(oz_kl_stat *out, const float *ref, const float *logits, int32_t target, int64_t vocab);
double oz_burn_f32__ref(int64_t n_steps);
double oz_burn_i8__ref(int64_t n_steps);
void oz_read__ref(const uint8_t *p, size_t n_bytes);

#endif
