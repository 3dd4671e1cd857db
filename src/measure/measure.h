/* Measuring: perplexity under named conventions, KL divergence against a reference in lockstep, and speed beside the roofline.
 * Definitions: docs/measuring.md (lm-evaluation-harness, llama.cpp's perplexity tool, the GPTQ papers, transformers' guide).
 * Windows are streamed: besides the ids and a few numbers a position, memory does not grow with the text. */
#ifndef OZ_MEASURE_MEASURE_H
#define OZ_MEASURE_MEASURE_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/findings.h"
#include "base/pool.h"
#include "base/str.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "text/text.h"

/* ---- perplexity ---- */
typedef struct oz_ppl_cfg { int64_t ctx, stride, limit_tok; /* 0: the convention's own; no limit */ } oz_ppl_cfg;
typedef struct oz_ppl {
    const char *convention;
    int64_t ctx, stride;      /* window and step in tokens */
    const char *bos;          /* what stands in front: "none", "once", "each window", "each document" */
    int64_t n_documents, n_tok, n_scored;
    double nll;               /* sum over scored tokens, nats; as the convention weights it */
    double ppl, ppl_se;       /* se: llamacpp only, else 0 */
    double words, bytes, word_ppl, byte_ppl, bits_per_byte; /* lm-eval only, else 0; 0 too where limit_tok ends inside a document */
} oz_ppl;
size_t oz_ppl_convention_count(void);
const char *oz_ppl_convention(size_t i);      /* "hf", "gptq", "llamacpp", "lm-eval" */
oz_status oz_ppl_run(oz_ppl *out, size_t convention, oz_model *m, const oz_tok *tok, const char *text, size_t n, const oz_ppl_cfg *cfg, oz_err *err);

/* WikiText's detokenizer as lm-evaluation-harness 2.0 of its task applies it. */
void oz_wikitext_detokenize(oz_buf *out, const char *page, size_t n);

/* ---- KL ---- */
typedef struct oz_quantiles { double max, p999, p99, p95, p90, p75, median, p25, p10, p5, p1, p01, min; } oz_quantiles; /* linear interpolation */
enum { OZ_KL_WORST = 10, OZ_KL_TOP = 5 };
typedef struct oz_kl_worst { int64_t at; /* of ids: the last token that was seen */ oz_kl_stat stat; } oz_kl_worst;
/* What a token is to a reader, by the text that it adds: letters behind a space; letters without one; digits; signs; blanks with a line's end; other blanks, parts of characters, mixtures, special tokens. */
typedef enum oz_token_class { OZ_TOKEN_WORD, OZ_TOKEN_CONTINUATION, OZ_TOKEN_DIGIT, OZ_TOKEN_PUNCTUATION, OZ_TOKEN_NEWLINE, OZ_TOKEN_OTHER, OZ_TOKEN_CLASSES } oz_token_class;
oz_token_class oz_token_class_of(const char *text, size_t n);
const char *oz_token_class_name(oz_token_class c);
void oz_token_classes_fill(uint8_t *out, const oz_tok *tok, const int32_t *ids, size_t n); /* [n] */
enum { OZ_KL_SPANS = 32 };
typedef struct oz_kl_part { int64_t positions; double mean_kl; } oz_kl_part;
typedef struct oz_kl {
    int64_t positions, windows, ctx; /* tokens of a window */
    double mean_kl, kl_se /* over positions */, kl_se_windows;
    oz_quantiles kl, dp;      /* dp: p_model - p_ref of the text's next token */
    double mean_dp, mean_dp_se, rms_dp, rms_dp_se, top1_agreement, top1_se;
    double ppl, ppl_se, ppl_ref, ppl_ref_se, ln_ratio, ln_ratio_se, ratio, ratio_se, diff, diff_se, correlation;
    double mutual_topk;       /* share of positions where each one's most likely token is among the other's OZ_KL_TOP */
    oz_kl_worst worst[OZ_KL_WORST]; int n_worst; /* positions by KL, descending */
    /* Of mixtures of experts, models opened with OZ_TAP_ROUTE: the share of the reference's choices that the model does not make, over all tokens; of layer i,
     * or negative where it routes not at all, or otherwise. NULL: no layer does. */
    double *flips; int64_t n_layers;
    oz_kl_part by_class[OZ_TOKEN_CLASSES]; /* of the text's next token; without cfg.classes all 0 */
    oz_kl_part by_position[OZ_KL_SPANS];   /* in the window: 0, 1, 2 .. 3, 4 .. 7 and so on */
} oz_kl;
void oz_kl_deinit(oz_kl *k);
typedef struct oz_kl_cfg {
    int64_t ctx;              /* 0: 1024, or the shortest model's length if that is less */
    bool half;
    int64_t limit_tok;        /* 0: no limit */
    const char *const *names; /* of the models, for messages; NULL: none */
    const uint8_t *classes;   /* [n_ids], of each token (oz_token_classes_fill); NULL: not known */
} oz_kl_cfg;
/* A window's tokens, as asked for, or with 0 those of the default. OZ_E_ARG: more than the shortest model takes, whatever the text has. */
oz_status oz_kl_ctx_choose(int64_t *ctx, int64_t asked, int64_t max_len, oz_err *err);
/* models[0] is the reference; out[n_models - 1]. Each window starts from empty state; a last shorter window is dropped
 * unless it is the only one. Positions scored in a window of n: 0 .. n-2, or n/2 .. n-2 with half.
 * OZ_E_FORMAT: logits of one of them are not finite. */
