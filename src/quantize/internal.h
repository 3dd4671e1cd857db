/* What the makers of checkpoints share: a tensor is filled in chunks by all threads, written, and forgotten. */
#ifndef OZ_QUANTIZE_INTERNAL_H
#define OZ_QUANTIZE_INTERNAL_H
#include "base/map.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "kernel/calib.h"
#include "model/model.h"
#include "quantize/quantize.h"

/* ---- the plan of a quantization (rtn.c): what becomes of every tensor ---- */
typedef struct oz_quantize_item {
    const oz_arch_tensor *arch; /* NULL: a tensor that the architecture does not know, kept as it is */
    const oz_tensor *tensor;    /* where it comes from */
    oz_weight weight;           /* the same in rows; codec plain */
    bool quantized, absent;     /* absent: a tied head, written nowhere */
    oz_scheme scheme;           /* where quantized */
    bool gptq, imatrix, made;   /* its codes, or its scales alone, are chosen with calibration text; they have been */
    bool ignored, moved;        /* a pattern says to leave it as it is; a fold changes it */
    float *cols_by, *rows_by;   /* what folds multiply its columns by, and divide its rows by; NULL: nothing */
    float input_scale;          /* of a static input, once it is calibrated */
    int8_t input_zero;
    oz_dtype dtype;             /* of what is kept */
    size_t bytes;
} oz_quantize_item;

typedef struct oz_cache { char *module, *tensors[2]; /* the attention's; the scales of its keys and values */ bool made; } oz_cache;
typedef struct oz_transform oz_transform;
typedef struct oz_quantize_fold { const oz_fold *of; bool powers; /* scales must be powers of two */ } oz_quantize_fold;

struct oz_quantize {
    const oz_ckpt *ckpt;
    oz_dtype model_dtype;
    oz_arch_list list; /* as if the embeddings were not tied: the head has a row */
    bool tied;
    oz_quantize_item *items; /* those of list first, in its order */
    size_t n_items;
    size_t *modules; /* of items: the matrices */
    size_t n_modules;
    oz_layout *layout;
    json_t *config, *recipe, *budget; /* recipe, budget (its report): NULL without one */
    json_t *asked;                    /* targets, ignore, as far as they were given */
    double dampening;        /* of GPTQ */
    const oz_transform *transform; /* chooses the scales of folds; NULL: there are none */
    char *method;                  /* as it was given */
    double strength;               /* of it; 0: searched, */
    unsigned variants; int n_grid; /* among those of its formulas (bits; 0: all), so many in all (0: its own number) */
    json_t *mappings;              /* of a recipe: which of the folds are done; NULL: all */
    oz_fold_list all_folds;        /* that the architecture allows, */
    oz_quantize_fold *folds; size_t n_folds; /* and those that are done */
    oz_kv_scheme kv; int64_t n_heads_kv;     /* of the cache */
    oz_cache *caches; int64_t n_caches;      /* of each layer, where it is quantized */
    bool all_experts;                        /* as in oz_quantize_cfg */
};
void oz_quantize_plan_add(oz_sha256 *s, const oz_quantize *q); /* all that the plan says, for what must be as it was begun with */
/* Fills in quantized, scheme and gptq of the items (select.c). */
oz_status oz_quantize_select(oz_quantize *q, const oz_quantize_cfg *cfg, oz_err *err);

/* A modifier of a recipe (recipe.c). config: config_groups and ignore, as in a quantization_config; mappings: [{path, from, to}]. */
typedef struct oz_modifier { char *path; bool gptq, rounds; double dampening, strength; unsigned variants; int n_grid; const char *preset; json_t *targets, *config, *mappings; oz_kv_scheme kv; } oz_modifier;
struct oz_recipe { json_t *json; oz_modifier *items; size_t n, cap; double dampening; /* of those that are GPTQ */ const oz_transform *transform; double strength; unsigned variants; int n_grid; const json_t *mappings; oz_kv_scheme kv; };

/* ounce_recipe.json in dir: how a checkpoint was made. */
oz_status oz_quantize_recipe_write(const json_t *recipe, const char *dir, oz_err *err);

