/* The CPU as a device: opening it picks the table and makes the pool. */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "kernel/cpu.h"

oz_status oz_dev_open(oz_dev **out, const oz_dev_cfg *cfg, oz_err *err) {
    const char *name = cfg->name ? cfg->name : "auto";
    OZ_NEED(strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0, err, OZ_E_ARG, "device: expected auto or cpu, found \"%s\"", name);
    OZ_NEED(cfg->threads >= 0, err, OZ_E_ARG, "threads: expected 0 (all cores) or more, found %d", cfg->threads);
    oz_dev *d = oz_alloc(sizeof *d);
    oz_status st = oz_cpu_table_init(&d->table, cfg->cpu_level, err);
    if (st != OZ_OK) {
        oz_free(d);
        return st;
    }
    d->pool = oz_pool_new(cfg->threads);
    d->ops = &oz_cpu_ops;
    int threads = oz_dev_threads(d);
    snprintf(d->describe, sizeof d->describe, "cpu %s, %d thread%s", d->table.level, threads, threads == 1 ? "" : "s");
    *out = d;
    return OZ_OK;
}

void oz_dev_close(oz_dev **d) {
    if (!*d) return;
    oz_pool_free(&(*d)->pool);
    oz_free(*d);
    *d = NULL;
}

const char *oz_dev_describe(const oz_dev *d) { return d->describe; }
int oz_dev_threads(const oz_dev *d) { return oz_pool_threads(d->pool); }
const oz_ops *oz_dev_ops(const oz_dev *d) { return d->ops; }
