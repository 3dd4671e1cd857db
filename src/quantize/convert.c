/* Any checkpoint as plain floats or as compressed-tensors, some of its modules taken from others.
 *
 * A tensor of the result is one of four things: the bytes of a stored one; the floats of a stored one (of another type, blocks expanded, a GGUF's interleaved rows put back); the floats of a quantized
 * module; or a module of another family in compressed-tensors (recode.c). Tensors of one module come from one checkpoint. What comes of all is held against the rules of loading before a byte is written.
 * The names of the architecture are needed for that, and where schemes or patterns speak of modules: without them a dense checkpoint of any model can be converted to floats, unchecked. */
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "model/model.h"
#include "quantize/internal.h"
#include <inttypes.h>
#include <string.h>

/* One tensor of the result, or a module's tensors. */
typedef struct item {
    enum { BYTES, FLOATS, MODULE_FLOATS, MODULE_MADE } kind;
    char *name;
    const oz_origin *from;
    const oz_tensor *tensor;     /* BYTES, FLOATS */
    oz_module module;            /* MODULE_* */
    const oz_scheme *scheme;     /* MODULE_*: it is stored under */
    oz_weight weight;            /* MODULE_*; of FLOATS only the order of the rows counts */
    oz_recode recode;
    oz_dtype to;                 /* of floats */
    int64_t n_values, row;       /* row: values that stay together */
    size_t n_bytes;
} item;

struct oz_convert {
    oz_convert_cfg cfg;
    oz_origin *origins; /* the checkpoint, then those of cfg.takes */
    size_t *origin_of; /* [modules of the first]: an index of origins */
    oz_scheme *becomes; /* [same] */
    oz_layout *layout;
    json_t *config, *report;
    item **items; /* each its own allocation: a recode points into it */
    size_t n_items, cap_items, n_bytes, n_tensors, n_lossy;
    char *lossy;  /* the first module without a form in compressed-tensors, and why */
    oz_map *prefixes, *left_parts; /* of the first; what is left out, since nothing describes it any more: a part that has codes goes whole */
    const oz_tensor *left_out; /* the first tensor of these */
    size_t n_left_out;
};

/* ---- items ---- */

static item *item_new(oz_convert *c, int kind, const oz_origin *from, const char *name) {
    oz_grow((void **)&c->items, &c->cap_items, c->n_items + 1, sizeof *c->items);
    item *it = c->items[c->n_items++] = oz_alloc(sizeof *it);
    it->kind = kind, it->from = from, it->name = oz_strdup(name);
    return it;
}

static oz_status declare(oz_convert *c, item *it, const char *name, oz_dtype dtype, int n_dims, const int64_t *dims, oz_err *err) {
    int64_t n = 1;
    size_t n_bytes = 0;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    OZ_NEED(oz_dtype_bytes(&n_bytes, dtype, n), err, OZ_E_FORMAT, "%s: too large", name);
    it->n_bytes += n_bytes;
    c->n_bytes += n_bytes;
    c->n_tensors++;
    return oz_layout_add(c->layout, name, dtype, n_dims, dims, err);
}

static oz_status add_bytes(oz_convert *c, const oz_origin *s, const oz_tensor *t, oz_err *err) {
    item *it = item_new(c, BYTES, s, t->name);
    it->tensor = t;
    return declare(c, it, t->name, t->dtype, t->n_dims, t->dims, err);
}

/* Values that say themselves what they are. */
static bool is_floats(const oz_tensor *t) {
    return t->dtype == OZ_DTYPE_F32 || t->dtype == OZ_DTYPE_F16 || t->dtype == OZ_DTYPE_BF16 || t->dtype == OZ_DTYPE_F64 || oz_dtype_get(t->dtype)->block_elems > 1;
}

