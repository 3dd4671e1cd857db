/* Built without MPI: there is one rank. */
#include <stddef.h>
#include "comm/internal.h"

const oz_transport *const oz_transport_mpi = NULL;
