/* ounce kl REF MODEL --by-module: what each module of MODEL does to REF by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/progress.h"
#include "cli/kl.h"

enum { DEFAULT_CTX = 1024 };

static int by_harm(const void *pa, const void *pb) {
    const oz_kl_module *a = pa, *b = pb;
    if (a->mean_kl != b->mean_kl) return a->mean_kl > b->mean_kl ? -1 : 1;
    return strcmp(a->name, b->name);
}

static void report(const char *ref, const char *model, const oz_kl_modules *m, int64_t windows) {
    double sum = 0;
    for (size_t i = 0; i < m->n; i++) sum += m->items[i].mean_kl;
    json_t *list = json_array();
    if (!oz_cli_common.json) {
        printf("%s, one module at a time out of %s; positions: %lld, windows: %lld\n", ref, model, (long long)m->items[0].positions, (long long)windows);
        printf("%12s %12s %9s %12s  %-12s module\n", "mean KL", "over windows", "share, %", "bytes", "scheme");
    }
    for (size_t i = 0; i < m->n; i++) {
        const oz_kl_module *x = &m->items[i];
        if (!oz_cli_common.json) {
            printf("%12.4g %12.2g %9.3f %12zu  %-12s %s\n", x->mean_kl, x->kl_se_windows, sum > 0 ? 100 * x->mean_kl / sum : 0, x->bytes, x->scheme, x->name);
            continue;
        }
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "module", oz_json_text(x->name), "role", x->role, "layer", x->layer < 0 ? json_null() : json_integer(x->layer),
                                              "scheme", x->scheme, "matrices", (json_int_t)x->n_modules, "bytes", (json_int_t)x->bytes, "mean_kl", x->mean_kl, "kl_se_windows", x->kl_se_windows,
                                              "kl_max", x->kl_max, "top1_agreement", x->top1_agreement));
    }
    if (!oz_cli_common.json) printf("%12.4g  of all together, if they did not touch each other\n", sum);
    else oz_cli_json_print(json_pack("[{s:o, s:I, s:I, s:f, s:o}]", "model", oz_json_text(model), "positions", (json_int_t)m->items[0].positions, "windows", (json_int_t)windows, "sum_kl", sum, "modules", json_incref(list)));
    json_decref(list);
}

/* Windows of ctx tokens without overlap, the shorter rest left out unless it is all there is. */
static oz_status windows_cut(int64_t **begin, int64_t *n_windows, const oz_ids *ids, const oz_cli_kl *k, int64_t max_len, oz_err *err) {
    const int64_t n = k->limit > 0 && (int64_t)ids->len > k->limit ? k->limit : (int64_t)ids->len, wanted = k->ctx ? k->ctx : max_len < DEFAULT_CTX ? max_len : DEFAULT_CTX;
    OZ_NEED(wanted <= max_len, err, OZ_E_ARG, "--ctx %lld: must be 2..%lld, the model's length", (long long)wanted, (long long)max_len);
    OZ_NEED(n >= 2, err, OZ_E_ARG, "the text has %lld tokens: at least 2 are needed", (long long)n);
    const int64_t ctx = n < wanted ? n : wanted;
    OZ_NEED(!k->half || ctx - 1 > ctx / 2, err, OZ_E_ARG, "a window of %lld tokens scores no position", (long long)ctx);
    if (ctx < wanted) oz_log_warn("the text has %lld tokens, less than --ctx %lld: one window of %lld", (long long)n, (long long)wanted, (long long)ctx);
    *n_windows = n / ctx;
    *begin = oz_alloc_array((size_t)*n_windows + 1, sizeof **begin);
    for (int64_t i = 0; i <= *n_windows; i++) (*begin)[i] = i * ctx;
    return OZ_OK;
}

static oz_status measure(oz_kl_modules *m, const oz_cli_model *open, const oz_ckpt *other, const char *ref, const char *model, const oz_cli_kl *k, oz_err *err) {
    oz_ids ids = {0};
    int64_t *begin = NULL, n_windows = 0;
    oz_status st = oz_cli_text_ids(&ids, open->tok, k->text_path, false, err);
    if (st == OZ_OK) st = windows_cut(&begin, &n_windows, &ids, k, oz_model_get(open->model)->max_len, err);
    if (st == OZ_OK)
        st = oz_kl_modules_run(m->items, m->n, open->model, &(oz_kl_modules_cfg){.dev = open->dev, .ref = open->ckpt, .other = other, .dtype = oz_cli_common.dtype, .name = ref,
                                                                                .max_len = oz_cli_common.max_len, .ids = ids.data, .begin = begin, .n_windows = n_windows, .half = k->half}, err);
    if (st == OZ_OK) {
        qsort(m->items, m->n, sizeof *m->items, by_harm);
        report(ref, model, m, n_windows);
    }
    oz_free(begin);
    oz_free(ids.data);
    return st;
}

oz_status oz_cli_kl_modules(const char *ref, const char *model, const oz_cli_kl *k, oz_err *err) {
    oz_kl_modules m = {0};
    oz_cli_model open = {0};
    oz_ckpt *other = NULL;
    OZ_NEED(oz_comm_size(oz_cli_comm) == 1, err, OZ_E_USAGE, "--by-module: takes one process, not %d ranks", oz_comm_size(oz_cli_comm));
    OZ_NEED(strcmp(oz_cli_common.quantization, "none") == 0, err, OZ_E_USAGE, "--by-module: takes modules as MODEL stores them; --quantization is of no use there");
    oz_status st = oz_cli_of_model(oz_ckpt_open(&other, model, err), model, err);
    if (st == OZ_OK) st = oz_cli_model_open(&open, ref, &(oz_cli_need){.tok = true, .as_stored = true, .max_tok = k->ctx ? k->ctx : DEFAULT_CTX}, err);
    if (st == OZ_OK) st = oz_kl_modules_list(&m, open.ckpt, other, err);
    if (st == OZ_OK) st = measure(&m, &open, other, ref, model, k, err);
    oz_kl_modules_deinit(&m);
    oz_cli_model_close(&open);
    oz_ckpt_close(&other);
    return st;
}
