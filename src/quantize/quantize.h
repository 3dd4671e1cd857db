/* All that makes checkpoints. Every maker is planned first, which finds every error of its input and knows all sizes to the byte, and
 * then run: it streams tensor by tensor into a folder that appears under its name when it is whole. */
#ifndef OZ_QUANTIZE_QUANTIZE_H
#define OZ_QUANTIZE_QUANTIZE_H
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "kernel/kernel.h"
#include "scheme/scheme.h"
#include "text/text.h"

/* ---- convert: any checkpoint as plain floats, or as compressed-tensors without a loss; and hybrids ----
 * Floats: each value is dequantized in f32 and rounded once to the new type; config.json loses its quantization_config.
 * compressed-tensors: modules that are stored so keep their tensors to the byte; those of other families and GGUF's blocks keep codes and scales in another layout (recode.c). What is dense stays as it
 * is; out of a GGUF in a type that holds every value. */
typedef struct oz_convert oz_convert;
typedef struct oz_convert_take { const char *pattern; const oz_ckpt *other; } oz_convert_take; /* modules that match, norms too, come from other, whole; no two patterns match one */
typedef struct oz_convert_cfg {
    bool compressed;
    oz_dtype to;        /* of floats: F32, F16 or BF16 */
    bool lossy;         /* compressed: a module without a form of its own becomes floats of the model's type, and so do a GGUF's other blocks; else it is an error */
    const oz_convert_take *takes; size_t n_takes;
    size_t shard_bytes; /* 0: no limit */
} oz_convert_cfg;
/* ckpt and what cfg points to must outlive the conversion. Refuses what would be no model that loading takes, but of an architecture that is not known (floats of a dense one), and that is a warning. */
oz_status oz_convert_new(oz_convert **out, const oz_ckpt *ckpt, const oz_convert_cfg *cfg, oz_err *err);
void oz_convert_free(oz_convert **c);
const oz_layout *oz_convert_layout(const oz_convert *c);
const json_t *oz_convert_report(const oz_convert *c); /* tensors, modules: [{from, to, modules}], lossy_modules; compressed: warnings, what vLLM will not run */
/* Memory: some chunks of a few MB, whatever the size of the model. */
oz_status oz_convert_run(oz_convert *c, const char *target, bool force, oz_pool *pool, oz_err *err);

/* ---- synth: a checkpoint with seeded random weights of a config ----
 * Matrices and biases are normal with the config's initializer_range, norms are 1. The values depend on the seed, the tensor's name
 * and the place in it alone: not on threads, shards or the other tensors. */
typedef struct oz_synth oz_synth;
/* config: a config.json without quantization_config. Stored as the config's dtype, linear modules but lm_head and routers under `scheme`
 * (OZ_SCHEME_DENSE: none); those are the same weights, quantized. */
oz_status oz_synth_new(oz_synth **out, const json_t *config, const oz_scheme *scheme, uint64_t seed, size_t shard_bytes, oz_err *err);
void oz_synth_free(oz_synth **s);
const oz_layout *oz_synth_layout(const oz_synth *s);
size_t oz_synth_count(const oz_synth *s);
oz_status oz_synth_run(oz_synth *s, const char *target, bool force, oz_pool *pool, oz_err *err);

/* ---- split: a dense model as a mixture of experts with the same function ----
 * The experts are slices of its feed-forward, all of them chosen, each with the same weight. A tensor that has no place in a mixture (a bias, a
 * norm of heads) is an error. */
typedef struct oz_ffn_split oz_ffn_split;
/* n_experts: a power of two that divides intermediate_size. ckpt must outlive the job. */
oz_status oz_ffn_split_new(oz_ffn_split **out, const oz_ckpt *ckpt, int64_t n_experts, size_t shard_bytes, oz_err *err);
void oz_ffn_split_free(oz_ffn_split **s);
const oz_layout *oz_ffn_split_layout(const oz_ffn_split *s);
size_t oz_ffn_split_count(const oz_ffn_split *s); /* tensors that are written */
oz_status oz_ffn_split_run(oz_ffn_split *s, const char *target, bool force, oz_pool *pool, oz_err *err);

