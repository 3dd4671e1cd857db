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
    &oz_cmd_verify,
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

static const oz_cmd *find(const char *name) {
    for (const oz_cmd *const *c = COMMANDS; *c; c++) {
        if (strcmp((*c)->name, name) == 0) return *c;
    }
    return NULL;
}

static oz_status unknown(const char *name, oz_err *err) {
    const char *nearest = NULL;
    size_t best = 3;
    for (const oz_cmd *const *c = COMMANDS; *c; c++) {
        size_t d = oz_str_distance(name, (*c)->name);
        if (d < best && d < strlen((*c)->name) && d < strlen(name)) best = d, nearest = (*c)->name; /* they share something */
    }
    OZ_NEED(!nearest, err, OZ_E_USAGE, "%s: no such command (did you mean %s?)", name, nearest);
    OZ_FAIL(err, OZ_E_USAGE, "%s: no such command (ounce --help lists them)", name);
}

static void help(FILE *out) {
    fputs("usage: ounce COMMAND [options]\n\nMakes, runs and measures quantized language models, on the CPU and with CUDA.\n\ncommands:\n", out);
    for (const oz_cmd *const *c = COMMANDS; *c; c++) fprintf(out, "  %-12s%s\n", (*c)->name, (*c)->describe()->summary);
    fputs("\nounce COMMAND --help describes one of them; ounce --version prints the version.\n", out);
}

/* What the manual page has beside the commands; the list of those that take ranks comes from the table. */
static const char MAN_HEAD[] =
    ".TH OUNCE 1 \"\" \"ounce " OZ_VERSION "\" \"User Commands\"\n"
    ".SH NAME\nounce \\- make, run and measure quantized language models\n"
    ".SH SYNOPSIS\n.B ounce\n.I command\n[options]\n"
    ".SH DESCRIPTION\nMODEL is a folder with a Hugging Face checkpoint, a .gguf file, or the name of a repository that pull has downloaded (a folder of that name wins).\n"
    ".SH \"EXIT STATUS\"\n0: done. 1: it failed and said why on standard error. 2: the command line is wrong.\n";
static const char MAN_TAIL[] =
    "runs one model in N processes, each of which holds a slice of every layer; the first one speaks. It takes a program built where Open MPI was installed, and runs dense models on the "
    "CPU; a mixture of experts is refused. With more ranks than KV heads, N must be a multiple of these. Without \\-\\-threads the ranks share the cores of the machine.\n"
    ".SH FILES\n"
    ".TP\n.I ~/.cache/huggingface/hub\nwhat pull downloads, in the layout of the huggingface_hub library; HF_HUB_CACHE or HF_HOME puts it elsewhere\n"
    ".TP\n.I DIR/ounce_recipe.json\nhow \\-\\-method gptq, smoothquant or awq made the checkpoint DIR: parameters, and the calibration text by its SHA\\-256\n"
    ".TP\n.I DIR.gptq\nthe work of a run with calibration text, beside DIR; removed when DIR is whole. \\-\\-resume takes it up. Its file lock is held while a process is at work in it\n"
    ".TP\n.I .DIR.tmp\\-PID\\-N\na folder under way, renamed to DIR when it is whole; only a process that was killed leaves one behind, which the next run to the same DIR removes. 16 digits stand for a DIR above 200 bytes, here and before .gptq\n"
    ".SH EXAMPLES\n.nf\n"
    "ounce pull HuggingFaceTB/SmolLM2\\-135M\\-Instruct\n"
    "ounce quantize MODEL \\-o OUT \\-\\-scheme W8A8\n"
    "ounce quantize MODEL \\-o OUT \\-\\-scheme W4A16 \\-\\-group\\-size 64 \\-\\-method gptq \\-\\-calibration TEXT\n"
    "ounce run OUT \\-\\-chat \\-p \"What is the capital of France?\"\n"
    "ounce bench OUT \\-b 1,8\n"
    "ounce kl MODEL OUT \\-\\-text TEXT \\-\\-limit\\-tokens 8192\n"
    "ounce inspect OUT \\-\\-kernels\n"
    "mpirun \\-np 2 ounce run MODEL \\-p Hello\n"
    ".fi\n";

/* The manual page, from the same tables as --help: docs/ounce.1 is this output. */
static void man(FILE *out) {
    fputs(MAN_HEAD, out);
    for (const oz_cmd *const *c = COMMANDS; *c; c++) oz_opt_man((*c)->describe(), out);
    fputs(".SH RANKS\n.B mpirun \\-np N ounce\n", out);
    const char *sep = "";
    for (const oz_cmd *const *c = COMMANDS; *c; c++)
        if ((*c)->ranks) fprintf(out, "%s%s", sep, (*c)->name), sep = "|";
    fputs(" ...\n", out);
    fputs(MAN_TAIL, out);
}

