/* Products: the list of kernels, choosing from it when a weight is packed, and the plain kernel that ends the list.
 *
 * y[t, r] = sum_k w[r, k] x[t, k] (+ bias[r]). With one scale a row and no offsets the sum is of codes and is scaled at the end, as on the CPU:
 * y = sum * scale, or sum * (scale * x_scale) where x has one; else a weight is code * scale + offset, rounded once.
 *
 * A weight whose columns lie in an order of their own (actorder, desc_act) meets inputs put into that order, OZ_GATHER_TOK tokens at a time, and is
 * then like any other; the plain kernel reads through the order itself.
 *
 * The plain kernel: a block takes 64 rows and 16 tokens; K goes through shared memory 32 columns at a time; a thread keeps 4 sums. An output's sum is
 * taken by one thread over ascending k: the reference on the device, and the same for any number of tokens. */
#include <stdio.h>
#include "kernel/cuda/device.cuh"

enum { ROWS = 64, TOKS = 16, KS = 32, THREADS = 256 };

static __device__ __forceinline__ float mad(float a, float b, float c) { return fmaf(a, b, c); }
static __device__ __forceinline__ int mad(int a, int b, int c) { return a * b + c; }

template <typename ACC>
static __global__ void __launch_bounds__(THREADS) gemm_plain(oz_cuda_packed w, const float *bias, oz_rows x, float *y, int64_t ld_y, int64_t n_tok, const int32_t *range) {
    __shared__ ACC ws[ROWS][KS + 1], xs[TOKS][KS + 1];
    pdl_next();
    pdl_wait();
    const int64_t first = range ? range[0] : 0, r0 = (int64_t)blockIdx.x * ROWS, t0 = first + (int64_t)blockIdx.y * TOKS, cols = w.head.cols;
    if (range) n_tok = range[1];
    if (t0 >= n_tok) return;
    const int tid = threadIdx.x, row = tid % ROWS, tok = tid / ROWS * 4;
    const bool scaled = w.scales && (w.n_groups > 1 || w.offsets);
    ACC sum[4] = {};
    for (int64_t k0 = 0; k0 < cols; k0 += KS) {
        for (int i = tid; i < ROWS * KS; i += THREADS) {
            const int64_t r = r0 + i / KS, k = k0 + i % KS;
            ACC v = 0;
            if (r < w.head.rows && k < (MUTATED(PLAIN_COLUMN) ? cols - 1 : cols)) {
                float c = code_of(w.kind, w.layout, w.codes + r * w.stride_bytes, k);
                if (scaled) {
                    const int64_t at = scale_at(r, k / w.group_size, w.n_groups);
                    c = w.offsets ? fmaf(c, w.scales[at], w.offsets[at]) : c * w.scales[at];
                }
                v = (ACC)c;
            }
            ws[i / KS][i % KS] = v;
        }
        for (int i = tid; i < TOKS * KS; i += THREADS) {
            const int64_t t = t0 + i / KS, k = k0 + i % KS;
            xs[i / KS][i % KS] = t < n_tok && k < cols ? (ACC)load_form(x.form, (const uint8_t *)x.data + t * x.ld * form_size(x.form), w.order ? w.order[k] : k) : (ACC)0;
        }
        __syncthreads();
        #pragma unroll 8
        for (int k = 0; k < KS; k++) {
            const ACC v = ws[row][k];
            for (int i = 0; i < 4; i++) sum[i] = mad(v, xs[tok + i][k], sum[i]);
        }
        __syncthreads();
    }
    const int64_t r = r0 + row;
    for (int i = 0; i < 4; i++) {
        const int64_t t = t0 + tok + i;
        if (r >= w.head.rows || t >= n_tok) continue;
        float v = (float)sum[i];
        if (w.scales && !scaled) v *= x.scales ? w.scales[scale_at(r, 0, 1)] * x.scales[t] : w.scales[scale_at(r, 0, 1)];
        y[t * ld_y + r] = bias ? v + bias[r] : v;
    }
}

static constexpr auto gemm_plain_q8 = gemm_plain<int>;
static constexpr auto gemm_plain_float = gemm_plain<float>;

void oz_gemm_plain(oz_cuda_dev *d, const oz_linear_args *a) {
    float *y = a->y;
    for (int i = 0; i < a->n_parts; i++) {
        const oz_cuda_packed *w = oz_cuda_weight(a->parts[i]);
        const dim3 grid((unsigned)((w->head.rows + ROWS - 1) / ROWS), (unsigned)((a->n_tok + TOKS - 1) / TOKS));
        const float *bias = a->bias ? a->bias[i] : NULL;
        if (a->x.form == OZ_FORM_Q8) oz_launch(d, gemm_plain_q8, grid, dim3(THREADS), 0, *w, bias, a->x, y, a->ld_y, a->n_tok, (const int32_t *)NULL);
        else oz_launch(d, gemm_plain_float, grid, dim3(THREADS), 0, *w, bias, a->x, y, a->ld_y, a->n_tok, (const int32_t *)NULL);
        y += w->head.rows;
    }
}

/* Rows [range[0], range[1]) of x and y, at most max_rows of them; range lies on the device. */
void oz_gemm_plain_range(oz_cuda_dev *d, const oz_packed *p, oz_rows x, float *y, int64_t ld_y, int64_t max_rows, const int32_t *range) {
    const oz_cuda_packed *w = oz_cuda_weight(p);
    const dim3 grid((unsigned)((w->head.rows + ROWS - 1) / ROWS), (unsigned)((max_rows + TOKS - 1) / TOKS));
    oz_launch(d, x.form == OZ_FORM_Q8 ? gemm_plain_q8 : gemm_plain_float, grid, dim3(THREADS), 0, *w, (const float *)NULL, x, y, ld_y, max_rows, range);
}

