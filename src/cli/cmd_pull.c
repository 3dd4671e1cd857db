/* ounce pull REPO[@REV]: a repository of the hub into the cache. */
#include "base/mem.h"
#include "cli/cli.h"
#include <stdio.h>

static bool offline;
static oz_opt_list include;

static const oz_opt opts[] = {
    {"include", 0, OZ_OPT_LIST, &include, 0, 0, NULL, "PATTERN", "only the files whose name matches this shell pattern"},
    {"offline", 0, OZ_OPT_FLAG, &offline, 0, 0, NULL, NULL, "say where it is in the cache, download nothing"},
    {0},
};
static const oz_opt *const tables[] = {opts, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {
    .name = "pull",
    .usage = "REPO[@REV] [--include PATTERN]... [--offline]",
    .summary = "download a model from the hub into its cache",
    .details = "Prints the folder. Afterwards every command takes REPO as MODEL. Weights in other forms than safetensors (or GGUF, where there are no safetensors), "
               "pictures and subfolders are left out. What was broken off goes on where it stopped; every file is checked against its hash.\n"
               "HF_TOKEN (or the file HF_HOME/token) opens gated and private repositories; HF_HUB_CACHE or HF_HOME says where the cache is, HF_ENDPOINT where the hub is; "
               "HF_HUB_OFFLINE=1 is --offline, HF_HUB_DOWNLOAD_TIMEOUT the seconds that a server may be silent.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
};

static const oz_opt_cmd *describe(void) { return &cmd; }

static void print(const oz_pull *p) {
    if (!oz_cli_common.json) {
        puts(p->path);
        return;
    }
    json_t *files = json_array();
    for (size_t i = 0; i < p->n_files; i++) {
        const oz_pull_file *f = &p->files[i];
        json_array_append_new(files, json_pack("{s:s, s:I, s:s, s:b}", "name", f->name, "bytes", (json_int_t)f->n_bytes, "hash", f->hash, "fetched", f->fetched));
    }
    oz_cli_json_print(json_pack("{s:o, s:s, s:o}", "path", oz_json_text(p->path), "commit", p->commit, "files", files));
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    oz_pull p;
    OZ_TRY(oz_hub_pull(&p, &(oz_pull_cfg){args[0], include.items, include.n, offline}, err));
    oz_cli_whole = oz_strdup(p.path);
    print(&p);
    oz_pull_deinit(&p);
    return OZ_OK;
}

const oz_cmd oz_cmd_pull = {"pull", describe, run, false};
