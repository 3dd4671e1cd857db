/* Trying scales on the device (quantize/smooth.c): a matrix stays there in f32; a candidate multiplies its columns, rounds it to nearest, and its outputs on the kept rows of inputs, the
 * library's product in f32, are held against those of the matrix as it is. */
#include <string.h>
#include "kernel/cuda/rounding.cuh"

enum { THREADS = 128 };

struct oz_trial {
    int64_t rows, cols, n_tok, group, n_groups, shared_rows;
    oz_rtn rtn;
    float *w, *rounded;  /* [rows, cols] */
    float *x, *y, *got;  /* [n_tok, cols]; [rows, n_tok] the outputs to reach; a candidate's */
    float *by, *token;   /* [cols], [n_tok] */
    float *ends;         /* [2, rows, n_groups] the range of each group that a candidate's scales are of; NULL where rows have their own scales */
    double *squares;     /* [n_tok] */
};

static void trial_free(oz_dev *dev, oz_trial **p) {
    oz_trial *t = *p;
    if (!t) return;
    void *const mine[] = {t->w, t->rounded, t->x, t->y, t->got, t->by, t->token, t->squares, t->ends};
    for (void *m : mine) oz_dev_ops(dev)->mem_free(dev, m);
    oz_free(t);
    *p = NULL;
}

static oz_status trial_new(oz_trial **out, oz_dev *dev, const oz_trial_cfg *cfg, const char *what, oz_err *err) {
    OZ_NEED(oz_cuda(dev)->lt, err, OZ_E_UNSUPPORTED, "cuda: calibration needs cuBLASLt, which is not here; --device cpu does without");
    oz_trial *t = (oz_trial *)oz_alloc(sizeof *t);
    const int64_t rows = t->rows = cfg->rows, cols = t->cols = cfg->cols, n_tok = t->n_tok = cfg->n_tok;
    t->rtn = cfg->rtn, t->shared_rows = cfg->shared_rows, t->group = t->rtn.group_size > 0 ? t->rtn.group_size : cols, t->n_groups = (cols + t->group - 1) / t->group;
    const struct { void **p; int64_t n; size_t size; } parts[] = {{(void **)&t->w, rows * cols, 4}, {(void **)&t->rounded, rows * cols, 4}, {(void **)&t->x, n_tok * cols, 4}, {(void **)&t->y, rows * n_tok, 4},
                                                                  {(void **)&t->got, rows * n_tok, 4}, {(void **)&t->by, cols, 4}, {(void **)&t->token, n_tok, 4}, {(void **)&t->squares, n_tok, 8},
                                                                  {(void **)&t->ends, 2 * rows * t->n_groups, 4}};
    oz_status st = OZ_OK;
    for (const auto &p : parts)
        if (st == OZ_OK && (p.p != (void **)&t->ends || t->shared_rows > 1)) st = oz_dev_ops(dev)->mem_new(p.p, dev, (size_t)p.n * p.size, what, err);
    if (st == OZ_OK) *out = t;
    else trial_free(dev, &t);
    return st;
}

static void trial_load(oz_dev *dev, oz_trial *t, int64_t r0, int64_t n, const float *rows) { oz_dev_ops(dev)->upload(dev, t->w + r0 * t->cols, rows, (size_t)(n * t->cols) * sizeof(float)); }

/* y [rows, n_tok] = w x^T. */
static void outputs(oz_cuda_dev *d, const oz_trial *t, float *y, const float *w) {
    oz_lt_product_args p = {};
    p.a = t->x, p.b = w, p.d = y, p.m = t->n_tok, p.n = t->rows, p.k = t->cols, p.lda = p.ldb = t->cols, p.ldd = t->n_tok, p.alpha = 1;
    if (!oz_lt_product(d, &p)) oz_cuda_note(d, cudaErrorNotSupported);
}

/* A thread a token. */
static __global__ void squares_of(double *to, const float *y, int64_t rows, int64_t n_tok) {
    pdl_next();
    pdl_wait();
    const int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;
    if (k >= n_tok) return;
    #pragma unroll 8
    for (int64_t r = 0; r < rows; r++) sum += (double)y[r * n_tok + k] * (double)y[r * n_tok + k];
    to[k] = sum;
}

