/* A model that cannot be opened, and what is said of it. */
#ifndef OZ_TEST_REFUSED_H
#define OZ_TEST_REFUSED_H
#include "files.h"
#include "kernel/dev.h"
#include "model/model.h"

/* ops: those of the device, or NULL for its own. */
static inline void test_model_refused(const char *path, const oz_model_cfg *cfg, const oz_ops *ops, oz_status status, const char *words) {
    oz_err err = {0};
    oz_ckpt *c;
    oz_dev *dev;
    oz_model *m;
    if (oz_ckpt_open(&c, path, &err) != OZ_OK) fail_msg("%s", err.msg);
    if (oz_dev_open(&dev, &(oz_dev_cfg){.name = "cpu", .threads = 2, .cpu_level = "auto"}, &err) != OZ_OK) fail_msg("%s", err.msg);
    if (ops) dev->ops = ops;
    assert_int_equal(oz_model_open(&m, dev, c, cfg, &err), status);
    test_contains(err.msg, words);
    assert_null(m);
    oz_dev_close(&dev);
    oz_ckpt_close(&c);
}

#endif
