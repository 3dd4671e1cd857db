/* GPTQ's arithmetic against a straightforward one in f64, its bound, and what threads may not change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/clock.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { ROWS = 70, COLS = 208, TOKENS = 600, DEAD = 17 }; /* none a multiple of a tile */

typedef struct setup { float *w, *x; oz_hessian h; oz_factor f; oz_pool *pool; oz_weight weight; } setup;

static void check(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

/* Inputs that depend on each other, of very different sizes, one of which is always zero. */
static void open_setup(setup *s, int threads, int64_t tokens) {
    oz_err e = {0};
    oz_rng rng;
    oz_rng_init(&rng, 7);
    *s = (setup){.w = malloc(sizeof(float) * ROWS * COLS), .x = malloc(sizeof(float) * TOKENS * COLS), .pool = oz_pool_new(threads)};
    for (int i = 0; i < ROWS * COLS; i++) s->w[i] = (float)oz_rng_normal(&rng) * 0.05f;
    for (int t = 0; t < TOKENS; t++) {
        const double common = oz_rng_normal(&rng) * (t % 60 == 7 ? 50 : 1); /* few are much larger than all others */
        for (int c = 0; c < COLS; c++) s->x[t * COLS + c] = c == DEAD ? 0 : (float)((common + 0.5 * oz_rng_normal(&rng)) * exp(2.0 * sin(c)));
    }
    s->weight = (oz_weight){.codec = OZ_CODEC_F32, .rows = ROWS, .cols = COLS, .codes = s->w, .row_bytes = COLS * 4, .group_size = COLS};
    assert_int_equal(oz_blas_init(1, NULL), OZ_OK);
    check(oz_hessian_init(&s->h, COLS, NULL, "h", &e), &e);
    for (int64_t t = 0; t < tokens; t += 550) oz_hessian_add(&s->h, s->pool, s->x + t * COLS, COLS, tokens - t < 550 ? tokens - t : 550);
    check(oz_hessian_close(&s->h, "h", &e), &e);
    check(oz_factor_init(&s->f, &s->h, 0.01, s->pool, "h", &e), &e);
}

static void close_setup(setup *s) {
    oz_factor_deinit(&s->f);
    oz_hessian_deinit(&s->h);
    oz_pool_free(&s->pool);
    free(s->w);
    free(s->x);
}

typedef struct result { uint8_t codes[ROWS * COLS]; uint16_t scales[ROWS * COLS]; int8_t zeros[ROWS * COLS]; oz_gptq_result r; } result;

static void quantize(result *out, const setup *s, oz_codec codec, int64_t group, bool asymmetric, int passes) {
    oz_err e = {0};
    memset(out, 0, sizeof *out);
    out->r = (oz_gptq_result){.codes = out->codes, .scales = out->scales, .zeros = out->zeros, .code_row_bytes = oz_codec_row_bytes(codec, COLS), .scale_row_bytes = 2 * (group ? COLS / group : 1)};
    const oz_gptq g = {&s->h, &s->f, &s->weight, {codec, group, OZ_DTYPE_BF16, asymmetric, 0, 0}, passes, NULL, 0};
    check(oz_gptq_run(&out->r, &g, s->pool, "w", &e), &e);
}

static oz_weight stored(const result *q, oz_codec codec, int64_t group) {
    return (oz_weight){.codec = codec, .rows = ROWS, .cols = COLS, .codes = q->codes, .row_bytes = q->r.code_row_bytes, .group_size = group ? group : COLS, .scale_dtype = OZ_DTYPE_BF16,
                       .scales = q->scales, .zeros = q->zeros};
}

/* ---- the reference: H in f64, its inverse by elimination, the upper factor of that by the textbook, one row at a time ---- */

static double at(const double *m, int i, int j) { return m[i * COLS + j]; }

static void invert(double *out, const double *m) {
    double *a = malloc(sizeof(double) * COLS * COLS);
    memcpy(a, m, sizeof(double) * COLS * COLS);
    for (int i = 0; i < COLS * COLS; i++) out[i] = i % (COLS + 1) == 0;
    for (int k = 0; k < COLS; k++) {
        const double p = at(a, k, k);
        for (int j = 0; j < COLS; j++) a[k * COLS + j] /= p, out[k * COLS + j] /= p;
        for (int i = 0; i < COLS; i++) {
            const double f = at(a, i, k);
            for (int j = 0; j < COLS && i != k; j++) a[i * COLS + j] -= f * at(a, k, j), out[i * COLS + j] -= f * at(out, k, j);
        }
    }
    free(a);
}

/* U upper with m = U^T U, in place. */
static void upper(double *m) {
    for (int i = 0; i < COLS; i++)
        for (int j = i; j < COLS; j++) {
            double v = at(m, i, j);
            for (int k = 0; k < i; k++) v -= at(m, k, i) * at(m, k, j);
            m[i * COLS + j] = j == i ? sqrt(v) : v / at(m, i, i);
        }
}

/* What a token counts: 1 / its size. */
static double token_weight(const setup *s, int t) {
    double square = 0;
    for (int c = 0; c < COLS; c++) square += (double)s->x[t * COLS + c] * s->x[t * COLS + c];
    return 1 / sqrt(square / COLS);
}

static void reference(double *q, const setup *s, int64_t group, const oz_weight *scales) {
    double *h = calloc(COLS * COLS, sizeof *h), *p = malloc(sizeof(double) * COLS * COLS), *u = malloc(sizeof(double) * COLS * COLS), mean = 0;
    int perm[COLS];
    for (int t = 0; t < TOKENS; t++) {
        const double weight = token_weight(s, t);
        for (int i = 0; i < COLS; i++)
            for (int j = 0; j < COLS; j++) h[i * COLS + j] += weight * s->x[t * COLS + i] * s->x[t * COLS + j];
    }
    for (int i = 0; i < COLS; i++) mean += at(h, i, i) / (COLS - 1), perm[i] = i;
    for (int i = 0; i < COLS; i++) /* by descending diagonal */
        for (int j = i + 1; j < COLS; j++)
            if (at(h, perm[j], perm[j]) > at(h, perm[i], perm[i])) perm[i] ^= perm[j], perm[j] ^= perm[i], perm[i] ^= perm[j];
    for (int i = 0; i < COLS; i++)
        for (int j = 0; j < COLS; j++) p[i * COLS + j] = at(h, perm[i], perm[j]) + (i == j ? 0.01 * mean + (perm[i] == DEAD ? mean : 0) : 0);
    invert(u, p);
    upper(u);
    for (int r = 0; r < ROWS; r++) {
        double w[COLS];
        for (int k = 0; k < COLS; k++) w[k] = s->w[r * COLS + perm[k]];
        for (int k = 0; k < COLS; k++) {
            const double scale = oz_f32_from_bf16(((const uint16_t *)scales->scales)[r * (COLS / group) + perm[k] / group]);
            const double zero = scales->zeros[r * (COLS / group) + perm[k] / group], value = (fmin(7, fmax(-8, nearbyint(w[k] / scale + zero))) - zero) * scale;
            q[r * COLS + perm[k]] = value;
            for (int j = k + 1; j < COLS; j++) w[j] -= (w[k] - value) / at(u, k, k) * at(u, k, j);
        }
    }
    free(h);
    free(p);
    free(u);
}

static double output_error(const setup *s, const float *e) {
    double sum = 0, all = 0;
    for (int t = 0; t < TOKENS; t++) {
        const double weight = token_weight(s, t);
        for (int r = 0; r < ROWS; r++) {
            double y = 0, z = 0;
            for (int c = 0; c < COLS; c++) y += (double)e[r * COLS + c] * s->x[t * COLS + c], z += (double)s->w[r * COLS + c] * s->x[t * COLS + c];
            sum += weight * y * y, all += weight * z * z;
        }
    }
    return sum / all;
}

static result got, other;

static void against_f64(bool asymmetric) {
    setup s;
    open_setup(&s, 2, TOKENS);
    for (int i = 0; asymmetric && i < ROWS * COLS; i++) s.w[i] += 0.03f;
    quantize(&got, &s, OZ_CODEC_I4P, 16, asymmetric, 0);
    int n_zeros = 0;
    for (int i = 0; i < ROWS * COLS / 16; i++) n_zeros += got.zeros[i] != 0;
    assert_true(asymmetric ? n_zeros > ROWS * COLS / 32 : n_zeros == 0);
    const oz_weight w = stored(&got, OZ_CODEC_I4P, 16);
    double *q = malloc(sizeof(double) * ROWS * COLS);
    float *e = malloc(sizeof(float) * ROWS * COLS);
    reference(q, &s, 16, &w);
    int differ = 0;
    for (int r = 0; r < ROWS; r++) {
        float row[COLS];
        oz_weight_row(row, &w, r, 0, COLS);
        for (int c = 0; c < COLS; c++) differ += fabs(row[c] - q[r * COLS + c]) > 1e-6, e[r * COLS + c] = s.w[r * COLS + c] - row[c];
    }
    if (differ > ROWS * COLS / 500) fail_msg("%d of %d codes differ", differ, ROWS * COLS); /* rounding in f32 near a tie */
    const double real = output_error(&s, e);
    assert_true(fabs(real - got.r.after) < 1e-3 * real);
    for (int i = 0; i < ROWS * COLS; i++) e[i] = s.w[i] - (float)q[i];
    assert_true(fabs(output_error(&s, e) - real) < 0.02 * real);
    assert_true(got.r.after < 0.5 * got.r.before);
    free(e);
    free(q);
    close_setup(&s);
}

static void test_against_f64(void **state) {
    against_f64(false);
    against_f64(true);
}

/* Passes after the sweep: each takes error away, and at last hardly a code is left that a step up or down would better, all others being what they are. */
static void test_passes(void **state) {
    (void)state;
    setup s;
    open_setup(&s, 2, TOKENS);
    double last = INFINITY;
    for (int passes = 0; passes <= 8; passes += passes ? passes : 1) {
        quantize(&got, &s, OZ_CODEC_I4P, 16, false, passes);
        assert_true(got.r.after < last);
        last = got.r.after;
    }
    const oz_weight w = stored(&got, OZ_CODEC_I4P, 16);
    int worse = 0;
    for (int r = 0; r < ROWS; r++) {
        float row[COLS], codes[COLS], e[COLS];
        oz_weight_row(row, &w, r, 0, COLS);
        oz_weight_codes(codes, &w, r, 0, COLS);
        for (int c = 0; c < COLS; c++) e[c] = row[c] - s.w[r * COLS + c];
        for (int c = 0; c < COLS; c++) {
            const double h = s.h.sum[c * COLS + c] + s.f.added, step = oz_f32_from_bf16(((const uint16_t *)w.scales)[r * (COLS / 16) + c / 16]);
            double slope = s.f.added * e[c];
            for (int k = 0; k < COLS; k++) slope += (double)s.h.sum[c * COLS + k] * e[k];
            worse += (codes[c] < 7 && 2 * slope + step * h < 0) || (codes[c] > -8 && -2 * slope + step * h < 0);
        }
    }
    if (worse > ROWS * COLS / 100) fail_msg("%d of %d codes could be better", worse, ROWS * COLS);
    close_setup(&s);
}

/* What rounding to nearest would store: the scales are the same, and so is what a column gets that no input moves. */
static void test_scales_and_dead_columns(void **state) {
    (void)state;
    setup s;
    oz_err e = {0};
    open_setup(&s, 1, TOKENS);
    quantize(&got, &s, OZ_CODEC_I4P, 16, false, 0);
    const oz_weight w = stored(&got, OZ_CODEC_I4P, 16);
    double before = 0;
    float *errors = malloc(sizeof(float) * ROWS * COLS);
    for (int r = 0; r < ROWS; r++) {
        uint8_t codes[COLS];
        uint16_t scales[COLS / 16];
        float mine[COLS], rtn[COLS];
        check(oz_rtn_row(codes, scales, NULL, &(oz_rtn){OZ_CODEC_I4P, 16, OZ_DTYPE_BF16, false, 0, 0}, s.w + r * COLS, COLS, &e), &e);
        for (int g = 0; g < COLS / 16; g++) { /* searched below round-to-nearest's, or where a range's one end is clipped */
            const float full = oz_f32_from_bf16(scales[g]), s_g = oz_f32_from_bf16(((const uint16_t *)w.scales)[r * (COLS / 16) + g]);
            assert_true(s_g <= 1.09f * full && s_g >= 0.6f * full);
        }
        const oz_weight nearest = {.codec = OZ_CODEC_I4P, .rows = 1, .cols = COLS, .codes = codes, .row_bytes = w.row_bytes, .group_size = 16, .scale_dtype = OZ_DTYPE_BF16, .scales = scales};
        oz_weight_row(rtn, &nearest, 0, 0, COLS);
        oz_weight_row(mine, &w, r, 0, COLS);
        const float s_dead = oz_f32_from_bf16(((const uint16_t *)w.scales)[r * (COLS / 16) + DEAD / 16]);
        const float code = fminf(7, fmaxf(-8, nearbyintf(s.w[r * COLS + DEAD] / s_dead))); /* nothing feeds back into a dead column */
        assert_true(mine[DEAD] == code * s_dead);
        for (int c = 0; c < COLS; c++) errors[r * COLS + c] = s.w[r * COLS + c] - rtn[c];
    }
    before = output_error(&s, errors);
    assert_true(fabs(before - got.r.before) < 1e-3 * before);
    free(errors);
    close_setup(&s);
}

/* Every codec and both kinds of scale: not worse than rounding, and the same bits with any number of threads. */
static void test_codecs_and_threads(void **state) {
    (void)state;
    static const struct { oz_codec codec; int64_t group; bool asymmetric; } cases[] = {{OZ_CODEC_I4P, 52, false}, {OZ_CODEC_I8P, 0, false}, {OZ_CODEC_I8, 0, false}, {OZ_CODEC_F8E4M3, 0, false},
                                                                                        {OZ_CODEC_I4P, 52, true}, {OZ_CODEC_I8, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup s;
        open_setup(&s, 1, TOKENS);
        quantize(&got, &s, cases[i].codec, cases[i].group, cases[i].asymmetric, 2);
        assert_true(got.r.after <= got.r.before && got.r.after > 0);
        close_setup(&s);
        for (int threads = 2; threads <= 5; threads += 3) {
            open_setup(&s, threads, TOKENS);
            quantize(&other, &s, cases[i].codec, cases[i].group, cases[i].asymmetric, 2);
            assert_memory_equal(got.codes, other.codes, sizeof got.codes);
            assert_memory_equal(got.scales, other.scales, sizeof got.scales);
            assert_memory_equal(got.zeros, other.zeros, sizeof got.zeros);
            assert_true(got.r.after == other.r.after && got.r.before == other.r.before);
            close_setup(&s);
        }
    }
}

/* Fewer tokens than columns: the Hessian alone is singular, and damping makes it do. No tokens at all: searched scales by plain squared error, no feedback. */
static void test_few_tokens(void **state) {
    (void)state;
    setup s;
    open_setup(&s, 2, 40);
    quantize(&got, &s, OZ_CODEC_I4P, 16, false, 2);
    assert_true(s.f.dampening == 0.01 && got.r.after < got.r.before);
    close_setup(&s);
    open_setup(&s, 2, 0);
    quantize(&got, &s, OZ_CODEC_I4P, 16, false, 2);
    assert_true(isnan(got.r.after) && isnan(got.r.before));
    oz_err e = {0};
    uint8_t codes[COLS];
    uint16_t scales[COLS / 16];
    check(oz_rtn_row(codes, scales, NULL, &(oz_rtn){OZ_CODEC_I4P, 16, OZ_DTYPE_BF16, false, 0, 0}, s.w, COLS, &e), &e);
    const oz_weight nearest = {.codec = OZ_CODEC_I4P, .rows = 1, .cols = COLS, .codes = codes, .row_bytes = got.r.code_row_bytes, .group_size = 16, .scale_dtype = OZ_DTYPE_BF16, .scales = scales};
    const oz_weight searched = stored(&got, OZ_CODEC_I4P, 16);
    float a[COLS], b[COLS];
    double square_nearest = 0, square = 0;
    oz_weight_row(a, &nearest, 0, 0, COLS);
    oz_weight_row(b, &searched, 0, 0, COLS);
    for (int c = 0; c < COLS; c++) {
        square_nearest += (double)(s.w[c] - a[c]) * (s.w[c] - a[c]);
        square += (double)(s.w[c] - b[c]) * (s.w[c] - b[c]);
    }
    assert_true(square <= square_nearest && square > 0.5 * square_nearest);
    close_setup(&s);
}

/* Weights so large that what feeds back is beyond floats: an error that names the module and the rows, and nothing undefined on the way. Just below
 * that, the error is a number. */
static void test_too_large(void **state) {
    (void)state;
    setup s;
    static const struct { float scale; bool fits; } cases[] = {{1e38f, false}, {1e30f, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_err e = {0};
        open_setup(&s, 2, TOKENS);
        for (int k = 0; k < ROWS * COLS; k++) s.w[k] = fmaxf(-3, fminf(3, s.w[k] * 20)) * cases[i].scale;
        oz_gptq_result r = {.codes = got.codes, .scales = got.scales, .code_row_bytes = oz_codec_row_bytes(OZ_CODEC_I4P, COLS), .scale_row_bytes = 2 * COLS / 16};
        const oz_gptq g = {&s.h, &s.f, &s.weight, {OZ_CODEC_I4P, 16, OZ_DTYPE_BF16, false, 0, 0}, 2, NULL, 0};
        assert_int_equal(oz_gptq_run(&r, &g, s.pool, "the_module", &e), cases[i].fits ? OZ_OK : OZ_E_FORMAT);
        assert_true(cases[i].fits ? r.after > 0 && r.after < r.before : strncmp(e.msg, "the_module: rows ", 17) == 0);
        close_setup(&s);
    }
}

/* A Hessian that is not positive definite: dampening is raised until it is; one that no dampening helps, or with a NaN, is refused. */
static void test_bad_hessians(void **state) {
    (void)state;
    oz_pool *pool = oz_pool_new(2);
    oz_hessian h;
    oz_factor f;
    oz_err e = {0};
    check(oz_hessian_init(&h, 2, NULL, "h", &e), &e);
    h.sum[0] = h.sum[3] = 1, h.sum[1] = h.sum[2] = 1.05f; /* eigenvalues 2.05 and -0.05 */
    check(oz_factor_init(&f, &h, 0.01, pool, "h", &e), &e);
    assert_true(fabs(f.dampening - 0.1) < 1e-12);
    oz_factor_deinit(&f);
    h.sum[1] = h.sum[2] = 9;
    assert_int_equal(oz_factor_init(&f, &h, 0.01, pool, "the_module", &e), OZ_E_FORMAT);
    assert_non_null(strstr(e.msg, "the_module"));
    e = (oz_err){0};
    h.sum[3] = NAN;
    assert_int_equal(oz_hessian_close(&h, "the_module", &e), OZ_E_FORMAT);
    assert_non_null(strstr(e.msg, "column 1"));
    oz_hessian_deinit(&h);
    oz_pool_free(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_f64), cmocka_unit_test(test_passes), cmocka_unit_test(test_scales_and_dead_columns), cmocka_unit_test(test_codecs_and_threads),
                                       cmocka_unit_test(test_few_tokens), cmocka_unit_test(test_bad_hessians), cmocka_unit_test(test_too_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
