# Dense architectures through the whole program: greedy ids that transformers gives, schemes and GPTQ on modules of any shape, ranks, synth; and no key of a
# config that changes the mathematics goes unread.
. tests/lib.sh
M=tests/golden/models
# FILE NAME: the int32 values of a tensor.
ids_of() {
    local n
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    set -- "$1" "$n" $(tail -c +9 "$1" | head -c "$n" | jq -r --arg t "$2" '.[$t].data_offsets | @tsv')
    tail -c +$((9 + $2 + $3)) "$1" | head -c $(($4 - $3)) | od -An -v -td4 | xargs
}
greedy() { $OUNCE_RELEASE run "$1" --dtype f32 --ids "$2" -n 16 --ignore-eos --print-ids -q "${@:3}"; }
logits() { $OUNCE_RELEASE logits "$1" --dtype f32 --ids "$T/ids" -o "$T/logits" -q "${@:2}" && sha256sum <"$T/logits"; }

for m in mistral qwen2 qwen2-window qwen3-yarn rope-linear rope-yarn phi3 phi3-short phi3-long gemma gemma2 gemma3 gemma3-vision qwen3_moe qwen3_moe-fused deepseek deepseek_v2 deepseek_v2-grouped deepseek_v3 jamba; do
    ids_of $M/$m/golden/model.safetensors input_ids >"$T/ids"
    same "$m: greedy ids" "$(ids_of $M/$m/golden/model.safetensors greedy_ids)" "$(greedy $M/$m "$T/ids" | xargs)"
    $OUNCE quantize $M/$m -o "$T/q" --scheme W8A16 -q --force >/dev/null
    $OUNCE convert "$T/q" -o "$T/f32" --to f32 -q --force >/dev/null
    same "$m in int8: the same ids as from its dequantized weights" "$(greedy "$T/f32" "$T/ids" | xargs)" "$(greedy "$T/q" "$T/ids" | xargs)"
done

# GPTQ where one matrix has several projections, and where norms stand around each block.
for i in $(seq 24); do echo "{\"ids\":[$(for k in $(seq 32); do echo -n "$((3 + (i * 37 + k * k * 11 + i * k) % 93)),"; done)4]}"; done >"$T/cal.jsonl"
for m in phi3 gemma2 deepseek_v2-grouped jamba; do
    scheme='W4A16 --group-size 16' n=14
    [ $m = phi3 ] && n=8
    [ $m = deepseek_v2-grouped ] || [ $m = jamba ] && scheme=W8A16 n=40 # columns that no group divides
    $OUNCE quantize $M/$m -o "$T/g-$m" -q --scheme $scheme --method gptq --calibration "$T/cal.jsonl" --num-calibration-samples 24 --max-seq-length 33 --json >"$T/json"
    same "$m: GPTQ errs less than rounding to nearest on each module" "$n true" \
        "$(jq -r '[(.errors | length), ([.errors[] | 0 < .after and .after < .before] | all)] | map(tostring) | join(" ")' "$T/json")"
    ok "and runs" greedy "$T/g-$m" "$T/ids"
done >"$T/out" 2>&1
grep -E '^(ok|not ok|error)' "$T/out"

# Inspection and weights of our own making follow the tables.
same 'roles of fused matrices' 'attn_o attn_qkv ffn_down ffn_gate_up' "$($OUNCE inspect $M/phi3 | awk '$2 == 2 { print $1 }' | xargs)"
same "the plan has the second rope, post-norms, the embedding's scale and tanh GELU" '3 1 6 3' \
    "$($OUNCE inspect $M/gemma3 --plan | awk '/by rope/ { r++ } $2 == "scale" { s++ } $2 == "norm" && $3 ~ /^out/ { n++ } $2 == "gelu_mul" { g++ } END { print r, s, n, g }')"
for m in phi3 gemma2 gemma3 qwen2-window; do
    $OUNCE synth $M/$m/config.json -o "$T/s" -q --force >/dev/null
    ok "synth of $m runs" greedy "$T/s" "$T/ids"
