/* Devices by name: a table of backends, best first. */
#include <stdio.h>
#include <string.h>
#include "kernel/dev.h"

static const oz_backend *const backends[] = {
#ifdef OZ_CUDA
    &oz_cuda_backend,
#endif
    &oz_cpu_backend,
};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

/* "cpu", "cuda", "cuda:1": the backend whose name stands before ':'. */
static const oz_backend *find(const char *name, const char **suffix) {
    const char *colon = strchr(name, ':');
    const size_t n = colon ? (size_t)(colon - name) : strlen(name);
    *suffix = colon ? colon + 1 : NULL;
    for (int i = 0; i < N_BACKENDS; i++) {
        const oz_backend *b = backends[i];
        if (n == 4 && memcmp(name, "auto", 4) == 0 && !colon ? b->present() : strlen(b->name) == n && memcmp(b->name, name, n) == 0) return b;
    }
    return NULL;
}

oz_status oz_dev_open(oz_dev **out, const oz_dev_cfg *cfg, oz_err *err) {
    const char *name = cfg->name ? cfg->name : "auto", *suffix;
    *out = NULL;
    char known[64] = "auto";
    for (int i = N_BACKENDS - 1; i >= 0; i--) {
        const size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : " or ", backends[i]->name);
    }
    const oz_backend *b = find(name, &suffix);
    OZ_NEED(b, err, OZ_E_USAGE, "--device: expected %s, found \"%s\"", known, name);
    OZ_NEED(cfg->threads >= 0, err, OZ_E_ARG, "threads: expected 0 (all cores) or more, found %d", cfg->threads);
    return b->open(out, cfg, suffix, err);
}

void oz_dev_close(oz_dev **d) {
    if (*d) (*d)->backend->close(*d);
    *d = NULL;
}

void oz_dev_ceiling(oz_dev *d, oz_ceiling *out) {
    *out = (oz_ceiling){0};
    if (d->backend->ceiling) d->backend->ceiling(d, out);
}

const char *oz_dev_describe(const oz_dev *d) { return d->describe; }
int oz_dev_threads(const oz_dev *d) { return d->threads; }
const oz_ops *oz_dev_ops(const oz_dev *d) { return d->ops; }

int64_t oz_packed_rows(const oz_packed *p) { return p->rows; }
int64_t oz_packed_cols(const oz_packed *p) { return p->cols; }
size_t oz_packed_bytes(const oz_packed *p) { return p->n_bytes; }
const char *oz_packed_kernel(const oz_packed *p) { return p->kernel; }
