/* Hessians of linear modules' inputs, and their factors (GPTQ, Frantar et al. 2022).
 *
 * H = sum of x x^T / |x| over all rows x that a module reads, in f32; a constant factor does not matter. The paper has x x^T: there a token counts by the square of its size, here by its size.
 * Few tokens of a trained model have inputs a thousand times larger than all others, and what they lose is divided away by the next norm; the square lets them decide for all, and
 * counting each token alike (x x^T / |x|^2) is no better than the square (docs/quality.md).
 *
 * GPTQ needs U, upper triangular with
 * H^-1 = U^T U, in the order in which columns are quantized. Turned round (rows and columns reversed), H = L L^T gives U = L^-1 turned
 * round, so one Cholesky factorization and one triangular inverse do; inverting H and factoring the inverse, as is usual, takes
 * twice the work and loses digits twice. This part runs in f64: a Hessian of activations easily has a condition of 1e6.
 *
 * Determinism: every BLAS call works on a tile of fixed size and is single-threaded; threads take whole tiles, so neither their number nor
 * their timing shows in a bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { SUM_TILE = 640, SUM_ROWS = 512, FACTOR_TILE = 128 }; /* the first at most: BLAS is at its best where tiles are large */

static int64_t tiles_of(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }
static int64_t tile_len(int64_t i, int64_t n, int64_t tile) { return n - i * tile < tile ? n - i * tile : tile; }

/* The k-th pair (i, j), j <= i, of a triangle row by row. */
static void pair_at(int64_t *i, int64_t *j, int64_t k) {
    for (*i = 0; k > *i; k -= *i + 1, ++*i) {}
    *j = k;
}

/* ---- the sum ---- */

oz_status oz_hessian_init(oz_hessian *h, int64_t n, oz_dev *dev, const char *what, oz_err *err) {
    *h = (oz_hessian){.n = n, .dev = dev};
    if (dev) {
        h->diagonal = oz_alloc_array((size_t)n, sizeof *h->diagonal);
        return oz_dev_ops(dev)->calib->gram_new(&h->gram, dev, n, what, err);
    }
    OZ_TRY(oz_big_new((void **)&h->rows, (size_t)SUM_ROWS * (size_t)n * sizeof(float), what, err));
    return oz_big_new((void **)&h->sum, (size_t)n * (size_t)n * sizeof(float), what, err);
}

void oz_hessian_deinit(oz_hessian *h) {
    if (h->dev) oz_dev_ops(h->dev)->calib->gram_free(h->dev, &h->gram);
    else oz_big_free(h->sum);
    oz_big_free(h->rows);
    oz_free(h->diagonal);
    *h = (oz_hessian){0};
}

double oz_token_weight(const float *x, int64_t n) {
    enum { LANES = 16 }; /* sums side by side, as vectors have them */
    double sums[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) sums[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < LANES; k++) sum += sums[k];
    return sum > 0 ? sqrt((double)n / sum) : 0;
}

typedef struct addition { oz_hessian *h; const float *x; int64_t ld, n_rows; } addition;

static void weigh_rows(void *arg, int thread, int64_t begin, int64_t end) {
    (void)thread;
    const addition *a = arg;
    const int64_t n = a->h->n;
    for (int64_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ld, by = (float)sqrt(oz_token_weight(x, n));
        for (int64_t i = 0; i < n; i++) a->h->rows[r * n + i] = x[i] * by;
    }
}

static int64_t sum_tile(int64_t n) { return tiles_of(n, tiles_of(n, SUM_TILE)); }

static void add_tiles(void *arg, int thread, int64_t begin, int64_t end) {
    (void)thread;
    const addition *a = arg;
    const int64_t n = a->h->n, tile = sum_tile(n);
    for (int64_t k = begin; k < end; k++) {
        int64_t i, j;
        pair_at(&i, &j, k);
        const float *x = a->h->rows + i * tile, *y = a->h->rows + j * tile;
        float *sum = a->h->sum + i * tile * n + j * tile;
        if (i == j) oz_blas.ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int)tile_len(i, n, tile), (int)a->n_rows, 1.0f, x, (int)n, 1.0f, sum, (int)n);
        else oz_blas.sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)tile_len(i, n, tile), (int)tile_len(j, n, tile), (int)a->n_rows, 1.0f, x, (int)n, y, (int)n, 1.0f, sum, (int)n);
    }
}

void oz_hessian_add(oz_hessian *h, oz_pool *pool, const float *x, int64_t ld, int64_t n_rows) {
    const int64_t t = tiles_of(h->n, sum_tile(h->n));
    h->n_rows += n_rows;
    if (h->dev) {
        oz_dev_ops(h->dev)->calib->gram_add(h->dev, h->gram, x, ld, n_rows);
        return;
    }
    for (int64_t r = 0; r < n_rows; r += SUM_ROWS) {
        addition a = {h, x + r * ld, ld, n_rows - r < SUM_ROWS ? n_rows - r : SUM_ROWS};
        oz_pool_run(pool, a.n_rows, 32, weigh_rows, &a);
        oz_pool_run(pool, t * (t + 1) / 2, 1, add_tiles, &a);
    }
}

