/* The kernel checker: every slot of the CPU's table, at every level of this machine, against definitions in f64 or against `ref`.
 *
 * A suite checks one slot (or one operation above the slots) and is run for each level. It draws its inputs from ck->rng, reports what is
 * wrong through ck_fail, and notes how near its bound the worst case came. The same suites run under a mutated table, and must then fail. */
#ifndef CHECK_H
#define CHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/cpu.h"

typedef struct ck {
    oz_cpu_dev dev;   /* the level under test, one thread */
    oz_cpu_dev many;  /* the same, three threads */
    oz_cpu_dev ref;
    oz_rng rng;
    bool quiet;       /* a mutation run: count, do not print */
    const char *slot; /* of the running suite */
    int64_t n_cases, n_fail;
    int64_t every, n_seen; /* of a device's cases one in so many is run; 0: all */
    double worst;     /* largest share of a bound that was used up */
} ck;

/* A mutation run ends a suite at the first deviation. */
static inline bool ck_enough(const ck *c) { return c->quiet && c->n_fail > 0; }

/* Is the next case left out? */
static inline bool ck_skip(ck *c) { return ck_enough(c) || (c->every > 1 && ((uint32_t)c->n_seen++ * 0x9e3779b1u >> 16) % (uint32_t)c->every); }

typedef struct ck_suite { const char *slot, *metric; void (*run)(ck *c); } ck_suite;
extern const ck_suite ck_suites[]; /* ended by slot NULL */
int ck_mutations(const char *level, const char *only, uint64_t seed); /* number that were not caught; level "all"; of suites that contain `only`, or NULL */

typedef struct ck_bench_cfg { const char *level, *only, *format; int threads; } ck_bench_cfg;
oz_status ck_bench(const ck_bench_cfg *cfg, oz_err *err);
oz_status ck_bench_planning(oz_err *err); /* --only planning */


oz_status ck_init(ck *c, const char *level, uint64_t seed, oz_err *err);
void ck_deinit(ck *c);
void ck_begin(ck *c, const oz_batch *b); /* for `many` */
void ck_fail(ck *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Notes an error and its bound; the case fails if the error is larger, or not a number where the bound is one. */
void ck_bound(ck *c, double error, double bound, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void ck_same(ck *c, const void *a, const void *b, size_t n_bytes, const char *what);

/* Memory with guard bytes on both sides; p lies `skew` bytes behind a 64-byte boundary. Filled with a pattern that reads as NaN. */
typedef struct ck_buf { void *p; size_t n_bytes; uint8_t *base; size_t skew; } ck_buf;
ck_buf ck_buf_new(size_t n_bytes, size_t skew);
void ck_buf_check(ck *c, const ck_buf *b, const char *what);
void ck_buf_free(ck_buf *b);

typedef enum ck_pattern { CK_NORMAL, CK_ZERO, CK_SIGNED_ZERO, CK_LARGE, CK_TINY, CK_SPIKE, CK_INTEGER, CK_PATTERNS } ck_pattern;
void ck_fill(ck *c, float *x, int64_t n, ck_pattern p);
int64_t ck_int(ck *c, int64_t lo, int64_t hi); /* inclusive */
void ck_block_scales(ck *c, oz_dtype d, uint8_t *block); /* random finite numbers where a GGUF block of random bytes has its f16s or its exponent */
double ck_ulp(float a, double want);           /* distance in units of the last place of (float)want */


#define CK_COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

#endif
