/* ounce synth CONFIG.json -o OUT [--seed N]: a checkpoint with random weights, for benchmarks of any size. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "quantize/quantize.h"

enum { CONFIG_LIMIT = 16 << 20 };

static int64_t seed, group_size;
static const char *scheme_name;

static const oz_opt opts[] = {
    {"seed", 0, OZ_OPT_INT, &seed, 0, 9e15, NULL, "N", "of the random numbers: the same seed and config give the same bytes"},
    {"scheme", 0, OZ_OPT_STR, &scheme_name, 0, 0, NULL, "S", "quantize at once, as ounce quantize would; its --help lists the schemes"},
    {"group-size", 0, OZ_OPT_INT, &group_size, 1, 1 << 24, NULL, "N", "inputs that share a scale, for schemes with groups"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_write, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "synth",
    .usage = "CONFIG.json -o DIR [--scheme S] [options]",
    .summary = "make a checkpoint with random weights of a given config",
    .details =
        "CONFIG.json is a config.json of the hub, or a folder that holds one. Weights are normal with the config's initializer_range "
        "(0.02), norms are 1, stored in the config's dtype. There is no tokenizer: for measurements of size and speed.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) { return &cmd; }

static oz_status load_config(json_t **out, const char *path, oz_err *err) {
    char *inside = oz_path_is_dir(path) ? oz_path_join(path, "config.json") : NULL;
    oz_status st = oz_json_load(out, inside ? inside : path, CONFIG_LIMIT, err);
    oz_free(inside);
    return st;
}

static oz_status write_out(oz_synth *s, oz_err *err) {
    int64_t start = oz_clock_us();
    if (!oz_cli_output.dry_run) {
        oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
        oz_status st = oz_synth_run(s, oz_cli_output.path, oz_cli_output.force, pool, err);
        oz_pool_free(&pool);
        OZ_TRY(st);
    }
    double seconds = (double)(oz_clock_us() - start) / 1e6;
    oz_cli_write_report(oz_synth_layout(s),
                        json_pack("{s:I, s:I, s:f, s:I}", "seed", (json_int_t)seed, "tensors", (json_int_t)oz_synth_count(s), "seconds",
                                  seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes()));
    return OZ_OK;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    size_t shard_bytes;
    oz_scheme scheme = OZ_SCHEME_DENSE;
    if (scheme_name || group_size) OZ_TRY(oz_cli_scheme_find(&scheme, scheme_name, group_size, err));
    OZ_TRY(oz_cli_write_check(&shard_bytes, err));
    json_t *config;
    OZ_TRY(load_config(&config, args[0], err));
    oz_synth *s;
    oz_status st = oz_synth_new(&s, config, &scheme, (uint64_t)seed, shard_bytes, err);
    if (st == OZ_OK) st = write_out(s, err);
    oz_synth_free(&s);
    json_decref(config);
    return st;
}

const oz_cmd oz_cmd_synth = {"synth", describe, run, false};
