/* GPTQ of one matrix. Columns are quantized one after the other, those with the largest Hessian diagonal first; the error of each is made
 * up for by the columns that are still to come, as the factor of the inverse Hessian says. Groups stay those of the stored order
 * ("static" activation order), and their scales are fixed beforehand by a search of how far to clip: a scale is rounded as it will be
 * stored, then codes are chosen against it, and the codes themselves are what is kept.
 *
 * Rows do not touch each other. A tile of ROWS rows is the unit of work, held column by column, so that the inner loops run along it. */
#include <cblas.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

enum { ROWS = 32, BLOCK = OZ_GPTQ_BLOCK, SHRINK_STEPS = 20 };
static const char TOO_LARGE[] = "its errors on the calibration text are beyond 32-bit floats: expected smaller weights or inputs; --ignore leaves a module as it is";
static const float SHRINK = 0.02f; /* of round-to-nearest's scale, a step of the search */

typedef struct work {
    const oz_gptq *g;
    oz_gptq_result *out;
    float *importance; /* [n], of columns in stored order */
    double *sums;   /* [tiles, 3]: error before, after, and what they are relative to */
    float *scratch; /* of each thread */
    oz_err *errs;   /* of each thread */
} work;

/* A thread's scratch, in floats of n columns. */
typedef struct tile {
    int64_t n_rows;
    float *w;      /* [ROWS, n] the weights */
    float *t;      /* [n, ROWS] in order, updated */
    float *scale;  /* [ROWS, n]: of each column, in stored order */
    float *zero;   /* [ROWS, n]: zero points, likewise */
    float *e;      /* [ROWS, n] errors in stored order */
    float *he;     /* [ROWS, n] */
    float *codes;  /* [ROWS, n] */
    float *err;    /* [BLOCK, ROWS] */
} tile;
static size_t tile_floats(int64_t n) { return (size_t)(7 * ROWS * n + BLOCK * ROWS); }

static tile tile_view(float *p, int64_t n, int64_t n_rows) {
    const int64_t s = ROWS * n;
    return (tile){n_rows, p, p + s, p + 2 * s, p + 3 * s, p + 4 * s, p + 5 * s, p + 6 * s, p + 7 * s};
}

/* tr(E H E^T) over the tile's rows. */
static double weighted(const tile *t, const oz_hessian *h, const float *e) {
    const int64_t n = h->n;
    double sum = 0;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)t->n_rows, (int)n, (int)n, 1.0f, e, (int)n, h->sum, (int)n, 0.0f, t->he, (int)n);
    for (int64_t i = 0; i < t->n_rows * n; i++) sum += (double)e[i] * (double)t->he[i];
    return sum;
}

/* What x is rounded to, and its code. */
static float nearest(float *code, const oz_rtn *q, float x, float scale, float zero) {
    *code = oz_rtn_code(q, x, scale, zero);
    return (*code - zero) * scale;
}

/* Shrinks the scale of a group of n columns where clipping its extremes costs less than the finer steps gain, in squared error weighted by
 * importance; both ends shrink alike, so that the zero point stays. stored: round-to-nearest's scale in scale_dtype, replaced by the best; returns it. */
static float scale_search(void *stored, float zero, const oz_rtn *q, const float *x, const float *importance, int64_t n) {
    float full;
    oz_to_f32(&full, q->scale_dtype, stored, 1);
    float best = full; /* stays where no error is finite */
    double least = INFINITY;
    for (int i = 0; i < SHRINK_STEPS; i++) {
        uint8_t candidate[8];
        float s = full * (1.0f - SHRINK * (float)i);
        oz_from_f32(candidate, q->scale_dtype, &s, 1);
        oz_to_f32(&s, q->scale_dtype, candidate, 1);
        if (!(s > 0)) break;
        double loss = 0;
        for (int64_t c = 0; c < n; c++) {
            float code;
            const float e = x[c] - nearest(&code, q, x[c], s, zero);
            loss += (double)importance[c] * e * e;
        }
        if (loss >= least) continue;
        least = loss, best = s;
    }
    oz_from_f32(stored, q->scale_dtype, &best, 1); /* exact: best was rounded to it */
    return best;
}

