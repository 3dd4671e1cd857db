/* The choice of a fold's scales: by the method's formula with several strengths, and from the best of these on by balance.c, unless a strength is given. Candidates are tried on what they are
 * for: the readers' columns are multiplied and rounded to nearest as their scheme says, rows that they read on the calibration text are divided and rounded as it says of inputs, and the outputs
 * are held against those of the original. A token's squared error counts relative to the square of its own output (and of the usual one, for those that hardly have any): otherwise few tokens
 * with outputs a thousand times larger than all others, whose errors a norm divides away, would decide for all. Readers count by the tokens that reach them; nothing moved at all is a candidate too.
 *
 * A unit of work is a band of some rows of one reader on all of its rows of inputs: products of a fixed size, so that threads do not show in the result. On a device (kernel/calib.h) a reader
 * is one unit, and its weights and outputs stay there. */
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "quantize/blas.h"
#include "quantize/internal.h"

enum { BAND = 32, STATS_ROWS = 64 };

/* A reader under trial. */
typedef struct trial {
    const oz_reader *reader;
    oz_rtn rtn;
    oz_round input;         /* how its inputs are rounded; bits 0: not at all */
    int64_t band;           /* rows of a unit */
    int64_t unit0, n_units;
    float *x, *y;           /* [n, cols] inputs, divided and rounded; [rows, n] the original's outputs, turned; both times */
    oz_trial *there;        /* on the device, with its outputs; or NULL */
    double *squares;        /* [n] of each token's outputs */
    float *token;           /* [n] what a token counts */
    float *by;              /* [cols] the candidate */
    float scale, zero;      /* where all rows share one */
    float in_scale, in_zero; /* of a static input */
    double weight;          /* of its squared error */
} trial;

typedef struct search {
    trial *trials;
    size_t n;
    int64_t n_units, scratch; /* floats of a thread */
    float *mem;
    double *sums;             /* [n_units] of squared errors */
    float *ends;              /* [n_units, 2]: the range of a unit's weights */
    oz_err *errs;             /* of each thread */
    oz_pool *pool;
    oz_dev *dev;              /* or NULL */
    enum { OUTPUTS, RANGES, ERRORS } phase;
} search;

static const trial *trial_of(const search *s, int64_t unit) {
    const trial *t = s->trials;
    while (unit >= t->unit0 + t->n_units) t++;
    return t;
}

/* Rounds a band of weights to the values that it would be stored as. */
static oz_status band_round(float *w, float *scratch, const trial *t, int64_t n_rows, oz_err *err) {
    const int64_t cols = t->reader->item->arch->cols, step = t->rtn.group_size > 0 ? t->rtn.group_size : cols, groups = (cols + step - 1) / step;
    const oz_scheme *scheme = &t->reader->item->scheme;
    const int64_t each = scheme->block_rows > 0 ? n_rows : 1;
    float *codes = scratch, *scales = codes + cols, *zeros = scales + groups;
    for (int64_t r = 0; r < n_rows; r++) {
        float *row = w + r * cols;
        if (scheme->per_tensor) scales[0] = t->scale, zeros[0] = t->zero;
        else if (r % each == 0) {
            for (int64_t g = 0; g < groups; g++) scales[g] = zeros[g] = 0;
            for (int64_t k = r; k < r + each; k++) OZ_TRY(oz_rtn_observe(zeros, scales, &t->rtn, w + k * cols, cols, err));
            for (int64_t g = 0; g < groups; g++) OZ_TRY(oz_rtn_scale(&scales[g], &zeros[g], &t->rtn, zeros[g], scales[g], err));
        }
        oz_rtn_codes(codes, &t->rtn, scales, zeros, row, cols);
        for (int64_t c = 0; c < cols; c++) row[c] = (codes[c] - zeros[c / step]) * scales[c / step];
    }
    return OZ_OK;
}

