/* HTTP for the hub, through libcurl. Redirects are followed here and not by the library, because what may follow them is the point:
 *   - https everywhere, except that an endpoint on this very machine (loopback, for tests and mirrors) may be plain http, and lead to such;
 *   - the token goes to the endpoint's own origin. A file is usually answered by a redirect to another host, which gets a signed URL and no token.
 * A try that fails in a way that may pass (a connection that breaks, 408, 429, 5xx) is made again after a pause that doubles; a server that
 * says when to come back (Retry-After) is believed. Tries are counted anew once MIN_PROGRESS bytes came, so that a bad line ends a large
 * download only if it brings nothing at all. */
#include "base/progress.h"
#include "checkpoint/internal.h"
#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_HOPS = 5, MAX_TRIES = 5, FIRST_PAUSE_MS = 500, MAX_PAUSE_S = 300, MIN_PROGRESS = 1 << 20, DEFAULT_TIMEOUT_S = 30, MAX_TIMEOUT_S = 86400 };

typedef struct origin { char *scheme, *host, *port; } origin;

struct oz_http {
    CURL *curl;
    origin home; /* the endpoint's */
    struct curl_slist *with_token;
    long timeout_s;
};

/* One try, for the callbacks. */
typedef struct attempt {
    oz_http *h;
    const oz_http_sink *sink;
    int64_t from; /* asked for */
    bool begun;
    oz_status st; /* of the sink, or of what the headers say */
    oz_err *err;
} attempt;

/* ---- URLs ---- */

static void origin_deinit(origin *o) {
    curl_free(o->scheme);
    curl_free(o->host);
    curl_free(o->port);
    *o = (origin){0};
}

static oz_status origin_of(origin *o, const char *url, oz_err *err) {
    *o = (origin){0};
    CURLU *u = curl_url();
    const bool ok = u && curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER | CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_SCHEME, &o->scheme, 0) == CURLUE_OK && curl_url_get(u, CURLUPART_HOST, &o->host, 0) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_PORT, &o->port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    curl_url_cleanup(u);
    if (ok) return OZ_OK;
    origin_deinit(o);
    OZ_FAIL(err, OZ_E_ARG, "expected an https URL with a host and without a user's name"); /* not shown: there may be a password in it */
}

static bool is_same(const origin *a, const origin *b) {
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

static bool is_loopback(const char *host) {
    struct in_addr v4;
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 || (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

/* plain: http may be spoken with a host that is this machine. */
static oz_status origin_check(const origin *o, bool plain, const char *url, oz_err *err) {
    const bool ok = strcmp(o->scheme, "https") == 0 || (strcmp(o->scheme, "http") == 0 && plain && is_loopback(o->host));
    OZ_NEED(ok, err, OZ_E_UNSUPPORTED, "%.200s: expected https (http is for this machine alone)", url);
    return OZ_OK;
}

/* ---- what curl calls ---- */

static const char *header(CURL *curl, const char *name) {
    struct curl_header *found;
    return curl_easy_header(curl, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value : NULL;
}

/* What a server says, for a message: a terminal is not to be spoken to by it. */
static void text_copy(char *out, size_t size, const char *s) {
    snprintf(out, size, "%s", s ? s : "");
    for (; *out; out++)
        if ((unsigned char)*out < ' ' || *out == 127) *out = '?';
}

/* The body is about to come: at which byte of the whole does it begin? */
static oz_status body_begin(attempt *a) {
    long status = 0;
    int64_t from = 0;
    curl_easy_getinfo(a->h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 206) {
        char range[80];
        text_copy(range, sizeof range, header(a->h->curl, "Content-Range"));
        OZ_NEED(sscanf(range, "bytes %" SCNd64 "-", &from) == 1 && from == a->from, a->err, OZ_E_FORMAT,
                "the server was asked for bytes from %" PRId64 " and answers with Content-Range: %s", a->from, *range ? range : "nothing");
    }
    a->begun = true;
    return a->sink->begin(a->sink->self, from, a->err);
}

static size_t on_body(char *p, size_t size, size_t n, void *user) {
    attempt *a = user;
    long status = 0;
    curl_easy_getinfo(a->h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) return n; /* a redirect's or an error's: not read */
    if (!a->begun) a->st = body_begin(a);
    if (a->st == OZ_OK) a->st = a->sink->put(a->sink->self, p, n, a->err);
    return a->st == OZ_OK ? n : CURL_WRITEFUNC_ERROR;
}

static int on_tick(void *user, curl_off_t dl_total, curl_off_t dl, curl_off_t ul_total, curl_off_t ul) { return oz_interrupted(); }

/* ---- one try ---- */

static void request_set(attempt *a, const char *url, bool with_token, char *why) {
    CURL *c = a->h->curl;
    char range[40];
    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_USERAGENT, "ounce");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L * 1024);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, a->h->timeout_s);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, a->h->timeout_s);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_tick);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    if (with_token) curl_easy_setopt(c, CURLOPT_HTTPHEADER, a->h->with_token);
    if (a->from > 0) {
        snprintf(range, sizeof range, "%" PRId64 "-", a->from);
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
}

