/* Tokenizers against what the reference library made of the same texts and ids. */
#include "tok_files.h"

static const char *const names[] = {"smollm2", "quirk-a"};
enum { N_NAMES = sizeof names / sizeof *names };

typedef struct golden {
    const char *name;
    oz_tok *tok;
} golden;
static golden set[N_NAMES];

static int open_all(void **state) {
    for (int i = 0; i < N_NAMES; i++) set[i] = (golden){names[i], tok_open(names[i], NULL, NULL)};
    return 0;
}

static int close_all(void **state) {
    for (int i = 0; i < N_NAMES; i++) oz_tok_free(&set[i].tok);
    return 0;
}

static json_t *lines_of(const golden *g, const char *file) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", g->name, file);
    return tok_lines(path);
}

static void check_text(const golden *g, const json_t *row, const char *text, size_t n) {
    char what[128];
    snprintf(what, sizeof what, "%s %s", g->name, tok_id_of(row));
    oz_ids plain = tok_encode(g->tok, text, n, false), expected = tok_ids(json_object_get(row, "ids_no_special"));
    oz_buf decoded = {0};
    assert_int_equal(oz_tok_decode(&decoded, g->tok, plain.data, plain.len, false, NULL), OZ_OK);
    tok_assert_text(&decoded, json_object_get(row, "decoded"), what);
    oz_buf_deinit(&decoded);
    tok_assert_ids(&plain, &expected, what);
    const json_t *with_special = json_object_get(row, "ids_with_special"); /* not recorded for ill-formed texts */
    if (!with_special) return;
    oz_ids special = tok_encode(g->tok, text, n, true);
    expected = tok_ids(with_special);
    tok_assert_ids(&special, &expected, what);
}

static void texts_become_ids_and_text_again(void **state) {
    json_t *texts = tok_lines("texts.jsonl");
    for (int k = 0; k < N_NAMES; k++) {
        json_t *rows = lines_of(&set[k], "golden.jsonl");
        assert_int_equal(json_array_size(rows), json_array_size(texts));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *text = json_object_get(json_array_get(texts, i), "text");
            check_text(&set[k], json_array_get(rows, i), json_string_value(text), json_string_length(text));
        }
        json_decref(rows);
    }
    json_decref(texts);
}

static void ill_formed_text_is_replaced(void **state) {
    json_t *bytes = tok_lines("bytes.jsonl");
    for (int k = 0; k < N_NAMES; k++) {
        json_t *rows = lines_of(&set[k], "golden_bytes.jsonl");
        assert_int_equal(json_array_size(rows), json_array_size(bytes));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const char *hex = json_string_value(json_object_get(json_array_get(bytes, i), "hex"));
            size_t n = strlen(hex) / 2;
            char *text = malloc(n ? n : 1); /* exactly as long, so that reading on is seen */
            for (size_t b = 0; b < n; b++) {
                unsigned v;
                assert_int_equal(sscanf(hex + 2 * b, "%2x", &v), 1);
                text[b] = (char)v;
            }
            check_text(&set[k], json_array_get(rows, i), text, n);
            free(text);
        }
        json_decref(rows);
    }
    json_decref(bytes);
}

static void random_lines_have_the_recorded_digests(void **state) {
    json_t *lines = tok_lines("fuzz.jsonl");
    for (int k = 0; k < N_NAMES; k++) {
        char path[128], hex[65], found[128];
        size_t n;
        snprintf(path, sizeof path, TOK_GOLDEN "%s/fuzz.handed.txt", set[k].name);
        char *expected = test_read(path, &n), *p = expected;
        for (size_t i = 0; i < json_array_size(lines); i++, p += strcspn(p, "\n") + 1) {
            const json_t *row = json_array_get(lines, i), *text = json_object_get(row, "text");
            oz_ids ids = tok_encode(set[k].tok, json_string_value(text), json_string_length(text), false);
            sha256_hex(hex, ids.data, ids.len * sizeof *ids.data);
            snprintf(found, sizeof found, "%zu %.16s\n", ids.len, hex);
            if (strncmp(p, found, strlen(found)) != 0) fail_msg("%s line %zu: found %s", set[k].name, i, found);
            oz_free(ids.data);
        }
        free(expected);
    }
    json_decref(lines);
}

static void check_stream(const oz_tok *t, const oz_ids *ids, bool skip, const json_t *deltas, const char *what) {
    oz_detok d;
    oz_buf delta = {0};
    oz_detok_init(&d, t, skip);
    assert_int_equal(json_array_size(deltas), ids->len + 1);
    for (size_t i = 0; i <= ids->len; i++) {
        oz_buf_clear(&delta);
        if (i < ids->len)
            oz_detok_push(&delta, &d, ids->data[i]);
        else
            oz_detok_flush(&delta, &d);
        tok_assert_text(&delta, json_array_get(deltas, i), what);
        assert_true(d.n_held <= 3);
    }
    oz_buf_deinit(&delta);
}

