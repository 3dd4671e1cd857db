/* The tensors that a module under a scheme is stored as: a row a way of storing, from which their names, types and shapes follow. */
#include "scheme/internal.h"

typedef struct store {
    const char *name; /* of schemes that are stored so alone; for people */
    const char *codes, *scale, *shape, *zero, *g_idx, *divisor; /* suffixes; NULL: has none */
    oz_dtype codes_dtype, scale_dtype; /* COUNT: the codec's, the model's */
    bool transposed;   /* [cols, rows], and so are scales */
    bool zero_fields;  /* zero points are fields in words, as codes are */
    bool zero_always;  /* also where the scheme is symmetric */
} store;

#define CT ".weight_scale", .zero = ".weight_zero_point", .g_idx = ".weight_g_idx"
static const store STORES[OZ_STORE_COUNT] = {
    [OZ_STORE_BYTES] = {NULL, ".weight", CT, .codes_dtype = OZ_DTYPE_COUNT, .scale_dtype = OZ_DTYPE_COUNT},
    [OZ_STORE_PACKED] = {NULL, ".weight_packed", CT, .shape = ".weight_shape", .codes_dtype = OZ_DTYPE_COUNT, .scale_dtype = OZ_DTYPE_COUNT, .zero_fields = true},
    [OZ_STORE_NVFP4] = {"NVFP4A16", ".weight_packed", CT, .divisor = ".weight_global_scale", .codes_dtype = OZ_DTYPE_U8, .scale_dtype = OZ_DTYPE_F8_E4M3},
    [OZ_STORE_MXFP4] = {"MXFP4A16", ".weight_packed", CT, .codes_dtype = OZ_DTYPE_U8, .scale_dtype = OZ_DTYPE_U8},
    [OZ_STORE_MXFP6] = {"MXFP6A16", ".weight_packed", CT, .codes_dtype = OZ_DTYPE_U8, .scale_dtype = OZ_DTYPE_U8},
    [OZ_STORE_MXFP8] = {"MXFP8A16", ".weight", CT, .codes_dtype = OZ_DTYPE_COUNT, .scale_dtype = OZ_DTYPE_U8},
    [OZ_STORE_GPTQ] = {NULL, ".qweight", ".scales", NULL, ".qzeros", ".g_idx", NULL, OZ_DTYPE_I32, OZ_DTYPE_COUNT, true, true, true},
    [OZ_STORE_AWQ] = {NULL, ".qweight", ".scales", NULL, ".qzeros", NULL, NULL, OZ_DTYPE_I32, OZ_DTYPE_COUNT, true, true, true},
    [OZ_STORE_FP8_BLOCK] = {NULL, ".weight", ".weight_scale_inv", .codes_dtype = OZ_DTYPE_F8_E4M3, .scale_dtype = OZ_DTYPE_F32},
};

const char *oz_store_name(oz_store s) { return STORES[s].name; }

oz_dtype oz_store_scale(oz_store s) { return s < OZ_STORE_GPTQ ? STORES[s].scale_dtype : OZ_DTYPE_COUNT; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Scales a row, and rows of them: one of all, one a row, one a block. */
static void scale_dims(oz_part *p, const oz_scheme *s, int64_t rows, int64_t cols, bool transposed) {
    const int64_t groups = s->group_size > 0 ? ceil_div(cols, s->group_size) : 1, down = s->block_rows > 0 ? ceil_div(rows, s->block_rows) : rows;
    p->n_dims = s->per_tensor ? 1 : 2;
    p->dims[0] = s->per_tensor ? 1 : transposed ? groups : down, p->dims[1] = transposed ? down : groups;
}

static oz_part codes_part(const store *t, const oz_scheme *s, int64_t rows, int64_t cols) {
    const oz_codec_info *codec = oz_codec_get(s->codec);
    oz_part p = {t->codes, t->codes_dtype == OZ_DTYPE_COUNT ? codec->dtype : t->codes_dtype, 2, {rows, cols}, OZ_PART_CODES, false};
    if (!t->transposed) p.dims[1] = oz_codec_row_bytes(s->codec, cols) / oz_dtype_get(codec->dtype)->block_bytes;
    else if (codec->order == OZ_ORDER_AWQ) p.dims[0] = cols, p.dims[1] = oz_field_words(codec->bits, codec->order, rows);
    else p.dims[0] = oz_field_words(codec->bits, codec->order, cols), p.dims[1] = rows;
    return p;
}

static oz_part zero_part(const store *t, const oz_scheme *s, int64_t rows, int64_t cols) {
    const oz_codec_info *codec = oz_codec_get(s->codec);
    oz_part p = {t->zero, OZ_DTYPE_I8, 0, {0}, OZ_PART_ZERO, false};
    scale_dims(&p, s, rows, cols, t->transposed);
    if (!t->zero_fields || s->per_tensor) return p; /* one zero point is never packed */
    p.dtype = OZ_DTYPE_I32;
    p.dims[t->transposed] = oz_field_words(codec->bits, codec->order, rows);
    return p;
}

int oz_scheme_parts(oz_part parts[OZ_MAX_PARTS], const oz_scheme *s, int64_t rows, int64_t cols, oz_dtype model_dtype) {
    if (!s->quantized) {
        parts[0] = (oz_part){".weight", model_dtype, 2, {rows, cols}, OZ_PART_CODES, false};
        return 1;
    }
    const store *t = &STORES[s->store];
    int n = 0;
    parts[n++] = codes_part(t, s, rows, cols);
    parts[n] = (oz_part){t->scale, s->bf16_scales ? OZ_DTYPE_BF16 : t->scale_dtype == OZ_DTYPE_COUNT ? model_dtype : t->scale_dtype, 0, {0}, OZ_PART_SCALE, false};
    scale_dims(&parts[n++], s, rows, cols, t->transposed);
    if (t->shape) parts[n++] = (oz_part){t->shape, OZ_DTYPE_I64, 1, {2}, OZ_PART_SHAPE, false};
    if (t->zero && (!s->symmetric || t->zero_always)) parts[n++] = zero_part(t, s, rows, cols);
    /* GPTQ keeps an index even where it says nothing; some writers leave that one out */
    if (t->g_idx && (s->column_order || s->store == OZ_STORE_GPTQ)) parts[n++] = (oz_part){t->g_idx, OZ_DTYPE_I32, 1, {cols}, OZ_PART_G_IDX, !s->column_order};
    if (t->divisor) parts[n++] = (oz_part){t->divisor, OZ_DTYPE_F32, 1, {1}, OZ_PART_DIVISOR, false};
    if (s->static_input) parts[n++] = (oz_part){".input_scale", model_dtype, 1, {1}, OZ_PART_INPUT_SCALE, false};
    if (s->static_input && !s->input.symmetric) parts[n++] = (oz_part){".input_zero_point", OZ_DTYPE_I8, 1, {1}, OZ_PART_INPUT_ZERO, false};
    return n;
}
