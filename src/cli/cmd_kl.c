/* ounce kl: KL divergence of models against a reference, in one pass. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/kl.h"

static const char *text_path, *positions = "all";
static int64_t ctx, limit;
static bool by_module, leave_one_out;
static const oz_opt opts[] = {
    {"text", 0, OZ_OPT_STR, &text_path, 0, 0, NULL, "FILE", "the text, encoded once by REF's tokenizer (a MODEL needs none) without special tokens; - for stdin"},
    {"ctx", 0, OZ_OPT_INT, &ctx, 2, 1 << 30, NULL, "N", "window in tokens, without overlap; default: 1024, or the shortest model's length"},
    {"positions", 0, OZ_OPT_STR, &positions, 0, 0, "all|half", "WHICH", "score every position of a window, or its second half (llama-perplexity)"},
    {"limit-tokens", 0, OZ_OPT_INT, &limit, 0, 1LL << 40, NULL, "N", "use the first N tokens; 0: all"},
    {"by-module", 0, OZ_OPT_FLAG, &by_module, 0, 0, NULL, NULL, "of one MODEL: REF with each of its modules alone, worst first"},
    {"leave-one-out", 0, OZ_OPT_FLAG, &leave_one_out, 0, 0, NULL, NULL, "--by-module the other way round: MODEL with each of its modules alone as REF has it, the one that gains most first"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"kl", "REF MODEL... --text FILE", "KL divergence of models against a reference",
                               "All models run in lockstep and the reference is computed once. KL(reference || model) in nats, exponentials and sums in f64 of f32 logits; "
                               "kl_se is the standard error over positions, kl_se_windows over windows; top1_agreement is the share of positions with the same most likely token, "
                               "mutual_top5_agreement of those where each one's is among the other's first five. Of mixtures of experts, router_flips has the share of the reference's choices that a model does not make, "
                               "by layer. --quantization is meant for the models, REF runs as it is stored.\n\n"
                               "--by-module measures REF with one module of MODEL in the place of its own (a whole module, as convert --take takes it), for each matrix that differs; the experts of a layer and kind are one. "
                               "It costs about half a forward pass a module. Modules whose inputs were rescaled (norms that differ) say nothing by themselves. With --leave-one-out it measures MODEL with one module of REF in its place, "
                               "at the same cost; gain is how much less that is than the KL of MODEL whole.",
                               tables, 2, -1};

typedef struct field { const char *key; double v; } field;

static json_t *quantiles_json(const oz_quantiles *q) {
    const field f[] = {{"max", q->max}, {"p99.9", q->p999}, {"p99", q->p99}, {"p95", q->p95}, {"p90", q->p90}, {"p75", q->p75}, {"median", q->median},
                       {"p25", q->p25}, {"p10", q->p10},    {"p5", q->p5},   {"p1", q->p1},   {"p0.1", q->p01}, {"min", q->min}};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) json_object_set_new(o, f[i].key, json_real(f[i].v));
    return o;
}

/* The text before a position as far as it says something, and the tokens that are spoken of. */
enum { CONTEXT = 12 };
typedef struct words { const oz_tok *tok; const oz_ids *ids; } words;

static char *text_of(const words *w, const int32_t *ids, size_t n) {
    oz_buf b = {0};
    oz_err err = {0};
    if (oz_tok_decode(&b, w->tok, ids, n, false, &err) != OZ_OK) oz_buf_puts(&b, "?");
    char *out = oz_strndup(b.data ? b.data : "", b.len);
    oz_buf_deinit(&b);
    return out;
}

static json_t *worst_json(const oz_kl_worst *x, const words *w) {
    const int64_t from = x->at + 1 > CONTEXT ? x->at + 1 - CONTEXT : 0;
    char *text[] = {text_of(w, w->ids->data + from, (size_t)(x->at + 1 - from)), text_of(w, w->ids->data + x->at + 1, 1), text_of(w, &x->stat.argmax_ref, 1), text_of(w, &x->stat.argmax, 1)};
    json_t *o = json_pack("{s:I s:f s:o s:o s:f s:f s:o s:o s:i s:i}", "position", (json_int_t)x->at, "kl", x->stat.kl, "context", oz_json_text(text[0]), "next", oz_json_text(text[1]), "p_ref", x->stat.p_ref,
                          "p", x->stat.p, "top_ref", oz_json_text(text[2]), "top", oz_json_text(text[3]), "place_ref", x->stat.place_ref, "place", x->stat.place);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) oz_free(text[i]);
    return o;
}

