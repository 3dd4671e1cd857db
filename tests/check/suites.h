/* The suites, one a slot. */
#ifndef CHECK_SUITES_H
#define CHECK_SUITES_H
#include "check.h"

void ck_gemm(ck *c, oz_wkind kind, oz_form form);
void ck_norm(ck *c);
void ck_quantize_q8(ck *c);
void ck_quantize_f8(ck *c);
void ck_round_bf16(ck *c);
void ck_rope(ck *c);
void ck_rope_pairs(ck *c);
void ck_conv(ck *c);
void ck_scan(ck *c);
void ck_op_scan(ck *c);
void ck_silu_mul(ck *c);
void ck_gelu_mul(ck *c);
void ck_scale(ck *c);
void ck_softcap(ck *c);
void ck_add(ck *c);
void ck_stat(ck *c);
void ck_kl(ck *c);
void ck_attention(ck *c);
void ck_op_rows(ck *c);
void ck_op_linear(ck *c);
void ck_op_embed(ck *c);
void ck_op_gather(ck *c);
void ck_op_round(ck *c);
void ck_op_kv_write(ck *c);
void ck_op_mla_write(ck *c);
void ck_op_latent(ck *c);
void ck_op_rope_table(ck *c);
void ck_op_attention(ck *c);
void ck_op_sinks(ck *c);
void ck_op_pack(ck *c);
void ck_route(ck *c);
void ck_combine(ck *c);
void ck_op_experts(ck *c);

#endif
