/* Shared by the AVX-512 products (gemm_*_avx512.c). */
#ifndef OZ_KERNEL_GEMM_AVX512_H
#define OZ_KERNEL_GEMM_AVX512_H
#include "kernel/x86/panel.h"

/* 64 bytes of codes are a chunk: so many columns of a panel's 16 rows. Panels are padded to whole ones. */
static inline int oz_chunk_cols_avx512(oz_wkind kind) {
    static const int cols[OZ_WKIND_COUNT] = {
        [OZ_WKIND_F32] = 1, [OZ_WKIND_F16] = 2, [OZ_WKIND_BF16] = 2, [OZ_WKIND_I8] = 4, [OZ_WKIND_F8] = 4, [OZ_WKIND_I4] = 8};
    return cols[kind];
}

/* F8 panels end with a float a row, NaN where a code of the row is NaN and else -0, to be added to the sum. */
const float *oz_nan_rows_avx512(const oz_cpu_packed *w, int64_t panel);

void oz_gemm_f32__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1); /* forms F32 and F8 */
void oz_gemm_bf16__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_q8__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_init__avx512(oz_cpu_table *t);

#endif
