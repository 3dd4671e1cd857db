/* The forward pass against transformers' float32 results, and what must not change them: batches, chunks, block order, layer ranges. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "model/model.h"

static const char *const names[] = {"llama", "llama-tied-bias", "qwen3", "mixtral", "mistral", "qwen2", "qwen2-window", "qwen3-yarn", "rope-linear", "rope-yarn", "phi3", "phi3-short", "phi3-long", "gemma", "gemma2", "gemma3", "gemma3-vision",
                                    "qwen3_moe", "qwen3_moe-fused", "deepseek", "deepseek_v2", "deepseek_v2-grouped", "deepseek_v3", "jamba"};
enum { N_MODELS = sizeof names / sizeof *names };

typedef struct fixture {
    oz_ckpt *ckpt, *golden;
    oz_dev *dev;
    oz_model *model;
    oz_state *state;
    const oz_model_info *info;
    const int32_t *ids;
    int64_t n;
    float *logits;
} fixture;

static void check(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

/* What transformers gave lies in a checkpoint folder of its own, so that the one reader reads it. */
static void open_on(fixture *f, const char *name, int64_t max_tok, bool deterministic) {
    oz_err e = {0};
    char path[256], golden[256];
    snprintf(path, sizeof path, "tests/golden/models/%s", name);
    snprintf(golden, sizeof golden, "tests/golden/models/%s/golden", name);
    check(oz_ckpt_open(&f->ckpt, path, &e), &e);
    check(oz_ckpt_open(&f->golden, golden, &e), &e);
    check(oz_dev_open(&f->dev, &(oz_dev_cfg){"cpu", 2, "auto", deterministic}, &e), &e);
    const oz_tensor *t = oz_ckpt_find(f->golden, "input_ids");
    f->ids = t->data;
    f->n = t->dims[0];
    check(oz_model_open(&f->model, f->dev, f->ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = max_tok, .taps = OZ_TAP_LAYER, .need_len = f->n}, &e), &e);
    f->info = oz_model_get(f->model);
    check(oz_state_new(&f->state, f->model, 16, 4, &e), &e);
    f->logits = calloc((size_t)(f->n * f->info->vocab_size), sizeof(float));
}

static void open_fixture(fixture *f, const char *name, int64_t max_tok) { open_on(f, name, max_tok, true); }

static void close_fixture(fixture *f) {
    free(f->logits);
    oz_state_free(&f->state);
    oz_model_close(&f->model);
    oz_dev_close(&f->dev);
    oz_ckpt_close(&f->golden);
    oz_ckpt_close(&f->ckpt);
}

/* Ids [p0, p0 + n) at their positions, all logits to f->logits. */
static void run_part(fixture *f, int64_t p0, int64_t n, const int32_t *blocks, oz_call extra) {
    oz_err e = {0};
    int32_t rows[128];
    for (int i = 0; i < 128; i++) rows[i] = i;
    const oz_seg seg = {0, n, p0, blocks};
    extra.ids = f->ids + p0, extra.n_tok = n, extra.segs = &seg, extra.n_segs = 1, extra.rows = rows, extra.n_rows = n;
    check(oz_model_run(f->model, f->state, &extra, &(oz_sink){OZ_SINK_COPY, f->logits + p0 * f->info->vocab_size, NULL}, &e), &e);
}

static const int32_t forward[] = {0, 1, 2, 3, 4, 5, 6, 7}, scattered[] = {11, 3, 7, 0, 15, 2, 9, 4};

static double worst(const float *a, const float *b, int64_t n) {
    double m = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        if (!(d <= m)) m = d;
    }
    return m;
}

static void hidden_check(void *arg, const oz_tap *t) {
    const fixture *f = arg;
    char name[64];
    snprintf(name, sizeof name, "hidden_after_layer_%d", t->layer);
    const oz_tensor *want = oz_ckpt_find(f->golden, name);
    assert_non_null(want);
    assert_true(worst(t->rows, want->data, t->n_tok * t->width) < 1e-3);
}

static void test_golden(void **s) {
    (void)s;
    for (int i = 0; i < N_MODELS; i++) {
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            fixture f;
            open_on(&f, names[i], 128, deterministic);
            run_part(&f, 0, f.n, forward, (oz_call){.tap = hidden_check, .tap_arg = &f});
            const double d = worst(f.logits, oz_ckpt_find(f.golden, "logits")->data, f.n * f.info->vocab_size);
            if (d > 1e-3) fail_msg("%s: logits differ by %g", names[i], d);
            close_fixture(&f);
        }
    }
}

