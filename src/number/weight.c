/* The codec table and the one meaning of a stored weight. */
#include <string.h>
#include "number/number.h"

/* ---- codes of a part of a row ---- */

static void expand_elems(float *dst, oz_dtype d, const void *row, int64_t col0, int64_t n) {
    oz_to_f32(dst, d, (const uint8_t *)row + (size_t)col0 * (size_t)oz_dtype_get(d)->block_bytes, n);
}

/* Whole blocks are decoded beside the target where only a part of one is asked for. */
static void expand_blocks(float *dst, oz_dtype d, const void *row, int64_t col0, int64_t n) {
    const oz_dtype_info *t = oz_dtype_get(d);
    float block[OZ_BLOCK_MAX];
    while (n > 0) {
        int64_t skip = col0 % t->block_elems, take = t->block_elems - skip < n ? t->block_elems - skip : n;
        oz_to_f32(block, d, (const uint8_t *)row + (size_t)(col0 / t->block_elems) * (size_t)t->block_bytes, t->block_elems);
        memcpy(dst, block + skip, (size_t)take * sizeof *dst);
        dst += take, col0 += take, n -= take;
    }
}

static void expand_f32(float *dst, const void *row, int64_t c, int64_t n) { expand_elems(dst, OZ_DTYPE_F32, row, c, n); }
static void expand_f16(float *dst, const void *row, int64_t c, int64_t n) { expand_elems(dst, OZ_DTYPE_F16, row, c, n); }
static void expand_bf16(float *dst, const void *row, int64_t c, int64_t n) { expand_elems(dst, OZ_DTYPE_BF16, row, c, n); }
static void expand_i8(float *dst, const void *row, int64_t c, int64_t n) { expand_elems(dst, OZ_DTYPE_I8, row, c, n); }
static void expand_e4m3(float *dst, const void *row, int64_t c, int64_t n) { expand_elems(dst, OZ_DTYPE_F8_E4M3, row, c, n); }

#define BLOCKS(name, dtype) static void expand_##name(float *dst, const void *row, int64_t c, int64_t n) { expand_blocks(dst, dtype, row, c, n); }
BLOCKS(q8_0, OZ_DTYPE_Q8_0) BLOCKS(q4_0, OZ_DTYPE_Q4_0) BLOCKS(q4_1, OZ_DTYPE_Q4_1) BLOCKS(q5_0, OZ_DTYPE_Q5_0)
BLOCKS(q5_1, OZ_DTYPE_Q5_1) BLOCKS(q2_k, OZ_DTYPE_Q2_K) BLOCKS(q3_k, OZ_DTYPE_Q3_K) BLOCKS(q4_k, OZ_DTYPE_Q4_K)
BLOCKS(q5_k, OZ_DTYPE_Q5_K) BLOCKS(q6_k, OZ_DTYPE_Q6_K) BLOCKS(iq4_nl, OZ_DTYPE_IQ4_NL) BLOCKS(iq4_xs, OZ_DTYPE_IQ4_XS)
BLOCKS(mxfp4, OZ_DTYPE_MXFP4)

/* The int32 words are little-endian and filled from their lowest bits, so that as bytes the row is simply code after code. */
static void expand_i4p(float *dst, const void *row, int64_t col0, int64_t n) {
    const uint8_t *p = row;
    for (int64_t i = 0; i < n; i++) {
        int64_t c = col0 + i;
        dst[i] = (float)((p[c / 2] >> (c % 2 * 4) & 15) - 8);
    }
}

static void expand_i8p(float *dst, const void *row, int64_t col0, int64_t n) {
    const uint8_t *p = row;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)(p[col0 + i] - 128);
}

/* ---- fields of some bits in 32-bit words ---- */

static uint32_t word_at(const void *words, int64_t step, int64_t k) {
    uint32_t w;
    memcpy(&w, (const uint8_t *)words + k * step, sizeof w);
    return w;
}

