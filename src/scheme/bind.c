/* From a scheme to the tensors that hold it. Fails closed: a module whose tensors say anything else than its scheme is an error that
 * names the tensor, what was expected, what was found and the file. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

/* What quantized checkpoints of any method keep beside a module. One that its scheme does not ask for means that config and
 * tensors disagree. */
static const char *const SUFFIXES[] = {
    ".weight", ".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale", ".weight_scale_inv",
    ".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".output_zero_point", ".qweight", ".qzeros", ".scales", ".g_idx",
};
enum { N_SUFFIXES = sizeof SUFFIXES / sizeof *SUFFIXES };

/* Asked for all suffixes of all modules, of which there may be tens of thousands: names of a usual length are put together in place. */
static const oz_tensor *find(const oz_ckpt *c, const oz_module *m, const char *suffix) {
    char place[256];
    const size_t n = strlen(m->name), n_suffix = strlen(suffix) + 1;
    char *name = n + n_suffix <= sizeof place ? place : oz_alloc(n + n_suffix);
    memcpy(name, m->name, n);
    memcpy(name + n, suffix, n_suffix);
    const oz_tensor *t = oz_ckpt_find(c, name);
    if (name != place) oz_free(name);
    return t;
}

static oz_status wrong_shape(const oz_tensor *t, const oz_part *want, oz_err *err) {
    char expected[OZ_DIMS_TEXT], found[OZ_DIMS_TEXT];
    OZ_FAIL(err, OZ_E_FORMAT, "%s: expected %s, found %s (%s)", t->name, oz_dims_show(expected, want->n_dims, want->dims), oz_dims_show(found, t->n_dims, t->dims), t->file_name);
}

static bool same_shape(const oz_tensor *t, const oz_part *p) {
    if (t->n_dims != p->n_dims) return false;
    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i] != p->dims[i]) return false;
    return true;
}

/* [], [1], [1, 1] for one scale; [rows] beside [rows, 1]. */
static bool scale_shape_ok(const oz_tensor *t, const oz_part *p) {
    if (same_shape(t, p)) return true;
    for (int i = 1; i < t->n_dims; i++)
        if (t->dims[i] != 1) return false;
    if (p->n_dims == 1) return t->n_dims <= 2 && (t->n_dims == 0 || t->dims[0] == 1);
    return t->n_dims == 1 && p->dims[1] == 1 && t->dims[0] == p->dims[0];
}

/* Types that scales of a part may have; a U8 is an exponent, as F8_E8M0 is. */
static bool scale_dtype_ok(oz_dtype *as, const oz_tensor *t, const oz_part *p) {
    *as = t->dtype == OZ_DTYPE_U8 ? OZ_DTYPE_F8_E8M0 : t->dtype;
    if (p->dtype == OZ_DTYPE_U8) return *as == OZ_DTYPE_F8_E8M0;
    if (p->dtype == OZ_DTYPE_F8_E4M3) return t->dtype == OZ_DTYPE_F8_E4M3;
    return t->dtype == OZ_DTYPE_BF16 || t->dtype == OZ_DTYPE_F16 || t->dtype == OZ_DTYPE_F32;
}

static oz_status check_values(const oz_tensor *t, oz_dtype d, oz_err *err) {
    const int64_t size = oz_dtype_get(d)->block_bytes, n = t->data ? (int64_t)t->n_bytes / size : 0;
    for (int64_t i = 0; i < n; i++) {
        float s;
        oz_to_f32(&s, d, (const uint8_t *)t->data + i * size, 1);
        OZ_NEED(isfinite(s) && s > 0, err, OZ_E_FORMAT, "%s: scales must be positive and finite, found %g at %lld (%s)", t->name, (double)s, (long long)i, t->file_name);
    }
    return OZ_OK;
}

static oz_status check_scales(const oz_tensor *t, const oz_part *p, oz_dtype *as, oz_err *err) {
    const bool narrow = p->dtype == OZ_DTYPE_U8 || p->dtype == OZ_DTYPE_F8_E4M3;
    OZ_NEED(scale_dtype_ok(as, t, p), err, OZ_E_FORMAT, "%s: expected %s, found %s (%s)", t->name, narrow ? oz_dtype_get(p->dtype)->name : "BF16, F16 or F32", oz_dtype_get(t->dtype)->name,
            t->file_name);
    if (!scale_shape_ok(t, p)) return wrong_shape(t, p, err);
    return check_values(t, *as, err);
}

