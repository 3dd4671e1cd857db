/* Products with float activations (forms F32 and F8), for every kind of weight.
 *
 * y[t, r] = sum over k of x[t, k] * w[r, k]. Weights lie in panels of 16 rows, K slowest, so a step of K is 8 to 64 contiguous bytes that are
 * expanded to two vectors of f32 in registers and multiplied at once. FMA has two of the four vector ports, and expanding runs on the other
 * two, so that with 6 tokens a tile it is nearly free; only 4 bits and F8, which take more of it, expand a panel into L2 when 8 tiles or more
 * will read it. (Rejected: expanding pieces of all kinds into L1. It needs sums parked between pieces of K, and is no faster.)
 *
 * One to three tokens run two or four panels side by side: a chain of FMAs on one sum has a latency of 4 cycles, so at least 8 sums must be
 * in flight. Every sum is one chain over ascending k, whatever the tile: a token's result does not depend on its company.
 *
 * Groups: the codes of a group are summed on their own, sum = sum + scale * group (+ offset * sum of the group's x). That is one
 * rounding a group where scaling each weight would have one a weight, and keeps the inner loop the same for all scales. (Rejected: int4 codes
 * with their bias of 8 left in and taken from the sum at the end: one instruction in four less, but a zero weight would no longer add zero.)
 *
 * Codes of a step of K:
 *   F32, F16, I8   16 values side by side
 *   BF16, F8, 4 bits   row i and row i + 8 side by side (4 bits: low and high nibble), so that one load serves both vectors
 *
 * Zen 4 at 3.7 GHz, one core, 2026-11-29, [1536, 576], 64 tokens: 105 to 109 GFLOP/s with F32, F16, BF16 and I8, 96 with I4 in groups of 64 and F8,
 * of 118 that FMA can do. One token, [262144, 576], memory of 18 to 24 GB/s a core: BF16 21, I8 23, F8 19, I4 12 GB/s. */
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "kernel/x86/gemm_avx2.h"

#define INLINE static inline __attribute__((always_inline))
enum { PANEL = OZ_AVX2_PANEL, MAX_PANELS = 4, PREFETCH_BYTES = 2048 };

/* An e4m3 code in the place of an f32's sign, low exponent bits and high mantissa bits is its value * 2^-120, subnormals too. NaN codes come
 * out as 480: a panel remembers its rows with NaN (gemm_pack_avx2.c), whose sums are NaN whatever x is. */
INLINE void expand_f8(__m256 w[2], const uint8_t *p) {
    __m256i v = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)p)), bits = _mm256_set1_epi32((int)0x87f00000);
    __m256 up = _mm256_set1_ps(0x1p120f);
    w[0] = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(v, 20), bits)), up);
    w[1] = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(v, 4), bits)), up);
}

/* Low nibbles go to the top, sign bit first; high nibbles stay, under the byte's sign. */
INLINE void expand_i4(__m256 w[2], const uint8_t *p) {
    __m256i v = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
    w[0] = _mm256_cvtepi32_ps(_mm256_slli_epi32(v, 28));
    w[1] = _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(~15)));
}

INLINE void expand_u4(__m256 w[2], const uint8_t *p) {
    __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    w[0] = _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15)));
    w[1] = _mm256_cvtepi32_ps(_mm256_srli_epi32(v, 4));
}

/* The low nibbles and, in the upper half, the high ones; one shuffle looks all 16 up. */
INLINE void expand_l4(__m256 w[2], const uint8_t *p, __m128i book) {
    __m128i v = _mm_srlv_epi64(_mm_castpd_si128(_mm_loaddup_pd((const double *)p)), _mm_set_epi64x(4, 0));
    v = _mm_shuffle_epi8(book, _mm_and_si128(v, _mm_set1_epi8(15)));
    w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
    w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)));
}

/* Two vectors of f32, rows 0-7 and 8-15, from step k of a panel. `kind` is a constant at every call; book is L4's. */
INLINE void expand(oz_wkind kind, __m256 w[2], const uint8_t *panel, int64_t k, __m128i book) {
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
    case OZ_WKIND_U4: expand_u4(w, panel + PANEL / 2 * k); break;
    case OZ_WKIND_L4: expand_l4(w, panel + PANEL / 2 * k, book); break;
    case OZ_WKIND_COUNT: break;
    }
}

