/* The plan: (config, schemes, device) compiled once into a flat array of steps. There is no graph; buffers are few and typed.
 * Quantizing an activation is a step of its own, made once for each (tensor, form), so that q, k and v share it. Modules that
 * share an input run as one product where neighbours have the same form; a q/k/v set under different schemes simply becomes
 * more steps. The steps after n_layers_end make logits out of gathered rows; sinks (sink.c) call them chunk by chunk. */
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

static const char *const op_names[OZ_OP_COUNT] = {"embed",    "rope_table", "norm",      "quantize", "round", "linear", "rope", "rope_pairs",
                                                  "kv_write", "mla_write", "attention", "latent", "conv", "scan",  "silu_mul",  "gelu_mul", "scale",  "softcap", "add",      "tap",    "gather",
                                                  "route",    "sort",       "spread",    "grouped",  "combine",  "all_reduce"};
static const char *const buf_names[OZ_BUF_COUNT] = {"residual", "x", "q8", "f8", "rounded", "x16", "ffn16", "qkv", "attn", "out", "gate_up", "ffn", "mixer", "router", "pairs", "rows", "logits"};
static const char *const form_names[OZ_FORM_COUNT] = {"f32", "q8", "f8", "bf16", "f16"};
const char *oz_op_name(oz_op op) { return op_names[op]; }

oz_slot_ref oz_model_slot(const oz_model *m, int64_t layer, oz_slot slot) {
    return slot < OZ_SLOT_PER_LAYER ? m->top[slot] : m->layers[layer * OZ_SLOT_COUNT + slot];
}

static oz_step *emit(oz_model *m, oz_op op, int layer) {
    oz_program *p = &m->program;
    oz_grow((void **)&p->steps, &m->cap_steps, (size_t)p->n + 1, sizeof *p->steps);
    oz_step *s = &p->steps[p->n++];
    *s = (oz_step){.op = op, .layer = layer, .tok_rows = 1};
    return s;
}

/* dst = norm(src) over n_heads vectors of dim a row, both at column `col`. */
static oz_step *emit_norm(oz_model *m, int layer, oz_bufid dst, oz_bufid src, int64_t col, const float *vec, int64_t n_heads, int64_t dim) {
    oz_step *s = emit(m, OZ_OP_NORM, layer);
    s->dst = dst, s->src = src, s->dst_col = s->src_col = col, s->vec = vec, s->n_heads = n_heads, s->n = dim, s->factor = m->program.norm_eps;
    return s;
}

/* A column of a buffer. */
typedef struct place { oz_bufid buf; int64_t col; } place;
static place in(oz_bufid buf) { return (place){buf, 0}; }

static oz_bufid form_buf(oz_form form, oz_bufid plain) {
    static const oz_bufid bufs[OZ_FORM_COUNT] = {[OZ_FORM_Q8] = OZ_BUF_Q8, [OZ_FORM_F8] = OZ_BUF_F8, [OZ_FORM_BF16] = OZ_BUF_X16, [OZ_FORM_F16] = OZ_BUF_X16};
    if (bufs[form] == OZ_BUF_X16 && plain == OZ_BUF_FFN) return OZ_BUF_FFN16;
    return form == OZ_FORM_F32 ? plain : bufs[form];
}

/* The input of n linears, a step a run of neighbours in m->program.linears (of q, k and v: all three). */
static void emit_taps(oz_model *m, int layer, place src, const int *idx, int n) {
    for (int i = 0, j; i < n && (m->taps & OZ_TAP_LINEAR); i = j) {
        for (j = i + 1; j < n && idx[j] == idx[i] + (j - i);) j++;
        oz_step *s = emit(m, OZ_OP_TAP, layer);
        s->src = src.buf, s->src_col = src.col, s->n = oz_packed_cols(m->program.linears[idx[i]].packed), s->part0 = idx[i], s->n_parts = j - i, s->tap = OZ_TAP_LINEAR;
    }
}

/* Those of `slots` that are there: a fused matrix stands in the first of several. */
static int present(int *idx, const oz_model *m, int layer, const oz_slot *slots, int n) {
    int k = 0;
    for (int i = 0; i < n; i++) {
        const int at = oz_model_slot(m, layer, slots[i]).linear;
        if (at >= 0) idx[k++] = at;
    }
    return k;
}

