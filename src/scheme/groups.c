/* compressed-tensors: from config_groups to a scheme a module. Two stages: every group is parsed and judged first, so that a config is
 * refused for what it says; then each module takes the group whose target is most specific (exact name, expression, class). What is legal but not run
 * is refused only where a module would use it. The order of groups in the file never decides: two groups of equal
 * precedence that mean different things are an error, since readers in use disagree there. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/json.h"
#include "base/mem.h"
#include "scheme/internal.h"

/* ---- formats ---- */

/* What config.json may call a way of storing, and what it stores: weights of other arguments contradict it. bits 0: any; store COUNT: not read here. */
static const struct { const char *name; oz_store store; bool ints, floats; int bits; int64_t group; } FORMATS[] = {
    {"int-quantized", OZ_STORE_BYTES, true, true, 0, 0}, {"float-quantized", OZ_STORE_BYTES, true, true, 0, 0}, {"naive-quantized", OZ_STORE_BYTES, true, true, 0, 0},
    {"pack-quantized", OZ_STORE_PACKED, true, false, 0, 0}, {"nvfp4-pack-quantized", OZ_STORE_NVFP4, false, true, 4, 16}, {"mxfp4-pack-quantized", OZ_STORE_MXFP4, false, true, 4, 32},
    {"mxfp8-quantized", OZ_STORE_MXFP8, false, true, 8, 32}, {"mxfp6-pack-quantized", OZ_STORE_MXFP6, false, true, 6, 32},
    {"dense", OZ_STORE_COUNT, true, true, 0, 0}, {"mixed-precision", OZ_STORE_COUNT, true, true, 0, 0}, {"marlin-24", OZ_STORE_COUNT, true, true, 0, 0},
    {"sparse-bitmask", OZ_STORE_COUNT, true, true, 0, 0}, {"sparse-24-bitmask", OZ_STORE_COUNT, true, true, 0, 0}, {"fakequant", OZ_STORE_COUNT, true, true, 0, 0},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS, FORMAT_NONE = N_FORMATS };

static const oz_codec FLOATS[9] = {[4] = OZ_CODEC_E2M1, [6] = OZ_CODEC_E2M3, [8] = OZ_CODEC_F8E4M3}; /* by bits */

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
    const bool fp4 = w->is_float && w->bits == 4;
    if (fp4 && w->group_size == 32) return "mxfp4-pack-quantized";
    if (w->is_float && w->bits == 6) return "mxfp6-pack-quantized";
    if (w->is_float && w->bits == 8 && w->group_size == 32 && w->narrow_scale) return "mxfp8-quantized";
    if (fp4 && w->group_size == 16) return "nvfp4-pack-quantized";
    if (!w->is_float) return a->present ? "int-quantized" : "pack-quantized";
    return a->present ? "float-quantized" : "naive-quantized";
}

/* ---- what can be run ---- */

static const char *reason(const oz_args *w, const oz_args *a, oz_store store, const char *version) {
    const bool narrow = oz_store_scale(store) != OZ_DTYPE_COUNT;
    const struct { bool is_so; const char *why; } rules[] = {
        {!w->present, "activations without weights"},
        {store == OZ_STORE_COUNT, "this format"},
        {w->is_float && !w->symmetric, "asymmetric floats"},
        {w->is_float && store == OZ_STORE_BYTES && w->bits != 8, "floats of less than 8 bits stored one a byte"},
        {!narrow && (w->strategy == OZ_STRATEGY_TENSOR_GROUP || w->narrow_scale), "the scales of NVFP4 and MX formats in another format"},
        {w->strategy == OZ_STRATEGY_BLOCK && (!w->symmetric || store != OZ_STORE_BYTES), "blocks with zero points, or packed"},
        {a->present && narrow, "quantized activations with NVFP4 or MX weights"},
        {store == OZ_STORE_MXFP4 && version && strncmp(version, "0.13.", 5) == 0, "version 0.13 wrote exponents that are 2 too small, and no file tells whether it did; quantize it anew"},
        {a->present && (a->dynamic == OZ_DYNAMIC_LOCAL || a->strategy == OZ_STRATEGY_TENSOR_GROUP), "activation scales of NVFP4"},
        {a->present && a->dynamic && a->strategy == OZ_STRATEGY_TENSOR, "one dynamic scale for all tokens of a call, which makes a token's result depend on its company"},
        {a->present && !a->dynamic && a->strategy != OZ_STRATEGY_TENSOR, "static activation scales other than one a tensor"},
        {a->present && a->strategy == OZ_STRATEGY_ATTN_HEAD, "activation scales a head of a linear module"},
        {a->present && a->is_float && (a->bits != 8 || !a->symmetric), "float activations other than symmetric float8"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].is_so) return rules[i].why;
    return NULL;
}

