/* SentencePiece's protobuf, tiktoken's ranks, base64: what is read, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/base64.h"
#include "base/json.h"
#include "checkpoint/internal.h"

static void base64_both_ways(void **state) {
    static const struct {
        const char *plain, *text;
    } t[] = {{"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}, {"\xff\xfe", "//4="}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        oz_buf a = {0}, b = {0};
        oz_base64_encode(&a, t[i].plain, strlen(t[i].plain));
        assert_true(oz_slice_eq((oz_slice){a.data, a.len}, oz_slice_view(t[i].text)));
        assert_true(oz_base64_decode(&b, t[i].text, strlen(t[i].text)));
        assert_true(oz_slice_eq((oz_slice){b.data, b.len}, oz_slice_view(t[i].plain)));
        oz_buf_deinit(&a);
        oz_buf_deinit(&b);
    }
    static const char *const bad[] = {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "Z===", "====", "Zg==Zg==", "Zm 9", "Zm9v\n", "Zm9-"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_buf b = {0};
        if (oz_base64_decode(&b, bad[i], strlen(bad[i]))) fail_msg("\"%s\" was taken for base64", bad[i]);
        oz_buf_deinit(&b);
    }
}

#define FILE_OF(bytes) ((oz_slice){bytes, sizeof bytes - 1})
/* pieces: "<unk>" of kind 2, "\u2581a" with score -1.5, "b"; trainer: BPE, byte_fallback, pad_id -1; an unknown field */
#define UNK "\x0a\x09\x0a\x05<unk>\x18\x02"
#define A "\x0a\x0b\x0a\x04\xe2\x96\x81" "a\x15\x00\x00\xc0\xbf"
#define B "\x0a\x03\x0a\x01" "b"
#define TRAINER "\x12\x14\x18\x02\x98\x02\x01\xd8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xc8\x02\x02"

static void spm_is_read(void **state) {
    oz_tokens t;
    oz_spm_rules r;
    oz_err err = {0};
    /* normalizer: a map, no dummy prefix; field 99 of four bytes */
    const oz_slice file = FILE_OF(UNK A B TRAINER "\x1a\x06\x12\x02mm\x18\x00" "\x9d\x06" "abcd");
    if (oz_spm_read(&t, &r, file, "f", &err) != OZ_OK) fail_msg("%s", err.msg);
    assert_int_equal(t.n, 3);
    assert_true(oz_slice_eq(t.text[1], oz_slice_view("\xe2\x96\x81" "a")));
    assert_true(t.score[1] == -1.5f && t.score[2] == 0);
    assert_int_equal(t.type[0], OZ_TOKEN_UNKNOWN);
    assert_int_equal(t.type[2], OZ_TOKEN_NORMAL);
    assert_true(r.is_bpe && r.byte_fallback && !r.dummy_prefix && r.collapse_spaces);
    assert_true(oz_slice_eq(r.charsmap, oz_slice_view("mm")));
    assert_int_equal(t.pad, -1);
    assert_int_equal(t.bos, 2);
    assert_int_equal(t.eos, 2);
    oz_tokens_deinit(&t);
}

