/* Gemma 2 (transformers Gemma2ForCausalLM): embeddings times sqrt(hidden_size); norms that store w - 1, before and after each block; tanh GELU;
 * scores scaled by query_pre_attn_scalar and capped, logits capped; every other layer, from the first on, sees a window. */
#include <math.h>
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_sandwich, oz_rows_gated_ffn, NULL};
static const char *const honours[] = {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "layer_types", NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    (void)c, (void)err;
    d->embed_scale = sqrt((double)d->hidden_size);
    for (int64_t i = 0; i < d->n_layers; i += 2) oz_dims_slide(d, i);
    return OZ_OK;
}

const oz_arch oz_arch_gemma2 = {
    .model_type = "gemma2",
    .tables = tables,
    .defaults = {.n_heads_kv = 4, .head_dim = 256, .max_position = 8192, .window = 4096, .attn_scale = 1.0 / 16, .attn_softcap = 50, .final_softcap = 30, .glu = OZ_GLU_GELU_TANH,
                 .features = OZ_F_TIED | OZ_F_NORM_PLUS_1},
    .act_key = "hidden_activation",
    .honours = honours,
    .config = config,
    .layer = oz_layer_dense};
