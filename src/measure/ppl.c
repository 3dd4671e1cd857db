/* Perplexity. A convention is a row: its name, how the text becomes windows, and how their losses are weighted. The number means
 * nothing without them, so they are part of the result. */
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "measure/internal.h"

typedef struct run {
    oz_model *model;
    const oz_tok *tok;
    const char *text;
    size_t n;
    int64_t ctx, limit;
    bool cut;            /* the last text was longer than the limit */
    oz_windows w;
    oz_row_stat *stats;  /* [ctx] */
    oz_ids ids;
    oz_progress progress;
    oz_ppl *out;
} run;

static double nll_sum(const oz_row_stat *s, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += s[i].lse - (double)s[i].logit_target;
    return sum;
}

static oz_status encode(run *r, const char *text, size_t n, bool special, oz_err *err) {
    r->ids.len = 0;
    OZ_TRY(oz_tok_encode(&r->ids, r->tok, text, n, special, err));
    r->cut = r->limit > 0 && (int64_t)r->ids.len > r->limit;
    if (r->cut) r->ids.len = (size_t)r->limit;
    r->out->n_tok += (int64_t)r->ids.len;
    oz_progress_deinit(&r->progress);
    oz_progress_init(&r->progress, "perplexity", "tokens", (int64_t)r->ids.len);
    return OZ_OK;
}

static oz_status need_tokens(const run *r, int64_t n, oz_err *err) {
    OZ_NEED((int64_t)r->ids.len >= n, err, OZ_E_ARG, "the text has %zu tokens: convention %s with --ctx %lld needs at least %lld", r->ids.len, r->out->convention,
            (long long)r->ctx, (long long)n);
    return OZ_OK;
}

/* transformers' guide: windows of ctx every `stride`; only tokens not scored before count; each window's mean loss is weighted by its
 * newly covered tokens minus one (the guide's correction for the shift). */
static oz_status run_hf(run *r, oz_err *err) {
    OZ_TRY(encode(r, r->text, r->n, true, err));
    OZ_TRY(need_tokens(r, 2, err));
    const int64_t n = (int64_t)r->ids.len, stride = r->out->stride;
    double weight = 0.0;
    for (int64_t begin = 0, prev = 0; prev < n; begin += stride) {
        const int64_t end = begin + r->ctx < n ? begin + r->ctx : n, fresh = end - prev;
        const int64_t score0 = prev > begin ? prev - begin - 1 : 0, scored = end - begin - 1 - score0;
        if (scored > 0) {
            OZ_TRY(oz_windows_run(&r->w, r->ids.data + begin, end - begin, score0, r->stats, NULL, err));
            r->out->nll += nll_sum(r->stats, scored) / (double)scored * (double)(fresh - 1);
        }
        r->out->n_scored += scored > 0 ? scored : 0;
        weight += (double)(fresh - 1);
        prev = end;
        oz_progress_step(&r->progress, end);
    }
    r->out->ppl = exp(r->out->nll / weight);
    return OZ_OK;
}

/* GPTQ and AWQ papers: segments of ctx, tail dropped; a segment's mean over its ctx - 1 targets counts ctx times. */
static oz_status run_gptq(run *r, oz_err *err) {
    OZ_TRY(encode(r, r->text, r->n, true, err));
    OZ_TRY(need_tokens(r, r->ctx, err));
    const int64_t n = (int64_t)r->ids.len / r->ctx;
    for (int64_t i = 0; i < n; i++) {
        OZ_TRY(oz_windows_run(&r->w, r->ids.data + i * r->ctx, r->ctx, 0, r->stats, NULL, err));
        r->out->nll += nll_sum(r->stats, r->ctx - 1) / (double)(r->ctx - 1) * (double)r->ctx;
        r->out->n_scored += r->ctx - 1;
        oz_progress_step(&r->progress, (i + 1) * r->ctx);
    }
    r->out->ppl = exp(r->out->nll / (double)(n * r->ctx));
    return OZ_OK;
}