static float diagonal_at(const oz_hessian *h, int64_t i) { return h->dev ? h->diagonal[i] : h->sum[i * h->n + i]; }

oz_status oz_hessian_close(oz_hessian *h, const char *what, oz_err *err) {
    if (h->dev) h->sum = oz_dev_ops(h->dev)->calib->gram_close(h->dev, h->gram, h->diagonal);
    for (int64_t i = 0; i < h->n; i++) {
        OZ_NEED(isfinite(diagonal_at(h, i)), err, OZ_E_FORMAT, "%s: the calibration text gives activations that are not finite, the first in column %lld", what, (long long)i);
        for (int64_t j = 0; j < i && !h->dev; j++) h->sum[j * h->n + i] = h->sum[i * h->n + j];
    }
    return OZ_OK;
}

/* ---- the factor ---- */

typedef struct diagonal { float v; int32_t i; } diagonal;

static int by_size(const void *pa, const void *pb) {
    const diagonal *a = pa, *b = pb;
    return a->v != b->v ? (a->v > b->v ? -1 : 1) : (a->i > b->i) - (a->i < b->i);
}

/* Columns by descending diagonal; returns the mean of those that are not zero (1 if all are). */
static double order(int32_t *perm, const oz_hessian *h) {
    diagonal *d = oz_alloc_array((size_t)h->n, sizeof *d);
    double sum = 0;
    int64_t live = 0;
    for (int64_t i = 0; i < h->n; i++) {
        d[i] = (diagonal){diagonal_at(h, i), (int32_t)i};
        sum += (double)d[i].v;
        live += d[i].v > 0;
    }
    qsort(d, (size_t)h->n, sizeof *d, by_size);
    for (int64_t i = 0; i < h->n; i++) perm[i] = d[i].i;
    oz_free(d);
    return live ? sum / (double)live : 1.0;
}

typedef struct factoring { double *a; int64_t n, k; oz_factor *f; double *columns; } factoring; /* a: [n, n], the lower triangle */

/* H in order and turned round, with `damp` on the diagonal. A column that no calibration token ever moved is alone: it gets the mean. */
static void fill(factoring *w, const oz_hessian *h, double mean, double damp) {
    const int64_t n = w->n;
    for (int64_t i = 0; i < n; i++) {
        const float *row = h->sum + (int64_t)w->f->perm[n - 1 - i] * n;
        for (int64_t j = 0; j <= i; j++) w->a[i * n + j] = (double)row[w->f->perm[n - 1 - j]];
        if (w->a[i * n + i] == 0) w->a[i * n + i] = mean;
        w->a[i * n + i] += damp;
    }
}

static double *block_at(const factoring *w, int64_t i, int64_t j) { return w->a + i * FACTOR_TILE * w->n + j * FACTOR_TILE; }

/* Blocks (i, k), i > k: times the inverse transpose of block (k, k). */
static void panel_tiles(void *arg, int thread, int64_t begin, int64_t end) {
    (void)thread;
    const factoring *w = arg;
    for (int64_t i = w->k + 1 + begin; i < w->k + 1 + end; i++)
        oz_blas.dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, (int)tile_len(i, w->n, FACTOR_TILE), FACTOR_TILE, 1.0, block_at(w, w->k, w->k), (int)w->n,
                    block_at(w, i, w->k), (int)w->n);
}

/* Blocks (i, j), i >= j > k: minus (i, k) (j, k)^T. */
static void trailing_tiles(void *arg, int thread, int64_t begin, int64_t end) {
    (void)thread;
    const factoring *w = arg;
    for (int64_t t = begin; t < end; t++) {
        int64_t i, j;
        pair_at(&i, &j, t);
        i += w->k + 1, j += w->k + 1;
        oz_blas.dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tile_len(i, w->n, FACTOR_TILE), (int)tile_len(j, w->n, FACTOR_TILE), FACTOR_TILE, -1.0, block_at(w, i, w->k),
                    (int)w->n, block_at(w, j, w->k), (int)w->n, 1.0, block_at(w, i, j), (int)w->n);
    }
}

/* The Cholesky factor in place; false: not positive definite. LAPACK counts in columns: its upper triangle is our lower one. */
static bool cholesky(factoring *w, oz_pool *pool) {
    const int64_t t = tiles_of(w->n, FACTOR_TILE);
    for (w->k = 0; w->k < t; w->k++) {
        int info;
        oz_blas.dpotrf("U", &(int){(int)tile_len(w->k, w->n, FACTOR_TILE)}, block_at(w, w->k, w->k), &(int){(int)w->n}, &info, 1);
        if (info != 0) return false;
        const int64_t left = t - w->k - 1;
        if (!left) break;
        oz_pool_run(pool, left, 1, panel_tiles, w);
        oz_pool_run(pool, left * (left + 1) / 2, 1, trailing_tiles, w);
    }
    return true;
}

