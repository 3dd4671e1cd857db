/* A mixture of experts: the two slots that work on one token, and the way of a whole call through route, sort, spread, product and combine, against
 * f64 and against each token alone. */
#include "kernel/step.h"
#include "suites.h"

/* ---- slots ---- */

/* Does a stand before b? NaN is last. */
static bool before(const float *logits, int32_t a, int32_t b) {
    double x = isnan(logits[a]) ? -INFINITY : logits[a], y = isnan(logits[b]) ? -INFINITY : logits[b];
    return x > y || (x == y && a < b);
}

static void fill_router(ck *c, float *logits, int64_t n, int i) {
    for (int64_t e = 0; e < n; e++) logits[e] = i % 4 == 1 ? (float)ck_int(c, -2, 2) : (float)oz_rng_normal(&c->rng) * (i % 4 == 2 ? 100 : 2);
    if (i % 4 == 3) memset(logits, 0, (size_t)n * sizeof *logits);
    if (i % 9 == 4) logits[ck_int(c, 0, n - 1)] = i % 2 ? NAN : -INFINITY;
}

/* What a group counts by: its best expert, or the sum of its best two. */
static double group_score(const float *chosen_by, const oz_route *r, int32_t g) {
    const int32_t n = (int32_t)(r->n_experts / r->n_groups), first = g * n;
    int32_t best = first, next = -1;
    for (int32_t i = first + 1; i < first + n; i++) {
        if (before(chosen_by, i, best)) next = best, best = i;
        else if (next < 0 || before(chosen_by, i, next)) next = i;
    }
    const double a = isnan(chosen_by[best]) ? -INFINITY : chosen_by[best], b = next < 0 || isnan(chosen_by[next]) ? -INFINITY : chosen_by[next];
    return r->best_two ? (float)(a + b) : a;
}

/* Whether an expert is in one of the groups that count most. */
static bool open_to(const float *chosen_by, const oz_route *r, int32_t e) {
    if (!r->n_groups) return true;
    const int32_t own = e / (int32_t)(r->n_experts / r->n_groups);
    const double score = group_score(chosen_by, r, own);
    int64_t better = 0;
    for (int32_t g = 0; g < r->n_groups; g++) {
        const double other = group_score(chosen_by, r, g);
        better += other > score || (other == score && g < own);
    }
    return better < r->top_groups;
}

/* Any number of experts, of which the rule keeps at least top_k. */
static oz_route rule_of(ck *c, int i) {
    oz_route r = {.n_experts = i % 5 ? ck_int(c, 1, 20) : ck_int(c, 1, 200), .raw = i % 3 == 1, .scale = i % 4 == 3 ? 16.0f : 0};
    int64_t open = r.n_experts;
    if (i % 6 > 3) {
        r.n_groups = ck_int(c, 1, 9), r.top_groups = ck_int(c, 1, r.n_groups);
        r.n_experts *= r.n_groups, open *= r.top_groups;
    }
    r.top_k = i % 7 == 0 ? open : ck_int(c, 1, open < 9 ? open : 9);
    r.sigmoid = i % 8 > 4, r.best_two = r.sigmoid && r.n_groups && r.n_experts > r.n_groups;
    return r;
}

/* By what an expert is chosen: its logit or the sigmoid of it, with its bias. */
static float *chosen_by_of(const oz_route *r, const float *logits) {
    float *by = oz_alloc_array((size_t)r->n_experts, sizeof *by);
    for (int64_t e = 0; e < r->n_experts; e++) by[e] = (r->sigmoid ? (float)(1 / (1 + exp(-(double)logits[e]))) : logits[e]) + (r->bias ? r->bias[e] : 0);
    return by;
}

static long double score_of(const oz_route *r, const float *logits, int32_t e, int32_t likeliest) { return r->sigmoid ? 1 / (1 + expl(-(long double)logits[e])) : expl((long double)logits[e] - logits[likeliest]); }

