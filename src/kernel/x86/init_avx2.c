/* The AVX2 (+FMA, F16C) step of the staircase: what it overwrites. */
#include "kernel/cpu.h"

void oz_cpu_init_avx2(oz_cpu_table *t) { t->level = "avx2"; }
