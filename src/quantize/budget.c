/* Bits under a budget: a scheme for each module so that together they take at most so many bytes, and cost the least.
 *
 * Modules that vLLM runs as one (q, k, v; gate and up; the experts of a layer) are a set with one choice. What the leanest scheme does to a set alone is a
 * KL divergence over calibration text (measured by the caller, layer by layer through the model); what another scheme would do is that times the ratio of
 * their errors at the modules' outputs (budget_errors.c), since KL grows with the square of a small change; and sets add up. The choice then is a knapsack:
 * all sets begin at the leanest, and steps along the lower hull of each set's (bytes, cost) are taken by what they save a byte, as long as they fit; then
 * single sets, and pairs of them, change as long as that costs less. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "quantize/internal.h"

/* What vLLM and transformers load packed, from lean to rich; a module's own type ends it. */
static const struct { const char *preset; int64_t group_size; } LADDER[] = {{"W4A16", 128}, {"W4A16_ASYM", 128}, {"W4A16", 64}, {"W4A16_ASYM", 64}, {"W4A16", 32}, {"W4A16_ASYM", 32}, {"W8A16", 0}};
enum { N_LADDER = sizeof LADDER / sizeof *LADDER, MAX_ROUNDS = 1000 };
_Static_assert(N_LADDER + 1 <= OZ_BUDGET_OPTIONS, "options of a set");

static oz_scheme ladder_scheme(size_t i) {
    oz_scheme s = oz_preset_find(LADDER[i].preset)->scheme;
    s.group_size = LADDER[i].group_size;
    return s;
}

/* ---- sets and their options ---- */

static oz_module module_of(const oz_arch_tensor *t) { return (oz_module){t->module, t->class_name, t->rows, t->cols, false}; }

/* Bytes of a set under a scheme; 0: it does not fit. */
static int64_t set_bytes(const oz_budget *b, const oz_budget_set *set, const oz_scheme *s) {
    int64_t sum = 0;
    for (size_t i = 0; i < set->n; i++) {
        const oz_quantize_item *it = &b->q->items[set->items[i]];
        const oz_module m = module_of(it->arch);
        size_t bytes;
        if (!s->quantized) {
            if (!oz_dtype_bytes(&bytes, it->dtype, m.rows * m.cols)) return 0;
            sum += (int64_t)bytes;
            continue;
        }
        if (oz_scheme_check(s, &m, NULL) != OZ_OK || (it->arch->expert >= 0 && !s->symmetric)) return 0; /* vLLM's experts have no zero points */
        oz_part parts[OZ_MAX_PARTS];
        const int n = oz_scheme_parts(parts, s, m.rows, m.cols, b->q->model_dtype);
        for (int k = 0; k < n; k++) {
            if (!oz_dtype_bytes(&bytes, parts[k].dtype, parts[k].dims[0] * (parts[k].n_dims > 1 ? parts[k].dims[1] : 1))) return 0;
            sum += (int64_t)bytes;
        }
    }
    return sum;
}

static void option_add(oz_budget *b, oz_budget_set *set, const oz_scheme *s) {
    const int64_t bytes = set_bytes(b, set, s);
    int at = set->n_options;
    if (bytes == 0 || at == OZ_BUDGET_OPTIONS) return;
    for (; at > 0 && set->options[at - 1].bytes > bytes; at--) set->options[at] = set->options[at - 1];
    set->options[at] = (oz_budget_option){*s, bytes, 0, 0};
    set->n_options++;
}

/* least: not quantized, or what no option is leaner than. */
static void options_make(oz_budget *b, oz_budget_set *set, const oz_scheme *least) {
    const int64_t floor = least->quantized ? set_bytes(b, set, least) : 0;
    if (floor) option_add(b, set, least);
    for (size_t i = 0; i < N_LADDER; i++) {
        const oz_scheme s = ladder_scheme(i);
        if (set_bytes(b, set, &s) > floor && (!least->quantized || s.bits >= least->bits)) option_add(b, set, &s);
    }
    option_add(b, set, &OZ_SCHEME_DENSE);
}

static oz_status sets_make(oz_budget *b, const oz_scheme *least, oz_err *err) {
    const oz_quantize *q = b->q;
    oz_map *known = oz_map_new(q->list.n);
    b->sets = oz_alloc_array(q->list.n + 1, sizeof *b->sets);
    b->set_of = oz_alloc_array(q->list.n + 1, sizeof *b->set_of);
    oz_status st = OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < q->list.n; i++) {
        const oz_arch_tensor *t = &q->list.items[i];
        if (!q->items[i].quantized) continue;
        char *name = oz_vllm_whole(t->module);
        int64_t at = (int64_t)b->n_sets;
        if (!oz_map_get(known, name, strlen(name), &at)) oz_map_add(known, name, strlen(name), at), b->sets[b->n_sets++] = (oz_budget_set){.name = oz_strdup(name), .layer = t->layer, .kl = NAN};
        oz_free(name);
        oz_budget_set *set = &b->sets[at];
        set->items = oz_realloc(set->items, (set->n + 1) * sizeof *set->items);
        set->modules = oz_realloc(set->modules, (set->n + 1) * sizeof *set->modules);
        set->items[set->n] = i, set->modules[set->n++] = t->module;
        b->set_of[i] = (size_t)at + 1;
        if (q->tied && t->role == OZ_ROLE_HEAD) st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: shares its weights with the embedding; --target-bytes does not reach it", t->module);
    }
    for (size_t i = 0; i < b->n_sets; i++) options_make(b, &b->sets[i], least);
    oz_map_free(&known);
    return st;
}

