/* One step of a program through the table of operations. model/exec.c walks a program with it; a lowering runs what it does not fuse. */
#include <stddef.h>
#include <string.h>
#include "kernel/step.h"

static float *col(const oz_step_buf *b, int64_t c) { return (float *)b->data + c; }

static void run_embed(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *b = &p->bufs[s->dst];
    oz_dev_ops(x->dev)->embed(x->dev, col(b, 0), b->width, p->linears[s->part0].packed);
}

static void run_rope_table(const oz_step_call *x, const oz_step *s) {
    const oz_rope_table *t = &x->p->ropes[s->rope];
    oz_dev_ops(x->dev)->rope_table(x->dev, t->cos, t->sin, t->inv_freq, t->n_pairs, t->factor);
}

static int64_t step_rows(const oz_step_call *x, const oz_step *s) {
    return s->src == OZ_BUF_ROWS || s->src == OZ_BUF_LOGITS || s->op == OZ_OP_GATHER ? x->n_rows : x->n_tok * s->tok_rows;
}

static void run_norm(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *d = &x->p->bufs[s->dst], *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->norm(x->dev, col(d, s->dst_col), d->width, col(b, s->src_col), b->width, s->vec, step_rows(x, s), s->n_heads, s->n, s->factor);
}

static oz_rows rows_of(const oz_step_buf *b) { return (oz_rows){b->form, b->data, b->width, b->scales}; }

static void run_quantize(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *b = &p->bufs[s->src];
    oz_rows y = rows_of(&p->bufs[s->dst]);
    oz_dev_ops(x->dev)->quantize(x->dev, &y, col(b, s->src_col), b->width, step_rows(x, s), s->n);
}

static void run_round(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *d = &x->p->bufs[s->dst], *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->round(x->dev, col(d, s->dst_col), d->width, col(b, s->src_col), b->width, step_rows(x, s), s->n, s->round);
}

static void run_linear(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_packed *parts[OZ_MAX_PARTS_LINEAR];
    const float *bias[OZ_MAX_PARTS_LINEAR];
    for (int i = 0; i < s->n_parts; i++) {
        parts[i] = p->linears[s->part0 + i].packed;
        bias[i] = p->linears[s->part0 + i].bias;
    }
    const oz_step_buf *d = &p->bufs[s->dst];
    const int64_t n = s->dst == OZ_BUF_LOGITS ? x->n_rows : x->n_tok;
    oz_rows in = rows_of(&p->bufs[s->src]);
    if (in.form == OZ_FORM_F32) in.data = col(&p->bufs[s->src], s->src_col); /* rows of other forms are made for it, from column 0 */
    oz_dev_ops(x->dev)->linear(x->dev, &(oz_linear_args){parts, bias, s->n_parts, in, col(d, s->dst_col), d->width, n});
}

static void run_rope(const oz_step_call *x, const oz_step *s) {
    const oz_rope_table *t = &x->p->ropes[s->rope];
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->rope(x->dev, col(b, s->src_col), b->width, s->n_heads, s->n, t->cos, t->sin, t->n_pairs, x->n_tok);
}

static void run_rope_pairs(const oz_step_call *x, const oz_step *s) {
    const oz_rope_table *t = &x->p->ropes[s->rope];
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->rope_pairs(x->dev, col(b, s->src_col), b->width, s->n_heads, s->n, t->cos, t->sin, t->n_pairs, x->n_tok);
}

static void run_mla_write(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->mla_write(x->dev, &x->kv[s->layer], &(oz_mla_args){col(b, s->src_col), col(b, s->rope_col), b->width, b->width, s->n_rope});
}

static void run_kv_write(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *b = &p->bufs[s->src];
    oz_dev_ops(x->dev)->kv_write(x->dev, &x->kv[s->layer], col(b, s->src_col), col(b, s->src_col + s->n), b->width);
}

static void run_attention(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *d = &p->bufs[s->dst], *b = &p->bufs[s->src];
    oz_dev_ops(x->dev)->attention(x->dev, &(oz_attn_args){col(b, s->src_col), b->width, col(d, s->dst_col), d->width, &x->kv[s->layer], s->n_heads, p->attn_scale, s->window, p->attn_softcap});
}

oz_latent_args oz_step_latent(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *d = &p->bufs[s->dst], *b = &p->bufs[s->src];
    return (oz_latent_args){col(b, s->src_col), b->width, col(d, s->dst_col), d->width, &x->kv[s->layer], s->n_heads, s->n, s->n_rope, oz_packed_rows(s->latent->values[0]), s->window,
                            p->attn_scale, p->attn_softcap, s->latent, &p->latent};
}

static void run_latent(const oz_step_call *x, const oz_step *s) {
    const oz_latent_args a = oz_step_latent(x, s);
    oz_dev_ops(x->dev)->latent(x->dev, &a);
}

/* By multiplications of one head: kv_b with each latent, or once as it is turned with each query and once with each output; and those of attention, where
 * what is absorbed has longer keys and values. */
bool oz_latent_expands(const oz_latent_args *a, const oz_seg *seg) {
    const int64_t rank = a->kv->v_dim, nope = a->head_dim - a->n_rope, len = seg->pos0 + seg->n_tok, pairs = seg->n_tok * seg->pos0 + seg->n_tok * (seg->n_tok + 1) / 2;
    const int64_t product = rank * (nope + a->v_dim), expanded = len * product + pairs * (a->head_dim + a->v_dim), absorbed = seg->n_tok * product + pairs * (2 * rank + a->n_rope);
    return len <= a->room->max_len && expanded < absorbed;
}

static void run_conv(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->conv(x->dev, &(oz_conv_args){col(b, s->src_col), col(b, s->dst_col), b->width, s->vec, s->vec2, x->kv[s->layer].conv, s->n, s->taps});
}

