/* The operations of the CPU: a call is cut into rows or heads (products of weights: cpu_product.c), and the pool's threads run the table's slots on
 * them. Work too small to be worth waking a thread runs on the caller. How a call is cut never shows in a result. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include "base/mem.h"
#include "kernel/cpu.h"
#include "kernel/step.h"

enum {
    INLINE_WORK = 1 << 15, /* element operations; some microseconds */
    ATTN_ROWS = 48,        /* queries times heads of a KV head in one item of attention */
    ATTN_HEADS = 8,        /* heads of an item, where all share one KV head */
    LATENT_ROOM = 256 << 20
};

void oz_cpu_split(oz_dev *d, int64_t n, int64_t work_each, oz_pool_fn *fn, void *arg) {
    if (n <= 0) return;
    if (n == 1 || n * work_each <= INLINE_WORK) {
        fn(arg, 0, 0, n);
    } else {
        oz_pool_run(oz_cpu(d)->pool, n, 1, fn, arg);
    }
}

/* ---- memory ---- */

static oz_status mem_new(void **out, oz_dev *d, size_t n_bytes, const char *what, oz_err *err) {
    return oz_big_new(out, n_bytes, what, err);
}
static void mem_free(oz_dev *d, void *p) { oz_big_free(p); }
static void copy_bytes(oz_dev *d, void *dst, const void *src, size_t n_bytes) { memcpy(dst, src, n_bytes); }

int oz_cpu_form_bytes(oz_form form) {
    static const int bytes[OZ_FORM_COUNT] = {[OZ_FORM_F32] = 4, [OZ_FORM_Q8] = 1, [OZ_FORM_F8] = 4, [OZ_FORM_BF16] = 2};
    return bytes[form];
}

/* ---- calls ---- */

static oz_status begin(oz_dev *d, const oz_batch *b, oz_err *err) {
    oz_cpu(d)->batch = b;
    return OZ_OK;
}

static oz_status end(oz_dev *d, oz_err *err) {
    oz_cpu(d)->batch = NULL;
    return OZ_OK;
}

/* ---- rows ---- */

typedef struct row_job {
    oz_dev *d;
    float *y; int64_t ld_y;
    const float *x; int64_t ld_x;
    const float *x2;
    const oz_cpu_packed *w;
    const oz_rows *q;
    const oz_round *round;
    const int32_t *ids;
    int64_t n, n_vec;
    float eps, factor;
} row_job;

static void embed_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    const int32_t *order = j->w->order;
    float *row = (float *)(void *)(oz_cpu(j->d)->gathered + (size_t)thread * oz_cpu(j->d)->gathered_bytes);
    for (int64_t t = begin; t < end; t++) {
        float *y = j->y + t * j->ld_y;
        oz_cpu_get_row(order ? row : y, j->w, j->ids[t]);
        for (int64_t c = 0; order && c < j->w->head.cols; c++) y[order[c]] = row[c];
    }
}

static void embed(oz_dev *d, float *y, int64_t ld, const oz_packed *w) {
    row_job j = {.d = d, .y = y, .ld_y = ld, .w = (const oz_cpu_packed *)w, .ids = oz_cpu(d)->batch->ids};
    oz_cpu_split(d, oz_cpu(d)->batch->n_tok, w->cols, embed_rows, &j);
}

static void norm_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t v = 0; v < j->n_vec; v++) {
            oz_cpu(j->d)->table.norm(j->y + t * j->ld_y + v * j->n, j->x + t * j->ld_x + v * j->n, j->x2, j->n, j->eps);
        }
    }
}

static void norm(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec,
                 int64_t dim, float eps) {
    row_job j = {.d = d, .y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .x2 = w, .n = dim, .n_vec = n_vec, .eps = eps};
    oz_cpu_split(d, n_tok, n_vec * dim, norm_rows, &j);
}

