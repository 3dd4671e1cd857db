/* Round to nearest against compressed-tensors: the scales, zero points and codes that it makes of the same weights (tests/gen/gen_rtn.py), bit for bit. */
#include "files.h"
#include <math.h>
#include "base/mem.h"
#include "base/str.h"
#include "checkpoint/checkpoint.h"
#include "number/number.h"

static const struct { const char *name; oz_codec codec; int64_t group_size, scale_rows; bool asymmetric; int bits; } CASES[] = {
    {"w4_asym_g16", OZ_CODEC_I4P, 16, 1, true, 0},    {"w4_asym_channel", OZ_CODEC_I4P, 0, 1, true, 0},  {"w8_asym_channel", OZ_CODEC_I8, 0, 1, true, 0},
    {"w4_asym_g16", OZ_CODEC_I8, 16, 1, true, 4},  {"w4_g16", OZ_CODEC_I8, 16, 1, false, 4}, /* a byte a code */
    {"w8_asym_tensor", OZ_CODEC_I8, 0, 0, true, 0},   {"w4_g16", OZ_CODEC_I4P, 16, 1, false, 0},         {"w8_channel", OZ_CODEC_I8, 0, 1, false, 0},
    {"f8_channel", OZ_CODEC_F8E4M3, 0, 1, false, 0},  {"f8_tensor", OZ_CODEC_F8E4M3, 0, 0, false, 0},    {"f8_block", OZ_CODEC_F8E4M3, 24, 8, false, 0},
};

static void must(oz_status st, const oz_err *err) {
    if (st != OZ_OK) fail_msg("%s", err->msg);
}

static const oz_tensor *find(const oz_ckpt *c, const char *name, const char *dtype, const char *part) {
    char *full = oz_asprintf("%s.%s.%s", name, dtype, part);
    const oz_tensor *t = oz_ckpt_find(c, full);
    if (!t) fail_msg("%s: not there", full);
    oz_free(full);
    return t;
}

/* n rows that share scales. */
static void quantize(float *codes, float *scales, float *zeros, const oz_rtn *q, const float *w, int64_t n, int64_t cols, int64_t groups) {
    oz_err err = {0};
    float min[8] = {0}, max[8] = {0};
    for (int64_t r = 0; r < n; r++) must(oz_rtn_observe(min, max, q, w + r * cols, cols, &err), &err);
    for (int64_t g = 0; g < groups; g++) must(oz_rtn_scale(&scales[g], &zeros[g], q, min[g], max[g], &err), &err);
    for (int64_t r = 0; r < n; r++) oz_rtn_codes(codes + r * cols, q, scales, zeros, w + r * cols, cols);
}

/* The same numbers; a zero of float8 has the same sign. */
static void same(const float *got, const oz_tensor *want, int64_t begin, int64_t n, const char *what, const char *name, const char *dtype) {
    float expected[64];
    oz_to_f32(expected, want->dtype, (const uint8_t *)want->data + begin * oz_dtype_get(want->dtype)->block_bytes, n);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != expected[i] || (want->dtype == OZ_DTYPE_F8_E4M3 && signbit(got[i]) != signbit(expected[i]))) fail_msg("%s %s: %s %lld: expected %g, found %g", name, dtype, what, (long long)(begin + i), (double)expected[i], (double)got[i]);
}

/* The row in one go, stored, is what the steps give. */
static void check_row(const oz_rtn *q, const float *w, int64_t cols, int64_t groups, const float *codes, const float *scales, const float *zeros) {
    uint8_t stored[64], stored_scales[8 * 4];
    int8_t stored_zeros[8];
    float got[64], got_scales[8];
    oz_err err = {0};
    must(oz_rtn_row(stored, stored_scales, stored_zeros, q, w, cols, &err), &err);
    const oz_weight all = {.codec = q->codec, .rows = 1, .cols = cols, .codes = stored};
    oz_weight_codes(got, &all, 0, 0, cols);
    oz_to_f32(got_scales, q->scale_dtype, stored_scales, groups);
    for (int64_t c = 0; c < cols; c++) assert_true(got[c] == codes[c]);
    for (int64_t g = 0; g < groups; g++) assert_true(got_scales[g] == scales[g] && (!q->asymmetric || stored_zeros[g] == zeros[g]));
}

static void check(const oz_ckpt *c, size_t k, const char *dtype) {
    const char *name = CASES[k].name;
    const oz_tensor *weight = find(c, name, dtype, "weight"), *scale = find(c, name, dtype, "scale"), *code = find(c, name, dtype, "codes");
    const oz_rtn q = {CASES[k].codec, CASES[k].group_size, weight->dtype, CASES[k].asymmetric, CASES[k].bits, 0};
    const int64_t rows = weight->dims[0], cols = weight->dims[1], groups = q.group_size ? (cols + q.group_size - 1) / q.group_size : 1, step = CASES[k].scale_rows ? CASES[k].scale_rows : rows;
    float w[20 * 64], codes[20 * 64], scales[8], zeros[8];
    assert_true(rows == 20 && cols == 64);
    oz_to_f32(w, weight->dtype, weight->data, rows * cols);
    for (int64_t r = 0, i = 0; r < rows; r += step, i++) {
        const int64_t n = r + step < rows ? step : rows - r;
        quantize(codes, scales, zeros, &q, w + r * cols, n, cols, groups);
        same(scales, scale, i * groups, groups, "scale", name, dtype);
        if (q.asymmetric) same(zeros, find(c, name, dtype, "zero"), i * groups, groups, "zero point", name, dtype);
        for (int64_t j = 0; j < n; j++) same(codes + j * cols, code, (r + j) * cols, cols, "code", name, dtype);
        if (step == 1) check_row(&q, w + r * cols, cols, groups, codes, scales, zeros);
    }
}

static void test_against_the_library(void **state) {
    oz_ckpt *c;
    oz_err err = {0};
    must(oz_ckpt_open(&c, "tests/golden/rtn", &err), &err);
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++)
        for (int d = 0; d < 3; d++) check(c, k, (const char *[]){"bfloat16", "float16", "float32"}[d]);
    oz_ckpt_close(&c);
}

static void test_edges(void **state) {
    oz_err err = {0};
    const oz_rtn q = {OZ_CODEC_I8, 0, OZ_DTYPE_F16, true, 0, 0};
    uint16_t scale;
    int8_t zero = 55, codes[2];
    must(oz_rtn_row(codes, &scale, &zero, &q, (const float[]){0, 0}, 2, &err), &err);
    assert_true(oz_f32_from_f16(scale) == 1 && zero == 0 && codes[0] == 0 && codes[1] == 0);
    must(oz_rtn_row(codes, &scale, &zero, &q, (const float[]){1e-9f, 0}, 2, &err), &err); /* its scale would round to zero */
    assert_true(scale == 1 && zero == -128 && codes[1] == -128);
    assert_int_equal(oz_rtn_row(codes, &scale, &zero, &q, (const float[]){1e30f, 0}, 2, &err), OZ_E_FORMAT);
    test_contains(err.msg, "does not fit F16");
    uint8_t negative;
    must(oz_rtn_row(&negative, &scale, NULL, &(oz_rtn){OZ_CODEC_F8E4M3, 0, OZ_DTYPE_F16, false, 0, 0}, (const float[]){-0.0f}, 1, &err), &err);
    assert_int_equal(negative, 0x80); /* a zero keeps its sign */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_the_library), cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
