#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/progress.h"
#include "base/sha1.h"

/* ---- maps ---- */

/* Opens what must be a regular file. O_NONBLOCK: a pipe that nobody writes to is refused, not waited for. */
static oz_status open_regular(int *fd, struct stat *st, const char *path, oz_err *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    OZ_NEED(*fd >= 0, err, errno == ENOENT ? OZ_E_NOT_FOUND : OZ_E_IO, "%s: %s", path, strerror(errno));
    const bool known = fstat(*fd, st) == 0;
    if (known && S_ISREG(st->st_mode)) return OZ_OK;
    const char *why = known ? "" : strerror(errno);
    close(*fd);
    *fd = -1;
    OZ_NEED(known, err, OZ_E_IO, "%s: %s", path, why);
    OZ_FAIL(err, OZ_E_IO, "%s: expected a regular file, found a %s", path, S_ISDIR(st->st_mode) ? "folder" : S_ISFIFO(st->st_mode) ? "pipe" : "device");
}

oz_status oz_mmap_open(oz_mmap *m, const char *path, oz_err *err) {
    *m = (oz_mmap){0};
    int fd;
    struct stat st;
    OZ_TRY(open_regular(&fd, &st, path, err));
    void *p = st.st_size > 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    const int why = errno;
    close(fd);
    OZ_NEED(p != MAP_FAILED, err, OZ_E_IO, "%s: cannot be mapped: %s", path, strerror(why));
    *m = (oz_mmap){p ? p : (const uint8_t *)"", (size_t)st.st_size, oz_strdup(path)};
    return OZ_OK;
}

void oz_mmap_close(oz_mmap *m) {
    if (m->n_bytes) munmap((void *)m->data, m->n_bytes);
    oz_free(m->path);
    *m = (oz_mmap){0};
}

void oz_mmap_drop(const oz_mmap *m, const void *p, size_t n_bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)m->data;
    uintptr_t begin = ((uintptr_t)p + page - 1) & ~(page - 1), end = ((uintptr_t)p + n_bytes) & ~(page - 1);
    if (m->n_bytes && begin >= base && end <= base + m->n_bytes && begin < end) {
        madvise((void *)(m->data + (begin - base)), end - begin, MADV_DONTNEED);
    }
}

/* ---- whole reads ---- */

static oz_status read_append(oz_buf *out, int fd, const char *path, size_t limit_bytes, oz_err *err) {
    struct stat st;
    size_t want = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 0;
    OZ_NEED(want <= limit_bytes, err, OZ_E_FORMAT, "%s: expected at most %zu bytes, found %zu", path, limit_bytes, want);
    size_t len = out->len;
    for (;;) {
        size_t need = len + (want + out->len > len ? want + out->len - len : 0) + 4096;
        if (out->cap < need) {
            size_t cap = need > 2 * out->cap ? need : 2 * out->cap;
            char *p = realloc(out->data, cap);
            OZ_NEED(p, err, OZ_E_NOMEM, "%s: %zu bytes of memory could not be had", path, cap);
            out->data = p;
            out->cap = cap;
        }
        ssize_t n = -1;
        errno = EINTR; /* a signal that came before would not wake us from waiting for a terminal */
        if (!oz_interrupted()) n = read(fd, out->data + len, out->cap - len - 1);
        if (n < 0 && errno == EINTR && !oz_interrupted()) continue;
        if (n <= 0) {
            out->len = len;
            out->data[len] = 0;
            if (n == 0) return OZ_OK;
            OZ_FAIL(err, errno == EINTR ? OZ_E_INTERRUPTED : OZ_E_IO, "%s: %s", path, errno == EINTR ? "interrupted" : strerror(errno));
        }
        len += (size_t)n;
        OZ_NEED(len - out->len <= limit_bytes, err, OZ_E_FORMAT, "%s: expected at most %zu bytes, found more", path, limit_bytes);
    }
}

/* A buffer that was empty before is so after an error. */
static oz_status read_fd(oz_buf *out, int fd, const char *path, size_t limit_bytes, oz_err *err) {
    const bool fresh = !out->data;
    const oz_status s = read_append(out, fd, path, limit_bytes, err);
    if (s != OZ_OK && fresh) oz_buf_deinit(out);
    return s;
}

