/* The slots that work on one row, and attention, plain C. Sums are f64 where that makes the result the correctly rounded one or
 * nearly so: other levels sum in f32 and are bounded against this. */
#include <math.h>
#include <string.h>
#include "kernel/ref/ref.h"
#include "kernel/step.h"

static void norm(float *y, const float *x, const float *w, int64_t dim, float eps) {
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) sum += (double)x[i] * x[i];
    float r = (float)(1.0 / sqrt(sum / (double)dim + eps));
    for (int64_t i = 0; i < dim; i++) y[i] = x[i] * r * w[i];
}

/* The codes are made in the last quarter of the output and widened from the front: float i ends at byte 4i + 3, and no code that is
 * still to be read lies before byte 3n + i + 1. */
static float quantize_f8(float *q, const float *x, int64_t n) {
    uint8_t *codes = (uint8_t *)q + 3 * n;
    float scale = oz_act_e4m3(codes, x, n);
    for (int64_t i = 0; i < n; i++) q[i] = oz_f32_from_e4m3(codes[i]);
    return scale;
}

static void round_bf16(uint16_t *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = oz_bf16_from_f32(x[i]);
}

static void rope(float *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cos[i] - b * sin[i];
        head[i + half] = b * cos[i] + a * sin[i];
    }
}

