/* AMX in plain C, for a build of the checker: its intrinsics are replaced in the files that use them (the compiler is told to read this first). A thread has
 * eight tiles and their shapes; what an instruction does is written from the manual. A wrong shape is a fault of the machine: here it ends the program. */
#ifndef CHECK_EMULATE_AMX_H
#define CHECK_EMULATE_AMX_H
#include <immintrin.h>
#include <stddef.h>

void ck_tile_config(const void *config); /* NULL: released */
void ck_tile_load(int t, const void *base, size_t stride);
void ck_tile_zero(int t);
void ck_tile_store(int t, void *base, size_t stride);
void ck_tile_i8(int c, int a, int b);    /* signed a, unsigned b */
void ck_tile_bf16(int c, int a, int b);

#undef _tile_loadd
#undef _tile_zero
#undef _tile_stored
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadconfig(c) ck_tile_config(c)
#define _tile_release() ck_tile_config(NULL)
#define _tile_loadd(t, base, stride) ck_tile_load(t, base, stride)
#define _tile_zero(t) ck_tile_zero(t)
#define _tile_stored(t, base, stride) ck_tile_store(t, base, stride)
#define _tile_dpbsud(c, a, b) ck_tile_i8(c, a, b)
#define _tile_dpbf16ps(c, a, b) ck_tile_bf16(c, a, b)

#endif
