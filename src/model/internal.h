/* Internal to model/: the architecture tables, the dims that every config is read into, the plan, and the model's storage. */
#ifndef OZ_MODEL_INTERNAL_H
#define OZ_MODEL_INTERNAL_H
#include "kernel/step.h"
#include "model/model.h"

/* ---- architectures ---- */
typedef enum oz_rope_type { OZ_ROPE_DEFAULT, OZ_ROPE_LINEAR, OZ_ROPE_LLAMA3, OZ_ROPE_YARN, OZ_ROPE_LONG } oz_rope_type;
typedef struct oz_rope_cfg {
    oz_rope_type type;
    double theta, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow;
    double attention_factor;    /* on cos and sin */
    double score_factor;        /* on scores, for architectures with OZ_F_MSCALE; 1 unless yarn says otherwise */
    bool truncate;
    int64_t original_max;
    const json_t *short_factor, *long_factor; /* of LONG, borrowed from the config */
} oz_rope_cfg;

/* Features that rows of a tensor table, or their values, depend on. */
enum { OZ_F_QKV_BIAS = 1, OZ_F_O_BIAS = 2, OZ_F_MLP_BIAS = 4, OZ_F_TIED = 8, OZ_F_QK_NORM = 16, OZ_F_NORM_PLUS_1 = 32 /* norms store w - 1 */,
       OZ_F_SHARED = 64 /* a feed-forward beside the experts */,
       OZ_F_Q_LATENT = 128, OZ_F_MSCALE = 256 /* yarn's mscale_all_dim is in the scores, too */,
       OZ_F_SSM_BIAS = 512, OZ_F_CONV_BIAS = 1024, OZ_F_DT_BIAS = 2048 };

typedef enum oz_glu { OZ_GLU_SILU, OZ_GLU_GELU_TANH } oz_glu; /* the activation of a gated feed-forward */
enum { OZ_MAX_LAYERS = 1024 };
typedef struct oz_dims {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_heads_kv, head_dim, max_position;
    int64_t rope_dim;            /* columns of a head that rotate: head_dim, or the first of them; of MLA the last */
    int64_t v_dim;               /* of a head's values and output: head_dim, but for MLA */
    int64_t kv_rank, q_rank;     /* MLA: widths of the latents that keys and values, and queries, are expanded from; q_rank 0: queries are not */
    int64_t window;              /* of the layers in `sliding`; 0: none */
    uint64_t sliding[OZ_MAX_LAYERS / 64];
    int64_t ssm, ssm_state, ssm_conv, ssm_dt; /* of a scan: channels, values that each keeps, taps of its convolution, rank of dt */
    uint64_t scans[OZ_MAX_LAYERS / 64];       /* the layers that scan */
    int64_t n_experts, top_k;    /* 0: no mixture of experts */
    int64_t expert_ffn, shared_ffn; /* widths of an expert, and of the feed-forward that every token of a layer with experts takes besides; shared 0: none */
    int64_t n_groups, top_groups; /* see oz_route */
    bool route_raw, route_sigmoid, route_best_two;
    double route_scale;
    uint64_t plain[OZ_MAX_LAYERS / 64]; /* layers without experts in a model that has some */
    double rms_norm_eps;
    double attn_scale;           /* on q . k; 0: head_dim^-0.5 */
    double attn_softcap, final_softcap, embed_scale; /* 0: none */
    oz_glu glu;
    int n_ropes;                 /* 2: one for layers that see all, one for those with a window */
    oz_rope_cfg ropes[OZ_MAX_ROPES];
    unsigned features;
    int32_t bos_id, eos_ids[8];
    int n_eos;
} oz_dims;

/* Where a tensor goes. Slots up to OZ_SLOT_PER_LAYER are the model's, the others each layer's; those from OZ_SLOT_PER_EXPERT on hold n_experts
 * matrices, neighbours in the program's linears, of which the slot has the first. A matrix that holds several slots' rows one below the other stands in the
 * first of them, the others are absent. POST_NORMs are of what a block adds to the residual. */
