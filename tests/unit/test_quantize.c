/* Whole checkpoints: a small synthetic model is quantized with every preset, and what is written is read back and held against the
 * source and against what was predicted. */
#include "files.h"
#include <math.h>
#include <signal.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "model/model.h"
#include "quantize/quantize.h"

#define CONFIG(tied) "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"vocab_size\":48,\"attention_bias\":true,\"torch_dtype\":\"bfloat16\",\"tie_word_embeddings\":" tied "}"
enum { N_LINEAR = 14 };

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

static json_t *parse(const char *text) {
    json_t *v;
    oz_err err = {0};
    must(oz_json_parse(&v, text, strlen(text), "test", &err), &err);
    return v;
}

/* A model of random weights under NAME of the test's folder. */
static oz_ckpt *source(const char *name, const char *config_text) {
    oz_err err = {0};
    oz_synth *s;
    oz_ckpt *c;
    json_t *config = parse(config_text);
    oz_pool *pool = oz_pool_new(2);
    must(oz_synth_new(&s, config, &OZ_SCHEME_DENSE, 7, 0, &err), &err);
    must(oz_synth_run(s, test_path(name), false, pool, &err), &err);
    oz_synth_free(&s);
    oz_pool_free(&pool);
    json_decref(config);
    must(oz_ckpt_open(&c, test_path(name), &err), &err);
    return c;
}

static oz_quantize_cfg cfg_of(const char *preset, int64_t group_size) {
    oz_quantize_cfg cfg = {.scheme = oz_preset_find(preset)->scheme};
    if (group_size) cfg.scheme.group_size = group_size;
    if (cfg.scheme.block_rows) cfg.scheme.block_rows = 24, cfg.scheme.group_size = 40, cfg.scheme.input.group_size = 16; /* they stand out at the edges */
    return cfg;
}

/* Quantizes into NAME, after checking that every predicted size is the real one. */
static oz_ckpt *quantize(const oz_ckpt *c, const oz_quantize_cfg *cfg, const char *name, int threads) {
    oz_err err = {0};
    oz_quantize *q;
    oz_ckpt *out;
    oz_pool *pool = oz_pool_new(threads);
    must(oz_quantize_new(&q, c, cfg, &err), &err);
    must(oz_quantize_run(q, test_path(name), false, pool, &err), &err);
    const oz_layout *l = oz_quantize_layout(q);
    size_t all = 0;
    for (size_t i = 0; i < oz_layout_file_count(l); i++) {
        size_t n_bytes;
        struct stat st;
        char *path = oz_path_join(test_path(name), oz_layout_file(l, i, &n_bytes));
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, n_bytes);
        all += n_bytes;
        oz_free(path);
    }
    assert_int_equal(oz_layout_bytes(l), all);
    oz_quantize_free(&q);
    oz_pool_free(&pool);
    must(oz_ckpt_open(&out, test_path(name), &err), &err);
    return out;
}

static void plan_fails(const oz_ckpt *c, const oz_quantize_cfg *cfg, oz_status code, const char *words) {
    oz_quantize *q;
    oz_err err = {0};
    oz_status st = oz_quantize_new(&q, c, cfg, &err);
    oz_quantize_free(&q);
    if (st != code) fail_msg("status %d, expected %d with %s: %s", st, code, words, err.msg);
    test_contains(err.msg, words);
}

static void same_files(const char *a, const char *b) {
    static const char *const names[] = {"model.safetensors", "config.json"};
    for (int i = 0; i < 2; i++) {
        size_t na, nb;
        char *pa = oz_path_join(test_path(a), names[i]), *pb = oz_path_join(test_path(b), names[i]);
        char *da = test_read(pa, &na), *db = test_read(pb, &nb);
        assert_int_equal(na, nb);
        assert_memory_equal(da, db, na);
        free(da), free(db);
        oz_free(pa), oz_free(pb);
    }
}

/* The names that config.json leaves dense. */
static bool ignored(const oz_ckpt *c, const char *name) {
    const json_t *list = json_object_get(json_object_get(oz_ckpt_config(c), "quantization_config"), "ignore");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0) return true;
    return false;
}

