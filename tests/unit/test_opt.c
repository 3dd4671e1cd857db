/* Options: every type, ranges, lists, mistakes on the command line, help and manual. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/opt.h"

static struct { bool force, json; int64_t n, at_least, ctx; double t; const char *out, *dtype; oz_opt_list list; } v;

static const oz_opt TABLE_A[] = {
    {"force", 'f', OZ_OPT_FLAG, &v.force, 0, 0, NULL, NULL, "replace the target"},
    {"num", 'n', OZ_OPT_INT, &v.n, 1, 8, NULL, "N", "how many"},
    {"temperature", 0, OZ_OPT_FLOAT, &v.t, -2, 2, NULL, "T", "randomness"},
    {"output", 'o', OZ_OPT_STR, &v.out, 0, 0, NULL, "DIR", "where to"},
    {0},
};
static const oz_opt TABLE_B[] = {
    {"dtype", 0, OZ_OPT_STR, &v.dtype, 0, 0, "auto|f32|bf16", "TYPE", "type"},
    {"ignore", 0, OZ_OPT_LIST, &v.list, 0, 0, NULL, "PAT", "modules to leave"},
    {"at-least", 0, OZ_OPT_INT, &v.at_least, 0, 1e19, NULL, NULL, "a number"},
    {"ctx", 0, OZ_OPT_INT, &v.ctx, 4, 8, NULL, NULL, "window; default: the model's"},
    {"json", 0, OZ_OPT_FLAG, &v.json, 0, 0, NULL, NULL, "JSON"},
    {0},
};
static const oz_opt *const TABLES[] = {TABLE_A, TABLE_B, NULL};
static const oz_opt_cmd CMD = {"test", "MODEL [MODEL] -o DIR", "Does things.", ".A paragraph\\here.\n  kept - as it is\n\nAnother, which is so long that it does not fit into the eighty columns of a terminal.\nThird.", TABLES, 1, 2};

static const char *args[16];
static int n_args;
static bool want_help;
static oz_err err;

static oz_status parse(const char *const *words) {
    char *argv[16] = {(char *)"test"};
    int argc = 1;
    for (; *words; words++) argv[argc++] = (char *)*words;
    oz_opt_lists_free(&CMD);
    v.force = v.json = false, v.n = 4, v.at_least = 0, v.t = 0.5, v.out = NULL, v.dtype = "auto";
    oz_err_clear(&err);
    return oz_opt_parse(&CMD, argc, argv, args, &n_args, &want_help, &err);
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void assert_usage(oz_status s, const char *message) {
    assert_int_equal(s, OZ_E_USAGE);
    assert_int_equal(err.code, OZ_E_USAGE);
    assert_string_equal(err.msg, message);
}

static void every_type(void **state) {
    assert_int_equal(PARSE("m", "--force", "--num", "8", "--temperature=-1.5", "-o", "dir", "--dtype", "f32", "n"), OZ_OK);
    assert_true(v.force);
    assert_false(v.json);
    assert_int_equal(v.n, 8);
    assert_true(v.t == -1.5);
    assert_string_equal(v.out, "dir");
    assert_string_equal(v.dtype, "f32");
    assert_int_equal(n_args, 2);
    assert_string_equal(args[0], "m");
    assert_string_equal(args[1], "n");
    assert_false(want_help);
}

static void defaults_stay(void **state) {
    assert_int_equal(PARSE("m"), OZ_OK);
    assert_int_equal(v.n, 4);
    assert_string_equal(v.dtype, "auto");
    assert_null(v.out);
    assert_int_equal(v.list.n, 0);
}

static void spellings(void **state) {
    assert_int_equal(PARSE("-f", "-n", "3", "--output=-", "--at-least=9000000000000000000", "--temperature", "-1", "--", "--num"), OZ_OK);
    assert_true(v.force);
    assert_int_equal(v.n, 3);
    assert_string_equal(v.out, "-");
    assert_true(v.at_least == 9000000000000000000);
    assert_true(v.t == -1);
    assert_int_equal(n_args, 1);
    assert_string_equal(args[0], "--num");
    assert_int_equal(PARSE("-", "--output=--force=x", "-n", "2", "-n", "5"), OZ_OK); /* "-": stdin; the last one counts */
    assert_string_equal(args[0], "-");
    assert_string_equal(v.out, "--force=x");
    assert_int_equal(v.n, 5);
}

static void lists_keep_their_order(void **state) {
    assert_int_equal(PARSE("m", "--ignore", "a", "--ignore=b=c", "--ignore", ""), OZ_OK);
    assert_int_equal(v.list.n, 3);
    assert_string_equal(v.list.items[0], "a");
    assert_string_equal(v.list.items[1], "b=c");
    assert_string_equal(v.list.items[2], "");
    oz_opt_lists_free(&CMD);
    assert_int_equal(v.list.n, 0);
}

