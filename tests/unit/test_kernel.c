/* The door to kernels: devices, levels, and what packing takes and refuses. tests/check says whether the kernels compute right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "kernel/kernel.h"

static oz_dev *open_cpu(const char *level) {
    oz_dev *d = NULL;
    oz_err err = {0};
    assert_int_equal(oz_dev_open(&d, &(oz_dev_cfg){"cpu", 2, level, false}, &err), OZ_OK);
    return d;
}

static void device_says_what_it_is(void **state) {
    oz_dev *d = open_cpu("ref");
    assert_string_equal(oz_dev_describe(d), "cpu ref, 2 threads");
    assert_int_equal(oz_dev_threads(d), 2);
    oz_dev_close(&d);
    assert_null(d);
    oz_dev_close(&d);
}

static void unknown_device_and_level_are_named(void **state) {
    oz_dev *d = NULL;
    oz_err err = {0};
    assert_int_equal(oz_dev_open(&d, &(oz_dev_cfg){"gpu9", 0, NULL, false}, &err), OZ_E_USAGE);
    assert_non_null(strstr(err.msg, "device: expected auto"));
    assert_non_null(strstr(err.msg, "found \"gpu9\""));
    err = (oz_err){0};
    assert_int_equal(oz_dev_open(&d, &(oz_dev_cfg){"cpu", 0, "avx9", false}, &err), OZ_E_USAGE);
    assert_non_null(strstr(err.msg, "(ref"));
    assert_non_null(strstr(err.msg, "found \"avx9\""));
    assert_null(d);
}

/* With a card it opens; without one, without a driver or in a build without CUDA it says so. */
static void cuda_opens_or_says_why(void **state) {
    oz_dev *d = NULL;
    oz_err err = {0};
    const oz_status st = oz_dev_open(&d, &(oz_dev_cfg){"cuda", 1, "auto", false}, &err);
    if (st == OZ_OK) assert_non_null(strstr(oz_dev_describe(d), "cuda:0"));
    else assert_non_null(strstr(err.msg, "cuda"));
    oz_dev_close(&d);
    assert_int_equal(oz_dev_open(&d, &(oz_dev_cfg){"cuda:x", 1, "auto", false}, &(oz_err){0}), OZ_E_USAGE);
    assert_null(d);
    err = (oz_err){0};
    assert_int_equal(oz_dev_open(&d, &(oz_dev_cfg){"auto", 1, "auto", false}, &err), OZ_OK);
    oz_dev_close(&d);
}

/* A weight of int8 codes 1..6 in two rows. */
static oz_weight small_weight(const int8_t *codes, const float *scales) {
    return (oz_weight){.codec = OZ_CODEC_I8, .rows = 2, .cols = 3, .codes = codes, .row_bytes = 3, .group_size = 3, .scale_dtype = OZ_DTYPE_F32,
                       .scales = scales};
}

static void linear_of_known_numbers(void **state) {
    static const char *const levels[] = {"ref", "auto"};
    static const int8_t codes[] = {1, 2, 3, 4, 5, 6};
    static const float scales[] = {0.5f, 2.0f};
    oz_weight w = small_weight(codes, scales);
    for (int i = 0; i < 2; i++) {
        oz_dev *d = open_cpu(levels[i]);
        const oz_ops *ops = oz_dev_ops(d);
        oz_packed *p = NULL, *p8 = NULL;
        assert_int_equal(ops->pack(&p, d, &w, 0, 2, OZ_FORM_F32, NULL), OZ_OK);
        assert_int_equal(ops->pack(&p8, d, &w, 0, 2, OZ_FORM_Q8, NULL), OZ_OK);
        assert_int_equal(oz_packed_rows(p), 2);
        assert_int_equal(oz_packed_cols(p), 3);
        float x[] = {1, 10, 100}, y[4] = {0}, bias[] = {1000, 2000}, x_scale = 0.25f;
        int8_t x8[] = {1, 10, 100};
        const oz_packed *parts[] = {p, p};
        const float *biases[] = {bias, NULL};
        ops->linear(d, &(oz_linear_args){parts, biases, 2, {OZ_FORM_F32, x, 3, NULL}, y, 4, 1});
        const float want[] = {321 * 0.5f + 1000, 654 * 2.0f + 2000, 321 * 0.5f, 654 * 2.0f};
        assert_memory_equal(y, want, sizeof want);
        parts[0] = p8;
        ops->linear(d, &(oz_linear_args){parts, NULL, 1, {OZ_FORM_Q8, x8, 3, &x_scale}, y, 4, 1});
        assert_true(y[0] == 321 * 0.125f && y[1] == 654 * 0.5f);
        ops->packed_free(d, &p);
        ops->packed_free(d, &p8);
        assert_null(p);
        oz_dev_close(&d);
    }
}

