/* JSON from outside: what is refused and how it is said, typed reads, renderings for messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/json.h"
#include "base/str.h"

static oz_err err;

static json_t *parse(const char *text, size_t n) {
    json_t *v = (json_t *)&err;
    oz_err_clear(&err);
    oz_status s = oz_json_parse(&v, text, n, "f.json", &err);
    assert_int_equal(s, err.code);
    assert_true((s == OZ_OK) == (v != NULL));
    return v;
}
#define PARSE(text) parse(text, sizeof text - 1)
#define REFUSED(text, words)                                                                    \
    do {                                                                                        \
        assert_null(PARSE(text));                                                               \
        assert_int_equal(err.code, OZ_E_FORMAT);                                                \
        assert_int_equal(strncmp(err.msg, "f.json: ", 8), 0);                                   \
        if (!strstr(err.msg, words)) fail_msg("%s: found %s", words, err.msg);                  \
    } while (0)

static void bad_text_is_refused(void **state) {
    REFUSED("", "found nothing");
    REFUSED("\xef\xbb\xbf{}", "byte order mark");
    REFUSED("{\"a\":1,\"a\":2}", "duplicate object key");
    REFUSED("{\"a\\u0000b\":1}", "NUL byte in object key");
    REFUSED("{\"a\":1} x", "end of file expected");
    REFUSED("{\n  \"a\": tru\n}", "line 2, column 10");
    REFUSED("[1,]", "unexpected token");
    REFUSED("[\"\xff\"]", "unable to decode byte 0xff");
    REFUSED("[\"\\ud800\"]", "invalid Unicode");
    REFUSED("[1e999]", "real number overflow");
    REFUSED("[NaN]", "invalid token");
    REFUSED("[\"abc", "f.json: ");
    REFUSED("[\"abc\\", "f.json: ");
    REFUSED("[\0]", "f.json: ");
    REFUSED("-", "f.json: ");
    REFUSED("[00000000000000000000000000000000000000000000000]", "f.json: ");
}

static void depth_has_a_limit(void **state) {
    char text[3000];
    for (int depth = 511; depth <= 1400; depth += 1) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        json_t *v = parse(text, 2 * (size_t)depth);
        assert_int_equal(v != NULL, depth <= 512);
        if (!v) assert_non_null(strstr(err.msg, "at most 512 deep"));
        json_decref(v);
        if (depth == 513) depth = 1399;
    }
    json_t *v = PARSE("[\"[[[[\\\"[[[\", \"]]\"]"); /* brackets in strings are text */
    assert_int_equal(json_array_size(v), 2);
    json_decref(v);
}

static void huge_integers_become_reals(void **state) {
    json_t *v = PARSE("{\"model_max_length\": 1000000000000000019884624838656, \"a\": -9223372036854775808, \"b\": 9223372036854775807,"
                      "\"c\": [9223372036854775808,-9223372036854775809], \"d\": \"99999999999999999999\", \"e\": 12345678901234567890.5, \"f\": 12345678901234567890e2}");
    assert_non_null(v);
    assert_true(json_real_value(json_object_get(v, "model_max_length")) == 1e30);
    assert_true(json_integer_value(json_object_get(v, "a")) == INT64_MIN);
    assert_true(json_integer_value(json_object_get(v, "b")) == INT64_MAX);
    assert_true(json_real_value(json_array_get(json_object_get(v, "c"), 0)) == 0x1p63);
    assert_true(json_real_value(json_array_get(json_object_get(v, "c"), 1)) == -0x1p63);
    assert_string_equal(json_string_value(json_object_get(v, "d")), "99999999999999999999");
    assert_true(json_real_value(json_object_get(v, "e")) == 12345678901234567890.5);
    assert_true(json_real_value(json_object_get(v, "f")) == 12345678901234567890e2);
    json_decref(v);
}

static void any_value_is_a_document(void **state) {
    json_t *v = PARSE(" \"a\\u0000b\" "); /* NUL in a value is text */
    assert_int_equal(json_string_length(v), 3);
    json_decref(v);
    v = PARSE("7");
    assert_int_equal(json_integer_value(v), 7);
    json_decref(v);
}

static void load_names_the_file(void **state) {
    json_t *v;
    oz_err_clear(&err);
    assert_int_equal(oz_json_load(&v, "tests/no_such.json", 100, &err), OZ_E_NOT_FOUND);
    assert_string_equal(err.msg, "tests/no_such.json: No such file or directory");
    char path[] = "/tmp/oz_test_json_XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "{\"a\": 1}", 8), 8);
    close(fd);
    assert_int_equal(oz_json_load(&v, path, 8, NULL), OZ_OK);
    json_decref(v);
    assert_int_equal(oz_json_load(&v, path, 7, NULL), OZ_E_FORMAT);
    unlink(path);
}

