/* GGUF files as Hugging Face checkpoints: names, shapes, values and config; tokenizer files; everything that must be refused.
 * The files and what they mean come from tests/gen/gen_gguf.py. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DIR "tests/golden/gguf/"

static oz_ckpt *open_ok(const char *path) {
    oz_ckpt *c = NULL;
    oz_err err = {0};
    if (oz_ckpt_open(&c, path, &err) != OZ_OK) fail_msg("%s", err.msg);
    return c;
}

static json_t *load_json(const char *path) {
    json_t *v = NULL;
    oz_err err = {0};
    if (oz_json_load(&v, path, 1 << 20, &err) != OZ_OK) fail_msg("%s", err.msg);
    return v;
}

/* Row r in Hugging Face's order, as f32. */
static void read_row(float *dst, const oz_tensor *t, int64_t rows, int64_t cols, int64_t r) {
    oz_weight w = {.rows = rows, .rope_heads = t->rope_heads};
    size_t row_bytes;
    assert_true(oz_dtype_bytes(&row_bytes, t->dtype, cols));
    oz_to_f32(dst, t->dtype, (const char *)t->data + (size_t)oz_weight_stored_row(&w, r) * row_bytes, cols);
}

static void check_tensor(const oz_tensor *t, const char *name, const json_t *want) {
    const json_t *dims = json_object_get(want, "dims"), *last = json_object_get(want, "last");
    assert_string_equal(oz_dtype_get(t->dtype)->name, json_string_value(json_object_get(want, "dtype")));
    assert_int_equal(t->n_dims, json_array_size(dims));
    for (int i = 0; i < t->n_dims; i++) assert_int_equal(t->dims[i], json_integer_value(json_array_get(dims, (size_t)i)));
    assert_int_equal(t->rope_heads, json_integer_value(json_object_get(want, "rope_heads")));
    bool one_row = t->n_dims == 1 && t->rope_heads == 0;
    int64_t rows = one_row ? 1 : t->dims[0], cols = one_row ? t->dims[0] : t->n_dims == 1 ? 1 : t->dims[1];
    float row[512];
    assert_true(cols <= 512);
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t r = 0; r < rows; r++) {
        read_row(row, t, rows, cols, r);
        for (int64_t c = 0; c < cols; c++) {
            uint16_t b = oz_bf16_from_f32(row[c]);
            h = (h ^ (b & 255)) * 0x100000001b3u;
            h = (h ^ (b >> 8)) * 0x100000001b3u;
        }
    }
    for (int64_t c = 0; c < cols && cols >= 4 && c < 4; c++) {
        if ((double)row[c] != json_number_value(json_array_get(last, (size_t)c)))
            fail_msg("%s[-1][%d]: %.9g", name, (int)c, (double)row[c]);
    }
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
    if (strcmp(hex, json_string_value(json_object_get(want, "fnv_bf16"))) != 0) fail_msg("%s: other values than the generator's", name);
}

static void check_tensors(const char *model) {
    char path[256];
    snprintf(path, sizeof path, DIR "%s.gguf", model);
    oz_ckpt *c = open_ok(path);
    snprintf(path, sizeof path, DIR "%s.expect.json", model);
    json_t *expect = load_json(path);
    const char *name;
    json_t *want;
    assert_true(oz_ckpt_is_gguf(c));
    assert_int_equal(oz_ckpt_count(c), json_object_size(expect));
    json_object_foreach(expect, name, want) {
        const oz_tensor *t = oz_ckpt_find(c, name);
        if (!t) fail_msg("%s is missing", name);
        check_tensor(t, name, want);
    }
    json_decref(expect);
    oz_ckpt_close(&c);
}

static void test_tensors(void **state) {
    check_tensors("llama");
    check_tensors("qwen3");
    check_tensors("types");
    check_tensors("mixtral");
    check_tensors("gemma3");
    check_tensors("phi3");
}

static void check_config(const char *path, const char *want) {
    oz_ckpt *c = open_ok(path);
    json_t *expected = json_loads(want, 0, NULL);
    assert_non_null(expected);
    if (!json_equal(oz_ckpt_config(c), expected)) {
        char *found = json_dumps(oz_ckpt_config(c), JSON_SORT_KEYS);
        fail_msg("%s: %s", path, found);
    }
    json_decref(expected);
    oz_ckpt_close(&c);
}

