/* Conversions are checked exhaustively against tables that are computed here from the definition of each format in double
 * precision; rows and quantization against examples worked by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "number/number.h"

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The value of a code of a format with n_exp and n_man bits, by the textbook. Specials are the caller's. */
static double value_of(uint32_t code, int n_exp, int n_man) {
    int bias = (1 << (n_exp - 1)) - 1, e = (int)(code >> n_man & ((1u << n_exp) - 1));
    double m = (double)(code & ((1u << n_man) - 1)) / (1 << n_man);
    double v = e ? ldexp(1 + m, e - bias) : ldexp(m, 1 - bias);
    return code >> (n_exp + n_man) & 1 ? -v : v;
}

static void test_widen_exhaustive(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = oz_f32_from_f16((uint16_t)h), b = oz_f32_from_bf16((uint16_t)h);
        bool nan16 = (h & 0x7fff) > 0x7c00, nanb = (h & 0x7fff) > 0x7f80;
        if (nan16) assert_true(isnan(f));
        else if ((h & 0x7fff) == 0x7c00) assert_true(isinf(f) && !signbit(f) == !(h >> 15));
        else assert_true((double)f == value_of(h, 5, 10) && !signbit(f) == !(h >> 15));
        if (nanb) assert_true(isnan(b));
        else if ((h & 0x7fff) == 0x7f80) assert_true(isinf(b));
        else assert_true((double)b == value_of(h, 8, 7) && !signbit(b) == !(h >> 15));
        if (!nan16) assert_int_equal(oz_f16_from_f32(f), h);
        else assert_true((oz_f16_from_f32(f) & 0x7fff) > 0x7c00);
        if (!nanb) assert_int_equal(oz_bf16_from_f32(b), h);
        else assert_true((oz_bf16_from_f32(b) & 0x7fff) > 0x7f80);
    }
    for (uint32_t v = 0; v < 256; v++) {
        float f = oz_f32_from_e4m3((uint8_t)v), g = oz_f32_from_e5m2((uint8_t)v);
        if ((v & 0x7f) == 0x7f) {
            assert_true(isnan(f));
            assert_int_equal(oz_e4m3_from_f32(f) & 0x7f, 0x7f);
        } else {
            assert_true((double)f == value_of(v, 4, 3));
            assert_int_equal(oz_e4m3_from_f32(f), v);
        }
        if ((v & 0x7f) > 0x7c) assert_true(isnan(g));
        else if ((v & 0x7f) == 0x7c) assert_true(isinf(g));
        else assert_true((double)g == value_of(v, 5, 2));
    }
    assert_true(oz_f32_from_e4m3(0x7e) == 448.0f && oz_f32_from_e4m3(0x01) == 0x1p-9f);
}

/* Nearest of the positive codes 0..top of a format, ties to the even code; by distance in double, which is exact here. */
static uint32_t nearest(double x, int n_exp, int n_man, uint32_t top) {
    uint32_t lo = 0, hi = top;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (value_of(mid, n_exp, n_man) <= x) lo = mid;
        else hi = mid;
    }
    double below = x - value_of(lo, n_exp, n_man), above = value_of(hi, n_exp, n_man) - x;
    return below < above ? lo : above < below ? hi : lo % 2 ? hi : lo;
}

static void check_e4m3(float x) {
    uint32_t want = (double)fabsf(x) >= 448 ? 0x7e : nearest((double)fabsf(x), 4, 3, 0x7e);
    assert_int_equal(oz_e4m3_from_f32(x), want | (signbit(x) ? 0x80 : 0));
}

/* Above its largest value a format of the IEEE kind rounds as if one more code (infinity) followed. */
static void check_f16(float x) {
    uint32_t want = (double)fabsf(x) >= 65536 ? 0x7c00 : nearest((double)fabsf(x), 5, 10, 0x7c00);
    assert_int_equal(oz_f16_from_f32(x), want | (signbit(x) ? 0x8000 : 0));
}

static void check_bf16(float x) {
    assert_int_equal(oz_bf16_from_f32(x), nearest((double)fabsf(x), 8, 7, 0x7f80) | (signbit(x) ? 0x8000 : 0));
}

/* Every value, every midpoint between neighbours, and the floats next to both. */
static void around(void (*check)(float), int n_exp, int n_man, uint32_t top) {
    for (uint32_t c = 0; c < top; c++) {
        float a = (float)value_of(c, n_exp, n_man), m = (float)((value_of(c, n_exp, n_man) + value_of(c + 1, n_exp, n_man)) / 2);
        const float at[] = {a, m};
        for (int i = 0; i < 2; i++) {
            check(at[i]), check(-at[i]);
            check(nextafterf(at[i], INFINITY)), check(nextafterf(at[i], -INFINITY));
        }
    }
}

