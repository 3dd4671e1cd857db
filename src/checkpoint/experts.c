/* Experts that lie in one tensor a layer, as newer transformers write them: NAME.experts.gate_up_proj [experts, 2 * width, hidden], the gate's rows before the
 * up's, and NAME.experts.down_proj [experts, hidden, width]. They are seen as the matrices of the published layout, one an expert: NAME.experts.3.up_proj.weight.
 * Such a slice is contiguous in the file, so this is a matter of names; nothing is copied. */
#include <string.h>
#include "base/str.h"
#include "checkpoint/internal.h"

enum { MAX_EXPERTS = 1 << 12 };
static const struct { const char *ending; int n; const char *parts[2]; } kinds[] = {
    {".experts.gate_up_proj", 2, {"gate_proj", "up_proj"}}, {".experts.down_proj", 1, {"down_proj"}}};

static int kind_of(const oz_tensor *t) {
    for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++)
        if (oz_str_ends(t->name, kinds[k].ending) && t->n_dims == 3 && t->n_bytes && t->dims[0] <= MAX_EXPERTS && t->dims[1] % kinds[k].n == 0) return k;
    return -1;
}

static oz_status add_slices(oz_ckpt *c, const oz_tensor *t, int kind, oz_err *err) {
    const int n = kinds[kind].n, folder = (int)(strrchr(t->name, '.') - t->name);
    oz_tensor s = *t;
    s.n_dims = 2, s.dims[0] = t->dims[1] / n, s.dims[1] = t->dims[2];
    s.n_bytes = t->n_bytes / (size_t)(t->dims[0] * n);
    oz_status st = OZ_OK;
    for (int64_t i = 0; st == OZ_OK && i < t->dims[0] * n; i++) {
        char *name = oz_asprintf("%.*s.%lld.%s.weight", folder, t->name, (long long)(i / n), kinds[kind].parts[i % n]);
        s.name = name, s.data = (const uint8_t *)t->data + (size_t)i * s.n_bytes;
        st = oz_ckpt_add(c, &s, err);
        oz_free(name);
    }
    return st;
}

oz_status oz_experts_split(oz_ckpt *c, oz_err *err) {
    bool any = false;
    for (size_t i = 0; i < c->n_tensors; i++) any |= kind_of(&c->tensors[i]) >= 0;
    if (!any) return OZ_OK;
    oz_tensor *all = c->tensors;
    const size_t n = c->n_tensors;
    c->tensors = NULL, c->n_tensors = c->cap_tensors = c->n_bytes = 0;
    oz_map_free(&c->by_name);
    c->by_name = oz_map_new(4 * n);
    oz_status st = OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < n; i++) {
        const int kind = kind_of(&all[i]);
        st = kind < 0 ? oz_ckpt_add(c, &all[i], err) : add_slices(c, &all[i], kind, err);
    }
    oz_free(all);
    return st;
}
