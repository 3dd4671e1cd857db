/* Experts that are quantized while a model is loaded: the same codes, scales and logits as a checkpoint that was quantized before; what memory they take;
 * experts that share a tensor; and what is refused. */
#include "refused.h"
#include <math.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "kernel/cpu.h"
#include "model/model.h"
#include "quantize/quantize.h"

enum { N_TOK = 40 };
static const char *const PRESETS[] = {"experts_int8", "experts_fp8", "experts_w8a8"};
static const char *const MODELS[] = {"mixtral", "qwen3_moe", "qwen3_moe-fused", "deepseek", "deepseek_v2", "deepseek_v2-grouped", "jamba"};

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

static const char *golden(const char *model) {
    static char path[96];
    snprintf(path, sizeof path, "tests/golden/models/%s", model);
    return path;
}

typedef struct run { oz_ckpt *ckpt; oz_dev *dev; oz_model *model; float *logits; int64_t n; } run;

/* preset NULL: as it is stored. */
static void run_open(run *r, const char *path, const char *preset, const char *dtype) {
    oz_err err = {0};
    oz_state *state;
    int32_t ids[N_TOK], rows[N_TOK];
    must(oz_ckpt_open(&r->ckpt, path, &err), &err);
    must(oz_dev_open(&r->dev, &(oz_dev_cfg){.name = "cpu", .threads = 3, .cpu_level = "auto"}, &err), &err);
    must(oz_model_open(&r->model, r->dev, r->ckpt, &(oz_model_cfg){.dtype = dtype, .max_tok = N_TOK, .quantize = preset ? &oz_preset_find(preset)->scheme : NULL}, &err), &err);
    must(oz_state_new(&state, r->model, 3, 1, &err), &err);
    r->n = N_TOK * oz_model_get(r->model)->vocab_size;
    r->logits = calloc((size_t)r->n, sizeof *r->logits);
    for (int i = 0; i < N_TOK; i++) ids[i] = (int32_t)((i * 29 + 5) % oz_model_get(r->model)->vocab_size), rows[i] = i;
    const oz_seg seg = {0, N_TOK, 0, (int32_t[]){2, 0, 1}};
    must(oz_model_run(r->model, state, &(oz_call){.ids = ids, .n_tok = N_TOK, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = N_TOK}, &(oz_sink){OZ_SINK_COPY, r->logits, NULL}, &err), &err);
    oz_state_free(&state);
}

static void run_close(run *r) {
    free(r->logits);
    oz_model_close(&r->model);
    oz_dev_close(&r->dev);
    oz_ckpt_close(&r->ckpt);
}

static void quantize(const char *from, const char *to, const char *preset, const char *const *targets, size_t n_targets) {
    oz_err err = {0};
    oz_ckpt *c;
    oz_quantize *q;
    oz_pool *pool = oz_pool_new(2);
    const oz_quantize_cfg cfg = {.scheme = oz_preset_find(preset)->scheme, .targets = targets, .n_targets = n_targets};
    must(oz_ckpt_open(&c, from, &err), &err);
    must(oz_quantize_new(&q, c, &cfg, &err), &err);
    must(oz_quantize_run(q, to, true, pool, &err), &err);
    oz_quantize_free(&q);
    oz_pool_free(&pool);
    oz_ckpt_close(&c);
}

static bool is_expert(const char *module) { return strstr(module, ".experts.") != NULL; }

/* Packed weights, codes and scales, bit by bit; what is no expert is dense in both. */
static void same_modules(const run *a, const run *b) {
    assert_int_equal(oz_model_module_count(a->model), oz_model_module_count(b->model));
    size_t n_experts = 0;
    for (size_t i = 0; i < oz_model_module_count(a->model); i++) {
        const oz_model_module x = oz_model_module_at(a->model, i), y = oz_model_module_at(b->model, i);
        assert_string_equal(x.name, y.name);
        assert_string_equal(oz_packed_kernel(x.packed), oz_packed_kernel(y.packed));
        assert_int_equal(x.scheme->quantized, is_expert(x.name));
        assert_int_equal(y.scheme->quantized, is_expert(y.name));
        assert_int_equal(oz_packed_bytes(x.packed), oz_packed_bytes(y.packed));
        const oz_cpu_packed *p = (const oz_cpu_packed *)x.packed, *q = (const oz_cpu_packed *)y.packed;
        if (memcmp(p->codes, q->codes, p->head.n_bytes) != 0) fail_msg("%s: other codes or scales", x.name);
        n_experts += is_expert(x.name);
    }
    assert_true(n_experts > 0);
}

