/* Ranks: processes that hold slices of one model and meet in collectives. One small interface; a process by itself is a group of one,
 * under mpirun it is one of several (built where Open MPI is installed).
 * Every rank gets the same bits: values are gathered and reduced in the order of ranks. */
#ifndef OZ_COMM_COMM_H
#define OZ_COMM_COMM_H
#include <stdbool.h>
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
/* Every rank comes here last, with its exit status (0: done). status: that of the first rank that failed, the same for all; speaks: this is
 * that rank, which says why. alone: this rank failed, and the others did not come within two seconds: they wait for it in a collective. */
typedef struct oz_meeting { int status; bool speaks, alone; } oz_meeting;
oz_meeting oz_comm_meet(oz_comm *c, int status); /* c NULL: a group of one */
/* Ends every rank: this one failed, the others wait for it in vain. Does nothing in a group of one. */
void oz_comm_abort(oz_comm *c, int status);

#endif
