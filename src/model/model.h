/* Models: an architecture's descriptor, its weights packed for a device, the compiled plan, state, and running a call through it into a sink.
 * The forward pass exists once: plan.c compiles it, exec.c runs it. */
#ifndef OZ_MODEL_MODEL_H
#define OZ_MODEL_MODEL_H
#include <stdio.h>
#include "base/err.h"
#include "base/map.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "kernel/kernel.h"
#include "scheme/scheme.h"

/* ---- architecture: what quantizers, planners and inspectors read of it, without a device ---- */
typedef enum oz_role {
    OZ_ROLE_EMBED, OZ_ROLE_HEAD, OZ_ROLE_NORM, OZ_ROLE_ATTN_Q, OZ_ROLE_ATTN_K, OZ_ROLE_ATTN_V, OZ_ROLE_ATTN_O,
    OZ_ROLE_ATTN_QKV /* q, k, v in one matrix */, OZ_ROLE_FFN_GATE, OZ_ROLE_FFN_UP, OZ_ROLE_FFN_DOWN, OZ_ROLE_FFN_GATE_UP, OZ_ROLE_ROUTER, OZ_ROLE_ROUTER_BIAS, OZ_ROLE_EXPERT_GATE, OZ_ROLE_EXPERT_UP, OZ_ROLE_EXPERT_DOWN,
    OZ_ROLE_ATTN_Q_A, OZ_ROLE_ATTN_Q_B, OZ_ROLE_ATTN_KV_A, OZ_ROLE_ATTN_KV_B,
    OZ_ROLE_SSM_IN, OZ_ROLE_SSM_X, OZ_ROLE_SSM_DT, OZ_ROLE_SSM_OUT, OZ_ROLE_SSM_A, OZ_ROLE_SSM, OZ_ROLE_SHARED_GATE, OZ_ROLE_SHARED_UP, OZ_ROLE_SHARED_DOWN, OZ_ROLE_COUNT
} oz_role;
const char *oz_role_name(oz_role r); bool oz_role_by_name(oz_role r); /* lm_head and routers: a class name does not reach them when weights are quantized, a pattern that names them does */

typedef struct oz_arch_tensor {   /* one tensor that a config calls for */
    char *name;                   /* "model.layers.0.self_attn.q_proj.weight" */
    char *module;                 /* without ".weight" / ".bias" */
    const char *class_name;       /* "Linear", "Embedding", "RMSNorm" */
    oz_role role;
    int layer, expert;            /* -1: none */
    bool is_bias;
    int slot;                     /* of model/internal.h: where the loader puts it */
    int64_t rows, cols;           /* vectors: rows, and cols 0 */
    int n_dims; int64_t dims[3];  /* as it is stored, dense */
    float plus;                   /* added to the stored values of a vector: 1 for norms that store w - 1 */
} oz_arch_tensor;
typedef struct oz_arch_list { oz_arch_tensor *items; size_t n; } oz_arch_list;
/* All tensors of a config (config.json), which is checked; OZ_E_UNSUPPORTED names an unknown model_type. ckpt: whose names are meant where libraries differ on them (a text part
 * inside a larger model); NULL: as they are published. */
oz_status oz_arch_list_new(oz_arch_list *out, const json_t *config, const oz_ckpt *ckpt, oz_err *err); void oz_arch_list_deinit(oz_arch_list *l);
/* Where scales can move without a change of what a layer computes (fold.c): rows `from` (those of oz_fold_row(k), or a norm's values) are divided by scale k, columns c of all that reads them
 * multiplied by scale oz_fold_scale(c). A norm: (stored + plus) / scale - plus; a linear's bias is divided with its rows. */