/* The scales, and the error of rounding to nearest with those that it would choose. */
static oz_status tile_begin(const work *w, const tile *t, int64_t row0, double *sums, oz_err *err) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols, step = g->rtn.group_size > 0 ? g->rtn.group_size : n;
    const size_t size = (size_t)oz_dtype_get(g->rtn.scale_dtype)->block_bytes;
    for (int64_t r = 0; r < t->n_rows; r++) {
        float *row = t->w + r * n, *scale = t->scale + r * n;
        uint8_t *scales = (uint8_t *)w->out->scales + (row0 + r) * w->out->scale_row_bytes;
        oz_weight_row(row, g->weight, row0 + r, 0, n);
        int8_t *zeros = g->rtn.asymmetric ? w->out->zeros + (row0 + r) * ((n + step - 1) / step) : NULL;
        if (oz_rtn_row((uint8_t *)w->out->codes + (row0 + r) * w->out->code_row_bytes, scales, zeros, &g->rtn, row, n, err) != OZ_OK)
            return oz_err_prefix(err, "row %lld", (long long)(row0 + r));
        for (int64_t c0 = 0; c0 < n; c0 += step) {
            const int64_t c1 = n - c0 < step ? n : c0 + step;
            uint8_t *stored = scales + (size_t)(c0 / step) * size;
            float s, code, zero = zeros ? zeros[c0 / step] : 0;
            oz_to_f32(&s, g->rtn.scale_dtype, stored, 1);
            for (int64_t c = c0; c < c1; c++) t->e[r * n + c] = row[c] - nearest(&code, &g->rtn, row[c], s, zero);
            s = scale_search(stored, zero, &g->rtn, row + c0, w->importance + c0, c1 - c0);
            for (int64_t c = c0; c < c1; c++) scale[c] = s, t->zero[r * n + c] = zero;
        }
    }
    sums[0] = weighted(t, g->hessian, t->e);
    sums[2] = weighted(t, g->hessian, t->w);
    return OZ_OK;
}

/* Column k of the order: rounds it, and takes its error off the rest of its block. false: a value has left the range of floats. */
static bool column(const work *w, const tile *t, int64_t k, int64_t k0, int64_t k1) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols, c = g->factor->perm[k];
    const float *u = g->factor->u + k * n, *x = t->t + k * ROWS;
    float *err = t->err + (k - k0) * ROWS;
    float nothing = 0; /* NaN as soon as a value is not finite */
    for (int64_t r = 0; r < t->n_rows; r++) nothing += x[r] * 0.0f;
    if (nothing != 0) return false;
    for (int64_t r = 0; r < t->n_rows; r++) {
        const float value = nearest(&t->codes[r * n + c], &g->rtn, x[r], t->scale[r * n + c], t->zero[r * n + c]);
        t->e[r * n + c] = t->w[r * n + c] - value;
        err[r] = (x[r] - value) / u[k];
    }
    for (int64_t j = k + 1; j < k1; j++) {
        float *y = t->t + j * ROWS;
        for (int64_t r = 0; r < ROWS; r++) y[r] -= u[j] * err[r];
    }
    return true;
}

static oz_status tile_run(const work *w, int64_t row0, float *scratch, double *sums, oz_err *err) {
    const oz_gptq *g = w->g;
    const int64_t n = g->weight->cols;
    const tile t = tile_view(scratch, n, g->weight->rows - row0 < ROWS ? g->weight->rows - row0 : ROWS);
    OZ_TRY(tile_begin(w, &t, row0, sums, err));
    memset(t.t, 0, (size_t)(n * ROWS) * sizeof(float));
    memset(t.err, 0, (size_t)(BLOCK * ROWS) * sizeof(float));
    for (int64_t k = 0; k < n; k++)
        for (int64_t r = 0; r < t.n_rows; r++) t.t[k * ROWS + r] = t.w[r * n + g->factor->perm[k]];
    for (int64_t k0 = 0; k0 < n; k0 += BLOCK) {
        const int64_t k1 = n - k0 < BLOCK ? n : k0 + BLOCK;
        for (int64_t k = k0; k < k1; k++)
            OZ_NEED(column(w, &t, k, k0, k1), err, OZ_E_FORMAT, "rows %lld to %lld: %s", (long long)row0, (long long)(row0 + t.n_rows - 1), TOO_LARGE);
        if (k1 < n)
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)(n - k1), ROWS, (int)(k1 - k0), -1.0f, g->factor->u + k0 * n + k1, (int)n, t.err, ROWS, 1.0f,
                        t.t + k1 * ROWS, ROWS);
    }
    for (int64_t r = 0; r < t.n_rows; r++) oz_codes_store((uint8_t *)w->out->codes + (row0 + r) * w->out->code_row_bytes, g->rtn.codec, t.codes + r * n, n);
    sums[1] = weighted(&t, g->hessian, t.e);
    OZ_NEED(isfinite(sums[0] + sums[1] + sums[2]), err, OZ_E_FORMAT, "rows %lld to %lld: %s", (long long)row0, (long long)(row0 + t.n_rows - 1), TOO_LARGE);
    return OZ_OK;
}

static void tiles_run(void *arg, int thread, int64_t begin, int64_t end) {
    const work *w = arg;
    float *scratch = w->scratch + (size_t)thread * tile_floats(w->g->weight->cols);
    for (int64_t i = begin; i < end; i++)
        if (tile_run(w, i * ROWS, scratch, w->sums + 3 * i, &w->errs[thread]) != OZ_OK) return;
}

oz_status oz_gptq_run(oz_gptq_result *out, const oz_gptq *g, oz_pool *pool, const char *what, oz_err *err) {
    const int64_t n_tiles = (g->weight->rows + ROWS - 1) / ROWS;
    const int n_threads = oz_pool_threads(pool);
    work w = {.g = g, .out = out};
    OZ_TRY(oz_big_new((void **)&w.scratch, (size_t)n_threads * tile_floats(g->weight->cols) * sizeof(float), what, err));
    const int64_t n = g->weight->cols;
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