/* llama.cpp's perplexity tool: chunks of ctx; where the vocabulary adds BOS it replaces each chunk's first token; second half scored. */
static oz_status run_llamacpp(run *r, oz_err *err) {
    const bool bos = oz_tok_adds_bos(r->tok);
    r->out->bos = bos ? "each window" : "none";
    OZ_TRY(encode(r, r->text, r->n, bos, err));
    OZ_TRY(need_tokens(r, 2 * r->ctx, err));
    const int64_t n = (int64_t)r->ids.len / r->ctx, score0 = r->ctx / 2, scored = r->ctx - 1 - score0;
    double squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        int32_t *ids = r->ids.data + i * r->ctx;
        if (bos) ids[0] = oz_tok_bos(r->tok);
        OZ_TRY(oz_windows_run(&r->w, ids, r->ctx, score0, r->stats, NULL, err));
        r->out->nll += nll_sum(r->stats, scored);
        for (int64_t k = 0; k < scored; k++) {
            const double v = r->stats[k].lse - (double)r->stats[k].logit_target;
            squares += v * v;
        }
        r->out->n_scored += scored;
        oz_progress_step(&r->progress, (i + 1) * r->ctx);
    }
    const double count = (double)r->out->n_scored, mean = r->out->nll / count;
    r->out->ppl = exp(mean);
    r->out->ppl_se = count > 1 ? r->out->ppl * sqrt(fmax(squares / count - mean * mean, 0.0) / (count - 1)) : 0.0;
    return OZ_OK;
}

/* One document, rolling: every token is scored once; the first window begins with the prefix token, each next one has one token of
 * context, and the last slides left to full length. */
static oz_status rolling(run *r, int32_t prefix, oz_err *err) {
    const int64_t n = (int64_t)r->ids.len, L = r->ctx;
    if (n == 0) return OZ_OK;
    const int64_t first = n < L ? n : L;
    int32_t *window = oz_alloc_array((size_t)first + 1, sizeof *window);
    window[0] = prefix;
    memcpy(window + 1, r->ids.data, (size_t)first * sizeof *window);
    oz_status st = oz_windows_run(&r->w, window, first + 1, 0, r->stats, NULL, err);
    oz_free(window);
    if (st != OZ_OK) return st;
    r->out->nll += nll_sum(r->stats, first);
    for (int64_t done = first; done < n;) {
        const int64_t k = n - done < L ? n - done : L, end = done + k;
        OZ_TRY(oz_windows_run(&r->w, r->ids.data + end - L - 1, L + 1, L - k, r->stats, NULL, err));
        r->out->nll += nll_sum(r->stats, k);
        done = end;
        oz_progress_step(&r->progress, done);
    }
    r->out->n_scored += n;
    return OZ_OK;
}

static bool is_title(const char *line, size_t n) {
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    return n >= 7 && memcmp(line, " = ", 3) == 0 && memcmp(line + n - 3, " = ", 3) == 0 && line[3] != '=' && line[n - 4] != '=';
}

/* Length of the first document of text[0..n): up to the next line of the form " = Title = " that follows a title. */
static size_t page_length(const char *text, size_t n) {
    bool titled = false;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        const size_t len = nl ? (size_t)(nl - text) + 1 - at : n - at;
        if (is_title(text + at, len)) {
            if (titled) return at;
            titled = true;
        }
        at += len;
    }
    return n;
}

/* Words as len(re.split(r"\s+", page)) counts them: runs of white space plus one. ASCII white space and U+0085, U+00A0 and the others. */
static double words_count(const char *p, size_t n) {
    double words = 1.0;
    bool in_space = false;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += oz_utf8_next(p + i, n - i, &c, NULL);
        const bool space = (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
                           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
        if (space && !in_space) words += 1.0;
        in_space = space;
    }
    return words;
}