static oz_status add_floats(oz_convert *c, const oz_origin *s, const oz_tensor *t, oz_dtype to, oz_err *err) {
    const oz_dtype_info *d = oz_dtype_get(t->dtype);
    OZ_NEED(is_floats(t), err, OZ_E_FORMAT,
            "%s: expected floats or a scheme in quantization_config that describes it, found %s (%s)", t->name, d->name, t->file_name);
    if (t->dtype == to && !t->rope_heads) return add_bytes(c, s, t, err);
    item *it = item_new(c, FLOATS, s, t->name);
    it->tensor = t, it->to = to;
    it->n_values = 1;
    for (int i = 0; i < t->n_dims; i++) it->n_values *= t->dims[i];
    it->weight = (oz_weight){.rows = t->n_dims ? t->dims[0] : 1, .rope_heads = t->rope_heads};
    it->row = t->rope_heads ? it->n_values / t->dims[0] : d->block_elems;
    return declare(c, it, t->name, to, t->n_dims, t->dims, err);
}

/* What a dense tensor becomes: in compressed-tensors what it is, and out of blocks a type that holds every value. */
static oz_dtype dense_becomes(const oz_convert *c, const oz_tensor *t) {
    if (!c->cfg.compressed) return c->cfg.to;
    return oz_dtype_get(t->dtype)->in_safetensors ? t->dtype : c->cfg.lossy ? oz_arch_dtype(c->config) : OZ_DTYPE_F32;
}

static oz_status add_dense(oz_convert *c, const oz_origin *s, const oz_tensor *t, oz_err *err) {
    const bool as_is = c->cfg.compressed && oz_dtype_get(t->dtype)->in_safetensors && !t->rope_heads;
    return as_is ? add_bytes(c, s, t, err) : add_floats(c, s, t, dense_becomes(c, t), err);
}

static item *module_item(oz_convert *c, int kind, const oz_origin *s, const oz_module *m) {
    char *name = oz_asprintf("%s.weight", m->name);
    item *it = item_new(c, kind, s, name);
    it->module = *m;
    oz_free(name);
    return it;
}

static oz_status add_module_floats(oz_convert *c, item *it, oz_dtype to, oz_err *err) {
    it->to = to;
    it->n_values = it->module.rows * it->module.cols;
    it->row = it->module.cols;
    return declare(c, it, it->name, to, 2, (const int64_t[]){it->module.rows, it->module.cols}, err);
}

/* What has no form of its own is counted, and becomes floats where losses are allowed. */
static oz_status add_lossy(oz_convert *c, item *it, const char *why, oz_err *err) {
    const char *what = it->scheme->quantized ? it->scheme->name : oz_dtype_get(oz_codec_get(it->weight.codec)->dtype)->name;
    if (c->n_lossy++ == 0) c->lossy = oz_asprintf("%s: %s has no form in compressed-tensors without loss: %s", it->module.name, what, why);
    it->kind = MODULE_FLOATS;
    return add_module_floats(c, it, oz_arch_dtype(c->config), err);
}

static oz_status add_recoded(oz_convert *c, item *it, const oz_scheme *from, oz_scheme *becomes, oz_err *err) {
    const char *why = oz_recode_plan(&it->recode, from, &it->weight);
    oz_scheme_drop(it->from->ckpt, &it->module);
    if (why) return add_lossy(c, it, why, err);
    oz_part parts[OZ_MAX_PARTS];
    const int n = oz_scheme_parts(parts, &it->recode.to, it->module.rows, it->module.cols, it->recode.scale_dtype);
    oz_status st = OZ_OK;
    for (int i = 0; i < n && st == OZ_OK; i++) {
        char *name = oz_asprintf("%s%s", it->module.name, parts[i].suffix);
        st = declare(c, it, name, parts[i].dtype, parts[i].n_dims, parts[i].dims, err);
        oz_free(name);
    }
    *becomes = it->recode.to;
    return st;
}

/* The weight of a matrix with all that its scheme stores. */
static oz_status add_weight(oz_convert *c, const oz_origin *s, size_t row, oz_scheme *becomes, oz_err *err) {
    const oz_scheme *scheme = &s->schemes[row];
    const oz_module m = oz_arch_module(&s->list.items[row], s->ckpt);
    item *it;
    if (c->cfg.compressed && oz_scheme_is_native(scheme)) {
        oz_weight w;
        OZ_TRY(oz_scheme_bind(&w, s->ckpt, &m, scheme, err));
        *becomes = *scheme;
        for (int64_t i = s->first[row]; i >= 0; i = s->next[i])
            if (!oz_str_ends(oz_ckpt_at(s->ckpt, (size_t)i)->name, ".bias")) OZ_TRY(add_bytes(c, s, oz_ckpt_at(s->ckpt, (size_t)i), err));
        return OZ_OK;
    }
    it = module_item(c, c->cfg.compressed ? MODULE_MADE : MODULE_FLOATS, s, &m);
    it->scheme = scheme;
    OZ_TRY(oz_scheme_bind(&it->weight, s->ckpt, &m, scheme, err));
    return c->cfg.compressed ? add_recoded(c, it, scheme, becomes, err) : add_module_floats(c, it, c->cfg.to, err);
}

