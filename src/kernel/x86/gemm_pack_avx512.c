/* Panels of the AVX-512 products: packing, reading a row back, and the rows of the table. gemm_avx512.c says how a panel is laid out, and why. */
#include "kernel/x86/gemm_avx512.h"

static size_t panel_bytes(int bits, int64_t cols) {
    const int64_t units = (cols + OZ_UNIT_AVX512 - 1) / OZ_UNIT_AVX512;
    return (size_t)(units * OZ_UNIT_AVX512 * OZ_PANEL / 8 * bits);
}
static size_t panel_bytes_f32(int64_t cols) { return panel_bytes(32, cols); }
static size_t panel_bytes_f16(int64_t cols) { return panel_bytes(16, cols); }
static size_t panel_bytes_bf16(int64_t cols) { return panel_bytes(16, cols); }
static size_t panel_bytes_bf16_own(int64_t cols) { return panel_bytes(16, cols); }
static size_t panel_bytes_i8(int64_t cols) { return panel_bytes(8, cols); }
static size_t panel_bytes_u8(int64_t cols) { return panel_bytes(8, cols); }
static size_t panel_bytes_i4(int64_t cols) { return panel_bytes(4, cols); }
static size_t panel_bytes_f8(int64_t cols) { return panel_bytes(8, cols); }

/* Codes plus 128, unsigned: a padded column is no zero then, but meets zeros of x. */
#define OF_U8(c) (float)((int)(c) - 128)
/* Of a form's own kind: all of a vector before the next. */
#define AT_APART(at, k, i) ((size_t)((i) / OZ_VECTOR) * OZ_VECTOR * (size_t)((cols + OZ_UNIT_AVX512 - 1) / OZ_UNIT_AVX512 * OZ_UNIT_AVX512) + at(k, (i) % OZ_VECTOR))
#define AT_PLAIN(k, i) ((k) * OZ_VECTOR + (i))
#define AT_PAIRS(k, i) ((k) / 2 * 2 * OZ_VECTOR + (i) * 2 + (k) % 2)
#define AT_QUADS(k, i) ((k) / 4 * 4 * OZ_VECTOR + (i) * 4 + (k) % 4)
#define AT_PLAIN_APART(k, i) AT_APART(AT_PLAIN, k, i)
#define AT_PAIRS_APART(k, i) AT_APART(AT_PAIRS, k, i)
#define AT_QUADS_APART(k, i) AT_APART(AT_QUADS, k, i)
#define AT_HALVES(k, i) ((k) / 2 * 2 * OZ_PANEL + (i) / OZ_VECTOR * 2 * OZ_VECTOR + (k) % 2 * OZ_VECTOR + (i) % OZ_VECTOR) /* a vector's two columns, one after the other */
#define AT_FOURS(k, i) ((k) / 4 * OZ_PITCH + (i) / 4 * 16 + (k) % 4 / 2 * 8 + (i) % 4 * 2 + (k) % 2)
static float of_magnitude(uint8_t c) { return c == 0x80 ? -128.0f : c & 0x80 ? -(float)(c & 0x7f) : (float)c; }
OZ_ARRAY_KIND(f32, float, AT_PLAIN_APART, OZ_TO_SAME, OZ_TO_SAME)
OZ_ARRAY_KIND(f16, uint16_t, AT_HALVES, OZ_TO_F16, _cvtsh_ss)
OZ_ARRAY_KIND(bf16, uint16_t, OZ_AT_PAIRS, OZ_TO_BF16, OZ_OF_BF16)
OZ_ARRAY_KIND(bf16_own, uint16_t, AT_PAIRS_APART, OZ_TO_BF16, OZ_OF_BF16)
OZ_ARRAY_READ(u8, uint8_t, AT_QUADS_APART, OF_U8)

/* ---- 8 bits: loading waits for these, so 16 columns go at a time; columns that are none stay zero ---- */

static __mmask16 lanes(int64_t n) { return n < 16 ? (__mmask16)((1 << n) - 1) : 0xffff; }

