/* Internal to comm/: what a transport gives. */
#ifndef OZ_COMM_INTERNAL_H
#define OZ_COMM_INTERNAL_H
#include <stdbool.h>
#include "comm/comm.h"

typedef struct oz_transport {
    const char *name;
    oz_status (*open)(int *rank, int *size, oz_err *err);
    void (*close)(void);
    void (*all_gather)(float *all /* [size, n] */, const float *mine, int64_t n);
    /* What each rank brings, `mine` of this one; false: they did not all come within wait_us (-1: as long as it takes). Then `all` must stay. */
    bool (*meet)(int *all /* [size] */, int mine, int64_t wait_us);
    void (*end_all)(int status);
} oz_transport;
/* comm_mpi.c, or comm_none.c where it is not built in: then NULL. */
extern const oz_transport *const oz_transport_mpi;

#endif
