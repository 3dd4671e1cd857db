/* Round-to-nearest quantization of a whole checkpoint. The plan resolves every pattern and fixes the layout, so that all that can
 * be wrong with the request is known, and every size, before a byte is written. The run takes one tensor at a time and of it some
 * rows at a time, all threads on them; each row is independent, so that neither chunks nor threads show in the result.
 *
 * With tied embeddings the head has no tensor of its own; quantizing it unties the two: the embedding stays as it was, the head is written beside it. */
#include "base/file.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "quantize/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef oz_quantize_item item;

static bool is_matrix(const oz_arch_tensor *t) { return t && !t->is_bias && t->cols > 0; }
static bool is_linear(const oz_arch_tensor *t) { return is_matrix(t) && strcmp(t->class_name, "Linear") == 0; }
static oz_module module_of(const oz_arch_tensor *t) { return (oz_module){t->module, t->class_name, t->rows, t->cols, false}; }

/* ---- planning ---- */

static oz_status check_source(const oz_quantize *q, oz_err *err) {
    const json_t *config = oz_ckpt_config(q->ckpt), *text = json_object_get(config, "text_config");
    const json_t *places[] = {json_object_get(config, "quantization_config"), json_object_get(text, "quantization_config"),
                              json_object_get(config, "compression_config")};
    for (size_t i = 0; i < 3; i++) {
        const char *method = json_string_value(json_object_get(places[i], "quant_method"));
        if (!places[i] || json_is_null(places[i])) continue;
        oz_origin o = {0};
        oz_status st = oz_origin_open(&o, q->ckpt, true, err); /* what convert cannot read is refused by its reason */
        oz_origin_close(&o);
        OZ_TRY(st);
        OZ_FAIL(err, OZ_E_ARG,
                "%s: expected a dense checkpoint or a GGUF, found one that is quantized already (%s); dequantize it first: ounce convert %s -o DIR --to bf16",
                oz_ckpt_path(q->ckpt), method ? method : "quantization_config", oz_ckpt_path(q->ckpt));
    }
    return OZ_OK;
}

/* The architecture's tensors with a row for the head whether or not it is tied. */
static oz_status list_tensors(oz_quantize *q, oz_err *err) {
    OZ_TRY(oz_arch_list_new(&q->list, oz_ckpt_config(q->ckpt), q->ckpt, err));
    q->tied = true;
    for (size_t i = 0; i < q->list.n; i++) q->tied = q->tied && q->list.items[i].role != OZ_ROLE_HEAD;
    if (!q->tied) return OZ_OK;
    json_t *untied = json_copy((json_t *)oz_ckpt_config(q->ckpt));
    json_object_set_new(untied, "tie_word_embeddings", json_false());
    oz_arch_list_deinit(&q->list);
    oz_status st = oz_arch_list_new(&q->list, untied, q->ckpt, err);
    json_decref(untied);
    return st;
}

/* Finds where an item comes from. A quantized or tied head is read from the embedding. */
static oz_status bind_item(oz_quantize *q, item *it, oz_err *err) {
    const oz_arch_tensor *t = it->arch;
    const char *source = t->name;
    oz_module m = module_of(t);
    it->dtype = q->model_dtype;
    if (q->tied && t->role == OZ_ROLE_HEAD) {
        it->absent = !it->quantized;
        if (it->absent) return OZ_OK;
        for (size_t i = 0; i < q->list.n; i++)
            if (q->list.items[i].role == OZ_ROLE_EMBED) source = q->list.items[i].name, m.name = q->list.items[i].module;
    }
    it->tensor = oz_ckpt_find(q->ckpt, source);
    OZ_NEED(it->tensor, err, OZ_E_FORMAT, "%s: not in the checkpoint (%s)", source, oz_ckpt_path(q->ckpt));
    if (!oz_ckpt_is_gguf(q->ckpt)) it->dtype = it->tensor->dtype;
    if (is_matrix(t)) return oz_scheme_bind(&it->weight, q->ckpt, &m, &OZ_SCHEME_DENSE, err);
    char expected[OZ_DIMS_TEXT], found[OZ_DIMS_TEXT];
    OZ_NEED(it->tensor->n_dims == t->n_dims && memcmp(it->tensor->dims, t->dims, (size_t)t->n_dims * sizeof *t->dims) == 0 && oz_codec_plain(&it->weight.codec, it->tensor->dtype), err,
            OZ_E_FORMAT, "%s: expected floats %s, found %s %s (%s)", source, oz_dims_show(expected, t->n_dims, t->dims), oz_dtype_get(it->tensor->dtype)->name,
            oz_dims_show(found, it->tensor->n_dims, it->tensor->dims), it->tensor->file_name);
    it->weight.rows = t->rows, it->weight.cols = 1; /* a bias of q or k has its rows interleaved in a GGUF */
    it->weight.codes = it->tensor->data, it->weight.rope_heads = it->tensor->rope_heads;
    it->weight.row_bytes = oz_codec_row_bytes(it->weight.codec, 1);
    return OZ_OK;
}