static json_t *classes_json(const oz_kl *k) {
    json_t *list = json_array();
    for (int i = 0; i < OZ_TOKEN_CLASSES; i++)
        if (k->by_class[i].positions) json_array_append_new(list, json_pack("{s:s, s:I, s:f}", "class", oz_token_class_name((oz_token_class)i), "positions", (json_int_t)k->by_class[i].positions, "mean_kl", k->by_class[i].mean_kl));
    return list;
}

/* Positions of a window from .. to, in spans that double. */
static int64_t span_from(int i) { return i ? (int64_t)1 << (i - 1) : 0; }
static json_t *positions_json(const oz_kl *k) {
    json_t *list = json_array();
    for (int i = 0; i < OZ_KL_SPANS; i++)
        if (k->by_position[i].positions) json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:f}", "from", (json_int_t)span_from(i), "to", (json_int_t)span_from(i + 1) - 1, "positions", (json_int_t)k->by_position[i].positions, "mean_kl", k->by_position[i].mean_kl));
    return list;
}

/* How it was measured. */
typedef struct setting { const char *ref, *ref_dtype, *model, *dtype, *device; } setting;

static json_t *to_json(const oz_kl *k, const setting *by, const words *w) {
    const field f[] = {{"mean_kl", k->mean_kl}, {"kl_se", k->kl_se}, {"kl_se_windows", k->kl_se_windows}, {"kl_median", k->kl.median}, {"kl_p99", k->kl.p99}, {"kl_max", k->kl.max},
                       {"top1_agreement", k->top1_agreement}, {"top1_se", k->top1_se}, {"ppl", k->ppl}, {"ppl_se", k->ppl_se}, {"ppl_ref", k->ppl_ref}, {"ppl_ref_se", k->ppl_ref_se},
                       {"ln_ppl_ratio", k->ln_ratio}, {"ln_ppl_ratio_se", k->ln_ratio_se}, {"ppl_ratio", k->ratio}, {"ppl_ratio_se", k->ratio_se}, {"ppl_diff", k->diff},
                       {"ppl_diff_se", k->diff_se}, {"ln_ppl_correlation", k->correlation}, {"mean_dp", k->mean_dp}, {"mean_dp_se", k->mean_dp_se}, {"rms_dp", k->rms_dp}, {"rms_dp_se", k->rms_dp_se}};
    json_t *o = json_pack("{s:o s:I s:I s:o s:o s:I s:s s:s s:s s:s}", "model", oz_json_text(by->model), "positions", (json_int_t)k->positions, "windows", (json_int_t)k->windows, "reference", oz_json_text(by->ref),
                          "text", oz_json_text(text_path), "ctx", (json_int_t)k->ctx, "score", positions, "dtype", by->dtype, "reference_dtype", by->ref_dtype, "device", by->device);
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) json_object_set_new(o, f[i].key, json_real(f[i].v));
    json_object_set_new(o, "kl", quantiles_json(&k->kl));
    json_object_set_new(o, "dp", quantiles_json(&k->dp));
    json_t *worst = json_array(), *flips = json_array();
    for (int i = 0; i < k->n_worst; i++) json_array_append_new(worst, worst_json(&k->worst[i], w));
    for (int64_t i = 0; i < k->n_layers; i++) json_array_append_new(flips, k->flips[i] < 0 ? json_null() : json_real(k->flips[i]));
    json_object_set_new(o, "mutual_top5_agreement", json_real(k->mutual_topk));
    json_object_set_new(o, "by_class", classes_json(k));
    json_object_set_new(o, "by_position", positions_json(k));
    json_object_set_new(o, "worst", worst);
    json_object_set_new(o, "router_flips", flips);
    return o;
}

