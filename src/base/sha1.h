/* SHA-1 (FIPS 180-4), for git's names of objects alone: it guards against accidents, not against an attacker. */
#ifndef OZ_BASE_SHA1_H
#define OZ_BASE_SHA1_H
#include <stddef.h>
#include <stdint.h>

typedef struct oz_sha1 { uint32_t h[5]; uint64_t n_bytes; uint8_t block[64]; } oz_sha1;
void oz_sha1_init(oz_sha1 *s);
void oz_sha1_add(oz_sha1 *s, const void *data, size_t n);
void oz_sha1_hex(char out[41], oz_sha1 *s); /* 40 digits and a NUL; ends s */

#endif
