/* A slice of a stored weight as a compact weight of its own: what a rank keeps of it. */
#include <string.h>
#include "base/mem.h"
#include "number/number.h"

/* Columns that one addressable piece of a stored row holds: a block, or as many codes as fill whole bytes. */
static int64_t piece_cols(const oz_weight *w) {
    const oz_codec_info *c = oz_codec_get(w->codec);
    const int64_t block = c->plain ? oz_dtype_get(c->dtype)->block_elems : 1;
    return block > 1 ? block : c->bits == 4 && c->expand ? 2 : 1;
}

static oz_status check(const oz_weight *w, int64_t row0, int64_t n_rows, int64_t col0, int64_t n_cols, oz_err *err) {
    OZ_NEED(row0 >= 0 && n_rows > 0 && row0 + n_rows <= w->rows && col0 >= 0 && n_cols > 0 && col0 + n_cols <= w->cols, err, OZ_E_ARG,
            "slice rows %lld+%lld, columns %lld+%lld of [%lld, %lld]", (long long)row0, (long long)n_rows, (long long)col0, (long long)n_cols, (long long)w->rows, (long long)w->cols);
    const int64_t piece = piece_cols(w), g = w->scales && !w->one_scale && w->group_size < w->cols ? w->group_size : 1;
    OZ_NEED(col0 % piece == 0 && n_cols % piece == 0, err, OZ_E_UNSUPPORTED, "cut at column %lld: blocks of %lld columns cannot be cut", (long long)(col0 % piece ? col0 : col0 + n_cols), (long long)piece);
    OZ_NEED(col0 % g == 0 && (n_cols % g == 0 || col0 + n_cols == w->cols), err, OZ_E_UNSUPPORTED, "cut at column %lld: groups of %lld columns cannot be cut",
            (long long)(col0 % g ? col0 : col0 + n_cols), (long long)g);
    if (w->rope_heads > 0) {
        const int64_t head = w->rows / w->rope_heads;
        OZ_NEED(row0 % head == 0 && n_rows % head == 0, err, OZ_E_UNSUPPORTED, "cut at row %lld: interleaved heads of %lld rows cannot be cut", (long long)row0, (long long)head);
    }
    return OZ_OK;
}

/* ---- compact copies of what others store otherwise ---- */

/* Columns by group, those of one in their order. */
static void order_make(int32_t *order, const oz_weight *w) {
    int64_t at = 0;
    for (int64_t g = 0; g < oz_weight_groups(w); g++)
        for (int64_t c = 0; c < w->cols; c++)
            if (oz_weight_group(w, c) == g) order[at++] = (int32_t)c;
}

/* Fewer bits than 4, and those between 4 and 8, take the next; e4m3 has every float of 6 bits among its values. */
static oz_codec compact_codec(const oz_codec_info *info, oz_codec codec) {
    if (info->is_float) return info->bits == 4 || info->bits == 8 ? codec : OZ_CODEC_F8E4M3;
    return info->bits <= 4 ? OZ_CODEC_I4P : OZ_CODEC_I8;
}

/* Codes of one row in another codec. */
static void codes_copy(uint8_t *dst, float *scratch, const oz_weight *out, const oz_weight *w, int64_t row, int64_t col0) {
    float *all = scratch, *part = scratch + w->cols;
    const oz_codec_info *info = oz_codec_get(w->codec);
    oz_weight_codes(all, w, row, 0, w->cols);
    for (int64_t c = 0; info->codebook && c < w->cols; c++) all[c] = (float)info->codebook[(int)all[c]] * info->unit;
    for (int64_t c = 0; c < out->cols; c++) part[c] = all[out->order ? out->order[c] : col0 + c];
    oz_codes_store(dst, out->codec, part, out->cols);
}

