/* Products with AVX-512, for every kind of weight and form of activation.
 *
 * A step of a sum takes one 32-bit word of a token's activations, broadcast, and one vector of 16 rows: 1 column in f32 (vfmadd), 2 in bf16
 * (vdpbf16ps) or 4 in int8 (vpdpbusd). So after their codes are expanded all products are the same loop, and only three things differ: how
 * a chunk of 64 bytes of codes becomes vectors, the instruction, and what is done to a sum at its end.
 *
 * Codes of a chunk (gemm_pack_avx512.c): F32, F16 plain; BF16 two columns of a row side by side; I8 and F8 four; 4 bits eight, so that shifts by 4
 * bits bring each in turn to the place that a table of 16 f32 or bf16 values is looked up by. Beside floats I8 and F8 are a sign above 7 bits, which two
 * tables of 128 bytes turn into both halves of a bf16: 6 instructions for 64 codes, where converting int8 to f32 and packing pairs took 14. What is expanded
 * to bf16 is exact: codes have at most 8 significant bits. vdpbf16ps takes subnormals as zero and gives none: a product or sum under 2^-126 is lost.
 *
 * int8: vpdpbusd wants one unsigned side. Weights are kept plus 128 and sums begin at -128 times the sum of the token's activations. Additions wrap
 * around, so that the end is exact whatever happens between (pack bounds K, so that the end fits).
 *
 * Order of a sum: one chain over ascending k where a row has one scale or none, for the scale is applied at the end. Scales by groups, and all codes of 4
 * bits, work in units of 16 columns, which no group of scales divides: a unit is one chain from zero, and sum = sum + scale * unit, fused. Chains of
 * different units wait for nothing, which one token of 4 bits needs, and groups cost a multiplication in 8. (Rejected: a chain a group, groups or panels apart
 * from each other side by side for one token: many streams instead of one, 10 to 19 GB/s a core.)
 *
 * Tiles: a panel is two vectors of rows. Of kinds that need expanding their chunks lie side by side: one stream, two chains that wait for nothing of each
 * other's (one token in groups of 64, 4 bits: 29 GB/s a core, and 23 with panels of one vector). What needs nothing but the instruction is faster by a
 * tenth as one chain after the other, each its own stream. 12 tokens by a panel of a form's own kind are 24 sums, which with 2 vectors of weights
 * and one of activations fill the registers; 8 leave room for the tables of 8-bit codes, and units have 6 tokens, sums and chains. Kinds that need
 * expanding do it in registers for up to two tiles of 8; for more, a piece of K is expanded into L2 once for all tiles of a block of tokens, and is then
 * what a form's own kind is. While the first tile multiplies, the next piece of 8-bit codes is expanded (512 tokens: some 5 % faster than before the tile, in a few runs). K is cut
 * into pieces that with the block's activations fit in L2; sums are parked between pieces. Tiles and pieces do not show in a sum: a token's result does
 * not depend on its company. Another level may bring tiles of its own (oz_tiling; gemm_amx.c).
 *
 * Codes that are expanded are fetched 8 KB ahead: a chunk of them takes so many instructions that the processor itself does not look far enough (int8 and 4
 * tokens, one thread: 20 GB/s, and 15 without). A form's own kind streams faster without (W8A8, one token: 154 tokens/s, and 124 to 150 with it).
 *
 * Zen 4 at 3.7 GHz, two cores, 2026-11-29, [1536, 576]: see docs/performance.md. */
#include "kernel/x86/gemm_avx512.h"

#define INLINE OZ_INLINE
enum {
    TOKENS = 12, RAW_TOKENS = 8, UNIT_TOKENS = 6, /* of a tile; of one whose codes are expanded in registers; and that sums units */
    UNIT = OZ_UNIT_AVX512,         /* columns */
    PIECE = OZ_PIECE_AVX512,       /* 32 KB of a panel, expanded */
    MAX_PANELS = 4, MAX_BLOCK = 128, /* of all tilings */
};

/* The compiler neither moves work across this nor keeps activations for later: it would run out of registers. */
#define KEEP(v) __asm__ volatile("" : "+v"(v) : : "memory")

INLINE int step_cols(oz_form form) { return form == OZ_FORM_Q8 ? 4 : form == OZ_FORM_BF16 ? 2 : 1; }

/* Step j of a chunk. form and kind are constants at every call; kind is L4 for all codes of 4 bits, book what codes stand for. */
INLINE __m512i expand(oz_form form, oz_wkind kind, const oz_chunk *c, int j, const __m512i *book) {
    return form == OZ_FORM_Q8 ? c->v[0] : form == OZ_FORM_BF16 ? oz_bf16_of(kind, c, j, book) : _mm512_castps_si512(oz_f32_of(kind, c, j, book));
}

