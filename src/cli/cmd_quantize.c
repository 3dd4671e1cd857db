/* ounce quantize MODEL -o OUT --scheme S, or --recipe FILE: a compressed-tensors checkpoint, rounded to nearest, or with calibration text. */
#include <ctype.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "cli/budget.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *scheme_name, *recipe_path;
static const char *method, *calibration, *target_bytes; /* method NULL: rtn */
static int64_t group_size; /* 0: the scheme's own */
static int64_t n_samples, max_seq_len, seed = -1; /* 0, -1: not given */
static double dampening, strength; /* 0: not given */
static const char *kv_scheme; /* NULL: the cache is not quantized */
static bool all_experts, resume;
static oz_opt_list targets, ignore;
enum { DEFAULT_SEQ_LEN = 512 };

static const oz_opt opts[] = {
    {"scheme", 0, OZ_OPT_STR, &scheme_name, 0, 0, NULL, "S", "one of those above"},
    {"recipe", 0, OZ_OPT_STR, &recipe_path, 0, 0, NULL, "FILE", "in place of a scheme: what to quantize and how, see above; YAML, or JSON where the name ends in .json"},
    {"group-size", 0, OZ_OPT_INT, &group_size, 0, 1 << 24, NULL, "N",
     "inputs that share a scale, for schemes with groups; must divide the inputs of every module; 0: the scheme's own"},
    {"method", 0, OZ_OPT_STR, &method, 0, 0, "rtn|gptq|imatrix|smoothquant|awq|smoothquant+gptq|awq+gptq", "M", "rtn, the default: round to nearest; the others: see above"},
    {"calibration", 0, OZ_OPT_STR, &calibration, 0, 0, NULL, "FILE", "for FP8, W8A8_STATIC, --kv-cache-scheme, --target-bytes and every method but rtn: plain text, or *.jsonl with \"ids\" (or \"input_ids\"), \"text\" or \"messages\" a line"},
    {"moe-calibrate-all-experts", 0, OZ_OPT_FLAG, &all_experts, 0, 0, NULL, NULL, "an expert that fewer tokens reach than its matrices have columns is calibrated on all tokens of its layer; the others on theirs (llm-compressor, by this name, shows every expert all tokens)"},
    {"target-bytes", 0, OZ_OPT_STR, &target_bytes, 0, 0, NULL, "SIZE", "of all tensors of the modules that are reached: each one's scheme is chosen, see above; 60M, 1.5GB, bytes, or bits a weight: 4.5bpw"},
    {"kv-cache-scheme", 0, OZ_OPT_STR, &kv_scheme, 0, 0, NULL, "S", "keys and values are rounded to it when they are kept: fp8 or int8, with two calibrated scales a layer, or fp8_per_head, int8_per_head, with two a head; vLLM runs fp8 alone"},
    {"num-calibration-samples", 0, OZ_OPT_INT, &n_samples, 1, 1 << 20, NULL, "N", "sequences taken from FILE; default 128, or all where there are fewer"},
    {"seed", 0, OZ_OPT_INT, &seed, 0, 9e15, NULL, "N", "sequences are chosen by it out of all of FILE; default: the first ones"},
    {"max-seq-length", 0, OZ_OPT_INT, &max_seq_len, 1, 1 << 20, NULL, "N", "tokens of a sequence; default 512"},
    {"dampening-frac", 0, OZ_OPT_FLOAT, &dampening, 1e-6, 1, NULL, "X", "gptq: share of the mean diagonal that is added to a Hessian's diagonal; default 0.01"},
    {"smoothing-strength", 0, OZ_OPT_FLOAT, &strength, 0, 1, NULL, "X", "smoothquant, awq: how much of the inputs' unevenness goes into the weights; 0, the default: searched for each set of modules"},
    {"device", 0, OZ_OPT_STR, &oz_cli_common.device, 0, 0, NULL, "auto|cpu|cuda[:N]", "with --calibration: where the model runs and GPTQ computes; auto: CUDA where it is, and says so"},
    {"resume", 0, OZ_OPT_FLAG, &resume, 0, 0, NULL, NULL, "with --calibration: go on with the work that DIR.gptq holds"},
    {"targets", 0, OZ_OPT_LIST, &targets, 0, 0, NULL, "PAT", "what to quantize; default Linear, which leaves out lm_head and routers; with a scheme of experts: what else"},
    {"ignore", 0, OZ_OPT_LIST, &ignore, 0, 0, NULL, "PAT", "what to leave as it is; wins over --targets"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_write, oz_cli_opts_output, NULL};
static oz_buf details;
static oz_opt_cmd cmd = {
    .name = "quantize",
    .usage = "MODEL -o DIR (--scheme S | --target-bytes SIZE | --recipe FILE) [options]",
    .summary = "write a compressed-tensors checkpoint",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) {
    if (cmd.details) return &cmd;
    oz_buf_puts(&details, "Weights are rounded to nearest, without data, in 32-bit floats: the scale is rounded to the model's type first, and codes are computed against "
                          "the rounded scale. MODEL is an unquantized checkpoint, dense or a mixture of experts, or a GGUF. Embeddings, norms, biases, routers and lm_head are kept.\n\n"
                          "--method gptq chooses the codes so that the output on calibration text changes least, each token counting by the size of its inputs, layer by layer and within a layer in the order of the forward pass: each module is fitted to "
                          "what the quantized ones before it give. Columns go by the size of their inputs, each one's error made up for by later ones; then all are gone over again, each given all others. Scales and zero "
                          "points are searched (how far to clip), and fitted once more to the codes. A plain text is cut into sequences of --max-seq-length "
                          "tokens, encoded without special tokens; lines of *.jsonl are a sequence each, cut off at that length. The work lies in DIR.gptq; "
                          "when it is broken off in any way, the same command with --resume goes on after the last whole layer, and ends in the same bytes. "
                          "ounce_recipe.json in DIR says how it was made. The log and --json have each module's output error before and after (errors: module, tokens that reached it, before, after, dampening), where scales moved (folds: from, modules, strength, balanced, before, after), "
                          "and the tokens that each expert saw (experts). The error is the sum of squared differences of its outputs on the "
                          "calibration text, as the quantized modules before it give that, to those of its own weights there, relative to the sum of their squares, each token counting as above.\n\n"
                          "--method imatrix rounds to nearest, under scales and zero points that are searched, and scales then fitted to their codes: an error of a weight counts by the mean square of what it is multiplied by on calibration text (llama.cpp's importance matrix). "
                          "It needs no more memory than that, and is less than gptq does.\n\n"
                          "--method smoothquant and awq move scales first, where that changes nothing of what the model computes: out of norms, values and up projections into all that reads them "
                          "(a router too, by powers of two). What is large in the inputs goes into the weights (smoothquant, for schemes that round inputs), or weights that meet large inputs are made "
                          "large (awq, which also clips ranges of weights where that costs the output less). Each set of modules has its own scales: those with which its outputs on calibration text, weights and inputs "
                          "rounded as the scheme says, change least, among the method's formula with several strengths, a balance of both roundings, and nothing moved; --smoothing-strength asks for the formula alone. A set with a module that --ignore keeps is left as it is. Then weights are rounded to nearest, or by GPTQ: smoothquant+gptq, awq+gptq.\n\n"
                          "--target-bytes chooses a scheme for each module, so that together they take at most so many bytes and change the model least: of W4A16 and W4A16_ASYM in groups of 128, 64 and 32, W8A16, and the module as it is; "
                          "--scheme, where it is given, is the least. Modules that vLLM runs as one (q, k, v; gate, up; a layer's experts) share a choice. What the leanest scheme does to the model is measured for each "
                          "of them alone, as a KL divergence over 8 sequences of the calibration text; another scheme is expected to do that times the ratio of errors at the modules' outputs, on 16 sequences. "
                          "It goes with every method, and the result is an ordinary checkpoint with a group a scheme. What is measured is kept in DIR.gptq, some modules at a time, and --resume goes on there, too.\n\n"
                          "--kv-cache-scheme writes k_scale and v_scale beside each attention: the largest magnitudes that the calibration text gives keys (rotated) and values behind the quantized projections / 448, or / 127.5 for int8. What comes later in the "
                          "layer is fitted to what the rounded cache gives.\n\n"
                          "--recipe takes llm-compressor's recipes: stages of modifiers, of which QuantizationModifier (round to nearest) and GPTQModifier are done, behind at most one of SmoothQuantModifier and AWQModifier, whose mappings say where scales move (left out: wherever that changes nothing of what the model computes), duo_scaling and n_grid what is tried; an AWQModifier may round, too. Each that rounds has targets, ignore and "
                          "scheme (a name in llm-compressor's meaning, where W8A16 has groups of 128), or config_groups with weights and input_activations: num_bits, type, symmetric, strategy, "
                          "group_size, block_structure, dynamic, and a format. As there, Linear reaches lm_head unless it is ignored, and of several targets the most specific one counts. Modifiers may be mixed; "
                          "static inputs (dynamic: false) are calibrated. What is not known, or would be done otherwise here, is an error with its path; what vLLM would refuse of the result is a warning.\n\nSchemes:\n");
    for (size_t i = 0; i < oz_preset_count(); i++) oz_buf_printf(&details, "\n%s: %s.\n", oz_preset_at(i)->scheme.name, oz_preset_at(i)->help);
    oz_buf_puts(&details, "\nPAT is a module's exact name, a class name (Linear), or re: and a regular expression that is matched from the start of the name. "
                          "One that matches nothing is an error. A class name does not reach lm_head or a router: name it, or use an expression.\n");
    cmd.details = details.data;
    return &cmd;
}

/* A line a role, then one a module. */
static void sizes_print(const oz_quantize *q, const json_t *modules) {
    oz_cli_roles_print(modules);
    putchar('\n');
    for (size_t i = 0; i < oz_quantize_count(q); i++) {
        const oz_quantize_module m = oz_quantize_at(q, i);
        printf("%15zu  %-12s %s [%lld, %lld]\n", m.bytes, m.scheme->name, m.name, (long long)m.rows, (long long)m.cols);
    }
    putchar('\n');
}

/* The scheme of all modules that are quantized; NULL: of several. */
static const oz_scheme *one_scheme(const oz_quantize *q) {
    const oz_scheme *one = NULL;
    for (size_t i = 0; i < oz_quantize_count(q); i++) {
        const oz_scheme *s = oz_quantize_at(q, i).scheme;
        if (!s->quantized) continue;
        if (one && (strcmp(one->name, s->name) != 0 || one->group_size != s->group_size)) return NULL;
        one = s;
    }
    return one;
}

/* The modules, and what they add up to. */
static json_t *report(const oz_quantize *q, double seconds) {
    json_t *modules = json_array();
    int64_t n_weights = 0;
    size_t bytes = 0, n_quantized = 0;
    for (size_t i = 0; i < oz_quantize_count(q); i++) {
        const oz_quantize_module m = oz_quantize_at(q, i);
        json_array_append_new(modules, json_pack("{s:s, s:s, s:s, s:[I, I], s:I}", "name", m.name, "role", m.role, "scheme", m.scheme->name, "shape", (json_int_t)m.rows,
                                                 (json_int_t)m.cols, "bytes", (json_int_t)m.bytes));
        if (!m.scheme->quantized) continue;
        n_quantized++;
        n_weights += m.rows * m.cols;
        bytes += m.bytes;
    }
    if (oz_cli_output.dry_run && !oz_cli_common.json) sizes_print(q, modules);
    const double bits = 8.0 * (double)bytes / (double)n_weights;
    const char *scheme = one_scheme(q) ? one_scheme(q)->name : "mixed";
    if (oz_cli_write_tells()) printf("%15zu  in %zu modules of %lld weights as %s, %.4f bits a weight\n", bytes, n_quantized, (long long)n_weights, scheme, bits);
    return json_pack("{s:s, s:i, s:I, s:I, s:f, s:f, s:I, s:o}", "scheme", scheme, "quantized_modules", (int)n_quantized, "quantized_weights", (json_int_t)n_weights,
                     "quantized_bytes", (json_int_t)bytes, "bits_per_weight", bits, "seconds", seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes(),
                     "modules", modules);
}

static oz_status calibration_read(oz_calibration *c, const char *model, oz_err *err) {
    oz_text_files files = {0};
    oz_tok *tok = NULL;
    oz_status st = oz_cli_of_model(oz_text_files_open(&files, model, err), model, err);
    if (st == OZ_OK && files.tokenizer) st = oz_cli_tok_open(&tok, &files, model, err);
    if (st == OZ_OK) st = oz_calibration_read(c, calibration, &(oz_calibration_cfg){tok, &files, n_samples, max_seq_len ? max_seq_len : DEFAULT_SEQ_LEN, seed}, err);
    oz_tok_free(&tok);
    oz_text_files_close(&files);
    return st;
}

/* The calibration text, and a device to run the model on; each is there once it was needed. */
typedef struct text { const char *model; oz_calibration calibration; bool is_read; oz_dev *dev; } text;

static oz_status text_open(text *t, bool runs, oz_err *err) {
    if (!t->is_read) OZ_TRY(calibration_read(&t->calibration, t->model, err));
    t->is_read = true;
    return runs && !t->dev ? oz_cli_dev_open(&t->dev, err) : OZ_OK;
}

static oz_quantize_text_cfg text_cfg(const text *t, oz_budget *budget) { return (oz_quantize_text_cfg){t->dev, &t->calibration, oz_cli_output.force, resume, OZ_VERSION, budget}; }

/* A dry run reads and checks the text alone. */
static oz_status text_run(json_t **made, oz_quantize *q, oz_budget *budget, text *t, oz_pool *pool, oz_err *err) {
    OZ_TRY(text_open(t, !oz_cli_output.dry_run, err));
    if (oz_cli_output.dry_run) return oz_quantize_text_check(q, &t->calibration, err);
    const oz_quantize_text_cfg cfg = text_cfg(t, budget);
    return oz_quantize_run_text(made, q, oz_cli_output.path, &cfg, pool, err);
}

/* Options that change nothing where nothing takes a text. */
static oz_status idle_check(oz_err *err) {
    const struct { const char *name; bool given; } of_text[] = {{"--calibration", calibration}, {"--num-calibration-samples", n_samples}, {"--max-seq-length", max_seq_len}, {"--seed", seed >= 0}, {"--device", strcmp(oz_cli_common.device, "auto") != 0}, {"--resume", resume}};
    for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++)
        OZ_NEED(!of_text[i].given, err, OZ_E_USAGE, "%s: %s %s takes no calibration text: it has neither a %s nor static scales of inputs or of a cache", of_text[i].name, recipe_path ? "--recipe" : "--method rtn with --scheme",
                recipe_path ? recipe_path : scheme_name, recipe_path ? "modifier that does (GPTQModifier, AWQModifier, SmoothQuantModifier)" : "method that does (--method gptq, imatrix, awq, smoothquant)");
    return OZ_OK;
}

