/* The CUDA device: opening and closing, memory, the batch of a call, and the table of operations.
 *
 * The runtime is linked statically and loads the driver itself: where there is none, the device is not present and the program runs on the
 * CPU. Operations return void; what fails on the device is noted and reported by `end`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernel/cuda/internal.h"
extern "C" {
#include "base/progress.h"
}

oz_status oz_cuda_check(cudaError_t e, const char *what, oz_err *err) {
    if (e == cudaSuccess) return OZ_OK;
    cudaGetLastError();
    return oz_err_set(err, e == cudaErrorMemoryAllocation ? OZ_E_NOMEM : OZ_E_IO, __FILE__, __LINE__, "cuda: %s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

void oz_cuda_note(oz_cuda_dev *d, cudaError_t e) {
    if (e != cudaSuccess && d->failed == cudaSuccess) d->failed = e;
}

#ifdef OZ_MUTATE
int oz_mutation, oz_n_mutation_files;
void (*oz_mutation_files[32])(int m);
void oz_cuda_mutate(oz_cuda_mutation m) {
    oz_mutation = m;
    for (int i = 0; i < oz_n_mutation_files; i++) oz_mutation_files[i](m);
}
#endif

/* ---- memory ---- */

static oz_status mem_new(void **out, oz_dev *dev, size_t n_bytes, const char *what, oz_err *err) {
    oz_cuda_dev *d = oz_cuda(dev);
    *out = NULL;
    OZ_TRY(oz_cuda_check(cudaSetDevice(d->device), what, err));
    cudaError_t e = cudaMalloc(out, n_bytes ? n_bytes : 1);
    if (e != cudaSuccess) {
        cudaGetLastError();
        OZ_FAIL(err, OZ_E_NOMEM, "%s: %zu bytes on the device: %s", what, n_bytes, cudaGetErrorString(e));
    }
    return oz_cuda_check(cudaMemsetAsync(*out, 0, n_bytes, d->stream), what, err);
}

static void mem_free(oz_dev *dev, void *p) {
    if (!p) return;
    cudaStreamSynchronize(oz_cuda(dev)->stream);
    cudaFree(p);
}

static void upload(oz_dev *dev, void *dst, const void *src, size_t n_bytes) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_note(d, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyHostToDevice, d->stream));
    oz_cuda_note(d, cudaStreamSynchronize(d->stream));
}

static void download(oz_dev *dev, void *dst, const void *src, size_t n_bytes) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_note(d, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDeviceToHost, d->stream));
    oz_cuda_note(d, cudaStreamSynchronize(d->stream));
}

static void copy(oz_dev *dev, void *dst, const void *src, size_t n_bytes) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_note(d, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDeviceToDevice, d->stream));
}

static int form_bytes(oz_form form) {
    switch (form) {
    case OZ_FORM_F32: return 4;
    case OZ_FORM_BF16: case OZ_FORM_F16: return 2;
    default: return 1;
    }
}

/* ---- the batch: one pinned block, one copy. [ids, pos, seq, rows: cap_tok each][slots: cap_seq][tables: cap_seq x ld] ---- */

static int64_t power_of_two(int64_t n) {
    int64_t p = 64;
    while (p < n) p *= 2;
    return p;
}

static oz_status batch_grow(oz_cuda_dev *d, int64_t n_tok, int64_t n_seq, int64_t ld, oz_err *err) {
    oz_cuda_batch *b = &d->batch;
    if (n_tok <= b->cap_tok && n_seq <= b->cap_seq && ld <= b->ld) return OZ_OK;
    OZ_TRY(oz_cuda_check(cudaStreamSynchronize(d->stream), "batch", err));
    cudaFree(d->batch_mem);
    cudaFreeHost(d->batch_pinned);
    d->batch_mem = NULL, d->batch_pinned = NULL;
    const uint64_t generation = b->generation + 1;
    const int64_t cap_tok = power_of_two(n_tok > b->cap_tok ? n_tok : b->cap_tok), cap_seq = power_of_two(n_seq > b->cap_seq ? n_seq : b->cap_seq);
    const int64_t cap_ld = power_of_two(ld > b->ld ? ld : b->ld);
    *b = (oz_cuda_batch){};
    b->generation = generation;
    d->batch_bytes = (size_t)(4 * cap_tok + cap_seq + cap_seq * cap_ld) * sizeof(int32_t);
    OZ_TRY(oz_cuda_check(cudaMalloc(&d->batch_mem, d->batch_bytes), "batch", err));
    OZ_TRY(oz_cuda_check(cudaMallocHost((void **)&d->batch_pinned, d->batch_bytes), "batch", err));
    const int32_t *at = (const int32_t *)d->batch_mem;
    b->ids = at, b->pos = at + cap_tok, b->seq = at + 2 * cap_tok, b->rows = at + 3 * cap_tok, b->slots = at + 4 * cap_tok, b->tables = b->slots + cap_seq;
    b->ld = cap_ld, b->cap_tok = cap_tok, b->cap_seq = cap_seq;
    return OZ_OK;
}

