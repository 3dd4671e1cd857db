/* Lowering: a copy of the program in which runs of steps are one kernel, captured as a CUDA graph for each bucket of rows.
 *
 * A table of patterns is tried at every step, in order; what none takes is run as it is. A pattern looks at ops, buffers and widths, never at what
 * the model is called. Fused are: [add +] norm + quantize; norms of heads + rope + KV write; attention + rounding; gate and up + silu_mul +
 * rounding.
 *
 * A call's rows are padded to the next power of two (pad rows have position -1 and are skipped, or compute what nobody reads), so that few
 * graphs serve all batches; the longest context is padded likewise in chunks of attention. A graph holds addresses: it is captured anew when the
 * batch's room grew or another state is used. Above OZ_GRAPH_TOK rows the same steps run without a graph: launching no longer matters. */
#include <stdio.h>
#include <string.h>
#include "kernel/cuda/internal.h"

enum { MAX_GRAPHS = 64, CONTEXT_STEP = 256 };

typedef struct lowered_step lowered_step;
typedef struct run_args { oz_step_call call; int64_t max_len; } run_args;

typedef struct pattern {
    const char *name;
    int (*match)(const oz_program *p, int i, int end); /* how many steps from i it takes, 0: none */
    void (*run)(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n);
} pattern;

struct lowered_step { const pattern *pattern; int first, n; };

typedef struct graph { oz_steps which; int64_t n_tok, max_len; uint64_t generation; const float *kv; cudaGraphExec_t exec; } graph;

struct oz_lowered {
    oz_cuda_dev *d;
    const oz_program *p;
    lowered_step *steps;
    int n, n_layers_end;
    graph graphs[MAX_GRAPHS];
    int n_graphs;
};

/* ---- patterns ---- */

static bool is(const oz_program *p, int i, int end, oz_op op) { return i < end && p->steps[i].op == op; }
static const oz_step_buf *buf(const run_args *a, oz_bufid b) { return &a->call.p->bufs[b]; }
static float *col(const run_args *a, oz_bufid b, int64_t c) { return (float *)buf(a, b)->data + c; }
static oz_rows rows_of(const oz_step_buf *b) { return {b->form, b->data, b->width, b->scales}; }
static bool is_plain16(oz_form f) { return f == OZ_FORM_BF16 || f == OZ_FORM_F16; }

/* Is buffer b, as step `from` leaves it, read by a step behind `from` before it is written whole again? */
static bool read_later(const oz_program *p, int from, int end, oz_bufid b) {
    for (int i = from; i < end; i++) {
        const oz_step *s = &p->steps[i];
        if (s->src == b && s->op != OZ_OP_EMBED && s->op != OZ_OP_ROPE_TABLE) return true;
        if (s->dst == b && s->op != OZ_OP_ADD && s->op != OZ_OP_ROPE && s->op != OZ_OP_TAP && s->op != OZ_OP_KV_WRITE) return false;
    }
    return false;
}

static int match_norm_quantize(const oz_program *p, int i, int end) {
    const int add = is(p, i, end, OZ_OP_ADD), at = i + add;
    if (!is(p, at, end, OZ_OP_NORM)) return 0;
    const oz_step *n = &p->steps[at];
    if (n->n_heads != 1 || n->n > OZ_FUSED_MAX_DIM || n->n % 4 || n->tok_rows != 1 || n->src_col || n->dst_col) return 0;
    if (p->bufs[n->src].width % 4 || p->bufs[n->dst].width % 4 || (add && p->bufs[p->steps[i].src].width % 4)) return 0; /* 16 bytes at once */
    if (add && (p->steps[i].dst != n->src || p->steps[i].n != n->n || p->steps[i].dst_col || p->steps[i].src_col)) return 0;
    const bool quantize = is(p, at + 1, end, OZ_OP_QUANTIZE) && p->steps[at + 1].src == n->dst && p->steps[at + 1].n == n->n && !p->steps[at + 1].src_col && p->bufs[p->steps[at + 1].dst].width % 4 == 0 &&
                          !read_later(p, at + 2, end, n->dst);
    return add || quantize ? add + 1 + quantize : 0;
}

