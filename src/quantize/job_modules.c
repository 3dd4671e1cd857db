/* What the modules of a layer read, and their quantizing by it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/job.h"

oz_dev *oz_job_calib_dev(const oz_job *j) { return j->on_device ? j->cfg->dev : NULL; }

/* layer -1: of any. */
static oz_quantize_item *item_of(const oz_job *j, int64_t layer, const char *module) {
    for (size_t i = 0; i < j->q->list.n; i++) {
        oz_quantize_item *it = &j->q->items[i];
        if (it->quantized && (layer < 0 || it->arch->layer == layer) && strcmp(it->arch->module, module) == 0) return it;
    }
    return NULL;
}

/* Modules that are still to be made are needed by nothing that is run. */
static bool is_pending(void *arg, const char *module) {
    const oz_job *j = arg;
    const oz_quantize_item *it = item_of(j, j->layer, module);
    const oz_cache *cache = oz_job_cache_of(j, j->layer);
    return it ? !it->made : cache && !cache->made && strcmp(cache->module, module) == 0;
}

oz_status oz_job_model_open(oz_model **m, oz_job *j, const oz_ckpt *c, unsigned taps, oz_err *err) {
    return oz_model_open(m, j->cfg->dev, c, &(oz_model_cfg){.dtype = "auto", .max_tok = j->longest, .taps = taps, .layer_begin = j->layer, .layer_end = j->layer + 1, .need_len = j->longest,
                                                            .pending = is_pending, .pending_arg = j}, err);
}

/* Of a tap, as far as modules that are quantized read it. kept: rows of the sample; hessians: where GPTQ needs them. */
static oz_status input_new(oz_job *j, const oz_tap *t, int64_t kept, bool hessians, oz_err *err) {
    oz_job_input in = {.n_items = 0};
    for (int k = 0; k < t->n_modules; k++)
        if ((in.items[in.n_items] = item_of(j, j->layer, t->modules[k]))) in.n_items++;
    for (int k = 0; k < in.n_items; k++) in.gptq = in.gptq || (in.items[k]->gptq && hessians), in.sampled = in.sampled || in.items[k]->scheme.static_input || (in.items[k]->imatrix && hessians);
    in.sampled = in.sampled || (kept > 0 && !in.gptq);
    if (!in.n_items) return OZ_OK;
    oz_grow((void **)&j->inputs, &j->cap_inputs, j->n_inputs + 1, sizeof *j->inputs);
    oz_job_input *put = &j->inputs[j->n_inputs++];
    *put = in;
    if (in.gptq) OZ_TRY(oz_hessian_init(&put->hessian, t->width, oz_job_calib_dev(j), t->modules[0], err));
    return in.sampled ? oz_sample_init(&put->sample, t->width, kept, oz_job_calib_dev(j), t->modules[0], err) : OZ_OK;
}

/* Keys and values: what reads them is the cache. */
static oz_status cache_new(oz_job *j, const oz_tap *t, oz_err *err) {
    oz_grow((void **)&j->inputs, &j->cap_inputs, j->n_inputs + 1, sizeof *j->inputs);
    oz_job_input *put = &j->inputs[j->n_inputs++];
    *put = (oz_job_input){.sampled = true, .cache = true};
    return oz_sample_init(&put->sample, t->width, 0, oz_job_calib_dev(j), t->modules[0], err);
}

oz_status oz_job_inputs_new(oz_job *j, const oz_model *m, const oz_cut *cut, int64_t kept, bool hessians, oz_err *err) {
    for (size_t i = cut->tap0; i < cut->tap0 + cut->n_taps; i++) {
        const oz_tap t = oz_model_tap_at(m, i);
        OZ_TRY(t.kind == OZ_TAP_KV ? cache_new(j, &t, err) : input_new(j, &t, kept, hessians, err));
    }
    return OZ_OK;
}

void oz_job_inputs_free(oz_job *j) {
    for (size_t i = 0; i < j->n_inputs; i++) oz_hessian_deinit(&j->inputs[i].hessian), oz_sample_deinit(&j->inputs[i].sample);
    j->n_inputs = 0;
}

/* What was chosen, row by row, as the numbers that the writer takes. */
typedef struct chosen { const oz_gptq *g; const oz_gptq_result *r; } chosen;

