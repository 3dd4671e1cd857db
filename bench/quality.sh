#!/bin/bash
# make bench-quality: makes a checkpoint of every row below and measures it, beside what llm-compressor and llama.cpp reach at the same bytes on the same text (docs/quality.md).
#   TEXT=wiki.test.raw       WikiText-2, raw test split
#   CALIBRATION=cal.jsonl    128 sequences of 512 tokens; made by bench/calibration_set.py where GSM8K=gsm8k_train20.jsonl is given instead
#   MODEL=DIR                SmolLM2 in bf16; made of the published GGUF where it is not given
#   OFF=DIR                  the same function with its columns rescaled off the grid of Q4_1: its rows come second, without the peer's figures
#   PEERS=1                  llm-compressor and llama.cpp on the same models and texts, too (bench/quality_peers.sh), minutes to hours
#   TOKENS=32768 SAMPLES=128 THREADS=1 JOBS=1 (rows at a time) ONLY=PATTERN (of a row's name) OUT=build/quality
# What is there already is not made again. CPU seconds are those of the whole command; they are worth something on a quiet machine alone. Where there is a GPU, rows are calibrated and measured on it.
set -eu
cd "$(dirname "$0")/.."
export out=${OUT:-build/quality} tokens=${TOKENS:-32768} samples=${SAMPLES:-128} threads=${THREADS:-1} TEXT CALIBRATION
jobs=${JOBS:-1}
: "${TEXT:?expected the path of WikiText-2, raw test split}"
[ -r "$TEXT" ] || { echo "error: $TEXT: cannot be read; expected WikiText-2, raw test split (TEXT=)" >&2; exit 1; }
mkdir -p "$out"
if [ -z "${MODEL:-}" ]; then
    MODEL=$out/bf16
    [ -e "$MODEL" ] || ./ounce convert "$(scripts/fetch_smollm2.sh)" -o "$MODEL" --to bf16 -q
fi
if [ -z "${CALIBRATION:-}" ]; then
    : "${GSM8K:?expected CALIBRATION, or GSM8K, the first 20 training problems as JSON lines}"
    CALIBRATION=$out/calibration.jsonl
    [ -e "$CALIBRATION" ] || { python3 bench/calibration_set.py "$MODEL" "$TEXT" "$GSM8K" >"$CALIBRATION.part" && mv "$CALIBRATION.part" "$CALIBRATION"; }
fi

# name | options | method | the peer's best on the given model: llm-compressor's; llama.cpp's with importance at the bytes of Q4_0, Q4_K_M, Q6_K | goal
table='W8A16-rtn|--scheme W8A16|rtn|0.00323|0.0026
W8A16|--scheme W8A16|gptq|0.00323|0.0026
W8A8|--scheme W8A8|gptq|0.01467|0.0100
W8A8-smooth-rtn|--scheme W8A8|smoothquant|0.01467|0.0100
W8A8-smooth|--scheme W8A8|smoothquant+gptq|0.01467|0.0100
FP8|--scheme FP8_DYNAMIC|gptq|0.02876|0.0200
FP8-smooth|--scheme FP8_DYNAMIC|smoothquant+gptq|0.02876|0.0200
W4A16|--scheme W4A16 --group-size 64|gptq|0.21597|0.150
W4A16-awq|--scheme W4A16 --group-size 64|awq+gptq|0.21597|0.150
W4A16_ASYM|--scheme W4A16_ASYM --group-size 64|gptq|0.14314|0.100
W4A16_ASYM-awq-rtn|--scheme W4A16_ASYM --group-size 64|awq|0.16283|0.100
W4A16_ASYM-awq|--scheme W4A16_ASYM --group-size 64|awq+gptq|0.14314|0.100
Q4_0-bytes|--target-bytes 59885568|awq+gptq|0.17505|0.175
Q4_K_M-bytes|--target-bytes 73446912|gptq|0.03543|0.0354
Q4_K_M-bytes-awq|--target-bytes 73446912|awq+gptq|0.03543|0.0354
Q6_K-bytes|--target-bytes 106375680|gptq|0.00955|0.0096'

rows() { # of each model the wanted ones, a NUL behind every field: prefix, model, name, options, method, peer, goal
    local of row
    for of in "|$MODEL" ${OFF:+"off-|$OFF"}; do
        while read -r row; do
            # shellcheck disable=SC2254
            case ${row%%|*} in ${ONLY:-*}) printf '%s\n' "$of|$row" | tr '|\n' '\0\0' ;; esac
        done <<<"$table"
    done
}
make_row() {
    local q=$out/$1$3 text=() TIMEFORMAT='%U %S'
    [ "$5" = rtn ] || text=(--calibration "$CALIBRATION" --num-calibration-samples "$samples" --max-seq-length 512)
    [ ! -e "$q.gptq" ] || text+=(--resume) # what was broken off
    if [ ! -e "$q" ]; then
        echo "$1$3: making it" >&2
        # shellcheck disable=SC2086
        { time ./ounce quantize "$2" -o "$q" -t "$threads" $4 --method "$5" "${text[@]}" -q --json >"$q.json" 2>"$q.err"; } 2>"$q.time" || { cat "$q.err" >&2; return 1; }
    fi
    [ -e "$q.kl" ] || echo "$1$3: measuring it" >&2
    [ -e "$q.kl" ] || { ./ounce kl "$2" "$q" -t "$threads" --text "$TEXT" --limit-tokens "$tokens" --dtype f32 --json -q >"$q.kl.part" 2>"$q.err" && mv "$q.kl.part" "$q.kl"; } || { cat "$q.err" >&2; return 1; }
}
print_row() {
    local q=$out/$1$3
    jq -r --arg of "$1$3 | $4, $5" --arg beside "$6 | $7 | $(awk '{ printf "%.0f", $1 + $2 }' "$q.time")" --slurpfile q "$q.json" '.[0]
        | "| \($of) | \($q[0].quantized_bytes) | \(.mean_kl * 1e5 | round / 1e5) ± \(if .windows > 1 then .kl_se_windows * 1e5 | round / 1e5 else "?" end) | \(.top1_agreement * 1e4 | round / 100) | \(.ppl * 1e3 | round / 1e3) | \($beside) | \($q[0].peak_rss_bytes / 1e6 | floor) |"' "$q.kl"
}
export -f make_row print_row
rows | xargs -0 -n 7 -P "$jobs" bash -c 'make_row "$@"' _
echo '| name | options, method | bytes in the linears | mean KL ± s.e. over windows | top-1 % | perplexity | the peer, given model | goal | CPU s | peak MB |'
echo '|---|---|---|---|---|---|---|---|---|---|'
rows | xargs -0 -n 7 bash -c 'print_row "$@"' _
if [ -n "${PEERS:-}" ]; then
    echo && TOKENS=$tokens bench/quality_peers.sh "$MODEL" "$CALIBRATION" "$TEXT" "$out/peers"
    [ -z "${OFF:-}" ] || { echo && TOKENS=$tokens bench/quality_peers.sh "$OFF" "$CALIBRATION" "$TEXT" "$out/off-peers"; }
fi
