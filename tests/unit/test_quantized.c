/* Checkpoints that others wrote: each module's weight is what their definition dequantizes, whole and as devices pack it, and the forward pass gives its logits. */
#include "files.h"
#include <math.h>
#include "base/mem.h"
#include "base/progress.h"
#include "model/model.h"

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

static oz_ckpt *open_golden(const char *name, const char *part) {
    char path[256];
    oz_ckpt *c;
    oz_err err = {0};
    snprintf(path, sizeof path, "tests/golden/quantized/%s%s", name, part);
    must(oz_ckpt_open(&c, path, &err), &err);
    return c;
}

/* What devices pack of it: the same values, columns by group where they have an index; and a part of it. */
static void check_compact(const oz_weight *w, const float *want) {
    oz_err err = {0};
    oz_weight all, part;
    void *mem, *mem2 = NULL;
    float row[512];
    must(oz_weight_slice(&all, &mem, w, 0, w->rows, 0, w->cols, &err), &err);
    assert_true(oz_weight_is_compact(&all));
    assert_true((w->g_idx != NULL) == (all.order != NULL));
    for (int64_t r = 0; r < w->rows; r++) {
        oz_weight_row(row, &all, r, 0, w->cols);
        for (int64_t c = 0; c < w->cols; c++) assert_true(row[c] == want[r * w->cols + (all.order ? all.order[c] : c)]);
    }
    if (w->group_size < w->cols) {
        const oz_status st = oz_weight_slice(&part, &mem2, w, 8, 16, w->group_size, w->group_size, &err);
        assert_true((st == OZ_OK) == (w->g_idx == NULL));
        for (int64_t r = 0; st == OZ_OK && r < 16; r++) {
            oz_weight_row(row, &part, r, 0, part.cols);
            for (int64_t c = 0; c < part.cols; c++) assert_true(row[c] == want[(8 + r) * w->cols + w->group_size + c]);
        }
    }
    oz_big_free(mem);
    oz_big_free(mem2);
}