typedef struct oz_fold { size_t from, *to, n_to; /* of the list */ int64_t n, run, row0, row_step, share; /* n scales; the rest is for the two functions */ } oz_fold;
typedef struct oz_fold_list { oz_fold *items; size_t n; } oz_fold_list;
oz_status oz_folds_new(oz_fold_list *out, const oz_arch_list *l, const json_t *config, oz_err *err); void oz_folds_free(oz_fold_list *l); /* a layer after the other */
int64_t oz_fold_row(const oz_fold *f, int64_t k), oz_fold_scale(const oz_fold *f, int64_t col);
bool oz_scheme_reaches(const oz_scheme *s, const oz_arch_tensor *t); /* what it is meant for where nothing is named: linear modules, or routed experts alone */
oz_module oz_arch_module(const oz_arch_tensor *t, const oz_ckpt *c); /* a matrix as a scheme sees it. A router counts as Linear only where it is stored quantized: libraries differ on its class */
oz_status oz_vector_find(const oz_tensor **out, const oz_ckpt *c, const oz_arch_tensor *t, oz_err *err); /* any float type, exact shape */ oz_status oz_finite_check(const oz_tensor *x, oz_err *err); /* of floats; others pass */
oz_dtype oz_arch_dtype(const json_t *config); /* torch_dtype / dtype, BF16 if absent; F16 or F32, no other (oz_arch_list_new checks it) */
/* The scheme of each of a list's tensors, dense for what is no matrix; whether there are tensors that nothing calls for. notes: says which whole parts are not run, and what says nothing. */
oz_status oz_schemes_resolve(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, const oz_findings *f, oz_err *err); oz_status oz_schemes_resolve_weights(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, oz_err *err);
oz_status oz_surplus_check(const oz_ckpt *c, const oz_arch_list *list, const oz_scheme *schemes, bool notes, const oz_findings *f, oz_err *err);
/* Of a name of no module, the shortest beginning that no module's has: what a whole part is called by ("vision_tower", "model.layers.61"). prefixes: beginnings of the names of modules, up to a dot. */
oz_map *oz_prefixes_new(const oz_arch_list *list); size_t oz_part_length(const oz_map *prefixes, const char *name);
/* All that opening the checkpoint on a device that runs everything would refuse it for, and warn of: schemes [list->n] are resolved (dense for what is no
 * matrix; unknown where the config is broken), and the tensors, their types, shapes, scales and indices held against them. Values of weights are not read. */
oz_status oz_model_check(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, const oz_findings *f, oz_err *err);
oz_status oz_arch_max_len(int64_t *out, const json_t *config, oz_err *err); /* tokens of a sequence */
/* What a config says of a model's shape. Numbers that it has no use for are 0. */
typedef struct oz_arch_info {
    const char *model_type; /* of the text part, where a larger model has one */
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_heads_kv, head_dim, max_len;
    int64_t n_experts, top_k, expert_ffn, shared_ffn;
    int64_t window, n_windows, n_scans; bool tied; /* tokens that so many layers see; layers that scan */
} oz_arch_info; oz_status oz_arch_info_read(oz_arch_info *out, const json_t *config, oz_err *err);
typedef struct oz_config_key { const char *path /* "rope_scaling.factor"; "": all */; bool of_logits /* not what ends or bounds a text */; const json_t *ours, *theirs; } oz_config_key;
void oz_config_compare(const json_t *ours, const json_t *theirs, void (*each)(void *arg, const oz_config_key *k), void *arg); /* keys by which they differ as the model reads them; none where one is not read */
/* Bytes that a token and a sequence keep, all layers together. Latent attention keeps latents where kv_b_proj is stored as floats, else what is expanded of them. */
typedef struct oz_kv_size {
    int64_t bytes_tok, slot_bytes, latent_bytes_tok, expanded_bytes_tok; /* as it is run; of layers that scan, a sequence; if all that have latents kept them, or what is expanded */
    int64_t n_latent, n_expanded; /* layers that have latents; that keep what is expanded of them, the first: "model.layers.0.self_attn.kv_b_proj (scheme W8A16)" */
    char expanded[256];
} oz_kv_size;
oz_status oz_kv_size_of(oz_kv_size *out, const oz_ckpt *c, const oz_findings *f, oz_err *err); oz_status oz_kv_module(char **out /* oz_free */, const json_t *config, const oz_arch_list *list, int64_t layer, oz_err *err); /* whose cache a scheme quantizes: "model.layers.0.self_attn" */
oz_status oz_scheme_runs(oz_dev *dev, const oz_module *m, const oz_scheme *scheme, oz_err *err); /* whether there is a kernel for it, with f32 activations where the scheme leaves them alone */

