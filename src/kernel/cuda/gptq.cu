/* GPTQ's steps on all rows of a matrix (kernel/calib.h), which lie column by column: what happens to one row never meets another's, so rows are the parallel dimension.
 *
 * A block of columns goes one column after the other, each waiting for the last one's error. Four threads have a row's part of it: of every 16 columns, 4 each. The 16 at work are in
 * registers; their errors then reach the rest of the block, in shared memory, 16 at a time. The four compute each rounding all together, so that nothing is waited for but a shuffle. The
 * block of the factor, or of the Hessian, is in shared memory too. Columns outside the block are the library's, in products of f32. */
#include "kernel/cuda/rounding.cuh"

enum { THREADS = 128, ROWS = OZ_TILE_ALIGN, BLOCK = OZ_GPTQ_BLOCK, SET = 16, OWN = SET / 4, PITCH = ROWS + 2 /* its columns fall into different banks for the four */ };

/* ---- rows in and out ---- */

static __global__ void ones(float *x, int64_t n) {
    pdl_next();
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 1;
}

static void begin(oz_dev *dev, const oz_tile *t) {
    oz_cuda_dev *d = oz_cuda(dev);
    const int64_t n_scales = t->n_groups * t->ld;
    float *const zeroed[] = {t->w, t->e};
    for (float *p : zeroed) oz_cuda_note(d, cudaMemsetAsync(p, 0, (size_t)(t->n * t->ld) * sizeof(float), d->stream));
    oz_cuda_note(d, cudaMemsetAsync(t->zero, 0, (size_t)n_scales * sizeof(float), d->stream));
    oz_cuda_note(d, cudaMemsetAsync(t->failed, 0, sizeof *t->failed, d->stream));
    oz_launch(d, ones, dim3((unsigned)((n_scales + 255) / 256)), dim3(256), 0, t->scale, n_scales);
}

/* A warp a group of a row. rows, errors [n_rows, n]. */
typedef struct search_args { oz_tile t; rounding q; int64_t r0, n_rows; const float *rows, *scales, *zeros; float *errors; } search_args;

static __device__ float loss_of(const search_args &a, const float *x, int64_t c0, int64_t c1, float scale, float zero) {
    float sum = 0;
    for (int64_t c = c0 + threadIdx.x % 32; c < c1; c += 32) {
        const float e = (code_near(a.q, x[c], scale, zero) - zero) * scale - x[c];
        sum = fmaf(a.t.importance[c], e * e, sum);
    }
    return warp_sum(sum);
}

static __global__ void search(search_args a) {
    pdl_next();
    pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, r = at / a.t.n_groups, k = at % a.t.n_groups, c0 = k * a.t.group, c1 = c0 + a.t.group < a.t.n ? c0 + a.t.group : a.t.n;
    if (r >= a.n_rows) return;
    const float *x = a.rows + r * a.t.n, full = a.scales[r * a.t.n_groups + k];
    float s = full, z = a.zeros[r * a.t.n_groups + k], low = 0, high = 0;
    const float zero = z;
    for (int64_t c = c0 + threadIdx.x % 32; c < c1; c += 32) {
        a.errors[r * a.t.n + c] = (code_near(a.q, x[c], full, zero) - zero) * full - x[c];
        low = fminf(low, x[c]), high = fmaxf(high, x[c]);
    }
    low = -warp_max(-low), high = warp_max(high);
    float least = a.t.importance ? loss_of(a, x, c0, c1, full, zero) : 0;
    for (int i = 0; i < OZ_GPTQ_SCALES && a.t.importance; i++) {
        const float tried = as_stored(a.q, full * a.t.steps[i]);
        if (!(tried > 0 && is_finite(tried))) break;
        float first = zero, last = zero;
        if (a.t.rtn.asymmetric) { /* from the zero point that lets the largest value reach its code to that which lets the smallest */
            const float top = rintf(a.q.hi - __fdiv_rn(high, tried)), bottom = rintf(a.q.lo - __fdiv_rn(low, tried));
            first = fmaxf(fminf(top, bottom), a.q.lo), last = fminf(fmaxf(top, bottom), a.q.hi);
        }
        for (float at_zero = first; at_zero <= last; at_zero++) {
            const float loss = loss_of(a, x, c0, c1, tried, at_zero);
            if (loss < least) least = loss, s = tried, z = at_zero;
        }
    }
    if (threadIdx.x % 32) return;
    a.t.scale[k * a.t.ld + a.r0 + r] = s;
    a.t.zero[k * a.t.ld + a.r0 + r] = MUTATED(GPTQ_ZERO) ? zero : z;
}

