/* Element types of stored tensors, conversions, and GGUF's blocks: the part of number.h that speaks of single values. Sources as there. */
#ifndef OZ_NUMBER_DTYPE_H
#define OZ_NUMBER_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Element types of stored tensors, safetensors' and GGUF's. A block type stores block_elems values in block_bytes. */
typedef enum oz_dtype {
    OZ_DTYPE_F32, OZ_DTYPE_F16, OZ_DTYPE_BF16, OZ_DTYPE_F64, OZ_DTYPE_I8, OZ_DTYPE_U8, OZ_DTYPE_I16, OZ_DTYPE_U16, OZ_DTYPE_I32,
    OZ_DTYPE_U32, OZ_DTYPE_I64, OZ_DTYPE_U64, OZ_DTYPE_BOOL, OZ_DTYPE_F8_E4M3, OZ_DTYPE_F8_E5M2, OZ_DTYPE_F8_E8M0,
    OZ_DTYPE_Q8_0, OZ_DTYPE_Q4_0, OZ_DTYPE_Q4_1, OZ_DTYPE_Q5_0, OZ_DTYPE_Q5_1, OZ_DTYPE_Q2_K, OZ_DTYPE_Q3_K, OZ_DTYPE_Q4_K, OZ_DTYPE_Q5_K, OZ_DTYPE_Q6_K,
    OZ_DTYPE_IQ4_NL, OZ_DTYPE_IQ4_XS, OZ_DTYPE_MXFP4,
    OZ_DTYPE_IQ2_XXS, OZ_DTYPE_IQ2_XS, OZ_DTYPE_IQ3_XXS, OZ_DTYPE_IQ1_S, OZ_DTYPE_IQ3_S, OZ_DTYPE_IQ2_S, OZ_DTYPE_IQ1_M, OZ_DTYPE_TQ1_0, OZ_DTYPE_TQ2_0, OZ_DTYPE_NVFP4, /* sizes alone: no codec reads them */
    OZ_DTYPE_COUNT
} oz_dtype;

typedef struct oz_dtype_info {
    const char *name;    /* safetensors' spelling ("BF16", "F8_E4M3"), or GGUF's for block types ("Q4_0") */
    const char *torch;   /* "bfloat16", ... or NULL */
    bool in_safetensors; /* may stand in a safetensors file */
    int gguf_type;       /* ggml type id, -1: none */
    int32_t block_elems, block_bytes;
} oz_dtype_info;
const oz_dtype_info *oz_dtype_get(oz_dtype d);
bool oz_dtype_parse(oz_dtype *out, const char *safetensors_name);
bool oz_dtype_from_gguf(oz_dtype *out, uint32_t ggml_type);
/* Bytes of n elements; false on overflow or if a block type does not divide n. */
bool oz_dtype_bytes(size_t *out, oz_dtype d, int64_t n);

/* Conversions; all round to nearest, ties to even. f32 to e4m3 (E4M3FN) saturates at 448, keeps NaN, makes subnormals. */
float oz_f32_from_f16(uint16_t h);
uint16_t oz_f16_from_f32(float f);
static inline float oz_f32_from_bf16(uint16_t h) { /* the upper half; loading does little else */
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
uint16_t oz_bf16_from_f32(float f);
float oz_f32_from_e4m3(uint8_t v);
uint8_t oz_e4m3_from_f32(float f);
float oz_f32_from_e5m2(uint8_t v);
/* Any float or integer dtype, block types too (n a multiple of the block). */
void oz_to_f32(float *dst, oz_dtype d, const void *src, int64_t n);
void oz_from_f32(void *dst, oz_dtype d, const float *src, int64_t n); /* F32, F16, BF16, F8_E4M3; F8_E8M0 of powers of two */
float oz_f32_rounded(float x, oz_dtype d); /* to a value of such a type */
bool oz_all_finite(oz_dtype d, const void *src, size_t n_bytes); /* of F32, F16, BF16, F64: no NaN and no infinity; true of other types */

/* A GGUF block taken apart, losslessly. value(i) = code(i) * scales[i / group] + offsets[i / group], product and sum each rounded to f32 (the product is
 * exact in all types with offsets); code(i) is codes[i], or codebook[codes[i]] where the type has one. */
enum { OZ_BLOCK_MAX = 256, OZ_BLOCK_GROUPS = 16 };
typedef struct oz_block { int8_t codes[OZ_BLOCK_MAX]; float scales[OZ_BLOCK_GROUPS], offsets[OZ_BLOCK_GROUPS]; } oz_block;
typedef struct oz_block_type {
    int group;              /* codes that share a scale; 0: no block type */
    bool has_offsets;
    const int8_t *codebook; /* [16] or NULL */
    void (*split)(oz_block *out, const uint8_t *block);
} oz_block_type;
const oz_block_type *oz_block_get(oz_dtype d);

#endif