static void test_narrow_against_table(void **state) {
    around(check_e4m3, 4, 3, 0x7e);
    around(check_f16, 5, 10, 0x7c00);
    around(check_bf16, 8, 7, 0x7f7f);
    uint32_t u = 12345;
    for (int i = 0; i < 300000; i++) {
        u = u * 1664525u + 1013904223u;
        float f = float_of(u);
        if (!isfinite(f)) continue;
        check_e4m3(f), check_f16(f);
        if (fabsf(f) < 3.38e38f) check_bf16(f);
        check_e4m3(ldexpf(f, -(int)(u % 256))), check_f16(ldexpf(f, -(int)(u % 256)));
    }
    assert_int_equal(oz_e4m3_from_f32(INFINITY), 0x7e);
    assert_int_equal(oz_e4m3_from_f32(-INFINITY), 0xfe);
    assert_int_equal(oz_f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(oz_f16_from_f32(65519.0f), 0x7bff);
    assert_int_equal(oz_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(oz_bf16_from_f32(float_of(0x7f7fffff)), 0x7f80);
    assert_int_equal(oz_bf16_from_f32(float_of(0x7f800001)) & 0x7fff, 0x7fc0);
    assert_int_equal(oz_e4m3_from_f32(-0.0f), 0x80);
}

static void test_dtype_table(void **state) {
    oz_dtype d;
    for (int i = 0; i < OZ_DTYPE_COUNT; i++) {
        const oz_dtype_info *t = oz_dtype_get((oz_dtype)i);
        if (t->in_safetensors) assert_true(oz_dtype_parse(&d, t->name) && d == (oz_dtype)i);
        else assert_false(oz_dtype_parse(&d, t->name));
        if (t->gguf_type >= 0) assert_true(oz_dtype_from_gguf(&d, (uint32_t)t->gguf_type) && d == (oz_dtype)i);
    }
    assert_false(oz_dtype_parse(&d, "F7"));
    assert_false(oz_dtype_from_gguf(&d, 0xffffffffu));
    size_t n;
    assert_true(oz_dtype_bytes(&n, OZ_DTYPE_Q4_0, 64) && n == 36);
    assert_false(oz_dtype_bytes(&n, OZ_DTYPE_Q4_0, 33));
    assert_false(oz_dtype_bytes(&n, OZ_DTYPE_F32, -1));
    assert_false(oz_dtype_bytes(&n, OZ_DTYPE_F64, INT64_MAX));
    for (int i = 0; i < OZ_CODEC_COUNT; i++) {
        const oz_codec_info *c = oz_codec_get((oz_codec)i);
        assert_non_null(c->name);
        assert_true(c->expand || c->dtype == OZ_DTYPE_I32); /* without: transposed */
    }
}

static void test_arrays(void **state) {
    float f[4];
    const int64_t i64[] = {-3, 1LL << 40};
    oz_to_f32(f, OZ_DTYPE_I64, i64, 2);
    assert_true(f[0] == -3 && f[1] == 0x1p40f);
    const uint8_t e8m0[] = {127, 128, 0, 255};
    oz_to_f32(f, OZ_DTYPE_F8_E8M0, e8m0, 4);
    assert_true(f[0] == 1 && f[1] == 2 && f[2] == 0x1p-127f && isnan(f[3]));
    uint8_t odd[9]; /* misaligned on purpose */
    const float src[] = {1.5f, -2.25f};
    oz_from_f32(odd + 1, OZ_DTYPE_BF16, src, 2);
    oz_to_f32(f, OZ_DTYPE_BF16, odd + 1, 2);
    assert_true(f[0] == 1.5f && f[1] == -2.25f);
    oz_from_f32(odd + 1, OZ_DTYPE_F32, src, 2);
    oz_to_f32(f, OZ_DTYPE_F32, odd + 1, 2);
    assert_true(f[1] == -2.25f);
}

/* Two blocks of each GGUF type, read whole and from an odd column. */
/* Any value that is not finite, at any place, beside neighbours that are the largest there are; tails that are no whole words; every code of 16 bits. */
static void test_all_finite(void **state) {
    enum { N = 13 };
    const struct { oz_dtype dtype; size_t size; uint64_t largest, bad[3]; } types[] = {
        {OZ_DTYPE_F16, 2, 0xfbff, {0x7c00, 0xfc00, 0x7e01}}, {OZ_DTYPE_BF16, 2, 0xff7f, {0x7f80, 0xff80, 0x7fc0}}, {OZ_DTYPE_F32, 4, 0xff7fffff, {0x7f800000, 0xff800000, 0x7f800001}},
        {OZ_DTYPE_F64, 8, 0xffefffffffffffff, {0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001}}};
    for (size_t t = 0; t < 4; t++)
        for (size_t at = 0; at < N; at++)
            for (size_t k = 0; k < 3; k++) {
                const size_t size = types[t].size;
                char *x = oz_alloc(N * size); /* its end is the allocation's */
                for (size_t i = 0; i < N; i++) memcpy(x + i * size, &types[t].largest, size);
                assert_true(oz_all_finite(types[t].dtype, x, N * size));
                memcpy(x + at * size, &types[t].bad[k], size);
                assert_false(oz_all_finite(types[t].dtype, x, N * size));
                assert_true(oz_all_finite(types[t].dtype, x, at * size));
                assert_true(oz_all_finite(OZ_DTYPE_I8, x, N * size));
                oz_free(x);
            }
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t v = (uint16_t)h;
        assert_int_equal(oz_all_finite(OZ_DTYPE_F16, &v, sizeof v), isfinite(oz_f32_from_f16(v)));
        assert_int_equal(oz_all_finite(OZ_DTYPE_BF16, &v, sizeof v), isfinite(oz_f32_from_bf16(v)));
    }
}

static void test_gguf_blocks(void **state) {
    uint8_t q8[68] = {0}, q4[36] = {0}, q41[40] = {0};
    float row[64], part[40];
    for (int b = 0; b < 2; b++) {
        q8[b * 34 + 1] = 0x38, q4[b * 18 + 1] = 0x38, q41[b * 20 + 1] = 0x38, q41[b * 20 + 3] = 0x3c; /* d = 0.5, m = 1 */
        for (int i = 0; i < 32; i++) q8[b * 34 + 2 + i] = (uint8_t)(int8_t)(i - 16 + b);
        for (int i = 0; i < 16; i++) q4[b * 18 + 2 + i] = (uint8_t)(i | (15 - i) << 4), q41[b * 20 + 4 + i] = q4[b * 18 + 2 + i];
    }
    oz_weight w = {.codec = OZ_CODEC_Q8_0, .rows = 1, .cols = 64, .codes = q8, .row_bytes = 68, .group_size = 64};
    oz_weight_row(row, &w, 0, 0, 64);
    assert_true(row[0] == -8.0f && row[31] == 7.5f && row[32] == -7.5f && row[63] == 8.0f);
    oz_weight_row(part, &w, 0, 13, 40);
    assert_memory_equal(part, row + 13, sizeof part);
    w.codec = OZ_CODEC_Q4_0, w.codes = q4, w.row_bytes = 36;
    oz_weight_row(row, &w, 0, 0, 64);
    assert_true(row[0] == -4.0f && row[15] == 3.5f && row[16] == 3.5f && row[31] == -4.0f && row[33] == -3.5f);
    oz_weight_row(part, &w, 0, 31, 33);
    assert_memory_equal(part, row + 31, 33 * sizeof *part);
    w.codec = OZ_CODEC_Q4_1, w.codes = q41, w.row_bytes = 40;
    oz_weight_row(row, &w, 0, 0, 64);
    assert_true(row[0] == 1.0f && row[15] == 8.5f && row[16] == 8.5f && row[31] == 1.0f);
    assert_int_equal(oz_weight_bytes(&w), 40);
    for (int i = OZ_CODEC_F32; i <= OZ_CODEC_MXFP4; i++) assert_true(oz_codec_get((oz_codec)i)->plain);
}

/* One super-block, by hand: d = 1, dmin = 2; scale and min of groups 0 and 5; codes of both nibbles. Then what has no d in f16. */
static void test_gguf_super_blocks(void **state) {
    uint8_t q4[144] = {0, 0x3c, 0, 0x40}, mx[17] = {0};
    float row[256];
    q4[4] = 0xc0 | 10;  /* scale of group 0: 10; high pair of group 4's: 3 */
    q4[4 + 1] = 0x80;   /* high pair of group 5's scale: 2 */
    q4[4 + 5] = 0x40;   /* of its min: 1 */
    q4[4 + 9] = 0x7b;   /* low nibbles of group 5: scale 11, min 7 */
    q4[16] = 0x0f, q4[16 + 2 * 32 + 31] = 0x30;
    oz_weight w = {.codec = OZ_CODEC_Q4_K, .rows = 1, .cols = 256, .codes = q4, .row_bytes = 144, .group_size = 256};
    oz_weight_row(row, &w, 0, 0, 256);
    assert_true(row[0] == 150 && row[1] == 0);
    assert_true(row[5 * 32 + 31] == (2 * 16 + 11) * 3 - 2 * (16 + 7) && row[5 * 32] == -2 * (16 + 7));
    float part[100];
    oz_weight_row(part, &w, 0, 100, 100);
    assert_memory_equal(part, row + 100, sizeof part);
    mx[1] = 0x7f; /* -6 and 6, doubled */
    oz_to_f32(row, OZ_DTYPE_MXFP4, mx, 32);
    assert_true(row[0] == -12 * 0x1p-128f && row[16] == 12 * 0x1p-128f);
    mx[0] = 255; /* no NaN here: the largest power, times 8 or 12 infinite */
    oz_to_f32(row, OZ_DTYPE_MXFP4, mx, 32);
    assert_true(isinf(row[0]) && row[1] == 0);
}

/* The packing vectors of the format description, low bits first. */
static void test_packed_codes(void **state) {
    const uint8_t i4[] = {0x10, 0x87, 0xd9, 0xfe}, i8[] = {0x00, 0x7f, 0x80, 0xff};
    const float want4[] = {-8, -7, -1, 0, 1, 5, 6, 7}, want8[] = {-128, -1, 0, 127};
    float got[8];
    oz_codec_get(OZ_CODEC_I4P)->expand(got, i4, 0, 8);
    assert_memory_equal(got, want4, sizeof want4);
    oz_codec_get(OZ_CODEC_I4P)->expand(got, i4, 3, 4);
    assert_memory_equal(got, want4 + 3, 16);
    oz_codec_get(OZ_CODEC_I8P)->expand(got, i8, 0, 4);
    assert_memory_equal(got, want8, sizeof want8);
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_I4P, 9), 8);
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_I8P, 5), 8);
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_I8, 5), 5);
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_BF16, 5), 10);
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_Q4_1, 64), 40);
}