static oz_status unit_run(const search *s, int64_t unit, float *scratch, oz_err *err) {
    const trial *t = trial_of(s, unit);
    const oz_quantize_item *it = t->reader->item;
    const int64_t cols = it->arch->cols, n = t->reader->sample->n, row0 = (unit - t->unit0) * t->band, rows = it->arch->rows - row0 < t->band ? it->arch->rows - row0 : t->band;
    float *w = scratch, *more = w + t->band * cols, *y = t->y + row0 * n, min = 0, max = 0;
    oz_item_fill((void *)it, w, row0 * cols, rows * cols);
    for (int64_t i = 0; s->phase != OUTPUTS && i < rows * cols; i++) w[i] *= t->by[i % cols];
    oz_status st = OZ_OK;
    if (s->phase == RANGES) {
        for (int64_t r = 0; it->scheme.per_tensor && r < rows && st == OZ_OK; r++) st = oz_rtn_observe(&min, &max, &t->rtn, w + r * cols, cols, err);
        s->ends[2 * unit] = min, s->ends[2 * unit + 1] = max;
    } else if (s->phase == ERRORS) st = band_round(w, more, t, rows, err);
    if (st != OZ_OK) return oz_err_prefix(err, "%s: rows %lld to %lld", it->arch->module, (long long)row0, (long long)(row0 + rows - 1));
    if (s->phase == RANGES) return OZ_OK;
    const float *x = s->phase == OUTPUTS ? t->reader->sample->rows : t->x;
    float *out = s->phase == OUTPUTS ? y : more;
    oz_blas.sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)n, (int)cols, 1.0f, w, (int)cols, x, (int)cols, 0.0f, out, (int)n);
    double sum = 0;
    for (int64_t i = 0; s->phase == ERRORS && i < rows * n; i++) {
        const float e = out[i] - y[i];
        sum += (double)e * (double)e;
    }
    s->sums[unit] = sum;
    return OZ_OK;
}

static void units_run(void *arg, int thread, int64_t begin, int64_t end) {
    const search *s = arg;
    oz_err *err = &s->errs[thread];
    for (int64_t u = begin; u < end && err->code == OZ_OK; u++) unit_run(s, u, s->mem + thread * s->scratch, err);
}

/* ---- on a device ---- */

enum { ROWS_AT_ONCE = 256 };
typedef struct rows_fill { const oz_quantize_item *item; float *rows; int64_t row0; oz_err *errs; } rows_fill;

static void fill_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const rows_fill *f = arg;
    const int64_t cols = f->item->arch->cols;
    const oz_rtn whole = {.codec = OZ_CODEC_I8};
    for (int64_t r = begin; r < end && f->errs[thread].code == OZ_OK; r++) {
        float *row = f->rows + r * cols, min = 0, max = 0;
        oz_item_fill((void *)f->item, row, (f->row0 + r) * cols, cols);
        if (oz_rtn_observe(&min, &max, &whole, row, cols, &f->errs[thread]) != OZ_OK) oz_err_prefix(&f->errs[thread], "%s: row %lld", f->item->arch->module, (long long)(f->row0 + r));
    }
}

static oz_status rows_load(oz_trial *t, oz_dev *dev, rows_fill *f, oz_pool *pool, oz_err *err) {
    const int64_t rows = f->item->arch->rows;
    for (int64_t n; f->row0 < rows; f->row0 += n) {
        n = rows - f->row0 < ROWS_AT_ONCE ? rows - f->row0 : ROWS_AT_ONCE;
        oz_pool_run(pool, n, 1, fill_rows, f);
        for (int i = 0; i < oz_pool_threads(pool); i++)
            if (f->errs[i].code != OZ_OK) OZ_FAIL(err, f->errs[i].code, "%s", f->errs[i].msg);
        oz_dev_ops(dev)->calib->trial->load(dev, t, f->row0, n, f->rows);
    }
    return OZ_OK;
}

