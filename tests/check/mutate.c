/* The mutation run: is the checker worth its green? Each mutation puts one plausible bug around a working kernel, and the suite of that slot must
 * turn red. Wrappers call the kernel that they broke through `right`, the untouched table of the level. */
#include "kernel/step.h"
#include "suites.h"

static oz_cpu_table right;
static oz_ops right_ops, wrong_ops;

/* ---- products ---- */

/* Calls the right kernel on a weight whose scales were changed by `change`. */
static void with_scales(const oz_gemm_task *t, int64_t p0, int64_t p1, void (*change)(float *to, const float *from, const oz_cpu_packed *w)) {
    const oz_cpu_packed *w = t->w;
    oz_cpu_packed broken = *w;
    oz_gemm_task task = *t;
    float *scales = oz_alloc_array((size_t)(w->n_panels * w->n_groups * w->row->panel), sizeof *scales);
    if (w->scales) {
        change(scales, w->scales, w);
        broken.scales = scales;
    }
    task.w = &broken;
    right.gemm[w->kind][t->x.form].gemm(&task, p0, p1);
    oz_free(scales);
}

static void change_group_0(float *to, const float *from, const oz_cpu_packed *w) {
    int lanes = w->row->panel;
    for (int64_t i = 0; i < w->n_panels * w->n_groups * lanes; i++) to[i] = from[i / (w->n_groups * lanes) * (w->n_groups * lanes) + i % lanes];
}
static void change_neighbour(float *to, const float *from, const oz_cpu_packed *w) {
    int lanes = w->row->panel;
    for (int64_t i = 0; i < w->n_panels * w->n_groups * lanes; i++) to[i] = from[i / lanes * lanes + (i + 1) % lanes];
}
static void gemm_group_0(const oz_gemm_task *t, int64_t p0, int64_t p1) { with_scales(t, p0, p1, change_group_0); }
static void gemm_neighbour(const oz_gemm_task *t, int64_t p0, int64_t p1) { with_scales(t, p0, p1, change_neighbour); }

static void call_right(const oz_gemm_task *t, int64_t p0, int64_t p1) { right.gemm[t->w->kind][t->x.form].gemm(t, p0, p1); }

/* The last column is not multiplied. */
static void gemm_tail(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    oz_gemm_task task = *t;
    size_t elem = (size_t)oz_cpu_ops.form_bytes(t->x.form), row = (size_t)t->x.ld * elem;
    uint8_t *x = oz_alloc((size_t)t->n_tok * row);
    for (int64_t i = 0; i < t->n_tok; i++) {
        memcpy(x + (size_t)i * row, (const uint8_t *)t->x.data + (size_t)i * row, (size_t)t->w->head.cols * elem);
        memset(x + (size_t)i * row + (size_t)(t->w->head.cols - 1) * elem, 0, elem);
    }
    task.x.data = x;
    call_right(&task, p0, p1);
    oz_free(x);
}

static void gemm_bias(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    oz_gemm_task task = *t;
    task.bias = NULL;
    call_right(&task, p0, p1);
}

static void gemm_offsets(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    oz_gemm_task task = *t;
    oz_cpu_packed w = *t->w;
    w.offsets = NULL;
    task.w = &w;
    call_right(&task, p0, p1);
}

static void gemm_codebook(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    oz_gemm_task task = *t;
    oz_cpu_packed w = *t->w;
    int8_t turned[16];
    for (int i = 0; i < 16; i++) turned[i] = w.codebook[(i + 1) % 16];
    w.codebook = turned;
    task.w = &w;
    call_right(&task, p0, p1);
}

static void gemm_token_scale(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    oz_gemm_task task = *t;
    float *scales = oz_alloc_array((size_t)t->n_tok, sizeof *scales);
    for (int64_t i = 0; i < t->n_tok; i++) scales[i] = t->x.scales[0];
    task.x.scales = scales;
    call_right(&task, p0, p1);
    oz_free(scales);
}

static void gemm_last_row(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    call_right(t, p0, p1);
    if (p1 == t->w->n_panels && p0 < p1) t->y[(t->n_tok - 1) * t->ld_y + t->w->head.rows - 1] = NAN;
}

static void gemm_past_end(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    call_right(t, p0, p1);
    if (p1 == t->w->n_panels && p0 < p1 && t->n_tok > 1) t->y[(t->n_tok - 1) * t->ld_y + t->w->head.rows] = 0;
}

/* One unit of the last place more, if the token has company. */
static void gemm_company(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    call_right(t, p0, p1);
    int64_t r0 = p0 * t->w->row->panel, r1 = p1 * t->w->row->panel < t->w->head.rows ? p1 * t->w->row->panel : t->w->head.rows;
    for (int64_t i = 0; i < t->n_tok && t->n_tok > 1; i++) {
        for (int64_t r = r0; r < r1; r++) t->y[i * t->ld_y + r] = nextafterf(t->y[i * t->ld_y + r], INFINITY);
    }
}

static oz_gemm_row current; /* the right row of the pair under test: pack and get_row do not tell it */

