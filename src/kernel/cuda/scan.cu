/* Layers that scan, plainly: the causal convolution and the selective scan of each channel.
 *
 * A thread takes one channel of one segment and walks its tokens in order; neighbours in a warp are neighbouring channels, so every access of a warp lies in
 * one piece. A block is launched for each row of the call, and those whose row begins a segment do the work: the grid depends on the number of rows alone,
 * as a graph needs it. Sums and states are f32, in the order of their definition (step.h). A prompt is bound by latency: its tokens follow each other.
 * Not done: scanning chunks of a prompt side by side, which would need their states joined after. */
#include "kernel/cuda/device.cuh"

enum { THREADS = 64 };

/* Tokens of the segment that row t0 begins; 0: it begins none. */
static __device__ int64_t seg_len(const oz_cuda_batch &b, int64_t t0) {
    if (b.pos[t0] < 0 || (t0 > 0 && b.pos[t0 - 1] >= 0 && b.seq[t0 - 1] == b.seq[t0])) return 0;
    int64_t n = 1;
    while (t0 + n < b.n_tok && b.pos[t0 + n] >= 0 && b.seq[t0 + n] == b.seq[t0]) n++;
    return n;
}

static __device__ float silu(float x) { return __fdiv_rn(x, 1.0f + expf(-x)); }

static __global__ void __launch_bounds__(THREADS) conv_segs(oz_conv_args a, oz_cuda_batch b) {
    pdl_wait();
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, t0 = blockIdx.y, kept = a.taps - 1, n = c < a.n ? seg_len(b, t0) : 0;
    if (n == 0) return;
    const bool anew = b.pos[t0] == 0 && !MUTATED(SCAN_KEEPS);
    float *state = a.state + b.slots[b.seq[t0]] * kept * a.n + c;
    const float *x = a.x + t0 * a.ld + c;
    for (int64_t t = 0; t < n; t++) {
        float sum = a.bias && !MUTATED(CONV_BIAS) ? a.bias[c] : 0;
        for (int64_t k = 0; k < a.taps; k++) {
            const int64_t at = t - kept + k;
            const float in = at >= 0 ? x[at * a.ld] : anew ? 0 : state[(kept + at) * a.n];
            sum = fmaf(a.w[k * a.n + c], in, sum);
        }
        a.y[(t0 + t) * a.ld + c] = silu(sum);
    }
    for (int64_t k = 0; k < kept; k++) { /* what is read lies behind what is written */
        const int64_t at = n - kept + k;
        state[k * a.n] = at >= 0 ? x[at * a.ld] : anew ? 0 : state[(kept + at) * a.n];
    }
}

void oz_cuda_conv(oz_dev *dev, const oz_conv_args *a) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, conv_segs, dim3((unsigned)((a->n + THREADS - 1) / THREADS), (unsigned)d->batch.n_tok), dim3(THREADS), 0, *a, d->batch);
}

static __global__ void __launch_bounds__(THREADS) scan_segs(oz_scan_args a, oz_cuda_batch b) {
    pdl_wait();
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, t0 = blockIdx.y, n = c < a.n ? seg_len(b, t0) : 0;
    if (n == 0) return;
    const bool anew = b.pos[t0] == 0 && !MUTATED(SCAN_KEEPS);
    float *state = a.state + b.slots[b.seq[t0]] * a.n_state * a.n + c;
    for (int64_t t = t0; t < t0 + n; t++) {
        const float in = a.dt[t * a.ld + c], dt = in > 20 ? in : log1pf(expf(in)), x = a.x[t * a.ld + c];
        const float *bs = a.b + t * a.ld, *cs = a.c + t * a.ld;
        float y = 0;
        for (int64_t i = 0; i < a.n_state; i++) {
            const float was = anew && t == t0 ? 0 : state[i * a.n], h = fmaf(expf(dt * a.a[i * a.n + c]), was, dt * bs[i] * x);
            state[i * a.n] = h;
            y = fmaf((MUTATED(SCAN_ORDER) && i == a.n_state - 1 ? bs : cs)[i], h, y);
        }
        a.y[t * a.ld_y + c] = fmaf(a.d[c], x, y) * silu(a.gate[t * a.ld + c]);
    }
}

void oz_cuda_scan(oz_dev *dev, const oz_scan_args *a) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, scan_segs, dim3((unsigned)((a->n + THREADS - 1) / THREADS), (unsigned)d->batch.n_tok), dim3(THREADS), 0, *a, d->batch);
}
