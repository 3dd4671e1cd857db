/* Mixtures of experts: a layer against f64, quantized experts against the same weights as floats, a dense model cut into experts, and what is refused. */
#include "refused.h"
#include <math.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "kernel/dev.h"
#include "model/model.h"
#include "quantize/quantize.h"

enum { HIDDEN = 64, FFN = 96, VOCAB = 48, MAX_EXPERTS = 8, MAX_TOK = 64 };

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

/* A one-layer model of random weights under NAME of the test's folder. */
static oz_ckpt *synth(const char *name, int n_experts, int top_k) {
    oz_err err = {0};
    oz_synth *s;
    oz_ckpt *c;
    json_t *config = json_pack("{s:s s:i s:i s:i s:i s:i s:i s:i s:i s:f s:s}", "model_type", "mixtral", "hidden_size", HIDDEN, "intermediate_size", FFN, "num_hidden_layers", 1,
                               "num_attention_heads", 4, "num_key_value_heads", 2, "vocab_size", VOCAB, "num_local_experts", n_experts, "num_experts_per_tok", top_k,
                               "initializer_range", 0.3, "torch_dtype", "bfloat16");
    oz_pool *pool = oz_pool_new(2);
    must(oz_synth_new(&s, config, &OZ_SCHEME_DENSE, 11, 0, &err), &err);
    must(oz_synth_run(s, test_path(name), false, pool, &err), &err);
    oz_synth_free(&s);
    oz_pool_free(&pool);
    json_decref(config);
    must(oz_ckpt_open(&c, test_path(name), &err), &err);
    return c;
}

/* Every bf16 value of a tensor becomes `bits`, in the file. */
static void overwrite(const oz_ckpt *c, const char *folder, const char *tensor, uint16_t bits) {
    char path[128];
    size_t n;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    const oz_tensor *t = oz_ckpt_find(c, tensor);
    assert_non_null(t);
    char *file = test_read(test_path(path), &n), *at = memmem(file, n, t->data, t->n_bytes);
    assert_non_null(at);
    for (size_t i = 0; i < t->n_bytes; i += 2) memcpy(at + i, &bits, 2);
    test_write(path, file, n);
    free(file);
}

/* ---- a layer against f64 ---- */

typedef struct seen { float attn[MAX_TOK * HIDDEN], x[MAX_TOK * HIDDEN], after[MAX_TOK * HIDDEN]; } seen;

static void look(void *arg, const oz_tap *t) {
    seen *s = arg;
    float *to = t->kind == OZ_TAP_LAYER ? s->after : NULL;
    if (t->kind == OZ_TAP_LINEAR && strstr(t->modules[0], "o_proj")) to = s->attn;
    if (t->kind == OZ_TAP_LINEAR && strstr(t->modules[0], "block_sparse_moe.gate")) to = s->x;
    if (to) memcpy(to, t->rows, (size_t)(t->n_tok * t->width) * sizeof *to);
}

/* out [rows] = W x in f64. */
static void product(double *out, const oz_ckpt *c, const char *module, int64_t rows, int64_t cols, const double *x) {
    oz_err err = {0};
    oz_weight w;
    float row[FFN];
    must(oz_scheme_bind(&w, c, &(oz_module){module, "Linear", rows, cols, false}, &OZ_SCHEME_DENSE, &err), &err);
    for (int64_t r = 0; r < rows; r++) {
        oz_weight_row(row, &w, r, 0, cols);
        out[r] = 0;
        for (int64_t i = 0; i < cols; i++) out[r] += row[i] * x[i];
    }
}

static void add_expert(double *y, const oz_ckpt *c, int e, const double *x, double weight) {
    double gate[FFN], up[FFN], down[HIDDEN];
    char name[3][96];
    for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "model.layers.0.block_sparse_moe.experts.%d.w%d", e, i + 1);
    product(gate, c, name[0], FFN, HIDDEN, x);
    product(up, c, name[2], FFN, HIDDEN, x);
    for (int i = 0; i < FFN; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
    product(down, c, name[1], HIDDEN, FFN, gate);
    for (int i = 0; i < HIDDEN; i++) y[i] += weight * down[i];
}