/* Blocks of a linear module have a form of their own; an embedding of blocks becomes floats, since few read a quantized one. */
static bool is_blocks(const oz_arch_tensor *a, const oz_tensor *t) { return strcmp(a->class_name, "Linear") == 0 && oz_dtype_get(t->dtype)->block_elems > 1; }

/* All tensors of a module, from where it is taken. */
static oz_status add_module(oz_convert *c, const oz_origin *s, size_t row, oz_scheme *becomes, oz_err *err) {
    const oz_arch_tensor *a = &s->list.items[row];
    OZ_NEED(s->first[row] >= 0, err, OZ_E_FORMAT, "%s: not in the checkpoint%s (%s)", a->name, s->tied && a->role == OZ_ROLE_HEAD ? ", which ties it to the embedding" : "", oz_ckpt_path(s->ckpt));
    bool whole = s->schemes[row].quantized;
    for (int64_t i = s->first[row]; i >= 0; i = s->next[i]) {
        const oz_tensor *t = oz_ckpt_at(s->ckpt, (size_t)i);
        whole = whole || (c->cfg.compressed && strcmp(t->name, a->name) == 0 && is_blocks(a, t));
    }
    if (whole) OZ_TRY(add_weight(c, s, row, becomes, err));
    for (int64_t i = s->first[row]; i >= 0; i = s->next[i]) {
        const oz_tensor *t = oz_ckpt_at(s->ckpt, (size_t)i);
        if (whole && !oz_str_ends(t->name, ".bias")) continue;
        OZ_TRY(add_dense(c, s, t, err));
    }
    return OZ_OK;
}

/* ---- what is taken from elsewhere ---- */

static oz_status take_one(oz_convert *c, size_t k, size_t row, size_t *n_hits, const char **bare, oz_err *err) {
    const oz_origin *base = &c->origins[0], *other = &c->origins[k + 1];
    const oz_arch_tensor *t = &base->list.items[row];
    const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
    const int64_t at = oz_origin_row(other, m.name);
    bool hit;
    if (oz_pattern_match(&hit, c->cfg.takes[k].pattern, &m, err) != OZ_OK) return oz_err_prefix(err, "--take");
    if (!hit) return OZ_OK;
    OZ_NEED(!c->origin_of[row], err, OZ_E_ARG, "--take: both '%s' and '%s' match %s", c->cfg.takes[c->origin_of[row] - 1].pattern, c->cfg.takes[k].pattern, m.name);
    OZ_NEED(at >= 0, err, OZ_E_FORMAT, "%s: no such module in %s", m.name, oz_ckpt_path(other->ckpt));
    if (oz_origin_lacks_head(base, row) && oz_origin_lacks_head(other, (size_t)at)) return *bare = m.name, OZ_OK;
    OZ_NEED(!oz_origin_lacks_head(other, (size_t)at), err, OZ_E_ARG, "--take '%s': matches %s, which has no tensor of its own in %s: it is tied to the embedding", c->cfg.takes[k].pattern, m.name,
            oz_ckpt_path(other->ckpt));
    ++*n_hits;
    c->origin_of[row] = k + 1;
    return oz_take_fits(base, row, other, (size_t)at, err);
}

