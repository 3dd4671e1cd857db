/* Files: maps, reads with a limit, atomic replacement, output folders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/sha1.h"
#include "base/file.h"
#include "base/mem.h"

static char dir[] = "/tmp/oz_test_file_XXXXXX";

static int set_up(void **state) { return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1; }

static int tear_down(void **state) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return chdir("/") == 0 && system(command) == 0 ? 0 : -1;
}

static void put(const char *path, const char *text) { assert_int_equal(oz_file_write_atomic(path, text, strlen(text), NULL), OZ_OK); }

static void assert_holds(const char *path, const char *text) {
    oz_buf b = {0};
    assert_int_equal(oz_file_read(&b, path, 1 << 20, NULL), OZ_OK);
    assert_string_equal(b.data, text);
    oz_buf_deinit(&b);
}

/* Names in a folder that a crash would leave, or any that begin with a dot. */
static int hidden_count(const char *path) {
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void map_reads_a_file(void **state) {
    put("m", "hello");
    oz_mmap m;
    assert_int_equal(oz_mmap_open(&m, "m", NULL), OZ_OK);
    assert_int_equal(m.n_bytes, 5);
    assert_memory_equal(m.data, "hello", 5);
    assert_string_equal(m.path, "m");
    oz_mmap_close(&m);
    assert_null(m.data);
    oz_mmap_close(&m);
    put("empty", "");
    assert_int_equal(oz_mmap_open(&m, "empty", NULL), OZ_OK);
    assert_int_equal(m.n_bytes, 0);
    oz_mmap_close(&m);
}

static void map_refuses_what_is_no_file(void **state) {
    oz_mmap m;
    oz_err e = {0};
    assert_int_equal(oz_mmap_open(&m, "absent", &e), OZ_E_NOT_FOUND);
    assert_string_equal(e.msg, "absent: No such file or directory");
    oz_err_clear(&e);
    assert_int_equal(oz_mmap_open(&m, ".", &e), OZ_E_IO);
    assert_string_equal(e.msg, ".: expected a regular file, found a folder");
    assert_int_equal(oz_mmap_open(&m, "/dev/null", NULL), OZ_E_IO);
}

static void drop_takes_whole_pages_only(void **state) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 8 * page + 100;
    char *text = oz_alloc(n);
    memset(text, 'x', n);
    assert_int_equal(oz_file_write_atomic("pages", text, n, NULL), OZ_OK);
    oz_mmap m;
    assert_int_equal(oz_mmap_open(&m, "pages", NULL), OZ_OK);
    assert_memory_equal(m.data, text, n);
    oz_mmap_drop(&m, m.data + 10, 5 * page);
    oz_mmap_drop(&m, m.data + 10, 20);
    oz_mmap_drop(&m, m.data, n);
    oz_mmap_drop(&m, text, n); /* not of this map: left alone */
    assert_memory_equal(m.data, text, n); /* read again from the file */
    oz_mmap_close(&m);
    oz_free(text);
}

static void read_appends_up_to_its_limit(void **state) {
    put("r", "12345");
    oz_buf b = {0};
    oz_buf_puts(&b, "0");
    assert_int_equal(oz_file_read(&b, "r", 5, NULL), OZ_OK);
    assert_string_equal(b.data, "012345");
    assert_int_equal(b.len, 6);
    oz_err e = {0};
    assert_int_equal(oz_file_read(&b, "r", 4, &e), OZ_E_FORMAT);
    assert_string_equal(e.msg, "r: expected at most 4 bytes, found 5");
    assert_int_equal(oz_file_read(&b, "absent", 4, NULL), OZ_E_NOT_FOUND);
    assert_int_equal(oz_file_read(&b, ".", 4, NULL), OZ_E_IO);
    oz_buf_deinit(&b);
    put("nothing", "");
    assert_int_equal(oz_file_read(&b, "nothing", 4, NULL), OZ_OK);
    assert_string_equal(b.data, "");
    oz_buf_deinit(&b);
    oz_err_clear(&e);
    assert_int_equal(oz_file_read(&b, "/dev/zero", 100000, &e), OZ_E_FORMAT); /* a size that stat does not tell */
    oz_buf_deinit(&b);
}

