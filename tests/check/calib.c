/* What a device computes for calibration, beside the host: Hessians, factors, and GPTQ of a matrix from the same ones. Where a choice is close the two may choose differently, which later
 * choices then follow: codes and scales are counted; errors are held against each other, and the error that is reported against that of the codes in f64. */
#include "device.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

typedef struct shape { int64_t rows, n, tokens; oz_codec codec; int64_t group; bool asymmetric, shared; double dampening; int passes; } shape;

static const shape shapes[] = {
    {70, 208, 600, OZ_CODEC_I4P, 16, false, false, 0.01, 0},   {70, 208, 600, OZ_CODEC_I4P, 16, true, false, 0.01, 0},   {300, 576, 1500, OZ_CODEC_I4P, 64, false, false, 0.01, 0},
    {300, 576, 1500, OZ_CODEC_I4P, 64, false, false, 1, 1},    {96, 1100, 2500, OZ_CODEC_I4P, 100, true, false, 0.01, 3}, {64, 512, 900, OZ_CODEC_I8P, 0, false, false, 0.01, 3},
    {33, 200, 700, OZ_CODEC_F8E4M3, 0, false, false, 0.01, 3}, {40, 384, 700, OZ_CODEC_F8E4M3, 0, false, true, 0.01, 3},  {65, 2052, 1200, OZ_CODEC_I4P, 128, false, false, 0.1, 2},
    {1, 24, 100, OZ_CODEC_I4P, 8, true, false, 0.01, 3},       {70, 320, 500, OZ_CODEC_F8E4M3, 128, false, true, 0.01, 3},
};

typedef struct both { oz_hessian dev, host; oz_factor dev_f, host_f; oz_pool *pool; float *w; } both;

static bool good(dck *k, oz_status st, const oz_err *e) {
    if (st != OZ_OK) ck_fail(k->c, "%s", e->msg);
    return st == OZ_OK;
}

/* Inputs that depend on each other, of very different sizes, one of which is always zero, and some tokens much larger than others. */
static void inputs_fill(ck *c, float *x, const shape *s, int64_t ld) {
    for (int64_t t = 0; t < s->tokens; t++) {
        const double common = oz_rng_normal(&c->rng) * (t % 60 == 7 ? 50 : 1);
        for (int64_t i = 0; i < ld; i++) x[t * ld + i] = i >= s->n ? NAN : i == 17 ? 0 : (float)((common + 0.5 * oz_rng_normal(&c->rng)) * exp(2.0 * sin((double)i)));
    }
}

/* Ranges of columns, exactly, and sums of magnitudes and of squares, added up in another order. */
static void ranges_compare(dck *k, const float *x, const float *on_dev, int64_t ld, const shape *s) {
    oz_sample dev, host;
    oz_err e = {0};
    if (!good(k, oz_sample_init(&dev, s->n, 16, k->dev, "x", &e), &e) || !good(k, oz_sample_init(&host, s->n, 16, NULL, "x", &e), &e)) return;
    for (int64_t r = 0, n; r < s->tokens; r += n) {
        n = s->tokens - r < 333 ? s->tokens - r : 333;
        oz_sample_add(&dev, on_dev + r * ld, ld, n), oz_sample_add(&host, x + r * ld, ld, n);
    }
    oz_sample_close(&dev), oz_sample_close(&host);
    ck_same(k->c, dev.min, host.min, sizeof(float) * (size_t)s->n, "least values");
    ck_same(k->c, dev.max, host.max, sizeof(float) * (size_t)s->n, "greatest values");
    ck_same(k->c, dev.rows, host.rows, sizeof(float) * (size_t)(host.n * s->n), "rows that are kept");
    for (int64_t i = 0; i < s->n; i++) ck_bound(k->c, fabs(dev.sum[i] - host.sum[i]), 1e-12 * host.sum[i], "sum of magnitudes, column %lld", (long long)i);
    for (int64_t i = 0; i < s->n; i++) ck_bound(k->c, fabs(dev.squares[i] - host.squares[i]), 1e-12 * host.squares[i], "sum of squares, column %lld", (long long)i);
    oz_sample_deinit(&dev), oz_sample_deinit(&host);
}