/* ---- quantize: round to nearest, data-free ----
 * number.h has the arithmetic. Weights are read in f32 from a dense checkpoint or a GGUF; whatever is not quantized is kept as it
 * is (out of a GGUF: rounded to the model's type). Embeddings and norms are never quantized. */
typedef struct oz_quantize oz_quantize;
typedef struct oz_recipe oz_recipe;
/* JSON where the name ends so, else YAML. Errors name the file and the path in it. */
oz_status oz_recipe_read(oz_recipe **out, const char *path, oz_err *err);
void oz_recipe_free(oz_recipe **r);
#define OZ_DAMPENING 0.01 /* GPTQ's, where nothing is said */
typedef struct oz_quantize_cfg {
    oz_scheme scheme;
    const char *method; /* steps, joined by +: smoothquant or awq, then rtn or gptq; NULL: rtn */
    double dampening;   /* of GPTQ: share of the mean diagonal */
    double strength;    /* of smoothquant and awq, up to 1; 0: searched */
    oz_kv_scheme kv;    /* of the cache, whose scales are calibrated */
    bool all_experts;   /* those that fewer tokens reach than their matrices have columns are calibrated on all tokens */
    const char *const *targets, *const *ignore; /* patterns of scheme.h; no targets: what the scheme reaches. A class name does not reach lm_head or a router. Of a scheme for experts they are targets besides these */
    size_t n_targets, n_ignore;
    const oz_recipe *recipe; /* says all of these in their place; NULL: none */
    const struct oz_budget *budget; /* says the scheme of each module that is reached, in place of `scheme`; it was made of this cfg and chosen. NULL: none */
    size_t shard_bytes; /* 0: no limit */
} oz_quantize_cfg;
/* What a matrix of the model becomes. */
typedef struct oz_quantize_module { const char *name, *role /* "ffn_down" */; const oz_scheme *scheme; int64_t rows, cols; size_t bytes; /* as written */ } oz_quantize_module;
/* Errors: a source that is quantized already; a pattern that matches nothing; nothing left to quantize; a group size that does not divide
 * (the first few offenders are logged, the message counts them). ckpt must outlive the job; cfg need not. */
oz_status oz_quantize_new(oz_quantize **out, const oz_ckpt *ckpt, const oz_quantize_cfg *cfg, oz_err *err);
void oz_quantize_free(oz_quantize **q);
const oz_layout *oz_quantize_layout(const oz_quantize *q);
size_t oz_quantize_count(const oz_quantize *q); /* modules, in the model's order */
oz_quantize_module oz_quantize_at(const oz_quantize *q, size_t i);
const char *oz_quantize_wants_text(const oz_quantize *q); /* what needs it; NULL: nothing, and oz_quantize_run makes it */
/* Memory: a few MB and the pages of one tensor. The bytes do not depend on the number of threads. */
oz_status oz_quantize_run(oz_quantize *q, const char *target, bool force, oz_pool *pool, oz_err *err);

/* ---- quantize with calibration text: GPTQ, static scales of inputs ----
 * Layer by layer through the model's own forward pass: a layer's inputs have passed through the quantized layers before it. All state is on
 * disk after each layer (work.c). Memory: one layer, its Hessians and factors, and one sequence; not the number of layers or sequences. */
typedef struct oz_calibration {
    char *name, sha256[65];       /* of the file, without folder; of its bytes */
    int32_t *ids; int64_t *begin; /* sequence i: ids [begin[i], begin[i + 1]) */
    int64_t n_seqs, max_len, seed; /* max_len: tokens of the longest that was allowed; seed: those were chosen by, -1: the first ones */
} oz_calibration;
enum { OZ_CALIBRATION_SAMPLES = 128 };
/* tok NULL: only ids can be read; files: for the chat template of messages, or NULL. */
typedef struct oz_calibration_cfg { const oz_tok *tok; const oz_text_files *files; int64_t n_samples /* 0: up to OZ_CALIBRATION_SAMPLES, as many as there are */, max_len, seed /* -1: the first ones */; } oz_calibration_cfg;
/* path: plain text, cut into windows of max_len tokens, or *.jsonl with ids, text or messages a line. OZ_E_ARG: too little, with the two numbers. */
oz_status oz_calibration_read(oz_calibration *c, const char *path, const oz_calibration_cfg *cfg, oz_err *err);
void oz_calibration_deinit(oz_calibration *c);

