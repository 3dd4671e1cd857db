/* Attention over paged keys and values: softmax(scale q K^T) V, causal, grouped queries, optionally a sliding window and a soft cap on scores.
 *
 * A tile is up to 48 query rows: the heads that share a KV head, times as many consecutive tokens as fit, so keys and values are read
 * once for all of them. Keys come in runs of 64 positions (four blocks of the cache), cut at multiples of 64 of the absolute position:
 *   1. the run's keys are transposed to [head_dim, 64], so that scores are sums over head_dim with 16 keys in two vectors;
 *   2. scores [rows, 64], 6 rows by 16 keys at a time;
 *   3. softmax as it goes: a row's largest score so far and sum of exponentials; when the largest grows, sum and output are scaled down;
 *   4. output [rows, head_dim] += exponentials times values, 6 rows by 16 columns at a time.
 * All of a tile's memory (64 KB of keys at most, scores, output) lies on the stack and in L1 and L2.
 *
 * A row's result depends on its position alone: runs start at fixed positions, a run that a row sees nothing of leaves it as it was (its
 * exponentials are exactly 0 and its scale exactly 1), and every sum is taken over ascending head_dim, or position, in lanes that the
 * position fixes. Keys that no row of the tile sees are not read.
 *
 * Rejected: splitting long contexts over threads at decode. KV heads and sequences give enough parts for the cores in question. */
#include <math.h>
#include <string.h>
#include "kernel/x86/attention_tile.h"
#include "kernel/x86/math_avx2.h"
#include "kernel/x86/rows_avx2.h"

#define INLINE static inline __attribute__((always_inline))
enum { RUN = OZ_ATTN_RUN, STEP = OZ_ATTN_STEP };

typedef oz_attn_tile tile;

/* ---- 1. keys ---- */

INLINE void transpose_8x8(__m256 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Keys [key0, key0 + n) of the run, n <= 8, from rows of hd; the missing ones are 0. */
static void load_keys(tile *t, const float *k, int key0, int n) {
    for (int64_t d = 0; d < t->hd; d += 8) {
        __m256 r[8];
        __m256i m = oz_lanes_avx2(t->hd - d < 8 ? t->hd - d : 8);
        for (int i = 0; i < 8; i++) r[i] = i < n ? _mm256_maskload_ps(k + i * t->hd + d, m) : _mm256_setzero_ps();
        transpose_8x8(r);
        for (int i = 0; i < 8 && d + i < t->hd; i++) _mm256_store_ps(t->keys + (d + i) * RUN + key0, r[i]);
    }
}

static void load_run(tile *t) {
    const oz_kv *kv = t->a->kv;
    const float *v = oz_kv_v(kv);
    const int64_t ld_v = oz_kv_v_ld(kv);
    for (int b = t->first / OZ_KV_BLOCK; b * OZ_KV_BLOCK < t->n_keys; b++) {
        int64_t block = t->seg->blocks[t->run0 / OZ_KV_BLOCK + b], at = (block * kv->n_heads_kv + t->kvh) * OZ_KV_BLOCK;
        for (int half = 0; half < OZ_KV_BLOCK; half += 8) {
            int key0 = b * OZ_KV_BLOCK + half, n = t->n_keys - key0 < 8 ? t->n_keys - key0 : 8;
            load_keys(t, kv->k + (at + half) * t->hd, key0, n > 0 ? n : 0);
        }
        t->v[b] = v + at * ld_v;
        if (t->width == t->vd) continue;
        t->v[b] = t->v_padded + b * OZ_KV_BLOCK * t->width;
        for (int i = 0; i < OZ_KV_BLOCK && b * OZ_KV_BLOCK + i < t->n_keys; i++) {
            memcpy(t->v_padded + (b * OZ_KV_BLOCK + i) * t->width, v + (at + i) * ld_v, (size_t)t->vd * sizeof(float));
        }
    }
}

/* ---- 2. scores ---- */

INLINE void score_step(tile *t, int row, int n_rows, int key) {
    __m256 s[STEP][2];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) s[r][0] = s[r][1] = _mm256_setzero_ps();
    const float *k = t->keys + key;
    for (int64_t d = 0; d < t->hd; d++, k += RUN) {
        __m256 k0 = _mm256_load_ps(k), k1 = _mm256_load_ps(k + 8);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            __m256 q = _mm256_broadcast_ss(t->q[row + r] + d);
            s[r][0] = _mm256_fmadd_ps(q, k0, s[r][0]);
            s[r][1] = _mm256_fmadd_ps(q, k1, s[r][1]);
        }
    }
    __m256 scale = _mm256_set1_ps(t->a->scale);
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
        _mm256_store_ps(t->score + (row + r) * RUN + key, _mm256_mul_ps(s[r][0], scale));
        _mm256_store_ps(t->score + (row + r) * RUN + key + 8, _mm256_mul_ps(s[r][1], scale));
    }
}

