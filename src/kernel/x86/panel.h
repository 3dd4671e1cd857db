/* Panels as the AVX2 and AVX-512 products have them (of OZ_PANEL rows, a level's own number): what both need to pack codes and to read a row back.
 * For a kind whose codes are elements of an array, OZ_ARRAY_KIND makes both from the place of (step k, row i) in a panel; codes are exact in their kind. */
#ifndef OZ_KERNEL_PANEL_H
#define OZ_KERNEL_PANEL_H
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "kernel/cpu.h"

static inline uint32_t oz_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float oz_f32_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#define OZ_TO_SAME(v) (v)
#define OZ_TO_F16(v) _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT)
#define OZ_TO_BF16(v) (uint16_t)(oz_f32_bits(v) >> 16)
#define OZ_OF_BF16(c) oz_f32_of_bits((uint32_t)(c) << 16)
#define OZ_TO_I8(v) (int8_t)(v)

#define OZ_AT_PLAIN(k, i) ((k) * OZ_PANEL + (i))
#define OZ_AT_PAIRS(k, i) ((k) / 2 * 2 * OZ_PANEL + (i) * 2 + (k) % 2) /* columns 2j and 2j + 1 of a row side by side */
#define OZ_AT_QUADS(k, i) ((k) / 4 * 4 * OZ_PANEL + (i) * 4 + (k) % 4)

#define OZ_ARRAY_READ(name, type, at, of_code)                                                         \
    static void read_##name(float *dst, const uint8_t *panel, int lane, int64_t cols) {               \
        const type *s = (const type *)panel;                                                          \
        for (int64_t k = 0; k < cols; k++) dst[k] = of_code(s[at(k, lane)]);                          \
    }
#define OZ_ARRAY_KIND(name, type, at, to_code, of_code)                                                \
    static void pack_##name(uint8_t *dst, const float *codes, int64_t cols) {                         \
        type *d = (type *)dst;                                                                        \
        for (int64_t k = 0; k < cols; k++) {                                                          \
            for (int i = 0; i < OZ_PANEL; i++) d[at(k, i)] = to_code(codes[i * cols + k]);            \
        }                                                                                             \
    }                                                                                                 \
    OZ_ARRAY_READ(name, type, at, of_code)

/* Codes of a row to values. */
static inline void oz_scale_codes(float *dst, const oz_cpu_packed *w, int64_t r) {
    if (!w->scales) return;
    for (int64_t g = 0, k = 0; g < w->n_groups; g++) {
        int64_t at = (r / OZ_PANEL * w->n_groups + g) * OZ_PANEL + r % OZ_PANEL, end = k + w->group_size < w->head.cols ? k + w->group_size : w->head.cols;
        for (; k < end; k++) dst[k] = w->offsets ? fmaf(dst[k], w->scales[at], w->offsets[at]) : dst[k] * w->scales[at];
    }
}

#define OZ_GET_ROW(name)                                                                                      \
    static void get_row_##name(float *dst, const oz_cpu_packed *w, int64_t r) {                               \
        read_##name(dst, w->codes + (size_t)(r / OZ_PANEL) * w->panel_bytes, (int)(r % OZ_PANEL), w->head.cols); \
        oz_scale_codes(dst, w, r);                                                                            \
    }

/* Of codes of 4 bits that stand for a table's values. */
#define OZ_GET_ROW_L4                                                                                         \
    static void get_row_l4(float *dst, const oz_cpu_packed *w, int64_t r) {                                   \
        read_u4(dst, w->codes + (size_t)(r / OZ_PANEL) * w->panel_bytes, (int)(r % OZ_PANEL), w->head.cols);  \
        for (int64_t k = 0; k < w->head.cols; k++) dst[k] = w->codebook[(int)dst[k]];                         \
        oz_scale_codes(dst, w, r);                                                                            \
    }

/* One scale a row and no offset: the scale is applied to the sum of codes. Else it belongs to a group's part of the sum. */
static inline bool oz_scale_is_last(const oz_cpu_packed *w) { return w->n_groups == 1 && !w->offsets; }

#endif
