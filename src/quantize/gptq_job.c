/* A whole checkpoint with calibration text, layer by layer, and in a layer by what its linear modules read, in the order of the forward pass:
 *   1. all calibration sequences run up to there, through what is made so far; taps sum up what the modules read: Hessians for GPTQ, the range for a static scale;
 *   2. the modules are quantized, by GPTQ or to the nearest, and written to their places in the new checkpoint;
 *   3. the layer is loaded again from there, by the reader that will read it in use, and the sequences go on from where they stopped (model/cut.c).
 * So every product of the model is computed once, and each module is fitted to what it will read. The forward pass is the model's own; nothing here knows a layer from the inside.
 * On the host sequences wait in files: after each layer the state on disk is all there is. A device that calibrates by itself (oz_ops.calib) keeps them in its memory, a slot each; what is
 * on disk is then the checkpoint so far, and work that is taken up sends all sequences through it again. Where its memory does not hold what is handed over within a layer, products of
 * the layer are computed again. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include "quantize/internal.h"

/* What some modules of a layer read: its Hessian where one of them is quantized by GPTQ, and what is kept of its values where scales are chosen by them. */
typedef struct input { oz_hessian hessian; oz_quantize_item *items[OZ_MAX_PARTS_LINEAR]; int n_items; /* those that are quantized */ int64_t n_tok; /* that came */ bool gptq, sampled; oz_sample sample; bool cache; /* not modules: what is kept of keys and values */ bool covered; /* an expert's, which takes all tokens */ } input;

typedef struct job {
    oz_quantize *q;
    const oz_quantize_text_cfg *cfg;
    oz_pool *pool;
    oz_work work;
    oz_writer *writer;
    oz_stream stream;
    int64_t n_layers, hidden_size, longest; /* longest sequence, in tokens */
    int64_t layer;                          /* that is at work; */
    int cut, waits, file;                   /* its cut; the one that the sequences wait at (0: before the layer), in one of two files */
    bool on_device;                         /* that calibrates by itself */
    char *slots; size_t slot_bytes;         /* of its memory, a sequence each */
    input *inputs;                          /* of the cut */
    size_t n_inputs, cap_inputs;
    bool counting;                          /* tokens are counted, and nothing else; */
    const int32_t *sent; int64_t n_sent;    /* or all are sent to these experts; none: where routers send them */
} job;

/* ---- what the run depends on ---- */

static json_t *hex(oz_sha256 *s) {
    char out[65];
    oz_sha256_hex(out, s);
    return json_string(out);
}

static void add_json(oz_sha256 *s, const json_t *v) {
    char *text = json_dumps(v, JSON_SORT_KEYS | JSON_COMPACT);
    oz_sha256_add(s, text, strlen(text));
    free(text);
}

/* The model's config and every byte of its tensors. */
static oz_status model_digest(char out[65], const job *j, oz_err *err) {
    const oz_ckpt *c = j->q->ckpt;
    const size_t n = oz_ckpt_count(c);
    const oz_tensor **tensors = oz_alloc_array(n + 1, sizeof *tensors);
    for (size_t i = 0; i < n; i++) tensors[i] = oz_ckpt_at(c, i);
    oz_sha256 s;
    oz_sha256_init(&s);
    add_json(&s, oz_ckpt_config(c));
    oz_status st = oz_digest_tensors(out, c, tensors, n, j->pool, "reading the model");
    oz_sha256_add(&s, out, 64);
    oz_sha256_hex(out, &s);
    oz_free(tensors);
    return st;
}

static oz_status identity(json_t **out, const job *j, oz_err *err) {
    const oz_quantize *q = j->q;
    const oz_calibration *c = j->cfg->calibration;
    oz_sha256 plan, text;
    char model[65];
    OZ_TRY(model_digest(model, j, err));
    oz_sha256_init(&plan);
    add_json(&plan, q->config);
    oz_sha256_add(&plan, &q->dampening, sizeof q->dampening);
    oz_sha256_add(&plan, &q->strength, sizeof q->strength);
    oz_sha256_add(&plan, &q->all_experts, sizeof q->all_experts);
    oz_sha256_add(&plan, q->method, strlen(q->method));
    if (q->transform) oz_sha256_add(&plan, q->transform->name, strlen(q->transform->name)); /* a recipe's, too */
    for (size_t i = 0; i < q->list.n; i++) oz_sha256_add(&plan, &q->items[i].gptq, sizeof q->items[i].gptq);
    for (size_t i = 0; i < oz_layout_file_count(q->layout); i++) {
        size_t n_bytes;
        const char *name = oz_layout_file(q->layout, i, &n_bytes);
        oz_sha256_add(&plan, name, strlen(name) + 1);
        oz_sha256_add(&plan, &n_bytes, sizeof n_bytes);
    }
    oz_sha256_init(&text);
    oz_sha256_add(&text, c->begin, (size_t)(c->n_seqs + 1) * sizeof *c->begin);
    oz_sha256_add(&text, c->ids, (size_t)c->begin[c->n_seqs] * sizeof *c->ids);
    *out = json_pack("{s:s, s:s, s:o, s:I, s:I, s:s, s:o, s:s}", "--device", j->on_device ? "a device" : "cpu", "model", model, "scheme or other option", hex(&plan), "--num-calibration-samples", (json_int_t)c->n_seqs, "--max-seq-length",
                     (json_int_t)c->max_len, "calibration text", c->sha256, "tokenizer", hex(&text), "version of the program", j->cfg->version);
    return OZ_OK;
}

static char *residual_path(const job *j, int64_t layer, const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "residual-%" PRId64 "%s", layer, suffix);
    return oz_work_path(&j->work, name);
}

/* ---- checks ---- */