static bool hessians(dck *k, both *b, const shape *s) {
    oz_err e = {0};
    const int64_t ld = s->n + 3, half = s->tokens / 2;
    float *x = malloc(sizeof(float) * (size_t)(s->tokens * ld));
    void *on_dev = NULL;
    inputs_fill(k->c, x, s, ld);
    bool st = good(k, k->ops->mem_new(&on_dev, k->dev, sizeof(float) * (size_t)(s->tokens * ld), "x", &e), &e);
    st = st && good(k, oz_hessian_init(&b->dev, s->n, k->dev, "w", &e), &e) && good(k, oz_hessian_init(&b->host, s->n, NULL, "w", &e), &e);
    if (st) {
        k->ops->upload(k->dev, on_dev, x, sizeof(float) * (size_t)(s->tokens * ld));
        for (int i = 0; i < 2; i++) {
            const int64_t r0 = i * half, n = i ? s->tokens - half : half;
            oz_hessian_add(&b->dev, b->pool, (float *)on_dev + r0 * ld, ld, n);
            oz_hessian_add(&b->host, b->pool, x + r0 * ld, ld, n);
        }
        ranges_compare(k, x, on_dev, ld, s);
        st = good(k, oz_hessian_close(&b->dev, "w", &e), &e) && good(k, oz_hessian_close(&b->host, "w", &e), &e);
    }
    if (on_dev) k->ops->mem_free(k->dev, on_dev);
    free(x);
    return st;
}

/* Each x is rounded to bf16 on the device: a product is off by 2^-8 of itself at most. From then on the host has the device's. */
static void hessian_compare(dck *k, both *b) {
    const int64_t n = b->host.n;
    float *got = malloc(sizeof(float) * (size_t)(n * n)), *want = b->host.sum;
    k->ops->download(k->dev, got, b->dev.sum, sizeof(float) * (size_t)(n * n));
    for (int64_t i = 0; i < n && !ck_enough(k->c); i++)
        for (int64_t j = 0; j < n; j++) {
            const double size = sqrt((double)want[i * n + i] * (double)want[j * n + j]);
            ck_bound(k->c, fabs((double)got[i * n + j] - (double)want[i * n + j]), size * 0x1.02p-8, "hessian %lld, %lld", (long long)i, (long long)j);
            if (got[i * n + j] != got[j * n + i]) ck_fail(k->c, "hessian %lld, %lld: not symmetric", (long long)i, (long long)j);
        }
    memcpy(want, got, sizeof(float) * (size_t)(n * n));
    free(got);
}

static bool factors(dck *k, both *b, const shape *s) {
    oz_err e = {0};
    const int64_t n = s->n;
    if (!good(k, oz_factor_init(&b->dev_f, &b->dev, s->dampening, b->pool, "w", &e), &e) || !good(k, oz_factor_init(&b->host_f, &b->host, s->dampening, b->pool, "w", &e), &e)) return false;
    float *u = malloc(sizeof(float) * (size_t)(n * n)), *importance = malloc(sizeof(float) * (size_t)n);
    int32_t *perm = malloc(sizeof(int32_t) * (size_t)n);
    k->ops->download(k->dev, u, b->dev_f.u, sizeof(float) * (size_t)(n * n));
    k->ops->download(k->dev, importance, b->dev_f.importance, sizeof(float) * (size_t)n);
    k->ops->download(k->dev, perm, b->dev_f.perm, sizeof(int32_t) * (size_t)n);
    ck_same(k->c, perm, b->host_f.perm, sizeof(int32_t) * (size_t)n, "order of columns");
    for (int64_t i = 0; i < n; i++) {
        const double most = fabs((double)b->host_f.u[i * n + i]);
        ck_bound(k->c, fabs((double)importance[i] - (double)b->host_f.importance[i]), 1e-5 * (double)b->host_f.importance[i], "importance of column %lld", (long long)i);
        for (int64_t j = 0; j < n; j++) ck_bound(k->c, fabs((double)u[i * n + j] - (double)b->host_f.u[i * n + j]), 1e-5 * (most + fabs((double)b->host_f.u[i * n + j])), "factor %lld, %lld", (long long)i, (long long)j);
    }
    free(u), free(importance), free(perm);
    return true;
}

