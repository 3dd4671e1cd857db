/* The pool: ranges cover [0, n) exactly, in multiples of the grain, over many runs and sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/pool.h"

enum { MAX_N = 1000, MAX_THREADS = 8 };

typedef struct cover { atomic_int hits[MAX_N]; atomic_int calls; int64_t begin[MAX_THREADS], end[MAX_THREADS]; atomic_int per_thread[MAX_THREADS]; } cover;

static void mark(void *arg, int thread, int64_t begin, int64_t end) {
    cover *c = arg;
    atomic_fetch_add(&c->calls, 1);
    atomic_fetch_add(&c->per_thread[thread], 1);
    c->begin[thread] = begin;
    c->end[thread] = end;
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&c->hits[i], 1);
}

static void check_cover(oz_pool *p, int64_t n, int64_t grain) {
    static cover c;
    memset(&c, 0, sizeof c);
    int threads = oz_pool_threads(p);
    oz_pool_run(p, n, grain, mark, &c);
    int64_t shortest = n, longest = 0, units = (n + grain - 1) / grain;
    for (int64_t i = 0; i < MAX_N; i++) assert_int_equal(c.hits[i], i < n);
    assert_int_equal(c.calls, n == 0 ? 0 : units < threads ? units : threads);
    for (int t = 0; t < threads; t++) {
        assert_true(c.per_thread[t] <= 1);
        if (!c.per_thread[t]) continue;
        assert_int_equal(c.begin[t] % grain, 0);
        assert_true(c.end[t] % grain == 0 || c.end[t] == n);
        int64_t k = (c.end[t] - c.begin[t] + grain - 1) / grain;
        if (k < shortest) shortest = k;
        if (k > longest) longest = k;
    }
    assert_true(n == 0 || longest - shortest <= 1);
}

static void ranges_cover_exactly(void **state) {
    const int counts[] = {1, 2, 3, MAX_THREADS};
    for (int i = 0; i < 4; i++) {
        const int threads = counts[i];
        oz_pool *p = oz_pool_new(threads);
        assert_int_equal(oz_pool_threads(p), threads);
        const int64_t grains[] = {1, 2, 7, 32, 2000};
        for (int g = 0; g < 5; g++) {
            for (int64_t n = 0; n <= 70; n += n < 20 ? 1 : 7) check_cover(p, n, grains[g]);
            check_cover(p, MAX_N, grains[g]);
        }
        oz_pool_free(&p);
        assert_null(p);
        oz_pool_free(&p);
    }
}

static void add_range(void *arg, int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) ((int64_t *)arg)[i]++;
}

static void many_runs_warm_and_cold(void **state) {
    oz_pool *p = oz_pool_new(3);
    int64_t a[10] = {0};
    for (int i = 0; i < 5000; i++) {
        oz_pool_run(p, 1 + i % 10, 1, add_range, a); /* each run reads what the last one wrote, from other threads */
        if (i % 500 == 0) usleep(2000);             /* workers fall asleep */
    }
    for (int i = 0; i < 10; i++) assert_int_equal(a[i], 500 * (10 - i));
    oz_pool_free(&p);
}

static void slow_range(void *arg, int thread, int64_t begin, int64_t end) {
    if (thread == *(int *)arg) usleep(3000);
}

static void waits_for_the_slowest(void **state) {
    oz_pool *p = oz_pool_new(3);
    for (int slow = 0; slow < 3; slow++) {
        for (int i = 0; i < 5; i++) oz_pool_run(p, 3, 1, slow_range, &slow); /* the caller sleeps, too */
    }
    oz_pool_free(&p);
}

static void a_run_allocates_nothing(void **state) {
    oz_pool *p = oz_pool_new(2);
    int64_t a[10] = {0};
    oz_alloc_forbid(true);
    for (int i = 0; i < 100; i++) oz_pool_run(p, 10, 1, add_range, a);
    oz_alloc_forbid(false);
    assert_int_equal(a[9], 100);
    oz_pool_free(&p);
}

static int64_t cpu_us(void) { /* of all threads of the process */
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* After the last region workers watch for tens of microseconds each, then sleep. Seen red: workers that watch for ever, and ones that yield instead of sleeping,
 * take some 79 ms of two busy cores here. */
static void idle_workers_take_no_time(void **state) {
    enum { IDLE_US = 300000, AT_MOST_US = 5000 };
    oz_pool *p = oz_pool_new(MAX_THREADS);
    int64_t a[MAX_THREADS] = {0};
    for (int i = 0; i < 100; i++) oz_pool_run(p, MAX_THREADS, 1, add_range, a);
    const int64_t before = cpu_us();
    usleep(IDLE_US);
    const int64_t spent = cpu_us() - before;
    if (spent > AT_MOST_US) fail_msg("%d idle threads took %lld us of processor time in %d us", MAX_THREADS, (long long)spent, IDLE_US);
    oz_pool_free(&p);
}

static void zero_threads_means_all_cores(void **state) {
    oz_pool *p = oz_pool_new(0);
    assert_true(oz_pool_threads(p) >= 1);
    check_cover(p, 3, 1);
    oz_pool_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_cover_exactly),    cmocka_unit_test(many_runs_warm_and_cold),      cmocka_unit_test(waits_for_the_slowest),
        cmocka_unit_test(a_run_allocates_nothing), cmocka_unit_test(zero_threads_means_all_cores), cmocka_unit_test(idle_workers_take_no_time),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
