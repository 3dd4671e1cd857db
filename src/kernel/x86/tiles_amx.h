/* Shared by the AMX files. */
#ifndef OZ_KERNEL_TILES_AMX_H
#define OZ_KERNEL_TILES_AMX_H
#include <immintrin.h>
#include "kernel/cpu.h"

/* What ldtilecfg reads: rows of a tile and bytes of a row, both 0 for one that is not used. */
typedef struct oz_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} oz_tile_config;

/* GCC's ldtilecfg says that it reads a pointer's length only, and its tile loads say nothing: what was written before must not be put off or dropped. */
static inline void oz_tile_written(void) { __asm__ volatile("" : : : "memory"); }
static inline void oz_tile_configure(const oz_tile_config *c) {
    __asm__ volatile("" : : "r"(c) : "memory");
    _tile_loadconfig(c);
}

void oz_gemm_init__amx(oz_cpu_table *t);
double oz_burn_bf16__amx(int64_t n_steps);
double oz_burn_i8__amx(int64_t n_steps);

#endif
