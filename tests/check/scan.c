/* Layers that scan: the convolution and the selective scan against f64, over segments that begin anew and that go on from a slot, whole, by channels and
 * token by token. */
#include "kernel/step.h"
#include "suites.h"

enum { MAX_TOK = 9 };
typedef struct shape { int64_t n, n_tok, pos0, ld; oz_seg seg; } shape;

static shape draw(ck *c, int i) {
    shape s = {.n = i % 3 ? ck_int(c, 1, 40) : 8 * ck_int(c, 1, 9), .n_tok = ck_int(c, 1, MAX_TOK), .pos0 = i % 2 ? ck_int(c, 1, 50) : 0};
    s.seg = (oz_seg){ck_int(c, 0, 2), s.n_tok, s.pos0, NULL};
    return s;
}

static float *normals(ck *c, int64_t n) {
    float *x = oz_alloc_array((size_t)n, sizeof *x);
    ck_fill(c, x, n, CK_NORMAL);
    return x;
}

/* A slot as it is before the call: NaN where the segment begins anew, since that must not be read. */
static void slot_fill(ck *c, ck_buf *state, const shape *s) {
    if (s->pos0) ck_fill(c, state->p, (int64_t)(state->n_bytes / sizeof(float)), CK_NORMAL);
}

static double silu(double x) { return x / (1 + exp(-x)); }

