/* KL by module: for each of some sets of modules, the reference with that set alone taken from another checkpoint, or rounded at load; or that checkpoint with that set alone taken from the reference.
 *
 * Such a hybrid differs from the base, the model that gives all the rest, in one layer, so it is never run whole. The base's residuals before a layer are kept for as many windows
 * as a bound allows; of each hybrid the one layer is loaded and run on them, the base's own layers after it take them on, and its head leads
 * to what is compared with where the reference arrives. On average that is half of a forward pass a set, and the figures are those of the hybrid as
 * a checkpoint. What lies in no layer (embeddings, a head) is measured as a whole model. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "measure/internal.h"

enum { MAX_KEPT_BYTES = 256 << 20, TOGETHER = 8 /* hybrids of a layer that are loaded at once, and share the reference's head */ };

/* ---- which modules ---- */

/* Experts are told apart by their number alone. */
static char *set_name(const oz_arch_tensor *t) {
    char number[32];
    snprintf(number, sizeof number, ".%d.", t->expert);
    const char *at = t->expert >= 0 ? strstr(t->module, number) : NULL, *next;
    while (at && (next = strstr(at + 1, number))) at = next; /* the layer's number may be the same */
    return at ? oz_asprintf("%.*s.*.%s", (int)(at - t->module), t->module, at + strlen(number)) : oz_strdup(t->module);
}

static bool stored_alike(const oz_weight *a, const oz_weight *b) {
    return a->codec == b->codec && a->rope_heads == b->rope_heads && a->row_bytes == b->row_bytes && memcmp(a->codes, b->codes, (size_t)(a->rows * a->row_bytes)) == 0;
}

typedef struct listing { oz_kl_modules *out; size_t cap; const oz_ckpt *ref, *other; } listing;

static oz_status list_add(listing *l, const oz_arch_tensor *t, const oz_scheme *of_ref, const oz_scheme *of_other, oz_err *err) {
    const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
    oz_weight a, b;
    OZ_TRY(oz_scheme_bind(&a, l->ref, &m, of_ref, err));
    if (oz_scheme_bind(&b, l->other, &m, of_other, err) != OZ_OK) return oz_err_prefix(err, "%s", oz_ckpt_path(l->other));
    const bool alike = !of_ref->quantized && !of_other->quantized && stored_alike(&a, &b);
    oz_scheme_drop(l->ref, &m);
    oz_scheme_drop(l->other, &m);
    if (alike) return OZ_OK;
    char *name = set_name(t);
    oz_kl_modules *out = l->out;
    oz_kl_module *set = NULL;
    for (size_t i = out->n; t->expert > 0 && i-- > 0 && !set;) /* expert 0 began it */
        if (strcmp(out->items[i].name, name) == 0) set = &out->items[i];
    if (!set) {
        oz_grow((void **)&out->items, &l->cap, out->n + 1, sizeof *out->items);
        set = &out->items[out->n++];
        *set = (oz_kl_module){.name = oz_strdup(name), .role = oz_role_name(t->role), .scheme = of_other->quantized ? of_other->name : OZ_SCHEME_DENSE.name, .layer = t->layer};
    }
    oz_free(name);
    set->modules = oz_realloc(set->modules, (set->n_modules + 1) * sizeof *set->modules);
    set->modules[set->n_modules++] = oz_strdup(t->module);
    set->bytes += oz_weight_bytes(&b);
    return OZ_OK;
}

/* Norms that are not as the reference has them: scales were moved between modules, and one of them alone fits nothing else. */
static void norms_warn(const listing *l, const oz_arch_list *list) {
    const oz_tensor *a, *b;
    for (size_t i = 0; i < list->n; i++) {
        const oz_arch_tensor *t = &list->items[i];
        if (t->role != OZ_ROLE_NORM || oz_vector_find(&a, l->ref, t, NULL) != OZ_OK || oz_vector_find(&b, l->other, t, NULL) != OZ_OK || a->dtype != b->dtype || memcmp(a->data, b->data, a->n_bytes) == 0) continue;
        oz_log_warn("%s: not as in %s: scales were moved between modules (AWQ, SmoothQuant), and what reads or gives them says nothing alone", t->name, oz_ckpt_path(l->ref));
        return;
    }
}

