/* Jamba (transformers JambaForCausalLM): one layer in attn_layer_period attends, without rotary embeddings, the others scan (Mamba, with norms on dt, B and C); one
 * feed-forward in expert_layer_period has experts, weighted by the softmax over all as it is. */
#include <string.h>
#include "base/json.h"
#include "model/internal.h"

#define LAYER "model.layers.%d"
static const oz_arch_row rows_top[] = {
    {"model.embed_tokens", "Embedding", OZ_SLOT_EMBED, OZ_ROLE_EMBED, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, 0, 0, 0},
    {"model.final_layernorm", "RMSNorm", OZ_SLOT_FINAL_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"lm_head", "Linear", OZ_SLOT_HEAD, OZ_ROLE_HEAD, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, 0, OZ_F_TIED, 0},
    {0}};
static const oz_arch_row rows_mamba[] = {
    {LAYER ".mamba.in_proj", "Linear", OZ_SLOT_SSM_IN, OZ_ROLE_SSM_IN, OZ_DIM_SSM_IN, OZ_DIM_HIDDEN, 0, 0, OZ_F_SSM_BIAS},
    {LAYER ".mamba.conv1d", "Conv1d", OZ_SLOT_SSM_CONV, OZ_ROLE_SSM, OZ_DIM_SSM, OZ_DIM_SSM_CONV, 0, 0, OZ_F_CONV_BIAS},
    {LAYER ".mamba.x_proj", "Linear", OZ_SLOT_SSM_X, OZ_ROLE_SSM_X, OZ_DIM_SSM_X, OZ_DIM_SSM, 0, 0, 0},
    {LAYER ".mamba.dt_layernorm", "RMSNorm", OZ_SLOT_SSM_DT_NORM, OZ_ROLE_NORM, OZ_DIM_SSM_DT, OZ_DIM_NONE, 0, 0, 0},
    {LAYER ".mamba.b_layernorm", "RMSNorm", OZ_SLOT_SSM_B_NORM, OZ_ROLE_NORM, OZ_DIM_SSM_STATE, OZ_DIM_NONE, 0, 0, 0},
    {LAYER ".mamba.c_layernorm", "RMSNorm", OZ_SLOT_SSM_C_NORM, OZ_ROLE_NORM, OZ_DIM_SSM_STATE, OZ_DIM_NONE, 0, 0, 0},
    {LAYER ".mamba.dt_proj", "Linear", OZ_SLOT_SSM_DT, OZ_ROLE_SSM_DT, OZ_DIM_SSM, OZ_DIM_SSM_DT, 0, 0, OZ_F_DT_BIAS},
    {LAYER ".mamba.A_log", "Parameter", OZ_SLOT_SSM_A, OZ_ROLE_SSM_A, OZ_DIM_SSM, OZ_DIM_SSM_STATE, 0, 0, 0},
    {LAYER ".mamba.D", "Parameter", OZ_SLOT_SSM_D, OZ_ROLE_SSM, OZ_DIM_SSM, OZ_DIM_NONE, 0, 0, 0},
    {LAYER ".mamba.out_proj", "Linear", OZ_SLOT_SSM_OUT, OZ_ROLE_SSM_OUT, OZ_DIM_HIDDEN, OZ_DIM_SSM, 0, 0, OZ_F_SSM_BIAS},
    {0}};
