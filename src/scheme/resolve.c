/* Where readers look for quantization_config, which family it belongs to, and a scheme for each module. */
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

/* Leaves c->json NULL where the model is not quantized. */
static oz_status locate(oz_config *c, const json_t *model, oz_err *err) {
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

oz_status oz_kv_scheme_parse(oz_kv_scheme *out, const json_t *v, const char *path, oz_err *err) {
    oz_args kv;
    *out = (oz_kv_scheme){0};
    OZ_TRY(oz_args_parse(&kv, v, path, false, err));
    *out = (oz_kv_scheme){kv.present, kv.strategy == OZ_STRATEGY_ATTN_HEAD, kv.present && !kv.is_float};
    OZ_NEED(!kv.present || !kv.dynamic, err, OZ_E_UNSUPPORTED, "%s.dynamic: must be false, found %s", path, oz_json_show(json_object_get(v, "dynamic")));
    OZ_NEED(!kv.present || (kv.bits == 8 && kv.symmetric), err, OZ_E_UNSUPPORTED, "%s: only a symmetric cache of float8 or int8 is supported, found %s%s%d", path, kv.symmetric ? "" : "asymmetric ",
            kv.is_float ? "float" : "int", kv.bits);
    OZ_NEED(!kv.present || kv.strategy == OZ_STRATEGY_TENSOR || kv.strategy == OZ_STRATEGY_ATTN_HEAD, err, OZ_E_UNSUPPORTED, "%s.strategy: must be tensor or attn_head, found %s", path,
            oz_strategy_name(kv.strategy));
    return OZ_OK;
}

static oz_status kv_parse(oz_kv_scheme *out, const oz_config *c, oz_err *err) {
    char *path = oz_asprintf("%s.kv_cache_scheme", c->path);
    oz_status st = oz_kv_scheme_parse(out, json_object_get(c->json, "kv_cache_scheme"), path, err);
    oz_free(path);
    return st;
}

static oz_status config_read(oz_config *c, const json_t *model, oz_err *err) {
    OZ_TRY(locate(c, model, err));
    if (!c->json) return OZ_OK;
    const char *method = json_object_get(c->json, "config_groups") ? "compressed-tensors" : NULL; /* of an old name, that did not say it */
    OZ_NEED(!json_is_null(json_object_get(c->json, "quant_method")), err, OZ_E_FORMAT, "%s.quant_method: must be a string, found null", c->path);
    OZ_TRY(oz_json_str(&method, c->json, c->path, "quant_method", err));
    const bool bits = json_is_true(json_object_get(c->json, "load_in_4bit")) || json_is_true(json_object_get(c->json, "load_in_8bit"));
    OZ_NEED(method || !bits, err, OZ_E_UNSUPPORTED, "%s.quant_method: missing, and load_in_4bit and load_in_8bit are of bitsandbytes, which is not read here: %s", c->path, oz_family_find("bitsandbytes")->refusal);
    OZ_NEED(method, err, OZ_E_FORMAT, "%s.quant_method: missing, expected compressed-tensors, gptq, awq or fp8", c->path);
    c->family = oz_family_find(method);
    OZ_NEED(c->family, err, OZ_E_UNSUPPORTED, "%s.quant_method: expected compressed-tensors, gptq, awq or fp8, found \"%.60s\": quantize the original model instead (ounce quantize)", c->path, method);
    OZ_NEED(c->family->read, err, OZ_E_UNSUPPORTED, "%s.quant_method: \"%s\" is not read here: %s", c->path, method, c->family->refusal);
    oz_kv_scheme kv;
    const oz_status st = kv_parse(&kv, c, err);
    if (st == OZ_E_UNSUPPORTED && c->weights_only) oz_err_clear(err);
    else OZ_TRY(oz_found(c->f, st, err));
    return c->family->read(c, err);
}

static void config_deinit(oz_config *c) {
    for (size_t i = 0; i < c->n_groups; i++) {
        oz_free(c->groups[i].path);
        oz_patterns_deinit(&c->groups[i].targets);
    }
    for (size_t i = 0; i < c->n_rules; i++) {
        oz_pattern_deinit(&c->rules[i].pattern);
        oz_free(c->rules[i].text);
        oz_free(c->rules[i].path);
    }
    oz_free(c->groups);
    oz_free(c->rules);
    oz_patterns_deinit(&c->ignore);
    oz_free(c->path);
}

static void warn_unused(const oz_config *c) {
    for (size_t i = 0; i < c->n_groups; i++)
        for (size_t k = 0; k < c->groups[i].targets.n; k++)
            if (!c->groups[i].targets.used[k]) oz_found_warning(c->f, "%s.targets: '%.100s' matches no module of this model", c->groups[i].path, c->groups[i].targets.items[k].text);
}

/* A checkpoint's list may name what is left out of it; of one that is made, a name that is misspelt would be quantized. Any module counts, norms and routers too. */
static oz_status warn_not_ignored(const oz_config *c, const oz_module *modules, size_t n, oz_err *err) {
    for (size_t k = 0; k < c->ignore.n; k++) {
        oz_hit hit = c->ignore.used[k] ? OZ_HIT_NAME : OZ_HIT_NONE;
        for (size_t i = 0; i < n && hit == OZ_HIT_NONE; i++) OZ_TRY(oz_pattern_hit(&hit, &c->ignore.items[k], &modules[i], err));
        if (hit == OZ_HIT_NONE) oz_found_warning(c->f, "%s.ignore: '%.100s' matches no module of this model", c->path, c->ignore.items[k].text);
    }
    return OZ_OK;
}

/* These families do not list what is quantized: what is stored tells, and should be what their readers expect, who expect all linear modules but those that are listed. */
static void warn_dense(const oz_config *c, const oz_scheme *schemes, const oz_module *modules, size_t n) {
    size_t n_dense = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        const char *last = strrchr(modules[i].name, '.');
        const bool head = strcmp(last ? last + 1 : modules[i].name, "lm_head") == 0;
        if (head || strcmp(modules[i].class_name, "Linear") != 0 || schemes[i].quantized || schemes[i].unknown || schemes[i].pattern) continue;
        if (n_dense++ == 0) first = i;
    }
    if (n_dense) oz_found_warning(c->f, "%s: expected it quantized, since %s does not leave it out, found it dense, and %zu such modules in all", modules[first].name, c->path, n_dense);
}