/* Softmax over all, the top_k largest (ties: the lower number), divided by their sum. */
static void mixture(double *y, const oz_ckpt *c, int n_experts, int top_k, const double *x) {
    double p[MAX_EXPERTS], sum = 0, kept = 0;
    bool chosen[MAX_EXPERTS] = {false};
    product(p, c, "model.layers.0.block_sparse_moe.gate", n_experts, HIDDEN, x);
    for (int e = 0; e < n_experts; e++) sum += p[e] = exp(p[e]);
    for (int s = 0; s < top_k; s++) {
        int best = -1;
        for (int e = 0; e < n_experts; e++)
            if (!chosen[e] && (best < 0 || p[e] > p[best])) best = e;
        chosen[best] = true;
        kept += p[best] / sum;
    }
    for (int e = 0; e < n_experts; e++)
        if (chosen[e]) add_expert(y, c, e, x, p[e] / sum / kept);
}

static void check_layer(const oz_ckpt *c, const char *level, int n_tok, int n_experts, int top_k) {
    oz_err err = {0};
    oz_dev *dev;
    oz_model *m;
    oz_state *state;
    seen s;
    int32_t ids[MAX_TOK];
    for (int i = 0; i < n_tok; i++) ids[i] = (i * 29 + 5) % VOCAB;
    must(oz_dev_open(&dev, &(oz_dev_cfg){.name = "cpu", .threads = 3, .cpu_level = level}, &err), &err);
    must(oz_model_open(&m, dev, c, &(oz_model_cfg){.dtype = "f32", .max_tok = MAX_TOK, .taps = OZ_TAP_LAYER | OZ_TAP_LINEAR}, &err), &err);
    must(oz_state_new(&state, m, 4, 4, &err), &err);
    const oz_seg seg = {0, n_tok, 0, (int32_t[]){2, 0, 3, 1}};
    must(oz_model_run(m, state, &(oz_call){.ids = ids, .n_tok = n_tok, .segs = &seg, .n_segs = 1, .tap = look, .tap_arg = &s}, NULL, &err), &err);
    const oz_tensor *embed = oz_ckpt_find(c, "model.embed_tokens.weight");
    for (int t = 0; t < n_tok; t++) {
        double attn[HIDDEN], x[HIDDEN], want[HIDDEN], y[HIDDEN] = {0}, most = 0;
        float row[HIDDEN];
        for (int i = 0; i < HIDDEN; i++) attn[i] = s.attn[t * HIDDEN + i], x[i] = s.x[t * HIDDEN + i];
        product(want, c, "model.layers.0.self_attn.o_proj", HIDDEN, HIDDEN, attn);
        mixture(y, c, n_experts, top_k, x);
        oz_to_f32(row, embed->dtype, (const char *)embed->data + ids[t] * HIDDEN * 2, HIDDEN);
        for (int i = 0; i < HIDDEN; i++) want[i] += row[i] + y[i], most = fmax(most, fabs(want[i]));
        for (int i = 0; i < HIDDEN; i++)
            if (!(fabs(s.after[t * HIDDEN + i] - want[i]) <= 2e-6 * most))
                fail_msg("%s, %d of %d experts, token %d of %d [%d]: expected %.9g, found %.9g", level, top_k, n_experts, t, n_tok, i, want[i], s.after[t * HIDDEN + i]);
    }
    oz_state_free(&state);
    oz_model_close(&m);
    oz_dev_close(&dev);
}