static oz_status chosen_band(void *arg, const oz_band *b, oz_err *err) {
    const chosen *c = arg;
    const int64_t cols = c->g->weight->cols, n = c->g->rtn.group_size > 0 ? (cols + c->g->rtn.group_size - 1) / c->g->rtn.group_size : 1;
    const oz_weight w = {.codec = c->g->rtn.codec, .rows = c->g->weight->rows, .cols = cols, .codes = c->r->codes, .row_bytes = c->r->code_row_bytes};
    oz_weight_codes(b->codes, &w, b->row0, 0, cols);
    oz_to_f32(b->scales, c->g->rtn.scale_dtype, (const uint8_t *)c->r->scales + b->row0 * c->r->scale_row_bytes, n);
    for (int64_t i = 0; i < n && c->r->zeros; i++) b->zeros[i] = c->r->zeros[b->row0 * n + i];
    return OZ_OK;
}

/* The last error, for the progress line. */
void oz_job_error_note(oz_job *j, double error) { oz_progress_note(&j->stream.progress, "layer %" PRId64 " of %" PRId64 ", error %.2g", j->layer + 1, j->n_layers, error); }

/* What became of a module on the tokens that reached it; returns its entry in the report, which is borrowed. */
static json_t *errors_note(oz_job *j, const oz_quantize_item *it, const char *what, const char *of, int64_t n_tok, double before, double after) {
    const oz_arch_tensor *t = it->arch;
    const bool measured = isfinite(before) && isfinite(after);
    if (measured && it->gptq && n_tok < t->cols) oz_log_info("%s: %s %.4g, of %s %.4g, on %" PRId64 " tokens for %" PRId64 " columns", t->module, what, after, of, before, n_tok, t->cols);
    else if (measured) oz_log_info("%s: %s %.4g, of %s %.4g", t->module, what, after, of, before);
    else oz_log_info("%s: the calibration text gives it no input: each weight is rounded by itself", t->module);
    json_t *entry = json_pack("{s:s, s:I, s:n, s:n, s:n}", "module", t->module, "tokens", (json_int_t)n_tok, "before", "after", "dampening");
    if (measured) json_object_set_new(entry, "before", json_real(before)), json_object_set_new(entry, "after", json_real(after)), oz_job_error_note(j, after);
    json_array_append_new(json_object_get(j->work.manifest, "modules"), entry);
    return entry;
}

static oz_status module_write(oz_job *j, const oz_quantize_item *it, const oz_gptq *g, oz_gptq_result *r, oz_err *err) {
    const oz_arch_tensor *t = it->arch;
    const int64_t n_groups = g->rtn.group_size > 0 ? (t->cols + g->rtn.group_size - 1) / g->rtn.group_size : 1;
    r->code_row_bytes = oz_codec_row_bytes(g->rtn.codec, t->cols);
    r->scale_row_bytes = n_groups * oz_dtype_get(g->rtn.scale_dtype)->block_bytes;
    OZ_TRY(oz_big_new(&r->codes, (size_t)(t->rows * r->code_row_bytes), t->module, err));
    OZ_TRY(oz_big_new(&r->scales, (size_t)(t->rows * r->scale_row_bytes), t->module, err));
    if (g->rtn.asymmetric) OZ_TRY(oz_big_new((void **)&r->zeros, (size_t)(t->rows * n_groups), t->module, err));
    OZ_TRY(oz_gptq_run(r, g, j->pool, t->module, err));
    const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
    const oz_made made = {.band = chosen_band, .arg = &(chosen){g, r}, .input_scale = it->input_scale, .input_zero = it->input_zero};
    OZ_TRY(oz_stream_made(&j->stream, &m, &it->scheme, j->q->model_dtype, &made, err));
    json_object_set_new(errors_note(j, it, "output error", "rounding to nearest", g->hessian->n_rows, r->before, r->after), "dampening", json_real(g->factor->dampening));
    return OZ_OK;
}

