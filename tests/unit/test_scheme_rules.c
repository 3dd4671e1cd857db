/* The rules of a config, one by one: what compressed-tensors 0.20 takes and refuses, and where this reader is another on purpose. */
#include "files.h"
#include "base/json.h"
#include "scheme/scheme.h"

static const char *const BASES[] = {
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"quantization_status\":\"compressed\",\"ignore\":[\"lm_head\"],\"config_groups\":{\"g\":{\"targets\":"
    "[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32,\"dynamic\":false}}}}}",
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"quantization_status\":\"compressed\",\"ignore\":[\"lm_head\"],\"config_groups\":{\"g\":{\"targets\":"
    "[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\",\"dynamic\":false},\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,"
    "\"strategy\":\"token\",\"dynamic\":true}}}}}",
};
enum { W4A16, W8A8 };
static const oz_module MODULES[] = {{"m.q_proj", "Linear", 128, 256, false}, {"lm_head", "Linear", 128, 256, false}};

/* Puts a member into: 'w' weights, 'a' input_activations, 'g' the group, 'q' the whole. "-" takes it out. words: of the error; NULL: it is taken. */
typedef struct rule { int base; char at; const char *key, *value, *words; } rule;

/* What the library takes, too. */
static const rule TAKEN[] = {
    {W4A16, 'q', "kv_cache_scheme", "{}", NULL} /* int8, one scale a layer */,
    {W4A16, 'w', "type", "\"INT\"", NULL}, {W4A16, 'w', "num_bits", "2", NULL}, {W4A16, 'w', "num_bits", "3", NULL}, {W4A16, 'w', "num_bits", "8", NULL}, {W4A16, 'w', "num_bits", "-", NULL},
    {W4A16, 'w', "symmetric", "false", NULL}, {W4A16, 'w', "symmetric", "-", NULL}, {W4A16, 'w', "strategy", "\"GROUP\"", NULL}, {W4A16, 'w', "strategy", "null", NULL}, {W4A16, 'w', "strategy", "-", NULL},
    {W4A16, 'w', "group_size", "1", NULL}, {W8A8, 'w', "group_size", "-1", NULL}, {W8A8, 'w', "group_size", "null", NULL}, {W8A8, 'w', "strategy", "\"tensor\"", NULL}, {W8A8, 'w', "block_structure", "null", NULL},
    {W8A8, 'a', "group_size", "-1", NULL}, {W8A8, 'a', "symmetric", "false", NULL}, {W4A16, 'w', "actorder", "\"static\"", NULL}, {W4A16, 'w', "actorder", "\"weight\"", NULL}, {W4A16, 'w', "actorder", "false", NULL},
    {W4A16, 'w', "actorder", "null", NULL}, {W8A8, 'w', "actorder", "\"weight\"", NULL}, {W8A8, 'a', "actorder", "false", NULL}, {W4A16, 'w', "scale_dtype", "\"torch.bfloat16\"", NULL},
    {W4A16, 'w', "scale_dtype", "\"bfloat16\"", NULL}, {W4A16, 'w', "scale_dtype", "null", NULL}, {W4A16, 'w', "zp_dtype", "\"torch.int8\"", NULL}, {W4A16, 'w', "zp_dtype", "\"torch.float8_e4m3fn\"", NULL},
    {W4A16, 'w', "zp_dtype", "null", NULL}, {W4A16, 'w', "observer", "\"nonsense\"", NULL}, {W4A16, 'w', "observer", "null", NULL}, {W4A16, 'w', "observer_kwargs", "{\"a\":1}", NULL},
    {W4A16, 'g', "targets", "[]", NULL}, {W4A16, 'g', "targets", "[\"Linear\",\"Linear\"]", NULL}, {W4A16, 'g', "targets", "[\"\"]", NULL}, {W4A16, 'g', "targets", "[\"re:\"]", NULL},
    {W4A16, 'g', "weights", "null", NULL}, {W4A16, 'g', "weights", "-", NULL}, {W4A16, 'g', "output_activations", "null", NULL}, {W4A16, 'g', "format", "null", NULL}, {W4A16, 'g', "format", "\"naive-quantized\"", NULL},
    {W4A16, 'q', "format", "\"mixed-precision\"", NULL}, {W4A16, 'q', "format", "-", NULL}, {W4A16, 'q', "quantization_status", "\"frozen\"", NULL}, {W4A16, 'q', "quantization_status", "-", NULL},
    {W4A16, 'q', "ignore", "null", NULL}, {W4A16, 'q', "ignore", "[]", NULL}, {W4A16, 'q', "config_groups", "{}", NULL}, {W4A16, 'q', "global_compression_ratio", "null", NULL},
    {W4A16, 'q', "global_compression_ratio", "1.5", NULL}, {W4A16, 'q', "sparsity_config", "{}", NULL}, {W4A16, 'q', "sparsity_config", "{\"format\":\"dense\"}", NULL}, {W4A16, 'q', "transform_config", "{}", NULL},
    {W4A16, 'q', "transform_config", "{\"config_groups\":{\"a\":{\"type\":\"hadamard\",\"apply\":[{\"targets\":[\"Linear\"],\"location\":\"weight_input\"}]}}}", NULL}, {W4A16, 'q', "kv_cache_scheme", "null", NULL},
    {W4A16, 'q', "kv_cache_scheme", "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"attn_head\"}", NULL}, {W4A16, 'q', "version", "\"abc\"", NULL}, {W4A16, 'q', "quant_method", "-", NULL},
    {W4A16, 'q', "moe_sparsity_config", "null", NULL}, {W4A16, 'q', "run_compressed", "true", NULL}, {W4A16, 'q', "anything", "{}", NULL},
};
/* What it refuses, too. */
static const rule REFUSED[] = {
    {W4A16, 'w', "type", "\"int8\"", "weights.type"}, {W4A16, 'w', "type", "null", "weights.type"}, {W4A16, 'w', "type", "4", "weights.type"}, {W4A16, 'w', "num_bits", "4.5", "weights.num_bits"},
    {W4A16, 'w', "num_bits", "null", "weights.num_bits"}, {W4A16, 'w', "symmetric", "null", "weights.symmetric"}, {W4A16, 'w', "strategy", "\"row\"", "weights.strategy"}, {W4A16, 'w', "strategy", "3", "weights.strategy"},
    {W4A16, 'w', "strategy", "\"channel\"", "weights.group_size"}, {W4A16, 'w', "strategy", "\"tensor\"", "weights.group_size"}, {W4A16, 'w', "strategy", "\"block\"", "weights."},
    {W4A16, 'w', "group_size", "null", "weights.group_size"}, {W4A16, 'w', "group_size", "-", "weights.group_size"}, {W4A16, 'w', "group_size", "0", "weights.group_size"}, {W4A16, 'w', "group_size", "-1", "weights.group_size"},
    {W4A16, 'w', "group_size", "-2", "weights.group_size"}, {W4A16, 'w', "block_structure", "[128,128]", "weights.block_structure"}, {W8A8, 'w', "block_structure", "[128]", "weights.block_structure"},
    {W4A16, 'w', "dynamic", "\"local\"", "weights.dynamic"}, {W4A16, 'w', "dynamic", "null", "weights.dynamic"}, {W8A8, 'a', "dynamic", "\"local\"", "input_activations.dynamic"},
    {W8A8, 'a', "dynamic", "\"LOCAL\"", "input_activations.dynamic"}, {W8A8, 'a', "dynamic", "false", "input_activations.dynamic"}, {W8A8, 'a', "dynamic", "null", "input_activations.dynamic"},
    {W8A8, 'a', "strategy", "\"channel\"", "input_activations.strategy"}, {W8A8, 'a', "strategy", "\"group\"", "input_activations.group_size"}, {W8A8, 'a', "strategy", "\"block\"", "input_activations."},
    {W8A8, 'a', "strategy", "\"attn_head\"", "input_activations.dynamic"}, {W8A8, 'a', "group_size", "32", "input_activations.group_size"}, {W8A8, 'w', "actorder", "\"group\"", "weights.actorder"},
    {W8A8, 'a', "actorder", "\"weight\"", "input_activations.actorder"}, {W4A16, 'w', "actorder", "\"none\"", "weights.actorder"}, {W4A16, 'w', "actorder", "\"\"", "weights.actorder"},
    {W4A16, 'w', "scale_dtype", "\"torch.nothing\"", "weights.scale_dtype"}, {W4A16, 'w', "scale_dtype", "\"\"", "weights.scale_dtype"}, {W4A16, 'w', "scale_dtype", "5", "weights.scale_dtype"},
    {W4A16, 'w', "zp_dtype", "\"torch.nothing\"", "weights.zp_dtype"}, {W4A16, 'w', "zp_dtype", "5", "weights.zp_dtype"}, {W4A16, 'w', "observer", "5", "weights.observer"},
    {W4A16, 'w', "observer_kwargs", "[]", "weights.observer_kwargs"}, {W4A16, 'w', "foo", "null", "weights.foo"}, {W4A16, 'g', "targets", "\"Linear\"", "g.targets"}, {W4A16, 'g', "targets", "null", "g.targets"},
    {W4A16, 'g', "targets", "-", "g.targets"}, {W4A16, 'g', "targets", "[1]", "g.targets[0]"}, {W4A16, 'g', "targets", "[null]", "g.targets[0]"}, {W4A16, 'g', "weights", "[]", "g.weights"},
    {W4A16, 'g', "weights", "\"W4A16\"", "g.weights"}, {W4A16, 'g', "format", "\"mixed-precision\"", "g.format"}, {W4A16, 'g', "format", "\"foo\"", "g.format"}, {W4A16, 'g', "format", "\"PACK-QUANTIZED\"", "g.format"},
    {W4A16, 'g', "format", "5", "g.format"}, {W4A16, 'g', "foo", "null", "g.foo"}, {W4A16, 'q', "format", "5", "config.format"}, {W4A16, 'q', "format", "null", "config.format"},
    {W4A16, 'q', "quantization_status", "\"done\"", "quantization_status"}, {W4A16, 'q', "quantization_status", "\"COMPRESSED\"", "quantization_status"}, {W4A16, 'q', "quantization_status", "null", "quantization_status"},
    {W4A16, 'q', "ignore", "\"lm_head\"", "config.ignore"}, {W4A16, 'q', "ignore", "[5]", "config.ignore[0]"}, {W4A16, 'q', "config_groups", "null", "config_groups"}, {W4A16, 'q', "config_groups", "[]", "config_groups"},
    {W4A16, 'q', "config_groups", "{\"foo\":[\"Linear\"]}", "config_groups.foo"}, {W4A16, 'q', "global_compression_ratio", "\"x\"", "global_compression_ratio"}, {W4A16, 'q', "kv_cache_scheme", "[]", "kv_cache_scheme"},
    {W4A16, 'q', "kv_cache_scheme", "{\"foo\":1}", "kv_cache_scheme.foo"}, {W4A16, 'q', "quant_method", "null", "quant_method"},
};
/* What it takes by turning one thing into another, or leaves for later: here it is refused. */
static const rule STRICT[] = {
    {W4A16, 'w', "num_bits", "1", "weights.num_bits"}, {W4A16, 'w', "num_bits", "16", "weights.num_bits"}, {W4A16, 'w', "num_bits", "-4", "weights.num_bits"}, {W4A16, 'w', "num_bits", "4.0", "weights.num_bits"},
    {W4A16, 'w', "num_bits", "true", "weights.num_bits"}, {W4A16, 'w', "num_bits", "\"4\"", "weights.num_bits"}, {W4A16, 'w', "symmetric", "1", "weights.symmetric"}, {W4A16, 'w', "symmetric", "\"no\"", "weights.symmetric"},
    {W4A16, 'w', "type", "\"float\"", "g.format"}, {W4A16, 'w', "group_size", "32.0", "weights.group_size"}, {W4A16, 'w', "group_size", "true", "weights.group_size"}, {W4A16, 'w', "group_size", "31", "weights.group_size"},
    {W4A16, 'w', "group_size", "1099511627776", "weights.group_size"}, {W4A16, 'w', "dynamic", "true", "weights.dynamic"}, {W4A16, 'w', "dynamic", "0", "weights.dynamic"}, {W8A8, 'a', "dynamic", "1", "input_activations.dynamic"},
    {W4A16, 'w', "actorder", "\"true\"", "weights.actorder"}, {W4A16, 'w', "actorder", "1", "weights.actorder"}, {W4A16, 'g', "targets", "[\"re:*\"]", "g.targets[0]"}, {W4A16, 'q', "ignore", "[\"re:(\"]", "config.ignore[0]"},
    {W4A16, 'g', "format", "\"nvfp4-pack-quantized\"", "g.format"}, {W4A16, 'q', "format", "\"foo\"", "config.format"}, {W4A16, 'q', "transform_config", "\"x\"", "transform_config"},
    {W4A16, 'q', "kv_cache_scheme", "{\"num_bits\": 4}", "kv_cache_scheme"}, {W4A16, 'q', "quant_method", "\"COMPRESSED-TENSORS\"", "quant_method"}, {W4A16, 'g', "output_activations", "{}", "output_activations"},
};
/* What it has given up, and files in use still have (spellings; an order of columns in groups). */
static const rule OLDER[] = {
    {W4A16, 'w', "actorder", "\"group\"", NULL}, {W4A16, 'w', "actorder", "\"dynamic\"", NULL}, {W4A16, 'w', "actorder", "true", NULL}, {W4A16, 'w', "actorder", "\"Weight\"", NULL}, {W4A16, 'w', "observer_kwargs", "null", NULL},
};

