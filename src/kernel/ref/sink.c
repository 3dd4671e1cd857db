/* What is kept of a row of logits. Exponentials and sums in f64 from the f32 logits (measure's definition). */
#include <math.h>
#include "kernel/ref/ref.h"

typedef struct row_max { float value; int32_t at; } row_max;

static row_max find_max(const float *x, int64_t n) {
    row_max m = {x[0], 0};
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > m.value) m = (row_max){x[i], (int32_t)i};
    }
    return m;
}

void oz_stat__ref(oz_row_stat *out, const float *logits, int32_t target, int64_t vocab) {
    row_max m = find_max(logits, vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - m.value);
    *out = (oz_row_stat){m.value, target < 0 ? 0 : logits[target], m.value + log(sum), m.at};
}

/* KL(ref || x) = sum p_ref (log p_ref - log p) = sum p_ref (ref - x) + lse - lse_ref. A token that ref excludes (-inf) adds nothing. */
void oz_kl__ref(oz_kl_stat *out, const float *ref, const float *logits, int32_t target, int64_t vocab) {
    row_max mr = find_max(ref, vocab), m = find_max(logits, vocab);
    double sum_ref = 0, sum = 0, diff = 0;
    for (int64_t i = 0; i < vocab; i++) {
        double e = exp((double)ref[i] - mr.value);
        sum_ref += e;
        sum += exp((double)logits[i] - m.value);
        if (e > 0) diff += e * ((double)ref[i] - logits[i]);
    }
    double lse_ref = mr.value + log(sum_ref), lse = m.value + log(sum);
    *out = (oz_kl_stat){.kl = diff / sum_ref + lse - lse_ref, .argmax_ref = mr.at, .argmax = m.at};
    if (target < 0) return;
    out->nll_ref = lse_ref - ref[target];
    out->nll = lse - logits[target];
    out->p_ref = exp(-out->nll_ref);
    out->p = exp(-out->nll);
}
