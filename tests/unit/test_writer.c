/* Layout and writer. library.safetensors was written by the safetensors library (tests/interop/safetensors_bytes.py golden). */
#include "files.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include "checkpoint/checkpoint.h"

static oz_err err;

static void ok(oz_status st) {
    if (st != OZ_OK) fail_msg("%s", err.msg);
}

static void refused(oz_status st, oz_status code, const char *part) {
    assert_int_equal(st, code);
    test_contains(err.msg, part);
    oz_err_clear(&err);
}

static void add(oz_layout *l, const char *name, oz_dtype d, int n_dims, int64_t d0, int64_t d1) {
    ok(oz_layout_add(l, name, d, n_dims, (int64_t[]){d0, d1}, &err));
}

/* ---- equal to the library, byte by byte ---- */

static const struct { const char *name; oz_dtype dtype; int n_dims; int64_t dims[3]; } GOLDEN[] = {
    {"bool", OZ_DTYPE_BOOL, 1, {3}},
    {"u8", OZ_DTYPE_U8, 1, {3}},
    {"i8", OZ_DTYPE_I8, 1, {3}},
    {"f8_e5m2", OZ_DTYPE_F8_E5M2, 1, {3}},
    {"f8_e4m3", OZ_DTYPE_F8_E4M3, 1, {3}},
    {"f8_e8m0", OZ_DTYPE_F8_E8M0, 1, {3}},
    {"i16", OZ_DTYPE_I16, 1, {3}},
    {"u16", OZ_DTYPE_U16, 1, {3}},
    {"f16", OZ_DTYPE_F16, 1, {3}},
    {"bf16", OZ_DTYPE_BF16, 1, {3}},
    {"i32", OZ_DTYPE_I32, 1, {3}},
    {"u32", OZ_DTYPE_U32, 1, {3}},
    {"f32", OZ_DTYPE_F32, 1, {3}},
    {"f64", OZ_DTYPE_F64, 1, {3}},
    {"i64", OZ_DTYPE_I64, 1, {3}},
    {"u64", OZ_DTYPE_U64, 1, {3}},
    {"model.layers.10.w", OZ_DTYPE_BF16, 2, {2, 5}},
    {"model.layers.9.w", OZ_DTYPE_BF16, 2, {5, 2}},
    {"scalar", OZ_DTYPE_F32, 0, {0}},
    {"empty", OZ_DTYPE_F32, 2, {0, 4}},
    {"\xc3\xa9\"\\\b\t\n\f\r\x01\x1f\x7f/", OZ_DTYPE_I8, 3, {1, 1, 1}},
};
enum { N_GOLDEN = sizeof GOLDEN / sizeof *GOLDEN };

static size_t golden_bytes(size_t k) {
    size_t n;
    int64_t count = 1;
    for (int i = 0; i < GOLDEN[k].n_dims; i++) count *= GOLDEN[k].dims[i];
    assert_true(oz_dtype_bytes(&n, GOLDEN[k].dtype, count));
    return n;
}

static void golden_put(oz_writer *w, size_t k) {
    unsigned char data[64];
    size_t n = golden_bytes(k);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(17 * k + i);
    ok(oz_writer_put(w, GOLDEN[k].name, 0, data, n, &err));
}

static oz_layout *golden_layout(size_t shard_bytes) {
    oz_layout *l = oz_layout_new(shard_bytes);
    for (size_t k = 0; k < N_GOLDEN; k++) ok(oz_layout_add(l, GOLDEN[k].name, GOLDEN[k].dtype, GOLDEN[k].n_dims, GOLDEN[k].dims, &err));
    ok(oz_layout_fix(l, &err));
    return l;
}

