/* ounce synth CONFIG.json -o OUT [--seed N]: a checkpoint with random weights, for benchmarks of any size.
 * ounce synth --split-ffn E MODEL -o OUT: a dense model as a mixture of E experts. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "quantize/quantize.h"

enum { CONFIG_LIMIT = 16 << 20 };

static int64_t seed = -1 /* not given: 0 */, group_size, n_experts;
static const char *scheme_name;

static const oz_opt opts[] = {
    {"seed", 0, OZ_OPT_INT, &seed, 0, 9e15, NULL, "N", "of the random numbers: the same seed and config give the same bytes; 0 if left out"},
    {"scheme", 0, OZ_OPT_STR, &scheme_name, 0, 0, NULL, "S", "quantize at once, as ounce quantize would; its --help lists the schemes"},
    {"split-ffn", 0, OZ_OPT_INT, &n_experts, 1, 1024, NULL, "E", "not random: MODEL with its feed-forward cut into E experts, all of which run"},
    {"group-size", 0, OZ_OPT_INT, &group_size, 1, 1 << 24, NULL, "N", "inputs that share a scale, for schemes with groups; default: the scheme's own"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_write, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "synth",
    .usage = "CONFIG.json -o DIR [--scheme S] [options] | --split-ffn E MODEL -o DIR",
    .summary = "make a checkpoint with random weights of a given config",
    .details =
        "CONFIG.json is a config.json of the hub, or a folder that holds one. Weights are normal with the config's initializer_range "
        "(0.02), norms are 1, stored in the config's dtype. There is no tokenizer: for measurements of size and speed.\n\n"
        "With --split-ffn, MODEL is a dense Llama, and the result is a Mixtral with the same function: its experts are slices of the "
        "feed-forward, all are chosen with the same weight, and E is a power of two.",
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

static void report(const oz_layout *l, size_t n_tensors, int64_t start) {
    const double seconds = (double)(oz_clock_us() - start) / 1e6;
    json_t *more = json_pack("{s:I, s:f, s:I}", "tensors", (json_int_t)n_tensors, "seconds", seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes());
    if (!n_experts) json_object_set_new(more, "seed", json_integer(seed > 0 ? seed : 0));
    oz_cli_write_report(l, more);
}

static oz_status run_split(const char *path, size_t shard_bytes, oz_pool *pool, oz_err *err) {
    const int64_t start = oz_clock_us();
    oz_ckpt *c;
    oz_ffn_split *s = NULL;
    OZ_TRY(oz_cli_of_model(oz_ckpt_open(&c, path, err), path, err));
    oz_status st = oz_cli_of_model(oz_ffn_split_new(&s, c, n_experts, shard_bytes, err), path, err);
    if (st == OZ_OK && !oz_cli_output.dry_run) st = oz_ffn_split_run(s, oz_cli_output.path, oz_cli_output.force, pool, err);
    if (st == OZ_OK) report(oz_ffn_split_layout(s), oz_ffn_split_count(s), start);
    oz_ffn_split_free(&s);
    oz_ckpt_close(&c);
    return st;
}

static oz_status run_random(const char *path, const oz_scheme *scheme, size_t shard_bytes, oz_pool *pool, oz_err *err) {
    const int64_t start = oz_clock_us();
    json_t *config;
    oz_synth *s = NULL;
    OZ_TRY(load_config(&config, path, err));
    oz_status st = oz_cli_of_model(oz_synth_new(&s, config, scheme, (uint64_t)(seed > 0 ? seed : 0), shard_bytes, err), path, err);
    if (st == OZ_OK && !oz_cli_output.dry_run) st = oz_synth_run(s, oz_cli_output.path, oz_cli_output.force, pool, err);
    if (st == OZ_OK) report(oz_synth_layout(s), oz_synth_count(s), start);
    oz_synth_free(&s);
    json_decref(config);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    size_t shard_bytes;
    oz_scheme scheme = OZ_SCHEME_DENSE;
    const bool quantizes = scheme_name || group_size;
    OZ_NEED(!n_experts || !quantizes, err, OZ_E_USAGE, "--split-ffn: the result is dense, quantize it with ounce quantize; found --scheme or --group-size beside it");
    OZ_NEED(!n_experts || seed < 0, err, OZ_E_USAGE, "--split-ffn: the result has nothing random; found --seed beside it");
    if (quantizes) OZ_TRY(oz_cli_scheme_find(&scheme, scheme_name, group_size, err));
    OZ_TRY(oz_cli_write_check(&shard_bytes, args[0], err));
    oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
    const oz_status st = n_experts ? run_split(args[0], shard_bytes, pool, err) : run_random(args[0], &scheme, shard_bytes, pool, err);
    oz_pool_free(&pool);
    return st;
}

const oz_cmd oz_cmd_synth = {"synth", describe, run, false};
