# ounce quantize --recipe, and schemes that are calibrated: what is understood, what is refused and with which path, and that the result runs.
. tests/lib.sh

echo '{"model_type":"mixtral","hidden_size":128,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":96,
    "num_local_experts":4,"num_experts_per_tok":2,"torch_dtype":"bfloat16","tie_word_embeddings":false}' >"$T/moe.json"
sed 's/mixtral/llama/; s/"intermediate_size":64/"intermediate_size":256/; s/"num_local_experts":4,"num_experts_per_tok":2,//' "$T/moe.json" >"$T/dense.json"
for m in moe dense; do $OUNCE synth "$T/$m.json" -o "$T/$m" --seed 3 -q >"$T/out" || echo "not ok synth $m"; done
for i in 1 2 3; do echo "{\"ids\": [$(seq -s, $i 7 95)]}"; done >"$T/text.jsonl"
seq -s ' ' 1 2 40 >"$T/ids"
q() { $OUNCE quantize "$T/${m:-dense}" -o "$T/o" --force -q "$@"; }
c() { q --calibration "$T/text.jsonl" --num-calibration-samples 3 "$@"; }
made() { "$@" >"$T/report" || echo "not ok $*"; } # COMMAND...
scheme_of() { jq -r --arg m "$1" '.modules[] | select(.name == $m).scheme' "$T/report"; }
runs() { $OUNCE verify "$1" -q >"$T/out" 2>&1 && $OUNCE run "$1" --ids "$T/ids" -n 4 --temperature 0 --print-ids -q 2>"$T/err" | grep -qE '^[0-9]+( [0-9]+){3}$'; }

# The same recipe as YAML and as JSON: several groups, of which the most specific target counts.
cat >"$T/r.yaml" <<'EOF'
quant_stage:
  quant_modifiers:
    QuantizationModifier:
      ignore: [lm_head, 're:.*layers\.1\.self_attn\.o_proj$']
      config_groups:
        rest: # of int4
          targets: [Linear]
          weights: &int4 {num_bits: 4, type: int, symmetric: no, strategy: group, group_size: 32, observer: minmax}
        down:
          targets: ['re:.*down_proj$']
          weights: {num_bits: 8, strategy: channel}
          input_activations: {num_bits: 8, strategy: token, dynamic: true}
        one:
          targets: [model.layers.0.mlp.down_proj]
          weights: {num_bits: 8, type: float, strategy: block, block_structure: [128, 128]}
          input_activations: {num_bits: 8, type: float, strategy: group, group_size: 128, dynamic: true}
EOF
python3 -c 'import json; i4 = dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)
g = dict(rest=dict(targets=["Linear"], weights=i4), down=dict(targets=["re:.*down_proj$"], weights=dict(num_bits=8, strategy="channel"), input_activations=dict(num_bits=8, strategy="token", dynamic=True)),
  one=dict(targets=["model.layers.0.mlp.down_proj"], weights=dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), input_activations=dict(num_bits=8, type="float", strategy="group", group_size=128, dynamic=True)))
print(json.dumps(dict(s_stage=dict(m_modifiers=dict(QuantizationModifier=dict(ignore=["lm_head", "re:.*layers\\.1\\.self_attn\\.o_proj$"], config_groups=g))))))' >"$T/r.json"
q --recipe "$T/r.yaml" --json >"$T/report" && mv "$T/o" "$T/yaml" && q --recipe "$T/r.json" >"$T/out" && ok 'YAML and JSON: the same bytes' diff -r "$T/yaml" "$T/o"
same 'schemes by the most specific target' 'W4A16_ASYM W8A8 FP8_BLOCK dense dense' "$(for x in model.layers.1.mlp.up_proj model.layers.1.mlp.down_proj model.layers.0.mlp.down_proj model.layers.1.self_attn.o_proj lm_head; do scheme_of $x; done | xargs)"
same 'written as three groups' 'mixed-precision 3' "$(jq -r '.quantization_config | "\(.format) \(.config_groups | length)"' "$T/o/config.json")"
ok 'verified, and run' runs "$T/o"

