/* What a config says that architectures have in common, over the defaults of its architecture. Keys that change the mathematics of some model are
 * listed here: one that an architecture does not honour must stand at the value at which it changes nothing. */
#include <math.h>
#include <string.h>
#include "base/json.h"
#include "model/internal.h"

/* neutral NAN: no number is. */
static const struct { const char *key; double neutral; } mathematics[] = {
    {"attn_logit_softcapping", 0}, {"final_logit_softcapping", 0}, {"query_pre_attn_scalar", NAN}, {"partial_rotary_factor", 1}, {"rope_local_base_freq", NAN},
    {"use_sliding_window", 0},     {"sliding_window_pattern", 1},  {"embedding_multiplier", 1},    {"residual_multiplier", 1},   {"attention_multiplier", NAN},
    {"logits_scaling", 1},         {"logit_scale", 1},             {"scale_emb", 1},               {"scale_depth", NAN},         {"clip_qkv", 0},
    {"use_qk_norm", 0},            {"qk_layernorm", 0},            {"use_mrope", 0},               {"use_bidirectional_attention", 0}, {"use_parallel_residual", 0},
    {"alibi", 0},                  {"attention_chunk_size", 0},    {"no_rope_layers", 0},          {"no_rope_layer_interval", 0}, {"rope_interleave", 0},
    {"rope_interleaved", 0},       {"qkv_bias", 0},                {"attn_temperature_tuning", 0}, {"add_cross_attention", 0},
    {"lm_head_bias", 0}};

static bool is_neutral(const json_t *v, double neutral) {
    if (json_is_array(v)) return json_array_size(v) == 0;
    return !v || json_is_null(v) || (json_is_boolean(v) ? json_is_true(v) == (neutral == 1) : json_is_number(v) && json_number_value(v) == neutral);
}

static bool honours(const oz_arch *a, const char *key) {
    const char *const *h = a->honours;
    while (h && *h && strcmp(*h, key) != 0) h++;
    return h && *h;
}

static oz_status mathematics_check(const oz_arch *a, const json_t *c, oz_err *err) {
    for (size_t i = 0; i < sizeof mathematics / sizeof *mathematics; i++) {
        const char *key = mathematics[i].key;
        const json_t *v = json_object_get(c, key);
        OZ_NEED(honours(a, key) || is_neutral(v, mathematics[i].neutral), err, OZ_E_UNSUPPORTED, "config.json.%s: %s is not run here with model_type \"%s\"", key, oz_json_show(v),
                a->model_type);
    }
    const json_t *partial = json_object_get(json_object_get(c, "rope_parameters"), "partial_rotary_factor");
    OZ_NEED(honours(a, "partial_rotary_factor") || is_neutral(partial, 1), err, OZ_E_UNSUPPORTED, "config.json.rope_parameters.partial_rotary_factor: %s is not run here with model_type \"%s\"",
            oz_json_show(partial), a->model_type);
    return OZ_OK;
}

static oz_status eos_read(oz_dims *d, const json_t *config, oz_err *err) {
    const json_t *e = json_object_get(config, "eos_token_id");
    int64_t bos = -1;
    OZ_TRY(oz_json_int(&bos, config, "config.json", "bos_token_id", 0, INT32_MAX, err));
    d->bos_id = (int32_t)bos;
    if (!e || json_is_null(e)) return OZ_OK;
    size_t n = json_is_array(e) ? json_array_size(e) : 1, cap = sizeof d->eos_ids / sizeof *d->eos_ids;
    OZ_NEED(n <= cap, err, OZ_E_UNSUPPORTED, "config.json.eos_token_id: at most %zu ids, found %zu", cap, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(e) ? json_array_get(e, i) : e;
        OZ_NEED(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX, err, OZ_E_FORMAT,
                "config.json.eos_token_id: must be an id or a list of ids, found %s", oz_json_show(v));
        d->eos_ids[d->n_eos++] = (int32_t)json_integer_value(v);
    }
    return OZ_OK;
}

