/* Loading: the scheme of every module is resolved before a byte of weight is read; then tensors are bound, packed into the
 * device's layout one by one, and their source pages dropped, so that two copies of the model never coexist. */
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/progress.h"
#include "model/internal.h"

enum { HEAD_CHUNK_BYTES = 16 << 20, DEFAULT_MAX_TOK = 512 };

/* The kind of activation rows that a scheme's products take; without one: the model's plain form. */
static const oz_form form_of_act[OZ_ACT_COUNT] = {[OZ_ACT_I8_TOKEN] = OZ_FORM_Q8, [OZ_ACT_F8_TOKEN] = OZ_FORM_F8};

static oz_slot_ref *slot_at(oz_model *m, const oz_arch_tensor *t) {
    return t->layer < 0 ? &m->top[t->slot] : &m->layers[(int64_t)t->layer * OZ_SLOT_COUNT + t->slot];
}

/* A choice or a saturated activation hides from the logits that a router or what a scan decays by is not finite; of all else they tell. */
static oz_status finite_check(const oz_tensor *x, oz_role role, oz_err *err) {
    const bool hides = role == OZ_ROLE_ROUTER || role == OZ_ROLE_ROUTER_BIAS || role == OZ_ROLE_SSM_A || role == OZ_ROLE_SSM || role == OZ_ROLE_SSM_DT;
    return hides ? oz_finite_check(x, err) : OZ_OK;
}

/* A norm weight or bias, to f32 on the device. */
static oz_status vec_load(float **out, oz_model *m, const oz_ckpt *c, const oz_arch_tensor *t, oz_err *err) {
    const oz_tensor *x;
    OZ_TRY(oz_vector_find(&x, c, t, err));
    OZ_TRY(finite_check(x, t->role, err));
    float *host, *dev;
    OZ_TRY(oz_big_new((void **)&host, (size_t)t->rows * sizeof *host, t->name, err));
    const oz_weight order = {.rows = t->rows, .rope_heads = x->rope_heads}; /* a bias of q or k out of a GGUF is interleaved as its rows are */
    const size_t size = (size_t)oz_dtype_get(x->dtype)->block_bytes;
    const int64_t channels = t->dims[0], each = t->rows / channels; /* of a channel: they lie apart, so that neighbours are channels */
    for (int64_t r = 0; r < t->rows; r++) {
        float *to = host + r % each * channels + r / each;
        oz_to_f32(to, x->dtype, (const char *)x->data + (size_t)oz_weight_stored_row(&order, r) * size, 1);
        *to += t->plus;
        if (t->role == OZ_ROLE_SSM_A) *to = -expf(*to);
    }
    const oz_part_of part = oz_split_part(&m->split, t);
    const size_t n_bytes = (size_t)part.n_rows * sizeof *dev;
    oz_status st = m->ops->mem_new((void **)&dev, m->dev, n_bytes, t->name, err);
    if (st == OZ_OK) {
        m->ops->upload(m->dev, dev, host + part.row0, n_bytes);
        oz_grow((void **)&m->vecs, &m->cap_vecs, m->n_vecs + 1, sizeof *m->vecs);
        *out = m->vecs[m->n_vecs++] = dev;
    }
    oz_big_free(host);
    return st;
}

static bool form_runs(const oz_dev *dev, oz_codec codec, oz_form form) {
    const oz_ops *ops = oz_dev_ops(dev);
    return ops->form_bytes(form) > 0 && (!ops->multiplies || ops->multiplies(dev, codec, form));
}

/* What no scheme quantizes goes in the model's 16-bit type into products that have one; others (a device may have none of f32 weights) take f32. */
static oz_form form_of(const oz_model *m, const oz_scheme *scheme, oz_codec codec) {
    if (scheme->act != OZ_ACT_NONE) return form_of_act[scheme->act];
    return form_runs(m->dev, codec, m->plain_form) ? m->plain_form : OZ_FORM_F32;
}

/* Packing knows: a row of zeros is packed. */
oz_status oz_scheme_runs(oz_dev *dev, const oz_module *m, const oz_scheme *scheme, oz_err *err) {
    oz_weight w = {.codec = scheme->codec, .rows = 1, .cols = m->cols, .row_bytes = oz_codec_row_bytes(scheme->codec, m->cols), .group_size = scheme->group_size > 0 ? scheme->group_size : m->cols,
                   .one_scale = scheme->per_tensor, .scale_dtype = OZ_DTYPE_F32};
    const size_t n_codes = ((size_t)w.row_bytes + 63) & ~(size_t)63;
    char *zeros = oz_alloc(n_codes + (size_t)oz_weight_groups(&w) * sizeof(float));
    oz_packed *p = NULL;
    w.codes = zeros, w.scales = zeros + n_codes;
    oz_status st = oz_dev_ops(dev)->pack(&p, dev, &w, 0, 1, form_of_act[scheme->act], err);
    if (st == OZ_OK) oz_dev_ops(dev)->packed_free(dev, &p);
    else oz_err_prefix(err, "%s (scheme %s)", m->name, scheme->name);
    oz_free(zeros);
    return st;
}

