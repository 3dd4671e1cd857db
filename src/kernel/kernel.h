/* The only door to kernels: a device, its memory, packed weights, and a table of operations. Nothing here knows CUDA or an
 * intrinsic. Kernels return void and trust: shapes are checked by whoever plans. All pointers in args are device memory
 * from ops->mem_new (on a CPU: ordinary memory) unless the comment says host.
 *
 * Determinism: an output's sum over K is taken in an order set by shape and layout alone, never by n_tok, threads or batch. */
#ifndef OZ_KERNEL_KERNEL_H
#define OZ_KERNEL_KERNEL_H
#include <stdio.h>
#include "base/err.h"
#include "number/number.h"

typedef struct oz_dev oz_dev;
typedef struct oz_dev_cfg {
    const char *name;      /* "auto", "cpu", "cuda", "cuda:1" */
    int threads;           /* 0: all cores */
    const char *cpu_level; /* "auto", "ref", "avx2" ... ; a level the machine lacks is an error */
    bool deterministic;    /* sums in an order that n_tok and the batch do not change; always so on the CPU */
} oz_dev_cfg;
oz_status oz_dev_open(oz_dev **out, const oz_dev_cfg *cfg, oz_err *err);
void oz_dev_close(oz_dev **d);
const char *oz_dev_describe(const oz_dev *d); /* "cpu avx2, 2 threads" */
int oz_dev_threads(const oz_dev *d);

/* How a row of activations is stored. Q8: int8 codes and one f32 scale a row; F8: e4m3 values (the device chooses how a code is
 * kept, see form_bytes) and one f32 scale a row. BF16, F16: rounded, the inputs of 16-bit products. */
typedef enum oz_form { OZ_FORM_F32, OZ_FORM_Q8, OZ_FORM_F8, OZ_FORM_BF16, OZ_FORM_F16, OZ_FORM_COUNT } oz_form;
typedef struct oz_rows { oz_form form; void *data; int64_t ld; /* elements between rows */ float *scales; } oz_rows;
/* A weight in a kernel's own layout on the device. Packing takes rows [row0, row0 + n_rows) of the logical weight. */
typedef struct oz_packed oz_packed;
int64_t oz_packed_rows(const oz_packed *p), oz_packed_cols(const oz_packed *p);
size_t oz_packed_bytes(const oz_packed *p);
const char *oz_packed_kernel(const oz_packed *p); /* "gemm_i8_q8__avx2": what runs it */

enum { OZ_KV_BLOCK = 16, OZ_MAX_PARTS_LINEAR = 4 };

/* Consecutive tokens of one sequence inside a call. */
typedef struct oz_seg {
    int64_t tok0, n_tok;   /* rows of the call */
    int64_t pos0;          /* position of the first of them */
    const int32_t *blocks; /* host: block ids of positions 0.. ; enough for pos0 + n_tok */
} oz_seg;

/* Paged keys and values of one layer, f32: k and v are [n_blocks, n_heads_kv, OZ_KV_BLOCK, head_dim or v_dim]; v NULL: values are the first v_dim of the keys. Of a layer that scans: slots (step.h). */
typedef struct oz_kv { float *k, *v; int64_t n_heads_kv, head_dim, v_dim; float *conv, *scan; } oz_kv;

/* What a call feeds in, given once (begin); all host memory, which must live until the call's end. */
typedef struct oz_batch {
    const int32_t *ids;                 /* NULL: the call begins with a residual */
    int64_t n_tok;
    const oz_seg *segs; int64_t n_segs; /* cover the rows in order */
    const int32_t *slots;               /* [n_segs], of state that is no block; NULL: i */
    const int32_t *rows; int64_t n_rows; /* that reach the sink */
} oz_batch;

typedef struct oz_linear_args {
    const oz_packed *const *parts; /* share the input x; outputs are written side by side, in order, from column 0 of y */
    const float *const *bias;      /* [n_parts], entries NULL or [rows of the part] */
    int n_parts;
    oz_rows x;                     /* form as the parts were packed for */
    float *y; int64_t ld_y;
    int64_t n_tok;
} oz_linear_args;

typedef struct oz_attn_args {
    const float *q; int64_t ld_q;  /* [n_tok, n_heads, head_dim] inside rows of ld_q */
    float *out; int64_t ld_out;    /* [n_tok, n_heads * v_dim] */
    const oz_kv *kv;
    int64_t n_heads; float scale;  /* on q . k */
    int64_t window;                /* 0: none; key j is visible to query i when i - j < window */
    float softcap;                 /* 0: none; else a score s is softcap * tanh(s / softcap) before the softmax */
} oz_attn_args;

typedef struct oz_row_stat { float max_logit, logit_target; double lse; int32_t argmax; } oz_row_stat; /* argmax: ties to the lowest id */
typedef struct oz_kl_stat { double kl, nll_ref, nll, p_ref, p; int32_t argmax_ref, argmax, place_ref, place; } oz_kl_stat; /* p: of the target; place of each one's argmax in the other's order, from 0 */

/* model/'s compiled steps (kernel/step.h), and a device's own version of them. */
typedef struct oz_program oz_program; typedef struct oz_lowered oz_lowered; typedef struct oz_route oz_route;
typedef struct oz_grouped_args oz_grouped_args; typedef struct oz_mla_args oz_mla_args; typedef struct oz_latent_args oz_latent_args; typedef struct oz_conv_args oz_conv_args; typedef struct oz_scan_args oz_scan_args;
typedef struct oz_calib_ops oz_calib_ops; typedef enum oz_steps { OZ_STEPS_LAYERS, OZ_STEPS_HEAD } oz_steps;

