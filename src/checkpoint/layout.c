/* The layout of a checkpoint to be written: every file's header and size, and every tensor's place, before any data exists.
 * Within a file the order is the safetensors library's: its dtypes from the last to the first, then names as bytes. The header is
 * compact JSON, metadata first, padded with spaces so that the data begins at a multiple of 8. */
#include "checkpoint/internal.h"
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The library's own order of dtypes, by which it sorts descending: alignment never decreases along it. */
static const oz_dtype DTYPE_ORDER[] = {
    OZ_DTYPE_BOOL, OZ_DTYPE_U8,   OZ_DTYPE_I8,  OZ_DTYPE_F8_E5M2, OZ_DTYPE_F8_E4M3, OZ_DTYPE_F8_E8M0, OZ_DTYPE_I16, OZ_DTYPE_U16,
    OZ_DTYPE_F16,  OZ_DTYPE_BF16, OZ_DTYPE_I32, OZ_DTYPE_U32,     OZ_DTYPE_F32,     OZ_DTYPE_F64,     OZ_DTYPE_I64, OZ_DTYPE_U64,
};

static int dtype_rank(oz_dtype d) {
    for (int i = 0; i < (int)(sizeof DTYPE_ORDER / sizeof *DTYPE_ORDER); i++)
        if (DTYPE_ORDER[i] == d) return i;
    return -1;
}

oz_layout *oz_layout_new(size_t shard_bytes) {
    oz_layout *l = oz_alloc(sizeof *l);
    l->shard_bytes = shard_bytes ? shard_bytes : SIZE_MAX;
    l->by_name = oz_map_new(1024);
    return l;
}

void oz_layout_free(oz_layout **pl) {
    oz_layout *l = *pl;
    if (!l) return;
    for (size_t i = 0; i < l->n_tensors; i++) oz_free(l->tensors[i].name);
    for (size_t i = 0; i < l->n_files; i++) {
        oz_free(l->files[i].name);
        oz_buf_deinit(&l->files[i].head);
    }
    oz_map_free(&l->by_name);
    oz_free(l->tensors);
    oz_free(l->files);
    oz_free(l);
    *pl = NULL;
}

oz_status oz_layout_add(oz_layout *l, const char *name, oz_dtype dtype, int n_dims, const int64_t *dims, oz_err *err) {
    assert(l->n_files == 0);
    const oz_dtype_info *info = oz_dtype_get(dtype);
    OZ_NEED(dtype_rank(dtype) >= 0, err, OZ_E_ARG, "%s: safetensors has no type %s", name, info->name);
    OZ_NEED(n_dims >= 0 && n_dims <= OZ_MAX_DIMS, err, OZ_E_ARG, "%s: 0 to %d dimensions can be written, found %d", name, OZ_MAX_DIMS,
            n_dims);
    OZ_NEED(strcmp(name, "__metadata__") != 0, err, OZ_E_ARG, "%s: not a name for a tensor", name);
    OZ_NEED(oz_utf8_valid(name, strlen(name)), err, OZ_E_ARG, "%s: the name of a tensor must be UTF-8", name);
    oz_layout_tensor t = {.dtype = dtype, .n_dims = n_dims};
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        t.dims[i] = dims[i];
        OZ_NEED(dims[i] >= 0 && oz_mul_i64(&count, count, dims[i]), err, OZ_E_ARG,
                "%s: dimension %d, %" PRId64 ", is negative or too large", name, i, dims[i]);
    }
    OZ_NEED(oz_dtype_bytes(&t.n_bytes, dtype, count), err, OZ_E_ARG, "%s: %" PRId64 " elements are too many", name, count);
    OZ_NEED(oz_map_add(l->by_name, name, strlen(name), (int64_t)l->n_tensors), err, OZ_E_ARG, "%s: declared twice", name);
    t.name = oz_strdup(name);
    oz_grow((void **)&l->tensors, &l->cap_tensors, l->n_tensors + 1, sizeof *l->tensors);
    l->tensors[l->n_tensors++] = t;
    return OZ_OK;
}

/* ---- fixing ---- */

static oz_layout_part *file_new(oz_layout *l) {
    oz_grow((void **)&l->files, &l->cap_files, l->n_files + 1, sizeof *l->files);
    l->files[l->n_files] = (oz_layout_part){0};
    return &l->files[l->n_files++];
}

/* Gives every tensor its file; file.n_bytes counts data for now. */
static oz_status files_split(oz_layout *l, oz_err *err) {
    oz_layout_part *f = file_new(l);
    size_t total = 0;
    for (size_t i = 0; i < l->n_tensors; i++) {
        oz_layout_tensor *t = &l->tensors[i];
        if (f->n_bytes && (t->n_bytes > l->shard_bytes || f->n_bytes > l->shard_bytes - t->n_bytes)) f = file_new(l);
        OZ_NEED(t->n_bytes <= INT64_MAX - total, err, OZ_E_ARG, "%s: the checkpoint would be larger than any file can be", t->name);
        total += t->n_bytes;
        t->file = l->n_files - 1;
        f->n_bytes += t->n_bytes;
    }
    size_t n = l->n_files;
    for (size_t i = 0; i < n; i++)
        l->files[i].name = n == 1 ? oz_strdup("model.safetensors") : oz_asprintf("model-%05zu-of-%05zu.safetensors", i + 1, n);
    return OZ_OK;
}

