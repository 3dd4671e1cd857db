/* How far to clip before rounding to nearest (AWQ's second step): of each group of a row both ends of its range are shrunk step by step, and the shrink whose error on the
 * calibration text is least is kept. The error is that of the group's part of the output, e G e^T with G the sum of x x^T over rows that the module reads; groups
 * wider than a piece are cut into pieces whose errors are added, as if these did not depend on each other. */
#include <cblas.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

enum { PIECE = 128, STEPS = 16 };
static const float SHRINK = 0.03f; /* of the range, a step */

typedef struct clip {
    const oz_quantize_item *item;
    oz_rtn rtn;       /* of a group: one scale for all that it is given */
    int64_t cols, group;
    float *gram;      /* [cols, PIECE]: a piece's rows */
    double *sums;     /* [rows, 3]: squares of the outputs; errors of whole ranges, and of those that were chosen */
} clip;

static int64_t piece_len(const clip *c, int64_t c0) {
    const int64_t end = (c0 / c->group + 1) * c->group, n = (end < c->cols ? end : c->cols) - c0;
    return n < PIECE ? n : PIECE;
}

static void gram_pieces(const clip *c, const float *x, int64_t n_rows) {
    for (int64_t c0 = 0, n; c0 < c->cols; c0 += n) {
        n = piece_len(c, c0);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)n, (int)n, (int)n_rows, 1.0f, x + c0, (int)c->cols, x + c0, (int)c->cols, 0.0f, c->gram + c0 * PIECE, PIECE);
    }
}

typedef struct shrinks { float scale[STEPS], zero[STEPS]; double loss[STEPS + 1]; /* the last: of all zeros */ int n; } shrinks;

/* Adds the errors of a piece, for every shrink in one product. */
static void piece_add(shrinks *s, const clip *c, const float *w, int64_t c0, int64_t n) {
    float e[(STEPS + 1) * PIECE], g[(STEPS + 1) * PIECE];
    for (int i = 0; i < s->n; i++) {
        float *row = e + i * n;
        oz_rtn_codes(row, &c->rtn, &s->scale[i], &s->zero[i], w, n);
        for (int64_t k = 0; k < n; k++) row[k] = w[k] - (row[k] - s->zero[i]) * s->scale[i];
    }
    memcpy(e + s->n * n, w, (size_t)n * sizeof *w);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, s->n + 1, (int)n, (int)n, 1.0f, e, (int)n, c->gram + c0 * PIECE, PIECE, 0.0f, g, (int)n);
    for (int i = 0; i <= s->n; i++)
        for (int64_t k = 0; k < n; k++) s->loss[i] += (double)e[i * n + k] * (double)g[i * n + k];
}

static oz_status group_clip(float *scale, float *zero, double sums[3], const clip *c, const float *w, int64_t c0, int64_t n, oz_err *err) {
    float min = 0, max = 0;
    shrinks s = {.n = 0};
    OZ_TRY(oz_rtn_observe(&min, &max, &c->rtn, w, n, err));
    for (; s.n < STEPS; s.n++) {
        const float by = 1 - SHRINK * (float)s.n;
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
    oz_item_fill((void *)c->item, b->codes, b->row0 * c->cols, c->cols);
    for (int64_t c0 = 0, g = 0; c0 < c->cols; c0 += c->group, g++) {
        const int64_t n = c->cols - c0 < c->group ? c->cols - c0 : c->group;
        if (group_clip(&b->scales[g], &b->zeros[g], c->sums + 3 * b->row0, c, b->codes + c0, c0, n, err) != OZ_OK) return oz_err_prefix(err, "row %lld", (long long)b->row0);
        oz_rtn_codes(b->codes + c0, &c->rtn, &b->scales[g], &b->zeros[g], b->codes + c0, n);
    }
    return OZ_OK;
}

bool oz_clip_fits(const oz_scheme *s) { return !s->per_tensor && s->block_rows == 0; }

oz_status oz_clip_write(oz_clip_result *out, oz_stream *s, const oz_reader *r, oz_dtype model_dtype, oz_err *err) {
    const oz_quantize_item *it = r->item;
    const oz_sample *x = r->sample;
    const oz_module m = {it->arch->module, it->arch->class_name, it->arch->rows, it->arch->cols, false};
    clip c = {.item = it, .rtn = oz_scheme_rtn(&it->scheme, model_dtype), .cols = it->arch->cols, .group = it->scheme.group_size > 0 ? it->scheme.group_size : it->arch->cols};
    c.rtn.group_size = 0;
    OZ_TRY(oz_big_new((void **)&c.gram, (size_t)(c.cols * PIECE) * sizeof(float), m.name, err));
    c.sums = oz_alloc_array((size_t)(3 * m.rows), sizeof *c.sums);
    gram_pieces(&c, x->rows, x->n);
    oz_status st = oz_stream_made(s, &m, &it->scheme, model_dtype, &(oz_made){.band = clip_band, .arg = &c, .input_scale = it->input_scale, .input_zero = it->input_zero}, err);
    if (st != OZ_OK && st != OZ_E_INTERRUPTED) oz_err_prefix(err, "%s", it->tensor->name);
    double sums[3] = {0};
    for (int64_t i = 0; i < 3 * m.rows; i++) sums[i % 3] += c.sums[i];
    *out = (oz_clip_result){sums[0] > 0 ? sums[1] / sums[0] : 0, sums[0] > 0 ? sums[2] / sums[0] : 0};
    oz_free(c.sums);
    oz_big_free(c.gram);
    return st;
}
