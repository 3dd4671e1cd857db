/* GPTQ's steps on a tile (kernel/calib.h) with BLAS. A tile has ROWS rows, so that inner loops run along them. */
#include <math.h>
#include <string.h>
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { ROWS = OZ_GPTQ_ROWS, BLOCK = OZ_GPTQ_BLOCK, LANES = 8 };

static void begin(oz_dev *d, const oz_tile *t) {
    (void)d;
    memset(t->w, 0, (size_t)(t->n * ROWS) * sizeof(float));
    memset(t->e, 0, (size_t)(t->n * ROWS) * sizeof(float));
    memset(t->zero, 0, (size_t)(t->n_groups * ROWS) * sizeof(float));
    for (int64_t i = 0; i < t->n_groups * ROWS; i++) t->scale[i] = 1;
}

/* ---- scales ---- */

typedef oz_search values;

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

/* Zero points that fit a scale: from that which lets the largest value reach its code to that which lets the smallest; the two cross where the range is not clipped. */
static void zero_range(float *first, float *last, const values *v, float scale) {
    float min = 0, max = 0;
    const oz_codec_info *codec = oz_codec_get(v->q->codec);
    const float lo = v->q->bits ? (float)-(1 << (v->q->bits - 1)) : (float)codec->code_min, hi = v->q->bits ? (float)((1 << (v->q->bits - 1)) - 1) : (float)codec->code_max;
    for (int64_t i = 0; i < v->n; i++) min = fminf(min, v->x[i]), max = fmaxf(max, v->x[i]);
    const float a = nearbyintf(hi - max / scale), b = nearbyintf(lo - min / scale);
    *first = fmaxf(fminf(a, b), lo), *last = fminf(fmaxf(a, b), hi);
}

void oz_scale_search(float *scale, float *zero, const oz_search *v) {
    const float full = *scale;
    float least = loss_of(v, *scale, *zero);
    for (int i = 0; i < OZ_GPTQ_SCALES; i++) {
        const float s = oz_f32_rounded(full * v->steps[i], v->q->scale_dtype);
        if (!(s > 0 && isfinite(s))) break;
        float first = *zero, last = *zero;
        if (v->q->asymmetric) zero_range(&first, &last, v, s);
        for (float z = first; z <= last; z++) {
            const float loss = loss_of(v, s, z);
            if (loss < least) least = loss, *scale = s, *zero = z;
        }
    }
}

static void load(oz_dev *d, const oz_tile *t, int64_t r0, int64_t n, const float *rows, const float *scales, const float *zeros) {
    (void)d;
    float *codes = t->he; /* not in use yet */
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows + i * t->n, *row_scales = scales + i * t->n_groups, *row_zeros = zeros + i * t->n_groups;
        const int64_t r = r0 + i;
        oz_rtn_codes(codes, &t->rtn, row_scales, row_zeros, row, t->n);
        for (int64_t k = 0; k < t->n_groups; k++) {
            const int64_t c0 = k * t->group, c1 = t->n - c0 < t->group ? t->n : c0 + t->group;
            float s = row_scales[k], z = row_zeros[k];
            for (int64_t c = c0; c < c1; c++) t->w[c * ROWS + r] = row[c], t->e[c * ROWS + r] = (codes[c] - z) * s - row[c];
            if (t->importance) oz_scale_search(&s, &z, &(values){&t->rtn, row + c0, t->importance + c0, c1 - c0, codes + c0, t->steps});
            t->scale[k * ROWS + r] = s, t->zero[k * ROWS + r] = z;
        }
    }
}

static void unload(oz_dev *d, const oz_tile *t, int64_t r0, int64_t n, float *codes, float *scales, float *zeros) {
    (void)d;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < t->n; c++) codes[i * t->n + c] = t->codes[c * ROWS + r0 + i];
        for (int64_t k = 0; k < t->n_groups; k++) scales[i * t->n_groups + k] = t->scale[k * ROWS + r0 + i], zeros[i * t->n_groups + k] = t->zero[k * ROWS + r0 + i];
    }
}

static void product(oz_dev *d, const oz_tile *t, const oz_tile_product *p) {
    (void)d, (void)t;
    oz_blas.sgemm(CblasRowMajor, p->turned ? CblasTrans : CblasNoTrans, CblasNoTrans, (int)p->m, ROWS, (int)p->k, p->alpha, p->a, (int)p->lda, p->b, ROWS, p->adds ? 1.0f : 0.0f, p->out, ROWS);
}

static void add(oz_dev *d, const oz_tile *t, float *y, const float *x, float by) {
    (void)d;
    for (int64_t i = 0; i < t->n * ROWS; i++) y[i] += by * x[i];
}

static double dot(oz_dev *d, const oz_tile *t, const float *x, const float *y, float less) {
    (void)d;
    double sum = 0;
    for (int64_t i = 0; i < t->n * ROWS; i++) sum += (double)x[i] * ((double)y[i] - (double)less * (double)x[i]);
    return sum;
}

static bool failed(oz_dev *d, const oz_tile *t) {
    (void)d;
    return *t->failed != 0;
}

/* ---- the sweep ---- */

static void sort(oz_dev *d, const oz_tile *t) {
    (void)d;
    for (int64_t k = 0; k < t->n; k++) memcpy(t->t + k * ROWS, t->w + t->perm[k] * ROWS, ROWS * sizeof(float));
}