static void trial_aim(oz_dev *dev, oz_trial *t, const float *x, double *squares) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_dev_ops(dev)->upload(dev, t->x, x, (size_t)(t->n_tok * t->cols) * sizeof(float));
    outputs(d, t, t->y, t->w);
    oz_launch(d, squares_of, dim3((unsigned)((t->n_tok + 31) / 32)), dim3(32), 0, t->squares, (const float *)t->y, t->rows, t->n_tok);
    oz_dev_ops(dev)->download(dev, squares, t->squares, (size_t)t->n_tok * sizeof *squares);
}

static __global__ void weighed(float *y, const float *token, int64_t n, int64_t n_tok) {
    pdl_next();
    pdl_wait();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) y[i] *= token[i % n_tok];
}

static void trial_weigh(oz_dev *dev, oz_trial *t, const float *token) {
    oz_dev_ops(dev)->upload(dev, t->token, token, (size_t)t->n_tok * sizeof(float));
    oz_launch(oz_cuda(dev), weighed, dim3(2048), dim3(256), 0, t->y, (const float *)t->token, t->rows * t->n_tok, t->n_tok);
}

/* A warp a group of a row: low and high [rows, n_groups], one behind the other. by: NULL, or what columns are multiplied with. */
static __global__ void ends_of(float *ends, const float *w, const float *by, int64_t rows, int64_t cols, int64_t group, int64_t n_groups) {
    pdl_next();
    pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, r = at / n_groups, c0 = at % n_groups * group, c1 = c0 + group < cols ? c0 + group : cols;
    if (r >= rows) return;
    float low = 0, high = 0;
    for (int64_t c = c0 + threadIdx.x % 32; c < c1; c += 32) {
        const float v = by ? w[r * cols + c] * by[c] : w[r * cols + c];
        low = fminf(low, v), high = fmaxf(high, v);
    }
    low = -warp_max(-low), high = warp_max(high);
    if (threadIdx.x % 32 == 0) ends[at] = low, ends[rows * n_groups + at] = high;
}

/* A warp a group of some rows, which from here on have the same ends. */
static __global__ void ends_share(float *ends, int64_t rows, int64_t n_groups, int64_t shared_rows) {
    pdl_next();
    pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, r0 = at / n_groups * shared_rows, g = at % n_groups;
    int64_t r1 = r0 + shared_rows < rows ? r0 + shared_rows : rows;
    float low = 0, high = 0;
    if (MUTATED(TRIAL_SHARE)) r1 = r0 + 1 < rows ? r0 + 1 : rows;
    for (int64_t r = r0 + threadIdx.x % 32; r < r1; r += 32) low = fminf(low, ends[r * n_groups + g]), high = fmaxf(high, ends[(rows + r) * n_groups + g]);
    low = -warp_max(-low), high = warp_max(high);
    for (int64_t r = r0 + threadIdx.x % 32; r < r1; r += 32) ends[r * n_groups + g] = low, ends[(rows + r) * n_groups + g] = high;
}

/* A warp a group of a row. ends: NULL, or from ends_share. */
static __global__ void rounded_by(float *to, const float *w, const float *by, const float *ends, rounding q, int64_t rows, int64_t cols, int64_t group, int64_t n_groups) {
    pdl_next();
    pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, r = at / n_groups, k = at % n_groups, c0 = k * group, c1 = c0 + group < cols ? c0 + group : cols;
    if (r >= rows) return;
    float low = 0, high = 0, scale, zero;
    for (int64_t c = c0 + threadIdx.x % 32; c < c1 && !ends; c += 32) {
        const float v = w[r * cols + c] * by[c];
        low = fminf(low, v), high = fmaxf(high, v);
    }
    low = ends ? ends[at] : -warp_max(-low), high = ends ? ends[rows * n_groups + at] : warp_max(high);
    scale_near(&scale, &zero, q, low, high);
    if (MUTATED(TRIAL_ZERO)) zero = 0;
    for (int64_t c = c0 + threadIdx.x % 32; c < c1; c += 32) to[r * cols + c] = (code_near(q, w[r * cols + c] * by[c], scale, zero) - zero) * scale;
}

