/* The options that several commands share. */
#include "cli/cli.h"

char *oz_cli_whole;
oz_comm *oz_cli_comm;
oz_common oz_cli_common = {.device = "auto", .dtype = "auto", .cpu_level = "auto", .quantization = "none"};

const oz_opt oz_cli_opts_model[] = {
    {"device", 0, OZ_OPT_STR, &oz_cli_common.device, 0, 0, NULL, "auto|cpu|cuda[:N]", "where the model runs; auto: CUDA where it is, and says so"},
    {"dtype", 0, OZ_OPT_STR, &oz_cli_common.dtype, 0, 0, "auto|f32|bf16|f16", "TYPE",
     "inputs of products; auto: the checkpoint's own 16-bit type where the device has fast products of it (CUDA, AVX-512 BF16, AMX), else f32"},
    {"quantization", 0, OZ_OPT_STR, &oz_cli_common.quantization, 0, 0, "none|experts_int8|experts_fp8|experts_w8a8", "S",
     "quantizes routed experts while loading, as ounce quantize --scheme S writes them"},
    {"cpu-level", 0, OZ_OPT_STR, &oz_cli_common.cpu_level, 0, 0, NULL, "LEVEL", "highest instruction set to use: ref, avx2, avx512, amx or auto"},
    {"threads", 't', OZ_OPT_INT, &oz_cli_common.threads, 0, 1024, NULL, "N", "threads; 0: one a core"},
    {"max-model-len", 0, OZ_OPT_INT, &oz_cli_common.max_len, 0, 1 << 30, NULL, "N", "longest sequence in tokens; 0: the config's"},
    {"deterministic", 0, OZ_OPT_FLAG, &oz_cli_common.deterministic, 0, 0, NULL, NULL,
     "a token's result does not depend on its company (always so on the CPU, but for the latent attention of DeepSeek-V2 and V3)"},
    {0},
};

const oz_opt oz_cli_opts_output[] = {
    {"quiet", 'q', OZ_OPT_FLAG, &oz_cli_common.quiet, 0, 0, NULL, NULL, "warnings, errors and what was asked for only: no progress, no table of what was written"},
    {"json", 0, OZ_OPT_FLAG, &oz_cli_common.json, 0, 0, NULL, NULL, "one JSON document on stdout"},
    {0},
};
