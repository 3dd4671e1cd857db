/* Internal to kernel/cuda/: the CUDA device, its packed weights, and what its files call of each other. C++ as nvcc reads it, written as C.
 *
 * Everything runs on one stream of the device. Kernels begin with pdl_wait (device.cuh): a launch may be scheduled while the one before it
 * still drains, and touches what others write only behind that line. */
#ifndef OZ_KERNEL_CUDA_INTERNAL_H
#define OZ_KERNEL_CUDA_INTERNAL_H
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>
extern "C" {
#include "base/err.h"
#include "base/mem.h"
#include "kernel/calib.h"
#include "kernel/dev.h"
#include "kernel/step.h"
}
#ifdef OZ_MUTATE /* the checker's bugs; see mutate.h and device.cuh */
#include "kernel/cuda/mutate.h"
extern int oz_mutation, oz_n_mutation_files;
extern void (*oz_mutation_files[32])(int m);
#define HOST_MUTATED(name) (oz_mutation == OZ_MUTATION_##name)
#else
#define HOST_MUTATED(name) false
#endif

/* What a stored codec becomes on the device (pack.cu). */
typedef enum oz_ckind { OZ_CK_F32, OZ_CK_F16, OZ_CK_BF16, OZ_CK_I8, OZ_CK_I4, OZ_CK_F8, OZ_CK_COUNT } oz_ckind;

/* Rows of codes, each K-contiguous and padded with zero codes to a multiple of 64 bytes: what libraries read.
 * In the woven layout the integers of a weight that meets 16-bit activations are interleaved inside each 64 bytes, so that the streaming
 * kernel widens pairs with one mask (pack.cu says how). */
typedef enum oz_layout { OZ_LAYOUT_PLAIN, OZ_LAYOUT_WOVEN } oz_layout;

enum { OZ_ROW_TILE = 16, OZ_ROW_ALIGN = 64, OZ_M_STREAM = 8, OZ_M_BUCKETS = 2 /* up to 8 rows, more */ };

struct oz_cuda_packed;
struct oz_cuda_dev;
typedef struct oz_gemm_choice { /* a row of the list in linear.cu */
    const char *name;
    bool (*fits)(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket);
    void (*run)(oz_cuda_dev *d, const oz_linear_args *a);
} oz_gemm_choice;

struct oz_cuda_packed {
    oz_packed head;
    oz_ckind kind;
    oz_form form;
    oz_layout layout;
    int64_t stride_bytes;            /* between rows of codes */
    int64_t group_size, n_groups;
    uint8_t *codes;
    float *scales, *offsets;         /* value = code * scale + offset; [rows / 16, n_groups, 16]; NULL: none */
    int32_t *order;                  /* [cols] on the device, or NULL: column i meets input order[i] */
    const oz_gemm_choice *bound[OZ_M_BUCKETS];
    char name[96];
};
static inline int64_t oz_gathered_ld(int64_t cols) { return (cols + 15) / 16 * 16; }
static inline const oz_cuda_packed *oz_cuda_weight(const oz_packed *p) { return (const oz_cuda_packed *)p; }

/* The batch that was begun, at addresses that stay while `generation` does. Rows behind n_tok have pos -1 and are skipped. */
typedef struct oz_cuda_batch {
    const int32_t *ids, *pos, *seq, *rows; /* device [cap_tok]: token, position, which table; rows for the head */
    const int32_t *slots;                  /* device [cap_seq]: of state that is no block */
    const int32_t *tables;                 /* device [cap_seq, ld] */
    int64_t ld, cap_tok, cap_seq;
    int64_t n_tok, n_rows;                 /* host's view */
    int64_t max_len;                       /* longest sequence, in keys */
    uint64_t generation;
    const oz_batch *host;
} oz_cuda_batch;