oz_status oz_trial_new(oz_trial **out, oz_dev *dev, const oz_quantize_item *it, const oz_rtn *rtn, int64_t n_tok, oz_pool *pool, oz_err *err) {
    const oz_arch_tensor *a = it->arch;
    const oz_trial_cfg cfg = {a->rows, a->cols, n_tok, *rtn, it->scheme.per_tensor ? a->rows : it->scheme.block_rows > 0 ? it->scheme.block_rows : 1};
    const oz_trial_ops *ops = oz_dev_ops(dev)->calib->trial;
    rows_fill f = {.item = it};
    OZ_TRY(ops->open(out, dev, &cfg, a->module, err));
    f.errs = oz_alloc_array((size_t)oz_pool_threads(pool), sizeof *f.errs);
    oz_status st = oz_big_new((void **)&f.rows, (size_t)(ROWS_AT_ONCE * a->cols) * sizeof(float), a->module, err);
    if (st == OZ_OK) st = rows_load(*out, dev, &f, pool, err);
    if (st != OZ_OK) ops->close(dev, out);
    oz_big_free(f.rows);
    oz_free(f.errs);
    return st;
}

static oz_status device_outputs(search *s, trial *t, oz_err *err) {
    OZ_TRY(oz_trial_new(&t->there, s->dev, t->reader->item, &t->rtn, t->reader->sample->n, s->pool, err));
    oz_dev_ops(s->dev)->calib->trial->aim(s->dev, t->there, t->reader->sample->rows, t->squares);
    return OZ_OK;
}

static oz_status device_phase(search *s, oz_err *err) {
    for (size_t i = 0; i < s->n; i++) {
        trial *t = &s->trials[i];
        if (s->phase == OUTPUTS) OZ_TRY(device_outputs(s, t, err));
        else s->sums[t->unit0] = oz_dev_ops(s->dev)->calib->trial->error(s->dev, t->there, t->x, t->by);
    }
    OZ_TRY(oz_dev_ops(s->dev)->end(s->dev, err));
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

static void outputs_square(const trial *t) {
    const int64_t n = t->reader->sample->n, rows = t->reader->item->arch->rows;
    for (int64_t i = 0; i < rows * n; i++) t->squares[i % n] += (double)t->y[i] * (double)t->y[i];
}

static oz_status phase_run(search *s, int phase, oz_err *err) {
    s->phase = phase;
    if (s->dev) return device_phase(s, err);
    oz_pool_run(s->pool, s->n_units, 1, units_run, s);
    for (int t = 0; t < oz_pool_threads(s->pool); t++)
        if (s->errs[t].code != OZ_OK) OZ_FAIL(err, s->errs[t].code, "%s", s->errs[t].msg);
    for (size_t i = 0; i < s->n && phase == OUTPUTS; i++) outputs_square(&s->trials[i]);
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

/* ---- a candidate ---- */

static void inputs_divide(void *arg, int thread, int64_t begin, int64_t end) {
    const trial *t = arg;
    const int64_t cols = t->reader->item->arch->cols;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const float *from = t->reader->sample->rows + i * cols;
        float *to = t->x + i * cols;
        for (int64_t c = 0; c < cols; c++) to[c] = from[c] / t->by[c];
        if (t->input.bits) oz_act_round(to, to, cols, &t->input);
        for (int64_t c = 0; c < cols; c++) to[c] *= t->token[i];
    }
}

oz_status oz_input_scale(float *scale, float *zero, const oz_reader *readers, size_t n, oz_dtype model_dtype, oz_err *err) {
    const oz_quantize_item *it = readers[0].item;
    const oz_round *in = &it->scheme.input;
    const oz_rtn q = {in->is_float ? OZ_CODEC_F8E4M3 : OZ_CODEC_I8, 0, model_dtype, !in->symmetric, in->is_float ? 0 : in->bits, 0};
    float min = 0, max = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++)
        for (int64_t c = 0; c < readers[i].sample->width; c++) {
            const float by = readers[i].item->cols_by ? readers[i].item->cols_by[c] : 1, lo = readers[i].sample->min[c] / by, hi = readers[i].sample->max[c] / by;
            finite = finite && isfinite(readers[i].sample->sum[c]) && isfinite(lo) && isfinite(hi);
            min = fminf(min, lo), max = fmaxf(max, hi);
        }
    OZ_NEED(finite, err, OZ_E_FORMAT, "%s: its inputs on the calibration text are not finite", it->arch->module);
    if (oz_rtn_scale(scale, zero, &q, min, max, err) != OZ_OK) return oz_err_prefix(err, "%s: inputs", it->arch->module);
    return OZ_OK;
}

