/* Products with AVX-512, for every kind of weight and form of activation.
 *
 * A step of a sum takes one 32-bit word of a token's activations, broadcast, and one vector of 16 rows: 1 column in f32 (vfmadd), 2 in bf16
 * (vdpbf16ps) or 4 in int8 (vpdpbusd). So after their codes are expanded all products are the same loop, and only three things differ: how
 * a chunk of 64 bytes of codes becomes vectors, the instruction, and what is done to a sum at its end.
 *
 * Codes of a chunk (gemm_pack_avx512.c): F32, F16 plain; BF16 two columns of a row side by side; I8 and F8 four; I4 eight, so that shifts by 4
 * bits bring each in turn to the place that a table of 16 f32 or bf16 values is looked up by. What is expanded to bf16 is exact: all codes of I8, I4
 * and F8 have at most 8 significant bits.
 *
 * int8: vpdpbusd wants one unsigned side. Weights are kept plus 128 and sums begin at -128 times the sum of the token's activations. Additions wrap
 * around, so that the end is exact whatever happens between (pack bounds K, so that the end fits).
 *
 * Tiles: 8 tokens by 3 panels are 24 sums, which with 3 vectors of weights and one of activations fill the registers; one token takes 6 panels, since
 * a sum's chain waits 4 to 6 cycles for each step. Kinds that need expanding do it in registers up to 4 tokens; for more, a piece of K of three panels
 * is expanded into L2 once for all tiles of a block of tokens. K is cut into pieces that with the block's activations fit in L2; sums are parked between
 * pieces. Each sum is one chain over ascending k (a group of scales: sum = sum + scale * part (+ offset * sum of x), the part cut where pieces end),
 * whatever the tile: a token's result does not depend on its company.
 *
 * vdpbf16ps takes subnormals as zero and gives none: a product or sum under 2^-126 is lost. */
#include "kernel/x86/gemm_avx512.h"

#define INLINE static inline __attribute__((always_inline))
enum {
    PANEL = OZ_PANEL, TOKENS = 8, PANELS = 3, ONE_TOKEN_PANELS = 6, RAW_TOKENS = 4, MAX_SUMS = TOKENS * PANELS,
    PIECE = 1024,          /* steps of a piece of K: 64 KB of a panel, expanded */
    BLOCK = 96,            /* tokens whose activations stay in L2 while panels pass */
    PREFETCH_BYTES = 2048,
};

/* The compiler neither moves work across this nor keeps activations for later: it would run out of registers. */
#define KEEP(v) __asm__ volatile("" : "+v"(v) : : "memory")

INLINE int step_cols(oz_form form) { return form == OZ_FORM_Q8 ? 4 : form == OZ_FORM_BF16 ? 2 : 1; }

INLINE int chunk_steps(oz_form form, oz_wkind kind) {
    const int cols = kind == OZ_WKIND_F32 ? 1 : kind == OZ_WKIND_F16 || kind == OZ_WKIND_BF16 ? 2 : kind == OZ_WKIND_I4 ? 8 : 4;
    return cols / step_cols(form);
}

/* ---- codes to vectors ---- */

/* Byte j of each word to the sign and upper bits of an int32, the bits below it 0. */
INLINE __m512i top_byte(__m512i v, int j) {
    return j == 0 ? _mm512_slli_epi32(v, 24) : _mm512_and_si512(_mm512_slli_epi32(v, 24 - 8 * j), _mm512_set1_epi32((int)0xff000000));
}

INLINE __m512 f32_of_i8(__m512i v, int j) { return _mm512_cvtepi32_ps(top_byte(v, j)); } /* times 2^24 */

/* A code in the place of an f32's sign, low exponent bits and high mantissa bits is its value * 2^-120, subnormals too. NaN codes come out as 480: a
 * panel remembers its rows with NaN, whose sums are NaN whatever x is. */
INLINE __m512 f32_of_f8(__m512i v, int j) {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * j), 4), _mm512_set1_epi32((int)0x87f00000));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
}

INLINE __m512 f32_of_i4(__m512i v, int j) {
    const __m512 value = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, 16 * (j % 2) + 4 * (j / 2)), value);
}

