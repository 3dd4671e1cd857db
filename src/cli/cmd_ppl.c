/* ounce ppl: perplexity under named conventions. */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "measure/measure.h"

static const char *text_path, *convention = "hf", *join;
static int64_t ctx, stride, limit;
static const oz_opt opts[] = {
    {"text", 0, OZ_OPT_STR, &text_path, 0, 0, NULL, "FILE", "the text; - for stdin"},
    {"convention", 0, OZ_OPT_STR, &convention, 0, 0, "hf|gptq|llamacpp|lm-eval|all", "NAME", "how the text becomes windows and a number"},
    {"ctx", 0, OZ_OPT_INT, &ctx, 4, 1 << 30, NULL, "N", "window in tokens; default: the convention's"},
    {"stride", 0, OZ_OPT_INT, &stride, 1, 1 << 30, NULL, "N", "step of convention hf; default: 512"},
    {"limit-tokens", 0, OZ_OPT_INT, &limit, 0, 1LL << 40, NULL, "N", "use the first N tokens; 0: all"},
    {"join-lines", 0, OZ_OPT_STR, &join, 0, 0, NULL, "SEP", "join the file's lines with SEP first (\\n is a line break)"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"ppl", "MODEL --text FILE [--convention hf|gptq|llamacpp|lm-eval|all]", "perplexity of a text",
                               "hf: transformers' sliding window, 2048 tokens (or the model's length) every 512. gptq: segments of 2048, tail dropped. llamacpp: "
                               "llama-perplexity's chunks of 512, second half scored. lm-eval: its wikitext task; documents begin at lines \" = Title = \"; its figures a word and a byte are left out where --limit-tokens ends inside a document.",
                               tables, 1, 1};

/* Lines of the text joined with `join`, in which \n and \t are escapes: data sets hold rows, files hold lines. */
static void lines_join(oz_buf *text) {
    oz_buf sep = {0}, out = {0};
    for (const char *p = join; *p; p++) {
        const bool esc = *p == '\\' && (p[1] == 'n' || p[1] == 't');
        oz_buf_putc(&sep, esc ? (p[1] == 'n' ? '\n' : '\t') : *p);
        p += esc;
    }
    for (size_t at = 0; at < text->len;) {
        const char *nl = memchr(text->data + at, '\n', text->len - at);
        const size_t end = nl ? (size_t)(nl - text->data) : text->len;
        if (at > 0) oz_buf_append(&out, sep.data ? sep.data : "", sep.len);
        oz_buf_append(&out, text->data + at, end - at);
        at = end + 1;
    }
    oz_buf_deinit(&sep);
    oz_buf_deinit(text);
    *text = out;
}

static json_t *to_json(const oz_ppl *p) {
    json_t *o = json_pack("{s:s s:f s:f s:I s:I s:I s:s s:I s:I}", "convention", p->convention, "ppl", p->ppl, "nll", p->nll, "positions", (json_int_t)p->n_scored, "ctx",
                          (json_int_t)p->ctx, "stride", (json_int_t)p->stride, "bos", p->bos, "tokens", (json_int_t)p->n_tok, "documents", (json_int_t)p->n_documents);
    if (p->ppl_se > 0) json_object_set_new(o, "ppl_se", json_real(p->ppl_se));
    if (p->words > 0) {
        const struct { const char *key; double v; } more[] = {{"word_perplexity", p->word_ppl}, {"byte_perplexity", p->byte_ppl}, {"bits_per_byte", p->bits_per_byte}, {"words", p->words}, {"bytes", p->bytes}};
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) json_object_set_new(o, more[i].key, json_real(more[i].v));
    }
    return o;
}

static void print(const oz_ppl *p) {
    printf("%-9s ppl %.4f", p->convention, p->ppl);
    if (p->ppl_se > 0) printf(" +/- %.4f", p->ppl_se);
    if (p->words > 0) printf("  word %.4f  byte %.4f  bits/byte %.4f  (%.0f words, %.0f bytes, %lld documents)", p->word_ppl, p->byte_ppl, p->bits_per_byte, p->words, p->bytes, (long long)p->n_documents);
    printf("  window %lld, stride %lld, BOS %s, %lld tokens, %lld scored\n", (long long)p->ctx, (long long)p->stride, p->bos, (long long)p->n_tok, (long long)p->n_scored);
    fflush(stdout);
}

static oz_status measure(oz_cli_model *m, const oz_buf *text, oz_err *err) {
    const oz_ppl_cfg cfg = {ctx, stride, limit};
    json_t *list = json_array();
    const bool all = strcmp(convention, "all") == 0;
    int n_done = 0;
    oz_status st = OZ_OK;
    for (size_t i = 0; st == OZ_OK && i < oz_ppl_convention_count(); i++) {
        if (!all && strcmp(convention, oz_ppl_convention(i)) != 0) continue;
        oz_ppl p;
        st = oz_ppl_run(&p, i, m->model, m->tok, text->data ? text->data : "", text->len, &cfg, err);
        if (st == OZ_E_ARG && all) { /* not for this text: the others may be */
            oz_log_warn("%s: %s", oz_ppl_convention(i), err->msg);
            oz_err_clear(err);
            st = OZ_OK;
            continue;
        }
        if (st != OZ_OK) break;
        n_done++;
        if (oz_cli_common.json) json_array_append_new(list, to_json(&p));
        else print(&p);
    }
    if (st == OZ_OK && n_done == 0) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: no convention measures this text", text_path);
    if (st == OZ_OK && oz_cli_common.json) oz_cli_json_print(json_incref(list));
    json_decref(list);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    OZ_NEED(text_path, err, OZ_E_USAGE, "--text FILE is missing");
    oz_buf text = {0};
    oz_cli_model m;
    OZ_TRY(oz_file_read(&text, text_path, (size_t)1 << 30, err));
    if (join) lines_join(&text);
    oz_status st = oz_cli_model_open(&m, args[0], &(oz_cli_need){.tok = true}, err);
    if (st == OZ_OK) {
        st = oz_cli_of_model(measure(&m, &text, err), args[0], err);
        oz_cli_model_close(&m);
    }
    oz_buf_deinit(&text);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_ppl = {"ppl", describe, run, true};
