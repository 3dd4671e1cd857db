# verify: nothing is found in checkpoints that are good; what is wrong is found, all of it, a line each; nothing ends it in any other way.
. tests/lib.sh
C=tests/golden/cases Q=tests/golden/quantized M=tests/golden/models
verify() { $OUNCE verify "$@" >"$T/out" 2>"$T/err"; }
finds() { # NAME STATUS TEXT ARGS...
    local name=$1 want=$2 text=$3 status
    shift 3
    verify "$@"
    status=$?
    if [ $status = "$want" ] && grep -qF -- "$text" "$T/out"; then echo "ok $name"; else
        echo "not ok $name: expected status $want and '$text', found status $status and:"
        head -5 "$T/out" "$T/err" | sed 's/^/#   /'
    fi
}

for d in "$C"/*/; do
    read -r kind text <"$d/expect.txt"
    if [ "$kind" = ok ]; then ok "$(basename "$d") is good" verify "$d" -q; else finds "$(basename "$d")" 1 "$text" "$d"; fi
done
for d in "$Q"/*/ tests/golden/models/*/ tests/golden/gguf/[!r]*.gguf; do # rope-*.gguf are metadata alone
    verify "$d" -q
    status=$?
    same "nothing is found in $(basename "$d")" "0 " "$status $(cat "$T/out")"
done
for f in tests/golden/gguf/rope-*.gguf tests/golden/gguf/bad/*; do finds "$(basename "$f") is no model" 1 'error: ' "$f"; done

# All of it, not the first alone: a config with three errors, over tensors with two.
cp -r $C/38-scale-missing "$T/many"
jq '.quantization_config |= (.ignore = "lm_head" | .sparsity_config = {"format": "sparse-24-bitmask"} | .quantization_status = "done")' $C/38-scale-missing/config.json >"$T/many/config.json"
verify "$T/many"
for text in quantization_config.ignore quantization_config.sparsity_config quantization_config.quantization_status down_proj.weight_scale; do
    ok "$text is one of many" grep -q "^error: .*$text" "$T/out"
done
$OUNCE verify "$T/many" --json -q >"$T/json" 2>"$T/err"
same 'JSON: as many errors' "$(grep -c '^error' "$T/out")" "$(jq .errors "$T/json")"

# Parts that are not run are named once, by whoever loads; a config declares a layer behind the others, or there is none.
cp -r $Q/kv-cache-fp8 "$T/parts"
add() { header "$T/parts/model.safetensors" ". + {\"$1\": {dtype: \"F32\", shape: [1], data_offsets: [\$last, \$last + 4]}}" 4; }
for n in model.vision_tower.encoder.layers.0.weight multi_modal_projector.linear_1.weight mtp.fc.weight mtp.norm.weight model.layers.2.eh_proj.weight model.layers.1.self_attn.rotary_emb.inv_freq model.layers.0.self_attn.v_zero_point; do add $n; done
jq '.num_nextn_predict_layers = 1' $Q/kv-cache-fp8/config.json >"$T/parts/config.json"
notes=$(printf '%s: %d tensors, a part that is not run here\n' model.layers.2 1 model.vision_tower 1 mtp 2 multi_modal_projector 1)
ok 'parts that are not run' verify "$T/parts"
same 'are named' "$notes" "$(grep 'not run here' "$T/err")"
ok 'and loaded without' $OUNCE logits "$T/parts" --ids <(echo 1 2 3) -o "$T/parts.out" --device cpu 2>"$T/err"
same 'and named' "$notes" "$(grep 'not run here' "$T/err")"

# What is refused in a config is said once, and nothing of the tensors that it was to speak of.
refused_once() { # NAME FOLDER FILTER
    rm -rf "$T/once" && cp -r "$Q/$2" "$T/once" && jq "$3" "$Q/$2/config.json" >"$T/once/config.json"
    verify "$T/once"
    same "$1: an error alone" "1 1" "$? $(grep -v "^error: $T" "$T/out" | grep -c '^error')"
}
refused_once 'an asymmetric cache' kv-cache-fp8 '.quantization_config.kv_cache_scheme.symmetric = false'
refused_once 'a cache that is a word' kv-cache-fp8 '.quantization_config.kv_cache_scheme = "static"'
refused_once 'a format that does not store floats' fp8-dynamic '.quantization_config |= (.format = "pack-quantized" | del(.config_groups[].format))'

# A GPTQ under the other version's label: symmetric zero points tell, and the same logits come of it.
cp -r $Q/gptq-8bit "$T/label" && jq '.quantization_config.checkpoint_format = "gptq_v2"' $Q/gptq-8bit/config.json >"$T/label/config.json"
for m in "$T/label" $Q/gptq-8bit; do $OUNCE logits $m --ids <(echo 1 2 3) -o "$T/$(basename $m).out" --device cpu 2>"$T/err"; done
ok 'GPTQ under the label of the other version' cmp "$T/label.out" "$T/gptq-8bit.out"

# Scales of powers of two for inputs (scale_fmt): other logits than without, and compressed-tensors cannot say it.
cp -r $Q/fp8-native-block "$T/powers" && jq '.quantization_config.scale_fmt = "ue8m0"' $Q/fp8-native-block/config.json >"$T/powers/config.json"
ok 'scale_fmt' verify "$T/powers"
$OUNCE convert "$T/powers" -o "$T/spelled" --to compressed-tensors -q 2>"$T/err" >"$T/out"
ok 'is lost in compressed-tensors' grep -q 'the scales of their inputs are powers of two (scale_fmt), which compressed-tensors cannot say' "$T/err"
for m in powers spelled; do $OUNCE logits "$T/$m" --ids <(echo 1 2 3) -o "$T/$m.out" --device cpu 2>"$T/err"; done
ok 'and other logits come of it' bash -c "! cmp -s '$T/powers.out' '$T/spelled.out'"

finds 'no such path' 1 'error: ' "$T/none"
finds 'a file that is no checkpoint' 1 'error: ' tests/lib.sh
mkdir "$T/empty"
finds 'an empty folder' 1 config.json "$T/empty"

# Beside an original that has more: biases, a layer.
for k in plain bias deep; do
    jq -n --arg k $k '{architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_size: 64, intermediate_size: 64, num_hidden_layers: (if $k == "deep" then 2 else 1 end), num_attention_heads: 2, num_key_value_heads: 1,
        vocab_size: 64, max_position_embeddings: 64, rms_norm_eps: 1e-5, rope_theta: 10000, torch_dtype: "bfloat16", tie_word_embeddings: false, hidden_act: "silu", attention_bias: ($k == "bias")}' >"$T/$k.json"
    $OUNCE synth "$T/$k.json" -o "$T/$k" -q >/dev/null
done
ok 'a model is its own original' verify "$T/plain" --against "$T/plain" -q
finds 'biases of the original are missing' 1 'self_attn.k_proj.bias: expected this tensor of the original, found none' "$T/plain" --against "$T/bias"
finds 'a layer of the original is missing' 1 'layers.1.mlp.down_proj.weight: expected this tensor of the original, found none' "$T/plain" --against "$T/deep"
same 'each of its tensors' 9 "$(grep -c 'of the original, found none' "$T/out")"

# Beside an original of another config: each key that the model reads, with both values; a config that says the same in other words is the same.
beside() { # NAME MODEL FILTER STATUS WANT: the lines about keys, for a config that the jq filter makes of the original's
    rm -rf "$T/d" && cp -r "tests/golden/models/$2" "$T/d"
    jq "$3" "tests/golden/models/$2/config.json" >"$T/d/config.json"
    verify "$T/d" --against "tests/golden/models/$2" -q
    local status=$?
    same "config: $1" "$4 $5" "$status $(grep '^[a-z]*: config.json' "$T/out")"
}
other() { beside "$2" "$1" "$2" 1 "error: config.json.$3 as the original has, found $4"; }
other llama '.rope_theta = 1234' 'rope_theta: expected 500000.0' 1234
other llama '.rms_norm_eps = 1e-6' 'rms_norm_eps: expected 1e-5' 1e-6
other llama '.num_attention_heads = 2' 'num_attention_heads: expected 4' 2
other llama '.num_key_value_heads = 4' 'num_key_value_heads: expected 2' 4
other llama '.model_type = "mistral"' 'model_type: expected "llama"' '"mistral"'
other llama '.tie_word_embeddings = true' 'tie_word_embeddings: expected false' true
other llama '.hidden_act = "gelu_pytorch_tanh"' 'hidden_act: expected "silu"' '"gelu_pytorch_tanh"'
other llama '.rope_scaling.factor = 4' 'rope_scaling.factor: expected 8.0' 4
other llama 'del(.rope_theta)' 'rope_theta: expected 500000.0' nothing
other qwen3_moe '.num_experts_per_tok = 1' 'num_experts_per_tok: expected 2' 1
other qwen3_moe '.norm_topk_prob |= not' "norm_topk_prob: expected $(jq .norm_topk_prob tests/golden/models/qwen3_moe/config.json)" "$(jq '.norm_topk_prob | not' tests/golden/models/qwen3_moe/config.json)"
other gemma3-vision '.text_config.rope_theta = 5' 'text_config.rope_theta: expected nothing' 5
beside 'two keys' llama '.rope_theta = 1234 | .rms_norm_eps = 1e-6' 1 'error: config.json.rms_norm_eps: expected 1e-5 as the original has, found 1e-6
error: config.json.rope_theta: expected 500000.0 as the original has, found 1234'
beside 'what ends a text' llama '.eos_token_id = 5' 0 'warning: config.json.eos_token_id: expected 2 as the original has, found 5'
beside 'how long it may be' llama '.max_position_embeddings = 1024' 0 'warning: config.json.max_position_embeddings: expected 512 as the original has, found 1024'
beside 'the class' llama '.architectures = ["X"]' 0 'warning: config.json.architectures: expected ["LlamaForCausalLM"] as the original has, found ["X"]'
fails 'an original of other shapes' 1 'error: model.norm.weight: expected [64] as the original has, found [96]' bash -c "$OUNCE verify $M/llama --against $M/llama-tied-bias >&2"
for f in '.initializer_range = 1' '.head_dim = 24' '.torch_dtype = "float32"' '.sliding_window = 5' '.rms_norm_eps = 9.99999974737875e-06' \
    '.rope_parameters = {rope_theta, rope_type: "llama3"} + .rope_scaling | del(.rope_theta, .rope_scaling)'; do beside "the same: $f" llama "$f" 0 ''; done
beside 'the same: what later libraries call it' qwen3_moe '.num_local_experts = .num_experts | del(.num_experts)' 0 ''

# An original that cannot be read is a finding as well, so that there is a document.
finds 'an original that is not there' 1 "error: $T/none" $M/llama --against "$T/none"
verify $M/llama --against "$T/none" --json
same 'and in the document' '1 true' "$(jq -r --arg none "$T/none" '"\(.errors) \(.findings[0].text | startswith($none))"' "$T/out")"

# Scales of either rule are those of rounding to nearest, and which rule is said. Of what was quantized so before, none is odd.
scales() { # NAME MODEL WANT ARGS...
    $OUNCE quantize "$M/$2" -o "$T/s" --force -q "${@:4}" >"$T/report"
    verify "$T/s" --against "$M/$2" -q --json
    same "$1" "0 $3" "$(jq -r '[.findings | length] + ([.against[] | select(.scales > 0) | [.scales_nearest == .scales and .codes_nearest == .codes, .scales_divisor]] | unique | flatten) | map(tostring) | join(" ")' "$T/out")"
}
scales 'scales: of half the range' llama 'true 127.5' --scheme W8A16
scales 'scales: of the largest code' mixtral 'true 127' --scheme experts_int8
scales 'scales: of four bits' llama 'true 7.5' --scheme W4A16 --group-size 32
scales 'scales: of float8' llama 'true 448' --scheme FP8_DYNAMIC
scales 'scales: asymmetric' llama 'true null' --scheme W4A16_ASYM --group-size 32
for d in w4a16-g128 w8a16-int8-naive awq-gemm fp8-dynamic; do
    verify "$Q/$d" --against "$Q/$d" -q
    same "what was quantized so before: $d" "0 0" "$? $(grep -c '^[a-z]*: ' "$T/out")"
done

# No tensors, or fewer than layers: of a dense model nothing is said of experts.
mkdir "$T/none-read" && cp $M/llama/config.json "$T/none-read" && head -c 100 $M/llama/model.safetensors >"$T/none-read/model.safetensors"
finds 'no tensors' 1 'error: config.json.num_hidden_layers: 3 layers, and 0 tensors are there' "$T/none-read"
ok 'nor experts' bash -c "! grep -q experts '$T/out'"