static void pack_swapped(uint8_t *dst, const float *codes, int64_t cols) {
    float *rows = oz_alloc_array((size_t)(current.panel * cols), sizeof *rows);
    memcpy(rows, codes, (size_t)(current.panel * cols) * sizeof *rows);
    memcpy(rows, codes + cols, (size_t)cols * sizeof *rows);
    memcpy(rows + cols, codes, (size_t)cols * sizeof *rows);
    current.pack(dst, rows, cols);
    oz_free(rows);
}
/* Codes under a magnitude, or the least one of int8, become zero: what a wrong entry of a table would do. */
static void pack_dropped(uint8_t *dst, const float *codes, int64_t cols, float least, float from) {
    float *rows = oz_alloc_array((size_t)(current.panel * cols), sizeof *rows);
    for (int64_t i = 0; i < current.panel * cols; i++) rows[i] = codes[i] == least || fabsf(codes[i]) < from ? 0 : codes[i];
    current.pack(dst, rows, cols);
    oz_free(rows);
}
static void pack_least(uint8_t *dst, const float *codes, int64_t cols) { pack_dropped(dst, codes, cols, -128, 0); }
static void pack_small(uint8_t *dst, const float *codes, int64_t cols) { pack_dropped(dst, codes, cols, 0, 0x1p-6f); }
static void get_row_next(float *dst, const oz_cpu_packed *w, int64_t r) { current.get_row(dst, w, (r + 1) % w->head.rows); }

/* ---- rows ---- */

static void norm_eps(float *y, const float *x, const float *w, int64_t n, float eps) { right.norm(y, x, w, n, eps * 0.5f); }
static void norm_count(float *y, const float *x, const float *w, int64_t n, float eps) {
    right.norm(y, x, w, n, eps);
    for (int64_t i = 0; i < n; i++) y[i] *= sqrtf((float)(n - 1) / (float)n);
}
static void norm_weight(float *y, const float *x, const float *w, int64_t n, float eps) {
    right.norm(y, x, w, n, eps);
    y[n - 1] = x[n - 1] == 0 ? 1 : y[n - 1] / w[n - 1];
}
static float q8_reciprocal(int8_t *q, const float *x, int64_t n) {
    float s = right.quantize_q8(q, x, n);
    for (int64_t i = 0; i < n && isfinite(s); i++) q[i] = (int8_t)fmaxf(-127, fminf(127, rintf(x[i] * (1 / s))));
    return s;
}
static float q8_truncate(int8_t *q, const float *x, int64_t n) {
    float s = right.quantize_q8(q, x, n);
    for (int64_t i = 0; i < n && isfinite(s); i++) q[i] = (int8_t)fmaxf(-127, fminf(127, truncf(x[i] / s)));
    return s;
}
static float q8_range(int8_t *q, const float *x, int64_t n) { return right.quantize_q8(q, x, n) * (127 / 127.5f); }
static float q8_tail(int8_t *q, const float *x, int64_t n) {
    float s = right.quantize_q8(q, x, n > 1 ? n - 1 : n);
    if (n > 1) q[n - 1] = isfinite(x[n - 1] / s) ? (int8_t)fmaxf(-127, fminf(127, rintf(x[n - 1] / s))) : 0;
    return s;
}
static float f8_flush(float *q, const float *x, int64_t n) {
    float s = right.quantize_f8(q, x, n);
    for (int64_t i = 0; i < n; i++) q[i] = fabsf(q[i]) < 0x1p-6f ? 0 : q[i];
    return s;
}
static float f8_away(float *q, const float *x, int64_t n) {
    float s = right.quantize_f8(q, x, n);
    for (int64_t i = 0; i < n && isfinite(s); i++) q[i] = oz_f32_from_e4m3(oz_e4m3_from_f32(x[i] / s * (1 + 0x1p-20f)));
    return s;
}
static float f8_floor(float *q, const float *x, int64_t n) {
    float s = right.quantize_f8(q, x, n), most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    return most / 448 < s ? most / 448 : s;
}
static void round_truncate(uint16_t *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = (uint16_t)(oz_bf16_from_f32(x[i]) - (fabsf(oz_f32_from_bf16(oz_bf16_from_f32(x[i]))) > fabsf(x[i])));
}
static void round_ties(uint16_t *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = oz_bf16_from_f32(isfinite(x[i]) ? x[i] * (1 + 0x1p-20f) : x[i]);
}
static void round_tail(uint16_t *y, const float *x, int64_t n) { right.round_bf16(y, x, n & ~(int64_t)15); }
static void rope_pairs(float *x, const float *c, const float *s, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c[i] - b * s[i];
        x[2 * i + 1] = b * c[i] + a * s[i];
    }
}
static void rope_halves(float *x, const float *c, const float *s, int64_t half) { right.rope(x, c, s, half); }
static void rope_sign(float *x, const float *c, const float *s, int64_t half) {
    float t[256];
    for (int64_t i = 0; i < half; i++) t[i] = -s[i];
    right.rope(x, c, t, half);
}
static void rope_tail(float *x, const float *c, const float *s, int64_t half) {
    float last = x[2 * half - 1];
    right.rope(x, c, s, half);
    x[2 * half - 1] = last;
}
static void silu_up(float *y, const float *g, const float *u, int64_t n) {
    right.silu_mul(y, g, u, n);
    y[n - 1] /= u[n - 1];
}
static void silu_clamp(float *y, const float *g, const float *u, int64_t n) {
    right.silu_mul(y, g, u, n);
    for (int64_t i = 0; i < n; i++) y[i] = g[i] < -16 ? 0 : y[i];
}
static void silu_tail(float *y, const float *g, const float *u, int64_t n) { right.silu_mul(y, g, u, n & ~(int64_t)7); }
static void gelu_silu(float *y, const float *g, const float *u, int64_t n) { right.silu_mul(y, g, u, n); }
static void gelu_erf(float *y, const float *g, const float *u, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = (float)(0.5 * g[i] * erfc(-(double)g[i] / sqrt(2))) * u[i];
}
static void gelu_tail(float *y, const float *g, const float *u, int64_t n) { right.gelu_mul(y, g, u, n & ~(int64_t)7); }
static void scale_bf16(float *x, int64_t n, float f) { right.scale(x, n, oz_f32_from_bf16(oz_bf16_from_f32(f))); }
static void scale_past(float *x, int64_t n, float f) {
    right.scale(x, n, f);
    x[n] = 0;
}
static void softcap_clamp(float *x, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i++) x[i] = fmaxf(-cap, fminf(cap, x[i]));
}
static void softcap_tail(float *x, int64_t n, float cap) { right.softcap(x, n & ~(int64_t)7, cap); }
static void softcap_sign(float *x, int64_t n, float cap) {
    right.softcap(x, n, cap);
    x[n - 1] = fabsf(x[n - 1]);
}
static void add_tail(float *y, const float *x, int64_t n) { right.add(y, x, n & ~(int64_t)7); }
static void add_past(float *y, const float *x, int64_t n) {
    right.add(y, x, n);
    y[n] = 0;
}

