/* GPTQ of one matrix.
 *
 *   1. Scales, and zero points of asymmetric schemes, are searched: how far to clip.
 *   2. Columns are quantized one after the other, those with the largest Hessian diagonal first; the error of each is made up for by the columns that are still to come, as the factor of the
 *      inverse Hessian says. Groups stay those of the stored order ("static" activation order).
 *   3. Columns are gone over again, in stored order, each rounded anew given all others, and each group's scale is fitted to its codes: the sweep could make up for an error in later columns
 *      alone. Nothing here can make the output's error greater.
 * A scale is rounded as it will be stored, then codes are chosen against it, and the codes themselves are what is kept.
 *
 * Rows do not touch each other. A tile of ROWS rows is the unit of work, held column by column, so that the inner loops run along it. */
#include <cblas.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

enum { ROWS = 96, BLOCK = OZ_GPTQ_BLOCK, SHRINK_STEPS = 24, LANES = 8 };
static const char TOO_LARGE[] = "its errors on the calibration text are beyond 32-bit floats: expected smaller weights or inputs; --ignore leaves a module as it is";

typedef struct work {
    const oz_gptq *g;
    oz_gptq_result *out;
    int64_t group, n_groups;
    float *importance; /* [n], of columns in stored order */
    double *sums;   /* [tiles, 3]: error before, after, and what they are relative to */
    float *scratch; /* of each thread */
    oz_err *errs;   /* of each thread */
} work;

/* A thread's scratch. Errors are what was chosen less the weight. */
typedef struct tile {
    int64_t n_rows;
    float *w, *t;         /* [n, ROWS] the weights; the same in order, updated */
    float *e, *he;        /* [n, ROWS] errors; H times them */
    float *codes;         /* [n, ROWS] */
    float *scale, *zero;  /* [n_groups, ROWS] */
    float *err, *p;       /* [BLOCK, ROWS], [2 BLOCK, ROWS] */
    float *row, *row_codes, *row_scales, *row_zeros; /* [n], [n], [n_groups] of one row */
} tile;

static size_t tile_floats(int64_t n, int64_t n_groups) { return (size_t)(5 * ROWS * n + 2 * ROWS * n_groups + 3 * BLOCK * ROWS + 2 * n + 2 * n_groups); }

static tile tile_view(const work *w, float *p, int64_t n_rows) {
    const int64_t n = w->g->weight->cols, s = ROWS * n, sg = ROWS * w->n_groups;
    tile t = {.n_rows = n_rows, .w = p, .t = p + s, .e = p + 2 * s, .he = p + 3 * s, .codes = p + 4 * s, .scale = p + 5 * s};
    t.zero = t.scale + sg, t.err = t.zero + sg, t.p = t.err + BLOCK * ROWS, t.row = t.p + 2 * BLOCK * ROWS, t.row_codes = t.row + n, t.row_scales = t.row_codes + n, t.row_zeros = t.row_scales + w->n_groups;
    return t;
}

/* he = H e; tr(E H E^T) over the tile's rows. */
static double weighted(const tile *t, const oz_hessian *h, const float *e) {
    const int64_t n = h->n;
    double sum = 0;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, ROWS, (int)n, 1.0f, h->sum, (int)n, e, ROWS, 0.0f, t->he, ROWS);
    for (int64_t i = 0; i < n * ROWS; i++) sum += (double)e[i] * (double)t->he[i];
    return sum;
}

/* ---- scales ---- */

typedef struct values { const oz_rtn *q; const float *x, *importance; int64_t n; float *codes; } values; /* of a group of a row */

/* Squared error under a scale, each column weighted. */
static float loss_of(const values *v, float scale, float zero) {
    float sums[LANES] = {0}, sum = 0;
    int64_t i = 0;
    oz_rtn_codes(v->codes, v->q, &scale, &zero, v->x, v->n);
    for (; i + LANES <= v->n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const float e = (v->codes[i + k] - zero) * scale - v->x[i + k];
            sums[k] += v->importance[i + k] * e * e;
        }
    for (; i < v->n; i++) {
        const float e = (v->codes[i] - zero) * scale - v->x[i];
        sum += v->importance[i] * e * e;
    }
    for (int k = 0; k < LANES; k++) sum += sums[k];
    return sum;
}