done >"$T/out"
grep -E '^(ok|not ok)' "$T/out"

# Latents stay in the cache where kv_b is stored as floats; a quantized one is expanded, and inspect says so.
$OUNCE quantize $M/deepseek_v2 -o "$T/q" --scheme W8A16 -q --force >/dev/null
same 'bytes a token, of latents and expanded' '192 192 896 0 896 192 896 2 model.layers.0.self_attn.kv_b_proj (scheme W8A16)' \
    "$(for m in $M/deepseek_v2 "$T/q"; do $OUNCE inspect "$m" --json | jq -r '.memory | [.kv_bytes_tok, .latent_bytes_tok, .expanded_bytes_tok, .expanded_layers, .expanded_by] | map(values | tostring) | join(" ")'; done | xargs)"
same 'and the plan attends so' 'kv_write latent mla_write attention' "$(for m in $M/deepseek_v2 "$T/q"; do $OUNCE inspect "$m" --plan | awk '$1 == 0 && $2 ~ /_write|attention|latent/ { print $2 }'; done 2>/dev/null | xargs)"

# MODEL JQ: another value of a key gives other logits, or is refused.
ids_of $M/gemma3/golden/model.safetensors input_ids >"$T/ids"
differs() {
    rm -rf "$T/m" && cp -r $M/$1 "$T/m" && chmod -R u+w "$T/m"
    jq "$2" $M/$1/config.json >"$T/m/config.json"
    local was now
    was=$(logits $M/$1) now=$(logits "$T/m")
    ok "$1: $2 changes what it computes" test -n "$now" -a "$was" != "$now"
}
differs mistral '.sliding_window = 11'
differs mistral 'del(.sliding_window)'
differs qwen2-window '.max_window_layers = 0'
differs qwen2-window '.layer_types = ["sliding_attention", "full_attention"]'
differs qwen3-yarn '.rope_scaling.attention_factor = 1'
differs rope-yarn '.rope_scaling.truncate = true'
differs rope-yarn 'del(.rope_scaling.mscale)'
differs rope-linear '.rope_scaling.factor = 2.6'
differs phi3 '.partial_rotary_factor = 1'
differs phi3-long '.rope_scaling.long_factor[3] = 7'
differs phi3-short '.rope_scaling.short_factor[3] = 2'
differs gemma2 '.attn_logit_softcapping = null'
differs gemma2 '.final_logit_softcapping = 5'
differs gemma2 'del(.final_logit_softcapping)'
differs gemma2 '.query_pre_attn_scalar = 21'
differs gemma2 '.hidden_activation = "silu"'
differs gemma3 '.rope_local_base_freq = 400'
differs gemma3 '.rope_scaling.factor = 3'
differs gemma3 '.sliding_window_pattern = 2'
differs qwen3_moe '.norm_topk_prob = false'
differs qwen3_moe '.num_experts_per_tok = 3'
differs deepseek '.norm_topk_prob = true'
differs deepseek_v2 '.rope_scaling.mscale_all_dim = 0.5'
differs deepseek_v2-grouped '.routed_scaling_factor = 4'
differs deepseek_v2-grouped '.topk_group = 2'
differs deepseek_v2-grouped '.topk_method = "greedy"'
differs deepseek_v3 '.norm_topk_prob = false'
differs deepseek_v3 '.topk_group = 3'
differs deepseek_v3 'del(.routed_scaling_factor) | .routed_scaling_factor = 2'
differs jamba '.num_experts_per_tok = 1'
differs gemma3 '.layer_types = ["full_attention", "sliding_attention", "sliding_attention"]'
jq '.rope_parameters = {full_attention: {rope_type: "linear", factor: 4.0, rope_theta: 100000.0}, sliding_attention: {rope_type: "default", rope_theta: 500.0}} | del(.rope_scaling, .rope_theta, .rope_local_base_freq)' \
    $M/gemma3/config.json >"$T/config" # as transformers 5 spells it
