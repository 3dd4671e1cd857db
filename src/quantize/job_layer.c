/* A layer of a job: experts that see too few tokens, scales that move, and from cut to cut what is quantized. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "quantize/job.h"

/* ---- experts that too few tokens reach ---- */

typedef struct route { int64_t top_k; int32_t *experts; /* [longest, top_k] */ } route;

/* All tokens to n experts, at most top_k; others make up the number, and are not looked at. */
static oz_status experts_run(oz_job *j, oz_model *m, oz_job_pass p, const route *r, const int32_t *ids, int64_t n, oz_err *err) {
    memcpy(r->experts, ids, (size_t)n * sizeof *ids);
    for (int32_t id = 0, k = (int32_t)n; k < r->top_k; id++) {
        bool there = false;
        for (int64_t i = 0; i < n; i++) there = there || ids[i] == id;
        if (!there) r->experts[k++] = id;
    }
    for (int64_t i = 1; i < j->longest; i++) memcpy(r->experts + i * r->top_k, r->experts, (size_t)r->top_k * sizeof *r->experts);
    j->sent = ids, j->n_sent = n, p.experts = r->experts;
    oz_status st = oz_job_sequences_run(j, m, &p, err);
    j->n_sent = 0;
    return st;
}

/* Which these are, by a pass that counts. Returns how many. */
static int64_t starved(int32_t *ids, oz_job *j) {
    int64_t n = 0;
    for (size_t i = 0; i < j->n_inputs; i++) {
        oz_job_input *in = &j->inputs[i];
        const oz_arch_tensor *t = in->n_items ? in->items[0]->arch : NULL;
        bool listed = false;
        in->covered = t && t->expert >= 0 && in->n_tok < t->cols, in->n_tok = 0;
        for (int64_t k = 0; k < n; k++) listed = listed || (t && ids[k] == t->expert);
        if (in->covered && !listed) ids[n++] = t->expert;
    }
    return n;
}

/* An expert that fewer tokens would reach than its matrices have columns is shown all of them, some experts a pass, before the others see theirs. */
static oz_status experts_cover(oz_job *j, oz_model *m, int from, int to, oz_err *err) {
    bool any = false;
    oz_arch_info info;
    for (size_t i = 0; i < j->n_inputs; i++) any = any || (j->inputs[i].n_items && j->inputs[i].items[0]->arch->expert >= 0);
    if (!any || !j->q->all_experts) return OZ_OK;
    const oz_job_pass p = {.from = from, .to = to, .tap = true};
    OZ_TRY(oz_arch_info_read(&info, oz_ckpt_config(j->q->ckpt), err));
    j->counting = true;
    oz_status st = oz_job_sequences_run(j, m, &(oz_job_pass){.from = from, .to = to, .tap = true}, err);
    j->counting = false;
    OZ_TRY(st);
    const route r = {info.top_k, oz_alloc_array((size_t)(info.top_k * j->longest), sizeof *r.experts)};
    int32_t *ids = oz_alloc_array((size_t)info.n_experts, sizeof *ids);
    const int64_t n = starved(ids, j);
    for (int64_t i = 0; st == OZ_OK && i < n; i += r.top_k) st = experts_run(j, m, p, &r, ids + i, n - i < r.top_k ? n - i : r.top_k, err);
    oz_free(r.experts);
    oz_free(ids);
    return st;
}

/* ---- scales that move inside the layer ---- */

static const oz_job_input *input_of(const oz_job *j, const oz_quantize_item *it) {
    for (size_t i = 0; i < j->n_inputs; i++)
        for (int k = 0; k < j->inputs[i].n_items; k++)
            if (j->inputs[i].items[k] == it) return &j->inputs[i];
    return NULL;
}

