/* Any checkpoint as plain floats. A tensor that belongs to a quantized module is read through its scheme, all others as they are;
 * GGUF's blocks are expanded and its interleaved rows put back. The names of the architecture are needed only where a
 * quantization_config is there: a dense checkpoint of any model can be converted. */
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/model.h"
#include "quantize/internal.h"
#include <inttypes.h>
#include <string.h>

/* One tensor of the result: a stored tensor, or the weight of a quantized module. */
typedef struct item {
    char *name;
    const oz_tensor *tensor; /* NULL: quantized */
    const oz_module *module;
    oz_weight weight;      /* quantized; else only the order of the rows counts */
    int64_t n_values, row; /* row: values that stay together */
} item;

struct oz_convert {
    const oz_ckpt *ckpt;
    oz_dtype to;
    oz_layout *layout;
    json_t *config;
    item *items;
    size_t n_items, cap_items;
    oz_arch_list list;  /* empty without a quantization_config */
    oz_module *modules; /* its linear modules */
    oz_scheme *schemes;
    size_t n_modules;
    bool kv_cache;      /* its scales are stored */
};

/* ---- planning ---- */
static item *item_new(oz_convert *c, char *name) {
    oz_grow((void **)&c->items, &c->cap_items, c->n_items + 1, sizeof *c->items);
    item *it = &c->items[c->n_items++];
    *it = (item){.name = name};
    return it;
}

static oz_status add_dense(oz_convert *c, const oz_tensor *t, oz_err *err) {
    const oz_dtype_info *d = oz_dtype_get(t->dtype);
    bool is_float = t->dtype == OZ_DTYPE_F32 || t->dtype == OZ_DTYPE_F16 || t->dtype == OZ_DTYPE_BF16 || t->dtype == OZ_DTYPE_F64;
    OZ_NEED(is_float || d->block_elems > 1, err, OZ_E_FORMAT,
            "%s: expected floats or a scheme in quantization_config that describes it, found %s (%s)", t->name, d->name, t->file_name);
    item *it = item_new(c, oz_strdup(t->name));
    it->tensor = t;
    it->n_values = 1;
    for (int i = 0; i < t->n_dims; i++) it->n_values *= t->dims[i];
    it->weight = (oz_weight){.rows = t->n_dims ? t->dims[0] : 1, .rope_heads = t->rope_heads};
    it->row = t->rope_heads ? it->n_values / t->dims[0] : d->block_elems;
    return oz_layout_add(c->layout, t->name, c->to, t->n_dims, t->dims, err);
}

static oz_status add_module(oz_convert *c, size_t m, oz_err *err) {
    const oz_module *module = &c->modules[m];
    item *it = item_new(c, oz_asprintf("%s.weight", module->name));
    it->module = module;
    it->n_values = module->rows * module->cols;
    it->row = module->cols;
    OZ_TRY(oz_scheme_bind(&it->weight, c->ckpt, module, &c->schemes[m], err));
    return oz_layout_add(c->layout, it->name, c->to, 2, (const int64_t[]){module->rows, module->cols}, err);
}

/* The linear modules of the architecture and the scheme of each. */
static oz_status resolve(oz_convert *c, const json_t *config, oz_err *err) {
    OZ_TRY(oz_arch_list_new(&c->list, config, c->ckpt, err));
    c->modules = oz_alloc_array(c->list.n, sizeof *c->modules);
    for (size_t i = 0; i < c->list.n; i++) {
        const oz_arch_tensor *t = &c->list.items[i];
        if (t->is_bias || strcmp(t->class_name, "Linear") != 0) continue;
        c->modules[c->n_modules++] = oz_arch_module(t, c->ckpt);
    }
    c->schemes = oz_alloc_array(c->n_modules, sizeof *c->schemes);
    oz_kv_scheme kv;
    OZ_TRY(oz_scheme_kv(&kv, config, err));
    c->kv_cache = kv.quantized;
    return oz_scheme_resolve(c->schemes, config, c->modules, c->n_modules, err);
}

static oz_status plan_tensors(oz_convert *c, oz_err *err) {
    oz_map *quantized = oz_map_new(c->n_modules);
    for (size_t m = 0; m < c->n_modules; m++) {
        if (c->schemes[m].quantized) oz_map_add(quantized, c->modules[m].name, strlen(c->modules[m].name), (int64_t)m);
    }
    bool *seen = oz_alloc_array(c->n_modules + 1, sizeof *seen);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < oz_ckpt_count(c->ckpt) && st == OZ_OK; i++) {
        const oz_tensor *t = oz_ckpt_at(c->ckpt, i);
        const char *dot = strrchr(t->name, '.');
        int64_t m;
        if (c->kv_cache && oz_scheme_is_kv(t->name)) continue; /* scales of a cache that the result's config does not quantize */
        if (!dot || strcmp(dot, ".bias") == 0 || !oz_map_get(quantized, t->name, (size_t)(dot - t->name), &m)) {
            st = add_dense(c, t, err);
        } else if (!seen[m]) { /* its first part stands for all; binding checks the others */
            seen[m] = true;
            st = add_module(c, (size_t)m, err);
        }
    }
    oz_map_free(&quantized);
    oz_free(seen);
    return st;
}