static __global__ void differing(double *parts, const float *x, const float *y, int64_t n) {
    pdl_next();
    pdl_wait();
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const float e = x[i] - y[i];
        sum += (double)e * (double)e;
    }
    sum = block_sum_f64(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static dim3 warps_of(int64_t n) { return dim3((unsigned)((n + THREADS / 32 - 1) / (THREADS / 32))); }

static double trial_error(oz_dev *dev, oz_trial *t, const float *x, const float *by) {
    oz_cuda_dev *d = oz_cuda(dev);
    const oz_ops *ops = oz_dev_ops(dev);
    const int64_t n_shares = (t->rows + t->shared_rows - 1) / t->shared_rows;
    double *to = (double *)(d->work + OZ_LT_WORK_BYTES);
    ops->upload(dev, t->x, x, (size_t)(t->n_tok * t->cols) * sizeof(float));
    ops->upload(dev, t->by, by, (size_t)t->cols * sizeof(float));
    if (t->ends) {
        oz_launch(d, ends_of, warps_of(t->rows * t->n_groups), dim3(THREADS), 0, t->ends, (const float *)t->w, (const float *)t->by, t->rows, t->cols, t->group, t->n_groups);
        oz_launch(d, ends_share, warps_of(n_shares * t->n_groups), dim3(THREADS), 0, t->ends, t->rows, t->n_groups, t->shared_rows);
    }
    oz_launch(d, rounded_by, warps_of(t->rows * t->n_groups), dim3(THREADS), 0, t->rounded, (const float *)t->w, (const float *)t->by, (const float *)t->ends, rounding_of(&t->rtn), t->rows, t->cols,
              t->group, t->n_groups);
    outputs(d, t, t->got, t->rounded);
    oz_launch(d, differing, dim3(PARTS), dim3(256), 0, to, (const float *)t->got, (const float *)t->y, t->rows * t->n_tok);
    return parts_sum(dev, to);
}

/* ---- clipping: all factors of a piece of columns at once, and the weights themselves as one more ---- */

enum { TRIED = OZ_CLIP_SHRINKS + 1 };
typedef struct shrinks { float by[OZ_CLIP_SHRINKS]; } shrinks;

/* Device memory: errors and G times them [TRIED, rows, PIECE], G [PIECE, PIECE]; ends of groups [2, rows, n_groups]; errors [TRIED, rows, n_groups]; what is chosen. */
typedef struct clip_room { float *e, *ge, *gram, *ends; double *loss; float *scales, *zeros; double *sums; } clip_room;

/* A warp a row under a factor. ends: of this group, a row n_groups apart. */
static __global__ void errors_of(float *e, const float *w, const float *ends, rounding q, shrinks s, int64_t rows, int64_t cols, int64_t n_groups, int64_t c0, int n) {
    pdl_next();
    pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, i = at / rows, r = at % rows;
    if (i >= TRIED) return;
    float scale = 1, zero = 0;
    if (i < OZ_CLIP_SHRINKS) scale_near(&scale, &zero, q, ends[r * n_groups] * s.by[i], ends[(rows + r) * n_groups] * s.by[i]);
    for (int c = threadIdx.x % 32; c < n; c += 32) {
        const float v = w[r * cols + c0 + c];
        e[at * n + c] = i < OZ_CLIP_SHRINKS ? v - (code_near(q, v, scale, zero) - zero) * scale : v;
    }
}

static __global__ void losses_add(double *loss, const float *e, const float *ge, int64_t rows, int64_t n_groups, int64_t group, int n) {
    pdl_next();
    pdl_wait();
    const int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (at >= TRIED * rows) return;
    double sum = 0;
    for (int c = threadIdx.x % 32; c < n; c += 32) sum += (double)e[at * n + c] * (double)ge[at * n + c];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) loss[at * n_groups + group] += sum;
}

/* A thread a group of a row; sums [3, PARTS], a block's. */
static __global__ void chosen(clip_room m, rounding q, shrinks s, int64_t n) {
    pdl_next();
    pdl_wait();
    double sums[3] = {0, 0, 0};
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += (int64_t)gridDim.x * blockDim.x) {
        int best = 0;
        for (int i = 1; i < OZ_CLIP_SHRINKS; i++)
            if (m.loss[i * n + at] < m.loss[best * n + at]) best = i;
        if (MUTATED(CLIP_LAST)) best = OZ_CLIP_SHRINKS - 1;
        scale_near(&m.scales[at], &m.zeros[at], q, m.ends[at] * s.by[best], m.ends[n + at] * s.by[best]);
        sums[0] += m.loss[OZ_CLIP_SHRINKS * n + at], sums[1] += m.loss[at], sums[2] += m.loss[best * n + at];
    }
    for (int i = 0; i < 3; i++) {
        const double sum = block_sum_f64(sums[i]);
        if (threadIdx.x == 0) m.sums[i * PARTS + blockIdx.x] = sum;
        __syncthreads();
    }
}

