/* Damaged and hostile tokenizer files: every one is refused with a message that says where; nothing leaks or grows. */
#include "tok_files.h"

static const char good[] =
    "{'version':'1.0','truncation':null,'padding':{'strategy':'BatchLongest'},"
    "'added_tokens':[{'id':5,'content':'<s>','single_word':false,'lstrip':false,'rstrip':false,'normalized':false,'special':true}],"
    "'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'}]},"
    "'pre_tokenizer':{'type':'Split','pattern':{'Regex':'x'},'behavior':'Isolated','invert':false},"
    "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},{'Sequence':{'id':'A','type_id':0}}]"
    ","
    "'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':[5],'tokens':['<s>']}}},"
    "'decoder':{'type':'ByteLevel'},"
    "'model':{'type':'BPE','dropout':null,'unk_token':null,'continuing_subword_prefix':'','end_of_word_suffix':'','fuse_unk':false,"
    "'byte_fallback':false,'ignore_merges':false,'vocab':{'a':0,'b':1,'ab':2,'abab':3,'<unk>':4},'merges':['a b',['ab','ab']]}}";

/* `from` replaced by `to` once, ' by ". */
static char *edited(const char *from, const char *to) {
    const char *at = strstr(good, from);
    if (!at) fail_msg("nothing like %s to replace", from);
    char *s = oz_asprintf("%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    return s;
}

static oz_status load(oz_tok **t, const char *from, const char *to, oz_err *err) {
    char *text = edited(from, to);
    json_t *v;
    if (oz_json_parse(&v, text, strlen(text), "edited", err) != OZ_OK) fail_msg("%s", err->msg);
    oz_status st = oz_tok_new(t, v, NULL, err);
    json_decref(v);
    oz_free(text);
    return st;
}

static void a_small_file_works(void **state) {
    oz_tok *t;
    oz_err err = {0};
    if (load(&t, "", "", &err) != OZ_OK) fail_msg("%s", err.msg);
    oz_ids ids = tok_encode(t, "abab<s>xabz", 11, true);
    char *shown = tok_show(&ids);
    assert_string_equal(shown, "5 3 5 2"); /* x and z are not in the vocabulary, and there is no unknown token */
    oz_free(shown);
    oz_free(ids.data);
    assert_int_equal(oz_tok_vocab_size(t), 6);
    oz_tok_free(&t);
}

static void unknown_characters_become_the_unknown_token(void **state) {
    oz_tok *t;
    oz_err err = {0};
    if (load(&t, "'unk_token':null", "'unk_token':'<unk>'", &err) != OZ_OK) fail_msg("%s", err.msg);
    oz_ids ids = tok_encode(t, "azza", 4, false);
    char *shown = tok_show(&ids);
    assert_string_equal(shown, "0 4 4 0");
    oz_free(shown);
    oz_free(ids.data);
    oz_tok_free(&t);
}

static void each_damage_is_named(void **state) {
    static const struct {
        const char *from, *to, *error;
    } cases[] = {
        {"'version':'1.0'", "'version':'2.0'", "version: must be \"1.0\""},
        {"'version'", "'flavour'", "flavour: not supported"},
        {"'truncation':null", "'truncation':3", "truncation: must be an object or null, found 3"},
        {"{'type':'NFC'}", "{'type':'Nfc'}", "normalizer.normalizers[0].type: \"Nfc\" is not supported"},
        {"{'type':'NFC'}", "{'type':'NFC','x':1}", "normalizer.normalizers[0].x: not supported"},
        {"{'type':'NFC'}", "7", "normalizer.normalizers[0]: must be an object, found 7"},
        {"'type':'NFC'", "'type':null", "normalizer.normalizers[0].type: must be a string"},
        {"[{'type':'NFC'}]", "{}", "normalizer.normalizers: must be an array"},
        {"'behavior':'Isolated'", "'behavior':'Glued'", "pre_tokenizer.behavior: must be Isolated, Removed"},
        {"{'Regex':'x'}", "{'Regex':'('}", "pre_tokenizer.pattern: a group without an end"},
        {"{'Regex':'x'}", "{'Regex':5}", "pre_tokenizer.pattern: must be {\"Regex\""},
        {"{'Regex':'x'}", "{'Regex':'x','String':'x'}", "pre_tokenizer.pattern: must be {\"Regex\""},
        {"'type':'Split'", "'type':'Cut'", "pre_tokenizer.type: \"Cut\" is not supported"},
        {"'invert':false", "'invert':0", "pre_tokenizer.invert: must be true or false, found 0"},
        {"'id':5,'content'", "'id':-1,'content'", "added_tokens[0]: the id of \"<s>\" must be 0..2097151, found -1"},
        {"'id':5,'content'", "'id':999999999999,'content'", "must be 0..2097151, found 999999999999"},
        {"'id':5,'content'", "'id':1,'content'", "added_tokens[0]: id 1 of \"<s>\" is already that of \"b\""},
        {"'id':5,'content'", "'id':5.5,'content'", "added_tokens[0].id: must be an integer, found 5.5"},
        {"'content':'<s>'", "'content':'ab'", "added_tokens[0]: \"ab\" has id 5 here and id 2 before"},
        {"'content':'<s>'", "'content':[]", "added_tokens[0].content: must be a string"},
        {"'special':true}]", "'special':1}]", "added_tokens[0].special: must be true or false"},
        {"'model':{'type':'BPE'", "'model':{'type':'Words'", "model.type: \"Words\" is not supported"},
        {"'dropout':null", "'dropout':0.1", "model.dropout: must be"},
        {"'continuing_subword_prefix':''", "'continuing_subword_prefix':'##'",
         "model.merges[0]: its right side must be longer than \"##\""},
        {"'end_of_word_suffix':''", "'end_of_word_suffix':7", "model.end_of_word_suffix: must be a string without NUL, found 7"},
        {"'b':1", "'b':0", "model.vocab: id 0 of \"b\" is already that of \"a\""},
        {"'b':1", "'b':4294967296", "model.vocab: the id of \"b\" must be 0..2097151"},
        {"'b':1", "'b':'1'", "model.vocab: the id of \"b\" must be an integer"},
        {"{'a':0,'b':1,'ab':2,'abab':3,'<unk>':4}", "[]", "model.vocab: must be an object"},
        {"'a b'", "'a c'", "model.merges[0]: \"c\" is not in model.vocab"},
        {"'a b'", "'b a'", "model.merges[0]: \"ba\" is not in model.vocab"},
        {"'a b'", "'ab'", "model.merges[0]: must be two tokens with one space between, found \"ab\""},
        {"'a b'", "'a b c'", "model.merges[0]: must be two tokens"},
        {"['ab','ab']", "['ab']", "model.merges[1]: must be \"a b\" or [\"a\", \"b\"], found [\"ab\"]"},
        {"['ab','ab']", "['ab',3]", "model.merges[1]: must be"},
        {"'merges':[", "'merges':{},'x':[", "model.x: not supported"},
        {"'ids':[5]", "'ids':[77]", "post_processor.single[0].SpecialToken.id: the ids of \"<s>\" must be in the vocabulary, found 77"},
        {"'ids':[5]", "'ids':5", "post_processor.single[0].SpecialToken.id: must name one of post_processor.special_tokens"},
        {"{'Sequence':{'id':'A','type_id':0}}", "{'Sequence':{'id':'B','type_id':0}}",
         "post_processor.single[1].Sequence.id: must be A, once"},
        {",{'Sequence':{'id':'A','type_id':0}}", "", "post_processor.single: has no Sequence A"},
        {"'decoder':{'type':'ByteLevel'}", "'decoder':{'type':'Glue'}", "decoder.type: \"Glue\" is not supported"},
        {"'decoder':{'type':'ByteLevel'}",
         "'decoder':{'type':'Sequence','decoders':[{'type':'Strip','content':' ','start':1,'stop':0},{'type':'Strip','content':'ab'}]}",
         "decoder.decoders[1].content: must be one character, found \"ab\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_tok *t = NULL;
        oz_err err = {0};
        if (load(&t, cases[i].from, cases[i].to, &err) == OZ_OK) fail_msg("%s was taken", cases[i].to);
        if (!strstr(err.msg, cases[i].error)) fail_msg("%s: found \"%s\", expected \"%s\"", cases[i].to, err.msg, cases[i].error);
        assert_null(t);
    }
}

static void a_root_that_is_no_object_is_an_error(void **state) {
    json_t *v = json_array();
    oz_tok *t = NULL;
    oz_err err = {0};
    assert_int_not_equal(oz_tok_new(&t, v, NULL, &err), OZ_OK);
    test_contains(err.msg, "must be an object, found []");
    json_decref(v);
}

/* A list of many items must not make the tables, the time or the messages grow without bound. */
static void long_lists_are_bounded(void **state) {
    oz_buf many = {0};
    oz_tok *t = NULL;
    oz_err err = {0};
    oz_buf_puts(&many, "'normalizers':[{'type':'NFC'}");
    for (int i = 0; i < 100; i++) oz_buf_puts(&many, ",{'type':'NFC'}");
    oz_buf_puts(&many, "]");
    assert_int_not_equal(load(&t, "'normalizers':[{'type':'NFC'}]", many.data, &err), OZ_OK);
    test_contains(err.msg, "more than 64 normalizers");
    oz_buf_clear(&many);
    oz_err_clear(&err);
    for (int i = 0; i < 2000; i++) oz_buf_puts(&many, "{'SpecialToken':{'id':'<s>','type_id':0}},");
    oz_buf_puts(&many, "{'Sequence'");
    assert_int_not_equal(load(&t, "{'Sequence'", many.data, &err), OZ_OK);
    test_contains(err.msg, "a template of more than 1024 ids");
    oz_buf_clear(&many);
    oz_err_clear(&err);
    oz_buf_puts(&many, "'post_processor':{'type':'Sequence','processors':[");
    for (int i = 0; i < 2000; i++) oz_buf_puts(&many, "{'type':'BertProcessing','cls':['a',0],'sep':['b',1]},");
    oz_buf_puts(&many, "{'type':'ByteLevel'}]}");
    assert_int_not_equal(
        load(&t,
             "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},"
             "{'Sequence':{'id':'A','type_id':0}}],'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':[5],'tokens':['<s>']}}}",
             many.data, &err),
        OZ_OK);
    test_contains(err.msg, "more than 1024 ids put before or behind a text");
    oz_buf_clear(&many);
    oz_err_clear(&err);
    oz_buf_puts(&many, "{'Regex':'");
    for (int i = 0; i < 20000; i++) oz_buf_puts(&many, "x");
    oz_buf_puts(&many, "'}");
    assert_int_not_equal(load(&t, "{'Regex':'x'}", many.data, &err), OZ_OK);
    test_contains(err.msg, "must be at most 16384 bytes");
    oz_buf_deinit(&many);
}

static void special_ids_come_from_the_config(void **state) {
    static const struct {
        const char *config;
        int32_t bos;
        const char *error;
    } cases[] = {
        {"{\"bos_token\":\"<s>\"}", 5, NULL},
        {"{\"bos_token\":{\"content\":\"<s>\",\"lstrip\":false}}", 5, NULL},
        {"{\"bos_token\":null}", -1, NULL},
        {"{\"bos_token\":\"<nope>\"}", -1, "bos_token: \"<nope>\" is not in the vocabulary"},
        {"{\"bos_token\":7}", -1, "bos_token: must be a string"},
    };
    char *text = edited("", "");
    json_t *tokenizer, *config;
    oz_err err = {0};
    assert_int_equal(oz_json_parse(&tokenizer, text, strlen(text), "t", &err), OZ_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oz_tok *t = NULL;
        assert_int_equal(oz_json_parse(&config, cases[i].config, strlen(cases[i].config), "c", &err), OZ_OK);
        oz_status st = oz_tok_new(&t, tokenizer, config, &err);
        if (cases[i].error)
            test_contains(err.msg, cases[i].error);
        else {
            assert_int_equal(st, OZ_OK);
            assert_int_equal(oz_tok_bos(t), cases[i].bos);
            assert_int_equal(oz_tok_adds_bos(t), cases[i].bos == 5);
        }
        oz_err_clear(&err);
        oz_tok_free(&t);
        json_decref(config);
    }
    json_decref(tokenizer);
    oz_free(text);
}

/* Every value of a real file replaced by other types, one after the other: refused with a message, or taken. */
static int changed, refused;

static void try_value(json_t *root, const char *text) {
    oz_tok *t = NULL;
    oz_err err = {0};
    if (oz_tok_new(&t, root, NULL, &err) != OZ_OK) {
        refused++;
        if (!err.msg[0]) fail_msg("refused without a reason");
    } else {
        oz_ids ids = {0};
        oz_buf back = {0};
        if (oz_tok_encode(&ids, t, text, strlen(text), true, &err) != OZ_OK && !err.msg[0]) fail_msg("failed without a reason");
        if (oz_tok_decode(&back, t, ids.data, ids.len, false, &err) != OZ_OK && !err.msg[0]) fail_msg("failed without a reason");
        oz_free(ids.data);
        oz_buf_deinit(&back);
    }
    oz_tok_free(&t);
    changed++;
}

static void replace_in(json_t *root, json_t *v, int depth) {
    static const char *const others[] = {
        "null", "true", "-1", "1e300", "\"x\"", "[]", "{}", "9223372036854775807", "[[]]", "{\"type\":\"Sequence\"}"};
    const char *key;
    void *next;
    json_t *member;
    json_object_foreach_safe(v, next, key, member) {
        json_incref(member);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            json_object_set_new(v, key, json_loads(others[i], JSON_DECODE_ANY, NULL));
            try_value(root, "a<s>b x");
        }
        json_object_set(v, key, member);
        if (depth < 8) replace_in(root, member, depth + 1);
        json_decref(member);
    }
    for (size_t k = 0; k < json_array_size(v); k++) {
        member = json_incref(json_array_get(v, k));
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            json_array_set_new(v, k, json_loads(others[i], JSON_DECODE_ANY, NULL));
            try_value(root, "a<s>b x");
        }
        json_array_set(v, k, member);
        if (depth < 8) replace_in(root, member, depth + 1);
        json_decref(member);
    }
}

static void any_value_may_be_of_any_type(void **state) {
    char *text = edited("", "");
    json_t *root;
    oz_err err = {0};
    assert_int_equal(oz_json_parse(&root, text, strlen(text), "t", &err), OZ_OK);
    replace_in(root, root, 0);
    assert_true(changed > 500 && refused > changed / 2);
    json_decref(root);
    oz_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_file_works),           cmocka_unit_test(unknown_characters_become_the_unknown_token),
        cmocka_unit_test(each_damage_is_named),         cmocka_unit_test(a_root_that_is_no_object_is_an_error),
        cmocka_unit_test(long_lists_are_bounded),       cmocka_unit_test(special_ids_come_from_the_config),
        cmocka_unit_test(any_value_may_be_of_any_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
