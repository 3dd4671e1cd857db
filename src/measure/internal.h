/* Internal to measure/: windows of ids through one or more models with a state of their own. */
#ifndef OZ_MEASURE_INTERNAL_H
#define OZ_MEASURE_INTERNAL_H
#include "measure/measure.h"

/* States for windows of up to ctx tokens, and the arrays that a call needs. */
typedef struct oz_windows {
    oz_model *const *models;
    int n_models;
    oz_state **states;
    int32_t *blocks, *rows, *targets;
    int64_t ctx, step;
} oz_windows;
oz_status oz_windows_init(oz_windows *w, oz_model *const *models, int n_models, int64_t ctx, oz_err *err);
void oz_windows_deinit(oz_windows *w);
/* Runs ids[0..n) from empty state. Positions p in [score0, n - 1) predict ids[p + 1]. Results in order of position: stats (one model) or
 * kls ([n_models - 1, n - 1 - score0]). Exactly one of the two is not NULL. */
oz_status oz_windows_run(oz_windows *w, const int32_t *ids, int64_t n, int64_t score0, oz_row_stat *stats, oz_kl_stat *kls, oz_err *err);

/* Quantiles of x[0..n) by linear interpolation between order statistics (numpy's default). Sorts x. */
void oz_quantiles_fill(oz_quantiles *q, double *x, int64_t n);

#endif
