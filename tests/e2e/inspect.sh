# inspect: the whole screen of small models, exact bytes, which pattern caught how many modules; what run refuses, with its message; ten thousand tensors.
. tests/lib.sh
M=tests/golden/models Q=tests/golden/quantized C=tests/golden/cases G=tests/golden/gguf
screen() { # NAME MODEL OPTIONS...: the screen is what stands on stdin
    local name=$1
    shift
    same "$name" "$(cat)" "$($OUNCE inspect "$@" --memory 1 -q 2>"$T/err" | sed 's/; known: .*//')"
}
changed() { # FROM JQ: a copy whose config is another; the path
    rm -rf "$T/changed" && cp -r "$1" "$T/changed" && chmod -R u+w "$T/changed"
    jq "$2" "$1/config.json" >"$T/changed/config.json"
    echo "$T/changed"
}

screen 'three groups' $Q/target-precedence <<'END'
tests/golden/quantized/target-precedence: LlamaForCausalLM (llama)
  2 layers, hidden 128, feed-forward 256, 4 heads of 32, 2 of keys and values, vocabulary 320, up to 512 tokens
  377,472 parameters; 47 tensors, 431,552 bytes in 1 file

class         modules         parameters              bytes   bits  scheme       stored as
embed               1             40,960             81,920  16.00  dense        bf16
head                1             40,960             81,920  16.00  dense        bf16
norm                5                640              1,280  16.00  dense        bf16
attn_q              1             16,384             16,640   8.12  W8A8         int8
attn_q              1             16,384              8,464   4.13  W4A16        int4 packed
attn_k              2             16,384              8,480   4.14  W4A16        int4 packed
attn_v              2             16,384              8,480   4.14  W4A16        int4 packed
attn_o              1             16,384              8,464   4.13  W4A16        int4 packed
attn_o              1             16,384             16,640   8.12  W8A8         int8
ffn_gate            2             65,536             66,592   8.13  W8A16        int8 packed
ffn_up              2             65,536             66,592   8.13  W8A16        int8 packed
ffn_down            2             65,536             66,080   8.07  W8A16        int8 packed
total                            377,472            431,552   9.15

compressed-tensors, format mixed-precision, quantization_status compressed, version 0.20.0: 14 modules
  group_0 W8A16: int8, channel; pack-quantized
    Linear                                                                          6
  group_1 W4A16: int4, group 128; pack-quantized
    re:.*self_attn.*                                                                6
  group_2 W8A8: int8, channel; inputs int8, token, dynamic; int-quantized
    model.layers.0.self_attn.q_proj                                                 1
    model.layers.1.self_attn.o_proj                                                 1
  ignore
    lm_head                                                                         1

KV cache: 1,024 bytes a token in f32, as it is run here; 512 in 16 bits
      tokens              cache       with weights      sequences in 1 GB
         512            524,288            955,840          1,906
END
screen 'experts, a scan, both caches' $M/jamba <<'END'
tests/golden/models/jamba: JambaForCausalLM (jamba)
  4 layers, hidden 24, feed-forward 48, 4 heads of 6, 2 of keys and values, vocabulary 96, up to 512 tokens, 3 experts of 48, 2 a token, 3 layers that scan
  52,722 parameters, 45,810 active; 77 tensors, 105,444 bytes in 1 file

class         modules         parameters              bytes   bits  scheme       stored as
embed               1              2,304              4,608  16.00  dense        bf16
head                1              2,304              4,608  16.00  dense        bf16
norm               18                306                612  16.00  dense        bf16
attn_q              1                576              1,152  16.00  dense        bf16
attn_k              1                288                576  16.00  dense        bf16
attn_v              1                288                576  16.00  dense        bf16
attn_o              1                576              1,152  16.00  dense        bf16
ffn_gate            2              2,304              4,608  16.00  dense        bf16
ffn_up              2              2,304              4,608  16.00  dense        bf16
ffn_down            2              2,304              4,608  16.00  dense        bf16
router              2                144                288  16.00  dense        bf16
expert_gate         6              6,912             13,824  16.00  dense        bf16
expert_up           6              6,912             13,824  16.00  dense        bf16
expert_down         6              6,912             13,824  16.00  dense        bf16
ssm_in              3              6,912             13,824  16.00  dense        bf16
ssm_x               3              4,320              8,640  16.00  dense        bf16
ssm_dt              3              1,008              2,016  16.00  dense        bf16
ssm_out             3              3,456              6,912  16.00  dense        bf16
ssm_a               3              1,728              3,456  16.00  dense        bf16
ssm                 6                864              1,728  16.00  dense        bf16
total                             52,722            105,444  16.00

