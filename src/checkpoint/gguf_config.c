/* The metadata of a GGUF as a config.json that says the same. A table holds the architectures; what only one of them says is its own function. A key that
 * changes the function of the model is read or refused (gguf_keys.c), never passed over in silence. */
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef oz_gguf_model model;

/* ---- metadata ---- */
static void arch_key(char key[96], const model *m, const char *name) { snprintf(key, 96, "%s.%s", m->arch->name, name); }

static bool has_key(const model *m, const char *name) {
    char key[96];
    arch_key(key, m, name);
    return oz_gguf_find(m->g, key);
}

static oz_status arch_int(int64_t *out, const model *m, const char *name, int64_t min, int64_t max, oz_err *err) {
    char key[96];
    arch_key(key, m, name);
    return oz_gguf_int(out, m->g, key, min, max, err);
}

static oz_status need_int(int64_t *out, const model *m, const char *name, int64_t max, oz_err *err) {
    char key[96];
    arch_key(key, m, name);
    OZ_NEED(oz_gguf_find(m->g, key), err, OZ_E_FORMAT, "%s: %s is missing", m->g->where, key);
    return oz_gguf_int(out, m->g, key, 1, max, err);
}

static oz_status arch_float(float *out, const model *m, const char *name, oz_err *err) {
    char key[96];
    arch_key(key, m, name);
    return oz_gguf_float(out, m->g, key, err);
}

static const oz_tensor *added(const oz_ckpt *c, const char *name) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    }
    return NULL;
}

/* The value of the shortest decimal that is f: 1e-05, where (double)f would print 9.999999747378752e-06. */
static double shortest(float f) {
    char s[32];
    int digits = 1;
    do snprintf(s, sizeof s, "%.*g", digits++, (double)f);
    while (digits <= 9 && strtof(s, NULL) != f);
    return strtod(s, NULL);
}

static void set_int(json_t *config, const char *key, int64_t v) { json_object_set_new(config, key, json_integer(v)); }
static void set_float(json_t *config, const char *key, float v) { json_object_set_new(config, key, json_real(shortest(v))); }
static void set_bool(json_t *config, const char *key, bool v) { json_object_set_new(config, key, json_boolean(v)); }

/* ---- what single architectures say ---- */
static oz_status attention_bias(json_t *config, const model *m, oz_err *err) {
    set_bool(config, "attention_bias", added(m->c, "model.layers.0.self_attn.o_proj.bias"));
    return OZ_OK;
}

static oz_status llama(json_t *config, const model *m, oz_err *err) {
    set_bool(config, "mlp_bias", added(m->c, "model.layers.0.mlp.up_proj.bias"));
    return attention_bias(config, m, err);
}

static oz_status mixtral(json_t *config, const model *m, oz_err *err) {
    int64_t used = 0;
    OZ_TRY(need_int(&used, m, "expert_used_count", m->d.n_experts, err));
    set_int(config, "num_local_experts", m->d.n_experts);
    set_int(config, "num_experts_per_tok", used);
    return OZ_OK;
}

/* Gemma's scale on q . k is not stored: head_dim's, but for the 27B models, known by their depth, that of hidden_size / n_heads. */
static oz_status gemma(json_t *config, const model *m, int64_t depth_27b, oz_err *err) {
    set_int(config, "query_pre_attn_scalar", m->d.n_layers == depth_27b ? m->d.hidden / m->d.n_heads : m->d.head_dim);
    float cap = 0;
    OZ_TRY(arch_float(&cap, m, "final_logit_softcapping", err));
    json_object_set_new(config, "final_logit_softcapping", cap > 0 ? json_real(shortest(cap)) : json_null());
    return OZ_OK;
}

static oz_status gemma2(json_t *config, const model *m, oz_err *err) {
    int64_t window = 4096;
    float cap = 0;
    OZ_TRY(arch_int(&window, m, "attention.sliding_window", 1, INT32_MAX, err));
    OZ_TRY(arch_float(&cap, m, "attn_logit_softcapping", err));
    set_int(config, "sliding_window", window);
    json_object_set_new(config, "attn_logit_softcapping", cap > 0 ? json_real(shortest(cap)) : json_null());
    return gemma(config, m, 46, err);
}

static oz_status gemma3(json_t *config, const model *m, oz_err *err) {
    int64_t window = 0, pattern = 6;
    float local = 10000.0f;
    OZ_TRY(arch_int(&window, m, "attention.sliding_window", 0, INT32_MAX, err));
    OZ_TRY(arch_int(&pattern, m, "attention.sliding_window_pattern", 1, INT32_MAX, err));
    OZ_TRY(arch_float(&local, m, "rope.freq_base_swa", err));
    set_int(config, "sliding_window", window > 0 ? window : m->d.max_len);
    set_int(config, "sliding_window_pattern", window > 0 ? pattern : 1);
    set_float(config, "rope_local_base_freq", local);
    return gemma(config, m, 62, err);
}

