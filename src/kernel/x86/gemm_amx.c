/* Products with AMX, for int8 and bf16 activations, within the blocks of gemm_avx512.c and on its panels.
 *
 * 16 steps of a panel's vector are a tile of weights as they lie: 16 rows of 64 bytes, each 4 int8 or 2 bf16 columns of 16 rows of the weight. 16 tokens'
 * next 64 bytes are a tile of activations, and 16 tokens by 16 rows are a tile of sums. A panel, two vectors, times up to 32 tokens takes all eight tiles:
 * 4 of sums and 2 of either side, so that every tile loaded is used twice.
 *
 * int8: signed activations times codes plus 128, unsigned; the sums begin at -128 times the sum of the activations, and are exact.
 * bf16: an instruction sums its products of even and of odd columns apart, each multiplication and addition rounded once, then adds
 * both to the sum, so that its order is a law of the level. It takes subnormals as zero and gives none.
 *
 * Codes that are not bf16 are expanded for up to 32 tokens into a tile that stays in L1, each while the one before it is multiplied: tiles are multiplied beside
 * the vectors' work, which is what takes the time. (Rejected: pieces of K expanded before they are multiplied, 28 cycles for 64 codes of 8 bits; up to 4
 * tokens in f32 on registers, in the order of the instruction.) For more tokens a piece of K is expanded once for all of a block.
 *
 * A group of scales has sums of its own, from zero, which are then added times its scale; so has each part of one that the pieces of K cut.
 *
 * What does not fill a tile (the end of a run of K, or of the tokens) has tiles configured for it: nothing outside of a run is read. Tiles hold nothing
 * between calls. */
#include "kernel/x86/gemm_avx512.h"
#include "kernel/x86/tiles_amx.h"

enum { STEPS = 16, MAX_TOKENS = 32, MAX_PANELS = 4, PREFETCH_TILES = 2, STEP_COLS = 2 /* of bf16 */, TILE = 64 * STEPS };
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

/* n tiles of K, of so many steps each, of a panel. The stream of codes goes on at next. */
typedef struct strip { const uint8_t *codes, *next, *x; int64_t n, n_steps; bool zero; } strip; /* zero: sums begin */

INLINE void prefetch(const oz_run *r, const strip *s, int64_t k) {
    const uint8_t *at = k + PREFETCH_TILES < s->n ? s->codes + TILE * (k + PREFETCH_TILES) : s->next + TILE * (k + PREFETCH_TILES - s->n);
#pragma GCC unroll 16
    for (int i = 0; i < STEPS; i++) {
        _mm_prefetch((const char *)at + 64 * i, _MM_HINT_T0);
        _mm_prefetch((const char *)at + r->apart + 64 * i, _MM_HINT_T0);
    }
}

/* Codes as they lie to a tile of each vector. Returns where they go on. */
INLINE const uint8_t *expand_tiles(oz_wkind kind, uint8_t *dst, const uint8_t *codes, int64_t n_steps, const __m512i *book) {
    const int steps = oz_chunk_cols(kind) / STEP_COLS;
    for (int64_t s = 0; s < n_steps; s += steps, dst += 64 * steps) {
        for (int v = 0; v < OZ_VECTORS; v++, codes += 64) {
            _mm_prefetch((const char *)codes + OZ_STREAM, _MM_HINT_T0);
            const oz_chunk c = oz_load_chunk(kind, codes, book);
#pragma GCC unroll 4
            for (int j = 0; j < steps; j++) _mm512_store_si512(dst + TILE * v + 64 * j, oz_bf16_of(kind, &c, j, book));
        }
    }
    return codes;
}

#define MULTIPLY(c, a, b) do { if (q8) _tile_dpbsud(c, a, b); else _tile_dpbf16ps(c, a, b); } while (0)
#define BEGIN(c, at) do { if (s->zero) _tile_zero(c); else _tile_loadd(c, at, 64); } while (0)

