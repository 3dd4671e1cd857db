/* Attention of a prefill: the function of attention.cu for segments of many tokens, in tiles of query rows.
 *
 * A row is a token with one head of the group that shares a KV head: tokens in order, a token's heads side by side. A block takes 16 rows a warp, of one segment and
 * KV head, and walks the keys that its rows see, a tile at a time: scores = q k^T, softmax under a running maximum, out = out * rescaling + p v. The values of
 * a tile are copied (cp.async) while its scores are made, the next keys while the values are added. All in f32; sums run over columns, then keys, ascending.
 * Tiles of keys begin at multiples of their length, and one in which a row sees nothing leaves it as it was: what a row gets depends on its position, not on the rows
 * beside it. But its sums are in another order than attention.cu's, so under --deterministic, where a token alone has the same bits as in a prefill, that one takes all.
 *
 * A lane (r: bits 0 and 4, c: bits 1 to 3) has rows r + 4 i of its warp's 16, keys c + 8 k of the scores, columns 32 s + 4 c .. + 3 of the output. So the 16 bytes
 * that it reads of shared memory for 4 rows, 8 keys or 32 columns are wanted by its neighbours too, and a warp's read takes no longer than its different bytes.
 * Rows of q, keys and p are swizzled in units of 16 bytes so that those are in different banks. p stays inside a warp.
 * Rejected: keys and values padded in place of swizzled (two blocks of 64 rows do not fit a multiprocessor); tf32 (its products have 10 bits). */
#include "kernel/cuda/device.cuh"

enum { LANE_ROWS = 4, WARP_ROWS = 16 };

typedef struct tile_args {
    const float *q; int64_t ld_q;
    const float *v; int64_t ld_v; /* values; distance between their rows */
    oz_rows out;
    oz_kv kv;
    const int32_t *tables; int64_t ld_tables;
    float scale, softcap;
    int group, window, n_segs;
    oz_attn_seg segs[OZ_ATTN_SEGS];
    int tile0[OZ_ATTN_SEGS]; /* of each segment */
} tile_args;

static __device__ __forceinline__ int seen_from(int pos, int window) { return window && pos + 1 > window ? pos + 1 - window : 0; }

/* The next TILE keys or values from position j0 on; those behind `last` are zeros, as are columns behind n_chunks * 4. */
template <int DIM, int TILE, int THREADS, bool SWIZZLED>
static __device__ __forceinline__ void copy_tile(float *to, const float *kv, int64_t ld, int n_chunks, const int32_t *table, int n_kvh, int kvh, int j0, int last) {
    constexpr int CHUNKS = DIM / 4;
    static_assert(OZ_KV_BLOCK * CHUNKS % THREADS == 0, "a block of keys is copied by all threads");
    #pragma unroll
    for (int b = 0; b < TILE / OZ_KV_BLOCK; b++) {
        const int at = j0 + b * OZ_KV_BLOCK;
        const float *block = at <= last ? kv + ((int64_t)table[at / OZ_KV_BLOCK - (MUTATED(TILE_BLOCK) && at > 0)] * n_kvh + kvh) * OZ_KV_BLOCK * ld : kv;
        #pragma unroll
        for (int i = 0; i < OZ_KV_BLOCK * CHUNKS / THREADS; i++) {
            const int x = threadIdx.x + i * THREADS, row = x / CHUNKS, c = x % CHUNKS;
            const bool there = at + row <= last && c < n_chunks;
            copy16(to + (b * OZ_KV_BLOCK + row) * DIM + 4 * (SWIZZLED ? c ^ (row & 7) : c), there ? block + row * ld + 4 * c : kv, there);
        }
    }
}

