/* Tensors that a model of this config does not have: an error each, since what they were made for is not known and is not computed. What says nothing (a head beside tied
 * embeddings, tables of rotation; with a warning biases of zeros, what is empty, a number outside of the layers) is passed over, and so are whole parts of larger models that are not
 * run here, which are named once. */
#include <stdlib.h>
#include <string.h>
#include "base/map.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "model/internal.h"

/* What published models call parts beside the decoder: of images and sound, what leads from these into it, and heads that guess more than one token. */
static const char *const PARTS[] = {
    "vision_tower", "vision_model", "vision_encoder", "vision_embed_tokens", "visual", "embed_vision", "multi_modal_projector", "mm_projector", "vision_language_adapter", "image_newline",
    "connector", "patch_merger", "pre_mm_projector_norm", "audio_tower", "audio_encoder", "embed_audio", "embed_tokens_extend", "mtp", "mtp_layers", "mtp_block", "medusa_head", "medusa_heads",
};
enum { N_PARTS = sizeof PARTS / sizeof *PARTS };

/* Tensors of one beginning of a name. */
typedef struct part { size_t n_name, n; const oz_tensor *first; } part;

typedef struct look {
    const oz_ckpt *c;
    const oz_arch_list *list;
    const oz_scheme *schemes;
    oz_map *modules, *prefixes, *attentions; /* by name, of the list: a row of it; "model.layers.0"; "model.layers.0.self_attn" */
    oz_map *by_part; part *parts; size_t n_parts, cap_parts;
    const char *model_type;
    int64_t n_layers, n_next; /* layers of the config, and those that it declares behind them, which guess tokens further on */
    bool tied, kv_known, kv;
    struct { size_t n; const oz_tensor *first; } zeros, loose; /* biases of zeros; what holds nothing, or one number outside of the layers */
} look;

static bool has(const oz_map *m, const char *name, size_t n) { return oz_map_get(m, name, n, &(int64_t){0}); }

oz_map *oz_prefixes_new(const oz_arch_list *list) {
    oz_map *m = oz_map_new(list->n);
    for (size_t i = 0; i < list->n; i++)
        for (const char *name = list->items[i].module, *dot = name; (dot = strchr(dot, '.')); dot++) oz_map_add(m, name, (size_t)(dot - name), 0);
    return m;
}

size_t oz_part_length(const oz_map *prefixes, const char *name) {
    for (const char *dot = name; (dot = strchr(dot, '.')); dot++)
        if (!has(prefixes, name, (size_t)(dot - name))) return (size_t)(dot - name);
    return strlen(name);
}

static oz_status look_init(look *l, oz_err *err) {
    const json_t *config = oz_ckpt_config(l->c), *text = json_object_get(config, "text_config");
    const oz_arch *arch;
    oz_dims d;
    oz_kv_scheme kv;
    OZ_TRY(oz_arch_read(&arch, &d, config, err));
    l->model_type = arch->model_type, l->n_layers = d.n_layers, l->tied = d.features & OZ_F_TIED;
    l->n_next = json_integer_value(json_object_get(text ? text : config, "num_nextn_predict_layers"));
    l->kv_known = oz_scheme_kv(&kv, config, NULL) == OZ_OK; /* resolving the schemes said what is wrong with it */
    l->kv = kv.quantized;
    l->modules = oz_map_new(l->list->n), l->prefixes = oz_prefixes_new(l->list), l->attentions = oz_map_new(64), l->by_part = oz_map_new(16);
    for (size_t i = 0; i < l->list->n; i++) {
        const oz_arch_tensor *t = &l->list->items[i];
        const char *dot = strrchr(t->module, '.');
        oz_map_add(l->modules, t->module, strlen(t->module), (int64_t)i);
        if (t->layer >= 0 && t->slot == OZ_SLOT_Q && dot) oz_map_add(l->attentions, t->module, (size_t)(dot - t->module), 0);
    }
    return OZ_OK;
}

static void look_deinit(look *l) {
    oz_map_free(&l->modules);
    oz_map_free(&l->prefixes);
    oz_map_free(&l->attentions);
    oz_map_free(&l->by_part);
    oz_free(l->parts);
}

/* ---- tensors of modules ---- */

