# ounce quantize: its options, its reports, what it leaves behind, its memory.
. tests/lib.sh

config() { # HIDDEN INTERMEDIATE LAYERS
    echo '{"model_type":"llama","hidden_size":'$1',"intermediate_size":'$2',"num_hidden_layers":'$3',"num_attention_heads":4,
        "num_key_value_heads":2,"vocab_size":256,"torch_dtype":"bfloat16","tie_word_embeddings":false}'
}
config 64 96 2 >"$T/small.json"
$OUNCE synth "$T/small.json" -o "$T/m" -q >"$T/out" || echo 'not ok synth'
q() { $OUNCE quantize "$T/m" -q "$@"; }
json() { jq -c "$2" "$1"; } # FILE FILTER

fails 'no scheme' 2 '--scheme: must be one of W8A8, W8A16, FP8_DYNAMIC, W4A16, W4A16_ASYM, W4A8, FP8_BLOCK, FP8, W8A8_STATIC, experts_int8, experts_fp8, experts_w8a8, found none' q -o "$T/o"
fails 'unknown scheme' 2 'found W5A5' q -o "$T/o" --scheme W5A5
fails 'groups for a channel scheme' 2 '--group-size: W8A8 has one scale a channel' q -o "$T/o" --scheme w8a8 --group-size 32
fails 'groups for blocks' 2 '--group-size: FP8_BLOCK has one scale a block of its own size' q -o "$T/o" --scheme FP8_BLOCK --group-size 64
fails 'groups for a matrix' 2 '--group-size: FP8 has one scale a matrix' q -o "$T/o" --scheme FP8 --group-size 64
fails 'experts of a dense model' 1 '--scheme experts_int8: it is of routed experts, and this model has none' q -o "$T/o" --scheme experts_int8
for o in '--calibration README.md' '--num-calibration-samples 128' '--max-seq-length 512' --resume; do
    fails "an option that changes nothing: $o" 2 "error: ${o%% *}: --method rtn with --scheme W8A8 takes no calibration text" q -o "$T/o" --scheme W8A8 $o
done
fails 'an option of GPTQ: --dampening-frac' 2 'error: --dampening-frac: --method rtn has no Hessian' q -o "$T/o" --scheme W8A8 --dampening-frac 0.01
fails 'the same beside static inputs' 2 'error: --dampening-frac: --method rtn has no Hessian' q -o "$T/o" --scheme FP8 --calibration README.md --dampening-frac 0.01
fails 'no output' 2 '--output' q --scheme W8A8
fails 'no model' 1 "$T/none" $OUNCE quantize "$T/none" -o "$T/o" --scheme W8A8
fails 'a pattern that matches nothing' 1 "--targets 'model.layers.9.mlp.up_proj'" q -o "$T/o" --scheme W8A8 --targets Linear --targets model.layers.9.mlp.up_proj
fails 'an ignore that matches nothing' 1 "--ignore 're:.*vision'" q -o "$T/o" --scheme W8A8 --ignore 're:.*vision'
fails 'a broken expression' 1 "re:(" q -o "$T/o" --scheme W8A8 --ignore 're:('
fails 'a group size that does not divide' 1 'error: model.layers.0.self_attn.q_proj: group_size 128 does not divide its 64 columns; these do: 16, 32, 64 (the first of 14 modules); --group-size 32 fits every module' \
    $OUNCE quantize "$T/m" -o "$T/o" --scheme W4A16
same 'the first offenders are listed, the others counted' '8 1' "$(grep -c '^  model.layers.*does not divide' "$T/err") $(grep -c '^  and 6 more' "$T/err")"
fails 'no usual group size' 1 'group_size 128 does not divide' $OUNCE quantize tests/golden/models/jamba -o "$T/o" --scheme W4A16
same 'the message ends with what to do' 'no usual group size fits every module: W8A16 has no groups' "$(tail -1 "$T/err" | sed 's/.*; //')"
ok 'nothing was written' test ! -e "$T/o"
fails 'blocks whose inputs do not divide' 1 'error: model.layers.0.self_attn.q_proj: the groups of 128 in which FP8_BLOCK quantizes inputs do not divide its 96 columns (the first of 18 modules); FP8_DYNAMIC quantizes inputs by tokens, a --recipe may have input_activations in groups of 32, which fit every module, and --ignore leaves modules as they are' \
    $OUNCE quantize tests/golden/models/llama -o "$T/o" --scheme FP8_BLOCK