/* ---- 3. softmax ---- */

INLINE float max_lanes(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE float sum_lanes(__m256 v) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}

/* Keys outside [lo, hi] of the run get -inf. */
static void mask_row(float *score, int64_t lo, int64_t hi) {
    for (int64_t i = 0; i < RUN; i++) {
        if (i < lo || i > hi) score[i] = -INFINITY;
    }
}

static void scale_row(float *acc, int64_t width, float by) {
    __m256 s = _mm256_set1_ps(by);
    for (int64_t d = 0; d < width; d += 8) _mm256_store_ps(acc + d, _mm256_mul_ps(_mm256_load_ps(acc + d), s));
}

static void softmax_row(tile *t, int row) {
    float *score = t->score + row * RUN;
    if (t->a->softcap > 0) { /* of the keys that score_step has seen */
        const int from = t->first & ~15;
        oz_softcap__avx2(score + from, ((t->n_keys + 15) & ~15) - from, t->a->softcap);
    }
    int64_t hi = t->pos[row] - t->run0, lo = t->a->window > 0 ? hi - t->a->window + 1 : 0;
    if (lo > 0 || hi < RUN - 1) mask_row(score, lo, hi);
    __m256 most = _mm256_load_ps(score);
    for (int i = 8; i < RUN; i += 8) most = _mm256_max_ps(most, _mm256_load_ps(score + i));
    float top = max_lanes(most);
    if (top > t->top[row]) {
        float shrink = _mm256_cvtss_f32(oz_exp_neg_ps(_mm256_set1_ps(t->top[row] - top)));
        t->top[row] = top;
        t->sum[row] *= shrink;
        scale_row(t->acc + row * t->width, t->width, shrink);
    }
    __m256 topv = _mm256_set1_ps(t->top[row]), s0 = _mm256_setzero_ps(), s1 = s0;
    for (int i = 0; i < RUN; i += 16) {
        __m256 e0 = oz_exp_neg_ps(_mm256_sub_ps(_mm256_load_ps(score + i), topv));
        __m256 e1 = oz_exp_neg_ps(_mm256_sub_ps(_mm256_load_ps(score + i + 8), topv));
        _mm256_store_ps(score + i, e0);
        _mm256_store_ps(score + i + 8, e1);
        s0 = _mm256_add_ps(s0, e0);
        s1 = _mm256_add_ps(s1, e1);
    }
    t->sum[row] += sum_lanes(_mm256_add_ps(s0, s1));
}

/* ---- 4. values ---- */

INLINE void value_step(tile *t, int row, int n_rows, int64_t d, int n_vec) {
    __m256 o[STEP][2];
    float *acc = t->acc + row * t->width + d;
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 2
        for (int i = 0; i < n_vec; i++) o[r][i] = _mm256_load_ps(acc + r * t->width + 8 * i);
    }
    const float *p = t->score + row * RUN;
    for (int j = t->first; j < t->n_keys; j++) {
        const float *v = t->v[j / OZ_KV_BLOCK] + j % OZ_KV_BLOCK * t->ld_v + d;
        __m256 v0 = _mm256_loadu_ps(v), v1 = n_vec > 1 ? _mm256_loadu_ps(v + 8) : v0;
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            __m256 e = _mm256_broadcast_ss(p + r * RUN + j);
            o[r][0] = _mm256_fmadd_ps(e, v0, o[r][0]);
            if (n_vec > 1) o[r][1] = _mm256_fmadd_ps(e, v1, o[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 2
        for (int i = 0; i < n_vec; i++) _mm256_store_ps(acc + r * t->width + 8 * i, o[r][i]);
    }
}

/* ---- the tile ---- */

INLINE void scores_of(tile *t, int row, int n_rows) {
    for (int key = t->first & ~15; key < t->n_keys; key += 16) score_step(t, row, n_rows, key);
}

INLINE void values_of(tile *t, int row, int n_rows) {
    int64_t d = 0;
    for (; d + 16 <= t->width; d += 16) value_step(t, row, n_rows, d, 2);
    if (d < t->width) value_step(t, row, n_rows, d, 1);
}

OZ_ATTN_LEVEL(level, 8)

void oz_attention__avx2(const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1) {
    oz_attention_tiles(&level, a, seg, tok0, tok1, kvh0, kvh1);
}
