/* The emulation that amx.h speaks of, and a machine that has AMX. */
#include "amx.h"
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernel/x86/tiles_amx.h"

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static _Thread_local struct {
    bool configured;
    int rows[TILES], row_bytes[TILES];
    _Alignas(64) uint8_t tile[TILES][ROWS][ROW_BYTES];
} m;

bool oz_amx_usable(void) { return true; }

static void need(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

void ck_tile_config(const void *config) {
    memset(&m, 0, sizeof m);
    if (!config) return;
    oz_tile_config c;
    memcpy(&c, config, sizeof c);
    need(c.palette == 1 && c.start_row == 0, "palette 1 and start row 0 expected");
    for (int i = 0; i < 14; i++) need(c.reserved[i] == 0, "reserved bytes of the configuration are 0");
    for (int i = 0; i < 16; i++) {
        need(i < TILES || (c.rows[i] == 0 && c.row_bytes[i] == 0), "there are eight tiles");
        need(c.rows[i] <= ROWS && c.row_bytes[i] <= ROW_BYTES && (c.rows[i] == 0) == (c.row_bytes[i] == 0), "at most 16 rows of 64 bytes, or none of either");
        if (i < TILES) m.rows[i] = c.rows[i], m.row_bytes[i] = c.row_bytes[i];
    }
    m.configured = true;
}

static void need_tile(int t) { need(m.configured && t >= 0 && t < TILES && m.rows[t] > 0, "a tile without a shape"); }

void ck_tile_load(int t, const void *base, size_t stride) {
    need_tile(t);
    memset(m.tile[t], 0, sizeof m.tile[t]);
    for (int r = 0; r < m.rows[t]; r++) memcpy(m.tile[t][r], (const uint8_t *)base + (size_t)r * stride, (size_t)m.row_bytes[t]);
}

void ck_tile_zero(int t) {
    need_tile(t);
    memset(m.tile[t], 0, sizeof m.tile[t]);
}

void ck_tile_store(int t, void *base, size_t stride) {
    need_tile(t);
    for (int r = 0; r < m.rows[t]; r++) memcpy((uint8_t *)base + (size_t)r * stride, m.tile[t][r], (size_t)m.row_bytes[t]);
}

/* c [m, n] words, a [m, k] words, b [k, n] words. */
static void need_shapes(int c, int a, int b) {
    need_tile(c), need_tile(a), need_tile(b);
    need(c != a && c != b && a != b, "one tile twice");
    need(m.rows[c] == m.rows[a] && m.row_bytes[a] == 4 * m.rows[b] && m.row_bytes[b] == m.row_bytes[c], "shapes that do not fit");
    need(m.row_bytes[a] % 4 == 0 && m.row_bytes[b] % 4 == 0, "rows of whole words");
}

void ck_tile_i8(int c, int a, int b) {
    need_shapes(c, a, b);
    for (int i = 0; i < m.rows[c]; i++) {
        for (int n = 0; n < m.row_bytes[c] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &m.tile[c][i][4 * n], 4);
            for (int k = 0; k < m.row_bytes[a]; k++) sum += (uint32_t)((int8_t)m.tile[a][i][k] * (int)m.tile[b][k / 4][4 * n + k % 4]);
            memcpy(&m.tile[c][i][4 * n], &sum, 4);
        }
    }
}

static float flush(float v) { return fabsf(v) < FLT_MIN ? copysignf(0, v) : v; }

static float bf16_at(const uint8_t *row, int i) {
    uint16_t half;
    memcpy(&half, row + 2 * i, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, 4);
    return flush(v);
}

/* Products of even columns and of odd ones are summed apart, then both are added, then that to the sum. */
void ck_tile_bf16(int c, int a, int b) {
    need_shapes(c, a, b);
    for (int i = 0; i < m.rows[c]; i++) {
        for (int n = 0; n < m.row_bytes[c] / 4; n++) {
            float part[2] = {0, 0}, sum;
            for (int k = 0; k < m.rows[b]; k++) {
                for (int j = 0; j < 2; j++) part[j] = flush(fmaf(bf16_at(m.tile[a][i], 2 * k + j), bf16_at(m.tile[b][k], 2 * n + j), part[j]));
            }
            memcpy(&sum, &m.tile[c][i][4 * n], 4);
            sum = flush(flush(sum) + flush(part[0] + part[1]));
            memcpy(&m.tile[c][i][4 * n], &sum, 4);
        }
    }
}
