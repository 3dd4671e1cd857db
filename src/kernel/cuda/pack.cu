/* From a stored weight to the device's layout: slices of rows go through two pinned buffers, and a kernel lays out their codes there.
 * Peak memory beyond the result is those buffers; nothing is widened.
 *
 * Rows are K-contiguous, each padded with zero codes to a multiple of 64 bytes. Plain: codes in order, as libraries read them. Woven (integers
 * and e4m3 that meet 16-bit activations; int4 always): the streaming kernel gives the 4 lanes of a row 16 bytes each of every 64, and a step
 * of its matrix instructions covers 32 columns of which lane q takes 8 q .. 8 q + 7. So lane q's 16 bytes hold those 8 columns of one run of 32 after the
 * other (2 runs of int8, 4 of int4): any group that is a multiple of 32 columns then ends between two steps. Inside a word codes are
 * interleaved so that a pair of neighbours is one mask away: int4 nibbles e0 e2 e4 e6 e1 e3 e5 e7, bytes e0 e2 e1 e3.
 *
 * Partition: one thread a column of the padded row (int4: two columns, one byte), blocks over rows. Bound by the host's copy into pinned memory. */
#include <stdio.h>
#include <string.h>
#include "kernel/cuda/device.cuh"
extern "C" {
#include "base/progress.h"
}

enum { GGUF_BLOCK = 32 };

static const char *const kind_names[OZ_CK_COUNT] = {"f32", "f16", "bf16", "i8", "i4", "f8"};
static const char *const form_names[OZ_FORM_COUNT] = {"f32", "q8", "f8", "bf16", "f16"};
const char *oz_ckind_name(oz_ckind k) { return kind_names[k]; }
const char *oz_form_name(oz_form f) { return form_names[f]; }

typedef struct pack_codec { oz_ckind kind; int block_bytes; bool has_offset; } pack_codec; /* block_bytes: of a GGUF block, 0: none */
static pack_codec codec_get(oz_codec c) {
    switch (c) {
    case OZ_CODEC_F32: return {OZ_CK_F32, 0, false};
    case OZ_CODEC_F16: return {OZ_CK_F16, 0, false};
    case OZ_CODEC_BF16: return {OZ_CK_BF16, 0, false};
    case OZ_CODEC_Q8_0: return {OZ_CK_I8, 34, false};
    case OZ_CODEC_Q4_0: return {OZ_CK_I4, 18, false};
    case OZ_CODEC_Q4_1: return {OZ_CK_I4, 20, true};
    case OZ_CODEC_I8: case OZ_CODEC_I8P: return {OZ_CK_I8, 0, false};
    case OZ_CODEC_I4P: return {OZ_CK_I4, 0, false};
    case OZ_CODEC_F8E4M3: return {OZ_CK_F8, 0, false};
    default: return {OZ_CK_COUNT, 0, false}; /* none */
    }
}

static const int kind_bits[OZ_CK_COUNT] = {32, 16, 16, 8, 4, 8};
__constant__ int kind_bytes_dev[OZ_CK_COUNT] = {4, 2, 2, 1, 0, 1};

/* The stored code of column k of a row as its byte, or its nibble (code + 8). */
static __device__ uint8_t stored_code(oz_codec c, const uint8_t *row, int64_t k) {
    const int64_t b = k / GGUF_BLOCK, e = k % GGUF_BLOCK;
    switch (c) {
    case OZ_CODEC_I8P: return row[k] ^ 0x80;
    case OZ_CODEC_I4P: return row[k / 2] >> k % 2 * 4 & 15;
    case OZ_CODEC_Q8_0: return row[b * 34 + 2 + e];
    case OZ_CODEC_Q4_0: return row[b * 18 + 2 + e % 16] >> e / 16 * 4 & 15;
    case OZ_CODEC_Q4_1: return row[b * 20 + 4 + e % 16] >> e / 16 * 4 & 15;
    default: return row[k];
    }
}

typedef struct pack_args {
    oz_codec codec; oz_ckind kind; oz_layout layout;
    const uint8_t *src; int64_t src_stride, cols;
    uint8_t *dst; int64_t dst_stride, padded, row0; /* padded: columns */
    float *scales, *offsets; int64_t n_groups;      /* of GGUF blocks */
} pack_args;

