/* Folds: scales of any size move inside the layers of every architecture, and the f32 logits stay; what may not be touched is not. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>
#include "files.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "quantize/internal.h"

/* Every golden model there is. */
static char names[64][64];
static int n_models;

static int models_find(void **state) {
    struct dirent **found;
    const int n = scandir("tests/golden/models", &found, NULL, alphasort);
    for (int i = 0; i < n; free(found[i++]))
        if (found[i]->d_name[0] != '.') snprintf(names[n_models++], sizeof names[0], "%.63s", found[i]->d_name);
    if (n >= 0) free(found);
    return n_models < 24 || n_models == 64;
}

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

static oz_ckpt *model(const char *name) {
    oz_ckpt *c;
    oz_err err = {0};
    char path[256];
    snprintf(path, sizeof path, "tests/golden/models/%s", name);
    must(oz_ckpt_open(&c, path, &err), &err);
    return c;
}

static oz_quantize *plan(const oz_ckpt *c, const char *const *ignore, size_t n_ignore) {
    oz_quantize *q;
    oz_err err = {0};
    const oz_quantize_cfg cfg = {.scheme = oz_preset_find("W8A16")->scheme, .method = "smoothquant", .ignore = ignore, .n_ignore = n_ignore};
    must(oz_quantize_new(&q, c, &cfg, &err), &err);
    return q;
}

/* Scales between 1/8 and 8. */
static void fold_all(oz_quantize *q, uint64_t seed) {
    oz_rng rng;
    oz_rng_init(&rng, seed);
    for (size_t i = 0; i < q->n_folds; i++) {
        const oz_quantize_fold *f = &q->folds[i];
        float *s = oz_alloc_array((size_t)f->of->n, sizeof *s);
        for (int64_t k = 0; k < f->of->n; k++) s[k] = exp2f(6.0f * (float)oz_rng_uniform(&rng) - 3.0f);
        oz_fold_settle(s, q, f);
        float least = INFINITY, most = 0;
        for (int64_t k = 0; k < f->of->n; k++) least = fminf(least, s[k]), most = fmaxf(most, s[k]);
        if (!(most / least >= 4)) fail_msg("%s: scales between %g and %g", q->items[f->of->from].arch->module, (double)least, (double)most);
        oz_fold_apply(q, f, s);
        oz_free(s);
    }
}

/* The folded model: what would be quantized in f32, everything else as quantizing keeps it. */
static oz_ckpt *written(oz_quantize *q, const char *name) {
    oz_err err = {0};
    oz_writer *w;
    oz_stream s;
    oz_ckpt *out;
    oz_layout *l = oz_layout_new(0);
    oz_pool *pool = oz_pool_new(1);
    for (size_t i = 0; i < q->n_items; i++) {
        const oz_quantize_item *it = &q->items[i];
        if (!it->absent) must(oz_layout_add(l, it->tensor->name, it->quantized ? OZ_DTYPE_F32 : it->dtype, it->tensor->n_dims, it->tensor->dims, &err), &err);
    }
    must(oz_layout_fix(l, &err), &err);
    mkdir(test_path(name), 0777);
    must(oz_config_write(oz_ckpt_config(q->ckpt), test_path(name), &err), &err);
    must(oz_writer_open(&w, l, test_path(name), &err), &err);
    oz_stream_init(&s, w, pool, "test", 1);
    for (size_t i = 0; i < q->n_items; i++) {
        oz_quantize_item *it = &q->items[i];
        if (it->quantized) must(oz_stream_put(&s, it->tensor->name, OZ_DTYPE_F32, it->weight.rows * it->weight.cols, it->weight.cols, oz_item_fill, it, &err), &err);
        else must(oz_quantize_write_item(q, it, &s, &err), &err);
    }
    oz_stream_deinit(&s);
    must(oz_writer_finish(w, &err), &err);
    oz_writer_close(&w);
    oz_layout_free(&l);
    oz_pool_free(&pool);
    must(oz_ckpt_open(&out, test_path(name), &err), &err);
    return out;
}