typedef struct oz_stream oz_stream;
/* Rounded to nearest, or kept. */
oz_status oz_quantize_write_item(oz_quantize *q, oz_quantize_item *it, oz_stream *s, oz_err *err);

/* ---- folds (fold.c) ---- */
#define OZ_FOLD_LARGEST 1e4 /* of a scale, relative to their geometric mean */
/* Which folds are done: those that touch nothing but norms, quantized linears and routers that no pattern keeps as they are. OZ_E_ARG: none. */
oz_status oz_quantize_fold_plan(oz_quantize *q, oz_err *err);
void oz_quantize_fold_free(oz_quantize *q);
/* Scales [of->n], any, become such as can be stored without loss, their geometric mean about 1. */
void oz_fold_settle(float *s, const oz_quantize *q, const oz_quantize_fold *f);
void oz_fold_apply(oz_quantize *q, const oz_quantize_fold *f, const float *s); /* settled; from now on the items' values are folded */
void oz_fold_undo(oz_quantize_item *it);
void oz_item_fill(void *item, float *dst, int64_t begin, int64_t n); /* an oz_fill_fn: its values, folded */
/* The same as a weight: its own, or a copy in *mem (oz_big_free). */
oz_status oz_item_weight(oz_weight *out, void **mem, const oz_quantize_item *it, oz_pool *pool, oz_err *err);

/* ---- rows that modules read (sample.c) ---- */
typedef struct oz_sample { int64_t width, cap, n, seen, stride; float *rows /* [cap, width], n of them there */, *min, *max; double *sum, *squares; /* of magnitudes, and theirs; [width] */ oz_dev *dev; oz_range range; /* on a device; NULL: rows are on the host */ } oz_sample;
oz_status oz_sample_init(oz_sample *s, int64_t width, int64_t cap /* 0: no rows */, oz_dev *dev /* NULL: the host */, const char *what, oz_err *err);
void oz_sample_deinit(oz_sample *s);
void oz_sample_add(oz_sample *s, const float *rows, int64_t ld, int64_t n);
void oz_sample_close(oz_sample *s); /* when all are added: min, max, sum, squares are on the host from here on */

/* ---- a quantized cache (cache.c) ---- */
oz_status oz_cache_plan(oz_quantize *q, oz_err *err); /* nothing where it is not quantized */
void oz_cache_free(oz_quantize *q);
oz_status oz_cache_write(oz_quantize *q, int64_t layer, const oz_sample *seen /* of keys and values (OZ_TAP_KV) */, oz_writer *w, oz_err *err);

/* ---- the choice of scales (smooth.c) ---- */
/* A way to choose: a row of a table (method.c). */
typedef struct oz_fold_stats { int64_t n; float *x_max, *x_mean, *w_max, *w_mean; /* [n], of a scale's columns; w_mean of magnitudes relative to their group's largest */ } oz_fold_stats;
struct oz_transform { const char *name, *title; void (*scales)(float *s, const oz_fold_stats *st, double strength, int variant); int n_variants, n_grid; bool clips /* before rounding to nearest */, inputs; /* is for schemes that round them */ };
typedef struct oz_method { const oz_transform *transform; /* or NULL */ bool gptq, imatrix; /* neither: to nearest */ } oz_method;
oz_status oz_method_parse(oz_method *out, const char *text, oz_err *err); /* NULL: to nearest. OZ_E_USAGE */
typedef struct oz_reader { const oz_quantize_item *item; const oz_sample *sample; } oz_reader;
/* A reader as balance.c sees it. */
typedef struct oz_balance {
    int64_t n, n_tok, rows, cols, group; /* scales; group: columns that share a step */
    const int32_t *scale_of;             /* [cols] */
    const float *x, *w;                  /* [n_tok, cols], [rows, cols]: some of its rows */
    const double *x_squares, *w_squares; /* [cols], [n]: sums over them */
    double input_step, weight_step;      /* of the largest magnitude; input_step 0: inputs are not rounded */
    double weight;                       /* of its squared error */
} oz_balance;
void oz_balance_run(float *s, const oz_balance *readers, size_t n_readers, int steps, oz_pool *pool);
/* Scales for a fold, settled, and what there is to say of them: {from, modules, strength, balanced, before, after}: errors of the readers' outputs on their samples, rounded to nearest, relative to the outputs. */
oz_status oz_smooth_choose(float *s, json_t **entry, const oz_quantize *q, const oz_quantize_fold *f, const oz_reader *readers, size_t n, oz_pool *pool, oz_dev *dev /* that calibrates, or NULL */, oz_err *err);

