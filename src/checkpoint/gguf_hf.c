/* The Hugging Face view of a GGUF: tensors under the names of transformers, and a config.json that says the same as the
 * metadata. Two tables hold all of it: architectures, and tensor names. What is in a file and in no table is an error: a tensor or
 * a key that changes the function of the model is never passed over in silence.
 *
 * llama files store the rows of q and k interleaved (row 2j + p of a head is row p * head_dim/2 + j in Hugging Face's order),
 * since ggml rotates neighbours where transformers rotates halves. The data stays as it is; oz_tensor.rope_heads says so, and
 * oz_weight_row undoes it where rows are read. */
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { ARCH_LLAMA = 1, ARCH_QWEN2 = 2, ARCH_QWEN3 = 4, ARCH_ALL = 7 };
typedef enum heads { HEADS_NONE, HEADS_Q, HEADS_KV } heads;

typedef struct arch {
    const char *name; /* general.architecture */
    int bit;
    const char *model_type, *class_name;
    bool interleaved;  /* q and k rows, see above */
    const char *fixed; /* config entries that no metadata holds: JSON */
} arch;

static const arch archs[] = {
    {"llama", ARCH_LLAMA, "llama", "LlamaForCausalLM", true,
     "{\"attention_dropout\": 0.0, \"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"pretraining_tp\": 1, \"use_cache\": true}"},
    {"qwen2", ARCH_QWEN2, "qwen2", "Qwen2ForCausalLM", false,
     "{\"attention_dropout\": 0.0, \"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"sliding_window\": null, "
     "\"use_cache\": true, \"use_sliding_window\": false}"},
    {"qwen3", ARCH_QWEN3, "qwen3", "Qwen3ForCausalLM", false,
     "{\"attention_dropout\": 0.0, \"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"sliding_window\": null, "
     "\"use_cache\": true, \"use_sliding_window\": false}"},
};

/* '#' stands for the layer. hf NULL: not a weight of the model; what it says goes into config.json. */
static const struct {
    const char *gguf, *hf;
    heads heads;
    int archs;
} names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", HEADS_NONE, ARCH_ALL},
    {"output_norm.weight", "model.norm.weight", HEADS_NONE, ARCH_ALL},
    {"output.weight", "lm_head.weight", HEADS_NONE, ARCH_ALL},
    {"rope_freqs.weight", NULL, HEADS_NONE, ARCH_LLAMA},
    {"blk.#.attn_norm.weight", "model.layers.#.input_layernorm.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.attn_q.weight", "model.layers.#.self_attn.q_proj.weight", HEADS_Q, ARCH_ALL},
    {"blk.#.attn_k.weight", "model.layers.#.self_attn.k_proj.weight", HEADS_KV, ARCH_ALL},
    {"blk.#.attn_v.weight", "model.layers.#.self_attn.v_proj.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.attn_output.weight", "model.layers.#.self_attn.o_proj.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.attn_q.bias", "model.layers.#.self_attn.q_proj.bias", HEADS_Q, ARCH_ALL},
    {"blk.#.attn_k.bias", "model.layers.#.self_attn.k_proj.bias", HEADS_KV, ARCH_ALL},
    {"blk.#.attn_v.bias", "model.layers.#.self_attn.v_proj.bias", HEADS_NONE, ARCH_ALL},
    {"blk.#.attn_output.bias", "model.layers.#.self_attn.o_proj.bias", HEADS_NONE, ARCH_LLAMA | ARCH_QWEN3},
    {"blk.#.attn_q_norm.weight", "model.layers.#.self_attn.q_norm.weight", HEADS_NONE, ARCH_QWEN3},
    {"blk.#.attn_k_norm.weight", "model.layers.#.self_attn.k_norm.weight", HEADS_NONE, ARCH_QWEN3},
    {"blk.#.ffn_norm.weight", "model.layers.#.post_attention_layernorm.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.ffn_gate.weight", "model.layers.#.mlp.gate_proj.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.ffn_up.weight", "model.layers.#.mlp.up_proj.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.ffn_down.weight", "model.layers.#.mlp.down_proj.weight", HEADS_NONE, ARCH_ALL},
    {"blk.#.ffn_gate.bias", "model.layers.#.mlp.gate_proj.bias", HEADS_NONE, ARCH_LLAMA},
    {"blk.#.ffn_up.bias", "model.layers.#.mlp.up_proj.bias", HEADS_NONE, ARCH_LLAMA},
    {"blk.#.ffn_down.bias", "model.layers.#.mlp.down_proj.bias", HEADS_NONE, ARCH_LLAMA},
};

