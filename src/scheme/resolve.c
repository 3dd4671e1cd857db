/* From quantization_config to a scheme a module. Two stages: every group is parsed and judged first, so that a config is refused
 * for what it says; then each module takes the group whose target is most specific (exact name, expression, class). What is legal but not run
 * is refused only where a module would use it. The order of groups in the file never decides: two groups of equal
 * precedence that mean different things are an error, since readers in use disagree there. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "scheme/internal.h"

typedef struct patterns { oz_pattern *items; bool *used; size_t n; } patterns;

typedef struct group {
    char *path; /* "quantization_config.config_groups.group_0" */
    oz_args weights, acts;
    const char *format;
    patterns targets;
    oz_scheme scheme;
    const char *why_not; /* NULL: it can be run */
} group;

typedef struct config {
    char *path; /* "quantization_config" */
    const json_t *json;
    const char *format; /* of the top level; NULL: absent or mixed */
    group *groups;
    size_t n_groups;
    patterns ignore;
} config;

/* ---- formats ---- */

/* What config.json may call a way of storing; `packed` and `bytes` can be read. */
static const struct { const char *name; bool packed, bytes; } FORMATS[] = {
    {"int-quantized", false, true}, {"float-quantized", false, true}, {"naive-quantized", false, true}, {"pack-quantized", true, false},
    {"dense", 0, 0}, {"nvfp4-pack-quantized", 0, 0}, {"mxfp4-pack-quantized", 0, 0}, {"mxfp6-pack-quantized", 0, 0}, {"mxfp8-quantized", 0, 0},
    {"mixed-precision", 0, 0}, {"marlin-24", 0, 0}, {"sparse-bitmask", 0, 0}, {"sparse-24-bitmask", 0, 0}, {"fakequant", 0, 0},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS, FORMAT_NONE = N_FORMATS };

static size_t format_find(const char *name) {
    size_t i = 0;
    while (i < N_FORMATS && strcmp(FORMATS[i].name, name) != 0) i++;
    return i;
}

static oz_status format_parse(const char **out, const json_t *obj, const char *path, oz_err *err) {
    const char *name = NULL;
    *out = NULL;
    OZ_TRY(oz_json_str(&name, obj, path, "format", err));
    if (!name) return OZ_OK;
    size_t i = format_find(name);
    OZ_NEED(i != FORMAT_NONE, err, OZ_E_FORMAT, "%s.format: must be a format of compressed-tensors, found \"%.60s\"", path, name);
    *out = FORMATS[i].name;
    return OZ_OK;
}

/* As the library infers it where nothing is written. */
static const char *format_of(const oz_args *w, const oz_args *a) {
    if (!w->is_float) return a->present ? "int-quantized" : "pack-quantized";
    return a->present ? "float-quantized" : "naive-quantized";
}

/* ---- what can be run ---- */

static const char *reason(const oz_args *w, const oz_args *a, const char *format) {
    const size_t f = format_find(format);
    const bool packed = f < N_FORMATS && FORMATS[f].packed, bytes = f < N_FORMATS && FORMATS[f].bytes;
    const struct { bool is_so; const char *why; } rules[] = {
        {!w->present, "activations without weights"},
        {!packed && !bytes, "this format"},
        {!w->symmetric, "asymmetric weights"},
        {w->column_order, "a column order (actorder group)"},
        {w->strategy == OZ_STRATEGY_BLOCK, "block scales"},
        {w->strategy == OZ_STRATEGY_TENSOR_GROUP || w->narrow_scale, "the scales of NVFP4 and MX formats"},
        {w->is_float && (w->bits != 8 || packed || w->strategy == OZ_STRATEGY_GROUP), "floats other than float8 with channel or tensor scales"},
        {!w->is_float && packed && w->bits != 4 && w->bits != 8, "packed integers other than of 4 and 8 bits"},
        {!w->is_float && bytes && w->bits != 8, "integers of less than 8 bits stored one a byte"},
        {a->present && a->dynamic != OZ_DYNAMIC_YES, "static activation scales"},
        {a->present && a->strategy != OZ_STRATEGY_TOKEN, "activation scales other than per token"},
        {a->present && !a->symmetric, "asymmetric activations"},
        {a->present && (a->bits != 8 || a->is_float != w->is_float), "activations of another type than int8 with int8 and float8 with float8"},
        {a->present && (packed || w->strategy == OZ_STRATEGY_GROUP), "grouped or packed weights with quantized activations"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].is_so) return rules[i].why;
    return NULL;
}