/* Writes a module rounded to nearest, the range of each group clipped as costs its output on the sample (n > 0 rows, of inputs behind its fold) least. For schemes with a scale of its own for each row. */
bool oz_clip_fits(const oz_scheme *s);
typedef struct oz_clip_result { double before, after; } oz_clip_result; /* errors of the outputs relative to their squares, of whole ranges and of clipped ones, as if groups did not depend on each other */
oz_status oz_clip_write(oz_clip_result *out, oz_stream *s, const oz_reader *r, oz_dtype model_dtype, oz_dev *dev /* that calibrates, or NULL */, oz_err *err);
oz_status oz_trial_new(oz_trial **out, oz_dev *dev, const oz_quantize_item *it, const oz_rtn *rtn, int64_t n_tok, oz_pool *pool, oz_err *err); /* with the item's values, folded; closed by the device's table */

/* Writes a module rounded to nearest under the scales with the least error on the sample, each column's weighted by the mean square of its inputs (imatrix.c); schemes as for clipping. before, after: that
 * error of rounding to nearest and reached, relative to the weights'; NaN where no token came. */
#define OZ_IMATRIX_ADDED 0.01 /* of the mean weight, to each */
typedef struct oz_imatrix_error { double before, after; } oz_imatrix_error;
oz_status oz_imatrix_write(oz_imatrix_error *out, oz_stream *s, const oz_reader *r, oz_dtype model_dtype, oz_err *err);

/* ---- what experts saw (coverage.c), in a run's manifest ---- */
bool oz_is_fitted(const oz_quantize *q, const oz_quantize_item *it); /* the text has a say in what becomes of it */
void oz_coverage_note(json_t *manifest, const oz_arch_tensor *t, int64_t n_tok, bool all); /* nothing, where t is no expert's; all: it was calibrated on all tokens instead */
void oz_coverage_warn(const json_t *manifest, const oz_quantize *q, int64_t n_tok);        /* of experts that saw too little; others were spoken of before the start */
void oz_coverage_tell(const json_t *manifest, int64_t layer, int64_t n_tok);       /* a line of the log; n_tok: of the text */
int64_t oz_coverage_seen(const json_t *manifest, const oz_arch_tensor *t);         /* -1: it is no expert's, or nothing was noted */
/* The scale and zero point of static inputs, of what the samples show behind the items' folds; one for all. */
oz_status oz_input_scale(float *scale, float *zero, const oz_reader *readers, size_t n, oz_dtype model_dtype, oz_err *err);

/* ---- streaming ---- */

/* Values [begin, begin + n) of a tensor in f32; called by several threads at once for different ranges. */
typedef void oz_fill_fn(void *arg, float *dst, int64_t begin, int64_t n);

struct oz_stream {
    oz_writer *writer;
    oz_pool *pool;
    oz_progress progress; /* in bytes */
    int64_t done_bytes;
    void *chunk, *scales; /* of the output */
    float *scratch;       /* one piece a thread */
    size_t chunk_bytes, scales_bytes, scratch_bytes;
};
/* total_bytes: of all that will be written. */
void oz_stream_init(oz_stream *s, oz_writer *w, oz_pool *pool, const char *what, int64_t total_bytes);
void oz_stream_deinit(oz_stream *s);
/* n values of the tensor `name` as `to` (F32, F16, BF16). Ranges begin at multiples of `grain`, and all but the last have a
 * multiple of it: a block, or a row. OZ_E_FORMAT: a finite value that the type has no finite one for. */
oz_status oz_stream_put(oz_stream *s, const char *name, oz_dtype to, int64_t n, int64_t grain, oz_fill_fn *fill, void *arg, oz_err *err);
/* A band: rows of a module that share scales (block_rows of them, else one), as numbers. The maker fills them in, several threads at once for different bands; codes as in
 * oz_weight_codes, scales exact in their type. Under one scale for all rows, each band gives the same one. zeros are 0 before. */