static void spm_is_refused(void **state) {
    static const struct {
        oz_slice file;
        const char *message;
    } t[] = {
        {FILE_OF(""), "expected 1..2097152 tokens, found 0"},
        {FILE_OF("\x0a"), "broken at its byte 1"},
        {FILE_OF("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "the file: no protobuf message: broken at its byte 11"},
        {FILE_OF("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "broken"},
        {FILE_OF("\x0a\x05\x0a\x05" "b"), "broken"},
        {FILE_OF("\x0a\x03\x0a\x05" "b"), "pieces[0]: no protobuf message: broken at its byte 2"},
        {FILE_OF("\x02\x01"), "broken at its byte 1"},                                      /* field 0 */
        {FILE_OF("\x0b"), "broken"},                                                        /* a group */
        {FILE_OF("\x0a\x02\x10\x01" B), "pieces[0]: expected wire type 5, found 0"},        /* score as a varint */
        {FILE_OF("\x0a\x05\x15\x00\x00\xc0\x7f"), "pieces[0].piece: must be UTF-8"},        /* no text */
        {FILE_OF("\x0a\x08\x0a\x01z\x15\x00\x00\xc0\x7f"), "pieces[0].score: must be finite"},
        {FILE_OF("\x0a\x03\x0a\x01\xff"), "pieces[0].piece: must be UTF-8"},
        {FILE_OF("\x0a\x03\x0a\x01\x00"), "pieces[0].piece: must be UTF-8"},
        {FILE_OF("\x0a\x05\x0a\x01z\x18\x07"), "pieces[0].type: must be 1..6, found 7"},
        {FILE_OF(B B B "\x12\x02\x18\x03"), "model_type: must be 1 (unigram) or 2 (BPE), found 3"},
        {FILE_OF(B B B "\x12\x03\xc0\x01\x01"), "treat_whitespace_as_suffix"},
        {FILE_OF(B B B "\x12\x03\xc8\x02\x03"), "bos_id: must be less than 3, found 3"},
        {FILE_OF(B B B "\x1a\x02\x28\x00"), "escape_whitespaces: must be true"},
        {FILE_OF(B B B "\x2a\x03\x12\x01x"), "denormalizer_spec.precompiled_charsmap"},
        {FILE_OF(B B B "\x12\x06\x18\x80\x80\x80\x80\x08"), "model_type: must be an int32"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        oz_tokens tokens;
        oz_spm_rules r;
        oz_err err = {0};
        if (oz_spm_read(&tokens, &r, t[i].file, "f", &err) == OZ_OK) fail_msg("row %zu was read, expected \"%s\"", i, t[i].message);
        if (!strstr(err.msg, t[i].message)) fail_msg("row %zu: expected \"%s\", found \"%s\"", i, t[i].message, err.msg);
        oz_tokens_deinit(&tokens);
    }
}

/* Tokens a, b, c, ab, bc, abc: every split, in the order of scores; a control token is no part. */
static void merges_by_score(void **state) {
    static const char *const text[] = {"a", "b", "c", "ab", "bc", "abc", "<s>"};
    static const float score[] = {0, 0, 0, -2, -1, -3, 9};
    oz_tokens t;
    oz_err err = {0};
    json_t *merges = NULL;
    assert_int_equal(oz_tokens_new(&t, 7, "f", &err), OZ_OK);
    for (size_t i = 0; i < 7; i++) t.text[i] = oz_slice_view(text[i]);
    t.type[6] = OZ_TOKEN_CONTROL;
    for (int by_score = 0; by_score < 2; by_score++) {
        if (by_score) t.score = memcpy(oz_alloc(sizeof score), score, sizeof score);
        assert_int_equal(oz_tokens_merges(&merges, &t, &err), OZ_OK);
        char *s = json_dumps(merges, JSON_COMPACT);
        assert_string_equal(s, by_score ? "[[\"b\",\"c\"],[\"a\",\"b\"],[\"ab\",\"c\"],[\"a\",\"bc\"]]" : "[[\"a\",\"b\"],[\"b\",\"c\"],[\"a\",\"bc\"],[\"ab\",\"c\"]]");
        free(s);
        json_decref(merges);
    }
    oz_tokens_deinit(&t);
}

static void ranks(void **state) {
    oz_tokens t;
    oz_err err = {0};
    assert_true(oz_is_tiktoken(oz_slice_view("IQ== 0\nIg== 1\n")));
    assert_false(oz_is_tiktoken(oz_slice_view("{\"a\": 1}\n")));
    assert_false(oz_is_tiktoken(FILE_OF(UNK A)));
    assert_false(oz_is_tiktoken(oz_slice_view("")));
    if (oz_tiktoken_read(&t, oz_slice_view("IQ== 0\r\nIMOp 3\n/w== 1"), "f", &err) != OZ_OK) fail_msg("%s", err.msg);
    assert_int_equal(t.n, 4);
    assert_int_equal(t.type[2], OZ_TOKEN_UNUSED);
    assert_true(oz_slice_eq(t.text[3], oz_slice_view("\xc4\xa0\xc3\x83\xc2\xa9"))); /* " \u00e9", byte by byte */
    assert_true(oz_slice_eq(t.text[1], oz_slice_view("\xc3\xbf")));
    oz_tokens_deinit(&t);
    static const struct {
        const char *file, *message;
    } bad[] = {{"IQ==\n", "line 1: expected base64, a space and a number"}, {"IQ== 0\n\n", "line 2: expected base64"}, {"IQ== x\n", "line 1"}, {"IQ== -1\n", "line 1"},
               {"IQ== 99999999999999999999\n", "line 1"}, {"I 0\n", "line 1: expected base64, found I"}, {" 0\n", "line 1"}, {"IQ== 0\nIg== 0\n", "line 2: the rank 0 is there twice"}, {"", "found 0"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (oz_err){0};
        assert_int_not_equal(oz_tiktoken_read(&t, oz_slice_view(bad[i].file), "f", &err), OZ_OK);
        if (!strstr(err.msg, bad[i].message)) fail_msg("row %zu: expected \"%s\", found \"%s\"", i, bad[i].message, err.msg);
        oz_tokens_deinit(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(base64_both_ways), cmocka_unit_test(spm_is_read), cmocka_unit_test(spm_is_refused), cmocka_unit_test(merges_by_score), cmocka_unit_test(ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
