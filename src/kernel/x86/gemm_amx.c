/* Products with AMX, for int8 and bf16 activations, within the blocks of gemm_avx512.c and on its panels.
 *
 * 16 steps of a panel's vector are a tile of weights as they lie: 16 rows of 64 bytes, each 4 int8 or 2 bf16 columns of 16 rows of the weight. 16 tokens'
 * next 64 bytes are a tile of activations, and 16 tokens by 16 rows are a tile of sums. A panel, two vectors, times up to 32 tokens takes all eight tiles:
 * 4 of sums and 2 of either side, so that every tile loaded is used twice.
 *
 * int8: signed activations times codes plus 128, unsigned; the sums begin at -128 times the sum of the activations, and are exact: few tokens
 * are left to vpdpbusd. bf16: an instruction sums its products of even and of odd columns apart, each multiplication and addition rounded once, then adds
 * both to the sum, so that its order is a law of the level. Few tokens of kinds that are not bf16 follow it in f32 on registers: expanding codes into
 * memory for a tile costs more than the tile saves there. It takes subnormals as zero and gives none.
 *
 * A group of scales has sums of its own, from zero, which are then added times its scale; so has each part of one that the pieces of K cut.
 *
 * What does not fill a tile (the end of a run of K, or of the tokens) has tiles configured for it: nothing outside of a run is read. Tiles hold nothing
 * between calls. */
#include "kernel/x86/gemm_avx512.h"
#include "kernel/x86/tiles_amx.h"

enum { STEPS = 16, MAX_TOKENS = 32, MAX_PANELS = 4, VECTOR_TOKENS = 4, PREFETCH_TILES = 2, STEP_COLS = 2 /* of bf16 */ };
#define INLINE OZ_INLINE

/* Tiles 0, 1: sums of the first 16 tokens with the first and the second panel; 2, 3: of the others. 4, 5: activations. 6, 7: weights. */
static void configure(int n_tok, int64_t n_steps) {
    const int first = n_tok < 16 ? n_tok : 16, second = n_tok - first;
    oz_tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i >= 6 ? n_steps : i == 2 || i == 3 || i == 5 ? second : first);
        c.row_bytes[i] = (uint16_t)(c.rows[i] == 0 ? 0 : i == 4 || i == 5 ? 4 * n_steps : 64);
    }
    oz_tile_configure(&c);
}

/* n tiles of K of a panel. The stream of codes goes on at next. */
typedef struct strip { const uint8_t *codes, *next, *x; int64_t n; bool zero; } strip; /* zero: sums begin */

INLINE void prefetch(const oz_run *r, const strip *s, int64_t k) {
    const uint8_t *at = k + PREFETCH_TILES < s->n ? s->codes + 64 * STEPS * (k + PREFETCH_TILES) : s->next + 64 * STEPS * (k + PREFETCH_TILES - s->n);
#pragma GCC unroll 16
    for (int i = 0; i < STEPS; i++) {
        _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T0);
        _mm_prefetch((const char *)at + r->apart + 64 * i, _MM_HINT_T0);
    }
}

#define MULTIPLY(c, a, b) do { if (q8) _tile_dpbsud(c, a, b); else _tile_dpbf16ps(c, a, b); } while (0)
#define BEGIN(c, at) do { if (s->zero) _tile_zero(c); else _tile_loadd(c, at, 64); } while (0)

