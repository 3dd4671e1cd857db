/* A checkpoint that tensors of a conversion come from: its modules, their schemes, and which tensors belong to each. */
#include <string.h>
#include "base/map.h"
#include "base/mem.h"
#include "quantize/internal.h"

/* The head gets a row whether or not it is tied. */
static oz_status list_new(oz_origin *o, oz_err *err) {
    const json_t *config = oz_ckpt_config(o->ckpt);
    OZ_TRY(oz_arch_list_new(&o->list, config, o->ckpt, err));
    o->tied = true;
    for (size_t i = 0; i < o->list.n; i++) o->tied = o->tied && o->list.items[i].role != OZ_ROLE_HEAD;
    if (!o->tied) return OZ_OK;
    json_t *untied = json_copy((json_t *)config);
    json_object_set_new(untied, "tie_word_embeddings", json_false());
    oz_arch_list_deinit(&o->list);
    oz_status st = oz_arch_list_new(&o->list, untied, o->ckpt, err);
    json_decref(untied);
    return st;
}

int64_t oz_origin_row(const oz_origin *o, const char *module) {
    int64_t row;
    return oz_map_get(o->by_name, module, strlen(module), &row) ? row : -1;
}

int64_t oz_origin_owner(const oz_origin *o, const char *tensor) {
    const char *dot = strrchr(tensor, '.');
    int64_t row = -1;
    if (!o->by_name || (o->kv.quantized && oz_scheme_is_kv(tensor))) return -1;
    if (oz_map_get(o->by_name, tensor, strlen(tensor), &row) || !dot) return row; /* some are called by their module's name */
    return oz_map_get(o->by_name, tensor, (size_t)(dot - tensor), &row) ? row : -1;
}

bool oz_origin_lacks_head(const oz_origin *o, size_t row) { return o->tied && o->list.items[row].role == OZ_ROLE_HEAD && o->first[row] < 0; }

oz_status oz_origin_open(oz_origin *o, const oz_ckpt *ckpt, bool weights_only, oz_err *err) {
    o->ckpt = ckpt;
    OZ_TRY(list_new(o, err));
    o->schemes = oz_alloc_array(o->list.n + 1, sizeof *o->schemes);
    OZ_TRY(weights_only ? oz_schemes_resolve_weights(o->schemes, ckpt, &o->list, err) : oz_schemes_resolve(o->schemes, ckpt, &o->list, NULL, err));
    OZ_TRY(oz_surplus_check(ckpt, &o->list, o->schemes, false, NULL, err));
    const oz_status st = oz_scheme_kv(&o->kv, oz_ckpt_config(ckpt), err);
    if (st == OZ_E_UNSUPPORTED && weights_only) oz_err_clear(err);
    else OZ_TRY(st);
    o->by_name = oz_map_new(o->list.n);
    o->first = oz_alloc_array(o->list.n + 1, sizeof *o->first);
    o->next = oz_alloc_array(oz_ckpt_count(ckpt) + 1, sizeof *o->next);
    for (size_t i = 0; i < o->list.n; i++) o->first[i] = -1, oz_map_add(o->by_name, o->list.items[i].module, strlen(o->list.items[i].module), (int64_t)i);
    for (size_t i = oz_ckpt_count(ckpt); i-- > 0;) {
        const int64_t row = oz_origin_owner(o, oz_ckpt_at(ckpt, i)->name);
        if (row >= 0) o->next[i] = o->first[row], o->first[row] = (int64_t)i;
    }
    for (size_t i = 0; i < o->list.n; i++)
        if (oz_origin_lacks_head(o, i)) o->schemes[i] = OZ_SCHEME_DENSE; /* whatever a class name says of it */
    return OZ_OK;
}

void oz_origin_close(oz_origin *o) {
    oz_arch_list_deinit(&o->list);
    oz_map_free(&o->by_name);
    oz_free(o->schemes);
    oz_free(o->first);
    oz_free(o->next);
}
