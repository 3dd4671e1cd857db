/* The Hugging Face view of a GGUF: tensors under the names of transformers (gguf_config.c: the config). One table holds the names; a tensor that is in
 * no row of it is an error.
 *
 * llama files store the rows of q and k interleaved (row 2j + p of a head is row p * head_dim/2 + j in Hugging Face's order),
 * since ggml rotates neighbours where transformers rotates halves. The data stays as it is; oz_tensor.rope_heads says so, and
 * oz_weight_row undoes it where rows are read. Experts of a layer lie in one tensor of three dimensions: each is a view of its part. Gemma's norms are
 * stored with the 1 that transformers adds: those few floats are copied without it. */
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <string.h>

enum {
    LLAMA = OZ_GGUF_LLAMA | OZ_GGUF_MIXTRAL, /* what is stored alike */
    QWEN = OZ_GGUF_QWEN2 | OZ_GGUF_QWEN3,
    GEMMA = OZ_GGUF_GEMMA2 | OZ_GGUF_GEMMA3,
    ALL = LLAMA | QWEN | GEMMA | OZ_GGUF_PHI3,
    SPLIT = ALL & ~OZ_GGUF_PHI3, /* q, k, v and gate, up apart */
    DENSE = ALL & ~OZ_GGUF_MIXTRAL,
    MAX_NORM = 1 << 20,
};
/* How a stored tensor becomes one of the model: as it is; heads of q or of k and v; a norm; a matrix an expert; factors of rope, which go into the config. */
typedef enum treatment { AS_IS, HEADS_Q, HEADS_KV, NORM, EXPERTS, FREQS, FACTORS_LONG, FACTORS_SHORT } treatment;

#define ATTN "model.layers.#.self_attn."
#define MLP "model.layers.#.mlp."
#define MOE "model.layers.#.block_sparse_moe."

