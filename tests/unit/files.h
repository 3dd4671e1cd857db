/* Folders and files of a test, in a temporary folder that goes away with it. */
#ifndef OZ_TEST_FILES_H
#define OZ_TEST_FILES_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char test_dir[64]; /* of the running test */

static inline int test_dir_make(void **state) {
    strcpy(test_dir, "/tmp/oz-test-XXXXXX");
    return mkdtemp(test_dir) ? 0 : -1;
}

static inline int test_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }
static inline int test_dir_remove(void **state) { return nftw(test_dir, test_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* Path of a name in the test's folder; the four last results stay valid. */
static inline const char *test_path(const char *name) {
    static char ring[4][512];
    static unsigned turn;
    char *p = ring[turn++ % 4];
    snprintf(p, sizeof ring[0], "%s/", test_dir);
    strncat(p, name, sizeof ring[0] - 1 - strlen(p));
    return p;
}

static inline void test_write(const char *name, const void *data, size_t n) {
    FILE *f = fopen(test_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void test_write_text(const char *name, const char *text) { test_write(name, text, strlen(text)); }

/* A whole file, to be freed. */
static inline char *test_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    data[*n] = 0;
    return data;
}

static inline void test_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* A safetensors file: header text, padded as it is, and n bytes of data that count 0, 1, 2 ... */
static inline void test_write_safetensors(const char *name, const char *header, size_t n_data) {
    size_t n = strlen(header);
    unsigned char *file = malloc(8 + n + n_data);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < n_data; i++) file[8 + n + i] = (unsigned char)i;
    test_write(name, file, 8 + n + n_data);
    free(file);
}

#define UNIT(fn) cmocka_unit_test_setup_teardown(fn, test_dir_make, test_dir_remove)

#endif