/* Rows of src in every form but f32 that n linears take: one quantize step a form. */
static void emit_quantize(oz_model *m, int layer, place src, const int *idx, int n, int64_t tok_rows) {
    for (oz_form f = OZ_FORM_F32 + 1; f < OZ_FORM_COUNT; f++) {
        const oz_linear *user = NULL;
        for (int i = 0; i < n; i++)
            if (m->program.linears[idx[i]].form == f) user = &m->program.linears[idx[i]];
        if (!user) continue;
        oz_step *s = emit(m, OZ_OP_QUANTIZE, layer);
        s->dst = form_buf(f, src.buf), s->src = src.buf, s->src_col = src.col, s->form = f, s->n = oz_packed_cols(user->packed), s->tok_rows = tok_rows, s->whole_row = user->sums && (f == OZ_FORM_Q8 || f == OZ_FORM_F8); /* the others have no scale */
    }
}

bool oz_round_same(const oz_round *p, const oz_round *q) {
    if (!p || !q) return p == q;
    return p->bits == q->bits && p->is_float == q->is_float && p->symmetric == q->symmetric && p->group_size == q->group_size && p->powers == q->powers && !p->scales == !q->scales &&
           (!p->scales || (p->scales[0] == q->scales[0] && p->zeros[0] == q->zeros[0]));
}

static bool same_input(const oz_linear *a, const oz_linear *b) { return a->form == b->form && oz_round_same(a->round, b->round); }

/* Where a linear finds its input: rounding is a step here, just before it, since parts may differ in it. */
static place emit_input(oz_model *m, int layer, place src, const oz_linear *l, int64_t tok_rows) {
    if (!l->round) return (place){form_buf(l->form, src.buf), l->form == OZ_FORM_F32 ? src.col : 0};
    oz_step *s = emit(m, OZ_OP_ROUND, layer);
    s->dst = OZ_BUF_ROUNDED, s->src = src.buf, s->src_col = src.col, s->n = oz_packed_cols(l->packed), s->tok_rows = tok_rows, s->round = l->round;
    return in(OZ_BUF_ROUNDED);
}

/* The products of `slots` with src to dst, side by side. One linear step a run of equal forms. */
static void emit_linears(oz_model *m, int layer, place dst, place src, const oz_slot *slots, int n_slots) {
    int idx[OZ_MAX_PARTS_LINEAR] = {0};
    const int n = present(idx, m, layer, slots, n_slots);
    emit_taps(m, layer, src, idx, n);
    emit_quantize(m, layer, src, idx, n, 1);
    int64_t col = dst.col;
    for (int i = 0, j; i < n; i = j) {
        const oz_linear *first = &m->program.linears[idx[i]];
        const place from = emit_input(m, layer, src, first, 1);
        oz_step *s = emit(m, OZ_OP_LINEAR, layer);
        s->dst = dst.buf, s->src = from.buf, s->src_col = from.col, s->form = first->form, s->dst_col = col, s->part0 = idx[i];
        /* parts of one step are neighbours in m->program.linears: the loader adds a layer's modules in the table's order */
        for (j = i; j < n && same_input(first, &m->program.linears[idx[j]]) && idx[j] == idx[i] + (j - i); j++) s->n += oz_packed_rows(m->program.linears[idx[j]].packed);
        s->n_parts = j - i;
        col += s->n;
    }
    if (!m->program.linears[idx[0]].sums) return;
    oz_step *s = emit(m, OZ_OP_ALL_REDUCE, layer);
    s->dst = s->src = dst.buf, s->n = col;
}

/* What a block gives, normed where the layer has `post`, goes to the residual. */
static void emit_add(oz_model *m, int layer, oz_slot post) {
    const float *vec = oz_model_slot(m, layer, post).vec;
    if (vec) emit_norm(m, layer, OZ_BUF_OUT, OZ_BUF_OUT, 0, vec, 1, m->dims.hidden_size);
    oz_step *s = emit(m, OZ_OP_ADD, layer);
    s->dst = OZ_BUF_RESIDUAL, s->src = OZ_BUF_OUT, s->n = m->dims.hidden_size;
}

