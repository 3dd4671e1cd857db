/* A device's lowered programs beside the plain executor, on random models under each scheme: the same weights are opened with a tap (the
 * plain executor runs) and without. Prompts of several sequences, then steps of decoding; in deterministic mode a sequence alone must
 * give the bits that it gives in company. */
#include <unistd.h>
#include "base/file.h"
#include "device.h"
#include "model/model.h"
#include "quantize/quantize.h"

enum { N_SEQ = 5, PROMPT = 13, STEPS = 5, BLOCKS_SEQ = 2, VOCAB = 320 };

static const char config_of[] =
    "{\"model_type\": \"%s\", \"architectures\": [\"%s\"], \"vocab_size\": 320, \"hidden_size\": 256, \"intermediate_size\": 512, \"num_hidden_layers\": 3, \"num_attention_heads\": 6,"
    " \"num_key_value_heads\": 2, \"head_dim\": 64, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000, \"hidden_act\": \"silu\", \"attention_bias\": false,"
    " \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"initializer_range\": 0.05, \"bos_token_id\": 1, \"eos_token_id\": 2}";

typedef struct low { oz_dev *dev; ck *c; oz_ckpt *ckpt; oz_model *plain, *lowered; } low;

static void need(low *l, oz_status st, const oz_err *err) {
    if (st != OZ_OK) ck_fail(l->c, "%s", err->msg);
}

static bool models_open(low *l, const char *folder, const char *family, const char *scheme, const char *dtype) {
    char text[1024];
    oz_err err = {0};
    snprintf(text, sizeof text, config_of, family, strcmp(family, "llama") == 0 ? "LlamaForCausalLM" : "Qwen3ForCausalLM");
    json_t *config = json_loads(text, 0, NULL);
    oz_synth *s = NULL;
    oz_pool *pool = oz_pool_new(1);
    const oz_scheme dense = OZ_SCHEME_DENSE, *of = scheme ? &oz_preset_find(scheme)->scheme : &dense;
    oz_status st = oz_synth_new(&s, config, of, 5, 0, &err);
    if (st == OZ_OK) st = oz_synth_run(s, folder, true, pool, &err);
    oz_synth_free(&s);
    oz_pool_free(&pool);
    json_decref(config);
    if (st == OZ_OK) st = oz_ckpt_open(&l->ckpt, folder, &err);
    if (st == OZ_OK) st = oz_model_open(&l->plain, l->dev, l->ckpt, &(oz_model_cfg){.dtype = dtype, .max_tok = 128, .taps = OZ_TAP_LAYER}, &err);
    if (st == OZ_OK) st = oz_model_open(&l->lowered, l->dev, l->ckpt, &(oz_model_cfg){.dtype = dtype, .max_tok = 128}, &err);
    need(l, st, &err);
    return st == OZ_OK;
}

/* Logits of the last row of each of n sequences: a prompt, then single tokens. out [STEPS + 1, n, VOCAB] */
static void generate(low *l, oz_model *m, float *out, int first, int n) {
    oz_err err = {0};
    oz_state *state = NULL;
    int32_t ids[N_SEQ * PROMPT], rows[N_SEQ], blocks[N_SEQ * BLOCKS_SEQ];
    oz_seg segs[N_SEQ];
    oz_status st = oz_state_new(&state, m, N_SEQ * BLOCKS_SEQ, &err);
    for (int i = 0; i < N_SEQ * BLOCKS_SEQ; i++) blocks[i] = (i * 7 + 3) % (N_SEQ * BLOCKS_SEQ);
    for (int step = 0; st == OZ_OK && step <= STEPS; step++) {
        const int k = step ? 1 : PROMPT, pos = step ? PROMPT + step - 1 : 0;
        for (int s = 0; s < n; s++) {
            segs[s] = (oz_seg){s * k, k, pos, blocks + s * BLOCKS_SEQ};
            rows[s] = s * k + k - 1;
            for (int t = 0; t < k; t++) ids[s * k + t] = ((first + s) * 37 + (pos + t) * 11 + (first + s) * t) % VOCAB;
        }
        const oz_call call = {.ids = ids, .n_tok = n * k, .segs = segs, .n_segs = n, .rows = rows, .n_rows = n};
        st = oz_model_run(m, state, &call, &(oz_sink){OZ_SINK_COPY, out + (size_t)step * (size_t)n * VOCAB, NULL}, &err);
    }
    need(l, st, &err);
    oz_state_free(&state);
}

