/* The ways in which tensors are made, chunk by chunk: one as plain floats, those of a quantized module out of numbers that a function gives band by band, and a copy. */
#include <math.h>
#include "base/file.h"
#include "base/mem.h"
#include "quantize/internal.h"

enum { PIECE = 4096, CHUNK = 2 << 20 }; /* values a thread makes at once; values a write takes */

void oz_stream_init(oz_stream *s, oz_writer *w, oz_pool *pool, const char *what, int64_t total_bytes) {
    *s = (oz_stream){.writer = w, .pool = pool};
    oz_progress_init(&s->progress, what, "B", total_bytes);
}

void oz_stream_deinit(oz_stream *s) {
    oz_progress_deinit(&s->progress);
    oz_big_free(s->chunk);
    oz_big_free(s->scales);
    oz_big_free(s->scratch);
    *s = (oz_stream){0};
}

/* n rounded up to a multiple of grain. */
static int64_t whole(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

static oz_status reserve(void **p, size_t *have, size_t need, const char *name, oz_err *err) {
    if (*have >= need) return OZ_OK;
    oz_big_free(*p);
    *p = NULL;
    *have = 0;
    OZ_TRY(oz_big_new(p, need, name, err));
    *have = need;
    return OZ_OK;
}

static oz_status wrote(oz_stream *s, size_t n_bytes) {
    s->done_bytes += (int64_t)n_bytes;
    oz_progress_step(&s->progress, s->done_bytes);
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

/* ---- plain floats ---- */

typedef struct job {
    const oz_stream *s;
    oz_dtype to;
    float least; /* of what is rounded to infinity */
    int64_t *past; /* one a thread: the first value that is, or -1 */
    int64_t begin, piece; /* of the chunk in the tensor; values a thread makes at once */
    size_t value_bytes;
    oz_fill_fn *fill;
    void *arg;
} job;

static bool any_past(const float *x, int64_t n, float least) {
    int past = 0;
    for (int64_t i = 0; i < n; i++) past |= (fabsf(x[i]) >= least) & (fabsf(x[i]) < INFINITY);
    return past;
}

static void note_past(const job *j, int thread, const float *x, int64_t begin, int64_t n) {
    if (!any_past(x, n, j->least) || j->past[thread] >= 0) return;
    int64_t i = 0;
    while (!any_past(x + i, 1, j->least)) i++;
    j->past[thread] = begin + i;
}

static void fill_range(void *arg, int thread, int64_t begin, int64_t end) {
    const job *j = arg;
    float *scratch = j->s->scratch + (int64_t)thread * j->piece;
    for (int64_t at = begin; at < end; at += j->piece) {
        int64_t n = end - at < j->piece ? end - at : j->piece;
        void *dst = (char *)j->s->chunk + (size_t)at * j->value_bytes;
        if (j->to == OZ_DTYPE_F32) {
            j->fill(j->arg, dst, j->begin + at, n);
        } else {
            j->fill(j->arg, scratch, j->begin + at, n);
            oz_from_f32(dst, j->to, scratch, n);
            note_past(j, thread, scratch, j->begin + at, n);
        }
    }
}

oz_status oz_stream_put(oz_stream *s, const char *name, oz_dtype to, int64_t n, int64_t grain, oz_fill_fn *fill, void *arg, oz_err *err) {
    const size_t value_bytes = (size_t)oz_dtype_get(to)->block_bytes;
    const int64_t piece = whole(PIECE, grain), chunk = whole(CHUNK, piece);
    int64_t need = n < chunk ? n : chunk;
    OZ_TRY(reserve(&s->chunk, &s->chunk_bytes, (size_t)need * value_bytes, name, err));
    OZ_TRY(reserve((void **)&s->scratch, &s->scratch_bytes, (size_t)piece * sizeof(float) * (size_t)oz_pool_threads(s->pool), name, err));
    const int n_threads = oz_pool_threads(s->pool);
    int64_t *past = oz_alloc_array((size_t)n_threads, sizeof *past);
    for (int t = 0; t < n_threads; t++) past[t] = -1;
    oz_status st = OZ_OK;
    for (int64_t at = 0; at < n && st == OZ_OK; at += chunk) {
        int64_t now = n - at < chunk ? n - at : chunk;
        job j = {s, to, to == OZ_DTYPE_F16 ? 65520.0f : to == OZ_DTYPE_BF16 ? 0x1.ffp127f : INFINITY, past, at, piece, value_bytes, fill, arg};
        oz_pool_run(s->pool, now, piece, fill_range, &j);
        for (int t = 0; t < n_threads && st == OZ_OK; t++)
            if (past[t] >= 0) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: value %lld (row-major) is past the largest of %s", name, (long long)past[t], oz_dtype_get(to)->name);
        if (st == OZ_OK) st = oz_writer_put(s->writer, name, (size_t)at * value_bytes, s->chunk, (size_t)now * value_bytes, err);
        if (st == OZ_OK) st = wrote(s, (size_t)now * value_bytes);
    }
    oz_free(past);
    return st;
}

/* ---- quantized ---- */

static size_t part_bytes(const oz_part *p) {
    size_t n_bytes;
    oz_dtype_bytes(&n_bytes, p->dtype, p->dims[0] * (p->n_dims > 1 ? p->dims[1] : 1));
    return n_bytes;
}

static oz_status put_part(oz_stream *s, const oz_module *m, const oz_part *part, int64_t offset, const void *data, int64_t n_bytes,
                          oz_err *err) {
    char *name = oz_asprintf("%s%s", m->name, part->suffix);
    oz_status st = oz_writer_put(s->writer, name, (size_t)offset, data, (size_t)n_bytes, err);
    oz_free(name);
    return st == OZ_OK ? wrote(s, (size_t)n_bytes) : st;
}

/* Some rows of one module; a band is as many of them as share scales. */
typedef struct chunk {
    const oz_stream *s;
    const oz_scheme *scheme;
    const oz_made *made;
    oz_part parts[OZ_MAX_PARTS];
    int n_parts;
    int64_t cols, row0, n_rows, band_rows, n_groups, code_bytes, scale_bytes, scratch; /* bytes of a row, and of a band's scales; floats of a thread */
    oz_dtype scale_dtype;
    int8_t *zeros;  /* behind the scales, a band after the other */
    oz_err *errs;   /* one a thread */
} chunk;

static void make_bands(void *arg, int thread, int64_t begin, int64_t end) {
    const chunk *c = arg;
    oz_err *err = &c->errs[thread];
    oz_band b = {.codes = c->s->scratch + thread * c->scratch};
    b.scales = b.codes + c->band_rows * c->cols, b.zeros = b.scales + c->n_groups;
    for (int64_t i = begin; i < end && err->code == OZ_OK; i++) {
        const int64_t at = i * c->band_rows;
        b.row0 = c->row0 + at, b.n_rows = c->n_rows - at < c->band_rows ? c->n_rows - at : c->band_rows;
        for (int64_t g = 0; g < c->n_groups; g++) b.zeros[g] = 0;
        if (c->made->band(c->made->arg, &b, err) != OZ_OK) return;
        for (int64_t r = 0; r < b.n_rows; r++) oz_codes_store((char *)c->s->chunk + (at + r) * c->code_bytes, c->scheme->codec, b.codes + r * c->cols, c->cols);
        oz_from_f32((char *)c->s->scales + i * c->scale_bytes, c->scale_dtype, b.scales, c->n_groups);
        for (int64_t g = 0; g < c->n_groups; g++) c->zeros[i * c->n_groups + g] = (int8_t)b.zeros[g];
    }
}

/* Zero points as fields of words that run down the rows. Chunks begin at multiples of 32 rows, so at a whole word. */
static oz_status put_zero_fields(oz_stream *s, const chunk *c, const oz_module *m, const oz_part *p, oz_err *err) {
    const oz_codec_info *codec = oz_codec_get(c->scheme->codec);
    const int64_t n = c->n_groups, words = oz_field_words(codec->bits, codec->order, c->n_rows);
    uint32_t *out = oz_alloc_array((size_t)(words * n), sizeof *out);
    for (int64_t r = 0; r < c->n_rows; r++)
        for (int64_t g = 0; g < n; g++) oz_field_put(out + g, n * 4, codec->bits, codec->order, r, (uint32_t)(c->zeros[r * n + g] - codec->code_min));
    oz_status st = put_part(s, m, p, oz_field_words(codec->bits, codec->order, c->row0) * n * 4, out, words * n * 4, err);
    oz_free(out);
    return st;
}

/* What grows with the rows. */
static oz_status put_rows(oz_stream *s, const chunk *c, const oz_module *m, oz_err *err) {
    const int64_t one = c->scheme->per_tensor, band0 = c->row0 / c->band_rows, bands = one ? band0 == 0 : (c->n_rows + c->band_rows - 1) / c->band_rows;
    for (int i = 0; i < c->n_parts; i++) {
        const oz_part *p = &c->parts[i];
        if (p->kind == OZ_PART_CODES) OZ_TRY(put_part(s, m, p, c->row0 * c->code_bytes, s->chunk, c->n_rows * c->code_bytes, err));
        else if (p->kind == OZ_PART_SCALE && bands) OZ_TRY(put_part(s, m, p, band0 * c->scale_bytes, s->scales, bands * c->scale_bytes, err));
        else if (p->kind == OZ_PART_ZERO && p->dtype == OZ_DTYPE_I32) OZ_TRY(put_zero_fields(s, c, m, p, err));
        else if (p->kind == OZ_PART_ZERO && bands) OZ_TRY(put_part(s, m, p, band0 * c->n_groups, c->zeros, bands * c->n_groups, err));
    }
    return OZ_OK;
}

/* What does not. */
static oz_status put_rest(oz_stream *s, const chunk *c, const oz_module *m, oz_err *err) {
    const int64_t shape[] = {m->rows, m->cols};
    for (int i = 0; i < c->n_parts; i++) {
        const oz_part *p = &c->parts[i];
        uint8_t scale[4];
        if (p->kind == OZ_PART_SHAPE) OZ_TRY(put_part(s, m, p, 0, shape, sizeof shape, err));
        if (p->kind == OZ_PART_G_IDX) OZ_TRY(put_part(s, m, p, 0, c->made->g_idx, m->cols * 4, err));
        if (p->kind == OZ_PART_DIVISOR) OZ_TRY(put_part(s, m, p, 0, &c->made->divisor, 4, err));
        if (p->kind == OZ_PART_INPUT_ZERO) OZ_TRY(put_part(s, m, p, 0, &c->made->input_zero, 1, err));
        if (p->kind != OZ_PART_INPUT_SCALE) continue;
        oz_from_f32(scale, p->dtype, &c->made->input_scale, 1);
        OZ_TRY(put_part(s, m, p, 0, scale, (int64_t)part_bytes(p), err));
    }
    return OZ_OK;
}

static oz_status put_chunks(oz_stream *s, chunk *c, const oz_module *m, int64_t rows, oz_err *err) {
    for (c->row0 = 0; c->row0 < m->rows; c->row0 += rows) {
        c->n_rows = m->rows - c->row0 < rows ? m->rows - c->row0 : rows;
        oz_pool_run(s->pool, (c->n_rows + c->band_rows - 1) / c->band_rows, 1, make_bands, c);
        for (int t = 0; t < oz_pool_threads(s->pool); t++) OZ_NEED(c->errs[t].code == OZ_OK, err, c->errs[t].code, "%s", c->errs[t].msg);
        OZ_TRY(put_rows(s, c, m, err));
    }
    return put_rest(s, c, m, err);
}

oz_status oz_stream_made(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype scale_dtype, const oz_made *made, oz_err *err) {
    const int n_threads = oz_pool_threads(s->pool);
    chunk c = {.s = s, .scheme = scheme, .made = made, .cols = m->cols, .band_rows = scheme->block_rows > 0 ? scheme->block_rows : 1};
    c.n_parts = oz_scheme_parts(c.parts, scheme, m->rows, m->cols, scale_dtype);
    for (int i = 0; i < c.n_parts; i++)
        if (c.parts[i].kind == OZ_PART_SCALE) c.n_groups = c.parts[i].n_dims > 1 ? c.parts[i].dims[1] : 1, c.scale_dtype = c.parts[i].dtype == OZ_DTYPE_U8 ? OZ_DTYPE_F8_E8M0 : c.parts[i].dtype;
    c.code_bytes = oz_codec_row_bytes(scheme->codec, m->cols);
    c.scale_bytes = c.n_groups * oz_dtype_get(c.scale_dtype)->block_bytes;
    c.scratch = c.band_rows * m->cols + 2 * c.n_groups;
    const int64_t rows = whole(CHUNK / m->cols + 1, c.band_rows > 1 ? c.band_rows : 32), bands = rows / c.band_rows;
    OZ_TRY(reserve(&s->chunk, &s->chunk_bytes, (size_t)(rows * c.code_bytes), m->name, err));
    OZ_TRY(reserve(&s->scales, &s->scales_bytes, (size_t)(bands * (c.scale_bytes + c.n_groups)), m->name, err));
    OZ_TRY(reserve((void **)&s->scratch, &s->scratch_bytes, (size_t)n_threads * (size_t)c.scratch * sizeof(float), m->name, err));
    c.zeros = (int8_t *)s->scales + bands * c.scale_bytes;
    c.errs = oz_alloc_array((size_t)n_threads, sizeof *c.errs);
    oz_status st = put_chunks(s, &c, m, rows, err);
    oz_free(c.errs);
    return st;
}

/* ---- rounded to nearest ---- */

typedef struct rtn {
    oz_rtn how;
    int64_t cols;
    const oz_source *source;
    bool one; /* these are for all rows */
    float scale, zero;
} rtn;

static oz_status observe(float *min, float *max, const rtn *q, int64_t row, const float *values, oz_err *err) {
    if (oz_rtn_observe(min, max, &q->how, values, q->cols, err) != OZ_OK) return oz_err_prefix(err, "row %lld", (long long)row);
    return OZ_OK;
}

/* The ranges lie where zero points and scales will. */
static oz_status rtn_band(void *arg, const oz_band *b, oz_err *err) {
    const rtn *q = arg;
    const int64_t n_groups = q->how.group_size > 0 ? (q->cols + q->how.group_size - 1) / q->how.group_size : 1;
    q->source->fill(q->source->arg, b->codes, b->row0 * q->cols, b->n_rows * q->cols);
    for (int64_t g = 0; g < n_groups; g++) b->scales[g] = 0;
    for (int64_t r = 0; r < b->n_rows && !q->one; r++) OZ_TRY(observe(b->zeros, b->scales, q, b->row0 + r, b->codes + r * q->cols, err));
    for (int64_t g = 0; g < n_groups && !q->one; g++)
        if (oz_rtn_scale(&b->scales[g], &b->zeros[g], &q->how, b->zeros[g], b->scales[g], err) != OZ_OK) return oz_err_prefix(err, "row %lld", (long long)b->row0);
    if (q->one) b->scales[0] = q->scale, b->zeros[0] = q->zero;
    for (int64_t r = 0; r < b->n_rows; r++) oz_rtn_codes(b->codes + r * q->cols, &q->how, b->scales, b->zeros, b->codes + r * q->cols, q->cols);
    return OZ_OK;
}

/* The range of all rows: a part of them a thread. */
typedef struct range { const rtn *q; float *scratch, *min, *max; oz_err *errs; } range;

static void range_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const range *r = arg;
    float *row = r->scratch + thread * r->q->cols;
    for (int64_t i = begin; i < end; i++) {
        r->q->source->fill(r->q->source->arg, row, i * r->q->cols, r->q->cols);
        if (observe(&r->min[thread], &r->max[thread], r->q, i, row, &r->errs[thread]) != OZ_OK) return;
    }
}

static oz_status rtn_one(rtn *q, oz_stream *s, const oz_module *m, oz_err *err) {
    const int n = oz_pool_threads(s->pool);
    OZ_TRY(reserve((void **)&s->scratch, &s->scratch_bytes, (size_t)n * (size_t)m->cols * sizeof(float), m->name, err));
    float *ends = oz_alloc_array(2 * (size_t)n, sizeof *ends), min = 0, max = 0;
    range r = {q, s->scratch, ends, ends + n, oz_alloc_array((size_t)n, sizeof *r.errs)};
    oz_pool_run(s->pool, m->rows, 1, range_rows, &r);
    oz_status st = OZ_OK;
    for (int t = 0; t < n && st == OZ_OK; t++) {
        if (r.errs[t].code != OZ_OK) st = oz_err_set(err, r.errs[t].code, __FILE__, __LINE__, "%s", r.errs[t].msg);
        min = r.min[t] < min ? r.min[t] : min, max = r.max[t] > max ? r.max[t] : max;
    }
    q->one = true;
    if (st == OZ_OK) st = oz_rtn_scale(&q->scale, &q->zero, &q->how, min, max, err);
    oz_free(r.errs);
    oz_free(ends);
    return st;
}

oz_status oz_stream_rtn(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype model_dtype, const oz_source *source, oz_err *err) {
    rtn q = {.how = oz_scheme_rtn(scheme, model_dtype), .cols = m->cols, .source = source};
    if (scheme->per_tensor) OZ_TRY(rtn_one(&q, s, m, err));
    return oz_stream_made(s, m, scheme, model_dtype, &(oz_made){.band = rtn_band, .arg = &q, .input_scale = source->input_scale, .input_zero = source->input_zero}, err);
}

/* ---- as it is ---- */

oz_status oz_stream_copy(oz_stream *s, const char *name, const void *data, size_t n_bytes, oz_err *err) {
    const size_t step = (size_t)CHUNK * 4;
    for (size_t at = 0; at < n_bytes; at += step) {
        size_t now = n_bytes - at < step ? n_bytes - at : step;
        OZ_TRY(oz_writer_put(s->writer, name, at, (const char *)data + at, now, err));
        OZ_TRY(wrote(s, now));
    }
    return OZ_OK;
}