static void quantize_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    const oz_cpu_table *table = &oz_cpu(j->d)->table;
    for (int64_t t = begin; t < end; t++) {
        const float *x = j->x + t * j->ld_x;
        if (j->q->form == OZ_FORM_Q8) {
            j->q->scales[t] = table->quantize_q8((int8_t *)j->q->data + t * j->q->ld, x, j->n);
        } else if (j->q->form == OZ_FORM_BF16) {
            table->round_bf16((uint16_t *)j->q->data + t * j->q->ld, x, j->n);
        } else {
            j->q->scales[t] = table->quantize_f8((float *)j->q->data + t * j->q->ld, x, j->n);
        }
    }
}

void oz_cpu_quantize(oz_dev *d, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    row_job j = {.d = d, .q = y, .x = x, .ld_x = ld_x, .n = n};
    oz_cpu_split(d, n_tok, 4 * n, quantize_rows, &j);
}

static void round_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) oz_act_round(j->y + t * j->ld_y, j->x + t * j->ld_x, j->n, j->round);
}

static void round_all(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q) {
    row_job j = {.d = d, .y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .n = n, .round = q};
    oz_cpu_split(d, n_tok, 8 * n, round_rows, &j);
}

static void row_amax(oz_dev *d, float *amax, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    (void)d;
    for (int64_t t = 0; t < n_tok; t++) amax[t] = oz_act_amax(x + t * ld_x, n);
}

static void quantize_by_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        const float *x = j->x + t * j->ld_x, amax = j->x2[t];
        if (j->q->form == OZ_FORM_Q8) {
            j->q->scales[t] = oz_act_i8_of((int8_t *)j->q->data + t * j->q->ld, x, j->n, amax);
            continue;
        }
        for (int64_t i = 0; i < j->n; i++) { /* kept as widened e4m3 values */
            uint8_t code;
            j->q->scales[t] = oz_act_e4m3_of(&code, x + i, 1, amax);
            ((float *)j->q->data)[t * j->q->ld + i] = oz_f32_from_e4m3(code);
        }
    }
}

static void quantize_by(oz_dev *d, const oz_rows *y, const float *amax, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    row_job j = {.d = d, .q = y, .x = x, .ld_x = ld_x, .x2 = amax, .n = n};
    oz_cpu_split(d, n_tok, 8 * n, quantize_by_rows, &j);
}

static void silu_mul_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        oz_cpu(j->d)->table.silu_mul(j->y + t * j->ld_y, j->x + t * j->ld_x, j->x2 + t * j->ld_x, j->n);
    }
}

static void silu_mul(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) {
    row_job j = {.d = d, .y = y, .ld_y = ld_y, .x = gate, .x2 = up, .ld_x = ld_x, .n = n};
    oz_cpu_split(d, n_tok, 4 * n, silu_mul_rows, &j);
}

static void gelu_mul_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) oz_cpu(j->d)->table.gelu_mul(j->y + t * j->ld_y, j->x + t * j->ld_x, j->x2 + t * j->ld_x, j->n);
}

static void gelu_mul(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) {
    row_job j = {.d = d, .y = y, .ld_y = ld_y, .x = gate, .x2 = up, .ld_x = ld_x, .n = n};
    oz_cpu_split(d, n_tok, 4 * n, gelu_mul_rows, &j);
}

static void scale_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) oz_cpu(j->d)->table.scale(j->y + t * j->ld_y, j->n, j->factor);
}

static void scale(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float factor) {
    row_job j = {.d = d, .y = x, .ld_y = ld, .n = n, .factor = factor};
    oz_cpu_split(d, n_tok, n, scale_rows, &j);
}

static void softcap_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) oz_cpu(j->d)->table.softcap(j->y + t * j->ld_y, j->n, j->factor);
}

static void softcap(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float cap) {
    row_job j = {.d = d, .y = x, .ld_y = ld, .n = n, .factor = cap};
    oz_cpu_split(d, n_tok, 4 * n, softcap_rows, &j);
}

