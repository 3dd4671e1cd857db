/* Products with float activations (forms F32 and F8), for every kind of weight.
 *
 * y[t, r] = sum over k of x[t, k] * w[r, k]. Weights lie in panels of 16 rows, K slowest, so a step of K is 8 to 64 contiguous bytes that are
 * expanded to two vectors of f32 in registers and multiplied at once: there is no buffer of expanded weights. On the cores in question
 * FMA has two of the four vector ports, and expanding runs on the other two, so that with 6 tokens a tile it is nearly free. (Rejected:
 * expanding a piece of a panel into a buffer in L1 for all token tiles. It needs sums parked between pieces of K, and is no faster.)
 *
 * One to three tokens run two or four panels side by side: a chain of FMAs on one sum has a latency of 4 cycles, so at least 8 sums must be
 * in flight. Every sum is one chain over ascending k, whatever the tile: a token's result does not depend on its company.
 *
 * Groups: the codes of a group are summed on their own, sum = sum + scale * group (+ offset * sum of the group's x). That is one
 * rounding a group where scaling each weight would have one a weight, and keeps the inner loop the same for all scales.
 *
 * Codes (a step of K; `lane` is the row in the panel):
 *   F32, F16, I8, F8   16 values side by side
 *   BF16               8 words of 32 bits: row lane in the low half, row lane + 8 in the high half
 *   I4                 8 bytes: rows 0-7 in the first word of 32 bits, 8-15 in the second, lowest nibble first */
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "kernel/x86/gemm_avx2.h"

#define INLINE static inline __attribute__((always_inline))
enum { PANEL = OZ_AVX2_PANEL, X_BLOCK_FLOATS = 128 << 10 /* activations that stay in L2 while panels pass */ };

/* What a code is multiplied by in registers, undone on the sum (powers of two: exact). */
#define UNIT_F8 0x1p8f
#define UNIT_I4 0x1p-28f

/* An e4m3 code moved up by 7 bits is the f16 of value / 256, subnormals too. NaN codes come out as 480 / 256: a panel remembers its rows
 * with NaN (gemm_pack_avx2.c), whose sums are NaN whatever x is. */
INLINE void expand_f8(__m256 w[2], const uint8_t *p) {
    __m256i v = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)p));
    v = _mm256_and_si256(_mm256_slli_epi16(v, 7), _mm256_set1_epi16((int16_t)0xbfff));
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
}

/* Each lane takes its nibble to the top, sign bit first: code * 2^28. */
INLINE void expand_i4(__m256 w[2], const uint8_t *p) {
    __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0), top = _mm256_set1_epi32((int)0xf0000000);
    for (int i = 0; i < 2; i++) {
        int32_t word;
        memcpy(&word, p + 4 * i, sizeof word);
        w[i] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(word), up), top));
    }
}

/* Two vectors of f32, rows 0-7 and 8-15, from step k of a panel. `kind` is a constant at every call. */
INLINE void expand(oz_wkind kind, __m256 w[2], const uint8_t *panel, int64_t k) {
    const uint8_t *p;
    switch (kind) {
    case OZ_WKIND_F32:
        w[0] = _mm256_load_ps((const float *)panel + PANEL * k);
        w[1] = _mm256_load_ps((const float *)panel + PANEL * k + 8);
        break;
    case OZ_WKIND_F16:
        p = panel + 2 * PANEL * k;
        w[0] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
        w[1] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p + 1));
        break;
    case OZ_WKIND_BF16: {
        __m256i v = _mm256_load_si256((const __m256i *)(panel + 2 * PANEL * k));
        w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        w[1] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
        break;
    }
    case OZ_WKIND_I8:
        p = panel + PANEL * k;
        w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
        w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
        break;
    case OZ_WKIND_I4: expand_i4(w, panel + PANEL / 2 * k); break;
    case OZ_WKIND_F8: expand_f8(w, panel + PANEL * k); break;
    case OZ_WKIND_COUNT: break;
    }
}

/* Sums over [k0, k1) of n_tok tokens and n_panel adjacent panels; sums [n_panel, n_tok, PANEL]. */
typedef void sum_fn(float *sums, const oz_packed *w, int64_t panel, const float *x, int64_t ld, int64_t k0, int64_t k1);

