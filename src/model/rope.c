/* Rotary embeddings: what a config says of them, in both of the hub's spellings (classic: rope_theta, rope_scaling; transformers 5:
 * rope_parameters), and the frequencies that follow (transformers' modeling_rope_utils). A key of these objects that is not known here would
 * change the mathematics unseen, and is an error. */
#include <math.h>
#include <string.h>
#include "base/json.h"
#include "model/internal.h"

static const struct { const char *name; oz_rope_type type; } types[] = {
    {"default", OZ_ROPE_DEFAULT}, {"linear", OZ_ROPE_LINEAR}, {"llama3", OZ_ROPE_LLAMA3}, {"yarn", OZ_ROPE_YARN}, {"longrope", OZ_ROPE_LONG}, {"su", OZ_ROPE_LONG}};

typedef struct place { const json_t *config, *s; const char *where; const oz_dims *d; } place;

static oz_status type_read(oz_rope_cfg *r, const place *p, oz_err *err) {
    const char *type = "default";
    OZ_TRY(oz_json_str(&type, p->s, p->where, "type", err));
    OZ_TRY(oz_json_str(&type, p->s, p->where, "rope_type", err));
    size_t i = 0, n = sizeof types / sizeof *types;
    while (i < n && strcmp(types[i].name, type) != 0) i++;
    OZ_NEED(i < n, err, OZ_E_UNSUPPORTED, "%s.rope_type: \"%s\" is not run here; known: default, linear, llama3, yarn, longrope", p->where, type);
    r->type = types[i].type;
    if (r->type == OZ_ROPE_YARN && json_object_get(p->s, "long_factor")) r->type = OZ_ROPE_LONG; /* as early files of Phi-3 call it */
    OZ_NEED(r->type == OZ_ROPE_DEFAULT || r->type == OZ_ROPE_LONG || json_is_number(json_object_get(p->s, "factor")), err, OZ_E_FORMAT, "%s.factor: missing, needed by rope_type \"%s\"",
            p->where, type);
    return OZ_OK;
}

static oz_status keys_check(const place *p, oz_err *err) {
    static const char *const known[] = {"type", "rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
                                        "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor", "partial_rotary_factor"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)p->s, key, v) {
        size_t i = 0, n = sizeof known / sizeof *known;
        while (i < n && strcmp(known[i], key) != 0) i++;
        OZ_NEED(i < n || json_is_null(v), err, OZ_E_UNSUPPORTED, "%s.%s: not known here, and it may change what the model computes", p->where, key);
    }
    return OZ_OK;
}

/* Beside the object, or in it; where both say it they must agree. */
static oz_status original_max_read(oz_rope_cfg *r, const place *p, oz_err *err) {
    static const char key[] = "original_max_position_embeddings";
    int64_t inside = 0, beside = 0;
    OZ_TRY(oz_json_int(&inside, p->s, p->where, key, 1, 1 << 30, err));
    OZ_TRY(oz_json_int(&beside, p->config, "config.json", key, 1, 1 << 30, err));
    OZ_NEED(!inside || !beside || inside == beside, err, OZ_E_FORMAT, "%s.%s: %lld, but config.json.%s is %lld", p->where, key, (long long)inside, key, (long long)beside);
    if (inside || beside) r->original_max = inside ? inside : beside;
    else if (!r->original_max) r->original_max = p->d->max_position;
    return OZ_OK;
}

static double mscale_of(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0; }

static oz_status yarn_read(oz_rope_cfg *r, const place *p, oz_err *err) {
    double mscale = 0, mscale_all_dim = 0;
    int truncate = 1;
    r->beta_fast = 32.0, r->beta_slow = 1.0;
    const struct { const char *key; double *out; } floats[] = {{"beta_fast", &r->beta_fast}, {"beta_slow", &r->beta_slow}, {"mscale", &mscale}, {"mscale_all_dim", &mscale_all_dim}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) OZ_TRY(oz_json_float(floats[i].out, p->s, p->where, floats[i].key, i < 2 ? 1e-6 : 0.0, 1e6, err));
    OZ_TRY(oz_json_bool(&truncate, p->s, p->where, "truncate", err));
    r->truncate = truncate;
    r->score_factor = mscale_of(r->factor, mscale_all_dim) * mscale_of(r->factor, mscale_all_dim);
    r->attention_factor = mscale > 0 && mscale_all_dim > 0 ? mscale_of(r->factor, mscale) / mscale_of(r->factor, mscale_all_dim) : mscale_of(r->factor, 1.0);
    return oz_json_float(&r->attention_factor, p->s, p->where, "attention_factor", 1e-6, 1e6, err);
}

