/* What the two ways of `ounce kl` share: of whole models (cmd_kl.c), and module by module (kl_modules.c). */
#ifndef OZ_CLI_KL_H
#define OZ_CLI_KL_H
#include "cli/cli.h"
#include "measure/measure.h"

typedef struct oz_cli_kl { const char *text_path; int64_t ctx, limit; /* 0: the default; none */ bool half, leave_one_out; } oz_cli_kl;
/* The text as ids, encoded once by the reference's tokenizer, without special tokens. A model needs none; one whose own makes other ids of the text is a warning. */
oz_status oz_cli_kl_ids(oz_ids *out, const oz_cli_kl *k, const oz_cli_model *ref, const char *const *models, size_t n, oz_err *err);
/* Modules of `model`, each alone in the reference, worst first; or `model` with each of them alone as the reference has it: as JSON or a table. */
oz_status oz_cli_kl_modules(const char *ref, const char *model, const oz_cli_kl *k, oz_err *err);

#endif
