/* Errors: a negative status plus a caller-owned message. The first error wins; an oz_err is filled once, printf-style.
 * A message names the thing, what was expected and what was found, and where (house rules in ARCHITECTURE.md). */
#ifndef OZ_BASE_ERR_H
#define OZ_BASE_ERR_H

typedef enum oz_status {
    OZ_OK = 0,
    OZ_E_IO = -1,          /* the operating system refused: the message carries strerror */
    OZ_E_FORMAT = -2,      /* a file or a request is not what its format says */
    OZ_E_ARG = -3,         /* an option or an argument of the caller */
    OZ_E_NOMEM = -4,       /* memory sized by the user's input could not be had */
    OZ_E_UNSUPPORTED = -5, /* legal, and not run here; names module and scheme */
    OZ_E_NOT_FOUND = -6,
    OZ_E_INTERRUPTED = -7, /* SIGINT, see oz_interrupted() */
    OZ_E_USAGE = -8        /* the command line: exit status 2 */
} oz_status;

typedef struct oz_err {
    oz_status code;
    int line;         /* where in our source the error was made */
    const char *file;
    char msg[1024];
} oz_err;

/* Fills *err unless it already holds an error; err may be NULL. Returns code. */
oz_status oz_err_set(oz_err *err, oz_status code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Puts "prefix: " in front of the message that err holds. Returns err's code; without err OZ_E_FORMAT. */
oz_status oz_err_prefix(oz_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void oz_err_clear(oz_err *err);

/* The three macros. All of them return from the function: where a function owns more than one thing, it tests by hand
 * (`if ((st = f(..., err)) != OZ_OK) goto fail;`) and has one `fail:` label. */
#define OZ_FAIL(err, code, ...) return oz_err_set((err), (code), __FILE__, __LINE__, __VA_ARGS__)
#define OZ_TRY(expr)                             \
    do {                                         \
        oz_status oz_try_ = (expr);              \
        if (oz_try_ != OZ_OK) return oz_try_;    \
    } while (0)
#define OZ_NEED(cond, err, code, ...)                                                           \
    do {                                                                                        \
        if (!(cond)) return oz_err_set((err), (code), __FILE__, __LINE__, __VA_ARGS__);         \
    } while (0)

#endif