static void clip_pieces(oz_cuda_dev *d, const oz_trial *t, const clip_room *m, const rounding &q, const shrinks &s) {
    const int64_t group = t->group, n_groups = t->n_groups;
    const dim3 warps = warps_of(TRIED * t->rows);
    oz_launch(d, ends_of, warps_of(t->rows * n_groups), dim3(THREADS), 0, m->ends, (const float *)t->w, (const float *)NULL, t->rows, t->cols, group, n_groups);
    for (int64_t c0 = 0, n; c0 < t->cols; c0 += n) {
        const int64_t g = c0 / group, end = (g + 1) * group < t->cols ? (g + 1) * group : t->cols;
        n = end - c0 < OZ_CLIP_PIECE ? end - c0 : (int64_t)OZ_CLIP_PIECE;
        oz_launch(d, errors_of, warps, dim3(THREADS), 0, m->e, (const float *)t->w, (const float *)m->ends + g, q, s, t->rows, t->cols, n_groups, c0, (int)n);
        oz_lt_product_args gram = {}, ge = {};
        gram.a = gram.b = t->x + c0, gram.d = m->gram, gram.m = gram.n = n, gram.k = t->n_tok, gram.lda = gram.ldb = t->cols, gram.ldd = n, gram.plain_a = gram.turned_b = true, gram.alpha = 1;
        ge.a = m->gram, ge.b = m->e, ge.d = m->ge, ge.m = n, ge.n = TRIED * t->rows, ge.k = n, ge.lda = ge.ldb = ge.ldd = n, ge.alpha = 1;
        if (!oz_lt_product(d, &gram) || !oz_lt_product(d, &ge)) oz_cuda_note(d, cudaErrorNotSupported);
        oz_launch(d, losses_add, warps, dim3(THREADS), 0, m->loss, (const float *)m->e, (const float *)m->ge, t->rows, n_groups, g, (int)n);
    }
}

static oz_status trial_clip(oz_dev *dev, oz_trial *t, const oz_clip_args *a, const char *what, oz_err *err) {
    oz_cuda_dev *d = oz_cuda(dev);
    const oz_ops *ops = oz_dev_ops(dev);
    const int64_t n = t->rows * t->n_groups, piece = TRIED * t->rows * OZ_CLIP_PIECE;
    shrinks s;
    clip_room m;
    void *mem;
    memcpy(s.by, a->shrinks, sizeof s.by);
    OZ_TRY(ops->mem_new(&mem, dev, (size_t)(TRIED * n + 3 * PARTS) * sizeof(double) + (size_t)(2 * piece + OZ_CLIP_PIECE * OZ_CLIP_PIECE + 4 * n) * sizeof(float), what, err));
    m.loss = (double *)mem, m.sums = m.loss + TRIED * n, m.gram = (float *)(m.sums + 3 * PARTS), m.e = m.gram + OZ_CLIP_PIECE * OZ_CLIP_PIECE, m.ge = m.e + piece, m.ends = m.ge + piece;
    m.scales = m.ends + 2 * n, m.zeros = m.scales + n;
    ops->upload(dev, t->x, a->x, (size_t)(t->n_tok * t->cols) * sizeof(float));
    clip_pieces(d, t, &m, rounding_of(&t->rtn), s);
    oz_launch(d, chosen, dim3(PARTS), dim3(256), 0, m, rounding_of(&t->rtn), s, n);
    ops->download(dev, a->scales, m.scales, (size_t)n * sizeof(float));
    ops->download(dev, a->zeros, m.zeros, (size_t)n * sizeof(float));
    for (int i = 0; i < 3; i++) a->sums[i] = parts_sum(dev, m.sums + i * PARTS);
    ops->mem_free(dev, mem);
    return OZ_OK;
}

extern const oz_trial_ops oz_cuda_trial_ops = {trial_new, trial_free, trial_load, trial_aim, trial_weigh, trial_error, trial_clip};
