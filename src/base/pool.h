/* A fixed pool of threads. One parallel region at a time; worker 0 is the caller. Workers spin briefly (tens of
 * microseconds), then sleep. */
#ifndef OZ_BASE_POOL_H
#define OZ_BASE_POOL_H
#include <stdint.h>
#include "base/nodes.h"

typedef struct oz_pool oz_pool;
oz_pool *oz_pool_new(int n_threads); /* 0: the machine's cores available to the process; at least 1 */
void oz_pool_free(oz_pool **p);
int oz_pool_threads(const oz_pool *p);

/* Shares the threads out over memory nodes and keeps each, the caller until _free too, to the processors of its own; what the caller starts later
 * inherits that. With fewer than two nodes that get threads nothing changes. */
void oz_pool_bind(oz_pool *p, const oz_nodes *nodes);
typedef struct oz_pool_node { int first, n; } oz_pool_node; /* its threads; n > 0 */
int oz_pool_nodes(const oz_pool *p); /* at least 1: without binding, one has all threads */
oz_pool_node oz_pool_node_at(const oz_pool *p, int node);
int oz_pool_node_of(const oz_pool *p, int thread);

/* Calls fn(arg, thread, begin, end) for disjoint ranges that cover [0, n): contiguous, balanced, at most one a thread, each
 * a multiple of `grain` but the last. Returns when all are done. Allocates nothing. */
typedef void oz_pool_fn(void *arg, int thread, int64_t begin, int64_t end);
void oz_pool_run(oz_pool *p, int64_t n, int64_t grain, oz_pool_fn *fn, void *arg);
/* The rule of that cut, for part i of n_parts and a grain of 1; parts may be more than n. */
typedef struct oz_share { int64_t begin, end; } oz_share;
oz_share oz_pool_share(int64_t n, int64_t n_parts, int64_t i);

#endif
