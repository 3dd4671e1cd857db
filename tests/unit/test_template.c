/* Chat templates: the reference's golden answers, hostile templates, and what the interface promises. */
#include "base/json.h"
#include "base/mem.h"
#include "files.h"
#include "text/text.h"
#include <pthread.h>
#include <time.h>

#define GOLDEN "tests/golden/templates/"

static const char *string(const json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

static int64_t seconds(const char *now) {
    struct tm tm = {0};
    if (!now || sscanf(now, "%d-%d-%dT%d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6) return -1;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return timegm(&tm);
}

static oz_status parse(oz_template **t, const json_t *source, oz_err *err) {
    return oz_template_new(t, json_string_value(source), json_string_length(source), err);
}

/* A whole case, its other members as the line's text has them. */
static oz_status answer(oz_buf *out, const json_t *row, const char *line, size_t n, oz_err *err) {
    oz_template *t;
    oz_template_args args = {.now = seconds(string(row, "now"))};
    oz_status st = parse(&t, json_object_get(row, "template"), err);
    if (st == OZ_OK) st = oz_template_render_text(out, t, line, n, &args, err);
    oz_template_free(&t);
    return st;
}

/* What is wrong with an answer, or NULL. `want` is the text, or NULL where the reference fails. */
static const char *wrong(const json_t *row, const json_t *want, bool rare, oz_status st, const oz_buf *text, const oz_err *err) {
    const char *class = string(row, "error_class"), *why = string(row, "error");
    if ((st != OZ_OK) != (err->msg[0] != 0)) return "a failure without a message, or a message without a failure";
    if (rare && strstr(err->msg, "not supported")) return NULL;
    if (!want)
        return st == OZ_OK                                                              ? "it did not fail"
               : class && strcmp(class, "TemplateError") == 0 && !strstr(err->msg, why) ? "another error"
                                                                                        : NULL;
    if (st != OZ_OK) return "it failed";
    return json_string_length(want) == text->len && memcmp(json_string_value(want), text->data ? text->data : "", text->len) == 0
               ? NULL
               : "another text";
}

typedef const char *check_fn(const json_t *row, const char *line, size_t n, oz_buf *text, oz_err *err);

/* All lines of a file but the first `skip`; each failure is printed. */
static void each_line(const char *file, int skip, check_fn *check) {
    size_t n, n_bad = 0, n_rows = 0;
    char *data = test_read(file, &n);
    for (char *p = data, *end; *p; p = end + (*end == '\n')) {
        end = p + strcspn(p, "\n");
        if (skip-- > 0) continue;
        json_t *row;
        oz_err err = {0};
        oz_buf text = {0};
        if (oz_json_parse(&row, p, (size_t)(end - p), file, &err) != OZ_OK) fail_msg("%s", err.msg);
        const char *bad = check(row, p, (size_t)(end - p), &text, &err);
        const char *name = string(row, "id") ? string(row, "id") : string(row, "template");
        if (bad) print_message("%s: %s: %.200s%.200s\n", name, bad, err.msg, text.data ? text.data : "");
        n_bad += bad != NULL;
        n_rows++;
        oz_buf_deinit(&text);
        json_decref(row);
    }
    free(data);
    assert_true(n_rows > 0);
    assert_int_equal(n_bad, 0);
}

static const char *check_case(const json_t *row, const char *line, size_t n, oz_buf *text, oz_err *err) {
    oz_status st = answer(text, row, line, n, err);
    const json_t *want = json_object_get(row, "expected");
    const char *tier = string(row, "tier");
    return wrong(row, json_is_string(want) ? want : NULL, tier && strcmp(tier, "rare") == 0, st, text, err);
}

static void cases(void **state) { each_line(GOLDEN "cases.jsonl", 0, check_case); }

/* The same through jansson's values, apart from the case about integers that jansson does not have. */
static const char *check_values(const json_t *row, const char *line, size_t n, oz_buf *text, oz_err *err) {
    oz_template *t;
    oz_template_args args = {json_object_get(row, "messages"), json_object_get(row, "tools"), json_object_get(row, "kwargs"),
                             json_object_get(row, "special_tokens"), seconds(string(row, "now"))};
    const json_t *want = json_object_get(row, "expected");
    if (strcmp(string(row, "id"), "micro/int-float-json") == 0) return NULL;
    oz_status st = parse(&t, json_object_get(row, "template"), err);
    if (st == OZ_OK) st = oz_template_render(text, t, &args, err);
    oz_template_free(&t);
    return wrong(row, json_is_string(want) ? want : NULL, string(row, "tier") && strcmp(string(row, "tier"), "rare") == 0, st, text, err);
}

static void cases_as_values(void **state) { each_line(GOLDEN "cases.jsonl", 0, check_values); }

static json_t *messages_of_all;

static const char *check_construct(const json_t *row, const char *line, size_t n, oz_buf *text, oz_err *err) {
    oz_template *t;
    json_t *tokens = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
    oz_template_args args = {.messages = messages_of_all, .special_tokens = tokens, .now = 0};
    oz_status st = parse(&t, json_object_get(row, "template"), err);
    if (st == OZ_OK) st = oz_template_render(text, t, &args, err);
    oz_template_free(&t);
    json_decref(tokens);
    return wrong(row, json_object_get(row, "text"), json_is_true(json_object_get(row, "rare")), st, text, err);
}

static void constructs(void **state) {
    size_t n;
    char *data = test_read(GOLDEN "constructs.jsonl", &n);
    json_t *head;
    oz_err err = {0};
    assert_int_equal(oz_json_parse(&head, data, strcspn(data, "\n"), "constructs", &err), OZ_OK);
    messages_of_all = json_object_get(head, "messages");
    each_line(GOLDEN "constructs.jsonl", 1, check_construct);
    json_decref(head);
    free(data);
}

/* ---- strangers' templates ---- */

static const char *check_hostile(const json_t *row, const char *line, size_t n, oz_buf *text, oz_err *err) {
    const json_t *other = json_object_get(row, "or_value");
    clock_t start = clock();
    oz_status st = answer(text, row, line, n, err);
    if ((double)(clock() - start) / CLOCKS_PER_SEC > 1) return "it takes more than a second";
    if (st == OZ_OK) return wrong(row, other, false, st, text, err);
    return text->len ? "text is left behind" : err->msg[0] ? NULL : "no message";
}

static void hostile(void **state) { each_line(GOLDEN "hostile.jsonl", 0, check_hostile); }

static oz_status render(oz_buf *out, const char *source, const char *request, oz_err *err) {
    oz_template *t;
    oz_template_args args = {.now = 0};
    oz_status st = oz_template_new(&t, source, strlen(source), err);
    if (st == OZ_OK) st = oz_template_render_text(out, t, request, strlen(request), &args, err);
    oz_template_free(&t);
    return st;
}

#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}"

static void refused(const char *source, const char *why) {
    oz_buf out = {0};
    oz_err err = {0};
    if (render(&out, source, HELLO, &err) == OZ_OK) fail_msg("%.100s is not refused: %.100s", source, out.data ? out.data : "");
    test_contains(err.msg, why);
    assert_int_equal(out.len, 0);
    oz_buf_deinit(&out);
}

static char *nested(const char *open, const char *middle, const char *close, int n) {
    oz_buf b = {0};
    for (int i = 0; i < n; i++) oz_buf_puts(&b, open);
    oz_buf_puts(&b, middle);
    for (int i = 0; i < n; i++) oz_buf_puts(&b, close);
    return b.data;
}

/* Every way to go deep, in the source and at run time, ends in an error and not in the stack. */
static void depth_is_bounded(void **state) {
    static const struct {
        const char *open, *middle, *close, *why;
    } ROWS[] = {
        {"{% if 1 %}", "x", "{% endif %}", "nested too deeply"},
        {"{% for x in [1] %}", "x", "{% endfor %}", "nested too deeply"},
        {"{% if 0 %}{% else %}", "x", "{% endif %}", "nested too deeply"},
        {"{% set x %}", "x", "{% endset %}", "nested too deeply"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char *s = nested(ROWS[i].open, ROWS[i].middle, ROWS[i].close, 20000);
        refused(s, ROWS[i].why);
        oz_free(s);
    }
    static const struct {
        const char *open, *middle, *close;
    } EXPRESSIONS[] = {{"(", "1", ")"},   {"[", "1", "]"},      {"{1:", "1", "}"},       {"- ", "1", ""},
                       {"not ", "1", ""}, {"f(", "1", ")"},     {"a[", "1", "]"},        {"1 if 1 else ", "1", ""},
                       {"1 + ", "1", ""}, {"", "1", "|abs"},    {"", "messages", "[0]"}, {"", "messages", ".x"},
                       {"", "f", "()"},   {"", "1", " is odd"}, {"1 ~ (", "1", ")"}};
    for (size_t i = 0; i < sizeof EXPRESSIONS / sizeof *EXPRESSIONS; i++) {
        char *e = nested(EXPRESSIONS[i].open, EXPRESSIONS[i].middle, EXPRESSIONS[i].close, 20000), *s = oz_asprintf("{{ %s }}", e);
        oz_buf out = {0};
        oz_err err = {0};
        assert_int_not_equal(render(&out, s, HELLO, &err), OZ_OK);
        oz_buf_deinit(&out);
        oz_free(s);
        oz_free(e);
    }
    refused("{% set ns = namespace(v=1) %}{% for i in range(2000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v }}", "recurses too deeply");
    refused("{% set ns = namespace(v=1) %}{% for i in range(2000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v|tojson }}",
            "recurses too deeply");
    refused("{% set ns = namespace(v=(1,)) %}{% for i in range(2000) %}{% set ns.v = (ns.v,) %}{% endfor %}{{ {ns.v: 1} }}",
            "recurses too deeply");
    refused("{% set a = namespace(v=1) %}{% set b = namespace(v=1) %}{% for i in range(2000) %}{% set a.v = [a.v] %}{% set b.v = [b.v] "
            "%}{% endfor %}"
            "{{ a.v == b.v }}",
            "recurses too deeply");
    refused("{% set ns = namespace(g=[1]) %}{% for i in range(2000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}",
            "recurses too deeply");
    refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses too deeply");
    refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recurses too deeply");
    refused("{% macro f() %}{% call f() %}{% endcall %}{{ caller() }}{% endmacro %}{{ f() }}", "recurses too deeply");
}

static void work_is_bounded(void **state) {
    static const char *const ROWS[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{{ range(100000)|sum }}{% endfor %}",
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}",
        "{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{{ s == s ~ '' }}{% endfor %}",
        "{% set s = 'ab' * 1000000 %}{% for i in range(1000) %}{{ s|upper|length }}{% endfor %}",
        "{{ ('a' * 1000000).rfind('b' ~ 'a' * 500000) }}{% set s = 'a' * 1000000 %}{% for i in range(9) %}{{ s.rsplit('a' * 5000 ~ 'b' ~ "
        "'a' * 5000) }}{% endfor %}"
        "{% for i in range(100000) %}{{ s.rfind('ab') }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(100000) %}{{ s[i] }}{{ s[::-1]|length }}{% endfor %}",
        "{% set l = range(90000)|list %}{% for i in range(100000) %}{{ -1 in l }}{% endfor %}",
        "{% set l = range(90000)|list %}{% for i in range(100000) %}{{ l|sort|length }}{% endfor %}",
        "{% set n = 7 ** 4000 %}{% for i in range(100000) %}{% set m = n * n // n %}{% endfor %}",
        "{% set n = '9' * 4000 %}{% for i in range(100000) %}{% set m = n|int %}{% endfor %}",
        "{% for i in range(100000) %}{{ '%1000000d' % 1 }}{% endfor %}",
        "{{ '%.999999999f' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ [1] * 999999999 }}",
        "{{ 'x' * 999999999 }}",
        "{{ ['x' * 1000000] * 1000|join }}",
        "{{ range(100000)|map('string')|join('x' * 1000) }}",
        "{{ 'x'.zfill(99999999) }}",
        "{{ 'a\tb'.expandtabs(99999999) }}",
        "{{ [1]|tojson(indent=99999999) }}",
        "{{ [1, 2]|batch(99999999, 0)|list }}",
        "{{ [1, 2]|slice(99999999)|list }}",
        "{{ ''.join(['a' * 1000000] * 100) }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(d={}) %}{% for i in range(60) %}{% set ns.d = dict(a=ns.d, b=ns.d) %}{% endfor %}{{ ns.d|tojson }}",
        "{% set ns = namespace(d=[]) %}{% for i in range(60) %}{% set ns.d = [ns.d, ns.d] %}{% endfor %}{{ ns.d == ns.d ~ '' }}",
        "{% set a = namespace(d=[]) %}{% set b = namespace(d=[]) %}{% for i in range(60) %}{% set a.d = [a.d, a.d] %}{% set b.d = [b.d, "
        "b.d] %}{% endfor %}"
        "{{ a.d == b.d }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in range(100000) recursive %}{% if loop.depth < 9 %}{{ loop(range(100000)) }}{% endif %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        clock_t start = clock();
        refused(ROWS[i], "chat template, line 1: ");
        double took = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (took > 2) fail_msg("%s took %.1f s", ROWS[i], took);
    }
}

/* ---- the interface ---- */

static void errors_name_the_line(void **state) {
    refused("a\n{{ 1 }}\n{{ nope.x }}", "chat template, line 3: 'nope' is undefined");
    refused("a\n\n{% if 1 %}\n{{ 1 / 0 }}{% endif %}", "line 4: division by zero");
    refused("{% macro f() %}\n\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ f() }}", "line 3: unsupported operand type(s) for +: 'int' and 'str'");
    refused("a\n{% if 1 %}\nb", "line 3: Unexpected end of template: expected 'elif' or 'else' or 'endif'");
    refused("a\n{{ 1|nosuch }}", "line 2: No filter named 'nosuch'.");
    refused("{{ raise_exception('Only ' ~ 2 ~ ' roles') }}", "line 1: Only 2 roles");
    refused("{{ messages[0].content.x.y }}", "'str object' has no attribute 'x'");
    refused("{{ messages[3].content }}", "list object has no element 3");
    refused("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe.");
    refused("{{ 'abc'|replace('a') }}", "replace: missing argument 'new'");
    refused("{{ 'abc'|indent(nope=1) }}", "indent: unexpected keyword argument 'nope'");
    refused("{{ 'abc'|upper(1) }}", "upper: expected at most 0 arguments, found 1");
    refused("{% include 'a' %}", "the tag 'include' is not supported");
}

static void requests_are_checked(void **state) {
    static const struct {
        const char *request, *why;
    } ROWS[] = {
        {"{\"messages\":[]}", "messages: expected at least one"},
        {"{\"messages\":5}", "messages: expected a list, found 'int'"},
        {"{}", "messages: expected at least one"},
        {"{\"messages\":[{\"role\":\"user\"}, 7]}", "messages[1]: expected an object, found 'int'"},
        {"{\"messages\":[{}],\"tools\":[\"x\"]}", "tools[0]: expected an object, found 'str'"},
        {"{\"messages\":[{}],\"kwargs\":{\"documents\":[1]}}", "documents[0]: expected an object"},
        {"{\"messages\":[{\"content\":\"a\"}],\"kwargs\":{\"continue_final_message\":true,\"add_generation_prompt\":true}}",
         "exclude each other"},
        {"{\"messages\":[{\"role\":\"a\"}],\"kwargs\":{\"continue_final_message\":true}}", "the last message has no \"content\""},
        {"{\"messages\":[{\"content\":\"a\"}],\"kwargs\":{\"continue_final_message\":true}}", "does not use \"content\""},
        {"{\"messages\":[{}]", "JSON, byte 16: expected ',' or '}'"},
        {"{\"messages\":[{\"a\":\"\\ud800\"}]}", "expected a code point"},
        {"{\"messages\":[{\"a\":01}]}", "expected a number"},
        {"", "JSON, byte 0: expected a value"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        oz_buf out = {0};
        oz_err err = {0};
        assert_int_not_equal(render(&out, "{{ messages[0].role }}", ROWS[i].request, &err), OZ_OK);
        test_contains(err.msg, ROWS[i].why);
        oz_buf_deinit(&out);
    }
}

static void an_empty_text_is_not_continued(void **state) {
    oz_buf out = {0};
    oz_err err = {0};
    assert_int_not_equal(render(&out, "{% if false %}{{ messages[0].content }}{% endif %}", "{\"messages\":[{\"content\":\"a\"}],\"kwargs\":{\"continue_final_message\":true}}", &err), OZ_OK);
    test_contains(err.msg, "does not appear in the text");
    assert_null(out.data);
}

static void text_is_appended(void **state) {
    oz_buf out = {0};
    oz_err err = {0};
    oz_buf_puts(&out, "before ");
    assert_int_equal(render(&out, "{{ messages[0].content }} {{ 12345678901234567890 + 1 }}", HELLO, &err), OZ_OK);
    assert_string_equal(out.data, "before Hello 12345678901234567891");
    assert_int_not_equal(render(&out, "abc{{ 1 / 0 }}", HELLO, &err), OZ_OK);
    assert_string_equal(out.data, "before Hello 12345678901234567891");
    oz_buf_deinit(&out);
}

static void sources_are_checked(void **state) {
    oz_template *t;
    oz_err err = {0};
    assert_int_equal(oz_template_new(&t, "a\xff", 2, &err), OZ_E_FORMAT);
    assert_null(t);
    test_contains(err.msg, "UTF-8");
    char *big = oz_alloc(2 << 20);
    memset(big, 'x', 2 << 20);
    oz_err_clear(&err);
    assert_int_equal(oz_template_new(&t, big, 2 << 20, &err), OZ_E_FORMAT);
    test_contains(err.msg, "at most 1048576 bytes");
    oz_free(big);
    oz_template_free(&t);
}

static void special_tokens_come_from_the_config(void **state) {
    json_t *config = json_pack("{s:s, s:{s:s, s:b}, s:n, s:s, s:{s:s}}", "bos_token", "<s>", "eos_token", "content", "</s>", "lstrip", 0,
                               "pad_token", "tokenizer_class", "X", "extra_special_tokens", "image_token", "<image>");
    json_t *found = oz_template_special_tokens(config),
           *want = json_pack("{s:s, s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>", "image_token", "<image>");
    assert_true(json_equal(found, want));
    json_decref(want);
    json_decref(found);
    json_decref(config);
    json_t *none = oz_template_special_tokens(NULL);
    assert_int_equal(json_object_size(none), 0);
    json_decref(none);
}

/* One template, many renderings at once. */
static void *render_often(void *arg) {
    for (int i = 0; i < 200; i++) {
        oz_buf out = {0};
        oz_err err = {0};
        oz_template_args args = {.now = 0};
        char *request = oz_asprintf("{\"messages\":[{\"role\":\"user\",\"content\":\"%d\"}]}", i), *want = oz_asprintf("<%d%d%d>", i, i, i);
        if (oz_template_render_text(&out, arg, request, strlen(request), &args, &err) != OZ_OK || strcmp(out.data, want) != 0)
            return "wrong";
        oz_buf_deinit(&out);
        oz_free(want);
        oz_free(request);
    }
    return NULL;
}

static void threads_share_a_template(void **state) {
    static const char SOURCE[] = "{% macro f(x) %}{% for i in range(3) %}{{ x }}{% endfor %}{% endmacro %}<{{ f(messages[0].content) }}>";
    oz_template *t;
    oz_err err = {0};
    pthread_t thread[4];
    void *bad;
    assert_int_equal(oz_template_new(&t, SOURCE, sizeof SOURCE - 1, &err), OZ_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
    oz_template_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases),
                                       cmocka_unit_test(cases_as_values),
                                       cmocka_unit_test(constructs),
                                       cmocka_unit_test(hostile),
                                       cmocka_unit_test(depth_is_bounded),
                                       cmocka_unit_test(work_is_bounded),
                                       cmocka_unit_test(errors_name_the_line),
                                       cmocka_unit_test(requests_are_checked),
                                       cmocka_unit_test(text_is_appended), cmocka_unit_test(an_empty_text_is_not_continued),
                                       cmocka_unit_test(sources_are_checked),
                                       cmocka_unit_test(special_tokens_come_from_the_config),
                                       cmocka_unit_test(threads_share_a_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