static __device__ __forceinline__ void take(float (&to)[4], const float4 *from) {
    const float4 x = *from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

/* q, k: the lane's first row and key. */
template <int DIM, int KEYS>
static __device__ __forceinline__ void scores(float (&s)[LANE_ROWS][KEYS], const float4 *q, const float4 *k, int r, int c) {
    #pragma unroll
    for (int i = 0; i < LANE_ROWS; i++)
        #pragma unroll
        for (int j = 0; j < KEYS; j++) s[i][j] = 0;
    #pragma unroll 2
    for (int d = 0; d < DIM / 4; d++) {
        float x[LANE_ROWS][4], y[KEYS][4];
        #pragma unroll
        for (int i = 0; i < LANE_ROWS; i++) take(x[i], q + i * DIM + (d ^ r));
        #pragma unroll
        for (int j = 0; j < KEYS; j++) take(y[j], k + 2 * j * DIM + (d ^ c));
        #pragma unroll
        for (int e = 0; e < 4; e++)
            #pragma unroll
            for (int i = 0; i < LANE_ROWS; i++)
                #pragma unroll
                for (int j = 0; j < KEYS; j++) s[i][j] = fmaf(x[i][e], y[j][e], s[i][j]);
    }
}

/* p: the lane's first row; v: its first column. In a tile of which some row does not see all, a value that it does not see stays out of its sum, whatever it is. */
template <int TILE, int SLABS, bool MASKED>
static __device__ __forceinline__ void add_values(float (&o)[LANE_ROWS][SLABS][4], const float4 *p, const float4 *v, int r, int j0, const int (&first)[LANE_ROWS], const int (&pos)[LANE_ROWS]) {
    #pragma unroll 1
    for (int j = 0; j < TILE; j += 4) {
        float x[LANE_ROWS][4];
        #pragma unroll
        for (int i = 0; i < LANE_ROWS; i++) take(x[i], p + i * TILE + (j / 4 ^ 2 * r));
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            float y[SLABS][4];
            #pragma unroll
            for (int s = 0; s < SLABS; s++) take(y[s], v + (j + e) * 8 * SLABS + 8 * s);
            #pragma unroll
            for (int i = 0; i < LANE_ROWS; i++) {
                const bool sees = !MASKED || (j0 + j + e >= first[i] && j0 + j + e <= pos[i]);
                #pragma unroll
                for (int s = 0; s < SLABS; s++)
                    #pragma unroll
                    for (int f = 0; f < 4; f++) o[i][s][f] = sees ? fmaf(x[i][e], y[s][f], o[i][s][f]) : o[i][s][f];
            }
        }
    }
}

