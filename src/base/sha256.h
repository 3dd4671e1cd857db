/* SHA-256 (FIPS 180-4): names files and inputs, so that work is taken up with what it was begun with. */
#ifndef OZ_BASE_SHA256_H
#define OZ_BASE_SHA256_H
#include <stddef.h>
#include <stdint.h>

typedef struct oz_sha256 { uint32_t h[8]; uint64_t n_bytes; uint8_t block[64]; } oz_sha256;
void oz_sha256_init(oz_sha256 *s);
void oz_sha256_add(oz_sha256 *s, const void *data, size_t n);
void oz_sha256_hex(char out[65], oz_sha256 *s); /* 64 digits and a NUL; ends s */

#endif