/* Rounds x, the values of column c, to codes and to what they stand for. */
static void column_round(float *value, const oz_tile *t, int64_t c, const float *x) {
    const float *scale = t->scale + c / t->group * ROWS, *zero = t->zero + c / t->group * ROWS;
    float *codes = t->codes + c * ROWS;
    oz_rtn_codes_each(codes, &t->rtn, scale, zero, x, ROWS);
    for (int64_t r = 0; r < ROWS; r++) value[r] = (codes[r] - zero[r]) * scale[r];
}

/* Column k of the order: rounds it, and takes its error off the rest of its block. false: a value has left the range of floats. */
static bool column(const oz_tile *t, int64_t k, int64_t k0, int64_t k1) {
    const int64_t n = t->n, c = t->perm[k];
    const float *u = t->u + k * n, *x = t->t + k * ROWS;
    float *err = t->err + (k - k0) * ROWS, *e = t->e + c * ROWS, value[ROWS];
    float nothing = 0; /* NaN as soon as a value is not finite */
    for (int64_t r = 0; r < ROWS; r++) nothing += x[r] * 0.0f;
    if (nothing != 0) return false;
    column_round(value, t, c, x);
    for (int64_t r = 0; r < ROWS; r++) e[r] = value[r] - t->w[c * ROWS + r], err[r] = (x[r] - value[r]) / u[k];
    if (k + 1 < k1) oz_blas.sger(CblasRowMajor, (int)(k1 - k - 1), ROWS, -1.0f, u + k + 1, 1, err, 1, t->t + (k + 1) * ROWS, ROWS);
    return true;
}

static void sweep(oz_dev *d, const oz_tile *t, int64_t k0, int64_t k1) {
    (void)d;
    for (int64_t k = k0; k < k1 && !*t->failed; k++) *t->failed = !column(t, k, k0, k1);
}

/* ---- once more ---- */

/* he of columns [c0, c1) after column c's values have moved. */
static void moved(const oz_tile *t, int64_t c, const float *by, int64_t c0, int64_t c1) {
    oz_blas.sger(CblasRowMajor, (int)(c1 - c0), ROWS, 1.0f, t->h + c * t->n + c0, 1, by, 1, t->he + c0 * ROWS, ROWS);
    float *y = t->he + c * ROWS, *e = t->e + c * ROWS;
    for (int64_t r = 0; r < ROWS; r++) y[r] += t->added * by[r], e[r] += by[r];
}

/* Rounds column c given all others. */
static void column_again(const oz_tile *t, int64_t c, int64_t c0, int64_t c1) {
    const float h = t->h[c * t->n + c] + t->added;
    float *e = t->e + c * ROWS, *he = t->he + c * ROWS, *weight = t->w + c * ROWS, x[ROWS], by[ROWS], most = 0;
    for (int64_t r = 0; r < ROWS; r++) x[r] = weight[r] + e[r] - he[r] / h;
    column_round(by, t, c, x);
    for (int64_t r = 0; r < ROWS; r++) by[r] -= weight[r] + e[r], most = fabsf(by[r]) > most ? fabsf(by[r]) : most;
    if (!(most > 0)) return;
    for (int64_t r = 0; r < ROWS; r++) t->err[(c - c0) * ROWS + r] += by[r];
    moved(t, c, by, c0, c1);
}

/* The scale of group k that fits its codes best: with p = code - zero, its error's derivative is p . he, and its second derivative p H p. */
static void scale_again(const oz_tile *t, int64_t k, int64_t c0) {
    const int64_t n = t->n, g0 = k * t->group, n_cols = n - g0 < t->group ? n - g0 : t->group;
    float *scale = t->scale + k * ROWS, *zero = t->zero + k * ROWS, slope[ROWS] = {0}, curve[ROWS] = {0}, *p = t->room, *hp = t->room + BLOCK * ROWS;
    for (int64_t i = 0; i < n_cols; i++)
        for (int64_t r = 0; r < ROWS; r++) p[i * ROWS + r] = t->codes[(g0 + i) * ROWS + r] - zero[r];
    oz_blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n_cols, ROWS, (int)n_cols, 1.0f, t->h + g0 * n + g0, (int)n, p, ROWS, 0.0f, hp, ROWS);
    for (int64_t i = 0; i < n_cols * ROWS; i++) {
        slope[i % ROWS] += p[i] * t->he[g0 * ROWS + i];
        curve[i % ROWS] += p[i] * (hp[i] + t->added * p[i]);
    }
    for (int64_t r = 0; r < ROWS; r++) {
        const float s = curve[r] > 0 ? oz_f32_rounded(scale[r] - slope[r] / curve[r], t->rtn.scale_dtype) : scale[r], d = s - scale[r];
        const bool better = s > 0 && d * (2 * slope[r] + d * curve[r]) < 0; /* rounding may have spoilt it */
        slope[r] = better ? d : 0; /* the change from here on */
        scale[r] += slope[r];
    }
    for (int64_t i = 0; i < n_cols * ROWS; i++) {
        const float by = slope[i % ROWS] * p[i];
        t->he[g0 * ROWS + i] += slope[i % ROWS] * hp[i] + t->added * by;
        t->e[g0 * ROWS + i] += by;
        t->err[(g0 - c0) * ROWS + i] += by;
    }
}

static void again(oz_dev *d, const oz_tile *t, int64_t c0, int64_t c1, bool fits) {
    (void)d;
    memset(t->err, 0, (size_t)(BLOCK * ROWS) * sizeof(float));
    for (int64_t c = c0; c < c1; c++) column_again(t, c, c0, c1);
    if (fits) scale_again(t, c0 / t->group, c0);
}

const oz_tile_ops oz_tile_host = {begin, load, unload, sort, sweep, again, product, add, dot, failed};
