/* Folds of a quantization: which of those that the architecture allows are done, and what the tensors become. A fold moves scales out of a norm, or of the rows of a
 * linear, into the columns of all that read them, so that these are easier to round; what the model computes stays as it was. Values are multiplied in f32 when they are
 * read, and quantized from there. What is kept in 16 bits must not lose by it: a norm takes scales whose quotients it can hold (the columns get the quotient that
 * it does hold), and beside a router or a bias, which are kept too, scales are powers of two. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "quantize/internal.h"

static bool is_norm(const oz_quantize_item *it) { return it->arch->role == OZ_ROLE_NORM; }

static oz_quantize_item *bias_of(const oz_quantize *q, size_t i) {
    const bool has = i + 1 < q->list.n && q->list.items[i + 1].is_bias && strcmp(q->list.items[i + 1].module, q->list.items[i].module) == 0;
    return has ? &q->items[i + 1] : NULL;
}

/* Why a fold cannot touch the item; NULL: it can. */
static const char *untouchable(const oz_quantize_item *it) {
    if (it->ignored) return "is to be left as it is";
    return it->quantized || is_norm(it) || it->arch->role == OZ_ROLE_ROUTER ? NULL : "is not quantized";
}

static const char *hindered(const char **by, const oz_quantize *q, const oz_quantize_fold *f) {
    const char *why = untouchable(&q->items[f->of->from]);
    *by = q->items[f->of->from].arch->module;
    for (size_t k = 0; !why && k < f->of->n_to; k++) why = untouchable(&q->items[f->of->to[k]]), *by = q->items[f->of->to[k]].arch->module;
    if (!why && f->powers && q->items[f->of->from].arch->plus != 0) why = "is kept, and the norm holds what is more than 1"; /* which is not exact in 16 bits, whatever the scale */
    return why;
}

static bool has_kept_half(const oz_quantize *q, const oz_fold *f) {
    bool kept = bias_of(q, f->from) != NULL;
    for (size_t k = 0; k < f->n_to; k++) kept = kept || !q->items[f->to[k]].quantized;
    return kept;
}

static void take(oz_quantize *q, const oz_quantize_fold *f) {
    oz_quantize_item *bias = bias_of(q, f->of->from);
    q->folds[q->n_folds++] = *f;
    q->items[f->of->from].moved = true;
    if (bias) bias->moved = true;
    for (size_t k = 0; k < f->of->n_to; k++) q->items[f->of->to[k]].moved = true;
}

/* ---- mappings of a recipe: which of the architecture's folds are done ---- */

/* The first of a list of patterns that matches; -1: none. */
static oz_status match(int64_t *at, const json_t *patterns, const oz_arch_tensor *t, const json_t *mapping, oz_err *err) {
    const oz_module m = {t->module, t->class_name, t->rows, t->cols, false};
    *at = -1;
    for (size_t i = 0; *at < 0 && i < json_array_size(patterns); i++) {
        bool hit;
        if (oz_pattern_match(&hit, json_string_value(json_array_get(patterns, i)), &m, err) != OZ_OK) return oz_err_prefix(err, "%s", json_string_value(json_object_get(mapping, "path")));
        if (hit) *at = (int64_t)i;
    }
    return OZ_OK;
}

/* Of a fold whose source the mapping names. Some of the readers alone would change what the model computes; where it speaks of none of them, it means others of that name. */
static oz_status readers_match(bool *takes, bool *used, const oz_quantize *q, const oz_fold *f, const json_t *mapping, oz_err *err) {
    const char *other = NULL;
    *takes = false;
    for (size_t k = 0; k < f->n_to; k++) {
        int64_t at;
        OZ_TRY(match(&at, json_object_get(mapping, "to"), q->items[f->to[k]].arch, mapping, err));
        if (at >= 0) *takes = used[at] = true;
        else other = q->items[f->to[k]].arch->module;
    }
    OZ_NEED(!*takes || !other, err, OZ_E_ARG, "%s: %s reads what %s gives, too: expected it in balance_layers, or the model would compute something else", json_string_value(json_object_get(mapping, "path")), other,
            q->items[f->from].arch->module);
    return OZ_OK;
}

