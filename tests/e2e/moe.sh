# ounce quantize --moe-calibrate-all-experts: experts that too few tokens reach are calibrated on all tokens of their layer, gate, up and down; the others as without.
. tests/lib.sh
M=tests/golden/models
ids 2 20 280 1 >"$T/40.jsonl"
ids 6 48 280 2 >"$T/288.jsonl"
q() { # MODEL OUT TOKENS ...
    $OUNCE quantize "$1" -o "$2" -q --calibration "$T/$3.jsonl" --num-calibration-samples "$(wc -l <"$T/$3.jsonl")" --max-seq-length 48 --force --json "${@:4}" >"$T/r.json" 2>"$T/err" || { echo "not ok $2: ${*:4}" && cat "$T/err"; }
}
ALL=--moe-calibrate-all-experts

# The same weights where each token goes to every expert: all of them see all tokens by themselves. With fewer tokens than columns the option gives them, in the first layer, the same codes and scales.
for k in 1 2 8; do cp -r $M/mixtral "$T/top$k" && chmod -R u+w "$T/top$k" && jq ".num_experts_per_tok = $k" $M/mixtral/config.json >"$T/top$k/config.json"; done
E=$(jq .num_local_experts $M/mixtral/config.json)
same 'a token may go to all experts' 8 "$E"
layer0() { # FOLDER: of its first layer's experts, all tensors
    python3 - "$1" <<'END'
import hashlib, json, struct, sys
d = open(sys.argv[1] + '/model.safetensors', 'rb').read()
n = struct.unpack('<Q', d[:8])[0]
for name, t in sorted(json.loads(d[8:8 + n]).items()):
    if name.startswith('model.layers.0.') and '.experts.' in name:
        print(name, hashlib.sha256(d[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]]).hexdigest())
END
}
while read -r name options; do
    q "$T/top8" "$T/every" 40 $options
    layer0 "$T/every" >"$T/every.txt"
    for k in 1 2; do
        q "$T/top$k" "$T/q$k" 40 $options
        layer0 "$T/q$k" >"$T/without.txt"
        ok "$name, $k an expert: without the option another" test "$(cat "$T/without.txt")" != "$(cat "$T/every.txt")"
        q "$T/top$k" "$T/q$k" 40 $options $ALL
        layer0 "$T/q$k" >"$T/with.txt"
        same "$name, $k an expert: with it what all tokens give" "$(cat "$T/every.txt")" "$(cat "$T/with.txt")"
        ok "$name, $k an expert: sound" $OUNCE verify "$T/q$k" -q
    done
done <<'END'
gptq --scheme W4A16 --group-size 16 --method gptq
imatrix --scheme W4A16 --group-size 16 --method imatrix
static --scheme FP8
awq+gptq --scheme W4A16_ASYM --group-size 16 --method awq+gptq
smoothquant --scheme W8A8 --method smoothquant
END

# Some see enough.
q $M/mixtral "$T/a" 288 --scheme W4A16 --group-size 16 --method gptq
cp "$T/r.json" "$T/without.json"
q $M/mixtral "$T/b" 288 --scheme W4A16 --group-size 16 --method gptq $ALL -t 1
cp "$T/r.json" "$T/with.json"
few() { jq -c '.experts[0].tokens | to_entries | map(select(.value < 64) | .key)' "$1"; } # the hidden size is 64
ok 'some experts of the first layer see fewer tokens than columns, some do not' test "$(jq '.experts[0].tokens | any(. < 64) and any(. >= 96)' "$T/without.json")" = true
same 'the report has what the router sends' "$(jq -c '.experts[0].tokens' "$T/without.json")" "$(jq -c '.experts[0].tokens' "$T/with.json")"
same 'and who was shown all' true "$(jq --argjson few "$(few "$T/with.json")" '.experts[0].all_tokens as $all | $few | all(. as $e | $all | index($e) != null)' "$T/with.json")"
same 'their modules fit all tokens, those of others their own' true "$(jq '.experts as $x | [.errors[] | select(.module | test("experts")) | (.module | capture("layers\\.(?<l>[0-9]+).*experts\\.(?<e>[0-9]+)\\.(?<w>w[123])")) as $at
    | $x[$at.l | tonumber].tokens[$at.e | tonumber] as $seen | .tokens == (if $seen < (if $at.w == "w2" then 96 else 64 end) then 288 else $seen end)] | all' "$T/with.json")"
same 'all have errors, and smaller ones' true "$(jq '[.errors[] | .after != null and .after < .before] | all' "$T/with.json")"
most=$(jq '.experts[0].tokens | to_entries | max_by(.value).key' "$T/with.json") least=$(jq '.experts[0].tokens | to_entries | min_by(.value).key' "$T/with.json")
for w in w1 w2 w3; do
    n=model.layers.0.block_sparse_moe.experts
    same "an expert that saw enough: $w is as without" "$(tensor "$T/a" $n.$most.$w.weight_packed)" "$(tensor "$T/b" $n.$most.$w.weight_packed)"
    ok "one that did not: $w is not" test "$(tensor "$T/a" $n.$least.$w.weight_packed)" != "$(tensor "$T/b" $n.$least.$w.weight_packed)"
done
ok 'a warning that names the first' grep -qE "^warning: [0-9]+ modules were reached by fewer tokens than they have columns, the first model.layers.0.block_sparse_moe.experts.[0-9].w[123]: they were calibrated on all tokens of their layer" "$T/err"
same 'how it was made' true "$(jq .moe_calibrate_all_experts "$T/b/ounce_recipe.json")"
q $M/mixtral "$T/c" 288 --scheme W4A16 --group-size 16 --method gptq $ALL -t 3
ok 'the same bytes with any number of threads' diff -r "$T/b" "$T/c"
for m in qwen3_moe deepseek_v3; do # routers of other kinds, shared experts, layers without any
    ids 2 20 90 3 >"$T/90.jsonl"
    q $M/$m "$T/d" 90 --scheme W8A16 --method gptq $ALL
    same "$m: each expert is fitted" true "$(jq '[.errors[] | select(.module | test("experts")) | .tokens > 0 and .after != null] | length > 0 and all' "$T/r.json")"
    ok "$m: sound" $OUNCE verify "$T/d" -q
done

# Not one token: finite scales all the same, with a warning, and with the option an error that is known.
ids 1 2 280 4 >"$T/2.jsonl"
q $M/mixtral "$T/e" 2 --scheme W4A16 --group-size 16 --method gptq
n=$(jq '[.errors[] | select(.tokens == 0)] | length' "$T/r.json")
ok 'a starved expert is named' grep -q "^warning: no token of the calibration text reached $n modules, the first model.layers.0.block_sparse_moe.experts" "$T/err"
ok 'and has finite scales' $OUNCE verify "$T/e" -q
q $M/mixtral "$T/e" 2 --scheme W4A16 --group-size 16 --method gptq $ALL
same 'with the option none is left without a token' '0 2' "$(jq -r '[.errors[] | select(.tokens == 0)] | length' "$T/r.json") $(jq '[.errors[].tokens] | unique[]' "$T/r.json")"

fails 'a dense model' 1 '--moe-calibrate-all-experts: no expert is calibrated' $OUNCE quantize $M/llama -o "$T/o" --scheme W8A16 --method gptq $ALL --calibration "$T/40.jsonl"
fails 'nothing that is calibrated' 1 '--moe-calibrate-all-experts: no expert is calibrated' $OUNCE quantize $M/mixtral -o "$T/o" --scheme W8A16 $ALL