/* run: one segment, its slot, channels [c0, c1). The same bits whole, in two halves of the channels, and token by token; state has what it should. */
typedef void run_fn(ck *c, const void *args, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
static void check_parts(ck *c, run_fn *run, const void *args, const shape *s, const ck_buf *before, const ck_buf *after, ck_buf *y) {
    float *want = oz_alloc(y->n_bytes), *state = oz_alloc(before->n_bytes);
    memcpy(want, y->p, y->n_bytes);
    memset(y->p, 0xff, y->n_bytes), memcpy(state, before->p, before->n_bytes);
    const int64_t half = s->n / 16 * 8;
    for (int64_t t = 0; t < s->n_tok; t++) {
        const oz_seg one = {s->seg.tok0 + t, 1, s->pos0 + t, NULL};
        run(c, args, &one, state, 0, half), run(c, args, &one, state, half, s->n);
    }
    ck_same(c, y->p, want, y->n_bytes, "token by token, channels in two parts");
    ck_same(c, state, after->p, before->n_bytes, "the slot");
    oz_free(want), oz_free(state);
}

static void run_conv(ck *c, const void *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) { c->dev.table.conv(a, seg, state, c0, c1); }
static void run_scan(ck *c, const void *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) { c->dev.table.scan(a, seg, state, c0, c1); }

static void conv_against(ck *c, const oz_conv_args *a, const shape *s, const float *before) {
    for (int64_t t = 0; t < s->n_tok; t++) {
        for (int64_t ch = 0; ch < s->n; ch++) {
            double sum = a->bias ? a->bias[ch] : 0, mag = fabs(sum);
            for (int64_t k = 0; k < a->taps; k++) {
                const int64_t at = t - a->taps + 1 + k;
                const double x = at >= 0 ? a->x[(s->seg.tok0 + at) * a->ld + ch] : s->pos0 ? before[(at + a->taps - 1) * s->n + ch] : 0;
                sum += a->w[k * s->n + ch] * x, mag += fabs(a->w[k * s->n + ch] * x);
            }
            const float got = a->y[(s->seg.tok0 + t) * a->ld + ch];
            ck_bound(c, fabs(got - silu(sum)), 0x1p-24 * (double)(a->taps + 8) * mag, "token %lld, channel %lld of %lld: expected %.9g, found %.9g", (long long)t, (long long)ch, (long long)s->n, silu(sum), got);
        }
    }
}

void ck_conv(ck *c) {
    for (int i = 0; i < 150 && !ck_enough(c); i++, c->n_cases++) {
        shape s = draw(c, i);
        const int64_t taps = ck_int(c, 1, 5), n_rows = s.seg.tok0 + s.n_tok;
        s.ld = s.n + ck_int(c, 0, 5);
        float *x = normals(c, n_rows * s.ld), *w = normals(c, taps * s.n), *bias = normals(c, s.n);
        ck_buf y = ck_buf_new((size_t)(n_rows * s.ld) * sizeof(float), 0), before = ck_buf_new((size_t)((taps - 1) * s.n) * sizeof(float), 0), after = ck_buf_new(before.n_bytes, 0);
        slot_fill(c, &before, &s);
        memcpy(after.p, before.p, before.n_bytes);
        const oz_conv_args a = {x, y.p, s.ld, w, i % 4 ? bias : NULL, NULL, s.n, taps};
        c->dev.table.conv(&a, &s.seg, after.p, 0, s.n);
        conv_against(c, &a, &s, before.p);
        check_parts(c, run_conv, &a, &s, &before, &after, &y);
        ck_buf_check(c, &y, "output"), ck_buf_check(c, &after, "slot");
        ck_buf_free(&y), ck_buf_free(&before), ck_buf_free(&after);
        oz_free(x), oz_free(w), oz_free(bias);
    }
}

/* h in f64 from the first token of the call on. An h errs by some units of its last place a step, which exp(dt a) < 1 lets fade. */
static void scan_against(ck *c, const oz_scan_args *a, const shape *s, const float *before) {
    for (int64_t ch = 0; ch < s->n; ch++) {
        double h[64] = {0}, mag[64] = {0};
        for (int64_t i = 0; i < a->n_state && s->pos0; i++) h[i] = before[i * s->n + ch], mag[i] = fabs(h[i]);
        for (int64_t t = s->seg.tok0; t < s->seg.tok0 + s->n_tok; t++) {
            const double in = a->dt[t * a->ld + ch], dt = in > 20 ? in : log1p(exp(in)), x = a->x[t * a->ld + ch], g = silu(a->gate[t * a->ld + ch]);
            double y = a->d[ch] * x, m = fabs(y);
            for (int64_t i = 0; i < a->n_state; i++) {
                const double e = exp(dt * a->a[i * s->n + ch]), put = dt * a->b[t * a->ld + i] * x;
                h[i] = e * h[i] + put, mag[i] = e * mag[i] + fabs(put);
                y += a->c[t * a->ld + i] * h[i], m += fabs(a->c[t * a->ld + i]) * mag[i];
            }
            const float got = a->y[t * a->ld_y + ch];
            ck_bound(c, fabs(got - y * g), 0x1p-24 * (double)(a->n_state + 24 + 8 * s->n_tok) * m * fabs(g) + 0x1p-140, "token %lld, channel %lld of %lld, %lld values: expected %.9g, found %.9g",
                     (long long)(t - s->seg.tok0), (long long)ch, (long long)s->n, (long long)a->n_state, y * g, got);
        }
    }
}

void ck_scan(ck *c) {
    for (int i = 0; i < 150 && !ck_enough(c); i++, c->n_cases++) {
        shape s = draw(c, i);
        const int64_t n_state = ck_int(c, 1, 20), n_rows = s.seg.tok0 + s.n_tok, ld_y = s.n + ck_int(c, 0, 5);
        s.ld = 3 * s.n + 2 * n_state + ck_int(c, 0, 5);
        float *in = normals(c, n_rows * s.ld), *a_own = normals(c, n_state * s.n), *d = normals(c, s.n);
        for (int64_t k = 0; k < n_state * s.n; k++) a_own[k] = -expf(a_own[k]);
        for (int64_t t = 0; t < n_rows && i % 5 == 2; t++) in[t * s.ld + s.n] = 30; /* where softplus is the value itself */
        for (int64_t t = 0; t < n_rows && i % 5 == 3; t++) in[t * s.ld + s.n] *= 15; /* far on both sides of it */
        ck_buf y = ck_buf_new((size_t)(n_rows * ld_y) * sizeof(float), 0), before = ck_buf_new((size_t)(n_state * s.n) * sizeof(float), 0), after = ck_buf_new(before.n_bytes, 0);
        slot_fill(c, &before, &s);
        memcpy(after.p, before.p, before.n_bytes);
        const oz_scan_args a = {in, in + s.n, in + 3 * s.n, in + 3 * s.n + n_state, in + 2 * s.n, s.ld, y.p, ld_y, a_own, d, NULL, s.n, n_state};
        c->dev.table.scan(&a, &s.seg, after.p, 0, s.n);
        scan_against(c, &a, &s, before.p);
        check_parts(c, run_scan, &a, &s, &before, &after, &y);
        ck_buf_check(c, &y, "output"), ck_buf_check(c, &after, "slot");
        ck_buf_free(&y), ck_buf_free(&before), ck_buf_free(&after);
        oz_free(in), oz_free(a_own), oz_free(d);
    }
}

/* Segments with slots of their own, in any order: each as it is alone. */
void ck_op_scan(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        const int64_t n = ck_int(c, 1, 200), n_state = ck_int(c, 1, 16), ld = 3 * n + 2 * n_state, n0 = ck_int(c, 1, 9), n1 = ck_int(c, 1, 9), slot = n_state * n;
        float *in = normals(c, (n0 + n1) * ld), *a_own = normals(c, slot), *d = normals(c, n), *state = normals(c, 3 * slot), *alone = oz_alloc_array((size_t)slot, sizeof *alone);
        ck_buf y = ck_buf_new((size_t)((n0 + n1) * n) * sizeof(float), 0), want = ck_buf_new(y.n_bytes, 0);
        for (int64_t k = 0; k < slot; k++) a_own[k] = -fabsf(a_own[k]);
        const oz_seg segs[2] = {{0, n0, 7, NULL}, {n0, n1, 0, NULL}};
        const int32_t slots[2] = {2, 0};
        oz_scan_args a = {in, in + n, in + 3 * n, in + 3 * n + n_state, in + 2 * n, ld, want.p, n, a_own, d, NULL, n, n_state};
        for (int s = 0; s < 2; s++) {
            memcpy(alone, state + slots[s] * slot, (size_t)slot * sizeof *alone);
            c->dev.table.scan(&a, &segs[s], alone, 0, n);
        }
        a.y = y.p, a.state = state;
        ck_begin(c, &(oz_batch){.segs = segs, .n_segs = 2, .slots = slots});
        c->many.head.ops->scan(&c->many.head, &a);
        ck_same(c, y.p, want.p, y.n_bytes, "segments with slots");
        ck_same(c, state, alone, (size_t)slot * sizeof *alone, "the last segment's slot");
        ck_buf_check(c, &y, "output");
        ck_buf_free(&y), ck_buf_free(&want);
        oz_free(in), oz_free(a_own), oz_free(d), oz_free(state), oz_free(alone);
    }
}