static oz_status item_gptq(oz_job *j, const oz_quantize_item *it, const oz_job_input *in, const oz_factor *f, oz_err *err) {
    oz_gptq_result r = {0};
    oz_weight w;
    void *mem;
    oz_gptq g = {&in->hessian, f, &w, oz_scheme_rtn(&it->scheme, j->q->model_dtype), OZ_GPTQ_PASSES, NULL, 0};
    float *shared = NULL;
    oz_status st = oz_item_weight(&w, &mem, it, j->pool, err);
    if (st == OZ_OK) st = oz_gptq_share(&shared, &g, &it->scheme, it->arch->module, err);
    if (st == OZ_OK) st = module_write(j, it, &g, &r, err);
    oz_big_free(shared);
    oz_big_free(mem);
    oz_big_free(r.codes);
    oz_big_free(r.scales);
    oz_big_free(r.zeros);
    oz_ckpt_drop(j->q->ckpt, it->tensor);
    return st;
}

/* One scale for what the text shows. Experts of a projection have it in common, since a token may come to any of them. */
static oz_status input_scale(oz_quantize_item *it, const oz_job *j, const oz_job_input *own, oz_err *err) {
    oz_reader *readers = oz_alloc_array(j->n_inputs + 1, sizeof *readers);
    oz_quantize_item as = *it;
    size_t n = 0;
    float zero = 0;
    as.cols_by = NULL; /* what was seen came through the folds */
    readers[n++] = (oz_reader){&as, &own->sample};
    for (size_t i = 0; i < j->n_inputs && it->arch->expert >= 0; i++)
        if (&j->inputs[i] != own && !j->inputs[i].cache && j->inputs[i].items[0]->arch->role == own->items[0]->arch->role) readers[n++] = (oz_reader){&as, &j->inputs[i].sample};
    oz_status st = oz_input_scale(&it->input_scale, &zero, readers, n, j->q->model_dtype, err);
    it->input_zero = (int8_t)zero;
    oz_free(readers);
    return st;
}

static oz_status input_factor(oz_factor *f, oz_job *j, oz_job_input *in, oz_err *err) {
    const char *what = in->items[0]->arch->module;
    OZ_TRY(oz_hessian_close(&in->hessian, what, err));
    OZ_TRY(oz_factor_init(f, &in->hessian, j->q->dampening, j->pool, what, err));
    if (f->dampening > j->q->dampening) oz_log_warn("%s: dampening raised from %g to %g of the mean diagonal, to make its Hessian positive definite", what, j->q->dampening, f->dampening);
    return OZ_OK;
}

/* To nearest, under scales that are searched by what the columns' inputs are. */
static oz_status item_weigh(oz_job *j, const oz_quantize_item *it, const oz_job_input *in, oz_err *err) {
    oz_imatrix_error e;
    OZ_TRY(oz_imatrix_write(&e, &j->stream, &(oz_reader){it, &in->sample}, j->q->model_dtype, err));
    errors_note(j, it, "error by importance", "rounding to nearest", in->n_tok, e.before, e.after);
    oz_ckpt_drop(j->q->ckpt, it->tensor);
    return OZ_OK;
}

/* To nearest; clipped, where the method does that and some token reached it. */
static oz_status item_round(oz_job *j, oz_quantize_item *it, const oz_job_input *in, oz_err *err) {
    if (it->imatrix) return item_weigh(j, it, in, err);
    const bool clips = j->q->transform && j->q->transform->clips && oz_clip_fits(&it->scheme) && in->sample.n > 0;
    oz_clip_result r;
    if (!clips) return oz_quantize_write_item(j->q, it, &j->stream, err);
    OZ_TRY(oz_clip_write(&r, &j->stream, &(oz_reader){it, &in->sample}, j->q->model_dtype, oz_job_calib_dev(j), err));
    errors_note(j, it, "output error", "whole ranges", in->n_tok, r.before, r.after);
    return OZ_OK;
}

oz_status oz_job_input_quantize(oz_job *j, oz_job_input *in, oz_err *err) {
    oz_factor f = {0};
    if (in->cache) return oz_cache_write(j->q, j->layer, &in->sample, j->writer, err);
    oz_coverage_note(j->work.manifest, in->items[0]->arch, in->n_tok, in->covered);
    if (in->gptq) OZ_TRY(input_factor(&f, j, in, err));
    oz_status st = OZ_OK;
    for (int k = 0; st == OZ_OK && k < in->n_items; k++) {
        oz_quantize_item *it = in->items[k];
        if (it->scheme.static_input) st = input_scale(it, j, in, err);
        if (st == OZ_OK) st = it->gptq ? item_gptq(j, it, in, &f, err) : item_round(j, it, in, err);
        it->made = st == OZ_OK;
    }
    oz_factor_deinit(&f);
    return st;
}