static oz_status trial_begin(trial *t, search *s, const float *scales, const oz_quantize *q, const oz_quantize_fold *f, oz_err *err) {
    for (int64_t c = 0; c < t->reader->item->arch->cols; c++) t->by[c] = scales[oz_fold_scale(f->of, c)];
    if (t->reader->item->scheme.static_input) {
        oz_quantize_item as = *t->reader->item;
        as.cols_by = t->by;
        OZ_TRY(oz_input_scale(&t->in_scale, &t->in_zero, &(oz_reader){&as, t->reader->sample}, 1, q->model_dtype, err));
        t->input.scales = &t->in_scale, t->input.zeros = &t->in_zero;
    }
    oz_pool_run(s->pool, t->reader->sample->n, 4, inputs_divide, t);
    return OZ_OK;
}

/* Scales of weights that all rows share; a device finds them by itself. */
static oz_status ranges_take(search *s, oz_err *err) {
    bool any = false;
    for (size_t i = 0; i < s->n && !s->dev; i++) any = any || s->trials[i].reader->item->scheme.per_tensor;
    if (!any) return OZ_OK;
    OZ_TRY(phase_run(s, RANGES, err));
    for (size_t i = 0; i < s->n; i++) {
        trial *t = &s->trials[i];
        float min = 0, max = 0;
        for (int64_t u = t->unit0; u < t->unit0 + t->n_units; u++) min = fminf(min, s->ends[2 * u]), max = fmaxf(max, s->ends[2 * u + 1]);
        OZ_TRY(oz_rtn_scale(&t->scale, &t->zero, &t->rtn, min, max, err));
    }
    return OZ_OK;
}

static double weighed(const search *s) {
    double all = 0, tokens = 0;
    for (size_t i = 0; i < s->n; i++) {
        const trial *t = &s->trials[i];
        double sum = 0;
        for (int64_t u = t->unit0; u < t->unit0 + t->n_units; u++) sum += s->sums[u];
        all += sum * t->weight, tokens += t->weight > 0 ? (double)t->reader->sample->seen : 0;
    }
    return tokens > 0 ? all / tokens : 0;
}

static oz_status loss_of(double *loss, search *s, const float *scales, const oz_quantize *q, const oz_quantize_fold *f, oz_err *err) {
    for (size_t i = 0; i < s->n; i++) OZ_TRY(trial_begin(&s->trials[i], s, scales, q, f, err));
    OZ_TRY(ranges_take(s, err));
    OZ_TRY(phase_run(s, ERRORS, err));
    *loss = weighed(s);
    return OZ_OK;
}

/* ---- statistics ---- */

/* Bands of a reader's rows: of each scale the largest weight, and the sum of magnitudes relative to their group's largest. */
typedef struct weighing { const trial *t; const oz_fold *f; float *most, *rows; double *sum; } weighing;