/* The scheme of every row of the list, by the written config. oz_free. */
static oz_scheme *resolve(const oz_ckpt *c, const oz_arch_list *list) {
    oz_err err = {0};
    oz_module *m = oz_alloc_array(list->n, sizeof *m);
    oz_scheme *s = oz_alloc_array(list->n, sizeof *s);
    for (size_t i = 0; i < list->n; i++) m[i] = (oz_module){list->items[i].module, list->items[i].class_name, list->items[i].rows, list->items[i].cols, false};
    must(oz_scheme_resolve(s, oz_ckpt_config(c), m, list->n, &err), &err);
    oz_free(m);
    return s;
}

/* Every module, read through the written config: quantized ones lie within half a step (or the clamp) of the source, the rest is the
 * same. Returns how many are quantized. */
static int compare(const oz_ckpt *src, const oz_ckpt *out) {
    oz_arch_list list;
    oz_err err = {0};
    int n_quantized = 0;
    must(oz_arch_list_new(&list, oz_ckpt_config(out), out, &err), &err);
    oz_scheme *schemes = resolve(out, &list);
    for (size_t i = 0; i < list.n; i++) {
        const oz_arch_tensor *t = &list.items[i];
        if (t->is_bias || t->cols == 0) {
            const oz_tensor *a = oz_ckpt_find(src, t->name), *b = oz_ckpt_find(out, t->name);
            assert_true(a && b && a->n_bytes == b->n_bytes && a->dtype == b->dtype && memcmp(a->data, b->data, a->n_bytes) == 0);
            continue;
        }
        const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
        const oz_module from = {oz_ckpt_find(src, t->name) ? t->module : "model.embed_tokens", t->class_name, t->rows, t->cols, false};
        const oz_scheme s = schemes[i];
        oz_weight a, b;
        must(oz_scheme_bind(&a, src, &from, &OZ_SCHEME_DENSE, &err), &err);
        must(oz_scheme_bind(&b, out, &m, &s, &err), &err);
        n_quantized += s.quantized;
        if (strcmp(t->class_name, "Linear") == 0) assert_int_equal(ignored(out, t->module), !s.quantized);
        const double half = s.is_float ? 448 : s.bits == 4 ? 7.5 : 127.5;
        const int64_t step = s.group_size && !s.block_rows ? s.group_size : t->cols;
        float ra[96], rb[96];
        for (int64_t r = 0; r < t->rows; r++) {
            oz_weight_row(ra, &a, r, 0, t->cols);
            oz_weight_row(rb, &b, r, 0, t->cols);
            for (int64_t g = 0; g < t->cols; g += step) {
                double amax = 0;
                for (int64_t c = g; c < g + step; c++) amax = fmax(amax, fabs((double)ra[c]));
                for (int64_t c = g; c < g + step; c++) {
                    double unit = s.is_float ? fmax(fabs((double)ra[c]) / 16, (s.block_rows ? 8 : 1) * amax / half * 0x1p-10) : amax / half / 2;
                    double allowed = s.quantized ? unit * (s.symmetric ? 1.02 : 2.04) + amax * 0x1p-8 : 0; /* the rounding of the scale; that of the zero point moves the ends */
                    if (!(fabs((double)ra[c] - (double)rb[c]) <= allowed)) fail_msg("%s[%d, %d]: %g became %g", t->name, (int)r, (int)c, (double)ra[c], (double)rb[c]);
                }
            }
        }
    }
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    return n_quantized;
}

/* The first stored scale of a matrix is that of the values [rows, cols] at its corner. */
static void check_scale(const oz_ckpt *src, const oz_ckpt *a, const oz_scheme *s, const int64_t want[2]) {
    const oz_tensor *w = oz_ckpt_find(src, "model.layers.1.mlp.down_proj.weight"), *t = oz_ckpt_find(a, "model.layers.1.mlp.down_proj.weight_scale");
    assert_true(t->dtype == OZ_DTYPE_BF16 && t->n_dims == 2 && t->dims[0] == want[0] && t->dims[1] == want[1]);
    const int64_t rows = s->block_rows ? s->block_rows : 1, cols = s->group_size ? s->group_size : 96;
    float x[96], min = 0, max = 0;
    for (int64_t r = 0; r < rows; r++) {
        oz_to_f32(x, w->dtype, (const uint16_t *)w->data + r * 96, cols);
        for (int64_t c = 0; c < cols; c++) min = fminf(min, x[c]), max = fmaxf(max, x[c]);
    }
    uint16_t stored;
    memcpy(&stored, t->data, 2);
    const float whole = s->symmetric ? fmaxf(max, -min) / (s->is_float ? 448.0f : s->bits == 4 ? 7.5f : 127.5f) : oz_f32_from_bf16(oz_bf16_from_f32(max - min)) / 15.0f;
    assert_int_equal(stored, oz_bf16_from_f32(whole));
}

