/* ounce kl REF MODEL --by-module: what each module of MODEL does to REF by itself, or what MODEL gains where each is as REF has it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/progress.h"
#include "cli/kl.h"

/* What is measured of a module: what it does alone, or what it does not do any more. */
typedef struct run { const char *ref, *model; const oz_cli_kl *k; oz_cli_model open[2] /* the reference; the model, where it is run whole */; oz_ckpt *other; oz_kl_modules modules; oz_kl whole; int64_t ctx, windows; } run;

static int by_kl(const void *pa, const void *pb) {
    const oz_kl_module *a = pa, *b = pb;
    if (a->mean_kl != b->mean_kl) return a->mean_kl > b->mean_kl ? -1 : 1;
    return strcmp(a->name, b->name);
}
static int by_gain(const void *a, const void *b) { return by_kl(b, a); }

static json_t *module_json(const oz_kl_module *x, const run *r) {
    json_t *o = json_pack("{s:o, s:s, s:o, s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "module", oz_json_text(x->name), "role", x->role, "layer", x->layer < 0 ? json_null() : json_integer(x->layer),
                          "scheme", x->scheme, "matrices", (json_int_t)x->n_modules, "bytes", (json_int_t)x->bytes, "mean_kl", x->mean_kl, "kl_se_windows", x->kl_se_windows,
                          "kl_max", x->kl_max, "top1_agreement", x->top1_agreement);
    if (r->k->leave_one_out) json_object_set_new(o, "gain", json_real(r->whole.mean_kl - x->mean_kl));
    return o;
}

static void report_json(const run *r, double sum) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->modules.n; i++) json_array_append_new(list, module_json(&r->modules.items[i], r));
    json_t *o = json_pack("{s:o, s:I, s:I, s:o}", "model", oz_json_text(r->model), "positions", (json_int_t)r->modules.items[0].positions, "windows", (json_int_t)r->windows, "modules", list);
    if (r->k->leave_one_out) json_object_set_new(o, "mean_kl", json_real(r->whole.mean_kl));
    else json_object_set_new(o, "sum_kl", json_real(sum));
    oz_cli_json_print(json_pack("[o]", o));
}

static void report(const run *r) {
    const oz_kl_modules *m = &r->modules;
    const bool without = r->k->leave_one_out;
    double sum = 0;
    for (size_t i = 0; i < m->n; i++) sum += m->items[i].mean_kl;
    if (oz_cli_common.json) {
        report_json(r, sum);
        return;
    }
    if (without) printf("%s with one module at a time as in %s; positions: %lld, windows: %lld\n%12.4g  mean KL of the whole\n", r->model, r->ref, (long long)m->items[0].positions, (long long)r->windows, r->whole.mean_kl);
    else printf("%s, one module at a time out of %s; positions: %lld, windows: %lld\n", r->ref, r->model, (long long)m->items[0].positions, (long long)r->windows);
    printf("%12s %12s %9s %12s  %-12s module\n", "mean KL", "over windows", without ? "gain, %" : "share, %", "bytes", "scheme");
    for (size_t i = 0; i < m->n; i++) {
        const oz_kl_module *x = &m->items[i];
        const double of = without ? r->whole.mean_kl : sum, part = without ? of - x->mean_kl : x->mean_kl;
        printf("%12.4g %12.2g %9.3f %12zu  %-12s %s\n", x->mean_kl, x->kl_se_windows, of > 0 ? 100 * part / of : 0, x->bytes, x->scheme, x->name);
    }
    if (!without) printf("%12.4g  of all together, if they did not touch each other\n", sum);
}

/* Windows of ctx tokens without overlap, the shorter rest left out unless it is all there is. */
static oz_status windows_cut(int64_t **begin, int64_t *n_windows, const oz_ids *ids, const oz_cli_kl *k, int64_t wanted, oz_err *err) {
    const int64_t n = k->limit > 0 && (int64_t)ids->len > k->limit ? k->limit : (int64_t)ids->len;
    OZ_NEED(n >= 2, err, OZ_E_ARG, "the text has %lld tokens: at least 2 are needed", (long long)n);
    const int64_t ctx = n < wanted ? n : wanted;
    OZ_NEED(!k->half || ctx - 1 > ctx / 2, err, OZ_E_ARG, "a window of %lld tokens scores no position", (long long)ctx);
    if (ctx < wanted) oz_log_warn("the text has %lld tokens, less than --ctx %lld: one window of %lld", (long long)n, (long long)wanted, (long long)ctx);
    *n_windows = n / ctx;
    *begin = oz_alloc_array((size_t)*n_windows + 1, sizeof **begin);
    for (int64_t i = 0; i <= *n_windows; i++) (*begin)[i] = i * ctx;
    return OZ_OK;
}

