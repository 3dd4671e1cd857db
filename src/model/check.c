/* Whether a checkpoint is what its configs call for, before a byte of weight is used: the scheme of every module, and that the tensors stored are
 * those that the schemes need. Loading stops at the first finding; the linter takes them all. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

static oz_status resolve(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, bool weights_only, const oz_findings *f, oz_err *err) {
    oz_module *mods = oz_alloc_array(list->n + 1, sizeof *mods);
    oz_scheme *found = oz_alloc_array(list->n + 1, sizeof *found);
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (oz_is_matrix(&list->items[i])) mods[n++] = oz_arch_module(&list->items[i], c);
    const json_t *config = oz_ckpt_config(c);
    oz_status st = weights_only ? oz_scheme_resolve_weights(found, config, mods, n, err) : oz_scheme_resolve_all(found, config, mods, n, f, err);
    for (size_t i = 0, k = 0; i < list->n; i++) schemes[i] = oz_is_matrix(&list->items[i]) ? found[k++] : OZ_SCHEME_DENSE;
    oz_free(mods);
    oz_free(found);
    return st;
}

oz_status oz_schemes_resolve(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, const oz_findings *f, oz_err *err) { return resolve(schemes, c, list, false, f, err); }
oz_status oz_schemes_resolve_weights(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, oz_err *err) { return resolve(schemes, c, list, true, NULL, err); }

oz_status oz_vector_find(const oz_tensor **out, const oz_ckpt *c, const oz_arch_tensor *t, oz_err *err) {
    const oz_tensor *x = *out = oz_ckpt_find(c, t->name);
    OZ_NEED(x, err, OZ_E_FORMAT, "%s: missing (%s)", t->name, oz_ckpt_path(c));
    OZ_NEED(x->dtype == OZ_DTYPE_F32 || x->dtype == OZ_DTYPE_F16 || x->dtype == OZ_DTYPE_BF16, err, OZ_E_FORMAT, "%s: expected F32, F16 or BF16, found %s (%s)", t->name,
            oz_dtype_get(x->dtype)->name, x->file_name);
    char expected[OZ_DIMS_TEXT], found[OZ_DIMS_TEXT];
    OZ_NEED(x->n_dims == t->n_dims && memcmp(x->dims, t->dims, (size_t)t->n_dims * sizeof *t->dims) == 0, err, OZ_E_FORMAT, "%s: expected %s, found %s (%s)", t->name,
            oz_dims_show(expected, t->n_dims, t->dims), oz_dims_show(found, x->n_dims, x->dims), x->file_name);
    return OZ_OK;
}

oz_status oz_finite_check(const oz_tensor *x, oz_err *err) {
    const size_t size = (size_t)oz_dtype_get(x->dtype)->block_bytes;
    size_t i = 0;
    float v;
    if (oz_all_finite(x->dtype, x->data, x->n_bytes)) return OZ_OK;
    do oz_to_f32(&v, x->dtype, (const char *)x->data + i * size, 1);
    while (isfinite(v) && ++i);
    OZ_FAIL(err, OZ_E_FORMAT, "%s: expected finite values, found %g at %zu (%s)", x->name, (double)v, i, x->file_name);
}

void oz_tied_head_check(const oz_ckpt *c, const oz_findings *f) {
    const oz_module head = {"lm_head", "Linear", 0, 0, false};
    if (oz_scheme_is_stored(c, &head)) oz_found_warning(f, "lm_head is stored quantized although tie_word_embeddings is true: the embedding is used (%s)", oz_ckpt_path(c));
    const oz_tensor *h = oz_ckpt_find(c, "lm_head.weight"), *e = oz_ckpt_find(c, "model.embed_tokens.weight");
    if (!h || !e || !h->data || !e->data) return;
    if (h->n_bytes != e->n_bytes || memcmp(h->data, e->data, h->n_bytes) != 0)
        oz_found_warning(f, "lm_head.weight differs from model.embed_tokens.weight although tie_word_embeddings is true: the embedding is used (%s)", h->file_name);
    oz_ckpt_drop(c, h);
}

/* ---- a quantized cache: its scales lie beside the layer's projections ---- */

static const char *query_of(const oz_arch_list *list, int64_t layer) {
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].layer == layer && list->items[i].slot == OZ_SLOT_Q) return list->items[i].module;
    return NULL;
}

static oz_status kv_module(char **out, const oz_arch_list *list, oz_mixer mixer, int64_t layer, oz_err *err) {
    const char *module = query_of(list, layer);
    OZ_NEED(mixer == OZ_MIXER_GQA && module, err, OZ_E_UNSUPPORTED, "quantization_config.kv_cache_scheme: a quantized cache is not supported for layer %lld's kind of attention", (long long)layer);
    *out = oz_strndup(module, (size_t)(strrchr(module, '.') - module));
    return OZ_OK;
}

oz_status oz_kv_module(char **out, const json_t *config, const oz_arch_list *list, int64_t layer, oz_err *err) {
    const oz_arch *arch;
    oz_dims d;
    OZ_TRY(oz_arch_read(&arch, &d, config, err));
    return kv_module(out, list, arch->layer(&d, layer).mixer, layer, err);
}

oz_status oz_kv_bind(float *scales, bool *stored, const oz_ckpt *c, const oz_arch_list *list, const oz_kv_of *of, oz_err *err) {
    char *name = NULL;
    *stored = false;
    OZ_TRY(kv_module(&name, list, of->mixer, of->layer, err));
    const bool pending = of->pending && of->pending(of->pending_arg, name);
    for (int64_t i = 0; i < 2 * of->n_heads_kv && pending; i++) scales[i] = 1;
    oz_status st = OZ_OK;
    if (pending) *stored = true;
    else st = oz_scheme_bind_kv(scales, scales + of->n_heads_kv, stored, c, name, &of->scheme, of->n_heads_kv, err);
    oz_free(name);
    return st;
}

