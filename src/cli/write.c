/* What the commands that write a checkpoint have in common. */
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "cli/cli.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

oz_cli_out oz_cli_output = {.max_shard = "5GB"};

const oz_opt oz_cli_opts_write[] = {
    {"output", 'o', OZ_OPT_STR, &oz_cli_output.path, 0, 0, NULL, "DIR", "folder to write; it appears when it is whole"},
    {"force", 0, OZ_OPT_FLAG, &oz_cli_output.force, 0, 0, NULL, NULL, "replace a checkpoint at DIR: all that is in the folder"},
    {"max-shard-size", 0, OZ_OPT_STR, &oz_cli_output.max_shard, 0, 0, NULL, "SIZE",
     "of a safetensors file: 5GB, 800MB, 2GiB, or bytes; 0: no limit"},
    {"dry-run", 0, OZ_OPT_FLAG, &oz_cli_output.dry_run, 0, 0, NULL, NULL, "check the input, print the sizes to the byte, write nothing"},
    {"threads", 't', OZ_OPT_INT, &oz_cli_common.threads, 0, 1024, NULL, "N", "threads; 0: one a core"},
    {0},
};

static const struct {
    const char *unit;
    double bytes;
} units[] = {{"", 1},      {"B", 1},   {"K", 1e3},       {"M", 1e6},       {"G", 1e9},        {"KB", 1e3},       {"MB", 1e6},       {"GB", 1e9},
             {"TB", 1e12}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0}};

bool oz_cli_size_parse(size_t *out, const char *s) {
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (end == s || errno || *s < '0' || *s > '9') return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        if (!(v * units[i].bytes < 9e18) || (v > 0 && v * units[i].bytes < 1)) return false; /* 0 means no limit, half a byte does not */
        *out = (size_t)(v * units[i].bytes);
        return true;
    }
    return false;
}

static bool is_empty(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return false;
    int n = 0;
    while (n < 3 && readdir(d)) n++; /* . and .. */
    closedir(d);
    return n < 3;
}

/* `path` is `dir` or lies in it, whatever links lead there. */
static bool is_inside(const char *path, const char *dir) {
    char *p = realpath(path, NULL), *end;
    bool inside = p && oz_path_same(p, dir);
    while (p && !inside && (end = strrchr(p, '/'))) {
        *end = 0;
        inside = oz_path_same(end > p ? p : "/", dir);
    }
    free(p);
    return inside;
}

/* The model's folder may hold links: what counts is where the files lie. NULL: none of them in `dir`. oz_free */
static char *file_inside(const char *model, const char *dir) {
    if (is_inside(model, dir)) return oz_strdup(model);
    DIR *d = opendir(model);
    char *found = NULL;
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        char *path = oz_path_join(model, e->d_name);
        if (!oz_path_is_dir(path) && is_inside(path, dir)) found = path;
        else oz_free(path);
    }
    if (d) closedir(d);
    return found;
}

/* --force deletes a whole folder: one that ounce could have written, and not one that holds what it reads. */
static oz_status force_check(const char *dir, const char *model, oz_err *err) {
    if (!oz_path_exists(dir)) return OZ_OK;
    char *config = oz_path_join(dir, "config.json");
    const bool known = oz_path_exists(config) || is_empty(dir);
    oz_free(config);
    OZ_NEED(known, err, OZ_E_ARG, "%s: expected a folder with a checkpoint, found no config.json in it: --force replaces nothing else", dir);
    char *lost = file_inside(model, dir);
    if (lost) oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: --force would delete the model that is read, %s", dir, lost);
    oz_free(lost);
    return lost ? OZ_E_ARG : OZ_OK;
}

/* A folder in the model's own would be a part of it, for who reads or copies it next. */
static oz_status place_check(const char *dir, const char *model, oz_err *err) {
    if (!oz_path_is_dir(model) || oz_path_same(dir, model)) return OZ_OK;
    size_t end = strlen(dir);
    while (end > 0 && dir[end - 1] == '/') end--;
    while (end > 0 && dir[end - 1] != '/') end--;
    char *parent = end ? oz_strndup(dir, end) : oz_strdup(".");
    const bool inside = is_inside(parent, model);
    oz_free(parent);
    OZ_NEED(!inside, err, OZ_E_ARG, "%s: lies in the model that is read, %s: name a folder outside", dir, model);
    return OZ_OK;
}