enum { N_TOK = 24 };
static const int32_t blocks[] = {0, 1};

static float *logits(const oz_ckpt *c, int64_t *n) {
    oz_err err = {0};
    oz_dev *dev;
    oz_model *m;
    oz_state *state;
    int32_t ids[N_TOK], rows[N_TOK];
    must(oz_dev_open(&dev, &(oz_dev_cfg){"cpu", 2, "auto", true}, &err), &err);
    must(oz_model_open(&m, dev, c, &(oz_model_cfg){.dtype = "f32", .max_tok = N_TOK, .need_len = N_TOK}, &err), &err);
    must(oz_state_new(&state, m, 2, 1, &err), &err);
    for (int i = 0; i < N_TOK; i++) ids[i] = 3 + 11 * i % 90, rows[i] = i;
    *n = N_TOK * oz_model_get(m)->vocab_size;
    float *out = malloc((size_t)*n * sizeof *out);
    const oz_seg seg = {0, N_TOK, 0, blocks};
    const oz_call call = {.ids = ids, .n_tok = N_TOK, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = N_TOK};
    must(oz_model_run(m, state, &call, &(oz_sink){OZ_SINK_COPY, out, NULL}, &err), &err);
    oz_state_free(&state);
    oz_model_close(&m);
    oz_dev_close(&dev);
    return out;
}

/* The largest difference of two models' logits, relative to the first's largest. */
static double differs(const oz_ckpt *a, const oz_ckpt *b) {
    int64_t n, nb;
    float *x = logits(a, &n), *y = logits(b, &nb), most = 0, worst = 0;
    assert_int_equal(n, nb);
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i])), worst = fabsf(x[i] - y[i]) <= worst ? worst : fabsf(x[i] - y[i]);
    free(x), free(y);
    return (double)(worst / most);
}

/* Whatever is quantized has columns that take scales, but for what a scan gives and what a convolution does. */
static void all_are_read(const oz_quantize *q, const char *name) {
    static const oz_role without[] = {OZ_ROLE_SSM_X, OZ_ROLE_SSM_OUT};
    for (size_t i = 0; i < q->list.n; i++) {
        bool has = !q->items[i].quantized;
        for (size_t k = 0; k < q->n_folds && !has; k++)
            for (size_t t = 0; t < q->folds[k].of->n_to; t++) has = has || q->folds[k].of->to[t] == i;
        const oz_role role = q->list.items[i].role;
        if (has == (role == without[0] || role == without[1])) fail_msg("%s: %s: takes scales: %d", name, q->list.items[i].module, has);
    }
}

static void test_logits(void **state) {
    for (int i = 0; i < n_models; i++) {
        oz_ckpt *c = model(names[i]), *folded;
        oz_quantize *q = plan(c, NULL, 0);
        int64_t layers = 0;
        for (size_t k = 0; k < q->list.n; k++) layers = q->list.items[k].layer >= layers ? q->list.items[k].layer + 1 : layers;
        if ((int64_t)q->n_folds < 3 * layers) fail_msg("%s: %zu folds in %lld layers", names[i], q->n_folds, (long long)layers);
        all_are_read(q, names[i]);
        fold_all(q, (uint64_t)i + 1);
        folded = written(q, "folded");
        const double d = differs(c, folded);
        if (!(d < 1e-5)) fail_msg("%s: logits differ by %g of their largest", names[i], d);
        oz_ckpt_close(&folded);
        /* One reader of the first fold left out is seen. */
        oz_quantize_item *reader = &q->items[q->folds[0].of->to[q->folds[0].of->n_to - 1]];
        oz_free(reader->cols_by);
        reader->cols_by = NULL;
        folded = written(q, "half");
        const double half = differs(c, folded);
        if (!(half > 1e-3)) fail_msg("%s: logits differ by %g without %s", names[i], half, reader->arch->module);
        oz_ckpt_close(&folded);
        oz_quantize_free(&q);
        oz_ckpt_close(&c);
        test_dir_remove(NULL);
        test_dir_make(NULL);
    }
}