typedef struct oz_ops {
    /* memory: user-sized, error on none; upload/download between host and device; zeroed when new */
    oz_status (*mem_new)(void **out, oz_dev *d, size_t n_bytes, const char *what, oz_err *err);
    void (*mem_free)(oz_dev *d, void *p);
    void (*upload)(oz_dev *d, void *dst, const void *src_host, size_t n_bytes);
    void (*download)(oz_dev *d, void *dst_host, const void *src, size_t n_bytes); void (*copy)(oz_dev *d, void *dst, const void *src, size_t n_bytes); /* both the device's */
    int (*form_bytes)(oz_form form); size_t latent_room; /* of one element, 0: not on this device; bytes for keys and values that `latent` expands, 0: it never does */
    bool (*multiplies)(const oz_dev *d, oz_codec codec, oz_form form); /* is there a kernel? NULL: for all forms that have bytes */
    /* w: compact (oz_weight_is_compact), rounded on the way where it has rtn. form: of the activations it will meet. OZ_E_UNSUPPORTED if no kernel takes (codec, form): the caller adds module and scheme.
     * Peak memory beyond the result: one chunk of rows. */
    oz_status (*pack)(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err);
    void (*packed_free)(oz_dev *d, oz_packed **p);

    /* A call: begin gives the batch to the device; embed, rope_table, kv_write, attention and gather take it from there. end waits until all
     * is done; a device that failed says so here (OZ_E_IO). */
    oz_status (*begin)(oz_dev *d, const oz_batch *b, oz_err *err);
    oz_status (*end)(oz_dev *d, oz_err *err);
    void (*embed)(oz_dev *d, float *y, int64_t ld, const oz_packed *w);
    /* RMSNorm of n_vec vectors of `dim` a row: qk-norm has n_vec heads a row. y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*norm)(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec, int64_t dim, float eps);
    void (*quantize)(oz_dev *d, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
    void (*round)(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q); /* oz_act_round; y may be x */
    /* For rows of which each rank holds a part; NULL: this device does not run ranks. amax [n_tok] of a part, then quantizing by the whole row's. */
    void (*row_amax)(oz_dev *d, float *amax, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
    void (*quantize_by)(oz_dev *d, const oz_rows *y, const float *amax, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
    void (*linear)(oz_dev *d, const oz_linear_args *a);
    /* cos, sin [n_tok, half]: of position * inv_freq[i] (f32 product, as the reference; cos and sin of it correctly rounded), times factor */
    void (*rope_table)(oz_dev *d, float *cos, float *sin, const float *inv_freq, int64_t half, float factor);
    /* rotates the first 2*half of every head in place; pairs (i, i + half) */
    void (*rope)(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok);
    void (*rope_pairs)(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok); /* pairs (2i, 2i + 1) */
    void (*kv_write)(oz_dev *d, const oz_kv *kv, const float *k, const float *v, int64_t ld);
    void (*mla_write)(oz_dev *d, const oz_kv *kv, const oz_mla_args *a); void (*latent)(oz_dev *d, const oz_latent_args *a);
    void (*attention)(oz_dev *d, const oz_attn_args *a);
    void (*conv)(oz_dev *d, const oz_conv_args *a), (*scan)(oz_dev *d, const oz_scan_args *a);
    /* y = act(gate) * up; gelu: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    void (*silu_mul)(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n);
    void (*gelu_mul)(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n);
    void (*scale)(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float factor);
    void (*softcap)(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float cap);   /* x = cap * tanh(x / cap) */
    void (*add)(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n); /* y += x */
    /* y's rows are the batch's rows [row0, row0 + n_rows) of x */
    void (*gather)(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t row0, int64_t n_rows, int64_t n);
    /* A mixture of experts. The weights of the top_k chosen experts are the softmax over all, divided by their
     * sum unless the route is raw, times its scale. spread gives every sorted
     * row its token's x. combine sums a token's rows times their weights, in the order of its slots: y does not depend on other tokens. */
    void (*route)(oz_dev *d, const oz_route *r, const float *logits, int64_t ld, int64_t n_tok);
    void (*sort)(oz_dev *d, const oz_route *r, int64_t n_tok);
    void (*spread)(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
    void (*grouped_linear)(oz_dev *d, const oz_grouped_args *a);
    void (*combine)(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
    /* sinks: reduce rows of logits [n_rows, vocab] in place of keeping them. targets host or NULL; out host. Sums in f64. */
    void (*sink_stat)(oz_dev *d, oz_row_stat *out, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab);
    void (*sink_kl)(oz_dev *d, oz_kl_stat *out, const float *ref, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab);

    /* Lowering; NULL: this device has none. The program outlives what is made of it. lowered_run runs all layers of the batch that was begun, or
     * the head on its rows [row0, row0 + n_rows); false: not this batch, the plain executor has to. */
    oz_status (*lower)(oz_lowered **out, oz_dev *d, const oz_program *p, oz_err *err);
    void (*lowered_free)(oz_lowered **l);
    bool (*lowered_run)(oz_lowered *l, const oz_kv *kv, oz_steps which, int64_t row0, int64_t n_rows);
    void (*lowered_print)(const oz_lowered *l, FILE *out); const oz_calib_ops *calib; /* what calibration computes (kernel/calib.h); NULL: the host does */
} oz_ops;
const oz_ops *oz_dev_ops(const oz_dev *d);

/* Ceilings of this machine, measured now (about a second each): read bandwidth, multiply-adds of f32, bf16 and int8, all threads and the best level's
 * instructions, or matrix units. Zero: not measured here. scatter: by what share the worst repetition of any stayed below its best. */
typedef struct oz_ceiling { double read_bytes_s, f32_flop_s, bf16_flop_s, i8_op_s, scatter; } oz_ceiling;
void oz_dev_ceiling(oz_dev *d, oz_ceiling *out);

#endif
