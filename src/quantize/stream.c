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

oz_status oz_stream_wrote(oz_stream *s, size_t n_bytes) {
    s->done_bytes += (int64_t)n_bytes;
    oz_progress_step(&s->progress, s->done_bytes);
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
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
        OZ_TRY(oz_stream_wrote(s, (size_t)now * value_bytes));
    }
    return OZ_OK;
}

oz_status oz_stream_copy(oz_stream *s, const char *name, const void *data, size_t n_bytes, oz_err *err) {
    const size_t step = (size_t)CHUNK * 4;
    for (size_t at = 0; at < n_bytes; at += step) {
        size_t now = n_bytes - at < step ? n_bytes - at : step;
        OZ_TRY(oz_writer_put(s->writer, name, at, (const char *)data + at, now, err));
        OZ_TRY(oz_stream_wrote(s, now));
    }
    return OZ_OK;
}
