/* Panels of the AVX2 products: packing, reading a row back, storing a tile, and the rows of the table. gemm_f32_avx2.c and gemm_q8_avx2.c
 * say how a panel is laid out, and why. */
#include "kernel/x86/gemm_avx2.h"

enum { PANEL = OZ_AVX2_PANEL };

static size_t panel_bytes(int64_t steps, size_t step_bytes) { return ((size_t)steps * step_bytes + 63) & ~(size_t)63; }

/* ---- kinds whose codes are elements of an array: where lane i of step k lies, and both conversions (codes are exact in their kind) ---- */

#define AT_HALVES(k, i) ((k) * PANEL + (i) % 8 * 2 + (i) / 8) /* row i + 8 beside row i */
OZ_ARRAY_KIND(f32, float, OZ_AT_PLAIN, OZ_TO_SAME, OZ_TO_SAME)
OZ_ARRAY_KIND(f16, uint16_t, OZ_AT_PLAIN, OZ_TO_F16, _cvtsh_ss)
OZ_ARRAY_KIND(bf16, uint16_t, AT_HALVES, OZ_TO_BF16, OZ_OF_BF16)
OZ_ARRAY_KIND(i8, int8_t, OZ_AT_PLAIN, OZ_TO_I8, (float))
OZ_ARRAY_KIND(i8_pairs, int8_t, OZ_AT_PAIRS, OZ_TO_I8, (float))

static size_t panel_bytes_f32(int64_t cols) { return panel_bytes(cols, PANEL * 4); }
static size_t panel_bytes_f16(int64_t cols) { return panel_bytes(cols, PANEL * 2); }
static size_t panel_bytes_bf16(int64_t cols) { return panel_bytes(cols, PANEL * 2); }
static size_t panel_bytes_i8(int64_t cols) { return panel_bytes(cols, PANEL); }
static size_t panel_bytes_i8_pairs(int64_t cols) { return panel_bytes((cols + 1) / 2, PANEL * 2); }

/* ---- 4 bits: byte i of a step holds row i below and row i + 8 above ---- */

static size_t panel_bytes_i4(int64_t cols) { return panel_bytes(cols, PANEL / 2); }

static void pack_i4(uint8_t *dst, const float *codes, int64_t cols) {
    for (int64_t k = 0; k < cols; k++) {
        for (int i = 0; i < PANEL / 2; i++) {
            int low = (int)codes[i * cols + k] & 15, high = (int)codes[(i + PANEL / 2) * cols + k] & 15;
            dst[k * PANEL / 2 + i] = (uint8_t)(low | high << 4);
        }
    }
}

static void read_i4(float *dst, const uint8_t *panel, int lane, int64_t cols) {
    for (int64_t k = 0; k < cols; k++) {
        int nibble = panel[k * PANEL / 2 + lane % 8] >> lane / 8 * 4 & 15;
        dst[k] = (float)((nibble ^ 8) - 8);
    }
}

static void read_u4(float *dst, const uint8_t *panel, int lane, int64_t cols) {
    for (int64_t k = 0; k < cols; k++) dst[k] = (float)(panel[k * PANEL / 2 + lane % 8] >> lane / 8 * 4 & 15);
}

/* ---- e4m3: loading waits for it, so 8 columns of all rows go at a time ---- */

static size_t panel_bytes_f8(int64_t cols) { return panel_bytes(cols, PANEL) + PANEL * sizeof(float); }

/* 8 codes as 16-bit numbers: value / 256 is exact in f16, and is its code moved up by 7 bits. Columns that are none are zero; *nan gathers those that are NaN. */
static __m128i codes_f8(const float *row, int64_t n, __m256 *nan) {
    const __m256i some = _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 v = _mm256_maskload_ps(row, some), bad = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const __m128i h = _mm256_cvtps_ph(_mm256_mul_ps(v, _mm256_set1_ps(0x1p-8f)), _MM_FROUND_TO_NEAREST_INT), magnitude = _mm_set1_epi16(0x7f);
    const __m128i all = _mm_packs_epi32(_mm256_castsi256_si128(_mm256_castps_si256(bad)), _mm256_extracti128_si256(_mm256_castps_si256(bad), 1));
    *nan = _mm256_or_ps(*nan, bad);
    return _mm_or_si128(_mm_and_si128(_mm_srli_epi16(h, 8), _mm_set1_epi16(0x80)), _mm_and_si128(_mm_or_si128(_mm_srli_epi16(h, 7), all), magnitude));
}

/* 8 x 8 words, lines to columns. */
static void transpose_words(__m128i v[8]) {
    __m128i a[8], b[8];
    for (int i = 0; i < 4; i++) a[2 * i] = _mm_unpacklo_epi16(v[i], v[i + 4]), a[2 * i + 1] = _mm_unpackhi_epi16(v[i], v[i + 4]);
    for (int i = 0; i < 4; i++) b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]), b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
    for (int i = 0; i < 4; i++) v[2 * i] = _mm_unpacklo_epi16(b[i], b[i + 4]), v[2 * i + 1] = _mm_unpackhi_epi16(b[i], b[i + 4]);
}