/* With a router of zeros all tokens go to the first top_k experts; the others hold NaN, which would show if they were touched. */
static void test_layer(void **state) {
    static const struct { int n_tok, n_experts, top_k; bool zero_router; } cases[] = {
        {1, 8, 2, false}, {40, 8, 2, false}, {17, 4, 4, false}, {12, 1, 1, false}, {31, 8, 1, false}, {9, 8, 1, true}, {23, 8, 3, true}, {1, 8, 1, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_err err = {0};
        char folder[16], name[96];
        snprintf(folder, sizeof folder, "m%zu", i);
        oz_ckpt *c = synth(folder, cases[i].n_experts, cases[i].top_k);
        if (cases[i].zero_router) overwrite(c, folder, "model.layers.0.block_sparse_moe.gate.weight", 0);
        for (int e = cases[i].top_k; cases[i].zero_router && e < cases[i].n_experts; e++) {
            for (int w = 1; w <= 3; w++) {
                snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.w%d.weight", e, w);
                overwrite(c, folder, name, 0x7fc0);
            }
        }
        oz_ckpt_close(&c);
        must(oz_ckpt_open(&c, test_path(folder), &err), &err);
        check_layer(c, "ref", cases[i].n_tok, cases[i].n_experts, cases[i].top_k);
        check_layer(c, "auto", cases[i].n_tok, cases[i].n_experts, cases[i].top_k);
        oz_ckpt_close(&c);
    }
}

/* ---- quantized experts ---- */

static void quantize(const oz_ckpt *c, const char *name, const char *preset, int64_t group_size, const char *const *targets, size_t n_targets) {
    oz_err err = {0};
    oz_quantize *q;
    oz_pool *pool = oz_pool_new(2);
    oz_quantize_cfg cfg = {.scheme = oz_preset_find(preset)->scheme, .targets = targets, .n_targets = n_targets};
    if (group_size) cfg.scheme.group_size = group_size;
    must(oz_quantize_new(&q, c, &cfg, &err), &err);
    must(oz_quantize_run(q, test_path(name), false, pool, &err), &err);
    oz_quantize_free(&q);
    oz_pool_free(&pool);
}

static void dequantize(const char *from, const char *to) {
    oz_err err = {0};
    oz_convert *v;
    oz_ckpt *c;
    oz_pool *pool = oz_pool_new(2);
    must(oz_ckpt_open(&c, test_path(from), &err), &err);
    must(oz_convert_new(&v, c, &(oz_convert_cfg){.to = OZ_DTYPE_F32}, &err), &err);
    must(oz_convert_run(v, test_path(to), false, pool, &err), &err);
    oz_convert_free(&v);
    oz_pool_free(&pool);
    oz_ckpt_close(&c);
}

/* All logits of Mixtral's golden prompt, to be freed. scheme: of the module, as loaded. */
static float *logits_at(const char *path, const char *module, char scheme[16], int64_t *n) {
    oz_err err = {0};
    oz_ckpt *c, *golden;
    oz_dev *dev;
    oz_model *m;
    oz_state *state;
    int32_t rows[MAX_TOK];
    for (int i = 0; i < MAX_TOK; i++) rows[i] = i;
    must(oz_ckpt_open(&c, path, &err), &err);
    must(oz_ckpt_open(&golden, "tests/golden/models/mixtral/golden", &err), &err);
    must(oz_dev_open(&dev, &(oz_dev_cfg){.name = "cpu", .threads = 2, .cpu_level = "auto"}, &err), &err);
    must(oz_model_open(&m, dev, c, &(oz_model_cfg){.dtype = "f32", .max_tok = MAX_TOK}, &err), &err);
    must(oz_state_new(&state, m, 4, 4, &err), &err);
    *n = MAX_TOK * oz_model_get(m)->vocab_size;
    float *out = calloc((size_t)*n, sizeof *out);
    const oz_seg seg = {0, MAX_TOK, 0, (int32_t[]){0, 1, 2, 3}};
    const oz_call call = {.ids = oz_ckpt_find(golden, "input_ids")->data, .n_tok = MAX_TOK, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = MAX_TOK};
    must(oz_model_run(m, state, &call, &(oz_sink){OZ_SINK_COPY, out, NULL}, &err), &err);
    for (size_t i = 0; i < oz_model_module_count(m); i++)
        if (strcmp(oz_model_module_at(m, i).name, module) == 0) snprintf(scheme, 16, "%s", oz_model_module_at(m, i).scheme->name);
    oz_state_free(&state);
    oz_model_close(&m);
    oz_dev_close(&dev);
    oz_ckpt_close(&golden);
    oz_ckpt_close(&c);
    return out;
}

static float *logits_of(const char *name, const char *module, char scheme[16], int64_t *n) { return logits_at(test_path(name), module, scheme, n); }

static double relative(const float *a, const float *b, int64_t n) {
    double diff = 0, all = 0;
    for (int64_t i = 0; i < n; i++) diff += pow((double)a[i] - b[i], 2), all += pow(b[i], 2);
    return sqrt(diff / all);
}

static oz_ckpt *open_golden(void) {
    oz_err err = {0};
    oz_ckpt *c;
    must(oz_ckpt_open(&c, "tests/golden/models/mixtral", &err), &err);
    return c;
}

static void test_quantized(void **state) {
    static const struct { const char *preset; int64_t group_size; } cases[] = {{"W8A16", 0}, {"W4A16", 32}};
    oz_ckpt *src = open_golden();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[16], floats[16], scheme[16] = "", none[16];
        int64_t n;
        snprintf(folder, sizeof folder, "q%zu", i), snprintf(floats, sizeof floats, "f%zu", i);
        quantize(src, folder, cases[i].preset, cases[i].group_size, NULL, 0);
        dequantize(folder, floats);
        float *a = logits_of(folder, "model.layers.1.block_sparse_moe.experts.7.w2", scheme, &n), *b = logits_of(floats, "", none, &n);
        assert_string_equal(scheme, cases[i].preset);
        if (!(relative(a, b, n) < 1e-5)) fail_msg("%s: off by %g from the same weights as floats", cases[i].preset, relative(a, b, n));
        free(a), free(b);
    }
    oz_ckpt_close(&src);
}