static json_t *changed(const rule *r) {
    json_t *config, *q, *g;
    assert_int_equal(oz_json_parse(&config, BASES[r->base], strlen(BASES[r->base]), "test", NULL), OZ_OK);
    q = json_object_get(config, "quantization_config"), g = json_object_get(json_object_get(q, "config_groups"), "g");
    json_t *at = r->at == 'q' ? q : r->at == 'g' ? g : json_object_get(g, r->at == 'w' ? "weights" : "input_activations");
    if (strcmp(r->value, "-") == 0) json_object_del(at, r->key);
    else json_object_set_new(at, r->key, json_loads(r->value, JSON_DECODE_ANY, NULL));
    return config;
}

static void check(const rule *rules, size_t n) {
    for (const rule *r = rules; r < rules + n; r++) {
        oz_scheme s[2];
        oz_err err = {0};
        json_t *config = changed(r);
        const oz_status st = oz_scheme_resolve(s, config, MODULES, 2, &err);
        json_decref(config);
        if ((st == OZ_OK) != !r->words) fail_msg("%c.%s = %s: %s", r->at, r->key, r->value, st == OZ_OK ? "was taken" : err.msg);
        if (!r->words) continue;
        if (!strstr(err.msg, r->words) || strncmp(err.msg, "quantization_config.", 20) != 0) fail_msg("%c.%s = %s: expected %s in: %s", r->at, r->key, r->value, r->words, err.msg);
    }
}

