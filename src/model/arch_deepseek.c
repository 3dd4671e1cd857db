/* DeepSeek's mixtures of experts. The first mixture of experts (deepseek-ai/deepseek-moe-16b, modeling_deepseek.py of its repository) has Llama's attention; the first layers are dense, the others have
 * many narrow experts, weighted by the softmax over all as it is, beside a feed-forward that every token takes: the shared experts, in one.
 * The second (transformers DeepseekV2ForCausalLM) has latent attention, may choose among the experts of few groups only, and scales their weights. The third
 * (transformers DeepseekV3ForCausalLM) scores experts by sigmoids, chooses them with a bias that is learned beside, and groups by the sum of their best two. */
#include <math.h>
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

/* What every model of the family says of its experts; null or none: it has none. first, n_shared: where it is silent. */
static oz_status experts_of(oz_dims *d, const json_t *c, int64_t first, int64_t n_shared, oz_err *err) {
    int64_t freq = 1;
    int renormalised = !d->route_raw;
    const char *run = d->route_sigmoid ? "sigmoid" : "softmax", *scores = run;
    if (!json_is_integer(json_object_get(c, "n_routed_experts"))) return OZ_OK;
    OZ_TRY(oz_experts_read(d, c, &(oz_expert_keys){"n_routed_experts", "moe_intermediate_size", NULL}, err));
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
    OZ_NEED(strcmp(scores, run) == 0, err, OZ_E_UNSUPPORTED, "config.json.scoring_func: \"%s\" is not run here; known: %s", scores, run);
    return OZ_OK;
}

static oz_status experts_config(oz_dims *d, const json_t *c, oz_err *err) { return experts_of(d, c, 0, 0, err); }

const oz_arch oz_arch_deepseek = {
    .model_type = "deepseek", .tables = tables, .defaults = {.expert_ffn = 1407, .route_raw = true}, .config = experts_config, .layer = oz_layer_sparse};

