/* Slabs of packed weights: pieces are aligned, zeroed and apart; what is behind the last one is taken again; a slab goes when its last piece does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "kernel/cpu.h"

static uint8_t *piece(oz_slab **slabs, size_t n_bytes) {
    void *p = NULL;
    oz_err err = {0};
    assert_int_equal(oz_slab_new(&p, slabs, n_bytes, "weight", &err), OZ_OK);
    assert_int_equal((uintptr_t)p % 64, 0);
    return p;
}

static void pieces_do_not_touch(void **state) {
    oz_slab *slabs = NULL;
    enum { N = 40, BYTES = 1000003 };
    uint8_t *p[N];
    for (int i = 0; i < N; i++) {
        p[i] = piece(&slabs, BYTES);
        for (int k = 0; k < BYTES; k += 997) assert_int_equal(p[i][k], 0);
        memset(p[i], i + 1, BYTES);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(p[i][0], i + 1);
        assert_int_equal(p[i][BYTES - 1], i + 1);
        assert_true(oz_slab_free(&slabs, p[i]));
    }
    assert_null(slabs);
}

static void a_slab_goes_with_its_last_piece(void **state) {
    oz_slab *slabs = NULL;
    uint8_t *big = piece(&slabs, (size_t)100 << 20), *small = piece(&slabs, 100); /* the first fills a slab of its own */
    big[((size_t)100 << 20) - 1] = 1;
    assert_true(oz_slab_free(&slabs, big));
    assert_non_null(slabs);
    small[99] = 1;
    assert_true(oz_slab_free(&slabs, small));
    assert_null(slabs);
}

/* Pieces that come and go behind one that stays lie at the same place each time, zeroed; what is between pieces in use waits. */
static void the_end_is_taken_again(void **state) {
    oz_slab *slabs = NULL;
    enum { BYTES = 3000001 };
    uint8_t *stays = piece(&slabs, 1000), *first = NULL;
    memset(stays, 7, 1000);
    for (int round = 0; round < 4; round++) {
        uint8_t *p[3];
        for (int i = 0; i < 3; i++) {
            p[i] = piece(&slabs, BYTES);
            for (int k = 0; k < BYTES; k++)
                if (p[i][k]) fail_msg("round %d, piece %d, byte %d: %d", round, i, k, p[i][k]);
            memset(p[i], 9, BYTES);
        }
        if (!first) first = p[0];
        assert_ptr_equal(p[0], first);
        for (int i = 0; i < 3; i++) assert_true(oz_slab_free(&slabs, p[round % 2 ? 2 - i : i]));
    }
    uint8_t *a = piece(&slabs, BYTES), *b = piece(&slabs, BYTES);
    memset(b, 3, BYTES);
    assert_true(oz_slab_free(&slabs, a));
    uint8_t *c = piece(&slabs, BYTES);
    assert_true(c >= b + BYTES);
    for (int k = 0; k < BYTES; k += 997) assert_int_equal(b[k], 3);
    assert_true(oz_slab_free(&slabs, c));
    assert_true(oz_slab_free(&slabs, b));
    assert_ptr_equal(piece(&slabs, 10), first);
    assert_true(oz_slab_free(&slabs, first));
    for (int k = 0; k < 1000; k++) assert_int_equal(stays[k], 7);
    assert_true(oz_slab_free(&slabs, stays));
    assert_null(slabs);
}

static void strangers_are_refused(void **state) {
    oz_slab *slabs = NULL;
    char other;
    assert_false(oz_slab_free(&slabs, &other));
    uint8_t *p = piece(&slabs, 64);
    assert_false(oz_slab_free(&slabs, &other));
    assert_true(oz_slab_free(&slabs, p));
}

static void too_much_is_an_error(void **state) {
    oz_slab *slabs = NULL;
    void *p = NULL;
    oz_err err = {0};
    assert_int_equal(oz_slab_new(&p, &slabs, SIZE_MAX / 2 + 1, "weight", &err), OZ_E_NOMEM);
    assert_non_null(strstr(err.msg, "weight"));
    assert_null(p);
    assert_null(slabs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_touch),
        cmocka_unit_test(a_slab_goes_with_its_last_piece),
        cmocka_unit_test(the_end_is_taken_again),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(too_much_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
