/* The element types and how many bytes they take. */
#include <string.h>
#include "number/number.h"

static const oz_dtype_info DTYPES[OZ_DTYPE_COUNT] = {
    [OZ_DTYPE_F32] = {"F32", "float32", true, 0, 1, 4},
    [OZ_DTYPE_F16] = {"F16", "float16", true, 1, 1, 2},
    [OZ_DTYPE_BF16] = {"BF16", "bfloat16", true, 30, 1, 2},
    [OZ_DTYPE_F64] = {"F64", "float64", true, 28, 1, 8},
    [OZ_DTYPE_I8] = {"I8", "int8", true, 24, 1, 1},
    [OZ_DTYPE_U8] = {"U8", "uint8", true, -1, 1, 1},
    [OZ_DTYPE_I16] = {"I16", "int16", true, 25, 1, 2},
    [OZ_DTYPE_U16] = {"U16", "uint16", true, -1, 1, 2},
    [OZ_DTYPE_I32] = {"I32", "int32", true, 26, 1, 4},
    [OZ_DTYPE_U32] = {"U32", "uint32", true, -1, 1, 4},
    [OZ_DTYPE_I64] = {"I64", "int64", true, 27, 1, 8},
    [OZ_DTYPE_U64] = {"U64", "uint64", true, -1, 1, 8},
    [OZ_DTYPE_BOOL] = {"BOOL", "bool", true, -1, 1, 1},
    [OZ_DTYPE_F8_E4M3] = {"F8_E4M3", "float8_e4m3fn", true, -1, 1, 1},
    [OZ_DTYPE_F8_E5M2] = {"F8_E5M2", "float8_e5m2", true, -1, 1, 1},
    [OZ_DTYPE_F8_E8M0] = {"F8_E8M0", "float8_e8m0fnu", true, -1, 1, 1},
    [OZ_DTYPE_Q8_0] = {"Q8_0", NULL, false, 8, 32, 34},
    [OZ_DTYPE_Q4_0] = {"Q4_0", NULL, false, 2, 32, 18},
    [OZ_DTYPE_Q4_1] = {"Q4_1", NULL, false, 3, 32, 20},
    [OZ_DTYPE_Q5_0] = {"Q5_0", NULL, false, 6, 32, 22},
    [OZ_DTYPE_Q5_1] = {"Q5_1", NULL, false, 7, 32, 24},
    [OZ_DTYPE_Q2_K] = {"Q2_K", NULL, false, 10, 256, 84},
    [OZ_DTYPE_Q3_K] = {"Q3_K", NULL, false, 11, 256, 110},
    [OZ_DTYPE_Q4_K] = {"Q4_K", NULL, false, 12, 256, 144},
    [OZ_DTYPE_Q5_K] = {"Q5_K", NULL, false, 13, 256, 176},
    [OZ_DTYPE_Q6_K] = {"Q6_K", NULL, false, 14, 256, 210},
    [OZ_DTYPE_IQ4_NL] = {"IQ4_NL", NULL, false, 20, 32, 18},
    [OZ_DTYPE_IQ4_XS] = {"IQ4_XS", NULL, false, 23, 256, 136},
    [OZ_DTYPE_MXFP4] = {"MXFP4", NULL, false, 39, 32, 17},
    [OZ_DTYPE_IQ2_XXS] = {"IQ2_XXS", NULL, false, 16, 256, 66},
    [OZ_DTYPE_IQ2_XS] = {"IQ2_XS", NULL, false, 17, 256, 74},
    [OZ_DTYPE_IQ3_XXS] = {"IQ3_XXS", NULL, false, 18, 256, 98},
    [OZ_DTYPE_IQ1_S] = {"IQ1_S", NULL, false, 19, 256, 50},
    [OZ_DTYPE_IQ3_S] = {"IQ3_S", NULL, false, 21, 256, 110},
    [OZ_DTYPE_IQ2_S] = {"IQ2_S", NULL, false, 22, 256, 82},
    [OZ_DTYPE_IQ1_M] = {"IQ1_M", NULL, false, 29, 256, 56},
    [OZ_DTYPE_TQ1_0] = {"TQ1_0", NULL, false, 34, 256, 54},
    [OZ_DTYPE_TQ2_0] = {"TQ2_0", NULL, false, 35, 256, 66},
    [OZ_DTYPE_NVFP4] = {"NVFP4", NULL, false, 40, 64, 36},
};

const oz_dtype_info *oz_dtype_get(oz_dtype d) { return &DTYPES[d]; }

bool oz_dtype_parse(oz_dtype *out, const char *safetensors_name) {
    for (int i = 0; i < OZ_DTYPE_COUNT; i++)
        if (DTYPES[i].in_safetensors && strcmp(DTYPES[i].name, safetensors_name) == 0) return *out = (oz_dtype)i, true;
    return false;
}

bool oz_dtype_from_gguf(oz_dtype *out, uint32_t ggml_type) {
    for (int i = 0; i < OZ_DTYPE_COUNT; i++)
        if (DTYPES[i].gguf_type >= 0 && (uint32_t)DTYPES[i].gguf_type == ggml_type) return *out = (oz_dtype)i, true;
    return false;
}

bool oz_dtype_bytes(size_t *out, oz_dtype d, int64_t n) {
    const oz_dtype_info *t = &DTYPES[d];
    if (n < 0 || n % t->block_elems) return false;
    return !__builtin_mul_overflow((size_t)(n / t->block_elems), (size_t)t->block_bytes, out);
}