typedef struct result { oz_gptq_result r; float *values, *scales, *zeros; int64_t n_groups; } result;

/* What was chosen, as numbers. */
static bool quantize(dck *k, result *out, const both *b, const shape *s, bool on_dev) {
    oz_err e = {0};
    const oz_weight w = {.codec = OZ_CODEC_F32, .rows = s->rows, .cols = s->n, .codes = b->w, .row_bytes = s->n * 4, .group_size = s->n};
    const float shared[2 * 3] = {0.02f, s->group ? 0.02f : 0, s->group ? 0.02f : 0}; /* scales of one group or of three, then zero points */
    const oz_gptq g = {on_dev ? &b->dev : &b->host, on_dev ? &b->dev_f : &b->host_f, &w, {s->codec, s->group, OZ_DTYPE_BF16, s->asymmetric, 0, 0}, s->passes, s->shared ? shared : NULL, s->shared ? s->rows : 0};
    const int64_t n_groups = s->group ? (s->n + s->group - 1) / s->group : 1, row_bytes = oz_codec_row_bytes(s->codec, s->n);
    *out = (result){.r = {.codes = calloc((size_t)s->rows, (size_t)row_bytes), .scales = calloc((size_t)(s->rows * n_groups), 2), .zeros = s->asymmetric ? calloc((size_t)s->rows, (size_t)n_groups) : NULL,
                          .code_row_bytes = row_bytes, .scale_row_bytes = 2 * n_groups}, .n_groups = n_groups};
    if (!good(k, oz_gptq_run(&out->r, &g, b->pool, "w", &e), &e)) return false;
    const oz_weight stored = {.codec = s->codec, .rows = s->rows, .cols = s->n, .codes = out->r.codes, .row_bytes = row_bytes, .group_size = s->group ? s->group : s->n, .scale_dtype = OZ_DTYPE_BF16,
                              .scales = out->r.scales, .zeros = out->r.zeros};
    out->values = malloc(sizeof(float) * (size_t)(s->rows * s->n));
    out->scales = malloc(sizeof(float) * (size_t)(s->rows * n_groups));
    oz_to_f32(out->scales, OZ_DTYPE_BF16, out->r.scales, s->rows * n_groups);
    for (int64_t r = 0; r < s->rows; r++) oz_weight_row(out->values + r * s->n, &stored, r, 0, s->n);
    return true;
}

static void result_free(result *r) { free(r->r.codes), free(r->r.scales), free(r->r.zeros), free(r->values), free(r->scales); }

/* tr(E H E^T) / tr(W H W^T) of the values, in f64. */
static double error_of(const both *b, const shape *s, const float *values) {
    double sum = 0, of = 0;
    double *e = malloc(sizeof(double) * (size_t)s->n);
    for (int64_t r = 0; r < s->rows; r++) {
        const float *w = b->w + r * s->n;
        for (int64_t i = 0; i < s->n; i++) e[i] = (double)values[r * s->n + i] - (double)w[i];
        for (int64_t i = 0; i < s->n; i++) {
            double he = 0, hw = 0;
            for (int64_t j = 0; j < s->n; j++) he += (double)b->host.sum[i * s->n + j] * e[j], hw += (double)b->host.sum[i * s->n + j] * (double)w[j];
            sum += e[i] * he, of += (double)w[i] * hw;
        }
    }
    free(e);
    return sum / of;
}