oz_status oz_kl_modules_list(oz_kl_modules *out, const oz_ckpt *ref, const oz_ckpt *other, oz_err *err) {
    listing l = {.out = out, .ref = ref, .other = other};
    oz_arch_list list;
    *out = (oz_kl_modules){0};
    OZ_TRY(oz_arch_list_new(&list, oz_ckpt_config(ref), ref, err));
    oz_scheme *of_ref = oz_alloc_array(list.n + 1, sizeof *of_ref), *of_other = oz_alloc_array(list.n + 1, sizeof *of_other);
    oz_status st = oz_schemes_resolve(of_ref, ref, &list, NULL, err);
    if (st == OZ_OK && (st = oz_schemes_resolve(of_other, other, &list, NULL, err)) != OZ_OK) oz_err_prefix(err, "%s", oz_ckpt_path(other));
    for (size_t i = 0; st == OZ_OK && i < list.n; i++)
        if (list.items[i].cols > 0 && !list.items[i].is_bias) st = list_add(&l, &list.items[i], &of_ref[i], &of_other[i], err);
    if (st == OZ_OK) norms_warn(&l, &list);
    if (st == OZ_OK && out->n == 0) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: every module is as in %s", oz_ckpt_path(other), oz_ckpt_path(ref));
    oz_free(of_ref);
    oz_free(of_other);
    oz_arch_list_deinit(&list);
    if (st != OZ_OK) oz_kl_modules_deinit(out);
    return st;
}

void oz_kl_modules_deinit(oz_kl_modules *m) {
    for (size_t i = 0; i < m->n; i++) {
        for (size_t k = 0; k < m->items[i].n_modules; k++) oz_free(m->items[i].modules[k]);
        oz_free(m->items[i].modules);
        oz_free(m->items[i].name);
    }
    oz_free(m->items);
    *m = (oz_kl_modules){0};
}

/* ---- what is added up ---- */

typedef struct sums { double kl, win1, win2, max; int64_t n, same, windows; } sums;

static void sums_add(sums *s, const oz_kl_stat *k, int64_t n) {
    double window = 0;
    for (int64_t i = 0; i < n; i++) s->kl += k[i].kl, window += k[i].kl, s->max = fmax(s->max, k[i].kl), s->same += k[i].argmax == k[i].argmax_ref;
    window /= (double)n;
    s->win1 += window, s->win2 += window * window, s->n += n, s->windows++;
}

static void sums_finish(oz_kl_module *m, const sums *s) {
    const double n = (double)s->n, w = (double)s->windows, mean = s->win1 / w, var = s->win2 / w - mean * mean;
    m->mean_kl = s->kl / n, m->kl_max = s->max, m->top1_agreement = (double)s->same / n, m->positions = s->n;
    m->kl_se_windows = w > 1 && var > 0 ? sqrt(var / (w - 1)) : 0.0;
    m->measured = true;
}

/* ---- running ---- */

typedef struct hybrid { oz_kl_module *item; sums *sums; oz_model *model; oz_state *state; float *arrived; /* [longest, hidden] */ } hybrid;

typedef struct job {
    const oz_kl_modules_cfg *cfg;
    oz_model *ref, *base;        /* base: whose layers are around those that are exchanged */
    oz_state *ref_state, *state; /* state: of base */
    int64_t hidden, n_layers, longest, first, n_windows; /* windows [first, first + n_windows) are kept */
    float *before, *after;       /* of those: base's residuals before the layer, and the reference's after the last one */
    int32_t *blocks, *rows, *targets;
    oz_kl_stat *stats;           /* [TOGETHER, longest] */
    hybrid hybrids[TOGETHER]; int n_hybrids;
    oz_progress progress; int64_t done;
} job;

typedef struct span { const int32_t *ids; int64_t n; float *before, *after; } span; /* a window without its last token, which predicts nothing */

static span span_of(const job *j, int64_t window) {
    const int64_t *begin = j->cfg->begin + j->first, at = begin[window] - begin[0];
    return (span){j->cfg->ids + begin[window], begin[window + 1] - begin[window] - 1, j->before + at * j->hidden, j->after + at * j->hidden};
}

