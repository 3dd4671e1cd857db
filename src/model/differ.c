/* What two configs say otherwise, by the keys that say it: of all that a forward pass takes from a config, whatever the spelling, and defaults filled in. */
#include <stddef.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "model/internal.h"

#define ROW(key, first, last) {key, offsetof(oz_dims, first), offsetof(oz_dims, last) + sizeof ((oz_dims *)0)->last}
/* Neighbours in oz_dims of one type, from first to last. */
static const struct { const char *key; size_t begin, end; } KEYS[] = {
    ROW("vocab_size", vocab_size, vocab_size), ROW("hidden_size", hidden_size, hidden_size), ROW("intermediate_size", intermediate_size, intermediate_size), ROW("num_hidden_layers", n_layers, n_layers),
    ROW("num_attention_heads", n_heads, n_heads), ROW("num_key_value_heads", n_heads_kv, n_heads_kv), ROW("head_dim", head_dim, head_dim), ROW("partial_rotary_factor", rope_dim, rope_dim),
    ROW("v_head_dim", v_dim, v_dim), ROW("kv_lora_rank", kv_rank, kv_rank), ROW("q_lora_rank", q_rank, q_rank), ROW("sliding_window", window, window), ROW("layer_types", sliding, sliding),
    ROW("the sizes of scans", ssm, ssm_dt), ROW("the layers that scan", scans, scans), ROW("the number of experts", n_experts, n_experts), ROW("num_experts_per_tok", top_k, top_k),
    ROW("the widths of experts", expert_ffn, shared_ffn), ROW("n_group", n_groups, n_groups), ROW("topk_group", top_groups, top_groups), ROW("the choice of experts", route_raw, route_best_two),
    ROW("routed_scaling_factor", route_scale, route_scale), ROW("the layers with experts", plain, plain), ROW("rms_norm_eps", rms_norm_eps, rms_norm_eps), ROW("the scale of scores", attn_scale, attn_scale),
    ROW("attn_logit_softcapping", attn_softcap, attn_softcap), ROW("final_logit_softcapping", final_softcap, final_softcap), ROW("the scale of embeddings", embed_scale, embed_scale),
    ROW("hidden_act", glu, glu),
};

static bool same_factors(const json_t *a, const json_t *b) { return a == b || (a && b && json_equal(a, b)); }

static bool same_scaling(const oz_rope_cfg *a, const oz_rope_cfg *b) {
    return a->type == b->type && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor && a->score_factor == b->score_factor && a->truncate == b->truncate &&
           (a->type == OZ_ROPE_DEFAULT || a->original_max == b->original_max) && same_factors(a->short_factor, b->short_factor) && same_factors(a->long_factor, b->long_factor);
}

static void add(oz_buf *keys, bool differs, const char *key) {
    if (differs) oz_buf_printf(keys, "%s%s", keys->len ? ", " : "", key);
}

char *oz_config_differences(const json_t *a, const json_t *b) {
    const oz_arch *arch[2];
    oz_dims d[2];
    oz_buf keys = {0};
    if (oz_arch_read(&arch[0], &d[0], a, NULL) != OZ_OK || oz_arch_read(&arch[1], &d[1], b, NULL) != OZ_OK) return NULL;
    add(&keys, arch[0] != arch[1], "model_type");
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) add(&keys, memcmp((char *)&d[0] + KEYS[i].begin, (char *)&d[1] + KEYS[i].begin, KEYS[i].end - KEYS[i].begin) != 0, KEYS[i].key);
    bool theta = d[0].n_ropes != d[1].n_ropes, scaling = theta;
    for (int i = 0; i < d[0].n_ropes && i < d[1].n_ropes; i++) theta |= d[0].ropes[i].theta != d[1].ropes[i].theta, scaling |= !same_scaling(&d[0].ropes[i], &d[1].ropes[i]);
    add(&keys, theta, "rope_theta");
    add(&keys, scaling, "rope_scaling");
    if (keys.len) return keys.data;
    oz_buf_deinit(&keys);
    return NULL;
}
