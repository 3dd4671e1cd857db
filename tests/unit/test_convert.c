/* Conversion to plain floats, and checkpoints of random weights: values, sizes, files, and the same bytes whatever the threads. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "model/model.h"
#include "quantize/quantize.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64]; /* of this run */

static char *in_dir(const char *name) { return oz_path_join(dir, name); }

static void ok(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

static oz_ckpt *open_ckpt(const char *path) {
    oz_ckpt *c;
    oz_err err = {0};
    ok(oz_ckpt_open(&c, path, &err), &err);
    return c;
}

static void convert(const char *from, const char *to_name, oz_dtype to, size_t shard_bytes, int threads) {
    oz_err err = {0};
    oz_ckpt *in = open_ckpt(from);
    oz_convert *c;
    oz_pool *pool = oz_pool_new(threads);
    char *target = in_dir(to_name);
    ok(oz_convert_new(&c, in, &(oz_convert_cfg){.to = to, .shard_bytes = shard_bytes}, &err), &err);
    ok(oz_convert_run(c, target, false, pool, &err), &err);
    for (size_t i = 0; i < oz_layout_file_count(oz_convert_layout(c)); i++) { /* the sizes that a dry run promises */
        size_t n_bytes;
        char *path = oz_path_join(target, oz_layout_file(oz_convert_layout(c), i, &n_bytes));
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, n_bytes);
        oz_free(path);
    }
    oz_free(target);
    oz_pool_free(&pool);
    oz_convert_free(&c);
    oz_ckpt_close(&in);
}

static void same_file(const char *a, const char *b, const char *name) {
    oz_buf x = {0}, y = {0};
    oz_err err = {0};
    char *da = in_dir(a), *db = in_dir(b), *pa = oz_path_join(da, name), *pb = oz_path_join(db, name);
    ok(oz_file_read(&x, pa, 1 << 26, &err), &err);
    ok(oz_file_read(&y, pb, 1 << 26, &err), &err);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    oz_buf_deinit(&x);
    oz_buf_deinit(&y);
    oz_free(da);
    oz_free(db);
    oz_free(pa);
    oz_free(pb);
}

static void fnv_hex(char hex[17], const oz_tensor *t) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < t->n_bytes; i++) h = (h ^ ((const uint8_t *)t->data)[i]) * 0x100000001b3u;
    snprintf(hex, 17, "%016llx", (unsigned long long)h);
}

/* Each tensor of a GGUF comes out as the bf16 values that the generator computed, q and k in order. */
static void test_gguf_to_bf16(void **state) {
    convert("tests/golden/gguf/llama.gguf", "bf16", OZ_DTYPE_BF16, 0, 3);
    char *path = in_dir("bf16");
    oz_ckpt *c = open_ckpt(path);
    json_t *expect;
    oz_err err = {0};
    ok(oz_json_load(&expect, "tests/golden/gguf/llama.expect.json", 1 << 20, &err), &err);
    assert_int_equal(oz_ckpt_count(c), json_object_size(expect));
    const char *name;
    json_t *want;
    json_object_foreach(expect, name, want) {
        const oz_tensor *t = oz_ckpt_find(c, name);
        if (!t) fail_msg("%s is missing", name);
        assert_int_equal(t->dtype, OZ_DTYPE_BF16);
        assert_int_equal(t->dims[0], json_integer_value(json_array_get(json_object_get(want, "dims"), 0)));
        char hex[17];
        fnv_hex(hex, t);
        if (strcmp(hex, json_string_value(json_object_get(want, "fnv_bf16"))) != 0) fail_msg("%s: other values", name);
    }
    assert_string_equal(json_string_value(json_object_get(oz_ckpt_config(c), "torch_dtype")), "bfloat16");
    oz_text_files text;
    ok(oz_text_files_open(&text, path, &err), &err);
    assert_non_null(text.tokenizer);
    assert_non_null(text.generation_config);
    assert_true(oz_str_starts(text.chat_template, "{% for m"));
    oz_text_files_close(&text);
    json_decref(expect);
    oz_ckpt_close(&c);
    oz_free(path);
}

