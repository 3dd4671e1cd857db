/* Files: read-only maps, whole reads with a limit, atomic replacement of a file and of a folder. */
#ifndef OZ_BASE_FILE_H
#define OZ_BASE_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

typedef struct oz_mmap { const uint8_t *data; size_t n_bytes; char *path; } oz_mmap;
oz_status oz_mmap_open(oz_mmap *m, const char *path, oz_err *err); /* a regular file; an empty one gives n_bytes 0 */
void oz_mmap_close(oz_mmap *m);
/* Tells the system that [p, p+n) of a map will not be read again: whole pages inside it leave the process. */
void oz_mmap_drop(const oz_mmap *m, const void *p, size_t n_bytes);

oz_status oz_file_read(oz_buf *out, const char *path, size_t limit_bytes, oz_err *err); /* path "-": stdin; appends; a buffer without memory has none after an error */
/* For a file that a folder has, not one that a user named: a pipe or a device there is refused, not waited for. */
oz_status oz_file_read_regular(oz_buf *out, const char *path, size_t limit_bytes, oz_err *err);
/* Writes beside `path` and renames: the old file or the new one is there, never a part. */
oz_status oz_file_write_atomic(const char *path, const void *data, size_t n_bytes, oz_err *err);
oz_status oz_file_copy(const char *from, const char *to, oz_err *err); /* from: a regular file */
bool oz_path_exists(const char *path);
bool oz_path_same(const char *a, const char *b); /* both are there and are one file or folder */
bool oz_path_is_dir(const char *path);
char *oz_path_join(const char *dir, const char *name); /* oz_free */
/* Names in path's folder that no other path has: NAME and the suffix; a hidden one for what is under way, new at each call: .NAME.tmp-PID-I. Of a NAME above 200
 * bytes, to which nothing may be added, 16 digits stand in its place. oz_free */
char *oz_path_beside(const char *path, const char *suffix);
char *oz_path_temporary(const char *path);

/* A folder written beside its target and renamed at the end. An existing target is refused unless `force`, and then
 * replaced only at commit. _close without _commit removes everything; what a process that was killed left under the same target the next _open
 * removes. SIGINT: see oz_interrupted(). */
typedef struct oz_outdir oz_outdir;
oz_status oz_outdir_check(const char *target, oz_err *err); /* a name that a folder can have and be replaced under: not ".", not a mount point */
oz_status oz_outdir_open(oz_outdir **out, const char *target, bool force, oz_err *err);
const char *oz_outdir_path(const oz_outdir *d); /* the temporary folder, to write into */
oz_status oz_outdir_commit(oz_outdir *d, oz_err *err); /* fsync, rename */
void oz_outdir_close(oz_outdir **d);

/* What lies under a temporary name of its maker's, who removes it; _remove is for the end of the process, where no maker is come back to. */
void oz_temporary_add(const char *path);
void oz_temporary_forget(const char *path);
void oz_temporaries_remove(void);

/* What _commit does, for a folder of any name beside `target`, but that the folder which was replaced lies at `dir` afterwards, whole: the caller
 * removes it. And the removal of a whole folder, or of a file. */
oz_status oz_dir_commit(const char *dir, const char *target, bool force, oz_err *err);
oz_status oz_dir_remove(const char *path, oz_err *err);

/* SIGINT, SIGTERM and SIGHUP set a flag; long work polls it and returns OZ_E_INTERRUPTED. */
void oz_interrupt_init(void);
bool oz_interrupted(void);

#endif