static __global__ void pack_codes(pack_args a) {
    const int64_t r = blockIdx.y, unit = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint8_t *src = a.src + r * a.src_stride;
    uint8_t *dst = a.dst + (a.row0 + r) * a.dst_stride;
    int nibble;
    if (a.kind == OZ_CK_I4) { /* byte `unit` of the row: find its two columns by asking where the columns of its run lie */
        if (2 * unit >= a.padded) return;
        const int64_t block = unit / 64, q = unit % 64 / 16, run = unit % 16 / 4, byte = unit % 4;
        uint8_t out = 0;
        for (int e = 0; e < 8; e++) {
            const int64_t k = block * 128 + run * 32 + q * 8 + e;
            const int slot = e % 2 * 4 + e / 2;
            if (slot / 2 == byte) out |= (uint8_t)((k < a.cols ? (int)stored_code(a.codec, src, k) : 8) << slot % 2 * 4);
        }
        dst[unit] = out;
    } else if (unit < a.padded) {
        uint8_t *to = dst + code_at(a.kind, a.layout, unit, &nibble);
        const int n = kind_bytes_dev[a.kind];
        if (n == 1) *to = unit < a.cols ? stored_code(a.codec, src, unit) : 0;
        for (int i = 0; n > 1 && i < n; i++) to[i] = unit < a.cols ? src[unit * n + i] : 0;
    }
}

static __global__ void pack_block_scales(pack_args a, int block_bytes) {
    const int64_t r = blockIdx.y, g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (g >= a.n_groups) return;
    const uint8_t *b = a.src + r * a.src_stride + g * block_bytes;
    const float d = __half2float(__ushort_as_half((unsigned short)(b[0] | b[1] << 8)));
    const int64_t at = scale_at(a.row0 + r, g, a.n_groups);
    a.scales[at] = d;
    if (a.offsets) a.offsets[at] = __fadd_rn(__half2float(__ushort_as_half((unsigned short)(b[2] | b[3] << 8))), __fmul_rn(8.0f, d));
}

/* Scales beside the codes: f32 [rows, n_groups] of a slice to their tiles. */
static __global__ void pack_scales(float *dst, const float *src, int64_t row0, int64_t n_rows, int64_t n_groups) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_rows * n_groups) dst[scale_at(row0 + i / n_groups, i % n_groups, n_groups)] = src[i];
}

typedef struct stage { oz_cuda_dev *d; int turn; } stage;

/* The next pinned buffer, when the device is done with it. */
static uint8_t *stage_take(stage *s) {
    s->turn ^= 1;
    oz_cuda_note(s->d, cudaEventSynchronize(s->d->staged_done[s->turn]));
    return s->d->pinned[s->turn];
}
static const uint8_t *stage_send(stage *s, size_t n_bytes) {
    oz_cuda_note(s->d, cudaMemcpyAsync(s->d->staged[s->turn], s->d->pinned[s->turn], n_bytes, cudaMemcpyHostToDevice, s->d->stream));
    return s->d->staged[s->turn];
}
static void stage_done(stage *s) { oz_cuda_note(s->d, cudaEventRecord(s->d->staged_done[s->turn], s->d->stream)); }

static void codes_send(stage *s, oz_cuda_packed *p, const oz_weight *w, int64_t row0) {
    oz_cuda_dev *d = s->d;
    const pack_codec c = codec_get(w->codec);
    const int64_t rows = p->head.rows, step = OZ_STAGE_BYTES / w->row_bytes < 32768 ? OZ_STAGE_BYTES / w->row_bytes : 32768;
    pack_args a = {w->codec, p->kind, p->layout, NULL, w->row_bytes, w->cols, p->codes, p->stride_bytes, p->stride_bytes * 8 / kind_bits[p->kind], 0, p->scales, p->offsets, p->n_groups};
    const int64_t units = p->kind == OZ_CK_I4 ? a.padded / 2 : a.padded;
    for (int64_t r = 0; r < rows; r += step) {
        const int64_t n = rows - r < step ? rows - r : step;
        uint8_t *host = stage_take(s);
        if (w->rope_heads > 0) {
            for (int64_t i = 0; i < n; i++) memcpy(host + i * w->row_bytes, (const uint8_t *)w->codes + oz_weight_stored_row(w, row0 + r + i) * w->row_bytes, (size_t)w->row_bytes);
        } else {
            memcpy(host, (const uint8_t *)w->codes + (row0 + r) * w->row_bytes, (size_t)(n * w->row_bytes));
        }
        a.src = stage_send(s, (size_t)(n * w->row_bytes));
        a.row0 = r;
        pack_codes<<<dim3((unsigned)((units + 255) / 256), (unsigned)n), 256, 0, d->stream>>>(a);
        if (c.block_bytes) pack_block_scales<<<dim3((unsigned)((p->n_groups + 127) / 128), (unsigned)n), 128, 0, d->stream>>>(a, c.block_bytes);
        oz_cuda_note(d, cudaGetLastError());
        stage_done(s);
    }
}