/* ---- attention: a changed call ---- */

static void attn_key(const oz_attn_args *a, const oz_seg *seg, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    oz_seg s = *seg;
    s.pos0 -= s.pos0 > 0;
    right.attention(a, &s, t0, t1, h0, h1);
}
static void attn_window(const oz_attn_args *a, const oz_seg *s, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    oz_attn_args b = *a;
    b.window -= b.window > 1;
    right.attention(&b, s, t0, t1, h0, h1);
}
static void attn_no_window(const oz_attn_args *a, const oz_seg *s, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    oz_attn_args b = *a;
    b.window = 0;
    right.attention(&b, s, t0, t1, h0, h1);
}
static void attn_scale(const oz_attn_args *a, const oz_seg *s, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    oz_attn_args b = *a;
    b.scale *= 1.001f;
    right.attention(&b, s, t0, t1, h0, h1);
}
static void attn_softcap(const oz_attn_args *a, const oz_seg *s, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    oz_attn_args b = *a;
    b.softcap = 0;
    right.attention(&b, s, t0, t1, h0, h1);
}
static void attn_values(const oz_attn_args *a, const oz_seg *s, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    oz_attn_args b = *a;
    oz_kv kv = *a->kv;
    kv.v = kv.k;
    b.kv = &kv;
    right.attention(&b, s, t0, t1, h0, h1);
}
static void attn_blocks(const oz_attn_args *a, const oz_seg *seg, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    int32_t in_order[64];
    for (int i = 0; i < 64; i++) in_order[i] = i;
    oz_seg s = *seg;
    s.blocks = in_order;
    right.attention(a, &s, t0, t1, h0, h1);
}
static void attn_company(const oz_attn_args *a, const oz_seg *s, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
    right.attention(a, s, t0, t1, h0, h1);
    float *last = a->out + (s->tok0 + t1 - 1) * a->ld_out + h0 * (a->n_heads / a->kv->n_heads_kv) * a->kv->head_dim;
    if (t1 - t0 > 1) *last = nextafterf(*last, INFINITY);
}

/* ---- sinks ---- */

static void stat_ties(oz_row_stat *o, const float *x, int32_t target, int64_t n) {
    right.stat(o, x, target, n);
    for (int64_t i = 0; i < n; i++) o->argmax = x[i] == o->max_logit ? (int32_t)i : o->argmax;
}
static void stat_f32(oz_row_stat *o, const float *x, int32_t target, int64_t n) {
    right.stat(o, x, target, n);
    o->lse = (float)o->lse;
}
static void stat_target(oz_row_stat *o, const float *x, int32_t target, int64_t n) { right.stat(o, x, target > 0 ? target - 1 : target, n); }
static void kl_swapped(oz_kl_stat *o, const float *r, const float *x, int32_t target, int64_t n) {
    right.kl(o, r, x, target, n);
    oz_kl_stat other;
    right.kl(&other, x, r, target, n);
    o->kl = other.kl;
}
static void kl_f32(oz_kl_stat *o, const float *r, const float *x, int32_t target, int64_t n) {
    right.kl(o, r, x, target, n);
    o->kl += 1e-8;
}
static void kl_infinite(oz_kl_stat *o, const float *r, const float *x, int32_t target, int64_t n) {
    right.kl(o, r, x, target, n);
    for (int64_t i = 0; i < n; i++) o->kl = isinf(r[i]) ? NAN : o->kl;
}
static void kl_target(oz_kl_stat *o, const float *r, const float *x, int32_t target, int64_t n) {
    right.kl(o, r, x, target, n);
    o->p = o->p_ref;
}

/* ---- layers that scan ---- */

static void conv_bias(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_conv_args b = *a;
    b.bias = NULL;
    right.conv(&b, seg, state, c0, c1);
}
static void conv_forgets(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_seg anew = *seg;
    anew.pos0 = 0;
    right.conv(a, &anew, state, c0, c1);
}
static void conv_keeps(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_seg on = *seg;
    on.pos0 = 1;
    right.conv(a, &on, state, c0, c1);
}
static void scan_forgets(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_seg anew = *seg;
    anew.pos0 = 0;
    right.scan(a, &anew, state, c0, c1);
}
static void scan_b_for_c(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_scan_args b = *a;
    b.c = a->b;
    right.scan(&b, seg, state, c0, c1);
}
static void scan_values(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_scan_args b = *a;
    b.n_state -= b.n_state > 1;
    right.scan(&b, seg, state, c0, c1);
}
static void op_scan_slots(oz_dev *d, const oz_scan_args *a) {
    const oz_batch *had = oz_cpu(d)->batch;
    oz_batch b = *had;
    b.slots = NULL;
    oz_cpu(d)->batch = &b;
    right_ops.scan(d, a);
    oz_cpu(d)->batch = had;
}

