#include <dlfcn.h>
#include <stdlib.h>
#include "base/mem.h"
#include "quantize/blas.h"

oz_blas_fns oz_blas;
static void *library;
static int n_ready; /* threads whose room it has */

/* OpenBLAS takes this much for each thread that calls it, and where there is none it asks again without end. */
enum { BLAS_BYTES = 136 << 20, MOST = 64 /* that are taken beforehand: it has a fixed number of them */ };

static oz_status load(oz_err *err) {
    const struct { const char *name; void **at; } fns[] = {{"cblas_sgemm", (void **)&oz_blas.sgemm}, {"cblas_ssyrk", (void **)&oz_blas.ssyrk}, {"cblas_sger", (void **)&oz_blas.sger},
                                                           {"cblas_dgemm", (void **)&oz_blas.dgemm}, {"cblas_dtrsm", (void **)&oz_blas.dtrsm}, {"dpotrf_", (void **)&oz_blas.dpotrf}};
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* it reads this once, when it is loaded */
    library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    OZ_NEED(library, err, OZ_E_UNSUPPORTED, "calibration needs OpenBLAS, which cannot be loaded: %s", dlerror());
    for (size_t i = 0; i < sizeof fns / sizeof *fns; i++) {
        *fns[i].at = dlsym(library, fns[i].name);
        OZ_NEED(*fns[i].at, err, OZ_E_UNSUPPORTED, "OpenBLAS has no %s", fns[i].name);
    }
    return OZ_OK;
}

/* Takes its room now, for what it keeps from then on; there is as much. */
static void take(void **room, int n) {
    void *(*get)(int) = (void *(*)(int))dlsym(library, "blas_memory_alloc");
    void (*put)(void *) = (void (*)(void *))dlsym(library, "blas_memory_free");
    if (!get || !put) return;
    if (n > MOST) n = MOST;
    for (int i = 0; i < n; i++) room[i] = get(0);
    for (int i = 0; i < n; i++) put(room[i]);
}

oz_status oz_blas_init(int n_threads, oz_err *err) {
    void **room = oz_alloc_array((size_t)n_threads, sizeof *room);
    oz_status st = library ? OZ_OK : load(err);
    for (int i = n_ready; st == OZ_OK && i < n_threads; i++) st = oz_big_new(&room[i], BLAS_BYTES, "room that OpenBLAS takes for each thread", err);
    for (int i = 0; i < n_threads; i++) oz_big_free(room[i]);
    if (st == OZ_OK && n_threads > n_ready) take(room, n_ready = n_threads);
    oz_free(room);
    return st;
}
