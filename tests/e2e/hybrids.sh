# convert --take: hybrids, as a user runs them. What is written is a model that loading takes; what does not fit is refused by its name, and what a user should hear is said.
. tests/lib.sh
Q=tests/golden/quantized G=tests/golden/gguf
M=tests/golden/models/llama
$OUNCE quantize $M -o "$T/w4" --scheme W4A16 --group-size 32 -q >"$T/log"
$OUNCE quantize $M -o "$T/w8" --scheme W8A8 -q >"$T/log"
$OUNCE convert "$T/w4" -o "$T/hybrid" --to compressed-tensors --take "re:.*down_proj=$M" --take "re:.*layers\.1\.self_attn\..*=$T/w8" --json >"$T/hybrid.json" 2>"$T/err"
same 'a hybrid of three' '[["W4A16","W4A16",14],["W8A8","W8A8",4],["bf16","bf16",5]]' "$(jq -c '[.modules[] | [.from, .to, .modules]] | sort' "$T/hybrid.json")"
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

# ---- what does not fit ----
# NAME STATUS TEXT CONVERT-ARGS...: refused alike as floats, as compressed-tensors and in a dry run, and nothing is written.
refused() {
    for to in f32 compressed-tensors 'f32 --dry-run'; do
        fails "$1: --to $to" 1 "$2" $OUNCE convert "${@:3}" -o "$T/x" --to $to
    done
}
B=tests/golden/models/llama-tied-bias
jq 'del(.attention_bias, .mlp_bias)' $B/config.json >"$T/plain.json"
$OUNCE synth "$T/plain.json" -o "$T/plain" -q >"$T/log"
$OUNCE quantize "$T/plain" -o "$T/plain8" --scheme W8A16 -q >"$T/log"
$OUNCE quantize $B -o "$T/bias8" --scheme W8A8 -q >"$T/log"
refused 'a bias more' 'model.layers.0.self_attn.q_proj.bias: expected none as in' "$T/plain8" --take "re:.*q_proj=$B"
refused 'a quantized module with a bias more' 'model.layers.0.mlp.down_proj.bias: expected none as in' "$T/plain8" --take "re:.*down_proj=$T/bias8"
refused 'a bias less' "model.layers.0.self_attn.q_proj.bias: expected [96] as in $B, found none in $T/plain8" $B --take "re:.*q_proj=$T/plain8"
refused 'norms of another length' 'model.norm.weight: expected [96] as in' "$T/w4" --take "model.norm=$B"
cp -r "$T/bias8" "$T/odd" && header "$T/odd/model.safetensors" '."model.layers.1.mlp.up_proj.bias".shape = [96, 2]' 0
refused 'a bias that is not what its config says' 'model.layers.1.mlp.up_proj.bias: expected [192], found [96, 2]' $B --take "re:.*up_proj=$T/odd"
cp -r "$T/bias8" "$T/less" && header "$T/less/model.safetensors" 'with_entries(.key |= sub("layers.1.mlp.up_proj.bias"; "layers.1.mlp.up_proj.b"))' 0
refused 'a bias of another name' 'model.layers.1.mlp.up_proj.b: expected no such tensor' $B --take "re:.*up_proj=$T/less"
$OUNCE convert $B -o "$T/biased" --to compressed-tensors --take "re:.*q_proj=$T/bias8" -q >"$T/log" 2>&1
ok 'biases of both are taken along' $OUNCE verify "$T/biased"
cp -r "$T/plain8" "$T/nine" && jq '.quantization_config.config_groups.group_0.weights.num_bits = 9' "$T/plain8/config.json" >"$T/nine/config.json"
refused "a config that is wrong: whose" "$T/nine: quantization_config.config_groups.group_0.weights.num_bits: must be 2..8, found 9" "$T/plain" --take "re:.*q_proj=$T/nine"
refused "a config that is wrong: the model's" "$T/nine: quantization_config.config_groups.group_0.weights.num_bits: must be 2..8, found 9" "$T/nine" --take "re:.*q_proj=$T/plain"
cp -r "$T/plain8" "$T/cut" && header "$T/cut/model.safetensors" 'with_entries(.key |= sub("layers.1.mlp.up_proj.weight_scale"; "rotary_emb.inv_freq"))' 0
refused 'a scale that is missing' "$T/cut: model.layers.1.mlp.up_proj.weight_scale: not in the checkpoint" "$T/plain" --take "re:.*up_proj=$T/cut"