static oz_status check_shape_tensor(const oz_tensor *t, const oz_part *p, const oz_module *m, oz_err *err) {
    OZ_NEED(t->dtype == OZ_DTYPE_I64 || t->dtype == OZ_DTYPE_I32, err, OZ_E_FORMAT, "%s: expected I64, found %s (%s)", t->name, oz_dtype_get(t->dtype)->name,
            t->file_name);
    if (!same_shape(t, p)) return wrong_shape(t, p, err);
    if (!t->data) return OZ_OK;
    int64_t dims[2];
    int32_t narrow[2];
    if (t->dtype == OZ_DTYPE_I64) {
        memcpy(dims, t->data, sizeof dims);
    } else {
        memcpy(narrow, t->data, sizeof narrow);
        dims[0] = narrow[0], dims[1] = narrow[1];
    }
    OZ_NEED(dims[0] == m->rows && dims[1] == m->cols, err, OZ_E_FORMAT, "%s: expected [%lld, %lld] as its value, found [%lld, %lld] (%s)", t->name,
            (long long)m->rows, (long long)m->cols, (long long)dims[0], (long long)dims[1], t->file_name);
    return OZ_OK;
}

/* A zero point beside a symmetric scheme is tolerated if it says nothing: zeros, or as packed (fields of `bits` that run down
 * the rows) the code of zero. */
static oz_status check_idle_zeros(const oz_tensor *t, const oz_module *m, const oz_scheme *s, oz_err *err) {
    bool idle = true;
    if (!t->data) return OZ_OK;
    if (t->dtype == OZ_DTYPE_I32) {
        const oz_order order = s->old_layout ? OZ_ORDER_WORDS : OZ_ORDER_STREAM;
        const int64_t n_groups = t->n_dims == 2 ? t->dims[1] : 0;
        idle = n_groups > 0 && t->dims[0] == oz_field_words(s->bits, order, m->rows);
        for (int64_t i = 0; idle && i < m->rows * n_groups; i++)
            idle = oz_field_get((const uint8_t *)t->data + i % n_groups * 4, n_groups * 4, s->bits, order, i / n_groups) == 1u << (s->bits - 1);
    } else {
        for (size_t i = 0; idle && i < t->n_bytes; i++) idle = ((const uint8_t *)t->data)[i] == 0;
    }
    OZ_NEED(idle, err, OZ_E_FORMAT, "%s: expected none, since the scheme is symmetric; found values other than zero (%s)", t->name, t->file_name);
    return OZ_OK;
}

static oz_status surplus(const oz_tensor *t, const oz_module *m, const oz_scheme *s, const oz_part *codes, oz_err *err) {
    if (s->quantized && s->symmetric && strcmp(t->name + strlen(m->name), ".weight_zero_point") == 0) return check_idle_zeros(t, m, s, err);
    if (s->quantized) OZ_FAIL(err, OZ_E_FORMAT, "%s: expected none beside %s%s (scheme %s), found one (%s)", t->name, m->name, codes->suffix, s->name, t->file_name);
    OZ_FAIL(err, OZ_E_FORMAT, "%s: expected none, since no scheme of quantization_config applies to %s; found one (%s)", t->name, m->name, t->file_name);
}

static oz_status check_surplus(const oz_ckpt *c, const oz_module *m, const oz_scheme *s, const oz_part *parts, int n_parts, const oz_findings *f, oz_err *err) {
    for (size_t i = 0; i < N_SUFFIXES; i++) {
        bool wanted = false;
        for (int k = 0; k < n_parts; k++) wanted = wanted || strcmp(parts[k].suffix, SUFFIXES[i]) == 0;
        const bool of_cache = strcmp(SUFFIXES[i], ".output_scale") == 0; /* an old name, oz_scheme_is_kv */
        const oz_tensor *t = wanted || of_cache || (s->other_inputs && oz_scheme_is_of_inputs(SUFFIXES[i])) ? NULL : find(c, m, SUFFIXES[i]);
        if (t) OZ_TRY(oz_found(f, surplus(t, m, s, &parts[0], err), err));
    }
    return OZ_OK;
}

