/* Which tensors and files there are, beside those that the model needs: parts that nothing calls for, matrices that are there twice, files that nobody reads. */
#include <dirent.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "measure/internal.h"

/* ---- tensors that nothing calls for ---- */

/* Parts of names that the model's modules have: "model", "model.layers", "model.layers.0" ... */
static oz_map *prefixes_new(const oz_verify *v) {
    oz_map *m = oz_map_new(v->list.n);
    for (size_t i = 0; i < v->list.n; i++)
        for (const char *name = v->list.items[i].module, *dot = name; (dot = strchr(dot, '.')); dot++) oz_map_add(m, name, (size_t)(dot - name), 0);
    return m;
}

/* The shortest beginning of a name that no module has: what a whole part (a tower, a layer too many) is called by. */
static size_t part_length(const oz_map *prefixes, const char *name) {
    for (const char *dot = name; (dot = strchr(dot, '.')); dot++)
        if (!oz_map_get(prefixes, name, (size_t)(dot - name), &(int64_t){0})) return (size_t)(dot - name);
    return strlen(name);
}

/* Of a module (whose tensors its scheme speaks of), a scale of the cache, the head of a model that has it from its embedding, or a table that others store. */
static bool is_called_for(const oz_verify *v, const char *name) {
    static const char *const idle[] = {"lm_head.weight", "lm_head.bias"};
    const char *dot = strrchr(name, '.');
    int64_t i;
    if (oz_map_get(v->modules, name, strlen(name), &i) || (dot && oz_map_get(v->modules, name, (size_t)(dot - name), &i))) return true;
    for (size_t k = 0; k < sizeof idle / sizeof *idle; k++)
        if (oz_str_ends(name, idle[k])) return true;
    return oz_scheme_is_kv(name) || oz_str_ends(name, ".rotary_emb.inv_freq") || oz_str_starts(name, "lm_head.");
}

/* Beside the text part of a larger model: a tower of images, say. */
static bool is_other_part(const oz_verify *v, const char *part, size_t n) {
    return json_object_get(oz_ckpt_config(v->ckpt), "text_config") && !memmem(part, n, ".layers.", 8);
}

typedef struct surplus { const char *name; size_t n_name, n; const oz_tensor *first; } surplus;

static void check_surplus(const oz_verify *v) {
    if (!v->list.n) return; /* the model is not known: nor what it needs */
    oz_map *prefixes = prefixes_new(v), *parts = oz_map_new(16);
    surplus *found = NULL;
    size_t n = 0, cap = 0;
    for (size_t i = 0; i < oz_ckpt_count(v->ckpt); i++) {
        const oz_tensor *t = oz_ckpt_at(v->ckpt, i);
        if (is_called_for(v, t->name)) continue;
        const size_t length = part_length(prefixes, t->name);
        int64_t k;
        if (!oz_map_get(parts, t->name, length, &k)) {
            oz_map_add(parts, t->name, length, k = (int64_t)n);
            oz_grow((void **)&found, &cap, n + 1, sizeof *found);
            found[n++] = (surplus){t->name, length, 0, t};
        }
        found[k].n++;
    }
    for (size_t k = 0; k < n; k++) {
        const int length = (int)found[k].n_name;
        if (is_other_part(v, found[k].name, found[k].n_name)) oz_log_info("%.*s: %zu tensors, a part that is not run here", length, found[k].name, found[k].n);
        else oz_found_warning(v->f, "%.*s: expected no such part of a model of this config, found %zu tensors that are not used, the first %s (%s)", length, found[k].name, found[k].n, found[k].first->name,
                              found[k].first->file_name);
    }
    oz_free(found);
    oz_map_free(&prefixes);
    oz_map_free(&parts);
}

/* ---- matrices that are there twice ---- */

enum { SAMPLE = 64 };
typedef struct sample { uint64_t n_bytes; uint8_t at[3][SAMPLE]; } sample; /* beginning, middle and end */

/* False where it is too small, or says the same all along: zeros and ones are no copies of each other. */
static bool sample_take(sample *s, const oz_tensor *t) {
    if (t->n_dims < 2 || t->n_bytes < 4 * SAMPLE) return false;
    const uint8_t *p = t->data, *const from[] = {p, p + t->n_bytes / 2, p + t->n_bytes - SAMPLE};
    *s = (sample){.n_bytes = t->n_bytes};
    for (int i = 0; i < 3; i++) memcpy(s->at[i], from[i], SAMPLE);
    return memcmp(p, p + 4, SAMPLE) != 0;
}

static bool is_codes(const char *name) { return oz_str_ends(name, ".weight") || oz_str_ends(name, ".weight_packed") || oz_str_ends(name, ".qweight"); }

static void check_twins(const oz_verify *v) {
    oz_map *seen = oz_map_new(oz_ckpt_count(v->ckpt));
    for (size_t i = 0; i < oz_ckpt_count(v->ckpt); i++) {
        const oz_tensor *t = oz_ckpt_at(v->ckpt, i), *other;
        const char *dot = strrchr(t->name, '.');
        sample s;
        int64_t k;
        const bool used = dot && v->modules && oz_map_get(v->modules, t->name, (size_t)(dot - t->name), &k);
        if (!used || !is_codes(t->name) || !sample_take(&s, t)) continue;
        if (oz_map_add(seen, (const char *)&s, sizeof s, (int64_t)i) || !oz_map_get(seen, (const char *)&s, sizeof s, &k)) continue;
        other = oz_ckpt_at(v->ckpt, (size_t)k);
        if (memcmp(t->data, other->data, t->n_bytes) == 0)
            oz_found_warning(v->f, "%s: expected a matrix of its own, found the bytes of %s (%s, %s)", t->name, other->name, t->file_name, other->file_name);
    }
    oz_map_free(&seen);
}

/* ---- files that nobody reads ---- */

static void check_files(const oz_verify *v) {
    DIR *dir = oz_path_is_dir(oz_ckpt_path(v->ckpt)) ? opendir(oz_ckpt_path(v->ckpt)) : NULL;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (!oz_str_starts(e->d_name, "model") || !oz_str_ends(e->d_name, ".safetensors")) continue;
        char *path = oz_path_join(oz_ckpt_path(v->ckpt), e->d_name);
        if (!oz_ckpt_reads(v->ckpt, path)) oz_found_warning(v->f, "%s: expected no weights beside those that the index names, found a file that is not read", e->d_name);
        oz_free(path);
    }
    if (dir) closedir(dir);
}

oz_status oz_verify_tensors(const oz_verify *v, oz_err *err) {
    (void)err;
    check_files(v);
    check_surplus(v);
    check_twins(v);
    return OZ_OK;
}