static oz_status declare(oz_quantize *q, item *it, oz_err *err) {
    if (it->absent) return OZ_OK;
    if (!it->quantized) {
        int64_t n = 1;
        for (int i = 0; i < it->tensor->n_dims; i++) n *= it->tensor->dims[i];
        OZ_NEED(oz_dtype_bytes(&it->bytes, it->dtype, n), err, OZ_E_FORMAT, "%s: too large", it->tensor->name);
        return oz_layout_add(q->layout, it->tensor->name, it->dtype, it->tensor->n_dims, it->tensor->dims, err);
    }
    oz_part parts[OZ_MAX_PARTS];
    const int n_parts = oz_scheme_parts(parts, &it->scheme, it->arch->rows, it->arch->cols, q->model_dtype);
    for (int i = 0; i < n_parts; i++) {
        size_t bytes;
        char *name = oz_asprintf("%s%s", it->arch->module, parts[i].suffix);
        oz_status st = oz_layout_add(q->layout, name, parts[i].dtype, parts[i].n_dims, parts[i].dims, err);
        oz_free(name);
        OZ_TRY(st);
        oz_dtype_bytes(&bytes, parts[i].dtype, parts[i].dims[0] * (parts[i].n_dims > 1 ? parts[i].dims[1] : 1));
        it->bytes += bytes;
    }
    return OZ_OK;
}

/* Tensors that no row of the architecture speaks of, in the order of their names. */
static oz_status add_unknown(oz_quantize *q, oz_err *err) {
    oz_map *known = oz_map_new(q->list.n);
    for (size_t i = 0; i < q->list.n; i++) oz_map_add(known, q->list.items[i].name, strlen(q->list.items[i].name), (int64_t)i);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < oz_ckpt_count(q->ckpt) && st == OZ_OK; i++) {
        const oz_tensor *t = oz_ckpt_at(q->ckpt, i);
        int64_t at;
        if (oz_map_get(known, t->name, strlen(t->name), &at)) continue;
        if (!oz_dtype_get(t->dtype)->in_safetensors) {
            st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: %s tensors outside the architecture cannot be kept (%s)", t->name,
                            oz_dtype_get(t->dtype)->name, t->file_name);
            break;
        }
        item *it = &q->items[q->n_items++];
        *it = (item){.tensor = t, .dtype = t->dtype};
        st = declare(q, it, err);
    }
    oz_map_free(&known);
    return st;
}

static void on_finding(void *arg, bool is_error, const char *text) { oz_log_warn("%s", text); }

static json_t *new_config(const oz_quantize *q) {
    json_t *config = json_deep_copy(oz_ckpt_config(q->ckpt));
    oz_module *modules = oz_alloc_array(q->n_items + 1, sizeof *modules);
    oz_scheme *schemes = oz_alloc_array(q->n_items + 1, sizeof *schemes);
    char **others = oz_alloc_array(q->n_items + 1, sizeof *others);
    size_t n = 0, n_others = 0;
    for (size_t i = 0; i < q->list.n; i++) {
        const item *it = &q->items[i];
        if (is_linear(it->arch)) modules[n] = module_of(it->arch), schemes[n++] = it->quantized ? it->scheme : OZ_SCHEME_DENSE;
        if (!q->tied || it->arch->role != OZ_ROLE_HEAD || !it->quantized) continue;
        json_object_set_new(config, "tie_word_embeddings", json_false());
        oz_log_warn("%s: shares its weights with the embedding, which stays as it is: quantized it is stored beside it, and the checkpoint grows", it->arch->module);
    }
    for (size_t i = q->list.n; i < q->n_items; i++) { /* a matrix that the architecture does not speak of may be a linear module to a reader */
        const oz_tensor *t = q->items[i].tensor;
        if (t->n_dims != 2 || !oz_str_ends(t->name, ".weight")) continue;
        others[n_others++] = oz_strndup(t->name, strlen(t->name) - strlen(".weight"));
        modules[n] = (oz_module){others[n_others - 1], "Linear", t->dims[0], t->dims[1], false}, schemes[n++] = OZ_SCHEME_DENSE;
    }
    json_object_set_new(config, "quantization_config", oz_scheme_config(modules, schemes, n, &q->kv));
    oz_scheme_vllm(modules, schemes, n, &q->kv, &(oz_findings){on_finding, NULL});
    while (n_others > 0) oz_free(others[--n_others]);
    oz_free(others);
    oz_free(modules);
    oz_free(schemes);
    if (!json_object_get(config, "torch_dtype") && !json_object_get(config, "dtype"))
        json_object_set_new(config, "torch_dtype", json_string(oz_dtype_get(q->model_dtype)->torch));
    return config;
}

