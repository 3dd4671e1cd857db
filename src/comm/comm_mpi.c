/* Open MPI. */
#include <mpi.h>
#include "comm/internal.h"

static oz_status mpi_open(int *rank, int *size, oz_err *err) {
    OZ_NEED(MPI_Init(NULL, NULL) == MPI_SUCCESS, err, OZ_E_IO, "MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    return OZ_OK;
}

static void mpi_close(void) { MPI_Finalize(); }

/* MPI counts are ints: long rows go in pieces. */
static void mpi_all_gather(float *all, const float *mine, int64_t n) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    enum { PIECE = 1 << 24 };
    if (n <= PIECE) {
        MPI_Allgather(mine, (int)n, MPI_FLOAT, all, (int)n, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    }
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < n; i += PIECE) {
            const int k = (int)(n - i < PIECE ? n - i : PIECE);
            float *dst = all + (int64_t)r * n + i;
            int me;
            MPI_Comm_rank(MPI_COMM_WORLD, &me);
            if (me == r)
                for (int j = 0; j < k; j++) dst[j] = mine[i + j];
            MPI_Bcast(dst, k, MPI_FLOAT, r, MPI_COMM_WORLD);
        }
}

static void mpi_end_all(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

static const oz_transport mpi = {"mpi", mpi_open, mpi_close, mpi_all_gather, mpi_end_all};
const oz_transport *const oz_transport_mpi = &mpi;