/* Zeros in place of a weight that is not made yet. */
static oz_status pending_weight(oz_weight *w, void **mem, const oz_module *m, const oz_scheme *s, oz_err *err) {
    *w = (oz_weight){.codec = s->codec, .rows = m->rows, .cols = m->cols, .row_bytes = oz_codec_row_bytes(s->codec, m->cols), .group_size = s->group_size > 0 ? s->group_size : m->cols,
                     .one_scale = s->per_tensor, .scale_dtype = OZ_DTYPE_F32};
    const size_t n_codes = ((size_t)(w->rows * w->row_bytes) + 63) & ~(size_t)63;
    OZ_TRY(oz_big_new(mem, n_codes + (size_t)(w->rows * oz_weight_groups(w)) * sizeof(float), m->name, err));
    w->codes = *mem, w->scales = (char *)*mem + n_codes;
    return OZ_OK;
}

static bool is_pending(const oz_model *m, const oz_module *mod, const oz_scheme *s) { return s->quantized && m->pending && m->pending(m->pending_arg, mod->name); }

/* How the linear's input is rounded first, where its scheme says so and no product takes codes; scale and zero point lie behind it. */
static oz_status round_new(oz_round **out, const oz_model *m, const oz_ckpt *c, const oz_module *mod, const oz_scheme *s, bool cut, oz_err *err) {
    *out = NULL;
    if (s->act != OZ_ACT_VALUES) return OZ_OK;
    OZ_NEED(!cut || s->static_input, err, OZ_E_UNSUPPORTED, "%s: scheme %s takes the scale of a whole input, of which each rank holds a part", mod->name, s->name);
    struct { oz_round round; float scale, zero; } *r = oz_alloc(sizeof *r);
    r->round = s->input;
    if (s->static_input) r->round.scales = &r->scale, r->round.zeros = &r->zero;
    r->scale = 1;
    *out = &r->round;
    return is_pending(m, mod, s) ? OZ_OK : oz_scheme_bind_input(&r->scale, &r->zero, c, mod, s, err);
}

static bool is_swapped(const oz_model *m, const oz_arch_tensor *t) {
    for (size_t i = 0; m->swap && i < m->swap->n_modules; i++)
        if (strcmp(m->swap->modules[i], t->module) == 0) return true;
    return false;
}

static bool is_quantized_at_load(const oz_model *m, const oz_arch_tensor *t) {
    return m->quantize.quantized && (m->swap ? is_swapped(m, t) && oz_is_matrix(t) : oz_scheme_reaches(&m->quantize, t));
}

/* Before a byte of weight is read. */
static oz_status at_load_check(const oz_model *m, const oz_arch_list *list, const oz_scheme *stored, oz_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (!is_quantized_at_load(m, &list->items[i])) continue;
        OZ_NEED(!stored[i].quantized, err, OZ_E_ARG, "--quantization %s: expected dense weights, found %s with scheme %s", m->quantize.name, list->items[i].module, stored[i].name);
        n++;
    }
    OZ_NEED(n > 0 || !m->quantize.quantized, err, OZ_E_ARG, "--quantization %s: this model (%s) has no experts", m->quantize.name, m->arch->model_type);
    return OZ_OK;
}

