/* The hub's names and its cache on disk, as the huggingface_hub library lays it out:
 *   models--OWNER--NAME/refs/REV            the commit that a branch or tag meant when it was last pulled
 *   models--OWNER--NAME/snapshots/COMMIT/   the repository's files, as links to
 *   models--OWNER--NAME/blobs/HASH          their contents, each named by its hash (sha256 for large files, git's for small ones) */
#include "checkpoint/internal.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 96, MAX_REV = 250 };

/* ---- the environment ---- */

/* A variable that is set and not empty; a leading ~/ is the home folder. NULL otherwise. */
static char *env_path(const char *variable) {
    const char *v = getenv(variable), *home = getenv("HOME");
    if (!v || !*v) return NULL;
    return v[0] == '~' && v[1] == '/' && home ? oz_path_join(home, v + 2) : oz_strdup(v);
}

static char *env_inside(const char *variable, const char *name) {
    char *dir = env_path(variable), *path = dir ? oz_path_join(dir, name) : NULL;
    oz_free(dir);
    return path;
}

static char *hub_home_file(const char *name) { /* of HF_HOME; NULL where nothing says where that is */
    char *path = env_inside("HF_HOME", name), *in_home = oz_asprintf(".cache/huggingface/%s", name), *in_cache = oz_asprintf("huggingface/%s", name);
    if (!path) path = env_inside("XDG_CACHE_HOME", in_cache);
    if (!path) path = env_inside("HOME", in_home);
    oz_free(in_home);
    oz_free(in_cache);
    return path;
}

char *oz_hub_cache_dir(void) {
    char *dir = env_path("HF_HUB_CACHE");
    return dir ? dir : hub_home_file("hub");
}

static char *trimmed(char *s) {
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) s[--n] = 0;
    char *t = n ? oz_strdup(s + strspn(s, " \t\r\n")) : NULL;
    oz_free(s);
    return t;
}

char *oz_hub_token(void) {
    const char *given = getenv("HF_TOKEN");
    if (given && *given) return trimmed(oz_strdup(given));
    char *path = env_path("HF_TOKEN_PATH"), *token = NULL;
    if (!path) path = hub_home_file("token");
    oz_buf text = {0};
    if (path && oz_file_read_regular(&text, path, 4096, NULL) == OZ_OK) token = trimmed(oz_strdup(text.data));
    oz_buf_deinit(&text);
    oz_free(path);
    return token;
}

/* ---- names ---- */

bool oz_is_hex(const char *s, size_t n_digits) { return s && strlen(s) == n_digits && strspn(s, "0123456789abcdef") == n_digits; }

bool oz_name_is_inside(const char *name) {
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127 || *c == '\\') return false;
    for (const char *part = name;; part++) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.') || n > 255) return false;
        part += n;
        if (!*part) return true;
    }
}

/* OWNER/NAME or NAME: letters, digits, '-', '_' and '.', but neither "--" nor "..", which the hub does not allow, nor '-' or '.' first. */
static bool is_repo_name(const char *s, size_t n) {
    int n_slashes = 0;
    if (n == 0 || n > MAX_NAME) return false;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i], before = i ? s[i - 1] : '/', after = i + 1 < n ? s[i + 1] : '/';
        if (!isalnum((unsigned char)c) && !strchr("-_./", c)) return false;
        if (c == '/' && (before == '/' || after == '/' || ++n_slashes > 1)) return false;
        if ((c == '-' || c == '.') && (before == '/' || before == c)) return false;
    }
    return true;
}

