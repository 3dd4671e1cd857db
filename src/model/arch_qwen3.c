/* Qwen3 dense (transformers Qwen3ForCausalLM): Llama's blocks with an RMSNorm over each head of q and k before rope; head_dim is 128
 * where the config is silent; with use_sliding_window, layers from max_window_layers on see a window. */
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_qk_norm, oz_rows_ffn_norm, oz_rows_gated_ffn, NULL};
static const char *const honours[] = {"use_sliding_window", "layer_types", NULL};

const oz_arch oz_arch_qwen3 = {.model_type = "qwen3",
                               .tables = tables,
                               .defaults = {.head_dim = 128, .window = 4096, .max_position = 32768, .features = OZ_F_QK_NORM},
                               .honours = honours,
                               .config = oz_window_from_read,
                               .layer = oz_layer_dense};