static void emit_gqa(oz_model *m, int layer, const oz_layer_kind *kind) {
    const oz_dims *d = &m->dims;
    const int64_t n_q = d->n_heads * d->head_dim, n_kv = d->n_heads_kv * d->head_dim;
    static const oz_slot qkv[] = {OZ_SLOT_Q, OZ_SLOT_K, OZ_SLOT_V}, o[] = {OZ_SLOT_O};
    emit_norm(m, layer, OZ_BUF_X, OZ_BUF_RESIDUAL, 0, oz_model_slot(m, layer, OZ_SLOT_ATTN_NORM).vec, 1, d->hidden_size);
    emit_linears(m, layer, in(OZ_BUF_QKV), in(OZ_BUF_X), qkv, 3);
    const float *qn = oz_model_slot(m, layer, OZ_SLOT_Q_NORM).vec, *kn = oz_model_slot(m, layer, OZ_SLOT_K_NORM).vec;
    if (qn) emit_norm(m, layer, OZ_BUF_QKV, OZ_BUF_QKV, 0, qn, d->n_heads, d->head_dim);
    if (kn) emit_norm(m, layer, OZ_BUF_QKV, OZ_BUF_QKV, n_q, kn, d->n_heads_kv, d->head_dim);
    oz_step *s;
    if (kind->rope >= 0) {
        s = emit(m, OZ_OP_ROPE, layer); /* q and k lie side by side: one step */
        s->dst = s->src = OZ_BUF_QKV, s->n_heads = d->n_heads + d->n_heads_kv, s->n = d->head_dim, s->rope = kind->rope;
    }
    if (m->taps & OZ_TAP_KV) {
        s = emit(m, OZ_OP_TAP, layer);
        s->src = OZ_BUF_QKV, s->src_col = n_q, s->n = 2 * n_kv, s->part0 = oz_model_slot(m, layer, OZ_SLOT_Q).linear, s->n_parts = 1, s->tap = OZ_TAP_KV;
    }
    for (int i = 0; m->kv_round && i < 2; i++) { /* keys, then values, a scale a head */
        s = emit(m, OZ_OP_ROUND, layer);
        s->dst = s->src = OZ_BUF_QKV, s->dst_col = s->src_col = n_q + i * n_kv, s->n = n_kv, s->round = &m->kv_round[2 * layer + i];
    }
    s = emit(m, OZ_OP_KV_WRITE, layer);
    s->src = OZ_BUF_QKV, s->src_col = n_q, s->n = n_kv;
    s = emit(m, OZ_OP_ATTENTION, layer);
    s->dst = OZ_BUF_ATTN, s->src = OZ_BUF_QKV, s->n_heads = d->n_heads, s->n = d->head_dim, s->window = kind->window;
    emit_linears(m, layer, in(OZ_BUF_OUT), in(OZ_BUF_ATTN), o, 1);
    emit_add(m, layer, OZ_SLOT_ATTN_POST_NORM);
}

int64_t oz_mixer_width(const oz_dims *d) {
    const int64_t mla = d->kv_rank ? d->q_rank + oz_dim_get(d, OZ_DIM_KV_A) + oz_dim_get(d, OZ_DIM_KV_B) : 0, mamba = d->ssm ? 4 * d->ssm + oz_dim_get(d, OZ_DIM_SSM_X) : 0;
    return mla > mamba ? mla : mamba;
}

static void emit_rope_pairs(oz_model *m, int layer, place at, int64_t n_heads, int64_t n) {
    oz_step *s = emit(m, OZ_OP_ROPE_PAIRS, layer);
    s->dst = s->src = at.buf, s->dst_col = s->src_col = at.col, s->n_heads = n_heads, s->n = n;
}

/* Latent attention: keys and values of all heads are made from a narrow latent, normed. The end of each head rotates; that of all keys is one, which the
 * latent's product makes. Kept is the latent and that end, over which attention runs in one of two forms (step.h); or, where kv_b is quantized, the keys and
 * values, as those of other attention are. The norms' epsilon is no config's. In the mixer's buffer: the latent of queries, the latent of keys and
 * values, what rotates, what is expanded. */
