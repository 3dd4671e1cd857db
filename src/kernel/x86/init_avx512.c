/* The AVX-512 (F, BW, VL, DQ, VBMI, VNNI, BF16) step of the staircase: what it overwrites. */
#include "kernel/x86/gemm_avx512.h"
#include "kernel/x86/rows_avx512.h"

void oz_cpu_init_avx512(oz_cpu_table *t) {
    t->level = "avx512";
    oz_gemm_init__avx512(t);
    t->norm = oz_norm__avx512;
    t->silu_mul = oz_silu_mul__avx512;
    t->add = oz_add__avx512;
    t->attention = oz_attention__avx512;
    t->conv = oz_conv__avx512;
    t->scan = oz_scan__avx512;
    t->quantize_q8 = oz_quantize_q8__avx512;
    t->round_bf16 = oz_round_bf16__avx512;
    t->burn_f32 = oz_burn_f32__avx512;
    t->burn_bf16 = oz_burn_bf16__avx512;
    t->burn_i8 = oz_burn_i8__avx512;
}