static void test_presets(void **state) {
    oz_ckpt *src = source("src", CONFIG("false"));
    for (size_t i = 0; i < oz_preset_count(); i++) {
        const oz_preset *p = oz_preset_at(i);
        if (p->scheme.static_input || p->scheme.experts) continue; /* calibrated: tests/e2e/recipes.sh; tests/unit/test_experts.c */
        oz_quantize_cfg cfg = cfg_of(p->scheme.name, p->takes_group_size ? 16 : 0);
        char one[32], many[32];
        snprintf(one, sizeof one, "one%zu", i), snprintf(many, sizeof many, "many%zu", i);
        oz_ckpt *a = quantize(src, &cfg, one, 1), *b = quantize(src, &cfg, many, 5);
        same_files(one, many); /* whatever the threads, and twice */
        assert_int_equal(compare(src, a), N_LINEAR);
        assert_true(ignored(a, "lm_head") && !ignored(a, "model.embed_tokens"));
        check_scale(src, a, &cfg.scheme, cfg.scheme.block_rows ? (const int64_t[]){3, 3} : (const int64_t[]){64, cfg.scheme.group_size ? 6 : 1});
        oz_ckpt_close(&a);
        oz_ckpt_close(&b);
    }
    oz_ckpt_close(&src);
}

static void test_targets(void **state) {
    oz_ckpt *src = source("src", CONFIG("false"));
    oz_quantize_cfg cfg = cfg_of("W8A8", 0);
    cfg.targets = (const char *[]){"re:.*mlp.*", "lm_head", "model.layers.0.self_attn.q_proj"}, cfg.n_targets = 3;
    cfg.ignore = (const char *[]){"re:.*up_proj", "model.embed_tokens"}, cfg.n_ignore = 2;
    oz_ckpt *out = quantize(src, &cfg, "out", 2);
    assert_int_equal(compare(src, out), 2 * 2 + 1 + 1);
    assert_true(!ignored(out, "lm_head") && ignored(out, "model.layers.1.mlp.up_proj") && ignored(out, "model.layers.1.self_attn.q_proj"));
    assert_false(ignored(out, "model.layers.0.self_attn.q_proj"));
    oz_ckpt_close(&out);

    cfg.targets = (const char *[]){"Linear", "model.layers.7.mlp.up_proj"}, cfg.n_targets = 2, cfg.n_ignore = 0;
    plan_fails(src, &cfg, OZ_E_ARG, "--targets 'model.layers.7.mlp.up_proj': matches no linear module");
    cfg.targets = (const char *[]){"model.embed_tokens"}, cfg.n_targets = 1;
    plan_fails(src, &cfg, OZ_E_ARG, "--targets 'model.embed_tokens'");
    cfg.targets = (const char *[]){"re:("};
    plan_fails(src, &cfg, OZ_E_FORMAT, "re:(");
    cfg.n_targets = 0, cfg.ignore = (const char *[]){"lm_haed"}, cfg.n_ignore = 1;
    plan_fails(src, &cfg, OZ_E_ARG, "--ignore 'lm_haed': matches no module");
    cfg.ignore = (const char *[]){"Linear"};
    plan_fails(src, &cfg, OZ_E_ARG, "nothing is left");
    cfg = cfg_of("W4A16", 24);
    plan_fails(src, &cfg, OZ_E_ARG, "model.layers.0.self_attn.q_proj: group_size 24 does not divide its 64 columns; these do: 16, 32, 64");
    cfg.targets = (const char *[]){"re:.*down_proj"}, cfg.n_targets = 1; /* 96 columns */
    out = quantize(src, &cfg, "down", 2);
    assert_int_equal(compare(src, out), 2);
    oz_ckpt_close(&out);
    oz_ckpt_close(&src);
}