printf '%s\n' 's_stage: {m_modifiers: {QuantizationModifier: {ignore: [lm_head], config_groups: {g: {targets: [Linear],' ' weights: {num_bits: 8, type: float, strategy: block, block_structure: [128, 128]},' \
    ' input_activations: {num_bits: 8, type: float, strategy: group, group_size: 32, dynamic: true}}}}}}' >"$T/r.yaml"
while read -r o; do # what the messages offer is possible
    $OUNCE quantize tests/golden/models/$o -o "$T/o" -q --force >"$T/out" 2>"$T/err" && $OUNCE verify "$T/o" -q >"$T/out" || echo "not ok offered: $o"
done <<<"llama --scheme FP8_DYNAMIC
llama --recipe $T/r.yaml
llama --scheme FP8_BLOCK --ignore re:.*(q|k|v|o|gate|up)_proj
llama --scheme W4A16 --group-size 32
jamba --scheme W8A16
jamba --scheme W4A16 --group-size 16 --ignore re:.*(in_proj|[qkvo]_proj|gate_proj|up_proj|dt_proj)$"
fails 'some that usual groups divide' 1 'no usual group size fits every module: W8A16 has no groups, and --ignore leaves modules as they are' $OUNCE quantize tests/golden/models/jamba -o "$T/o" -q --force --scheme W4A16 --group-size 16
fails 'nothing that the groups divide: leaving modules out is not offered' 1 'in groups of 32, which fit every module' $OUNCE quantize tests/golden/models/llama -o "$T/o" -q --force --scheme FP8_BLOCK --targets 're:.*gate_proj'
ok 'the end of it' grep -q 'which fit every module$' "$T/err"
rm -rf "$T/o"

for s in W8A8 W8A16 FP8_DYNAMIC 'W4A16 --group-size 16' 'W4A16_ASYM --group-size 16' 'W4A8 --group-size 32'; do
    n=${s%% *}
    q -o "$T/dry" --scheme $s --dry-run --json >"$T/$n.dry"
    ok "$n: a dry run writes nothing" test ! -e "$T/dry"
    q -o "$T/$n" --scheme $s --json -t 1 >"$T/$n.real" || echo "not ok $n"
    sizes='[.files, .bytes, .modules, .quantized_bytes]'
    same "$n: predicted sizes are the real ones" "$(json "$T/$n.dry" "$sizes")" "$(json "$T/$n.real" "$sizes")"
    same "$n: and those on disk" "$(json "$T/$n.real" '.bytes')" "$(cat "$T/$n"/*.safetensors | wc -c)"
    q -o "$T/again" --scheme $s -t 7 --force >"$T/out" || echo "not ok $n again"
    ok "$n: the same bytes with 7 threads" diff -r "$T/$n" "$T/again"
    same "$n: 14 modules" 14 "$(json "$T/$n.real" '.quantized_modules')"
done
q --scheme W8A8 --dry-run >"$T/out"
same 'a line a role comes first' 'role embed head attn_q attn_k attn_v attn_o ffn_gate ffn_up ffn_down' "$(sed '/^$/,$d' "$T/out" | cut -d' ' -f1 | tr '\n' ' ' | sed 's/ $//')"
same 'whose bytes are those of its modules' "$(awk '/ model.*\.down_proj/ { n += $1 } END { print n }' "$T/out")" "$(awk '/^ffn_down/ { print $3 }' "$T/out")"
for o in --ignore --targets; do fails "$o: an expression that is none" 1 "error: $o: expected a regular expression, found 're:(': " q -o "$T/o" --scheme W8A8 $o 're:('; done
same 'modules and files are printed' '16 1' "$(q -o "$T/dry" --scheme W8A8 --dry-run | awk '/ model\.|lm_head/ && /\[/ { m++ } / in all/ { a++ } END { print m - 0, a }')"

