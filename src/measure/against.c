/* A checkpoint against the one that it was made of: what each module's weights lost, and whether its codes are those that rounding to nearest gives. Row by row
 * over the pool, module by module; memory: rows of each thread, and the pages of one module of both. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "measure/internal.h"

/* Two ways to make symmetric integers are in use: the largest magnitude over half the range of codes, or over the largest code. */
enum { N_WAYS = 2 };
typedef struct far_scales { int64_t n, row, col; } far_scales; /* scales that a way does not give; the first of them */

typedef struct tally {
    double error, signal, largest; /* sums of squares; the largest error */
    int64_t n_codes, n_nearest, n_scales;
    int64_t n_far, row, col; /* codes that rounding could not have given, however it went at a tie; the first of them */
    far_scales far[N_WAYS];
    float *original, *value, *codes, *scales, *zeros, *low, *high; /* room of the thread's own */
} tally;

/* by: how rounding goes about it. */
typedef struct pass { const oz_weight *w, *original; float lo, hi; bool is_float; oz_rtn by[N_WAYS]; int n_ways; tally *tallies; } pass;

/* ---- what rounding to nearest gives ---- */

static float nearest(const pass *p, float x, float scale, float zero) {
    const oz_codec_info *info = oz_codec_get(p->w->codec);
    const float t = x / scale;
    if (!info->codebook) return oz_rtn_code(&p->by[0], x, scale, zero);
    int best = 0; /* ties go to even indices, which have even mantissas */
    for (int i = 1; i < 1 << info->bits; i++) {
        const float d = fabsf((float)info->codebook[i] * info->unit - t), least = fabsf((float)info->codebook[best] * info->unit - t);
        if (d < least || (d == least && i % 2 == 0 && best % 2)) best = i;
    }
    return (float)info->codebook[best] * info->unit;
}

/* Half a step and some more, which another way to round the quotient can cost. */
static bool is_far(const pass *p, float t, float code) {
    float step = 1;
    if (p->is_float) {
        const oz_codec_info *info = oz_codec_get(p->w->codec);
        const int e = code != 0 ? ilogbf(code) : info->least;
        step = ldexpf(1, (e > info->least ? e : info->least) - info->digits);
    }
    const float limit = p->is_float ? fmaxf(fabsf(p->lo), p->hi) : 0, x = p->is_float ? fminf(fmaxf(t, -limit), limit) : fminf(fmaxf(t, p->lo), p->hi);
    return fabsf(x - code) > 0.75f * step;
}

static void codes_compare(const pass *p, tally *t, int64_t r) {
    const oz_weight *w = p->w;
    const oz_codec_info *info = oz_codec_get(w->codec);
    for (int64_t c = 0; c < w->cols; c++) {
        const int64_t g = oz_weight_group(w, c);
        const float code = info->codebook ? (float)info->codebook[(int)t->codes[c]] * info->unit : t->codes[c], want = t->original[c] / t->scales[g] + t->zeros[g];
        t->n_nearest += code == nearest(p, t->original[c], t->scales[g], t->zeros[g]);
        if (is_far(p, want, code) && t->n_far++ == 0) t->row = r, t->col = c;
    }
    t->n_codes += w->cols;
}

/* Scales that rows share are left out. Of a row that is the original's to the last bit (it was quantized so before) no scale is wrong. */
static void scales_compare(const pass *p, tally *t, int64_t r, bool is_exact) {
    const oz_weight *w = p->w;
    const int64_t n = oz_weight_groups(w);
    const oz_codec_info *info = oz_codec_get(w->codec);
    if (w->one_scale || w->scale_rows > 1 || info->codebook || w->scale_dtype == OZ_DTYPE_F8_E8M0 || w->scale_dtype == OZ_DTYPE_F8_E4M3) return;
    for (int64_t g = 0; g < n; g++) t->low[g] = t->high[g] = 0;
    for (int64_t c = 0; c < w->cols; c++) {
        const int64_t g = oz_weight_group(w, c);
        t->low[g] = fminf(t->low[g], t->original[c]), t->high[g] = fmaxf(t->high[g], t->original[c]);
    }
    for (int64_t g = 0; g < n; g++) {
        float scale, zero;
        const bool any = is_exact || t->low[g] == t->high[g]; /* of a group of zeros any will do */
        for (int i = 0; i < p->n_ways && !any; i++) {
            far_scales *far = &t->far[i];
            const bool same = oz_rtn_scale(&scale, &zero, &p->by[i], t->low[g], t->high[g], NULL) == OZ_OK && t->scales[g] == scale && t->zeros[g] == zero;
            if (!same && far->n++ == 0) far->row = r, far->col = g;
        }
    }
    t->n_scales += n;
}

