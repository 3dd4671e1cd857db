/* GGUF version 2 and 3 as a file: header, key-values, tensor infos. Nothing here knows what a key means.
 *
 *   "GGUF"  u32 version  u64 n_tensors  u64 n_kvs
 *   n_kvs   x { string key, u32 type, value }              string = u64 length, bytes
 *   n_tensors x { string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset }
 *   padding to general.alignment, then the data; every tensor padded to the same alignment
 *
 * All numbers are little-endian and may be misaligned. A cursor with a sticky error walks the file once; what it hands out
 * are views of the file. A count is believed only as far as the bytes that are left could hold so many entries, so a file
 * makes us allocate a small multiple of its own size at most. Offsets must be the running sum of padded sizes: this is what
 * every writer does, and it excludes overlaps and gaps without a search. */
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    MIN_KV_BYTES = 8 + 1 + 4 + 1,
    MIN_INFO_BYTES = 8 + 1 + 4 + 4 + 8,
    MAX_NAME_BYTES = 65535,
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20
};

static const struct {
    const char *name;
    uint8_t n_bytes;
    bool is_int;
} gguf_types[OZ_GGUF_TYPE_COUNT] = {
    [OZ_GGUF_U8] = {"u8", 1, true},        [OZ_GGUF_I8] = {"i8", 1, true},      [OZ_GGUF_U16] = {"u16", 2, true},
    [OZ_GGUF_I16] = {"i16", 2, true},      [OZ_GGUF_U32] = {"u32", 4, true},    [OZ_GGUF_I32] = {"i32", 4, true},
    [OZ_GGUF_F32] = {"f32", 4, false},     [OZ_GGUF_BOOL] = {"bool", 1, false}, [OZ_GGUF_STR] = {"string", 0, false},
    [OZ_GGUF_ARRAY] = {"array", 0, false}, [OZ_GGUF_U64] = {"u64", 8, true},    [OZ_GGUF_I64] = {"i64", 8, true},
    [OZ_GGUF_F64] = {"f64", 8, false},
};

/* Names of ggml's element types, to say what a file holds that is not read here. */
static const char *const ggml_types[] = {
    "F32",   "F16",    "Q4_0",  "Q4_1", NULL,   NULL,      "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  NULL,     NULL,
    NULL,    "TQ1_0",  "TQ2_0", NULL,   NULL,   NULL,      "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0",
};

/* ---- the cursor ---- */
typedef struct cursor {
    const uint8_t *data;
    size_t n, at;
    const char *where;
    oz_status st; /* the first failure; every read after it gives zeros */
    const oz_findings *f;
    oz_err *err;
} cursor;

#define CURSOR_FAIL(c, code, ...)                                                                          \
    do {                                                                                                   \
        if ((c)->st == OZ_OK) { (c)->st = oz_err_set((c)->err, (code), __FILE__, __LINE__, __VA_ARGS__); } \
    } while (0)

static const uint8_t *take(cursor *c, size_t n, const char *what) {
    if (c->st != OZ_OK) return NULL;
    if (n > c->n - c->at) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: byte %zu: %s needs %zu bytes, found %zu before the end of the file", c->where, c->at, what, n,
                    c->n - c->at);
        return NULL;
    }
    const uint8_t *p = c->data + c->at;
    c->at += n;
    return p;
}

static uint32_t load_u32(const void *p) {
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint64_t load_u64(const void *p) { return load_u32(p) | (uint64_t)load_u32((const uint8_t *)p + 4) << 32; }

static uint32_t take_u32(cursor *c, const char *what) {
    const uint8_t *p = take(c, 4, what);
    return p ? load_u32(p) : 0;
}

static uint64_t take_u64(cursor *c, const char *what) {
    const uint8_t *p = take(c, 8, what);
    return p ? load_u64(p) : 0;
}

static oz_slice take_str(cursor *c, const char *what) {
    size_t at = c->at;
    uint64_t n = take_u64(c, what);
    if (c->st == OZ_OK && n > c->n - c->at) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: byte %zu: %s is said to be %" PRIu64 " bytes long, found %zu before the end of the file", c->where,
                    at, what, n, c->n - c->at);
    }
    const uint8_t *p = take(c, c->st == OZ_OK ? (size_t)n : 0, what);
    return (oz_slice){(const char *)p, p ? (size_t)n : 0};
}

