/* The download of a repository into the hub's cache.
 *
 * A file's bytes go to blobs/HASH.incomplete and become blobs/HASH when they have that hash, under a lock of their own (the one that
 * huggingface_hub takes): a process that is killed leaves what the next one goes on with, and two at once do not write the same file. Since the
 * name is the hash of the content, whatever is there under it needs no other proof of its version; If-Range would add nothing, and the ETag it
 * needs is another one on the host that files are redirected to. The revision's name is written last, so that it never means half a snapshot. */
#include "base/json.h"
#include "base/progress.h"
#include "base/sha1.h"
#include "base/sha256.h"
#include "checkpoint/internal.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { MAX_INFO_BYTES = 64 << 20, BLOCK = 256 * 1024 };

typedef struct pull {
    const oz_pull_cfg *cfg;
    const char *endpoint;
    oz_repo repo;
    char *token;
    oz_http *http;
    const char *commit; /* what the revision means now: a branch that moves meanwhile changes nothing */
    oz_progress progress;
    int64_t n_done; /* bytes received, of progress */
} pull;

/* ---- folders ---- */

/* Makes the folders that `path` lies in. */
static oz_status parents_make(const char *path, oz_err *err) {
    char *dir = oz_strdup(path);
    oz_status st = OZ_OK;
    for (char *c = dir + 1; st == OZ_OK && (c = strchr(c, '/')); *c++ = '/') {
        *c = 0;
        const int why = mkdir(dir, 0777) == 0 ? 0 : errno;
        if (why && why != EEXIST && !oz_path_is_dir(dir)) st = oz_err_set(err, OZ_E_IO, __FILE__, __LINE__, "%s: %s", dir, strerror(why));
    }
    oz_free(dir);
    return st;
}

/* Puts `target` at `path` in one step, whatever is there. */
static oz_status link_make(const char *path, const char *target, oz_err *err) {
    char *temp = oz_path_temporary(path);
    unlink(temp);
    const bool ok = symlink(target, temp) == 0 && rename(temp, path) == 0;
    const int why = errno;
    if (!ok) unlink(temp);
    oz_free(temp);
    OZ_NEED(ok, err, OZ_E_IO, "%s: %s", path, strerror(why));
    return OZ_OK;
}

/* ---- what the hub says ---- */

static void url_escape(oz_buf *b, const char *s, const char *keep) {
    for (; *s; s++) {
        if (isalnum((unsigned char)*s) || strchr("-_.~", *s) || strchr(keep, *s)) oz_buf_putc(b, *s);
        else oz_buf_printf(b, "%%%02X", (unsigned char)*s);
    }
}

/* A request that the hub refused. */
static oz_status refused(const pull *p, const oz_http_reply *r, const char *what, oz_err *err) {
    const char *repo = p->repo.name, *token = p->token ? "the token that was found does not open it" : "and no token was found: HF_TOKEN, or HF_HOME/token";
    if (strcmp(r->code, "GatedRepo") == 0)
        OZ_FAIL(err, OZ_E_ARG, "%s: is gated: ask for access at %s/%s, and set HF_TOKEN to a token of your account (%s)", repo, p->endpoint, repo, token);
    OZ_NEED(strcmp(r->code, "RevisionNotFound") != 0, err, OZ_E_NOT_FOUND, "%s: has no branch, tag or commit %s", repo, p->repo.rev);
    OZ_NEED(r->status != 401 && r->status != 404 && strcmp(r->code, "RepoNotFound") != 0, err, OZ_E_NOT_FOUND, "%s: %s does not have %s, or it is private (%s)", repo,
            p->endpoint, what, token);
    OZ_NEED(r->status != 403, err, OZ_E_ARG, "%s: %s refuses %s (%s)%s%s", repo, p->endpoint, what, token, *r->message ? ": " : "", r->message);
    OZ_FAIL(err, OZ_E_IO, "%s: %s answers with status %ld for %s%s%s", repo, p->endpoint, r->status, what, *r->message ? ": " : "", r->message);
}

static int64_t text_resume(void *self) { return oz_buf_clear(self), 0; }
static oz_status text_begin(void *self, int64_t from, oz_err *err) { return OZ_OK; }
static bool text_is_whole(const void *self) { return true; }
static oz_status text_put(void *self, const char *s, size_t n, oz_err *err) {
    oz_buf *b = self;
    OZ_NEED(b->len + n <= MAX_INFO_BYTES, err, OZ_E_FORMAT, "the list of files is larger than %d bytes", MAX_INFO_BYTES);
    oz_buf_append(b, s, n);
    return OZ_OK;
}

