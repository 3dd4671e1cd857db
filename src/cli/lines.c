/* Commands that answer JSON lines, and the tokenizer that they need. */
#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

oz_status oz_cli_tok_from(oz_tok **out, const char *path, oz_err *err) {
    oz_text_files files;
    OZ_TRY(oz_cli_of_model(oz_text_files_open(&files, path, err), path, err));
    oz_status st = oz_cli_tok_open(out, &files, path, err);
    oz_text_files_close(&files);
    return st;
}

static void print(json_t *answer, const oz_err *why) {
    if (!answer) answer = json_pack("{s:o}", "error", oz_json_text(why->msg));
    json_dumpf(answer, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(answer);
}

static bool is_blank(const char *s, size_t n) { return strspn(s, " \t\r\n") >= n; }

oz_status oz_cli_lines(oz_cli_answer *answer, void *self, oz_err *err) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while (!oz_interrupted() && (n = getline(&line, &cap, stdin)) >= 0) {
        if (is_blank(line, (size_t)n)) continue;
        oz_err why = {0};
        json_t *in, *out = NULL;
        if (oz_json_parse_line(&in, line, (size_t)n, "the line", &why) == OZ_OK) out = answer(self, in, (oz_slice){line, (size_t)n}, &why);
        json_decref(in);
        print(out, &why);
        if (ferror(stdout)) break; /* main says so */
    }
    free(line);
    if (oz_interrupted()) OZ_FAIL(err, OZ_E_INTERRUPTED, "interrupted");
    OZ_NEED(!ferror(stdin), err, OZ_E_IO, "stdin: %s", strerror(errno));
    return OZ_OK;
}