/* ---- experts ---- */

static void route_ties(int32_t *experts, float *weights, const float *logits, const oz_route *r) {
    const int64_t n = r->n_experts;
    float *turned = oz_alloc_array((size_t)n, sizeof *turned);
    for (int64_t e = 0; e < n; e++) turned[e] = logits[n - 1 - e];
    right.route(experts, weights, turned, r);
    for (int64_t s = 0; s < r->top_k; s++) experts[s] = (int32_t)n - 1 - experts[s];
    oz_free(turned);
}
static void route_wrong(int32_t *experts, float *weights, const float *logits, const oz_route *r) {
    right.route(experts, weights, logits, r);
    experts[r->top_k - 1] = (int32_t)((experts[r->top_k - 1] + 1) % r->n_experts);
}
/* NAME: the rule, but for what EDIT does to it. */
#define ROUTE_RULE(name, edit)                                                                                       \
    static void name(int32_t *experts, float *weights, const float *logits, const oz_route *rule) {                  \
        oz_route r = *rule;                                                                                          \
        edit;                                                                                                        \
        right.route(experts, weights, logits, &r);                                                                   \
    }
ROUTE_RULE(route_raw, r.raw = true)
ROUTE_RULE(route_not_raw, r.raw = false)
ROUTE_RULE(route_scale, r.scale = 0)
ROUTE_RULE(route_softmax, r.sigmoid = false)
ROUTE_RULE(route_no_bias, r.bias = NULL)
ROUTE_RULE(route_best_one, r.best_two = false)
ROUTE_RULE(route_all_groups, r.n_groups = 0)
ROUTE_RULE(route_one_group_more, r.top_groups += r.top_groups < r.n_groups)
static void combine_slot(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t k, int64_t n) {
    right.combine(y, x, ld, rows, weights, k > 1 ? k - 1 : k, n);
}
static void combine_weight(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t k, int64_t n) {
    float dropped[256];
    for (int64_t s = 0; s < k; s++) dropped[s] = s == k - 1 ? 1 : weights[s];
    right.combine(y, x, ld, rows, dropped, k, n);
}
static void combine_order(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t k, int64_t n) {
    float w[256];
    int32_t r[256];
    for (int64_t s = 0; s < k; s++) w[s] = weights[k - 1 - s], r[s] = rows[k - 1 - s];
    right.combine(y, x, ld, r, w, k, n);
}
static void combine_tail(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t k, int64_t n) {
    right.combine(y, x, ld, rows, weights, k, n & ~(int64_t)7);
}
static void op_sort_boundary(oz_dev *d, const oz_route *r, int64_t n_tok) {
    right_ops.sort(d, r, n_tok);
    for (int64_t e = 1; e < r->n_experts; e++) r->starts[e] += r->starts[e] < r->starts[e + 1];
}
static void op_sort_unstable(oz_dev *d, const oz_route *r, int64_t n_tok) {
    right_ops.sort(d, r, n_tok);
    for (int64_t e = 0; e < r->n_experts; e++) {
        const int32_t a = r->starts[e], b = r->starts[e + 1] - 1;
        if (a >= b) continue;
        const int32_t first = r->pairs[a];
        r->pairs[a] = r->pairs[b], r->pairs[b] = first;
        r->rows[r->pairs[a]] = a, r->rows[r->pairs[b]] = b;
    }
}
static void op_spread(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    right_ops.spread(d, r, y, ld_y, x, ld_x, n_tok, n);
    for (int64_t i = 0; i < n_tok * r->top_k; i++) memcpy(y + i * ld_y, x + i / r->top_k * ld_x, (size_t)n * sizeof *y); /* unsorted */
}
static void op_grouped_expert(oz_dev *d, const oz_grouped_args *a) {
    const oz_packed *experts[256];
    oz_grouped_args b = *a;
    for (int64_t e = 0; e < a->route->n_experts; e++) experts[e] = a->experts[(e + 1) % a->route->n_experts];
    b.experts = experts;
    right_ops.grouped_linear(d, &b);
}
/* The last row of each group goes to the next one. */
/* Codes with the scales of another weight, of each expert the one that `from` holds. */
enum { MOST_EXPERTS = 256 };
static void grouped_with_scales(oz_dev *d, const oz_grouped_args *a, const oz_packed *const *from) {
    oz_cpu_packed *copies = oz_alloc_array(MOST_EXPERTS, sizeof *copies);
    const oz_packed *experts[MOST_EXPERTS];
    oz_grouped_args b = *a;
    for (int64_t e = 0; e < a->route->n_experts; e++) {
        const oz_cpu_packed *other = (const oz_cpu_packed *)from[e];
        copies[e] = *(const oz_cpu_packed *)a->experts[e];
        copies[e].scales = other->scales, copies[e].scales16 = other->scales16;
        experts[e] = &copies[e].head;
    }
    b.experts = experts;
    right_ops.grouped_linear(d, &b);
    oz_free(copies);
}
static void op_grouped_scale_expert(oz_dev *d, const oz_grouped_args *a) {
    const oz_packed *next[MOST_EXPERTS];
    for (int64_t e = 0; e < a->route->n_experts; e++) next[e] = a->experts[(e + 1) % a->route->n_experts];
    grouped_with_scales(d, a, next);
}
static void op_grouped_scale_channel(oz_dev *d, const oz_grouped_args *a) {
    oz_cpu_packed *shifted = oz_alloc_array(MOST_EXPERTS, sizeof *shifted);
    const oz_packed *from[MOST_EXPERTS];
    for (int64_t e = 0; e < a->route->n_experts; e++) {
        const oz_cpu_packed *w = (const oz_cpu_packed *)a->experts[e];
        const int64_t n = w->n_panels * w->row->panel;
        float *wide = oz_alloc_array((size_t)n, sizeof *wide);
        uint16_t *narrow = oz_alloc_array((size_t)n, sizeof *narrow);
        for (int64_t i = 0; i < n; i++) {
            if (w->scales) wide[i] = w->scales[i + 1 < n ? i + 1 : i];
            if (w->scales16) narrow[i] = w->scales16[i + 1 < n ? i + 1 : i];
        }
        shifted[e].scales = w->scales ? wide : NULL, shifted[e].scales16 = w->scales16 ? narrow : NULL;
        oz_free(w->scales ? (void *)narrow : (void *)wide);
        from[e] = &shifted[e].head;
    }
    grouped_with_scales(d, a, from);
    for (int64_t e = 0; e < a->route->n_experts; e++) oz_free(shifted[e].scales), oz_free(shifted[e].scales16);
    oz_free(shifted);
}
/* Projections of an input follow each other: the second one's calls take what the first one's had. */
static void op_grouped_scale_projection(oz_dev *d, const oz_grouped_args *a) {
    static const oz_packed *first[MOST_EXPERTS];
    static bool second;
    grouped_with_scales(d, a, second ? first : a->experts);
    for (int64_t e = 0; e < a->route->n_experts; e++) first[e] = a->experts[e];
    second = !second;
}
static void op_grouped_boundary(oz_dev *d, const oz_grouped_args *a) {
    int32_t starts[257];
    oz_grouped_args b = *a;
    oz_route r = *a->route;
    for (int64_t e = 0; e <= r.n_experts; e++) starts[e] = r.starts[e] - (e > 0 && e < r.n_experts && r.starts[e] > r.starts[e - 1]);
    r.starts = starts, b.route = &r;
    right_ops.grouped_linear(d, &b);
}
static void op_grouped_scales(oz_dev *d, const oz_grouped_args *a) {
    oz_grouped_args b = *a;
    float *scales = oz_alloc_array((size_t)(a->n_tok * a->route->top_k), sizeof *scales);
    for (int64_t i = 0; a->x.scales && i < a->n_tok * a->route->top_k; i++) scales[i] = a->x.scales[0];
    if (a->x.scales) b.x.scales = scales;
    right_ops.grouped_linear(d, &b);
    oz_free(scales);
}

