/* Shared by the AVX-512 and AMX products (gemm_avx512.c, gemm_amx.c): blocks of tokens times panels, and codes to f32. */
#ifndef OZ_KERNEL_GEMM_AVX512_H
#define OZ_KERNEL_GEMM_AVX512_H
enum { OZ_VECTOR = 16, OZ_VECTORS = 2, OZ_PANEL = OZ_VECTOR * OZ_VECTORS }; /* rows of a vector; vectors and rows of a panel */
#include "kernel/x86/panel.h"

/* Panels are padded to whole units of so many columns; a block of tokens meets pieces of K of so many steps. */
enum { OZ_UNIT_AVX512 = 16, OZ_PIECE_AVX512 = 256 };
/* Codes come in chunks of 64 bytes of a vector's rows. Of kinds that need expanding those of a panel's vectors lie side by side, and the next columns
 * after so many bytes; of others, and of what was expanded, all chunks of a vector come before those of the next. */
enum { OZ_PITCH = 64 * OZ_VECTORS };
enum { OZ_STREAM = 8192 }; /* bytes to fetch ahead of what is expanded */

/* One tile's sums over one run of units. */
typedef struct oz_run {
    const uint8_t *codes; size_t stride; /* of the first panel, and from one to the next */
    size_t apart;                        /* from a vector to the next, where they do not lie side by side */
    const uint8_t *x; int64_t ld;        /* activations of the first token, bytes from one to the next */
    int64_t n_units;
    int n_tok, n_panel;
    bool cold;                           /* codes may not be in a cache yet */
    const float *scales; size_t scale_stride; /* coded kinds: of the first unit's group, floats from one panel to the next; 0: not by groups */
    int64_t units_group, units_left;     /* units a group; of the first one, what is left */
    const uint8_t *next; uint8_t *room;  /* codes of 8 bits that are expanded meanwhile, a chunk of them for one that is multiplied; NULL: none */
    const __m512i *book;                 /* of 4 bits one vector, of 8 bits four */
} oz_run;
typedef void oz_sum_fn(__m512i *sums, const oz_run *r); /* sums [n_panel, OZ_VECTORS, n_tok] go on */

/* Blocks of tokens, cut into tiles, and panels at a time: at most 128 and 4. */
typedef struct oz_tiling {
    int64_t block, tokens, panels;
    bool raw;       /* sum takes codes as they are */
    oz_sum_fn *sum; /* takes up to so many tokens and panels, of the form's own kind or expanded; NULL: AVX-512's functions, which have tiles of their own */
} oz_tiling;
void oz_gemm__avx512(const oz_gemm_task *t, oz_form form, const oz_tiling *tiling, int64_t panel0, int64_t panel1);
void oz_gemm_f32__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1); /* forms F32 and F8 */
void oz_gemm_bf16__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_q8__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1);
void oz_gemm_init__avx512(oz_cpu_table *t);

/* ---- codes to vectors ---- */

#define OZ_INLINE static inline __attribute__((always_inline))

OZ_INLINE int oz_chunk_cols(oz_wkind kind) { /* of L4 for all codes of 4 bits */
    return kind == OZ_WKIND_F32 ? 1 : kind == OZ_WKIND_F16 || kind == OZ_WKIND_BF16 ? 2 : kind == OZ_WKIND_L4 ? 8 : 4;
}

OZ_INLINE __m512i oz_broadcast(const uint8_t *x) {
    int32_t word;
    memcpy(&word, x, sizeof word);
    return _mm512_set1_epi32(word);
}

