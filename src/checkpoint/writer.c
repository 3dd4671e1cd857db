/* The writer that follows a layout. Files are given their full size first, so that a full disk is met before the work and not after
 * it; then each thread writes its bytes with pwrite at their final place. For every tensor the ranges written so far are kept, merged:
 * a byte written twice and a byte never written are both errors, since either would be a wrong checkpoint that looks right. */
#include "checkpoint/internal.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct range {
    size_t begin, end;
} range;
typedef struct written {
    range *ranges;
    size_t n, cap;
} written; /* ascending, disjoint, not touching */

struct oz_writer {
    const oz_layout *layout;
    char *dir;
    char *target, *temporary; /* of a single file: where it goes and where it is written; else NULL */
    int *fds;                 /* one a file of the layout, -1: not open */
    pthread_mutex_t lock;     /* guards written and failed */
    written *written;         /* one a tensor */
    bool failed;
};

static oz_status io_error(oz_err *err, const char *path, const char *what) {
    OZ_FAIL(err, OZ_E_IO, "%s: %s: %s", path, what, strerror(errno));
}

static oz_status write_at(int fd, const char *path, size_t at, const void *data, size_t n, oz_err *err) {
    const char *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        OZ_NEED(k > 0 || errno != EFAULT, err, OZ_E_IO, "%s: cannot write: a file that its data comes from cannot be read any more", path);
        if (k <= 0) return io_error(err, path, "cannot write");
        p += k;
        at += (size_t)k;
        n -= (size_t)k;
    }
    return OZ_OK;
}

/* Reserves the space. A file system that cannot reserve gets a sparse file, and tells of a full disk while data is written. */
static oz_status file_size(int fd, const char *path, size_t n, oz_err *err) {
    if (fallocate(fd, 0, 0, (off_t)n) == 0) return OZ_OK;
    if (errno != EOPNOTSUPP && errno != ENOSYS) OZ_FAIL(err, OZ_E_IO, "%s: no room for %zu bytes: %s", path, n, strerror(errno));
    if (ftruncate(fd, (off_t)n) != 0) return io_error(err, path, "cannot set its size");
    return OZ_OK;
}

/* For messages: where the file goes, whatever it is called under way. */
static char *file_path(const oz_writer *w, size_t i) { return w->target ? oz_strdup(w->target) : oz_path_join(w->dir, w->layout->files[i].name); }

static oz_status file_start(oz_writer *w, size_t i, oz_err *err) {
    const oz_layout_part *f = &w->layout->files[i];
    char *path = file_path(w, i);
    oz_status st = OZ_OK;
    w->fds[i] = open(w->temporary ? w->temporary : path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fds[i] < 0) st = io_error(err, path, "cannot create");
    if (st == OZ_OK) st = file_size(w->fds[i], path, f->n_bytes, err);
    if (st == OZ_OK) st = write_at(w->fds[i], path, 0, f->head.data, f->head.len, err);
    oz_free(path);
    return st;
}

/* The file is what file_start made, its data aside. */
static oz_status head_check(int fd, const char *path, const oz_layout_part *f, oz_err *err) {
    struct stat s;
    if (fstat(fd, &s) != 0) return io_error(err, path, "cannot read");
    OZ_NEED(S_ISREG(s.st_mode) && (size_t)s.st_size == f->n_bytes, err, OZ_E_FORMAT, "%s: expected %zu bytes, found %lld", path, f->n_bytes, (long long)s.st_size);
    char *head = oz_alloc(f->head.len + 1);
    const ssize_t n = pread(fd, head, f->head.len, 0);
    const bool same = n == (ssize_t)f->head.len && memcmp(head, f->head.data, f->head.len) == 0;
    oz_free(head);
    if (n < 0) return io_error(err, path, "cannot read");
    OZ_NEED(same, err, OZ_E_FORMAT, "%s: its header is not the one that was written", path);
    return OZ_OK;
}

static oz_status file_take_up(oz_writer *w, size_t i, oz_err *err) {
    char *path = file_path(w, i);
    w->fds[i] = open(path, O_RDWR | O_CLOEXEC);
    oz_status st = w->fds[i] < 0 ? io_error(err, path, "cannot open") : head_check(w->fds[i], path, &w->layout->files[i], err);
    oz_free(path);
    return st;
}