/* kind (BF16 for all that needs no expanding) and two_rows (more than 16 tokens) are constants, as q8 is, of int8. */
INLINE void sum_strip(oz_wkind kind, bool q8, bool two_rows, __m512i *sums, const oz_run *r, const strip *s) {
    _Alignas(64) uint8_t room[2][OZ_VECTORS * TILE];
    const bool own = kind == OZ_WKIND_BF16;
    const size_t ld = (size_t)r->ld, apart = own ? r->apart : TILE;
    const uint8_t *x = s->x, *codes = s->codes, *next = s->codes;
    __m512i *second = sums + r->n_tok, book[4];
    oz_load_book(book, kind, r->book);
    if (!own) next = expand_tiles(kind, room[0], next, s->n_steps, book);
    oz_tile_written();
    BEGIN(0, sums);
    BEGIN(1, second);
    if (two_rows) BEGIN(2, sums + 16);
    if (two_rows) BEGIN(3, second + 16);
    for (int64_t k = 0; k < s->n; k++, x += 64, codes += TILE) {
        const uint8_t *w = own ? codes : room[k % 2];
        if (own && r->cold) prefetch(r, s, k);
        if (!own && k + 1 < s->n) next = expand_tiles(kind, room[(k + 1) % 2], next, s->n_steps, book);
        oz_tile_written();
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x, ld);
        MULTIPLY(0, 4, 6);
        _tile_loadd(7, w + apart, 64);
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

/* All panels over n tiles, of so many steps, from a step on. */
INLINE void sum_panels(oz_wkind kind, bool q8, __m512i *sums, const oz_run *r, int64_t step, int64_t n, int64_t n_steps, bool zero) {
    const int64_t chunk_steps = oz_chunk_cols(kind) / STEP_COLS, pitch = kind == OZ_WKIND_BF16 ? 64 : OZ_PITCH;
    for (int p = 0; p < r->n_panel; p++, sums += OZ_VECTORS * r->n_tok) {
        const uint8_t *codes = r->codes + (size_t)p * r->stride + step / chunk_steps * pitch;
        const strip s = {codes, p + 1 < r->n_panel ? codes + r->stride : r->codes + 64 * (step + STEPS * n), r->x + 4 * step, n, n_steps, zero};
        if (r->n_tok > 16) sum_strip(kind, q8, true, sums, r, &s);
        else sum_strip(kind, q8, false, sums, r, &s);
    }
}

/* Steps [begin, end) of a run; *configured is the number of steps that tiles of K have now. */
INLINE void sum_steps(oz_wkind kind, bool q8, __m512i *sums, const oz_run *r, int64_t begin, int64_t end, bool zero, int64_t *configured) {
    const int64_t n = (end - begin) / STEPS, rest = (end - begin) % STEPS;
    if (n > 0) {
        if (*configured != STEPS) configure(r->n_tok, *configured = STEPS);
        sum_panels(kind, q8, sums, r, begin, n, STEPS, zero);
    }
    if (rest > 0) {
        if (*configured != rest) configure(r->n_tok, *configured = rest);
        sum_panels(kind, q8, sums, r, begin + n * STEPS, 1, rest, zero && n == 0);
    }
}

static void sum_q8(__m512i *sums, const oz_run *r) {
    int64_t configured = 0;
    sum_steps(OZ_WKIND_BF16, true, sums, r, 0, r->n_units * OZ_UNIT_AVX512 / 4, false, &configured);
    _tile_release();
}

enum { UNIT_STEPS = OZ_UNIT_AVX512 / STEP_COLS };

static __m512i plus_scaled(__m512i sum, __m512i part, const float *scales) {
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(part), _mm512_loadu_ps(scales), _mm512_castsi512_ps(sum)));
}

/* Where the sum ends that began at unit u: with its group, or with the piece of K that many tokens are summed over. */
static int64_t run_end(int64_t u, int64_t left, int64_t n_units) {
    const int64_t piece = OZ_PIECE_AVX512 / UNIT_STEPS, end = left < piece - u % piece ? u + left : u + piece - u % piece;
    return end < n_units ? end : n_units;
}

INLINE void sum_of(oz_wkind kind, __m512i *sums, const oz_run *r) {
    __m512i part[MAX_TOKENS * MAX_PANELS * OZ_VECTORS];
    int64_t configured = 0, left = r->units_left;
    const float *scales = r->scales;
    if (r->scale_stride == 0) sum_steps(kind, false, sums, r, 0, r->n_units * UNIT_STEPS, false, &configured);
    else for (int64_t u = 0, end; u < r->n_units; u = end) {
        end = run_end(u, left, r->n_units);
        sum_steps(kind, false, part, r, u * UNIT_STEPS, end * UNIT_STEPS, true, &configured);
        for (int i = 0; i < OZ_VECTORS * r->n_panel * r->n_tok; i++) {
            const int v = i / r->n_tok;
            sums[i] = plus_scaled(sums[i], part[i], scales + (size_t)(v / OZ_VECTORS) * r->scale_stride + v % OZ_VECTORS * OZ_VECTOR);
        }
        left -= end - u;
        if (left == 0) scales += OZ_PANEL, left = r->units_group;
    }
    _tile_release();
}
static void sum_bf16(__m512i *sums, const oz_run *r) { sum_of(OZ_WKIND_BF16, sums, r); }
static void sum_i8(__m512i *sums, const oz_run *r) { sum_of(OZ_WKIND_I8, sums, r); }
static void sum_f8(__m512i *sums, const oz_run *r) { sum_of(OZ_WKIND_F8, sums, r); }
static void sum_l4(__m512i *sums, const oz_run *r) { sum_of(OZ_WKIND_L4, sums, r); }

/* Four panels share a block's activations while those are in L2; of few tokens they fit in L1 beside one. */
#define TILING(n_panels, f) {.block = 128, .tokens = MAX_TOKENS, .panels = n_panels, .sum = f}
static const oz_tiling q8_tiling = TILING(MAX_PANELS, sum_q8), q8_few_tiling = TILING(1, sum_q8);
static const oz_tiling bf16_tiling = TILING(MAX_PANELS, sum_bf16), bf16_few_tiling = TILING(1, sum_bf16);
enum { FEW_TOKENS = 16 };

static void gemm_q8(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
    oz_gemm__avx512(t, OZ_FORM_Q8, t->n_tok <= FEW_TOKENS ? &q8_few_tiling : &q8_tiling, panel0, panel1);
}
static void gemm_bf16(const oz_gemm_task *t, int64_t panel0, int64_t panel1) {
#define CODED(f) {.block = MAX_TOKENS, .tokens = MAX_TOKENS, .panels = 1, .raw = true, .sum = f}
    static const oz_tiling coded[OZ_WKIND_COUNT] = {[OZ_WKIND_I8] = CODED(sum_i8), [OZ_WKIND_F8] = CODED(sum_f8), [OZ_WKIND_I4] = CODED(sum_l4), [OZ_WKIND_U4] = CODED(sum_l4), [OZ_WKIND_L4] = CODED(sum_l4)};
    if (t->n_tok <= MAX_TOKENS && coded[t->w->kind].sum) oz_gemm__avx512(t, OZ_FORM_BF16, &coded[t->w->kind], panel0, panel1);
    else oz_gemm__avx512(t, OZ_FORM_BF16, t->n_tok <= FEW_TOKENS ? &bf16_few_tiling : &bf16_tiling, panel0, panel1);
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
