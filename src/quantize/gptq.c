/* GPTQ of one matrix.
 *
 *   1. Scales, and zero points of asymmetric schemes, are searched: how far to clip.
 *   2. Columns are quantized one after the other, those with the largest Hessian diagonal first; the error of each is made up for by the columns that are still to come, as the factor of the
 *      inverse Hessian says. Groups stay those of the stored order ("static" activation order).
 *   3. Columns are gone over again, in stored order, each rounded anew given all others, and each group's scale is fitted to its codes: the sweep could make up for an error in later columns
 *      alone. Nothing here can make the output's error greater.
 * A scale is rounded as it will be stored, then codes are chosen against it, and the codes themselves are what is kept.
 *
 * Rows do not touch each other. On the host a tile of some rows is the unit of work, a thread's; a device takes all rows at once. What is done to a tile is in gptq_host.c and
 * kernel/cuda/gptq.cu; the order of it is here. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

enum { BLOCK = OZ_GPTQ_BLOCK, ROWS_AT_ONCE = 256 };
static const char TOO_LARGE[] = "its errors on the calibration text are beyond 32-bit floats: its weights or inputs are too large for them, or too small; --ignore leaves a module as it is";

typedef struct work {
    const oz_gptq *g;
    const oz_tile_ops *ops; oz_dev *dev; /* NULL: the host */
    oz_gptq_result *out;
    oz_pool *pool;
    oz_tile like;    /* what all tiles have in common */
    double *sums;    /* [tiles, 3]: error before, after, and what they are relative to */
    float *scratch;  /* a tile's, of each thread */
    float *rows;     /* [n + 2 n_groups], as often as rows are under way at once */
    int32_t *failed; /* of each thread */
    oz_err *errs;    /* of each thread */
} work;

/* ---- memory of a tile ---- */

static size_t tile_floats(int64_t n, int64_t n_groups, int64_t ld) { return (size_t)(5 * ld * n + 2 * ld * n_groups + 3 * BLOCK * ld); }

static oz_tile tile_view(const work *w, float *p, int32_t *failed, int64_t ld, int64_t n_rows) {
    oz_tile t = w->like;
    const int64_t s = ld * t.n, sg = ld * t.n_groups;
    t.ld = ld, t.n_rows = n_rows, t.w = p, t.t = p + s, t.e = p + 2 * s, t.he = p + 3 * s, t.codes = p + 4 * s, t.scale = p + 5 * s;
    t.zero = t.scale + sg, t.err = t.zero + sg, t.room = t.err + BLOCK * ld, t.failed = failed;
    return t;
}

/* ---- rows of the weight ---- */

typedef struct row { float *values, *scales, *zeros; } row;

static row row_at(const work *w, float *rows, int64_t n_rows, int64_t i) {
    const oz_tile *t = &w->like;
    return (row){rows + i * t->n, rows + n_rows * t->n + i * t->n_groups, rows + n_rows * (t->n + t->n_groups) + i * t->n_groups};
}

/* Row r, and the scales that rounding to nearest gives it, or those that it shares. */
static oz_status row_read(const row *to, const work *w, int64_t r, oz_err *err) {
    const oz_gptq *g = w->g;
    const int64_t n_groups = w->like.n_groups;
    oz_weight_row(to->values, g->weight, r, 0, w->like.n);
    if (g->shared) {
        const float *shared = g->shared + r / g->shared_rows * 2 * n_groups;
        memcpy(to->scales, shared, (size_t)n_groups * sizeof(float));
        memcpy(to->zeros, shared + n_groups, (size_t)n_groups * sizeof(float));
        return OZ_OK;
    }
    float *min = to->zeros, *max = to->scales; /* where zero points and scales will lie */
    memset(min, 0, (size_t)n_groups * sizeof(float));
    memset(max, 0, (size_t)n_groups * sizeof(float));
    oz_status st = oz_rtn_observe(min, max, &g->rtn, to->values, w->like.n, err);
    for (int64_t k = 0; st == OZ_OK && k < n_groups; k++) st = oz_rtn_scale(&max[k], &min[k], &g->rtn, min[k], max[k], err);
    return st == OZ_OK ? OZ_OK : oz_err_prefix(err, "row %lld", (long long)r);
}

static void row_write(const work *w, const row *from, int64_t r) {
    const oz_gptq *g = w->g;
    const oz_tile *t = &w->like;
    for (int64_t k = 0; k < t->n_groups && w->out->zeros; k++) w->out->zeros[r * t->n_groups + k] = (int8_t)from->zeros[k];
    oz_codes_store((uint8_t *)w->out->codes + r * w->out->code_row_bytes, g->rtn.codec, from->values, t->n);
    oz_from_f32((uint8_t *)w->out->scales + r * w->out->scale_row_bytes, g->rtn.scale_dtype, from->scales, t->n_groups); /* exact: they were rounded to it */
}

