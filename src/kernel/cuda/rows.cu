/* Operations on rows: embed, norm, quantize, round, rope, rope of pairs, KV write, silu_mul, gelu_mul, scale, softcap, add, gather. The plain kernels: a block a row or a head, written for
 * exactness (no contraction, true division), bound by launches in decode and by memory in prefill. The lowering runs fused.cu instead.
 *
 * norm: y = x / sqrt(mean(x^2) + eps) * w. quantize: number.h's oz_act_i8 and oz_act_e4m3. round: its oz_act_round. rope: (a, b) -> (a c - b s, b c + a s). */
#include "kernel/cuda/device.cuh"

enum { THREADS = 256 };
static unsigned blocks_for(int64_t n) { return (unsigned)((n + THREADS - 1) / THREADS); }

static __global__ void embed_rows(float *y, int64_t ld, oz_cuda_packed w, const int32_t *ids) {
    pdl_wait();
    const int64_t r = ids[blockIdx.x];
    const uint8_t *row = w.codes + r * w.stride_bytes;
    for (int64_t k = threadIdx.x; k < w.head.cols; k += blockDim.x) {
        float v = code_of(w.kind, w.layout, row, k);
        if (w.scales) {
            const int64_t at = scale_at(r, k / w.group_size, w.n_groups);
            v = __fmul_rn(v, w.scales[at]);
            if (w.offsets) v = __fadd_rn(v, w.offsets[at]);
        }
        y[blockIdx.x * ld + (w.order ? w.order[k] : k)] = v;
    }
}

void oz_cuda_embed(oz_dev *dev, float *y, int64_t ld, const oz_packed *w) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, embed_rows, dim3((unsigned)d->batch.n_tok), dim3(THREADS), 0, y, ld, *oz_cuda_weight(w), d->batch.ids);
}

static __global__ void norm_rows(float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t dim, float eps) {
    __shared__ float part[32];
    pdl_wait();
    const float *in = x + blockIdx.y * ld_x + blockIdx.x * dim;
    float *out = y + blockIdx.y * ld_y + blockIdx.x * dim, sum = 0;
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) sum = fmaf(in[i], in[i], sum);
    const float r = 1.0f / sqrtf(block_sum(sum, part) / (float)dim + eps);
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) out[i] = in[i] * r * w[i];
}

void oz_cuda_norm(oz_dev *dev, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec, int64_t dim, float eps) {
    oz_launch(oz_cuda(dev), norm_rows, dim3((unsigned)n_vec, (unsigned)n_tok), dim3(dim > 512 ? THREADS : 64), 0, y, ld_y, x, ld_x, w, dim, eps);
}

static __global__ void quantize_rows(oz_rows y, const float *x, int64_t ld_x, int64_t n) {
    __shared__ float part[32];
    pdl_wait();
    const float *in = x + blockIdx.x * ld_x;
    uint8_t *out = (uint8_t *)y.data + blockIdx.x * y.ld * form_size(y.form);
    if (y.form != OZ_FORM_Q8 && y.form != OZ_FORM_F8) {
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) store_plain(y.form, out, i, in[i]);
        return;
    }
    float amax = 0, bad = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        if (isfinite(in[i])) amax = fmaxf(amax, fabsf(in[i]));
        else bad = 1;
    }
    amax = block_max(amax, part);
    bad = block_max(bad, part);
    const float scale = oz_cuda_scale(y.form, amax, bad > 0);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = oz_cuda_code(y.form, in[i], scale);
    if (threadIdx.x == 0) y.scales[blockIdx.x] = scale;
}

void oz_cuda_quantize(oz_dev *dev, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_launch(oz_cuda(dev), quantize_rows, dim3((unsigned)n_tok), dim3(THREADS), 0, *y, x, ld_x, n);
}

/* A block a group of columns and token; static scales travel as arguments, ROUND_GROUPS of them a launch. */
enum { ROUND_GROUPS = 64 };
typedef struct round_args { float lo, hi; bool is_float, symmetric, fixed, powers; int64_t first, step, n; float scales[ROUND_GROUPS], zeros[ROUND_GROUPS]; } round_args;

static __device__ float round_code(float t, const round_args &a) { return a.is_float ? e4m3_to_f32(f32_to_e4m3(t)) : rintf(fminf(fmaxf(t, a.lo), a.hi)); }