static float as_stored(float x, oz_dtype dtype) {
    uint8_t stored[8];
    oz_from_f32(stored, dtype, &x, 1);
    oz_to_f32(&x, dtype, stored, 1);
    return x;
}

/* Zero points that fit a scale: from that which lets the largest value reach its code to that which lets the smallest; the two cross where the range is not clipped. */
static void zero_range(float *first, float *last, const values *v, float scale) {
    float min = 0, max = 0;
    const oz_codec_info *codec = oz_codec_get(v->q->codec);
    const float lo = v->q->bits ? (float)-(1 << (v->q->bits - 1)) : (float)codec->code_min, hi = v->q->bits ? (float)((1 << (v->q->bits - 1)) - 1) : (float)codec->code_max;
    for (int64_t i = 0; i < v->n; i++) min = fminf(min, v->x[i]), max = fmaxf(max, v->x[i]);
    const float a = nearbyintf(hi - max / scale), b = nearbyintf(lo - min / scale);
    *first = fmaxf(fminf(a, b), lo), *last = fminf(fmaxf(a, b), hi);
}

/* scale, zero: round-to-nearest's, replaced by those of least error. Integers clip where that costs less than the finer steps gain; a float's steps grow with its values, so that all
 * that a scale can do is to place them. A bit more than half the code range is the scale that clips neither end. */
static void scale_search(float *scale, float *zero, const values *v) {
    const bool is_float = oz_codec_get(v->q->codec)->is_float;
    const float full = *scale;
    float least = loss_of(v, *scale, *zero);
    for (int i = 0; i < SHRINK_STEPS; i++) {
        const float s = as_stored(is_float ? full * exp2f((float)i / SHRINK_STEPS) : full * (1.08f - 0.02f * (float)i), v->q->scale_dtype);
        if (!(s > 0 && isfinite(s))) break;
        float first = *zero, last = *zero;
        if (v->q->asymmetric) zero_range(&first, &last, v, s);
        for (float z = first; z <= last; z++) {
            const float loss = loss_of(v, s, z);
            if (loss < least) least = loss, *scale = s, *zero = z;
        }
    }
}

static oz_status row_begin(const work *w, const tile *t, int64_t row0, int64_t r, oz_err *err) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols;
    oz_weight_row(t->row, g->weight, row0 + r, 0, n);
    if (g->shared) {
        const float *shared = g->shared + (row0 + r) / g->shared_rows * 2 * w->n_groups;
        memcpy(t->row_scales, shared, (size_t)w->n_groups * sizeof(float));
        memcpy(t->row_zeros, shared + w->n_groups, (size_t)w->n_groups * sizeof(float));
        oz_rtn_codes(t->row_codes, &g->rtn, t->row_scales, t->row_zeros, t->row, n);
    } else if (oz_rtn_numbers(t->row_codes, t->row_scales, t->row_zeros, &g->rtn, t->row, n, err) != OZ_OK) return oz_err_prefix(err, "row %lld", (long long)(row0 + r));
    for (int64_t k = 0; k < w->n_groups; k++) {
        const int64_t c0 = k * w->group, c1 = n - c0 < w->group ? n : c0 + w->group;
        float *s = &t->row_scales[k], *z = &t->row_zeros[k];
        for (int64_t c = c0; c < c1; c++) t->w[c * ROWS + r] = t->row[c], t->e[c * ROWS + r] = (t->row_codes[c] - *z) * *s - t->row[c];
        if (!g->shared) scale_search(s, z, &(values){&g->rtn, t->row + c0, w->importance + c0, c1 - c0, t->row_codes + c0});
        t->scale[k * ROWS + r] = *s, t->zero[k * ROWS + r] = *z;
    }
    return OZ_OK;
}