typedef struct oz_band { int64_t row0, n_rows; float *codes /* [n_rows, cols] */, *scales, *zeros /* [n_groups] */; } oz_band;
typedef oz_status oz_band_fn(void *arg, const oz_band *b, oz_err *err);
/* What the tensors of a module are made of; beside the bands, what its scheme asks for. */
typedef struct oz_made { oz_band_fn *band; void *arg; const int32_t *g_idx; float divisor, input_scale; int8_t input_zero; } oz_made;
/* All tensors of a module under any scheme of compressed-tensors: the one writer of them. scale_dtype: F32, F16 or BF16, where the scheme leaves it open. */
oz_status oz_stream_made(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype scale_dtype, const oz_made *made, oz_err *err);
/* The same of values, rounded to nearest. fill is asked for whole rows; input_scale and input_zero: of a static input. OZ_E_FORMAT: a value that cannot
 * be quantized; the message names row and column. */
typedef struct oz_source { oz_fill_fn *fill; void *arg; float input_scale; int8_t input_zero; } oz_source;
oz_status oz_stream_rtn(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype model_dtype, const oz_source *source, oz_err *err);
/* ---- where a conversion takes tensors from (origin.c) ---- */
typedef struct oz_origin {
    const oz_ckpt *ckpt;
    oz_arch_list list;     /* as if the embeddings were not tied: the head has a row; empty, as all below, where the model is not known */
    oz_scheme *schemes;    /* [list.n] */
    oz_kv_scheme kv;
    bool tied;
    int64_t *first, *next; /* tensors of a module, by its first row: a list, -1 ends it; next [tensors] */
    oz_map *by_name;       /* module: its first row in the list */
} oz_origin;
/* o: zeroed; to be closed, whatever comes of it. */
oz_status oz_origin_open(oz_origin *o, const oz_ckpt *ckpt, bool weights_only, oz_err *err); /* weights_only: oz_scheme_resolve_weights */
void oz_origin_close(oz_origin *o);
int64_t oz_origin_row(const oz_origin *o, const char *module);   /* its first, or -1 */
int64_t oz_origin_owner(const oz_origin *o, const char *tensor); /* the first row of the module that it belongs to, or -1: of none, or of the cache */
bool oz_origin_lacks_head(const oz_origin *o, size_t row);       /* the row of a tied head, which has no tensor */
/* Modules that one checkpoint takes from another (take.c): an error where one does not fit; then what a user should hear. kept [base->list.n]: what stays the base's. */
oz_status oz_take_fits(const oz_origin *base, size_t row, const oz_origin *other, size_t at, oz_err *err);
void oz_take_warn(const oz_origin *base, const oz_origin *other, const bool *kept);
/* ---- other families in compressed-tensors (recode.c) ---- */
bool oz_scheme_is_native(const oz_scheme *s); /* of compressed-tensors itself */
typedef struct oz_recode { const oz_scheme *from; const oz_weight *weight; oz_scheme to; oz_dtype scale_dtype; const int32_t *g_idx; } oz_recode;
/* from: another family's scheme, or dense and w of GGUF's blocks; both outlive the result. Returns NULL, or why there is no form without loss. Reads all of w's zero points or scales. */
const char *oz_recode_plan(oz_recode *out, const oz_scheme *from, const oz_weight *w);
oz_status oz_recode_write(oz_stream *s, const oz_recode *r, const oz_ckpt *c, const oz_module *m, oz_err *err);

/* A tensor as it is. */
oz_status oz_stream_copy(oz_stream *s, const char *name, const void *data, size_t n_bytes, oz_err *err);

/* ---- the search for a scale (gptq.c, gptq_host.c) ---- */
void oz_scale_steps(float *steps /* [OZ_GPTQ_SCALES] */, oz_codec codec); /* what is tried: factors of round-to-nearest's */
typedef struct oz_search { const oz_rtn *q; const float *x, *importance; int64_t n; float *codes /* scratch */; const float *steps; } oz_search; /* of n values that share a scale; what a squared error counts in each */
void oz_scale_search(float *scale, float *zero, const oz_search *s); /* round-to-nearest's, replaced by those of least error, if there are any */