static oz_status linear_load(oz_model *m, const oz_ckpt *c, const oz_arch_tensor *t, const oz_scheme *stored, oz_err *err) {
    const oz_module mod = {t->module, t->class_name, t->rows, t->cols, false};
    const oz_scheme *scheme = is_quantized_at_load(m, t) ? &m->quantize : stored;
    oz_weight w;
    void *mem = NULL; /* a copy of what is packed, for as long as that takes */
    const bool pending = is_pending(m, &mod, stored);
    OZ_TRY(pending ? pending_weight(&w, &mem, &mod, stored, err) : oz_scheme_bind(&w, c, &mod, stored, err));
    if (!stored->quantized) OZ_TRY(finite_check(oz_ckpt_find(c, t->name), t->role, err));
    const oz_rtn rtn = oz_scheme_rtn(scheme, oz_arch_dtype(oz_ckpt_config(c)));
    const oz_part_of part = oz_split_part(&m->split, t);
    oz_grow((void **)&m->program.linears, &m->cap_linears, (size_t)m->program.n_linears + 1, sizeof *m->program.linears);
    oz_linear *l = &m->program.linears[m->program.n_linears];
    oz_grow((void **)&m->schemes, &m->cap_schemes, (size_t)m->program.n_linears + 1, sizeof *m->schemes);
    m->schemes[m->program.n_linears] = *scheme;
    *l = (oz_linear){.module = oz_strdup(t->module), .sums = part.sums};
    oz_slot_ref *slot = slot_at(m, t);
    if (t->expert <= 0) slot->linear = m->program.n_linears;
    m->program.n_linears++;
    /* Columns of another rank's, or what others store otherwise: a compact copy of ours. */
    oz_weight ours = w;
    int64_t row0 = part.row0;
    oz_status st = round_new(&l->round, m, c, &mod, scheme, part.n_cols < t->cols, err);
    if (st != OZ_OK) {
        oz_big_free(mem);
        return st;
    }
    if (!pending && (part.n_cols < t->cols || !oz_weight_is_compact(&w))) {
        st = oz_weight_slice(&ours, &mem, &w, part.row0, part.n_rows, part.col0, part.n_cols, err);
        row0 = 0;
    }
    if (scheme != stored) ours.rtn = &rtn; /* whole rows: ranks do not share experts */
    l->form = form_of(m, scheme, ours.rtn ? rtn.codec : ours.codec);
    const oz_linear *first = &m->program.linears[slot->linear];
    if (st == OZ_OK && (first->form != l->form || !oz_round_same(first->round, l->round))) {
        oz_big_free(mem);
        OZ_FAIL(err, OZ_E_UNSUPPORTED, "%s: scheme %s takes activations in another form than that of expert 0 (%s), or rounds them otherwise; the product is one for all", t->module, scheme->name,
                m->schemes[slot->linear].name);
    }
    if (st == OZ_OK) st = m->ops->pack(&l->packed, m->dev, &ours, row0, part.n_rows, l->form, err);
    if (st == OZ_OK && t->role == OZ_ROLE_ATTN_KV_B) st = oz_latent_load(m, t->layer, &ours, scheme, l, err);
    oz_big_free(mem);
    if (st != OZ_OK) return oz_err_prefix(err, "%s (scheme %s)", t->module, scheme->name);
    oz_scheme_drop(c, &mod);
    m->info.weight_bytes += oz_packed_bytes(l->packed);
    return OZ_OK;
}

/* The scales of a quantized cache: of each layer that is loaded. */
static oz_status kv_load(oz_model *m, const oz_ckpt *c, const oz_arch_list *list, oz_err *err) {
    oz_kv_scheme s;
    const oz_dims *d = &m->dims;
    OZ_TRY(oz_scheme_kv(&s, oz_ckpt_config(c), err));
    if (!s.quantized) return OZ_OK;
    const int64_t all = m->split.kv_all, n = d->n_heads_kv;
    m->kv_round = oz_alloc_array((size_t)d->n_layers * 2, sizeof *m->kv_round);
    m->kv_scales = oz_alloc_array((size_t)(d->n_layers * 2 * n), sizeof *m->kv_scales);
    float *k = oz_alloc_array((size_t)all * 2, sizeof *k);
    int64_t n_missing = 0, first = 0;
    oz_status st = OZ_OK;
    for (int64_t i = m->layer_begin; i < m->layer_end && st == OZ_OK; i++) {
        bool stored;
        st = oz_kv_bind(k, &stored, c, list, &(oz_kv_of){s, m->arch->layer(d, i).mixer, i, all, m->pending, m->pending_arg}, err);
        if (!stored && n_missing++ == 0) first = i;
        for (int64_t j = 0; j < 2; j++) {
            float *scales = m->kv_scales + (2 * i + j) * n;
            memcpy(scales, k + j * all + m->split.kv0, (size_t)n * sizeof *scales);
            m->kv_round[2 * i + j] = (oz_round){.bits = 8, .is_float = !s.is_int, .symmetric = true, .group_size = d->head_dim, .scales = scales};
        }
    }
    oz_free(k);
    return st == OZ_OK ? oz_kv_missing(c, list, n_missing, m->layer_end - m->layer_begin, first, NULL, err) : st;
}

/* Whether a model of some layers alone takes part of a list's tensors. */
static bool is_loaded(const oz_model *m, const oz_arch_tensor *t) {
    if (t->layer >= 0) return t->layer >= m->layer_begin && t->layer < m->layer_end;
    return t->role == OZ_ROLE_EMBED ? m->layer_begin == 0 : !m->headless;
}