/* Vectors of the formats' own packers. */
static void test_fields(void **state) {
    const uint32_t dense[] = {0x88FAC688, 0xC688FAC6, 0xFAC688FA}, words[] = {0x08FAC688, 0x1A23EB1A, 0x2C688FAC, 0x0000003E}, awq = 0x75316420, q4 = 0xFED98710;
    const int q4_values[] = {-8, -7, -1, 0, 1, 5, 6, 7};
    float got[32];
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_I3P, 32), 12);
    assert_int_equal(oz_codec_row_bytes(OZ_CODEC_I3W, 32), 16);
    oz_codec_get(OZ_CODEC_I3P)->expand(got, dense, 0, 32);
    for (int i = 0; i < 32; i++) assert_true(got[i] == (float)(i % 8 - 4));
    oz_codec_get(OZ_CODEC_I3W)->expand(got, words, 0, 32);
    for (int i = 0; i < 32; i++) assert_true(got[i] == (float)(i % 8 - 4));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(oz_field_get(&awq, 4, 4, OZ_ORDER_AWQ, i), i);
        assert_int_equal((int)oz_field_get(&q4, 4, 4, OZ_ORDER_STREAM, i) - 8, q4_values[i]);
    }
    const uint32_t apart[] = {dense[0], 0, dense[1], 0, dense[2], 0}; /* words of one stream beside those of another */
    for (int i = 0; i < 32; i++) assert_int_equal(oz_field_get(apart, 8, 3, OZ_ORDER_STREAM, i), i % 8);
}

