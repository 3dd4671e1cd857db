/* What the schemes of a budget cost at the outputs of modules: each matrix is rounded under every option, and an error of a weight counts as much as its column
 * of inputs on calibration text says. Rounding to nearest leaves every error where it is: a column counts its inputs' squares (the Hessian's diagonal). GPTQ makes up for errors
 * in the columns that come later: a column counts 1 / U^2, U the diagonal of the factor of the inverse Hessian, which is what an error there costs in the end.
 * Layer by layer: memory has one layer's Hessians, and the residuals of the sequences. */
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { TILE = 16 /* rows a thread takes at once */ };

typedef struct input { const char *modules[OZ_MAX_PARTS_LINEAR]; int n_modules; int64_t n; double *squares; /* [n] */ oz_hessian hessian; } input;

typedef struct job {
    oz_budget *b;
    oz_model *m;
    oz_pool *pool;
    oz_map *items; /* name of a module: its item */
    input *inputs; size_t n_inputs, cap_inputs; /* of the layer */
} job;

static bool is_of_budget(const job *j, const oz_tap *t) {
    int64_t at;
    for (int k = 0; k < t->n_modules; k++)
        if (oz_map_get(j->items, t->modules[k], strlen(t->modules[k]), &at)) return true;
    return false;
}

static oz_status inputs_new(job *j, int layer, oz_err *err) {
    for (size_t i = 0; i < oz_model_tap_count(j->m); i++) {
        const oz_tap t = oz_model_tap_at(j->m, i);
        if (t.kind != OZ_TAP_LINEAR || t.layer != layer || !is_of_budget(j, &t)) continue;
        oz_grow((void **)&j->inputs, &j->cap_inputs, j->n_inputs + 1, sizeof *j->inputs);
        input *in = &j->inputs[j->n_inputs++];
        *in = (input){.n_modules = t.n_modules, .n = t.width, .squares = oz_alloc_array((size_t)t.width, sizeof(double))};
        memcpy(in->modules, t.modules, sizeof t.modules);
        if (j->b->gptq) OZ_TRY(oz_hessian_init(&in->hessian, t.width, NULL, t.modules[0], err));
    }
    return OZ_OK;
}

static void inputs_free(job *j) {
    for (size_t i = 0; i < j->n_inputs; i++) oz_hessian_deinit(&j->inputs[i].hessian), oz_free(j->inputs[i].squares);
    j->n_inputs = 0;
}

static void on_tap(void *arg, const oz_tap *t) {
    job *j = arg;
    for (size_t i = 0; t->kind == OZ_TAP_LINEAR && i < j->n_inputs; i++) {
        input *in = &j->inputs[i];
        if (strcmp(in->modules[0], t->modules[0]) != 0) continue;
        if (j->b->gptq) oz_hessian_add(&in->hessian, j->pool, t->rows, t->ld, t->n_tok);
        for (int64_t r = 0; r < t->n_tok; r++) {
            const float *row = t->rows + r * in->n;
            const double weight = oz_token_weight(row, in->n);
            for (int64_t c = 0; c < in->n; c++) in->squares[c] += weight * (double)row[c] * (double)row[c];
        }
    }
}

/* ---- errors of one matrix ---- */

typedef struct rounding {
    const oz_weight *w;
    const oz_budget_set *set;
    const double *squares, *importance; /* [cols] */
    double *sums;                       /* [rows, OZ_BUDGET_OPTIONS + 1]: of the options, then of the leanest by squares */
    oz_rtn rtn[OZ_BUDGET_OPTIONS];
    float *scratch; int64_t scratch_floats; /* of a thread */
    oz_err *errs;
} rounding;

static double row_error(float *codes, float *scales, const rounding *r, const float *row, int option, double *by_squares, oz_err *err) {
    const int64_t n = r->w->cols, group = r->rtn[option].group_size > 0 ? r->rtn[option].group_size : n, n_groups = (n + group - 1) / group;
    float *zeros = scales + n_groups;
    double sum = 0, squares = 0;
    memset(zeros, 0, (size_t)n_groups * sizeof *zeros);
    if (oz_rtn_numbers(codes, scales, zeros, &r->rtn[option], row, n, err) != OZ_OK) return 0;
    for (int64_t c = 0; c < n; c++) {
        const double e = (double)row[c] - (double)((codes[c] - zeros[c / group]) * scales[c / group]);
        sum += r->importance[c] * e * e, squares += r->squares[c] * e * e;
    }
    *by_squares = squares;
    return sum;
}

