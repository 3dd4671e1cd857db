/* The work folder of a quantization that goes layer by layer: OUT.gptq beside OUT.
 *   manifest.json  what the run was begun with (hashes), what --target-bytes has measured, how many layers are done, their report, and digests that prove what is done
 *   lock           held by the process at work, whose number it holds; the system lets go of it when that ends, however it ends
 *   out/           the checkpoint in its final layout; the tensors of layers that are done, and all that is kept, are in place
 *   residual-N     what goes into layer N, of all sequences, f32; layer 0's input is the ids
 * The manifest is replaced atomically and last, after all that it speaks of was synced. Whatever it does not speak of is made anew, so
 * a process may be killed anywhere. A folder without a manifest holds nothing: that of a run that had not begun, or was done. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "quantize/internal.h"

enum { MANIFEST_LIMIT = 64 << 20 };

static oz_status io_error(oz_err *err, const char *path, const char *what) { OZ_FAIL(err, OZ_E_IO, "%s: %s: %s", path, what, strerror(errno)); }

char *oz_work_path(const oz_work *w, const char *name) { return oz_path_join(w->dir, name); }

static oz_status manifest_write(const json_t *manifest, const char *dir, oz_err *err) {
    char *path = oz_path_join(dir, "manifest.json"), *text = json_dumps(manifest, JSON_INDENT(1) | JSON_SORT_KEYS);
    oz_status st = oz_file_write_atomic(path, text, strlen(text), err);
    free(text);
    oz_free(path);
    return st;
}

oz_status oz_work_save(oz_work *w, oz_err *err) {
    json_object_set_new(w->manifest, "layers_done", json_integer(w->layers_done));
    return manifest_write(w->manifest, w->dir, err);
}

/* Two processes in one folder would spoil each other's work. w->lock is ours to close, whatever comes of it. */
static oz_status lock_take(oz_work *w, const char *dir, oz_err *err) {
    char *path = oz_path_join(dir, "lock"), pid[32] = "";
    struct stat s;
    oz_status st = OZ_OK;
    w->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (w->lock < 0) st = io_error(err, path, "cannot open");
    else if (flock(w->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) st = io_error(err, path, "cannot lock");
        else {
            const bool known = pread(w->lock, pid, sizeof pid - 1, 0) > 0;
            st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: another process%s%s%s is at work in it", dir, known ? " (pid " : "", pid, known ? ")" : "");
        }
    } else if (fstat(w->lock, &s) != 0 || s.st_nlink == 0) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: another process has just ended its work in it", dir);
    else {
        const int n = snprintf(pid, sizeof pid, "%ld", (long)getpid());
        st = ftruncate(w->lock, 0) != 0 ? io_error(err, path, "cannot write") : oz_rows_write(&(oz_rows_file){w->lock, path}, pid, 0, (size_t)n, err);
        if (st != OZ_OK) unlink(path);
    }
    oz_free(path);
    return st;
}

/* Removes what is spent. Names are read first: each descriptor counts where a run ended for lack of them. */
static oz_status sweep(const oz_work *w, bool (*is_spent)(const oz_work *w, const char *name), oz_err *err) {
    DIR *d = opendir(w->dir);
    if (!d) return io_error(err, w->dir, "cannot read");
    char **spent = NULL;
    size_t n = 0, cap = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || !is_spent(w, e->d_name)) continue;
        oz_grow((void **)&spent, &cap, n + 1, sizeof *spent);
        spent[n++] = oz_work_path(w, e->d_name);
    }
    closedir(d);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < n; i++) {
        if (st == OZ_OK) st = oz_dir_remove(spent[i], err);
        oz_free(spent[i]);
    }
    oz_free(spent);
    return st;
}

static bool is_content(const oz_work *w, const char *name) { return strcmp(name, "manifest.json") != 0 && strcmp(name, "lock") != 0; }
static bool is_temporary(const oz_work *w, const char *name) { return strncmp(name, ".manifest.json.tmp-", 19) == 0; }

/* What a killed process left behind: half a manifest, and rows that are not the next layer's input. */
static bool is_leftover(const oz_work *w, const char *name) {
    char keep[64];
    snprintf(keep, sizeof keep, "residual-%" PRId64, w->layers_done);
    return is_temporary(w, name) || (strncmp(name, "residual-", 9) == 0 && strcmp(name, keep) != 0);
}

oz_status oz_work_remove(oz_work *w, oz_err *err) {
    char *manifest = oz_work_path(w, "manifest.json"), *lock = oz_work_path(w, "lock");
    oz_status st = sweep(w, is_content, err);
    if (st == OZ_OK && unlink(manifest) != 0 && errno != ENOENT) st = io_error(err, manifest, "cannot remove");
    if (st == OZ_OK && unlink(lock) != 0) st = io_error(err, lock, "cannot remove");
    if (st == OZ_OK && rmdir(w->dir) != 0 && errno != ENOTEMPTY) st = io_error(err, w->dir, "cannot remove"); /* not empty: another process begins */
    oz_free(manifest);
    oz_free(lock);
    return st;
}