/* ---- GPTQ: the arithmetic ---- */
enum { OZ_GPTQ_ROWS = 96, OZ_GPTQ_PASSES = 3 }; /* of a tile on the host */
extern const oz_tile_ops oz_tile_host; /* on tiles of OZ_GPTQ_ROWS; no device */

/* What the token of a row that modules read counts: 1 / the row's root mean square; 0: a row of zeros. */
double oz_token_weight(const float *x, int64_t n);
/* Sum of x x^T over the rows x that modules read, each times its token's weight. */
typedef struct oz_hessian {
    int64_t n, n_rows;
    float *sum;               /* [n, n]; until closed, what is on and below the diagonal */
    float *rows;              /* scratch */
    oz_dev *dev; oz_gram *gram; float *diagonal; /* of one on a device, where sum is too; else NULL */
} oz_hessian;
oz_status oz_hessian_init(oz_hessian *h, int64_t n, oz_dev *dev /* NULL: on the host */, const char *what, oz_err *err);
void oz_hessian_deinit(oz_hessian *h);
void oz_hessian_add(oz_hessian *h, oz_pool *pool, const float *x, int64_t ld, int64_t n_rows); /* x [n_rows, n], ld between rows, where the sum is; allocates nothing of ours */
oz_status oz_hessian_close(oz_hessian *h, const char *what, oz_err *err);          /* mirrors it; OZ_E_FORMAT: not finite */

/* perm: columns by descending diagonal. u: upper triangle [n, n] with (H in that order + dampening * mean diagonal)^-1 = u^T u. A dampening
 * that does not suffice is raised tenfold. added: to the diagonal. */
typedef struct oz_factor { int64_t n; int32_t *perm; float *u, *importance; /* [n]: 1 / U's diagonal squared, in stored order: what an error costs once later columns have made up for it */
                           double dampening, added; oz_dev *dev; } oz_factor; /* where the Hessian is */
oz_status oz_factor_init(oz_factor *f, const oz_hessian *h, double dampening, oz_pool *pool, const char *what, oz_err *err);
void oz_factor_deinit(oz_factor *f);

typedef struct oz_gptq { const oz_hessian *hessian; const oz_factor *factor; const oz_weight *weight; oz_rtn rtn; int passes; /* over all columns after the sweep */
                         const float *shared; int64_t shared_rows; /* NULL, or scales and then zero points [n_groups] of each so many rows, which are not searched */ } oz_gptq;
/* codes, scales: as stored; zeros [rows, groups], where asymmetric; the caller's. Relative output error tr(E H E^T) / tr(W H W^T) of rounding to nearest, and reached; NaN where
 * the text gives no input. */
typedef struct oz_gptq_result { void *codes, *scales; int8_t *zeros; int64_t code_row_bytes, scale_row_bytes; double before, after; } oz_gptq_result;
/* Scales that rows share under s, for g->shared: *out NULL: none are. OZ_E_FORMAT. */
oz_status oz_gptq_share(float **out, oz_gptq *g, const oz_scheme *s, const char *what, oz_err *err);
oz_status oz_gptq_run(oz_gptq_result *out, const oz_gptq *g, oz_pool *pool, const char *what, oz_err *err);

/* ---- digests (digest.c): sha256 in hexadecimal; OZ_E_INTERRUPTED has no message ---- */
typedef struct oz_digest { const oz_ckpt *ckpt; const oz_tensor *const *tensors; size_t n; bool *not_finite; /* NULL, or [n]: set of tensors of floats that hold what is not */ } oz_digest;
/* Of names, types and bytes, in the order of the list. what: for the progress line. */
oz_status oz_digest_tensors(char out[65], const oz_digest *d, oz_pool *pool, const char *what);
/* OZ_E_FORMAT: a value that is no number, where it would end a run with calibration text (finite.c); not_finite: of each tensor of q's checkpoint. */
oz_status oz_quantize_finite_check(const oz_quantize *q, const bool *not_finite, oz_err *err);
/* Of the checkpoint's config and every byte of its tensors, which are looked through on the way (the error). */
oz_status oz_digest_model(char out[65], const oz_quantize *q, oz_pool *pool, oz_err *err);
oz_status oz_digest_file(char out[65], const char *path, oz_err *err);
void oz_sha256_add_json(oz_sha256 *s, const json_t *v); /* whatever the order of its keys */
/* Of rows on their way from layer to layer, which are many: against damage, not against forgery, twenty times as fast. Begins as zeros; the pieces do not show. */
typedef struct oz_sum { uint64_t lanes[8], n_bytes; char block[64]; } oz_sum;
void oz_sum_add(oz_sum *s, const void *data, size_t n);
void oz_sum_hex(char out[65], const oz_sum *s);
oz_status oz_sum_file(char out[65], const char *path, oz_err *err);
/* {name: digest} of the files of a folder that are not the layout's. */
oz_status oz_digest_side_files(json_t **out, const char *dir, const oz_layout *l, oz_err *err);

