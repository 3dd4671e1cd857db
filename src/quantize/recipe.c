/* Recipes as llm-compressor has them, where the meaning here is the same: stages of modifiers, of which those of a table are run: QuantizationModifier (rounding to nearest),
 * GPTQModifier, and one of SmoothQuantModifier and AWQModifier, which move scales before; an AWQModifier that says what to round does that, too, as the library had it until it split the two. A modifier becomes
 * what a quantization_config has, config_groups and ignore, and is resolved by the same rules; what it says that is not known, or would be done otherwise here, is an error with its path. */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "base/yaml.h"
#include "quantize/internal.h"

enum { LIMIT_BYTES = 1 << 20 };

/* ---- values of a modifier; path is its own ---- */

typedef oz_status check_fn(oz_modifier *m, const json_t *v, const char *key, oz_err *err);

#define WRONG(expected) OZ_FAIL(err, OZ_E_FORMAT, "%s.%s: must be " expected ", found %s", m->path, key, oz_json_show(v))

/* Of what makes no difference: how much of memory or time a run takes, or names. */
static oz_status any(oz_modifier *m, const json_t *v, const char *key, oz_err *err) { return OZ_OK; }

static oz_status positive(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 1) WRONG("a positive integer");
    return OZ_OK;
}

static oz_status only_true(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_true(v)) WRONG("true: layers are calibrated one after the other, behind the quantized ones");
    return OZ_OK;
}

static oz_status only_false(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_false(v)) WRONG("false: groups that do not divide the inputs of a module are never written");
    return OZ_OK;
}

static oz_status cache(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    char *path = oz_asprintf("%s.%s", m->path, key);
    oz_status st = oz_kv_scheme_parse(&m->kv, v, path, err);
    oz_free(path);
    return st;
}

static bool is_minmax(const char *observer) {
    static const char *const names[] = {"minmax", "memoryless_minmax", "static_minmax"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(observer, names[i]) == 0) return true;
    return false;
}

/* Of weights all three are the same; of inputs the range of all the text is taken, which is static_minmax. */
static oz_status observer(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const char *name = json_string_value(v);
    if (!name || !is_minmax(name)) WRONG("minmax, memoryless_minmax or static_minmax");
    return OZ_OK;
}

static oz_status observers(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const char *which;
    json_t *name;
    if (!json_is_object(v)) WRONG("an object with weights, input or output");
    json_object_foreach((json_t *)v, which, name) {
        char *path = oz_asprintf("%s.%.60s", key, which);
        oz_status st = observer(m, name, path, err);
        oz_free(path);
        OZ_TRY(st);
    }
    return OZ_OK;
}

static oz_status dampening(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_number(v) || json_number_value(v) < 1e-6 || json_number_value(v) > 1) WRONG("a number in 1e-06..1");
    m->dampening = json_number_value(v);
    return OZ_OK;
}

static oz_status actorder(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const char *name = json_string_value(v);
    if (!name || (strcasecmp(name, "static") != 0 && strcasecmp(name, "weight") != 0)) WRONG("\"static\" or \"weight\", or left out");
    return OZ_OK;
}

/* Strings, or one. */
static oz_status strings(json_t **out, const oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    *out = json_is_string(v) ? json_pack("[O]", v) : json_incref((json_t *)v);
    bool good = json_is_array(*out);
    for (size_t i = 0; good && i < json_array_size(*out); i++) good = json_is_string(json_array_get(*out, i));
    if (good) return OZ_OK;
    json_decref(*out);
    *out = NULL;
    WRONG("a string or a list of strings");
}

static oz_status targets(oz_modifier *m, const json_t *v, const char *key, oz_err *err) { return strings(&m->targets, m, v, key, err); }

static oz_status ignore(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    json_t *list;
    OZ_TRY(strings(&list, m, v, key, err));
    json_object_set_new(m->config, "ignore", list);
    return OZ_OK;
}