static oz_status write_out(oz_quantize *q, oz_budget *budget, text *t, oz_err *err) {
    int64_t start = oz_clock_us();
    json_t *made = NULL;
    const char *wants = oz_quantize_wants_text(q);
    OZ_NEED(!wants || calibration, err, OZ_E_USAGE, "--calibration: %s needs text to calibrate with", wants);
    if (!wants) OZ_TRY(idle_check(err));
    if (wants || !oz_cli_output.dry_run) {
        oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
        oz_status st = wants ? text_run(&made, q, budget, t, pool, err) : oz_quantize_run(q, oz_cli_output.path, oz_cli_output.force, pool, err);
        oz_pool_free(&pool);
        OZ_TRY(st);
    }
    json_t *more = report(q, (double)(oz_clock_us() - start) / 1e6);
    const oz_scheme *s = one_scheme(q);
    json_object_set_new(more, "method", json_string(recipe_path ? "recipe" : method ? method : "rtn"));
    json_object_set_new(more, "errors", json_array());
    json_object_set_new(more, "folds", json_array());
    if (made) json_object_update(more, made);
    json_decref(made);
    if (budget) json_object_set(more, "budget", (json_t *)oz_budget_report(budget));
    if (s && s->group_size) json_object_set_new(more, "group_size", json_integer(s->group_size));
    oz_cli_write_report(oz_quantize_layout(q), more);
    return OZ_OK;
}

