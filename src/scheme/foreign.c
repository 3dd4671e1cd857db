/* The other families. Each reads its keys into one scheme that all its modules share; which modules are quantized their tensors say, since these
 * configs do not list them. Sources: formats.md sections 4.6, 6.1 to 6.3. */
#include <string.h>
#include <strings.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

enum { MAX_GROUP = 1 << 24 };

/* A group size as GPTQ and AWQ have it: -1, one group. */
static oz_status group_size(oz_scheme *s, const json_t *v, const char *path, oz_err *err) {
    int64_t g = s->group_size > 0 ? s->group_size : -1;
    OZ_TRY(oz_json_int(&g, v, path, "group_size", -1, MAX_GROUP, err));
    OZ_NEED(g != 0, err, OZ_E_FORMAT, "%s.group_size: must be positive or -1, found 0", path);
    s->group_size = g > 0 ? g : 0;
    return OZ_OK;
}

/* modules_to_not_convert, or ignored_layers. */
static oz_status excluded(oz_config *c, const char *key, oz_err *err) {
    const json_t *list = json_object_get(c->json, key);
    if (!list || json_is_null(list)) return OZ_OK;
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "%s.%s: must be a list of strings, found %s", c->path, key, oz_json_show(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        OZ_NEED(json_is_string(json_array_get(list, i)), err, OZ_E_FORMAT, "%s.%s[%zu]: must be a string, found %s", c->path, key, i, oz_json_show(json_array_get(list, i)));
    c->excluded = list;
    return OZ_OK;
}

/* The entry that leaves a module out; NULL: none does. Of one that is stored dense any part will do: so some readers of fp8 have it. */
static const char *excluded_by(const oz_config *c, const char *name, bool by_part) {
    for (size_t i = 0; i < json_array_size(c->excluded); i++) {
        const char *e = json_string_value(json_array_get(c->excluded, i));
        const size_t n = strlen(e);
        if (by_part ? strstr(name, e) != NULL : strncmp(name, e, n) == 0 && (!name[n] || name[n] == '.')) return e;
    }
    return NULL;
}

static oz_status shared(oz_scheme *out, oz_config *c, const oz_module *m, oz_err *err) {
    out->pattern = excluded_by(c, m->name, c->by_part || !m->stored);
    if (!m->stored) return OZ_OK; /* its dense weight must be there */
    OZ_NEED(strcmp(m->class_name, "Linear") == 0, err, OZ_E_UNSUPPORTED, "%s: scheme %s of a module of class %s is not supported", m->name, c->base.name, m->class_name);
    OZ_NEED(!out->pattern, err, OZ_E_FORMAT, "%s: %s leaves it out, and yet it is stored quantized", m->name, c->path);
    *out = c->base;
    return OZ_OK;
}

/* ---- keys that others than the family's own reader know ---- */

/* By these a model would be computed otherwise than it is here: nothing may stand there, or what is done in any case. */
static const struct { const char *method, *key, *done; } OTHER_MEANINGS[] = {
    {"gptq", "method", "gptq"}, {"gptq", "adapter", NULL}, {"gptq", "rotation", NULL}, {"gptq", "is_marlin_format", NULL},
    {"awq", "method", "awq"}, {"awq", "adapter", NULL}, {"awq", "rotation", NULL}, {"awq", "format", "gemm"}, {"awq", "checkpoint_format", "gemm"},
    {"fp8", "expert_dtype", "fp8"}, {"fp8", "scale_fmt", "ue8m0"},
};

static bool says_nothing(const json_t *v) { return !v || json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) || (json_is_array(v) && !json_array_size(v)); }

static oz_status check_meanings(const oz_config *c, oz_err *err) {
    for (size_t i = 0; i < sizeof OTHER_MEANINGS / sizeof *OTHER_MEANINGS; i++) {
        const char *key = OTHER_MEANINGS[i].key, *done = OTHER_MEANINGS[i].done;
        const json_t *v = json_object_get(c->json, key);
        if (strcmp(OTHER_MEANINGS[i].method, c->family->method) != 0 || says_nothing(v)) continue;
        OZ_NEED(done, err, OZ_E_UNSUPPORTED, "%s.%s: is not done here, found %s", c->path, key, oz_json_show(v));
        OZ_NEED(json_is_string(v) && strcasecmp(json_string_value(v), done) == 0, err, OZ_E_UNSUPPORTED, "%s.%s: must be %s, found %s", c->path, key, done, oz_json_show(v));
    }
    return OZ_OK;
}