typedef enum oz_slot {
    OZ_SLOT_EMBED, OZ_SLOT_FINAL_NORM, OZ_SLOT_HEAD, OZ_SLOT_PER_LAYER,
    OZ_SLOT_ATTN_NORM = OZ_SLOT_PER_LAYER, OZ_SLOT_Q, OZ_SLOT_K, OZ_SLOT_V, OZ_SLOT_O, OZ_SLOT_Q_NORM, OZ_SLOT_K_NORM,
    OZ_SLOT_Q_A, OZ_SLOT_Q_A_NORM, OZ_SLOT_KV_A, OZ_SLOT_KV_A_NORM, OZ_SLOT_KV_B,
    OZ_SLOT_SSM_IN, OZ_SLOT_SSM_CONV, OZ_SLOT_SSM_X, OZ_SLOT_SSM_DT_NORM, OZ_SLOT_SSM_B_NORM, OZ_SLOT_SSM_C_NORM, OZ_SLOT_SSM_DT, OZ_SLOT_SSM_A, OZ_SLOT_SSM_D, OZ_SLOT_SSM_OUT, OZ_SLOT_ATTN_POST_NORM,
    OZ_SLOT_FFN_NORM, OZ_SLOT_GATE, OZ_SLOT_UP, OZ_SLOT_DOWN, OZ_SLOT_FFN_POST_NORM, OZ_SLOT_ROUTER, OZ_SLOT_ROUTER_BIAS, OZ_SLOT_SHARED_GATE, OZ_SLOT_SHARED_UP, OZ_SLOT_SHARED_DOWN,
    OZ_SLOT_PER_EXPERT,
    OZ_SLOT_EXPERT_GATE = OZ_SLOT_PER_EXPERT, OZ_SLOT_EXPERT_UP, OZ_SLOT_EXPERT_DOWN, OZ_SLOT_COUNT
} oz_slot;

typedef enum oz_dim { OZ_DIM_NONE, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, OZ_DIM_FFN, OZ_DIM_Q, OZ_DIM_KV, OZ_DIM_HEAD, OZ_DIM_EXPERTS, OZ_DIM_QKV, OZ_DIM_GATE_UP,
    OZ_DIM_EXPERT_FFN, OZ_DIM_SHARED_FFN, OZ_DIM_ATTN_OUT, OZ_DIM_Q_RANK, OZ_DIM_KV_RANK, OZ_DIM_KV_A /* the latent and what rotates */, OZ_DIM_KV_B,
    OZ_DIM_SSM, OZ_DIM_SSM_IN, OZ_DIM_SSM_STATE, OZ_DIM_SSM_CONV, OZ_DIM_SSM_DT, OZ_DIM_SSM_X } oz_dim;

/* A row of a tensor table: names a module (the first "%d" is the layer, the second the expert), its slot, role, shape in config terms, and when it is there:
 * in layers whose kind has its slot (arch.c), and by features. */
typedef struct oz_arch_row {
    const char *module, *class_name;
    oz_slot slot;
    oz_role role;
    oz_dim rows, cols;    /* cols NONE: a vector. Conv1d [rows, 1, cols] and Parameter [rows, cols], which has its module's name, are kept as one vector, [cols, rows] */
    unsigned need, unless; /* features that must be set, must not be set */
    unsigned bias;         /* feature that gives it a bias, 0: none; experts have none */
} oz_arch_row;

typedef enum oz_mixer { OZ_MIXER_GQA, OZ_MIXER_MLA, OZ_MIXER_MAMBA } oz_mixer;
typedef enum oz_ffn { OZ_FFN_GATED, OZ_FFN_MOE } oz_ffn;
typedef enum oz_layer_state { OZ_STATE_KV, OZ_STATE_SLOT /* one a sequence */ } oz_layer_state;
typedef struct oz_layer_kind { oz_mixer mixer; oz_ffn ffn; oz_layer_state state; int64_t window; int rope; /* of dims.ropes, -1: none */ } oz_layer_kind;

/* An architecture. tables: NULL-terminated list of tables, each ended by a row with module NULL. */
typedef struct oz_arch {
    const char *model_type;
    const struct oz_arch *text;      /* not NULL: its configs nest that of a text part (text_config), which this runs; all below is the part's own */
    const oz_arch_row *const *tables;
    const oz_arch_row *const *renamed; /* the same tensors as newer libraries call them, in checkpoints that hold the first layer's router so; NULL: nothing changed */
    oz_dims defaults;                /* what a config that is silent means */
    const char *act_key;             /* of its config, NULL: hidden_act */
    const char *const *honours;      /* keys that change the mathematics of some models (config.c) and that config(), or shared code, reads for this one; NULL-terminated or NULL */
    oz_status (*config)(oz_dims *d, const json_t *config, oz_err *err); /* after the shared keys were read; NULL: nothing else */
    oz_layer_kind (*layer)(const oz_dims *d, int64_t layer);
} oz_arch;
/* Tables that architectures share (arch.c). */
extern const oz_arch_row oz_rows_top[], oz_rows_gqa[], oz_rows_qk_norm[], oz_rows_ffn_norm[], oz_rows_sandwich[] /* norms before and after each block */, oz_rows_gated_ffn[], oz_rows_experts[] /* mlp.gate, mlp.experts.N.gate_proj ... */;
/* Attention and a gated feed-forward; a window, and the second rope if there are two, where the layer is in dims.sliding. */
oz_layer_kind oz_layer_dense(const oz_dims *d, int64_t layer);
/* The same with experts, but for the layers in dims.plain. */
oz_layer_kind oz_layer_sparse(const oz_dims *d, int64_t layer);