/* to [cols, ld_to] = from [rows, ld]^T, a block 32 x 32 of it. */
static __global__ void turn(float *to, int64_t ld_to, const float *from, int64_t ld, int64_t rows, int64_t cols) {
    __shared__ float part[32][33];
    pdl_next();
    pdl_wait();
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x, r0 = (int64_t)blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += 8)
        if (r0 + i < rows && c < cols) part[i][threadIdx.x] = from[(r0 + i) * ld + c];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8)
        if (r0 + threadIdx.x < rows && (int64_t)blockIdx.x * 32 + i < cols) to[((int64_t)blockIdx.x * 32 + i) * ld_to + r0 + threadIdx.x] = part[threadIdx.x][i];
}

static void turn_run(oz_cuda_dev *d, float *to, int64_t ld_to, const float *from, int64_t ld, int64_t rows, int64_t cols) {
    oz_launch(d, turn, dim3((unsigned)((cols + 31) / 32), (unsigned)((rows + 31) / 32)), dim3(32, 8), 0, to, ld_to, from, ld, rows, cols);
}

/* Rows on their way lie in the workspace, as many at a time as fit. */
typedef struct way { float *rows, *errors, *scales, *zeros; int64_t n; } way;

static way way_of(oz_cuda_dev *d, const oz_tile *t, int64_t n) {
    way w;
    const int64_t fit = (int64_t)((d->work_bytes - OZ_LT_WORK_BYTES) / sizeof(float)) / (2 * (t->n + t->n_groups));
    w.n = n < fit ? n : fit;
    w.rows = (float *)(d->work + OZ_LT_WORK_BYTES), w.errors = w.rows + w.n * t->n, w.scales = w.errors + w.n * t->n, w.zeros = w.scales + w.n * t->n_groups;
    return w;
}

static void load(oz_dev *dev, const oz_tile *t, int64_t r0, int64_t n, const float *rows, const float *scales, const float *zeros) {
    oz_cuda_dev *d = oz_cuda(dev);
    const oz_ops *ops = oz_dev_ops(dev);
    const way w = way_of(d, t, n);
    for (int64_t r = 0; r < n; r += w.n) {
        const int64_t m = n - r < w.n ? n - r : w.n, warps = m * t->n_groups;
        ops->upload(dev, w.rows, rows + r * t->n, (size_t)(m * t->n) * sizeof(float));
        ops->upload(dev, w.scales, scales + r * t->n_groups, (size_t)(m * t->n_groups) * sizeof(float));
        ops->upload(dev, w.zeros, zeros + r * t->n_groups, (size_t)(m * t->n_groups) * sizeof(float));
        const search_args a = {*t, rounding_of(&t->rtn), r0 + r, m, w.rows, w.scales, w.zeros, w.errors};
        oz_launch(d, search, dim3((unsigned)((warps + THREADS / 32 - 1) / (THREADS / 32))), dim3(THREADS), 0, a);
        turn_run(d, t->w + r0 + r, t->ld, w.rows, t->n, m, t->n);
        turn_run(d, t->e + r0 + r, t->ld, w.errors, t->n, m, t->n);
    }
}

static void unload(oz_dev *dev, const oz_tile *t, int64_t r0, int64_t n, float *codes, float *scales, float *zeros) {
    oz_cuda_dev *d = oz_cuda(dev);
    const oz_ops *ops = oz_dev_ops(dev);
    const way w = way_of(d, t, n);
    for (int64_t r = 0; r < n; r += w.n) {
        const int64_t m = n - r < w.n ? n - r : w.n;
        turn_run(d, w.rows, t->n, t->codes + r0 + r, t->ld, t->n, m);
        turn_run(d, w.scales, t->n_groups, t->scale + r0 + r, t->ld, t->n_groups, m);
        turn_run(d, w.zeros, t->n_groups, t->zero + r0 + r, t->ld, t->n_groups, m);
        ops->download(dev, codes + r * t->n, w.rows, (size_t)(m * t->n) * sizeof(float));
        ops->download(dev, scales + r * t->n_groups, w.scales, (size_t)(m * t->n_groups) * sizeof(float));
        ops->download(dev, zeros + r * t->n_groups, w.zeros, (size_t)(m * t->n_groups) * sizeof(float));
    }
}

/* ---- blocks of columns ---- */

static __global__ void sorted(oz_tile t) {
    pdl_next();
    pdl_wait();
    const int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t k = blockIdx.y; k < t.n; k += gridDim.y)
        if (r < t.ld) t.t[k * t.ld + r] = t.w[t.perm[k] * t.ld + r];
}