oz_status oz_file_read(oz_buf *out, const char *path, size_t limit_bytes, oz_err *err) {
    if (strcmp(path, "-") == 0) return read_fd(out, STDIN_FILENO, "stdin", limit_bytes, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    OZ_NEED(fd >= 0 || errno != EINTR, err, OZ_E_INTERRUPTED, "%s: interrupted", path);
    OZ_NEED(fd >= 0, err, errno == ENOENT ? OZ_E_NOT_FOUND : OZ_E_IO, "%s: %s", path, strerror(errno));
    oz_status s = read_fd(out, fd, path, limit_bytes, err);
    close(fd);
    return s;
}

oz_status oz_file_read_regular(oz_buf *out, const char *path, size_t limit_bytes, oz_err *err) {
    int fd;
    struct stat st;
    OZ_TRY(open_regular(&fd, &st, path, err));
    oz_status s = read_fd(out, fd, path, limit_bytes, err);
    close(fd);
    return s;
}

/* ---- atomic writes ---- */

static oz_status fail_at(oz_err *err, const char *path, int line) {
    return oz_err_set(err, OZ_E_IO, __FILE__, line, "%s: %s", path, strerror(errno));
}

static bool write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EINTR) return false;
        if (k > 0) p += k, n -= (size_t)k;
    }
    return true;
}

enum { MAX_STEM = 200 }; /* bytes of a name of 255 at most that leave room for what comes before and behind */

/* The name itself, or of one that is too long 16 digits that stand for it. */
static char *stem_of(const char *base) {
    char hex[41];
    oz_sha1 sha;
    if (strlen(base) <= MAX_STEM) return oz_strdup(base);
    oz_sha1_init(&sha);
    oz_sha1_add(&sha, base, strlen(base));
    oz_sha1_hex(hex, &sha);
    return oz_strndup(hex, 16);
}

/* "dir/NAME" -> "dir/" PREFIX STEM SUFFIX */
static char *neighbour(const char *path, const char *prefix, const char *suffix) {
    const char *slash = strrchr(path, '/');
    const int n_dir = slash ? (int)(slash + 1 - path) : 0;
    char *stem = stem_of(path + n_dir), *made = oz_asprintf("%.*s%s%s%s", n_dir, path, prefix, stem, suffix);
    oz_free(stem);
    return made;
}

char *oz_path_beside(const char *path, const char *suffix) { return neighbour(path, "", suffix); }

static atomic_int temp_counter;

char *oz_path_temporary(const char *path) {
    char suffix[64];
    snprintf(suffix, sizeof suffix, ".tmp-%ld-%d", (long)getpid(), atomic_fetch_add(&temp_counter, 1));
    return neighbour(path, ".", suffix);
}

/* A name that no file system takes is said now, not when the work is done. */
static oz_status name_check(const char *path, oz_err *err) {
    struct stat st;
    if (lstat(path, &st) != 0 && errno == ENAMETOOLONG) return fail_at(err, path, __LINE__);
    return OZ_OK;
}

static void fsync_parent(const char *path) {
    char *dir = oz_strdup(path), *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* some file systems cannot sync a folder, and say so: the rename is done all the same */
        close(fd);
    }
    oz_free(dir);
}

/* A file being written: to a name beside its target, or straight to a target that is no regular file (a pipe, /dev/null). */
typedef struct newfile { int fd; char *temp; const char *path; } newfile;

static oz_status newfile_open(newfile *f, const char *path, mode_t mode, oz_err *err) {
    struct stat st;
    *f = (newfile){.fd = -1, .path = path};
    OZ_TRY(name_check(path, err));
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        f->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        f->temp = oz_path_temporary(path);
        f->fd = open(f->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    }
    if (f->fd >= 0) return OZ_OK;
    oz_status s = fail_at(err, path, __LINE__);
    oz_free(f->temp);
    return s;
}

static oz_status newfile_close(newfile *f, oz_status s, oz_err *err) {
    if (s == OZ_OK && f->temp && fsync(f->fd) != 0) s = fail_at(err, f->path, __LINE__);
    if (close(f->fd) != 0 && s == OZ_OK) s = fail_at(err, f->path, __LINE__);
    if (f->temp) {
        if (s == OZ_OK && rename(f->temp, f->path) != 0) s = fail_at(err, f->path, __LINE__);
        if (s != OZ_OK) unlink(f->temp);
        else fsync_parent(f->path);
    }
    oz_free(f->temp);
    return s;
}