uint32_t oz_field_get(const void *words, int64_t step, int bits, oz_order order, int64_t i) {
    static const uint8_t awq[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* the nibble that holds a row */
    const uint32_t mask = (1u << bits) - 1;
    if (order == OZ_ORDER_WORDS) return word_at(words, step, i / (32 / bits)) >> i % (32 / bits) * bits & mask;
    if (order == OZ_ORDER_AWQ) return word_at(words, step, i / 8) >> awq[i % 8] * 4 & mask;
    const int64_t k = i * bits / 32, at = i * bits % 32;
    uint32_t v = word_at(words, step, k) >> at;
    if (at + bits > 32) v |= word_at(words, step, k + 1) << (32 - at);
    return v & mask;
}

void oz_field_put(void *words, int64_t step, int bits, oz_order order, int64_t i, uint32_t value) {
    const int64_t whole = 32 / bits, k = order == OZ_ORDER_WORDS ? i / whole : i * bits / 32, at = order == OZ_ORDER_WORDS ? i % whole * bits : i * bits % 32;
    const uint32_t low = word_at(words, step, k) | value << at, high = at + bits > 32 ? word_at(words, step, k + 1) | value >> (32 - at) : 0;
    memcpy((uint8_t *)words + k * step, &low, sizeof low);
    if (at + bits > 32) memcpy((uint8_t *)words + (k + 1) * step, &high, sizeof high);
}

int64_t oz_field_words(int bits, oz_order order, int64_t n) {
    const int64_t whole = 32 / bits;
    return order == OZ_ORDER_STREAM ? (n * bits + 31) / 32 : (n + whole - 1) / whole;
}

#define FIELDS(name, bits, order)                                                                                                      \
    static void expand_##name(float *dst, const void *row, int64_t col0, int64_t n) {                                                    \
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((int)oz_field_get(row, 4, bits, order, col0 + i) - (1 << (bits - 1)));          \
    }
FIELDS(i2p, 2, OZ_ORDER_STREAM) FIELDS(i3p, 3, OZ_ORDER_STREAM) FIELDS(i5p, 5, OZ_ORDER_STREAM) FIELDS(i6p, 6, OZ_ORDER_STREAM) FIELDS(i7p, 7, OZ_ORDER_STREAM)
FIELDS(i3w, 3, OZ_ORDER_WORDS) FIELDS(i5w, 5, OZ_ORDER_WORDS) FIELDS(i6w, 6, OZ_ORDER_WORDS) FIELDS(i7w, 7, OZ_ORDER_WORDS)

static void expand_nibbles(float *dst, const void *row, int64_t col0, int64_t n) {
    const uint8_t *p = row;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)(p[(col0 + i) / 2] >> (col0 + i) % 2 * 4 & 15);
}
static const int8_t E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* halves */


static void expand_sixths(float *dst, const void *row, int64_t col0, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = (float)oz_field_get(row, 4, 6, OZ_ORDER_STREAM, col0 + i);
}
#define E2M3_HALF(s) 0, s 1, s 2, s 3, s 4, s 5, s 6, s 7, s 8, s 9, s 10, s 11, s 12, s 13, s 14, s 15, s 16, s 18, s 20, s 22, s 24, s 26, s 28, s 30, s 32, s 36, s 40, s 44, s 48, s 52, s 56, s 60
static const int8_t E2M3[64] = {E2M3_HALF(+), E2M3_HALF(-)}; /* eighths */

