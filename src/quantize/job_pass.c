/* Calibration sequences through a part of a layer, and where they wait: files, or a device's memory. */
#include <inttypes.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "quantize/job.h"

typedef struct pass {
    const oz_job_pass *is;
    oz_job *j; oz_model *m; oz_state *state;
    bool has_in;
    char *x, *y;               /* a sequence's, from the files */
    int32_t *blocks;
    oz_rows_file in, out; size_t in_at, out_at;
    oz_sum written;
} pass;

static bool is_sent(const oz_job *j, const oz_job_input *in) {
    for (int64_t i = 0; i < j->n_sent; i++)
        if (in->n_items && in->items[0]->arch->expert == j->sent[i]) return true;
    return false;
}

static void input_add(oz_job *j, oz_job_input *in, const oz_tap *t) {
    if (!j->n_sent) in->n_tok += t->n_tok;
    if (j->counting || (j->n_sent ? !in->covered || !is_sent(j, in) : in->covered)) return;
    if (in->gptq) oz_hessian_add(&in->hessian, j->pool, t->rows, t->ld, t->n_tok);
    if (in->sampled) oz_sample_add(&in->sample, t->rows, t->ld, t->n_tok);
}

static bool is_of(const oz_job_input *in, const oz_tap *t) {
    if (in->cache || t->kind == OZ_TAP_KV) return in->cache && t->kind == OZ_TAP_KV;
    for (int k = 0; k < t->n_modules; k++)
        if (strcmp(in->items[0]->arch->module, t->modules[k]) == 0) return true;
    return false;
}

static void on_tap(void *arg, const oz_tap *t) {
    oz_job *j = arg;
    for (size_t i = 0; i < j->n_inputs; i++)
        if (is_of(&j->inputs[i], t)) input_add(j, &j->inputs[i], t);
}

static size_t live_bytes(const oz_job *j, const oz_model *m, int cut, int64_t n_tok) { return cut ? oz_model_live_bytes(m, cut, n_tok) : (size_t)(n_tok * j->hidden_size) * sizeof(float); }

