/* What calibration computes: Hessians of what modules read, their factors, and the steps of GPTQ on a tile of a matrix's rows. quantize/ says in which order (gptq.c, hessian.c) and does
 * all of it on the host with BLAS; a device may have its own (oz_ops.calib), on its own memory. */
#ifndef OZ_KERNEL_CALIB_H
#define OZ_KERNEL_CALIB_H
#include "kernel/kernel.h"

enum { OZ_TILE_ALIGN = 32 }; /* of a tile's room for rows, on a device */
enum { OZ_GPTQ_BLOCK = 128, OZ_GPTQ_SCALES = 24 }; /* columns whose errors reach the columns after the block together; scales that are tried */

/* Rows of a matrix, held column by column: [n, ld]. Errors are what was chosen less the weight. */
typedef struct oz_tile {
    int64_t n, n_rows, ld;      /* columns; rows; room for rows. Those behind n_rows are zeros under scale 1 */
    int64_t group, n_groups;    /* columns that share a scale */
    oz_rtn rtn;
    const float *h, *u;         /* [n, n] the Hessian; the factor: upper triangle, in order */
    const int32_t *perm;        /* [n]: the order of columns */
    const float *importance;    /* [n]: what an error of a column counts where scales are searched; NULL: scales stay */
    float added;                /* to the Hessian's diagonal */
    float steps[OZ_GPTQ_SCALES]; /* what scales of rounding to nearest are multiplied by in the search; the first that leaves the type's range ends it */
    float *w, *t, *e, *he, *codes; /* [n, ld] the weights; the same in order, updated; errors; H times them */
    float *scale, *zero;        /* [n_groups, ld] */
    float *err, *room;          /* [BLOCK, ld] of a block; [2 BLOCK, ld] */
    int32_t *failed;            /* 1: a value has left the range of floats */
} oz_tile;

/* out [m, ld] = alpha a b, or added to what is there; a [m, k] with rows of lda, or turned: it lies as [k, m]; b [k, ld]. */
typedef struct oz_tile_product { float *out; const float *a; int64_t lda; bool turned; int64_t m, k; const float *b; float alpha; bool adds; } oz_tile_product;

typedef struct oz_tile_ops {
    void (*begin)(oz_dev *d, const oz_tile *t); /* zeros under scale 1 */
    /* Rows [r0, r0 + n): values [n, t->n], scales and zero points [n, n_groups] of rounding to nearest, whose errors go to e; then scales of least error, where importance is given. Host. */
    void (*load)(oz_dev *d, const oz_tile *t, int64_t r0, int64_t n, const float *rows, const float *scales, const float *zeros);
    void (*unload)(oz_dev *d, const oz_tile *t, int64_t r0, int64_t n, float *codes, float *scales, float *zeros);
    void (*sort)(oz_dev *d, const oz_tile *t);  /* t = w in order */
    void (*sweep)(oz_dev *d, const oz_tile *t, int64_t k0, int64_t k1); /* columns [k0, k1) of the order: each is rounded, and its error taken off the rest of them; err: for the others */
    /* Columns [c0, c1), at most a block: each is rounded anew given all others; fits: they are a group, whose scale is then fitted to its codes. he is kept up among them; err: for the others. */
    void (*again)(oz_dev *d, const oz_tile *t, int64_t c0, int64_t c1, bool fits);
    void (*product)(oz_dev *d, const oz_tile *t, const oz_tile_product *p);
    void (*add)(oz_dev *d, const oz_tile *t, float *y, const float *x, float by);                   /* y += by x; [n, ld] each */
    double (*dot)(oz_dev *d, const oz_tile *t, const float *x, const float *y, float less);         /* sum of x (y - less x) */
    bool (*failed)(oz_dev *d, const oz_tile *t);
} oz_tile_ops;

/* A symmetric matrix and what makes its factor: U, upper triangle, with (a in the order perm + damp on the diagonal)^-1 = U^T U. Zeros on the diagonal count as `mean`. */
typedef struct oz_factoring { const float *a; int64_t n; const int32_t *perm; double mean, damp; float *u, *importance /* [n]: 1 / U's diagonal squared, in stored order */; } oz_factoring;

/* Of each column of rows: the least and the greatest value, 0 among them, and the sums of magnitudes, which is not finite where one of them is not, and of squares. [n] each, zeros before. */
typedef struct oz_range { double *sum, *squares; float *min, *max; } oz_range;

/* A matrix on which scales are tried: its outputs on some rows of inputs, and how far off they are when its columns are multiplied and it is rounded to nearest. */
typedef struct oz_trial oz_trial;
typedef struct oz_trial_cfg { int64_t rows, cols, n_tok; oz_rtn rtn; int64_t shared_rows; /* that have their scales together; 1: each its own */ } oz_trial_cfg;
/* How far to shrink the range of each group before rounding to nearest (quantize/clip.c): the error of a group's part of the outputs is e G e^T, G = x^T x, added over pieces of at most
 * OZ_CLIP_PIECE columns. All on the host. */
enum { OZ_CLIP_PIECE = 128, OZ_CLIP_SHRINKS = 16 };
typedef struct oz_clip_args {
    const float *x;                  /* [n_tok, cols] */
    float shrinks[OZ_CLIP_SHRINKS];  /* factors of the range */
    float *scales, *zeros;           /* [rows, n_groups]: of the one of least error, the first of these */
    double *sums;                    /* [3]: errors of all weights taken for zero, of the first factor, of what was chosen */
} oz_clip_args;
typedef struct oz_trial_ops {
    oz_status (*open)(oz_trial **out, oz_dev *d, const oz_trial_cfg *cfg, const char *what, oz_err *err);
    void (*close)(oz_dev *d, oz_trial **t);
    void (*load)(oz_dev *d, oz_trial *t, int64_t r0, int64_t n, const float *rows);        /* values of rows [r0, r0 + n); host */
    void (*aim)(oz_dev *d, oz_trial *t, const float *x, double *squares);                  /* its outputs on x [n_tok, cols]; each token's square; host */
    void (*weigh)(oz_dev *d, oz_trial *t, const float *token);                             /* from here on a token's outputs count times so much [n_tok]; host */
    double (*error)(oz_dev *d, oz_trial *t, const float *x, const float *by); /* squared; x weighed already; columns times by [cols]. Host */
    oz_status (*clip)(oz_dev *d, oz_trial *t, const oz_clip_args *a, const char *what, oz_err *err);
} oz_trial_ops;

typedef struct oz_gram oz_gram;
struct oz_calib_ops {
    size_t (*room)(oz_dev *d); /* bytes of memory that nothing uses */
    /* The sum of x x^T / |x| over rows x (quantize/hessian.c says why), [n, n]. */
    oz_status (*gram_new)(oz_gram **out, oz_dev *d, int64_t n, const char *what, oz_err *err);
    void (*gram_free)(oz_dev *d, oz_gram **g);
    void (*gram_add)(oz_dev *d, oz_gram *g, const float *x, int64_t ld, int64_t n_rows);
    float *(*gram_close)(oz_dev *d, oz_gram *g, float *diagonal /* host [n] */); /* the sum, both halves; the gram's own */
    oz_status (*factor)(bool *is_definite, oz_dev *d, const oz_factoring *f, const char *what, oz_err *err);
    const oz_tile_ops *tile; const oz_trial_ops *trial;
    void (*range_add)(oz_dev *d, const oz_range *r, const float *x, int64_t ld, int64_t n_rows, int64_t n);
};

#endif
