/* The reader of one safetensors file: u64 length of the header (little endian), the header as JSON, then the data.
 * The header is an object: tensor name to {"dtype", "shape", "data_offsets"}, and "__metadata__", strings to strings.
 *
 * The file is taken only if its tensors cover the data exactly: sorted by offset each begins where the one before it ended, the
 * first at 0, the last at the end of the file. That leaves no byte that two tensors share, and none that nobody describes.
 * The parsed header is dropped after loading: a tensor costs its row in the checkpoint and its name. Source: the format's description. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_LIMIT = 100 * 1000 * 1000 }; /* the reference reader's own; a header beyond it is no header */

/* A tensor's bytes within the data. */
typedef struct span {
    size_t begin, end, tensor;
} span;

typedef struct reader {
    oz_ckpt *ckpt;
    const char *file;
    const uint8_t *data;
    size_t n_data;
    span *spans; /* of the tensors read so far */
    size_t n_spans;
    bool is_partial; /* some were left out */
} reader;

static uint64_t read_u64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static oz_status metadata_check(const json_t *meta, const char *file, oz_err *err) {
    const char *key;
    json_t *value;
    OZ_NEED(json_is_object(meta), err, OZ_E_FORMAT, "__metadata__: must be an object, found %s (%s)", oz_json_show(meta), file);
    json_object_foreach((json_t *)meta, key, value) {
        OZ_NEED(json_is_string(value), err, OZ_E_FORMAT, "__metadata__.%s: must be a string, found %s (%s)", key, oz_json_show(value),
                file);
    }
    return OZ_OK;
}

/* Other readers refuse a file that does not say whose tensors these are; this one does not need it. */
static void format_check(const reader *r, const json_t *header) {
    if (r->ckpt->f && !json_object_get(json_object_get(header, "__metadata__"), "format"))
        oz_found_warning(r->ckpt->f, "%s: __metadata__.format: expected \"pt\", which transformers asks for, found none", r->file);
}

static oz_status members_check(const json_t *info, const char *name, const char *file, oz_err *err) {
    const char *key;
    json_t *value;
    OZ_NEED(json_is_object(info), err, OZ_E_FORMAT, "%s: must be an object, found %s (%s)", name, oz_json_show(info), file);
    json_object_foreach((json_t *)info, key, value) {
        bool known = !strcmp(key, "dtype") || !strcmp(key, "shape") || !strcmp(key, "data_offsets");
        OZ_NEED(known, err, OZ_E_FORMAT, "%s.%s: unknown member; a tensor has dtype, shape and data_offsets (%s)", name, key, file);
    }
    return OZ_OK;
}

static oz_status dtype_read(oz_tensor *t, const json_t *info, oz_err *err) {
    const char *name = "nothing";
    if (oz_json_str(&name, info, t->name, "dtype", err) != OZ_OK) return oz_err_prefix(err, "%s", t->file_name);
    OZ_NEED(oz_dtype_parse(&t->dtype, name) && oz_dtype_get(t->dtype)->in_safetensors, err, OZ_E_FORMAT,
            "%s.dtype: must be the name of a type, found %s (%s)", t->name, name, t->file_name);
    return OZ_OK;
}

/* dims, and the bytes that they need. */
static oz_status shape_read(oz_tensor *t, const json_t *info, oz_err *err) {
    const json_t *shape = json_object_get(info, "shape");
    OZ_NEED(json_is_array(shape), err, OZ_E_FORMAT, "%s.shape: must be an array, found %s (%s)", t->name, oz_json_show(shape),
            t->file_name);
    size_t n = json_array_size(shape);
    OZ_NEED(n <= OZ_MAX_DIMS, err, OZ_E_UNSUPPORTED, "%s.shape: at most %d dimensions are supported, found %zu (%s)", t->name, OZ_MAX_DIMS,
            n, t->file_name);
    int64_t count = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        OZ_NEED(json_is_integer(d) && json_integer_value(d) >= 0, err, OZ_E_FORMAT,
                "%s.shape[%zu]: must be an integer of 0 or more, found %s (%s)", t->name, i, oz_json_show(d), t->file_name);
        t->dims[i] = json_integer_value(d);
        OZ_NEED(oz_mul_i64(&count, count, t->dims[i]), err, OZ_E_FORMAT, "%s.shape: the number of elements of %s overflows (%s)", t->name,
                oz_json_show(shape), t->file_name);
    }
    t->n_dims = (int)n;
    OZ_NEED(oz_dtype_bytes(&t->n_bytes, t->dtype, count), err, OZ_E_FORMAT, "%s.shape: the size in bytes of %s overflows (%s)", t->name,
            oz_json_show(shape), t->file_name);
    return OZ_OK;
}