/* Keys (behind "ARCH.") whose presence means a computation that these architectures do not have in transformers. */
static const char *const foreign_keys[] = {
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "attention.key_length_mla",
};

typedef struct dims {
    int64_t n_layers, hidden, intermediate, n_heads, n_heads_kv, head_dim, max_len, vocab;
    float eps, rope_theta;
} dims;

typedef struct loader {
    oz_ckpt *c;
    const oz_gguf *g;
    const arch *arch;
    dims d;
    const oz_gguf_info *rope_freqs;
} loader;

/* ---- metadata ---- */
static void arch_key(char key[96], const loader *l, const char *name) { snprintf(key, 96, "%s.%s", l->arch->name, name); }

static oz_status arch_int(int64_t *out, const loader *l, const char *name, int64_t min, int64_t max, oz_err *err) {
    char key[96];
    arch_key(key, l, name);
    return oz_gguf_int(out, l->g, key, min, max, err);
}

static oz_status need_int(int64_t *out, const loader *l, const char *name, int64_t max, oz_err *err) {
    char key[96];
    arch_key(key, l, name);
    OZ_NEED(oz_gguf_find(l->g, key), err, OZ_E_FORMAT, "%s: %s is missing", l->g->where, key);
    return oz_gguf_int(out, l->g, key, 1, max, err);
}

static oz_status arch_float(float *out, const loader *l, const char *name, oz_err *err) {
    char key[96];
    arch_key(key, l, name);
    return oz_gguf_float(out, l->g, key, err);
}

static oz_status find_arch(loader *l, oz_err *err) {
    oz_slice name = {0};
    OZ_TRY(oz_gguf_str(&name, l->g, "general.architecture", err));
    OZ_NEED(name.p, err, OZ_E_FORMAT, "%s: general.architecture is missing", l->g->where);
    oz_buf known = {0};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        if (oz_slice_eq(name, oz_slice_view(archs[i].name))) l->arch = &archs[i];
        oz_buf_printf(&known, "%s%s", i ? ", " : "", archs[i].name);
    }
    if (!l->arch) {
        oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: general.architecture: must be one of %s, found %.*s", l->g->where,
                   known.data, (int)(name.n < 100 ? name.n : 100), name.p);
    }
    oz_buf_deinit(&known);
    return l->arch ? OZ_OK : OZ_E_UNSUPPORTED;
}

static oz_status refuse_foreign(const loader *l, oz_err *err) {
    int64_t n_parts = 1;
    OZ_TRY(oz_gguf_int(&n_parts, l->g, "split.count", 0, UINT16_MAX, err));
    OZ_NEED(n_parts <= 1, err, OZ_E_UNSUPPORTED, "%s: split.count: a GGUF in %" PRId64 " files is not read; join them first", l->g->where,
            n_parts);
    for (size_t i = 0; i < sizeof foreign_keys / sizeof *foreign_keys; i++) {
        char key[96];
        arch_key(key, l, foreign_keys[i]);
        OZ_NEED(!oz_gguf_find(l->g, key), err, OZ_E_UNSUPPORTED, "%s: %s: this kind of %s model is not run here", l->g->where, key,
                l->arch->name);
    }
    return OZ_OK;
}

static oz_status read_dims(loader *l, oz_err *err) {
    dims *d = &l->d;
    const int64_t max = INT32_MAX;
    OZ_TRY(need_int(&d->n_layers, l, "block_count", 100000, err));
    OZ_TRY(need_int(&d->hidden, l, "embedding_length", max, err));
    OZ_TRY(need_int(&d->intermediate, l, "feed_forward_length", max, err));
    OZ_TRY(need_int(&d->n_heads, l, "attention.head_count", 65535, err));
    OZ_TRY(need_int(&d->max_len, l, "context_length", max, err));
    d->n_heads_kv = d->n_heads;
    OZ_TRY(arch_int(&d->n_heads_kv, l, "attention.head_count_kv", 1, d->n_heads, err));
    d->head_dim = d->hidden / d->n_heads;
    OZ_TRY(arch_int(&d->head_dim, l, "attention.key_length", 1, 65536, err));
    OZ_TRY(arch_int(&(int64_t){0}, l, "attention.value_length", d->head_dim, d->head_dim, err));
    OZ_TRY(arch_int(&(int64_t){0}, l, "rope.dimension_count", d->head_dim, d->head_dim, err));
    d->rope_theta = 10000.0f;
    OZ_TRY(arch_float(&d->rope_theta, l, "rope.freq_base", err));
    d->eps = NAN;
    OZ_TRY(arch_float(&d->eps, l, "attention.layer_norm_rms_epsilon", err));
    OZ_NEED(!isnan(d->eps), err, OZ_E_FORMAT, "%s: %s.attention.layer_norm_rms_epsilon is missing", l->g->where, l->arch->name);
    return OZ_OK;
}

