/* Byte strings: a growing buffer, a non-owning slice, and UTF-8 stepping. */
#ifndef OZ_BASE_STR_H
#define OZ_BASE_STR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct oz_buf { char *data; size_t len, cap; } oz_buf; /* data is NUL-terminated once anything was appended */
void oz_buf_deinit(oz_buf *b);
void oz_buf_append(oz_buf *b, const void *p, size_t n);
void oz_buf_puts(oz_buf *b, const char *s);
void oz_buf_putc(oz_buf *b, char c);
void oz_buf_printf(oz_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void oz_buf_put_utf8(oz_buf *b, uint32_t cp);
/* Of a text out of files and from servers, which is not to speak to a terminal: control characters, what turns the direction of writing, and what is not UTF-8 as \xNN. */
void oz_buf_put_safe(oz_buf *b, const char *s, size_t n);
void oz_buf_clear(oz_buf *b);

typedef struct oz_slice { const char *p; size_t n; } oz_slice;
oz_slice oz_slice_view(const char *cstr);
bool oz_slice_eq(oz_slice a, oz_slice b);

bool oz_str_starts(const char *s, const char *prefix);
bool oz_str_ends(const char *s, const char *suffix);
size_t oz_str_distance(const char *a, const char *b); /* edits between two names, for "did you mean" */

/* Decodes one code point of p[0..n), n > 0. Returns its length 1..4 and stores it; for an ill-formed sequence stores
 * U+FFFD, returns the length of the maximal ill-formed part (Unicode 16, table 3-7) and sets *ok (if given) to false. */
size_t oz_utf8_next(const char *p, size_t n, uint32_t *cp, bool *ok);
size_t oz_utf8_encode(char out[4], uint32_t cp);
/* How many bytes at the end of p[0..n) are the beginning of a character that is not complete yet (0..3). */
size_t oz_utf8_tail(const char *p, size_t n);
size_t oz_utf8_run(const char *p, size_t n); /* how many bytes are whole characters from the beginning on */
bool oz_utf8_valid(const char *p, size_t n);

#endif
