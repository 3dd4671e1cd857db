/* Architectures: the registry, the tensor tables that several share, and what a config says in both of the hub's spellings
 * (classic: rope_theta, rope_scaling, torch_dtype; transformers 5: rope_parameters, dtype).
 *
 * To add a dense architecture: one file arch_<name>.c with its descriptor, one row in `registry`, one golden fixture. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "model/internal.h"

static const oz_arch *const registry[] = {&oz_arch_llama, &oz_arch_mixtral, &oz_arch_qwen3};

const oz_arch_row oz_rows_top[] = {
    {"model.embed_tokens", "Embedding", OZ_SLOT_EMBED, OZ_ROLE_EMBED, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, 0, 0, 0},
    {"model.norm", "RMSNorm", OZ_SLOT_FINAL_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"lm_head", "Linear", OZ_SLOT_HEAD, OZ_ROLE_HEAD, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, 0, OZ_F_TIED, 0},
    {0}};
const oz_arch_row oz_rows_gqa[] = {
    {"model.layers.%d.input_layernorm", "RMSNorm", OZ_SLOT_ATTN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.self_attn.q_proj", "Linear", OZ_SLOT_Q, OZ_ROLE_ATTN_Q, OZ_DIM_Q, OZ_DIM_HIDDEN, 0, 0, OZ_F_ATTN_BIAS},
    {"model.layers.%d.self_attn.k_proj", "Linear", OZ_SLOT_K, OZ_ROLE_ATTN_K, OZ_DIM_KV, OZ_DIM_HIDDEN, 0, 0, OZ_F_ATTN_BIAS},
    {"model.layers.%d.self_attn.v_proj", "Linear", OZ_SLOT_V, OZ_ROLE_ATTN_V, OZ_DIM_KV, OZ_DIM_HIDDEN, 0, 0, OZ_F_ATTN_BIAS},
    {"model.layers.%d.self_attn.o_proj", "Linear", OZ_SLOT_O, OZ_ROLE_ATTN_O, OZ_DIM_HIDDEN, OZ_DIM_Q, 0, 0, OZ_F_ATTN_BIAS},
    {0}};
const oz_arch_row oz_rows_qk_norm[] = {
    {"model.layers.%d.self_attn.q_norm", "RMSNorm", OZ_SLOT_Q_NORM, OZ_ROLE_NORM, OZ_DIM_HEAD, OZ_DIM_NONE, OZ_F_QK_NORM, 0, 0},
    {"model.layers.%d.self_attn.k_norm", "RMSNorm", OZ_SLOT_K_NORM, OZ_ROLE_NORM, OZ_DIM_HEAD, OZ_DIM_NONE, OZ_F_QK_NORM, 0, 0},
    {0}};
const oz_arch_row oz_rows_gated_ffn[] = {
    {"model.layers.%d.post_attention_layernorm", "RMSNorm", OZ_SLOT_FFN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.mlp.gate_proj", "Linear", OZ_SLOT_GATE, OZ_ROLE_FFN_GATE, OZ_DIM_FFN, OZ_DIM_HIDDEN, 0, 0, OZ_F_MLP_BIAS},
    {"model.layers.%d.mlp.up_proj", "Linear", OZ_SLOT_UP, OZ_ROLE_FFN_UP, OZ_DIM_FFN, OZ_DIM_HIDDEN, 0, 0, OZ_F_MLP_BIAS},
    {"model.layers.%d.mlp.down_proj", "Linear", OZ_SLOT_DOWN, OZ_ROLE_FFN_DOWN, OZ_DIM_HIDDEN, OZ_DIM_FFN, 0, 0, OZ_F_MLP_BIAS},
    {0}};

const char *oz_role_name(oz_role r) {
    static const char *const names[OZ_ROLE_COUNT] = {"embed", "head", "norm", "attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down",
                                                      "router", "expert_gate", "expert_up", "expert_down"};
    return names[r];
}

bool oz_role_by_name(oz_role r) { return r == OZ_ROLE_HEAD || r == OZ_ROLE_ROUTER; }

int64_t oz_dim_get(const oz_dims *d, oz_dim dim) {
    switch (dim) {
    case OZ_DIM_VOCAB: return d->vocab_size;
    case OZ_DIM_HIDDEN: return d->hidden_size;
    case OZ_DIM_FFN: return d->intermediate_size;
    case OZ_DIM_Q: return d->n_heads * d->head_dim;
    case OZ_DIM_KV: return d->n_heads_kv * d->head_dim;
    case OZ_DIM_HEAD: return d->head_dim;
    case OZ_DIM_EXPERTS: return d->n_experts;
    case OZ_DIM_NONE: break;
    }
    return 0;
}

/* ---- config ---- */