static oz_status llama3_read(oz_rope_cfg *r, const place *p, oz_err *err) {
    r->low_freq_factor = 1.0, r->high_freq_factor = 4.0;
    OZ_TRY(oz_json_float(&r->low_freq_factor, p->s, p->where, "low_freq_factor", 1e-6, 1e6, err));
    OZ_TRY(oz_json_float(&r->high_freq_factor, p->s, p->where, "high_freq_factor", 1e-6, 1e6, err));
    OZ_NEED(r->high_freq_factor > r->low_freq_factor, err, OZ_E_FORMAT, "%s.high_freq_factor: must be above low_freq_factor %g, found %g", p->where, r->low_freq_factor, r->high_freq_factor);
    return OZ_OK;
}

static oz_status factors_read(const json_t **out, const place *p, const char *key, oz_err *err) {
    *out = json_object_get(p->s, key);
    const size_t n = (size_t)p->d->rope_dim / 2;
    OZ_NEED(json_is_array(*out) && json_array_size(*out) == n, err, OZ_E_FORMAT, "%s.%s: must be a list of %zu numbers, found %s of %zu", p->where, key, n,
            json_is_array(*out) ? "one" : *out ? "no list" : "nothing", json_array_size(*out));
    for (size_t i = 0; i < n; i++)
        OZ_NEED(json_is_number(json_array_get(*out, i)) && json_number_value(json_array_get(*out, i)) > 0, err, OZ_E_FORMAT, "%s.%s[%zu]: must be a number above 0, found %s", p->where, key, i,
                oz_json_show(json_array_get(*out, i)));
    return OZ_OK;
}

static oz_status long_read(oz_rope_cfg *r, const place *p, oz_err *err) {
    OZ_TRY(factors_read(&r->short_factor, p, "short_factor", err));
    OZ_TRY(factors_read(&r->long_factor, p, "long_factor", err));
    if (!json_is_number(json_object_get(p->s, "factor"))) r->factor = (double)p->d->max_position / (double)r->original_max;
    r->attention_factor = r->factor <= 1.0 || r->original_max == 1 ? 1.0 : sqrt(1.0 + log(r->factor) / log((double)r->original_max));
    return oz_json_float(&r->attention_factor, p->s, p->where, "attention_factor", 1e-6, 1e6, err);
}

/* p->s: the object that describes it, or NULL: the default type. */
static oz_status rope_read(oz_rope_cfg *r, const place *p, oz_err *err) {
    if (r->theta == 0) r->theta = 10000.0;
    r->factor = r->attention_factor = r->score_factor = 1.0;
    if (!p->s) return OZ_OK;
    OZ_NEED(json_is_object(p->s), err, OZ_E_FORMAT, "%s: must be an object, found %s", p->where, oz_json_show(p->s));
    OZ_TRY(oz_json_float(&r->theta, p->s, p->where, "rope_theta", 1.0, 1e15, err));
    OZ_TRY(type_read(r, p, err));
    OZ_TRY(keys_check(p, err));
    if (r->type == OZ_ROPE_DEFAULT) return OZ_OK;
    OZ_TRY(oz_json_float(&r->factor, p->s, p->where, "factor", 1e-3, 1e6, err));
    OZ_TRY(original_max_read(r, p, err));
    if (r->type == OZ_ROPE_YARN) return yarn_read(r, p, err);
    if (r->type == OZ_ROPE_LLAMA3) return llama3_read(r, p, err);
    if (r->type == OZ_ROPE_LONG) return long_read(r, p, err);
    return OZ_OK;
}

static const json_t *member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