/* One call, calls of 7 rows over scattered blocks, and token by token: the same bits. */
static void test_chunks_are_bit_equal(void **s) {
    (void)s;
    for (int i = 0; i < N_MODELS; i++) {
        fixture f;
        open_fixture(&f, names[i], 128);
        const size_t n_bytes = (size_t)(f.n * f.info->vocab_size) * sizeof(float);
        float *whole = malloc(n_bytes);
        run_part(&f, 0, f.n, forward, (oz_call){0});
        memcpy(whole, f.logits, n_bytes);
        for (int64_t step = 1; step <= 7; step += 6) {
            memset(f.logits, 0, n_bytes);
            for (int64_t p = 0; p < f.n; p += step) run_part(&f, p, f.n - p < step ? f.n - p : step, scattered, (oz_call){0});
            assert_memory_equal(whole, f.logits, n_bytes);
        }
        free(whole);
        close_fixture(&f);
    }
}

/* Decoding step after step, and in chunks, gives what prefill of the whole does, to 1e-3, where attention chooses its form by cost: after other sequences
 * wrote to the blocks and slots that it then takes, and beside one that comes and goes. */
static void decode_check(const char *name) {
    fixture f;
    oz_err e = {0};
    open_on(&f, name, 128, false);
    const int64_t v = f.info->vocab_size;
    run_part(&f, 0, f.n, forward, (oz_call){0});
    float *whole = malloc((size_t)(f.n * v) * sizeof *whole), *row = malloc((size_t)v * sizeof *row), *want = whole;
    memcpy(whole, f.logits, (size_t)(f.n * v) * sizeof *whole);
    int32_t others[48];
    for (int i = 0; i < 48; i++) others[i] = f.ids[(11 * i + 3) % f.n];
    for (int round = 0; round < 3; round++) { /* prompts of 0, 15 and 17 tokens first */
        const int64_t n_prompt = round == 0 ? 0 : 14 + round;
        const oz_seg used = {0, 48, 0, scattered + 2};
        check(oz_model_run(f.model, f.state, &(oz_call){.ids = others, .n_tok = 48, .segs = &used, .n_segs = 1, .slots = (int32_t[]){3}}, NULL, &e), &e);
        const oz_seg prompt = {0, n_prompt, 0, scattered};
        if (n_prompt) check(oz_model_run(f.model, f.state, &(oz_call){.ids = f.ids, .n_tok = n_prompt, .segs = &prompt, .n_segs = 1, .slots = (int32_t[]){3}}, NULL, &e), &e);
        for (int64_t t = n_prompt; t < f.n; t++) {
            const oz_seg segs[] = {{0, 1, t % 5, (int32_t[]){14}}, {1, 1, t, scattered}};
            const int32_t ids[] = {others[t % 48], f.ids[t]}, slots[] = {(int32_t)(t / 5 % 2), 3};
            const oz_call c = {.ids = ids, .n_tok = 2, .segs = segs, .n_segs = 2, .slots = slots, .rows = (int32_t[]){1}, .n_rows = 1};
            check(oz_model_run(f.model, f.state, &c, &(oz_sink){OZ_SINK_COPY, row, NULL}, &e), &e);
            if (!(worst(row, want + t * v, v) < 1e-3)) fail_msg("%s, a prompt of %d: position %d differs by %g", name, (int)n_prompt, (int)t, worst(row, want + t * v, v));
        }
    }
    free(whole), free(row);
    close_fixture(&f);
}

static void test_decode_is_prefill(void **s) {
    (void)s;
    decode_check("deepseek_v2");
    decode_check("deepseek_v2-grouped");
    decode_check("deepseek_v3");
    decode_check("jamba");
}