/* ---- operations ---- */

static void op_linear_bias(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    const float *bias[OZ_MAX_PARTS_LINEAR] = {NULL};
    bias[0] = a->bias[0];
    b.bias = bias;
    right_ops.linear(d, &b);
}
static void op_linear_order(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    const oz_packed *parts[OZ_MAX_PARTS_LINEAR];
    const float *bias[OZ_MAX_PARTS_LINEAR];
    for (int i = 0; i < a->n_parts; i++) parts[i] = a->parts[a->n_parts - 1 - i], bias[i] = a->bias[a->n_parts - 1 - i];
    b.parts = parts, b.bias = bias;
    right_ops.linear(d, &b);
}
/* Inputs in their own order meet columns in another. */
static void op_linear_gathered(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    oz_cpu_packed plain[OZ_MAX_PARTS_LINEAR];
    const oz_packed *parts[OZ_MAX_PARTS_LINEAR];
    for (int i = 0; i < a->n_parts; i++) {
        plain[i] = *(const oz_cpu_packed *)a->parts[i];
        plain[i].order = NULL, parts[i] = &plain[i].head;
    }
    b.parts = parts;
    right_ops.linear(d, &b);
}
/* Of more tokens than are put in order at a time, the last ones take the first one's inputs. */
static void op_linear_gathered_late(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    for (b.n_tok = 1; b.n_tok < a->n_tok && b.n_tok < OZ_GATHER_TOK; b.n_tok++) continue;
    right_ops.linear(d, &b);
    if (a->n_tok <= OZ_GATHER_TOK) return;
    b.n_tok = a->n_tok - OZ_GATHER_TOK, b.y = a->y + OZ_GATHER_TOK * a->ld_y;
    right_ops.linear(d, &b);
}
static void op_round_groups(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q) {
    oz_round whole = *q;
    whole.group_size = 0;
    right_ops.round(d, y, ld_y, x, ld_x, n_tok, n, &whole);
}
static void op_round_zeros(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q) {
    oz_round none = *q;
    none.zeros = NULL;
    right_ops.round(d, y, ld_y, x, ld_x, n_tok, n, &none);
}
static void op_round_distance(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q) {
    right_ops.round(d, y, n, x, ld_x, n_tok, n, q);
}
static void op_embed(oz_dev *d, float *y, int64_t ld, const oz_packed *w) {
    right_ops.embed(d, y, ld, w);
    const int64_t last = (oz_cpu(d)->batch->n_tok - 1) * ld;
    y[last] = nextafterf(y[last], INFINITY);
}
static oz_status op_pack(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n, oz_form form, oz_err *err) {
    return right_ops.pack(out, d, w, 0, n, form, err);
}
static void op_gather(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t row0, int64_t n_rows, int64_t n) {
    right_ops.gather(d, y, ld_y, x, n, row0, n_rows, n);
}
static void op_kv_write(oz_dev *d, const oz_kv *kv, const float *k, const float *v, int64_t ld) { right_ops.kv_write(d, kv, k, k, ld); }
static void op_mla_write(oz_dev *d, const oz_kv *kv, const oz_mla_args *a) {
    oz_mla_args b = *a;
    b.ld_rope = 0; /* all tokens take the first one's shared part */
    right_ops.mla_write(d, kv, &b);
}
static void op_latent_scale(oz_dev *d, const oz_latent_args *a) {
    oz_latent_args b = *a;
    b.scale *= 1.02f;
    right_ops.latent(d, &b);
}
static void op_latent_window(oz_dev *d, const oz_latent_args *a) {
    oz_latent_args b = *a;
    b.window = 0;
    right_ops.latent(d, &b);
}
/* The next head's matrices; one head is its own next. */
static void op_latent_heads(oz_dev *d, const oz_latent_args *a, bool turned) {
    oz_latent_args b = *a;
    oz_latent w = *a->w;
    oz_packed *next[64];
    for (int64_t h = 0; h < a->n_heads; h++) next[h] = (turned ? w.turned : w.values)[(h + 1) % a->n_heads];
    *(turned ? &w.turned : &w.values) = next;
    b.w = &w;
    right_ops.latent(d, &b);
}
static void op_latent_turned(oz_dev *d, const oz_latent_args *a) { op_latent_heads(d, a, true); }
static void op_latent_values(oz_dev *d, const oz_latent_args *a) { op_latent_heads(d, a, false); }
/* What is expanded is only the first room full. */
static void op_latent_rows(oz_dev *d, const oz_latent_args *a) {
    oz_latent_args b = *a;
    oz_latent_room room = *a->room;
    room.rows = room.heads - a->n_rope; /* the latent's place, one piece further */
    b.room = &room;
    if (room.n_rows > 1) room.n_rows--;
    right_ops.latent(d, &b);
}
static void op_rope_table(oz_dev *d, float *c, float *s, const float *inv, int64_t half, float factor) {
    right_ops.rope_table(d, c, s, inv, half, factor);
    const oz_seg *seg = oz_cpu(d)->batch->segs;
    for (int64_t i = 0; i < half; i++) c[i] = (float)cos((double)seg->pos0 * inv[i]) * factor; /* the angle not rounded to f32 */
}
static void op_quantize(oz_dev *d, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    right_ops.quantize(d, y, x, ld_x, n_tok, n);
    y->scales[n_tok - 1] = y->scales[0];
}
static void op_norm(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec, int64_t dim, float eps) {
    right_ops.norm(d, y, ld_y, x, ld_x, w, n_tok, 1, n_vec * dim > 0 ? dim : 0, eps);
}
static void op_attention(oz_dev *d, const oz_attn_args *a) {
    oz_batch last = *oz_cpu(d)->batch;
    const oz_batch *all = oz_cpu(d)->batch;
    last.n_segs -= last.n_segs > 1;
    oz_cpu(d)->batch = &last;
    right_ops.attention(d, a);
    oz_cpu(d)->batch = all;
}
static void op_sink_stat(oz_dev *d, oz_row_stat *out, const float *x, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) {
    right_ops.sink_stat(d, out, x, vocab, targets, n_rows, vocab);
}

