/* Hybrids: whether what a checkpoint gives fits where it goes, and what a user should hear who puts parts of two models together. */
#include <string.h>
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "quantize/internal.h"

static bool is_of(const oz_arch_list *l, size_t row, const char *module) { return row < l->n && strcmp(l->items[row].module, module) == 0; }

/* The tensors of one module as two configs call for them: each must be there in both, of one shape. */
oz_status oz_take_fits(const oz_origin *base, size_t row, const oz_origin *other, size_t at, oz_err *err) {
    const char *module = base->list.items[row].module;
    for (;; row++, at++) {
        const oz_arch_tensor *want = is_of(&base->list, row, module) ? &base->list.items[row] : NULL, *have = is_of(&other->list, at, module) ? &other->list.items[at] : NULL;
        if (!want && !have) return OZ_OK;
        char expected[OZ_DIMS_TEXT] = "none", found[OZ_DIMS_TEXT] = "none";
        if (want) oz_dims_show(expected, want->n_dims, want->dims);
        if (have) oz_dims_show(found, have->n_dims, have->dims);
        OZ_NEED(strcmp(expected, found) == 0, err, OZ_E_FORMAT, "%s: expected %s as in %s, found %s in %s", want ? want->name : have->name, expected, oz_ckpt_path(base->ckpt), found, oz_ckpt_path(other->ckpt));
    }
}

static bool same_values(const oz_tensor *x, const oz_tensor *y) {
    const int64_t x_size = oz_dtype_get(x->dtype)->block_bytes, y_size = oz_dtype_get(y->dtype)->block_bytes;
    if (x->n_dims != 1 || y->n_dims != 1 || x->dims[0] != y->dims[0]) return false;
    for (int64_t e = 0; e < x->dims[0]; e++) {
        float a, b;
        oz_to_f32(&a, x->dtype, (const uint8_t *)x->data + e * x_size, 1);
        oz_to_f32(&b, y->dtype, (const uint8_t *)y->data + e * y_size, 1);
        const float larger = a * a > b * b ? a : b, gap = a - b;
        if (!(gap * gap <= larger * larger * 0x1p-14f)) return false; /* rounded to 16 bits */
    }
    return true;
}

/* Methods that smooth inputs fold the factors into norms: a module taken without its norm computes something else. */
static void warn_of_norms(const oz_origin *base, const oz_origin *other, const bool *kept) {
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < base->list.n; i++) {
        const oz_arch_tensor *t = &base->list.items[i];
        if (t->role != OZ_ROLE_NORM || t->is_bias || !kept[i]) continue;
        const oz_tensor *x = oz_ckpt_find(base->ckpt, t->name), *y = oz_ckpt_find(other->ckpt, t->name);
        if (!x || !y || oz_dtype_get(x->dtype)->block_elems > 1 || oz_dtype_get(y->dtype)->block_elems > 1) continue;
        if (!same_values(x, y) && differ++ == 0) first = i;
    }
    if (differ) oz_log_warn("%s differs between %s and %s, and %zu norm%s in all: where factors of inputs are folded into norms, the modules behind them must be taken along", base->list.items[first].name,
                            oz_ckpt_path(base->ckpt), oz_ckpt_path(other->ckpt), differ, differ == 1 ? "" : "s");
}

static void add_key(void *arg, const oz_config_key *k) {
    oz_buf *keys = arg;
    if (k->of_logits) oz_buf_printf(keys, "%s%s", keys->len ? ", " : "", *k->path ? k->path : "all of it");
}

/* The result has one config. */
static void warn_of_configs(const oz_origin *base, const oz_origin *other) {
    oz_buf keys = {0};
    oz_config_compare(oz_ckpt_config(base->ckpt), oz_ckpt_config(other->ckpt), add_key, &keys);
    if (keys.len) oz_log_warn("%s: its config says otherwise than that of %s, under which what is taken will run: %s", oz_ckpt_path(other->ckpt), oz_ckpt_path(base->ckpt), keys.data);
    oz_buf_deinit(&keys);
}

void oz_take_warn(const oz_origin *base, const oz_origin *other, const bool *kept) {
    warn_of_configs(base, other);
    warn_of_norms(base, other, kept);
    if (other->kv.quantized) oz_log_warn("%s: its quantized cache (kv_cache_scheme and its scales) is not taken; %s", oz_ckpt_path(other->ckpt), base->kv.quantized ? "that of the model stays" : "the model's is not quantized");
    else if (base->kv.quantized) oz_log_warn("%s: its quantized cache (kv_cache_scheme and its scales) stays, though %s has none", oz_ckpt_path(base->ckpt), oz_ckpt_path(other->ckpt));
}
