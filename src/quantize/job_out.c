/* The checkpoint that a job writes: what it begins with, digests of what each layer has put into it, and whether --resume finds what the manifest speaks of. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "quantize/job.h"

char *oz_job_residual_path(const oz_job *j, int64_t layer, const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "residual-%" PRId64 "%s", layer, suffix);
    return oz_work_path(&j->work, name);
}

/* Names of the tensors of the new checkpoint that stand for an item. */
typedef struct names { char *items[OZ_MAX_PARTS]; int n; } names;

static names names_of(const oz_job *j, const oz_quantize_item *it) {
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
int64_t oz_job_layer_of(const oz_job *j, const oz_quantize_item *it) { return j->n_layers && (it->quantized || it->moved) ? it->arch->layer : -1; }

const oz_cache *oz_job_cache_of(const oz_job *j, int64_t layer) { return layer >= 0 && layer < j->q->n_caches ? &j->q->caches[layer] : NULL; }

/* Of what a layer has put into a checkpoint (-1: of what is kept). */
static oz_status layer_digest(char out[65], const oz_job *j, const oz_ckpt *c, int64_t layer, oz_err *err) {
    const oz_tensor **tensors = oz_alloc_array(j->q->n_items * OZ_MAX_PARTS + 2, sizeof *tensors);
    size_t n = 0;
    oz_status st = OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < j->q->n_items; i++) {
        if (oz_job_layer_of(j, &j->q->items[i]) != layer) continue;
        names of = names_of(j, &j->q->items[i]);
        for (int k = 0; k < of.n; k++)
            if (!(tensors[n++] = oz_ckpt_find(c, of.items[k])) && st == OZ_OK)
                st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: %s is not there", oz_ckpt_path(c), of.items[k]);
        names_free(&of);
    }
    const oz_cache *cache = oz_job_cache_of(j, layer);
    for (int k = 0; st == OZ_OK && cache && k < 2; k++)
        if (!(tensors[n++] = oz_ckpt_find(c, cache->tensors[k]))) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: %s is not there", oz_ckpt_path(c), cache->tensors[k]);
    if (st == OZ_OK) st = oz_digest_tensors(out, &(oz_digest){c, tensors, n, NULL}, j->pool, "checking");
    oz_free(tensors);
    return st;
}

oz_status oz_job_digest(char out[65], const oz_job *j, int64_t layer, oz_err *err) {
    oz_ckpt *c;
    OZ_TRY(oz_ckpt_open(&c, j->work.out, err));
    oz_status st = layer_digest(out, j, c, layer, err);
    oz_ckpt_close(&c);
    return st;
}

/* What the manifest says of a thing, and what was found. */
static bool proves(const json_t *said, const char *found) { return json_is_string(said) && strcmp(json_string_value(said), found) == 0; }

static oz_status side_files_check(const oz_job *j, const char *dir, oz_err *err) {
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

static oz_status layers_check(const oz_job *j, const oz_ckpt *c, oz_err *err) {
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
oz_status oz_job_out_check(const oz_job *j, const char *dir, oz_err *err) {
    oz_ckpt *c;
    OZ_TRY(side_files_check(j, dir, err));
    OZ_TRY(oz_ckpt_open(&c, dir, err));
    oz_status st = layers_check(j, c, err);
    oz_ckpt_close(&c);
    return st;
}

static oz_status residual_check(const oz_job *j, oz_err *err) {
    if (j->work.layers_done <= 0 || j->work.layers_done == j->n_layers || j->on_device) return OZ_OK;
    char found[65], *path = oz_job_residual_path(j, j->work.layers_done, "");
    oz_status st = oz_sum_file(found, path, err);
    if (st == OZ_OK && !proves(json_object_get(j->work.manifest, "residual"), found)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: is not as it was written", path);
    oz_free(path);
    return st;
}

oz_status oz_job_out_take_up(oz_job *j, oz_err *err) {
    OZ_TRY(oz_writer_reopen(&j->writer, j->q->layout, j->work.out, err));
    OZ_TRY(oz_job_out_check(j, j->work.out, err));
    OZ_TRY(residual_check(j, err));
    j->stream.writer = j->writer;
    for (size_t i = 0; i < j->q->n_items; i++) {
        if (oz_job_layer_of(j, &j->q->items[i]) >= j->work.layers_done) continue;
        names of = names_of(j, &j->q->items[i]);
        oz_status st = OZ_OK;
        for (int k = 0; st == OZ_OK && k < of.n; k++) st = oz_writer_keep(j->writer, of.items[k], err);
        names_free(&of);
        OZ_TRY(st);
    }
    for (int64_t i = 0; i < j->work.layers_done && oz_job_cache_of(j, i); i++)
        for (int k = 0; k < 2; k++) OZ_TRY(oz_writer_keep(j->writer, oz_job_cache_of(j, i)->tensors[k], err));
    return OZ_OK;
}

/* How the checkpoint was made, in itself. */
static oz_status recipe_write(const oz_job *j, oz_err *err) {
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
    if (j->q->kv.quantized) json_object_set_new(r, "kv_cache_scheme", json_string(oz_kv_scheme_name(&j->q->kv)));
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
oz_status oz_job_out_begin(oz_job *j, oz_err *err) {
    if (oz_path_exists(j->work.out)) OZ_TRY(oz_dir_remove(j->work.out, err));
    OZ_NEED(mkdir(j->work.out, 0777) == 0, err, OZ_E_IO, "%s: cannot create: %s", j->work.out, strerror(errno));
    OZ_TRY(oz_ckpt_copy_side_files(j->q->ckpt, j->work.out, err));
    OZ_TRY(oz_config_write(j->q->config, j->work.out, err));
    OZ_TRY(recipe_write(j, err));
    OZ_TRY(oz_writer_open(&j->writer, j->q->layout, j->work.out, err));
    j->stream.writer = j->writer;
    for (size_t i = 0; i < j->q->n_items; i++)
        if (oz_job_layer_of(j, &j->q->items[i]) < 0) OZ_TRY(oz_quantize_write_item(j->q, &j->q->items[i], &j->stream, err));
    OZ_TRY(oz_writer_sync(j->writer, err));
    json_t *files;
    char kept[65];
    OZ_TRY(oz_digest_side_files(&files, j->work.out, j->q->layout, err));
    json_object_set_new(j->work.manifest, "files", files);
    OZ_TRY(oz_job_digest(kept, j, -1, err));
    json_object_set_new(j->work.manifest, "kept", json_string(kept));
    j->work.layers_done = 0;
    return oz_work_save(&j->work, err);
}