/* A tied head stays tied and ignored; named, it is written beside the embedding, which does not change. */
static void test_tied(void **state) {
    oz_ckpt *src = source("src", CONFIG("true"));
    assert_null(oz_ckpt_find(src, "lm_head.weight"));
    oz_quantize_cfg cfg = cfg_of("W8A16", 0);
    oz_ckpt *out = quantize(src, &cfg, "tied", 2);
    assert_null(oz_ckpt_find(out, "lm_head.weight"));
    assert_true(ignored(out, "lm_head") && json_is_true(json_object_get(oz_ckpt_config(out), "tie_word_embeddings")));
    assert_int_equal(compare(src, out), N_LINEAR);
    oz_ckpt_close(&out);
    cfg.targets = (const char *[]){"Linear", "lm_head"}, cfg.n_targets = 2;
    out = quantize(src, &cfg, "untied", 2);
    assert_true(json_is_false(json_object_get(oz_ckpt_config(out), "tie_word_embeddings")) && !ignored(out, "lm_head"));
    assert_non_null(oz_ckpt_find(out, "lm_head.weight_packed"));
    assert_int_equal(compare(src, out), N_LINEAR + 1);
    plan_fails(out, &cfg, OZ_E_ARG, "ounce convert"); /* it is quantized already */
    oz_ckpt_close(&out);
    oz_ckpt_close(&src);
}

static void test_shards(void **state) {
    oz_ckpt *src = source("src", CONFIG("false")), *out;
    oz_quantize_cfg cfg = cfg_of("FP8_DYNAMIC", 0);
    cfg.shard_bytes = 20000;
    out = quantize(src, &cfg, "out", 2);
    assert_true(oz_path_exists(test_path("out/model.safetensors.index.json")) && !oz_path_exists(test_path("out/model.safetensors")));
    assert_int_equal(compare(src, out), N_LINEAR);
    oz_ckpt_close(&out);
    oz_ckpt_close(&src);
}

/* Out of a GGUF: rows in Hugging Face order, what is not quantized in the model's type. */
static void test_gguf(void **state) {
    oz_ckpt *src, *out;
    oz_err err = {0};
    oz_arch_list list;
    oz_quantize_cfg cfg = cfg_of("W8A8", 0);
    must(oz_ckpt_open(&src, "tests/golden/gguf/llama.gguf", &err), &err);
    out = quantize(src, &cfg, "out", 2);
    must(oz_arch_list_new(&list, oz_ckpt_config(out), out, &err), &err);
    oz_scheme *schemes = resolve(out, &list);
    for (size_t k = 0; k < list.n; k++) {
        const oz_arch_tensor *t = &list.items[k];
        if (strcmp(t->class_name, "Linear") != 0 || t->is_bias) continue;
        const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
        oz_weight a, b;
        must(oz_scheme_bind(&a, src, &m, &OZ_SCHEME_DENSE, &err), &err);
        must(oz_scheme_bind(&b, out, &m, &schemes[k], &err), &err);
        float *ra = oz_alloc_array((size_t)t->cols, sizeof *ra), *rb = oz_alloc_array((size_t)t->cols, sizeof *rb);
        for (int64_t r = 0; r < t->rows; r++) {
            float amax = 0;
            oz_weight_row(ra, &a, r, 0, t->cols);
            oz_weight_row(rb, &b, r, 0, t->cols);
            for (int64_t c = 0; c < t->cols; c++) amax = fmaxf(amax, fabsf(ra[c]));
            for (int64_t c = 0; c < t->cols; c++) assert_true(fabsf(ra[c] - rb[c]) <= amax * 0.0085f);
        }
        oz_free(ra), oz_free(rb);
    }
    assert_int_equal(oz_ckpt_find(out, "model.norm.weight")->dtype, oz_arch_dtype(oz_ckpt_config(out)));
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    oz_ckpt_close(&out);
    oz_ckpt_close(&src);
}