/* q8 and two_rows (more than 16 tokens) are constants. */
INLINE void sum_strip(bool q8, bool two_rows, __m512i *sums, const oz_run *r, const strip *s) {
    const size_t ld = (size_t)r->ld;
    const uint8_t *x = s->x, *codes = s->codes;
    __m512i *second = sums + r->n_tok;
    oz_tile_written();
    BEGIN(0, sums);
    BEGIN(1, second);
    if (two_rows) BEGIN(2, sums + 16);
    if (two_rows) BEGIN(3, second + 16);
    for (int64_t k = 0; k < s->n; k++, x += 64, codes += 64 * STEPS) {
        if (r->cold) prefetch(r, s, k);
        _tile_loadd(6, codes, 64);
        _tile_loadd(4, x, ld);
        MULTIPLY(0, 4, 6);
        _tile_loadd(7, codes + r->apart, 64);
        MULTIPLY(1, 4, 7);
        if (two_rows) _tile_loadd(5, x + 16 * ld, ld);
        if (two_rows) MULTIPLY(2, 5, 6);
        if (two_rows) MULTIPLY(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, second, 64);
    if (two_rows) _tile_stored(2, sums + 16, 64);
    if (two_rows) _tile_stored(3, second + 16, 64);
}

/* All panels over n tiles from a step on. */
INLINE void sum_panels(bool q8, __m512i *sums, const oz_run *r, int64_t step, int64_t n, bool zero) {
    for (int p = 0; p < r->n_panel; p++, sums += OZ_VECTORS * r->n_tok) {
        const uint8_t *codes = r->codes + (size_t)p * r->stride + 64 * step;
        const strip s = {codes, p + 1 < r->n_panel ? codes + r->stride : r->codes + 64 * (step + STEPS * n), r->x + 4 * step, n, zero};
        if (r->n_tok > 16) sum_strip(q8, true, sums, r, &s);
        else sum_strip(q8, false, sums, r, &s);
    }
}

/* Steps [begin, end) of a run; *configured is the number of steps that tiles of K have now. */
INLINE void sum_steps(bool q8, __m512i *sums, const oz_run *r, int64_t begin, int64_t end, bool zero, int64_t *configured) {
    const int64_t n = (end - begin) / STEPS, rest = (end - begin) % STEPS;
    if (n > 0) {
        if (*configured != STEPS) configure(r->n_tok, *configured = STEPS);
        sum_panels(q8, sums, r, begin, n, zero);
    }
    if (rest > 0) {
        if (*configured != rest) configure(r->n_tok, *configured = rest);
        sum_panels(q8, sums, r, begin + n * STEPS, 1, zero && n == 0);
    }
}

static void sum_q8(__m512i *sums, const oz_run *r) {
    int64_t configured = 0;
    sum_steps(true, sums, r, 0, r->n_units * OZ_UNIT_AVX512 / 4, false, &configured);
    _tile_release();
}

enum { UNIT_STEPS = OZ_UNIT_AVX512 / STEP_COLS };

static __m512i plus_scaled(__m512i sum, __m512i part, const float *scales) {
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(part), _mm512_loadu_ps(scales), _mm512_castsi512_ps(sum)));
}

static void sum_bf16(__m512i *sums, const oz_run *r) {
    __m512i part[MAX_TOKENS * MAX_PANELS * OZ_VECTORS];
    int64_t configured = 0, left = r->units_left;
    const float *scales = r->scales;
    if (r->scale_stride == 0) sum_steps(false, sums, r, 0, r->n_units * UNIT_STEPS, false, &configured);
    else for (int64_t u = 0, end; u < r->n_units; u = end, scales += OZ_PANEL, left = r->units_group) {
        end = u + left < r->n_units ? u + left : r->n_units;
        sum_steps(false, part, r, u * UNIT_STEPS, end * UNIT_STEPS, true, &configured);
        for (int i = 0; i < OZ_VECTORS * r->n_panel * r->n_tok; i++) {
            const int v = i / r->n_tok;
            sums[i] = plus_scaled(sums[i], part[i], scales + (size_t)(v / OZ_VECTORS) * r->scale_stride + v % OZ_VECTORS * OZ_VECTOR);
        }
    }
    _tile_release();
}

/* ---- the same sums on registers: few tokens of codes as they lie, one panel ---- */

