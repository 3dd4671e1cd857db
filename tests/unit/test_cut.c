/* A layer that is run from cut to cut, each part by a model of its own, computes what it computes in one go, to the bit: attention over keys and over latents, scans, experts with and without a shared one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/clock.h"
#include "model/model.h"

enum { TOKENS = 21 };
static const int32_t blocks[2] = {1, 0};

static void check(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

typedef struct layer { oz_dev *dev; oz_ckpt *ckpt; unsigned taps; int64_t index; int32_t ids[TOKENS]; float *in; } layer;
typedef struct taps { int64_t n; double sum; } taps;

static void on_tap(void *arg, const oz_tap *t) {
    taps *p = arg;
    p->n++;
    for (int64_t i = 0; i < t->n_tok * t->width; i++) p->sum += t->rows[i] * (double)(i % 7 + p->n);
}

/* From cut to cut, 0: the layer's ends; a model that has seen nothing else. */
static void run(const layer *l, int from, int to, const void *in, void *out, taps *seen, void (*look)(const oz_model *m, void *arg), void *arg) {
    oz_err e = {0};
    oz_model *m;
    oz_state *s;
    check(oz_model_open(&m, l->dev, l->ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = TOKENS + 3, .taps = l->taps, .layer_begin = l->index, .layer_end = l->index + 1}, &e), &e);
    if (look) look(m, arg);
    check(oz_state_new(&s, m, 2, 1, &e), &e);
    const oz_seg seg = {0, TOKENS, 0, blocks};
    const oz_call c = {.ids = from || l->index ? NULL : l->ids, .n_tok = TOKENS, .segs = &seg, .n_segs = 1, .layer_begin = l->index, .layer_end = l->index + 1, .cut_begin = from, .cut_end = to,
                       .residual_in = l->index ? l->in : NULL, .live_in = in, .residual_out = to ? NULL : out, .live_out = to ? out : NULL, .tap = on_tap, .tap_arg = seen};
    check(oz_model_run(m, s, &c, NULL, &e), &e);
    oz_state_free(&s);
    oz_model_close(&m);
}

typedef struct shape { int n_cuts; size_t n_taps, bytes, in_cuts; bool first_is_start; int64_t hidden_size; } shape;
static void look(const oz_model *m, void *arg) {
    shape *s = arg;
    *s = (shape){.n_cuts = oz_model_cut_count(m), .n_taps = oz_model_tap_count(m), .first_is_start = oz_model_cut_at(m, 1).is_start, .hidden_size = oz_model_get(m)->hidden_size};
    for (int i = 1; i <= s->n_cuts; i++) {
        const oz_cut cut = oz_model_cut_at(m, i);
        const size_t n_bytes = oz_model_live_bytes(m, i, TOKENS);
        assert_true(cut.tap0 == s->in_cuts && cut.n_taps > 0 && (i == 1) == cut.is_start);
        s->in_cuts += cut.n_taps;
        s->bytes = n_bytes > s->bytes ? n_bytes : s->bytes;
    }
}

static void layer_check(layer *l, int n_cuts) {
    shape s;
    taps whole = {0}, parts = {0};
    float *out = malloc(1 << 20);
    run(l, 0, 0, NULL, out, &whole, look, &s);
    assert_int_equal(s.n_cuts, n_cuts);
    assert_true(s.in_cuts == s.n_taps && whole.n == (int64_t)s.n_taps && s.first_is_start);
    char *live[2] = {malloc(s.bytes), malloc(s.bytes)};
    float *again = malloc(1 << 20);
    for (int cut = 0; cut <= s.n_cuts; cut++) run(l, cut, cut < s.n_cuts ? cut + 1 : 0, live[cut % 2], cut < s.n_cuts ? (void *)live[1 - cut % 2] : again, &parts, NULL, NULL);
    assert_memory_equal(out, again, (size_t)(TOKENS * s.hidden_size) * sizeof *out);
    assert_true(parts.n == whole.n && parts.sum == whole.sum);
    free(live[0]);
    free(live[1]);
    free(again);
    free(out);
}

static void test_cuts(void **state) {
    (void)state;
    static const struct { const char *name; int layer, n_cuts; unsigned taps; } cases[] = {
        {"llama", 0, 4, 0}, {"llama", 1, 4, 0}, {"gemma2", 1, 4, 0}, {"phi3", 1, 4, 0}, {"mixtral", 1, 5, 0} /* the router has a tap of its own */, {"qwen3_moe", 0, 5, 0},
        {"deepseek_v2", 0, 6, 0}, {"deepseek_v2", 1, 9, 0}, {"deepseek_v3", 1, 10, 0}, {"jamba", 0, 6, 0}, {"jamba", 1, 7, 0},
        {"llama", 0, 5, OZ_TAP_KV}, {"gemma2", 1, 5, OZ_TAP_KV}, {"phi3", 1, 5, OZ_TAP_KV}, {"deepseek_v3", 1, 10, OZ_TAP_KV} /* latents have no such tap */,
    };
    oz_err e = {0};
    layer l = {0};
    oz_rng rng;
    oz_rng_init(&rng, 5);
    l.in = malloc(sizeof(float) * TOKENS * 1024);
    for (int i = 0; i < TOKENS * 1024; i++) l.in[i] = (float)oz_rng_normal(&rng);
    for (int i = 0; i < TOKENS; i++) l.ids[i] = 5 + 3 * i;
    check(oz_dev_open(&l.dev, &(oz_dev_cfg){"cpu", 2, "auto", true}, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/models/%s", cases[i].name);
        check(oz_ckpt_open(&l.ckpt, path, &e), &e);
        l.index = cases[i].layer, l.taps = OZ_TAP_LINEAR | cases[i].taps;
        print_message("%s, layer %d\n", cases[i].name, cases[i].layer);
        layer_check(&l, cases[i].n_cuts);
        oz_ckpt_close(&l.ckpt);
    }
    oz_dev_close(&l.dev);
    free(l.in);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