typedef struct oz_budget oz_budget;
typedef struct oz_quantize_text_cfg {
    oz_dev *dev;
    const oz_calibration *calibration;
    bool force, resume;
    const char *version; /* of the program, for ounce_recipe.json */
    oz_budget *budget;   /* that has said the schemes: the work goes on where it was measured; NULL: none */
} oz_quantize_text_cfg;
/* All that can be wrong with the text for this model: ids, lengths. Warns of linear modules with more columns than the text has tokens. */
oz_status oz_quantize_text_check(oz_quantize *q, const oz_calibration *calibration, oz_err *err);
/* ---- bits under a budget: the scheme of each module, so that all take at most so many bytes and cost the least ---- */
/* What cfg's patterns reach; cfg->scheme is the least that a module gets, not quantized: any. OZ_E_ARG: target_bytes (of all tensors of those modules) is less than the least there is, which is
 * named, or as much as they take as they are. ckpt must outlive it. */
oz_status oz_budget_new(oz_budget **out, const oz_ckpt *ckpt, const oz_quantize_cfg *cfg, int64_t target_bytes, oz_err *err);
void oz_budget_free(oz_budget **b);
typedef struct oz_budget_part { const char *name; int layer; const char *const *modules; size_t n_modules; const oz_scheme *leanest; double kl; /* what that one does alone; NaN: not measured yet */ } oz_budget_part; /* modules that share a choice */
size_t oz_budget_count(const oz_budget *b);
oz_budget_part oz_budget_at(const oz_budget *b, size_t i);
/* Opens the work folder beside target and takes up what was measured in it, with cfg->resume; what is measured from here on is kept there. cfg->budget: b. */
oz_status oz_budget_begin(oz_budget *b, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err);
bool oz_budget_is_measured(const oz_budget *b); /* all that follows was, but for the choice */
/* Of layers whose errors are not known. m: the whole model, opened with OZ_TAP_LINEAR for calls as long as the longest sequence. Memory: a residual a token. */
struct oz_model;
oz_status oz_budget_errors(oz_budget *b, struct oz_model *m, const oz_calibration *c, oz_pool *pool, oz_err *err);
oz_status oz_budget_keep(oz_budget *b, const double *kl /* of each part; NaN: not measured yet */, oz_err *err);
void oz_budget_break_off(oz_budget *b, oz_status st, oz_err *err); /* says what is kept when it cannot go on */
void oz_budget_choose(oz_budget *b, const char *version /* of the program */);
const json_t *oz_budget_report(const oz_budget *b); /* {target_bytes, bytes, kl_expected, calibration, program, version, sets}; borrowed */

/* report: {errors, folds, experts}, new. errors: a list of {module, tokens, before, after, dampening} of what the text had a say in: tokens that reached it; its error before and after, null where the
 * text gives it no input: tr(E H E^T) / tr(W H W^T) of rounding to nearest and of what GPTQ wrote, that of whole ranges and of clipped ones, that by importance (imatrix.c); dampening null but of GPTQ.
 * folds: a list of {from, modules, strength, balanced, before, after} of scales that moved out of `from` into `modules`; before and after as above, null where no token reached these; strength 0 and not
 * balanced: nothing moved. experts, of a model that has some: a list of {layer, tokens: [of each]}. OZ_E_INTERRUPTED keeps what --resume takes up. */
oz_status oz_quantize_run_text(json_t **report, oz_quantize *q, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err);

#endif