static void run_norm_quantize(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n) {
    const oz_step *add = s->op == OZ_OP_ADD ? s : NULL, *norm = add ? s + 1 : s, *last = s + n - 1;
    const bool head = norm->src == OZ_BUF_ROWS;
    oz_rows y = last->op == OZ_OP_QUANTIZE ? rows_of(buf(a, last->dst)) : rows_of(buf(a, norm->dst));
    const oz_norm_quantize f = {col(a, norm->src, 0), buf(a, norm->src)->width, add ? col(a, add->src, 0) : NULL, add ? buf(a, add->src)->width : 0, norm->vec, norm->factor, y,
                                head ? a->call.n_rows : a->call.n_tok, norm->n};
    oz_cuda_norm_quantize(d, &f);
}

/* [norm of q's heads] [norm of k's heads] rope of both, KV write; all in one buffer. */
static int match_heads(const oz_program *p, int i, int end) {
    int at = i;
    while (is(p, at, end, OZ_OP_NORM) && p->steps[at].src == p->steps[at].dst && p->steps[at].n_heads >= 1 && p->steps[at].src == p->steps[i].src) at++;
    if (at - i > 2 || !is(p, at, end, OZ_OP_ROPE) || !is(p, at + 1, end, OZ_OP_KV_WRITE)) return 0;
    const oz_step *r = &p->steps[at], *w = r + 1;
    const int64_t hd = r->n, n_kv = w->n / hd, n_q = r->n_heads - n_kv;
    if (2 * p->ropes[r->rope].n_pairs != hd || hd > OZ_FUSED_MAX_HEAD || r->src_col || w->src != r->src || w->src_col != n_q * hd || w->n % hd) return 0;
    for (int k = i; k < at; k++) {
        const oz_step *n = &p->steps[k];
        const bool q = n->src_col == 0 && n->n_heads == n_q, kk = n->src_col == n_q * hd && n->n_heads == n_kv;
        if (n->n != hd || n->src != r->src || !(q || kk)) return 0;
    }
    return at + 2 - i;
}

static void run_heads(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n) {
    const oz_step *rope = s + n - 2, *write = s + n - 1;
    const oz_program *p = a->call.p;
    oz_heads h = {col(a, rope->src, 0), buf(a, rope->src)->width, NULL, NULL, p->norm_eps, p->ropes[rope->rope].cos, p->ropes[rope->rope].sin, &a->call.kv[write->layer], rope->n_heads - write->n / rope->n, a->call.n_tok};
    for (int i = 0; i < n - 2; i++) *(s[i].src_col == 0 ? &h.q_norm : &h.k_norm) = s[i].vec;
    oz_cuda_heads(d, &h);
}

static int match_attention(const oz_program *p, int i, int end) {
    if (!is(p, i, end, OZ_OP_ATTENTION)) return 0;
    const bool round = is(p, i + 1, end, OZ_OP_QUANTIZE) && p->steps[i + 1].src == p->steps[i].dst && is_plain16(p->steps[i + 1].form) && !p->steps[i + 1].src_col &&
                       !read_later(p, i + 2, end, p->steps[i].dst);
    return 1 + round;
}

static void run_attention(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n) {
    const oz_attn_args args = {col(a, s->src, s->src_col), buf(a, s->src)->width, NULL, 0, &a->call.kv[s->layer], s->n_heads, a->call.p->attn_scale, s->window, a->call.p->attn_softcap};
    oz_cuda_attention_run(d, &args, rows_of(buf(a, n == 2 ? s[1].dst : s->dst)), 0, a->call.n_tok, a->max_len);
}

/* It has a longest sequence to reach, which a graph rounds up. */
static int match_latent(const oz_program *p, int i, int end) { return is(p, i, end, OZ_OP_LATENT); }

static void run_latent(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n) {
    const oz_latent_args args = oz_step_latent(&a->call, s);
    oz_cuda_latent_run(d, &args, a->call.n_tok, HOST_MUTATED(LATENT_LENGTH) ? d->batch.max_len / 2 : a->max_len);
}

