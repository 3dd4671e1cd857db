/* Base64 (RFC 4648, section 4) with padding. */
#ifndef OZ_BASE_BASE64_H
#define OZ_BASE_BASE64_H
#include <stdbool.h>
#include <stddef.h>
#include "base/str.h"

void oz_base64_encode(oz_buf *out, const void *data, size_t n); /* appends */
bool oz_base64_decode(oz_buf *out, const char *text, size_t n); /* appends; false: not base64, whole and canonical */

#endif