/* Each fold's readers and producer are another's only in its other capacity. */
static void test_apart(void **state) {
    for (int i = 0; i < n_models; i++) {
        oz_ckpt *c = model(names[i]);
        oz_quantize *q = plan(c, NULL, 0);
        uint8_t *seen = calloc(q->list.n, 1);
        for (size_t k = 0; k < q->n_folds; k++) {
            const oz_fold *f = q->folds[k].of;
            assert_false(seen[f->from] & 1);
            seen[f->from] |= 1;
            bool *rows = calloc((size_t)q->list.items[f->from].rows, 1);
            for (int64_t s = 0; s < f->n; s++) {
                assert_in_range(oz_fold_row(f, s), 0, q->list.items[f->from].rows - 1);
                assert_false(rows[oz_fold_row(f, s)]);
                rows[oz_fold_row(f, s)] = true;
            }
            free(rows);
            for (size_t t = 0; t < f->n_to; t++) {
                assert_false(seen[f->to[t]] & 2);
                seen[f->to[t]] |= 2;
                assert_int_equal(q->list.items[f->to[t]].cols, f->n * f->share);
                for (int64_t col = 0; col < f->n * f->share; col++) assert_in_range(oz_fold_scale(f, col), 0, f->n - 1);
            }
        }
        free(seen);
        oz_quantize_free(&q);
        oz_ckpt_close(&c);
    }
}

/* One module that is left as it is, of each role of a layer: no byte of it changes, nor of what is in no layer, and the logits stay. */
static void test_one_kept(void **state) {
    for (int i = 0; i < n_models; i++) {
        oz_ckpt *c = model(names[i]);
        oz_quantize *all = plan(c, NULL, 0);
        const int64_t last = all->list.items[all->folds[all->n_folds - 1].of->from].layer;
        bool seen[OZ_ROLE_COUNT] = {false};
        int n = 0;
        for (size_t k = 0; k < all->list.n; k++) {
            const oz_arch_tensor *t = &all->list.items[k];
            if (t->layer != last || seen[t->role] || !(all->items[k].quantized || t->role == OZ_ROLE_ROUTER)) continue;
            seen[t->role] = true, n++;
            oz_quantize *q = plan(c, (const char *const[]){t->module}, 1);
            fold_all(q, (uint64_t)k);
            oz_ckpt *folded = written(q, "kept");
            for (size_t j = 0; j < q->list.n; j++) {
                const oz_arch_tensor *of = &q->list.items[j];
                if ((of->layer >= 0 && strcmp(of->module, t->module) != 0) || q->items[j].absent) continue;
                const oz_tensor *a = oz_ckpt_find(c, of->name), *b = oz_ckpt_find(folded, of->name);
                if (!b || a->n_bytes != b->n_bytes || memcmp(a->data, b->data, a->n_bytes) != 0) fail_msg("%s without %s: %s has changed", names[i], t->module, of->name);
            }
            const double d = differs(c, folded);
            if (!(d < 1e-5)) fail_msg("%s without %s: logits differ by %g of their largest", names[i], t->module, d);
            oz_ckpt_close(&folded);
            oz_quantize_free(&q);
            test_dir_remove(NULL);
            test_dir_make(NULL);
        }
        assert_in_range(n, 4, OZ_ROLE_COUNT);
        oz_quantize_free(&all);
        oz_ckpt_close(&c);
    }
}

static bool moves(const oz_quantize *q, const char *module) {
    for (size_t i = 0; i < q->list.n; i++)
        if (strcmp(q->list.items[i].module, module) == 0) return q->items[i].moved;
    fail_msg("%s is not there", module);
    return false;
}

