/* Which instructions this machine has, and the staircase that fills the CPU's table.
 *
 * A level is a name, a test and an init. Inits run from `ref` up to the level asked for, each overwriting what it does better, so that a
 * level without a kernel of its own for some slot runs the next lower one. A flag counts only if the operating system also saves the
 * registers (XCR0): a hypervisor may show AVX and not enable it. */
#include <cpuid.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "kernel/cpu.h"

enum { XCR0_SSE_AVX = 0x6, XCR0_AVX512 = 0xe0 | XCR0_SSE_AVX };

uint64_t oz_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool has_ref(void) { return true; }

static bool has_avx2(void) {
    uint32_t a, b, c, d, c1;
    if (!__get_cpuid(1, &a, &b, &c1, &d)) return false;
    uint32_t want = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if ((c1 & want) != want || (oz_xcr0() & XCR0_SSE_AVX) != XCR0_SSE_AVX) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

/* F, BW, VL, DQ, and for products VBMI, VNNI and BF16: Zen 4, Sapphire Rapids and later. What has less runs AVX2. */
static bool has_avx512(void) {
    uint32_t a, b, c, d, a1;
    if ((oz_xcr0() & XCR0_AVX512) != XCR0_AVX512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const uint32_t want = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if ((b & want) != want || !(c & bit_AVX512VNNI) || !(c & bit_AVX512VBMI)) return false;
    return __get_cpuid_count(7, 1, &a1, &b, &c, &d) && (a1 & bit_AVX512BF16);
}

typedef struct cpu_level { const char *name; bool (*has)(void); void (*init)(oz_cpu_table *t); } cpu_level;

/* Read top to bottom. */
static const cpu_level staircase[] = {
    {"ref", has_ref, oz_cpu_init_ref},
    {"avx2", has_avx2, oz_cpu_init_avx2},
    {"avx512", has_avx512, oz_cpu_init_avx512},
    {"amx", oz_amx_usable, oz_cpu_init_amx},
};
enum { N_LEVELS = sizeof staircase / sizeof *staircase };

static const char *level_names[N_LEVELS + 1];
static pthread_once_t levels_once = PTHREAD_ONCE_INIT;

/* A level stands on all below it: the first one missing ends the list. */
static void levels_detect(void) {
    for (int i = 0; i < N_LEVELS && staircase[i].has(); i++) level_names[i] = staircase[i].name;
}

const char *const *oz_cpu_levels(void) {
    pthread_once(&levels_once, levels_detect);
    return level_names;
}

static void levels_join(char *out, size_t cap) {
    size_t n = 0;
    out[0] = 0;
    for (const char *const *l = oz_cpu_levels(); *l && n < cap; l++) n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", *l);
}

oz_status oz_cpu_table_init(oz_cpu_table *t, const char *level, oz_err *err) {
    const char *const *names = oz_cpu_levels();
    bool best = !level || strcmp(level, "auto") == 0;
    int last = -1;
    for (int i = 0; names[i]; i++) {
        if (best || strcmp(level, names[i]) == 0) last = i;
    }
    if (last < 0) {
        char have[128];
        levels_join(have, sizeof have);
        OZ_FAIL(err, OZ_E_USAGE, "--cpu-level: expected auto or one that this machine runs (%s), found \"%s\"", have, level);
    }
    memset(t, 0, sizeof *t);
    for (int i = 0; i <= last; i++) staircase[i].init(t);
    t->level = names[last];
    return OZ_OK;
}
