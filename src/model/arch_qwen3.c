/* Qwen3 dense (transformers Qwen3ForCausalLM): Llama's blocks with an RMSNorm over each head of q and k before rope; head_dim is 128
 * where the config is silent; with use_sliding_window, layers from max_window_layers on see a window. */
#include "base/json.h"
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_qk_norm, oz_rows_gated_ffn, NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    d->features |= OZ_F_QK_NORM;
    if (!json_object_get(c, "head_dim")) d->head_dim = 128;
    int use = 0;
    OZ_TRY(oz_json_bool(&use, c, "config.json", "use_sliding_window", err));
    d->window_from = 28;
    OZ_TRY(oz_json_int(&d->window_from, c, "config.json", "max_window_layers", 0, 1 << 20, err));
    if (!use) return OZ_OK;
    return oz_json_int(&d->window, c, "config.json", "sliding_window", 1, 1 << 30, err);
}

static oz_layer_kind layer(const oz_dims *d, int64_t i) {
    return (oz_layer_kind){OZ_MIXER_GQA, OZ_FFN_GATED, OZ_STATE_KV, i >= d->window_from ? d->window : 0};
}

const oz_arch oz_arch_qwen3 = {"qwen3", tables, config, layer};