/* A reader that is kept has no error to make up for, and one that no token reached has nothing to say. */
static oz_status fold_run(oz_job *j, const oz_quantize_fold *f, oz_err *err) {
    oz_reader *readers = oz_alloc_array(f->of->n_to, sizeof *readers);
    float *scales = oz_alloc_array((size_t)f->of->n, sizeof *scales);
    json_t *entry = NULL;
    size_t n = 0;
    for (size_t k = 0; k < f->of->n_to; k++) {
        const oz_quantize_item *it = &j->q->items[f->of->to[k]];
        const oz_job_input *in = input_of(j, it);
        if (in && in->sample.n > 0) readers[n++] = (oz_reader){it, &in->sample};
    }
    oz_status st = oz_smooth_choose(scales, &entry, j->q, f, readers, n, j->pool, oz_job_calib_dev(j), err);
    if (st == OZ_OK) oz_fold_apply(j->q, f, scales);
    if (st == OZ_OK && n) oz_job_error_note(j, json_real_value(json_object_get(entry, "after")));
    if (st == OZ_OK) json_array_append_new(json_object_get(j->work.manifest, "folds"), entry);
    oz_free(scales);
    oz_free(readers);
    return st;
}

static oz_status folds_run(oz_job *j, oz_err *err) {
    for (size_t i = 0; i < j->q->n_folds; i++)
        if (j->q->items[j->q->folds[i].of->from].arch->layer == j->layer) OZ_TRY(fold_run(j, &j->q->folds[i], err));
    return OZ_OK;
}

/* Rows that are kept of each input. */
static int64_t rows_kept(const oz_model *m) {
    enum { ROWS = 512, FEWEST = 32, BYTES = 256 << 20 };
    int64_t width = 1;
    for (size_t i = 0; i < oz_model_tap_count(m); i++) width += oz_model_tap_at(m, i).width;
    const int64_t fit = BYTES / (width * (int64_t)sizeof(float));
    return fit > ROWS ? ROWS : fit < FEWEST ? FEWEST : fit;
}

/* The original layer, all of it: what its modules read, before scales move. */
static oz_status survey(oz_job *j, oz_err *err) {
    oz_model *m;
    OZ_TRY(oz_job_model_open(&m, j, j->q->ckpt, OZ_TAP_LINEAR, err));
    const oz_cut all = {.tap0 = 0, .n_taps = oz_model_tap_count(m)};
    oz_status st = oz_job_inputs_new(j, m, &all, rows_kept(m), false, err);
    if (st == OZ_OK) st = experts_cover(j, m, 0, 0, err);
    if (st == OZ_OK) st = oz_job_sequences_run(j, m, &(oz_job_pass){.tap = true}, err);
    oz_model_close(&m);
    return st;
}

/* Norms, biases and routers that folds have changed are written at once: what is quantized reads what they give. */
static oz_status scales_move(oz_job *j, oz_err *err) {
    oz_status st = survey(j, err);
    if (st == OZ_OK) st = folds_run(j, err);
    oz_job_inputs_free(j);
    for (size_t i = 0; st == OZ_OK && i < j->q->list.n; i++) {
        oz_quantize_item *it = &j->q->items[i];
        if (it->moved && it->arch->layer == j->layer && !it->quantized) st = oz_quantize_write_item(j->q, it, &j->stream, err);
    }
    return st;
}

/* What the layer's items held: folded scales, and pages of what they were made of. */
static void items_forget(oz_job *j) {
    for (size_t i = 0; i < j->q->list.n; i++) {
        oz_quantize_item *it = &j->q->items[i];
        if (it->arch->layer != j->layer) continue;
        oz_fold_undo(it);
        if (it->tensor) oz_ckpt_drop(j->q->ckpt, it->tensor);
    }
}

/* ---- from cut to cut ---- */

/* To the next cut where something is to be quantized; 0: none is left. */
static oz_status next_cut(oz_job *j, const oz_model *m, oz_err *err) {
    const int n = oz_model_cut_count(m);
    const int64_t kept = j->q->transform && j->q->transform->clips ? rows_kept(m) : 0;
    while (++j->cut <= n) {
        const oz_cut cut = oz_model_cut_at(m, j->cut);
        OZ_TRY(oz_job_inputs_new(j, m, &cut, kept, true, err));
        if (j->n_inputs) return OZ_OK;
    }
    j->cut = 0;
    return OZ_OK;
}

