/* OpenBLAS, loaded when calibration first needs it: linked in, it would start its threads in every run of the program, and under a limit on memory one of them asks for room without end. */
#ifndef OZ_QUANTIZE_BLAS_H
#define OZ_QUANTIZE_BLAS_H
#include <cblas.h>
#include <stddef.h>
#include "base/err.h"

/* As in cblas.h; potrf: LAPACK's Cholesky, in Fortran's calling convention. Each call runs in the thread that makes it. */
typedef struct oz_blas_fns {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_ssyrk) *ssyrk;
    __typeof__(cblas_sger) *sger;
    __typeof__(cblas_dgemm) *dgemm;
    __typeof__(cblas_dtrsm) *dtrsm;
    void (*dpotrf)(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t uplo_len);
} oz_blas_fns;
extern oz_blas_fns oz_blas;
/* Before the first use. OZ_E_UNSUPPORTED: the library is not here; OZ_E_NOMEM: so many threads do not get the room that it takes. */
oz_status oz_blas_init(int n_threads, oz_err *err);

#endif
