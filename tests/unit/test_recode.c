/* Weights of other families and GGUF's blocks, of random bytes, in compressed-tensors: every value is the same, or it is said why there is no such form. */
#include "files.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "quantize/internal.h"

enum { ROWS = 40, COLS = 512 };

static void must(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

/* Writes the module, reads it back, compares. */
static void check_written(const oz_recode *r) {
    oz_err err = {0};
    const oz_module m = {"m", "Linear", r->weight->rows, r->weight->cols, false};
    oz_part parts[OZ_MAX_PARTS];
    oz_layout *l = oz_layout_new(0);
    oz_pool *pool = oz_pool_new(2);
    oz_writer *w;
    oz_stream s;
    oz_ckpt *any, *c;
    oz_scheme scheme;
    oz_weight back;
    const int n = oz_scheme_parts(parts, &r->to, m.rows, m.cols, r->scale_dtype);
    for (int i = 0; i < n; i++) {
        char *name = oz_asprintf("m%s", parts[i].suffix);
        must(oz_layout_add(l, name, parts[i].dtype, parts[i].n_dims, parts[i].dims, &err), &err);
        oz_free(name);
    }
    must(oz_layout_fix(l, &err), &err);
    must(oz_writer_open(&w, l, test_dir, &err), &err);
    must(oz_ckpt_open(&any, "tests/golden/quantized/w4a16-g128", &err), &err);
    oz_stream_init(&s, w, pool, "writing", 1);
    must(oz_recode_write(&s, r, any, &m, &err), &err);
    oz_stream_deinit(&s);
    must(oz_writer_finish(w, &err), &err);
    oz_writer_close(&w);
    json_t *config = json_pack("{so}", "quantization_config", oz_scheme_config(&m, &r->to, 1, NULL));
    must(oz_config_write(config, test_dir, &err), &err);
    json_decref(config);
    must(oz_ckpt_open(&c, test_dir, &err), &err);
    must(oz_scheme_resolve(&scheme, oz_ckpt_config(c), &m, 1, &err), &err);
    assert_true(oz_scheme_same(&scheme, &r->to));
    must(oz_scheme_bind(&back, c, &m, &scheme, &err), &err);
    float want[COLS], got[COLS];
    for (int64_t row = 0; row < m.rows; row++) {
        oz_weight_row(want, r->weight, row, 0, m.cols);
        oz_weight_row(got, &back, row, 0, m.cols);
        for (int64_t i = 0; i < m.cols; i++)
            if (want[i] != got[i]) fail_msg("%s: %g at %d, %d, expected %g", oz_codec_get(r->weight->codec)->name, (double)got[i], (int)row, (int)i, (double)want[i]);
    }
    oz_ckpt_close(&c);
    oz_ckpt_close(&any);
    oz_layout_free(&l);
    oz_pool_free(&pool);
}

/* Where halves lie in a block that are scales: any finite value will do, zero and negative ones too. */
static void halves(uint8_t *block, int at) {
    static const uint16_t some[] = {0x2c00, 0xac01, 0x0000, 0x8000, 0x1234, 0x0001};
    const uint16_t h = some[block[at] % 6];
    block[at] = (uint8_t)h, block[at + 1] = (uint8_t)(h >> 8);
}

static void test_blocks(void **state) {
    static const struct { oz_dtype dtype; int half_at; int bits, group; const char *why; } types[] = {
        {OZ_DTYPE_Q8_0, 0, 8, 32, NULL}, {OZ_DTYPE_Q4_0, 0, 4, 32, NULL}, {OZ_DTYPE_Q5_0, 0, 5, 32, NULL}, {OZ_DTYPE_Q3_K, 108, 3, 16, NULL}, {OZ_DTYPE_Q6_K, 208, 6, 16, NULL},
        {OZ_DTYPE_Q4_1, 0, 0, 0, "offsets"}, {OZ_DTYPE_Q5_1, 0, 0, 0, "offsets"}, {OZ_DTYPE_Q2_K, 80, 0, 0, "offsets"}, {OZ_DTYPE_Q4_K, 0, 0, 0, "offsets"}, {OZ_DTYPE_Q5_K, 0, 0, 0, "offsets"},
        {OZ_DTYPE_IQ4_NL, 0, 0, 0, "codebook"}, {OZ_DTYPE_IQ4_XS, 0, 0, 0, "codebook"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int positive = 0; positive < 2; positive++) {
            const oz_dtype_info *d = oz_dtype_get(types[i].dtype);
            const int64_t n_blocks = ROWS * COLS / d->block_elems;
            uint8_t *bytes = oz_alloc((size_t)(n_blocks * d->block_bytes));
            oz_rng rng;
            oz_rng_init(&rng, 5 + i);
            for (int64_t k = 0; k < n_blocks * d->block_bytes; k++) bytes[k] = (uint8_t)(oz_rng_next(&rng) >> 40);
            for (int64_t k = 0; k < n_blocks; k++) {
                halves(bytes + k * d->block_bytes, types[i].half_at);
                if (positive) bytes[k * d->block_bytes + types[i].half_at + 1] &= 0x7f;
            }
            oz_weight w = {.rows = ROWS, .cols = COLS, .codes = bytes, .group_size = COLS, .rope_heads = positive ? 2 : 0};
            assert_true(oz_codec_plain(&w.codec, types[i].dtype));
            w.row_bytes = oz_codec_row_bytes(w.codec, COLS);
            oz_recode r;
            const char *why = oz_recode_plan(&r, &OZ_SCHEME_DENSE, &w);
            if (types[i].why) {
                test_contains(why, types[i].why);
            } else {
                assert_null(why);
                assert_true(r.to.bits == types[i].bits && r.to.group_size == types[i].group);
                assert_int_equal(r.to.symmetric, positive && types[i].group == 32); /* k-quants have negative scales in their groups */
                check_written(&r);
            }
            oz_free(bytes);
        }
}

/* Every exponent but the last, every code: the values are the same, and so are the bits of what they are made of. */
static void test_mxfp4(void **state) {
    enum { BLOCK = 17, N = ROWS * COLS / 32 };
    static uint8_t bytes[N * BLOCK];
    oz_rng rng;
    oz_rng_init(&rng, 77);
    for (int k = 0; k < N * BLOCK; k++) bytes[k] = k % BLOCK ? (uint8_t)(oz_rng_next(&rng) >> 40) : (uint8_t)(k / BLOCK % 255);
    oz_weight w = {.rows = ROWS, .cols = COLS, .codes = bytes, .group_size = COLS, .rope_heads = 2};
    assert_true(oz_codec_plain(&w.codec, OZ_DTYPE_MXFP4));
    w.row_bytes = oz_codec_row_bytes(w.codec, COLS);
    oz_recode r;
    assert_null(oz_recode_plan(&r, &OZ_SCHEME_DENSE, &w));
    assert_string_equal(r.to.format, "mxfp4-pack-quantized");
    check_written(&r);
    oz_ckpt *c;
    oz_err err = {0};
    must(oz_ckpt_open(&c, test_dir, &err), &err);
    const uint8_t *codes = oz_ckpt_find(c, "m.weight_packed")->data, *scales = oz_ckpt_find(c, "m.weight_scale")->data;
    for (int i = 0; i < 32; i++) assert_int_equal(codes[i / 2] >> i % 2 * 4 & 15, bytes[1 + i % 16] >> i / 16 * 4 & 15); /* the first row stays first */
    for (int g = 0; g < COLS / 32; g++) assert_int_equal(scales[g], bytes[g * BLOCK]);
    oz_ckpt_close(&c);
    bytes[5 * BLOCK] = 255;
    test_contains(oz_recode_plan(&r, &OZ_SCHEME_DENSE, &w), "the exponent 255");
}

/* A transposed weight of random words. past: some zero points are one past the largest code, as the first format of GPTQ can say. */
static oz_recode fields(oz_weight *w, oz_scheme *s, oz_codec codec, bool past, bool shuffled) {
    static uint32_t words[ROWS * COLS], zeros[ROWS * COLS];
    static uint16_t scales[ROWS * COLS];
    static int32_t g_idx[COLS];
    const oz_codec_info *info = oz_codec_get(codec);
    const bool awq = info->order == OZ_ORDER_AWQ;
    const int64_t zero_words = oz_field_words(info->bits, info->order, ROWS);
    oz_rng rng;
    oz_rng_init(&rng, 9 + (uint64_t)codec);
    for (int i = 0; i < ROWS * COLS; i++) words[i] = (uint32_t)(oz_rng_next(&rng) >> 32), zeros[i] = past ? 0xffffffffu : words[i] & 0x55555555u >> (info->bits == 8), scales[i] = (uint16_t)(0x2000 + i % 999);
    for (int i = 0; i < COLS; i++) g_idx[i] = i * 5 % COLS / 64;
    *w = (oz_weight){.codec = codec, .rows = ROWS, .cols = COLS, .codes = words, .group_size = 64, .scale_dtype = OZ_DTYPE_F16, .scales = scales, .scales_down = true, .zero_words = zeros,
                     .zero_word_step = 4, .zero_group_step = zero_words * 4, .zero_order = info->order, .zero_add = awq ? 0 : 1, .g_idx = shuffled ? g_idx : NULL};
    w->row_bytes = 4 * (awq ? zero_words : ROWS);
    *s = (oz_scheme){.name = "x", .quantized = true, .codec = codec, .bits = info->bits, .group_size = 64, .store = awq ? OZ_STORE_AWQ : OZ_STORE_GPTQ, .format = awq ? "awq" : "gptq", .column_order = shuffled};
    oz_recode r;
    const char *why = oz_recode_plan(&r, s, w);
    assert_int_equal(why != NULL, past);
    if (past) test_contains(why, "one past the largest code");
    return r;
}

static void test_fields(void **state) {
    static const oz_codec codecs[] = {OZ_CODEC_I2G, OZ_CODEC_I3G, OZ_CODEC_I4G, OZ_CODEC_I8G, OZ_CODEC_I4A};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        oz_weight w;
        oz_scheme s;
        oz_recode r = fields(&w, &s, codecs[i], false, false);
        assert_false(r.to.symmetric);
        check_written(&r);
        if (codecs[i] == OZ_CODEC_I4A) continue;
        r = fields(&w, &s, codecs[i], false, true);
        assert_true(r.to.column_order);
        check_written(&r);
        fields(&w, &s, codecs[i], true, false);
    }
}

/* Zero points that are all in the middle are none; a group that is cut short has no form. */
static void test_symmetric(void **state) {
    oz_weight w;
    oz_scheme s;
    fields(&w, &s, OZ_CODEC_I4G, false, false);
    uint32_t zeros[ROWS * COLS / 64];
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) zeros[i] = 0x77777777u;
    w.zero_words = zeros;
    oz_recode r;
    assert_null(oz_recode_plan(&r, &s, &w));
    assert_true(r.to.symmetric);
    assert_string_equal(r.to.name, "W4A16");
    check_written(&r);
    s.group_size = w.group_size = 96;
    test_contains(oz_recode_plan(&r, &s, &w), "cut short");
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {UNIT(test_blocks), UNIT(test_mxfp4), UNIT(test_fields), UNIT(test_symmetric)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