rm -rf "$T/m" && cp -r $M/gemma3 "$T/m" && chmod -R u+w "$T/m" && mv "$T/config" "$T/m/config.json"
same 'gemma3: ropes by kind of layer, spelt anew' "$(logits $M/gemma3)" "$(logits "$T/m")"

# A text part inside a larger model, its tensors named as transformers holds them; what is not text is kept as it is, and named as not quantized.
rm -rf "$T/m" && cp -r $M/gemma3-vision "$T/m" && chmod -R u+w "$T/m"
sed -i 's/language_model\.model\./model.language_model./g' "$T/m/model.safetensors"
same 'gemma3-vision by other names' "$(logits $M/gemma3-vision)" "$(logits "$T/m")"
$OUNCE quantize "$T/m" -o "$T/q" --scheme W8A16 -q --force >/dev/null
same 'quantized, its other parts are ignored by name' 'true' "$(jq '.quantization_config.ignore | index("vision_tower.encoder.layers.0.mlp.fc1") != null' "$T/q/config.json")"
ok 'and it runs' test -n "$(logits "$T/q")"

# MODEL JQ TEXT
refused() {
    rm -rf "$T/m" && cp -r $M/$1 "$T/m" && chmod -R u+w "$T/m"
    jq "$2" $M/$1/config.json >"$T/m/config.json"
    fails "$1: $2" 1 "$3" $OUNCE logits "$T/m" --ids "$T/ids" -o "$T/x"
}
refused gemma2 '.use_bidirectional_attention = true' 'config.json.use_bidirectional_attention: true is not run here'
refused gemma2 '.hidden_activation = "gelu"' 'config.json.hidden_activation: "gelu" is not run here'
refused phi3 '.rope_scaling = {type: "dynamic", factor: 2}' 'config.json.rope_scaling.rope_type: "dynamic" is not run here'
refused phi3-long '.rope_scaling.long_factor = [1]' 'config.json.rope_scaling.long_factor: must be a list of 4 numbers'
refused mistral '.layer_types = ["full_attention", "sliding_attention"]' 'config.json.layer_types[0]: full_attention is not run here'
refused qwen2 '.use_mrope = true' 'config.json.use_mrope: true is not run here'
refused deepseek_v2 '.topk_method = "noaux_tc"' 'config.json.topk_method: "noaux_tc" is not run here'
refused deepseek_v2 '.norm_topk_prob = true' 'config.json.norm_topk_prob: true is not run here'
refused deepseek_v3 '.topk_method = "greedy"' 'config.json.topk_method: "greedy" is not run here; known: noaux_tc'
refused deepseek_v3 '.scoring_func = "softmax"' 'config.json.scoring_func: "softmax" is not run here; known: sigmoid'
refused deepseek_v3 '.rope_interleave = false' 'config.json.rope_interleave: false is not run here'
refused deepseek_v3 '.n_group = 8' 'config.json.n_group: groups of at least 2 experts are needed'
refused deepseek_v2-grouped '.n_group = 3' 'config.json.n_group: must divide n_routed_experts 8, found 3'
refused deepseek_v2-grouped '.num_experts_per_tok = 5' 'config.json.num_experts_per_tok: topk_group leaves 4 experts'
refused deepseek_v2 '.v_head_dim = 10' 'self_attn.kv_b_proj.weight: expected [72, 16]'
refused qwen3_moe '.num_experts = 5' 'model.layers.0.mlp.experts.5.down_proj.weight: expected no such tensor in a model of this config'
refused jamba '.mamba_d_conv = 3' 'mamba.conv1d.weight: expected'
refused jamba '.attn_layer_offset = 4' 'config.json.attn_layer_offset: must be'
fails 'a text beyond the short factors of longrope' 1 'the model takes 36 more (--max-model-len)' $OUNCE run $M/phi3-short --ids "$T/ids" -n 100 --max-model-len 64
same 'and within the long ones' 16 "$(greedy $M/phi3-short "$T/ids" --max-model-len 128 | wc -w)"
fails 'a length beyond both' 1 '--max-model-len: at most 512' $OUNCE run $M/phi3-short --ids "$T/ids" -n 1 --max-model-len 513
ok 'yarn reaches beyond max_position_embeddings' $OUNCE run $M/deepseek_v2 --ids "$T/ids" -n 1 --print-ids --max-model-len 2560 -q
fails 'by its factor' 1 '--max-model-len: at most 2560' $OUNCE run $M/deepseek_v2 --ids "$T/ids" -n 1 --print-ids --max-model-len 2561
add_tensor() { header "$1" ".[\"$2\"] = {dtype: \"F32\", shape: [7], data_offsets: [\$last, \$last + 28]}" 28; }
copy() { rm -rf "$T/m" && cp -r $M/$1 "$T/m" && chmod -R u+w "$T/m"; }
copy qwen3_moe && poison "$T/m/model.safetensors" model.layers.2.mlp.experts.3.down_proj.weight $((2 * (5 * 16 + 7))) '\xc0\x7f'
ids_of $M/qwen3_moe/golden/model.safetensors input_ids >"$T/ids"
fails 'NaN in one expert is named, with its model' 1 "error: $T/m: logits are not finite at position 27; model.layers.2.mlp.experts.3.down_proj.weight[5, 7] is not finite either (model.safetensors)" $OUNCE run "$T/m" --ids "$T/ids" -n 8 --ignore-eos --print-ids
copy deepseek && add_tensor "$T/m/model.safetensors" model.layers.1.mlp.gate.bias
fails 'a router bias of zeros where there is none' 0 'model.layers.1.mlp.gate.bias: a model of type deepseek and this config has no bias there; zeros are stored' $OUNCE run "$T/m" --ids "$T/ids" -n 1 --print-ids
copy jamba && add_tensor "$T/m/model.safetensors" model.layers.0.mamba.dt_proj.weight_scale
fails 'a scale that no scheme asks for' 1 'model.layers.0.mamba.dt_proj.weight_scale: expected no such tensor' $OUNCE run "$T/m" --ids "$T/ids" -n 1 --print-ids
copy deepseek_v3 && header "$T/m/model.safetensors" '."model.layers.2.mlp.gate.e_score_correction_bias".shape = [4, 2]' 0
fails 'a router bias of another shape' 1 'model.layers.2.mlp.gate.e_score_correction_bias: expected [8], found [4, 2]' $OUNCE run "$T/m" --ids "$T/ids" -n 1 --print-ids
not_finite() { # MODEL TENSOR: the first of its numbers (bf16) becomes an infinity
    copy "$1" && poison "$T/m/model.safetensors" "$2" 0 '\x80\x7f'
    fails "not finite, $2" 1 "$2: expected finite values, found inf at 0 (model.safetensors)" $OUNCE run "$T/m" --ids "$T/ids" -n 1 --print-ids
}
not_finite deepseek_v3 model.layers.2.mlp.gate.e_score_correction_bias
not_finite deepseek_v3 model.layers.2.mlp.gate.weight
not_finite jamba model.layers.0.mamba.A_log
not_finite jamba model.layers.0.mamba.dt_proj.bias
for c in 'mixtral num_local_experts 0' 'mixtral num_experts_per_tok 9' 'qwen3_moe num_experts 0' 'qwen3_moe num_experts_per_tok 7' 'deepseek num_experts_per_tok 9' 'deepseek n_routed_experts 0' \
    'deepseek_v2 n_routed_experts 0' 'deepseek_v2-grouped num_experts_per_tok 0' 'jamba num_experts 0' 'jamba num_experts_per_tok 4'; do
    set -- $c
    refused $1 ".$2 = $3" "config.json.$2: must be"
done
if command -v mpirun >/dev/null; then
    fails 'ranks and fused matrices' 1 'model.layers.0.self_attn.qkv_proj.weight: holds several projections, which 2 ranks cannot share yet' \
        mpirun --allow-run-as-root --oversubscribe -np 2 "$OUNCE_RELEASE" logits $M/phi3 --ids "$T/ids" -o "$T/x"
fi
