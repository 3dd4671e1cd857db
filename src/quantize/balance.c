/* Scales by a model of the rounding: a step is its group's largest magnitude over the codes' range, and its error uniform. The error of the outputs is then
 *     F = sum_t a_t^2 sum_k s_k^2 w_k + sum_r sum_g b_rg^2 sum_{k in g} x_k / s_k^2
 * with a_t the largest of token t's divided inputs and b_rg that of a group of row r's multiplied weights, in steps, and w_k, x_k the sums of squares of a column's weights and inputs. A scale
 * is wanted larger by the tokens whose largest input it divides, and by the errors of its own weights, which meet smaller inputs; it is wanted smaller by the rows whose largest weight it
 * multiplies, and by the errors of its own inputs, which meet larger weights. Where both weigh the same for each scale, F is least, and there is one such place: F is convex in the logarithms of s. A step moves each scale by their ratio; instead of the largest
 * alone, magnitudes near it count too, by their eighth power, or scales would only take turns. What comes of it is a proposal like the others, tried on the real rounding. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

static float eighth(float v) { v *= v, v *= v; return v * v; }

/* v: magnitudes of columns [0, n) of a row, scaled, in one step of rounding. Adds the squared largest to each scale by its share, and returns it. */
static double shares_add(double *out, const float *v, const int32_t *scale_of, int64_t n, double weight) {
    float most = 0, all = 0;
    for (int64_t c = 0; c < n; c++) most = v[c] > most ? v[c] : most;
    if (!(most > 0)) return 0;
    const float by = 1 / most;
    for (int64_t c = 0; c < n; c++) all += eighth(v[c] * by);
    const double a = weight * (double)most * (double)most;
    for (int64_t c = 0; c < n; c++) out[scale_of[c]] += a * (double)(eighth(v[c] * by) / all);
    return a;
}

/* What wants scales larger and smaller in one reader, and what it takes to find out. */
typedef struct pull { const oz_balance *b; double *up, *down, *top; float *v; } pull;

static void pull_inputs(const pull *p, const float *s) {
    const oz_balance *b = p->b;
    double in = 0, out = 0;
    memset(p->top, 0, (size_t)b->n * sizeof *p->top);
    for (int64_t t = 0; t < b->n_tok; t++) {
        for (int64_t c = 0; c < b->cols; c++) p->v[c] = fabsf(b->x[t * b->cols + c]) / s[b->scale_of[c]];
        in += shares_add(p->top, p->v, b->scale_of, b->cols, b->input_step * b->input_step);
    }
    for (int64_t k = 0; k < b->n; k++) out += b->w_squares[k] * (double)s[k] * (double)s[k];
    for (int64_t k = 0; k < b->n; k++) p->up[k] += out * p->top[k], p->down[k] += in * b->w_squares[k] * (double)s[k] * (double)s[k];
}

static void pull_weights(const pull *p, const float *s) {
    const oz_balance *b = p->b;
    for (int64_t c0 = 0; c0 < b->cols; c0 += b->group) {
        const int64_t n = b->cols - c0 < b->group ? b->cols - c0 : b->group;
        double steps = 0, in = 0;
        memset(p->top, 0, (size_t)b->n * sizeof *p->top);
        for (int64_t r = 0; r < b->rows; r++) {
            for (int64_t c = 0; c < n; c++) p->v[c] = fabsf(b->w[r * b->cols + c0 + c]) * s[b->scale_of[c0 + c]];
            steps += shares_add(p->top, p->v, b->scale_of + c0, n, b->weight_step * b->weight_step);
        }
        for (int64_t c = c0; c < c0 + n; c++) {
            const int32_t k = b->scale_of[c];
            const double x = b->x_squares[c] / ((double)s[k] * (double)s[k]);
            in += x, p->up[k] += steps * x;
        }
        for (int64_t c = c0; c < c0 + n; c++) {
            const int32_t k = b->scale_of[c];
            p->down[k] += in * p->top[k], p->top[k] = 0; /* once, where columns share it */
        }
    }
}

typedef struct pulling { pull *pulls; const float *s; } pulling;

static void readers_pull(void *arg, int thread, int64_t begin, int64_t end) {
    const pulling *q = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const pull *p = &q->pulls[i];
        memset(p->up, 0, (size_t)p->b->n * 2 * sizeof *p->up);
        if (p->b->input_step > 0) pull_inputs(p, q->s);
        pull_weights(p, q->s);
    }
}

void oz_balance_run(float *s, const oz_balance *readers, size_t n_readers, int steps, oz_pool *pool) {
    static const double rate = 0.1, most = 0.3; /* of the logarithm of the ratio; a step in one go */
    const int64_t n = readers[0].n, cols = readers[0].cols;
    pull *pulls = oz_alloc_array(n_readers, sizeof *pulls);
    for (size_t i = 0; i < n_readers; i++) {
        pulls[i] = (pull){.b = &readers[i], .up = oz_alloc_array((size_t)n * 3, sizeof(double)), .v = oz_alloc_array((size_t)cols, sizeof(float))};
        pulls[i].down = pulls[i].up + n, pulls[i].top = pulls[i].down + n;
    }
    for (int step = 0; step < steps; step++) {
        oz_pool_run(pool, (int64_t)n_readers, 1, readers_pull, &(pulling){pulls, s});
        for (int64_t k = 0; k < n; k++) {
            double up = 0, down = 0;
            for (size_t i = 0; i < n_readers; i++) up += readers[i].weight * pulls[i].up[k], down += readers[i].weight * pulls[i].down[k];
            if (up > 0 && down > 0) s[k] *= (float)exp(fmin(fmax(rate * log(up / down), -most), most));
        }
    }
    for (size_t i = 0; i < n_readers; i++) {
        oz_free(pulls[i].up);
        oz_free(pulls[i].v);
    }
    oz_free(pulls);
}
