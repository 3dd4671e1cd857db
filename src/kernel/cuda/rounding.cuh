/* Rounding weights to nearest on the device, as number/quantize.c has it, and sums in f64: what kernels of calibration share. */
#ifndef OZ_KERNEL_CUDA_ROUNDING_CUH
#define OZ_KERNEL_CUDA_ROUNDING_CUH
#include "kernel/cuda/device.cuh"

typedef struct rounding { bool is_float, asymmetric; float lo, hi, divisor; oz_dtype scale_dtype; } rounding;

static inline rounding rounding_of(const oz_rtn *q) {
    const oz_codec_info *info = oz_codec_get(q->codec);
    rounding r = {info->is_float, q->asymmetric, (float)info->code_min, (float)info->code_max, q->divisor, q->scale_dtype};
    if (q->bits) r.lo = (float)-(1 << (q->bits - 1)), r.hi = (float)((1 << (q->bits - 1)) - 1);
    if (!(r.divisor > 0)) r.divisor = r.is_float ? 448.0f : 0.5f * (r.hi - r.lo);
    return r;
}

static __device__ __forceinline__ float code_near(const rounding &q, float x, float scale, float zero) {
    const float t = __fdiv_rn(x, scale);
    return q.is_float ? e4m3_to_f32(f32_to_e4m3(t)) : rintf(fminf(fmaxf(t + zero, q.lo), q.hi));
}

static __device__ __forceinline__ float as_stored(const rounding &q, float x) {
    return q.scale_dtype == OZ_DTYPE_BF16 ? __bfloat162float(__float2bfloat16_rn(x)) : q.scale_dtype == OZ_DTYPE_F16 ? __half2float(__float2half_rn(x)) : x;
}

static __device__ __forceinline__ bool is_finite(float x) { return x * 0.0f == 0.0f; }

/* The scale and zero point of a group whose values lie in [low, high], 0 among them. */
static __device__ __forceinline__ void scale_near(float *scale, float *zero, const rounding &q, float low, float high) {
    const float most = fmaxf(high, -low), least = q.scale_dtype == OZ_DTYPE_F16 ? 0x1p-24f : q.scale_dtype == OZ_DTYPE_BF16 ? 0x1p-133f : 0x1p-149f;
    *scale = most > 0 ? as_stored(q, q.asymmetric ? __fdiv_rn(as_stored(q, high - low), q.hi - q.lo) : __fdiv_rn(most, q.divisor)) : 1.0f;
    *zero = 0;
    if (*scale == 0) *scale = least;
    if (q.asymmetric && most > 0) *zero = rintf(fminf(fmaxf(as_stored(q, q.lo - as_stored(q, __fdiv_rn(low, *scale))), q.lo), q.hi));
}

static __device__ double block_sum_f64(double v) {
    __shared__ double part[8];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    double s = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) s += part[i];
    return s;
}

enum { PARTS = 512 }; /* blocks that each sum a part in f64 */

/* The sum of PARTS doubles on the device, in their order. */
static inline double parts_sum(oz_dev *dev, const double *there) {
    double parts[PARTS], sum = 0;
    oz_dev_ops(dev)->download(dev, parts, there, sizeof parts);
    for (double part : parts) sum += part;
    return sum;
}

#endif
