/* What a program says on stderr while it works. On a terminal one line that is redrawn, with rate and ETA; into a pipe a
 * line every few seconds; nothing after oz_log_quiet(true) but warnings and errors. */
#ifndef OZ_BASE_PROGRESS_H
#define OZ_BASE_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

void oz_log_quiet(bool quiet);
void oz_log_mute(void); /* errors alone: another process says the rest */
bool oz_log_colour(void); /* stderr is a terminal and NO_COLOR is not set */
void oz_log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void oz_log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));  /* "warning: ..." */
void oz_log_listen(void (*heard)(void *arg, const char *text), void *arg); /* is given each warning besides, one at a time; NULL: nobody is */
void oz_log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* "error: ..." */

typedef struct oz_progress { const char *what, *unit; int64_t total, done, start_us, last_us; bool shown; int64_t (*now_us)(void); /* oz_clock_us */ char note[64]; } oz_progress;
void oz_progress_init(oz_progress *p, const char *what, const char *unit, int64_t total); /* total 0: unknown */
void oz_progress_step(oz_progress *p, int64_t done);
void oz_progress_note(oz_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* ends the line from the next step on */
void oz_progress_deinit(oz_progress *p); /* clears or ends the line */

#endif
