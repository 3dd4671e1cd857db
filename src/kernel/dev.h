/* Internal to kernel/: what every backend's device and packed weight begin with, and the table of backends (dev.c). A backend puts its
 * own part behind the head and casts; nobody else looks behind it. */
#ifndef OZ_KERNEL_DEV_H
#define OZ_KERNEL_DEV_H
#include <stdbool.h>
#include "kernel/kernel.h"

typedef struct oz_backend {
    const char *name;         /* of --device */
    bool (*present)(void);    /* can it run here? "auto" takes the first that can */
    /* suffix: what follows ':' in the device's name, or NULL */
    oz_status (*open)(oz_dev **out, const oz_dev_cfg *cfg, const char *suffix, oz_err *err);
    void (*close)(oz_dev *d);
    void (*ceiling)(oz_dev *d, oz_ceiling *out); /* NULL: none are measured */
} oz_backend;

struct oz_dev {
    const oz_backend *backend;
    const oz_ops *ops;
    int threads;              /* of the host, that its operations run on */
    char describe[128];
};

struct oz_packed {
    const char *kernel;       /* what runs it */
    int64_t rows, cols;
    size_t n_bytes;           /* of everything, on the device */
};

extern const oz_backend oz_cpu_backend;
#ifdef OZ_CUDA
extern const oz_backend oz_cuda_backend;
#endif

#endif