static void scales_send(stage *s, oz_cuda_packed *p, const oz_weight *w, int64_t row0, bool offsets) {
    const int64_t rows = p->head.rows, g = p->n_groups, step = OZ_STAGE_BYTES / (g * (int64_t)sizeof(float));
    for (int64_t r = 0; r < rows; r += step) {
        const int64_t n = rows - r < step ? rows - r : step;
        float *host = (float *)stage_take(s);
        for (int64_t i = 0; i < n; i++) {
            const int64_t stored = oz_weight_stored_row(w, row0 + r + i), first = w->one_scale ? 0 : stored * g;
            size_t skip = 0;
            oz_dtype_bytes(&skip, w->scale_dtype, first);
            oz_to_f32(host + i * g, w->scale_dtype, (const uint8_t *)w->scales + skip, g);
            for (int64_t k = 0; offsets && k < g; k++) host[i * g + k] = -(float)w->zeros[stored * g + k] * host[i * g + k];
        }
        const float *dev = (const float *)stage_send(s, (size_t)(n * g) * sizeof(float));
        pack_scales<<<(unsigned)((n * g + 255) / 256), 256, 0, s->d->stream>>>(offsets ? p->offsets : p->scales, dev, r, n, g);
        oz_cuda_note(s->d, cudaGetLastError());
        stage_done(s);
    }
}

/* Room for the inputs of a product whose columns have an order. Graphs that know the old room are captured anew. */
static oz_status gathered_reserve(oz_cuda_dev *d, int64_t cols, oz_err *err) {
    const size_t n_bytes = (size_t)OZ_GATHER_TOK * (size_t)oz_gathered_ld(cols) * sizeof(float);
    if (n_bytes <= d->gathered_bytes) return OZ_OK;
    OZ_TRY(oz_cuda_check(cudaStreamSynchronize(d->stream), "packing", err));
    cudaFree(d->gathered);
    d->gathered = NULL, d->gathered_bytes = 0, d->batch.generation++;
    OZ_TRY(oz_cuda_check(cudaMalloc((void **)&d->gathered, n_bytes), "inputs in a weight's order", err));
    d->gathered_bytes = n_bytes;
    return OZ_OK;
}

/* One block of memory: codes, scales, offsets, the columns' order; rows padded to whole tiles, so that kernels may read a tile past the end. */
static oz_status packed_alloc(oz_cuda_packed *p, oz_cuda_dev *d, bool has_scales, bool has_offsets, bool has_order, oz_err *err) {
    const int64_t rows = (p->head.rows + OZ_ROW_TILE - 1) / OZ_ROW_TILE * OZ_ROW_TILE;
    const size_t n_codes = ((size_t)rows * (size_t)p->stride_bytes + 255) & ~(size_t)255, n_scales = has_scales ? ((size_t)(rows * p->n_groups) * sizeof(float) + 255) & ~(size_t)255 : 0;
    const size_t n_values = n_codes + n_scales * (has_offsets ? 2 : 1);
    p->head.n_bytes = n_values + (has_order ? (size_t)p->head.cols * sizeof *p->order : 0);
    void *mem;
    OZ_TRY(d->head.ops->mem_new(&mem, &d->head, p->head.n_bytes, "packed weight", err));
    p->codes = (uint8_t *)mem;
    if (has_scales) p->scales = (float *)(p->codes + n_codes);
    if (has_offsets) p->offsets = (float *)(p->codes + n_codes + n_scales);
    if (has_order) p->order = (int32_t *)(p->codes + n_values);
    return OZ_OK;
}

/* Which activations a kind can meet at all. */
static oz_status check_form(const oz_cuda_packed *p, const oz_weight *w, bool has_offsets, oz_err *err) {
    const char *kind = kind_names[p->kind], *act = form_names[p->form];
    const bool q8 = p->form == OZ_FORM_Q8, f8 = p->form == OZ_FORM_F8;
    OZ_NEED((!q8 || p->kind == OZ_CK_I8) && (!f8 || p->kind == OZ_CK_F8), err, OZ_E_UNSUPPORTED, "no kernel gemm_%s_%s on CUDA", kind, act);
    OZ_NEED(!(q8 || f8) || (p->n_groups == 1 && !has_offsets), err, OZ_E_UNSUPPORTED, "no kernel gemm_%s_%s on CUDA for groups or zero points: it takes one scale a row", kind, act);
    OZ_NEED(!q8 || w->cols <= 1 << 17, err, OZ_E_UNSUPPORTED, "gemm_%s_q8: expected at most %d columns (int32 sums), found %lld", kind, 1 << 17, (long long)w->cols);
    return OZ_OK;
}