static void test_as_quantized_before(void **state) {
    for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++) {
        for (size_t p = 0; p < sizeof PRESETS / sizeof *PRESETS; p++) {
            run before, now, plain;
            quantize(golden(MODELS[m]), test_path("q"), PRESETS[p], NULL, 0);
            run_open(&before, test_path("q"), NULL, "auto");
            run_open(&now, golden(MODELS[m]), PRESETS[p], "auto");
            run_open(&plain, golden(MODELS[m]), NULL, "auto");
            same_modules(&before, &now);
            assert_memory_equal(before.logits, now.logits, (size_t)now.n * sizeof *now.logits);
            assert_memory_not_equal(plain.logits, now.logits, (size_t)now.n * sizeof *now.logits);
            run_close(&before), run_close(&now), run_close(&plain);
        }
    }
}

/* --targets adds to the experts. */
static void test_targets(void **state) {
    const char *const targets[] = {"re:.*o_proj$"};
    run r;
    quantize(golden("mixtral"), test_path("more"), "experts_int8", targets, 1);
    run_open(&r, test_path("more"), NULL, "f32");
    for (size_t i = 0; i < oz_model_module_count(r.model); i++) {
        const oz_model_module m = oz_model_module_at(r.model, i);
        assert_int_equal(m.scheme->quantized, is_expert(m.name) || strstr(m.name, "o_proj"));
    }
    run_close(&r);
}

/* ---- Mixtral as newer libraries hold it: its experts under mlp, in one tensor a layer ---- */

static void write_tensor(oz_writer *w, const oz_layout *l, const char *name, const void *data, size_t n) {
    oz_err err = {0};
    must(oz_writer_put(w, name, 0, data, n, &err), &err);
}

/* The experts' matrices of `parts` one behind the other, by expert. */
static char *gather(const oz_ckpt *c, int layer, const char *const *parts, int n_parts, int n_experts, size_t *n_bytes) {
    char name[96], *all = NULL;
    *n_bytes = 0;
    for (int i = 0; i < n_experts * n_parts; i++) {
        snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.experts.%d.%s.weight", layer, i / n_parts, parts[i % n_parts]);
        const oz_tensor *t = oz_ckpt_find(c, name);
        assert_non_null(t);
        all = realloc(all, *n_bytes + t->n_bytes);
        memcpy(all + *n_bytes, t->data, t->n_bytes);
        *n_bytes += t->n_bytes;
    }
    return all;
}

static void renamed_write(const oz_ckpt *c, const char *folder, int n_layers, int n_experts, int64_t hidden, int64_t ffn) {
    static const char *const gate_up[] = {"w1", "w3"}, *const down[] = {"w2"};
    oz_err err = {0};
    oz_layout *l = oz_layout_new(0);
    oz_writer *w;
    char name[4][96];
    mkdir(folder, 0777);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < oz_ckpt_count(c); i++) {
            const oz_tensor *t = oz_ckpt_at(c, i);
            if (strstr(t->name, "block_sparse_moe")) continue;
            if (pass == 0) must(oz_layout_add(l, t->name, t->dtype, t->n_dims, t->dims, &err), &err);
            else write_tensor(w, l, t->name, t->data, t->n_bytes);
        }
        for (int i = 0; i < n_layers; i++) {
            snprintf(name[0], sizeof name[0], "model.layers.%d.block_sparse_moe.gate.weight", i);
            snprintf(name[1], sizeof name[1], "model.layers.%d.mlp.gate.weight", i);
            snprintf(name[2], sizeof name[2], "model.layers.%d.mlp.experts.gate_up_proj", i);
            snprintf(name[3], sizeof name[3], "model.layers.%d.mlp.experts.down_proj", i);
            const oz_tensor *gate = oz_ckpt_find(c, name[0]);
            size_t n[2];
            char *data[2] = {gather(c, i, gate_up, 2, n_experts, &n[0]), gather(c, i, down, 1, n_experts, &n[1])};
            if (pass == 0) {
                must(oz_layout_add(l, name[1], gate->dtype, 2, gate->dims, &err), &err);
                must(oz_layout_add(l, name[2], gate->dtype, 3, (int64_t[]){n_experts, 2 * ffn, hidden}, &err), &err);
                must(oz_layout_add(l, name[3], gate->dtype, 3, (int64_t[]){n_experts, hidden, ffn}, &err), &err);
            } else {
                write_tensor(w, l, name[1], gate->data, gate->n_bytes);
                write_tensor(w, l, name[2], data[0], n[0]);
                write_tensor(w, l, name[3], data[1], n[1]);
            }
            free(data[0]), free(data[1]);
        }
        if (pass > 0) break;
        must(oz_layout_fix(l, &err), &err);
        must(oz_writer_open(&w, l, folder, &err), &err);
    }
    must(oz_writer_finish(w, &err), &err);
    oz_writer_close(&w);
    oz_layout_free(&l);
    must(oz_config_write(oz_ckpt_config(c), folder, &err), &err);
}