static void emit_mla(oz_model *m, int layer, const oz_layer_kind *kind) {
    static const float latent_eps = 1e-6f;
    static const oz_slot q_a[] = {OZ_SLOT_Q_A}, q[] = {OZ_SLOT_Q}, kv_a[] = {OZ_SLOT_KV_A}, kv_b[] = {OZ_SLOT_KV_B}, o[] = {OZ_SLOT_O};
    const oz_dims *d = &m->dims;
    const place latent = {OZ_BUF_MIXER, d->q_rank}, turning = {OZ_BUF_MIXER, d->q_rank + d->kv_rank}, heads = {OZ_BUF_MIXER, turning.col + d->rope_dim};
    emit_norm(m, layer, OZ_BUF_X, OZ_BUF_RESIDUAL, 0, oz_model_slot(m, layer, OZ_SLOT_ATTN_NORM).vec, 1, d->hidden_size);
    if (d->q_rank) {
        emit_linears(m, layer, in(OZ_BUF_MIXER), in(OZ_BUF_X), q_a, 1);
        emit_norm(m, layer, OZ_BUF_MIXER, OZ_BUF_MIXER, 0, oz_model_slot(m, layer, OZ_SLOT_Q_A_NORM).vec, 1, d->q_rank)->factor = latent_eps;
    }
    emit_linears(m, layer, latent, in(OZ_BUF_X), kv_a, 1);
    emit_norm(m, layer, OZ_BUF_MIXER, OZ_BUF_MIXER, latent.col, oz_model_slot(m, layer, OZ_SLOT_KV_A_NORM).vec, 1, d->kv_rank)->factor = latent_eps;
    emit_linears(m, layer, in(OZ_BUF_QKV), in(d->q_rank ? OZ_BUF_MIXER : OZ_BUF_X), q, 1);
    const oz_latent *kept = oz_model_latent(m, layer);
    if (kept) emit_taps(m, layer, latent, &(int){oz_model_slot(m, layer, OZ_SLOT_KV_B).linear}, 1);
    else emit_linears(m, layer, heads, latent, kv_b, 1);
    emit_rope_pairs(m, layer, (place){OZ_BUF_QKV, d->head_dim - d->rope_dim}, d->n_heads, d->head_dim);
    emit_rope_pairs(m, layer, turning, 1, d->rope_dim);
    oz_step *s = emit(m, kept ? OZ_OP_KV_WRITE : OZ_OP_MLA_WRITE, layer);
    if (kept) s->src = latent.buf, s->src_col = latent.col, s->n = oz_dim_get(d, OZ_DIM_KV_A);
    else s->src = heads.buf, s->src_col = heads.col, s->n = oz_dim_get(d, OZ_DIM_KV_B), s->rope_col = turning.col, s->n_rope = d->rope_dim;
    s = emit(m, kept ? OZ_OP_LATENT : OZ_OP_ATTENTION, layer);
    s->dst = OZ_BUF_ATTN, s->src = OZ_BUF_QKV, s->n_heads = d->n_heads, s->n = d->head_dim, s->window = kind->window, s->n_rope = d->rope_dim, s->latent = kept;
    emit_linears(m, layer, in(OZ_BUF_OUT), in(OZ_BUF_ATTN), o, 1);
    emit_add(m, layer, OZ_SLOT_ATTN_POST_NORM);
}

/* Mamba: a convolution and a selective scan over time, whose state is a slot of the sequence. In the mixer's buffer: x, the gate, x convolved, dt, and
 * what dt, b and c come from. */
static void emit_mamba(oz_model *m, int layer, const oz_layer_kind *kind) {
    (void)kind;
    static const oz_slot ins[] = {OZ_SLOT_SSM_IN}, xs[] = {OZ_SLOT_SSM_X}, dts[] = {OZ_SLOT_SSM_DT}, outs[] = {OZ_SLOT_SSM_OUT};
    const oz_dims *d = &m->dims;
    const place x = {OZ_BUF_MIXER, 2 * d->ssm}, dt = {OZ_BUF_MIXER, 3 * d->ssm}, dbc = {OZ_BUF_MIXER, 4 * d->ssm};
    const struct { oz_slot slot; int64_t col, n; } norms[] = {{OZ_SLOT_SSM_DT_NORM, dbc.col, d->ssm_dt}, {OZ_SLOT_SSM_B_NORM, dbc.col + d->ssm_dt, d->ssm_state},
                                                              {OZ_SLOT_SSM_C_NORM, dbc.col + d->ssm_dt + d->ssm_state, d->ssm_state}};
    emit_norm(m, layer, OZ_BUF_X, OZ_BUF_RESIDUAL, 0, oz_model_slot(m, layer, OZ_SLOT_ATTN_NORM).vec, 1, d->hidden_size);
    emit_linears(m, layer, in(OZ_BUF_MIXER), in(OZ_BUF_X), ins, 1);
    oz_step *s = emit(m, OZ_OP_CONV, layer);
    s->dst = s->src = OZ_BUF_MIXER, s->dst_col = x.col, s->n = d->ssm, s->taps = d->ssm_conv;
    s->vec = oz_model_slot(m, layer, OZ_SLOT_SSM_CONV).vec, s->vec2 = oz_model_slot(m, layer, OZ_SLOT_SSM_CONV).bias;
    emit_linears(m, layer, dbc, x, xs, 1);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        const float *vec = oz_model_slot(m, layer, norms[i].slot).vec;
        if (vec) emit_norm(m, layer, OZ_BUF_MIXER, OZ_BUF_MIXER, norms[i].col, vec, 1, norms[i].n);
    }
    emit_linears(m, layer, dt, dbc, dts, 1);
    s = emit(m, OZ_OP_SCAN, layer);
    s->dst = OZ_BUF_ATTN, s->src = OZ_BUF_MIXER, s->src_col = x.col, s->dt_col = dt.col, s->bc_col = norms[1].col, s->gate_col = d->ssm, s->n = d->ssm, s->n_state = d->ssm_state;
    s->vec = oz_model_slot(m, layer, OZ_SLOT_SSM_A).vec, s->vec2 = oz_model_slot(m, layer, OZ_SLOT_SSM_D).vec;
    emit_linears(m, layer, in(OZ_BUF_OUT), in(OZ_BUF_ATTN), outs, 1);
    emit_add(m, layer, OZ_SLOT_ATTN_POST_NORM);
}

