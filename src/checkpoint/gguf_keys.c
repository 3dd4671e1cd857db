/* Which keys a GGUF may have under its architecture's name. One table: a key that is read (gguf_config.c), one that changes nothing, one that llama.cpp reads and
 * that may stand there with the value that the family has anyway. Every other key is refused, since it may change what the model computes. */
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <string.h>

enum { MIXTRAL = OZ_GGUF_MIXTRAL, GEMMA2 = OZ_GGUF_GEMMA2, GEMMA3 = OZ_GGUF_GEMMA3, PHI3 = OZ_GGUF_PHI3, GEMMA = GEMMA2 | GEMMA3, ANY = MIXTRAL | GEMMA | PHI3 | OZ_GGUF_LLAMA | OZ_GGUF_QWEN2 | OZ_GGUF_QWEN3 };
typedef enum treatment { READ, IDLE, FIXED } treatment;

/* The first row that has the key's name and the architecture holds. FIXED: the number (of a bool: 0 or 1) must be one of the two. */
static const struct {
    const char *name;
    int archs;
    treatment as;
    double values[2];
} keys[] = {
    {"vocab_size", ANY, READ, {0}},
    {"context_length", ANY, READ, {0}},
    {"embedding_length", ANY, READ, {0}},
    {"block_count", ANY, READ, {0}},
    {"feed_forward_length", ANY, READ, {0}},
    {"attention.head_count", ANY, READ, {0}},
    {"attention.head_count_kv", ANY, READ, {0}},
    {"attention.key_length", ANY, READ, {0}},
    {"attention.value_length", ANY, READ, {0}},
    {"attention.layer_norm_rms_epsilon", ANY, READ, {0}},
    {"attention.sliding_window", GEMMA | PHI3, READ, {0}},
    {"attention.sliding_window", ANY, FIXED, {0, 0}},
    {"attention.sliding_window_pattern", GEMMA3, READ, {0}},
    {"attention.sliding_window_pattern", GEMMA2, FIXED, {2, 2}},
    {"attn_logit_softcapping", GEMMA2, READ, {0}},
    {"attn_logit_softcapping", ANY, FIXED, {0, 0}},
    {"final_logit_softcapping", GEMMA, READ, {0}},
    {"final_logit_softcapping", ANY, FIXED, {0, 0}},
    {"rope.dimension_count", ANY, READ, {0}},
    {"rope.freq_base", ANY, READ, {0}},
    {"rope.freq_base_swa", GEMMA3, READ, {0}},
    {"rope.scale_linear", ANY, READ, {0}},
    {"rope.scaling.type", ANY, READ, {0}},
    {"rope.scaling.factor", ANY, READ, {0}},
    {"rope.scaling.attn_factor", ANY, READ, {0}},
    {"rope.scaling.original_context_length", ANY, READ, {0}},
    {"rope.scaling.yarn_ext_factor", ANY, READ, {0}},
    {"rope.scaling.yarn_attn_factor", ANY, READ, {0}},
    {"rope.scaling.yarn_beta_fast", ANY, READ, {0}},
    {"rope.scaling.yarn_beta_slow", ANY, READ, {0}},
    {"rope.scaling.yarn_log_multiplier", ANY, FIXED, {0, 0}},
    {"rope.scaling.finetuned", ANY, IDLE, {0}},
    {"expert_count", ANY, READ, {0}},
    {"expert_used_count", MIXTRAL, READ, {0}},
    {"expert_used_count", ANY, FIXED, {0, 0}},
    {"expert_weights_norm", MIXTRAL, FIXED, {1, 1}}, /* the weights of the chosen experts sum to 1 */
    {"expert_weights_norm", ANY, FIXED, {0, 1}},     /* there are no experts */
    {"expert_weights_scale", ANY, FIXED, {1, 0}},    /* 0: none */
    {"expert_gating_func", ANY, FIXED, {1, 0}},      /* softmax, or not said */
    {"expert_shared_count", ANY, FIXED, {0, 0}},
    {"expert_group_count", ANY, FIXED, {0, 1}},
    {"expert_group_used_count", ANY, FIXED, {0, 1}},
    {"leading_dense_block_count", ANY, FIXED, {0, 0}},
    {"moe_every_n_layers", ANY, FIXED, {0, 1}},
    {"interleave_moe_layer_step", ANY, FIXED, {0, 1}},
    {"nextn_predict_layers", ANY, FIXED, {0, 0}},
    {"attention.causal", ANY, FIXED, {1, 1}},
    {"attention.max_alibi_bias", ANY, FIXED, {0, 0}},
    {"attention.clamp_kqv", ANY, FIXED, {0, 0}},
    {"attention.scale", ANY, FIXED, {0, 0}}, /* 0: by the length of a head */
    {"attention.shared_kv_layers", ANY, FIXED, {0, 0}},
    {"logit_scale", ANY, FIXED, {1, 0}}, /* of these three, 0: none */
    {"residual_scale", ANY, FIXED, {1, 0}},
    {"embedding_scale", ANY, FIXED, {1, 0}},
    {"use_parallel_residual", ANY, FIXED, {0, 0}},
    {"attention.layer_norm_epsilon", ANY, IDLE, {0}}, /* of norms that subtract the mean, which none of these has */
    {"pooling_type", ANY, IDLE, {0}},                 /* how an embedding of a text is made of its tokens' */
    {"tensor_data_layout", ANY, IDLE, {0}},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

/* The name behind "ARCH.", or an empty slice: a key of another room (general., tokenizer. ...). */
static oz_slice own_part(const oz_gguf_model *m, oz_slice key) {
    const size_t n = strlen(m->arch->name);
    return key.n > n + 1 && memcmp(key.p, m->arch->name, n) == 0 && key.p[n] == '.' ? (oz_slice){key.p + n + 1, key.n - n - 1} : (oz_slice){0};
}

static oz_status check_value(const oz_gguf_model *m, const oz_gguf_kv *kv, const double values[2], oz_err *err) {
    char key[96]; /* of the table */
    float f = 0;
    bool flag = false;
    int64_t i = 0;
    snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
    const bool is_float = kv->type == OZ_GGUF_F32 || kv->type == OZ_GGUF_F64, is_bool = kv->type == OZ_GGUF_BOOL;
    OZ_TRY(is_float ? oz_gguf_float(&f, m->g, key, err) : is_bool ? oz_gguf_bool(&flag, m->g, key, err) : oz_gguf_int(&i, m->g, key, INT64_MIN, INT64_MAX, err));
    const double v = is_float ? (double)f : is_bool ? (double)flag : (double)i;
    OZ_NEED(v == values[0] || v == values[1], err, OZ_E_UNSUPPORTED, "%s: %s: must be %g, found %g: this kind of %s model is not run here", m->g->where, key, values[0], v, m->arch->name);
    return OZ_OK;
}

static oz_status check_key(const oz_gguf_model *m, const oz_gguf_kv *kv, oz_err *err) {
    const oz_slice name = own_part(m, kv->key);
    if (!name.n) return OZ_OK;
    size_t i = 0;
    while (i < N_KEYS && !((keys[i].archs & m->arch->bit) && oz_slice_eq(name, oz_slice_view(keys[i].name)))) i++;
    OZ_NEED(i < N_KEYS, err, OZ_E_UNSUPPORTED, "%s: %.*s: not known of a %s model, and it may change what it computes", m->g->where, (int)kv->key.n, kv->key.p, m->arch->name);
    return keys[i].as == FIXED ? check_value(m, kv, keys[i].values, err) : OZ_OK;
}

oz_status oz_gguf_keys_check(const oz_gguf_model *m, oz_err *err) {
    int64_t n_parts = 1;
    oz_slice type = oz_slice_view("model");
    OZ_TRY(oz_gguf_int(&n_parts, m->g, "split.count", 0, UINT16_MAX, err));
    OZ_NEED(n_parts <= 1, err, OZ_E_UNSUPPORTED, "%s: split.count: a GGUF in %" PRId64 " files is not read; join them first", m->g->where, n_parts);
    OZ_TRY(oz_gguf_str(&type, m->g, "general.type", err));
    OZ_NEED(oz_slice_eq(type, oz_slice_view("model")), err, OZ_E_UNSUPPORTED, "%s: general.type: must be model, found %.*s", m->g->where, (int)(type.n < 100 ? type.n : 100), type.p);
    for (size_t i = 0; i < m->g->n_kvs; i++) OZ_TRY(check_key(m, &m->g->kvs[i], err));
    return OZ_OK;
}