# Names in llm-compressor's meaning; Linear reaches lm_head there.
modifiers() { printf '%s\n' 's_stage:' ' m_modifiers:' "$@" >"$T/x.yaml"; } # LINE...
recipe() { modifiers "  ${2:-QuantizationModifier}:" "$1"; }
recipe '   {scheme: W8A16}'
q --recipe "$T/x.yaml" --json >"$T/report"
same 'W8A16 has groups of 128, and lm_head is Linear' '128 W8A16' "$(jq '.quantization_config.config_groups.group_0.weights.group_size' "$T/o/config.json") $(scheme_of lm_head)"
recipe '   {scheme: {W8A8: ["re:.*self_attn.*"], FP8_BLOCK: "re:.*mlp.*"}, ignore: lm_head}'
q --recipe "$T/x.yaml" --json >"$T/report"
same 'an object of names' 'W8A8 FP8_BLOCK dense' "$(for x in model.layers.0.self_attn.q_proj model.layers.0.mlp.up_proj lm_head; do scheme_of $x; done | xargs)"
ok 'verified, and run' runs "$T/o"
recipe '   {scheme: W4A8, ignore: [lm_head]}'
q --recipe "$T/x.yaml" >"$T/out"
same 'W4A8 as the library stores it: a byte a code' 'int-quantized I8' "$(jq -r '.quantization_config.format' "$T/o/config.json") $(head -c 20000 "$T/o/model.safetensors" | grep -ao '"model.layers.0.mlp.up_proj.weight":{"dtype":"[A-Z0-9]*' | cut -d'"' -f6)"
ok 'verified, and run' runs "$T/o"
recipe '   {scheme: {W8A8: "re:.*(q|k)_proj$", W8A16: "re:.*v_proj$"}}'
q --recipe "$T/x.yaml" >"$T/out" 2>"$T/err"
ok 'what vLLM refuses is a warning' grep -q 'vLLM runs them as one qkv_proj' "$T/err"


# What is to be ignored and is not there is said, also in the report; a norm or a router is there.
recipe '   {scheme: W8A8, ignore: [lm_haed, "re:.*norm$", "re:.*vision.*"]}'
q --recipe "$T/x.yaml" --json >"$T/report" 2>"$T/err"
same 'lm_head by another name is quantized' W8A8 "$(scheme_of lm_head)"
same 'which is a warning, of each that matches nothing' "warning: $T/x.yaml: s_stage.m_modifiers.QuantizationModifier.ignore: 'lm_haed' matches no module of this model
warning: $T/x.yaml: s_stage.m_modifiers.QuantizationModifier.ignore: 're:.*vision.*' matches no module of this model" "$(cat "$T/err")"
same 'and stands in the report' "$(cut -d' ' -f2- "$T/err")" "$(jq -r '.warnings[]' "$T/report")"
for o in '--calibration README.md' '--num-calibration-samples 3' '--max-seq-length 8' --resume; do
    fails "an option that changes nothing: $o" 2 "error: ${o%% *}: --recipe $T/x.yaml takes no calibration text" q --recipe "$T/x.yaml" $o
done
m=moe
recipe '   {scheme: W8A16, targets: "re:.*self_attn.*", ignore: ["re:.*gate$"]}'
q --recipe "$T/x.yaml" --json >"$T/report" 2>"$T/err"
same 'a router is there' '[]' "$(jq -c .warnings "$T/report")"

# Experts, a scheme a projection.
m=moe
recipe '   {scheme: {W4A16: "re:.*experts.*w[13]$", W8A8: "re:.*experts.*w2$", FP8_DYNAMIC: "re:.*self_attn.*"}}'
q --recipe "$T/x.yaml" --json >"$T/report"
same 'experts by projection, routers dense' 'W4A16 W8A8 W4A16 FP8_DYNAMIC dense' "$(for x in block_sparse_moe.experts.3.w1 block_sparse_moe.experts.0.w2 block_sparse_moe.experts.1.w3 self_attn.k_proj block_sparse_moe.gate; do scheme_of model.layers.1.$x; done | xargs)"
ok 'verified, and run' runs "$T/o"
made c --scheme FP8
ok 'FP8 of experts: verified, and run' runs "$T/o"
recipe '   {scheme: {W4A16: "re:.*experts.*"}}'
fails 'a group size that does not divide' 1 'QuantizationModifier.config_groups.W4A16.weights.group_size: 128 does not divide the 64 columns of model.layers.0.block_sparse_moe.experts.0.w2' q --recipe "$T/x.yaml"
m=dense