/* What the arguments of weights and inputs say of observers: not the library's rules, those of this room. */
static oz_status args_check(const oz_modifier *m, const json_t *group, const char *name, const char *which, oz_err *err) {
    const json_t *a = json_object_get(group, which), *v = json_object_get(a, "observer"), *kwargs = json_object_get(a, "observer_kwargs");
    const char *text = json_string_value(v);
    OZ_NEED(!text || is_minmax(text), err, OZ_E_UNSUPPORTED, "%s.config_groups.%.60s.%s.observer: must be minmax, memoryless_minmax or static_minmax, found \"%.40s\"", m->path, name, which, text);
    OZ_NEED(json_object_size(kwargs) == 0, err, OZ_E_UNSUPPORTED, "%s.config_groups.%.60s.%s.observer_kwargs: must be empty, found %s", m->path, name, which, oz_json_show(kwargs));
    const json_t *order = json_object_get(a, "actorder");
    text = json_string_value(order);
    const bool kept = !order || json_is_null(order) || json_is_false(order) || (text && (strcasecmp(text, "static") == 0 || strcasecmp(text, "weight") == 0));
    OZ_NEED(kept, err, OZ_E_UNSUPPORTED, "%s.config_groups.%.60s.%s.actorder: columns that are stored in an order of their own are not made; must be null, \"static\" or \"weight\", found %s", m->path,
            name, which, oz_json_show(order));
    return OZ_OK;
}

static oz_status config_groups(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const char *name;
    json_t *group;
    if (!json_is_object(v) || json_object_size(v) == 0) WRONG("an object of groups");
    json_object_foreach((json_t *)v, name, group) {
        if (!json_is_object(group)) OZ_FAIL(err, OZ_E_FORMAT, "%s.%s.%.60s: must be an object, found %s", m->path, key, name, oz_json_show(group));
        OZ_TRY(args_check(m, group, name, "weights", err));
        OZ_TRY(args_check(m, group, name, "input_activations", err));
    }
    json_object_set(m->config, "config_groups", (json_t *)v);
    return OZ_OK;
}

/* A preset's name, or an object from such names to targets. */
static oz_status scheme(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const char *name = json_string_value(v);
    json_t *list;
    if (name && !oz_scheme_is_preset(name)) WRONG("a preset that is known here");
    if (name) m->preset = name;
    if (name) return OZ_OK;
    if (!json_is_object(v) || json_object_size(v) == 0) WRONG("a preset's name, or an object from such names to targets");
    json_t *groups = json_object();
    json_object_set_new(m->config, "config_groups", groups);
    json_object_foreach((json_t *)v, name, list) {
        OZ_NEED(oz_scheme_is_preset(name), err, OZ_E_FORMAT, "%s.%s.%.60s: must be a preset that is known here", m->path, key, name);
        json_t *of;
        OZ_TRY(strings(&of, m, list, key, err));
        json_object_set_new(groups, name, of);
    }
    return OZ_OK;
}

static oz_status strength(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_number(v) || !(json_number_value(v) > 0) || json_number_value(v) > 1) WRONG("a number above 0, at most 1, or left out, which searches it");
    m->strength = json_number_value(v);
    return OZ_OK;
}

/* {smooth_layer, balance_layers}, or [balance_layers, smooth_layer]: AWQModifier's and SmoothQuantModifier's. Where inputs are looked at (activation_hook_target) is no question here: at each reader. */
static oz_status mapping_read(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const bool is_pair = json_is_array(v) && json_array_size(v) == 2;
    const json_t *from = is_pair ? json_array_get(v, 1) : json_object_get(v, "smooth_layer"), *to = is_pair ? json_array_get(v, 0) : json_object_get(v, "balance_layers");
    const char *name;
    json_t *value, *readers;
    if (!is_pair && !json_is_object(v)) WRONG("{smooth_layer: PAT, balance_layers: [PAT, ...]} or [[PAT, ...], PAT]");
    json_object_foreach((json_t *)v, name, value)
        OZ_NEED(strcmp(name, "smooth_layer") == 0 || strcmp(name, "balance_layers") == 0 || strcmp(name, "activation_hook_target") == 0, err, OZ_E_FORMAT,
                "%s.%s.%.60s: unknown key of a mapping; known: smooth_layer, balance_layers, activation_hook_target", m->path, key, name);
    OZ_NEED(json_is_string(from), err, OZ_E_FORMAT, "%s.%s: smooth_layer must be a string, found %s", m->path, key, oz_json_show(from));
    OZ_NEED(to && (!json_is_array(to) || json_array_size(to) > 0), err, OZ_E_FORMAT, "%s.%s: balance_layers: expected what reads smooth_layer's output, found nothing", m->path, key);
    OZ_TRY(strings(&readers, m, to, key, err));
    char *path = oz_asprintf("%s.%s", m->path, key);
    json_array_append_new(m->mappings, json_pack("{s:s, s:O, s:o}", "path", path, "from", from, "to", readers));
    oz_free(path);
    return OZ_OK;
}

