/* What --target-bytes has measured, kept in the manifest of the work folder (work.c) that the run then goes on in: the errors of each layer's sets as it is done, and
 * divergences as they come, so that a process may be killed anywhere. Its numbers are written with the 17 digits that give the same ones back; their digest tells whether they are as they were
 * written. What is not is measured anew. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "quantize/internal.h"

static json_t *set_json(const oz_budget_set *s) {
    json_t *errors = json_array();
    for (int k = 0; k < s->n_options; k++) json_array_append_new(errors, json_real(s->options[k].error));
    return json_pack("{s:s, s:o, s:f, s:o}", "modules", s->name, "errors", errors, "least_error", s->least_error, "kl", isfinite(s->kl) ? json_real(s->kl) : json_null());
}

static void digest(char out[65], const json_t *measured) {
    json_t *numbers = json_copy((json_t *)measured);
    oz_sha256 s;
    json_object_del(numbers, "sha256");
    oz_sha256_init(&s);
    oz_sha256_add_json(&s, numbers);
    oz_sha256_hex(out, &s);
    json_decref(numbers);
}

oz_status oz_budget_save(oz_budget *b, oz_err *err) {
    if (!b->work.manifest) return OZ_OK;
    json_t *sets = json_array(), *measured;
    char hex[65];
    for (size_t i = 0; i < b->n_sets; i++) json_array_append_new(sets, set_json(&b->sets[i]));
    measured = json_pack("{s:I, s:O, s:O, s:o}", "layers", (json_int_t)b->layers_done, "calibration", b->calibration, "starved", b->starved, "sets", sets);
    digest(hex, measured);
    json_object_set_new(measured, "sha256", json_string(hex));
    json_object_set_new(b->work.manifest, "measured", measured);
    return oz_work_save(&b->work, err);
}

static void set_load(oz_budget_set *s, const json_t *said) {
    for (int k = 0; k < s->n_options; k++) s->options[k].error = json_real_value(json_array_get(json_object_get(said, "errors"), (size_t)k));
    s->least_error = json_real_value(json_object_get(said, "least_error"));
    if (json_is_real(json_object_get(said, "kl"))) s->kl = json_real_value(json_object_get(said, "kl"));
}

/* What has this digest was written here, of the same sets: the run is the same. */
static bool measured_load(oz_budget *b, const json_t *measured) {
    char found[65];
    const char *said = json_string_value(json_object_get(measured, "sha256"));
    digest(found, measured);
    if (!said || strcmp(said, found) != 0) return false;
    b->layers_done = json_integer_value(json_object_get(measured, "layers"));
    b->calibration = json_incref(json_object_get(measured, "calibration"));
    json_decref(b->starved);
    b->starved = json_incref(json_object_get(measured, "starved"));
    for (size_t i = 0; i < b->n_sets; i++) set_load(&b->sets[i], json_array_get(json_object_get(measured, "sets"), i));
    return true;
}

static int64_t n_layers(const oz_budget *b) {
    int64_t n = 0;
    for (size_t i = 0; i < b->q->list.n; i++)
        if (b->q->list.items[i].layer >= n) n = b->q->list.items[i].layer + 1;
    return n;
}

static size_t n_measured(const oz_budget *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->n_sets; i++) n += !isnan(b->sets[i].kl);
    return n;
}

bool oz_budget_is_measured(const oz_budget *b) { return b->layers_done == n_layers(b) && n_measured(b) == b->n_sets; }

static char *how_much(const oz_budget *b) { return oz_asprintf("the errors of %" PRId64 " of %" PRId64 " layers and the divergences of %zu of %zu sets of modules", b->layers_done, n_layers(b), n_measured(b), b->n_sets); }

/* Modules, their options, and all that cfg said besides. */
static void options_digest(char out[65], const oz_budget *b) {
    oz_sha256 s;
    oz_sha256_init(&s);
    oz_quantize_plan_add(&s, b->q);
    for (size_t i = 0; i < b->n_sets; i++) {
        const oz_budget_set *set = &b->sets[i];
        oz_sha256_add(&s, set->name, strlen(set->name) + 1);
        for (int k = 0; k < set->n_options; k++) {
            const oz_budget_option *o = &set->options[k];
            oz_sha256_add(&s, o->scheme.name, strlen(o->scheme.name) + 1);
            oz_sha256_add(&s, &(int64_t[]){o->scheme.group_size, o->bytes}, 2 * sizeof(int64_t));
        }
    }
    oz_sha256_hex(out, &s);
}

static void take_up(oz_budget *b) {
    const json_t *measured = json_object_get(b->work.manifest, "measured");
    if (!measured) return;
    if (!measured_load(b, measured)) {
        oz_log_warn("%s/manifest.json: measured: is not as it was written; modules are measured anew", b->work.dir);
        json_object_del(b->work.manifest, "measured");
        return;
    }
    char *much = how_much(b);
    oz_log_info("%s: has %s", b->work.dir, much);
    oz_free(much);
}

oz_status oz_budget_begin(oz_budget *b, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err) {
    char options[65];
    options_digest(options, b);
    OZ_TRY(oz_work_open(&b->work, b->q, target, cfg, pool, err));
    oz_status st = oz_work_settle(&b->work, "method, least scheme or other option", options, err);
    if (st == OZ_OK) take_up(b);
    else oz_work_close(&b->work);
    return st;
}

oz_status oz_budget_keep(oz_budget *b, const double *kl, oz_err *err) {
    for (size_t i = 0; i < b->n_sets; i++) b->sets[i].kl = kl[i];
    return oz_budget_save(b, err);
}

void oz_budget_break_off(oz_budget *b, oz_status st, oz_err *err) {
    if (!b->work.manifest) return;
    char *much = how_much(b);
    oz_work_break_off(&b->work, much, st, err);
    oz_free(much);
    oz_work_close(&b->work);
}

void oz_budget_work(oz_work *out, oz_budget *b) {
    *out = b->work;
    b->work = (oz_work){.lock = -1};
}
