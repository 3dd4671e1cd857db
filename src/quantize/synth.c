/* Checkpoints of random weights, to measure with. They are made at the speed of the disk: value i of a tensor is one of 65,536 equally
 * likely quantiles of the normal distribution (out to 4.3 standard deviations), chosen by 16 bits of a counter's hash. Since the
 * hash is of (seed, name, i), any thread can make any range, and the bytes are the same however the work is cut. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/model.h"
#include "quantize/internal.h"
#include <math.h>
#include <string.h>

enum { N_QUANTILES = 1 << 16 };

struct oz_synth {
    oz_arch_list list;
    oz_dtype dtype;
    oz_scheme scheme; /* of linear modules but the head; not quantized: all are dense */
    uint64_t seed;
    oz_layout *layout;
    json_t *out_config;
    float *quantiles; /* ascending, times the standard deviation, as the dtype holds them */
    size_t n_tensors, n_bytes;
};

/* ---- values ---- */
/* The finalizer of splitmix64: every bit of the result depends on every bit of x. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t name_hash(const char *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return h;
}

/* Quantile k is where the distribution function is (k + 1/2) / n. Found by bisection from the middle outwards; two neighbours are
 * never more than 0.3 apart. */
static void make_quantiles(float *q, double std, oz_dtype dtype) {
    double x = 0;
    for (int k = 0; k < N_QUANTILES / 2; k++) {
        const double tail = (N_QUANTILES / 2 - k - 0.5) / N_QUANTILES;
        double lo = x, hi = x + 0.5;
        for (int i = 0; i < 40; i++) {
            x = 0.5 * (lo + hi);
            if (0.5 * erfc(x / sqrt(2.0)) > tail)
                lo = x;
            else
                hi = x;
        }
        float value = (float)(x * std);
        char stored[4];
        oz_from_f32(stored, dtype, &value, 1);
        oz_to_f32(&value, dtype, stored, 1);
        q[N_QUANTILES / 2 + k] = value;
        q[N_QUANTILES / 2 - 1 - k] = -value;
    }
}

typedef struct normal {
    const float *quantiles;
    uint64_t key;
} normal;

/* Four values a hash: word w of a tensor holds values 4 w to 4 w + 3. */
static void fill_normal(void *arg, float *dst, int64_t begin, int64_t n) {
    const normal *r = arg;
    for (int64_t i = begin; i < begin + n;) {
        uint64_t word = mix(r->key + (uint64_t)(i / 4 + 1) * 0x9e3779b97f4a7c15u) >> (i % 4 * 16);
        const int64_t end = i / 4 * 4 + 4 < begin + n ? i / 4 * 4 + 4 : begin + n;
        for (; i < end; i++, word >>= 16) dst[i - begin] = r->quantiles[word & 0xffff];
    }
}

/* Norms' weights are 1 as the model uses them. */
static void fill_norm(void *arg, float *dst, int64_t begin, int64_t n) {
    const oz_arch_tensor *t = arg;
    for (int64_t i = 0; i < n; i++) dst[i] = 1.0f - t->plus;
}

/* ---- planning ---- */
static oz_module module_of(const oz_arch_tensor *t) { return (oz_module){t->module, t->class_name, t->rows, t->cols, false}; }

static bool is_linear(const oz_arch_tensor *t) { return !t->is_bias && strcmp(t->class_name, "Linear") == 0; }

static bool is_quantized(const oz_synth *s, const oz_arch_tensor *t) {
    return s->scheme.quantized && oz_scheme_reaches(&s->scheme, t);
}

static oz_status declare(oz_synth *s, const oz_arch_tensor *t, oz_err *err) {
    const oz_scheme *scheme = is_quantized(s, t) ? &s->scheme : &OZ_SCHEME_DENSE;
    const oz_module m = module_of(t);
    oz_part parts[OZ_MAX_PARTS] = {{NULL, s->dtype, 2, {t->rows, t->cols ? t->cols : 1}, OZ_PART_CODES, false}};
    int n_parts = 1;
    if (scheme->quantized) {
        OZ_TRY(oz_scheme_check(scheme, &m, err));
        n_parts = oz_scheme_parts(parts, scheme, t->rows, t->cols, s->dtype);
    }
    for (int i = 0; i < n_parts; i++) {
        size_t n_bytes;
        char *name = scheme->quantized ? oz_asprintf("%s%s", t->module, parts[i].suffix) : oz_strdup(t->name);
        oz_status st = oz_layout_add(s->layout, name, parts[i].dtype, scheme->quantized ? parts[i].n_dims : t->n_dims, scheme->quantized ? parts[i].dims : t->dims, err);
        oz_free(name);
        OZ_TRY(st);
        oz_dtype_bytes(&n_bytes, parts[i].dtype, parts[i].dims[0] * (parts[i].n_dims > 1 ? parts[i].dims[1] : 1));
        s->n_bytes += n_bytes;
        s->n_tensors++;
    }
    return OZ_OK;
}