static const oz_codec_info CODECS[OZ_CODEC_COUNT] = {
    [OZ_CODEC_F32] = {"f32", true, 32, OZ_DTYPE_F32, true, 0, 0, expand_f32},
    [OZ_CODEC_F16] = {"f16", true, 16, OZ_DTYPE_F16, true, 0, 0, expand_f16},
    [OZ_CODEC_BF16] = {"bf16", true, 16, OZ_DTYPE_BF16, true, 0, 0, expand_bf16},
    [OZ_CODEC_Q8_0] = {"q8_0", true, 8, OZ_DTYPE_Q8_0, false, -128, 127, expand_q8_0},
    [OZ_CODEC_Q4_0] = {"q4_0", true, 4, OZ_DTYPE_Q4_0, false, -8, 7, expand_q4_0},
    [OZ_CODEC_Q4_1] = {"q4_1", true, 4, OZ_DTYPE_Q4_1, false, 0, 15, expand_q4_1},
    [OZ_CODEC_Q5_0] = {"q5_0", true, 5, OZ_DTYPE_Q5_0, false, -16, 15, expand_q5_0},
    [OZ_CODEC_Q5_1] = {"q5_1", true, 5, OZ_DTYPE_Q5_1, false, 0, 31, expand_q5_1},
    [OZ_CODEC_Q2_K] = {"q2_k", true, 2, OZ_DTYPE_Q2_K, false, 0, 3, expand_q2_k},
    [OZ_CODEC_Q3_K] = {"q3_k", true, 3, OZ_DTYPE_Q3_K, false, -4, 3, expand_q3_k},
    [OZ_CODEC_Q4_K] = {"q4_k", true, 4, OZ_DTYPE_Q4_K, false, 0, 15, expand_q4_k},
    [OZ_CODEC_Q5_K] = {"q5_k", true, 5, OZ_DTYPE_Q5_K, false, 0, 31, expand_q5_k},
    [OZ_CODEC_Q6_K] = {"q6_k", true, 6, OZ_DTYPE_Q6_K, false, -32, 31, expand_q6_k},
    [OZ_CODEC_IQ4_NL] = {"iq4_nl", true, 4, OZ_DTYPE_IQ4_NL, false, 0, 15, expand_iq4_nl},
    [OZ_CODEC_IQ4_XS] = {"iq4_xs", true, 4, OZ_DTYPE_IQ4_XS, false, 0, 15, expand_iq4_xs},
    [OZ_CODEC_MXFP4] = {"mxfp4", true, 4, OZ_DTYPE_MXFP4, false, 0, 15, expand_mxfp4},
    [OZ_CODEC_I8] = {"int8", false, 8, OZ_DTYPE_I8, false, -128, 127, expand_i8},
    [OZ_CODEC_I4P] = {"int4 packed", false, 4, OZ_DTYPE_I32, false, -8, 7, expand_i4p},
    [OZ_CODEC_I8P] = {"int8 packed", false, 8, OZ_DTYPE_I32, false, -128, 127, expand_i8p},
    [OZ_CODEC_F8E4M3] = {"float8 e4m3", false, 8, OZ_DTYPE_F8_E4M3, true, 0, 0, expand_e4m3, .largest = 448, .least = -6, .digits = 3},
    [OZ_CODEC_I2P] = {"int2 packed", false, 2, OZ_DTYPE_I32, false, -2, 1, expand_i2p},
    [OZ_CODEC_I3P] = {"int3 packed", false, 3, OZ_DTYPE_I32, false, -4, 3, expand_i3p},
    [OZ_CODEC_I5P] = {"int5 packed", false, 5, OZ_DTYPE_I32, false, -16, 15, expand_i5p},
    [OZ_CODEC_I6P] = {"int6 packed", false, 6, OZ_DTYPE_I32, false, -32, 31, expand_i6p},
    [OZ_CODEC_I7P] = {"int7 packed", false, 7, OZ_DTYPE_I32, false, -64, 63, expand_i7p},
    [OZ_CODEC_I3W] = {"int3 packed by words", false, 3, OZ_DTYPE_I32, false, -4, 3, expand_i3w, OZ_ORDER_WORDS},
    [OZ_CODEC_I5W] = {"int5 packed by words", false, 5, OZ_DTYPE_I32, false, -16, 15, expand_i5w, OZ_ORDER_WORDS},
    [OZ_CODEC_I6W] = {"int6 packed by words", false, 6, OZ_DTYPE_I32, false, -32, 31, expand_i6w, OZ_ORDER_WORDS},
    [OZ_CODEC_I7W] = {"int7 packed by words", false, 7, OZ_DTYPE_I32, false, -64, 63, expand_i7w, OZ_ORDER_WORDS},
    [OZ_CODEC_I2G] = {"int2 gptq", false, 2, OZ_DTYPE_I32, false, -2, 1, NULL},
    [OZ_CODEC_I3G] = {"int3 gptq", false, 3, OZ_DTYPE_I32, false, -4, 3, NULL},
    [OZ_CODEC_I4G] = {"int4 gptq", false, 4, OZ_DTYPE_I32, false, -8, 7, NULL},
    [OZ_CODEC_I8G] = {"int8 gptq", false, 8, OZ_DTYPE_I32, false, -128, 127, NULL},
    [OZ_CODEC_I4A] = {"int4 awq", false, 4, OZ_DTYPE_I32, false, -8, 7, NULL, OZ_ORDER_AWQ},
    [OZ_CODEC_E2M1] = {"float4 e2m1", false, 4, OZ_DTYPE_U8, true, 0, 0, expand_nibbles, OZ_ORDER_STREAM, E2M1, 0.5f, .largest = 6, .least = 0, .digits = 1},
    [OZ_CODEC_E2M3] = {"float6 e2m3", false, 6, OZ_DTYPE_U8, true, 0, 0, expand_sixths, OZ_ORDER_STREAM, E2M3, 0.125f, .largest = 7.5f, .least = 0, .digits = 3},
};

