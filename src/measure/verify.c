/* verify: every rule that a checkpoint can break, none of which ends the others. First what loading would refuse (model/check.c): the files, the config, the
 * scheme of each module, the tensors that it needs. */
#include "base/mem.h"
#include "measure/measure.h"

static oz_status check_model(const oz_ckpt *c, const oz_findings *f, oz_err *err) {
    oz_arch_list list;
    const oz_status st = oz_arch_list_new(&list, oz_ckpt_config(c), c, err);
    if (st != OZ_OK) return oz_found(f, st, err);
    oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
    const oz_status checked = oz_model_check(schemes, c, &list, f, err);
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    return checked;
}

oz_status oz_verify_run(const char *model, const oz_findings *f, oz_err *err) {
    oz_ckpt *c;
    OZ_TRY(oz_ckpt_open_all(&c, model, f, err));
    if (!c) return OZ_OK;
    const oz_status st = oz_ckpt_config(c) ? check_model(c, f, err) : OZ_OK;
    oz_ckpt_close(&c);
    return st;
}