/* A tile of K of at most 16 steps; sums [OZ_VECTORS, n_tok]. kind and n_tok are constants. */
INLINE void tile_few(oz_wkind kind, int n_tok, __m512 *sums, const oz_run *r, int64_t step, int64_t n_steps, const __m512i *book) {
    enum { MAX = VECTOR_TOKENS * OZ_VECTORS };
    const int chunk_steps = oz_chunk_cols(kind) / STEP_COLS;
    const uint8_t *codes = r->codes + step / chunk_steps * OZ_PITCH, *x = r->x + 4 * step;
    __m512 even[MAX], odd[MAX];
#pragma GCC unroll 8
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) even[i] = odd[i] = _mm512_setzero_ps();
    for (int64_t s = 0; s < n_steps; s += chunk_steps, codes += OZ_PITCH) {
        const oz_chunk c[OZ_VECTORS] = {oz_load_chunk(kind, codes, book), oz_load_chunk(kind, codes + 64, book)};
#pragma GCC unroll 4
        for (int j = 0; j < chunk_steps; j++, x += 4) {
            __m512 w[OZ_VECTORS][STEP_COLS];
#pragma GCC unroll 2
            for (int v = 0; v < OZ_VECTORS; v++) w[v][0] = oz_f32_of(kind, &c[v], 2 * j, book), w[v][1] = oz_f32_of(kind, &c[v], 2 * j + 1, book);
#pragma GCC unroll 4
            for (int t = 0; t < n_tok; t++) {
                const __m512i pair = oz_broadcast(x + t * r->ld);
                const __m512 first = oz_f32_of_bf16(pair, 0), second = oz_f32_of_bf16(pair, 1);
#pragma GCC unroll 2
                for (int v = 0; v < OZ_VECTORS; v++) {
                    even[v * n_tok + t] = _mm512_fmadd_ps(first, w[v][0], even[v * n_tok + t]);
                    odd[v * n_tok + t] = _mm512_fmadd_ps(second, w[v][1], odd[v * n_tok + t]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) sums[i] = _mm512_add_ps(sums[i], _mm512_add_ps(even[i], odd[i]));
}

INLINE void steps_few(oz_wkind kind, int n_tok, __m512 *sums, const oz_run *r, int64_t begin, int64_t end, const __m512i *book) {
    for (int64_t step = begin; step < end; step += STEPS) tile_few(kind, n_tok, sums, r, step, end - step < STEPS ? end - step : STEPS, book);
}

/* The compiler does not move what becomes of them across the change of a mode. */
INLINE void stay(__m512 *v, int n) {
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) __asm__ volatile("" : "+v"(v[i]));
}

/* Where the sum ends that began at unit u: with its group, or with the piece of K that many tokens would be summed over. */
INLINE int64_t run_end(int64_t u, int64_t left, int64_t n_units) {
    const int64_t piece = OZ_PIECE_AVX512 / UNIT_STEPS, end = left < piece - u % piece ? u + left : u + piece - u % piece;
    return end < n_units ? end : n_units;
}

INLINE void sum_few(oz_wkind kind, int n_tok, __m512i *sums, const oz_run *r) {
    enum { FLUSH = 0x8000, TAKE_ZEROS = 0x40 }; /* subnormals are zeros: that are given, that are taken */
    __m512 part[VECTOR_TOKENS * OZ_VECTORS];
    int64_t left = r->units_left;
    const float *scales = r->scales;
    __m512i book[4];
    oz_load_book(book, kind, r->book);
    if (kind == OZ_WKIND_L4) book[0] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(book[0])), 16); /* bf16, of which the lower half has each once, to f32 */
    const unsigned mode = _mm_getcsr(), flush = mode | FLUSH | TAKE_ZEROS;
    const bool grouped = r->scale_stride > 0;
    for (int64_t u = 0, end; u < r->n_units; u = end) {
        end = grouped ? run_end(u, left, r->n_units) : r->n_units;
        for (int i = 0; i < OZ_VECTORS * n_tok; i++) part[i] = grouped ? _mm512_setzero_ps() : _mm512_castsi512_ps(sums[i]);
        _mm_setcsr(flush);
        stay(part, OZ_VECTORS * n_tok);
        steps_few(kind, n_tok, part, r, u * UNIT_STEPS, end * UNIT_STEPS, book);
        stay(part, OZ_VECTORS * n_tok);
        _mm_setcsr(mode);
        for (int i = 0; i < OZ_VECTORS * n_tok; i++) sums[i] = grouped ? plus_scaled(sums[i], _mm512_castps_si512(part[i]), scales + i / n_tok * OZ_VECTOR) : _mm512_castps_si512(part[i]);
        left -= end - u;
        if (left == 0) scales += OZ_PANEL, left = r->units_group;
    }
}

