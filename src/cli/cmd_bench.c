/* ounce bench: llama-bench-like rows, each beside what it must move and do, and what this machine's ceiling allows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "measure/measure.h"

enum { MAX_BATCHES = 32 };
static const double MUCH_SCATTER = 0.2; /* among the repetitions of a ceiling */
static int64_t n_prompt = 512, n_gen = 128, reps = 5;
static const char *batches = "1";
static const oz_opt opts[] = {
    {"n-prompt", 'p', OZ_OPT_INT, &n_prompt, 0, 1 << 20, NULL, "N", "prefill of N tokens, logits of the last one only; 0: none"},
    {"n-gen", 'n', OZ_OPT_INT, &n_gen, 0, 1 << 20, NULL, "N", "decode of N tokens from an empty cache; 0: none"},
    {"batch", 'b', OZ_OPT_STR, &batches, 0, 0, NULL, "LIST", "sequences decoded together, comma separated: 1,8,64"},
    {"repetitions", 'r', OZ_OPT_INT, &reps, 1, 1000, NULL, "N", "repetitions after one warm-up; the median is shown"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"bench", "MODEL [-p 512] [-n 128] [-b 1,8,64] [-r 5]", "speed beside this machine's roofline",
                               "predicted: each step takes the larger of reading its packed weights, keys and values at the measured read bandwidth and doing its multiply-adds at the measured "
                               "ceiling (int8 for W8A8; for the others bf16 with --dtype bf16 and on CUDA, else f32); share: measured / predicted; bound: which of the two takes longer; MB, GFLOP: what the prompt or a decode step must read and do. "
                               "Below a test stand its steps, those of all layers together, from a pass of its own with a clock at every step (on the CPU: on CUDA steps are fused): n of them, their time and their share of the ceiling. "
                               "pp: prefill (prompt processing), tg: decode (text generation).",
                               tables, 1, 1};

static oz_status batches_parse(int64_t *out, int *n, oz_err *err) {
    *n = 0;
    for (const char *p = batches; *p;) {
        char *end;
        const long v = strtol(p, &end, 10);
        OZ_NEED(end != p && v >= 1 && v <= 1 << 16 && ((*end == ',' && end[1]) || *end == '\0') && *n < MAX_BATCHES, err, OZ_E_USAGE,
                "--batch: expected up to %d numbers from 1, comma separated, found \"%s\"", MAX_BATCHES, batches);
        out[(*n)++] = v;
        p = *end ? end + 1 : end;
    }
    OZ_NEED(*n > 0, err, OZ_E_USAGE, "--batch: empty");
    OZ_NEED(n_prompt > 0 || n_gen > 0, err, OZ_E_USAGE, "--n-prompt and --n-gen: both 0, nothing to measure");
    return OZ_OK;
}

static const char *bound_of(const oz_bench_kernel *k) { return k->predicted_us <= 0 ? "" : k->by_memory ? "memory" : "compute"; }
static double share_of(const oz_bench_kernel *k) { return k->us > 0 ? k->predicted_us / k->us : 0; }

static json_t *kernel_json(const oz_bench_kernel *k) {
    const oz_step_info *s = &k->step;
    return json_pack("{s:s s:s s:s s:i s:f s:f s:f s:f s:f s:s}", "op", s->op, "modules", s->modules, "kernel", s->kernel, "n", k->n, "us", k->us, "bytes", s->bytes, "flop", s->flop,
                     "predicted_us", k->predicted_us, "share", share_of(k), "bound", bound_of(k));
}

static json_t *row_json(const oz_bench_row *r) {
    json_t *kernels = json_array();
    for (size_t i = 0; i < r->n_kernels; i++) json_array_append_new(kernels, kernel_json(&r->kernels[i]));
    return json_pack("{s:s s:I s:I s:i s:f s:f s:f s:f s:f s:f s:s s:o s:f}", "test", r->prefill ? "prefill" : "decode", "n_tok", (json_int_t)r->n_tok, "batch", (json_int_t)r->batch, "reps", r->reps,
                     "tok_s", r->tok_s, "tok_s_sd", r->tok_s_sd, "bytes", r->bytes, "flop", r->flop, "predicted_tok_s", r->predicted_tok_s, "share", r->share, "bound", r->bound, "kernels", kernels,
                     "other_us", r->other_us);
}

/* Kinds of steps that take a hundredth of the time and more; the others together. */
static void kernels_print(const oz_bench_row *r) {
    double total = r->other_us, rest = r->other_us;
    for (size_t i = 0; i < r->n_kernels; i++) total += r->kernels[i].us;
    if (r->n_kernels) printf("  %-38s %-22s %4s %10s %6s %9s %9s %7s\n", "step", "kernel", "n", "us", "time", "MB", "GFLOP", "share");
    for (size_t i = 0; i < r->n_kernels; i++) {
        const oz_bench_kernel *k = &r->kernels[i];
        if (k->us < 0.01 * total) {
            rest += k->us;
            continue;
        }
        char name[96], share[32] = "";
        snprintf(name, sizeof name, "%s %s", k->step.op, k->step.modules);
        if (k->predicted_us > 0) snprintf(share, sizeof share, " %5.1f %%  %s", 100 * share_of(k), bound_of(k));
        printf("  %-38s %-22s %4d %10.1f %4.0f %% %9.2f %9.3f%s\n", name, k->step.kernel, k->n, k->us, 100 * k->us / total, k->step.bytes / 1e6, k->step.flop / 1e9, share);
    }
    if (r->n_kernels) printf("  %-66s %10.1f %4.0f %%\n", "all else", rest, 100 * rest / total);
}

static void row_print(const oz_bench_row *r) {
    char test[48];
    snprintf(test, sizeof test, r->batch > 1 ? "%s%lld x %lld" : "%s%lld", r->prefill ? "pp" : "tg", (long long)r->n_tok, (long long)r->batch);
    printf("%-11s %9.2f +/- %7.2f %10.2f %6.1f %%  %-7s %9.2f %9.3f\n", test, r->tok_s, r->tok_s_sd, r->predicted_tok_s, 100 * r->share, r->bound, r->bytes / 1e6, r->flop / 1e9);
    kernels_print(r);
    fflush(stdout);
}

/* The rows to measure: prefill, then decode at each batch. */
static int rows_plan(oz_bench_cfg *rows, const int64_t *batch, int n_batch) {
    int n = 0;
    if (n_prompt > 0) rows[n++] = (oz_bench_cfg){n_prompt, 0, 1, (int)reps};
    for (int i = 0; n_gen > 0 && i < n_batch; i++) rows[n++] = (oz_bench_cfg){n_prompt, n_gen, batch[i], (int)reps};
    return n;
}

static oz_status rows_run(json_t *rows, oz_cli_model *m, const oz_ceiling *ceil, const oz_bench_cfg *cfg, int n, oz_err *err) {
    for (int i = 0; i < n; i++) {
        oz_bench_row r;
        OZ_TRY(oz_bench_run(&r, m->model, &cfg[i], ceil, err));
        if (oz_cli_common.json) json_array_append_new(rows, row_json(&r));
        else row_print(&r);
        oz_bench_row_deinit(&r);
    }
    return OZ_OK;
}

/* The ceilings that a device has, by the names of JSON. */
typedef struct ceiling { const char *key, *label; double v; } ceiling;
enum { N_CEILINGS = 4 };
static int ceilings(ceiling out[N_CEILINGS], const oz_ceiling *c) {
    const ceiling all[N_CEILINGS] = {{"read_bytes_s", "read %.2f GB/s", c->read_bytes_s}, {"f32_flop_s", "f32 %.1f GFLOP/s", c->f32_flop_s}, {"bf16_flop_s", "bf16 %.1f GFLOP/s", c->bf16_flop_s},
                                     {"i8_op_s", "int8 %.1f GOP/s", c->i8_op_s}};
    int n = 0;
    for (int i = 0; i < N_CEILINGS; i++)
        if (all[i].v > 0) out[n++] = all[i];
    return n;
}

static void ceilings_print(const oz_ceiling *c) {
    ceiling list[N_CEILINGS];
    const int n = ceilings(list, c);
    fputs("measured ceilings:", stdout);
    for (int i = 0; i < n; i++) {
        fputs(i ? ", " : " ", stdout);
        printf(list[i].label, list[i].v / 1e9);
    }
    putchar('\n');
}

static json_t *ceilings_json(const oz_ceiling *c) {
    ceiling list[N_CEILINGS];
    const int n = ceilings(list, c);
    json_t *o = json_object();
    for (int i = 0; i < n; i++) json_object_set_new(o, list[i].key, json_real(list[i].v));
    json_object_set_new(o, "scatter", json_real(c->scatter));
    return o;
}

static void head_print(const oz_cli_model *m, const char *path, const oz_ceiling *c) {
    const oz_model_info *f = oz_model_get(m->model);
    printf("%s: %s, weights %.2f MB, loaded; %s\n", path, f->model_type, (double)f->weight_bytes / 1e6, oz_dev_describe(m->dev));
    ceilings_print(c);
    printf("%-11s %9s +/- %7s %10s %8s  %-7s %9s %9s\n", "test", "t/s", "s.d.", "predicted", "share", "bound", "MB", "GFLOP");
    fflush(stdout);
}

static oz_status measure(oz_cli_model *m, const char *path, const oz_bench_cfg *cfg, int n, oz_err *err) {
    const size_t loaded = oz_rss_peak_bytes(); /* before the ceilings are measured in a buffer of their own */
    oz_ceiling ceil;
    oz_dev_ceiling(m->dev, &ceil);
    if (!oz_cli_common.json) head_print(m, path, &ceil);
    if (ceil.scatter > MUCH_SCATTER) oz_log_warn("the repetitions of the ceilings scatter by %.0f %%: the machine is busy with something else, and shares say little", 100 * ceil.scatter);
    json_t *rows = json_array();
    const oz_status st = rows_run(rows, m, &ceil, cfg, n, err);
    const size_t running = oz_rss_bytes(), peak = running > loaded ? running : loaded;
    if (st == OZ_OK && oz_cli_common.json)
        oz_cli_json_print(json_pack("{s:o s:s s:I s:I s:I s:o s:O}", "model", oz_json_text(path), "device", oz_dev_describe(m->dev), "weight_bytes", (json_int_t)oz_model_get(m->model)->weight_bytes,
                                    "peak_rss_bytes", (json_int_t)peak, "stream_bytes", (json_int_t)oz_model_get(m->model)->stream_bytes, "ceiling", ceilings_json(&ceil), "rows", rows));
    json_decref(rows);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    oz_cli_model m;
    int64_t batch[MAX_BATCHES];
    int n_batch;
    OZ_TRY(batches_parse(batch, &n_batch, err));
    OZ_TRY(oz_cli_model_open(&m, args[0], &(oz_cli_need){0}, err));
    oz_bench_cfg cfg[MAX_BATCHES + 1];
    const int n = rows_plan(cfg, batch, n_batch);
    oz_status st = OZ_OK;
    for (int i = 0; st == OZ_OK && i < n; i++) st = oz_bench_check(m.model, &cfg[i], err);
    if (st == OZ_OK) st = measure(&m, args[0], cfg, n, err);
    oz_cli_model_close(&m);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_bench = {"bench", describe, run, false};