/* Two parts of the same kind side by side, silu of one times the other [, rounded]. */
static int match_gate_up(const oz_program *p, int i, int end) {
    if (!is(p, i, end, OZ_OP_LINEAR) || !is(p, i + 1, end, OZ_OP_SILU_MUL)) return 0;
    const oz_step *l = &p->steps[i], *m = l + 1;
    if (l->n_parts != 2 || m->tok_rows != 1 || l->dst_col || l->dst != m->src || l->n != 2 * m->n || read_later(p, i + 2, end, l->dst)) return 0;
    const oz_cuda_packed *g = oz_cuda_weight(p->linears[l->part0].packed), *u = oz_cuda_weight(p->linears[l->part0 + 1].packed);
    if (g->head.rows != u->head.rows || g->kind != u->kind || g->form != u->form || g->group_size != u->group_size || g->bound[0] != u->bound[0] || g->bound[0]->run != oz_gemm_stream) return 0;
    const bool round = is(p, i + 2, end, OZ_OP_QUANTIZE) && p->steps[i + 2].src == m->dst && p->steps[i + 2].dst != l->src && is_plain16(p->steps[i + 2].form) && !read_later(p, i + 3, end, m->dst);
    return 2 + round;
}

static void run_gate_up(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n) {
    const oz_program *p = a->call.p;
    const oz_cuda_packed *g = oz_cuda_weight(p->linears[s->part0].packed);
    if (a->call.n_tok > OZ_M_STREAM && g->bound[1]->run != oz_gemm_stream) { /* another kernel multiplies */
        for (int i = 0; i < n; i++) oz_step_run(&a->call, s + i);
        return;
    }
    const oz_packed *parts[2] = {p->linears[s->part0].packed, p->linears[s->part0 + 1].packed};
    const float *bias[2] = {p->linears[s->part0].bias, p->linears[s->part0 + 1].bias};
    oz_linear_args l = {};
    l.parts = parts, l.bias = bias, l.n_parts = 2, l.x = rows_of(buf(a, s->src)), l.n_tok = a->call.n_tok;
    oz_gemm_stream_silu(d, &l, rows_of(buf(a, s[n - 1].dst)));
}

static int match_any(const oz_program *p, int i, int end) { return 1; }
static void run_step(oz_cuda_dev *d, const run_args *a, const oz_step *s, int n) { oz_step_run(&a->call, s); }

static const pattern patterns[] = {
    {"heads", match_heads, run_heads},
    {"norm_quantize", match_norm_quantize, run_norm_quantize},
    {"attention", match_attention, run_attention},
    {"latent", match_latent, run_latent},
    {"gate_up_silu", match_gate_up, run_gate_up},
    {"step", match_any, run_step},
};

static void lower_range(oz_lowered *l, int begin, int end) {
    for (int i = begin; i < end;) {
        const pattern *t = patterns;
        int n;
        while ((n = t->match(l->p, i, end)) == 0) t++;
        l->steps[l->n++] = {t, i, n};
        i += n;
    }
}

oz_status oz_cuda_lower(oz_lowered **out, oz_dev *dev, const oz_program *p, oz_err *err) {
    oz_lowered *l = (oz_lowered *)oz_alloc(sizeof *l);
    l->d = oz_cuda(dev), l->p = p;
    l->steps = (lowered_step *)oz_alloc_array((size_t)p->n, sizeof *l->steps);
    lower_range(l, 0, p->n_layers_end);
    l->n_layers_end = l->n;
    lower_range(l, p->n_layers_end, p->n);
    *out = l;
    return OZ_OK;
}

void oz_cuda_lowered_free(oz_lowered **p) {
    oz_lowered *l = *p;
    if (!l) return;
    cudaStreamSynchronize(l->d->stream);
    for (int i = 0; i < l->n_graphs; i++) cudaGraphExecDestroy(l->graphs[i].exec);
    oz_free(l->steps);
    oz_free(l);
    *p = NULL;
}

/* ---- running ---- */

static void steps_run(const oz_lowered *l, const run_args *a, int begin, int end) {
    for (int i = begin; i < end; i++) l->steps[i].pattern->run(l->d, a, l->p->steps + l->steps[i].first, l->steps[i].n);
}

