/* Products of packed weights: which thread multiplies which panels.
 *
 * On a machine with several memory nodes a thread reads its own node's memory far faster than another's, and a page lies on the node of the thread that
 * first touches it. So a weight is a run of panels a node, packed by the threads of that node (cpu_pack.c) into memory of that node alone, and multiplied by
 * them again. Within a node the threads share out the panels of all products of a call evenly, whatever weights they belong to: which of them packed a panel
 * makes no difference there.
 *
 * Rejected: each thread multiplies what it packed. Of small parts (k and v of 16 threads) some threads would always have one panel more, and experts, of which
 * a call takes few, would leave most threads idle. */
#include <string.h>
#include "kernel/cpu.h"
#include "kernel/step.h"

enum {
    MAX_PANEL = 64,
    VIEW_ROWS = 4096, /* whose scales are widened at a time */
};

/* ---- one product ---- */

/* Panels [first, first + n) as a weight of its own, whose scales of 16 bits are widened into `scales`. */
static oz_cpu_packed view(float *scales, const oz_cpu_packed *w, int64_t first, int64_t n) {
    const int64_t row0 = first * w->row->panel;
    oz_cpu_packed v = *w;
    v.head.rows -= row0, v.n_panels = n, v.codes += (size_t)first * w->panel_bytes;
    v.scales = scales, v.scales16 = NULL;
    for (int64_t i = 0; i < n * w->row->panel; i++) scales[i] = oz_f32_from_bf16(w->scales16[row0 + i]);
    return v;
}

void oz_cpu_get_row(float *y, const oz_cpu_packed *w, int64_t r) {
    const int64_t panel = w->row->panel;
    float scales[MAX_PANEL];
    while (w->next && r >= w->next->row0) w = w->next;
    r -= w->row0;
    if (!w->scales16) {
        w->row->get_row(y, w, r);
        return;
    }
    const oz_cpu_packed v = view(scales, w, r / panel, 1);
    w->row->get_row(y, &v, r % panel);
}

static void product(oz_dev *d, int thread, const oz_gemm_task *t, int64_t lo, int64_t hi);

static void product_narrow(oz_dev *d, int thread, const oz_gemm_task *t, int64_t lo, int64_t hi) {
    const int64_t panel = t->w->row->panel, step = VIEW_ROWS / panel;
    float scales[VIEW_ROWS];
    for (int64_t first = lo; first < hi; first += step) {
        const int64_t n = hi - first < step ? hi - first : step, row0 = first * panel;
        const oz_cpu_packed v = view(scales, t->w, first, n);
        product(d, thread, &(oz_gemm_task){&v, t->bias ? t->bias + row0 : NULL, t->x, t->y + row0, t->ld_y, t->n_tok}, 0, n);
    }
}

/* A product whose weight's columns lie in an order of their own meets inputs in that order, some tokens at a time. */
static void product(oz_dev *d, int thread, const oz_gemm_task *t, int64_t lo, int64_t hi) {
    const int32_t *order = t->w->order;
    if (t->w->scales16) {
        product_narrow(d, thread, t, lo, hi);
        return;
    }
    if (!order) {
        t->w->row->gemm(t, lo, hi);
        return;
    }
    const int64_t n = t->w->head.cols, size = oz_cpu_form_bytes(t->x.form);
    uint8_t *rows = oz_cpu(d)->gathered + (size_t)thread * oz_cpu(d)->gathered_bytes;
    for (int64_t t0 = 0; t0 < t->n_tok; t0 += OZ_GATHER_TOK) {
        const int64_t n_tok = t->n_tok - t0 < OZ_GATHER_TOK ? t->n_tok - t0 : OZ_GATHER_TOK;
        for (int64_t i = 0; i < n_tok; i++) {
            const uint8_t *x = (const uint8_t *)t->x.data + (t0 + i) * t->x.ld * size;
            for (int64_t c = 0; c < n; c++) memcpy(rows + (i * n + c) * size, x + order[c] * size, (size_t)size);
        }
        const oz_rows x = {t->x.form, rows, n, t->x.scales ? t->x.scales + t0 : NULL};
        t->w->row->gemm(&(oz_gemm_task){t->w, t->bias, x, t->y + t0 * t->ld_y, t->ld_y, n_tok}, lo, hi);
    }
}