static void zero_points_and_slices(void **state) {
    static const int8_t codes[] = {1, 2, 3, 4, 5, 6}, zeros[] = {7, -1};
    static const float scales[] = {0.5f, 2.0f};
    oz_weight w = small_weight(codes, scales);
    w.zeros = zeros;
    oz_dev *d = open_cpu("auto");
    oz_packed *p = NULL;
    oz_err err = {0};
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &w, 1, 1, OZ_FORM_F32, &err), OZ_OK);
    float y[3];
    int32_t id = 0;
    assert_int_equal(oz_dev_ops(d)->begin(d, &(oz_batch){.ids = &id, .n_tok = 1}, &err), OZ_OK);
    oz_dev_ops(d)->embed(d, y, 3, p);
    assert_int_equal(oz_dev_ops(d)->end(d, &err), OZ_OK);
    assert_true(y[0] == 10 && y[1] == 12 && y[2] == 14);
    oz_dev_ops(d)->packed_free(d, &p);
    static const int32_t order[] = {2, 0, 1}; /* stored column i is column order[i] */
    oz_weight ordered = w;
    ordered.order = order;
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &ordered, 1, 1, OZ_FORM_F32, &err), OZ_OK);
    assert_int_equal(oz_dev_ops(d)->begin(d, &(oz_batch){.ids = &id, .n_tok = 1}, &err), OZ_OK);
    oz_dev_ops(d)->embed(d, y, 3, p);
    assert_int_equal(oz_dev_ops(d)->end(d, &err), OZ_OK);
    assert_true(y[0] == 12 && y[1] == 14 && y[2] == 10);
    oz_dev_ops(d)->packed_free(d, &p);
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &w, 0, 2, OZ_FORM_Q8, &err), OZ_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "gemm_i8_q8"));
    assert_non_null(strstr(err.msg, "zero points"));
    err = (oz_err){0};
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &w, 0, 2, OZ_FORM_F8, &err), OZ_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "no kernel gemm_i8_f8"));
    err = (oz_err){0};
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &w, 1, 2, OZ_FORM_F32, &err), OZ_E_ARG);
    assert_null(p);
    oz_dev_close(&d);
}

static void groups_and_columns_have_limits(void **state) {
    static int8_t codes[48];
    static const float scales[16] = {1};
    oz_weight w = {.codec = OZ_CODEC_I8, .rows = 1, .cols = 48, .codes = codes, .row_bytes = 48, .group_size = 24, .scale_dtype = OZ_DTYPE_F32,
                   .scales = scales};
    oz_dev *d = open_cpu("auto");
    oz_packed *p = NULL;
    oz_err err = {0};
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &w, 0, 1, OZ_FORM_F32, &err), OZ_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "groups of 24 columns"));
    err = (oz_err){0};
    w.cols = w.group_size = (1 << 17) + 1; /* refused before a code is read */
    assert_int_equal(oz_dev_ops(d)->pack(&p, d, &w, 0, 1, OZ_FORM_Q8, &err), OZ_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "found 131073"));
    oz_dev_close(&d);
}

static void ceilings_are_measured(void **state) {
    oz_dev *d = open_cpu("auto");
    oz_ceiling c;
    oz_dev_ceiling(d, &c);
    assert_true(c.read_bytes_s > 1e7 && c.f32_flop_s > 1e7 && c.i8_op_s > 1e7 && c.scatter >= 0 && c.scatter < 1);
    oz_dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_says_what_it_is),
        cmocka_unit_test(unknown_device_and_level_are_named),
        cmocka_unit_test(cuda_opens_or_says_why),
        cmocka_unit_test(linear_of_known_numbers),
        cmocka_unit_test(zero_points_and_slices),
        cmocka_unit_test(groups_and_columns_have_limits),
        cmocka_unit_test(ceilings_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