OZ_INLINE __m512 oz_f32_of_bf16(__m512i pair, int j) { /* column j of two */
    return _mm512_castsi512_ps(j == 0 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
}

/* A chunk of 8-bit codes to bf16, exact: its columns 0 and 1, 2 and 3. A code is a sign above a magnitude of 7 bits, which is looked up; the book has the low
 * bytes of 128 values, then the high ones. 0 is zero whatever stands there, so that entry 0 is what -0 means: -128 of int8, negative zero of e4m3. */
OZ_INLINE void oz_bf16_of_8bit(__m512i pairs[2], __m512i v, const __m512i *book) {
    const __m512i low = _mm512_permutex2var_epi8(book[0], v, book[1]);
    const __m512i magnitude = _mm512_maskz_permutex2var_epi8(_mm512_test_epi8_mask(v, v), book[2], v, book[3]);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, v, _mm512_set1_epi8((char)0x80), 0xf8); /* magnitude | (v & 0x80) */
    pairs[0] = _mm512_unpacklo_epi8(low, high), pairs[1] = _mm512_unpackhi_epi8(low, high);
}

OZ_INLINE __m512 oz_f32_of_4bit(__m512i v, int j, __m512i book) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, 16 * (j % 2) + 4 * (j / 2)), _mm512_castsi512_ps(book));
}

OZ_INLINE bool oz_is_4bit(oz_wkind kind) { return kind == OZ_WKIND_I4 || kind == OZ_WKIND_U4 || kind == OZ_WKIND_L4; }
OZ_INLINE bool oz_is_8bit(oz_wkind kind) { return kind == OZ_WKIND_I8 || kind == OZ_WKIND_F8; } /* beside floats */

/* One vector's chunk in registers: as it lies, or of 8 bits its pairs of columns in bf16, of F16 its columns apart. Kinds are constants, L4 for all of 4 bits. */
typedef struct oz_chunk { __m512i v[2]; } oz_chunk;

OZ_INLINE oz_chunk oz_load_chunk(oz_wkind kind, const uint8_t *codes, const __m512i *book) {
    oz_chunk c = {{_mm512_setzero_si512(), _mm512_setzero_si512()}};
    if (kind == OZ_WKIND_F16) {
        for (int j = 0; j < 2; j++) c.v[j] = _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)codes + j));
        return c;
    }
    const __m512i v = _mm512_load_si512(codes);
    if (oz_is_8bit(kind)) oz_bf16_of_8bit(c.v, v, book);
    else c.v[0] = v;
    return c;
}

/* Column j of it. */
OZ_INLINE __m512 oz_f32_of(oz_wkind kind, const oz_chunk *c, int j, const __m512i *book) {
    switch (kind) {
    case OZ_WKIND_F16: return _mm512_cvtph_ps(_mm512_castsi512_si256(c->v[j]));
    case OZ_WKIND_BF16: return oz_f32_of_bf16(c->v[0], j);
    case OZ_WKIND_I8:
    case OZ_WKIND_F8: return oz_f32_of_bf16(c->v[j / 2], j % 2);
    case OZ_WKIND_L4: return oz_f32_of_4bit(c->v[0], j, book[0]);
    default: return _mm512_castsi512_ps(c->v[0]);
    }
}

/* By 5 bits, of which the fifth does not matter: the table holds the 16 values twice. */
OZ_INLINE __m512i oz_bf16_of_4bit(__m512i v, int j, __m512i book) { return _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4 * j), book); }

/* Its step j, two columns in bf16. */
OZ_INLINE __m512i oz_bf16_of(oz_wkind kind, const oz_chunk *c, int j, const __m512i *book) {
    return kind == OZ_WKIND_L4 ? oz_bf16_of_4bit(c->v[0], j, book[0]) : c->v[oz_is_8bit(kind) ? j : 0];
}

/* Into registers: memory would be read again wherever the compiler has to take it for changed. */
OZ_INLINE void oz_load_book(__m512i book[4], oz_wkind kind, const __m512i *from) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) book[i] = i < (oz_is_8bit(kind) ? 4 : kind == OZ_WKIND_L4 ? 1 : 0) ? _mm512_load_si512(from + i) : _mm512_setzero_si512();
}

#endif