/* NVFP4 by hand: code 7 is 6, code 9 is -0.5; scale 2 over a global divisor of 4. */
static void test_e2m1(void **state) {
    const uint8_t codes[8] = {0x97}, scale = 0x40; /* 2 in e4m3 */
    oz_weight w = {.codec = OZ_CODEC_E2M1, .rows = 1, .cols = 16, .codes = codes, .row_bytes = 8, .group_size = 16, .scale_dtype = OZ_DTYPE_F8_E4M3, .scales = &scale, .scale_divisor = 4}, c;
    float row[16];
    void *mem;
    oz_weight_row(row, &w, 0, 0, 16);
    assert_true(row[0] == 3 && row[1] == -0.25f && row[2] == 0);
    assert_int_equal(oz_weight_slice(&c, &mem, &w, 0, 1, 0, 16, NULL), OZ_OK);
    oz_weight_row(row, &c, 0, 0, 16);
    assert_true(oz_weight_is_compact(&c) && row[0] == 3 && row[1] == -0.25f && row[2] == 0);
    oz_big_free(mem);
}

static void test_act_round(void **state) {
    const float x[] = {1, -2, 0.5f, 0, 100, -50, 3, 7}, scale = 0.5f, zero = -3;
    float y[8];
    oz_act_round(y, x, 8, &(oz_round){8, false, true, 0, &scale, NULL, false});
    assert_true(y[0] == 1 && y[1] == -2 && y[4] == 63.5f && y[5] == -50); /* 200 is cut at 127 */
    oz_act_round(y, x, 8, &(oz_round){8, false, false, 0, &scale, &zero, false});
    assert_true(y[0] == 1 && y[4] == 65 && y[5] == -50); /* codes -128..127 stand for -62.5..65 */
    oz_act_round(y, x, 8, &(oz_round){8, false, true, 4, NULL, NULL, false});
    assert_true(y[1] == -2 && y[4] == 100 && fabsf(y[0] - 1) <= 1 / 127.0f && fabsf(y[6] - 3) <= 50 / 127.0f);
    oz_act_round(y, x, 4, &(oz_round){8, false, false, 0, NULL, NULL, false});
    assert_true(y[3] == 0 && fabsf(y[0] - 1) <= 1.5f / 255 && fabsf(y[1] + 2) <= 1.5f / 255);
    oz_act_round(y, x, 8, &(oz_round){8, true, true, 0, NULL, NULL, false});
    assert_true(y[4] == 100 && y[3] == 0);
    const float grid[] = {3.0f, 100, -57, 1, 448, 1, 449, 1}; /* scales of powers of two: 100 / 448 becomes 1/4, 448 / 448 is one, 449 / 448 becomes 2 */
    oz_act_round(y, grid, 8, &(oz_round){.bits = 8, .is_float = true, .symmetric = true, .group_size = 2, .powers = true});
    assert_true(y[0] == 3 && y[1] == 96 && y[2] == -56 && y[3] == 1 && y[4] == 448 && y[5] == 1 && y[6] == 448 && y[7] == 1);
    const float bad[] = {1, NAN};
    oz_act_round(y, bad, 2, &(oz_round){8, false, true, 0, NULL, NULL, false});
    assert_true(isnan(y[0]) && isnan(y[1])); /* the scale is the row's */
}