/* Whether a tensor of module k is one of those that it needs. */
static bool is_needed(const oz_arch_list *list, size_t k, const oz_scheme *s, const char *name, const char *suffix) {
    const oz_arch_tensor *t = &list->items[k];
    bool known = strcmp(name, t->name) == 0 && !oz_is_matrix(t);
    for (size_t j = k; j < list->n && strcmp(list->items[j].module, t->module) == 0; j++) known |= list->items[j].is_bias && strcmp(name, list->items[j].name) == 0;
    oz_part parts[OZ_MAX_PARTS];
    const int n = oz_is_matrix(t) ? oz_scheme_parts(parts, s, t->rows, t->cols, OZ_DTYPE_BF16) : 0;
    for (int j = 0; j < n; j++) known |= strcmp(suffix, parts[j].suffix) == 0;
    known |= oz_is_matrix(t) && s->quantized && s->symmetric && strcmp(suffix, ".weight_zero_point") == 0; /* checked by the binding */
    return known;
}

/* Without data, of what is yet to be written: so they are taken for what they come from. */
static bool is_zeros(const oz_tensor *x) {
    for (size_t i = 0; x->data && i < x->n_bytes; i++)
        if (((const uint8_t *)x->data)[i]) return false;
    return true;
}

static oz_status module_check(look *l, const oz_tensor *x, size_t k, const char *suffix, oz_err *err) {
    const oz_scheme *s = &l->schemes[k];
    if (s->unknown || (s->other_inputs && oz_scheme_is_of_inputs(suffix)) || is_needed(l->list, k, s, x->name, suffix)) return OZ_OK;
    const bool bias = strcmp(suffix, ".bias") == 0;
    if (bias && is_zeros(x)) {
        if (l->zeros.n++ == 0) l->zeros.first = x;
        return OZ_OK;
    }
    OZ_NEED(!bias, err, OZ_E_FORMAT, "%s: expected none, since a model of type %s and this config has no bias there; found one that is not zero (%s)", x->name, l->model_type, x->file_name);
    OZ_FAIL(err, OZ_E_FORMAT, "%s: expected no such tensor under scheme %s of its module, found it (%s)", x->name, oz_is_matrix(&l->list->items[k]) ? s->name : "dense", x->file_name);
}

/* ---- scales of the cache ---- */

/* *mine: it is one, or a zero point that goes with one. */
static oz_status kv_check(bool *mine, const look *l, const oz_tensor *x, oz_err *err) {
    const size_t n = oz_scheme_kv_owner(x->name);
    const char *dot = strrchr(x->name, '.');
    const bool zero = dot && (strcmp(dot, ".k_zero_point") == 0 || strcmp(dot, ".v_zero_point") == 0);
    *mine = (n && has(l->attentions, x->name, n)) || (zero && has(l->attentions, x->name, (size_t)(dot - x->name)));
    if (!*mine || !l->kv_known) return OZ_OK;
    OZ_NEED(l->kv, err, OZ_E_FORMAT, "%s: expected none, since quantization_config.kv_cache_scheme is absent; found one (%s)", x->name, x->file_name);
    OZ_NEED(!zero || is_zeros(x), err, OZ_E_FORMAT, "%s: expected none, since quantization_config.kv_cache_scheme is symmetric; found values other than zero (%s)", x->name, x->file_name);
    return OZ_OK;
}

/* ---- what is of no module ---- */

/* A head of a model that has it from its embedding, or a table that follows from the config. */
static bool is_idle(const look *l, const char *name, const char *dot) {
    static const char table[] = ".rotary_emb.inv_freq", head[] = "lm_head";
    const size_t n = dot ? (size_t)(dot - name) : 0, n_name = strlen(name);
    if (oz_str_ends(name, table)) return has(l->prefixes, name, n_name - strlen(table));
    if (!l->tied || n < strlen(head) || memcmp(dot - strlen(head), head, strlen(head)) != 0 || !oz_scheme_is_suffix(dot)) return false;
    return n == strlen(head) || (name[n - strlen(head) - 1] == '.' && has(l->prefixes, name, n - strlen(head) - 1));
}