static void pack_f8(uint8_t *dst, const float *codes, int64_t cols) {
    float *nan_rows = (float *)(dst + panel_bytes_f8(cols)) - PANEL;
    __m256 nan[PANEL];
    for (int i = 0; i < PANEL; i++) nan[i] = _mm256_setzero_ps();
    for (int64_t k = 0; k < cols; k += 8) {
        const int64_t n = cols - k < 8 ? cols - k : 8;
        __m128i words[8]; /* of rows i and i + 8, a column each */
        for (int i = 0; i < 8; i++)
            words[i] = _mm_or_si128(codes_f8(codes + i * cols + k, n, &nan[i]), _mm_slli_epi16(codes_f8(codes + (i + 8) * cols + k, n, &nan[i + 8]), 8));
        transpose_words(words);
        for (int64_t j = 0; j < n; j++) _mm_store_si128((__m128i *)(dst + AT_HALVES(k + j, 0)), words[j]);
    }
    for (int i = 0; i < PANEL; i++) nan_rows[i] = _mm256_movemask_ps(nan[i]) ? NAN : -0.0f;
}
OZ_ARRAY_READ(f8, uint8_t, AT_HALVES, oz_f32_from_e4m3)

/* ---- a row as values, a tile into y ---- */

OZ_GET_ROW(f32) OZ_GET_ROW(f16) OZ_GET_ROW(bf16) OZ_GET_ROW(i8) OZ_GET_ROW(i8_pairs) OZ_GET_ROW(i4) OZ_GET_ROW(f8) OZ_GET_ROW(u4) OZ_GET_ROW_L4

void oz_tile_store_avx2(const oz_gemm_task *t, int64_t panel, int64_t tok, int64_t n_tok, const float *sums) {
    const oz_cpu_packed *w = t->w;
    int64_t r = panel * PANEL, n = w->head.rows - r < PANEL ? w->head.rows - r : PANEL;
    bool scaled = w->scales && oz_scale_is_last(w);
    __m256 scale[2], bias[2];
    float tail[PANEL];
    for (int i = 0; i < PANEL; i++) tail[i] = -0.0f; /* adds nothing, to a negative zero either */
    if (t->bias) memcpy(tail, t->bias + r, (size_t)n * sizeof *tail);
    for (int h = 0; h < 2; h++) {
        scale[h] = scaled ? _mm256_loadu_ps(w->scales + r + 8 * h) : _mm256_set1_ps(1.0f);
        bias[h] = _mm256_loadu_ps(tail + 8 * h);
    }
    for (int64_t i = 0; i < n_tok; i++) {
        float *y = t->y + (tok + i) * t->ld_y + r, *dst = n == PANEL ? y : tail;
        __m256 x_scale = _mm256_set1_ps(t->x.form == OZ_FORM_F32 ? 1.0f : t->x.scales[tok + i]);
        for (int h = 0; h < 2; h++) {
            __m256 v = _mm256_mul_ps(_mm256_load_ps(sums + i * PANEL + 8 * h), _mm256_mul_ps(scale[h], x_scale));
            _mm256_storeu_ps(dst + 8 * h, _mm256_add_ps(v, bias[h]));
        }
        if (dst == tail) memcpy(y, tail, (size_t)n * sizeof *y);
    }
}

typedef struct gemm_entry { oz_wkind kind; oz_form form; oz_gemm_row row; } gemm_entry;

#define ROW(name, low, gemm) {name, PANEL, panel_bytes_##low, pack_##low, gemm, get_row_##low}
#define ROW_4(name, low) {name, PANEL, panel_bytes_i4, pack_i4, oz_gemm_f32__avx2, get_row_##low}
static const gemm_entry entries[] = {
    {OZ_WKIND_F32, OZ_FORM_F32, ROW("gemm_f32_f32__avx2", f32, oz_gemm_f32__avx2)},
    {OZ_WKIND_F16, OZ_FORM_F32, ROW("gemm_f16_f32__avx2", f16, oz_gemm_f32__avx2)},
    {OZ_WKIND_BF16, OZ_FORM_F32, ROW("gemm_bf16_f32__avx2", bf16, oz_gemm_f32__avx2)},
    {OZ_WKIND_I8, OZ_FORM_F32, ROW("gemm_i8_f32__avx2", i8, oz_gemm_f32__avx2)},
    {OZ_WKIND_I8, OZ_FORM_Q8, ROW("gemm_i8_q8__avx2", i8_pairs, oz_gemm_q8__avx2)},
    {OZ_WKIND_I4, OZ_FORM_F32, ROW_4("gemm_i4_f32__avx2", i4)},
    {OZ_WKIND_F8, OZ_FORM_F32, ROW("gemm_f8_f32__avx2", f8, oz_gemm_f32__avx2)},
    {OZ_WKIND_F8, OZ_FORM_F8, ROW("gemm_f8_f8__avx2", f8, oz_gemm_f32__avx2)},
    {OZ_WKIND_U4, OZ_FORM_F32, ROW_4("gemm_u4_f32__avx2", u4)},
    {OZ_WKIND_L4, OZ_FORM_F32, ROW_4("gemm_l4_f32__avx2", l4)},
};

void oz_gemm_init__avx2(oz_cpu_table *t) {
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) t->gemm[entries[i].kind][entries[i].form] = entries[i].row;
}
