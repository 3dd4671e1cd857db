/* From other families to compressed-tensors without a loss: the same codes under the same scales, laid out anew. Only where such a form exists; what has none is said, with the reason.
 *
 * GPTQ, AWQ: fields of words that run down the columns become fields that run along the rows; code and zero point both move by 2^(bits - 1), since they are stored unsigned there and signed
 *   in our view. A zero point one past the largest code (GPTQ's first format can say it) has no place. Columns in an order of their own keep their index (actorder group).
 * Native fp8: the same bytes under other names.
 * GGUF blocks whose groups have a scale and nothing else: integers of 3 to 8 bits in groups of 16 or 32. A group with a negative scale -s has the codes -1 - q, the zero point -1 and the scale s:
 *   (-1 - q) - (-1) = -q, within the range of q; so such a weight is asymmetric. A scale of 0 becomes 1, and the codes 0.
 * GGUF's MXFP4: the same floats of four bits and the same exponents, each in its own place; its codebook has them doubled, and half the scale. An exponent of 255 is no number in compressed-tensors. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

bool oz_scheme_is_native(const oz_scheme *s) {
    return s->quantized && s->store < OZ_STORE_GPTQ && strcmp(s->format, "fp8") != 0;
}

/* ---- integers in fields ---- */

/* Zero points: none but zeros, or some; past: one that no code reaches. */
static void zeros_look(bool *idle, bool *past, const oz_weight *w) {
    const int64_t n = w->one_scale ? 1 : oz_weight_groups(w);
    const float top = (float)oz_codec_get(w->codec)->code_max;
    float *scales = oz_alloc_array(2 * (size_t)n, sizeof *scales), *zeros = scales + n;
    *idle = true, *past = false;
    for (int64_t r = 0; r < w->rows; r++) {
        oz_weight_scales(scales, zeros, w, r);
        for (int64_t g = 0; g < n; g++) *idle = *idle && zeros[g] == 0, *past = *past || zeros[g] > top;
    }
    oz_free(scales);
}

static const char *from_fields(oz_recode *out, const oz_scheme *from, const oz_weight *w) {
    bool idle, past;
    zeros_look(&idle, &past, w);
    if (past) return "a zero point is one past the largest code";
    out->to = (oz_scheme){.quantized = true, .bits = from->bits, .codec = oz_codec_packed(from->bits), .group_size = from->group_size, .symmetric = idle, .store = OZ_STORE_PACKED,
                          .format = "pack-quantized", .column_order = w->g_idx != NULL};
    out->g_idx = w->g_idx;
    out->scale_dtype = w->scale_dtype;
    return NULL;
}

static const char *from_fp8(oz_recode *out, const oz_scheme *from, const oz_weight *w) {
    if (from->input.group_size > 0 && w->cols % from->input.group_size != 0) return "its inputs are quantized in groups that do not divide its columns";
    out->to = *from;
    out->to.store = OZ_STORE_BYTES;
    out->to.input.powers = false; /* convert.c says so */
    out->to.format = "float-quantized";
    out->scale_dtype = from->static_input ? OZ_DTYPE_F32 : w->scale_dtype; /* the input's scale has the same type, and may have come in another */
    return NULL;
}

static oz_status stored_band(void *arg, const oz_band *b, oz_err *err) {
    const oz_recode *r = arg;
    for (int64_t i = 0; i < b->n_rows; i++) oz_weight_codes(b->codes + i * r->weight->cols, r->weight, b->row0 + i, 0, r->weight->cols);
    oz_weight_scales(b->scales, b->zeros, r->weight, b->row0);
    (void)err;
    return OZ_OK;
}

/* ---- blocks ---- */

static const uint8_t *blocks_of(const oz_weight *w, int64_t row) { return (const uint8_t *)w->codes + oz_weight_stored_row(w, row) * w->row_bytes; }

static bool any_negative(const oz_weight *w) {
    const oz_dtype_info *d = oz_dtype_get(oz_codec_get(w->codec)->dtype);
    const oz_block_type *type = oz_block_get(oz_codec_get(w->codec)->dtype);
    oz_block b;
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c += d->block_elems) {
            type->split(&b, blocks_of(w, r) + c / d->block_elems * d->block_bytes);
            for (int g = 0; g < d->block_elems / type->group; g++)
                if (b.scales[g] < 0) return true;
        }
    return false;
}

/* The floats of GGUF's MXFP4, and what its scales are multiplied by. */
static bool is_mxfp4(const oz_weight *w) { return oz_codec_get(w->codec)->dtype == OZ_DTYPE_MXFP4; }

