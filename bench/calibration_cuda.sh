#!/bin/bash
# bench/calibration_cuda.sh [GPTQ|AWQ...]: how long calibrating a large model takes on the GPU here: Llama 3.1 8B's shape with random weights (ounce synth), 512 sequences of 2,048 random
# tokens, W4A16 in groups of 128. Prints a line a method: seconds, peak of the host's memory, peak of the GPU's as nvidia-smi shows it. Wall time is that of the whole command, from
# reading the model to the checkpoint in its place; another process on the GPU spoils both.
#   DIR=/dev/shm/calibration LAYERS=32 SAMPLES=512 LENGTH=2048
set -eu
cd "$(dirname "$0")/.."
dir=${DIR:-/dev/shm/calibration} layers=${LAYERS:-32} samples=${SAMPLES:-512} length=${LENGTH:-2048}
[ $# -gt 0 ] || set -- gptq awq
mkdir -p "$dir"
jq -n --argjson layers "$layers" '{architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: $layers, num_attention_heads: 32, num_key_value_heads: 8,
    vocab_size: 128256, max_position_embeddings: 8192, rms_norm_eps: 1e-5, rope_theta: 500000, hidden_act: "silu", torch_dtype: "bfloat16", tie_word_embeddings: false, bos_token_id: 1, eos_token_id: 2,
    initializer_range: 0.02}' >"$dir/config.json"
awk -v n="$samples" -v len="$length" 'BEGIN { srand(1); for (i = 0; i < n; i++) { printf "{\"ids\":["; for (k = 0; k < len; k++) printf "%s%d", k ? "," : "", int(rand() * 128256); print "]}" } }' >"$dir/text.jsonl"
[ -e "$dir/model" ] || ./ounce synth "$dir/config.json" -o "$dir/model" -q
for method in "$@"; do
    rm -rf "$dir/out" "$dir/out.gptq"
    : >"$dir/gpu"
    (while sleep 1; do nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; done >>"$dir/gpu") &
    watch=$!
    ./ounce quantize "$dir/model" -o "$dir/out" --scheme W4A16 --group-size 128 --method "$method" --calibration "$dir/text.jsonl" --num-calibration-samples "$samples" --max-seq-length "$length" \
        --device cuda --json -q >"$dir/report.json"
    kill "$watch"
    jq -r --arg m "$method" --arg gpu "$(sort -n "$dir/gpu" | tail -1)" '"\($m): \(.seconds) s, \(.peak_rss_bytes / 1e9) GB on the host, \($gpu) MiB on the GPU"' "$dir/report.json"
done
rm -rf "$dir/out"
