/* Attention over paged keys and values: out[h] = sum_j softmax_j(scale q_h . k_j) v_j over the keys that a query sees.
 *
 * q [n_tok, n_heads, hd] f32; k, v [n_blocks, n_heads_kv, 16, hd or vd] f32, v perhaps the first columns of k. A block takes one query token, one KV head, up to HEADS of the query
 * heads that share it, and works in chunks of CHUNK keys: scores by warps (all heads from one reading of a key), then a thread a column of v.
 * A chunk's result is (max, sum, weighted v), and chunks are merged one after the other in the order of keys. With few queries each chunk
 * has a block of its own, partial results go to workspace and the last block to arrive merges them, in the same order and with the same
 * arithmetic: how the work was split never shows. Decode of short contexts is bound by latency (one chunk: one pass), of long ones by memory.
 * Here a key is read once a query, through L2: segments of many tokens go to attention_tile.cu. */
#include "kernel/cuda/device.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, CHUNK = 64, HEADS = 4, KEYS = 8, MAX_COLS = 4 /* of v a thread: vd up to 512 */ };

typedef struct attn {
    const float *q; int64_t ld_q;
    const float *v; int64_t vd, ld_v;         /* values; distance between their rows */
    oz_rows out;
    oz_kv kv;
    oz_cuda_batch b;
    int64_t n_heads, group, window, n_chunks; /* n_chunks 0: one block takes all chunks */
    float scale, softcap;
    float *part;                              /* [n_tok, n_heads, n_chunks, 2 + vd] */
    unsigned *tickets;                        /* [n_tok, grid.y] */
} attn;

/* Merges a later chunk's (m, l, o) into s. */
template <int COLS>
static __device__ __forceinline__ void merge(float *m, float *l, float (&o)[COLS], float m2, float l2, const float (&o2)[COLS]) {
    const float top = fmaxf(*m, m2), a = *m == top ? 1.0f : expf(*m - top), b = m2 == top ? 1.0f : expf(m2 - top);
    #pragma unroll
    for (int c = 0; c < COLS; c++) o[c] = fmaf(o[c], a, o2[c] * b);
    *l = fmaf(*l, a, l2 * b);
    *m = top;
}

/* The block of position `at`: [16, ld] of one KV head. */
static __device__ __forceinline__ const float *block_of(const float *kv, int64_t ld, const attn &a, const int32_t *table, int64_t at, int64_t kvh) {
    return kv + ((int64_t)table[at / OZ_KV_BLOCK] * a.kv.n_heads_kv + kvh) * OZ_KV_BLOCK * ld;
}

