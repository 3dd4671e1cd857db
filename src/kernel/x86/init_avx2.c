/* The AVX2 (+FMA, F16C) step of the staircase: what it overwrites. */
#include "kernel/x86/gemm_avx2.h"
#include "kernel/x86/rows_avx2.h"

void oz_cpu_init_avx2(oz_cpu_table *t) {
    t->level = "avx2";
    oz_gemm_init__avx2(t);
    t->norm = oz_norm__avx2;
    t->quantize_q8 = oz_quantize_q8__avx2;
    t->quantize_f8 = oz_quantize_f8__avx2;
    t->rope = oz_rope__avx2;
    t->rope_pairs = oz_rope_pairs__avx2;
    t->silu_mul = oz_silu_mul__avx2;
    t->gelu_mul = oz_gelu_mul__avx2;
    t->scale = oz_scale__avx2;
    t->softcap = oz_softcap__avx2;
    t->add = oz_add__avx2;
    t->combine = oz_combine__avx2;
    t->attention = oz_attention__avx2;
    t->conv = oz_conv__avx2;
    t->scan = oz_scan__avx2;
    t->stat = oz_stat__avx2;
    t->kl = oz_kl__avx2;
    t->burn_f32 = oz_burn_f32__avx2;
    t->burn_i8 = oz_burn_i8__avx2;
    t->read = oz_read__avx2;
}