static oz_status sequence_run(pass *p, int64_t i, oz_err *err) {
    oz_job *j = p->j;
    const oz_calibration *c = j->cfg->calibration;
    const int64_t n = c->begin[i + 1] - c->begin[i];
    const size_t n_in = live_bytes(j, p->m, p->is->from, n), n_out = live_bytes(j, p->m, p->is->to, n);
    char *x = p->x, *y = p->y;
    if (j->on_device) x = y = j->slots + (size_t)i * j->slot_bytes;
    else if (p->has_in) OZ_TRY(oz_rows_read(&p->in, x, p->in_at, n_in, err));
    const oz_seg seg = {0, n, 0, p->blocks};
    const oz_call call = {.ids = p->has_in ? NULL : c->ids + c->begin[i], .n_tok = n, .segs = &seg, .n_segs = 1, .layer_begin = j->layer, .layer_end = j->layer + 1, .cut_begin = p->is->from, .cut_end = p->is->to,
                          .residual_in = p->has_in && !p->is->from ? (float *)x : NULL, .residual_out = p->is->has_out && !p->is->to ? (float *)y : NULL, .live_in = p->is->from ? x : NULL,
                          .live_out = p->is->has_out && p->is->to ? y : NULL, .on_device = j->on_device, .tap = p->is->tap ? on_tap : NULL, .tap_arg = j, .experts = p->is->experts};
    OZ_TRY(oz_model_run(p->m, p->state, &call, NULL, err));
    if (p->is->has_out && !j->on_device) OZ_TRY(oz_rows_write(&p->out, y, p->out_at, n_out, err));
    if (p->is->has_out && !p->is->to && !j->on_device) oz_sum_add(&p->written, y, n_out);
    p->in_at += n_in, p->out_at += n_out;
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

/* Where sequences wait at a cut: in two files by turns, which are kept for the next layer. */
static char *cut_path(const oz_job *j, int file) { return oz_work_path(&j->work, file ? "cut-1" : "cut-0"); }

/* Slots for what is handed over between layers, and at the cuts where it takes no more than `ROOM` of what the device has left; sequences do not wait at the others. */
oz_status oz_job_slots_fit(oz_job *j, const oz_model *m, oz_err *err) {
    static const double ROOM = 0.75; /* a layer's Hessians, factors and tiles take the rest */
    const oz_ops *ops = oz_dev_ops(j->cfg->dev);
    const size_t n = (size_t)j->cfg->calibration->n_seqs, room = ops->calib->room(j->cfg->dev) + n * j->slot_bytes, at_most = (size_t)(ROOM * (double)room) / n;
    size_t slot = live_bytes(j, m, 0, j->longest), largest = slot, total;
    void *slots;
    for (int cut = oz_model_cut_count(m); cut > 0; cut--) {
        const size_t n_bytes = live_bytes(j, m, cut, j->longest);
        largest = n_bytes > largest ? n_bytes : largest, slot = n_bytes > slot && n_bytes <= at_most ? n_bytes : slot;
    }
    if (slot <= j->slot_bytes) return OZ_OK;
    OZ_NEED(oz_mul_size(&total, n, slot), err, OZ_E_NOMEM, "%zu calibration sequences of %zu bytes each: too large", n, slot);
    if (ops->mem_new(&slots, j->cfg->dev, total, "calibration sequences", err) != OZ_OK) {
        oz_err_prefix(err, "%zu sequences of up to %" PRId64 " tokens wait on the device (fewer: --num-calibration-samples; --device cpu keeps them in files)", n, j->longest);
        if (live_bytes(j, m, 0, j->longest) > j->slot_bytes) return OZ_E_NOMEM;
        oz_err_clear(err); /* slots of an earlier layer do */
        return OZ_OK;
    }
    if (largest > slot)
        oz_log_info("the calibration sequences inside a layer take up to %.1f GB, more than the device has to spare: where they do not fit they run again from the products before (fewer: --num-calibration-samples)", 1e-9 * (double)n * (double)largest);
    for (size_t i = 0; i < n && j->slots; i++) ops->copy(j->cfg->dev, (char *)slots + i * slot, j->slots + i * j->slot_bytes, j->slot_bytes);
    ops->mem_free(j->cfg->dev, j->slots);
    j->slots = slots, j->slot_bytes = slot;
    return OZ_OK;
}

/* Whether sequences go on from a cut, or from where they wait already: nothing is done before it, or a device has no room for what it hands over. */
bool oz_job_waits_at(const oz_job *j, const oz_model *m, int cut) {
    if (cut && oz_model_cut_at(m, cut).is_start) return false;
    return !j->on_device || live_bytes(j, m, cut, j->longest) <= j->slot_bytes;
}

static oz_status pass_open(pass *p, oz_err *err) {
    oz_job *j = p->j;
    const int64_t n_blocks = (j->longest + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    OZ_TRY(oz_state_new(&p->state, p->m, n_blocks, 1, err));
    p->blocks = oz_alloc_array((size_t)n_blocks, sizeof *p->blocks);
    for (int64_t i = 0; i < n_blocks; i++) p->blocks[i] = (int32_t)i;
    p->has_in = j->layer > 0 || p->is->from;
    if (j->on_device) return oz_job_slots_fit(j, p->m, err);
    OZ_TRY(oz_big_new((void **)&p->x, live_bytes(j, p->m, p->is->from, j->longest), "activations", err));
    OZ_TRY(oz_big_new((void **)&p->y, live_bytes(j, p->m, p->is->to, j->longest), "activations", err));
    if (p->has_in) OZ_TRY(oz_rows_open(&p->in, p->is->from ? cut_path(j, j->file) : oz_job_residual_path(j, j->layer, ""), false, err));
    return p->is->has_out ? oz_rows_open(&p->out, p->is->to ? cut_path(j, !j->file) : oz_job_residual_path(j, j->layer + 1, ".new"), true, err) : OZ_OK;
}

static void pass_close(pass *p) {
    oz_rows_close(&p->in);
    oz_rows_close(&p->out);
    oz_big_free(p->x);
    oz_big_free(p->y);
    oz_free(p->blocks);
    oz_state_free(&p->state);
}

oz_status oz_job_sequences_run(oz_job *j, oz_model *m, const oz_job_pass *is, oz_err *err) {
    char sum[65];
    pass p = {.is = is, .j = j, .m = m};
    oz_status st = pass_open(&p, err);
    for (int64_t i = 0; st == OZ_OK && i < j->cfg->calibration->n_seqs; i++) st = sequence_run(&p, i, err);
    for (size_t i = 0; i < j->n_inputs; i++)
        if (is->tap && j->inputs[i].sampled) oz_sample_close(&j->inputs[i].sample);
    const bool keeps = is->has_out && !is->to && !j->on_device;
    if (st == OZ_OK && keeps) st = oz_rows_sync(&p.out, err);
    if (st == OZ_OK && keeps) {
        oz_sum_hex(sum, &p.written);
        json_object_set_new(j->work.manifest, "residual", json_string(sum));
    }
    pass_close(&p);
    return st;
}