static oz_status take_all(oz_convert *c, oz_err *err) {
    const oz_origin *base = &c->origins[0];
    bool *kept = oz_alloc_array(base->list.n + 1, sizeof *kept);
    oz_status st = OZ_OK;
    for (size_t k = 0; k < c->cfg.n_takes && st == OZ_OK; k++) {
        const char *pattern = c->cfg.takes[k].pattern, *bare = NULL;
        size_t n_hits = 0;
        for (size_t i = 0; i < base->list.n && st == OZ_OK; i++)
            if (oz_origin_row(base, base->list.items[i].module) == (int64_t)i) st = take_one(c, k, i, &n_hits, &bare, err);
        if (st != OZ_OK) break;
        if (!n_hits && bare) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "--take '%s': matches nothing but %s, which has no tensor of its own: both models tie it to the embedding", pattern, bare);
        else if (!n_hits) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "--take '%s': matches no module of this model", pattern);
        else if (bare) oz_log_info("%s has no tensor to take: both models tie it to the embedding", bare);
        for (size_t i = 0; i < base->list.n; i++) kept[i] = !c->origin_of[i];
        if (st == OZ_OK) oz_take_warn(base, &c->origins[k + 1], kept);
    }
    oz_free(kept);
    return st;
}

/* ---- planning ---- */

/* Whether codes that belong to no module of the model (to a layer too many, a tower) mean in the result what they mean here. */
static bool keeps_codes(const oz_convert *c) {
    const json_t *scheme = oz_scheme_locate(oz_ckpt_config(c->origins[0].ckpt));
    const char *method = json_string_value(json_object_get(scheme, "quant_method"));
    return !scheme || (c->cfg.compressed && (!method || strcmp(method, "compressed-tensors") == 0));
}

/* Codes, or what belongs to some: scales, a bias. */
static bool is_of_codes(const oz_ckpt *c, const oz_tensor *t) {
    const char *dot = strrchr(t->name, '.');
    char *module = oz_strndup(t->name, dot ? (size_t)(dot - t->name) : 0);
    const bool stored = oz_scheme_is_stored(c, &(oz_module){.name = module});
    oz_free(module);
    return stored || !is_floats(t);
}

/* What a tensor of no module is a part of. Layers behind those of the model go together, since the config counts them. */
static size_t part_of(const oz_convert *c, const char *name) {
    const size_t n = oz_part_length(c->prefixes, name);
    const char *layers = memmem(name, n, "layers.", 7);
    return layers ? (size_t)(layers - name) + 6 : n;
}

static void leave_parts(oz_convert *c) {
    const oz_origin *base = &c->origins[0];
    c->prefixes = oz_prefixes_new(&base->list), c->left_parts = oz_map_new(16);
    for (size_t i = 0; base->by_name && !keeps_codes(c) && i < oz_ckpt_count(base->ckpt); i++) {
        const oz_tensor *t = oz_ckpt_at(base->ckpt, i);
        if (oz_origin_owner(base, t->name) < 0 && is_of_codes(base->ckpt, t)) oz_map_add(c->left_parts, t->name, part_of(c, t->name), 0);
    }
}

/* The config does not count layers that are gone. */
static void forget_layer(const oz_convert *c, const oz_tensor *t) {
    json_t *text = json_object_get(c->config, "text_config"), *in = text ? text : c->config;
    if (memmem(t->name, part_of(c, t->name), "layers", 6) && json_object_get(in, "num_nextn_predict_layers")) json_object_set_new(in, "num_nextn_predict_layers", json_integer(0));
}

/* A tensor of no module, as the base has it. */
static oz_status add_other(oz_convert *c, const oz_tensor *t, oz_err *err) {
    const oz_origin *base = &c->origins[0];
    if (base->kv.quantized && oz_scheme_is_kv(t->name)) return c->cfg.compressed ? add_bytes(c, base, t, err) : OZ_OK; /* or it would be the scale of a cache that the result's config does not quantize */
    if (!base->by_name) return add_dense(c, base, t, err);
    if (!oz_map_get(c->left_parts, t->name, part_of(c, t->name), &(int64_t){0})) return is_floats(t) ? add_dense(c, base, t, err) : add_bytes(c, base, t, err);
    if (c->n_left_out++ == 0) c->left_out = t;
    forget_layer(c, t);
    return OZ_OK;
}