/* Logits of ids 0..7. */
static void logits_of(float *out, const char *path) {
    static const int32_t ids[] = {3, 1, 4, 1, 5, 0, 2, 6}, rows[] = {0, 1, 2, 3, 4, 5, 6, 7}, blocks[] = {0};
    oz_err err = {0};
    oz_ckpt *c = open_ckpt(path);
    oz_dev *dev;
    oz_model *m;
    oz_state *state;
    ok(oz_dev_open(&dev, &(oz_dev_cfg){"cpu", 1, "auto", false}, &err), &err);
    ok(oz_model_open(&m, dev, c, &(oz_model_cfg){.dtype = "f32", .max_tok = 8}, &err), &err);
    ok(oz_state_new(&state, m, 1, 4, &err), &err);
    const oz_seg seg = {0, 8, 0, blocks};
    const oz_call call = {.ids = ids, .n_tok = 8, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = 8};
    ok(oz_model_run(m, state, &call, &(oz_sink){OZ_SINK_COPY, out, NULL}, &err), &err);
    oz_state_free(&state);
    oz_model_close(&m);
    oz_dev_close(&dev);
    oz_ckpt_close(&c);
}

/* A model whose weights run from their own blocks, and the same made plain. */
static void test_gguf_runs_as_converted(void **state) {
    float from_blocks[64], plain[64];
    convert("tests/golden/gguf/types.gguf", "types-f32", OZ_DTYPE_F32, 0, 1);
    char *path = in_dir("types-f32");
    logits_of(from_blocks, "tests/golden/gguf/types.gguf");
    logits_of(plain, path);
    oz_free(path);
    float most = 0;
    for (int i = 0; i < 64; i++) {
        most = fmaxf(most, fabsf(plain[i]));
        if (!(fabsf(plain[i] - from_blocks[i]) < 1e-4f)) fail_msg("logit %d: %g from blocks, %g converted", i, (double)from_blocks[i], (double)plain[i]);
    }
    assert_true(most > 0.1f && most < 1000);
}

/* f32 holds every value that the file means; bf16 of it is bf16 of the file. */
static void test_through_f32(void **state) {
    convert("tests/golden/gguf/llama.gguf", "f32", OZ_DTYPE_F32, 0, 1);
    char *path = in_dir("f32");
    convert(path, "f32-bf16", OZ_DTYPE_BF16, 0, 2);
    same_file("f32-bf16", "bf16", "model.safetensors");
    same_file("f32-bf16", "bf16", "config.json");
    same_file("f32-bf16", "bf16", "tokenizer.json");
    oz_free(path);
}

static void test_threads_and_shards(void **state) {
    convert("tests/golden/gguf/llama.gguf", "one", OZ_DTYPE_BF16, 0, 1);
    same_file("one", "bf16", "model.safetensors");
    convert("tests/golden/gguf/llama.gguf", "shards", OZ_DTYPE_BF16, 100000, 2);
    char *path = in_dir("shards"), *index = oz_path_join(path, "model.safetensors.index.json");
    assert_true(oz_path_exists(index));
    convert(path, "joined", OZ_DTYPE_BF16, 0, 1);
    same_file("joined", "bf16", "model.safetensors");
    oz_free(index);
    oz_free(path);
}

static void test_existing_target(void **state) {
    oz_err err = {0};
    oz_ckpt *in = open_ckpt("tests/golden/gguf/qwen3.gguf");
    oz_convert *c;
    oz_pool *pool = oz_pool_new(1);
    char *target = in_dir("bf16"), *file = oz_path_join(target, "config.json");
    ok(oz_convert_new(&c, in, &(oz_convert_cfg){.to = OZ_DTYPE_F32}, &err), &err);
    assert_int_not_equal(oz_convert_run(c, target, false, pool, &err), OZ_OK);
    assert_non_null(strstr(err.msg, target));
    oz_err_clear(&err);
    ok(oz_convert_run(c, target, true, pool, &err), &err);
    json_t *config;
    ok(oz_json_load(&config, file, 1 << 20, &err), &err);
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "qwen3");
    assert_string_equal(json_string_value(json_object_get(config, "torch_dtype")), "float32");
    json_decref(config);
    oz_free(file);
    oz_free(target);
    oz_pool_free(&pool);
    oz_convert_free(&c);
    oz_ckpt_close(&in);
}

/* ---- random weights ---- */
static const char CONFIG[] = "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 160, \"num_hidden_layers\": 2, "
                             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 1000, \"rms_norm_eps\": 1e-5, "
                             "\"attention_bias\": true, \"mlp_bias\": false, \"tie_word_embeddings\": false, \"initializer_range\": 0.05, "
                             "\"torch_dtype\": \"bfloat16\"}";

static void synth(const char *name, const oz_scheme *scheme, uint64_t seed, size_t shard_bytes, int threads) {
    oz_err err = {0};
    json_t *config = json_loads(CONFIG, 0, NULL);
    oz_synth *s;
    oz_pool *pool = oz_pool_new(threads);
    char *target = in_dir(name);
    ok(oz_synth_new(&s, config, scheme, seed, shard_bytes, &err), &err);
    ok(oz_synth_run(s, target, false, pool, &err), &err);
    oz_free(target);
    oz_pool_free(&pool);
    oz_synth_free(&s);
    json_decref(config);
}

