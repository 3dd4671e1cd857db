/* What the makers of checkpoints share: a tensor is filled in chunks by all threads, written, and forgotten. */
#ifndef OZ_QUANTIZE_INTERNAL_H
#define OZ_QUANTIZE_INTERNAL_H
#include "base/progress.h"
#include "quantize/quantize.h"

/* Values [begin, begin + n) of a tensor in f32; called by several threads at once for different ranges. */
typedef void oz_fill_fn(void *arg, float *dst, int64_t begin, int64_t n);

typedef struct oz_stream {
    oz_writer *writer;
    oz_pool *pool;
    oz_progress progress; /* in bytes */
    int64_t done_bytes;
    void *chunk, *scales; /* of the output */
    float *scratch;       /* one piece a thread */
    size_t chunk_bytes, scales_bytes, scratch_bytes;
} oz_stream;
/* total_bytes: of all that will be written. */
void oz_stream_init(oz_stream *s, oz_writer *w, oz_pool *pool, const char *what, int64_t total_bytes);
void oz_stream_deinit(oz_stream *s);
/* n values of the tensor `name` as `to` (F32, F16, BF16). Ranges begin at multiples of `grain`, and all but the last have a
 * multiple of it: a block, or a row. */
oz_status oz_stream_put(oz_stream *s, const char *name, oz_dtype to, int64_t n, int64_t grain, oz_fill_fn *fill, void *arg, oz_err *err);
/* The tensors of a module under a quantized scheme, rounded to nearest. fill is asked for whole rows. OZ_E_FORMAT: a value that cannot be
 * quantized; the message names row and column. */
oz_status oz_stream_rtn(oz_stream *s, const oz_module *m, const oz_scheme *scheme, oz_dtype model_dtype, oz_fill_fn *fill, void *arg, oz_err *err);
/* A tensor as it is. */
oz_status oz_stream_copy(oz_stream *s, const char *name, const void *data, size_t n_bytes, oz_err *err);

#endif