static void part_add(look *l, const oz_tensor *x) {
    if (x->n_bytes == 0 || (x->n_dims == 0 && !strstr(x->name, "layers."))) {
        if (l->loose.n++ == 0) l->loose.first = x;
        return;
    }
    const size_t n = oz_part_length(l->prefixes, x->name);
    int64_t k;
    if (!oz_map_get(l->by_part, x->name, n, &k)) {
        oz_map_add(l->by_part, x->name, n, k = (int64_t)l->n_parts);
        oz_grow((void **)&l->parts, &l->cap_parts, l->n_parts + 1, sizeof *l->parts);
        l->parts[l->n_parts++] = (part){n, 0, x};
    }
    l->parts[k].n++;
}

/* Beside the decoder, under a name that such parts have, or a layer that the config declares behind the others. */
static bool is_not_run(const look *l, const part *p) {
    const char *name = p->first->name, *last = name + p->n_name;
    while (last > name && last[-1] != '.') last--;
    const size_t n = (size_t)(name + p->n_name - last), n_parent = last > name ? (size_t)(last - name) - 1 : 0;
    char number[24];
    if (n_parent >= 6 && memcmp(last - 7, "layers", 6) == 0) {
        for (int64_t i = l->n_layers; i < l->n_layers + l->n_next; i++)
            if ((size_t)snprintf(number, sizeof number, "%lld", (long long)i) == n && memcmp(number, last, n) == 0) return true;
        return false;
    }
    for (size_t i = 0; i < N_PARTS; i++)
        if (strlen(PARTS[i]) == n && memcmp(PARTS[i], last, n) == 0) return !memmem(name, p->n_name, ".layers.", 8);
    return false;
}

static oz_status part_check(const look *l, const part *p, bool notes, oz_err *err) {
    const oz_tensor *x = p->first;
    int64_t k;
    if (is_not_run(l, p)) {
        if (notes) oz_log_info("%.*s: %zu tensors, a part that is not run here", (int)p->n_name, x->name, p->n);
        return OZ_OK;
    }
    if (oz_map_get(l->modules, x->name, p->n_name, &k) && l->schemes[k].unknown) return OZ_OK;
    char others[64] = "";
    if (p->n > 1) snprintf(others, sizeof others, ", and %zu more there", p->n - 1);
    OZ_FAIL(err, OZ_E_FORMAT, "%s: expected no such tensor in a model of this config, found it%s (%s)", x->name, others, x->file_name);
}

static void surplus_note(const look *l, const oz_findings *f) {
    const oz_tensor *z = l->zeros.first, *x = l->loose.first;
    if (z) oz_found_warning(f, "%s: a model of type %s and this config has no bias there; zeros are stored, which say nothing, and %zu such in all (%s)", z->name, l->model_type, l->zeros.n, z->file_name);
    if (x) oz_found_warning(f, "%s: expected no such tensor in a model of this config, found %s, which is not used, and %zu such in all (%s)", x->name, x->n_bytes ? "a number" : "an empty one", l->loose.n, x->file_name);
}

oz_status oz_surplus_check(const oz_ckpt *c, const oz_arch_list *list, const oz_scheme *schemes, bool notes, const oz_findings *f, oz_err *err) {
    look l = {.c = c, .list = list, .schemes = schemes};
    oz_status st = look_init(&l, err);
    for (size_t i = 0; st == OZ_OK && i < oz_ckpt_count(c); i++) {
        const oz_tensor *x = oz_ckpt_at(c, i);
        const char *dot = strrchr(x->name, '.');
        bool cache;
        int64_t k;
        if (has(l.modules, x->name, strlen(x->name))) continue; /* a parameter that is no module's */
        st = kv_check(&cache, &l, x, err);
        if (st == OZ_OK && !cache && dot && oz_map_get(l.modules, x->name, (size_t)(dot - x->name), &k)) st = module_check(&l, x, (size_t)k, dot, err);
        else if (st == OZ_OK && !cache && !is_idle(&l, x->name, dot)) part_add(&l, x);
        st = oz_found(f, st, err);
    }
    for (size_t i = 0; st == OZ_OK && i < l.n_parts; i++) st = oz_found(f, part_check(&l, &l.parts[i], notes, err), err);
    if (st == OZ_OK && notes) surplus_note(&l, f);
    look_deinit(&l);
    return st;
}