static const char *display_name(const oz_scheme *s) {
    if (s->is_float) return s->act ? "FP8_DYNAMIC" : "FP8A16";
    return s->bits == 4 ? "W4A16" : s->act ? "W8A8" : "W8A16";
}

static void judge(group *g) {
    const oz_args *w = &g->weights, *a = &g->acts;
    g->scheme = OZ_SCHEME_DENSE;
    if (!w->present && !a->present) return; /* a group may say that its modules stay as they are */
    if (!g->format) g->format = format_of(w, a);
    g->why_not = reason(w, a, g->format);
    if (g->why_not) return;
    const bool packed = FORMATS[format_find(g->format)].packed;
    g->scheme = (oz_scheme){.quantized = true, .bits = w->bits, .is_float = w->is_float, .group_size = w->group_size, .symmetric = w->symmetric,
                            .per_tensor = w->strategy == OZ_STRATEGY_TENSOR, .format = g->format,
                            .codec = w->is_float ? OZ_CODEC_F8E4M3 : !packed ? OZ_CODEC_I8 : w->bits == 4 ? OZ_CODEC_I4P : OZ_CODEC_I8P,
                            .act = !a->present ? OZ_ACT_NONE : a->is_float ? OZ_ACT_F8_TOKEN : OZ_ACT_I8_TOKEN};
    g->scheme.name = display_name(&g->scheme);
}

/* "int4 asymmetric group 128, pack-quantized" */
static void describe(char out[160], const group *g) {
    const oz_args *w = &g->weights, *a = &g->acts;
    size_t n = 0;
    if (w->present) {
        n = (size_t)snprintf(out, 160, "%s%d %s %s", w->is_float ? "float" : "int", w->bits, w->symmetric ? "symmetric" : "asymmetric",
                             oz_strategy_name(w->strategy));
        if (w->group_size > 0) n += (size_t)snprintf(out + n, 160 - n, " %lld", (long long)w->group_size);
        if (w->block_rows > 0) n += (size_t)snprintf(out + n, 160 - n, " %lldx%lld", (long long)w->block_rows, (long long)w->block_cols);
    }
    if (a->present) {
        n += (size_t)snprintf(out + n, 160 - n, "%s%s %s%d activations", n ? " with " : "", a->dynamic ? "dynamic" : "static", a->is_float ? "float" : "int",
                              a->bits);
    }
    snprintf(out + n, 160 - n, ", %s", g->format);
}

/* ---- parsing ---- */

static void patterns_deinit(patterns *p) {
    for (size_t i = 0; i < p->n; i++) oz_pattern_deinit(&p->items[i]);
    oz_free(p->items);
    oz_free(p->used);
    *p = (patterns){0};
}

static oz_status patterns_parse(patterns *out, const json_t *list, const char *path, const char *key, oz_err *err) {
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "%s%s: must be a list of strings, found %s", path, key, oz_json_show(list));
    out->items = oz_alloc_array(json_array_size(list) + 1, sizeof *out->items);
    out->used = oz_alloc_array(json_array_size(list) + 1, sizeof *out->used);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *text = json_string_value(v);
        OZ_NEED(text && strlen(text) == json_string_length(v), err, OZ_E_FORMAT, "%s%s[%zu]: must be a string, found %s", path, key, i, oz_json_show(v));
        oz_status st = oz_pattern_init(&out->items[out->n], text, err);
        if (st != OZ_OK) {
            oz_err_prefix(err, "%s%s[%zu]", path, key, i);
            return st;
        }
        out->n++;
    }
    return OZ_OK;
}