static void test_scales_and_zeros(void **state) {
    const int8_t codes[] = {1, 2, 3, 4, -1, -2, -3, -4}, zeros[] = {1, 0, 0, -1};
    const float f32s[] = {2, 4, 0.5f, 0.25f};
    const uint16_t bf16s[] = {0x4000, 0x4080, 0x3f00, 0x3e80}, f16s[] = {0x4000, 0x4400, 0x3800, 0x3400}; /* the same */
    const struct { oz_dtype d; const void *p; } scales[] = {{OZ_DTYPE_F32, f32s}, {OZ_DTYPE_BF16, bf16s}, {OZ_DTYPE_F16, f16s}};
    float r[4];
    for (int i = 0; i < 3; i++) {
        oz_weight w = {.codec = OZ_CODEC_I8, .rows = 2, .cols = 4, .codes = codes, .row_bytes = 4, .group_size = 2,
                       .scale_dtype = scales[i].d, .scales = scales[i].p};
        oz_weight_row(r, &w, 0, 0, 4);
        assert_true(r[0] == 2 && r[1] == 4 && r[2] == 12 && r[3] == 16);
        w.zeros = zeros;
        oz_weight_row(r, &w, 0, 0, 4);
        assert_true(r[0] == 0 && r[1] == 2 && r[2] == 12 && r[3] == 16);
        oz_weight_row(r, &w, 1, 1, 2);
        assert_true(r[0] == -1 && r[1] == -0.5f);
        assert_int_equal(oz_weight_bytes(&w), 8 + 4 * oz_dtype_get(scales[i].d)->block_bytes + 4);
        w.zeros = NULL, w.group_size = 4;
        oz_weight_row(r, &w, 1, 0, 4); /* channel: row 1 has scale 4 */
        assert_true(r[0] == -4 && r[3] == -16);
        w.one_scale = true;
        oz_weight_row(r, &w, 1, 0, 4);
        assert_true(r[0] == -2 && r[3] == -8);
        w.one_scale = false, w.group_size = 3; /* the last group is shorter */
        assert_int_equal(oz_weight_groups(&w), 2);
        oz_weight_row(r, &w, 0, 2, 2);
        assert_true(r[0] == 6 && r[1] == 16);
    }
    const uint8_t f8[] = {0x38, 0xb8, 0x7e, 0x01};
    oz_weight w = {.codec = OZ_CODEC_F8E4M3, .rows = 1, .cols = 4, .codes = f8, .row_bytes = 4, .group_size = 4, .scale_dtype = OZ_DTYPE_F32, .scales = f32s};
    oz_weight_row(r, &w, 0, 0, 4);
    assert_true(r[0] == 2 && r[1] == -2 && r[2] == 896 && r[3] == 0x1p-8f);
}