# Static scales of inputs, and GPTQ beside them.
fails 'FP8 without text' 2 '--calibration: a static scale of inputs needs text to calibrate with' q --scheme FP8
fails 'text that nothing uses' 2 '--calibration: --method rtn with --scheme W8A8 takes no calibration text' q --scheme W8A8 --calibration "$T/text.jsonl"
made c --scheme FP8 -t 1
cp -r "$T/o" "$T/one"
made c --scheme FP8 -t 5
ok 'FP8: the same bytes with any threads' diff -r "$T/one" "$T/o"
ok 'verified, and run' runs "$T/o"
recipe '   {targets: "re:.*self_attn.*", scheme: W4A16_ASYM, dampening_frac: 0.02, block_size: 64, actorder: static}
    QuantizationModifier: {ignore: lm_head, config_groups: {g: {targets: "re:.*mlp.*", weights: {num_bits: 8, strategy: channel}, input_activations: {num_bits: 8, symmetric: false, strategy: tensor}}}}' GPTQModifier
sed -i 's/^    Quant/  Quant/; s/targets: "re:.\*mlp.\*"/targets: ["re:.*mlp.*"]/' "$T/x.yaml"
fails 'a recipe that wants text' 2 '--calibration: GPTQ needs text' q --recipe "$T/x.yaml"
made c --recipe "$T/x.yaml" --json
same 'GPTQ and static inputs in one' 'W4A16_ASYM W8A8_STATIC' "$(scheme_of model.layers.0.self_attn.q_proj) $(scheme_of model.layers.1.mlp.down_proj)"
same 'errors of what GPTQ made' 8 "$(jq '.errors | length' "$T/report")"
same 'how it was made is in the folder' 'recipe 0.02' "$(jq -r '"\(.method) \(.recipe.s_stage.m_modifiers.GPTQModifier.dampening_frac)"' "$T/o/ounce_recipe.json")"
ok 'verified, and run' runs "$T/o"