static void write_replaces_whole(void **state) {
    put("w", "old and longer");
    put("w", "new");
    assert_holds("w", "new");
    oz_err e = {0};
    assert_int_equal(oz_file_write_atomic("no/such/folder", "x", 1, &e), OZ_E_IO);
    assert_string_equal(e.msg, "no/such/folder: No such file or directory");
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(oz_file_write_atomic("folder", "x", 1, NULL), OZ_E_IO);
    assert_int_equal(oz_file_write_atomic("/dev/null", "x", 1, NULL), OZ_OK);
    struct stat st;
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode)); /* written to, not replaced */
    assert_int_equal(oz_file_write_atomic("/dev/full", "x", 1, NULL), OZ_E_IO);
    assert_int_equal(hidden_count("."), 0);
}

static void copy_keeps_bytes_and_mode(void **state) {
    size_t n = 200001;
    char *text = oz_alloc(n);
    for (size_t i = 0; i < n; i++) text[i] = (char)(i * 7);
    assert_int_equal(oz_file_write_atomic("from", text, n, NULL), OZ_OK);
    assert_int_equal(chmod("from", 0750), 0);
    assert_int_equal(oz_file_copy("from", "to", NULL), OZ_OK);
    oz_buf b = {0};
    assert_int_equal(oz_file_read(&b, "to", n, NULL), OZ_OK);
    assert_int_equal(b.len, n);
    assert_memory_equal(b.data, text, n);
    struct stat st;
    assert_int_equal(stat("to", &st), 0);
    assert_int_equal(st.st_mode & 0750, 0750);
    assert_int_equal(oz_file_copy("absent", "to", NULL), OZ_E_NOT_FOUND);
    assert_int_equal(oz_file_copy("from", "no/to", NULL), OZ_E_IO);
    assert_int_equal(oz_file_copy(".", "to", NULL), OZ_E_IO);
    assert_int_equal(oz_path_exists("to"), true);
    assert_int_equal(hidden_count("."), 0);
    oz_buf_deinit(&b);
    oz_free(text);
}

static void paths_join(void **state) {
    const char *const rows[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < 5; i++) {
        char *p = oz_path_join(rows[i][0], rows[i][1]);
        assert_string_equal(p, rows[i][2]);
        oz_free(p);
    }
    assert_true(oz_path_is_dir("."));
    assert_false(oz_path_is_dir("absent"));
    assert_int_equal(symlink("absent", "dangling"), 0);
    assert_true(oz_path_exists("dangling"));
}

static void out_put(const oz_outdir *d, const char *name, const char *text) {
    char *p = oz_path_join(oz_outdir_path(d), name);
    put(p, text);
    oz_free(p);
}

static void outdir_appears_at_commit(void **state) {
    oz_outdir *d;
    assert_int_equal(oz_outdir_open(&d, "out//", false, NULL), OZ_OK);
    out_put(d, "f", "1");
    assert_false(oz_path_exists("out"));
    assert_int_equal(oz_outdir_commit(d, NULL), OZ_OK);
    oz_outdir_close(&d);
    assert_null(d);
    oz_outdir_close(&d);
    assert_holds("out/f", "1");
    assert_int_equal(hidden_count("."), 0);
}

static void outdir_aborted_leaves_nothing(void **state) {
    oz_outdir *d;
    assert_int_equal(oz_outdir_open(&d, "aborted", false, NULL), OZ_OK);
    out_put(d, "f", "1");
    char *sub = oz_path_join(oz_outdir_path(d), "sub");
    assert_int_equal(mkdir(sub, 0777), 0);
    oz_free(sub);
    out_put(d, "sub/g", "2");
    oz_outdir_close(&d);
    assert_false(oz_path_exists("aborted"));
    assert_int_equal(hidden_count("."), 0);
}

static void outdir_refuses_an_existing_target(void **state) {
    oz_outdir *d;
    oz_err e = {0};
    assert_int_equal(mkdir("there", 0777), 0);
    assert_int_equal(oz_outdir_open(&d, "there", false, &e), OZ_E_ARG);
    assert_string_equal(e.msg, "there: exists already (--force replaces it)");
    assert_null(d);
    const char *const bad[] = {"/", ".", "..", "a/..", ""};
    for (size_t i = 0; i < 5; i++) assert_int_equal(oz_outdir_open(&d, bad[i], true, NULL), OZ_E_ARG);
    assert_int_equal(oz_outdir_open(&d, "no/such/out", false, NULL), OZ_E_IO);
    /* one that appears while we work is refused at the end */
    oz_err_clear(&e);
    assert_int_equal(oz_outdir_open(&d, "late", false, NULL), OZ_OK);
    assert_int_equal(mkdir("late", 0777), 0);
    put("late/mine", "x");
    assert_int_equal(oz_outdir_commit(d, &e), OZ_E_ARG);
    assert_string_equal(e.msg, "late: appeared while this ran, and was left alone; move it away, or --force replaces it");
    oz_outdir_close(&d);
    assert_holds("late/mine", "x");
    assert_int_equal(hidden_count("."), 0);
}