INLINE __m512i multiply_add(oz_form form, __m512i sum, __m512i w, __m512i x) {
    if (form == OZ_FORM_Q8) return _mm512_dpbusd_epi32(sum, w, x);
    const __m512 s = _mm512_castsi512_ps(sum);
    if (form == OZ_FORM_BF16) return _mm512_castps_si512(_mm512_dpbf16_ps(s, (__m512bh)w, (__m512bh)x));
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), s));
}

/* ---- one tile over one run of units ---- */

typedef oz_run run;
typedef oz_sum_fn sum_fn;

/* acc [OZ_VECTORS, n_tok] go on by step j of a chunk, x of this step. */
INLINE void step(oz_form form, oz_wkind kind, int n_tok, __m512i *acc, const oz_chunk *c, const uint8_t *x, int64_t ld, int j, const __m512i *book) {
    const __m512i w[OZ_VECTORS] = {expand(form, kind, &c[0], j, book), expand(form, kind, &c[1], j, book)};
#pragma GCC unroll 12
    for (int t = 0; t < n_tok; t++) {
        const __m512i xv = oz_broadcast(x + t * ld);
#pragma GCC unroll 2
        for (int v = 0; v < OZ_VECTORS; v++) {
            acc[v * n_tok + t] = multiply_add(form, acc[v * n_tok + t], w[v], xv);
            KEEP(acc[v * n_tok + t]);
        }
    }
}

/* By one chunk of each vector, which are so far apart. */
INLINE void chunk_steps(oz_form form, oz_wkind kind, int n_tok, __m512i *acc, const uint8_t *codes, size_t apart, const uint8_t *x, int64_t ld, const __m512i *book) {
    const oz_wkind lies = form == OZ_FORM_Q8 ? OZ_WKIND_F32 : kind; /* what the instruction takes stays as it lies */
    const oz_chunk c[OZ_VECTORS] = {oz_load_chunk(lies, codes, book), oz_load_chunk(lies, codes + apart, book)};
    const int steps = oz_chunk_cols(kind) / step_cols(form);
#pragma GCC unroll 8
    for (int j = 0; j < steps; j++) step(form, kind, n_tok, acc, c, x + 4 * j, ld, j, book);
}

/* One token, a form's own kind: vector after vector. */
INLINE void sum_one(oz_form form, oz_wkind kind, __m512i *sums, const run *r) {
    const int64_t n_steps = r->n_units * (UNIT / step_cols(form));
    for (int v = 0; v < OZ_VECTORS; v++) {
        const uint8_t *codes = r->codes + v * r->apart, *x = r->x;
        __m512i acc = _mm512_load_si512(sums + v);
#pragma GCC unroll 4
        for (int64_t s = 0; s < n_steps; s++, codes += 64, x += 4) {
            acc = multiply_add(form, acc, _mm512_load_si512(codes), oz_broadcast(x));
            KEEP(acc);
        }
        _mm512_store_si512(sums + v, acc);
    }
}

/* The next chunk of each vector of a panel to a piece's place for it. */
INLINE void expand_chunks(oz_form form, oz_wkind kind, uint8_t *dst, const uint8_t *codes, const __m512i *book) {
    const int steps = oz_chunk_cols(kind) / step_cols(form);
#pragma GCC unroll 2
    for (int v = 0; v < OZ_VECTORS; v++) {
        _mm_prefetch((const char *)codes + 64 * v + OZ_STREAM, _MM_HINT_T0);
        const oz_chunk c = oz_load_chunk(kind, codes + 64 * v, book);
#pragma GCC unroll 8
        for (int j = 0; j < steps; j++) _mm512_store_si512(dst + 64 * (j + PIECE * v), expand(form, kind, &c, j, book));
    }
}