template <int COLS>
static __global__ void __launch_bounds__(THREADS) attention(attn a) {
    extern __shared__ float q[]; /* [HEADS, hd] */
    __shared__ float score[HEADS][CHUNK];
    __shared__ unsigned last;
    pdl_next();
    pdl_wait();
    const int64_t hd = a.kv.head_dim, vd = a.vd, t = blockIdx.x, sets = (a.group + HEADS - 1) / HEADS, kvh = blockIdx.y / sets, h0 = kvh * a.group + blockIdx.y % sets * HEADS;
    const int64_t left = (kvh + 1) * a.group - h0;
    const int n_h = (int)(left < HEADS ? left : HEADS), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t pos = a.b.pos[t];
    if (pos < 0) return;
    const int64_t first = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0, n_mine = pos / CHUNK + 1;
    const int32_t *table = a.b.tables + a.b.seq[t] * a.b.ld;
    const int64_t c0 = a.n_chunks ? blockIdx.z : first / CHUNK, c1 = a.n_chunks ? blockIdx.z + 1 : n_mine;
    if (c0 >= n_mine) return;
    for (int64_t i = threadIdx.x; i < HEADS * hd; i += THREADS) q[i] = i < n_h * hd ? a.q[t * a.ld_q + h0 * hd + i] : 0;
    struct { float m[HEADS], l[HEADS], o[HEADS][COLS]; } s;
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s.m[h] = -INFINITY, s.l[h] = 0;
        #pragma unroll
        for (int c = 0; c < COLS; c++) s.o[h][c] = 0;
    }
    for (int64_t chunk = c0; chunk < c1; chunk++) {
        const int64_t j0 = chunk * CHUNK;
        const int n = (int)(pos + 1 - j0 < CHUNK ? pos + 1 - j0 : CHUNK);
        __syncthreads();
        float held[COLS == 1 ? CHUNK : 1]; /* v's column, under way while scores are made */
        if (COLS == 1) {
            #pragma unroll
            for (int j = 0; j < CHUNK; j++) held[j] = j < n && threadIdx.x < vd ? block_of(a.v, a.ld_v, a, table, j0 + j, kvh)[j % OZ_KV_BLOCK * a.ld_v + threadIdx.x] : 0;
        }
        /* a warp a block of 16 keys, 8 at a time: their dot products with all heads are summed over the lanes by halving, lane 4 e + h ends up with (e, h) */
        const float *keys = j0 + warp * OZ_KV_BLOCK <= pos ? block_of(a.kv.k, hd, a, table, j0 + warp * OZ_KV_BLOCK, kvh) : NULL;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at0 = j0 + warp * OZ_KV_BLOCK + half * KEYS;
            float dot[KEYS * HEADS] = {};
            #pragma unroll 4
            for (int64_t i = lane; i < hd; i += 32) {
                float k[KEYS];
                #pragma unroll
                for (int e = 0; e < KEYS; e++) k[e] = at0 + e <= pos ? keys[(half * KEYS + e) * hd + i] : 0;
                #pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    const float v = q[h * hd + i];
                    #pragma unroll
                    for (int e = 0; e < KEYS; e++) dot[e * HEADS + h] = fmaf(v, k[e], dot[e * HEADS + h]);
                }
            }
            #pragma unroll
            for (int d = 16; d; d /= 2) {
                #pragma unroll
                for (int i = 0; i < d; i++) {
                    const float keep = lane & d ? dot[i + d] : dot[i], give = lane & d ? dot[i] : dot[i + d];
                    dot[i] = keep + __shfl_xor_sync(~0u, give, d);
                }
            }
            const int64_t at = at0 + lane / HEADS;
            const float s = a.softcap > 0 ? softcap(dot[0] * a.scale, a.softcap) : dot[0] * a.scale;
            score[lane % HEADS][at - j0] = at <= pos && at >= first ? s : -INFINITY;
        }
        __syncthreads();
        float m[HEADS], l[HEADS], o[HEADS][COLS];
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            m[h] = warp_max(fmaxf(score[h][lane], score[h][lane + 32]));
            l[h] = 0;
            #pragma unroll
            for (int c = 0; c < COLS; c++) o[h][c] = 0;
        }
        __syncthreads(); /* all have read the scores */
        for (int i = threadIdx.x; i < HEADS * CHUNK; i += THREADS) {
            const int h = i / CHUNK;
            float top = m[0];
            for (int g = 1; g < HEADS; g++) if (g == h) top = m[g];
            const float v = score[h][i % CHUNK];
            score[h][i % CHUNK] = v == -INFINITY ? 0.0f : expf(v - top);
        }
        __syncthreads();
        for (int h = 0; h < HEADS; h++) l[h] = warp_sum(MUTATED(ATTENTION_SUM) ? score[h][lane] : score[h][lane] + score[h][lane + 32]);
        if (COLS == 1) {
            #pragma unroll
            for (int j = 0; j < CHUNK; j++)
                #pragma unroll
                for (int h = 0; h < HEADS; h++) o[h][0] = fmaf(score[h][j], held[j], o[h][0]);
        }
        #pragma unroll
        for (int c = 0; c < COLS && COLS > 1; c++) {
            const int64_t col = threadIdx.x + (int64_t)c * THREADS;
            #pragma unroll 8
            for (int j = 0; j < (col < vd ? n : 0); j++) {
                const float v = block_of(a.v, a.ld_v, a, table, j0 + j, kvh)[j % OZ_KV_BLOCK * a.ld_v + col];
                #pragma unroll
                for (int h = 0; h < HEADS; h++) o[h][c] = fmaf(score[h][j], v, o[h][c]);
            }
        }
        if (first >= j0 + CHUNK) continue; /* nothing of it is seen */
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (chunk == c0 || s.m[h] == -INFINITY) { /* the first one, as it is */
                s.m[h] = m[h], s.l[h] = l[h];
                #pragma unroll
                for (int c = 0; c < COLS; c++) s.o[h][c] = o[h][c];
            } else {
                merge(&s.m[h], &s.l[h], s.o[h], m[h], l[h], o[h]);
            }
        }
    }
    if (a.n_chunks && n_mine > 1) {
        const int64_t stride = 2 + vd;
        float *part = a.part + (t * a.n_heads + h0) * a.n_chunks * stride;
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= n_h) continue;
            float *p = part + (h * a.n_chunks + c0) * stride;
            if (threadIdx.x == 0) p[0] = s.m[h], p[1] = s.l[h];
            #pragma unroll
            for (int c = 0; c < COLS; c++) {
                const int64_t col = threadIdx.x + (int64_t)c * THREADS;
                if (col < vd) p[2 + col] = s.o[h][c];
            }
        }
        __threadfence();
        __syncthreads();
        unsigned *ticket = a.tickets + t * gridDim.y + blockIdx.y;
        if (threadIdx.x == 0) last = atomicAdd(ticket, 1) + 1 == n_mine;
        __syncthreads();
        if (!last) return;
        if (threadIdx.x == 0) *ticket = 0;
        __threadfence();
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h >= n_h) continue;
            s.m[h] = -INFINITY;
            for (int64_t k = first / CHUNK; k < (MUTATED(ATTENTION_CHUNK) ? n_mine - 1 : n_mine); k++) {
                const float *p = part + (h * a.n_chunks + k) * stride;
                const float m2 = __ldcg(p), l2 = __ldcg(p + 1);
                float o2[COLS];
                #pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const int64_t col = threadIdx.x + (int64_t)c * THREADS;
                    o2[c] = col < vd ? __ldcg(p + 2 + col) : 0;
                }
                if (s.m[h] == -INFINITY) {
                    s.m[h] = m2, s.l[h] = l2;
                    #pragma unroll
                    for (int c = 0; c < COLS; c++) s.o[h][c] = o2[c];
                } else {
                    merge(&s.m[h], &s.l[h], s.o[h], m2, l2, o2);
                }
            }
        }
    }
    uint8_t *out = (uint8_t *)a.out.data + t * a.out.ld * form_size(a.out.form);
    const oz_form form = MUTATED(ATTENTION_ROUND) && a.out.form != OZ_FORM_F32 ? (oz_form)(OZ_FORM_BF16 + OZ_FORM_F16 - a.out.form) : a.out.form;
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= n_h) continue;
        const int64_t head = h0 + (MUTATED(ATTENTION_HEADS) && form != OZ_FORM_F32 ? h / 2 * 2 : h);
        #pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int64_t col = threadIdx.x + (int64_t)c * THREADS;
            if (col < vd) store_plain(form, out, head * vd + col, s.o[h][c] / s.l[h]);
        }
    }
}

