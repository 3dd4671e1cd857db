# Experts quantized while loading: the same logits as from a checkpoint that was quantized before, half the memory, and what they cost, by ounce kl.
. tests/lib.sh
M=tests/golden/models
echo '3 14 15 92 6 5 35 8 9 7 9 3 2 38 46 26 43 38 32 79' >"$T/ids"
logits() { rm -f "$T/logits" && $OUNCE_RELEASE logits "$1" --ids "$T/ids" -o "$T/logits" -q "${@:2}" && sha256sum <"$T/logits"; }
for s in experts_int8 experts_fp8 experts_w8a8; do
    for m in mixtral deepseek qwen3_moe-fused; do
        $OUNCE quantize $M/$m -o "$T/q" --scheme $s -q --force >/dev/null
        same "$m, $s: as its checkpoint" "$(logits "$T/q")" "$(logits $M/$m --quantization $s)"
    done
    ok "$s is none of the 16 bits' own" test "$(logits $M/mixtral)" != "$(logits $M/mixtral --quantization $s)"
done
same 'what is no expert stays as it was' '4 dense' "$($OUNCE inspect "$T/q" --json | jq -r '[.modules[] | select(.role | startswith("expert") | not) | .scheme] | unique | "4 " + join(",")')"
fails 'a dense model' 1 '--quantization experts_int8: this model (llama) has no experts' $OUNCE logits $M/llama --ids "$T/ids" -o "$T/x" --quantization experts_int8
fails 'quantized already' 1 'expected dense weights, found' $OUNCE logits "$T/q" --ids "$T/ids" -o "$T/x" --quantization experts_int8
fails 'an unknown one' 2 'experts_int4' $OUNCE run $M/mixtral --ids "$T/ids" --quantization experts_int4
fails 'a checkpoint of no experts' 1 'it is of routed experts, and this model has none' $OUNCE quantize $M/llama -o "$T/x" --scheme experts_int8

# Experts of a layer have one product: inputs that differ among them are refused, whatever differs, and the linter warns.
inputs() { # A B: of expert 0, of the others
    echo '{"a_stage": {"b_modifiers": {"QuantizationModifier": {"ignore": ["lm_head", "re:.*gate$"], "config_groups": {
      "a": {"targets": ["re:.*experts\\.0\\..*"], "weights": {"num_bits": 8, "strategy": "channel"}, "input_activations": '"$1"'},
      "b": {"targets": ["re:.*experts\\.[1-9].*"], "weights": {"num_bits": 8, "strategy": "channel"}, "input_activations": '"$2"'}}}}}}' >"$T/r.json"
    $OUNCE quantize $M/mixtral -o "$T/in" --recipe "$T/r.json" --force -q >"$T/log" 2>&1 || echo 'not ok the recipe'
}
four='{"num_bits": 4, "strategy": "token", "dynamic": true}' eight='{"num_bits": 8, "strategy": "token", "dynamic": true}'
for pair in "null $eight" "$four $eight" "$four ${four/4/5}" "$four ${four/\}/, \"symmetric\": false\}}" "$eight ${eight/num_bits/type\": \"float\", \"num_bits}"; do
    inputs "${pair%% \{*}" "{${pair#* \{}"
    fails "experts that differ: $pair" 1 'model.layers.0.block_sparse_moe.experts.1.w1: scheme' $OUNCE logits "$T/in" --ids "$T/ids" -o "$T/x" --device cpu
    same 'the linter warns of them' 1 "$($OUNCE verify "$T/in" 2>"$T/log" | grep -c 'warning: model.layers.0.block_sparse_moe.experts.1.w1: expected inputs as those of expert 0')"
    $OUNCE convert "$T/in" -o "$T/in2" --to compressed-tensors --force -q >"$T/log" 2>"$T/err"
    ok 'and so does convert' grep -q 'experts that differ in that are not run here' "$T/err"
done
inputs "$four" "$four"
ok 'experts that are alike run' $OUNCE logits "$T/in" --ids "$T/ids" -o "$T/x" --device cpu -q
ok 'and nothing is said' bash -c "! $OUNCE verify '$T/in' | grep ."

