/* Speed, and what the machine would allow. The prediction is a roofline summed over modules: each takes the larger of the time to
 * read its packed bytes and the time of its multiply-adds at the ceiling of its kind; attention adds its own reads and FLOPs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "measure/internal.h"

enum { MAX_REPS = 1000 };

typedef struct cost { double bytes, flop, seconds, memory_seconds; } cost;

static void cost_add(cost *c, double bytes, double flop, double flop_s, const oz_ceiling *ceil) {
    const double mem = bytes / ceil->read_bytes_s, alu = flop / flop_s;
    c->bytes += bytes, c->flop += flop;
    c->seconds += mem > alu ? mem : alu;
    if (mem > alu) c->memory_seconds += mem;
}

/* The ceiling of what no scheme quantizes, and of FP8: plain multiply-adds, or where a device is not measured in those its matrix units. */
static double plain_flop_s(const oz_ceiling *ceil) { return ceil->f32_flop_s > 0 ? ceil->f32_flop_s : ceil->bf16_flop_s; }

static double module_flop_s(const oz_model_info *f, const oz_scheme *scheme, const oz_ceiling *ceil) {
    if (scheme->act == OZ_ACT_I8_TOKEN) return ceil->i8_op_s;
    return scheme->act == OZ_ACT_NONE && strcmp(f->dtype, "bf16") == 0 && ceil->bf16_flop_s > 0 ? ceil->bf16_flop_s : plain_flop_s(ceil);
}

/* One pass of n_tok rows of `batch` sequences whose contexts hold `context` keys on average; n_rows of them reach the head. */
static cost step_cost(const oz_model *m, int64_t n_tok, int64_t n_rows, double context, int64_t batch, const oz_ceiling *ceil) {
    const oz_model_info *f = oz_model_get(m);
    cost c = {0};
    const size_t n = oz_model_module_count(m);
    bool head_seen = false;
    for (size_t i = 0; i <= n; i++) {
        const bool tied = i == n; /* a tied head is the embedding's own packed weight */
        if (tied && head_seen) break;
        const oz_model_module mod = oz_model_module_at(m, tied ? 0 : i);
        const bool embed = !tied && strcmp(mod.name, "model.embed_tokens") == 0, head = tied || strcmp(mod.name, "lm_head") == 0;
        if (embed) continue;
        head_seen |= head;
        const double flop = 2.0 * (double)oz_packed_rows(mod.packed) * (double)oz_packed_cols(mod.packed) * (double)(head ? n_rows : n_tok);
        cost_add(&c, (double)oz_packed_bytes(mod.packed), flop, module_flop_s(f, mod.scheme, ceil), ceil);
    }
    const double flop = 4.0 * (double)(f->n_layers * f->n_heads * f->head_dim) * context * (double)n_tok;
    cost_add(&c, (double)f->kv_bytes_tok * context * (double)batch, flop, plain_flop_s(ceil), ceil);
    return c;
}

typedef struct room { oz_state *state; int32_t *ids, *blocks, *rows; oz_seg *segs; oz_row_stat *stats; int64_t blocks_seq; } room;

oz_status oz_bench_check(const oz_model *m, const oz_bench_cfg *c, oz_err *err) {
    const oz_model_info *f = oz_model_get(m);
    const bool pre = c->n_gen == 0;
    const int64_t n = pre ? c->n_prompt : c->n_gen;
    OZ_NEED(n >= 1 && c->batch >= 1 && c->reps >= 1 && c->reps <= MAX_REPS, err, OZ_E_ARG, "tokens, batch and repetitions must be at least 1, repetitions at most %d", MAX_REPS);
    OZ_NEED(n <= f->max_len, err, OZ_E_ARG, "--n-%s %lld: the model takes %lld tokens", pre ? "prompt" : "gen", (long long)n, (long long)f->max_len);
    OZ_NEED(c->batch <= f->max_tok, err, OZ_E_ARG, "--batch %lld: at most %lld sequences a call", (long long)c->batch, (long long)f->max_tok);
    return OZ_OK;
}

static oz_status room_init(room *r, oz_model *m, const oz_bench_cfg *c, int64_t len, oz_err *err) {
    const oz_model_info *f = oz_model_get(m);
    r->blocks_seq = (len + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    const int64_t n_blocks = r->blocks_seq * c->batch, n_ids = c->n_prompt > c->batch ? c->n_prompt : c->batch;
    r->ids = oz_alloc_array((size_t)n_ids, sizeof *r->ids);
    r->blocks = oz_alloc_array((size_t)n_blocks, sizeof *r->blocks);
    r->rows = oz_alloc_array((size_t)c->batch, sizeof *r->rows);
    r->segs = oz_alloc_array((size_t)c->batch, sizeof *r->segs);
    r->stats = oz_alloc_array((size_t)c->batch, sizeof *r->stats);
    oz_rng rng;
    oz_rng_init(&rng, 1);
    for (int64_t i = 0; i < n_ids; i++) r->ids[i] = (int32_t)(oz_rng_next(&rng) % (uint64_t)f->vocab_size);
    for (int64_t i = 0; i < n_blocks; i++) r->blocks[i] = (int32_t)i;
    return oz_state_new(&r->state, m, n_blocks, c->batch, err);
}

static void room_deinit(room *r) {
    oz_state_free(&r->state);
    void *const owned[] = {r->ids, r->blocks, r->rows, r->segs, r->stats};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) oz_free(owned[i]);
}