KV cache: 96 bytes a token in f32, as it is run here; 48 in 16 bits; 8,640 bytes a sequence besides
      tokens              cache       with weights      sequences in 1 GB
         512             57,792            163,236         17,301
END
screen 'GPTQ' $C/77-gptq-valid <<'END'
tests/golden/cases/77-gptq-valid: LlamaForCausalLM (llama)
  1 layer, hidden 32, feed-forward 32, 2 heads of 16, 1 of keys and values, vocabulary 16, up to 64 tokens
  7,264 parameters; 33 tensors, 6,688 bytes in 1 file

class         modules         parameters              bytes   bits  scheme       stored as
embed               1                512              1,024  16.00  dense        bf16
head                1                512              1,024  16.00  dense        bf16
norm                3                 96                192  16.00  dense        bf16
attn_q              1              1,024                720   5.62  W4A16        int4 gptq
attn_k              1                512                424   6.62  W4A16        int4 gptq
attn_v              1                512                424   6.62  W4A16        int4 gptq
attn_o              1              1,024                720   5.62  W4A16        int4 gptq
ffn_gate            1              1,024                720   5.62  W4A16        int4 gptq
ffn_up              1              1,024                720   5.62  W4A16        int4 gptq
ffn_down            1              1,024                720   5.62  W4A16        int4 gptq
total                              7,264              6,688   7.37

gptq, bits 4, group_size 32, desc_act false, sym true, checkpoint_format gptq, damp_percent 0.01, true_sequential true, lm_head false: 7 modules

KV cache: 128 bytes a token in f32, as it is run here; 64 in 16 bits
      tokens              cache       with weights      sequences in 1 GB
          64              8,192             14,880        122,069
END
same 'a pattern without a module' '0 1' "$($OUNCE inspect "$(changed $C/01-valid-w4a16 '.quantization_config.config_groups.group_0.targets += ["Conv2d"] | .quantization_config.ignore += ["re:.*up_proj", "none"]')" \
    --json -q 2>"$T/err" | jq -r '[.quantization.groups[0].targets[1].modules, (.quantization.ignore[] | select(.pattern | startswith("re:")) | .modules)] | map(tostring) | join(" ")')"

