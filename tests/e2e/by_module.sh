# ounce kl --by-module: what a module does by itself is what a hybrid checkpoint with that module alone does, to the last bit.
. tests/lib.sh
M=tests/golden/models
for i in {1..8}; do echo 'HELLO WORLD, THIS IS A TEXT. 12 OF 345, (AND SO ON)!'; done >"$T/text" # its ids are below 96, as many as the small models know

# REF OTHER: the figures of both ways, a line a module: "NAME KL MAX TOP1". LEAVE: --leave-one-out, or nothing.
LEAVE=
alone() { $OUNCE kl "$1" "$2" --text "$T/text" --ctx 48 -q -t 2 --json --by-module $LEAVE | jq -r '.[0].modules[] | "\(.module) \(.mean_kl) \(.kl_max) \(.top1_agreement)"' | sort; }
hybrid() { # REF OTHER TYPE; a name with experts in it becomes a pattern
    $OUNCE kl "$1" "$2" --text "$T/text" --ctx 48 -q -t 1 --json --by-module | jq -r '.[0].modules[].module' | sort | while read -r name; do
        pattern="re:$(sed 's/\./\\./g; s/\*/\\d+/' <<<"$name")\$"
        local base=$1 other=$2
        [ -z "$LEAVE" ] || base=$2 other=$1
        $OUNCE convert "$base" -o "$T/hybrid" --to ${3:-compressed-tensors} --take "$pattern=$other" --force -q >/dev/null 2>"$T/err" || { echo "not ok convert $name"; cat "$T/err"; }
        $OUNCE kl "$1" "$T/hybrid" --text "$T/text" --ctx 48 -q -t 1 --json | jq -r --arg n "$name" '.[0] | "\($n) \(.mean_kl) \(.kl_max) \(.top1_agreement)"'
    done
}

# A GGUF of two layers has a tokenizer; the others are given it.
$OUNCE convert tests/golden/gguf/llama.gguf -o "$T/llama" --to f32 -q >/dev/null
for m in mixtral qwen2 jamba; do
    cp -rL $M/$m "$T/$m" && chmod -R u+w "$T/$m" && cp "$T"/llama/tokenizer* "$T/$m" || echo "not ok $m"
done
for i in 1 2 3 4; do echo '{"ids":[5,9,33,2,71,8,90,14]}'; done >"$T/cal.jsonl"
$OUNCE quantize "$T/qwen2" -o "$T/folded" --scheme W8A8 --method smoothquant --calibration "$T/cal.jsonl" -q >/dev/null 2>"$T/err" || echo 'not ok smoothquant'
$OUNCE kl "$T/qwen2" "$T/folded" --text "$T/text" --ctx 48 -q --json --by-module >"$T/out" 2>"$T/err"
ok 'scales that were moved: a warning' grep -q 'warning: model.layers.0.*norm.*: not as in .*/qwen2: scales were moved between modules' "$T/err"
for c in 'llama W8A8' 'llama W4A16 --group-size 32' 'mixtral W4A16_ASYM --group-size 16' 'qwen2 W8A16' 'jamba FP8_DYNAMIC'; do
    set -- $c
    $OUNCE quantize "$T/$1" -o "$T/q" --scheme ${*:2} --force -q >/dev/null 2>"$T/err"
    alone "$T/$1" "$T/q" >"$T/alone"
    hybrid "$T/$1" "$T/q" >"$T/hybrids"
    same "$c: each module as a hybrid has it" "$(cat "$T/hybrids")" "$(cat "$T/alone")"
    ok "$c: they do harm" awk '$2 > 0 { n++ } END { exit n < 10 }' "$T/alone"
    LEAVE=--leave-one-out
    alone "$T/$1" "$T/q" >"$T/left"
    hybrid "$T/$1" "$T/q" >"$T/hybrids"
    same "$c: all but each module as a hybrid has it" "$(cat "$T/hybrids")" "$(cat "$T/left")"
    ok "$c: which is not what each does alone" awk 'NR == FNR { kl[$1] = $2; next } { n += $2 != kl[$1] } END { exit n < 10 }' "$T/alone" "$T/left"
    LEAVE=
done
$OUNCE convert "$T/llama" -o "$T/bf16" --to bf16 -q >/dev/null
alone "$T/llama" "$T/bf16" >"$T/alone"
hybrid "$T/llama" "$T/bf16" f32 >"$T/hybrids" # there the module is widened, and its product has another kernel
ok 'another type: embeddings, too' awk 'NR == FNR { kl[$1] = $2; next } { n++; d = $2 - kl[$1]; if (!($1 in kl) || d * d > 1e-6 * $2 * $2 + 1e-24) exit bad = 1 } END { exit bad || n != 15 }' "$T/hybrids" "$T/alone"
ok 'there they are' grep -q 'embed_tokens [1-9]' "$T/alone"