/* ---- the order of steps ---- */

/* he = H e; tr(E H E^T) over the tile's rows. */
static double weighted(const work *w, const oz_tile *t, const float *e) {
    w->ops->product(w->dev, t, &(oz_tile_product){.out = t->he, .a = t->h, .lda = t->n, .m = t->n, .k = t->n, .b = e, .alpha = 1});
    return w->ops->dot(w->dev, t, e, t->he, 0);
}

static void sweep(const work *w, const oz_tile *t) {
    const int64_t n = t->n;
    w->ops->sort(w->dev, t);
    for (int64_t k0 = 0; k0 < n; k0 += BLOCK) {
        const int64_t k1 = n - k0 < BLOCK ? n : k0 + BLOCK;
        w->ops->sweep(w->dev, t, k0, k1);
        if (k1 < n)
            w->ops->product(w->dev, t, &(oz_tile_product){.out = t->t + k1 * t->ld, .a = t->u + k0 * n + k1, .lda = n, .turned = true, .m = n - k1, .k = k1 - k0, .b = t->err, .alpha = -1, .adds = true});
    }
}

/* One pass over all columns, in blocks: a group, or a part of a wider one, whose scale stays, as that which rows share does. */
static void pass(const work *w, const oz_tile *t) {
    const int64_t n = t->n, step = t->group <= BLOCK ? t->group : BLOCK;
    const bool fits = t->group <= BLOCK && !w->g->shared;
    for (int64_t c0 = 0; c0 < n; c0 += step) {
        const int64_t c1 = n - c0 < step ? n : c0 + step;
        const float *h = t->h + c0;
        w->ops->again(w->dev, t, c0, c1, fits);
        oz_tile_product p = {.out = t->he, .a = h, .lda = n, .m = c0, .k = c1 - c0, .b = t->err, .alpha = 1, .adds = true};
        if (c0 > 0) w->ops->product(w->dev, t, &p);
        p.out = t->he + c1 * t->ld, p.a = h + c1 * n, p.m = n - c1;
        if (c1 < n) w->ops->product(w->dev, t, &p);
    }
}

/* sums: see work. */
static void tile_quantize(const work *w, const oz_tile *t, double *sums) {
    const oz_tile_ops *ops = w->ops;
    sums[0] = weighted(w, t, t->e);
    sums[2] = weighted(w, t, t->w);
    sweep(w, t);
    if (ops->failed(w->dev, t)) return;
    weighted(w, t, t->e);
    ops->add(w->dev, t, t->he, t->e, t->added);
    for (int i = 0; i < w->g->passes; i++) pass(w, t);
    sums[1] = ops->dot(w->dev, t, t->e, t->he, t->added);
}

static oz_status tile_check(const work *w, const oz_tile *t, int64_t row0, const double *sums, oz_err *err) {
    OZ_NEED(!w->ops->failed(w->dev, t) && isfinite(sums[0] + sums[1] + sums[2]), err, OZ_E_FORMAT, "rows %lld to %lld: %s", (long long)row0, (long long)(row0 + t->n_rows - 1), TOO_LARGE);
    return OZ_OK;
}

/* ---- on the host: tiles, by threads ---- */

static oz_status tile_run(const work *w, int thread, int64_t tile, oz_err *err) {
    const int64_t row0 = tile * OZ_GPTQ_ROWS, left = w->g->weight->rows - row0, n_rows = left < OZ_GPTQ_ROWS ? left : OZ_GPTQ_ROWS;
    const oz_tile t = tile_view(w, w->scratch + (size_t)thread * tile_floats(w->like.n, w->like.n_groups, OZ_GPTQ_ROWS), &w->failed[thread], OZ_GPTQ_ROWS, n_rows);
    const row one = row_at(w, w->rows + thread * (w->like.n + 2 * w->like.n_groups), 1, 0);
    w->ops->begin(NULL, &t);
    for (int64_t r = 0; r < n_rows; r++) {
        OZ_TRY(row_read(&one, w, row0 + r, err));
        w->ops->load(NULL, &t, r, 1, one.values, one.scales, one.zeros);
    }
    tile_quantize(w, &t, w->sums + 3 * tile);
    OZ_TRY(tile_check(w, &t, row0, w->sums + 3 * tile, err));
    for (int64_t r = 0; r < n_rows; r++) {
        w->ops->unload(NULL, &t, r, 1, one.values, one.scales, one.zeros);
        row_write(w, &one, row0 + r);
    }
    return OZ_OK;
}