# Every byte of the files' tensors is somebody's, once.
for d in $M/*/ $Q/*/ $C/*/; do
    want=0
    for f in "$d"*.safetensors; do want=$((want + $(stat -c %s "$f") - 8 - $(od -An -tu8 -N8 "$f"))); done
    same "bytes of $(basename "$d")" "$want $want $want $want" "$($OUNCE inspect "$d" --json -q --tensors 2>"$T/err" |
        jq -r '"\(.bytes) \([.classes[].bytes] | add) \([.modules[].bytes] | add) \([.tensors[].bytes] | add)"')"
done
for f in $G/llama.gguf $G/mixtral.gguf $G/types.gguf; do
    $OUNCE inspect $f --json --tensors -q >"$T/json"
    ok "bytes of $(basename $f)" jq -e '.bytes == ([.classes[].bytes] | add) and .bytes == ([.tensors[].bytes] | add) and .n_parameters == ([.modules[].parameters] | add)' "$T/json" >"$T/out"
done

# What run refuses: its message, exit status 0, and what was understood.
echo 1 2 3 >"$T/ids"
alike() { # NAME MODEL
    $OUNCE run "$2" --ids "$T/ids" -n 1 --device cpu -q >"$T/out" 2>"$T/err"
    local want found
    want=$(sed -n 's/^error: //p' "$T/err")
    want=${want#"$2: "} # whose name inspect has said already
    found=$($OUNCE inspect "$2" --json -q 2>"$T/err2" | jq -r '.run.error // ""')
    same "run and inspect alike: $1" "$want" "$found"
    [ -n "$want" ] || return
    $OUNCE inspect "$2" -q 2>"$T/err2" >"$T/out"
    same "and on the screen: $1" "0 run refuses it: $want" "$? $(tail -1 "$T/out")"
}
for d in $C/*/; do alike "$(basename "$d")" "$d"; done
while IFS='|' read -r from jq; do alike "$jq" "$(changed "$from" "$jq")"; done <<END
$C/01-valid-w4a16|.quantization_config.quant_method = "bitsandbytes"
$C/01-valid-w4a16|.quantization_config.quant_method = "modelopt"
$C/01-valid-w4a16|.quantization_config.quant_method = "quark"
$C/01-valid-w4a16|.quantization_config.quant_method = 4
$C/01-valid-w4a16|.quantization_config = "W4A16"
$C/01-valid-w4a16|.quantization_config.config_groups = []
$C/01-valid-w4a16|.quantization_config.config_groups.group_0 = 3
$C/01-valid-w4a16|.quantization_config.config_groups.group_0.targets = [3, null]
$C/01-valid-w4a16|.quantization_config.config_groups.group_0.weights = [4]
$C/01-valid-w4a16|.quantization_config.config_groups.group_0.weights.num_bits = {}
$C/01-valid-w4a16|.quantization_config.config_groups.group_0.weights.strategy = 7
$C/01-valid-w4a16|.quantization_config.ignore = {"lm_head": 1}
$C/01-valid-w4a16|.quantization_config.ignore += ["re:(", 5]
$C/01-valid-w4a16|del(.quantization_config)
$C/01-valid-w4a16|.model_type = "falcon"
$C/01-valid-w4a16|del(.model_type)
$C/01-valid-w4a16|.hidden_size = 64
$C/01-valid-w4a16|.num_hidden_layers = 2
$C/01-valid-w4a16|.rope_scaling = {"type": "dynamic"}
$C/01-valid-w4a16|.torch_dtype = "int8"
$C/01-valid-w4a16|[.]
$M/mixtral|.num_local_experts = 7
$M/mixtral|.num_local_experts = 9
END
rm -rf "$T/bad" && cp -r $C/01-valid-w4a16 "$T/bad" && chmod -R u+w "$T/bad"
for cut in 200 4000 5000; do
    head -c $cut $C/01-valid-w4a16/model.safetensors >"$T/bad/model.safetensors"
    alike "weights cut at $cut" "$T/bad"
done
for f in $G/bad/[!t]*.gguf $G/bad/tensor*.gguf; do # text-*: run reads the vocabulary first
    $OUNCE run "$f" --ids "$T/ids" -n 1 --device cpu -q >"$T/out" 2>"$T/err"
    $OUNCE inspect "$f" -q >"$T/out" 2>"$T/err2"
    status=$?
    [ $status = 1 ] || sed -n 's/^run refuses it: /error: /p' "$T/out" >"$T/err2" # where not even the metadata can be read it is an error here, too
    same "$(basename "$f")" "$(cat "$T/err")" "$(cat "$T/err2")"
done
same 'GGUF: a type that is not run' '1 128 264 16.50 dense iq2_xxs' "$($OUNCE inspect $G/bad/dtype-unread.gguf 2>"$T/err" | awk '$1 == "embed" { print $2, $3, $4, $5, $6, $7 }')"
same 'GGUF: an architecture that is not known' "$G/bad/arch-unknown.gguf: mamba, not run here" "$($OUNCE inspect $G/bad/arch-unknown.gguf 2>"$T/err" | head -1)"
screen 'an architecture that is not known' "$(changed $C/01-valid-w4a16 '.model_type = "falcon"')" <<END
$T/changed: LlamaForCausalLM (falcon), not run here
  1 layer, hidden 32, feed-forward 32, 2 heads of 16, 1 of keys and values, vocabulary 16, up to 64 tokens
  7,264 parameters; 26 tensors, 5,808 bytes in 1 file

class                     modules         parameters              bytes   bits  scheme       stored as
norm                            1                 32                 64  16.00  dense        bf16
lm_head                         1                512              1,024  16.00  dense        bf16
embed_tokens                    1                512              1,024  16.00  dense        bf16
input_layernorm                 1                 32                 64  16.00  dense        bf16
down_proj                       1              1,024                592   4.62  W4A16        int4 packed
gate_proj                       1              1,024                592   4.62  W4A16        int4 packed
up_proj                         1              1,024                592   4.62  W4A16        int4 packed
post_attention_layernorm        1                 32                 64  16.00  dense        bf16
k_proj                          1                512                304   4.75  W4A16        int4 packed
o_proj                          1              1,024                592   4.62  W4A16        int4 packed
q_proj                          1              1,024                592   4.62  W4A16        int4 packed
v_proj                          1                512                304   4.75  W4A16        int4 packed
total                                          7,264              5,808   6.40

