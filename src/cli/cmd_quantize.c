/* ounce quantize MODEL -o OUT --scheme S: a compressed-tensors checkpoint, rounded to nearest. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "cli/cli.h"
#include "quantize/quantize.h"

static const char *scheme_name;
static int64_t group_size; /* 0: the scheme's own */
static oz_opt_list targets, ignore;

static const oz_opt opts[] = {
    {"scheme", 0, OZ_OPT_STR, &scheme_name, 0, 0, NULL, "S", "one of those above"},
    {"group-size", 0, OZ_OPT_INT, &group_size, 0, 1 << 24, NULL, "N",
     "inputs that share a scale, for schemes with groups; must divide the inputs of every module; 0: the scheme's own"},
    {"targets", 0, OZ_OPT_LIST, &targets, 0, 0, NULL, "PAT", "what to quantize; default Linear, which leaves out lm_head and routers"},
    {"ignore", 0, OZ_OPT_LIST, &ignore, 0, 0, NULL, "PAT", "what to leave as it is; wins over --targets"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_write, oz_cli_opts_output, NULL};
static oz_buf details;
static oz_opt_cmd cmd = {
    .name = "quantize",
    .usage = "MODEL -o DIR --scheme S [options]",
    .summary = "write a compressed-tensors checkpoint",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) {
    if (cmd.details) return &cmd;
    oz_buf_puts(&details, "Weights are rounded to nearest, without data, in 32-bit floats: the scale is rounded to the model's type first, and codes are computed against "
                          "the rounded scale. MODEL is a dense checkpoint or a GGUF. Embeddings, norms, biases, routers and lm_head are kept.\n\nSchemes:\n");
    for (size_t i = 0; i < oz_preset_count(); i++) oz_buf_printf(&details, "\n%s: %s.\n", oz_preset_at(i)->scheme.name, oz_preset_at(i)->help);
    oz_buf_puts(&details, "\nPAT is a module's exact name, a class name (Linear), or re: and a regular expression that is matched from the start of the name. "
                          "One that matches nothing is an error. A class name does not reach lm_head or a router: name it, or use an expression.\n");
    cmd.details = details.data;
    return &cmd;
}

/* The modules, and what they add up to. */
static json_t *report(const oz_quantize *q, const oz_scheme *s, double seconds) {
    json_t *modules = json_array();
    int64_t n_weights = 0;
    size_t bytes = 0, n_quantized = 0;
    for (size_t i = 0; i < oz_quantize_count(q); i++) {
        const oz_quantize_module m = oz_quantize_at(q, i);
        if (oz_cli_output.dry_run && !oz_cli_common.json) printf("%15zu  %-12s %s [%lld, %lld]\n", m.bytes, m.scheme->name, m.name, (long long)m.rows, (long long)m.cols);
        json_array_append_new(modules, json_pack("{s:s, s:s, s:[I, I], s:I}", "name", m.name, "scheme", m.scheme->name, "shape", (json_int_t)m.rows,
                                                 (json_int_t)m.cols, "bytes", (json_int_t)m.bytes));
        if (!m.scheme->quantized) continue;
        n_quantized++;
        n_weights += m.rows * m.cols;
        bytes += m.bytes;
    }
    const double bits = 8.0 * (double)bytes / (double)n_weights;
    if (!oz_cli_common.json) printf("%15zu  in %zu modules of %lld weights as %s, %.4f bits a weight\n", bytes, n_quantized, (long long)n_weights, s->name, bits);
    return json_pack("{s:s, s:i, s:I, s:I, s:f, s:f, s:I, s:o}", "scheme", s->name, "quantized_modules", (int)n_quantized, "quantized_weights", (json_int_t)n_weights,
                     "quantized_bytes", (json_int_t)bytes, "bits_per_weight", bits, "seconds", seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes(),
                     "modules", modules);
}

static oz_status write_out(oz_quantize *q, const oz_scheme *s, oz_err *err) {
    int64_t start = oz_clock_us();
    if (!oz_cli_output.dry_run) {
        oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
        oz_status st = oz_quantize_run(q, oz_cli_output.path, oz_cli_output.force, pool, err);
        oz_pool_free(&pool);
        OZ_TRY(st);
    }
    json_t *more = report(q, s, (double)(oz_clock_us() - start) / 1e6);
    if (s->group_size) json_object_set_new(more, "group_size", json_integer(s->group_size));
    oz_cli_write_report(oz_quantize_layout(q), more);
    return OZ_OK;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    oz_quantize_cfg cfg = {.targets = targets.items, .n_targets = targets.n, .ignore = ignore.items, .n_ignore = ignore.n};
    oz_ckpt *ckpt;
    oz_quantize *q;
    OZ_TRY(oz_cli_scheme_find(&cfg.scheme, scheme_name, group_size, err));
    OZ_TRY(oz_cli_write_check(&cfg.shard_bytes, args[0], err));
    OZ_TRY(oz_ckpt_open(&ckpt, args[0], err));
    oz_status st = oz_quantize_new(&q, ckpt, &cfg, err);
    if (st == OZ_OK) st = write_out(q, &cfg.scheme, err);
    oz_quantize_free(&q);
    oz_ckpt_close(&ckpt);
    return st;
}

const oz_cmd oz_cmd_quantize = {"quantize", describe, run, false};