static void add_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const row_job *j = arg;
    for (int64_t t = begin; t < end; t++) oz_cpu(j->d)->table.add(j->y + t * j->ld_y, j->x + t * j->ld_x, j->n);
}

static void add(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    row_job j = {.d = d, .y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .n = n};
    oz_cpu_split(d, n_tok, n, add_rows, &j);
}

static void gather(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t row0, int64_t n_rows, int64_t n) {
    const int32_t *rows = oz_cpu(d)->batch->rows + row0;
    for (int64_t r = 0; r < n_rows; r++) memcpy(y + r * ld_y, x + rows[r] * ld_x, (size_t)n * sizeof *y);
}

/* ---- rope and the KV cache ---- */

typedef struct rope_job {
    oz_dev *d;
    float *x, *cos, *sin;
    const float *inv_freq;
    int64_t ld, n_heads, head_dim, half, pos0, tok0;
    float factor;
    void (*turn)(float *head, const float *cos, const float *sin, int64_t half);
} rope_job;

static void rope_table_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const rope_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        float pos = (float)(j->pos0 + t);
        for (int64_t i = 0; i < j->half; i++) {
            double angle = pos * j->inv_freq[i];
            j->cos[(j->tok0 + t) * j->half + i] = (float)cos(angle) * j->factor;
            j->sin[(j->tok0 + t) * j->half + i] = (float)sin(angle) * j->factor;
        }
    }
}

static void rope_table(oz_dev *d, float *cos, float *sin, const float *inv_freq, int64_t half, float factor) {
    const oz_seg *segs = oz_cpu(d)->batch->segs;
    for (int64_t s = 0; s < oz_cpu(d)->batch->n_segs; s++) {
        rope_job j = {.cos = cos, .sin = sin, .inv_freq = inv_freq, .half = half, .pos0 = segs[s].pos0, .tok0 = segs[s].tok0, .factor = factor};
        oz_cpu_split(d, segs[s].n_tok, 64 * half, rope_table_rows, &j);
    }
}

static void rope_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const rope_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < j->n_heads; h++) {
            j->turn(j->x + t * j->ld + h * j->head_dim, j->cos + t * j->half, j->sin + t * j->half, j->half);
        }
    }
}

static void rope(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half,
                 int64_t n_tok) {
    rope_job j = {.d = d, .x = x, .cos = (float *)(uintptr_t)cos, .sin = (float *)(uintptr_t)sin, .ld = ld, .n_heads = n_heads,
                  .head_dim = head_dim, .half = half, .turn = oz_cpu(d)->table.rope};
    oz_cpu_split(d, n_tok, n_heads * half * 2, rope_rows, &j);
}

static void rope_pairs(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok) {
    rope_job j = {.d = d, .x = x, .cos = (float *)(uintptr_t)cos, .sin = (float *)(uintptr_t)sin, .ld = ld, .n_heads = n_heads, .head_dim = head_dim, .half = half,
                  .turn = oz_cpu(d)->table.rope_pairs};
    oz_cpu_split(d, n_tok, n_heads * half * 2, rope_rows, &j);
}

typedef struct kv_job { const oz_kv *kv; const oz_seg *seg; const float *k, *v; int64_t ld; } kv_job;

static void kv_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const kv_job *j = arg;
    const oz_kv *kv = j->kv;
    const int64_t hd = kv->head_dim, vd = kv->v_dim;
    for (int64_t t = begin; t < end; t++) {
        const int64_t row = (j->seg->tok0 + t) * j->ld;
        for (int64_t h = 0; h < kv->n_heads_kv; h++) {
            const int64_t at = oz_kv_at(kv, j->seg, j->seg->pos0 + t, h);
            memcpy(kv->k + at * hd, j->k + row + h * hd, (size_t)hd * sizeof *j->k);
            if (kv->v) memcpy(kv->v + at * vd, j->v + row + h * vd, (size_t)vd * sizeof *j->v);
        }
    }
}