/* Fewer tokens than columns leave a Hessian singular, and scales that are chosen by few rows: the result then fits the text and little else. One line for all of a kind. */
static void check_columns(const job *j, int64_t n_tok) {
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

static oz_status check(job *j, oz_err *err) {
    const oz_quantize *q = j->q;
    const oz_calibration *c = j->cfg->calibration;
    int64_t vocab_size = 0, max_len;
    OZ_TRY(oz_arch_max_len(&max_len, oz_ckpt_config(q->ckpt), err));
    for (size_t i = 0; i < q->list.n; i++) {
        const oz_arch_tensor *t = &q->list.items[i];
        if (t->role == OZ_ROLE_EMBED) vocab_size = t->rows, j->hidden_size = t->cols;
        if (t->layer >= j->n_layers) j->n_layers = t->layer + 1;
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
static oz_status check_kernels(const job *j, oz_err *err) {
    for (size_t i = 0; i < j->q->list.n; i++) {
        const oz_arch_tensor *t = &j->q->list.items[i];
        const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
        if (j->q->items[i].quantized) OZ_TRY(oz_scheme_runs(j->cfg->dev, &m, &j->q->items[i].scheme, err));
    }
    return OZ_OK;
}

oz_status oz_quantize_text_check(oz_quantize *q, const oz_calibration *calibration, oz_err *err) {
    const oz_quantize_text_cfg cfg = {.calibration = calibration};
    job j = {.q = q, .cfg = &cfg};
    return check(&j, err);
}

/* ---- the checkpoint under way ---- */

/* Names of the tensors of the new checkpoint that stand for an item. */
typedef struct names { char *items[OZ_MAX_PARTS]; int n; } names;

static names names_of(const job *j, const oz_quantize_item *it) {
    names out = {.n = it->absent ? 0 : 1};
    if (!it->quantized) {
        out.items[0] = it->absent ? NULL : oz_strdup(it->tensor->name);
        return out;
    }
    oz_part parts[OZ_MAX_PARTS];
    out.n = oz_scheme_parts(parts, &it->scheme, it->arch->rows, it->arch->cols, j->q->model_dtype);
    for (int i = 0; i < out.n; i++) out.items[i] = oz_asprintf("%s%s", it->arch->module, parts[i].suffix);
    return out;
}

static void names_free(names *n) {
    for (int i = 0; i < n->n; i++) oz_free(n->items[i]);
}

/* The layer that an item waits for; -1: it is kept, or quantized for itself, and written before them all. */
static int64_t layer_of(const oz_quantize_item *it) { return it->quantized || it->moved ? it->arch->layer : -1; }

static const oz_cache *cache_of(const job *j, int64_t layer) { return layer >= 0 && layer < j->q->n_caches ? &j->q->caches[layer] : NULL; }

/* Of what a layer has put into a checkpoint (-1: of what is kept). */
static oz_status layer_digest(char out[65], const job *j, const oz_ckpt *c, int64_t layer, oz_err *err) {
    const oz_tensor **tensors = oz_alloc_array(j->q->n_items * OZ_MAX_PARTS + 2, sizeof *tensors);
    size_t n = 0;
    oz_status st = OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < j->q->n_items; i++) {
        if (layer_of(&j->q->items[i]) != layer) continue;
        names of = names_of(j, &j->q->items[i]);
        for (int k = 0; k < of.n; k++)
            if (!(tensors[n++] = oz_ckpt_find(c, of.items[k])) && st == OZ_OK)
                st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: %s is not there", oz_ckpt_path(c), of.items[k]);
        names_free(&of);
    }
    const oz_cache *cache = cache_of(j, layer);
    for (int k = 0; st == OZ_OK && cache && k < 2; k++)
        if (!(tensors[n++] = oz_ckpt_find(c, cache->tensors[k]))) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: %s is not there", oz_ckpt_path(c), cache->tensors[k]);
    if (st == OZ_OK) st = oz_digest_tensors(out, c, tensors, n, j->pool, "checking");
    oz_free(tensors);
    return st;
}

static oz_status digest_now(char out[65], const job *j, int64_t layer, oz_err *err) {
    oz_ckpt *c;
    OZ_TRY(oz_ckpt_open(&c, j->work.out, err));
    oz_status st = layer_digest(out, j, c, layer, err);
    oz_ckpt_close(&c);
    return st;
}

/* What the manifest says of a thing, and what was found. */
static bool proves(const json_t *said, const char *found) { return json_is_string(said) && strcmp(json_string_value(said), found) == 0; }

static oz_status side_files_check(const job *j, const char *dir, oz_err *err) {
    const json_t *said = json_object_get(j->work.manifest, "files");
    json_t *found, *v;
    const char *name;
    OZ_TRY(oz_digest_side_files(&found, dir, j->q->layout, err));
    oz_status st = OZ_OK;
    json_object_foreach((json_t *)said, name, v)
        if (st == OZ_OK && !json_equal(v, json_object_get(found, name))) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s/%s: is not as it was written", dir, name);
    json_object_foreach(found, name, v)
        if (st == OZ_OK && !json_object_get(said, name)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s/%s: is not of this run", dir, name);
    json_decref(found);
    return st;
}

static oz_status layers_check(const job *j, const oz_ckpt *c, oz_err *err) {
    char found[65];
    OZ_TRY(layer_digest(found, j, c, -1, err));
    OZ_NEED(proves(json_object_get(j->work.manifest, "kept"), found), err, OZ_E_FORMAT, "%s: what is not quantized is not as it was written", oz_ckpt_path(c));
    for (int64_t i = 0; i < j->work.layers_done; i++) {
        OZ_TRY(layer_digest(found, j, c, i, err));
        OZ_NEED(proves(json_array_get(json_object_get(j->work.manifest, "layers"), (size_t)i), found), err, OZ_E_FORMAT, "%s: layer %" PRId64 " is not as it was written",
                oz_ckpt_path(c), i);
    }
    return OZ_OK;
}

/* All that the manifest speaks of is in `dir`, to the byte. */
static oz_status out_check(const job *j, const char *dir, oz_err *err) {
    oz_ckpt *c;
    OZ_TRY(side_files_check(j, dir, err));
    OZ_TRY(oz_ckpt_open(&c, dir, err));
    oz_status st = layers_check(j, c, err);
    oz_ckpt_close(&c);
    return st;
}

static oz_status residual_check(const job *j, oz_err *err) {
    if (j->work.layers_done <= 0 || j->work.layers_done == j->n_layers || j->on_device) return OZ_OK;
    char found[65], *path = residual_path(j, j->work.layers_done, "");
    oz_status st = oz_sum_file(found, path, err);
    if (st == OZ_OK && !proves(json_object_get(j->work.manifest, "residual"), found)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: is not as it was written", path);
    oz_free(path);
    return st;
}

static oz_status out_take_up(job *j, oz_err *err) {
    OZ_TRY(oz_writer_reopen(&j->writer, j->q->layout, j->work.out, err));
    OZ_TRY(out_check(j, j->work.out, err));
    OZ_TRY(residual_check(j, err));
    j->stream.writer = j->writer;
    for (size_t i = 0; i < j->q->n_items; i++) {
        if (layer_of(&j->q->items[i]) >= j->work.layers_done) continue;
        names of = names_of(j, &j->q->items[i]);
        oz_status st = OZ_OK;
        for (int k = 0; st == OZ_OK && k < of.n; k++) st = oz_writer_keep(j->writer, of.items[k], err);
        names_free(&of);
        OZ_TRY(st);
    }
    for (int64_t i = 0; i < j->work.layers_done && cache_of(j, i); i++)
        for (int k = 0; k < 2; k++) OZ_TRY(oz_writer_keep(j->writer, cache_of(j, i)->tensors[k], err));
    return OZ_OK;
}

/* How the checkpoint was made, in itself. */
static oz_status recipe_write(const job *j, oz_err *err) {
    const oz_calibration *c = j->cfg->calibration;
    const oz_quantize_item *first = NULL;
    bool gptq = false, imatrix = false, mixed = false;
    for (size_t i = 0; i < j->q->list.n; i++) {
        const oz_quantize_item *it = &j->q->items[i];
        if (!it->quantized) continue;
        first = first ? first : it;
        gptq = gptq || it->gptq, imatrix = imatrix || it->imatrix, mixed = mixed || strcmp(it->scheme.name, first->scheme.name) != 0;
    }
    json_t *r = json_pack("{s:s, s:s, s:I, s:{s:s, s:s, s:I, s:I, s:I}, s:s, s:s}", "method", j->q->recipe ? "recipe" : j->q->method, "scheme", mixed ? "mixed" : first->scheme.name,
                          "group_size", (json_int_t)first->scheme.group_size, "calibration", "file", c->name, "sha256", c->sha256, "sequences", (json_int_t)c->n_seqs, "max_seq_length",
                          (json_int_t)c->max_len, "tokens", (json_int_t)c->begin[c->n_seqs], "program", "ounce", "version", j->cfg->version);
    if (gptq)
        json_object_set_new(r, "parameters", json_pack("{s:f, s:i, s:s, s:s, s:i}", "dampening_frac", j->q->dampening, "block_size", OZ_GPTQ_BLOCK, "actorder", "static", "scales", "searched", "passes", OZ_GPTQ_PASSES));
    if (imatrix) json_object_set_new(r, "parameters", json_pack("{s:s, s:f}", "scales", "searched", "added_frac", OZ_IMATRIX_ADDED));
    if (j->q->transform) json_object_set_new(r, "folding", json_pack("{s:s, s:o, s:i}", "by", j->q->transform->name, "strength", j->q->strength > 0 ? json_real(j->q->strength) : json_string("searched"), "folds", (int)j->q->n_folds));
    if (j->q->all_experts) json_object_set_new(r, "moe_calibrate_all_experts", json_true());
    if (j->q->kv.quantized) json_object_set_new(r, "kv_cache_scheme", json_string(j->q->kv.per_head ? "fp8_per_head" : "fp8"));
    if (c->seed >= 0) json_object_set_new(json_object_get(r, "calibration"), "seed", json_integer(c->seed));
    json_object_set(r, "model_sha256", json_object_get(json_object_get(j->work.manifest, "run"), "model"));
    json_object_update(r, j->q->asked);
    if (j->q->recipe) json_object_set(r, "recipe", j->q->recipe);
    if (j->q->budget) json_object_set(r, "budget", j->q->budget);
    oz_status st = oz_quantize_recipe_write(r, j->work.out, err);
    json_decref(r);
    return st;
}

/* All but the quantized modules. */
static oz_status out_begin(job *j, oz_err *err) {
    if (oz_path_exists(j->work.out)) OZ_TRY(oz_dir_remove(j->work.out, err));
    OZ_NEED(mkdir(j->work.out, 0777) == 0, err, OZ_E_IO, "%s: cannot create: %s", j->work.out, strerror(errno));
    OZ_TRY(oz_ckpt_copy_side_files(j->q->ckpt, j->work.out, err));
    OZ_TRY(oz_config_write(j->q->config, j->work.out, err));
    OZ_TRY(recipe_write(j, err));
    OZ_TRY(oz_writer_open(&j->writer, j->q->layout, j->work.out, err));
    j->stream.writer = j->writer;
    for (size_t i = 0; i < j->q->n_items; i++)
        if (layer_of(&j->q->items[i]) < 0) OZ_TRY(oz_quantize_write_item(j->q, &j->q->items[i], &j->stream, err));
    OZ_TRY(oz_writer_sync(j->writer, err));
    json_t *files;
    char kept[65];
    OZ_TRY(oz_digest_side_files(&files, j->work.out, j->q->layout, err));
    json_object_set_new(j->work.manifest, "files", files);
    OZ_TRY(digest_now(kept, j, -1, err));
    json_object_set_new(j->work.manifest, "kept", json_string(kept));
    j->work.layers_done = 0;
    return oz_work_save(&j->work, err);
}

/* ---- running sequences ---- */

/* All sequences through a part of the layer, from one cut to another, whose taps are called; 0: from its inputs, to the next layer's. */
typedef struct pass {
    job *j; oz_model *m; oz_state *state;
    int from, to;
    bool tap, has_in, has_out;
    const int32_t *experts;    /* NULL, or where tokens are sent (oz_call) */
    char *x, *y;               /* a sequence's, from the files */
    int32_t *blocks;
    oz_rows_file in, out; size_t in_at, out_at;
    oz_sum written;
} pass;

static bool is_sent(const job *j, const input *in) {
    for (int64_t i = 0; i < j->n_sent; i++)
        if (in->n_items && in->items[0]->arch->expert == j->sent[i]) return true;
    return false;
}

static void input_add(job *j, input *in, const oz_tap *t) {
    if (!j->n_sent) in->n_tok += t->n_tok;
    if (j->counting || (j->n_sent ? !in->covered || !is_sent(j, in) : in->covered)) return;
    if (in->gptq) oz_hessian_add(&in->hessian, j->pool, t->rows, t->ld, t->n_tok);
    if (in->sampled) oz_sample_add(&in->sample, t->rows, t->ld, t->n_tok);
}

static bool is_of(const input *in, const oz_tap *t) {
    if (in->cache || t->kind == OZ_TAP_KV) return in->cache && t->kind == OZ_TAP_KV;
    for (int k = 0; k < t->n_modules; k++)
        if (strcmp(in->items[0]->arch->module, t->modules[k]) == 0) return true;
    return false;
}

static void on_tap(void *arg, const oz_tap *t) {
    job *j = arg;
    for (size_t i = 0; i < j->n_inputs; i++)
        if (is_of(&j->inputs[i], t)) input_add(j, &j->inputs[i], t);
}

static size_t live_bytes(const job *j, const oz_model *m, int cut, int64_t n_tok) { return cut ? oz_model_live_bytes(m, cut, n_tok) : (size_t)(n_tok * j->hidden_size) * sizeof(float); }

static oz_status sequence_run(pass *p, int64_t i, oz_err *err) {
    job *j = p->j;
    const oz_calibration *c = j->cfg->calibration;
    const int64_t n = c->begin[i + 1] - c->begin[i];
    const size_t n_in = live_bytes(j, p->m, p->from, n), n_out = live_bytes(j, p->m, p->to, n);
    char *x = p->x, *y = p->y;
    if (j->on_device) x = y = j->slots + (size_t)i * j->slot_bytes;
    else if (p->has_in) OZ_TRY(oz_rows_read(&p->in, x, p->in_at, n_in, err));
    const oz_seg seg = {0, n, 0, p->blocks};
    const oz_call call = {.ids = p->has_in ? NULL : c->ids + c->begin[i], .n_tok = n, .segs = &seg, .n_segs = 1, .layer_begin = j->layer, .layer_end = j->layer + 1, .cut_begin = p->from, .cut_end = p->to,
                          .residual_in = p->has_in && !p->from ? (float *)x : NULL, .residual_out = p->has_out && !p->to ? (float *)y : NULL, .live_in = p->from ? x : NULL,
                          .live_out = p->has_out && p->to ? y : NULL, .on_device = j->on_device, .tap = p->tap ? on_tap : NULL, .tap_arg = j, .experts = p->experts};
    OZ_TRY(oz_model_run(p->m, p->state, &call, NULL, err));
    if (p->has_out && !j->on_device) OZ_TRY(oz_rows_write(&p->out, y, p->out_at, n_out, err));
    if (p->has_out && !p->to && !j->on_device) oz_sum_add(&p->written, y, n_out);
    p->in_at += n_in, p->out_at += n_out;
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

/* Where sequences wait at a cut: in two files by turns, which are kept for the next layer. */
static char *cut_path(const job *j, int file) { return oz_work_path(&j->work, file ? "cut-1" : "cut-0"); }

/* Slots for what is handed over between layers, and at the cuts where it takes no more than `ROOM` of what the device has left; sequences do not wait at the others. */
static oz_status slots_fit(job *j, const oz_model *m, oz_err *err) {
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
static bool waits_at(const job *j, const oz_model *m, int cut) {
    if (cut && oz_model_cut_at(m, cut).is_start) return false;
    return !j->on_device || live_bytes(j, m, cut, j->longest) <= j->slot_bytes;
}

static oz_status pass_open(pass *p, oz_err *err) {
    job *j = p->j;
    const int64_t n_blocks = (j->longest + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    OZ_TRY(oz_state_new(&p->state, p->m, n_blocks, 1, err));
    p->blocks = oz_alloc_array((size_t)n_blocks, sizeof *p->blocks);
    for (int64_t i = 0; i < n_blocks; i++) p->blocks[i] = (int32_t)i;
    p->has_in = j->layer > 0 || p->from;
    if (j->on_device) return slots_fit(j, p->m, err);
    OZ_TRY(oz_big_new((void **)&p->x, live_bytes(j, p->m, p->from, j->longest), "activations", err));
    OZ_TRY(oz_big_new((void **)&p->y, live_bytes(j, p->m, p->to, j->longest), "activations", err));
    if (p->has_in) OZ_TRY(oz_rows_open(&p->in, p->from ? cut_path(j, j->file) : residual_path(j, j->layer, ""), false, err));
    return p->has_out ? oz_rows_open(&p->out, p->to ? cut_path(j, !j->file) : residual_path(j, j->layer + 1, ".new"), true, err) : OZ_OK;
}

static void pass_close(pass *p) {
    oz_rows_close(&p->in);
    oz_rows_close(&p->out);
    oz_big_free(p->x);
    oz_big_free(p->y);
    oz_free(p->blocks);
    oz_state_free(&p->state);
}

/* p: from, to; tap: taps are called; has_out: something comes after it. */
static oz_status sequences_run(job *j, oz_model *m, pass *p, oz_err *err) {
    char sum[65];
    p->j = j, p->m = m;
    oz_status st = pass_open(p, err);
    for (int64_t i = 0; st == OZ_OK && i < j->cfg->calibration->n_seqs; i++) st = sequence_run(p, i, err);
    for (size_t i = 0; i < j->n_inputs; i++)
        if (p->tap && j->inputs[i].sampled) oz_sample_close(&j->inputs[i].sample);
    const bool keeps = p->has_out && !p->to && !j->on_device;
    if (st == OZ_OK && keeps) st = oz_rows_sync(&p->out, err);
    if (st == OZ_OK && keeps) {
        oz_sum_hex(sum, &p->written);
        json_object_set_new(j->work.manifest, "residual", json_string(sum));
    }
    pass_close(p);
    return st;
}

/* ---- a layer ---- */

static oz_dev *calib_dev(const job *j) { return j->on_device ? j->cfg->dev : NULL; }

/* layer -1: of any. */
static oz_quantize_item *item_of(const job *j, int64_t layer, const char *module) {
    for (size_t i = 0; i < j->q->list.n; i++) {
        oz_quantize_item *it = &j->q->items[i];
        if (it->quantized && (layer < 0 || it->arch->layer == layer) && strcmp(it->arch->module, module) == 0) return it;
    }
    return NULL;
}

/* Modules that are still to be made are needed by nothing that is run. */
static bool is_pending(void *arg, const char *module) {
    const job *j = arg;
    const oz_quantize_item *it = item_of(j, j->layer, module);
    const oz_cache *cache = cache_of(j, j->layer);
    return it ? !it->made : cache && !cache->made && strcmp(cache->module, module) == 0;
}

static oz_status model_open(oz_model **m, job *j, const oz_ckpt *c, unsigned taps, oz_err *err) {
    return oz_model_open(m, j->cfg->dev, c, &(oz_model_cfg){.dtype = "auto", .max_tok = j->longest, .taps = taps, .layer_begin = j->layer, .layer_end = j->layer + 1, .need_len = j->longest,
                                                            .pending = is_pending, .pending_arg = j}, err);
}

/* Of a tap, as far as modules that are quantized read it. kept: rows of the sample; hessians: where GPTQ needs them. */
static oz_status input_new(job *j, const oz_tap *t, int64_t kept, bool hessians, oz_err *err) {
    input in = {.n_items = 0};
    for (int k = 0; k < t->n_modules; k++)
        if ((in.items[in.n_items] = item_of(j, j->layer, t->modules[k]))) in.n_items++;
    for (int k = 0; k < in.n_items; k++) in.gptq = in.gptq || (in.items[k]->gptq && hessians), in.sampled = in.sampled || in.items[k]->scheme.static_input || (in.items[k]->imatrix && hessians);
    in.sampled = in.sampled || (kept > 0 && !in.gptq);
    if (!in.n_items) return OZ_OK;
    oz_grow((void **)&j->inputs, &j->cap_inputs, j->n_inputs + 1, sizeof *j->inputs);
    input *put = &j->inputs[j->n_inputs++];
    *put = in;
    if (in.gptq) OZ_TRY(oz_hessian_init(&put->hessian, t->width, calib_dev(j), t->modules[0], err));
    return in.sampled ? oz_sample_init(&put->sample, t->width, kept, calib_dev(j), t->modules[0], err) : OZ_OK;
}

/* Keys and values: what reads them is the cache. */
static oz_status cache_new(job *j, const oz_tap *t, oz_err *err) {
    oz_grow((void **)&j->inputs, &j->cap_inputs, j->n_inputs + 1, sizeof *j->inputs);
    input *put = &j->inputs[j->n_inputs++];
    *put = (input){.sampled = true, .cache = true};
    return oz_sample_init(&put->sample, t->width, 0, calib_dev(j), t->modules[0], err);
}

static oz_status inputs_new(job *j, const oz_model *m, const oz_cut *cut, int64_t kept, bool hessians, oz_err *err) {
    for (size_t i = cut->tap0; i < cut->tap0 + cut->n_taps; i++) {
        const oz_tap t = oz_model_tap_at(m, i);
        OZ_TRY(t.kind == OZ_TAP_KV ? cache_new(j, &t, err) : input_new(j, &t, kept, hessians, err));
    }
    return OZ_OK;
}

static void inputs_free(job *j) {
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
static void error_note(job *j, double error) { oz_progress_note(&j->stream.progress, "layer %" PRId64 " of %" PRId64 ", error %.2g", j->layer + 1, j->n_layers, error); }

/* What became of a module on the tokens that reached it; returns its entry in the report, which is borrowed. */
static json_t *errors_note(job *j, const oz_quantize_item *it, const char *what, const char *of, int64_t n_tok, double before, double after) {
    const oz_arch_tensor *t = it->arch;
    const bool measured = isfinite(before) && isfinite(after);
    if (measured && it->gptq && n_tok < t->cols) oz_log_info("%s: %s %.4g, of %s %.4g, on %" PRId64 " tokens for %" PRId64 " columns", t->module, what, after, of, before, n_tok, t->cols);
    else if (measured) oz_log_info("%s: %s %.4g, of %s %.4g", t->module, what, after, of, before);
    else oz_log_info("%s: the calibration text gives it no input: each weight is rounded by itself", t->module);
    json_t *entry = json_pack("{s:s, s:I, s:n, s:n}", "module", t->module, "tokens", (json_int_t)n_tok, "before", "after");
    if (measured) json_object_set_new(entry, "before", json_real(before)), json_object_set_new(entry, "after", json_real(after)), error_note(j, after);
    json_array_append_new(json_object_get(j->work.manifest, "modules"), entry);
    return entry;
}

static oz_status module_write(job *j, const oz_quantize_item *it, const oz_gptq *g, oz_gptq_result *r, oz_err *err) {
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

static oz_status item_gptq(job *j, const oz_quantize_item *it, const input *in, const oz_factor *f, oz_err *err) {
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
static oz_status input_scale(oz_quantize_item *it, const job *j, const input *own, oz_err *err) {
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

static oz_status input_factor(oz_factor *f, job *j, input *in, oz_err *err) {
    const char *what = in->items[0]->arch->module;
    OZ_TRY(oz_hessian_close(&in->hessian, what, err));
    OZ_TRY(oz_factor_init(f, &in->hessian, j->q->dampening, j->pool, what, err));
    if (f->dampening > j->q->dampening) oz_log_warn("%s: dampening raised from %g to %g of the mean diagonal, to make its Hessian positive definite", what, j->q->dampening, f->dampening);
    return OZ_OK;
}

/* To nearest, under scales that are searched by what the columns' inputs are. */
static oz_status item_weigh(job *j, const oz_quantize_item *it, const input *in, oz_err *err) {
    oz_imatrix_error e;
    OZ_TRY(oz_imatrix_write(&e, &j->stream, &(oz_reader){it, &in->sample}, j->q->model_dtype, err));
    errors_note(j, it, "error by importance", "rounding to nearest", in->n_tok, e.before, e.after);
    oz_ckpt_drop(j->q->ckpt, it->tensor);
    return OZ_OK;
}

/* To nearest; clipped, where the method does that and some token reached it. */
static oz_status item_round(job *j, oz_quantize_item *it, const input *in, oz_err *err) {
    if (it->imatrix) return item_weigh(j, it, in, err);
    const bool clips = j->q->transform && j->q->transform->clips && oz_clip_fits(&it->scheme) && in->sample.n > 0;
    oz_clip_result r;
    if (!clips) return oz_quantize_write_item(j->q, it, &j->stream, err);
    OZ_TRY(oz_clip_write(&r, &j->stream, &(oz_reader){it, &in->sample}, j->q->model_dtype, calib_dev(j), err));
    errors_note(j, it, "output error", "whole ranges", in->n_tok, r.before, r.after);
    return OZ_OK;
}

static oz_status input_quantize(job *j, input *in, oz_err *err) {
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

/* ---- experts that too few tokens reach ---- */

typedef struct route { int64_t top_k; int32_t *experts; /* [longest, top_k] */ } route;

/* All tokens to n experts, at most top_k; others make up the number, and are not looked at. */
static oz_status experts_run(job *j, oz_model *m, pass p, const route *r, const int32_t *ids, int64_t n, oz_err *err) {
    memcpy(r->experts, ids, (size_t)n * sizeof *ids);
    for (int32_t id = 0, k = (int32_t)n; k < r->top_k; id++) {
        bool there = false;
        for (int64_t i = 0; i < n; i++) there = there || ids[i] == id;
        if (!there) r->experts[k++] = id;
    }
    for (int64_t i = 1; i < j->longest; i++) memcpy(r->experts + i * r->top_k, r->experts, (size_t)r->top_k * sizeof *r->experts);
    j->sent = ids, j->n_sent = n, p.experts = r->experts;
    oz_status st = sequences_run(j, m, &p, err);
    j->n_sent = 0;
    return st;
}

/* Which these are, by a pass that counts. Returns how many. */
static int64_t starved(int32_t *ids, job *j) {
    int64_t n = 0;
    for (size_t i = 0; i < j->n_inputs; i++) {
        input *in = &j->inputs[i];
        const oz_arch_tensor *t = in->n_items ? in->items[0]->arch : NULL;
        bool listed = false;
        in->covered = t && t->expert >= 0 && in->n_tok < t->cols, in->n_tok = 0;
        for (int64_t k = 0; k < n; k++) listed = listed || (t && ids[k] == t->expert);
        if (in->covered && !listed) ids[n++] = t->expert;
    }
    return n;
}

/* An expert that fewer tokens would reach than its matrices have columns is shown all of them, some experts a pass, before the others see theirs. */
static oz_status experts_cover(job *j, oz_model *m, int from, int to, oz_err *err) {
    bool any = false;
    oz_arch_info info;
    for (size_t i = 0; i < j->n_inputs; i++) any = any || (j->inputs[i].n_items && j->inputs[i].items[0]->arch->expert >= 0);
    if (!any || !j->q->all_experts) return OZ_OK;
    const pass p = {.from = from, .to = to, .tap = true};
    OZ_TRY(oz_arch_info_read(&info, oz_ckpt_config(j->q->ckpt), err));
    j->counting = true;
    oz_status st = sequences_run(j, m, &(pass){.from = from, .to = to, .tap = true}, err);
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

static const input *input_of(const job *j, const oz_quantize_item *it) {
    for (size_t i = 0; i < j->n_inputs; i++)
        for (int k = 0; k < j->inputs[i].n_items; k++)
            if (j->inputs[i].items[k] == it) return &j->inputs[i];
    return NULL;
}

/* A reader that is kept has no error to make up for, and one that no token reached has nothing to say. */
static oz_status fold_run(job *j, const oz_quantize_fold *f, oz_err *err) {
    oz_reader *readers = oz_alloc_array(f->of->n_to, sizeof *readers);
    float *scales = oz_alloc_array((size_t)f->of->n, sizeof *scales);
    json_t *entry = NULL;
    size_t n = 0;
    for (size_t k = 0; k < f->of->n_to; k++) {
        const oz_quantize_item *it = &j->q->items[f->of->to[k]];
        const input *in = input_of(j, it);
        if (in && in->sample.n > 0) readers[n++] = (oz_reader){it, &in->sample};
    }
    oz_status st = oz_smooth_choose(scales, &entry, j->q, f, readers, n, j->pool, calib_dev(j), err);
    if (st == OZ_OK) oz_fold_apply(j->q, f, scales);
    if (st == OZ_OK && n) error_note(j, json_real_value(json_object_get(entry, "after")));
    if (st == OZ_OK) json_array_append_new(json_object_get(j->work.manifest, "modules"), entry);
    oz_free(scales);
    oz_free(readers);
    return st;
}

static oz_status folds_run(job *j, oz_err *err) {
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
static oz_status survey(job *j, oz_err *err) {
    oz_model *m;
    OZ_TRY(model_open(&m, j, j->q->ckpt, OZ_TAP_LINEAR, err));
    const oz_cut all = {.tap0 = 0, .n_taps = oz_model_tap_count(m)};
    oz_status st = inputs_new(j, m, &all, rows_kept(m), false, err);
    if (st == OZ_OK) st = experts_cover(j, m, 0, 0, err);
    if (st == OZ_OK) st = sequences_run(j, m, &(pass){.tap = true}, err);
    oz_model_close(&m);
    return st;
}

/* Norms, biases and routers that folds have changed are written at once: what is quantized reads what they give. */
static oz_status scales_move(job *j, oz_err *err) {
    oz_status st = survey(j, err);
    if (st == OZ_OK) st = folds_run(j, err);
    inputs_free(j);
    for (size_t i = 0; st == OZ_OK && i < j->q->list.n; i++) {
        oz_quantize_item *it = &j->q->items[i];
        if (it->moved && it->arch->layer == j->layer && !it->quantized) st = oz_quantize_write_item(j->q, it, &j->stream, err);
    }
    return st;
}

/* What the layer's items held: folded scales, and pages of what they were made of. */
static void items_forget(job *j) {
    for (size_t i = 0; i < j->q->list.n; i++) {
        oz_quantize_item *it = &j->q->items[i];
        if (it->arch->layer != j->layer) continue;
        oz_fold_undo(it);
        if (it->tensor) oz_ckpt_drop(j->q->ckpt, it->tensor);
    }
}

/* ---- from cut to cut ---- */

/* To the next cut where something is to be quantized; 0: none is left. */
static oz_status next_cut(job *j, const oz_model *m, oz_err *err) {
    const int n = oz_model_cut_count(m);
    const int64_t kept = j->q->transform && j->q->transform->clips ? rows_kept(m) : 0;
    while (++j->cut <= n) {
        const oz_cut cut = oz_model_cut_at(m, j->cut);
        OZ_TRY(inputs_new(j, m, &cut, kept, true, err));
        if (j->n_inputs) return OZ_OK;
    }
    j->cut = 0;
    return OZ_OK;
}

static oz_status sequences_go_on(job *j, oz_model *m, oz_err *err) {
    OZ_TRY(next_cut(j, m, err));
    if (!j->cut && j->layer + 1 == j->n_layers) return OZ_OK;
    if (j->on_device) OZ_TRY(slots_fit(j, m, err));
    const bool waits = waits_at(j, m, j->cut);
    if (j->cut) OZ_TRY(experts_cover(j, m, j->waits, j->cut, err));
    OZ_TRY(sequences_run(j, m, &(pass){.from = j->waits, .to = j->cut, .tap = j->cut > 0, .has_out = waits}, err));
    if (waits) j->waits = j->cut, j->file = !j->file;
    return OZ_OK;
}

/* One cut, or what is left of the layer behind the last. */
static oz_status cut_run(job *j, oz_err *err) {
    oz_ckpt *c;
    oz_model *m = NULL;
    OZ_TRY(oz_ckpt_open(&c, j->work.out, err));
    oz_status st = model_open(&m, j, c, OZ_TAP_LINEAR | (j->q->kv.quantized ? OZ_TAP_KV : 0), err);
    if (st == OZ_OK) st = sequences_go_on(j, m, err);
    oz_model_close(&m);
    oz_ckpt_close(&c);
    for (size_t i = 0; st == OZ_OK && i < j->n_inputs; i++) st = input_quantize(j, &j->inputs[i], err);
    inputs_free(j);
    return st;
}

/* The next layer's inputs get their name. */
static oz_status residual_take(const job *j, oz_err *err) {
    if (j->layer + 1 == j->n_layers || j->on_device) return OZ_OK;
    oz_status st = OZ_OK;
    char *from = residual_path(j, j->layer + 1, ".new"), *to = residual_path(j, j->layer + 1, "");
    if (rename(from, to) != 0) st = oz_err_set(err, OZ_E_IO, __FILE__, __LINE__, "%s: cannot rename to it: %s", to, strerror(errno));
    oz_free(from);
    oz_free(to);
    return st;
}

static oz_status layer_run(job *j, int64_t layer, oz_err *err) {
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
    OZ_TRY(digest_now(done, j, layer, err));
    json_array_append_new(json_object_get(j->work.manifest, "layers"), json_string(done));
    j->work.layers_done = layer + 1;
    OZ_TRY(oz_work_save(&j->work, err));
    char *spent = residual_path(j, layer, "");
    unlink(spent);
    oz_free(spent);
    return OZ_OK;
}

/* All sequences through a layer that is made. */
static oz_status layer_replay(job *j, int64_t layer, oz_err *err) {
    oz_ckpt *c;
    oz_model *m = NULL;
    j->layer = layer;
    OZ_TRY(oz_ckpt_open(&c, j->work.out, err));
    for (size_t i = 0; i < j->q->list.n; i++) j->q->items[i].made = j->q->items[i].made || j->q->items[i].arch->layer == layer;
    if (cache_of(j, layer)) j->q->caches[layer].made = true;
    oz_status st = model_open(&m, j, c, OZ_TAP_LINEAR, err);
    if (st == OZ_OK) st = sequences_run(j, m, &(pass){.has_out = true}, err);
    oz_model_close(&m);
    oz_ckpt_close(&c);
    return st;
}

/* ---- the whole ---- */

/* Bytes of the items that wait for a layer, from some layer on, or of those that do not. */
static int64_t bytes_of(const job *j, bool waits, int64_t layer) {
    int64_t n = 0;
    for (size_t i = 0; i < j->q->n_items; i++) {
        const int64_t of = layer_of(&j->q->items[i]);
        if (waits ? of >= layer : of < 0) n += (int64_t)j->q->items[i].bytes;
    }
    return n;
}

/* What --resume finds must be what the manifest speaks of. Where no layer is done yet, little is lost by beginning anew. */
static oz_status take_up(job *j, oz_err *err) {
    oz_err bad = {0};
    oz_status st = out_take_up(j, &bad);
    if (st == OZ_OK || st == OZ_E_INTERRUPTED) return st;
    OZ_NEED(j->work.layers_done == 0, err, st, "%s cannot be taken up, remove it to begin anew: %s", j->work.dir, bad.msg);
    oz_log_warn("%s: begins anew: %s", j->work.dir, bad.msg);
    oz_writer_close(&j->writer);
    return out_begin(j, err);
}

static oz_status run(job *j, const char *target, oz_err *err) {
    oz_stream_init(&j->stream, NULL, j->pool, "copying", bytes_of(j, false, 0));
    OZ_TRY(j->work.layers_done < 0 ? out_begin(j, err) : take_up(j, err));
    oz_progress_deinit(&j->stream.progress);
    oz_progress_init(&j->stream.progress, "quantizing", "B", bytes_of(j, true, j->work.layers_done));
    j->stream.done_bytes = 0;
    if (j->work.layers_done > 0) oz_log_info("%s: %" PRId64 " of %" PRId64 " layers are done", j->work.dir, j->work.layers_done, j->n_layers);
    for (int64_t i = 0; i < j->work.layers_done && j->on_device; i++) OZ_TRY(layer_replay(j, i, err));
    for (int64_t i = j->work.layers_done; i < j->n_layers; i++) OZ_TRY(layer_run(j, i, err));
    OZ_TRY(oz_writer_finish(j->writer, err));
    oz_coverage_warn(j->work.manifest, j->q, j->cfg->calibration->begin[j->cfg->calibration->n_seqs]);
    return oz_dir_commit(j->work.out, target, j->cfg->force, err);
}

/* A run that was killed after its checkpoint had appeared has only its folder to remove. What lies at out/ then is nothing, or, the two having
 * changed places, the checkpoint that was replaced: only the digests tell which of them is the new one. */
static oz_status finished_check(bool *is_finished, const job *j, const char *target) {
    *is_finished = false;
    if (j->work.layers_done < j->n_layers || !oz_path_exists(target)) return OZ_OK;
    oz_status st = out_check(j, target, NULL);
    *is_finished = st == OZ_OK;
    return st == OZ_E_INTERRUPTED ? st : OZ_OK;
}

static oz_status work_begin(job *j, oz_err *err) {
    json_t *id;
    OZ_TRY(identity(&id, j, err));
    oz_status st = oz_work_begin(&j->work, id, err);
    json_decref(id);
    OZ_TRY(st);
    const int64_t done = j->work.layers_done, n = (int64_t)json_array_size(json_object_get(j->work.manifest, "layers"));
    OZ_NEED(done <= j->n_layers && n == (done < 0 ? 0 : done), err, OZ_E_FORMAT, "%s/manifest.json: layers_done: expected %" PRId64 ", the number of digests in layers, and at most %" PRId64
            ", found %" PRId64 "; remove the folder to begin anew", j->work.dir, n, j->n_layers, done);
    return OZ_OK;
}

/* Work that cannot be gone on with is left as it is; a folder that was made for nothing is not left. */
static oz_status work_open(job *j, const char *target, oz_err *err) {
    OZ_TRY(oz_work_open(&j->work, target, j->cfg->resume, err));
    const bool is_new = !j->work.manifest;
    oz_status st = work_begin(j, err);
    if (st == OZ_OK && is_new && j->cfg->resume && !oz_path_exists(target)) oz_log_info("%s: nothing to go on with, begins anew", j->work.dir);
    if (st == OZ_OK) return st;
    if (is_new) oz_work_remove(&j->work, NULL);
    oz_work_close(&j->work);
    return st;
}

/* What of the folder stays when the run does not end: what --resume takes up, or nothing. */
static void break_off(job *j, oz_status st, oz_err *err) {
    if (st == OZ_E_INTERRUPTED) {
        oz_err_clear(err);
        oz_err_set(err, st, __FILE__, __LINE__, "interrupted; %s holds %" PRId64 " of %" PRId64 " layers: the same command with --resume goes on from there", j->work.dir,
                   j->work.layers_done < 0 ? 0 : j->work.layers_done, j->n_layers);
    } else if (j->work.layers_done > 0) (st == OZ_E_FORMAT ? oz_log_warn : oz_log_info)("%s keeps what was done of this model with this text; the same command with --resume goes on from there", j->work.dir);
    else oz_work_remove(&j->work, NULL);
}

oz_status oz_quantize_run_text(json_t **report, oz_quantize *q, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err) {
    job j = {.q = q, .cfg = cfg, .pool = pool, .on_device = oz_dev_ops(cfg->dev)->calib != NULL};
    bool is_finished = false;
    *report = NULL;
    OZ_TRY(oz_blas_init(oz_pool_threads(pool), err));
    OZ_TRY(check(&j, err));
    OZ_TRY(check_kernels(&j, err));
    OZ_NEED(cfg->force || cfg->resume || !oz_path_exists(target), err, OZ_E_ARG, "%s: exists already (--force replaces it)", target);
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
    if (st == OZ_OK) *report = json_pack("{s:O, s:O*}", "errors", json_object_get(j.work.manifest, "modules"), "experts", json_object_get(j.work.manifest, "experts"));
    oz_work_close(&j.work);
    oz_free(j.inputs);
    oz_dev_ops(cfg->dev)->mem_free(cfg->dev, j.slots);
    return st;
}