oz_status oz_file_write_atomic(const char *path, const void *data, size_t n_bytes, oz_err *err) {
    newfile f;
    OZ_TRY(newfile_open(&f, path, 0666, err));
    oz_status s = write_all(f.fd, data, n_bytes) ? OZ_OK : fail_at(err, path, __LINE__);
    return newfile_close(&f, s, err);
}

oz_status oz_file_copy(const char *from, const char *to, oz_err *err) {
    int in;
    newfile f;
    struct stat st;
    OZ_TRY(open_regular(&in, &st, from, err));
    oz_status s = newfile_open(&f, to, st.st_mode & 0777, err);
    if (s == OZ_OK) {
        char block[64 * 1024];
        ssize_t n;
        while ((n = read(in, block, sizeof block)) != 0 && s == OZ_OK) {
            if (oz_interrupted()) s = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "%s: interrupted", from);
            else if (n < 0 && errno == EINTR) continue;
            else if (n < 0) s = fail_at(err, from, __LINE__);
            else if (!write_all(f.fd, block, (size_t)n)) s = fail_at(err, to, __LINE__);
        }
        s = newfile_close(&f, s, err);
    }
    close(in);
    return s;
}

/* ---- paths ---- */

bool oz_path_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

bool oz_path_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool oz_path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *oz_path_join(const char *dir, const char *name) {
    if (!*dir || *name == '/') return oz_strdup(name);
    return oz_asprintf("%s%s%s", dir, oz_str_ends(dir, "/") ? "" : "/", name);
}

/* ---- output folders ---- */

struct oz_outdir { char *target, *temp; int lock; bool force, committed; };

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    return remove(path);
}

static int remove_tree(const char *path) { return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static int sync_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    if (type != FTW_F || !S_ISREG(st->st_mode)) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int bad = fsync(fd);
    close(fd);
    return bad;
}

/* The root of a mounted file system; a kernel that does not tell refuses the rename later. */
static bool is_mount(const char *path) {
    struct statx s;
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &s) == 0 && (s.stx_attributes & s.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT);
}

oz_status oz_outdir_check(const char *target, oz_err *err) {
    size_t n = strlen(target);
    while (n > 0 && target[n - 1] == '/') n--;
    size_t base = n;
    while (base > 0 && target[base - 1] != '/') base--;
    const bool is_name = n > base && !(n - base == 1 && target[base] == '.') && !(n - base == 2 && target[base] == '.' && target[base + 1] == '.');
    OZ_NEED(is_name, err, OZ_E_ARG, "%s: expected the name of a folder to make", target);
    OZ_TRY(name_check(target, err));
    OZ_NEED(!is_mount(target), err, OZ_E_ARG, "%s: is where a file system is mounted, and cannot be replaced; name a folder in it", target);
    return OZ_OK;
}

/* Is `name` what oz_path_temporary makes for a folder whose stem this is? *pid: whose. */
static bool is_temp_name(long *pid, const char *name, const char *stem) {
    int i;
    const size_t n = strlen(stem);
    if (name[0] != '.' || strncmp(name + 1, stem, n) != 0 || sscanf(name + 1 + n, ".tmp-%ld-%d", pid, &i) != 2 || *pid <= 0) return false;
    char *same = oz_asprintf(".%s.tmp-%ld-%d", stem, *pid, i);
    const bool is = strcmp(same, name) == 0;
    oz_free(same);
    return is;
}

/* What runs that were killed left beside `path`. A folder is removed only where it is certain that nobody writes to it: it has our name for it, is ours, its
 * process is gone, and the lock that the process held on it can be had (so processes of other containers and machines count as well; where a file system has
 * no such locks, it stays). */
static void leftovers_remove(const char *path) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? oz_strndup(path, (size_t)(slash + 1 - path)) : oz_strdup("."), *stem = stem_of(slash ? slash + 1 : path);
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        long pid;
        struct stat st;
        if (!is_temp_name(&pid, e->d_name, stem) || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            char *left = oz_path_join(slash ? dir : "", e->d_name);
            if (remove_tree(left) == 0) oz_log_info("%s: removed what a run that was killed had left", left);
            oz_free(left);
        }
        close(fd);
    }
    if (d) closedir(d);
    oz_free(dir);
    oz_free(stem);
}