static const struct { const char *name; oz_rope_type type; } rope_types[] = {
    {"default", OZ_ROPE_DEFAULT}, {"linear", OZ_ROPE_LINEAR}, {"llama3", OZ_ROPE_LLAMA3}};

static oz_status rope_read(oz_rope_cfg *r, const json_t *config, int64_t max_position, oz_err *err) {
    r->theta = 10000.0;
    r->factor = 1.0;
    OZ_TRY(oz_json_float(&r->theta, config, "config.json", "rope_theta", 1.0, 1e15, err));
    const char *where = "config.json.rope_parameters";
    const json_t *s = json_object_get(config, "rope_parameters");
    if (!s || json_is_null(s)) where = "config.json.rope_scaling", s = json_object_get(config, "rope_scaling");
    if (!s || json_is_null(s)) return OZ_OK;
    OZ_NEED(json_is_object(s), err, OZ_E_FORMAT, "%s: must be an object, found %s", where, oz_json_show(s));
    OZ_TRY(oz_json_float(&r->theta, s, where, "rope_theta", 1.0, 1e15, err));
    const char *type = "default";
    OZ_TRY(oz_json_str(&type, s, where, "type", err));
    OZ_TRY(oz_json_str(&type, s, where, "rope_type", err));
    size_t i = 0, n = sizeof rope_types / sizeof *rope_types;
    while (i < n && strcmp(rope_types[i].name, type) != 0) i++;
    OZ_NEED(i < n, err, OZ_E_UNSUPPORTED, "%s.rope_type: \"%s\" is not run here; known: default, linear, llama3", where, type);
    r->type = rope_types[i].type;
    if (r->type == OZ_ROPE_DEFAULT) return OZ_OK;
    OZ_NEED(json_object_get(s, "factor"), err, OZ_E_FORMAT, "%s.factor: missing, needed by rope_type \"%s\"", where, type);
    OZ_TRY(oz_json_float(&r->factor, s, where, "factor", 1e-3, 1e6, err));
    if (r->type != OZ_ROPE_LLAMA3) return OZ_OK;
    r->low_freq_factor = 1.0, r->high_freq_factor = 4.0, r->original_max = max_position;
    OZ_TRY(oz_json_float(&r->low_freq_factor, s, where, "low_freq_factor", 1e-6, 1e6, err));
    OZ_TRY(oz_json_float(&r->high_freq_factor, s, where, "high_freq_factor", 1e-6, 1e6, err));
    OZ_TRY(oz_json_int(&r->original_max, s, where, "original_max_position_embeddings", 1, 1 << 30, err));
    OZ_NEED(r->high_freq_factor > r->low_freq_factor, err, OZ_E_FORMAT, "%s.high_freq_factor: must be above low_freq_factor %g, found %g",
            where, r->low_freq_factor, r->high_freq_factor);
    return OZ_OK;
}