INLINE __m512i bf16_of_i4(__m512i v, int j) {
    const __m512i v0 = _mm512_setr_epi32(0x3f800000, 0x40404000, 0x40a04080, 0x40e040c0, (int)0xc0e0c100, (int)0xc0a0c0c0, (int)0xc040c080, (int)0xbf80c000,
                                         0x3f800000, 0x40404000, 0x40a04080, 0x40e040c0, (int)0xc0e0c100, (int)0xc0a0c0c0, (int)0xc040c080, (int)0xbf80c000);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4 * j), v0); /* by 5 bits, of which the fifth does not matter */
}

/* Two columns as bf16, exact, the first below. */
INLINE __m512i pair(__m512 first, __m512 second) { return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16), _mm512_castps_si512(second)); }

INLINE __m512i bf16_of(oz_wkind kind, __m512i v, int j) {
    if (kind == OZ_WKIND_I4) return bf16_of_i4(v, j);
    if (kind == OZ_WKIND_I8) return pair(f32_of_i8(v, 2 * j), f32_of_i8(v, 2 * j + 1));
    if (kind == OZ_WKIND_F8) return pair(f32_of_f8(v, 2 * j), f32_of_f8(v, 2 * j + 1));
    return v;
}

INLINE __m512 f32_of(oz_wkind kind, const uint8_t *chunk, __m512i v, int j) {
    switch (kind) {
    case OZ_WKIND_F16: return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)chunk + j));
    case OZ_WKIND_BF16: return _mm512_castsi512_ps(j == 0 ? _mm512_slli_epi32(v, 16) : _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)));
    case OZ_WKIND_I8: return f32_of_i8(v, j);
    case OZ_WKIND_I4: return f32_of_i4(v, j);
    case OZ_WKIND_F8: return f32_of_f8(v, j);
    default: return _mm512_castsi512_ps(v);
    }
}

/* Step j of a chunk. form and kind are constants at every call. */
INLINE __m512i expand(oz_form form, oz_wkind kind, const uint8_t *chunk, int j) {
    const __m512i v = _mm512_load_si512(chunk);
    return form == OZ_FORM_Q8 ? v : form == OZ_FORM_BF16 ? bf16_of(kind, v, j) : _mm512_castps_si512(f32_of(kind, chunk, v, j));
}

INLINE __m512i multiply_add(oz_form form, __m512i sum, __m512i w, __m512i x) {
    if (form == OZ_FORM_Q8) return _mm512_dpbusd_epi32(sum, w, x);
    const __m512 s = _mm512_castsi512_ps(sum);
    if (form == OZ_FORM_BF16) return _mm512_castps_si512(_mm512_dpbf16_ps(s, (__m512bh)w, (__m512bh)x));
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), s));
}

/* ---- one tile over one run of chunks ---- */

typedef struct run {
    const uint8_t *codes; size_t stride; /* of the first panel, and from one to the next */
    const uint8_t *x; int64_t ld;        /* activations of the first token, bytes from one to the next */
    int64_t n_chunks;
    size_t left_bytes;                   /* of a panel behind the run's end: then the stream goes on n_panel panels later */
} run;
typedef void sum_fn(__m512i *sums, const run *r); /* sums [n_panel, n_tok] go on */

INLINE void sum_tile(oz_form form, oz_wkind kind, int n_tok, int n_panel, __m512i *sums, const run *r) {
    __m512i acc[MAX_SUMS];
    const int steps = chunk_steps(form, kind);
    const uint8_t *x = r->x, *codes = r->codes;
    const size_t stride = r->stride;
    const int64_t ld = r->ld, ends = r->n_chunks * 64 + (int64_t)r->left_bytes - PREFETCH_BYTES;
#pragma GCC unroll 24
    for (int i = 0; i < n_panel * n_tok; i++) acc[i] = _mm512_load_si512(sums + i);
    for (int64_t c = 0; c < r->n_chunks; c++) {
        const uint8_t *ahead = codes + PREFETCH_BYTES + (64 * c < ends ? 0 : (size_t)(n_panel - 1) * stride);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) _mm_prefetch((const char *)ahead + (size_t)p * stride, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int j = 0; j < steps; j++) {
            __m512i w[ONE_TOKEN_PANELS];
#pragma GCC unroll 8
            for (int p = 0; p < n_panel; p++) w[p] = expand(form, kind, codes + (size_t)p * stride, j);
#pragma GCC unroll 8
            for (int t = 0; t < n_tok; t++) {
                int32_t word;
                memcpy(&word, x + t * ld + 4 * j, sizeof word);
                const __m512i xv = _mm512_set1_epi32(word);
#pragma GCC unroll 8
                for (int p = 0; p < n_panel; p++) {
                    acc[p * n_tok + t] = multiply_add(form, acc[p * n_tok + t], w[p], xv);
                    KEEP(acc[p * n_tok + t]);
                }
            }
        }
        codes += 64;
        x += 4 * steps;
    }