oz_status oz_arch_read(const oz_arch **arch, oz_dims *dims, const json_t *config, oz_err *err);
int64_t oz_dim_get(const oz_dims *d, oz_dim dim);
int64_t oz_scans_count(const oz_arch *a, const oz_dims *d);
int64_t oz_slot_values(const oz_arch *a, const oz_dims *d); /* of layers that scan, a sequence's */

/* ---- configs (config.c, rope.c) ---- */
/* The keys that configs have in common, over the architecture's defaults; then its own; then what both leave open. */
oz_status oz_dims_read(oz_dims *d, const oz_arch *arch, const json_t *config, oz_err *err);
static inline bool oz_layers_has(const uint64_t *set, int64_t layer) { return set[layer / 64] >> layer % 64 & 1; } /* a set of layers: a bit each */
static inline void oz_layers_put(uint64_t *set, int64_t layer) { set[layer / 64] |= (uint64_t)1 << layer % 64; }
static inline bool oz_dims_slides(const oz_dims *d, int64_t layer) { return oz_layers_has(d->sliding, layer); }
static inline void oz_dims_slide(oz_dims *d, int64_t layer) { oz_layers_put(d->sliding, layer); }
oz_status oz_slide_all(oz_dims *d, const json_t *config, oz_err *err);
/* Experts, under the names that an architecture gives to their number and width; how many a token takes. Defaults stand for what is absent. */
typedef struct oz_expert_keys { const char *n_experts, *width, *newer; /* for the number of experts, too, as later libraries write it; NULL: the same */ } oz_expert_keys;
oz_status oz_experts_read(oz_dims *d, const json_t *config, const oz_expert_keys *keys, oz_err *err);
/* use_sliding_window, sliding_window, max_window_layers, as configs of Qwen have them. */
oz_status oz_window_from_read(oz_dims *d, const json_t *config, oz_err *err);
oz_status oz_ropes_read(oz_dims *d, const json_t *config, oz_err *err);
/* inv_freq f32 [dim / 2] (transformers' modeling_rope_utils, computed in f64 and rounded) for sequences of up to max_len tokens. */
void oz_rope_inv_freq(float *out, const oz_rope_cfg *r, int64_t dim, int64_t max_len);

/* ---- ranks (slice.c) ---- */
/* What of a model one rank holds: whole KV groups (or a part of one, its KV head held by several ranks), and a range of the feed-forward. */
typedef struct oz_split { int rank, size; int64_t head_dim, q0, n_q, kv0, n_kv, kv_all /* heads; of all ranks */, ffn0, n_ffn; } oz_split;
oz_status oz_split_make(oz_split *out, const oz_dims *d, int rank, int size, oz_err *err);
/* Dims of the rank's own part, which the plan is compiled from. */
void oz_split_dims(oz_dims *d, const oz_split *s);
typedef struct oz_part_of { int64_t row0, n_rows, col0, n_cols; bool sums; /* its product is a part of a sum over ranks */ } oz_part_of;
/* OZ_E_UNSUPPORTED names a tensor that ranks cannot share. */
oz_status oz_split_check(const oz_split *s, const oz_arch_list *l, oz_err *err);
oz_part_of oz_split_part(const oz_split *s, const oz_arch_tensor *t);