static oz_status tensor_load(oz_model *m, const oz_ckpt *c, const oz_arch_tensor *t, const oz_scheme *scheme, oz_err *err) {
    if (t->is_bias && m->split.rank > 0 && oz_split_part(&m->split, t).sums) return OZ_OK; /* added once, by the first rank */
    if (t->is_bias) return vec_load(slot_at(m, t)->linear >= 0 ? &m->program.linears[slot_at(m, t)->linear].bias : &slot_at(m, t)->bias, m, c, t, err);
    return oz_is_matrix(t) ? linear_load(m, c, t, scheme, err) : vec_load(&slot_at(m, t)->vec, m, c, t, err);
}

/* The other checkpoint's word on the tensors of a list: under schemes of its own. */
static oz_status other_resolve(oz_scheme *schemes, const oz_model *m, const oz_arch_list *list, oz_err *err) {
    if (oz_schemes_resolve(schemes, m->swap->other, list, NULL, err) != OZ_OK) return oz_err_prefix(err, "%s", oz_ckpt_path(m->swap->other));
    return OZ_OK;
}

static oz_status weights_load(oz_model *m, const oz_ckpt *c, const oz_arch_list *list, const oz_scheme *schemes, oz_err *err) {
    const oz_ckpt *other = m->swap ? m->swap->other : NULL;
    oz_scheme *others = other ? oz_alloc_array(list->n + 1, sizeof *others) : NULL;
    oz_progress p;
    oz_progress_init(&p, "loading", "tensors", (int64_t)list->n);
    oz_status st = other ? other_resolve(others, m, list, err) : OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < list->n; i++) {
        const oz_arch_tensor *t = &list->items[i];
        if (!is_loaded(m, t)) continue;
        const bool swapped = other && is_swapped(m, t);
        if (oz_interrupted()) st = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted");
        else st = tensor_load(m, swapped ? other : c, t, swapped ? &others[i] : &schemes[i], err);
        oz_progress_step(&p, (int64_t)i + 1);
    }
    oz_progress_deinit(&p);
    oz_free(others);
    if (!m->headless && (m->dims.features & OZ_F_TIED)) m->top[OZ_SLOT_HEAD] = m->top[OZ_SLOT_EMBED];
    return st;
}

/* The route of a call's tokens, and the program's weights in a row for grouped products. */
static oz_status route_new(oz_model *m, oz_err *err) {
    oz_program *p = &m->program;
    oz_route *r = &p->route;
    r->n_experts = m->dims.n_experts, r->top_k = m->dims.top_k;
    r->sigmoid = m->dims.route_sigmoid, r->best_two = m->dims.route_best_two, r->raw = m->dims.route_raw, r->scale = (float)m->dims.route_scale, r->n_groups = m->dims.n_groups, r->top_groups = m->dims.top_groups;
    const size_t n_pairs = (size_t)(m->info.max_tok * r->top_k);
    const struct { void **out; size_t n; } want[] = {{(void **)&r->experts, n_pairs}, {(void **)&r->weights, n_pairs}, {(void **)&r->pairs, n_pairs},
                                                     {(void **)&r->rows, n_pairs}, {(void **)&r->starts, (size_t)r->n_experts + 1}};
    for (size_t i = 0; r->n_experts && i < sizeof want / sizeof *want; i++) {
        m->info.workspace_bytes += want[i].n * 4;
        OZ_TRY(m->ops->mem_new(want[i].out, m->dev, want[i].n * 4, "workspace", err));
    }
    p->packed = oz_alloc_array((size_t)p->n_linears + 1, sizeof *p->packed);
    for (int i = 0; i < p->n_linears; i++) p->packed[i] = p->linears[i].packed;
    return OZ_OK;
}

static void route_free(oz_model *m) {
    oz_route *r = &m->program.route;
    void *const owned[] = {r->experts, r->weights, r->pairs, r->rows, r->starts};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) m->ops->mem_free(m->dev, owned[i]);
    oz_free(m->program.packed);
}

static oz_status rope_table_new(oz_model *m, int i, oz_err *err) {
    oz_rope_table *r = &m->program.ropes[i];
    r->n_pairs = m->dims.rope_dim / 2, r->factor = (float)m->dims.ropes[i].attention_factor;
    const size_t n = (size_t)r->n_pairs * sizeof(float), n_bytes = (size_t)m->info.max_tok * n;
    m->info.workspace_bytes += 2 * n_bytes;
    OZ_TRY(m->ops->mem_new((void **)&r->cos, m->dev, n_bytes, "workspace", err));
    OZ_TRY(m->ops->mem_new((void **)&r->sin, m->dev, n_bytes, "workspace", err));
    OZ_TRY(m->ops->mem_new((void **)&r->inv_freq, m->dev, n, "workspace", err));
    float *host = oz_alloc_array((size_t)r->n_pairs, sizeof *host);
    oz_rope_inv_freq(host, &m->dims.ropes[i], m->dims.rope_dim, m->info.max_len);
    m->ops->upload(m->dev, r->inv_freq, host, n);
    oz_free(host);
    return OZ_OK;
}

