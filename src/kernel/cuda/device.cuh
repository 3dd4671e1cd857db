/* Device code that several kernels share: the hand-over between launches, reductions in a fixed order, numbers, a weight's codes. */
#ifndef OZ_KERNEL_CUDA_DEVICE_CUH
#define OZ_KERNEL_CUDA_DEVICE_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "kernel/cuda/internal.h"

/* Behind pdl_wait all launches before this one are done and seen. pdl_next lets the next one be scheduled. */
static __device__ __forceinline__ void pdl_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
static __device__ __forceinline__ void pdl_next(void) { asm volatile("griddepcontrol.launch_dependents;"); }

/* 16 bytes of device memory to shared memory, under way until copies_wait; zeros where they are not `there`. */
static __device__ __forceinline__ void copy16(float *to_shared, const float *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"((unsigned)__cvta_generic_to_shared(to_shared)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copies_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* ---- reductions: butterflies inside a warp, then warps in order ---- */

static __device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}
static __device__ __forceinline__ float warp_max(float v) {
    for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}
static __device__ __forceinline__ bool warp_any(bool v) { return __any_sync(~0u, v); }

/* Of all threads of a block, the same value in each; `part` has room for 32 floats. */
static __device__ __forceinline__ float block_sum(float v, float *part) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float s = 0;
    for (unsigned i = 0; i < (blockDim.x + 31) / 32; i++) s += part[i];
    return s;
}
static __device__ __forceinline__ float block_max(float v, float *part) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float s = part[0];
    for (unsigned i = 1; i < (blockDim.x + 31) / 32; i++) s = fmaxf(s, part[i]);
    return s;
}

/* ---- numbers ---- */

static __device__ __forceinline__ float e4m3_to_f32(uint8_t v) {
    __half_raw h = __nv_cvt_fp8_to_halfraw(v, __NV_E4M3);
    return __half2float(__half(h));
}
static __device__ __forceinline__ uint8_t f32_to_e4m3(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }

/* Element i of a row in a form that has no scale. */
static __device__ __forceinline__ void store_plain(oz_form form, void *row, int64_t i, float v) {
    if (form == OZ_FORM_F32) ((float *)row)[i] = v;
    else if (form == OZ_FORM_BF16) ((__nv_bfloat16 *)row)[i] = __float2bfloat16_rn(v);
    else ((__half *)row)[i] = __float2half_rn(v);
}
static __host__ __device__ __forceinline__ int form_size(oz_form form) { return form == OZ_FORM_F32 ? 4 : form == OZ_FORM_BF16 || form == OZ_FORM_F16 ? 2 : 1; }

/* Element i of a row of activations as a number: codes of Q8 and F8 without their scale. */
static __device__ __forceinline__ float load_form(oz_form form, const void *row, int64_t i) {
    switch (form) {
    case OZ_FORM_F32: return ((const float *)row)[i];
    case OZ_FORM_BF16: return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    case OZ_FORM_F16: return __half2float(((const __half *)row)[i]);
    case OZ_FORM_Q8: return (float)((const int8_t *)row)[i];
    default: return e4m3_to_f32(((const uint8_t *)row)[i]);
    }
}

/* silu(g) * u, as the CPU's: g / (1 + exp(-g)) * u */
static __device__ __forceinline__ float silu_mul(float g, float u) { return __fdiv_rn(g, 1.0f + expf(-g)) * u; }

static __device__ __forceinline__ float softcap(float x, float cap) { return cap * tanhf(__fdiv_rn(x, cap)); }

/* number.h's dynamic quantization: the scale of a row whose largest magnitude is amax, and a code under it. */
static __device__ __forceinline__ float oz_cuda_scale(oz_form form, float amax, bool not_finite) {
    if (not_finite) return __int_as_float(0x7fc00000);
    if (form == OZ_FORM_F8) return fmaxf(__fdiv_rn(amax, 448.0f), 1.0f / (448.0f * 512.0f));
    const float s = __fdiv_rn(amax, 127.0f);
    return s > 0 ? s : 1.0f;
}
static __device__ __forceinline__ uint8_t oz_cuda_code(oz_form form, float x, float scale) {
    if (!(scale == scale)) return 0;
    const float t = __fdiv_rn(x, scale);
    if (form == OZ_FORM_F8) return f32_to_e4m3(t);
    return (uint8_t)(int8_t)fminf(fmaxf(rintf(t), -127.0f), 127.0f);
}

/* ---- bugs (mutate.h): in kernels a copy of the number in each file, in host code oz_mutation ---- */

#ifdef OZ_MUTATE
static __device__ int mutation_here;
static void mutation_set(int m) { cudaMemcpyToSymbol(mutation_here, &m, sizeof m); }
static __attribute__((constructor)) void mutation_register(void) { oz_mutation_files[oz_n_mutation_files++] = mutation_set; }
#define MUTATED(name) (mutation_here == OZ_MUTATION_##name)
#else
#define MUTATED(name) false
#endif

/* ---- codes ---- */

/* Where the code of column k lies in a row: byte, and for int4 the nibble. Woven: inside every 64 bytes, lane q of 4 owns 16 consecutive
 * bytes; its bytes [8 / bits * 8 ...) hold columns 8 q .. 8 q + 7 of one run of 32 columns after the other (pack.cu). */
static __host__ __device__ __forceinline__ int64_t code_at(oz_ckind kind, oz_layout layout, int64_t k, int *nibble) {
    *nibble = 0;
    switch (kind) {
    case OZ_CK_F32: return 4 * k;
    case OZ_CK_F16: case OZ_CK_BF16: return 2 * k;
    case OZ_CK_I4: {
        const int64_t block = k / 128, run = k / 32 % 4, q = k / 8 % 4;
        const int e = (int)(k % 8), slot = e % 2 * 4 + e / 2; /* of the word's 8 nibbles */
        *nibble = slot % 2;
        return block * 64 + q * 16 + run * 4 + slot / 2;
    }
    default: {
        if (layout == OZ_LAYOUT_PLAIN) return k;
        const int64_t block = k / 64, run = k / 32 % 2, q = k / 8 % 4;
        const int e = (int)(k % 8), slot = e / 4 * 4 + e % 2 * 2 + e % 4 / 2 * 1;
        /* of 4 bytes: e0 at 0, e1 at 2, e2 at 1, e3 at 3: byte masks 0x00ff00ff give (e0, e1), then (e2, e3) */
        return block * 64 + q * 16 + run * 8 + slot;
    }
    }
}

/* The code of column k as a number. */
static __device__ __forceinline__ float code_of(oz_ckind kind, oz_layout layout, const uint8_t *row, int64_t k) {
    int nibble;
    const uint8_t *p = row + code_at(kind, layout, k, &nibble);
    switch (kind) {
    case OZ_CK_F32: return *(const float *)p;
    case OZ_CK_F16: return __half2float(*(const __half *)p);
    case OZ_CK_BF16: return __bfloat162float(*(const __nv_bfloat16 *)p);
    case OZ_CK_I8: return (float)*(const int8_t *)p;
    case OZ_CK_I4: return (float)((int)(*p >> 4 * nibble & 15) - 8);
    default: return e4m3_to_f32(*p);
    }
}

static __host__ __device__ __forceinline__ int64_t scale_at(int64_t row, int64_t group, int64_t n_groups) {
    return (row / OZ_ROW_TILE * n_groups + group) * OZ_ROW_TILE + row % OZ_ROW_TILE;
}

#endif
