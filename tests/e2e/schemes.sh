# Quantized checkpoints of every family: those that are good run, and each single thing that is wrong in a config or a header is refused by its name.
. tests/lib.sh
C=tests/golden/cases
echo 1 2 3 >"$T/ids"
run() { $OUNCE logits "$1" --ids "$T/ids" -o "$T/o" --dtype f32 -q --device cpu; }

for d in "$C"/*/; do
    read -r kind text <"$d/expect.txt"
    if [ "$kind" = ok ]; then ok "$(basename "$d") runs" run "$d"; else fails "$(basename "$d")" 1 "$text" run "$d"; fi
done

# BASE FILTER TEXT: the config changed by jq; TEXT '': it still runs.
changed() {
    rm -rf "$T/c" && cp -r "$C/$1" "$T/c"
    jq "$2" "$C/$1/config.json" >"$T/c/config.json"
    if [ -z "$3" ]; then ok "$1 with $2 runs" run "$T/c"; else fails "$1 with $2" 1 "$3" run "$T/c"; fi
}
Q=.quantization_config G=.quantization_config.config_groups.group_0 P=quantization_config.config_groups.group_0
while IFS='|' read -r base filter text; do
    [ -z "$base" ] || changed "$base" "$filter" "$text"
done <<EOF
01-valid-w4a16|$G.weights.num_bits = 9|$P.weights.num_bits
01-valid-w4a16|$G.weights.num_bits = "4"|$P.weights.num_bits
01-valid-w4a16|$G.weights.type = "uint"|$P.weights.type
01-valid-w4a16|$G.weights.strategy = "row"|$P.weights.strategy
01-valid-w4a16|$G.weights.strategy = "token"|$P.weights.group_size
01-valid-w4a16|$G.weights.group_size = 0|$P.weights.group_size
01-valid-w4a16|$G.weights.group_size = 24|group_size
01-valid-w4a16|$G.weights.dynamic = true|$P.weights.dynamic
01-valid-w4a16|$G.weights.dynamics = true|$P.weights.dynamics
01-valid-w4a16|$G.weights.symmetric = "no"|$P.weights.symmetric
01-valid-w4a16|$G.weights.type = "float"|$P.format
01-valid-w4a16|$G.weights.actorder = "up"|$P.weights.actorder
01-valid-w4a16|$G.format = "nvfp4-pack-quantized"|$P.format
01-valid-w4a16|$G.format = "mixed-precision"|$P.format
01-valid-w4a16|$G.format = "marlin-24"|this format
01-valid-w4a16|$G.group = 1|$P.group
01-valid-w4a16|$G.output_activations = $G.weights|$P.output_activations
01-valid-w4a16|$Q.quantization_status = "done"|quantization_config.quantization_status
01-valid-w4a16|$Q.transform_config = {"config_groups": {"a": {"apply": [{"location": "input"}]}}}|quantization_config.transform_config
01-valid-w4a16|$Q.ignore = "lm_head"|quantization_config.ignore
01-valid-w4a16|$Q.ignore = ["lm_head", "re:.*mlp.*"]|model.layers.0.mlp
01-valid-w4a16|$G.targets = ["re:("]|$P.targets
01-valid-w4a16|$G.weights.actorder = "static"|
01-valid-w4a16|$G.weights.actorder = "group"|weight_g_idx
01-valid-w4a16|$G.weights.symmetric = false|weight_zero_point
01-valid-w4a16|$G.weights.num_bits = 3|weight_packed
01-valid-w4a16|$Q.made_by = 1|
01-valid-w4a16|$Q.quant_method = "bitsandbytes"|is not read here: quantize the original model
01-valid-w4a16|$Q.quant_method = "modelopt"|is not read here: take the compressed-tensors version
01-valid-w4a16|$Q.quant_method = "magic"|quantization_config.quant_method
01-valid-w4a16|$Q.kv_cache_scheme = {"num_bits": 4, "type": "int"}|only a symmetric cache of float8 or int8 is supported, found int4
02-valid-w8a8|$G.input_activations.dynamic = false|$P.input_activations.dynamic
02-valid-w8a8|$G.input_activations += {"dynamic": false, "strategy": "tensor"}|q_proj.input_scale
02-valid-w8a8|$G.input_activations.strategy = "tensor"|one dynamic scale for all tokens
02-valid-w8a8|$G.input_activations.symmetric = false|
02-valid-w8a8|$G.input_activations.type = "float"|
02-valid-w8a8|$G.weights.type = "float"|expected F8_E4M3
52-kv-valid|$Q.kv_cache_scheme = null|self_attn.k_scale
52-kv-valid|$Q.kv_cache_scheme.strategy = "channel"|quantization_config.kv_cache_scheme.strategy
52-kv-valid|$Q.kv_cache_scheme.dynamic = true|quantization_config.kv_cache_scheme.dynamic
77-gptq-valid|$Q.checkpoint_format = "marlin"|quantization_config.checkpoint_format
77-gptq-valid|$Q.bits = 5|quantization_config.bits
77-gptq-valid|$Q.bits = 8|qweight
77-gptq-valid|$Q.bits = null|quantization_config.bits
77-gptq-valid|$Q.group_size = 0|quantization_config.group_size
77-gptq-valid|$Q.desc_act = 1|quantization_config.desc_act
77-gptq-valid|$Q.pack_dtype = "int64"|quantization_config.pack_dtype
77-gptq-valid|$Q.dynamic = {"-:.*mlp": {}}|quantization_config.dynamic.-:.*mlp
77-gptq-valid|$Q.dynamic = {"-:nothing": {}, "+:.*mlp": {"bits": 8}}|mlp.gate_proj.qweight
77-gptq-valid|$Q.dynamic = {"(": {}}|quantization_config.dynamic.(
77-gptq-valid|$Q += {"quant_method": "awq", "checkpoint_format": null}|g_idx
77-gptq-valid|$Q += {"quant_method": "awq", "version": "gemv_fast", "checkpoint_format": null}|quantization_config.version
77-gptq-valid|del($Q)|under scheme dense of its module
EOF

# How a model is quantized may stand in a file of its own; and what is converted says nothing of it any more.
cp -r $C/77-gptq-valid "$T/side"
jq $Q $C/77-gptq-valid/config.json | jq 'del(.quant_method)' >"$T/side/quantize_config.json"
jq "del($Q)" $C/77-gptq-valid/config.json >"$T/side/config.json"
ok 'quantize_config.json beside config.json is read' run "$T/side"

# A family that does not list its modules, over a model that has none.
for q in '{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "sym": true}' '{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}' \
    '{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}'; do
    rm -rf "$T/plain" && $OUNCE convert $C/77-gptq-valid -o "$T/plain" --to f32 -q
    jq --argjson q "$q" '.quantization_config = $q' "$T/plain/config.json" >"$T/c.json" && cp "$T/c.json" "$T/plain/config.json"
    fails "$(jq -r .quant_method <<<"$q") over plain weights" 1 'no module is stored quantized' run "$T/plain"
done
for base in 77-gptq-valid 52-kv-valid 34-actorder-true; do
    ok "$base converts" $OUNCE convert $C/$base -o "$T/f32" --to f32 -q --force
    ok "and runs" run "$T/f32"
done
jq "{model_type, text_config: {quantization_config: $Q}} + del($Q)" $C/01-valid-w4a16/config.json >"$T/c.json"
rm -rf "$T/c" && cp -r $C/01-valid-w4a16 "$T/c" && cp "$T/c.json" "$T/c/config.json"
ok 'a config inside text_config converts' $OUNCE convert "$T/c" -o "$T/f32" --to f32 -q --force
ok 'and runs' run "$T/f32"
