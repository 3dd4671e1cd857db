/* The vocabulary between the plan and what runs it: a program is a flat array of steps over few, typed buffers. model/plan.c compiles it,
 * model/exec.c runs it step by step through the table of operations, and a device may lower a copy of it (oz_ops.lower): fuse runs of
 * steps and bind kernels. Nothing here names a model or a scheme. */
#ifndef OZ_KERNEL_STEP_H
#define OZ_KERNEL_STEP_H
#include "kernel/kernel.h"

/* Where a call's tokens go in a mixture of experts, written by route and sort. A pair is (token, slot), token * top_k + slot; sorted by
 * expert, those of one in order, pairs are the rows that grouped_linear works on. */
enum { OZ_MAX_GROUPS = 64 };
struct oz_route {
    int64_t n_experts, top_k;
    int32_t *experts; float *weights; /* [pairs]: a token's experts from the likeliest down, ties to the lower number */
    int32_t *pairs, *rows;            /* [pairs]: the pair of a sorted row, the sorted row of a pair */
    int32_t *starts;                  /* [n_experts + 1]: expert e has the sorted rows [starts[e], starts[e + 1]) */
    bool sigmoid;                     /* an expert's score is the sigmoid of its logit: what is chosen by, with its bias, and its weight, without; else its logit, and the softmax over all */
    const float *bias;                /* [n_experts] or NULL */
    bool raw;                         /* weights as they are, not divided by the sum of the chosen */
    float scale;                      /* on the weights; 0: none */
    int64_t n_groups, top_groups;     /* experts of the top_groups groups alone (of neighbours, all of one size) whose best are best, ties to the lower number; 0, 0: all */
    bool best_two;                    /* the sum of a group's best two counts */
};

struct oz_grouped_args {
    const oz_packed *const *experts;  /* host, [n_experts], of one shape and form */
    const oz_route *route;
    oz_rows x;                        /* sorted rows */
    float *y; int64_t ld_y;
    int64_t n_tok;
};

/* Keys and values expanded from a latent: a head's row of `heads` is the first head_dim - n_rope of its key, then its value; all keys end in the token's `rope`. */
struct oz_mla_args { const float *heads, *rope; int64_t ld_heads, ld_rope, n_rope; };

/* Attention over a cache of latents (one KV head; a row is a token's latent, then what all its keys end in, v NULL). Both forms are the same function:
 * absorbed, queries are turned into the latent's space and what attention gives there is turned into values, so that a token reads nothing but latents;
 * expanded, keys and values of all heads are made of every latent that a sequence has. oz_latent_expands says which is cheaper. */
typedef struct oz_latent { oz_packed **turned, **values, *whole; oz_form form; } oz_latent; /* of kv_b, by head: its keys' rows turned [rank, nope], its values' rows [v_dim, rank]; and all of it */
typedef struct oz_latent_room {
    int64_t n_tok; float *wide, *out; oz_rows x; /* absorbed, n_tok rows at a time: [n_heads, rank + n_rope], [n_heads, rank]; inputs of products */
    int64_t n_rows, ld; float *rows, *heads;     /* expanded, n_rows latents at a time inside rows of ld: a row of the cache, and its heads */
    oz_kv kv; int64_t max_len; int32_t *blocks;  /* and all of a sequence of up to max_len tokens; host [blocks of max_len]: 0, 1 ...; 0: never expanded */
} oz_latent_room;
struct oz_latent_args {
    const float *q; int64_t ld_q;   /* [n_tok, n_heads, head_dim] inside rows of ld_q; the end of each head, n_rope columns, has been turned */
    float *out; int64_t ld_out;     /* [n_tok, n_heads * v_dim] */
    const oz_kv *kv;
    int64_t n_heads, head_dim, n_rope, v_dim, window;
    float scale, softcap;           /* as attention */
    const oz_latent *w;
    const oz_latent_room *room;
};
bool oz_latent_expands(const oz_latent_args *a, const oz_seg *seg);

/* A causal convolution of each channel over the last `taps` inputs, then silu. state [n_slots, taps - 1, n]: the inputs before the call, oldest first. */
struct oz_conv_args {
    const float *x; float *y; int64_t ld;     /* [n_tok, n] inside rows of ld */
    const float *w, *bias;                    /* [taps, n], the last one for the newest input; [n] or NULL */
    float *state;
    int64_t n, taps;
};

/* A selective scan of each channel: with dt = softplus(dt_in), h[i] = exp(dt a[i]) h[i] + dt b[i] x; y = (sum of c[i] h[i], i ascending, + d x) silu(gate).
 * state [n_slots, n_state, n]: h. */
struct oz_scan_args {
    const float *x, *dt, *b, *c, *gate; int64_t ld; /* [n_tok, n], b and c [n_tok, n_state], inside rows of ld */
    float *y; int64_t ld_y;
    const float *a, *d;                             /* [n_state, n], [n] */
    float *state;
    int64_t n, n_state;
};