/* What a token keeps: latents of 16 and 8, or 4 heads' keys of 16 and values of 12; layers that scan keep a slot. */
static void test_kv_sizes(void **s) {
    (void)s;
    static const struct { const char *name; int64_t tok, latent, expanded, slot; int64_t n_latent; } want[] = {
        {"deepseek_v2", 2 * 24 * 4, 2 * 24 * 4, 2 * 4 * 28 * 4, 0, 2}, {"jamba", 2 * 2 * 6 * 4, 2 * 2 * 6 * 4, 2 * 2 * 6 * 4, 3 * 48 * (12 + 3) * 4, 0}, {"mistral", 2 * 2 * 12 * 4, 2 * 2 * 12 * 4, 2 * 2 * 12 * 4, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        fixture f;
        oz_err e = {0};
        oz_kv_size k;
        open_fixture(&f, want[i].name, 128);
        check(oz_kv_size_of(&k, f.ckpt, NULL, &e), &e);
        assert_int_equal(k.bytes_tok, want[i].tok), assert_int_equal(k.latent_bytes_tok, want[i].latent), assert_int_equal(k.expanded_bytes_tok, want[i].expanded);
        assert_int_equal(k.slot_bytes, want[i].slot), assert_int_equal(k.n_latent, want[i].n_latent), assert_int_equal(k.n_expanded, 0);
        assert_true((int64_t)f.info->kv_bytes_tok == k.bytes_tok && (int64_t)f.info->slot_bytes == k.slot_bytes);
        close_fixture(&f);
    }
}

/* Two sequences in one call give each what it gives alone. */
static void batch_check(const char *name) {
    fixture f;
    oz_err e = {0};
    open_fixture(&f, name, 128);
    const int64_t v = f.info->vocab_size;
    run_part(&f, 0, 20, forward, (oz_call){0});
    int32_t ids[33];
    memcpy(ids, f.ids + 5, 13 * sizeof *ids);
    memcpy(ids + 13, f.ids, 20 * sizeof *ids);
    const oz_seg segs[] = {{0, 13, 0, scattered}, {13, 20, 0, (int32_t[]){14, 13}}};
    int32_t rows[20];
    for (int i = 0; i < 20; i++) rows[i] = 13 + i;
    float *both = malloc((size_t)(20 * v) * sizeof(float));
    const oz_call c = {.ids = ids, .n_tok = 33, .segs = segs, .n_segs = 2, .rows = rows, .n_rows = 20};
    check(oz_model_run(f.model, f.state, &c, &(oz_sink){OZ_SINK_COPY, both, NULL}, &e), &e);
    assert_memory_equal(both, f.logits, (size_t)(20 * v) * sizeof(float));
    free(both);
    close_fixture(&f);
}

static void test_batch_is_bit_equal(void **s) {
    (void)s;
    batch_check("qwen3");
    batch_check("mixtral");
    batch_check("deepseek_v2-grouped");
    batch_check("jamba");
}

/* A sequence that is decoded beside others, which come and go, in any slot: what it gives alone. */
static void test_slots(void **s) {
    (void)s;
    fixture f;
    oz_err e = {0};
    open_fixture(&f, "jamba", 128);
    const int64_t v = f.info->vocab_size;
    run_part(&f, 0, f.n, forward, (oz_call){0});
    float *row = malloc((size_t)v * sizeof *row);
    for (int64_t t = 0; t < f.n; t++) {
        const int64_t other = t % 5;
        const oz_seg segs[] = {{0, 1, other, (int32_t[]){14}}, {1, 1, t, scattered}};
        const int32_t ids[] = {f.ids[(7 * t) % f.n], f.ids[t]}, slots[] = {(int32_t)(t / 5 % 2), 3};
        const oz_call c = {.ids = ids, .n_tok = 2, .segs = segs, .n_segs = 2, .slots = slots, .rows = (int32_t[]){1}, .n_rows = 1};
        check(oz_model_run(f.model, f.state, &c, &(oz_sink){OZ_SINK_COPY, row, NULL}, &e), &e);
        assert_memory_equal(row, f.logits + t * v, (size_t)v * sizeof *row);
    }
    const oz_seg seg = {0, 1, 0, forward};
    const oz_call c = {.ids = f.ids, .n_tok = 1, .segs = &seg, .n_segs = 1, .slots = (int32_t[]){4}};
    assert_int_equal(oz_model_run(f.model, f.state, &c, NULL, &e), OZ_E_ARG);
    assert_non_null(strstr(e.msg, "slot 4 of segment 0: must be 0..3"));
    free(row);
    close_fixture(&f);
}

/* Layers [0, 1) then [1, all) through host residuals: the same logits as at once. */
static void test_layer_range(void **s) {
    (void)s;
    fixture f;
    oz_err e = {0};
    open_fixture(&f, "llama", 128);
    const int64_t n = 24, v = f.info->vocab_size;
    run_part(&f, 0, n, forward, (oz_call){0});
    float *res = malloc((size_t)(n * f.info->hidden_size) * sizeof(float)), *out = malloc((size_t)(n * v) * sizeof(float));
    int32_t rows[24];
    for (int i = 0; i < 24; i++) rows[i] = i;
    const oz_seg seg = {0, n, 0, scattered};
    oz_call c = {.ids = f.ids, .n_tok = n, .segs = &seg, .n_segs = 1, .layer_end = 1, .residual_out = res};
    check(oz_model_run(f.model, f.state, &c, NULL, &e), &e);
    c = (oz_call){.n_tok = n, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = n, .layer_begin = 1, .residual_in = res};
    check(oz_model_run(f.model, f.state, &c, &(oz_sink){OZ_SINK_COPY, out, NULL}, &e), &e);
    assert_memory_equal(out, f.logits, (size_t)(n * v) * sizeof(float));
    free(res);
    free(out);
    close_fixture(&f);
}

/* What the linears of a call read: first module and width of each tap, and the sum of all that was tapped. */
typedef struct seen { char log[1024]; double sum; } seen;
static void see(void *arg, const oz_tap *t) {
    seen *p = arg;
    size_t n = strlen(p->log);
    snprintf(p->log + n, sizeof p->log - n, "%d %s+%d %lldx%lld\n", t->layer, strrchr(t->modules[0], '.') + 1, t->n_modules - 1, (long long)t->n_tok, (long long)t->width);
    for (int64_t i = 0; i < t->n_tok * t->width; i++) p->sum += t->rows[i];
}

/* A model opened for one layer, with taps at the inputs of its linears, says what the whole one does. */
static void test_one_layer_alone(void **s) {
    (void)s;
    fixture f;
    oz_err e = {0};
    open_fixture(&f, "llama", 32);
    oz_model *m[2];
    check(oz_model_open(&m[0], f.dev, f.ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = 32, .taps = OZ_TAP_LINEAR}, &e), &e);
    check(oz_model_open(&m[1], f.dev, f.ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = 32, .taps = OZ_TAP_LINEAR, .layer_begin = 1, .layer_end = 2}, &e), &e);
    assert_true(oz_model_module_count(m[1]) == 7 && oz_model_get(m[1])->weight_bytes < oz_model_get(m[0])->weight_bytes / 3);
    float *res = calloc((size_t)(3 * 24 * f.info->hidden_size), sizeof *res), *out[2] = {res + 24 * f.info->hidden_size, res + 48 * f.info->hidden_size};
    const oz_seg seg = {0, 24, 0, scattered};
    oz_call c = {.ids = f.ids, .n_tok = 24, .segs = &seg, .n_segs = 1, .layer_end = 1, .residual_out = res};
    check(oz_model_run(f.model, f.state, &c, NULL, &e), &e);
    seen got[2] = {0};
    for (int i = 0; i < 2; i++) {
        oz_state *state;
        check(oz_state_new(&state, m[i], 16, 4, &e), &e);
        c = (oz_call){.n_tok = 24, .segs = &seg, .n_segs = 1, .layer_begin = 1, .layer_end = 2, .residual_in = res, .residual_out = out[i], .tap = see, .tap_arg = &got[i]};
        check(oz_model_run(m[i], state, &c, NULL, &e), &e);
        oz_state_free(&state);
    }
    assert_memory_equal(out[0], out[1], (size_t)(24 * f.info->hidden_size) * sizeof *res);
    assert_string_equal(got[0].log, "1 q_proj+2 24x96\n1 o_proj+0 24x96\n1 gate_proj+1 24x96\n1 down_proj+0 24x256\n");
    assert_string_equal(got[1].log, got[0].log);
    assert_true(got[1].sum == got[0].sum && got[0].sum != 0);
    oz_state *state;
    check(oz_state_new(&state, m[1], 16, 4, &e), &e);
    c = (oz_call){.ids = f.ids, .n_tok = 24, .segs = &seg, .n_segs = 1};
    assert_int_equal(oz_model_run(m[1], state, &c, NULL, &e), OZ_E_ARG);
    assert_non_null(strstr(e.msg, "layers [0, 2): loaded are [1, 2)"));
    oz_state_free(&state);
    for (int i = 0; i < 2; i++) oz_model_close(&m[i]);
    e = (oz_err){0};
    assert_int_equal(oz_model_open(&m[0], f.dev, f.ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = 32, .layer_begin = 2, .layer_end = 4}, &e), OZ_E_ARG);
    assert_non_null(strstr(e.msg, "layers [2, 4) of 3"));
    free(res);
    close_fixture(&f);
}