static oz_status prefill(oz_model *m, room *r, int64_t n, oz_err *err) {
    const int64_t step = oz_model_get(m)->max_tok;
    for (int64_t at = 0; at < n; at += step) {
        const int64_t k = n - at < step ? n - at : step;
        r->segs[0] = (oz_seg){0, k, at, r->blocks};
        r->rows[0] = (int32_t)(k - 1);
        const oz_call call = {.ids = r->ids + at, .n_tok = k, .segs = r->segs, .n_segs = 1, .rows = r->rows, .n_rows = at + k == n};
        OZ_TRY(oz_model_run(m, r->state, &call, &(oz_sink){at + k == n ? OZ_SINK_STAT : OZ_SINK_NONE, r->stats, NULL}, err));
    }
    return OZ_OK;
}

static oz_status decode(oz_model *m, room *r, int64_t n, int64_t batch, oz_err *err) {
    for (int64_t pos = 0; pos < n; pos++) {
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        for (int64_t b = 0; b < batch; b++) {
            r->segs[b] = (oz_seg){b, 1, pos, r->blocks + b * r->blocks_seq};
            r->rows[b] = (int32_t)b;
        }
        const oz_call call = {.ids = r->ids, .n_tok = batch, .segs = r->segs, .n_segs = batch, .rows = r->rows, .n_rows = batch};
        OZ_TRY(oz_model_run(m, r->state, &call, &(oz_sink){OZ_SINK_STAT, r->stats, NULL}, err));
        for (int64_t b = 0; b < batch; b++) r->ids[b] = r->stats[b].argmax;
    }
    return OZ_OK;
}

static int cmp(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarize(oz_bench_row *o, double *tok_s, int n) {
    double mean = 0.0, var = 0.0;
    for (int i = 0; i < n; i++) mean += tok_s[i] / n;
    for (int i = 0; i < n; i++) var += (tok_s[i] - mean) * (tok_s[i] - mean) / (n > 1 ? n - 1 : 1);
    qsort(tok_s, (size_t)n, sizeof *tok_s, cmp);
    o->tok_s = n % 2 ? tok_s[n / 2] : (tok_s[n / 2 - 1] + tok_s[n / 2]) / 2;
    o->tok_s_sd = sqrt(var);
}

oz_status oz_bench_run(oz_bench_row *out, oz_model *m, const oz_bench_cfg *c, const oz_ceiling *ceil, oz_err *err) {
    const bool pre = c->n_gen == 0;
    const int64_t n = pre ? c->n_prompt : c->n_gen;
    OZ_TRY(oz_bench_check(m, c, err));
    *out = (oz_bench_row){.prefill = pre, .n_tok = n, .batch = c->batch, .reps = c->reps};
    const double mean_context = ((double)n + 1) / 2;
    const cost k = pre ? step_cost(m, n, 1, mean_context, 1, ceil) : step_cost(m, c->batch, c->batch, mean_context, c->batch, ceil);
    out->bytes = k.bytes, out->flop = k.flop;
    out->predicted_tok_s = (double)(pre ? n : c->batch) / k.seconds;
    out->bound = k.memory_seconds * 2 > k.seconds ? "memory" : "compute";
    room r = {0};
    double tok_s[MAX_REPS];
    oz_progress p;
    oz_progress_init(&p, pre ? "prefill" : "decode", "runs", c->reps + 1);
    oz_status st = room_init(&r, m, c, n, err);
    for (int i = -1; st == OZ_OK && i < c->reps; i++) { /* the first one warms up */
        oz_progress_step(&p, i + 1);
        if (oz_interrupted()) st = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted");
        const int64_t t0 = oz_clock_us();
        if (st == OZ_OK) st = pre ? prefill(m, &r, n, err) : decode(m, &r, i < 0 ? (n < 8 ? n : 8) : n, c->batch, err);
        if (i >= 0) tok_s[i] = (double)(n * c->batch) * 1e6 / (double)(oz_clock_us() - t0 + 1);
    }
    oz_progress_deinit(&p);
    room_deinit(&r);
    OZ_TRY(st);
    summarize(out, tok_s, c->reps);
    out->share = out->tok_s / out->predicted_tok_s;
    return OZ_OK;
}
