/* Shared by the AVX-512 products (gemm_*_avx512.c). */
#ifndef OZ_KERNEL_GEMM_AVX512_H
#define OZ_KERNEL_GEMM_AVX512_H
#include "kernel/x86/panel.h"

/* Panels are padded to whole units of so many columns. */
enum { OZ_UNIT_AVX512 = 16 };

/* F8 panels end with a float a row, NaN where a code of the row is NaN and else -0, to be added to the sum. */
const float *oz_nan_rows_avx512(const oz_cpu_packed *w, int64_t panel);

void oz_gemm_f32__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1); /* forms F32 and F8 */
void oz_gemm_bf16__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_q8__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_init__avx512(oz_cpu_table *t);

#endif
