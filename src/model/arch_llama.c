/* Llama (transformers LlamaForCausalLM) and every checkpoint that says model_type "llama": GQA, gated SiLU feed-forward, RMSNorm;
 * rope scaling default, linear, llama3; biases by attention_bias (q, k, v and o) and mlp_bias. */
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_gated_ffn, NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    (void)d, (void)c, (void)err;
    return OZ_OK;
}

static oz_layer_kind layer(const oz_dims *d, int64_t i) {
    (void)d, (void)i;
    return (oz_layer_kind){OZ_MIXER_GQA, OZ_FFN_GATED, OZ_STATE_KV, 0};
}

const oz_arch oz_arch_llama = {"llama", tables, config, layer};