#define CHECK(rules) check(rules, sizeof rules / sizeof *rules)
static void test_taken(void **state) { CHECK(TAKEN); }
static void test_refused(void **state) { CHECK(REFUSED); }
static void test_strict(void **state) { CHECK(STRICT); }
static void test_older(void **state) { CHECK(OLDER); }

/* Every preset of the library by its name, and what becomes of it; refused only where a module would use it. */
static void test_presets_by_name(void **state) {
    static const struct { const char *name; int bits; bool is_float; int64_t group; oz_act act; const char *not_run; } want[] = {
        {"W8A8", 8, false, 0, OZ_ACT_I8_TOKEN, NULL}, {"int8", 8, false, 0, OZ_ACT_I8_TOKEN, NULL}, {"W2A16", 2, false, 128, OZ_ACT_NONE, NULL}, {"W3A16", 3, false, 128, OZ_ACT_NONE, NULL},
        {"W4A16", 4, false, 128, OZ_ACT_NONE, NULL}, {"W5A16", 5, false, 128, OZ_ACT_NONE, NULL}, {"W6A16", 6, false, 128, OZ_ACT_NONE, NULL}, {"W7A16", 7, false, 128, OZ_ACT_NONE, NULL},
        {"W8A16", 8, false, 128, OZ_ACT_NONE, NULL}, {"W4A16_ASYM", 4, false, 128, OZ_ACT_NONE, NULL}, {"W2A8", 2, false, 128, OZ_ACT_VALUES, NULL}, {"W3A8", 3, false, 128, OZ_ACT_VALUES, NULL},
        {"W4A8", 4, false, 128, OZ_ACT_VALUES, NULL}, {"W7A8", 7, false, 128, OZ_ACT_VALUES, NULL}, {"W4A4", 4, false, 128, OZ_ACT_VALUES, NULL}, {"W4AFP8", 4, false, 128, OZ_ACT_VALUES, NULL},
        {"FP8", 8, true, 0, OZ_ACT_VALUES, NULL}, {"FP8_DYNAMIC", 8, true, 0, OZ_ACT_F8_TOKEN, NULL}, {"FP8_BLOCK", 8, true, 128, OZ_ACT_VALUES, NULL}, {"NVFP4A16", 4, true, 16, OZ_ACT_NONE, NULL},
        {"MXFP4A16", 4, true, 32, OZ_ACT_NONE, NULL}, {"mxfp8a16", 8, true, 32, OZ_ACT_NONE, NULL}, {"NVFP4", 4, true, 16, OZ_ACT_NONE, "is not supported"}, {"MXFP4", 4, true, 32, OZ_ACT_NONE, "is not supported"},
        {"MXFP8", 8, true, 32, OZ_ACT_NONE, "is not supported"},
        {"W5A8", 5, false, 128, OZ_ACT_VALUES, NULL}, {"W6A8", 6, false, 128, OZ_ACT_VALUES, NULL}, {"W2A4", 2, false, 128, OZ_ACT_VALUES, NULL}, {"W3A4", 3, false, 128, OZ_ACT_VALUES, NULL},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        oz_scheme s[2];
        oz_err err = {0};
        json_t *config = json_pack("{s:{s:s s:{s:[s]}}}", "quantization_config", "quant_method", "compressed-tensors", "config_groups", want[i].name, "Linear");
        const oz_status st = oz_scheme_resolve(s, config, MODULES, 2, &err);
        json_decref(config);
        if (want[i].not_run) {
            assert_int_equal(st, OZ_E_UNSUPPORTED);
            test_contains(err.msg, want[i].not_run);
            continue;
        }
        if (st != OZ_OK) fail_msg("%s: %s", want[i].name, err.msg);
        if (s[0].bits != want[i].bits || s[0].is_float != want[i].is_float || s[0].group_size != want[i].group || s[0].act != want[i].act) fail_msg("%s: another scheme, %s", want[i].name, s[0].name);
        if (strcasecmp(s[0].name, want[i].name) != 0 && strcmp(want[i].name, "int8") != 0) fail_msg("%s is called %s", want[i].name, s[0].name); /* int8 is a second name of W8A8 */
    }
}