static void bands_weigh(void *arg, int thread, int64_t begin, int64_t end) {
    const weighing *w = arg;
    const oz_quantize_item *it = w->t->reader->item;
    const int64_t n = w->f->n, cols = it->arch->cols, step = w->t->rtn.group_size > 0 ? w->t->rtn.group_size : cols;
    float *row = w->rows + thread * cols;
    for (int64_t r = begin * STATS_ROWS; r < end * STATS_ROWS && r < it->arch->rows; r++) {
        float *band_most = w->most + r / STATS_ROWS * n;
        double *band_sum = w->sum + r / STATS_ROWS * n;
        oz_item_fill((void *)it, row, r * cols, cols);
        for (int64_t c0 = 0; c0 < cols; c0 += step) {
            const int64_t c1 = c0 + step < cols ? c0 + step : cols;
            float most = 0;
            for (int64_t c = c0; c < c1; c++) most = fmaxf(most, fabsf(row[c]));
            for (int64_t c = c0; c < c1; c++) {
                const int64_t k = oz_fold_scale(w->f, c);
                band_most[k] = fmaxf(band_most[k], fabsf(row[c]));
                band_sum[k] += most > 0 ? (double)(fabsf(row[c]) / most) / (double)w->f->share : 0;
            }
        }
    }
}

static oz_status weights_weigh(oz_fold_stats *st, double *mean, const trial *t, const oz_fold *f, oz_pool *pool, oz_err *err) {
    const int64_t n = f->n, n_bands = (t->reader->item->arch->rows + STATS_ROWS - 1) / STATS_ROWS;
    weighing w = {.t = t, .f = f};
    OZ_TRY(oz_big_new((void **)&w.sum, (size_t)(n_bands * n) * (sizeof(double) + sizeof(float)), t->reader->item->arch->module, err));
    w.most = (float *)(w.sum + n_bands * n);
    w.rows = oz_alloc_array((size_t)oz_pool_threads(pool), (size_t)t->reader->item->arch->cols * sizeof *w.rows);
    oz_pool_run(pool, n_bands, 1, bands_weigh, &w);
    for (int64_t i = 0; i < n_bands * n; i++) {
        st->w_max[i % n] = fmaxf(st->w_max[i % n], w.most[i]);
        mean[i % n] += w.sum[i];
    }
    oz_free(w.rows);
    oz_big_free(w.sum);
    return OZ_OK;
}

/* Of columns that share a scale: the largest, and the mean of means. */
static oz_status stats_new(oz_fold_stats *st, const search *s, const oz_fold *f, oz_err *err) {
    const int64_t n = f->n, cols = s->trials[0].reader->item->arch->cols;
    float *v = oz_alloc_array((size_t)(4 * n), sizeof *v);
    double rows = 0, tokens = 0;
    *st = (oz_fold_stats){n, v, v + n, v + 2 * n, v + 3 * n};
    double *mean = oz_alloc_array((size_t)(2 * n), sizeof *mean);
    oz_status ok = OZ_OK;
    for (size_t i = 0; ok == OZ_OK && i < s->n; i++) {
        const trial *t = &s->trials[i];
        const oz_sample *x = t->reader->sample;
        for (int64_t c = 0; c < cols; c++) {
            const int64_t k = oz_fold_scale(f, c);
            st->x_max[k] = fmaxf(st->x_max[k], fmaxf(x->max[c], -x->min[c]));
            mean[k] += x->sum[c] / (double)f->share;
        }
        tokens += (double)x->seen, rows += (double)t->reader->item->arch->rows;
        ok = weights_weigh(st, mean + n, t, f, s->pool, err);
    }
    for (int64_t k = 0; k < n; k++) st->x_mean[k] = (float)(mean[k] / tokens), st->w_mean[k] = (float)(mean[n + k] / rows);
    oz_free(mean);
    return ok;
}

/* ---- the search ---- */