/* A value that nothing quantizes: the original's, rounded to the type that it is stored in. */
static void value_compare(tally *t, oz_dtype stored, float value, float original, int64_t r, int64_t c) {
    char bits[4];
    oz_from_f32(bits, stored, &original, 1);
    oz_to_f32(&original, stored, bits, 1);
    const double d = (double)value - (double)original;
    t->n_codes++, t->n_nearest += d == 0;
    if (d != 0 && t->n_far++ == 0) t->row = r, t->col = c;
}

static void error_add(tally *t, float value, float original) {
    const double d = (double)value - (double)original;
    t->error += d * d, t->signal += (double)original * (double)original;
    if (fabs(d) > t->largest || isnan(d)) t->largest = fabs(d);
}

static void rows_pass(void *arg, int thread, int64_t begin, int64_t end) {
    const pass *p = arg;
    tally *t = &p->tallies[thread];
    const int64_t cols = p->w->cols;
    for (int64_t r = begin; r < end; r++) {
        oz_weight_row(t->original, p->original, r, 0, cols);
        oz_weight_row(t->value, p->w, r, 0, cols);
        bool is_exact = true;
        for (int64_t c = 0; c < cols; c++) error_add(t, t->value[c], t->original[c]), is_exact &= t->value[c] == t->original[c];
        const oz_codec_info *info = oz_codec_get(p->w->codec);
        for (int64_t c = 0; c < cols && info->plain && oz_dtype_get(info->dtype)->block_elems == 1; c++) value_compare(t, info->dtype, t->value[c], t->original[c], r, c);
        if (info->plain) continue;
        oz_weight_codes(t->codes, p->w, r, 0, cols);
        oz_weight_scales(t->scales, t->zeros, p->w, r);
        codes_compare(p, t, r);
        scales_compare(p, t, r, is_exact);
    }
}

/* ---- a module ---- */

static oz_status room_new(void **mem, tally *tallies, const oz_weight *w, int n_threads, oz_err *err) {
    const size_t cols = (size_t)w->cols, groups = (size_t)oz_weight_groups(w), each = 3 * cols + 4 * groups;
    OZ_TRY(oz_big_new(mem, (size_t)n_threads * each * sizeof(float), "rows of a module", err));
    for (int i = 0; i < n_threads; i++) {
        float *at = (float *)*mem + (size_t)i * each, *g = at + 3 * cols;
        tallies[i] = (tally){.original = at, .value = at + cols, .codes = at + 2 * cols, .scales = g, .zeros = g + groups, .low = g + 2 * groups, .high = g + 3 * groups};
    }
    return OZ_OK;
}

static void tallies_join(tally *a, const tally *b) {
    a->error += b->error, a->signal += b->signal;
    if (b->largest > a->largest || isnan(b->largest)) a->largest = b->largest;
    a->n_codes += b->n_codes, a->n_nearest += b->n_nearest, a->n_scales += b->n_scales;
    if (b->n_far && !a->n_far) a->row = b->row, a->col = b->col;
    a->n_far += b->n_far;
    for (int i = 0; i < N_WAYS; i++) {
        if (b->far[i].n && !a->far[i].n) a->far[i] = (far_scales){0, b->far[i].row, b->far[i].col};
        a->far[i].n += b->far[i].n;
    }
}

enum { LEAST_DB = 3 }; /* two bits have about 6 */

/* So few that they are no way of quantizing: GPTQ moves many codes, damage one. */
static bool is_few(int64_t n, int64_t of) { return n > 0 && n <= (of > 2000 ? of / 1000 : 2); }

static void judge(const oz_compared *c, const tally *t, const far_scales *far, const oz_findings *f) {
    if (is_few(t->n_far, t->n_codes))
        oz_found_warning(f, "%s: expected %s, as all but %lld are, found another in row %lld, column %lld", c->name, c->quantized ? "codes that rounding the original gives" : "the original's values", (long long)t->n_far,
                         (long long)t->row, (long long)t->col);
    if (is_few(far->n, t->n_scales))
        oz_found_warning(f, "%s: expected scales that the original's largest values give, as all but %lld are, found another in row %lld, group %lld", c->name, (long long)far->n, (long long)far->row,
                         (long long)far->col);
    if (!(c->snr_db > LEAST_DB)) oz_found_warning(f, "%s: expected weights like the original's, found an error as large as they are (signal to noise %.1f dB): where AWQ or SmoothQuant has moved scales between modules that is so of good ones, too", c->name, c->snr_db);
}