static void typed_reads(void **state) {
    json_t *o = PARSE("{\"i\":5,\"r\":1.5,\"s\":\"x\",\"t\":true,\"n\":null,\"z\":\"a\\u0000b\",\"big\":1e300}");
    int64_t i = -1;
    double d = -1;
    int b = -1;
    const char *s = "default";
    oz_err_clear(&err);
    assert_int_equal(oz_json_int(&i, o, "c", "absent", 0, 9, &err), OZ_OK);
    assert_int_equal(oz_json_int(&i, o, "c", "n", 0, 9, &err), OZ_OK);
    assert_int_equal(i, -1);
    assert_int_equal(oz_json_int(&i, o, "c", "i", 0, 9, &err), OZ_OK);
    assert_int_equal(i, 5);
    assert_int_equal(oz_json_float(&d, o, "c", "i", 0, 9, &err), OZ_OK);
    assert_true(d == 5);
    assert_int_equal(oz_json_float(&d, o, "c", "r", 0, 9, &err), OZ_OK);
    assert_true(d == 1.5);
    assert_int_equal(oz_json_bool(&b, o, "c", "t", &err), OZ_OK);
    assert_int_equal(b, 1);
    assert_int_equal(oz_json_str(&s, o, "c", "absent", &err), OZ_OK);
    assert_string_equal(s, "default");
    assert_int_equal(oz_json_str(&s, o, "c", "s", &err), OZ_OK);
    assert_string_equal(s, "x");
    assert_int_equal(err.code, OZ_OK);
    json_decref(o);
}

#define WRONG(call, words)                             \
    do {                                               \
        oz_err_clear(&err);                            \
        assert_int_equal(call, OZ_E_FORMAT);           \
        assert_string_equal(err.msg, words);           \
    } while (0)

static void typed_reads_say_what_is_wrong(void **state) {
    json_t *o = PARSE("{\"i\":0,\"r\":1.5,\"s\":\"x\",\"t\":true,\"z\":\"a\\u0000b\",\"o\":{\"k\":[1,2]}}");
    int64_t i = -1;
    double d = -1;
    int b = -1;
    const char *s = NULL;
    WRONG(oz_json_int(&i, o, "q.weights", "i", 2, 8, &err), "q.weights.i: must be 2..8, found 0");
    WRONG(oz_json_int(&i, o, "", "i", 1, INT64_MAX, &err), "i: must be an integer of at least 1, found 0");
    WRONG(oz_json_int(&i, o, "c", "r", 0, 9, &err), "c.r: must be 0..9, found 1.5");
    WRONG(oz_json_int(&i, o, "c", "t", 0, 9, &err), "c.t: must be 0..9, found true");
    WRONG(oz_json_float(&d, o, "c", "r", 2, 3, &err), "c.r: must be a number in 2..3, found 1.5");
    WRONG(oz_json_float(&d, o, "c", "s", 2, 3, &err), "c.s: must be a number in 2..3, found \"x\"");
    WRONG(oz_json_bool(&b, o, "c", "i", &err), "c.i: must be true or false, found 0");
    WRONG(oz_json_str(&s, o, "c", "o", &err), "c.o: must be a string without NUL, found {\"k\":[1,2]}");
    WRONG(oz_json_str(&s, o, "c", "z", &err), "c.z: must be a string without NUL, found \"a\\u0000b\"");
    assert_true(i == -1 && d == -1 && b == -1 && !s);
    json_decref(o);
}

static void show_is_short(void **state) {
    assert_string_equal(oz_json_show(NULL), "nothing");
    oz_buf b = {0};
    oz_buf_putc(&b, '"');
    for (int i = 0; i < 100; i++) oz_buf_puts(&b, "\xe2\x82\xac");
    oz_buf_putc(&b, '"');
    json_t *v = parse(b.data, b.len), *one = json_integer(1), *two = json_string("two");
    const char *s = oz_json_show(v), *s1 = oz_json_show(one), *s2 = oz_json_show(two);
    assert_true(strlen(s) <= 80 && strlen(s) >= 76);
    assert_true(oz_str_ends(s, "\xe2\x82\xac..."));
    assert_true(oz_utf8_valid(s, strlen(s)));
    assert_string_equal(s1, "1"); /* several in one message */
    assert_string_equal(s2, "\"two\"");
    json_decref(v);
    json_decref(one);
    json_decref(two);
    oz_buf_deinit(&b);
}

static void text_is_always_utf8(void **state) {
    json_t *good = oz_json_text("caf\xc3\xa9"), *bad = oz_json_text("m\xff/\xc3"), *none = oz_json_text("");
    assert_string_equal(json_string_value(good), "caf\xc3\xa9");
    assert_string_equal(json_string_value(bad), "m\xef\xbf\xbd/\xef\xbf\xbd");
    assert_string_equal(json_string_value(none), "");
    json_decref(good);
    json_decref(bad);
    json_decref(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_text_is_refused),     cmocka_unit_test(depth_has_a_limit), cmocka_unit_test(huge_integers_become_reals),
        cmocka_unit_test(any_value_is_a_document), cmocka_unit_test(load_names_the_file), cmocka_unit_test(typed_reads),
        cmocka_unit_test(typed_reads_say_what_is_wrong), cmocka_unit_test(show_is_short),
        cmocka_unit_test(text_is_always_utf8),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