template <typename T> static __global__ void gather_columns(T *y, int64_t ld_y, const T *x, int64_t ld_x, const int32_t *order, int64_t cols) {
    pdl_wait();
    const int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (k < cols) y[blockIdx.y * ld_y + k] = x[blockIdx.y * ld_x + order[MUTATED(GATHER_COLUMN) && k ? k - 1 : k]];
}

static const oz_gemm_choice *choice_get(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket);

static void gemm_gathered(oz_cuda_dev *d, const oz_linear_args *a) {
    oz_linear_args run = *a;
    float *y = a->y;
    for (int i = 0; i < a->n_parts; i++) {
        oz_cuda_packed w = *oz_cuda_weight(a->parts[i]);
        const oz_packed *const part = &w.head;
        const int32_t *order = w.order;
        const int64_t cols = w.head.cols, ld = oz_gathered_ld(cols), size = d->head.ops->form_bytes(a->x.form);
        w.order = NULL;
        run.parts = &part, run.bias = a->bias ? a->bias + i : NULL, run.n_parts = 1;
        for (int64_t t = 0; t < a->n_tok; t += OZ_GATHER_TOK) {
            run.n_tok = a->n_tok - t < OZ_GATHER_TOK ? a->n_tok - t : (int64_t)OZ_GATHER_TOK;
            run.x = {a->x.form, d->gathered, ld, a->x.scales ? a->x.scales + t : NULL};
            const uint8_t *x = (const uint8_t *)a->x.data + t * a->x.ld * size;
            const dim3 grid((unsigned)((cols + THREADS - 1) / THREADS), (unsigned)run.n_tok);
            if (size == 4) oz_launch(d, gather_columns<uint32_t>, grid, dim3(THREADS), 0, (uint32_t *)d->gathered, ld, (const uint32_t *)x, a->x.ld, order, cols);
            else if (size == 2) oz_launch(d, gather_columns<uint16_t>, grid, dim3(THREADS), 0, (uint16_t *)d->gathered, ld, (const uint16_t *)x, a->x.ld, order, cols);
            else oz_launch(d, gather_columns<uint8_t>, grid, dim3(THREADS), 0, d->gathered, ld, x, a->x.ld, order, cols);
            run.y = y + t * a->ld_y;
            choice_get(d, &w, run.n_tok > OZ_M_STREAM)->run(d, &run);
        }
        y += w.head.rows;
    }
}

static bool has_order(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket) { return w->order; }
static bool always(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket) { return true; }

/* Best first; the last one fits all. */
static const oz_gemm_choice choices[] = {
    {"gathered", has_order, gemm_gathered},
    {"stream", oz_stream_fits, oz_gemm_stream},
    {"lt", oz_lt_fits, oz_gemm_lt},
    {"expand_lt", oz_lt_expand_fits, oz_gemm_lt_expand},
    {"plain", always, oz_gemm_plain},
};
static const oz_gemm_choice *const plain = &choices[4];

static const oz_gemm_choice *choice_get(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket) {
    const oz_gemm_choice *c = choices;
    while (!c->fits(d, w, bucket)) c++;
    return c;
}

/* A kernel for each bucket of rows. False: only the plain one, although these activations have better ones. */
bool oz_cuda_linear_bind(const oz_cuda_dev *d, oz_cuda_packed *w) {
    for (int b = 0; b < OZ_M_BUCKETS; b++) w->bound[b] = choice_get(d, w, b);
    const char *few = w->bound[0]->name, *many = w->bound[1]->name;
    const int n = snprintf(w->name, sizeof w->name, "gemm_%s_%s %s", oz_ckind_name(w->kind), oz_form_name(w->form), few);
    if (few != many) snprintf(w->name + n, sizeof w->name - (size_t)n, ", over %d rows %s", OZ_M_STREAM, many);
    return w->form == OZ_FORM_F32 || w->bound[0] != plain;
}

/* What kernels ask of x: rows on 16-byte boundaries. */
static bool aligned(const oz_rows *x) {
    const int64_t size = x->form == OZ_FORM_F32 ? 4 : x->form == OZ_FORM_BF16 || x->form == OZ_FORM_F16 ? 2 : 1;
    return (uintptr_t)x->data % 16 == 0 && x->ld * size % 16 == 0;
}

/* Neighbours bound to the same kernel go to it together. */
void oz_cuda_linear(oz_dev *dev, const oz_linear_args *a) {
    oz_cuda_dev *d = oz_cuda(dev);
    const int bucket = a->n_tok > OZ_M_STREAM;
    if (a->n_tok <= 0) return;
    oz_linear_args run = *a;
    for (int i = 0, j; i < a->n_parts; i = j) {
        const oz_cuda_packed *w = oz_cuda_weight(a->parts[i]);
        run.parts = a->parts + i, run.bias = a->bias ? a->bias + i : NULL;
        int64_t rows = 0;
        for (j = i; j < a->n_parts; j++) {
            const oz_cuda_packed *v = oz_cuda_weight(a->parts[j]);
            if (v->bound[bucket] != w->bound[bucket] || v->kind != w->kind || v->group_size != w->group_size) break;
            rows += v->head.rows;
        }
        run.n_parts = j - i;
        (aligned(&run.x) ? w->bound[bucket] : plain)->run(d, &run);
        run.y += rows;
    }
}