static oz_status bind_dense(oz_weight *out, const oz_tensor *t, const oz_part *p, oz_err *err) {
    OZ_NEED(oz_codec_plain(&out->codec, t->dtype), err, OZ_E_FORMAT, "%s: expected a dense weight (BF16, F16 or F32), found %s (%s)", t->name,
            oz_dtype_get(t->dtype)->name, t->file_name);
    if (!same_shape(t, p)) return wrong_shape(t, p, err);
    OZ_NEED(p->dims[1] % oz_dtype_get(t->dtype)->block_elems == 0, err, OZ_E_FORMAT, "%s: expected whole blocks of %s in a row, found %lld columns (%s)", t->name,
            oz_dtype_get(t->dtype)->name, (long long)p->dims[1], t->file_name);
    out->rope_heads = t->rope_heads;
    return OZ_OK;
}

static oz_status need_dtype(const oz_tensor *t, const oz_part *p, const oz_scheme *s, oz_err *err) {
    OZ_NEED(t->dtype == p->dtype, err, OZ_E_FORMAT, "%s: expected %s (scheme %s), found %s (%s)", t->name, oz_dtype_get(p->dtype)->name, s->name, oz_dtype_get(t->dtype)->name, t->file_name);
    return OZ_OK;
}

/* Whole fields a word, as pack-quantized of 3, 5, 6 and 7 bits was before 0.18: the width tells, unless the version denies it. */
static bool by_words(const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s) {
    if (s->store != OZ_STORE_PACKED || !s->old_layout || t->n_dims != 2 || t->dims[0] != p->dims[0] || 32 % s->bits == 0) return false;
    return t->dims[1] == oz_field_words(s->bits, OZ_ORDER_WORDS, m->cols);
}

/* Integers of less than 8 bits stored one a byte. */
static oz_status check_range(const oz_tensor *t, int bits, oz_err *err) {
    const int lo = -(1 << (bits - 1)), hi = -lo - 1;
    for (size_t i = 0; t->data && i < t->n_bytes; i++) {
        const int v = ((const int8_t *)t->data)[i];
        OZ_NEED(v >= lo && v <= hi, err, OZ_E_FORMAT, "%s: expected values of %d bits, %d..%d, found %d at %zu (%s)", t->name, bits, lo, hi, v, i, t->file_name);
    }
    return OZ_OK;
}

static oz_status bind_codes(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    static const oz_codec words[9] = {[3] = OZ_CODEC_I3W, [5] = OZ_CODEC_I5W, [6] = OZ_CODEC_I6W, [7] = OZ_CODEC_I7W};
    if (!s->quantized) OZ_TRY(bind_dense(w, t, p, err));
    else OZ_TRY(need_dtype(t, p, s, err));
    if (s->quantized && by_words(t, p, m, s)) w->codec = words[s->bits];
    else if (!same_shape(t, p)) return wrong_shape(t, p, err);
    w->codes = t->data;
    w->row_bytes = t->dims[1] * oz_dtype_get(t->dtype)->block_bytes;
    if (!s->quantized) w->row_bytes = oz_codec_row_bytes(w->codec, m->cols);
    return s->quantized && s->codec == OZ_CODEC_I8 && s->bits < 8 ? check_range(t, s->bits, err) : OZ_OK;
}

static oz_status bind_scale(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    (void)m;
    OZ_TRY(check_scales(t, p, &w->scale_dtype, err));
    w->scales = t->data;
    w->scale_rows = s->block_rows;
    w->scales_down = oz_codec_get(s->codec)->expand == NULL;
    return OZ_OK;
}

static oz_status bind_shape(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    (void)w, (void)s;
    return check_shape_tensor(t, p, m, err);
}