oz_status oz_repo_parse(oz_repo *out, const char *text, oz_err *err) {
    *out = (oz_repo){0};
    const size_t n = strcspn(text, "@");
    const char *rev = text[n] ? text + n + 1 : "main";
    OZ_NEED(is_repo_name(text, n), err, OZ_E_ARG, "%s: expected a repository's name, OWNER/NAME or NAME, with @REVISION if not main", text);
    OZ_NEED(oz_name_is_inside(rev) && strlen(rev) <= MAX_REV, err, OZ_E_ARG, "%s: expected a branch, tag or commit behind @, found \"%s\"", text, rev);
    char *cache = oz_hub_cache_dir();
    OZ_NEED(cache, err, OZ_E_NOT_FOUND, "%s: where the hub's cache lies is not known: HF_HOME or HOME must be set", text);
    oz_buf dir = {0};
    oz_buf_printf(&dir, "%s/models--", cache);
    for (size_t i = 0; i < n; i++) oz_buf_puts(&dir, text[i] == '/' ? "--" : (char[]){text[i], 0});
    *out = (oz_repo){oz_strndup(text, n), oz_strdup(rev), dir.data};
    oz_free(cache);
    return OZ_OK;
}

void oz_repo_deinit(oz_repo *r) {
    oz_free(r->name);
    oz_free(r->rev);
    oz_free(r->dir);
    *r = (oz_repo){0};
}

/* ---- the snapshot that a name means ---- */

/* The commit that refs/REV holds, or REV itself if it is one. */
static char *commit_of(const oz_repo *r) {
    if (oz_is_hex(r->rev, 40)) return oz_strdup(r->rev);
    char *path = oz_asprintf("%s/refs/%s", r->dir, r->rev), *commit = NULL;
    oz_buf text = {0};
    if (oz_file_read_regular(&text, path, 256, NULL) == OZ_OK) commit = trimmed(oz_strdup(text.data));
    if (commit && !oz_is_hex(commit, 40)) {
        oz_free(commit);
        commit = NULL;
    }
    oz_buf_deinit(&text);
    oz_free(path);
    return commit;
}

char *oz_repo_snapshot(const oz_repo *r) {
    char *commit = commit_of(r), *path = commit ? oz_asprintf("%s/snapshots/%s", r->dir, commit) : NULL;
    oz_free(commit);
    if (!path || oz_path_is_dir(path)) return path;
    oz_free(path);
    return NULL;
}

/* A snapshot without config.json whose model is a .gguf file: *path becomes that file. */
static oz_status gguf_inside(char **path, const char *model, oz_err *err) {
    char *config = oz_path_join(*path, "config.json"), *found = NULL;
    const bool is_folder = oz_path_exists(config);
    oz_free(config);
    DIR *d = is_folder ? NULL : opendir(*path);
    if (!d) return OZ_OK;
    size_t n = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        if (!oz_str_ends(e->d_name, ".gguf") || n++) continue;
        found = oz_path_join(*path, e->d_name);
    }
    closedir(d);
    if (n == 1) {
        oz_free(*path);
        *path = found;
        return OZ_OK;
    }
    oz_free(found);
    OZ_NEED(n == 0, err, OZ_E_ARG, "%s: holds %zu .gguf files; give one of them as MODEL: they are in %s", model, n, *path);
    return OZ_OK;
}

oz_status oz_hub_resolve(char **path, const char *model, oz_err *err) {
    oz_repo r;
    *path = NULL;
    const bool is_path = oz_path_exists(model) || oz_str_ends(model, ".gguf");
    oz_status st = is_path ? OZ_OK : oz_repo_parse(&r, model, NULL);
    if (is_path || st == OZ_E_ARG) { /* what no repository is called is a path that is not there */
        *path = oz_strdup(model);
        return OZ_OK;
    }
    OZ_NEED(st == OZ_OK, err, st, "%s: %s, and where the hub's cache lies is not known: HF_HOME or HOME must be set", model, strerror(ENOENT));
    *path = oz_repo_snapshot(&r);
    if (*path) {
        st = gguf_inside(path, model, err);
    } else {
        char *cache = oz_hub_cache_dir();
        st = oz_err_set(err, OZ_E_NOT_FOUND, __FILE__, __LINE__, "%s: %s, nor a repository in %s; if it is one, `ounce pull %s` downloads it", model, strerror(ENOENT),
                        cache, model);
        oz_free(cache);
    }
    if (st != OZ_OK) {
        oz_free(*path);
        *path = NULL;
    }
    oz_repo_deinit(&r);
    return st;
}
