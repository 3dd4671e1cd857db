/* Open MPI. */
#include <mpi.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "comm/internal.h"

static MPI_Comm meeting; /* apart from what the forward pass does: a rank that failed must not answer another's collective */

static oz_status mpi_open(int *rank, int *size, oz_err *err) {
    OZ_NEED(MPI_Init(NULL, NULL) == MPI_SUCCESS, err, OZ_E_IO, "MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    OZ_NEED(MPI_Comm_dup(MPI_COMM_WORLD, &meeting) == MPI_SUCCESS, err, OZ_E_IO, "MPI_Comm_dup failed");
    return OZ_OK;
}

static void mpi_close(void) {
    MPI_Comm_free(&meeting);
    MPI_Finalize();
}

static bool mpi_meet(int *all, int mine, int64_t wait_us) {
    static int sent; /* outlives the call */
    enum { POLL_US = 1000 };
    const int64_t start = oz_clock_us();
    MPI_Request request;
    int done = 0;
    sent = mine;
    MPI_Iallgather(&sent, 1, MPI_INT, all, 1, MPI_INT, meeting, &request);
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done && (wait_us < 0 || oz_clock_us() - start < wait_us); MPI_Test(&request, &done, MPI_STATUS_IGNORE)) usleep(POLL_US);
    return done;
}

/* Where the others do not come since one of them failed, the launcher tells us to end, and soon makes us: this may be the last chance to tidy up.
 * Where they do come, the caller goes on and finds that it was interrupted. */
static void await(MPI_Request request) {
    bool tidy = false;
    int done = 0;
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
        if (tidy || !oz_interrupted()) continue;
        oz_temporaries_remove();
        tidy = true;
    }
}

/* MPI counts are ints: long rows go in pieces. */
static void mpi_all_gather(float *all, const float *mine, int64_t n) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    enum { PIECE = 1 << 24 };
    MPI_Request request;
    if (n <= PIECE) {
        MPI_Iallgather(mine, (int)n, MPI_FLOAT, all, (int)n, MPI_FLOAT, MPI_COMM_WORLD, &request);
        await(request);
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
            MPI_Ibcast(dst, k, MPI_FLOAT, r, MPI_COMM_WORLD, &request);
            await(request);
        }
}

static void mpi_end_all(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

static const oz_transport mpi = {"mpi", mpi_open, mpi_close, mpi_all_gather, mpi_meet, mpi_end_all};
const oz_transport *const oz_transport_mpi = &mpi;
