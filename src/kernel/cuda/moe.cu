/* A mixture of experts, plainly: route, sort, spread, combine, and the product of each expert with its run of sorted rows.
 *
 * route: a thread a token takes the top_k likeliest experts of the groups that are kept from the best down, ties to the lower number; their
 * weights (softmax, or sigmoids) in f64, divided by their sum where the route is not raw. sort: a thread an expert counts its pairs and writes them in order, so the result is the stable one. grouped: one launch of the plain product an
 * expert; its blocks read where the expert's rows begin and end, and those without rows return at once. */
#include "kernel/cuda/device.cuh"

enum { THREADS = 256, MAX_EXPERTS = 1024 };

static __device__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* As the CPU's (ref/ops.c): what an expert is chosen by, f32; a logit that is no number comes last. */
static __device__ double choice(const float *x, const oz_route &r, int64_t e) {
    if (isnan(x[e])) return -INFINITY;
    const float score = r.sigmoid ? (float)sigmoid(x[e]) : x[e];
    return r.bias ? score + r.bias[e] : score;
}

static __device__ double group_best(const float *x, const oz_route &r, int64_t g) {
    const int64_t n = r.n_experts / r.n_groups;
    double best = -INFINITY, next = -INFINITY;
    for (int64_t e = g * n; e < (g + 1) * n; e++) {
        const double v = choice(x, r, e);
        if (v > best) next = best, best = v;
        else if (v > next) next = v;
    }
    return r.best_two ? (float)(best + next) : best;
}

static __device__ uint64_t groups_kept(const float *x, const oz_route &r) {
    uint64_t kept = 0;
    for (int64_t g = 0; g < r.n_groups; g++) {
        const double best = group_best(x, r, g);
        int64_t before = 0;
        for (int64_t o = 0; o < r.n_groups; o++) {
            const double other = group_best(x, r, o);
            before += other > best || (other == best && o < g);
        }
        if (before < r.top_groups) kept |= (uint64_t)1 << g;
    }
    return kept;
}

static __global__ void route_tokens(oz_route r, const float *logits, int64_t ld, int64_t n_tok) {
    pdl_wait();
    const int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n_tok) return;
    const float *x = logits + t * ld;
    int32_t *experts = r.experts + t * r.top_k;
    double sum = 0, chosen = 0, last = INFINITY;
    const uint64_t kept = groups_kept(x, r);
    const int64_t group = r.n_groups ? r.n_experts / r.n_groups : 1;
    for (int64_t i = 0; i < r.top_k; i++) {
        int32_t best = -1;
        double most = 0;
        for (int32_t e = 0; e < r.n_experts; e++) {
            if (r.n_groups && !(kept >> e / group & 1)) continue;
            const double v = choice(x, r, e);
            const bool behind = i == 0 || v < last || (v == last && e > experts[i - 1]);
            if (behind && (best < 0 || v > most)) best = e, most = v;
        }
        experts[i] = best;
        last = most;
    }
    const double max = x[experts[0]], scale = r.scale > 0 ? r.scale : 1;
    for (int64_t e = 0; e < r.n_experts; e++) sum += r.sigmoid ? (isnan(x[e]) ? NAN : 0) : exp(x[e] - max);
    for (int64_t i = 0; i < r.top_k; i++) chosen += r.sigmoid ? sigmoid(x[experts[i]]) : exp(x[experts[i]] - max) / sum;
    for (int64_t i = 0; i < r.top_k; i++) {
        const double weight = r.sigmoid ? sigmoid(x[experts[i]]) + sum : exp(x[experts[i]] - max) / sum;
        r.weights[t * r.top_k + i] = (float)(weight / (r.raw ? 1 : r.sigmoid ? chosen + 1e-20 : chosen) * scale);
    }
}

static __global__ void sort_pairs(oz_route r, int64_t n_pairs) {
    __shared__ int count[MAX_EXPERTS];
    pdl_wait();
    const int e = threadIdx.x;
    int n = 0;
    for (int64_t p = 0; p < n_pairs; p++) n += r.experts[p] == e;
    count[e] = n;
    __syncthreads();
    int at = 0;
    for (int i = 0; i < e; i++) at += count[i];
    if (e < r.n_experts) r.starts[e] = at;
    if (e == r.n_experts - 1) r.starts[r.n_experts] = at + n;
    for (int64_t p = 0; p < n_pairs; p++) {
        if (r.experts[p] != e) continue;
        r.pairs[at] = (int32_t)p;
        r.rows[p] = at++;
    }
}

static __global__ void spread_rows(oz_route r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[blockIdx.y * ld_y + i] = x[r.pairs[blockIdx.y] / r.top_k * ld_x + i];
}

static __global__ void combine_rows(oz_route r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n) {
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int32_t *rows = r.rows + blockIdx.y * r.top_k;
    const float *w = r.weights + blockIdx.y * r.top_k;
    float sum = w[0] * x[rows[0] * ld_x + i];
    for (int64_t s = 1; s < r.top_k; s++) sum += w[s] * x[rows[s] * ld_x + i];
    y[blockIdx.y * ld_y + i] = sum;
}

static dim3 over(int64_t n, int64_t rows) { return dim3((unsigned)((n + THREADS - 1) / THREADS), (unsigned)rows); }

void oz_cuda_route(oz_dev *d, const oz_route *r, const float *logits, int64_t ld, int64_t n_tok) {
    oz_launch(oz_cuda(d), route_tokens, dim3((unsigned)((n_tok + 31) / 32)), dim3(32), 0, *r, logits, ld, n_tok);
}
void oz_cuda_sort(oz_dev *d, const oz_route *r, int64_t n_tok) { oz_launch(oz_cuda(d), sort_pairs, dim3(1), dim3((unsigned)r->n_experts), 0, *r, n_tok * r->top_k); }
void oz_cuda_spread(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_launch(oz_cuda(d), spread_rows, over(n, n_tok * r->top_k), dim3(THREADS), 0, *r, y, ld_y, x, ld_x, n);
}
void oz_cuda_combine(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_launch(oz_cuda(d), combine_rows, over(n, n_tok), dim3(THREADS), 0, *r, y, ld_y, x, ld_x, n);
}
void oz_cuda_grouped(oz_dev *dev, const oz_grouped_args *a) {
    for (int64_t e = 0; e < a->route->n_experts; e++) oz_gemm_plain_range(oz_cuda(dev), a->experts[e], a->x, a->y, a->ld_y, a->n_tok, a->route->starts + e);
}
