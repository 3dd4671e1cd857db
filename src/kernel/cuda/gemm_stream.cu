/* The streaming product for few rows: y[t, r] = sum_k w[r, k] x[t, k], t < 8, read once from memory as fast as it comes.
 *
 * Matrix instructions with the weight as the 16-row operand and x^T as the 8-column one, so one to eight tokens cost the same reads and each
 * token's sum is the same whoever keeps it company. A warp takes 16 rows; a lane (g = lane / 4, q = lane % 4) reads 16 bytes of rows g and g + 8:
 * 64 consecutive bytes of each row a step. Which columns those bytes are is free as long as x is read alike (pack.cu, woven layout); the
 * order inside a step is set by the layout.
 *
 * Partition: a block takes one tile of 16 rows (or the gate's and the up's of the same 16 rows) of one part; its 8 warps take the steps of K in turn,
 * 4 steps (2 of each, for two tiles) read ahead in registers, and their sums are added in the order of warps. Parts that share x are one launch. The first reads are issued before
 * pdl_wait: weights do not change, so they overlap the end of the kernel before.
 * Integers become bf16 by one mask: 0x4300 | b is 128 + b for b < 128 (bf16 has 7 bits); for int8 the sign bit moves into the 256 that is
 * subtracted. In f16, 0x6400 | b is 1024 + b. Grouped scales are applied to a run's sum in f32; one scale a row at the end.
 * Share of the read bandwidth on one H200, Qwen3-8B shapes, M = 1, 2026-11-29: bf16 85 %, int8 by int8 80 %, e4m3 71 %, int8 by bf16 65 %, int4 g128 47 %
 * (check --device cuda --bench; docs/performance.md says what stands between).
 * Rejected: 4 warps a block, 3 blocks a multiprocessor (measured: slower); one row a warp with plain FMA (M = 8 is then bound by arithmetic); splitting K over blocks (a second pass or atomics). */
#include "kernel/cuda/device.cuh"

enum { WARPS = 8, BLOCKS = 2 /* a multiprocessor */, THREADS = 32 * WARPS, MAX_STREAM_PARTS = OZ_MAX_PARTS_LINEAR };

typedef struct stream_part { const uint8_t *codes; const float *scales, *bias; float *y; int64_t rows; int tile0; } stream_part;
typedef struct stream_args {
    stream_part parts[MAX_STREAM_PARTS];
    int n_parts, n_groups, n_steps, group_shift; /* log2 of the steps a group, where it has whole ones */
    int64_t stride, cols;
    oz_rows x, out; /* out: of silu */
    int64_t ld_y;
    int n_tok;
} stream_args;

/* ---- matrix instructions: D = A B + D, A 16 x 16 (or 16 x 32 bytes), B 16 x 8 ---- */

static __device__ __forceinline__ void mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma(int *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, int8_t) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- codes to pairs of 16-bit numbers ---- */

