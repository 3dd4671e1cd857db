/* How far to clip before rounding to nearest (AWQ's second step): of each group of a row both ends of its range are shrunk step by step, and the shrink whose error on the
 * calibration text is least is kept. The error is that of the group's part of the output, e G e^T with G the sum of x x^T over rows that the module reads; groups
 * wider than a piece are cut into pieces whose errors are added, as if these did not depend on each other. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { STEPS = OZ_CLIP_SHRINKS };
static float shrink(int step) { return 1 - 0.03f * (float)step; } /* of the range */

typedef struct clip {
    const oz_quantize_item *item;
    oz_rtn rtn;       /* of a group: one scale for all that it is given */
    int64_t cols, group;
    float *gram;      /* [cols, OZ_CLIP_PIECE]: a piece's rows */
    float *scales, *zeros; /* [rows, n_groups]: of all rows, where a device has chosen them; else NULL */
    double *sums;     /* [rows, 3]: squares of the outputs; errors of whole ranges, and of those that were chosen */
} clip;

static int64_t piece_len(const clip *c, int64_t c0) {
    const int64_t end = (c0 / c->group + 1) * c->group, n = (end < c->cols ? end : c->cols) - c0;
    return n < OZ_CLIP_PIECE ? n : OZ_CLIP_PIECE;
}

static void gram_pieces(const clip *c, const float *x, int64_t n_rows) {
    for (int64_t c0 = 0, n; c0 < c->cols; c0 += n) {
        n = piece_len(c, c0);
        oz_blas.sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)n, (int)n, (int)n_rows, 1.0f, x + c0, (int)c->cols, x + c0, (int)c->cols, 0.0f, c->gram + c0 * OZ_CLIP_PIECE, OZ_CLIP_PIECE);
    }
}

typedef struct shrinks { float scale[STEPS], zero[STEPS]; double loss[STEPS + 1]; /* the last: of all zeros */ int n; } shrinks;

/* Adds the errors of a piece, for every shrink in one product. */
static void piece_add(shrinks *s, const clip *c, const float *w, int64_t c0, int64_t n) {
    float e[(STEPS + 1) * OZ_CLIP_PIECE], g[(STEPS + 1) * OZ_CLIP_PIECE];
    for (int i = 0; i < s->n; i++) {
        float *row = e + i * n;
        oz_rtn_codes(row, &c->rtn, &s->scale[i], &s->zero[i], w, n);
        for (int64_t k = 0; k < n; k++) row[k] = w[k] - (row[k] - s->zero[i]) * s->scale[i];
    }
    memcpy(e + s->n * n, w, (size_t)n * sizeof *w);
    oz_blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, s->n + 1, (int)n, (int)n, 1.0f, e, (int)n, c->gram + c0 * OZ_CLIP_PIECE, OZ_CLIP_PIECE, 0.0f, g, (int)n);
    for (int i = 0; i <= s->n; i++)
        for (int64_t k = 0; k < n; k++) s->loss[i] += (double)e[i * n + k] * (double)g[i * n + k];
}

static oz_status group_clip(float *scale, float *zero, double sums[3], const clip *c, const float *w, int64_t c0, int64_t n, oz_err *err) {
    float min = 0, max = 0;
    shrinks s = {.n = 0};
    OZ_TRY(oz_rtn_observe(&min, &max, &c->rtn, w, n, err));
    for (; s.n < STEPS; s.n++) {
        const float by = shrink(s.n);
        OZ_TRY(oz_rtn_scale(&s.scale[s.n], &s.zero[s.n], &c->rtn, min * by, max * by, err));
    }
    for (int64_t at = c0, len; at < c0 + n; at += len) {
        len = piece_len(c, at);
        piece_add(&s, c, w + (at - c0), at, len);
    }
    int best = 0;
    for (int i = 1; i < STEPS; i++)
        if (s.loss[i] < s.loss[best]) best = i;
    *scale = s.scale[best], *zero = s.zero[best];
    sums[0] += s.loss[STEPS], sums[1] += s.loss[0], sums[2] += s.loss[best];
    return OZ_OK;
}