static void round_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const rounding *r = arg;
    float *row = r->scratch + thread * r->scratch_floats, *codes = row + r->w->cols, *scales = codes + r->w->cols;
    for (int64_t i = begin; i < end; i++) {
        double *sums = r->sums + i * (OZ_BUDGET_OPTIONS + 1), squares = 0;
        oz_weight_row(row, r->w, i, 0, r->w->cols);
        for (int k = 0; k < r->set->n_options; k++) {
            if (!r->set->options[k].scheme.quantized) continue;
            sums[k] = row_error(codes, scales, r, row, k, &squares, &r->errs[thread]);
            if (k == 0) sums[OZ_BUDGET_OPTIONS] = squares;
            if (r->errs[thread].code != OZ_OK) return (void)oz_err_prefix(&r->errs[thread], "row %lld", (long long)i);
        }
    }
}

static oz_status module_errors(job *j, oz_budget_set *set, const oz_quantize_item *it, const double *squares, const double *importance, oz_err *err) {
    const oz_weight *w = &it->weight;
    const int n_threads = oz_pool_threads(j->pool);
    rounding r = {.w = w, .set = set, .squares = squares, .importance = importance, .scratch_floats = 4 * w->cols};
    for (int k = 0; k < set->n_options; k++) r.rtn[k] = oz_scheme_rtn(&set->options[k].scheme, j->b->q->model_dtype);
    OZ_TRY(oz_big_new((void **)&r.scratch, (size_t)(n_threads * r.scratch_floats) * sizeof(float), it->arch->module, err));
    r.sums = oz_alloc_array((size_t)w->rows * (OZ_BUDGET_OPTIONS + 1), sizeof *r.sums);
    r.errs = oz_alloc_array((size_t)n_threads, sizeof *r.errs);
    oz_pool_run(j->pool, w->rows, TILE, round_rows, &r);
    oz_status st = OZ_OK;
    for (int t = 0; t < n_threads && st == OZ_OK; t++)
        if (r.errs[t].code != OZ_OK) st = oz_err_set(err, r.errs[t].code, __FILE__, __LINE__, "%s: %s (%s)", it->tensor->name, r.errs[t].msg, it->tensor->file_name);
    for (int64_t i = 0; i < w->rows; i++) { /* in their order, whatever the threads */
        const double *sums = r.sums + i * (OZ_BUDGET_OPTIONS + 1);
        for (int k = 0; k < set->n_options; k++) set->options[k].error += sums[k];
        set->least_error += sums[OZ_BUDGET_OPTIONS];
    }
    oz_ckpt_drop(j->b->q->ckpt, it->tensor);
    oz_big_free(r.scratch);
    oz_free(r.sums);
    oz_free(r.errs);
    return st;
}

/* By GPTQ: what its search for scales counts a column. One that the text gives nothing costs nothing. */
static oz_status importance_fill(double *out, job *j, input *in, oz_err *err) {
    memcpy(out, in->squares, (size_t)in->n * sizeof *out);
    if (!j->b->gptq) return OZ_OK;
    oz_factor f = {0};
    OZ_TRY(oz_hessian_close(&in->hessian, in->modules[0], err));
    OZ_TRY(oz_factor_init(&f, &in->hessian, j->b->dampening, j->pool, in->modules[0], err));
    for (int64_t c = 0; c < in->n; c++)
        if (in->squares[c] > 0) out[c] = (double)f.importance[c];
    oz_factor_deinit(&f);
    return OZ_OK;
}

static oz_status input_errors(job *j, input *in, oz_err *err) {
    double sum = 0;
    for (int64_t c = 0; c < in->n; c++) sum += in->squares[c];
    OZ_NEED(isfinite(sum), err, OZ_E_FORMAT, "%s: the calibration text gives activations that are not finite", in->modules[0]);
    if (sum == 0) { /* an expert that no token came to */
        for (int k = 0; k < in->n_modules; k++) json_array_append_new(j->b->starved, json_string(in->modules[k]));
        return OZ_OK;
    }
    double *importance = oz_alloc_array((size_t)in->n, sizeof *importance);
    oz_status st = importance_fill(importance, j, in, err);
    for (int k = 0; st == OZ_OK && k < in->n_modules; k++) {
        int64_t at;
        if (!oz_map_get(j->items, in->modules[k], strlen(in->modules[k]), &at)) continue;
        st = module_errors(j, &j->b->sets[j->b->set_of[at] - 1], &j->b->q->items[at], in->squares, importance, err);
    }
    oz_free(importance);
    return st;
}