static int64_t widest_of(const int64_t *n, int count) {
    int64_t most = 0;
    for (int i = 0; i < count; i++) most = n[i] > most ? n[i] : most;
    return most;
}

static oz_status bufs_new(oz_model *m, oz_err *err) {
    const oz_dims *d = &m->dims;
    const int64_t n_q = d->n_heads * d->head_dim, n_kv = d->kv_rank ? 0 : d->n_heads_kv * d->head_dim, n_out = widest_of((int64_t[]){d->n_heads * d->v_dim, d->ssm}, 2), mixer = oz_mixer_width(d), t = m->info.max_tok, pairs = t * (d->top_k ? d->top_k : 1);
    const int64_t ffn = widest_of((int64_t[]){d->intermediate_size, d->n_experts ? d->expert_ffn : 0, d->n_experts ? d->shared_ffn : 0}, 3);
    const int64_t widest = widest_of((int64_t[]){d->hidden_size, ffn, n_out, d->q_rank, d->kv_rank, d->ssm_dt}, 6);
    m->program.head_rows = HEAD_CHUNK_BYTES / (d->vocab_size * (int64_t)sizeof(float));
    if (m->program.head_rows < 1) m->program.head_rows = 1;
    if (m->program.head_rows > t) m->program.head_rows = t;
    bool used[OZ_FORM_COUNT] = {[OZ_FORM_F32] = true};
    bool rounds = false;
    for (int i = 0; i < m->program.n_linears; i++) used[m->program.linears[i].form] = true, rounds |= m->program.linears[i].round != NULL;
    const struct { oz_form form; int64_t width, rows; } want[OZ_BUF_COUNT] = {
        [OZ_BUF_RESIDUAL] = {OZ_FORM_F32, d->hidden_size, t}, [OZ_BUF_X] = {OZ_FORM_F32, d->hidden_size, t},
        [OZ_BUF_Q8] = {OZ_FORM_Q8, widest, pairs},            [OZ_BUF_F8] = {OZ_FORM_F8, widest, pairs},
        [OZ_BUF_ROUNDED] = {OZ_FORM_F32, rounds ? widest : 0, pairs},
        [OZ_BUF_FFN16] = {m->plain_form == OZ_FORM_F32 ? OZ_FORM_BF16 : m->plain_form, ffn, pairs},
        [OZ_BUF_X16] = {m->plain_form == OZ_FORM_F32 ? OZ_FORM_BF16 : m->plain_form, widest, pairs},
        [OZ_BUF_QKV] = {OZ_FORM_F32, n_q + 2 * n_kv, t},      [OZ_BUF_ATTN] = {OZ_FORM_F32, n_out, t},
        [OZ_BUF_OUT] = {OZ_FORM_F32, d->hidden_size, t},      [OZ_BUF_GATE_UP] = {OZ_FORM_F32, 2 * ffn, pairs},
        [OZ_BUF_FFN] = {OZ_FORM_F32, ffn, pairs},
        [OZ_BUF_MIXER] = {OZ_FORM_F32, mixer, t},
        [OZ_BUF_ROUTER] = {OZ_FORM_F32, d->n_experts, t},     [OZ_BUF_PAIRS] = {OZ_FORM_F32, d->n_experts ? d->hidden_size : 0, pairs},
        [OZ_BUF_ROWS] = {OZ_FORM_F32, d->hidden_size, m->program.head_rows},
        [OZ_BUF_LOGITS] = {OZ_FORM_F32, d->vocab_size, m->program.head_rows}};
    for (int i = 0; i < OZ_BUF_COUNT; i++) {
        oz_step_buf *b = &m->program.bufs[i];
        *b = (oz_step_buf){want[i].form, want[i].width, want[i].rows, NULL, NULL};
        if (!used[b->form] || b->width == 0 || (m->headless && (i == OZ_BUF_ROWS || i == OZ_BUF_LOGITS))) continue;
        size_t n_bytes = (size_t)b->rows * (size_t)b->width * (size_t)m->ops->form_bytes(b->form);
        m->info.workspace_bytes += n_bytes;
        OZ_TRY(m->ops->mem_new(&b->data, m->dev, n_bytes, "workspace", err));
        if (b->form == OZ_FORM_Q8 || b->form == OZ_FORM_F8) OZ_TRY(m->ops->mem_new((void **)&b->scales, m->dev, (size_t)b->rows * sizeof(float), "workspace", err));
    }
    for (int i = 0; i < d->n_ropes; i++) OZ_TRY(rope_table_new(m, i, err));
    if (m->split.size > 1) {
        OZ_TRY(m->ops->mem_new((void **)&m->program.row_amax, m->dev, (size_t)t * sizeof(float), "workspace", err));
        OZ_TRY(oz_comm_reserve(m->comm, t * d->hidden_size, err));
    }
    return OZ_OK;
}

