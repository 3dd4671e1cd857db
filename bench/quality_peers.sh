#!/bin/bash
# bench/quality_peers.sh MODEL CALIBRATION TEXT [DIR]: what llm-compressor and llama.cpp make of MODEL, as a table beside that of bench/quality.sh (which runs this with PEERS=1).
# llm-compressor's checkpoints are run by ounce, in f32, against MODEL; llama.cpp's files by llama.cpp, against its own f32 of MODEL: the same windows, the same definitions.
# MODEL: SmolLM2-135M in bf16, or that one off its grid; CALIBRATION: what bench/calibration_set.py makes. What is in DIR already (default build/quality-peers) is not made again.
#   TOKENS=32768 of TEXT; ONLY=PATTERN of a recipe's name (GGUF: llama.cpp's); PYTHON=one that has both packages, else they are installed into build/venv-quality-peers (some 6 GB)
set -eu
[ $# -ge 3 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
model=$1 calibration=$2 text=$3 out=${4:-build/quality-peers} tokens=${TOKENS:-32768}
venv=build/venv-quality-peers python=${PYTHON:-$venv/bin/python}
if ! "$python" -c 'import llama_cpp, gguf, llmcompressor' 2>/dev/null; then
    [ -z "${PYTHON:-}" ] || { echo "error: $PYTHON lacks llama_cpp, gguf or llmcompressor" >&2; exit 1; }
    echo "installing llm-compressor and llama.cpp into $venv (minutes)" >&2
    python3 -m venv "$venv"
    CMAKE_ARGS=-DGGML_NATIVE=ON "$venv/bin/pip" install --quiet --no-binary llama-cpp-python llmcompressor==0.14.0.1 llama-cpp-python==0.3.36 gguf
fi
export OMP_NUM_THREADS=1 # the peers' processor seconds are those of one thread, as ours
mkdir -p "$out"
peers() { "$python" bench/quality_peers.py "$@"; }
wanted() { # shellcheck disable=SC2254
    case $1 in ${ONLY:-*}) ;; *) false ;; esac
}
whole() { # FILE COMMAND...: its output, there only when it is whole
    [ -e "$1" ] || { "${@:2}" >"$1.part" 2>"$1.err" && mv "$1.part" "$1"; } || { cat "$1.err" >&2; exit 1; }
}
row='"| \(.bytes) | \(.mean_kl * 1e5 | round / 1e5) ± \(.kl_se_windows // 0 | . * 1e5 | round / 1e5) | \(.positions) | \(.top1_agreement * 1e4 | round / 100) | \(.ppl * 1e3 | round / 1e3) | \(.note) |"'

echo '| peer, scheme | bytes in the linears | mean KL ± s.e. over windows | positions | top-1 % | perplexity | |'
echo '|---|---|---|---|---|---|---|'
for name in W8A16 W8A8 FP8_DYNAMIC W4A16 W4A16_ASYM; do
    wanted "$name" || continue
    q=$out/$name
    if [ ! -e "$q" ]; then
        rm -rf "$q.part"
        peers make "$name" "$model" "$calibration" "$q.part" >"$q.log" 2>&1 || { tail "$q.log" >&2; exit 1; }
        mv "$q.part" "$q"
    fi
    whole "$q.kl" ./ounce kl "$model" "$q" --text "$text" --limit-tokens "$tokens" --dtype f32 --json -q
    whole "$q.inspect" ./ounce inspect "$q" --json -q
    jq -r --slurpfile i "$q.inspect" --slurpfile m "$q/made.json" --arg n "$name" '.[0]
        | .bytes = ([$i[0].classes[] | select(.scheme != "dense") | .bytes] | add) | .note = "\($m[0].cpu_s | round) CPU s, \($m[0].peak_rss_bytes / 1e6 | round) MB"
        | "| llm-compressor, \($n) " + '"$row" "$q.kl"
done
if wanted GGUF; then
    [ -e "$out/importance.npz" ] || peers importance "$model" "$calibration" "$out/importance.npz" 2>"$out/importance.err" || { cat "$out/importance.err" >&2; exit 1; }
    whole "$out/ids" ./ounce tokenize "$model" <"$text"
    jq -cs --argjson n "$tokens" '.[:$n] | [range(0; length; 1024) as $i | .[$i:$i + 1024]]' "$out/ids" >"$out/windows.json"
    whole "$out/gguf.kl" peers gguf "$model" "$out/importance.npz" "$out/windows.json" "$out"
    jq -r '.note = ([.kinds | to_entries[] | "\(.key) x\(.value)"] | join(", ")) | "| llama.cpp, \(.name) " + '"$row" "$out/gguf.kl"
fi
