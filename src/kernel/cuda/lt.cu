/* Products of many rows by the library: bf16, f16 and int8 (exact in int32) where it reads the weight's layout; what it cannot read is expanded into
 * workspace, a tile of rows at a time, and multiplied from there. e4m3 goes through f16, where products are exact: the matrix units add e4m3 products with
 * about 14 bits, 1e-4 of the sum off (measured on one H200, 2026-11-29).
 *
 * The library is column-major: y^T [rows, tok] = w^T' x^T with w and x as they lie (K first). Sums come out in f32 or int32 in y itself; scales and bias are
 * a pass over it, so that y = sum * (scale * x_scale) + bias as everywhere. One scale a row: the expanded codes are exact and the scale
 * waits for the end; grouped: a weight is rounded to 16 bits, as the activations are. Sums' order is the library's and depends on the
 * number of rows: not for --deterministic.
 * cuBLASLt is loaded when a device is opened; without it products of many rows go to the plain kernel. */
#include <cublasLt.h>
#include <dlfcn.h>
#include "kernel/cuda/device.cuh"
extern "C" {
#include "base/progress.h"
}

enum { MAX_PLANS = 256, EXPAND_THREADS = 256, WIDE_BYTES = 64 << 20 };

typedef struct lt_key { cudaDataType_t type; int64_t m, n, k, lda, ldb, ldd; int align_in, align; bool plain_a, turned_b; } lt_key; /* of a the transpose is meant, but where it is plain; of b where it is turned */
typedef struct lt_plan { lt_key key; bool found; cublasLtMatmulAlgo_t algo; } lt_plan;

#define FUNCTIONS(X) \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescSetAttribute) X(cublasLtMatmulDescDestroy) X(cublasLtMatrixLayoutCreate) \
    X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulPreferenceDestroy) \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul)
#define MEMBER(f) decltype(&::f) f;

struct oz_lt {
    void *library;
    cublasLtHandle_t handle;
    FUNCTIONS(MEMBER)
    lt_plan plans[MAX_PLANS];
    int n_plans;
};

void oz_lt_open(oz_cuda_dev *d) {
    static const char *const names[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so"};
    void *library = NULL;
    for (const char *n : names) if (!library) library = dlopen(n, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        oz_log_warn("cuda: no cuBLASLt here (%s): products of many rows use the plain kernel, which is slow", dlerror());
        return;
    }
    oz_lt *l = (oz_lt *)oz_alloc(sizeof *l);
    l->library = library;
    bool all = true;
#define LOAD(f) all = (l->f = (decltype(l->f))dlsym(library, #f)) != NULL && all;
    FUNCTIONS(LOAD)
    if (!all || l->cublasLtCreate(&l->handle) != CUBLAS_STATUS_SUCCESS) {
        oz_log_warn("cuda: cuBLASLt does not start: products of many rows use the plain kernel, which is slow");
        dlclose(library);
        oz_free(l);
        return;
    }
    d->lt = l;
}

void oz_lt_close(oz_cuda_dev *d) {
    if (!d->lt) return;
    d->lt->cublasLtDestroy(d->lt->handle);
    dlclose(d->lt->library);
    oz_free(d->lt);
    d->lt = NULL;
}

/* ---- one product ---- */

typedef struct lt_call { const void *a, *b; void *d; lt_key key; float alpha, beta; } lt_call; /* of floats */
typedef struct lt_descs { cublasLtMatmulDesc_t op; cublasLtMatrixLayout_t a, b, d; } lt_descs;

static void descs_make(lt_descs *x, oz_lt *l, const lt_key *k) {
    const bool ints = k->type == CUDA_R_8I;
    const cublasOperation_t op_a = k->plain_a ? CUBLAS_OP_N : CUBLAS_OP_T, op_b = k->turned_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    l->cublasLtMatmulDescCreate(&x->op, ints ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, ints ? CUDA_R_32I : CUDA_R_32F);
    l->cublasLtMatmulDescSetAttribute(x->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    l->cublasLtMatmulDescSetAttribute(x->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    l->cublasLtMatrixLayoutCreate(&x->a, k->type, (uint64_t)(k->plain_a ? k->m : k->k), (uint64_t)(k->plain_a ? k->k : k->m), k->lda);
    l->cublasLtMatrixLayoutCreate(&x->b, k->type, (uint64_t)(k->turned_b ? k->n : k->k), (uint64_t)(k->turned_b ? k->k : k->n), k->ldb);
    l->cublasLtMatrixLayoutCreate(&x->d, ints ? CUDA_R_32I : CUDA_R_32F, (uint64_t)k->m, (uint64_t)k->n, k->ldd);
}
static void descs_free(lt_descs *x, oz_lt *l) {
    l->cublasLtMatmulDescDestroy(x->op);
    l->cublasLtMatrixLayoutDestroy(x->a), l->cublasLtMatrixLayoutDestroy(x->b), l->cublasLtMatrixLayoutDestroy(x->d);
}

static const lt_plan *plan_get(oz_lt *l, const lt_key *k, const lt_descs *x) {
    for (int i = 0; i < l->n_plans; i++)
        if (memcmp(&l->plans[i].key, k, sizeof *k) == 0) return &l->plans[i];
    lt_plan *p = &l->plans[l->n_plans < MAX_PLANS ? l->n_plans++ : MAX_PLANS - 1];
    p->key = *k;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t r = {};
    const uint64_t work = OZ_LT_WORK_BYTES;
    const uint32_t in = (uint32_t)k->align_in, out = (uint32_t)k->align;
    int n = 0;
    l->cublasLtMatmulPreferenceCreate(&pref);
    l->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work);
    l->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &in, sizeof in);
    l->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &in, sizeof in);
    l->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out);
    l->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
    const cublasStatus_t st = l->cublasLtMatmulAlgoGetHeuristic(l->handle, x->op, x->a, x->b, x->d, x->d, pref, 1, &r, &n);
    l->cublasLtMatmulPreferenceDestroy(pref);
    p->found = st == CUBLAS_STATUS_SUCCESS && n > 0;
    p->algo = r.algo;
    return p;
}