static void rope_pairs(float *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * cos[i] - b * sin[i];
        head[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

static void silu_mul(float *y, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = (float)(gate[i] / (1.0 + exp(-(double)gate[i]))) * up[i];
}

static void gelu_mul(float *y, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const double x = gate[i], u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
        y[i] = (float)(x / (1.0 + exp(-2.0 * u))) * up[i]; /* 0.5 (1 + tanh(u)) without its cancellation */
    }
}

static void scale(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void softcap(float *x, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)(cap * tanh((double)x[i] / cap));
}

static void add(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static const float *kv_row(const float *base, int64_t dim, const oz_kv *kv, const oz_seg *seg, int64_t head, int64_t pos) {
    int64_t block = seg->blocks[pos / OZ_KV_BLOCK];
    return base + ((block * kv->n_heads_kv + head) * OZ_KV_BLOCK + pos % OZ_KV_BLOCK) * dim;
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static double score(const float *q, const float *k, const oz_attn_args *a) {
    const double s = dot(q, k, a->kv->head_dim) * a->scale;
    return a->softcap > 0 ? a->softcap * tanh(s / a->softcap) : s;
}

/* One query: the largest score first, then exponentials and the weighted sum of the values, in order of position. */
static void attend(float *out, const float *q, const oz_attn_args *a, const oz_seg *seg, int64_t kvh, int64_t pos) {
    const oz_kv *kv = a->kv;
    int64_t first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    double max = -INFINITY, sum = 0;
    for (int64_t j = first; j <= pos; j++) {
        double s = score(q, kv_row(kv->k, kv->head_dim, kv, seg, kvh, j), a);
        if (s > max) max = s;
    }
    memset(out, 0, (size_t)kv->v_dim * sizeof *out);
    for (int64_t j = first; j <= pos; j++) {
        double p = exp(score(q, kv_row(kv->k, kv->head_dim, kv, seg, kvh, j), a) - max);
        const float *v = kv_row(oz_kv_v(kv), oz_kv_v_ld(kv), kv, seg, kvh, j);
        sum += p;
        for (int64_t i = 0; i < kv->v_dim; i++) out[i] += (float)p * v[i];
    }
    for (int64_t i = 0; i < kv->v_dim; i++) out[i] = (float)(out[i] / sum);
}

void oz_attention__ref(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1) {
    int64_t group = a->n_heads / a->kv->n_heads_kv, hd = a->kv->head_dim;
    for (int64_t t = tok0; t < tok1; t++) {
        int64_t row = seg->tok0 + t;
        for (int64_t h = kvh0 * group; h < kvh1 * group; h++) {
            attend(a->out + row * a->ld_out + h * a->kv->v_dim, a->q + row * a->ld_q + h * hd, a, seg, h / group, seg->pos0 + t);
        }
    }
}

/* Before the first position there are zeros. */
void oz_state_begin(float *state, const oz_seg *seg, int64_t rows, int64_t n, int64_t c0, int64_t c1) {
    for (int64_t r = 0; r < rows && seg->pos0 == 0; r++) memset(state + r * n + c0, 0, (size_t)(c1 - c0) * sizeof *state);
}

void oz_conv_keep(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    const int64_t kept = a->taps - 1;
    const float *x = a->x + seg->tok0 * a->ld;
    for (int64_t k = 0; k < kept; k++) {
        const int64_t at = seg->n_tok - kept + k;
        memcpy(state + k * a->n + c0, (at < 0 ? state + (kept + at) * a->n : x + at * a->ld) + c0, (size_t)(c1 - c0) * sizeof *state);
    }
}

void oz_conv__ref(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    const int64_t kept = a->taps - 1;
    oz_state_begin(state, seg, kept, a->n, c0, c1);
    const float *x = a->x + seg->tok0 * a->ld;
    for (int64_t t = 0; t < seg->n_tok; t++) {
        for (int64_t c = c0; c < c1; c++) {
            double sum = a->bias ? a->bias[c] : 0;
            for (int64_t k = 0; k < a->taps; k++) {
                const int64_t at = t - kept + k;
                sum += (double)a->w[k * a->n + c] * (at < 0 ? state[(kept + at) * a->n + c] : x[at * a->ld + c]);
            }
            a->y[(seg->tok0 + t) * a->ld + c] = (float)(sum / (1.0 + exp(-sum)));
        }
    }
    oz_conv_keep(a, seg, state, c0, c1);
}

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

void oz_scan__ref(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) {
    oz_state_begin(state, seg, a->n_state, a->n, c0, c1);
    for (int64_t t = seg->tok0; t < seg->tok0 + seg->n_tok; t++) {
        const float *b = a->b + t * a->ld, *cs = a->c + t * a->ld;
        for (int64_t c = c0; c < c1; c++) {
            const double dt = softplus(a->dt[t * a->ld + c]), x = a->x[t * a->ld + c], gate = a->gate[t * a->ld + c];
            double y = 0;
            for (int64_t i = 0; i < a->n_state; i++) {
                float *h = state + i * a->n + c;
                *h = (float)(exp(dt * a->a[i * a->n + c]) * *h + dt * b[i] * x);
                y += (double)cs[i] * *h;
            }
            a->y[t * a->ld_y + c] = (float)((y + a->d[c] * x) * (gate / (1.0 + exp(-gate))));
        }
    }
}

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* What expert e is chosen by, f32; a logit that is no number comes last. */
static double choice(const float *logits, const oz_route *r, int64_t e) {
    if (isnan(logits[e])) return -INFINITY;
    const float score = r->sigmoid ? (float)sigmoid(logits[e]) : logits[e];
    return r->bias ? score + r->bias[e] : score;
}

static double group_best(const float *logits, const oz_route *r, int64_t g) {
    const int64_t n = r->n_experts / r->n_groups;
    double best = -INFINITY, next = -INFINITY;
    for (int64_t e = g * n; e < (g + 1) * n; e++) {
        const double v = choice(logits, r, e);
        if (v > best) next = best, best = v;
        else if (v > next) next = v;
    }
    return r->best_two ? (float)(best + next) : best;
}

/* A bit each group whose experts may be chosen: those before which fewer than top_groups stand. */
static uint64_t groups_kept(const float *logits, const oz_route *r) {
    uint64_t kept = 0;
    double best[OZ_MAX_GROUPS];
    for (int64_t g = 0; g < r->n_groups; g++) best[g] = group_best(logits, r, g);
    for (int64_t g = 0; g < r->n_groups; g++) {
        int64_t before = 0;
        for (int64_t o = 0; o < r->n_groups; o++) before += best[o] > best[g] || (best[o] == best[g] && o < g);
        if (before < r->top_groups) kept |= (uint64_t)1 << g;
    }
    return kept;
}

/* From the likeliest down: the next expert is the best of those behind the last in (what they are chosen by, number). */
static void choose(int32_t *experts, const float *logits, const oz_route *r) {
    double last = INFINITY;
    const uint64_t kept = groups_kept(logits, r);
    const int64_t group = r->n_groups ? r->n_experts / r->n_groups : 1;
    for (int64_t i = 0; i < r->top_k; i++) {
        int32_t best = -1;
        double most = 0;
        for (int32_t e = 0; e < r->n_experts; e++) {
            if (r->n_groups && !(kept >> e / group & 1)) continue;
            const double v = choice(logits, r, e);
            const bool behind = i == 0 || v < last || (v == last && e > experts[i - 1]);
            if (behind && (best < 0 || v > most)) best = e, most = v;
        }
        experts[i] = best;
        last = most;
    }
}

/* A logit that is no number makes all weights no numbers. Where scores are sigmoids the sum of the chosen has 1e-20 more, as its definition says. */
static void route(int32_t *experts, float *weights, const float *logits, const oz_route *r) {
    choose(experts, logits, r);
    double sum = 0, chosen = 0;
    const double max = logits[experts[0]], scale = r->scale > 0 ? r->scale : 1;
    for (int64_t e = 0; e < r->n_experts; e++) sum += r->sigmoid ? (isnan(logits[e]) ? NAN : 0) : exp(logits[e] - max);
    for (int64_t i = 0; i < r->top_k; i++) chosen += r->sigmoid ? sigmoid(logits[experts[i]]) : exp(logits[experts[i]] - max) / sum;
    for (int64_t i = 0; i < r->top_k; i++) {
        const double weight = r->sigmoid ? sigmoid(logits[experts[i]]) + sum : exp(logits[experts[i]] - max) / sum;
        weights[i] = (float)(weight / (r->raw ? 1 : r->sigmoid ? chosen + 1e-20 : chosen) * scale);
    }
}

static void combine(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t top_k, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = weights[0] * x[rows[0] * ld + i];
        for (int64_t s = 1; s < top_k; s++) sum += weights[s] * x[rows[s] * ld + i];
        y[i] = sum;
    }
}

void oz_cpu_init_ref(oz_cpu_table *t) {
    t->level = "ref";
    oz_gemm_init__ref(t);
    t->norm = norm;
    t->quantize_q8 = oz_act_i8;
    t->quantize_f8 = quantize_f8;
    t->round_bf16 = round_bf16;
    t->rope = rope;
    t->rope_pairs = rope_pairs;
    t->silu_mul = silu_mul;
    t->gelu_mul = gelu_mul;
    t->scale = scale;
    t->softcap = softcap;
    t->add = add;
    t->attention = oz_attention__ref;
    t->conv = oz_conv__ref;
    t->scan = oz_scan__ref;
    t->route = route;
    t->combine = combine;
    t->stat = oz_stat__ref;
    t->kl = oz_kl__ref;
    t->burn_f32 = oz_burn_f32__ref;
    t->burn_i8 = oz_burn_i8__ref;
    t->read = oz_read__ref;
}
