/* A folder as one checkpoint: config, single file or index with shards, text files, side files, config.json as written. */
#include "files.h"
#include <unistd.h>
#include "base/json.h"
#include "base/str.h"
#include "checkpoint/checkpoint.h"

static oz_err err;
static oz_ckpt *ckpt;

static void ok(oz_status st) {
    if (st != OZ_OK) fail_msg("%s", err.msg);
}

static void refused(oz_status code, const char *part) {
    oz_err_clear(&err);
    ckpt = (void *)1;
    assert_int_equal(oz_ckpt_open(&ckpt, test_dir, &err), code);
    assert_null(ckpt);
    test_contains(err.msg, part);
}

static const char ONE_A[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
static const char ONE_B[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
static const char S1[] = "model-00001-of-00002.safetensors", S2[] = "model-00002-of-00002.safetensors";

static void index_write(const char *weight_map) {
    oz_buf text = {0};
    oz_buf_printf(&text, "{\"metadata\":{\"total_size\":6},\"weight_map\":%s}", weight_map);
    test_write_text("model.safetensors.index.json", text.data);
    oz_buf_deinit(&text);
}

static void sharded_write(void) {
    test_write_text("config.json", "{\"model_type\": \"llama\"}");
    test_write_safetensors(S1, ONE_A, 4);
    test_write_safetensors(S2, ONE_B, 2);
    index_write("{\"b\":\"model-00002-of-00002.safetensors\",\"a\":\"model-00001-of-00002.safetensors\"}");
}

/* ---- folders ---- */

static void test_shards(void **state) {
    sharded_write();
    test_write_safetensors("consolidated.safetensors", ONE_A, 4); /* not in the index: not part of the checkpoint */
    ok(oz_ckpt_open(&ckpt, test_dir, &err));
    assert_int_equal(oz_ckpt_count(ckpt), 2);
    assert_int_equal(oz_ckpt_bytes(ckpt), 6);
    assert_string_equal(oz_ckpt_at(ckpt, 0)->file_name, S1);
    assert_string_equal(oz_ckpt_find(ckpt, "b")->file_name, S2);
    assert_int_equal(((const uint8_t *)oz_ckpt_find(ckpt, "b")->data)[1], 1);
    assert_string_equal(oz_ckpt_path(ckpt), test_dir);
    assert_false(oz_ckpt_is_gguf(ckpt));
    assert_string_equal(json_string_value(json_object_get(oz_ckpt_config(ckpt), "model_type")), "llama");
    for (size_t i = 0; i < 2; i++) oz_ckpt_drop(ckpt, oz_ckpt_at(ckpt, i));
    oz_ckpt_close(&ckpt);
}

static void test_index_and_files_agree(void **state) {
    sharded_write();
    index_write("{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\"}");
    refused(OZ_E_FORMAT, "c: model.safetensors.index.json puts it into model-00002-of-00002.safetensors, which does not hold it");
    index_write("{\"a\":\"model-00001-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\"}");
    refused(OZ_E_FORMAT, "b: stands in model-00002-of-00002.safetensors, but not in model.safetensors.index.json");
    index_write("{\"a\":\"model-00002-of-00002.safetensors\",\"b\":\"model-00001-of-00002.safetensors\"}");
    refused(OZ_E_FORMAT, "b: stands in model-00002-of-00002.safetensors, but model.safetensors.index.json puts it into model-00001");
    test_write_safetensors(S2, ONE_A, 4); /* the same tensor in both files */
    index_write("{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}");
    refused(OZ_E_FORMAT, "a: the name is there twice (model-00001-of-00002.safetensors and model-00002-of-00002.safetensors)");
}

static void test_index_names_files_of_the_folder(void **state) {
    static const char *const BAD[] = {"\"../x.safetensors\"", "\"/etc/passwd\"", "\"d/x.safetensors\"", "\"d\\\\x.safetensors\"",
                                      "\"..\"",               "\"\"",            "\"x.safetensors\\u0000\"", "7"};
    sharded_write();
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        oz_buf map = {0};
        oz_buf_printf(&map, "{\"a\":\"model-00001-of-00002.safetensors\",\"b\":%s}", BAD[i]);
        index_write(map.data);
        oz_buf_deinit(&map);
        refused(OZ_E_FORMAT, "model.safetensors.index.json: weight_map.b: must be the name of a .safetensors file in the same folder, found");
    }
}

static void test_index_itself(void **state) {
    sharded_write();
    assert_int_equal(unlink(test_path(S2)), 0);
    refused(OZ_E_NOT_FOUND, "model-00002-of-00002.safetensors: No such file");
    test_contains(err.msg, "model.safetensors.index.json");
    index_write("[]");
    refused(OZ_E_FORMAT, "weight_map: must be an object, found []");
    test_write_text("model.safetensors.index.json", "[]");
    refused(OZ_E_FORMAT, "weight_map: must be an object, found nothing");
    test_write_text("model.safetensors.index.json", "{");
    refused(OZ_E_FORMAT, "model.safetensors.index.json: line 1");
}

static void test_single_file_or_index(void **state) {
    sharded_write();
    test_write_safetensors("model.safetensors", ONE_A, 4);
    refused(OZ_E_FORMAT, "holds both model.safetensors and model.safetensors.index.json, which does not name it");
    index_write("{\"a\":\"model.safetensors\"}");
    ok(oz_ckpt_open(&ckpt, test_dir, &err));
    assert_int_equal(oz_ckpt_count(ckpt), 1);
    oz_ckpt_close(&ckpt);
}

static void test_missing_parts(void **state) {
    refused(OZ_E_NOT_FOUND, "config.json: No such file");
    test_write_text("config.json", "[1]");
    refused(OZ_E_FORMAT, "config.json: must be an object, found [1]");
    test_write_text("config.json", "\xef\xbb\xbf{}");
    refused(OZ_E_FORMAT, "config.json: expected JSON, found a UTF-8 byte order mark");
    test_write_text("config.json", "{}");
    refused(OZ_E_NOT_FOUND, "holds neither model.safetensors nor model.safetensors.index.json");
    assert_string_equal(err.msg + strlen(err.msg) - strlen("index.json"), "index.json"); /* there is nothing to name */
    test_write_text("weights.safetensors", "");
    test_write_text("README.md", "");
    test_write_text("pytorch_model.bin", "");
    refused(OZ_E_NOT_FOUND, "holds neither model.safetensors nor model.safetensors.index.json; found pytorch_model.bin, weights.safetensors");
    for (int i = 0; i < 5; i++) test_write_text((char[]){'a', (char)('0' + i), '.', 'p', 't', 0}, "");
    refused(OZ_E_NOT_FOUND, "; found a0.pt, a1.pt, a2.pt, a3.pt, a4.pt and 2 more");
    oz_err_clear(&err);
    assert_int_equal(oz_ckpt_open(&ckpt, test_path("config.json"), &err), OZ_E_FORMAT);
    test_contains(err.msg, "config.json: expected a folder with a checkpoint or a GGUF file");
    oz_err_clear(&err);
    assert_int_equal(oz_ckpt_open(&ckpt, test_path("nowhere"), &err), OZ_E_NOT_FOUND);
    test_contains(err.msg, "nowhere: No such file");
    oz_err_clear(&err);
}

/* ---- text files ---- */

static void test_text_files(void **state) {
    oz_text_files f;
    ok(oz_text_files_open(&f, test_dir, &err)); /* nothing there is no error */
    assert_null(f.tokenizer);
    assert_null(f.chat_template);
    oz_text_files_close(&f);

    test_write_text("tokenizer.json", "{\"version\":\"1.0\"}");
    test_write_text("special_tokens_map.json", "{\"eos_token\":\"</s>\"}");
    test_write_text("generation_config.json", "{\"eos_token_id\":2}");
    test_write_text("tokenizer_config.json", "{\"chat_template\":\"from config\"}");
    ok(oz_text_files_open(&f, test_dir, &err));
    assert_string_equal(json_string_value(json_object_get(f.tokenizer, "version")), "1.0");
    assert_string_equal(json_string_value(json_object_get(f.special_tokens_map, "eos_token")), "</s>");
    assert_int_equal(json_integer_value(json_object_get(f.generation_config, "eos_token_id")), 2);
    assert_string_equal(f.chat_template, "from config");
    oz_text_files_close(&f);
    assert_null(f.tokenizer);

    test_write_text("chat_template.jinja", "{{ 'from its own file' }}\n");
    ok(oz_text_files_open(&f, test_dir, &err));
    assert_string_equal(f.chat_template, "{{ 'from its own file' }}\n");
    oz_text_files_close(&f);
}

static void template_is(const char *config, const char *want) {
    oz_text_files f;
    test_write_text("tokenizer_config.json", config);
    ok(oz_text_files_open(&f, test_dir, &err));
    if (want) assert_string_equal(f.chat_template, want);
    else assert_null(f.chat_template);
    oz_text_files_close(&f);
}

static void text_refused(const char *part) {
    oz_text_files f;
    oz_err_clear(&err);
    assert_int_equal(oz_text_files_open(&f, test_dir, &err), OZ_E_FORMAT);
    assert_null(f.tokenizer_config);
    test_contains(err.msg, part);
    oz_err_clear(&err);
}

static void test_template_of_tokenizer_config(void **state) {
    template_is("{}", NULL);
    template_is("{\"chat_template\":null}", NULL);
    template_is("{\"chat_template\":[]}", NULL);
    template_is("{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"}]}", NULL);
    template_is("{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}", "d");
    test_write_text("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"default\"}]}");
    text_refused("chat_template[0]: must have the strings name and template");
    test_write_text("tokenizer_config.json", "{\"chat_template\":5}");
    text_refused("chat_template: must be a string or an array, found 5");
    test_write_text("tokenizer_config.json", "[]");
    text_refused("tokenizer_config.json: must be an object, found []");
    test_write_text("tokenizer_config.json", "{\"a\":1,\"a\":2}");
    text_refused("duplicate");
}

