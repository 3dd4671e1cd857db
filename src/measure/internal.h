/* Internal to measure/: windows of ids through one or more models with a state of their own; what the rules of verify share. */
#ifndef OZ_MEASURE_INTERNAL_H
#define OZ_MEASURE_INTERNAL_H
#include "base/map.h"
#include "measure/measure.h"

/* States for windows of up to ctx tokens, and the arrays that a call needs. */
typedef struct oz_windows {
    oz_model *const *models;
    int n_models;
    oz_state **states;
    int32_t *blocks, *rows, *targets;
    int64_t ctx, step;
    void (*tap)(void *arg, const oz_tap *t); /* of calls, or NULL */
    void *tap_arg;
    const char *const *names; /* of the models, for messages; NULL: none */
} oz_windows;
oz_status oz_windows_init(oz_windows *w, oz_model *const *models, int n_models, int64_t ctx, oz_err *err);
void oz_windows_deinit(oz_windows *w);
/* Runs ids[0..n) from empty state. Positions p in [score0, n - 1) predict ids[p + 1]. Results in order of position: stats (one model) or
 * kls ([n_models - 1, n - 1 - score0]). Exactly one of the two is not NULL. OZ_E_FORMAT: logits that are not finite, of which no number can be made. */
oz_status oz_windows_run(oz_windows *w, const int32_t *ids, int64_t n, int64_t score0, oz_row_stat *stats, oz_kl_stat *kls, oz_err *err);

/* Quantiles of x[0..n) by linear interpolation between order statistics (numpy's default). Sorts x. */
void oz_quantiles_fill(oz_quantiles *q, double *x, int64_t n);

/* ---- verify ---- */
/* A checkpoint as far as it can be read, held against its own config. */
typedef struct oz_verify {
    const char *model;        /* as the user wrote it */
    const oz_findings *f;
    oz_pool *pool;
    oz_ckpt *ckpt;            /* NULL: nothing could be read */
    oz_arch_list list;        /* empty where the config says nothing that is known here */
    oz_scheme *schemes;       /* [list.n] */
    oz_map *modules, *names;  /* name of a module: the first of its list.items; name of a tensor: its item */
} oz_verify;
oz_status oz_verify_open(oz_verify *v, const char *model, const oz_findings *f, oz_pool *pool, oz_err *err); /* with all that loading would refuse it for */
void oz_verify_close(oz_verify *v);
/* False where the module's tensors are not what its scheme calls for. */
bool oz_verify_bind(oz_weight *w, const oz_verify *v, size_t i);
void oz_verify_drop(const oz_verify *v, size_t i); /* its pages will not be read again */
/* Groups of rules. A status only where it could not go on. */
oz_status oz_verify_weights(const oz_verify *v, oz_err *err); /* every code and scale: verify_weights.c */
oz_status oz_verify_tensors(const oz_verify *v, oz_err *err); /* which tensors and files there are: verify_tensors.c */
oz_status oz_verify_text(const oz_verify *v, oz_err *err);    /* tokenizer, template, ids: verify_text.c */

#endif