/* The scales, and the error of rounding to nearest with those that it would choose. */
static oz_status tile_begin(const work *w, const tile *t, int64_t row0, double *sums, oz_err *err) {
    const int64_t n = w->g->weight->cols;
    memset(t->w, 0, (size_t)(n * ROWS) * sizeof(float));
    memset(t->e, 0, (size_t)(n * ROWS) * sizeof(float));
    memset(t->zero, 0, (size_t)(w->n_groups * ROWS) * sizeof(float));
    for (int64_t i = 0; i < w->n_groups * ROWS; i++) t->scale[i] = 1;
    for (int64_t r = 0; r < t->n_rows; r++) OZ_TRY(row_begin(w, t, row0, r, err));
    sums[0] = weighted(t, w->g->hessian, t->e);
    sums[2] = weighted(t, w->g->hessian, t->w);
    return OZ_OK;
}

/* ---- the sweep ---- */

/* Rounds x, the values of column c, to codes and to what they stand for. */
static void column_round(float *value, const work *w, const tile *t, int64_t c, const float *x) {
    const float *scale = t->scale + c / w->group * ROWS, *zero = t->zero + c / w->group * ROWS;
    float *codes = t->codes + c * ROWS;
    oz_rtn_codes_each(codes, &w->g->rtn, scale, zero, x, ROWS);
    for (int64_t r = 0; r < ROWS; r++) value[r] = (codes[r] - zero[r]) * scale[r];
}

/* Column k of the order: rounds it, and takes its error off the rest of its block. false: a value has left the range of floats. */
static bool column(const work *w, const tile *t, int64_t k, int64_t k0, int64_t k1) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols, c = g->factor->perm[k];
    const float *u = g->factor->u + k * n, *x = t->t + k * ROWS;
    float *err = t->err + (k - k0) * ROWS, *e = t->e + c * ROWS, value[ROWS];
    float nothing = 0; /* NaN as soon as a value is not finite */
    for (int64_t r = 0; r < ROWS; r++) nothing += x[r] * 0.0f;
    if (nothing != 0) return false;
    column_round(value, w, t, c, x);
    for (int64_t r = 0; r < ROWS; r++) e[r] = value[r] - t->w[c * ROWS + r], err[r] = (x[r] - value[r]) / u[k];
    if (k + 1 < k1) cblas_sger(CblasRowMajor, (int)(k1 - k - 1), ROWS, -1.0f, u + k + 1, 1, err, 1, t->t + (k + 1) * ROWS, ROWS);
    return true;
}

static bool sweep(const work *w, const tile *t) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols;
    for (int64_t k = 0; k < n; k++) memcpy(t->t + k * ROWS, t->w + g->factor->perm[k] * ROWS, ROWS * sizeof(float));
    for (int64_t k0 = 0; k0 < n; k0 += BLOCK) {
        const int64_t k1 = n - k0 < BLOCK ? n : k0 + BLOCK;
        for (int64_t k = k0; k < k1; k++)
            if (!column(w, t, k, k0, k1)) return false;
        if (k1 < n)
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)(n - k1), ROWS, (int)(k1 - k0), -1.0f, g->factor->u + k0 * n + k1, (int)n, t->err, ROWS, 1.0f, t->t + k1 * ROWS, ROWS);
    }
    return true;
}

/* ---- once more ---- */

/* he of columns [c0, c1) after column c's values have moved. */
static void moved(const tile *t, const oz_gptq *g, int64_t c, const float *by, int64_t c0, int64_t c1) {
    cblas_sger(CblasRowMajor, (int)(c1 - c0), ROWS, 1.0f, g->hessian->sum + c * g->weight->cols + c0, 1, by, 1, t->he + c0 * ROWS, ROWS);
    float *y = t->he + c * ROWS, *e = t->e + c * ROWS;
    for (int64_t r = 0; r < ROWS; r++) y[r] += (float)g->factor->added * by[r], e[r] += by[r];
}

/* Rounds column c given all others. */
static void column_again(const work *w, const tile *t, int64_t c, int64_t c0, int64_t c1) {
    const float h = w->g->hessian->sum[c * w->g->weight->cols + c] + (float)w->g->factor->added;
    float *e = t->e + c * ROWS, *he = t->he + c * ROWS, *weight = t->w + c * ROWS, x[ROWS], by[ROWS], most = 0;
    for (int64_t r = 0; r < ROWS; r++) x[r] = weight[r] + e[r] - he[r] / h;
    column_round(by, w, t, c, x);
    for (int64_t r = 0; r < ROWS; r++) by[r] -= weight[r] + e[r], most = fabsf(by[r]) > most ? fabsf(by[r]) : most;
    if (!(most > 0)) return;
    for (int64_t r = 0; r < ROWS; r++) t->err[(c - c0) * ROWS + r] += by[r];
    moved(t, w->g, c, by, c0, c1);
}