/* ---- the table ---- */

typedef enum target { GEMM, PACK, GET_ROW, SLOT, OP } target;
typedef struct mutation {
    const char *what, *suite; /* suite "gemm": each (kind, form) in `kinds` and `forms` */
    target target;
    size_t offset;            /* of the pointer in oz_cpu_table or oz_ops */
    void (*fn)(void);
    unsigned kinds, forms;
} mutation;

#define FN(f) ((void (*)(void))(f))
#define ALL 0xffu
#define SCALED (1u << OZ_WKIND_I8 | 1u << OZ_WKIND_I4 | 1u << OZ_WKIND_F8 | 1u << OZ_WKIND_U4 | 1u << OZ_WKIND_L4)
#define WEIGHT_ONLY (1u << OZ_FORM_F32 | 1u << OZ_FORM_BF16)
#define ACTIVATIONS (1u << OZ_FORM_Q8 | 1u << OZ_FORM_F8)
#define IN_TABLE(slot, what, f) {what, #slot, SLOT, offsetof(oz_cpu_table, slot), FN(f), 0, 0}
#define IN_OPS(slot, suite, what, f) {what, suite, OP, offsetof(oz_ops, slot), FN(f), 0, 0}

static const mutation mutations[] = {
    {"group 0's scale everywhere", "gemm", GEMM, 0, FN(gemm_group_0), SCALED, WEIGHT_ONLY},
    {"the neighbour row's scale", "gemm", GEMM, 0, FN(gemm_neighbour), SCALED, ALL},
    {"the last column dropped", "gemm", GEMM, 0, FN(gemm_tail), ALL, ALL},
    {"no bias", "gemm", GEMM, 0, FN(gemm_bias), ALL, ALL},
    {"no offsets", "gemm", GEMM, 0, FN(gemm_offsets), SCALED & ~(1u << OZ_WKIND_L4), WEIGHT_ONLY},
    {"the next entry of the codebook", "gemm", GEMM, 0, FN(gemm_codebook), 1u << OZ_WKIND_L4, WEIGHT_ONLY},
    {"the first token's scale for all", "gemm", GEMM, 0, FN(gemm_token_scale), ALL, ACTIVATIONS},
    {"the last row not written", "gemm", GEMM, 0, FN(gemm_last_row), ALL, ALL},
    {"a row past the last written", "gemm", GEMM, 0, FN(gemm_past_end), ALL, ALL},
    {"a last bit that depends on the batch", "gemm", GEMM, 0, FN(gemm_company), ALL, ALL},
    {"two rows of a panel swapped in packing", "gemm", PACK, 0, FN(pack_swapped), ALL, ALL},
    {"-128 packed as 0", "gemm", PACK, 0, FN(pack_least), 1u << OZ_WKIND_I8, ALL},
    {"subnormals packed as 0", "gemm", PACK, 0, FN(pack_small), 1u << OZ_WKIND_F8, ALL},
    {"the next row read back", "gemm", GET_ROW, 0, FN(get_row_next), ALL, ALL},
    IN_TABLE(norm, "half the epsilon", norm_eps),
    IN_TABLE(norm, "the mean of one element less", norm_count),
    IN_TABLE(norm, "no weight on the last element", norm_weight),
    IN_TABLE(quantize_q8, "times the reciprocal", q8_reciprocal),
    IN_TABLE(quantize_q8, "rounds toward zero", q8_truncate),
    IN_TABLE(quantize_q8, "amax / 127.5", q8_range),
    IN_TABLE(quantize_q8, "amax without the last element", q8_tail),
    IN_TABLE(quantize_f8, "subnormals flushed", f8_flush),
    IN_TABLE(quantize_f8, "ties away from zero", f8_away),
    IN_TABLE(quantize_f8, "no least scale", f8_floor),
    IN_TABLE(round_bf16, "toward zero", round_truncate),
    IN_TABLE(round_bf16, "ties away from zero", round_ties),
    IN_TABLE(round_bf16, "no tail", round_tail),
    IN_TABLE(rope, "neighbouring pairs", rope_pairs),
    IN_TABLE(rope, "turns the other way", rope_sign),
    IN_TABLE(rope_pairs, "half a head apart", rope_halves),
    IN_TABLE(rope, "the last element not turned", rope_tail),
    IN_TABLE(silu_mul, "no gate on the last element", silu_up),
    IN_TABLE(silu_mul, "zero below -16", silu_clamp),
    IN_TABLE(silu_mul, "no tail", silu_tail),
    IN_TABLE(gelu_mul, "silu", gelu_silu),
    IN_TABLE(gelu_mul, "by erf", gelu_erf),
    IN_TABLE(gelu_mul, "no tail", gelu_tail),
    IN_TABLE(scale, "a factor rounded to bf16", scale_bf16),
    IN_TABLE(scale, "one element too many", scale_past),
    IN_TABLE(softcap, "a hard cap", softcap_clamp),
    IN_TABLE(softcap, "no tail", softcap_tail),
    IN_TABLE(softcap, "the last element's sign lost", softcap_sign),
    IN_TABLE(add, "no tail", add_tail),
    IN_TABLE(add, "one element too many", add_past),
    IN_TABLE(attention, "one key too few", attn_key),
    IN_TABLE(attention, "a window one key short", attn_window),
    IN_TABLE(attention, "no window", attn_no_window),
    IN_TABLE(attention, "a scale off by 0.1 %", attn_scale),
    IN_TABLE(attention, "no cap on scores", attn_softcap),
    IN_TABLE(attention, "keys taken for values", attn_values),
    IN_TABLE(attention, "the block table ignored", attn_blocks),
    IN_TABLE(attention, "a last bit that depends on the batch", attn_company),
    IN_TABLE(stat, "the last of equal maxima", stat_ties),
    IN_TABLE(stat, "sums rounded to f32", stat_f32),
    IN_TABLE(stat, "the target's neighbour", stat_target),
    IN_TABLE(kl, "the other way round", kl_swapped),
    IN_TABLE(kl, "off by 1e-8", kl_f32),
    IN_TABLE(kl, "NaN from an excluded token", kl_infinite),
    IN_TABLE(kl, "the reference's probability for both", kl_target),
    IN_TABLE(conv, "no bias", conv_bias),
    IN_TABLE(conv, "what came before forgotten", conv_forgets),
    IN_TABLE(conv, "another sequence's end before the beginning", conv_keeps),
    IN_TABLE(scan, "what came before forgotten", scan_forgets),
    IN_TABLE(scan, "b for c", scan_b_for_c),
    IN_TABLE(scan, "a value too few", scan_values),
    IN_OPS(scan, "op_scan", "the slots ignored", op_scan_slots),
    IN_TABLE(route, "ties to the higher number", route_ties),
    IN_TABLE(route, "never divided by their sum", route_raw),
    IN_TABLE(route, "always divided by their sum", route_not_raw),
    IN_TABLE(route, "not scaled", route_scale),
    IN_TABLE(route, "softmax for sigmoids", route_softmax),
    IN_TABLE(route, "chosen without the bias", route_no_bias),
    IN_TABLE(route, "groups by their best alone", route_best_one),
    IN_TABLE(route, "of all groups", route_all_groups),
    IN_TABLE(route, "of a group too many", route_one_group_more),
    IN_TABLE(route, "the last expert's neighbour", route_wrong),
    IN_TABLE(combine, "the last slot left out", combine_slot),
    IN_TABLE(combine, "the last weight dropped", combine_weight),
    IN_TABLE(combine, "slots in reverse", combine_order),
    IN_TABLE(combine, "no tail", combine_tail),
    IN_OPS(sort, "op_experts", "a group's boundary off by one", op_sort_boundary),
    IN_OPS(sort, "op_experts", "first and last of a group swapped", op_sort_unstable),
    IN_OPS(spread, "op_experts", "rows not sorted", op_spread),
    IN_OPS(grouped_linear, "op_experts", "the next expert's matrix", op_grouped_expert),
    IN_OPS(grouped_linear, "op_experts", "the next expert's scales", op_grouped_scale_expert),
    IN_OPS(grouped_linear, "op_experts", "the next channel's scale", op_grouped_scale_channel),
    IN_OPS(grouped_linear, "op_experts", "the other projection's scales", op_grouped_scale_projection),
    IN_OPS(grouped_linear, "op_experts", "a row to the next group's expert", op_grouped_boundary),
    IN_OPS(grouped_linear, "op_experts", "the first row's scale for all", op_grouped_scales),
    IN_OPS(linear, "op_linear", "the first part's bias only", op_linear_bias),
    IN_OPS(linear, "op_linear", "parts in reverse", op_linear_order),
    IN_OPS(linear, "op_linear", "columns in an order of their own taken as they lie", op_linear_gathered),
    IN_OPS(linear, "op_linear", "the first tokens' inputs again, where they come in several turns", op_linear_gathered_late),
    IN_OPS(round, "op_round", "one scale for all groups", op_round_groups),
    IN_OPS(round, "op_round", "zero points ignored", op_round_zeros),
    IN_OPS(round, "op_round", "the distance between rows ignored", op_round_distance),
    IN_OPS(embed, "op_embed", "a last bit of the last row", op_embed),
    IN_OPS(pack, "op_pack", "the first row of a slice ignored", op_pack),
    IN_OPS(gather, "op_gather", "the distance between rows ignored", op_gather),
    IN_OPS(kv_write, "op_kv_write", "keys written as values", op_kv_write),
    IN_OPS(mla_write, "op_mla_write", "all keys end in the first head's", op_mla_write),
    IN_OPS(latent, "op_latent", "a scale off by 2 %", op_latent_scale),
    IN_OPS(latent, "op_latent", "the window ignored", op_latent_window),
    IN_OPS(latent, "op_latent", "the next head's keys", op_latent_turned),
    IN_OPS(latent, "op_latent", "the next head's values", op_latent_values),
    IN_OPS(latent, "op_latent", "expanded: heads written over the end of keys", op_latent_rows),
    IN_OPS(rope_table, "op_rope_table", "the angle not rounded to f32", op_rope_table),
    IN_OPS(quantize, "op_rows", "the first token's scale for the last", op_quantize),
    IN_OPS(norm, "op_rows", "one head only", op_norm),
    IN_OPS(attention, "op_attention", "the last sequence left out", op_attention),
    IN_OPS(sink_stat, "op_sinks", "the distance between rows ignored", op_sink_stat),
};

