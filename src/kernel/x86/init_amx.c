/* The AMX (tile, int8, bf16) step of the staircase: what it overwrites. */
#include "kernel/x86/tiles_amx.h"

void oz_cpu_init_amx(oz_cpu_table *t) {
    t->level = "amx";
    oz_gemm_init__amx(t);
    t->burn_bf16 = oz_burn_bf16__amx;
    t->burn_i8 = oz_burn_i8__amx;
}