struct oz_lt; struct oz_solver; /* lt.cu, factor.cu */
struct oz_cuda_dev {
    oz_dev head;
    int device, n_sms;
    bool deterministic;
    cudaStream_t stream;
    oz_cuda_batch batch;
    void *batch_mem; int32_t *batch_pinned; size_t batch_bytes;
    uint8_t *pinned[2], *staged[2]; cudaEvent_t staged_done[2]; /* OZ_STAGE_BYTES each: packing, sinks */
    uint8_t *work; size_t work_bytes;   /* expanded tiles, attention's partial results, the library's */
    uint8_t *gathered; size_t gathered_bytes; /* inputs in a weight's order */
    unsigned *tickets;                  /* zeroed counters */
    oz_lt *lt;                          /* NULL: no library here */
    oz_solver *solver;                  /* NULL: not needed yet */
    cudaError_t failed;                 /* first error of a call that returns void */
};
static inline oz_cuda_dev *oz_cuda(oz_dev *d) { return (oz_cuda_dev *)d; }
enum { OZ_STAGE_BYTES = 32 << 20, OZ_WORK_BYTES = 384 << 20, OZ_LT_WORK_BYTES = 32 << 20, OZ_TICKETS = 1 << 20, OZ_GATHER_TOK = 512 /* inputs in an order of their own at a time */,
       OZ_GRAPH_TOK = 64 /* most rows of a call that may be captured: what is launched then serves other batches too */ };

oz_status oz_cuda_check(cudaError_t e, const char *what, oz_err *err);
void oz_cuda_note(oz_cuda_dev *d, cudaError_t e); /* for calls that return void; reported by end */

/* One launch, allowed to overlap the end of the one before it. */
template <typename... P, typename... A>
static inline void oz_launch(oz_cuda_dev *d, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem_bytes, A... args) {
    cudaLaunchAttribute attr;
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid, cfg.blockDim = block, cfg.dynamicSmemBytes = smem_bytes, cfg.stream = d->stream, cfg.attrs = &attr, cfg.numAttrs = 1;
    oz_cuda_note(d, cudaLaunchKernelEx(&cfg, kernel, (P)args...));
}

/* pack.cu */
oz_status oz_cuda_pack(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err);
void oz_cuda_packed_free(oz_dev *d, oz_packed **p);
const char *oz_ckind_name(oz_ckind k);
const char *oz_form_name(oz_form f);

