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

static const oz_tensor *find(const oz_ckpt *c, const oz_module *m, const char *suffix) {
    char *name = oz_asprintf("%s%s", m->name, suffix);
    const oz_tensor *t = oz_ckpt_find(c, name);
    oz_free(name);
    return t;
}

static void show_dims(char out[96], int n_dims, const int64_t *dims) {
    size_t n = (size_t)snprintf(out, 96, "[");
    for (int i = 0; i < n_dims && n < 80; i++) n += (size_t)snprintf(out + n, 96 - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    snprintf(out + n, 96 - n, "]");
}

static oz_status wrong_shape(const oz_tensor *t, const oz_part *want, oz_err *err) {
    char expected[96], found[96];
    show_dims(expected, want->n_dims, want->dims);
    show_dims(found, t->n_dims, t->dims);
    OZ_FAIL(err, OZ_E_FORMAT, "%s: expected %s, found %s (%s)", t->name, expected, found, t->file_name);
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

static oz_status check_scales(const oz_tensor *t, const oz_part *p, oz_err *err) {
    OZ_NEED(t->dtype == OZ_DTYPE_BF16 || t->dtype == OZ_DTYPE_F16 || t->dtype == OZ_DTYPE_F32, err, OZ_E_FORMAT, "%s: expected BF16, F16 or F32, found %s (%s)",
            t->name, oz_dtype_get(t->dtype)->name, t->file_name);
    if (!scale_shape_ok(t, p)) return wrong_shape(t, p, err);
    const int64_t n = (int64_t)(t->n_bytes / (size_t)oz_dtype_get(t->dtype)->block_bytes);
    for (int64_t i = 0; i < n; i++) {
        float s;
        oz_to_f32(&s, t->dtype, (const uint8_t *)t->data + (size_t)i * (size_t)oz_dtype_get(t->dtype)->block_bytes, 1);
        OZ_NEED(isfinite(s) && s > 0, err, OZ_E_FORMAT, "%s: scales must be positive and finite, found %g at %lld (%s)", t->name, (double)s, (long long)i,
                t->file_name);
    }
    return OZ_OK;
}

static oz_status check_shape_tensor(const oz_tensor *t, const oz_part *p, const oz_module *m, oz_err *err) {
    OZ_NEED(t->dtype == OZ_DTYPE_I64 || t->dtype == OZ_DTYPE_I32, err, OZ_E_FORMAT, "%s: expected I64, found %s (%s)", t->name, oz_dtype_get(t->dtype)->name,
            t->file_name);
    if (!same_shape(t, p)) return wrong_shape(t, p, err);
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
    if (t->dtype == OZ_DTYPE_I32) {
        const int64_t fields = 32 / s->bits, n_groups = t->n_dims == 2 ? t->dims[1] : 0;
        idle = n_groups > 0 && t->dims[0] == (m->rows + fields - 1) / fields;
        for (int64_t i = 0; idle && i < m->rows * n_groups; i++) {
            const int64_t r = i / n_groups, g = i % n_groups;
            uint32_t word;
            memcpy(&word, (const uint8_t *)t->data + (size_t)(r / fields * n_groups + g) * 4, 4);
            idle = (word >> (r % fields * s->bits) & ((1u << s->bits) - 1)) == 1u << (s->bits - 1);
        }
    } else {
        for (size_t i = 0; idle && i < t->n_bytes; i++) idle = ((const uint8_t *)t->data)[i] == 0;
    }
    OZ_NEED(idle, err, OZ_E_FORMAT, "%s: expected none, since the scheme is symmetric; found values other than zero (%s)", t->name, t->file_name);
    return OZ_OK;
}

static oz_status check_surplus(const oz_ckpt *c, const oz_module *m, const oz_scheme *s, const oz_part *parts, int n_parts, oz_err *err) {
    for (size_t i = 0; i < N_SUFFIXES; i++) {
        bool wanted = false;
        for (int k = 0; k < n_parts; k++) wanted = wanted || strcmp(parts[k].suffix, SUFFIXES[i]) == 0;
        const oz_tensor *t = wanted ? NULL : find(c, m, SUFFIXES[i]);
        if (!t) continue;
        if (s->quantized && s->symmetric && strcmp(SUFFIXES[i], ".weight_zero_point") == 0) {
            OZ_TRY(check_idle_zeros(t, m, s, err));
            continue;
        }
        if (s->quantized) OZ_FAIL(err, OZ_E_FORMAT, "%s: expected none beside %s%s (scheme %s), found one (%s)", t->name, m->name, parts[0].suffix, s->name, t->file_name);
        OZ_FAIL(err, OZ_E_FORMAT, "%s: expected none, since no scheme of quantization_config applies to %s; found one (%s)", t->name, m->name, t->file_name);
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

oz_status oz_scheme_bind(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, oz_err *err) {
    oz_part parts[OZ_MAX_PARTS];
    const int n_parts = oz_scheme_parts(parts, s, m->rows, m->cols, OZ_DTYPE_BF16);
    *out = (oz_weight){.codec = s->codec, .rows = m->rows, .cols = m->cols, .group_size = s->group_size > 0 ? s->group_size : m->cols, .one_scale = s->per_tensor};
    OZ_TRY(check_surplus(c, m, s, parts, n_parts, err));
    for (int i = 0; i < n_parts; i++) {
        const oz_tensor *t = find(c, m, parts[i].suffix);
        OZ_NEED(t, err, OZ_E_FORMAT, "%s%s: not in the checkpoint (%s, scheme %s)", m->name, parts[i].suffix, oz_ckpt_path(c), s->name);
        if (strcmp(parts[i].suffix, ".weight_scale") == 0) {
            OZ_TRY(check_scales(t, &parts[i], err));
            out->scales = t->data;
            out->scale_dtype = t->dtype;
        } else if (strcmp(parts[i].suffix, ".weight_shape") == 0) {
            OZ_TRY(check_shape_tensor(t, &parts[i], m, err));
        } else {
            if (!s->quantized) OZ_TRY(bind_dense(out, t, &parts[i], err));
            OZ_NEED(!s->quantized || t->dtype == parts[i].dtype, err, OZ_E_FORMAT, "%s: expected %s (scheme %s), found %s (%s)", t->name,
                    oz_dtype_get(parts[i].dtype)->name, s->name, oz_dtype_get(t->dtype)->name, t->file_name);
            if (!same_shape(t, &parts[i])) return wrong_shape(t, &parts[i], err);
            out->codes = t->data;
        }
    }
    out->row_bytes = oz_codec_row_bytes(out->codec, m->cols);
    return OZ_OK;
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