/* Where both spellings are there, the newer one is read, so the older one must not say anything else. */
static oz_status agree_check(const json_t *v5, const json_t *classic, oz_err *err) {
    const char *key;
    json_t *old;
    json_object_foreach((json_t *)classic, key, old) {
        const json_t *now = json_object_get(v5, strcmp(key, "type") == 0 ? "rope_type" : key);
        const bool same = json_is_null(old) || (json_is_number(old) && json_is_number(now) ? json_number_value(old) == json_number_value(now) : json_equal(old, now));
        OZ_NEED(same, err, OZ_E_FORMAT, "config.json.rope_scaling.%s: %s contradicts config.json.rope_parameters, which says %s", key, oz_json_show(old), oz_json_show(now));
    }
    return OZ_OK;
}

oz_status oz_ropes_read(oz_dims *d, const json_t *c, oz_err *err) {
    static const struct { const char *nested, *where, *theta; } kinds[OZ_MAX_ROPES] = {
        {"full_attention", "config.json.rope_parameters.full_attention", "rope_theta"}, {"sliding_attention", "config.json.rope_parameters.sliding_attention", "rope_local_base_freq"}};
    const json_t *v5 = member(c, "rope_parameters"), *classic = member(c, "rope_scaling");
    const bool by_kind = member(v5, kinds[0].nested) || member(v5, kinds[1].nested);
    OZ_NEED(!by_kind || d->n_ropes > 1, err, OZ_E_UNSUPPORTED, "config.json.rope_parameters: differs by kind of layer, which this model_type does not");
    if (v5 && classic) OZ_TRY(agree_check(by_kind ? member(v5, kinds[0].nested) : v5, classic, err));
    for (int i = 0; i < d->n_ropes; i++) {
        place p = {c, by_kind ? member(v5, kinds[i].nested) : i > 0 ? NULL : v5 ? v5 : classic, by_kind ? kinds[i].where : v5 ? "config.json.rope_parameters" : "config.json.rope_scaling", d};
        OZ_TRY(oz_json_float(&d->ropes[i].theta, c, "config.json", kinds[i].theta, 1.0, 1e15, err));
        OZ_TRY(rope_read(&d->ropes[i], &p, err));
    }
    return OZ_OK;
}

/* The pair of a head that turns `rotations` times over the original context. */
static double yarn_pair(const oz_rope_cfg *r, int64_t dim, double rotations) { return (double)dim * log((double)r->original_max / (rotations * 2.0 * M_PI)) / (2.0 * log(r->theta)); }

/* Share of a pair's frequency that is divided by the factor: none below `low`, all from `high` on. */
static double yarn_ramp(const oz_rope_cfg *r, int64_t dim, int64_t i) {
    double low = yarn_pair(r, dim, r->beta_fast), high = yarn_pair(r, dim, r->beta_slow);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0.0), high = fmin(high, (double)dim - 1.0);
    if (low == high) high += 0.001;
    return fmin(fmax(((double)i - low) / (high - low), 0.0), 1.0);
}

static double llama3_scaled(const oz_rope_cfg *r, double f) {
    const double wavelen = 2.0 * M_PI / f, old = (double)r->original_max, low = old / r->low_freq_factor, high = old / r->high_freq_factor;
    const double smooth = (old / wavelen - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    if (wavelen > low) return f / r->factor;
    return wavelen >= high ? (1.0 - smooth) * f / r->factor + smooth * f : f;
}

void oz_rope_inv_freq(float *out, const oz_rope_cfg *r, int64_t dim, int64_t max_len) {
    const json_t *factors = max_len > r->original_max ? r->long_factor : r->short_factor;
    for (int64_t i = 0; i < dim / 2; i++) {
        const double power = pow(r->theta, (double)(2 * i) / (double)dim);
        double f = (float)(1.0 / power); /* the reference rounds it to f32 first and scales in f32 */
        if (r->type == OZ_ROPE_LINEAR) f /= r->factor;
        if (r->type == OZ_ROPE_LLAMA3) f = llama3_scaled(r, f);
        if (r->type == OZ_ROPE_YARN) f = f / r->factor * yarn_ramp(r, dim, i) + f * (1.0 - yarn_ramp(r, dim, i));
        if (r->type == OZ_ROPE_LONG) f = 1.0 / (json_number_value(json_array_get(factors, (size_t)i)) * power);
        out[i] = (float)f;
    }
}