# The list.
$OUNCE quantize "$T/llama" -o "$T/q" --scheme W4A16 --group-size 32 --force -q >/dev/null 2>"$T/err"
k() { $OUNCE kl --text "$T/text" --ctx 48 -q -t 1 --by-module "$@"; }
k "$T/llama" "$T/q" --json >"$T/json"
same 'worst first, of all the matrices of two layers' '14 true' "$(jq -r '.[0].modules | "\(length) \(map(.mean_kl) | . == (sort | reverse))"' "$T/json")"
same 'what a module is' '{"layer":0,"role":"attn_o","scheme":"W4A16","matrices":1,"bytes":2560}' "$(jq -c '.[0].modules[] | select(.module == "model.layers.0.self_attn.o_proj") | {layer, role, scheme, matrices, bytes}' "$T/json")"
same 'any number of threads' "$(jq -c . "$T/json")" "$(k "$T/llama" "$T/q" --json -t 3 | jq -c .)"
same 'half of the positions' "$(jq -r '.[0] | "\(.positions - .windows * 24) \(.windows)"' "$T/json")" "$(k "$T/llama" "$T/q" --json --positions half | jq -r '.[0] | "\(.positions) \(.windows)"')"
ok 'a table' grep -qE '^ +[0-9.]+ +[0-9.e-]+ +[0-9.]+ +2560  W4A16 +model.layers.0.self_attn.o_proj$' <(k "$T/llama" "$T/q")

# The other way round.
k "$T/llama" "$T/q" --leave-one-out --json >"$T/json"
whole=$($OUNCE kl "$T/llama" "$T/q" --text "$T/text" --ctx 48 -q -t 1 --json | jq '.[0].mean_kl')
same 'all but one: the model whole, and what it gains' "14 $whole true true" "$(jq -r '.[0] | .mean_kl as $w | "\(.modules | length) \($w) \(.modules | map(.gain) | . == (sort | reverse)) \(.modules | all(.gain == $w - .mean_kl))"' "$T/json")"
same 'some gain' true "$(jq '.[0].modules[0].gain > 0' "$T/json")"
same 'any number of threads, all but one' "$(jq -c . "$T/json")" "$(k "$T/llama" "$T/q" --leave-one-out --json -t 3 | jq -c .)"
ok 'a table of them' grep -qE "^ *$(printf %.4g "$whole")  mean KL of the whole\$" <(k "$T/llama" "$T/q" --leave-one-out)
$OUNCE quantize "$T/llama" -o "$T/q1" --scheme W8A16 --targets re:model.layers.0.self_attn.v_proj --force -q >/dev/null 2>"$T/err"
same 'all but the only one: nothing is left' 0 "$(k "$T/llama" "$T/q1" --leave-one-out --json | jq '.[0].modules | if length == 1 then .[0].mean_kl else "?" end')"
$OUNCE quantize "$T/llama" -o "$T/q2" --scheme W8A16 --targets Linear --targets re:lm_head --force -q >/dev/null 2>"$T/err"
LEAVE=--leave-one-out
alone "$T/llama" "$T/q2" >"$T/left"
hybrid "$T/llama" "$T/q2" >"$T/hybrids"
same 'a quantized head' "$(cat "$T/hybrids")" "$(cat "$T/left")"
same 'leaving one out is by module' "$($OUNCE kl "$T/llama" "$T/q" --text "$T/text" --leave-one-out --by-module -q --json)" "$($OUNCE kl "$T/llama" "$T/q" --text "$T/text" --leave-one-out -q --json)"
fails 'of two models' 2 '--leave-one-out: takes one MODEL, found 2' $OUNCE kl "$T/llama" "$T/q" "$T/q" --text "$T/text" --leave-one-out

fails 'nothing that differs' 1 "error: $T/llama: every module is as in $T/llama" k "$T/llama" "$T/llama"
fails 'two models' 2 '--by-module: takes one MODEL, found 2' k "$T/llama" "$T/q" "$T/q"
for how in --by-module --leave-one-out; do
    fails "too long a window, $how" 1 "error: --ctx 1024: must be 2..128, the model's length" k "$T/llama" "$T/q" $how --ctx 1024
    fails "whatever memory it took, $how" 1 "error: --ctx 1073741824: must be 2..128, the model's length" k "$T/llama" "$T/q" $how --ctx 1073741824
    fails "a model that takes no window, $how" 1 "error: --ctx 1: must be 2..1, the model's length" $OUNCE kl "$T/llama" "$T/q" --text "$T/text" -q -t 1 $how --max-model-len 1
done
cp -r "$T/q" "$T/shorter" && jq '.max_position_embeddings = 64' "$T/q/config.json" >"$T/shorter/config.json"
fails 'one that the model would not take whole' 1 "error: --ctx 65: must be 2..64, the model's length" k "$T/llama" "$T/shorter" --leave-one-out --ctx 65
fails 'quantized at load' 2 '--by-module: takes modules as MODEL stores them' k "$T/mixtral" "$T/mixtral" --quantization experts_int8
fails 'another shape' 1 "error: $T/mixtral: model.embed_tokens.weight: expected [265, 64], found [320, 64]" k "$T/llama" "$T/mixtral"
