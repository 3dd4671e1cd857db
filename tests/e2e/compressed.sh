# convert to compressed-tensors and hybrids, as a user runs them: nothing is lost, bytes stay, verify finds nothing, and what cannot be done is refused by its name.
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
fails 'and how many there are' 1 '(the first of 3 modules); --lossy stores such modules as bfloat16' $OUNCE convert $G/llama.gguf -o "$T/x" --to compressed-tensors
fails 'a GGUF without blocks' 1 'nothing in it is quantized' $OUNCE convert $G/qwen3.gguf -o "$T/x" --to compressed-tensors
fails '--lossy with floats' 2 '--lossy: only --to compressed-tensors' $OUNCE convert $G/llama.gguf -o "$T/x" --to bf16 --lossy
$OUNCE convert $G/llama.gguf -o "$T/lossy" --to compressed-tensors --lossy --json >"$T/lossy.json" 2>/dev/null
same 'what was lost is counted' 3 "$(jq .lossy_modules "$T/lossy.json")"
same 'negative scales of Q4_0 become zero points' W4A16_ASYM "$(jq -r '.modules[] | select(.from == "Q4_0") | .to' "$T/lossy.json")"
same 'Q8_0 has none' W8A16 "$(jq -r '.modules[] | select(.from == "Q8_0" and .to != "dense") | .to' "$T/lossy.json")"
ok 'and the result is without findings' $OUNCE verify "$T/lossy"

# ---- hybrids ----
M=tests/golden/models/llama
$OUNCE quantize $M -o "$T/w4" --scheme W4A16 --group-size 32 -q >"$T/log"
$OUNCE quantize $M -o "$T/w8" --scheme W8A8 -q >"$T/log"
$OUNCE convert "$T/w4" -o "$T/hybrid" --to compressed-tensors --take "re:.*down_proj=$M" --take "re:.*layers\.1\.self_attn\..*=$T/w8" --json >"$T/hybrid.json" 2>"$T/err"
same 'a hybrid of three' '[["BF16","dense",5],["W4A16","W4A16",14],["W8A8","W8A8",4]]' "$(jq -c '[.modules[] | [.from, .to, .modules]] | sort' "$T/hybrid.json")"
ok 'a hybrid is without findings' $OUNCE verify "$T/hybrid"
same 'its format' mixed-precision "$(jq -r .quantization_config.format "$T/hybrid/config.json")"
same 'its dense modules are ignored by name' '["lm_head","model.layers.0.mlp.down_proj","model.layers.1.mlp.down_proj","model.layers.2.mlp.down_proj"]' "$(jq -c '.quantization_config.ignore | sort' "$T/hybrid/config.json")"
same 'no warning: whole layers changed' '' "$(grep warning "$T/err")"
$OUNCE convert "$T/hybrid" -o "$T/a" --to f32 --force -q >"$T/log"
$OUNCE convert "$T/w4" -o "$T/b" --to f32 --take "re:.*down_proj=$M" --take "re:.*layers\.1\.self_attn\..*=$T/w8" --force -q >"$T/log"
ok 'a hybrid of floats has its values' cmp "$T/a/model.safetensors" "$T/b/model.safetensors"
echo 1 2 3 4 5 >"$T/ids"
ok 'a hybrid runs' $OUNCE logits "$T/hybrid" --ids "$T/ids" -o "$T/l.safetensors" -q --dtype f32 --device cpu
$OUNCE convert "$T/w4" -o "$T/qkv" --to compressed-tensors --take "re:.*q_proj=$M" -q >"$T/log" 2>"$T/err"
same 'vLLM fuses q, k and v' 1 "$(grep -c 'self_attn (the first of 3): q_proj is dense, k_proj is W4A16; vLLM runs them as one qkv_proj and refuses different schemes' "$T/err")"
ok 'it is written all the same' $OUNCE verify "$T/qkv"
$OUNCE convert $M -o "$T/head" --to compressed-tensors --take "model.layers.0.mlp.up_proj=$T/w8" -q >"$T/log" 2>&1
same 'one module of a dense model' '["Linear"]' "$(jq -c .quantization_config.config_groups.group_0.targets "$T/head/config.json")"
ok 'leaves the others dense' $OUNCE verify "$T/head"

fails '--take without a checkpoint' 2 '--take: must be PAT=OTHER' $OUNCE convert "$T/w4" -o "$T/x" --to bf16 --take 're:.*q_proj'
fails '--take of nothing' 1 "--take 're:.*z_proj': matches no module" $OUNCE convert "$T/w4" -o "$T/x" --to bf16 --take "re:.*z_proj=$M"
fails '--take of one module twice' 1 'match model.layers.0.self_attn.q_proj' $OUNCE convert "$T/w4" -o "$T/x" --to bf16 --take "re:.*q_proj=$M" --take "re:.*proj=$T/w8"
fails '--take from another shape' 1 'model.layers.0.self_attn.q_proj' $OUNCE convert "$T/w4" -o "$T/x" --to bf16 --take "re:.*q_proj=tests/golden/models/qwen2"
fails '--take from nowhere' 1 'nowhere' $OUNCE convert "$T/w4" -o "$T/x" --to bf16 --take "re:.*q_proj=nowhere"
fails '--force over a checkpoint that is read' 1 'would delete the model that is read' $OUNCE convert "$M" -o "$T/w8" --to compressed-tensors --force --take "re:.*q_proj=$T/w8"
fails 'a dense model' 1 'nothing in it is quantized' $OUNCE convert $M -o "$T/x" --to compressed-tensors
same 'nothing was left behind' '' "$(ls -A "$T" | grep -E '^x|tmp')"