static void test_renamed(void **state) {
    oz_err err = {0};
    oz_ckpt *c;
    run a, b;
    must(oz_ckpt_open(&c, golden("mixtral"), &err), &err);
    const json_t *config = oz_ckpt_config(c);
    renamed_write(c, test_path("renamed"), (int)json_integer_value(json_object_get(config, "num_hidden_layers")), (int)json_integer_value(json_object_get(config, "num_local_experts")),
                  json_integer_value(json_object_get(config, "hidden_size")), json_integer_value(json_object_get(config, "intermediate_size")));
    for (int i = 0; i < 2; i++) {
        run_open(&a, golden("mixtral"), i ? "experts_int8" : NULL, "f32");
        run_open(&b, test_path("renamed"), i ? "experts_int8" : NULL, "f32");
        assert_memory_equal(a.logits, b.logits, (size_t)a.n * sizeof *a.logits);
        run_close(&a), run_close(&b);
    }
    quantize(test_path("renamed"), test_path("renamed-q"), "experts_int8", NULL, 0);
    run_open(&a, golden("mixtral"), "experts_int8", "f32");
    run_open(&b, test_path("renamed-q"), NULL, "f32");
    assert_memory_equal(a.logits, b.logits, (size_t)a.n * sizeof *a.logits);
    run_close(&a), run_close(&b);
    oz_ckpt_close(&c);
}

/* ---- experts under any scheme, against the values that their codes stand for ---- */

static void synth(const char *path) {
    oz_err err = {0};
    oz_synth *s;
    json_t *config = json_pack("{s:s s:i s:i s:i s:i s:i s:i s:i s:i s:f s:s}", "model_type", "mixtral", "hidden_size", 128, "intermediate_size", 256, "num_hidden_layers", 2, "num_attention_heads", 4,
                               "num_key_value_heads", 2, "vocab_size", 96, "num_local_experts", 5, "num_experts_per_tok", 2, "initializer_range", 0.15, "torch_dtype", "bfloat16");
    oz_pool *pool = oz_pool_new(2);
    must(oz_synth_new(&s, config, &OZ_SCHEME_DENSE, 5, 0, &err), &err);
    must(oz_synth_run(s, path, false, pool, &err), &err);
    oz_synth_free(&s);
    oz_pool_free(&pool);
    json_decref(config);
}

static void convert(const char *from, const char *to, oz_convert_cfg cfg) {
    oz_err err = {0};
    oz_ckpt *c;
    oz_convert *v;
    oz_pool *pool = oz_pool_new(2);
    must(oz_ckpt_open(&c, from, &err), &err);
    must(oz_convert_new(&v, c, &cfg, &err), &err);
    must(oz_convert_run(v, to, true, pool, &err), &err);
    oz_convert_free(&v);
    oz_pool_free(&pool);
    oz_ckpt_close(&c);
}

static double relative(const run *a, const run *b) {
    double diff = 0, all = 0;
    for (int64_t i = 0; i < a->n; i++) diff += ((double)a->logits[i] - b->logits[i]) * ((double)a->logits[i] - b->logits[i]), all += (double)b->logits[i] * b->logits[i];
    return sqrt(diff / all);
}

/* Weights alone: sums of the same values. With quantized activations they differ by as much as those are off: 2.7 % in W8A8, 8 % in FP8. */
static void against_floats(const char *folder, const char *what, double bound) {
    run q, f;
    convert(folder, test_path("floats"), (oz_convert_cfg){.to = OZ_DTYPE_F32});
    run_open(&q, folder, NULL, "f32");
    run_open(&f, test_path("floats"), NULL, "f32");
    for (size_t i = 0; i < oz_model_module_count(q.model); i++) {
        const oz_model_module m = oz_model_module_at(q.model, i);
        assert_int_equal(m.scheme->quantized, is_expert(m.name));
    }
    if (!(relative(&q, &f) < bound)) fail_msg("%s: off by %g from the same weights as floats", what, relative(&q, &f));
    run_close(&q), run_close(&f);
}

