/* The choice of scales and of clips, on one small module: what they are for gets better by it, and the same from anywhere. */
#include <math.h>
#include "files.h"
#include "base/clock.h"
#include "base/mem.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { ROWS = 70, COLS = 96, TOKENS = 200 };

typedef struct setup { float *w, *x; oz_arch_tensor tensor; oz_tensor stored; oz_quantize_item item; oz_sample sample; oz_pool *pool; } setup;

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

/* Inputs of which some columns are far larger than others, in some tokens most of all. */
static void open_setup(setup *s, const char *preset, int64_t group_size) {
    oz_err err = {0};
    oz_rng rng;
    oz_rng_init(&rng, 11);
    *s = (setup){.w = malloc(sizeof(float) * ROWS * COLS), .x = malloc(sizeof(float) * TOKENS * COLS), .pool = oz_pool_new(3)};
    for (int i = 0; i < ROWS * COLS; i++) s->w[i] = (float)(oz_rng_normal(&rng) * (1 + 3 * (oz_rng_uniform(&rng) < 0.02)) * 0.05 * exp(sin(2.0 * (i % COLS))));
    for (int t = 0; t < TOKENS; t++) {
        const double size = exp(oz_rng_normal(&rng));
        for (int c = 0; c < COLS; c++) s->x[t * COLS + c] = (float)(size * oz_rng_normal(&rng) * (c % 17 == 3 ? 30 : 1) * exp(sin(3.0 * c)));
    }
    s->tensor = (oz_arch_tensor){.name = "m.weight", .module = "m", .class_name = "Linear", .role = OZ_ROLE_FFN_DOWN, .expert = -1, .rows = ROWS, .cols = COLS};
    s->stored = (oz_tensor){.name = "m.weight"};
    s->item = (oz_quantize_item){.arch = &s->tensor, .tensor = &s->stored, .quantized = true, .scheme = oz_preset_find(preset)->scheme};
    if (group_size) s->item.scheme.group_size = group_size;
    s->item.weight = (oz_weight){.codec = OZ_CODEC_F32, .rows = ROWS, .cols = COLS, .codes = s->w, .row_bytes = COLS * 4, .group_size = COLS};
    must(oz_sample_init(&s->sample, COLS, TOKENS, NULL, "x", &err), &err);
    oz_sample_add(&s->sample, s->x, COLS, TOKENS);
    assert_int_equal(oz_blas_init(1, NULL), OZ_OK);
}

static void close_setup(setup *s) {
    oz_fold_undo(&s->item);
    oz_sample_deinit(&s->sample);
    oz_pool_free(&s->pool);
    free(s->w);
    free(s->x);
}

/* ---- clips ---- */

/* Writes the module, reads it back, and gives the squared error of its outputs. clip NULL: to nearest. */
static double written(setup *s, oz_clip_result *clip, const char *name) {
    oz_err err = {0};
    oz_writer *w;
    oz_stream out;
    oz_ckpt *c;
    oz_weight q;
    oz_part parts[OZ_MAX_PARTS];
    const oz_module m = {"m", "Linear", ROWS, COLS, false};
    oz_layout *l = oz_layout_new(0);
    const int n = oz_scheme_parts(parts, &s->item.scheme, ROWS, COLS, OZ_DTYPE_BF16);
    for (int i = 0; i < n; i++) {
        char *part = oz_asprintf("m%s", parts[i].suffix);
        must(oz_layout_add(l, part, parts[i].dtype, parts[i].n_dims, parts[i].dims, &err), &err);
        oz_free(part);
    }
    must(oz_layout_fix(l, &err), &err);
    mkdir(test_path(name), 0777);
    json_t *config = json_pack("{s:s}", "model_type", "llama");
    must(oz_config_write(config, test_path(name), &err), &err);
    json_decref(config);
    must(oz_writer_open(&w, l, test_path(name), &err), &err);
    oz_stream_init(&out, w, s->pool, "test", 1);
    if (clip) must(oz_clip_write(clip, &out, &(oz_reader){&s->item, &s->sample}, OZ_DTYPE_BF16, NULL, &err), &err);
    else must(oz_stream_rtn(&out, &m, &s->item.scheme, OZ_DTYPE_BF16, &(oz_source){oz_item_fill, &s->item, 0, 0}, &err), &err);
    oz_stream_deinit(&out);
    must(oz_writer_finish(w, &err), &err);
    oz_writer_close(&w);
    oz_layout_free(&l);
    must(oz_ckpt_open(&c, test_path(name), &err), &err);
    must(oz_scheme_bind(&q, c, &m, &s->item.scheme, &err), &err);
    double sum = 0;
    for (int64_t r = 0; r < ROWS; r++) {
        float got[COLS], want[COLS];
        oz_weight_row(got, &q, r, 0, COLS);
        oz_item_fill(&s->item, want, r * COLS, COLS);
        for (int t = 0; t < TOKENS; t++) {
            double e = 0;
            for (int i = 0; i < COLS; i++) e += ((double)got[i] - (double)want[i]) * (double)s->x[t * COLS + i] / (double)(s->item.cols_by ? s->item.cols_by[i] : 1);
            sum += e * e;
        }
    }
    oz_ckpt_close(&c);
    return sum;
}