static bool is_text(oz_slice s) { return oz_utf8_valid(s.p, s.n) && !memchr(s.p, 0, s.n); }

/* A key or a tensor's name: goes into messages and names of the result. */
static oz_slice take_name(cursor *c, const char *what) {
    size_t at = c->at;
    oz_slice s = take_str(c, what);
    if (c->st == OZ_OK && (s.n == 0 || s.n > MAX_NAME_BYTES || !is_text(s))) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: byte %zu: %s must be 1..%d bytes of UTF-8 without NUL", c->where, at, what, MAX_NAME_BYTES);
    }
    return s;
}

static uint64_t take_count(cursor *c, const char *what) {
    size_t at = c->at;
    uint64_t n = take_u64(c, what);
    if (n > INT64_MAX) CURSOR_FAIL(c, OZ_E_FORMAT, "%s: byte %zu: %s of %" PRIu64 " is not a count", c->where, at, what, n);
    return n;
}

/* n entries of at least min_bytes each cannot be more than what is left. */
static void check_count(cursor *c, uint64_t n, size_t min_bytes, const char *what) {
    if (c->st == OZ_OK && n > (c->n - c->at) / min_bytes) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %" PRIu64 " %s do not fit in the %zu bytes that are left at byte %zu", c->where, n, what,
                    c->n - c->at, c->at);
    }
}

/* ---- key-values ---- */
static void take_elements(cursor *c, oz_gguf_kv *kv) {
    char what[160];
    snprintf(what, sizeof what, "value of %.*s", (int)(kv->key.n < 100 ? kv->key.n : 100), kv->key.p);
    kv->data = c->data + c->at;
    size_t size = gguf_types[kv->type].n_bytes;
    if (size > 0) {
        check_count(c, kv->n, size, what);
        take(c, c->st == OZ_OK ? (size_t)kv->n * size : 0, what);
        return;
    }
    check_count(c, kv->n, 8, what);
    for (uint64_t i = 0; i < kv->n && c->st == OZ_OK; i++) take_str(c, what);
}

static oz_gguf_type take_type(cursor *c, const oz_gguf_kv *kv, const char *what) {
    uint32_t type = take_u32(c, what);
    if (c->st == OZ_OK && type >= OZ_GGUF_TYPE_COUNT) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: %s must be 0..%d, found %" PRIu32, c->where, (int)kv->key.n, kv->key.p, what,
                    OZ_GGUF_TYPE_COUNT - 1, type);
    }
    return c->st == OZ_OK ? (oz_gguf_type)type : OZ_GGUF_U8;
}

static void take_kv(cursor *c, oz_gguf *g) {
    oz_gguf_kv kv = {.n = 1};
    kv.key = take_name(c, "a key");
    kv.type = take_type(c, &kv, "the type");
    if (kv.type == OZ_GGUF_ARRAY) {
        kv.is_array = true;
        kv.type = take_type(c, &kv, "the type of the elements");
        kv.n = take_count(c, "the length of an array");
        if (kv.type == OZ_GGUF_ARRAY) {
            CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: arrays of arrays are not read", c->where, (int)kv.key.n, kv.key.p);
        }
    }
    if (c->st == OZ_OK) take_elements(c, &kv);
    if (c->st != OZ_OK) return;
    if (!oz_map_add(g->keys, kv.key.p, kv.key.n, (int64_t)g->n_kvs)) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: key %.*s is there twice", c->where, (int)kv.key.n, kv.key.p);
        return;
    }
    oz_grow((void **)&g->kvs, &g->cap_kvs, g->n_kvs + 1, sizeof *g->kvs);
    g->kvs[g->n_kvs++] = kv;
}

/* ---- tensor infos ---- */
/* Blocks need a codec. */
static bool is_read(oz_dtype d) { return oz_dtype_get(d)->block_elems == 1 || oz_codec_plain(&(oz_codec){0}, d); }