#define ATTN "model.layers.%d.self_attn"
static const oz_arch_row rows_mla[] = {
    {"model.layers.%d.input_layernorm", "RMSNorm", OZ_SLOT_ATTN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {ATTN ".q_proj", "Linear", OZ_SLOT_Q, OZ_ROLE_ATTN_Q, OZ_DIM_Q, OZ_DIM_HIDDEN, 0, OZ_F_Q_LATENT, 0},
    {ATTN ".q_a_proj", "Linear", OZ_SLOT_Q_A, OZ_ROLE_ATTN_Q_A, OZ_DIM_Q_RANK, OZ_DIM_HIDDEN, OZ_F_Q_LATENT, 0, OZ_F_QKV_BIAS},
    {ATTN ".q_a_layernorm", "RMSNorm", OZ_SLOT_Q_A_NORM, OZ_ROLE_NORM, OZ_DIM_Q_RANK, OZ_DIM_NONE, OZ_F_Q_LATENT, 0, 0},
    {ATTN ".q_b_proj", "Linear", OZ_SLOT_Q, OZ_ROLE_ATTN_Q_B, OZ_DIM_Q, OZ_DIM_Q_RANK, OZ_F_Q_LATENT, 0, 0},
    {ATTN ".kv_a_proj_with_mqa", "Linear", OZ_SLOT_KV_A, OZ_ROLE_ATTN_KV_A, OZ_DIM_KV_A, OZ_DIM_HIDDEN, 0, 0, OZ_F_QKV_BIAS},
    {ATTN ".kv_a_layernorm", "RMSNorm", OZ_SLOT_KV_A_NORM, OZ_ROLE_NORM, OZ_DIM_KV_RANK, OZ_DIM_NONE, 0, 0, 0},
    {ATTN ".kv_b_proj", "Linear", OZ_SLOT_KV_B, OZ_ROLE_ATTN_KV_B, OZ_DIM_KV_B, OZ_DIM_KV_RANK, 0, 0, 0},
    {ATTN ".o_proj", "Linear", OZ_SLOT_O, OZ_ROLE_ATTN_O, OZ_DIM_HIDDEN, OZ_DIM_ATTN_OUT, 0, 0, OZ_F_O_BIAS},
    {0}};
static const oz_arch_row *const tables_v2[] = {oz_rows_top, rows_mla, oz_rows_ffn_norm, oz_rows_gated_ffn, oz_rows_experts, rows_shared, NULL};

/* How experts are chosen, and with which scores a method is published. */
static const struct { const char *method; bool sigmoid, by_group, best_two; } methods[] = {{"greedy", false, false, false}, {"group_limited_greedy", false, true, false}, {"noaux_tc", true, true, true}};

static oz_status groups_read(oz_dims *d, const json_t *c, oz_err *err) {
    const char *method = d->route_sigmoid ? "noaux_tc" : "greedy";
    size_t i = 0, n = sizeof methods / sizeof *methods;
    OZ_TRY(oz_json_str(&method, c, "config.json", "topk_method", err));
    while (i < n && (strcmp(method, methods[i].method) != 0 || methods[i].sigmoid != d->route_sigmoid)) i++;
    OZ_NEED(i < n, err, OZ_E_UNSUPPORTED, "config.json.topk_method: \"%s\" is not run here; known: %s", method, d->route_sigmoid ? "noaux_tc" : "greedy, group_limited_greedy");
    if (!methods[i].by_group) return OZ_OK;
    d->route_best_two = methods[i].best_two;
    OZ_TRY(oz_json_int(&d->n_groups, c, "config.json", "n_group", 1, OZ_MAX_GROUPS, err));
    OZ_TRY(oz_json_int(&d->top_groups, c, "config.json", "topk_group", 1, d->n_groups, err));
    OZ_NEED(d->n_groups && d->top_groups, err, OZ_E_FORMAT, "config.json.n_group, topk_group: missing, needed by topk_method \"%s\"", method);
    OZ_NEED(d->n_experts % d->n_groups == 0, err, OZ_E_FORMAT, "config.json.n_group: must divide n_routed_experts %lld, found %lld", (long long)d->n_experts, (long long)d->n_groups);
    OZ_NEED(!d->route_best_two || d->n_experts / d->n_groups >= 2, err, OZ_E_FORMAT, "config.json.n_group: groups of at least 2 experts are needed, found %lld experts in %lld", (long long)d->n_experts, (long long)d->n_groups);
    const int64_t open = d->n_experts / d->n_groups * d->top_groups;
    OZ_NEED(d->top_k <= open, err, OZ_E_FORMAT, "config.json.num_experts_per_tok: topk_group leaves %lld experts to choose from, found %lld", (long long)open, (long long)d->top_k);
    return OZ_OK;
}

static oz_status heads_read(oz_dims *d, const json_t *c, oz_err *err) {
    enum { MAX = 1 << 14 };
    int64_t nope = 128;
    d->rope_dim = 64, d->v_dim = 128;
    const json_t *q = json_object_get(c, "q_lora_rank");
    if (json_is_null(q)) d->q_rank = 0;
    const struct { const char *key; int64_t *out; } ints[] = {
        {"qk_nope_head_dim", &nope}, {"qk_rope_head_dim", &d->rope_dim}, {"v_head_dim", &d->v_dim}, {"kv_lora_rank", &d->kv_rank}, {"q_lora_rank", &d->q_rank}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) OZ_TRY(oz_json_int(ints[i].out, c, "config.json", ints[i].key, 1, MAX, err));
    OZ_NEED(d->rope_dim % 2 == 0, err, OZ_E_FORMAT, "config.json.qk_rope_head_dim: must be even, found %lld", (long long)d->rope_dim);
    d->head_dim = nope + d->rope_dim, d->n_heads_kv = d->n_heads;
    d->attn_scale = 1 / sqrt((double)d->head_dim);
    d->features |= OZ_F_MSCALE | (d->q_rank ? OZ_F_Q_LATENT : 0);
    return OZ_OK;
}

static oz_status config_v2(oz_dims *d, const json_t *c, oz_err *err) {
    OZ_TRY(heads_read(d, c, err));
    OZ_TRY(experts_config(d, c, err));
    if (!d->n_experts) return OZ_OK;
    OZ_NEED(d->route_raw, err, OZ_E_UNSUPPORTED, "config.json.norm_topk_prob: true is not run here with model_type \"deepseek_v2\": libraries differ on it");
    OZ_TRY(oz_json_float(&d->route_scale, c, "config.json", "routed_scaling_factor", 1e-6, 1e6, err));
    return groups_read(d, c, err);
}

static oz_layer_kind layer_v2(const oz_dims *d, int64_t i) {
    oz_layer_kind k = oz_layer_sparse(d, i);
    k.mixer = OZ_MIXER_MLA;
    return k;
}

/* head_dim: what a config says of it is not this; any value keeps the shared reader from deriving one. */
const oz_arch oz_arch_deepseek_v2 = {.model_type = "deepseek_v2",
                                     .tables = tables_v2,
                                     .defaults = {.expert_ffn = 1407, .route_raw = true, .head_dim = 64, .kv_rank = 512, .q_rank = 1536},
                                     .config = config_v2,
                                     .layer = layer_v2};

static const oz_arch_row rows_route_bias[] = {
    {MLP ".gate.e_score_correction_bias", "Parameter", OZ_SLOT_ROUTER_BIAS, OZ_ROLE_ROUTER_BIAS, OZ_DIM_EXPERTS, OZ_DIM_NONE, 0, 0, 0},
    {0}};
static const oz_arch_row *const tables_v3[] = {oz_rows_top, rows_mla, oz_rows_ffn_norm, oz_rows_gated_ffn, oz_rows_experts, rows_route_bias, rows_shared, NULL};
static const char *const honours_v3[] = {"rope_interleave", NULL};

static oz_status config_v3(oz_dims *d, const json_t *c, oz_err *err) {
    int pairs = 1;
    OZ_TRY(oz_json_bool(&pairs, c, "config.json", "rope_interleave", err));
    OZ_NEED(pairs, err, OZ_E_UNSUPPORTED, "config.json.rope_interleave: false is not run here with model_type \"deepseek_v3\"");
    OZ_TRY(heads_read(d, c, err));
    OZ_TRY(experts_of(d, c, 3, 1, err));
    if (!d->n_experts) return OZ_OK;
    OZ_TRY(oz_json_float(&d->route_scale, c, "config.json", "routed_scaling_factor", 1e-6, 1e6, err));
    return groups_read(d, c, err);
}

const oz_arch oz_arch_deepseek_v3 = {.model_type = "deepseek_v3",
                                     .tables = tables_v3,
                                     .defaults = {.expert_ffn = 2048, .head_dim = 64, .kv_rank = 512, .q_rank = 1536, .top_k = 8, .n_groups = 8, .top_groups = 4, .route_scale = 2.5, .route_sigmoid = true},
                                     .honours = honours_v3,
                                     .config = config_v3,
                                     .layer = layer_v2};