/* One chain. */
INLINE void sum_whole(oz_form form, oz_wkind kind, int n_tok, __m512i *sums, const run *r) {
    const int steps = oz_chunk_cols(kind) / step_cols(form);
    const bool own = steps == 1;
    const size_t apart = own ? r->apart : 64, pitch = own ? 64 : OZ_PITCH;
    const int64_t n_chunks = r->n_units * (UNIT / oz_chunk_cols(kind)), ld = r->ld;
    const uint8_t *x = r->x, *codes = r->codes;
    __m512i acc[TOKENS * OZ_VECTORS], book[4];
    if (own && n_tok == 1) {
        sum_one(form, kind, sums, r);
        return;
    }
    if (!own) oz_load_book(book, kind, r->book);
#pragma GCC unroll 24
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) acc[i] = _mm512_load_si512(sums + i);
#pragma GCC unroll 4
    for (int64_t c = 0; c < n_chunks; c++, codes += pitch, x += 4 * steps) {
        if (!own) _mm_prefetch((const char *)codes + OZ_STREAM, _MM_HINT_T0), _mm_prefetch((const char *)codes + 64 + OZ_STREAM, _MM_HINT_T0);
        chunk_steps(form, kind, n_tok, acc, codes, apart, x, ld, book);
    }
#pragma GCC unroll 24
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) _mm512_store_si512(sums + i, acc[i]);
}

/* The same of a form's own kind, while r->next is expanded. Tables stay in memory: the registers are full. */
INLINE void sum_ahead(oz_form form, oz_wkind kind, int n_tok, __m512i *sums, const run *r) {
    const int turns = oz_chunk_cols(OZ_WKIND_I8) / step_cols(form); /* steps for a chunk that is expanded */
    const size_t apart = r->apart;
    const int64_t ld = r->ld;
    int64_t n = r->n_units * (UNIT / oz_chunk_cols(OZ_WKIND_I8));
    const uint8_t *x = r->x, *codes = r->codes, *next = r->next;
    const __m512i *book = r->book;
    uint8_t *room = r->room;
    __m512i acc[TOKENS * OZ_VECTORS];
#pragma GCC unroll 24
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) acc[i] = _mm512_load_si512(sums + i);
#pragma GCC unroll 1
    do {
        expand_chunks(form, OZ_WKIND_I8, room, next, book);
#pragma GCC unroll 4
        for (int i = 0; i < turns; i++, codes += 64, x += 4) chunk_steps(form, kind, n_tok, acc, codes, apart, x, ld, book);
        next += OZ_PITCH, room += 64 * turns;
    } while (--n > 0);
#pragma GCC unroll 24
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) _mm512_store_si512(sums + i, acc[i]);
}

/* A chain a unit. */
INLINE void sum_units(oz_form form, oz_wkind kind, int n_tok, __m512i *sums, const run *r) {
    __m512i acc[UNIT_TOKENS * OZ_VECTORS], book[4];
    const int steps = oz_chunk_cols(kind) / step_cols(form), chunks = UNIT / oz_chunk_cols(kind);
    const bool own = steps == 1;
    const size_t apart = own ? r->apart : 64, pitch = own ? 64 : OZ_PITCH;
    const uint8_t *x = r->x, *codes = r->codes;
    const int64_t n_units = r->n_units, ld = r->ld;
    const float *scales = r->scales;
    int64_t left = r->units_left;
    oz_load_book(book, kind, r->book);
#pragma GCC unroll 12
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) acc[i] = _mm512_load_si512(sums + i);
    for (int64_t u = 0; u < n_units; u++, left--) {
        __m512i unit[UNIT_TOKENS * OZ_VECTORS];
        if (left == 0) scales += OZ_PANEL, left = r->units_group;
#pragma GCC unroll 12
        for (int i = 0; i < OZ_VECTORS * n_tok; i++) unit[i] = _mm512_setzero_si512();
#pragma GCC unroll 16
        for (int c = 0; c < chunks; c++, codes += pitch, x += 4 * steps) chunk_steps(form, kind, n_tok, unit, codes, apart, x, ld, book);
#pragma GCC unroll 2
        for (int v = 0; v < OZ_VECTORS; v++) {
            const __m512 scale = _mm512_loadu_ps(scales + OZ_VECTOR * v);
#pragma GCC unroll 6
            for (int t = 0; t < n_tok; t++) {
                __m512i *a = &acc[v * n_tok + t];
                *a = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(unit[v * n_tok + t]), scale, _mm512_castsi512_ps(*a)));
            }
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < OZ_VECTORS * n_tok; i++) _mm512_store_si512(sums + i, acc[i]);
}

/* ---- the functions of a (form, kind) ---- */

#define WHOLE(form, kind, nt) \
    static void whole_##form##_##kind##_##nt(__m512i *sums, const run *r) { sum_whole(OZ_FORM_##form, OZ_WKIND_##kind, nt, sums, r); }
#define AHEAD(form, kind, nt) \
    static void ahead_##form##_##kind##_##nt(__m512i *sums, const run *r) { sum_ahead(OZ_FORM_##form, OZ_WKIND_##kind, nt, sums, r); }