static void test_clips(void **state) {
    static const struct { const char *preset; int64_t group; double share; } cases[] = {{"W4A16", 32, 0.9}, {"W4A16_ASYM", 32, 0.9}, {"W4A16_ASYM", 16, 0.98}, {"W8A16", 0, 1}, {"FP8_DYNAMIC", 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup s;
        open_setup(&s, cases[i].preset, cases[i].group);
        for (int folded = 0; folded < 2; folded++) {
            if (folded) s.item.cols_by = oz_alloc_array(COLS, sizeof(float));
            for (int c = 0; folded && c < COLS; c++) s.item.cols_by[c] = expf(sinf((float)c));
            for (int k = 0; folded && k < TOKENS * COLS; k++) s.sample.rows[k] = s.x[k] / s.item.cols_by[k % COLS];
            oz_clip_result said;
            const double rtn = written(&s, NULL, folded ? "rf" : "r"), clipped = written(&s, &said, folded ? "cf" : "c");
            if (!(clipped < cases[i].share * rtn)) fail_msg("%s: error %g, of rounding to nearest %g", cases[i].preset, clipped, rtn);
            if (!(0 < said.after && said.after < said.before && said.before < 1)) fail_msg("%s: said to be %g, and %g before", cases[i].preset, said.after, said.before);
            if (!cases[i].group && !(fabs(said.after / said.before / (clipped / rtn) - 1) < 1e-3)) fail_msg("%s: %g of %g, found %g of %g", cases[i].preset, said.after, said.before, clipped, rtn); /* one group: exact */
        }
        close_setup(&s);
        test_dir_remove(NULL);
        test_dir_make(NULL);
    }
}

/* ---- balance ---- */

static void test_one_place(void **state) {
    setup s;
    open_setup(&s, "W8A8", 0);
    for (int rounds = 0; rounds < 2; rounds++) { /* inputs as they are, and rounded */
        int32_t scale_of[COLS];
        double x_squares[COLS] = {0}, w_squares[COLS] = {0};
        float a[COLS], b[COLS], double_[COLS];
        for (int c = 0; c < COLS; c++) scale_of[c] = c, a[c] = 1, b[c] = expf(2 * sinf(5.0f * (float)c));
        for (int i = 0; i < ROWS * COLS; i++) w_squares[i % COLS] += (double)s.w[i] * (double)s.w[i];
        for (int i = 0; i < TOKENS * COLS; i++) x_squares[i % COLS] += (double)s.x[i] * (double)s.x[i];
        const oz_balance of = {COLS, TOKENS, ROWS, COLS, COLS, scale_of, s.x, s.w, x_squares, w_squares, rounds ? 1 / 127.0 : 0, 1 / 127.5, 3};
        oz_balance_run(a, &of, 1, 400, s.pool);
        oz_balance_run(b, &of, 1, 400, s.pool);
        for (int c = 1; c < COLS; c++)
            if (!(fabsf(a[c] / a[0] / (b[c] / b[0]) - 1) < 0.01f)) fail_msg("scale %d: %g and %g", c, (double)(a[c] / a[0]), (double)(b[c] / b[0]));
        /* Two readers that are the same one pull as one does. */
        for (int c = 0; c < COLS; c++) double_[c] = 1;
        oz_balance_run(double_, (const oz_balance[]){of, of}, 2, 400, s.pool);
        for (int c = 0; c < COLS; c++) assert_true(fabsf(double_[c] / a[c] - 1) < 1e-3f);
    }
    close_setup(&s);
}

/* ---- all of it ---- */

static void test_choice(void **state) {
    static const struct { const char *preset; int64_t group; const char *method; double share; } cases[] = {
        {"W8A8", 0, "smoothquant", 0.2}, {"W4A16_ASYM", 32, "awq", 0.8}, {"W4A8", 32, "awq", 0.8}, {"W8A16", 0, "awq", 0.7}, {"FP8", 0, "smoothquant", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup s;
        oz_err err = {0};
        oz_method method;
        json_t *entry[2];
        float scales[COLS], given[COLS];
        open_setup(&s, cases[i].preset, cases[i].group);
        must(oz_method_parse(&method, cases[i].method, &err), &err);
        oz_quantize_item items[2] = {s.item, s.item};
        const oz_fold fold = {.from = 0, .to = &(size_t){1}, .n_to = 1, .n = COLS, .run = COLS, .row_step = COLS, .share = 1};
        const oz_quantize_fold f = {&fold, false};
        oz_quantize q = {.items = items, .transform = method.transform, .model_dtype = OZ_DTYPE_BF16};
        must(oz_smooth_choose(scales, &entry[0], &q, &f, &(oz_reader){&items[1], &s.sample}, 1, s.pool, NULL, &err), &err);
        q.strength = 0.5;
        must(oz_smooth_choose(given, &entry[1], &q, &f, &(oz_reader){&items[1], &s.sample}, 1, s.pool, NULL, &err), &err);
        const double before = json_real_value(json_object_get(entry[0], "before")), after = json_real_value(json_object_get(entry[0], "after"));
        if (!(after <= cases[i].share * before)) fail_msg("%s %s: %g, %g without", cases[i].preset, cases[i].method, after, before);
        assert_true(after <= json_real_value(json_object_get(entry[1], "after")));
        assert_true(json_real_value(json_object_get(entry[1], "strength")) == 0.5 && json_is_false(json_object_get(entry[1], "balanced")));
        json_decref(entry[0]);
        json_decref(entry[1]);
        close_setup(&s);
    }
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {UNIT(test_clips), UNIT(test_one_place), UNIT(test_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