# Memory: 24 experts of 3 MB each in 2 layers are 302 MB in 16 bits.
echo '{"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 256,
 "num_local_experts": 24, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"}' >"$T/config.json"
$OUNCE_RELEASE synth "$T/config.json" -o "$T/big" -q >/dev/null
memory() { $OUNCE_RELEASE bench "$T/big" -p 1 -n 0 -r 1 --device cpu -q --json --quantization $1 | jq -r '"\(.weight_bytes) \(.peak_rss_bytes)"'; }
read -r w16 r16 <<<"$(memory none)"
read -r w8 r8 <<<"$(memory experts_int8)"
e=$((2 * 24 * 3 * 1024 * 1024 * 2))
ok "what was allocated falls by 49.9 % of the experts' bytes ($w16 to $w8)" test $(((w16 - w8) * 1000)) -ge $((e * 499))
ok "so does resident memory at its peak, up to a huge page each ($r16 to $r8)" test $((r16 - r8)) -ge $((e * 499 / 1000 - (4 << 20)))
ok 'which is what is left, one matrix of the source, and 48 MB' test $r8 -le $((w8 + (2 << 20) + (48 << 20)))
rm -rf "$T/big"

# A dense model as a mixture with the same function, all of whose experts are chosen; then with a router that chooses two.
printf 'hello world, this is a text. %.0s' {1..8} >"$T/text"
$OUNCE convert tests/golden/gguf/llama.gguf -o "$T/text-files" --to bf16 -q >/dev/null
jq '{model_type: "llama", hidden_size: 64, intermediate_size: 128, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, vocab_size: .vocab_size, initializer_range: 0.15,
 tie_word_embeddings: false, torch_dtype: "bfloat16"}' "$T/text-files/config.json" >"$T/dense.json"
$OUNCE synth "$T/dense.json" -o "$T/dense" -q >/dev/null
cp "$T"/text-files/tokenizer* "$T/dense"
$OUNCE synth --split-ffn 4 "$T/dense" -o "$T/all" -q >/dev/null
jq '.num_experts_per_tok = 2' "$T/all/config.json" >"$T/few.json"
jq '.initializer_range = 0.5' "$T/few.json" >"$T/random.json"
$OUNCE synth "$T/random.json" -o "$T/random" -q >/dev/null
$OUNCE convert "$T/all" -o "$T/few" --to bf16 --take "re:.*block_sparse_moe\\.gate\$=$T/random" -q >/dev/null
cp "$T/few.json" "$T/few/config.json"
kl() { $OUNCE kl "$@" --text "$T/text" --ctx 64 --dtype f32 -q -t 1 --json; }
same 'split: the dense function' 'true true' "$(kl "$T/dense" "$T/all" | jq -r '.[0] | "\(.mean_kl < 1e-6) \(.top1_agreement == 1 and .mutual_top5_agreement == 1)"')"
kl "$T/all" "$T/all" --quantization experts_int8 >"$T/json"
same 'all chosen: nothing can flip' '0' "$(jq -r '[.[0].router_flips[]] | unique | join(" ")' "$T/json")"
ok 'codes cost something, and the reference is not quantized' jq -e '.[0] | .mean_kl > 1e-9 and .mean_kl < 0.1' "$T/json" >/dev/null
same 'the worst positions come first, with their text' 'true true' \
    "$(jq -r '.[0] | "\(.worst | length == 10 and (map(.kl) | . == (sort | reverse)) and .[0].kl == $k.kl_max) \(.worst | all(.context | length > 0))"' --argjson k "$(jq '.[0]' "$T/json")" "$T/json")"
kl "$T/few" "$T/few" --quantization experts_int8 >"$T/json"
same 'a router that chooses: the first layer sees the same, the last one does not' 'true true' "$(jq -r '.[0].router_flips | "\(.[0] < 0.05) \(all(. >= 0 and . < 0.5))"' "$T/json")"
same 'flips of a model to itself' '0' "$(kl "$T/few" "$T/few" | jq -r '[.[0].router_flips[]] | unique | join(" ")')"
ok 'another router flips choices' jq -e '.[0].router_flips | any(. > 0.1)' <(kl "$T/few" "$T/random") >/dev/null