/* A process number that nobody has. */
static long dead_pid(void) {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

/* What a killed run left under the same target goes; what somebody may still write to, has another target or name, or is no folder, stays. */
static void outdir_removes_what_a_killed_run_left(void **state) {
    const long dead = dead_pid();
    const struct { const char *format; long pid; bool stays; } dirs[] = {
        {".left.tmp-%ld-0", dead, false}, {".left.tmp-%ld-17", dead, false}, {".left.tmp-%ld-0", getpid(), true}, {".left.tmp-%ld-0", getppid(), true},
        {".left2.tmp-%ld-0", dead, true}, {".left.tmp-%ld-0.old", dead, true}, {".left.tmp-0%ld-0", dead, true}, {".left.tmp-%ld", dead, true}, {"left.tmp-%ld-0", dead, true},
        {".left.tmp-%ld-2", dead, true}, /* locked: by a process of another container, say */
    };
    enum { N = sizeof dirs / sizeof *dirs };
    char names[N][64], path[768];
    oz_outdir *d;
    assert_int_equal(mkdir("sub", 0777), 0);
    for (int in = 0; in < 2; in++) { /* a target here, and one in a folder */
        int locked = -1;
        for (int i = 0; i < N; i++) {
            snprintf(names[i], sizeof names[i], dirs[i].format, dirs[i].pid);
            snprintf(path, sizeof path, "%s%s", in ? "sub/" : "", names[i]);
            assert_int_equal(mkdir(path, 0777), 0);
            if (i == N - 1) locked = open(path, O_RDONLY | O_DIRECTORY);
            strcat(path, "/file");
            put(path, "x");
        }
        assert_int_equal(flock(locked, LOCK_EX | LOCK_NB), 0);
        snprintf(path, sizeof path, "%s.left.tmp-%ld-3", in ? "sub/" : "", dead);
        put(path, "no folder");
        assert_int_equal(oz_outdir_open(&d, in ? "sub/left" : "left", false, NULL), OZ_OK);
        assert_true(oz_path_exists(path));
        for (int i = 0; i < N; i++) {
            snprintf(path, sizeof path, "%s%s/file", in ? "sub/" : "", names[i]);
            if (oz_path_exists(path) != dirs[i].stays) fail_msg("%s %s", path, dirs[i].stays ? "was removed" : "is still there");
        }
        close(locked);
        oz_outdir_close(&d);
        assert_int_equal(system(in ? "rm -r sub" : "rm -r .left* left.*"), 0);
    }
}

/* A name as long as a file system takes it leaves no room for a temporary one: digits stand for it, and what was left under them is found. One byte more is refused
 * before the work. */
static void a_long_name_is_a_name(void **state) {
    char name[257] = "", left[64], path[300], digits[41];
    oz_outdir *d;
    oz_sha1 sha;
    memset(name, 'n', 255);
    oz_sha1_init(&sha), oz_sha1_add(&sha, name, 255), oz_sha1_hex(digits, &sha);
    snprintf(left, sizeof left, ".%.16s.tmp-%ld-0", digits, dead_pid());
    assert_int_equal(mkdir(left, 0777), 0);
    assert_int_equal(oz_outdir_open(&d, name, false, NULL), OZ_OK);
    assert_false(oz_path_exists(left));
    snprintf(path, sizeof path, "%s/file", oz_outdir_path(d));
    put(path, "x");
    assert_int_equal(oz_outdir_commit(d, NULL), OZ_OK);
    oz_outdir_close(&d);
    snprintf(path, sizeof path, "%s/file", name);
    assert_holds(path, "x");
    assert_int_equal(hidden_count("."), 0);
    assert_int_equal(oz_dir_remove(name, NULL), OZ_OK);
    assert_int_equal(oz_file_write_atomic(name, "y", 1, NULL), OZ_OK);
    assert_holds(name, "y");
    assert_int_equal(unlink(name), 0);
    char *beside = oz_path_beside(name, ".gptq"), *plain = oz_path_beside("a/b", ".gptq");
    assert_int_equal(strlen(beside), 16 + 5);
    assert_string_equal(plain, "a/b.gptq");
    oz_free(beside), oz_free(plain);
    strcat(name, "n");
    oz_err e = {0};
    assert_int_equal(oz_outdir_open(&d, name, false, &e), OZ_E_IO);
    assert_non_null(strstr(e.msg, "File name too long"));
    assert_int_equal(oz_file_write_atomic(name, "y", 1, NULL), OZ_E_IO);
    assert_int_equal(hidden_count("."), 0);
}

/* A folder that is written to is locked for as long. */
static void outdir_is_locked(void **state) {
    oz_outdir *d;
    assert_int_equal(oz_outdir_open(&d, "busy", false, NULL), OZ_OK);
    int fd = open(oz_outdir_path(d), O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
    assert_int_equal(oz_outdir_commit(d, NULL), OZ_OK);
    oz_outdir_close(&d);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
}

/* The two change places at once: what was replaced is its owner's to remove, and at no time is there less than one of them at the target. */
static void commit_leaves_what_it_replaced(void **state) {
    assert_int_equal(mkdir("made", 0777) | mkdir("kept", 0777), 0);
    put("made/new", "new");
    put("kept/old", "old");
    assert_int_equal(oz_dir_commit("made", "kept", false, NULL), OZ_E_ARG);
    assert_int_equal(oz_dir_commit("made", "kept", true, NULL), OZ_OK);
    assert_holds("kept/new", "new");
    assert_holds("made/old", "old");
    assert_int_equal(oz_dir_remove("made", NULL) | oz_dir_remove("kept", NULL), OZ_OK);
}

/* Ends without coming back: what is under way is removed, what is committed stays. */
static void temporaries_are_removed(void **state) {
    oz_outdir *a, *b;
    assert_int_equal(oz_outdir_open(&a, "ta", false, NULL) | oz_outdir_open(&b, "tb", false, NULL), OZ_OK);
    out_put(a, "x", "x");
    out_put(b, "x", "x");
    assert_int_equal(oz_outdir_commit(a, NULL), OZ_OK);
    oz_outdir_close(&a);
    assert_int_equal(hidden_count("."), 1);
    oz_temporaries_remove();
    assert_int_equal(hidden_count("."), 0);
    assert_holds("ta/x", "x");
    oz_outdir_close(&b);
}

static void outdir_force_replaces_at_commit(void **state) {
    oz_outdir *d;
    assert_int_equal(mkdir("forced", 0777), 0);
    put("forced/old", "old");
    assert_int_equal(oz_outdir_open(&d, "forced", true, NULL), OZ_OK);
    out_put(d, "new", "new");
    oz_outdir_close(&d);
    assert_holds("forced/old", "old"); /* not committed */
    assert_int_equal(oz_outdir_open(&d, "forced", true, NULL), OZ_OK);
    out_put(d, "new", "new");
    assert_holds("forced/old", "old");
    assert_int_equal(oz_outdir_commit(d, NULL), OZ_OK);
    oz_outdir_close(&d);
    assert_holds("forced/new", "new");
    assert_false(oz_path_exists("forced/old"));
    assert_int_equal(oz_outdir_open(&d, "fresh", true, NULL), OZ_OK); /* force without a target */
    assert_int_equal(oz_outdir_commit(d, NULL), OZ_OK);
    oz_outdir_close(&d);
    assert_true(oz_path_is_dir("fresh"));
    assert_int_equal(hidden_count("."), 0);
}

static void signals_set_a_flag(void **state) {
    oz_interrupt_init();
    assert_false(oz_interrupted());
    raise(SIGINT);
    assert_true(oz_interrupted());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_reads_a_file),
        cmocka_unit_test(map_refuses_what_is_no_file),
        cmocka_unit_test(drop_takes_whole_pages_only),
        cmocka_unit_test(read_appends_up_to_its_limit),
        cmocka_unit_test(write_replaces_whole),
        cmocka_unit_test(copy_keeps_bytes_and_mode),
        cmocka_unit_test(paths_join),
        cmocka_unit_test(outdir_appears_at_commit),
        cmocka_unit_test(outdir_aborted_leaves_nothing),
        cmocka_unit_test(outdir_refuses_an_existing_target),
        cmocka_unit_test(outdir_force_replaces_at_commit),
        cmocka_unit_test(outdir_removes_what_a_killed_run_left),
        cmocka_unit_test(a_long_name_is_a_name), cmocka_unit_test(outdir_is_locked),
        cmocka_unit_test(commit_leaves_what_it_replaced),
        cmocka_unit_test(temporaries_are_removed),
        cmocka_unit_test(signals_set_a_flag),
    };
    return cmocka_run_group_tests_name("file", tests, set_up, tear_down);
}