static void unread_type(cursor *c, oz_slice name, uint32_t type) {
    oz_buf known = {0};
    for (int d = 0; d < OZ_DTYPE_COUNT; d++) {
        const oz_dtype_info *info = oz_dtype_get((oz_dtype)d);
        if (info->gguf_type >= 0 && is_read((oz_dtype)d)) oz_buf_printf(&known, "%s%s", known.len ? ", " : "", info->name);
    }
    const char *found = type < sizeof ggml_types / sizeof *ggml_types ? ggml_types[type] : NULL;
    CURSOR_FAIL(c, found ? OZ_E_UNSUPPORTED : OZ_E_FORMAT, "%s: %.*s: type must be one of %s, found %s (%" PRIu32 ")", c->where,
                (int)name.n, name.p, known.data, found ? found : "an unknown type", type);
    oz_buf_deinit(&known);
}

/* Element count and bytes; the fastest dimension holds whole blocks. */
static void size_info(cursor *c, oz_gguf_info *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dims[i] < 1 || !oz_mul_i64(&n, n, t->dims[i])) {
            CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: dimension %d of %" PRId64 " is not possible", c->where, (int)t->name.n, t->name.p, i,
                        t->dims[i]);
            return;
        }
    }
    const oz_dtype_info *d = oz_dtype_get(t->dtype);
    if (t->dims[0] % d->block_elems != 0 || !oz_dtype_bytes(&t->n_bytes, t->dtype, n)) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: rows of %" PRId64 " values are not whole %s blocks of %d", c->where, (int)t->name.n,
                    t->name.p, t->dims[0], d->name, (int)d->block_elems);
    }
}

static void take_info(cursor *c, oz_gguf *g, oz_map *names, uint64_t *offset) {
    oz_gguf_info t = {.dims = {1, 1, 1, 1}};
    t.name = take_name(c, "the name of a tensor");
    uint32_t n_dims = take_u32(c, "a tensor's number of dimensions");
    if (n_dims > 4) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: must have at most 4 dimensions, found %" PRIu32, c->where, (int)t.name.n, t.name.p, n_dims);
        return;
    }
    t.n_dims = (int)n_dims;
    for (int i = 0; i < t.n_dims; i++) t.dims[i] = (int64_t)take_u64(c, "a dimension of a tensor");
    uint32_t type = take_u32(c, "the type of a tensor");
    *offset = take_u64(c, "the offset of a tensor");
    if (c->st != OZ_OK) return;
    const bool sized = oz_dtype_from_gguf(&t.dtype, type);
    if (!sized || !is_read(t.dtype)) unread_type(c, t.name, type);
    if (sized) c->st = oz_found(c->f, c->st, c->err);
    if (c->st == OZ_OK) size_info(c, &t);
    if (c->st != OZ_OK) return;
    if (!oz_map_add(names, t.name.p, t.name.n, (int64_t)g->n_infos)) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: tensor %.*s is there twice", c->where, (int)t.name.n, t.name.p);
        return;
    }
    oz_grow((void **)&g->infos, &g->cap_infos, g->n_infos + 1, sizeof *g->infos);
    g->infos[g->n_infos++] = t;
}

static oz_status read_alignment(size_t *out, const oz_gguf *g, oz_err *err) {
    int64_t alignment = DEFAULT_ALIGNMENT;
    OZ_TRY(oz_gguf_int(&alignment, g, "general.alignment", 1, MAX_ALIGNMENT, err));
    OZ_NEED((alignment & (alignment - 1)) == 0, err, OZ_E_FORMAT, "%s: general.alignment: must be a power of two, found %" PRId64, g->where,
            alignment);
    *out = (size_t)alignment;
    return OZ_OK;
}