static oz_status compact(oz_weight *out, void **mem, const oz_weight *w, int64_t row0, int64_t n_rows, int64_t col0, int64_t n_cols, oz_err *err) {
    const oz_codec_info *info = oz_codec_get(w->codec);
    OZ_NEED(!w->g_idx || n_cols == w->cols, err, OZ_E_UNSUPPORTED, "cut at column %lld: columns of groups that are out of order (g_idx) cannot be cut", (long long)(col0 ? col0 : n_cols));
    *out = (oz_weight){.codec = compact_codec(info, w->codec), .rows = n_rows, .cols = n_cols, .scale_dtype = OZ_DTYPE_F32};
    out->group_size = w->group_size >= w->cols ? n_cols : w->group_size;
    out->row_bytes = oz_codec_row_bytes(out->codec, n_cols);
    const int64_t all = oz_weight_groups(w), n = oz_weight_groups(out), g0 = n < all ? col0 / w->group_size : 0;
    const bool has_zeros = w->zeros || w->zero_words;
    const size_t codes = (size_t)(n_rows * out->row_bytes + 63) & ~(size_t)63, scales = ((size_t)(n_rows * n) * sizeof(float) + 63) & ~(size_t)63;
    const size_t zeros = has_zeros ? ((size_t)(n_rows * n) + 63) & ~(size_t)63 : 0, order = w->g_idx ? (size_t)n_cols * sizeof(int32_t) : 0;
    const size_t scratch = (size_t)(2 * w->cols + 2 * all) * sizeof(float), order_room = (order + 63) & ~(size_t)63;
    OZ_TRY(oz_big_new(mem, codes + scales + zeros + order_room + scratch, "compact copy of a weight", err));
    uint8_t *c = *mem;
    float *s = (float *)(c + codes);
    int8_t *z = (int8_t *)(c + codes + scales);
    int32_t *o = (int32_t *)(c + codes + scales + zeros);
    float *rest = (float *)(c + codes + scales + zeros + order_room), *row_scales = rest + 2 * w->cols, *row_zeros = row_scales + all;
    out->codes = c, out->scales = s;
    if (has_zeros) out->zeros = z;
    if (w->g_idx) order_make(o, w), out->order = o;
    for (int64_t r = 0; r < n_rows; r++) {
        if (out->codec == w->codec && !w->g_idx) memcpy(c + r * out->row_bytes, (const uint8_t *)w->codes + (row0 + r) * w->row_bytes + col0 * info->bits / 8, (size_t)out->row_bytes);
        else codes_copy(c + r * out->row_bytes, rest, out, w, row0 + r, col0);
        oz_weight_scales(row_scales, row_zeros, w, row0 + r);
        for (int64_t g = 0; g < n; g++) {
            s[r * n + g] = row_scales[g0 + g];
            if (!has_zeros) continue;
            OZ_NEED(row_zeros[g0 + g] <= 127, err, OZ_E_UNSUPPORTED, "row %lld: a zero point of %g, one past the largest code of 8 bits", (long long)(row0 + r), (double)row_zeros[g0 + g]);
            z[r * n + g] = (int8_t)row_zeros[g0 + g];
        }
    }
    return OZ_OK;
}

oz_status oz_weight_slice(oz_weight *out, void **mem, const oz_weight *w, int64_t row0, int64_t n_rows, int64_t col0, int64_t n_cols, oz_err *err) {
    OZ_TRY(check(w, row0, n_rows, col0, n_cols, err));
    if (!oz_weight_is_compact(w)) {
        *mem = NULL;
        oz_status st = compact(out, mem, w, row0, n_rows, col0, n_cols, err);
        if (st != OZ_OK) oz_big_free(*mem), *mem = NULL;
        return st;
    }
    OZ_NEED(!w->order, err, OZ_E_UNSUPPORTED, "columns in an order of their own cannot be cut");
    const oz_codec_info *info = oz_codec_get(w->codec);
    const int64_t skip = info->plain ? oz_codec_row_bytes(w->codec, col0) : col0 * info->bits / 8;
    *out = *w;
    out->rows = n_rows, out->cols = n_cols;
    out->row_bytes = oz_codec_row_bytes(w->codec, n_cols);
    if (w->group_size >= w->cols) out->group_size = n_cols;
    out->rope_heads = w->rope_heads > 0 ? (int32_t)(w->rope_heads * n_rows / w->rows) : 0;
    const bool per_row = w->scales && !w->one_scale;
    const int64_t all = per_row ? oz_weight_groups(w) : 0, n = per_row ? oz_weight_groups(out) : 0, g0 = n < all ? col0 / w->group_size : 0;
    const size_t scale = w->scales ? (size_t)oz_dtype_get(w->scale_dtype)->block_bytes : 0;
    const size_t codes = (size_t)(n_rows * out->row_bytes + 63) & ~(size_t)63, scales = ((size_t)(n_rows * n) * scale + 63) & ~(size_t)63;
    OZ_TRY(oz_big_new(mem, codes + scales + (w->zeros ? (size_t)(n_rows * n) : 0) + 1, "slice of a weight", err));
    uint8_t *c = *mem, *s = c + codes;
    int8_t *z = (int8_t *)(s + scales);
    const bool one_zero = w->zeros && w->one_scale;
    for (int64_t r = 0; r < n_rows; r++) { /* rows lie as they are stored: a cut is at whole heads */
        memcpy(c + r * out->row_bytes, (const uint8_t *)w->codes + (row0 + r) * w->row_bytes + skip, (size_t)out->row_bytes);
        if (per_row) memcpy(s + (size_t)(r * n) * scale, (const uint8_t *)w->scales + (size_t)((row0 + r) * all + g0) * scale, (size_t)n * scale);
        if (w->zeros && !one_zero) memcpy(z + r * n, w->zeros + (row0 + r) * all + g0, (size_t)n);
    }
    out->codes = c;
    if (per_row) out->scales = s;
    if (w->zeros && !one_zero) out->zeros = z;
    return OZ_OK;
}