static oz_status phi3(json_t *config, const model *m, oz_err *err) {
    int64_t window = 0, original = m->d.max_len;
    OZ_TRY(arch_int(&window, m, "attention.sliding_window", 0, INT32_MAX, err));
    OZ_TRY(arch_int(&original, m, "rope.scaling.original_context_length", 1, INT32_MAX, err));
    json_object_set_new(config, "sliding_window", window > 0 ? json_integer(window) : json_null());
    set_int(config, "original_max_position_embeddings", original);
    json_object_set_new(config, "partial_rotary_factor", json_real((double)m->d.rope_dim / (double)m->d.head_dim));
    return OZ_OK;
}

/* ---- the table ---- */
#define SILU "\"hidden_act\": \"silu\", \"attention_dropout\": 0.0, \"initializer_range\": 0.02, \"use_cache\": true"
#define NO_WINDOW ", \"sliding_window\": null, \"use_sliding_window\": false}"
#define GEMMA "\"hidden_activation\": \"gelu_pytorch_tanh\", \"attention_bias\": false, \"attention_dropout\": 0.0, \"initializer_range\": 0.02, \"use_cache\": true"

static const oz_gguf_arch archs[] = {
    {"llama", OZ_GGUF_LLAMA, false, "llama", "LlamaForCausalLM", true, 0, "{" SILU ", \"pretraining_tp\": 1}", llama},
    {"llama", OZ_GGUF_MIXTRAL, true, "mixtral", "MixtralForCausalLM", true, 0, "{" SILU ", \"sliding_window\": null}", mixtral},
    {"qwen2", OZ_GGUF_QWEN2, false, "qwen2", "Qwen2ForCausalLM", false, 0, "{" SILU NO_WINDOW, NULL},
    {"qwen3", OZ_GGUF_QWEN3, false, "qwen3", "Qwen3ForCausalLM", false, 0, "{" SILU NO_WINDOW, attention_bias},
    {"gemma2", OZ_GGUF_GEMMA2, false, "gemma2", "Gemma2ForCausalLM", false, 1, "{" GEMMA "}", gemma2},
    {"gemma3", OZ_GGUF_GEMMA3, false, "gemma3_text", "Gemma3ForCausalLM", false, 1, "{" GEMMA ", \"attn_logit_softcapping\": null}", gemma3},
    {"phi3", OZ_GGUF_PHI3, false, "phi3", "Phi3ForCausalLM", false, 0, "{" SILU "}", phi3},
};

oz_status oz_gguf_arch_find(oz_gguf_model *m, oz_err *err) {
    oz_slice name = {0};
    OZ_TRY(oz_gguf_str(&name, m->g, "general.architecture", err));
    OZ_NEED(name.p, err, OZ_E_FORMAT, "%s: general.architecture is missing", m->g->where);
    oz_buf known = {0};
    bool named = false;
    oz_status st = OZ_OK;
    for (size_t i = 0; i < sizeof archs / sizeof *archs && st == OZ_OK && !m->arch; i++) {
        if (!archs[i].experts) oz_buf_printf(&known, "%s%s", i ? ", " : "", archs[i].name);
        if (!oz_slice_eq(name, oz_slice_view(archs[i].name))) continue;
        named = true;
        m->arch = &archs[i];
        m->d.n_experts = 0;
        st = arch_int(&m->d.n_experts, m, "expert_count", 0, 4096, err);
        if (archs[i].experts != (m->d.n_experts > 0)) m->arch = NULL;
    }
    if (st == OZ_OK && named && !m->arch)
        st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: %.*s.expert_count: this kind of %.*s model is not run here", m->g->where, (int)name.n, name.p, (int)name.n, name.p);
    else if (st == OZ_OK && !named)
        st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: general.architecture: must be one of %s, found %.*s", m->g->where, known.data,
                        (int)(name.n < 100 ? name.n : 100), name.p);
    oz_buf_deinit(&known);
    return st;
}

/* As many as model/config.c takes: what is wrong is said by its name here. */
enum { MAX_LAYERS = 1024, MAX_HEAD_DIM = 1 << 14 };

