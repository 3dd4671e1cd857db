/* Slices of stored weights hold the values of the whole at their place; what cannot be cut is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/mem.h"
#include "number/number.h"

enum { ROWS = 12, COLS = 512, GROUP = 64 };

/* A weight of this codec with random bytes as codes (small exponents where they are floats), random scales and zero points. */
static void *make(oz_weight *w, oz_codec codec, int64_t group, bool zeros, oz_rng *rng) {
    const oz_codec_info *c = oz_codec_get(codec);
    *w = (oz_weight){.codec = codec, .rows = ROWS, .cols = COLS, .row_bytes = oz_codec_row_bytes(codec, COLS), .group_size = group, .scale_dtype = OZ_DTYPE_F32};
    const int64_t n = ROWS * (COLS / group);
    uint8_t *mem = malloc((size_t)(ROWS * w->row_bytes + n * 5));
    float *scales = (float *)(mem + ROWS * w->row_bytes);
    for (int64_t i = 0; i < ROWS * w->row_bytes; i++) mem[i] = (uint8_t)(oz_rng_next(rng) % 100);
    for (int64_t i = 0; i < n; i++) scales[i] = (float)(1 + oz_rng_uniform(rng)), ((int8_t *)(scales + n))[i] = (int8_t)(i % 5 - 2);
    w->codes = mem;
    if (!c->plain) w->scales = scales;
    if (zeros) w->zeros = (int8_t *)(scales + n);
    return mem;
}

static void check_slice(const oz_weight *w, int64_t r0, int64_t nr, int64_t c0, int64_t nc) {
    oz_weight s;
    void *mem;
    oz_err e = {0};
    if (oz_weight_slice(&s, &mem, w, r0, nr, c0, nc, &e) != OZ_OK) fail_msg("%s", e.msg);
    assert_true(s.rows == nr && s.cols == nc);
    for (int64_t r = 0; r < nr; r++) {
        float got[COLS], want[COLS];
        oz_weight_row(got, &s, r, 0, nc);
        oz_weight_row(want, w, r0 + r, c0, nc);
        assert_memory_equal(got, want, (size_t)nc * sizeof(float));
    }
    oz_big_free(mem);
}

static void test_values(void **state) {
    (void)state;
    oz_rng rng;
    oz_rng_init(&rng, 3);
    for (int c = 0; c < OZ_CODEC_COUNT; c++)
        for (int grouped = 0; grouped < 2; grouped++) {
            oz_weight w;
            const bool plain = oz_codec_get((oz_codec)c)->plain;
            if (!plain && !oz_codec_get((oz_codec)c)->expand) continue; /* transposed: test_quantized.c has files of them */
            void *mem = make(&w, (oz_codec)c, grouped ? GROUP : COLS, !plain && grouped, &rng);
            check_slice(&w, 0, ROWS, 0, COLS);
            const int64_t block = oz_dtype_get(oz_codec_get((oz_codec)c)->dtype)->block_elems, at = plain && block > GROUP ? block : GROUP;
            check_slice(&w, 3, 5, at, at);
            check_slice(&w, 11, 1, COLS - at, at);
            if (!plain) {
                w.one_scale = true, w.zeros = NULL, w.group_size = COLS;
                check_slice(&w, 2, 4, 64, 64);
            }
            free(mem);
        }
}

static void test_interleaved_heads(void **state) {
    (void)state;
    oz_rng rng;
    oz_rng_init(&rng, 4);
    oz_weight w;
    void *mem = make(&w, OZ_CODEC_BF16, COLS, false, &rng);
    w.rope_heads = 3;
    check_slice(&w, 4, 4, 0, COLS);
    check_slice(&w, 4, 8, 32, 64);
    oz_err e = {0};
    oz_weight s;
    void *none;
    assert_int_equal(oz_weight_slice(&s, &none, &w, 2, 4, 0, COLS, &e), OZ_E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "heads"));
    free(mem);
}

static void test_refusals(void **state) {
    (void)state;
    oz_rng rng;
    oz_rng_init(&rng, 5);
    static const struct { oz_codec c; int64_t group, c0, n; const char *words; } bad[] = {
        {OZ_CODEC_I4P, GROUP, 32, 64, "groups of 64"}, {OZ_CODEC_I4P, GROUP, 64, 32, "groups of 64"}, {OZ_CODEC_I4P, COLS, 1, 8, "blocks of 2"},
        {OZ_CODEC_Q8_0, COLS, 16, 32, "blocks of 32"}, {OZ_CODEC_Q6_K, COLS, 0, 128, "blocks of 256"}, {OZ_CODEC_I8, COLS, 0, COLS + 1, "slice rows"},     {OZ_CODEC_I8, COLS, -1, 4, "slice rows"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_weight w, s;
        void *none, *mem = make(&w, bad[i].c, bad[i].group, false, &rng);
        oz_err e = {0};
        assert_true(oz_weight_slice(&s, &none, &w, 0, 1, bad[i].c0, bad[i].n, &e) != OZ_OK);
        if (!strstr(e.msg, bad[i].words)) fail_msg("expected \"%s\", found \"%s\"", bad[i].words, e.msg);
        free(mem);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_interleaved_heads), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