/* The share of entries that differ. */
static double differ(const float *a, const float *b, int64_t n, double by) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += !(fabs((double)a[i] - (double)b[i]) <= by * fabs((double)b[i]));
    return (double)count / (double)n;
}

static void results_compare(dck *k, const both *b, const shape *s) {
    result dev = {0}, host = {0};
    if (quantize(k, &dev, b, s, true) && quantize(k, &host, b, s, false)) {
        const double exact = error_of(b, s, dev.values);
        ck_bound(k->c, fabs(dev.r.before - host.r.before), 1e-4 * host.r.before, "error of rounding to nearest: %g, host %g", dev.r.before, host.r.before);
        ck_bound(k->c, fabs(dev.r.after - exact), 2e-4 * exact + 0x1p-18 /* he is a difference of what is much larger */, "error reported %g, of the codes %g", dev.r.after, exact);
        ck_bound(k->c, fabs(dev.r.after - host.r.after), 0.03 * host.r.after, "error %g, host %g", dev.r.after, host.r.after);
        ck_bound(k->c, differ(dev.scales, host.scales, s->rows * host.n_groups, 0), s->passes ? 0.08 : 0.01, "share of scales that differ (passes %d)", s->passes);
        if (!s->passes) ck_bound(k->c, differ(dev.values, host.values, s->rows * s->n, 1e-6), 0.02, "share of values that differ");
    }
    result_free(&dev), result_free(&host);
}

/* A tile as quantize/gptq.c lays it out, on the device. */
static bool tile_new(oz_tile *t, void **mem, dck *k, const both *b, const shape *s) {
    const int64_t group = s->group ? s->group : s->n, n_groups = (s->n + group - 1) / group, ld = (s->rows + OZ_TILE_ALIGN - 1) / OZ_TILE_ALIGN * OZ_TILE_ALIGN, of = ld * s->n;
    oz_err e = {0};
    *t = (oz_tile){.n = s->n, .n_rows = s->rows, .ld = ld, .group = group, .n_groups = n_groups, .rtn = {s->codec, s->group, OZ_DTYPE_BF16, s->asymmetric, 0, 0}, .h = b->dev.sum, .u = b->dev_f.u,
                   .perm = b->dev_f.perm, .added = (float)b->dev_f.added};
    if (!good(k, k->ops->mem_new(mem, k->dev, sizeof(float) * (size_t)(5 * of + 2 * ld * n_groups + 3 * OZ_GPTQ_BLOCK * ld + 1), "tile", &e), &e)) return false;
    t->w = *mem, t->t = t->w + of, t->e = t->t + of, t->he = t->e + of, t->codes = t->he + of, t->scale = t->codes + of, t->zero = t->scale + ld * n_groups, t->err = t->zero + ld * n_groups;
    t->room = t->err + OZ_GPTQ_BLOCK * ld, t->failed = (int32_t *)(t->room + 2 * OZ_GPTQ_BLOCK * ld);
    return true;
}