static oz_status info_get(oz_pull *out, pull *p, oz_err *err) {
    oz_buf url = {0}, text = {0};
    oz_http_reply reply = {0};
    json_t *info = NULL;
    oz_buf_printf(&url, "%s/api/models/%s/revision/", p->endpoint, p->repo.name);
    url_escape(&url, p->repo.rev, "");
    oz_buf_puts(&url, "?blobs=true");
    oz_status st = oz_http_get(&reply, p->http, url.data, &(oz_http_sink){&text, text_resume, text_begin, text_put, text_is_whole}, err);
    if (st == OZ_OK && reply.status >= 400) st = refused(p, &reply, "this repository", err);
    if (st == OZ_OK) st = oz_json_parse(&info, text.data ? text.data : "", text.len, url.data, err);
    if (st == OZ_OK && (st = oz_hub_choose(out, info, p->cfg, err)) == OZ_E_FORMAT) oz_err_prefix(err, "%s", url.data);
    json_decref(info);
    oz_buf_deinit(&url);
    oz_buf_deinit(&text);
    return st;
}

/* ---- one file ---- */

typedef struct blob {
    pull *p;
    const oz_pull_file *f;
    int fd;
    char *path, *part; /* blobs/HASH and blobs/HASH.incomplete */
    int64_t have;      /* bytes in part, and in the hash */
    bool is_git;       /* hash: git's of small files */
    oz_sha256 sha256;
    oz_sha1 sha1;
} blob;

static void hash_add(blob *b, const void *data, size_t n) {
    if (b->is_git) oz_sha1_add(&b->sha1, data, n);
    else oz_sha256_add(&b->sha256, data, n);
    b->have += (int64_t)n;
}

static void hash_begin(blob *b) {
    oz_sha256_init(&b->sha256);
    oz_sha1_init(&b->sha1);
    b->have = 0;
    char head[40]; /* what git hashes in front of the content, with its NUL */
    oz_sha1_add(&b->sha1, head, (size_t)snprintf(head, sizeof head, "blob %" PRId64, b->f->n_bytes) + 1);
}

static oz_status part_clear(blob *b, oz_err *err) {
    OZ_NEED(ftruncate(b->fd, 0) == 0, err, OZ_E_IO, "%s: %s", b->part, strerror(errno));
    hash_begin(b);
    return OZ_OK;
}

static int64_t blob_resume(void *self) { return ((blob *)self)->have; }
static bool blob_is_whole(const void *self) { return ((const blob *)self)->have == ((const blob *)self)->f->n_bytes; }

static oz_status blob_begin(void *self, int64_t from, oz_err *err) {
    blob *b = self;
    if (from == b->have) return OZ_OK;
    b->p->progress.total += b->have; /* the server sends all of it again */
    return part_clear(b, err);
}

static oz_status blob_put(void *self, const char *s, size_t n, oz_err *err) {
    blob *b = self;
    OZ_NEED((int64_t)n <= b->f->n_bytes - b->have, err, OZ_E_FORMAT, "%s: expected %" PRId64 " bytes, the server sends more", b->f->name, b->f->n_bytes);
    for (size_t done = 0; done < n;) {
        const ssize_t k = pwrite(b->fd, s + done, n - done, (off_t)(b->have + (int64_t)done));
        OZ_NEED(k > 0 || errno == EINTR, err, OZ_E_IO, "%s: %s", b->part, strerror(errno));
        if (k > 0) done += (size_t)k;
    }
    hash_add(b, s, n);
    oz_progress_step(&b->p->progress, b->p->n_done += (int64_t)n);
    return OZ_OK;
}

/* What an earlier process left. */
static oz_status part_take_up(blob *b, oz_err *err) {
    char block[BLOCK];
    hash_begin(b);
    for (ssize_t n; (n = pread(b->fd, block, sizeof block, (off_t)b->have)) != 0;) {
        OZ_NEED(n > 0, err, OZ_E_IO, "%s: %s", b->part, strerror(errno));
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        if (n > b->f->n_bytes - b->have) return part_clear(b, err); /* more than the whole: not what we think */
        hash_add(b, block, (size_t)n);
    }
    return OZ_OK;
}

static oz_status blob_get(blob *b, oz_err *err) {
    if (blob_is_whole(b)) return OZ_OK;
    oz_buf url = {0};
    oz_http_reply reply = {0};
    oz_buf_printf(&url, "%s/%s/resolve/%s/", b->p->endpoint, b->p->repo.name, b->p->commit);
    url_escape(&url, b->f->name, "/");
    const oz_http_sink sink = {b, blob_resume, blob_begin, blob_put, blob_is_whole};
    oz_status st = oz_http_get(&reply, b->p->http, url.data, &sink, err);
    if (st == OZ_OK && reply.status == 416 && b->have > 0) { /* the server has no such bytes: not for our part, then, but perhaps from the beginning */
        oz_log_info("%s: the server does not go on at byte %" PRId64 "; once more from the beginning", b->f->name, b->have);
        b->p->progress.total += b->have;
        st = part_clear(b, err);
        if (st == OZ_OK) st = oz_http_get(&reply, b->p->http, url.data, &sink, err);
    }
    if (st == OZ_OK && reply.status >= 400) st = refused(b->p, &reply, b->f->name, err);
    oz_buf_deinit(&url);
    return st;
}

