/* Mixtral (transformers MixtralForCausalLM): Llama's attention, with a window on every layer where the config has one, and in each layer a mixture of
 * gated feed-forwards: w1 is the gate, w3 the up and w2 the down projection. Router weights are the softmax over all experts, renormalised
 * over the chosen ones. */
#include "model/internal.h"

#define MOE "model.layers.%d.block_sparse_moe"
static const oz_arch_row rows_moe[] = {
    {MOE ".gate", "Linear", OZ_SLOT_ROUTER, OZ_ROLE_ROUTER, OZ_DIM_EXPERTS, OZ_DIM_HIDDEN, 0, 0, 0},
    {MOE ".experts.%d.w1", "Linear", OZ_SLOT_EXPERT_GATE, OZ_ROLE_EXPERT_GATE, OZ_DIM_EXPERT_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {MOE ".experts.%d.w3", "Linear", OZ_SLOT_EXPERT_UP, OZ_ROLE_EXPERT_UP, OZ_DIM_EXPERT_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {MOE ".experts.%d.w2", "Linear", OZ_SLOT_EXPERT_DOWN, OZ_ROLE_EXPERT_DOWN, OZ_DIM_HIDDEN, OZ_DIM_EXPERT_FFN, 0, 0, 0},
    {0}};
static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, rows_moe, NULL}, *const renamed[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, oz_rows_experts, NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    OZ_TRY(oz_experts_read(d, c, &(oz_expert_keys){"num_local_experts", "intermediate_size", NULL}, err));
    return oz_slide_all(d, c, err);
}

static oz_layer_kind layer(const oz_dims *d, int64_t i) {
    (void)i;
    return (oz_layer_kind){.mixer = OZ_MIXER_GQA, .ffn = OZ_FFN_MOE, .state = OZ_STATE_KV, .window = d->window};
}

const oz_arch oz_arch_mixtral = {.model_type = "mixtral",
                                 .tables = tables,
                                 .renamed = renamed,
                                 .defaults = {.rms_norm_eps = 1e-5, .ropes = {{.theta = 1e6}}, .n_experts = 8, .top_k = 2},
                                 .config = config,
                                 .layer = layer};
