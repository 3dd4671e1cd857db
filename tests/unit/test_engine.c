/* Sequences through the engine, and the sampler's filters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/engine.h"

static void check(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

enum { V = 8, DRAWS = 20000 };

/* Shares of ids over many draws. */
static void shares(double *out, const float *logits, const oz_sampling *p) {
    oz_err e = {0};
    oz_sampler *s;
    check(oz_sampler_new(&s, V, &e), &e);
    oz_rng rng;
    oz_rng_init(&rng, p->seed);
    memset(out, 0, V * sizeof *out);
    for (int i = 0; i < DRAWS; i++) out[oz_sampler_draw(s, &rng, p, logits)] += 1.0 / DRAWS;
    oz_sampler_free(&s);
}

/* Logits whose softmax is 0.4, 0.3, 0.15, 0.1, 0.05, and nothing. */
static const float logits5[V] = {-1e9f, -0.9162907f, -1.2039728f, -1e9f, -1.8971200f, -2.3025851f, -2.9957323f, -1e9f};

static void expect_shares(const oz_sampling *p, const double want[V]) {
    double got[V];
    shares(got, logits5, p);
    for (int i = 0; i < V; i++)
        if (fabs(got[i] - want[i]) > 0.015) fail_msg("id %d: share %g, expected %g", i, got[i], want[i]);
}

static void test_sampler(void **s) {
    (void)s;
    expect_shares(&(oz_sampling){.temperature = 1, .top_p = 1, .seed = 1}, (double[V]){0, .4, .3, 0, .15, .1, .05, 0});
    expect_shares(&(oz_sampling){.temperature = 1, .top_p = 1, .top_k = 2, .seed = 2}, (double[V]){0, .4 / .7, .3 / .7});
    expect_shares(&(oz_sampling){.temperature = 1, .top_p = 0.8, .seed = 3}, (double[V]){0, .4 / .85, .3 / .85, 0, .15 / .85});
    expect_shares(&(oz_sampling){.temperature = 1, .top_p = 1, .min_p = 0.3, .seed = 4}, (double[V]){0, .4 / .85, .3 / .85, 0, .15 / .85});
    expect_shares(&(oz_sampling){.temperature = 1, .top_p = 0.5, .top_k = 4, .seed = 5}, (double[V]){0, .4 / .7, .3 / .7});
    expect_shares(&(oz_sampling){.temperature = 0.5, .top_p = 1, .top_k = 2, .seed = 6}, (double[V]){0, .16 / .25, .09 / .25});
    expect_shares(&(oz_sampling){.temperature = 1, .top_p = 0.01, .seed = 7}, (double[V]){0, 1});
}

static void test_greedy_ties_go_to_the_lowest_id(void **s) {
    (void)s;
    const float tie[V] = {1, 3, 2, 3, 3, 0, 0, 0};
    double got[V];
    shares(got, tie, &(oz_sampling){.temperature = 0, .top_p = 1});
    assert_true(got[1] > 0.999);
    shares(got, tie, &(oz_sampling){.temperature = 1, .top_k = 1, .top_p = 1});
    assert_true(got[1] > 0.999);
}

/* ---- engine ---- */

typedef struct rig { oz_ckpt *ckpt, *golden; oz_dev *dev; oz_model *model; const int32_t *ids; int64_t n; const int32_t *greedy; } rig;

static void rig_of(rig *r, const char *name, int64_t max_tok, bool deterministic) {
    oz_err e = {0};
    char path[128], golden[160];
    snprintf(path, sizeof path, "tests/golden/models/%s", name), snprintf(golden, sizeof golden, "%s/golden", path);
    check(oz_ckpt_open(&r->ckpt, path, &e), &e);
    check(oz_ckpt_open(&r->golden, golden, &e), &e);
    check(oz_dev_open(&r->dev, &(oz_dev_cfg){"cpu", 2, "auto", deterministic}, &e), &e);
    check(oz_model_open(&r->model, r->dev, r->ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = max_tok}, &e), &e);
    r->ids = oz_ckpt_find(r->golden, "input_ids")->data;
    r->n = oz_ckpt_find(r->golden, "input_ids")->dims[0];
    r->greedy = oz_ckpt_find(r->golden, "greedy_ids")->data;
}

static void rig_open(rig *r, int64_t max_tok) { rig_of(r, "llama", max_tok, false); }

static void rig_close(rig *r) {
    oz_model_close(&r->model);
    oz_dev_close(&r->dev);
    oz_ckpt_close(&r->golden);
    oz_ckpt_close(&r->ckpt);
}

enum { MAX_SEQS = 17 };
typedef struct got { int32_t ids[MAX_SEQS][64]; int n[MAX_SEQS]; oz_finish finish[MAX_SEQS]; } got;

static void keep(void *arg, int64_t id, int32_t token, oz_finish finish) {
    got *g = arg;
    g->ids[id][g->n[id]++] = token;
    g->finish[id] = finish;
}

static void run_all(oz_engine *e, got *g) {
    oz_err err = {0};
    for (int64_t active = 1; active > 0;) check(oz_engine_step(&active, e, keep, g, &err), &err);
}

