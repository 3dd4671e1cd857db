/* Rules that go on: where someone takes what they find, an error is handed over and the next rule follows; without findings the first one ends them. */
#ifndef OZ_BASE_FINDINGS_H
#define OZ_BASE_FINDINGS_H
#include <stdbool.h>
#include "base/err.h"

/* text: "WHERE: expected X, found Y", valid during the call. */
typedef struct oz_findings { void (*add)(void *arg, bool is_error, const char *text); void *arg; } oz_findings;
/* f NULL: st is passed on. Else what err holds goes to f, err is cleared, and all is well; no memory and an interruption are never findings. */
oz_status oz_found(const oz_findings *f, oz_status st, oz_err *err);
void oz_found_warning(const oz_findings *f, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* f NULL: on stderr */
void oz_found_error(const oz_findings *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));   /* of a rule that has no other end; f is not NULL */

#endif