/* Experts exactly; weights to a unit of the last place, or no numbers where a logit is none. */
void ck_route(ck *c) {
    for (int i = 0; i < 400; i++, c->n_cases++) {
        oz_route rule = rule_of(c, i);
        const int64_t n = rule.n_experts, k = rule.top_k;
        float *bias = oz_alloc_array((size_t)n, sizeof *bias);
        ck_fill(c, bias, n, CK_NORMAL);
        if (rule.sigmoid && i % 16 > 7) rule.bias = bias;
        ck_buf logits = ck_buf_new((size_t)n * sizeof(float), 4 * (size_t)ck_int(c, 0, 7)), ids = ck_buf_new((size_t)k * 4, 0), weights = ck_buf_new((size_t)k * 4, 0);
        const float *l = logits.p, *w = weights.p;
        const int32_t *found = ids.p;
        fill_router(c, logits.p, n, i);
        c->dev.table.route(ids.p, weights.p, l, &rule);
        float *by = chosen_by_of(&rule, l);
        bool any_nan = n == 1 && isinf(l[0]) && !rule.sigmoid; /* exp(-inf - -inf) */
        for (int64_t e = 0; e < n; e++) any_nan |= isnan(l[e]);
        long double sum = 0, all = 0;
        for (int32_t e = 0; e < n && !rule.sigmoid; e++) all += score_of(&rule, l, e, found[0]);
        if (rule.sigmoid) all = 1, sum = 1e-20L;
        for (int64_t s = 0; s < k; s++) {
            int64_t better = 0;
            for (int32_t e = 0; e < n && found[s] >= 0 && found[s] < n; e++) better += before(by, e, found[s]) && open_to(by, &rule, e);
            if (found[s] < 0 || found[s] >= n || better != s || !open_to(by, &rule, found[s])) ck_fail(c, "%lld of %lld: slot %lld has expert %d, which is number %lld", (long long)k, (long long)n, (long long)s, found[s], (long long)better);
            else sum += score_of(&rule, l, found[s], found[0]);
        }
        for (int64_t s = 0; s < k && !any_nan && found[s] >= 0 && found[s] < n; s++) {
            const double want = (double)(score_of(&rule, l, found[s], found[0]) / (rule.raw ? all : sum)) * (rule.scale > 0 ? rule.scale : 1);
            ck_bound(c, ck_ulp(w[s], want), 1, "weight %lld of %lld: expected %.9g, found %.9g", (long long)s, (long long)k, want, w[s]);
            if (k == 1 && !rule.raw && !rule.sigmoid && !(rule.scale > 0) && w[0] != 1) ck_fail(c, "weight of a lone expert: expected 1, found %.9g", w[0]);
        }
        if (any_nan && !isnan(w[0])) ck_fail(c, "a logit is no number, the weight is %.9g", w[0]);
        ck_buf_check(c, &ids, "experts"), ck_buf_check(c, &weights, "weights");
        oz_free(by), oz_free(bias);
        ck_buf_free(&logits), ck_buf_free(&ids), ck_buf_free(&weights);
    }
}

void ck_combine(ck *c) {
    for (int i = 0; i < 300; i++, c->n_cases++) {
        const int64_t n = ck_int(c, 1, 70), k = ck_int(c, 1, 8), ld = n + ck_int(c, 0, 5), n_rows = k + ck_int(c, 0, 9);
        ck_buf x = ck_buf_new((size_t)(n_rows * ld) * sizeof(float), 4 * (size_t)ck_int(c, 0, 7)), y = ck_buf_new((size_t)n * sizeof(float), 4 * (size_t)ck_int(c, 0, 7));
        float weights[8], *want = oz_alloc_array((size_t)n, sizeof *want);
        int32_t rows[8];
        ck_fill(c, x.p, n_rows * ld, (ck_pattern)(i % CK_PATTERNS));
        for (int64_t s = 0; s < k; s++) weights[s] = (float)oz_rng_uniform(&c->rng), rows[s] = (int32_t)ck_int(c, 0, n_rows - 1);
        c->dev.table.combine(y.p, x.p, ld, rows, weights, k, n);
        for (int64_t s = 0; s < k; s++) {
            for (int64_t j = 0; j < n; j++) {
                const float p = weights[s] * ((const float *)x.p)[rows[s] * ld + j];
                want[j] = s ? want[j] + p : p;
            }
        }
        ck_same(c, y.p, want, (size_t)n * sizeof *want, "weighted sum");
        ck_buf_check(c, &y, "weighted sum");
        oz_free(want);
        ck_buf_free(&x), ck_buf_free(&y);
    }
}

/* ---- a whole call ---- */