/* Names of schemes for people: presets' where one has this meaning, and else made in the same way: weights, A, inputs. A bare number is of an integer. */
#define INPUTS(w, zero) {w "A16" zero, "", w "A2" zero, w "A3" zero, w "A4" zero, w "A5" zero, w "A6" zero, w "A7" zero, w "A8" zero, w "AFP8" zero}
#define WEIGHTS(w) {INPUTS(w, "_ASYM"), INPUTS(w, "")}
const char *oz_scheme_display(const oz_scheme *s) {
    static const char *const ints[9][2][10] = {[2] = WEIGHTS("W2"), [3] = WEIGHTS("W3"), [4] = WEIGHTS("W4"), [5] = WEIGHTS("W5"), [6] = WEIGHTS("W6"), [7] = WEIGHTS("W7"), [8] = WEIGHTS("W8")};
    static const char *const floats[] = INPUTS("FP8", ""), *const blocks[] = INPUTS("FP8_BLOCK", "");
    enum { NONE = 0, FP8 = 9 };
    const bool float_in = s->act == OZ_ACT_F8_TOKEN || (s->act == OZ_ACT_VALUES && s->input.is_float);
    const int inputs = s->act == OZ_ACT_NONE ? NONE : float_in ? FP8 : s->act == OZ_ACT_I8_TOKEN ? 8 : s->input.bits;
    if (oz_store_name(s->store)) return oz_store_name(s->store);
    if (!s->is_float && s->bits == 8 && s->symmetric && inputs == 8 && s->static_input) return "W8A8_STATIC";
    if (!s->is_float) return ints[s->bits][s->symmetric][inputs];
    if (inputs != FP8) return (s->block_rows > 0 ? blocks : floats)[inputs];
    return s->block_rows > 0 ? "FP8_BLOCK" : s->static_input ? "FP8" : "FP8_DYNAMIC";
}

oz_codec oz_codec_packed(int bits) {
    static const oz_codec codecs[9] = {[2] = OZ_CODEC_I2P, [3] = OZ_CODEC_I3P, [4] = OZ_CODEC_I4P, [5] = OZ_CODEC_I5P, [6] = OZ_CODEC_I6P, [7] = OZ_CODEC_I7P, [8] = OZ_CODEC_I8P};
    return codecs[bits];
}

/* Which of a product's forms a quantized input takes: as codes where a kernel multiplies them, and there is one scale a row. */
static oz_act act_of(const oz_args *w, const oz_args *a, bool bytes) {
    if (!a->present) return OZ_ACT_NONE;
    const bool token = a->dynamic == OZ_DYNAMIC_YES && a->strategy == OZ_STRATEGY_TOKEN && a->symmetric && a->bits == 8;
    const bool one_scale = w->symmetric && w->bits == 8 && bytes && (w->strategy == OZ_STRATEGY_CHANNEL || w->strategy == OZ_STRATEGY_TENSOR);
    if (token && one_scale && a->is_float == w->is_float) return a->is_float ? OZ_ACT_F8_TOKEN : OZ_ACT_I8_TOKEN;
    return OZ_ACT_VALUES;
}