static oz_status offsets_read(span *s, const oz_tensor *t, const json_t *info, size_t n_data, oz_err *err) {
    const json_t *v = json_object_get(info, "data_offsets"), *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    bool ok = json_array_size(v) == 2 && json_is_integer(b) && json_is_integer(e);
    ok = ok && json_integer_value(b) >= 0 && json_integer_value(b) <= json_integer_value(e);
    OZ_NEED(ok, err, OZ_E_FORMAT, "%s.data_offsets: must be two integers, 0 <= begin <= end, found %s (%s)", t->name, oz_json_show(v),
            t->file_name);
    s->begin = (size_t)json_integer_value(b);
    s->end = (size_t)json_integer_value(e);
    OZ_NEED(s->end <= n_data, err, OZ_E_FORMAT,
            "%s.data_offsets: end at %zu, but the file holds %zu bytes of data: it is cut off or damaged (%s)", t->name, s->end, n_data,
            t->file_name);
    OZ_NEED(s->end - s->begin == t->n_bytes, err, OZ_E_FORMAT, "%s: shape %s of %s needs %zu bytes, data_offsets span %zu (%s)", t->name,
            oz_json_show(json_object_get(info, "shape")), oz_dtype_get(t->dtype)->name, t->n_bytes, s->end - s->begin, t->file_name);
    return OZ_OK;
}

static oz_status tensor_read(reader *r, const char *name, const json_t *info, oz_err *err) {
    oz_tensor t = {.name = name, .file_name = r->file};
    span *s = &r->spans[r->n_spans];
    OZ_TRY(members_check(info, name, r->file, err));
    OZ_TRY(dtype_read(&t, info, err));
    OZ_TRY(shape_read(&t, info, err));
    OZ_TRY(offsets_read(s, &t, info, r->n_data, err));
    t.data = r->data + s->begin;
    s->tensor = r->ckpt->n_tensors;
    r->n_spans++;
    return oz_ckpt_add(r->ckpt, &t, err);
}

static int span_compare(const void *pa, const void *pb) {
    const span *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end; /* a tensor without bytes stands before the one that begins there */
}

/* Span i begins where `last`, which ends at `at`, ended. */
static oz_status next_check(const reader *r, size_t i, size_t last, size_t at, oz_err *err) {
    const oz_tensor *tensors = r->ckpt->tensors;
    const span *s = &r->spans[i];
    const char *name = tensors[s->tensor].name;
    OZ_NEED(s->begin >= at, err, OZ_E_FORMAT, "%s: its data begins at %zu, inside %s, which ends at %zu (%s)", name, s->begin,
            tensors[r->spans[last].tensor].name, at, r->file);
    OZ_NEED(s->begin == at, err, OZ_E_FORMAT, "%s: its data begins at %zu, expected %zu: the bytes before it belong to no tensor (%s)",
            name, s->begin, at, r->file);
    return OZ_OK;
}

static oz_status cover_check(reader *r, oz_err *err) {
    size_t at = 0, last = 0;
    qsort(r->spans, r->n_spans, sizeof *r->spans, span_compare);
    for (size_t i = 0; i < r->n_spans; i++) {
        OZ_TRY(oz_found(r->ckpt->f, next_check(r, i, last, at, err), err));
        if (r->spans[i].end >= at) at = r->spans[i].end, last = i;
    }
    OZ_NEED(at == r->n_data, err, OZ_E_FORMAT, "%s: the last tensor ends at %zu, the file holds %zu bytes of data", r->file, at, r->n_data);
    return OZ_OK;
}

static oz_status header_read(reader *r, const json_t *header, oz_err *err) {
    const char *name;
    json_t *info;
    format_check(r, header);
    json_object_foreach((json_t *)header, name, info) {
        const bool is_tensor = strcmp(name, "__metadata__") != 0;
        const oz_status st = is_tensor ? tensor_read(r, name, info, err) : metadata_check(info, r->file, err);
        r->is_partial |= is_tensor && st != OZ_OK;
        OZ_TRY(oz_found(r->ckpt->f, st, err));
    }
    return r->is_partial ? OZ_OK : cover_check(r, err);
}

oz_status oz_safetensors_load(oz_ckpt *c, const oz_mmap *m, const char *file_name, oz_err *err) {
    OZ_NEED(m->n_bytes > 0, err, OZ_E_FORMAT, "%s: the file is empty", file_name);
    OZ_NEED(m->n_bytes >= 8, err, OZ_E_FORMAT, "%s: %zu bytes, too short for the length of its header", file_name, m->n_bytes);
    uint64_t n_header = read_u64(m->data);
    OZ_NEED(n_header <= m->n_bytes - 8, err, OZ_E_FORMAT, "%s: a header of %" PRIu64 " bytes does not fit in a file of %zu", file_name,
            n_header, m->n_bytes);
    OZ_NEED(n_header <= HEADER_LIMIT, err, OZ_E_FORMAT, "%s: a header of %" PRIu64 " bytes; at most %d are allowed", file_name, n_header,
            HEADER_LIMIT);

    const char *text = (const char *)m->data + 8;
    json_t *header = NULL;
    OZ_TRY(oz_json_parse(&header, text, n_header, file_name, err));
    reader r = {.ckpt = c, .file = file_name, .data = m->data + 8 + n_header, .n_data = m->n_bytes - 8 - n_header};
    r.spans = oz_alloc_array(json_object_size(header) + 1, sizeof *r.spans);
    oz_status st = text[0] == '{' ? header_read(&r, header, err)
                                  : oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: the header must begin with '{'", file_name);
    oz_free(r.spans);
    json_decref(header);
    return st;
}
