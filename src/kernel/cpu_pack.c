/* From a stored weight to a packed one: codes go to the panel layout of the row that will multiply, scales to f32.
 *
 * The table maps a codec to the kind that it becomes in memory. GGUF blocks carry their scales in the codes and are taken apart here (number/block.c);
 * codes of 4 and 8 bits keep their size, those between take the next. A zero point becomes an offset, -zero * scale, since kernels know one form
 * only, value = code * scale + offset. */
#include <string.h>
#include "base/mem.h"
#include "kernel/cpu.h"

enum {
    GROUP_STEP = 16,
    MAX_COLS_Q8 = 1 << 17, /* 128 * 127 * 2^17 < 2^31: int32 sums are exact */
    SLAB_WORTH = 1 << 16,  /* bytes of a weight; pages do not matter to a smaller one */
};

static const oz_wkind kinds[OZ_CODEC_COUNT] = {
    [OZ_CODEC_F32] = OZ_WKIND_F32,   [OZ_CODEC_F16] = OZ_WKIND_F16,   [OZ_CODEC_BF16] = OZ_WKIND_BF16,
    [OZ_CODEC_I8] = OZ_WKIND_I8,     [OZ_CODEC_I8P] = OZ_WKIND_I8,    [OZ_CODEC_I4P] = OZ_WKIND_I4,   [OZ_CODEC_F8E4M3] = OZ_WKIND_F8,
    [OZ_CODEC_Q8_0] = OZ_WKIND_I8,   [OZ_CODEC_Q5_0] = OZ_WKIND_I8,   [OZ_CODEC_Q5_1] = OZ_WKIND_I8,  [OZ_CODEC_Q5_K] = OZ_WKIND_I8, [OZ_CODEC_Q6_K] = OZ_WKIND_I8,
    [OZ_CODEC_Q4_0] = OZ_WKIND_I4,   [OZ_CODEC_Q3_K] = OZ_WKIND_I4,
    [OZ_CODEC_Q4_1] = OZ_WKIND_U4,   [OZ_CODEC_Q2_K] = OZ_WKIND_U4,   [OZ_CODEC_Q4_K] = OZ_WKIND_U4,
    [OZ_CODEC_IQ4_NL] = OZ_WKIND_L4, [OZ_CODEC_IQ4_XS] = OZ_WKIND_L4, [OZ_CODEC_MXFP4] = OZ_WKIND_L4, [OZ_CODEC_E2M1] = OZ_WKIND_L4,
};

static const char *const kind_names[OZ_WKIND_COUNT] = {"f32", "f16", "bf16", "i8", "i4", "f8", "u4", "l4"};
static const char *const form_names[OZ_FORM_COUNT] = {"f32", "q8", "f8", "bf16", "f16"};

typedef struct pack_job {
    oz_pool *pool;
    oz_cpu_packed *p; /* the first run */
    const oz_weight *w;
    const oz_block_type *block; /* NULL: codes and scales lie apart */
    int64_t row0;
    oz_err *errs;   /* a thread, where values are rounded */
    float *scratch; /* a thread: codes [panel, cols], scales [n_groups], offsets [n_groups] */
    int64_t scratch_floats;
} pack_job;

static void read_blocks(float *codes, float *scales, float *offsets, const pack_job *j, const uint8_t *row) {
    const oz_dtype_info *t = oz_dtype_get(oz_codec_get(j->w->codec)->dtype);
    const int64_t n_groups = t->block_elems / j->block->group;
    oz_block b;
    for (int64_t k = 0; k < j->p->head.cols; k += t->block_elems, row += t->block_bytes) {
        j->block->split(&b, row);
        for (int64_t i = 0; i < t->block_elems; i++) codes[k + i] = b.codes[i];
        for (int64_t g = 0; g < n_groups; g++) scales[k / j->block->group + g] = b.scales[g], offsets[k / j->block->group + g] = b.offsets[g];
    }
}

static void read_scales(float *scales, float *offsets, const pack_job *j, int64_t stored) {
    const oz_codec_info *info = oz_codec_get(j->w->codec);
    oz_weight_scales(scales, offsets, j->w, stored);
    for (int64_t g = 0; g < j->p->n_groups; g++) {
        offsets[g] = -offsets[g] * scales[g];
        if (info->codebook) scales[g] *= info->unit;
    }
}