/* ---- shared out ---- */

typedef struct products_job { oz_dev *d; int64_t n; oz_cpu_task_fn *task; const void *arg; } products_job;

/* The part of a product that is a node's. */
static oz_gemm_task task_at(const products_job *j, int64_t i, int node) {
    oz_gemm_task t = j->task(j->arg, i);
    while (node-- > 0) t.w = t.w->next;
    t.y += t.w->row0;
    if (t.bias) t.bias += t.w->row0;
    return t;
}

/* Of `n` things that cost `each`, numbered from `first`, how many begin before unit `at`. */
static int64_t begun(int64_t at, int64_t first, int64_t each, int64_t n) {
    const int64_t i = at <= first ? 0 : (at - first + each - 1) / each;
    return i < n ? i : n;
}

/* Work is counted in (panel, token) units, so that threads get equal shares however uneven groups of tokens are; a share is the panels that begin in it.
 * A product without tokens has no units. */
static void node_share(const products_job *j, int thread, int node, int64_t n_shares, int64_t share) {
    int64_t units = 0, first = 0;
    for (int64_t i = 0; i < j->n; i++) {
        const oz_gemm_task t = task_at(j, i, node);
        units += t.w->n_panels * t.n_tok;
    }
    const oz_share ours = oz_pool_share(units, n_shares, share);
    for (int64_t i = 0; i < j->n && first < ours.end; i++) {
        const oz_gemm_task t = task_at(j, i, node);
        if (t.n_tok == 0) continue;
        const int64_t lo = begun(ours.begin, first, t.n_tok, t.w->n_panels), hi = begun(ours.end, first, t.n_tok, t.w->n_panels);
        if (lo < hi) product(j->d, thread, &t, lo, hi);
        first += t.w->n_panels * t.n_tok;
    }
}

/* Items are the threads' shares; all of them are one where the caller does the whole. */
static void shares_run(void *arg, int thread, int64_t begin, int64_t end) {
    const products_job *j = arg;
    const oz_pool *pool = oz_cpu(j->d)->pool;
    if (end - begin == oz_pool_threads(pool)) {
        for (int node = 0; node < oz_pool_nodes(pool); node++) node_share(j, thread, node, 1, 0);
        return;
    }
    const int node = oz_pool_node_of(pool, thread);
    const oz_pool_node its = oz_pool_node_at(pool, node);
    node_share(j, thread, node, its.n, thread - its.first);
}

void oz_cpu_products(oz_dev *d, int64_t n, oz_cpu_task_fn *task, const void *arg) {
    products_job j = {d, n, task, arg};
    const int64_t threads = oz_pool_threads(oz_cpu(d)->pool);
    int64_t work = 0;
    for (int64_t i = 0; i < n; i++) {
        const oz_gemm_task t = task(arg, i);
        work += t.w->head.rows * t.w->head.cols * t.n_tok;
    }
    if (work > 0) oz_cpu_split(d, threads, work / threads, shares_run, &j);
}

/* ---- parts side by side in the output; experts ---- */

static oz_gemm_task part_task(const void *arg, int64_t i) {
    const oz_linear_args *a = arg;
    float *y = a->y;
    for (int64_t k = 0; k < i; k++) y += a->parts[k]->rows;
    return (oz_gemm_task){(const oz_cpu_packed *)a->parts[i], a->bias ? a->bias[i] : NULL, a->x, y, a->ld_y, a->n_tok};
}

void oz_cpu_linear(oz_dev *d, const oz_linear_args *a) { oz_cpu_products(d, a->n_parts, part_task, a); }

static oz_gemm_task expert_task(const void *arg, int64_t e) {
    const oz_grouped_args *a = arg;
    const int64_t row0 = a->route->starts[e];
    oz_rows x = a->x;
    x.data = (uint8_t *)x.data + row0 * x.ld * oz_cpu_form_bytes(x.form);
    if (x.scales) x.scales += row0;
    return (oz_gemm_task){(const oz_cpu_packed *)a->experts[e], NULL, x, a->y + row0 * a->ld_y, a->ld_y, a->route->starts[e + 1] - row0};
}

void oz_cpu_grouped_linear(oz_dev *d, const oz_grouped_args *a) { oz_cpu_products(d, a->route->n_experts, expert_task, a); }