/* ---- schemes of a checkpoint (check.c) ---- */
/* Scales of a layer's quantized cache, of keys and then of values: [2, n_heads_kv]; all 1 where none are stored. */
typedef struct oz_kv_of { oz_kv_scheme scheme; oz_mixer mixer; int64_t layer, n_heads_kv; bool (*pending)(void *arg, const char *module); void *pending_arg; /* as of oz_model_cfg */ } oz_kv_of;
oz_status oz_kv_bind(float *scales, bool *stored, const oz_ckpt *c, const oz_arch_list *list, const oz_kv_of *of, oz_err *err);
oz_status oz_kv_missing(const oz_ckpt *c, const oz_arch_list *list, int64_t n_missing, int64_t n, int64_t first, const oz_findings *f, oz_err *err); /* of n layers: all or none; first: of them */
void oz_tied_head_check(const oz_ckpt *c, const oz_findings *f);
static inline bool oz_is_matrix(const oz_arch_tensor *t) { return t->cols > 0; }

/* ---- storage ---- */
typedef struct oz_slot_ref { int linear; float *vec, *bias; } oz_slot_ref; /* linear -1: a vector and its bias, or absent (vec NULL) */

struct oz_model {
    oz_dev *dev;
    const oz_ops *ops;
    const oz_arch *arch;
    oz_dims dims;
    oz_model_info info;
    oz_program program;
    oz_latent *latents;         /* [n_layers], empty where a layer keeps none; NULL: none does */
    oz_lowered *lowered;        /* the device's version of it, or NULL */
    oz_scheme *schemes;         /* of program.linears */
    oz_round *kv_round;         /* [n_layers, 2]: of keys and values, whose scales are in kv_scales; NULL: the cache is not quantized */
    float *kv_scales;           /* [n_layers, 2, n_heads_kv] */
    size_t cap_steps, cap_linears, cap_schemes;
    oz_form plain_form;         /* of activations that no scheme quantizes */
    oz_slot_ref top[OZ_SLOT_PER_LAYER];
    oz_slot_ref *layers;        /* [n_layers, OZ_SLOT_COUNT] */
    float **vecs; size_t n_vecs, cap_vecs; /* device vectors, owned */
    unsigned taps;
    int64_t layer_begin, layer_end; /* those that are loaded */
    bool headless;
    oz_scheme quantize;         /* of dense weights that it reaches, at load; not quantized: none */
    const oz_model_swap *swap;  /* while it is loaded; NULL: none */
    bool (*pending)(void *arg, const char *module); void *pending_arg; /* modules that are not made yet, NULL: none */
    oz_comm *comm;              /* not owned; NULL: one rank */
    oz_split split;
    float *tap_rows;            /* host [max_tok, widest that is tapped], where there are taps; */
    int32_t *tap_ints;          /* and [n_experts + 1], or a route's choices */
};

struct oz_state { const oz_model *model; oz_kv *kv; int64_t n_layers, n_blocks, n_slots; };

oz_slot_ref oz_model_slot(const oz_model *m, int64_t layer, oz_slot slot);
oz_status oz_plan_compile(oz_model *m, oz_err *err);
bool oz_round_same(const oz_round *a, const oz_round *b); /* inputs are rounded alike; NULL: not at all */
int64_t oz_mixer_width(const oz_dims *d); /* columns of OZ_BUF_MIXER */

/* ---- latents (latent.c) ---- */
/* Of kv_b (w, packed as l): what attention over latents takes, where this layer can keep them. */
oz_status oz_latent_load(oz_model *m, int layer, const oz_weight *w, const oz_scheme *scheme, const oz_linear *l, oz_err *err);
const oz_latent *oz_model_latent(const oz_model *m, int64_t layer); /* NULL: keys and values are kept */
void oz_model_kv(oz_kv *kv, const oz_model *m, int64_t layer);      /* the shape of a layer's cache; values that are columns of the keys: v_dim, and no v */
oz_status oz_latent_room_new(oz_model *m, oz_err *err);
void oz_latents_free(oz_model *m);

const char *oz_op_name(oz_op op);
int oz_step_taps(const oz_step *s); /* times that a tap is called: once, or for the rows of each expert */
oz_tap oz_step_tap(const oz_program *p, const oz_step *s, int i);
/* Runs steps [begin, end) that belong to the call's layers. */
typedef struct oz_exec { oz_step_call step; const oz_call *call; float *tap_rows; int32_t *tap_ints; oz_comm *comm; int model; /* of those in lockstep */ } oz_exec;
/* Whether the device has an operation for every step: OZ_E_UNSUPPORTED names the first it has not. */
oz_status oz_exec_check(const oz_dev *dev, const oz_program *p, oz_err *err);
void oz_exec_steps(const oz_exec *x, int begin, int end);
void oz_cuts_run(oz_model *m, const oz_exec *x); /* from one cut of the call to the other (cut.c) */

#endif