static double distance(const float *a, const float *b, size_t n) {
    double d = 0, m = 0;
    for (size_t i = 0; i < n; i++) d += (a[i] - (double)b[i]) * (a[i] - (double)b[i]), m += (double)b[i] * b[i];
    return sqrt(d / m);
}

static void models_compare(low *l, const char *what, double bound, bool deterministic) {
    const size_t step = (size_t)N_SEQ * VOCAB, n = (STEPS + 1) * step;
    float *plain = oz_alloc_array(n, sizeof *plain), *lowered = oz_alloc_array(n, sizeof *lowered), *alone = oz_alloc_array(n, sizeof *alone);
    generate(l, l->plain, plain, 0, N_SEQ);
    generate(l, l->lowered, lowered, 0, N_SEQ);
    const double d = distance(lowered, plain, n);
    ck_bound(l->c, d, bound, "%s: lowered and plain differ by %.2e of the logits", what, d);
    generate(l, l->lowered, alone, 3, 1);
    for (int i = 0; deterministic && i <= STEPS; i++) ck_same(l->c, alone + (size_t)i * VOCAB, lowered + (size_t)i * step + 3 * VOCAB, VOCAB * sizeof *alone, "a sequence alone and in company");
    generate(l, l->lowered, plain, 0, N_SEQ); /* again, from the graphs that are there */
    ck_same(l->c, plain, lowered, n * sizeof *plain, "the same call again");
    oz_free(plain), oz_free(lowered), oz_free(alone);
}

int ck_lowered(oz_dev *dev, const char *only, bool deterministic) {
    /* 16-bit activations: a sum that falls on the other side of a rounding; quantized ones: of a code */
    static const struct { const char *scheme, *dtype; double bound; } cases[] = {
        {NULL, "f32", 1e-4},  {NULL, "auto", 2e-2},    {"W8A16", "f32", 1e-4},       {"W8A16", "auto", 2e-2}, {"W4A16", "f32", 1e-4}, {"W4A16", "auto", 2e-2},
        {"W8A8", "f32", 3e-2}, {"W8A8", "auto", 3e-2}, {"FP8_DYNAMIC", "auto", 8e-2}};
    if (only && !strstr("lowered", only)) return 0;
    ck c;
    if (ck_init(&c, "auto", 1, NULL) != OZ_OK) return 1;
    c.slot = "lowered";
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < CK_COUNT(cases); i++, c.n_cases++) {
            char folder[64], what[64];
            snprintf(folder, sizeof folder, "/tmp/check-lowered-%d", (int)getpid());
            snprintf(what, sizeof what, "%s %s %s", f ? "qwen3" : "llama", cases[i].scheme ? cases[i].scheme : "dense", cases[i].dtype);
            low l = {.dev = dev, .c = &c};
            if (models_open(&l, folder, f ? "qwen3" : "llama", cases[i].scheme, cases[i].dtype)) models_compare(&l, what, cases[i].bound, deterministic);
            oz_model_close(&l.plain), oz_model_close(&l.lowered);
            oz_ckpt_close(&l.ckpt);
            char cmd[96];
            snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
            if (system(cmd) != 0) ck_fail(&c, "%s stays behind", folder);
        }
    printf("%-4s %-13s %-10s %6lld cases  bound %-22s used %.2f\n", c.n_fail ? "FAIL" : "ok", deterministic ? "deterministic" : "default", "lowered", (long long)c.n_cases, "plain executor", c.worst);
    if (c.n_fail) printf("    %lld deviations\n", (long long)c.n_fail);
    fflush(stdout);
    const int red = c.n_fail > 0;
    ck_deinit(&c);
    return red;
}