/* The model as it is, on the same windows. */
static oz_status whole_run(run *r, const oz_ids *ids, const int64_t *begin, oz_err *err) {
    oz_model *const models[] = {r->open[0].model, r->open[1].model};
    const char *const names[] = {r->ref, r->model};
    return oz_kl_run(&r->whole, models, 2, ids->data, begin[r->windows], &(oz_kl_cfg){.ctx = begin[1], .half = r->k->half, .names = names}, err);
}

static oz_status measure(run *r, oz_err *err) {
    const oz_cli_model *open = r->open;
    oz_ids ids = {0};
    int64_t *begin = NULL;
    oz_status st = oz_cli_kl_ids(&ids, r->k, open, &r->model, 1, err);
    if (st == OZ_OK) st = windows_cut(&begin, &r->windows, &ids, r->k, r->ctx, err);
    if (st == OZ_OK && r->k->leave_one_out) st = whole_run(r, &ids, begin, err);
    if (st == OZ_OK)
        st = oz_kl_modules_run(r->modules.items, r->modules.n, open->model, &(oz_kl_modules_cfg){.dev = open->dev, .ref = open->ckpt, .other = r->other, .whole = open[1].model, .dtype = oz_cli_common.dtype, .name = r->ref,
                                                                                                .other_name = r->model, .max_len = oz_cli_common.max_len, .ids = ids.data, .begin = begin, .n_windows = r->windows, .half = r->k->half}, err);
    if (st == OZ_OK) {
        qsort(r->modules.items, r->modules.n, sizeof *r->modules.items, r->k->leave_one_out ? by_gain : by_kl);
        report(r);
    }
    oz_free(begin);
    oz_free(ids.data);
    return st;
}

/* Before memory is taken for it: every model that is run whole must take a window. */
static oz_status ctx_choose(run *r, oz_err *err) {
    const oz_model_cfg cfg = {.max_len = oz_cli_common.max_len};
    int64_t len, other = INT64_MAX;
    oz_ckpt *ref;
    OZ_TRY(oz_cli_of_model(oz_ckpt_open(&ref, r->ref, err), r->ref, err));
    oz_status st = oz_cli_of_model(oz_model_cfg_check(&len, &cfg, NULL, ref, err), r->ref, err);
    if (st == OZ_OK && r->k->leave_one_out) st = oz_cli_of_model(oz_model_cfg_check(&other, &cfg, NULL, r->other, err), r->model, err);
    oz_ckpt_close(&ref);
    return st == OZ_OK ? oz_kl_ctx_choose(&r->ctx, r->k->ctx, len < other ? len : other, err) : st;
}

oz_status oz_cli_kl_modules(const char *ref, const char *model, const oz_cli_kl *k, oz_err *err) {
    run r = {.ref = ref, .model = model, .k = k};
    OZ_NEED(oz_comm_size(oz_cli_comm) == 1, err, OZ_E_USAGE, "--by-module: takes one process, not %d ranks", oz_comm_size(oz_cli_comm));
    OZ_NEED(strcmp(oz_cli_common.quantization, "none") == 0, err, OZ_E_USAGE, "--by-module: takes modules as MODEL stores them; --quantization is of no use there");
    oz_status st = oz_cli_of_model(oz_ckpt_open(&r.other, model, err), model, err);
    if (st == OZ_OK) st = ctx_choose(&r, err);
    if (st == OZ_OK) st = oz_cli_model_open(&r.open[0], ref, &(oz_cli_need){.tok = true, .as_stored = true, .max_tok = r.ctx}, err);
    if (st == OZ_OK) st = oz_kl_modules_list(&r.modules, r.open[0].ckpt, r.other, err);
    if (st == OZ_OK && k->leave_one_out) st = oz_cli_model_open(&r.open[1], model, &(oz_cli_need){.dev = r.open[0].dev, .as_stored = true, .max_tok = r.ctx}, err);
    if (st == OZ_OK) st = measure(&r, err);
    oz_kl_deinit(&r.whole);
    oz_kl_modules_deinit(&r.modules);
    oz_cli_model_close(&r.open[1]);
    oz_cli_model_close(&r.open[0]);
    oz_ckpt_close(&r.other);
    return st;
}