INLINE int step_bytes(oz_wkind kind) {
    return kind == OZ_WKIND_F32 ? 4 * PANEL : kind == OZ_WKIND_F16 || kind == OZ_WKIND_BF16 ? 2 * PANEL : kind == OZ_WKIND_I4 || kind >= OZ_WKIND_U4 ? PANEL / 2 : PANEL;
}

/* Where the stream of a panel is PREFETCH_BYTES after step k. Panels are short: behind its end comes the same panel of the next n_panel. */
INLINE size_t stream_ahead(oz_wkind kind, int n_panel, size_t stride, int64_t k) {
    size_t at = (size_t)k * (size_t)step_bytes(kind) + PREFETCH_BYTES;
    return at < stride ? at : at + (size_t)(n_panel - 1) * stride;
}

/* Activations of a tile, the columns to sum over, and the codebook (L4). */
typedef struct x_part { const float *x; int64_t ld, k0, k1; const int8_t *codebook; } x_part;

INLINE __m128i load_book(oz_wkind kind, const int8_t *codebook) {
    return kind == OZ_WKIND_L4 ? _mm_loadu_si128((const __m128i *)codebook) : _mm_setzero_si128();
}

/* Sums of n_tok tokens and n_panel panels, `stride` bytes apart; sums [n_panel, n_tok, PANEL]. */
typedef void sum_fn(float *sums, const uint8_t *codes, size_t stride, const x_part *xp);