static json_t *new_config(const json_t *config, oz_dtype to) {
    json_t *c = json_deep_copy(config), *name = json_string(oz_dtype_get(to)->torch);
    json_object_del(c, "quantization_config");
    json_object_del(c, "compression_config"); /* its name before 2024 */
    json_object_del(json_object_get(c, "text_config"), "quantization_config");
    if (json_object_get(c, "torch_dtype") || !json_object_get(c, "dtype")) json_object_set(c, "torch_dtype", name);
    if (json_object_get(c, "dtype")) json_object_set(c, "dtype", name);
    json_decref(name);
    return c;
}

oz_status oz_convert_new(oz_convert **out, const oz_ckpt *ckpt, oz_dtype to, size_t shard_bytes, oz_err *err) {
    *out = NULL;
    oz_convert *c = oz_alloc(sizeof *c);
    const json_t *config = oz_ckpt_config(ckpt);
    c->ckpt = ckpt;
    c->to = to;
    c->layout = oz_layout_new(shard_bytes);
    c->config = new_config(config, to);
    oz_status st = OZ_OK;
    const bool quantized = json_object_get(config, "quantization_config") || json_object_get(config, "compression_config") || json_object_get(json_object_get(config, "text_config"), "quantization_config");
    if (quantized) st = resolve(c, config, err);
    if (st == OZ_OK) st = plan_tensors(c, err);
    if (st == OZ_OK) st = oz_layout_fix(c->layout, err);
    if (st != OZ_OK) oz_convert_free(&c);
    *out = c;
    return st;
}

void oz_convert_free(oz_convert **c) {
    if (!*c) return;
    for (size_t i = 0; i < (*c)->n_items; i++) oz_free((*c)->items[i].name);
    oz_free((*c)->items);
    oz_free((*c)->modules);
    oz_free((*c)->schemes);
    oz_arch_list_deinit(&(*c)->list);
    oz_layout_free(&(*c)->layout);
    json_decref((*c)->config);
    oz_free(*c);
    *c = NULL;
}

const oz_layout *oz_convert_layout(const oz_convert *c) { return c->layout; }

size_t oz_convert_count(const oz_convert *c) { return c->n_items; }

/* ---- running ---- */
static void fill_module(void *arg, float *dst, int64_t begin, int64_t n) {
    const item *it = arg;
    for (int64_t r = begin / it->row; r < (begin + n) / it->row; r++, dst += it->row) oz_weight_row(dst, &it->weight, r, 0, it->row);
}

static const char *value_at(const oz_tensor *t, int64_t i) {
    const oz_dtype_info *d = oz_dtype_get(t->dtype);
    return (const char *)t->data + (size_t)(i / d->block_elems) * (size_t)d->block_bytes;
}

static void fill_dense(void *arg, float *dst, int64_t begin, int64_t n) {
    const item *it = arg;
    oz_to_f32(dst, it->tensor->dtype, value_at(it->tensor, begin), n);
}

static void fill_interleaved(void *arg, float *dst, int64_t begin, int64_t n) {
    const item *it = arg;
    for (int64_t r = begin / it->row; r < (begin + n) / it->row; r++, dst += it->row) {
        oz_to_f32(dst, it->tensor->dtype, value_at(it->tensor, oz_weight_stored_row(&it->weight, r) * it->row), it->row);
    }
}

static oz_status write_item(oz_convert *c, item *it, oz_stream *s, oz_err *err) {
    const oz_tensor *t = it->tensor;
    oz_status st;
    if (!t)
        st = oz_stream_put(s, it->name, c->to, it->n_values, it->row, fill_module, it, err);
    else if (t->dtype == c->to && !t->rope_heads)
        st = oz_stream_copy(s, it->name, t->data, t->n_bytes, err);
    else
        st = oz_stream_put(s, it->name, c->to, it->n_values, it->row, t->rope_heads ? fill_interleaved : fill_dense, it, err);
    if (t)
        oz_ckpt_drop(c->ckpt, t);
    else
        oz_scheme_drop(c->ckpt, it->module);
    return st;
}

static oz_status write_tensors(oz_convert *c, const char *dir, oz_pool *pool, oz_err *err) {
    oz_writer *w;
    OZ_TRY(oz_writer_open(&w, c->layout, dir, err));
    int64_t total = 0;
    for (size_t i = 0; i < c->n_items; i++) total += c->items[i].n_values * oz_dtype_get(c->to)->block_bytes;
    oz_stream s;
    oz_stream_init(&s, w, pool, "converting", total);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < c->n_items && st == OZ_OK; i++) st = write_item(c, &c->items[i], &s, err);
    oz_stream_deinit(&s);
    if (st == OZ_OK) st = oz_writer_finish(w, err);
    oz_writer_close(&w);
    return st;
}

oz_status oz_convert_run(oz_convert *c, const char *target, bool force, oz_pool *pool, oz_err *err) {
    oz_outdir *dir;
    OZ_TRY(oz_outdir_open(&dir, target, force, err));
    oz_status st = oz_ckpt_copy_side_files(c->ckpt, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = oz_config_write(c->config, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = write_tensors(c, oz_outdir_path(dir), pool, err);
    if (st == OZ_OK) st = oz_outdir_commit(dir, err);
    oz_outdir_close(&dir);
    return st;
}
