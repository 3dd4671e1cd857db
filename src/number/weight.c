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
    [OZ_CODEC_F8E4M3] = {"float8 e4m3", false, 8, OZ_DTYPE_F8_E4M3, true, 0, 0, expand_e4m3},
};

const oz_codec_info *oz_codec_get(oz_codec c) { return &CODECS[c]; }

bool oz_codec_plain(oz_codec *out, oz_dtype d) {
    for (int i = 0; i < OZ_CODEC_COUNT; i++)
        if (CODECS[i].plain && CODECS[i].dtype == d) return *out = (oz_codec)i, true;
    return false;
}

int64_t oz_codec_row_bytes(oz_codec c, int64_t cols) {
    const oz_dtype_info *t = oz_dtype_get(CODECS[c].dtype);
    int64_t per_elem = CODECS[c].plain ? t->block_elems : t->block_bytes * 8 / CODECS[c].bits; /* values in an element of the tensor */
    return (cols + per_elem - 1) / per_elem * t->block_bytes;
}

/* ---- weights ---- */

int64_t oz_weight_groups(const oz_weight *w) { return w->group_size > 0 ? (w->cols + w->group_size - 1) / w->group_size : 1; }

/* llama.cpp stores head h of q and k as [head_dim / 2, 2] where Hugging Face has [2, head_dim / 2], because its rotary
 * embedding turns neighbouring pairs. Logical row (h, half k, index j) therefore lies at (h, j, k). */
int64_t oz_weight_stored_row(const oz_weight *w, int64_t r) {
    if (w->rope_heads <= 0) return r;
    int64_t dim = w->rows / w->rope_heads, half = dim / 2, i = r % dim;
    return r - i + i % half * 2 + i / half;
}

void oz_weight_row(float *dst, const oz_weight *w, int64_t r, int64_t col0, int64_t n) {
    int64_t stored = oz_weight_stored_row(w, r);
    CODECS[w->codec].expand(dst, (const uint8_t *)w->codes + (size_t)stored * (size_t)w->row_bytes, col0, n);
    if (!w->scales) return;
    int64_t n_groups = oz_weight_groups(w), step = w->group_size > 0 ? w->group_size : w->cols;
    const size_t scale_bytes = (size_t)oz_dtype_get(w->scale_dtype)->block_bytes;
    for (int64_t c = col0; c < col0 + n;) {
        int64_t g = c / step, end = (g + 1) * step < col0 + n ? (g + 1) * step : col0 + n;
        float scale, zero = w->zeros ? (float)w->zeros[stored * n_groups + g] : 0.0f;
        int64_t i = w->one_scale ? 0 : stored * n_groups + g;
        oz_to_f32(&scale, w->scale_dtype, (const uint8_t *)w->scales + (size_t)i * scale_bytes, 1);
        for (; c < end; c++) dst[c - col0] = (dst[c - col0] - zero) * scale;
    }
}

size_t oz_weight_bytes(const oz_weight *w) {
    size_t bytes = (size_t)w->rows * (size_t)w->row_bytes, n_scales = (size_t)w->rows * (size_t)oz_weight_groups(w);
    if (w->scales) bytes += (w->one_scale ? 1 : n_scales) * (size_t)oz_dtype_get(w->scale_dtype)->block_bytes;
    return bytes + (w->zeros ? n_scales : 0);
}
