/* ounce detokenize MODEL: ids on stdin to text on stdout. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool keep_special, jsonl, stream;

static const oz_opt opts[] = {
    {"keep-special", 0, OZ_OPT_FLAG, &keep_special, 0, 0, NULL, NULL, "print special tokens too"},
    {"jsonl", 0, OZ_OPT_FLAG, &jsonl, 0, 0, NULL, NULL, "a line {\"ids\": [...]} in, a line {\"text\": ...} out"},
    {"stream", 0, OZ_OPT_FLAG, &stream, 0, 0, NULL, NULL, "{\"deltas\": [...]}: what each id adds to the text, and one more for the end"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "detokenize",
    .usage = "MODEL [--keep-special] [--jsonl] [--stream] < IDS",
    .summary = "token ids to text",
    .details = "The whole input is one sequence of decimal ids, separated by white space; its text is printed as it is. Ids outside the "
               "vocabulary are passed over. With --jsonl a line that fails is answered by {\"error\": ...}, and the run goes on.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) { return &cmd; }

static json_t *string_of(const oz_buf *b) { return json_stringn(b->data ? b->data : "", b->len); }

static json_t *deltas(const oz_tok *t, const oz_ids *ids) {
    json_t *list = json_array();
    oz_buf delta = {0};
    oz_detok d;
    oz_detok_init(&d, t, !keep_special);
    for (size_t i = 0; i <= ids->len; i++) {
        oz_buf_clear(&delta);
        if (i < ids->len)
            oz_detok_push(&delta, &d, ids->data[i]);
        else
            oz_detok_flush(&delta, &d);
        json_array_append_new(list, string_of(&delta));
    }
    oz_buf_deinit(&delta);
    return json_pack("{s:o}", "deltas", list);
}

static json_t *text_of(const oz_tok *t, const oz_ids *ids, oz_err *err) {
    oz_buf text = {0};
    json_t *out = NULL;
    if (oz_tok_decode(&text, t, ids->data, ids->len, !keep_special, err) == OZ_OK) out = json_pack("{s:o}", "text", string_of(&text));
    oz_buf_deinit(&text);
    return out;
}

/* What no int32 can hold is outside every vocabulary. */
static void push(oz_ids *ids, long long id) {
    oz_grow((void **)&ids->data, &ids->cap, ids->len + 1, sizeof *ids->data);
    ids->data[ids->len++] = id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static json_t *answer(void *self, const json_t *in, oz_slice line, oz_err *err) {
    const json_t *list = json_object_get(in, "ids");
    oz_ids ids = {0};
    json_t *out = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id)) {
            oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "ids[%zu]: must be an integer, found %s", i, oz_json_show(id));
            break;
        }
        push(&ids, json_integer_value(id));
    }
    if (!json_is_array(list))
        oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "ids: must be an array, found %s", oz_json_show(list));
    else if (ids.len == json_array_size(list))
        out = stream ? deltas(self, &ids) : text_of(self, &ids, err);
    oz_free(ids.data);
    return out;
}

static oz_status ids_read(oz_ids *ids, const oz_buf *in, oz_err *err) {
    static const char space[] = " \t\r\n";
    const char *p = in->data, *end = p + in->len;
    for (p += strspn(p, space); p < end; p += strspn(p, space)) {
        char *next;
        errno = 0;
        long long id = strtoll(p, &next, 10);
        if (errno) id = -1;
        const size_t n = strcspn(p, space);
        OZ_NEED(next != p && (next == end || (*next && strchr(space, *next))), err, OZ_E_FORMAT,
                "stdin: byte %td: expected a decimal id, found \"%.*s\"", p - in->data, n < 20 ? (int)n : 20, p);
        push(ids, id);
        p = next;
    }
    return OZ_OK;
}

static oz_status print(const oz_tok *t, const oz_ids *ids, oz_err *err) {
    if (stream || oz_cli_common.json) {
        json_t *doc = stream ? deltas(t, ids) : text_of(t, ids, err);
        if (!doc) return err->code;
        json_dumpf(doc, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        json_decref(doc);
        return OZ_OK;
    }
    oz_buf text = {0};
    oz_status st = oz_tok_decode(&text, t, ids->data, ids->len, !keep_special, err);
    if (st == OZ_OK && text.len) fwrite(text.data, 1, text.len, stdout);
    oz_buf_deinit(&text);
    return st;
}

static oz_status whole(const oz_tok *t, oz_err *err) {
    oz_buf in = {0};
    oz_ids ids = {0};
    oz_status st = oz_file_read(&in, "-", OZ_CLI_MAX_TEXT, err);
    if (st == OZ_OK && in.len) st = ids_read(&ids, &in, err);
    if (st == OZ_OK) st = print(t, &ids, err);
    oz_buf_deinit(&in);
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

const oz_cmd oz_cmd_detokenize = {"detokenize", describe, run, false};
