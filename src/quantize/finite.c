/* Weights that are no numbers, found before a run with calibration text begins: it would meet them in their layer, hours later. Which tensors hold some is known from the reading that a digest takes
 * (digest.c). Refused are those that cannot but end the run: what is quantized or folded, and the vectors and routers that the text passes on its way to the last of them. A linear that is kept is left to
 * the run: nothing may come behind it, or no token to it. */
#include <math.h>
#include "base/mem.h"
#include "quantize/internal.h"

static oz_status place_find(const oz_quantize_item *it, oz_err *err) {
    const oz_weight *w = &it->weight;
    float *row = oz_alloc_array((size_t)w->cols, sizeof *row);
    oz_status st = OZ_OK;
    for (int64_t r = 0; st == OZ_OK && r < w->rows; r++) {
        oz_weight_row(row, w, r, 0, w->cols);
        for (int64_t c = 0; st == OZ_OK && c < w->cols; c++)
            if (!isfinite(row[c]))
                st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: row %lld: column %lld: expected a finite weight, found %g (%s)", it->tensor->name, (long long)r, (long long)c, (double)row[c],
                                it->tensor->file_name);
    }
    oz_free(row);
    return st;
}

static int last_layer(const oz_quantize *q) {
    int last = -1;
    for (size_t i = 0; i < q->list.n; i++)
        if (q->items[i].quantized && q->list.items[i].layer > last) last = q->list.items[i].layer;
    return last;
}

oz_status oz_quantize_finite_check(const oz_quantize *q, const bool *not_finite, oz_err *err) {
    const int last = last_layer(q);
    for (size_t i = 0; i < q->list.n; i++) {
        const oz_quantize_item *it = &q->items[i];
        const oz_arch_tensor *t = it->arch;
        if (it->absent || !not_finite[it->tensor - oz_ckpt_at(q->ckpt, 0)]) continue;
        const bool is_matrix = !t->is_bias && t->cols > 0, is_passed = t->layer >= 0 && t->layer <= last && (!is_matrix || t->role == OZ_ROLE_ROUTER);
        if (it->quantized || it->moved || is_passed) OZ_TRY(is_matrix ? place_find(it, err) : oz_finite_check(it->tensor, err));
    }
    return OZ_OK;
}