static void test_config(void **state) {
    check_config(DIR "llama.gguf",
                 "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, \"attention_dropout\": 0.0, \"bos_token_id\": 0, "
                 "\"eos_token_id\": 1, \"head_dim\": 16, \"hidden_act\": \"silu\", \"hidden_size\": 64, \"initializer_range\": 0.02, "
                 "\"intermediate_size\": 96, \"max_position_embeddings\": 128, \"mlp_bias\": false, \"model_type\": \"llama\", "
                 "\"num_attention_heads\": 4, \"num_hidden_layers\": 2, \"num_key_value_heads\": 2, \"pad_token_id\": 1, "
                 "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 100000.0, "
                 "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"vocab_size\": 265}");
    check_config(
        DIR "qwen3.gguf",
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": 0, "
        "\"eos_token_id\": [1, 0], \"head_dim\": 32, \"hidden_act\": \"silu\", \"hidden_size\": 32, \"initializer_range\": 0.02, "
        "\"intermediate_size\": 64, \"max_position_embeddings\": 128, \"model_type\": \"qwen3\", "
        "\"num_attention_heads\": 2, \"num_hidden_layers\": 1, \"num_key_value_heads\": 1, \"pad_token_id\": 1, "
        "\"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"rope_scaling\": {\"factor\": 4.0, "
        "\"original_max_position_embeddings\": 32, \"rope_type\": \"yarn\"}, \"sliding_window\": null, \"tie_word_embeddings\": false, "
        "\"torch_dtype\": \"float16\", \"use_cache\": true, \"use_sliding_window\": false, \"vocab_size\": 265}");
    check_config(DIR "mixtral.gguf",
                 "{\"architectures\": [\"MixtralForCausalLM\"], \"attention_dropout\": 0.0, \"head_dim\": 16, \"hidden_act\": \"silu\", \"hidden_size\": 32, "
                 "\"initializer_range\": 0.02, \"intermediate_size\": 32, \"max_position_embeddings\": 128, \"model_type\": \"mixtral\", \"num_attention_heads\": 2, "
                 "\"num_experts_per_tok\": 2, \"num_hidden_layers\": 2, \"num_key_value_heads\": 1, \"num_local_experts\": 3, \"rms_norm_eps\": 1e-05, "
                 "\"rope_scaling\": null, \"rope_theta\": 10000.0, \"sliding_window\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "
                 "\"use_cache\": true, \"vocab_size\": 8}");
    check_config(DIR "gemma3.gguf",
                 "{\"architectures\": [\"Gemma3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, \"attn_logit_softcapping\": null, "
                 "\"final_logit_softcapping\": null, \"head_dim\": 24, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size\": 32, \"initializer_range\": 0.02, "
                 "\"intermediate_size\": 64, \"max_position_embeddings\": 128, \"model_type\": \"gemma3_text\", \"num_attention_heads\": 2, \"num_hidden_layers\": 2, "
                 "\"num_key_value_heads\": 1, \"query_pre_attn_scalar\": 24, \"rms_norm_eps\": 1e-05, \"rope_local_base_freq\": 10000.0, "
                 "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"rope_theta\": 1000000.0, \"sliding_window\": 16, \"sliding_window_pattern\": 6, "
                 "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"vocab_size\": 8}");
    check_config(DIR "phi3.gguf",
                 "{\"architectures\": [\"Phi3ForCausalLM\"], \"attention_dropout\": 0.0, \"head_dim\": 32, \"hidden_act\": \"silu\", \"hidden_size\": 64, "
                 "\"initializer_range\": 0.02, \"intermediate_size\": 32, \"max_position_embeddings\": 128, \"model_type\": \"phi3\", \"num_attention_heads\": 2, "
                 "\"num_hidden_layers\": 1, \"num_key_value_heads\": 1, \"original_max_position_embeddings\": 32, \"partial_rotary_factor\": 0.75, \"rms_norm_eps\": 1e-05, "
                 "\"rope_scaling\": {\"attention_factor\": 1.0, \"long_factor\": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5], \"rope_type\": \"longrope\", "
                 "\"short_factor\": [1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875, 2.0, 2.125, 2.25, 2.375]}, \"rope_theta\": 10000.0, \"sliding_window\": null, "
                 "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"vocab_size\": 8}");
}

