/* Resolution is checked on configs written out in place, each with one thing changed; binding on small checkpoints made by the writer. */
#include "files.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "scheme/scheme.h"

#define L0 "model.layers.0."
static const oz_module MODULES[] = {
    {"model.embed_tokens", "Embedding", 16, 32, false}, {L0 "self_attn.q_proj", "Linear", 32, 32, false}, {L0 "self_attn.k_proj", "Linear", 16, 32, false},
    {L0 "self_attn.v_proj", "Linear", 16, 32, false},   {L0 "self_attn.o_proj", "Linear", 32, 32, false}, {L0 "mlp.gate_proj", "Linear", 64, 32, false},
    {L0 "mlp.up_proj", "Linear", 64, 32, false},        {L0 "mlp.down_proj", "Linear", 32, 64, false},    {"lm_head", "Linear", 16, 32, false},
};
enum { EMBED, Q, K, V, O, GATE, UP, DOWN, HEAD, N_MODULES };

#define W4 "{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32}"
#define W8 "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\"}"
#define F8 "{\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":\"channel\"}"
#define A8 "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"token\",\"dynamic\":true}"
#define AF8 "{\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":\"token\",\"dynamic\":true}"
#define GROUP(targets, weights, acts) "{\"targets\":" targets ",\"weights\":" weights ",\"input_activations\":" acts "}"
#define TOP(groups, rest) "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{" groups "}" rest "}}"
#define ONE(weights, acts) TOP("\"group_0\":" GROUP("[\"Linear\"]", weights, acts), ",\"ignore\":[\"lm_head\"]")

static oz_status resolve(oz_scheme s[N_MODULES], const char *text, oz_err *err) {
    json_t *config;
    *err = (oz_err){0};
    oz_status st = oz_json_parse(&config, text, strlen(text), "test", err);
    if (st != OZ_OK) fail_msg("%s in %s", err->msg, text);
    st = oz_scheme_resolve(s, config, MODULES, N_MODULES, err);
    json_decref(config);
    return st;
}

static void expect_ok(oz_scheme s[N_MODULES], const char *text) {
    oz_err err;
    if (resolve(s, text, &err) != OZ_OK) fail_msg("%s for %s", err.msg, text);
}

static void expect_error(const char *text, oz_status code, const char *words) {
    oz_scheme s[N_MODULES];
    oz_err err;
    oz_status st = resolve(s, text, &err);
    if (st != code) fail_msg("status %d, expected %d (%s) for %s", st, code, err.msg, text);
    test_contains(err.msg, words);
}

/* What others store otherwise: what becomes of it, by field. */
static void test_meanings(void **state) {
    oz_scheme s[N_MODULES];
    expect_ok(s, ONE("{\"num_bits\":4,\"symmetric\":false,\"group_size\":32}", "null"));
    assert_true(!s[Q].symmetric && s[Q].store == OZ_STORE_PACKED && s[Q].act == OZ_ACT_NONE && strcmp(s[Q].name, "W4A16_ASYM") == 0);
    expect_ok(s, ONE("{\"num_bits\":4,\"group_size\":32,\"actorder\":true}", "null"));
    assert_true(s[Q].column_order && s[Q].group_size == 32);
    expect_ok(s, ONE("{\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":\"128x64\"}", "null"));
    assert_true(s[Q].block_rows == 128 && s[Q].group_size == 64 && s[Q].codec == OZ_CODEC_F8E4M3);
    expect_ok(s, ONE("{\"type\":\"float\",\"strategy\":\"tensor\"}", "{\"type\":\"float\"}"));
    assert_true(s[Q].static_input && s[Q].act == OZ_ACT_VALUES && s[Q].input.is_float && s[Q].per_tensor);
    expect_ok(s, ONE("{\"num_bits\":3,\"group_size\":32}", "null"));
    assert_true(s[Q].codec == OZ_CODEC_I3P && s[Q].bits == 3);
    expect_ok(s, ONE(W4, A8));
    assert_true(s[Q].codec == OZ_CODEC_I8 && s[Q].bits == 4 && s[Q].act == OZ_ACT_VALUES && !s[Q].input.is_float && strcmp(s[Q].format, "int-quantized") == 0);
    expect_ok(s, ONE(W8, AF8));
    assert_true(s[Q].act == OZ_ACT_VALUES && s[Q].input.is_float);
    expect_ok(s, ONE("{\"type\":\"float\",\"num_bits\":4,\"strategy\":\"tensor_group\",\"group_size\":16}", "null"));
    assert_true(s[Q].store == OZ_STORE_NVFP4 && s[Q].codec == OZ_CODEC_E2M1);
    expect_ok(s, ONE("{\"type\":\"float\",\"num_bits\":4,\"group_size\":32}", "null"));
    assert_int_equal(s[Q].store, OZ_STORE_MXFP4);
    expect_ok(s, ONE("{\"type\":\"float\",\"num_bits\":6,\"group_size\":32}", "null"));
    assert_true(s[Q].store == OZ_STORE_MXFP6 && s[Q].codec == OZ_CODEC_E2M3);
    expect_ok(s, ONE("{\"type\":\"float\",\"group_size\":32,\"scale_dtype\":\"torch.uint8\"}", "null"));
    assert_int_equal(s[Q].store, OZ_STORE_MXFP8);
}

