/* What this machine can do at best, measured now: reading memory, f32 and int8 multiply-adds, all threads at once.
 *
 * Work is timed in slices of about a millisecond and the best one counts: other programs can only make a slice slower, and one that short
 * is likely to pass undisturbed now and then. Reading goes round a buffer far beyond the last cache, a piece a slice. */
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/cpu.h"

enum { READ_BYTES = 256 << 20, READ_SLICE = 16 << 20, SLICE_US = 1000, TOTAL_US = 500000, MIN_SLICES = 100 };

typedef struct burn_job {
    const oz_cpu_table *table;
    double (*burn)(int64_t n_steps);
    int64_t n_steps;
    const uint8_t *bytes;
    double done; /* operations of one thread in a slice */
} burn_job;

static void burn_part(void *arg, int thread, int64_t begin, int64_t end) {
    burn_job *j = arg;
    double done = 0;
    for (int64_t i = begin; i < end; i++) done = j->burn(j->n_steps);
    if (thread == 0) j->done = done;
}

/* Operations a second: every thread does the same number of steps. */
static double measure_burn(oz_dev *d, double (*burn)(int64_t)) {
    burn_job j = {.burn = burn, .n_steps = 1024};
    int64_t threads = oz_dev_threads(d), spent = 0;
    double best = 0;
    for (int slices = 0; spent < TOTAL_US || slices < MIN_SLICES; slices++) {
        int64_t start = oz_clock_us();
        oz_pool_run(oz_cpu(d)->pool, threads, 1, burn_part, &j);
        int64_t us = oz_clock_us() - start;
        spent += us;
        if (us < SLICE_US / 2) {
            j.n_steps *= 2;
        } else if (j.done * (double)threads / (double)us > best) {
            best = j.done * (double)threads / (double)us;
        }
    }
    return best * 1e6;
}

static void read_part(void *arg, int thread, int64_t begin, int64_t end) {
    const burn_job *j = arg;
    j->table->read(j->bytes + begin, (size_t)(end - begin));
}

static double measure_read(oz_dev *d) {
    void *bytes;
    if (oz_big_new(&bytes, READ_BYTES, "buffer to measure memory with", NULL) != OZ_OK) return 0;
    for (size_t i = 0; i < READ_BYTES; i += 4096) ((uint8_t *)bytes)[i] = 1; /* pages of their own: untouched ones are all the same zeros */
    burn_job j = {.table = &oz_cpu(d)->table};
    int64_t best = INT64_MAX, spent = 0;
    for (size_t at = 0, slices = 0; spent < TOTAL_US || slices < MIN_SLICES; slices++, at = (at + READ_SLICE) % READ_BYTES) {
        j.bytes = (const uint8_t *)bytes + at;
        int64_t start = oz_clock_us();
        oz_pool_run(oz_cpu(d)->pool, READ_SLICE, 4096, read_part, &j);
        int64_t us = oz_clock_us() - start;
        spent += us;
        if (us < best) best = us;
    }
    oz_big_free(bytes);
    return READ_SLICE / (double)(best > 0 ? best : 1) * 1e6;
}

void oz_cpu_ceiling(oz_dev *d, oz_ceiling *out) {
    const oz_cpu_table *t = &oz_cpu(d)->table;
    *out = (oz_ceiling){measure_read(d), measure_burn(d, t->burn_f32), measure_burn(d, t->burn_i8)};
}