/* One request after the other, as redirects lead. *code: what curl says of the last one, why: in its words. */
static oz_status follow(attempt *a, const char *url, CURLcode *code, char *why) {
    char *at = oz_strdup(url);
    bool plain = strcmp(a->h->home.scheme, "http") == 0;
    oz_status st = OZ_OK;
    for (int hop = 0; st == OZ_OK; hop++) {
        origin o;
        if ((st = origin_of(&o, at, a->err)) != OZ_OK) oz_err_prefix(a->err, "%.200s: where it redirects to", url);
        if (st == OZ_OK) st = origin_check(&o, plain, at, a->err);
        if (st == OZ_OK && hop > MAX_HOPS) st = oz_err_set(a->err, OZ_E_FORMAT, __FILE__, __LINE__, "%.200s: more than %d redirects", url, MAX_HOPS);
        if (st != OZ_OK) {
            origin_deinit(&o);
            break;
        }
        request_set(a, at, a->h->with_token && is_same(&o, &a->h->home), why);
        plain = strcmp(o.scheme, "http") == 0; /* from https there is no way down */
        origin_deinit(&o);
        *code = curl_easy_perform(a->h->curl);
        const char *next = NULL;
        if (*code == CURLE_OK) curl_easy_getinfo(a->h->curl, CURLINFO_REDIRECT_URL, &next);
        if (!next) break;
        char *copy = oz_strdup(next);
        oz_free(at);
        at = copy;
    }
    oz_free(at);
    return st;
}

static bool may_pass(CURLcode c) {
    static const CURLcode CODES[] = {CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT, CURLE_OPERATION_TIMEDOUT, CURLE_PARTIAL_FILE, CURLE_GOT_NOTHING,
                                     CURLE_SEND_ERROR, CURLE_RECV_ERROR, CURLE_SSL_CONNECT_ERROR, CURLE_HTTP2, CURLE_HTTP2_STREAM, CURLE_WEIRD_SERVER_REPLY};
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (CODES[i] == c) return true;
    return false;
}

static void reply_read(oz_http_reply *r, CURL *curl) {
    *r = (oz_http_reply){0};
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &r->status);
    text_copy(r->code, sizeof r->code, header(curl, "X-Error-Code"));
    text_copy(r->message, sizeof r->message, header(curl, "X-Error-Message"));
}

/* OZ_E_INTERRUPTED, OZ_OK (done or refused), or *again with the reason in `why` and the pause that the server asks for, 0: none. */
static oz_status try_once(oz_http_reply *reply, attempt *a, const char *url, bool *again, char *why, int64_t *pause_s) {
    CURLcode code = CURLE_OK;
    curl_off_t retry_after = 0;
    *why = 0;
    OZ_TRY(follow(a, url, &code, why));
    if (a->st != OZ_OK) return a->st == OZ_E_FORMAT ? oz_err_prefix(a->err, "%.200s", url) : a->st;
    OZ_NEED(!oz_interrupted(), a->err, OZ_E_INTERRUPTED, "interrupted");
    reply_read(reply, a->h->curl);
    if (code == CURLE_OK && (reply->status == 200 || reply->status == 206)) {
        if (!a->begun && (a->st = body_begin(a)) != OZ_OK) return oz_err_prefix(a->err, "%.200s", url); /* an empty body */
        *again = !a->sink->is_whole(a->sink->self);
        snprintf(why, CURL_ERROR_SIZE, "the reply ended too early");
        return OZ_OK;
    }
    if (code == CURLE_OK) {
        *again = reply->status == 408 || reply->status == 429 || reply->status >= 500;
        curl_easy_getinfo(a->h->curl, CURLINFO_RETRY_AFTER, &retry_after);
        *pause_s = retry_after;
        snprintf(why, CURL_ERROR_SIZE, "the server answers with status %ld", reply->status);
        OZ_NEED(reply->status >= 400, a->err, OZ_E_FORMAT, "%.200s: expected a file, found status %ld", url, reply->status);
        return OZ_OK;
    }
    if (!*why) snprintf(why, CURL_ERROR_SIZE, "%s", curl_easy_strerror(code));
    *again = may_pass(code);
    OZ_NEED(*again, a->err, OZ_E_IO, "%.200s: %s", url, why);
    reply->status = 0;
    return OZ_OK;
}