/* Q8's weights: 16 columns of a row are four words of the panel. */
static void pack_u8(uint8_t *dst, const float *codes, int64_t cols) {
    for (int i = 0; i < OZ_PANEL; i++) {
        for (int64_t k = 0; k < cols; k += 16) {
            const __mmask16 some = lanes(cols - k);
            const __m512i v = _mm512_cvttps_epi32(_mm512_maskz_loadu_ps(some, codes + i * cols + k));
            uint32_t words[4];
            _mm_storeu_si128((__m128i *)words, _mm512_cvtepi32_epi8(_mm512_maskz_add_epi32(some, v, _mm512_set1_epi32(128))));
            for (int q = 0; q < 4; q++) memcpy(dst + AT_QUADS_APART(k + 4 * q, i), &words[q], sizeof *words);
        }
    }
}

/* Beside floats: sign and magnitude (oz_bf16_of_8bit, where 0x80 means -128). 16 bytes of a chunk are four rows' columns 0 and 1, then their columns 2 and 3. */
static __m128i magnitudes_i8(__m512 v) {
    const __m128i c = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v)), sign = _mm_set1_epi8((char)0x80);
    return _mm_or_si128(_mm_and_si128(c, sign), _mm_andnot_si128(sign, _mm_abs_epi8(c)));
}

/* value / 256 is exact in f16, and is its e4m3 code moved up by 7 bits. NaN comes out with all bits set where a code has them. */
static __m128i magnitudes_f8(__m512 v) {
    const __m256i h = _mm512_cvtps_ph(_mm512_mul_ps(v, _mm512_set1_ps(0x1p-8f)), _MM_FROUND_TO_NEAREST_INT);
    const __m256i c = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(h, 8), _mm256_set1_epi16(0x80)), _mm256_and_si256(_mm256_srli_epi16(h, 7), _mm256_set1_epi16(0x7f)));
    return _mm256_cvtepi16_epi8(_mm256_or_si256(c, _mm256_maskz_set1_epi16(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), 0x7f)));
}

static inline void pack_8bit(uint8_t *dst, const float *codes, int64_t cols, __m128i (*bytes)(__m512 v)) {
    for (int i = 0; i < OZ_PANEL; i += 4) {
        for (int64_t k = 0; k < cols; k += 16) {
            __m128i row[4], two[4]; /* a row's columns; columns 2j, 2j + 1 of two rows beside each other, j below 4 and from there */
            for (int j = 0; j < 4; j++) row[j] = bytes(_mm512_maskz_loadu_ps(lanes(cols - k), codes + (i + j) * cols + k));
            for (int j = 0; j < 2; j++) two[j] = _mm_unpacklo_epi16(row[2 * j], row[2 * j + 1]), two[2 + j] = _mm_unpackhi_epi16(row[2 * j], row[2 * j + 1]);
            __m128i *at = (__m128i *)(dst + AT_FOURS(k, i));
            for (int j = 0; j < 2; j++, at += 2 * OZ_PITCH / 16) {
                _mm_store_si128(at, _mm_unpacklo_epi32(two[2 * j], two[2 * j + 1]));
                _mm_store_si128(at + OZ_PITCH / 16, _mm_unpackhi_epi32(two[2 * j], two[2 * j + 1]));
            }
        }
    }
}
static void pack_i8(uint8_t *dst, const float *codes, int64_t cols) { pack_8bit(dst, codes, cols, magnitudes_i8); }
static void pack_f8(uint8_t *dst, const float *codes, int64_t cols) { pack_8bit(dst, codes, cols, magnitudes_f8); }
OZ_ARRAY_READ(i8, uint8_t, AT_FOURS, of_magnitude)
OZ_ARRAY_READ(f8, uint8_t, AT_FOURS, oz_f32_from_e4m3)

/* ---- 4 bits: of a chunk of 8 columns, 16-bit word 2i + k % 2 holds columns k, k + 2, k + 4, k + 6 of row i, low nibble first ---- */

static size_t word_i4(int64_t k, int i) { return (size_t)(k / 8 * 2 * OZ_PANEL + 2 * i + k % 2); }
static int shift_i4(int64_t k) { return (int)(k % 8 / 2 * 4); }

static void pack_i4(uint8_t *dst, const float *codes, int64_t cols) {
    uint16_t *d = (uint16_t *)dst;
    memset(dst, 0, panel_bytes_i4(cols));
    for (int64_t k = 0; k < cols; k++) {
        for (int i = 0; i < OZ_PANEL; i++) d[word_i4(k, i)] |= (uint16_t)(((int)codes[i * cols + k] & 15) << shift_i4(k));
    }
}