/* ---- what a copy takes along ---- */

static bool there(const char *name) { return access(test_path(name), F_OK) == 0; }

static void test_side_files(void **state) {
    static const char *const TAKEN[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
                                        "LICENSE",        "modeling_x.py",         "merges.txt",             "tokenizer.model"};
    static const char *const LEFT[] = {"pytorch_model.bin", "model.safetensors.index.json", "x.gguf", "quantize_config.json",
                                       ".gitattributes",    "consolidated.safetensors",     "params.json"};
    test_write_text("config.json", "{}");
    test_write_safetensors("model.safetensors", ONE_A, 4);
    ok(oz_ckpt_open(&ckpt, test_dir, &err));
    for (size_t i = 0; i < sizeof TAKEN / sizeof *TAKEN; i++) test_write_text(TAKEN[i], TAKEN[i]);
    for (size_t i = 0; i < sizeof LEFT / sizeof *LEFT; i++) test_write_text(LEFT[i], LEFT[i]);
    assert_int_equal(symlink("LICENSE", test_path("LICENSE.link")), 0); /* as in the hub's cache: what it points to is copied */
    assert_int_equal(mkdir(test_path("out"), 0777), 0);
    ok(oz_ckpt_copy_side_files(ckpt, test_path("out"), &err));
    oz_ckpt_close(&ckpt);
    for (size_t i = 0; i < sizeof TAKEN / sizeof *TAKEN; i++) {
        char name[64];
        size_t n;
        snprintf(name, sizeof name, "out/%s", TAKEN[i]);
        char *text = test_read(test_path(name), &n);
        assert_string_equal(text, TAKEN[i]);
        free(text);
    }
    for (size_t i = 0; i < sizeof LEFT / sizeof *LEFT; i++) {
        char name[64];
        snprintf(name, sizeof name, "out/%s", LEFT[i]);
        assert_false(there(name));
    }
    assert_false(there("out/config.json"));
    assert_false(there("out/model.safetensors"));
    assert_false(there("out/out"));
    struct stat st;
    assert_int_equal(lstat(test_path("out/LICENSE.link"), &st), 0);
    assert_true(S_ISREG(st.st_mode));
}