/* A block: WARPS warps; keys of up to DIM columns, 8 KEYS of them a tile; values of up to 32 SLABS columns. BLOCKS of them on a multiprocessor. */
template <int DIM, int SLABS, int WARPS, int KEYS, int BLOCKS>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_tiles(const __grid_constant__ tile_args a) {
    constexpr int THREADS = 32 * WARPS, ROWS = WARP_ROWS * WARPS, TILE = 8 * KEYS, V_DIM = 32 * SLABS;
    extern __shared__ float4 mem[];
    float *q = (float *)mem, *keys = q + ROWS * DIM, *values = keys + TILE * DIM, *p = values + TILE * V_DIM; /* p [ROWS, TILE] */
    pdl_next();
    pdl_wait();
    const int n_kvh = (int)a.kv.n_heads_kv, kvh = blockIdx.x % n_kvh, x = blockIdx.x / n_kvh, hd = (int)a.kv.head_dim, vd = (int)a.kv.v_dim;
    int at = 0;
    while (at + 1 < a.n_segs && a.tile0[at + 1] <= x) at++;
    const oz_attn_seg g = a.segs[at];
    const int32_t *table = a.tables + g.seq * a.ld_tables;
    /* the last tiles, which see most, first */
    const int n_rows = g.n_tok * a.group, row0 = ((n_rows + ROWS - 1) / ROWS - 1 - (x - a.tile0[at])) * ROWS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = (lane & 1) | (lane >> 3 & 2), c = lane >> 1 & 7, mine = row0 + warp * WARP_ROWS;
    const auto pos_of = [&](int row) { return g.pos0 + (row < n_rows ? row : n_rows - 1) / a.group; };
    const int last = pos_of(row0 + ROWS - 1), low = pos_of(mine), high = mine < n_rows ? pos_of(mine + WARP_ROWS - 1) : -1; /* of the block; of this warp */
    int j0 = seen_from(pos_of(row0), a.window) / TILE * TILE;

    #pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * DIM / 4; i += THREADS) {
        const int row = i / (DIM / 4), d = i % (DIM / 4), y = row0 + row < n_rows ? row0 + row : n_rows - 1; /* rows behind the last one are that one again */
        const bool there = 4 * d < hd;
        copy16(q + row * DIM + 4 * (d ^ (row & 3)), there ? a.q + (g.tok0 + y / a.group) * a.ld_q + ((int64_t)kvh * a.group + y % a.group) * hd + 4 * d : a.q, there);
    }
    copy_tile<DIM, TILE, THREADS, true>(keys, a.kv.k, hd, hd / 4, table, n_kvh, kvh, j0, last);

    int pos[LANE_ROWS], first[LANE_ROWS];
    float m[LANE_ROWS], l[LANE_ROWS], o[LANE_ROWS][SLABS][4]; /* l: of the lane's keys */
    #pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
        pos[i] = pos_of(mine + r + 4 * i), first[i] = seen_from(pos[i], a.window);
        m[i] = -INFINITY, l[i] = 0;
        #pragma unroll
        for (int s = 0; s < SLABS; s++)
            #pragma unroll
            for (int f = 0; f < 4; f++) o[i][s][f] = 0;
    }
    float *p_lane = p + (warp * WARP_ROWS + r) * TILE;
    for (; j0 <= last; j0 += TILE) {
        const bool any = j0 <= high && j0 + TILE > seen_from(low, a.window), masked = j0 + TILE - 1 > low || j0 < seen_from(high, a.window);
        copies_wait();
        __syncthreads(); /* the keys are there, and nobody reads the values before */
        copy_tile<V_DIM, TILE, THREADS, false>(values, a.v, a.ld_v, (vd + 3) / 4, table, n_kvh, kvh, j0, last);
        if (any) {
            float s[LANE_ROWS][KEYS];
            scores<DIM, KEYS>(s, (const float4 *)(q + (warp * WARP_ROWS + r) * DIM), (const float4 *)(keys + c * DIM), r, c);
            #pragma unroll
            for (int i = 0; i < LANE_ROWS; i++) {
                float top = m[i], sum = 0;
                #pragma unroll
                for (int k = 0; k < KEYS; k++) {
                    const int j = j0 + c + 8 * k;
                    s[i][k] = a.softcap > 0 ? softcap(s[i][k] * a.scale, a.softcap) : s[i][k] * a.scale;
                    if (masked && !(j >= (MUTATED(TILE_WINDOW) ? first[i] / TILE * TILE : first[i]) && j <= (MUTATED(TILE_CAUSAL) ? pos[i] + 1 : pos[i]))) s[i][k] = -INFINITY;
                    top = fmaxf(top, s[i][k]);
                }
                for (int d = 2; d <= 8; d *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d)); /* over c */
                const float old = m[i] == top || MUTATED(TILE_RESCALE) ? 1.0f : expf(m[i] - top);
                #pragma unroll
                for (int k = 0; k < KEYS; k++) {
                    const float e = s[i][k] == -INFINITY ? 0.0f : expf(s[i][k] - top);
                    p_lane[4 * i * TILE + 4 * ((2 * k + c / 4) ^ 2 * r) + c % 4] = e;
                    sum += e;
                }
                m[i] = top, l[i] = fmaf(l[i], old, sum);
                #pragma unroll
                for (int n = 0; n < SLABS; n++)
                    #pragma unroll
                    for (int f = 0; f < 4; f++) o[i][n][f] *= old;
            }
        }
        copies_wait();
        __syncthreads(); /* the values are there, p too, and nobody reads the keys any more */
        if (j0 + TILE <= last) copy_tile<DIM, TILE, THREADS, true>(keys, a.kv.k, hd, hd / 4, table, n_kvh, kvh, j0 + TILE, last);
        if (any && masked) add_values<TILE, SLABS, true>(o, (const float4 *)p_lane, (const float4 *)values + c, r, j0, first, pos);
        else if (any) add_values<TILE, SLABS, false>(o, (const float4 *)p_lane, (const float4 *)values + c, r, j0, first, pos);
    }
    const oz_form form = MUTATED(TILE_ROUND) && a.out.form != OZ_FORM_F32 ? (oz_form)(OZ_FORM_BF16 + OZ_FORM_F16 - a.out.form) : a.out.form;
    #pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
        for (int d = 2; d <= 8; d *= 2) l[i] += __shfl_xor_sync(~0u, l[i], d);
        const int row = mine + r + 4 * i;
        if (row >= n_rows) continue;
        const int64_t head = (int64_t)kvh * a.group + (MUTATED(TILE_HEAD) ? 0 : row % a.group);
        const float inverse = 1.0f / l[i];
        uint8_t *out = (uint8_t *)a.out.data + (g.tok0 + row / a.group) * a.out.ld * form_size(form);
        #pragma unroll
        for (int s = 0; s < SLABS; s++)
            #pragma unroll
            for (int f = 0; f < 4; f++)
                if (32 * s + 4 * c + f < vd) store_plain(form, out, head * vd + 32 * s + 4 * c + f, o[i][s][f] * inverse);
    }
}