/* Columns of L^-1, a tile at a time, into U turned round. Long and short ones alternate, so that threads get equal shares. */
static void inverse_tiles(void *arg, int thread, int64_t begin, int64_t end) {
    const factoring *w = arg;
    const int64_t n = w->n, t = tiles_of(n, FACTOR_TILE);
    double *x = w->columns + (int64_t)thread * n * FACTOR_TILE;
    for (int64_t k = begin; k < end; k++) {
        const int64_t b = k % 2 ? t - 1 - k / 2 : k / 2, c0 = b * FACTOR_TILE, nc = tile_len(b, n, FACTOR_TILE), nr = n - c0;
        memset(x, 0, (size_t)(nr * nc) * sizeof *x);
        for (int64_t i = 0; i < nc; i++) x[i * nc + i] = 1.0;
        oz_blas.dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (int)nr, (int)nc, 1.0, block_at(w, b, b), (int)n, x, (int)nc);
        for (int64_t i = 0; i < nr; i++)
            for (int64_t j = 0; j < nc && j <= i; j++) w->f->u[(n - 1 - c0 - i) * n + (n - 1 - c0 - j)] = (float)x[i * nc + j];
    }
}

/* Memory for a factor where the Hessian is, and scratch. */
static oz_status room_new(factoring *w, const oz_hessian *h, oz_pool *pool, const char *what, oz_err *err) {
    const size_t n = (size_t)h->n;
    if (h->dev) {
        const oz_ops *ops = oz_dev_ops(h->dev);
        OZ_TRY(ops->mem_new((void **)&w->f->u, h->dev, n * n * sizeof(float), what, err));
        OZ_TRY(ops->mem_new((void **)&w->f->importance, h->dev, n * sizeof(float), what, err));
        return ops->mem_new((void **)&w->f->perm, h->dev, n * sizeof(int32_t), what, err);
    }
    OZ_TRY(oz_big_new((void **)&w->f->u, n * n * sizeof(float), what, err));
    OZ_TRY(oz_big_new((void **)&w->a, n * n * sizeof(double), what, err));
    OZ_TRY(oz_big_new((void **)&w->columns, (size_t)oz_pool_threads(pool) * n * FACTOR_TILE * sizeof(double), what, err));
    w->f->importance = oz_alloc_array(n, sizeof *w->f->importance);
    w->f->perm = oz_alloc_array(n, sizeof *w->f->perm);
    return OZ_OK;
}

static oz_status host_factor(bool *is_definite, factoring *w, const oz_hessian *h, double mean, oz_pool *pool) {
    const int64_t n = h->n;
    fill(w, h, mean, w->f->added);
    if (!(*is_definite = cholesky(w, pool))) return OZ_OK;
    oz_pool_run(pool, tiles_of(n, FACTOR_TILE), 1, inverse_tiles, w);
    for (int64_t k = 0; k < n; k++) {
        const double u = w->f->u[k * n + k];
        w->f->importance[w->f->perm[k]] = (float)(1.0 / (u * u));
    }
    return OZ_OK;
}

/* What Cholesky does not take at `dampening` it is offered at ten times that, up to 1. */
static oz_status factor(factoring *w, const oz_hessian *h, int32_t *perm, double dampening, oz_pool *pool, const char *what, oz_err *err) {
    const double mean = order(perm, h);
    bool is_definite = false;
    if (h->dev) oz_dev_ops(h->dev)->upload(h->dev, w->f->perm, perm, (size_t)h->n * sizeof *perm);
    else memcpy(w->f->perm, perm, (size_t)h->n * sizeof *perm);
    for (w->f->dampening = dampening; !is_definite; w->f->dampening *= is_definite ? 1 : 10) {
        OZ_NEED(w->f->dampening <= 1, err, OZ_E_FORMAT, "%s: its Hessian over the calibration text is not positive definite, even with its mean diagonal added", what);
        w->f->added = w->f->dampening * mean;
        const oz_factoring f = {h->sum, h->n, w->f->perm, mean, w->f->added, w->f->u, w->f->importance};
        OZ_TRY(h->dev ? oz_dev_ops(h->dev)->calib->factor(&is_definite, h->dev, &f, what, err) : host_factor(&is_definite, w, h, mean, pool));
    }
    return OZ_OK;
}

oz_status oz_factor_init(oz_factor *f, const oz_hessian *h, double dampening, oz_pool *pool, const char *what, oz_err *err) {
    *f = (oz_factor){.n = h->n, .dev = h->dev};
    factoring w = {.n = h->n, .f = f};
    int32_t *perm = oz_alloc_array((size_t)h->n, sizeof *perm);
    oz_status st = room_new(&w, h, pool, what, err);
    if (st == OZ_OK) st = factor(&w, h, perm, dampening, pool, what, err);
    oz_free(perm);
    oz_big_free(w.a);
    oz_big_free(w.columns);
    if (st != OZ_OK) oz_factor_deinit(f);
    return st;
}

void oz_factor_deinit(oz_factor *f) {
    if (f->dev) {
        void *const mine[] = {f->u, f->importance, f->perm};
        for (int i = 0; i < 3; i++) oz_dev_ops(f->dev)->mem_free(f->dev, mine[i]);
    } else {
        oz_big_free(f->u);
        oz_free(f->importance);
        oz_free(f->perm);
    }
    *f = (oz_factor){0};
}
