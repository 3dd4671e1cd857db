/* Internal to comm/: what a transport gives. */
#ifndef OZ_COMM_INTERNAL_H
#define OZ_COMM_INTERNAL_H
#include "comm/comm.h"

typedef struct oz_transport {
    const char *name;
    oz_status (*open)(int *rank, int *size, oz_err *err);
    void (*close)(void);
    void (*all_gather)(float *all /* [size, n] */, const float *mine, int64_t n);
    void (*end_all)(int status);
} oz_transport;
/* comm_mpi.c, or comm_none.c where it is not built in: then NULL. */
extern const oz_transport *const oz_transport_mpi;

#endif