static oz_status plan(oz_quantize *q, const oz_quantize_cfg *cfg, oz_err *err) {
    OZ_TRY(check_source(q, err));
    OZ_TRY(list_tensors(q, err));
    q->model_dtype = oz_arch_dtype(oz_ckpt_config(q->ckpt));
    q->items = oz_alloc_array(q->list.n + oz_ckpt_count(q->ckpt) + 1, sizeof *q->items);
    q->modules = oz_alloc_array(q->list.n + 1, sizeof *q->modules);
    q->n_items = q->list.n;
    for (size_t i = 0; i < q->list.n; i++) q->items[i].arch = &q->list.items[i];
    OZ_TRY(oz_quantize_select(q, cfg, err));
    OZ_TRY(oz_quantize_fold_plan(q, err));
    for (size_t i = 0; i < q->list.n; i++) {
        item *it = &q->items[i];
        OZ_TRY(bind_item(q, it, err));
        OZ_TRY(declare(q, it, err));
        if (is_matrix(it->arch) && !it->absent) q->modules[q->n_modules++] = i;
    }
    OZ_TRY(add_unknown(q, err));
    OZ_TRY(oz_cache_plan(q, err));
    q->config = new_config(q);
    return oz_layout_fix(q->layout, err);
}

/* What the command line says of modules, for ounce_recipe.json. */
static json_t *asked_of(const oz_quantize_cfg *cfg) {
    const struct { const char *key; const char *const *items; size_t n; } lists[] = {{"targets", cfg->targets, cfg->n_targets}, {"ignore", cfg->ignore, cfg->n_ignore}};
    json_t *out = json_object();
    for (int k = 0; k < 2; k++) {
        json_t *list = json_array();
        for (size_t i = 0; i < lists[k].n; i++) json_array_append_new(list, oz_json_text(lists[k].items[i]));
        if (lists[k].n) json_object_set(out, lists[k].key, list);
        json_decref(list);
    }
    return out;
}

oz_status oz_quantize_new(oz_quantize **out, const oz_ckpt *ckpt, const oz_quantize_cfg *cfg, oz_err *err) {
    oz_quantize *q = oz_alloc(sizeof *q);
    q->ckpt = ckpt;
    q->dampening = cfg->recipe ? cfg->recipe->dampening : cfg->dampening;
    q->recipe = cfg->recipe ? json_incref(cfg->recipe->json) : NULL;
    q->all_experts = cfg->all_experts;
    q->asked = asked_of(cfg);
    q->kv = cfg->recipe ? cfg->recipe->kv : cfg->kv;
    q->budget = cfg->budget ? json_incref(cfg->budget->report) : NULL;
    q->layout = oz_layout_new(cfg->shard_bytes);
    q->method = oz_strdup(cfg->method ? cfg->method : "rtn"), q->strength = cfg->strength;
    oz_status st = plan(q, cfg, err);
    if (st != OZ_OK) oz_quantize_free(&q);
    *out = q;
    return st;
}

void oz_quantize_free(oz_quantize **pq) {
    oz_quantize *q = *pq;
    if (!q) return;
    oz_quantize_fold_free(q);
    oz_cache_free(q);
    oz_arch_list_deinit(&q->list);
    oz_layout_free(&q->layout);
    json_decref(q->config);
    json_decref(q->recipe);
    json_decref(q->asked);
    json_decref(q->budget);
    json_decref(q->mappings);
    oz_free(q->items);
    oz_free(q->modules);
    oz_free(q->method);
    oz_free(q);
    *pq = NULL;
}

