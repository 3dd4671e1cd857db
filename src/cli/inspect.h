/* Internal to `ounce inspect`: a checkpoint's modules (inspect_parts.c), what is said of them as JSON (inspect_facts.c), and that as a screen
 * (inspect_print.c). */
#ifndef OZ_CLI_INSPECT_H
#define OZ_CLI_INSPECT_H
#include "base/map.h"
#include "cli/cli.h"

typedef struct oz_cli_part {
    char *module;
    const char *class_name, *role;
    int64_t rows, cols; /* 0: not known, or a vector */
    int expert;         /* -1: none */
    int64_t n_values;   /* parameters */
    bool is_matrix, is_router /* that is no Linear */, guessed /* by its tensors' names and shapes */, unknown_values /* n_values lacks some */;
    oz_scheme scheme;
    size_t n_tensors, bytes, largest; /* of its tensors; of one */
    oz_dtype dtype;                   /* of the largest */
} oz_cli_part;
typedef struct oz_cli_parts {
    oz_cli_part *items;
    size_t n, cap;
    oz_map *by_module;
    bool known; /* the architecture */
} oz_cli_parts;
oz_status oz_cli_parts_new(oz_cli_parts *p, const oz_ckpt *c, oz_err *err);
void oz_cli_parts_deinit(oz_cli_parts *p);
extern const oz_findings oz_cli_pass_over; /* what is wrong is not said here: the first of it is what `run` says, and `verify` says all */
const char *oz_cli_part_stored(const oz_cli_part *x); /* as what its codes are stored */

/* limit_bytes: of memory. refusal: why it is not run, or NULL. */
typedef struct oz_cli_inspect { const oz_ckpt *ckpt; const char *path, *refusal; double limit_bytes; } oz_cli_inspect;
json_t *oz_cli_inspect_facts(const oz_cli_inspect *in, const oz_cli_parts *p);
json_t *oz_cli_inspect_modules(const oz_cli_parts *p); /* each of them */
void oz_cli_inspect_print(const json_t *facts);

#endif