INLINE void sum_tile(oz_wkind kind, int n_tok, int n_panel, float *sums, const uint8_t *codes, size_t stride, const x_part *xp) {
    __m256 acc[8][2]; /* [n_panel * n_tok] */
    const float *x = xp->x;
    const int64_t ld = xp->ld, k1 = xp->k1;
    const __m128i book = load_book(kind, xp->codebook);
#pragma GCC unroll 8
    for (int i = 0; i < n_panel * n_tok; i++) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (int64_t k = xp->k0; k < k1; k++) {
        size_t ahead = stream_ahead(kind, n_panel, stride, k);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m256 wv[2];
            _mm_prefetch((const char *)codes + (size_t)p * stride + ahead, _MM_HINT_T0);
            expand(kind, wv, codes + (size_t)p * stride, k, book);
#pragma GCC unroll 8
            for (int t = 0; t < n_tok; t++) {
                __m256 xv = _mm256_broadcast_ss(x + t * ld + k), *sum = acc[p * n_tok + t];
                sum[0] = _mm256_fmadd_ps(xv, wv[0], sum[0]);
                sum[1] = _mm256_fmadd_ps(xv, wv[1], sum[1]);
                OZ_KEEP_AVX2(sum[0], sum[1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n_panel * n_tok; i++) {
        _mm256_store_ps(sums + i * PANEL, acc[i][0]);
        _mm256_store_ps(sums + i * PANEL + 8, acc[i][1]);
    }
}

#define SUM(kind, nt, np)                                                                                        \
    static void sum_##kind##_##nt##_##np(float *sums, const uint8_t *codes, size_t stride, const x_part *xp) { \
        sum_tile(OZ_WKIND_##kind, nt, np, sums, codes, stride, xp);                                              \
    }
#define KIND(kind)                                                                                                          \
    SUM(kind, 1, 1) SUM(kind, 1, 2) SUM(kind, 1, 4) SUM(kind, 2, 1) SUM(kind, 2, 2) SUM(kind, 3, 1) SUM(kind, 3, 2) SUM(kind, 4, 1) \
    SUM(kind, 5, 1) SUM(kind, 6, 1)                                                                                         \
    static void expand_##kind(float *dst, const uint8_t *panel, int64_t cols, const int8_t *codebook) {                      \
        const __m128i book = load_book(OZ_WKIND_##kind, codebook);                                                          \
        for (int64_t k = 0; k < cols; k++) {                                                                                \
            __m256 w[2];                                                                                                    \
            expand(OZ_WKIND_##kind, w, panel, k, book);                                                                     \
            _mm256_store_ps(dst + PANEL * k, w[0]);                                                                         \
            _mm256_store_ps(dst + PANEL * k + 8, w[1]);                                                                     \
        }                                                                                                                   \
    }
KIND(F32) KIND(F16) KIND(BF16) KIND(I8) KIND(I4) KIND(F8) KIND(U4) KIND(L4)

typedef struct kind_fns {
    float unit[2]; /* of the codes as expanded, rows 0-7 and 8-15; powers of two: exact */
    sum_fn *sum[OZ_AVX2_TOKENS][MAX_PANELS]; /* [n_tok - 1][n_panel - 1] */
    void (*expand)(float *dst, const uint8_t *panel, int64_t cols, const int8_t *codebook);
} kind_fns;

#define FNS(kind, unit0, unit1)                                                                                        \
    [OZ_WKIND_##kind] = {{unit0, unit1},                                                                               \
                         {{sum_##kind##_1_1, sum_##kind##_1_2, NULL, sum_##kind##_1_4}, {sum_##kind##_2_1, sum_##kind##_2_2}, \
                          {sum_##kind##_3_1, sum_##kind##_3_2}, {sum_##kind##_4_1}, {sum_##kind##_5_1}, {sum_##kind##_6_1}},  \
                         expand_##kind}
static const kind_fns kinds[OZ_WKIND_COUNT] = {
    FNS(F32, 1.0f, 1.0f), FNS(F16, 1.0f, 1.0f), FNS(BF16, 1.0f, 1.0f), FNS(I8, 1.0f, 1.0f), FNS(I4, 0x1p-28f, 0x1p-4f), FNS(F8, 1.0f, 1.0f),
    FNS(U4, 1.0f, 1.0f), FNS(L4, 1.0f, 1.0f),
};

/* ---- one tile: groups, units, NaN rows ---- */

/* Sum of x over one group; the order depends on n alone. */
static float sum_x(const float *x, int64_t n) {
    __m256 acc = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) acc = _mm256_add_ps(acc, _mm256_loadu_ps(x + k));
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps(acc, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    float sum = _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    for (; k < n; k++) sum += x[k];
    return sum;
}

/* One panel's sums += scale * part (+ offset * sum of x), [n_tok, PANEL], of group g. */
static void add_group(float *sums, const float *part, const oz_cpu_packed *w, int64_t panel, int64_t g, const float *x_sums, int n_tok) {
    int64_t at = (panel * w->n_groups + g) * PANEL, ahead = at + MAX_PANELS * w->n_groups * PANEL;
    _mm_prefetch((const char *)(w->scales + ahead), _MM_HINT_T0);
    for (int h = 0; h < 2; h++) {
        __m256 scale = _mm256_loadu_ps(w->scales + at + 8 * h), unit = _mm256_set1_ps(kinds[w->kind].unit[h]);
        for (int t = 0; t < n_tok; t++) {
            float *s = sums + t * PANEL + 8 * h;
            __m256 codes = _mm256_mul_ps(_mm256_load_ps(part + t * PANEL + 8 * h), unit);
            _mm256_store_ps(s, _mm256_fmadd_ps(codes, scale, _mm256_load_ps(s)));
        }
    }
    if (!w->offsets) return;
    _mm_prefetch((const char *)(w->offsets + ahead), _MM_HINT_T0);
    for (int t = 0; t < n_tok; t++) {
        __m256 x_sum = _mm256_set1_ps(x_sums[t]);
        for (int h = 0; h < 2; h++) {
            float *s = sums + t * PANEL + 8 * h;
            _mm256_store_ps(s, _mm256_fmadd_ps(x_sum, _mm256_loadu_ps(w->offsets + at + 8 * h), _mm256_load_ps(s)));
        }
    }
}

/* Adjacent panels of a weight, or one of them expanded to f32 (kind F32; values are still in the weight's units). */
typedef struct panels { int64_t first; int n; oz_wkind kind; const uint8_t *codes; size_t stride; } panels;

static void multiply_tile(const oz_gemm_task *t, const panels *p, int64_t tok, int n_tok) {
    _Alignas(32) float sums[OZ_AVX2_TILE] = {0}, part[OZ_AVX2_TILE];
    float x_sums[OZ_AVX2_TOKENS];
    const oz_cpu_packed *w = t->w;
    sum_fn *sum = kinds[p->kind].sum[n_tok - 1][p->n - 1];
    x_part xp = {(const float *)t->x.data + tok * t->x.ld, t->x.ld, 0, w->head.cols, w->codebook};
    if (!w->scales || oz_scale_is_last(w)) {
        sum(sums, p->codes, p->stride, &xp);
        for (int i = 0; i < p->n * n_tok * PANEL; i++) sums[i] *= kinds[w->kind].unit[i / 8 % 2];
    } else {
        for (int64_t g = 0; g < w->n_groups; g++) {
            xp.k0 = g * w->group_size;
            xp.k1 = xp.k0 + w->group_size < w->head.cols ? xp.k0 + w->group_size : w->head.cols;
            sum(part, p->codes, p->stride, &xp);
            for (int i = 0; w->offsets && i < n_tok; i++) x_sums[i] = sum_x(xp.x + i * xp.ld + xp.k0, xp.k1 - xp.k0);
            for (int i = 0; i < p->n; i++) {
                add_group(sums + i * n_tok * PANEL, part + i * n_tok * PANEL, w, p->first + i, g, x_sums, n_tok);
            }
        }
    }
    for (int i = 0; i < p->n; i++) {
        float *s = sums + i * n_tok * PANEL;
        if (w->kind == OZ_WKIND_F8) {
            const float *nan = oz_nan_rows_avx2(w, p->first + i);
            for (int l = 0; l < n_tok * PANEL; l++) s[l] += nan[l % PANEL];
        }
        oz_tile_store_avx2(t, p->first + i, tok, n_tok, s);
    }
}

/* ---- all tiles of a call ---- */

enum {
    X_BLOCK_FLOATS = 64 << 10, /* activations that stay in L2 while panels pass */
    EXPAND_COLS = 4096,         /* of a panel that is expanded once for all tiles, into L2 */
    EXPAND_TILES = 8,           /* so many or more */
};

/* Panels side by side for a block of n_tok tokens, of `left` panels: those that kind_fns has. */
static int panels_at_once(int64_t n_tok, int64_t left) {
    int most = n_tok == 1 ? 4 : n_tok <= 3 ? 2 : 1;
    while (most > left) most /= 2;
    return most;
}

static void gemm_block(const oz_gemm_task *t, int64_t panel0, int64_t panel1, int64_t tok0, int64_t n_tok) {
    _Alignas(32) float expanded[EXPAND_COLS * PANEL];
    const oz_cpu_packed *w = t->w;
    int64_t n_tiles = oz_n_tiles_avx2(n_tok);
    bool expands = w->kind > OZ_WKIND_I8 && n_tiles >= EXPAND_TILES && w->head.cols <= EXPAND_COLS;
    panels p = {panel0, 1, w->kind, NULL, w->panel_bytes};
    for (; p.first < panel1; p.first += p.n) {
        p.n = panels_at_once(n_tok, panel1 - p.first);
        p.codes = w->codes + (size_t)p.first * w->panel_bytes;
        if (expands) {
            kinds[w->kind].expand(expanded, p.codes, w->head.cols, w->codebook);
            p.kind = OZ_WKIND_F32;
            p.codes = (const uint8_t *)expanded;
        }
        for (int64_t i = 0; i < n_tiles; i++) {
            int64_t a = oz_tile_start_avx2(n_tok, i), b = oz_tile_start_avx2(n_tok, i + 1);
            multiply_tile(t, &p, tok0 + a, (int)(b - a));
        }
    }
}

void oz_gemm_f32__avx2(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
    int64_t tiles = X_BLOCK_FLOATS / (t->w->head.cols * OZ_AVX2_TOKENS), block = OZ_AVX2_TOKENS * (tiles > 1 ? tiles : 1);
    for (int64_t tok = 0; tok < t->n_tok; tok += block) {
        gemm_block(t, panel0, panel1, tok, t->n_tok - tok < block ? t->n_tok - tok : block);
    }
}
