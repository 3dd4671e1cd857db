/* Numbers: element types, conversions, weight codecs and the one meaning of a stored weight. Everything here is exact and
 * plain C: it is the specification that kernels are checked against.
 * Sources: IEEE 754; OCP 8-bit floating point 1.0 (E4M3, E5M2); compressed-tensors' pack-quantized layout; GGUF blocks. */
#ifndef OZ_NUMBER_NUMBER_H
#define OZ_NUMBER_NUMBER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* Element types of stored tensors, safetensors' and GGUF's. A block type stores block_elems values in block_bytes. */
typedef enum oz_dtype {
    OZ_DTYPE_F32, OZ_DTYPE_F16, OZ_DTYPE_BF16, OZ_DTYPE_F64, OZ_DTYPE_I8, OZ_DTYPE_U8, OZ_DTYPE_I16, OZ_DTYPE_U16, OZ_DTYPE_I32,
    OZ_DTYPE_U32, OZ_DTYPE_I64, OZ_DTYPE_U64, OZ_DTYPE_BOOL, OZ_DTYPE_F8_E4M3, OZ_DTYPE_F8_E5M2, OZ_DTYPE_F8_E8M0,
    OZ_DTYPE_Q8_0, OZ_DTYPE_Q4_0, OZ_DTYPE_Q4_1, OZ_DTYPE_Q5_0, OZ_DTYPE_Q5_1, OZ_DTYPE_Q2_K, OZ_DTYPE_Q3_K, OZ_DTYPE_Q4_K, OZ_DTYPE_Q5_K, OZ_DTYPE_Q6_K,
    OZ_DTYPE_IQ4_NL, OZ_DTYPE_IQ4_XS, OZ_DTYPE_MXFP4,
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
float oz_f32_from_bf16(uint16_t h);
uint16_t oz_bf16_from_f32(float f);
float oz_f32_from_e4m3(uint8_t v);
uint8_t oz_e4m3_from_f32(float f);
float oz_f32_from_e5m2(uint8_t v);
/* Any float or integer dtype, block types too (n a multiple of the block). */
void oz_to_f32(float *dst, oz_dtype d, const void *src, int64_t n);
void oz_from_f32(void *dst, oz_dtype d, const float *src, int64_t n); /* F32, F16, BF16 only */

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

/* How the codes of a weight are stored: a row of the codec table. "Plain" codecs hold their values themselves (GGUF blocks too);
 * the others need a scale and perhaps a zero point beside them. */
typedef enum oz_codec {
    OZ_CODEC_F32, OZ_CODEC_F16, OZ_CODEC_BF16, /* plain: these, and GGUF blocks */
    OZ_CODEC_Q8_0, OZ_CODEC_Q4_0, OZ_CODEC_Q4_1, OZ_CODEC_Q5_0, OZ_CODEC_Q5_1, OZ_CODEC_Q2_K, OZ_CODEC_Q3_K, OZ_CODEC_Q4_K, OZ_CODEC_Q5_K, OZ_CODEC_Q6_K,
    OZ_CODEC_IQ4_NL, OZ_CODEC_IQ4_XS, OZ_CODEC_MXFP4,
    OZ_CODEC_I8,     /* int8, one a byte */
    OZ_CODEC_I4P,    /* int4 as pack-quantized stores it: low nibble first, code + 8 */
    OZ_CODEC_I8P,    /* int8 as pack-quantized stores it: code + 128 */
    OZ_CODEC_F8E4M3, /* float8 e4m3fn, one a byte */
    OZ_CODEC_COUNT
} oz_codec;

typedef struct oz_codec_info {
    const char *name;
    bool plain;
    int bits;           /* of a code */
    oz_dtype dtype;     /* plain: of the stored tensor; else of the code tensor (I8, I32 for packed, F8_E4M3) */
    bool is_float;      /* codes are floats */
    int32_t code_min, code_max; /* of integer codes */
    /* Codes (not scaled) of columns [col0, col0 + n) of one stored row as f32; plain codecs give the values. */
    void (*expand)(float *dst, const void *row, int64_t col0, int64_t n);
} oz_codec_info;
const oz_codec_info *oz_codec_get(oz_codec c);
bool oz_codec_plain(oz_codec *out, oz_dtype d); /* the plain codec of a tensor's type */

/* A weight as a checkpoint holds it, [rows, cols] row-major; nothing is owned.
 * value(r, c) = (code(r, c) - zero(r, g)) * scale(r, g), g = c / group_size, in f32; plain: value = code. */
typedef struct oz_weight {
    oz_codec codec;
    int64_t rows, cols;
    const void *codes;
    int64_t row_bytes;
    int64_t group_size;   /* columns that share a scale; == cols: one scale a row (channel) */
    bool one_scale;       /* strategy tensor: a single scale for all */
    oz_dtype scale_dtype;
    const void *scales;   /* [rows, n_groups], or one; NULL if plain */
    const int8_t *zeros;  /* [rows, n_groups] or NULL: symmetric */
    int32_t rope_heads;   /* > 0: GGUF's llama order, rows of each of this many heads are interleaved; oz_weight_row undoes it */
} oz_weight;
int64_t oz_weight_groups(const oz_weight *w); /* scales a row: ceil(cols / group_size) */
/* The stored row that holds logical (Hugging Face order) row r. */
int64_t oz_weight_stored_row(const oz_weight *w, int64_t r);
/* Columns [col0, col0+n) of logical row r, dequantized in f32. */
void oz_weight_row(float *dst, const oz_weight *w, int64_t r, int64_t col0, int64_t n);
/* A compact copy (out is not w) of rows [row0, row0 + n_rows), columns [col0, col0 + n_cols), in *mem (oz_big_free). OZ_E_UNSUPPORTED where a group, a
 * block or an interleaved head would be cut. */
oz_status oz_weight_slice(oz_weight *out, void **mem, const oz_weight *w, int64_t row0, int64_t n_rows, int64_t col0, int64_t n_cols, oz_err *err);
/* Bytes of the codes, scales and zeros as stored. */
size_t oz_weight_bytes(const oz_weight *w);

/* Round-to-nearest quantization, data-free (formats.md sections 3.2, 3.3 and 11.6): f32 arithmetic; symmetric scale = amax / half the
 * code range (127.5, 7.5, 448); the scale is rounded to scale_dtype first, codes are computed against the rounded scale by division, clamp before
 * rounding, ties to even; an all-zero group gets scale 1 and codes 0; a scale that would round to zero is the smallest of its type.
 * NaN or infinity in the source: OZ_E_FORMAT, which names the column. */
typedef struct oz_rtn { oz_codec codec; int64_t group_size; /* 0: channel */ oz_dtype scale_dtype; } oz_rtn;
/* Bytes of a stored row of codes: oz_weight's row_bytes where rows are contiguous. A plain block codec needs whole blocks. */
int64_t oz_codec_row_bytes(oz_codec c, int64_t cols);
/* The code nearest to x / scale, as a number: clamped to the codec's range, then rounded, ties to even. */
float oz_code_nearest(oz_codec c, float x_over_scale);
/* Stores a row of codes given as numbers. */
void oz_codes_store(void *codes_row, oz_codec c, const float *codes, int64_t cols);
/* One row: codes_row (storage of the codec, padded bits zero), scales_row [n_groups] in scale_dtype. src f32 [cols]. */
oz_status oz_rtn_row(void *codes_row, void *scales_row, const oz_rtn *q, const float *src, int64_t cols, oz_err *err);

/* Dynamic activation quantization, the definitions kernels follow (formats.md section 10.11 and 3.5). One token; x f32 [n].
 * int8: s = amax / 127, q = clamp(rne(x / s), -127, 127), true division; an all-zero token: s = 1, q = 0.
 * e4m3: s = max(amax / 448, 1 / (448 * 512)), q = e4m3(clamp(x / s)).
 * A token with a NaN or an infinity gets scale NaN and codes 0, so that what is computed from it is NaN too. */
float oz_act_amax(const float *x, int64_t n); /* NaN where x holds a NaN or an infinity */
float oz_act_i8_of(int8_t *q, const float *x, int64_t n, float amax); /* amax of a row that x is a part of */
float oz_act_e4m3_of(uint8_t *q, const float *x, int64_t n, float amax);
float oz_act_i8(int8_t *q, const float *x, int64_t n);
float oz_act_e4m3(uint8_t *q, const float *x, int64_t n);

#endif
