#include "base/findings.h"
#include <stdarg.h>
#include <stdio.h>
#include "base/progress.h"

oz_status oz_found(const oz_findings *f, oz_status st, oz_err *err) {
    if (st == OZ_OK || !f || st == OZ_E_NOMEM || st == OZ_E_INTERRUPTED) return st;
    f->add(f->arg, true, err->msg);
    oz_err_clear(err);
    return OZ_OK;
}

static void found(const oz_findings *f, bool is_error, const char *fmt, va_list args) {
    char text[sizeof((oz_err *)0)->msg];
    vsnprintf(text, sizeof text, fmt, args);
    if (f) f->add(f->arg, is_error, text);
    else oz_log_warn("%s", text);
}

void oz_found_warning(const oz_findings *f, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    found(f, false, fmt, args);
    va_end(args);
}

void oz_found_error(const oz_findings *f, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    found(f, true, fmt, args);
    va_end(args);
}