/* What is kept of H e while the columns of a block are gone over, against that of the errors in f64: beside H e's own rounding, what some column is not told of shows. */
static void kept_compare(dck *k, const both *b, const shape *s) {
    oz_tile t;
    void *mem;
    if (!tile_new(&t, &mem, k, b, s)) return;
    const oz_tile_ops *ops = k->ops->calib->tile;
    const int64_t n = s->n, end = t.group <= OZ_GPTQ_BLOCK ? t.group : n < OZ_GPTQ_BLOCK ? n : OZ_GPTQ_BLOCK;
    float *row = malloc(sizeof(float) * (size_t)(2 * n + 2 * t.n_groups)), *codes = row + n, *scales = codes + n, *zeros = scales + t.n_groups, *e = malloc(sizeof(float) * (size_t)(2 * n * t.ld)), *he = e + n * t.ld;
    ops->begin(k->dev, &t);
    for (int64_t r = 0; r < s->rows; r++) {
        memset(zeros, 0, sizeof(float) * (size_t)t.n_groups);
        oz_rtn_numbers(codes, scales, zeros, &t.rtn, b->w + r * n, n, NULL);
        ops->load(k->dev, &t, r, 1, b->w + r * n, scales, zeros);
    }
    ops->product(k->dev, &t, &(oz_tile_product){.out = t.he, .a = t.h, .lda = n, .m = n, .k = n, .b = t.e, .alpha = 1});
    ops->add(k->dev, &t, t.he, t.e, t.added);
    ops->again(k->dev, &t, 0, end, t.group <= OZ_GPTQ_BLOCK && !s->shared);
    k->ops->download(k->dev, e, t.e, sizeof(float) * (size_t)(n * t.ld));
    k->ops->download(k->dev, he, t.he, sizeof(float) * (size_t)(n * t.ld));
    for (int64_t r = 0; r < s->rows && !ck_enough(k->c); r++)
        for (int64_t i = 0; i < end; i++) {
            double want = (double)t.added * (double)e[i * t.ld + r], size = fabs(want);
            for (int64_t j = 0; j < n; j++) {
                const double term = (double)b->host.sum[i * n + j] * (double)e[j * t.ld + r];
                want += term, size += fabs(term);
            }
            ck_bound(k->c, fabs((double)he[i * t.ld + r] - want), 1e-5 * size, "row %lld: what is kept of H e for column %lld", (long long)r, (long long)i);
        }
    k->ops->mem_free(k->dev, mem);
    free(row), free(e);
}

/* The squared error of a matrix whose columns are multiplied and that is rounded to nearest, from the routine that checkpoints are written with, in f64. */
static double trial_host(const shape *s, int64_t shared_rows, const float *w, const float *x, const float *token, const float *by, const float *divided, int64_t n_tok, const oz_rtn *rtn) {
    const int64_t n = s->n, group = rtn->group_size > 0 ? rtn->group_size : n, n_groups = (n + group - 1) / group;
    float *row = malloc(sizeof(float) * (size_t)(n + 2 * n_groups)), *scales = row + n, *zeros = scales + n_groups;
    double sum = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        for (int64_t g = 0; r % shared_rows == 0 && g < n_groups; g++) scales[g] = zeros[g] = 0; /* the greatest and the least first */
        for (int64_t k = r; r % shared_rows == 0 && k < r + shared_rows && k < s->rows; k++) {
            for (int64_t c = 0; c < n; c++) row[c] = w[k * n + c] * by[c];
            oz_rtn_observe(zeros, scales, rtn, row, n, NULL);
        }
        for (int64_t g = 0; r % shared_rows == 0 && g < n_groups; g++) oz_rtn_scale(&scales[g], &zeros[g], rtn, zeros[g], scales[g], NULL);
        for (int64_t c = 0; c < n; c++) row[c] = w[r * n + c] * by[c];
        oz_rtn_codes(row, rtn, scales, zeros, row, n);
        for (int64_t c = 0; c < n; c++) row[c] = (row[c] - zeros[c / group]) * scales[c / group];
        for (int64_t t = 0; t < n_tok; t++) {
            double got = 0, want = 0;
            for (int64_t c = 0; c < n; c++) got += (double)row[c] * (double)divided[t * n + c], want += (double)w[r * n + c] * (double)x[t * n + c];
            sum += (got - want * (double)token[t]) * (got - want * (double)token[t]);
        }
    }
    free(row);
    return sum;
}