compressed-tensors, format pack-quantized, quantization_status compressed, version 0.20.0: 7 modules
  group_0 W4A16: int4, group 32; pack-quantized
    Linear                                                                          7
  ignore
    lm_head                                                                         1

run refuses it: config.json.model_type: "falcon" is not run here
END
screen 'bitsandbytes: what its config says' "$(changed $C/01-valid-w4a16 '.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": ["lm_head"]}')" <<END
$T/changed: LlamaForCausalLM (llama)
  1 layer, hidden 32, feed-forward 32, 2 heads of 16, 1 of keys and values, vocabulary 16, up to 64 tokens
  7,264 parameters; 26 tensors, 5,808 bytes in 1 file

class         modules         parameters              bytes   bits  scheme       stored as
embed               1                512              1,024  16.00  dense        bf16
head                1                512              1,024  16.00  dense        bf16
norm                3                 96                192  16.00  dense        bf16
attn_q              1              1,024                592   4.62  ?            i32
attn_k              1                512                304   4.75  ?            i32
attn_v              1                512                304   4.75  ?            i32
attn_o              1              1,024                592   4.62  ?            i32
ffn_gate            1              1,024                592   4.62  ?            i32
ffn_up              1              1,024                592   4.62  ?            i32
ffn_down            1              1,024                592   4.62  ?            i32
total                              7,264              5,808   6.40

bitsandbytes, load_in_4bit true, bnb_4bit_quant_type nf4, llm_int8_skip_modules ["lm_head"]

KV cache: 128 bytes a token in f32, as it is run here; 64 in 16 bits
      tokens              cache       with weights      sequences in 1 GB
          64              8,192             14,000        122,069

run refuses it: quantization_config.quant_method: "bitsandbytes" is not read here: quantize the original model instead (ounce quantize --scheme W4A16 or W8A8), or take a GPTQ, AWQ or GGUF version of it
END
same 'ModelOpt: a file beside config.json' 'modelopt, producer.name modelopt, quantization.quant_algo NVFP4, quantization.group_size 16' "$(
    d=$(changed $C/01-valid-w4a16 'del(.quantization_config)')
    echo '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": null}}' >"$d/hf_quant_config.json"
    $OUNCE inspect "$d" -q 2>"$T/err" | grep '^modelopt')"
fails 'nothing at all' 1 'No such file' $OUNCE inspect "$T/none"
mkdir "$T/empty"
fails 'an empty folder' 1 "$T/empty/config.json: No such file" $OUNCE inspect "$T/empty"

# --tensors and --kernels: what differs in numbers alone shares a line; JSON has each.
$OUNCE inspect $M/mixtral --tensors --kernels -q --cpu-level ref --memory 1 >"$T/out"
same 'tensors: a line for all experts' '24 BF16 [96,64] 294912' "$(awk '$1 == "model.layers.{0-2}.block_sparse_moe.experts.{0-7}.w1.weight" { print $2, $3, $4, $5 }' "$T/out")"
same 'kernels: a line for all experts' '24 dense gemm_bf16_f32__ref 294912' "$(awk '$1 == "model.layers.{0-2}.block_sparse_moe.experts.{0-7}.w1" { print $2, $3, $4, $5 }' "$T/out")"
same 'JSON has each' '96 89' "$($OUNCE inspect $M/mixtral --tensors --kernels -q --json | jq -r '"\(.tensors | length) \(.kernels | length)"')"
fails 'kernels of what is not run' 1 'quant_method: "modelopt" is not read here' $OUNCE inspect "$T/changed" --kernels

# A mixture of 10,000 experts' matrices, dense and quantized: one screen, and soon.
for how in '' quantized; do
    rm -rf "$T/moe" && python3 tests/e2e/sparse_moe.py "$T/moe" $how
    TIMEFORMAT='%U %S'
    seconds=$({ time $OUNCE_RELEASE inspect "$T/moe" --memory 80 >"$T/out" 2>"$T/err"; } 2>&1)
    ok "$how mixture: $seconds seconds" awk 'BEGIN { split(ARGV[1], s); exit s[1] + s[2] >= 1 }' "$seconds"
    ok 'one screen' test "$(wc -l <"$T/out")" -lt 40
    [ -n "$how" ] || same 'its experts' '3,328 5,234,491,392 10,468,982,784' "$(awk '$1 == "expert_up" { print $2, $3, $4 }' "$T/out")"
