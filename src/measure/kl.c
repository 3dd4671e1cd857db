/* KL divergence: one pass over the text, all models in lockstep, the reference's logits computed once. Statistics as
 * llama.cpp's perplexity tool prints them (docs/measuring.md), from exact logits. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/progress.h"
#include "measure/internal.h"

/* What is kept of one model: two numbers a position for the quantiles, sums for the rest. */
typedef struct acc {
    double *kl, *dp;
    int64_t n, same;
    double kl1, kl2, dp1, dp2, dp4, q1, q2, r1, r2, qr; /* sums: first, second (fourth) powers; q, r: NLL of model and reference */
    double win1, win2;
    int64_t mutual;
    oz_kl_worst worst[OZ_KL_WORST]; int n_worst;
    int64_t *choices, *flips; /* [n_layers] */
    oz_kl_part by_class[OZ_TOKEN_CLASSES], by_position[OZ_KL_SPANS]; /* sums, until the end */
} acc;

static void part_add(oz_kl_part *p, double kl) { p->positions++, p->mean_kl += kl; }
static void parts_finish(oz_kl_part *out, const oz_kl_part *sums, int n) {
    for (int i = 0; i < n; i++) out[i] = (oz_kl_part){sums[i].positions, sums[i].positions ? sums[i].mean_kl / (double)sums[i].positions : 0};
}

/* 0, 1, 2 .. 3, 4 .. 7 */
static int span_of(int64_t position) {
    int k = 0;
    while (k + 1 < OZ_KL_SPANS && position >> k) k++;
    return k;
}

/* Keeps the largest, in order; of equals those that came first. */
static void worst_add(acc *a, const oz_kl_stat *s, int64_t at) {
    int i = a->n_worst < OZ_KL_WORST ? a->n_worst++ : OZ_KL_WORST;
    while (i > 0 && !(a->worst[i - 1].stat.kl >= s->kl)) {
        if (i < OZ_KL_WORST) a->worst[i] = a->worst[i - 1];
        i--;
    }
    if (i < OZ_KL_WORST) a->worst[i] = (oz_kl_worst){at, *s};
}

/* at: of ids, the first position; in_window: of its window. */
static void acc_add(acc *a, const oz_kl_stat *s, int64_t n, int64_t at, int64_t in_window, const uint8_t *classes) {
    double window = 0.0;
    for (int64_t i = 0; i < n; i++, s++) {
        worst_add(a, s, at + i);
        part_add(&a->by_position[span_of(in_window + i)], s->kl);
        if (classes) part_add(&a->by_class[classes[at + i + 1]], s->kl);
        a->mutual += s->place_ref < OZ_KL_TOP && s->place < OZ_KL_TOP;
        const double dp = s->p - s->p_ref;
        a->kl[a->n] = s->kl;
        a->dp[a->n++] = dp;
        a->same += s->argmax == s->argmax_ref;
        a->kl1 += s->kl, a->kl2 += s->kl * s->kl;
        a->dp1 += dp, a->dp2 += dp * dp, a->dp4 += dp * dp * dp * dp;
        a->q1 += s->nll, a->q2 += s->nll * s->nll;
        a->r1 += s->nll_ref, a->r2 += s->nll_ref * s->nll_ref;
        a->qr += s->nll * s->nll_ref;
        window += s->kl;
    }
    window /= (double)n;
    a->win1 += window, a->win2 += window * window;
}

/* Standard error of a mean from its sums: sqrt(var / (n - 1)). */
static double mean_se(double s1, double s2, double n) {
    const double mean = s1 / n, var = s2 / n - mean * mean;
    return n > 1 && var > 0 ? sqrt(var / (n - 1)) : 0.0;
}

static void flips_finish(oz_kl *o, const acc *a, int64_t n_layers) {
    int64_t any = 0;
    for (int64_t i = 0; i < n_layers; i++) any += a->choices[i];
    if (!any) return;
    o->n_layers = n_layers;
    o->flips = oz_alloc_array((size_t)n_layers, sizeof *o->flips);
    for (int64_t i = 0; i < n_layers; i++) o->flips[i] = a->choices[i] ? (double)a->flips[i] / (double)a->choices[i] : -1;
}

void oz_kl_deinit(oz_kl *k) {
    oz_free(k->flips);
    k->flips = NULL;
}