/* A scheme for each module, by what it does on calibration text. */
static oz_status budget_make(oz_budget **out, const oz_ckpt *ckpt, const oz_quantize_cfg *cfg, size_t target, text *t, oz_err *err) {
    OZ_TRY(oz_cli_of_model(oz_budget_new(out, ckpt, cfg, (int64_t)target, err), t->model, err));
    OZ_TRY(text_open(t, true, err));
    oz_pool *pool = oz_pool_new((int)oz_cli_common.threads);
    const oz_quantize_text_cfg run = text_cfg(t, *out);
    oz_status st = oz_cli_budget(*out, &(oz_cli_budget_cfg){ckpt, t->model, oz_cli_output.dry_run ? NULL : oz_cli_output.path, &run}, pool, err);
    oz_pool_free(&pool);
    return st;
}

/* "4.5bpw": bits a weight of the modules that are reached; 0: something else. */
static double target_bits(void) {
    char *end;
    const double bits = strtod(target_bytes, &end);
    return (isdigit((unsigned char)*target_bytes) || *target_bytes == '.') && end != target_bytes && strcmp(end, "bpw") == 0 && bits > 0 && bits <= 32 ? bits : 0;
}

static oz_status target_of_bits(size_t *target, const oz_ckpt *ckpt, const oz_quantize_cfg *cfg, oz_err *err) {
    oz_quantize_cfg reached = *cfg;
    oz_quantize *q;
    double n = 0;
    if (!reached.scheme.quantized) reached.scheme = oz_preset_find("W8A16")->scheme;
    OZ_TRY(oz_quantize_new(&q, ckpt, &reached, err));
    for (size_t i = 0; i < oz_quantize_count(q); i++)
        if (oz_quantize_at(q, i).scheme->quantized) n += (double)(oz_quantize_at(q, i).rows * oz_quantize_at(q, i).cols);
    oz_quantize_free(&q);
    *target = (size_t)(n * target_bits() / 8);
    if (*target == 0) *target = 1; /* less than any choice takes, which is said there */
    return OZ_OK;
}