/* What a pattern keeps is not touched, and neither is what would have to change with it; a router that none names is. */
static void test_kept(void **state) {
    oz_ckpt *c = model("mixtral");
    oz_quantize *q = plan(c, NULL, 0);
    assert_true(moves(q, "model.layers.0.block_sparse_moe.gate"));
    assert_true(moves(q, "model.layers.0.post_attention_layernorm"));
    oz_quantize_free(&q);
    q = plan(c, (const char *const[]){"model.layers.0.block_sparse_moe.gate", "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.o_proj"}, 3);
    assert_false(moves(q, "model.layers.0.block_sparse_moe.gate"));
    assert_false(moves(q, "model.layers.0.post_attention_layernorm"));
    assert_true(moves(q, "model.layers.1.block_sparse_moe.gate"));
    assert_true(moves(q, "model.layers.0.input_layernorm"));
    assert_false(moves(q, "model.layers.1.input_layernorm"));
    assert_false(moves(q, "model.layers.1.self_attn.k_proj"));
    assert_false(moves(q, "model.layers.1.self_attn.v_proj"));
    assert_false(moves(q, "model.layers.1.self_attn.q_proj"));
    for (size_t i = 0; i < q->n_folds; i++) assert_int_equal(q->folds[i].powers, q->list.items[q->folds[i].of->to[0]].role == OZ_ROLE_ROUTER);
    oz_quantize_free(&q);
    oz_ckpt_close(&c);
}

static void test_nothing_to_fold(void **state) {
    oz_ckpt *c = model("llama");
    oz_quantize *q;
    oz_err err = {0};
    const oz_quantize_cfg cfg = {.scheme = oz_preset_find("W8A16")->scheme, .method = "smoothquant+gptq", .targets = (const char *const[]){"re:.*gate_proj"}, .n_targets = 1};
    assert_int_equal(oz_quantize_new(&q, c, &cfg, &err), OZ_E_ARG);
    test_contains(err.msg, "SmoothQuant: no scale of this model can be moved: model.layers.0.input_layernorm: model.layers.0.self_attn.q_proj is not quantized");
    oz_ckpt_close(&c);
}

static void test_methods(void **state) {
    static const struct { const char *text, *transform; bool gptq; } good[] = {{NULL, NULL, false}, {"rtn", NULL, false}, {"gptq", NULL, true}, {"awq", "awq", false}, {"smoothquant+gptq", "smoothquant", true}, {"awq+rtn", "awq", false}};
    static const char *const bad[] = {"", "+", "gptq+awq", "awq+smoothquant", "awq+", "gptq+rtn", "AWQ", "awqq"};
    oz_method m;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(oz_method_parse(&m, good[i].text, NULL), OZ_OK);
        assert_int_equal(m.gptq, good[i].gptq);
        assert_true(good[i].transform ? strcmp(m.transform->name, good[i].transform) == 0 : !m.transform);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(oz_method_parse(&m, bad[i], NULL), OZ_E_USAGE);
}

/* Of more rows than there is room for: evenly spread, and the ranges of all. */
static void test_sample(void **state) {
    oz_sample s;
    oz_err err = {0};
    must(oz_sample_init(&s, 2, 8, NULL, "x", &err), &err);
    for (int i = 0; i < 100; i++) oz_sample_add(&s, (float[]){(float)i, -2 * (float)i}, 2, 1);
    assert_int_equal(s.seen, 100);
    assert_int_equal(s.stride, 16);
    assert_int_equal(s.n, 7);
    for (int i = 0; i < 7; i++) assert_true(s.rows[2 * i] == 16 * (float)i);
    assert_true(s.max[0] == 99 && s.min[0] == 0 && s.max[1] == 0 && s.min[1] == -198 && s.sum[1] == 9900);
    oz_sample_deinit(&s);
}

int main(void) {
    oz_log_mute();
    const struct CMUnitTest tests[] = {UNIT(test_logits), UNIT(test_apart), UNIT(test_one_kept), UNIT(test_kept), UNIT(test_nothing_to_fold), UNIT(test_methods), UNIT(test_sample)};
    return cmocka_run_group_tests(tests, models_find, NULL);
}