/* Experts' matrices are tapped one by one: the rows of all experts are the tokens' choices, and no expert sees another's. */
typedef struct expert_rows { int64_t n_gate[8]; int64_t n_down; } expert_rows;
static void count_rows(void *arg, const oz_tap *t) {
    expert_rows *p = arg;
    int expert, layer;
    char name[8];
    if (sscanf(t->modules[0], "model.layers.%d.block_sparse_moe.experts.%d.%7s", &layer, &expert, name) != 3) return;
    if (strcmp(name, "w1") == 0) p->n_gate[expert] += t->n_tok;
    if (strcmp(name, "w2") == 0) p->n_down += t->n_tok;
}

static void test_taps_of_experts(void **s) {
    (void)s;
    fixture f;
    oz_err e = {0};
    oz_model *m;
    oz_state *state;
    open_fixture(&f, "mixtral", 32);
    check(oz_model_open(&m, f.dev, f.ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = 32, .taps = OZ_TAP_LINEAR, .layer_end = 1}, &e), &e);
    check(oz_state_new(&state, m, 16, 4, &e), &e);
    assert_int_equal(oz_model_tap_count(m), 3 + 3 * 8); /* q/k/v, o, router; w1, w3 and w2 of 8 experts */
    assert_string_equal(oz_model_tap_at(m, 3 + 5).modules[0], "model.layers.0.block_sparse_moe.experts.5.w1");
    assert_int_equal(oz_model_tap_at(m, 3 + 5).n_modules, 1);
    expert_rows got = {0};
    const oz_seg seg = {0, 30, 0, scattered};
    const oz_call c = {.ids = f.ids, .n_tok = 30, .segs = &seg, .n_segs = 1, .tap = count_rows, .tap_arg = &got};
    check(oz_model_run(m, state, &c, NULL, &e), &e);
    int64_t sum = 0, most = 0;
    for (int i = 0; i < 8; i++) sum += got.n_gate[i], most = got.n_gate[i] > most ? got.n_gate[i] : most;
    assert_true(sum == 60 && got.n_down == 60 && most <= 30);
    oz_state_free(&state);
    oz_model_close(&m);
    close_fixture(&f);
}

