/* Whether a checkpoint is what its configs call for, before a byte of weight is used: the scheme of every module, and that the tensors stored are
 * those that the schemes need. Loading stops at the first finding; the linter takes them all. */
#include <stdio.h>
#include <string.h>
#include "base/map.h"
#include "base/mem.h"
#include "model/internal.h"

oz_status oz_schemes_resolve(oz_scheme *schemes, const oz_ckpt *c, const oz_arch_list *list, const oz_findings *f, oz_err *err) {
    oz_module *mods = oz_alloc_array(list->n + 1, sizeof *mods);
    oz_scheme *found = oz_alloc_array(list->n + 1, sizeof *found);
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (oz_is_matrix(&list->items[i])) mods[n++] = oz_arch_module(&list->items[i], c);
    oz_status st = oz_scheme_resolve_all(found, oz_ckpt_config(c), mods, n, f, err);
    for (size_t i = 0, k = 0; i < list->n; i++) schemes[i] = oz_is_matrix(&list->items[i]) ? found[k++] : OZ_SCHEME_DENSE;
    oz_free(mods);
    oz_free(found);
    return st;
}

/* Whether a tensor of module k is one of those that it needs. */
static bool is_needed(const oz_arch_list *list, size_t k, const oz_scheme *s, const char *name, const char *suffix, bool kv) {
    const oz_arch_tensor *t = &list->items[k];
    bool known = strcmp(name, t->name) == 0 && !oz_is_matrix(t);
    for (size_t j = k; j < list->n && strcmp(list->items[j].module, t->module) == 0; j++) known |= list->items[j].is_bias && strcmp(name, list->items[j].name) == 0;
    oz_part parts[OZ_MAX_PARTS];
    const int n = oz_is_matrix(t) ? oz_scheme_parts(parts, s, t->rows, t->cols, OZ_DTYPE_BF16) : 0;
    for (int j = 0; j < n; j++) known |= strcmp(suffix, parts[j].suffix) == 0;
    known |= oz_is_matrix(t) && s->quantized && s->symmetric && strcmp(suffix, ".weight_zero_point") == 0; /* checked by the binding */
    return known || (kv && oz_scheme_is_kv(name));
}

/* A scale of the cache beside an attention module, without a scheme that asks for it. */
static bool is_idle_kv(const char *name, bool kv) {
    const char *at = strstr(name, ".self_attn.");
    return at && !kv && oz_scheme_is_kv(name);
}

oz_status oz_surplus_check(const oz_ckpt *c, const oz_arch_list *list, const oz_scheme *schemes, const oz_findings *f, oz_err *err) {
    oz_kv_scheme kv = {0};
    oz_status st = oz_found(f, oz_scheme_kv(&kv, oz_ckpt_config(c), err), err);
    oz_map *modules = oz_map_new(list->n);
    for (size_t i = 0; i < list->n; i++) oz_map_add(modules, list->items[i].module, strlen(list->items[i].module), (int64_t)i);
    for (size_t i = 0; st == OZ_OK && i < oz_ckpt_count(c); i++) {
        const oz_tensor *x = oz_ckpt_at(c, i);
        const char *dot = strrchr(x->name, '.');
        int64_t k;
        if (is_idle_kv(x->name, kv.quantized))
            st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected none, since quantization_config.kv_cache_scheme is absent; found one (%s)", x->name, x->file_name);
        else if (dot && oz_map_get(modules, x->name, (size_t)(dot - x->name), &k) && !schemes[k].unknown && !is_needed(list, (size_t)k, &schemes[k], x->name, dot, kv.quantized))
            st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected no such tensor under scheme %s of its module, found it (%s)", x->name,
                            oz_is_matrix(&list->items[k]) ? schemes[k].name : "dense", x->file_name);
        st = oz_found(f, st, err);
    }
    oz_map_free(&modules);
    return st;
}