static void numbers_are_checked(void **state) {
    assert_usage(PARSE("m", "-n", "9"), "--num: must be an integer, 1..8, found 9");
    assert_usage(PARSE("m", "-n", "0"), "--num: must be an integer, 1..8, found 0");
    assert_usage(PARSE("m", "-n", "4x"), "--num: must be an integer, 1..8, found 4x");
    assert_usage(PARSE("m", "-n", "4.0"), "--num: must be an integer, 1..8, found 4.0");
    assert_usage(PARSE("m", "-n", " 4"), "--num: must be an integer, 1..8, found  4");
    assert_usage(PARSE("m", "--num="), "--num: must be an integer, 1..8, found nothing");
    assert_usage(PARSE("m", "--at-least", "-1"), "--at-least: must be an integer, at least 0, found -1");
    assert_usage(PARSE("m", "--at-least", "9223372036854775808"), "--at-least: must be an integer, at least 0, found 9223372036854775808");
    assert_usage(PARSE("m", "--temperature", "2.01"), "--temperature: must be a number, -2..2, found 2.01");
    assert_usage(PARSE("m", "--temperature", "nan"), "--temperature: must be a number, -2..2, found nan");
    assert_usage(PARSE("m", "--temperature", "1e999"), "--temperature: must be a number, -2..2, found 1e999");
}

static void choices_are_checked(void **state) {
    assert_usage(PARSE("m", "--dtype", "f3"), "--dtype: must be one of auto|f32|bf16, found f3");
    assert_usage(PARSE("m", "--dtype", "auto|f32"), "--dtype: must be one of auto|f32|bf16, found auto|f32");
    assert_usage(PARSE("m", "--dtype="), "--dtype: must be one of auto|f32|bf16, found nothing");
}

static void mistakes_are_named(void **state) {
    assert_usage(PARSE("m", "--forse"), "--forse: no such option of test (did you mean --force?)");
    assert_usage(PARSE("m", "--colour=red"), "--colour: no such option of test");
    assert_usage(PARSE("m", "-x"), "-x: no such option of test");
    assert_int_equal(PARSE("m", "-n5"), OZ_OK);
    assert_usage(PARSE("m", "-f5"), "-f5: no such option of test");
    assert_usage(PARSE("m", "--output="), "--output: its DIR is empty");
    assert_usage(PARSE("m", ""), "test: argument 2 is empty: ounce test MODEL [MODEL] -o DIR");
    assert_usage(PARSE("m", "--force=yes"), "--force: takes no value, found yes");
    assert_usage(PARSE("m", "--num"), "--num: its N is missing");
    assert_usage(PARSE("m", "-o", "--force"), "--output: its DIR is missing before --force (write --output=--force if that is the DIR)");
    assert_usage(PARSE("--force"), "test: an argument is missing: ounce test MODEL [MODEL] -o DIR");
    assert_usage(PARSE("a", "b", "c"), "test: one argument too many, c: ounce test MODEL [MODEL] -o DIR");
}

static char *printed(void (*print)(const oz_opt_cmd *, FILE *)) {
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    print(&CMD, f);
    fclose(f);
    return text;
}

static void help_comes_from_the_table(void **state) {
    assert_int_equal(PARSE("-n", "99", "--bad", "--help"), OZ_OK); /* asks for help: nothing else matters */
    assert_true(want_help);
    assert_int_equal(v.n, 4);
    assert_int_equal(PARSE("-h"), OZ_OK);
    assert_true(want_help);
    assert_int_equal(PARSE("--", "--help"), OZ_OK);
    assert_false(want_help);
    char *text = printed(oz_opt_help);
    assert_int_equal(strncmp(text, "usage: ounce test MODEL [MODEL] -o DIR\n\nDoes things.\n", 50), 0);
    assert_non_null(strstr(text, "\n  -n, --num N                 how many (1..8, default 4)\n"));
    assert_non_null(strstr(text, ".A paragraph\\here.\n  kept - as it is\n\nAnother, which is so long that it does not fit into the eighty columns of a\nterminal.\nThird.\n\noptions:\n"));
    assert_non_null(strstr(text, "type (auto|f32|bf16, default auto)\n"));
    assert_non_null(strstr(text, "a number (at least 0, default 0)\n"));
    assert_non_null(strstr(text, "window; default: the model's (4..8)\n")); /* 0 could not be given */
    assert_non_null(strstr(text, "modules to leave (may be repeated)\n"));
    assert_non_null(strstr(text, "  -o, --output DIR            where to\n"));
    free(text);
}

static void manual_escapes_troff(void **state) {
    PARSE("m");
    char *text = printed(oz_opt_man);
    assert_non_null(strstr(text, ".SH \"OUNCE TEST\"\n.B ounce test\nMODEL [MODEL] \\-o DIR\n"));
    assert_non_null(strstr(text, "\\&.A paragraph\\ehere.\n  kept \\- as it is\n\nAnother, which is so long that it does not fit into the eighty columns of a terminal.\n.br\nThird.\n"));
    assert_non_null(strstr(text, ".TP\n.B \\-\\-ignore PAT\nmodules to leave (may be repeated)\n"));
    free(text);
}

static int tear_down(void **state) { return oz_opt_lists_free(&CMD), 0; }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),          cmocka_unit_test(defaults_stay),       cmocka_unit_test(spellings),
        cmocka_unit_test(lists_keep_their_order), cmocka_unit_test(numbers_are_checked), cmocka_unit_test(choices_are_checked),
        cmocka_unit_test(mistakes_are_named),  cmocka_unit_test(help_comes_from_the_table), cmocka_unit_test(manual_escapes_troff),
    };
    return cmocka_run_group_tests_name("opt", tests, NULL, tear_down);
}