typedef enum oz_op {
    OZ_OP_EMBED, OZ_OP_ROPE_TABLE, OZ_OP_NORM, OZ_OP_QUANTIZE, OZ_OP_ROUND, OZ_OP_LINEAR, OZ_OP_ROPE, OZ_OP_ROPE_PAIRS, OZ_OP_KV_WRITE, OZ_OP_MLA_WRITE, OZ_OP_ATTENTION, OZ_OP_LATENT, OZ_OP_CONV, OZ_OP_SCAN,
    OZ_OP_SILU_MUL, OZ_OP_GELU_MUL, OZ_OP_SCALE, OZ_OP_SOFTCAP, OZ_OP_ADD, OZ_OP_TAP, OZ_OP_GATHER,
    OZ_OP_ROUTE, OZ_OP_SORT, OZ_OP_SPREAD, OZ_OP_GROUPED, OZ_OP_COMBINE, OZ_OP_ALL_REDUCE, OZ_OP_COUNT
} oz_op;

/* Buffers of a call, [max_tok, width], typed; where the model has experts, those that hold (token, slot) pairs have top_k times the rows. MIXER: what a mixer makes on its way, side by side. X16 and FFN16 hold rows
 * rounded to the model's 16-bit type: two, so that a fused feed-forward does not write what it reads. */
typedef enum oz_bufid {
    OZ_BUF_RESIDUAL, OZ_BUF_X, OZ_BUF_Q8, OZ_BUF_F8, OZ_BUF_ROUNDED, OZ_BUF_X16, OZ_BUF_FFN16, OZ_BUF_QKV, OZ_BUF_ATTN, OZ_BUF_OUT, OZ_BUF_GATE_UP, OZ_BUF_FFN,
    OZ_BUF_MIXER, OZ_BUF_ROUTER, OZ_BUF_PAIRS, OZ_BUF_ROWS, OZ_BUF_LOGITS, OZ_BUF_COUNT
} oz_bufid;

typedef struct oz_step {
    oz_op op;
    int layer;                  /* -1: outside the layers */
    oz_bufid dst, src;
    int64_t dst_col, src_col;   /* first column */
    int64_t n;                  /* columns, or head_dim for what works on heads */
    int64_t n_heads;
    oz_form form;               /* of src, for LINEAR; of dst, for QUANTIZE */
    const float *vec, *vec2;    /* norm weight; CONV: weights and bias; SCAN: a and d */
    int64_t taps, n_state, dt_col, bc_col, gate_col; /* CONV; SCAN: columns of src besides src_col, which x has; b, then c */
    int part0, n_parts;         /* LINEAR, TAP: indices into the program's linears; GROUPED, and a TAP of its rows: one an expert */
    int64_t tok_rows;           /* rows a token: 1, or top_k where they are pairs */
    unsigned tap;               /* TAP: its kind (model.h) */
    bool by_expert;             /* TAP: of the rows of GROUPED, once an expert */
    int64_t window;
    int rope;                   /* ROPE_TABLE, ROPE: which of the program's */
    float factor;               /* SCALE: that; SOFTCAP: the cap; NORM: the epsilon */
    int64_t rope_col, n_rope;   /* MLA_WRITE: columns of src that all heads' keys end in; LATENT: how many */
    const oz_latent *latent;    /* LATENT */
    const oz_round *round;      /* ROUND: how */
    bool whole_row;             /* QUANTIZE: the scale is that of the row over all ranks */
} oz_step;

typedef struct oz_linear {
    char *module; oz_form form; oz_packed *packed; float *bias;
    bool sums;        /* a part of a sum over ranks */
    oz_round *round;  /* NULL, or how its input is rounded first (form F32) */
} oz_linear;
/* cos and sin [max_tok, n_pairs] of a call's positions; a head's first 2 n_pairs columns rotate, in pairs (i, i + n_pairs). */
enum { OZ_MAX_ROPES = 2 };
typedef struct oz_rope_table { float *cos, *sin, *inv_freq; int64_t n_pairs; float factor; } oz_rope_table;
typedef struct oz_step_buf { oz_form form; int64_t width, rows; void *data; float *scales; } oz_step_buf;

struct oz_program {
    oz_step *steps; int n, n_layers_end;  /* steps [n_layers_end, n) make logits of gathered rows */
    oz_linear *linears; int n_linears;
    const oz_packed **packed;             /* [n_linears]: of linears */
    oz_route route;                       /* empty without experts */
    oz_latent_room latent;                /* empty without latents in a cache */
    oz_step_buf bufs[OZ_BUF_COUNT];
    oz_rope_table ropes[OZ_MAX_ROPES];
    float *row_amax;                      /* [max_tok], where there are ranks */
    float norm_eps, attn_scale, attn_softcap;
    int64_t layer_end, max_tok, head_rows; /* layer_end: of those that were planned; head_rows: rows of logits a chunk */
};

/* Running one step, and whether the device has what it takes. Taps, all-reduces and quantizing by whole rows are the caller's business. */
typedef struct oz_step_call {
    oz_dev *dev;
    const oz_program *p;
    const oz_kv *kv;                      /* [n_layers]; NULL for the head */
    int64_t n_tok;                        /* rows of the batch */
    int64_t row0, n_rows;                 /* of the batch's list of rows, for the head */
} oz_step_call;
oz_latent_args oz_step_latent(const oz_step_call *x, const oz_step *s); /* of a step LATENT */
bool oz_step_can(const oz_dev *dev, const oz_step *s);
void oz_step_run(const oz_step_call *x, const oz_step *s);

#endif
