/* The two ways in which a tensor is made, as plain floats or as codes and scales, chunk by chunk; and the third, a copy. */
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
    int64_t begin, piece; /* of the chunk in the tensor; values a thread makes at once */
    size_t value_bytes;
    oz_fill_fn *fill;
    void *arg;
} job;

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
        }
    }
}

oz_status oz_stream_put(oz_stream *s, const char *name, oz_dtype to, int64_t n, int64_t grain, oz_fill_fn *fill, void *arg, oz_err *err) {
    const size_t value_bytes = (size_t)oz_dtype_get(to)->block_bytes;
    const int64_t piece = whole(PIECE, grain), chunk = whole(CHUNK, piece);
    int64_t need = n < chunk ? n : chunk;
    OZ_TRY(reserve(&s->chunk, &s->chunk_bytes, (size_t)need * value_bytes, name, err));
    OZ_TRY(reserve((void **)&s->scratch, &s->scratch_bytes, (size_t)piece * sizeof(float) * (size_t)oz_pool_threads(s->pool), name, err));
    for (int64_t at = 0; at < n; at += chunk) {
        int64_t now = n - at < chunk ? n - at : chunk;
        job j = {s, to, at, piece, value_bytes, fill, arg};
        oz_pool_run(s->pool, now, piece, fill_range, &j);
        OZ_TRY(oz_writer_put(s->writer, name, (size_t)at * value_bytes, s->chunk, (size_t)now * value_bytes, err));
        OZ_TRY(wrote(s, (size_t)now * value_bytes));
    }
    return OZ_OK;
}

/* ---- quantized ---- */

/* Some rows of one module. */
typedef struct rtn_chunk {
    const oz_stream *s;
    oz_rtn rtn;
    int64_t cols, row0, code_bytes, scale_bytes; /* bytes of a row */
    oz_fill_fn *fill;
    void *arg;
    oz_err *errs; /* one a thread */
} rtn_chunk;

static void quantize_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const rtn_chunk *c = arg;
    float *row = c->s->scratch + thread * c->cols;
    for (int64_t i = begin; i < end; i++) {
        void *codes = (char *)c->s->chunk + i * c->code_bytes, *scales = (char *)c->s->scales + i * c->scale_bytes;
        c->fill(c->arg, row, (c->row0 + i) * c->cols, c->cols);
        if (oz_rtn_row(codes, scales, &c->rtn, row, c->cols, &c->errs[thread]) == OZ_OK) continue;
        oz_err_prefix(&c->errs[thread], "row %lld", (long long)(c->row0 + i));
        return;
    }
}

static oz_status put_part(oz_stream *s, const oz_module *m, const oz_part *part, int64_t offset, const void *data, int64_t n_bytes,
                          oz_err *err) {
    char *name = oz_asprintf("%s%s", m->name, part->suffix);
    oz_status st = oz_writer_put(s->writer, name, (size_t)offset, data, (size_t)n_bytes, err);
    oz_free(name);
    return st == OZ_OK ? wrote(s, (size_t)n_bytes) : st;
}

static oz_status put_rows(oz_stream *s, rtn_chunk *c, const oz_module *m, const oz_part *parts, int64_t n_rows, oz_err *err) {
    for (c->row0 = 0; c->row0 < m->rows; c->row0 += n_rows) {
        const int64_t n = m->rows - c->row0 < n_rows ? m->rows - c->row0 : n_rows;
        oz_pool_run(s->pool, n, 1, quantize_rows, c);
        for (int t = 0; t < oz_pool_threads(s->pool); t++) OZ_NEED(c->errs[t].code == OZ_OK, err, c->errs[t].code, "%s", c->errs[t].msg);
        OZ_TRY(put_part(s, m, &parts[0], c->row0 * c->code_bytes, s->chunk, n * c->code_bytes, err));
        OZ_TRY(put_part(s, m, &parts[1], c->row0 * c->scale_bytes, s->scales, n * c->scale_bytes, err));
    }
    return OZ_OK;
}

oz_status oz_stream_rtn(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype model_dtype, oz_fill_fn *fill, void *arg,
                        oz_err *err) {
    oz_part parts[OZ_MAX_PARTS];
    const int n_parts = oz_scheme_parts(parts, scheme, m->rows, m->cols, model_dtype), n_threads = oz_pool_threads(s->pool);
    const int64_t n_rows = CHUNK / m->cols + 1 < m->rows ? CHUNK / m->cols + 1 : m->rows;
    rtn_chunk c = {.s = s, .rtn = {scheme->codec, scheme->group_size, model_dtype}, .cols = m->cols, .fill = fill, .arg = arg};
    c.code_bytes = oz_codec_row_bytes(scheme->codec, m->cols);
    c.scale_bytes = parts[1].dims[1] * oz_dtype_get(model_dtype)->block_bytes;
    OZ_TRY(reserve(&s->chunk, &s->chunk_bytes, (size_t)(n_rows * c.code_bytes), m->name, err));
    OZ_TRY(reserve(&s->scales, &s->scales_bytes, (size_t)(n_rows * c.scale_bytes), m->name, err));
    OZ_TRY(reserve((void **)&s->scratch, &s->scratch_bytes, (size_t)n_threads * (size_t)m->cols * sizeof(float), m->name, err));
    c.errs = oz_alloc_array((size_t)n_threads, sizeof *c.errs);
    oz_status st = put_rows(s, &c, m, parts, n_rows, err);
    if (st == OZ_OK && n_parts > 2) st = put_part(s, m, &parts[2], 0, (const int64_t[]){m->rows, m->cols}, 16, err);
    oz_free(c.errs);
    return st;
}

oz_status oz_stream_module(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype model_dtype, const void *codes, const void *scales,
                           oz_err *err) {
    oz_part parts[OZ_MAX_PARTS];
    const int64_t shape[] = {m->rows, m->cols};
    const void *data[OZ_MAX_PARTS] = {codes, scales, shape};
    const int n = oz_scheme_parts(parts, scheme, m->rows, m->cols, model_dtype);
    for (int i = 0; i < n; i++) {
        size_t n_bytes;
        oz_dtype_bytes(&n_bytes, parts[i].dtype, parts[i].dims[0] * (parts[i].n_dims > 1 ? parts[i].dims[1] : 1));
        OZ_TRY(put_part(s, m, &parts[i], 0, data[i], (int64_t)n_bytes, err));
    }
    return OZ_OK;
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
