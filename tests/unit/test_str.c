/* Buffers, slices, names, and UTF-8 with its ill-formed sequences (Unicode 16, section 3.9). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/str.h"

static void buffer_appends(void **state) {
    oz_buf b = {0};
    oz_buf_append(&b, "", 0);
    assert_string_equal(b.data, "");
    oz_buf_puts(&b, "ab");
    oz_buf_putc(&b, 'c');
    oz_buf_printf(&b, "-%d-%s", 7, "x");
    oz_buf_put_utf8(&b, 0x20ac);
    assert_string_equal(b.data, "abc-7-x\xe2\x82\xac");
    assert_int_equal(b.len, 10);
    oz_buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 5000; i++) oz_buf_putc(&b, (char)('a' + i % 26));
    assert_int_equal(b.len, 5000);
    assert_int_equal(b.data[4999], 'a' + 4999 % 26);
    oz_buf_printf(&b, "%5000d", 1);
    assert_int_equal(strlen(b.data), 10000);
    oz_buf_deinit(&b);
    assert_null(b.data);
    oz_buf_clear(&b);
    oz_buf_deinit(&b);
}

static void slices_and_names(void **state) {
    assert_true(oz_slice_eq(oz_slice_view("abc"), (oz_slice){"abcd", 3}));
    assert_false(oz_slice_eq(oz_slice_view("abc"), oz_slice_view("abd")));
    assert_true(oz_slice_eq((oz_slice){0}, (oz_slice){0}));
    assert_true(oz_str_starts("model.x", "model."));
    assert_false(oz_str_starts("mod", "model."));
    assert_true(oz_str_ends("a.weight", ".weight"));
    assert_false(oz_str_ends("t", "weight"));
    assert_int_equal(oz_str_distance("quantize", "quantise"), 1);
    assert_int_equal(oz_str_distance("", "abc"), 3);
    assert_int_equal(oz_str_distance("kitten", "sitting"), 3);
}

static void every_code_point_round_trips(void **state) {
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        char s[4];
        uint32_t back;
        bool ok;
        size_t n = oz_utf8_encode(s, c);
        if (n != (c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u) || oz_utf8_next(s, n, &back, &ok) != n || !ok || back != c) {
            fail_msg("U+%04X", (unsigned)c);
        }
        for (size_t k = 1; k < n; k++) {
            if (oz_utf8_tail(s, k) != k) fail_msg("tail of U+%04X at %zu", (unsigned)c, k);
        }
        assert_int_equal(oz_utf8_tail(s, n), 0);
    }
    char s[4];
    assert_int_equal(oz_utf8_encode(s, 0xd800), 3); /* no code point: U+FFFD */
    assert_memory_equal(s, "\xef\xbf\xbd", 3);
    assert_int_equal(oz_utf8_encode(s, 0x110000), 3);
}

/* Decodes all of s; the lengths of its parts, "!" after an ill-formed one. */
static const char *parts(const char *s, size_t n) {
    static char out[200];
    char *p = out;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        size_t k = oz_utf8_next(s + i, n - i, &cp, &ok);
        if (!ok && cp != 0xfffd) return "not U+FFFD";
        *p++ = (char)('0' + k);
        if (!ok) *p++ = '!';
        i += k;
    }
    *p = 0;
    return out;
}
#define PARTS(s) parts(s, sizeof s - 1)

static void ill_formed_parts_are_maximal(void **state) {
    /* the standard's own examples: tables 3-8, 3-9, 3-10, 3-11 */
    assert_string_equal(PARTS("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), "1!1!1!1!1!1!1!1!1");
    assert_string_equal(PARTS("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), "1!1!1!1!1!1!1!1!1");
    assert_string_equal(PARTS("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), "1!1!1!1!1!11!1!1");
    assert_string_equal(PARTS("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), "2!1!3!2!1");
    /* cut characters at the end */
    assert_string_equal(PARTS("a\xe2\x82"), "12!");
    assert_string_equal(PARTS("\xf0\x9f\x98"), "3!");
    assert_string_equal(PARTS("\xc3"), "1!");
    assert_string_equal(PARTS("\xf5\x80\xfe\xff"), "1!1!1!1!");
    assert_string_equal(PARTS("\xc1\x80\xc2\x80"), "1!1!2");
    assert_true(oz_utf8_valid("gr\xc3\xbc\xc3\x9f", 6));
    assert_true(oz_utf8_valid("", 0));
    assert_false(oz_utf8_valid("gr\xc3", 3));
    uint32_t cp;
    assert_int_equal(oz_utf8_next("\xff", 1, &cp, NULL), 1); /* ok may be NULL */
}

static void tail_counts_the_unfinished(void **state) {
    assert_int_equal(oz_utf8_tail("", 0), 0);
    assert_int_equal(oz_utf8_tail("ab", 2), 0);
    assert_int_equal(oz_utf8_tail("a\xc3", 2), 1);
    assert_int_equal(oz_utf8_tail("a\xe2\x82", 3), 2);
    assert_int_equal(oz_utf8_tail("\xf0\x9f\x98", 3), 3);
    assert_int_equal(oz_utf8_tail("\xe0\x80", 2), 0); /* can never become a character */
    assert_int_equal(oz_utf8_tail("\xed\xa0", 2), 0);
    assert_int_equal(oz_utf8_tail("\xff", 1), 0);
    assert_int_equal(oz_utf8_tail("\x80\x80\x80\x80", 4), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_appends),
        cmocka_unit_test(slices_and_names),
        cmocka_unit_test(every_code_point_round_trips),
        cmocka_unit_test(ill_formed_parts_are_maximal),
        cmocka_unit_test(tail_counts_the_unfinished),
    };
    return cmocka_run_group_tests_name("str", tests, NULL, NULL);
}