done
same 'its experts, quantized' '3,328 5,234,491,392 2,699,087,872' "$(awk '$1 == "expert_up" { print $2, $3, $4 }' "$T/out")"
same 'parameters' '  16,177,047,552 parameters, 1,681,532,928 active; 30499 tensors, 8,546,338,816 bytes in 2 files' "$(sed -n 3p "$T/out")"
same 'what caught them' 'Linear 10,112 model.layers.{0-31}.mlp.gate 32' "$(awk '$1 == "Linear" || $1 ~ /mlp.gate$/ { print $1, $2 }' "$T/out" | xargs)"
same 'sequences that fit' '32,768 4,294,967,296 12,841,306,112 16' "$(awk '$1 == "32,768" { print $1, $2, $3, $4 }' "$T/out")"
same 'why it is refused' 'run refuses it: model.layers.0.self_attn.q_proj.weight_scale: scales must be positive and finite, found 0 at 0 (model-00001-of-00002.safetensors)' "$(tail -1 "$T/out")"

# What `run` refuses of the options, it refuses too, in the same words, with nothing loaded.
M=tests/golden/models
seq -s ' ' 1 9 >"$T/ids"
for o in '--cpu-level foo' '--device foo' '--device cpu:1' '--quantization foo' '--quantization experts_int8' '--max-model-len 513' '--dtype f16'; do
    $OUNCE run $M/llama --ids "$T/ids" -n 1 -q $o >"$T/out" 2>"$T/run"
    want="$? $(grep '^error' "$T/run")"
    $OUNCE inspect $M/llama -q $o >"$T/out" 2>"$T/err"
    same "refused as run does: $o" "$want" "$? $(grep '^error' "$T/err")"
    ok "with an error: $o" test "${want#* }"
done
fails 'longer than the model' 1 '--max-model-len: at most 512, the model'\''s own length (max_position_embeddings), found 513' $OUNCE inspect $M/llama --max-model-len 513
same 'a length that is asked for ends the table' 48 "$($OUNCE inspect $M/llama --max-model-len 48 --json -q | jq '.memory.contexts[-1].tokens')"
mkdir "$T/refused" && cp $M/llama/model.safetensors "$T/refused" && jq '.model_type = "lama"' $M/llama/config.json >"$T/refused/config.json"
ok 'a model that is refused is shown with any length' $OUNCE inspect "$T/refused" --max-model-len 999999 -q >"$T/out"

# What is done at load is shown of a model that is loaded; a cache in float8 has its bytes as it is run, and as its scheme says.
fails 'quantization at load without a load' 2 '--quantization: is done while a model loads, which inspect does with --kernels or --plan' $OUNCE inspect $M/mixtral --quantization experts_int8
same 'and with one' 'experts_int8' "$($OUNCE inspect $M/mixtral --quantization experts_int8 --kernels -q --json | jq -r '[.kernels[] | select(.name | test("experts")) | .scheme] | unique | join(" ")')"
same 'bytes of a float8 cache' 'KV cache: 1,024 bytes a token in f32, as it is run here (values are rounded to float8, not kept so); 512 in 16 bits; 256 in 8, as its scheme says' \
    "$($OUNCE inspect $Q/kv-cache-fp8 -q | grep '^KV cache')"
same 'and in JSON' '1024 256' "$($OUNCE inspect $Q/kv-cache-fp8 -q --json | jq -r '.memory | "\(.kv_bytes_tok) \(.kv_float8_bytes_tok)"')"
same 'none of another' null "$($OUNCE inspect $M/llama -q --json | jq .memory.kv_float8_bytes_tok)"
same 'rules of GPTQ' 'dynamic.-:.*v_proj {}, dynamic.+:.*mlp\.down_proj$ {"bits":8}, dynamic..*up_proj {"bits":2}: 6 modules' "$($OUNCE inspect $Q/gptq-dynamic -q | sed -n 's/.*lm_head false, //p')"