static void same(const json_t *a, const json_t *b) { assert_true((!a && !b) || json_equal(a, b)); }

static void test_side_files_of_a_gguf(void **state) {
    static const char GGUF[] = "tests/golden/gguf/llama.gguf";
    oz_text_files made, read;
    ok(oz_ckpt_open(&ckpt, GGUF, &err));
    assert_true(oz_ckpt_is_gguf(ckpt));
    ok(oz_ckpt_copy_side_files(ckpt, test_dir, &err));
    oz_ckpt_close(&ckpt);
    assert_true(there("tokenizer.json"));
    assert_true(there("chat_template.jinja"));
    ok(oz_text_files_open(&made, GGUF, &err));
    ok(oz_text_files_open(&read, test_dir, &err));
    same(read.tokenizer, made.tokenizer);
    same(read.tokenizer_config, made.tokenizer_config);
    same(read.generation_config, made.generation_config);
    same(read.special_tokens_map, made.special_tokens_map);
    assert_string_equal(read.chat_template, made.chat_template);
    oz_text_files_close(&made);
    oz_text_files_close(&read);
}

static void test_gguf_by_its_first_bytes(void **state) {
    size_t n;
    char *data = test_read("tests/golden/gguf/llama.gguf", &n);
    test_write("without-extension", data, n);
    free(data);
    ok(oz_ckpt_open(&ckpt, test_path("without-extension"), &err));
    assert_true(oz_ckpt_is_gguf(ckpt));
    oz_ckpt_close(&ckpt);
}

/* ---- config.json ---- */

/* python.json is what Python's json.dumps(..., indent=2, sort_keys=True) made: read and written it must come out the same. */
static void test_config_is_written_as_python_does(void **state) {
    size_t n_want, n_got;
    json_t *config;
    ok(oz_json_load(&config, "tests/golden/json/python.json", 1 << 20, &err));
    ok(oz_config_write(config, test_dir, &err));
    json_decref(config);
    char *want = test_read("tests/golden/json/python.json", &n_want), *got = test_read(test_path("config.json"), &n_got);
    assert_string_equal(got, want);
    assert_int_equal(n_got, n_want);
    free(got);
    free(want);
}

static void test_config_cannot_be_written(void **state) {
    json_t *config = json_object();
    oz_err_clear(&err);
    assert_int_equal(oz_config_write(config, test_path("nowhere"), &err), OZ_E_IO);
    test_contains(err.msg, "nowhere/config.json");
    json_decref(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        UNIT(test_shards),        UNIT(test_index_and_files_agree),
        UNIT(test_index_itself),  UNIT(test_index_names_files_of_the_folder),
        UNIT(test_missing_parts), UNIT(test_single_file_or_index),
        UNIT(test_text_files),    UNIT(test_template_of_tokenizer_config),
        UNIT(test_side_files),    UNIT(test_config_is_written_as_python_does),
        UNIT(test_side_files_of_a_gguf), UNIT(test_gguf_by_its_first_bytes),
        UNIT(test_config_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