static oz_status trial_init(trial *t, const oz_reader *r, search *s, oz_dtype model_dtype, oz_err *err) {
    static const oz_round by_act[OZ_ACT_COUNT] = {[OZ_ACT_I8_TOKEN] = {.bits = 8, .symmetric = true}, [OZ_ACT_F8_TOKEN] = {.bits = 8, .is_float = true, .symmetric = true}};
    const oz_arch_tensor *a = r->item->arch;
    const oz_scheme *scheme = &r->item->scheme;
    *t = (trial){.reader = r, .rtn = oz_scheme_rtn(scheme, model_dtype), .input = scheme->act == OZ_ACT_VALUES ? scheme->input : by_act[scheme->act]};
    t->band = s->dev ? a->rows : scheme->block_rows > 0 ? scheme->block_rows : BAND;
    t->unit0 = s->n_units, t->n_units = (a->rows + t->band - 1) / t->band;
    s->n_units += t->n_units;
    const int64_t out = t->band * r->sample->n, rounding = 3 * a->cols, scratch = t->band * a->cols + (out > rounding ? out : rounding);
    if (scratch > s->scratch && !s->dev) s->scratch = scratch;
    t->squares = oz_alloc_array((size_t)r->sample->n, sizeof *t->squares);
    t->by = oz_alloc_array((size_t)a->cols, sizeof *t->by);
    t->token = oz_alloc_array((size_t)r->sample->n, sizeof *t->token);
    OZ_TRY(oz_big_new((void **)&t->x, (size_t)(r->sample->n * a->cols) * sizeof(float), a->module, err));
    return s->dev ? OZ_OK : oz_big_new((void **)&t->y, (size_t)(r->sample->n * a->rows) * sizeof(float), a->module, err);
}

/* The usual square of an output: the geometric mean, of those that are not zero. */
static void tokens_weigh(trial *t, oz_dev *dev) {
    const int64_t n = t->reader->sample->n, rows = t->reader->item->arch->rows;
    const double *squares = t->squares;
    double logs = 0, all = 0;
    int64_t live = 0;
    for (int64_t k = 0; k < n; k++)
        if (squares[k] > 0) logs += log(squares[k]), live++;
    const double usual = live ? exp(logs / (double)live) : 1;
    for (int64_t k = 0; k < n; k++) t->token[k] = (float)(1 / sqrt(squares[k] + usual)), all += squares[k] / (squares[k] + usual);
    if (dev) oz_dev_ops(dev)->calib->trial->weigh(dev, t->there, t->token);
    for (int64_t i = 0; i < rows * n && !dev; i++) t->y[i] *= t->token[i % n];
    t->weight = all > 0 ? (double)t->reader->sample->seen / all : 0;
}

static oz_status inputs_check(const oz_reader *r, oz_err *err) {
    for (int64_t c = 0; c < r->sample->width; c++)
        OZ_NEED(isfinite(r->sample->sum[c]), err, OZ_E_FORMAT, "%s: the calibration text gives activations that are not finite, the first in column %lld", r->item->arch->module, (long long)c);
    return OZ_OK;
}

static oz_status search_init(search *s, const oz_reader *readers, size_t n, const oz_quantize *q, oz_err *err) {
    const size_t n_threads = (size_t)oz_pool_threads(s->pool);
    s->trials = oz_alloc_array(n, sizeof *s->trials);
    for (size_t i = 0; i < n; i++) {
        OZ_TRY(inputs_check(&readers[i], err));
        OZ_TRY(trial_init(&s->trials[s->n++], &readers[i], s, q->model_dtype, err));
    }
    OZ_TRY(oz_big_new((void **)&s->mem, n_threads * (size_t)s->scratch * sizeof(float), readers[0].item->arch->module, err));
    s->sums = oz_alloc_array((size_t)s->n_units, sizeof *s->sums);
    s->ends = oz_alloc_array((size_t)s->n_units * 2, sizeof *s->ends);
    s->errs = oz_alloc_array(n_threads, sizeof *s->errs);
    OZ_TRY(phase_run(s, OUTPUTS, err));
    for (size_t i = 0; i < n; i++) tokens_weigh(&s->trials[i], s->dev);
    return OZ_OK;
}