/* A writer that was closed on the way is taken up: what is kept stays, the rest is written, and the bytes are those of one go. */
static void test_reopen(void **state) {
    oz_layout *l = golden_layout(200);
    oz_writer *w;
    char whole[512], parts[512];
    strcpy(whole, test_path("whole"));
    strcpy(parts, test_path("parts"));
    assert_true(mkdir(whole, 0777) == 0 && mkdir(parts, 0777) == 0);
    ok(oz_writer_open(&w, l, whole, &err));
    for (size_t k = 0; k < N_GOLDEN; k++) golden_put(w, k);
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    ok(oz_writer_open(&w, l, parts, &err));
    for (size_t k = 0; k < 9; k++) golden_put(w, k);
    ok(oz_writer_sync(w, &err));
    oz_writer_close(&w);
    ok(oz_writer_reopen(&w, l, parts, &err));
    for (size_t k = 0; k < 7; k++) ok(oz_writer_keep(w, GOLDEN[k].name, &err));
    refused(oz_writer_keep(w, GOLDEN[3].name, &err), OZ_E_ARG, "written twice");
    refused(oz_writer_keep(w, "other", &err), OZ_E_ARG, "other: not declared");
    refused(oz_writer_finish(w, &err), OZ_E_ARG, "were written");
    for (size_t k = 7; k < N_GOLDEN; k++) golden_put(w, k);
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    for (size_t i = 0; i < oz_layout_file_count(l); i++) {
        char path[1024];
        size_t na, nb;
        snprintf(path, sizeof path, "%s/%s", whole, oz_layout_file(l, i, NULL));
        char *a = test_read(path, &na);
        snprintf(path, sizeof path, "%s/%s", parts, oz_layout_file(l, i, NULL));
        char *b = test_read(path, &nb);
        assert_true(na == nb && na > 0);
        assert_memory_equal(a, b, na);
        free(a);
        free(b);
    }
    /* What is not there as it was written is not taken up, and not mended with zeros. */
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", parts, oz_layout_file(l, 0, NULL));
    size_t n;
    char *bytes = test_read(path, &n);
    assert_int_equal(truncate(path, (off_t)n - 1), 0);
    refused(oz_writer_reopen(&w, l, parts, &err), OZ_E_FORMAT, "expected");
    assert_int_equal(truncate(path, 0) | truncate(path, (off_t)n), 0);
    refused(oz_writer_reopen(&w, l, parts, &err), OZ_E_FORMAT, "header");
    assert_int_equal(unlink(path), 0);
    refused(oz_writer_reopen(&w, l, parts, &err), OZ_E_IO, path);
    assert_int_equal(access(path, F_OK), -1);
    free(bytes);
    oz_layout_free(&l);
}

static void test_bytes_are_the_library_s(void **state) {
    oz_layout *l = golden_layout(0);
    size_t n_bytes, n_want, n_got;
    assert_int_equal(oz_layout_file_count(l), 1);
    assert_string_equal(oz_layout_file(l, 0, &n_bytes), "model.safetensors");
    char *want = test_read("tests/golden/safetensors/library.safetensors", &n_want);
    assert_int_equal(n_bytes, n_want);
    assert_int_equal(oz_layout_bytes(l), n_want);

    oz_writer *w;
    ok(oz_writer_open(&w, l, test_dir, &err));
    for (size_t k = N_GOLDEN; k-- > 0;) golden_put(w, k); /* in any order */
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    assert_null(w);
    char *got = test_read(test_path("model.safetensors"), &n_got);
    assert_int_equal(n_got, n_want);
    assert_memory_equal(got, want, n_want);
    free(got);
    free(want);
    oz_layout_free(&l);
    assert_null(l);
}

static void test_what_is_written_can_be_read(void **state) {
    oz_layout *l = golden_layout(16); /* many shards */
    oz_writer *w;
    ok(oz_writer_open(&w, l, test_dir, &err));
    for (size_t k = 0; k < N_GOLDEN; k++) golden_put(w, k);
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    for (size_t i = 0; i < oz_layout_file_count(l); i++) { /* sizes were known before */
        size_t said, n;
        free(test_read(test_path(oz_layout_file(l, i, &said)), &n));
        assert_int_equal(said, n);
    }
    oz_layout_free(&l);

    test_write_text("config.json", "{}");
    oz_ckpt *c;
    ok(oz_ckpt_open(&c, test_dir, &err));
    assert_int_equal(oz_ckpt_count(c), N_GOLDEN);
    for (size_t k = 0; k < N_GOLDEN; k++) {
        const oz_tensor *t = oz_ckpt_find(c, GOLDEN[k].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, GOLDEN[k].dtype);
        assert_int_equal(t->n_dims, GOLDEN[k].n_dims);
        assert_memory_equal(t->dims, GOLDEN[k].dims, (size_t)t->n_dims * sizeof *t->dims);
        assert_int_equal(t->n_bytes, golden_bytes(k));
        for (size_t i = 0; i < t->n_bytes; i++) assert_int_equal(((const uint8_t *)t->data)[i], (17 * k + i) & 255);
    }
    oz_ckpt_close(&c);
}

/* ---- shards ---- */

