/* Attention over paged keys and values: softmax(scale q K^T) V, causal, grouped queries, optionally a sliding window and a soft cap of scores.
 *
 * The design is attention_avx2.c's, with vectors of 16: a tile of up to 48 query rows (the heads that share a KV head, times as many consecutive tokens
 * as fit), keys in runs of 64 positions cut at multiples of 64, for each run transposed keys, scores of 6 rows by 64 keys, softmax as it goes, and output
 * of 6 rows by 64 columns. A row's result depends on its position alone.
 *
 * With few rows (decode) keys and values come from memory in pieces of one block and head: all lines of a run are asked for before the first is used. */
#include <math.h>
#include <string.h>
#include "kernel/x86/attention_tile.h"
#include "kernel/x86/math_avx512.h"
#include "kernel/x86/rows_avx2.h"
#include "kernel/x86/rows_avx512.h"

#define INLINE static inline __attribute__((always_inline))
enum { RUN = OZ_ATTN_RUN, RUN_BLOCKS = OZ_ATTN_RUN_BLOCKS, STEP = OZ_ATTN_STEP, BLOCK = OZ_KV_BLOCK, VECS = 4 };
_Static_assert(BLOCK == 16, "a block of keys is one vector");

typedef oz_attn_tile tile;

/* ---- 1. keys ---- */

INLINE void transpose_16x16(__m512 r[16]) {
    __m512 t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) { /* 4 x 4 in each quarter */
        r[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) { /* quarters of rows i, i + 4, i + 8, i + 12 */
        const __m512 a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88), b = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88), d = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, c, 0x88), t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88), t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = t[i];
}

/* The n keys of block b of the run, from rows of hd; the missing ones are 0. */
static void load_keys(tile *t, const float *k, int b, int n) {
    for (int64_t d = 0; d < t->hd; d += 16) {
        __m512 r[16];
        const __mmask16 m = oz_lanes_avx512(t->hd - d);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) r[i] = _mm512_maskz_loadu_ps(i < n ? m : 0, k + i * t->hd + d);
        transpose_16x16(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (d + i < t->hd) _mm512_store_ps(t->keys + (d + i) * RUN + b * BLOCK, r[i]);
        }
    }
}

static void ask_for(const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) _mm_prefetch((const char *)(p + i), _MM_HINT_T0);
}

static void load_run(tile *t) {
    const oz_kv *kv = t->a->kv;
    const float *v = oz_kv_v(kv);
    const int64_t ld_v = oz_kv_v_ld(kv);
    const int b0 = t->first / BLOCK;
    int64_t at[RUN_BLOCKS];
    for (int b = b0; b * BLOCK < t->n_keys; b++) {
        at[b] = (t->seg->blocks[t->run0 / BLOCK + b] * kv->n_heads_kv + t->kvh) * BLOCK;
        ask_for(kv->k + at[b] * t->hd, (t->n_keys - b * BLOCK < BLOCK ? t->n_keys - b * BLOCK : BLOCK) * t->hd);
    }
    for (int b = b0; b * BLOCK < t->n_keys; b++) {
        const int n = t->n_keys - b * BLOCK < BLOCK ? t->n_keys - b * BLOCK : BLOCK;
        ask_for(v + at[b] * ld_v, n * ld_v);
        load_keys(t, kv->k + at[b] * t->hd, b, n);
        t->v[b] = v + at[b] * ld_v;
        if (t->width == t->vd) continue;
        t->v[b] = t->v_padded + b * BLOCK * t->width;
        for (int i = 0; i < n; i++) memcpy(t->v_padded + (b * BLOCK + i) * t->width, v + (at[b] + i) * ld_v, (size_t)t->vd * sizeof(float));
    }
}

/* ---- 2. scores, n_vec vectors of 16 keys from `key` on ---- */

INLINE void score_step(tile *t, int row, int n_rows, int key, int n_vec) {
    __m512 s[STEP][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) s[r][i] = _mm512_setzero_ps();
    }
    const float *k = t->keys + key;
    for (int64_t d = 0; d < t->hd; d++, k += RUN) {
        __m512 kv[VECS];
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) kv[i] = _mm512_load_ps(k + 16 * i);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            const __m512 q = _mm512_set1_ps(t->q[row + r][d]);
#pragma GCC unroll 4
            for (int i = 0; i < n_vec; i++) s[r][i] = _mm512_fmadd_ps(q, kv[i], s[r][i]);
        }
    }
    const __m512 scale = _mm512_set1_ps(t->a->scale);
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) _mm512_store_ps(t->score + (row + r) * RUN + key + 16 * i, _mm512_mul_ps(s[r][i], scale));
    }
}