static oz_status ints_read(oz_dims *d, const json_t *c, oz_err *err) {
    enum { BIG = 1 << 28 };
    const struct { const char *key; int64_t *out; int64_t max; bool need; } ints[] = {
        {"vocab_size", &d->vocab_size, BIG, true},           {"hidden_size", &d->hidden_size, 1 << 20, true},
        {"intermediate_size", &d->intermediate_size, BIG, true}, {"num_hidden_layers", &d->n_layers, OZ_MAX_LAYERS, true},
        {"num_attention_heads", &d->n_heads, 1 << 16, true}, {"num_key_value_heads", &d->n_heads_kv, 1 << 16, false},
        {"head_dim", &d->head_dim, 1 << 14, false},          {"max_position_embeddings", &d->max_position, 1 << 30, false}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        OZ_TRY(oz_json_int(ints[i].out, c, "config.json", ints[i].key, 1, ints[i].max, err));
        OZ_NEED(!ints[i].need || *ints[i].out, err, OZ_E_FORMAT, "config.json.%s: missing", ints[i].key);
    }
    if (!d->n_heads_kv) d->n_heads_kv = d->n_heads;
    OZ_NEED(d->n_heads % d->n_heads_kv == 0, err, OZ_E_FORMAT, "config.json.num_key_value_heads: must divide num_attention_heads %lld, found %lld",
            (long long)d->n_heads, (long long)d->n_heads_kv);
    if (!d->head_dim) {
        OZ_NEED(d->hidden_size % d->n_heads == 0, err, OZ_E_FORMAT, "config.json.num_attention_heads: must divide hidden_size %lld where head_dim is absent, found %lld",
                (long long)d->hidden_size, (long long)d->n_heads);
        d->head_dim = d->hidden_size / d->n_heads;
    }
    OZ_NEED(d->head_dim % 2 == 0, err, OZ_E_FORMAT, "config.json.head_dim: must be even, found %lld", (long long)d->head_dim);
    return OZ_OK;
}

static oz_status activation_read(oz_dims *d, const oz_arch *a, const json_t *c, oz_err *err) {
    static const struct { const char *name; oz_glu glu; } known[] = {{"silu", OZ_GLU_SILU}, {"swish", OZ_GLU_SILU}, {"gelu_pytorch_tanh", OZ_GLU_GELU_TANH}, {"gelu_new", OZ_GLU_GELU_TANH}};
    const char *key = a->act_key ? a->act_key : "hidden_act", *act = NULL;
    OZ_TRY(oz_json_str(&act, c, "config.json", key, err));
    if (!act) return OZ_OK;
    size_t i = 0, n = sizeof known / sizeof *known;
    while (i < n && strcmp(known[i].name, act) != 0) i++;
    OZ_NEED(i < n, err, OZ_E_UNSUPPORTED, "config.json.%s: \"%s\" is not run here; known: silu, gelu_pytorch_tanh", key, act);
    d->glu = known[i].glu;
    return OZ_OK;
}

oz_status oz_slide_all(oz_dims *d, const json_t *c, oz_err *err) {
    (void)c, (void)err;
    for (int64_t i = 0; i < d->n_layers; i++) oz_dims_slide(d, i);
    return OZ_OK;
}

oz_status oz_experts_read(oz_dims *d, const json_t *c, const oz_expert_keys *keys, oz_err *err) {
    const json_t *n = json_object_get(c, keys->n_experts);
    OZ_TRY(oz_json_int(&d->n_experts, c, "config.json", (n && !json_is_null(n)) || !keys->newer ? keys->n_experts : keys->newer, 1, 1 << 12, err));
    OZ_TRY(oz_json_int(&d->top_k, c, "config.json", "num_experts_per_tok", 1, d->n_experts, err));
    OZ_NEED(d->top_k >= 1 && d->top_k <= d->n_experts, err, OZ_E_FORMAT, "config.json.num_experts_per_tok: missing, and that would mean %lld of %lld experts", (long long)d->top_k, (long long)d->n_experts);
    return oz_json_int(&d->expert_ffn, c, "config.json", keys->width, 1, 1 << 28, err);
}

oz_status oz_window_from_read(oz_dims *d, const json_t *c, oz_err *err) {
    int use = 0;
    int64_t from = 28;
    OZ_TRY(oz_json_bool(&use, c, "config.json", "use_sliding_window", err));
    OZ_TRY(oz_json_int(&from, c, "config.json", "max_window_layers", 0, 1 << 20, err));
    if (!use) d->window = 0;
    for (int64_t i = from; use && i < d->n_layers; i++) oz_dims_slide(d, i);
    return OZ_OK;
}