static void test_shards_are_filled_in_order_of_declaration(void **state) {
    oz_layout *l = oz_layout_new(100);
    add(l, "z", OZ_DTYPE_U8, 1, 60, 0);
    add(l, "y", OZ_DTYPE_F32, 1, 10, 0); /* fills the first shard to the byte */
    add(l, "nothing", OZ_DTYPE_U8, 1, 0, 0);
    add(l, "x", OZ_DTYPE_U8, 2, 10, 25); /* larger than a shard */
    add(l, "w", OZ_DTYPE_U8, 1, 1, 0);
    ok(oz_layout_fix(l, &err));
    assert_int_equal(oz_layout_file_count(l), 4);
    assert_string_equal(oz_layout_file(l, 0, NULL), "model-00001-of-00003.safetensors");
    assert_string_equal(oz_layout_file(l, 2, NULL), "model-00003-of-00003.safetensors");
    assert_string_equal(oz_layout_file(l, 3, NULL), "model.safetensors.index.json");
    size_t sum = 0;
    for (size_t i = 0, n; i < 4; i++) {
        oz_layout_file(l, i, &n);
        sum += n;
    }
    assert_int_equal(oz_layout_bytes(l), sum);

    oz_writer *w;
    char data[250] = {0};
    ok(oz_writer_open(&w, l, test_dir, &err));
    ok(oz_writer_put(w, "z", 0, data, 60, &err));
    ok(oz_writer_put(w, "y", 0, data, 40, &err));
    ok(oz_writer_put(w, "x", 0, data, 250, &err));
    ok(oz_writer_put(w, "w", 0, data, 1, &err));
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    oz_layout_free(&l);
    size_t n;
    char *index = test_read(test_path("model.safetensors.index.json"), &n);
    assert_string_equal(index, "{\n"
                               "  \"metadata\": {\n"
                               "    \"total_size\": 351\n"
                               "  },\n"
                               "  \"weight_map\": {\n"
                               "    \"nothing\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"w\": \"model-00003-of-00003.safetensors\",\n"
                               "    \"x\": \"model-00002-of-00003.safetensors\",\n"
                               "    \"y\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"z\": \"model-00001-of-00003.safetensors\"\n"
                               "  }\n"
                               "}\n");
    free(index);
}

static void test_layout_refuses(void **state) {
    oz_layout *l = oz_layout_new(0);
    int64_t dims[9] = {1, -1, INT64_MAX, 3, 1, 1, 1, 1, 1};
    add(l, "a", OZ_DTYPE_U8, 1, 1, 0);
    refused(oz_layout_add(l, "a", OZ_DTYPE_U8, 1, dims, &err), OZ_E_ARG, "a: declared twice");
    refused(oz_layout_add(l, "b", OZ_DTYPE_Q4_0, 1, (int64_t[]){32}, &err), OZ_E_ARG, "b: safetensors has no type Q4_0");
    refused(oz_layout_add(l, "b", OZ_DTYPE_U8, 9, dims, &err), OZ_E_ARG, "b: 0 to 8 dimensions can be written, found 9");
    refused(oz_layout_add(l, "b", OZ_DTYPE_U8, 2, dims, &err), OZ_E_ARG, "b: dimension 1, -1, is negative");
    refused(oz_layout_add(l, "b", OZ_DTYPE_U8, 2, dims + 2, &err), OZ_E_ARG, "b: dimension 1, 3, is negative or too large");
    refused(oz_layout_add(l, "b", OZ_DTYPE_U64, 1, (int64_t[]){INT64_MAX / 2}, &err), OZ_E_ARG, "elements are too many");
    refused(oz_layout_add(l, "__metadata__", OZ_DTYPE_U8, 1, dims, &err), OZ_E_ARG, "not a name");
    refused(oz_layout_add(l, "\xff", OZ_DTYPE_U8, 1, dims, &err), OZ_E_ARG, "UTF-8");
    ok(oz_layout_fix(l, &err));
    oz_layout_free(&l);
}

/* ---- completeness ---- */

static oz_layout *two_tensors(void) {
    oz_layout *l = oz_layout_new(0);
    add(l, "a", OZ_DTYPE_U8, 1, 10, 0);
    add(l, "b", OZ_DTYPE_U8, 1, 4, 0);
    ok(oz_layout_fix(l, &err));
    return l;
}