/* Reads the infos and finds each tensor's data behind them. */
static oz_status take_infos(cursor *c, oz_gguf *g, uint64_t n, oz_err *err) {
    size_t align = DEFAULT_ALIGNMENT;
    OZ_TRY(read_alignment(&align, g, err));
    check_count(c, n, MIN_INFO_BYTES, "tensors");
    oz_map *names = oz_map_new(c->st == OZ_OK ? (size_t)n : 0);
    uint64_t *offsets = NULL;
    size_t cap = 0;
    for (uint64_t i = 0; i < n && c->st == OZ_OK; i++) {
        oz_grow((void **)&offsets, &cap, (size_t)i + 1, sizeof *offsets);
        take_info(c, g, names, &offsets[i]);
    }
    size_t pad = (align - c->at % align) % align;
    if (n > 0) take(c, c->st == OZ_OK ? pad : 0, "the padding before the data");
    size_t base = c->at;
    uint64_t expected = 0; /* cannot overflow: every size before it was found inside the file */
    for (size_t i = 0; i < g->n_infos && c->st == OZ_OK; i++) {
        oz_gguf_info *t = &g->infos[i];
        size_t left = c->n - base;
        if (offsets[i] != expected) {
            CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: expected offset %" PRIu64 ", found %" PRIu64, c->where, (int)t->name.n, t->name.p,
                        expected, offsets[i]);
        } else if (expected > left || t->n_bytes > left - (size_t)expected) {
            CURSOR_FAIL(c, OZ_E_FORMAT, "%s: %.*s: expected %zu bytes of data at byte %zu, found a file of %zu bytes", c->where,
                        (int)t->name.n, t->name.p, t->n_bytes, base + (size_t)expected, c->n);
        } else {
            t->data = c->data + base + (size_t)expected;
            expected += (t->n_bytes + align - 1) / align * align;
        }
    }
    oz_free(offsets);
    oz_map_free(&names);
    return c->st;
}

/* ---- the whole file ---- */
static void take_header(cursor *c, uint64_t *n_infos, uint64_t *n_kvs) {
    const uint8_t *magic = take(c, 4, "the magic");
    if (magic && memcmp(magic, "GGUF", 4) != 0) {
        CURSOR_FAIL(c, OZ_E_FORMAT, "%s: expected the magic \"GGUF\", found bytes %02x %02x %02x %02x", c->where, magic[0], magic[1],
                    magic[2], magic[3]);
    }
    uint32_t version = take_u32(c, "the version");
    if (c->st == OZ_OK && version != 2 && version != 3) {
        bool swapped = version == 0x02000000 || version == 0x03000000;
        CURSOR_FAIL(c, OZ_E_UNSUPPORTED, "%s: GGUF version must be 2 or 3, found %" PRIu32 "%s", c->where, version,
                    swapped ? " (a big-endian file)" : "");
    }
    *n_infos = take_count(c, "the number of tensors");
    *n_kvs = take_count(c, "the number of keys");
    check_count(c, *n_kvs, MIN_KV_BYTES, "keys");
}

oz_status oz_gguf_parse(oz_gguf *g, const void *data, size_t n_bytes, const char *where, bool with_infos, const oz_findings *f, oz_err *err) {
    *g = (oz_gguf){.where = where};
    cursor c = {.data = data, .n = n_bytes, .where = where, .f = f, .err = err};
    uint64_t n_infos = 0, n_kvs = 0;
    take_header(&c, &n_infos, &n_kvs);
    g->keys = oz_map_new(c.st == OZ_OK ? (size_t)n_kvs : 0);
    for (uint64_t i = 0; i < n_kvs && c.st == OZ_OK; i++) take_kv(&c, g);
    oz_status st = c.st;
    if (st == OZ_OK && with_infos) {
        st = take_infos(&c, g, n_infos, err);
        if (st != OZ_OK) g->n_infos = 0;
        st = oz_found(f, st, err);
    }
    if (st != OZ_OK) oz_gguf_deinit(g);
    return st;
}

void oz_gguf_deinit(oz_gguf *g) {
    oz_free(g->kvs);
    oz_free(g->infos);
    oz_map_free(&g->keys);
    *g = (oz_gguf){0};
}

/* ---- reading values ---- */
const oz_gguf_kv *oz_gguf_find(const oz_gguf *g, const char *key) {
    int64_t i;
    return oz_map_get(g->keys, key, strlen(key), &i) ? &g->kvs[i] : NULL;
}

static oz_status wrong_type(const oz_gguf *g, const oz_gguf_kv *kv, const char *expected, oz_err *err) {
    OZ_FAIL(err, OZ_E_FORMAT, "%s: %.*s: must be %s, found %s%s", g->where, (int)kv->key.n, kv->key.p, expected,
            kv->is_array ? "an array of " : "", gguf_types[kv->type].name);
}