/* A scheme that no preset has is named in the same way, after its weights and its inputs. */
static void test_names_without_a_preset(void **state) {
    static const struct { const char *weights, *inputs, *name; } want[] = {
        {"{\"num_bits\":8,\"strategy\":\"channel\"}", "{\"num_bits\":4,\"strategy\":\"token\",\"dynamic\":true}", "W8A4"},
        {"{\"num_bits\":4,\"strategy\":\"channel\",\"symmetric\":false}", "{\"num_bits\":4,\"strategy\":\"token\",\"dynamic\":true}", "W4A4_ASYM"},
        {"{\"num_bits\":4,\"strategy\":\"channel\",\"symmetric\":false}", "{\"num_bits\":8,\"strategy\":\"token\",\"dynamic\":true}", "W4A8_ASYM"},
        {"{\"num_bits\":8,\"strategy\":\"channel\"}", "{\"num_bits\":8,\"strategy\":\"tensor\",\"symmetric\":false}", "W8A8_STATIC"},
        {"{\"num_bits\":8,\"strategy\":\"channel\",\"symmetric\":false}", "null", "W8A16_ASYM"},
        {"{\"num_bits\":8,\"strategy\":\"channel\"}", "{\"type\":\"float\",\"strategy\":\"token\",\"dynamic\":true}", "W8AFP8"},
        {"{\"type\":\"float\",\"strategy\":\"channel\"}", "{\"num_bits\":4,\"strategy\":\"token\",\"dynamic\":true}", "FP8A4"},
        {"{\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[8,8]}", "{\"strategy\":\"token\",\"dynamic\":true}", "FP8_BLOCKA8"},
        {"{\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[8,8]}", "null", "FP8_BLOCKA16"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        oz_scheme s[2];
        oz_err err = {0};
        char text[512];
        snprintf(text, sizeof text, "{\"quantization_config\":{\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":%s,\"input_activations\":%s}}}}", want[i].weights, want[i].inputs);
        json_t *config = json_loads(text, 0, NULL);
        if (oz_scheme_resolve(s, config, MODULES, 2, &err) != OZ_OK) fail_msg("%s: %s", want[i].name, err.msg);
        assert_string_equal(s[0].name, want[i].name);
        json_decref(config);
    }
}

/* AWQ and float8 blocks take whole groups of inputs; the last group of GPTQ may be short. */
static void test_whole_groups(void **state) {
    static const struct { const char *config, *error; } rows[] = {
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":48}", "m: quantization_config says groups of 48 inputs, which do not divide its 64 columns"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,48]}", "m: quantization_config says groups of 48 inputs, which do not divide its 64 columns"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":48}", NULL},
    };
    const oz_module m = {"m", "Linear", 64, 64, true};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        oz_scheme s;
        oz_err err = {0};
        json_t *config = json_pack("{s:o}", "quantization_config", json_loads(rows[i].config, 0, NULL));
        const oz_status st = oz_scheme_resolve(&s, config, &m, 1, &err);
        json_decref(config);
        if (!rows[i].error) assert_int_equal(st, OZ_OK);
        else assert_string_equal(err.msg, rows[i].error);
    }
}

