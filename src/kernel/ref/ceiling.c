/* The inner loops of the plain products on data in L1, and a plain read. */
#include "kernel/ref/ref.h"

enum { LANES = 8, DEPTH = 64 };

double oz_burn_f32__ref(int64_t n_steps) {
    float w[DEPTH * LANES], acc[LANES] = {0};
    for (int i = 0; i < DEPTH * LANES; i++) w[i] = (float)i * 1e-3f;
    for (int64_t s = 0; s < n_steps; s++) {
        float x = (float)(s & 3) * 0.25f;
        __asm__ volatile("" : : "r"(w) : "memory"); /* w may have changed: nothing moves out of the loop */
        for (int k = 0; k < DEPTH; k++) {
            for (int i = 0; i < LANES; i++) acc[i] = acc[i] * 0.5f + x * w[k * LANES + i];
        }
    }
    __asm__ volatile("" : : "r"(acc) : "memory");
    return (double)n_steps * DEPTH * LANES * 3;
}

double oz_burn_i8__ref(int64_t n_steps) {
    int8_t w[DEPTH * LANES];
    uint32_t acc[LANES] = {0};
    for (int i = 0; i < DEPTH * LANES; i++) w[i] = (int8_t)(i % 251 - 125);
    for (int64_t s = 0; s < n_steps; s++) {
        int32_t x = (int32_t)(s & 127);
        __asm__ volatile("" : : "r"(w) : "memory");
        for (int k = 0; k < DEPTH; k++) {
            for (int i = 0; i < LANES; i++) acc[i] += (uint32_t)(x * w[k * LANES + i]);
        }
    }
    __asm__ volatile("" : : "r"(acc) : "memory");
    return (double)n_steps * DEPTH * LANES * 2;
}

void oz_read__ref(const uint8_t *p, size_t n_bytes) {
    const uint64_t *v = (const uint64_t *)p;
    uint64_t sum[4] = {0};
    for (size_t i = 0; i < n_bytes / 8; i += 4) {
        for (int l = 0; l < 4; l++) sum[l] |= v[i + l];
    }
    __asm__ volatile("" : : "r"(sum) : "memory");
}