static void emit_glu(oz_model *m, int layer, int64_t n, int64_t tok_rows) {
    static const oz_op ops[] = {[OZ_GLU_SILU] = OZ_OP_SILU_MUL, [OZ_GLU_GELU_TANH] = OZ_OP_GELU_MUL};
    oz_step *s = emit(m, ops[m->dims.glu], layer);
    s->dst = OZ_BUF_FFN, s->src = OZ_BUF_GATE_UP, s->n = n, s->tok_rows = tok_rows;
}

static void emit_gated_ffn(oz_model *m, int layer, const oz_layer_kind *kind) {
    (void)kind;
    const oz_dims *d = &m->dims;
    static const oz_slot gate_up[] = {OZ_SLOT_GATE, OZ_SLOT_UP}, down[] = {OZ_SLOT_DOWN};
    emit_norm(m, layer, OZ_BUF_X, OZ_BUF_RESIDUAL, 0, oz_model_slot(m, layer, OZ_SLOT_FFN_NORM).vec, 1, d->hidden_size);
    emit_linears(m, layer, in(OZ_BUF_GATE_UP), in(OZ_BUF_X), gate_up, 2);
    emit_glu(m, layer, d->intermediate_size, 1);
    emit_linears(m, layer, in(OZ_BUF_OUT), in(OZ_BUF_FFN), down, 1);
    emit_add(m, layer, OZ_SLOT_FFN_POST_NORM);
}

/* As emit_linears, each slot a matrix an expert and each row with its expert's: one product a slot. */
static void emit_grouped(oz_model *m, int layer, oz_bufid dst, oz_bufid src, const oz_slot *slots, int n) {
    const oz_dims *d = &m->dims;
    int idx[OZ_MAX_PARTS_LINEAR] = {0};
    for (int i = 0; i < n && (m->taps & OZ_TAP_LINEAR); i++) { /* experts of two slots are no neighbours: each has its tap */
        oz_step *s = emit(m, OZ_OP_TAP, layer);
        s->part0 = oz_model_slot(m, layer, slots[i]).linear, s->n_parts = (int)d->n_experts, s->tap = OZ_TAP_LINEAR, s->by_expert = true, s->tok_rows = d->top_k;
        s->src = src, s->n = oz_packed_cols(m->program.linears[s->part0].packed);
    }
    emit_quantize(m, layer, in(src), idx, present(idx, m, layer, slots, n), d->top_k);
    int64_t col = 0;
    for (int i = 0; i < n; i++) {
        const int first = oz_model_slot(m, layer, slots[i]).linear;
        const oz_linear *l = &m->program.linears[first];
        const place from = emit_input(m, layer, in(src), l, d->top_k);
        oz_step *s = emit(m, OZ_OP_GROUPED, layer);
        s->part0 = first, s->n_parts = (int)d->n_experts, s->form = l->form, s->tok_rows = d->top_k;
        s->dst = dst, s->dst_col = col, s->src = from.buf, s->n = oz_packed_rows(l->packed);
        col += s->n;
    }
}

/* The feed-forward of every token beside its experts': from X into X, which nothing else reads any more. */
static void emit_shared(oz_model *m, int layer) {
    static const oz_slot gate_up[] = {OZ_SLOT_SHARED_GATE, OZ_SLOT_SHARED_UP}, down[] = {OZ_SLOT_SHARED_DOWN};
    emit_linears(m, layer, in(OZ_BUF_GATE_UP), in(OZ_BUF_X), gate_up, 2);
    emit_glu(m, layer, m->dims.shared_ffn, 1);
    emit_linears(m, layer, in(OZ_BUF_X), in(OZ_BUF_FFN), down, 1);
}

