/* Products, plain C: y = W x for every kind of weight and form of activation.
 *
 * Layout: panels of 8 rows, K slowest, one step of K holds the 8 codes side by side (4 bits: two rows a byte, low nibble first).
 * Numerics, the specification of the other levels:
 *   weight only   sum over k ascending, in f32, of x * w. One scale a row and no offset: w is the code, the sum is multiplied by the
 *                 scale at the end. Otherwise w = code * scale (+ offset), rounded once to f32.
 *   Q8            exact in int32 (pack refuses a K that could overflow); y = (float)sum * (w_scale * x_scale).
 *   F8            as weight only on both codes; y = sum * (w_scale * x_scale).
 *   then + bias. Products and sums are rounded separately here; another level may fuse them, never reorder by n_tok. */
#include <math.h>
#include <string.h>
#include "kernel/ref/ref.h"

enum { PANEL = 8, K_TILE = 128, TOK_TILE = 16 };

static size_t round_64(int64_t n) { return ((size_t)n + 63) & ~(size_t)63; }

#define REF_KIND(kind, type, to_code, to_value)                                                            \
    static size_t panel_bytes_##kind(int64_t cols) { return round_64(cols * PANEL * (int64_t)sizeof(type)); } \
    static void pack_##kind(uint8_t *dst, const float *codes, int64_t cols) {                                 \
        type *d = (type *)dst;                                                                                \
        for (int64_t k = 0; k < cols; k++) {                                                                  \
            for (int i = 0; i < PANEL; i++) d[k * PANEL + i] = to_code(codes[i * cols + k]);                  \
        }                                                                                                     \
    }                                                                                                         \
    static void expand_##kind(float *dst, const uint8_t *panel, int64_t k0, int64_t n) {                      \
        const type *s = (const type *)panel + k0 * PANEL;                                                     \
        for (int64_t i = 0; i < n * PANEL; i++) dst[i] = to_value(s[i]);                                      \
    }
#define AS_I8(v) ((int8_t)(v))
REF_KIND(f32, float, , )
REF_KIND(f16, uint16_t, oz_f16_from_f32, oz_f32_from_f16)
REF_KIND(bf16, uint16_t, oz_bf16_from_f32, oz_f32_from_bf16)
REF_KIND(i8, int8_t, AS_I8, (float))
REF_KIND(f8, uint8_t, oz_e4m3_from_f32, oz_f32_from_e4m3)

static size_t panel_bytes_i4(int64_t cols) { return round_64(cols * PANEL / 2); }

static void pack_i4(uint8_t *dst, const float *codes, int64_t cols) {
    for (int64_t k = 0; k < cols; k++) {
        for (int i = 0; i < PANEL; i += 2) {
            int lo = (int)codes[i * cols + k] & 15, hi = (int)codes[(i + 1) * cols + k] & 15;
            dst[(k * PANEL + i) / 2] = (uint8_t)(lo | hi << 4);
        }
    }
}

static void expand_i4(float *dst, const uint8_t *panel, int64_t k0, int64_t n) {
    const uint8_t *s = panel + k0 * PANEL / 2;
    for (int64_t i = 0; i < n * PANEL / 2; i++) {
        dst[2 * i] = (float)(((s[i] & 15) ^ 8) - 8);
        dst[2 * i + 1] = (float)(((s[i] >> 4) ^ 8) - 8);
    }
}

static void expand_u4(float *dst, const uint8_t *panel, int64_t k0, int64_t n) {
    const uint8_t *s = panel + k0 * PANEL / 2;
    for (int64_t i = 0; i < n * PANEL; i++) dst[i] = (float)(s[i / 2] >> i % 2 * 4 & 15);
}

typedef struct ref_kind {
    size_t (*panel_bytes)(int64_t cols);
    void (*pack)(uint8_t *dst, const float *codes, int64_t cols);
    void (*expand)(float *dst, const uint8_t *panel, int64_t k0, int64_t n); /* codes [n, PANEL] */
    const char *names[OZ_FORM_COUNT];                                        /* NULL: the pair has no meaning */
} ref_kind;

static const ref_kind kinds[OZ_WKIND_COUNT] = {
    [OZ_WKIND_F32] = {panel_bytes_f32, pack_f32, expand_f32, {"gemm_f32_f32__ref"}},
    [OZ_WKIND_F16] = {panel_bytes_f16, pack_f16, expand_f16, {"gemm_f16_f32__ref"}},
    [OZ_WKIND_BF16] = {panel_bytes_bf16, pack_bf16, expand_bf16, {"gemm_bf16_f32__ref"}},
    [OZ_WKIND_I8] = {panel_bytes_i8, pack_i8, expand_i8, {"gemm_i8_f32__ref", "gemm_i8_q8__ref"}},
    [OZ_WKIND_I4] = {panel_bytes_i4, pack_i4, expand_i4, {"gemm_i4_f32__ref"}},
    [OZ_WKIND_F8] = {panel_bytes_f8, pack_f8, expand_f8, {"gemm_f8_f32__ref", NULL, "gemm_f8_f8__ref"}},
    [OZ_WKIND_U4] = {panel_bytes_i4, pack_i4, expand_u4, {"gemm_u4_f32__ref"}},
    [OZ_WKIND_L4] = {panel_bytes_i4, pack_i4, expand_u4, {"gemm_l4_f32__ref"}},
};

