/* What the hub says about a revision (GET /api/models/NAME/revision/REV?blobs=true), and which of its files are wanted. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <fnmatch.h>
#include <string.h>

/* Not downloaded unless asked for by name. The rest is small, or it is what this program reads. */
static const struct {
    const char *pattern;
    bool is_weights, beside_safetensors; /* beside_: only where model*.safetensors are there, whose double it is */
} SKIPPED[] = {
    {"*/*", 0, 0},           {".gitattributes", 0, 0}, {"*.png", 0, 0},       {"*.jpg", 0, 0},   {"*.jpeg", 0, 0},       {"*.gif", 0, 0},
    {"*.webp", 0, 0},        {"*.svg", 0, 0},          {"*.mp4", 0, 0},       {"*.wav", 0, 0},   {"*.pdf", 0, 0},        {"*.zip", 0, 0},
    {"*.bin.index.json", 0, 0}, {"*.bin", 1, 0},       {"*.pth", 1, 0},       {"*.pt", 1, 0},    {"*.ckpt", 1, 0},       {"*.h5", 1, 0},
    {"*.msgpack", 1, 0},     {"*.ot", 1, 0},           {"*.onnx", 1, 0},      {"*.onnx_data", 1, 0}, {"*.tflite", 1, 0}, {"*.npz", 1, 0},
    {"*.nemo", 1, 0},        {"*.pkl", 0, 0},          {"training_args*", 0, 0}, {"*.gguf", 1, 1}, {"consolidated*.safetensors", 1, 1},
};
enum { N_SKIPPED = sizeof SKIPPED / sizeof *SKIPPED, MAX_LISTED = 12 };

static bool matches(const char *pattern, const char *name) { return fnmatch(pattern, name, 0) == 0; }

/* -1: wanted; else the row of SKIPPED. */
static int skipped(const char *name, bool has_safetensors) {
    for (int i = 0; i < N_SKIPPED; i++)
        if (matches(SKIPPED[i].pattern, name) && (has_safetensors || !SKIPPED[i].beside_safetensors)) return i;
    return -1;
}

static bool included(const oz_pull_cfg *cfg, const char *name) {
    for (size_t i = 0; i < cfg->n_include; i++)
        if (matches(cfg->include[i], name)) return true;
    return false;
}

/* siblings[i]: {"rfilename", "size", "blobId"} and, for a large file, "lfs": {"sha256", "size"}. */
static oz_status file_add(oz_pull *out, const json_t *item, const char *name, size_t i, oz_err *err) {
    char path[40];
    snprintf(path, sizeof path, "siblings[%zu]", i);
    const json_t *lfs = json_object_get(item, "lfs");
    const char *hash = NULL;
    int64_t size = -1;
    OZ_NEED(oz_name_is_inside(name), err, OZ_E_FORMAT, "%s.rfilename: expected a path inside the repository, found %s", path, oz_json_show(json_object_get(item, "rfilename")));
    OZ_TRY(oz_json_int(&size, json_is_object(lfs) ? lfs : item, path, "size", 0, INT64_MAX / 4, err));
    OZ_TRY(oz_json_str(&hash, json_is_object(lfs) ? lfs : item, path, json_is_object(lfs) ? "sha256" : "blobId", err));
    OZ_NEED(oz_is_hex(hash, json_is_object(lfs) ? 64 : 40), err, OZ_E_FORMAT, "%s: %s: expected a hash of %d digits, found %.80s", path, name, json_is_object(lfs) ? 64 : 40,
            hash ? hash : "none");
    OZ_NEED(size >= 0, err, OZ_E_FORMAT, "%s: %s: expected its size, found none", path, name);
    oz_grow((void **)&out->files, &out->cap_files, out->n_files + 1, sizeof *out->files);
    oz_pull_file *f = &out->files[out->n_files++];
    *f = (oz_pull_file){.name = oz_strdup(name), .n_bytes = size};
    memcpy(f->hash, hash, strlen(hash) + 1);
    return OZ_OK;
}

static const char *name_of(const json_t *item) { /* NULL: no text without NUL */
    const json_t *v = json_object_get(item, "rfilename");
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

static bool any_matches(const json_t *siblings, const char *pattern) {
    size_t i;
    json_t *item;
    json_array_foreach(siblings, i, item)
        if (name_of(item) && matches(pattern, name_of(item))) return true;
    return false;
}

/* Names of files that match, for a message. */
static void names_list(oz_buf *b, const oz_pull *p, const char *pattern) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_files; i++)
        if (matches(pattern, p->files[i].name) && n++ < MAX_LISTED) oz_buf_printf(b, "%s%s", n > 1 ? ", " : "", p->files[i].name);
    if (n > MAX_LISTED) oz_buf_printf(b, " and %zu more", n - MAX_LISTED);
}

static size_t count(const oz_pull *p, const char *pattern) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_files; i++) n += matches(pattern, p->files[i].name);
    return n;
}

/* Without patterns of the user's: is there a model to be had, and one only? passed: weights that are not read here, NULL if none. */
static oz_status choice_check(const oz_pull *p, const oz_pull_cfg *cfg, const char *passed, oz_err *err) {
    if (cfg->n_include) {
        OZ_NEED(p->n_files, err, OZ_E_NOT_FOUND, "%s: no file matches --include %s", cfg->repo, cfg->include[0]);
        return OZ_OK;
    }
    const size_t n_gguf = count(p, "*.gguf");
    OZ_NEED(p->n_files || passed, err, OZ_E_NOT_FOUND, "%s: holds no file that is downloaded unless --include names it", cfg->repo);
    OZ_NEED(!passed || n_gguf || count(p, "*.safetensors"), err, OZ_E_UNSUPPORTED, "%s: has its weights in %s; expected .safetensors or .gguf files", cfg->repo, passed);
    if (n_gguf < 2) return OZ_OK;
    oz_buf names = {0};
    names_list(&names, p, "*.gguf");
    oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: holds %zu .gguf files; choose with --include: %s", cfg->repo, n_gguf, names.data);
    oz_buf_deinit(&names);
    return OZ_E_ARG;
}

oz_status oz_hub_choose(oz_pull *out, const json_t *info, const oz_pull_cfg *cfg, oz_err *err) {
    const char *sha = json_string_value(json_object_get(info, "sha")), *passed = NULL;
    const json_t *siblings = json_object_get(info, "siblings");
    OZ_NEED(oz_is_hex(sha, 40), err, OZ_E_FORMAT, "sha: expected a commit of 40 digits, found %s", oz_json_show(json_object_get(info, "sha")));
    OZ_NEED(json_is_array(siblings), err, OZ_E_FORMAT, "siblings: expected an array, found %s", oz_json_show(siblings));
    out->commit = oz_strdup(sha);
    const bool has_safetensors = any_matches(siblings, "model*.safetensors");
    size_t i;
    json_t *item;
    json_array_foreach(siblings, i, item) {
        const char *name = name_of(item);
        OZ_NEED(name, err, OZ_E_FORMAT, "siblings[%zu].rfilename: expected a file's name, found %s", i, oz_json_show(json_object_get(item, "rfilename")));
        const int row = cfg->n_include ? -1 : skipped(name, has_safetensors);
        if (row >= 0 && SKIPPED[row].is_weights) passed = name;
        if (cfg->n_include ? included(cfg, name) : row < 0) OZ_TRY(file_add(out, item, name, i, err));
    }
    return choice_check(out, cfg, passed, err);
}