static oz_status target_check(size_t *target, oz_quantize_cfg *cfg, oz_err *err) {
    *target = 1; /* of bits: known with the model */
    OZ_NEED(target_bits() > 0 || (oz_cli_size_parse(target, target_bytes) && *target > 0), err, OZ_E_USAGE, "--target-bytes: must be a number of bytes, 60M, 1.5GB or 2GiB, or bits a weight, 4.5bpw, found \"%s\"", target_bytes);
    OZ_NEED(calibration, err, OZ_E_USAGE, "--calibration: --target-bytes needs text to measure modules with");
    OZ_NEED(scheme_name || !group_size, err, OZ_E_USAGE, "--group-size: --target-bytes chooses groups, too; with --scheme it is that of the least scheme");
    cfg->scheme = OZ_SCHEME_DENSE;
    return scheme_name ? oz_cli_scheme_find(&cfg->scheme, scheme_name, group_size, err) : OZ_OK;
}

static oz_status kv_check(oz_kv_scheme *out, oz_err *err) {
    *out = (oz_kv_scheme){0};
    OZ_NEED(!kv_scheme || recipe_path || target_bytes || scheme_name, err, OZ_E_USAGE, "--kv-cache-scheme: needs --scheme, too: a cache alone, with weights as they are, is not made");
    OZ_NEED(!kv_scheme || oz_kv_scheme_find(out, kv_scheme), err, OZ_E_USAGE, "--kv-cache-scheme: must be fp8, fp8_per_head, int8 or int8_per_head, found \"%s\"", kv_scheme);
    return OZ_OK;
}

