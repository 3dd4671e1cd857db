#!/bin/sh
# METHOD=awq+gptq bench/target_bytes.sh MODEL CALIBRATION TEXT [DIR]: checkpoints of SmolLM2-135M under the bytes that llama.cpp's types take in its linear modules,
# and their KL divergence to MODEL over the first 32 windows of TEXT. What is in DIR already (default build/target-bytes) is not made again.
# MODEL: the bf16 checkpoint of make demo, or that one off its grid; CALIBRATION: what bench/calibration_set.py makes.
set -eu
[ $# -ge 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
model=$1 calibration=$2 text=$3 dir=${4:-build/target-bytes}
mkdir -p "$dir"
for of in Q4_0:59885568 Q4_K_M:73446912 Q5_K_M:80096256 Q6_K:106375680; do
    out=$dir/${of%:*} bytes=${of#*:}
    [ -e "$out" ] || ./ounce quantize "$model" -o "$out" --method "${METHOD:-awq+gptq}" --target-bytes "$bytes" --calibration "$calibration" --num-calibration-samples 128 --max-seq-length 512 --json >"$out.json"
    [ -e "$out.kl" ] || ./ounce kl "$model" "$out" --text "$text" --limit-tokens 32768 -q --json >"$out.kl"
    jq -r --slurpfile q "$out.json" --arg of "${of%:*}" '.[0] | "\($of): \($q[0].budget.bytes) of \($q[0].budget.target_bytes) bytes, mean KL \(.mean_kl) +- \(.kl_se_windows) (expected \($q[0].budget.kl_expected)), top-1 \(100 * .top1_agreement) %, perplexity \(.ppl)"' "$out.kl"
done