# What is not understood, or would be done otherwise, has its path.
bad() { # NAME TEXT MODIFIER [TYPE]
    recipe "$3" "$4"
    fails "$1" 1 "x.yaml: s_stage.m_modifiers.${4:-QuantizationModifier}$2" c --recipe "$T/x.yaml"
}
bad 'unknown key' '.sheme: unknown key' '   {sheme: W8A8}'
bad 'a key of the other' '.block_size: unknown key of a QuantizationModifier' '   {scheme: W8A8, block_size: 128}'
bad 'unknown modifier' ': modifiers that are done here are' '   {sparsity: 0.5}' SparseGPTModifier
recipe '   {smoothing_strength: 0.8}' SmoothQuantModifier
fails 'nothing that rounds' 1 'x.yaml: expected modifiers that round, found none' q --recipe "$T/x.yaml"
bad 'mappings that are none' '.mappings: must be a list of mappings, or left out' '   {mappings: []}' SmoothQuantModifier
bad 'a mapping that is none' '.mappings[1]: must be {smooth_layer: PAT, balance_layers: [PAT, ...]} or [[PAT, ...], PAT], found "re:.*q_proj"' '   {mappings: [[["re:.*q_proj"], "re:.*input_layernorm"], "re:.*q_proj"]}' SmoothQuantModifier
bad 'a mapping without its source' '.mappings[0]: smooth_layer must be a string, found nothing' '   {mappings: [{balance_layers: ["re:.*q_proj"]}]}' AWQModifier
bad 'a mapping without readers' '.mappings[0]: balance_layers: expected what reads' '   {mappings: [{smooth_layer: "re:.*input_layernorm", balance_layers: []}]}' AWQModifier
bad 'a key of a mapping' '.mappings[0].smooth: unknown key of a mapping; known: smooth_layer, balance_layers' '   {mappings: [{smooth: a, balance_layers: [b]}]}' AWQModifier
bad 'another algorithm' '.algorithm: must be smoothquant, found "log_equalization"' '   {algorithm: log_equalization}' SmoothQuantModifier
bad 'what is not smoothed' '.ignore: must be empty: ' '   {ignore: [model.layers.0.input_layernorm]}' SmoothQuantModifier
bad 'duo_scaling' '.duo_scaling: must be true (inputs and weights), false (inputs alone) or "both", or left out, which is both, found "maybe"' '   {duo_scaling: maybe}' AWQModifier
bad 'n_grid' '.n_grid: must be an integer in 1..1000, found 0' '   {n_grid: 0}' AWQModifier
bad 'what is known is listed' '.bits: unknown key of a AWQModifier; known: targets, ignore, scheme, config_groups, ' '   {bits: 4}' AWQModifier
bad 'an AWQModifier that is to round, and not how' ': expected a scheme or config_groups, found neither' '   {ignore: [lm_head]}' AWQModifier
bad 'a cache alone' ': expected a scheme or config_groups beside kv_cache_scheme' '   {kv_cache_scheme: {num_bits: 8, type: float}}'
bad 'a strength' '.smoothing_strength: must be a number above 0' '   {smoothing_strength: 1.5}' SmoothQuantModifier
bad 'a key of another' '.n_grid: unknown key of a SmoothQuantModifier' '   {n_grid: 20}' SmoothQuantModifier

# Scales that move, then rounding: what --method does.
modifiers '  SmoothQuantModifier: {smoothing_strength: 0.8, mappings: null}' '  GPTQModifier: {scheme: W8A8, ignore: [lm_head]}'
c --recipe "$T/x.yaml" --max-seq-length 16 >"$T/out" 2>&1 && mv "$T/o" "$T/by-recipe" && c --scheme W8A8 --method smoothquant+gptq --smoothing-strength 0.8 --max-seq-length 16 >"$T/out" 2>&1
ok 'SmoothQuantModifier and GPTQModifier: the bytes of smoothquant+gptq' cmp "$T/by-recipe/model.safetensors" "$T/o/model.safetensors"
same 'recorded' '["recipe","smoothquant",0.8]' "$(jq -c '[.method, .folding.by, .folding.strength]' "$T/by-recipe/ounce_recipe.json")"
modifiers '  AWQModifier: {duo_scaling: true}' '  QuantizationModifier: {scheme: W8A16, ignore: [lm_head]}'
c --recipe "$T/x.yaml" --max-seq-length 16 >"$T/out" 2>&1
same 'AWQModifier' '["awq","searched"]' "$(jq -c '[.folding.by, .folding.strength]' "$T/o/ounce_recipe.json")"

