#include "base/progress.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/str.h"

enum { REDRAW_US = 100 * 1000, PIPE_LINE_US = 5 * 1000 * 1000, MAX_SAID = 8192 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_quiet, is_muted, line_open; /* line_open: a progress line stands on the terminal */
static void (*listener)(void *arg, const char *text);
static void *listener_arg;

void oz_log_quiet(bool quiet) { is_quiet = quiet || is_muted; }

void oz_log_mute(void) { is_muted = is_quiet = true; }

void oz_log_listen(void (*heard)(void *arg, const char *text), void *arg) { listener = heard, listener_arg = arg; }

bool oz_log_colour(void) {
    const char *no = getenv("NO_COLOR");
    return !(no && *no) && isatty(STDERR_FILENO);
}

static void clear_line(void) {
    if (line_open) fputs("\r\033[K", stderr);
    line_open = false;
}

static void say(const char *label, const char *colour, bool is_heard, const char *fmt, va_list ap) {
    char text[MAX_SAID];
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    pthread_mutex_lock(&lock);
    clear_line();
    bool paint = *label && oz_log_colour();
    fprintf(stderr, "%s%s%s", paint ? colour : "", label, paint ? "\033[0m" : "");
    oz_buf safe = {0};
    oz_buf_put_safe(&safe, text, n < 0 ? 0 : n < MAX_SAID ? (size_t)n : MAX_SAID - 1);
    if (safe.len) fwrite(safe.data, 1, safe.len, stderr);
    oz_buf_deinit(&safe);
    fputc('\n', stderr);
    if (is_heard && listener && n > 0) listener(listener_arg, text);
    pthread_mutex_unlock(&lock);
}

void oz_log_info(const char *fmt, ...) {
    if (is_quiet) return;
    va_list ap;
    va_start(ap, fmt);
    say("", "", false, fmt, ap);
    va_end(ap);
}

void oz_log_warn(const char *fmt, ...) {
    if (is_muted) return;
    va_list ap;
    va_start(ap, fmt);
    say("warning: ", "\033[33m", true, fmt, ap);
    va_end(ap);
}

void oz_log_error(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say("error: ", "\033[31m", false, fmt, ap);
    va_end(ap);
}

/* ---- progress ---- */

/* 1234567 -> "1.23M"; of bytes "1.23 MB" */
static const char *amount(char out[32], double v, bool bytes) {
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P"};
    size_t i = 0;
    while (v >= 1000 && i + 1 < sizeof prefix / sizeof *prefix) v /= 1000, i++;
    const int digits = i == 0 ? v != (double)(int64_t)v : v < 10 ? 2 : v < 100;
    snprintf(out, 32, "%.*f%s%s%s", digits, v, bytes ? " " : "", prefix[i], bytes ? "B" : "");
    return out;
}

static void print(const oz_progress *p, int64_t now_us) {
    double seconds = (double)(now_us - p->start_us) / 1e6, rate = seconds > 0 ? (double)p->done / seconds : 0;
    const bool bytes = strcmp(p->unit, "B") == 0;
    char a[32], b[32], c[32];
    fprintf(stderr, "%s: %s", p->what, amount(a, (double)p->done, bytes));
    if (p->total > 0) fprintf(stderr, "/%s", amount(b, (double)p->total, bytes));
    fprintf(stderr, "%s%s, %s/s", bytes ? "" : " ", bytes ? "" : p->unit, amount(c, rate, bytes));
    if (p->total > p->done && rate > 0) {
        int64_t left = (int64_t)((double)(p->total - p->done) / rate + 0.5);
        if (left >= 3600) fprintf(stderr, ", %lld h %02lld min left", (long long)(left / 3600), (long long)(left / 60 % 60));
        else if (left >= 60) fprintf(stderr, ", %lld min %02lld s left", (long long)(left / 60), (long long)(left % 60));
        else fprintf(stderr, ", %lld s left", (long long)left);
    }
    if (*p->note) fprintf(stderr, ", %s", p->note);
}

void oz_progress_init(oz_progress *p, const char *what, const char *unit, int64_t total) {
    *p = (oz_progress){.what = what, .unit = unit, .total = total, .start_us = oz_clock_us(), .now_us = oz_clock_us};
    p->last_us = p->start_us;
}

void oz_progress_note(oz_progress *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->note, sizeof p->note, fmt, ap);
    va_end(ap);
}

void oz_progress_step(oz_progress *p, int64_t done) {
    p->done = done;
    if (is_quiet) return;
    int64_t now = p->now_us();
    bool tty = isatty(STDERR_FILENO);
    if (now - p->last_us < (tty ? REDRAW_US : PIPE_LINE_US)) return;
    p->last_us = now;
    p->shown = true;
    if (!tty && p->total > 0 && done >= p->total) return; /* _deinit says it */
    pthread_mutex_lock(&lock);
    clear_line();
    print(p, now);
    if (tty) line_open = true;
    else fputc('\n', stderr);
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}

void oz_progress_deinit(oz_progress *p) {
    if (!p->shown) return;
    pthread_mutex_lock(&lock);
    clear_line();
    if (p->done >= p->total) { /* the end result stays; broken off work leaves its error as the last line */
        print(p, p->now_us());
        fputc('\n', stderr);
    }
    pthread_mutex_unlock(&lock);
    p->shown = false;
}