/* ---- tensors ---- */
/* Matches "blk.12.attn_q.weight" with "blk.#.attn_q.weight"; *layer is -1 for a pattern without '#'. */
static bool name_match(int64_t *layer, oz_slice name, const char *pattern) {
    const char *hash = strchr(pattern, '#');
    *layer = -1;
    if (!hash) return oz_slice_eq(name, oz_slice_view(pattern));
    size_t head = (size_t)(hash - pattern), i = head;
    if (name.n <= head || memcmp(name.p, pattern, head) != 0) return false;
    int64_t v = 0;
    for (; i < name.n && i < head + 6 && name.p[i] >= '0' && name.p[i] <= '9'; i++) v = v * 10 + (name.p[i] - '0');
    if (i == head || (name.p[head] == '0' && i > head + 1)) return false;
    *layer = v;
    return oz_slice_eq((oz_slice){name.p + i, name.n - i}, oz_slice_view(hash + 1));
}

static oz_status add_tensor(loader *l, const oz_gguf_info *t, const char *file_name, size_t row, int64_t layer, oz_err *err) {
    const char *hf = names[row].hf, *hash = strchr(hf, '#');
    char name[128];
    if (hash)
        snprintf(name, sizeof name, "%.*s%" PRId64 "%s", (int)(hash - hf), hf, layer, hash + 1);
    else
        snprintf(name, sizeof name, "%s", hf);
    oz_tensor out = {.name = name, .file_name = file_name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data, .n_bytes = t->n_bytes};
    for (int i = 0; i < t->n_dims; i++) out.dims[i] = t->dims[t->n_dims - 1 - i];
    if (l->arch->interleaved && names[row].heads != HEADS_NONE) {
        int64_t n = names[row].heads == HEADS_Q ? l->d.n_heads : l->d.n_heads_kv;
        OZ_NEED(t->n_dims == 2 || oz_dtype_get(t->dtype)->block_elems == 1, err, OZ_E_FORMAT,
                "%s: %.*s: expected a matrix or a vector of plain numbers", l->g->where, (int)t->name.n, t->name.p);
        OZ_NEED(t->n_dims > 0 && out.dims[0] == n * l->d.head_dim && l->d.head_dim % 2 == 0, err, OZ_E_FORMAT,
                "%s: %.*s: expected %" PRId64 " heads of %" PRId64 " rows, found %" PRId64 " rows", l->g->where, (int)t->name.n, t->name.p,
                n, l->d.head_dim, t->n_dims ? out.dims[0] : 1);
        out.rope_heads = (int32_t)n;
    }
    return oz_ckpt_add(l->c, &out, err);
}

static oz_status load_tensors(loader *l, oz_err *err) {
    const char *slash = strrchr(l->c->path, '/'), *base = slash ? slash + 1 : l->c->path;
    const char *file_name = oz_arena_strndup(l->c->arena, base, strlen(base));
    for (size_t i = 0; i < l->g->n_infos; i++) {
        const oz_gguf_info *t = &l->g->infos[i];
        size_t row = 0;
        int64_t layer = -1;
        const size_t n_rows = sizeof names / sizeof *names;
        while (row < n_rows && !((names[row].archs & l->arch->bit) && name_match(&layer, t->name, names[row].gguf))) row++;
        OZ_NEED(row < n_rows && layer < l->d.n_layers, err, OZ_E_UNSUPPORTED,
                "%s: %.*s: no such tensor in a %s model of %" PRId64 " layers", l->g->where, (int)t->name.n, t->name.p, l->arch->name,
                l->d.n_layers);
        if (!names[row].hf)
            l->rope_freqs = t;
        else
            OZ_TRY(add_tensor(l, t, file_name, row, layer, err));
    }
    return OZ_OK;
}

static const oz_tensor *added(const oz_ckpt *c, const char *name) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    }
    return NULL;
}

