/* The AVX2 (+FMA, F16C) step of the staircase: what it overwrites. */
#include "kernel/x86/gemm_avx2.h"

void oz_cpu_init_avx2(oz_cpu_table *t) {
    t->level = "avx2";
    oz_gemm_init__avx2(t);
}