static oz_status layers(oz_model *m, oz_state *s, const job *j, const span *w, int64_t from, int64_t to, const float *in, float *out, oz_err *err) {
    const oz_seg seg = {0, w->n, 0, j->blocks};
    return oz_model_run(m, s, &(oz_call){.ids = from ? NULL : w->ids, .n_tok = w->n, .segs = &seg, .n_segs = 1, .layer_begin = from, .layer_end = to, .residual_in = from ? in : NULL, .residual_out = out}, NULL, err);
}

/* From the text to before layer 1, and from there to the end. */
static oz_status reference_run(job *j, const span *w, oz_err *err) {
    OZ_TRY(layers(j->ref, j->ref_state, j, w, 0, 1, NULL, w->after, err));
    return j->n_layers > 1 ? layers(j->ref, j->ref_state, j, w, 1, j->n_layers, w->after, w->after, err) : OZ_OK;
}

static oz_status finite_check(const job *j, const oz_kl_module *item, const oz_kl_stat *k, int64_t n, int64_t score0, oz_err *err) {
    for (int64_t i = 0; i < n; i++) {
        OZ_NEED(isfinite(k[i].nll_ref), err, OZ_E_FORMAT, "%s: logits are not finite at position %lld of a window", j->cfg->name, (long long)(score0 + i));
        OZ_NEED(isfinite(k[i].nll), err, OZ_E_FORMAT, "%s with another %s: logits are not finite at position %lld of a window", j->cfg->whole ? j->cfg->other_name : j->cfg->name, item->name, (long long)(score0 + i));
    }
    return OZ_OK;
}

/* One window through the hybrids that are loaded. */
static oz_status window_run(job *j, int64_t layer, int64_t window, oz_err *err) {
    const span w = span_of(j, window);
    const float *arrived[TOGETHER + 1] = {w.after};
    const int64_t score0 = j->cfg->half ? (w.n + 1) / 2 : 0, n = w.n - score0;
    OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
    for (int i = 0; i < j->n_hybrids; i++) {
        hybrid *h = &j->hybrids[i];
        OZ_TRY(layers(h->model, h->state, j, &w, layer, layer + 1, w.before, h->arrived, err));
        if (layer + 1 < j->n_layers) OZ_TRY(layers(j->base, j->state, j, &w, layer + 1, j->n_layers, h->arrived, h->arrived, err));
        arrived[i + 1] = h->arrived;
    }
    for (int64_t i = 0; i < n; i++) j->rows[i] = (int32_t)(score0 + i), j->targets[i] = w.ids[score0 + i + 1];
    const oz_seg seg = {0, w.n, 0, j->blocks};
    OZ_TRY(oz_head_kl_run(j->stats, j->ref, j->base, arrived, j->n_hybrids + 1, &(oz_call){.ids = w.ids, .n_tok = w.n, .segs = &seg, .n_segs = 1, .rows = j->rows, .n_rows = n}, j->targets, err));
    for (int i = 0; i < j->n_hybrids; i++) {
        OZ_TRY(finite_check(j, j->hybrids[i].item, j->stats + i * n, n, score0, err));
        sums_add(j->hybrids[i].sums, j->stats + i * n, n);
    }
    oz_progress_step(&j->progress, j->done += j->n_hybrids * w.n);
    return OZ_OK;
}

static oz_status model_open(oz_model **out, const job *j, const oz_kl_module *m, int64_t layer_end, oz_err *err) {
    const oz_kl_modules_cfg *c = j->cfg;
    const oz_model_swap swap = {(const char *const *)m->modules, m->n_modules, c->whole ? c->ref : m->quantize ? NULL : c->other};
    const int64_t begin = m->layer < 0 ? 0 : m->layer;
    return oz_model_open(out, c->dev, c->whole ? c->other : c->ref, &(oz_model_cfg){.dtype = c->dtype, .max_len = c->max_len, .max_tok = j->longest, .layer_begin = begin, .layer_end = layer_end,
                                                                                    .need_len = j->longest, .quantize = m->quantize, .swap = &swap}, err);
}