/* The scale of group k that fits its codes best: with p = code - zero, its error's derivative is p . he, and its second derivative p H p. */
static void scale_again(const work *w, const tile *t, int64_t k, int64_t c0) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols, g0 = k * w->group, n_cols = n - g0 < w->group ? n - g0 : w->group;
    float *scale = t->scale + k * ROWS, *zero = t->zero + k * ROWS, slope[ROWS] = {0}, curve[ROWS] = {0}, *p = t->p, *hp = t->p + BLOCK * ROWS;
    for (int64_t i = 0; i < n_cols; i++)
        for (int64_t r = 0; r < ROWS; r++) p[i * ROWS + r] = t->codes[(g0 + i) * ROWS + r] - zero[r];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n_cols, ROWS, (int)n_cols, 1.0f, g->hessian->sum + g0 * n + g0, (int)n, p, ROWS, 0.0f, hp, ROWS);
    for (int64_t i = 0; i < n_cols * ROWS; i++) {
        slope[i % ROWS] += p[i] * t->he[g0 * ROWS + i];
        curve[i % ROWS] += p[i] * (hp[i] + (float)g->factor->added * p[i]);
    }
    for (int64_t r = 0; r < ROWS; r++) {
        const float s = curve[r] > 0 ? as_stored(scale[r] - slope[r] / curve[r], g->rtn.scale_dtype) : scale[r], d = s - scale[r];
        const bool better = s > 0 && d * (2 * slope[r] + d * curve[r]) < 0; /* rounding may have spoilt it */
        slope[r] = better ? d : 0; /* the change from here on */
        scale[r] += slope[r];
    }
    for (int64_t i = 0; i < n_cols * ROWS; i++) {
        const float by = slope[i % ROWS] * p[i];
        t->he[g0 * ROWS + i] += slope[i % ROWS] * hp[i] + (float)g->factor->added * by;
        t->e[g0 * ROWS + i] += by;
        t->err[(g0 - c0) * ROWS + i] += by;
    }
}

/* One pass over all columns, in blocks: a group, or a part of a wider one, whose scale stays, as that which rows share does. */
static void pass(const work *w, const tile *t) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols, step = w->group <= BLOCK ? w->group : BLOCK;
    const bool fits = w->group <= BLOCK && !g->shared;
    for (int64_t c0 = 0; c0 < n; c0 += step) {
        const int64_t c1 = n - c0 < step ? n : c0 + step;
        const float *h = g->hessian->sum + c0;
        memset(t->err, 0, (size_t)(BLOCK * ROWS) * sizeof(float));
        for (int64_t c = c0; c < c1; c++) column_again(w, t, c, c0, c1);
        if (fits) scale_again(w, t, c0 / step, c0);
        if (c0 > 0) cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)c0, ROWS, (int)(c1 - c0), 1.0f, h, (int)n, t->err, ROWS, 1.0f, t->he, ROWS);
        if (c1 < n) cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)(n - c1), ROWS, (int)(c1 - c0), 1.0f, h + c1 * n, (int)n, t->err, ROWS, 1.0f, t->he + c1 * ROWS, ROWS);
    }
}

/* Returns tr(E H E^T). */
static double again(const work *w, const tile *t) {
    const int64_t n = w->g->weight->cols;
    const float added = (float)w->g->factor->added;
    double sum = 0;
    weighted(t, w->g->hessian, t->e);
    for (int64_t i = 0; i < n * ROWS; i++) t->he[i] += added * t->e[i];
    for (int i = 0; i < w->g->passes; i++) pass(w, t);
    for (int64_t i = 0; i < n * ROWS; i++) sum += (double)t->e[i] * ((double)t->he[i] - (double)added * (double)t->e[i]);
    return sum;
}

