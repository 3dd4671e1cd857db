#include "base/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

oz_status oz_err_set(oz_err *err, oz_status code, const char *file, int line, const char *fmt, ...) {
    if (err && err->code == OZ_OK) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        err->code = code;
        err->file = file;
        err->line = line;
    }
    return code;
}

oz_status oz_err_prefix(oz_err *err, const char *fmt, ...) {
    if (!err) return OZ_E_FORMAT; /* nobody kept the code: a failure all the same */
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n, ": %s", old);
    return err->code;
}

void oz_err_clear(oz_err *err) {
    if (err) memset(err, 0, sizeof *err);
}