static oz_status mappings(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_array(v) || json_array_size(v) == 0) WRONG("a list of mappings, or left out: scales then move wherever that changes nothing of what the model computes");
    m->mappings = json_array();
    for (size_t i = 0; i < json_array_size(v); i++) {
        char at[64];
        snprintf(at, sizeof at, "%s[%zu]", key, i);
        OZ_TRY(mapping_read(m, json_array_get(v, i), at, err));
    }
    return OZ_OK;
}

static oz_status no_list(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_array(v) || json_array_size(v) > 0) WRONG("empty: what is ignored when weights are rounded keeps its scales, too, and mappings say which others move");
    return OZ_OK;
}

/* Which of the two formulas of method.c are tried. */
static oz_status duo(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const bool both = json_is_string(v) && strcasecmp(json_string_value(v), "both") == 0;
    if (!json_is_boolean(v) && !both) WRONG("true (inputs and weights), false (inputs alone) or \"both\", or left out, which is both");
    m->variants = both ? 3 : json_is_true(v) ? 2 : 1;
    return OZ_OK;
}

static oz_status grid(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1000) WRONG("an integer in 1..1000");
    m->n_grid = (int)json_integer_value(v);
    return OZ_OK;
}

static oz_status smoothquant(oz_modifier *m, const json_t *v, const char *key, oz_err *err) {
    const char *name = json_string_value(v);
    if (!name || strcmp(name, "smoothquant") != 0) WRONG("smoothquant");
    return OZ_OK;
}

enum { RTN = 1, GPTQ = 2, SMOOTH = 4, AWQ = 8, ROUNDS = RTN | GPTQ, MOVES = SMOOTH | AWQ, MAY_ROUND = ROUNDS | AWQ, ALL = ROUNDS | MOVES };
static const struct { const char *name; int kind; const char *step; /* of --method */ } MODIFIERS[] = {
    {"QuantizationModifier", RTN, "rtn"}, {"GPTQModifier", GPTQ, "gptq"}, {"SmoothQuantModifier", SMOOTH, "smoothquant"}, {"AWQModifier", AWQ, "awq"}};
static const struct { const char *key; check_fn *check; int of; } KEYS[] = {
    {"targets", targets, MAY_ROUND}, {"ignore", ignore, MAY_ROUND}, {"scheme", scheme, MAY_ROUND}, {"config_groups", config_groups, MAY_ROUND}, {"kv_cache_scheme", cache, MAY_ROUND},
    {"weight_observer", observer, MAY_ROUND}, {"input_observer", observer, MAY_ROUND}, {"output_observer", observer, MAY_ROUND}, {"observer", observers, MAY_ROUND},
    {"bypass_divisibility_checks", only_false, MAY_ROUND}, {"block_size", positive, GPTQ}, {"dampening_frac", dampening, GPTQ}, {"actorder", actorder, GPTQ}, {"offload_hessians", any, GPTQ},
    {"sequential_update", only_true, GPTQ}, {"smoothing_strength", strength, SMOOTH}, {"mappings", mappings, MOVES}, {"ignore", no_list, SMOOTH}, {"algorithm", smoothquant, SMOOTH},
    {"num_calibration_steps", any, SMOOTH}, {"calibration_function", any, SMOOTH}, {"duo_scaling", duo, AWQ}, {"n_grid", grid, AWQ}, {"offload_device", any, AWQ},
    {"sequential_targets", any, GPTQ | MOVES}, {"index", any, ALL}, {"group", any, ALL}, {"start", any, ALL}, {"end", any, ALL}, {"update", any, ALL},
};

/* ---- modifiers ---- */

