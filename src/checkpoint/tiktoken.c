/* tiktoken's ranks: a line a token, its bytes in base64 and its number. */
#include "base/base64.h"
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <string.h>

/* Byte-level vocabularies spell a byte as a printable character: itself where it is one, else the next after U+00FF. */
static uint32_t byte_char(uint8_t byte) {
    uint32_t n = 0;
    for (unsigned b = 0; b < 256; b++) {
        const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        if (b == byte) return printable ? b : 256 + n;
        n += !printable;
    }
    return 0;
}

/* The line at *p, which is moved behind it: text in base64, and rank. False: it is no such line. */
static bool line_next(const char **p, const char *end, oz_slice *text, uint64_t *rank) {
    const char *line = *p, *newline = memchr(line, '\n', (size_t)(end - line)), *stop = newline ? newline : end;
    const char *space = memchr(line, ' ', (size_t)(stop - line));
    *p = newline ? newline + 1 : end;
    if (!space || space == line) return false;
    *text = (oz_slice){line, (size_t)(space - line)};
    if (stop > space + 1 && stop[-1] == '\r') stop--;
    *rank = 0;
    for (const char *c = space + 1; c < stop; c++) {
        if (*c < '0' || *c > '9' || *rank > OZ_TOKENS_MAX) return false;
        *rank = *rank * 10 + (uint64_t)(*c - '0');
    }
    return stop > space + 1;
}

bool oz_is_tiktoken(oz_slice file) {
    oz_slice text;
    uint64_t rank;
    oz_buf bytes = {0};
    const char *p = file.p;
    const bool is = line_next(&p, file.p + (file.n < 4096 ? file.n : 4096), &text, &rank) && oz_base64_decode(&bytes, text.p, text.n);
    oz_buf_deinit(&bytes);
    return is;
}

static oz_status token_read(oz_tokens *t, uint64_t rank, oz_slice base64, size_t line, oz_buf *bytes, oz_buf *spelled, oz_err *err) {
    oz_buf_clear(bytes);
    oz_buf_clear(spelled);
    OZ_NEED(oz_base64_decode(bytes, base64.p, base64.n) && bytes->len, err, OZ_E_FORMAT, "%s: line %zu: expected base64, found %.*s", t->where, line,
            (int)(base64.n < 80 ? base64.n : 80), base64.p);
    OZ_NEED(t->type[rank] == OZ_TOKEN_UNUSED, err, OZ_E_FORMAT, "%s: line %zu: the rank %" PRIu64 " is there twice", t->where, line, rank);
    for (size_t i = 0; i < bytes->len; i++) oz_buf_put_utf8(spelled, byte_char((uint8_t)bytes->data[i]));
    t->text[rank] = (oz_slice){oz_arena_strndup(t->arena, spelled->data, spelled->len), spelled->len};
    t->type[rank] = OZ_TOKEN_NORMAL;
    return OZ_OK;
}

oz_status oz_tiktoken_read(oz_tokens *t, oz_slice file, const char *where, oz_err *err) {
    const char *p = file.p, *end = file.p + file.n;
    oz_slice text;
    uint64_t rank, n = 0;
    *t = (oz_tokens){0};
    for (size_t line = 1; p < end; line++) {
        OZ_NEED(line_next(&p, end, &text, &rank) && rank < OZ_TOKENS_MAX, err, OZ_E_FORMAT, "%s: line %zu: expected base64, a space and a number below %d", where, line, OZ_TOKENS_MAX);
        if (rank >= n) n = rank + 1;
    }
    OZ_TRY(oz_tokens_new(t, n, where, err));
    memset(t->type, OZ_TOKEN_UNUSED, n);
    oz_buf bytes = {0}, spelled = {0};
    oz_status st = OZ_OK;
    p = file.p;
    for (size_t line = 1; p < end && st == OZ_OK; line++) {
        line_next(&p, end, &text, &rank);
        st = token_read(t, rank, text, line, &bytes, &spelled, err);
    }
    oz_buf_deinit(&bytes);
    oz_buf_deinit(&spelled);
    return st;
}
