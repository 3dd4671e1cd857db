/* The factor of a Hessian on the device, in f64 by cuSOLVER, as quantize/hessian.c has it: H in the order of columns and turned round is L L^T, and U is L^-1 turned round. The library is
 * column-major: its upper triangle is our lower one. It is loaded when the first factor is asked for; where its header was not there at build time, there are none. */
#include <dlfcn.h>
#include <string.h>
#include "kernel/cuda/device.cuh"
#if __has_include(<cusolverDn.h>)
#include <cusolverDn.h>

enum { THREADS = 256 };

#define FUNCTIONS(X) \
    X(cusolverDnCreate) X(cusolverDnDestroy) X(cusolverDnSetStream) X(cusolverDnCreateParams) X(cusolverDnDestroyParams) X(cusolverDnXpotrf_bufferSize) X(cusolverDnXpotrf) \
    X(cusolverDnXtrtri_bufferSize) X(cusolverDnXtrtri)
#define MEMBER(f) decltype(&::f) f;

struct oz_solver {
    void *library;
    cusolverDnHandle_t handle;
    cusolverDnParams_t params;
    FUNCTIONS(MEMBER)
};

static oz_status solver_open(oz_cuda_dev *d, oz_err *err) {
    static const char *const names[] = {"libcusolver.so.12", "/usr/local/cuda/lib64/libcusolver.so.12", "libcusolver.so"};
    if (d->solver) return OZ_OK;
    void *library = NULL;
    for (const char *n : names) if (!library) library = dlopen(n, RTLD_NOW | RTLD_LOCAL);
    OZ_NEED(library, err, OZ_E_UNSUPPORTED, "cuda: GPTQ needs cuSOLVER, which is not here (%s); --device cpu does without", dlerror());
    oz_solver *s = (oz_solver *)oz_alloc(sizeof *s);
    s->library = library;
    bool good = true;
#define LOAD(f) good = (s->f = (decltype(s->f))dlsym(library, #f)) != NULL && good;
    FUNCTIONS(LOAD)
    good = good && s->cusolverDnCreate(&s->handle) == CUSOLVER_STATUS_SUCCESS && s->cusolverDnSetStream(s->handle, d->stream) == CUSOLVER_STATUS_SUCCESS &&
           s->cusolverDnCreateParams(&s->params) == CUSOLVER_STATUS_SUCCESS;
    d->solver = s;
    if (!good) oz_cuda_factor_close(d);
    OZ_NEED(good, err, OZ_E_UNSUPPORTED, "cuda: cuSOLVER does not start; --device cpu does without");
    return OZ_OK;
}

void oz_cuda_factor_close(oz_cuda_dev *d) {
    oz_solver *s = d->solver;
    if (!s) return;
    if (s->params) s->cusolverDnDestroyParams(s->params);
    if (s->handle) s->cusolverDnDestroy(s->handle);
    dlclose(s->library);
    oz_free(s);
    d->solver = NULL;
}

/* a's lower triangle: the matrix in order and turned round. */
static __global__ void fill(double *a, oz_factoring f) {
    pdl_next();
    pdl_wait();
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = blockIdx.y; i < f.n; i += gridDim.y) {
        if (j > i) continue;
        double v = (double)f.a[(int64_t)f.perm[f.n - 1 - i] * f.n + f.perm[f.n - 1 - j]];
        if (i == j) v = (v == 0 ? f.mean : v) + (MUTATED(FACTOR_DAMP) ? 0 : f.damp);
        a[i * f.n + j] = v;
    }
}

/* u: zeros below its diagonal, where it is not written. */
static __global__ void turn(oz_factoring f, const double *a) {
    pdl_next();
    pdl_wait();
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = blockIdx.y; i < f.n; i += gridDim.y) {
        if (j > i) continue;
        const double v = a[i * f.n + j];
        f.u[(f.n - 1 - i) * f.n + (f.n - 1 - j)] = (float)v;
        if (i == j) f.importance[f.perm[f.n - 1 - i]] = (float)(1.0 / (v * v));
    }
}

/* Device memory of one factoring: the matrix, the library's workspace, its verdict. */
typedef struct room { double *a; void *work, *host; int *info; } room;