static __global__ void round_rows(float *y, int64_t ld_y, const float *x, int64_t ld_x, round_args a) {
    __shared__ float part[32];
    pdl_wait();
    const int64_t begin = (a.first + blockIdx.x) * a.step, end = begin + a.step < a.n ? begin + a.step : a.n;
    const float *in = x + blockIdx.y * ld_x;
    float *out = y + blockIdx.y * ld_y, scale = a.scales[blockIdx.x], zero = a.zeros[blockIdx.x];
    if (!a.fixed) {
        float lowest = 0, highest = 0, bad = 0;
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            lowest = fminf(lowest, in[i]), highest = fmaxf(highest, in[i]);
            if (!isfinite(in[i])) bad = 1;
        }
        lowest = -block_max(-lowest, part), highest = block_max(highest, part), bad = block_max(bad, part);
        if (a.symmetric) scale = __fdiv_rn(fmaxf(-lowest, highest), a.is_float ? 448.0f : a.hi);
        else scale = __fdiv_rn(__fsub_rn(highest, lowest), __fsub_rn(a.hi, a.lo));
        if (a.symmetric && a.is_float) scale = fmaxf(scale, 1.0f / (448.0f * 512.0f));
        if (scale == 0) scale = 1;
        if (a.symmetric && a.powers) {
            int e;
            const float m = frexpf(scale, &e);
            scale = ldexpf(m > 0.5f ? 1.0f : 0.5f, e);
        }
        if (!a.symmetric) zero = fminf(fmaxf(rintf(__fsub_rn(a.lo, __fdiv_rn(lowest, scale))), a.lo), a.hi);
        if (bad > 0) scale = __int_as_float(0x7fc00000);
    }
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
        out[i] = isfinite(in[i]) && isfinite(scale) ? __fmul_rn(__fsub_rn(round_code(__fadd_rn(__fdiv_rn(in[i], scale), zero), a), zero), scale) : __int_as_float(0x7fc00000);
}

void oz_cuda_round(oz_dev *dev, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q) {
    const float hi = (float)((1 << (q->bits - 1)) - 1);
    const int64_t step = q->group_size > 0 ? q->group_size : n, n_groups = (n + step - 1) / step;
    round_args a = {q->symmetric && !q->scales ? -hi : -hi - 1, hi, q->is_float, q->symmetric, q->scales != NULL, q->powers, 0, step, n, {}, {}};
    for (; a.first < n_groups; a.first += ROUND_GROUPS) {
        const int64_t some = n_groups - a.first < ROUND_GROUPS ? n_groups - a.first : (int64_t)ROUND_GROUPS;
        for (int64_t g = 0; g < some && q->scales; g++) a.scales[g] = q->scales[a.first + g], a.zeros[g] = q->zeros ? q->zeros[a.first + g] : 0;
        oz_launch(oz_cuda(dev), round_rows, dim3((unsigned)some, (unsigned)n_tok), dim3(step > 512 ? (unsigned)THREADS : 64u), 0, y, ld_y, x, ld_x, a);
    }
}

static __global__ void rope_table_rows(float *cos_out, float *sin_out, const int32_t *pos, const float *inv_freq, int64_t half, float factor) {
    pdl_wait();
    const int p = pos[blockIdx.x];
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const double angle = (double)__fmul_rn((float)(p < 0 ? 0 : p), inv_freq[i]);
        cos_out[blockIdx.x * half + i] = (float)cos(angle) * factor;
        sin_out[blockIdx.x * half + i] = (float)sin(angle) * factor;
    }
}

void oz_cuda_rope_table(oz_dev *dev, float *cos, float *sin, const float *inv_freq, int64_t half, float factor) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, rope_table_rows, dim3((unsigned)d->batch.n_tok), dim3(64), 0, cos, sin, d->batch.pos, inv_freq, half, factor);
}

static __global__ void rope_rows(float *x, int64_t ld, int64_t head_dim, const float *cos, const float *sin, int64_t half) {
    pdl_wait();
    float *head = x + blockIdx.y * ld + blockIdx.x * head_dim;
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const float c = cos[blockIdx.y * half + i], s = sin[blockIdx.y * half + i], a = head[i], b = head[i + half];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}

void oz_cuda_rope(oz_dev *dev, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok) {
    oz_launch(oz_cuda(dev), rope_rows, dim3((unsigned)n_heads, (unsigned)n_tok), dim3(64), 0, x, ld, head_dim, cos, sin, half);
}

static __global__ void rope_pairs_rows(float *x, int64_t ld, int64_t head_dim, const float *cos, const float *sin, int64_t half) {
    pdl_wait();
    float *head = x + blockIdx.y * ld + blockIdx.x * head_dim;
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const float c = cos[blockIdx.y * half + i], s = sin[blockIdx.y * half + i], a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * c - b * s;
        head[2 * i + 1] = b * c + a * s;
    }
}