/* KL of a model with itself is 0 with equal tops; its NLL is that of the logits. */
static void test_sinks(void **s) {
    (void)s;
    fixture f;
    oz_err e = {0};
    open_fixture(&f, "llama", 128);
    const int64_t n = 40, v = f.info->vocab_size;
    run_part(&f, 0, n, forward, (oz_call){0});
    oz_state *other;
    check(oz_state_new(&other, f.model, 16, 4, &e), &e);
    oz_kl_stat kl[40];
    oz_row_stat stat[40];
    int32_t rows[40];
    for (int i = 0; i < 40; i++) rows[i] = i;
    const oz_seg seg = {0, n, 0, forward};
    const oz_call c = {.ids = f.ids, .n_tok = n, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = n};
    check(oz_model_run(f.model, f.state, &c, &(oz_sink){OZ_SINK_STAT, stat, f.ids + 1}, &e), &e);
    oz_model *models[] = {f.model, f.model};
    oz_state *states[] = {f.state, other};
    check(oz_lockstep_run(models, states, 2, &c, &(oz_sink){OZ_SINK_KL, kl, f.ids + 1}, &e), &e);
    for (int i = 0; i < n; i++) {
        double sum = 0, top = -INFINITY;
        int32_t arg = 0;
        const float *row = f.logits + i * v;
        for (int64_t k = 0; k < v; k++) {
            sum += exp((double)row[k]);
            if (row[k] > top) top = row[k], arg = (int32_t)k;
        }
        const double nll = log(sum) - row[f.ids[i + 1]];
        assert_true(fabs(stat[i].lse - stat[i].logit_target - nll) < 1e-9);
        assert_int_equal(stat[i].argmax, arg);
        assert_true(fabs(kl[i].nll - nll) < 1e-9 && fabs(kl[i].nll_ref - nll) < 1e-9 && fabs(kl[i].kl) < 1e-12);
        assert_true(kl[i].argmax == arg && kl[i].argmax_ref == arg && fabs(kl[i].p - exp(-nll)) < 1e-9);
    }
    oz_state_free(&other);
    close_fixture(&f);
}