enum { PROJECTIONS = 2 }; /* that share an input, as gate and up do: their outputs stand side by side */
typedef struct moe {
    int64_t n_tok, n_experts, k, rows, cols, wide; /* wide: rows of all projections */
    oz_form form;
    bool exact;            /* sums of whole numbers, scales that are powers of two: no rounding at all in a product */
    oz_weight *w;          /* [PROJECTIONS, n_experts], with scales of their own */
    oz_packed **p;
    float *x, *logits;
    oz_route route;
    oz_rows spread, plain; /* inputs of the product by sorted row, as the form says; and as f32 */
    ck_buf y, out;         /* [pairs, wide], [n_tok, wide] */
} moe;

static float *normals(ck *c, int64_t n) {
    float *x = oz_alloc_array((size_t)n, sizeof *x);
    ck_fill(c, x, n, CK_NORMAL);
    return x;
}

/* Scales in f32, or in bf16, which stay so in memory. */
static void weight_init(ck *c, oz_weight *w, const moe *m, bool narrow) {
    int8_t *codes = oz_alloc((size_t)(m->rows * m->cols));
    float *wide = oz_alloc_array((size_t)m->rows, sizeof *wide);
    uint16_t *bf16 = oz_alloc_array((size_t)m->rows, sizeof *bf16);
    for (int64_t j = 0; j < m->rows * m->cols; j++) codes[j] = (int8_t)ck_int(c, -127, 127);
    for (int64_t r = 0; r < m->rows; r++) wide[r] = m->exact ? ldexpf(1, (int)-ck_int(c, 0, 9)) : (float)(0.01 + oz_rng_uniform(&c->rng)), bf16[r] = oz_bf16_from_f32(wide[r]);
    for (int64_t j = 0; j < m->cols; j++) codes[m->rows / 2 * m->cols + j] = 0; /* a channel of zeros */
    *w = (oz_weight){.codec = OZ_CODEC_I8, .rows = m->rows, .cols = m->cols, .codes = codes, .row_bytes = m->cols, .scales = narrow ? (void *)bf16 : (void *)wide,
                     .scale_dtype = narrow ? OZ_DTYPE_BF16 : OZ_DTYPE_F32, .group_size = m->cols};
    oz_free(narrow ? (void *)wide : (void *)bf16);
}

static oz_form form_of(ck *c, int i) {
    static const oz_form forms[] = {OZ_FORM_F32, OZ_FORM_Q8, OZ_FORM_BF16};
    const oz_form f = forms[i % 3];
    return c->dev.table.gemm[OZ_WKIND_I8][f].gemm ? f : OZ_FORM_F32;
}

static void moe_init(ck *c, moe *m, int i) {
    memset(m, 0, sizeof *m);
    m->n_tok = i % 4 ? ck_int(c, 1, 30) : 1, m->n_experts = ck_int(c, 1, 12), m->k = i % 5 ? ck_int(c, 1, m->n_experts) : m->n_experts;
    m->rows = ck_int(c, 1, 90), m->cols = ck_int(c, 1, 120), m->form = form_of(c, i), m->exact = i % 7 == 3, m->wide = PROJECTIONS * m->rows;
    const int64_t n = PROJECTIONS * m->n_experts;
    m->w = oz_alloc_array((size_t)n, sizeof *m->w), m->p = oz_alloc_array((size_t)n, sizeof *m->p);
    for (int64_t e = 0; e < n; e++) {
        weight_init(c, &m->w[e], m, i % 2);
        if (oz_cpu_pack(&m->p[e], &c->dev.head, &m->w[e], 0, m->rows, m->form, NULL) != OZ_OK) ck_fail(c, "pack failed");
    }
    m->x = normals(c, m->n_tok * m->cols);
    for (int64_t j = 0; m->exact && j < m->n_tok * m->cols; j++) m->x[j] = j % m->cols ? (float)ck_int(c, -127, 127) : 127; /* Q8's scale is 1 */
    m->logits = oz_alloc_array((size_t)(m->n_tok * m->n_experts), sizeof *m->logits);
    for (int64_t t = 0; t < m->n_tok; t++) fill_router(c, m->logits + t * m->n_experts, m->n_experts, i % 3 == 2 ? 3 : i % 3); /* 3: all to the first */
    const int64_t pairs = m->n_tok * m->k;
    m->route = (oz_route){.n_experts = m->n_experts, .top_k = m->k, .experts = oz_alloc_array((size_t)pairs, 4), .weights = oz_alloc_array((size_t)pairs, 4), .pairs = oz_alloc_array((size_t)pairs, 4),
                          .rows = oz_alloc_array((size_t)pairs, 4), .starts = oz_alloc_array((size_t)m->n_experts + 1, 4)};
    m->plain = (oz_rows){OZ_FORM_F32, oz_alloc_array((size_t)(pairs * m->cols), 4), m->cols, NULL};
    m->spread = m->form == OZ_FORM_F32 ? m->plain : (oz_rows){m->form, oz_alloc_array((size_t)(pairs * m->cols), 2), m->cols, oz_alloc_array((size_t)pairs, 4)};
    m->y = ck_buf_new((size_t)(pairs * m->wide) * sizeof(float), 0), m->out = ck_buf_new((size_t)(m->n_tok * m->wide) * sizeof(float), 0);
}

