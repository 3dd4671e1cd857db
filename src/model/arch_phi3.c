/* Phi-3 and its kin (transformers Phi3ForCausalLM): Llama's mathematics with q, k and v in one matrix and gate and up in another; a head's first
 * columns alone may rotate (partial_rotary_factor); longrope; a window on every layer where the config has one. */
#include "model/internal.h"

static const oz_arch_row rows_fused[] = {
    {"model.layers.%d.input_layernorm", "RMSNorm", OZ_SLOT_ATTN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.self_attn.qkv_proj", "Linear", OZ_SLOT_Q, OZ_ROLE_ATTN_QKV, OZ_DIM_QKV, OZ_DIM_HIDDEN, 0, 0, 0},
    {"model.layers.%d.self_attn.o_proj", "Linear", OZ_SLOT_O, OZ_ROLE_ATTN_O, OZ_DIM_HIDDEN, OZ_DIM_Q, 0, 0, 0},
    {"model.layers.%d.post_attention_layernorm", "RMSNorm", OZ_SLOT_FFN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.mlp.gate_up_proj", "Linear", OZ_SLOT_GATE, OZ_ROLE_FFN_GATE_UP, OZ_DIM_GATE_UP, OZ_DIM_HIDDEN, 0, 0, 0},
    {"model.layers.%d.mlp.down_proj", "Linear", OZ_SLOT_DOWN, OZ_ROLE_FFN_DOWN, OZ_DIM_HIDDEN, OZ_DIM_FFN, 0, 0, 0},
    {0}};
static const oz_arch_row *const tables[] = {oz_rows_top, rows_fused, NULL};
static const char *const honours[] = {"partial_rotary_factor", NULL};

const oz_arch oz_arch_phi3 = {.model_type = "phi3",
                              .tables = tables,
                              .defaults = {.max_position = 4096, .rms_norm_eps = 1e-5, .ropes = {{.original_max = 4096}}},
                              .honours = honours,
                              .config = oz_slide_all,
                              .layer = oz_layer_dense};