# Mappings: all of them are what is done without; of some, what they do not name stays as rounding alone leaves it. As llm-compressor's recipes write them, and as its AWQModifier saves its own.
moved() { # NAME SMOOTHQUANT'S KEYS
    modifiers "  SmoothQuantModifier: {smoothing_strength: 0.8$2}" '  QuantizationModifier: {scheme: W8A8, ignore: [lm_head]}'
    rm -rf "$T/$1" && c --recipe "$T/x.yaml" --max-seq-length 16 >"$T/out" 2>"$T/err" && mv "$T/o" "$T/$1" || { echo "not ok $1" && cat "$T/err"; }
}
norms='[["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"], [["re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"]'
moved every '' && moved mapped ", mappings: [$norms, [\"re:.*o_proj\", \"re:.*v_proj\"], [\"re:.*down_proj\", \"re:.*up_proj\"]]"
ok 'mappings that name every place: the same bytes' cmp "$T/every/model.safetensors" "$T/mapped/model.safetensors"
moved norms ", mappings: [$norms]"
same 'of two places a layer' '8 4' "$(jq .folding.folds "$T/every/ounce_recipe.json" "$T/norms/ounce_recipe.json" | xargs)"
q --scheme W8A8 >"$T/out" && mv "$T/o" "$T/plain"
for t in self_attn.o_proj mlp.down_proj; do same "what the mappings do not name stays: $t" "$(tensor "$T/plain" model.layers.1.$t.weight)" "$(tensor "$T/norms" model.layers.1.$t.weight)"; done
for t in self_attn.q_proj mlp.up_proj; do ok "what they name is moved: $t" test "$(tensor "$T/plain" model.layers.1.$t.weight)" != "$(tensor "$T/norms" model.layers.1.$t.weight)"; done
cannot() { # NAME TEXT MAPPINGS
    modifiers "  AWQModifier: {mappings: [$3]}" '  QuantizationModifier: {scheme: W8A16, ignore: [lm_head, "re:.*layers.0.mlp.down_proj"]}'
    fails "$1" 1 "x.yaml: s_stage.m_modifiers.AWQModifier.mappings[0]: $2" c --recipe "$T/x.yaml"
}
cannot 'some of the readers' 'model.layers.0.self_attn.v_proj reads what model.layers.0.input_layernorm gives, too' '{smooth_layer: "re:.*input_layernorm", balance_layers: ["re:.*q_proj", "re:.*k_proj"]}'
cannot 'a reader that is none' "balance_layers 're:.*fc1' matches nothing that reads what 're:.*up_proj' gives" '{smooth_layer: "re:.*up_proj", balance_layers: ["re:.*down_proj", "re:.*fc1"]}'
cannot 'a source that is none' "smooth_layer 're:.*self_attn_layer_norm' matches nothing that scales can leave without a change of what the model computes; they can leave: input_layernorm, v_proj, post_attention_layernorm, up_proj" '{smooth_layer: "re:.*self_attn_layer_norm", balance_layers: ["re:.*q_proj"]}'
cannot 'a broken expression' "expected a regular expression, found 're:(': " '{smooth_layer: "re:(", balance_layers: ["re:.*q_proj"]}'
modifiers '  AWQModifier: {mappings: [{smooth_layer: "re:.*up_proj", balance_layers: "re:.*down_proj"}]}' '  QuantizationModifier: {scheme: W8A16, ignore: [lm_head, "re:.*layers.0.mlp.down_proj"]}'
c --recipe "$T/x.yaml" >"$T/out" 2>"$T/err"
ok 'a place that is asked for and left is a warning' grep -q '^warning: 1 of 8 places where scales could move are left as they are, the first model.layers.0.mlp.up_proj: model.layers.0.mlp.down_proj is to be left as it is' "$T/err"
modifiers '  AWQModifier: {scheme: W8A8, ignore: [lm_head], mappings: [[["re:.*experts.*w1$", "re:.*experts.*w3$"], "re:.*post_attention_layernorm"]]}'
m=moe
fails 'a router reads the norm, too' 1 'mappings[0]: model.layers.0.block_sparse_moe.gate reads what model.layers.0.post_attention_layernorm gives, too' c --recipe "$T/x.yaml"
m=dense