/* A recipe says all that these say. */
static oz_status recipe_check(oz_err *err) {
    const struct { const char *name; bool given; } said[] = {{"--scheme", scheme_name != NULL}, {"--group-size", group_size != 0}, {"--method", method != NULL}, {"--target-bytes", target_bytes != NULL}, {"--kv-cache-scheme", kv_scheme != NULL}, {"--targets", targets.n > 0},
                                                             {"--ignore", ignore.n > 0}, {"--dampening-frac", dampening != 0}, {"--smoothing-strength", strength != 0}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) OZ_NEED(!said[i].given, err, OZ_E_USAGE, "%s: --recipe says that; leave one of them out", said[i].name);
    return OZ_OK;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    oz_quantize_cfg cfg = {.method = method, .dampening = dampening != 0 ? dampening : OZ_DAMPENING, .strength = strength, .all_experts = all_experts, .targets = targets.items, .n_targets = targets.n, .ignore = ignore.items, .n_ignore = ignore.n};
    oz_recipe *recipe = NULL;
    oz_ckpt *ckpt = NULL;
    oz_quantize *q = NULL;
    oz_budget *budget = NULL;
    text t = {.model = args[0]};
    size_t target = 0;
    OZ_TRY(kv_check(&cfg.kv, err));
    OZ_TRY(recipe_path ? recipe_check(err) : target_bytes ? target_check(&target, &cfg, err) : oz_cli_scheme_find(&cfg.scheme, scheme_name, group_size, err));
    OZ_NEED(recipe_path || (method && strstr(method, "gptq")) || dampening == 0, err, OZ_E_USAGE, "--dampening-frac: --method %s has no Hessian to add it to", method ? method : "rtn");
    OZ_TRY(oz_cli_write_check(&cfg.shard_bytes, args[0], err));
    OZ_TRY(oz_cli_keeps_check("--calibration", calibration, err));
    OZ_TRY(oz_cli_keeps_check("--recipe", recipe_path, err));
    oz_status st = recipe_path ? oz_recipe_read(&recipe, recipe_path, err) : OZ_OK;
    cfg.recipe = recipe;
    if (st == OZ_OK) st = oz_cli_of_model(oz_ckpt_open(&ckpt, args[0], err), args[0], err);
    if (st == OZ_OK && target && target_bits() > 0) st = target_of_bits(&target, ckpt, &cfg, err);
    if (st == OZ_OK && target) st = budget_make(&budget, ckpt, &cfg, target, &t, err);
    cfg.budget = budget;
    if (st == OZ_OK && (st = oz_quantize_new(&q, ckpt, &cfg, err)) != OZ_OK && !recipe_path) oz_cli_of_model(st, args[0], err); /* else it may lie in the recipe */
    oz_recipe_free(&recipe);
    if (st == OZ_OK) st = write_out(q, budget, &t, err);
    oz_quantize_free(&q);
    oz_budget_free(&budget);
    oz_dev_close(&t.dev);
    oz_calibration_deinit(&t.calibration);
    oz_ckpt_close(&ckpt);
    return st;
}

const oz_cmd oz_cmd_quantize = {"quantize", describe, run, false};
