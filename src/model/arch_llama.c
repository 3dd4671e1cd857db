/* Llama (transformers LlamaForCausalLM) and every checkpoint that says model_type "llama": GQA, gated SiLU feed-forward, RMSNorm;
 * biases by attention_bias (q, k, v and o) and mlp_bias. */
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, oz_rows_gated_ffn, NULL};

const oz_arch oz_arch_llama = {.model_type = "llama", .tables = tables, .layer = oz_layer_dense};