static void test_every_byte_once(void **state) {
    oz_layout *l = two_tensors();
    oz_writer *w;
    ok(oz_writer_open(&w, l, test_dir, &err));
    refused(oz_writer_finish(w, &err), OZ_E_ARG, "a: 0 of its 10 bytes were written");
    ok(oz_writer_put(w, "b", 0, "wxyz", 4, &err));
    ok(oz_writer_put(w, "a", 4, "efg", 3, &err));
    ok(oz_writer_put(w, "a", 0, "ab", 2, &err));
    refused(oz_writer_put(w, "a", 1, "XXX", 3, &err), OZ_E_ARG, "a: bytes within 1 to 4 are written twice");
    refused(oz_writer_put(w, "a", 3, "XX", 2, &err), OZ_E_ARG, "a: bytes within 3 to 5 are written twice");
    refused(oz_writer_put(w, "a", 6, "X", 1, &err), OZ_E_ARG, "written twice");
    refused(oz_writer_put(w, "a", 0, "XXXXXXXXXX", 10, &err), OZ_E_ARG, "written twice");
    ok(oz_writer_put(w, "a", 7, "hij", 3, &err));
    refused(oz_writer_finish(w, &err), OZ_E_ARG, "a: 8 of its 10 bytes were written");
    ok(oz_writer_put(w, "a", 2, "cd", 2, &err));
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    oz_layout_free(&l);
    test_write_text("config.json", "{}");
    oz_ckpt *c;
    ok(oz_ckpt_open(&c, test_dir, &err));
    assert_memory_equal(oz_ckpt_find(c, "a")->data, "abcdefghij", 10);
    assert_memory_equal(oz_ckpt_find(c, "b")->data, "wxyz", 4);
    oz_ckpt_close(&c);
}

static void test_outside_of_a_tensor(void **state) {
    oz_layout *l = two_tensors();
    oz_writer *w;
    ok(oz_writer_open(&w, l, test_dir, &err));
    refused(oz_writer_put(w, "c", 0, "x", 1, &err), OZ_E_ARG, "c: not declared");
    refused(oz_writer_put(w, "b", 2, "xyz", 3, &err), OZ_E_ARG, "b: bytes 2 to 5 do not lie within its 4");
    refused(oz_writer_put(w, "b", 5, "", 0, &err), OZ_E_ARG, "b: bytes 5 to 5");
    refused(oz_writer_put(w, "b", 2, "xyz", SIZE_MAX, &err), OZ_E_ARG, "do not lie within its 4");
    oz_writer_close(&w);
    oz_layout_free(&l);
}

/* ---- threads ---- */

enum { N_ROWS = 1000, ROW = 64, N_THREADS = 4 };
typedef struct job { oz_writer *w; int first; oz_status st; oz_err err; } job;

static void *rows_put(void *arg) {
    job *j = arg;
    for (int r = j->first; r < N_ROWS && j->st == OZ_OK; r += N_THREADS) {
        unsigned char row[ROW];
        memset(row, r & 255, ROW);
        j->st = oz_writer_put(j->w, "m", (size_t)r * ROW, row, ROW, &j->err);
    }
    return NULL;
}