/* --dtype: how activations that no scheme quantizes go into products. "auto" is the checkpoint's own 16-bit type where the device keeps
 * such rows, else f32. */
static const struct { const char *name; oz_dtype dtype; } plain_dtypes[OZ_FORM_COUNT] = {
    [OZ_FORM_F32] = {"f32", OZ_DTYPE_F32}, [OZ_FORM_BF16] = {"bf16", OZ_DTYPE_BF16}, [OZ_FORM_F16] = {"f16", OZ_DTYPE_F16}};

static oz_status plain_form_choose(oz_form *out, oz_dev *dev, const oz_ckpt *ckpt, const char *dtype, oz_err *err) {
    const oz_dtype own = oz_arch_dtype(oz_ckpt_config(ckpt));
    const bool is_auto = strcmp(dtype, "auto") == 0;
    *out = OZ_FORM_F32;
    bool known = is_auto;
    for (int f = 0; f < OZ_FORM_COUNT; f++) {
        if (!plain_dtypes[f].name || !(is_auto ? plain_dtypes[f].dtype == own : strcmp(plain_dtypes[f].name, dtype) == 0)) continue;
        known = true;
        if (form_runs(dev, OZ_CODEC_BF16, (oz_form)f)) *out = (oz_form)f;
        else OZ_NEED(is_auto, err, OZ_E_UNSUPPORTED, "--dtype %s: this device (%s) has no products with %s inputs; leave --dtype out, or give f32", dtype, oz_dev_describe(dev), dtype);
    }
    OZ_NEED(known, err, OZ_E_UNSUPPORTED, "--dtype: expected auto, f32, bf16 or f16, found \"%s\"", dtype);
    return OZ_OK;
}

/* Counts what a token costs in the n matrices of a slot, of which it meets `used`. */
static void slot_count(oz_model *m, int first, int64_t n, int64_t used) {
    size_t n_bytes = 0;
    double flop = 0;
    if (first < 0) return;
    for (int64_t i = first; i < first + n; i++) {
        const oz_packed *p = m->program.linears[i].packed;
        n_bytes += oz_packed_bytes(p);
        flop += 2.0 * (double)oz_packed_rows(p) * (double)oz_packed_cols(p);
    }
    m->info.stream_bytes += n_bytes / (size_t)n * (size_t)used;
    m->info.flop_tok += flop / (double)n * (double)used;
}

/* Where tapped rows come to from the device. */
static oz_status tap_rows_new(oz_model *m, oz_err *err) {
    int64_t widest = 0; /* a token's rows together */
    for (const oz_step *s = m->program.steps; s < m->program.steps + m->program.n; s++)
        if (s->op == OZ_OP_TAP && m->program.bufs[s->src].width * s->tok_rows > widest) widest = m->program.bufs[s->src].width * s->tok_rows;
    const int64_t pairs = m->info.max_tok * m->dims.top_k;
    m->tap_ints = oz_alloc_array((size_t)(pairs > m->dims.n_experts ? pairs : m->dims.n_experts) + 1, sizeof *m->tap_ints);
    return widest ? oz_big_new((void **)&m->tap_rows, (size_t)(m->info.max_tok * widest) * sizeof(float), "taps", err) : OZ_OK;
}

static void info_fill(oz_model *m) {
    const oz_dims *d = &m->dims;
    oz_model_info *f = &m->info;
    f->model_type = m->arch->model_type, f->dtype = plain_dtypes[m->plain_form].name, f->fused = m->lowered != NULL;
    f->vocab_size = d->vocab_size, f->hidden_size = d->hidden_size, f->n_layers = d->n_layers, f->n_heads = d->n_heads;
    f->n_heads_kv = d->n_heads_kv, f->head_dim = d->head_dim, f->intermediate_size = d->intermediate_size;
    f->bos_id = d->bos_id, f->n_eos = d->n_eos;
    memcpy(f->eos_ids, d->eos_ids, sizeof f->eos_ids);
    f->slot_bytes = (size_t)oz_slot_values(m->arch, d) * sizeof(float);
    for (int64_t i = 0; i < d->n_layers; i++) {
        oz_kv kv;
        oz_model_kv(&kv, m, i);
        if (m->arch->layer(d, i).state == OZ_STATE_KV) f->kv_bytes_tok += (size_t)(kv.n_heads_kv * (kv.head_dim + (oz_model_latent(m, i) ? 0 : kv.v_dim))) * sizeof(float);
    }
    slot_count(m, m->top[OZ_SLOT_HEAD].linear, 1, 1); /* of the embedding, one row is read */
    f->head_flop_tok = f->flop_tok;
    for (int64_t i = 0; i < d->n_layers * OZ_SLOT_COUNT; i++) {
        const bool experts = i % OZ_SLOT_COUNT >= OZ_SLOT_PER_EXPERT;
        slot_count(m, m->layers[i].linear, experts ? d->n_experts : 1, experts ? d->top_k : 1);
    }
}

