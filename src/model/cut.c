/* Cuts: where a run through a layer can stop and another one go on, the modules behind it having been made in between. A cut lies at the taps of what
 * linear modules read; taps with no heavy step (a product, attention, a scan) between them are one cut.
 *
 * What is handed over is what later steps read of what was written before: whole buffers of a call, and where tokens go to experts. It is taken where that is least, at some step
 * between the last heavy step and the taps; from there to the taps steps are cheap, and the second run repeats them. What scans and caches keep is not handed over: no cut lies between
 * its writing and its reading, but for the state of a convolution, which nothing reads again within a call. */
#include <assert.h>
#include <string.h>
#include "model/internal.h"

static bool is_heavy(const oz_step *s) {
    static const bool heavy[OZ_OP_COUNT] = {[OZ_OP_EMBED] = true, [OZ_OP_LINEAR] = true, [OZ_OP_GROUPED] = true, [OZ_OP_KV_WRITE] = true, [OZ_OP_MLA_WRITE] = true, [OZ_OP_ATTENTION] = true,
                                            [OZ_OP_LATENT] = true, [OZ_OP_CONV] = true, [OZ_OP_SCAN] = true, [OZ_OP_ALL_REDUCE] = true};
    return heavy[s->op];
}

/* Columns of src that a step reads, from src_col on; of those that say nothing, all. */
static int64_t read_cols(const oz_program *p, const oz_step *s) {
    switch (s->op) {
    case OZ_OP_LINEAR: case OZ_OP_GROUPED: return oz_packed_cols(p->linears[s->part0].packed);
    case OZ_OP_NORM: return s->n_heads * s->n;
    case OZ_OP_TAP: case OZ_OP_QUANTIZE: case OZ_OP_ROUND: case OZ_OP_ADD: case OZ_OP_SPREAD: case OZ_OP_COMBINE: return s->n;
    default: return p->bufs[s->src].width - s->src_col;
    }
}

static bool has_src(const oz_step *s) { return s->op != OZ_OP_EMBED && s->op != OZ_OP_ROPE_TABLE && s->op != OZ_OP_SORT; }

/* Columns of dst that it writes without having read them, from dst_col on. */
static int64_t written_cols(const oz_program *p, const oz_step *s) {
    switch (s->op) {
    case OZ_OP_LINEAR: case OZ_OP_GROUPED: case OZ_OP_QUANTIZE: case OZ_OP_ROUND: case OZ_OP_SILU_MUL: case OZ_OP_GELU_MUL: case OZ_OP_SPREAD: case OZ_OP_COMBINE: return s->n;
    case OZ_OP_NORM: return s->n_heads * s->n;
    case OZ_OP_ATTENTION: case OZ_OP_LATENT: case OZ_OP_SCAN: return p->bufs[s->dst].width;
    default: return 0;
    }
}

/* Whether steps from `at` on read of a buffer what they have not written: its first `covered` columns have been. */
static bool is_live(const oz_program *p, oz_bufid b, int at) {
    int64_t covered = 0;
    for (int i = at; i < p->n_layers_end; i++) {
        const oz_step *s = &p->steps[i];
        if (has_src(s) && s->src == b && s->src_col + read_cols(p, s) > covered) return true;
        if (s->op == OZ_OP_ADD && s->dst == b && s->dst_col + s->n > covered) return true;
        const int64_t end = s->dst == b && s->dst_col <= covered ? s->dst_col + written_cols(p, s) : 0;
        if (end > covered) covered = end;
    }
    return b == OZ_BUF_RESIDUAL; /* the layer's output */
}

static bool route_is_live(const oz_program *p, int at) {
    for (int i = at; i < p->n_layers_end; i++) {
        const oz_step *s = &p->steps[i];
        if (s->op == OZ_OP_ROUTE) return false;
        if (s->op == OZ_OP_SORT || s->op == OZ_OP_SPREAD || s->op == OZ_OP_GROUPED || s->op == OZ_OP_COMBINE || (s->op == OZ_OP_TAP && s->by_expert)) return true;
    }
    return false;
}

/* What is handed over at a step. */
typedef struct area { void *dev; size_t bytes; } area;
enum { MAX_AREAS = OZ_BUF_COUNT + 5 };