static const char *const kind_names[OZ_WKIND_COUNT] = {"f32", "f16", "bf16", "i8", "i4", "f8", "u4", "l4"};
static const char *const form_names[OZ_FORM_COUNT] = {"f32", "q8", "f8", "bf16", "f16"};

static void apply(ck *c, const mutation *m, int kind, int form) {
    oz_cpu_table *t = &c->dev.table;
    right = *t;
    right_ops = wrong_ops = oz_cpu_ops;
    if (m->target == GEMM || m->target == PACK || m->target == GET_ROW) {
        oz_gemm_row *row = &t->gemm[kind][form];
        current = *row;
        if (m->target == GEMM) row->gemm = (void (*)(const oz_gemm_task *, int64_t, int64_t))m->fn;
        if (m->target == PACK) row->pack = (void (*)(uint8_t *, const float *, int64_t))m->fn;
        if (m->target == GET_ROW) row->get_row = (void (*)(float *, const oz_cpu_packed *, int64_t))m->fn;
    } else {
        memcpy((char *)(m->target == OP ? (void *)&wrong_ops : (void *)t) + m->offset, &m->fn, sizeof m->fn);
    }
    c->dev.head.ops = c->many.head.ops = &wrong_ops;
    c->many.table = *t;
}

/* False: the suite stayed green under the mutation. */
static bool caught(const char *level, const mutation *m, const char *slot, int kind, int form, uint64_t seed) {
    ck c;
    oz_err err = {0};
    if (ck_init(&c, level, seed, &err) != OZ_OK) return false;
    c.quiet = true;
    apply(&c, m, kind, form);
    for (const ck_suite *s = ck_suites; s->slot; s++) {
        if (strcmp(s->slot, slot)) continue;
        c.slot = slot;
        s->run(&c);
    }
    printf("%s %-5s %-14s %s\n", c.n_fail ? "ok caught " : "not ok escaped", level, slot, m->what);
    ck_deinit(&c);
    return c.n_fail > 0;
}

