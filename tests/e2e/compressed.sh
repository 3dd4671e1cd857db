# convert to compressed-tensors, as a user runs it: nothing is lost, bytes stay, verify finds nothing, and what cannot be done is refused by its name.
. tests/lib.sh
Q=tests/golden/quantized G=tests/golden/gguf
compressed() { $OUNCE convert "$1" -o "$2" --to compressed-tensors --force -q "${@:3}"; }
# NAME MODEL CONVERTED: the same values, dequantized; and the linter's word.
equal_values() {
    $OUNCE convert "$2" -o "$T/a" --to f32 --force -q >"$T/log" && $OUNCE convert "$3" -o "$T/b" --to f32 --force -q >"$T/log"
    ok "$1 has the same values" cmp "$T/a/model.safetensors" "$T/b/model.safetensors"
    ok "$1 is without findings" $OUNCE verify "$3"
}

for d in "$Q"/*/; do
    n=$(basename "$d")
    compressed "$d" "$T/$n" >"$T/log" 2>&1
    equal_values "$n" "$d" "$T/$n"
    if grep -q '"quant_method": "compressed-tensors"' "$d/config.json"; then ok "$n keeps its tensors to the byte" cmp "$d/model.safetensors" "$T/$n/model.safetensors"; fi
    compressed "$T/$n" "$T/again" >"$T/log" 2>&1
    same "$n, converted again, is the same" "$(cd "$T/$n" && sha256sum *)" "$(cd "$T/again" && sha256sum *)"
done
$OUNCE convert $Q/fp8-dynamic -o "$T/a" --to f32 --force -q >"$T/log" 2>"$T/err"
same 'inputs that were quantized and are no more' 'warning: model.layers.0.mlp.down_proj (scheme FP8_DYNAMIC), and 14 modules in all: their inputs are not quantized any more, plain floats cannot say it' "$(cat "$T/err")"
$OUNCE convert $Q/w4a16-g128 -o "$T/a" --to f32 --force -q >"$T/log" 2>"$T/err"
same 'no word where none were' '' "$(cat "$T/err")"
same 'GPTQ keeps its order of columns' group "$(jq -r .quantization_config.config_groups.group_0.weights.actorder "$T/gptq-v1-desc-act/config.json")"
same 'AWQ with zero points is asymmetric' false "$(jq .quantization_config.config_groups.group_0.weights.symmetric "$T/awq-gemm/config.json")"
same 'blocks of fp8 stay blocks' '[128,128]' "$(jq -c .quantization_config.config_groups.group_0.weights.block_structure "$T/fp8-native-block/config.json")"
same 'a cache keeps its scheme' "$(jq -c '.quantization_config.kv_cache_scheme | [.num_bits, .type, .strategy]' "$Q/kv-cache-fp8/config.json")" "$(jq -c '.quantization_config.kv_cache_scheme | [.num_bits, .type, .strategy]' "$T/kv-cache-fp8/config.json")"

# ---- GGUF ----
for n in gemma3 phi3; do
    compressed $G/$n.gguf "$T/$n" >"$T/log" 2>&1
    equal_values "$n.gguf" $G/$n.gguf "$T/$n"
done
fails 'blocks with offsets' 1 'model.layers.0.mlp.gate_proj: Q4_1 has no form in compressed-tensors without loss: its groups have offsets' $OUNCE convert $G/llama.gguf -o "$T/x" --to compressed-tensors
fails 'and how many there are' 1 '(the first of 3 modules); --lossy stores such modules as bf16' $OUNCE convert $G/llama.gguf -o "$T/x" --to compressed-tensors
fails 'a GGUF without blocks' 1 'no linear module in it is quantized' $OUNCE convert $G/qwen3.gguf -o "$T/x" --to compressed-tensors
fails '--lossy with floats' 2 '--lossy: only --to compressed-tensors' $OUNCE convert $G/llama.gguf -o "$T/x" --to bf16 --lossy
$OUNCE convert $G/llama.gguf -o "$T/lossy" --to compressed-tensors --lossy --json >"$T/lossy.json" 2>/dev/null
same 'what was lost is counted' 3 "$(jq .lossy_modules "$T/lossy.json")"
same 'negative scales of Q4_0 become zero points' W4A16_ASYM "$(jq -r '.modules[] | select(.from == "q4_0") | .to' "$T/lossy.json")"
same 'Q8_0 has none' W8A16 "$(jq -r '.modules[] | select(.from == "q8_0" and .to != "bf16" and .to != "f32") | .to' "$T/lossy.json")"
ok 'and the result is without findings' $OUNCE verify "$T/lossy"
$OUNCE convert $G/types.gguf -o "$T/types" --to compressed-tensors --lossy --json >"$T/types.json" 2>/dev/null
same 'what every type becomes' 'iq4_nl bf16, iq4_xs bf16, mxfp4 MXFP4A16, q2_k bf16, q3_k W3A16_ASYM, q4_k bf16, q5_0 W5A16_ASYM, q5_1 bf16, q5_k bf16, q6_k W6A16_ASYM' \
    "$(jq -r '[.modules[] | "\(.from) \(.to)"] | sort | join(", ")' "$T/types.json")"
ok 'and all of them are without errors' $OUNCE verify "$T/types"
$OUNCE convert $G/llama.gguf -o "$T/floats" --to f32 -q >"$T/log"
fails 'what would be floats alone' 1 'none of its quantized modules has a form in compressed-tensors, so nothing of the result would be quantized; --to bf16 makes floats' $OUNCE convert $G/llama.gguf -o "$T/x" \
    --to compressed-tensors --lossy --take "re:.*(0\.mlp\.(up|down)|1\.mlp\.(gate|down)|[qvo]|1\.self_attn\.k)_proj=$T/floats"

fails 'a dense model' 1 'no linear module in it is quantized' $OUNCE convert tests/golden/models/llama -o "$T/x" --to compressed-tensors
same 'nothing was left behind' '' "$(ls -A "$T" | grep -E '^x|tmp')"