#define UNITS(form, kind, nt) \
    static void units_##form##_##kind##_##nt(__m512i *sums, const run *r) { sum_units(OZ_FORM_##form, OZ_WKIND_##kind, nt, sums, r); }
#define TO_6(what, form, kind) what(form, kind, 1) what(form, kind, 2) what(form, kind, 3) what(form, kind, 4) what(form, kind, 5) what(form, kind, 6)
#define TO_8(what, form, kind) TO_6(what, form, kind) what(form, kind, 7) what(form, kind, 8)
#define FROM_9(what, form, kind) what(form, kind, 9) what(form, kind, 10) what(form, kind, 11) what(form, kind, 12)
/* A piece of a panel, expanded: then it is of the form's own kind. */
#define EXPAND(form, kind)                                                                                                    \
    static void expand_##form##_##kind(uint8_t *dst, const uint8_t *codes, int64_t n_chunks, const __m512i *from) {           \
        __m512i book[4];                                                                                                      \
        const size_t size = 64 * (size_t)(oz_chunk_cols(OZ_WKIND_##kind) / step_cols(OZ_FORM_##form));                        \
        oz_load_book(book, OZ_WKIND_##kind, from);                                                                            \
        for (int64_t c = 0; c < n_chunks; c++, codes += OZ_PITCH, dst += size) expand_chunks(OZ_FORM_##form, OZ_WKIND_##kind, dst, codes, book); \
    }
TO_8(WHOLE, F32, F32) FROM_9(WHOLE, F32, F32) TO_8(WHOLE, BF16, BF16) FROM_9(WHOLE, BF16, BF16) TO_8(WHOLE, Q8, I8) FROM_9(WHOLE, Q8, I8)
FROM_9(AHEAD, F32, F32) FROM_9(AHEAD, BF16, BF16) TO_6(UNITS, F32, F32) TO_6(UNITS, BF16, BF16)
EXPAND(F32, F16) EXPAND(F32, BF16) EXPAND(F32, I8) EXPAND(F32, L4) EXPAND(F32, F8) EXPAND(BF16, I8) EXPAND(BF16, L4) EXPAND(BF16, F8)
TO_8(WHOLE, F32, F16) TO_8(WHOLE, F32, BF16) TO_8(WHOLE, F32, I8) TO_8(WHOLE, F32, F8) TO_8(WHOLE, BF16, I8) TO_8(WHOLE, BF16, F8)
TO_6(UNITS, F32, I8) TO_6(UNITS, F32, L4) TO_6(UNITS, F32, F8) TO_6(UNITS, BF16, I8) TO_6(UNITS, BF16, L4) TO_6(UNITS, BF16, F8)

/* [n_tok - 1] */
typedef struct kind_fns {
    void (*expand)(uint8_t *dst, const uint8_t *codes, int64_t n_chunks, const __m512i *book); /* NULL: the form's own kind */
    sum_fn *whole[TOKENS], *units[UNIT_TOKENS]; /* codes of 4 bits have units alone */
    sum_fn *ahead[TOKENS];                      /* of more than RAW_TOKENS, expanding what comes next */
} kind_fns;

#define SIX(name) name##_1, name##_2, name##_3, name##_4, name##_5, name##_6
#define EIGHT(name) SIX(name), name##_7, name##_8
#define FOUR_MORE(name) name##_9, name##_10, name##_11, name##_12
#define OTHER(form, kind, whole, units) [OZ_FORM_##form][OZ_WKIND_##kind] = {expand_##form##_##kind, {whole}, {units}, {NULL}}
#define BOTH(form, kind) OTHER(form, kind, EIGHT(whole_##form##_##kind), SIX(units_##form##_##kind))
static const kind_fns fns[OZ_FORM_COUNT][OZ_WKIND_COUNT] = {
    OTHER(F32, F16, EIGHT(whole_F32_F16), NULL), OTHER(F32, BF16, EIGHT(whole_F32_BF16), NULL), OTHER(F32, L4, NULL, SIX(units_F32_L4)), OTHER(BF16, L4, NULL, SIX(units_BF16_L4)),
    BOTH(F32, I8), BOTH(F32, F8), BOTH(BF16, I8), BOTH(BF16, F8),
    [OZ_FORM_F32][OZ_WKIND_F32] = {NULL, {EIGHT(whole_F32_F32), FOUR_MORE(whole_F32_F32)}, {SIX(units_F32_F32)}, {[RAW_TOKENS] = FOUR_MORE(ahead_F32_F32)}},
    [OZ_FORM_BF16][OZ_WKIND_BF16] = {NULL, {EIGHT(whole_BF16_BF16), FOUR_MORE(whole_BF16_BF16)}, {SIX(units_BF16_BF16)}, {[RAW_TOKENS] = FOUR_MORE(ahead_BF16_BF16)}},
    [OZ_FORM_Q8][OZ_WKIND_I8] = {NULL, {EIGHT(whole_Q8_I8), FOUR_MORE(whole_Q8_I8)}, {NULL}, {NULL}},
};
static const oz_wkind own_kinds[OZ_FORM_COUNT] = {[OZ_FORM_F32] = OZ_WKIND_F32, [OZ_FORM_BF16] = OZ_WKIND_BF16, [OZ_FORM_Q8] = OZ_WKIND_I8};

/* ---- a block of tokens times some panels ---- */

typedef struct block {
    const oz_gemm_task *t;
    const oz_tiling *tiling;
    oz_form form;                 /* of the loop: F8 activations are floats */
    const kind_fns *fns;
    int64_t elem, unit_bytes;     /* of an activation, of a unit of a stream of codes */
    bool grouped, whole, expands; /* scales by groups; one chain a row; codes go to memory as the instruction takes them */
    __m512i book[4];
    int64_t tok0, n_tok, tile, n_tiles;
    int64_t first; int n_panel;   /* panels at hand */
    int64_t full_units;           /* those whose columns x has all of */
    int64_t last;                 /* panel of the call */
    const uint8_t *expanded;      /* or NULL: of the piece at hand, n_panel of PIECE steps */
    int64_t piece0;               /* its first unit */
    uint8_t *room[2];             /* pieces at hand and next, which change places */
    int64_t next_units, ready;    /* of the next piece: what the first tile may expand, and has */
    __m512i sums[MAX_BLOCK * MAX_PANELS * OZ_VECTORS];
    uint8_t tail[MAX_BLOCK][4 * UNIT]; /* activations of the last, partial unit, padded with zeros */
    int32_t x_sum[MAX_BLOCK];         /* Q8: the sum of a token's activations */
} block;

static int64_t tile_start(const block *b, int64_t i) { /* of vectors the last two tiles are even: a thin one waits on its chains */
    const int64_t last = b->n_tiles - 1, full = b->tile * i;
    return i > last ? b->n_tok : i < last || i == 0 || b->tiling->sum ? full : (full - b->tile + b->n_tok + 1) / 2;
}

static const uint8_t *x_row(const block *b, int64_t tok) {
    const oz_rows *x = &b->t->x;
    return (const uint8_t *)x->data + (b->tok0 + tok) * x->ld * b->elem;
}

/* sums of tile i go on over units [u0, u1) of K. */
static void sum_run(block *b, __m512i *sums, int64_t i, int64_t u0, int64_t u1) {
    static const float ones[OZ_PANEL] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const oz_cpu_packed *w = b->t->w;
    const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok, full = u1 < b->full_units ? u1 : b->full_units;
    const kind_fns *of = b->expanded ? &fns[b->form][own_kinds[b->form]] : b->fns;
    sum_fn *sum = b->tiling->sum ? b->tiling->sum : (b->whole ? of->whole : of->units)[n_tok - 1];
    run r = {.ld = b->t->x.ld * b->elem, .x = x_row(b, tok) + u0 * UNIT * b->elem, .n_units = full - u0, .n_tok = (int)n_tok, .n_panel = b->n_panel, .book = b->book};
    r.cold = !b->expanded && i == 0;
    const int64_t unit_bytes = b->expanded ? 64 * UNIT / step_cols(b->form) : b->unit_bytes;
    r.codes = b->expanded ? b->expanded + unit_bytes * (u0 - b->piece0) : w->codes + (size_t)b->first * w->panel_bytes + unit_bytes * u0;
    r.stride = b->expanded ? OZ_PITCH * PIECE : w->panel_bytes, r.apart = b->expanded ? 64 * PIECE : w->panel_bytes / OZ_VECTORS;
    const int64_t units_group = w->n_groups > 1 ? w->group_size / UNIT : INT64_MAX;
    r.scales = b->grouped ? w->scales + (b->first * w->n_groups + u0 / units_group) * OZ_PANEL : ones;
    r.scale_stride = b->grouped ? (size_t)(w->n_groups * OZ_PANEL) : 0;
    r.units_group = units_group, r.units_left = units_group - u0 % units_group;
    if (i == 0 && b->next_units > 0 && full > u0) {
        r.n_units = b->ready = b->next_units < full - u0 ? b->next_units : full - u0;
        r.next = w->codes + (size_t)b->first * w->panel_bytes + b->unit_bytes * u1, r.room = b->room[1]; /* panels follow each other as pieces do */
        of->ahead[n_tok - 1](sums, &r);
        r.codes += unit_bytes * r.n_units, r.x += r.n_units * UNIT * b->elem, r.n_units = full - u0 - r.n_units;
    }
    if (r.n_units > 0) sum(sums, &r);
    if (u1 == full) return;
    if (r.n_units > 0) r.codes += unit_bytes * r.n_units;
    if (b->grouped) r.scales += (full / units_group - u0 / units_group) * OZ_PANEL, r.units_left = 1;
    r.x = b->tail[tok], r.ld = sizeof b->tail[0], r.n_units = 1;
    sum(sums, &r);
}

/* Sum of x over columns [k0, k1) of a token; the order depends on the columns alone. */
static float sum_x(const block *b, int64_t tok, int64_t k0, int64_t k1) {
    const uint8_t *row = x_row(b, tok);
    __m512 acc = _mm512_setzero_ps();
    for (int64_t k = k0; k < k1; k += 16) {
        const __mmask16 m = k1 - k < 16 ? (__mmask16)((1u << (k1 - k)) - 1) : 0xffff;
        const __m512 v = b->form == OZ_FORM_F32 ? _mm512_maskz_loadu_ps(m, (const float *)row + k)
                                                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)row + k)), 16));
        acc = _mm512_add_ps(acc, v);
    }
    return _mm512_reduce_add_ps(acc);
}