#define FFN LAYER ".feed_forward"
static const oz_arch_row rows_ffn[] = {
    {LAYER ".pre_ff_layernorm", "RMSNorm", OZ_SLOT_FFN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {FFN ".gate_proj", "Linear", OZ_SLOT_GATE, OZ_ROLE_FFN_GATE, OZ_DIM_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {FFN ".up_proj", "Linear", OZ_SLOT_UP, OZ_ROLE_FFN_UP, OZ_DIM_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {FFN ".down_proj", "Linear", OZ_SLOT_DOWN, OZ_ROLE_FFN_DOWN, OZ_DIM_HIDDEN, OZ_DIM_FFN, 0, 0, 0},
    {FFN ".router", "Linear", OZ_SLOT_ROUTER, OZ_ROLE_ROUTER, OZ_DIM_EXPERTS, OZ_DIM_HIDDEN, 0, 0, 0},
    {FFN ".experts.%d.gate_proj", "Linear", OZ_SLOT_EXPERT_GATE, OZ_ROLE_EXPERT_GATE, OZ_DIM_EXPERT_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {FFN ".experts.%d.up_proj", "Linear", OZ_SLOT_EXPERT_UP, OZ_ROLE_EXPERT_UP, OZ_DIM_EXPERT_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {FFN ".experts.%d.down_proj", "Linear", OZ_SLOT_EXPERT_DOWN, OZ_ROLE_EXPERT_DOWN, OZ_DIM_HIDDEN, OZ_DIM_EXPERT_FFN, 0, 0, 0},
    {0}};
static const oz_arch_row *const tables[] = {rows_top, oz_rows_gqa, rows_mamba, rows_ffn, NULL};

/* Every period-th layer, from the offset on, is another: the rest go to `set`. */
static oz_status others_read(uint64_t *set, const oz_dims *d, const json_t *c, const char *const keys[2], int64_t period, int64_t offset, oz_err *err) {
    OZ_TRY(oz_json_int(&period, c, "config.json", keys[0], 1, OZ_MAX_LAYERS, err));
    OZ_TRY(oz_json_int(&offset, c, "config.json", keys[1], 0, period - 1, err));
    for (int64_t i = 0; i < d->n_layers; i++)
        if (i % period != offset) oz_layers_put(set, i);
    return OZ_OK;
}

static oz_status mamba_read(oz_dims *d, const json_t *c, oz_err *err) {
    enum { MAX = 1 << 12 };
    int64_t expand = 2;
    const json_t *rank = json_object_get(c, "mamba_dt_rank");
    const bool is_auto = !rank || (json_is_string(rank) && strcmp(json_string_value(rank), "auto") == 0);
    d->ssm_dt = (d->hidden_size + 15) / 16;
    if (!is_auto) OZ_TRY(oz_json_int(&d->ssm_dt, c, "config.json", "mamba_dt_rank", 1, 1 << 16, err));
    OZ_TRY(oz_json_int(&expand, c, "config.json", "mamba_expand", 1, 64, err));
    OZ_TRY(oz_json_int(&d->ssm_state, c, "config.json", "mamba_d_state", 1, MAX, err));
    OZ_TRY(oz_json_int(&d->ssm_conv, c, "config.json", "mamba_d_conv", 1, MAX, err));
    d->ssm = expand * d->hidden_size;
    int conv_bias = 1, proj_bias = 0;
    OZ_TRY(oz_json_bool(&conv_bias, c, "config.json", "mamba_conv_bias", err));
    OZ_TRY(oz_json_bool(&proj_bias, c, "config.json", "mamba_proj_bias", err));
    d->features |= OZ_F_DT_BIAS | (conv_bias ? OZ_F_CONV_BIAS : 0) | (proj_bias ? OZ_F_SSM_BIAS : 0);
    return OZ_OK;
}

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    d->n_ropes = 0;
    OZ_TRY(oz_experts_read(d, c, &(oz_expert_keys){"num_experts", "intermediate_size", NULL}, err));
    if (d->n_experts == 1) d->n_experts = 0; /* which is a plain feed-forward, without a router */
    d->route_raw = true;
    OZ_TRY(others_read(d->plain, d, c, (const char *const[]){"expert_layer_period", "expert_layer_offset"}, 2, 1, err));
    OZ_TRY(others_read(d->scans, d, c, (const char *const[]){"attn_layer_period", "attn_layer_offset"}, 8, 4, err));
    OZ_NEED(d->glu == OZ_GLU_SILU, err, OZ_E_UNSUPPORTED, "config.json.hidden_act: %s is not run here with model_type \"jamba\", whose layers that scan take silu", oz_json_show(json_object_get(c, "hidden_act")));
    OZ_NEED(d->window == 0, err, OZ_E_UNSUPPORTED, "config.json.sliding_window: %lld is not run here with model_type \"jamba\": readers differ on whether its layers see a window", (long long)d->window);
    return mamba_read(d, c, err);
}

static oz_layer_kind layer(const oz_dims *d, int64_t i) {
    oz_layer_kind k = oz_layer_sparse(d, i);
    k.rope = -1;
    if (oz_layers_has(d->scans, i)) k.mixer = OZ_MIXER_MAMBA, k.state = OZ_STATE_SLOT;
    return k;
}

const oz_arch oz_arch_jamba = {
    .model_type = "jamba", .tables = tables, .defaults = {.max_position = 262144, .n_experts = 16, .top_k = 2, .ssm_state = 16, .ssm_conv = 4}, .config = config, .layer = layer};
