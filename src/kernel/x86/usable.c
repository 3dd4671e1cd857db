/* Does this process have AMX? CPUID says that the machine has it, XCR0 that the system saves tiles, and Linux wants to be asked before the first tile
 * is touched. What it grants is the process's, threads that already run included. */
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "kernel/cpu.h"

enum { XCR0_TILES = 3 << 17, XFEATURE_TILE_DATA = 18, REQUEST_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM */
       TILE = 1 << 24, INT8 = 1 << 25, BF16 = 1 << 22 /* of edx */ };

bool oz_amx_usable(void) {
    uint32_t a, b, c, d;
    if ((oz_xcr0() & XCR0_TILES) != XCR0_TILES || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & (TILE | INT8 | BF16)) == (TILE | INT8 | BF16) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, XFEATURE_TILE_DATA) == 0;
}