/* ---- config.json ---- */
/* The value of the shortest decimal that is f: 1e-05, where (double)f would print 9.999999747378752e-06. */
static double shortest(float f) {
    char s[32];
    int digits = 1;
    do snprintf(s, sizeof s, "%.*g", digits++, (double)f);
    while (digits <= 9 && strtof(s, NULL) != f);
    return strtod(s, NULL);
}

/* rope_freqs.weight holds the factor that each frequency is divided by. Published files have it for Llama 3.1 and 3.2, whose rule has
 * three parameters that the file does not repeat. The factor is the largest entry; the rest are those of the family, and the
 * result must be what is stored. */
static oz_status llama3_scaling(json_t **out, const loader *l, oz_err *err) {
    const double low = 1.0, high = 4.0, original = 8192.0, pi = 3.14159265358979323846;
    const oz_gguf_info *t = l->rope_freqs;
    int64_t n = l->d.head_dim / 2;
    OZ_NEED(t->dtype == OZ_DTYPE_F32 && t->n_dims == 1 && t->dims[0] == n, err, OZ_E_FORMAT,
            "%s: rope_freqs.weight: expected F32 [%" PRId64 "]", l->g->where, n);
    float factor = 1.0f;
    for (int64_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        if (f > factor) factor = f;
    }
    for (int64_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        double wave = 2 * pi * pow((double)l->d.rope_theta, 2.0 * (double)i / (double)l->d.head_dim);
        double smooth = (original / wave - low) / (high - low);
        double expected = wave < original / high  ? 1.0
                          : wave > original / low ? (double)factor
                                                  : 1.0 / ((1.0 - smooth) / (double)factor + smooth);
        OZ_NEED(fabs((double)f - expected) <= 1e-4 * expected, err, OZ_E_UNSUPPORTED,
                "%s: rope_freqs.weight[%" PRId64 "]: expected %g by Llama 3.1's rule with factor %g, found %g", l->g->where, i, expected,
                (double)factor, (double)f);
    }
    *out = json_pack("{s:f, s:f, s:f, s:i, s:s}", "factor", shortest(factor), "high_freq_factor", high, "low_freq_factor", low,
                     "original_max_position_embeddings", (int)original, "rope_type", "llama3");
    return OZ_OK;
}

static oz_status rope_scaling(json_t **out, const loader *l, oz_err *err) {
    if (l->rope_freqs) return llama3_scaling(out, l, err);
    char key[96];
    oz_slice type = oz_slice_view("none");
    float factor = 1.0f, linear = 1.0f;
    int64_t original = l->d.max_len;
    arch_key(key, l, "rope.scaling.type");
    OZ_TRY(oz_gguf_str(&type, l->g, key, err));
    OZ_TRY(arch_float(&factor, l, "rope.scaling.factor", err));
    OZ_TRY(arch_float(&linear, l, "rope.scale_linear", err)); /* its name in files of 2023 */
    OZ_TRY(arch_int(&original, l, "rope.scaling.original_context_length", 1, INT32_MAX, err));
    if (oz_slice_eq(type, oz_slice_view("none")) && linear != 1.0f) {
        type = oz_slice_view("linear");
        factor = linear;
    }
    if (oz_slice_eq(type, oz_slice_view("none")) || (oz_slice_eq(type, oz_slice_view("linear")) && factor == 1.0f)) {
        *out = json_null();
    } else if (oz_slice_eq(type, oz_slice_view("linear"))) {
        *out = json_pack("{s:f, s:s}", "factor", shortest(factor), "rope_type", "linear");
    } else if (oz_slice_eq(type, oz_slice_view("yarn"))) {
        *out = json_pack("{s:f, s:I, s:s}", "factor", shortest(factor), "original_max_position_embeddings", (json_int_t)original,
                         "rope_type", "yarn");
    } else {
        OZ_FAIL(err, OZ_E_UNSUPPORTED, "%s: %s: must be none, linear or yarn, found %.*s", l->g->where, key,
                (int)(type.n < 100 ? type.n : 100), type.p);
    }
    return OZ_OK;
}

/* The dtype of the model that was stored: a GGUF of plain floats keeps its own, block types come from a bf16 model. */
static const char *torch_dtype(const oz_ckpt *c) {
    const char *found = NULL;
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (c->tensors[i].n_dims < 2) continue; /* norms are F32 in any file */
        const char *t = oz_dtype_get(c->tensors[i].dtype)->torch;
        if (!t || (found && strcmp(found, t) != 0)) return "bfloat16";
        found = t;
    }
    return found ? found : "bfloat16";
}

