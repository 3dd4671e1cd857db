/* A region costs a microsecond or two when the workers are warm: decoding runs some 200 regions a token. Every worker has a
 * slot on cache lines of its own, with the range it is to do and a ticket; posting work is one store to the ticket. A worker
 * watches its ticket for SPIN_US, then sleeps on it in the kernel (futex). The caller waits for the others in the same way.
 * Only workers that get a range are touched: the rest go on sleeping.
 *
 * No wake is lost: the sleeper raises `asleep` before the kernel compares the ticket, the poster moves the ticket before it
 * looks at `asleep`, both sequentially consistent; so either the poster sees the sleeper, or the kernel sees the new ticket.
 *
 * Rejected: a shared queue with work stealing. It balances better under foreign load, but which thread does which rows would
 * change from run to run, and with it the caches that hold them. */
#include "base/pool.h"
#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"

enum { SPIN_US = 50, LINE = 64 };

/* A word that one thread waits on. The padding keeps what different threads write on different lines, wherever malloc puts it. */
typedef struct gate { _Atomic uint32_t word; atomic_int asleep; } gate;

typedef struct worker {
    gate ticket;
    int64_t begin, end;
    int index;
    pthread_t thread;
    oz_pool *pool;
    char pad[LINE];
} worker;

struct oz_pool {
    gate pending; /* ranges not done yet, the caller's apart */
    char pad[LINE];
    oz_pool_fn *fn;
    void *arg;
    int n_threads;
    bool stop, busy;
    worker *workers; /* [n_threads]; 0 is the caller: its thread alone is used, and that where it was bound */
    int n_nodes;
    oz_pool_node *nodes; /* [n_nodes] */
    cpu_set_t caller_cpus; /* before it was bound */
};

static void gate_wake(gate *g) {
    if (atomic_load(&g->asleep)) syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Waits until the word is `value` (until) or is not (!until); returns the word. */
static uint32_t gate_wait(gate *g, uint32_t value, bool until) {
    for (int64_t start = 0;;) {
        uint32_t now = atomic_load_explicit(&g->word, memory_order_acquire);
        if ((now == value) == until) return now;
        int64_t t = oz_clock_us(); /* some 20 ns of serialized waiting: what a pause instruction would be for */
        if (!start) start = t;
        if (t - start < SPIN_US) continue;
        atomic_store(&g->asleep, 1);
        now = atomic_load(&g->word);
        if ((now == value) != until) syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
        atomic_store(&g->asleep, 0);
    }
}

static void *work(void *arg) {
    worker *w = arg;
    oz_pool *p = w->pool;
    for (uint32_t seen = 0;;) {
        seen = gate_wait(&w->ticket, seen, false);
        if (p->stop) return NULL;
        p->fn(p->arg, w->index, w->begin, w->end);
        if (atomic_fetch_sub(&p->pending.word, 1) == 1) gate_wake(&p->pending);
    }
}

static void post(worker *w) {
    atomic_fetch_add(&w->ticket.word, 1);
    gate_wake(&w->ticket);
}

oz_pool *oz_pool_new(int n_threads) {
    if (n_threads <= 0) n_threads = oz_cpu_count();
    oz_pool *p = oz_alloc(sizeof *p);
    p->workers = oz_alloc_array((size_t)n_threads, sizeof *p->workers);
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* but for what a thread does itself: a map of a file that was cut off */
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals go to the thread that asked for us */
    for (p->n_threads = 1; p->n_threads < n_threads; p->n_threads++) {
        worker *w = &p->workers[p->n_threads];
        w->index = p->n_threads;
        w->pool = p;
        int e = pthread_create(&w->thread, NULL, work, w);
        if (e) {
            oz_log_warn("threads: expected %d, the system gave %d: %s", n_threads, p->n_threads, strerror(e));
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    p->n_nodes = 1;
    p->nodes = oz_alloc(sizeof *p->nodes);
    p->nodes[0].n = p->n_threads;
    return p;
}

/* Memory lies where the thread that first touches it runs: threads that moved to another node would leave their weights behind. */
void oz_pool_bind(oz_pool *p, const oz_nodes *nodes) {
    assert(p->n_nodes == 1);
    if (nodes->n < 2 || oz_nodes_of(nodes, 0, p->n_threads) == oz_nodes_of(nodes, p->n_threads - 1, p->n_threads)) return;
    oz_free(p->nodes);
    p->nodes = oz_alloc_array((size_t)nodes->n, sizeof *p->nodes);
    p->n_nodes = 0;
    p->workers[0].thread = pthread_self();
    int e = pthread_getaffinity_np(p->workers[0].thread, sizeof p->caller_cpus, &p->caller_cpus);
    for (int t = 0, last = -1; t < p->n_threads; t++) {
        const int node = oz_nodes_of(nodes, t, p->n_threads);
        if (node != last) p->nodes[p->n_nodes++].first = t;
        p->nodes[p->n_nodes - 1].n++;
        last = node;
        if (e == 0) e = pthread_setaffinity_np(p->workers[t].thread, sizeof nodes->cpus[node], &nodes->cpus[node]);
    }
    if (e) oz_log_warn("threads: not all could be bound to their memory nodes: %s", strerror(e));
}

int oz_pool_nodes(const oz_pool *p) { return p->n_nodes; }
oz_pool_node oz_pool_node_at(const oz_pool *p, int node) { return p->nodes[node]; }

int oz_pool_node_of(const oz_pool *p, int thread) {
    int node = 0;
    while (thread >= p->nodes[node].first + p->nodes[node].n) node++;
    return node;
}

void oz_pool_free(oz_pool **pool) {
    oz_pool *p = *pool;
    if (!p) return;
    p->stop = true;
    for (int i = 1; i < p->n_threads; i++) {
        post(&p->workers[i]);
        pthread_join(p->workers[i].thread, NULL);
    }
    if (p->n_nodes > 1) pthread_setaffinity_np(p->workers[0].thread, sizeof p->caller_cpus, &p->caller_cpus);
    oz_free(p->nodes);
    oz_free(p->workers);
    oz_free(p);
    *pool = NULL;
}

int oz_pool_threads(const oz_pool *p) { return p->n_threads; }

oz_share oz_pool_share(int64_t n, int64_t n_parts, int64_t i) {
    const int64_t each = n / n_parts, more = n % n_parts, begin = i * each + (i < more ? i : more);
    return (oz_share){begin, begin + each + (i < more)};
}

void oz_pool_run(oz_pool *p, int64_t n, int64_t grain, oz_pool_fn *fn, void *arg) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    int64_t units = (n - 1) / grain + 1, parts = units < p->n_threads ? units : p->n_threads;
    if (parts == 1) {
        fn(arg, 0, 0, n);
        return;
    }
    assert(!p->busy);
    p->busy = true;
    p->fn = fn;
    p->arg = arg;
    atomic_store(&p->pending.word, (uint32_t)(parts - 1));
    for (int i = 1; i < parts; i++) {
        worker *w = &p->workers[i];
        const oz_share share = oz_pool_share(units, parts, i);
        w->begin = share.begin * grain;
        w->end = i == parts - 1 ? n : share.end * grain;
        post(w);
    }
    fn(arg, 0, 0, oz_pool_share(units, parts, 0).end * grain);
    gate_wait(&p->pending, 0, true);
    p->busy = false;
}