/* Numbers of any width; a scaling that is named, and one that only a tensor of factors tells of. No tokenizer, no template. */
static void test_rope_scaling(void **state) {
    static const char *const want[][2] = {
        {DIR "rope-linear.gguf", "{\"factor\": 2.5, \"rope_type\": \"linear\"}"},
        {DIR "rope-llama3.gguf", "{\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
                                 "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}"},
    };
    for (size_t i = 0; i < 2; i++) {
        oz_ckpt *c = open_ok(want[i][0]);
        json_t *scaling = json_loads(want[i][1], 0, NULL);
        const json_t *config = oz_ckpt_config(c);
        assert_true(json_equal(json_object_get(config, "rope_scaling"), scaling));
        assert_true(json_real_value(json_object_get(config, "rms_norm_eps")) == 1e-6);
        assert_int_equal(json_integer_value(json_object_get(config, "num_key_value_heads")), 1);
        assert_int_equal(json_integer_value(json_object_get(config, "max_position_embeddings")), 131072);
        assert_null(json_object_get(config, "eos_token_id"));
        assert_string_equal(json_string_value(json_object_get(config, "torch_dtype")), "float32");
        assert_int_equal(oz_ckpt_count(c), 2);
        json_decref(scaling);
        oz_ckpt_close(&c);
        oz_text_files f = {0};
        oz_err err = {0};
        assert_int_equal(oz_text_files_open(&f, want[i][0], &err), OZ_OK);
        assert_null(f.tokenizer);
        oz_text_files_close(&f);
    }
}

/* ---- files with keys more ---- */
typedef struct more_key { const char *key; int type; double v; const char *s; } more_key; /* type: GGUF's U32 4, F32 6, BOOL 7, STR 8; key NULL: none */

static void put(oz_buf *b, const void *p, size_t n) { oz_buf_append(b, p, n); }

static void put_str(oz_buf *b, const char *s, size_t n) {
    const uint64_t len = n;
    put(b, &len, 8);
    for (size_t i = 0; i < n; i++) put(b, i < strlen(s) ? &s[i] : "-", 1);
}

static void put_key(oz_buf *b, const more_key *k) {
    const uint32_t type = (uint32_t)k->type, u = (uint32_t)k->v;
    const float f = (float)k->v;
    put_str(b, k->key, strlen(k->key));
    put(b, &type, 4);
    if (k->type == 8) put_str(b, k->s, strlen(k->s));
    else put(b, k->type == 6 ? (const void *)&f : &u, k->type == 7 ? 1 : 4);
}

/* base with the keys before its own, and one of a length that leaves the data where it is aligned. */
static oz_status open_with(oz_ckpt **c, const char *base, const more_key *more, int n, oz_err *err) {
    oz_buf file = {0}, head = {0};
    char path[] = "/tmp/ounce-gguf-XXXXXX.gguf";
    assert_int_equal(oz_file_read(&file, base, 1 << 20, err), OZ_OK);
    uint64_t count;
    memcpy(&count, file.data + 16, 8);
    put(&head, file.data, 24);
    for (int i = 0; i < n && more[i].key; i++) put_key(&head, &more[i]), count++;
    const uint32_t str = 8;
    put_str(&head, "padding", 7), put(&head, &str, 4);
    put_str(&head, "", 64 + 24 - (head.len + 8) % 64), count++;
    memcpy(head.data + 16, &count, 8);
    put(&head, file.data + 24, file.len - 24);
    const int fd = mkstemps(path, 5);
    assert_int_equal(write(fd, head.data, head.len), head.len);
    close(fd);
    const oz_status st = oz_ckpt_open(c, path, err);
    unlink(path);
    oz_buf_deinit(&file), oz_buf_deinit(&head);
    return st;
}