static oz_status run_lm_eval(run *r, oz_err *err) {
    const int32_t bos = oz_tok_bos(r->tok), prefix = bos >= 0 ? bos : oz_tok_eos(r->tok);
    OZ_NEED(prefix >= 0, err, OZ_E_ARG, "convention lm-eval needs a BOS or EOS token, and the tokenizer has none");
    r->out->n_documents = 0;
    const int64_t limit = r->limit;
    oz_buf page = {0};
    oz_status st = OZ_OK;
    for (size_t at = 0; st == OZ_OK && at < r->n && (limit == 0 || r->out->n_tok < limit);) {
        const size_t len = page_length(r->text + at, r->n - at);
        oz_buf_clear(&page);
        oz_wikitext_detokenize(&page, r->text + at, len);
        if (limit > 0) r->limit = limit - r->out->n_tok;
        if ((st = encode(r, page.data ? page.data : "", page.len, true, err)) == OZ_OK) st = rolling(r, prefix, err);
        r->out->words += words_count(r->text + at, len);
        r->out->bytes += (double)len;
        r->out->n_documents++;
        at += len;
    }
    oz_buf_deinit(&page);
    r->limit = limit;
    OZ_TRY(st);
    OZ_NEED(r->out->n_scored > 0, err, OZ_E_ARG, "the text has no tokens");
    oz_ppl *o = r->out;
    o->ppl = exp(o->nll / (double)o->n_scored);
    if (r->cut) o->words = o->bytes = 0; /* of a part of a document nobody knows them: its tokens are of another text */
    else o->word_ppl = exp(o->nll / o->words), o->byte_ppl = exp(o->nll / o->bytes), o->bits_per_byte = o->nll / o->bytes / log(2.0);
    return OZ_OK;
}

/* ctx 0: the model's length. stride 0: the window. */
static const struct convention {
    const char *name, *bos;
    int64_t ctx, stride;
    oz_status (*run)(run *, oz_err *);
} conventions[] = {
    {"hf", "as the tokenizer adds it, once", 2048, 512, run_hf},
    {"gptq", "as the tokenizer adds it, once", 2048, 0, run_gptq},
    {"llamacpp", "none", 512, 0, run_llamacpp},
    {"lm-eval", "each document", 0, 0, run_lm_eval},
};

size_t oz_ppl_convention_count(void) { return sizeof conventions / sizeof *conventions; }
const char *oz_ppl_convention(size_t i) { return conventions[i].name; }

oz_status oz_ppl_run(oz_ppl *out, size_t k, oz_model *m, const oz_tok *tok, const char *text, size_t n, const oz_ppl_cfg *cfg, oz_err *err) {
    const struct convention *c = &conventions[k];
    const int64_t max_len = oz_model_get(m)->max_len;
    int64_t ctx = cfg->ctx ? cfg->ctx : c->ctx && c->ctx < max_len ? c->ctx : max_len;
    int64_t stride = cfg->stride && c->stride ? cfg->stride : c->stride ? c->stride : ctx;
    OZ_NEED(ctx >= 4 && ctx <= max_len, err, OZ_E_ARG, "--ctx %lld: must be 4..%lld, the model's length", (long long)ctx, (long long)max_len);
    if (!cfg->stride && stride > ctx) stride = ctx;
    OZ_NEED(stride <= ctx, err, OZ_E_ARG, "--stride %lld: must be at most --ctx %lld", (long long)stride, (long long)ctx);
    *out = (oz_ppl){.convention = c->name, .bos = c->bos, .ctx = ctx, .stride = stride, .n_documents = 1};
    run r = {.model = m, .tok = tok, .text = text, .n = n, .ctx = ctx, .limit = cfg->limit_tok, .out = out};
    oz_status st = oz_windows_init(&r.w, &m, 1, ctx, err);
    if (st == OZ_OK) st = oz_big_new((void **)&r.stats, (size_t)ctx * sizeof *r.stats, "statistics of a window", err);
    if (st == OZ_OK) {
        r.w.models = &r.model;
        oz_progress_init(&r.progress, "perplexity", "tokens", 0);
        st = c->run(&r, err);
        oz_progress_deinit(&r.progress);
    }
    oz_windows_deinit(&r.w);
    oz_big_free(r.stats);
    oz_free(r.ids.data);
    return st;
}
