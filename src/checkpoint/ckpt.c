/* oz_ckpt: one view of a folder of safetensors files or of a GGUF file.
 *
 * Which files of a folder count: model.safetensors, or those that model.safetensors.index.json names. Other .safetensors files beside
 * an index are passed over, since the index says what the checkpoint is; both a model.safetensors and an index that does not name it
 * is an error, because readers in use differ on which one they take. Index and files must agree on every name, both ways. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <dirent.h>
#include <math.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char SINGLE[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";

bool oz_is_gguf(const char *path) {
    if (oz_path_is_dir(path)) return false;
    if (oz_str_ends(path, ".gguf")) return true;
    oz_mmap m;
    if (oz_mmap_open(&m, path, NULL) != OZ_OK) return false; /* the caller opens it again and says why */
    const bool hit = m.n_bytes >= 4 && memcmp(m.data, "GGUF", 4) == 0;
    oz_mmap_close(&m);
    return hit;
}

oz_status oz_ckpt_map(oz_ckpt *c, size_t *index, const char *path, oz_err *err) {
    oz_mmap m;
    OZ_TRY(oz_mmap_open(&m, path, err));
    oz_grow((void **)&c->maps, &c->cap_maps, c->n_maps + 1, sizeof *c->maps);
    *index = c->n_maps;
    c->maps[c->n_maps++] = m;
    return OZ_OK;
}

oz_status oz_ckpt_add(oz_ckpt *c, const oz_tensor *t, oz_err *err) {
    size_t n = strlen(t->name);
    int64_t other;
    if (!oz_map_add(c->by_name, t->name, n, (int64_t)c->n_tensors)) {
        oz_map_get(c->by_name, t->name, n, &other);
        OZ_FAIL(err, OZ_E_FORMAT, "%s: the name is there twice (%s and %s)", t->name, c->tensors[other].file_name, t->file_name);
    }
    oz_grow((void **)&c->tensors, &c->cap_tensors, c->n_tensors + 1, sizeof *c->tensors);
    oz_tensor *own = &c->tensors[c->n_tensors++];
    *own = *t;
    own->name = oz_arena_strndup(c->arena, t->name, n);
    c->n_bytes += t->n_bytes;
    return OZ_OK;
}

static int tensor_compare(const void *a, const void *b) { return strcmp(((const oz_tensor *)a)->name, ((const oz_tensor *)b)->name); }

static void tensors_sort(oz_ckpt *c) {
    if (c->n_tensors) qsort(c->tensors, c->n_tensors, sizeof *c->tensors, tensor_compare);
    for (size_t i = 0; i < c->n_tensors; i++) oz_map_set(c->by_name, c->tensors[i].name, strlen(c->tensors[i].name), (int64_t)i);
}

static oz_status file_load(oz_ckpt *c, const char *name, oz_err *err) {
    char *path = oz_path_join(c->path, name);
    size_t index;
    oz_status st = oz_ckpt_map(c, &index, path, err);
    oz_free(path);
    if (st != OZ_OK) return st;
    return oz_safetensors_load(c, &c->maps[index], oz_arena_strndup(c->arena, name, strlen(name)), err);
}

/* ---- the index ---- */

static oz_status shard_name_check(const char *tensor, const json_t *file, oz_err *err) {
    const char *s = json_string_value(file);
    bool ok = s && strlen(s) == json_string_length(file) && !strpbrk(s, "/\\") && oz_str_ends(s, ".safetensors");
    OZ_NEED(ok, err, OZ_E_FORMAT, "%s: weight_map.%s: must be the name of a .safetensors file in the same folder, found %s", INDEX, tensor,
            oz_json_show(file));
    return OZ_OK;
}

static oz_status placed_check(const char *name, const char *file, const json_t *weight_map, oz_err *err) {
    const char *said = json_string_value(json_object_get(weight_map, name));
    OZ_NEED(said, err, OZ_E_FORMAT, "%s: stands in %s, but not in %s", name, file, INDEX);
    OZ_NEED(strcmp(said, file) == 0, err, OZ_E_FORMAT, "%s: stands in %s, but %s puts it into %s", name, file, INDEX, said);
    return OZ_OK;
}

