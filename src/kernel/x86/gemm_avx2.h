/* Shared by the AVX2 products (gemm_*_avx2.c). */
#ifndef OZ_KERNEL_GEMM_AVX2_H
#define OZ_KERNEL_GEMM_AVX2_H
enum { OZ_PANEL = 16 }; /* rows a panel */
#include "kernel/x86/panel.h"

/* A tile of sums is TOKENS x PANEL: 12 accumulators, two vectors of weights, one or two of activations fill the 16 registers. Each weight
 * that is expanded serves all tokens of the tile. */
enum { OZ_AVX2_PANEL = OZ_PANEL, OZ_AVX2_TOKENS = 6 };
#define OZ_AVX2_TILE (OZ_AVX2_TOKENS * OZ_AVX2_PANEL)

/* Keeps the compiler from working on a tile's next token before it is done with this one, and from holding activations for the next panel: it
 * would run out of registers, and a sum that passes through memory in each step is several times slower. */
#define OZ_KEEP_AVX2(a, b) __asm__ volatile("" : "+x"(a), "+x"(b) : : "memory")

/* Tiles of a block of tokens: full ones, and the last two even, so that none is left with one token: a thin tile waits on the latency of its sums. */
static inline int64_t oz_n_tiles_avx2(int64_t n_tok) { return (n_tok + OZ_AVX2_TOKENS - 1) / OZ_AVX2_TOKENS; }
static inline int64_t oz_tile_start_avx2(int64_t n_tok, int64_t i) {
    int64_t last = oz_n_tiles_avx2(n_tok) - 1, full = OZ_AVX2_TOKENS * i;
    return i > last ? n_tok : i < last || i == 0 ? full : (full - OZ_AVX2_TOKENS + n_tok + 1) / 2;
}

/* y = sum * (scale * x_scale) + bias for tokens [tok, tok + n_tok) of one panel; sums [n_tok, PANEL]. Rows past the last are not stored. */
void oz_tile_store_avx2(const oz_gemm_task *t, int64_t panel, int64_t tok, int64_t n_tok, const float *sums);

/* e4m3: behind a panel's codes stands a float a row, NaN where a code of the row is NaN and else -0, to be added to the sum. */
static inline const float *oz_nan_rows_avx2(const oz_cpu_packed *w, int64_t panel) {
    return (const float *)(w->codes + (size_t)(panel + 1) * w->panel_bytes) - OZ_PANEL;
}

void oz_gemm_f32__avx2(const oz_gemm_task *t, int64_t panel0, int64_t panel1); /* forms F32 and F8 */
void oz_gemm_q8__avx2(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_init__avx2(oz_cpu_table *t);

#endif