/* Applies llama.cpp's reshape(heads, 2, half).swapaxes(1, 2) literally and expects the rows back in order. */
static void test_rope_rows(void **state) {
    enum { HEADS = 3, DIM = 8, ROWS = HEADS * DIM };
    float stored[ROWS], got;
    for (int h = 0; h < HEADS; h++)
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < DIM / 2; j++) stored[(h * DIM / 2 + j) * 2 + k] = (float)((h * 2 + k) * DIM / 2 + j);
    oz_weight w = {.codec = OZ_CODEC_F32, .rows = ROWS, .cols = 1, .codes = stored, .row_bytes = 4, .group_size = 1, .rope_heads = HEADS};
    for (int r = 0; r < ROWS; r++) {
        oz_weight_row(&got, &w, r, 0, 1);
        assert_true(got == (float)r);
    }
    w.rope_heads = 0;
    assert_int_equal(oz_weight_stored_row(&w, 5), 5);
}

/* The worked example of the format description: one group of eight. */
static void test_rtn_example(void **state) {
    const float x[] = {0.5f, -0.25f, 0.125f, 1.0f, -0.5f, 0.75f, 0.03125f, -0.9375f};
    uint32_t packed[2];
    uint16_t scale;
    oz_err err = {0};
    oz_rtn q = {OZ_CODEC_I4P, 0, OZ_DTYPE_BF16, false, 0, 0};
    assert_int_equal(oz_rtn_row(packed, &scale, NULL, &q, x, 8, &err), OZ_OK);
    assert_true(packed[0] == 0x18E4F96Cu && oz_f32_from_bf16(scale) == 0.1337890625f);
    q.codec = OZ_CODEC_I8P;
    assert_int_equal(oz_rtn_row(packed, &scale, NULL, &q, x, 8, &err), OZ_OK);
    assert_true(packed[0] == 0xFF9060C0u && packed[1] == 0x0984DF40u && oz_f32_from_bf16(scale) == 0.00787353515625f);
    int8_t i8[8];
    const int8_t want[] = {64, -32, 16, 127, -64, 95, 4, -119};
    q.codec = OZ_CODEC_I8;
    assert_int_equal(oz_rtn_row(i8, &scale, NULL, &q, x, 8, &err), OZ_OK);
    assert_memory_equal(i8, want, 8);
    uint8_t f8[8];
    float s32;
    q = (oz_rtn){OZ_CODEC_F8E4M3, 0, OZ_DTYPE_F32, false, 0, 0};
    assert_int_equal(oz_rtn_row(f8, &s32, NULL, &q, x, 8, &err), OZ_OK);
    assert_true(s32 == 1.0f / 448.0f && f8[3] == 0x7e && f8[7] == 0xfd && f8[0] == 0x76); /* 448, -416 (tie at 420), 224 */
}

/* The two halves of oz_rtn_row give what it gives, for every codec. */
static void test_codes(void **state) {
    static const oz_codec codecs[] = {OZ_CODEC_I8, OZ_CODEC_I4P, OZ_CODEC_I8P, OZ_CODEC_F8E4M3};
    oz_err err = {0};
    float x[37], codes[37], scale;
    for (int i = 0; i < 37; i++) x[i] = sinf((float)i) * (i == 5 ? 3.0f : 1.0f);
    for (size_t k = 0; k < sizeof codecs / sizeof *codecs; k++) {
        uint8_t want[40] = {0}, got[40] = {0};
        memset(got, 0xa5, (size_t)oz_codec_row_bytes(codecs[k], 37));
        assert_int_equal(oz_rtn_row(want, &scale, NULL, &(oz_rtn){codecs[k], 0, OZ_DTYPE_F32, false, 0, 0}, x, 37, &err), OZ_OK);
        for (int i = 0; i < 37; i++) codes[i] = oz_rtn_code(&(oz_rtn){codecs[k], 0, OZ_DTYPE_F32, false, 0, 0}, x[i], scale, 0);
        oz_codes_store(got, codecs[k], codes, 37);
        assert_memory_equal(want, got, sizeof want);
    }
    const oz_rtn i4 = {OZ_CODEC_I4P, 0, OZ_DTYPE_F32, false, 0, 0}, f8 = {OZ_CODEC_F8E4M3, 0, OZ_DTYPE_F32, false, 0, 0}, i8 = {OZ_CODEC_I8, 0, OZ_DTYPE_F32, true, 4, 0};
    assert_true(oz_rtn_code(&i4, 2.5f, 1, 0) == 2 && oz_rtn_code(&i4, 9, 1, 0) == 7 && oz_rtn_code(&i4, -9, 1, 0) == -8);
    assert_true(oz_rtn_code(&f8, 1e4f, 1, 0) == 448 && oz_rtn_code(&f8, 35, 2, 0) == 18);
    assert_true(oz_rtn_code(&i8, 3, 0.5f, -1) == 5 && oz_rtn_code(&i8, 9, 1, 3) == 7 && oz_rtn_code(&i8, -20, 1, 3) == -8); /* 4 bits in a byte */
}

