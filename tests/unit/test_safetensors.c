/* The reader of a safetensors file, through a folder with that one file. */
#include "files.h"
#include <time.h>
#include "base/str.h"
#include "checkpoint/checkpoint.h"

static oz_err err;

static oz_status folder_open(oz_ckpt **c) {
    test_write_text("config.json", "{}");
    oz_err_clear(&err);
    return oz_ckpt_open(c, test_dir, &err);
}

static void refused(const char *part) {
    oz_ckpt *c = (void *)1;
    assert_int_not_equal(folder_open(&c), OZ_OK);
    assert_null(c);
    test_contains(err.msg, part);
    test_contains(err.msg, "model.safetensors");
}

static void test_tensors_by_name(void **state) {
    test_write_safetensors("model.safetensors",
                           "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                           "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,4],\"data_offsets\":[24,24]},"
                           "\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[27,29]},"
                           "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[24,27]}}   ",
                           29);
    oz_ckpt *c;
    assert_int_equal(folder_open(&c), OZ_OK);
    assert_int_equal(oz_ckpt_count(c), 4);
    assert_int_equal(oz_ckpt_bytes(c), 29);
    static const char *const NAMES[] = {"a", "b", "empty", "scalar"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(oz_ckpt_at(c, i)->name, NAMES[i]);
        assert_ptr_equal(oz_ckpt_find(c, NAMES[i]), oz_ckpt_at(c, i));
        assert_string_equal(oz_ckpt_at(c, i)->file_name, "model.safetensors");
    }
    const oz_tensor *a = oz_ckpt_at(c, 0), *b = oz_ckpt_at(c, 1), *empty = oz_ckpt_at(c, 2), *scalar = oz_ckpt_at(c, 3);
    assert_int_equal(a->dtype, OZ_DTYPE_U8);
    assert_int_equal(((const uint8_t *)a->data)[2], 26);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->dims[1], 3);
    assert_int_equal(b->n_bytes, 24);
    assert_int_equal(((const uint8_t *)b->data)[23], 23);
    assert_int_equal(empty->n_bytes, 0);
    assert_int_equal(empty->dims[1], 4);
    assert_int_equal(scalar->n_dims, 0);
    assert_int_equal(scalar->n_bytes, 2);
    assert_int_equal(((const uint8_t *)scalar->data)[0], 27);
    assert_null(oz_ckpt_find(c, "c"));
    oz_ckpt_drop(c, b); /* less than a page: nothing to see, and nothing lost */
    assert_int_equal(((const uint8_t *)b->data)[23], 23);
    oz_ckpt_close(&c);
    assert_null(c);
    oz_ckpt_close(&c);
}

static void test_file_without_tensors(void **state) {
    test_write_safetensors("model.safetensors", "{}", 0);
    oz_ckpt *c;
    assert_int_equal(folder_open(&c), OZ_OK);
    assert_int_equal(oz_ckpt_count(c), 0);
    oz_ckpt_close(&c);
}

