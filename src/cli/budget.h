/* The choice of bits under a budget (budget.c), as cmd_quantize.c asks for it. */
#ifndef OZ_CLI_BUDGET_H
#define OZ_CLI_BUDGET_H
#include "cli/cli.h"
#include "quantize/quantize.h"

typedef struct oz_cli_budget_cfg { const oz_ckpt *ckpt; const char *model; /* its name, for messages */ const char *target; /* NULL: a dry run */ const oz_quantize_text_cfg *text; } oz_cli_budget_cfg;
/* Measures on some sequences of the text, and chooses. */
oz_status oz_cli_budget(oz_budget *b, const oz_cli_budget_cfg *cfg, oz_pool *pool, oz_err *err);

#endif
