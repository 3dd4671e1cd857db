/* A device's lowered programs beside the plain executor, on random models under each scheme: the same weights are opened with a tap (the
 * plain executor runs) and without. Prompts of several sequences, over several calls and past a chunk of attention, then steps of decoding. The same calls
 * again must give the same bits; in deterministic mode a sequence must give the same alone, in company and in another place. */
#include <unistd.h>
#include "base/file.h"
#include "device.h"
#include "model/model.h"
#include "quantize/quantize.h"

enum { N_SEQ = 5, PROMPT = 13, PROMPTS = 5, CALLS = PROMPTS + 5, BLOCKS_SEQ = 5, VOCAB = 320, LONG = 100 /* tokens of one prompt in a call that is no graph's */ };

static const char config_of[] =
    "{\"model_type\": \"%s\", \"architectures\": [\"%s\"], \"vocab_size\": 320, \"hidden_size\": 256, \"intermediate_size\": 512, \"num_hidden_layers\": 3, \"num_attention_heads\": 6,"
    " \"num_key_value_heads\": 2, \"head_dim\": 64, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000, \"hidden_act\": \"silu\", \"attention_bias\": false,"
    " \"tie_word_embeddings\": false, \"torch_dtype\": \"%s\", \"initializer_range\": 0.05, \"bos_token_id\": 1, \"eos_token_id\": 2%s}";
/* What their configs say besides. Those that are not `all` stand for steps that others do not have, and run dense and quantized once each. */
typedef struct family { const char *model_type, *class_name, *more; bool all; } family;
static const family families[] = {
    {"llama", "LlamaForCausalLM", "", true},
    {"qwen3", "Qwen3ForCausalLM", "", true},
    {"gemma2", "Gemma2ForCausalLM", ", \"sliding_window\": 24, \"attn_logit_softcapping\": 2.0, \"final_logit_softcapping\": 4.0, \"query_pre_attn_scalar\": 40", false},
    {"gemma3_text", "Gemma3ForCausalLM", ", \"sliding_window\": 24, \"sliding_window_pattern\": 2, \"rope_local_base_freq\": 500.0, \"query_pre_attn_scalar\": 40", false},
    {"phi3", "Phi3ForCausalLM", ", \"partial_rotary_factor\": 0.5, \"sliding_window\": 40", false},
    {"deepseek_v2", "DeepseekV2ForCausalLM", ", \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 48, \"qk_rope_head_dim\": 16, \"v_head_dim\": 64, \"q_lora_rank\": 128, \"n_routed_experts\": 2,"
     " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 128, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, \"topk_method\": \"greedy\"", false},
    {"jamba", "JambaForCausalLM", ", \"attn_layer_period\": 2, \"attn_layer_offset\": 1, \"expert_layer_period\": 2, \"expert_layer_offset\": 1, \"num_experts\": 2, \"num_experts_per_tok\": 2,"
     " \"mamba_d_state\": 16, \"mamba_d_conv\": 4, \"mamba_expand\": 2, \"mamba_dt_rank\": 128", false}};

/* A scheme (NULL: dense), its group size (-1: its own), whether activations are left as they are, --dtype, the checkpoint's own type. */
typedef struct low_case { const char *scheme; int64_t group; bool weights_only; const char *dtype, *own; double bound; } low_case;
typedef struct low { oz_dev *dev; ck *c; oz_ckpt *ckpt; oz_model *plain, *lowered; oz_state *before; } low;

static void need(low *l, oz_status st, const oz_err *err) {
    if (st != OZ_OK) ck_fail(l->c, "%s", err->msg);
}

/* synth's norms are all ones, with which a weight taken for another would not show: 0.5 .. 1.5 instead, different everywhere. */
static bool norms_write(low *l, const char *folder, const char *own) {
    char path[96];
    uint64_t n_head = 0, state = 88172645463325252u;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "r+b");
    char *text = f && fread(&n_head, 1, 8, f) == 8 && n_head < 1 << 20 ? calloc(1, n_head + 1) : NULL;
    json_t *head = text && fread(text, 1, n_head, f) == n_head ? json_loads(text, 0, NULL) : NULL, *t;
    const char *name;
    int n_norms = 0;
    json_object_foreach(head, name, t) {
        if (strlen(name) < 11 || strcmp(name + strlen(name) - 11, "norm.weight")) continue;
        const json_t *at = json_object_get(t, "data_offsets");
        const long begin = (long)json_integer_value(json_array_get(at, 0)), end = (long)json_integer_value(json_array_get(at, 1));
        fseek(f, (long)n_head + 8 + begin, SEEK_SET);
        for (long i = begin; i < end; i += 2) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            const float v = 0.5f + (float)(state >> 40) * 0x1p-24f;
            const uint16_t h = strcmp(own, "float16") ? oz_bf16_from_f32(v) : oz_f16_from_f32(v);
            fwrite(&h, 1, 2, f);
        }
        n_norms++;
    }
    json_decref(head);
    free(text);
    const bool written = f && !ferror(f) && fclose(f) == 0 && n_norms > 0;
    if (!written) ck_fail(l->c, "%s: norms were not written", path);
    return written;
}

