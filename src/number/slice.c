/* A slice of a stored weight as a compact weight of its own: what a rank keeps of it. */
#include <string.h>
#include "base/mem.h"
#include "number/number.h"

/* Columns that one addressable piece of a stored row holds: a block, or as many codes as fill whole bytes. */
static int64_t piece_cols(const oz_weight *w) {
    const oz_codec_info *c = oz_codec_get(w->codec);
    const int64_t block = c->plain ? oz_dtype_get(c->dtype)->block_elems : 1;
    return block > 1 ? block : c->bits < 8 ? 8 / c->bits : 1;
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

oz_status oz_weight_slice(oz_weight *out, void **mem, const oz_weight *w, int64_t row0, int64_t n_rows, int64_t col0, int64_t n_cols, oz_err *err) {
    OZ_TRY(check(w, row0, n_rows, col0, n_cols, err));
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
    for (int64_t r = 0; r < n_rows; r++) { /* rows lie as they are stored: a cut is at whole heads */
        memcpy(c + r * out->row_bytes, (const uint8_t *)w->codes + (row0 + r) * w->row_bytes + skip, (size_t)out->row_bytes);
        if (per_row) memcpy(s + (size_t)(r * n) * scale, (const uint8_t *)w->scales + (size_t)((row0 + r) * all + g0) * scale, (size_t)n * scale);
        if (w->zeros) memcpy(z + r * n, w->zeros + (row0 + r) * all + g0, (size_t)n);
    }
    out->codes = c;
    if (per_row) out->scales = s;
    if (w->zeros) out->zeros = z;
    return OZ_OK;
}
