/* Speed, and what the machine would allow. The prediction is a roofline summed over the plan's steps: each takes the larger of the time to
 * read its bytes (packed weights, keys and values) and the time of its multiply-adds at the ceiling of its kind. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "measure/internal.h"

enum { MAX_REPS = 1000, MAX_PASSES = 3 };

/* The ceiling of a step's multiply-adds. Plain ones, or where a device is not measured in those, its matrix units. */
static double flop_s(oz_form form, const oz_ceiling *ceil) {
    if (form == OZ_FORM_Q8) return ceil->i8_op_s;
    const bool in_16_bits = form == OZ_FORM_BF16 || form == OZ_FORM_F16;
    return (in_16_bits && ceil->bf16_flop_s > 0) || ceil->f32_flop_s <= 0 ? ceil->bf16_flop_s : ceil->f32_flop_s;
}

/* A step's bytes, operations and prediction go to the steps that are alike, or to new ones. */
static oz_bench_kernel *kernel_of(oz_bench_row *o, const oz_step_info *s) {
    for (size_t i = 0; i < o->n_kernels; i++) {
        const oz_step_info *k = &o->kernels[i].step;
        if (k->op == s->op && strcmp(k->modules, s->modules) == 0 && strcmp(k->kernel, s->kernel) == 0) return &o->kernels[i];
    }
    oz_bench_kernel *k = &o->kernels[o->n_kernels++];
    *k = (oz_bench_kernel){.step = *s};
    k->step.bytes = k->step.flop = 0;
    return k;
}

/* Of all steps, for `units` (decode steps; prompts): what one of them must read and do, and the least time it takes. */
static void predict(oz_bench_row *o, const oz_model *m, const oz_pass *pass, double units, const oz_ceiling *ceil, const int64_t *step_ns) {
    double us = 0, memory_us = 0;
    o->kernels = oz_alloc_array(oz_model_step_count(m), sizeof *o->kernels);
    for (size_t i = 0; i < oz_model_step_count(m); i++) {
        const oz_step_info s = oz_model_step_at(m, i, pass);
        const double mem = s.bytes / units / ceil->read_bytes_s * 1e6, alu = s.flop / units / flop_s(s.form, ceil) * 1e6, least = fmax(mem, alu);
        oz_bench_kernel *k = kernel_of(o, &s);
        k->n++, k->step.bytes += s.bytes / units, k->step.flop += s.flop / units, k->predicted_us += least, k->by_memory = mem > alu;
        if (step_ns) k->us += (double)step_ns[i] / units * 1e-3;
        o->bytes += s.bytes / units, o->flop += s.flop / units;
        us += least, memory_us += mem > alu ? mem : 0;
    }
    o->predicted_tok_s = (double)(o->prefill ? o->n_tok : o->batch) * 1e6 / us;
    o->bound = memory_us * 2 > us ? "memory" : "compute";
}

typedef struct room { oz_state *state; int32_t *ids, *blocks, *rows; oz_seg *segs; oz_row_stat *stats; int64_t blocks_seq, *step_ns; } room;

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
        const oz_call call = {.ids = r->ids + at, .n_tok = k, .segs = r->segs, .n_segs = 1, .rows = r->rows, .n_rows = at + k == n, .step_ns = r->step_ns};
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
        const oz_call call = {.ids = r->ids, .n_tok = batch, .segs = r->segs, .n_segs = batch, .rows = r->rows, .n_rows = batch, .step_ns = r->step_ns};
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

static oz_status run(oz_model *m, room *r, const oz_bench_cfg *c, int64_t n_gen, oz_err *err) {
    return c->n_gen == 0 ? prefill(m, r, c->n_prompt, err) : decode(m, r, n_gen, c->batch, err);
}

static oz_status repeat(double *tok_s, oz_model *m, room *r, const oz_bench_cfg *c, oz_err *err) {
    const int64_t n = c->n_gen == 0 ? c->n_prompt : c->n_gen;
    oz_progress p;
    oz_progress_init(&p, c->n_gen == 0 ? "prefill" : "decode", "runs", c->reps + 1);
    oz_status st = OZ_OK;
    for (int i = -1; st == OZ_OK && i < c->reps; i++) { /* the first one warms up */
        oz_progress_step(&p, i + 1);
        if (oz_interrupted()) st = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted");
        const int64_t t0 = oz_clock_us();
        if (st == OZ_OK) st = run(m, r, c, i < 0 && n > 8 ? 8 : n, err);
        if (i >= 0) tok_s[i] = (double)(n * c->batch) * 1e6 / (double)(oz_clock_us() - t0 + 1);
    }
    oz_progress_deinit(&p);
    return st;
}

/* Each step's time in the fastest of some passes; *total of that. */
static oz_status steps_time(int64_t *best, int64_t *total, oz_model *m, room *r, const oz_bench_cfg *c, oz_err *err) {
    const size_t n_bytes = oz_model_step_count(m) * sizeof *best;
    *total = INT64_MAX;
    r->step_ns = oz_alloc(n_bytes);
    oz_status st = OZ_OK;
    for (int i = 0; st == OZ_OK && i < c->reps && i < MAX_PASSES; i++) {
        memset(r->step_ns, 0, n_bytes);
        const int64_t t0 = oz_clock_ns();
        st = oz_interrupted() ? oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted") : run(m, r, c, c->n_gen, err);
        const int64_t ns = oz_clock_ns() - t0;
        if (ns >= *total) continue;
        *total = ns;
        memcpy(best, r->step_ns, n_bytes);
    }
    oz_free(r->step_ns);
    r->step_ns = NULL;
    return st;
}

oz_status oz_bench_run(oz_bench_row *out, oz_model *m, const oz_bench_cfg *c, const oz_ceiling *ceil, oz_err *err) {
    const bool pre = c->n_gen == 0, by_steps = !oz_model_get(m)->fused;
    const int64_t n = pre ? c->n_prompt : c->n_gen;
    OZ_TRY(oz_bench_check(m, c, err));
    *out = (oz_bench_row){.prefill = pre, .n_tok = n, .batch = c->batch, .reps = c->reps};
    room r = {0};
    double tok_s[MAX_REPS];
    int64_t total = 0, *step_ns = oz_alloc_array(oz_model_step_count(m), sizeof *step_ns);
    oz_status st = room_init(&r, m, c, n, err);
    if (st == OZ_OK) st = repeat(tok_s, m, &r, c, err);
    if (st == OZ_OK && by_steps) st = steps_time(step_ns, &total, m, &r, c, err);
    if (st == OZ_OK) {
        const double units = pre ? 1 : (double)n;
        summarize(out, tok_s, c->reps);
        predict(out, m, &(oz_pass){n, pre ? oz_model_get(m)->max_tok : 1, c->batch, pre ? 1 : n * c->batch}, units, ceil, by_steps ? step_ns : NULL);
        out->share = out->tok_s / out->predicted_tok_s;
        out->other_us = (double)total * 1e-3 / units;
        for (size_t i = 0; i < out->n_kernels; i++) out->other_us -= out->kernels[i].us;
        if (!by_steps) oz_bench_row_deinit(out);
    }
    room_deinit(&r);
    oz_free(step_ns);
    return st;
}

void oz_bench_row_deinit(oz_bench_row *r) {
    oz_free(r->kernels);
    r->kernels = NULL, r->n_kernels = 0;
}
