/* Classes, normal forms and lower case against the reference's records; sets and patterns. */
#include "text/tok_internal.h"
#include "tok_files.h"

static bool lower(oz_buf *out, oz_slice s, oz_uc_form unused) { return oz_uc_lowercase(out, s); }

static void single_characters_change_as_recorded(void **state) {
    static const struct {
        const char *name;
        bool (*run)(oz_buf *, oz_slice, oz_uc_form);
        oz_uc_form form;
    } forms[] = {
        {"NFC", oz_uc_normalize, OZ_UC_NFC},
        {"NFD", oz_uc_normalize, OZ_UC_NFD},
        {"NFKC", oz_uc_normalize, OZ_UC_NFKC},
        {"NFKD", oz_uc_normalize, OZ_UC_NFKD},
        {"Lowercase", lower, 0},
    };
    json_t *recorded = tok_json(".", "unicode_normalisers.json");
    for (int f = 0; f < 5; f++) {
        oz_buf all = {0}, one = {0};
        int changed = 0;
        for (uint32_t c = 0; c < 0x110000; c++) {
            char s[4];
            if (c >= 0xD800 && c < 0xE000) continue;
            oz_slice in = {s, oz_utf8_encode(s, c)};
            oz_buf_clear(&one);
            if (!forms[f].run(&one, in, forms[f].form) || oz_slice_eq(in, (oz_slice){one.data, one.len})) continue;
            changed++;
            oz_buf_append(&all, s, in.n);
            oz_buf_append(&all, one.data, one.len);
            oz_buf_putc(&all, '\n');
        }
        char hex[65];
        sha256_hex(hex, all.data, all.len);
        const json_t *want = json_object_get(recorded, forms[f].name);
        assert_int_equal(changed, json_integer_value(json_object_get(want, "changed")));
        assert_string_equal(hex, json_string_value(json_object_get(want, "sha256")));
        oz_buf_deinit(&all);
        oz_buf_deinit(&one);
    }
    json_decref(recorded);
}