/* Loads one shard; each of its tensors must be what the index sends to it. */
static oz_status shard_load(oz_ckpt *c, const char *file, const json_t *weight_map, oz_err *err) {
    size_t first = c->n_tensors;
    oz_status st = file_load(c, file, err);
    if (st != OZ_OK) return oz_err_prefix(err, "%s", INDEX);
    for (size_t i = first; i < c->n_tensors; i++) OZ_TRY(oz_found(c->f, placed_check(c->tensors[i].name, file, weight_map, err), err));
    return OZ_OK;
}

static oz_status held_check(const oz_ckpt *c, const char *name, const json_t *file, oz_err *err) {
    OZ_NEED(oz_map_get(c->by_name, name, strlen(name), &(int64_t){0}), err, OZ_E_FORMAT, "%s: %s puts it into %s, which does not hold it", name, INDEX,
            json_string_value(file));
    return OZ_OK;
}

enum { SHARD_PENDING, SHARD_READ, SHARD_DAMAGED };

static oz_status shards_load(oz_ckpt *c, const json_t *weight_map, oz_err *err) {
    const char *name;
    json_t *file;
    int64_t state;
    oz_map *shards = oz_map_new(64);
    oz_status st = OZ_OK;
    json_object_foreach((json_t *)weight_map, name, file) {
        if (st == OZ_OK && (st = shard_name_check(name, file, err)) != OZ_OK) st = oz_found(c->f, st, err);
        else if (st == OZ_OK) oz_map_add(shards, json_string_value(file), json_string_length(file), SHARD_PENDING);
    }
    json_object_foreach((json_t *)weight_map, name, file) {
        const char *s = json_string_value(file);
        if (st != OZ_OK || !s || !oz_map_get(shards, s, strlen(s), &state) || state != SHARD_PENDING) continue;
        st = shard_load(c, s, weight_map, err);
        oz_map_set(shards, s, strlen(s), st == OZ_OK ? SHARD_READ : SHARD_DAMAGED);
        st = oz_found(c->f, st, err);
    }
    json_object_foreach((json_t *)weight_map, name, file) {
        const char *s = json_string_value(file);
        if (st == OZ_OK && s && oz_map_get(shards, s, strlen(s), &state) && state == SHARD_READ) st = oz_found(c->f, held_check(c, name, file, err), err);
    }
    oz_map_free(&shards);
    return st;
}

static bool names_file(const json_t *weight_map, const char *wanted) {
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)weight_map, name, file) {
        if (json_is_string(file) && strcmp(json_string_value(file), wanted) == 0) return true;
    }
    return false;
}

/* No reader goes by it; who shows progress or plans room does. */
static void total_size_check(const oz_ckpt *c, const json_t *index) {
    const json_t *total = json_object_get(json_object_get(index, "metadata"), "total_size");
    if (!json_is_integer(total) || json_integer_value(total) != (json_int_t)c->n_bytes)
        oz_found_warning(c->f, "%s: metadata.total_size: expected %zu, the bytes of all tensors, found %s", INDEX, c->n_bytes, total ? oz_json_show(total) : "nothing");
}

static oz_status index_follow(oz_ckpt *c, const json_t *index, bool single_exists, oz_err *err) {
    const json_t *weight_map = json_object_get(index, "weight_map");
    OZ_NEED(json_is_object(weight_map), err, OZ_E_FORMAT, "%s: weight_map: must be an object, found %s", INDEX, oz_json_show(weight_map));
    oz_status st = OZ_OK;
    if (single_exists && !names_file(weight_map, SINGLE))
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: holds both %s and %s, which does not name it; one of them must go", c->path, SINGLE, INDEX);
    OZ_TRY(oz_found(c->f, st, err));
    OZ_TRY(shards_load(c, weight_map, err));
    if (c->f) total_size_check(c, index);
    return OZ_OK;
}