/* What scales of this model can leave, by the ends of their names. */
static oz_status no_source(const oz_quantize *q, const json_t *mapping, oz_err *err) {
    oz_buf names = {0};
    oz_map *seen = oz_map_new(64);
    for (size_t i = 0; i < q->all_folds.n; i++) {
        const char *module = q->items[q->all_folds.items[i].from].arch->module, *name = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
        if (oz_map_add(seen, name, strlen(name), 0)) oz_buf_printf(&names, "%s%s", names.len ? ", " : "", name);
    }
    oz_status st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: smooth_layer '%s' matches nothing that scales can leave without a change of what the model computes; they can leave: %s",
                              json_string_value(json_object_get(mapping, "path")), json_string_value(json_object_get(mapping, "from")), names.len ? names.data : "nothing");
    oz_map_free(&seen);
    oz_buf_deinit(&names);
    return st;
}

static oz_status mapping_take(bool *asked /* [all_folds.n] */, const oz_quantize *q, const json_t *mapping, oz_err *err) {
    const json_t *to = json_object_get(mapping, "to");
    json_t *from = json_pack("[O]", json_object_get(mapping, "from"));
    bool *used = oz_alloc_array(json_array_size(to) + 1, sizeof *used), any = false;
    oz_status st = OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < q->all_folds.n; i++) {
        int64_t hit;
        bool takes;
        st = match(&hit, from, q->items[q->all_folds.items[i].from].arch, mapping, err);
        if (st != OZ_OK || hit < 0) continue;
        any = true;
        st = readers_match(&takes, used, q, &q->all_folds.items[i], mapping, err);
        asked[i] = asked[i] || (st == OZ_OK && takes);
    }
    if (st == OZ_OK && !any) st = no_source(q, mapping, err);
    for (size_t k = 0; st == OZ_OK && k < json_array_size(to); k++)
        if (!used[k])
            st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: balance_layers '%s' matches nothing that reads what '%s' gives", json_string_value(json_object_get(mapping, "path")),
                            json_string_value(json_array_get(to, k)), json_string_value(json_object_get(mapping, "from")));
    oz_free(used);
    json_decref(from);
    return st;
}

static oz_status mappings_take(bool *asked, const oz_quantize *q, oz_err *err) {
    for (size_t i = 0; i < q->all_folds.n; i++) asked[i] = !q->mappings;
    for (size_t i = 0; i < json_array_size(q->mappings); i++) OZ_TRY(mapping_take(asked, q, json_array_get(q->mappings, i), err));
    return OZ_OK;
}

/* ---- the plan ---- */

static oz_status folds_take(oz_quantize *q, const bool *asked, oz_err *err) {
    const char *first = NULL, *first_by = NULL, *first_why = NULL;
    size_t n_left = 0;
    for (size_t i = 0; i < q->all_folds.n; i++) {
        if (!asked[i]) continue;
        const oz_quantize_fold f = {&q->all_folds.items[i], has_kept_half(q, &q->all_folds.items[i])};
        const char *by, *why = hindered(&by, q, &f);
        if (!why) take(q, &f);
        else if (n_left++ == 0) first = q->items[f.of->from].arch->module, first_by = by, first_why = why;
    }
    OZ_NEED(q->n_folds > 0, err, OZ_E_ARG, "%s: no scale of this model can be moved: %s: %s %s", q->transform->title, first ? first : oz_ckpt_path(q->ckpt),
            first_by ? first_by : "nothing that is quantized", first_why ? first_why : "reads a norm or rows that could take it");
    if (n_left) (q->mappings ? oz_log_warn : oz_log_info)("%zu of %zu places where scales could move are left as they are, the first %s: %s %s", n_left, q->all_folds.n, first, first_by, first_why);
    return OZ_OK;
}

static bool rounds_inputs(const oz_quantize *q) {
    for (size_t i = 0; i < q->list.n; i++)
        if (q->items[i].quantized && q->items[i].scheme.act != OZ_ACT_NONE) return true;
    return false;
}

oz_status oz_quantize_fold_plan(oz_quantize *q, oz_err *err) {
    if (!q->transform) return OZ_OK;
    if (q->transform->inputs && !rounds_inputs(q)) oz_log_warn("%s: no inputs are rounded here, which it is for; awq moves scales for the sake of weights", q->transform->title);
    OZ_TRY(oz_folds_new(&q->all_folds, &q->list, oz_ckpt_config(q->ckpt), err));
    q->folds = oz_alloc_array(q->all_folds.n + 1, sizeof *q->folds);
    bool *asked = oz_alloc_array(q->all_folds.n + 1, sizeof *asked);
    oz_status st = mappings_take(asked, q, err);
    if (st == OZ_OK) st = folds_take(q, asked, err);
    oz_free(asked);
    return st;
}

void oz_quantize_fold_free(oz_quantize *q) {
    for (size_t i = 0; i < q->list.n && q->items; i++) oz_fold_undo(&q->items[i]);
    oz_folds_free(&q->all_folds);
    oz_free(q->folds);
}