/* Expressions are Python's: what PCRE2 knows besides would match other modules than it does there. */
static void test_dialect(void **state) {
    static const struct { const char *pattern; bool is_python, hits; } rows[] = {
        {"re:m\\.q_proj", true, true}, {"re:(?:m|n)\\.(?P<x>q)_proj$", true, true}, {"re:(?i)M\\.Q_PROJ", true, true}, {"re:(?i:M)\\.q", true, true}, {"re:(?!lm_head).*", true, true}, {"re:(?<!x)m", true, true},
        {"re:[]m].*", true, true}, {"re:[^]q].*", true, true}, {"re:[(*m].*", true, true}, {"re:\\w\\.\\D+\\Z", true, true}, {"re:m(?#note)", true, true}, {"re:[\\[:m]", true, true}, {"re:\\(\\*", true, false},
        {"re:[[:alpha:]]", false, false}, {"re:[^[:digit:]]", false, false}, {"re:\\p{L}", false, false}, {"re:m\\K", false, false}, {"re:.*\\z", false, false}, {"re:\\Qm\\E", false, false}, {"re:\\h*m", false, false},
        {"re:(*UCP)m", false, false}, {"re:(?|m|n)", false, false}, {"re:(?<x>m)", false, false}, {"re:(?'x'm)", false, false}, {"re:(m)(?1)?", false, false}, {"re:(?R)?m", false, false}, {"re:m(?i)Q", false, false},
        {"re:\\Gm", false, false}, {"re:\\Xx", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool hit;
        oz_err err = {0};
        const oz_status st = oz_pattern_match(&hit, rows[i].pattern, &MODULES[0], &err);
        if ((st == OZ_OK) != rows[i].is_python) fail_msg("%s: %s", rows[i].pattern, st == OZ_OK ? "was taken" : err.msg);
        if (st == OZ_OK && hit != rows[i].hits) fail_msg("%s: %s", rows[i].pattern, hit ? "a hit" : "no hit");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken), cmocka_unit_test(test_refused), cmocka_unit_test(test_strict),
                                       cmocka_unit_test(test_older), cmocka_unit_test(test_presets_by_name), cmocka_unit_test(test_names_without_a_preset), cmocka_unit_test(test_whole_groups), cmocka_unit_test(test_dialect)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