/* Also where nothing is said. */
static bool before_018(const char *version) {
    int major, minor;
    return !version || sscanf(version, "%d.%d", &major, &minor) != 2 || (major == 0 && minor < 18);
}

/* What a group says of how it is stored must fit its weights. */
static oz_status check_format(const oz_group *g, oz_err *err) {
    const oz_args *w = &g->weights;
    const size_t f = format_find(g->format);
    if (!w->present) return OZ_OK;
    OZ_NEED(w->is_float ? FORMATS[f].floats : FORMATS[f].ints, err, OZ_E_FORMAT, "%s.format: %s does not store weights of type %s", g->path, g->format, w->is_float ? "float" : "int");
    OZ_NEED((!FORMATS[f].bits || w->bits == FORMATS[f].bits) && (!FORMATS[f].group || w->group_size == FORMATS[f].group), err, OZ_E_FORMAT,
            "%s.format: %s stores %d bits in groups of %lld, found %d bits and group_size %lld", g->path, g->format, FORMATS[f].bits, (long long)FORMATS[f].group, w->bits,
            (long long)w->group_size);
    return OZ_OK;
}

static oz_status judge(oz_group *g, const oz_config *c, oz_err *err) {
    static const oz_args none = {0};
    const oz_args *w = &g->weights, *a = &g->acts;
    const char *version = json_string_value(json_object_get(c->json, "version"));
    g->scheme = OZ_SCHEME_DENSE;
    if (!w->present && !a->present) return OZ_OK; /* a group may say that its modules stay as they are */
    if (!g->format) g->format = format_of(w, a);
    OZ_TRY(check_format(g, err));
    const oz_store store = FORMATS[format_find(g->format)].store;
    g->why_not = reason(w, a, store, version);
    if (g->why_not && c->weights_only && w->present) g->why_not = reason(w, a = &none, store, version);
    if (g->why_not) return OZ_OK;
    const bool bytes = store == OZ_STORE_BYTES;
    g->scheme = (oz_scheme){.quantized = true, .bits = w->bits, .is_float = w->is_float, .group_size = w->group_size, .symmetric = w->symmetric, .store = store,
                            .per_tensor = w->strategy == OZ_STRATEGY_TENSOR, .format = g->format, .column_order = w->column_order, .act = act_of(w, a, bytes),
                            .static_input = a->present && !a->dynamic, .old_layout = before_018(version)};
    g->scheme.codec = w->is_float ? FLOATS[w->bits] : bytes ? OZ_CODEC_I8 : oz_codec_packed(w->bits);
    if (w->strategy == OZ_STRATEGY_BLOCK) g->scheme.block_rows = w->block_rows, g->scheme.group_size = w->block_cols;
    if (g->scheme.act == OZ_ACT_VALUES) g->scheme.input = (oz_round){.bits = a->bits, .is_float = a->is_float, .symmetric = a->symmetric, .group_size = a->group_size};
    g->scheme.name = oz_scheme_display(&g->scheme);
    g->scheme.other_inputs = a != &g->acts || g->outputs;
    if (g->scheme.other_inputs) g->scheme.act = OZ_ACT_VALUES;
    return OZ_OK;
}