void oz_cuda_rope_pairs(oz_dev *dev, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok) {
    oz_launch(oz_cuda(dev), rope_pairs_rows, dim3((unsigned)n_heads, (unsigned)n_tok), dim3(64), 0, x, ld, head_dim, cos, sin, half);
}

static __global__ void kv_write_rows(oz_kv kv, const float *k, const float *v, int64_t ld, oz_cuda_batch b) {
    pdl_wait();
    const int p = b.pos[blockIdx.x];
    if (p < 0) return;
    const int64_t block = b.tables[b.seq[blockIdx.x] * b.ld + p / OZ_KV_BLOCK], hd = kv.head_dim;
    for (int64_t i = threadIdx.x; i < kv.n_heads_kv * hd; i += blockDim.x) {
        const int64_t at = ((block * kv.n_heads_kv + i / hd) * OZ_KV_BLOCK + p % OZ_KV_BLOCK) * hd + i % hd;
        kv.k[at] = k[blockIdx.x * ld + i];
        if (kv.v) kv.v[at] = v[blockIdx.x * ld + i]; /* as wide as keys, or their first columns */
    }
}

void oz_cuda_kv_write(oz_dev *dev, const oz_kv *kv, const float *k, const float *v, int64_t ld) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, kv_write_rows, dim3((unsigned)d->batch.n_tok), dim3(THREADS), 0, *kv, k, v, ld, d->batch);
}

static __global__ void silu_mul_rows(float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[blockIdx.y * ld_y + i] = silu_mul(gate[blockIdx.y * ld_x + i], up[blockIdx.y * ld_x + i]);
}

void oz_cuda_silu_mul(oz_dev *dev, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_launch(oz_cuda(dev), silu_mul_rows, dim3(blocks_for(n), (unsigned)n_tok), dim3(THREADS), 0, y, ld_y, gate, up, ld_x, n);
}

static __global__ void gelu_mul_rows(float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = gate[blockIdx.y * ld_x + i], u = 0.7978845608f * (x + 0.044715f * x * x * x);
    y[blockIdx.y * ld_y + i] = __fdiv_rn(x, 1.0f + expf(-2.0f * u)) * up[blockIdx.y * ld_x + i]; /* 0.5 (1 + tanh(u)) without its cancellation */
}

void oz_cuda_gelu_mul(oz_dev *dev, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_launch(oz_cuda(dev), gelu_mul_rows, dim3(blocks_for(n), (unsigned)n_tok), dim3(THREADS), 0, y, ld_y, gate, up, ld_x, n);
}

static __global__ void scale_rows(float *x, int64_t ld, int64_t n, float factor) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[blockIdx.y * ld + i] *= factor;
}

void oz_cuda_scale(oz_dev *dev, float *x, int64_t ld, int64_t n_tok, int64_t n, float factor) {
    oz_launch(oz_cuda(dev), scale_rows, dim3(blocks_for(n), (unsigned)n_tok), dim3(THREADS), 0, x, ld, n, factor);
}

static __global__ void softcap_rows(float *x, int64_t ld, int64_t n, float cap) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[blockIdx.y * ld + i] = softcap(x[blockIdx.y * ld + i], cap);
}

void oz_cuda_softcap(oz_dev *dev, float *x, int64_t ld, int64_t n_tok, int64_t n, float cap) {
    oz_launch(oz_cuda(dev), softcap_rows, dim3(blocks_for(n), (unsigned)n_tok), dim3(THREADS), 0, x, ld, n, cap);
}

static __global__ void add_rows(float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[blockIdx.y * ld_y + i] += x[blockIdx.y * ld_x + i];
}

void oz_cuda_add(oz_dev *dev, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_launch(oz_cuda(dev), add_rows, dim3(blocks_for(n), (unsigned)n_tok), dim3(THREADS), 0, y, ld_y, x, ld_x, n);
}

static __global__ void gather_rows(float *y, int64_t ld_y, const float *x, int64_t ld_x, const int32_t *rows, int64_t n) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[blockIdx.y * ld_y + i] = x[rows[blockIdx.y] * ld_x + i];
}

void oz_cuda_gather(oz_dev *dev, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t row0, int64_t n_rows, int64_t n) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, gather_rows, dim3(blocks_for(n), (unsigned)n_rows), dim3(THREADS), 0, y, ld_y, x, ld_x, d->batch.rows + row0, n);
}
