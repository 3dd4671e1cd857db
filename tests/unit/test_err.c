/* Errors: first one wins, prefixes, the three macros. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/err.h"

static void first_error_wins(void **state) {
    oz_err e = {0};
    assert_int_equal(oz_err_set(&e, OZ_E_FORMAT, "a.c", 7, "x: expected %d, found %d", 1, 2), OZ_E_FORMAT);
    assert_int_equal(oz_err_set(&e, OZ_E_IO, "b.c", 8, "later"), OZ_E_IO);
    assert_int_equal(e.code, OZ_E_FORMAT);
    assert_string_equal(e.msg, "x: expected 1, found 2");
    assert_string_equal(e.file, "a.c");
    assert_int_equal(e.line, 7);
    oz_err_clear(&e);
    assert_int_equal(e.code, OZ_OK);
    assert_string_equal(e.msg, "");
}

static void null_err_is_allowed(void **state) {
    assert_int_equal(oz_err_set(NULL, OZ_E_ARG, "a.c", 1, "x"), OZ_E_ARG);
    assert_int_equal(oz_err_prefix(NULL, "p"), OZ_E_FORMAT);
    oz_err_clear(NULL);
}

static void prefix_goes_in_front(void **state) {
    oz_err e = {0};
    oz_err_set(&e, OZ_E_ARG, "a.c", 1, "inner");
    assert_int_equal(oz_err_prefix(&e, "layer %d", 3), OZ_E_ARG);
    assert_string_equal(e.msg, "layer 3: inner");
}

static void long_messages_are_cut(void **state) {
    char text[3000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    oz_err e = {0};
    oz_err_set(&e, OZ_E_ARG, "a.c", 1, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    oz_err_prefix(&e, "%s", text);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

static oz_status positive(int v, oz_err *err) {
    OZ_NEED(v != 0, err, OZ_E_ARG, "v: must not be 0");
    if (v < 0) OZ_FAIL(err, OZ_E_FORMAT, "v: found %d", v);
    return OZ_OK;
}

static oz_status both(int a, int b, oz_err *err) {
    OZ_TRY(positive(a, err));
    OZ_TRY(positive(b, err));
    return OZ_OK;
}

static void macros_return(void **state) {
    oz_err e = {0};
    assert_int_equal(both(1, 2, &e), OZ_OK);
    assert_int_equal(both(-1, 0, &e), OZ_E_FORMAT);
    assert_string_equal(e.msg, "v: found -1");
    oz_err_clear(&e);
    assert_int_equal(both(1, 0, &e), OZ_E_ARG);
    assert_non_null(strstr(e.file, "test_err.c"));
    assert_true(e.line > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_wins),      cmocka_unit_test(null_err_is_allowed), cmocka_unit_test(prefix_goes_in_front),
        cmocka_unit_test(long_messages_are_cut), cmocka_unit_test(macros_return),
    };
    return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
