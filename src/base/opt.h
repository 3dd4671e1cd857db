/* Options: a row each. The command line, --help and the manual page come from the same table. */
#ifndef OZ_BASE_OPT_H
#define OZ_BASE_OPT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "base/err.h"

typedef enum oz_opt_type { OZ_OPT_FLAG, OZ_OPT_INT, OZ_OPT_FLOAT, OZ_OPT_STR, OZ_OPT_LIST } oz_opt_type;

/* A LIST option may be given more than once; its values are kept in order. */
typedef struct oz_opt_list { const char **items; size_t n; } oz_opt_list;

/* dest points to: FLAG bool, INT int64_t, FLOAT double, STR const char *, LIST oz_opt_list. The initial value of *dest
 * is the default. min/max bound INT and FLOAT (both 0: unbounded). `choices`: "a|b|c" for STR, or NULL. */
typedef struct oz_opt {
    const char *name;   /* long, without dashes; "max-model-len" */
    char letter;        /* 0: none */
    oz_opt_type type;
    void *dest;
    double min, max;
    const char *choices;
    const char *arg;    /* name of the value in the help, "N" */
    const char *help;
} oz_opt;

typedef struct oz_opt_cmd {
    const char *name, *usage;       /* "run", and what follows it: "MODEL [-p TEXT] [options]" */
    const char *summary, *details;  /* details, or NULL: a line is a paragraph and gets wrapped, unless it begins with a space */
    const oz_opt *const *tables;                  /* NULL-terminated list of tables, each ended by a row with name NULL */
    int min_args, max_args;                       /* of positional arguments; max -1: any number */
} oz_opt_cmd;

/* Parses argv[1..]; `--name value`, `--name=value`, `-n value`, `-nvalue`, `--`, options after positionals. args receives pointers into
 * argv, *n_args their number (room for argc). OZ_E_USAGE with a message that names the option. --help sets *help. */
oz_status oz_opt_parse(const oz_opt_cmd *cmd, int argc, char **argv, const char **args, int *n_args, bool *help, oz_err *err);
void oz_opt_help(const oz_opt_cmd *cmd, FILE *out);
void oz_opt_man(const oz_opt_cmd *cmd, FILE *out); /* one .SH block of troff */
void oz_opt_lists_free(const oz_opt_cmd *cmd);

#endif