/* A text may end with eos or, in a conversation, with the end of a turn: both stand in a list where they differ. */
oz_status oz_gguf_special_ids(json_t *config, const oz_gguf *g, int64_t vocab_size, oz_err *err) {
    int64_t bos = -1, eos = -1, eot = -1, pad = -1, max = vocab_size - 1;
    OZ_TRY(oz_gguf_int(&bos, g, "tokenizer.ggml.bos_token_id", 0, max, err));
    OZ_TRY(oz_gguf_int(&eos, g, "tokenizer.ggml.eos_token_id", 0, max, err));
    OZ_TRY(oz_gguf_int(&eot, g, "tokenizer.ggml.eot_token_id", 0, max, err));
    OZ_TRY(oz_gguf_int(&pad, g, "tokenizer.ggml.padding_token_id", 0, max, err));
    if (bos >= 0) json_object_set_new(config, "bos_token_id", json_integer(bos));
    if (pad >= 0) json_object_set_new(config, "pad_token_id", json_integer(pad));
    if (eos >= 0 && eot >= 0 && eot != eos) {
        json_object_set_new(config, "eos_token_id", json_pack("[I, I]", (json_int_t)eos, (json_int_t)eot));
    } else if (eos >= 0) {
        json_object_set_new(config, "eos_token_id", json_integer(eos));
    }
    return OZ_OK;
}

static oz_status fill_config(json_t *config, loader *l, oz_err *err) {
    const oz_ckpt *c = l->c;
    const dims *d = &l->d;
    const oz_tensor *embed = added(c, "model.embed_tokens.weight");
    OZ_NEED(embed && embed->n_dims == 2, err, OZ_E_FORMAT, "%s: token_embd.weight: expected a matrix, found %s", l->g->where,
            embed ? "another shape" : "none");
    l->d.vocab = embed->dims[0];
    OZ_TRY(arch_int(&(int64_t){0}, l, "vocab_size", d->vocab, d->vocab, err));
    const struct {
        const char *key;
        int64_t value;
    } ints[] = {
        {"hidden_size", d->hidden},
        {"intermediate_size", d->intermediate},
        {"num_hidden_layers", d->n_layers},
        {"num_attention_heads", d->n_heads},
        {"num_key_value_heads", d->n_heads_kv},
        {"head_dim", d->head_dim},
        {"max_position_embeddings", d->max_len},
        {"vocab_size", d->vocab},
    };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) json_object_set_new(config, ints[i].key, json_integer(ints[i].value));
    json_object_set_new(config, "architectures", json_pack("[s]", l->arch->class_name));
    json_object_set_new(config, "model_type", json_string(l->arch->model_type));
    json_object_set_new(config, "rms_norm_eps", json_real(shortest(d->eps)));
    json_object_set_new(config, "rope_theta", json_real(shortest(d->rope_theta)));
    json_object_set_new(config, "tie_word_embeddings", json_boolean(!added(c, "lm_head.weight")));
    json_object_set_new(config, "torch_dtype", json_string(torch_dtype(c)));
    if (l->arch->bit != ARCH_QWEN2) {
        json_object_set_new(config, "attention_bias", json_boolean(added(c, "model.layers.0.self_attn.o_proj.bias")));
    }
    if (l->arch->bit == ARCH_LLAMA) json_object_set_new(config, "mlp_bias", json_boolean(added(c, "model.layers.0.mlp.up_proj.bias")));
    json_t *scaling = NULL;
    OZ_TRY(rope_scaling(&scaling, l, err));
    json_object_set_new(config, "rope_scaling", scaling);
    return oz_gguf_special_ids(config, l->g, d->vocab, err);
}

oz_status oz_gguf_load(oz_ckpt *c, const char *path, oz_err *err) {
    size_t map;
    OZ_TRY(oz_ckpt_map(c, &map, path, err));
    oz_gguf g;
    OZ_TRY(oz_gguf_parse(&g, c->maps[map].data, c->maps[map].n_bytes, path, true, err));
    loader l = {.c = c, .g = &g};
    oz_status st = find_arch(&l, err);
    if (st == OZ_OK) st = refuse_foreign(&l, err);
    if (st == OZ_OK) st = read_dims(&l, err);
    if (st == OZ_OK) st = load_tensors(&l, err);
    if (st == OZ_OK) {
        c->config = json_loads(l.arch->fixed, 0, NULL);
        st = fill_config(c->config, &l, err);
    }
    oz_gguf_deinit(&g);
    return st;
}