/* False: the library has nothing for this shape. */
static bool lt_run(oz_cuda_dev *d, const lt_call *c) {
    oz_lt *l = d->lt;
    lt_descs x;
    descs_make(&x, l, &c->key);
    const lt_plan *p = plan_get(l, &c->key, &x);
    cublasStatus_t st = CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->found) {
        const int32_t one_i = 1, zero_i = 0;
        const bool ints = c->key.type == CUDA_R_8I;
        st = l->cublasLtMatmul(l->handle, x.op, ints ? (const void *)&one_i : &c->alpha, c->a, x.a, c->b, x.b, ints ? (const void *)&zero_i : &c->beta, c->d, x.d, c->d, x.d, &p->algo, d->work,
                               OZ_LT_WORK_BYTES, d->stream);
    }
    descs_free(&x, l);
    return st == CUBLAS_STATUS_SUCCESS;
}

/* ---- what comes after: y = sum * (scale * x_scale) + bias, in place ---- */

static __global__ void finish(float *y, int64_t ld, int64_t n_rows, bool ints, const float *scales, const float *x_scales, const float *bias) {
    pdl_next();
    pdl_wait();
    const int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (r >= n_rows) return;
    float v = ints ? (float)((const int32_t *)y)[t * ld + r] : y[t * ld + r];
    if (scales) v *= x_scales ? scales[r] * x_scales[t] : scales[r];
    y[t * ld + r] = bias ? v + bias[r] : v;
}

static cudaDataType_t type_of(oz_form form) {
    return form == OZ_FORM_BF16 ? CUDA_R_16BF : form == OZ_FORM_F16 ? CUDA_R_16F : form == OZ_FORM_Q8 ? CUDA_R_8I : CUDA_R_8F_E4M3;
}

static int64_t form_size_host(oz_form form) { return form == OZ_FORM_BF16 || form == OZ_FORM_F16 ? 2 : 1; }