/* Of several checkpoints, the one that a message speaks of. */
static oz_status of_origin(oz_status st, const oz_convert *c, const oz_origin *o, oz_err *err) {
    return st != OZ_OK && c->cfg.n_takes ? oz_err_prefix(err, "%s", oz_ckpt_path(o->ckpt)) : st;
}

static oz_status add_taken(oz_convert *c, size_t row, oz_err *err) {
    const oz_origin *from = &c->origins[c->origin_of[row]];
    const int64_t at = oz_origin_row(from, c->origins[0].list.items[row].module);
    return of_origin(add_module(c, from, (size_t)at, &c->becomes[row], err), c, from, err);
}

static oz_status plan_tensors(oz_convert *c, oz_err *err) {
    const oz_origin *base = &c->origins[0];
    bool *done = oz_alloc_array(base->list.n + 1, sizeof *done);
    oz_status st = OZ_OK;
    leave_parts(c);
    for (size_t i = 0; i < oz_ckpt_count(base->ckpt) && st == OZ_OK; i++) {
        const oz_tensor *t = oz_ckpt_at(base->ckpt, i);
        const int64_t row = oz_origin_owner(base, t->name);
        if (row < 0) st = add_other(c, t, err);
        else if (!done[row]) st = add_taken(c, (size_t)row, err), done[row] = true;
        if (st == OZ_OK && oz_interrupted()) st = OZ_E_INTERRUPTED; /* of blocks all scales are looked at */
    }
    for (size_t i = 0; i < base->list.n && st == OZ_OK; i++) { /* a tied head has no tensor, and may get one */
        if (c->origin_of[i] && !done[i]) st = add_taken(c, i, err);
        if (c->origin_of[i] && base->tied && base->list.items[i].role == OZ_ROLE_HEAD) json_object_set_new(c->config, "tie_word_embeddings", json_false());
    }
    oz_free(done);
    if (st == OZ_OK && c->n_left_out)
        oz_log_warn("%s: is of no module of this model, and without the config of its scheme nothing says what its codes mean: left out, as %zu tensors in all (%s)", c->left_out->name, c->n_left_out, c->left_out->file_name);
    return st;
}

/* What is more than weights has no place among floats. */
static void warn_of_floats(const oz_convert *c) {
    const oz_origin *base = &c->origins[0];
    size_t n = 0, first = 0;
    for (size_t i = 0; i < c->n_items; i++)
        if (c->items[i]->kind == MODULE_FLOATS && c->items[i]->scheme->act != OZ_ACT_NONE && n++ == 0) first = i;
    const item *it = c->items[first];
    if (n) oz_log_warn("%s (scheme %s%s), and %zu modules in all: their inputs are not quantized any more, plain floats cannot say it", it->module.name, it->scheme->name,
                       it->scheme->other_inputs ? " with quantized inputs" : "", n);
    if (base->kv.quantized) oz_log_warn("%s: its quantized cache (kv_cache_scheme and its scales) is left out: plain floats cannot say it", oz_ckpt_path(base->ckpt));
}

static void warn_of_powers(const oz_convert *c) {
    size_t n = 0, first = 0;
    for (size_t i = 0; i < c->n_items; i++)
        if (c->items[i]->kind == MODULE_MADE && c->items[i]->scheme->input.powers && n++ == 0) first = i;
    if (n) oz_log_warn("%s (scheme %s), and %zu modules in all: the scales of their inputs are powers of two (scale_fmt), which compressed-tensors cannot say; they will be of any value", c->items[first]->module.name, c->items[first]->scheme->name, n);
}

static void floats_config(json_t *c, oz_dtype to) {
    json_t *name = json_string(oz_dtype_get(to)->torch);
    if (json_object_get(c, "torch_dtype") || !json_object_get(c, "dtype")) json_object_set(c, "torch_dtype", name);
    if (json_object_get(c, "dtype")) json_object_set(c, "dtype", name);
    json_decref(name);
}

static void found_add(void *arg, bool is_error, const char *text) {
    oz_log_warn("%s", text);
    json_array_append_new(arg, json_string(text));
    (void)is_error;
}