/* A tile's sums += offset * sum of x, group by group. */
static void add_offsets(const block *b, __m512i *sums, int64_t i) {
    const oz_cpu_packed *w = b->t->w;
    const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok, cols = w->head.cols;
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t k0 = g * w->group_size, k1 = k0 + w->group_size < cols ? k0 + w->group_size : cols;
        for (int64_t t = 0; t < n_tok; t++) {
            const __m512 x = _mm512_set1_ps(sum_x(b, tok + t, k0, k1));
            for (int v = 0; v < OZ_VECTORS * b->n_panel; v++) {
                const float *offsets = w->offsets + ((b->first + v / OZ_VECTORS) * w->n_groups + g) * OZ_PANEL + v % OZ_VECTORS * OZ_VECTOR;
                __m512i *s = &sums[v * n_tok + t];
                *s = _mm512_castps_si512(_mm512_fmadd_ps(x, _mm512_loadu_ps(offsets), _mm512_castsi512_ps(*s)));
            }
        }
    }
}

/* y = sum * (scale * x_scale) + bias. Rows past the last are not stored. */
static void store_tile(const block *b, const __m512i *sums, int64_t i) {
    const oz_gemm_task *t = b->t;
    const oz_cpu_packed *w = t->w;
    const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok;
    const bool scaled = w->scales && oz_scale_is_last(w), x_scaled = t->x.form == OZ_FORM_Q8 || t->x.form == OZ_FORM_F8;
    for (int p = 0; p < OZ_VECTORS * b->n_panel; p++) {
        const int64_t r = b->first * OZ_PANEL + p * OZ_VECTOR, n = w->head.rows - r;
        const __mmask16 m = n <= 0 ? 0 : n < OZ_VECTOR ? (__mmask16)((1u << n) - 1) : 0xffff;
        const __m512 scale = scaled ? _mm512_loadu_ps(w->scales + r) : _mm512_set1_ps(1.0f), none = _mm512_set1_ps(-0.0f);
        const __m512 bias = t->bias ? _mm512_mask_loadu_ps(none, m, t->bias + r) : none; /* -0 adds nothing, to a negative zero either */
        for (int64_t j = 0; j < n_tok; j++) {
            __m512 v = _mm512_castsi512_ps(sums[p * n_tok + j]);
            if (b->form == OZ_FORM_Q8) v = _mm512_cvtepi32_ps(sums[p * n_tok + j]);
            v = _mm512_mul_ps(v, _mm512_mul_ps(scale, _mm512_set1_ps(x_scaled ? t->x.scales[b->tok0 + tok + j] : 1.0f)));
            _mm512_mask_storeu_ps(t->y + (b->tok0 + tok + j) * t->ld_y + r, m, _mm512_add_ps(v, bias));
        }
    }
}