/* Scales that belong to the sum and not to single weights. */
static bool scale_is_last(const oz_cpu_packed *w) { return w->n_groups == 1 && !w->offsets; }

/* Weights [n, PANEL] of columns [k0, k0 + n) as they enter the sum. */
static void expand_weights(float *dst, const oz_cpu_packed *w, int64_t panel, int64_t k0, int64_t n) {
    kinds[w->kind].expand(dst, w->codes + (size_t)panel * w->panel_bytes, k0, n);
    for (int64_t i = 0; w->codebook && i < n * PANEL; i++) dst[i] = w->codebook[(int)dst[i]];
    if (!w->scales || scale_is_last(w)) return;
    for (int64_t k = 0; k < n; k++) {
        int64_t at = (panel * w->n_groups + (k0 + k) / w->group_size) * PANEL;
        for (int i = 0; i < PANEL; i++) {
            float *v = &dst[k * PANEL + i];
            *v = w->offsets ? fmaf(*v, w->scales[at + i], w->offsets[at + i]) : *v * w->scales[at + i];
        }
    }
}

static void store_row(const oz_gemm_task *t, int64_t tok, int64_t panel, const float acc[PANEL]) {
    const oz_cpu_packed *w = t->w;
    float x_scale = t->x.form == OZ_FORM_F32 ? 1.0f : t->x.scales[tok];
    for (int i = 0; i < PANEL && panel * PANEL + i < w->head.rows; i++) {
        int64_t r = panel * PANEL + i;
        float y = acc[i];
        if (w->scales && scale_is_last(w)) y *= w->scales[panel * PANEL + i] * x_scale;
        t->y[tok * t->ld_y + r] = t->bias ? y + t->bias[r] : y;
    }
}

/* Forms F32 and F8: both hold floats. */
static void gemm_float(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
    float w[K_TILE * PANEL], acc[TOK_TILE][PANEL];
    const float *x = t->x.data;
    for (int64_t p = panel0; p < panel1; p++) {
        for (int64_t t0 = 0; t0 < t->n_tok; t0 += TOK_TILE) {
            int64_t nt = t->n_tok - t0 < TOK_TILE ? t->n_tok - t0 : TOK_TILE;
            memset(acc, 0, sizeof acc);
            for (int64_t k0 = 0; k0 < t->w->head.cols; k0 += K_TILE) {
                int64_t n = t->w->head.cols - k0 < K_TILE ? t->w->head.cols - k0 : K_TILE;
                expand_weights(w, t->w, p, k0, n);
                for (int64_t tok = 0; tok < nt; tok++) {
                    const float *xr = x + (t0 + tok) * t->x.ld + k0;
                    for (int64_t k = 0; k < n; k++) {
                        for (int i = 0; i < PANEL; i++) acc[tok][i] += xr[k] * w[k * PANEL + i];
                    }
                }
            }
            for (int64_t tok = 0; tok < nt; tok++) store_row(t, t0 + tok, p, acc[tok]);
        }
    }
}

static void gemm_i8_q8(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
    const int8_t *x = t->x.data;
    for (int64_t p = panel0; p < panel1; p++) {
        const int8_t *w = (const int8_t *)(t->w->codes + (size_t)p * t->w->panel_bytes);
        for (int64_t tok = 0; tok < t->n_tok; tok++) {
            const int8_t *xr = x + tok * t->x.ld;
            int32_t sum[PANEL] = {0};
            for (int64_t k = 0; k < t->w->head.cols; k++) {
                for (int i = 0; i < PANEL; i++) sum[i] += (int32_t)xr[k] * w[k * PANEL + i];
            }
            float acc[PANEL];
            for (int i = 0; i < PANEL; i++) acc[i] = (float)sum[i];
            store_row(t, tok, p, acc);
        }
    }
}

static void get_row(float *dst, const oz_cpu_packed *w, int64_t r) {
    float tile[K_TILE * PANEL];
    int64_t panel = r / PANEL, lane = r % PANEL;
    float scale = w->scales && scale_is_last(w) ? w->scales[r] : 1.0f;
    for (int64_t k0 = 0; k0 < w->head.cols; k0 += K_TILE) {
        int64_t n = w->head.cols - k0 < K_TILE ? w->head.cols - k0 : K_TILE;
        expand_weights(tile, w, panel, k0, n);
        for (int64_t k = 0; k < n; k++) dst[k0 + k] = tile[k * PANEL + lane] * scale;
    }
}

void oz_gemm_init__ref(oz_cpu_table *t) {
    for (int kind = 0; kind < OZ_WKIND_COUNT; kind++) {
        const ref_kind *k = &kinds[kind];
        for (int form = 0; form < OZ_FORM_COUNT; form++) {
            if (!k->names[form]) continue;
            t->gemm[kind][form] = (oz_gemm_row){k->names[form], PANEL, k->panel_bytes, k->pack,
                                                form == OZ_FORM_Q8 ? gemm_i8_q8 : gemm_float, get_row};
        }
    }
}
