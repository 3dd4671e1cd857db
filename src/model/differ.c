/* Two configs: what makes the model of one compute otherwise than that of the other. There is no list of keys. A config is read into dims, as for running it; a key
 * counts if the dims change, where they differ from the other's, when it takes the value that it has there. Absent keys and their defaults, keys of another
 * place or another spelling (rope_scaling, rope_parameters), and keys that nothing reads need no rule of their own then. */
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/internal.h"

typedef struct view { const oz_arch *arch; oz_dims dims; } view; /* compared byte by byte */

/* An object of ours and the one in its place in theirs. */
typedef struct pair { json_t *ours; const json_t *theirs; } pair;

typedef struct job {
    json_t *config;            /* of which one key at a time is changed */
    view ours, theirs;
    void (*each)(void *arg, const oz_config_key *k);
    void *arg;
    bool untied;               /* ours has a head of its own, theirs the embedding: the comparison of weights tells */
    size_t n;                  /* keys that were handed over */
} job;

/* Instead of a pointer to numbers: what they are. */
static const json_t *digest(const json_t *list) {
    uint64_t h = json_is_array(list) ? 1469598103934665603u : 0; /* FNV-1a, of whole numbers */
    for (size_t i = 0; i < json_array_size(list); i++) {
        const double v = json_number_value(json_array_get(list, i));
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    return (const json_t *)(uintptr_t)h; /* NOLINT: never followed */
}

static bool view_read(view *v, const json_t *config, bool untied) {
    memset(v, 0, sizeof *v);
    if (oz_arch_read(&v->arch, &v->dims, config, NULL) != OZ_OK) return false;
    for (int i = 0; i < OZ_MAX_ROPES; i++) v->dims.ropes[i].short_factor = digest(v->dims.ropes[i].short_factor), v->dims.ropes[i].long_factor = digest(v->dims.ropes[i].long_factor);
    bool slides = false;
    for (int64_t i = 0; i < v->dims.n_layers; i++) slides |= oz_dims_slides(&v->dims, i);
    if (!slides) v->dims.window = 0; /* a length that no layer has */
    if (untied) v->dims.features &= ~(unsigned)OZ_F_TIED;
    return true;
}

/* What ends a text and how long it may be is no part of what a token's logits are. */
static void forget_text(view *v) {
    v->dims.max_position = 0, v->dims.bos_id = 0, v->dims.n_eos = 0;
    memset(v->dims.eos_ids, 0, sizeof v->dims.eos_ids);
}

/* Whether `with` is no longer ours in a byte in which ours and theirs differ. */
static bool changes(view ours, view theirs, view with, bool of_logits) {
    if (of_logits) forget_text(&ours), forget_text(&theirs), forget_text(&with);
    const unsigned char *a = (const unsigned char *)&ours, *b = (const unsigned char *)&theirs, *c = (const unsigned char *)&with;
    for (size_t i = 0; i < sizeof ours; i++)
        if (a[i] != b[i] && c[i] != a[i]) return true;
    return false;
}

static void say(job *j, bool of_logits, const char *path, const pair *shown, const char *key) {
    j->each(j->arg, &(oz_config_key){path, of_logits, json_object_get(shown->ours, key), json_object_get(shown->theirs, key)});
    j->n++;
}

static void put(json_t *o, const char *key, json_t *v) {
    if (v) json_object_set(o, key, v);
    else json_object_del(o, key);
}

static void key_compare(job *j, const pair *read, const pair *shown, const char *key, const char *path) {
    json_t *mine = json_incref(json_object_get(read->ours, key));
    view with;
    put(read->ours, key, json_object_get(read->theirs, key));
    const bool reads = view_read(&with, j->config, j->untied);
    put(read->ours, key, mine);
    json_decref(mine);
    if (!reads || changes(j->ours, j->theirs, with, false)) say(j, !reads || changes(j->ours, j->theirs, with, true), path, shown, key);
}

static pair inner(const pair *p, const char *key) { return (pair){json_object_get(p->ours, key), json_object_get(p->theirs, key)}; }

/* read: in j->config; shown: the same as the files have it. */
static void members_compare(job *j, const pair *read, const pair *shown, const char *path) {
    json_t *all = json_copy((json_t *)shown->theirs), *unused; /* of both */
    const char *key;
    json_object_update(all, shown->ours);
    json_object_foreach(all, key, unused) {
        const pair r = inner(read, key), s = inner(shown, key);
        if (json_equal(r.ours, r.theirs)) continue;
        char *where = oz_asprintf("%s%s%.100s", path, *path ? "." : "", key);
        if (json_is_object(r.ours) && json_is_object(r.theirs)) members_compare(j, &r, &s, where);
        else key_compare(j, read, shown, key, where);
        oz_free(where);
    }
    json_decref(all);
}

/* A GGUF keeps numbers with a point in f32, as the model has them: there is nothing to tell of two that are one in it. */
static void numbers_align(json_t *ours, const json_t *theirs) {
    const char *key;
    json_t *x;
    if (json_is_real(ours) && json_is_real(theirs) && (float)json_real_value(ours) == (float)json_real_value(theirs)) json_real_set(ours, json_real_value(theirs));
    for (size_t i = 0; i < json_array_size(ours); i++) numbers_align(json_array_get(ours, i), json_array_get(theirs, i));
    json_object_foreach(ours, key, x) numbers_align(x, json_object_get(theirs, key));
}

void oz_config_compare(const json_t *ours, const json_t *theirs, void (*each)(void *arg, const oz_config_key *k), void *arg) {
    static const char class_key[] = "architectures"; /* other programs choose the model's code by it */
    job j = {.each = each, .arg = arg, .config = json_deep_copy(ours)};
    const pair read = {j.config, theirs}, shown = {(json_t *)ours, theirs}, classes = inner(&shown, class_key);
    numbers_align(j.config, theirs);
    if (view_read(&j.ours, j.config, false) && view_read(&j.theirs, theirs, false)) {
        j.untied = j.theirs.dims.features & OZ_F_TIED && !(j.ours.dims.features & OZ_F_TIED);
        view_read(&j.theirs, theirs, j.untied);
        const bool same = memcmp(&j.ours, &j.theirs, sizeof j.ours) == 0;
        if (!same) members_compare(&j, &read, &shown, "");
        if (!same && j.n == 0) each(arg, &(oz_config_key){"", true, ours, theirs}); /* no key alone makes a difference */
        if (classes.ours && classes.theirs && !json_equal(classes.ours, classes.theirs)) say(&j, false, class_key, &shown, class_key);
    }
    json_decref(j.config);
}