/* *good: part has the hash that it should have. */
static void hash_check(bool *good, char found[65], blob *b) {
    if (b->is_git) oz_sha1_hex(found, &b->sha1);
    else oz_sha256_hex(found, &b->sha256);
    *good = strcmp(found, b->f->hash) == 0;
}

static oz_status blob_fill(blob *b, oz_err *err) {
    char found[65];
    bool good;
    OZ_TRY(part_take_up(b, err));
    const bool resumed = b->have > 0;
    if (resumed) oz_log_info("%s: going on at byte %" PRId64 " of %" PRId64, b->f->name, b->have, b->f->n_bytes);
    b->p->progress.total -= b->have;
    OZ_TRY(blob_get(b, err));
    hash_check(&good, found, b);
    if (!good && resumed) {
        oz_log_info("%s: what was there before is damaged; once more from the beginning", b->f->name);
        b->p->progress.total += b->f->n_bytes;
        OZ_TRY(part_clear(b, err));
        OZ_TRY(blob_get(b, err));
        hash_check(&good, found, b);
    }
    if (!good) unlink(b->part);
    OZ_NEED(good, err, OZ_E_FORMAT, "%s: expected %s %s, found %s: the server sent something else than it promised", b->f->name, b->is_git ? "git's hash" : "sha256",
            b->f->hash, found);
    OZ_NEED(fsync(b->fd) == 0 && rename(b->part, b->path) == 0, err, OZ_E_IO, "%s: %s", b->path, strerror(errno));
    return OZ_OK;
}

static bool is_there(const char *path, int64_t n_bytes) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == n_bytes;
}

