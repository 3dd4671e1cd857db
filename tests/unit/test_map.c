/* The hash map: adding, setting, growing, keys with any bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "base/map.h"

static void add_keeps_set_replaces(void **state) {
    oz_map *m = oz_map_new(0);
    int64_t v = -7;
    assert_false(oz_map_get(m, "a", 1, &v));
    assert_int_equal(v, -7);
    assert_true(oz_map_add(m, "a", 1, 1));
    assert_false(oz_map_add(m, "a", 1, 2));
    assert_true(oz_map_get(m, "a", 1, &v));
    assert_int_equal(v, 1);
    oz_map_set(m, "a", 1, INT64_MIN);
    oz_map_set(m, "b", 1, 9);
    assert_true(oz_map_get(m, "a", 1, &v));
    assert_true(v == INT64_MIN);
    assert_true(oz_map_get(m, "b", 1, NULL));
    assert_int_equal(oz_map_count(m), 2);
    oz_map_free(&m);
    assert_null(m);
    oz_map_free(&m);
}

static void keys_are_bytes(void **state) {
    oz_map *m = oz_map_new(4);
    assert_true(oz_map_add(m, "", 0, 1));
    assert_true(oz_map_add(m, "\0", 1, 2));
    assert_true(oz_map_add(m, "\0\0", 2, 3));
    assert_true(oz_map_add(m, "\0\0\0\0\0\0\0\0", 8, 4));
    assert_true(oz_map_add(m, "\0\0\0\0\0\0\0\0\0", 9, 5));
    assert_true(oz_map_add(m, "12345678", 8, 6));
    assert_true(oz_map_add(m, "123456789", 9, 7));
    int64_t v;
    assert_true(oz_map_get(m, NULL, 0, &v));
    assert_int_equal(v, 1);
    assert_true(oz_map_get(m, "\0\0", 2, &v));
    assert_int_equal(v, 3);
    assert_true(oz_map_get(m, "123456789", 8, &v));
    assert_int_equal(v, 6);
    oz_map_free(&m);
}

static void grows_with_its_keys(void **state) {
    enum { N = 100000 };
    oz_map *m = oz_map_new(10);
    char key[32];
    for (int i = 0; i < N; i++) assert_true(oz_map_add(m, key, (size_t)sprintf(key, "key %d", i), i));
    assert_int_equal(oz_map_count(m), N);
    for (int i = 0; i < N; i++) {
        int64_t v;
        assert_true(oz_map_get(m, key, (size_t)sprintf(key, "key %d", i), &v));
        assert_int_equal(v, i);
        assert_false(oz_map_get(m, key, (size_t)sprintf(key, "kez %d", i), &v));
    }
    oz_map_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(add_keeps_set_replaces), cmocka_unit_test(keys_are_bytes), cmocka_unit_test(grows_with_its_keys)};
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