static int areas_at(area *out, const oz_model *m, int at, int64_t n_tok) {
    const oz_program *p = &m->program;
    int n = 0;
    for (int b = 0; b < OZ_BUF_COUNT; b++) {
        const oz_step_buf *buf = &p->bufs[b];
        if (!buf->data || !is_live(p, (oz_bufid)b, at)) continue;
        assert(buf->form == OZ_FORM_F32); /* what a product takes is made after its taps */
        out[n++] = (area){buf->data, (size_t)(n_tok * (buf->rows / p->max_tok) * buf->width) * sizeof(float)};
    }
    const oz_route *r = &p->route;
    const size_t pairs = (size_t)(n_tok * r->top_k) * 4;
    if (!route_is_live(p, at)) return n;
    const area of_route[] = {{r->experts, pairs}, {r->weights, pairs}, {r->pairs, pairs}, {r->rows, pairs}, {r->starts, (size_t)(r->n_experts + 1) * 4}};
    memcpy(out + n, of_route, sizeof of_route);
    return n + 5;
}

static size_t bytes_at(const oz_model *m, int at, int64_t n_tok) {
    area areas[MAX_AREAS];
    size_t n_bytes = 0;
    for (int i = areas_at(areas, m, at, n_tok) - 1; i >= 0; i--) n_bytes += areas[i].bytes;
    return n_bytes;
}

/* Steps of a cut: the first after the last heavy one before its taps, where runs go on (in between), and the first after its taps. */
typedef struct steps { int after, begin, end; size_t tap0, n_taps; } steps;

/* Cuts count from 1; false: there are fewer. */
static bool find(steps *out, const oz_model *m, int cut) {
    const oz_program *p = &m->program;
    int after = 0, n = 0;
    bool open = false;
    size_t tap = 0;
    for (int i = 0; i < p->n_layers_end; i++) {
        const oz_step *s = &p->steps[i];
        if (s->layer < 0 || is_heavy(s)) after = i + 1, open = false;
        if (s->op != OZ_OP_TAP) continue;
        if (!open && ++n > cut) break;
        if (!open) *out = (steps){.after = after, .begin = after, .tap0 = tap};
        open = true;
        tap += (size_t)oz_step_taps(s);
        out->end = i + 1, out->n_taps = tap - out->tap0;
    }
    if (n < cut) return false;
    for (int i = out->after; i < out->end && (i == out->after || p->steps[i - 1].op != OZ_OP_ROUTE); i++) /* where tokens go is chosen behind a cut: a call may say otherwise */
        if (bytes_at(m, i, 1) < bytes_at(m, out->begin, 1)) out->begin = i;
    return true;
}

int oz_model_cut_count(const oz_model *m) {
    steps s;
    int n = 0;
    while (find(&s, m, n + 1)) n++;
    return n;
}

oz_cut oz_model_cut_at(const oz_model *m, int cut) {
    steps s;
    find(&s, m, cut);
    return (oz_cut){s.tap0, s.n_taps, s.begin == 0 || m->program.steps[s.begin - 1].layer < 0};
}

size_t oz_model_live_bytes(const oz_model *m, int cut, int64_t n_tok) {
    steps s;
    find(&s, m, cut);
    return bytes_at(m, s.begin, n_tok);
}

static void hand_over(oz_model *m, int at, const oz_call *c, const char *in, char *out) {
    area areas[MAX_AREAS];
    const int n = areas_at(areas, m, at, c->n_tok);
    for (int i = 0; i < n; i++) {
        if (in) (c->on_device ? m->ops->copy : m->ops->upload)(m->dev, areas[i].dev, in, areas[i].bytes), in += areas[i].bytes;
        if (out) (c->on_device ? m->ops->copy : m->ops->download)(m->dev, out, areas[i].dev, areas[i].bytes), out += areas[i].bytes;
    }
}

void oz_cuts_run(oz_model *m, const oz_exec *x) {
    const oz_call *c = x->call;
    oz_call silent = *c;
    oz_exec again = *x;
    steps from = {0}, to = {.begin = m->program.n_layers_end, .end = m->program.n_layers_end};
    silent.tap = NULL, again.call = &silent;
    if (c->cut_begin) find(&from, m, c->cut_begin);
    if (c->cut_end) find(&to, m, c->cut_end);
    for (int i = 0; i < from.begin; i++)
        if (m->program.steps[i].op == OZ_OP_ROPE_TABLE) oz_exec_steps(x, i, i + 1);
    if (c->cut_begin) hand_over(m, from.begin, c, c->live_in, NULL);
    oz_exec_steps(&again, from.begin, from.end);
    oz_exec_steps(x, from.end, to.begin);
    if (c->live_out) hand_over(m, to.begin, c, NULL, c->live_out);
    oz_exec_steps(x, to.begin, to.end);
}
