/* A whole checkpoint with calibration text, layer by layer, and in a layer by what its linear modules read, in the order of the forward pass:
 *   1. all calibration sequences run up to there, through what is made so far; taps sum up what the modules read: Hessians for GPTQ, the range for a static scale;
 *   2. the modules are quantized, by GPTQ or to the nearest, and written to their places in the new checkpoint;
 *   3. the layer is loaded again from there, by the reader that will read it in use, and the sequences go on from where they stopped (model/cut.c).
 * So every product of the model is computed once, and each module is fitted to what it will read. The forward pass is the model's own; nothing here knows a layer from the inside.
 * On the host sequences wait in files: after each layer the state on disk is all there is. A device that calibrates by itself (oz_ops.calib) keeps them in its memory, a slot each; what is
 * on disk is then the checkpoint so far, and work that is taken up sends all sequences through it again. Where its memory does not hold what is handed over within a layer, products of
 * the layer are computed again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "quantize/blas.h"
#include "quantize/job.h"

/* ---- checks ---- */

/* Fewer tokens than columns leave a Hessian singular, and scales that are chosen by few rows: the result then fits the text and little else. One line for all of a kind. */
static void check_columns(const oz_job *j, int64_t n_tok) {
    bool seen[OZ_ROLE_COUNT] = {false};
    oz_buf kinds = {0};
    for (size_t i = 0; i < j->q->list.n; i++) {
        const oz_arch_tensor *t = &j->q->list.items[i];
        if (!oz_is_fitted(j->q, &j->q->items[i]) || t->cols <= n_tok || seen[t->role]) continue;
        seen[t->role] = true;
        oz_buf_printf(&kinds, "%s%s (%" PRId64 ")", kinds.len ? ", " : "", oz_role_name(t->role), t->cols);
    }
    if (kinds.len)
        oz_log_warn("%s: %" PRId64 " tokens, fewer than the columns of %s: the result fits this text and may be worse on other; take more (--num-calibration-samples, --max-seq-length)",
                    j->cfg->calibration->name, n_tok, kinds.data);
    oz_buf_deinit(&kinds);
}

static oz_status check(oz_job *j, oz_err *err) {
    const oz_quantize *q = j->q;
    const oz_calibration *c = j->cfg->calibration;
    int64_t vocab_size = 0, max_len;
    bool fits = q->kv.quantized;
    for (size_t i = 0; i < q->list.n; i++) fits = fits || oz_is_fitted(q, &q->items[i]);
    OZ_TRY(oz_arch_max_len(&max_len, oz_ckpt_config(q->ckpt), err));
    for (size_t i = 0; i < q->list.n; i++) {
        const oz_arch_tensor *t = &q->list.items[i];
        if (t->role == OZ_ROLE_EMBED) vocab_size = t->rows, j->hidden_size = t->cols;
        if (fits && t->layer >= j->n_layers) j->n_layers = t->layer + 1;
    }
    for (int64_t i = 0; i < c->n_seqs; i++)
        if (c->begin[i + 1] - c->begin[i] > j->longest) j->longest = c->begin[i + 1] - c->begin[i];
    for (int64_t i = 0, seq = 0; i < c->begin[c->n_seqs]; i++) {
        seq += i == c->begin[seq + 1];
        OZ_NEED(c->ids[i] < vocab_size, err, OZ_E_FORMAT, "%s: sequence %" PRId64 ": token id %d: must be below the model's vocab_size %" PRId64, c->name, seq + 1, c->ids[i], vocab_size);
    }
    OZ_NEED(max_len >= j->longest, err, OZ_E_ARG, "--max-seq-length: the model takes %" PRId64 " tokens, and the calibration has sequences of %" PRId64, max_len, j->longest);
    check_columns(j, c->begin[c->n_seqs]);
    return OZ_OK;
}

/* What is written must be run here, for the inputs of the next layer. */
static oz_status check_kernels(const oz_job *j, oz_err *err) {
    for (size_t i = 0; i < j->q->list.n; i++) {
        const oz_arch_tensor *t = &j->q->list.items[i];
        const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
        if (j->n_layers && j->q->items[i].quantized) OZ_TRY(oz_scheme_runs(j->cfg->dev, &m, &j->q->items[i].scheme, err));
    }
    return OZ_OK;
}

oz_status oz_quantize_text_check(oz_quantize *q, const oz_calibration *calibration, oz_err *err) {
    const oz_quantize_text_cfg cfg = {.calibration = calibration};
    oz_job j = {.q = q, .cfg = &cfg};
    return check(&j, err);
}

/* ---- the whole ---- */

/* Bytes of the items that wait for a layer, from some layer on, or of those that do not. */
static int64_t bytes_of(const oz_job *j, bool waits, int64_t layer) {
    int64_t n = 0;
    for (size_t i = 0; i < j->q->n_items; i++) {
        const int64_t of = oz_job_layer_of(j, &j->q->items[i]);
        if (waits ? of >= layer : of < 0) n += (int64_t)j->q->items[i].bytes;
    }
    return n;
}

/* What --resume finds must be what the manifest speaks of, and is left as it is otherwise. Where no layer is done yet, little is lost by beginning anew. */
static oz_status take_up(oz_job *j, oz_err *err) {
    oz_err bad = {0};
    oz_status st = oz_job_out_take_up(j, &bad);
    if (st == OZ_OK || st == OZ_E_INTERRUPTED) return st;
    oz_writer_close(&j->writer);
    if (j->work.layers_done > 0) {
        oz_err_set(err, st, __FILE__, __LINE__, "%s cannot be taken up, remove it to begin anew: %s", j->work.dir, bad.msg);
        oz_work_close(&j->work);
        return st;
    }
    oz_log_warn("%s: begins anew: %s", j->work.dir, bad.msg);
    return oz_job_out_begin(j, err);
}