/* Two names of one thing. */
static oz_status check_twice(const oz_config *c, const char *a, const char *b, oz_err *err) {
    const json_t *x = json_object_get(c->json, a), *y = json_object_get(c->json, b);
    if (says_nothing(x) || says_nothing(y) || json_equal(x, y)) return OZ_OK;
    if (json_is_string(x) && json_is_string(y) && strcasecmp(json_string_value(x), json_string_value(y)) == 0) return OZ_OK;
    OZ_FAIL(err, OZ_E_FORMAT, "%s: %s and %s mean the same, and are %s and %s", c->path, a, b, oz_json_show(x), oz_json_show(y));
}

/* The last group of GPTQ may be short. AWQ's loaders, and all that quantizes inputs in groups, take whole ones. */
static oz_status whole_groups(oz_scheme *out, oz_config *c, const oz_module *m, oz_err *err) {
    OZ_TRY(shared(out, c, m, err));
    const int64_t group = out->block_rows == 0 ? out->group_size : c->weights_only ? 0 : out->input.group_size;
    OZ_NEED(group <= 0 || m->cols % group == 0, err, OZ_E_FORMAT, "%s: %s says groups of %lld inputs, which do not divide its %lld columns", m->name, c->path, (long long)group, (long long)m->cols);
    return OZ_OK;
}

/* ---- GPTQ ---- */

static oz_status gptq_keys(oz_scheme *s, const json_t *v, const char *path, oz_err *err) {
    static const oz_codec codecs[9] = {[2] = OZ_CODEC_I2G, [3] = OZ_CODEC_I3G, [4] = OZ_CODEC_I4G, [8] = OZ_CODEC_I8G};
    int64_t bits = s->bits;
    int order = s->column_order, sym = s->symmetric;
    OZ_NEED(s->bits || json_object_get(v, "bits"), err, OZ_E_FORMAT, "%s.bits: missing", path);
    OZ_NEED(!json_is_null(json_object_get(v, "bits")), err, OZ_E_FORMAT, "%s.bits: must be 2, 3, 4 or 8, found null", path);
    OZ_TRY(oz_json_int(&bits, v, path, "bits", 1, 32, err));
    OZ_NEED(bits == 2 || bits == 3 || bits == 4 || bits == 8, err, OZ_E_UNSUPPORTED, "%s.bits: must be 2, 3, 4 or 8, found %d", path, (int)bits);
    OZ_TRY(group_size(s, v, path, err));
    OZ_TRY(oz_json_bool(&order, v, path, "desc_act", err));
    OZ_TRY(oz_json_bool(&sym, v, path, "sym", err));
    s->bits = (int)bits, s->codec = codecs[bits], s->column_order = order, s->symmetric = sym;
    s->name = oz_scheme_display(s);
    return OZ_OK;
}

