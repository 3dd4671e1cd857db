/* Internal to kernel/: the CPU device's table. `ref` fills every slot; avx2, then avx512 and amx, overwrite what they do better
 * (cpu_init.c, a staircase that reads top to bottom).
 *
 * Layout of a packed weight: rows are cut into panels of `panel` rows, padded with zero codes. Inside a panel K runs slowest, so that one
 * step of K reads one contiguous piece and a product streams its panel once. Scales (and offsets, where a format has a free
 * minimum) are f32 [n_panels, n_groups, panel]: value = code * scale + offset, zero in padded rows. What a code is, and how K is interleaved, is the
 * gemm row's own business: it packs, multiplies and reads rows back (embedding tables are read through get_row).
 *
 * Numerics of every row (ref/gemm.c says them in full): sums over k ascending, each output on its own; with n_groups == 1 and no offsets
 * the sum is of codes and is multiplied by the row's scale at the end, else a weight is code * scale + offset, rounded once, or the sum of a
 * group's codes is scaled (gemm_f32_avx2.c). Q8 and F8 come with n_groups == 1 and no offsets only, and
 * y = sum * (scale * x_scale) + bias in that order; Q8's sum is exact. */
#ifndef OZ_KERNEL_CPU_H
#define OZ_KERNEL_CPU_H
#include <stdbool.h>
#include "base/pool.h"
#include "kernel/dev.h"

/* What a stored codec becomes in memory: a table in cpu_pack.c maps oz_codec to a kind, losslessly. U4: codes 0..15; L4: 4-bit indices into the
 * weight's codebook. Narrower codes take the next wider kind. */
typedef enum oz_wkind {
    OZ_WKIND_F32, OZ_WKIND_F16, OZ_WKIND_BF16, OZ_WKIND_I8, OZ_WKIND_I4, OZ_WKIND_F8, OZ_WKIND_U4, OZ_WKIND_L4, OZ_WKIND_COUNT
} oz_wkind;

typedef struct oz_gemm_row oz_gemm_row;
/* A packed weight is a list of runs of its rows, one a memory node of the pool: what the node's threads pack, they multiply (cpu_product.c). With one
 * node it is one run. To a kernel each is a weight of its own. */
typedef struct oz_cpu_packed {
    oz_packed head;               /* rows of the run; in the first, rows and n_bytes of the weight */
    struct oz_cpu_packed *next;   /* the next node's run, NULL after the last */
    int64_t row0;                 /* of the run in the weight */
    const oz_gemm_row *row;
    oz_wkind kind;
    int64_t n_panels;             /* of the run; 0 where there are fewer than threads */
    int64_t group_size, n_groups; /* columns that share a scale: all, or a multiple of 16; the last group may be short */
    size_t panel_bytes;           /* of codes, a multiple of 64 */
    uint8_t *codes;               /* [n_panels] of panel_bytes, 64-byte aligned */
    float *scales;                /* NULL for F32, F16, BF16 */
    uint16_t *scales16;           /* or instead of them: bf16, of weights with one a row that are stored so; products get them widened (cpu_product.c) */
    float *offsets;               /* NULL: none */
    const int8_t *codebook;       /* [16], of L4: what a code stands for */
    int32_t *order;               /* [cols] or NULL: column i meets input order[i]; the first run's */
} oz_cpu_packed;
enum { OZ_GATHER_TOK = 64 };      /* inputs that are put in such an order at a time */

typedef struct oz_gemm_task {
    const oz_cpu_packed *w;
    const float *bias;            /* NULL or [rows] */
    oz_rows x;                    /* Q8: int8 codes; F8: e4m3 values widened to f32; each with scales */
    float *y; int64_t ld_y;       /* column 0 is row 0 of w */
    int64_t n_tok;
} oz_gemm_task;