static void tiles_run(void *arg, int thread, int64_t begin, int64_t end) {
    const work *w = arg;
    for (int64_t i = begin; i < end; i++)
        if (tile_run(w, thread, i, &w->errs[thread]) != OZ_OK) return;
}

static oz_status host_run(work *w, int64_t n_tiles, const char *what, oz_err *err) {
    const size_t n_threads = (size_t)oz_pool_threads(w->pool), n = (size_t)w->like.n, n_groups = (size_t)w->like.n_groups;
    OZ_TRY(oz_big_new((void **)&w->scratch, n_threads * tile_floats(w->like.n, w->like.n_groups, OZ_GPTQ_ROWS) * sizeof(float), what, err));
    OZ_TRY(oz_big_new((void **)&w->rows, n_threads * (n + 2 * n_groups) * sizeof(float), what, err));
    w->failed = oz_alloc_array(n_threads, sizeof *w->failed);
    oz_pool_run(w->pool, n_tiles, 1, tiles_run, w);
    return OZ_OK;
}

/* ---- on a device: all rows, on their way some at a time ---- */

typedef struct chunk { const work *w; int64_t row0, n; } chunk;

static void rows_read(void *arg, int thread, int64_t begin, int64_t end) {
    const chunk *c = arg;
    oz_err *err = &c->w->errs[thread];
    for (int64_t i = begin; i < end && err->code == OZ_OK; i++) {
        const row to = row_at(c->w, c->w->rows, c->n, i);
        row_read(&to, c->w, c->row0 + i, err);
    }
}

static void rows_write(void *arg, int thread, int64_t begin, int64_t end) {
    (void)thread;
    const chunk *c = arg;
    for (int64_t i = begin; i < end; i++) {
        const row from = row_at(c->w, c->w->rows, c->n, i);
        row_write(c->w, &from, c->row0 + i);
    }
}

static chunk chunk_at(const work *w, int64_t row0) {
    const int64_t left = w->g->weight->rows - row0;
    return (chunk){w, row0, left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE};
}

static oz_status device_rows(work *w, const oz_tile *t, oz_err *err) {
    w->ops->begin(w->dev, t);
    for (int64_t r = 0; r < t->n_rows; r += ROWS_AT_ONCE) {
        chunk c = chunk_at(w, r);
        const row first = row_at(w, w->rows, c.n, 0);
        oz_pool_run(w->pool, c.n, 1, rows_read, &c);
        for (int i = 0; i < oz_pool_threads(w->pool); i++)
            if (w->errs[i].code != OZ_OK) return OZ_OK; /* told by the caller */
        w->ops->load(w->dev, t, r, c.n, first.values, first.scales, first.zeros);
    }
    tile_quantize(w, t, w->sums);
    OZ_TRY(tile_check(w, t, 0, w->sums, err));
    for (int64_t r = 0; r < t->n_rows; r += ROWS_AT_ONCE) {
        chunk c = chunk_at(w, r);
        const row first = row_at(w, w->rows, c.n, 0);
        w->ops->unload(w->dev, t, r, c.n, first.values, first.scales, first.zeros);
        oz_pool_run(w->pool, c.n, 1, rows_write, &c);
    }
    return OZ_OK;
}

static oz_status device_run(work *w, const char *what, oz_err *err) {
    const oz_ops *ops = oz_dev_ops(w->dev);
    const int64_t rows = w->g->weight->rows, ld = (rows + OZ_TILE_ALIGN - 1) / OZ_TILE_ALIGN * OZ_TILE_ALIGN;
    const size_t n_bytes = tile_floats(w->like.n, w->like.n_groups, ld) * sizeof(float);
    void *mem;
    OZ_TRY(oz_big_new((void **)&w->rows, (size_t)(ROWS_AT_ONCE * (w->like.n + 2 * w->like.n_groups)) * sizeof(float), what, err));
    OZ_TRY(ops->mem_new(&mem, w->dev, n_bytes + sizeof(int32_t), what, err));
    const oz_tile t = tile_view(w, mem, (int32_t *)((char *)mem + n_bytes), ld, rows);
    oz_status st = device_rows(w, &t, err);
    oz_err ended = {0};
    if (ops->end(w->dev, &ended) != OZ_OK) st = oz_err_set(err, ended.code, __FILE__, __LINE__, "%s: %s", what, ended.msg); /* what failed there explains the rest */
    ops->mem_free(w->dev, mem);
    return st;
}