typedef oz_status file_fn(oz_writer *w, size_t i, oz_err *err);

static oz_status writer_new(oz_writer **out, const oz_layout *l, const char *dir, const char *target, file_fn *each, oz_err *err) {
    assert(l->n_files > 0); /* oz_layout_fix was called */
    oz_writer *w = oz_alloc(sizeof *w);
    w->layout = l;
    w->dir = dir ? oz_strdup(dir) : NULL;
    w->target = target ? oz_strdup(target) : NULL;
    w->temporary = target ? oz_path_temporary(target) : NULL;
    w->fds = oz_alloc_array(l->n_files, sizeof *w->fds);
    w->written = oz_alloc_array(l->n_tensors + 1, sizeof *w->written);
    pthread_mutex_init(&w->lock, NULL);
    for (size_t i = 0; i < l->n_files; i++) w->fds[i] = -1;
    if (w->temporary) oz_temporary_add(w->temporary);
    oz_status st = target && !oz_path_exists(target) && errno == ENAMETOOLONG ? io_error(err, target, "cannot create") : OZ_OK;
    for (size_t i = 0; i < l->n_files && st == OZ_OK; i++) st = each(w, i, err);
    if (st != OZ_OK) oz_writer_close(&w);
    *out = w;
    return st;
}

oz_status oz_writer_open(oz_writer **out, const oz_layout *l, const char *dir, oz_err *err) { return writer_new(out, l, dir, NULL, file_start, err); }

oz_status oz_writer_reopen(oz_writer **out, const oz_layout *l, const char *dir, oz_err *err) { return writer_new(out, l, dir, NULL, file_take_up, err); }

oz_status oz_writer_open_file(oz_writer **out, const oz_layout *l, const char *path, oz_err *err) {
    *out = NULL;
    struct stat st;
    OZ_NEED(l->n_files == 1, err, OZ_E_ARG, "%s: %zu files do not fit into one", path, l->n_files);
    OZ_NEED(stat(path, &st) != 0 || S_ISREG(st.st_mode), err, OZ_E_ARG, "%s: expected a new name or a regular file", path);
    return writer_new(out, l, NULL, path, file_start, err);
}

/* Adds [begin, end) to what was written; false if a byte of it was written before. */
static bool range_add(written *p, size_t begin, size_t end) {
    size_t i = p->n; /* the first range that begins at or after `end`; ranges mostly grow at the end, so the search starts there */
    while (i > 0 && p->ranges[i - 1].begin >= end) i--;
    range *before = i > 0 ? &p->ranges[i - 1] : NULL, *after = i < p->n ? &p->ranges[i] : NULL;
    if (before && before->end > begin) return false;
    bool joins_before = before && before->end == begin, joins_after = after && after->begin == end;
    if (joins_before && joins_after) {
        before->end = after->end;
        memmove(after, after + 1, (p->n - i - 1) * sizeof *after);
        p->n--;
    } else if (joins_before)
        before->end = end;
    else if (joins_after)
        after->begin = begin;
    else {
        oz_grow((void **)&p->ranges, &p->cap, p->n + 1, sizeof *p->ranges);
        memmove(p->ranges + i + 1, p->ranges + i, (p->n - i) * sizeof *p->ranges);
        p->ranges[i] = (range){begin, end};
        p->n++;
    }
    return true;
}

/* Notes that bytes of a tensor are written. */
static oz_status claim(const oz_layout_tensor **out, oz_writer *w, const char *name, size_t offset, size_t n_bytes, oz_err *err) {
    int64_t index;
    OZ_NEED(oz_map_get(w->layout->by_name, name, strlen(name), &index), err, OZ_E_ARG, "%s: not declared in the layout", name);
    const oz_layout_tensor *t = *out = &w->layout->tensors[index];
    if (n_bytes == SIZE_MAX) n_bytes = t->n_bytes;
    OZ_NEED(offset <= t->n_bytes && n_bytes <= t->n_bytes - offset, err, OZ_E_ARG, "%s: bytes %zu to %zu do not lie within its %zu", name,
            offset, offset + n_bytes, t->n_bytes);
    if (n_bytes == 0) return OZ_OK;
    pthread_mutex_lock(&w->lock);
    bool fresh = range_add(&w->written[index], offset, offset + n_bytes);
    pthread_mutex_unlock(&w->lock);
    OZ_NEED(fresh, err, OZ_E_ARG, "%s: bytes within %zu to %zu are written twice", name, offset, offset + n_bytes);
    return OZ_OK;
}