static void test_any_thread(void **state) {
    oz_layout *l = oz_layout_new(0);
    add(l, "m", OZ_DTYPE_U8, 2, N_ROWS, ROW);
    ok(oz_layout_fix(l, &err));
    oz_writer *w;
    ok(oz_writer_open(&w, l, test_dir, &err));
    pthread_t threads[N_THREADS];
    job jobs[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        jobs[i] = (job){.w = w, .first = i};
        assert_int_equal(pthread_create(&threads[i], NULL, rows_put, &jobs[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].st, OZ_OK);
    }
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    oz_layout_free(&l);
    test_write_text("config.json", "{}");
    oz_ckpt *c;
    ok(oz_ckpt_open(&c, test_dir, &err));
    const uint8_t *m = oz_ckpt_find(c, "m")->data;
    for (int i = 0; i < N_ROWS * ROW; i++) assert_int_equal(m[i], (i / ROW) & 255);
    oz_ckpt_close(&c);
}

/* ---- the system says no ---- */

static void test_no_folder(void **state) {
    oz_layout *l = two_tensors();
    oz_writer *w = (void *)1;
    refused(oz_writer_open(&w, l, test_path("missing"), &err), OZ_E_IO, "missing/model.safetensors: cannot create: No such file");
    assert_null(w);
    oz_layout_free(&l);
}

static void test_no_room(void **state) {
    oz_layout *l = oz_layout_new(0);
    add(l, "a", OZ_DTYPE_U8, 1, 1 << 20, 0);
    ok(oz_layout_fix(l, &err));
    struct rlimit was, small = {1 << 16, 0};
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small); /* a stand-in for a full disk: larger files fail, with EFBIG */
    oz_writer *w = (void *)1;
    oz_status st = oz_writer_open(&w, l, test_dir, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    refused(st, OZ_E_IO, "model.safetensors: ");
    assert_null(w);
    oz_layout_free(&l);
}

static void test_failed_write_is_not_forgotten(void **state) {
    oz_layout *l = two_tensors();
    oz_writer *w;
    ok(oz_writer_open(&w, l, test_dir, &err));
    struct rlimit was, small = {16, 0};
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    oz_status st = oz_writer_put(w, "a", 0, "0123456789", 10, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    refused(st, OZ_E_IO, "model.safetensors: cannot write: File too large");
    ok(oz_writer_put(w, "b", 0, "0123", 4, &err));
    refused(oz_writer_finish(w, &err), OZ_E_IO, "a write failed before");
    oz_writer_close(&w);
    oz_layout_free(&l);
}

/* ---- one file under a name of its own ---- */

static void test_single_file(void **state) {
    oz_layout *l = two_tensors();
    const char *path = test_path("logits.safetensors");
    oz_writer *w;
    size_t n;
    ok(oz_writer_open_file(&w, l, path, &err));
    assert_int_not_equal(access(path, F_OK), 0);
    oz_writer_close(&w); /* not finished: nothing is left */
    assert_int_equal(rmdir(test_dir), 0);
    assert_int_equal(mkdir(test_dir, 0777), 0);

    ok(oz_writer_open_file(&w, l, path, &err));
    ok(oz_writer_put(w, "a", 0, "0123456789", 10, &err));
    ok(oz_writer_put(w, "b", 0, "abcd", 4, &err));
    ok(oz_writer_finish(w, &err));
    oz_writer_close(&w);
    char *got = test_read(path, &n);
    assert_int_equal(n, oz_layout_bytes(l));
    assert_memory_equal(got + n - 14, "0123456789abcd", 14);
    free(got);
    refused(oz_writer_open_file(&w, l, "/dev/null", &err), OZ_E_ARG, "/dev/null: expected a new name or a regular file");
    oz_layout_free(&l);

    l = golden_layout(16);
    refused(oz_writer_open_file(&w, l, path, &err), OZ_E_ARG, "do not fit into one");
    oz_layout_free(&l);
}

/* ---- looked at before it is written ---- */

static void test_view(void **state) {
    oz_layout *l = oz_layout_new(100);
    json_t *config = json_pack("{s:i}", "a", 1);
    oz_ckpt *c;
    char text[OZ_DIMS_TEXT];
    add(l, "z", OZ_DTYPE_F32, 2, 5, 7);
    add(l, "a", OZ_DTYPE_I8, 1, 9, 0);
    ok(oz_layout_view(&c, l, config, "what will be", &err));
    json_decref(config);
    assert_int_equal(oz_ckpt_count(c), 2);
    assert_int_equal(oz_ckpt_bytes(c), 5 * 7 * 4 + 9);
    assert_string_equal(oz_ckpt_at(c, 0)->name, "a");
    assert_string_equal(oz_ckpt_path(c), "what will be");
    assert_int_equal(json_integer_value(json_object_get(oz_ckpt_config(c), "a")), 1);
    const oz_tensor *z = oz_ckpt_find(c, "z");
    assert_true(z && !z->data && z->dtype == OZ_DTYPE_F32 && z->n_bytes == 5 * 7 * 4);
    assert_string_equal(oz_dims_show(text, z->n_dims, z->dims), "[5, 7]");
    assert_string_equal(oz_dims_show(text, 1, oz_ckpt_find(c, "a")->dims), "[9]");
    assert_string_equal(oz_dims_show(text, 0, NULL), "[]");
    const int64_t large[OZ_MAX_DIMS] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    test_contains(oz_dims_show(text, OZ_MAX_DIMS, large), "[9223372036854775807, 9223372036854775807, ");
    assert_int_equal(text[strlen(text) - 1], ']');
    oz_ckpt_close(&c);
    oz_layout_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        UNIT(test_bytes_are_the_library_s), UNIT(test_reopen), UNIT(test_what_is_written_can_be_read), UNIT(test_shards_are_filled_in_order_of_declaration),
        UNIT(test_layout_refuses),          UNIT(test_every_byte_once),             UNIT(test_outside_of_a_tensor),
        UNIT(test_any_thread),              UNIT(test_no_folder),                   UNIT(test_no_room),
        UNIT(test_single_file),             UNIT(test_failed_write_is_not_forgotten), UNIT(test_view),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
