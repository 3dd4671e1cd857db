/* quantization_config from outside: parse, resolve against a few modules, and read what the arguments become. */
#include "base/json.h"
#include "base/progress.h"
#include "scheme/scheme.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

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
    if (oz_scheme_resolve(schemes, config, modules, N, &err) == OZ_OK) {
        for (int i = 0; i < N; i++) {
            oz_part parts[OZ_MAX_PARTS];
            const char *ignore[] = {modules[i].name};
            if (oz_scheme_parts(parts, &schemes[i], modules[i].rows, modules[i].cols, OZ_DTYPE_BF16) < 1) __builtin_trap();
            if (schemes[i].quantized && oz_scheme_check(&schemes[i], &modules[i], NULL) != OZ_OK) __builtin_trap();
            if (schemes[i].quantized) json_decref(oz_scheme_config(&schemes[i], ignore, 1));
        }
    } else if (!err.msg[0]) {
        __builtin_trap(); /* every refusal has a reason */
    }
    json_decref(config);
    return 0;
}