/* "int4 asymmetric group 128, pack-quantized" */
static void describe(char out[160], const oz_group *g) {
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

void oz_patterns_deinit(oz_patterns *p) {
    for (size_t i = 0; i < p->n; i++) oz_pattern_deinit(&p->items[i]);
    oz_free(p->items);
    oz_free(p->used);
    *p = (oz_patterns){0};
}

oz_status oz_patterns_parse(oz_patterns *out, const json_t *list, const char *path, const char *key, oz_err *err) {
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

#define ARGS(...) {.present = true, .symmetric = true, __VA_ARGS__}
#define INTS(n_bits) ARGS(.bits = n_bits, .strategy = OZ_STRATEGY_GROUP, .group_size = 128)
#define PER_TOKEN(n_bits, type_is_float) ARGS(.is_float = type_is_float, .bits = n_bits, .strategy = OZ_STRATEGY_TOKEN, .dynamic = OZ_DYNAMIC_YES)
#define FLOATS(n_bits, kind, size, how) ARGS(.is_float = true, .bits = n_bits, .strategy = kind, .group_size = size, .narrow_scale = true, .dynamic = how)
#define NV(how) FLOATS(4, OZ_STRATEGY_TENSOR_GROUP, 16, how)
#define MX(n_bits, how) FLOATS(n_bits, OZ_STRATEGY_GROUP, 32, how)
static const struct { const char *name; oz_args weights, acts; } LIBRARY_PRESETS[] = {
    {"UNQUANTIZED", {0}, {0}},
    {"W8A8", ARGS(.bits = 8, .strategy = OZ_STRATEGY_CHANNEL), PER_TOKEN(8, false)},
    {"INT8", ARGS(.bits = 8, .strategy = OZ_STRATEGY_CHANNEL), PER_TOKEN(8, false)},
    {"W2A16", INTS(2), {0}}, {"W3A16", INTS(3), {0}}, {"W4A16", INTS(4), {0}}, {"W5A16", INTS(5), {0}}, {"W6A16", INTS(6), {0}}, {"W7A16", INTS(7), {0}}, {"W8A16", INTS(8), {0}},
    {"W4A16_ASYM", {.present = true, .bits = 4, .strategy = OZ_STRATEGY_GROUP, .group_size = 128}, {0}},
    {"W2A8", INTS(2), PER_TOKEN(8, false)}, {"W3A8", INTS(3), PER_TOKEN(8, false)}, {"W4A8", INTS(4), PER_TOKEN(8, false)}, {"W5A8", INTS(5), PER_TOKEN(8, false)},
    {"W6A8", INTS(6), PER_TOKEN(8, false)}, {"W7A8", INTS(7), PER_TOKEN(8, false)},
    {"W2A4", INTS(2), PER_TOKEN(4, false)}, {"W3A4", INTS(3), PER_TOKEN(4, false)}, {"W4A4", INTS(4), PER_TOKEN(4, false)},
    {"W4AFP8", INTS(4), PER_TOKEN(8, true)},
    {"FP8", ARGS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_TENSOR), ARGS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_TENSOR)},
    {"FP8_DYNAMIC", ARGS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_CHANNEL), PER_TOKEN(8, true)},
    {"FP8_BLOCK", ARGS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_BLOCK, .block_rows = 128, .block_cols = 128),
     ARGS(.bits = 8, .is_float = true, .strategy = OZ_STRATEGY_GROUP, .group_size = 128, .dynamic = OZ_DYNAMIC_YES)},
    {"NVFP4A16", NV(OZ_DYNAMIC_NO), {0}}, {"NVFP4", NV(OZ_DYNAMIC_NO), NV(OZ_DYNAMIC_LOCAL)},
    {"MXFP4A16", MX(4, OZ_DYNAMIC_NO), {0}}, {"MXFP4", MX(4, OZ_DYNAMIC_NO), MX(4, OZ_DYNAMIC_YES)},
    {"MXFP8A16", MX(8, OZ_DYNAMIC_NO), {0}}, {"MXFP8", MX(8, OZ_DYNAMIC_NO), MX(8, OZ_DYNAMIC_YES)},
};
enum { N_LIBRARY_PRESETS = sizeof LIBRARY_PRESETS / sizeof *LIBRARY_PRESETS };

static size_t preset_index(const char *name) {
    size_t i = 0;
    while (i < N_LIBRARY_PRESETS && strcasecmp(LIBRARY_PRESETS[i].name, name) != 0) i++;
    return i;
}
bool oz_scheme_is_preset(const char *name) { return preset_index(name) < N_LIBRARY_PRESETS; }

