/* Architectures: the registry, the tensor tables that several share, and the list of tensors that a config calls for.
 *
 * To add a dense architecture: one file arch_<name>.c with its descriptor, one row in `ARCHITECTURES`, one golden fixture. */
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "model/internal.h"

#define ARCHITECTURES(row) row(deepseek) row(deepseek_v2) row(deepseek_v3) row(gemma) row(gemma2) row(gemma3) row(gemma3_text) row(jamba) row(llama) row(mistral) row(mixtral) row(phi3) row(qwen2) row(qwen3) row(qwen3_moe)
#define DECLARE(name) extern const oz_arch oz_arch_##name;
#define ADDRESS(name) &oz_arch_##name,
ARCHITECTURES(DECLARE)
static const oz_arch *const registry[] = {ARCHITECTURES(ADDRESS)};

const oz_arch_row oz_rows_top[] = {
    {"model.embed_tokens", "Embedding", OZ_SLOT_EMBED, OZ_ROLE_EMBED, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, 0, 0, 0},
    {"model.norm", "RMSNorm", OZ_SLOT_FINAL_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"lm_head", "Linear", OZ_SLOT_HEAD, OZ_ROLE_HEAD, OZ_DIM_VOCAB, OZ_DIM_HIDDEN, 0, OZ_F_TIED, 0},
    {0}};
