/* Gemma 3, text (transformers Gemma3ForCausalLM): Gemma 2's blocks with an RMSNorm over each head of q and k; of every sliding_window_pattern layers
 * the last sees all, by a rope of its own base and scaling, the others a window. Logits are capped only
 * where the config says so. A checkpoint with a vision part (model_type gemma3) is run as its text part. */
#include <math.h>
#include "base/json.h"
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_qk_norm, oz_rows_sandwich, oz_rows_gated_ffn, NULL};
static const char *const honours[] = {"final_logit_softcapping", "query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern", "layer_types", NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    int64_t pattern = 6;
    d->embed_scale = sqrt((double)d->hidden_size);
    OZ_TRY(oz_json_int(&pattern, c, "config.json", "sliding_window_pattern", 1, OZ_MAX_LAYERS, err));
    for (int64_t i = 0; i < d->n_layers; i++)
        if ((i + 1) % pattern) oz_dims_slide(d, i);
    return OZ_OK;
}

const oz_arch oz_arch_gemma3_text = {
    .model_type = "gemma3_text",
    .tables = tables,
    .defaults = {.vocab_size = 262208, .hidden_size = 2304, .intermediate_size = 9216, .n_layers = 26, .n_heads = 8, .n_heads_kv = 4, .head_dim = 256, .max_position = 131072, .window = 4096,
                 .attn_scale = 1.0 / 16, .glu = OZ_GLU_GELU_TANH, .n_ropes = 2, .ropes = {{.theta = 1e6}, {.theta = 1e4}}, .features = OZ_F_TIED | OZ_F_NORM_PLUS_1 | OZ_F_QK_NORM},
    .act_key = "hidden_activation",
    .honours = honours,
    .config = config,
    .layer = oz_layer_dense};

const oz_arch oz_arch_gemma3 = {.model_type = "gemma3", .text = &oz_arch_gemma3_text};
