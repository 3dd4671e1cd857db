#include "base/base64.h"
#include <stdint.h>

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void oz_base64_encode(oz_buf *out, const void *data, size_t n) {
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i += 3) {
        const size_t k = n - i < 3 ? n - i : 3;
        const uint32_t v = (uint32_t)p[i] << 16 | (k > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (k > 2 ? p[i + 2] : 0);
        const char text[4] = {DIGITS[v >> 18], DIGITS[v >> 12 & 63], k > 1 ? DIGITS[v >> 6 & 63] : '=', k > 2 ? DIGITS[v & 63] : '='};
        oz_buf_append(out, text, 4);
    }
}

static int digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool oz_base64_decode(oz_buf *out, const char *s, size_t n) {
    if (n % 4) return false;
    for (size_t i = 0; i < n; i += 4) {
        const size_t pad = i + 4 < n || s[n - 1] != '=' ? 0 : s[n - 2] != '=' ? 1 : 2;
        uint32_t v = 0;
        for (size_t k = 0; k < 4; k++) {
            const int d = k + pad < 4 ? digit(s[i + k]) : 0;
            if (d < 0) return false;
            v = v << 6 | (uint32_t)d;
        }
        if (pad && v & ((1u << 8 * pad) - 1)) return false;
        const char bytes[3] = {(char)(v >> 16), (char)(v >> 8), (char)v};
        oz_buf_append(out, bytes, 3 - pad);
    }
    return true;
}