/* The zero points of a symmetric GPTQ are known: where all are those of the other format, its label is wrong. */
static void gptq_version(oz_weight *w, const oz_module *m, const oz_scheme *s, int64_t n_groups) {
    const uint32_t other = (1u << (s->bits - 1)) - !s->old_layout;
    w->zero_add = s->old_layout;
    if (!s->symmetric) return;
    for (int64_t i = 0; i < n_groups * m->rows; i++)
        if (oz_field_get((const uint8_t *)w->zero_words + i / m->rows * w->zero_group_step, w->zero_word_step, s->bits, w->zero_order, i % m->rows) != other) return;
    w->zero_add = !s->old_layout;
}

static oz_status bind_zero(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    oz_part want = *p;
    if (w->codec != s->codec) want.dims[0] = oz_field_words(s->bits, OZ_ORDER_WORDS, m->rows); /* both or neither are packed by words */
    OZ_TRY(need_dtype(t, p, s, err));
    if (p->dtype == OZ_DTYPE_I8) {
        if (!scale_shape_ok(t, p)) return wrong_shape(t, p, err);
        w->zeros = t->data;
        return check_range(t, s->bits, err);
    }
    if (!same_shape(t, &want)) return wrong_shape(t, &want, err);
    const bool transposed = oz_codec_get(s->codec)->expand == NULL;
    const int64_t n_groups = want.dims[!transposed];
    w->zero_words = t->data;
    w->zero_order = oz_codec_get(w->codec)->order;
    w->zero_word_step = transposed ? 4 : n_groups * 4, w->zero_group_step = transposed ? want.dims[1] * 4 : 4;
    if (s->store == OZ_STORE_GPTQ && t->data) gptq_version(w, m, s, n_groups);
    return OZ_OK;
}

/* The group of each column. One that says nothing (plain order, or nothing but -1: never made) is left out; where GPTQ says desc_act it must have been made. */
static oz_status bind_g_idx(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    OZ_TRY(need_dtype(t, p, s, err));
    if (!same_shape(t, p)) return wrong_shape(t, p, err);
    if (!t->data) return OZ_OK;
    const int64_t n = oz_weight_groups(w), size = w->group_size;
    const oz_weight by = {.g_idx = t->data};
    bool plain = true, made = false;
    for (int64_t c = 0; c < m->cols; c++) plain &= oz_weight_group(&by, c) == c / size, made |= oz_weight_group(&by, c) != -1;
    OZ_NEED(made || s->store != OZ_STORE_GPTQ || !s->column_order, err, OZ_E_FORMAT, "%s: expected the group of each column, since desc_act is true; found nothing but -1 (%s)", t->name, t->file_name);
    if (plain || !made) return OZ_OK;
    int64_t *count = oz_alloc_array((size_t)n, sizeof *count), bad = -1;
    for (int64_t c = 0; c < m->cols && bad < 0; c++) {
        const int64_t g = oz_weight_group(&by, c);
        if (g < 0 || g >= n) bad = c;
        else count[g]++;
    }
    oz_status st = OZ_OK;
    if (bad >= 0) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected groups 0..%lld, found %lld at column %lld (%s)", t->name, (long long)n - 1, (long long)oz_weight_group(&by, bad), (long long)bad, t->file_name);
    for (int64_t i = 0; i < n && st == OZ_OK; i++) {
        const int64_t want = i < n - 1 ? size : m->cols - (n - 1) * size;
        if (count[i] != want) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected %lld columns of group %lld, found %lld (%s)", t->name, (long long)want, (long long)i, (long long)count[i], t->file_name);
    }
    oz_free(count);
    if (st == OZ_OK) w->g_idx = t->data;
    return st;
}

static oz_status read_one(float *out, const oz_tensor *t, const oz_part *p, oz_err *err) {
    oz_dtype as;
    OZ_TRY(check_scales(t, p, &as, err));
    OZ_NEED(t->n_bytes == (size_t)oz_dtype_get(as)->block_bytes, err, OZ_E_FORMAT, "%s: expected one value (%s)", t->name, t->file_name);
    if (t->data) oz_to_f32(out, as, t->data, 1);
    return OZ_OK;
}

static oz_status bind_divisor(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    (void)m, (void)s;
    return read_one(&w->scale_divisor, t, p, err);
}