static void help_of(const oz_cmd *cmd) {
    oz_opt_help(cmd->describe(), stdout);
    if (cmd->ranks) printf("\nmpirun -np N ounce %s ... shares the model out among N processes (see RANKS in the manual page).\n", cmd->name);
}

/* argv[0] is the command's name. */
static oz_status run(const oz_cmd *cmd, int argc, char **argv, oz_err *err) {
    const oz_opt_cmd *opts = cmd->describe();
    const char **args = oz_alloc_array((size_t)argc + 1, sizeof *args);
    int n_args;
    bool want_help;
    oz_status s = oz_opt_parse(opts, argc, argv, args, &n_args, &want_help, err);
    oz_log_quiet(oz_cli_common.quiet);
    if (s == OZ_OK && want_help) help_of(cmd);
    else if (s == OZ_OK && !cmd->ranks && oz_comm_size(oz_cli_comm) > 1) s = oz_err_set(err, OZ_E_USAGE, __FILE__, __LINE__, "%s does not run in several ranks", cmd->name);
    else if (s == OZ_OK) s = cmd->run(args, n_args, err);
    oz_opt_lists_free(opts);
    oz_free(args);
    return s;
}

/* OZ_E_USAGE without a message: no command was given. */
static oz_status dispatch(const oz_cmd **cmd, int argc, char **argv, oz_err *err) {
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) return OZ_E_USAGE;
    if (strcmp(name, "--version") == 0) return puts("ounce " OZ_VERSION), OZ_OK;
    if (strcmp(name, "man") == 0 && argc == 2) return man(stdout), OZ_OK;
    const bool asks = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    if (asks && argc == 2) return help(stdout), OZ_OK;
    if (asks) name = argv[2];
    const oz_cmd *found = find(name);
    if (!found) return unknown(name, err);
    if (asks) return help_of(found), OZ_OK;
    *cmd = found;
    return run(found, argc - 1, argv + 1, err);
}

/* Every rank runs the command; the first one writes and speaks. */
static oz_status hush(oz_err *err) {
    if (oz_comm_rank(oz_cli_comm) == 0) return OZ_OK;
    OZ_NEED(freopen("/dev/null", "w", stdout), err, OZ_E_IO, "/dev/null: %s", strerror(errno));
    oz_log_mute();
    return OZ_OK;
}

static oz_status stdout_close(oz_err *err) {
    const bool bad = ferror(stdout);
    errno = 0;
    if (fclose(stdout) == 0 && !bad) return OZ_OK;
    oz_err_set(err, OZ_E_IO, __FILE__, __LINE__, "stdout: %s%s%s%s", errno ? strerror(errno) : "a write failed", oz_cli_whole ? "; " : "", oz_cli_whole ? oz_cli_whole : "", oz_cli_whole ? " is whole all the same" : "");
    return OZ_E_IO;
}

static void report(oz_status s, const oz_err *err, const oz_cmd *cmd, bool alone) {
    char who[48] = "";
    if (s == OZ_E_USAGE && err->code == OZ_OK) {
        help(stderr);
        return;
    }
    if (alone) snprintf(who, sizeof who, "rank %d of %d alone: ", oz_comm_rank(oz_cli_comm), oz_comm_size(oz_cli_comm));
    oz_log_error("%s%s", who, err->code != OZ_OK ? err->msg : s == OZ_E_INTERRUPTED ? "interrupted" : "failed, and no reason was given (a bug)");
    if (s == OZ_E_USAGE && cmd) fprintf(stderr, "ounce %s --help lists the options\n", cmd->name);
}

int main(int argc, char **argv) {
    oz_err err = {0};
    const oz_cmd *cmd = NULL;
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is a write error, reported below */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow */
    oz_interrupt_init();
    oz_cli_fault_init();
    oz_status s = oz_comm_open(&oz_cli_comm, &err);
    if (s == OZ_OK) s = hush(&err);
    if (s == OZ_OK) s = dispatch(&cmd, argc, argv, &err);
    const oz_status closed = stdout_close(s == OZ_OK ? &err : NULL);
    if (s == OZ_OK) s = closed;
    const oz_meeting m = oz_comm_meet(oz_cli_comm, s == OZ_OK ? EXIT_DONE : s == OZ_E_USAGE ? EXIT_USAGE : EXIT_FAILED);
    if (m.speaks) report(s, &err, cmd, m.alone);
    if (m.alone) oz_comm_abort(oz_cli_comm, m.status);
    oz_comm_close(&oz_cli_comm);
    return m.status;
}