/* Longrope has two sets of frequencies, for sequences of up to its original length and for longer ones. One is chosen here for all: keys in the cache
 * were turned by it. */
static int64_t max_len_of(const oz_dims *d, const oz_model_cfg *cfg) {
    int64_t len = d->max_position;
    if (d->ropes[0].type == OZ_ROPE_LONG && d->ropes[0].original_max < len) {
        const int64_t original = d->ropes[0].original_max;
        len = cfg->need_len > original && cfg->need_len < len ? cfg->need_len : cfg->need_len > original ? len : original;
    }
    return cfg->max_len > 0 ? cfg->max_len : len;
}

/* Yarn's factor may say more than max_position_embeddings, which published configs then leave as it was. */
static oz_status max_len_check(const oz_dims *d, const oz_model_cfg *cfg, oz_err *err) {
    const oz_rope_cfg *r = &d->ropes[0];
    const double reach = r->type == OZ_ROPE_YARN ? fmax((double)d->max_position, r->factor * (double)r->original_max) : (double)d->max_position;
    OZ_NEED((double)cfg->max_len <= reach, err, OZ_E_ARG, "--max-model-len: at most %.0f, the model's own length (max_position_embeddings), found %lld", reach, (long long)cfg->max_len);
    return OZ_OK;
}

oz_status oz_model_cfg_check(int64_t *max_len, const oz_model_cfg *cfg, oz_dev *dev, const oz_ckpt *ckpt, oz_err *err) {
    oz_model m = {.swap = cfg->swap}; /* as far as at_load_check looks at it */
    oz_form form;
    OZ_TRY(oz_arch_read(&m.arch, &m.dims, oz_ckpt_config(ckpt), err));
    OZ_TRY(max_len_check(&m.dims, cfg, err));
    if (max_len) *max_len = max_len_of(&m.dims, cfg);
    if (dev) OZ_TRY(plain_form_choose(&form, dev, ckpt, cfg->dtype, err));
    if (!cfg->quantize) return OZ_OK;
    m.quantize = *cfg->quantize;
    oz_arch_list list;
    OZ_TRY(oz_arch_list_new(&list, oz_ckpt_config(ckpt), ckpt, err));
    oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
    oz_status st = oz_schemes_resolve(schemes, ckpt, &list, NULL, err);
    if (st == OZ_OK) st = at_load_check(&m, &list, schemes, err);
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    return st;
}

