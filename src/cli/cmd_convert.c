/* ounce convert MODEL -o OUT --to f32|bf16|compressed-tensors [--take PAT=OTHER]...: any checkpoint as plain floats or in one format, parts of it from others. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "quantize/quantize.h"
#include <stdio.h>
#include <string.h>

/* What --to can name. */
static const struct {
    const char *name;
    bool compressed;
    oz_dtype dtype;
} targets[] = {{"bf16", false, OZ_DTYPE_BF16}, {"f32", false, OZ_DTYPE_F32}, {"compressed-tensors", true, OZ_DTYPE_F32}};

static const char *to;
static char choices[64];
static bool lossy;
static oz_opt_list takes;

static const oz_opt opts[] = {
    {"to", 0, OZ_OPT_STR, &to, 0, 0, choices, "TYPE", "what the weights become"},
    {"take", 0, OZ_OPT_LIST, &takes, 0, 0, NULL, "PAT=OTHER", "take the modules that match PAT from the checkpoint OTHER"},
    {"lossy", 0, OZ_OPT_FLAG, &lossy, 0, 0, NULL, NULL, "compressed-tensors: store what has no form without loss as floats of the model's type"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_write, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "convert",
    .usage = "MODEL -o DIR --to TYPE [--take PAT=OTHER]... [options]",
    .summary = "dequantize a checkpoint or a GGUF, turn it into compressed-tensors, or build a hybrid",
    .details =
        "f32, bf16: each weight is dequantized in 32-bit floats and rounded once, to nearest even. Weights alone count: how inputs and the cache were quantized is left behind with a warning, even where it cannot be run here.\n\n"
        "compressed-tensors: nothing is lost. Modules that are stored so keep their tensors to the byte. Those of GPTQ (with an order of columns, too), AWQ and native fp8 keep codes, scales and zero points in "
        "another layout; so do GGUF's MXFP4, and Q8_0, Q5_0, Q4_0, Q6_K and Q3_K, with zero points where a block's scale is negative. Other blocks of a GGUF have offsets or codebooks that compressed-tensors "
        "cannot express: an error, or with --lossy floats of the model's type. A GGUF's embeddings become 32-bit floats, with --lossy the model's type. What vLLM would refuse in the result is a warning.\n\n"
        "--take builds a hybrid: modules that match PAT (an exact name, a class name, or re: and a regular expression matched from the start of the name) come from OTHER, a checkpoint of the same shape, with "
        "their scheme; the config says what each module is, and is MODEL's in all else: a quantized cache is not taken, and what OTHER's config says otherwise is a warning. The last = of the argument divides it. "
        "No module may match two patterns, and each pattern must match one.\n\n"
        "Nothing is written of a model that is not whole, or that would not load.\n\n"
        "Tokenizer, chat template and the other files beside the weights are copied; out of a GGUF they are made, and config.json too.",
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

static void report_print(const json_t *report) {
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(report, "modules"), i, row) {
        printf("%15lld  modules from %s to %s\n", (long long)json_integer_value(json_object_get(row, "modules")), json_string_value(json_object_get(row, "from")), json_string_value(json_object_get(row, "to")));
    }
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
    json_t *more = json_pack("{s:s, s:f, s:I}", "to", to, "seconds", seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes());
    json_object_update(more, (json_t *)oz_convert_report(c));
    if (oz_cli_write_tells()) report_print(more);
    oz_cli_write_report(oz_convert_layout(c), more);
    return OZ_OK;
}

/* "PAT=OTHER", divided at its last =. OTHER is a model that is read, like MODEL. */
static oz_status take_open(oz_convert_take *out, const char *text, oz_ckpt **other, oz_err *err) {
    const char *at = strrchr(text, '=');
    size_t unused;
    OZ_NEED(at && at > text && at[1], err, OZ_E_USAGE, "--take: must be PAT=OTHER, a pattern and a checkpoint, found '%s'", text);
    OZ_TRY(oz_cli_write_check(&unused, at + 1, err));
    OZ_TRY(oz_cli_of_model(oz_ckpt_open(other, at + 1, err), at + 1, err));
    *out = (oz_convert_take){oz_strndup(text, (size_t)(at - text)), *other};
    return OZ_OK;
}

static oz_status convert(const char *model, oz_convert_cfg *cfg, oz_err *err) {
    oz_ckpt *ckpt, **others = oz_alloc_array(takes.n + 1, sizeof *others);
    oz_convert_take *list = oz_alloc_array(takes.n + 1, sizeof *list);
    oz_convert *c = NULL;
    oz_status st = oz_cli_of_model(oz_ckpt_open(&ckpt, model, err), model, err);
    for (size_t i = 0; i < takes.n && st == OZ_OK; i++) st = take_open(&list[i], takes.items[i], &others[i], err);
    cfg->takes = list, cfg->n_takes = takes.n;
    if (st == OZ_OK) {
        st = oz_convert_new(&c, ckpt, cfg, err);
        if (st == OZ_OK) st = write_out(c, err);
        if (takes.n == 0) oz_cli_of_model(st, model, err); /* else it may lie in another */
    }
    oz_convert_free(&c);
    for (size_t i = 0; i < takes.n; i++) {
        oz_free((char *)list[i].pattern);
        oz_ckpt_close(&others[i]);
    }
    oz_ckpt_close(&ckpt);
    oz_free(others);
    oz_free(list);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    oz_convert_cfg cfg = {.lossy = lossy};
    OZ_NEED(to, err, OZ_E_USAGE, "--to: say what the weights become: %s", choices);
    OZ_TRY(oz_cli_write_check(&cfg.shard_bytes, args[0], err));
    size_t row = 0;
    while (strcmp(targets[row].name, to) != 0) row++; /* one of the choices */
    cfg.compressed = targets[row].compressed, cfg.to = targets[row].dtype;
    OZ_NEED(cfg.compressed || !lossy, err, OZ_E_USAGE, "--lossy: only --to compressed-tensors can keep what floats lose");
    return convert(args[0], &cfg, err);
}

const oz_cmd oz_cmd_convert = {"convert", describe, run, false};
