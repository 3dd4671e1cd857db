/* Sinks: rows of logits become statistics where they lie; only those cross the bus. Exponentials and sums in f64 from the f32 logits.
 *
 * stat: argmax (ties to the lowest id), log sum exp. kl: sum_i p_i (r_i - x_i) + lse(x) - lse(r), p = softmax(r). A row is cut into SLICES by
 * columns, a block each: its own maxima, sums relative to them; then one warp-sized block a row rescales and adds the slices in order. The
 * cut depends on the vocabulary alone. Bound by f64 exponentials (64 lanes a multiprocessor). */
#include <string.h>
#include "kernel/cuda/device.cuh"

enum { SLICES = 48, THREADS = 256, WARPS = THREADS / 32 };

typedef struct slice { float max_r, max_x; int32_t at_r, at_x; double sum_r, sum_x, diff; } slice;

static __device__ __forceinline__ void take_max(float *v, int *at, float v2, int at2) {
    if (v2 > *v || (v2 == *v && at2 < *at)) *v = v2, *at = at2;
}

static __device__ void block_argmax(float *v, int *at, float *vs, int *ats) {
    for (int d = 16; d; d /= 2) {
        const float v2 = __shfl_xor_sync(~0u, *v, d);
        const int at2 = __shfl_xor_sync(~0u, *at, d);
        take_max(v, at, v2, at2);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) vs[threadIdx.x / 32] = *v, ats[threadIdx.x / 32] = *at;
    __syncthreads();
    *v = vs[0], *at = ats[0];
    for (int i = 1; i < WARPS; i++) take_max(v, at, vs[i], ats[i]);
}

static __device__ double block_sum_f64(double v, double *part) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    double s = 0;
    for (int i = 0; i < WARPS; i++) s += part[i];
    return s;
}

/* r NULL: statistics of x alone. */
static __global__ void slices(slice *out, const float *r, const float *x, int64_t ld, int64_t vocab) {
    __shared__ float vs[WARPS];
    __shared__ int ats[WARPS];
    __shared__ double part[WARPS];
    pdl_wait();
    const int64_t width = (vocab + SLICES - 1) / SLICES, c0 = blockIdx.x * width, c1 = c0 + width < vocab ? c0 + width : vocab;
    x += blockIdx.y * ld;
    if (r) r += blockIdx.y * ld;
    slice s = {-INFINITY, -INFINITY, 0x7fffffff, 0x7fffffff, 0, 0, 0};
    for (int64_t i = c0 + threadIdx.x; i < c1; i += THREADS) {
        take_max(&s.max_x, &s.at_x, x[i], (int)i);
        if (r) take_max(&s.max_r, &s.at_r, r[i], (int)i);
    }
    block_argmax(&s.max_x, &s.at_x, vs, ats);
    if (r) block_argmax(&s.max_r, &s.at_r, vs, ats);
    for (int64_t i = c0 + threadIdx.x; i < c1; i += THREADS) {
        if (x[i] != -INFINITY) s.sum_x += exp((double)x[i] - s.max_x);
        if (!r || r[i] == -INFINITY) continue;
        const double e = exp((double)r[i] - s.max_r);
        s.sum_r += e;
        if (e > 0) s.diff += e * ((double)r[i] - x[i]);
    }
    s.sum_x = block_sum_f64(s.sum_x, part);
    if (r) s.sum_r = block_sum_f64(s.sum_r, part), s.diff = block_sum_f64(s.diff, part);
    if (threadIdx.x == 0) out[blockIdx.y * SLICES + blockIdx.x] = s;
}

/* A row's slices, in order. */
static __device__ slice slices_join(const slice *s) {
    slice t = s[0];
    for (int i = 1; i < SLICES; i++) {
        take_max(&t.max_x, &t.at_x, s[i].max_x, s[i].at_x);
        take_max(&t.max_r, &t.at_r, s[i].max_r, s[i].at_r);
    }
    t.sum_x = t.sum_r = t.diff = 0;
    bool is_nan = false;
    for (int i = 0; i < SLICES; i++) {
        if (s[i].sum_x != s[i].sum_x) is_nan = true;
        if (s[i].max_x != -INFINITY) t.sum_x += s[i].sum_x * exp((double)s[i].max_x - t.max_x);
        if (s[i].max_r == -INFINITY) continue;
        const double f = exp((double)s[i].max_r - t.max_r);
        t.sum_r += s[i].sum_r * f, t.diff += s[i].diff * f;
    }
    if (is_nan) t.sum_x = t.sum_x + __longlong_as_double(0x7ff8000000000000ll);
    if (t.at_x == 0x7fffffff) t.at_x = 0;
    if (t.at_r == 0x7fffffff) t.at_r = 0;
    return t;
}