/* '#' stands for the layer, '@' for the expert. */
static const struct {
    const char *gguf, *hf;
    treatment as;
    int archs;
} names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", AS_IS, ALL},
    {"output_norm.weight", "model.norm.weight", NORM, ALL},
    {"output.weight", "lm_head.weight", AS_IS, ALL},
    {"rope_freqs.weight", NULL, FREQS, LLAMA},
    {"rope_factors_long.weight", NULL, FACTORS_LONG, OZ_GGUF_PHI3},
    {"rope_factors_short.weight", NULL, FACTORS_SHORT, OZ_GGUF_PHI3},
    {"blk.#.attn_norm.weight", "model.layers.#.input_layernorm.weight", NORM, ALL},
    {"blk.#.attn_q.weight", ATTN "q_proj.weight", HEADS_Q, SPLIT},
    {"blk.#.attn_k.weight", ATTN "k_proj.weight", HEADS_KV, SPLIT},
    {"blk.#.attn_v.weight", ATTN "v_proj.weight", AS_IS, SPLIT},
    {"blk.#.attn_qkv.weight", ATTN "qkv_proj.weight", AS_IS, OZ_GGUF_PHI3},
    {"blk.#.attn_output.weight", ATTN "o_proj.weight", AS_IS, ALL},
    {"blk.#.attn_q.bias", ATTN "q_proj.bias", HEADS_Q, OZ_GGUF_LLAMA | QWEN},
    {"blk.#.attn_k.bias", ATTN "k_proj.bias", HEADS_KV, OZ_GGUF_LLAMA | QWEN},
    {"blk.#.attn_v.bias", ATTN "v_proj.bias", AS_IS, OZ_GGUF_LLAMA | QWEN},
    {"blk.#.attn_output.bias", ATTN "o_proj.bias", AS_IS, OZ_GGUF_LLAMA | OZ_GGUF_QWEN3},
    {"blk.#.attn_q_norm.weight", ATTN "q_norm.weight", NORM, OZ_GGUF_QWEN3 | OZ_GGUF_GEMMA3},
    {"blk.#.attn_k_norm.weight", ATTN "k_norm.weight", NORM, OZ_GGUF_QWEN3 | OZ_GGUF_GEMMA3},
    {"blk.#.post_attention_norm.weight", "model.layers.#.post_attention_layernorm.weight", NORM, GEMMA},
    {"blk.#.ffn_norm.weight", "model.layers.#.pre_feedforward_layernorm.weight", NORM, GEMMA},
    {"blk.#.post_ffw_norm.weight", "model.layers.#.post_feedforward_layernorm.weight", NORM, GEMMA},
    {"blk.#.ffn_norm.weight", "model.layers.#.post_attention_layernorm.weight", NORM, ALL & ~GEMMA},
    {"blk.#.ffn_gate.weight", MLP "gate_proj.weight", AS_IS, SPLIT & DENSE},
    {"blk.#.ffn_up.weight", MLP "up_proj.weight", AS_IS, SPLIT & DENSE},
    {"blk.#.ffn_up.weight", MLP "gate_up_proj.weight", AS_IS, OZ_GGUF_PHI3},
    {"blk.#.ffn_down.weight", MLP "down_proj.weight", AS_IS, DENSE},
    {"blk.#.ffn_gate.bias", MLP "gate_proj.bias", AS_IS, OZ_GGUF_LLAMA},
    {"blk.#.ffn_up.bias", MLP "up_proj.bias", AS_IS, OZ_GGUF_LLAMA},
    {"blk.#.ffn_down.bias", MLP "down_proj.bias", AS_IS, OZ_GGUF_LLAMA},
    {"blk.#.ffn_gate_inp.weight", MOE "gate.weight", AS_IS, OZ_GGUF_MIXTRAL},
    {"blk.#.ffn_gate_exps.weight", MOE "experts.@.w1.weight", EXPERTS, OZ_GGUF_MIXTRAL},
    {"blk.#.ffn_up_exps.weight", MOE "experts.@.w3.weight", EXPERTS, OZ_GGUF_MIXTRAL},
    {"blk.#.ffn_down_exps.weight", MOE "experts.@.w2.weight", EXPERTS, OZ_GGUF_MIXTRAL},
    {"blk.#.ffn_gate.@.weight", MOE "experts.@.w1.weight", AS_IS, OZ_GGUF_MIXTRAL}, /* files of 2023 */
    {"blk.#.ffn_up.@.weight", MOE "experts.@.w3.weight", AS_IS, OZ_GGUF_MIXTRAL},
    {"blk.#.ffn_down.@.weight", MOE "experts.@.w2.weight", AS_IS, OZ_GGUF_MIXTRAL},
};

typedef struct place { int64_t layer, expert; } place; /* 0 where a name has none */

/* Matches "blk.12.attn_q.weight" with "blk.#.attn_q.weight". */
static bool name_match(place *at, oz_slice name, const char *pattern) {
    size_t i = 0;
    *at = (place){0};
    for (; *pattern; pattern++) {
        if (*pattern != '#' && *pattern != '@') {
            if (i >= name.n || name.p[i++] != *pattern) return false;
            continue;
        }
        int64_t v = 0;
        const size_t first = i;
        for (; i < name.n && i < first + 6 && name.p[i] >= '0' && name.p[i] <= '9'; i++) v = v * 10 + (name.p[i] - '0');
        if (i == first || (name.p[first] == '0' && i > first + 1)) return false;
        *(*pattern == '#' ? &at->layer : &at->expert) = v;
    }
    return i == name.n;
}

static void name_make(char out[128], const char *hf, place at) {
    size_t n = 0;
    for (; *hf && n < 100; hf++) {
        if (*hf == '#' || *hf == '@') n += (size_t)snprintf(out + n, 128 - n, "%" PRId64, *hf == '#' ? at.layer : at.expert);
        else out[n++] = *hf;
    }
    out[n] = 0;
}