typedef struct oz_model oz_model; /* ---- a loaded model ---- */
/* What planning taps where it is asked to (flags): rows on their way through the forward pass, handed to oz_call.tap. */
enum { OZ_TAP_LAYER = 1 /* the residual after a layer */, OZ_TAP_LINEAR = 2 /* the input that linear modules share */, OZ_TAP_ROUTE = 4 /* the experts that tokens go to */, OZ_TAP_KV = 8 /* keys, rotated, and values, not of latents: [2, n_heads_kv, head_dim] */ };
/* Modules that are not as ckpt has them: out of another checkpoint (NULL: the same), and then under cfg.quantize, which is for them alone. */
typedef struct oz_model_swap { const char *const *modules; size_t n_modules; const oz_ckpt *other; } oz_model_swap;
typedef struct oz_model_cfg {
    const char *dtype;              /* "auto", "f32" */
    int64_t max_len;                /* at most what the config has (yarn: reaches); 0: the config's; with longrope its original length, or need_len where that is more */
    int64_t max_tok; unsigned taps; /* token rows a call, 0: 512 */
    int64_t layer_begin, layer_end; /* 0, 0: the whole model; else these layers alone, the embedding if 0 is among them, never a head: memory does not grow with their number */
    oz_comm *comm;   /* the ranks that share the model, each a slice; NULL: it is run whole */
    int64_t need_len; /* the longest sequence that is sure to come; 0: not known */
    const oz_scheme *quantize; const oz_model_swap *swap; /* at load, dense weights that it reaches; NULL: run as it is stored */
    bool (*pending)(void *arg, const char *module); void *pending_arg; /* quantized modules that are not made yet, which zeros stand for whatever is stored (1 for the scales of an attention module's cache); NULL: none */
} oz_model_cfg;
oz_status oz_model_open(oz_model **out, oz_dev *dev, const oz_ckpt *ckpt, const oz_model_cfg *cfg, oz_err *err); void oz_model_close(oz_model **m);
oz_status oz_model_cfg_check(int64_t *max_len /* NULL, or that of the info */, const oz_model_cfg *cfg, oz_dev *dev, const oz_ckpt *ckpt, oz_err *err); /* what opening refuses of cfg; dev NULL: but for what a device decides */
typedef struct oz_model_info {
    const char *model_type, *dtype;
    int64_t vocab_size, hidden_size, n_layers, n_heads, n_heads_kv, head_dim, intermediate_size, max_len, max_tok;
    int32_t bos_id, eos_ids[8]; int n_eos; /* of config.json */
    size_t weight_bytes, stream_bytes;   /* packed, on the device; of weights read to decode one token (embedding table: one row) */
    double flop_tok, head_flop_tok; /* of the linears, for one token, head included; of the head */
    size_t kv_bytes_tok, slot_bytes, workspace_bytes; bool fused; /* slot_bytes: a sequence's, of layers that scan; fused: the device runs a program of its own, not the plan's steps */
} oz_model_info;
const oz_model_info *oz_model_get(const oz_model *m); void oz_model_plan_print(const oz_model *m, FILE *out);
/* Each linear module in order: its scheme and the kernel that runs it. */
typedef struct oz_model_module { const char *name; const oz_scheme *scheme; const oz_packed *packed; } oz_model_module;
size_t oz_model_module_count(const oz_model *m); oz_model_module oz_model_module_at(const oz_model *m, size_t i);
/* What a step of the plan must read and do in a pass: positions 0 .. n_tok - 1 of `batch` sequences, `step` of each a call, n_rows rows in all to the head. */
typedef struct oz_pass { int64_t n_tok, step, batch, n_rows; } oz_pass;
typedef struct oz_step_info {
    const char *op, *kernel; char modules[64]; /* "linear", "gemm_i8_q8__avx2", "q_proj k_proj v_proj"; empty for other ops */
    oz_form form;                              /* of its inputs: whose multiply-adds they are */
    double bytes, flop;                        /* of weights and of the cache; 0, 0: rows to rows */
} oz_step_info;
size_t oz_model_step_count(const oz_model *m); oz_step_info oz_model_step_at(const oz_model *m, size_t i, const oz_pass *p);
/* State: storage of KV blocks (16 tokens each) for all layers, and for layers that scan a slot a sequence (n_seqs of them). Who owns a block or a slot is the caller's business;
 * a slot holds what came before the position that a call begins at, and nothing where that is 0. */