#pragma GCC unroll 24
    for (int i = 0; i < n_panel * n_tok; i++) _mm512_store_si512(sums + i, acc[i]);
}

/* ---- the functions of a (form, kind) ---- */

#define SUM(form, kind, nt, np) \
    static void sum_##form##_##kind##_##nt##_##np(__m512i *sums, const run *r) { sum_tile(OZ_FORM_##form, OZ_WKIND_##kind, nt, np, sums, r); }
#define SUMS_FEW(form, kind)                                                                                                  \
    SUM(form, kind, 1, 1) SUM(form, kind, 1, 3) SUM(form, kind, 1, 6) SUM(form, kind, 2, 1) SUM(form, kind, 2, 3)             \
    SUM(form, kind, 3, 1) SUM(form, kind, 3, 3) SUM(form, kind, 4, 1) SUM(form, kind, 4, 3)
#define SUMS_MANY(form, kind)                                                                                                 \
    SUM(form, kind, 5, 1) SUM(form, kind, 5, 3) SUM(form, kind, 6, 1) SUM(form, kind, 6, 3)                                   \
    SUM(form, kind, 7, 1) SUM(form, kind, 7, 3) SUM(form, kind, 8, 1) SUM(form, kind, 8, 3)
/* A piece of a panel, expanded: then it is of the form's own kind. */
#define EXPAND(form, kind)                                                                                                    \
    static void expand_##form##_##kind(uint8_t *dst, const uint8_t *codes, int64_t n_chunks) {                                \
        const int steps = chunk_steps(OZ_FORM_##form, OZ_WKIND_##kind);                                                       \
        for (int64_t c = 0; c < n_chunks; c++) {                                                                              \
            for (int j = 0; j < steps; j++) _mm512_store_si512(dst + 64 * (c * steps + j), expand(OZ_FORM_##form, OZ_WKIND_##kind, codes + 64 * c, j)); \
        }                                                                                                                     \
    }
SUMS_FEW(F32, F32) SUMS_MANY(F32, F32)
SUMS_FEW(BF16, BF16) SUMS_MANY(BF16, BF16)
SUMS_FEW(Q8, I8) SUMS_MANY(Q8, I8)
SUMS_FEW(F32, F16) EXPAND(F32, F16)
SUMS_FEW(F32, BF16) EXPAND(F32, BF16)
SUMS_FEW(F32, I8) EXPAND(F32, I8)
SUMS_FEW(F32, I4) EXPAND(F32, I4)
SUMS_FEW(F32, F8) EXPAND(F32, F8)
SUMS_FEW(BF16, I8) EXPAND(BF16, I8)
SUMS_FEW(BF16, I4) EXPAND(BF16, I4)
SUMS_FEW(BF16, F8) EXPAND(BF16, F8)

typedef struct kind_fns {
    void (*expand)(uint8_t *dst, const uint8_t *codes, int64_t n_chunks); /* NULL: the form's own kind */
    sum_fn *sum[TOKENS][ONE_TOKEN_PANELS];                                /* [n_tok - 1][n_panel - 1] */
} kind_fns;

#define FEW(form, kind)                                                                                                       \
    [0] = {sum_##form##_##kind##_1_1, [2] = sum_##form##_##kind##_1_3, [5] = sum_##form##_##kind##_1_6},                      \
    [1] = {sum_##form##_##kind##_2_1, [2] = sum_##form##_##kind##_2_3}, [2] = {sum_##form##_##kind##_3_1, [2] = sum_##form##_##kind##_3_3}, \
    [3] = {sum_##form##_##kind##_4_1, [2] = sum_##form##_##kind##_4_3}
#define MANY(form, kind)                                                                                                      \
    [4] = {sum_##form##_##kind##_5_1, [2] = sum_##form##_##kind##_5_3}, [5] = {sum_##form##_##kind##_6_1, [2] = sum_##form##_##kind##_6_3}, \
    [6] = {sum_##form##_##kind##_7_1, [2] = sum_##form##_##kind##_7_3}, [7] = {sum_##form##_##kind##_8_1, [2] = sum_##form##_##kind##_8_3}
#define OWN(form, kind) [OZ_FORM_##form][OZ_WKIND_##kind] = {NULL, {FEW(form, kind), MANY(form, kind)}}
#define OTHER(form, kind) [OZ_FORM_##form][OZ_WKIND_##kind] = {expand_##form##_##kind, {FEW(form, kind)}}
static const kind_fns fns[OZ_FORM_COUNT][OZ_WKIND_COUNT] = {
    OWN(F32, F32), OWN(BF16, BF16), OWN(Q8, I8), OTHER(F32, F16), OTHER(F32, BF16), OTHER(F32, I8), OTHER(F32, I4), OTHER(F32, F8),
    OTHER(BF16, I8), OTHER(BF16, I4), OTHER(BF16, F8),
};
static const oz_wkind own_kind[OZ_FORM_COUNT] = {[OZ_FORM_F32] = OZ_WKIND_F32, [OZ_FORM_BF16] = OZ_WKIND_BF16, [OZ_FORM_Q8] = OZ_WKIND_I8};

/* ---- a block of tokens times some panels ---- */

typedef struct block {
    const oz_gemm_task *t;
    oz_form form;                 /* of the loop: F8 activations are floats */
    int64_t tok0, n_tok, n_tiles;
    int64_t first; int n_panel;   /* panels at hand */
    int64_t full_chunks;          /* chunks whose columns x has all of */
    const uint8_t *expanded;      /* or NULL: of the piece at hand, n_panel of PIECE steps */
    int64_t piece0;               /* its first chunk */
    __m512i sums[BLOCK * PANELS];
    __m512i part[MAX_SUMS];
    uint8_t tail[BLOCK][32];      /* activations of the last, partial chunk, padded with zeros */
    int32_t x_sum[BLOCK];         /* Q8: the sum of a token's activations */
} block;

static int64_t tile_start(const block *b, int64_t i) { /* the last two tiles are even: a thin one waits on its chains */
    const int64_t last = b->n_tiles - 1, full = TOKENS * i;
    return i > last ? b->n_tok : i < last || i == 0 ? full : (full - TOKENS + b->n_tok + 1) / 2;
}

static const uint8_t *x_row(const block *b, int64_t tok) {
    const oz_rows *x = &b->t->x;
    return (const uint8_t *)x->data + (b->tok0 + tok) * x->ld * (4 / step_cols(b->form));
}

/* sums of tile i go on over chunks [c0, c1) of K. */
static void sum_chunks(const block *b, __m512i *sums, int64_t i, int64_t c0, int64_t c1) {
    const oz_cpu_packed *w = b->t->w;
    const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok, steps = chunk_steps(b->form, w->kind), full = c1 < b->full_chunks ? c1 : b->full_chunks;
    sum_fn *sum = fns[b->form][b->expanded ? own_kind[b->form] : w->kind].sum[n_tok - 1][b->n_panel - 1];
    const int64_t per = b->expanded ? steps : 1; /* chunks of the codes at hand that are one of the weight's */
    run r = {.ld = b->t->x.ld * (4 / step_cols(b->form)), .x = x_row(b, tok) + 4 * steps * c0, .n_chunks = (full - c0) * per};
    r.codes = b->expanded ? b->expanded + 64 * steps * (c0 - b->piece0) : w->codes + (size_t)b->first * w->panel_bytes + 64 * c0;
    r.stride = b->expanded ? 64 * PIECE : w->panel_bytes;
    r.left_bytes = b->expanded ? PREFETCH_BYTES : w->panel_bytes - 64 * (size_t)full;
    if (full > c0) sum(sums, &r);
    if (c1 == full) return;
    r.codes += 64 * (full > c0 ? full - c0 : 0) * per;
    r.x = b->tail[tok], r.ld = sizeof b->tail[0], r.n_chunks = per;
    sum(sums, &r);
}

/* Sum of x over columns [k0, k1) of a token; the order depends on the columns alone. */
static float sum_x(const block *b, int64_t tok, int64_t k0, int64_t k1) {
    const uint8_t *row = x_row(b, tok);
    __m512 acc = _mm512_setzero_ps();
    for (int64_t k = k0; k < k1; k += 16) {
        const __mmask16 m = k1 - k < 16 ? (__mmask16)((1u << (k1 - k)) - 1) : 0xffff;
        const __m512 v = b->form == OZ_FORM_F32 ? _mm512_maskz_loadu_ps(m, (const float *)row + k)
                                                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)row + k)), 16));
        acc = _mm512_add_ps(acc, v);
    }
    return _mm512_reduce_add_ps(acc);
}

static float unit_of(const oz_cpu_packed *w) { return w->kind == OZ_WKIND_I8 ? 0x1p-24f : 1.0f; } /* of expanded codes; I8 beside floats */

/* A tile's sums += scale * part (+ offset * sum of x), of group g, columns [k0, k1). */
static void add_group(block *b, __m512i *sums, int64_t i, int64_t g, int64_t k0, int64_t k1) {
    const oz_cpu_packed *w = b->t->w;
    const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok;
    const __m512 unit = _mm512_set1_ps(unit_of(w));
    for (int p = 0; p < b->n_panel; p++) {
        const int64_t at = ((b->first + p) * w->n_groups + g) * PANEL;
        const __m512 scale = _mm512_loadu_ps(w->scales + at);
        for (int64_t t = 0; t < n_tok; t++) {
            __m512 *s = (__m512 *)&sums[p * n_tok + t];
            *s = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_castsi512_ps(b->part[p * n_tok + t]), unit), scale, *s);
        }
    }
    for (int64_t t = 0; w->offsets && t < n_tok; t++) {
        const __m512 x = _mm512_set1_ps(sum_x(b, tok + t, k0, k1));
        for (int p = 0; p < b->n_panel; p++) {
            __m512 *s = (__m512 *)&sums[p * n_tok + t];
            *s = _mm512_fmadd_ps(x, _mm512_loadu_ps(w->offsets + ((b->first + p) * w->n_groups + g) * PANEL), *s);
        }
    }
}