static oz_status begin(oz_dev *dev, const oz_batch *host, oz_err *err) {
    oz_cuda_dev *d = oz_cuda(dev);
    oz_cuda_batch *b = &d->batch;
    if (b->host == host) return OZ_OK; /* models in lockstep share it */
    OZ_TRY(oz_cuda_check(cudaSetDevice(d->device), "batch", err));
    int64_t n_tok = host->n_tok > host->n_rows ? host->n_tok : host->n_rows, ld = 1, max_len = 0;
    for (int64_t s = 0; s < host->n_segs; s++) {
        const int64_t len = host->segs[s].pos0 + host->segs[s].n_tok, n = (len + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
        if (n > ld) ld = n;
        if (len > max_len) max_len = len;
        if (host->segs[s].tok0 + host->segs[s].n_tok > n_tok) n_tok = host->segs[s].tok0 + host->segs[s].n_tok;
    }
    OZ_TRY(batch_grow(d, n_tok, host->n_segs, ld, err));
    int32_t *ids = d->batch_pinned, *pos = ids + b->cap_tok, *seq = pos + b->cap_tok, *rows = seq + b->cap_tok, *slots = rows + b->cap_tok, *tables = slots + b->cap_seq;
    memset(ids, 0, (size_t)b->cap_tok * 4 * sizeof *ids);
    memset(pos, 0xff, (size_t)b->cap_tok * sizeof *pos);
    if (host->ids) memcpy(ids, host->ids, (size_t)host->n_tok * sizeof *ids);
    if (host->n_rows) memcpy(rows, host->rows, (size_t)host->n_rows * sizeof *rows);
    for (int64_t s = 0; s < host->n_segs; s++) {
        const oz_seg *g = &host->segs[s];
        for (int64_t t = 0; t < g->n_tok; t++) pos[g->tok0 + t] = (int32_t)(g->pos0 + t), seq[g->tok0 + t] = (int32_t)s;
        slots[s] = host->slots ? host->slots[s] : (int32_t)s;
        if (g->blocks) memcpy(tables + s * b->ld, g->blocks, (size_t)((g->pos0 + g->n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK) * sizeof *tables);
    }
    const size_t n_bytes = (size_t)(4 * b->cap_tok + b->cap_seq + host->n_segs * b->ld) * sizeof(int32_t);
    b->n_tok = host->n_tok, b->n_rows = host->n_rows, b->max_len = max_len, b->host = host;
    return oz_cuda_check(cudaMemcpyAsync(d->batch_mem, d->batch_pinned, n_bytes, cudaMemcpyHostToDevice, d->stream), "batch", err);
}

static oz_status end(oz_dev *dev, oz_err *err) {
    oz_cuda_dev *d = oz_cuda(dev);
    d->batch.host = NULL;
    oz_cuda_note(d, cudaStreamSynchronize(d->stream));
    oz_cuda_note(d, cudaGetLastError());
    const cudaError_t e = d->failed;
    d->failed = cudaSuccess;
    return oz_cuda_check(e, "a call on the device", err);
}

static const oz_ops ops = {
    mem_new, mem_free, upload, download, copy, form_bytes, 0 /* latents are not expanded */, NULL, oz_cuda_pack, oz_cuda_packed_free, begin, end,
    oz_cuda_embed, oz_cuda_norm, oz_cuda_quantize, oz_cuda_round, NULL, NULL /* no ranks */, oz_cuda_linear, oz_cuda_rope_table, oz_cuda_rope, oz_cuda_rope_pairs, oz_cuda_kv_write,
    oz_cuda_mla_write, oz_cuda_latent, oz_cuda_attention, oz_cuda_conv, oz_cuda_scan,
    oz_cuda_silu_mul, oz_cuda_gelu_mul, oz_cuda_scale, oz_cuda_softcap, oz_cuda_add, oz_cuda_gather, oz_cuda_route, oz_cuda_sort, oz_cuda_spread, oz_cuda_grouped, oz_cuda_combine, oz_cuda_sink_stat, oz_cuda_sink_kl,
    oz_cuda_lower, oz_cuda_lowered_free, oz_cuda_lowered_run, oz_cuda_lowered_print, &oz_cuda_calib,
};

/* ---- the device ---- */


/* The machine code in this build is for compute capability 9.0. */
static bool runs_here(int device) {
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
}

static bool present(void) {
    int n = 0;
    const bool found = cudaGetDeviceCount(&n) == cudaSuccess && n > 0 && runs_here(0);
    cudaGetLastError();
    return found;
}

static oz_status dev_init(oz_cuda_dev *d, oz_err *err) {
    cudaDeviceProp prop;
    OZ_TRY(oz_cuda_check(cudaSetDevice(d->device), "device", err));
    OZ_TRY(oz_cuda_check(cudaGetDeviceProperties(&prop, d->device), "device", err));
    OZ_NEED(runs_here(d->device), err, OZ_E_UNSUPPORTED, "cuda:%d (%s): this build runs on compute capability 9.0, found %d.%d", d->device, prop.name, prop.major, prop.minor);
    d->n_sms = prop.multiProcessorCount;
    OZ_TRY(oz_cuda_check(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "stream", err));
    for (int i = 0; i < 2; i++) {
        OZ_TRY(oz_cuda_check(cudaMallocHost((void **)&d->pinned[i], OZ_STAGE_BYTES), "pinned memory", err));
        OZ_TRY(oz_cuda_check(cudaMalloc((void **)&d->staged[i], OZ_STAGE_BYTES), "staging", err));
        OZ_TRY(oz_cuda_check(cudaEventCreateWithFlags(&d->staged_done[i], cudaEventDisableTiming), "event", err));
    }
    d->work_bytes = OZ_WORK_BYTES;
    OZ_TRY(oz_cuda_check(cudaMalloc((void **)&d->work, d->work_bytes), "workspace", err));
    OZ_TRY(oz_cuda_check(cudaMalloc((void **)&d->tickets, (OZ_TICKETS + 1) * sizeof *d->tickets), "workspace", err));
    OZ_TRY(oz_cuda_check(cudaMemset(d->tickets, 0, OZ_TICKETS * sizeof *d->tickets), "workspace", err));
    oz_lt_open(d);
    snprintf(d->head.describe, sizeof d->head.describe, "cuda:%d %.64s%s%s", d->device, prop.name, d->deterministic ? ", deterministic" : "",
             d->lt ? "" : ", without cuBLASLt");
    return OZ_OK;
}

static void dev_close(oz_dev *dev) {
    oz_cuda_dev *d = oz_cuda(dev);
    if (d->stream) cudaStreamSynchronize(d->stream);
    oz_cuda_factor_close(d);
    oz_lt_close(d);
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(d->pinned[i]);
        cudaFree(d->staged[i]);
        if (d->staged_done[i]) cudaEventDestroy(d->staged_done[i]);
    }
    cudaFree(d->work);
    cudaFree(d->gathered);
    cudaFree(d->tickets);
    cudaFree(d->batch_mem);
    cudaFreeHost(d->batch_pinned);
    if (d->stream) cudaStreamDestroy(d->stream);
    oz_free(d);
}

static oz_status dev_open(oz_dev **out, const oz_dev_cfg *cfg, const char *suffix, oz_err *err) {
    char *rest = NULL;
    const long device = suffix ? strtol(suffix, &rest, 10) : 0;
    OZ_NEED(!suffix || (rest != suffix && *rest == 0 && device >= 0), err, OZ_E_USAGE, "--device: expected cuda or cuda:N, found \"%s\"", cfg->name);
    int n = 0, driver = 0; /* its version; 0: there is none, which the runtime calls insufficient */
    const cudaError_t e = cudaGetDeviceCount(&n);
    cudaDriverGetVersion(&driver);
    cudaGetLastError();
    OZ_NEED(e != cudaErrorInsufficientDriver || driver > 0, err, OZ_E_NOT_FOUND, "cuda: no NVIDIA driver on this machine");
    OZ_NEED(e == cudaSuccess, err, OZ_E_NOT_FOUND, "cuda: no device here: %s", cudaGetErrorString(e));
    OZ_NEED(device < n, err, OZ_E_NOT_FOUND, "cuda:%ld: this machine has %d", device, n);
    oz_cuda_dev *d = (oz_cuda_dev *)oz_alloc(sizeof *d);
    d->head.backend = &oz_cuda_backend, d->head.ops = &ops, d->head.threads = 1;
    d->device = (int)device, d->deterministic = cfg->deterministic;
    const oz_status st = dev_init(d, err);
    if (st != OZ_OK) dev_close(&d->head);
    else *out = &d->head;
    return st;
}

extern "C" const oz_backend oz_cuda_backend = {"cuda", present, dev_open, dev_close, oz_cuda_ceiling};