/* Some of what a rule may say was only for the making. */
static oz_status rule_check(const oz_config *c, const oz_rule *r, oz_err *err) {
    static const char *const KEYS[] = {"bits", "group_size", "desc_act", "sym", "mse", "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "act_group_aware"};
    oz_scheme changed = c->base;
    OZ_NEED(json_is_object(r->over) || json_is_null(r->over), err, OZ_E_FORMAT, "%s: must be an object, found %s", r->path, oz_json_show(r->over));
    OZ_TRY(oz_keys_check(r->over, r->path, KEYS, sizeof KEYS / sizeof *KEYS, err));
    if (c->base.store == OZ_STORE_GPTQ) return gptq_keys(&changed, r->over, r->path, err);
    OZ_NEED(r->skip || says_nothing(r->over), err, OZ_E_UNSUPPORTED, "%s: rules that change keys are done for gptq alone, found %s", r->path, oz_json_show(r->over));
    return OZ_OK;
}

/* GPTQModel's rules: {"-:expression": {}} leaves modules out, others change keys; the first that matches. */
static oz_status rules_read(oz_config *c, oz_err *err) {
    const json_t *dynamic = json_object_get(c->json, "dynamic");
    if (!dynamic || json_is_null(dynamic)) return OZ_OK;
    OZ_NEED(json_is_object(dynamic), err, OZ_E_FORMAT, "%s.dynamic: must be an object, found %s", c->path, oz_json_show(dynamic));
    c->rules = oz_alloc_array(json_object_size(dynamic) + 1, sizeof *c->rules);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)dynamic, key, v) {
        oz_rule *r = &c->rules[c->n_rules++];
        const bool sign = oz_str_starts(key, "-:") || oz_str_starts(key, "+:");
        *r = (oz_rule){.text = oz_asprintf("re:%s", key + (sign ? 2 : 0)), .path = oz_asprintf("%s.dynamic.%.80s", c->path, key), .skip = sign && *key == '-', .over = v, .key = key};
        if (oz_pattern_init(&r->pattern, r->text, err) != OZ_OK) return oz_err_prefix(err, "%s", r->path);
        OZ_TRY(rule_check(c, r, err));
    }
    return OZ_OK;
}

static oz_status gptq_read(oz_config *c, oz_err *err) {
    const char *format = NULL, *word = "int32";
    c->base = (oz_scheme){.quantized = true, .symmetric = true, .store = OZ_STORE_GPTQ, .format = "gptq", .name = "gptq"};
    OZ_TRY(check_meanings(c, err));
    OZ_TRY(check_twice(c, "checkpoint_format", "format", err));
    OZ_TRY(gptq_keys(&c->base, c->json, c->path, err));
    OZ_TRY(oz_json_str(&format, c->json, c->path, "checkpoint_format", err));
    const char *key = format ? "checkpoint_format" : "format";
    if (!format) OZ_TRY(oz_json_str(&format, c->json, c->path, "format", err));
    OZ_NEED(!format || strcasecmp(format, "gptq") == 0 || strcasecmp(format, "gptq_v2") == 0, err, OZ_E_UNSUPPORTED, "%s.%s: must be gptq or gptq_v2, found \"%.60s\"", c->path, key, format);
    c->base.old_layout = !format || strcasecmp(format, "gptq") == 0;
    OZ_TRY(oz_json_str(&word, c->json, c->path, "pack_dtype", err));
    OZ_NEED(strcasecmp(word, "int32") == 0 || strcasecmp(word, "torch.int32") == 0, err, OZ_E_UNSUPPORTED, "%s.pack_dtype: must be int32, found \"%.60s\"", c->path, word);
    return rules_read(c, err);
}

/* modules_in_block_to_quantize: lists of what in a layer is quantized. */
static bool is_left_in_blocks(const oz_config *c, const char *name) {
    const json_t *lists = json_object_get(c->json, "modules_in_block_to_quantize");
    bool any = false;
    for (size_t i = 0; i < json_array_size(lists); i++) {
        const json_t *list = json_array_get(lists, i);
        for (size_t k = 0; k < json_array_size(list); k++) {
            const char *part = json_string_value(json_array_get(list, k));
            if (part && oz_str_ends(name, part)) return false;
            any |= part != NULL;
        }
    }
    return any;
}

static oz_status ruled_module(oz_scheme *out, oz_config *c, const oz_module *m, oz_err *err) {
    OZ_TRY((c->base.store == OZ_STORE_GPTQ ? shared : whole_groups)(out, c, m, err));
    if (!m->stored && is_left_in_blocks(c, m->name)) out->pattern = "modules_in_block_to_quantize";
    for (size_t i = 0; i < c->n_rules; i++) {
        oz_hit hit;
        oz_rule *r = &c->rules[i];
        if (oz_pattern_hit(&hit, &r->pattern, m, err) != OZ_OK) return oz_err_prefix(err, "%s", r->path);
        if (hit == OZ_HIT_NONE) continue;
        OZ_NEED(!r->skip || !m->stored, err, OZ_E_FORMAT, "%s: %s leaves it out, and yet it is stored quantized", m->name, r->path);
        if (r->skip) out->pattern = r->key;
        return out->quantized ? gptq_keys(out, r->over, r->path, err) : OZ_OK;
    }
    return OZ_OK;
}