static void ids_decode_as_a_whole_and_step_by_step(void **state) {
    for (int k = 0; k < N_NAMES; k++) {
        json_t *rows = lines_of(&set[k], "decode.jsonl");
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            if (!json_object_get(row, "decoded_keep")) continue;
            oz_ids ids = tok_ids(json_object_get(row, "ids"));
            for (int skip = 0; skip < 2; skip++) {
                oz_buf whole = {0};
                assert_int_equal(oz_tok_decode(&whole, set[k].tok, ids.data, ids.len, skip, NULL), OZ_OK);
                tok_assert_text(&whole, json_object_get(row, skip ? "decoded_skip" : "decoded_keep"), tok_id_of(row));
                oz_buf_deinit(&whole);
                check_stream(set[k].tok, &ids, skip, json_object_get(row, skip ? "utf8_skip" : "utf8_keep"), tok_id_of(row));
            }
            oz_free(ids.data);
        }
        json_decref(rows);
    }
}

static void special_tokens_are_known(void **state) {
    const oz_tok *smol = set[0].tok, *quirk = set[1].tok;
    assert_int_equal(oz_tok_vocab_size(smol), 49152);
    assert_int_equal(oz_tok_bos(smol), 1);
    assert_int_equal(oz_tok_eos(smol), 2);
    assert_false(oz_tok_adds_bos(smol));
    assert_int_equal(oz_tok_id(smol, "<|im_end|>"), 2);
    assert_int_equal(oz_tok_id(smol, "\xc4\xa0the"), 260); /* " the" in the byte alphabet */
    assert_int_equal(oz_tok_id(smol, "no such token"), -1);
    assert_true(oz_tok_is_special(smol, 2));
    assert_false(oz_tok_is_special(smol, 260));
    assert_false(oz_tok_is_special(smol, -1));
    assert_false(oz_tok_is_special(smol, 49152));
    assert_int_equal(oz_tok_bos(quirk), 1200);
    assert_int_equal(oz_tok_eos(quirk), 0);
    assert_true(oz_tok_adds_bos(quirk));
}

/* ---- variants of quirk-a */

static void change(json_t *t, const json_t *row) {
    static const char *const parts[] = {"normalizer", "pre_tokenizer", "added_tokens"};
    for (int i = 0; i < 3; i++) {
        json_t *part = json_object_get(row, parts[i]);
        if (part) json_object_set(t, parts[i], part);
    }
    json_t *ignore = json_object_get(row, "ignore_merges");
    if (ignore) json_object_set(json_object_get(t, "model"), "ignore_merges", ignore);
}

static void check_variant(const oz_tok *t, const json_t *row, const char *file, const json_t *lines) {
    oz_ids all = {0};
    oz_err err = {0};
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *text = json_object_get(json_array_get(lines, i), "text");
        if (oz_tok_encode(&all, t, json_string_value(text), json_string_length(text), true, &err) != OZ_OK) fail_msg("%s", err.msg);
        oz_grow((void **)&all.data, &all.cap, all.len + 1, sizeof *all.data);
        all.data[all.len++] = -1;
    }
    char hex[65];
    sha256_hex(hex, all.data, all.len * sizeof *all.data);
    const json_t *expected = json_object_get(row, file);
    size_t n = all.len - json_array_size(lines);
    if ((json_int_t)n != json_integer_value(json_array_get(expected, 0)) ||
        strncmp(hex, json_string_value(json_array_get(expected, 1)), 16) != 0)
        fail_msg("%s of %s: found %zu ids, %.16s", file, json_dumps(row, 0), n, hex);
    oz_free(all.data);
}

static void other_stages_give_the_recorded_digests(void **state) {
    json_t *rows = tok_lines("variants.jsonl"), *texts = tok_lines("texts.jsonl"), *fuzz = tok_lines("fuzz.jsonl");
    assert_true(json_array_size(rows) > 50);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        oz_tok *t = tok_open("quirk-a", change, row);
        check_variant(t, row, "texts", texts);
        check_variant(t, row, "fuzz", fuzz);
        oz_tok_free(&t);
    }
    json_decref(rows);
    json_decref(texts);
    json_decref(fuzz);
}

/* ---- long words */

static void a_word_of_a_million_letters_is_not_quadratic(void **state) {
    enum { N = 1000000 };
    char *text = malloc(N);
    memset(text, 'a', N);
    oz_ids ids = tok_encode(set[0].tok, text, N, false);
    assert_int_equal(ids.len, N / 4); /* "aaaa" is the longest token of them */
    for (size_t i = 0; i < ids.len; i++) assert_int_equal(ids.data[i], ids.data[0]);
    oz_free(ids.data);
    for (int i = 0; i < N; i++) text[i] = " \n"[i / (N / 2)]; /* every alternative of the pattern looks at the run of spaces */
    ids = tok_encode(set[0].tok, text, N, false);
    oz_buf back = {0};
    assert_int_equal(oz_tok_decode(&back, set[0].tok, ids.data, ids.len, true, NULL), OZ_OK);
    assert_int_equal(back.len, N);
    assert_memory_equal(back.data, text, N);
    oz_buf_deinit(&back);
    oz_free(ids.data);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_ids_and_text_again),
        cmocka_unit_test(ill_formed_text_is_replaced),
        cmocka_unit_test(random_lines_have_the_recorded_digests),
        cmocka_unit_test(ids_decode_as_a_whole_and_step_by_step),
        cmocka_unit_test(special_tokens_are_known),
        cmocka_unit_test(other_stages_give_the_recorded_digests),
        cmocka_unit_test(a_word_of_a_million_letters_is_not_quadratic),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
