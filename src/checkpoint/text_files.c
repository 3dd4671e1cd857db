/* The files of a checkpoint that are not weights: what text needs, and what a copy of the checkpoint takes along. */
#include "base/json.h"
#include "base/progress.h"
#include "checkpoint/internal.h"
#include <dirent.h>
#include <errno.h>
#include <string.h>

static const char TEMPLATE[] = "chat_template.jinja";

/* The members of oz_text_files that are JSON, and the file of each. */
static const struct {
    const char *name;
    size_t member;
} JSON_FILES[] = {
    {"tokenizer.json", offsetof(oz_text_files, tokenizer)},
    {"tokenizer_config.json", offsetof(oz_text_files, tokenizer_config)},
    {"generation_config.json", offsetof(oz_text_files, generation_config)},
    {"special_tokens_map.json", offsetof(oz_text_files, special_tokens_map)},
};
enum { N_JSON_FILES = sizeof JSON_FILES / sizeof *JSON_FILES };

static json_t **member(const oz_text_files *f, size_t i) { return (json_t **)((char *)f + JSON_FILES[i].member); }

static oz_status json_read(json_t **out, const char *dir, const char *name, oz_err *err) {
    char *path = oz_path_join(dir, name);
    oz_status st = oz_path_exists(path) ? oz_json_load(out, path, OZ_JSON_LIMIT, err) : OZ_OK;
    if (st == OZ_OK && *out && !json_is_object(*out))
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: must be an object, found %s", path, oz_json_show(*out));
    oz_free(path);
    return st;
}

/* tokenizer_config.chat_template: one template, or a list of {name, template}, of which the one called "default" is meant. */
static oz_status template_from_config(char **out, const json_t *config, oz_err *err) {
    const json_t *v = json_object_get(config, "chat_template");
    if (!v || json_is_null(v)) return OZ_OK;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(item, "name")), *text = json_string_value(json_object_get(item, "template"));
        OZ_NEED(name && text, err, OZ_E_FORMAT,
                "tokenizer_config.json: chat_template[%zu]: must have the strings name and template, found %s", i, oz_json_show(item));
        if (strcmp(name, "default") == 0 && !*out) *out = oz_strdup(text);
    }
    if (json_is_array(v)) return OZ_OK;
    OZ_NEED(json_is_string(v), err, OZ_E_FORMAT, "tokenizer_config.json: chat_template: must be a string or an array, found %s",
            oz_json_show(v));
    *out = oz_strdup(json_string_value(v));
    return OZ_OK;
}

static oz_status folder_read(oz_text_files *out, const char *dir, oz_err *err) {
    for (size_t i = 0; i < N_JSON_FILES; i++) OZ_TRY(json_read(member(out, i), dir, JSON_FILES[i].name, err));
    char *path = oz_path_join(dir, TEMPLATE);
    oz_status st = OZ_OK;
    if (oz_path_exists(path)) {
        oz_buf text = {0};
        st = oz_file_read_regular(&text, path, OZ_JSON_LIMIT, err);
        if (st == OZ_OK) out->chat_template = oz_strndup(text.data ? text.data : "", text.len);
        oz_buf_deinit(&text);
    } else
        st = template_from_config(&out->chat_template, out->tokenizer_config, err);
    oz_free(path);
    return st == OZ_OK && !out->tokenizer ? oz_text_files_translate(out, dir, err) : st;
}

oz_status oz_text_files_open(oz_text_files *out, const char *model, oz_err *err) {
    *out = (oz_text_files){0};
    char *path;
    OZ_TRY(oz_hub_resolve(&path, model, err));
    oz_status st;
    if (oz_path_is_dir(path))
        st = folder_read(out, path, err);
    else if (oz_is_gguf(path))
        st = oz_gguf_text_files(out, path, err);
    else if (oz_path_exists(path))
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected a folder with a checkpoint or a GGUF file", path);
    else
        st = oz_err_set(err, OZ_E_NOT_FOUND, __FILE__, __LINE__, "%s: %s", path, strerror(ENOENT));
    oz_free(path);
    if (st != OZ_OK) oz_text_files_close(out);
    return st;
}

void oz_text_files_close(oz_text_files *f) {
    for (size_t i = 0; i < N_JSON_FILES; i++) json_decref(*member(f, i));
    oz_free(f->chat_template);
    *f = (oz_text_files){0};
}

/* ---- the copy ---- */

static oz_status gguf_side_files(const oz_ckpt *c, const char *dir, oz_err *err) {
    oz_text_files f;
    OZ_TRY(oz_text_files_open(&f, c->path, err));
    oz_status st = OZ_OK;
    for (size_t i = 0; i < N_JSON_FILES && st == OZ_OK; i++)
        if (*member(&f, i)) st = oz_json_save(*member(&f, i), dir, JSON_FILES[i].name, false, err);
    if (st == OZ_OK && f.chat_template) {
        char *path = oz_path_join(dir, TEMPLATE);
        st = oz_file_write_atomic(path, f.chat_template, strlen(f.chat_template), err);
        oz_free(path);
    }
    oz_text_files_close(&f);
    return st;
}

/* Not taken along: weights in any form, and the files that describe how the weights they came with were stored. */
static bool stays_behind(const char *name) {
    static const char *const SUFFIX[] = {".safetensors", ".index.json", ".bin",  ".pt",        ".pth", ".gguf",
                                         ".h5",          ".msgpack",    ".onnx", ".onnx_data", ".ot"};
    static const char *const NAME[] = {"config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json", "params.json"};
    if (name[0] == '.') return true;
    for (size_t i = 0; i < sizeof SUFFIX / sizeof *SUFFIX; i++)
        if (oz_str_ends(name, SUFFIX[i])) return true;
    for (size_t i = 0; i < sizeof NAME / sizeof *NAME; i++)
        if (strcmp(name, NAME[i]) == 0) return true;
    return false;
}

static oz_status file_copy(const char *from_dir, const char *to_dir, const char *name, oz_err *err) {
    char *from = oz_path_join(from_dir, name), *to = oz_path_join(to_dir, name);
    oz_status st = OZ_OK;
    if (oz_path_is_dir(from)) oz_log_info("%s: a folder, not taken along", from);
    else st = oz_file_copy(from, to, err);
    oz_free(from);
    oz_free(to);
    return st;
}

oz_status oz_ckpt_copy_side_files(const oz_ckpt *c, const char *dir, oz_err *err) {
    if (c->is_gguf) return gguf_side_files(c, dir, err);
    DIR *d = opendir(c->path);
    OZ_NEED(d, err, OZ_E_IO, "%s: %s", c->path, strerror(errno));
    oz_status st = OZ_OK;
    for (const struct dirent *e; st == OZ_OK && (e = readdir(d));)
        if (!stays_behind(e->d_name)) st = file_copy(c->path, dir, e->d_name, err);
    closedir(d);
    return st;
}