static void test_weights(void **state) {
    static const struct { const char *folder, *module, *scheme, *format; } cases[] = {
        {"w8a16-int8-naive", "model.layers.0.self_attn.k_proj", "W8A16", "int-quantized"},
        {"w8a16-int8-naive", "model.layers.1.mlp.down_proj", "W8A16", "int-quantized"},
        {"fp8-dynamic", "model.layers.0.self_attn.k_proj", "FP8_DYNAMIC", "float-quantized"},
        {"fp8-dynamic", "model.layers.1.mlp.down_proj", "FP8_DYNAMIC", "float-quantized"},
        {"w4a16-g128", "model.layers.0.self_attn.k_proj", "W4A16", "pack-quantized"},
        {"w4a16-g128", "model.layers.1.mlp.down_proj", "W4A16", "pack-quantized"},
        {"target-precedence", "model.layers.0.self_attn.q_proj", "W8A8", "int-quantized"}, /* by its name, then by expression, then by class */
        {"target-precedence", "model.layers.0.self_attn.k_proj", "W4A16", "pack-quantized"},
        {"target-precedence", "model.layers.1.mlp.down_proj", "W8A16", "pack-quantized"},
        {"w4a16-g128-asym", "model.layers.0.self_attn.k_proj", "W4A16_ASYM", "pack-quantized"},
        {"w4a16-g128-asym", "model.layers.1.mlp.down_proj", "W4A16_ASYM", "pack-quantized"},
        {"gptq-v1-desc-act", "model.layers.0.self_attn.k_proj", "W4A16_ASYM", "gptq"},
        {"gptq-v1-desc-act", "model.layers.1.mlp.down_proj", "W4A16_ASYM", "gptq"},
        {"awq-gemm", "model.layers.1.mlp.down_proj", "W4A16_ASYM", "awq"},
        {"fp8-native-block", "model.layers.0.self_attn.k_proj", "FP8_BLOCK", "fp8"},
        {"fp8-native-block", "model.layers.1.mlp.down_proj", "FP8_BLOCK", "fp8"},
        {"fp8-static", "model.layers.1.mlp.down_proj", "FP8", "float-quantized"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_err err = {0};
        char name[128];
        oz_scheme s;
        oz_weight w;
        oz_ckpt *c = open_golden(cases[i].folder, ""), *golden = open_golden(cases[i].folder, "/golden");
        snprintf(name, sizeof name, "dequantized.%s", cases[i].module);
        const oz_tensor *want = oz_ckpt_find(golden, name);
        assert_non_null(want);
        const oz_module m = {cases[i].module, "Linear", want->dims[0], want->dims[1], true};
        must(oz_scheme_resolve(&s, oz_ckpt_config(c), &m, 1, &err), &err);
        assert_string_equal(s.name, cases[i].scheme);
        assert_string_equal(s.format, cases[i].format);
        must(oz_scheme_bind(&w, c, &m, &s, &err), &err);
        float row[512];
        for (int64_t r = 0; r < m.rows; r++) {
            oz_weight_row(row, &w, r, 0, m.cols);
            assert_memory_equal(row, (const char *)want->data + r * m.cols * 4, (size_t)m.cols * 4);
        }
        check_compact(&w, (const float *)want->data);
        oz_ckpt_close(&c);
        oz_ckpt_close(&golden);
    }
}

/* Of gen_quantized.py: every module of each. */
static const char *const WHOLE[] = {"gptq-2bit", "gptq-3bit", "gptq-8bit", "gptq-dynamic", "pack-widths", "pack-words", "narrow-floats", "quantized-embeddings", "kv-heads"};
enum { N_WHOLE = sizeof WHOLE / sizeof *WHOLE };

static void check_whole(const char *folder) {
    oz_err err = {0};
    oz_arch_list list;
    oz_ckpt *c = open_golden(folder, ""), *golden = open_golden(folder, "/golden");
    must(oz_arch_list_new(&list, oz_ckpt_config(c), c, &err), &err);
    oz_module modules[16];
    oz_scheme schemes[16];
    size_t n = 0, quantized = 0;
    for (size_t i = 0; i < list.n && n < 16; i++)
        if (!list.items[i].is_bias && list.items[i].cols) modules[n++] = oz_arch_module(&list.items[i], c);
    must(oz_scheme_resolve(schemes, oz_ckpt_config(c), modules, n, &err), &err);
    for (size_t i = 0; i < n; i++) {
        const oz_module m = modules[i];
        const oz_scheme s = schemes[i];
        oz_weight w;
        float row[64];
        char name[128];
        snprintf(name, sizeof name, "dequantized.%s", m.name);
        const oz_tensor *want = oz_ckpt_find(golden, name);
        assert_int_equal(want != NULL, s.quantized);
        quantized += s.quantized;
        if (!want) continue;
        must(oz_scheme_bind(&w, c, &m, &s, &err), &err);
        for (int64_t r = 0; r < m.rows; r++) {
            oz_weight_row(row, &w, r, 0, m.cols);
            for (int64_t k = 0; k < m.cols; k++)
                if (row[k] != ((const float *)want->data)[r * m.cols + k]) fail_msg("%s %s: %g at %d, %d, expected %g", folder, m.name, (double)row[k], (int)r, (int)k, (double)((const float *)want->data)[r * m.cols + k]);
        }
        check_compact(&w, (const float *)want->data);
    }
    assert_true(n == 9 && quantized >= 3);
    oz_arch_list_deinit(&list);
    oz_ckpt_close(&c);
    oz_ckpt_close(&golden);
}

static void test_whole(void **state) {
    for (int i = 0; i < N_WHOLE; i++) check_whole(WHOLE[i]);
}

static void test_logits(void **state) {
    static const char *const folders[] = {"w8a16-int8-naive", "fp8-dynamic", "w4a16-g128", "target-precedence", "w4a16-g128-asym", "gptq-v1-desc-act", "awq-gemm",
                                          "fp8-native-block", "fp8-static", "kv-cache-fp8", "gptq-2bit", "gptq-3bit", "gptq-8bit", "gptq-dynamic", "pack-widths", "pack-words",
                                          "narrow-floats", "quantized-embeddings", "kv-heads"};
    static const int32_t blocks[] = {0, 1, 2, 3};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        oz_err err = {0};
        oz_dev *dev;
        oz_model *model;
        oz_state *st;
        int32_t rows[64];
        oz_ckpt *c = open_golden(folders[i], ""), *golden = open_golden(folders[i], "/golden");
        const oz_tensor *ids = oz_ckpt_find(golden, "input_ids"), *want = oz_ckpt_find(golden, "logits");
        const int64_t n = ids->dims[0], vocab = want->dims[1];
        for (int k = 0; k < 64; k++) rows[k] = k;
        must(oz_dev_open(&dev, &(oz_dev_cfg){"cpu", 2, "auto", false}, &err), &err);
        must(oz_model_open(&model, dev, c, &(oz_model_cfg){.dtype = "f32", .max_tok = 64}, &err), &err);
        must(oz_state_new(&st, model, 4, 4, &err), &err);
        float *logits = oz_alloc_array((size_t)(n * vocab), sizeof *logits), worst = 0;
        const oz_seg seg = {0, n, 0, blocks};
        const oz_call call = {.ids = ids->data, .n_tok = n, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = n};
        must(oz_model_run(model, st, &call, &(oz_sink){OZ_SINK_COPY, logits, NULL}, &err), &err);
        for (int64_t k = 0; k < n * vocab; k++) {
            float d = fabsf(logits[k] - ((const float *)want->data)[k]);
            if (!(d <= worst)) worst = d;
        }
        if (!(worst < 1e-3f)) fail_msg("%s: logits differ by %g", folders[i], (double)worst);
        oz_free(logits);
        oz_state_free(&st);
        oz_model_close(&model);
        oz_dev_close(&dev);
        oz_ckpt_close(&golden);
        oz_ckpt_close(&c);
    }
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights), cmocka_unit_test(test_whole), cmocka_unit_test(test_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