/* A token goes to top_k experts: its row is copied once for each, sorted by expert, and comes back as their weighted sum. */
static void emit_moe(oz_model *m, int layer, const oz_layer_kind *kind) {
    (void)kind;
    const oz_dims *d = &m->dims;
    static const oz_slot router[] = {OZ_SLOT_ROUTER}, gate_up[] = {OZ_SLOT_EXPERT_GATE, OZ_SLOT_EXPERT_UP}, down[] = {OZ_SLOT_EXPERT_DOWN};
    emit_norm(m, layer, OZ_BUF_X, OZ_BUF_RESIDUAL, 0, oz_model_slot(m, layer, OZ_SLOT_FFN_NORM).vec, 1, d->hidden_size);
    emit_linears(m, layer, in(OZ_BUF_ROUTER), in(OZ_BUF_X), router, 1);
    oz_step *s = emit(m, OZ_OP_ROUTE, layer);
    s->src = OZ_BUF_ROUTER, s->n = d->n_experts, s->vec = oz_model_slot(m, layer, OZ_SLOT_ROUTER_BIAS).vec;
    if (m->taps & OZ_TAP_ROUTE) {
        s = emit(m, OZ_OP_TAP, layer);
        s->src = OZ_BUF_ROUTER, s->n = d->top_k, s->tap = OZ_TAP_ROUTE;
    }
    emit(m, OZ_OP_SORT, layer);
    s = emit(m, OZ_OP_SPREAD, layer);
    s->dst = OZ_BUF_PAIRS, s->src = OZ_BUF_X, s->n = d->hidden_size, s->tok_rows = d->top_k;
    emit_grouped(m, layer, OZ_BUF_GATE_UP, OZ_BUF_PAIRS, gate_up, 2);
    emit_glu(m, layer, d->expert_ffn, d->top_k);
    emit_grouped(m, layer, OZ_BUF_PAIRS, OZ_BUF_FFN, down, 1);
    s = emit(m, OZ_OP_COMBINE, layer);
    s->dst = OZ_BUF_OUT, s->src = OZ_BUF_PAIRS, s->n = d->hidden_size;
    if (d->shared_ffn) { /* after the experts: what waits at their cuts is X, not a row of it for each of a token's experts */
        emit_shared(m, layer);
        s = emit(m, OZ_OP_ADD, layer);
        s->dst = OZ_BUF_OUT, s->src = OZ_BUF_X, s->n = d->hidden_size;
    }
    emit_add(m, layer, OZ_SLOT_FFN_POST_NORM);
}

static void emit_inplace(oz_model *m, oz_op op, oz_bufid buf, int64_t n, double factor) {
    oz_step *s = emit(m, op, -1);
    s->dst = s->src = buf, s->n = n, s->factor = (float)factor;
}

/* One row a mixer and a feed-forward. */
static void (*const mixers[])(oz_model *, int, const oz_layer_kind *) = {[OZ_MIXER_GQA] = emit_gqa, [OZ_MIXER_MLA] = emit_mla, [OZ_MIXER_MAMBA] = emit_mamba};
static void (*const ffns[])(oz_model *, int, const oz_layer_kind *) = {[OZ_FFN_GATED] = emit_gated_ffn, [OZ_FFN_MOE] = emit_moe};