static int place_compare(const void *pa, const void *pb) {
    const oz_layout_tensor *a = *(oz_layout_tensor *const *)pa, *b = *(oz_layout_tensor *const *)pb;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    int ra = dtype_rank(a->dtype), rb = dtype_rank(b->dtype);
    return ra != rb ? rb - ra : strcmp(a->name, b->name);
}

/* As the library's serializer spells a string: only quotes, backslashes and control characters are escaped. */
static void put_string(oz_buf *out, const char *s) {
    static const char *const SHORT[32] = {['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    oz_buf_putc(out, '"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            oz_buf_printf(out, "\\%c", c);
        else if (c >= 32)
            oz_buf_putc(out, (char)c);
        else if (SHORT[c])
            oz_buf_puts(out, SHORT[c]);
        else
            oz_buf_printf(out, "\\u%04x", c);
    }
    oz_buf_putc(out, '"');
}

static void put_tensor(oz_buf *out, const oz_layout_tensor *t, size_t begin) {
    oz_buf_putc(out, ',');
    put_string(out, t->name);
    oz_buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", oz_dtype_get(t->dtype)->name);
    for (int i = 0; i < t->n_dims; i++) oz_buf_printf(out, i ? ",%" PRId64 : "%" PRId64, t->dims[i]);
    oz_buf_printf(out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + t->n_bytes);
}

/* Header and places of the tensors that stand in one file, already in order. */
static void file_fix(oz_layout_part *f, oz_layout_tensor *const *tensors, size_t n) {
    size_t at = 0;
    oz_buf_append(&f->head, "\0\0\0\0\0\0\0\0", 8);
    oz_buf_puts(&f->head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        put_tensor(&f->head, tensors[i], at);
        tensors[i]->offset = at;
        at += tensors[i]->n_bytes;
    }
    oz_buf_putc(&f->head, '}');
    while (f->head.len % 8) oz_buf_putc(&f->head, ' ');
    uint64_t n_header = f->head.len - 8;
    for (int i = 0; i < 8; i++) f->head.data[i] = (char)(n_header >> (8 * i));
    for (size_t i = 0; i < n; i++) tensors[i]->offset += f->head.len;
    f->n_bytes = f->head.len + at;
}

/* The index: total_size counts data, not headers. */
static void index_fix(oz_layout *l, size_t n_data) {
    json_t *root = json_object(), *metadata = json_object(), *weight_map = json_object();
    json_object_set_new(root, "metadata", metadata);
    json_object_set_new(root, "weight_map", weight_map);
    json_object_set_new(metadata, "total_size", json_integer((json_int_t)n_data));
    for (size_t i = 0; i < l->n_tensors; i++)
        json_object_set_new(weight_map, l->tensors[i].name, json_string(l->files[l->tensors[i].file].name));
    oz_layout_part *index = file_new(l);
    index->name = oz_strdup("model.safetensors.index.json");
    oz_json_write_hf(&index->head, root, true);
    index->n_bytes = index->head.len;
    json_decref(root);
}

oz_status oz_layout_fix(oz_layout *l, oz_err *err) {
    assert(l->n_files == 0);
    OZ_TRY(files_split(l, err));
    size_t n_data = 0, n_files = l->n_files;
    for (size_t i = 0; i < n_files; i++) n_data += l->files[i].n_bytes;
    oz_layout_tensor **order = oz_alloc_array(l->n_tensors + 1, sizeof *order);
    for (size_t i = 0; i < l->n_tensors; i++) order[i] = &l->tensors[i];
    qsort(order, l->n_tensors, sizeof *order, place_compare);
    for (size_t i = 0, begin = 0, end = 0; i < n_files; i++, begin = end) {
        while (end < l->n_tensors && order[end]->file == i) end++;
        file_fix(&l->files[i], order + begin, end - begin);
    }
    if (n_files > 1) index_fix(l, n_data);
    oz_free(order);
    return OZ_OK;
}

size_t oz_layout_file_count(const oz_layout *l) { return l->n_files; }

const char *oz_layout_file(const oz_layout *l, size_t i, size_t *n_bytes) {
    if (n_bytes) *n_bytes = l->files[i].n_bytes;
    return l->files[i].name;
}

size_t oz_layout_bytes(const oz_layout *l) {
    size_t n = 0;
    for (size_t i = 0; i < l->n_files; i++) n += l->files[i].n_bytes;
    return n;
}
