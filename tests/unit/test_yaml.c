/* YAML as PyYAML's safe loader reads it: the same values, or an error that says where. */
#include "files.h"
#include "base/json.h"
#include "base/yaml.h"

static void gives(const char *yaml, const char *json) {
    json_t *got, *want;
    oz_err err = {0};
    if (oz_yaml_parse(&got, yaml, strlen(yaml), "f.yaml", &err) != OZ_OK) fail_msg("%s: %s", yaml, err.msg);
    if (oz_json_parse(&want, json, strlen(json), "test", &err) != OZ_OK) fail_msg("%s", err.msg);
    if (!json_equal(got, want)) fail_msg("%s: expected %s, found %s", yaml, json, oz_json_show(got));
    json_decref(got);
    json_decref(want);
}

static void fails(const char *yaml, const char *words) {
    json_t *v;
    oz_err err = {0};
    assert_int_equal(oz_yaml_parse(&v, yaml, strlen(yaml), "f.yaml", &err), OZ_E_FORMAT);
    assert_null(v);
    assert_int_equal(strncmp(err.msg, "f.yaml: ", 8), 0);
    test_contains(err.msg, words);
}

static void test_scalars(void **state) {
    gives("{a: 1, b: -2, c: 0.5, d: 1e-2, e: .5, f: 1.}", "{\"a\":1,\"b\":-2,\"c\":0.5,\"d\":0.01,\"e\":0.5,\"f\":1.0}");
    gives("[yes, No, ON, off, true, False, y, n]", "[true,false,true,false,true,false,\"y\",\"n\"]");
    gives("[~, null, NULL, '', 'null']", "[null,null,null,\"\",\"null\"]");
    gives("a:\nb: ", "{\"a\":null,\"b\":null}");
    gives("[\"1\", '2', re:.*q_proj, W8A8, 8bit, 1.2.3, -, 1e999, 12345678901234567890]", "[\"1\",\"2\",\"re:.*q_proj\",\"W8A8\",\"8bit\",\"1.2.3\",\"-\",\"1e999\",1.2345678901234567e19]");
    gives("a: |\n  x\n  y\nb: >\n  x\n  y\n", "{\"a\":\"x\\ny\\n\",\"b\":\"x y\\n\"}");
    gives("\"a\\u00e9\": \"b\\x00c\"", "{\"a\xc3\xa9\":\"b\\u0000c\"}");
}

static void test_collections(void **state) {
    gives("s:\n  m:\n    A:\n      ignore: [lm_head]\n      targets:\n        - Linear\n        - 're:x'\n", "{\"s\":{\"m\":{\"A\":{\"ignore\":[\"lm_head\"],\"targets\":[\"Linear\",\"re:x\"]}}}}");
    gives("# a comment\n---\n[]\n...\n", "[]");
    gives("a: &x {b: [1]}\nc: *x\nd: [*x, *x]\n", "{\"a\":{\"b\":[1]},\"c\":{\"b\":[1]},\"d\":[{\"b\":[1]},{\"b\":[1]}]}");
    gives("- &x 1\n- *x\n- &x 2\n- *x\n", "[1,1,2,2]");
}

static void test_errors(void **state) {
    fails("", "found nothing");
    fails("a: 1\n---\nb: 2\n", "expected one document");
    fails("a: 1\na: 2\n", "line 2, column 1: the key a stands here twice");
    fails("1: 2", "keys must be strings");
    fails("[1]: 2", "keys must be strings");
    fails("a: &x {b: 1}\nc: {<<: *x}\n", "line 2, column 5: merge keys");
    fails("a: !!int 1", "tags are not read, found tag:yaml.org,2002:int");
    fails("!x {a: 1}", "tags are not read");
    fails("a: *x", "no value before has the name x");
    fails("a: &x [*x]", "x would hold itself");
    fails("a: {b: 1", "line 2, column 1");
    fails("a: \t- b", "line 1");
    static const char *const numbers[] = {"0x1F", "0b11", "010", "1_000", "1:30", ".inf", "-.INF", ".nan", "0.1_0"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) fails(numbers[i], "expected numbers in decimal");
    fails("\xff\xfe\x00", "");
    fails("a: \xc3(", "");
}

/* Nothing small becomes large: nesting, and aliases of aliases. */
static void test_limits(void **state) {
    char deep[200] = {0};
    memset(deep, '[', 65);
    fails(deep, "nested more than 64 deep");
    char bomb[2000] = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
    for (int i = 1; i < 9; i++) {
        char line[128];
        snprintf(line, sizeof line, "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
        strcat(bomb, line);
    }
    fails(bomb, "more than 100000 values, aliases followed");
    char *many = malloc(250000);
    strcpy(many, "[");
    for (int i = 0; i < 110000; i++) memcpy(many + 1 + 2 * i, "1,", 3);
    fails(many, "more than 100000 values");
    free(many);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scalars), cmocka_unit_test(test_collections), cmocka_unit_test(test_errors), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