/* A folder with nothing in it that --resume could take up. */
static void discard(oz_work *w) {
    oz_err left = {0};
    if (oz_work_remove(w, &left) != OZ_OK) oz_log_warn("%s: holds nothing of use, and could not be removed: %s", w->dir, left.msg);
}

/* Makes the folder, or finds that it is one of ours. A folder of another's must not get so much as a lock. */
static oz_status folder_make(const oz_work *w, bool *has_manifest, oz_err *err) {
    char *manifest = oz_work_path(w, "manifest.json"), found[256] = "";
    struct stat is;
    if (lstat(w->dir, &is) == 0 && S_ISLNK(is.st_mode)) {
        oz_free(manifest);
        OZ_FAIL(err, OZ_E_ARG, "%s: the work would go there, and it is a symbolic link; remove it, or choose another name for the output", w->dir);
    }
    *has_manifest = oz_path_exists(manifest);
    oz_free(manifest);
    if (mkdir(w->dir, 0777) == 0 || *has_manifest) return OZ_OK;
    OZ_NEED(errno != ENOENT, err, OZ_E_IO, "%s: the folder that it would be made in does not exist", w->dir);
    if (errno != EEXIST) return io_error(err, w->dir, "cannot create");
    DIR *d = opendir(w->dir);
    if (!d) return io_error(err, w->dir, "expected the folder of a run, or none");
    for (const struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && is_content(w, e->d_name) && !is_temporary(w, e->d_name)) snprintf(found, sizeof found, "%s", e->d_name);
    closedir(d);
    OZ_NEED(!*found, err, OZ_E_ARG, "%s: the work would go there, and it holds something else (%s); choose another name for the output", w->dir, found);
    return OZ_OK;
}

static oz_status begin(oz_work *w, const json_t *identity, oz_err *err) {
    w->layers_done = -1;
    w->manifest = json_pack("{s:O, s:i, s:[], s:[], s:[]}", "run", identity, "layers_done", -1, "layers", "modules", "folds");
    return oz_work_save(w, err);
}

static oz_status same_run(const oz_work *w, const json_t *identity, oz_err *err) {
    const char *key;
    json_t *v;
    OZ_NEED(json_is_object(json_object_get(w->manifest, "run")), err, OZ_E_FORMAT, "%s/manifest.json: run: expected what the run was begun with; remove the folder to begin anew", w->dir);
    json_object_foreach((json_t *)identity, key, v) {
        const json_t *was = json_object_get(json_object_get(w->manifest, "run"), key);
        OZ_NEED(json_equal(v, was) || !json_is_integer(was), err, OZ_E_ARG, "%s: was begun with %s %lld, not %lld; give the options it was begun with, or remove it to begin anew", w->dir, key,
                (long long)json_integer_value(was), (long long)json_integer_value(v));
        OZ_NEED(json_equal(v, was), err, OZ_E_ARG, "%s: was begun with another %s; give the options it was begun with, or remove it to begin anew", w->dir, key);
    }
    return OZ_OK;
}

static oz_status manifest_load(oz_work *w, oz_err *err) {
    char *path = oz_work_path(w, "manifest.json");
    oz_status st = oz_json_load(&w->manifest, path, MANIFEST_LIMIT, err);
    if (st == OZ_OK) {
        w->layers_done = -2;
        st = oz_json_int(&w->layers_done, w->manifest, path, "layers_done", -1, 1 << 20, err);
    }
    static const char *const lists[] = {"layers", "modules", "folds"};
    bool whole = st == OZ_OK && w->layers_done != -2;
    for (size_t i = 0; whole && i < sizeof lists / sizeof *lists; i++) whole = json_is_array(json_object_get(w->manifest, lists[i]));
    if (st == OZ_OK && !whole) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: expected layers_done, layers, modules and folds; remove the folder to begin anew", path);
    oz_free(path);
    return st;
}

static oz_status folder_open(oz_work *w, const char *target, bool resume, oz_err *err) {
    size_t n = strlen(target);
    while (n > 1 && target[n - 1] == '/') n--;
    char *name = oz_strndup(target, n);
    *w = (oz_work){.dir = oz_path_beside(name, ".gptq"), .lock = -1};
    oz_free(name);
    w->out = oz_work_path(w, "out");
    bool begun = false;
    OZ_TRY(folder_make(w, &begun, err));
    const oz_status st = lock_take(w, w->dir, err);
    if (st != OZ_OK) rmdir(w->dir); /* where there is nothing in it */
    OZ_TRY(st);
    OZ_NEED(!begun || resume, err, OZ_E_ARG, "%s: holds the work of a run that was broken off; --resume goes on with it, removing the folder begins anew", w->dir);
    return begun ? manifest_load(w, err) : OZ_OK;
}