/* ---- AWQ ---- */

static oz_status awq_read(oz_config *c, oz_err *err) {
    const char *version = "gemm";
    int64_t bits = 4;
    int zero_point = true;
    const json_t *v = c->json;
    OZ_TRY(check_meanings(c, err));
    OZ_TRY(check_twice(c, "bits", "w_bit", err));
    OZ_TRY(check_twice(c, "group_size", "q_group_size", err));
    const char *bits_key = json_object_get(v, "w_bit") ? "w_bit" : "bits";
    c->base = (oz_scheme){.quantized = true, .codec = OZ_CODEC_I4A, .bits = 4, .group_size = 128, .store = OZ_STORE_AWQ, .format = "awq"};
    OZ_TRY(oz_json_int(&bits, v, c->path, bits_key, 1, 32, err));
    OZ_NEED(bits == 4, err, OZ_E_UNSUPPORTED, "%s.%s: must be 4, found %d", c->path, bits_key, (int)bits);
    OZ_TRY(group_size(&c->base, v, c->path, err));
    if (json_object_get(v, "q_group_size")) {
        int64_t g = 0;
        OZ_TRY(oz_json_int(&g, v, c->path, "q_group_size", 1, MAX_GROUP, err));
        c->base.group_size = g;
    }
    OZ_TRY(oz_json_bool(&zero_point, v, c->path, "zero_point", err));
    OZ_NEED(zero_point, err, OZ_E_UNSUPPORTED, "%s.zero_point: must be true, found false", c->path);
    OZ_TRY(oz_json_str(&version, v, c->path, "version", err));
    OZ_NEED(strcasecmp(version, "gemm") == 0, err, OZ_E_UNSUPPORTED, "%s.version: must be gemm, found \"%.60s\"; others interleave their codes for one kernel each", c->path, version);
    c->base.name = oz_scheme_display(&c->base);
    c->by_part = true;
    OZ_TRY(excluded(c, "modules_to_not_convert", err));
    return rules_read(c, err);
}

/* ---- fp8 as DeepSeek and Qwen publish it ---- */

static oz_status fp8_blocks(oz_scheme *s, const json_t *v, const char *path, oz_err *err) {
    const json_t *b = json_object_get(v, "weight_block_size");
    if (!b || json_is_null(b)) return OZ_OK;
    const json_int_t rows = json_integer_value(json_array_get(b, 0)), cols = json_integer_value(json_array_get(b, 1));
    OZ_NEED(json_array_size(b) == 2 && rows > 0 && cols > 0 && rows <= MAX_GROUP && cols <= MAX_GROUP, err, OZ_E_FORMAT, "%s.weight_block_size: must be [rows, columns], found %s", path,
            oz_json_show(b));
    s->store = OZ_STORE_FP8_BLOCK, s->per_tensor = false, s->block_rows = rows, s->group_size = cols;
    return OZ_OK;
}