static oz_status hybrid_open(hybrid *h, const job *j, oz_err *err) {
    OZ_TRY(model_open(&h->model, j, h->item, h->item->layer + 1, err));
    OZ_TRY(oz_state_new(&h->state, h->model, (j->longest + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK, 1, err));
    return oz_big_new((void **)&h->arrived, (size_t)(j->longest * j->hidden) * sizeof(float), "residual", err);
}

static void hybrids_close(job *j) {
    for (int i = 0; i < j->n_hybrids; i++) {
        oz_state_free(&j->hybrids[i].state);
        oz_model_close(&j->hybrids[i].model);
        oz_big_free(j->hybrids[i].arrived);
        j->hybrids[i] = (hybrid){0};
    }
    j->n_hybrids = 0;
}

static oz_status keep(const job *j, oz_err *err) { return j->cfg->keep ? j->cfg->keep(j->cfg->keep_arg, err) : OZ_OK; }

static oz_status hybrids_run(job *j, int64_t layer, oz_err *err) {
    const bool is_last = j->first + j->n_windows == j->cfg->n_windows;
    oz_status st = OZ_OK;
    for (int i = 0; st == OZ_OK && i < j->n_hybrids; i++) st = hybrid_open(&j->hybrids[i], j, err);
    for (int64_t i = 0; st == OZ_OK && i < j->n_windows; i++) st = window_run(j, layer, i, err);
    for (int i = 0; st == OZ_OK && is_last && i < j->n_hybrids; i++) sums_finish(j->hybrids[i].item, j->hybrids[i].sums);
    hybrids_close(j);
    return st == OZ_OK && is_last ? keep(j, err) : st;
}

static oz_status layer_run(job *j, oz_kl_module *items, sums *all, size_t n, int64_t layer, oz_err *err) {
    for (size_t i = 0; i < n; i++) {
        if (items[i].layer != layer || items[i].measured) continue;
        j->hybrids[j->n_hybrids++] = (hybrid){.item = &items[i], .sums = &all[i]};
        if (j->n_hybrids == (layer ? TOGETHER : 1)) OZ_TRY(hybrids_run(j, layer, err)); /* a first layer comes with the embedding */
    }
    if (j->n_hybrids) OZ_TRY(hybrids_run(j, layer, err));
    for (int64_t i = 0; layer + 1 < j->n_layers && i < j->n_windows; i++) {
        const span w = span_of(j, i);
        OZ_TRY(layers(j->base, j->state, j, &w, layer, layer + 1, w.before, w.before, err));
    }
    return OZ_OK;
}

/* A module that lies in no layer changes the embedding or the head, so the two models run whole, in lockstep. */
static oz_status outside_run(job *j, oz_kl_module *item, sums *all, oz_err *err) {
    oz_model *models[] = {j->ref, NULL};
    const char *const names[] = {j->cfg->name, item->name};
    oz_windows w = {0};
    oz_status st = model_open(&models[1], j, item, 0, err);
    if (st == OZ_OK) st = oz_windows_init(&w, models, 2, j->longest + 1, err);
    w.names = names;
    for (int64_t i = 0; st == OZ_OK && i < j->cfg->n_windows; i++) {
        const int64_t *begin = j->cfg->begin + i, len = begin[1] - begin[0], score0 = j->cfg->half ? len / 2 : 0;
        st = oz_windows_run(&w, j->cfg->ids + begin[0], len, score0, NULL, j->stats, err);
        if (st == OZ_OK) sums_add(all, j->stats, len - 1 - score0);
        oz_progress_step(&j->progress, j->done += len - 1);
    }
    oz_windows_deinit(&w);
    oz_model_close(&models[1]);
    if (st == OZ_OK) sums_finish(item, all);
    return st == OZ_OK ? keep(j, err) : st;
}

/* Windows [first, ...) as far as the bound allows, through all layers. */
static oz_status batch_run(job *j, oz_kl_module *items, sums *all, size_t n, oz_err *err) {
    const int64_t *begin = j->cfg->begin + j->first, most = MAX_KEPT_BYTES / (2 * j->hidden * (int64_t)sizeof(float));
    for (j->n_windows = 1; j->first + j->n_windows < j->cfg->n_windows && begin[j->n_windows + 1] - begin[0] <= most;) j->n_windows++;
    const size_t n_bytes = (size_t)((begin[j->n_windows] - begin[0]) * j->hidden) * sizeof(float);
    OZ_TRY(oz_big_new((void **)&j->before, n_bytes, "residuals", err));
    OZ_TRY(oz_big_new((void **)&j->after, n_bytes, "residuals", err));
    for (int64_t i = 0; i < j->n_windows; i++) {
        const span w = span_of(j, i);
        OZ_TRY(reference_run(j, &w, err));
    }
    for (int64_t layer = 0; layer < j->n_layers; layer++) OZ_TRY(layer_run(j, items, all, n, layer, err));
    j->first += j->n_windows;
    return OZ_OK;
}

static oz_status job_init(job *j, size_t n, oz_err *err) {
    const oz_kl_modules_cfg *c = j->cfg;
    const oz_model_info *f = oz_model_get(j->ref), *base = oz_model_get(j->base);
    OZ_NEED(base->n_layers == f->n_layers && base->hidden_size == f->hidden_size, err, OZ_E_ARG, "%s: expected %lld layers of a hidden size of %lld, as %s has, found %lld of %lld", c->other_name, (long long)f->n_layers,
            (long long)f->hidden_size, c->name, (long long)base->n_layers, (long long)base->hidden_size);
    j->hidden = f->hidden_size, j->n_layers = f->n_layers;
    for (int64_t i = 0; i < c->n_windows; i++) {
        OZ_NEED(c->begin[i + 1] - c->begin[i] >= 2, err, OZ_E_ARG, "window %lld has %lld tokens: at least 2 are needed", (long long)i, (long long)(c->begin[i + 1] - c->begin[i]));
        if (c->begin[i + 1] - c->begin[i] - 1 > j->longest) j->longest = c->begin[i + 1] - c->begin[i] - 1;
    }
    OZ_NEED(j->longest <= f->max_tok, err, OZ_E_ARG, "a window of %lld tokens: a call takes %lld", (long long)j->longest, (long long)f->max_tok);
    const int64_t n_blocks = (j->longest + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    j->blocks = oz_alloc_array((size_t)n_blocks, sizeof *j->blocks);
    for (int64_t i = 0; i < n_blocks; i++) j->blocks[i] = (int32_t)i;
    j->rows = oz_alloc_array((size_t)j->longest, sizeof *j->rows);
    j->targets = oz_alloc_array((size_t)j->longest, sizeof *j->targets);
    OZ_TRY(oz_big_new((void **)&j->stats, (size_t)(TOGETHER * j->longest) * sizeof *j->stats, "KL statistics", err));
    oz_progress_init(&j->progress, "measuring modules", "tokens", (int64_t)n * (c->begin[c->n_windows] - c->begin[0] - c->n_windows));
    OZ_TRY(oz_state_new(&j->ref_state, j->ref, n_blocks, 1, err));
    return oz_state_new(&j->state, j->base, n_blocks, 1, err);
}

oz_status oz_kl_modules_run(oz_kl_module *items, size_t n, oz_model *ref, const oz_kl_modules_cfg *cfg, oz_err *err) {
    job j = {.cfg = cfg, .ref = ref, .base = cfg->whole ? cfg->whole : ref};
    sums *all = oz_alloc_array(n + 1, sizeof *all);
    size_t n_left = 0;
    for (size_t i = 0; i < n; i++) n_left += !items[i].measured;
    oz_status st = job_init(&j, n_left, err);
    for (size_t i = 0; st == OZ_OK && i < n; i++)
        if (items[i].layer < 0 && !items[i].measured) st = outside_run(&j, &items[i], &all[i], err);
    while (st == OZ_OK && j.first < cfg->n_windows) {
        st = batch_run(&j, items, all, n, err);
        oz_big_free(j.before);
        oz_big_free(j.after);
        j.before = j.after = NULL;
    }
    hybrids_close(&j);
    oz_progress_deinit(&j.progress);
    oz_state_free(&j.ref_state);
    oz_state_free(&j.state);
    oz_big_free(j.stats);
    void *const owned[] = {j.blocks, j.rows, j.targets, all};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) oz_free(owned[i]);
    return st;
}