/* ---- 3. softmax ---- */

static void scale_row(float *acc, int64_t width, float by) {
    const __m512 s = _mm512_set1_ps(by);
    for (int64_t d = 0; d < width; d += 16) _mm512_store_ps(acc + d, _mm512_mul_ps(_mm512_load_ps(acc + d), s));
}

/* Lanes of vector i of the run that a row which sees keys [lo, hi] sees. */
static inline __mmask16 seen(int i, int64_t lo, int64_t hi) {
    const int64_t from = lo - 16 * i, to = hi - 16 * i;
    const __mmask16 below = to < 0 ? 0 : oz_lanes_avx512(to + 1), above = from <= 0 ? 0xffff : (__mmask16)~oz_lanes_avx512(from);
    return below & above;
}

static void softmax_row(tile *t, int row) {
    float *score = t->score + row * RUN;
    if (t->a->softcap > 0) { /* of the keys that score_step has seen */
        const int from = t->first & ~15;
        oz_softcap__avx2(score + from, ((t->n_keys + 15) & ~15) - from, t->a->softcap);
    }
    const int64_t hi = t->pos[row] - t->run0, lo = t->a->window > 0 ? hi - t->a->window + 1 : 0;
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 s[VECS];
    for (int i = 0; i < VECS; i++) s[i] = _mm512_mask_loadu_ps(none, seen(i, lo, hi), score + 16 * i);
    const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3])));
    if (top > t->top[row]) {
        const float shrink = _mm512_cvtss_f32(oz_exp_neg_ps512(_mm512_set1_ps(t->top[row] - top)));
        t->top[row] = top;
        t->sum[row] *= shrink;
        scale_row(t->acc + row * t->width, t->width, shrink);
    }
    const __m512 topv = _mm512_set1_ps(t->top[row]);
    for (int i = 0; i < VECS; i++) {
        s[i] = oz_exp_neg_ps512(_mm512_sub_ps(s[i], topv));
        _mm512_store_ps(score + 16 * i, s[i]);
    }
    t->sum[row] += _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
}

/* ---- 4. values, n_vec vectors of 16 columns from d on ---- */

INLINE void value_step(tile *t, int row, int n_rows, int64_t d, int n_vec) {
    __m512 o[STEP][VECS];
    float *acc = t->acc + row * t->width + d;
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) o[r][i] = _mm512_load_ps(acc + r * t->width + 16 * i);
    }
    const float *p = t->score + row * RUN;
    for (int j = t->first; j < t->n_keys; j++) {
        const float *v = t->v[j / BLOCK] + j % BLOCK * t->ld_v + d;
        __m512 vv[VECS];
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) vv[i] = _mm512_loadu_ps(v + 16 * i);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            const __m512 e = _mm512_set1_ps(p[r * RUN + j]);
#pragma GCC unroll 4
            for (int i = 0; i < n_vec; i++) o[r][i] = _mm512_fmadd_ps(e, vv[i], o[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < n_vec; i++) _mm512_store_ps(acc + r * t->width + 16 * i, o[r][i]);
    }
}

/* ---- the tile ---- */

INLINE void scores_of(tile *t, int row, int n_rows) {
    int key = t->first & ~15;
    if (key == 0 && t->n_keys > 3 * 16) {
        score_step(t, row, n_rows, 0, VECS);
        return;
    }
    for (; key < t->n_keys; key += 16) score_step(t, row, n_rows, key, 1);
}

INLINE void values_of(tile *t, int row, int n_rows) {
    int64_t d = 0;
    for (; d + 64 <= t->width; d += 64) value_step(t, row, n_rows, d, VECS);
    for (; d < t->width; d += 16) value_step(t, row, n_rows, d, 1);
}

OZ_ATTN_LEVEL(level, 16)

void oz_attention__avx512(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1) {
    oz_attention_tiles(&level, a, seg, tok0, tok1, kvh0, kvh1);
}