static oz_status preset_parse(oz_group *g, const char *name, const json_t *top, oz_err *err) {
    const size_t i = preset_index(name);
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

static oz_status group_parse(oz_group *g, const char *name, const json_t *v, const oz_config *c, oz_err *err) {
    static const char *const KEYS[] = {"targets", "weights", "input_activations", "output_activations", "format"};
    char *path = NULL;
    if (json_is_array(v)) {
        OZ_TRY(preset_parse(g, name, c->json, err));
        OZ_TRY(oz_patterns_parse(&g->targets, v, g->path, "", err));
        g->format = c->format;
        return OZ_OK;
    }
    OZ_NEED(json_is_object(v), err, OZ_E_FORMAT, "%s: must be an object or a list of targets, found %s", g->path, oz_json_show(v));
    OZ_TRY(oz_keys_check(v, g->path, KEYS, sizeof KEYS / sizeof *KEYS, err));
    OZ_TRY(oz_patterns_parse(&g->targets, json_object_get(v, "targets"), g->path, ".targets", err));
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
    g->outputs = output && !json_is_null(output);
    OZ_NEED(!g->outputs || c->weights_only, err, OZ_E_UNSUPPORTED, "%s.output_activations: quantized outputs are not supported, found %s", g->path,
            oz_json_show(output));
    return OZ_OK;
}

/* Empty, or of a kind that changes nothing. */
static oz_status check_sparsity(const oz_config *c, oz_err *err) {
    const json_t *s = json_object_get(c->json, "sparsity_config");
    const char *format = json_string_value(json_object_get(s, "format"));
    bool harmless = !s || json_is_null(s) || (json_is_object(s) && (json_object_size(s) == 0 || (format && strcmp(format, "dense") == 0)));
    OZ_NEED(harmless, err, OZ_E_UNSUPPORTED, "%s.sparsity_config: sparse storage is not supported, found %s", c->path, oz_json_show(s));
    return OZ_OK;
}

/* One transform: of weights it is folded into what is stored; any other must be executed. */
static oz_status check_transform(const json_t *g, const char *path, oz_err *err) {
    static const char *const KEYS[] = {"type", "apply", "randomize", "requires_grad", "head_dim", "block_size", "precision"}, *const APPLY_KEYS[] = {"targets", "location", "inverse", "ignore"};
    const json_t *list = json_object_get(g, "apply");
    size_t i;
    json_t *apply;
    OZ_TRY(oz_keys_check(g, path, KEYS, sizeof KEYS / sizeof *KEYS, err));
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "%s.apply: must be a list, found %s", path, oz_json_show(list));
    json_array_foreach(list, i, apply) {
        const char *where = json_string_value(json_object_get(apply, "location"));
        OZ_TRY(oz_keys_check(apply, path, APPLY_KEYS, sizeof APPLY_KEYS / sizeof *APPLY_KEYS, err));
        OZ_NEED(where && (strcmp(where, "weight_input") == 0 || strcmp(where, "weight_output") == 0), err, OZ_E_UNSUPPORTED, "%s: transforms while running are not supported, found location %s", path,
                oz_json_show(json_object_get(apply, "location")));
    }
    return OZ_OK;
}

