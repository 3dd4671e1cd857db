#include "base/sha1.h"
#include <stdio.h>
#include <string.h>

void oz_sha1_init(oz_sha1 *s) {
    static const uint32_t H[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    memcpy(s->h, H, sizeof H);
    s->n_bytes = 0;
}

static uint32_t rot(uint32_t x, int n) { return x << n | x >> (32 - n); }

static void block_add(uint32_t h[5], const uint8_t *p) {
    static const uint32_t K[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 80; i++) w[i] = rot(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        const uint32_t f = i < 20 ? (b & c) | (~b & d) : i >= 40 && i < 60 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
        const uint32_t x = rot(a, 5) + f + e + K[i / 20] + w[i];
        e = d, d = c, c = rot(b, 30), b = a, a = x;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

void oz_sha1_add(oz_sha1 *s, const void *data, size_t n) {
    const uint8_t *p = data;
    while (n) {
        const size_t have = s->n_bytes % 64, now = n < 64 - have ? n : 64 - have;
        memcpy(s->block + have, p, now);
        s->n_bytes += now, p += now, n -= now;
        if (s->n_bytes % 64 == 0) block_add(s->h, s->block);
    }
}

void oz_sha1_hex(char out[41], oz_sha1 *s) {
    const uint64_t n_bits = s->n_bytes * 8;
    uint8_t tail[72] = {0x80};
    const size_t n_pad = 64 - (s->n_bytes + 8) % 64; /* 1..64 */
    for (int i = 0; i < 8; i++) tail[n_pad + (size_t)i] = (uint8_t)(n_bits >> (56 - 8 * i));
    oz_sha1_add(s, tail, n_pad + 8);
    for (int i = 0; i < 5; i++) snprintf(out + 8 * i, 9, "%08x", s->h[i]);
}