const oz_codec_info *oz_codec_get(oz_codec c) { return &CODECS[c]; }

bool oz_codec_plain(oz_codec *out, oz_dtype d) {
    for (int i = 0; i < OZ_CODEC_COUNT; i++)
        if (CODECS[i].plain && CODECS[i].dtype == d) return *out = (oz_codec)i, true;
    return false;
}

int64_t oz_codec_row_bytes(oz_codec c, int64_t cols) {
    const oz_dtype_info *t = oz_dtype_get(CODECS[c].dtype);
    if (CODECS[c].plain) return (cols + t->block_elems - 1) / t->block_elems * t->block_bytes;
    return CODECS[c].dtype == OZ_DTYPE_I32 ? 4 * oz_field_words(CODECS[c].bits, CODECS[c].order, cols) : (cols * CODECS[c].bits + 7) / 8;
}

/* ---- weights ---- */

int64_t oz_weight_group(const oz_weight *w, int64_t col) {
    int32_t g;
    if (!w->g_idx) return w->group_size > 0 ? col / w->group_size : 0;
    memcpy(&g, (const char *)w->g_idx + col * (int64_t)sizeof g, sizeof g);
    return g;
}

int64_t oz_weight_groups(const oz_weight *w) { return w->group_size > 0 ? (w->cols + w->group_size - 1) / w->group_size : 1; }

/* llama.cpp stores head h of q and k as [head_dim / 2, 2] where Hugging Face has [2, head_dim / 2], because its rotary
 * embedding turns neighbouring pairs. Logical row (h, half k, index j) therefore lies at (h, j, k). */
int64_t oz_weight_stored_row(const oz_weight *w, int64_t r) {
    if (w->rope_heads <= 0) return r;
    int64_t dim = w->rows / w->rope_heads, half = dim / 2, i = r % dim;
    return r - i + i % half * 2 + i / half;
}

bool oz_weight_is_compact(const oz_weight *w) {
    const oz_codec_info *c = &CODECS[w->codec];
    const bool whole = c->plain || (c->expand && (c->bits == 4 || c->bits == 8));
    return whole && !w->scales_down && w->scale_rows <= 1 && !(w->scale_divisor > 0) && !w->zero_words && !w->g_idx;
}

