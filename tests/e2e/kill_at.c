/* LD_PRELOAD: counts the calls that change files, and kills the process with SIGKILL before call KILL_AT (from 1 on); KILL_AT=0 kills none. At
 * the end the number of calls is written to KILL_COUNT. What lies on disk between two of these calls does not change, so that these are all the
 * points at which a kill can be told from another. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static void *next(const char *name) {
    const char *at = getenv("KILL_AT");
    if (at && atomic_fetch_add(&calls, 1) + 1 == atol(at)) kill(getpid(), SIGKILL);
    return dlsym(RTLD_NEXT, name);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned how) { return ((int (*)(int, const char *, int, const char *, unsigned))next("renameat2"))(a, from, b, to, how); }
int rename(const char *from, const char *to) { return ((int (*)(const char *, const char *))next("rename"))(from, to); }
int remove(const char *path) { return ((int (*)(const char *))next("remove"))(path); }
int unlink(const char *path) { return ((int (*)(const char *))next("unlink"))(path); }
int rmdir(const char *path) { return ((int (*)(const char *))next("rmdir"))(path); }
int mkdir(const char *path, mode_t mode) { return ((int (*)(const char *, mode_t))next("mkdir"))(path, mode); }
int fallocate(int fd, int mode, off_t at, off_t n) { return ((int (*)(int, int, off_t, off_t))next("fallocate"))(fd, mode, at, n); }
int ftruncate(int fd, off_t n) { return ((int (*)(int, off_t))next("ftruncate"))(fd, n); }
int fsync(int fd) { return ((int (*)(int))next("fsync"))(fd); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { return ((ssize_t (*)(int, const void *, size_t, off_t))next("pwrite"))(fd, p, n, at); }

ssize_t write(int fd, const void *p, size_t n) {
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, p, n);
    return ((ssize_t (*)(int, const void *, size_t))next("write"))(fd, p, n);
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("KILL_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) fprintf(f, "%ld\n", atomic_load(&calls)), fclose(f);
}