static void sort(oz_dev *dev, const oz_tile *t) {
    oz_launch(oz_cuda(dev), sorted, dim3((unsigned)((t->ld + 255) / 256), (unsigned)(t->n < 8192 ? t->n : 8192)), dim3(256), 0, *t);
}

/* A square block of a matrix, zeros behind its m columns. */
static __device__ void square_load(float *to, const float *from, int64_t n, int m) {
    for (int i = threadIdx.x; i < BLOCK * BLOCK; i += THREADS) to[i] = i / BLOCK < m && i % BLOCK < m ? from[(int64_t)(i / BLOCK) * n + i % BLOCK] : 0.0f;
}

/* Where a thread is: a row of the block's, of the tile's, and which of four. */
typedef struct place { int row, four, lane; int64_t at; } place;
static __device__ __forceinline__ place place_here(void) {
    place p;
    p.lane = threadIdx.x % 32, p.four = p.lane / 8, p.row = threadIdx.x / 32 * 8 + p.lane % 8, p.at = (int64_t)blockIdx.x * ROWS + p.row;
    return p;
}

/* What the 16 columns of `set` do to the columns of another: y += sign a[those, these] by. */
static __device__ __forceinline__ void spread(float *y, const float *square, const float (&by)[SET], int set, int other, const place &p, float sign) {
    float *own = y + (other * SET + p.four * OWN) * PITCH + p.row, v[OWN];
    #pragma unroll
    for (int f = 0; f < OWN; f++) v[f] = own[f * PITCH];
    #pragma unroll
    for (int c = 0; c < SET; c++) {
        const float4 a = *(const float4 *)(square + (set * SET + c) * BLOCK + other * SET + p.four * OWN);
        const float x = sign * by[c];
        v[0] = fmaf(a.x, x, v[0]), v[1] = fmaf(a.y, x, v[1]), v[2] = fmaf(a.z, x, v[2]), v[3] = fmaf(a.w, x, v[3]);
    }
    #pragma unroll
    for (int f = 0; f < OWN; f++) own[f * PITCH] = v[f];
}

static __global__ void __launch_bounds__(THREADS) swept(oz_tile t, rounding q, int64_t k0, int m) {
    extern __shared__ __align__(16) float room[];
    float *u = room, *x = room + BLOCK * BLOCK; /* [BLOCK, BLOCK], [BLOCK, PITCH] */
    pdl_next();
    pdl_wait();
    const place p = place_here();
    square_load(u, t.u + k0 * t.n + k0, t.n, m);
    for (int i = threadIdx.x; i < BLOCK * ROWS; i += THREADS) x[i / ROWS * PITCH + i % ROWS] = i / ROWS < m ? t.t[(k0 + i / ROWS) * t.ld + (int64_t)blockIdx.x * ROWS + i % ROWS] : 0.0f;
    __syncthreads();
    bool bad = false;
    for (int set = 0; set * SET < m; set++) {
        const int own = set * SET + p.four * OWN;
        float v[OWN], scale[OWN], zero[OWN], code[OWN], value[OWN], err[SET];
        #pragma unroll
        for (int f = 0; f < OWN; f++) {
            const int64_t g = own + f < m ? t.perm[k0 + own + f] / t.group : 0;
            v[f] = x[(own + f) * PITCH + p.row], scale[f] = t.scale[g * t.ld + p.at], zero[f] = t.zero[g * t.ld + p.at], code[f] = value[f] = 0;
        }
        #pragma unroll
        for (int c = 0; c < SET; c++) {
            const int from = c / OWN * 8 + p.lane % 8, f = c % OWN, at = set * SET + c;
            const float here = __shfl_sync(~0u, v[f], from), s = __shfl_sync(~0u, scale[f], from), z = __shfl_sync(~0u, zero[f], from), code_here = code_near(q, here, s, z), value_here = (code_here - z) * s;
            err[c] = at < m ? __fdiv_rn(here - value_here, u[at * BLOCK + at]) : 0.0f;
            bad = bad || !is_finite(here);
            if (p.four == c / OWN) code[f] = code_here, value[f] = value_here;
            const float4 a = *(const float4 *)(u + at * BLOCK + own);
            const float by = MUTATED(GPTQ_SWEEP) && c == 5 ? 0 : -err[c];
            v[0] = fmaf(a.x, by, v[0]), v[1] = fmaf(a.y, by, v[1]), v[2] = fmaf(a.z, by, v[2]), v[3] = fmaf(a.w, by, v[3]);
        }
        #pragma unroll
        for (int c = 0; c < SET; c++) {
            const int f = c % OWN, at = set * SET + c;
            if (p.four != c / OWN || at >= m) continue;
            const int64_t to = (int64_t)t.perm[k0 + at] * t.ld + p.at;
            t.codes[to] = code[f], t.e[to] = value[f] - t.w[to], t.err[at * t.ld + p.at] = err[c];
        }
        for (int other = set + 1; other * SET < m; other++) spread(x, u, err, set, other, p, -1);
    }
    if (bad) *t.failed = 1;
}