static int n_found;
static void count_found(void *arg, bool is_error, const char *text) {
    (void)text;
    n_found += is_error;
    *(bool *)arg |= !is_error;
}

/* With someone to take findings, rules go on: both groups' errors, and what is unknown says so. */
static void test_findings(void **state) {
    oz_scheme s[N_MODULES];
    oz_err err = {0};
    bool warned = false;
    json_t *config;
    const char *text = TOP("\"a\":{\"targets\":[\"re:.*q_proj\"],\"weights\":{\"num_bits\":9}},\"b\":{\"targets\":[\"re:.*k_proj\"],\"weights\":{\"num_bits\":1}},"
                           "\"c\":{\"targets\":[\"nothing\"],\"weights\":" W8 "}", ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}");
    assert_int_equal(oz_json_parse(&config, text, strlen(text), "test", NULL), OZ_OK);
    const oz_findings f = {count_found, &warned};
    assert_int_equal(oz_scheme_resolve_all(s, config, MODULES, N_MODULES, &f, &err), OZ_OK);
    assert_int_equal(n_found, 3);
    assert_true(warned && s[Q].unknown && s[K].unknown && !s[V].unknown);
    json_decref(config);
}

static void test_presets(void **state) {
    assert_int_equal(oz_preset_count(), 12);
    const struct { const char *name; oz_codec codec; int bits; oz_act act; const char *format; int64_t group; } want[] = {
        {"W8A8", OZ_CODEC_I8, 8, OZ_ACT_I8_TOKEN, "int-quantized", 0},
        {"W8A16", OZ_CODEC_I8P, 8, OZ_ACT_NONE, "pack-quantized", 0},
        {"FP8_DYNAMIC", OZ_CODEC_F8E4M3, 8, OZ_ACT_F8_TOKEN, "float-quantized", 0},
        {"W4A16", OZ_CODEC_I4P, 4, OZ_ACT_NONE, "pack-quantized", 128},
        {"W4A16_ASYM", OZ_CODEC_I4P, 4, OZ_ACT_NONE, "pack-quantized", 128},
        {"W4A8", OZ_CODEC_I4P, 4, OZ_ACT_VALUES, "pack-quantized", 128},
        {"FP8_BLOCK", OZ_CODEC_F8E4M3, 8, OZ_ACT_VALUES, "float-quantized", 128},
        {"FP8", OZ_CODEC_F8E4M3, 8, OZ_ACT_VALUES, "float-quantized", 0},
        {"W8A8_STATIC", OZ_CODEC_I8, 8, OZ_ACT_VALUES, "int-quantized", 0},
    };
    for (size_t i = 0; i < 9; i++) {
        const oz_preset *p = oz_preset_at(i);
        assert_string_equal(p->scheme.name, want[i].name);
        assert_true(p->scheme.codec == want[i].codec && p->scheme.bits == want[i].bits && p->scheme.act == want[i].act);
        assert_string_equal(p->scheme.format, want[i].format);
        assert_int_equal(p->scheme.group_size, want[i].group);
        assert_int_equal(p->takes_group_size, want[i].group > 0 && !p->scheme.block_rows);
    }
    assert_ptr_equal(oz_preset_find("fp8_dynamic"), oz_preset_at(2));
    assert_null(oz_preset_find("W3A16"));
}

static bool match(const char *pattern, size_t i) {
    bool hit;
    oz_err err = {0};
    if (oz_pattern_match(&hit, pattern, &MODULES[i], &err) != OZ_OK) fail_msg("%s", err.msg);
    return hit;
}