/* With this many decimals, or three digits where those would show less than two. */
typedef struct number { char s[32]; } number;
static number num(double v, int decimals) {
    number out;
    if (v != 0 && fabs(v) < pow(10, 1 - decimals)) snprintf(out.s, sizeof out.s, "%.3g", v);
    else snprintf(out.s, sizeof out.s, "%.*f", decimals, v);
    return out;
}

static void quantiles_print(const char *what, const oz_quantiles *q, double unit) {
    const struct { const char *name; double v; int decimals; } f[] = {{"max", q->max, 4}, {"99.9%", q->p999, 4}, {"99%", q->p99, 4}, {"95%", q->p95, 4}, {"90%", q->p90, 4}, {"median", q->median, 6},
                                                                     {"10%", q->p10, 6},  {"5%", q->p5, 6},      {"1%", q->p1, 6},   {"0.1%", q->p01, 6}, {"min", q->min, 6}};
    printf("  %-9s", what);
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) printf("  %s %s", f[i].name, num(f[i].v * unit, f[i].decimals).s);
    putchar('\n');
}

static void flips_print(const oz_kl *k) {
    if (!k->flips) return;
    printf("  router choices that flip, %%, by layer:");
    for (int64_t i = 0; i < k->n_layers; i++)
        if (k->flips[i] < 0) fputs(" -", stdout);
        else printf(" %s", num(100 * k->flips[i], 3).s);
    putchar('\n');
}

static void parts_print(const oz_kl *k) {
    printf("  mean KL by the next token (share of positions, %%):");
    for (int i = 0; i < OZ_TOKEN_CLASSES; i++)
        if (k->by_class[i].positions) printf("  %s %s (%.1f)", oz_token_class_name((oz_token_class)i), num(k->by_class[i].mean_kl, 4).s, 100 * (double)k->by_class[i].positions / (double)k->positions);
    printf("\n  mean KL by position in the window:");
    for (int i = 0; i < OZ_KL_SPANS; i++)
        if (k->by_position[i].positions) printf("  %lld+ %s", (long long)span_from(i), num(k->by_position[i].mean_kl, 4).s);
    putchar('\n');
}

static void print(const oz_kl *k, const char *model, const words *w) {
    printf("%s\n  mean KL    %s +/- %s nats (over windows +/- %s)\n", model, num(k->mean_kl, 6).s, num(k->kl_se, 6).s, num(k->kl_se_windows, 6).s);
    quantiles_print("KL", &k->kl, 1.0);
    quantiles_print("dp, %", &k->dp, 100.0);
    printf("  mean dp    %s +/- %s %%   RMS dp %s +/- %s %%   same top token %.3f +/- %.3f %%\n", num(100 * k->mean_dp, 4).s, num(100 * k->mean_dp_se, 4).s, num(100 * k->rms_dp, 4).s,
           num(100 * k->rms_dp_se, 4).s, 100 * k->top1_agreement, 100 * k->top1_se);
    printf("  perplexity %.4f +/- %.4f, reference %.4f +/- %.4f, ratio %.5f +/- %s (ln %s +/- %s), difference %s +/- %s, correlation of ln %.3f %%\n", k->ppl, k->ppl_se, k->ppl_ref, k->ppl_ref_se,
           k->ratio, num(k->ratio_se, 5).s, num(k->ln_ratio, 5).s, num(k->ln_ratio_se, 5).s, num(k->diff, 4).s, num(k->diff_se, 4).s, 100 * k->correlation);
    printf("  each one's top token among the other's first %d: %.3f %%\n", OZ_KL_TOP, 100 * k->mutual_topk);
    flips_print(k);
    parts_print(k);
    puts("  worst positions: KL, context | next (p reference, p model) | top of each");
    for (int i = 0; i < k->n_worst; i++) {
        json_t *o = worst_json(&k->worst[i], w);
        const char *const keys[] = {"context", "next", "top_ref", "top"};
        char *s[4];
        for (int j = 0; j < 4; j++) s[j] = json_dumps(json_object_get(o, keys[j]), JSON_ENCODE_ANY);
        printf("  %9s  %s | %s (%.4f, %.4f) | %s, %s\n", num(k->worst[i].stat.kl, 4).s, s[0], s[1], k->worst[i].stat.p_ref, k->worst[i].stat.p, s[2], s[3]);
        for (int j = 0; j < 4; j++) free(s[j]);
        json_decref(o);
    }
}