static json_t *ignored(const char *name) {
    oz_err err = {0};
    oz_ckpt *c;
    must(oz_ckpt_open(&c, test_path(name), &err), &err);
    json_t *list = json_deep_copy(json_object_get(json_object_get(oz_ckpt_config(c), "quantization_config"), "ignore"));
    oz_ckpt_close(&c);
    return list;
}

/* "Linear" leaves routers dense and lists them; they are no Linear where they are stored dense, whatever the config lists; a pattern that names
 * them quantizes them, and then they are. */
static void test_router(void **state) {
    oz_ckpt *src = open_golden();
    char scheme[16] = "";
    const char *patterns[] = {"Linear", "re:.*block_sparse_moe\\.gate$"};
    int64_t n;
    quantize(src, "dense", "W8A16", 0, NULL, 0);
    json_t *list = ignored("dense");
    assert_int_equal(json_array_size(list), 4);
    assert_string_equal(json_string_value(json_array_get(list, 1)), "model.layers.0.block_sparse_moe.gate");
    json_decref(list);
    float *a = logits_of("dense", "model.layers.0.block_sparse_moe.gate", scheme, &n);
    assert_string_equal(scheme, "dense");

    size_t n_bytes;
    char *text = test_read(test_path("dense/config.json"), &n_bytes);
    oz_err err = {0};
    json_t *config;
    must(oz_json_parse(&config, text, n_bytes, "test", &err), &err);
    json_object_set_new(json_object_get(config, "quantization_config"), "ignore", json_pack("[s]", "lm_head"));
    free(text);
    text = json_dumps(config, 0);
    test_write_text("dense/config.json", text);
    free(text);
    json_decref(config);
    float *b = logits_of("dense", "model.layers.0.block_sparse_moe.gate", scheme, &n);
    assert_string_equal(scheme, "dense");
    assert_memory_equal(a, b, (size_t)n * sizeof *a);

    quantize(src, "named", "W8A16", 0, patterns, 2);
    float *c = logits_of("named", "model.layers.0.block_sparse_moe.gate", scheme, &n);
    assert_string_equal(scheme, "W8A16");
    list = ignored("named");
    assert_int_equal(json_array_size(list), 1);
    json_decref(list);
    free(a), free(b), free(c);
    oz_ckpt_close(&src);
}

/* ---- a dense model as a mixture ---- */

static void split(const char *model, int64_t n_experts, const char *name) {
    oz_err err = {0};
    oz_ckpt *c;
    oz_ffn_split *s;
    oz_pool *pool = oz_pool_new(2);
    must(oz_ckpt_open(&c, model, &err), &err);
    must(oz_ffn_split_new(&s, c, n_experts, 0, &err), &err);
    must(oz_ffn_split_run(s, test_path(name), false, pool, &err), &err);
    oz_ffn_split_free(&s);
    oz_pool_free(&pool);
    oz_ckpt_close(&c);
}