/* Every key of the architecture is read, known to change nothing, or refused by its name. */
static void test_keys(void **state) {
    static const struct { const char *base; more_key k; const char *want; } cases[] = {
        {"llama", {"llama.attention.causal", 7, 0, NULL}, "llama.attention.causal: must be 1, found 0"},
        {"llama", {"llama.attention.causal", 7, 1, NULL}, NULL},
        {"llama", {"llama.attention.max_alibi_bias", 6, 8, NULL}, "llama.attention.max_alibi_bias: must be 0, found 8"},
        {"llama", {"llama.use_parallel_residual", 7, 1, NULL}, "llama.use_parallel_residual: must be 0, found 1"},
        {"llama", {"llama.attention.scale", 6, 0.5, NULL}, "llama.attention.scale: must be 0, found 0.5"},
        {"llama", {"llama.logit_scale", 6, 3, NULL}, "llama.logit_scale: must be 1, found 3"},
        {"llama", {"llama.attention.sliding_window", 4, 8, NULL}, "llama.attention.sliding_window: must be 0, found 8"},
        {"llama", {"llama.swin_norm", 7, 1, NULL}, "llama.swin_norm: not known of a llama model"},
        {"llama", {"llama.hidden_act", 8, 0, "gelu"}, "llama.hidden_act: not known of a llama model"},
        {"llama", {"llama.nextn_predict_layers", 4, 1, NULL}, "llama.nextn_predict_layers: must be 0, found 1"},
        {"llama", {"llama.tensor_data_layout", 8, 0, "Meta AI original pth"}, NULL},
        {"llama", {"general.type", 8, 0, "adapter"}, "general.type: must be model, found adapter"},
        {"llama", {"general.type", 8, 0, "mmproj"}, "general.type: must be model, found mmproj"},
        {"llama", {"general.type", 8, 0, "model"}, NULL},
        {"llama", {"other.attention.causal", 7, 0, NULL}, NULL},
        {"mixtral", {"llama.expert_weights_scale", 6, 3, NULL}, "llama.expert_weights_scale: must be 1, found 3"},
        {"mixtral", {"llama.expert_gating_func", 4, 2, NULL}, "llama.expert_gating_func: must be 1, found 2"},
        {"mixtral", {"llama.expert_gating_func", 4, 1, NULL}, NULL},
        {"mixtral", {"llama.expert_weights_norm", 7, 0, NULL}, "llama.expert_weights_norm: must be 1, found 0"},
        {"mixtral", {"llama.expert_shared_count", 4, 1, NULL}, "llama.expert_shared_count: must be 0, found 1"},
        {"gemma3", {"gemma3.attn_logit_softcapping", 6, 50, NULL}, "gemma3.attn_logit_softcapping: must be 0, found 50"},
        {"gemma3", {"gemma3.rope.freq_base_swa", 6, 10000, NULL}, NULL},
        {"llama", {"llama.rope.freq_base_swa", 6, 10000, NULL}, "llama.rope.freq_base_swa: not known of a llama model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_err err = {0};
        oz_ckpt *c = NULL;
        char base[64];
        snprintf(base, sizeof base, DIR "%s.gguf", cases[i].base);
        const oz_status st = open_with(&c, base, &cases[i].k, 1, &err);
        if (cases[i].want ? st == OZ_OK || !strstr(err.msg, cases[i].want) : st != OZ_OK)
            fail_msg("%s: expected \"%s\", found \"%s\"", cases[i].k.key, cases[i].want ? cases[i].want : "", err.msg);
        oz_ckpt_close(&c);
    }
}

#define YARN "rope.scaling.type", 8, 0, "yarn"
#define LINEAR "rope.scaling.type", 8, 0, "linear"

/* The scaling as llama.cpp means its keys: a factor without a type is linear, attn_factor multiplies what yarn has. */
static void test_rope_keys(void **state) {
    static const struct { const char *base; more_key k[4]; const char *want; } cases[] = {
        {"llama", {{"llama.rope.scaling.factor", 6, 4, NULL}}, "{\"factor\": 4.0, \"rope_type\": \"linear\"}"},
        {"llama", {{"llama.rope.scale_linear", 6, 4, NULL}}, "{\"factor\": 4.0, \"rope_type\": \"linear\"}"},
        {"llama", {{"llama.rope.scale_linear", 6, 4, NULL}, {"llama.rope.scaling.factor", 6, 2, NULL}}, "{\"factor\": 2.0, \"rope_type\": \"linear\"}"},
        {"llama", {{"llama." LINEAR}, {"llama.rope.scale_linear", 6, 4, NULL}}, "{\"factor\": 4.0, \"rope_type\": \"linear\"}"},
        {"llama", {{"llama.rope.scaling.type", 8, 0, "none"}, {"llama.rope.scaling.factor", 6, 4, NULL}}, "null"},
        {"llama", {{"llama.rope.scaling.factor", 6, 0, NULL}}, "null"},
        {"llama", {{"llama." YARN}, {"llama.rope.scaling.factor", 6, 4, NULL}}, "{\"factor\": 4.0, \"original_max_position_embeddings\": 128, \"rope_type\": \"yarn\"}"},
        {"llama", {{"llama." YARN}, {"llama.rope.scaling.factor", 6, 4, NULL}, {"llama.rope.scaling.attn_factor", 6, 2, NULL}}, /* 2 (0.1 ln 4 + 1) */
         "{\"attention_factor\": 2.2772589, \"factor\": 4.0, \"original_max_position_embeddings\": 128, \"rope_type\": \"yarn\"}"},
        {"llama", {{"llama." YARN}, {"llama.rope.scaling.factor", 6, 4, NULL}, {"llama.rope.scaling.attn_factor", 6, 2, NULL}, {"llama.rope.scaling.yarn_attn_factor", 6, 1.5, NULL}},
         "{\"attention_factor\": 3.0, \"factor\": 4.0, \"original_max_position_embeddings\": 128, \"rope_type\": \"yarn\"}"},
        {"llama", {{"llama." YARN}}, "llama.rope.scaling.factor is missing, needed by rope.scaling.type yarn"},
        {"llama", {{"llama." LINEAR}, {"llama.rope.scaling.factor", 6, 4, NULL}, {"llama.rope.scaling.attn_factor", 6, 2, NULL}}, "llama.rope.scaling.attn_factor: must be 1"},
        {"llama", {{"llama.rope.scaling.attn_factor", 6, 2, NULL}}, "llama.rope.scaling.attn_factor: must be 1"},
        {"llama", {{"llama.rope.scaling.attn_factor", 6, -1, NULL}}, "llama.rope.scaling.attn_factor: must be above 0, found -1"},
        {"llama", {{"llama.rope.scaling.type", 8, 0, "longrope"}}, "llama.rope.scaling.type: must be none, linear or yarn, found longrope"},
        {"llama", {{"llama." YARN}, {"llama.rope.scaling.factor", 6, 4, NULL}, {"llama.rope.scaling.yarn_log_multiplier", 6, 0.1, NULL}}, "llama.rope.scaling.yarn_log_multiplier: must be 0"},
        {"rope-llama3", {{"llama.rope.scaling.factor", 6, 4, NULL}}, "llama.rope.scaling.factor: must be 1 beside tensors"},
        {"rope-llama3", {{"llama.rope.scaling.attn_factor", 6, 2, NULL}}, "llama.rope.scaling.attn_factor: must be 1"},
        {"rope-llama3", {{"llama." YARN}}, "llama.rope.scaling.type: must be none or linear beside rope_freqs.weight, found yarn"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_err err = {0};
        oz_ckpt *c = NULL;
        char base[64];
        snprintf(base, sizeof base, DIR "%s.gguf", cases[i].base);
        const oz_status st = open_with(&c, base, cases[i].k, 4, &err);
        char *found = st == OZ_OK ? json_dumps(json_object_get(oz_ckpt_config(c), "rope_scaling"), JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(8)) : NULL;
        if (found ? strcmp(found, cases[i].want) != 0 : !strstr(err.msg, cases[i].want)) fail_msg("%zu: expected \"%s\", found \"%s\"", i, cases[i].want, found ? found : err.msg);
        free(found);
        oz_ckpt_close(&c);
    }
    oz_err err = {0};
    oz_ckpt *c = NULL;
    const more_key phi3[] = {{"phi3.rope.scaling.attn_factor", 6, 1.25, NULL}, {"phi3.rope.scaling.type", 8, 0, "longrope"}};
    assert_int_equal(open_with(&c, DIR "phi3.gguf", phi3, 2, &err), OZ_OK);
    assert_true(json_real_value(json_object_get(json_object_get(oz_ckpt_config(c), "rope_scaling"), "attention_factor")) == 1.25);
    oz_ckpt_close(&c);
}

static oz_text_files text_ok(const char *path) {
    oz_text_files f = {0};
    oz_err err = {0};
    if (oz_text_files_open(&f, path, &err) != OZ_OK) fail_msg("%s", err.msg);
    return f;
}

static const char *str_at(const json_t *v, const char *key) { return json_string_value(json_object_get(v, key)); }

static void test_tokenizer(void **state) {
    oz_text_files f = text_ok(DIR "llama.gguf");
    const json_t *model = json_object_get(f.tokenizer, "model"), *words = json_object_get(model, "vocab");
    assert_string_equal(str_at(model, "type"), "BPE");
    assert_int_equal(json_object_size(words), 264); /* 265 less the unused one */
    assert_int_equal(json_integer_value(json_object_get(words, "the")), 261);
    assert_null(json_object_get(words, "[PAD3]"));
    const json_t *merge = json_array_get(json_object_get(model, "merges"), 2);
    assert_int_equal(json_array_size(json_object_get(model, "merges")), 5);
    assert_string_equal(json_string_value(json_array_get(merge, 0)), "\xc4\xa0"); /* the byte alphabet's space */
    assert_string_equal(json_string_value(json_array_get(merge, 1)), "the");
    const json_t *added = json_object_get(f.tokenizer, "added_tokens");
    assert_int_equal(json_array_size(added), 3);
    assert_string_equal(str_at(json_array_get(added, 1), "content"), "<|im_end|>");
    assert_true(json_is_true(json_object_get(json_array_get(added, 1), "special")));
    assert_true(json_is_false(json_object_get(json_array_get(added, 2), "special"))); /* <tool>: the user's */
    const json_t *pre = json_object_get(json_object_get(f.tokenizer, "pre_tokenizer"), "pretokenizers");
    assert_string_equal(str_at(json_array_get(pre, 0), "type"), "Digits");
    assert_true(json_is_null(json_object_get(f.tokenizer, "post_processor")));
    assert_string_equal(str_at(f.tokenizer_config, "bos_token"), "<|im_start|>");
    assert_string_equal(str_at(f.tokenizer_config, "eos_token"), "<|im_end|>");
    assert_true(json_is_null(json_object_get(f.tokenizer_config, "unk_token")));
    assert_int_equal(json_integer_value(json_object_get(f.tokenizer_config, "model_max_length")), 128);
    assert_string_equal(str_at(f.tokenizer_config, "chat_template"), f.chat_template);
    assert_true(oz_str_starts(f.chat_template, "{% for m in messages %}"));
    assert_int_equal(json_integer_value(json_object_get(f.generation_config, "eos_token_id")), 1);
    oz_text_files_close(&f);
}

static void test_tokenizer_with_bos(void **state) {
    oz_text_files f = text_ok(DIR "qwen3.gguf");
    const json_t *post = json_object_get(f.tokenizer, "post_processor");
    assert_string_equal(str_at(json_object_get(f.tokenizer, "normalizer"), "type"), "NFC");
    assert_string_equal(str_at(post, "type"), "Sequence");
    const json_t *template = json_array_get(json_object_get(post, "processors"), 1);
    json_t *single = json_loads(
        "[{\"SpecialToken\": {\"id\": \"<|im_start|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}]", 0, NULL);
    assert_true(json_equal(json_object_get(template, "single"), single));
    assert_int_equal(json_array_size(json_object_get(template, "pair")), 4);
    json_decref(single);
    const json_t *eos = json_object_get(f.generation_config, "eos_token_id"); /* end of text and end of turn */
    assert_int_equal(json_array_size(eos), 2);
    oz_text_files_close(&f);
}

static void check_refused(const char *name, const char *want) {
    char path[256];
    snprintf(path, sizeof path, DIR "bad/%s.gguf", name);
    bool text = oz_str_starts(want, "text: ");
    oz_err err = {0};
    oz_ckpt *c = NULL;
    oz_text_files f = {0};
    oz_status st = text ? oz_text_files_open(&f, path, &err) : oz_ckpt_open(&c, path, &err);
    if (st == OZ_OK) fail_msg("%s was accepted", name);
    assert_int_equal(st, err.code);
    if (!strstr(err.msg, want + (text ? 6 : 0))) fail_msg("%s: expected \"%s\", found \"%s\"", name, want, err.msg);
    assert_null(c);
    assert_null(f.tokenizer);
}

static void test_refused(void **state) {
    oz_buf list = {0};
    oz_err err = {0};
    assert_int_equal(oz_file_read(&list, DIR "bad/expect.txt", 1 << 20, &err), OZ_OK);
    int n = 0;
    for (char *save = NULL, *line = strtok_r(list.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        char *tab = strchr(line, '\t');
        assert_non_null(tab);
        *tab = 0;
        check_refused(line, tab + 1);
    }
    assert_true(n >= 60);
    oz_buf_deinit(&list);
}

/* A number that no model has, or that does not go with the others, is said by the key that holds it. */
static void test_numbers(void **state) {
    static const struct { const char *key; uint32_t value; const char *want; } cases[] = {
        {"llama.block_count", 1025, "llama.block_count: must be 1..1024, found 1025"},
        {"llama.embedding_length", (1 << 20) + 1, "llama.embedding_length: must be 1..1048576"},
        {"llama.feed_forward_length", 1u << 30, "llama.feed_forward_length: must be 1..268435456"},
        {"llama.context_length", 1u << 31, "llama.context_length: "},
        {"llama.attention.head_count", 7, "llama.attention.head_count"},
        {"llama.attention.head_count_kv", 3, "llama.attention.head_count_kv: must divide attention.head_count 4, found 3"},
    };
    oz_buf file = {0};
    oz_err err = {0};
    assert_int_equal(oz_file_read(&file, DIR "llama.gguf", 1 << 20, &err), OZ_OK);
    char path[] = "/tmp/ounce-gguf-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].key);
        char *at = memmem(file.data, file.len, cases[i].key, n);
        while (at && (uint8_t)at[n] != 4) at = memmem(at + 1, file.len - (size_t)(at + 1 - file.data), cases[i].key, n); /* 4: the type u32 follows */
        assert_non_null(at);
        assert_int_equal(pwrite(fd, file.data, file.len, 0), file.len);
        assert_int_equal(pwrite(fd, &cases[i].value, 4, at + n + 4 - file.data), 4);
        oz_ckpt *c = NULL;
        oz_err_clear(&err);
        if (oz_ckpt_open(&c, path, &err) == OZ_OK) fail_msg("%s = %u was accepted", cases[i].key, cases[i].value);
        if (!strstr(err.msg, cases[i].want)) fail_msg("%s = %u: expected \"%s\", found \"%s\"", cases[i].key, cases[i].value, cases[i].want, err.msg);
    }
    close(fd);
    remove(path);
    oz_buf_deinit(&file);
}

/* Every prefix of a good file is refused, and no byte of it is read beyond its end (the sanitizer sees it). */
static void test_prefixes(void **state) {
    oz_buf file = {0};
    oz_err err = {0};
    assert_int_equal(oz_file_read(&file, DIR "qwen3.gguf", 1 << 20, &err), OZ_OK);
    char path[] = "/tmp/ounce-gguf-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    close(fd);
    for (size_t n = file.len - 1; n > 0; n = n > 9000 ? n - 997 : n > 61 ? n - 61 : n - 1) {
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(file.data, 1, n, f), n);
        fclose(f);
        oz_ckpt *c = NULL;
        oz_err_clear(&err);
        if (oz_ckpt_open(&c, path, &err) == OZ_OK) fail_msg("accepted %zu of %zu bytes", n, file.len);
    }
    remove(path);
    oz_buf_deinit(&file);
}

/* Damage at a random place: a byte, or a count of eight. It is refused with a message, or it is another file that can be read. */
static void test_mutations(void **state) {
    oz_buf file = {0};
    oz_err err = {0};
    assert_int_equal(oz_file_read(&file, DIR "llama.gguf", 1 << 20, &err), OZ_OK);
    char path[] = "/tmp/ounce-gguf-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_int_equal(pwrite(fd, file.data, file.len, 0), file.len);
    static const uint64_t counts[] = {0, 1, 1u << 31, UINT64_MAX, (uint64_t)1 << 63, INT64_MAX, UINT32_MAX};
    oz_rng rng;
    oz_rng_init(&rng, 5);
    int refused = 0;
    for (int i = 0; i < 1500; i++) {
        size_t at = oz_rng_next(&rng) % 6300; /* header, metadata and infos */
        uint64_t r = oz_rng_next(&rng), value = i % 2 ? r : counts[r % 7];
        size_t n = i % 2 ? 1 : 8;
        assert_int_equal(pwrite(fd, &value, n, (off_t)at), n);
        oz_ckpt *c = NULL;
        oz_err_clear(&err);
        if (oz_ckpt_open(&c, path, &err) == OZ_OK)
            oz_ckpt_close(&c);
        else
            refused++;
        assert_true(!c && (err.code == OZ_OK) == (err.msg[0] == 0));
        oz_text_files f = {0};
        oz_err_clear(&err);
        if (oz_text_files_open(&f, path, &err) == OZ_OK)
            oz_text_files_close(&f);
        else
            assert_true(err.msg[0] && !f.tokenizer);
        assert_int_equal(pwrite(fd, file.data + at, n, (off_t)at), n);
    }
    assert_true(refused > 300);
    close(fd);
    remove(path);
    oz_buf_deinit(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_rope_scaling), cmocka_unit_test(test_keys), cmocka_unit_test(test_rope_keys),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_tokenizer_with_bos),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
