/* Rounding to nearest by importance: the scale of each group, and its zero point, is the one with the least squared error, each column's weighted by the mean square of what it is multiplied
 * by on calibration text (the diagonal of GPTQ's Hessian, the importance matrix of llama.cpp): out of a search, then fitted to its codes. Codes are still the nearest ones, each by itself.
 * Some of the mean weight is added to each, so that a column that the text does not move is not given up. */
#include <math.h>
#include "base/mem.h"
#include "quantize/internal.h"

enum { FITS = 8 }; /* at most */

typedef struct imatrix {
    const oz_quantize_item *item;
    oz_rtn rtn; /* of a group: one scale for all that it is given */
    int64_t cols, group;
    float *importance; /* [cols] */
    float steps[OZ_GPTQ_SCALES];
    double *sums;      /* [rows, 3]: error of rounding to nearest, and reached, and what they are relative to */
} imatrix;

static oz_status importance_new(float **out, const oz_sample *s, const char *what, oz_err *err) {
    double mean = 0;
    OZ_TRY(oz_big_new((void **)out, (size_t)s->width * sizeof **out, what, err));
    for (int64_t c = 0; c < s->width; c++) mean += s->squares[c] / (double)s->width;
    OZ_NEED(isfinite(mean), err, OZ_E_FORMAT, "%s: its inputs on the calibration text are not finite", what);
    for (int64_t c = 0; c < s->width; c++) (*out)[c] = mean > 0 ? (float)(s->squares[c] / mean + OZ_IMATRIX_ADDED) : 1; /* of the mean, so that they are floats of any text */
    return OZ_OK;
}

static double error_of(const oz_search *v, float scale, float zero) {
    double sum = 0;
    for (int64_t i = 0; i < v->n; i++) {
        const double e = (double)((v->codes[i] - zero) * scale - v->x[i]);
        sum += (double)v->importance[i] * e * e;
    }
    return sum;
}

/* From codes under a scale on: the scale that fits them best, codes that are nearest under it, and so on while that helps. */
static void scale_fit(float *scale, float zero, const oz_search *v) {
    double least = error_of(v, *scale, zero);
    for (int i = 0; i < FITS; i++) {
        double up = 0, down = 0;
        for (int64_t k = 0; k < v->n; k++) {
            const double c = (double)(v->codes[k] - zero), by = (double)v->importance[k] * c;
            up += by * (double)v->x[k], down += by * c;
        }
        const float s = down > 0 ? oz_f32_rounded((float)(up / down), v->q->scale_dtype) : *scale;
        if (!(s > 0 && isfinite(s)) || s == *scale) break;
        oz_rtn_codes(v->codes, v->q, &s, &zero, v->x, v->n);
        const double e = error_of(v, s, zero);
        if (!(e < least)) break;
        least = e, *scale = s;
    }
}

static oz_status group_make(const imatrix *m, const oz_band *b, int64_t g, int64_t n, float *codes, oz_err *err) {
    float min = 0, max = 0, *x = b->codes + g * m->group, *scale = &b->scales[g], *zero = &b->zeros[g];
    const oz_search v = {&m->rtn, x, m->importance + g * m->group, n, codes, m->steps};
    double *sums = m->sums + 3 * b->row0;
    OZ_TRY(oz_rtn_observe(&min, &max, &m->rtn, x, n, err));
    OZ_TRY(oz_rtn_scale(scale, zero, &m->rtn, min, max, err));
    oz_rtn_codes(codes, &m->rtn, scale, zero, x, n);
    sums[0] += error_of(&v, *scale, *zero);
    oz_scale_search(scale, zero, &v);
    oz_rtn_codes(codes, &m->rtn, scale, zero, x, n);
    scale_fit(scale, *zero, &v);
    oz_rtn_codes(codes, &m->rtn, scale, zero, x, n);
    sums[1] += error_of(&v, *scale, *zero);
    for (int64_t i = 0; i < n; i++) sums[2] += (double)v.importance[i] * (double)x[i] * (double)x[i], x[i] = codes[i];
    return OZ_OK;
}

static oz_status row_make(void *arg, const oz_band *b, oz_err *err) {
    const imatrix *m = arg;
    float *codes;
    oz_item_fill((void *)m->item, b->codes, b->row0 * m->cols, m->cols);
    OZ_TRY(oz_big_new((void **)&codes, (size_t)m->group * sizeof *codes, "codes", err));
    oz_status st = OZ_OK;
    for (int64_t g = 0; st == OZ_OK && g * m->group < m->cols; g++)
        st = group_make(m, b, g, m->cols - g * m->group < m->group ? m->cols - g * m->group : m->group, codes, err);
    oz_big_free(codes);
    return st == OZ_OK ? st : oz_err_prefix(err, "row %lld", (long long)b->row0);
}

static oz_status make(oz_imatrix_error *out, oz_stream *s, imatrix *m, const oz_sample *seen, oz_dtype model_dtype, oz_err *err) {
    const oz_quantize_item *it = m->item;
    const oz_module of = {it->arch->module, it->arch->class_name, it->arch->rows, it->arch->cols, false};
    double sums[3] = {0};
    OZ_TRY(importance_new(&m->importance, seen, of.name, err));
    OZ_TRY(oz_big_new((void **)&m->sums, (size_t)of.rows * 3 * sizeof *m->sums, of.name, err));
    oz_status st = oz_stream_made(s, &of, &it->scheme, model_dtype, &(oz_made){.band = row_make, .arg = m, .input_scale = it->input_scale, .input_zero = it->input_zero}, err);
    if (st != OZ_OK) return st == OZ_E_INTERRUPTED ? st : oz_err_prefix(err, "%s", it->tensor->name);
    for (int64_t i = 0; i < of.rows * 3; i++) sums[i % 3] += m->sums[i];
    *out = (oz_imatrix_error){seen->seen && sums[2] > 0 ? sums[0] / sums[2] : NAN, seen->seen && sums[2] > 0 ? sums[1] / sums[2] : NAN};
    return OZ_OK;
}

oz_status oz_imatrix_write(oz_imatrix_error *out, oz_stream *s, const oz_reader *r, oz_dtype model_dtype, oz_err *err) {
    const oz_quantize_item *it = r->item;
    imatrix m = {.item = it, .rtn = oz_scheme_rtn(&it->scheme, model_dtype), .cols = it->arch->cols, .group = it->scheme.group_size > 0 ? it->scheme.group_size : it->arch->cols};
    m.rtn.group_size = 0;
    oz_scale_steps(m.steps, m.rtn.codec);
    oz_status st = make(out, s, &m, r->sample, model_dtype, err);
    oz_big_free(m.importance);
    oz_big_free(m.sums);
    return st;
}