static void test_patterns(void **state) {
    assert_true(match(L0 "mlp.down_proj", DOWN) && !match(L0 "mlp.down", DOWN) && !match("mlp.down_proj", DOWN));
    assert_true(match("Linear", Q) && !match("Linear", EMBED) && !match("linear", Q) && match("Embedding", EMBED));
    assert_true(match("re:.*down", DOWN) && match("re:lm_h", HEAD)); /* open at the end */
    assert_false(match("re:mlp", DOWN));                             /* anchored at the start */
    assert_true(match("re:.*mlp\\.(gate|up)_proj$", UP) && !match("re:.*mlp\\.(gate|up)_proj$", DOWN));
    assert_true(match("re:.*qkv_proj$", K) && !match("re:.*qkv_proj$", O) && match(L0 "mlp.gate_up_proj", GATE));
    assert_false(match("re:.*[kvo]_proj$", Q)); /* would match qkv_proj, which it does not mention */
    bool hit;
    oz_err err = {0};
    assert_int_equal(oz_pattern_match(&hit, "re:.*(q_proj", &MODULES[Q], &err), OZ_E_FORMAT);
    test_contains(err.msg, "re:.*(q_proj");
    oz_err_clear(&err);
    assert_int_equal(oz_pattern_match(&hit, "re:(.*.*)*(.*.*)*[!?]$", &MODULES[Q], &err), OZ_E_FORMAT); /* gives up instead of running on */
    test_contains(err.msg, "limit");
}

static void test_resolve_kinds(void **state) {
    oz_scheme s[N_MODULES];
    expect_ok(s, "{}");
    for (int i = 0; i < N_MODULES; i++) assert_false(s[i].quantized);
    expect_ok(s, "{\"quantization_config\":null}");
    assert_string_equal(s[Q].name, "dense");
    const struct { const char *config, *name, *format; oz_codec codec; int64_t group; bool per_tensor; oz_act act; } want[] = {
        {ONE(W8, A8), "W8A8", "int-quantized", OZ_CODEC_I8, 0, false, OZ_ACT_I8_TOKEN},
        {ONE(W8, "null"), "W8A16", "pack-quantized", OZ_CODEC_I8P, 0, false, OZ_ACT_NONE},
        {ONE(W4, "null"), "W4A16", "pack-quantized", OZ_CODEC_I4P, 32, false, OZ_ACT_NONE},
        {ONE(F8, AF8), "FP8_DYNAMIC", "float-quantized", OZ_CODEC_F8E4M3, 0, false, OZ_ACT_F8_TOKEN},
        {ONE(F8, "null"), "FP8A16", "naive-quantized", OZ_CODEC_F8E4M3, 0, false, OZ_ACT_NONE},
        {ONE("{\"strategy\":\"tensor\"}", A8), "W8A8", "int-quantized", OZ_CODEC_I8, 0, true, OZ_ACT_I8_TOKEN},
        {ONE("{}", A8), "W8A8", "int-quantized", OZ_CODEC_I8, 0, true, OZ_ACT_I8_TOKEN},
        {ONE("{\"group_size\":-1}", A8), "W8A8", "int-quantized", OZ_CODEC_I8, 0, false, OZ_ACT_I8_TOKEN},
        {ONE("{\"group_size\":16,\"num_bits\":4}", "null"), "W4A16", "pack-quantized", OZ_CODEC_I4P, 16, false, OZ_ACT_NONE},
        {ONE("{\"group_size\":-1,\"num_bits\":4}", "null"), "W4A16", "pack-quantized", OZ_CODEC_I4P, 0, false, OZ_ACT_NONE},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        expect_ok(s, want[i].config);
        assert_true(!s[HEAD].quantized && !s[EMBED].quantized);
        for (int k = Q; k <= DOWN; k++) {
            assert_string_equal(s[k].name, want[i].name);
            assert_string_equal(s[k].format, want[i].format);
            assert_true(s[k].quantized && s[k].symmetric && s[k].codec == want[i].codec && s[k].act == want[i].act);
            assert_true(s[k].group_size == want[i].group && s[k].per_tensor == want[i].per_tensor);
        }
    }
    /* the group's format, else the top level's, else what follows from the arguments */
    expect_ok(s, TOP("\"g\":" GROUP("[\"Linear\"]", W8, "null"), ",\"format\":\"int-quantized\""));
    assert_int_equal(s[Q].codec, OZ_CODEC_I8);
    assert_true(s[HEAD].quantized);
    expect_ok(s, TOP("\"g\":{\"targets\":[\"Linear\"],\"weights\":" W8 ",\"format\":\"naive-quantized\"}", ",\"format\":\"pack-quantized\""));
    assert_string_equal(s[Q].format, "naive-quantized");
    expect_ok(s, TOP("\"g\":" GROUP("[\"Linear\"]", W8, "null"), ",\"format\":\"mixed-precision\""));
    assert_int_equal(s[Q].codec, OZ_CODEC_I8P);
}