static oz_status heads_read(oz_gguf_dims *d, const model *m, oz_err *err) {
    const char *a = m->arch->name;
    d->n_heads_kv = d->n_heads;
    OZ_TRY(arch_int(&d->n_heads_kv, m, "attention.head_count_kv", 1, d->n_heads, err));
    OZ_NEED(d->n_heads % d->n_heads_kv == 0, err, OZ_E_FORMAT, "%s: %s.attention.head_count_kv: must divide attention.head_count %" PRId64 ", found %" PRId64, m->g->where, a, d->n_heads, d->n_heads_kv);
    OZ_NEED(has_key(m, "attention.key_length") || d->hidden % d->n_heads == 0, err, OZ_E_FORMAT, "%s: %s.attention.head_count: must divide embedding_length %" PRId64 " where attention.key_length is absent, found %" PRId64,
            m->g->where, a, d->hidden, d->n_heads);
    d->head_dim = d->hidden / d->n_heads;
    OZ_TRY(arch_int(&d->head_dim, m, "attention.key_length", 1, MAX_HEAD_DIM, err));
    OZ_NEED(d->head_dim % 2 == 0, err, OZ_E_FORMAT, "%s: %s.attention.%s: must make heads of an even length, found %" PRId64, m->g->where, a, has_key(m, "attention.key_length") ? "key_length" : "head_count", d->head_dim);
    return OZ_OK;
}

oz_status oz_gguf_dims_read(oz_gguf_model *m, oz_err *err) {
    oz_gguf_dims *d = &m->d;
    OZ_TRY(oz_gguf_keys_check(m, err));
    OZ_TRY(need_int(&d->n_layers, m, "block_count", MAX_LAYERS, err));
    OZ_TRY(need_int(&d->hidden, m, "embedding_length", 1 << 20, err));
    OZ_TRY(need_int(&d->intermediate, m, "feed_forward_length", 1 << 28, err));
    OZ_TRY(need_int(&d->n_heads, m, "attention.head_count", 65535, err));
    OZ_TRY(need_int(&d->max_len, m, "context_length", 1 << 30, err));
    OZ_TRY(heads_read(d, m, err));
    OZ_TRY(arch_int(&(int64_t){0}, m, "attention.value_length", d->head_dim, d->head_dim, err));
    d->rope_dim = d->head_dim;
    OZ_TRY(arch_int(&d->rope_dim, m, "rope.dimension_count", m->arch->bit == OZ_GGUF_PHI3 ? 1 : d->head_dim, d->head_dim, err));
    d->rope_theta = 10000.0f;
    OZ_TRY(arch_float(&d->rope_theta, m, "rope.freq_base", err));
    d->eps = NAN;
    OZ_TRY(arch_float(&d->eps, m, "attention.layer_norm_rms_epsilon", err));
    OZ_NEED(!isnan(d->eps), err, OZ_E_FORMAT, "%s: %s.attention.layer_norm_rms_epsilon is missing", m->g->where, m->arch->name);
    return OZ_OK;
}

/* ---- rope scaling ---- */
typedef struct rope_keys { oz_slice type; float factor, attention; } rope_keys;

static float float_at(const oz_gguf_info *t, int64_t i) {
    float f;
    memcpy(&f, t->data + 4 * i, 4);
    return f;
}

static oz_status check_factors(const model *m, const oz_gguf_info *t, oz_err *err) {
    const int64_t n = m->d.rope_dim / 2;
    OZ_NEED(t->dtype == OZ_DTYPE_F32 && t->n_dims == 1 && t->dims[0] == n, err, OZ_E_FORMAT, "%s: %.*s: expected F32 [%" PRId64 "]", m->g->where, (int)t->name.n,
            t->name.p, n);
    return OZ_OK;
}

enum { LLAMA3_LOW = 1, LLAMA3_HIGH = 4 }; /* of the family's frequency factors */

static double wavelength(const model *m, int64_t i) { return 2 * 3.14159265358979323846 * pow((double)m->d.rope_theta, 2.0 * (double)i / (double)m->d.head_dim); }

/* The length that a Llama 3.1 was trained for, from the first entry between 1 and the factor; 8192 where there is none. */
static double llama3_original(const model *m, double factor) {
    for (int64_t i = 0; i < m->d.head_dim / 2; i++) {
        const double f = (double)float_at(m->rope_freqs, i), smooth = (1.0 / f - 1.0 / factor) / (1.0 - 1.0 / factor);
        if (!(f > 1.001 && f < 0.999 * factor)) continue;
        const double original = rint(wavelength(m, i) * (smooth * (LLAMA3_HIGH - LLAMA3_LOW) + LLAMA3_LOW));
        if (original >= 1.0 && original <= INT32_MAX) return original;
    }
    return 8192.0;
}

