/* check: is every kernel right, on this machine, at every level that it has?
 *   check [--level L] [--only SLOT] [--seed N]      all suites; exit status 1 if one fails
 *   check --mutations [--level L] [--only SLOT]     breaks one thing at a time and demands that a suite goes red
 *   check --device cuda [--every N]                the operations, products and lowered programs of another device beside the CPU's
 *   check --mutations --device cuda                the same on that device; check-mutated also breaks its kernels from inside
 *   check --bench [--format text|csv|json]          speed of the slots, beside this machine's measured ceilings
 *   check --bench --only planning                  schemes of 10,000 modules, resolved and checked */
#include "base/opt.h"
#include "device.h"
#include "suites.h"

#define GEMM_SUITE(name, kind, form) \
    static void run_##name(ck *c) { ck_gemm(c, kind, form); }
GEMM_SUITE(f32_f32, OZ_WKIND_F32, OZ_FORM_F32)
GEMM_SUITE(f16_f32, OZ_WKIND_F16, OZ_FORM_F32)
GEMM_SUITE(bf16_f32, OZ_WKIND_BF16, OZ_FORM_F32)
GEMM_SUITE(bf16_bf16, OZ_WKIND_BF16, OZ_FORM_BF16)
GEMM_SUITE(i8_bf16, OZ_WKIND_I8, OZ_FORM_BF16)
GEMM_SUITE(i4_bf16, OZ_WKIND_I4, OZ_FORM_BF16)
GEMM_SUITE(f8_bf16, OZ_WKIND_F8, OZ_FORM_BF16)
GEMM_SUITE(u4_bf16, OZ_WKIND_U4, OZ_FORM_BF16)
GEMM_SUITE(l4_bf16, OZ_WKIND_L4, OZ_FORM_BF16)
GEMM_SUITE(i8_f32, OZ_WKIND_I8, OZ_FORM_F32)
GEMM_SUITE(i8_q8, OZ_WKIND_I8, OZ_FORM_Q8)
GEMM_SUITE(i4_f32, OZ_WKIND_I4, OZ_FORM_F32)
GEMM_SUITE(f8_f32, OZ_WKIND_F8, OZ_FORM_F32)
GEMM_SUITE(f8_f8, OZ_WKIND_F8, OZ_FORM_F8)
GEMM_SUITE(u4_f32, OZ_WKIND_U4, OZ_FORM_F32)
GEMM_SUITE(l4_f32, OZ_WKIND_L4, OZ_FORM_F32)