static void report(const char **args, const oz_cli_model *open, const oz_kl *kl, int n, const words *w) {
    const char *ref = oz_model_get(open[0].model)->dtype, *device = oz_dev_describe(open[0].dev);
    if (oz_cli_common.json) {
        json_t *list = json_array();
        for (int i = 0; i < n; i++) json_array_append_new(list, to_json(&kl[i], &(setting){args[0], ref, args[i + 1], oz_model_get(open[i + 1].model)->dtype, device}, w));
        oz_cli_json_print(list);
        return;
    }
    printf("against %s (%s), positions: %lld, windows: %lld of %lld tokens\n", args[0], ref, (long long)kl[0].positions, (long long)kl[0].windows, (long long)kl[0].ctx);
    for (int i = 0; i < n; i++) print(&kl[i], args[i + 1], w);
}

static oz_status measure(const char **args, oz_cli_model *open, int n, oz_err *err) {
    oz_model **models = oz_alloc_array((size_t)n, sizeof *models);
    oz_kl *kl = oz_alloc_array((size_t)n - 1, sizeof *kl);
    for (int i = 0; i < n; i++) models[i] = open[i].model;
    oz_ids ids;
    oz_status st = oz_cli_kl_ids(&ids, &(oz_cli_kl){.text_path = text_path, .limit = limit}, &open[0], args + 1, (size_t)n - 1, err);
    uint8_t *classes = oz_alloc_array(ids.len + 1, sizeof *classes);
    if (st == OZ_OK) oz_token_classes_fill(classes, open[0].tok, ids.data, ids.len);
    if (st == OZ_OK) st = oz_kl_run(kl, models, n, ids.data, (int64_t)ids.len, &(oz_kl_cfg){ctx, strcmp(positions, "half") == 0, limit, args, classes}, err);
    if (st == OZ_OK) report(args, open, kl, n - 1, &(words){open[0].tok, &ids});
    oz_free(ids.data);
    oz_free(classes);
    for (int i = 0; i < n - 1; i++) oz_kl_deinit(&kl[i]);
    oz_free(kl);
    oz_free(models);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    OZ_NEED(text_path, err, OZ_E_USAGE, "--text FILE is missing");
    by_module = by_module || leave_one_out;
    OZ_NEED(!by_module || n_args == 2, err, OZ_E_USAGE, "%s: takes one MODEL, found %d", leave_one_out ? "--leave-one-out" : "--by-module", n_args - 1);
    if (by_module) return oz_cli_kl_modules(args[0], args[1], &(oz_cli_kl){text_path, ctx, limit, strcmp(positions, "half") == 0, leave_one_out}, err);
    oz_dev *dev;
    OZ_TRY(oz_cli_dev_open(&dev, err));
    oz_cli_model *open = oz_alloc_array((size_t)n_args, sizeof *open);
    oz_status st = OZ_OK;
    int n = 0;
    while (st == OZ_OK && n < n_args)
        if ((st = oz_cli_model_open(&open[n], args[n], &(oz_cli_need){.dev = dev, .tok = n == 0, .as_stored = n == 0, .tap_routes = true}, err)) == OZ_OK) n++;
    for (int i = 1; st == OZ_OK && i < n; i++) {
        const long long v = oz_model_get(open[i].model)->vocab_size, ref = oz_model_get(open[0].model)->vocab_size;
        if (v != ref) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: a vocabulary of %lld, expected %lld as %s has", args[i], v, ref, args[0]);
    }
    if (st == OZ_OK) st = measure(args, open, n, err);
    while (n > 0) oz_cli_model_close(&open[--n]);
    oz_free(open);
    oz_dev_close(&dev);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_kl = {"kl", describe, run, true};
