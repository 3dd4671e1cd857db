/* DeepSeek's first mixture of experts (deepseek-ai/deepseek-moe-16b, modeling_deepseek.py of its repository): Llama's attention; the first layers are dense, the others have
 * many narrow experts, weighted by the softmax over all as it is, beside a feed-forward that every token takes: the shared experts, in one. */
#include <string.h>
#include "base/json.h"
#include "model/internal.h"

#define MLP "model.layers.%d.mlp"
static const oz_arch_row rows_shared[] = {
    {MLP ".shared_experts.gate_proj", "Linear", OZ_SLOT_SHARED_GATE, OZ_ROLE_SHARED_GATE, OZ_DIM_SHARED_FFN, OZ_DIM_HIDDEN, OZ_F_SHARED, 0, 0},
    {MLP ".shared_experts.up_proj", "Linear", OZ_SLOT_SHARED_UP, OZ_ROLE_SHARED_UP, OZ_DIM_SHARED_FFN, OZ_DIM_HIDDEN, OZ_F_SHARED, 0, 0},
    {MLP ".shared_experts.down_proj", "Linear", OZ_SLOT_SHARED_DOWN, OZ_ROLE_SHARED_DOWN, OZ_DIM_HIDDEN, OZ_DIM_SHARED_FFN, OZ_F_SHARED, 0, 0},
    {0}};
static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, oz_rows_gated_ffn, oz_rows_experts, rows_shared, NULL};

/* What every model of the family says of its experts; null or none: it has none. */
static oz_status experts_config(oz_dims *d, const json_t *c, oz_err *err) {
    int64_t first = 0, freq = 1, n_shared = 0;
    int renormalised = 0;
    const char *scores = "softmax";
    if (!json_is_integer(json_object_get(c, "n_routed_experts"))) return OZ_OK;
    OZ_TRY(oz_experts_read(d, c, &(oz_expert_keys){"n_routed_experts", "moe_intermediate_size"}, err));
    OZ_TRY(oz_json_int(&first, c, "config.json", "first_k_dense_replace", 0, 1 << 20, err));
    OZ_TRY(oz_json_int(&freq, c, "config.json", "moe_layer_freq", 1, OZ_MAX_LAYERS, err));
    for (int64_t i = 0; i < d->n_layers; i++)
        if (i < first || i % freq) oz_layers_put(d->plain, i);
    OZ_TRY(oz_json_int(&n_shared, c, "config.json", "n_shared_experts", 0, 1 << 10, err));
    d->shared_ffn = n_shared * d->expert_ffn;
    if (n_shared) d->features |= OZ_F_SHARED;
    OZ_TRY(oz_json_bool(&renormalised, c, "config.json", "norm_topk_prob", err));
    d->route_raw = !renormalised;
    OZ_TRY(oz_json_str(&scores, c, "config.json", "scoring_func", err));
    OZ_NEED(strcmp(scores, "softmax") == 0, err, OZ_E_UNSUPPORTED, "config.json.scoring_func: \"%s\" is not run here; known: softmax", scores);
    return OZ_OK;
}

const oz_arch oz_arch_deepseek = {
    .model_type = "deepseek", .tables = tables, .defaults = {.expert_ffn = 1407}, .config = experts_config, .layer = oz_layer_sparse};
