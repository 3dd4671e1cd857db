/* Latent attention, always absorbed: q_nope (turned keys) and q_rope attend over latents as one KV head whose values are the first columns of its keys, and what comes out
 * goes through the values' rows of kv_b (step.h; kernel/cpu_latent.c says why it is the same function).
 *
 * Products are those of linear.cu, one launch a head on each side of attention: bound by launches, which a graph makes cheap. Only the CPU expands:
 * `latent_room` is 0 here. mla_write puts keys and values of all heads into a cache of the ordinary kind, a block a token. */
#include "kernel/cuda/device.cuh"

enum { THREADS = 256 };

static __global__ void mla_rows(oz_kv kv, oz_mla_args a, oz_cuda_batch b) {
    pdl_wait();
    const int64_t t = blockIdx.x, own = kv.head_dim - a.n_rope, each = own + kv.v_dim, row = kv.head_dim + kv.v_dim;
    const int pos = b.pos[t];
    if (pos < 0) return;
    const int64_t block = b.tables[b.seq[t] * b.ld + pos / OZ_KV_BLOCK];
    const float *heads = a.heads + t * a.ld_heads, *rope = a.rope + t * a.ld_rope;
    for (int64_t i = threadIdx.x; i < kv.n_heads_kv * row; i += blockDim.x) {
        const int64_t h = i / row, c = i % row, at = (block * kv.n_heads_kv + h) * OZ_KV_BLOCK + pos % OZ_KV_BLOCK;
        if (c < own) kv.k[at * kv.head_dim + c] = heads[h * each + c];
        else if (c < kv.head_dim) kv.k[at * kv.head_dim + c] = rope[c - own];
        else kv.v[at * kv.v_dim + c - kv.head_dim] = heads[h * each + own + c - kv.head_dim];
    }
}

void oz_cuda_mla_write(oz_dev *dev, const oz_kv *kv, const oz_mla_args *a) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_launch(d, mla_rows, dim3((unsigned)d->batch.n_tok), dim3(THREADS), 0, *kv, *a, d->batch);
}

/* The turned end of each head of q, behind what is absorbed. A block a head of a token. */
static __global__ void rope_columns(float *wide, int64_t ld, int64_t wide_dim, const float *q, int64_t ld_q, int64_t head_dim, int64_t n_rope) {
    pdl_wait();
    const int64_t h = blockIdx.x, t = blockIdx.y;
    for (int64_t i = threadIdx.x; i < n_rope; i += blockDim.x) wide[t * ld + h * wide_dim + wide_dim - n_rope + i] = q[t * ld_q + h * head_dim + head_dim - n_rope + i];
}

/* Each head's product: inputs of a head begin x_step columns after those of the one before, outputs y_step. */
static void heads_product(oz_cuda_dev *d, oz_packed *const *w, int64_t n_heads, oz_rows x, int64_t x_step, float *y, int64_t ld_y, int64_t y_step, int64_t n_tok) {
    const int64_t size = x.form == OZ_FORM_F32 ? 4 : 2;
    for (int64_t h = 0; h < n_heads; h++) {
        const oz_packed *one = w[HOST_MUTATED(LATENT_HEAD) ? 0 : h];
        oz_linear_args a = {};
        a.parts = &one, a.n_parts = 1, a.x = x, a.y = y + h * y_step, a.ld_y = ld_y, a.n_tok = n_tok;
        a.x.data = (uint8_t *)x.data + h * x_step * size;
        oz_cuda_linear(&d->head, &a);
    }
}

/* Rows as a product takes them: where they lie, or rounded into the room. */
static oz_rows inputs(oz_cuda_dev *d, const oz_latent_args *a, const float *x, int64_t ld, int64_t n_tok, int64_t n) {
    oz_rows rows = {a->w->form, (void *)x, ld, NULL};
    if (rows.form == OZ_FORM_F32) return rows;
    rows.data = a->room->x.data, rows.ld = n;
    oz_cuda_quantize(&d->head, &rows, x, ld, n_tok, n);
    return rows;
}

void oz_cuda_latent_run(oz_cuda_dev *d, const oz_latent_args *a, int64_t n_tok, int64_t max_len) {
    const oz_latent_room *r = a->room;
    const int64_t heads = a->n_heads, rank = a->kv->v_dim, wide = a->kv->head_dim;
    for (int64_t t = 0; t < n_tok; t += r->n_tok) {
        const int64_t n = n_tok - t < r->n_tok ? n_tok - t : r->n_tok;
        const float *q = a->q + t * a->ld_q;
        heads_product(d, a->w->turned, heads, inputs(d, a, q, a->ld_q, n, heads * a->head_dim), a->head_dim, r->wide, heads * wide, wide, n);
        oz_launch(d, rope_columns, dim3((unsigned)heads, (unsigned)n), dim3(64), 0, r->wide, heads * wide, wide, q, a->ld_q, a->head_dim, HOST_MUTATED(LATENT_ROPE) ? a->n_rope - 1 : a->n_rope);
        const oz_attn_args attn = {r->wide, heads * wide, NULL, 0, a->kv, heads, a->scale, a->window, a->softcap};
        const oz_rows out = {OZ_FORM_F32, r->out, heads * rank, NULL};
        oz_cuda_attention_run(d, &attn, out, t, n, max_len);
        heads_product(d, a->w->values, heads, inputs(d, a, r->out, heads * rank, n, heads * rank), rank, a->out + t * a->ld_out, a->ld_out, a->v_dim, n);
    }
}

void oz_cuda_latent(oz_dev *dev, const oz_latent_args *a) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_latent_run(d, a, d->batch.n_tok, d->batch.max_len);
}