oz_status oz_model_open(oz_model **out, oz_dev *dev, const oz_ckpt *ckpt, const oz_model_cfg *cfg, oz_err *err) {
    const oz_arch *arch;
    oz_dims dims;
    *out = NULL;
    OZ_TRY(oz_arch_read(&arch, &dims, oz_ckpt_config(ckpt), err));
    OZ_TRY(max_len_check(&dims, cfg, err));
    oz_split split;
    OZ_TRY(oz_split_make(&split, &dims, oz_comm_rank(cfg->comm), oz_comm_size(cfg->comm), err));
    OZ_NEED(split.size == 1 || oz_dev_ops(dev)->quantize_by, err, OZ_E_UNSUPPORTED, "%d ranks: device %s does not run ranks", split.size, oz_dev_describe(dev));
    oz_split_dims(&dims, &split);
    oz_form plain_form;
    OZ_TRY(plain_form_choose(&plain_form, dev, ckpt, cfg->dtype, err));
    oz_arch_list list;
    OZ_TRY(oz_arch_list_new(&list, oz_ckpt_config(ckpt), ckpt, err));
    oz_model *m = oz_alloc(sizeof *m);
    m->dev = dev, m->ops = oz_dev_ops(dev), m->arch = arch, m->dims = dims, m->taps = dims.n_experts ? cfg->taps : cfg->taps & ~(unsigned)OZ_TAP_ROUTE, m->plain_form = plain_form, m->split = split, m->comm = cfg->comm;
    m->quantize = cfg->quantize ? *cfg->quantize : OZ_SCHEME_DENSE, m->swap = cfg->swap;
    m->pending = cfg->pending, m->pending_arg = cfg->pending_arg;
    m->layer_begin = cfg->layer_begin, m->layer_end = cfg->layer_end ? cfg->layer_end : dims.n_layers, m->headless = cfg->layer_end > 0;
    m->program.norm_eps = (float)dims.rms_norm_eps, m->program.layer_end = m->layer_end;
    m->program.attn_scale = (float)(dims.attn_scale > 0 ? dims.attn_scale : 1.0 / sqrt((double)dims.head_dim));
    m->program.attn_softcap = (float)dims.attn_softcap;
    m->info.max_len = max_len_of(&dims, cfg);
    m->info.max_tok = cfg->max_tok > 0 ? cfg->max_tok : DEFAULT_MAX_TOK;
    m->layers = oz_alloc_array((size_t)dims.n_layers * OZ_SLOT_COUNT, sizeof *m->layers);
    for (int64_t i = 0; i < dims.n_layers * OZ_SLOT_COUNT; i++) m->layers[i].linear = -1;
    for (int i = 0; i < OZ_SLOT_PER_LAYER; i++) m->top[i].linear = -1;
    oz_scheme *schemes = oz_alloc_array(list.n, sizeof *schemes);
    oz_status st = oz_split_check(&split, &list, err);
    if (st == OZ_OK) st = oz_schemes_resolve(schemes, ckpt, &list, NULL, err);
    if (st == OZ_OK && (m->layer_begin < 0 || m->layer_begin >= m->layer_end || m->layer_end > dims.n_layers))
        st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "layers [%lld, %lld) of %lld", (long long)m->layer_begin, (long long)m->layer_end, (long long)dims.n_layers);
    if (st == OZ_OK) st = at_load_check(m, &list, schemes, err);
    if (st == OZ_OK) st = oz_surplus_check(ckpt, &list, schemes, !m->headless, NULL, err);
    if (st == OZ_OK) st = weights_load(m, ckpt, &list, schemes, err);
    if (st == OZ_OK) st = kv_load(m, ckpt, &list, err);
    if (st == OZ_OK && !m->headless && (dims.features & OZ_F_TIED)) oz_tied_head_check(ckpt, NULL);
    if (st == OZ_OK) st = bufs_new(m, err);
    if (st == OZ_OK) st = oz_latent_room_new(m, err);
    if (st == OZ_OK) st = route_new(m, err);
    if (st == OZ_OK) st = oz_plan_compile(m, err);
    if (st == OZ_OK) st = oz_exec_check(dev, &m->program, err);
    if (st == OZ_OK) st = tap_rows_new(m, err);
    m->program.max_tok = m->info.max_tok;
    if (st == OZ_OK && m->ops->lower && !m->taps && !m->headless && split.size == 1) st = m->ops->lower(&m->lowered, dev, &m->program, err);
    if (st == OZ_OK) info_fill(m);
    m->swap = NULL;
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    *out = m;
    if (st != OZ_OK) oz_model_close(out);
    return st;
}

void oz_model_close(oz_model **p) {
    oz_model *m = *p;
    if (!m) return;
    if (m->lowered) m->ops->lowered_free(&m->lowered);
    for (int i = 0; i < m->program.n_linears; i++) {
        if (m->program.linears[i].packed) m->ops->packed_free(m->dev, &m->program.linears[i].packed);
        oz_free(m->program.linears[i].module);
        oz_free(m->program.linears[i].round);
    }
    for (size_t i = 0; i < m->n_vecs; i++) m->ops->mem_free(m->dev, m->vecs[i]);
    for (int i = 0; i < OZ_BUF_COUNT; i++) {
        m->ops->mem_free(m->dev, m->program.bufs[i].data);
        m->ops->mem_free(m->dev, m->program.bufs[i].scales);
    }
    route_free(m);
    oz_latents_free(m);
    for (int i = 0; i < OZ_MAX_ROPES; i++) {
        const oz_rope_table *r = &m->program.ropes[i];
        m->ops->mem_free(m->dev, r->cos), m->ops->mem_free(m->dev, r->sin), m->ops->mem_free(m->dev, r->inv_freq);
    }
    m->ops->mem_free(m->dev, m->program.row_amax);
    oz_free(m->vecs);
    oz_free(m->program.linears);
    oz_free(m->schemes);
    oz_free(m->kv_round);
    oz_free(m->kv_scales);
    oz_big_free(m->tap_rows);
    oz_free(m->tap_ints);
    oz_free(m->layers);
    oz_free(m->program.steps);
    oz_free(m);
    *p = NULL;
}

const oz_model_info *oz_model_get(const oz_model *m) { return &m->info; }
size_t oz_model_module_count(const oz_model *m) { return (size_t)m->program.n_linears; }
oz_model_module oz_model_module_at(const oz_model *m, size_t i) {
    const oz_linear *l = &m->program.linears[i];
    return (oz_model_module){l->module, &m->schemes[i], l->packed};
}
