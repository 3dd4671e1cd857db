/* Layers that scan, with vectors of 16 channels: scan_vec.h says how. */
#include "kernel/x86/math_avx512.h"
#include "kernel/x86/rows_avx512.h"

enum { LANES = 16 };
typedef __m512 vec;
static inline vec vec_all(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(oz_lanes_avx512(n), p); }
static inline void vec_store(float *p, int64_t n, vec v) { _mm512_mask_storeu_ps(p, oz_lanes_avx512(n), v); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_exp(vec x) { return oz_exp_ps512(x); }
static inline vec vec_less(vec a, vec b, vec then, vec otherwise) { return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), then); }
static inline vec vec_split(vec u, vec *k) {
    *k = _mm512_getexp_ps(u);
    return _mm512_getmant_ps(u, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
}
#include "kernel/x86/scan_vec.h"

void oz_conv__avx512(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) { conv_vec(a, seg, state, c0, c1); }
void oz_scan__avx512(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) { scan_vec(a, seg, state, c0, c1); }
