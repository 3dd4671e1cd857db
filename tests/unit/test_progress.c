/* What is said on stderr: labels, quiet, progress into a pipe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/progress.h"

static int kept = -1;
static char said[2000];

/* Sends stderr into a file until the matching end(). */
static void begin(void) {
    fflush(stderr);
    kept = dup(STDERR_FILENO);
    FILE *f = tmpfile();
    dup2(fileno(f), STDERR_FILENO);
    fclose(f);
}

static const char *end(void) {
    fflush(stderr);
    memset(said, 0, sizeof said);
    assert_true(pread(STDERR_FILENO, said, sizeof said - 1, 0) >= 0);
    dup2(kept, STDERR_FILENO);
    close(kept);
    return said;
}

/* A clock that the test moves. */
static int64_t now;
static int64_t fake_clock(void) { return now; }

static void start(oz_progress *p, const char *what, const char *unit, int64_t total) {
    oz_progress_init(p, what, unit, total);
    p->now_us = fake_clock, p->start_us = p->last_us = now;
}

static void ten_seconds(void) { now += 10 * 1000000; }

static void labels(void **state) {
    begin();
    oz_log_info("file %s", "a");
    oz_log_warn("w %d", 1);
    oz_log_error("e");
    assert_false(oz_log_colour());
    assert_string_equal(end(), "file a\nwarning: w 1\nerror: e\n");
}

/* Names out of files and what servers say: no escape sequence, no second line, nothing that is not UTF-8. */
static void foreign_text_does_not_speak_to_the_terminal(void **state) {
    begin();
    oz_log_error("a\x1b[31mb\rc\nerror: d\x7f\xc2\x9b" "2J\xe2\x80\xae\xe2\x81\xa6");
    oz_log_warn("caf\xc3\xa9 \xe6\xbc\xa2 \xff\xc3");
    oz_log_info("%s", "\xc2\xa0");
    assert_string_equal(end(), "error: a\\x1b[31mb\\x0dc\\x0aerror: d\\x7f\\xc2\\x9b2J\\xe2\\x80\\xae\\xe2\\x81\\xa6\nwarning: caf\xc3\xa9 \xe6\xbc\xa2 \\xff\\xc3\n\xc2\xa0\n");
    char longer[20000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    begin();
    oz_log_info("%s", longer);
    assert_int_equal(strspn(end(), "x"), sizeof said - 1); /* what of it a terminal can use */
}

static void quiet_leaves_warnings(void **state) {
    begin();
    oz_log_quiet(true);
    oz_progress p;
    oz_progress_init(&p, "packing", "B", 10);
    p.last_us -= 60 * 1000000;
    oz_progress_step(&p, 5);
    oz_progress_deinit(&p);
    oz_log_info("i");
    oz_log_warn("w");
    oz_log_quiet(false);
    assert_string_equal(end(), "warning: w\n");
}

static void short_work_says_nothing(void **state) {
    begin();
    oz_progress p;
    start(&p, "packing", "B", 100);
    for (int i = 0; i <= 100; i++) oz_progress_step(&p, i);
    oz_progress_deinit(&p);
    assert_string_equal(end(), "");
}

static void long_work_says_rate_and_time_left(void **state) {
    begin();
    oz_progress p;
    start(&p, "packing", "B", 4000000);
    ten_seconds();
    oz_progress_step(&p, 1000000);
    oz_progress_step(&p, 1000001); /* too soon for another line */
    ten_seconds();
    oz_progress_step(&p, 4000000);
    oz_progress_deinit(&p);
    assert_string_equal(end(), "packing: 1.00 MB/4.00 MB, 100 kB/s, 30 s left\npacking: 4.00 MB/4.00 MB, 200 kB/s\n");
}

static void unknown_totals_and_long_waits(void **state) {
    begin();
    oz_progress p;
    start(&p, "reading", "tokens", 0);
    ten_seconds();
    oz_progress_step(&p, 5000);
    start(&p, "slow", "tokens", 10000);
    ten_seconds();
    oz_progress_step(&p, 10);
    start(&p, "slower", "tokens", 1000);
    ten_seconds();
    oz_progress_step(&p, 125);
    assert_string_equal(end(), "reading: 5.00k tokens, 500/s\nslow: 10/10.0k tokens, 1/s, 2 h 46 min left\nslower: 125/1.00k tokens, 12.5/s, 1 min 10 s left\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels),
        cmocka_unit_test(foreign_text_does_not_speak_to_the_terminal),
        cmocka_unit_test(quiet_leaves_warnings),
        cmocka_unit_test(short_work_says_nothing),
        cmocka_unit_test(long_work_says_rate_and_time_left),
        cmocka_unit_test(unknown_totals_and_long_waits),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