static void acc_finish(oz_kl *o, acc *a, int64_t windows) {
    *o = (oz_kl){.mutual_topk = (double)a->mutual / (double)a->n, .n_worst = a->n_worst};
    memcpy(o->worst, a->worst, sizeof o->worst);
    parts_finish(o->by_class, a->by_class, OZ_TOKEN_CLASSES);
    parts_finish(o->by_position, a->by_position, OZ_KL_SPANS);
    const double n = (double)a->n, q = a->q1 / n, r = a->r1 / n;
    const double vq = a->q2 / n - q * q, vr = a->r2 / n - r * r, cov = a->qr / n - q * r, m = n > 1 ? n - 1 : 1;
    o->positions = a->n, o->windows = windows;
    o->mean_kl = a->kl1 / n, o->kl_se = mean_se(a->kl1, a->kl2, n);
    o->kl_se_windows = mean_se(a->win1, a->win2, (double)windows);
    oz_quantiles_fill(&o->kl, a->kl, a->n);
    oz_quantiles_fill(&o->dp, a->dp, a->n);
    o->mean_dp = a->dp1 / n, o->mean_dp_se = mean_se(a->dp1, a->dp2, n);
    o->rms_dp = sqrt(a->dp2 / n), o->rms_dp_se = o->rms_dp > 0 ? mean_se(a->dp2, a->dp4, n) / (2 * o->rms_dp) : 0.0;
    o->top1_agreement = (double)a->same / n, o->top1_se = sqrt(o->top1_agreement * (1 - o->top1_agreement) / m);
    o->ppl = exp(q), o->ppl_se = o->ppl * sqrt(fmax(vq, 0) / m);
    o->ppl_ref = exp(r), o->ppl_ref_se = o->ppl_ref * sqrt(fmax(vr, 0) / m);
    o->ln_ratio = q - r, o->ln_ratio_se = sqrt(fmax(vq + vr - 2 * cov, 0) / m);
    o->ratio = exp(q - r), o->ratio_se = o->ratio * o->ln_ratio_se;
    o->diff = o->ppl - o->ppl_ref;
    o->diff_se = sqrt(fmax(o->ppl * o->ppl * vq + o->ppl_ref * o->ppl_ref * vr - 2 * o->ppl * o->ppl_ref * cov, 0) / m);
    o->correlation = vq > 0 && vr > 0 ? cov / sqrt(vq * vr) : 1.0;
}

/* routed: the reference's choices in the call that runs, [n_layers, max_tok * the most experts a token], and how many a token in each layer. */
typedef struct job { oz_windows w; const uint8_t *classes; acc *accs; oz_kl_stat *stats; int n; int64_t n_layers, cap; int32_t *routed; int64_t *width; } job;
enum { MOST_CHOICES = 64 };

static void see_route(void *arg, const oz_tap *t) {
    job *j = arg;
    if (t->kind != OZ_TAP_ROUTE || t->layer >= j->n_layers || t->width > MOST_CHOICES) return;
    int32_t *ref = j->routed + t->layer * j->cap;
    if (t->model == 0) {
        memcpy(ref, t->experts, (size_t)(t->n_tok * t->width) * sizeof *ref);
        j->width[t->layer] = t->width;
        return;
    }
    if (j->width[t->layer] != t->width) return;
    acc *a = &j->accs[t->model - 1];
    for (int64_t i = 0; i < t->n_tok * t->width; i++) {
        const int32_t *chosen = t->experts + i / t->width * t->width;
        bool same = false;
        for (int64_t k = 0; k < t->width; k++) same |= chosen[k] == ref[i];
        a->flips[t->layer] += !same;
    }
    a->choices[t->layer] += t->n_tok * t->width;
}

static oz_status routes_init(job *j, oz_model *const *models, oz_err *err) {
    j->n_layers = oz_model_get(models[0])->n_layers, j->cap = j->w.step * MOST_CHOICES;
    j->width = oz_alloc_array((size_t)j->n_layers, sizeof *j->width);
    for (int i = 0; i < j->n; i++) {
        j->accs[i].choices = oz_alloc_array((size_t)j->n_layers, sizeof(int64_t));
        j->accs[i].flips = oz_alloc_array((size_t)j->n_layers, sizeof(int64_t));
    }
    j->w.tap = see_route, j->w.tap_arg = j;
    return oz_big_new((void **)&j->routed, (size_t)(j->n_layers * j->cap) * sizeof *j->routed, "choices of experts", err);
}