/* ---- tiles ---- */

static void tile_store(const work *w, const tile *t, int64_t row0) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols;
    for (int64_t r = 0; r < t->n_rows; r++) {
        for (int64_t c = 0; c < n; c++) t->row_codes[c] = t->codes[c * ROWS + r];
        for (int64_t k = 0; k < w->n_groups; k++) t->row_scales[k] = t->scale[k * ROWS + r];
        for (int64_t k = 0; k < w->n_groups && w->out->zeros; k++) w->out->zeros[(row0 + r) * w->n_groups + k] = (int8_t)t->zero[k * ROWS + r];
        oz_codes_store((uint8_t *)w->out->codes + (row0 + r) * w->out->code_row_bytes, g->rtn.codec, t->row_codes, n);
        oz_from_f32((uint8_t *)w->out->scales + (row0 + r) * w->out->scale_row_bytes, g->rtn.scale_dtype, t->row_scales, w->n_groups); /* exact: they were rounded to it */
    }
}

static oz_status tile_run(const work *w, int64_t row0, float *scratch, double *sums, oz_err *err) {
    const oz_gptq *g = w->g;
    const tile t = tile_view(w, scratch, g->weight->rows - row0 < ROWS ? g->weight->rows - row0 : ROWS);
    OZ_TRY(tile_begin(w, &t, row0, sums, err));
    const bool swept = sweep(w, &t);
    if (swept) sums[1] = again(w, &t);
    OZ_NEED(swept && isfinite(sums[0] + sums[1] + sums[2]), err, OZ_E_FORMAT, "rows %lld to %lld: %s", (long long)row0, (long long)(row0 + t.n_rows - 1), TOO_LARGE);
    tile_store(w, &t, row0);
    return OZ_OK;
}

static void tiles_run(void *arg, int thread, int64_t begin, int64_t end) {
    const work *w = arg;
    float *scratch = w->scratch + (size_t)thread * tile_floats(w->g->weight->cols, w->n_groups);
    for (int64_t i = begin; i < end; i++)
        if (tile_run(w, i * ROWS, scratch, w->sums + 3 * i, &w->errs[thread]) != OZ_OK) return;
}

oz_status oz_gptq_run(oz_gptq_result *out, const oz_gptq *g, oz_pool *pool, const char *what, oz_err *err) {
    const int64_t n = g->weight->cols, n_tiles = (g->weight->rows + ROWS - 1) / ROWS;
    const int n_threads = oz_pool_threads(pool);
    work w = {.g = g, .out = out, .group = g->rtn.group_size > 0 ? g->rtn.group_size : n};
    w.n_groups = (n + w.group - 1) / w.group;
    OZ_TRY(oz_big_new((void **)&w.scratch, (size_t)n_threads * tile_floats(n, w.n_groups) * sizeof(float), what, err));
    w.importance = oz_alloc_array((size_t)n, sizeof *w.importance);
    for (int64_t k = 0; k < n; k++) { /* what an error in this column costs once those after it have made up for it */
        const double u = g->factor->u[k * n + k];
        w.importance[g->factor->perm[k]] = (float)(1.0 / (u * u));
    }
    w.errs = oz_alloc_array((size_t)n_threads, sizeof *w.errs);
    w.sums = oz_alloc_array((size_t)n_tiles * 3, sizeof *w.sums);
    oz_pool_run(pool, n_tiles, 1, tiles_run, &w);
    oz_status st = OZ_OK;
    for (int t = 0; t < n_threads && st == OZ_OK; t++)
        if (w.errs[t].code != OZ_OK) st = oz_err_set(err, w.errs[t].code, __FILE__, __LINE__, "%s: %s", what, w.errs[t].msg);
    double sums[3] = {0};
    for (int64_t i = 0; i < n_tiles * 3; i++) sums[i % 3] += w.sums[i];
    out->before = sums[2] > 0 ? sums[0] / sums[2] : NAN;
    out->after = sums[2] > 0 ? sums[1] / sums[2] : NAN;
    oz_free(w.sums);
    oz_free(w.errs);
    oz_free(w.importance);
    oz_big_free(w.scratch);
    return st;
}