/* The host rounds: the card is given codes. */
static oz_status pack_rounded(oz_packed **out, oz_dev *dev, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err) {
    oz_weight codes;
    void *mem;
    oz_pool *pool = oz_pool_new(0);
    oz_status st = oz_weight_quantize(&codes, &mem, w, w->rtn, pool, err);
    oz_pool_free(&pool);
    if (st != OZ_OK) return st;
    st = oz_cuda_pack(out, dev, &codes, row0, n_rows, form, err);
    oz_big_free(mem);
    return st;
}

oz_status oz_cuda_pack(oz_packed **out, oz_dev *dev, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err) {
    if (w->rtn) return pack_rounded(out, dev, w, row0, n_rows, form, err);
    oz_cuda_dev *d = oz_cuda(dev);
    const pack_codec c = codec_get(w->codec);
    *out = NULL;
    OZ_NEED(c.kind < OZ_CK_COUNT, err, OZ_E_UNSUPPORTED, "no kernel for %s weights on CUDA; run it with --device cpu, or make it plain first: ounce convert", oz_codec_get(w->codec)->name);
    OZ_NEED(row0 >= 0 && n_rows > 0 && row0 <= w->rows - n_rows && w->cols > 0 && w->row_bytes <= OZ_STAGE_BYTES, err, OZ_E_ARG, "weight [%lld, %lld]: rows %lld to %lld cannot be packed",
            (long long)w->rows, (long long)w->cols, (long long)row0, (long long)(row0 + n_rows));
    const bool has_scales = c.block_bytes || !oz_codec_get(w->codec)->plain, has_offsets = c.has_offset || w->zeros;
    const bool grouped = has_scales && w->group_size > 0 && w->group_size < w->cols && !w->one_scale;
    oz_cuda_packed *p = (oz_cuda_packed *)oz_alloc(sizeof *p);
    p->head.rows = n_rows, p->head.cols = w->cols, p->kind = c.kind, p->form = form;
    p->layout = c.kind == OZ_CK_I4 || ((c.kind == OZ_CK_I8 || c.kind == OZ_CK_F8) && (form == OZ_FORM_BF16 || form == OZ_FORM_F16)) ? OZ_LAYOUT_WOVEN : OZ_LAYOUT_PLAIN;
    p->group_size = c.block_bytes ? (int64_t)GGUF_BLOCK : grouped ? w->group_size : w->cols;
    p->n_groups = (w->cols + p->group_size - 1) / p->group_size;
    p->stride_bytes = ((w->cols * kind_bits[c.kind] + 7) / 8 + OZ_ROW_ALIGN - 1) / OZ_ROW_ALIGN * OZ_ROW_ALIGN;
    oz_status st = oz_cuda_check(cudaSetDevice(d->device), "packing", err);
    if (st == OZ_OK) st = check_form(p, w, has_offsets, err);
    if (st == OZ_OK) st = packed_alloc(p, d, has_scales, has_offsets, w->order, err);
    if (st == OZ_OK && w->order) st = gathered_reserve(d, w->cols, err);
    stage s = {d, 0};
    if (st == OZ_OK) {
        codes_send(&s, p, w, row0);
        if (has_scales && !c.block_bytes) scales_send(&s, p, w, row0, false);
        if (has_offsets && !c.block_bytes) scales_send(&s, p, w, row0, true);
        if (w->order) d->head.ops->upload(dev, p->order, w->order, (size_t)w->cols * sizeof *w->order);
        st = oz_cuda_check(d->failed, "packing", err);
        d->failed = cudaSuccess;
    }
    if (st == OZ_OK && !oz_cuda_linear_bind(d, p)) oz_log_warn("%s [%lld, %lld]: only the plain kernel fits (groups of %lld columns); it is slow", p->name, (long long)n_rows, (long long)w->cols, (long long)p->group_size);
    p->head.kernel = p->name;
    *out = &p->head;
    if (st != OZ_OK) oz_cuda_packed_free(dev, out);
    return st;
}

void oz_cuda_packed_free(oz_dev *dev, oz_packed **p) {
    if (!*p) return;
    dev->ops->mem_free(dev, ((oz_cuda_packed *)*p)->codes);
    oz_free(*p);
    *p = NULL;
}
