/* A mapped file that is cut off, or whose disk fails, while it is read: the system has no other way to say so than a signal. Models are mapped
 * and read in a hundred places, so that there is no way back from it; but what ends then is told, and half-written output removed. The signal
 * comes from the reading thread itself, which holds no lock of the C library then: its functions may be called. */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/progress.h"
#include "cli/cli.h"

/* The file that is mapped at `at`. */
static bool file_at(char *path, size_t size, uintptr_t at) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[4096 + 128];
    *path = 0;
    while (f && !*path && fgets(line, sizeof line, f)) {
        uintptr_t begin, end;
        const char *name = strchr(line, '/');
        if (!name || sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2 || at < begin || at >= end) continue;
        snprintf(path, size, "%.*s", (int)strcspn(name, "\n"), name);
    }
    if (f) fclose(f);
    return *path;
}

static void on_bus(int sig, siginfo_t *info, void *context) {
    static atomic_flag met = ATOMIC_FLAG_INIT;
    char path[4096];
    while (atomic_flag_test_and_set(&met)) pause(); /* another thread speaks, and ends us */
    if (!file_at(path, sizeof path, (uintptr_t)info->si_addr)) { /* not a file's: a bug of ours, and it comes again on return */
        signal(sig, SIG_DFL);
        return;
    }
    oz_log_error("%s: cannot be read any more: it was cut off, or its disk failed, while it was in use", path);
    oz_temporaries_remove();
    _exit(EXIT_FAILED);
}

void oz_cli_fault_init(void) { sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO}, NULL); }