/* What is known of a run before it has a plan. --target-bytes 0: its plan is made without. */
static oz_status identity(json_t **out, const oz_quantize *q, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err) {
    const oz_calibration *c = cfg->calibration;
    char bytes[65], ids[65];
    oz_sha256 s;
    OZ_TRY(oz_digest_model(bytes, q, pool, err));
    oz_sha256_init(&s);
    oz_sha256_add(&s, c->begin, (size_t)(c->n_seqs + 1) * sizeof *c->begin);
    oz_sha256_add(&s, c->ids, (size_t)c->begin[c->n_seqs] * sizeof *c->ids);
    oz_sha256_hex(ids, &s);
    *out = json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s}", "--device", oz_dev_ops(cfg->dev)->calib ? "a device" : "cpu", "model", bytes, "--target-bytes", (json_int_t)(cfg->budget ? cfg->budget->target_bytes : 0),
                     "--num-calibration-samples", (json_int_t)c->n_seqs, "--max-seq-length", (json_int_t)c->max_len, "calibration text", c->sha256, "tokenizer", ids, "version of the program", cfg->version);
    return OZ_OK;
}

static oz_status begin_or_take_up(oz_work *w, const oz_quantize *q, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err) {
    json_t *id;
    OZ_TRY(identity(&id, q, cfg, pool, err));
    oz_status st = !w->manifest ? begin(w, id, err) : same_run(w, id, err);
    json_decref(id);
    return st == OZ_OK ? sweep(w, is_leftover, err) : st;
}

oz_status oz_work_open(oz_work *w, const oz_quantize *q, const char *target, const oz_quantize_text_cfg *cfg, oz_pool *pool, oz_err *err) {
    OZ_NEED(cfg->force || cfg->resume || !oz_path_exists(target), err, OZ_E_ARG, "%s: exists already (--force replaces it)", target);
    oz_status st = folder_open(w, target, cfg->resume, err);
    const bool is_new = st == OZ_OK && !w->manifest;
    if (st == OZ_OK) st = begin_or_take_up(w, q, cfg, pool, err);
    if (st == OZ_OK && w->layers_done < 0 && !cfg->force && oz_path_exists(target)) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: exists already (--force replaces it)", target);
    if (st == OZ_OK && is_new && cfg->resume && !oz_path_exists(target)) oz_log_info("%s: nothing to go on with, begins anew", w->dir);
    if (st == OZ_OK) return st;
    if (is_new) discard(w);
    oz_work_close(w);
    return st;
}

oz_status oz_work_settle(oz_work *w, const char *what, const char *digest, oz_err *err) {
    json_t *run = json_object_get(w->manifest, "run"), *said = json_pack("{s:s}", what, digest);
    if (w->layers_done < 0) json_object_update_missing(run, said);
    oz_status st = same_run(w, said, err);
    json_decref(said);
    return st;
}

void oz_work_break_off(oz_work *w, const char *holds, oz_status st, oz_err *err) {
    if (st == OZ_E_INTERRUPTED) {
        oz_err_clear(err);
        oz_err_set(err, st, __FILE__, __LINE__, "interrupted; %s holds %s: the same command with --resume goes on from there", w->dir, holds);
    } else if (w->layers_done > 0 || json_object_get(w->manifest, "measured")) {
        const bool can_pass = st == OZ_E_IO || st == OZ_E_NOMEM; /* there may be room another time; what is wrong in the model stays so */
        (can_pass ? oz_log_info : oz_log_warn)("%s keeps what was done of this model with this text%s", w->dir, can_pass ? "; the same command with --resume goes on from there" : "");
    } else discard(w);
}

void oz_work_close(oz_work *w) {
    json_decref(w->manifest);
    oz_free(w->dir);
    oz_free(w->out);
    if (w->lock >= 0) close(w->lock);
    *w = (oz_work){.lock = -1};
}

/* ---- files of rows ---- */

oz_status oz_rows_open(oz_rows_file *f, char *path, bool create, oz_err *err) {
    *f = (oz_rows_file){.path = path, .fd = open(path, create ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666)};
    if (f->fd >= 0) return OZ_OK;
    oz_status st = io_error(err, path, create ? "cannot create" : "cannot open");
    oz_rows_close(f);
    return st;
}

oz_status oz_rows_read(const oz_rows_file *f, void *dst, size_t offset, size_t n, oz_err *err) {
    for (size_t at = 0; at < n;) {
        const ssize_t k = pread(f->fd, (char *)dst + at, n - at, (off_t)(offset + at));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return io_error(err, f->path, "cannot read");
        OZ_NEED(k > 0, err, OZ_E_FORMAT, "%s: expected at least %zu bytes, found %zu", f->path, offset + n, offset + at);
        at += (size_t)k;
    }
    return OZ_OK;
}

oz_status oz_rows_write(const oz_rows_file *f, const void *src, size_t offset, size_t n, oz_err *err) {
    for (size_t at = 0; at < n;) {
        const ssize_t k = pwrite(f->fd, (const char *)src + at, n - at, (off_t)(offset + at));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return io_error(err, f->path, "cannot write");
        at += (size_t)k;
    }
    return OZ_OK;
}

oz_status oz_rows_sync(const oz_rows_file *f, oz_err *err) { return fsync(f->fd) == 0 ? OZ_OK : io_error(err, f->path, "cannot write"); }

void oz_rows_close(oz_rows_file *f) {
    if (f->path && f->fd >= 0) close(f->fd);
    oz_free(f->path);
    *f = (oz_rows_file){0};
}