static oz_status sleep_ms(int64_t ms, oz_err *err) {
    for (; ms > 0 && !oz_interrupted(); ms -= 100) nanosleep(&(struct timespec){0, 100 * 1000 * 1000}, NULL);
    OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
    return OZ_OK;
}

/* ---- the interface ---- */

oz_status oz_http_get(oz_http_reply *reply, oz_http *h, const char *url, const oz_http_sink *sink, oz_err *err) {
    char why[CURL_ERROR_SIZE];
    int64_t best = 0;
    for (int n_tries = 0;;) {
        bool again = false;
        int64_t pause_s = 0;
        attempt a = {.h = h, .sink = sink, .from = sink->resume(sink->self), .err = err};
        if (a.from >= best + MIN_PROGRESS) best = a.from, n_tries = 0; /* not for bytes that came before: a server may ignore Range */
        OZ_TRY(try_once(reply, &a, url, &again, why, &pause_s));
        if (!again) return OZ_OK;
        const bool spent = ++n_tries >= MAX_TRIES, too_long = pause_s > MAX_PAUSE_S;
        OZ_NEED(!too_long, err, OZ_E_IO, "%.200s: %s and asks to come back in %" PRId64 " s", url, why, pause_s);
        if (spent && reply->status >= 400) return OZ_OK;
        OZ_NEED(!spent, err, OZ_E_IO, "%.200s: %s (%d tries)", url, why, n_tries);
        int64_t ms = FIRST_PAUSE_MS << (n_tries - 1);
        if (pause_s * 1000 > ms) ms = pause_s * 1000;
        oz_log_info("%s; again in %.1f s", why, (double)ms / 1000);
        OZ_TRY(sleep_ms(ms, err));
    }
}

static oz_status token_header(struct curl_slist **out, const char *token, oz_err *err) {
    for (const char *c = token; *c; c++)
        OZ_NEED(*c > ' ' && *c < 127, err, OZ_E_ARG, "HF_TOKEN: expected printable ASCII without blanks, found byte 0x%02x in it", (unsigned char)*c);
    char *line = oz_asprintf("Authorization: Bearer %s", token);
    *out = curl_slist_append(NULL, line);
    oz_free(line);
    OZ_NEED(*out, err, OZ_E_NOMEM, "no memory for a header");
    return OZ_OK;
}

static oz_status timeout_get(long *out, oz_err *err) {
    const char *v = getenv("HF_HUB_DOWNLOAD_TIMEOUT");
    char *end;
    *out = DEFAULT_TIMEOUT_S;
    if (!v || !*v) return OZ_OK;
    *out = strtol(v, &end, 10);
    OZ_NEED(!*end && *out >= 1 && *out <= MAX_TIMEOUT_S, err, OZ_E_ARG, "HF_HUB_DOWNLOAD_TIMEOUT: expected seconds, 1..%d, found %s", MAX_TIMEOUT_S, v);
    return OZ_OK;
}

oz_status oz_http_open(oz_http **out, const char *endpoint, const char *token, oz_err *err) {
    oz_http *h = *out = oz_alloc(sizeof *h);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    h->curl = curl_easy_init();
    oz_status st = h->curl ? OZ_OK : oz_err_set(err, OZ_E_NOMEM, __FILE__, __LINE__, "libcurl could not be set up");
    if (st == OZ_OK) st = timeout_get(&h->timeout_s, err);
    if (st == OZ_OK && ((st = origin_of(&h->home, endpoint, err)) != OZ_OK || (st = origin_check(&h->home, true, endpoint, err)) != OZ_OK))
        oz_err_prefix(err, "HF_ENDPOINT");
    if (st == OZ_OK && token) st = token_header(&h->with_token, token, err);
    if (st != OZ_OK) oz_http_close(out);
    return st;
}

void oz_http_close(oz_http **ph) {
    oz_http *h = *ph;
    if (!h) return;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->with_token);
    origin_deinit(&h->home);
    curl_global_cleanup();
    oz_free(h);
    *ph = NULL;
}