/* ---- scales ---- */

/* The nearest scale of a norm's value whose quotient its type holds; 1 where there is none. */
static float norm_scale(const oz_quantize_item *it, int64_t row, float scale) {
    float value;
    uint8_t stored[8];
    oz_weight_row(&value, &it->weight, row, 0, 1);
    value += it->arch->plus;
    float quotient = value / scale - it->arch->plus;
    oz_from_f32(stored, it->dtype, &quotient, 1);
    oz_to_f32(&quotient, it->dtype, stored, 1);
    quotient += it->arch->plus;
    const float settled = value / quotient;
    return value != 0 && isnormal(quotient) && isnormal(settled) ? settled : 1;
}

void oz_fold_settle(float *s, const oz_quantize *q, const oz_quantize_fold *f) {
    const oz_quantize_item *from = &q->items[f->of->from];
    double sum = 0;
    int64_t n = 0;
    for (int64_t k = 0; k < f->of->n; k++)
        if (isnormal(s[k]) && s[k] > 0) sum += log((double)s[k]), n++;
    const double mean = n ? exp(sum / (double)n) : 1;
    for (int64_t k = 0; k < f->of->n; k++) {
        const double v = isnormal(s[k]) && s[k] > 0 ? fmin(fmax(s[k] / mean, 1.0 / OZ_FOLD_LARGEST), OZ_FOLD_LARGEST) : 1;
        s[k] = (float)(f->powers ? exp2(nearbyint(log2(v))) : v);
        if (is_norm(from)) s[k] = norm_scale(from, oz_fold_row(f->of, k), s[k]);
    }
}

static float *ones(int64_t n) {
    float *v = oz_alloc_array((size_t)n, sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = 1;
    return v;
}

static void divide_rows(oz_quantize_item *it, const oz_fold *f, const float *s) {
    it->rows_by = ones(it->arch->rows);
    for (int64_t k = 0; k < f->n; k++) it->rows_by[oz_fold_row(f, k)] = s[k];
}

void oz_fold_apply(oz_quantize *q, const oz_quantize_fold *f, const float *s) {
    oz_quantize_item *bias = bias_of(q, f->of->from);
    divide_rows(&q->items[f->of->from], f->of, s);
    if (bias) divide_rows(bias, f->of, s);
    for (size_t i = 0; i < f->of->n_to; i++) {
        oz_quantize_item *it = &q->items[f->of->to[i]];
        it->cols_by = oz_alloc_array((size_t)it->arch->cols, sizeof *it->cols_by);
        for (int64_t c = 0; c < it->arch->cols; c++) it->cols_by[c] = s[oz_fold_scale(f->of, c)];
    }
}

void oz_fold_undo(oz_quantize_item *it) {
    oz_free(it->cols_by);
    oz_free(it->rows_by);
    it->cols_by = it->rows_by = NULL;
}

/* ---- values ---- */

void oz_item_fill(void *arg, float *dst, int64_t begin, int64_t n) {
    const oz_quantize_item *it = arg;
    const int64_t cols = it->weight.cols;
    const float plus = it->arch ? it->arch->plus : 0;
    for (int64_t r = begin / cols; r < (begin + n) / cols; r++, dst += cols) {
        oz_weight_row(dst, &it->weight, r, 0, cols);
        for (int64_t c = 0; it->cols_by && c < cols; c++) dst[c] *= it->cols_by[c];
        for (int64_t c = 0; it->rows_by && c < cols; c++) dst[c] = (dst[c] + plus) / it->rows_by[r] - plus;
    }
}

static void fill_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const oz_weight *w = ((void **)arg)[0];
    (void)thread;
    oz_item_fill(((void **)arg)[1], (float *)w->codes + begin * w->cols, begin * w->cols, (end - begin) * w->cols);
}

oz_status oz_item_weight(oz_weight *out, void **mem, const oz_quantize_item *it, oz_pool *pool, oz_err *err) {
    *out = it->weight, *mem = NULL;
    if (!it->cols_by && !it->rows_by) return OZ_OK;
    OZ_TRY(oz_big_new(mem, (size_t)(it->arch->rows * it->arch->cols) * sizeof(float), it->arch->module, err));
    *out = (oz_weight){.codec = OZ_CODEC_F32, .rows = it->arch->rows, .cols = it->arch->cols, .codes = *mem, .row_bytes = it->arch->cols * (int64_t)sizeof(float), .group_size = it->arch->cols};
    oz_pool_run(pool, out->rows, 16, fill_rows, (void *[]){out, (void *)it});
    return OZ_OK;
}