oz_status oz_cli_keeps_check(const char *option, const char *file, oz_err *err) {
    const bool lost = file && oz_cli_output.path && oz_cli_output.force && is_inside(file, oz_cli_output.path);
    OZ_NEED(!lost, err, OZ_E_ARG, "%s: %s lies in %s, and --force would delete it", option, file, oz_cli_output.path);
    return OZ_OK;
}

static json_t *warnings; /* of the run, for --json */
static void heard(void *arg, const char *text) { json_array_append_new(arg, oz_json_text(text)); }

oz_status oz_cli_write_check(size_t *shard_bytes, const char *model, oz_err *err) {
    if (oz_cli_common.json && !warnings) oz_log_listen(heard, warnings = json_array());
    OZ_NEED(oz_cli_output.path || oz_cli_output.dry_run, err, OZ_E_USAGE, "--output: say where to write (-o DIR)");
    OZ_NEED(oz_cli_size_parse(shard_bytes, oz_cli_output.max_shard), err, OZ_E_USAGE,
            "--max-shard-size: must be a number of bytes, or one with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, found %s",
            oz_cli_output.max_shard);
    if (oz_cli_output.path) OZ_TRY(oz_outdir_check(oz_cli_output.path, err));
    if (!oz_cli_output.path) return OZ_OK;
    char *path;
    OZ_TRY(oz_hub_resolve(&path, model, err));
    oz_status st = place_check(oz_cli_output.path, path, err);
    if (st == OZ_OK && oz_cli_output.force) st = force_check(oz_cli_output.path, path, err);
    oz_free(path);
    return st;
}

bool oz_cli_write_tells(void) { return !oz_cli_common.json && (!oz_cli_common.quiet || oz_cli_output.dry_run); }

void oz_cli_write_report(const oz_layout *l, json_t *more) {
    json_t *files = json_array();
    if (!oz_cli_output.dry_run) oz_cli_whole = oz_strdup(oz_cli_output.path);
    for (size_t i = 0; i < oz_layout_file_count(l); i++) {
        size_t n_bytes;
        const char *name = oz_layout_file(l, i, &n_bytes);
        if (oz_cli_write_tells()) printf("%15zu  %s\n", n_bytes, name);
        json_array_append_new(files, json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)n_bytes));
    }
    if (oz_cli_common.json) {
        json_t *doc = json_pack("{s:o?, s:b, s:I, s:o, s:O}", "output", oz_cli_output.path ? oz_json_text(oz_cli_output.path) : NULL, "dry_run", oz_cli_output.dry_run, "bytes",
                                (json_int_t)oz_layout_bytes(l), "files", files, "warnings", warnings);
        json_object_update_missing(doc, more);
        json_dumpf(doc, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(doc);
    } else {
        if (oz_cli_write_tells()) printf("%15zu  in all, %s %s\n", oz_layout_bytes(l), oz_cli_output.dry_run ? "would be written to" : "written to",
               oz_cli_output.path ? oz_cli_output.path : "DIR");
        json_decref(files);
    }
    json_decref(more);
}

oz_status oz_cli_scheme_find(oz_scheme *out, const char *name, int64_t group_size, oz_err *err) {
    const oz_preset *p = name ? oz_preset_find(name) : NULL;
    oz_buf names = {0};
    for (size_t i = 0; i < oz_preset_count(); i++) oz_buf_printf(&names, "%s%s", i ? ", " : "", oz_preset_at(i)->scheme.name);
    if (!p) oz_err_set(err, OZ_E_USAGE, __FILE__, __LINE__, "--scheme: must be one of %s, found %s", names.data, name ? name : "none");
    oz_buf_deinit(&names);
    if (!p) return OZ_E_USAGE;
    OZ_NEED(!group_size || p->takes_group_size, err, OZ_E_USAGE, "--group-size: %s has one scale a %s, not groups of any size", p->scheme.name,
            p->scheme.block_rows > 0 ? "block of its own size" : p->scheme.per_tensor ? "matrix" : "channel");
    *out = p->scheme;
    if (group_size) out->group_size = group_size;
    return OZ_OK;
}
