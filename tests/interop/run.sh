#!/bin/sh
# make interop: what we write, held against the libraries that others read it with. Installs them from PyPI into build/venv (some 6 GB:
# PyPI's torch comes with CUDA), builds llama.cpp, fetches SmolLM2-135M-Instruct. Not part of make test. TEXT=FILE, WINDOWS=N: what logits are compared on.
# TOKENIZERS=FOLDERS: more tokenizers beside SmolLM2's that take MB=100 megabytes of text, ids compared and timed.
set -eu
cd "$(dirname "$0")/../.."
work=build/interop venv=build/venv text=${TEXT:-bench/text/demo.txt}
packages="torch transformers==5.23.* compressed-tensors==0.20.* safetensors>=0.8 gguf llama-cpp-python numpy sentencepiece protobuf tiktoken"
vocabularies="mistral-common dashscope" # for files in them

if ! "$venv/bin/python" -c 'import torch, transformers, compressed_tensors, gguf, llama_cpp, sentencepiece, tiktoken' 2>/dev/null; then
    echo "installing $packages into $venv" >&2
    python3 -m venv "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet $packages
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --no-deps $vocabularies
fi
mkdir -p "$work"
source=$(scripts/fetch_smollm2.sh)
gguf=
case $source in *.gguf) gguf=$source; ./ounce convert "$source" -o "$work/bf16" --to bf16 --force; source=$work/bf16 ;; esac
status=0
"$venv/bin/python" tests/interop/quantized.py ./ounce "$source" "$text" "$work" --windows "${WINDOWS:-4}" || status=1
"$venv/bin/python" tests/interop/convert.py ./ounce "$work" || status=1
"$venv/bin/python" tests/interop/gguf_types.py ./ounce "$work" || status=1
if [ -n "$gguf" ]; then "$venv/bin/python" tests/interop/gguf_kl.py ./ounce "$gguf" "$text" "$work" --windows "${WINDOWS:-4}" || status=1
else echo "gguf_kl.py is left out: it starts from the GGUF, and $source is none" >&2; fi
"$venv/bin/python" tests/interop/tokenizers_random.py ./ounce --seconds 120 || status=1
"$venv/bin/python" tests/interop/vocab.py ./ounce "$work" || status=1
for folder in "$source" ${TOKENIZERS:-}; do "$venv/bin/python" bench/tokenize_peers.py ./ounce "$folder" --mb "${MB:-100}" --runs 1 || status=1; done
"$venv/bin/python" tests/interop/safetensors_bytes.py check "$work"/W* "$work"/FP8* || status=1
exit $status
