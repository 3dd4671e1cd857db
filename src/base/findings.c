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

void oz_found_warning(const oz_findings *f, const char *fmt, ...) {
    char text[sizeof((oz_err *)0)->msg];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (f) f->add(f->arg, false, text);
    else oz_log_warn("%s", text);
}