static oz_status bind_input_scale(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    float value;
    (void)w, (void)m, (void)s;
    return read_one(&value, t, p, err);
}

static oz_status bind_input_zero(oz_weight *w, const oz_tensor *t, const oz_part *p, const oz_module *m, const oz_scheme *s, oz_err *err) {
    (void)w, (void)m;
    OZ_TRY(need_dtype(t, p, s, err));
    if (!scale_shape_ok(t, p)) return wrong_shape(t, p, err);
    return check_range(t, s->input.bits, err);
}

static oz_status (*const BIND[])(oz_weight *, const oz_tensor *, const oz_part *, const oz_module *, const oz_scheme *, oz_err *) = {
    [OZ_PART_CODES] = bind_codes, [OZ_PART_SCALE] = bind_scale, [OZ_PART_SHAPE] = bind_shape, [OZ_PART_ZERO] = bind_zero, [OZ_PART_G_IDX] = bind_g_idx,
    [OZ_PART_DIVISOR] = bind_divisor, [OZ_PART_INPUT_SCALE] = bind_input_scale, [OZ_PART_INPUT_ZERO] = bind_input_zero};

static oz_status bind_part(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, const oz_part *p, oz_err *err) {
    const oz_tensor *t = find(c, m, p->suffix);
    OZ_NEED(t || p->optional, err, OZ_E_FORMAT, "%s%s: not in the checkpoint (%s, scheme %s)", m->name, p->suffix, oz_ckpt_path(c), s->name);
    return t ? BIND[p->kind](out, t, p, m, s, err) : OZ_OK;
}

oz_status oz_scheme_bind_all(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, const oz_findings *f, oz_err *err) {
    oz_part parts[OZ_MAX_PARTS];
    const int n_parts = oz_scheme_parts(parts, s, m->rows, m->cols, OZ_DTYPE_BF16);
    *out = (oz_weight){.codec = s->codec, .rows = m->rows, .cols = m->cols, .group_size = s->group_size > 0 ? s->group_size : m->cols, .one_scale = s->per_tensor};
    OZ_TRY(check_surplus(c, m, s, parts, n_parts, f, err));
    for (int i = 0; i < n_parts; i++) OZ_TRY(oz_found(f, bind_part(out, c, m, s, &parts[i], err), err));
    return OZ_OK;
}

oz_status oz_scheme_bind(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, oz_err *err) { return oz_scheme_bind_all(out, c, m, s, NULL, err); }

oz_status oz_scheme_bind_input(float *scale, float *zero, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, oz_err *err) {
    oz_part parts[OZ_MAX_PARTS];
    const int n = oz_scheme_parts(parts, s, m->rows, m->cols, OZ_DTYPE_BF16);
    *scale = 1, *zero = 0;
    for (int i = 0; i < n; i++) {
        const oz_tensor *t = find(c, m, parts[i].suffix);
        if (t && parts[i].kind == OZ_PART_INPUT_SCALE) OZ_TRY(read_one(scale, t, &parts[i], err));
        if (t && parts[i].kind == OZ_PART_INPUT_ZERO) *zero = *(const int8_t *)t->data;
    }
    return OZ_OK;
}

bool oz_scheme_is_of_inputs(const char *suffix) { return oz_str_starts(suffix, ".input_") || oz_str_starts(suffix, ".output_"); }

bool oz_scheme_is_suffix(const char *suffix) {
    size_t i = 0;
    while (i < N_SUFFIXES && strcmp(SUFFIXES[i], suffix) != 0) i++;
    return i < N_SUFFIXES;
}

bool oz_scheme_is_stored(const oz_ckpt *c, const oz_module *m) {
    for (size_t i = 0; i < N_SUFFIXES; i++) {
        if (strcmp(SUFFIXES[i], ".weight") == 0) continue;
        if (find(c, m, SUFFIXES[i])) return true;
    }
    return false;
}

void oz_scheme_drop(const oz_ckpt *c, const oz_module *m) {
    for (size_t i = 0; i < N_SUFFIXES; i++) {
        const oz_tensor *t = find(c, m, SUFFIXES[i]);
        if (t) oz_ckpt_drop(c, t);
    }
}
