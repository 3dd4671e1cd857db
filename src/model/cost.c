/* What each step of the plan must read and do, for who measures it. Bytes are those of packed weights and of the cache: activations stay in the
 * processor's own caches. Steps that only turn rows into rows count as nothing. */
#include <math.h>
#include <string.h>
#include "model/internal.h"

/* Rows that go through the layers, and calls that read their weights. */
static double rows_of(const oz_pass *p) { return (double)p->n_tok * (double)p->batch; }
static double calls_of(const oz_pass *p) { return (double)((p->n_tok + p->step - 1) / p->step); }

static void cost_linear(oz_step_info *out, const oz_model *m, const oz_step *s, const oz_pass *p) {
    const double calls = calls_of(p), head_calls = calls < (double)p->n_rows ? calls : (double)p->n_rows;
    const bool head = s->dst == OZ_BUF_LOGITS;
    for (int i = 0; i < s->n_parts; i++) {
        const oz_packed *w = m->program.linears[s->part0 + i].packed;
        out->bytes += (double)oz_packed_bytes(w) * (head ? head_calls : calls);
        out->flop += 2.0 * (double)oz_packed_rows(w) * (double)oz_packed_cols(w) * (head ? (double)p->n_rows : rows_of(p));
    }
}

/* Experts that a call's rows meet, if each is as likely: n (1 - (1 - k/n)^rows). */
static void cost_grouped(oz_step_info *out, const oz_model *m, const oz_step *s, const oz_pass *p) {
    const oz_packed *w = m->program.linears[s->part0].packed;
    const double n = s->n_parts, k = (double)s->tok_rows, calls = calls_of(p), rows = rows_of(p) / calls;
    out->bytes = (double)oz_packed_bytes(w) * n * (1 - pow(1 - k / n, rows)) * calls;
    out->flop = 2.0 * (double)oz_packed_rows(w) * (double)oz_packed_cols(w) * k * rows_of(p);
}

/* Each query meets the keys and values before it, inside its window; each call reads those of a sequence once. */
static void cost_attention(oz_step_info *out, const oz_model *m, const oz_step *s, const oz_pass *p) {
    const oz_dims *d = &m->dims;
    const double window = s->window ? (double)s->window : INFINITY, width = (double)(d->head_dim + d->v_dim);
    double pairs = 0, reads = 0;
    for (int64_t i = 0; i < p->n_tok; i++) pairs += fmin((double)(i + 1), window);
    for (int64_t at = 0; at < p->n_tok; at += p->step) {
        const int64_t end = at + p->step < p->n_tok ? at + p->step : p->n_tok;
        reads += fmin((double)end, window + (double)(end - at - 1));
    }
    out->bytes = reads * (double)p->batch * (double)d->n_heads_kv * width * sizeof(float);
    out->flop = 2 * pairs * (double)p->batch * (double)s->n_heads * width;
}

/* Each call in the form that it takes, with kv_b as that form multiplies with it; latents are read once. */
static void cost_latent(oz_step_info *out, const oz_model *m, const oz_step *s, const oz_pass *p) {
    const oz_dims *d = &m->dims;
    oz_kv kv;
    oz_model_kv(&kv, m, s->layer);
    const oz_latent_args a = {.kv = &kv, .n_heads = s->n_heads, .head_dim = s->n, .n_rope = s->n_rope, .v_dim = d->v_dim, .window = s->window, .room = &m->program.latent};
    for (int64_t at = 0; at < p->n_tok; at += p->step) {
        const int64_t n = at + p->step < p->n_tok ? p->step : p->n_tok - at;
        const bool expanded = oz_latent_expands(&a, &(oz_seg){.n_tok = n, .pos0 = at});
        const double product = (double)(kv.v_dim * (s->n - s->n_rope + d->v_dim)), pairs = (double)n * (double)at + (double)n * (double)(n + 1) / 2;
        out->bytes += (double)oz_packed_bytes(s->latent->whole) + (double)(at + n) * (double)p->batch * (double)kv.head_dim * sizeof(float);
        out->flop += 2 * (double)p->batch * (double)s->n_heads * (expanded ? (double)(at + n) * product + pairs * (double)(s->n + d->v_dim) : (double)n * product + pairs * (double)(kv.head_dim + kv.v_dim));
    }
}

static void (*const costs[OZ_OP_COUNT])(oz_step_info *, const oz_model *, const oz_step *, const oz_pass *) = {
    [OZ_OP_LINEAR] = cost_linear, [OZ_OP_GROUPED] = cost_grouped, [OZ_OP_ATTENTION] = cost_attention, [OZ_OP_LATENT] = cost_latent};

size_t oz_model_step_count(const oz_model *m) { return (size_t)m->program.n; }

oz_step_info oz_model_step_at(const oz_model *m, size_t i, const oz_pass *p) {
    const oz_step *s = &m->program.steps[i];
    oz_step_info out = {.op = oz_op_name(s->op), .kernel = "", .form = OZ_FORM_F32};
    if (costs[s->op]) costs[s->op](&out, m, s, p);
    if (s->op != OZ_OP_LINEAR && s->op != OZ_OP_GROUPED) return out;
    out.form = s->form;
    out.kernel = oz_packed_kernel(m->program.linears[s->part0].packed);
    size_t n = 0;
    for (int k = 0; k < (s->op == OZ_OP_LINEAR ? s->n_parts : 1) && n < sizeof out.modules; k++) {
        const char *name = m->program.linears[s->part0 + k].module, *dot = strrchr(name, '.');
        n += (size_t)snprintf(out.modules + n, sizeof out.modules - n, "%s%s", k ? " " : "", dot ? dot + 1 : name);
    }
    return out;
}