static int run_mutation(const char *level, const mutation *m, uint64_t seed) {
    if (strcmp(m->suite, "gemm")) return !caught(level, m, m->suite, 0, 0, seed);
    int escaped = 0;
    oz_cpu_table t;
    oz_cpu_table_init(&t, level, NULL);
    for (int kind = 0; kind < OZ_WKIND_COUNT; kind++) {
        for (int form = 0; form < OZ_FORM_COUNT; form++) {
            char slot[32];
            if (!t.gemm[kind][form].gemm || !(m->kinds >> kind & 1) || !(m->forms >> form & 1)) continue;
            snprintf(slot, sizeof slot, "gemm_%s_%s", kind_names[kind], form_names[form]);
            escaped += !caught(level, m, slot, kind, form, seed);
        }
    }
    return escaped;
}

int ck_mutations(const char *only_level, const char *only, uint64_t seed) {
    int escaped = 0, run = 0;
    for (const char *const *level = oz_cpu_levels(); *level; level++) {
        if (strcmp(only_level, "all") && strcmp(only_level, *level)) continue;
        for (int i = 0; i < CK_COUNT(mutations); i++) {
            if (only && !strstr(mutations[i].suite, only)) continue;
            escaped += run_mutation(*level, &mutations[i], seed);
            run++;
        }
    }
    printf("%d escaped\n", escaped);
    if (run == 0) printf("not ok no mutation of a suite \"%s\" at a level \"%s\" that this machine runs\n", only ? only : "", only_level);
    return run == 0 ? 1 : escaped;
}
