/* Runs of steps of a decoding pass as one kernel: add + norm + quantize, and what happens to heads between their product and attention.
 *
 * norm_quantize: x += add; y = x / sqrt(mean(x^2) + eps) * w in y's form. A block a row; the row lives in registers between its three uses
 * (sum of squares, largest magnitude, codes). Latency bound: a few microseconds that the next product's first reads overlap.
 * heads: a warp a head of q, k or v; a lane owns pairs (i, i + head_dim / 2), so that norm and rotation need no exchange but one sum. k and v go
 * straight to their block of the cache. */
#include "kernel/cuda/device.cuh"

enum { ROW_THREADS = 512, HEAD_WARPS = 4, MAX_PAIRS = OZ_FUSED_MAX_HEAD / 64 };

/* Four columns of a row in a form without a scale. */
static __device__ __forceinline__ void store4(oz_form form, void *row, int64_t i, const float4 &v) {
    if (form == OZ_FORM_F32) {
        *(float4 *)((float *)row + i) = v;
    } else if (form == OZ_FORM_BF16) {
        const __nv_bfloat162 p[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
        *(uint2 *)((__nv_bfloat16 *)row + i) = *(const uint2 *)p;
    } else {
        const __half2 p[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
        *(uint2 *)((__half *)row + i) = *(const uint2 *)p;
    }
}

static __device__ __forceinline__ float finite_max(float m, float v, float *bad) {
    if (!isfinite(v)) *bad = 1;
    else m = fmaxf(m, fabsf(v));
    return m;
}

/* VECS: groups of four columns a thread. The norm's weights do not change, so they are read before the wait. */
template <int VECS>
static __global__ void __launch_bounds__(ROW_THREADS) norm_quantize(oz_norm_quantize a) {
    __shared__ float part[32];
    float4 v[VECS], w[VECS], add[VECS];
    #pragma unroll
    for (int j = 0; j < VECS; j++) {
        const int64_t i = 4 * (threadIdx.x + (int64_t)j * ROW_THREADS);
        w[j] = i < a.dim ? *(const float4 *)(a.w + i) : make_float4(0, 0, 0, 0);
        if (MUTATED(NORM_WEIGHT) && i + 4 >= a.dim) w[j] = make_float4(1, 1, 1, 1);
    }
    pdl_next();
    pdl_wait();
    float *x = a.x + blockIdx.x * a.ld_x, sum = 0;
    #pragma unroll
    for (int j = 0; j < VECS; j++) {
        const int64_t i = 4 * (threadIdx.x + (int64_t)j * ROW_THREADS);
        v[j] = i < a.dim ? *(const float4 *)(x + i) : make_float4(0, 0, 0, 0);
        add[j] = a.add && i < a.dim ? *(const float4 *)(a.add + blockIdx.x * a.ld_add + i) : make_float4(0, 0, 0, 0);
    }
    #pragma unroll
    for (int j = 0; j < VECS; j++) {
        const int64_t i = 4 * (threadIdx.x + (int64_t)j * ROW_THREADS);
        if (MUTATED(NORM_BEFORE_ADD)) sum = fmaf(v[j].x, v[j].x, fmaf(v[j].y, v[j].y, fmaf(v[j].z, v[j].z, fmaf(v[j].w, v[j].w, sum))));
        if (a.add) {
            v[j].x += add[j].x, v[j].y += add[j].y, v[j].z += add[j].z, v[j].w += add[j].w;
            if (i < a.dim && !MUTATED(NORM_SUM_LOST)) *(float4 *)(x + i) = v[j];
        }
        if (!MUTATED(NORM_BEFORE_ADD)) sum = fmaf(v[j].x, v[j].x, fmaf(v[j].y, v[j].y, fmaf(v[j].z, v[j].z, fmaf(v[j].w, v[j].w, sum))));
    }
    const float r = 1.0f / sqrtf(block_sum(sum, part) / (float)(MUTATED(NORM_PADDED) ? 4 * VECS * ROW_THREADS : a.dim) + a.eps);
    float amax = 0, bad = 0;
    #pragma unroll
    for (int j = 0; j < VECS; j++) {
        if (MUTATED(NORM_CODES) && a.y.form != OZ_FORM_F32) w[j] = make_float4(1, 1, 1, 1);
        v[j].x = v[j].x * r * w[j].x, v[j].y = v[j].y * r * w[j].y, v[j].z = v[j].z * r * w[j].z, v[j].w = v[j].w * r * w[j].w;
        amax = finite_max(finite_max(finite_max(finite_max(amax, v[j].x, &bad), v[j].y, &bad), v[j].z, &bad), v[j].w, &bad);
    }
    uint8_t *out = (uint8_t *)a.y.data + blockIdx.x * a.y.ld * form_size(a.y.form);
    float scale = 1;
    if (a.y.form == OZ_FORM_Q8 || a.y.form == OZ_FORM_F8) {
        amax = block_max(amax, part);
        bad = block_max(bad, part);
        scale = oz_cuda_scale(a.y.form, amax, bad > 0);
        if (threadIdx.x == 0 && !(MUTATED(NORM_SCALE) && blockIdx.x)) a.y.scales[blockIdx.x] = scale;
    }
    #pragma unroll
    for (int j = 0; j < VECS; j++) {
        const int64_t i = 4 * (threadIdx.x + (int64_t)j * ROW_THREADS);
        if (i >= a.dim) continue;
        if (a.y.form == OZ_FORM_Q8 || a.y.form == OZ_FORM_F8)
            *(uchar4 *)(out + i) = make_uchar4(oz_cuda_code(a.y.form, v[j].x, scale), oz_cuda_code(a.y.form, v[j].y, scale), oz_cuda_code(a.y.form, v[j].z, scale), oz_cuda_code(a.y.form, v[j].w, scale));
        else store4(a.y.form, out, i, v[j]);
    }
}

void oz_cuda_norm_quantize(oz_cuda_dev *d, const oz_norm_quantize *a) {
    const int64_t vecs = (a->dim + 4 * ROW_THREADS - 1) / (4 * ROW_THREADS);
    oz_launch(d, vecs <= 1 ? norm_quantize<1> : vecs <= 2 ? norm_quantize<2> : vecs <= 4 ? norm_quantize<4> : norm_quantize<6>, dim3((unsigned)a->n_tok), dim3(ROW_THREADS), 0, *a);
}

static __global__ void __launch_bounds__(32 * HEAD_WARPS) heads(oz_heads a, oz_kv kv, oz_cuda_batch b) {
    pdl_next();
    pdl_wait();
    const int64_t t = blockIdx.x, h = blockIdx.y * HEAD_WARPS + threadIdx.x / 32, hd = kv.head_dim, half = hd / 2;
    const int lane = threadIdx.x % 32, pos = b.pos[t];
    if (h >= a.n_heads + 2 * kv.n_heads_kv || pos < 0) return;
    float *x = a.qkv + t * a.ld + h * hd, u[MAX_PAIRS], v[MAX_PAIRS], sum = 0;
    const bool is_q = h < a.n_heads, is_v = h >= a.n_heads + kv.n_heads_kv;
    const float *norm = is_v ? NULL : is_q || (MUTATED(HEADS_NORM) && a.k_norm) ? a.q_norm : a.k_norm;
    for (int p = 0; p < MAX_PAIRS; p++) {
        const int64_t i = lane + 32 * p;
        u[p] = i < half ? x[i] : 0, v[p] = i < half ? x[i + half] : 0;
        sum = MUTATED(HEADS_SUM) ? fmaf(u[p], u[p], sum) : fmaf(u[p], u[p], fmaf(v[p], v[p], sum));
    }
    float *to = x;
    if (!is_q) {
        const int64_t kvh = h - a.n_heads - (is_v ? kv.n_heads_kv : 0), block = b.tables[b.seq[t] * b.ld + (MUTATED(HEADS_BLOCK) ? 0 : pos / OZ_KV_BLOCK)];
        to = (is_v ? kv.v : kv.k) + ((block * kv.n_heads_kv + kvh) * OZ_KV_BLOCK + (MUTATED(HEADS_SLOT) ? pos + OZ_KV_BLOCK - 1 : pos) % OZ_KV_BLOCK) * hd;
    }
    const float r = norm ? 1.0f / sqrtf(warp_sum(sum) / (float)hd + a.eps) : 1.0f;
    for (int p = 0; p < MAX_PAIRS; p++) {
        const int64_t i = lane + 32 * p;
        if (i >= half) break;
        float e = u[p], f = v[p];
        if (norm) e = e * r * norm[i], f = f * r * norm[i + half];
        if ((is_v && !MUTATED(HEADS_VALUE)) || (MUTATED(HEADS_KEY) && !is_q)) {
            to[i] = e, to[i + half] = f;
        } else {
            const float c = a.cos[t * half + i], s = MUTATED(HEADS_TURN) && is_q ? -a.sin[t * half + i] : a.sin[t * half + i];
            to[i] = e * c - f * s, to[i + half] = f * c + e * s;
        }
    }
}

void oz_cuda_heads(oz_cuda_dev *d, const oz_heads *a) {
    const int64_t n = a->n_heads + 2 * a->kv->n_heads_kv;
    oz_launch(d, heads, dim3((unsigned)a->n_tok, (unsigned)((n + HEAD_WARPS - 1) / HEAD_WARPS)), dim3(32 * HEAD_WARPS), 0, *a, *a->kv, d->batch);
}
