/* ounce template: messages on stdin to the prompt that a chat template makes of them. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static bool jsonl, generation;

static const oz_opt opts[] = {
    {"jsonl", 0, OZ_OPT_FLAG, &jsonl, 0, 0, NULL, NULL,
     "a line {\"template\", \"messages\", ...} in, a line {\"text\": ...} out; no MODEL"},
    {"add-generation-prompt", 0, OZ_OPT_FLAG, &generation, 0, 0, NULL, NULL, "end with the beginning of the assistant's answer"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "template",
    .usage = "MODEL [--add-generation-prompt] < MESSAGES, or --jsonl < LINES",
    .summary = "messages to prompt text",
    .details =
        "MESSAGES is a JSON list of messages, or an object with messages, tools (a list of JSON schemas), kwargs (variables of the "
        "template, "
        "with add_generation_prompt, continue_final_message and documents among them) and special_tokens. With --jsonl each line is such "
        "an object with the template too, and now, the local time that strftime_now formats (\"2026-03-07T09:05:03\"); a line that fails "
        "is "
        "answered by {\"error\": ...}, and the run goes on.",
    .tables = tables,
    .min_args = 0,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) { return &cmd; }

/* Local time to what oz_template_args.now counts; -1 where none is given. */
static oz_status read_now(int64_t *out, const json_t *in, oz_err *err) {
    const char *s = NULL;
    struct tm tm = {0};
    int end = 0;
    *out = -1;
    OZ_TRY(oz_json_str(&s, in, "", "now", err));
    if (!s) return OZ_OK;
    int n = sscanf(s, "%4d-%2d-%2dT%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &end);
    OZ_NEED(n == 6 && tm.tm_year >= 1970 && (!s[end] || s[end] == '.'), err, OZ_E_FORMAT,
            "now: expected a time like 2026-03-07T09:05:03, found \"%s\"", s);
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *out = timegm(&tm);
    return OZ_OK;
}

static oz_status render_line(oz_buf *out, const json_t *in, oz_slice line, oz_err *err) {
    const json_t *source = json_object_get(in, "template");
    oz_template_args args = {0};
    oz_template *t = NULL;
    OZ_NEED(json_is_string(source), err, OZ_E_FORMAT, "template: must be a string, found %s", oz_json_show(source));
    OZ_TRY(read_now(&args.now, in, err));
    OZ_TRY(oz_template_new(&t, json_string_value(source), json_string_length(source), err));
    oz_status st = oz_template_render_text(out, t, line.p, line.n, &args, err);
    oz_template_free(&t);
    return st;
}

static json_t *to_json(const oz_buf *text) { return json_pack("{s:o}", "text", json_stringn(text->data ? text->data : "", text->len)); }

static json_t *answer(void *self, const json_t *in, oz_slice line, oz_err *err) {
    oz_buf text = {0};
    json_t *out = render_line(&text, in, line, err) == OZ_OK ? to_json(&text) : NULL;
    oz_buf_deinit(&text);
    return out;
}

/* stdin as an object: a bare list is its messages. */
static oz_status read_request(oz_buf *out, oz_err *err) {
    oz_buf text = {0};
    json_t *in = NULL;
    oz_status st = oz_file_read(&text, "-", OZ_CLI_MAX_TEXT, err);
    if (st == OZ_OK) st = oz_json_parse(&in, text.data, text.len, "stdin", err);
    if (st == OZ_OK && json_is_array(in)) {
        oz_buf_puts(out, "{\"messages\":");
        oz_buf_append(out, text.data, text.len);
        oz_buf_putc(out, '}');
    } else if (st == OZ_OK)
        oz_buf_append(out, text.data, text.len);
    json_decref(in);
    oz_buf_deinit(&text);
    return st;
}

static void print(const oz_buf *text) {
    if (oz_cli_common.json)
        oz_cli_json_print(to_json(text));
    else
        fwrite(text->data, 1, text->len, stdout);
}

static oz_status with_model(const char *path, oz_err *err) {
    oz_text_files files;
    oz_template *t = NULL;
    oz_buf request = {0}, text = {0};
    OZ_TRY(oz_cli_of_model(oz_text_files_open(&files, path, err), path, err));
    json_t *kwargs = json_pack("{s:b}", "add_generation_prompt", generation), *special = oz_template_special_tokens(files.tokenizer_config);
    oz_template_args args = {.kwargs = kwargs, .special_tokens = special, .now = -1};
    oz_status st = OZ_OK;
    if (!files.chat_template) st = oz_err_set(err, OZ_E_NOT_FOUND, __FILE__, __LINE__, "%s: the model has no chat template", path);
    if (st == OZ_OK) st = oz_cli_of_model(oz_template_new(&t, files.chat_template, strlen(files.chat_template), err), path, err);
    if (st == OZ_OK) st = read_request(&request, err);
    if (st == OZ_OK) st = oz_template_render_text(&text, t, request.data, request.len, &args, err);
    if (st == OZ_OK) print(&text);
    oz_buf_deinit(&text);
    oz_buf_deinit(&request);
    oz_template_free(&t);
    json_decref(special);
    json_decref(kwargs);
    oz_text_files_close(&files);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    OZ_NEED(jsonl == (n_args == 0), err, OZ_E_USAGE,
            jsonl ? "--jsonl takes no MODEL: the template is in each line" : "template: an argument is missing: MODEL, or --jsonl");
    return jsonl ? oz_cli_lines(answer, NULL, err) : with_model(args[0], err);
}

const oz_cmd oz_cmd_template = {"template", describe, run, false};
