/* Which modules of a checkpoint are quantized, and how: by one scheme and patterns of the command line, or by a recipe. */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "quantize/internal.h"

static bool is_linear(const oz_arch_tensor *t) { return !t->is_bias && t->cols > 0 && strcmp(t->class_name, "Linear") == 0; }
static oz_module module_of(const oz_arch_tensor *t) { return (oz_module){t->module, t->class_name, t->rows, t->cols, false}; }

/* ---- patterns: a class name stands for "all layers", so it does not reach lm_head or a router ---- */

typedef struct selection { const oz_quantize_cfg *cfg; bool *target_used, *ignore_used; } selection;

static oz_status select_module(bool *take, bool *ignored, const selection *s, const oz_arch_tensor *t, oz_err *err) {
    const char *const *targets = s->cfg->targets;
    const oz_module m = module_of(t);
    bool hit;
    *take = (s->cfg->n_targets == 0 || s->cfg->scheme.experts) && oz_scheme_reaches(&s->cfg->scheme, t);
    for (size_t i = 0; is_linear(t) && i < s->cfg->n_targets; i++) {
        if (oz_pattern_match(&hit, targets[i], &m, err) != OZ_OK) return oz_err_prefix(err, "--targets");
        s->target_used[i] = s->target_used[i] || hit;
        const bool by_class = strcmp(targets[i], t->class_name) == 0;
        *take = *take || (hit && !(by_class && oz_role_by_name(t->role)));
    }
    for (size_t i = 0; i < s->cfg->n_ignore; i++) {
        if (oz_pattern_match(&hit, s->cfg->ignore[i], &m, err) != OZ_OK) return oz_err_prefix(err, "--ignore");
        s->ignore_used[i] = s->ignore_used[i] || hit;
        *take = *take && !hit, *ignored = *ignored || hit;
    }
    return OZ_OK;
}

static oz_status check_used(const selection *s, oz_err *err) {
    for (size_t i = 0; i < s->cfg->n_targets; i++)
        OZ_NEED(s->target_used[i], err, OZ_E_ARG, "--targets '%s': matches no linear module of this model", s->cfg->targets[i]);
    for (size_t i = 0; i < s->cfg->n_ignore; i++)
        OZ_NEED(s->ignore_used[i], err, OZ_E_ARG, "--ignore '%s': matches no module of this model", s->cfg->ignore[i]);
    return OZ_OK;
}

static oz_status by_patterns(oz_quantize *q, const oz_quantize_cfg *cfg, const oz_method *method, oz_err *err) {
    selection s = {cfg, oz_alloc_array(cfg->n_targets + 1, sizeof(bool)), oz_alloc_array(cfg->n_ignore + 1, sizeof(bool))};
    oz_status st = OZ_OK;
    for (size_t i = 0; i < q->list.n && st == OZ_OK; i++) {
        if (q->list.items[i].is_bias) continue;
        st = select_module(&q->items[i].quantized, &q->items[i].ignored, &s, &q->list.items[i], err);
        q->items[i].scheme = cfg->scheme, q->items[i].gptq = method->gptq, q->items[i].imatrix = method->imatrix;
        if (!cfg->budget || !q->items[i].quantized) continue;
        q->items[i].scheme = *oz_budget_scheme(cfg->budget, i), q->items[i].quantized = q->items[i].scheme.quantized, q->items[i].ignored = !q->items[i].quantized;
    }
    if (st == OZ_OK) st = check_used(&s, err);
    oz_free(s.target_used);
    oz_free(s.ignore_used);
    return st;
}

/* ---- a recipe: the rules of a quantization_config, so "Linear" reaches lm_head; a router is no Linear, as it is none in transformers ---- */

