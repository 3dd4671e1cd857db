/* What this machine can do at best, measured now: reading memory, f32 and int8 multiply-adds, all threads at once.
 *
 * Every thread works in units of some 15 us and notes when each is done; the ceiling is the best 1.5 ms of all threads taken together (of reading
 * more, where the last cache is large). So what threads share (memory, the two halves of a core) counts as it should, and other programs on
 * the machine do no harm as long as our threads run undisturbed side by side now and then; if multiply-adds stay far below one thread's speed
 * times their number, the round is repeated. (Rejected: timing a parallel region. On a busy machine none passes without a thread that waits
 * for its turn.) */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/cpu.h"

enum {
    ROUNDS = 2, ROUND_US = 400000, UNIT_US = 15,
    TICK_US = 100, N_TICKS = ROUND_US / TICK_US, WINDOW_TICKS = 15,
    READ_BYTES = 256 << 20, READ_UNIT = 256 << 10, CACHES = 4, /* at least so much, and so often the last cache */
};

typedef struct ceiling_job {
    const oz_cpu_table *table;
    double (*burn)(int64_t n_steps); /* NULL: read */
    int64_t n_steps;
    uint8_t *bytes;
    int64_t n_read; /* read units of one thread */
    int64_t start_us;
    int window_ticks;
    double scatter; /* of all that was measured */
    atomic_uint done[N_TICKS]; /* units that ended in a tick */
} ceiling_job;

/* What thread `begin` does; it reads round a part of the buffer of its own. */
static void work(void *arg, int thread, int64_t begin, int64_t end) {
    ceiling_job *j = arg;
    for (int64_t i = 0;; i++) {
        if (j->burn) {
            j->burn(j->n_steps);
        } else {
            j->table->read(j->bytes + (begin * j->n_read + i % j->n_read) * READ_UNIT, READ_UNIT);
        }
        int64_t us = oz_clock_us() - j->start_us;
        if (us >= ROUND_US) return;
        atomic_fetch_add_explicit(&j->done[us / TICK_US], 1, memory_order_relaxed);
    }
}

/* Units in the best window of one round. */
static int64_t round_best(oz_dev *d, ceiling_job *j) {
    memset(j->done, 0, sizeof j->done);
    j->start_us = oz_clock_us();
    oz_pool_run(oz_cpu(d)->pool, oz_dev_threads(d), 1, work, j);
    int64_t now = 0, best = 0;
    for (int i = 0; i < N_TICKS; i++) {
        now += j->done[i];
        if (i >= j->window_ticks) now -= j->done[i - j->window_ticks];
        if (now > best) best = now;
    }
    return best;
}

/* Units a second; `enough` ends the rounds. */
static double run(oz_dev *d, ceiling_job *j, double enough) {
    double most = 0, least = INFINITY;
    for (int i = 0; i < ROUNDS && most < enough; i++) {
        double units_s = (double)round_best(d, j) * 1e6 / (j->window_ticks * TICK_US);
        if (units_s > most) most = units_s;
        if (units_s < least) least = units_s;
    }
    if (most > 0 && 1 - least / most > j->scatter) j->scatter = 1 - least / most;
    return most;
}

/* Steps of one thread are doubled until they fill a unit; the best time of some counts, since one may be interrupted. */
static double measure_burn(oz_dev *d, ceiling_job *j, double (*burn)(int64_t)) {
    int64_t best = 0;
    j->burn = burn;
    for (j->n_steps = 128; best < UNIT_US;) {
        j->n_steps *= 2;
        best = INT64_MAX;
        for (int i = 0; i < 20; i++) {
            int64_t start = oz_clock_us();
            burn(j->n_steps);
            int64_t us = oz_clock_us() - start;
            if (us < best) best = us;
        }
    }
    return burn(j->n_steps) * run(d, j, 0.85e6 / (double)best * oz_dev_threads(d));
}

/* Pages of their own: untouched ones are all the same zeros. Each thread's lie on its node. */
static void touch(void *arg, int thread, int64_t begin, int64_t end) {
    const ceiling_job *j = arg;
    for (int64_t i = begin * j->n_read * READ_UNIT; i < end * j->n_read * READ_UNIT; i += 4096) j->bytes[i] = 1;
}

static double measure_read(oz_dev *d, ceiling_job *j) {
    void *bytes;
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE); /* servers have some of 300 MB and more */
    const size_t n_bytes = CACHES * (size_t)(cache > 0 ? cache : 0) > READ_BYTES ? CACHES * (size_t)cache : READ_BYTES;
    j->n_read = (int64_t)(n_bytes / READ_UNIT) / oz_dev_threads(d);
    if (j->n_read < 1 || oz_big_new(&bytes, n_bytes, "buffer to measure memory with", NULL) != OZ_OK) return 0;
    j->bytes = bytes;
    oz_pool_run(oz_cpu(d)->pool, oz_dev_threads(d), 1, touch, j);
    j->window_ticks = (int)(n_bytes / READ_BYTES) * WINDOW_TICKS; /* a short one may fall on what a large cache has kept */
    double units = run(d, j, INFINITY);
    oz_big_free(bytes);
    j->window_ticks = WINDOW_TICKS;
    return units * READ_UNIT;
}

void oz_cpu_ceiling(oz_dev *d, oz_ceiling *out) {
    const oz_cpu_table *t = &oz_cpu(d)->table;
    ceiling_job *j = oz_alloc(sizeof *j);
    j->table = t;
    j->window_ticks = WINDOW_TICKS;
    out->read_bytes_s = measure_read(d, j);
    out->f32_flop_s = measure_burn(d, j, t->burn_f32);
    if (t->burn_bf16) out->bf16_flop_s = measure_burn(d, j, t->burn_bf16);
    out->i8_op_s = measure_burn(d, j, t->burn_i8);
    out->scatter = j->scatter;
    oz_free(j);
}