/* Says what there is that may have been meant: weights under other names or in forms that are not read. */
static oz_status no_weights(const oz_ckpt *c, oz_err *err) {
    static const char *const forms[] = {".safetensors", ".gguf", ".bin", ".pt", ".pth"};
    oz_buf there = {0};
    struct dirent **list = NULL;
    const int n = scandir(c->path, &list, NULL, alphasort);
    int found = 0;
    for (int i = 0; i < n; i++) {
        bool is = false;
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) is = is || oz_str_ends(list[i]->d_name, forms[k]);
        if (is && found++ < 5) oz_buf_printf(&there, "%s%s", found > 1 ? ", " : "; found ", list[i]->d_name);
        free(list[i]);
    }
    free(list);
    if (found > 5) oz_buf_printf(&there, " and %d more", found - 5);
    oz_err_set(err, OZ_E_NOT_FOUND, __FILE__, __LINE__, "%s: holds neither %s nor %s%s", c->path, SINGLE, INDEX, found ? there.data : "");
    oz_buf_deinit(&there);
    return OZ_E_NOT_FOUND;
}

static oz_status weights_load(oz_ckpt *c, oz_err *err) {
    char *single = oz_path_join(c->path, SINGLE), *index_path = oz_path_join(c->path, INDEX);
    bool single_exists = oz_path_exists(single), index_exists = oz_path_exists(index_path);
    json_t *index = NULL;
    oz_status st = index_exists ? oz_json_load(&index, index_path, OZ_JSON_LIMIT, err) : OZ_OK;
    oz_free(single);
    oz_free(index_path);
    if (st != OZ_OK) return st;
    if (!index && !single_exists) return no_weights(c, err);
    if (!index) return file_load(c, SINGLE, err);
    st = index_follow(c, index, single_exists, err);
    json_decref(index);
    return st;
}