static void moe_deinit(ck *c, moe *m) {
    for (int64_t e = 0; e < PROJECTIONS * m->n_experts; e++) {
        oz_cpu_packed_free(&c->dev.head, &m->p[e]);
        oz_free((void *)(uintptr_t)m->w[e].codes);
        oz_free((void *)(uintptr_t)m->w[e].scales);
    }
    if (m->form != OZ_FORM_F32) oz_free(m->spread.data), oz_free(m->spread.scales);
    void *all[] = {m->w, m->p, m->x, m->logits, m->route.experts, m->route.weights, m->route.pairs, m->route.rows, m->route.starts, m->plain.data};
    for (int i = 0; i < CK_COUNT(all); i++) oz_free(all[i]);
    ck_buf_free(&m->y), ck_buf_free(&m->out);
}

/* Tokens [t0, t0 + n) to out. */
static void moe_run(oz_cpu_dev *d, moe *m, int64_t t0, int64_t n, float *out) {
    const oz_ops *ops = d->head.ops;
    ops->route(&d->head, &m->route, m->logits + t0 * m->n_experts, m->n_experts, n);
    ops->sort(&d->head, &m->route, n);
    ops->spread(&d->head, &m->route, m->plain.data, m->cols, m->x + t0 * m->cols, m->cols, n, m->cols);
    if (m->form != OZ_FORM_F32) ops->quantize(&d->head, &m->spread, m->plain.data, m->cols, n * m->k, m->cols);
    for (int i = 0; i < PROJECTIONS; i++)
        ops->grouped_linear(&d->head, &(oz_grouped_args){(const oz_packed *const *)m->p + i * m->n_experts, &m->route, m->spread, (float *)m->y.p + i * m->rows, m->wide, n});
    ops->combine(&d->head, &m->route, out, m->wide, m->y.p, m->wide, n, m->wide);
}

/* Sorted rows: each pair once, by expert, and of one expert in order. */
static bool check_sorted(ck *c, const moe *m) {
    const oz_route *r = &m->route;
    const int64_t pairs = m->n_tok * m->k;
    bool good = r->starts[0] == 0 && r->starts[m->n_experts] == pairs;
    for (int64_t e = 0; e < m->n_experts && good; e++) {
        good = r->starts[e] <= r->starts[e + 1];
        for (int64_t i = r->starts[e]; i < r->starts[e + 1] && good; i++)
            good = r->pairs[i] >= 0 && r->pairs[i] < pairs && r->experts[r->pairs[i]] == e && r->rows[r->pairs[i]] == i && (i == r->starts[e] || r->pairs[i] > r->pairs[i - 1]);
    }
    if (!good) ck_fail(c, "%lld tokens, %lld of %lld experts: not sorted", (long long)m->n_tok, (long long)m->k, (long long)m->n_experts);
    return good;
}

static double input_at(const moe *m, int64_t row, int64_t tok, int64_t i) {
    if (m->form == OZ_FORM_Q8) return ((const int8_t *)m->spread.data)[row * m->cols + i];
    if (m->form == OZ_FORM_BF16) return oz_f32_from_bf16(((const uint16_t *)m->spread.data)[row * m->cols + i]);
    return m->x[tok * m->cols + i];
}