# ---- tied heads ----
fails 'a tied head has nothing to take' 1 "--take 'lm_head': matches nothing but lm_head, which has no tensor of its own: both models tie it" $OUNCE convert "$T/plain8" -o "$T/x" --to f32 --take "lm_head=$T/plain"
$OUNCE convert "$T/plain8" -o "$T/linear" --to f32 --take "Linear=$T/plain" >"$T/out" 2>"$T/err"
ok 'a class name passes over it' $OUNCE verify --against "$T/plain" "$T/linear"
same 'and says so' 1 "$(grep -c 'lm_head has no tensor to take: both models tie it to the embedding' "$T/err")"
jq '.tie_word_embeddings = false' "$T/plain.json" >"$T/untied.json"
$OUNCE synth "$T/untied.json" -o "$T/untied" -q >"$T/log"
fails 'nor has it where the model has a head' 1 "--take 'Linear': matches lm_head, which has no tensor of its own in $T/plain8: it is tied" $OUNCE convert "$T/untied" -o "$T/x" --to f32 --take "Linear=$T/plain8"
$OUNCE convert "$T/plain8" -o "$T/head2" --to compressed-tensors --take "lm_head=$T/untied" -q >"$T/log" 2>&1
same 'a head unties a model that had none' false "$(jq .tie_word_embeddings "$T/head2/config.json")"
ok 'and it loads' $OUNCE verify "$T/head2"

# ---- configs that say otherwise ----
jq '.rope_theta = 500000 | .rms_norm_eps = 1e-6' "$T/plain.json" >"$T/other.json"
$OUNCE synth "$T/other.json" -o "$T/other" -q >"$T/log"
$OUNCE convert "$T/plain8" -o "$T/others" --to f32 --take "re:.*q_proj=$T/other" -q >"$T/log" 2>"$T/err"
same 'keys that differ are named' "warning: $T/other: its config says otherwise than that of $T/plain8, under which what is taken will run: rms_norm_eps, rope_theta" "$(cat "$T/err")"
jq '.model_type = "mistral" | .rope_parameters = {rope_type: "default", rope_theta: 10000} | del(.rope_theta, .rope_scaling)' "$T/plain.json" >"$T/other.json"
$OUNCE synth "$T/other.json" -o "$T/mistral" -q >"$T/log"
$OUNCE convert "$T/plain8" -o "$T/others" --to f32 --force --take "re:.*q_proj=$T/mistral" -q >"$T/log" 2>"$T/err"
same 'another spelling is none of them' ' model_type' "$(sed 's/.*will run://' "$T/err")"
$OUNCE convert "$T/plain8" -o "$T/others" --to f32 --force --take "re:.*q_proj=$T/plain" -q >"$T/log" 2>"$T/err"
same 'and none is no warning' '' "$(cat "$T/err")"

# ---- quantized caches ----
K=$Q/kv-cache-fp8
$OUNCE convert $K -o "$T/kv32" --to f32 -q >"$T/log" 2>"$T/err"
same 'a cache of float8 is left out of floats' "warning: $K: its quantized cache (kv_cache_scheme and its scales) is left out: plain floats cannot say it" "$(grep cache "$T/err")"
same 'with its scales' 0 "$($OUNCE inspect "$T/kv32" --tensors --json | jq '[.tensors[].name | select(test("[kv]_scale"))] | length')"
ok 'and what is left loads' $OUNCE verify "$T/kv32"
$OUNCE convert "$T/kv32" -o "$T/kv" --to compressed-tensors --take "re:.*mlp.*=$K" -q >"$T/log" 2>"$T/err"
same 'a cache is not taken' "warning: $K: its quantized cache (kv_cache_scheme and its scales) is not taken; the model's is not quantized" "$(grep cache "$T/err")"
same 'nor its scheme' null "$(jq .quantization_config.kv_cache_scheme "$T/kv/config.json")"
ok 'and the hybrid loads' $OUNCE verify "$T/kv"
$OUNCE convert $K -o "$T/kv" --force --to compressed-tensors --take "re:.*mlp.*=$T/kv32" -q >"$T/log" 2>"$T/err"
same "a model's own stays" "warning: $K: its quantized cache (kv_cache_scheme and its scales) stays, though $T/kv32 has none" "$(grep cache "$T/err")"
same 'with its scheme' '[8,"float"]' "$(jq -c '.quantization_config.kv_cache_scheme | [.num_bits, .type]' "$T/kv/config.json")"
ok 'and its scales' $OUNCE verify "$T/kv"
$OUNCE convert $K -o "$T/kv" --force --to compressed-tensors --take "re:.*mlp.*=$K" -q >"$T/log" 2>"$T/err"
same "it stays where both have one" "warning: $K: its quantized cache (kv_cache_scheme and its scales) is not taken; that of the model stays" "$(grep cache "$T/err")"
same 'nothing was left behind' '' "$(ls -A "$T" | grep -E '^x|tmp')"