const ck_suite ck_suites[] = {
    {"gemm_f32_f32", "u K sum|wx|", run_f32_f32},
    {"gemm_f16_f32", "u K sum|wx|", run_f16_f32},
    {"gemm_bf16_f32", "u K sum|wx|", run_bf16_f32},
    {"gemm_i8_f32", "u K sum|wx|", run_i8_f32},
    {"gemm_i8_q8", "exact", run_i8_q8},
    {"gemm_i4_f32", "u K sum|wx|", run_i4_f32},
    {"gemm_f8_f32", "u K sum|wx|", run_f8_f32},
    {"gemm_f8_f8", "u K sum|wx|", run_f8_f8},
    {"gemm_u4_f32", "u K sum|wx|", run_u4_f32},
    {"gemm_l4_f32", "u K sum|wx|", run_l4_f32},
    {"gemm_bf16_bf16", "u K sum|wx|", run_bf16_bf16},
    {"gemm_i8_bf16", "u K sum|wx|", run_i8_bf16},
    {"gemm_i4_bf16", "u K sum|wx|", run_i4_bf16},
    {"gemm_f8_bf16", "u K sum|wx|", run_f8_bf16},
    {"gemm_u4_bf16", "u K sum|wx|", run_u4_bf16},
    {"gemm_l4_bf16", "u K sum|wx|", run_l4_bf16},
    {"norm", "u (4 + n/16)", ck_norm},
    {"quantize_q8", "exact", ck_quantize_q8},
    {"quantize_f8", "exact", ck_quantize_f8},
    {"round_bf16", "exact", ck_round_bf16},
    {"rope", "2 u (|a|+|b|)", ck_rope},
    {"rope_pairs", "2 u (|a|+|b|)", ck_rope_pairs},
    {"silu_mul", "6 ULP", ck_silu_mul},
    {"gelu_mul", "(6 + 6 |u|) ULP", ck_gelu_mul},
    {"scale", "exact", ck_scale},
    {"softcap", "4 ULP", ck_softcap},
    {"add", "exact", ck_add},
    {"attention", "u |v| (n/4 + 8|s|)", ck_attention},
    {"stat", "1e-13", ck_stat},
    {"kl", "1e-13", ck_kl},
    {"conv", "u taps sum|wx|", ck_conv},
    {"scan", "u (n + 8 t) sum|ch|", ck_scan},
    {"route", "1 ULP", ck_route},
    {"combine", "exact", ck_combine},
    {"op_linear", "u K sum|wx|", ck_op_linear},
    {"op_embed", "exact", ck_op_embed},
    {"op_pack", "exact", ck_op_pack},
    {"op_gather", "exact", ck_op_gather},
    {"op_round", "exact", ck_op_round},
    {"op_kv_write", "exact", ck_op_kv_write},
    {"op_scan", "exact", ck_op_scan},
    {"op_mla_write", "exact", ck_op_mla_write},
    {"op_latent", "u |wv| 4 (1 + |s|)", ck_op_latent},
    {"op_rope_table", "exact", ck_op_rope_table},
    {"op_rows", "exact", ck_op_rows},
    {"op_attention", "u |v| (n/4 + 8|s|)", ck_op_attention},
    {"op_experts", "u K sum|wx|", ck_op_experts},
    {"op_sinks", "exact", ck_op_sinks},
    {NULL, NULL, NULL},
};

static bool wanted(const char *only, const char *slot) { return !only || strstr(slot, only); }

/* Every suite at one level. Each starts from the seed, so that it can be run alone. */
static oz_status check_level(int *n_red, const char *level, const char *only, uint64_t seed, oz_err *err) {
    for (const ck_suite *s = ck_suites; s->slot; s++) {
        if (!wanted(only, s->slot)) continue;
        ck c;
        OZ_TRY(ck_init(&c, level, seed, err));
        c.slot = s->slot;
        s->run(&c);
        printf("%-4s %-5s %-14s %6lld cases  bound %-20s used %.2f\n", c.n_fail ? "FAIL" : "ok", level, s->slot, (long long)c.n_cases, s->metric,
               c.worst);
        if (c.n_fail) printf("    %lld deviations\n", (long long)c.n_fail);
        fflush(stdout);
        *n_red += c.n_fail > 0;
        ck_deinit(&c);
    }
    return OZ_OK;
}

typedef struct options {
    const char *level, *only, *format, *device, *model;
    int64_t seed, threads, every;
    bool mutations, bench;
} options;

