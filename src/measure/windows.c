#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "measure/internal.h"

enum { DEFAULT_CTX = 1024 };

oz_status oz_kl_ctx_choose(int64_t *ctx, int64_t asked, int64_t max_len, oz_err *err) {
    *ctx = asked ? asked : max_len < DEFAULT_CTX ? max_len : DEFAULT_CTX;
    OZ_NEED(*ctx >= 2 && *ctx <= max_len, err, OZ_E_ARG, "--ctx %lld: must be 2..%lld, the model's length", (long long)*ctx, (long long)max_len);
    return OZ_OK;
}

oz_status oz_windows_init(oz_windows *w, oz_model *const *models, int n_models, int64_t ctx, oz_err *err) {
    *w = (oz_windows){.models = models, .n_models = n_models, .ctx = ctx, .step = ctx};
    for (int i = 0; i < n_models; i++) {
        const oz_model_info *f = oz_model_get(models[i]);
        if (f->max_tok < w->step) w->step = f->max_tok;
    }
    const int64_t n_blocks = (ctx + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    w->states = oz_alloc_array((size_t)n_models, sizeof *w->states);
    w->blocks = oz_alloc_array((size_t)n_blocks, sizeof *w->blocks);
    w->rows = oz_alloc_array((size_t)w->step, sizeof *w->rows);
    w->targets = oz_alloc_array((size_t)w->step, sizeof *w->targets);
    for (int64_t i = 0; i < n_blocks; i++) w->blocks[i] = (int32_t)i;
    oz_status st = OZ_OK;
    for (int i = 0; st == OZ_OK && i < n_models; i++) st = oz_state_new(&w->states[i], models[i], n_blocks, 1, err);
    if (st != OZ_OK) oz_windows_deinit(w);
    return st;
}

void oz_windows_deinit(oz_windows *w) {
    for (int i = 0; w->states && i < w->n_models; i++) oz_state_free(&w->states[i]);
    void *const owned[] = {w->states, w->blocks, w->rows, w->targets};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) oz_free(owned[i]);
    *w = (oz_windows){0};
}

/* The KL sink writes [n_models - 1, n_rows] of one call; a window of several calls wants [n_models - 1, n_scored]. */
static oz_status call_kl(oz_windows *w, const oz_call *c, oz_kl_stat *kls, int64_t at, int64_t n_scored, oz_err *err) {
    oz_kl_stat *tmp;
    const int64_t n = c->n_rows, m = w->n_models - 1;
    OZ_TRY(oz_big_new((void **)&tmp, (size_t)(n * m) * sizeof *tmp, "KL statistics", err));
    oz_status st = oz_lockstep_run(w->models, w->states, w->n_models, c, &(oz_sink){OZ_SINK_KL, tmp, w->targets}, err);
    for (int64_t i = 0; st == OZ_OK && i < m; i++) memcpy(kls + i * n_scored + at, tmp + i * n, (size_t)n * sizeof *tmp);
    oz_big_free(tmp);
    return st;
}

static oz_status finite_check(const oz_windows *w, int model, double nll, int64_t position, oz_err *err) {
    OZ_NEED(isfinite(nll), err, OZ_E_FORMAT, "%s%slogits are not finite at position %lld of a window", w->names ? w->names[model] : "", w->names ? ": " : "", (long long)position);
    return OZ_OK;
}

oz_status oz_windows_run(oz_windows *w, const int32_t *ids, int64_t n, int64_t score0, oz_row_stat *stats, oz_kl_stat *kls, oz_err *err) {
    const int64_t n_scored = n - 1 - score0;
    for (int64_t p0 = 0, done = 0; p0 < n - 1; p0 += w->step) {
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        const int64_t k = n - 1 - p0 < w->step ? n - 1 - p0 : w->step; /* the last token predicts nothing */
        int64_t n_rows = 0;
        for (int64_t i = 0; i < k; i++) {
            if (p0 + i < score0) continue;
            w->rows[n_rows] = (int32_t)i;
            w->targets[n_rows++] = ids[p0 + i + 1];
        }
        const oz_seg seg = {0, k, p0, w->blocks};
        const oz_call c = {.ids = ids + p0, .n_tok = k, .segs = &seg, .n_segs = 1, .rows = w->rows, .n_rows = n_rows, .tap = w->tap, .tap_arg = w->tap_arg};
        if (kls && n_rows) OZ_TRY(call_kl(w, &c, kls, done, n_scored, err));
        else
            for (int m = 0; m < w->n_models; m++) {
                const oz_sink sink = {n_rows ? OZ_SINK_STAT : OZ_SINK_NONE, stats + (stats ? done : 0), w->targets};
                OZ_TRY(oz_model_run(w->models[m], w->states[m], &c, &sink, err));
            }
        done += n_rows;
    }
    for (int64_t i = 0; i < n_scored; i++) {
        if (stats) OZ_TRY(finite_check(w, 0, stats[i].lse - (double)stats[i].logit_target, score0 + i, err));
        for (int m = 1; kls && m < w->n_models; m++) {
            const oz_kl_stat *s = &kls[(m - 1) * n_scored + i];
            OZ_TRY(finite_check(w, 0, s->nll_ref, score0 + i, err));
            OZ_TRY(finite_check(w, m, s->nll, score0 + i, err));
        }
    }
    return OZ_OK;
}

static int cmp(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void oz_quantiles_fill(oz_quantiles *q, double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, cmp);
    const struct { double at; double *out; } points[] = {{1, &q->max},     {0.999, &q->p999}, {0.99, &q->p99}, {0.95, &q->p95}, {0.9, &q->p90},
                                                         {0.75, &q->p75},  {0.5, &q->median}, {0.25, &q->p25}, {0.1, &q->p10},  {0.05, &q->p5},
                                                         {0.01, &q->p1},   {0.001, &q->p01},  {0, &q->min}};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const double at = points[i].at * (double)(n - 1), lo = floor(at);
        const int64_t k = (int64_t)lo;
        *points[i].out = k + 1 < n ? x[k] + (at - lo) * (x[k + 1] - x[k]) : x[n - 1];
    }
}