oz_status oz_kl_run(oz_kl *out, oz_model *const *models, int n_models, const int32_t *ids, int64_t n_ids, const oz_kl_cfg *cfg, oz_err *err);

/* ---- KL by module: the reference with some modules of another checkpoint (convert --take), for each such set of modules; or the other way round ---- */
typedef struct oz_kl_module {
    char *name; const char *role, *scheme; int layer; /* -1: in none; name of several: "model.layers.0.mlp.experts.*.down_proj" */
    char **modules; size_t n_modules, bytes;          /* as the other stores them */
    const oz_scheme *quantize;                        /* not the other's but the reference's own, rounded to nearest at load; NULL: the other's */
    bool measured; /* what follows is known; where it is so beforehand, it is left out */
    double mean_kl, kl_se_windows, kl_max, top1_agreement; int64_t positions;
} oz_kl_module;
typedef struct oz_kl_modules { oz_kl_module *items; size_t n; } oz_kl_modules;
/* The matrices that differ, in the model's order; experts of one layer and kind together. OZ_E_ARG: none does. */
oz_status oz_kl_modules_list(oz_kl_modules *out, const oz_ckpt *ref, const oz_ckpt *other, oz_err *err);
void oz_kl_modules_deinit(oz_kl_modules *m);
typedef struct oz_kl_modules_cfg {
    oz_dev *dev; const oz_ckpt *ref, *other;          /* other NULL: all of them are quantized at load */
    oz_model *whole;                                  /* other, opened whole on the reference's device: each is measured the other way round, other with that set alone as the reference has it; or NULL */
    const char *dtype, *name, *other_name; int64_t max_len; /* as the models were opened; their names, for messages */
    const int32_t *ids; const int64_t *begin; int64_t n_windows; /* window i: ids [begin[i], begin[i + 1]), 2 or more, at most the reference's max_tok */
    bool half;
    oz_status (*keep)(void *arg, oz_err *err); void *keep_arg; /* called when some more are measured; or NULL */
} oz_kl_modules_cfg;
/* ref: opened whole. The same figures as oz_kl_run of a hybrid checkpoint; what lies before a module's layer is run once for all of them. Memory: besides what is
 * opened, copies of one layer, and the residuals of some windows. */
oz_status oz_kl_modules_run(oz_kl_module *items, size_t n, oz_model *ref, const oz_kl_modules_cfg *cfg, oz_err *err);

/* ---- verify: everything that is wrong with a checkpoint ----
 * model as oz_ckpt_open takes it. Errors are what loading would refuse; warnings what a reader cannot know to be right. A status of its own only where it could not
 * go on (no memory, interrupted). */
oz_status oz_verify_run(const char *model, const oz_findings *f, oz_pool *pool, oz_err *err);
/* Its weights, dequantized, against those that it was made of, worst first. n_codes_rtn: codes that are the original over the stored scale, rounded to nearest (of floats: values that are the original's);
 * n_scales_rtn: scales that the group's largest values give, over `divisor` where they are symmetric (of integers half the range of codes or the largest code, whichever gives more of them). Codes and scales are 0 where there are none, scales also where rows share them. */
typedef struct oz_compared {
    char *name; const char *scheme; bool quantized;
    double max_error, rms_error, snr_db /* INFINITY: equal */;
    int64_t n_codes, n_codes_rtn, n_scales, n_scales_rtn;
    double divisor; /* 0: asymmetric, or no scales */
} oz_compared;
typedef struct oz_comparison { oz_compared *items; size_t n; } oz_comparison;
/* f: keys of the configs that make them compute otherwise, modules that only one of the two has, and what is no way of quantizing but damage. An original that cannot be read is one of them. */
oz_status oz_compare_run(oz_comparison *out, const char *model, const char *original, const oz_findings *f, oz_pool *pool, oz_err *err);
void oz_comparison_deinit(oz_comparison *c);

/* ---- speed ---- */
/* Steps of the plan that are alike in all layers, in one decode step or the whole prompt. */
typedef struct oz_bench_kernel {
    oz_step_info step;        /* bytes and flop of them together */
    int n;
    double us, predicted_us;  /* measured in a pass of its own; the roofline's, 0: rows to rows */
    bool by_memory;           /* what bounds the prediction */
} oz_bench_kernel;
typedef struct oz_bench_row {
    bool prefill;
    int64_t n_tok, batch;     /* tokens a repetition and sequence */
    int reps;
    double tok_s, tok_s_sd;   /* median over repetitions; standard deviation */
    double bytes, flop;       /* that one step (decode) or the whole prompt (prefill) must move and do */
    double predicted_tok_s;   /* roofline of this machine */
    double share;             /* tok_s / predicted_tok_s */
    const char *bound;        /* "memory" or "compute" */
    oz_bench_kernel *kernels; size_t n_kernels; /* in the plan's order; none where the device runs a program of its own */
    double other_us;          /* of the same pass, outside of steps */
} oz_bench_row;
typedef struct oz_bench_cfg { int64_t n_prompt, n_gen, batch; int reps; } oz_bench_cfg;
/* Whether the model takes so many tokens and sequences. */
oz_status oz_bench_check(const oz_model *m, const oz_bench_cfg *cfg, oz_err *err);
/* One row: prefill of n_prompt tokens if n_gen is 0 (logits of the last token only), else n_gen decode steps of `batch` sequences from an empty cache.
 * After the repetitions come up to three passes with a clock at every step, of which the fastest counts. */
void oz_bench_row_deinit(oz_bench_row *r);
oz_status oz_bench_run(oz_bench_row *out, oz_model *m, const oz_bench_cfg *cfg, const oz_ceiling *ceiling, oz_err *err);

#endif