typedef struct oz_state oz_state;
oz_status oz_state_new(oz_state **out, const oz_model *m, int64_t n_blocks, int64_t n_seqs, oz_err *err); void oz_state_free(oz_state **s);
/* ---- running ---- */
typedef enum oz_sink_kind { OZ_SINK_NONE, OZ_SINK_COPY, OZ_SINK_STAT, OZ_SINK_KL } oz_sink_kind;
/* Where the rows asked for go. lm_head runs on them in chunks that the workspace bounds. out, by kind, n_rows entries:
 * COPY float [n_rows, vocab]; STAT oz_row_stat; KL oz_kl_stat for each model but the first: [n_models - 1, n_rows]. */
typedef struct oz_sink { oz_sink_kind kind; void *out; const int32_t *targets; /* [n_rows] or NULL */ } oz_sink;
typedef struct oz_tap {
    unsigned kind; int layer;
    const char *modules[OZ_MAX_PARTS_LINEAR]; int n_modules; /* LINEAR: those that read it; KV: one that made it */
    const float *rows; int64_t n_tok, width, ld;             /* host [n_tok, width], ld between rows; the device's where the call is on it */
    const int32_t *experts; int model;                       /* ROUTE: instead of rows; of those in lockstep */
} oz_tap;
size_t oz_model_tap_count(const oz_model *m); oz_tap oz_model_tap_at(const oz_model *m, size_t i); /* those that a call will meet, in order, without rows */
/* Cuts of a model of one layer that was opened with OZ_TAP_LINEAR: a call can end at one, its taps done, and another go on from there, when modules behind it have been made. Numbered
 * from 1; each is at some taps in a row, with no product between them. */
typedef struct oz_cut { size_t tap0, n_taps; /* of oz_model_tap_at */ bool is_start; /* nothing is done before it: going on from there is beginning */ } oz_cut;
int oz_model_cut_count(const oz_model *m); oz_cut oz_model_cut_at(const oz_model *m, int cut);
size_t oz_model_live_bytes(const oz_model *m, int cut, int64_t n_tok); /* handed over by a call of n_tok rows */
typedef struct oz_call {
    const int32_t *ids; int64_t n_tok;    /* token rows, at most max_tok */
    const oz_seg *segs; int64_t n_segs;   /* cover the rows in order */
    const int32_t *slots;                 /* [n_segs]; NULL: segment i has slot i */
    const int32_t *rows; int64_t n_rows;  /* which rows reach the sink, ascending */
    int64_t layer_begin, layer_end;       /* layer_end 0: all that are loaded. A partial range needs residual in/out instead of ids/sink */
    const float *residual_in; float *residual_out; bool on_device; /* host [n_tok, hidden]; layer_begin > 0; layer_end < n_layers, or NULL. on_device: these, what cuts hand over, and rows of taps are the device's memory */
    void (*tap)(void *arg, const oz_tap *t); void *tap_arg; const int32_t *experts; /* or NULL; host [n_tok, experts a token]: where tokens go, whatever routers say; their weights mean nothing then */
    int cut_begin, cut_end; const void *live_in; void *live_out; /* 0: the layer's own ends; host [oz_model_live_bytes], with cut_begin, in place of ids and a residual; with cut_end, or NULL */
    int64_t *step_ns;                     /* NULL, or [oz_model_step_count]: each step's time is added, unless the device runs them fused (info.fused) */
} oz_call;
oz_status oz_model_run(oz_model *m, oz_state *s, const oz_call *call, const oz_sink *sink, oz_err *err);
/* The same call through several models with the same vocabulary; the sink sees them together, chunk by chunk. models[0] is the reference. */
oz_status oz_lockstep_run(oz_model *const *models, oz_state *const *states, int n_models, const oz_call *call, const oz_sink *sink, oz_err *err);
/* What n residuals after the last layer (host [n_tok, hidden] each) lead to, the first through ref's head, the others through m's: out [n - 1, call->n_rows], each but the first against it. Of the call the rows count. */
oz_status oz_head_kl_run(oz_kl_stat *out, oz_model *ref, oz_model *m, const float *const *residuals, int n, const oz_call *call, const int32_t *targets, oz_err *err);

#endif
