/* Collectives over a transport's all-gather: each rank reduces what all sent, in the order of ranks, so that all hold the same bits
 * whatever algorithm the transport would choose for a reduction of its own. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "comm/internal.h"

enum { ALONE_US = 2000000 };

struct oz_comm { const oz_transport *t; int rank, size; float *all; int64_t room; };

static int launched_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *v = getenv(names[i]);
        if (v && atoi(v) > 1) return atoi(v);
    }
    return 1;
}

oz_status oz_comm_open(oz_comm **out, oz_err *err) {
    oz_comm c = {.size = 1};
    const int n = launched_size();
    if (n > 1) {
        OZ_NEED(oz_transport_mpi, err, OZ_E_UNSUPPORTED, "started as one of %d ranks, but built without MPI: install libopenmpi-dev and build again", n);
        c.t = oz_transport_mpi;
        OZ_TRY(c.t->open(&c.rank, &c.size, err));
    }
    *out = oz_alloc(sizeof **out);
    **out = c;
    return OZ_OK;
}

void oz_comm_close(oz_comm **c) {
    if (!*c) return;
    if ((*c)->t) (*c)->t->close();
    oz_big_free((*c)->all);
    oz_free(*c);
    *c = NULL;
}

int oz_comm_rank(const oz_comm *c) { return c ? c->rank : 0; }
int oz_comm_size(const oz_comm *c) { return c ? c->size : 1; }

oz_status oz_comm_reserve(oz_comm *c, int64_t n, oz_err *err) {
    if (c->size == 1 || n <= c->room) return OZ_OK;
    float *all;
    size_t n_bytes;
    OZ_NEED(oz_mul_size(&n_bytes, (size_t)n * (size_t)c->size, sizeof(float)), err, OZ_E_NOMEM, "room for collectives of %lld floats: too large", (long long)n);
    OZ_TRY(oz_big_new((void **)&all, n_bytes, "room for collectives", err));
    oz_big_free(c->all);
    c->all = all, c->room = n;
    return OZ_OK;
}

void oz_comm_sum(oz_comm *c, float *x, int64_t n) {
    if (c->size == 1) return;
    c->t->all_gather(c->all, x, n);
    memcpy(x, c->all, (size_t)n * sizeof *x);
    for (int r = 1; r < c->size; r++)
        for (int64_t i = 0; i < n; i++) x[i] += c->all[(int64_t)r * n + i];
}

void oz_comm_max(oz_comm *c, float *x, int64_t n) {
    if (c->size == 1) return;
    c->t->all_gather(c->all, x, n);
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < n; i++) {
            const float v = c->all[(int64_t)r * n + i];
            if (!(v <= x[i])) x[i] = v; /* NaN goes through */
        }
}

oz_meeting oz_comm_meet(oz_comm *c, int status) {
    oz_meeting m = {.status = status, .speaks = status != 0};
    if (!c || !c->t) return m;
    int *all = oz_alloc_array((size_t)c->size, sizeof *all);
    m.alone = !c->t->meet(all, status, status ? ALONE_US : -1);
    if (m.alone) return m; /* the transport may still write to `all` */
    int first = 0;
    while (first + 1 < c->size && all[first] == 0) first++;
    m.status = all[first], m.speaks = all[first] != 0 && first == c->rank;
    oz_free(all);
    return m;
}

void oz_comm_abort(oz_comm *c, int status) { if (c && c->t) c->t->end_all(status); }