static oz_status check_transforms(const oz_config *c, oz_err *err) {
    static const char *const KEYS[] = {"config_groups"};
    const json_t *t = json_object_get(c->json, "transform_config"), *groups = json_object_get(t, "config_groups");
    char *path = oz_asprintf("%s.transform_config", c->path);
    const char *name;
    json_t *g;
    oz_status st = OZ_OK;
    if (t && !json_is_null(t) && !json_is_object(t)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: must be an object, found %s", path, oz_json_show(t));
    else if (groups && !json_is_null(groups) && !json_is_object(groups)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s.config_groups: must be an object, found %s", path, oz_json_show(groups));
    else st = oz_keys_check(t, path, KEYS, 1, err);
    json_object_foreach((json_t *)groups, name, g) {
        char *of = oz_asprintf("%s.config_groups.%.60s", path, name);
        if (st == OZ_OK) st = check_transform(g, of, err);
        oz_free(of);
    }
    oz_free(path);
    return st;
}

static oz_status check_status(const oz_config *c, oz_err *err) {
    static const char *const STATES[] = {"initialized", "calibration", "frozen", "compressed", "decompressed"};
    const char *status = NULL;
    OZ_TRY(oz_json_str(&status, c->json, c->path, "quantization_status", err));
    if (!status) return OZ_OK;
    size_t i = 0;
    while (i < 5 && strcmp(status, STATES[i]) != 0) i++;
    OZ_NEED(i < 5, err, OZ_E_FORMAT, "%s.quantization_status: must be initialized, calibration, frozen, compressed or decompressed, found \"%.40s\"", c->path,
            status);
    if (i != 2 && i != 3) /* published files say frozen and mean compressed */
        oz_found_warning(c->f, "%s.quantization_status: expected compressed, found %s; the stored tensors decide", c->path, status);
    return OZ_OK;
}

static oz_status group_read(oz_config *c, const char *name, const json_t *v, oz_err *err) {
    oz_group *g = &c->groups[c->n_groups++];
    g->name = name;
    g->path = oz_asprintf("%s.config_groups.%.80s", c->path, name);
    g->scheme = OZ_SCHEME_DENSE, g->scheme.unknown = true;
    OZ_TRY(group_parse(g, name, v, c, err));
    const oz_status st = judge(g, c, err);
    if (st != OZ_OK) g->scheme.unknown = true; /* nothing is said of its modules then */
    return st;
}

static oz_status check_top(const oz_config *c, oz_err *err) {
    static const char *const never_null[] = {"format", "quantization_status"};
    for (size_t i = 0; i < sizeof never_null / sizeof *never_null; i++)
        OZ_NEED(!json_is_null(json_object_get(c->json, never_null[i])), err, OZ_E_FORMAT, "%s.%s: must be a string, found null", c->path, never_null[i]);
    const json_t *ratio = json_object_get(c->json, "global_compression_ratio");
    OZ_NEED(!ratio || json_is_null(ratio) || json_is_number(ratio), err, OZ_E_FORMAT, "%s.global_compression_ratio: must be a number or null, found %s", c->path, oz_json_show(ratio));
    return OZ_OK;
}

/* The groups decide, as they do in the library; who looks at the top level alone would not. */
static void warn_of_format(const oz_config *c) {
    for (size_t i = 0; i < c->n_groups && c->f && c->format; i++) {
        const oz_group *g = &c->groups[i];
        if (g->scheme.unknown || !g->weights.present || strcmp(g->format, c->format) == 0) continue;
        oz_found_warning(c->f, "%s.format: expected %s or mixed-precision, since %s says so and decides, found %s", c->path, g->format, g->path, c->format);
        return;
    }
}

oz_status oz_groups_read(oz_config *c, oz_err *err) {
    const char *name;
    OZ_TRY(oz_found(c->f, check_top(c, err), err));
    OZ_TRY(oz_found(c->f, format_parse(&c->format, c->json, c->path, err), err));
    if (c->format && strcmp(c->format, "mixed-precision") == 0) c->format = NULL;
    OZ_TRY(oz_found(c->f, check_status(c, err), err));
    OZ_TRY(oz_found(c->f, check_sparsity(c, err), err));
    OZ_TRY(oz_found(c->f, check_transforms(c, err), err));
    const json_t *ignore = json_object_get(c->json, "ignore"), *groups = json_object_get(c->json, "config_groups");
    if (ignore && !json_is_null(ignore)) OZ_TRY(oz_found(c->f, oz_patterns_parse(&c->ignore, ignore, c->path, ".ignore", err), err));
    OZ_NEED(json_is_object(groups), err, OZ_E_FORMAT, "%s.config_groups: must be an object, found %s", c->path, groups ? oz_json_show(groups) : "nothing");
    c->groups = oz_alloc_array(json_object_size(groups) + 1, sizeof *c->groups);
    json_t *v;
    json_object_foreach((json_t *)groups, name, v) OZ_TRY(oz_found(c->f, group_read(c, name, v, err), err));
    warn_of_format(c);
    return OZ_OK;
}

/* ---- matching ---- */

/* The most specific of p's hits, and the first pattern that has it. `where`: the path of the patterns' owner. */
static oz_status best_hit(oz_hit *out, const char **pattern, oz_patterns *p, const oz_module *m, const char *where, oz_err *err) {
    *out = OZ_HIT_NONE;
    for (size_t i = 0; i < p->n; i++) {
        oz_hit hit;
        oz_status st = oz_pattern_hit(&hit, &p->items[i], m, err);
        if (st != OZ_OK) {
            oz_err_prefix(err, "%s", where);
            return st;
        }
        if (hit != OZ_HIT_NONE) p->used[i] = true;
        if (hit < *out) *out = hit, *pattern = p->items[i].text;
    }
    return OZ_OK;
}

static bool same_meaning(const oz_group *a, const oz_group *b) {
    if (a->scheme.unknown || b->scheme.unknown) return true; /* what is wrong with it was said */
    if (!a->weights.present && !b->weights.present && !a->acts.present && !b->acts.present) return true;
    return oz_args_equal(&a->weights, &b->weights) && oz_args_equal(&a->acts, &b->acts) && strcmp(a->format, b->format) == 0;
}

/* *pattern: the target that decided, or what ignores the module. */
static oz_status pick(const oz_group **out, const char **pattern, oz_config *c, const oz_module *m, oz_err *err) {
    oz_hit best = OZ_HIT_NONE, hit;
    const char *text = NULL;
    *out = NULL;
    for (size_t i = 0; i < c->n_groups; i++) {
        oz_group *g = &c->groups[i];
        OZ_TRY(best_hit(&hit, &text, &g->targets, m, g->path, err));
        if (hit == OZ_HIT_NONE || hit > best) continue;
        OZ_NEED(hit < best || same_meaning(*out, g), err, OZ_E_FORMAT, "%s: %s and %s both apply to it, neither more specific, and differ", m->name,
                (*out)->path, g->path);
        if (hit < best) *out = g, *pattern = text;
        best = hit;
    }
    OZ_TRY(best_hit(&hit, &text, &c->ignore, m, c->path, err));
    if (hit != OZ_HIT_NONE) *out = NULL, *pattern = text;
    return OZ_OK;
}

oz_status oz_groups_module(oz_scheme *out, oz_config *c, const oz_module *m, oz_err *err) {
    const oz_group *g;
    OZ_TRY(pick(&g, &out->pattern, c, m, err));
    if (!g) return OZ_OK;
    out->group = g->name;
    if (g->why_not) {
        char scheme[160];
        describe(scheme, g);
        OZ_FAIL(err, OZ_E_UNSUPPORTED, "%s: scheme %s of %s is not supported: %s", m->name, scheme, g->path, g->why_not);
    }
    const char *pattern = out->pattern;
    *out = g->scheme;
    out->group = g->name, out->pattern = pattern;
    OZ_NEED(out->block_rows > 0 || out->group_size == 0 || m->cols % out->group_size == 0, err, OZ_E_FORMAT, "%s.weights.group_size: %lld does not divide the %lld columns of %s", g->path,
            (long long)out->group_size, (long long)m->cols, m->name);
    const int64_t in_group = out->input.group_size;
    OZ_NEED(in_group == 0 || m->cols % in_group == 0 || c->weights_only, err, OZ_E_FORMAT, "%s.input_activations.group_size: %lld does not divide the %lld columns of %s", g->path, (long long)in_group,
            (long long)m->cols, m->name);
    OZ_NEED(!out->column_order || strcmp(m->class_name, "Embedding") != 0, err, OZ_E_UNSUPPORTED, "%s: scheme %s of %s is not supported: a column order of an embedding", m->name, out->name, g->path);
    return OZ_OK;
}
