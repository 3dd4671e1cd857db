/* The plain executor: the forward pass, once. It walks the plan and has the device run each step, but for what needs the host: taps, and what ranks
 * do together. It allocates nothing. */
#include <string.h>
#include "base/clock.h"
#include "model/internal.h"

static float *col(const oz_exec *x, oz_bufid b, int64_t c) { return (float *)x->step.p->bufs[b].data + c; }

static void run_tap(const oz_exec *x, const oz_step *s) {
    const oz_call *c = x->call;
    if (!c->tap) return;
    const oz_ops *ops = oz_dev_ops(x->step.dev);
    const oz_route *r = &x->step.p->route;
    if (s->tap == OZ_TAP_ROUTE) {
        oz_tap t = oz_step_tap(x->step.p, s, 0);
        ops->download(x->step.dev, x->tap_ints, r->experts, (size_t)(c->n_tok * r->top_k) * sizeof(int32_t));
        t.experts = x->tap_ints, t.n_tok = c->n_tok, t.model = x->model;
        c->tap(c->tap_arg, &t);
        return;
    }
    const int64_t n_rows = c->n_tok * s->tok_rows, ld = x->step.p->bufs[s->src].width;
    if (!c->on_device) {
        ops->download(x->step.dev, x->tap_rows, col(x, s->src, 0), (size_t)(n_rows * ld) * sizeof(float));
        for (int64_t i = 0; i < n_rows && s->n < ld; i++) memmove(x->tap_rows + i * s->n, x->tap_rows + i * ld + s->src_col, (size_t)s->n * sizeof(float));
    }
    if (s->by_expert) ops->download(x->step.dev, x->tap_ints, r->starts, (size_t)(r->n_experts + 1) * sizeof(int32_t));
    for (int i = 0; i < oz_step_taps(s); i++) {
        oz_tap t = oz_step_tap(x->step.p, s, i);
        const int64_t row0 = s->by_expert ? x->tap_ints[i] : 0;
        t.ld = c->on_device ? ld : s->n;
        t.rows = c->on_device ? col(x, s->src, s->src_col) + row0 * ld : x->tap_rows + row0 * t.ld;
        t.n_tok = s->by_expert ? x->tap_ints[i + 1] - x->tap_ints[i] : c->n_tok;
        t.model = x->model;
        c->tap(c->tap_arg, &t);
    }
}

static void run_all_reduce(const oz_exec *x, const oz_step *s) { oz_comm_sum(x->comm, col(x, s->dst, 0), x->call->n_tok * x->step.p->bufs[s->dst].width); }

/* By the largest value of a row of which each rank holds a part. */
static void run_quantize_whole(const oz_exec *x, const oz_step *s) {
    const oz_program *p = x->step.p;
    const oz_step_buf *d = &p->bufs[s->dst];
    const oz_ops *ops = oz_dev_ops(x->step.dev);
    const oz_rows y = {d->form, d->data, d->width, d->scales};
    const float *in = col(x, s->src, s->src_col);
    const int64_t n = x->call->n_tok * s->tok_rows, ld = p->bufs[s->src].width;
    ops->row_amax(x->step.dev, p->row_amax, in, ld, n, s->n);
    oz_comm_max(x->comm, p->row_amax, n);
    ops->quantize_by(x->step.dev, &y, p->row_amax, in, ld, n, s->n);
}

/* A device with the operations for ranks has host memory. */
static bool runs_ranks(const oz_dev *dev) { return oz_dev_ops(dev)->row_amax && oz_dev_ops(dev)->quantize_by; }

oz_status oz_exec_check(const oz_dev *dev, const oz_program *p, oz_err *err) {
    for (int i = 0; i < p->n; i++) {
        const oz_step *s = &p->steps[i];
        const bool can = s->op == OZ_OP_TAP || (s->op == OZ_OP_ALL_REDUCE || s->whole_row ? runs_ranks(dev) : oz_step_can(dev, s));
        OZ_NEED(can, err, OZ_E_UNSUPPORTED, "this device (%s) has no operation \"%s\" (step %d, layer %d)", oz_dev_describe(dev), oz_op_name(s->op), i, s->layer);
    }
    return OZ_OK;
}

static void run_step(const oz_exec *x, const oz_step *s) {
    if (s->op == OZ_OP_TAP) run_tap(x, s);
    else if (s->op == OZ_OP_ALL_REDUCE) run_all_reduce(x, s);
    else if (s->whole_row) run_quantize_whole(x, s);
    else oz_step_run(&x->step, s);
    const oz_route *r = &x->step.p->route;
    if (s->op == OZ_OP_ROUTE && x->call->experts) oz_dev_ops(x->step.dev)->upload(x->step.dev, r->experts, x->call->experts, (size_t)(x->call->n_tok * r->top_k) * sizeof(int32_t));
}

void oz_exec_steps(const oz_exec *x, int begin, int end) {
    const int64_t l0 = x->call->layer_begin, l1 = x->call->layer_end ? x->call->layer_end : x->step.p->layer_end;
    for (int i = begin; i < end; i++) {
        const oz_step *s = &x->step.p->steps[i];
        if (s->layer >= 0 ? s->layer < l0 || s->layer >= l1 : s->op == OZ_OP_EMBED && l0 > 0) continue;
        const int64_t t0 = x->call->step_ns ? oz_clock_ns() : 0;
        run_step(x, s);
        if (x->call->step_ns) x->call->step_ns[i] += oz_clock_ns() - t0;
    }
}
