/* Numbers: element types, conversions, weight codecs and the one meaning of a stored weight. Everything here is exact and
 * plain C: it is the specification that kernels are checked against.
 * Sources: IEEE 754; OCP 8-bit floating point 1.0 (E4M3, E5M2); compressed-tensors' pack-quantized layout; GGUF blocks. */
#ifndef OZ_NUMBER_NUMBER_H
#define OZ_NUMBER_NUMBER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/pool.h"
#include "number/dtype.h"

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
    OZ_CODEC_I2P, OZ_CODEC_I3P, OZ_CODEC_I5P, OZ_CODEC_I6P, OZ_CODEC_I7P, /* as I4P: a row is one stream of fields, across words */
    OZ_CODEC_I3W, OZ_CODEC_I5W, OZ_CODEC_I6W, OZ_CODEC_I7W, /* the same before compressed-tensors 0.18: whole fields a word, its top bits empty */
    OZ_CODEC_I2G, OZ_CODEC_I3G, OZ_CODEC_I4G, OZ_CODEC_I8G, /* GPTQ: transposed, [words, rows]; the streams run down the columns of what is stored */
    OZ_CODEC_I4A,    /* AWQ "gemm": transposed, [cols, words]; the rows 0,2,4,6,1,3,5,7 of eight in a word */
    OZ_CODEC_E2M1,   /* float4 e2m1, low nibble first: indices into its codebook */
    OZ_CODEC_E2M3,   /* float6 e2m3, four in three bytes, lowest bits first: the same */
    OZ_CODEC_COUNT
} oz_codec;

/* How fields of some bits follow each other in 32-bit words, lowest bits first: without gaps, as many as fit a word, or eight in AWQ's order. */
typedef enum oz_order { OZ_ORDER_STREAM, OZ_ORDER_WORDS, OZ_ORDER_AWQ } oz_order;
/* Field i of a stream whose words lie `step` bytes apart. */
uint32_t oz_field_get(const void *words, int64_t step, int bits, oz_order order, int64_t i);
void oz_field_put(void *words, int64_t step, int bits, oz_order order, int64_t i, uint32_t value); /* the field is zero before; not AWQ's order */
int64_t oz_field_words(int bits, oz_order order, int64_t n); /* words that n fields fill */

typedef struct oz_codec_info {
    const char *name;
    bool plain;
    int bits;           /* of a code */
    oz_dtype dtype;     /* plain: of the stored tensor; else of the code tensor (I8, I32 for packed, F8_E4M3) */
    bool is_float;      /* codes are floats */
    int32_t code_min, code_max; /* of integer codes */
    /* Codes (not scaled) of columns [col0, col0 + n) of one stored row as f32; plain codecs give the values. */
    void (*expand)(float *dst, const void *row, int64_t col0, int64_t n); /* NULL: transposed, no row lies in one piece */
    oz_order order;           /* of packed integers */
    const int8_t *codebook;   /* [1 << bits] or NULL: what a code stands for, in units of `unit` */
    float unit;
    float largest;            /* of codes that are floats; */
    int least, digits;        /* the exponent below which steps are even, and the digits of a mantissa */
} oz_codec_info;
const oz_codec_info *oz_codec_get(oz_codec c);
bool oz_codec_plain(oz_codec *out, oz_dtype d); /* the plain codec of a tensor's type */

/* Rounding to nearest (below). */
typedef struct oz_rtn { oz_codec codec; int64_t group_size; /* 0: channel */ oz_dtype scale_dtype; bool asymmetric; /* integers alone */ int bits; /* of a code, in a codec of more; 0: all */ float divisor; /* of amax; 0: half the code range */ } oz_rtn;

/* A weight as a checkpoint holds it, [rows, cols] row-major; nothing is owned.
 * value(r, c) = (code(r, c) - zero(r, g)) * scale(r, g), g = c / group_size, in f32; plain: value = code.
 * Compact is what devices pack: the last part (below) is all zero, and codes are plain, or 4 or 8 bits in rows. oz_weight_slice makes it of any. */
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
    const oz_rtn *rtn;    /* NULL, or of plain codes: what devices pack is not the values but what these are rounded to */
    const int32_t *order; /* [cols] or NULL: stored column i is column order[i] of the weight (groups count stored columns); compact weights alone */
    /* What others store otherwise. row_bytes of a transposed codec: between rows of what is stored. */
    bool scales_down;     /* scales [n_groups, rows] */
    int64_t scale_rows;   /* > 1: rows that share a scale, scales [ceil(rows / scale_rows), n_groups] */
    float scale_divisor;  /* > 0: scales are divided by it */
    const void *zero_words; /* zero points as fields of codec's bits: a stream a group that runs over the rows */
    int64_t zero_word_step, zero_group_step; /* bytes between words of a stream, and between streams */
    oz_order zero_order;
    int32_t zero_add;     /* 1: GPTQ's first format stores one less */
    const void *g_idx;    /* int32 [cols] as stored, aligned or not, or NULL: the group of each column (oz_weight_group) */
} oz_weight;
int64_t oz_weight_groups(const oz_weight *w); /* scales a row: ceil(cols / group_size) */
int64_t oz_weight_group(const oz_weight *w, int64_t col); /* that a column belongs to */
/* The stored row that holds logical (Hugging Face order) row r. */
int64_t oz_weight_stored_row(const oz_weight *w, int64_t r);
/* Columns [col0, col0+n) of logical row r, dequantized in f32. */
void oz_weight_row(float *dst, const oz_weight *w, int64_t r, int64_t col0, int64_t n);
bool oz_weight_is_compact(const oz_weight *w);
/* Scales and zero points [n_groups] of a stored row. */
void oz_weight_scales(float *scales, float *zeros, const oz_weight *w, int64_t stored);
/* Codes (not scaled) of columns [col0, col0 + n) of a stored row. */
void oz_weight_codes(float *dst, const oz_weight *w, int64_t stored, int64_t col0, int64_t n);
/* A compact copy (out is not w) of rows [row0, row0 + n_rows), columns [col0, col0 + n_cols), in *mem (oz_big_free). OZ_E_UNSUPPORTED where a group, a
 * block or an interleaved head would be cut. Integers of other layouts become I4P or I8; columns with a g_idx are sorted by it (order). */