/* Waits until no other process has the lock. The file may have been removed by the one that had it. */
static oz_status lock_take(int *fd, const char *path, const char *name, oz_err *err) {
    bool said = false;
    OZ_TRY(parents_make(path, err));
    for (;;) {
        struct stat ours, there;
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
        OZ_NEED(*fd >= 0, err, OZ_E_IO, "%s: %s", path, strerror(errno));
        const bool got = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        const int why = errno;
        if (got && fstat(*fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino) return OZ_OK;
        close(*fd);
        OZ_NEED(got || why == EWOULDBLOCK || why == EINTR, err, OZ_E_IO, "%s: cannot be locked: %s", path, strerror(why));
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        if (!said) oz_log_info("%s: another process downloads it; waiting", name);
        said = true;
        nanosleep(&(struct timespec){0, 100 * 1000 * 1000}, NULL);
    }
}

/* The blob, if it is not there. */
static oz_status blob_need(pull *p, oz_pull_file *f, oz_err *err) {
    blob b = {.p = p, .f = f, .fd = -1, .is_git = strlen(f->hash) == 40};
    b.path = oz_asprintf("%s/blobs/%s", p->repo.dir, f->hash);
    if (is_there(b.path, f->n_bytes)) return oz_free(b.path), OZ_OK;
    int lock = -1;
    char *cache = oz_hub_cache_dir();
    char *lock_path = oz_asprintf("%s/.locks%s/%s.lock", cache, strrchr(p->repo.dir, '/'), f->hash);
    b.part = oz_asprintf("%s.incomplete", b.path);
    oz_status st = lock_take(&lock, lock_path, f->name, err);
    if (st == OZ_OK && !is_there(b.path, f->n_bytes)) {
        b.fd = open(b.part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        st = b.fd >= 0 ? blob_fill(&b, err) : oz_err_set(err, OZ_E_IO, __FILE__, __LINE__, "%s: %s", b.part, strerror(errno));
        if (b.fd >= 0) close(b.fd);
        f->fetched = true;
    }
    if (lock >= 0) close(lock);
    oz_free(lock_path);
    oz_free(cache);
    oz_free(b.part);
    oz_free(b.path);
    return st;
}

/* ---- the snapshot ---- */

static oz_status file_link(const pull *p, const oz_pull *out, const oz_pull_file *f, oz_err *err) {
    char *path = oz_path_join(out->path, f->name);
    oz_buf target = {0};
    oz_buf_puts(&target, "../../");
    for (const char *c = f->name; (c = strchr(c, '/')); c++) oz_buf_puts(&target, "../");
    oz_buf_printf(&target, "blobs/%s", f->hash);
    oz_status st = parents_make(path, err);
    if (st == OZ_OK) st = link_make(path, target.data, err);
    oz_buf_deinit(&target);
    oz_free(path);
    return st;
}

/* Bytes that have to be received, and room for them. */
static oz_status room_check(pull *p, const oz_pull *out, oz_err *err) {
    int64_t need = 0;
    for (size_t i = 0; i < out->n_files; i++) {
        char *path = oz_asprintf("%s/blobs/%s", p->repo.dir, out->files[i].hash), *part = oz_asprintf("%s.incomplete", path);
        struct stat st;
        const bool there = is_there(path, out->files[i].n_bytes);
        if (!there && __builtin_add_overflow(need, out->files[i].n_bytes, &need)) need = INT64_MAX / 2;
        p->progress.total += there ? 0 : out->files[i].n_bytes;
        if (!there && stat(part, &st) == 0 && st.st_size <= out->files[i].n_bytes) need -= st.st_size;
        oz_free(part);
        oz_free(path);
    }
    struct statvfs fs;
    if (statvfs(p->repo.dir, &fs) != 0) return OZ_OK; /* then writing will tell */
    const double room = (double)fs.f_bavail * (double)fs.f_frsize;
    OZ_NEED((double)need <= room, err, OZ_E_IO, "%s: %.2f GB are to be downloaded, and %.2f GB are free in %s", p->repo.name, (double)need / 1e9, room / 1e9, p->repo.dir);
    return OZ_OK;
}

static oz_status ref_write(const pull *p, const oz_pull *out, oz_err *err) {
    if (strcmp(p->repo.rev, out->commit) == 0) return OZ_OK; /* a commit needs no name */
    char *path = oz_asprintf("%s/refs/%s", p->repo.dir, p->repo.rev);
    oz_status st = parents_make(path, err);
    if (st == OZ_OK) st = oz_file_write_atomic(path, out->commit, 40, err);
    oz_free(path);
    return st;
}

static oz_status pull_online(oz_pull *out, pull *p, oz_err *err) {
    OZ_TRY(oz_http_open(&p->http, p->endpoint, p->token, err));
    OZ_TRY(info_get(out, p, err));
    p->commit = out->commit;
    out->path = oz_asprintf("%s/snapshots/%s", p->repo.dir, out->commit);
    char *blobs = oz_asprintf("%s/blobs/", p->repo.dir), *inside = oz_asprintf("%s/", out->path);
    oz_status st = parents_make(blobs, err);
    if (st == OZ_OK) st = parents_make(inside, err);
    oz_free(blobs);
    oz_free(inside);
    oz_progress_init(&p->progress, p->repo.name, "B", 0);
    if (st == OZ_OK) st = room_check(p, out, err);
    for (size_t i = 0; i < out->n_files && st == OZ_OK; i++) {
        st = blob_need(p, &out->files[i], err);
        if (st == OZ_OK) st = file_link(p, out, &out->files[i], err);
        if (st == OZ_E_INTERRUPTED) oz_err_prefix(err, "`ounce pull %s` goes on from here", p->cfg->repo);
    }
    oz_progress_deinit(&p->progress);
    return st == OZ_OK ? ref_write(p, out, err) : st;
}

static bool env_is_true(const char *variable) {
    const char *v = getenv(variable);
    return v && (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 || strcasecmp(v, "yes") == 0 || strcasecmp(v, "on") == 0);
}

static char *endpoint_get(void) {
    const char *v = getenv("HF_ENDPOINT");
    char *s = oz_strdup(v && *v ? v : "https://huggingface.co");
    for (size_t n = strlen(s); n && s[n - 1] == '/';) s[--n] = 0;
    return s;
}

oz_status oz_hub_pull(oz_pull *out, const oz_pull_cfg *cfg, oz_err *err) {
    *out = (oz_pull){0};
    pull p = {.cfg = cfg};
    OZ_TRY(oz_repo_parse(&p.repo, cfg->repo, err));
    char *endpoint = endpoint_get();
    p.endpoint = endpoint;
    oz_status st;
    if (cfg->offline || env_is_true("HF_HUB_OFFLINE")) {
        out->path = oz_repo_snapshot(&p.repo);
        if (out->path) out->commit = oz_strdup(strrchr(out->path, '/') + 1);
        st = out->path ? OZ_OK : oz_err_set(err, OZ_E_NOT_FOUND, __FILE__, __LINE__, "%s: not in the cache (%s), and nothing is downloaded offline", cfg->repo, p.repo.dir);
    } else {
        p.token = oz_hub_token();
        st = pull_online(out, &p, err);
    }
    oz_http_close(&p.http);
    oz_repo_deinit(&p.repo);
    oz_free(p.token);
    oz_free(endpoint);
    if (st != OZ_OK) oz_pull_deinit(out);
    return st;
}

void oz_pull_deinit(oz_pull *p) {
    for (size_t i = 0; i < p->n_files; i++) oz_free(p->files[i].name);
    oz_free(p->files);
    oz_free(p->path);
    oz_free(p->commit);
    *p = (oz_pull){0};
}