static oz_status sequences_go_on(oz_job *j, oz_model *m, oz_err *err) {
    OZ_TRY(next_cut(j, m, err));
    if (!j->cut && j->layer + 1 == j->n_layers) return OZ_OK;
    if (j->on_device) OZ_TRY(oz_job_slots_fit(j, m, err));
    const bool waits = oz_job_waits_at(j, m, j->cut);
    if (j->cut) OZ_TRY(experts_cover(j, m, j->waits, j->cut, err));
    OZ_TRY(oz_job_sequences_run(j, m, &(oz_job_pass){.from = j->waits, .to = j->cut, .tap = j->cut > 0, .has_out = waits}, err));
    if (waits) j->waits = j->cut, j->file = !j->file;
    return OZ_OK;
}

/* One cut, or what is left of the layer behind the last. */
static oz_status cut_run(oz_job *j, oz_err *err) {
    oz_ckpt *c;
    oz_model *m = NULL;
    OZ_TRY(oz_ckpt_open(&c, j->work.out, err));
    oz_status st = oz_job_model_open(&m, j, c, OZ_TAP_LINEAR | (j->q->kv.quantized ? OZ_TAP_KV : 0), err);
    if (st == OZ_OK) st = sequences_go_on(j, m, err);
    oz_model_close(&m);
    oz_ckpt_close(&c);
    for (size_t i = 0; st == OZ_OK && i < j->n_inputs; i++) st = oz_job_input_quantize(j, &j->inputs[i], err);
    oz_job_inputs_free(j);
    return st;
}

/* The next layer's inputs get their name. */
static oz_status residual_take(const oz_job *j, oz_err *err) {
    if (j->layer + 1 == j->n_layers || j->on_device) return OZ_OK;
    oz_status st = OZ_OK;
    char *from = oz_job_residual_path(j, j->layer + 1, ".new"), *to = oz_job_residual_path(j, j->layer + 1, "");
    if (rename(from, to) != 0) st = oz_err_set(err, OZ_E_IO, __FILE__, __LINE__, "%s: cannot rename to it: %s", to, strerror(errno));
    oz_free(from);
    oz_free(to);
    return st;
}

oz_status oz_job_layer_run(oz_job *j, int64_t layer, oz_err *err) {
    oz_status st = OZ_OK;
    j->layer = layer, j->cut = j->waits = 0;
    if (j->q->transform) st = scales_move(j, err);
    do st = st == OZ_OK ? cut_run(j, err) : st;
    while (st == OZ_OK && j->cut);
    items_forget(j);
    OZ_TRY(st);
    oz_coverage_tell(j->work.manifest, layer, j->cfg->calibration->begin[j->cfg->calibration->n_seqs]);
    OZ_TRY(oz_writer_sync(j->writer, err));
    OZ_TRY(residual_take(j, err));
    char done[65];
    OZ_TRY(oz_job_digest(done, j, layer, err));
    json_array_append_new(json_object_get(j->work.manifest, "layers"), json_string(done));
    j->work.layers_done = layer + 1;
    OZ_TRY(oz_work_save(&j->work, err));
    char *spent = oz_job_residual_path(j, layer, "");
    unlink(spent);
    oz_free(spent);
    return OZ_OK;
}

/* All sequences through a layer that is made. */
oz_status oz_job_layer_replay(oz_job *j, int64_t layer, oz_err *err) {
    oz_ckpt *c;
    oz_model *m = NULL;
    j->layer = layer;
    OZ_TRY(oz_ckpt_open(&c, j->work.out, err));
    for (size_t i = 0; i < j->q->list.n; i++) j->q->items[i].made = j->q->items[i].made || j->q->items[i].arch->layer == layer;
    if (oz_job_cache_of(j, layer)) j->q->caches[layer].made = true;
    oz_status st = oz_job_model_open(&m, j, c, OZ_TAP_LINEAR, err);
    if (st == OZ_OK) st = oz_job_sequences_run(j, m, &(oz_job_pass){.has_out = true}, err);
    oz_model_close(&m);
    oz_ckpt_close(&c);
    return st;
}
