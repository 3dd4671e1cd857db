/* ounce COMMAND ...: finds the command in the table, parses its options, runs it, and says what went wrong.
 * Exit status: 0 done, 1 it failed and said why on stderr, 2 usage. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "cli/cli.h"

/* One row each, in the order of --help. */
static const oz_cmd *const COMMANDS[] = {
    &oz_cmd_quantize,
    &oz_cmd_convert,
    &oz_cmd_inspect,
    &oz_cmd_run,
    &oz_cmd_logits,
    &oz_cmd_tokenize,
    &oz_cmd_detokenize,
    &oz_cmd_template,
    &oz_cmd_ppl,
    &oz_cmd_kl,
    &oz_cmd_bench,
    &oz_cmd_synth,
    &oz_cmd_pull,
    NULL,
};

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static const oz_cmd *find(const char *name) {
    for (const oz_cmd *const *c = COMMANDS; *c; c++) {
        if (strcmp((*c)->name, name) == 0) return *c;
    }
    return NULL;
}

static int unknown(const char *name) {
    const char *nearest = NULL;
    size_t best = 3;
    for (const oz_cmd *const *c = COMMANDS; *c; c++) {
        size_t d = oz_str_distance(name, (*c)->name);
        if (d < best) best = d, nearest = (*c)->name;
    }
    if (nearest) oz_log_error("%s: no such command (did you mean %s?)", name, nearest);
    else oz_log_error("%s: no such command (ounce --help lists them)", name);
    return EXIT_USAGE;
}

static void help(FILE *out) {
    fputs("usage: ounce COMMAND [options]\n\nMakes, runs and measures quantized language models on the CPU.\n\ncommands:\n", out);
    for (const oz_cmd *const *c = COMMANDS; *c; c++) fprintf(out, "  %-12s%s\n", (*c)->name, (*c)->describe()->summary);
    fputs("\nounce COMMAND --help describes one of them; ounce --version prints the version.\n", out);
}

/* The manual page, from the same tables as --help: docs/ounce.1 is this output. */
static void man(FILE *out) {
    fputs(".TH OUNCE 1 \"\" \"ounce " OZ_VERSION "\" \"User Commands\"\n"
          ".SH NAME\nounce \\- make, run and measure quantized language models\n"
          ".SH SYNOPSIS\n.B ounce\n.I command\n[options]\n"
          ".SH DESCRIPTION\nMODEL is a folder with a Hugging Face checkpoint, a .gguf file, or the name of a repository that pull has downloaded.\n"
          ".SH \"EXIT STATUS\"\n0: done. 1: it failed and said why on standard error. 2: the command line is wrong.\n",
          out);
    for (const oz_cmd *const *c = COMMANDS; *c; c++) oz_opt_man((*c)->describe(), out);
}

static int report(oz_status s, const oz_err *err, const char *command) {
    if (s == OZ_OK) return EXIT_DONE;
    oz_log_error("%s", err->code != OZ_OK ? err->msg : s == OZ_E_INTERRUPTED ? "interrupted" : "failed, and no reason was given (a bug)");
    if (s != OZ_E_USAGE) return EXIT_FAILED;
    fprintf(stderr, "ounce %s --help lists the options\n", command);
    return EXIT_USAGE;
}

/* Every rank runs the command; the first one writes and speaks. */
static oz_status run_ranks(const oz_cmd *cmd, const char **args, int n_args, oz_err *err) {
    OZ_TRY(oz_comm_open(&oz_cli_comm, err));
    OZ_NEED(cmd->ranks || oz_comm_size(oz_cli_comm) == 1, err, OZ_E_USAGE, "%s does not run in several ranks", cmd->name);
    if (oz_comm_rank(oz_cli_comm) > 0) {
        OZ_NEED(freopen("/dev/null", "w", stdout), err, OZ_E_IO, "/dev/null: %s", strerror(errno));
        oz_log_quiet(true);
    }
    return cmd->run(args, n_args, err);
}

/* argv[0] is the command's name. */
static int run(const oz_cmd *cmd, int argc, char **argv) {
    oz_err err = {0};
    const oz_opt_cmd *opts = cmd->describe();
    const char **args = oz_alloc_array((size_t)argc + 1, sizeof *args);
    int n_args;
    bool want_help;
    oz_status s = oz_opt_parse(opts, argc, argv, args, &n_args, &want_help, &err);
    oz_log_quiet(oz_cli_common.quiet);
    if (s == OZ_OK && want_help) oz_opt_help(opts, stdout);
    else if (s == OZ_OK) s = run_ranks(cmd, args, n_args, &err);
    int status = report(s, &err, cmd->name);
    if (status != EXIT_DONE) oz_comm_abort(oz_cli_comm, status);
    oz_comm_close(&oz_cli_comm);
    oz_opt_lists_free(opts);
    oz_free(args);
    return status;
}

static int dispatch(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(name, "--version") == 0) return puts("ounce " OZ_VERSION), EXIT_DONE;
    if (strcmp(name, "man") == 0 && argc == 2) return man(stdout), EXIT_DONE;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        if (argc == 2) return help(stdout), EXIT_DONE;
        const oz_cmd *cmd = find(argv[2]);
        return cmd ? (oz_opt_help(cmd->describe(), stdout), EXIT_DONE) : unknown(argv[2]);
    }
    const oz_cmd *cmd = find(name);
    return cmd ? run(cmd, argc - 1, argv + 1) : unknown(name);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is a write error, reported below */
    oz_interrupt_init();
    int status = dispatch(argc, argv);
    bool bad = ferror(stdout);
    errno = 0;
    if ((fclose(stdout) != 0 || bad) && status == EXIT_DONE) {
        oz_log_error("stdout: %s", errno ? strerror(errno) : "a write failed");
        status = EXIT_FAILED;
    }
    return status;
}