/* Of each group of a row the shrink of its range whose error e G e^T is least, as quantize/clip.c says it, in f64; returns that error, summed. */
static double clip_host(float *scales, double *worst_gap, const float *got_scales, const float *got_zeros, const shape *s, const float *w, const float *x, int64_t n_tok, const oz_rtn *rtn) {
    const int64_t n = s->n, group = rtn->group_size > 0 ? rtn->group_size : n, n_groups = (n + group - 1) / group;
    oz_rtn one = *rtn;
    one.group_size = 0;
    double total = 0;
    float *e = malloc(sizeof(float) * (size_t)n);
    *worst_gap = 0;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t g = 0; g < n_groups; g++) {
            const int64_t c0 = g * group, len = n - c0 < group ? n - c0 : group;
            const float *v = w + r * n + c0;
            double least = INFINITY, taken = 0;
            for (int i = 0; i <= OZ_CLIP_SHRINKS; i++) { /* the last: what the device chose */
                float min = 0, max = 0, scale = got_scales[r * n_groups + g], zero = got_zeros[r * n_groups + g];
                const float by = 1 - 0.03f * (float)i;
                oz_rtn_observe(&min, &max, &one, v, len, NULL);
                if (i < OZ_CLIP_SHRINKS) oz_rtn_scale(&scale, &zero, &one, min * by, max * by, NULL);
                oz_rtn_codes(e, &one, &scale, &zero, v, len);
                for (int64_t c = 0; c < len; c++) e[c] = v[c] - (e[c] - zero) * scale;
                double loss = 0;
                for (int64_t at = 0; at < len; at += OZ_CLIP_PIECE)
                    for (int64_t t = 0; t < n_tok; t++) {
                        double sum = 0;
                        for (int64_t c = at; c < len && c < at + OZ_CLIP_PIECE; c++) sum += (double)e[c] * (double)x[t * n + c0 + c];
                        loss += sum * sum;
                    }
                if (i == OZ_CLIP_SHRINKS) taken = loss;
                else if (loss < least) least = loss, scales[r * n_groups + g] = scale;
            }
            total += least;
            *worst_gap = fmax(*worst_gap, (taken - least) / (least + 1e-30));
        }
    free(e);
    return total;
}

static void clip_compare(dck *k, oz_trial *t, const shape *s, const float *w, const float *x, int64_t n_tok, const oz_rtn *rtn) {
    const int64_t n = s->rows * (rtn->group_size > 0 ? (s->n + rtn->group_size - 1) / rtn->group_size : 1);
    float *scales = malloc(sizeof(float) * (size_t)(3 * n));
    double sums[3], gap;
    oz_err e = {0};
    oz_clip_args a = {.x = x, .scales = scales, .zeros = scales + n, .sums = sums};
    for (int i = 0; i < OZ_CLIP_SHRINKS; i++) a.shrinks[i] = 1 - 0.03f * (float)i;
    if (good(k, k->ops->calib->trial->clip(k->dev, t, &a, "w", &e), &e)) {
        const double want = clip_host(scales + 2 * n, &gap, scales, scales + n, s, w, x, n_tok, rtn);
        ck_bound(k->c, gap, 1e-3, "clip: what was chosen loses more than the best by");
        ck_bound(k->c, fabs(sums[2] - want), 1e-4 * want, "clip: error %g, of the best %g", sums[2], want);
    }
    free(scales);
}