static void moments(const oz_tensor *t, double *mean, double *std, double *max) {
    const size_t n = t->n_bytes / 2;
    double sum = 0, sum2 = 0, m = 0;
    for (size_t i = 0; i < n; i++) {
        double v = (double)oz_f32_from_bf16(((const uint16_t *)t->data)[i]);
        sum += v;
        sum2 += v * v;
        if (fabs(v) > m) m = fabs(v);
    }
    *mean = sum / (double)n;
    *std = sqrt(sum2 / (double)n - *mean * *mean);
    *max = m;
}

static void test_synth(void **state) {
    synth("synth-1", &OZ_SCHEME_DENSE, 7, 0, 1);
    synth("synth-3", &OZ_SCHEME_DENSE, 7, 0, 3);
    same_file("synth-1", "synth-3", "model.safetensors");
    char *path = in_dir("synth-1");
    oz_ckpt *c = open_ckpt(path);
    assert_int_equal(oz_ckpt_count(c), 3 + 2 * (2 + 4 + 4 + 3)); /* embedding, norm, head; norms, q k v o with biases, three of the mlp */
    double mean, std, max;
    moments(oz_ckpt_find(c, "model.embed_tokens.weight"), &mean, &std, &max); /* 64,000 values */
    assert_true(fabs(mean) < 4 * 0.05 / 253);
    assert_true(fabs(std - 0.05) < 0.05 * 0.012);
    assert_true(max > 3.5 * 0.05 && max < 4.4 * 0.05);
    moments(oz_ckpt_find(c, "model.layers.1.post_attention_layernorm.weight"), &mean, &std, &max);
    assert_true(mean == 1.0 && max == 1.0);
    moments(oz_ckpt_find(c, "model.layers.1.self_attn.q_proj.bias"), &mean, &std, &max);
    assert_true(std > 0.03 && std < 0.07);
    const oz_tensor *up = oz_ckpt_find(c, "model.layers.0.mlp.up_proj.weight"),
                    *gate = oz_ckpt_find(c, "model.layers.0.mlp.gate_proj.weight");
    assert_int_equal(up->n_bytes, gate->n_bytes);
    assert_memory_not_equal(up->data, gate->data, up->n_bytes);
    oz_ckpt_close(&c);
    oz_free(path);
}

static void test_synth_seed_and_shards(void **state) {
    synth("synth-8", &OZ_SCHEME_DENSE, 8, 0, 2);
    synth("synth-shards", &OZ_SCHEME_DENSE, 7, 50000, 2);
    char *path1 = in_dir("synth-1"), *path8 = in_dir("synth-8"), *sharded = in_dir("synth-shards");
    oz_ckpt *c1 = open_ckpt(path1), *c8 = open_ckpt(path8), *cs = open_ckpt(sharded);
    assert_int_equal(oz_ckpt_count(cs), oz_ckpt_count(c1));
    for (size_t i = 0; i < oz_ckpt_count(c1); i++) {
        const oz_tensor *t = oz_ckpt_at(c1, i), *other = oz_ckpt_find(c8, t->name), *same = oz_ckpt_find(cs, t->name);
        assert_memory_equal(t->data, same->data, t->n_bytes);
        if (!strstr(t->name, "norm")) assert_memory_not_equal(t->data, other->data, t->n_bytes);
    }
    oz_ckpt_close(&c1);
    oz_ckpt_close(&c8);
    oz_ckpt_close(&cs);
    oz_free(path1);
    oz_free(path8);
    oz_free(sharded);
}

/* Weights made under a scheme are those that quantizing the dense ones gives; and the codes of each scheme convert to floats that are
 * near the dense weights. */
