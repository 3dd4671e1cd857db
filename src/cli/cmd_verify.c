/* ounce verify: everything that is wrong with a checkpoint, a line a finding. */
#include <stdio.h>
#include <string.h>
#include "base/progress.h"
#include "cli/cli.h"
#include "measure/measure.h"

static const oz_opt *const tables[] = {oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "verify",
    .usage = "MODEL [options]",
    .summary = "check every rule of a checkpoint's format",
    .details = "A line a finding: `error: WHERE: expected X, found Y`, or `warning: ...`. An error is what the program would refuse to load; with one the exit status is 1.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

typedef struct findings { json_t *list; long long n[2]; } findings; /* n: warnings, errors */

/* Names out of files may hold anything; a finding is one line. */
static void print_line(const char *kind, const char *text) {
    printf("%s: ", kind);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p < ' ' || *p == 127) printf("\\x%02x", *p);
        else putchar(*p);
    putchar('\n');
}

static void add(void *arg, bool is_error, const char *text) {
    findings *f = arg;
    const char *kind = is_error ? "error" : "warning";
    f->n[is_error]++;
    if (f->list) json_array_append_new(f->list, json_pack("{s:s s:o}", "kind", kind, "text", oz_json_text(text)));
    else print_line(kind, text);
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    findings f = {.list = oz_cli_common.json ? json_array() : NULL};
    const oz_status st = oz_verify_run(args[0], &(oz_findings){add, &f}, err);
    if (st == OZ_OK && f.list)
        oz_cli_json_print(json_pack("{s:o s:I s:I s:O}", "model", oz_json_text(args[0]), "errors", (json_int_t)f.n[true], "warnings", (json_int_t)f.n[false], "findings", f.list));
    json_decref(f.list);
    OZ_TRY(st);
    OZ_NEED(!f.n[true], err, OZ_E_FORMAT, "%s: %lld errors, %lld warnings", args[0], f.n[true], f.n[false]);
    oz_log_info("%s: no errors, %lld warnings", args[0], f.n[false]);
    return OZ_OK;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_verify = {"verify", describe, run, false};
