/* Random numbers with known vectors, and the facts that a process reads about itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"

static void seeding_is_splitmix64(void **state) {
    oz_rng r;
    oz_rng_init(&r, 0);
    const uint64_t want[4] = {0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec};
    assert_memory_equal(r.s, want, sizeof want);
}

static void stream_is_xoshiro256ss(void **state) {
    oz_rng r = {{1, 2, 3, 4}};
    const uint64_t want[] = {11520, 0, 1509978240, 1215971899390074240, 1216172134540287360, 607988272756665600, 16172922978634559625u,
                             8476171486693032832, 10595114339597558777u, 2904607092377533576};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) assert_true(oz_rng_next(&r) == want[i]);
}

static void uniform_and_normal_have_their_moments(void **state) {
    enum { N = 200000 };
    oz_rng r;
    oz_rng_init(&r, 42);
    double u = 0, s1 = 0, s2 = 0, s4 = 0, far = 0;
    for (int i = 0; i < N; i++) {
        double x = oz_rng_uniform(&r), z = oz_rng_normal(&r);
        assert_true(x >= 0 && x < 1);
        u += x, s1 += z, s2 += z * z, s4 += z * z * z * z, far += fabs(z) > 3;
    }
    assert_true(fabs(u / N - 0.5) < 0.003);
    assert_true(fabs(s1 / N) < 0.01);
    assert_true(fabs(s2 / N - 1) < 0.015);
    assert_true(fabs(s4 / N - 3) < 0.15);
    assert_true(fabs(far / N - 0.0027) < 0.0006);
}

/* These very bits, on any processor: made once, and the same with optimization on and off. */
static void normal_is_the_same_everywhere(void **state) {
    oz_rng r;
    oz_rng_init(&r, 1);
    uint64_t h = 0;
    for (int i = 0; i < 10000; i++) {
        double z = oz_rng_normal(&r);
        uint64_t bits;
        memcpy(&bits, &z, sizeof bits);
        h = (h ^ bits) * 0x9e3779b97f4a7c15u;
    }
    assert_true(h == 0x78f653162250429cu);
}

static void facts(void **state) {
    int64_t t = oz_clock_us();
    assert_true(oz_clock_us() >= t);
    assert_true(oz_cpu_count() >= 1);
    assert_true(oz_rss_bytes() > 100 * 1000);
    volatile char *p = malloc(32 << 20);
    for (int i = 0; i < 32 << 20; i += 4096) p[i] = 1;
    assert_true(oz_rss_peak_bytes() >= (size_t)32 << 20);
    free((void *)p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeding_is_splitmix64),
        cmocka_unit_test(stream_is_xoshiro256ss),
        cmocka_unit_test(uniform_and_normal_have_their_moments),
        cmocka_unit_test(normal_is_the_same_everywhere),
        cmocka_unit_test(facts),
    };
    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
