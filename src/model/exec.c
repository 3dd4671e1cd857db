/* The plain executor: the forward pass, once. It walks the plan and calls the device's operations; it allocates nothing. */
#include "model/internal.h"

static float *col(const oz_model_buf *b, int64_t c) { return (float *)b->data + c; }

static void run_embed(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *b = &m->bufs[s->dst];
    m->ops->embed(m->dev, col(b, 0), b->width, m->linears[s->part0].packed, x->call->ids, x->call->n_tok);
}

static void run_rope_table(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    m->ops->rope_table(m->dev, m->rope_cos, m->rope_sin, x->call->segs, x->call->n_segs, m->inv_freq, s->n / 2, 1.0f);
}

static int64_t step_rows(const oz_exec *x, const oz_step *s) { return s->src == OZ_BUF_ROWS || s->op == OZ_OP_GATHER ? x->n_gather : x->call->n_tok; }

static void run_norm(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *d = &m->bufs[s->dst], *b = &m->bufs[s->src];
    m->ops->norm(m->dev, col(d, s->dst_col), d->width, col(b, s->src_col), b->width, s->vec, step_rows(x, s), s->n_heads, s->n, (float)m->dims.rms_norm_eps);
}

static oz_rows rows_of(const oz_model_buf *b) { return (oz_rows){b->form, b->data, b->width, b->scales}; }

static void run_quantize(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *b = &m->bufs[s->src];
    oz_rows y = rows_of(&m->bufs[s->dst]);
    m->ops->quantize(m->dev, &y, col(b, s->src_col), b->width, step_rows(x, s), s->n);
}

static void run_linear(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_packed *parts[OZ_MAX_PARTS_LINEAR];
    const float *bias[OZ_MAX_PARTS_LINEAR];
    for (int i = 0; i < s->n_parts; i++) {
        parts[i] = m->linears[s->part0 + i].packed;
        bias[i] = m->linears[s->part0 + i].bias;
    }
    const oz_model_buf *d = &m->bufs[s->dst];
    const int64_t n = s->dst == OZ_BUF_LOGITS ? x->n_gather : x->call->n_tok;
    m->ops->linear(m->dev, &(oz_linear_args){parts, bias, s->n_parts, rows_of(&m->bufs[s->src]), col(d, s->dst_col), d->width, n});
}

static void run_rope(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *b = &m->bufs[s->src];
    m->ops->rope(m->dev, col(b, s->src_col), b->width, s->n_heads, s->n, m->rope_cos, m->rope_sin, s->n / 2, x->call->n_tok);
}

static void run_kv_write(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *b = &m->bufs[s->src];
    m->ops->kv_write(m->dev, &x->s->kv[s->layer], col(b, s->src_col), col(b, s->src_col + s->n), b->width, x->call->segs, x->call->n_segs);
}

static void run_attention(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *d = &m->bufs[s->dst], *b = &m->bufs[s->src];
    m->ops->attention(m->dev, &(oz_attn_args){col(b, s->src_col), b->width, col(d, s->dst_col), d->width, &x->s->kv[s->layer], x->call->segs,
                                              x->call->n_segs, s->n_heads, m->attn_scale, s->window});
}

static void run_silu_mul(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *d = &m->bufs[s->dst], *b = &m->bufs[s->src];
    m->ops->silu_mul(m->dev, col(d, s->dst_col), d->width, col(b, 0), col(b, s->n), b->width, x->call->n_tok, s->n);
}

static void run_add(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *d = &m->bufs[s->dst], *b = &m->bufs[s->src];
    m->ops->add(m->dev, col(d, s->dst_col), d->width, col(b, s->src_col), b->width, x->call->n_tok, s->n);
}

static void run_tap(const oz_exec *x, const oz_step *s) {
    const oz_call *c = x->call;
    if (c->tap) c->tap(c->tap_arg, s->layer, x->m->bufs[s->src].data, c->n_tok, s->n);
}

static void run_gather(const oz_exec *x, const oz_step *s) {
    oz_model *m = x->m;
    const oz_model_buf *d = &m->bufs[s->dst], *b = &m->bufs[s->src];
    m->ops->gather(m->dev, col(d, 0), d->width, col(b, 0), b->width, x->gather, x->n_gather, s->n);
}

static void (*const runners[OZ_OP_COUNT])(const oz_exec *, const oz_step *) = {
    run_embed, run_rope_table, run_norm, run_quantize, run_linear, run_rope, run_kv_write, run_attention, run_silu_mul, run_add, run_tap, run_gather};

void oz_exec_steps(const oz_exec *x, int begin, int end) {
    const int64_t l0 = x->call->layer_begin, l1 = x->call->layer_end ? x->call->layer_end : x->m->dims.n_layers;
    for (int i = begin; i < end; i++) {
        const oz_step *s = &x->m->plan.steps[i];
        if (s->layer >= 0 ? s->layer < l0 || s->layer >= l1 : s->op == OZ_OP_EMBED && l0 > 0) continue;
        runners[s->op](x, s);
    }
}
