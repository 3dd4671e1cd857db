#include "base/sha256.h"
#include <stdio.h>
#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void oz_sha256_init(oz_sha256 *s) {
    static const uint32_t H[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, H, sizeof H);
    s->n_bytes = 0;
}

static uint32_t rot(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* One round; the names of the other variables move on by one from round to round instead of their values. */
static void step(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e, uint32_t f, uint32_t g, uint32_t *h, uint32_t kw) {
    const uint32_t x = *h + (rot(e, 6) ^ rot(e, 11) ^ rot(e, 25)) + ((e & f) ^ (~e & g)) + kw;
    *d += x;
    *h = x + (rot(a, 2) ^ rot(a, 13) ^ rot(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
}

static void block_add(uint32_t s[8], const uint8_t *p) {
    uint32_t w[64], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rot(x, 7) ^ rot(x, 18) ^ x >> 3) + (rot(y, 17) ^ rot(y, 19) ^ y >> 10);
    }
    for (int i = 0; i < 64; i += 8) {
        step(a, b, c, &d, e, f, g, &h, K[i] + w[i]);
        step(h, a, b, &c, d, e, f, &g, K[i + 1] + w[i + 1]);
        step(g, h, a, &b, c, d, e, &f, K[i + 2] + w[i + 2]);
        step(f, g, h, &a, b, c, d, &e, K[i + 3] + w[i + 3]);
        step(e, f, g, &h, a, b, c, &d, K[i + 4] + w[i + 4]);
        step(d, e, f, &g, h, a, b, &c, K[i + 5] + w[i + 5]);
        step(c, d, e, &f, g, h, a, &b, K[i + 6] + w[i + 6]);
        step(b, c, d, &e, f, g, h, &a, K[i + 7] + w[i + 7]);
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
}

void oz_sha256_add(oz_sha256 *s, const void *data, size_t n) {
    const uint8_t *p = data;
    while (n) {
        const size_t have = s->n_bytes % 64, now = n < 64 - have ? n : 64 - have;
        if (now == 64) block_add(s->h, p);
        else memcpy(s->block + have, p, now);
        s->n_bytes += now, p += now, n -= now;
        if (now < 64 && s->n_bytes % 64 == 0) block_add(s->h, s->block);
    }
}

void oz_sha256_hex(char out[65], oz_sha256 *s) {
    const uint64_t n_bits = s->n_bytes * 8;
    uint8_t tail[72] = {0x80};
    const size_t n_pad = 64 - (s->n_bytes + 8) % 64; /* 1..64 */
    for (int i = 0; i < 8; i++) tail[n_pad + (size_t)i] = (uint8_t)(n_bits >> (56 - 8 * i));
    oz_sha256_add(s, tail, n_pad + 8);
    for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", s->h[i]);
}