oz_status oz_weight_slice(oz_weight *out, void **mem, const oz_weight *w, int64_t row0, int64_t n_rows, int64_t col0, int64_t n_cols, oz_err *err);
/* Bytes of the codes, scales and zeros as stored. */
size_t oz_weight_bytes(const oz_weight *w);

/* Round-to-nearest quantization, data-free (formats.md sections 3.2, 3.3 and 11.6). Symmetric: scale = amax / half the code range (127.5, 7.5, 448) in
 * f32. Asymmetric: scale = (max - min) / the code range, zero = rne(clamp(least code - min / scale)), min <= 0 <= max, and every step is rounded to
 * scale_dtype, as compressed-tensors does. The scale is rounded to scale_dtype first; codes are computed against it in f32 by division, clamp before
 * rounding, ties to even; an all-zero group gets scale 1, zero 0 and codes 0; a scale that would round to zero is the smallest of its type.
 * NaN or infinity in the source: OZ_E_FORMAT, which names the column. */
/* Bytes of a stored row of codes: oz_weight's row_bytes where rows are contiguous. A plain block codec needs whole blocks. */
int64_t oz_codec_row_bytes(oz_codec c, int64_t cols);
/* The code nearest to x / scale + zero, as a number: clamped to the range of codes, then rounded, ties to even. */
float oz_rtn_code(const oz_rtn *q, float x, float scale, float zero);
/* Stores a row of codes given as numbers, those of oz_weight_codes. Not for transposed codecs. */
void oz_codes_store(void *codes_row, oz_codec c, const float *codes, int64_t cols);
/* One row: codes_row (storage of the codec, padded bits zero), scales_row [n_groups] in scale_dtype, zeros_row [n_groups] (NULL: symmetric). src f32 [cols]. */
oz_status oz_rtn_row(void *codes_row, void *scales_row, int8_t *zeros_row, const oz_rtn *q, const float *src, int64_t cols, oz_err *err);
/* The same in steps and as numbers, where rows share scales. The range of a group begins as 0, 0 and is widened by each row; scales are exact in scale_dtype. */
oz_status oz_rtn_observe(float *min, float *max /* [n_groups] */, const oz_rtn *q, const float *src, int64_t cols, oz_err *err);
oz_status oz_rtn_scale(float *scale, float *zero, const oz_rtn *q, float min, float max, oz_err *err);
void oz_rtn_codes_each(float *codes, const oz_rtn *q, const float *scales, const float *zeros, const float *src, int64_t n); /* each value has its own */
void oz_rtn_codes(float *codes /* may be src */, const oz_rtn *q, const float *scales, const float *zeros, const float *src, int64_t cols);
/* All steps of one row as numbers; codes may be src. */
oz_status oz_rtn_numbers(float *codes, float *scales, float *zeros /* [n_groups] */, const oz_rtn *q, const float *src, int64_t cols, oz_err *err);
/* All rows of w, in *mem (oz_big_free), symmetric. OZ_E_FORMAT names row and column. */
oz_status oz_weight_quantize(oz_weight *out, void **mem, const oz_weight *w, const oz_rtn *q, oz_pool *pool, oz_err *err);

/* Dynamic activation quantization, the definitions kernels follow (formats.md section 10.11 and 3.5). One token; x f32 [n].
 * int8: s = amax / 127, q = clamp(rne(x / s), -127, 127), true division; an all-zero token: s = 1, q = 0.
 * e4m3: s = max(amax / 448, 1 / (448 * 512)), q = e4m3(clamp(x / s)).
 * A token with a NaN or an infinity gets scale NaN and codes 0, so that what is computed from it is NaN too. */
float oz_act_amax(const float *x, int64_t n); /* NaN where x holds a NaN or an infinity */
float oz_act_i8_of(int8_t *q, const float *x, int64_t n, float amax); /* amax of a row that x is a part of */
float oz_act_e4m3_of(uint8_t *q, const float *x, int64_t n, float amax);
float oz_act_i8(int8_t *q, const float *x, int64_t n);
float oz_act_e4m3(uint8_t *q, const float *x, int64_t n);

/* All other ways to quantize activations, to the values that their codes stand for: y = (q - zero) * scale. Static: q = rne(clamp(x / scale + zero)), or
 * e4m3. Dynamic symmetric: as above, for each group of a row, with 2^(bits - 1) - 1 for 127; asymmetric: scale = (max - min) / (2^bits - 1) with
 * 0 among them, zero = clamp(rne(least code - min / scale)). */
typedef struct oz_round {
    int bits;              /* 2..8; 8 for floats */
    bool is_float, symmetric;
    int64_t group_size;    /* columns that share a scale; 0: the row */
    const float *scales, *zeros; /* static: a group's, or NULL; zeros NULL: 0. Scales NULL: dynamic */
    bool powers;           /* of dynamic symmetric ones: each is the next power of two that is not below it */
} oz_round;
void oz_act_round(float *y, const float *x, int64_t n, const oz_round *q); /* y may be x */

#endif
