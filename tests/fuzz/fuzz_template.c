/* A template and, behind a NUL, a request (messages, tools, kwargs) as JSON: parsed and rendered. Input without a NUL is a template for
 * built-in messages. Good corpus: the templates of tests/golden/templates. */
#include "base/mem.h"
#include "text/text.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char builtin[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" Be terse. \"},{\"role\":\"user\",\"content\":\"K\xc3\xb6ln "
    "\xf0\x9f\x98\x80\",\"n\":3,\"w\":0.5,"
    "\"tags\":[\"b\",\"A\"],\"meta\":{\"k\":[1,{\"z\":null}]}},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":1}}}],"
    "\"reasoning\":\"why\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a \"}]}],\"tools\":[{\"type\":\"function\"}],"
    "\"kwargs\":{\"add_generation_prompt\":true,\"big\":123456789012345678901234567890},\"special_tokens\":{\"bos_token\":\"<s>\"}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *source = (const char *)data, *zero = n ? memchr(data, 0, n) : NULL, *request = zero ? zero + 1 : builtin;
    size_t n_source = zero ? (size_t)(zero - source) : n, n_request = zero ? n - n_source - 1 : sizeof builtin - 1;
    oz_template_args args = {.now = 1772874303};
    oz_template *t;
    oz_err err = {0};
    if (oz_template_new(&t, source, n_source, &err) != OZ_OK) {
        if (t || !err.msg[0]) __builtin_trap(); /* every refusal has a reason */
        return 0;
    }
    oz_buf out = {0};
    oz_status st = oz_template_render_text(&out, t, request, n_request, &args, &err);
    if (st == OZ_OK ? !oz_utf8_valid(out.data ? out.data : "", out.len) : out.len > 0 || !err.msg[0]) __builtin_trap();
    oz_buf_deinit(&out);
    oz_template_free(&t);
    return 0;
}