/* The matrices of the result; one that the architecture does not speak of may be a linear module to a reader. */
static size_t result_modules(const oz_convert *c, oz_module *modules, oz_scheme *schemes, char **names) {
    const oz_origin *base = &c->origins[0];
    size_t n = 0, n_names = 0;
    for (size_t i = 0; i < base->list.n; i++) {
        const oz_arch_tensor *t = &base->list.items[i];
        if (t->cols > 0) modules[n] = (oz_module){t->module, t->class_name, t->rows, t->cols, false}, schemes[n++] = c->becomes[i];
    }
    for (size_t i = 0; i < c->n_items; i++) {
        const oz_tensor *t = c->items[i]->tensor;
        if (!t || c->items[i]->from != base || t->n_dims != 2 || !oz_str_ends(t->name, ".weight") || oz_origin_owner(base, t->name) >= 0) continue;
        names[n_names] = oz_strndup(t->name, strlen(t->name) - strlen(".weight"));
        modules[n] = (oz_module){names[n_names++], "Linear", t->dims[0], t->dims[1], false}, schemes[n++] = OZ_SCHEME_DENSE;
    }
    return n;
}

static oz_status compressed_config(oz_convert *c, oz_err *err) {
    const size_t room = c->origins[0].list.n + c->n_items + 1;
    oz_module *modules = oz_alloc_array(room, sizeof *modules);
    oz_scheme *schemes = oz_alloc_array(room, sizeof *schemes);
    char **names = oz_alloc_array(room, sizeof *names);
    const size_t n = result_modules(c, modules, schemes, names);
    size_t quantized = 0;
    json_t *warnings = json_array();
    for (size_t i = 0; i < n; i++) quantized += schemes[i].quantized;
    json_object_set_new(c->config, "quantization_config", oz_scheme_config(modules, schemes, n, &c->origins[0].kv));
    if (quantized) oz_scheme_vllm(modules, schemes, n, &c->origins[0].kv, &(oz_findings){found_add, warnings});
    json_object_set_new(c->report, "warnings", warnings);
    for (size_t i = 0; i < room; i++) oz_free(names[i]);
    oz_free(names);
    oz_free(modules);
    oz_free(schemes);
    OZ_NEED(quantized || !c->n_lossy, err, OZ_E_ARG, "%s: none of its quantized modules has a form in compressed-tensors, so nothing of the result would be quantized; --to bf16 makes floats", oz_ckpt_path(c->origins[0].ckpt));
    OZ_NEED(quantized, err, OZ_E_ARG, "%s: no linear module in it is quantized, so it is no compressed-tensors checkpoint; `ounce quantize` makes one", oz_ckpt_path(c->origins[0].ckpt));
    return OZ_OK;
}

/* As inspect calls what is stored. */
static const char *name_of(oz_dtype d) {
    oz_codec plain;
    return oz_codec_plain(&plain, d) ? oz_codec_get(plain)->name : oz_dtype_get(d)->name;
}

/* How many modules became what: {from, to, modules}. */
static void count_modules(oz_convert *c) {
    json_t *rows = json_array();
    for (size_t i = 0; i < c->origins[0].list.n; i++) {
        const oz_arch_tensor *t = &c->origins[0].list.items[i];
        const oz_origin *s = &c->origins[c->origin_of[i]];
        int64_t at;
        if (!t->cols || (at = oz_origin_row(s, t->module)) < 0 || s->first[at] < 0) continue;
        const oz_tensor *w = oz_ckpt_find(s->ckpt, t->name);
        const bool lossy = c->cfg.compressed && (!w || is_blocks(t, w)); /* unless it has a scheme now */
        const char *to = c->becomes[i].quantized ? c->becomes[i].name : name_of(lossy ? oz_arch_dtype(c->config) : w ? dense_becomes(c, w) : c->cfg.to);
        const char *from = s->schemes[at].quantized || !w ? s->schemes[at].name : name_of(w->dtype);
        json_t *row = NULL;
        for (size_t k = 0; k < json_array_size(rows) && !row; k++) {
            json_t *r = json_array_get(rows, k);
            if (!strcmp(json_string_value(json_object_get(r, "from")), from) && !strcmp(json_string_value(json_object_get(r, "to")), to)) row = r;
        }
        if (row) json_object_set_new(row, "modules", json_integer(json_integer_value(json_object_get(row, "modules")) + 1));
        else json_array_append_new(rows, json_pack("{s:s, s:s, s:i}", "from", from, "to", to, "modules", 1));
    }
    json_object_set_new(c->report, "modules", rows);
    json_object_set_new(c->report, "tensors", json_integer((json_int_t)c->n_tensors));
}