static void test_schemes(void **state) {
    static const struct { const char *preset; double bound; } cases[] = {{"W4A16", 1e-5}, {"W8A16", 1e-5}, {"W8A8", 4e-2}, {"FP8_DYNAMIC", 0.12}, {"experts_int8", 1e-5}, {"experts_fp8", 1e-5}, {"experts_w8a8", 4e-2}};
    const char *const experts[] = {"re:.*\\.experts\\."};
    synth(test_path("synth"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        quantize(test_path("synth"), test_path("s"), cases[i].preset, experts, 1);
        against_floats(test_path("s"), cases[i].preset, cases[i].bound);
    }
}

/* A scheme a projection: int4 in groups of 128, W8A8, float8. */
static void test_mixed(void **state) {
    static const struct { const char *folder, *preset, *pattern; } parts[] = {{"w1", "W4A16", "re:.*\\.w1$"}, {"w2", "W8A8", "re:.*\\.w2$"}, {"w3", "experts_fp8", "re:.*\\.w3$"}};
    oz_err err = {0};
    oz_ckpt *others[2];
    oz_convert_take takes[2];
    char path[3][512];
    synth(test_path("synth"));
    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s", test_path(parts[i].folder));
        quantize(test_path("synth"), path[i], parts[i].preset, &parts[i].pattern, 1);
        if (i == 0) continue;
        must(oz_ckpt_open(&others[i - 1], path[i], &err), &err);
        takes[i - 1] = (oz_convert_take){parts[i].pattern, others[i - 1]};
    }
    convert(path[0], test_path("mixed"), (oz_convert_cfg){.compressed = true, .takes = takes, .n_takes = 2});
    against_floats(test_path("mixed"), "mixed", 4e-2);
    for (int i = 0; i < 2; i++) oz_ckpt_close(&others[i]);
}

/* ---- what is refused ---- */

static void refused(const char *path, const char *preset, oz_status status, const char *words) {
    test_model_refused(path, &(oz_model_cfg){.dtype = "f32", .quantize = &oz_preset_find(preset)->scheme}, NULL, status, words);
}

static void test_refused(void **state) {
    oz_err err = {0};
    oz_ckpt *c;
    oz_quantize *q;
    refused(golden("llama"), "experts_int8", OZ_E_ARG, "--quantization experts_int8: this model (llama) has no experts");
    quantize(golden("mixtral"), test_path("q"), "W8A8", NULL, 0);
    refused(test_path("q"), "experts_int8", OZ_E_ARG, "expected dense weights, found model.layers.0.block_sparse_moe.experts.0.w1 with scheme W8A8");
    must(oz_ckpt_open(&c, golden("llama"), &err), &err);
    assert_int_equal(oz_quantize_new(&q, c, &(oz_quantize_cfg){.scheme = oz_preset_find("experts_int8")->scheme}, &err), OZ_E_ARG);
    test_contains(err.msg, "--scheme experts_int8: it is of routed experts, and this model has none");
    oz_ckpt_close(&c);

    /* A weight that is no number is named, in whatever thread it was found. */
    size_t n;
    err = (oz_err){0};
    must(oz_ckpt_open(&c, golden("qwen3_moe"), &err), &err);
    const oz_tensor *t = NULL;
    for (size_t i = 0; !t; i++)
        if (strstr(oz_ckpt_at(c, i)->name, "mlp.experts.1.up_proj.weight")) t = oz_ckpt_at(c, i);
    char *file = test_read("tests/golden/models/qwen3_moe/model.safetensors", &n), *at = memmem(file, n, t->data, t->n_bytes), words[160];
    assert_non_null(at);
    memcpy(at + 2 * (t->dims[1] * 5 + 3), &(uint16_t){0x7fc0}, 2);
    mkdir(test_path("nan"), 0777);
    test_write("nan/model.safetensors", file, n);
    must(oz_config_write(oz_ckpt_config(c), test_path("nan"), &err), &err);
    snprintf(words, sizeof words, "%.*s (scheme experts_int8): row 5: column 3: expected a finite weight", (int)(strlen(t->name) - strlen(".weight")), t->name);
    refused(test_path("nan"), "experts_int8", OZ_E_FORMAT, words);
    free(file);
    oz_ckpt_close(&c);
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {UNIT(test_as_quantized_before), UNIT(test_targets), UNIT(test_renamed), UNIT(test_schemes), UNIT(test_mixed), UNIT(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