static void round_row(float *codes, float *scales, float *offsets, const pack_job *j, int64_t r, int thread) {
    oz_weight_row(codes, j->w, j->row0 + r, 0, j->p->head.cols);
    if (j->errs[thread].code != OZ_OK || oz_rtn_numbers(codes, scales, offsets, j->w->rtn, codes, j->p->head.cols, &j->errs[thread]) == OZ_OK) return;
    oz_err_prefix(&j->errs[thread], "row %lld", (long long)(j->row0 + r));
}

/* Codes of row r of a run; its scales go to where they lie there. */
static void read_row(const pack_job *j, oz_cpu_packed *p, float *codes, float *scratch, int64_t row, int thread) {
    const int64_t panel = row / p->row->panel, lane = row % p->row->panel, r = p->row0 + row;
    int64_t stored = oz_weight_stored_row(j->w, j->row0 + r);
    float *scales = scratch, *offsets = scratch + p->n_groups;
    if (j->w->rtn) {
        round_row(codes, scales, offsets, j, r, thread);
    } else if (j->block) {
        read_blocks(codes, scales, offsets, j, (const uint8_t *)j->w->codes + stored * j->w->row_bytes);
    } else {
        oz_weight_codes(codes, j->w, stored, 0, p->head.cols);
        if (p->scales || p->scales16) read_scales(scales, offsets, j, stored);
    }
    if (p->scales16) p->scales16[panel * p->row->panel + lane] = oz_bf16_from_f32(scales[0]); /* exact */
    for (int64_t g = 0; p->scales && g < p->n_groups; g++) {
        int64_t at = (panel * p->n_groups + g) * p->row->panel + lane;
        p->scales[at] = scales[g];
        if (p->offsets) p->offsets[at] = offsets[g];
    }
}

/* Panels of a run. */
static void pack_panels(const pack_job *j, oz_cpu_packed *p, int thread, int64_t begin, int64_t end) {
    const int64_t lanes = p->row->panel;
    float *codes = j->scratch + thread * j->scratch_floats, *rest = codes + lanes * p->head.cols;
    for (int64_t panel = begin; panel < end; panel++) {
        for (int64_t i = 0; i < lanes; i++) {
            const int64_t r = panel * lanes + i;
            if (r < p->head.rows) {
                read_row(j, p, codes + i * p->head.cols, rest, r, thread);
            } else {
                memset(codes + i * p->head.cols, 0, (size_t)p->head.cols * sizeof *codes);
            }
        }
        p->row->pack(p->codes + (size_t)panel * p->panel_bytes, codes, p->head.cols);
    }
}

static void pack_shares(void *arg, int thread, int64_t begin, int64_t end) {
    const pack_job *j = arg;
    const int node = oz_pool_node_of(j->pool, thread);
    oz_cpu_packed *run = j->p;
    for (int i = 0; i < node; i++) run = run->next;
    const oz_pool_node its = oz_pool_node_at(j->pool, node);
    const oz_share ours = oz_pool_share(run->n_panels, its.n, thread - its.first);
    pack_panels(j, run, thread, ours.begin, ours.end);
}

/* What lies beside the codes; narrow: scales of 16 bits. */
typedef struct beside { bool scales, narrow, offsets; } beside;