int64_t oz_gguf_int_at(const oz_gguf_kv *kv, uint64_t i) {
    const uint8_t *p = kv->data + i * gguf_types[kv->type].n_bytes;
    switch (kv->type) {
    case OZ_GGUF_U8:
        return p[0];
    case OZ_GGUF_I8:
        return (int8_t)p[0];
    case OZ_GGUF_U16:
        return (uint16_t)(p[0] | p[1] << 8);
    case OZ_GGUF_I16:
        return (int16_t)(p[0] | p[1] << 8);
    case OZ_GGUF_U32:
        return load_u32(p);
    case OZ_GGUF_I32:
        return (int32_t)load_u32(p);
    case OZ_GGUF_U64: { /* above INT64_MAX no key has a meaning: it saturates and fails every range */
        uint64_t v = load_u64(p);
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
    default:
        return (int64_t)load_u64(p);
    }
}

oz_status oz_gguf_int(int64_t *out, const oz_gguf *g, const char *key, int64_t min, int64_t max, oz_err *err) {
    const oz_gguf_kv *kv = oz_gguf_find(g, key);
    if (!kv) return OZ_OK;
    if (kv->is_array || !gguf_types[kv->type].is_int) return wrong_type(g, kv, "an integer", err);
    int64_t v = oz_gguf_int_at(kv, 0);
    OZ_NEED(v >= min && v <= max, err, OZ_E_FORMAT, "%s: %s: must be %" PRId64 "..%" PRId64 ", found %" PRId64, g->where, key, min, max, v);
    *out = v;
    return OZ_OK;
}

oz_status oz_gguf_float(float *out, const oz_gguf *g, const char *key, oz_err *err) {
    const oz_gguf_kv *kv = oz_gguf_find(g, key);
    if (!kv) return OZ_OK;
    if (kv->is_array || (kv->type != OZ_GGUF_F32 && kv->type != OZ_GGUF_F64)) return wrong_type(g, kv, "a float", err);
    float f;
    if (kv->type == OZ_GGUF_F32) {
        uint32_t bits = load_u32(kv->data);
        memcpy(&f, &bits, 4);
    } else {
        uint64_t bits = load_u64(kv->data);
        double d;
        memcpy(&d, &bits, 8);
        f = fabs(d) <= 3.4e38 ? (float)d : NAN;
    }
    OZ_NEED(isfinite(f), err, OZ_E_FORMAT, "%s: %s: must be a finite number, found %g", g->where, key, (double)f);
    *out = f;
    return OZ_OK;
}

oz_status oz_gguf_bool(bool *out, const oz_gguf *g, const char *key, oz_err *err) {
    const oz_gguf_kv *kv = oz_gguf_find(g, key);
    if (!kv) return OZ_OK;
    if (kv->is_array || kv->type != OZ_GGUF_BOOL) return wrong_type(g, kv, "a bool", err);
    OZ_NEED(kv->data[0] <= 1, err, OZ_E_FORMAT, "%s: %s: must be 0 or 1, found %d", g->where, key, kv->data[0]);
    *out = kv->data[0];
    return OZ_OK;
}

oz_slice oz_gguf_next_str(const uint8_t **p) {
    oz_slice s = {(const char *)*p + 8, (size_t)load_u64(*p)};
    *p += 8 + s.n;
    return s;
}

oz_status oz_gguf_str(oz_slice *out, const oz_gguf *g, const char *key, oz_err *err) {
    const oz_gguf_kv *kv = oz_gguf_find(g, key);
    if (!kv) return OZ_OK;
    if (kv->is_array || kv->type != OZ_GGUF_STR) return wrong_type(g, kv, "a string", err);
    const uint8_t *p = kv->data;
    oz_slice s = oz_gguf_next_str(&p);
    OZ_NEED(is_text(s), err, OZ_E_FORMAT, "%s: %s: must be UTF-8 without NUL", g->where, key);
    *out = s;
    return OZ_OK;
}

oz_status oz_gguf_array(const oz_gguf_kv **out, const oz_gguf *g, const char *key, oz_gguf_type elem, oz_err *err) {
    const oz_gguf_kv *kv = oz_gguf_find(g, key);
    *out = NULL;
    if (!kv) return OZ_OK;
    if (elem == OZ_GGUF_STR) {
        if (!kv->is_array || kv->type != OZ_GGUF_STR) return wrong_type(g, kv, "an array of strings", err);
    } else if (!kv->is_array || !gguf_types[kv->type].is_int) {
        return wrong_type(g, kv, "an array of integers", err);
    }
    *out = kv;
    return OZ_OK;
}