static __device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b, __nv_bfloat16) {
    uint32_t d;
    asm("{.reg .b32 o; mov.b32 o, 0xbf80bf80; fma.rn.bf16x2 %0, %2, o, %1;}" : "=r"(d) : "r"(a), "r"(b)); /* b * -1 + a */
    return d;
}
static __device__ __forceinline__ uint32_t sub2(uint32_t a, uint32_t b, __half) {
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* Two int8 in bytes 0 and 2 of w (others ignored). */
static __device__ __forceinline__ uint32_t pair_i8(uint32_t w, __nv_bfloat16 t) {
    return sub2((w & 0x007f007f) | 0x43004300, (w & 0x00800080) ^ 0x43004300, t); /* 128 + low, less 128, or 256 where the sign is set */
}
static __device__ __forceinline__ uint32_t pair_i8(uint32_t w, __half t) { return sub2(((w & 0x00ff00ff) ^ 0x00800080) | 0x64006400, 0x64806480, t); }
/* Two nibbles in bits 0..3 and 16..19: code + 8. */
static __device__ __forceinline__ uint32_t pair_i4(uint32_t w, __nv_bfloat16 t) { return sub2((w & 0x000f000f) | 0x43004300, 0x43084308, t); }
static __device__ __forceinline__ uint32_t pair_i4(uint32_t w, __half t) { return sub2((w & 0x000f000f) | 0x64006400, 0x64086408, t); }
/* Two e4m3 in the low 16 bits. */
static __device__ __forceinline__ uint32_t pair_f8(uint32_t w, __half) {
    uint32_t d;
    asm("{.reg .b16 lo; cvt.u16.u32 lo, %1; cvt.rn.f16x2.e4m3x2 %0, lo;}" : "=r"(d) : "r"(w));
    return d;
}
static __device__ __forceinline__ uint32_t pair_f8(uint32_t w, __nv_bfloat16) {
    const uint32_t h = pair_f8(w, __half());
    const float2 f = __half22float2(*(const __half2 *)&h);
    const __nv_bfloat162 b = __floats2bfloat162_rn(f.x, f.y);
    return *(const uint32_t *)&b;
}

/* The four pairs of 8 columns of a run; `at` is which run of the 16 bytes. */
template <oz_ckind KIND, typename ACT>
static __device__ __forceinline__ void run_pairs(uint32_t *p, const uint4 &v, int at) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    if (KIND == OZ_CK_BF16 || KIND == OZ_CK_F16) {
        for (int i = 0; i < 4; i++) p[i] = w[i];
    } else if (KIND == OZ_CK_I8) {
        for (int i = 0; i < 2; i++) p[2 * i] = pair_i8(w[2 * at + i], ACT()), p[2 * i + 1] = pair_i8(w[2 * at + i] >> 8, ACT());
    } else if (KIND == OZ_CK_I4) {
        for (int i = 0; i < 4; i++) p[i] = pair_i4(w[at] >> 4 * i, ACT());
    } else {
        for (int i = 0; i < 2; i++) {
            const uint32_t u = __byte_perm(w[2 * at + i], 0, 0x3120); /* e0 e2 e1 e3 back in order */
            p[2 * i] = pair_f8(u, ACT()), p[2 * i + 1] = pair_f8(u >> 16, ACT());
        }
    }
}

/* A kind of weight and of activations. RUNS: runs of 32 columns in 16 bytes a lane; STEP: columns a step of a warp. */
template <oz_ckind K, typename A, int SCALES> struct pair_of {
    typedef A act;
    typedef float acc;
    enum { KIND = K, N_SCALES = SCALES, RUNS = K == OZ_CK_I4 ? 4 : K == OZ_CK_I8 || K == OZ_CK_F8 ? 2 : 1, STEP = 32 * RUNS };
};
/* Codes meet codes of the same width: 16 bytes of each, plain layout. */
template <typename ACC> struct bytes_of {
    typedef int8_t act;
    typedef ACC acc;
    enum { N_SCALES = 0, STEP = 64 };
};

/* One step: 16 bytes of rows g and g + 8, and what x has there. scale: of the groups that the step touches, for the two rows. */
template <oz_ckind K, typename A, int S>
static __device__ __forceinline__ void step_run(pair_of<K, A, S>, float *acc, const uint4 &lo, const uint4 &hi, const float (*scale)[2], const uint8_t *x, int64_t k, int64_t cols) {
    typedef pair_of<K, A, S> P;
    float part[4] = {};
    #pragma unroll
    for (int r = 0; r < P::RUNS; r++) {
        uint4 xv = {};
        if (x && k + 32 * r < cols) xv = *(const uint4 *)(x + 2 * (k + 32 * r));
        uint32_t a[4], b[4];
        run_pairs<K, A>(a, lo, r);
        run_pairs<K, A>(b, hi, r);
        float *c = S ? part : acc;
        mma(c, a[0], b[0], a[1], b[1], xv.x, xv.y, A());
        mma(c, a[2], b[2], a[3], b[3], xv.z, xv.w, A());
        if (S && (r + 1) % (P::RUNS / (S ? S : 1)) == 0) {
            const float *s = scale[r / (P::RUNS / (S ? S : 1))];
            acc[0] = fmaf(part[0], s[0], acc[0]), acc[1] = fmaf(part[1], s[0], acc[1]);
            acc[2] = fmaf(part[2], s[1], acc[2]), acc[3] = fmaf(part[3], s[1], acc[3]);
            part[0] = part[1] = part[2] = part[3] = 0;
        }
    }
}
static __device__ __forceinline__ void step_run(bytes_of<int>, int *acc, const uint4 &lo, const uint4 &hi, const float (*)[2], const uint8_t *x, int64_t k, int64_t cols) {
    uint4 xv = {};
    if (x && k < cols) xv = *(const uint4 *)(x + k);
    mma(acc, lo.x, hi.x, lo.y, hi.y, xv.x, xv.y, int8_t());
    mma(acc, lo.z, hi.z, lo.w, hi.w, xv.z, xv.w, int8_t());
}
/* e4m3 by e4m3 in f16, where both are exact; sums in f32. */
static __device__ __forceinline__ void step_run(bytes_of<float>, float *acc, const uint4 &lo, const uint4 &hi, const float (*)[2], const uint8_t *x, int64_t k, int64_t cols) {
    uint4 xv = {};
    if (x && k < cols) xv = *(const uint4 *)(x + k);
    const uint32_t l[4] = {lo.x, lo.y, lo.z, lo.w}, h[4] = {hi.x, hi.y, hi.z, hi.w}, v[4] = {xv.x, xv.y, xv.z, xv.w};
    #pragma unroll
    for (int i = 0; i < 4; i++)
        mma(acc, pair_f8(l[i], __half()), pair_f8(h[i], __half()), pair_f8(l[i] >> 16, __half()), pair_f8(h[i] >> 16, __half()), pair_f8(v[i], __half()), pair_f8(v[i] >> 16, __half()), __half());
}