/* rope_freqs.weight holds the factor that each frequency is divided by. Files have it for Llama 3.1 and later, whose rule has three parameters that the file
 * does not repeat: what follows from the entries must give all of them back. */
static oz_status llama3_scaling(json_t **out, const model *m, oz_err *err) {
    const int64_t n = m->d.head_dim / 2;
    OZ_TRY(check_factors(m, m->rope_freqs, err));
    float factor = 1.0f;
    for (int64_t i = 0; i < n; i++) factor = fmaxf(factor, float_at(m->rope_freqs, i));
    const double original = llama3_original(m, (double)factor);
    for (int64_t i = 0; i < n; i++) {
        const double f = (double)float_at(m->rope_freqs, i), wave = wavelength(m, i), smooth = (original / wave - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW);
        const double expected = wave < original / LLAMA3_HIGH ? 1.0 : wave > original / LLAMA3_LOW ? (double)factor : 1.0 / ((1.0 - smooth) / (double)factor + smooth);
        OZ_NEED(fabs(f - expected) <= 1e-4 * expected, err, OZ_E_UNSUPPORTED,
                "%s: rope_freqs.weight[%" PRId64 "]: expected %g by Llama 3.1's rule with factor %g and an original length of %g, found %g", m->g->where, i, expected,
                (double)factor, original, f);
    }
    *out = json_pack("{s:f, s:f, s:f, s:I, s:s}", "factor", shortest(factor), "high_freq_factor", (double)LLAMA3_HIGH, "low_freq_factor", (double)LLAMA3_LOW,
                     "original_max_position_embeddings", (json_int_t)original, "rope_type", "llama3");
    return OZ_OK;
}

/* Phi-3's two sets of factors, below and beyond the length that it was trained for; what the vectors are multiplied by is stored. */
static oz_status long_scaling(json_t **out, const model *m, float attention, oz_err *err) {
    const struct { const char *key; const oz_gguf_info *t; } sets[] = {{"long_factor", m->rope_long}, {"short_factor", m->rope_short}};
    OZ_NEED(m->rope_long && m->rope_short, err, OZ_E_FORMAT, "%s: expected rope_factors_long.weight and rope_factors_short.weight, found one of them", m->g->where);
    for (int s = 0; s < 2; s++) OZ_TRY(check_factors(m, sets[s].t, err));
    *out = json_pack("{s:f, s:s}", "attention_factor", shortest(attention), "rope_type", "longrope");
    for (int s = 0; s < 2; s++) {
        json_t *list = json_array();
        for (int64_t i = 0; i < m->d.rope_dim / 2; i++) json_array_append_new(list, json_real(shortest(float_at(sets[s].t, i))));
        json_object_set_new(*out, sets[s].key, list);
    }
    return OZ_OK;
}

/* The file's own factor on the rotated vectors comes on top of yarn's. */
static oz_status yarn_scaling(json_t **out, const model *m, const rope_keys *r, oz_err *err) {
    static const char *const pairs[][2] = {{"yarn_beta_fast", "beta_fast"}, {"yarn_beta_slow", "beta_slow"}};
    int64_t original = m->d.max_len;
    float v = 1.0f, attention = r->factor > 1.0f ? 0.1f * logf(r->factor) + 1.0f : 1.0f;
    OZ_TRY(arch_int(&original, m, "rope.scaling.original_context_length", 1, INT32_MAX, err));
    OZ_TRY(arch_float(&v, m, "rope.scaling.yarn_ext_factor", err));
    OZ_NEED(v == 1.0f, err, OZ_E_UNSUPPORTED, "%s: %s.rope.scaling.yarn_ext_factor: must be 1, found %g", m->g->where, m->arch->name, (double)v);
    OZ_NEED(has_key(m, "rope.scaling.factor"), err, OZ_E_FORMAT, "%s: %s.rope.scaling.factor is missing, needed by rope.scaling.type yarn", m->g->where, m->arch->name);
    *out = json_pack("{s:f, s:I, s:s}", "factor", shortest(r->factor), "original_max_position_embeddings", (json_int_t)original, "rope_type", "yarn");
    OZ_TRY(arch_float(&attention, m, "rope.scaling.yarn_attn_factor", err));
    if (r->attention != 1.0f || has_key(m, "rope.scaling.yarn_attn_factor")) set_float(*out, "attention_factor", attention * r->attention);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char name[64];
        snprintf(name, sizeof name, "rope.scaling.%s", pairs[i][0]);
        if (!has_key(m, name)) continue;
        OZ_TRY(arch_float(&v, m, name, err));
        set_float(*out, pairs[i][1], v);
    }
    return OZ_OK;
}

