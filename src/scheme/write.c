/* quantization_config, written. What modules are stored as becomes groups of equal meaning, in the order of their first module. One group is said by class, as
 * everyone writes it: everything Linear, but what stands in `ignore`. Several are said so that every reader resolves them alike, whatever order it tries targets in:
 * by class names nobody is meant; an expression stands for a module's name in all layers (and experts) where those are all of one group, one for the experts of a layer where these are, and single
 * names for the rest, so no two targets meet. vLLM looks for a layer's experts as experts.0.gate_proj, up_proj and down_proj, whatever they are called, so expressions of w1, w3 and w2 take those names, too,
 * also where they are ignored. */
#include <ctype.h>
#include <string.h>
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

/* The versions whose layouts are written: before 0.18, fields of 3, 5, 6 and 7 bits did not cross words. */
static const char VERSION[] = "0.18.0", VERSION_WORDS[] = "0.17.1";

typedef struct group { const oz_scheme *scheme; json_t *targets; } group;

typedef struct writing {
    const oz_module *modules;
    const oz_scheme *schemes;
    size_t n;
    group *groups;
    size_t n_groups, cap_groups;
    size_t *of; /* [n]: a module's group + 1; 0: dense */
    oz_map *uniform;
} writing;

/* ---- arguments of a scheme: what groups.c reads, back ---- */

static oz_args weights_of(const oz_scheme *s) {
    oz_args a = {.present = true, .is_float = s->is_float, .symmetric = s->symmetric, .bits = s->bits, .column_order = s->column_order};
    const bool nv = oz_store_scale(s->store) == OZ_DTYPE_F8_E4M3;
    a.narrow_scale = oz_store_scale(s->store) != OZ_DTYPE_COUNT;
    a.strategy = s->per_tensor ? OZ_STRATEGY_TENSOR : s->block_rows > 0 ? OZ_STRATEGY_BLOCK : nv ? OZ_STRATEGY_TENSOR_GROUP : s->group_size > 0 ? OZ_STRATEGY_GROUP : OZ_STRATEGY_CHANNEL;
    if (s->block_rows > 0) a.block_rows = s->block_rows, a.block_cols = s->group_size;
    else a.group_size = s->group_size;
    return a;
}

static oz_args acts_of(const oz_scheme *s) {
    const bool codes = s->act == OZ_ACT_I8_TOKEN || s->act == OZ_ACT_F8_TOKEN;
    oz_args a = {.present = true, .symmetric = codes || s->input.symmetric, .bits = codes ? 8 : s->input.bits, .is_float = codes ? s->act == OZ_ACT_F8_TOKEN : s->input.is_float};
    a.dynamic = s->static_input ? OZ_DYNAMIC_NO : OZ_DYNAMIC_YES;
    a.group_size = codes ? 0 : s->input.group_size;
    a.strategy = s->static_input ? OZ_STRATEGY_TENSOR : a.group_size > 0 ? OZ_STRATEGY_GROUP : OZ_STRATEGY_TOKEN;
    return s->act == OZ_ACT_NONE ? (oz_args){0} : a;
}

bool oz_scheme_same(const oz_scheme *a, const oz_scheme *b) {
    if (!a->quantized || !b->quantized) return a->quantized == b->quantized;
    const oz_args wa = weights_of(a), wb = weights_of(b), aa = acts_of(a), ab = acts_of(b);
    return oz_args_equal(&wa, &wb) && oz_args_equal(&aa, &ab) && strcmp(a->format, b->format) == 0;
}

static size_t group_of(writing *w, const oz_scheme *s) {
    for (size_t i = 0; i < w->n_groups; i++)
        if (oz_scheme_same(w->groups[i].scheme, s)) return i;
    oz_grow((void **)&w->groups, &w->cap_groups, w->n_groups + 1, sizeof *w->groups);
    w->groups[w->n_groups] = (group){s, json_array()};
    return w->n_groups++;
}

static json_t *group_json(const group *g) {
    const oz_args weights = weights_of(g->scheme), acts = acts_of(g->scheme);
    json_t *o = json_object();
    json_object_set_new(o, "format", json_string(g->scheme->format));
    json_object_set_new(o, "input_activations", oz_args_write(&acts));
    json_object_set_new(o, "output_activations", json_null());
    json_object_set_new(o, "targets", g->targets);
    json_object_set_new(o, "weights", oz_args_write(&weights));
    return o;
}

/* ---- targets ---- */

/* The last part of an expert's name as vLLM looks for it, beside its own. */
static const char *alias_of(const char *name) {
    static const char *const names[][2] = {{".w1", "gate_proj"}, {".w2", "down_proj"}, {".w3", "up_proj"}};
    for (size_t i = 0; strstr(name, ".experts.") && i < sizeof names / sizeof *names; i++)
        if (oz_str_ends(name, names[i][0])) return names[i][1];
    return NULL;
}

/* The expression for a module's name in all layers, or among the experts of its own, or false: it belongs to none. What stands before "layers" differs between libraries. */
static bool expression(oz_buf *out, const char *name, bool own_layer) {
    const char *at = oz_str_starts(name, "layers.") ? name : strstr(name, ".layers."), *alias = alias_of(name), *last = strrchr(name, '.');
    int n_numbers = 0;
    oz_buf_clear(out);
    if (!at) return false;
    oz_buf_puts(out, "re:(.*\\.)?");
    for (at += *at == '.'; *at && !(alias && at == last + 1);) {
        const char *end = at;
        while (isdigit((unsigned char)*end)) end++;
        const bool number = end > at && at[-1] == '.' && (*end == '.' || !*end);
        if (number && (n_numbers++ > 0 || !own_layer)) {
            oz_buf_puts(out, "\\d+"), at = end;
        } else {
            if (!isalnum((unsigned char)*at) && *at != '_') oz_buf_putc(out, '\\');
            oz_buf_putc(out, *at++);
        }
    }
    if (alias) oz_buf_printf(out, "(%s|%s)", last + 1, alias);
    oz_buf_putc(out, '$');
    return n_numbers > own_layer;
}

