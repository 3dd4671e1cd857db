#!/bin/bash
# make bench-quality: makes a checkpoint of every row below and measures it, beside what llm-compressor reaches at the same bytes on the same text (docs/quality.md).
#   TEXT=wiki.test.raw       WikiText-2, raw test split
#   CALIBRATION=cal.jsonl    128 sequences of 512 tokens; made by bench/calibration_set.py where GSM8K=gsm8k_train20.jsonl is given instead
#   MODEL=DIR                SmolLM2 in bf16; made of the published GGUF where it is not given
#   OFF=DIR                  the same function with its columns rescaled off the grid of Q4_1: its rows come second, without the peer's figures
#   PEERS=1                  llm-compressor and llama.cpp on the same models and texts, too (bench/quality_peers.sh), minutes to hours
#   TOKENS=32768 SAMPLES=128 THREADS=1 ONLY=PATTERN (of a row's name) OUT=build/quality
# What is there already is not made again. CPU seconds are those of the whole command; they are worth something on a quiet machine alone.
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-build/quality} tokens=${TOKENS:-32768} samples=${SAMPLES:-128} threads=${THREADS:-1}
: "${TEXT:?expected the path of WikiText-2, raw test split}"
mkdir -p "$out"
if [ -z "${MODEL:-}" ]; then
    MODEL=$out/bf16
    [ -e "$MODEL" ] || ./ounce convert "$(scripts/fetch_smollm2.sh)" -o "$MODEL" --to bf16 -q
fi
if [ -z "${CALIBRATION:-}" ]; then
    : "${GSM8K:?expected CALIBRATION, or GSM8K, the first 20 training problems as JSON lines}"
    CALIBRATION=$out/calibration.jsonl
    [ -e "$CALIBRATION" ] || python3 bench/calibration_set.py "$MODEL" "$TEXT" "$GSM8K" >"$CALIBRATION"
fi

# name | scheme | method | llm-compressor's best | at the least | goal
rows='W8A16-rtn|W8A16|rtn|0.00323|0.0030|0.0026
W8A16|W8A16|gptq|0.00323|0.0030|0.0026
W8A8|W8A8|gptq|0.01467|0.0140|0.0100
W8A8-smooth-rtn|W8A8|smoothquant|0.01467|0.0140|0.0100
W8A8-smooth|W8A8|smoothquant+gptq|0.01467|0.0140|0.0100
FP8|FP8_DYNAMIC|gptq|0.02876|0.0270|0.0200
FP8-smooth|FP8_DYNAMIC|smoothquant+gptq|0.02876|0.0270|0.0200
W4A16|W4A16 --group-size 64|gptq|0.21597|0.200|0.150
W4A16-awq|W4A16 --group-size 64|awq+gptq|0.21597|0.200|0.150
W4A16_ASYM|W4A16_ASYM --group-size 64|gptq|0.14314|0.135|0.100
W4A16_ASYM-awq-rtn|W4A16_ASYM --group-size 64|awq|0.16283|0.163|0.100
W4A16_ASYM-awq|W4A16_ASYM --group-size 64|awq+gptq|0.14314|0.135|0.100'

TIMEFORMAT='%U %S'
row() { # MODEL PREFIX NAME SCHEME METHOD PEER LEAST GOAL
    local q=$out/$2$3 text=() cpu=- rss=-
    [ "$5" = rtn ] || text=(--calibration "$CALIBRATION" --num-calibration-samples "$samples" --max-seq-length 512)
    if [ ! -e "$q" ]; then # with --resume, what was broken off
        [ "$5" = rtn ] || text+=(--resume)
        # shellcheck disable=SC2086
        { time ./ounce quantize "$1" -o "$q" -t "$threads" --scheme $4 --method "$5" "${text[@]}" -q --json >"$q.json" 2>"$q.err"; } 2>"$q.time" || { cat "$q.err" >&2; exit 1; }
    fi
    [ -e "$q.time" ] && cpu=$(awk '{ printf "%.0f", $1 + $2 }' "$q.time") rss=$(jq '.peak_rss_bytes / 1e6 | floor' "$q.json")
    [ -e "$q.kl" ] || { ./ounce kl "$1" "$q" --text "$TEXT" --limit-tokens "$tokens" --json -q >"$q.kl.part" 2>"$q.err" && mv "$q.kl.part" "$q.kl"; } || { cat "$q.err" >&2; exit 1; }
    jq -r --arg n "$2$3" --arg s "$4, $5" --arg r "$6 | $7 | $8 | $cpu | $rss" 'if type == "array" then .[0] else . end | (.mean_kl * 1e5 | round / 1e5 | tostring) as $kl
        | "| \($n) | \($s) | \($kl) ± \(.kl_se_windows * 1e5 | round / 1e5) | \(.top1_agreement * 1e4 | round / 100) | \(.ppl * 1e3 | round / 1e3) | \($r) |"' "$q.kl"
}
echo '| name | scheme, method | mean KL ± s.e. over windows | top-1 % | perplexity | llm-compressor | at the least | goal | CPU s | peak MB |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for off in '' off-; do
    [ -z "$off" ] || [ -n "${OFF:-}" ] || continue
    while IFS='|' read -r name scheme method peer least goal; do
        # shellcheck disable=SC2254
        case $name in ${ONLY:-*}) if [ -z "$off" ]; then row "$MODEL" '' "$name" "$scheme" "$method" "$peer" "$least" "$goal"; else row "$OFF" off- "$name" "$scheme" "$method" - "$least" "$goal"; fi ;; esac
    done <<<"$rows"
done
if [ -n "${PEERS:-}" ]; then
    echo && TOKENS=$tokens bench/quality_peers.sh "$MODEL" "$CALIBRATION" "$TEXT" "$out/peers"
    [ -z "${OFF:-}" ] || { echo && TOKENS=$tokens bench/quality_peers.sh "$OFF" "$CALIBRATION" "$TEXT" "$out/off-peers"; }
fi
