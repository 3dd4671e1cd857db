/* Mistral (transformers MistralForCausalLM): Llama's blocks with a window on every layer, 4096 where the config is silent; sliding_window
 * null means none. */
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, oz_rows_gated_ffn, NULL};

const oz_arch oz_arch_mistral = {
    .model_type = "mistral", .tables = tables, .defaults = {.window = 4096, .n_heads_kv = 8, .max_position = 4096 * 32}, .config = oz_slide_all, .layer = oz_layer_dense};