static void search_deinit(search *s) {
    for (size_t i = 0; i < s->n; i++) {
        oz_big_free(s->trials[i].x);
        oz_big_free(s->trials[i].y);
        oz_free(s->trials[i].by);
        oz_free(s->trials[i].token);
        oz_free(s->trials[i].squares);
        if (s->trials[i].there) oz_dev_ops(s->dev)->calib->trial->close(s->dev, &s->trials[i].there);
    }
    oz_big_free(s->mem);
    oz_free(s->trials);
    oz_free(s->sums);
    oz_free(s->ends);
    oz_free(s->errs);
}

typedef struct found { double before, after, strength; bool balanced; } found;

/* ---- balance: from the best candidate on ---- */

enum { BALANCE_ROWS = 512 };

static double code_steps(const trial *t) {
    const oz_codec_info *codec = oz_codec_get(t->rtn.codec);
    return 1.0 / (t->rtn.bits ? (1 << t->rtn.bits) - 1 : codec->code_max - codec->code_min) * 2;
}

static void balance_init(oz_balance *b, const trial *t, const oz_fold *f) {
    const oz_quantize_item *it = t->reader->item;
    const oz_sample *x = t->reader->sample;
    const int64_t cols = it->arch->cols, every = (it->arch->rows + BALANCE_ROWS - 1) / BALANCE_ROWS, rows = (it->arch->rows + every - 1) / every;
    float *w = oz_alloc_array((size_t)(rows * cols), sizeof *w);
    double *x_squares = oz_alloc_array((size_t)cols, sizeof *x_squares), *w_squares = oz_alloc_array((size_t)f->n, sizeof *w_squares);
    int32_t *scale_of = oz_alloc_array((size_t)cols, sizeof *scale_of);
    float *rows_x = oz_alloc_array((size_t)(x->n * cols), sizeof *rows_x);
    for (int64_t i = 0; i < x->n * cols; i++) rows_x[i] = x->rows[i] * t->token[i / cols];
    for (int64_t c = 0; c < cols; c++) scale_of[c] = (int32_t)oz_fold_scale(f, c);
    for (int64_t r = 0; r < rows; r++) oz_item_fill((void *)it, w + r * cols, r * every * cols, cols);
    for (int64_t i = 0; i < rows * cols; i++) w_squares[scale_of[i % cols]] += (double)w[i] * (double)w[i];
    for (int64_t i = 0; i < x->n * cols; i++) x_squares[i % cols] += (double)rows_x[i] * (double)rows_x[i];
    *b = (oz_balance){.n = f->n, .n_tok = x->n, .rows = rows, .cols = cols, .group = t->rtn.group_size > 0 ? t->rtn.group_size : cols, .scale_of = scale_of, .x = rows_x, .w = w,
                      .x_squares = x_squares, .w_squares = w_squares, .input_step = t->input.bits ? 2.0 / ((1 << t->input.bits) - 2) : 0, .weight_step = code_steps(t), .weight = t->weight * (double)every};
}

static void balance_deinit(oz_balance *b) {
    oz_free((void *)b->scale_of);
    oz_free((void *)b->x);
    oz_free((void *)b->w);
    oz_free((void *)b->x_squares);
    oz_free((void *)b->w_squares);
}

/* best: replaced where the real rounding finds a better one on the way. */
static oz_status balance_try(float *best, found *out, search *s, const oz_quantize *q, const oz_quantize_fold *f, oz_err *err) {
    enum { ROUNDS = 3, STEPS = 12 };
    const size_t n = (size_t)f->of->n;
    float *at = oz_alloc_array(2 * n, sizeof *at), *settled = at + n;
    oz_balance *b = oz_alloc_array(s->n, sizeof *b);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < s->n; i++) balance_init(&b[i], &s->trials[i], f->of);
    memcpy(at, best, n * sizeof *at);
    for (int round = 0; round < ROUNDS && st == OZ_OK; round++) {
        double loss;
        oz_balance_run(at, b, s->n, STEPS, s->pool);
        memcpy(settled, at, n * sizeof *at);
        oz_fold_settle(settled, q, f);
        st = loss_of(&loss, s, settled, q, f, err);
        if (st != OZ_OK || !(loss < out->after)) continue;
        out->after = loss, out->balanced = true;
        memcpy(best, settled, n * sizeof *best);
    }
    for (size_t i = 0; i < s->n; i++) balance_deinit(&b[i]);
    oz_free(b);
    oz_free(at);
    return st;
}

