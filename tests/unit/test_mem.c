/* Memory: zeroing, overflow, big blocks, arena limits, and the guard of the token loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"

static bool is_zero(const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (((const char *)p)[i]) return false;
    }
    return true;
}

static void small_blocks_are_zero(void **state) {
    char *p = oz_alloc(100);
    assert_true(is_zero(p, 100));
    oz_free(p);
    p = oz_alloc(0);
    assert_non_null(p);
    oz_free(p);
    oz_free(NULL);
}

static void grow_keeps_and_zeroes(void **state) {
    int *a = NULL;
    size_t cap = 0;
    for (int i = 0; i < 1000; i++) {
        oz_grow((void **)&a, &cap, (size_t)i + 1, sizeof *a);
        assert_true(cap > (size_t)i);
        assert_int_equal(a[i], 0);
        a[i] = i;
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(a[i], i);
    assert_true(cap < 3000);
    oz_free(a);
}

static void strings_are_copied(void **state) {
    char *s = oz_strndup("abcdef", 3), *t = oz_asprintf("%s-%d", s, 42), *u = oz_strdup(t);
    assert_string_equal(s, "abc");
    assert_string_equal(u, "abc-42");
    oz_free(s);
    oz_free(t);
    oz_free(u);
}

static void products_overflow(void **state) {
    size_t s;
    int64_t i;
    assert_true(oz_mul_size(&s, SIZE_MAX / 2, 2));
    assert_true(s == SIZE_MAX - 1);
    assert_false(oz_mul_size(&s, SIZE_MAX / 2 + 1, 2));
    assert_true(oz_mul_i64(&i, INT64_MIN / 2, 2));
    assert_true(i == INT64_MIN);
    assert_false(oz_mul_i64(&i, INT64_MIN, -1));
    assert_false(oz_mul_i64(&i, (int64_t)1 << 32, (int64_t)1 << 31));
}

static void array_overflow_ends_the_process(void **state) {
    pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO);
        oz_alloc_array(SIZE_MAX / 4, 8);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static void big_blocks_are_aligned_and_zero(void **state) {
    for (size_t n = 0; n < 300; n += 37) {
        char *p;
        assert_int_equal(oz_big_new((void **)&p, n, "x", NULL), OZ_OK);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(is_zero(p, n));
        memset(p, 1, n);
        oz_big_free(p);
    }
    oz_big_free(NULL);
}

static void big_blocks_cost_nothing_until_used(void **state) {
    void *p;
    size_t before = oz_rss_bytes();
    assert_int_equal(oz_big_new(&p, (size_t)256 << 20, "workspace", NULL), OZ_OK);
    assert_true(oz_rss_bytes() < before + ((size_t)64 << 20));
    oz_big_free(p);
}

static void big_without_memory_is_an_error(void **state) {
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, (size_t)1 << 60};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        oz_err e = {0};
        void *p = &e;
        assert_int_equal(oz_big_new(&p, sizes[i], "KV cache", &e), OZ_E_NOMEM);
        assert_null(p);
        assert_non_null(strstr(e.msg, "KV cache"));
    }
}

static void arena_aligns_and_limits(void **state) {
    oz_arena *a = oz_arena_new(1000);
    for (size_t n = 1; n < 40; n += 13) {
        char *p = oz_arena_alloc(a, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_true(is_zero(p, n));
        memset(p, 0xff, n);
    }
    assert_int_equal(oz_arena_used_bytes(a), 16 + 16 + 32);
    assert_null(oz_arena_alloc(a, 1000));
    assert_null(oz_arena_alloc(a, SIZE_MAX));
    assert_null(oz_arena_strndup(a, "x", SIZE_MAX));
    assert_non_null(oz_arena_alloc(a, 1000 - 64 - 8)); /* rounded up it fits to the byte */
    assert_null(oz_arena_alloc(a, 1));
    oz_arena_reset(a);
    assert_int_equal(oz_arena_used_bytes(a), 0);
    char *p = oz_arena_alloc(a, 900);
    assert_true(is_zero(p, 900)); /* though the chunk was written before */
    assert_string_equal(oz_arena_strndup(a, "hello", 4), "hell");
    oz_arena_free(&a);
    assert_null(a);
    oz_arena_free(&a);
}

static void arena_grows_without_limit(void **state) {
    oz_arena *a = oz_arena_new(0);
    char *first = oz_arena_strndup(a, "first", 5);
    for (int i = 0; i < 2000; i++) assert_non_null(oz_arena_alloc(a, 1000));
    assert_non_null(oz_arena_alloc(a, 5 << 20));
    assert_string_equal(first, "first");
    oz_arena_reset(a);
    assert_non_null(oz_arena_alloc(a, 100));
    oz_arena_free(&a);
}

#ifdef OZ_ALLOC_GUARD
/* The way the child ended: 0, or its signal. */
static int child(void (*fn)(void)) {
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        fn();
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void *volatile kept;
static void forbid_malloc(void) { oz_alloc_forbid(true), kept = malloc(1); }
static void forbid_alloc(void) { oz_alloc_forbid(true), kept = oz_alloc(1); }
static void forbid_realloc(void) { kept = oz_alloc(1), oz_alloc_forbid(true), kept = oz_realloc(kept, 100000); }
static void forbid_then_allow(void) { oz_alloc_forbid(true), oz_alloc_forbid(false), free(malloc(1)); }

static void guard_stops_allocations(void **state) {
    assert_int_equal(child(forbid_malloc), SIGABRT);
    assert_int_equal(child(forbid_alloc), SIGABRT);
    assert_int_equal(child(forbid_realloc), SIGABRT);
    assert_int_equal(child(forbid_then_allow), 0);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_blocks_are_zero),
        cmocka_unit_test(grow_keeps_and_zeroes),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(products_overflow),
        cmocka_unit_test(array_overflow_ends_the_process),
        cmocka_unit_test(big_blocks_are_aligned_and_zero),
        cmocka_unit_test(big_blocks_cost_nothing_until_used),
        cmocka_unit_test(big_without_memory_is_an_error),
        cmocka_unit_test(arena_aligns_and_limits),
        cmocka_unit_test(arena_grows_without_limit),
#ifdef OZ_ALLOC_GUARD
        cmocka_unit_test(guard_stops_allocations),
#endif
    };
    return cmocka_run_group_tests_name("mem", tests, NULL, NULL);
}
