/* One safetensors file. What loads is read to its last byte. */
#include "checkpoint/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    oz_ckpt *c = oz_ckpt_new("memory");
    oz_err err = {0};
    if (oz_safetensors_load(c, &(oz_mmap){data, n, NULL}, "fuzz.safetensors", &err) == OZ_OK) {
        size_t n_read = 0;
        uint8_t seen = 0;
        for (size_t i = 0; i < c->n_tensors; i++)
            for (size_t k = 0; k < c->tensors[i].n_bytes; k++, n_read++) seen |= ((const uint8_t *)c->tensors[i].data)[k];
        if (n_read != c->n_bytes || (seen && !n_read)) __builtin_trap();
    } else if (!err.msg[0]) __builtin_trap(); /* an error always says what it is */
    oz_ckpt_close(&c);
    return 0;
}