typedef struct tile_kind { int dim, v_dim, rows, threads; size_t smem; void (*run)(tile_args a); } tile_kind;
#define KIND(dim, slabs, warps, keys, blocks)                                                                                            \
    {dim, 32 * slabs, WARP_ROWS * warps, 32 * warps, 4 * (WARP_ROWS * warps * dim + 8 * keys * dim + 8 * keys * 32 * slabs + WARP_ROWS * warps * 8 * keys), attention_tiles<dim, slabs, warps, keys, blocks>}
static const tile_kind kinds[] = {KIND(64, 2, 4, 8, 3), KIND(96, 3, 4, 8, 2), KIND(128, 4, 4, 8, 2), KIND(192, 4, 8, 8, 1), KIND(256, 8, 8, 4, 1)};

static const tile_kind *kind_of(const oz_kv *kv) {
    for (const tile_kind *k = kinds; k < kinds + sizeof kinds / sizeof *kinds; k++)
        if (kv->head_dim <= k->dim && kv->v_dim <= k->v_dim) return k;
    return NULL;
}

bool oz_cuda_attention_tiles_fit(const oz_attn_args *a) {
    const oz_kv *kv = a->kv;
    const uintptr_t at = (uintptr_t)a->q | (uintptr_t)kv->k | (uintptr_t)kv->v;
    return kind_of(kv) && at % 16 == 0 && a->ld_q % 4 == 0 && kv->head_dim % 4 == 0 && (!kv->v || kv->v_dim % 4 == 0); /* 16 bytes at once */
}

void oz_cuda_attention_tiles(oz_cuda_dev *d, const oz_attn_args *a, oz_rows out, const oz_attn_seg *segs, int n_segs) {
    const tile_kind *k = kind_of(a->kv);
    tile_args t = {};
    t.q = a->q, t.ld_q = a->ld_q, t.out = out, t.kv = *a->kv, t.tables = d->batch.tables, t.ld_tables = d->batch.ld;
    t.v = a->kv->v ? a->kv->v : a->kv->k, t.ld_v = a->kv->v ? a->kv->v_dim : a->kv->head_dim;
    t.scale = a->scale, t.softcap = a->softcap, t.window = (int)(a->window < INT32_MAX ? a->window : INT32_MAX);
    t.group = (int)(a->n_heads / a->kv->n_heads_kv), t.n_segs = n_segs;
    int n_tiles = 0;
    for (int i = 0; i < n_segs; i++) {
        t.segs[i] = segs[i], t.tile0[i] = n_tiles;
        n_tiles += (segs[i].n_tok * t.group + k->rows - 1) / k->rows;
    }
    oz_cuda_note(d, cudaFuncSetAttribute(k->run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)k->smem));
    oz_launch(d, k->run, dim3((unsigned)(n_tiles * a->kv->n_heads_kv)), dim3((unsigned)k->threads), k->smem, t);
}