enum { MIXED = -1, WRITTEN = -2 };

/* expression: the one group of all its modules. */
static oz_map *uniform_new(const writing *w) {
    oz_map *uniform = oz_map_new(64);
    oz_buf text = {0};
    int64_t g;
    for (size_t i = 0; i < w->n; i++)
        for (int own = 0; own < 2; own++) {
            if (!expression(&text, w->modules[i].name, own)) continue;
            if (!oz_map_get(uniform, text.data, text.len, &g)) g = (int64_t)w->of[i];
            oz_map_set(uniform, text.data, text.len, g == (int64_t)w->of[i] ? g : MIXED);
        }
    oz_buf_deinit(&text);
    return uniform;
}

/* A module, or once the expression that stands for it and others. */
static void name_add(json_t *list, const writing *w, size_t i) {
    oz_buf text = {0};
    int64_t g = MIXED;
    for (int own = 0; own < 2 && g == MIXED; own++)
        if (expression(&text, w->modules[i].name, own)) oz_map_get(w->uniform, text.data, text.len, &g);
    if (g == MIXED) json_array_append_new(list, json_string(w->modules[i].name));
    else if (g != WRITTEN) json_array_append_new(list, json_string(text.data)), oz_map_set(w->uniform, text.data, text.len, WRITTEN);
    oz_buf_deinit(&text);
}

static void targets_by_name(writing *w) {
    for (size_t i = 0; i < w->n; i++)
        if (w->of[i]) name_add(w->groups[w->of[i] - 1].targets, w, i);
}

/* Embeddings are no Linear: one that is quantized is named. */
static void targets_by_class(writing *w) {
    json_array_append_new(w->groups[0].targets, json_string("Linear"));
    for (size_t i = 0; i < w->n; i++)
        if (w->of[i] && strcmp(w->modules[i].class_name, "Linear") != 0) json_array_append_new(w->groups[0].targets, json_string(w->modules[i].name));
}

/* By names, as everyone writes it, but for experts that are looked for by others. */
static json_t *ignored(const writing *w) {
    json_t *names = json_array();
    for (size_t i = 0; i < w->n; i++) {
        if (w->of[i] || strcmp(w->modules[i].class_name, "Linear") != 0) continue;
        if (alias_of(w->modules[i].name)) name_add(names, w, i);
        else json_array_append_new(names, json_string(w->modules[i].name));
    }
    return names;
}

/* ---- the whole ---- */

static const char *format_of(const writing *w) {
    for (size_t i = 1; i < w->n_groups; i++)
        if (strcmp(w->groups[i].scheme->format, w->groups[0].scheme->format) != 0) return "mixed-precision";
    return w->n_groups ? w->groups[0].scheme->format : "dense";
}

static const char *version_of(const writing *w) {
    for (size_t i = 0; i < w->n; i++) {
        const oz_scheme *s = &w->schemes[i];
        if (w->of[i] && s->store == OZ_STORE_PACKED && s->old_layout && 32 % s->bits != 0) return VERSION_WORDS;
    }
    return VERSION;
}

static json_t *kv_json(const oz_kv_scheme *kv) {
    const oz_args a = {.present = kv && kv->quantized, .is_float = !(kv && kv->is_int), .symmetric = true, .bits = 8, .strategy = kv && kv->per_head ? OZ_STRATEGY_ATTN_HEAD : OZ_STRATEGY_TENSOR};
    return oz_args_write(&a);
}

json_t *oz_scheme_config(const oz_module *modules, const oz_scheme *schemes, size_t n, const oz_kv_scheme *kv) {
    writing w = {.modules = modules, .schemes = schemes, .n = n, .of = oz_alloc_array(n + 1, sizeof *w.of)};
    for (size_t i = 0; i < n; i++) w.of[i] = schemes[i].quantized ? group_of(&w, &schemes[i]) + 1 : 0;
    w.uniform = uniform_new(&w);
    if (w.n_groups == 1) targets_by_class(&w);
    else targets_by_name(&w);
    json_t *groups = json_object(), *config = json_object();
    for (size_t i = 0; i < w.n_groups; i++) {
        char *name = oz_asprintf("group_%zu", i);
        json_object_set_new(groups, name, group_json(&w.groups[i]));
        oz_free(name);
    }
    json_object_set_new(config, "config_groups", groups);
    json_object_set_new(config, "format", json_string(format_of(&w)));
    json_object_set_new(config, "global_compression_ratio", json_null());
    json_object_set_new(config, "ignore", ignored(&w));
    json_object_set_new(config, "kv_cache_scheme", kv_json(kv));
    json_object_set_new(config, "quant_method", json_string("compressed-tensors"));
    json_object_set_new(config, "quantization_status", json_string("compressed"));
    json_object_set_new(config, "sparsity_config", json_object());
    json_object_set_new(config, "transform_config", json_object());
    json_object_set_new(config, "version", json_string(version_of(&w)));
    oz_map_free(&w.uniform);
    oz_free(w.groups);
    oz_free(w.of);
    return config;
}