static void read_i4(float *dst, const uint8_t *panel, int lane, int64_t cols) {
    const uint16_t *s = (const uint16_t *)panel;
    for (int64_t k = 0; k < cols; k++) dst[k] = (float)((((s[word_i4(k, lane)] >> shift_i4(k)) & 15) ^ 8) - 8);
}

static void read_u4(float *dst, const uint8_t *panel, int lane, int64_t cols) {
    const uint16_t *s = (const uint16_t *)panel;
    for (int64_t k = 0; k < cols; k++) dst[k] = (float)(s[word_i4(k, lane)] >> shift_i4(k) & 15);
}

OZ_GET_ROW(f32) OZ_GET_ROW(f16) OZ_GET_ROW(bf16) OZ_GET_ROW(bf16_own) OZ_GET_ROW(i8) OZ_GET_ROW(u8) OZ_GET_ROW(i4) OZ_GET_ROW(f8) OZ_GET_ROW(u4) OZ_GET_ROW_L4

typedef struct gemm_entry { oz_wkind kind; oz_form form; oz_gemm_row row; } gemm_entry;

#define ROW(name, low, gemm) {name, OZ_PANEL, panel_bytes_##low, pack_##low, gemm, get_row_##low}
#define ROW_4(name, low, gemm) {name, OZ_PANEL, panel_bytes_i4, pack_i4, gemm, get_row_##low}
static const gemm_entry entries[] = {
    {OZ_WKIND_F32, OZ_FORM_F32, ROW("gemm_f32_f32__avx512", f32, oz_gemm_f32__avx512)},
    {OZ_WKIND_F16, OZ_FORM_F32, ROW("gemm_f16_f32__avx512", f16, oz_gemm_f32__avx512)},
    {OZ_WKIND_BF16, OZ_FORM_F32, ROW("gemm_bf16_f32__avx512", bf16, oz_gemm_f32__avx512)},
    {OZ_WKIND_BF16, OZ_FORM_BF16, ROW("gemm_bf16_bf16__avx512", bf16_own, oz_gemm_bf16__avx512)},
    {OZ_WKIND_I8, OZ_FORM_F32, ROW("gemm_i8_f32__avx512", i8, oz_gemm_f32__avx512)},
    {OZ_WKIND_I8, OZ_FORM_BF16, ROW("gemm_i8_bf16__avx512", i8, oz_gemm_bf16__avx512)},
    {OZ_WKIND_I8, OZ_FORM_Q8, ROW("gemm_i8_q8__avx512", u8, oz_gemm_q8__avx512)},
    {OZ_WKIND_I4, OZ_FORM_F32, ROW("gemm_i4_f32__avx512", i4, oz_gemm_f32__avx512)},
    {OZ_WKIND_I4, OZ_FORM_BF16, ROW("gemm_i4_bf16__avx512", i4, oz_gemm_bf16__avx512)},
    {OZ_WKIND_U4, OZ_FORM_F32, ROW_4("gemm_u4_f32__avx512", u4, oz_gemm_f32__avx512)},
    {OZ_WKIND_U4, OZ_FORM_BF16, ROW_4("gemm_u4_bf16__avx512", u4, oz_gemm_bf16__avx512)},
    {OZ_WKIND_L4, OZ_FORM_F32, ROW_4("gemm_l4_f32__avx512", l4, oz_gemm_f32__avx512)},
    {OZ_WKIND_L4, OZ_FORM_BF16, ROW_4("gemm_l4_bf16__avx512", l4, oz_gemm_bf16__avx512)},
    {OZ_WKIND_F8, OZ_FORM_F32, ROW("gemm_f8_f32__avx512", f8, oz_gemm_f32__avx512)},
    {OZ_WKIND_F8, OZ_FORM_BF16, ROW("gemm_f8_bf16__avx512", f8, oz_gemm_bf16__avx512)},
    {OZ_WKIND_F8, OZ_FORM_F8, ROW("gemm_f8_f8__avx512", f8, oz_gemm_f32__avx512)},
};

void oz_gemm_init__avx512(oz_cpu_table *t) {
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) t->gemm[entries[i].kind][entries[i].form] = entries[i].row;
}