oz_status oz_plan_compile(oz_model *m, oz_err *err) {
    const oz_dims *d = &m->dims;
    oz_step *s;
    if (m->layer_begin == 0) {
        s = emit(m, OZ_OP_EMBED, -1);
        s->dst = OZ_BUF_RESIDUAL, s->n = d->hidden_size;
        s->part0 = m->top[OZ_SLOT_EMBED].linear;
        if (d->embed_scale > 0) emit_inplace(m, OZ_OP_SCALE, OZ_BUF_RESIDUAL, d->hidden_size, d->embed_scale);
    }
    for (int i = 0; i < d->n_ropes; i++) emit(m, OZ_OP_ROPE_TABLE, -1)->rope = i;
    for (int i = (int)m->layer_begin; i < m->layer_end; i++) {
        oz_layer_kind k = m->arch->layer(d, i);
        mixers[k.mixer](m, i, &k);
        ffns[k.ffn](m, i, &k);
        if (m->taps & OZ_TAP_LAYER) {
            s = emit(m, OZ_OP_TAP, i);
            s->src = OZ_BUF_RESIDUAL, s->n = d->hidden_size, s->tap = OZ_TAP_LAYER;
        }
    }
    m->program.n_layers_end = m->program.n;
    if (m->headless) return OZ_OK;
    static const oz_slot head[] = {OZ_SLOT_HEAD};
    s = emit(m, OZ_OP_GATHER, -1);
    s->dst = OZ_BUF_ROWS, s->src = OZ_BUF_RESIDUAL, s->n = d->hidden_size;
    emit_norm(m, -1, OZ_BUF_ROWS, OZ_BUF_ROWS, 0, m->top[OZ_SLOT_FINAL_NORM].vec, 1, d->hidden_size);
    emit_linears(m, -1, in(OZ_BUF_LOGITS), in(OZ_BUF_ROWS), head, 1);
    if (d->final_softcap > 0) emit_inplace(m, OZ_OP_SOFTCAP, OZ_BUF_LOGITS, d->vocab_size, d->final_softcap);
    OZ_NEED(m->program.n > m->program.n_layers_end, err, OZ_E_FORMAT, "empty plan");
    return OZ_OK;
}

int oz_step_taps(const oz_step *s) { return s->op != OZ_OP_TAP ? 0 : s->by_expert ? s->n_parts : 1; }

oz_tap oz_step_tap(const oz_program *p, const oz_step *s, int i) {
    oz_tap t = {.kind = s->tap, .layer = s->layer, .n_modules = s->by_expert ? 1 : s->n_parts, .width = s->n};
    for (int k = 0; k < t.n_modules; k++) t.modules[k] = p->linears[s->part0 + i + k].module;
    return t;
}

size_t oz_model_tap_count(const oz_model *m) {
    size_t n = 0;
    for (int i = 0; i < m->program.n; i++) n += (size_t)oz_step_taps(&m->program.steps[i]);
    return n;
}

oz_tap oz_model_tap_at(const oz_model *m, size_t i) {
    const oz_step *s = m->program.steps;
    for (; i >= (size_t)oz_step_taps(s); s++) i -= (size_t)oz_step_taps(s);
    return oz_step_tap(&m->program, s, (int)i);
}

