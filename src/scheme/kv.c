/* The scales of a quantized cache, under all the names that they have. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

/* Behind the attention module's name; 0: keys, 1: values. The deprecated single name comes last. */
static const char *const NAMES[][2] = {
    {".k_scale", ".v_scale"}, {".k_proj.k_scale", ".v_proj.v_scale"}, {".qkv_proj.k_scale", ".qkv_proj.v_scale"}, {".qkqkv_proj.k_scale", ".qkqkv_proj.v_scale"},
    {".k_cache.scale", ".v_cache.scale"}, {".k_proj.output_scale", ".v_proj.output_scale"}, {".kv_scale", ".kv_scale"},
};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

static const struct { const char *name; oz_kv_scheme scheme; } SCHEMES[] = {
    {"fp8", {true, false, false}}, {"fp8_per_head", {true, true, false}}, {"int8", {true, false, true}}, {"int8_per_head", {true, true, true}},
};
enum { N_SCHEMES = sizeof SCHEMES / sizeof *SCHEMES };

bool oz_kv_scheme_find(oz_kv_scheme *out, const char *name) {
    for (size_t i = 0; i < N_SCHEMES; i++)
        if (strcmp(SCHEMES[i].name, name) == 0) return *out = SCHEMES[i].scheme, true;
    return false;
}

const char *oz_kv_scheme_name(const oz_kv_scheme *s) {
    for (size_t i = 0; i < N_SCHEMES && s->quantized; i++)
        if (SCHEMES[i].scheme.per_head == s->per_head && SCHEMES[i].scheme.is_int == s->is_int) return SCHEMES[i].name;
    return NULL;
}

size_t oz_scheme_kv_owner(const char *tensor) {
    size_t n = 0, longest = 0;
    for (int i = 0; i < 2 * N_NAMES; i++) {
        const char *name = NAMES[i / 2][i % 2];
        if (strlen(name) > longest && oz_str_ends(tensor, name)) longest = strlen(name), n = strlen(tensor) - longest;
    }
    return n;
}

bool oz_scheme_is_kv(const char *tensor) { return oz_scheme_kv_owner(tensor) > 0; }

const char *oz_scheme_kv_suffix(int which) { return NAMES[0][which]; }

/* The first from a name on; *i: behind it. */
static const oz_tensor *find(int *i, const oz_ckpt *c, const char *name, int which) {
    const oz_tensor *t = NULL;
    while (*i < N_NAMES && !t) {
        char *full = oz_asprintf("%s%s", name, NAMES[(*i)++][which]);
        t = oz_ckpt_find(c, full);
        oz_free(full);
    }
    return t;
}

static oz_status read(float *out, const oz_tensor *t, const oz_kv_scheme *s, int64_t n_heads, oz_err *err) {
    OZ_NEED(t->dtype == OZ_DTYPE_BF16 || t->dtype == OZ_DTYPE_F16 || t->dtype == OZ_DTYPE_F32, err, OZ_E_FORMAT, "%s: expected BF16, F16 or F32, found %s (%s)", t->name,
            oz_dtype_get(t->dtype)->name, t->file_name);
    const int64_t size = oz_dtype_get(t->dtype)->block_bytes, n = (int64_t)t->n_bytes / size, want = s->per_head ? n_heads : 1;
    bool flat = true;
    for (int i = 1; i < t->n_dims; i++) flat = flat && t->dims[i] == 1;
    OZ_NEED(n == want && flat, err, OZ_E_FORMAT, "%s: expected %lld value%s, %s, found %lld (%s)", t->name, (long long)want, want == 1 ? "" : "s", s->per_head ? "one a head" : "one for all",
            (long long)n, t->file_name);
    for (int64_t h = 0; h < n_heads && t->data; h++) {
        oz_to_f32(&out[h], t->dtype, (const uint8_t *)t->data + (s->per_head ? h : 0) * size, 1);
        OZ_NEED(isfinite(out[h]) && out[h] > 0, err, OZ_E_FORMAT, "%s: scales must be positive and finite, found %g (%s)", t->name, (double)out[h], t->file_name);
    }
    return OZ_OK;
}

/* Under all names that it has: these must agree. */
static oz_status read_all(float *out, const oz_tensor **first, const oz_ckpt *c, const char *name, int which, const oz_kv_scheme *s, int64_t n_heads, oz_err *err) {
    int at = 0;
    float *again = oz_alloc_array((size_t)n_heads, sizeof *again);
    const oz_tensor *t = *first = find(&at, c, name, which);
    oz_status st = t ? read(out, t, s, n_heads, err) : OZ_OK;
    while (st == OZ_OK && t && (t = find(&at, c, name, which))) {
        memcpy(again, out, (size_t)n_heads * sizeof *again);
        st = read(again, t, s, n_heads, err);
        for (int64_t h = 0; h < n_heads && st == OZ_OK; h++)
            if (again[h] != out[h])
                st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected %g, as %s says of the same, found %g (%s)", t->name, (double)out[h], (*first)->name, (double)again[h], t->file_name);
    }
    oz_free(again);
    return st;
}

oz_status oz_scheme_bind_kv(float *k, float *v, bool *stored, const oz_ckpt *c, const char *name, const oz_kv_scheme *s, int64_t n_heads_kv, oz_err *err) {
    const oz_tensor *t[2];
    for (int64_t h = 0; h < n_heads_kv; h++) k[h] = v[h] = 1;
    *stored = true;
    OZ_TRY(read_all(k, &t[0], c, name, 0, s, n_heads_kv, err));
    OZ_TRY(read_all(v, &t[1], c, name, 1, s, n_heads_kv, err));
    *stored = t[0] || t[1];
    OZ_NEED(t[0] || !t[1], err, OZ_E_FORMAT, "%s.k_scale: not in the checkpoint, though %s is (%s)", name, t[1]->name, oz_ckpt_path(c));
    OZ_NEED(t[1] || !t[0], err, OZ_E_FORMAT, "%s.v_scale: not in the checkpoint, though %s is (%s)", name, t[0]->name, oz_ckpt_path(c));
    return OZ_OK;
}