#define FEW(kind)                                                      \
    static void few_##kind(__m512i *sums, const oz_run *r) {           \
        switch (r->n_tok) {                                            \
        case 1: sum_few(OZ_WKIND_##kind, 1, sums, r); break;           \
        case 2: sum_few(OZ_WKIND_##kind, 2, sums, r); break;           \
        case 3: sum_few(OZ_WKIND_##kind, 3, sums, r); break;           \
        default: sum_few(OZ_WKIND_##kind, VECTOR_TOKENS, sums, r);     \
        }                                                              \
    }
FEW(I8) FEW(F8) FEW(L4)

/* Four panels share a block's activations while those are in L2; of few tokens they fit in L1 beside one. */
static const oz_tiling q8_tiling = {.block = 128, .tokens = MAX_TOKENS, .panels = MAX_PANELS, .sum = sum_q8};
static const oz_tiling bf16_tiling = {.block = 128, .tokens = MAX_TOKENS, .panels = MAX_PANELS, .sum = sum_bf16};
static const oz_tiling bf16_few_tiling = {.block = 128, .tokens = MAX_TOKENS, .panels = 1, .sum = sum_bf16};

static void gemm_q8(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
    if (t->n_tok <= VECTOR_TOKENS) oz_gemm_q8__avx512(t, panel0, panel1);
    else oz_gemm__avx512(t, OZ_FORM_Q8, &q8_tiling, panel0, panel1);
}
static void gemm_bf16(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
#define FEW_TILING(kind) {.block = VECTOR_TOKENS, .tokens = VECTOR_TOKENS, .panels = 1, .raw = true, .sum = few_##kind}
    static const oz_tiling few[OZ_WKIND_COUNT] = {[OZ_WKIND_I8] = FEW_TILING(I8), [OZ_WKIND_F8] = FEW_TILING(F8), [OZ_WKIND_I4] = FEW_TILING(L4), [OZ_WKIND_U4] = FEW_TILING(L4), [OZ_WKIND_L4] = FEW_TILING(L4)};
    if (t->n_tok <= VECTOR_TOKENS && few[t->w->kind].sum) oz_gemm__avx512(t, OZ_FORM_BF16, &few[t->w->kind], panel0, panel1);
    else oz_gemm__avx512(t, OZ_FORM_BF16, t->n_tok <= 16 ? &bf16_few_tiling : &bf16_tiling, panel0, panel1);
}

/* Panels, packing and reading back stay AVX-512's. */
void oz_gemm_init__amx(oz_cpu_table *t) {
    static const struct { oz_wkind kind; oz_form form; const char *name; void (*gemm)(const oz_gemm_task *t, int64_t panel0, int64_t panel1); } entries[] = {
        {OZ_WKIND_I8, OZ_FORM_Q8, "gemm_i8_q8__amx", gemm_q8},       {OZ_WKIND_BF16, OZ_FORM_BF16, "gemm_bf16_bf16__amx", gemm_bf16},
        {OZ_WKIND_I8, OZ_FORM_BF16, "gemm_i8_bf16__amx", gemm_bf16}, {OZ_WKIND_I4, OZ_FORM_BF16, "gemm_i4_bf16__amx", gemm_bf16},
        {OZ_WKIND_F8, OZ_FORM_BF16, "gemm_f8_bf16__amx", gemm_bf16}, {OZ_WKIND_U4, OZ_FORM_BF16, "gemm_u4_bf16__amx", gemm_bf16},
        {OZ_WKIND_L4, OZ_FORM_BF16, "gemm_l4_bf16__amx", gemm_bf16},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        oz_gemm_row *row = &t->gemm[entries[i].kind][entries[i].form];
        row->name = entries[i].name;
        row->gemm = entries[i].gemm;
    }
}