/* rows.cu: one row, or one head, at a time */
void oz_cuda_embed(oz_dev *d, float *y, int64_t ld, const oz_packed *w);
void oz_cuda_norm(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec, int64_t dim, float eps);
void oz_cuda_quantize(oz_dev *d, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cuda_round(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n, const oz_round *q);
void oz_cuda_rope_table(oz_dev *d, float *cos, float *sin, const float *inv_freq, int64_t half, float factor);
void oz_cuda_rope(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok);
void oz_cuda_rope_pairs(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok);
void oz_cuda_kv_write(oz_dev *d, const oz_kv *kv, const float *k, const float *v, int64_t ld);
void oz_cuda_silu_mul(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cuda_gelu_mul(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cuda_scale(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float factor);
void oz_cuda_softcap(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float cap);
void oz_cuda_add(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cuda_gather(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t row0, int64_t n_rows, int64_t n);

/* fused.cu: runs of steps as one kernel. x += add (if any); y = norm(x) * w in y's form. */
enum { OZ_FUSED_MAX_DIM = 12 << 10, OZ_FUSED_MAX_HEAD = 256 };
typedef struct oz_norm_quantize { float *x; int64_t ld_x; const float *add; int64_t ld_add; const float *w; float eps; oz_rows y; int64_t n_tok, dim; } oz_norm_quantize;
void oz_cuda_norm_quantize(oz_cuda_dev *d, const oz_norm_quantize *a);
/* Heads of q, k, v side by side in rows of ld: normed (q_norm, k_norm not NULL), rotated; q in place, k and v to their block. */
typedef struct oz_heads { float *qkv; int64_t ld; const float *q_norm, *k_norm; float eps; const float *cos, *sin; const oz_kv *kv; int64_t n_heads, n_tok; } oz_heads;
void oz_cuda_heads(oz_cuda_dev *d, const oz_heads *a);

/* attention.cu: rows [tok0, tok0 + n_tok) of the batch, which q and out begin with; out in `out`'s form (F32, BF16, F16). max_len: longest sequence that the launch has to reach. */
void oz_cuda_attention(oz_dev *d, const oz_attn_args *a);
void oz_cuda_attention_run(oz_cuda_dev *d, const oz_attn_args *a, oz_rows out, int64_t tok0, int64_t n_tok, int64_t max_len);
/* attention_tile.cu: attention of whole runs of a sequence's tokens; at most OZ_ATTN_SEGS of them. tok0: the first one's row in q and out; seq: its table in the batch. */
enum { OZ_ATTN_SEGS = 128 };
typedef struct oz_attn_seg { int32_t tok0, n_tok, pos0, seq; } oz_attn_seg;
bool oz_cuda_attention_tiles_fit(const oz_attn_args *a);
void oz_cuda_attention_tiles(oz_cuda_dev *d, const oz_attn_args *a, oz_rows out, const oz_attn_seg *segs, int n_segs);

/* latent.cu, scan.cu */
void oz_cuda_mla_write(oz_dev *d, const oz_kv *kv, const oz_mla_args *a);
void oz_cuda_latent(oz_dev *d, const oz_latent_args *a);
void oz_cuda_latent_run(oz_cuda_dev *d, const oz_latent_args *a, int64_t n_tok, int64_t max_len);
void oz_cuda_conv(oz_dev *d, const oz_conv_args *a);
void oz_cuda_scan(oz_dev *d, const oz_scan_args *a);

/* linear.cu: the list of products, and choosing from it */
bool oz_cuda_linear_bind(const oz_cuda_dev *d, oz_cuda_packed *w);
void oz_cuda_linear(oz_dev *d, const oz_linear_args *a);
void oz_gemm_plain(oz_cuda_dev *d, const oz_linear_args *a);
void oz_gemm_plain_range(oz_cuda_dev *d, const oz_packed *w, oz_rows x, float *y, int64_t ld_y, int64_t max_rows, const int32_t *range);
/* gemm_stream.cu */
bool oz_stream_fits(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket);
void oz_gemm_stream(oz_cuda_dev *d, const oz_linear_args *a);
/* out = silu(gate) * up in out's form: parts are gate and up; n_tok as the streaming kernel takes it */
void oz_gemm_stream_silu(oz_cuda_dev *d, const oz_linear_args *a, oz_rows out);
/* lt.cu */
void oz_lt_open(oz_cuda_dev *d);
void oz_lt_close(oz_cuda_dev *d);
bool oz_lt_fits(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket);
bool oz_lt_expand_fits(const oz_cuda_dev *d, const oz_cuda_packed *w, int bucket);
bool oz_lt_square(oz_cuda_dev *d, oz_form form, int64_t n, void *mem);
/* Column-major d [m, n] = alpha a' b, or added to what is there: a [k, m], or plain: [m, k]; b [k, n], or turned: [n, k]. Of f32, or bf16 with sums in f32. False: not done. */
typedef struct oz_lt_product_args { bool bf16; const void *a, *b; float *d; int64_t m, n, k, lda, ldb, ldd; bool plain_a, turned_b, adds; float alpha; } oz_lt_product_args;
bool oz_lt_product(oz_cuda_dev *d, const oz_lt_product_args *p);
void oz_gemm_lt(oz_cuda_dev *d, const oz_linear_args *a);
void oz_gemm_lt_expand(oz_cuda_dev *d, const oz_linear_args *a);

/* gram.cu, factor.cu, gptq.cu: calibration */
extern const oz_calib_ops oz_cuda_calib;
extern const oz_tile_ops oz_cuda_tile_ops;
extern const oz_trial_ops oz_cuda_trial_ops;
oz_status oz_cuda_factor(bool *is_definite, oz_dev *d, const oz_factoring *f, const char *what, oz_err *err);
void oz_cuda_factor_close(oz_cuda_dev *d);

/* ceiling.cu */
void oz_cuda_ceiling(oz_dev *d, oz_ceiling *out);

/* sink.cu */
void oz_cuda_sink_stat(oz_dev *d, oz_row_stat *out, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab);
void oz_cuda_sink_kl(oz_dev *d, oz_kl_stat *out, const float *ref, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab);

/* moe.cu */
void oz_cuda_route(oz_dev *d, const oz_route *r, const float *logits, int64_t ld, int64_t n_tok);
void oz_cuda_sort(oz_dev *d, const oz_route *r, int64_t n_tok);
void oz_cuda_spread(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cuda_combine(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cuda_grouped(oz_dev *d, const oz_grouped_args *a);

/* lower.cu */
oz_status oz_cuda_lower(oz_lowered **out, oz_dev *d, const oz_program *p, oz_err *err);
void oz_cuda_lowered_free(oz_lowered **l);
bool oz_cuda_lowered_run(oz_lowered *l, const oz_kv *kv, oz_steps which, int64_t row0, int64_t n_rows);
void oz_cuda_lowered_print(const oz_lowered *l, FILE *out);

#endif