static void sweep(oz_dev *dev, const oz_tile *t, int64_t k0, int64_t k1) {
    const size_t n_bytes = (BLOCK * BLOCK + BLOCK * PITCH) * sizeof(float);
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_note(d, cudaFuncSetAttribute(swept, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes));
    oz_launch(d, swept, dim3((unsigned)(t->ld / ROWS)), dim3(THREADS), n_bytes, *t, rounding_of(&t->rtn), k0, (int)(k1 - k0));
}

/* Sum over the four threads of a row, the same in each. */
static __device__ __forceinline__ float row_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 8);
    return v + __shfl_xor_sync(~0u, v, 16);
}

/* The scale that fits the codes best: with p = code - zero, the error's derivative is p . he, and its second derivative p H p. Returns the change. */
static __device__ float scale_fit(float *he, const float *h, const float *codes, float scale, const rounding &q, float added, int m, const place &p) {
    float hp[BLOCK / SET][OWN] = {}, slope = 0, curve = 0;
    for (int k = 0; k < m; k++) {
        const float by = codes[k * PITCH + p.row];
        #pragma unroll
        for (int set = 0; set < BLOCK / SET; set++) {
            const float4 a = *(const float4 *)(h + k * BLOCK + set * SET + p.four * OWN);
            hp[set][0] = fmaf(a.x, by, hp[set][0]), hp[set][1] = fmaf(a.y, by, hp[set][1]), hp[set][2] = fmaf(a.z, by, hp[set][2]), hp[set][3] = fmaf(a.w, by, hp[set][3]);
        }
    }
    #pragma unroll
    for (int set = 0; set < BLOCK / SET; set++)
        #pragma unroll
        for (int f = 0; f < OWN; f++) {
            const int c = (set * SET + p.four * OWN + f) * PITCH + p.row; /* codes behind m are zeros */
            slope = fmaf(codes[c], he[c], slope);
            curve = fmaf(codes[c], fmaf(MUTATED(GPTQ_FIT) ? 0 : added, codes[c], hp[set][f]), curve);
        }
    slope = row_sum(slope), curve = row_sum(curve);
    const float fitted = curve > 0 ? as_stored(q, scale - __fdiv_rn(slope, curve)) : scale, by = fitted - scale;
    if (!(fitted > 0 && by * (2 * slope + by * curve) < 0)) return 0; /* rounding may have spoilt it */
    #pragma unroll
    for (int set = 0; set < BLOCK / SET; set++)
        #pragma unroll
        for (int f = 0; f < OWN; f++) {
            const int c = (set * SET + p.four * OWN + f) * PITCH + p.row;
            he[c] = fmaf(by, fmaf(added, codes[c], hp[set][f]), he[c]);
        }
    return by;
}