/* ---- groups by preset name: {"W8A8": ["Linear"]} ---- */

#define WEIGHTS(...) {.present = true, .symmetric = true, __VA_ARGS__}
#define PER_TOKEN(type_is_float) {.present = true, .symmetric = true, .is_float = type_is_float, .bits = 8, .strategy = OZ_STRATEGY_TOKEN, .dynamic = OZ_DYNAMIC_YES}
static const struct { const char *name; oz_args weights, acts; } LIBRARY_PRESETS[] = {
    {"UNQUANTIZED", {0}, {0}},
    {"W8A8", WEIGHTS(.bits = 8, .strategy = OZ_STRATEGY_CHANNEL), PER_TOKEN(false)},
    {"INT8", WEIGHTS(.bits = 8, .strategy = OZ_STRATEGY_CHANNEL), PER_TOKEN(false)},
    {"W8A16", WEIGHTS(.bits = 8, .strategy = OZ_STRATEGY_GROUP, .group_size = 128), {0}},
    {"W4A16", WEIGHTS(.bits = 4, .strategy = OZ_STRATEGY_GROUP, .group_size = 128), {0}},
    {"W4A16_ASYM", {.present = true, .bits = 4, .strategy = OZ_STRATEGY_GROUP, .group_size = 128}, {0}},
    {"W4A8", WEIGHTS(.bits = 4, .strategy = OZ_STRATEGY_GROUP, .group_size = 128), PER_TOKEN(false)},
    {"W4AFP8", WEIGHTS(.bits = 4, .strategy = OZ_STRATEGY_GROUP, .group_size = 128), PER_TOKEN(true)},
    {"FP8", WEIGHTS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_TENSOR), WEIGHTS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_TENSOR)},
    {"FP8_DYNAMIC", WEIGHTS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_CHANNEL), PER_TOKEN(true)},
    {"FP8_BLOCK", WEIGHTS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_BLOCK, .block_rows = 128, .block_cols = 128),
     WEIGHTS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_GROUP, .group_size = 128, .dynamic = OZ_DYNAMIC_YES)},
};
enum { N_LIBRARY_PRESETS = sizeof LIBRARY_PRESETS / sizeof *LIBRARY_PRESETS };

static oz_status preset_parse(group *g, const char *name, const json_t *top, oz_err *err) {
    size_t i = 0;
    while (i < N_LIBRARY_PRESETS && strcasecmp(LIBRARY_PRESETS[i].name, name) != 0) i++;
    OZ_NEED(i < N_LIBRARY_PRESETS, err, OZ_E_UNSUPPORTED, "%s: a list of targets needs the name of a preset that is known here, found \"%.60s\"", g->path, name);
    g->weights = LIBRARY_PRESETS[i].weights;
    g->acts = LIBRARY_PRESETS[i].acts;
    int major, minor;
    const char *version = json_string_value(json_object_get(top, "version"));
    if (strcasecmp(name, "W8A16") == 0 && version && sscanf(version, "%d.%d", &major, &minor) == 2 && major == 0 && minor < 16) {
        g->weights.strategy = OZ_STRATEGY_CHANNEL; /* what the name meant until 0.16 */
        g->weights.group_size = 0;
    }
    return OZ_OK;
}

