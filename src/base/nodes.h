/* Memory nodes: parts of a machine's memory, each nearest to some of its processors. */
#ifndef OZ_BASE_NODES_H
#define OZ_BASE_NODES_H
#include <sched.h>

enum { OZ_MAX_NODES = 64 };
typedef struct oz_nodes { int n; cpu_set_t cpus[OZ_MAX_NODES]; } oz_nodes; /* no set is empty, none has a processor of another */

#define OZ_NODES_SYSTEM "/sys/devices/system/node"
/* The nodes that `root` tells of and that have processors within `may` (NULL: those that the calling thread may use), with those processors.
 * n is 0 where the system does not tell or has more than fit. */
void oz_nodes_read(oz_nodes *out, const char *root, const cpu_set_t *may);
/* The node of thread t of n_threads, when threads are shared out over nodes by their processors: neighbours stay together. */
int oz_nodes_of(const oz_nodes *nodes, int t, int n_threads);

#endif