static oz_status check_lossy(oz_convert *c, oz_err *err) {
    char others[64] = "";
    if (c->n_lossy > 1) snprintf(others, sizeof others, " (the first of %zu modules)", c->n_lossy);
    json_object_set_new(c->report, "lossy_modules", json_integer((json_int_t)c->n_lossy));
    if (!c->n_lossy) return OZ_OK;
    const char *type = name_of(oz_arch_dtype(c->config));
    OZ_NEED(c->cfg.lossy, err, OZ_E_UNSUPPORTED, "%s%s; --lossy stores such modules as %s", c->lossy, others, type);
    oz_log_warn("%s%s; stored as %s", c->lossy, others, type);
    return OZ_OK;
}

typedef struct faults { char *first; size_t n; } faults;

static void fault_add(void *arg, bool is_error, const char *text) {
    faults *f = arg;
    if (!is_error) oz_log_warn("%s", text);
    else if (f->n++ == 0) f->first = oz_strdup(text);
}

/* Whether what would be written is a model that loading takes, by all rules that go by names, types and shapes. */
static oz_status check_result(const oz_convert *c, oz_err *err) {
    char *where = oz_asprintf("%s, converted", oz_ckpt_path(c->origins[0].ckpt)), others[64] = "";
    oz_arch_list list = {0};
    oz_ckpt *view = NULL;
    faults found = {0};
    oz_status st = oz_layout_view(&view, c->layout, c->config, where, err);
    if (st == OZ_OK) st = oz_arch_list_new(&list, c->config, view, err);
    oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
    if (st == OZ_OK) st = oz_model_check(schemes, view, &list, &(oz_findings){fault_add, &found}, err);
    if (found.n > 1) snprintf(others, sizeof others, " (the first of %zu errors)", found.n);
    if (st == OZ_OK && found.n) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s%s", found.first, others);
    oz_free(found.first);
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    oz_ckpt_close(&view);
    oz_free(where);
    return st;
}

static oz_status origins_open(oz_convert *c, const oz_ckpt *ckpt, oz_err *err) {
    c->origins = oz_alloc_array(c->cfg.n_takes + 1, sizeof *c->origins);
    const bool needed = c->cfg.compressed || c->cfg.n_takes || oz_scheme_locate(oz_ckpt_config(ckpt));
    oz_err why = {0};
    oz_status st = oz_origin_open(&c->origins[0], ckpt, !c->cfg.compressed, &why);
    if (st == OZ_E_UNSUPPORTED && !needed) {
        oz_log_warn("%s: converted tensor by tensor; whether the model is whole cannot be told: %s", oz_ckpt_path(ckpt), why.msg);
        oz_origin_close(&c->origins[0]);
        c->origins[0] = (oz_origin){.ckpt = ckpt};
        st = OZ_OK;
    }
    if (st != OZ_OK && why.code != OZ_OK) oz_err_set(err, st, __FILE__, __LINE__, "%s", why.msg);
    if (st != OZ_OK) return of_origin(st, c, &c->origins[0], err);
    for (size_t k = 1; k <= c->cfg.n_takes; k++) OZ_TRY(of_origin(oz_origin_open(&c->origins[k], c->cfg.takes[k - 1].other, !c->cfg.compressed, err), c, &c->origins[k], err));
    return OZ_OK;
}