static oz_status group_parse(group *g, const char *name, const json_t *v, const config *c, oz_err *err) {
    static const char *const KEYS[] = {"targets", "weights", "input_activations", "output_activations", "format"};
    char *path = NULL;
    if (json_is_array(v)) {
        OZ_TRY(preset_parse(g, name, c->json, err));
        OZ_TRY(patterns_parse(&g->targets, v, g->path, "", err));
        g->format = c->format;
        return OZ_OK;
    }
    OZ_NEED(json_is_object(v), err, OZ_E_FORMAT, "%s: must be an object or a list of targets, found %s", g->path, oz_json_show(v));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value) {
        bool known = false;
        for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) known = known || strcmp(KEYS[i], key) == 0;
        OZ_NEED(known, err, OZ_E_FORMAT, "%s.%.80s: unknown key, which may change the meaning of the others", g->path, key);
    }
    OZ_TRY(patterns_parse(&g->targets, json_object_get(v, "targets"), g->path, ".targets", err));
    OZ_TRY(format_parse(&g->format, v, g->path, err));
    OZ_NEED(!g->format || strcmp(g->format, "mixed-precision") != 0, err, OZ_E_FORMAT, "%s.format: mixed-precision is no format of a group", g->path);
    if (!g->format) g->format = c->format;
    path = oz_asprintf("%s.weights", g->path);
    oz_status st = oz_args_parse(&g->weights, json_object_get(v, "weights"), path, true, err);
    oz_free(path);
    path = oz_asprintf("%s.input_activations", g->path);
    if (st == OZ_OK) st = oz_args_parse(&g->acts, json_object_get(v, "input_activations"), path, false, err);
    oz_free(path);
    OZ_TRY(st);
    const json_t *output = json_object_get(v, "output_activations");
    OZ_NEED(!output || json_is_null(output), err, OZ_E_UNSUPPORTED, "%s.output_activations: quantized outputs are not supported, found %s", g->path,
            oz_json_show(output));
    return OZ_OK;
}

/* Empty, or of a kind that changes nothing. */
static oz_status check_sparsity(const config *c, oz_err *err) {
    const json_t *s = json_object_get(c->json, "sparsity_config");
    const char *format = json_string_value(json_object_get(s, "format"));
    bool harmless = !s || json_is_null(s) || (json_is_object(s) && (json_object_size(s) == 0 || (format && strcmp(format, "dense") == 0)));
    OZ_NEED(harmless, err, OZ_E_UNSUPPORTED, "%s.sparsity_config: sparse storage is not supported, found %s", c->path, oz_json_show(s));
    return OZ_OK;
}

/* Transforms of weights are folded into what is stored; all others must be executed. */
static oz_status check_transforms(const config *c, oz_err *err) {
    const json_t *t = json_object_get(c->json, "transform_config"), *groups = json_object_get(t, "config_groups");
    OZ_NEED(!t || json_is_null(t) || json_is_object(t), err, OZ_E_FORMAT, "%s.transform_config: must be an object, found %s", c->path, oz_json_show(t));
    OZ_NEED(!groups || json_is_null(groups) || json_is_object(groups), err, OZ_E_FORMAT, "%s.transform_config.config_groups: must be an object, found %s",
            c->path, oz_json_show(groups));
    const char *name;
    json_t *g;
    json_object_foreach((json_t *)groups, name, g) {
        size_t i;
        json_t *apply;
        OZ_NEED(json_is_array(json_object_get(g, "apply")), err, OZ_E_FORMAT, "%s.transform_config.config_groups.%.60s.apply: must be a list, found %s", c->path,
                name, oz_json_show(json_object_get(g, "apply")));
        json_array_foreach(json_object_get(g, "apply"), i, apply) {
            const char *where = json_string_value(json_object_get(apply, "location"));
            OZ_NEED(where && (strcmp(where, "weight_input") == 0 || strcmp(where, "weight_output") == 0), err, OZ_E_UNSUPPORTED,
                    "%s.transform_config.config_groups.%.60s: transforms while running are not supported, found location %s", c->path, name,
                    oz_json_show(json_object_get(apply, "location")));
        }
    }
    return OZ_OK;
}

static oz_status check_kv_cache(const config *c, oz_err *err) {
    oz_args kv;
    char *path = oz_asprintf("%s.kv_cache_scheme", c->path);
    oz_status st = oz_args_parse(&kv, json_object_get(c->json, "kv_cache_scheme"), path, false, err);
    if (st == OZ_OK && kv.present && kv.dynamic)
        st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s.dynamic: must be false, found %s", path,
                        oz_json_show(json_object_get(json_object_get(c->json, "kv_cache_scheme"), "dynamic")));
    if (st == OZ_OK && kv.present)
        st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: a quantized key/value cache is not supported, found %s%d", path,
                        kv.is_float ? "float" : "int", kv.bits);
    oz_free(path);
    return st;
}

