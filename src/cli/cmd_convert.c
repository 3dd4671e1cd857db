/* ounce convert MODEL -o OUT --to f32|bf16: any checkpoint as plain floats. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "quantize/quantize.h"
#include <string.h>

/* What --to can name. */
static const struct {
    const char *name;
    oz_dtype dtype;
} targets[] = {{"bf16", OZ_DTYPE_BF16}, {"f32", OZ_DTYPE_F32}};

static const char *to;
static char choices[64];

static const oz_opt opts[] = {
    {"to", 0, OZ_OPT_STR, &to, 0, 0, choices, "TYPE", "what the weights become"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_write, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "convert",
    .usage = "MODEL -o DIR --to TYPE [options]",
    .summary = "dequantize a checkpoint or a GGUF into a Hugging Face folder",
    .details =
        "Each weight is dequantized in 32-bit floats and rounded once, to nearest even. Tokenizer, chat template and the other files "
        "beside the weights are copied; out of a GGUF they are made, and config.json too.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) {
    const size_t n = sizeof targets / sizeof *targets;
    choices[0] = 0;
    for (size_t i = 0; i < n; i++) {
        strcat(choices, i ? "|" : "");
        strcat(choices, targets[i].name);
    }
    return &cmd;
}

static oz_status write_out(oz_convert *c, oz_err *err) {
    int64_t start = oz_clock_us();
    if (!oz_cli_output.dry_run) {
        oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
        oz_status st = oz_convert_run(c, oz_cli_output.path, oz_cli_output.force, pool, err);
        oz_pool_free(&pool);
        OZ_TRY(st);
    }
    double seconds = (double)(oz_clock_us() - start) / 1e6;
    oz_cli_write_report(oz_convert_layout(c), json_pack("{s:s, s:I, s:f, s:I}", "to", to, "tensors", (json_int_t)oz_convert_count(c),
                                                        "seconds", seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes()));
    return OZ_OK;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    size_t shard_bytes;
    OZ_NEED(to, err, OZ_E_USAGE, "--to: say what the weights become: %s", choices);
    OZ_TRY(oz_cli_write_check(&shard_bytes, args[0], err));
    size_t row = 0;
    while (strcmp(targets[row].name, to) != 0) row++; /* one of the choices */
    oz_ckpt *ckpt;
    OZ_TRY(oz_ckpt_open(&ckpt, args[0], err));
    oz_convert *c;
    oz_status st = oz_convert_new(&c, ckpt, targets[row].dtype, shard_bytes, err);
    if (st == OZ_OK) st = write_out(c, err);
    oz_convert_free(&c);
    oz_ckpt_close(&ckpt);
    return st;
}

const oz_cmd oz_cmd_convert = {"convert", describe, run, false};
