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
    const json_t *config;
    oz_arch_list list;
    oz_dtype dtype;
    uint64_t seed;
    oz_layout *layout;
    float *quantiles; /* ascending, times the standard deviation */
    size_t n_tensors;
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
static void make_quantiles(float *q, double std) {
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
        q[N_QUANTILES / 2 + k] = (float)(x * std);
        q[N_QUANTILES / 2 - 1 - k] = -(float)(x * std);
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

static void fill_one(void *arg, float *dst, int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = 1.0f;
}

/* ---- planning ---- */
static oz_status plan(oz_synth *s, oz_err *err) {
    const json_t *quantized = json_object_get(s->config, "quantization_config");
    OZ_NEED(!quantized || json_is_null(quantized), err, OZ_E_ARG, "quantization_config: must not stand in a config to make weights for");
    double std = 0.02;
    OZ_TRY(oz_json_float(&std, s->config, "", "initializer_range", 0.0, 1e3, err));
    OZ_TRY(oz_arch_list_new(&s->list, s->config, err));
    for (size_t i = 0; i < s->list.n; i++) {
        const oz_arch_tensor *t = &s->list.items[i];
        s->n_tensors++;
        OZ_TRY(oz_layout_add(s->layout, t->name, s->dtype, t->cols ? 2 : 1, (const int64_t[]){t->rows, t->cols}, err));
    }
    OZ_TRY(oz_layout_fix(s->layout, err));
    s->quantiles = oz_alloc_array(N_QUANTILES, sizeof *s->quantiles);
    make_quantiles(s->quantiles, std);
    return OZ_OK;
}

oz_status oz_synth_new(oz_synth **out, const json_t *config, uint64_t seed, size_t shard_bytes, oz_err *err) {
    oz_synth *s = oz_alloc(sizeof *s);
    *s = (oz_synth){.config = config, .dtype = oz_arch_dtype(config), .seed = seed, .layout = oz_layout_new(shard_bytes)};
    oz_status st = plan(s, err);
    if (st != OZ_OK) oz_synth_free(&s);
    *out = s;
    return st;
}

void oz_synth_free(oz_synth **s) {
    if (!*s) return;
    oz_arch_list_deinit(&(*s)->list);
    oz_layout_free(&(*s)->layout);
    oz_free((*s)->quantiles);
    oz_free(*s);
    *s = NULL;
}

const oz_layout *oz_synth_layout(const oz_synth *s) { return s->layout; }

size_t oz_synth_count(const oz_synth *s) { return s->n_tensors; }

/* ---- running ---- */
static int64_t count_values(const oz_arch_tensor *t) { return t->rows * (t->cols ? t->cols : 1); }

static oz_status write_tensors(oz_synth *s, oz_stream *stream, oz_err *err) {
    for (size_t i = 0; i < s->list.n; i++) {
        const oz_arch_tensor *t = &s->list.items[i];
        normal r = {s->quantiles, mix(mix(s->seed) ^ name_hash(t->name))};
        oz_fill_fn *fill = t->role == OZ_ROLE_NORM && !t->is_bias ? fill_one : fill_normal;
        OZ_TRY(oz_stream_put(stream, t->name, s->dtype, count_values(t), 1, fill, &r, err));
    }
    return OZ_OK;
}

static oz_status write_weights(oz_synth *s, const char *dir, oz_pool *pool, oz_err *err) {
    oz_writer *w;
    OZ_TRY(oz_writer_open(&w, s->layout, dir, err));
    int64_t total = 0;
    for (size_t i = 0; i < s->list.n; i++) { total += count_values(&s->list.items[i]) * oz_dtype_get(s->dtype)->block_bytes; }
    oz_stream stream;
    oz_stream_init(&stream, w, pool, "writing", total);
    oz_status st = write_tensors(s, &stream, err);
    oz_stream_deinit(&stream);
    if (st == OZ_OK) st = oz_writer_finish(w, err);
    oz_writer_close(&w);
    return st;
}

oz_status oz_synth_run(oz_synth *s, const char *target, bool force, oz_pool *pool, oz_err *err) {
    oz_outdir *dir;
    OZ_TRY(oz_outdir_open(&dir, target, force, err));
    oz_status st = oz_config_write(s->config, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = write_weights(s, oz_outdir_path(dir), pool, err);
    if (st == OZ_OK) st = oz_outdir_commit(dir, err);
    oz_outdir_close(&dir);
    return st;
}