/* The quick rounding of rows is oz_rtn_code's: every bf16 value, and ties, against a scale of 1. */
static void test_rtn_nearest(void **state) {
    static const struct { oz_codec codec; float most; } cases[] = {{OZ_CODEC_I8, 127}, {OZ_CODEC_I4P, 7}, {OZ_CODEC_F8E4M3, 448}};
    enum { N = 2 * 65536 };
    float *x = malloc(N * sizeof *x), *codes = malloc(N * sizeof *codes), scale, zero;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        oz_err err = {0};
        int64_t n = 0;
        for (uint32_t h = 0; h < 65536; h++) {
            float v = oz_f32_from_bf16((uint16_t)h);
            for (int i = 0; i < 2; i++, v = nextafterf(v, i ? INFINITY : -INFINITY))
                if (fabsf(v) <= cases[k].most) x[n++] = v;
        }
        assert_int_equal(oz_rtn_numbers(codes, &scale, &zero, &(oz_rtn){cases[k].codec, 0, OZ_DTYPE_F32, false, 0, cases[k].most}, x, n, &err), OZ_OK);
        assert_true(scale == 1);
        for (int64_t i = 0; i < n; i++) {
            const float want = oz_rtn_code(&(oz_rtn){cases[k].codec, 0, OZ_DTYPE_F32, false, 0, 0}, x[i], 1, 0);
            if (want != codes[i] || (cases[k].codec == OZ_CODEC_F8E4M3 && !signbit(want) != !signbit(codes[i]))) fail_msg("%a: expected %g, found %g", (double)x[i], (double)want, (double)codes[i]);
        }
    }
    free(x), free(codes);
}

/* Rows of half precision by the largest code: all codes are reached, and a scale in bf16 does not take them away. */
static void test_rtn_divisor(void **state) {
    const uint16_t milli = oz_f16_from_f32(0.001f);
    uint16_t values[3][64];
    for (int i = 0; i < 64; i++) values[0][i] = i % 2 ? milli | 0x8000 : milli, values[1][i] = 0, values[2][i] = oz_f16_from_f32((float)(i - 32) / 4096);
    const oz_weight w = {.codec = OZ_CODEC_F16, .rows = 3, .cols = 64, .codes = values, .row_bytes = 128};
    oz_pool *pool = oz_pool_new(2);
    oz_weight q;
    void *mem;
    oz_err err = {0};
    assert_int_equal(oz_weight_quantize(&q, &mem, &w, &(oz_rtn){OZ_CODEC_I8, 0, OZ_DTYPE_BF16, false, 0, 127}, pool, &err), OZ_OK);
    const int8_t *codes = q.codes;
    const uint16_t *scales = q.scales;
    for (int i = 0; i < 64; i++) {
        assert_int_equal(codes[i], i % 2 ? -127 : 127);
        assert_int_equal(codes[64 + i], 0);
        assert_int_equal(codes[128 + i], (int)nearbyintf((float)(i - 32) / 4096 / oz_f32_from_bf16(scales[2])));
    }
    assert_true(oz_f32_from_bf16(scales[0]) == oz_f32_from_bf16(oz_bf16_from_f32(oz_f32_from_f16(milli) / 127)) && oz_f32_from_bf16(scales[1]) == 1);
    assert_int_equal(codes[128], -127);
    oz_big_free(mem);
    values[2][9] = 0x7e00;
    assert_int_equal(oz_weight_quantize(&q, &mem, &w, &(oz_rtn){OZ_CODEC_I8, 0, OZ_DTYPE_BF16, false, 0, 127}, pool, &err), OZ_E_FORMAT);
    assert_null(mem);
    assert_non_null(strstr(err.msg, "row 2: column 9: expected a finite weight"));
    oz_pool_free(&pool);
}