/* Readers make a linear module of a tied head too: it stands in `ignore` though it has no tensor. */
static oz_status add_scheme(oz_synth *s, oz_err *err) {
    json_t *untied = json_copy(s->out_config);
    json_object_set_new(untied, "tie_word_embeddings", json_false());
    oz_arch_list all = {0};
    oz_status st = oz_arch_list_new(&all, untied, NULL, err);
    oz_module *modules = oz_alloc_array(all.n + 1, sizeof *modules);
    oz_scheme *schemes = oz_alloc_array(all.n + 1, sizeof *schemes);
    size_t n = 0;
    for (size_t i = 0; i < all.n; i++) {
        if (is_linear(&all.items[i])) modules[n] = module_of(&all.items[i]), schemes[n++] = is_quantized(s, &all.items[i]) ? s->scheme : OZ_SCHEME_DENSE;
    }
    if (st == OZ_OK) json_object_set_new(s->out_config, "quantization_config", oz_scheme_config(modules, schemes, n, NULL));
    oz_free(modules);
    oz_free(schemes);
    oz_arch_list_deinit(&all);
    json_decref(untied);
    return st;
}

static oz_status plan(oz_synth *s, const json_t *config, oz_err *err) {
    const json_t *quantized = json_object_get(config, "quantization_config");
    OZ_NEED(!quantized || json_is_null(quantized), err, OZ_E_ARG, "quantization_config: must not stand in a config to make weights for");
    double std = 0.02;
    OZ_TRY(oz_json_float(&std, config, "", "initializer_range", 0.0, 1e3, err));
    OZ_TRY(oz_arch_list_new(&s->list, config, NULL, err));
    s->dtype = oz_arch_dtype(config);
    for (size_t i = 0; i < s->list.n; i++) {
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        OZ_TRY(declare(s, &s->list.items[i], err));
    }
    bool any = !s->scheme.quantized;
    for (size_t i = 0; i < s->list.n; i++) any |= is_quantized(s, &s->list.items[i]);
    OZ_NEED(any, err, OZ_E_ARG, "--scheme %s: the config has no experts, which it is for", s->scheme.name);
    OZ_TRY(oz_layout_fix(s->layout, err));
    s->out_config = json_deep_copy(config);
    if (s->scheme.quantized) OZ_TRY(add_scheme(s, err));
    s->quantiles = oz_alloc_array(N_QUANTILES, sizeof *s->quantiles);
    make_quantiles(s->quantiles, std, s->dtype);
    return OZ_OK;
}

oz_status oz_synth_new(oz_synth **out, const json_t *config, const oz_scheme *scheme, uint64_t seed, size_t shard_bytes, oz_err *err) {
    oz_synth *s = oz_alloc(sizeof *s);
    *s = (oz_synth){.scheme = *scheme, .seed = seed, .layout = oz_layout_new(shard_bytes)};
    oz_status st = plan(s, config, err);
    if (st != OZ_OK) oz_synth_free(&s);
    *out = s;
    return st;
}

void oz_synth_free(oz_synth **s) {
    if (!*s) return;
    oz_arch_list_deinit(&(*s)->list);
    oz_layout_free(&(*s)->layout);
    oz_free((*s)->quantiles);
    json_decref((*s)->out_config);
    oz_free(*s);
    *s = NULL;
}

const oz_layout *oz_synth_layout(const oz_synth *s) { return s->layout; }

size_t oz_synth_count(const oz_synth *s) { return s->n_tensors; }

/* ---- running ---- */
static oz_status write_tensor(oz_synth *s, const oz_arch_tensor *t, oz_stream *stream, oz_err *err) {
    const oz_module m = module_of(t);
    normal r = {s->quantiles, mix(mix(s->seed) ^ name_hash(t->name))};
    if (is_quantized(s, t)) return oz_stream_rtn(stream, &m, &s->scheme, s->dtype, &(oz_source){fill_normal, &r, 1, 0}, err); /* inputs are of that size: norms are 1 */
    const bool is_norm = t->role == OZ_ROLE_NORM && !t->is_bias;
    oz_arch_tensor norm = *t;
    return oz_stream_put(stream, t->name, s->dtype, t->rows * (t->cols ? t->cols : 1), 1, is_norm ? fill_norm : fill_normal, is_norm ? (void *)&norm : (void *)&r, err);
}

static oz_status write_weights(oz_synth *s, const char *dir, oz_pool *pool, oz_err *err) {
    oz_writer *w;
    OZ_TRY(oz_writer_open(&w, s->layout, dir, err));
    oz_stream stream;
    oz_stream_init(&stream, w, pool, "writing", (int64_t)s->n_bytes);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < s->list.n && st == OZ_OK; i++) st = write_tensor(s, &s->list.items[i], &stream, err);
    oz_stream_deinit(&stream);
    if (st == OZ_OK) st = oz_writer_finish(w, err);
    oz_writer_close(&w);
    return st;
}

oz_status oz_synth_run(oz_synth *s, const char *target, bool force, oz_pool *pool, oz_err *err) {
    oz_outdir *dir;
    OZ_TRY(oz_outdir_open(&dir, target, force, err));
    oz_status st = oz_config_write(s->out_config, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = write_weights(s, oz_outdir_path(dir), pool, err);
    if (st == OZ_OK) st = oz_outdir_commit(dir, err);
    oz_outdir_close(&dir);
    return st;
}
