#!/bin/bash
# The main job from nothing: installs what is missing, builds, fetches SmolLM2-135M-Instruct, makes a bf16 checkpoint and four quantized ones
# from it, measures size, memory, speed and quality beside the prediction, prints one table, and lets each model answer a question.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh python3-pip ca-certificates jq
make -s -j"$(nproc)"

out=${DEMO_DIR:-demo}
schemes="W8A8 W8A16 FP8_DYNAMIC W4A16"
text=bench/text/demo.txt
question="What is the capital of France?"
say() { printf '\n== %s\n' "$*" >&2; }
options() { [ "$1" != W4A16 ] || echo "--group-size 64"; } # 128 does not divide this model's width of 576

say "model"
gguf=$(scripts/fetch_smollm2.sh)
mkdir -p "$out"
start=$SECONDS
./ounce convert "$gguf" -o "$out/bf16" --to bf16 --force

for s in $schemes; do
    say "quantize to $s"
    # shellcheck disable=SC2046
    ./ounce quantize "$out/bf16" -o "$out/$s" --scheme "$s" $(options "$s") --dry-run --json >"$out/$s.plan.json"
    # shellcheck disable=SC2046
    ./ounce quantize "$out/bf16" -o "$out/$s" --scheme "$s" $(options "$s") --force --json >"$out/$s.quantize.json"
done
./ounce convert "$out/bf16" -o "$out/same" --to bf16 --dry-run --json >"$out/bf16.plan.json"

for s in bf16 $schemes; do
    say "speed of $s"
    ./ounce bench "$out/$s" -p 512 -n 128 -r 3 --json >"$out/$s.bench.json"
done

say "quality: 8 windows of 1,024 tokens, all models in lockstep"
# shellcheck disable=SC2086
./ounce kl "$out/bf16" $(printf "$out/%s " $schemes) --text "$text" --ctx 1024 --limit-tokens 8192 --json >"$out/kl.json"

on_disk() { find "$out/$1" -name '*.safetensors*' -printf '%s\n' | awk '{ n += $1 } END { print n }'; } # weights and index
speed() { jq -r --arg t "$2" '.rows[] | select(.test == $t) | "\(.tok_s | floor) / \(.predicted_tok_s | floor)"' "$out/$1.bench.json"; }
quality() {
    if [ "$1" = bf16 ]; then jq -r '"\(.[0].ppl_ref) 0 100"' "$out/kl.json"
    else jq -r --arg m "$out/$1" '.[] | select(.model == $m) | "\(.ppl) \(.mean_kl) \(.top1_agreement * 100)"' "$out/kl.json"; fi
}

say "SmolLM2-135M-Instruct on $(jq -r '.device' "$out/bf16.bench.json")"
jq -r '"measured ceilings: read \(.ceiling.read_bytes_s / 1e9 * 10 | round / 10) GB/s, \(if .ceiling.f32_flop_s then "f32 \(.ceiling.f32_flop_s / 1e9 | round)" else "bf16 \(.ceiling.bf16_flop_s / 1e9 | round)" end) GFLOP/s, int8 \(.ceiling.i8_op_s / 1e9 | round) GOP/s"' "$out/bf16.bench.json"
printf '\n%-12s %13s %13s %9s %9s %17s %17s %9s %9s %7s\n' scheme "predicted B" "on disk B" "quant MB" "run MB" "prefill 512 t/s" "decode 128 t/s" ppl "mean KL" "top-1 %"
printf '%-12s %13s %13s %9s %9s %17s %17s\n' "" "" "" peak peak "measured / roof" "measured / roof"
status=0
for s in bf16 $schemes; do
    predicted=$(jq .bytes "$out/$s.plan.json") disk=$(on_disk "$s")
    read -r ppl kl top1 < <(quality "$s")
    quant=-
    [ "$s" = bf16 ] || quant=$(jq '.peak_rss_bytes / 1e6 | round' "$out/$s.quantize.json")
    printf '%-12s %13d %13d %9s %9d %17s %17s %9.4f %9.6f %7.2f\n' "$s" "$predicted" "$disk" "$quant" "$(jq '.peak_rss_bytes / 1e6 | round' "$out/$s.bench.json")" \
        "$(speed "$s" prefill)" "$(speed "$s" decode)" "$ppl" "$kl" "$top1"
    [ "$predicted" = "$disk" ] || { echo "error: $s: predicted $predicted bytes, found $disk on disk" >&2; status=1; }
done

for s in bf16 $schemes; do
    printf '\n%s: %s\n' "$s" "$question"
    ./ounce run "$out/$s" --chat -p "$question" -n 48 -q
done
printf '\n%d seconds after the download; the checkpoints are in %s/\n' $((SECONDS - start)) "$out"
exit $status
