/* Ranks: processes that hold slices of one model and meet in collectives. One small interface; a process by itself is a group of one,
 * under mpirun it is one of several (built where Open MPI is installed).
 * Every rank gets the same bits: values are gathered and reduced in the order of ranks. */
#ifndef OZ_COMM_COMM_H
#define OZ_COMM_COMM_H
#include <stdint.h>
#include "base/err.h"

typedef struct oz_comm oz_comm;
/* Joins the ranks that the launcher started (OMPI_COMM_WORLD_SIZE, PMI_SIZE), or stands alone. */
oz_status oz_comm_open(oz_comm **out, oz_err *err);
void oz_comm_close(oz_comm **c);
int oz_comm_rank(const oz_comm *c);
int oz_comm_size(const oz_comm *c);
/* Room for collectives of up to n floats; they allocate nothing. */
oz_status oz_comm_reserve(oz_comm *c, int64_t n, oz_err *err);
void oz_comm_sum(oz_comm *c, float *x, int64_t n); /* x[i] = sum over ranks, in place; host memory */
void oz_comm_max(oz_comm *c, float *x, int64_t n);
/* Ends every rank: this one failed, the others wait for it in vain. Does nothing in a group of one. */
void oz_comm_abort(oz_comm *c, int status);

#endif
