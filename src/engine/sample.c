/* Sampling policy: from raw logits to one id. Candidates come out of a heap in order, only as many as the filters need. */
#include <math.h>
#include "base/mem.h"
#include "engine/engine.h"

typedef struct cand { float logit; int32_t id; } cand;
struct oz_sampler { int64_t vocab; cand *heap, *sorted; double *p; /* of sorted, relative to the best */ };

oz_status oz_sampler_new(oz_sampler **out, int64_t vocab, oz_err *err) {
    oz_sampler *s = *out = oz_alloc(sizeof *s);
    s->vocab = vocab;
    oz_status st = oz_big_new((void **)&s->heap, (size_t)vocab * sizeof *s->heap, "sampler", err);
    if (st == OZ_OK) st = oz_big_new((void **)&s->sorted, (size_t)vocab * sizeof *s->sorted, "sampler", err);
    if (st == OZ_OK) st = oz_big_new((void **)&s->p, (size_t)vocab * sizeof *s->p, "sampler", err);
    if (st != OZ_OK) oz_sampler_free(out);
    return st;
}

void oz_sampler_free(oz_sampler **s) {
    if (!*s) return;
    oz_big_free((*s)->heap);
    oz_big_free((*s)->sorted);
    oz_big_free((*s)->p);
    oz_free(*s);
    *s = NULL;
}

/* a before b: the higher logit, then the lower id. */
static bool before(cand a, cand b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

static void sift(cand *h, int64_t i, int64_t n) {
    for (int64_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && before(h[k + 1], h[k])) k++;
        if (!before(h[k], h[i])) return;
        const cand t = h[i];
        h[i] = h[k], h[k] = t;
    }
}

/* Weight of a logit relative to the best one's 1. */
static double weight(float logit, float best, double temperature) { return exp(((double)logit - best) / temperature); }

/* Fills sorted and p with the candidates that pass top_k, then top_p, then min_p; returns how many (at least 1). */
static int64_t filter(oz_sampler *s, const oz_sampling *o, const float *logits, float best) {
    const int64_t v = s->vocab, k = o->top_k > 0 && o->top_k < v ? o->top_k : v;
    double total = 0.0; /* mass that top_p is a share of: what top_k leaves */
    for (int64_t i = 0; i < v && k == v; i++) total += weight(logits[i], best, o->temperature);
    for (int64_t i = v / 2; i-- > 0;) sift(s->heap, i, v);
    int64_t n = 0;
    double sum = 0.0;
    for (int64_t left = v; n < k && (k < v || sum < o->top_p * total); n++) {
        s->sorted[n] = s->heap[0];
        sum += s->p[n] = weight(s->sorted[n].logit, best, o->temperature);
        s->heap[0] = s->heap[--left];
        sift(s->heap, 0, left);
    }
    if (k < v && o->top_p < 1.0) {
        int64_t m = 0;
        for (double kept = 0.0; m < n && kept < o->top_p * sum; m++) kept += s->p[m];
        n = m;
    }
    while (n > 1 && s->p[n - 1] < o->min_p) n--;
    return n > 0 ? n : 1;
}

int32_t oz_sampler_draw(oz_sampler *s, oz_rng *rng, const oz_sampling *o, const float *logits) {
    const int64_t v = s->vocab;
    cand best = {logits[0], 0};
    for (int64_t i = 0; i < v; i++) {
        s->heap[i] = (cand){logits[i], (int32_t)i};
        if (before(s->heap[i], best)) best = s->heap[i];
    }
    if (o->temperature <= 0.0 || o->top_k == 1) return best.id;
    int64_t n = 0;
    if (o->top_p < 1.0 || (o->top_k > 0 && o->top_k < v)) n = filter(s, o, logits, best.logit);
    else
        for (int64_t i = 0; i < v; i++) { /* order does not matter */
            const double w = weight(logits[i], best.logit, o->temperature);
            if (w < o->min_p) continue;
            s->sorted[n] = s->heap[i];
            s->p[n++] = w;
        }
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += s->p[i];
    double u = oz_rng_uniform(rng) * sum;
    for (int64_t i = 0; i < n - 1; i++)
        if ((u -= s->p[i]) < 0.0) return s->sorted[i].id;
    return s->sorted[n - 1].id;
}