static void run_scan(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *d = &x->p->bufs[s->dst], *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->scan(x->dev, &(oz_scan_args){col(b, s->src_col), col(b, s->dt_col), col(b, s->bc_col), col(b, s->bc_col + s->n_state), col(b, s->gate_col), b->width, col(d, s->dst_col),
                                                     d->width, s->vec, s->vec2, x->kv[s->layer].scan, s->n, s->n_state});
}

static void run_silu_mul(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *d = &p->bufs[s->dst], *b = &p->bufs[s->src];
    oz_dev_ops(x->dev)->silu_mul(x->dev, col(d, s->dst_col), d->width, col(b, 0), col(b, s->n), b->width, step_rows(x, s), s->n);
}

static void run_gelu_mul(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *d = &x->p->bufs[s->dst], *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->gelu_mul(x->dev, col(d, s->dst_col), d->width, col(b, 0), col(b, s->n), b->width, step_rows(x, s), s->n);
}

static void run_scale(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->scale(x->dev, col(b, s->src_col), b->width, step_rows(x, s), s->n, s->factor);
}

static void run_softcap(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->softcap(x->dev, col(b, s->src_col), b->width, step_rows(x, s), s->n, s->factor);
}

static void run_add(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *d = &p->bufs[s->dst], *b = &p->bufs[s->src];
    oz_dev_ops(x->dev)->add(x->dev, col(d, s->dst_col), d->width, col(b, s->src_col), b->width, x->n_tok, s->n);
}

static void run_gather(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *d = &p->bufs[s->dst], *b = &p->bufs[s->src];
    oz_dev_ops(x->dev)->gather(x->dev, col(d, 0), d->width, col(b, 0), b->width, x->row0, x->n_rows, s->n);
}

static void run_route(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *b = &x->p->bufs[s->src];
    oz_route r = x->p->route;
    r.bias = s->vec;
    oz_dev_ops(x->dev)->route(x->dev, &r, col(b, 0), b->width, x->n_tok);
}

static void run_sort(const oz_step_call *x, const oz_step *s) { oz_dev_ops(x->dev)->sort(x->dev, &x->p->route, x->n_tok); }

static void run_spread(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *d = &x->p->bufs[s->dst], *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->spread(x->dev, &x->p->route, col(d, 0), d->width, col(b, 0), b->width, x->n_tok, s->n);
}

static void run_grouped(const oz_step_call *x, const oz_step *s) {
    const oz_program *p = x->p;
    const oz_step_buf *d = &p->bufs[s->dst];
    oz_dev_ops(x->dev)->grouped_linear(x->dev, &(oz_grouped_args){p->packed + s->part0, &p->route, rows_of(&p->bufs[s->src]), col(d, s->dst_col), d->width, x->n_tok});
}

static void run_combine(const oz_step_call *x, const oz_step *s) {
    const oz_step_buf *d = &x->p->bufs[s->dst], *b = &x->p->bufs[s->src];
    oz_dev_ops(x->dev)->combine(x->dev, &x->p->route, col(d, 0), d->width, col(b, 0), b->width, x->n_tok, s->n);
}

/* Each op's runner, and the operation of the device that it calls. */
#define ROW(fn, slot) {fn, offsetof(oz_ops, slot)}
static const struct { void (*run)(const oz_step_call *, const oz_step *); size_t slot; } runners[OZ_OP_COUNT] = {
    [OZ_OP_EMBED] = ROW(run_embed, embed), [OZ_OP_ROPE_TABLE] = ROW(run_rope_table, rope_table), [OZ_OP_NORM] = ROW(run_norm, norm),
    [OZ_OP_QUANTIZE] = ROW(run_quantize, quantize), [OZ_OP_ROUND] = ROW(run_round, round), [OZ_OP_LINEAR] = ROW(run_linear, linear), [OZ_OP_ROPE] = ROW(run_rope, rope),
    [OZ_OP_ROPE_PAIRS] = ROW(run_rope_pairs, rope_pairs), [OZ_OP_MLA_WRITE] = ROW(run_mla_write, mla_write), [OZ_OP_CONV] = ROW(run_conv, conv), [OZ_OP_SCAN] = ROW(run_scan, scan),
    [OZ_OP_KV_WRITE] = ROW(run_kv_write, kv_write), [OZ_OP_ATTENTION] = ROW(run_attention, attention), [OZ_OP_LATENT] = ROW(run_latent, latent), [OZ_OP_SILU_MUL] = ROW(run_silu_mul, silu_mul),
    [OZ_OP_GELU_MUL] = ROW(run_gelu_mul, gelu_mul), [OZ_OP_SCALE] = ROW(run_scale, scale), [OZ_OP_SOFTCAP] = ROW(run_softcap, softcap),
    [OZ_OP_ADD] = ROW(run_add, add), [OZ_OP_GATHER] = ROW(run_gather, gather),
    [OZ_OP_ROUTE] = ROW(run_route, route), [OZ_OP_SORT] = ROW(run_sort, sort), [OZ_OP_SPREAD] = ROW(run_spread, spread),
    [OZ_OP_GROUPED] = ROW(run_grouped, grouped_linear), [OZ_OP_COMBINE] = ROW(run_combine, combine)};

bool oz_step_can(const oz_dev *dev, const oz_step *s) {
    if (!runners[s->op].run) return false;
    void *slot; /* a function, of which only the presence counts */
    memcpy(&slot, (const char *)oz_dev_ops(dev) + runners[s->op].slot, sizeof slot);
    return slot != NULL;
}

void oz_step_run(const oz_step_call *x, const oz_step *s) { runners[s->op].run(x, s); }