/* Transposed: a stored row k holds column k (AWQ), or the k-th words of all rows' streams (GPTQ). */
void oz_weight_codes(float *dst, const oz_weight *w, int64_t stored, int64_t col0, int64_t n) {
    const oz_codec_info *c = &CODECS[w->codec];
    const uint8_t *codes = w->codes;
    if (c->expand) {
        c->expand(dst, codes + (size_t)stored * (size_t)w->row_bytes, col0, n);
    } else if (c->order == OZ_ORDER_AWQ) {
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((int)oz_field_get(codes + (col0 + i) * w->row_bytes, 4, c->bits, c->order, stored) + c->code_min);
    } else {
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((int)oz_field_get(codes + stored * 4, w->row_bytes, c->bits, c->order, col0 + i) + c->code_min);
    }
}

static float scale_at(const oz_weight *w, int64_t n_groups, int64_t stored, int64_t g) {
    const int64_t row = w->scale_rows > 1 ? stored / w->scale_rows : stored, i = w->one_scale ? 0 : w->scales_down ? g * w->rows + row : row * n_groups + g;
    float s;
    oz_to_f32(&s, w->scale_dtype, (const uint8_t *)w->scales + (size_t)i * (size_t)oz_dtype_get(w->scale_dtype)->block_bytes, 1);
    return w->scale_divisor > 0 ? s / w->scale_divisor : s;
}

static float zero_at(const oz_weight *w, int64_t n_groups, int64_t stored, int64_t g) {
    if (w->zeros) return w->zeros[w->one_scale ? 0 : stored * n_groups + g];
    if (!w->zero_words) return 0;
    const oz_codec_info *c = &CODECS[w->codec];
    return (float)((int)oz_field_get((const uint8_t *)w->zero_words + g * w->zero_group_step, w->zero_word_step, c->bits, w->zero_order, stored) + w->zero_add + c->code_min);
}

void oz_weight_scales(float *scales, float *zeros, const oz_weight *w, int64_t stored) {
    const int64_t n = w->one_scale ? 1 : oz_weight_groups(w);
    for (int64_t g = 0; g < n; g++) scales[g] = scale_at(w, n, stored, g), zeros[g] = zero_at(w, n, stored, g);
}

void oz_weight_row(float *dst, const oz_weight *w, int64_t r, int64_t col0, int64_t n) {
    const oz_codec_info *info = &CODECS[w->codec];
    const int64_t stored = oz_weight_stored_row(w, r), n_groups = oz_weight_groups(w);
    oz_weight_codes(dst, w, stored, col0, n);
    if (!w->scales) return;
    float scale = 0, zero = 0;
    for (int64_t c = col0, last = -1; c < col0 + n; c++) {
        const int64_t g = oz_weight_group(w, c);
        if (g != last) scale = scale_at(w, n_groups, stored, g), zero = zero_at(w, n_groups, stored, last = g);
        float *v = &dst[c - col0];
        if (info->codebook) *v = (float)info->codebook[(int)*v] * info->unit;
        *v = (*v - zero) * scale;
    }
}

size_t oz_weight_bytes(const oz_weight *w) {
    const oz_codec_info *c = &CODECS[w->codec];
    const size_t rows = (size_t)w->rows, groups = (size_t)oz_weight_groups(w), scale_rows = w->scale_rows > 1 ? (size_t)w->scale_rows : 1;
    const size_t stored_rows = c->plain || c->expand ? rows : c->order == OZ_ORDER_AWQ ? (size_t)w->cols : (size_t)oz_field_words(c->bits, c->order, w->cols);
    size_t bytes = stored_rows * (size_t)w->row_bytes;
    if (w->scales) bytes += (w->one_scale ? 1 : (rows + scale_rows - 1) / scale_rows * groups) * (size_t)oz_dtype_get(w->scale_dtype)->block_bytes;
    if (w->zeros) bytes += w->one_scale ? 1 : rows * groups;
    if (w->zero_words) bytes += 4 * groups * (size_t)oz_field_words(c->bits, w->zero_order, w->rows);
    return bytes + (w->g_idx ? 4 * (size_t)w->cols : 0);
}