static oz_status set_heads(oz_tensor *out, const oz_gguf_model *m, const oz_gguf_info *t, treatment as, oz_err *err) {
    const int64_t n = as == HEADS_Q ? m->d.n_heads : m->d.n_heads_kv;
    OZ_NEED(t->n_dims == 2 || oz_dtype_get(t->dtype)->block_elems == 1, err, OZ_E_FORMAT, "%s: %.*s: expected a matrix or a vector of plain numbers", m->g->where,
            (int)t->name.n, t->name.p);
    OZ_NEED(t->n_dims > 0 && out->dims[0] == n * m->d.head_dim && m->d.head_dim % 2 == 0, err, OZ_E_FORMAT,
            "%s: %.*s: expected %" PRId64 " heads of %" PRId64 " rows, found %" PRId64 " rows", m->g->where, (int)t->name.n, t->name.p, n, m->d.head_dim,
            t->n_dims ? out->dims[0] : 1);
    out->rope_heads = (int32_t)n;
    return OZ_OK;
}

static oz_status subtract_one(oz_tensor *out, const oz_gguf_model *m, oz_err *err) {
    OZ_NEED(out->dtype == OZ_DTYPE_F32 && out->n_dims == 1 && out->dims[0] <= MAX_NORM, err, OZ_E_FORMAT, "%s: %s: expected F32 and one dimension of at most %d, found %s, %d dimensions and %" PRId64,
            m->g->where, out->name, MAX_NORM, oz_dtype_get(out->dtype)->name, out->n_dims, out->dims[0]);
    float *w = oz_arena_alloc(m->c->arena, out->n_bytes);
    memcpy(w, out->data, out->n_bytes);
    for (int64_t i = 0; i < out->dims[0]; i++) w[i] -= m->arch->norm_plus;
    out->data = w;
    return OZ_OK;
}

static oz_status add_experts(const oz_gguf_model *m, const oz_gguf_info *t, const char *hf, oz_tensor *out, place at, oz_err *err) {
    char name[128];
    OZ_NEED(t->n_dims == 3 && t->dims[2] == m->d.n_experts, err, OZ_E_FORMAT, "%s: %.*s: expected three dimensions, the last %" PRId64 " (experts), found %d, the last %" PRId64,
            m->g->where, (int)t->name.n, t->name.p, m->d.n_experts, t->n_dims, t->n_dims ? t->dims[t->n_dims - 1] : 1);
    out->n_dims = 2, out->dims[0] = t->dims[1], out->dims[1] = t->dims[0];
    out->n_bytes = t->n_bytes / (size_t)m->d.n_experts;
    for (at.expert = 0; at.expert < m->d.n_experts; at.expert++) {
        name_make(name, hf, at);
        out->name = name, out->data = t->data + (size_t)at.expert * out->n_bytes;
        OZ_TRY(oz_ckpt_add(m->c, out, err));
    }
    return OZ_OK;
}

static oz_status add_tensor(oz_gguf_model *m, const oz_gguf_info *t, const char *file_name, size_t row, place at, oz_err *err) {
    char name[128];
    oz_tensor out = {.name = name, .file_name = file_name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data, .n_bytes = t->n_bytes};
    for (int i = 0; i < t->n_dims; i++) out.dims[i] = t->dims[t->n_dims - 1 - i];
    switch (names[row].as) {
    case FREQS: m->rope_freqs = t; return OZ_OK;
    case FACTORS_LONG: m->rope_long = t; return OZ_OK;
    case FACTORS_SHORT: m->rope_short = t; return OZ_OK;
    case EXPERTS: return add_experts(m, t, names[row].hf, &out, at, err);
    case AS_IS: case HEADS_Q: case HEADS_KV: case NORM: break;
    }
    name_make(name, names[row].hf, at);
    if (names[row].as == NORM && m->arch->norm_plus != 0) OZ_TRY(subtract_one(&out, m, err));
    if (m->arch->interleaved && (names[row].as == HEADS_Q || names[row].as == HEADS_KV)) OZ_TRY(set_heads(&out, m, t, names[row].as, err));
    return oz_ckpt_add(m->c, &out, err);
}

static const char *file_name_of(const oz_ckpt *c) {
    const char *slash = strrchr(c->path, '/'), *base = slash ? slash + 1 : c->path;
    return oz_arena_strndup(c->arena, base, strlen(base));
}

