/* ounce verify: everything that is wrong with a checkpoint, a line a finding. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/progress.h"
#include "cli/cli.h"
#include "measure/measure.h"

static const char *against;
static const oz_opt opts[] = {
    {"against", 0, OZ_OPT_STR, &against, 0, 0, NULL, "ORIGINAL", "also compare its weights with those that it was made of"},
    {"threads", 't', OZ_OPT_INT, &oz_cli_common.threads, 0, 1024, NULL, "N", "threads; 0: one a core"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "verify",
    .usage = "MODEL [--against ORIGINAL] [options]",
    .summary = "check every rule of a checkpoint's format",
    .details = "A line a finding: `error: WHERE: expected X, found Y`, or `warning: ...`. An error is what the program would refuse to load, or could not compute with; with one the exit status is 1. A warning "
               "is what a reader takes as it is, and what is seldom meant.\n"
               "With --against, a line for each tensor that is not the original's: the largest and the root mean square error of the dequantized weights, the signal to noise ratio, and how many codes and "
               "scales are those that rounding the original to nearest gives, and what the largest magnitude of a group is divided by for its scale; worst first. Each key of config.json by which the two "
               "would compute otherwise is a finding, too: an error, or a warning where it only ends or bounds a text.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

typedef struct findings { json_t *list; long long n[2]; } findings; /* n: warnings, errors */

/* Names out of files may hold anything; a finding is one line. */
static void print_line(const char *kind, const char *text) {
    oz_buf safe = {0};
    oz_buf_put_safe(&safe, text, strlen(text));
    printf("%s: %s\n", kind, safe.len ? safe.data : "");
    oz_buf_deinit(&safe);
}

static void add(void *arg, bool is_error, const char *text) {
    findings *f = arg;
    const char *kind = is_error ? "error" : "warning";
    f->n[is_error]++;
    if (f->list) json_array_append_new(f->list, json_pack("{s:s s:o}", "kind", kind, "text", oz_json_text(text)));
    else print_line(kind, text);
}

static json_t *against_json(const oz_comparison *c) {
    json_t *list = json_array();
    for (size_t i = 0; i < c->n; i++) {
        const oz_compared *x = &c->items[i];
        json_array_append_new(list, json_pack("{s:o s:s s:f s:f s:o s:I s:I s:I s:I s:o}", "name", oz_json_text(x->name), "scheme", x->scheme, "max_error", x->max_error, "rms_error", x->rms_error, "snr_db",
                                              isfinite(x->snr_db) ? json_real(x->snr_db) : json_null(), "codes", (json_int_t)x->n_codes, "codes_nearest", (json_int_t)x->n_codes_rtn, "scales",
                                              (json_int_t)x->n_scales, "scales_nearest", (json_int_t)x->n_scales_rtn, "scales_divisor", x->divisor > 0 ? json_real(x->divisor) : json_null()));
    }
    return list;
}

/* "100 %" only of all. */
static void share(char out[16], int64_t n, int64_t of) {
    if (of == 0) snprintf(out, 16, "-");
    else if (n == of) snprintf(out, 16, "all");
    else snprintf(out, 16, "%.2f %%", floor(1e4 * (double)n / (double)of) / 100);
}

static void against_print(const oz_comparison *c) {
    size_t n_same = 0;
    for (size_t i = 0; i < c->n; i++) n_same += c->items[i].rms_error == 0;
    if (n_same < c->n) printf("%-48s %-14s %10s %10s %8s  %9s %9s  %s\n", "against the original", "scheme", "max", "rms", "SNR dB", "codes RTN", "scales", "largest /");
    for (size_t i = 0; i < c->n; i++) {
        const oz_compared *x = &c->items[i];
        char codes[16], scales[16], by[24] = "-";
        share(codes, x->n_codes_rtn, x->n_codes);
        share(scales, x->n_scales_rtn, x->n_scales);
        if (x->divisor > 0) snprintf(by, sizeof by, "%g", x->divisor);
        if (x->rms_error != 0) printf("%-48s %-14s %10.3g %10.3g %8.2f  %9s %9s  %s\n", x->name, x->scheme, x->max_error, x->rms_error, x->snr_db, codes, scales, by);
    }
    if (c->n) printf("%zu tensors are the original's to the last bit\n", n_same);
}

static oz_status compare(json_t **doc, const char *model, const oz_findings *f, oz_pool *pool, oz_err *err) {
    oz_comparison c;
    oz_status st = oz_compare_run(&c, model, against, f, pool, err);
    if (st == OZ_OK && oz_cli_common.json) *doc = against_json(&c);
    else if (st == OZ_OK) against_print(&c);
    oz_comparison_deinit(&c);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    findings f = {.list = oz_cli_common.json ? json_array() : NULL};
    const oz_findings taken = {add, &f};
    json_t *compared = NULL;
    oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
    oz_status st = oz_verify_run(args[0], &taken, pool, err);
    if (st == OZ_OK && against) st = compare(&compared, args[0], &taken, pool, err);
    oz_pool_free(&pool);
    if (st == OZ_OK && f.list)
        oz_cli_json_print(json_pack("{s:o s:I s:I s:O s:O*}", "model", oz_json_text(args[0]), "errors", (json_int_t)f.n[true], "warnings", (json_int_t)f.n[false], "findings", f.list, "against", compared));
    json_decref(compared);
    json_decref(f.list);
    OZ_TRY(st);
    OZ_NEED(!f.n[true], err, OZ_E_FORMAT, "%s: %lld errors, %lld warnings", args[0], f.n[true], f.n[false]);
    oz_log_info("%s: no errors, %lld warnings", args[0], f.n[false]);
    return OZ_OK;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_verify = {"verify", describe, run, false};