static __global__ void __launch_bounds__(THREADS) gone_over(oz_tile t, rounding q, int64_t c0, int m, bool fits) {
    extern __shared__ __align__(16) float room[];
    float *h = room, *he = room + BLOCK * BLOCK, *moved = he + BLOCK * PITCH, *codes = moved + BLOCK * PITCH; /* [BLOCK, BLOCK]; [BLOCK, PITCH]: changes of errors; codes less the zero point */
    pdl_next();
    pdl_wait();
    const place p = place_here();
    const int64_t group = c0 / t.group * t.ld + p.at;
    const float scale = t.scale[group], zero = t.zero[group];
    square_load(h, t.h + c0 * t.n + c0, t.n, m);
    for (int i = threadIdx.x; i < BLOCK * ROWS; i += THREADS) {
        const int at = i / ROWS * PITCH + i % ROWS;
        he[at] = i / ROWS < m ? t.he[(c0 + i / ROWS) * t.ld + (int64_t)blockIdx.x * ROWS + i % ROWS] : 0.0f;
        moved[at] = codes[at] = 0;
    }
    __syncthreads();
    for (int set = 0; set * SET < m; set++) {
        const int own = set * SET + p.four * OWN;
        float v[OWN], w[OWN], e[OWN], by[SET];
        #pragma unroll
        for (int f = 0; f < OWN; f++) {
            const int64_t from = (c0 + own + f) * t.ld + p.at;
            v[f] = he[(own + f) * PITCH + p.row], w[f] = own + f < m ? t.w[from] : 0.0f, e[f] = own + f < m ? t.e[from] : 0.0f;
        }
        #pragma unroll
        for (int c = 0; c < SET; c++) {
            const int from = c / OWN * 8 + p.lane % 8, f = c % OWN, at = set * SET + c;
            const float value = __shfl_sync(~0u, w[f] + e[f], from), x = value - __fdiv_rn(__shfl_sync(~0u, v[f], from), h[at * BLOCK + at] + t.added), code = code_near(q, x, scale, zero);
            by[c] = at < m ? (code - zero) * scale - value : 0.0f;
            if (p.four == c / OWN && at < m) {
                codes[at * PITCH + p.row] = code - zero, moved[at * PITCH + p.row] = by[c];
                e[f] += by[c], v[f] = fmaf(t.added, by[c], v[f]);
            }
            const float4 a = *(const float4 *)(h + at * BLOCK + own);
            const float x4 = MUTATED(GPTQ_AGAIN) && c == 5 ? 0 : by[c];
            v[0] = fmaf(a.x, x4, v[0]), v[1] = fmaf(a.y, x4, v[1]), v[2] = fmaf(a.z, x4, v[2]), v[3] = fmaf(a.w, x4, v[3]);
        }
        #pragma unroll
        for (int f = 0; f < OWN; f++) he[(own + f) * PITCH + p.row] = v[f];
        for (int other = 0; other * SET < m; other++)
            if (other != set) spread(he, h, by, set, other, p, 1);
    }
    __syncwarp(); /* a row's four have each other's codes */
    const float change = fits ? scale_fit(he, h, codes, scale, q, t.added, m, p) : 0.0f;
    for (int set = 0; set * SET < m; set++)
        for (int f = 0; f < OWN; f++) {
            const int c = set * SET + p.four * OWN + f, at = c * PITCH + p.row;
            if (c >= m) continue;
            const int64_t to = (c0 + c) * t.ld + p.at;
            const float by = fmaf(change, codes[at], moved[at]);
            t.codes[to] = codes[at] + zero, t.he[to] = he[at], t.e[to] += by, t.err[c * t.ld + p.at] = by;
        }
    if (p.four == 0) t.scale[group] = scale + change;
}

static void again(oz_dev *dev, const oz_tile *t, int64_t c0, int64_t c1, bool fits) {
    const size_t n_bytes = (BLOCK * BLOCK + 3 * BLOCK * PITCH) * sizeof(float);
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_note(d, cudaFuncSetAttribute(gone_over, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes));
    oz_launch(d, gone_over, dim3((unsigned)(t->ld / ROWS)), dim3(THREADS), n_bytes, *t, rounding_of(&t->rtn), c0, (int)(c1 - c0), fits);
}

/* ---- the rest ---- */

static void product(oz_dev *dev, const oz_tile *t, const oz_tile_product *p) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_lt_product_args a = {};
    a.a = p->b, a.b = p->a, a.d = p->out, a.m = t->ld, a.n = p->m, a.k = p->k, a.lda = a.ldd = t->ld, a.ldb = p->lda;
    a.plain_a = true, a.turned_b = p->turned, a.adds = p->adds, a.alpha = p->alpha;
    if (!oz_lt_product(d, &a)) oz_cuda_note(d, cudaErrorNotSupported);
}

static __global__ void added(float *y, const float *x, float by, int64_t n) {
    pdl_next();
    pdl_wait();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) y[i] += by * x[i];
}

static void add(oz_dev *dev, const oz_tile *t, float *y, const float *x, float by) { oz_launch(oz_cuda(dev), added, dim3(2048), dim3(256), 0, y, x, by, t->n * t->ld); }

static __global__ void dotted(double *parts, const float *x, const float *y, float less, int64_t n) {
    pdl_next();
    pdl_wait();
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) sum += (double)x[i] * ((double)y[i] - (double)less * (double)x[i]);
    sum = block_sum_f64(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static double dot(oz_dev *dev, const oz_tile *t, const float *x, const float *y, float less) {
    oz_cuda_dev *d = oz_cuda(dev);
    double *to = (double *)(d->work + OZ_LT_WORK_BYTES);
    oz_launch(d, dotted, dim3(PARTS), dim3(256), 0, to, x, y, less, t->n * t->ld);
    return parts_sum(dev, to);
}

static bool failed(oz_dev *dev, const oz_tile *t) {
    int32_t is = 0;
    oz_dev_ops(dev)->download(dev, &is, t->failed, sizeof is);
    return is != 0;
}

extern const oz_tile_ops oz_cuda_tile_ops = {begin, load, unload, sort, sweep, again, product, add, dot, failed};