static __global__ void stat_rows(oz_row_stat *out, const slice *s, const float *x, int64_t ld, const int32_t *targets, int64_t n_rows) {
    pdl_wait();
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    const slice t = slices_join(s + row * SLICES);
    oz_row_stat o;
    o.max_logit = t.max_x, o.logit_target = targets ? x[row * ld + targets[row]] : 0, o.lse = t.max_x + log(t.sum_x), o.argmax = t.at_x;
    out[row] = o;
}

/* How many stand before token `at`. */
static __device__ int place_of(const float *x, int at, int64_t vocab) {
    int n = 0;
    for (int64_t i = 0; i < vocab; i++) n += x[i] > x[at] || (x[i] == x[at] && i < at);
    return n;
}

static __global__ void kl_rows(oz_kl_stat *out, const slice *s, const float *r, const float *x, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) {
    pdl_wait();
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    const slice t = slices_join(s + row * SLICES);
    const double lse_r = t.max_r + log(t.sum_r), lse = t.max_x + log(t.sum_x);
    oz_kl_stat o = {};
    o.kl = t.diff / t.sum_r + lse - lse_r, o.argmax_ref = t.at_r, o.argmax = t.at_x;
    if (t.at_r != t.at_x) o.place_ref = place_of(r + row * ld, t.at_x, vocab), o.place = place_of(x + row * ld, t.at_r, vocab);
    if (targets) {
        o.nll_ref = lse_r - r[row * ld + targets[row]], o.nll = lse - x[row * ld + targets[row]];
        o.p_ref = exp(-o.nll_ref), o.p = exp(-o.nll);
    }
    out[row] = o;
}

/* staged[0]: slices, then results; staged[1]: targets. Rows go through in as many passes as fit. */
static int64_t rows_fit(int64_t n_rows, size_t result_bytes) {
    const int64_t fit = OZ_STAGE_BYTES / (int64_t)(SLICES * sizeof(slice) + result_bytes);
    return n_rows < fit ? n_rows : fit;
}

static const int32_t *targets_send(oz_cuda_dev *d, const int32_t *targets, int64_t n) {
    if (!targets) return NULL;
    memcpy(d->pinned[1], targets, (size_t)n * sizeof *targets);
    oz_cuda_note(d, cudaMemcpyAsync(d->staged[1], d->pinned[1], (size_t)n * sizeof *targets, cudaMemcpyHostToDevice, d->stream));
    return (const int32_t *)d->staged[1];
}

static void result_take(oz_cuda_dev *d, void *out, const void *dev, size_t n_bytes) {
    oz_cuda_note(d, cudaMemcpyAsync(d->pinned[0], dev, n_bytes, cudaMemcpyDeviceToHost, d->stream));
    oz_cuda_note(d, cudaStreamSynchronize(d->stream));
    memcpy(out, d->pinned[0], n_bytes);
}

void oz_cuda_sink_stat(oz_dev *dev, oz_row_stat *out, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) {
    oz_cuda_dev *d = oz_cuda(dev);
    for (int64_t r = 0, n; r < n_rows; r += n) {
        n = rows_fit(n_rows - r, sizeof *out);
        slice *s = (slice *)d->staged[0];
        oz_row_stat *result = (oz_row_stat *)(s + n * SLICES);
        const int32_t *t = targets_send(d, targets ? targets + r : NULL, n);
        oz_launch(d, slices, dim3(SLICES, (unsigned)n), dim3(THREADS), 0, s, (const float *)NULL, logits + r * ld, ld, vocab);
        oz_launch(d, stat_rows, dim3((unsigned)((n + 31) / 32)), dim3(32), 0, result, s, logits + r * ld, ld, t, n);
        result_take(d, out + r, result, (size_t)n * sizeof *out);
    }
}

void oz_cuda_sink_kl(oz_dev *dev, oz_kl_stat *out, const float *ref, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) {
    oz_cuda_dev *d = oz_cuda(dev);
    for (int64_t r = 0, n; r < n_rows; r += n) {
        n = rows_fit(n_rows - r, sizeof *out);
        slice *s = (slice *)d->staged[0];
        oz_kl_stat *result = (oz_kl_stat *)(s + n * SLICES);
        const int32_t *t = targets_send(d, targets ? targets + r : NULL, n);
        oz_launch(d, slices, dim3(SLICES, (unsigned)n), dim3(THREADS), 0, s, ref + r * ld, logits + r * ld, ld, vocab);
        oz_launch(d, kl_rows, dim3((unsigned)((n + 31) / 32)), dim3(32), 0, result, s, ref + r * ld, logits + r * ld, ld, t, n, vocab);
        result_take(d, out + r, result, (size_t)n * sizeof *out);
    }
}