static oz_status bounds_check(const oz_budget *b, oz_err *err) {
    int64_t least = 0, dense = 0;
    for (size_t i = 0; i < b->n_sets; i++) least += b->sets[i].options[0].bytes, dense += b->sets[i].options[b->sets[i].n_options - 1].bytes;
    const oz_scheme *first = &b->sets[0].options[0].scheme;
    char groups[48] = "";
    if (first->group_size > 0) snprintf(groups, sizeof groups, " in groups of %lld", (long long)first->group_size);
    OZ_NEED(b->target_bytes >= least, err, OZ_E_ARG, "--target-bytes %lld: the modules take at least %lld, the first of them as %s%s", (long long)b->target_bytes, (long long)least, first->name, groups);
    OZ_NEED(b->target_bytes < dense, err, OZ_E_ARG, "--target-bytes %lld: the modules take %lld as they are; give less", (long long)b->target_bytes, (long long)dense);
    return OZ_OK;
}

/* What is reached is found as for any scheme: one that fits every module. */
oz_status oz_budget_new(oz_budget **out, const oz_ckpt *ckpt, const oz_quantize_cfg *cfg, int64_t target_bytes, oz_err *err) {
    const oz_scheme *least = &cfg->scheme, *channel = &oz_preset_find("W8A16")->scheme;
    oz_quantize_cfg reached = *cfg;
    *out = NULL;
    OZ_NEED(!least->quantized || (least->store == OZ_STORE_PACKED && least->act == OZ_ACT_NONE && !least->experts), err, OZ_E_USAGE,
            "--target-bytes with --scheme %s: expected W4A16, W4A16_ASYM or W8A16, the least that a module gets; or no scheme", least->name);
    reached.scheme = *channel;
    oz_method method;
    OZ_TRY(oz_method_parse(&method, cfg->method, err));
    oz_budget *b = oz_alloc(sizeof *b);
    b->target_bytes = target_bytes, b->gptq = method.gptq, b->dampening = cfg->dampening, b->starved = json_array(), b->work.lock = -1;
    oz_status st = oz_quantize_new(&b->q, ckpt, &reached, err);
    if (st == OZ_OK) st = sets_make(b, least, err);
    if (st == OZ_OK) st = bounds_check(b, err);
    if (st != OZ_OK) oz_budget_free(&b);
    *out = b;
    return st;
}

void oz_budget_free(oz_budget **pb) {
    oz_budget *b = *pb;
    if (!b) return;
    for (size_t i = 0; b->sets && i < b->n_sets; i++) {
        oz_free(b->sets[i].name);
        oz_free(b->sets[i].items);
        oz_free(b->sets[i].modules);
    }
    oz_quantize_free(&b->q);
    json_decref(b->report);
    json_decref(b->calibration);
    json_decref(b->starved);
    oz_work_close(&b->work);
    oz_free(b->sets);
    oz_free(b->set_of);
    oz_free(b);
    *pb = NULL;
}

size_t oz_budget_count(const oz_budget *b) { return b->n_sets; }
oz_budget_part oz_budget_at(const oz_budget *b, size_t i) {
    const oz_budget_set *s = &b->sets[i];
    return (oz_budget_part){s->name, s->layer, s->modules, s->n, &s->options[0].scheme, s->kl};
}
const oz_scheme *oz_budget_scheme(const oz_budget *b, size_t item) {
    const oz_budget_set *s = &b->sets[b->set_of[item] - 1];
    return &s->options[s->chosen].scheme;
}

/* ---- choosing ---- */

typedef struct step { size_t set; int from, to; int64_t bytes; double saved; } step;

static int by_worth(const void *pa, const void *pb) {
    const step *a = pa, *b = pb;
    const double x = a->saved * (double)b->bytes, y = b->saved * (double)a->bytes;
    if (x != y) return x > y ? -1 : 1;
    return a->set != b->set ? (a->set > b->set) - (a->set < b->set) : a->from - b->from;
}