static void test_synth_with_scheme(void **state) {
    for (size_t p = 0; p < oz_preset_count(); p++) {
        oz_scheme scheme = oz_preset_at(p)->scheme;
        if (scheme.experts) continue; /* of a dense model, nothing */
        if (oz_preset_at(p)->takes_group_size) scheme.group_size = 32;
        if (scheme.input.group_size) scheme.input.group_size = 32;
        if (scheme.static_input) continue; /* quantizing calibrates it */
        char direct[32], later[32], floats[32];
        snprintf(direct, sizeof direct, "direct-%zu", p);
        snprintf(later, sizeof later, "later-%zu", p);
        snprintf(floats, sizeof floats, "floats-%zu", p);
        synth(direct, &scheme, 7, 0, 2);
        oz_err err = {0};
        char *dense = in_dir("synth-1"), *target = in_dir(later), *made = in_dir(direct), *plain = in_dir(floats);
        oz_ckpt *c = open_ckpt(dense);
        oz_quantize *q;
        oz_pool *pool = oz_pool_new(1);
        ok(oz_quantize_new(&q, c, &(oz_quantize_cfg){.scheme = scheme}, &err), &err);
        ok(oz_quantize_run(q, target, false, pool, &err), &err);
        oz_quantize_free(&q);
        oz_pool_free(&pool);
        same_file(direct, later, "model.safetensors");
        same_file(direct, later, "config.json");
        convert(made, floats, OZ_DTYPE_F32, 0, 2);
        oz_ckpt *f = open_ckpt(plain);
        assert_null(json_object_get(oz_ckpt_config(f), "quantization_config"));
        assert_int_equal(oz_ckpt_count(f), oz_ckpt_count(c));
        const oz_tensor *x = oz_ckpt_find(c, "model.layers.1.mlp.down_proj.weight"), *y = oz_ckpt_find(f, x->name);
        double diff = 0, norm = 0;
        for (size_t i = 0; i < x->n_bytes / 2; i++) {
            double a = (double)oz_f32_from_bf16(((const uint16_t *)x->data)[i]), b = (double)((const float *)y->data)[i];
            diff += (a - b) * (a - b);
            norm += a * a;
        }
        const double error = sqrt(diff / norm), steps = scheme.bits == 4 ? 7.5 : scheme.is_float ? 16 : 127.5;
        if (!(error > 0 && error < 1 / steps)) fail_msg("%s: relative error %g", scheme.name, error);
        oz_ckpt_close(&c);
        oz_ckpt_close(&f);
        oz_free(dense);
        oz_free(target);
        oz_free(made);
        oz_free(plain);
    }
}

static void test_synth_refuses(void **state) {
    static const char *const bad[][2] = {
        {"{\"model_type\": \"nope\"}", "nope"},
        {"{\"model_type\": \"llama\", \"quantization_config\": {}}", "quantization_config"},
        {"{\"model_type\": \"llama\", \"initializer_range\": \"x\"}", "initializer_range"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_err err = {0};
        json_t *config = json_loads(bad[i][0], 0, NULL);
        oz_synth *s;
        assert_int_not_equal(oz_synth_new(&s, config, &OZ_SCHEME_DENSE, 0, 0, &err), OZ_OK);
        assert_null(s);
        if (!strstr(err.msg, bad[i][1])) fail_msg("expected %s, found %s", bad[i][1], err.msg);
        json_decref(config);
    }
}

/* Codes that no scheme describes are not weights. */
static void test_codes_without_scheme(void **state) {
    oz_err err = {0};
    char *path = in_dir("codes"), *config = oz_path_join(path, "config.json");
    oz_layout *l = oz_layout_new(0);
    oz_writer *w;
    assert_int_equal(mkdir(path, 0777), 0);
    ok(oz_layout_add(l, "model.layers.0.mlp.up_proj.weight", OZ_DTYPE_I8, 2, (const int64_t[]){2, 4}, &err), &err);
    ok(oz_layout_fix(l, &err), &err);
    ok(oz_writer_open(&w, l, path, &err), &err);
    ok(oz_writer_put(w, "model.layers.0.mlp.up_proj.weight", 0, "12345678", 8, &err), &err);
    ok(oz_writer_finish(w, &err), &err);
    oz_writer_close(&w);
    oz_layout_free(&l);
    ok(oz_file_write_atomic(config, "{\"model_type\": \"other\"}", 23, &err), &err);
    oz_ckpt *c = open_ckpt(path);
    oz_convert *conv;
    assert_int_equal(oz_convert_new(&conv, c, &(oz_convert_cfg){.to = OZ_DTYPE_BF16}, &err), OZ_E_FORMAT);
    assert_null(conv);
    assert_non_null(strstr(err.msg, "model.layers.0.mlp.up_proj.weight: expected floats"));
    oz_ckpt_close(&c);
    oz_free(config);
    oz_free(path);
}

static int set_up(void **state) {
    snprintf(dir, sizeof dir, "/tmp/ounce-convert-XXXXXX");
    oz_log_quiet(true);
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_to_bf16),      cmocka_unit_test(test_gguf_runs_as_converted), cmocka_unit_test(test_through_f32),   cmocka_unit_test(test_threads_and_shards),
        cmocka_unit_test(test_existing_target),   cmocka_unit_test(test_synth),         cmocka_unit_test(test_synth_seed_and_shards),
        cmocka_unit_test(test_synth_with_scheme), cmocka_unit_test(test_synth_refuses), cmocka_unit_test(test_codes_without_scheme),
    };
    return cmocka_run_group_tests_name("convert", tests, set_up, tear_down);
}
