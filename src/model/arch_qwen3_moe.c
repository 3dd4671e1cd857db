/* Qwen3 MoE (transformers Qwen3MoeForCausalLM): Qwen3's attention; experts in the layers that decoder_sparse_step meets and mlp_only_layers does not name,
 * weighted by the softmax over all, renormalised over the chosen ones where norm_topk_prob says so. */
#include "base/json.h"
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_qk_norm, oz_rows_ffn_norm, oz_rows_gated_ffn, oz_rows_experts, NULL};
static const char *const honours[] = {"use_sliding_window", NULL};

static oz_status plain_layers_read(oz_dims *d, const json_t *c, oz_err *err) {
    int64_t step = 1;
    OZ_TRY(oz_json_int(&step, c, "config.json", "decoder_sparse_step", 1, OZ_MAX_LAYERS, err));
    for (int64_t i = 0; i < d->n_layers; i++)
        if ((i + 1) % step) oz_layers_put(d->plain, i);
    const json_t *only = json_object_get(c, "mlp_only_layers");
    OZ_NEED(!only || json_is_null(only) || json_is_array(only), err, OZ_E_FORMAT, "config.json.mlp_only_layers: must be a list of layers, found %s", oz_json_show(only));
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *v = json_array_get(only, i);
        OZ_NEED(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < d->n_layers, err, OZ_E_FORMAT, "config.json.mlp_only_layers[%zu]: must be a layer 0..%lld, found %s", i,
                (long long)d->n_layers - 1, oz_json_show(v));
        oz_layers_put(d->plain, json_integer_value(v));
    }
    return OZ_OK;
}

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    int renormalised = 0, slides = 0;
    OZ_TRY(oz_experts_read(d, c, &(oz_expert_keys){"num_experts", "moe_intermediate_size", "num_local_experts"}, err));
    OZ_TRY(oz_json_bool(&renormalised, c, "config.json", "norm_topk_prob", err));
    d->route_raw = !renormalised;
    OZ_TRY(plain_layers_read(d, c, err));
    OZ_TRY(oz_json_bool(&slides, c, "config.json", "use_sliding_window", err));
    if (!slides) d->window = 0;
    return oz_slide_all(d, c, err); /* whatever max_window_layers says, unlike Qwen3 */
}

const oz_arch oz_arch_qwen3_moe = {.model_type = "qwen3_moe",
                                   .tables = tables,
                                   .defaults = {.window = 4096, .max_position = 32768, .n_experts = 128, .top_k = 8, .expert_ffn = 768, .features = OZ_F_QK_NORM},
                                   .honours = honours,
                                   .config = config,
                                   .layer = oz_layer_sparse};