static void test_rtn_groups_and_edges(void **state) {
    const float x[] = {0, 0, 0, 0, 7.5f, -7.5f, 0.5f, 1.5f, 3.75f};
    uint32_t packed[2] = {~0u, ~0u};
    float s[3];
    oz_err err = {0};
    oz_rtn q = {OZ_CODEC_I4P, 4, OZ_DTYPE_F32, false, 0, 0};
    assert_int_equal(oz_rtn_row(packed, s, NULL, &q, x, 9, &err), OZ_OK);
    assert_true(s[0] == 1.0f && s[1] == 1.0f && s[2] == 0.5f);
    assert_int_equal(packed[0], 0xA80F8888u); /* zeros, then 7 (clamped), -8 (a tie to even), 0 and 2 (ties to even) */
    assert_int_equal(packed[1], 0xFu);        /* the pad is zero */
    float tiny[] = {1e-8f, -1e-8f}, r[2];
    uint16_t h;
    int8_t i8[2];
    q = (oz_rtn){OZ_CODEC_I8, 0, OZ_DTYPE_F16, false, 0, 0};
    assert_int_equal(oz_rtn_row(i8, &h, NULL, &q, tiny, 2, &err), OZ_OK);
    assert_int_equal(h, 1); /* not 0 */
    oz_weight w = {.codec = OZ_CODEC_I8, .rows = 1, .cols = 2, .codes = i8, .row_bytes = 2, .group_size = 2, .scale_dtype = OZ_DTYPE_F16, .scales = &h};
    oz_weight_row(r, &w, 0, 0, 2);
    assert_true(fabsf(r[0] - tiny[0]) < 0x1p-24f);
    float bad[] = {1, NAN};
    assert_int_equal(oz_rtn_row(i8, &h, NULL, &q, bad, 2, &err), OZ_E_FORMAT);
    assert_non_null(strstr(err.msg, "column 1"));
    oz_err_clear(&err);
    bad[1] = 1e30f;
    assert_int_equal(oz_rtn_row(i8, &h, NULL, &q, bad, 2, &err), OZ_E_FORMAT); /* the scale does not fit f16 */
}

static void test_activations(void **state) {
    float x[] = {127, -63.5f, 0.5f, 1.5f, -127, 2};
    int8_t q[6];
    assert_true(oz_act_i8(q, x, 6) == 1.0f);
    const int8_t want[] = {127, -64, 0, 2, -127, 2};
    assert_memory_equal(q, want, 6);
    float zero[3] = {0, -0.0f, 0};
    uint8_t f[6];
    assert_true(oz_act_i8(q, zero, 3) == 1.0f && q[0] == 0 && q[1] == 0);
    assert_true(oz_act_e4m3(f, zero, 3) == 1.0f / (448.0f * 512.0f) && f[0] == 0);
    float y[] = {896, -448, 2, 0.001f};
    assert_true(oz_act_e4m3(f, y, 4) == 2.0f);
    assert_true(f[0] == 0x7e && f[1] == 0xf6 && f[2] == 0x38 && f[3] == 0);
    y[2] = INFINITY;
    assert_true(isnan(oz_act_e4m3(f, y, 4)) && f[0] == 0);
    x[3] = NAN;
    assert_true(isnan(oz_act_i8(q, x, 6)) && q[0] == 0);
    float sub[] = {1e-44f, 0};
    assert_true(oz_act_i8(q, sub, 2) == 1.0f && q[0] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen_exhaustive), cmocka_unit_test(test_narrow_against_table), cmocka_unit_test(test_dtype_table),
        cmocka_unit_test(test_arrays), cmocka_unit_test(test_all_finite), cmocka_unit_test(test_gguf_blocks), cmocka_unit_test(test_gguf_super_blocks), cmocka_unit_test(test_packed_codes),
        cmocka_unit_test(test_fields), cmocka_unit_test(test_e2m1), cmocka_unit_test(test_act_round), cmocka_unit_test(test_scales_and_zeros), cmocka_unit_test(test_rope_rows), cmocka_unit_test(test_rtn_example),
        cmocka_unit_test(test_codes), cmocka_unit_test(test_rtn_groups_and_edges), cmocka_unit_test(test_rtn_nearest), cmocka_unit_test(test_rtn_divisor), cmocka_unit_test(test_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