/* One piece of K, chunks [c0, c1), of tile i. */
static void sum_piece(block *b, __m512i *sums, int64_t i, int64_t c0, int64_t c1) {
    const oz_cpu_packed *w = b->t->w;
    const int64_t chunk = oz_chunk_cols_avx512(w->kind), cols = w->head.cols;
    if (!w->scales || oz_scale_is_last(w)) {
        sum_chunks(b, sums, i, c0, c1);
        return;
    }
    for (int64_t k0 = c0 * chunk, end = c1 * chunk < cols ? c1 * chunk : cols, k1; k0 < end; k0 = k1) {
        const int64_t g = k0 / w->group_size, group_end = (g + 1) * w->group_size;
        k1 = group_end < end ? group_end : end;
        memset(b->part, 0, sizeof b->part);
        sum_chunks(b, b->part, i, k0 / chunk, (k1 + chunk - 1) / chunk);
        add_group(b, sums, i, g, k0, k1);
    }
}

/* y = sum * (scale * x_scale) + bias. Rows past the last are not stored. */
static void store_tile(const block *b, const __m512i *sums, int64_t i) {
    const oz_gemm_task *t = b->t;
    const oz_cpu_packed *w = t->w;
    const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok;
    const bool scaled = w->scales && oz_scale_is_last(w), x_scaled = t->x.form == OZ_FORM_Q8 || t->x.form == OZ_FORM_F8;
    for (int p = 0; p < b->n_panel; p++) {
        const int64_t r = (b->first + p) * PANEL, n = w->head.rows - r;
        const __mmask16 m = n < PANEL ? (__mmask16)((1u << n) - 1) : 0xffff;
        const __m512 scale = scaled ? _mm512_loadu_ps(w->scales + r) : _mm512_set1_ps(1.0f), none = _mm512_set1_ps(-0.0f);
        const __m512 bias = t->bias ? _mm512_mask_loadu_ps(none, m, t->bias + r) : none; /* -0 adds nothing, to a negative zero either */
        for (int64_t j = 0; j < n_tok; j++) {
            __m512 v = _mm512_castsi512_ps(sums[p * n_tok + j]);
            if (b->form == OZ_FORM_Q8) v = _mm512_cvtepi32_ps(sums[p * n_tok + j]);
            else if (scaled) v = _mm512_mul_ps(v, _mm512_set1_ps(unit_of(w)));
            if (w->kind == OZ_WKIND_F8) v = _mm512_add_ps(v, _mm512_loadu_ps(oz_nan_rows_avx512(w, b->first + p)));
            v = _mm512_mul_ps(v, _mm512_mul_ps(scale, _mm512_set1_ps(x_scaled ? t->x.scales[b->tok0 + tok + j] : 1.0f)));
            _mm512_mask_storeu_ps(t->y + (b->tok0 + tok + j) * t->ld_y + r, m, _mm512_add_ps(v, bias));
        }
    }
}