static oz_status add_as_stored(const oz_gguf_model *m, const oz_gguf_info *t, const char *file_name, oz_err *err) {
    oz_tensor out = {.name = oz_arena_strndup(m->c->arena, t->name.p, t->name.n), .file_name = file_name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data, .n_bytes = t->n_bytes};
    for (int i = 0; i < t->n_dims; i++) out.dims[i] = t->dims[t->n_dims - 1 - i];
    return oz_ckpt_add(m->c, &out, err);
}

/* What can be said of a model that is not read as one: its architecture by GGUF's name, what most have by Hugging Face's, its tensors as they are. */
static oz_status load_as_stored(oz_gguf_model *m, oz_err *err) {
    static const char *const numbers[][2] = {{"embedding_length", "hidden_size"}, {"feed_forward_length", "intermediate_size"}, {"block_count", "num_hidden_layers"},
                                             {"attention.head_count", "num_attention_heads"}, {"attention.head_count_kv", "num_key_value_heads"}, {"attention.key_length", "head_dim"},
                                             {"context_length", "max_position_embeddings"}, {"vocab_size", "vocab_size"}, {"expert_used_count", "num_experts_per_tok"}};
    oz_slice arch = {0};
    if (oz_gguf_str(&arch, m->g, "general.architecture", NULL) != OZ_OK || !arch.p) arch = oz_slice_view("gguf");
    json_object_set_new(m->c->config, "model_type", json_stringn(arch.p, arch.n));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char *key = oz_asprintf("%.*s.%s", (int)arch.n, arch.p, numbers[i][0]);
        int64_t v = -1;
        if (oz_gguf_int(&v, m->g, key, 0, INT32_MAX, NULL) == OZ_OK && v >= 0) json_object_set_new(m->c->config, numbers[i][1], json_integer((json_int_t)v));
        oz_free(key);
    }
    if (m->c->n_tensors) return OZ_OK;
    const char *file_name = file_name_of(m->c);
    for (size_t i = 0; i < m->g->n_infos; i++) OZ_TRY(oz_found(m->c->f, add_as_stored(m, &m->g->infos[i], file_name, err), err));
    return OZ_OK;
}

static oz_status load_tensors(oz_gguf_model *m, oz_err *err) {
    const char *file_name = file_name_of(m->c);
    for (size_t i = 0; i < m->g->n_infos; i++) {
        const oz_gguf_info *t = &m->g->infos[i];
        size_t row = 0;
        place at = {0};
        const size_t n_rows = sizeof names / sizeof *names;
        while (row < n_rows && !((names[row].archs & m->arch->bit) && name_match(&at, t->name, names[row].gguf))) row++;
        oz_status st = OZ_OK;
        if (row == n_rows || at.layer >= m->d.n_layers || (at.expert && at.expert >= m->d.n_experts))
            st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: %.*s: no such tensor in a %s model of %" PRId64 " layers", m->g->where, (int)t->name.n, t->name.p, m->arch->name,
                            m->d.n_layers);
        if (st == OZ_OK) st = add_tensor(m, t, file_name, row, at, err);
        if (st == OZ_OK) continue;
        OZ_TRY(oz_found(m->c->f, st, err));
        OZ_TRY(oz_found(m->c->f, add_as_stored(m, t, file_name, err), err)); /* its other name may be there */
    }
    return OZ_OK;
}

oz_status oz_gguf_load(oz_ckpt *c, const char *path, oz_err *err) {
    size_t map;
    OZ_TRY(oz_ckpt_map(c, &map, path, err));
    oz_gguf g;
    OZ_TRY(oz_gguf_parse(&g, c->maps[map].data, c->maps[map].n_bytes, path, true, c->f, err));
    oz_gguf_model m = {.c = c, .g = &g};
    oz_status st = oz_gguf_arch_find(&m, err);
    if (st == OZ_OK) st = oz_gguf_dims_read(&m, err);
    if (st == OZ_OK) st = load_tensors(&m, err);
    c->config = json_object();
    if (st == OZ_OK) st = oz_gguf_config(c->config, &m, err);
    if (st != OZ_OK && (st = oz_found(c->f, st, err)) == OZ_OK) st = load_as_stored(&m, err);
    oz_gguf_deinit(&g);
    return st;
}
