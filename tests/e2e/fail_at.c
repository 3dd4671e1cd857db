/* LD_PRELOAD: counts the calls that change files. KILL_AT=N: the process is killed with SIGKILL (or KILL_BY, a number) before call N (from 1 on; 0: never). FULL_AT=N: from call N on the disk is
 * full, and calls that take room fail. At the end the number of calls is written to CALLS. What lies on disk between two of these calls does not change, so that these are
 * all the points at which a kill can be told from another. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static long number(const char *variable) {
    const char *s = getenv(variable);
    return s ? atol(s) : 0;
}

static void *next(const char *name) {
    if (atomic_fetch_add(&calls, 1) + 1 == number("KILL_AT")) kill(getpid(), number("KILL_BY") ? (int)number("KILL_BY") : SIGKILL);
    return dlsym(RTLD_NEXT, name);
}

static bool is_full(void) {
    if (number("FULL_AT") <= 0 || atomic_load(&calls) < number("FULL_AT")) return false;
    errno = ENOSPC;
    return true;
}

int renameat2(int a, const char *from, int b, const char *to, unsigned how) { return ((int (*)(int, const char *, int, const char *, unsigned))next("renameat2"))(a, from, b, to, how); }
int rename(const char *from, const char *to) { return ((int (*)(const char *, const char *))next("rename"))(from, to); }
int remove(const char *path) { return ((int (*)(const char *))next("remove"))(path); }
int unlink(const char *path) { return ((int (*)(const char *))next("unlink"))(path); }
int rmdir(const char *path) { return ((int (*)(const char *))next("rmdir"))(path); }

int mkdir(const char *path, mode_t mode) {
    int (*f)(const char *, mode_t) = (int (*)(const char *, mode_t))next("mkdir");
    return is_full() ? -1 : f(path, mode);
}

int fallocate(int fd, int mode, off_t at, off_t n) {
    int (*f)(int, int, off_t, off_t) = (int (*)(int, int, off_t, off_t))next("fallocate");
    return is_full() ? -1 : f(fd, mode, at, n);
}

int ftruncate(int fd, off_t n) {
    int (*f)(int, off_t) = (int (*)(int, off_t))next("ftruncate");
    return n > 0 && is_full() ? -1 : f(fd, n);
}

int fsync(int fd) {
    int (*f)(int) = (int (*)(int))next("fsync");
    return is_full() ? -1 : f(fd);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    ssize_t (*f)(int, const void *, size_t, off_t) = (ssize_t (*)(int, const void *, size_t, off_t))next("pwrite");
    return is_full() ? -1 : f(fd, p, n, at);
}

ssize_t write(int fd, const void *p, size_t n) {
    struct stat s;
    const bool counts = fd > 2 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode); /* what is said may go to a file, too */
    ssize_t (*f)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))(counts ? next("write") : dlsym(RTLD_NEXT, "write"));
    return counts && is_full() ? -1 : f(fd, p, n);
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("CALLS");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) fprintf(f, "%ld\n", atomic_load(&calls)), fclose(f);
}