/* The same function, up to the order of the feed-forward's sums. */
static void test_split(void **state) {
    char none[16];
    int64_t n, m;
    float *dense = logits_at("tests/golden/models/llama", "", none, &n);
    for (int64_t e = 1; e <= 8; e *= 2) {
        char folder[16];
        snprintf(folder, sizeof folder, "s%d", (int)e);
        split("tests/golden/models/llama", e, folder);
        float *mixed = logits_of(folder, "", none, &m);
        assert_int_equal(m, n);
        if (!(relative(mixed, dense, n) < 1e-5)) fail_msg("%d experts: off by %g", (int)e, relative(mixed, dense, n));
        free(mixed);
    }
    free(dense);
}

static void test_split_refused(void **state) {
    static const struct { const char *model; int64_t n_experts; const char *words; } cases[] = {
        {"llama", 3, "must be a power of two"}, {"llama", 0, "must be a power of two"}, {"llama", 1024, "must divide intermediate_size"},
        {"llama-tied-bias", 4, "model.layers.0.self_attn.q_proj.bias: has no place in a mixture of experts"},
        {"qwen3", 4, "config.json.model_type: \"qwen3\"; what can be split is a dense Llama without biases"},
        {"mixtral", 4, "config.json.model_type: \"mixtral\"; what can be split"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_err err = {0};
        char path[64];
        oz_ckpt *c;
        oz_ffn_split *s;
        snprintf(path, sizeof path, "tests/golden/models/%s", cases[i].model);
        must(oz_ckpt_open(&c, path, &err), &err);
        assert_true(oz_ffn_split_new(&s, c, cases[i].n_experts, 0, &err) != OZ_OK);
        assert_null(s);
        test_contains(err.msg, cases[i].words);
        oz_ckpt_close(&c);
    }
}

/* ---- what is refused ---- */

static void refused(const char *path, const oz_ops *ops, oz_status status, const char *words) {
    test_model_refused(path, &(oz_model_cfg){.dtype = "f32"}, ops, status, words);
}

static void test_refused(void **state) {
    oz_err err = {0};
    oz_dev *dev;
    oz_ckpt *src = open_golden();
    const char *first[] = {"re:.*experts\\.0\\."};
    quantize(src, "mixed", "W8A8", 0, first, 1);
    refused(test_path("mixed"), NULL, OZ_E_UNSUPPORTED, "model.layers.0.block_sparse_moe.experts.1.w1: scheme dense takes activations in another form than that of expert 0 (W8A8)");
    must(oz_dev_open(&dev, &(oz_dev_cfg){.name = "cpu", .threads = 1, .cpu_level = "auto"}, &err), &err);
    oz_ops ops = *oz_dev_ops(dev);
    ops.grouped_linear = NULL;
    refused("tests/golden/models/mixtral", &ops, OZ_E_UNSUPPORTED, "has no operation \"grouped\"");
    oz_dev_close(&dev);
    oz_ckpt_close(&src);

    static const struct { const char *key; int value; const char *words; } bad[] = {
        {"num_experts_per_tok", 9, "config.json.num_experts_per_tok: must be"}, {"num_experts_per_tok", 0, "config.json.num_experts_per_tok: must be"},
        {"num_local_experts", 0, "config.json.num_local_experts: must be"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_arch_list list;
        json_t *config;
        err = (oz_err){0};
        must(oz_json_load(&config, "tests/golden/models/mixtral/config.json", 1 << 20, &err), &err);
        json_object_set_new(config, bad[i].key, json_integer(bad[i].value));
        assert_true(oz_arch_list_new(&list, config, NULL, &err) != OZ_OK);
        test_contains(err.msg, bad[i].words);
        json_decref(config);
    }
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {UNIT(test_layer), UNIT(test_quantized), UNIT(test_router), UNIT(test_split), UNIT(test_split_refused), UNIT(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