/* layer_types, where the architecture honours it, has the last word on who slides; else it may only say what is so anyway. */
static oz_status layer_types_read(oz_dims *d, const oz_arch *a, const json_t *c, oz_err *err) {
    const json_t *types = json_object_get(c, "layer_types");
    if (!types || json_is_null(types)) return OZ_OK;
    const bool follows = honours(a, "layer_types");
    OZ_NEED(json_is_array(types) && json_array_size(types) == (size_t)d->n_layers, err, OZ_E_FORMAT, "config.json.layer_types: must be a list of %lld kinds of layer, found %zu",
            (long long)d->n_layers, json_array_size(types));
    for (int64_t i = 0; i < d->n_layers; i++) {
        const json_t *v = json_array_get(types, (size_t)i);
        const char *s = json_string_value(v);
        const bool slides = s && strcmp(s, "sliding_attention") == 0;
        OZ_NEED(slides || (s && strcmp(s, "full_attention") == 0), err, OZ_E_UNSUPPORTED, "config.json.layer_types[%lld]: must be full_attention or sliding_attention, found %s", (long long)i,
                oz_json_show(v));
        OZ_NEED(!slides || d->window, err, OZ_E_FORMAT, "config.json.layer_types[%lld]: sliding_attention, but there is no sliding_window", (long long)i);
        OZ_NEED(follows || slides == (oz_dims_slides(d, i) && d->window), err, OZ_E_UNSUPPORTED, "config.json.layer_types[%lld]: %s is not run here with model_type \"%s\"", (long long)i, s, a->model_type);
        if (slides) oz_dims_slide(d, i);
        else d->sliding[i / 64] &= ~((uint64_t)1 << i % 64);
    }
    return OZ_OK;
}

static oz_status window_read(oz_dims *d, const json_t *c, oz_err *err) {
    const json_t *v = json_object_get(c, "sliding_window");
    if (json_is_null(v)) d->window = 0; /* none, which is not what an absent one means */
    return oz_json_int(&d->window, c, "config.json", "sliding_window", 1, 1 << 30, err);
}

/* Numbers of attention and of the head, where the architecture has them; null means none. */
static oz_status scores_read(oz_dims *d, const oz_arch *a, const json_t *c, oz_err *err) {
    double pre_attn = 0;
    const struct { const char *key; double *out; } floats[] = {
        {"attn_logit_softcapping", &d->attn_softcap}, {"final_logit_softcapping", &d->final_softcap}, {"query_pre_attn_scalar", &pre_attn}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        if (!honours(a, floats[i].key)) continue;
        if (json_is_null(json_object_get(c, floats[i].key))) *floats[i].out = 0;
        OZ_TRY(oz_json_float(floats[i].out, c, "config.json", floats[i].key, 1e-6, 1e9, err));
    }
    if (pre_attn > 0) d->attn_scale = 1.0 / sqrt(pre_attn);
    return OZ_OK;
}

static oz_status rope_dim_read(oz_dims *d, const oz_arch *a, const json_t *c, oz_err *err) {
    static const char key[] = "partial_rotary_factor";
    double share = 1;
    if (honours(a, key)) {
        OZ_TRY(oz_json_float(&share, c, "config.json", key, 0.0, 1.0, err));
        const json_t *inside = json_object_get(c, "rope_parameters");
        if (json_is_object(inside)) OZ_TRY(oz_json_float(&share, inside, "config.json.rope_parameters", key, 0.0, 1.0, err));
    }
    d->v_dim = d->head_dim;
    d->rope_dim = (int64_t)((double)d->head_dim * share);
    OZ_NEED(d->rope_dim >= 2 && d->rope_dim % 2 == 0, err, OZ_E_FORMAT, "config.json.%s: %g of head_dim %lld must be an even number of columns", key, share, (long long)d->head_dim);
    return OZ_OK;
}

oz_status oz_dims_read(oz_dims *d, const oz_arch *a, const json_t *c, oz_err *err) {
    *d = a->defaults;
    if (!d->max_position) d->max_position = 2048;
    if (!d->n_ropes) d->n_ropes = 1;
    if (d->rms_norm_eps == 0) d->rms_norm_eps = 1e-6;
    OZ_TRY(mathematics_check(a, c, err));
    OZ_TRY(ints_read(d, c, err));
    OZ_TRY(oz_json_float(&d->rms_norm_eps, c, "config.json", "rms_norm_eps", 0.0, 1.0, err));
    OZ_TRY(activation_read(d, a, c, err));
    static const struct { const char *key; unsigned features; } flags[] = {
        {"attention_bias", OZ_F_QKV_BIAS | OZ_F_O_BIAS}, {"mlp_bias", OZ_F_MLP_BIAS}, {"tie_word_embeddings", OZ_F_TIED}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int on = (d->features & flags[i].features) == flags[i].features;
        OZ_TRY(oz_json_bool(&on, c, "config.json", flags[i].key, err));
        d->features = on ? d->features | flags[i].features : d->features & ~flags[i].features;
    }
    OZ_TRY(window_read(d, c, err));
    OZ_TRY(scores_read(d, a, c, err));
    OZ_TRY(rope_dim_read(d, a, c, err));
    if (a->config) OZ_TRY(a->config(d, c, err));
    OZ_TRY(layer_types_read(d, a, c, err));
    OZ_TRY(oz_ropes_read(d, c, err));
    if (d->features & OZ_F_MSCALE) d->attn_scale *= d->ropes[0].score_factor;
    return eos_read(d, c, err);
}
