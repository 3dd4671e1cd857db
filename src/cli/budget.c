/* ounce quantize --target-bytes: the text that sensitivities are measured on, the model that it runs through, and the choice. */
#include "base/mem.h"
#include "base/progress.h"
#include "cli/budget.h"
#include "measure/measure.h"

/* Of the calibration text: sequences that errors at outputs, and divergences, are taken on, and how many tokens of one these see: each set of modules runs them through half of the model and its head. */
enum { ERROR_SEQS = 16, KL_SEQS = 8, KL_TOKENS = 128 };

/* n sequences of at least `least` tokens from all over a calibration text, at most `most` tokens of each. ids and begin are the result's own. */
static oz_calibration spread(const oz_calibration *c, int64_t n, int64_t least, int64_t most) {
    oz_calibration out = *c;
    size_t cap_ids = 0, len = 0;
    const int64_t **at = oz_alloc_array((size_t)c->n_seqs + 1, sizeof *at);
    int64_t n_fit = 0;
    for (int64_t i = 0; i < c->n_seqs; i++)
        if (c->begin[i + 1] - c->begin[i] >= least) at[n_fit++] = c->begin + i;
    out.n_seqs = n < n_fit ? n : n_fit, out.ids = NULL;
    out.begin = oz_alloc_array((size_t)out.n_seqs + 1, sizeof *out.begin);
    for (int64_t i = 0; i < out.n_seqs; i++) {
        const int64_t *of = at[i * n_fit / out.n_seqs];
        const int64_t taken = of[1] - of[0] < most ? of[1] - of[0] : most;
        oz_grow((void **)&out.ids, &cap_ids, len + (size_t)taken, sizeof *out.ids);
        for (int64_t k = 0; k < taken; k++) out.ids[len++] = c->ids[of[0] + k];
        out.begin[i + 1] = (int64_t)len;
    }
    oz_free(at);
    return out;
}

static void spread_free(oz_calibration *c) {
    oz_free(c->ids);
    oz_free(c->begin);
}

static int64_t longest(const oz_calibration *c) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_seqs; i++)
        if (c->begin[i + 1] - c->begin[i] > n) n = c->begin[i + 1] - c->begin[i];
    return n;
}

/* What the leanest scheme does to each set alone. */
static oz_status divergences(double *kl, oz_budget *b, oz_model *m, const oz_calibration *c, const oz_cli_budget_cfg *cfg, oz_err *err) {
    const size_t n = oz_budget_count(b);
    oz_kl_module *items = oz_alloc_array(n + 1, sizeof *items);
    for (size_t i = 0; i < n; i++) {
        const oz_budget_part p = oz_budget_at(b, i);
        items[i] = (oz_kl_module){.name = (char *)p.name, .layer = p.layer, .modules = (char **)p.modules, .n_modules = p.n_modules, .quantize = p.leanest};
    }
    oz_status st = oz_kl_modules_run(items, n, m, &(oz_kl_modules_cfg){.dev = cfg->dev, .ref = cfg->ckpt, .dtype = "f32", .name = cfg->model, .ids = c->ids, .begin = c->begin, .n_windows = c->n_seqs}, err);
    if (st == OZ_E_FORMAT) oz_cli_blame(cfg->ckpt, err); /* logits that are not finite */
    for (size_t i = 0; st == OZ_OK && i < n; i++) kl[i] = items[i].mean_kl;
    oz_free(items);
    return st;
}

oz_status oz_cli_budget(oz_budget *b, const oz_calibration *c, oz_pool *pool, const oz_cli_budget_cfg *cfg, oz_err *err) {
    oz_calibration errors = spread(c, ERROR_SEQS, 1, INT64_MAX), kls = spread(c, KL_SEQS, 2, KL_TOKENS); /* one token predicts nothing */
    oz_model *m = NULL;
    double *kl = oz_alloc_array(oz_budget_count(b) + 1, sizeof *kl);
    oz_status st = OZ_OK;
    if (!kls.n_seqs) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: no sequence of at least 2 tokens: --target-bytes measures how well the next token is predicted", c->name);
    if (st == OZ_OK) st = oz_model_open(&m, cfg->dev, cfg->ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = longest(c), .taps = OZ_TAP_LINEAR, .need_len = longest(c)}, err);
    if (st == OZ_OK) st = oz_budget_errors(b, m, &errors, pool, err);
    if (st == OZ_OK) st = divergences(kl, b, m, &kls, cfg, err);
    if (st == OZ_OK) oz_budget_choose(b, kl, OZ_VERSION);
    oz_model_close(&m);
    oz_free(kl);
    spread_free(&errors);
    spread_free(&kls);
    return st;
}