static void step_print(const oz_model *m, const oz_step *s, FILE *out) {
    char where[16] = "-";
    if (s->layer >= 0) snprintf(where, sizeof where, "%d", s->layer);
    fprintf(out, "%5s  %-11s", where, op_names[s->op]);
    switch (s->op) {
    case OZ_OP_EMBED: fprintf(out, "%s <- %s", buf_names[s->dst], m->program.linears[s->part0].module); break;
    case OZ_OP_ROPE_TABLE: fprintf(out, "%d: cos, sin [tokens, %lld], base %g", s->rope, (long long)m->program.ropes[s->rope].n_pairs, m->dims.ropes[s->rope].theta); break;
    case OZ_OP_LINEAR:
        fprintf(out, "%s[%lld:+%lld] <- %s (%s)", buf_names[s->dst], (long long)s->dst_col, (long long)s->n, buf_names[s->src], form_names[s->form]);
        for (int i = 0; i < s->n_parts; i++)
            fprintf(out, "%s %s [%s]", i ? "," : " x", m->program.linears[s->part0 + i].module, oz_packed_kernel(m->program.linears[s->part0 + i].packed));
        break;
    case OZ_OP_QUANTIZE: fprintf(out, "%s <- %s [%lld] to %s", buf_names[s->dst], buf_names[s->src], (long long)s->n, form_names[s->form]); break;
    case OZ_OP_ATTENTION:
        fprintf(out, "%s <- %s, paged KV, %lld heads of %lld", buf_names[s->dst], buf_names[s->src], (long long)s->n_heads, (long long)s->n);
        if (s->window) fprintf(out, ", window %lld", (long long)s->window);
        if (m->program.attn_softcap > 0) fprintf(out, ", scores capped at %g", (double)m->program.attn_softcap);
        break;
    case OZ_OP_ROUND:
        fprintf(out, "%s <- %s[%lld:+%lld], %s%s%d%s", buf_names[s->dst], buf_names[s->src], (long long)s->src_col, (long long)s->n, s->round->scales ? "static " : "", s->round->is_float ? "float" : "int",
                s->round->bits, s->round->symmetric ? "" : " asymmetric");
        if (s->round->group_size) fprintf(out, ", groups of %lld", (long long)s->round->group_size);
        break;
    case OZ_OP_KV_WRITE: fprintf(out, "KV <- %s[%lld:+%lld]", buf_names[s->src], (long long)s->src_col, (long long)(oz_model_latent(m, s->layer) ? s->n : 2 * s->n)); break;
    case OZ_OP_LATENT:
        fprintf(out, "%s <- %s, paged latents of %lld + %lld, %lld heads of %lld, absorbed or expanded by cost", buf_names[s->dst], buf_names[s->src], (long long)m->dims.kv_rank, (long long)s->n_rope,
                (long long)s->n_heads, (long long)s->n);
        break;
    case OZ_OP_MLA_WRITE:
        fprintf(out, "KV <- %s[%lld:+%lld], each key ending in %s[%lld:+%lld]", buf_names[s->src], (long long)s->src_col, (long long)s->n, buf_names[s->src], (long long)s->rope_col, (long long)s->n_rope);
        break;
    case OZ_OP_TAP: fprintf(out, "%s [%lld]", buf_names[s->src], (long long)s->n); break;
    case OZ_OP_ROUTE:
        fprintf(out, "experts, weights [tokens, %lld] <- %s", (long long)m->dims.top_k, buf_names[s->src]);
        if (m->dims.n_groups) fprintf(out, ", of %lld of %lld groups", (long long)m->dims.top_groups, (long long)m->dims.n_groups);
        if (m->dims.route_sigmoid) fprintf(out, ", sigmoids%s", s->vec ? ", biased to choose" : "");
        if (!m->dims.route_raw) fprintf(out, ", renormalised");
        if (m->dims.route_scale > 0) fprintf(out, ", times %g", m->dims.route_scale);
        break;
    case OZ_OP_SORT: fprintf(out, "rows of %lld experts <- experts", (long long)m->dims.n_experts); break;
    case OZ_OP_GROUPED:
        fprintf(out, "%s[%lld:+%lld] <- %s (%s), rows by expert, x %s and %d more [%s]", buf_names[s->dst], (long long)s->dst_col, (long long)s->n, buf_names[s->src],
                form_names[s->form], m->program.linears[s->part0].module, s->n_parts - 1, oz_packed_kernel(m->program.linears[s->part0].packed));
        break;
    case OZ_OP_SPREAD: fprintf(out, "%s <- %s [%lld], a row for each expert of a token", buf_names[s->dst], buf_names[s->src], (long long)s->n); break;
    case OZ_OP_COMBINE: fprintf(out, "%s <- %s [%lld], weighted sum over a token's experts", buf_names[s->dst], buf_names[s->src], (long long)s->n); break;
    case OZ_OP_SCALE: fprintf(out, "%s [%lld] times %g", buf_names[s->dst], (long long)s->n, (double)s->factor); break;
    case OZ_OP_SOFTCAP: fprintf(out, "%s [%lld] capped at %g", buf_names[s->dst], (long long)s->n, (double)s->factor); break;
    case OZ_OP_NORM: case OZ_OP_ROPE: case OZ_OP_ROPE_PAIRS: case OZ_OP_CONV: case OZ_OP_SCAN: case OZ_OP_SILU_MUL: case OZ_OP_GELU_MUL: case OZ_OP_ADD: case OZ_OP_GATHER: case OZ_OP_ALL_REDUCE: case OZ_OP_COUNT:
        fprintf(out, "%s[%lld] %s %s", buf_names[s->dst], (long long)s->dst_col, s->op == OZ_OP_ADD ? "+=" : "<-", buf_names[s->src]);
        if (s->n_heads > 1) fprintf(out, ", %lld heads of %lld", (long long)s->n_heads, (long long)s->n);
        else fprintf(out, " [%lld]", (long long)s->n);
        if (s->op == OZ_OP_ROPE && m->dims.n_ropes > 1) fprintf(out, ", by rope %d", s->rope);
        break;
    }
    fputc('\n', out);
}

void oz_model_plan_print(const oz_model *m, FILE *out) {
    fprintf(out, "layer  op         what\n");
    for (int i = 0; i < m->program.n; i++) {
        if (i == m->program.n_layers_end) fprintf(out, "-- for each chunk of at most %lld rows that the sink asks for\n", (long long)m->program.head_rows);
        step_print(m, &m->program.steps[i], out);
    }
    if (m->lowered) m->ops->lowered_print(m->lowered, out);
}