/* Rows [r0, r0 + n) of part i from `codes` (its own, or expanded) into y. scale_last: the sum is of codes. */
static bool part_run(oz_cuda_dev *d, const oz_linear_args *a, int i, const void *codes, int64_t stride_bytes, int64_t r0, int64_t n, bool scale_last, float *y) {
    const oz_cuda_packed *w = oz_cuda_weight(a->parts[i]);
    lt_call c;
    memset(&c, 0, sizeof c); /* keys are compared as bytes */
    c.alpha = 1, c.key.align_in = 16;
    c.a = codes, c.b = a->x.data, c.d = y;
    c.key.type = type_of(a->x.form), c.key.m = n, c.key.n = a->n_tok, c.key.k = w->head.cols, c.key.lda = stride_bytes / form_size_host(a->x.form), c.key.ldb = a->x.ld, c.key.ldd = a->ld_y;
    c.key.align = (uintptr_t)y % 16 == 0 && a->ld_y % 4 == 0 ? 16 : 4;
    if (!lt_run(d, &c)) return false;
    const float *bias = a->bias ? a->bias[i] : NULL, *scales = scale_last ? w->scales : NULL;
    if (!bias && !scales) return true;
    oz_launch(d, finish, dim3((unsigned)((n + 255) / 256), (unsigned)a->n_tok), dim3(256), 0, y, a->ld_y, n, a->x.form == OZ_FORM_Q8, scales ? scales + r0 : NULL, (const float *)a->x.scales,
              bias ? bias + r0 : NULL);
    return true;
}

static void part_plain(oz_cuda_dev *d, const oz_linear_args *a, int i, float *y) {
    oz_linear_args one = *a;
    one.parts = a->parts + i, one.bias = a->bias ? a->bias + i : NULL, one.n_parts = 1, one.y = y;
    oz_gemm_plain(d, &one);
}

bool oz_lt_fits(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket) {
    const bool reads = (w->kind == OZ_CK_BF16 && w->form == OZ_FORM_BF16) || (w->kind == OZ_CK_F16 && w->form == OZ_FORM_F16) || w->form == OZ_FORM_Q8;
    return d->lt && !d->deterministic && bucket > 0 && reads && w->head.cols % 16 == 0 && w->head.rows % 16 == 0;
}

void oz_gemm_lt(oz_cuda_dev *d, const oz_linear_args *a) {
    float *y = a->y;
    for (int i = 0; i < a->n_parts; i++) {
        const oz_cuda_packed *w = oz_cuda_weight(a->parts[i]);
        if (!part_run(d, a, i, w->codes, w->stride_bytes, 0, w->head.rows, w->scales != NULL && !HOST_MUTATED(LT_SCALE), y)) part_plain(d, a, i, y);
        y += w->head.rows;
    }
}

/* x x^T of a square, from memory that holds two operands and the result: for ceiling.cu. */
bool oz_lt_square(oz_cuda_dev *d, oz_form form, int64_t n, void *mem) {
    if (!d->lt) return false;
    lt_call c;
    memset(&c, 0, sizeof c);
    c.alpha = 1, c.key.align_in = 16;
    const size_t one = (size_t)(n * n * form_size_host(form));
    c.a = mem, c.b = (uint8_t *)mem + one, c.d = (uint8_t *)mem + 2 * one;
    c.key.type = type_of(form), c.key.m = c.key.n = c.key.k = c.key.lda = c.key.ldb = c.key.ldd = n, c.key.align = 16;
    return lt_run(d, &c);
}

static int alignment(const void *p, int64_t ld, int size) {
    int a = 16;
    while ((uintptr_t)p % a || ld * size % a) a /= 2;
    return a;
}

bool oz_lt_product(oz_cuda_dev *d, const oz_lt_product_args *p) {
    lt_call c;
    if (!d->lt) return false;
    memset(&c, 0, sizeof c);
    const int size = p->bf16 ? 2 : 4, a = alignment(p->a, p->lda, size), b = alignment(p->b, p->ldb, size);
    c.a = p->a, c.b = p->b, c.d = p->d, c.alpha = p->alpha, c.beta = p->adds ? 1 : 0;
    c.key.type = p->bf16 ? CUDA_R_16BF : CUDA_R_32F, c.key.m = p->m, c.key.n = p->n, c.key.k = p->k, c.key.lda = p->lda, c.key.ldb = p->ldb, c.key.ldd = p->ldd;
    c.key.align_in = a < b ? a : b, c.key.align = alignment(p->d, p->ldd, 4), c.key.plain_a = p->plain_a, c.key.turned_b = p->turned_b;
    return lt_run(d, &c);
}