static oz_status solved(cusolverStatus_t st, const char *step, const char *what, oz_err *err) {
    OZ_NEED(st == CUSOLVER_STATUS_SUCCESS, err, OZ_E_IO, "%s: cuda: %s of its Hessian: cuSOLVER's status %d", what, step, (int)st);
    return OZ_OK;
}

static oz_status verdict(int *info, oz_cuda_dev *d, const room *r, const char *what, oz_err *err) {
    OZ_TRY(oz_cuda_check(cudaMemcpyAsync(info, r->info, sizeof *info, cudaMemcpyDeviceToHost, d->stream), what, err));
    return oz_cuda_check(cudaStreamSynchronize(d->stream), what, err);
}

static oz_status run(bool *is_definite, oz_cuda_dev *d, const oz_factoring *f, room *r, const char *what, oz_err *err) {
    oz_solver *s = d->solver;
    const oz_ops *ops = oz_dev_ops(&d->head);
    const dim3 grid((unsigned)((f->n + THREADS - 1) / THREADS), (unsigned)(f->n < 4096 ? f->n : 4096));
    size_t dev1 = 0, dev2 = 0, host1 = 0, host2 = 0;
    int info = 0;
    OZ_TRY(ops->mem_new((void **)&r->a, &d->head, (size_t)f->n * (size_t)f->n * sizeof(double), what, err));
    OZ_TRY(ops->mem_new((void **)&r->info, &d->head, sizeof(int), what, err));
    OZ_TRY(solved(s->cusolverDnXpotrf_bufferSize(s->handle, s->params, CUBLAS_FILL_MODE_UPPER, f->n, CUDA_R_64F, r->a, f->n, CUDA_R_64F, &dev1, &host1), "factoring", what, err));
    OZ_TRY(solved(s->cusolverDnXtrtri_bufferSize(s->handle, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT, f->n, CUDA_R_64F, r->a, f->n, &dev2, &host2), "inverting", what, err));
    const size_t dev = dev1 > dev2 ? dev1 : dev2, host = host1 > host2 ? host1 : host2;
    OZ_TRY(ops->mem_new(&r->work, &d->head, dev, what, err));
    OZ_TRY(oz_big_new(&r->host, host + 1, what, err));
    oz_launch(d, fill, grid, dim3(THREADS), 0, r->a, *f);
    OZ_TRY(solved(s->cusolverDnXpotrf(s->handle, s->params, CUBLAS_FILL_MODE_UPPER, f->n, CUDA_R_64F, r->a, f->n, CUDA_R_64F, r->work, dev1, r->host, host1, r->info), "factoring", what, err));
    OZ_TRY(verdict(&info, d, r, what, err));
    if (!(*is_definite = info == 0)) return OZ_OK;
    OZ_TRY(solved(s->cusolverDnXtrtri(s->handle, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT, f->n, CUDA_R_64F, r->a, f->n, r->work, dev2, r->host, host2, r->info), "inverting", what, err));
    oz_launch(d, turn, grid, dim3(THREADS), 0, *f, (const double *)r->a);
    OZ_TRY(verdict(&info, d, r, what, err));
    *is_definite = info == 0;
    return OZ_OK;
}

oz_status oz_cuda_factor(bool *is_definite, oz_dev *dev, const oz_factoring *f, const char *what, oz_err *err) {
    oz_cuda_dev *d = oz_cuda(dev);
    const oz_ops *ops = oz_dev_ops(dev);
    room r = {};
    OZ_TRY(solver_open(d, err));
    const oz_status st = run(is_definite, d, f, &r, what, err);
    ops->mem_free(dev, r.a);
    ops->mem_free(dev, r.info);
    ops->mem_free(dev, r.work);
    oz_big_free(r.host);
    return st;
}
#else

oz_status oz_cuda_factor(bool *is_definite, oz_dev *dev, const oz_factoring *f, const char *what, oz_err *err) {
    *is_definite = false;
    OZ_FAIL(err, OZ_E_UNSUPPORTED, "cuda: GPTQ needs cuSOLVER, whose headers were not there when this program was built; --device cpu does without");
}
void oz_cuda_factor_close(oz_cuda_dev *d) {}

#endif