/* ---- layers ---- */

typedef struct walk { oz_state *state; float *residual; int32_t *blocks; int64_t hidden, longest; } walk;

/* A layer whose errors are known is walked through alone. */
static oz_status layer_errors(job *j, const walk *w, const oz_calibration *c, int64_t layer, oz_err *err) {
    const bool known = layer < j->b->layers_done;
    if (!known) OZ_TRY(inputs_new(j, (int)layer, err));
    for (int64_t i = 0; i < c->n_seqs; i++) {
        const int64_t n = c->begin[i + 1] - c->begin[i];
        float *rows = w->residual + (c->begin[i] - c->begin[0]) * w->hidden;
        const oz_seg seg = {0, n, 0, w->blocks};
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        OZ_TRY(oz_model_run(j->m, w->state, &(oz_call){.ids = layer ? NULL : c->ids + c->begin[i], .n_tok = n, .segs = &seg, .n_segs = 1, .layer_begin = layer, .layer_end = layer + 1,
                                                       .residual_in = layer ? rows : NULL, .residual_out = rows, .tap = known ? NULL : on_tap, .tap_arg = j}, NULL, err));
    }
    for (size_t i = 0; i < j->n_inputs; i++) OZ_TRY(input_errors(j, &j->inputs[i], err));
    if (known) return OZ_OK;
    j->b->layers_done = layer + 1;
    return oz_budget_save(j->b, err);
}

static oz_status walk_init(walk *w, const job *j, const oz_calibration *c, oz_err *err) {
    w->hidden = oz_model_get(j->m)->hidden_size;
    for (int64_t i = 0; i < c->n_seqs; i++)
        if (c->begin[i + 1] - c->begin[i] > w->longest) w->longest = c->begin[i + 1] - c->begin[i];
    const int64_t n_blocks = (w->longest + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    w->blocks = oz_alloc_array((size_t)n_blocks, sizeof *w->blocks);
    for (int64_t i = 0; i < n_blocks; i++) w->blocks[i] = (int32_t)i;
    OZ_TRY(oz_big_new((void **)&w->residual, (size_t)((c->begin[c->n_seqs] - c->begin[0]) * w->hidden) * sizeof(float), "residuals", err));
    return oz_state_new(&w->state, j->m, n_blocks, 1, err);
}

oz_status oz_budget_errors(oz_budget *b, oz_model *m, const oz_calibration *c, oz_pool *pool, oz_err *err) {
    if (b->layers_done == oz_model_get(m)->n_layers) return OZ_OK;
    OZ_TRY(oz_blas_init(oz_pool_threads(pool), err));
    job j = {.b = b, .m = m, .pool = pool, .items = oz_map_new(b->q->list.n)};
    walk w = {0};
    for (size_t i = 0; i < b->q->list.n; i++)
        if (b->set_of[i]) oz_map_add(j.items, b->q->list.items[i].module, strlen(b->q->list.items[i].module), (int64_t)i);
    json_decref(b->calibration);
    b->calibration = json_pack("{s:s, s:s, s:I, s:I}", "file", c->name, "sha256", c->sha256, "sequences", (json_int_t)c->n_seqs, "tokens", (json_int_t)(c->begin[c->n_seqs] - c->begin[0]));
    oz_status st = walk_init(&w, &j, c, err);
    oz_progress p;
    oz_progress_init(&p, "rounding", "layers", oz_model_get(m)->n_layers);
    for (int64_t i = 0; st == OZ_OK && i < oz_model_get(m)->n_layers; i++) {
        st = layer_errors(&j, &w, c, i, err);
        inputs_free(&j);
        oz_progress_step(&p, i + 1);
    }
    oz_progress_deinit(&p);
    oz_state_free(&w.state);
    oz_big_free(w.residual);
    oz_free(w.blocks);
    oz_free(j.inputs);
    oz_map_free(&j.items);
    return st;
}