/* Older writers say how a model is quantized in a file beside config.json alone, and not by whose method: its name tells. */
static const struct { const char *file, *method; } SIDE_CONFIGS[] = {{"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}, {"hf_quant_config.json", "modelopt"}};

static bool is_scalar(const json_t *v) { return v && !json_is_null(v) && !json_is_object(v) && !json_is_array(v); }

/* What GPTQ says in both files; of what config.json has the first holds. Which version the zero points are of nobody can tell then. */
static oz_status side_check(oz_ckpt *c, oz_err *err) {
    const char *file = SIDE_CONFIGS[0].file, *key;
    const json_t *said = json_object_get(c->config, "quantization_config");
    const char *method = json_string_value(json_object_get(said, "quant_method"));
    char *path = oz_path_join(c->path, file);
    json_t *v = NULL, *theirs;
    if (!method || strcmp(method, SIDE_CONFIGS[0].method) != 0 || !oz_path_exists(path) || oz_json_load(&v, path, OZ_JSON_LIMIT, NULL) != OZ_OK) v = NULL; /* nobody reads it */
    oz_free(path);
    const char *ours_v = json_string_value(json_object_get(said, "checkpoint_format")), *theirs_v = json_string_value(json_object_get(v, "checkpoint_format"));
    oz_status st = OZ_OK;
    if (v && (ours_v || theirs_v) && strcasecmp(ours_v ? ours_v : "gptq", theirs_v ? theirs_v : "gptq") != 0)
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s.checkpoint_format: expected %s, as config.json has, found %s", file, ours_v ? ours_v : "none, which is gptq", theirs_v ? theirs_v : "none, which is gptq");
    json_object_foreach(c->f ? v : NULL, key, theirs) {
        const json_t *ours = json_object_get(said, key);
        if (!is_scalar(ours) || !is_scalar(theirs) || json_equal(ours, theirs) || strcmp(key, "checkpoint_format") == 0) continue;
        char shown[64];
        snprintf(shown, sizeof shown, "%s", oz_json_show(ours));
        oz_found_warning(c->f, "%s.%.60s: expected %s, as config.json has, found %s", file, key, shown, oz_json_show(theirs));
    }
    json_decref(v);
    return st;
}

static oz_status side_config(oz_ckpt *c, oz_err *err) {
    static const char *const PLACES[] = {"quantization_config", "compression_config"};
    if (json_object_get(json_object_get(c->config, "text_config"), PLACES[0])) return OZ_OK;
    for (size_t i = 0; i < 2; i++)
        if (json_object_get(c->config, PLACES[i])) return OZ_OK;
    for (size_t i = 0; i < sizeof SIDE_CONFIGS / sizeof *SIDE_CONFIGS; i++) {
        char *path = oz_path_join(c->path, SIDE_CONFIGS[i].file);
        json_t *v = NULL;
        oz_status st = oz_path_exists(path) ? oz_json_load(&v, path, OZ_JSON_LIMIT, err) : OZ_OK;
        if (st == OZ_OK && v && !json_is_object(v)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: must be an object, found %s", path, oz_json_show(v));
        oz_free(path);
        if (st == OZ_OK && v) {
            json_object_set_new(v, "quant_method", json_string(SIDE_CONFIGS[i].method));
            json_object_set(c->config, PLACES[0], v);
        }
        json_decref(v);
        if (st != OZ_OK || v) return st;
    }
    return OZ_OK;
}

static oz_status config_load(oz_ckpt *c, oz_err *err) {
    char *path = oz_path_join(c->path, "config.json");
    json_t *config = NULL;
    oz_status st = oz_json_load(&config, path, OZ_JSON_LIMIT, err);
    if (st == OZ_OK && !json_is_object(config)) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: must be an object, found %s", path, oz_json_show(config));
    if (st == OZ_OK) c->config = json_incref(config);
    json_decref(config);
    oz_free(path);
    OZ_TRY(st);
    OZ_TRY(oz_found(c->f, side_check(c, err), err));
    return side_config(c, err);
}

static oz_status folder_load(oz_ckpt *c, oz_err *err) {
    OZ_TRY(oz_found(c->f, config_load(c, err), err));
    OZ_TRY(oz_found(c->f, weights_load(c, err), err));
    return oz_found(c->f, oz_experts_split(c, err), err);
}

/* ---- the view ---- */

oz_ckpt *oz_ckpt_new(const char *path) {
    oz_ckpt *c = oz_alloc(sizeof *c);
    c->path = oz_strdup(path);
    c->arena = oz_arena_new(0);
    c->by_name = oz_map_new(1024);
    return c;
}

static oz_status path_open(oz_ckpt **out, const char *path, const oz_findings *f, oz_err *err) {
    oz_ckpt *c = oz_ckpt_new(path);
    c->f = f;
    c->is_gguf = oz_is_gguf(path);
    oz_status st;
    if (c->is_gguf)
        st = oz_gguf_load(c, path, err);
    else if (oz_path_is_dir(path))
        st = folder_load(c, err);
    else if (oz_path_exists(path))
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected a folder with a checkpoint or a GGUF file", path);
    else
        st = oz_err_set(err, OZ_E_NOT_FOUND, __FILE__, __LINE__, "%s: %s", path, strerror(ENOENT));
    if (st != OZ_OK) {
        oz_ckpt_close(&c);
        return st;
    }
    tensors_sort(c);
    c->f = NULL;
    *out = c;
    return OZ_OK;
}

static oz_status model_open(oz_ckpt **out, const char *model, const oz_findings *f, oz_err *err) {
    *out = NULL;
    char *path;
    OZ_TRY(oz_hub_resolve(&path, model, err));
    oz_status st = path_open(out, path, f, err);
    if (st == OZ_E_NOT_FOUND && strcmp(path, model) != 0) oz_err_prefix(err, "`ounce pull %s` completes it", model); /* others leave snapshots of some files */
    oz_free(path);
    return st;
}

oz_status oz_ckpt_open(oz_ckpt **out, const char *model, oz_err *err) { return model_open(out, model, NULL, err); }

oz_status oz_ckpt_open_all(oz_ckpt **out, const char *model, const oz_findings *f, oz_err *err) { return oz_found(f, model_open(out, model, f, err), err); }

void oz_ckpt_close(oz_ckpt **pc) {
    oz_ckpt *c = *pc;
    if (!c) return;
    for (size_t i = 0; i < c->n_maps; i++) oz_mmap_close(&c->maps[i]);
    json_decref(c->config);
    oz_map_free(&c->by_name);
    oz_arena_free(&c->arena);
    oz_free(c->maps);
    oz_free(c->tensors);
    oz_free(c->path);
    oz_free(c);
    *pc = NULL;
}

oz_status oz_layout_view(oz_ckpt **out, const oz_layout *l, const json_t *config, const char *where, oz_err *err) {
    oz_ckpt *c = oz_ckpt_new(where);
    c->config = json_incref((json_t *)config);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < l->n_tensors && st == OZ_OK; i++) {
        const oz_layout_tensor *t = &l->tensors[i];
        oz_tensor own = {.name = t->name, .file_name = c->path, .dtype = t->dtype, .n_dims = t->n_dims, .n_bytes = t->n_bytes};
        memcpy(own.dims, t->dims, sizeof own.dims);
        st = oz_ckpt_add(c, &own, err);
    }
    tensors_sort(c);
    *out = c;
    if (st != OZ_OK) oz_ckpt_close(out);
    return st;
}

const char *oz_dims_show(char out[OZ_DIMS_TEXT], int n_dims, const int64_t *dims) {
    size_t n = (size_t)snprintf(out, OZ_DIMS_TEXT, "[");
    for (int i = 0; i < n_dims && n < OZ_DIMS_TEXT - 24; i++) n += (size_t)snprintf(out + n, OZ_DIMS_TEXT - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    snprintf(out + n, OZ_DIMS_TEXT - n, "]");
    return out;
}

bool oz_ckpt_reads(const oz_ckpt *c, const char *path) {
    for (size_t i = 0; i < c->n_maps; i++)
        if (oz_path_same(c->maps[i].path, path)) return true;
    return false;
}

const char *oz_ckpt_path(const oz_ckpt *c) { return c->path; }
bool oz_ckpt_is_gguf(const oz_ckpt *c) { return c->is_gguf; }
const json_t *oz_ckpt_config(const oz_ckpt *c) { return c->config; }
size_t oz_ckpt_count(const oz_ckpt *c) { return c->n_tensors; }
const oz_tensor *oz_ckpt_at(const oz_ckpt *c, size_t i) { return &c->tensors[i]; }
size_t oz_ckpt_bytes(const oz_ckpt *c) { return c->n_bytes; }

const oz_tensor *oz_ckpt_find(const oz_ckpt *c, const char *name) {
    int64_t i;
    return oz_map_get(c->by_name, name, strlen(name), &i) ? &c->tensors[i] : NULL;
}

bool oz_ckpt_not_finite(const oz_tensor **out, int64_t *at, const oz_ckpt *c) {
    enum { CHUNK = 4096 };
    float x[CHUNK];
    for (size_t i = 0; i < c->n_tensors; i++) {
        const oz_tensor *t = &c->tensors[i];
        const oz_dtype_info *type = oz_dtype_get(t->dtype);
        const int64_t size = type->block_bytes, n = type->in_safetensors ? (int64_t)t->n_bytes / size : 0;
        for (int64_t k = 0; k < n; k += CHUNK) {
            const int64_t some = n - k < CHUNK ? n - k : CHUNK;
            oz_to_f32(x, t->dtype, (const char *)t->data + k * size, some);
            for (int64_t j = 0; j < some; j++) {
                if (isfinite(x[j])) continue;
                *out = t, *at = k + j;
                return true;
            }
        }
        oz_ckpt_drop(c, t);
    }
    return false;
}

void oz_ckpt_drop(const oz_ckpt *c, const oz_tensor *t) {
    uintptr_t p = (uintptr_t)t->data;
    for (size_t i = 0; i < c->n_maps; i++) {
        uintptr_t base = (uintptr_t)c->maps[i].data;
        if (p >= base && p - base < c->maps[i].n_bytes) oz_mmap_drop(&c->maps[i], t->data, t->n_bytes);
    }
}