oz_status oz_writer_keep(oz_writer *w, const char *name, oz_err *err) {
    const oz_layout_tensor *t = NULL;
    return claim(&t, w, name, 0, SIZE_MAX, err);
}

oz_status oz_writer_put(oz_writer *w, const char *name, size_t offset, const void *data, size_t n_bytes, oz_err *err) {
    const oz_layout_tensor *t = NULL;
    OZ_TRY(claim(&t, w, name, offset, n_bytes, err));
    if (n_bytes == 0) return OZ_OK;
    char *path = file_path(w, t->file);
    oz_status st = write_at(w->fds[t->file], path, t->offset + offset, data, n_bytes, err);
    oz_free(path);
    if (st == OZ_OK) return OZ_OK;
    pthread_mutex_lock(&w->lock);
    w->failed = true;
    pthread_mutex_unlock(&w->lock);
    return st;
}

static oz_status complete_check(const oz_writer *w, oz_err *err) {
    OZ_NEED(!w->failed, err, OZ_E_IO, "a write failed before: the checkpoint is not complete");
    for (size_t i = 0; i < w->layout->n_tensors; i++) {
        const oz_layout_tensor *t = &w->layout->tensors[i];
        const written *p = &w->written[i];
        size_t n = 0;
        for (size_t k = 0; k < p->n; k++) n += p->ranges[k].end - p->ranges[k].begin;
        OZ_NEED(n == t->n_bytes, err, OZ_E_ARG, "%s: %zu of its %zu bytes were written", t->name, n, t->n_bytes);
    }
    return OZ_OK;
}

static oz_status files_close(oz_writer *w, bool sync, oz_err *err) {
    oz_status st = OZ_OK;
    for (size_t i = 0; i < w->layout->n_files; i++) {
        if (w->fds[i] < 0) continue;
        bool bad = sync && st == OZ_OK && fsync(w->fds[i]) != 0;
        bad |= close(w->fds[i]) != 0 && sync;
        w->fds[i] = -1;
        if (!bad || st != OZ_OK) continue;
        char *path = file_path(w, i);
        st = io_error(err, path, "cannot write");
        oz_free(path);
    }
    return st;
}

oz_status oz_writer_sync(oz_writer *w, oz_err *err) {
    for (size_t i = 0; i < w->layout->n_files; i++) {
        if (fsync(w->fds[i]) == 0) continue;
        char *path = file_path(w, i);
        oz_status st = io_error(err, path, "cannot write");
        oz_free(path);
        return st;
    }
    return OZ_OK;
}

oz_status oz_writer_finish(oz_writer *w, oz_err *err) {
    OZ_TRY(complete_check(w, err));
    OZ_TRY(files_close(w, true, err));
    if (!w->temporary) return OZ_OK;
    if (rename(w->temporary, w->target) != 0) return io_error(err, w->target, "cannot rename to it");
    oz_temporary_forget(w->temporary);
    oz_free(w->temporary);
    w->temporary = NULL;
    return OZ_OK;
}

void oz_writer_close(oz_writer **pw) {
    oz_writer *w = *pw;
    if (!w) return;
    files_close(w, false, NULL);
    if (w->temporary) unlink(w->temporary), oz_temporary_forget(w->temporary);
    for (size_t i = 0; i < w->layout->n_tensors; i++) oz_free(w->written[i].ranges);
    pthread_mutex_destroy(&w->lock);
    oz_free(w->written);
    oz_free(w->fds);
    oz_free(w->dir);
    oz_free(w->target);
    oz_free(w->temporary);
    oz_free(w);
    *pw = NULL;
}