/* A weight that is no number is found while running: the error names it, and nothing is left behind. */
static void test_not_finite(void **state) {
    oz_ckpt *c = source("src", CONFIG("false"));
    const oz_tensor *t = oz_ckpt_find(c, "model.layers.1.mlp.down_proj.weight");
    size_t n;
    char *file = test_read(test_path("src/model.safetensors"), &n);
    for (size_t i = 0; i + t->n_bytes <= n; i++) {
        if (memcmp(file + i, t->data, t->n_bytes) != 0) continue;
        file[i + 2 * (96 * 5 + 3)] = (char)0xc0, file[i + 2 * (96 * 5 + 3) + 1] = 0x7f;
        break;
    }
    oz_ckpt_close(&c);
    test_write("src/model.safetensors", file, n);
    free(file);
    oz_err err = {0};
    oz_quantize *q;
    oz_pool *pool = oz_pool_new(3);
    oz_quantize_cfg cfg = cfg_of("W4A16", 32);
    must(oz_ckpt_open(&c, test_path("src"), &err), &err);
    must(oz_quantize_new(&q, c, &cfg, &err), &err);
    assert_int_equal(oz_quantize_run(q, test_path("out"), false, pool, &err), OZ_E_FORMAT);
    test_contains(err.msg, "model.layers.1.mlp.down_proj.weight: row 5: column 3: expected a finite weight, found nan (model.safetensors)");
    assert_false(oz_path_exists(test_path("out")));
    oz_quantize_free(&q);
    oz_pool_free(&pool);
    oz_ckpt_close(&c);
}

/* From a GGUF's blocks: the codes are those of the values that the blocks mean, rows in Hugging Face's order. */
static void test_gguf_source(void **state) {
    oz_err err = {0};
    oz_ckpt *src;
    oz_quantize_cfg cfg = cfg_of("W8A8", 0);
    const oz_module q_proj = {"model.layers.1.self_attn.q_proj", "Linear", 32, 256, false};
    oz_weight w;
    must(oz_ckpt_open(&src, "tests/golden/gguf/types.gguf", &err), &err);
    must(oz_scheme_bind(&w, src, &q_proj, &OZ_SCHEME_DENSE, &err), &err);
    assert_true(w.rope_heads == 1 && w.codec == OZ_CODEC_IQ4_XS);
    oz_ckpt *out = quantize(src, &cfg, "from-gguf", 2);
    const oz_tensor *codes = oz_ckpt_find(out, "model.layers.1.self_attn.q_proj.weight"), *scales = oz_ckpt_find(out, "model.layers.1.self_attn.q_proj.weight_scale");
    for (int64_t r = 0; r < 32; r++) {
        float row[256];
        int8_t want[256];
        uint16_t scale;
        oz_weight_row(row, &w, r, 0, 256);
        must(oz_rtn_row(want, &scale, NULL, &(oz_rtn){OZ_CODEC_I8, 0, OZ_DTYPE_BF16, false, 0, 0}, row, 256, &err), &err);
        assert_memory_equal(want, (const int8_t *)codes->data + 256 * r, 256);
        assert_memory_equal(&scale, (const uint8_t *)scales->data + 2 * r, 2);
    }
    oz_ckpt_close(&out);
    oz_ckpt_close(&src);
}

/* The last test: the flag stays up. */
static void test_interrupted(void **state) {
    oz_ckpt *src = source("src", CONFIG("false"));
    oz_err err = {0};
    oz_quantize *q;
    oz_pool *pool = oz_pool_new(2);
    oz_quantize_cfg cfg = cfg_of("W8A8", 0);
    must(oz_quantize_new(&q, src, &cfg, &err), &err);
    oz_interrupt_init();
    raise(SIGINT);
    assert_int_equal(oz_quantize_run(q, test_path("out"), false, pool, &err), OZ_E_INTERRUPTED);
    assert_false(oz_path_exists(test_path("out")));
    oz_quantize_free(&q);
    oz_pool_free(&pool);
    oz_ckpt_close(&src);
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {UNIT(test_presets), UNIT(test_targets), UNIT(test_tied),       UNIT(test_shards),
                                       UNIT(test_gguf),    UNIT(test_gguf_source), UNIT(test_not_finite), UNIT(test_interrupted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