const oz_arch_row oz_rows_gqa[] = {
    {"model.layers.%d.input_layernorm", "RMSNorm", OZ_SLOT_ATTN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.self_attn.q_proj", "Linear", OZ_SLOT_Q, OZ_ROLE_ATTN_Q, OZ_DIM_Q, OZ_DIM_HIDDEN, 0, 0, OZ_F_QKV_BIAS},
    {"model.layers.%d.self_attn.k_proj", "Linear", OZ_SLOT_K, OZ_ROLE_ATTN_K, OZ_DIM_KV, OZ_DIM_HIDDEN, 0, 0, OZ_F_QKV_BIAS},
    {"model.layers.%d.self_attn.v_proj", "Linear", OZ_SLOT_V, OZ_ROLE_ATTN_V, OZ_DIM_KV, OZ_DIM_HIDDEN, 0, 0, OZ_F_QKV_BIAS},
    {"model.layers.%d.self_attn.o_proj", "Linear", OZ_SLOT_O, OZ_ROLE_ATTN_O, OZ_DIM_HIDDEN, OZ_DIM_Q, 0, 0, OZ_F_O_BIAS},
    {0}};
const oz_arch_row oz_rows_qk_norm[] = {
    {"model.layers.%d.self_attn.q_norm", "RMSNorm", OZ_SLOT_Q_NORM, OZ_ROLE_NORM, OZ_DIM_HEAD, OZ_DIM_NONE, OZ_F_QK_NORM, 0, 0},
    {"model.layers.%d.self_attn.k_norm", "RMSNorm", OZ_SLOT_K_NORM, OZ_ROLE_NORM, OZ_DIM_HEAD, OZ_DIM_NONE, OZ_F_QK_NORM, 0, 0},
    {0}};
const oz_arch_row oz_rows_ffn_norm[] = {
    {"model.layers.%d.post_attention_layernorm", "RMSNorm", OZ_SLOT_FFN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {0}};
const oz_arch_row oz_rows_sandwich[] = {
    {"model.layers.%d.post_attention_layernorm", "RMSNorm", OZ_SLOT_ATTN_POST_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.pre_feedforward_layernorm", "RMSNorm", OZ_SLOT_FFN_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {"model.layers.%d.post_feedforward_layernorm", "RMSNorm", OZ_SLOT_FFN_POST_NORM, OZ_ROLE_NORM, OZ_DIM_HIDDEN, OZ_DIM_NONE, 0, 0, 0},
    {0}};
const oz_arch_row oz_rows_gated_ffn[] = {
    {"model.layers.%d.mlp.gate_proj", "Linear", OZ_SLOT_GATE, OZ_ROLE_FFN_GATE, OZ_DIM_FFN, OZ_DIM_HIDDEN, 0, 0, OZ_F_MLP_BIAS},
    {"model.layers.%d.mlp.up_proj", "Linear", OZ_SLOT_UP, OZ_ROLE_FFN_UP, OZ_DIM_FFN, OZ_DIM_HIDDEN, 0, 0, OZ_F_MLP_BIAS},
    {"model.layers.%d.mlp.down_proj", "Linear", OZ_SLOT_DOWN, OZ_ROLE_FFN_DOWN, OZ_DIM_HIDDEN, OZ_DIM_FFN, 0, 0, OZ_F_MLP_BIAS},
    {0}};

#define EXPERT "model.layers.%d.mlp.experts.%d"
const oz_arch_row oz_rows_experts[] = {
    {"model.layers.%d.mlp.gate", "Linear", OZ_SLOT_ROUTER, OZ_ROLE_ROUTER, OZ_DIM_EXPERTS, OZ_DIM_HIDDEN, 0, 0, 0},
    {EXPERT ".gate_proj", "Linear", OZ_SLOT_EXPERT_GATE, OZ_ROLE_EXPERT_GATE, OZ_DIM_EXPERT_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {EXPERT ".up_proj", "Linear", OZ_SLOT_EXPERT_UP, OZ_ROLE_EXPERT_UP, OZ_DIM_EXPERT_FFN, OZ_DIM_HIDDEN, 0, 0, 0},
    {EXPERT ".down_proj", "Linear", OZ_SLOT_EXPERT_DOWN, OZ_ROLE_EXPERT_DOWN, OZ_DIM_HIDDEN, OZ_DIM_EXPERT_FFN, 0, 0, 0},
    {0}};

const char *oz_role_name(oz_role r) {
    static const char *const names[OZ_ROLE_COUNT] = {"embed", "head", "norm", "attn_q", "attn_k", "attn_v", "attn_o", "attn_qkv", "ffn_gate", "ffn_up", "ffn_down",
                                                      "ffn_gate_up", "router", "router_bias", "expert_gate", "expert_up", "expert_down", "attn_q_a", "attn_q_b", "attn_kv_a", "attn_kv_b", "ssm_in", "ssm_x", "ssm_dt", "ssm_out", "ssm_a", "ssm", "shared_gate", "shared_up", "shared_down"};
    return names[r];
}

bool oz_role_by_name(oz_role r) { return r == OZ_ROLE_HEAD || r == OZ_ROLE_ROUTER; }

bool oz_scheme_reaches(const oz_scheme *s, const oz_arch_tensor *t) {
    if (t->is_bias || strcmp(t->class_name, "Linear") != 0) return false;
    return s->experts ? t->expert >= 0 : !oz_role_by_name(t->role);
}

int64_t oz_dim_get(const oz_dims *d, oz_dim dim) {
    switch (dim) {
    case OZ_DIM_VOCAB: return d->vocab_size;
    case OZ_DIM_HIDDEN: return d->hidden_size;
    case OZ_DIM_FFN: return d->intermediate_size;
    case OZ_DIM_Q: return d->n_heads * d->head_dim;
    case OZ_DIM_KV: return d->n_heads_kv * d->head_dim;
    case OZ_DIM_HEAD: return d->head_dim;
    case OZ_DIM_EXPERTS: return d->n_experts;
    case OZ_DIM_QKV: return (d->n_heads + 2 * d->n_heads_kv) * d->head_dim;
    case OZ_DIM_GATE_UP: return 2 * d->intermediate_size;
    case OZ_DIM_EXPERT_FFN: return d->expert_ffn;
    case OZ_DIM_SHARED_FFN: return d->shared_ffn;
    case OZ_DIM_ATTN_OUT: return d->n_heads * d->v_dim;
    case OZ_DIM_Q_RANK: return d->q_rank;
    case OZ_DIM_KV_RANK: return d->kv_rank;
    case OZ_DIM_KV_A: return d->kv_rank + d->rope_dim;
    case OZ_DIM_KV_B: return d->n_heads * (d->head_dim - d->rope_dim + d->v_dim);
    case OZ_DIM_SSM: return d->ssm;
    case OZ_DIM_SSM_IN: return 2 * d->ssm;
    case OZ_DIM_SSM_STATE: return d->ssm_state;
    case OZ_DIM_SSM_CONV: return d->ssm_conv;
    case OZ_DIM_SSM_DT: return d->ssm_dt;
    case OZ_DIM_SSM_X: return d->ssm_dt + 2 * d->ssm_state;
    case OZ_DIM_NONE: break;
    }
    return 0;
}

oz_layer_kind oz_layer_dense(const oz_dims *d, int64_t i) {
    const bool slides = oz_dims_slides(d, i);
    return (oz_layer_kind){OZ_MIXER_GQA, OZ_FFN_GATED, OZ_STATE_KV, slides ? d->window : 0, slides && d->n_ropes > 1};
}

oz_layer_kind oz_layer_sparse(const oz_dims *d, int64_t i) {
    oz_layer_kind k = oz_layer_dense(d, i);
    if (d->n_experts && !oz_layers_has(d->plain, i)) k.ffn = OZ_FFN_MOE;
    return k;
}

static const oz_arch *find(const char *type) {
    for (size_t i = 0; type && i < sizeof registry / sizeof *registry; i++)
        if (strcmp(registry[i]->model_type, type) == 0) return registry[i];
    return NULL;
}

/* The config of the text part, with what the outer one says for both. */
static json_t *text_config(const json_t *config) {
    static const char *const both[] = {"bos_token_id", "eos_token_id", "tie_word_embeddings"};
    json_t *text = json_copy(json_object_get(config, "text_config"));
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        if (json_object_get(config, both[i])) json_object_set(text, both[i], json_object_get(config, both[i]));
    return text;
}

static oz_status text_read(const oz_arch **arch, oz_dims *dims, const json_t *config, oz_err *err) {
    const json_t *given = json_object_get(config, "text_config");
    const char *type = (*arch = (*arch)->text)->model_type;
    OZ_NEED(json_is_object(given), err, OZ_E_FORMAT, "config.json.text_config: must be an object, found %s", given ? oz_json_show(given) : "nothing");
    OZ_TRY(oz_json_str(&type, given, "config.json.text_config", "model_type", err));
    OZ_NEED(strcmp(type, (*arch)->model_type) == 0, err, OZ_E_UNSUPPORTED, "config.json.text_config.model_type: expected %s, found \"%s\"", (*arch)->model_type, type);
    json_t *text = text_config(config);
    const oz_status st = oz_dims_read(dims, *arch, text, err);
    json_decref(text);
    return st == OZ_OK ? st : oz_err_prefix(err, "text_config");
}

/* The types that scales and what is not quantized may have. */
static const oz_dtype model_dtypes[] = {OZ_DTYPE_BF16, OZ_DTYPE_F16, OZ_DTYPE_F32};

static oz_status dtype_check(const json_t *config, const char *key, oz_err *err) {
    const json_t *v = json_object_get(config, key);
    for (size_t i = 0; i < sizeof model_dtypes / sizeof *model_dtypes; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), oz_dtype_get(model_dtypes[i])->torch) == 0) return OZ_OK;
    OZ_NEED(!v || json_is_null(v), err, OZ_E_UNSUPPORTED, "config.json.%s: must be bfloat16, float16 or float32, found %s", key, oz_json_show(v));
    return OZ_OK;
}

oz_status oz_arch_read(const oz_arch **arch, oz_dims *dims, const json_t *config, oz_err *err) {
    const char *type = NULL;
    OZ_TRY(oz_json_str(&type, config, "config.json", "model_type", err));
    OZ_NEED(type, err, OZ_E_FORMAT, "config.json.model_type: missing");
    *arch = find(type);
    char known[256] = "";
    for (size_t i = 0, n = 0; i < sizeof registry / sizeof *registry && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", registry[i]->model_type);
    OZ_NEED(*arch, err, OZ_E_UNSUPPORTED, "config.json.model_type: \"%s\" is not run here; known: %s", type, known);
    OZ_TRY(dtype_check(config, "torch_dtype", err));
    OZ_TRY(dtype_check(config, "dtype", err));
    return (*arch)->text ? text_read(arch, dims, config, err) : oz_dims_read(dims, *arch, config, err);
}

oz_status oz_arch_max_len(int64_t *out, const json_t *config, oz_err *err) {
    const oz_arch *arch;
    oz_dims d;
    OZ_TRY(oz_arch_read(&arch, &d, config, err));
    *out = d.max_position;
    return OZ_OK;
}

int64_t oz_scans_count(const oz_arch *a, const oz_dims *d) {
    int64_t n = 0;
    for (int64_t i = 0; i < d->n_layers; i++) n += a->layer(d, i).state == OZ_STATE_SLOT;
    return n;
}

int64_t oz_slot_values(const oz_arch *a, const oz_dims *d) { return oz_scans_count(a, d) * d->ssm * (d->ssm_state + d->ssm_conv - 1); }

oz_status oz_arch_info_read(oz_arch_info *out, const json_t *config, oz_err *err) {
    const oz_arch *a;
    oz_dims d;
    OZ_TRY(oz_arch_read(&a, &d, config, err));
    *out = (oz_arch_info){a->model_type, d.vocab_size, d.hidden_size, d.intermediate_size, d.n_layers, d.n_heads, d.n_heads_kv, d.head_dim, d.max_position,
                          .n_scans = oz_scans_count(a, &d), .tied = d.features & OZ_F_TIED};
    if (d.n_experts) out->n_experts = d.n_experts, out->top_k = d.top_k, out->expert_ffn = d.expert_ffn, out->shared_ffn = d.shared_ffn;
    for (int64_t i = 0; i < d.n_layers; i++) {
        const oz_layer_kind k = a->layer(&d, i);
        if (k.window) out->window = k.window, out->n_windows++;
    }
    return OZ_OK;
}

oz_dtype oz_arch_dtype(const json_t *config) {
    const json_t *t = json_object_get(config, "dtype");
    if (!json_is_string(t)) t = json_object_get(config, "torch_dtype");
    for (size_t i = 0; json_is_string(t) && i < sizeof model_dtypes / sizeof *model_dtypes; i++)
        if (strcmp(oz_dtype_get(model_dtypes[i])->torch, json_string_value(t)) == 0) return model_dtypes[i];
    return model_dtypes[0];
}

/* ---- the list of tensors ---- */

enum { MAX_EXPERTS = 1 << 18 }; /* of all layers: ten times the largest known; what is planned of one takes about 2 KB */

/* Where the names of a text part inside a larger model begin, for what is in `model` and for the rest: as they are published, and as transformers holds
 * them. A model that is none has no prefix. */
typedef struct prefix { const char *model, *rest; } prefix;
static const prefix plain = {"model.", ""}, inside[] = {{"language_model.model.", "language_model."}, {"model.language_model.", ""}};

static prefix prefix_of(const json_t *config, const oz_ckpt *ckpt) {
    const oz_arch *a = find(json_string_value(json_object_get(config, "model_type")));
    if (!a || !a->text) return plain;
    size_t i = 0, n = sizeof inside / sizeof *inside;
    for (bool found = !ckpt; !found && i < n; i += !found) {
        char *name = oz_asprintf("%sembed_tokens.weight", inside[i].model);
        found = oz_ckpt_find(ckpt, name) != NULL;
        oz_free(name);
    }
    return inside[i < n ? i : 0];
}

static void list_add(oz_arch_list *l, size_t *cap, const oz_dims *d, const prefix *names, const oz_arch_row *row, int layer, int expert, bool is_bias) {
    oz_grow((void **)&l->items, cap, l->n + 1, sizeof *l->items);
    const bool in_model = strncmp(row->module, plain.model, strlen(plain.model)) == 0;
    char module[256];
    const int at = snprintf(module, sizeof module, "%s", in_model ? names->model : names->rest);
    snprintf(module + at, sizeof module - (size_t)at, row->module + (in_model ? strlen(plain.model) : 0), layer, expert);
    const bool conv = strcmp(row->class_name, "Conv1d") == 0, bare = strcmp(row->class_name, "Parameter") == 0;
    oz_arch_tensor *t = &l->items[l->n++];
    *t = (oz_arch_tensor){
        .name = bare ? oz_strdup(module) : oz_asprintf("%s.%s", module, is_bias ? "bias" : "weight"),
        .module = oz_strdup(module),
        .class_name = row->class_name,
        .role = row->role,
        .layer = layer,
        .expert = expert,
        .is_bias = is_bias,
        .rows = oz_dim_get(d, row->rows),
        .cols = is_bias ? 0 : oz_dim_get(d, row->cols),
        .slot = (int)row->slot,
        .plus = !is_bias && row->role == OZ_ROLE_NORM && (d->features & OZ_F_NORM_PLUS_1) ? 1.0f : 0.0f,
    };
    t->n_dims = t->cols ? 2 : 1, t->dims[0] = t->rows, t->dims[1] = t->cols;
    if (!t->cols || !(conv || bare)) return;
    if (conv) t->n_dims = 3, t->dims[1] = 1, t->dims[2] = t->cols;
    t->rows *= t->cols, t->cols = 0;
}

/* Slots that only layers with these mixers (a bit each), or with this feed-forward, have; the norms that are all layers' stand between. */
enum { GQA = 1 << OZ_MIXER_GQA, MLA = 1 << OZ_MIXER_MLA, MAMBA = 1 << OZ_MIXER_MAMBA, GATED = 1 << OZ_FFN_GATED, MOE = 1 << OZ_FFN_MOE, ALL = ~0 };
static const struct { oz_slot first, last; int mixers, ffns; } slots_of[] = {
    {OZ_SLOT_Q, OZ_SLOT_Q, GQA | MLA, ALL},         {OZ_SLOT_K, OZ_SLOT_V, GQA, ALL},    {OZ_SLOT_O, OZ_SLOT_O, GQA | MLA, ALL},       {OZ_SLOT_Q_NORM, OZ_SLOT_K_NORM, GQA, ALL},
    {OZ_SLOT_Q_A, OZ_SLOT_KV_B, MLA, ALL},          {OZ_SLOT_SSM_IN, OZ_SLOT_SSM_OUT, MAMBA, ALL}, {OZ_SLOT_GATE, OZ_SLOT_DOWN, ALL, GATED}, {OZ_SLOT_ROUTER, OZ_SLOT_EXPERT_DOWN, ALL, MOE}};

static bool has_slot(const oz_layer_kind *k, oz_slot s) {
    for (size_t i = 0; i < sizeof slots_of / sizeof *slots_of; i++)
        if (s >= slots_of[i].first && s <= slots_of[i].last) return slots_of[i].mixers >> k->mixer & slots_of[i].ffns >> k->ffn & 1;
    return true;
}

/* kind: of the layer, NULL: what is outside of the layers. */
static void list_table(oz_arch_list *l, size_t *cap, const oz_dims *d, const prefix *names, const oz_arch_row *table, int layer, const oz_layer_kind *kind) {
    for (const oz_arch_row *r = table; r->module; r++) {
        if (kind ? r->slot < OZ_SLOT_PER_LAYER || !has_slot(kind, r->slot) : r->slot >= OZ_SLOT_PER_LAYER) continue;
        if ((d->features & r->need) != r->need || (d->features & r->unless)) continue;
        const bool per_expert = r->slot >= OZ_SLOT_PER_EXPERT;
        for (int e = 0; e < (per_expert ? d->n_experts : 1); e++) list_add(l, cap, d, names, r, layer, per_expert ? e : -1, false);
        if (d->features & r->bias) list_add(l, cap, d, names, r, layer, -1, true);
    }
}

static const oz_arch_row *const *tables_of(const oz_arch *arch, const oz_ckpt *ckpt) {
    char name[256] = "";
    for (const oz_arch_row *const *t = ckpt ? arch->renamed : NULL; t && *t; t++)
        for (const oz_arch_row *r = *t; r->module; r++)
            if (r->role == OZ_ROLE_ROUTER) snprintf(name, sizeof name, "%.*s0%s.weight", (int)(strchr(r->module, '%') - r->module), r->module, strchr(r->module, '%') + 2);
    return *name && oz_ckpt_find(ckpt, name) ? arch->renamed : arch->tables;
}

oz_status oz_arch_list_new(oz_arch_list *out, const json_t *config, const oz_ckpt *ckpt, oz_err *err) {
    const oz_arch *arch;
    oz_dims d;
    *out = (oz_arch_list){0};
    OZ_TRY(oz_arch_read(&arch, &d, config, err));
    size_t cap = 0;
    const prefix names = prefix_of(config, ckpt);
    char planned[96]; /* so that what is planned is bounded by what is stored */
    if (d.n_experts) snprintf(planned, sizeof planned, "config.json: %lld layers with %lld experts each", (long long)d.n_layers, (long long)d.n_experts);
    else snprintf(planned, sizeof planned, "config.json.num_hidden_layers: %lld layers", (long long)d.n_layers);
    OZ_NEED(d.n_layers * (d.n_experts + 1) <= MAX_EXPERTS, err, OZ_E_UNSUPPORTED, "%s: at most %d experts in all are planned for", planned, MAX_EXPERTS);
    OZ_NEED(!ckpt || (uint64_t)(d.n_layers * (d.n_experts + 1)) <= oz_ckpt_count(ckpt), err, OZ_E_FORMAT, "%s, and %s%zu tensors are there (%s)", planned, oz_ckpt_count(ckpt) ? "only " : "", oz_ckpt_count(ckpt),
            oz_ckpt_path(ckpt));
    for (int layer = -1; layer < d.n_layers; layer++) {
        const oz_layer_kind kind = layer >= 0 ? arch->layer(&d, layer) : (oz_layer_kind){0};
        for (const oz_arch_row *const *t = tables_of(arch, ckpt); *t; t++) list_table(out, &cap, &d, &names, *t, layer, layer >= 0 ? &kind : NULL);
    }
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
    oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
    m.stored = oz_scheme_is_stored(c, &m);
    if (t->role == OZ_ROLE_ROUTER && !m.stored) m.class_name = "Router";
    return m;
}