static bool models_open(low *l, const char *folder, const family *f, const low_case *of) {
    char text[2048];
    oz_err err = {0};
    snprintf(text, sizeof text, config_of, f->model_type, f->class_name, of->own, f->more);
    json_t *config = json_loads(text, 0, NULL);
    oz_synth *s = NULL;
    oz_pool *pool = oz_pool_new(1);
    oz_scheme scheme = of->scheme ? oz_preset_find(of->scheme)->scheme : OZ_SCHEME_DENSE;
    if (of->group >= 0) scheme.group_size = of->group;
    if (of->weights_only) scheme.act = OZ_ACT_NONE;
    oz_status st = oz_synth_new(&s, config, &scheme, 5, 0, &err);
    if (st == OZ_OK) st = oz_synth_run(s, folder, true, pool, &err);
    oz_synth_free(&s);
    oz_pool_free(&pool);
    json_decref(config);
    if (st == OZ_OK && !norms_write(l, folder, of->own)) return false;
    if (st == OZ_OK) st = oz_ckpt_open(&l->ckpt, folder, &err);
    if (st == OZ_OK) st = oz_model_open(&l->plain, l->dev, l->ckpt, &(oz_model_cfg){.dtype = of->dtype, .max_tok = 128, .taps = OZ_TAP_LAYER}, &err);
    if (st == OZ_OK) st = oz_model_open(&l->lowered, l->dev, l->ckpt, &(oz_model_cfg){.dtype = of->dtype, .max_tok = 128}, &err);
    need(l, st, &err);
    return st == OZ_OK;
}

/* Logits of the last row of each of n sequences: calls with PROMPT tokens of each, then single tokens. out [CALLS, n, VOCAB]. The state before this one
 * lives until then, so that the new one has another address. */
static void generate(low *l, oz_model *m, float *out, int first, int n) {
    oz_err err = {0};
    oz_state *state = NULL;
    int32_t ids[N_SEQ * PROMPT], rows[N_SEQ], blocks[N_SEQ * BLOCKS_SEQ];
    oz_seg segs[N_SEQ];
    oz_status st = oz_state_new(&state, m, N_SEQ * BLOCKS_SEQ, N_SEQ, &err);
    for (int i = 0; i < N_SEQ * BLOCKS_SEQ; i++) blocks[i] = (i * 7 + 3) % (N_SEQ * BLOCKS_SEQ);
    for (int call_no = 0, pos = 0, k; st == OZ_OK && call_no < CALLS; call_no++, pos += k) {
        k = call_no < PROMPTS ? PROMPT : 1;
        for (int s = 0; s < n; s++) {
            segs[s] = (oz_seg){s * k, k, pos, blocks + s * BLOCKS_SEQ};
            rows[s] = s * k + k - 1;
            for (int t = 0; t < k; t++) ids[s * k + t] = ((first + s) * 37 + (pos + t) * 11 + (first + s) * t) % VOCAB;
        }
        const oz_call call = {.ids = ids, .n_tok = n * k, .segs = segs, .n_segs = n, .rows = rows, .n_rows = n};
        st = oz_model_run(m, state, &call, &(oz_sink){OZ_SINK_COPY, out + (size_t)call_no * (size_t)n * VOCAB, NULL}, &err);
    }
    need(l, st, &err);
    oz_state_free(&l->before);
    l->before = state;
}

