/* SHA-256 (FIPS 180-4), for comparing with recorded digests. */
#ifndef OZ_TEST_SHA256_H
#define OZ_TEST_SHA256_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline uint32_t sha256_rot(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* The first 32 bits of the fractional part of a root of the i-th prime. */
static inline uint32_t sha256_constant(int i, double (*root)(double)) {
    int p = 1;
    for (int found = -1; found < i;) {
        int d = 2;
        for (p++; d * d <= p && p % d; d++) {}
        found += d * d > p;
    }
    double r = root(p);
    return (uint32_t)((r - floor(r)) * 4294967296.0);
}

static inline void sha256_block(uint32_t h[8], const unsigned char *p, const uint32_t k[64]) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (sha256_rot(a, 7) ^ sha256_rot(a, 18) ^ a >> 3) + (sha256_rot(b, 17) ^ sha256_rot(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t x = v[7] + (sha256_rot(e, 6) ^ sha256_rot(e, 11) ^ sha256_rot(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t y = (sha256_rot(a, 2) ^ sha256_rot(a, 13) ^ sha256_rot(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += x;
        v[0] = x + y;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

/* 64 hex digits and a NUL. */
static inline void sha256_hex(char out[65], const void *data, size_t n) {
    uint32_t k[64], h[8];
    for (int i = 0; i < 64; i++) k[i] = sha256_constant(i, cbrt);
    for (int i = 0; i < 8; i++) h[i] = sha256_constant(i, sqrt);
    size_t n_padded = (n + 9 + 63) / 64 * 64;
    unsigned char *p = calloc(1, n_padded);
    if (n) memcpy(p, data, n);
    p[n] = 0x80;
    for (int i = 0; i < 8; i++) p[n_padded - 1 - i] = (unsigned char)((uint64_t)n * 8 >> (8 * i));
    for (size_t i = 0; i < n_padded; i += 64) sha256_block(h, p + i, k);
    free(p);
    for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", h[i]);
}

#endif
