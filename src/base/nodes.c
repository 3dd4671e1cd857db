/* What Linux says of memory nodes: lists of numbers such as "0-3,8" in online and node<N>/cpulist. */
#include "base/nodes.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/mem.h"

enum { LIST_BYTES = 1 << 14 };

/* Numbers of a list that a set can hold; false where there is no such file or it is none. */
static bool list_read(cpu_set_t *out, const char *path) {
    CPU_ZERO(out);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char *text = oz_alloc(LIST_BYTES), *at = text;
    bool ok = fgets(text, LIST_BYTES, f) != NULL;
    while (ok && *at && *at != '\n') { /* a node without processors has an empty line */
        char *end;
        const long first = strtol(at, &end, 10);
        long last = first;
        ok = end > at;
        if (*end == '-') last = strtol(at = end + 1, &end, 10), ok = ok && end > at;
        ok = ok && first >= 0 && first <= last && last < CPU_SETSIZE && (*end == ',' || *end == '\n' || !*end);
        for (long i = first; ok && i <= last; i++) CPU_SET((size_t)i, out);
        at = *end == ',' ? end + 1 : end;
    }
    oz_free(text);
    fclose(f);
    return ok;
}

static bool all_read(oz_nodes *out, const char *root, const cpu_set_t *may) {
    char path[4096];
    cpu_set_t online, cpus;
    snprintf(path, sizeof path, "%s/online", root);
    if (!list_read(&online, path)) return false;
    for (int node = 0; node < CPU_SETSIZE; node++) {
        if (!CPU_ISSET((size_t)node, &online)) continue;
        snprintf(path, sizeof path, "%s/node%d/cpulist", root, node);
        if (!list_read(&cpus, path)) return false;
        CPU_AND(&cpus, &cpus, may);
        if (CPU_COUNT(&cpus) == 0) continue;
        if (out->n == OZ_MAX_NODES) return false;
        out->cpus[out->n++] = cpus;
    }
    return true;
}

void oz_nodes_read(oz_nodes *out, const char *root, const cpu_set_t *may) {
    cpu_set_t ours;
    out->n = 0;
    if (!may && sched_getaffinity(0, sizeof ours, &ours) != 0) return; /* more processors than a set holds */
    if (!all_read(out, root, may ? may : &ours)) out->n = 0;
}

int oz_nodes_of(const oz_nodes *nodes, int t, int n_threads) {
    int64_t n_cpus = 0;
    for (int i = 0; i < nodes->n; i++) n_cpus += CPU_COUNT(&nodes->cpus[i]);
    int64_t cpu = t * n_cpus / n_threads; /* counted node by node */
    for (int i = 0; i < nodes->n - 1; cpu -= CPU_COUNT(&nodes->cpus[i++]))
        if (cpu < CPU_COUNT(&nodes->cpus[i])) return i;
    return nodes->n - 1;
}
