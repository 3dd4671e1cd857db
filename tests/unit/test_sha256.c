/* SHA-256 against the standard's examples, and in pieces against another implementation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "base/sha256.h"
#include "sha256.h"

static void check(const char *text, const char *want) {
    char out[65];
    oz_sha256 s;
    oz_sha256_init(&s);
    oz_sha256_add(&s, text, strlen(text));
    oz_sha256_hex(out, &s);
    assert_string_equal(out, want);
}

static void test_examples(void **state) {
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_pieces(void **state) {
    unsigned char data[300];
    for (int i = 0; i < 300; i++) data[i] = (unsigned char)(i * 7);
    for (size_t n = 0; n <= 300; n++) {
        char want[65], got[65];
        oz_sha256 s;
        sha256_hex(want, data, n);
        oz_sha256_init(&s);
        for (size_t at = 0, step; at < n; at += step) {
            step = at % 37 + 1 < n - at ? at % 37 + 1 : n - at;
            oz_sha256_add(&s, data + at, step);
        }
        oz_sha256_hex(got, &s);
        assert_string_equal(got, want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
