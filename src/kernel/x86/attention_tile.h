/* What attention_avx2.c and attention_avx512.c share: the tile of query rows, and the walk over its runs of keys (attention_tile.c). A level brings
 * what is done with vectors. attention_avx2.c says how the whole goes. */
#ifndef OZ_KERNEL_ATTENTION_TILE_H
#define OZ_KERNEL_ATTENTION_TILE_H
#include "kernel/cpu.h"

enum { OZ_ATTN_ROWS = 48, OZ_ATTN_RUN = 64, OZ_ATTN_MAX_DIM = 640, OZ_ATTN_RUN_BLOCKS = OZ_ATTN_RUN / OZ_KV_BLOCK, OZ_ATTN_STEP = 6 };

typedef struct oz_attn_tile {
    const oz_attn_args *a;
    const oz_seg *seg;
    int64_t kvh, hd, vd, width; /* width: vd padded to whole vectors */
    int n_rows;
    const float *q[OZ_ATTN_ROWS];
    float *out[OZ_ATTN_ROWS];
    int64_t pos[OZ_ATTN_ROWS];
    int64_t run0;           /* first position of the run */
    int first, n_keys;      /* keys [first, n_keys) of the run are visible to some row */
    const float *v[OZ_ATTN_RUN_BLOCKS]; int64_t ld_v; /* values of the run, rows of at least width */
    float top[OZ_ATTN_ROWS], sum[OZ_ATTN_ROWS];
    _Alignas(64) float keys[OZ_ATTN_MAX_DIM * OZ_ATTN_RUN]; /* [hd, RUN] */
    _Alignas(64) float score[OZ_ATTN_ROWS * OZ_ATTN_RUN];
    _Alignas(64) float acc[OZ_ATTN_ROWS * OZ_ATTN_MAX_DIM]; /* [rows, width] */
    _Alignas(64) float v_padded[OZ_ATTN_RUN * OZ_ATTN_MAX_DIM];
} oz_attn_tile;

typedef void oz_attn_row_fn(oz_attn_tile *t, int row);
typedef struct oz_attn_level {
    int vec; /* floats of a vector */
    void (*load_run)(oz_attn_tile *t); /* keys, transposed, and where the values are */
    oz_attn_row_fn *scores[OZ_ATTN_STEP], *values[OZ_ATTN_STEP]; /* [n - 1]: of n rows from `row` on */
    oz_attn_row_fn *softmax;
    void (*scale)(float *acc, int64_t width, float by);
} oz_attn_level;

/* A level from its scores_of and values_of (t, row, n_rows), which are compiled for each number of rows. */
#define OZ_ATTN_ROWS_OF(n)                                                              \
    static void scores_##n(oz_attn_tile *t, int row) { scores_of(t, row, n); }          \
    static void values_##n(oz_attn_tile *t, int row) { values_of(t, row, n); }
#define OZ_ATTN_LEVEL(name, vec)                                                        \
    OZ_ATTN_ROWS_OF(1) OZ_ATTN_ROWS_OF(2) OZ_ATTN_ROWS_OF(3) OZ_ATTN_ROWS_OF(4) OZ_ATTN_ROWS_OF(5) OZ_ATTN_ROWS_OF(6) \
    static const oz_attn_level name = {                                                 \
        vec, load_run, {scores_1, scores_2, scores_3, scores_4, scores_5, scores_6},    \
        {values_1, values_2, values_3, values_4, values_5, values_6}, softmax_row, scale_row};

/* As attention of oz_cpu_table. */
void oz_attention_tiles(const oz_attn_level *l, const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1);

#endif
