/* The CPU as a device: opening it picks the table and makes the pool. */
#include <stdio.h>
#include "base/mem.h"
#include "kernel/cpu.h"

static bool present(void) { return true; }

static oz_status cpu_open(oz_dev **out, const oz_dev_cfg *cfg, const char *suffix, oz_err *err) {
    OZ_NEED(!suffix, err, OZ_E_USAGE, "--device: expected cpu, found \"%s\"", cfg->name);
    oz_cpu_dev *d = oz_alloc(sizeof *d);
    oz_status st = oz_cpu_table_init(&d->table, cfg->cpu_level, err);
    if (st != OZ_OK) {
        oz_free(d);
        return st;
    }
    d->deterministic = cfg->deterministic;
    d->pool = oz_pool_new(cfg->threads);
    oz_nodes *nodes = oz_alloc(sizeof *nodes);
    oz_nodes_read(nodes, OZ_NODES_SYSTEM, NULL);
    oz_pool_bind(d->pool, nodes);
    oz_free(nodes);
    const int threads = oz_pool_threads(d->pool), n_nodes = oz_pool_nodes(d->pool);
    d->head = (oz_dev){.backend = &oz_cpu_backend, .ops = &oz_cpu_ops, .threads = threads};
    const int n = snprintf(d->head.describe, sizeof d->head.describe, "cpu %s, %d thread%s", d->table.level, threads, threads == 1 ? "" : "s");
    if (n_nodes > 1) snprintf(d->head.describe + n, sizeof d->head.describe - (size_t)n, " on %d memory nodes", n_nodes);
    *out = &d->head;
    return OZ_OK;
}

static void cpu_close(oz_dev *d) {
    oz_pool_free(&oz_cpu(d)->pool);
    oz_big_free(oz_cpu(d)->gathered);
    oz_free(d);
}

const oz_backend oz_cpu_backend = {"cpu", present, cpu_open, cpu_close, oz_cpu_ceiling};