static oz_status candidates_try(float *best, found *out, search *s, const oz_quantize *q, const oz_quantize_fold *f, oz_err *err) {
    oz_fold_stats stats;
    const size_t n = (size_t)f->of->n;
    float *scales = oz_alloc_array(n, sizeof *scales);
    oz_status st = stats_new(&stats, s, f->of, err);
    if (st == OZ_OK) st = loss_of(&out->before, s, best, q, f, err);
    if (st == OZ_OK && !isfinite(out->before)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "the errors of what reads it are beyond 32-bit floats: its weights or inputs are too large for them, or too small; --ignore leaves a module as it is");
    out->after = q->strength > 0 ? INFINITY : out->before;
    const unsigned variants = q->variants ? q->variants : (1u << q->transform->n_variants) - 1;
    const int n_grid = (q->n_grid ? q->n_grid : q->transform->n_grid) / __builtin_popcount(variants), steps = q->strength > 0 || n_grid < 1 ? 1 : n_grid;
    for (int v = 0; v < q->transform->n_variants; v++)
        for (int i = 1; i <= steps && variants >> v & 1 && st == OZ_OK; i++) {
            const double strength = q->strength > 0 ? q->strength : (double)i / steps;
            double loss;
            q->transform->scales(scales, &stats, strength, v);
            oz_fold_settle(scales, q, f);
            if ((st = loss_of(&loss, s, scales, q, f, err)) != OZ_OK || !(loss < out->after)) continue;
            *out = (found){out->before, loss, strength, false};
            memcpy(best, scales, n * sizeof *best);
        }
    if (st == OZ_OK && !(q->strength > 0)) st = balance_try(best, out, s, q, f, err);
    oz_free(stats.x_max);
    oz_free(scales);
    return st;
}

oz_status oz_smooth_choose(float *s, json_t **entry, const oz_quantize *q, const oz_quantize_fold *f, const oz_reader *readers, size_t n, oz_pool *pool, oz_dev *dev, oz_err *err) {
    const char *from = q->items[f->of->from].arch->module;
    search w = {.pool = pool, .dev = dev};
    found r = {0};
    for (int64_t k = 0; k < f->of->n; k++) s[k] = 1;
    oz_fold_settle(s, q, f);
    oz_status st = n ? search_init(&w, readers, n, q, err) : OZ_OK;
    if (st == OZ_OK && n) st = candidates_try(s, &r, &w, q, f, err);
    search_deinit(&w);
    if (st != OZ_OK) return st == OZ_E_INTERRUPTED ? st : oz_err_prefix(err, "%s", from);
    json_t *names = json_array();
    for (size_t i = 0; i < f->of->n_to; i++) json_array_append_new(names, json_string(q->items[f->of->to[i]].arch->module));
    *entry = json_pack("{s:s, s:o, s:f, s:b, s:n, s:n}", "from", from, "modules", names, "strength", r.strength, "balanced", r.balanced, "before", "after");
    if (n) json_object_set_new(*entry, "before", json_real(r.before)), json_object_set_new(*entry, "after", json_real(r.after));
    if (!n) oz_log_info("%s: the calibration text gives what reads it no input: its scales stay", from);
    else oz_log_info("%s: scales %s strength %.2f: output error %.4g, without them %.4g", from, r.balanced ? "that balance the roundings, from those by" : "by", r.strength, r.after, r.before);
    return OZ_OK;
}
