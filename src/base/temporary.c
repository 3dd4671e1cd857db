/* What is under way under a temporary name, for an end of the process that does not come back to whoever made it. */
#include <pthread.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char **paths;
static size_t n_paths, cap_paths;

void oz_temporary_add(const char *path) {
    pthread_mutex_lock(&lock);
    oz_grow((void **)&paths, &cap_paths, n_paths + 1, sizeof *paths);
    paths[n_paths++] = oz_strdup(path);
    pthread_mutex_unlock(&lock);
}

void oz_temporary_forget(const char *path) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_paths; i++) {
        if (strcmp(paths[i], path) != 0) continue;
        oz_free(paths[i]);
        paths[i] = paths[--n_paths];
        break;
    }
    if (n_paths == 0) {
        oz_free(paths);
        paths = NULL, cap_paths = 0;
    }
    pthread_mutex_unlock(&lock);
}

void oz_temporaries_remove(void) {
    if (pthread_mutex_trylock(&lock) != 0) return;
    for (size_t i = 0; i < n_paths; i++) oz_dir_remove(paths[i], NULL);
    pthread_mutex_unlock(&lock);
}
