/* AMX's own instructions on full tiles. Four tiles of sums, as the products have them. */
#include "kernel/x86/tiles_amx.h"

static void configure(void) {
    oz_tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) c.rows[i] = 16, c.row_bytes[i] = 64;
    oz_tile_configure(&c);
}

double oz_burn_bf16__amx(int64_t n_steps) {
    configure(); /* tiles are zero now */
    for (int64_t s = 0; s < n_steps; s++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)n_steps * 4 * 16 * 16 * 32 * 2;
}

double oz_burn_i8__amx(int64_t n_steps) {
    configure();
    for (int64_t s = 0; s < n_steps; s++) {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_release();
    return (double)n_steps * 4 * 16 * 16 * 64 * 2;
}
