/* Names that differ in numbers alone: lines stand for exactly their names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/names.h"

enum { MAX = 8 };

/* names and keys end with NULL; lines "text count", in order. */
static const struct { const char *names[MAX], *keys[MAX], *lines[MAX]; } CASES[] = {
    {{"a"}, {0}, {"a 1"}},
    {{"l.0.q", "l.1.q", "l.2.q"}, {0}, {"l.{0-2}.q 3"}},
    {{"l.10.q", "l.2.q", "l.9.q"}, {0}, {"l.{2,9-10}.q 3"}},
    {{"l.0.q", "l.0.k", "l.1.q", "head"}, {0}, {"l.{0-1}.q 2", "l.0.k 1", "head 1"}},
    {{"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.1.e.1"}, {0}, {"l.{0-1}.e.{0-1} 4"}},
    {{"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.2.e.1", "l.2.e.0"}, {0}, {"l.{0,2}.e.{0-1} 4", "l.1.e.0 1"}}, /* a hole is not papered over */
    {{"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.1.e.1"}, {"x", "x", "y", "x"}, {"l.0.e.{0-1} 2", "l.1.e.0 1", "l.1.e.1 1"}},
    {{"l.00.q", "l.01.q", "l.1x.q", "l.-1.q"}, {0}, {"l.00.q 1", "l.01.q 1", "l.1x.q 1", "l.-1.q 1"}}, /* no numbers */
    {{"1.2.3.4.5", "1.2.3.4.6", "1.2.3.5.6"}, {0}, {"1.2.3.4.5 1", "1.2.3.{4-5}.6 2"}}, /* beyond four they are text */
    {{"l.1234567890", "l.1234567891"}, {0}, {"l.1234567890 1", "l.1234567891 1"}},
    {{"", "0", "."}, {0}, {" 1", "0 1", ". 1"}},
    {{"a\1b.\2.0", "a\1b.\2.1"}, {0}, {"a?b.?.{0-1} 2"}},
};

static void lines_stand_for_their_names(void **state) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t n = 0, n_lines = 0;
        while (CASES[i].names[n]) n++;
        while (CASES[i].lines[n_lines]) n_lines++;
        oz_name_lines l;
        oz_names_collapse(&l, CASES[i].names, CASES[i].keys[0] ? CASES[i].keys : NULL, n);
        assert_int_equal(l.n, n_lines);
        for (size_t k = 0; k < n_lines; k++) {
            char text[64];
            int count = 0;
            for (size_t j = 0; j < n; j++) count += l.line_of[j] == k;
            snprintf(text, sizeof text, "%s %d", l.text[k], count);
            assert_string_equal(text, CASES[i].lines[k]);
        }
        oz_name_lines_deinit(&l);
    }
}

/* Layers of different numbers of experts, one of them with a hole: as few lines as there are kinds of layer. */
static void many_names(void **state) {
    enum { LAYERS = 60, EXPERTS = 256 };
    char **names = calloc(LAYERS * EXPERTS, sizeof *names);
    size_t n = 0;
    for (int l = 0; l < LAYERS; l++)
        for (int e = 0; e < (l == 7 ? 100 : EXPERTS); e++) {
            if (l == 9 && e == 200) continue;
            names[n] = malloc(64);
            sprintf(names[n++], "model.layers.%d.mlp.experts.%d.down_proj", l, e);
        }
    oz_name_lines lines;
    oz_names_collapse(&lines, (const char *const *)names, NULL, n);
    assert_int_equal(lines.n, 3);
    assert_string_equal(lines.text[0], "model.layers.{0-6,8,10-59}.mlp.experts.{0-255}.down_proj");
    assert_string_equal(lines.text[1], "model.layers.7.mlp.experts.{0-99}.down_proj");
    assert_string_equal(lines.text[2], "model.layers.9.mlp.experts.{0-199,201-255}.down_proj");
    oz_name_lines_deinit(&lines);
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
}

static void none(void **state) {
    oz_name_lines l;
    oz_names_collapse(&l, NULL, NULL, 0);
    assert_int_equal(l.n, 0);
    oz_name_lines_deinit(&l);
    assert_null(l.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_stand_for_their_names), cmocka_unit_test(many_names), cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