static void trial_compare(dck *k, const both *b, const shape *s) {
    enum { TOKENS = 37 };
    const oz_trial_ops *ops = k->ops->calib->trial;
    const oz_trial_cfg cfg = {s->rows, s->n, TOKENS, {s->codec, s->group, OZ_DTYPE_BF16, s->asymmetric, 0, 0}, !s->shared ? 1 : s->group ? 32 : s->rows};
    oz_trial *t = NULL;
    oz_err e = {0};
    float *x = malloc(sizeof(float) * (size_t)(3 * TOKENS * s->n)), *divided = x + TOKENS * s->n, *by = divided + TOKENS * s->n, token[TOKENS];
    double squares[TOKENS];
    for (int64_t i = 0; i < TOKENS * s->n; i++) x[i] = (float)oz_rng_normal(&k->c->rng);
    for (int64_t c = 0; c < s->n; c++) by[c] = (float)exp(oz_rng_normal(&k->c->rng));
    for (int i = 0; i < TOKENS; i++) token[i] = (float)exp(oz_rng_normal(&k->c->rng));
    for (int64_t i = 0; i < TOKENS * s->n; i++) divided[i] = x[i] / by[i % s->n] * token[i / s->n];
    if (good(k, ops->open(&t, k->dev, &cfg, "w", &e), &e)) {
        const int64_t half = s->rows / 2;
        if (half) ops->load(k->dev, t, 0, half, b->w);
        ops->load(k->dev, t, half, s->rows - half, b->w + half * s->n);
        ops->aim(k->dev, t, x, squares);
        for (int i = 0; i < TOKENS; i++) {
            double want = 0;
            for (int64_t r = 0; r < s->rows; r++) {
                double y = 0;
                for (int64_t c = 0; c < s->n; c++) y += (double)b->w[r * s->n + c] * (double)x[i * s->n + c];
                want += y * y;
            }
            ck_bound(k->c, fabs(squares[i] - want), 1e-5 * want, "square of token %d's outputs", i);
        }
        ops->weigh(k->dev, t, token);
        const double want = trial_host(s, cfg.shared_rows, b->w, x, token, by, divided, TOKENS, &cfg.rtn);
        for (int i = 0; i < 2; i++) ck_bound(k->c, fabs(ops->error(k->dev, t, divided, by) - want), 1e-4 * want, "error of a trial, %g", want);
        if (!s->shared) clip_compare(k, t, s, b->w, x, TOKENS, &cfg.rtn);
        ops->close(k->dev, &t);
    }
    free(x);
}

/* What is taken is not free, and is free again. */
static void room_check(dck *k) {
    const size_t taken = 1 << 28, before = k->ops->calib->room(k->dev);
    void *p;
    oz_err e = {0};
    k->c->n_cases++;
    if (!good(k, k->ops->mem_new(&p, k->dev, taken, "room", &e), &e)) return;
    const size_t less = k->ops->calib->room(k->dev);
    k->ops->mem_free(k->dev, p);
    if (less > before - taken || k->ops->calib->room(k->dev) < less + taken) ck_fail(k->c, "%zu bytes free, %zu of which taken: %zu, given back: %zu", before, taken, less, k->ops->calib->room(k->dev));
}

static void shape_run(dck *k, const shape *s) {
    both b = {.pool = oz_pool_new(3), .w = malloc(sizeof(float) * (size_t)(s->rows * s->n))};
    k->c->n_cases++;
    for (int64_t i = 0; i < s->rows * s->n; i++) b.w[i] = (float)oz_rng_normal(&k->c->rng) * 0.05f + (s->asymmetric ? 0.02f : 0);
    if (hessians(k, &b, s)) {
        hessian_compare(k, &b);
        if (factors(k, &b, s)) results_compare(k, &b, s), kept_compare(k, &b, s);
    }
    trial_compare(k, &b, s);
    oz_factor_deinit(&b.dev_f), oz_factor_deinit(&b.host_f);
    if (b.dev.dev) oz_hessian_deinit(&b.dev);
    oz_hessian_deinit(&b.host);
    oz_pool_free(&b.pool);
    free(b.w);
    oz_err e = {0};
    if (k->ops->end(k->dev, &e) != OZ_OK) ck_fail(k->c, "%s", e.msg);
}

void ck_calibration(dck *k) {
    if (!k->ops->calib) return;
    if (oz_blas_init(1, NULL) != OZ_OK) ck_fail(k->c, "no room for BLAS");
    if (!ck_skip(k->c)) room_check(k);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!ck_skip(k->c)) shape_run(k, &shapes[i]);
}