/* Units [u0, u1) of the panels at hand, but for those that were expanded ahead. */
static void expand_piece(block *b, int64_t u0, int64_t u1) {
    const oz_cpu_packed *w = b->t->w;
    uint8_t *dst = b->room[0];
    for (int p = 0; p < b->n_panel; p++, dst += PIECE * OZ_PITCH) {
        const uint8_t *codes = w->codes + (size_t)(b->first + p) * w->panel_bytes + (u0 + b->ready) * b->unit_bytes;
        b->fns->expand(dst + b->ready * UNIT / step_cols(b->form) * OZ_PITCH / OZ_VECTORS, codes, (u1 - u0 - b->ready) * b->unit_bytes / OZ_PITCH, b->book);
    }
    b->expanded = b->room[0], b->piece0 = u0, b->ready = 0;
}

/* The panels at hand, all pieces of K and all tiles. */
static void multiply_panels(block *b) {
    const oz_cpu_packed *w = b->t->w;
    const bool ahead = b->expands && !b->tiling->sum && b->whole && oz_is_8bit(w->kind);
    const int64_t n_units = (w->head.cols + UNIT - 1) / UNIT, piece = b->expands || b->n_tiles > 1 ? PIECE * step_cols(b->form) / UNIT : n_units; /* one tile streams */
    const int64_t n_vec = OZ_VECTORS * b->n_panel;
    for (int64_t i = 0; i < b->n_tiles; i++) { /* sums [tiles][vectors, tokens of the tile] */
        const int64_t tok = tile_start(b, i), n_tok = tile_start(b, i + 1) - tok;
        for (int64_t j = 0; j < n_vec * n_tok; j++) b->sums[tok * n_vec + j] = _mm512_set1_epi32(b->form == OZ_FORM_Q8 ? -128 * b->x_sum[tok + j % n_tok] : 0);
    }
    b->expanded = NULL, b->next_units = 0;
    for (int64_t u0 = 0; u0 < n_units; u0 += piece) {
        const int64_t u1 = u0 + piece < n_units ? u0 + piece : n_units, left = u1 < n_units ? n_units - u1 : b->first < b->last ? n_units : 0;
        if (b->expands) expand_piece(b, u0, u1);
        if (ahead) b->next_units = left < piece ? left : piece;
        for (int64_t i = 0; i < b->n_tiles; i++) sum_run(b, b->sums + tile_start(b, i) * n_vec, i, u0, u1);
        uint8_t *const used = b->room[0];
        if (ahead) b->room[0] = b->room[1], b->room[1] = used;
    }
    for (int64_t i = 0; i < b->n_tiles; i++) {
        __m512i *sums = b->sums + tile_start(b, i) * n_vec;
        if (w->offsets) add_offsets(b, sums, i);
        store_tile(b, sums, i);
    }
}