static oz_status run(oz_job *j, const char *target, oz_err *err) {
    oz_stream_init(&j->stream, NULL, j->pool, j->n_layers ? "copying" : "quantizing", bytes_of(j, false, 0));
    OZ_TRY(j->work.layers_done < 0 ? oz_job_out_begin(j, err) : take_up(j, err));
    oz_progress_deinit(&j->stream.progress);
    oz_progress_init(&j->stream.progress, "quantizing", "B", bytes_of(j, true, j->work.layers_done));
    j->stream.done_bytes = 0;
    if (j->work.layers_done > 0) oz_log_info("%s: %" PRId64 " of %" PRId64 " layers are done", j->work.dir, j->work.layers_done, j->n_layers);
    for (int64_t i = 0; i < j->work.layers_done && j->on_device; i++) OZ_TRY(oz_job_layer_replay(j, i, err));
    for (int64_t i = j->work.layers_done; i < j->n_layers; i++) OZ_TRY(oz_job_layer_run(j, i, err));
    OZ_TRY(oz_writer_finish(j->writer, err));
    oz_coverage_warn(j->work.manifest, j->q, j->cfg->calibration->begin[j->cfg->calibration->n_seqs]);
    return oz_dir_commit(j->work.out, target, j->cfg->force, err);
}

/* A run that was killed after its checkpoint had appeared has only its folder to remove. What lies at out/ then is nothing, or, the two having
 * changed places, the checkpoint that was replaced: only the digests tell which of them is the new one. */
static oz_status finished_check(bool *is_finished, const oz_job *j, const char *target) {
    *is_finished = false;
    if (j->work.layers_done < j->n_layers || !oz_path_exists(target)) return OZ_OK;
    oz_status st = oz_job_out_check(j, target, NULL);
    *is_finished = st == OZ_OK;
    return st == OZ_E_INTERRUPTED ? st : OZ_OK;
}

static oz_status plan_settle(oz_job *j, oz_err *err) {
    char plan[65];
    oz_sha256 s;
    oz_sha256_init(&s);
    oz_quantize_plan_add(&s, j->q);
    oz_sha256_hex(plan, &s);
    return oz_work_settle(&j->work, "scheme or other option", plan, err);
}

/* Work that was measured in is gone on with. What cannot be gone on with is left as it is. */
static oz_status work_open(oz_job *j, const char *target, oz_err *err) {
    if (j->cfg->budget) oz_budget_work(&j->work, j->cfg->budget);
    else OZ_TRY(oz_work_open(&j->work, j->q, target, j->cfg, j->pool, err));
    oz_status st = plan_settle(j, err);
    const int64_t done = j->work.layers_done, n = (int64_t)json_array_size(json_object_get(j->work.manifest, "layers"));
    if (st == OZ_OK && (done > j->n_layers || n != (done < 0 ? 0 : done)))
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s/manifest.json: layers_done: expected %" PRId64 ", the number of digests in layers, and at most %" PRId64 ", found %" PRId64 "; remove the folder to begin anew",
                        j->work.dir, n, j->n_layers, done);
    if (st != OZ_OK) oz_work_close(&j->work);
    return st;
}

static void break_off(oz_job *j, oz_status st, oz_err *err) {
    char *holds = oz_asprintf("%" PRId64 " of %" PRId64 " layers%s", j->work.layers_done < 0 ? 0 : j->work.layers_done, j->n_layers, j->cfg->budget ? ", and what was measured" : "");
    oz_work_break_off(&j->work, holds, st, err);
    oz_free(holds);
}

oz_status oz_quantize_run_text(json_t **report, oz_quantize *q, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err) {
    oz_job j = {.q = q, .cfg = cfg, .pool = pool, .on_device = oz_dev_ops(cfg->dev)->calib != NULL};
    bool is_finished = false;
    *report = NULL;
    OZ_TRY(oz_blas_init(oz_pool_threads(pool), err));
    OZ_TRY(check(&j, err));
    OZ_TRY(check_kernels(&j, err));
    oz_status st = work_open(&j, target, err);
    if (st == OZ_OK) st = finished_check(&is_finished, &j, target);
    if (st == OZ_OK && !is_finished && !cfg->force && oz_path_exists(target)) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: exists already (--force replaces it)", target);
    if (st == OZ_OK && !is_finished) {
        st = run(&j, target, err);
        oz_stream_deinit(&j.stream);
        oz_writer_close(&j.writer);
    }
    if (st != OZ_OK && j.work.dir) break_off(&j, st, err);
    if (st == OZ_OK && (st = oz_work_remove(&j.work, err)) != OZ_OK) oz_err_prefix(err, "%s is whole, but its work folder could not be removed", target);
    if (st == OZ_OK) *report = json_pack("{s:O, s:O, s:O*}", "errors", json_object_get(j.work.manifest, "modules"), "folds", json_object_get(j.work.manifest, "folds"), "experts", json_object_get(j.work.manifest, "experts"));
    oz_work_close(&j.work);
    oz_free(j.inputs);
    oz_dev_ops(cfg->dev)->mem_free(cfg->dev, j.slots);
    return st;
}