static oz_status check_status(const config *c, oz_err *err) {
    static const char *const STATES[] = {"initialized", "calibration", "frozen", "compressed", "decompressed"};
    const char *status = NULL;
    OZ_TRY(oz_json_str(&status, c->json, c->path, "quantization_status", err));
    if (!status) return OZ_OK;
    size_t i = 0;
    while (i < 5 && strcmp(status, STATES[i]) != 0) i++;
    OZ_NEED(i < 5, err, OZ_E_FORMAT, "%s.quantization_status: must be initialized, calibration, frozen, compressed or decompressed, found \"%.40s\"", c->path,
            status);
    if (i != 2 && i != 3) /* published files say frozen and mean compressed */
        oz_log_warn("%s.quantization_status: expected compressed, found %s; the stored tensors decide", c->path, status);
    return OZ_OK;
}

/* Where readers look for it. Leaves c->json NULL where the model is not quantized. */
static oz_status locate(config *c, const json_t *model, oz_err *err) {
    static const char *const PLACES[][2] = {{NULL, "quantization_config"}, {"text_config", "quantization_config"}, {NULL, "compression_config"}};
    for (size_t i = 0; i < 3 && !c->json; i++) {
        const json_t *parent = PLACES[i][0] ? json_object_get(model, PLACES[i][0]) : model, *v = json_object_get(parent, PLACES[i][1]);
        if (!v || json_is_null(v)) continue;
        const json_t *inner = json_object_get(v, "quantization_config");
        const bool nested = i == 2 && json_is_object(inner);
        c->json = nested ? inner : v;
        c->path = oz_asprintf("%s%s%s%s", PLACES[i][0] ? PLACES[i][0] : "", PLACES[i][0] ? "." : "", PLACES[i][1], nested ? ".quantization_config" : "");
        OZ_NEED(json_is_object(c->json), err, OZ_E_FORMAT, "%s: must be an object, found %s", c->path, oz_json_show(c->json));
    }
    return OZ_OK;
}

static oz_status config_parse(config *c, const json_t *model, oz_err *err) {
    OZ_TRY(locate(c, model, err));
    if (!c->json) return OZ_OK;
    const char *method = "compressed-tensors", *name;
    OZ_TRY(oz_json_str(&method, c->json, c->path, "quant_method", err));
    OZ_NEED(strcmp(method, "compressed-tensors") == 0, err, OZ_E_UNSUPPORTED, "%s.quant_method: only compressed-tensors is supported, found \"%.60s\"", c->path,
            method);
    OZ_TRY(format_parse(&c->format, c->json, c->path, err));
    if (c->format && strcmp(c->format, "mixed-precision") == 0) c->format = NULL;
    OZ_TRY(check_status(c, err));
    OZ_TRY(check_sparsity(c, err));
    OZ_TRY(check_transforms(c, err));
    OZ_TRY(check_kv_cache(c, err));
    const json_t *ignore = json_object_get(c->json, "ignore"), *groups = json_object_get(c->json, "config_groups");
    if (ignore && !json_is_null(ignore)) OZ_TRY(patterns_parse(&c->ignore, ignore, c->path, ".ignore", err));
    OZ_NEED(json_is_object(groups), err, OZ_E_FORMAT, "%s.config_groups: must be an object, found %s", c->path, oz_json_show(groups));
    c->groups = oz_alloc_array(json_object_size(groups) + 1, sizeof *c->groups);
    json_t *v;
    json_object_foreach((json_t *)groups, name, v) {
        group *g = &c->groups[c->n_groups++];
        g->path = oz_asprintf("%s.config_groups.%.80s", c->path, name);
        OZ_TRY(group_parse(g, name, v, c, err));
        judge(g);
    }
    return OZ_OK;
}

