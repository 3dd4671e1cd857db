/* quantization_config from outside: parse, resolve against a few modules, and read what the arguments become. */
#include "base/json.h"
#include "base/progress.h"
#include "scheme/scheme.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What is written of schemes of compressed-tensors is read back as the same. */
static void round_trip(const oz_module *modules, const oz_scheme *schemes, size_t n) {
    oz_scheme back[4];
    oz_err err = {0};
    for (size_t i = 0; i < n; i++)
        if (schemes[i].quantized && (schemes[i].store >= OZ_STORE_GPTQ || strcmp(schemes[i].format, "fp8") == 0)) return;
    json_t *config = json_pack("{so}", "quantization_config", oz_scheme_config(modules, schemes, n, NULL));
    if (oz_scheme_resolve(back, config, modules, n, &err) != OZ_OK) __builtin_trap();
    for (size_t i = 0; i < n; i++) {
        const oz_scheme *a = &schemes[i], *b = &back[i];
        if (a->quantized != b->quantized) __builtin_trap();
        if (a->quantized && (strcmp(a->name, b->name) || strcmp(a->format, b->format) || a->codec != b->codec || a->group_size != b->group_size || a->block_rows != b->block_rows || a->act != b->act)) __builtin_trap();
    }
    json_decref(config);
}

static void count(void *arg, bool is_error, const char *text) {
    if (!text[0]) __builtin_trap();
    *(size_t *)arg += is_error;
}

/* Who takes findings gets an error if, and only if, the first one ends it for others. */
static void all_findings(const json_t *config, const oz_module *modules, size_t n, bool is_good) {
    oz_scheme schemes[4];
    size_t n_errors = 0;
    if (oz_scheme_resolve_all(schemes, config, modules, n, &(oz_findings){count, &n_errors}, &(oz_err){0}) != OZ_OK) __builtin_trap();
    if (is_good != (n_errors == 0)) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const oz_module modules[] = {
        {"model.embed_tokens", "Embedding", 16, 32, false},
        {"model.layers.0.self_attn.q_proj", "Linear", 32, 32, true},
        {"model.layers.0.mlp.down_proj", "Linear", 32, 96, true},
        {"lm_head", "Linear", 16, 32, false},
    };
    enum { N = sizeof modules / sizeof *modules };
    oz_scheme schemes[N];
    json_t *config;
    oz_log_quiet(true);
    if (oz_json_parse(&config, (const char *)data, n, "fuzz", NULL) != OZ_OK) return 0;
    oz_err err = {0};
    const bool is_good = oz_scheme_resolve(schemes, config, modules, N, &err) == OZ_OK;
    all_findings(config, modules, N, is_good);
    if (is_good) {
        for (int i = 0; i < N; i++) {
            oz_part parts[OZ_MAX_PARTS];
            if (oz_scheme_parts(parts, &schemes[i], modules[i].rows, modules[i].cols, OZ_DTYPE_BF16) < 1) __builtin_trap();
            if (schemes[i].quantized && schemes[i].store != OZ_STORE_GPTQ && oz_scheme_check(&schemes[i], &modules[i], NULL) != OZ_OK) __builtin_trap();
        }
        round_trip(modules, schemes, N);
    } else if (!err.msg[0]) {
        __builtin_trap(); /* every refusal has a reason */
    }
    json_decref(config);
    return 0;
}