/* ---- the work folder (work.c) ---- */
typedef struct oz_work { char *dir, *out; json_t *manifest; int64_t layers_done; /* -1: what is kept is not written yet */ int lock; } oz_work;
/* Begins work, or takes it up with cfg->resume: that of before is an error without, and so is work with another model, text, device or version, or where another process is at work. So is a target that
 * exists, without cfg->force, unless the work may have made it. A folder that was made for nothing is not left. */
oz_status oz_work_open(oz_work *w, const oz_quantize *q /* of the model; its weights are looked through */, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err);
/* What else the run depends on, by a digest: the same rule. Until the first layer's work is begun, what was not spoken of is added. */
oz_status oz_work_settle(oz_work *w, const char *what, const char *digest, oz_err *err);
oz_status oz_work_save(oz_work *w, oz_err *err);
/* What of the folder stays when the run does not end: what --resume takes up, or nothing. holds: how much that is. */
void oz_work_break_off(oz_work *w, const char *holds, oz_status st, oz_err *err);
oz_status oz_work_remove(oz_work *w, oz_err *err); /* the folder; the manifest goes last, so that a removal that was broken off is taken up */
void oz_work_close(oz_work *w);
char *oz_work_path(const oz_work *w, const char *name); /* oz_free */

typedef struct oz_rows_file { int fd; char *path; } oz_rows_file;
oz_status oz_rows_open(oz_rows_file *f, char *path, bool create, oz_err *err); /* takes path. create: or to be written over, which spares the pages of a new file */
void oz_rows_close(oz_rows_file *f);
oz_status oz_rows_read(const oz_rows_file *f, void *dst, size_t offset, size_t n, oz_err *err);
oz_status oz_rows_write(const oz_rows_file *f, const void *src, size_t offset, size_t n, oz_err *err);
oz_status oz_rows_sync(const oz_rows_file *f, oz_err *err);

/* ---- bits under a budget (budget.c, budget_errors.c, budget_work.c) ---- */
enum { OZ_BUDGET_OPTIONS = 9 };
/* error: squared, of the rounded weights, at the outputs on calibration text; cost: the KL that is expected of it. */
typedef struct oz_budget_option { oz_scheme scheme; int64_t bytes; double error, cost; } oz_budget_option;
typedef struct oz_budget_set {
    char *name;
    int layer;
    size_t *items; const char **modules; size_t n; /* of q's list */
    oz_budget_option options[OZ_BUDGET_OPTIONS]; int n_options, chosen; /* by bytes; the last one is not quantized */
    double least_error; /* of the leanest, rounded to nearest */
    double kl;          /* what that one does alone; NaN: not measured yet */
} oz_budget_set;
struct oz_budget {
    oz_quantize *q;     /* what is reached, and the weights */
    int64_t target_bytes;
    bool gptq; double dampening;
    oz_budget_set *sets; size_t n_sets;
    size_t *set_of;     /* [q->list.n]: an item's set + 1, 0: none */
    json_t *report, *calibration;
    json_t *starved;      /* modules that no token came to */
    int64_t layers_done;  /* their errors are known */
    oz_work work;         /* that it is measured in; manifest NULL: nothing is kept */
};
const oz_scheme *oz_budget_scheme(const oz_budget *b, size_t item); /* chosen for an item of the list that was reached */
oz_status oz_budget_save(oz_budget *b, oz_err *err); /* what was measured, into the manifest */
void oz_budget_work(oz_work *out, oz_budget *b);     /* passes into the caller's hands */

#endif