static void expect_refused(fixture *f, oz_call c, const char *words) {
    oz_err e = {0};
    assert_int_equal(oz_model_run(f->model, f->state, &c, NULL, &e), OZ_E_ARG);
    if (!strstr(e.msg, words)) fail_msg("expected \"%s\", found \"%s\"", words, e.msg);
}

static void test_bad_calls(void **s) {
    (void)s;
    fixture f;
    open_fixture(&f, "llama", 32);
    const oz_seg ok = {0, 4, 0, forward}, gap = {1, 3, 0, forward}, far = {0, 4, 509, forward}, block = {0, 4, 0, (int32_t[]){16}};
    const int32_t high[] = {1, 2, 320, 3}, below[] = {1, -1, 2, 3};
    expect_refused(&f, (oz_call){.ids = f.ids, .n_tok = 33, .segs = &ok, .n_segs = 1}, "1..32 tokens");
    expect_refused(&f, (oz_call){.ids = high, .n_tok = 4, .segs = &ok, .n_segs = 1}, "token id 320");
    expect_refused(&f, (oz_call){.ids = below, .n_tok = 4, .segs = &ok, .n_segs = 1}, "token id -1");
    expect_refused(&f, (oz_call){.ids = f.ids, .n_tok = 4, .segs = &gap, .n_segs = 1}, "begins at row 1");
    expect_refused(&f, (oz_call){.ids = f.ids, .n_tok = 4, .segs = &far, .n_segs = 1}, "the model takes 512");
    expect_refused(&f, (oz_call){.ids = f.ids, .n_tok = 4, .segs = &block, .n_segs = 1}, "block 16");
    expect_refused(&f, (oz_call){.ids = f.ids, .n_tok = 4, .segs = &ok, .n_segs = 1, .layer_begin = 2}, "needs a residual");
    expect_refused(&f, (oz_call){.ids = f.ids, .n_tok = 4, .segs = &ok, .n_segs = 1, .layer_end = 4}, "layers [0, 4): loaded are [0, 3)");
    close_fixture(&f);
}