static void test_resolve_targets(void **state) {
    oz_scheme s[N_MODULES];
    /* exact, then expression, then class, whatever the order */
    expect_ok(s, TOP("\"a\":" GROUP("[\"Linear\"]", W4, "null") ",\"b\":" GROUP("[\"re:.*self_attn.*\"]", W8, "null") ",\"c\":" GROUP(
                         "[\"" L0 "self_attn.q_proj\"]", W8, A8), ",\"ignore\":[\"re:.*head\",\"" L0 "mlp.up_proj\"]"));
    assert_string_equal(s[Q].name, "W8A8");
    assert_string_equal(s[K].name, "W8A16");
    assert_string_equal(s[DOWN].name, "W4A16");
    assert_true(!s[UP].quantized && !s[HEAD].quantized && !s[EMBED].quantized);
    /* ignore wins over an exact name, by class too */
    expect_ok(s, TOP("\"a\":" GROUP("[\"" L0 "self_attn.q_proj\"]", W8, A8), ",\"ignore\":[\"Linear\"]"));
    assert_false(s[Q].quantized);
    /* two groups of equal precedence that mean the same */
    expect_ok(s, TOP("\"a\":" GROUP("[\"re:.*q_proj\"]", W8, A8) ",\"b\":" GROUP("[\"re:.*\"]", W8, A8), ""));
    assert_true(s[Q].quantized && s[EMBED].quantized);
    expect_error(TOP("\"a\":" GROUP("[\"re:.*q_proj\"]", W8, A8) ",\"b\":" GROUP("[\"re:.*self_attn.*\"]", W8, "null"), ""), OZ_E_FORMAT, L0 "self_attn.q_proj");
    /* layers that others fuse */
    expect_ok(s, TOP("\"a\":" GROUP("[\"re:.*qkv_proj$\",\"re:.*gate_up_proj$\"]", W4, "null"), ""));
    assert_true(s[Q].quantized && s[K].quantized && s[V].quantized && s[GATE].quantized && s[UP].quantized && !s[O].quantized && !s[DOWN].quantized);
    /* a list under a preset's name; the version says what W8A16 meant */
    expect_ok(s, TOP("\"w8a8\":[\"Linear\"]", ",\"format\":\"int-quantized\""));
    assert_string_equal(s[Q].name, "W8A8");
    expect_ok(s, TOP("\"W8A16\":[\"Linear\"]", ",\"version\":\"0.15.0.1\""));
    assert_true(s[Q].codec == OZ_CODEC_I8P && s[Q].group_size == 0);
    /* other places, and what writers leave there */
    expect_ok(s, "{\"text_config\":" ONE(W8, A8) "}");
    assert_true(s[Q].quantized);
    expect_ok(s, "{\"compression_config\":{\"quantization_config\":{\"config_groups\":{\"g\":" GROUP("[\"Linear\"]", W8, A8) "}}}}");
    assert_true(s[Q].quantized);
    expect_ok(s, ONE("{\"num_bits\":4,\"strategy\":\"group\",\"group_size\":16,\"actorder\":\"static\",\"observer\":\"mse\",\"observer_kwargs\":{},\"zp_dtype\":null,"
                     "\"scale_dtype\":null,\"block_structure\":null,\"dynamic\":false}", "null"));
    assert_int_equal(s[Q].group_size, 16);
}

