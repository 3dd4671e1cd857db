/* ounce quantize --target-bytes: the text that sensitivities are measured on, the model that it runs through, and the choice. */
#include "base/mem.h"
#include "base/progress.h"
#include "cli/budget.h"
#include "measure/measure.h"
#include <math.h>

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

typedef struct measuring { oz_budget *b; oz_kl_module *items; size_t n; double *kl; } measuring;

static oz_status keep(void *arg, oz_err *err) {
    const measuring *m = arg;
    for (size_t i = 0; i < m->n; i++)
        if (m->items[i].measured) m->kl[i] = m->items[i].mean_kl;
    return oz_budget_keep(m->b, m->kl, err);
}

/* What the leanest scheme does to each set alone. */
static oz_status divergences(oz_budget *b, oz_model *m, const oz_calibration *c, const oz_cli_budget_cfg *cfg, oz_err *err) {
    measuring x = {.b = b, .n = oz_budget_count(b)};
    x.items = oz_alloc_array(x.n + 1, sizeof *x.items), x.kl = oz_alloc_array(x.n + 1, sizeof *x.kl);
    for (size_t i = 0; i < x.n; i++) {
        const oz_budget_part p = oz_budget_at(b, i);
        x.items[i] = (oz_kl_module){.name = (char *)p.name, .layer = p.layer, .modules = (char **)p.modules, .n_modules = p.n_modules, .quantize = p.leanest, .measured = !isnan(p.kl), .mean_kl = p.kl};
        x.kl[i] = p.kl;
    }
    oz_status st = oz_kl_modules_run(x.items, x.n, m, &(oz_kl_modules_cfg){.dev = cfg->text->dev, .ref = cfg->ckpt, .dtype = "f32", .name = cfg->model, .ids = c->ids, .begin = c->begin, .n_windows = c->n_seqs, .keep = keep, .keep_arg = &x}, err);
    if (st == OZ_E_FORMAT) oz_cli_blame(cfg->ckpt, err); /* logits that are not finite */
    oz_free(x.items);
    oz_free(x.kl);
    return st;
}

static oz_status measure(oz_budget *b, const oz_calibration *errors, const oz_calibration *kls, oz_pool *pool, const oz_cli_budget_cfg *cfg, oz_err *err) {
    const int64_t max_tok = longest(cfg->text->calibration);
    oz_model *m = NULL;
    oz_status st = oz_model_open(&m, cfg->text->dev, cfg->ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = max_tok, .taps = OZ_TAP_LINEAR, .need_len = max_tok}, err);
    if (st == OZ_OK) st = oz_budget_errors(b, m, errors, pool, err);
    if (st == OZ_OK) st = divergences(b, m, kls, cfg, err);
    oz_model_close(&m);
    return st;
}

oz_status oz_cli_budget(oz_budget *b, const oz_cli_budget_cfg *cfg, oz_pool *pool, oz_err *err) {
    const oz_calibration *c = cfg->text->calibration;
    oz_calibration errors = spread(c, ERROR_SEQS, 1, INT64_MAX), kls = spread(c, KL_SEQS, 2, KL_TOKENS); /* one token predicts nothing */
    oz_status st = OZ_OK;
    if (!kls.n_seqs) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: no sequence of at least 2 tokens: --target-bytes measures how well the next token is predicted", c->name);
    if (st == OZ_OK && cfg->target) st = oz_budget_begin(b, cfg->target, cfg->text, pool, err);
    if (st == OZ_OK && !oz_budget_is_measured(b) && (st = measure(b, &errors, &kls, pool, cfg, err)) != OZ_OK) oz_budget_break_off(b, st, err);
    if (st == OZ_OK) oz_budget_choose(b, OZ_VERSION);
    spread_free(&errors);
    spread_free(&kls);
    return st;
}