/* ---- expansion ---- */

bool oz_lt_expand_fits(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket) {
    return d->lt && !d->deterministic && bucket > 0 && w->form != OZ_FORM_F32 && w->form != OZ_FORM_Q8 && w->head.cols % 16 == 0 && w->head.rows % 16 == 0;
}

/* A thread 8 columns of a row of the tile. */
static __global__ void expand(void *dst, oz_form form, oz_cuda_packed w, int64_t r0, bool scaled) {
    pdl_next();
    pdl_wait();
    const int64_t k0 = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8, r = r0 + blockIdx.y;
    if (k0 >= w.head.cols) return;
    const uint8_t *row = w.codes + r * w.stride_bytes;
    __align__(16) uint16_t out[8];
    for (int i = 0; i < 8; i++) {
        float v = code_of(w.kind, w.layout, row, k0 + i);
        if (scaled) {
            const int64_t at = scale_at(r, MUTATED(EXPAND_GROUP) ? 0 : (k0 + i) / w.group_size, w.n_groups);
            v = w.offsets ? fmaf(v, w.scales[at], w.offsets[at]) : v * w.scales[at];
        }
        store_plain(form, out, i, v);
    }
    *(uint4 *)((uint16_t *)dst + blockIdx.y * w.head.cols + k0) = *(const uint4 *)out;
}

/* e4m3 rows as f16, exactly. */
static __global__ void widen(__half *dst, oz_rows x, int64_t n) {
    pdl_next();
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dst[blockIdx.y * n + i] = __float2half_rn(e4m3_to_f32(((const uint8_t *)x.data)[blockIdx.y * x.ld + i]));
}

/* As a, with e4m3 activations widened into `to`. */
static oz_linear_args args_widened(oz_cuda_dev *d, const oz_linear_args *a, uint8_t *to) {
    const int64_t n = oz_cuda_weight(a->parts[0])->head.cols;
    oz_linear_args wide = *a;
    if (a->x.form != OZ_FORM_F8) return wide;
    oz_launch(d, widen, dim3((unsigned)((n + 255) / 256), (unsigned)a->n_tok), dim3(256), 0, (__half *)to, a->x, n);
    wide.x.form = OZ_FORM_F16, wide.x.data = to, wide.x.ld = n;
    return wide;
}

void oz_gemm_lt_expand(oz_cuda_dev *d, const oz_linear_args *a) {
    float *y = a->y;
    uint8_t *wide_x = d->work + OZ_LT_WORK_BYTES, *tile = wide_x + WIDE_BYTES;
    const bool fits = a->x.form != OZ_FORM_F8 || a->n_tok * oz_cuda_weight(a->parts[0])->head.cols * 2 <= WIDE_BYTES;
    const oz_linear_args wide = fits ? args_widened(d, a, wide_x) : *a;
    for (int i = 0; i < a->n_parts; i++) {
        const oz_cuda_packed *w = oz_cuda_weight(a->parts[i]);
        const bool scaled = w->scales && (w->n_groups > 1 || w->offsets);
        int64_t step = ((int64_t)d->work_bytes - OZ_LT_WORK_BYTES - WIDE_BYTES) / (w->head.cols * 2) / 16 * 16;
        if (step > 65520) step = 65520; /* a grid's second dimension */
        bool good = fits;
        for (int64_t r = 0; good && r < w->head.rows; r += step) {
            const int64_t n = w->head.rows - r < step ? w->head.rows - r : step;
            oz_launch(d, expand, dim3((unsigned)((w->head.cols / 8 + EXPAND_THREADS - 1) / EXPAND_THREADS), (unsigned)n), dim3(EXPAND_THREADS), 0, (void *)tile, wide.x.form, *w, r, scaled);
            good = part_run(d, &wide, i, tile, w->head.cols * 2, r, n, w->scales && !scaled, y + r);
        }
        if (!good) part_plain(d, a, i, y);
        y += w->head.rows;
    }
}