#define TINY "{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define JAMBA "{\"model_type\":\"jamba\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define MOE "{\"model_type\":\"qwen3_moe\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define DEEPSEEK "{\"model_type\":\"deepseek\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"n_routed_experts\":4"
static void test_configs(void **s) {
    (void)s;
    static const struct { const char *json, *words; } bad[] = {
        {"{}", "model_type"},
        {"{\"model_type\":\"gpt9\"}", "gpt9"},
        {"{\"model_type\":\"llama\",\"vocab_size\":0}", "vocab_size"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8}", "hidden_size: missing"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":3}", "num_attention_heads"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":3}", "num_key_value_heads"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"hidden_act\":\"relu\"}", "relu"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"rope_scaling\":{\"type\":\"yarn\"}}", "yarn"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"rope_scaling\":{\"type\":\"linear\"}}", "factor"},
        {TINY ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", "config.json.rope_scaling.rope_type: \"dynamic\""},
        {TINY ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"warp\":3}}", "config.json.rope_parameters.warp"},
        {TINY ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":3}}}", "config.json.rope_parameters: differs by kind of layer"},
        {TINY ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[1]}}", "config.json.rope_scaling.long_factor: must be a list of 2 numbers, found one of 1"},
        {"{\"model_type\":\"gemma3\"}", "config.json.text_config: must be an object, found nothing"},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_activation\":\"relu\"}}", "text_config: config.json.hidden_activation"},
        {TINY ",\"partial_rotary_factor\":0.5}", "config.json.partial_rotary_factor"},
        {TINY ",\"attn_logit_softcapping\":50}", "config.json.attn_logit_softcapping"},
        {TINY ",\"residual_multiplier\":0.2}", "config.json.residual_multiplier"},
        {TINY ",\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"sliding_window\":4}", "config.json.layer_types[1]: sliding_attention is not run here"},
        {TINY ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "config.json.layer_types[1]: sliding_attention, but there is no sliding_window"},
        {TINY ",\"layer_types\":[\"full_attention\",\"linear_attention\"]}", "config.json.layer_types[1]: must be"},
        {TINY ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":50},\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", "config.json.rope_scaling.type: \"linear\" contradicts config.json.rope_parameters"},
        {TINY ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", "config.json.rope_scaling.factor: 4 contradicts config.json.rope_parameters, which says 2"},
        {JAMBA ",\"hidden_act\":\"gelu_new\"}", "config.json.hidden_act: \"gelu_new\" is not run here with model_type \"jamba\""},
        {JAMBA ",\"sliding_window\":8}", "config.json.sliding_window: 8 is not run here with model_type \"jamba\""},
        {MOE ",\"num_experts\":4,\"num_experts_per_tok\":2,\"use_sliding_window\":true,\"sliding_window\":4,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "config.json.layer_types[0]: full_attention is not run here"},
        {MOE ",\"num_experts\":0}", "config.json.num_experts: must be"},
        {MOE ",\"num_experts\":4,\"num_experts_per_tok\":5}", "config.json.num_experts_per_tok: must be"},
        {MOE ",\"num_experts\":4}", "config.json.num_experts_per_tok: missing"},
        {MOE ",\"mlp_only_layers\":[2]}", "config.json.mlp_only_layers[0]: must be a layer 0..1, found 2"},
        {MOE ",\"decoder_sparse_step\":0}", "config.json.decoder_sparse_step: must be"},
        {DEEPSEEK ",\"num_experts_per_tok\":2,\"scoring_func\":\"sigmoid\"}", "config.json.scoring_func: \"sigmoid\" is not run here"},
        {DEEPSEEK "}", "config.json.num_experts_per_tok: missing"},
        {TINY ",\"layer_types\":[\"full_attention\"]}", "config.json.layer_types: must be a list of 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_err e = {0};
        oz_arch_list l;
        json_t *c = json_loads(bad[i].json, 0, NULL);
        assert_non_null(c);
        assert_true(oz_arch_list_new(&l, c, NULL, &e) != OZ_OK);
        if (!strstr(e.msg, bad[i].words)) fail_msg("expected \"%s\", found \"%s\"", bad[i].words, e.msg);
        json_decref(c);
    }
}

/* Both spellings of a config give the same list; transformers 5 nests rope_theta in rope_parameters and says dtype. */
static void test_config_spellings(void **s) {
    (void)s;
    json_t *c = json_pack("{s:s s:i s:i s:i s:i s:i s:b s:{s:s s:f} s:s}", "model_type", "llama", "vocab_size", 8, "hidden_size", 16, "intermediate_size", 8, "num_hidden_layers", 2,
                          "num_attention_heads", 4, "tie_word_embeddings", 1, "rope_parameters", "rope_type", "default", "rope_theta", 5e5, "dtype", "float16");
    oz_err e = {0};
    oz_arch_list l;
    check(oz_arch_list_new(&l, c, NULL, &e), &e);
    assert_int_equal(l.n, 2 + 2 * 9);
    assert_string_equal(l.items[2].name, "model.layers.0.input_layernorm.weight");
    assert_int_equal(oz_arch_dtype(c), OZ_DTYPE_F16);
    oz_arch_list_deinit(&l);
    json_decref(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),      cmocka_unit_test(test_chunks_are_bit_equal), cmocka_unit_test(test_batch_is_bit_equal), cmocka_unit_test(test_decode_is_prefill), cmocka_unit_test(test_kv_sizes), cmocka_unit_test(test_slots), cmocka_unit_test(test_layer_range),          cmocka_unit_test(test_one_layer_alone), cmocka_unit_test(test_taps_of_experts),
                                       cmocka_unit_test(test_sinks),       cmocka_unit_test(test_bad_calls),            cmocka_unit_test(test_configs),            cmocka_unit_test(test_config_spellings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
