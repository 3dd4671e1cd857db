/* Commands: a row each in the table of main.c. */
#ifndef OZ_CLI_CLI_H
#define OZ_CLI_CLI_H
#include "base/json.h"
#include "base/opt.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "text/text.h"

#define OZ_VERSION "0.1.0"

typedef struct oz_cmd {
    const char *name;
    const oz_opt_cmd *(*describe)(void);               /* table and help */
    oz_status (*run)(const char **args, int n_args, oz_err *err); /* after parsing */
    bool ranks; /* may be started by mpirun: every rank runs it, the first one speaks */
} oz_cmd;

/* Each is defined in cmd_<name>.c and has its row in main.c. */
extern const oz_cmd oz_cmd_quantize, oz_cmd_convert, oz_cmd_inspect, oz_cmd_verify, oz_cmd_run, oz_cmd_logits, oz_cmd_tokenize, oz_cmd_detokenize,
    oz_cmd_template, oz_cmd_ppl, oz_cmd_kl, oz_cmd_bench, oz_cmd_synth, oz_cmd_pull;

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };
void oz_cli_fault_init(void); /* a mapped file that cannot be read any more ends the process with a message (fault.c) */

/* Options that several commands share (common.c). */
typedef struct oz_common { const char *device, *dtype, *cpu_level, *quantization; int64_t threads, max_len; bool quiet, json, deterministic; } oz_common;
extern oz_common oz_cli_common;
extern char *oz_cli_whole;   /* what the command has made, whatever becomes of its report on stdout; NULL: nothing */
extern oz_comm *oz_cli_comm; /* this process among its ranks; of one where mpirun did not start it */
extern const oz_opt oz_cli_opts_model[];  /* --device --dtype --quantization --cpu-level --threads --max-model-len --deterministic */
extern const oz_opt oz_cli_opts_output[]; /* -q --json */

/* Commands that write a checkpoint (write.c): -o --force --max-shard-size --dry-run --threads. */
typedef struct oz_cli_out { const char *path, *max_shard; bool force, dry_run; } oz_cli_out;
extern oz_cli_out oz_cli_output;
extern const oz_opt oz_cli_opts_write[];
bool oz_cli_size_parse(size_t *out, const char *s); /* "5GB", "800M", "2GiB", "100" */
/* OZ_E_USAGE without -o (a dry run needs none) or with a size that is none; OZ_E_ARG if --force would delete what is no checkpoint, or the
 * model that is read. */
oz_status oz_cli_write_check(size_t *shard_bytes, const char *model, oz_err *err);
oz_status oz_cli_keeps_check(const char *option, const char *file /* or NULL */, oz_err *err); /* that is read, and lies in a folder that --force would delete */
/* Is there a table on stdout? Not with --json, and with -q none of what was written: it is there to see. */
bool oz_cli_write_tells(void);
/* On stdout: the files and their sizes, where oz_cli_write_tells. With --json one object: `more` (stolen; what the command adds), output, dry_run, bytes, files, and warnings, all since oz_cli_write_check. */
void oz_cli_write_report(const oz_layout *l, json_t *more);

/* A preset by its name; group_size 0: its own. OZ_E_USAGE names those that are known. */
oz_status oz_cli_scheme_find(oz_scheme *out, const char *name, int64_t group_size, oz_err *err);

/* MODEL opened for running (open.c). Members are NULL where not asked for. */
typedef struct oz_cli_model { oz_ckpt *ckpt; oz_dev *dev; oz_model *model; oz_text_files text; oz_tok *tok; bool owns_dev; } oz_cli_model;
typedef struct oz_cli_need { oz_dev *dev; /* NULL: opens one */ bool tok, tok_if_any /* NULL where the checkpoint has none */, tap_layers, tap_routes, as_stored /* --quantization is not meant for it */; int64_t max_tok; /* 0: the default */ int64_t len; /* of the longest sequence, where it is known */ } oz_cli_need;
oz_status oz_cli_dev_open(oz_dev **out, oz_err *err); /* as the shared options say; "auto" prints what it chose */
oz_status oz_cli_model_open(oz_cli_model *out, const char *path, const oz_cli_need *need, oz_err *err);
void oz_cli_model_close(oz_cli_model *m);
oz_status oz_cli_model_check(const oz_ckpt *ckpt, oz_err *err); /* what opening it refuses of the shared options, without loading; ckpt NULL: of those that name a device */
/* err says that logits are not finite; it says then what of the checkpoint made them so: an expert's weights, say. */
void oz_cli_blame(const oz_ckpt *c, oz_err *err);
/* Puts MODEL, as the user wrote it, in front of what is wrong with what lies in it. Returns st. */
oz_status oz_cli_of_model(oz_status st, const char *model, oz_err *err);
enum { OZ_CLI_MAX_TEXT = 1 << 30 }; /* bytes of a text on stdin */
/* The tokenizer of MODEL, from its text files alone (lines.c). */
oz_status oz_cli_tok_from(oz_tok **out, const char *path, oz_err *err);
/* Answers each JSON line of stdin with one on stdout: what `answer` returns (a new reference), or {"error": ...}, after which it
 * goes on. text: the line that `in` was read from. */
typedef json_t *oz_cli_answer(void *self, const json_t *in, oz_slice text, oz_err *err);
oz_status oz_cli_lines(oz_cli_answer *answer, void *self, oz_err *err);
/* Tokenizer alone, from files that were opened; path is for messages. */
oz_status oz_cli_tok_open(oz_tok **out, const oz_text_files *files, const char *path, oz_err *err);
oz_status oz_cli_ids_read(oz_ids *out, const char *path, oz_err *err); /* decimal, white space; "-": stdin */
/* Tables on stdout (table.c). A line a role of objects with role, bytes, scheme and maybe codec; a line for all modules that run the same kernel
 * and whose names differ in numbers alone, of objects with name, scheme, kernel, packed_bytes. */
void oz_cli_roles_print(const json_t *modules);
void oz_cli_kernels_print(const json_t *kernels);
void oz_cli_json_print(json_t *doc); /* takes the reference; indent 2, one newline */

#endif
