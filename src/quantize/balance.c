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

/* v: magnitudes of columns [0, n) of a row, scaled, in one step of rounding. Adds the squared largest to each column by its share, and returns it. */
static double shares_add(double *out, const float *v, int64_t n, double weight) {
    float most = 0, all = 0;
    for (int64_t c = 0; c < n; c++) most = v[c] > most ? v[c] : most;
    if (!(most > 0)) return 0;
    const float by = 1 / most;
    for (int64_t c = 0; c < n; c++) all += eighth(v[c] * by);
    const double a = weight * (double)most * (double)most;
    for (int64_t c = 0; c < n; c++) out[c] += a * (double)(eighth(v[c] * by) / all);
    return a;
}

enum { BAND = 64 }; /* rows of a unit of work, tokens or the weight's */

/* Some rows of a reader: what they add for each column, and in all for each group of columns. */
typedef struct unit { const oz_balance *b; bool is_weight; int64_t begin, end, n_groups; double *top, *steps; float *v; } unit;
typedef struct pulling { unit *units; const float *s; } pulling;

static void unit_pull(const unit *u, const float *s) {
    const oz_balance *b = u->b;
    const int64_t group = u->is_weight ? b->group : b->cols;
    const double step = u->is_weight ? b->weight_step : b->input_step;
    memset(u->top, 0, (size_t)(b->cols + u->n_groups) * sizeof *u->top);
    for (int64_t r = u->begin; r < u->end; r++) {
        const float *row = (u->is_weight ? b->w : b->x) + r * b->cols;
        for (int64_t c = 0; c < b->cols; c++) u->v[c] = u->is_weight ? fabsf(row[c]) * s[b->scale_of[c]] : fabsf(row[c]) / s[b->scale_of[c]];
        for (int64_t c0 = 0, g = 0; c0 < b->cols; c0 += group, g++) u->steps[g] += shares_add(u->top + c0, u->v + c0, b->cols - c0 < group ? b->cols - c0 : group, step * step);
    }
}

static void units_pull(void *arg, int thread, int64_t begin, int64_t end) {
    const pulling *p = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) unit_pull(&p->units[i], p->s);
}

/* What wants scales larger and smaller, of one unit. */
static void inputs_add(double *up, double *down, const unit *u, const float *s) {
    const oz_balance *b = u->b;
    double out = 0;
    for (int64_t k = 0; k < b->n; k++) out += b->w_squares[k] * (double)s[k] * (double)s[k];
    for (int64_t c = 0; c < b->cols; c++) up[b->scale_of[c]] += b->weight * out * u->top[c];
    for (int64_t k = 0; k < b->n; k++) down[k] += b->weight * u->steps[0] * b->w_squares[k] * (double)s[k] * (double)s[k];
}

static void weights_add(double *up, double *down, const unit *u, const float *s) {
    const oz_balance *b = u->b;
    for (int64_t c0 = 0, g = 0; c0 < b->cols; c0 += b->group, g++) {
        const int64_t end = b->cols - c0 < b->group ? b->cols : c0 + b->group;
        double in = 0;
        for (int64_t c = c0; c < end; c++) {
            const int32_t k = b->scale_of[c];
            const double x = b->x_squares[c] / ((double)s[k] * (double)s[k]);
            in += x, up[k] += b->weight * u->steps[g] * x;
        }
        for (int64_t c = c0; c < end; c++) down[b->scale_of[c]] += b->weight * in * u->top[c];
    }
}

static size_t units_new(unit **out, const oz_balance *readers, size_t n_readers) {
    size_t n = 0, cap = 0;
    *out = NULL;
    for (size_t i = 0; i < n_readers; i++)
        for (int weight = readers[i].input_step > 0 ? 0 : 1; weight < 2; weight++) {
            const oz_balance *b = &readers[i];
            const int64_t rows = weight ? b->rows : b->n_tok, n_groups = weight ? (b->cols + b->group - 1) / b->group : 1;
            for (int64_t r = 0; r < rows; r += BAND) {
                oz_grow((void **)out, &cap, n + 1, sizeof **out);
                unit *u = &(*out)[n++];
                *u = (unit){b, weight, r, rows - r < BAND ? rows : r + BAND, n_groups, oz_alloc_array((size_t)(b->cols + n_groups), sizeof(double)), NULL, oz_alloc_array((size_t)b->cols, sizeof(float))};
                u->steps = u->top + b->cols;
            }
        }
    return n;
}

void oz_balance_run(float *s, const oz_balance *readers, size_t n_readers, int steps, oz_pool *pool) {
    static const double rate = 0.1, most = 0.3; /* of the logarithm of the ratio; a step in one go */
    const int64_t n = readers[0].n;
    unit *units;
    const size_t n_units = units_new(&units, readers, n_readers);
    double *up = oz_alloc_array((size_t)n * 2, sizeof *up), *down = up + n;
    for (int step = 0; step < steps; step++) {
        oz_pool_run(pool, (int64_t)n_units, 1, units_pull, &(pulling){units, s});
        memset(up, 0, (size_t)n * 2 * sizeof *up);
        for (size_t i = 0; i < n_units; i++) (units[i].is_weight ? weights_add : inputs_add)(up, down, &units[i], s);
        for (int64_t k = 0; k < n; k++)
            if (up[k] > 0 && down[k] > 0) s[k] *= (float)exp(fmin(fmax(rate * log(up[k] / down[k]), -most), most));
    }
    for (size_t i = 0; i < n_units; i++) {
        oz_free(units[i].top);
        oz_free(units[i].v);
    }
    oz_free(up);
    oz_free(units);
}