static oz_status plan(oz_convert *c, const oz_ckpt *ckpt, oz_err *err) {
    const json_t *config = oz_ckpt_config(ckpt);
    c->config = json_deep_copy(config);
    json_object_del(c->config, "quantization_config");
    json_object_del(c->config, "compression_config"); /* its name before 2024 */
    json_object_del(json_object_get(c->config, "text_config"), "quantization_config");
    OZ_TRY(origins_open(c, ckpt, err));
    const size_t n = c->origins[0].list.n;
    c->origin_of = oz_alloc_array(n + 1, sizeof *c->origin_of);
    c->becomes = oz_alloc_array(n + 1, sizeof *c->becomes);
    for (size_t i = 0; i < n; i++) c->becomes[i] = OZ_SCHEME_DENSE;
    OZ_TRY(take_all(c, err));
    OZ_TRY(plan_tensors(c, err));
    OZ_TRY(check_lossy(c, err));
    warn_of_powers(c);
    if (c->cfg.compressed) OZ_TRY(compressed_config(c, err));
    else warn_of_floats(c), floats_config(c->config, c->cfg.to);
    count_modules(c);
    if (c->origins[0].by_name) OZ_TRY(check_result(c, err));
    return oz_layout_fix(c->layout, err);
}

oz_status oz_convert_new(oz_convert **out, const oz_ckpt *ckpt, const oz_convert_cfg *cfg, oz_err *err) {
    *out = NULL;
    oz_convert *c = oz_alloc(sizeof *c);
    c->cfg = *cfg;
    c->layout = oz_layout_new(cfg->shard_bytes);
    c->report = json_object();
    oz_status st = plan(c, ckpt, err);
    if (st != OZ_OK) oz_convert_free(&c);
    *out = c;
    return st;
}

void oz_convert_free(oz_convert **pc) {
    oz_convert *c = *pc;
    if (!c) return;
    for (size_t i = 0; i < c->n_items; i++) {
        oz_free(c->items[i]->name);
        oz_free(c->items[i]);
    }
    for (size_t i = 0; c->origins && i <= c->cfg.n_takes; i++) oz_origin_close(&c->origins[i]);
    oz_free(c->items);
    oz_free(c->origins);
    oz_free(c->origin_of);
    oz_free(c->becomes);
    oz_free(c->lossy);
    oz_layout_free(&c->layout);
    oz_map_free(&c->prefixes);
    oz_map_free(&c->left_parts);
    json_decref(c->config);
    json_decref(c->report);
    oz_free(c);
    *pc = NULL;
}

const oz_layout *oz_convert_layout(const oz_convert *c) { return c->layout; }

const json_t *oz_convert_report(const oz_convert *c) { return c->report; }

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

static oz_status write_item(item *it, oz_stream *s, oz_err *err) {
    const oz_tensor *t = it->tensor;
    oz_status st = OZ_OK;
    switch (it->kind) {
    case BYTES: st = oz_stream_copy(s, it->name, t->data, t->n_bytes, err); break;
    case FLOATS: st = oz_stream_put(s, it->name, it->to, it->n_values, it->row, t->rope_heads ? fill_interleaved : fill_dense, it, err); break;
    case MODULE_FLOATS: st = oz_stream_put(s, it->name, it->to, it->n_values, it->row, fill_module, it, err); break;
    case MODULE_MADE: st = oz_recode_write(s, &it->recode, it->from->ckpt, &it->module, err); break;
    }
    if (t) oz_ckpt_drop(it->from->ckpt, t);
    else oz_scheme_drop(it->from->ckpt, &it->module);
    return st;
}

static oz_status write_tensors(oz_convert *c, const char *dir, oz_pool *pool, oz_err *err) {
    oz_writer *w;
    OZ_TRY(oz_writer_open(&w, c->layout, dir, err));
    oz_stream s;
    oz_stream_init(&s, w, pool, "converting", (int64_t)c->n_bytes);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < c->n_items && st == OZ_OK; i++) st = write_item(c->items[i], &s, err);
    oz_stream_deinit(&s);
    if (st == OZ_OK) st = oz_writer_finish(w, err);
    oz_writer_close(&w);
    return st;
}

oz_status oz_convert_run(oz_convert *c, const char *target, bool force, oz_pool *pool, oz_err *err) {
    oz_outdir *dir;
    OZ_TRY(oz_outdir_open(&dir, target, force, err));
    oz_status st = oz_ckpt_copy_side_files(c->origins[0].ckpt, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = oz_config_write(c->config, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = write_tensors(c, oz_outdir_path(dir), pool, err);
    if (st == OZ_OK) st = oz_outdir_commit(dir, err);
    oz_outdir_close(&dir);
    return st;
}
