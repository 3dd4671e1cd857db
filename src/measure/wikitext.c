/* WikiText's detokenizer, in the order of lm-evaluation-harness' task: literal replacements, then brackets and quotes tightened, then
 * headings and white space. Each step rewrites the whole text. */
#include <string.h>
#include "measure/measure.h"

static void replace(oz_buf *b, const char *from, const char *to) {
    const size_t nf = strlen(from), nt = strlen(to);
    oz_buf out = {0};
    const char *p = b->data, *end = b->data + b->len, *hit;
    while (p < end && (hit = memmem(p, (size_t)(end - p), from, nf))) {
        oz_buf_append(&out, p, (size_t)(hit - p));
        oz_buf_append(&out, to, nt);
        p = hit + nf;
    }
    if (p < end) oz_buf_append(&out, p, (size_t)(end - p));
    oz_buf_deinit(b);
    *b = out;
}

static bool blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* open \s* ([^close]*?) \s* close  ->  open \1 close, leftmost, non-overlapping; the inside may not hold `close`. */
static void tighten(oz_buf *b, char open, char close) {
    oz_buf out = {0};
    size_t i = 0;
    while (i < b->len) {
        const char *c = b->data[i] == open ? memchr(b->data + i + 1, close, b->len - i - 1) : NULL;
        if (!c) {
            oz_buf_putc(&out, b->data[i++]);
            continue;
        }
        size_t first = i + 1, last = (size_t)(c - b->data);
        while (first < last && blank(b->data[first])) first++;
        while (last > first && blank(b->data[last - 1])) last--;
        oz_buf_putc(&out, open);
        oz_buf_append(&out, b->data + first, last - first);
        oz_buf_putc(&out, close);
        i = (size_t)(c - b->data) + 1;
    }
    oz_buf_deinit(b);
    *b = out;
}

void oz_wikitext_detokenize(oz_buf *out, const char *page, size_t n) {
    static const char *const first[][2] = {{"s '", "s'"},    {" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "},
                                           {" ; ", "; "},    {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
    static const char brackets[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
    static const char *const last[][2] = {{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},   {" \xc2\xb0 ", "\xc2\xb0"},
                                          {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"}};
    oz_buf b = {0};
    oz_buf_append(&b, page, n);
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) replace(&b, first[i][0], first[i][1]);
    for (size_t i = 0; i < sizeof brackets / sizeof *brackets; i++) tighten(&b, brackets[i][0], brackets[i][1]);
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) replace(&b, last[i][0], last[i][1]);
    oz_buf_append(out, b.data ? b.data : "", b.len);
    oz_buf_deinit(&b);
}