void oz_rope_inv_freq(float *out, const oz_rope_cfg *r, int64_t head_dim) {
    for (int64_t i = 0; i < head_dim / 2; i++) {
        /* The reference rounds the power to f32 first and scales in f32. */
        double f = (float)(1.0 / pow(r->theta, (double)(2 * i) / (double)head_dim));
        if (r->type == OZ_ROPE_LINEAR) f /= r->factor;
        if (r->type == OZ_ROPE_LLAMA3) {
            double wavelen = 2.0 * M_PI / f, old = (double)r->original_max;
            double low = old / r->low_freq_factor, high = old / r->high_freq_factor;
            double smooth = (old / wavelen - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
            if (wavelen > low) f /= r->factor;
            else if (wavelen >= high) f = (1.0 - smooth) * f / r->factor + smooth * f;
        }
        out[i] = (float)f;
    }
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

/* Keys that every supported config has in common; what an architecture adds or defaults otherwise is in its own config(). */
static oz_status dims_read(oz_dims *d, const json_t *c, oz_err *err) {
    enum { BIG = 1 << 28 };
    const struct { const char *key; int64_t *out; int64_t max; bool need; } ints[] = {
        {"vocab_size", &d->vocab_size, BIG, true},           {"hidden_size", &d->hidden_size, 1 << 20, true},
        {"intermediate_size", &d->intermediate_size, BIG, true}, {"num_hidden_layers", &d->n_layers, 10000, true},
        {"num_attention_heads", &d->n_heads, 1 << 16, true}, {"num_key_value_heads", &d->n_heads_kv, 1 << 16, false},
        {"head_dim", &d->head_dim, 1 << 14, false},          {"max_position_embeddings", &d->max_position, 1 << 30, false}};
    d->max_position = 2048;
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
    d->rms_norm_eps = 1e-6;
    OZ_TRY(oz_json_float(&d->rms_norm_eps, c, "config.json", "rms_norm_eps", 0.0, 1.0, err));
    const char *act = "silu";
    OZ_TRY(oz_json_str(&act, c, "config.json", "hidden_act", err));
    OZ_NEED(strcmp(act, "silu") == 0, err, OZ_E_UNSUPPORTED, "config.json.hidden_act: only silu is run here, found \"%s\"", act);
    static const struct { const char *key; unsigned feature; } flags[] = {
        {"attention_bias", OZ_F_ATTN_BIAS}, {"mlp_bias", OZ_F_MLP_BIAS}, {"tie_word_embeddings", OZ_F_TIED}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int on = 0;
        OZ_TRY(oz_json_bool(&on, c, "config.json", flags[i].key, err));
        if (on) d->features |= flags[i].feature;
    }
    OZ_TRY(rope_read(&d->rope, c, d->max_position, err));
    return eos_read(d, c, err);
}

oz_status oz_arch_read(const oz_arch **arch, oz_dims *dims, const json_t *config, oz_err *err) {
    const char *type = NULL;
    OZ_TRY(oz_json_str(&type, config, "config.json", "model_type", err));
    OZ_NEED(type, err, OZ_E_FORMAT, "config.json.model_type: missing");
    *arch = NULL;
    for (size_t i = 0; i < sizeof registry / sizeof *registry; i++)
        if (strcmp(registry[i]->model_type, type) == 0) *arch = registry[i];
    OZ_NEED(*arch, err, OZ_E_UNSUPPORTED, "config.json.model_type: \"%s\" is not run here; known: llama, mixtral, qwen3", type);
    *dims = (oz_dims){0};
    OZ_TRY(dims_read(dims, config, err));
    return (*arch)->config(dims, config, err);
}

oz_dtype oz_arch_dtype(const json_t *config) {
    const json_t *t = json_object_get(config, "dtype");
    if (!json_is_string(t)) t = json_object_get(config, "torch_dtype");
    const char *name = json_is_string(t) ? json_string_value(t) : "bfloat16";
    for (int d = 0; d < OZ_DTYPE_COUNT; d++) {
        const char *torch = oz_dtype_get((oz_dtype)d)->torch;
        if (torch && strcmp(torch, name) == 0) return (oz_dtype)d;
    }
    return OZ_DTYPE_BF16;
}

/* ---- the list of tensors ---- */

static void list_add(oz_arch_list *l, size_t *cap, const oz_dims *d, const oz_arch_row *row, int layer, int expert, bool is_bias) {
    oz_grow((void **)&l->items, cap, l->n + 1, sizeof *l->items);
    char module[256];
    snprintf(module, sizeof module, row->module, layer, expert);
    l->items[l->n++] = (oz_arch_tensor){
        .name = oz_asprintf("%s.%s", module, is_bias ? "bias" : "weight"),
        .module = oz_strdup(module),
        .class_name = row->class_name,
        .role = row->role,
        .layer = layer,
        .expert = expert,
        .is_bias = is_bias,
        .rows = oz_dim_get(d, row->rows),
        .cols = is_bias ? 0 : oz_dim_get(d, row->cols),
        .slot = (int)row->slot,
    };
}

static void list_table(oz_arch_list *l, size_t *cap, const oz_dims *d, const oz_arch_row *table, int layer) {
    for (const oz_arch_row *r = table; r->module; r++) {
        if ((layer >= 0) != (r->slot >= OZ_SLOT_PER_LAYER)) continue;
        if ((d->features & r->need) != r->need || (d->features & r->unless)) continue;
        const bool per_expert = r->slot >= OZ_SLOT_PER_EXPERT;
        for (int e = 0; e < (per_expert ? d->n_experts : 1); e++) list_add(l, cap, d, r, layer, per_expert ? e : -1, false);
        if (d->features & r->bias) list_add(l, cap, d, r, layer, -1, true);
    }
}

oz_status oz_arch_list_new(oz_arch_list *out, const json_t *config, oz_err *err) {
    const oz_arch *arch;
    oz_dims d;
    *out = (oz_arch_list){0};
    OZ_TRY(oz_arch_read(&arch, &d, config, err));
    size_t cap = 0;
    for (int layer = -1; layer < d.n_layers; layer++)
        for (const oz_arch_row *const *t = arch->tables; *t; t++) list_table(out, &cap, &d, *t, layer);
    return OZ_OK;
}

void oz_arch_list_deinit(oz_arch_list *l) {
    for (size_t i = 0; i < l->n; i++) {
        oz_free(l->items[i].name);
        oz_free(l->items[i].module);
    }
    oz_free(l->items);
    *l = (oz_arch_list){0};
}

oz_module oz_arch_module(const oz_arch_tensor *t, const oz_ckpt *c) {
    oz_module m = {t->module, t->class_name, t->rows, t->cols};
    if (t->role == OZ_ROLE_ROUTER && !oz_scheme_is_stored(c, &m)) m.class_name = "Router";
    return m;
}