oz_status oz_kv_missing(const oz_ckpt *c, const oz_arch_list *list, int64_t n_missing, int64_t n, int64_t first, const oz_findings *f, oz_err *err) {
    const char *module = query_of(list, first);
    OZ_NEED(n_missing == 0 || n_missing == n, err, OZ_E_FORMAT, "%.*s.k_scale: not in the checkpoint, though other layers have theirs (%s)", (int)(strrchr(module, '.') - module), module, oz_ckpt_path(c));
    if (n_missing) oz_found_warning(f, "quantization_config.kv_cache_scheme: no scales are stored; 1 is taken, which may cost accuracy");
    return OZ_OK;
}

static oz_status kv_check(const oz_ckpt *c, const oz_arch_list *list, const oz_findings *f, oz_err *err) {
    oz_kv_scheme s;
    const oz_arch *arch;
    oz_dims d;
    if (oz_scheme_kv(&s, oz_ckpt_config(c), NULL) != OZ_OK || !s.quantized) return OZ_OK;
    OZ_TRY(oz_arch_read(&arch, &d, oz_ckpt_config(c), err));
    float *scales = oz_alloc_array((size_t)d.n_heads_kv * 2, sizeof *scales);
    int64_t n_missing = 0, first = 0;
    oz_status st = OZ_OK;
    for (int64_t i = 0; i < d.n_layers && st == OZ_OK; i++) {
        bool stored;
        st = oz_kv_bind(scales, &stored, c, list, &(oz_kv_of){.scheme = s, .mixer = arch->layer(&d, i).mixer, .layer = i, .n_heads_kv = d.n_heads_kv}, err);
        if (st == OZ_OK && !stored && n_missing++ == 0) first = i;
        st = oz_found(f, st, err);
    }
    oz_free(scales);
    return st == OZ_OK ? oz_found(f, oz_kv_missing(c, list, n_missing, d.n_layers, first, f, err), err) : st;
}

/* ---- experts: one product for all of a layer, so their inputs are one ---- */

static oz_status expert_round(oz_round *r, float *scale, float *zero, const oz_ckpt *c, const oz_arch_tensor *t, const oz_scheme *s, oz_err *err) {
    const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
    *r = s->input;
    if (s->static_input) r->scales = scale, r->zeros = zero;
    return oz_scheme_bind_input(scale, zero, c, &m, s, err);
}

/* It may be a good checkpoint; it is not run here. */
static void experts_check(const oz_ckpt *c, const oz_arch_list *list, const oz_scheme *schemes, const oz_findings *f) {
    size_t n = 0, found = 0, first = 0;
    for (size_t i = 0; i < list->n; i++) {
        const oz_arch_tensor *t = &list->items[i];
        if (t->expert < 0) continue;
        if (t->expert == 0) first = i;
        const oz_scheme *s = &schemes[i], *z = &schemes[first];
        float v[4];
        oz_round a, b;
        if (s->unknown || z->unknown) continue;
        bool same = s->act == z->act;
        if (same && s->act == OZ_ACT_VALUES) {
            const bool bound = expert_round(&a, &v[0], &v[1], c, t, s, NULL) == OZ_OK && expert_round(&b, &v[2], &v[3], c, &list->items[first], z, NULL) == OZ_OK;
            same = !bound || oz_round_same(&a, &b); /* what is not bound was told already */
        }
        if (!same && n++ == 0) found = i;
    }
    if (n) oz_found_warning(f, "%s: expected inputs as those of expert 0 of its layer, found others (scheme %s), and %zu such in all: experts that differ in that are not run here", list->items[found].module, schemes[found].name, n);
}

/* ---- all of it ---- */

/* A GPTQ whose zero points deny the version that its config says (bind.c): readers that go by the label make noise of it. */
static void versions_note(const char *first, size_t n, const oz_scheme *s, const oz_findings *f) {
    static const char *const names[] = {"gptq_v2", "gptq"};
    if (n) oz_found_warning(f, "%s.qzeros: expected zero points of checkpoint_format %s, found those of %s, which are taken, and %zu such in all", first, names[s->old_layout], names[!s->old_layout], n);
}

static bool is_tied(const json_t *config) {
    const oz_arch *arch;
    oz_dims d;
    return oz_arch_read(&arch, &d, config, NULL) == OZ_OK && d.features & OZ_F_TIED;
}

oz_status oz_model_check(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, const oz_findings *f, oz_err *err) {
    OZ_TRY(oz_schemes_resolve(schemes, c, list, f, err));
    OZ_TRY(oz_surplus_check(c, list, schemes, true, f, err));
    size_t n_other = 0, other = 0;
    for (size_t i = 0; i < list->n; i++) {
        const oz_arch_tensor *t = &list->items[i];
        const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
        const oz_tensor *x;
        oz_weight w;
        if (!oz_is_matrix(t)) OZ_TRY(oz_found(f, oz_vector_find(&x, c, t, err), err));
        else if (!schemes[i].unknown) OZ_TRY(oz_scheme_bind_all(&w, c, &m, &schemes[i], f, err));
        if (oz_is_matrix(t) && schemes[i].store == OZ_STORE_GPTQ && !schemes[i].unknown && w.zero_words && w.zero_add != schemes[i].old_layout && n_other++ == 0) other = i;
    }
    versions_note(list->items[other].module, n_other, &schemes[other], f);
    OZ_TRY(kv_check(c, list, f, err));
    experts_check(c, list, schemes, f);
    if (is_tied(oz_ckpt_config(c))) oz_tied_head_check(c, f);
    return OZ_OK;
}