/* A factor without a type is linear, 0 is none, and a type "none" takes no factor. */
static oz_status rope_keys_read(rope_keys *r, const model *m, oz_err *err) {
    char key[96];
    arch_key(key, m, "rope.scaling.type");
    *r = (rope_keys){oz_slice_view("linear"), 1.0f, 1.0f};
    OZ_TRY(oz_gguf_str(&r->type, m->g, key, err));
    OZ_TRY(arch_float(&r->factor, m, has_key(m, "rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear", err)); /* its name in files of 2023 */
    if (r->factor == 0.0f || oz_slice_eq(r->type, oz_slice_view("none"))) r->factor = 1.0f;
    OZ_TRY(arch_float(&r->attention, m, "rope.scaling.attn_factor", err));
    OZ_NEED(r->attention > 0, err, OZ_E_FORMAT, "%s: %s.rope.scaling.attn_factor: must be above 0, found %g", m->g->where, m->arch->name, (double)r->attention);
    return OZ_OK;
}

static bool is_type(const rope_keys *r, const char *name) { return oz_slice_eq(r->type, oz_slice_view(name)); }

static oz_status rope_scaling(json_t **out, const model *m, oz_err *err) {
    rope_keys r;
    OZ_TRY(rope_keys_read(&r, m, err));
    const bool tables = m->rope_freqs || m->rope_long || m->rope_short, longrope = is_type(&r, "longrope") && (m->rope_long || m->rope_short);
    OZ_NEED(is_type(&r, "none") || is_type(&r, "linear") || longrope || (is_type(&r, "yarn") && !tables), err, OZ_E_UNSUPPORTED, "%s: %s.rope.scaling.type: must be %s, found %.*s", m->g->where,
            m->arch->name, m->rope_freqs ? "none or linear beside rope_freqs.weight" : tables ? "none, linear or longrope beside rope_factors_long.weight" : "none, linear or yarn",
            (int)(r.type.n < 100 ? r.type.n : 100), r.type.p);
    if (is_type(&r, "yarn")) return yarn_scaling(out, m, &r, err);
    OZ_NEED(r.factor == 1.0f || !tables, err, OZ_E_UNSUPPORTED, "%s: %s.rope.scaling.factor: must be 1 beside tensors that scale each frequency, found %g", m->g->where, m->arch->name,
            (double)r.factor);
    if (m->rope_long || m->rope_short) return long_scaling(out, m, r.attention, err);
    OZ_NEED(r.attention == 1.0f, err, OZ_E_UNSUPPORTED, "%s: %s.rope.scaling.attn_factor: must be 1 where rope.scaling.type is not yarn, found %g", m->g->where, m->arch->name,
            (double)r.attention);
    if (m->rope_freqs) return llama3_scaling(out, m, err);
    *out = r.factor == 1.0f ? json_null() : json_pack("{s:f, s:s}", "factor", shortest(r.factor), "rope_type", "linear");
    return OZ_OK;
}

/* ---- the whole config ---- */
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

oz_status oz_gguf_config(json_t *config, oz_gguf_model *m, oz_err *err) {
    const oz_gguf_dims *d = &m->d;
    const oz_tensor *embed = added(m->c, "model.embed_tokens.weight");
    OZ_NEED(embed && embed->n_dims == 2, err, OZ_E_FORMAT, "%s: token_embd.weight: expected a matrix, found %s", m->g->where, embed ? "another shape" : "none");
    m->d.vocab = embed->dims[0];
    OZ_TRY(arch_int(&(int64_t){0}, m, "vocab_size", d->vocab, d->vocab, err));
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
    json_t *fixed = json_loads(m->arch->fixed, 0, NULL), *scaling = NULL;
    json_object_update(config, fixed);
    json_decref(fixed);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) set_int(config, ints[i].key, ints[i].value);
    json_object_set_new(config, "architectures", json_pack("[s]", m->arch->class_name));
    json_object_set_new(config, "model_type", json_string(m->arch->model_type));
    set_float(config, "rms_norm_eps", d->eps);
    set_float(config, "rope_theta", d->rope_theta);
    set_bool(config, "tie_word_embeddings", !added(m->c, "lm_head.weight"));
    json_object_set_new(config, "torch_dtype", json_string(torch_dtype(m->c)));
    if (m->arch->config) OZ_TRY(m->arch->config(config, m, err));
    oz_status st = rope_scaling(&scaling, m, err);
    if (scaling) json_object_set_new(config, "rope_scaling", scaling);
    OZ_TRY(st);
    return oz_gguf_special_ids(config, m->g, d->vocab, err);
}
