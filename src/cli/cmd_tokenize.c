/* ounce tokenize MODEL: text on stdin to ids on stdout. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include <stdio.h>

static bool special, jsonl;

static const oz_opt opts[] = {
    {"special", 0, OZ_OPT_FLAG, &special, 0, 0, NULL, NULL, "add what the tokenizer's post-processor adds"},
    {"jsonl", 0, OZ_OPT_FLAG, &jsonl, 0, 0, NULL, NULL, "a line {\"text\": ...} in, a line {\"ids\": [...]} out"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "tokenize",
    .usage = "MODEL [--special] [--jsonl] < TEXT",
    .summary = "text to token ids",
    .details = "The whole input is one text; its ids are printed on one line, separated by spaces. Special tokens written in the text are "
               "recognised. With --jsonl a line that fails is answered by {\"error\": ...}, and the run goes on.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) { return &cmd; }

static json_t *to_json(const oz_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->len; i++) json_array_append_new(list, json_integer(ids->data[i]));
    return json_pack("{s:o}", "ids", list);
}

static json_t *answer(void *self, const json_t *in, oz_slice line, oz_err *err) {
    const json_t *v = json_object_get(in, "text");
    if (!json_is_string(v)) {
        oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "text: must be a string, found %s", oz_json_show(v));
        return NULL;
    }
    oz_ids ids = {0};
    json_t *out = NULL;
    if (oz_tok_encode(&ids, self, json_string_value(v), json_string_length(v), special, err) == OZ_OK) out = to_json(&ids);
    oz_free(ids.data);
    return out;
}

static void print(const oz_ids *ids) {
    if (oz_cli_common.json) {
        json_t *doc = to_json(ids);
        json_dumpf(doc, stdout, JSON_COMPACT);
        json_decref(doc);
    }
    for (size_t i = 0; i < ids->len && !oz_cli_common.json; i++) printf("%s%d", i ? " " : "", ids->data[i]);
    putchar('\n');
}

static oz_status whole(const oz_tok *t, oz_err *err) {
    oz_buf text = {0};
    oz_ids ids = {0};
    oz_status st = oz_file_read(&text, "-", OZ_CLI_MAX_TEXT, err);
    if (st == OZ_OK) st = oz_tok_encode(&ids, t, text.data ? text.data : "", text.len, special, err);
    if (st == OZ_OK) print(&ids);
    oz_buf_deinit(&text);
    oz_free(ids.data);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    oz_tok *t = NULL;
    OZ_TRY(oz_cli_tok_from(&t, args[0], err));
    oz_status st = jsonl ? oz_cli_lines(answer, t, err) : whole(t, err);
    oz_tok_free(&t);
    return st;
}

const oz_cmd oz_cmd_tokenize = {"tokenize", describe, run, false};