/* Logits of two rows of one prompt of LONG tokens: [2, VOCAB]. */
static void prefill(low *l, oz_model *m, float *out) {
    oz_err err = {0};
    oz_state *state = NULL;
    int32_t ids[LONG], rows[2] = {LONG / 2, LONG - 1}, blocks[(LONG + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK];
    for (int i = 0; i < LONG; i++) ids[i] = (i * 29 + 5) % VOCAB;
    for (int i = 0; i < CK_COUNT(blocks); i++) blocks[i] = CK_COUNT(blocks) - 1 - i;
    oz_status st = oz_state_new(&state, m, CK_COUNT(blocks), 1, &err);
    const oz_call call = {.ids = ids, .n_tok = LONG, .segs = &(oz_seg){0, LONG, 0, blocks}, .n_segs = 1, .rows = rows, .n_rows = 2};
    if (st == OZ_OK) st = oz_model_run(m, state, &call, &(oz_sink){OZ_SINK_COPY, out, NULL}, &err);
    need(l, st, &err);
    oz_state_free(&state);
}

static double distance(const float *a, const float *b, size_t n) {
    double d = 0, m = 0;
    for (size_t i = 0; i < n; i++) d += (a[i] - (double)b[i]) * (a[i] - (double)b[i]), m += (double)b[i] * b[i];
    return sqrt(d / m);
}

static void models_compare(low *l, const char *what, double bound, bool deterministic) {
    const size_t row = VOCAB * sizeof(float), step = (size_t)N_SEQ * VOCAB, n = CALLS * step;
    float *plain = oz_alloc_array(n, sizeof *plain), *lowered = oz_alloc_array(n, sizeof *lowered), *alone = oz_alloc_array(n, sizeof *alone), *again = oz_alloc_array(n, sizeof *again);
    generate(l, l->plain, plain, 0, N_SEQ);
    generate(l, l->lowered, lowered, 0, N_SEQ);
    const double d = distance(lowered, plain, n);
    ck_bound(l->c, d, bound, "%s: lowered and plain differ by %.2e of the logits", what, d);
    generate(l, l->lowered, alone, 3, 1);
    for (int i = 0; deterministic && i < CALLS; i++) ck_same(l->c, alone + (size_t)i * VOCAB, lowered + (size_t)i * step + 3 * VOCAB, row, "a sequence alone and in company");
    generate(l, l->lowered, again, 3, 1);
    ck_same(l->c, again, alone, CALLS * row, "the same calls again");
    /* the next sequences, from the graphs of the first ones and in another state: each is where its neighbour was */
    generate(l, l->lowered, again, 1, N_SEQ);
    for (int i = 0; i < CALLS; i++) {
        const float *here = again + (size_t)i * step, *there = lowered + (size_t)i * step + VOCAB;
        const double moved = distance(here, there, step - VOCAB);
        if (deterministic) ck_same(l->c, here, there, (N_SEQ - 1) * row, "sequences in other places");
        ck_bound(l->c, moved, bound, "%s: call %d: sequences in other places differ by %.2e of the logits", what, i, moved);
    }
    prefill(l, l->plain, plain);
    prefill(l, l->lowered, lowered);
    const double of_long = distance(lowered, plain, 2 * VOCAB);
    const double of_two = bound >= 3e-2 ? 2 * bound : bound; /* inputs are rounded to codes, and two rows alone are no mean over many */
    ck_bound(l->c, of_long, of_two, "%s: prompt of %d tokens: lowered and plain differ by %.2e of the logits", what, LONG, of_long);
    oz_free(plain), oz_free(lowered), oz_free(alone), oz_free(again);
}

void ck_lowered(dck *k) {
    /* 16-bit activations: a sum that falls on the other side of a rounding; quantized ones: of a code. Groups: each instance of the streaming pair. */
    static const low_case cases[] = {
        {NULL, -1, false, "f32", "bfloat16", 1e-4},  {NULL, -1, false, "auto", "bfloat16", 2e-2},  {NULL, -1, false, "auto", "float16", 5e-3},
        {"W8A16", 0, false, "f32", "bfloat16", 1e-4}, {"W8A16", 0, false, "auto", "bfloat16", 2e-2}, {"W8A16", 0, false, "auto", "float16", 5e-3},
        {"W4A16", 128, false, "f32", "bfloat16", 1e-4}, {"W4A16", 128, false, "auto", "bfloat16", 2e-2}, {"W4A16", 128, false, "auto", "float16", 5e-3},
        {"W4A16", 64, false, "auto", "bfloat16", 2e-2}, {"W4A16", 64, false, "auto", "float16", 5e-3}, {"W4A16", 32, false, "auto", "bfloat16", 2e-2},
        {"W4A16", 32, false, "auto", "float16", 5e-3}, {"W8A16", 64, false, "auto", "bfloat16", 2e-2}, {"W8A16", 32, false, "auto", "bfloat16", 2e-2},
        {"FP8_DYNAMIC", 0, true, "auto", "bfloat16", 2e-2}, {"FP8_DYNAMIC", 0, true, "auto", "float16", 5e-3},
        {"W8A8", 0, false, "f32", "bfloat16", 3e-2}, {"W8A8", 0, false, "auto", "bfloat16", 3e-2}, {"FP8_DYNAMIC", 0, false, "auto", "bfloat16", 8e-2}};
    for (int i = 0; i < CK_COUNT(families) * CK_COUNT(cases); i++) {
        const low_case *of = &cases[i / CK_COUNT(families)];
        const family *f = &families[i % CK_COUNT(families)];
        const bool of_some = (!of->scheme || of->group <= 0 || of->group == 128) && !of->weights_only && strcmp(of->own, "bfloat16") == 0;
        if (!f->all && !of_some) continue;
        char folder[64], what[64], cmd[96];
        if (ck_skip(k->c)) continue;
        k->c->n_cases++;
        snprintf(folder, sizeof folder, "/tmp/check-lowered-%d", (int)getpid());
        snprintf(what, sizeof what, "%s %s group %d %s", f->model_type, of->scheme ? of->scheme : "dense", (int)of->group, of->dtype);
        low l = {.dev = k->dev, .c = k->c};
        if (models_open(&l, folder, f, of)) models_compare(&l, what, of->bound, k->deterministic);
        oz_state_free(&l.before);
        oz_model_close(&l.plain), oz_model_close(&l.lowered);
        oz_ckpt_close(&l.ckpt);
        snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
        if (system(cmd) != 0) ck_fail(k->c, "%s stays behind", folder);
    }
}