/* The steps of a set along its lower hull: each saves less a byte than the one before. */
static size_t hull(step *out, const oz_budget_set *s, size_t set) {
    size_t n = 0;
    for (int at = 0; at + 1 < s->n_options;) {
        int best = -1;
        double worth = 0;
        for (int k = at + 1; k < s->n_options; k++) {
            const double w = (s->options[at].cost - s->options[k].cost) / (double)(s->options[k].bytes - s->options[at].bytes);
            if (w > worth) worth = w, best = k; /* of equals the leaner */
        }
        if (best < 0) break;
        out[n++] = (step){set, at, best, s->options[best].bytes - s->options[at].bytes, s->options[at].cost - s->options[best].cost};
        at = best;
    }
    return n;
}

/* Another option for one set, or for two at once: what it saves, and the bytes that it takes. */
typedef struct change { size_t set[2]; int to[2]; int64_t bytes; double saved; } change;

static change change_of(const oz_budget *b, size_t set, int to) {
    const oz_budget_option *now = &b->sets[set].options[b->sets[set].chosen], *then = &b->sets[set].options[to];
    return (change){{set, set}, {to, to}, then->bytes - now->bytes, now->cost - then->cost};
}

static void take_best(change *best, const change *c, int64_t left) {
    if (c->bytes <= left && c->saved > best->saved) *best = *c;
}

/* What the steps leave over: the change that saves most, again and again, as long as one does. */
static int64_t settle(oz_budget *b, int64_t left) {
    for (int round = 0; round < MAX_ROUNDS; round++) {
        change best = {.saved = 0};
        for (size_t i = 0; i < b->n_sets; i++)
            for (int k = 0; k < b->sets[i].n_options; k++) {
                const change one = change_of(b, i, k);
                take_best(&best, &one, left);
                for (size_t j = 0; one.bytes < 0 && j < b->n_sets; j++) /* of two, one gives the bytes */
                    for (int l = 0; j != i && l < b->sets[j].n_options; l++) {
                        const change two = change_of(b, j, l), both = {{i, j}, {k, l}, one.bytes + two.bytes, one.saved + two.saved};
                        take_best(&best, &both, left);
                    }
            }
        if (!(best.saved > 0)) break;
        for (int i = 0; i < 2; i++) b->sets[best.set[i]].chosen = best.to[i];
        left -= best.bytes;
    }
    return left;
}

static void costs(oz_budget_set *s) {
    for (int k = 0; k < s->n_options; k++) {
        oz_budget_option *o = &s->options[k];
        if (!o->scheme.quantized) o->cost = 0;
        else if (s->least_error > 0) o->cost = s->kl * o->error / s->least_error;
        else o->cost = s->kl * ldexp(1, 2 * (s->options[0].scheme.bits - o->scheme.bits)); /* no text came here: a bit halves the error */
    }
}

static json_t *scheme_json(const oz_scheme *s) { return s->group_size > 0 ? json_sprintf("%s g%lld", s->name, (long long)s->group_size) : json_string(s->name); }

static void report_make(oz_budget *b, int64_t left, const char *version) {
    json_t *sets = json_array();
    double sum = 0;
    for (size_t i = 0; i < b->n_sets; i++) {
        const oz_budget_set *s = &b->sets[i];
        const oz_budget_option *o = &s->options[s->chosen];
        sum += o->cost;
        json_array_append_new(sets, json_pack("{s:s, s:o, s:I, s:o, s:f, s:f}", "modules", s->name, "scheme", scheme_json(&o->scheme), "bytes", (json_int_t)o->bytes, "leanest", scheme_json(&s->options[0].scheme), "kl_leanest",
                                              s->kl, "kl_expected", o->cost));
    }
    b->report = json_pack("{s:I, s:I, s:f, s:O*, s:s, s:s, s:o}", "target_bytes", (json_int_t)b->target_bytes, "bytes", (json_int_t)(b->target_bytes - left), "kl_expected", sum, "calibration", b->calibration, "program",
                          "ounce", "version", version, "sets", sets);
}

void oz_budget_choose(oz_budget *b, const char *version) {
    step *steps = oz_alloc_array(b->n_sets * OZ_BUDGET_OPTIONS + 1, sizeof *steps);
    size_t n = 0;
    int64_t left = b->target_bytes;
    if (json_array_size(b->starved))
        oz_log_warn("the calibration text gives %zu modules no input other than zeros, the first %s: what they would lose has no say in the choice", json_array_size(b->starved), json_string_value(json_array_get(b->starved, 0)));
    for (size_t i = 0; i < b->n_sets; i++) {
        costs(&b->sets[i]);
        left -= b->sets[i].options[0].bytes;
        n += hull(steps + n, &b->sets[i], i);
    }
    qsort(steps, n, sizeof *steps, by_worth);
    for (size_t i = 0; i < n; i++) {
        oz_budget_set *s = &b->sets[steps[i].set];
        if (s->chosen != steps[i].from || steps[i].bytes > left) continue;
        s->chosen = steps[i].to, left -= steps[i].bytes;
    }
    oz_free(steps);
    report_make(b, settle(b, left), version);
}

const json_t *oz_budget_report(const oz_budget *b) { return b->report; }