void oz_quantize_plan_add(oz_sha256 *s, const oz_quantize *q) {
    oz_sha256_add_json(s, q->config);
    oz_sha256_add(s, &q->dampening, sizeof q->dampening);
    oz_sha256_add(s, &q->strength, sizeof q->strength);
    oz_sha256_add(s, &q->all_experts, sizeof q->all_experts);
    oz_sha256_add(s, q->method, strlen(q->method));
    if (q->recipe) oz_sha256_add_json(s, q->recipe);
    if (q->transform) oz_sha256_add(s, q->transform->name, strlen(q->transform->name)); /* a recipe's, too */
    for (size_t i = 0; i < q->list.n; i++) oz_sha256_add(s, &q->items[i].gptq, sizeof q->items[i].gptq);
    for (size_t i = 0; i < oz_layout_file_count(q->layout); i++) {
        size_t n_bytes;
        const char *name = oz_layout_file(q->layout, i, &n_bytes);
        oz_sha256_add(s, name, strlen(name) + 1);
        oz_sha256_add(s, &n_bytes, sizeof n_bytes);
    }
}

const oz_layout *oz_quantize_layout(const oz_quantize *q) { return q->layout; }
size_t oz_quantize_count(const oz_quantize *q) { return q->n_modules; }

oz_quantize_module oz_quantize_at(const oz_quantize *q, size_t i) {
    const item *it = &q->items[q->modules[i]];
    return (oz_quantize_module){it->arch->module, oz_role_name(it->arch->role), it->quantized ? &it->scheme : &OZ_SCHEME_DENSE, it->arch->rows, it->arch->cols, it->bytes};
}

/* ---- running ---- */

static oz_status write_quantized(oz_quantize *q, item *it, oz_stream *s, oz_err *err) {
    const oz_module m = module_of(it->arch);
    oz_err bad = {0};
    oz_status st = oz_stream_rtn(s, &m, &it->scheme, q->model_dtype, &(oz_source){oz_item_fill, it, it->input_scale, it->input_zero}, &bad);
    if (st == OZ_E_FORMAT) OZ_FAIL(err, st, "%s: %s (%s)", it->tensor->name, bad.msg, it->tensor->file_name);
    if (st != OZ_OK && bad.code != OZ_OK) OZ_FAIL(err, st, "%s", bad.msg);
    return st;
}

oz_status oz_quantize_write_item(oz_quantize *q, item *it, oz_stream *s, oz_err *err) {
    oz_status st;
    oz_err bad = {0};
    if (it->absent) return OZ_OK;
    if (!it->quantized && oz_finite_check(it->tensor, &bad) != OZ_OK) oz_log_warn("%s; it is kept as it is", bad.msg);
    if (it->quantized) st = write_quantized(q, it, s, err);
    else if (it->tensor->dtype == it->dtype && !it->tensor->rope_heads && !it->moved) st = oz_stream_copy(s, it->tensor->name, it->tensor->data, it->tensor->n_bytes, err);
    else st = oz_stream_put(s, it->tensor->name, it->dtype, it->weight.rows * it->weight.cols, it->weight.cols, oz_item_fill, it, err);
    oz_ckpt_drop(q->ckpt, it->tensor);
    return st;
}

static oz_status write_tensors(oz_quantize *q, const char *dir, oz_pool *pool, oz_err *err) {
    oz_writer *w;
    OZ_TRY(oz_writer_open(&w, q->layout, dir, err));
    int64_t total = 0;
    for (size_t i = 0; i < q->n_items; i++) total += (int64_t)q->items[i].bytes;
    oz_stream s;
    oz_stream_init(&s, w, pool, "quantizing", total);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < q->n_items && st == OZ_OK; i++) st = oz_quantize_write_item(q, &q->items[i], &s, err);
    oz_stream_deinit(&s);
    if (st == OZ_OK) st = oz_writer_finish(w, err);
    oz_writer_close(&w);
    return st;
}

oz_status oz_quantize_recipe_write(const json_t *recipe, const char *dir, oz_err *err) {
    char *text = json_dumps(recipe, JSON_INDENT(2) | JSON_SORT_KEYS), *path = oz_path_join(dir, "ounce_recipe.json"), *line = oz_asprintf("%s\n", text);
    oz_status st = oz_file_write_atomic(path, line, strlen(line), err);
    oz_free(line);
    oz_free(path);
    free(text);
    return st;
}

oz_status oz_quantize_run(oz_quantize *q, const char *target, bool force, oz_pool *pool, oz_err *err) {
    oz_outdir *dir;
    OZ_NEED(!oz_quantize_wants_text(q), err, OZ_E_ARG, "%s needs calibration", oz_quantize_wants_text(q));
    OZ_TRY(oz_outdir_open(&dir, target, force, err));
    oz_status st = oz_ckpt_copy_side_files(q->ckpt, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = oz_config_write(q->config, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = write_tensors(q, oz_outdir_path(dir), pool, err);
    if (st == OZ_OK) st = oz_outdir_commit(dir, err);
    oz_outdir_close(&dir);
    return st;
}