static oz_status temp_make(char **temp, const char *path, oz_err *err) {
    *temp = NULL;
    do { /* a name may be left over from a process that was killed and had our number */
        oz_free(*temp);
        *temp = oz_path_temporary(path);
        if (mkdir(*temp, 0777) == 0) return OZ_OK;
    } while (errno == EEXIST);
    OZ_NEED(errno != ENOENT, err, OZ_E_IO, "%s: the folder that it would be made in does not exist", path);
    return fail_at(err, path, __LINE__);
}

oz_status oz_outdir_open(oz_outdir **out, const char *target, bool force, oz_err *err) {
    *out = NULL;
    OZ_TRY(oz_outdir_check(target, err));
    size_t n = strlen(target);
    while (target[n - 1] == '/') n--;
    char *path = oz_strndup(target, n), *temp = NULL;
    oz_status s = OZ_OK;
    if (!force && oz_path_exists(path)) s = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: exists already (--force replaces it)", path);
    else leftovers_remove(path), s = temp_make(&temp, path, err);
    if (s != OZ_OK) {
        oz_free(path);
        oz_free(temp);
        return s;
    }
    oz_outdir *d = oz_alloc(sizeof *d);
    *d = (oz_outdir){path, temp, open(temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC), force, false};
    if (d->lock >= 0) flock(d->lock, LOCK_EX | LOCK_NB); /* for leftovers_remove, which takes none for a sign of life */
    oz_temporary_add(temp);
    *out = d;
    return OZ_OK;
}

const char *oz_outdir_path(const oz_outdir *d) { return d->temp; }

/* Puts dir in target's place; a folder that was there lies at dir afterwards. Without renameat2 (some network file systems) by way of a third
 * name, and the target is missing for an instant. */
static bool replace(const char *dir, const char *target, bool force) {
    unsigned how = force && oz_path_exists(target) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    if (renameat2(AT_FDCWD, dir, AT_FDCWD, target, how) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false;
    if (how == RENAME_NOREPLACE) {
        if (oz_path_exists(target)) return errno = EEXIST, false;
        return rename(dir, target) == 0;
    }
    char *old = oz_asprintf("%s.old", dir);
    bool moved = rename(target, old) == 0, ok = moved && rename(dir, target) == 0;
    int e = errno;
    if (moved) rename(old, ok ? dir : target);
    oz_free(old);
    errno = e;
    return ok;
}

oz_status oz_dir_commit(const char *dir, const char *target, bool force, oz_err *err) {
    if (nftw(dir, sync_one, 16, FTW_PHYS) != 0) return fail_at(err, target, __LINE__);
    if (!replace(dir, target, force)) {
        OZ_NEED(errno != EEXIST, err, OZ_E_ARG, "%s: appeared while this ran, and was left alone; move it away, or --force replaces it", target);
        return fail_at(err, target, __LINE__);
    }
    fsync_parent(target);
    return OZ_OK;
}

oz_status oz_dir_remove(const char *path, oz_err *err) { return remove_tree(path) == 0 ? OZ_OK : fail_at(err, path, __LINE__); }

oz_status oz_outdir_commit(oz_outdir *d, oz_err *err) {
    OZ_TRY(oz_dir_commit(d->temp, d->target, d->force, err));
    d->committed = true;
    if (oz_path_exists(d->temp) && remove_tree(d->temp) != 0) oz_log_warn("%s: is whole; what it replaced could not be removed and is left as %s: %s", d->target, d->temp, strerror(errno));
    return OZ_OK;
}

void oz_outdir_close(oz_outdir **d) {
    if (!*d) return;
    if (!(*d)->committed) remove_tree((*d)->temp);
    if ((*d)->lock >= 0) close((*d)->lock);
    oz_temporary_forget((*d)->temp);
    oz_free((*d)->target);
    oz_free((*d)->temp);
    oz_free(*d);
    *d = NULL;
}

/* ---- signals ---- */

static volatile sig_atomic_t n_signals;

/* The third signal ends the process as if we had not asked: whoever presses the key again and again wants out. */
static void on_signal(int sig) {
    if (++n_signals >= 2) signal(sig, SIG_DFL);
}

void oz_interrupt_init(void) {
    struct sigaction a = {.sa_handler = on_signal}, old; /* no SA_RESTART: a read of the terminal returns */
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(SIGHUP, &a, NULL); /* nohup has it ignored */
}

bool oz_interrupted(void) { return n_signals > 0; }