static oz_status fp8_read(oz_config *c, oz_err *err) {
    const char *scheme = "dynamic", *fmt = "e4m3";
    const json_t *v = c->json;
    oz_scheme *s = &c->base;
    *s = (oz_scheme){.quantized = true, .codec = OZ_CODEC_F8E4M3, .bits = 8, .is_float = true, .per_tensor = true, .symmetric = true, .format = "fp8"};
    OZ_TRY(check_meanings(c, err));
    OZ_TRY(fp8_blocks(s, v, c->path, err));
    OZ_TRY(oz_json_str(&fmt, v, c->path, "fmt", err));
    OZ_NEED(strcmp(fmt, "e4m3") == 0, err, OZ_E_UNSUPPORTED, "%s.fmt: must be e4m3, found \"%.60s\"", c->path, fmt);
    OZ_TRY(oz_json_str(&scheme, v, c->path, "activation_scheme", err));
    s->static_input = strcmp(scheme, "static") == 0;
    OZ_NEED(s->static_input || strcmp(scheme, "dynamic") == 0, err, OZ_E_FORMAT, "%s.activation_scheme: must be static or dynamic, found \"%.60s\"", c->path, scheme);
    s->other_inputs = c->weights_only && s->static_input && !s->per_tensor;
    if (s->other_inputs) s->static_input = false;
    OZ_NEED(!s->static_input || s->per_tensor, err, OZ_E_UNSUPPORTED, "%s.activation_scheme: must be dynamic with weight_block_size, found static", c->path);
    s->act = s->per_tensor && !s->static_input ? OZ_ACT_F8_TOKEN : OZ_ACT_VALUES;
    if (s->act == OZ_ACT_VALUES) s->input = (oz_round){.bits = 8, .is_float = true, .symmetric = true, .group_size = s->group_size, .powers = !says_nothing(json_object_get(v, "scale_fmt"))};
    OZ_NEED(!s->per_tensor || says_nothing(json_object_get(v, "scale_fmt")), err, OZ_E_UNSUPPORTED, "%s.scale_fmt: must be null without weight_block_size, found %s", c->path, oz_json_show(json_object_get(v, "scale_fmt")));
    s->name = oz_scheme_display(s);
    OZ_TRY(excluded(c, "ignored_layers", err));
    return c->excluded ? OZ_OK : excluded(c, "modules_to_not_convert", err);
}

/* ---- all families ---- */

#define QUANTIZE_OR_TAKE "quantize the original model instead (ounce quantize), or take a compressed-tensors, GPTQ, AWQ or GGUF version of it"
static const oz_family FAMILIES[] = {
    {"compressed-tensors", oz_groups_read, oz_groups_module, NULL},
    {"gptq", gptq_read, ruled_module, NULL},
    {"awq", awq_read, ruled_module, NULL},
    {"fp8", fp8_read, whole_groups, NULL},
    {"bitsandbytes", NULL, NULL, "quantize the original model instead (ounce quantize --scheme W4A16 or W8A8), or take a GPTQ, AWQ or GGUF version of it"},
    {"modelopt", NULL, NULL, "take the compressed-tensors version of the model, or quantize the original (ounce quantize --scheme FP8_DYNAMIC)"},
    {"modelopt_fp4", NULL, NULL, "take the compressed-tensors version of the model, or quantize the original (ounce quantize --scheme W4A16)"},
    {"quark", NULL, NULL, "take the compressed-tensors version of the model, or quantize the original (ounce quantize)"},
    {"torchao", NULL, NULL, "quantize the original model instead (ounce quantize)"},
    {"mxfp4", NULL, NULL, "take a GGUF version of the model"},
    {"hqq", NULL, NULL, "quantize the original model instead (ounce quantize)"},
    {"aqlm", NULL, NULL, "quantize the original model instead (ounce quantize)"},
    {"eetq", NULL, NULL, "quantize the original model instead (ounce quantize --scheme W8A16)"},
    {"auto-round", NULL, NULL, QUANTIZE_OR_TAKE},
    {"intel/auto-round", NULL, NULL, QUANTIZE_OR_TAKE},
    {"bitnet", NULL, NULL, "take a GGUF version of the model"},
    {"quanto", NULL, NULL, QUANTIZE_OR_TAKE},
    {"higgs", NULL, NULL, QUANTIZE_OR_TAKE},
    {"spqr", NULL, NULL, QUANTIZE_OR_TAKE},
    {"vptq", NULL, NULL, QUANTIZE_OR_TAKE},
    {"fp_quant", NULL, NULL, QUANTIZE_OR_TAKE},
    {"sinq", NULL, NULL, QUANTIZE_OR_TAKE},
    {"exl2", NULL, NULL, QUANTIZE_OR_TAKE},
    {"fbgemm_fp8", NULL, NULL, "quantize the original model instead (ounce quantize --scheme FP8_DYNAMIC)"},
};

const oz_family *oz_family_find(const char *method) {
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++)
        if (strcmp(FAMILIES[i].method, method) == 0) return &FAMILIES[i];
    return NULL;
}
