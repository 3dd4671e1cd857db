/* Shared by the AVX-512 products (gemm_*_avx512.c). */
#ifndef OZ_KERNEL_GEMM_AVX512_H
#define OZ_KERNEL_GEMM_AVX512_H
#include "kernel/x86/panel.h"

/* Panels are padded to whole units of so many columns. */
enum { OZ_UNIT_AVX512 = 16 };

/* One tile's sums over one run of units. */
typedef struct oz_run {
    const uint8_t *codes; size_t stride; /* of the first panel, and from one to the next */
    const uint8_t *x; int64_t ld;        /* activations of the first token, bytes from one to the next */
    int64_t n_units;
    int n_tok, n_panel;
    bool cold;                           /* codes may not be in a cache yet */
    const float *scales; size_t scale_stride; /* coded kinds: of the first unit's group, floats from one panel to the next; 0: not by groups */
    int64_t units_group, units_left;     /* units a group; of the first one, what is left */
    __m512i book;                        /* codes of 4 bits */
} oz_run;
typedef void oz_sum_fn(__m512i *sums, const oz_run *r); /* sums [n_panel, n_tok] go on */

/* Blocks of tokens, cut into tiles, and panels at a time: at most 128 and 8. */
typedef struct oz_tiling {
    int64_t block, tokens, panels;
    oz_sum_fn *sum; /* takes up to so many tokens and panels, of the form's own kind or expanded; NULL: AVX-512's functions */
} oz_tiling;
void oz_gemm__avx512(const oz_gemm_task *t, oz_form form, const oz_tiling *tiling, int64_t panel0, int64_t panel1);
void oz_gemm_f32__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1); /* forms F32 and F8 */
void oz_gemm_bf16__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_q8__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_init__avx512(oz_cpu_table *t);

#endif