static oz_status by_modifier(oz_quantize *q, const oz_recipe *r, const oz_modifier *m, oz_err *err) {
    const size_t n = q->list.n;
    oz_module *modules = oz_alloc_array(n + 1, sizeof *modules);
    oz_scheme *schemes = oz_alloc_array(n + 1, sizeof *schemes);
    for (size_t i = 0; i < n; i++) {
        const oz_arch_tensor *t = &q->list.items[i];
        modules[i] = module_of(t);
        if (t->is_bias || t->cols == 0 || t->role == OZ_ROLE_ROUTER) modules[i].class_name = "";
    }
    oz_status st = oz_scheme_resolve_groups(schemes, m->config, m->path, modules, n, err);
    for (size_t i = 0; i < n && st == OZ_OK; i++) {
        oz_quantize_item *it = &q->items[i];
        it->ignored = it->ignored || (!schemes[i].quantized && schemes[i].pattern);
        if (!schemes[i].quantized) continue;
        if (it->quantized) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: %s applies to it, and so does a modifier before", modules[i].name, m->path);
        it->quantized = true, it->scheme = schemes[i], it->gptq = m->gptq;
    }
    oz_free(modules);
    oz_free(schemes);
    return st;
}

/* ---- what is made ---- */

static oz_status check_made(const oz_quantize_item *it, oz_err *err) {
    const oz_scheme *s = &it->scheme;
    const oz_codec_info *codec = oz_codec_get(s->codec);
    const char *why = NULL;
    if (!is_linear(it->arch)) why = "embeddings are kept as they are";
    else if (s->store != OZ_STORE_BYTES && s->store != OZ_STORE_PACKED) why = "weights of the NVFP4 and MX formats are not made";
    else if (codec->is_float && codec->bits != 8) why = "floats of less than 8 bits are not made";
    else if (s->column_order) why = "columns that are stored in an order of their own are not made";
    else if (it->gptq && it->arch->layer < 0) why = "GPTQ quantizes what is in layers; leave it out (ignore)";
    else if (it->imatrix && it->arch->layer < 0) why = "importance is measured in layers; leave it out (ignore)";
    else if (it->imatrix && !oz_clip_fits(s)) why = "its scales are of several rows together, and imatrix searches those of one";
    else if (s->static_input && it->arch->layer < 0) why = "static scales are calibrated in layers; leave it out (ignore)";
    OZ_NEED(!why, err, OZ_E_UNSUPPORTED, "%s: scheme %s: %s", it->arch->module, s->name, why);
    return OZ_OK;
}

enum { SHOWN = 8 }; /* offenders that are listed one by one */

/* The largest usual group size, up to `most`, that divides the columns of every module; 0: none. */
static int64_t fitting_group(const oz_quantize *q, int64_t most) {
    int64_t best = 0;
    for (size_t k = 0; oz_group_size_usual(k) && oz_group_size_usual(k) <= most; k++) {
        bool fits = true;
        for (size_t i = 0; i < q->list.n; i++) fits = fits && (!q->items[i].quantized || q->list.items[i].cols % oz_group_size_usual(k) == 0);
        if (fits) best = oz_group_size_usual(k);
    }
    return best;
}

/* What would do in place of groups that do not divide; others: some modules that they do. */
static void groups_advise(oz_buf *out, const oz_quantize *q, const oz_scheme *s, bool others) {
    const bool of_inputs = s->block_rows > 0;
    const int64_t fits = fitting_group(q, of_inputs ? s->input.group_size : s->group_size);
    if (fits && !of_inputs) oz_buf_printf(out, "--group-size %lld fits every module", (long long)fits);
    else if (of_inputs) oz_buf_printf(out, "FP8_DYNAMIC quantizes inputs by tokens");
    else oz_buf_printf(out, "no usual group size fits every module: W8A16 has no groups");
    if (fits && of_inputs) oz_buf_printf(out, ", a --recipe may have input_activations in groups of %lld, which fit every module", (long long)fits);
    if (others && (of_inputs || !fits)) oz_buf_puts(out, ", and --ignore leaves modules as they are");
}

