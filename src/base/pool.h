/* A fixed pool of threads. One parallel region at a time; worker 0 is the caller. Workers spin briefly (tens of
 * microseconds), then sleep. */
#ifndef OZ_BASE_POOL_H
#define OZ_BASE_POOL_H
#include <stdint.h>

typedef struct oz_pool oz_pool;
oz_pool *oz_pool_new(int n_threads); /* 0: the machine's cores available to the process; at least 1 */
void oz_pool_free(oz_pool **p);
int oz_pool_threads(const oz_pool *p);
/* Calls fn(arg, thread, begin, end) for disjoint ranges that cover [0, n): contiguous, balanced, at most one a thread, each
 * a multiple of `grain` but the last. Returns when all are done. Allocates nothing. */
typedef void oz_pool_fn(void *arg, int thread, int64_t begin, int64_t end);
void oz_pool_run(oz_pool *p, int64_t n, int64_t grain, oz_pool_fn *fn, void *arg);

#endif
