/* The schemes that `ounce quantize` writes. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "scheme/internal.h"

const oz_scheme OZ_SCHEME_DENSE = {.name = "dense", .symmetric = true, .format = "dense"};

#define EXPERTS .experts = true, .bf16_scales = true
static const oz_preset PRESETS[] = {
    {{"W8A8", true, OZ_CODEC_I8, 8, false, 0, false, true, OZ_ACT_I8_TOKEN, "int-quantized", .store = OZ_STORE_BYTES},
     "int8 weights, symmetric, one scale an output channel (largest magnitude / 127.5); int8 activations, symmetric, quantized per token while "
     "running (largest magnitude / 127); stored int-quantized, a byte a weight",
     false},
    {{"W8A16", true, OZ_CODEC_I8P, 8, false, 0, false, true, OZ_ACT_NONE, "pack-quantized", .store = OZ_STORE_PACKED},
     "int8 weights, symmetric, one scale an output channel (largest magnitude / 127.5); activations are not quantized; stored pack-quantized, "
     "four weights in an int32. llm-compressor 0.16 and later mean groups of 128 by this name",
     false},
    {{"FP8_DYNAMIC", true, OZ_CODEC_F8E4M3, 8, true, 0, false, true, OZ_ACT_F8_TOKEN, "float-quantized", .store = OZ_STORE_BYTES},
     "float8 e4m3 weights, symmetric, one scale an output channel (largest magnitude / 448); float8 e4m3 activations, quantized per token while "
     "running; stored float-quantized, a byte a weight",
     false},
    {{"W4A16", true, OZ_CODEC_I4P, 4, false, 128, false, true, OZ_ACT_NONE, "pack-quantized", .store = OZ_STORE_PACKED},
     "int4 weights, symmetric, one scale a group of --group-size inputs of an output channel, 128 by default (largest magnitude / 7.5); "
     "activations are not quantized; stored pack-quantized, eight weights in an int32",
     true},
    {{"W4A16_ASYM", true, OZ_CODEC_I4P, 4, false, 128, false, false, OZ_ACT_NONE, "pack-quantized", .store = OZ_STORE_PACKED},
     "int4 weights, asymmetric, one scale and one zero point a group of --group-size inputs of an output channel, 128 by default ((largest - smallest) / 15, zero among "
     "them); activations are not quantized; stored pack-quantized, zero points too",
     true},
    {{"W4A8", true, OZ_CODEC_I4P, 4, false, 128, false, true, OZ_ACT_VALUES, "pack-quantized", .store = OZ_STORE_PACKED, .input = {.bits = 8, .symmetric = true}},
     "the weights of W4A16, stored like them (llm-compressor stores a byte a weight by this name); int8 activations, symmetric, quantized per token while running "
     "(largest magnitude / 127)",
     true},
    {{"FP8_BLOCK", true, OZ_CODEC_F8E4M3, 8, true, 128, false, true, OZ_ACT_VALUES, "float-quantized", .store = OZ_STORE_BYTES, .block_rows = 128,
      .input = {.bits = 8, .is_float = true, .symmetric = true, .group_size = 128}},
     "float8 e4m3 weights, symmetric, one scale a block of 128 outputs by 128 inputs (largest magnitude / 448); float8 e4m3 activations, quantized per token in groups of "
     "128 while running, which must divide the inputs of every module; stored float-quantized, a byte a weight",
     false},
    {{"FP8", true, OZ_CODEC_F8E4M3, 8, true, 0, true, true, OZ_ACT_VALUES, "float-quantized", .store = OZ_STORE_BYTES, .static_input = true,
      .input = {.bits = 8, .is_float = true, .symmetric = true}},
     "float8 e4m3 weights, symmetric, one scale a matrix (largest magnitude / 448); float8 e4m3 activations under one stored scale a module, the largest magnitude that "
     "--calibration text shows / 448; stored float-quantized, a byte a weight",
     false},
    {{"W8A8_STATIC", true, OZ_CODEC_I8, 8, false, 0, false, true, OZ_ACT_VALUES, "int-quantized", .store = OZ_STORE_BYTES, .static_input = true, .input = {.bits = 8, .symmetric = true}},
     "the weights of W8A8; int8 activations, symmetric, under one stored scale a module, the largest magnitude that --calibration text shows / 127.5 (a recipe has them asymmetric, too); "
     "stored int-quantized, a byte a weight",
     false},
    {{"experts_int8", true, OZ_CODEC_I8P, 8, false, 0, false, true, OZ_ACT_NONE, "pack-quantized", .store = OZ_STORE_PACKED, EXPERTS, .divisor = 127},
     "routed experts alone: int8 weights, symmetric, one scale an output channel (largest magnitude / 127), in bf16; activations are not quantized; "
     "stored as W8A16",
     false},
    {{"experts_fp8", true, OZ_CODEC_F8E4M3, 8, true, 0, false, true, OZ_ACT_NONE, "naive-quantized", .store = OZ_STORE_BYTES, EXPERTS},
     "routed experts alone: float8 e4m3 weights, symmetric, one scale an output channel (largest magnitude / 448), in bf16; activations are not "
     "quantized; stored naive-quantized, a byte a weight",
     false},
    {{"experts_w8a8", true, OZ_CODEC_I8, 8, false, 0, false, true, OZ_ACT_I8_TOKEN, "int-quantized", .store = OZ_STORE_BYTES, EXPERTS, .divisor = 127},
     "routed experts alone: the weights of experts_int8, and int8 activations, symmetric, quantized per token while running (largest magnitude / 127); "
     "stored as W8A8",
     false},
};
enum { N_PRESETS = sizeof PRESETS / sizeof *PRESETS };

size_t oz_preset_count(void) { return N_PRESETS; }
const oz_preset *oz_preset_at(size_t i) { return &PRESETS[i]; }

const oz_preset *oz_preset_find(const char *name) {
    for (size_t i = 0; i < N_PRESETS; i++)
        if (strcasecmp(PRESETS[i].scheme.name, name) == 0) return &PRESETS[i];
    return NULL;
}

oz_rtn oz_scheme_rtn(const oz_scheme *s, oz_dtype model_dtype) {
    return (oz_rtn){s->codec, s->group_size, s->bf16_scales ? OZ_DTYPE_BF16 : model_dtype, !s->symmetric, s->is_float ? 0 : s->bits, s->divisor};
}

int64_t oz_group_size_usual(size_t i) {
    static const int64_t usual[] = {16, 32, 64, 128, 256};
    return i < sizeof usual / sizeof *usual ? usual[i] : 0;
}

oz_status oz_scheme_check(const oz_scheme *s, const oz_module *m, oz_err *err) {
    const bool of_inputs = s->block_rows > 0 || s->group_size <= 0; /* a block may stand out at the edge */
    const int64_t group = of_inputs ? s->input.group_size : s->group_size;
    if (!s->quantized || group <= 0 || m->cols % group == 0) return OZ_OK;
    OZ_NEED(!of_inputs, err, OZ_E_ARG, "%s: the groups of %lld in which %s quantizes inputs do not divide its %lld columns", m->name, (long long)group, s->name, (long long)m->cols);
    char divisors[64] = "";
    for (size_t i = 0, n = 0; oz_group_size_usual(i); i++)
        if (m->cols % oz_group_size_usual(i) == 0) n += (size_t)snprintf(divisors + n, sizeof divisors - n, "%s%lld", n ? ", " : "", (long long)oz_group_size_usual(i));
    OZ_FAIL(err, OZ_E_ARG, "%s: group_size %lld does not divide its %lld columns; %s%s", m->name, (long long)group, (long long)m->cols,
            *divisors ? "these do: " : "none of the usual ones does", divisors);
}