/* One block of memory: codes, scales, offsets. */
static oz_status run_alloc(oz_cpu_packed *p, oz_slab **slabs, beside has, oz_err *err) {
    size_t n_codes, n_scales = 0, n_groups = (size_t)p->n_groups;
    bool ok = oz_mul_size(&n_codes, (size_t)p->n_panels, p->panel_bytes);
    if (has.scales) {
        ok = ok && oz_mul_size(&n_scales, (size_t)p->n_panels * n_groups, (size_t)p->row->panel * (has.narrow ? sizeof(uint16_t) : sizeof(float)));
        n_scales = (n_scales + 63) & ~(size_t)63;
    }
    OZ_NEED(ok, err, OZ_E_NOMEM, "packed weight [%lld, %lld]: its size overflows", (long long)p->head.rows, (long long)p->head.cols);
    p->head.n_bytes = n_codes + n_scales * (has.offsets ? 2 : 1);
    if (p->n_panels == 0) return OZ_OK;
    void *mem;
    if (p->head.n_bytes < SLAB_WORTH) {
        OZ_TRY(oz_big_new(&mem, p->head.n_bytes, "packed weight", err));
    } else {
        OZ_TRY(oz_slab_new(&mem, slabs, p->head.n_bytes, "packed weight", err));
    }
    p->codes = mem;
    if (has.scales && has.narrow) p->scales16 = (uint16_t *)(p->codes + n_codes);
    else if (has.scales) p->scales = (float *)(p->codes + n_codes);
    if (has.offsets) p->offsets = (float *)(p->codes + n_codes + n_scales);
    return OZ_OK;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A run a node, of a weight of which `whole` says all but where it lies. After an error, too, *out is to be freed. */
static oz_status runs_new(oz_cpu_packed **out, oz_cpu_dev *d, const oz_cpu_packed *whole, beside has, oz_err *err) {
    size_t n_bytes = 0;
    oz_cpu_packed **at = out;
    for (int node = 0; node < oz_pool_nodes(d->pool); node++, at = &(*at)->next) {
        const oz_pool_node its = oz_pool_node_at(d->pool, node);
        const int64_t first = oz_pool_share(whole->n_panels, oz_pool_threads(d->pool), its.first).begin;
        oz_cpu_packed *p = *at = oz_alloc(sizeof *p);
        *p = *whole;
        p->n_panels = oz_pool_share(whole->n_panels, oz_pool_threads(d->pool), its.first + its.n - 1).end - first;
        p->row0 = least(first * p->row->panel, whole->head.rows);
        if (node > 0) p->head.rows = least(p->n_panels * p->row->panel, whole->head.rows - p->row0);
        OZ_TRY(run_alloc(p, &d->slabs[node], has, err));
        n_bytes += p->head.n_bytes;
    }
    (*out)->head.n_bytes = n_bytes;
    return OZ_OK;
}

/* Room for inputs in the order of a weight's columns. */
static oz_status gathered_reserve(oz_cpu_dev *d, int64_t cols, oz_err *err) {
    const size_t n_bytes = (size_t)cols * OZ_GATHER_TOK * sizeof(float);
    if (n_bytes <= d->gathered_bytes) return OZ_OK;
    oz_big_free(d->gathered);
    d->gathered = NULL, d->gathered_bytes = 0;
    OZ_TRY(oz_big_new((void **)&d->gathered, n_bytes * (size_t)oz_dev_threads(&d->head), "inputs in the order of columns", err));
    d->gathered_bytes = n_bytes;
    return OZ_OK;
}

/* What no row of this level can take, before anything is allocated. */
static oz_status check_form(oz_dev *d, oz_codec stored, const oz_cpu_packed *p, bool has_offsets, oz_form form, oz_err *err) {
    const char *kind = kind_names[p->kind], *act = form_names[form], *codec = oz_codec_get(stored)->name;
    OZ_NEED(p->row->gemm, err, OZ_E_UNSUPPORTED, "no kernel gemm_%s_%s at CPU level %s (weights %s, activations %s)", kind, act,
            oz_cpu(d)->table.level, codec, act);
    OZ_NEED(p->n_groups == 1 || p->group_size % GROUP_STEP == 0, err, OZ_E_UNSUPPORTED,
            "no kernel gemm_%s_%s for groups of %lld columns: expected a multiple of %d", kind, act, (long long)p->group_size, GROUP_STEP);
    const bool quantized = form == OZ_FORM_Q8 || form == OZ_FORM_F8;
    OZ_NEED(!quantized || (p->n_groups == 1 && !has_offsets), err, OZ_E_UNSUPPORTED,
            "no kernel gemm_%s_%s for %s: it takes one scale a row and no zero point, found groups of %lld columns%s", kind, act, codec,
            (long long)p->group_size, has_offsets ? " with zero points" : "");
    OZ_NEED(form != OZ_FORM_Q8 || p->head.cols <= MAX_COLS_Q8, err, OZ_E_UNSUPPORTED,
            "gemm_%s_q8: expected at most %d columns (int32 sums), found %lld", kind, MAX_COLS_Q8, (long long)p->head.cols);
    return OZ_OK;
}

bool oz_cpu_multiplies(const oz_dev *d, oz_codec codec, oz_form form) {
    return ((const oz_cpu_dev *)d)->table.gemm[kinds[codec]][form].gemm != NULL;
}

oz_status oz_cpu_pack(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err) {
    const oz_codec codec = w->rtn ? w->rtn->codec : w->codec;
    *out = NULL;
    const oz_block_type *block = oz_block_get(oz_codec_get(codec)->dtype);
    if (!block->group) block = NULL;
    const oz_wkind kind = kinds[codec];
    OZ_NEED(row0 >= 0 && n_rows > 0 && row0 <= w->rows - n_rows && w->cols > 0, err, OZ_E_ARG,
            "weight [%lld, %lld]: rows %lld to %lld cannot be packed", (long long)w->rows, (long long)w->cols, (long long)row0,
            (long long)(row0 + n_rows));
    beside has = {.scales = block || !oz_codec_get(codec)->plain, .offsets = block ? block->has_offsets : w->zeros != NULL};
    oz_cpu_packed p = {.row = &oz_cpu(d)->table.gemm[kind][form], .kind = kind, .head = {NULL, n_rows, w->cols, 0}, .codebook = block ? block->codebook : oz_codec_get(codec)->codebook};
    const int64_t group = w->rtn ? w->rtn->group_size : w->group_size;
    const oz_dtype scale_dtype = w->rtn ? w->rtn->scale_dtype : w->scale_dtype;
    bool grouped = has.scales && group > 0 && group < w->cols && !w->one_scale;
    p.group_size = block ? block->group : grouped ? group : w->cols;
    p.n_groups = (w->cols + p.group_size - 1) / p.group_size;
    OZ_TRY(check_form(d, codec, &p, has.offsets, form, err));
    if (w->order) OZ_TRY(gathered_reserve(oz_cpu(d), w->cols, err));
    p.head.kernel = p.row->name;
    p.n_panels = (n_rows + p.row->panel - 1) / p.row->panel;
    p.panel_bytes = p.row->panel_bytes(w->cols);
    has.narrow = !block && p.n_groups == 1 && !has.offsets && scale_dtype == OZ_DTYPE_BF16;

    pack_job job = {.pool = oz_cpu(d)->pool, .w = w, .block = block, .row0 = row0};
    job.scratch_floats = p.row->panel * w->cols + 2 * p.n_groups;
    void *scratch;
    OZ_TRY(oz_big_new(&scratch, (size_t)job.scratch_floats * (size_t)oz_dev_threads(d) * sizeof(float), "chunk of rows to pack", err));
    job.scratch = scratch;
    job.errs = oz_alloc_array((size_t)oz_dev_threads(d), sizeof *job.errs);
    if (w->order) p.order = memcpy(oz_alloc_array((size_t)w->cols, sizeof *w->order), w->order, (size_t)w->cols * sizeof *w->order);
    oz_status st = runs_new(&job.p, oz_cpu(d), &p, has, err);
    *out = &job.p->head;
    if (st == OZ_OK) oz_pool_run(job.pool, oz_pool_threads(job.pool), 1, pack_shares, &job);
    for (int t = 0; st == OZ_OK && t < oz_dev_threads(d); t++)
        if (job.errs[t].code != OZ_OK) st = oz_err_set(err, job.errs[t].code, __FILE__, __LINE__, "%s", job.errs[t].msg);
    if (st != OZ_OK) oz_cpu_packed_free(d, out);
    oz_free(job.errs);
    oz_big_free(scratch);
    return st;
}

static void run_free(oz_cpu_dev *d, oz_cpu_packed *p) {
    bool found = false;
    for (int node = 0; node < OZ_MAX_NODES && !found; node++) found = oz_slab_free(&d->slabs[node], p->codes);
    if (!found) oz_big_free(p->codes);
    oz_free(p);
}

void oz_cpu_packed_free(oz_dev *d, oz_packed **p) {
    if (!*p) return;
    oz_cpu_packed *run = (oz_cpu_packed *)*p;
    oz_free(run->order);
    for (oz_cpu_packed *next; run; run = next) {
        next = run->next;
        run_free(oz_cpu(d), run);
    }
    *p = NULL;
}