/* Ends c, which was read with the status st. */
static oz_status modules_resolve(oz_scheme *schemes, oz_config *c, oz_status st, const oz_module *modules, size_t n, oz_err *err) {
    const bool broken = st != OZ_OK; /* as a whole: nothing is known of any module */
    bool dense = true;
    st = oz_found(c->f, st, err);
    for (size_t i = 0; i < n && st == OZ_OK; i++) {
        schemes[i] = OZ_SCHEME_DENSE;
        schemes[i].unknown = broken;
        const bool takes_part = strcmp(modules[i].class_name, "Linear") == 0 || strcmp(modules[i].class_name, "Embedding") == 0; /* norms are never quantized */
        if (!c->json || broken || !takes_part) continue;
        st = c->family->module(&schemes[i], c, &modules[i], err);
        if (st != OZ_OK) schemes[i].unknown = true;
        dense &= st == OZ_OK && !schemes[i].quantized;
        st = oz_found(c->f, st, err);
    }
    if (st == OZ_OK && !broken && c->base.quantized && dense) /* these families do not list modules: what is stored tells */
        st = oz_found(c->f, oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: quant_method is \"%s\", and no module is stored quantized", c->path, c->family->method), err);
    if (st == OZ_OK && !broken && c->f && c->base.quantized && !dense) warn_dense(c, schemes, modules, n);
    if (st == OZ_OK && !broken) warn_unused(c);
    if (st == OZ_OK && !broken && c->is_made) st = warn_not_ignored(c, modules, n, err);
    config_deinit(c);
    return st;
}

oz_status oz_scheme_resolve_all(oz_scheme *schemes, const json_t *model, const oz_module *modules, size_t n, const oz_findings *f, oz_err *err) {
    oz_config c = {.f = f};
    const oz_status st = config_read(&c, model, err);
    return modules_resolve(schemes, &c, st, modules, n, err);
}

oz_status oz_scheme_resolve_weights(oz_scheme *schemes, const json_t *model, const oz_module *modules, size_t n, oz_err *err) {
    oz_config c = {.weights_only = true};
    const oz_status st = config_read(&c, model, err);
    return modules_resolve(schemes, &c, st, modules, n, err);
}

oz_status oz_scheme_resolve_groups(oz_scheme *schemes, const json_t *config, const char *path, const oz_module *modules, size_t n, oz_err *err) {
    oz_config c = {.json = config, .path = oz_strdup(path), .family = oz_family_find("compressed-tensors"), .is_made = true};
    oz_status st = oz_groups_read(&c, err);
    st = modules_resolve(schemes, &c, st, modules, n, err);
    for (size_t i = 0; i < n && st == OZ_OK; i++) schemes[i].old_layout = false;
    return st;
}

oz_status oz_scheme_resolve(oz_scheme *schemes, const json_t *model, const oz_module *modules, size_t n, oz_err *err) {
    return oz_scheme_resolve_all(schemes, model, modules, n, NULL, err);
}

const json_t *oz_scheme_locate(const json_t *model) {
    oz_config c = {0};
    const oz_status st = locate(&c, model, NULL);
    config_deinit(&c);
    return st == OZ_OK ? c.json : NULL;
}

oz_status oz_scheme_kv(oz_kv_scheme *out, const json_t *model, oz_err *err) {
    oz_config c = {0};
    *out = (oz_kv_scheme){0};
    oz_status st = locate(&c, model, err);
    if (st == OZ_OK && c.json) st = kv_parse(out, &c, err);
    config_deinit(&c);
    return st;
}