/* A kernel for each row of the call. Chunks get blocks of their own while their partial results fit into the workspace. */
static void by_query(oz_cuda_dev *d, const oz_attn_args *a, oz_rows out, int64_t tok0, int64_t n_tok, int64_t max_len) {
    const int64_t hd = a->kv->head_dim, vd = a->kv->v_dim, group = a->n_heads / a->kv->n_heads_kv, sets = (group + HEADS - 1) / HEADS, n_chunks = (max_len + CHUNK - 1) / CHUNK;
    const int64_t n_y = a->kv->n_heads_kv * sets;
    if (vd > MAX_COLS * THREADS) {
        oz_cuda_note(d, cudaErrorInvalidValue);
        return;
    }
    attn k = {a->q, a->ld_q, a->kv->v ? a->kv->v : a->kv->k, vd, a->kv->v ? vd : hd, out, *a->kv, d->batch, a->n_heads, group, a->window, n_chunks, a->scale, a->softcap, (float *)d->work, d->tickets};
    k.b.pos += tok0, k.b.seq += tok0;
    const bool fits = (double)n_tok * (double)(a->n_heads * n_chunks * (2 + vd)) * sizeof(float) <= (double)(64 << 20) && n_tok * n_y <= OZ_TICKETS && n_chunks <= 65535;
    if (!fits) k.n_chunks = 0;
    oz_launch(d, vd <= THREADS ? attention<1> : attention<MAX_COLS>, dim3((unsigned)n_tok, (unsigned)n_y, (unsigned)(fits ? n_chunks : 1)), dim3(THREADS), (size_t)(HEADS * hd) * sizeof(float), k);
}

/* Rows [at, at + n) of those that q and out begin with, which are the batch's from tok0 on. */
static void rows_by_query(oz_cuda_dev *d, const oz_attn_args *a, oz_rows out, int64_t tok0, int64_t at, int64_t n, int64_t max_len) {
    oz_attn_args part = *a;
    part.q += at * a->ld_q;
    out.data = (uint8_t *)out.data + at * out.ld * form_size(out.form);
    by_query(d, &part, out, tok0 + at, n, max_len);
}

/* Segments of more than OZ_GRAPH_TOK tokens go in tiles; what lies between them, as all that a graph holds, by query. */
void oz_cuda_attention_run(oz_cuda_dev *d, const oz_attn_args *a, oz_rows out, int64_t tok0, int64_t n_tok, int64_t max_len) {
    const bool tiles = n_tok > OZ_GRAPH_TOK && !d->deterministic && oz_cuda_attention_tiles_fit(a);
    const oz_batch *b = d->batch.host;
    oz_attn_seg segs[OZ_ATTN_SEGS];
    int n = 0;
    int64_t done = 0;
    for (int64_t s = 0; tiles && s < b->n_segs; s++) {
        const oz_seg *g = &b->segs[s];
        const int64_t from = g->tok0 > tok0 ? g->tok0 : tok0, end = g->tok0 + g->n_tok < tok0 + n_tok ? g->tok0 + g->n_tok : tok0 + n_tok;
        if (end - from <= OZ_GRAPH_TOK) continue;
        if (from - tok0 > done) rows_by_query(d, a, out, tok0, done, from - tok0 - done, max_len);
        done = end - tok0;
        segs[n++] = {(int32_t)(from - tok0), (int32_t)(end - from), (int32_t)(g->pos0 + from - g->tok0), (int32_t)s};
        if (n == OZ_ATTN_SEGS) oz_cuda_attention_tiles(d, a, out, segs, n), n = 0;
    }
    if (n) oz_cuda_attention_tiles(d, a, out, segs, n);
    if (done < n_tok) rows_by_query(d, a, out, tok0, done, n_tok - done, max_len);
}

void oz_cuda_attention(oz_dev *dev, const oz_attn_args *a) {
    oz_cuda_dev *d = oz_cuda(dev);
    const oz_rows out = {OZ_FORM_F32, a->out, a->ld_out, NULL};
    oz_cuda_attention_run(d, a, out, 0, d->batch.n_tok, d->batch.max_len);
}
