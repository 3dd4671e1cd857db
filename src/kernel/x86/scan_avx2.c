/* Layers that scan, with vectors of 8 channels: scan_vec.h says how. */
#include "kernel/x86/math_avx2.h"
#include "kernel/x86/rows_avx2.h"

enum { LANES = 8 };
typedef __m256 vec;
static inline vec vec_all(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *p, int64_t n) { return n == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, oz_lanes_avx2(n)); }
static inline void vec_store(float *p, int64_t n, vec v) {
    if (n == LANES) _mm256_storeu_ps(p, v);
    else _mm256_maskstore_ps(p, oz_lanes_avx2(n), v);
}
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_exp(vec x) { return oz_exp_ps(x); }
static inline vec vec_less(vec a, vec b, vec then, vec otherwise) { return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
static inline vec vec_split(vec u, vec *k) {
    const __m256i bits = _mm256_castps_si256(u);
    *k = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff)), _mm256_set1_epi32(0x3f800000)));
}
#include "kernel/x86/scan_vec.h"

void oz_conv__avx2(const oz_conv_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) { conv_vec(a, seg, state, c0, c1); }
void oz_scan__avx2(const oz_scan_args *a, const oz_seg *seg, float *state, int64_t c0, int64_t c1) { scan_vec(a, seg, state, c0, c1); }
