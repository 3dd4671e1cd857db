/* Which tensors and files there are, beside those that the model needs: matrices that are there twice, files that nobody reads. */
#include <dirent.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "measure/internal.h"

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
    check_twins(v);
    return OZ_OK;
}