/* Logs the modules whose columns the group size does not divide; the message has the first one, how many there are, and what would do. */
static oz_status check_groups(const oz_quantize *q, const oz_quantize_cfg *cfg, oz_err *err) {
    oz_err first = {0}, one;
    size_t n_bad = 0, n = 0;
    for (size_t i = 0; i < q->list.n; i++) {
        const oz_module m = module_of(&q->list.items[i]);
        one = (oz_err){0};
        n += q->items[i].quantized;
        if (!q->items[i].quantized || oz_scheme_check(&q->items[i].scheme, &m, &one) == OZ_OK) continue;
        if (n_bad++ == 0) first = one;
        if (n_bad <= SHOWN) oz_log_info("  %s", one.msg);
    }
    if (n_bad > SHOWN) oz_log_info("  and %zu more", n_bad - SHOWN);
    if (n_bad == 0) return OZ_OK;
    char others[64] = "";
    oz_buf advice = {0};
    if (n_bad > 1) snprintf(others, sizeof others, " (the first of %zu modules)", n_bad);
    groups_advise(&advice, q, &cfg->scheme, n_bad < n);
    oz_status st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s%s; %s", first.msg, others, advice.data);
    oz_buf_deinit(&advice);
    return st;
}

static bool has_experts(const oz_quantize *q) {
    bool has = false;
    for (size_t i = 0; i < q->list.n; i++) has |= q->list.items[i].expert >= 0;
    return has;
}

oz_status oz_quantize_select(oz_quantize *q, const oz_quantize_cfg *cfg, oz_err *err) {
    size_t n = 0;
    oz_method method;
    OZ_TRY(oz_method_parse(&method, cfg->method, err));
    q->transform = method.transform;
    OZ_NEED(q->transform || cfg->strength == 0, err, OZ_E_USAGE, "--smoothing-strength: --method %s moves no scales", cfg->method ? cfg->method : "rtn");
    if (!cfg->recipe) OZ_TRY(by_patterns(q, cfg, &method, err));
    if (cfg->recipe) q->transform = cfg->recipe->transform, q->strength = cfg->recipe->strength, q->variants = cfg->recipe->variants, q->n_grid = cfg->recipe->n_grid, q->mappings = json_incref((json_t *)cfg->recipe->mappings);
    for (size_t i = 0; cfg->recipe && i < cfg->recipe->n; i++)
        if (cfg->recipe->items[i].rounds) OZ_TRY(by_modifier(q, cfg->recipe, &cfg->recipe->items[i], err));
    OZ_TRY(check_groups(q, cfg, err));
    for (size_t i = 0; i < q->list.n; i++) {
        if (!q->items[i].quantized) continue;
        OZ_TRY(check_made(&q->items[i], err));
        n++;
    }
    OZ_NEED(n > 0 || cfg->recipe || !cfg->scheme.experts || has_experts(q), err, OZ_E_ARG, "--scheme %s: it is of routed experts, and this model has none", cfg->scheme.name);
    OZ_NEED(n > 0, err, OZ_E_ARG, "nothing is left to quantize: every target is ignored%s", cfg->recipe ? "" : " or lm_head, which must be named");
    bool any = false;
    for (size_t i = 0; i < q->list.n; i++) any = any || (q->list.items[i].expert >= 0 && oz_is_fitted(q, &q->items[i]));
    OZ_NEED(any || !cfg->all_experts, err, OZ_E_ARG, "--moe-calibrate-all-experts: no expert is calibrated");
    return OZ_OK;
}

const char *oz_quantize_wants_text(const oz_quantize *q) {
    if (q->transform) return q->transform->title;
    if (q->kv.quantized) return "a quantized cache";
    for (size_t i = 0; i < q->list.n; i++) {
        if (q->items[i].quantized && q->items[i].gptq) return "GPTQ";
        if (q->items[i].quantized && q->items[i].imatrix) return "an importance matrix";
        if (q->items[i].quantized && q->items[i].scheme.static_input) return "a static scale of inputs";
    }
    return q->budget ? "--target-bytes" : NULL;
}