static void kv_write(oz_dev *d, const oz_kv *kv, const float *k, const float *v, int64_t ld) {
    const oz_batch *b = oz_cpu(d)->batch;
    for (const oz_seg *s = b->segs; s < b->segs + b->n_segs; s++) {
        kv_job j = {.kv = kv, .seg = s, .k = k, .v = v, .ld = ld};
        oz_cpu_split(d, s->n_tok, 2 * kv->n_heads_kv * kv->head_dim, kv_rows, &j);
    }
}

/* ---- attention ---- */

/* Items are (segment, run of queries, KV head or a part of the heads of the only one), numbered from the last queries back: late positions cost most, so
 * threads take them first, one at a time from a shared counter. */
typedef struct attn_job {
    oz_dev *d;
    const oz_attn_args *a;
    const oz_seg *segs; int64_t n_segs;
    int64_t tok_item, n_parts, heads_item; /* queries an item; items side by side; heads of one */
    atomic_llong next;
} attn_job;

static int64_t seg_items(const attn_job *j, const oz_seg *s) { return (s->n_tok + j->tok_item - 1) / j->tok_item * j->n_parts; }

static void attn_items(void *arg, int thread, int64_t begin, int64_t end) {
    attn_job *j = arg;
    const oz_attn_args *a = j->a;
    int64_t first = 0, s = 0;
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        while (s < j->n_segs && item - first >= seg_items(j, &j->segs[s])) first += seg_items(j, &j->segs[s++]);
        if (s == j->n_segs) return;
        const oz_seg *seg = &j->segs[s];
        int64_t part = (item - first) % j->n_parts, run = (seg_items(j, seg) - 1 - (item - first)) / j->n_parts;
        int64_t tok0 = run * j->tok_item, tok1 = tok0 + j->tok_item < seg->n_tok ? tok0 + j->tok_item : seg->n_tok;
        if (a->kv->n_heads_kv > 1) {
            oz_cpu(j->d)->table.attention(a, seg, tok0, tok1, part, part + 1);
        } else {
            oz_attn_args own = *a;
            const int64_t h0 = part * j->heads_item;
            own.q += h0 * a->kv->head_dim, own.out += h0 * a->kv->v_dim;
            own.n_heads = a->n_heads - h0 < j->heads_item ? a->n_heads - h0 : j->heads_item;
            oz_cpu(j->d)->table.attention(&own, seg, tok0, tok1, 0, 1);
        }
    }
}

void oz_cpu_attend(oz_dev *d, const oz_attn_args *a, const oz_seg *segs, int64_t n_segs) {
    int64_t group = a->n_heads / a->kv->n_heads_kv, work = 0;
    attn_job j = {.d = d, .a = a, .segs = segs, .n_segs = n_segs, .n_parts = a->kv->n_heads_kv, .heads_item = group};
    if (j.n_parts == 1) {
        j.n_parts = (group + ATTN_HEADS - 1) / ATTN_HEADS;
        j.heads_item = (group + j.n_parts - 1) / j.n_parts;
        j.n_parts = (group + j.heads_item - 1) / j.heads_item;
    }
    j.tok_item = j.heads_item < ATTN_ROWS ? ATTN_ROWS / j.heads_item : 1;
    for (int64_t s = 0; s < n_segs; s++) work += segs[s].n_tok * (segs[s].pos0 + segs[s].n_tok);
    int64_t threads = oz_dev_threads(d);
    oz_cpu_split(d, threads, work * a->n_heads * a->kv->head_dim / threads, attn_items, &j);
}

static void attention(oz_dev *d, const oz_attn_args *a) { oz_cpu_attend(d, a, oz_cpu(d)->batch->segs, oz_cpu(d)->batch->n_segs); }

/* ---- layers that scan: channels are shared out, a segment's tokens follow each other ---- */