/* ---- the whole ---- */

/* Integers clip where that costs less than the finer steps gain; a float's steps grow with its values, so that all that a scale can do is to place them. A bit more than half the code
 * range is the scale that clips neither end. */
void oz_scale_steps(float *steps, oz_codec codec) {
    const bool is_float = oz_codec_get(codec)->is_float;
    for (int i = 0; i < OZ_GPTQ_SCALES; i++) steps[i] = is_float ? exp2f((float)i / OZ_GPTQ_SCALES) : 1.08f - 0.02f * (float)i;
}

static oz_status result(const work *w, int64_t n_tiles, oz_status st, const char *what, oz_err *err) {
    for (int t = 0; t < oz_pool_threads(w->pool) && st == OZ_OK; t++)
        if (w->errs[t].code != OZ_OK) st = oz_err_set(err, w->errs[t].code, __FILE__, __LINE__, "%s", w->errs[t].msg);
    if (st == OZ_E_FORMAT) oz_err_prefix(err, "%s", what);
    double sums[3] = {0};
    for (int64_t i = 0; i < n_tiles * 3; i++) sums[i % 3] += w->sums[i];
    w->out->before = sums[2] > 0 ? sums[0] / sums[2] : NAN;
    w->out->after = sums[2] > 0 ? sums[1] / sums[2] : NAN;
    return st;
}

/* Scales that rows share, as round-to-nearest has them: to choose anew, all of them would have to be seen at once. */
oz_status oz_gptq_share(float **out, oz_gptq *g, const oz_scheme *s, const char *what, oz_err *err) {
    const oz_weight *w = g->weight;
    const int64_t cols = w->cols, n = g->rtn.group_size > 0 ? (cols + g->rtn.group_size - 1) / g->rtn.group_size : 1;
    g->shared_rows = s->per_tensor ? w->rows : s->block_rows;
    *out = NULL;
    if (g->shared_rows <= 0) return OZ_OK;
    const int64_t n_blocks = (w->rows + g->shared_rows - 1) / g->shared_rows;
    OZ_TRY(oz_big_new((void **)out, (size_t)(n_blocks * 2 * n + cols) * sizeof **out, what, err));
    float *values = *out + n_blocks * 2 * n;
    oz_status st = OZ_OK;
    int64_t r = 0;
    for (int64_t b = 0; st == OZ_OK && b < n_blocks; b++) {
        float *max = *out + b * 2 * n, *min = max + n; /* where scales and zero points will lie */
        for (; st == OZ_OK && r < w->rows && r < (b + 1) * g->shared_rows; r++) {
            oz_weight_row(values, w, r, 0, cols);
            st = oz_rtn_observe(min, max, &g->rtn, values, cols, err);
        }
        if (st != OZ_OK) oz_err_prefix(err, "row %" PRId64, r - 1);
        for (int64_t k = 0; st == OZ_OK && k < n; k++) st = oz_rtn_scale(&max[k], &min[k], &g->rtn, min[k], max[k], err);
    }
    if (st != OZ_OK) oz_err_prefix(err, "%s", what);
    g->shared = *out;
    return st;
}

oz_status oz_gptq_run(oz_gptq_result *out, const oz_gptq *g, oz_pool *pool, const char *what, oz_err *err) {
    oz_dev *dev = g->hessian->dev;
    const int64_t n = g->weight->cols, group = g->rtn.group_size > 0 ? g->rtn.group_size : n, n_tiles = dev ? 1 : (g->weight->rows + OZ_GPTQ_ROWS - 1) / OZ_GPTQ_ROWS;
    work w = {.g = g, .ops = dev ? oz_dev_ops(dev)->calib->tile : &oz_tile_host, .dev = dev, .out = out, .pool = pool,
              .like = {.n = n, .group = group, .n_groups = (n + group - 1) / group, .rtn = g->rtn, .h = g->hessian->sum, .u = g->factor->u, .perm = g->factor->perm,
                       .importance = g->shared ? NULL : g->factor->importance, .added = (float)g->factor->added}};
    oz_scale_steps(w.like.steps, g->rtn.codec);
    w.errs = oz_alloc_array((size_t)oz_pool_threads(pool), sizeof *w.errs);
    w.sums = oz_alloc_array((size_t)n_tiles * 3, sizeof *w.sums);
    const oz_status st = result(&w, n_tiles, dev ? device_run(&w, what, err) : host_run(&w, n_tiles, what, err), what, err);
    oz_free(w.failed);
    oz_free(w.sums);
    oz_free(w.errs);
    oz_big_free(w.rows);
    oz_big_free(w.scratch);
    return st;
}
