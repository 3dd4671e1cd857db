/* A quantized cache: the scales of each layer's keys and values, of what the calibration text gives them behind the quantized projections. They belong to no module that is quantized, so
 * the plan has them beside its items. */
#include <math.h>
#include "base/mem.h"
#include "base/str.h"
#include "quantize/internal.h"

static oz_status layer_plan(oz_quantize *q, int64_t layer, oz_err *err) {
    oz_cache *c = &q->caches[layer];
    const int64_t dims[] = {q->kv.per_head ? q->n_heads_kv : 1, 1, 1};
    if (oz_kv_module(&c->module, oz_ckpt_config(q->ckpt), &q->list, layer, err) != OZ_OK) return oz_err_prefix(err, "--kv-cache-scheme");
    q->n_caches++;
    for (int i = 0; i < 2; i++) {
        c->tensors[i] = oz_asprintf("%s%s", c->module, oz_scheme_kv_suffix(i));
        OZ_TRY(oz_layout_add(q->layout, c->tensors[i], q->model_dtype, q->kv.per_head ? 3 : 1, dims, err));
    }
    return OZ_OK;
}

oz_status oz_cache_plan(oz_quantize *q, oz_err *err) {
    oz_arch_info info;
    if (!q->kv.quantized) return OZ_OK;
    OZ_TRY(oz_arch_info_read(&info, oz_ckpt_config(q->ckpt), err));
    q->n_heads_kv = info.n_heads_kv;
    q->caches = oz_alloc_array((size_t)info.n_layers, sizeof *q->caches);
    for (int64_t i = 0; i < info.n_layers; i++) OZ_TRY(layer_plan(q, i, err));
    return OZ_OK;
}

void oz_cache_free(oz_quantize *q) {
    for (int64_t i = 0; i < q->n_caches; i++) {
        oz_free(q->caches[i].module);
        oz_free(q->caches[i].tensors[0]);
        oz_free(q->caches[i].tensors[1]);
    }
    oz_free(q->caches);
}

/* Of n columns: the largest magnitude reaches the largest float8, or half the range of int8 (the library's rule: 127.5). What is zero throughout gets scale 1. */
static oz_status scale_of(float *scale, const oz_quantize *q, const oz_sample *s, int64_t c0, int64_t n, oz_err *err) {
    const oz_rtn how = {.codec = q->kv.is_int ? OZ_CODEC_I8 : OZ_CODEC_F8E4M3, .scale_dtype = q->model_dtype};
    float min = 0, max = 0, zero;
    for (int64_t c = c0; c < c0 + n; c++) {
        OZ_NEED(isfinite(s->sum[c]), err, OZ_E_FORMAT, "keys or values are not finite on the calibration text");
        min = fminf(min, s->min[c]), max = fmaxf(max, s->max[c]);
    }
    return oz_rtn_scale(scale, &zero, &how, min, max, err);
}

oz_status oz_cache_write(oz_quantize *q, int64_t layer, const oz_sample *seen, oz_writer *w, oz_err *err) {
    oz_cache *c = &q->caches[layer];
    const int64_t n = q->kv.per_head ? q->n_heads_kv : 1, width = seen->width / 2 / n;
    const size_t n_bytes = (size_t)oz_dtype_get(q->model_dtype)->block_bytes;
    for (int i = 0; i < 2; i++)
        for (int64_t h = 0; h < n; h++) {
            float scale;
            uint8_t stored[4];
            if (scale_of(&scale, q, seen, (i * n + h) * width, width, err) != OZ_OK) return oz_err_prefix(err, "%s", c->tensors[i]);
            oz_from_f32(stored, q->model_dtype, &scale, 1);
            OZ_TRY(oz_writer_put(w, c->tensors[i], (size_t)h * n_bytes, stored, n_bytes, err));
        }
    c->made = true;
    return OZ_OK;
}