/* One row per (kind, form). NULL gemm: this level has no kernel for it (and then ref's is used if it has one). */
struct oz_gemm_row {
    const char *name;             /* "gemm_i8_q8__avx2" */
    int panel;                    /* rows a panel */
    size_t (*panel_bytes)(int64_t cols);
    /* Packs one panel: src f32-coded integer or float codes [panel, cols] (already in logical order, zero rows at the tail). */
    void (*pack)(uint8_t *dst, const float *codes, int64_t cols);
    void (*gemm)(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
    void (*get_row)(float *dst, const oz_cpu_packed *w, int64_t r); /* dequantized */
};

typedef struct oz_cpu_table {
    const char *level;
    oz_gemm_row gemm[OZ_WKIND_COUNT][OZ_FORM_COUNT];
    /* All of these work on one row (token), or on the part of a call that one thread was given. */
    void (*norm)(float *y, const float *x, const float *w, int64_t dim, float eps);
    float (*quantize_q8)(int8_t *q, const float *x, int64_t n);  /* returns the scale */
    float (*quantize_f8)(float *q, const float *x, int64_t n);   /* e4m3 values, widened */
    void (*round_bf16)(uint16_t *y, const float *x, int64_t n);  /* nearest, ties to even; NaN stays one */
    void (*rope)(float *head, const float *cos, const float *sin, int64_t half);
    void (*rope_pairs)(float *head, const float *cos, const float *sin, int64_t half);
    void (*silu_mul)(float *y, const float *gate, const float *up, int64_t n);
    void (*gelu_mul)(float *y, const float *gate, const float *up, int64_t n);
    void (*scale)(float *x, int64_t n, float factor);
    void (*softcap)(float *x, int64_t n, float cap);
    void (*add)(float *y, const float *x, int64_t n);
    /* queries [tok0, tok1) of one segment (0: its first token), KV heads [kvh0, kvh1) */
    void (*attention)(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1);
    /* channels [c0, c1) of one segment, whose slot `state` is */
    void (*conv)(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
    void (*scan)(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1);
    /* One token's experts and their weights; y = the sum of weights[i] * x[rows[i] * ld], i ascending, products and sums rounded one by one. */
    void (*route)(int32_t *experts, float *weights, const float *logits, const oz_route *rule); /* its tables are not touched */
    void (*combine)(float *y, const float *x, int64_t ld, const int32_t *rows, const float *weights, int64_t top_k, int64_t n);
    void (*stat)(oz_row_stat *out, const float *logits, int32_t target, int64_t vocab); /* target -1: none */
    void (*kl)(oz_kl_stat *out, const float *ref, const float *logits, int32_t target, int64_t vocab);
    /* For the ceilings: the level's best instructions on registers, returning the number of operations done; and a plain read. */
    double (*burn_f32)(int64_t n_steps);
    double (*burn_bf16)(int64_t n_steps); /* NULL: no such instruction */
    double (*burn_i8)(int64_t n_steps);
    void (*read)(const uint8_t *p, size_t n_bytes); /* n_bytes a multiple of 256, p aligned to 32 */
} oz_cpu_table;

void oz_cpu_init_ref(oz_cpu_table *t);
void oz_cpu_init_avx2(oz_cpu_table *t);
void oz_cpu_init_avx512(oz_cpu_table *t);
void oz_cpu_init_amx(oz_cpu_table *t);
uint64_t oz_xcr0(void);   /* states that the system saves; where there is XSAVE */
bool oz_amx_usable(void); /* and Linux permits it */
/* Levels that this machine and its operating system can run (CPUID and XCR0), worst first; NULL-terminated names. */
const char *const *oz_cpu_levels(void);
/* Fills *t for `level` ("auto": the best). OZ_E_USAGE names the levels there are. */
oz_status oz_cpu_table_init(oz_cpu_table *t, const char *level, oz_err *err);
extern const oz_ops oz_cpu_ops;
bool oz_cpu_multiplies(const oz_dev *d, oz_codec codec, oz_form form);
oz_status oz_cpu_pack(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err);
void oz_cpu_packed_free(oz_dev *d, oz_packed **p);
void oz_cpu_ceiling(oz_dev *d, oz_ceiling *out);

/* Memory of packed weights on huge pages (cpu_slab.c): a list of slabs, NULL at first. Zeroed, 64-byte aligned; free is false for memory
 * that is not of these slabs. */
typedef struct oz_slab oz_slab;
oz_status oz_slab_new(void **out, oz_slab **slabs, size_t n_bytes, const char *what, oz_err *err);
bool oz_slab_free(oz_slab **slabs, void *mem);

typedef struct oz_cpu_dev {
    oz_dev head;
    oz_cpu_table table;
    oz_pool *pool;
    oz_slab *slabs[OZ_MAX_NODES]; /* of each memory node, touched by its threads alone */
    const oz_batch *batch; /* of the call that runs */
    bool deterministic;    /* latent attention is always absorbed: all else is the same either way */
    uint8_t *gathered; size_t gathered_bytes; /* a thread: inputs in a weight's order */
} oz_cpu_dev;
static inline oz_cpu_dev *oz_cpu(oz_dev *d) { return (oz_cpu_dev *)d; }

/* A call's work cut into n items over the pool, or run here where it is not worth waking a thread: work_each element operations an item (cpu_ops.c). */
void oz_cpu_split(oz_dev *d, int64_t n, int64_t work_each, oz_pool_fn *fn, void *arg);
void oz_cpu_linear(oz_dev *d, const oz_linear_args *a), oz_cpu_grouped_linear(oz_dev *d, const oz_grouped_args *a);
/* n products as one region: task(arg, i) says which, with the first run of its weight; n_tok may be 0. */
typedef oz_gemm_task oz_cpu_task_fn(const void *arg, int64_t i);
void oz_cpu_products(oz_dev *d, int64_t n, oz_cpu_task_fn *task, const void *arg);
void oz_cpu_get_row(float *y, const oz_cpu_packed *w, int64_t r); /* of the whole weight, dequantized */
int oz_cpu_form_bytes(oz_form form);
void oz_cpu_quantize(oz_dev *d, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n);
void oz_cpu_attend(oz_dev *d, const oz_attn_args *a, const oz_seg *segs, int64_t n_segs); /* of these segments alone */
void oz_cpu_mla_write(oz_dev *d, const oz_kv *kv, const oz_mla_args *a); /* cpu_latent.c */
void oz_cpu_latent(oz_dev *d, const oz_latent_args *a);
/* Where head h of a position lies in the cache: a row, of head_dim or v_dim values. */
static inline int64_t oz_kv_at(const oz_kv *kv, const oz_seg *s, int64_t pos, int64_t h) {
    return (s->blocks[pos / OZ_KV_BLOCK] * kv->n_heads_kv + h) * OZ_KV_BLOCK + pos % OZ_KV_BLOCK;
}
/* Values, and the distance between their rows. */
static inline const float *oz_kv_v(const oz_kv *kv) { return kv->v ? kv->v : kv->k; }
static inline int64_t oz_kv_v_ld(const oz_kv *kv) { return kv->v ? kv->v_dim : kv->head_dim; }

#endif