static void measure_of(oz_compared *c, const tally *t, const far_scales *far, int64_t n) {
    c->max_error = t->largest, c->rms_error = sqrt(t->error / (double)n);
    c->snr_db = t->error == 0 ? INFINITY : 10 * log10(t->signal / t->error);
    c->n_codes = t->n_codes, c->n_codes_rtn = t->n_nearest, c->n_scales = t->n_scales, c->n_scales_rtn = t->n_scales - far->n;
}

static oz_status compare_matrix(oz_compared *c, const oz_weight *w, const oz_weight *original, const oz_scheme *s, oz_pool *pool, const oz_findings *f, oz_err *err) {
    const int n_threads = oz_pool_threads(pool);
    const oz_rtn by = {.codec = s->is_float ? OZ_CODEC_F8E4M3 : OZ_CODEC_I8, .scale_dtype = w->scale_dtype, .asymmetric = !s->symmetric, .bits = s->bits};
    pass p = {.w = w, .original = original, .is_float = s->is_float, .by = {by, by}, .n_ways = s->is_float || !s->symmetric ? 1 : N_WAYS};
    if (s->quantized && s->is_float) p.hi = oz_codec_get(w->codec)->largest, p.lo = -p.hi;
    else if (s->quantized) p.lo = (float)-(1 << (s->bits - 1)), p.hi = -p.lo - 1;
    p.by[1].divisor = p.hi;
    void *mem = NULL;
    p.tallies = oz_alloc_array((size_t)n_threads, sizeof *p.tallies);
    oz_status st = room_new(&mem, p.tallies, w, n_threads, err);
    if (st == OZ_OK) {
        oz_pool_run(pool, w->rows, 1, rows_pass, &p);
        for (int i = 1; i < n_threads; i++) tallies_join(&p.tallies[0], &p.tallies[i]);
        const far_scales *far = p.tallies[0].far;
        const int way = p.n_ways == N_WAYS && far[1].n < far[0].n;
        measure_of(c, &p.tallies[0], &far[way], w->rows * w->cols);
        if (p.is_float ? c->n_scales > 0 : p.n_ways == N_WAYS && far[0].n != far[1].n) c->divisor = p.is_float || way ? p.hi : 0.5 * ((double)p.hi - (double)p.lo);
        judge(c, &p.tallies[0], &far[way], f);
    }
    oz_big_free(mem);
    oz_free(p.tallies);
    return st;
}

/* Vectors, as they are stored; out of a GGUF their meaning may be another (norms, interleaved biases). */
static void compare_vector(oz_compared *c, const oz_tensor *x, const oz_tensor *original, const oz_findings *f) {
    tally t = {0};
    const int64_t size = oz_dtype_get(x->dtype)->block_bytes, size_original = oz_dtype_get(original->dtype)->block_bytes, n = (int64_t)x->n_bytes / size;
    for (int64_t i = 0; i < n; i++) {
        float a, b;
        oz_to_f32(&a, x->dtype, (const char *)x->data + i * size, 1);
        oz_to_f32(&b, original->dtype, (const char *)original->data + i * size_original, 1);
        error_add(&t, a, b);
        value_compare(&t, x->dtype, a, b, 0, i);
    }
    measure_of(c, &t, t.far, n);
    judge(c, &t, t.far, f);
}

/* ---- all of them ---- */

/* The tensor of the original that t was made of; the embedding, where the original has no head of its own. */
static int64_t origin_of(const oz_verify *original, const oz_arch_tensor *t) {
    int64_t k;
    if (oz_map_get(original->names, t->name, strlen(t->name), &k)) return k;
    for (size_t i = 0; t->role == OZ_ROLE_HEAD && i < original->list.n; i++)
        if (original->list.items[i].role == OZ_ROLE_EMBED) return (int64_t)i;
    return -1;
}