static void test_broken_before_the_header(void **state) {
    test_write("model.safetensors", "", 0);
    refused("empty");
    test_write("model.safetensors", "\2\0\0\0\0\0\0", 7);
    refused("7 bytes, too short");
    test_write("model.safetensors", "\3\0\0\0\0\0\0\0{}", 10);
    refused("a header of 3 bytes does not fit in a file of 10");
    test_write("model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refused("a header of 18446744073709551615 bytes");
    test_write("model.safetensors", "\0\0\0\0\0\0\0\0{}", 10);
    refused("expected JSON, found nothing");
}

/* The header, the bytes of data after it, and what the message must say. %T stands for a good tensor "t" of 8 bytes at 0. */
static const struct { const char *header; size_t n_data; const char *part; } BROKEN[] = {
    {"\xef\xbb\xbf{}", 0, "byte order mark"},
    {" {}", 0, "must begin with '{'"},
    {"[]", 0, "must begin with '{'"},
    {"{\"t\":", 0, "line 1"},
    {"{}x", 0, "line 1"},
    {"{%T", 8, "line 1"},
    {"{%T,%T}", 8, "\"t\""},
    {"{%T}", 7, "t.data_offsets: end at 8, but the file holds 7 bytes"},
    {"{%T}", 9, "the last tensor ends at 8, the file holds 9 bytes"},
    {"{\"__metadata__\":{\"n\":5},%T}", 8, "__metadata__.n: must be a string, found 5"},
    {"{\"__metadata__\":[],%T}", 8, "__metadata__: must be an object, found []"},
    {"{\"u\":7}", 0, "u: must be an object, found 7"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"z\":1}}", 1, "u.z: unknown member"},
    {"{\"u\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "u.dtype: must be the name of a type, found nothing"},
    {"{\"u\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "u.dtype: must be a string"},
    {"{\"u\":{\"dtype\":\"F7\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "u.dtype: must be the name of a type, found F7"},
    {"{\"u\":{\"dtype\":\"Q4_0\",\"shape\":[32],\"data_offsets\":[0,18]}}", 18, "found Q4_0"},
    {"{\"u\":{\"dtype\":\"U8\\u0000\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "u.dtype: must be a string without NUL"},
    {"{\"u\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "u.shape: must be an array, found nothing"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "u.shape[0]: must be an integer of 0 or more, found -1"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "u.shape[0]: must be an integer"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, "u.shape[0]: must be an integer"},
    {"{\"u\":{\"dtype\":\"BF16\",\"shape\":[8589934592,2147483648,32],\"data_offsets\":[0,1]}}", 1, "u.shape: the number of elements"},
    {"{\"u\":{\"dtype\":\"U64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,1]}}", 1, "u.shape: the size in bytes"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "u.shape: at most 8 dimensions"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "u.data_offsets: must be two integers, 0 <= begin <= end, found nothing"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "found [0]"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "found [-1,0]"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "found [1,0]"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, "found [0,1.0]"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,18446744073709551617]}}", 1, "u.data_offsets: must be two integers"},
    {"{\"u\":{\"dtype\":\"BF16\",\"shape\":[16],\"data_offsets\":[0,64]}}", 64, "u: shape [16] of BF16 needs 32 bytes, data_offsets span 64"},
    {"{%T,\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[7,10]}}", 10, "u: its data begins at 7, inside t, which ends at 8"},
    {"{%T,\"u\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "its data begins at 0, inside"},
    {"{%T,\"u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 8, "u: its data begins at 4, inside t"},
    {"{%T,\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[9,12]}}", 12, "u: its data begins at 9, expected 8"},
    {"{\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}", 4, "u: its data begins at 1, expected 0"},
};

static void test_broken_headers(void **state) {
    static const char GOOD[] = "\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        oz_buf header = {0};
        for (const char *p = BROKEN[i].header; *p; p++) {
            if (p[0] == '%' && p[1] == 'T') oz_buf_puts(&header, GOOD), p++;
            else oz_buf_putc(&header, *p);
        }
        test_write_safetensors("model.safetensors", header.data, BROKEN[i].n_data);
        oz_buf_deinit(&header);
        refused(BROKEN[i].part);
    }
}

static void test_deep_nesting(void **state) {
    oz_buf header = {0};
    oz_buf_puts(&header, "{\"u\":");
    for (int i = 0; i < 100000; i++) oz_buf_putc(&header, '[');
    test_write_safetensors("model.safetensors", header.data, 0);
    oz_buf_deinit(&header);
    refused("512");
}

static void many_write(int n) {
    oz_buf header = {0};
    for (int i = 0; i < n; i++)
        oz_buf_printf(&header, "%c\"model.layers.%d.mlp.experts.%d.down_proj.weight_packed\":{\"dtype\":\"I32\",\"shape\":[1,1],\"data_offsets\":[%d,%d]}",
                      i ? ',' : '{', i / 256, i % 256, 4 * (n - 1 - i), 4 * (n - i)); /* stored backwards */
    oz_buf_putc(&header, '}');
    test_write_safetensors("model.safetensors", header.data, 4 * (size_t)n);
    oz_buf_deinit(&header);
}

static void test_many_tensors_in_near_linear_time(void **state) {
    clock_t took[2]; /* of this process: other load on the machine does not count */
    for (int k = 0; k < 2; k++) {
        int n = k ? 100000 : 12500;
        many_write(n);
        oz_ckpt *c;
        clock_t start = clock();
        assert_int_equal(folder_open(&c), OZ_OK);
        took[k] = clock() - start;
        assert_int_equal(oz_ckpt_count(c), n);
        const oz_tensor *t = oz_ckpt_find(c, "model.layers.3.mlp.experts.17.down_proj.weight_packed");
        assert_int_equal(((const uint8_t *)t->data)[0], (4 * (n - 1 - 3 * 256 - 17)) & 255);
        oz_ckpt_close(&c);
    }
    print_message("12,500 tensors: %.3f s, 100,000: %.3f s\n", (double)took[0] / CLOCKS_PER_SEC, (double)took[1] / CLOCKS_PER_SEC);
    assert_true(took[1] < 40 * took[0]); /* eight times the tensors; quadratic would be 64 times */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        UNIT(test_tensors_by_name), UNIT(test_file_without_tensors), UNIT(test_broken_before_the_header),
        UNIT(test_broken_headers),  UNIT(test_deep_nesting),         UNIT(test_many_tensors_in_near_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
