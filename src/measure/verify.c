/* verify: every rule that a checkpoint can break, none of which ends the others. First what loading would refuse (model/check.c): the files, the config, the
 * scheme of each module, the tensors that it needs. Then what no loader looks at: the values, what is there besides, and whether the parts agree. */
#include <string.h>
#include "base/mem.h"
#include "measure/internal.h"

static oz_status check_model(oz_verify *v, oz_err *err) {
    const oz_status st = oz_arch_list_new(&v->list, oz_ckpt_config(v->ckpt), v->ckpt, err);
    if (st != OZ_OK) return oz_found(v->f, st, err);
    v->schemes = oz_alloc_array(v->list.n + 1, sizeof *v->schemes);
    for (size_t i = 0; i < v->list.n; i++) {
        const oz_arch_tensor *t = &v->list.items[i];
        oz_map_add(v->modules, t->module, strlen(t->module), (int64_t)i);
        oz_map_add(v->names, t->name, strlen(t->name), (int64_t)i);
    }
    return oz_model_check(v->schemes, v->ckpt, &v->list, v->f, err);
}

oz_status oz_verify_open(oz_verify *v, const char *model, const oz_findings *f, oz_pool *pool, oz_err *err) {
    *v = (oz_verify){.model = model, .f = f, .pool = pool, .modules = oz_map_new(0), .names = oz_map_new(0)};
    OZ_TRY(oz_ckpt_open_all(&v->ckpt, model, f, err));
    return v->ckpt && oz_ckpt_config(v->ckpt) ? check_model(v, err) : OZ_OK;
}

void oz_verify_close(oz_verify *v) {
    oz_map_free(&v->modules);
    oz_map_free(&v->names);
    oz_free(v->schemes);
    oz_arch_list_deinit(&v->list);
    oz_ckpt_close(&v->ckpt);
}

static oz_module module_of(const oz_arch_tensor *t) { return (oz_module){t->module, t->class_name, t->rows, t->cols, false}; }

bool oz_verify_bind(oz_weight *w, const oz_verify *v, size_t i) {
    const oz_module m = module_of(&v->list.items[i]);
    return m.cols > 0 && !v->schemes[i].unknown && oz_scheme_bind(w, v->ckpt, &m, &v->schemes[i], NULL) == OZ_OK;
}

void oz_verify_drop(const oz_verify *v, size_t i) {
    const oz_module m = module_of(&v->list.items[i]);
    oz_scheme_drop(v->ckpt, &m);
}

oz_status oz_verify_run(const char *model, const oz_findings *f, oz_pool *pool, oz_err *err) {
    static oz_status (*const groups[])(const oz_verify *, oz_err *) = {oz_verify_tensors, oz_verify_text, oz_verify_weights};
    oz_verify v;
    oz_status st = oz_verify_open(&v, model, f, pool, err);
    for (size_t i = 0; i < sizeof groups / sizeof *groups && st == OZ_OK && v.ckpt; i++) st = groups[i](&v, err);
    oz_verify_close(&v);
    return st;
}
