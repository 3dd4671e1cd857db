/* What is kept of the inputs of modules on the device: ranges of columns, and Hessians, the sum of x x^T / |x| over rows x. Rows are weighed (each divided by the square root of its norm, in bf16: products of 16 bits run at the matrix units' full speed, sums
 * are f32, and rounding each x to 8 bits averages out over thousands of rows) and gathered, and as soon as there are many, multiplied with themselves: a band of rows of the sum at a
 * time, as far as the diagonal's block. */
#include "kernel/cuda/device.cuh"

enum { THREADS = 256, BAND = 1024, MIN_ROWS = 1024, ROWS_BYTES = 128 << 20 };

struct oz_gram {
    int64_t n, ld;        /* ld: of rows, in elements, a multiple of 8 */
    int64_t held, room;   /* rows */
    __nv_bfloat16 *rows;  /* [room, ld] */
    float *sum;           /* [n, n]; until closed, of each band as far as its end */
};

static void gram_free(oz_dev *dev, oz_gram **p) {
    oz_gram *g = *p;
    if (!g) return;
    const oz_ops *ops = oz_dev_ops(dev);
    ops->mem_free(dev, g->rows);
    ops->mem_free(dev, g->sum);
    oz_free(g);
    *p = NULL;
}

static oz_status gram_new(oz_gram **out, oz_dev *dev, int64_t n, const char *what, oz_err *err) {
    OZ_NEED(oz_cuda(dev)->lt, err, OZ_E_UNSUPPORTED, "cuda: calibration needs cuBLASLt, which is not here; --device cpu does without");
    const oz_ops *ops = oz_dev_ops(dev);
    oz_gram *g = (oz_gram *)oz_alloc(sizeof *g);
    g->n = n, g->ld = (n + 7) / 8 * 8, g->room = ROWS_BYTES / (g->ld * 2);
    if (g->room < MIN_ROWS) g->room = MIN_ROWS;
    oz_status st = ops->mem_new((void **)&g->rows, dev, (size_t)(g->room * g->ld) * 2, what, err);
    if (st == OZ_OK) st = ops->mem_new((void **)&g->sum, dev, (size_t)n * (size_t)n * sizeof(float), what, err);
    if (st == OZ_OK) *out = g;
    else gram_free(dev, &g);
    return st;
}

/* A block a row. */
static __global__ void weigh(__nv_bfloat16 *to, int64_t ld_to, const float *x, int64_t ld, int64_t n) {
    __shared__ float part[32];
    pdl_next();
    pdl_wait();
    x += blockIdx.x * ld, to += blockIdx.x * ld_to;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) sum = fmaf(x[i], x[i], sum);
    sum = block_sum(sum, part);
    const float by = sum > 0 ? sqrtf(MUTATED(GRAM_WEIGHT) ? __fdiv_rn((float)n, sum) : sqrtf(__fdiv_rn((float)n, sum))) : 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) to[i] = __float2bfloat16_rn(x[i] * by);
}

static void flush(oz_cuda_dev *d, oz_gram *g) {
    for (int64_t i = 0; i < g->n && g->held; i += BAND) {
        const int64_t end = i + BAND < g->n ? i + BAND : g->n;
        oz_lt_product_args p = {};
        p.bf16 = true, p.a = g->rows, p.b = g->rows + i, p.d = g->sum + i * g->n, p.m = end, p.n = end - i, p.k = g->held;
        p.lda = p.ldb = g->ld, p.ldd = g->n, p.plain_a = p.turned_b = p.adds = true, p.alpha = 1;
        if (!oz_lt_product(d, &p)) oz_cuda_note(d, cudaErrorNotSupported);
    }
    g->held = 0;
}

static void gram_add(oz_dev *dev, oz_gram *g, const float *x, int64_t ld, int64_t n_rows) {
    oz_cuda_dev *d = oz_cuda(dev);
    for (int64_t r = 0, n; r < n_rows; r += n) {
        n = n_rows - r < g->room - g->held ? n_rows - r : g->room - g->held;
        oz_launch(d, weigh, dim3((unsigned)n), dim3(THREADS), 0, g->rows + g->held * g->ld, g->ld, x + r * ld, ld, g->n);
        g->held += n;
        if (g->held == g->room) flush(d, g);
    }
}

/* Above the diagonal what is below it; a thread an element. */
static __global__ void mirror(float *sum, int64_t n) {
    pdl_next();
    pdl_wait();
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = blockIdx.y; i < n; i += gridDim.y)
        if (j < n && j > i) sum[i * n + j] = sum[j * n + i];
}

static __global__ void diagonal_of(float *to, const float *a, int64_t n) {
    pdl_next();
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = a[i * n + i];
}

static float *gram_close(oz_dev *dev, oz_gram *g, float *diagonal) {
    oz_cuda_dev *d = oz_cuda(dev);
    const unsigned wide = (unsigned)((g->n + THREADS - 1) / THREADS);
    flush(d, g);
    oz_launch(d, mirror, dim3(wide, (unsigned)(g->n < 4096 ? g->n : 4096)), dim3(THREADS), 0, g->sum, g->n);
    oz_launch(d, diagonal_of, dim3(wide), dim3(THREADS), 0, (float *)d->work, (const float *)g->sum, g->n);
    oz_dev_ops(dev)->download(dev, diagonal, d->work, (size_t)g->n * sizeof(float));
    return g->sum;
}

/* ---- ranges ---- */

/* A thread a column. */
static __global__ void ranges(oz_range r, const float *x, int64_t ld, int64_t n_rows, int64_t n) {
    pdl_next();
    pdl_wait();
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= n) return;
    float low = r.min[c], high = r.max[c];
    double sum = r.sum[c], squares = r.squares[c];
    #pragma unroll 8
    for (int64_t i = 0; i < n_rows; i++) {
        const float v = x[i * ld + c];
        low = fminf(low, v), high = fmaxf(high, v);
        sum += (double)fabsf(v), squares += (double)v * (double)v;
    }
    r.min[c] = MUTATED(RANGE_MIN) ? -high : low, r.max[c] = high, r.sum[c] = sum, r.squares[c] = squares;
}

static void range_add(oz_dev *dev, const oz_range *r, const float *x, int64_t ld, int64_t n_rows, int64_t n) {
    oz_launch(oz_cuda(dev), ranges, dim3((unsigned)((n + 63) / 64)), dim3(64), 0, *r, x, ld, n_rows, n);
}

static size_t room(oz_dev *dev) {
    size_t n_free = 0, n_all;
    oz_cuda_note(oz_cuda(dev), cudaMemGetInfo(&n_free, &n_all));
    return n_free;
}

extern const oz_calib_ops oz_cuda_calib = {room, gram_new, gram_free, gram_add, gram_close, oz_cuda_factor, &oz_cuda_tile_ops, &oz_cuda_trial_ops, range_add};