static oz_status compare_one(oz_compared *c, bool *done, const oz_verify sides[2], size_t i, const oz_findings *f, oz_err *err) {
    const oz_arch_tensor *t = &sides[0].list.items[i];
    const oz_scheme *s = &sides[0].schemes[i];
    const int64_t k = origin_of(&sides[1], t);
    *done = false;
    if (k < 0) return oz_found_error(f, "%s: expected a tensor of the original too, found none there (%s)", t->name, sides[1].model), OZ_OK;
    const oz_arch_tensor *o = &sides[1].list.items[k];
    char theirs[OZ_DIMS_TEXT], ours[OZ_DIMS_TEXT];
    if (o->rows != t->rows || o->cols != t->cols)
        return oz_found_error(f, "%s: expected %s as the original has, found %s", t->name, oz_dims_show(theirs, o->n_dims, o->dims), oz_dims_show(ours, t->n_dims, t->dims)), OZ_OK;
    *c = (oz_compared){.name = oz_strdup(t->cols ? t->module : t->name), .scheme = s->name, .quantized = s->quantized};
    oz_weight w, original;
    oz_status st = OZ_OK;
    if (oz_verify_bind(&w, &sides[0], i) && oz_verify_bind(&original, &sides[1], (size_t)k)) {
        *done = true;
        c->quantized |= oz_dtype_get(oz_codec_get(w.codec)->dtype)->block_elems > 1; /* blocks of a GGUF */
        st = compare_matrix(c, &w, &original, s, sides[0].pool, f, err);
        oz_verify_drop(&sides[0], i);
        oz_verify_drop(&sides[1], (size_t)k);
    } else if (!t->cols && !oz_ckpt_is_gguf(sides[0].ckpt) && !oz_ckpt_is_gguf(sides[1].ckpt)) {
        const oz_tensor *x, *y;
        *done = oz_vector_find(&x, sides[0].ckpt, t, NULL) == OZ_OK && oz_vector_find(&y, sides[1].ckpt, o, NULL) == OZ_OK;
        if (*done) compare_vector(c, x, y, f);
    }
    if (!*done) oz_free(c->name);
    return st;
}

/* What only the original has; a head that the model ties to its embedding is none of it. */
static void missed(const oz_verify sides[2], const oz_findings *f) {
    for (size_t i = 0; i < sides[1].list.n; i++) {
        const oz_arch_tensor *o = &sides[1].list.items[i];
        int64_t k;
        if (o->role != OZ_ROLE_HEAD && !oz_map_get(sides[0].names, o->name, strlen(o->name), &k)) oz_found_error(f, "%s: expected this tensor of the original, found none (%s)", o->name, sides[0].model);
    }
}

static int worst_first(const void *pa, const void *pb) {
    const oz_compared *a = pa, *b = pb;
    const double x = isnan(a->snr_db) ? -INFINITY : a->snr_db, y = isnan(b->snr_db) ? -INFINITY : b->snr_db;
    return x < y ? -1 : x > y ? 1 : strcmp(a->name, b->name);
}

static oz_status compare_all(oz_comparison *out, const oz_verify sides[2], const oz_findings *f, oz_err *err) {
    oz_progress progress;
    oz_progress_init(&progress, "comparing", "tensors", (int64_t)sides[0].list.n);
    out->items = oz_alloc_array(sides[0].list.n + 1, sizeof *out->items);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < sides[0].list.n && st == OZ_OK; i++) {
        bool done = false;
        if (oz_interrupted()) st = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted");
        else st = compare_one(&out->items[out->n], &done, sides, i, f, err);
        out->n += done;
        oz_progress_step(&progress, (int64_t)i + 1);
    }
    oz_progress_deinit(&progress);
    if (st == OZ_OK) missed(sides, f);
    if (out->n) qsort(out->items, out->n, sizeof *out->items, worst_first);
    return st;
}

static void key_differs(void *arg, const oz_config_key *k) {
    (k->of_logits ? oz_found_error : oz_found_warning)(arg, "config.json%s%s: expected %s as the original has, found %s", *k->path ? "." : "", k->path, oz_json_show(k->theirs), oz_json_show(k->ours));
}

static void first_error(void *arg, bool is_error, const char *text) {
    char **first = arg;
    if (is_error && !*first) *first = oz_strdup(text);
}

oz_status oz_compare_run(oz_comparison *out, const char *model, const char *original, const oz_findings *f, oz_pool *pool, oz_err *err) {
    oz_verify sides[2] = {0};
    char *first[2] = {NULL, NULL};
    *out = (oz_comparison){0};
    oz_status st = oz_verify_open(&sides[0], model, &(oz_findings){first_error, &first[0]}, pool, err); /* oz_verify_run says what is wrong with it */
    if (st == OZ_OK) st = oz_verify_open(&sides[1], original, &(oz_findings){first_error, &first[1]}, pool, err);
    if (st == OZ_OK && first[1]) oz_found_error(f, "%s, which is compared with: %s", original, first[1]);
    const bool both = st == OZ_OK && !first[1];
    if (both && sides[0].ckpt) oz_config_compare(oz_ckpt_config(sides[0].ckpt), oz_ckpt_config(sides[1].ckpt), key_differs, (void *)f);
    if (both) st = compare_all(out, sides, f, err);
    for (int i = 0; i < 2; i++) {
        oz_verify_close(&sides[i]);
        oz_free(first[i]);
    }
    return st;
}

void oz_comparison_deinit(oz_comparison *c) {
    for (size_t i = 0; i < c->n; i++) oz_free(c->items[i].name);
    oz_free(c->items);
    *c = (oz_comparison){0};
}
