# verify: nothing is found in checkpoints that are good; what is wrong is found, all of it, a line each; nothing ends it in any other way.
. tests/lib.sh
C=tests/golden/cases Q=tests/golden/quantized
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