static oz_status unknown(const oz_modifier *m, size_t type, const char *key, oz_err *err) {
    oz_buf known = {0};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (KEYS[i].of & MODIFIERS[type].kind) oz_buf_printf(&known, "%s%s", known.len ? ", " : "", KEYS[i].key);
    oz_status st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s.%.60s: unknown key of a %s; known: %s", m->path, key, MODIFIERS[type].name, known.data);
    oz_buf_deinit(&known);
    return st;
}

static oz_status key_read(oz_modifier *m, size_t type, const char *key, const json_t *v, oz_err *err) {
    size_t i = 0;
    while (i < sizeof KEYS / sizeof *KEYS && !(strcmp(KEYS[i].key, key) == 0 && (KEYS[i].of & MODIFIERS[type].kind))) i++;
    if (i == sizeof KEYS / sizeof *KEYS) return unknown(m, type, key, err);
    if (!json_is_null(v)) return KEYS[i].check(m, v, key, err);
    if (strcmp(key, "actorder") == 0)
        oz_log_warn("%s.actorder: found null; columns go by the size of their inputs all the same (\"static\"), which changes nothing in how they are stored", m->path);
    return OZ_OK;
}

/* What is rounded, and to what. */
static oz_status groups_take(oz_modifier *m, oz_err *err) {
    OZ_NEED(!m->preset || !json_object_get(m->config, "config_groups"), err, OZ_E_FORMAT, "%s: scheme and config_groups both say what to do", m->path);
    if (m->preset) {
        json_t *groups = json_object();
        json_object_set_new(groups, m->preset, m->targets ? json_incref(m->targets) : json_pack("[s]", "Linear"));
        json_object_set_new(m->config, "config_groups", groups);
    }
    const bool has = json_object_get(m->config, "config_groups") != NULL;
    OZ_NEED(has || !m->kv.quantized, err, OZ_E_UNSUPPORTED, "%s: expected a scheme or config_groups beside kv_cache_scheme: a cache alone, with weights as they are, is not made", m->path);
    OZ_NEED(has, err, OZ_E_FORMAT, "%s: expected a scheme or config_groups, found neither (those of another modifier are not taken over)", m->path);
    return OZ_OK;
}

/* Before anything is rounded, and once. */
static oz_status transform_take(oz_recipe *r, const oz_modifier *m, const char *step, oz_err *err) {
    oz_method method;
    OZ_TRY(oz_method_parse(&method, step, err));
    OZ_NEED(!r->transform, err, OZ_E_UNSUPPORTED, "%s: scales are moved once, and a modifier before does that", m->path);
    OZ_NEED(r->n == 1, err, OZ_E_UNSUPPORTED, "%s: scales are moved before weights are rounded: expected it first", m->path);
    r->transform = method.transform, r->strength = m->strength, r->variants = m->variants, r->n_grid = m->n_grid, r->mappings = m->mappings;
    return OZ_OK;
}

static oz_status modifier_read(oz_recipe *r, const char *path, const char *name, const json_t *v, oz_err *err) {
    const size_t n = sizeof MODIFIERS / sizeof *MODIFIERS;
    size_t type = 0;
    while (type < n && strcmp(MODIFIERS[type].name, name) != 0) type++;
    OZ_NEED(type < n, err, OZ_E_UNSUPPORTED, "%s: modifiers that are done here are QuantizationModifier, GPTQModifier, SmoothQuantModifier and AWQModifier", path);
    OZ_NEED(json_is_object(v), err, OZ_E_FORMAT, "%s: must be an object, found %s", path, oz_json_show(v));
    oz_grow((void **)&r->items, &r->cap, r->n + 1, sizeof *r->items);
    oz_modifier *m = &r->items[r->n++];
    const int kind = MODIFIERS[type].kind;
    *m = (oz_modifier){.path = oz_strdup(path), .gptq = kind == GPTQ, .dampening = OZ_DAMPENING, .config = json_object()};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value) OZ_TRY(key_read(m, type, key, value, err));
    m->rounds = kind & ROUNDS || m->preset || m->targets || json_object_size(m->config) > 0 || m->kv.quantized;
    if (kind & MOVES) OZ_TRY(transform_take(r, m, MODIFIERS[type].step, err));
    return m->rounds ? groups_take(m, err) : OZ_OK;
}