INLINE void sum_tile(oz_wkind kind, int n_tok, int n_panel, float *sums, const oz_packed *w, int64_t panel, const float *x, int64_t ld,
                     int64_t k0, int64_t k1) {
    __m256 acc[8][2]; /* [n_panel * n_tok] */
    const uint8_t *codes = w->codes + (size_t)panel * w->panel_bytes;
    const size_t stride = w->panel_bytes;
#pragma GCC unroll 8
    for (int i = 0; i < n_panel * n_tok; i++) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (int64_t k = k0; k < k1; k++) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m256 wv[2];
            expand(kind, wv, codes + (size_t)p * stride, k);
#pragma GCC unroll 8
            for (int t = 0; t < n_tok; t++) {
                __m256 xv = _mm256_broadcast_ss(x + t * ld + k);
                acc[p * n_tok + t][0] = _mm256_fmadd_ps(xv, wv[0], acc[p * n_tok + t][0]);
                acc[p * n_tok + t][1] = _mm256_fmadd_ps(xv, wv[1], acc[p * n_tok + t][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n_panel * n_tok; i++) {
        _mm256_store_ps(sums + i * PANEL, acc[i][0]);
        _mm256_store_ps(sums + i * PANEL + 8, acc[i][1]);
    }
}

enum { MAX_PANELS = 4 };

typedef struct sum_kind {
    float unit;
    sum_fn *sum[OZ_AVX2_TOKENS][MAX_PANELS]; /* [n_tok - 1][n_panel - 1] */
} sum_kind;

#define SUM(kind, nt, np)                                                                                                                \
    static void sum_##kind##_##nt##_##np(float *sums, const oz_packed *w, int64_t panel, const float *x, int64_t ld, int64_t k0, int64_t k1) { \
        sum_tile(OZ_WKIND_##kind, nt, np, sums, w, panel, x, ld, k0, k1);                                                                \
    }
#define SUMS(kind)                                                                                                          \
    SUM(kind, 1, 1) SUM(kind, 1, 2) SUM(kind, 1, 4) SUM(kind, 2, 1) SUM(kind, 2, 2) SUM(kind, 3, 1) SUM(kind, 3, 2) SUM(kind, 4, 1) \
    SUM(kind, 5, 1) SUM(kind, 6, 1)
#define SUM_TABLE(kind)                                                                                                          \
    {{sum_##kind##_1_1, sum_##kind##_1_2, NULL, sum_##kind##_1_4}, {sum_##kind##_2_1, sum_##kind##_2_2}, {sum_##kind##_3_1, sum_##kind##_3_2}, \
     {sum_##kind##_4_1}, {sum_##kind##_5_1}, {sum_##kind##_6_1}}
SUMS(F32) SUMS(F16) SUMS(BF16) SUMS(I8) SUMS(I4) SUMS(F8)

static const sum_kind kinds[OZ_WKIND_COUNT] = {
    [OZ_WKIND_F32] = {1.0f, SUM_TABLE(F32)}, [OZ_WKIND_F16] = {1.0f, SUM_TABLE(F16)}, [OZ_WKIND_BF16] = {1.0f, SUM_TABLE(BF16)},
    [OZ_WKIND_I8] = {1.0f, SUM_TABLE(I8)},   [OZ_WKIND_I4] = {UNIT_I4, SUM_TABLE(I4)}, [OZ_WKIND_F8] = {UNIT_F8, SUM_TABLE(F8)},
};

/* ---- one tile: groups, units, NaN rows ---- */

/* Sum of x over one group; the order depends on n alone. */
static float sum_x(const float *x, int64_t n) {
    __m256 acc = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) acc = _mm256_add_ps(acc, _mm256_loadu_ps(x + k));
    float part[8], sum = 0;
    _mm256_storeu_ps(part, acc);
    for (int i = 0; i < 8; i++) sum += part[i];
    for (; k < n; k++) sum += x[k];
    return sum;
}

/* sums += scale * part (+ offset * sum of x), [n_panel, n_tok, PANEL] of group g = columns [k0, k1). */
static void add_group(float *sums, const float *part, const oz_packed *w, int64_t panel, int n_panel, const float *x, int64_t ld, int n_tok,
                      int64_t g, int64_t k0, int64_t k1) {
    __m256 unit = _mm256_set1_ps(kinds[w->kind].unit);
    for (int i = 0; i < n_panel * n_tok; i++) {
        int64_t at = ((panel + i / n_tok) * w->n_groups + g) * PANEL;
        float x_sum = w->offsets ? sum_x(x + i % n_tok * ld + k0, k1 - k0) : 0;
        for (int half = 0; half < PANEL; half += 8) {
            __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(w->scales + at + half), unit);
            __m256 s = _mm256_fmadd_ps(_mm256_load_ps(part + i * PANEL + half), scale, _mm256_load_ps(sums + i * PANEL + half));
            if (w->offsets) s = _mm256_fmadd_ps(_mm256_set1_ps(x_sum), _mm256_loadu_ps(w->offsets + at + half), s);
            _mm256_store_ps(sums + i * PANEL + half, s);
        }
    }
}

static void add_nan(float *sums, const float *nan, int n_tok) {
    for (int i = 0; i < n_tok * PANEL; i++) sums[i] += nan[i % PANEL];
}

static void multiply_tile(const oz_gemm_task *t, int64_t panel, int n_panel, int64_t tok, int n_tok) {
    _Alignas(32) float sums[OZ_AVX2_TILE] = {0}, part[OZ_AVX2_TILE];
    const oz_packed *w = t->w;
    const sum_kind *kind = &kinds[w->kind];
    sum_fn *sum = kind->sum[n_tok - 1][n_panel - 1];
    const float *x = (const float *)t->x.data + tok * t->x.ld;
    if (!w->scales || oz_scale_is_last_avx2(w)) {
        sum(sums, w, panel, x, t->x.ld, 0, w->cols);
        for (int i = 0; i < n_panel * n_tok * PANEL; i++) sums[i] *= kind->unit;
    } else {
        for (int64_t g = 0, k0 = 0; k0 < w->cols; g++, k0 += w->group_size) {
            int64_t k1 = k0 + w->group_size < w->cols ? k0 + w->group_size : w->cols;
            sum(part, w, panel, x, t->x.ld, k0, k1);
            add_group(sums, part, w, panel, n_panel, x, t->x.ld, n_tok, g, k0, k1);
        }
    }
    for (int p = 0; p < n_panel; p++) {
        float *s = sums + p * n_tok * PANEL;
        if (w->kind == OZ_WKIND_F8) add_nan(s, oz_nan_rows_avx2(w, panel + p), n_tok);
        oz_tile_store_avx2(t, panel + p, tok, n_tok, s);
    }
}

/* ---- all tiles of a call ---- */

/* Panels side by side for a block of n_tok tokens, of `left` panels: those that sum_kind has. */
static int panels_at_once(int64_t n_tok, int64_t left) {
    int most = n_tok == 1 ? 4 : n_tok <= 3 ? 2 : 1;
    while (most > left) most /= 2;
    return most;
}

static void gemm_block(const oz_gemm_task *t, int64_t panel0, int64_t panel1, int64_t tok0, int64_t n_tok) {
    int64_t n_tiles = oz_n_tiles_avx2(n_tok);
    for (int64_t p = panel0; p < panel1;) {
        int n_panel = panels_at_once(n_tok, panel1 - p);
        for (int64_t i = 0; i < n_tiles; i++) {
            int64_t a = oz_tile_start_avx2(n_tok, i), b = oz_tile_start_avx2(n_tok, i + 1);
            multiply_tile(t, p, n_panel, tok0 + a, (int)(b - a));
        }
        p += n_panel;
    }
}

void oz_gemm_f32__avx2(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
    int64_t tiles = X_BLOCK_FLOATS / (t->w->cols * OZ_AVX2_TOKENS), block = OZ_AVX2_TOKENS * (tiles > 1 ? tiles : 1);
    for (int64_t tok = 0; tok < t->n_tok; tok += block) {
        gemm_block(t, panel0, panel1, tok, t->n_tok - tok < block ? t->n_tok - tok : block);
    }
}