static void config_deinit(config *c) {
    for (size_t i = 0; i < c->n_groups; i++) {
        oz_free(c->groups[i].path);
        patterns_deinit(&c->groups[i].targets);
    }
    oz_free(c->groups);
    patterns_deinit(&c->ignore);
    oz_free(c->path);
}

/* ---- matching ---- */

/* The most specific of p's hits. `where`: the path of the patterns' owner. */
static oz_status best_hit(oz_hit *out, patterns *p, const oz_module *m, const char *where, oz_err *err) {
    *out = OZ_HIT_NONE;
    for (size_t i = 0; i < p->n; i++) {
        oz_hit hit;
        oz_status st = oz_pattern_hit(&hit, &p->items[i], m, err);
        if (st != OZ_OK) {
            oz_err_prefix(err, "%s", where);
            return st;
        }
        if (hit != OZ_HIT_NONE) p->used[i] = true;
        if (hit < *out) *out = hit;
    }
    return OZ_OK;
}

static bool same_meaning(const group *a, const group *b) {
    if (!a->weights.present && !b->weights.present && !a->acts.present && !b->acts.present) return true;
    return oz_args_equal(&a->weights, &b->weights) && oz_args_equal(&a->acts, &b->acts) && strcmp(a->format, b->format) == 0;
}

static oz_status pick(const group **out, config *c, const oz_module *m, oz_err *err) {
    oz_hit best = OZ_HIT_NONE, hit;
    *out = NULL;
    for (size_t i = 0; i < c->n_groups; i++) {
        group *g = &c->groups[i];
        OZ_TRY(best_hit(&hit, &g->targets, m, g->path, err));
        if (hit == OZ_HIT_NONE || hit > best) continue;
        OZ_NEED(hit < best || same_meaning(*out, g), err, OZ_E_FORMAT, "%s: %s and %s both apply to it, neither more specific, and differ", m->name,
                (*out)->path, g->path);
        if (hit < best) *out = g;
        best = hit;
    }
    OZ_TRY(best_hit(&hit, &c->ignore, m, c->path, err));
    if (hit != OZ_HIT_NONE) *out = NULL;
    return OZ_OK;
}

static oz_status resolve_module(oz_scheme *out, config *c, const oz_module *m, oz_err *err) {
    const group *g;
    *out = OZ_SCHEME_DENSE;
    if (strcmp(m->class_name, "Linear") != 0 && strcmp(m->class_name, "Embedding") != 0) return OZ_OK; /* norms are never quantized */
    OZ_TRY(pick(&g, c, m, err));
    if (!g) return OZ_OK;
    if (g->why_not) {
        char scheme[160];
        describe(scheme, g);
        OZ_FAIL(err, OZ_E_UNSUPPORTED, "%s: scheme %s of %s is not supported: %s", m->name, scheme, g->path, g->why_not);
    }
    *out = g->scheme;
    OZ_NEED(out->group_size == 0 || m->cols % out->group_size == 0, err, OZ_E_FORMAT, "%s.weights.group_size: %lld does not divide the %lld columns of %s",
            g->path, (long long)out->group_size, (long long)m->cols, m->name);
    return OZ_OK;
}

oz_status oz_scheme_resolve(oz_scheme *schemes, const json_t *model, const oz_module *modules, size_t n, oz_err *err) {
    config c = {0};
    oz_status st = config_parse(&c, model, err);
    for (size_t i = 0; i < n && st == OZ_OK; i++) {
        if (c.json) st = resolve_module(&schemes[i], &c, &modules[i], err);
        else schemes[i] = OZ_SCHEME_DENSE;
    }
    for (size_t i = 0; i < c.n_groups && st == OZ_OK; i++)
        for (size_t k = 0; k < c.groups[i].targets.n; k++)
            if (!c.groups[i].targets.used[k])
                oz_log_warn("%s.targets: '%.100s' matches no module of this model", c.groups[i].path, c.groups[i].targets.items[k].text);
    config_deinit(&c);
    return st;
}
