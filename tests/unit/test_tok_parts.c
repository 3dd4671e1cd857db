/* Every component and option of tokenizer.json, in small random tokenizers, against what the reference answers. */
#include "tok_files.h"

static void check_ids(const oz_tok *t, const json_t *row, int k, json_int_t seed) {
    const json_t *text = json_array_get(row, 0);
    char what[64];
    snprintf(what, sizeof what, "seed %lld, %s", (long long)seed, k == 2 ? "with special tokens" : "without");
    oz_ids found = tok_encode(t, json_string_value(text), json_string_length(text), k == 2),
           expected = tok_ids(json_array_get(row, (size_t)k));
    tok_assert_ids(&found, &expected, what);
}

static void check_text(const oz_tok *t, const json_t *row, int k, json_int_t seed) {
    const json_t *expected = json_array_get(row, (size_t)k);
    if (json_is_null(expected)) return; /* the reference gave up */
    oz_ids ids = tok_ids(json_array_get(row, 2));
    oz_buf found = {0};
    oz_err err = {0};
    char what[64];
    snprintf(what, sizeof what, "seed %lld, %s", (long long)seed, k == 4 ? "special tokens skipped" : "decoded");
    oz_buf_puts(&found, "");
    if (oz_tok_decode(&found, t, ids.data, ids.len, k == 4, &err) != OZ_OK) fail_msg("%s: %s", what, err.msg);
    tok_assert_text(&found, expected, what);
    oz_buf_deinit(&found);
    oz_free(ids.data);
}

static void check_all(const char *file) {
    json_t *all = tok_lines(file);
    assert_true(json_array_size(all) > 30);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *one = json_array_get(all, i), *rows = json_object_get(one, "rows");
        json_int_t seed = json_integer_value(json_object_get(one, "seed"));
        oz_tok *t = NULL;
        oz_err err = {0};
        if (oz_tok_new(&t, json_object_get(one, "tokenizer"), NULL, &err) != OZ_OK) fail_msg("seed %lld: %s", (long long)seed, err.msg);
        for (size_t k = 0; k < json_array_size(rows); k++) {
            for (int part = 1; part <= 2; part++) check_ids(t, json_array_get(rows, k), part, seed);
            for (int part = 3; part <= 4; part++) check_text(t, json_array_get(rows, k), part, seed);
        }
        oz_tok_free(&t);
    }
    json_decref(all);
}

static void every_part_does_what_the_reference_does(void **state) { check_all("parts.jsonl"); }
static void a_text_begins_where_its_first_character_went(void **state) { check_all("first.jsonl"); }

static oz_tok *from_text(const char *json) {
    json_t *v;
    oz_tok *t = NULL;
    oz_err err = {0};
    if (oz_json_parse(&v, json, strlen(json), "t", &err) != OZ_OK || oz_tok_new(&t, v, NULL, &err) != OZ_OK) fail_msg("%s", err.msg);
    json_decref(v);
    return t;
}

static void stream_is(const oz_tok *t, const int32_t *ids, size_t n, const char *expected) {
    oz_buf out = {0};
    oz_detok d;
    oz_detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++) {
        oz_detok_push(&out, &d, ids[i]);
        oz_buf_putc(&out, '|');
    }
    oz_detok_flush(&out, &d);
    assert_string_equal(out.data, expected);
    oz_buf_deinit(&out);
}

static void streams_follow_their_decoder(void **state) {
    static const struct {
        const char *decoder;
        int32_t ids[4];
        const char *expected;
    } cases[] = {
        {"{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", {0, 1, 0, 2}, "a|b| a|.|"},
        {"{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", {0, 3, 0, 3}, "a|c| a|c|"}, /* the last space is not written */
        {"{\"type\":\"CTC\",\"pad_token\":\"##b\",\"word_delimiter_token\":\".\",\"cleanup\":true}", {0, 0, 1, 0}, "a|||a|"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"always\",\"split\":true}", {0, 2, 0, 2}, " |.| |.|"},
        {"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}",
         {4, 5, 4, 0},
         "|\xC3\xA9||\xEF\xBF\xBD"
         "a|"},
        {"null", {0, 2, 0, 2}, "a| .| a| .|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = oz_asprintf(
            "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"##b\":1,\".\":2,\"c</w>\":3,\"<0xC3>\":4,"
            "\"<0xA9>\":5}},\"decoder\":%s}",
            cases[i].decoder);
        oz_tok *t = from_text(json);
        stream_is(t, cases[i].ids, 4, cases[i].expected);
        oz_tok_free(&t);
        oz_free(json);
    }
}

/* A text without a pre-tokenizer is one word: a million characters must take a moment, whatever the merges and scores. */
static void long_words_are_near_linear(void **state) {
    static const char *const models[] = {
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"b\",\"vocab\":{\"a\":0,\"aa\":1,\"aaa\":2,\"aaaa\":3,\"b\":4},\"merges\":[\"a "
        "a\",\"aa a\",\"aa aa\"]}}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":4,\"vocab\":[[\"a\",-1.5],[\"aa\",-2.25],[\"aaa\",-3],[\"aaaa\",-3.5],[\"b\",-9]]}}",
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"b\",\"continuing_subword_prefix\":\"\",\"max_input_chars_per_word\":2000000,"
        "\"vocab\":{\"a\":0,\"aa\":1,"
        "\"aaa\":2,\"aaaa\":3,\"b\":4}}}",
    };
    enum { N = 1000000 };
    char *text = malloc(N);
    memset(text, 'a', N);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        oz_tok *t = from_text(models[i]);
        oz_ids ids = tok_encode(t, text, N, false);
        assert_int_equal(ids.len, N / 4);
        for (size_t k = 0; k < ids.len; k++) assert_int_equal(ids.data[k], 3);
        oz_free(ids.data);
        oz_tok_free(&t);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_does_what_the_reference_does), cmocka_unit_test(a_text_begins_where_its_first_character_went),
        cmocka_unit_test(streams_follow_their_decoder),
        cmocka_unit_test(long_words_are_near_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