static oz_status clip_band(void *arg, const oz_band *b, oz_err *err) {
    const clip *c = arg;
    const int64_t n_groups = (c->cols + c->group - 1) / c->group;
    oz_item_fill((void *)c->item, b->codes, b->row0 * c->cols, c->cols);
    for (int64_t c0 = 0, g = 0; c0 < c->cols; c0 += c->group, g++) {
        const int64_t n = c->cols - c0 < c->group ? c->cols - c0 : c->group;
        if (c->scales) b->scales[g] = c->scales[b->row0 * n_groups + g], b->zeros[g] = c->zeros[b->row0 * n_groups + g];
        else if (group_clip(&b->scales[g], &b->zeros[g], c->sums + 3 * b->row0, c, b->codes + c0, c0, n, err) != OZ_OK) return oz_err_prefix(err, "row %lld", (long long)b->row0);
        oz_rtn_codes(b->codes + c0, &c->rtn, &b->scales[g], &b->zeros[g], b->codes + c0, n);
    }
    return OZ_OK;
}

bool oz_clip_fits(const oz_scheme *s) { return !s->per_tensor && s->block_rows == 0; }

/* All scales at once, and the errors as those of one row. */
static oz_status device_clip(clip *c, const oz_sample *x, oz_stream *s, oz_dev *dev, oz_dtype model_dtype, oz_err *err) {
    const oz_trial_ops *ops = oz_dev_ops(dev)->calib->trial;
    const char *what = c->item->arch->module;
    const int64_t n = c->item->arch->rows * ((c->cols + c->group - 1) / c->group);
    const oz_rtn rtn = oz_scheme_rtn(&c->item->scheme, model_dtype);
    oz_trial *t;
    OZ_TRY(oz_big_new((void **)&c->scales, (size_t)(2 * n) * sizeof(float), what, err));
    c->zeros = c->scales + n;
    oz_clip_args a = {.x = x->rows, .scales = c->scales, .zeros = c->zeros, .sums = c->sums};
    for (int i = 0; i < STEPS; i++) a.shrinks[i] = shrink(i);
    OZ_TRY(oz_trial_new(&t, dev, c->item, &rtn, x->n, s->pool, err));
    oz_status st = ops->clip(dev, t, &a, what, err);
    ops->close(dev, &t);
    const oz_status ended = oz_dev_ops(dev)->end(dev, st == OZ_OK ? err : NULL);
    return st == OZ_OK ? ended : st;
}

static oz_status host_clip(clip *c, const oz_sample *x, oz_err *err) {
    OZ_TRY(oz_big_new((void **)&c->gram, (size_t)(c->cols * OZ_CLIP_PIECE) * sizeof(float), c->item->arch->module, err));
    gram_pieces(c, x->rows, x->n);
    return OZ_OK;
}

oz_status oz_clip_write(oz_clip_result *out, oz_stream *s, const oz_reader *r, oz_dtype model_dtype, oz_dev *dev, oz_err *err) {
    const oz_quantize_item *it = r->item;
    const oz_module m = {it->arch->module, it->arch->class_name, it->arch->rows, it->arch->cols, false};
    clip c = {.item = it, .rtn = oz_scheme_rtn(&it->scheme, model_dtype), .cols = it->arch->cols, .group = it->scheme.group_size > 0 ? it->scheme.group_size : it->arch->cols};
    c.rtn.group_size = 0;
    c.sums = oz_alloc_array((size_t)(3 * m.rows), sizeof *c.sums);
    oz_status st = dev ? device_clip(&c, r->sample, s, dev, model_dtype, err) : host_clip(&c, r->sample, err);
    if (st == OZ_OK) {
        st = oz_stream_made(s, &m, &it->scheme, model_dtype, &(oz_made){.band = clip_band, .arg = &c, .input_scale = it->input_scale, .input_zero = it->input_zero}, err);
        if (st != OZ_OK && st != OZ_E_INTERRUPTED) oz_err_prefix(err, "%s", it->tensor->name);
    }
    double sums[3] = {0};
    for (int64_t i = 0; i < 3 * m.rows; i++) sums[i % 3] += c.sums[i];
    *out = (oz_clip_result){sums[0] > 0 ? sums[1] / sums[0] : 0, sums[0] > 0 ? sums[2] / sums[0] : 0};
    oz_free(c.sums);
    oz_big_free(c.gram);
    oz_big_free(c.scales);
    return st;
}