/* The panels at hand, all pieces of K and all tiles. */
static void multiply_panels(block *b, uint8_t *room) {
    const oz_cpu_packed *w = b->t->w;
    const kind_fns *f = &fns[b->form][w->kind];
    const int64_t steps = chunk_steps(b->form, w->kind), chunk = oz_chunk_cols_avx512(w->kind), n_chunks = (w->head.cols + chunk - 1) / chunk, piece = PIECE / steps;
    for (int64_t t = 0, i = 0; t < b->n_tok; t++) { /* sums [tiles][n_panel, tokens of the tile] */
        if (t == tile_start(b, i + 1)) i++;
        const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok;
        for (int p = 0; p < b->n_panel; p++) b->sums[tok * b->n_panel + p * n_tok + t - tok] = _mm512_set1_epi32(b->form == OZ_FORM_Q8 ? -128 * b->x_sum[t] : 0);
    }
    for (int64_t c0 = 0; c0 < n_chunks; c0 += piece) {
        const int64_t c1 = c0 + piece < n_chunks ? c0 + piece : n_chunks;
        b->expanded = NULL;
        if (f->expand && b->n_tok > RAW_TOKENS) {
            for (int p = 0; p < b->n_panel; p++) f->expand(room + (size_t)p * PIECE * 64, w->codes + (size_t)(b->first + p) * w->panel_bytes + 64 * c0, c1 - c0);
            b->expanded = room, b->piece0 = c0;
        }
        for (int64_t i = 0; i < b->n_tiles; i++) sum_piece(b, b->sums + tile_start(b, i) * b->n_panel, i, c0, c1);
    }
    for (int64_t i = 0; i < b->n_tiles; i++) store_tile(b, b->sums + tile_start(b, i) * b->n_panel, i);
}

