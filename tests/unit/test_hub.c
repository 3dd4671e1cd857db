#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/sha1.h"
#include "checkpoint/internal.h"

static void sha1_of_git_objects(void **state) { /* git hash-object of an empty file, and of "what is up, doc?" */
    static const struct {
        const char *text, *hash;
    } t[] = {{"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}, {"what is up, doc?", "bd9dbf5aae1a3862dd1526723246b20206e5fc37"}};
    for (size_t i = 0; i < 2; i++) {
        char out[41], head[32];
        oz_sha1 s;
        oz_sha1_init(&s);
        oz_sha1_add(&s, head, (size_t)snprintf(head, sizeof head, "blob %zu", strlen(t[i].text)) + 1);
        oz_sha1_add(&s, t[i].text, strlen(t[i].text));
        oz_sha1_hex(out, &s);
        assert_string_equal(out, t[i].hash);
    }
    oz_sha1 s; /* FIPS 180: a million times "a", in pieces that straddle blocks */
    char out[41], a[1000];
    memset(a, 'a', sizeof a);
    oz_sha1_init(&s);
    for (int i = 0; i < 1000; i++) oz_sha1_add(&s, a, sizeof a);
    oz_sha1_hex(out, &s);
    assert_string_equal(out, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

static void names_of_repositories(void **state) {
    static const char *const good[] = {"gpt2", "a/b", "Qwen/Qwen3-0.6B", "a/b@v1.0", "a/b@refs/pr/3", "o_-.1/x", "a/b@" "0123456789012345678901234567890123456789"};
    static const char *const bad[] = {"", "/a", "a/", "a//b", "a/b/c", "../x", "a/..", "a/.b", "-a/b", "a--b/c", "a/b..c", "a b", "a/b@", "a/b@../x", "a/b@x//y", "a/b@x\ny",
                                      "a/b@/x", "https://x", "a:b", "\xc3\xa9/x", "x@a\\b"};
    setenv("HF_HUB_CACHE", "/c", 1);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        oz_repo r;
        assert_int_equal(oz_repo_parse(&r, good[i], NULL), OZ_OK);
        oz_repo_deinit(&r);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        oz_repo r;
        oz_err err = {0};
        if (oz_repo_parse(&r, bad[i], &err) == OZ_OK) fail_msg("%s was taken for a repository's name", bad[i]);
        assert_int_equal(err.code, OZ_E_ARG);
    }
    oz_repo r;
    assert_int_equal(oz_repo_parse(&r, "Qwen/Qwen3-0.6B@v1", NULL), OZ_OK);
    assert_string_equal(r.name, "Qwen/Qwen3-0.6B");
    assert_string_equal(r.rev, "v1");
    assert_string_equal(r.dir, "/c/models--Qwen--Qwen3-0.6B");
    oz_repo_deinit(&r);
}

static void names_of_files(void **state) {
    assert_true(oz_name_is_inside("a"));
    assert_true(oz_name_is_inside("a/b c/..d/e.json"));
    static const char *const bad[] = {"", ".", "..", "/a", "a/", "a//b", "a/../b", "./a", "a\\b", "a\nb", "a/..", "a\x7f"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (oz_name_is_inside(bad[i])) fail_msg("\"%s\" was taken for a name inside", bad[i]);
}

/* The names chosen from a list of names, in order; NULL: refused, the message in *err. */
static char *choose(const char *names, const char *include, oz_err *err) {
    json_t *list = json_array();
    char *copy = strdup(names), *save;
    for (char *n = strtok_r(copy, " ", &save); n; n = strtok_r(NULL, " ", &save))
        json_array_append_new(list, json_pack("{s:s, s:i, s:s}", "rfilename", n, "size", 1, "blobId", "0123456789012345678901234567890123456789"));
    json_t *info = json_pack("{s:s, s:o}", "sha", "0123456789012345678901234567890123456789", "siblings", list);
    oz_pull p = {0};
    oz_buf out = {0};
    const oz_status st = oz_hub_choose(&p, info, &(oz_pull_cfg){.repo = "a/b", .include = &include, .n_include = include != NULL}, err);
    for (size_t i = 0; i < p.n_files; i++) oz_buf_printf(&out, "%s%s", i ? " " : "", p.files[i].name);
    oz_buf_puts(&out, "");
    if (st != OZ_OK) oz_buf_deinit(&out);
    oz_pull_deinit(&p);
    json_decref(info);
    free(copy);
    return out.data;
}

static void which_files(void **state) {
    static const struct {
        const char *names, *include, *chosen, *message;
    } t[] = {
        {"config.json model.safetensors pytorch_model.bin tf_model.h5 README.md logo.png x/y.json", NULL, "config.json model.safetensors README.md", NULL},
        {"model.safetensors a.gguf consolidated.safetensors tokenizer.model", NULL, "model.safetensors tokenizer.model", NULL},
        {"consolidated.safetensors params.json", NULL, "consolidated.safetensors params.json", NULL},
        {"tokenizer.json a.gguf", NULL, "tokenizer.json a.gguf", NULL},
        {"tokenizer.json", NULL, "tokenizer.json", NULL},
        {"a.gguf b.gguf", NULL, NULL, "holds 2 .gguf files; choose with --include: a.gguf, b.gguf"},
        {"a.gguf b.gguf", "b*", "b.gguf", NULL},
        {"config.json x/model.bin", "*.bin", "x/model.bin", NULL},
        {"config.json", "*.bin", NULL, "no file matches --include *.bin"},
        {"config.json pytorch_model.bin", NULL, NULL, "has its weights in pytorch_model.bin"},
        {"config.json ..", NULL, NULL, "expected a path inside the repository"},
        {"config.json a/../../b", "*", NULL, "expected a path inside the repository"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        oz_err err = {0};
        char *chosen = choose(t[i].names, t[i].include, &err);
        if (t[i].chosen) {
            assert_non_null(chosen);
            assert_string_equal(chosen, t[i].chosen);
        } else {
            assert_null(chosen);
            if (!strstr(err.msg, t[i].message)) fail_msg("expected \"%s\", found \"%s\"", t[i].message, err.msg);
        }
        free(chosen);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sha1_of_git_objects), cmocka_unit_test(names_of_repositories), cmocka_unit_test(names_of_files),
                                       cmocka_unit_test(which_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