/* Sum of one row of a product in f64, from codes and activations as they are stored, with their scales; *mag: of magnitudes. */
static double sum_at(const moe *m, int64_t row, int64_t tok, int64_t s, int64_t r, double *mag) {
    const oz_weight *w = &m->w[r / m->rows * m->n_experts + m->route.experts[tok * m->k + s]];
    const int64_t own = r % m->rows;
    const int8_t *codes = (const int8_t *)w->codes + own * m->cols;
    float scale;
    oz_to_f32(&scale, w->scale_dtype, (const char *)w->scales + own * oz_dtype_get(w->scale_dtype)->block_bytes, 1);
    double sum = 0, all = 0;
    for (int64_t i = 0; i < m->cols; i++) {
        const double p = codes[i] * input_at(m, row, tok, i);
        sum += p, all += fabs(p);
    }
    const double f = scale * (m->form == OZ_FORM_Q8 ? (double)m->spread.scales[row] : 1);
    *mag = all * f;
    return sum * f;
}

/* The bound: with u = 2^-24, a term of the sum meets the rounding of its product and at most `cols` additions, then the scale's product (two with the
 * activation's scale), the weight's product and at most k additions; (1 + u)^(cols + k + 4) - 1 < u (cols + k + 8) for all sizes here. Codes, activations,
 * scales and weights are taken as they are stored and add nothing. Without rounding, which `exact` is made for, the product is the sum. */
static void check_output(ck *c, const moe *m, int64_t t, int64_t r) {
    const oz_route *o = &m->route;
    double want = 0, mag = 0;
    for (int64_t s = 0; s < m->k; s++) {
        const int64_t row = o->rows[t * m->k + s];
        double all;
        const double sum = sum_at(m, row, t, s, r, &all), weight = o->weights[t * m->k + s];
        const float got = ((const float *)m->y.p)[row * m->wide + r];
        if (m->exact && got != sum) ck_fail(c, "exact sums: token %lld slot %lld row %lld: expected %.9g, found %.9g", (long long)t, (long long)s, (long long)r, sum, got);
        want += weight * sum, mag += fabs(weight) * all;
    }
    const float got = ((const float *)m->out.p)[t * m->wide + r];
    ck_bound(c, fabs(got - want), 0x1p-24 * (double)(m->cols + m->k + 8) * mag, "%lld tokens, %lld of %lld experts: token %lld row %lld: expected %.9g, found %.9g",
             (long long)m->n_tok, (long long)m->k, (long long)m->n_experts, (long long)t, (long long)r, want, got);
}

static void swap(float *a, float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float x = a[i];
        a[i] = b[i], b[i] = x;
    }
}

/* The same tokens in another order, and their results put back. */
static void check_shuffled(ck *c, moe *m, float *other) {
    int64_t *at = oz_alloc_array((size_t)m->n_tok, sizeof *at);
    for (int64_t t = 0; t < m->n_tok; t++) {
        at[t] = ck_int(c, t, m->n_tok - 1);
        swap(m->x + t * m->cols, m->x + at[t] * m->cols, at[t] == t ? 0 : m->cols);
        swap(m->logits + t * m->n_experts, m->logits + at[t] * m->n_experts, at[t] == t ? 0 : m->n_experts);
    }
    moe_run(&c->many, m, 0, m->n_tok, other);
    for (int64_t t = m->n_tok - 1; t >= 0; t--) swap(other + t * m->wide, other + at[t] * m->wide, at[t] == t ? 0 : m->wide);
    ck_same(c, other, m->out.p, (size_t)(m->n_tok * m->wide) * sizeof *other, "tokens in another order");
    oz_free(at);
}

void ck_op_experts(ck *c) {
    for (int i = 0; i < 90; i++, c->n_cases++) {
        moe m;
        moe_init(c, &m, i);
        const size_t row_bytes = (size_t)m.wide * sizeof(float);
        float *other = oz_alloc((size_t)m.n_tok * row_bytes);
        moe_run(&c->many, &m, 0, m.n_tok, m.out.p);
        ck_buf_check(c, &m.y, "product"), ck_buf_check(c, &m.out, "output");
        if (check_sorted(c, &m)) {
            for (int64_t t = 0; t < m.n_tok; t++)
                for (int64_t r = 0; r < m.wide; r++) check_output(c, &m, t, r);
        }
        moe_run(&c->dev, &m, 0, m.n_tok, other);
        ck_same(c, other, m.out.p, (size_t)m.n_tok * row_bytes, "one thread and three");
        for (int64_t t = 0; t < m.n_tok; t++) moe_run(&c->dev, &m, t, 1, other + t * m.wide);
        ck_same(c, other, m.out.p, (size_t)m.n_tok * row_bytes, "a token alone and in company");
        check_shuffled(c, &m, other);
        oz_free(other);
        moe_deinit(c, &m);
    }
}
