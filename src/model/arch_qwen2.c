/* Qwen2 (transformers Qwen2ForCausalLM): Llama's blocks with biases on q, k and v, never on o; with use_sliding_window, layers from
 * max_window_layers on see a window. */
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, oz_rows_gated_ffn, NULL};
static const char *const honours[] = {"use_sliding_window", "layer_types", NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    d->features = (d->features & ~(unsigned)OZ_F_O_BIAS) | OZ_F_QKV_BIAS;
    return oz_window_from_read(d, c, err);
}

const oz_arch oz_arch_qwen2 = {
    .model_type = "qwen2", .tables = tables, .defaults = {.window = 4096, .max_position = 32768}, .honours = honours, .config = config, .layer = oz_layer_dense};