static void test_resolve_refuses(void **state) {
#define G0 "quantization_config.config_groups.group_0."
    const struct { const char *config; oz_status code; const char *words; } bad[] = {
        {"{\"quantization_config\":{\"quant_method\":\"hqq\"}}", OZ_E_UNSUPPORTED, "quantization_config.quant_method"},
        {"{\"quantization_config\":[]}", OZ_E_FORMAT, "quantization_config"},
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}", OZ_E_FORMAT, "quantization_config.config_groups"},
        {TOP("\"group_0\":7", ""), OZ_E_FORMAT, "quantization_config.config_groups.group_0"},
        {TOP("\"W99\":[\"Linear\"]", ""), OZ_E_UNSUPPORTED, "quantization_config.config_groups.W99"},
        {TOP("", ",\"format\":\"pack-quantised\""), OZ_E_FORMAT, "quantization_config.format"},
        {TOP("", ",\"quantization_status\":\"done\""), OZ_E_FORMAT, "quantization_config.quantization_status"},
        {TOP("", ",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"), OZ_E_UNSUPPORTED, "quantization_config.sparsity_config"},
        {TOP("", ",\"transform_config\":{\"config_groups\":{\"v\":{\"apply\":[{\"location\":\"input\"}]}}}"), OZ_E_UNSUPPORTED, "quantization_config.transform_config"},
        {TOP("", ",\"transform_config\":{\"config_groups\":{\"v\":{\"apply\":{\"location\":\"input\"}}}}"), OZ_E_FORMAT, "quantization_config.transform_config"},
        {TOP("", ",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}"), OZ_E_UNSUPPORTED, "quantization_config.kv_cache_scheme.dynamic"},
        {TOP("", ",\"kv_cache_scheme\":{\"num_bits\":4,\"type\":\"int\"}"), OZ_E_UNSUPPORTED, "quantization_config.kv_cache_scheme"},
        {TOP("", ",\"ignore\":[3]"), OZ_E_FORMAT, "quantization_config.ignore[0]"},
        {TOP("", ",\"ignore\":[\"re:(\"]"), OZ_E_FORMAT, "quantization_config.ignore[0]"},
        {TOP("\"group_0\":" GROUP("[\"re:.*(q_proj\",\"Linear\"]", W8, A8), ""), OZ_E_FORMAT, G0 "targets[0]"},
        {TOP("\"group_0\":" GROUP("\"Linear\"", W8, A8), ""), OZ_E_FORMAT, G0 "targets"},
        {TOP("\"group_0\":{\"targets\":[\"Linear\"],\"weight\":null}", ""), OZ_E_FORMAT, G0 "weight"},
        {TOP("\"group_0\":{\"targets\":[\"Linear\"],\"output_activations\":" A8 "}", ""), OZ_E_UNSUPPORTED, G0 "output_activations"},
        {ONE("{\"strategy\":\"row\"}", "null"), OZ_E_FORMAT, G0 "weights.strategy"},
        {ONE("{\"strategy\":\"token\"}", "null"), OZ_E_FORMAT, G0 "weights.strategy"},
        {ONE(W8, "{\"strategy\":\"channel\",\"dynamic\":true}"), OZ_E_FORMAT, G0 "input_activations.strategy"},
        {ONE(W8, "{\"strategy\":\"token\",\"dynamic\":false}"), OZ_E_FORMAT, G0 "input_activations.dynamic"},
        {ONE("{\"num_bits\":0}", "null"), OZ_E_FORMAT, G0 "weights.num_bits"},
        {ONE("{\"num_bits\":9}", "null"), OZ_E_FORMAT, G0 "weights.num_bits"},
        {ONE("{\"num_bits\":\"8\"}", "null"), OZ_E_FORMAT, G0 "weights.num_bits"},
        {ONE("{\"num_bits\":null}", "null"), OZ_E_FORMAT, G0 "weights.num_bits"},
        {ONE("{\"num_bits\":5,\"type\":\"float\"}", "null"), OZ_E_FORMAT, G0 "weights.num_bits"},
        {ONE("{\"type\":\"uint\"}", "null"), OZ_E_FORMAT, G0 "weights.type"},
        {ONE("{\"strategy\":\"group\"}", "null"), OZ_E_FORMAT, G0 "weights.group_size"},
        {ONE("{\"strategy\":\"group\",\"group_size\":-1}", "null"), OZ_E_FORMAT, G0 "weights.group_size"},
        {ONE("{\"strategy\":\"group\",\"group_size\":0}", "null"), OZ_E_FORMAT, G0 "weights.group_size"},
        {ONE("{\"strategy\":\"channel\",\"group_size\":32}", "null"), OZ_E_FORMAT, G0 "weights.group_size"},
        {ONE("{\"strategy\":\"group\",\"group_size\":24,\"num_bits\":4}", "null"), OZ_E_FORMAT, G0 "weights.group_size"},
        {ONE("{\"rotate\":true}", "null"), OZ_E_FORMAT, G0 "weights.rotate"},
        {ONE("{\"actorder\":\"sideways\"}", "null"), OZ_E_FORMAT, G0 "weights.actorder"},
        {ONE("{\"strategy\":\"block\"}", "null"), OZ_E_FORMAT, G0 "weights.block_structure"},
        {ONE("{\"dynamic\":true}", "null"), OZ_E_FORMAT, G0 "weights.dynamic"},
        /* legal, not run: the module, the scheme and the reason */
        {ONE("{\"type\":\"float\",\"symmetric\":false,\"strategy\":\"channel\"}", "null"), OZ_E_UNSUPPORTED, L0 "self_attn.q_proj: scheme float8 asymmetric channel, naive-quantized"},
        {ONE("{\"strategy\":\"block\",\"block_structure\":[128,128]}", "null"), OZ_E_UNSUPPORTED, "block 128x128"},
        {ONE("{\"type\":\"float\",\"num_bits\":4,\"strategy\":\"tensor_group\",\"group_size\":16}", A8), OZ_E_UNSUPPORTED, "quantized activations with NVFP4"},
        {ONE(W8, "{\"dynamic\":true}"), OZ_E_UNSUPPORTED, "one dynamic scale for all tokens"},
        {ONE(W8, "{\"type\":\"float\",\"symmetric\":false}"), OZ_E_UNSUPPORTED, "float activations other than"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_error(bad[i].config, bad[i].code, bad[i].words);
    /* what no module uses may be anything legal */
    oz_scheme s[N_MODULES];
    expect_ok(s, TOP("\"g\":" GROUP("[\"re:vision\"]", "{\"num_bits\":4,\"symmetric\":false,\"group_size\":32}", "null"), ""));
    assert_false(s[Q].quantized);
}

static void test_parts(void **state) {
    oz_part p[OZ_MAX_PARTS];
    assert_int_equal(oz_scheme_parts(p, &OZ_SCHEME_DENSE, 8, 40, OZ_DTYPE_F16), 1);
    assert_true(!strcmp(p[0].suffix, ".weight") && p[0].dtype == OZ_DTYPE_F16 && p[0].dims[0] == 8 && p[0].dims[1] == 40);
    oz_scheme s = oz_preset_find("W4A16")->scheme;
    s.group_size = 20;
    assert_int_equal(oz_scheme_parts(p, &s, 8, 60, OZ_DTYPE_BF16), 3);
    assert_true(!strcmp(p[0].suffix, ".weight_packed") && p[0].dtype == OZ_DTYPE_I32 && p[0].dims[1] == 8); /* 7.5 words */
    assert_true(!strcmp(p[1].suffix, ".weight_scale") && p[1].dtype == OZ_DTYPE_BF16 && p[1].n_dims == 2 && p[1].dims[0] == 8 && p[1].dims[1] == 3);
    assert_true(!strcmp(p[2].suffix, ".weight_shape") && p[2].dtype == OZ_DTYPE_I64 && p[2].n_dims == 1 && p[2].dims[0] == 2);
    assert_int_equal(oz_scheme_parts(p, &oz_preset_find("W8A8")->scheme, 8, 60, OZ_DTYPE_BF16), 2);
    assert_true(!strcmp(p[0].suffix, ".weight") && p[0].dtype == OZ_DTYPE_I8 && p[0].dims[1] == 60 && p[1].dims[1] == 1);
    oz_err err = {0};
    const oz_module m = {"model.x", "Linear", 8, 576, false};
    s.group_size = 128;
    assert_int_equal(oz_scheme_check(&s, &m, &err), OZ_E_ARG);
    test_contains(err.msg, "model.x: group_size 128 does not divide its 576 columns; these do: 16, 32, 64");
    s.group_size = 64;
    assert_int_equal(oz_scheme_check(&s, &m, NULL), OZ_OK);
}

/* What is written is read back with the same meaning. */
static void test_config_round_trip(void **state) {
    for (size_t i = 0; i < oz_preset_count(); i++) {
        oz_scheme want = oz_preset_at(i)->scheme, got[N_MODULES];
        if (want.group_size) want.group_size = 16;
        if (want.input.group_size) want.input.group_size = 16;
        oz_scheme schemes[N_MODULES];
        for (int m = 0; m < N_MODULES; m++) schemes[m] = m == EMBED || m == HEAD || m == UP ? OZ_SCHEME_DENSE : want;
        json_t *config = json_pack("{so}", "quantization_config", oz_scheme_config(MODULES, schemes, N_MODULES, NULL));
        oz_err err = {0};
        if (oz_scheme_resolve(got, config, MODULES, N_MODULES, &err) != OZ_OK) fail_msg("%s", err.msg);
        assert_true(!got[HEAD].quantized && !got[UP].quantized && !got[EMBED].quantized);
        assert_true(got[Q].symmetric == want.symmetric && got[Q].per_tensor == want.per_tensor && got[Q].block_rows == want.block_rows && got[Q].static_input == want.static_input);
        assert_true(memcmp(&got[Q].input, &want.input, sizeof want.input) == 0);
        assert_true(got[Q].codec == want.codec && got[Q].act == want.act && got[Q].group_size == want.group_size && got[Q].bits == want.bits);
        if (!want.experts) assert_string_equal(got[Q].name, want.name); /* else by what it means to run it */
        assert_string_equal(got[Q].format, want.format);
        const json_t *q = json_object_get(config, "quantization_config");
        assert_string_equal(json_string_value(json_object_get(q, "quantization_status")), "compressed");
        const json_t *w = json_object_get(json_object_get(json_object_get(q, "config_groups"), "group_0"), "weights");
        assert_null(json_object_get(w, "zp_dtype")); /* libraries before 0.13 refuse it */
        assert_non_null(json_object_get(w, "observer_kwargs"));
        json_decref(config);
    }
}

/* ---- binding ---- */

typedef struct entry { const char *name; oz_dtype dtype; int n_dims; int64_t dims[2]; const void *data; size_t n_bytes; } entry;

static oz_ckpt *make(const entry *e, size_t n) {
    oz_err err = {0};
    oz_layout *l = oz_layout_new(0);
    oz_writer *w;
    oz_ckpt *c;
    test_write_text("config.json", "{}");
    oz_status st = OZ_OK;
    for (size_t i = 0; i < n && st == OZ_OK; i++) st = oz_layout_add(l, e[i].name, e[i].dtype, e[i].n_dims, e[i].dims, &err);
    if (st == OZ_OK) st = oz_layout_fix(l, &err);
    if (st == OZ_OK) st = oz_writer_open(&w, l, test_dir, &err);
    for (size_t i = 0; i < n && st == OZ_OK; i++) st = oz_writer_put(w, e[i].name, 0, e[i].data, e[i].n_bytes, &err);
    if (st == OZ_OK) st = oz_writer_finish(w, &err);
    oz_writer_close(&w);
    oz_layout_free(&l);
    if (st == OZ_OK) st = oz_ckpt_open(&c, test_dir, &err);
    if (st != OZ_OK) fail_msg("%s", err.msg);
    return c;
}

static void bind_fails(const entry *e, size_t n, const oz_scheme *s, const char *words) {
    const oz_module m = {"m", "Linear", 2, 8, false};
    oz_ckpt *c = make(e, n);
    oz_weight w;
    oz_err err = {0};
    oz_status st = oz_scheme_bind(&w, c, &m, s, &err);
    oz_ckpt_close(&c);
    if (st != OZ_E_FORMAT) fail_msg("status %d, expected an error with %s", st, words);
    test_contains(err.msg, words);
}

static const uint32_t PACKED[2] = {0xFED98710, 0x88888888};
static const uint16_t SCALES[4] = {0x3f80, 0x4000, 0x3f00, 0x4080}; /* 1, 2, 0.5, 4 */
static const int64_t SHAPE[2] = {2, 8}, SHAPE_WRONG[2] = {2, 16};
static const int8_t CODES[16] = {-128, 127, 1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6, -7, 0};
#define E_PACKED {"m.weight_packed", OZ_DTYPE_I32, 2, {2, 1}, PACKED, 8}
#define E_SCALE(a, b) {"m.weight_scale", OZ_DTYPE_BF16, 2, {a, b}, SCALES, (a) * (b) * 2}
#define E_SHAPE {"m.weight_shape", OZ_DTYPE_I64, 1, {2}, SHAPE, 16}
#define E_I8 {"m.weight", OZ_DTYPE_I8, 2, {2, 8}, CODES, 16}

static void test_bind(void **state) {
    const oz_module m = {"m", "Linear", 2, 8, false};
    oz_weight w;
    oz_err err = {0};
    float row[8];
    oz_scheme w4 = oz_preset_find("W4A16")->scheme;
    const oz_scheme *w8a8 = &oz_preset_find("W8A8")->scheme;
    w4.group_size = 4;
    oz_ckpt *c = make((entry[]){E_PACKED, E_SCALE(2, 2), E_SHAPE}, 3);
    if (oz_scheme_bind(&w, c, &m, &w4, &err) != OZ_OK) fail_msg("%s", err.msg);
    oz_weight_row(row, &w, 0, 0, 8);
    assert_true(row[0] == -8 && row[3] == 0 && row[4] == 2 && row[7] == 14);
    oz_weight_row(row, &w, 1, 0, 8);
    assert_true(row[0] == 0 && row[7] == 0);
    oz_scheme_drop(c, &m);
    oz_weight_row(row, &w, 0, 0, 8);
    assert_true(row[7] == 14); /* dropped pages come back from the file */
    oz_ckpt_close(&c);

    const uint32_t idle[2] = {0x88, 0x88}, busy[2] = {0x88, 0x98};
    c = make((entry[]){E_PACKED, E_SCALE(2, 2), E_SHAPE, {"m.weight_zero_point", OZ_DTYPE_I32, 2, {1, 2}, idle, 8}}, 4);
    assert_int_equal(oz_scheme_bind(&w, c, &m, &w4, &err), OZ_OK);
    assert_null(w.zeros);
    oz_ckpt_close(&c);
    bind_fails((entry[]){E_PACKED, E_SCALE(2, 2), E_SHAPE, {"m.weight_zero_point", OZ_DTYPE_I32, 2, {1, 2}, busy, 8}}, 4, &w4, "m.weight_zero_point");

    const struct { int n_dims; int64_t dims[2]; } channel[] = {{2, {2, 1}}, {1, {2}}};
    for (int i = 0; i < 2; i++) {
        c = make((entry[]){E_I8, {"m.weight_scale", OZ_DTYPE_F32, channel[i].n_dims, {channel[i].dims[0], channel[i].dims[1]}, (float[]){0.5f, 2}, 8}}, 2);
        if (oz_scheme_bind(&w, c, &m, w8a8, &err) != OZ_OK) fail_msg("%s", err.msg);
        oz_weight_row(row, &w, 1, 0, 8);
        assert_true(row[0] == -2 && row[6] == -14);
        oz_ckpt_close(&c);
    }
    oz_scheme tensor = *w8a8;
    tensor.per_tensor = true;
    for (int n_dims = 0; n_dims < 3; n_dims++) {
        c = make((entry[]){E_I8, {"m.weight_scale", OZ_DTYPE_BF16, n_dims, {1, 1}, SCALES + 1, 2}}, 2);
        if (oz_scheme_bind(&w, c, &m, &tensor, &err) != OZ_OK) fail_msg("%s", err.msg);
        oz_weight_row(row, &w, 0, 0, 8);
        assert_true(row[0] == -256 && row[7] == 12);
        oz_ckpt_close(&c);
    }
    c = make((entry[]){{"m.weight", OZ_DTYPE_BF16, 2, {2, 8}, (uint16_t[16]){0x3f80}, 32}}, 1);
    assert_int_equal(oz_scheme_bind(&w, c, &m, &OZ_SCHEME_DENSE, &err), OZ_OK);
    assert_true(w.codec == OZ_CODEC_BF16 && w.row_bytes == 16 && !w.scales);
    oz_ckpt_close(&c);
}

static void test_bind_refuses(void **state) {
    oz_scheme w4 = oz_preset_find("W4A16")->scheme;
    const oz_scheme *w8a8 = &oz_preset_find("W8A8")->scheme, *dense = &OZ_SCHEME_DENSE;
    w4.group_size = 4;
    static uint16_t poor[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80};
    const entry dense_w = {"m.weight", OZ_DTYPE_BF16, 2, {2, 8}, (uint16_t[16]){0}, 32};
    bind_fails((entry[]){E_PACKED, E_SHAPE}, 2, &w4, "m.weight_scale");
    bind_fails((entry[]){E_PACKED, E_SCALE(1, 4), E_SHAPE}, 3, &w4, "m.weight_scale: expected [2, 2], found [1, 4] (model.safetensors)");
    bind_fails((entry[]){E_PACKED, E_SCALE(2, 2)}, 2, &w4, "m.weight_shape");
    bind_fails((entry[]){E_PACKED, E_SCALE(2, 2), {"m.weight_shape", OZ_DTYPE_I64, 1, {2}, SHAPE_WRONG, 16}}, 3, &w4, "m.weight_shape");
    bind_fails((entry[]){{"m.weight_packed", OZ_DTYPE_I32, 2, {1, 2}, PACKED, 8}, E_SCALE(2, 2), E_SHAPE}, 3, &w4, "m.weight_packed: expected [2, 1], found [1, 2]");
    bind_fails((entry[]){E_PACKED, E_SCALE(2, 2), E_SHAPE, dense_w}, 4, &w4, "m.weight:");
    bind_fails((entry[]){E_PACKED, E_SCALE(2, 2), E_SHAPE, {"m.weight_g_idx", OZ_DTYPE_I32, 1, {2}, PACKED, 8}}, 4, &w4, "m.weight_g_idx");
    const uint16_t values[] = {0, 0xbf80, 0x7fc0, 0x7f80}; /* 0, -1, NaN, infinity */
    for (int i = 0; i < 4; i++) {
        poor[2] = values[i];
        bind_fails((entry[]){E_PACKED, {"m.weight_scale", OZ_DTYPE_BF16, 2, {2, 2}, poor, 8}, E_SHAPE}, 3, &w4, "m.weight_scale: scales must be positive and finite");
    }
    bind_fails((entry[]){{"m.weight", OZ_DTYPE_F8_E4M3, 2, {2, 8}, CODES, 16}, E_SCALE(2, 1)}, 2, w8a8, "m.weight: expected I8 (scheme W8A8), found F8_E4M3");
    bind_fails((entry[]){E_I8, {"m.weight_scale", OZ_DTYPE_I8, 2, {2, 1}, CODES, 2}}, 2, w8a8, "m.weight_scale: expected BF16, F16 or F32");
    bind_fails((entry[]){dense_w, E_SCALE(2, 1)}, 2, dense, "m.weight_scale");
    bind_fails((entry[]){E_PACKED, E_SHAPE}, 2, dense, "m.weight_packed");
    bind_fails((entry[]){E_I8}, 1, dense, "m.weight: expected a dense weight");
    bind_fails((entry[]){{"n.weight", OZ_DTYPE_I8, 2, {2, 8}, CODES, 16}}, 1, dense, "m.weight: not in the checkpoint");
    bind_fails((entry[]){{"m.weight", OZ_DTYPE_BF16, 2, {8, 2}, SHAPE, 32}}, 0, dense, "m.weight");
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meanings), cmocka_unit_test(test_findings), cmocka_unit_test(test_presets),          cmocka_unit_test(test_patterns),        cmocka_unit_test(test_resolve_kinds),
        cmocka_unit_test(test_resolve_targets),  cmocka_unit_test(test_resolve_refuses), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_config_round_trip), UNIT(test_bind),                       UNIT(test_bind_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