static oz_status job_init(job *j, oz_model *const *models, int n_models, int64_t ctx, int64_t positions, oz_err *err) {
    OZ_TRY(oz_windows_init(&j->w, models, n_models, ctx, err));
    j->n = n_models - 1;
    j->accs = oz_alloc_array((size_t)j->n, sizeof *j->accs);
    OZ_TRY(oz_big_new((void **)&j->stats, (size_t)(ctx * j->n) * sizeof *j->stats, "KL statistics", err));
    for (int i = 0; i < j->n; i++) {
        OZ_TRY(oz_big_new((void **)&j->accs[i].kl, (size_t)positions * sizeof(double), "KL statistics", err));
        OZ_TRY(oz_big_new((void **)&j->accs[i].dp, (size_t)positions * sizeof(double), "KL statistics", err));
    }
    return routes_init(j, models, err);
}

static void job_deinit(job *j) {
    for (int i = 0; j->accs && i < j->n; i++) {
        oz_big_free(j->accs[i].kl);
        oz_big_free(j->accs[i].dp);
        oz_free(j->accs[i].choices);
        oz_free(j->accs[i].flips);
    }
    oz_big_free(j->routed);
    oz_free(j->width);
    oz_big_free(j->stats);
    oz_free(j->accs);
    oz_windows_deinit(&j->w);
}

static oz_status job_run(job *j, const int32_t *ids, int64_t ctx, int64_t score0, int64_t windows, oz_err *err) {
    oz_progress p;
    oz_progress_init(&p, "measuring", "tokens", windows * ctx);
    oz_status st = OZ_OK;
    for (int64_t i = 0; st == OZ_OK && i < windows; i++) {
        st = oz_windows_run(&j->w, ids + i * ctx, ctx, score0, NULL, j->stats, err);
        const int64_t n = ctx - 1 - score0;
        for (int k = 0; st == OZ_OK && k < j->n; k++) acc_add(&j->accs[k], j->stats + k * n, n, i * ctx + score0, score0, j->classes);
        oz_progress_step(&p, (i + 1) * ctx);
    }
    oz_progress_deinit(&p);
    return st;
}

/* Every model must take a window. */
static int64_t shortest(oz_model *const *models, int n_models) {
    int64_t len = INT64_MAX;
    for (int i = 0; i < n_models; i++)
        if (oz_model_get(models[i])->max_len < len) len = oz_model_get(models[i])->max_len;
    return len;
}

oz_status oz_kl_run(oz_kl *out, oz_model *const *models, int n_models, const int32_t *ids, int64_t n_ids, const oz_kl_cfg *cfg, oz_err *err) {
    OZ_NEED(n_models >= 2, err, OZ_E_ARG, "a reference and at least one model are needed");
    if (cfg->limit_tok > 0 && n_ids > cfg->limit_tok) n_ids = cfg->limit_tok;
    OZ_NEED(n_ids >= 2, err, OZ_E_ARG, "the text has %lld tokens: at least 2 are needed", (long long)n_ids);
    int64_t wanted;
    OZ_TRY(oz_kl_ctx_choose(&wanted, cfg->ctx, shortest(models, n_models), err));
    const int64_t ctx = n_ids < wanted ? n_ids : wanted, windows = n_ids / ctx, score0 = cfg->half ? ctx / 2 : 0;
    OZ_NEED(ctx - 1 > score0, err, OZ_E_ARG, "a window of %lld tokens scores no position", (long long)ctx);
    if (ctx < wanted) oz_log_warn("the text has %lld tokens, less than --ctx %lld: one window of %lld", (long long)n_ids, (long long)wanted, (long long)ctx);
    job j = {0};
    oz_status st = job_init(&j, models, n_models, ctx, windows * (ctx - 1 - score0), err);
    j.w.names = cfg->names, j.classes = cfg->classes;
    if (st == OZ_OK) st = job_run(&j, ids, ctx, score0, windows, err);
    for (int i = 0; st == OZ_OK && i < j.n; i++) {
        acc_finish(&out[i], &j.accs[i], windows);
        out[i].ctx = ctx;
        flips_finish(&out[i], &j.accs[i], j.n_layers);
    }
    job_deinit(&j);
    return st;
}
