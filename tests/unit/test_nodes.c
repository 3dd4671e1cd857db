/* Memory nodes as the system tells of them, and threads that are kept to them. */
#include "files.h"
#include <pthread.h>
#include <stdatomic.h>
#include "base/mem.h"
#include "base/nodes.h"
#include "base/pool.h"

static cpu_set_t set_of(const char *cpus) { /* "0-3,7" */
    cpu_set_t s;
    CPU_ZERO(&s);
    for (const char *at = cpus; *at; at += *at == ',') {
        char *end;
        unsigned long a = strtoul(at, &end, 10), b = a;
        if (*end == '-') b = strtoul(end + 1, &end, 10);
        for (; a <= b; a++) CPU_SET(a, &s);
        at = end;
    }
    return s;
}

/* A folder as Linux shows it: which nodes there are, and the list of each ("": none). */
static void write_system(const char *online, const char *const *lists) {
    char name[32];
    test_write_text("online", online);
    for (int i = 0; lists[i]; i++) {
        snprintf(name, sizeof name, "node%d", i);
        mkdir(test_path(name), 0777);
        snprintf(name, sizeof name, "node%d/cpulist", i);
        test_write_text(name, lists[i]);
    }
}

static oz_nodes *read_nodes(const char *may) {
    static oz_nodes nodes;
    const cpu_set_t set = set_of(may);
    oz_nodes_read(&nodes, test_dir, &set);
    return &nodes;
}

static void expect(const oz_nodes *nodes, const char *const *lists) {
    int n = 0;
    for (; lists[n]; n++) {
        const cpu_set_t want = set_of(lists[n]);
        if (n >= nodes->n || !CPU_EQUAL(&want, &nodes->cpus[n])) fail_msg("node %d of %d: expected %s", n, nodes->n, lists[n]);
    }
    assert_int_equal(nodes->n, n);
}
#define LISTS(...) (const char *const[]){__VA_ARGS__, NULL}

static void nodes_within_the_mask(void **state) {
    write_system("0-3\n", LISTS("0-3,16-19\n", "4-7,20-23\n", "\n", "8-11\n")); /* node 2 is memory alone */
    expect(read_nodes("0-23"), LISTS("0-3,16-19", "4-7,20-23", "8-11"));
    expect(read_nodes("2,5-6"), LISTS("2", "5-6"));
    expect(read_nodes("8-9"), LISTS("8-9"));
    expect(read_nodes("0-3,12"), LISTS("0-3"));
    assert_int_equal(read_nodes("12")->n, 0);
}

static void only_nodes_that_are_online(void **state) {
    write_system("0,2", LISTS("0-1", "2-3", "4-5\n"));
    expect(read_nodes("0-7"), LISTS("0-1", "4-5"));
}

static void what_is_no_list_says_nothing(void **state) {
    const char *const bad[] = {"0-1x\n", "-1\n", "3-1\n", "0-\n", "a\n", "0,,1\n", "0-1024\n", "99999999999999999999\n"};
    assert_int_equal(read_nodes("0-3")->n, 0); /* no files at all */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_system("0-1\n", LISTS("0-1\n", bad[i]));
        assert_int_equal(read_nodes("0-3")->n, 0);
        write_system(bad[i], LISTS("0-1\n", "2-3\n"));
        assert_int_equal(read_nodes("0-3")->n, 0);
    }
    write_system("0-2\n", LISTS("0-1\n", "2-3\n")); /* the third one has no folder */
    assert_int_equal(read_nodes("0-3")->n, 0);
}

static void threads_go_by_processors(void **state) {
    oz_nodes nodes = {.n = 3, .cpus = {set_of("0-3"), set_of("4-5"), set_of("6-7")}};
    const int want[8] = {0, 0, 0, 0, 1, 1, 2, 2};
    for (int t = 0; t < 8; t++) assert_int_equal(oz_nodes_of(&nodes, t, 8), want[t]);
    for (int t = 0; t < 16; t++) assert_int_equal(oz_nodes_of(&nodes, t, 16), want[t / 2]);
    for (int t = 0; t < 4; t++) assert_int_equal(oz_nodes_of(&nodes, t, 4), want[2 * t]);
    assert_int_equal(oz_nodes_of(&nodes, 0, 1), 0);
}

/* ---- binding ---- */

typedef struct seen { cpu_set_t cpus[8]; } seen;

static void look(void *arg, int thread, int64_t begin, int64_t end) { sched_getaffinity(0, sizeof(cpu_set_t), &((seen *)arg)->cpus[thread]); }

/* Two nodes out of what this machine lets us use: its first processor and its last. */
static oz_nodes two_of(const cpu_set_t *may) {
    oz_nodes nodes = {.n = 2};
    size_t first = 0, last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(first, may)) first++;
    while (!CPU_ISSET(last, may)) last--;
    CPU_SET(first, &nodes.cpus[0]);
    CPU_SET(last, &nodes.cpus[1]);
    return nodes;
}

static void threads_stay_on_their_node(void **state) {
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    oz_nodes nodes = two_of(&before);
    for (int threads = 2; threads <= 5; threads++) {
        oz_pool *p = oz_pool_new(threads);
        assert_int_equal(oz_pool_nodes(p), 1);
        oz_pool_bind(p, &nodes);
        assert_int_equal(oz_pool_nodes(p), 2);
        seen s;
        oz_pool_run(p, threads, 1, look, &s);
        int at = 0;
        for (int node = 0; node < 2; node++) {
            const oz_pool_node its = oz_pool_node_at(p, node);
            assert_int_equal(its.first, at);
            assert_int_equal(its.n, (threads + 1 - node) / 2);
            for (int t = at; t < at + its.n; t++) {
                assert_int_equal(oz_pool_node_of(p, t), node);
                assert_true(CPU_EQUAL(&s.cpus[t], &nodes.cpus[node]));
            }
            at += its.n;
        }
        assert_int_equal(at, threads);
        oz_pool_free(&p);
        sched_getaffinity(0, sizeof after, &after);
        assert_true(CPU_EQUAL(&before, &after)); /* the caller has what it had */
    }
}

/* On one node, of nodes of which one has threads, and where the system tells nothing: nothing is bound. */
static void one_node_binds_nothing(void **state) {
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    oz_nodes cases[3] = {{.n = 1, .cpus = {set_of("0")}}, two_of(&before), {.n = 0}};
    for (int i = 0; i < 3; i++) {
        const int threads = i == 1 ? 1 : 3;
        oz_pool *p = oz_pool_new(threads);
        oz_pool_bind(p, &cases[i]);
        assert_int_equal(oz_pool_nodes(p), 1);
        assert_int_equal(oz_pool_node_at(p, 0).first, 0);
        assert_int_equal(oz_pool_node_at(p, 0).n, threads);
        seen s;
        oz_pool_run(p, threads, 1, look, &s);
        for (int t = 0; t < threads; t++) assert_true(CPU_EQUAL(&s.cpus[t], &before));
        oz_pool_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        UNIT(nodes_within_the_mask), UNIT(only_nodes_that_are_online), UNIT(what_is_no_list_says_nothing), UNIT(threads_go_by_processors), UNIT(threads_stay_on_their_node), UNIT(one_node_binds_nothing),
    };
    return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