static oz_status stage_read(oz_recipe *r, const char *path, const json_t *stage, oz_err *err) {
    const char *name, *type;
    json_t *modifiers, *v;
    OZ_NEED(json_is_object(stage), err, OZ_E_FORMAT, "%s: must be an object, found %s", path, oz_json_show(stage));
    json_object_foreach((json_t *)stage, name, modifiers) {
        OZ_NEED(oz_str_ends(name, "_modifiers"), err, OZ_E_FORMAT, "%s.%.60s: unknown key; expected names that end in _modifiers", path, name);
        OZ_NEED(json_is_object(modifiers), err, OZ_E_FORMAT, "%s.%.60s: must be an object of modifiers, found %s", path, name, oz_json_show(modifiers));
        json_object_foreach(modifiers, type, v) {
            char *where = oz_asprintf("%s.%.60s.%.60s", path, name, type);
            oz_status st = modifier_read(r, where, type, v, err);
            oz_free(where);
            OZ_TRY(st);
        }
    }
    return OZ_OK;
}

static oz_status stages_read(oz_recipe *r, const char *file, oz_err *err) {
    const char *name;
    json_t *stage;
    OZ_NEED(json_is_object(r->json), err, OZ_E_FORMAT, "%s: must be an object of stages ({quant_stage: {quant_modifiers: {GPTQModifier: {scheme: W4A16, ignore: [lm_head]}}}}), found %s", file, oz_json_show(r->json));
    json_object_foreach(r->json, name, stage) {
        if (strcmp(name, "args") == 0 && json_object_size(stage) == 0) continue;
        OZ_NEED(oz_str_ends(name, "_stage"), err, OZ_E_FORMAT, "%s: %.60s: unknown key; expected names that end in _stage", file, name);
        char *path = oz_asprintf("%s: %.60s", file, name);
        oz_status st = stage_read(r, path, stage, err);
        oz_free(path);
        OZ_TRY(st);
    }
    bool rounds = false;
    for (size_t i = 0; i < r->n; i++) rounds = rounds || r->items[i].rounds;
    OZ_NEED(rounds, err, OZ_E_FORMAT, "%s: expected modifiers%s, found none", file, r->transform ? " that round" : "");
    for (size_t i = 0; i < r->n; i++) {
        for (size_t k = 0; k < i; k++)
            OZ_NEED(!r->items[i].gptq || !r->items[k].gptq || r->items[i].dampening == r->items[k].dampening, err, OZ_E_UNSUPPORTED, "%s.dampening_frac: must be that of %s, %g, found %g",
                    r->items[i].path, r->items[k].path, r->items[k].dampening, r->items[i].dampening);
        r->dampening = r->items[i].gptq ? r->items[i].dampening : r->dampening;
        OZ_NEED(!r->items[i].kv.quantized || !r->kv.quantized || oz_kv_scheme_name(&r->items[i].kv) == oz_kv_scheme_name(&r->kv), err, OZ_E_UNSUPPORTED, "%s.kv_cache_scheme: must be that of the modifier before", r->items[i].path);
        if (r->items[i].kv.quantized) r->kv = r->items[i].kv;
    }
    return OZ_OK;
}

static oz_status load(json_t **out, const char *path, oz_err *err) {
    if (oz_str_ends(path, ".json")) return oz_json_load(out, path, LIMIT_BYTES, err);
    oz_buf text = {0};
    oz_status st = oz_file_read_regular(&text, path, LIMIT_BYTES, err);
    if (st == OZ_OK) st = oz_yaml_parse(out, text.data, text.len, path, err);
    oz_buf_deinit(&text);
    return st;
}

oz_status oz_recipe_read(oz_recipe **out, const char *path, oz_err *err) {
    oz_recipe *r = oz_alloc(sizeof *r);
    r->dampening = OZ_DAMPENING;
    oz_status st = load(&r->json, path, err);
    if (st == OZ_OK) st = stages_read(r, path, err);
    if (st != OZ_OK) oz_recipe_free(&r);
    *out = r;
    return st;
}

void oz_recipe_free(oz_recipe **pr) {
    oz_recipe *r = *pr;
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) {
        oz_free(r->items[i].path);
        json_decref(r->items[i].config);
        json_decref(r->items[i].targets);
        json_decref(r->items[i].mappings);
    }
    json_decref(r->json);
    oz_free(r->items);
    oz_free(r);
    *pr = NULL;
}
