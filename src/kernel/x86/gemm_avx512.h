/* Shared by the AVX-512 and AMX products (gemm_avx512.c, gemm_amx.c): blocks of tokens times panels, and codes to f32. */
#ifndef OZ_KERNEL_GEMM_AVX512_H
#define OZ_KERNEL_GEMM_AVX512_H
enum { OZ_VECTOR = 16, OZ_VECTORS = 2, OZ_PANEL = OZ_VECTOR * OZ_VECTORS }; /* rows of a vector; vectors and rows of a panel */
#include "kernel/x86/panel.h"

/* Panels are padded to whole units of so many columns. */
enum { OZ_UNIT_AVX512 = 16 };
/* Codes come in chunks of 64 bytes of a vector's rows. Of kinds that need expanding those of a panel's vectors lie side by side, and the next columns
 * after so many bytes; of others, and of what was expanded, all chunks of a vector come before those of the next. */
enum { OZ_PITCH = 64 * OZ_VECTORS };

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
    __m512i book;                        /* codes of 4 bits */
} oz_run;
typedef void oz_sum_fn(__m512i *sums, const oz_run *r); /* sums [n_panel, OZ_VECTORS, n_tok] go on */

/* Blocks of tokens, cut into tiles, and panels at a time: at most 128 and 4. */
typedef struct oz_tiling {
    int64_t block, tokens, panels;
    bool raw;       /* sum takes codes as they are */
    oz_sum_fn *sum; /* takes up to so many tokens and panels, of the form's own kind or expanded; NULL: AVX-512's functions */
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

/* Byte j of each word to the sign and upper bits of an int32, the bits below it 0. */
OZ_INLINE __m512i oz_top_byte(__m512i v, int j) {
    return j == 0 ? _mm512_slli_epi32(v, 24) : _mm512_and_si512(_mm512_slli_epi32(v, 24 - 8 * j), _mm512_set1_epi32((int)0xff000000));
}

OZ_INLINE __m512 oz_f32_of_i8(__m512i v, int j) { return _mm512_cvtepi32_ps(oz_top_byte(v, j)); } /* times 2^24 */

/* A code in the place of an f32's sign, low exponent bits and high mantissa bits is its value * 2^-120, subnormals too. NaN codes come out as 480: a
 * panel remembers its rows with NaN, whose sums are NaN whatever x is. */
OZ_INLINE __m512 oz_f32_of_f8(__m512i v, int j) {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * j), 4), _mm512_set1_epi32((int)0x87f00000));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
}

OZ_INLINE __m512 oz_f32_of_4bit(__m512i v, int j, __m512i book) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, 16 * (j % 2) + 4 * (j / 2)), _mm512_castsi512_ps(book));
}

#endif