/* What the block's activations need beside themselves: padded ends, and sums of int8. */
static void block_begin(block *b) {
    const int64_t cols = b->t->w->head.cols;
    const size_t elem = (size_t)b->elem, done = (size_t)(b->full_units * UNIT);
    for (int64_t t = 0; t < b->n_tok; t++) {
        const uint8_t *x = x_row(b, t);
        memset(b->tail[t], 0, sizeof b->tail[t]);
        memcpy(b->tail[t], x + done * elem, ((size_t)cols - done) * elem);
        if (b->form != OZ_FORM_Q8) continue;
        __m512i sum = _mm512_setzero_si512();
        for (int64_t k = 0; k < cols; k += 64) {
            const __mmask64 m = cols - k < 64 ? (1ull << (cols - k)) - 1 : ~0ull;
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_maskz_loadu_epi8(m, x + k));
        }
        b->x_sum[t] = _mm512_reduce_add_epi32(sum);
    }
}

/* Magnitudes of 8-bit codes in bf16. */
#define LOG2(m) ((m) >= 64 ? 6 : (m) >= 32 ? 5 : (m) >= 16 ? 4 : (m) >= 8 ? 3 : (m) >= 4 ? 2 : (m) >= 2 ? 1 : 0)
#define WHOLE_NUMBER(m, power) ((127 + (power) + LOG2(m)) << 7 | ((m) << (7 - LOG2(m)) & 0x7f)) /* m * 2^power */
#define I8_BITS(m) ((m) == 0 ? WHOLE_NUMBER(1, 7) : WHOLE_NUMBER(m, 0))
#define F8_BITS(m) ((m) == 127 ? 0x7fc0 : (m) >= 8 ? (((m) >> 3) + 120) << 7 | ((m) & 7) << 4 : (m) == 0 ? 0 : WHOLE_NUMBER(m, -9))
#define LOW(bits, m) (uint8_t)(bits(m) & 0xff)
#define HIGH(bits, m) (uint8_t)(bits(m) >> 8)
#define OF_4(part, bits, m) part(bits, m), part(bits, (m) + 1), part(bits, (m) + 2), part(bits, (m) + 3)
#define OF_16(part, bits, m) OF_4(part, bits, m), OF_4(part, bits, (m) + 4), OF_4(part, bits, (m) + 8), OF_4(part, bits, (m) + 12)
#define OF_64(part, bits, m) OF_16(part, bits, m), OF_16(part, bits, (m) + 16), OF_16(part, bits, (m) + 32), OF_16(part, bits, (m) + 48)
#define BOOK(bits) {OF_64(LOW, bits, 0), OF_64(LOW, bits, 64), OF_64(HIGH, bits, 0), OF_64(HIGH, bits, 64)}
static const uint8_t i8_book[256] = BOOK(I8_BITS), f8_book[256] = BOOK(F8_BITS);