static oz_status run(const options *o, int *n_red, oz_err *err) {
    OZ_NEED(!o->device || strncmp(o->device, "cpu", 3), err, OZ_E_USAGE, "--device: expected a device to compare with the CPU, found \"%s\"", o->device);
    if (o->bench && o->device) {
        *n_red = ck_device_bench(o->device, o->only, false, err);
        return *n_red < 0 ? err->code : OZ_OK;
    }
    if (o->bench && o->only && strcmp(o->only, "planning") == 0) return ck_bench_planning(err);
    if (o->bench) {
        ck_bench_cfg cfg = {o->level, o->only, o->format, (int)o->threads};
        return ck_bench(&cfg, err);
    }
    uint64_t seed = o->seed >= 0 ? (uint64_t)o->seed : (uint64_t)oz_clock_us() % 1000000000;
    printf("seed %llu\n", (unsigned long long)seed);
    if (o->device && o->mutations) {
        *n_red = ck_device_mutations(o->device, o->only, seed, err);
        return *n_red < 0 ? err->code : OZ_OK;
    }
    if (o->device && o->model) {
        *n_red = ck_company(o->device, o->model, err);
        return *n_red < 0 ? err->code : OZ_OK;
    }
    if (o->device) {
        *n_red = ck_device(o->device, o->only, o->every, seed, err);
        return *n_red < 0 ? err->code : OZ_OK;
    }
    if (o->mutations) {
        *n_red = ck_mutations(o->level, o->only, seed);
        return OZ_OK;
    }
    bool found = false;
    for (const ck_suite *s = ck_suites; s->slot; s++) found = found || wanted(o->only, s->slot);
    OZ_NEED(found, err, OZ_E_USAGE, "--only: expected a part of a suite's name, found \"%s\"", o->only);
    if (strcmp(o->level, "all")) return check_level(n_red, o->level, o->only, seed, err);
    for (const char *const *l = oz_cpu_levels(); *l; l++) OZ_TRY(check_level(n_red, *l, o->only, seed, err));
    return OZ_OK;
}

int main(int argc, char **argv) {
    options o = {.level = "all", .format = "text", .seed = -1, .every = 1};
    const oz_opt table[] = {
        {.name = "level", .type = OZ_OPT_STR, .dest = &o.level, .arg = "L", .help = "CPU level to check, or all"},
        {.name = "device", .type = OZ_OPT_STR, .dest = &o.device, .arg = "NAME", .help = "check this device instead of the CPU: cuda"},
        {.name = "model", .type = OZ_OPT_STR, .dest = &o.model, .arg = "DIR", .help = "with --device: this model's sequences alone and together, deterministic"},
        {.name = "only", .type = OZ_OPT_STR, .dest = &o.only, .arg = "SLOT", .help = "suites whose name contains this"},
        {.name = "every", .type = OZ_OPT_INT, .dest = &o.every, .min = 1, .max = 1000, .arg = "N", .help = "with --device: one case in N, for slow tools"},
        {.name = "seed", .type = OZ_OPT_INT, .dest = &o.seed, .min = -1, .max = 1e15, .arg = "N", .help = "of the inputs; -1: the clock"},
        {.name = "mutations", .type = OZ_OPT_FLAG, .dest = &o.mutations, .help = "break the kernels and demand that it shows"},
        {.name = "bench", .type = OZ_OPT_FLAG, .dest = &o.bench, .help = "measure instead of checking"},
        {.name = "threads", .type = OZ_OPT_INT, .dest = &o.threads, .min = 0, .max = 4096, .arg = "N", .help = "of --bench; 0: all cores"},
        {.name = "format", .type = OZ_OPT_STR, .dest = &o.format, .choices = "text|csv|json", .arg = "F", .help = "of --bench"},
        {.name = NULL},
    };
    const oz_opt *const tables[] = {table, NULL};
    const oz_opt_cmd cmd = {"check", "check [OPTION...]", "Checks and measures the kernels.", NULL, tables, 0, 0};
    const char **args = oz_alloc_array((size_t)argc + 1, sizeof *args);
    oz_err err = {0};
    int n_args = 0, n_red = 0;
    bool help = false;
    oz_status st = oz_opt_parse(&cmd, argc, argv, args, &n_args, &help, &err);
    oz_free(args);
    if (st == OZ_OK && help) {
        oz_opt_help(&cmd, stdout);
        return 0;
    }
    if (st == OZ_OK) st = run(&o, &n_red, &err);
    if (st != OZ_OK) fprintf(stderr, "error: %s\n", err.msg);
    if (st == OZ_OK && !o.bench) printf(n_red ? "%d red\n" : "all green\n", n_red);
    return st == OZ_E_USAGE ? 2 : st != OZ_OK || n_red ? 1 : 0;
}