static void sequences_are_reordered_and_composed(void **state) {
    static const struct {
        oz_uc_form form;
        const char *in, *out;
    } cases[] = {
        {OZ_UC_NFC, "plain \xE6\x97\xA5", NULL}, /* nothing unsafe: not copied */
        {OZ_UC_NFC, "xa\xCC\x81y", "x\xC3\xA1y"},
        {OZ_UC_NFC, "a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81"}, /* the mark below comes first */
        {OZ_UC_NFD, "\xE1\xBA\xA1\xCC\x81", "a\xCC\xA3\xCC\x81"},
        {OZ_UC_NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"}, /* three jamo, one syllable */
        {OZ_UC_NFC, "\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"},
        {OZ_UC_NFD, "\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},
        {OZ_UC_NFKC, "\xEF\xAC\x81n", "fin"},
        {OZ_UC_NFKC, "\xE3\x8B\xBF", NULL},                            /* U+32FF came after the reference's tables */
        {OZ_UC_NFC, "a\xE0\xA2\x98\xCC\xA3", "a\xE0\xA2\x98\xCC\xA3"}, /* so did U+0898: no mark, not reordered */
        {OZ_UC_NFC, "\xCC\x81", "\xCC\x81"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_buf out = {0};
        bool changed = oz_uc_normalize(&out, oz_slice_view(cases[i].in), cases[i].form);
        assert_int_equal(changed, cases[i].out != NULL);
        if (changed) assert_string_equal(out.data, cases[i].out);
        oz_buf_deinit(&out);
    }
}

static void a_long_run_of_marks_is_sorted_in_linear_time(void **state) {
    enum { N = 200000 };
    oz_buf in = {0}, out = {0};
    oz_buf_putc(&in, 'q');
    for (int i = 0; i < N; i++) oz_buf_puts(&in, i % 2 ? "\xCC\xA3" : "\xCC\x81");
    assert_true(oz_uc_normalize(&out, (oz_slice){in.data, in.len}, OZ_UC_NFC));
    assert_int_equal(out.len, in.len);
    assert_memory_equal(out.data + 1, "\xCC\xA3\xCC\xA3", 4);
    assert_memory_equal(out.data + out.len - 4, "\xCC\x81\xCC\x81", 4);
    oz_buf_deinit(&in);
    oz_buf_deinit(&out);
}

static void classes_hold_what_is_recorded(void **state) {
    size_t n;
    char *file = test_read(TOK_GOLDEN "unicode_classes.txt", &n), *save, name[16];
    for (char *line = strtok_r(file, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        int expected, found = 0;
        assert_int_equal(sscanf(line, "%15s %d", name, &expected), 2);
        const char *begin = name[1] == 'p' ? name + 3 : name + 1;
        const oz_uc_class *k = oz_uc_class_find(begin, name[1] == 'p' ? strlen(begin) - 1 : 1);
        assert_non_null(k);
        for (uint32_t c = 0; c < 0x110000; c++) found += oz_uc_in(k, c);
        assert_int_equal(found, expected);
    }
    free(file);
    assert_false(oz_uc_in(oz_uc_class_find("s", 1), 0x180E)); /* PCRE2 thinks it is white space */
    assert_true(oz_uc_in(oz_uc_class_find("digits", 6), 0x11DE0));
    assert_false(oz_uc_in(oz_uc_class_find("N", 1), 0x11DE0));
    assert_null(oz_uc_class_find("Nope", 4));
}

static void clusters_end_where_the_reference_ends_them(void **state) {
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {
        {"ab", 1},
        {"\r\n", 2},
        {"\n\xCC\x81", 1},         /* nothing extends a control character */
        {"e\xCC\x81\xCC\xA3x", 5}, /* two marks */
        {"a\xE2\x80\x8D", 4},      /* a joiner */
        {"a\xE2\x80\x8D"
         "b",
         4}, /* joins pictures only */
        {"\xC2\xA9\xE2\x80\x8D\xC2\xA9", 7},
        {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", 9}, /* jamo */
        {"\xEA\xB0\x80\xE1\x86\xA8", 6},             /* a syllable and its last consonant */
        {"\xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\xB7", 9}, /* a conjunct */
        {"\xD8\x80"
         "a",
         3},                  /* U+0600 stands before what it belongs to */
        {"a\xE1\xAB\x9E", 1}, /* U+1ADE came after the reference's tables */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(oz_uc_grapheme(cases[i].text, strlen(cases[i].text)), cases[i].n);
}

static void scripts_are_told_apart(void **state) {
    assert_int_equal(oz_uc_script(' '), OZ_UC_NO_SCRIPT);
    assert_int_equal(oz_uc_script('a'), oz_uc_script(0xE9));
    assert_int_not_equal(oz_uc_script('a'), oz_uc_script('1'));
    assert_int_not_equal(oz_uc_script('a'), oz_uc_script(0x3B1));
    assert_int_equal(oz_uc_script(0x4E2D), oz_uc_script(0x3042)); /* kana count as Han */
    assert_int_equal(oz_uc_script(0x4E2D), oz_uc_script(0x30FC));
}

/* ---- sets, patterns, alphabets */

static void sets_join_and_turn_around(void **state) {
    oz_set s = {0};
    oz_set_add(&s, 'x', 'z');
    oz_set_add(&s, 'a', 'c');
    oz_set_add(&s, 'd', 'd');
    oz_set_negate(&s);
    assert_int_equal(s.n, 3);
    assert_true(oz_set_has(&s, '`') && oz_set_has(&s, 'e') && oz_set_has(&s, 0x10FFFF) && oz_set_has(&s, 0));
    assert_false(oz_set_has(&s, 'a') || oz_set_has(&s, 'd') || oz_set_has(&s, 'y'));
    oz_set_negate(&s);
    assert_int_equal(s.n, 2);
    oz_free(s.r);
}

/* Where a pattern first matches in a text, in characters: "BEGIN-END", "none", or the error. */
static void match(char out[1024], const char *pattern, const char *text) {
    oz_buf p = {0};
    oz_sets sets = {0};
    oz_alphabet a = {0};
    oz_err err = {0};
    void *code = NULL;
    uint8_t kinds[64];
    oz_match m = {0};
    oz_matching *w = oz_matching_new();
    oz_status st = oz_pattern_parse(&p, &sets, oz_slice_view(pattern), &err);
    if (st == OZ_OK) st = oz_alphabet_make(&a, &sets, &err);
    if (st == OZ_OK) st = oz_matcher_new(&code, &a, (oz_slice){p.data, p.len}, &err);
    if (st == OZ_OK) st = oz_matching_find(&m, w, code, kinds, oz_alphabet_map(kinds, &a, oz_slice_view(text)), 0, &err);
    if (st != OZ_OK)
        strcpy(out, err.msg);
    else if (!m.found)
        strcpy(out, "none");
    else
        snprintf(out, 1024, "%zu-%zu", m.begin, m.end);
    oz_matching_free(&w);
    oz_matcher_free(&code);
    oz_alphabet_deinit(&a);
    oz_sets_deinit(&sets);
    oz_buf_deinit(&p);
}

static void patterns_match_what_the_reference_matches(void **state) {
    static const struct {
        const char *pattern, *text, *found;
    } cases[] = {
        {"\\p{L}+", "12 \xC3\xA9t\xC3\xA9!", "3-6"},
        {"[^\\s\\p{L}]", " a1", "2-3"},
        {"(?i:'s)", "x'\xC5\xBF", "1-3"}, /* U+017F */
        {"(?i)K", "\xE2\x84\xAA", "0-1"}, /* the Kelvin sign */
        {"(?i:[^s])", "S\xC5\xBF.", "2-3"},
        {"\\s+(?!\\S)", "a   b", "1-3"},
        {"\\s", "\xE1\xA0\x8E", "none"}, /* U+180E */
        {"a{,2}b", "aaab", "1-4"},
        {"a{x}", "a{x}", "0-4"},
        {".", "\n.", "1-2"},
        {"(?m:.)", "\n.", "0-1"},
        {"^b", "a\nb", "2-3"},
        {"a$", "a\nb", "0-1"},
        {"a\\Z", "a\n", "0-1"},
        {"a\\z", "a\n", "none"},
        {"(?<!x)y|(?>z+)", "xyzz", "2-4"},
        {"[\\]\\-x]", "-", "0-1"},
        {"[a-]", "-", "0-1"},
        {"\\x41\\u0042\\x{1F600}", "AB\xF0\x9F\x98\x80", "0-3"},
        {"\\P{L}", "a1", "1-2"},
        {"\\p{^L}", "a1", "1-2"},
        {"a++a", "aaa", "none"},
        {"", "a", "0-0"},
        {"\\p{Han}+", "a\xE4\xB8\xAD\xE6\x96\x87", "1-3"},
        {"[\\p{L}&&[^\\p{Han}]]+",
         "\xE4\xB8\xAD"
         "ab",
         "1-3"},
        {"[^a[bc]]", "abcd", "3-4"},
        {"[a-e&&c-z&&[^d]]+", "abdec", "3-5"},
        {"\\w", "\xC2\xB2", "0-1"}, /* superscript two: a word outside of brackets only */
        {"[\\w]", "\xC2\xB2", "none"},
    };
    char found[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        match(found, cases[i].pattern, cases[i].text);
        if (strcmp(found, cases[i].found) != 0) fail_msg("%s: found %s, expected %s", cases[i].pattern, found, cases[i].found);
    }
}

static void what_patterns_cannot_say_here_is_an_error(void **state) {
    static const struct {
        const char *pattern, *error;
    } cases[] = {
        {"\\p{Runic}", "this character property is not supported in a pattern (at byte 0: \"\\p{Runic}\")"},
        {"\\p{digits}", "this character property"},
        {"\\p{s}", "this character property"},
        {"\\p{L", "this character property"},
        {"\\1", "this escape"},
        {"\\bx", "this escape"},
        {"\\K", "this escape"},
        {"\\", "a backslash at the end"},
        {"(?<n>a)", "this kind of group"},
        {"(?'n'a)", "this kind of group"},
        {"(*UTF)", "this kind of group"},
        {"(?R)", "this option"},
        {"(?x:a)", "this option"},
        {"[[:alpha:]]", "a named class between brackets"},
        {"[a&&]", "an intersection with nothing"},
        {"[a-[b]]", "a range that ends"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[a", "such a depth of sets"},
        {"[b-a]", "a range that ends"},
        {"[a", "a set without an end"},
        {"[]a]", "begins with ]"},
        {"(a", "a group without an end"},
        {"a)", "a ) without its ("},
        {"*", "a repeat of nothing"},
        {"a**", "a repeat of a repeat"},
        {"a{2}?", "a repeat of a repeat"},
        {"a{1,2}+", "a repeat of a repeat"},
        {"a(?i)b", "an option in the middle"},
        {"(?i:\xC3\xA9)", "a cased letter outside ASCII"},
        {"(?i:[\xC3\xA0-\xC4\x80])", "a cased letter outside ASCII"},
        {"(?i:\\p{Lu})", "a cased property"},
        {"(?i:st)", "ss, st, ff, fi or fl"},
        {"\\xFF", "a byte above 7F"},
        {"\\x{110000}", "this code point"},
        {"\\u12", "this code point"},
        {"a{70000}", "does not compile: number too big"},
    };
    char found[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        match(found, cases[i].pattern, "");
        if (!strstr(found, cases[i].error)) fail_msg("%s: found %s, expected %s", cases[i].pattern, found, cases[i].error);
    }
    oz_buf many = {0};
    for (uint32_t c = 0x4E00; c < 0x4E00 + OZ_MAX_SETS + 1; c++) oz_buf_put_utf8(&many, c);
    match(found, many.data, "");
    test_contains(found, "more than 64 sets of characters");
    oz_buf_deinit(&many);
    match(found, "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((", "");
    test_contains(found, "such a depth of groups");
}

static void what_backtracks_without_end_is_an_error(void **state) {
    char found[1024];
    match(found, "(a+)+(?:bb|cc)", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    test_contains(found, "cannot cut this text at character 0: match limit exceeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_characters_change_as_recorded),
        cmocka_unit_test(sequences_are_reordered_and_composed),
        cmocka_unit_test(a_long_run_of_marks_is_sorted_in_linear_time),
        cmocka_unit_test(classes_hold_what_is_recorded),
        cmocka_unit_test(clusters_end_where_the_reference_ends_them),
        cmocka_unit_test(scripts_are_told_apart),
        cmocka_unit_test(sets_join_and_turn_around),
        cmocka_unit_test(patterns_match_what_the_reference_matches),
        cmocka_unit_test(what_patterns_cannot_say_here_is_an_error),
        cmocka_unit_test(what_backtracks_without_end_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