/* What codes stand for, as the form looks it up: of 4 bits once for f32 and twice for bf16. */
static void book_of(__m512i book[4], const oz_cpu_packed *w, oz_form form) {
    _Alignas(64) float values[16];
    if (oz_is_8bit(w->kind)) memcpy(book, w->kind == OZ_WKIND_I8 ? i8_book : f8_book, sizeof i8_book);
    if (!oz_is_4bit(w->kind)) return;
    for (int i = 0; i < 16; i++) values[i] = w->kind == OZ_WKIND_I4 ? (float)((i ^ 8) - 8) : w->codebook ? w->codebook[i] : (float)i;
    book[0] = _mm512_load_si512(values);
    if (form == OZ_FORM_F32) return;
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(book[0], 16)); /* exact */
    book[0] = _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

/* Codes are expanded for each tile of up to 8 tokens anew, or of more than two such tiles once. */
static void tiles_of(block *b) {
    const bool own = !b->fns->expand, few = b->n_tok <= (b->whole ? 2 * RAW_TOKENS : UNIT_TOKENS);
    b->expands = !own && !b->tiling->raw && (b->tiling->sum || !few);
    b->tile = b->tiling->sum ? b->tiling->tokens : !b->whole ? UNIT_TOKENS : own || b->expands ? TOKENS : RAW_TOKENS;
    b->n_tiles = (b->n_tok + b->tile - 1) / b->tile;
}

void oz_gemm__avx512(const oz_gemm_task *t, oz_form form, const oz_tiling *tiling, int64_t panel0, int64_t panel1) {
    _Alignas(64) uint8_t room[MAX_PANELS * PIECE * OZ_PITCH];
    const oz_cpu_packed *w = t->w;
    const oz_wkind kind = oz_is_4bit(w->kind) ? OZ_WKIND_L4 : w->kind;
    block b; /* large, and most of it is not touched for few tokens */
    b.t = t, b.tiling = tiling, b.form = form, b.fns = &fns[form][kind];
    b.elem = 4 / step_cols(form), b.unit_bytes = (b.fns->expand ? OZ_PITCH : 64) * UNIT / oz_chunk_cols(kind), b.full_units = w->head.cols / UNIT;
    b.grouped = w->scales && !oz_scale_is_last(w);
    b.whole = !b.grouped && kind != OZ_WKIND_L4;
    book_of(b.book, w, form);
    for (b.tok0 = 0; b.tok0 < t->n_tok; b.tok0 += tiling->block) {
        b.n_tok = t->n_tok - b.tok0 < tiling->block ? t->n_tok - b.tok0 : tiling->block;
        tiles_of(&b);
        b.room[0] = room, b.room[1] = room + PIECE * OZ_PITCH, b.ready = 0, b.last = panel1 - 1;
        block_begin(&b);
        for (b.first = panel0; b.first < panel1; b.first += b.n_panel) {
            const int64_t left = panel1 - b.first;
            b.n_panel = (int)(left < tiling->panels ? left : tiling->panels);
            multiply_panels(&b);
        }
    }
}

/* Activations of 96 tokens stay in L2 while panels pass. */
static const oz_tiling vectors = {.panels = 1, .block = 96};
void oz_gemm_f32__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1) { oz_gemm__avx512(t, OZ_FORM_F32, &vectors, panel0, panel1); }
void oz_gemm_bf16__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1) { oz_gemm__avx512(t, OZ_FORM_BF16, &vectors, panel0, panel1); }
void oz_gemm_q8__avx512(const oz_gemm_task *t, int64_t panel0, int64_t panel1) { oz_gemm__avx512(t, OZ_FORM_Q8, &vectors, panel0, panel1); }