fails 'an existing folder' 1 "$T/W8A8" q -o "$T/W8A8" --scheme W4A16 --group-size 16
ok 'it was left alone' cmp -s "$T/W8A8/config.json" <(q -o "$T/x" --scheme W8A8 >&2 && cat "$T/x/config.json") 2>"$T/err"
mkdir "$T/home" && echo mine >"$T/home/file"
fails 'force: a folder of something else' 1 "$T/home: expected a folder with a checkpoint, found no config.json in it" q -o "$T/home" --scheme W8A8 --force
same 'it was left alone' mine "$(cat "$T/home/file")"
fails 'force: a file' 1 "$T/home/file: expected a folder with a checkpoint" q -o "$T/home/file" --scheme W8A8 --force
fails 'force: the model itself' 1 "$T/m/: --force would delete the model that is read" q -o "$T/m/" --scheme W8A8 --force
cp -r "$T/m" "$T/outer" && cp -r "$T/m" "$T/outer/inner" && ln -s "$T/outer" "$T/link"
fails 'force: a folder around the model' 1 '--force would delete the model' $OUNCE quantize "$T/link/inner" -o "$T/outer" --scheme W8A8 --force
fails 'force: and so says a dry run' 1 '--force would delete the model' $OUNCE quantize "$T/outer" -o "$T/outer" --scheme W8A8 --force --dry-run
ok 'which is still there' cmp "$T/m/model.safetensors" "$T/outer/inner/model.safetensors"
mkdir "$T/empty" && ok 'force: an empty folder' q -o "$T/empty" --scheme W8A8 --force >"$T/out"
fails 'no folder to write in' 1 "$T/no/such: the folder that it would be made in does not exist" q -o "$T/no/such" --scheme W8A8
fails 'a quantized model' 1 "dequantize it first: ounce convert $T/W8A8 -o DIR --to bf16" $OUNCE quantize "$T/W8A8" -o "$T/o" --scheme W8A8
cp -r "$T/m" "$T/bnb" && jq '. + {quantization_config: {quant_method: "bitsandbytes"}}' "$T/m/config.json" >"$T/bnb/config.json"
fails 'one that convert cannot dequantize, either' 1 'quantization_config.quant_method: "bitsandbytes" is not read here: quantize the original model instead' $OUNCE quantize "$T/bnb" -o "$T/o" --scheme W8A8
$OUNCE convert "$T/W8A8" -o "$T/back" --to bf16 -q >"$T/out" && q -o "$T/o" --scheme W8A8 >"$T/out" && ok 'and then' test -f "$T/o/config.json"
q -o "$T/shards" --scheme W8A8 --max-shard-size 30000 >"$T/out" && ok 'shards' test -f "$T/shards/model.safetensors.index.json" -a ! -e "$T/shards/model.safetensors"

# The bound is 200 MB and 4 times the largest tensor, whatever the number of layers: 160 million weights, of which a tensor has 2.9.
config 1024 2816 12 >"$T/big.json"
$OUNCE_RELEASE synth "$T/big.json" -o "$T/big" -q >"$T/out" || echo 'not ok synth'
$OUNCE_RELEASE quantize "$T/big" -o "$T/big-w4" --scheme W4A16 --json -q >"$T/big.real" || echo 'not ok big'
ok "peak memory $(json "$T/big.real" '.peak_rss_bytes / 1048576 | floor') MB is below 100" test "$(json "$T/big.real" '.peak_rss_bytes / 1048576 | floor')" -lt 100
rm -rf "$T/big-w4"
before=$(ls -A "$T")
$OUNCE_RELEASE quantize "$T/big" -o "$T/big-w4" --scheme W4A16 -t 1 >"$T/out" 2>"$T/err" &
for i in $(seq 500); do [ -n "$(find "$T" -maxdepth 1 -name '*big-w4*')" ] && break; sleep 0.01; done
kill -INT $!
wait $!
same 'interrupted: status' 1 $?
same 'interrupted: nothing is left' "$before" "$(ls -A "$T")"