typedef struct scan_job { const oz_cpu_table *table; const oz_seg *seg; float *state; const oz_conv_args *conv; const oz_scan_args *scan; } scan_job;
enum { CHANNELS = 64 }; /* an item */

static int64_t slot_of(const oz_batch *b, int64_t seg) { return b->slots ? b->slots[seg] : seg; }

static int64_t channel(int64_t item, int64_t n) { return item * CHANNELS < n ? item * CHANNELS : n; }

static void conv_channels(void *arg, int thread, int64_t begin, int64_t end) {
    const scan_job *j = arg;
    j->table->conv(j->conv, j->seg, j->state, channel(begin, j->conv->n), channel(end, j->conv->n));
}

static void scan_channels(void *arg, int thread, int64_t begin, int64_t end) {
    const scan_job *j = arg;
    j->table->scan(j->scan, j->seg, j->state, channel(begin, j->scan->n), channel(end, j->scan->n));
}

static void conv(oz_dev *d, const oz_conv_args *a) {
    const oz_batch *b = oz_cpu(d)->batch;
    for (int64_t s = 0; s < b->n_segs; s++) {
        scan_job j = {.table = &oz_cpu(d)->table, .seg = &b->segs[s], .conv = a, .state = a->state + slot_of(b, s) * (a->taps - 1) * a->n};
        oz_cpu_split(d, (a->n + CHANNELS - 1) / CHANNELS, 4 * CHANNELS * a->taps * b->segs[s].n_tok, conv_channels, &j);
    }
}

static void scan(oz_dev *d, const oz_scan_args *a) {
    const oz_batch *b = oz_cpu(d)->batch;
    for (int64_t s = 0; s < b->n_segs; s++) {
        scan_job j = {.table = &oz_cpu(d)->table, .seg = &b->segs[s], .scan = a, .state = a->state + slot_of(b, s) * a->n_state * a->n};
        oz_cpu_split(d, (a->n + CHANNELS - 1) / CHANNELS, 8 * CHANNELS * a->n_state * b->segs[s].n_tok, scan_channels, &j);
    }
}

/* ---- experts ---- */

typedef struct expert_job {
    const oz_cpu_table *table;
    const oz_route *r;
    float *y; int64_t ld_y;
    const float *x; int64_t ld_x;
    int64_t n;
} expert_job;

static void route_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const expert_job *j = arg;
    const oz_route *r = j->r;
    for (int64_t t = begin; t < end; t++) j->table->route(r->experts + t * r->top_k, r->weights + t * r->top_k, j->x + t * j->ld_x, r);
}

static void route(oz_dev *d, const oz_route *r, const float *logits, int64_t ld, int64_t n_tok) {
    expert_job j = {.table = &oz_cpu(d)->table, .r = r, .x = logits, .ld_x = ld};
    oz_cpu_split(d, n_tok, (r->top_k + 8) * r->n_experts, route_rows, &j);
}

/* By counting. While rows are given out, starts[e + 1] is the next one of expert e; at the end it is where expert e + 1 begins. */
static void sort(oz_dev *d, const oz_route *r, int64_t n_tok) {
    const int64_t n_pairs = n_tok * r->top_k;
    memset(r->starts, 0, (size_t)(r->n_experts + 1) * sizeof *r->starts);
    for (int64_t p = 0; p < n_pairs; p++) r->starts[r->experts[p] + 1]++;
    for (int32_t e = 1, next = 0; e <= r->n_experts; e++) {
        const int32_t count = r->starts[e];
        r->starts[e] = next;
        next += count;
    }
    for (int32_t p = 0; p < n_pairs; p++) {
        const int32_t row = r->starts[r->experts[p] + 1]++;
        r->pairs[row] = p;
        r->rows[p] = row;
    }
}

static void spread_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const expert_job *j = arg;
    for (int64_t i = begin; i < end; i++) memcpy(j->y + i * j->ld_y, j->x + j->r->pairs[i] / j->r->top_k * j->ld_x, (size_t)j->n * sizeof *j->y);
}