static bool graph_is(const graph *g, oz_steps which, int64_t n_tok, int64_t max_len) { return g->which == which && g->n_tok == n_tok && g->max_len == max_len; }

/* The graph for these rows, captured if there is none that still holds. NULL: no graph could be made. */
static cudaGraphExec_t graph_get(oz_lowered *l, const run_args *a, oz_steps which, int64_t n_tok, int begin, int end) {
    const float *kv = a->call.kv ? a->call.kv[0].k ? a->call.kv[0].k : a->call.kv[0].scan : NULL; /* of whichever kind the first layer is */
    graph *g = l->graphs;
    while (g < l->graphs + l->n_graphs && !graph_is(g, which, n_tok, a->max_len)) g++;
    if (g == l->graphs + MAX_GRAPHS) return NULL;
    if (g < l->graphs + l->n_graphs) {
        if (g->generation == l->d->batch.generation && (g->kv == kv || HOST_MUTATED(GRAPH_STATE))) return g->exec;
        cudaGraphExecDestroy(g->exec);
        *g = l->graphs[--l->n_graphs];
        g = l->graphs + l->n_graphs;
    }
    cudaGraph_t made = NULL;
    cudaGraphExec_t exec = NULL;
    if (cudaStreamBeginCapture(l->d->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return NULL;
    steps_run(l, a, begin, end);
    if (cudaStreamEndCapture(l->d->stream, &made) != cudaSuccess || cudaGraphInstantiate(&exec, made, 0) != cudaSuccess) exec = NULL;
    if (made) cudaGraphDestroy(made);
    if (!exec) return NULL;
    *g = {which, n_tok, a->max_len, l->d->batch.generation, kv, exec};
    l->n_graphs++;
    return exec;
}

static int64_t next_bucket(int64_t n, int64_t from) {
    int64_t b = from;
    while (b < n) b *= 2;
    return b;
}

bool oz_cuda_lowered_run(oz_lowered *l, const oz_kv *kv, oz_steps which, int64_t row0, int64_t n_rows) {
    oz_cuda_dev *d = l->d;
    const bool head = which == OZ_STEPS_HEAD;
    const int64_t n = head ? n_rows : d->batch.n_tok, room = head ? l->p->head_rows : l->p->max_tok, bucket = next_bucket(n, 1);
    const int begin = head ? l->n_layers_end : 0, end = head ? l->n : l->n_layers_end;
    run_args a = {{&d->head, l->p, kv, n, row0, n}, d->batch.max_len};
    if (head) a.call.n_tok = d->batch.n_tok, a.max_len = 0;
    if (n <= OZ_GRAPH_TOK && bucket <= room && bucket <= d->batch.cap_tok && row0 == 0) {
        const int64_t n_tok = d->batch.n_tok;
        if (head) a.call.n_rows = bucket;
        else a.call.n_tok = a.call.n_rows = bucket, a.max_len = next_bucket(d->batch.max_len, CONTEXT_STEP);
        if (!head) d->batch.n_tok = bucket; /* for the operations that ask the batch */
        const cudaGraphExec_t exec = graph_get(l, &a, which, bucket, begin, end);
        d->batch.n_tok = n_tok;
        if (exec) {
            oz_cuda_note(d, cudaGraphLaunch(exec, d->stream));
            return true;
        }
        a.call.n_tok = d->batch.n_tok, a.call.n_rows = n, a.max_len = d->batch.max_len;
    }
    steps_run(l, &a, begin, end);
    return true;
}

void oz_cuda_lowered_print(const oz_lowered *l, FILE *out) {
    fprintf(out, "lowered: %d steps of %d; graphs of 1, 2, 4, ... %d rows\n", l->n, l->p->n, OZ_GRAPH_TOK);
    for (int i = 0; i < l->n; i++) {
        const lowered_step *s = &l->steps[i];
        if (l->p->steps[s->first].layer > 0) continue; /* layers are alike, or the plan above says how they differ */
        fprintf(out, "%5d  %-14s steps %d..%d\n", i, s->pattern->name, s->first, s->first + s->n - 1);
    }
}