/* The golden greedy continuation, alone and among five others of other lengths that arrive with it, in small calls. */
static void test_greedy_alone_and_in_company(void **s) {
    (void)s;
    for (int company = 0; company <= 5; company += 5) {
        rig r;
        rig_open(&r, company ? 16 : 128);
        oz_err err = {0};
        oz_engine *e;
        check(oz_engine_new(&e, r.model, &(oz_engine_cfg){8, 1024}, &err), &err);
        got g = {0};
        int64_t id;
        for (int i = 0; i < company; i++)
            check(oz_engine_add(&id, e, &(oz_request){.prompt = r.ids + i, .n_prompt = 5 + 9 * i, .max_new_tok = 3 + 7 * i, .sampling = {.temperature = i % 2, .top_p = 0.9, .seed = 5}}, &err), &err);
        check(oz_engine_add(&id, e, &(oz_request){.prompt = r.ids, .n_prompt = r.n, .max_new_tok = 32}, &err), &err);
        run_all(e, &g);
        assert_int_equal(g.n[id], 32);
        assert_int_equal(g.finish[id], OZ_FINISH_LENGTH);
        assert_memory_equal(g.ids[id], r.greedy, 32 * sizeof(int32_t));
        for (int i = 0; i < company; i++) assert_int_equal(g.n[i], 3 + 7 * i);
        oz_engine_free(&e);
        rig_close(&r);
    }
}

/* Mixtures of experts, latents and scans, deterministic: a request among 16 others, that arrive with it and end before or after it, in calls that cut its prompt
 * elsewhere, gives the ids that it gives alone: those of transformers. */
static void test_one_among_sixteen(void **s) {
    (void)s;
    static const char *const names[] = {"mixtral", "qwen3_moe", "qwen3_moe-fused", "deepseek", "deepseek_v2", "deepseek_v2-grouped", "deepseek_v3", "jamba"};
    enum { OTHERS = MAX_SEQS - 1, NEW = 16 };
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        int32_t alone[NEW];
        for (int company = 0; company <= OTHERS; company += OTHERS) {
            rig r;
            rig_of(&r, names[m], company ? 23 : 128, true);
            oz_err err = {0};
            oz_engine *e;
            check(oz_engine_new(&e, r.model, &(oz_engine_cfg){MAX_SEQS, MAX_SEQS * 64}, &err), &err);
            got g = {0};
            int64_t id = 0, other;
            for (int i = 0; i < company; i++) {
                if (i == 5) check(oz_engine_add(&id, e, &(oz_request){.prompt = r.ids, .n_prompt = r.n, .max_new_tok = NEW}, &err), &err);
                check(oz_engine_add(&other, e, &(oz_request){.prompt = r.ids + i, .n_prompt = 1 + (5 * i) % (r.n - i), .max_new_tok = 1 + (7 * i) % 30, .sampling = {.temperature = i % 2, .top_p = 1, .seed = (uint64_t)i}}, &err), &err);
            }
            if (!company) check(oz_engine_add(&id, e, &(oz_request){.prompt = r.ids, .n_prompt = r.n, .max_new_tok = NEW}, &err), &err);
            run_all(e, &g);
            if (!company) memcpy(alone, g.ids[id], sizeof alone);
            if (memcmp(g.ids[id], alone, sizeof alone) || memcmp(alone, r.greedy, sizeof alone)) fail_msg("%s: a request among %d others gives other ids", names[m], company);
            oz_engine_free(&e);
            rig_close(&r);
        }
    }
}

static void test_stop_ids_blocks_and_limits(void **s) {
    (void)s;
    rig r;
    rig_open(&r, 128);
    oz_err err = {0};
    oz_engine *e;
    check(oz_engine_new(&e, r.model, &(oz_engine_cfg){1, 128}, &err), &err);
    got g = {0};
    int64_t id;
    const oz_request whole = {.prompt = r.ids, .n_prompt = r.n, .max_new_tok = 32, .stop_ids = &r.greedy[3], .n_stop_ids = 1};
    check(oz_engine_add(&id, e, &whole, &err), &err);
    run_all(e, &g);
    assert_int_equal(g.n[0], 4); /* the stop id itself is handed out */
    assert_int_equal(g.finish[0], OZ_FINISH_STOP);
    for (int i = 0; i < 3; i++) { /* blocks came back: more than once the room */
        memset(&g, 0, sizeof g);
        check(oz_engine_add(&id, e, &whole, &err), &err);
        oz_engine_cancel(e, id);
    }
    const struct { oz_request r; const char *words; } bad[] = {
        {{.prompt = r.ids, .n_prompt = 0, .max_new_tok = 1}, "empty prompt"},
        {{.prompt = r.ids, .n_prompt = 5, .max_new_tok = 0}, "at least 1"},
        {{.prompt = r.ids, .n_prompt = 80, .max_new_tok = 433}, "the model takes 512"},
        {{.prompt = r.ids, .n_prompt = 80, .max_new_tok = 49}, "KV room"},
        {{.prompt = (int32_t[]){320}, .n_prompt = 1, .max_new_tok = 1}, "token id 320"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_err b = {0};
        assert_int_equal(oz_engine_add(&id, e, &bad[i].r, &b), OZ_E_ARG);
        if (!strstr(b.msg, bad[i].words)) fail_msg("expected \"%s\", found \"%s\"", bad[i].words, b.msg);
    }
    oz_engine_free(&e);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sampler), cmocka_unit_test(test_greedy_ties_go_to_the_lowest_id), cmocka_unit_test(test_greedy_alone_and_in_company),
                                       cmocka_unit_test(test_one_among_sixteen), cmocka_unit_test(test_stop_ids_blocks_and_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