/* ---- the kernel ---- */

template <typename P, int TILES>
static __global__ void __launch_bounds__(THREADS, BLOCKS) stream(stream_args a) {
    constexpr int DEPTH = 4 / TILES;
    __shared__ typename P::acc sums[WARPS][TILES][OZ_ROW_TILE][OZ_M_STREAM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int part = 0;
    if (TILES == 1) while (part + 1 < a.n_parts && (int)blockIdx.x >= a.parts[part + 1].tile0) part++;
    const int tile = (int)blockIdx.x - a.parts[part].tile0, tok0 = (int)blockIdx.y * OZ_M_STREAM;
    constexpr int S = P::N_SCALES;
    const uint8_t *rows[TILES];
    const float *scales[TILES];
    for (int i = 0; i < TILES; i++) {
        rows[i] = a.parts[part + i].codes + ((int64_t)tile * OZ_ROW_TILE + g) * a.stride + q * 16;
        scales[i] = a.parts[part + (MUTATED(GATE_SCALES) ? 0 : i)].scales + (int64_t)tile * a.n_groups * OZ_ROW_TILE + g;
    }
    uint4 lo[DEPTH][TILES], hi[DEPTH][TILES];
    float sc[DEPTH][TILES][S ? S : 1][2];
    auto fetch = [&](int slot, int step) {
        #pragma unroll
        for (int i = 0; i < TILES; i++) {
            const bool in = step < a.n_steps;
            lo[slot][i] = in ? __ldcs((const uint4 *)(rows[i] + (int64_t)step * 64)) : make_uint4(0, 0, 0, 0);
            hi[slot][i] = in ? __ldcs((const uint4 *)(rows[i] + 8 * a.stride + (int64_t)step * 64)) : make_uint4(0, 0, 0, 0);
            #pragma unroll
            for (int s = 0; s < S; s++) {
                int group = S == 1 ? step >> a.group_shift : step * S + s;
                if (group >= a.n_groups) group = a.n_groups - 1; /* behind the last column, where codes are zero */
                sc[slot][i][s][0] = scales[i][(int64_t)group * OZ_ROW_TILE];
                sc[slot][i][s][1] = scales[i][(int64_t)group * OZ_ROW_TILE + (MUTATED(STREAM_SCALE) ? 0 : 8)];
            }
        }
    };
    #pragma unroll
    for (int s = 0; s < DEPTH; s++) fetch(s, warp + s * WARPS);
    pdl_next();
    pdl_wait();
    const bool has_x = tok0 + g < a.n_tok;
    const uint8_t *x = has_x ? (const uint8_t *)a.x.data + (int64_t)(tok0 + g) * a.x.ld * (sizeof(typename P::act)) : NULL;
    typename P::acc acc[TILES][4] = {};
    constexpr int LANE_COLS = sizeof(typename P::act) == 1 ? 16 : 8;
    for (int base = warp; base < a.n_steps; base += DEPTH * WARPS) {
        #pragma unroll
        for (int s = 0; s < DEPTH; s++) {
            const int step = base + s * WARPS;
            #pragma unroll
            for (int i = 0; i < TILES; i++)
                step_run(P(), acc[i], lo[s][i], hi[s][i], sc[s][i], step < a.n_steps ? x : NULL, (int64_t)step * P::STEP + q * LANE_COLS, a.cols);
            fetch(s, step + DEPTH * WARPS);
        }
    }
    for (int i = 0; i < TILES; i++) {
        sums[warp][i][g][2 * q] = acc[i][0], sums[warp][i][g][2 * q + 1] = acc[i][1];
        sums[warp][i][g + 8][2 * q] = acc[i][2], sums[warp][i][g + 8][2 * q + 1] = acc[i][3];
    }
    __syncthreads();
    if (threadIdx.x >= OZ_ROW_TILE * OZ_M_STREAM) return;
    const int r = threadIdx.x % OZ_ROW_TILE, t = threadIdx.x / OZ_ROW_TILE;
    const int64_t row = (int64_t)tile * OZ_ROW_TILE + r, tok = tok0 + t;
    if (row >= a.parts[part].rows || tok >= a.n_tok) return;
    float v[TILES];
    for (int i = 0; i < TILES; i++) {
        const stream_part *p = &a.parts[part + (MUTATED(GATE_SCALES) ? 0 : i)];
        typename P::acc sum = sums[0][i][r][t];
        for (int w = 1; w < (MUTATED(STREAM_WARP) ? WARPS - 1 : WARPS); w++) sum += sums[w][i][r][t];
        v[i] = (float)sum;
        if (!S && p->scales) v[i] *= a.x.scales ? p->scales[row] * a.x.scales[tok] : p->scales[row];
        if (p->bias) v[i] += p->bias[row];
    }
    if (TILES == 2 && MUTATED(GATE_TOKENS) && t == 4) return;
    if (TILES == 2 && MUTATED(GATE_SWAPPED)) {
        const float gate = v[0];
        v[0] = v[TILES - 1], v[TILES - 1] = gate;
    }
    const oz_form form = MUTATED(GATE_ROUND) && a.out.form != OZ_FORM_F32 ? (oz_form)(OZ_FORM_BF16 + OZ_FORM_F16 - a.out.form) : a.out.form;
    if (TILES == 2) store_plain(form, (uint8_t *)a.out.data + tok * a.out.ld * form_size(a.out.form), row, silu_mul(v[0], v[TILES - 1]));
    else a.parts[part].y[tok * a.ld_y + row] = v[0];
}

/* ---- choosing the instance ---- */

typedef void stream_fn(oz_cuda_dev *d, const stream_args *a, dim3 grid);
template <typename P, int TILES> static void start(oz_cuda_dev *d, const stream_args *a, dim3 grid) { oz_launch(d, stream<P, TILES>, grid, dim3(THREADS), 0, *a); }

typedef struct stream_row { oz_ckind kind; oz_form form; int n_scales; stream_fn *one, *two; } stream_row; /* n_scales: groups that a step touches; 0: one scale a row */
#define ROW(kind, form, act, n) {kind, form, n, start<pair_of<kind, act, n>, 1>, start<pair_of<kind, act, n>, 2>}
static const stream_row instances[] = {
    ROW(OZ_CK_BF16, OZ_FORM_BF16, __nv_bfloat16, 0), ROW(OZ_CK_F16, OZ_FORM_F16, __half, 0),
    ROW(OZ_CK_I8, OZ_FORM_BF16, __nv_bfloat16, 0),   ROW(OZ_CK_I8, OZ_FORM_BF16, __nv_bfloat16, 1), ROW(OZ_CK_I8, OZ_FORM_BF16, __nv_bfloat16, 2),
    ROW(OZ_CK_I8, OZ_FORM_F16, __half, 0),           ROW(OZ_CK_I8, OZ_FORM_F16, __half, 1),         ROW(OZ_CK_I8, OZ_FORM_F16, __half, 2),
    ROW(OZ_CK_I4, OZ_FORM_BF16, __nv_bfloat16, 0),   ROW(OZ_CK_I4, OZ_FORM_BF16, __nv_bfloat16, 1), ROW(OZ_CK_I4, OZ_FORM_BF16, __nv_bfloat16, 2), ROW(OZ_CK_I4, OZ_FORM_BF16, __nv_bfloat16, 4),
    ROW(OZ_CK_I4, OZ_FORM_F16, __half, 0),           ROW(OZ_CK_I4, OZ_FORM_F16, __half, 1),         ROW(OZ_CK_I4, OZ_FORM_F16, __half, 2),         ROW(OZ_CK_I4, OZ_FORM_F16, __half, 4),
    ROW(OZ_CK_F8, OZ_FORM_BF16, __nv_bfloat16, 0),   ROW(OZ_CK_F8, OZ_FORM_F16, __half, 0),
    {OZ_CK_I8, OZ_FORM_Q8, 0, start<bytes_of<int>, 1>, start<bytes_of<int>, 2>},
    {OZ_CK_F8, OZ_FORM_F8, 0, start<bytes_of<float>, 1>, start<bytes_of<float>, 2>},
};

static int step_cols(const oz_cuda_packed *w) { return w->kind == OZ_CK_I4 ? 128 : w->kind == OZ_CK_I8 || w->kind == OZ_CK_F8 ? 64 : 32; }

/* Groups that one step touches, 0 where the scale waits for the end, -1 where groups and steps do not meet. */
static int scales_a_step(const oz_cuda_packed *w) {
    if (w->n_groups == 1) return 0;
    const int64_t step = step_cols(w), g = w->group_size;
    return g % step == 0 && (g / step & (g / step - 1)) == 0 ? 1 : g % 32 == 0 && step % g == 0 ? (int)(step / g) : -1;
}

static const stream_row *find(const oz_cuda_packed *w) {
    const int n = scales_a_step(w);
    for (const stream_row &r : instances)
        if (r.kind == w->kind && r.form == w->form && r.n_scales == n) return &r;
    return NULL;
}

/* Few rows always; any number where the order of sums must not depend on it. */
bool oz_stream_fits(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket) {
    const bool bytes = w->form == OZ_FORM_Q8 || w->form == OZ_FORM_F8;
    return (bucket == 0 || d->deterministic) && w->head.cols % (bytes ? 16 : 8) == 0 && !w->offsets && find(w);
}

static stream_args args_of(const oz_linear_args *a, int *n_tiles) {
    const oz_cuda_packed *w = oz_cuda_weight(a->parts[0]);
    stream_args s = {};
    s.n_parts = a->n_parts, s.n_groups = (int)w->n_groups, s.stride = w->stride_bytes, s.cols = w->head.cols, s.x = a->x, s.ld_y = a->ld_y, s.n_tok = (int)a->n_tok;
    s.n_steps = (int)(w->stride_bytes / 64);
    while (((int64_t)step_cols(w) << s.group_shift) < w->group_size && s.group_shift < 30) s.group_shift++;
    float *y = a->y;
    *n_tiles = 0;
    for (int i = 0; i < a->n_parts; i++) {
        const oz_cuda_packed *p = oz_cuda_weight(a->parts[i]);
        s.parts[i] = {p->codes, p->scales, a->bias ? a->bias[i] : NULL, y, p->head.rows, *n_tiles};
        if (y) y += p->head.rows;
        *n_tiles += (int)((p->head.rows + OZ_ROW_TILE - 1) / OZ_ROW_TILE);
    }
    return s;
}

void oz_gemm_stream(oz_cuda_dev *d, const oz_linear_args *a) {
    int n_tiles;
    const stream_args s = args_of(a, &n_tiles);
    find(oz_cuda_weight(a->parts[0]))->one(d, &s, dim3((unsigned)n_tiles, (unsigned)((a->n_tok + OZ_M_STREAM - 1) / OZ_M_STREAM)));
}

void oz_gemm_stream_silu(oz_cuda_dev *d, const oz_linear_args *a, oz_rows out) {
    int n_tiles;
    stream_args s = args_of(a, &n_tiles);
    s.out = out, s.parts[1].tile0 = 0;
    find(oz_cuda_weight(a->parts[0]))->two(d, &s, dim3((unsigned)n_tiles / 2, (unsigned)((a->n_tok + OZ_M_STREAM - 1) / OZ_M_STREAM)));
}