static const char *from_mxfp4(oz_recode *out, const oz_weight *w) {
    const int64_t n = w->cols / oz_dtype_get(OZ_DTYPE_MXFP4)->block_elems, size = oz_dtype_get(OZ_DTYPE_MXFP4)->block_bytes;
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t i = 0; i < n; i++)
            if (blocks_of(w, r)[i * size] == 255) return "a block has the exponent 255, which is no number there";
    out->to = (oz_scheme){.quantized = true, .is_float = true, .bits = 4, .codec = OZ_CODEC_E2M1, .group_size = oz_dtype_get(OZ_DTYPE_MXFP4)->block_elems, .symmetric = true, .store = OZ_STORE_MXFP4,
                          .format = "mxfp4-pack-quantized"};
    out->scale_dtype = OZ_DTYPE_F32; /* not asked for */
    return NULL;
}

static const char *from_blocks(oz_recode *out, const oz_weight *w) {
    const oz_codec_info *codec = oz_codec_get(w->codec);
    const oz_block_type *type = oz_block_get(codec->dtype);
    if (is_mxfp4(w)) return from_mxfp4(out, w);
    if (type->codebook) return "its codes stand for the values of a codebook";
    if (type->has_offsets) return "its groups have offsets that are no whole number of scales";
    out->to = (oz_scheme){.quantized = true, .bits = codec->bits, .codec = oz_codec_packed(codec->bits), .group_size = type->group, .symmetric = !any_negative(w), .store = OZ_STORE_PACKED,
                          .format = "pack-quantized"};
    out->scale_dtype = type->group == oz_dtype_get(codec->dtype)->block_elems ? OZ_DTYPE_F16 : OZ_DTYPE_F32; /* as it is stored, or a product */
    return NULL;
}

static oz_status block_band(void *arg, const oz_band *b, oz_err *err) {
    const oz_weight *w = ((const oz_recode *)arg)->weight;
    const oz_dtype_info *d = oz_dtype_get(oz_codec_get(w->codec)->dtype);
    const oz_block_type *type = oz_block_get(oz_codec_get(w->codec)->dtype);
    const uint8_t *at = blocks_of(w, b->row0);
    oz_block block;
    for (int64_t c = 0, g = 0; c < w->cols; c += d->block_elems, at += d->block_bytes) {
        type->split(&block, at);
        for (int k = 0; k < d->block_elems / type->group; k++, g++) {
            const float s = block.scales[k] * (is_mxfp4(w) ? 2.0f : 1.0f);
            OZ_NEED(isfinite(s), err, OZ_E_FORMAT, "row %lld, column %lld: expected a finite scale, found %g", (long long)b->row0, (long long)(c + k * type->group), (double)s);
            b->scales[g] = s == 0 ? 1.0f : fabsf(s);
            b->zeros[g] = s < 0 ? -1.0f : 0.0f;
            for (int i = k * type->group; i < (k + 1) * type->group; i++) b->codes[c + i] = s == 0 ? 0.0f : s < 0 ? -1.0f - block.codes[i] : block.codes[i];
        }
    }
    return OZ_OK;
}

/* ---- one module ---- */

const char *oz_recode_plan(oz_recode *out, const oz_scheme *from, const oz_weight *w) {
    *out = (oz_recode){.from = from, .weight = w};
    if (from->quantized && from->group_size > 0 && from->block_rows == 0 && w->cols % from->group_size != 0) return "its last group is cut short";
    const char *why = !from->quantized ? from_blocks(out, w) : from->is_float ? from_fp8(out, from, w) : from_fields(out, from, w);
    if (!why) out->to.name = oz_scheme_display(&out->to);
    return why;
}

oz_status oz_recode_write(oz_stream *s, const oz_recode *r, const oz_ckpt *c, const oz_module *m, oz_err *err) {
    float scale = 1, zero = 0;
    oz_err bad = {0};
    OZ_TRY(oz_scheme_bind_input(&scale, &zero, c, m, r->from, err));
    const oz_made made = {r->from->quantized ? stored_band : block_band, (void *)r, r->g_idx, 0, scale, (int8_t)zero};
    oz_status st = oz_stream_made(s, m, &r->to, r->scale_dtype, &made, &bad);
    if (st != OZ_OK && bad.code != OZ_OK) OZ_FAIL(err, st, "%s: %s", m->name, bad.msg);
    return st;
}