static void spread(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    expert_job j = {.r = r, .y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .n = n};
    oz_cpu_split(d, n_tok * r->top_k, n, spread_rows, &j);
}

static void combine_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const expert_job *j = arg;
    const int64_t k = j->r->top_k;
    for (int64_t t = begin; t < end; t++) j->table->combine(j->y + t * j->ld_y, j->x, j->ld_x, j->r->rows + t * k, j->r->weights + t * k, k, j->n);
}

static void combine(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    expert_job j = {.table = &oz_cpu(d)->table, .r = r, .y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .n = n};
    oz_cpu_split(d, n_tok, r->top_k * n, combine_rows, &j);
}

/* ---- sinks ---- */

typedef struct sink_job {
    oz_dev *d;
    oz_row_stat *stat;
    oz_kl_stat *kl;
    const float *ref, *logits;
    const int32_t *targets;
    int64_t ld, vocab;
} sink_job;

static void stat_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const sink_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        oz_cpu(j->d)->table.stat(&j->stat[r], j->logits + r * j->ld, j->targets ? j->targets[r] : -1, j->vocab);
    }
}

static void sink_stat(oz_dev *d, oz_row_stat *out, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) {
    sink_job j = {.d = d, .stat = out, .logits = logits, .targets = targets, .ld = ld, .vocab = vocab};
    oz_cpu_split(d, n_rows, 8 * vocab, stat_rows, &j);
}

/* How many stand before token `at`. */
static int32_t place_of(const float *x, int32_t at, int64_t vocab) {
    int32_t n = 0;
    for (int64_t i = 0; i < vocab; i++) n += x[i] > x[at];
    for (int64_t i = 0; i < at; i++) n += x[i] == x[at];
    return n;
}

static void kl_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const sink_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *ref = j->ref + r * j->ld, *x = j->logits + r * j->ld;
        oz_kl_stat *s = &j->kl[r];
        oz_cpu(j->d)->table.kl(s, ref, x, j->targets ? j->targets[r] : -1, j->vocab);
        if (s->argmax == s->argmax_ref) continue;
        s->place_ref = place_of(ref, s->argmax, j->vocab), s->place = place_of(x, s->argmax_ref, j->vocab);
    }
}

static void sink_kl(oz_dev *d, oz_kl_stat *out, const float *ref, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows,
                    int64_t vocab) {
    sink_job j = {.d = d, .kl = out, .ref = ref, .logits = logits, .targets = targets, .ld = ld, .vocab = vocab};
    oz_cpu_split(d, n_rows, 16 * vocab, kl_rows, &j);
}

const oz_ops oz_cpu_ops = {
    .mem_new = mem_new, .mem_free = mem_free, .upload = copy_bytes, .download = copy_bytes, .copy = copy_bytes, .form_bytes = oz_cpu_form_bytes, .latent_room = LATENT_ROOM,
    .multiplies = oz_cpu_multiplies, .pack = oz_cpu_pack, .packed_free = oz_cpu_packed_free, .begin = begin, .end = end,
    .embed = embed, .norm = norm, .quantize = oz_cpu_quantize, .round = round_all, .row_amax = row_amax, .quantize_by = quantize_by, .linear = oz_cpu_linear, .rope_table = rope_table, .rope = rope, .rope_pairs = rope_pairs,
    .kv_write = kv_write, .mla_write = oz_cpu_mla_write, .latent = oz_cpu_latent,
    .attention = attention, .conv = conv, .scan = scan, .silu_mul = silu_mul, .gelu_mul = gelu_mul, .scale = scale, .softcap = softcap, .add = add, .gather = gather,
    .route = route, .sort = sort, .spread = spread, .grouped_linear = oz_cpu_grouped_linear, .combine = combine,
    .sink_stat = sink_stat, .sink_kl = sink_kl,
};