/* What the block's activations need beside themselves: padded ends, and sums of int8. */
static void block_begin(block *b) {
    const oz_cpu_packed *w = b->t->w;
    const int64_t chunk = oz_chunk_cols_avx512(w->kind), cols = w->head.cols;
    const size_t elem = 4 / (size_t)step_cols(b->form), done = (size_t)(b->full_chunks * chunk);
    for (int64_t t = 0; t < b->n_tok; t++) {
        const uint8_t *x = x_row(b, t);
        memset(b->tail[t], 0, sizeof b->tail[t]);
        memcpy(b->tail[t], x + done * elem, ((size_t)cols - done) * elem);
        if (b->form != OZ_FORM_Q8) continue;
        __m512i sum = _mm512_setzero_si512();
        for (int64_t k = 0; k < cols; k += 64) {
            const __mmask64 m = cols - k < 64 ? (1ull << (cols - k)) - 1 : ~0ull;
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_maskz_loadu_epi8(m, x + k));
        }
        b->x_sum[t] = _mm512_reduce_add_epi32(sum);
    }
}

static int panels_at_once(int64_t n_tok, int64_t left) {
    return n_tok == 1 && left >= ONE_TOKEN_PANELS ? ONE_TOKEN_PANELS : left >= PANELS ? PANELS : 1;
}

static void gemm(const oz_gemm_task *t, oz_form form, int64_t panel0, int64_t panel1) {
    _Alignas(64) uint8_t room[PANELS * PIECE * 64];
    block b; /* large, and most of it is not touched for few tokens */
    b.t = t, b.form = form, b.full_chunks = t->w->head.cols / oz_chunk_cols_avx512(t->w->kind);
    for (b.tok0 = 0; b.tok0 < t->n_tok; b.tok0 += BLOCK) {
        b.n_tok = t->n_tok - b.tok0 < BLOCK ? t->n_tok - b.tok0 : BLOCK;
        b.n_tiles = (b.n_tok + TOKENS - 1) / TOKENS;
        block_begin(&b);
        for (b.first = panel0; b.first < panel1; b.first += b.n_panel) {
            b.n_panel = panels_at_once(b.n_tok, panel1 - b.first);
            multiply_panels(&b, room);
        }
    }
}

void oz_gemm_f32__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1) { gemm(t, OZ_FORM_F32, panel0, panel1); }
void oz_gemm_bf16__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1) { gemm(t, OZ_FORM_BF16, panel0, panel1); }
void oz_gemm_q8__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1) { gemm(t, OZ_FORM_Q8, panel0, panel1); }