# An AWQModifier that also rounds, as it did until it was split; its ways to search.
awq() { # NAME KEYS
    modifiers "  AWQModifier: {scheme: W4A16_ASYM, targets: [Linear], ignore: [lm_head]$2}"
    rm -rf "$T/$1" && c --recipe "$T/x.yaml" --max-seq-length 16 >"$T/out" 2>"$T/err" && mv "$T/o" "$T/$1" || { echo "not ok $1" && cat "$T/err"; }
}
awq one-modifier ''
c --scheme W4A16_ASYM --group-size 128 --method awq --max-seq-length 16 >"$T/out" 2>"$T/err" || echo 'not ok awq'
ok 'an AWQModifier that rounds: the bytes of --method awq' cmp "$T/one-modifier/model.safetensors" "$T/o/model.safetensors"
awq both ', duo_scaling: both, n_grid: 20'
ok 'duo_scaling "both" and 20 points are what is done without' cmp "$T/one-modifier/model.safetensors" "$T/both/model.safetensors"
awq duo ', duo_scaling: true' && awq no-duo ', duo_scaling: false' && awq coarse ', n_grid: 2'
same 'each of these changes the bytes' 4 "$(for x in both duo no-duo coarse; do sha256sum <"$T/$x/model.safetensors"; done | sort -u | wc -l)"
modifiers '  GPTQModifier: {scheme: W8A8, ignore: [lm_head]}' '  SmoothQuantModifier: {}'
fails 'scales that move afterwards' 1 '.SmoothQuantModifier: scales are moved before weights are rounded: expected it first' c --recipe "$T/x.yaml"
bad 'unknown preset' '.scheme: must be a preset that is known here, found "W9A9"' '   {scheme: W9A9}'
bad 'no scheme' ': expected a scheme or config_groups' '   {targets: [Linear]}'
bad 'both' ': scheme and config_groups both' '   {scheme: W8A8, config_groups: {a: {targets: [Linear]}}}'
bad 'bits' '.config_groups.a.weights.num_bits: must be 2..8, found 9' '   {config_groups: {a: {targets: [Linear], weights: {num_bits: 9}}}}'
bad 'unknown key of weights' '.config_groups.a.weights.bits: unknown key' '   {config_groups: {a: {targets: [Linear], weights: {bits: 4}}}}'
bad 'an observer' '.config_groups.a.weights.observer: must be minmax' '   {config_groups: {a: {targets: [Linear], weights: {observer: mse}}}}'
bad 'an order of columns' '.actorder: must be "static" or "weight"' '   {scheme: W4A16, actorder: group}' GPTQModifier
bad 'the cache' '.kv_cache_scheme: only a symmetric cache of float8 or int8 is supported, found int4' '   {scheme: W8A8, kv_cache_scheme: {num_bits: 4}}'
bad 'outputs' '.config_groups.a.output_activations: quantized outputs' '   {config_groups: {a: {targets: [Linear], weights: {}, output_activations: {num_bits: 8}}}}'
bad 'targets' '.targets: must be a string or a list of strings, found 3' '   {scheme: W8A8, targets: 3}'
bad 'two that apply' '.config_groups.b both apply to it' '   {config_groups: {a: {targets: [Linear], weights: {strategy: channel}}, b: {targets: [Linear], weights: {}}}}'
recipe '   {scheme: W8A8, targets: "re:.*q_proj"}
  GPTQModifier: {scheme: W4A16}'
fails 'two modifiers that apply' 1 'model.layers.0.self_attn.q_proj: '"$T"'/x.yaml: s_stage.m_modifiers.GPTQModifier applies to it, and so does a modifier before' q --recipe "$T/x.yaml"
recipe '   {config_groups: {a: {targets: [Linear], weights: {num_bits: 4, type: float, group_size: 32, scale_dtype: torch.uint8}}}}'
fails 'NVFP4 and MX' 1 'the NVFP4 and MX formats are not made' q --recipe "$T/x.yaml"
recipe '   {scheme: FP8, ignore: [lm_head]}' GPTQModifier
ok 'GPTQ with one scale for all' c --recipe "$T/x.yaml" --dry-run >"$T/out"
recipe '   {scheme: FP8}'
fails 'a static lm_head' 1 'lm_head: scheme FP8: static scales are calibrated in layers' c --recipe "$T/x.yaml"
echo 'quantization: {}' >"$T/x.yaml"
fails 'no stage' 1 'x.yaml: quantization: unknown key; expected names that end in _stage' q --recipe "$T/x.yaml"
printf 'a_stage:\n  {' >"$T/x.yaml"
fails 'no YAML' 1 'x.yaml: line 3, column 1: while parsing a flow' q --recipe "$T/x.yaml"
fails 'a scheme beside it' 2 '--scheme: --recipe says that' q --recipe "$T/r.yaml" --scheme W8A8
fails 'no file' 1 "$T/none.yaml" q --recipe "$T/none.yaml"
