/* Definitions of measuring: quantiles, the detokenizer, KL over windows against a direct computation, and conventions' bookkeeping. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "measure/internal.h"

static void check(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

/* numpy.quantile([0.5, 4, 1, 3, 2], q) */
static void test_quantiles(void **s) {
    (void)s;
    double x[] = {0.5, 4, 1, 3, 2};
    oz_quantiles q;
    oz_quantiles_fill(&q, x, 5);
    assert_true(q.max == 4 && q.median == 2 && q.min == 0.5 && q.p75 == 3 && q.p25 == 1);
    assert_true(fabs(q.p90 - 3.6) < 1e-12 && fabs(q.p99 - 3.96) < 1e-12 && fabs(q.p5 - 0.6) < 1e-12);
    double one[] = {7};
    oz_quantiles_fill(&q, one, 1);
    assert_true(q.max == 7 && q.p01 == 7);
}

static void test_wikitext(void **s) {
    (void)s;
    static const char *const cases[][2] = {
        {" = Title = \n", " = Title =\n"},
        {"\n = = Part = = \n", "\n== Part ==\n"},
        {"the twenty @-@ one , 1 @,@ 000 and 2 @.@ 5 units ; so : it", "the twenty-one, 1,000 and 2.5 units; so: it"},
        {"a ( b c ) [ d ] { e } \" quoted \" end", "a (b c) [d] {e} \"quoted\" end"},
        {"players ' goal and dog 's bone . Next ! Yes ? No", "players'goal and dog's bone. Next! Yes? No"},
        {"20 \xc2\xb0 C and N \n x", "20\xc2\xb0""C and N\nx"},
        {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_buf b = {0};
        oz_wikitext_detokenize(&b, cases[i][0], strlen(cases[i][0]));
        assert_string_equal(b.data ? b.data : "", cases[i][1]);
        oz_buf_deinit(&b);
    }
}

typedef struct rig { oz_ckpt *ckpt[2], *golden; oz_dev *dev; oz_model *model[2]; const int32_t *ids; int64_t n; } rig;

/* Two models with one vocabulary: llama, and the same with norms that divide by more. */
static void rig_open(rig *r) {
    oz_err e = {0};
    check(oz_dev_open(&r->dev, &(oz_dev_cfg){"cpu", 2, "auto", false}, &e), &e);
    for (int i = 0; i < 2; i++) {
        check(oz_ckpt_open(&r->ckpt[i], "tests/golden/models/llama", &e), &e);
        if (i) json_object_set_new((json_t *)oz_ckpt_config(r->ckpt[i]), "rms_norm_eps", json_real(0.1));
        check(oz_model_open(&r->model[i], r->dev, r->ckpt[i], &(oz_model_cfg){.dtype = "f32", .max_tok = 20}, &e), &e);
    }
    check(oz_ckpt_open(&r->golden, "tests/golden/models/llama/golden", &e), &e);
    r->ids = oz_ckpt_find(r->golden, "input_ids")->data;
    r->n = oz_ckpt_find(r->golden, "input_ids")->dims[0];
}

static void rig_close(rig *r) {
    for (int i = 0; i < 2; i++) {
        oz_model_close(&r->model[i]);
        oz_ckpt_close(&r->ckpt[i]);
    }
    oz_ckpt_close(&r->golden);
    oz_dev_close(&r->dev);
}

/* Logits of ids[0..n) from empty state, in f64 log-probabilities. */
static double *log_probs(oz_model *m, const int32_t *ids, int64_t n) {
    const int64_t v = oz_model_get(m)->vocab_size;
    oz_err e = {0};
    oz_state *s;
    check(oz_state_new(&s, m, 8, 4, &e), &e);
    float *x = malloc((size_t)(n * v) * sizeof *x);
    double *lp = malloc((size_t)(n * v) * sizeof *lp);
    const int32_t blocks[] = {0, 1, 2, 3, 4, 5, 6, 7}, row = 0;
    for (int64_t i = 0; i < n; i++) {
        const oz_seg seg = {0, 1, i, blocks};
        const oz_call c = {.ids = ids + i, .n_tok = 1, .segs = &seg, .n_segs = 1, .rows = &row, .n_rows = 1};
        check(oz_model_run(m, s, &c, &(oz_sink){OZ_SINK_COPY, x + i * v, NULL}, &e), &e);
        double sum = 0;
        for (int64_t k = 0; k < v; k++) sum += exp((double)x[i * v + k]);
        for (int64_t k = 0; k < v; k++) lp[i * v + k] = x[i * v + k] - log(sum);
    }
    free(x);
    oz_state_free(&s);
    return lp;
}

/* Windows of 24 of the 80 ids: 3 of them, 23 positions each (11 with half), summed by hand. */
static void test_kl(void **st) {
    (void)st;
    rig r;
    rig_open(&r);
    enum { CTX = 24, WINDOWS = 3 };
    const int64_t v = oz_model_get(r.model[0])->vocab_size;
    for (int half = 0; half < 2; half++) {
        double kl = 0, nll_ref = 0, nll = 0, dp2 = 0, top = 0, worst = 0, of_class[2] = {0}, late = 0;
        int n = 0, n_class[2] = {0};
        uint8_t classes[80]; /* every third token is a digit */
        for (int i = 0; i < 80; i++) classes[i] = i % 3 ? OZ_TOKEN_WORD : OZ_TOKEN_DIGIT;
        for (int w = 0; w < WINDOWS; w++) {
            const int32_t *ids = r.ids + w * CTX;
            double *a = log_probs(r.model[0], ids, CTX), *b = log_probs(r.model[1], ids, CTX);
            for (int p = half ? CTX / 2 : 0; p < CTX - 1; p++, n++) {
                const double *x = a + p * v, *y = b + p * v;
                double d = 0;
                int ix = 0, iy = 0;
                for (int64_t k = 0; k < v; k++) {
                    d += exp(x[k]) * (x[k] - y[k]);
                    if (x[k] > x[ix]) ix = (int)k;
                    if (y[k] > y[iy]) iy = (int)k;
                }
                const double dp = exp(y[ids[p + 1]]) - exp(x[ids[p + 1]]);
                kl += d, top += ix == iy, dp2 += dp * dp, nll_ref -= x[ids[p + 1]], nll -= y[ids[p + 1]];
                if (d > worst) worst = d;
                const bool digit = (w * CTX + p + 1) % 3 == 0;
                of_class[digit] += d, n_class[digit]++;
                if (p >= 16) late += d / (CTX - 1 - 16) / WINDOWS;
            }
            free(a);
            free(b);
        }
        oz_err e = {0};
        oz_kl out;
        check(oz_kl_run(&out, r.model, 2, r.ids, r.n, &(oz_kl_cfg){.ctx = CTX, .half = half, .classes = classes}, &e), &e);
        for (int k = 0; k < 2; k++) {
            const oz_kl_part *part = &out.by_class[k ? OZ_TOKEN_DIGIT : OZ_TOKEN_WORD];
            assert_int_equal(part->positions, n_class[k]);
            assert_true(fabs(part->mean_kl - of_class[k] / n_class[k]) < 1e-9 * kl);
        }
        assert_int_equal(out.by_position[0].positions, half ? 0 : WINDOWS); /* 0; 12 .. 15 of 8 .. 15; 16 .. 22 of 16 .. 31 */
        assert_int_equal(out.by_position[4].positions, (half ? 4 : 8) * WINDOWS);
        assert_true(out.by_position[5].positions == 7 * WINDOWS && fabs(out.by_position[5].mean_kl - late) < 1e-9 * kl);
        assert_int_equal(out.positions, n);
        assert_int_equal(out.windows, WINDOWS);
        assert_true(fabs(out.mean_kl - kl / n) < 1e-9 * kl && fabs(out.kl.max - worst) < 1e-9 * worst);
        assert_true(fabs(out.ppl_ref - exp(nll_ref / n)) < 1e-9 * out.ppl_ref && fabs(out.ppl - exp(nll / n)) < 1e-9 * out.ppl);
        assert_true(fabs(out.rms_dp - sqrt(dp2 / n)) < 1e-9 && fabs(out.top1_agreement - top / n) < 1e-12);
    }
    rig_close(&r);
}

static void test_classes(void **st) {
    (void)st;
    static const struct { const char *text; oz_token_class c; } is[] = {
        {" the", OZ_TOKEN_WORD}, {"The", OZ_TOKEN_CONTINUATION}, {"ing", OZ_TOKEN_CONTINUATION}, {" don\u2019t", OZ_TOKEN_WORD}, {"\nNew", OZ_TOKEN_WORD}, {"'s", OZ_TOKEN_CONTINUATION},
        {" \u00fcber", OZ_TOKEN_WORD}, {"\u4e2d\u6587", OZ_TOKEN_CONTINUATION}, {"2024", OZ_TOKEN_DIGIT}, {" 3", OZ_TOKEN_DIGIT}, {"3.5", OZ_TOKEN_DIGIT}, {"\u0663", OZ_TOKEN_DIGIT},
        {".", OZ_TOKEN_PUNCTUATION}, {" (", OZ_TOKEN_PUNCTUATION}, {"\").\n", OZ_TOKEN_PUNCTUATION}, {" \u20ac", OZ_TOKEN_PUNCTUATION}, {"\n\n", OZ_TOKEN_NEWLINE}, {" \r\n", OZ_TOKEN_NEWLINE},
        {" ", OZ_TOKEN_OTHER}, {"\t", OZ_TOKEN_OTHER}, {"", OZ_TOKEN_OTHER}, {"\xe4\xb8", OZ_TOKEN_OTHER}, {"\ufffd", OZ_TOKEN_OTHER}, {"x2", OZ_TOKEN_OTHER}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        if (oz_token_class_of(is[i].text, strlen(is[i].text)) != is[i].c)
            fail_msg("\"%s\": expected %s, found %s", is[i].text, oz_token_class_name(is[i].c), oz_token_class_name(oz_token_class_of(is[i].text, strlen(is[i].text))));
}

/* Split windows (max_tok 20 < 24), limits, and texts too short. */
static void test_kl_limits(void **st) {
    (void)st;
    rig r;
    rig_open(&r);
    oz_err e = {0};
    oz_kl out;
    check(oz_kl_run(&out, r.model, 2, r.ids, r.n, &(oz_kl_cfg){.ctx = 500, .limit_tok = 30}, &e), &e); /* one window of 30 */
    assert_int_equal(out.positions, 29);
    assert_int_equal(oz_kl_run(&out, r.model, 2, r.ids, 1, &(oz_kl_cfg){.ctx = 24}, &e), OZ_E_ARG);
    assert_non_null(strstr(e.msg, "1 tokens"));
    rig_close(&r);
}

/* A row's steps add up to what the model says that a token costs, and to the row; attention meets 1 .. n keys. */
static void check_bench(const char *path, int64_t batch) {
    oz_err e = {0};
    oz_ckpt *ckpt;
    oz_dev *dev;
    oz_model *m;
    check(oz_dev_open(&dev, &(oz_dev_cfg){"cpu", 2, "ref", false}, &e), &e);
    check(oz_ckpt_open(&ckpt, path, &e), &e);
    check(oz_model_open(&m, dev, ckpt, &(oz_model_cfg){.dtype = "f32", .max_tok = 8}, &e), &e);
    const oz_model_info *f = oz_model_get(m);
    const oz_ceiling ceil = {.read_bytes_s = 2e9, .f32_flop_s = 1e9, .i8_op_s = 1e9};
    enum { N = 20 };
    for (int pre = 0; pre < 2; pre++) {
        oz_bench_row r;
        check(oz_bench_run(&r, m, &(oz_bench_cfg){N, pre ? 0 : N, pre ? 1 : batch, 2}, &ceil, &e), &e);
        double bytes = 0, flop = 0, us = 0, kv = 0, weights = 0, linear = 0;
        int n = 0;
        for (size_t i = 0; i < r.n_kernels; i++) {
            const oz_bench_kernel *k = &r.kernels[i];
            assert_true(k->us > 0 && k->n > 0);
            n += k->n, bytes += k->step.bytes, flop += k->step.flop, us += k->predicted_us;
            if (strcmp(k->step.op, "attention") == 0) kv += k->step.bytes;
            else weights += k->step.bytes, linear += k->step.flop;
            assert_true((strcmp(k->step.op, "linear") == 0 || strcmp(k->step.op, "grouped") == 0) == (k->step.modules[0] != 0));
        }
        assert_int_equal(n, oz_model_step_count(m));
        assert_true(r.other_us > 0 && fabs(bytes - r.bytes) < 1e-9 * bytes && fabs(flop - r.flop) < 1e-9 * flop);
        assert_true(fabs(r.predicted_tok_s - (double)(pre ? N : batch) * 1e6 / us) < 1e-9 * r.predicted_tok_s);
        const double rows = pre ? N : (double)batch;
        assert_true(fabs(linear - ((f->flop_tok - f->head_flop_tok) * rows + f->head_flop_tok * (pre ? 1 : rows))) < 1e-9 * linear);
        if (!pre && batch == 1) assert_true(fabs(weights - (double)f->stream_bytes) < 1e-9 * weights);
        if (!pre) assert_true(fabs(kv - (double)f->kv_bytes_tok * (N + 1) / 2 * rows) < 1e-9 * kv);
        else assert_true(fabs(kv - (double)f->kv_bytes_tok * (8 + 16 + 20)) < 1e-9 * kv); /* calls of 8 */
        oz_bench_row_deinit(&r);
    }
    oz_model_close(&m);
    oz_ckpt_close(&ckpt);
    oz_dev_close(&dev);
}

static void test_bench(void **st) {
    (void)st;
    check_bench("tests/golden/models/llama", 1);
    check_bench("tests/golden/models/llama", 3);
    check_bench("tests/golden/models/mixtral", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantiles), cmocka_unit_test(test_wikitext), cmocka_unit_test(test_kl), cmocka_unit_test(test_classes), cmocka_unit_test(test_kl_limits), cmocka_unit_test(test_bench)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
