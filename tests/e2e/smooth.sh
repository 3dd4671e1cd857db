# ounce quantize --method smoothquant, awq, and followed by gptq: what each changes, its bytes however often it is killed, what is kept (its bytes whatever the threads: methods.sh).
. tests/lib.sh
M=tests/golden/models

ids 24 64 90 1 >"$T/cal.jsonl"
json() { jq -rc "$2" "$1"; } # FILE FILTER
S=(-q --calibration "$T/cal.jsonl" --num-calibration-samples 24 --max-seq-length 64)
s() { local m=$1 && shift && $OUNCE quantize $M/$m "${S[@]}" "$@"; }
head_of() { head -c $(($(od -An -tu8 -N8 "$1") + 8)) "$1" | tail -c +9; }

fails 'no calibration' 2 '--calibration: SmoothQuant needs text' $OUNCE quantize $M/llama -o "$T/o" --scheme W8A8 --method smoothquant
fails 'an unknown method' 2 '--method: must be one of rtn|gptq|imatrix|smoothquant|awq|smoothquant+gptq|awq+gptq' s llama -o "$T/o" --scheme W8A8 --method gptq+awq
fails 'a strength above 1' 2 '--smoothing-strength' s llama -o "$T/o" --scheme W8A8 --method smoothquant --smoothing-strength 1.5
fails 'a strength for nothing' 2 '--smoothing-strength: --method gptq moves no scales' s llama -o "$T/o" --scheme W8A8 --method gptq --smoothing-strength 0.5
fails 'nothing to fold' 1 'no scale of this model can be moved' s llama -o "$T/o" --scheme W8A8 --method smoothquant --targets 're:.*gate_proj'

# Each method and the strength have an effect of their own.
s llama -o "$T/rtn" --scheme W8A8 --method gptq >"$T/out" 2>&1
rm -f "$T/sums"
for m in smoothquant awq smoothquant+gptq awq+gptq; do
    s llama -o "$T/$m" -t 1 --scheme W8A8 --method $m --json >"$T/$m.json" || echo "not ok $m"
    same "$m: its recipe" "[\"$m\",\"W8A8\",\"${m%+gptq}\",\"searched\",12]" "$(json "$T/$m/ounce_recipe.json" '[.method, .scheme, .folding.by, .folding.strength, .folding.folds]')"
    same "$m: 12 folds, none worse than without" '[12,true]' "$(json "$T/$m.json" '.folds | [length, (map(.after <= .before) | all)]')"
    ok "$m: some of them better" test "$(json "$T/$m.json" '[.folds[] | select(.after < 0.9 * .before)] | length')" -gt 0
    sha256sum <"$T/$m/model.safetensors" >>"$T/sums"
done
s llama -o "$T/s5" --scheme W8A8 --method smoothquant --smoothing-strength 0.5 --json >"$T/s5.json"
same 'a strength that is given is taken' '[0.5]' "$(json "$T/s5.json" '[.folds[].strength] | unique')"
same 'and recorded' 0.5 "$(json "$T/s5/ounce_recipe.json" .folding.strength)"
sha256sum <"$T/s5/model.safetensors" >>"$T/sums"
sha256sum <"$T/rtn/model.safetensors" >>"$T/sums"
same 'six results, no two alike' 6 "$(sort -u "$T/sums" | wc -l)"

ok 'some scales come out of balance' test "$(json "$T/smoothquant.json" '[.folds[] | select(.balanced)] | length')" -gt 4

# For schemes that round inputs; another is a warning.
s llama -o "$T/idle" --scheme W8A16 --method smoothquant >"$T/out" 2>"$T/err"
ok 'no inputs to smooth: a warning' grep -q '^warning: SmoothQuant: no inputs are rounded here' "$T/err"
s llama -o "$T/idle" --scheme W8A8 --method smoothquant --force >"$T/out" 2>"$T/err"
ok 'and else none' bash -c '! grep -q "no inputs are rounded" "$1"' - "$T/err"

# A weight that is no number, a text of one token.
cp -r $M/llama "$T/nan" && printf '\300\177' | dd of="$T/nan/model.safetensors" bs=1 seek=$(($(od -An -tu8 -N8 "$T/nan/model.safetensors") + 8 + $(head_of "$T/nan/model.safetensors" | jq '."model.layers.0.mlp.down_proj.weight".data_offsets[0]') + 2)) conv=notrunc status=none
fails 'a weight that is no number' 1 'model.layers.0.mlp.down_proj.weight: row 0: column 1: expected a finite weight, found' $OUNCE quantize "$T/nan" "${S[@]}" -o "$T/o" --scheme W8A8 --method smoothquant
ok 'nothing is left' test ! -e "$T/o" -a ! -e "$T/o.gptq"
ok 'a text of one token' $OUNCE quantize $M/mixtral -q --calibration "$T/cal.jsonl" --num-calibration-samples 1 --max-seq-length 1 -o "$T/one" --scheme W8A8 --method smoothquant >"$T/out" 2>&1

# Killed again and again: --resume ends in the same bytes.
m=smoothquant+gptq kills=0
rm -rf "$T/b"
for ms in 030 060 090 120 150 200 250 300 400 500 700 900 1200 1600 2400; do
    $OUNCE quantize $M/llama "${S[@]}" -o "$T/b" -t 2 --scheme W8A8 --method $m --resume >"$T/out" 2>"$T/err" &
    sleep "$((10#$ms / 1000)).$(printf %03d $((10#$ms % 1000)))"
    kill -9 $! 2>/dev/null && kills=$((kills + 1))
    wait $! 2>/dev/null
    [ -e "$T/b" ] && break
done
[ -e "$T/b" ] || s llama -o "$T/b" -t 3 --scheme W8A8 --method $m --resume >"$T/out" || echo 'not ok resume'
ok "killed $kills times: the same bytes" diff -r "$T/$m" "$T/b"
rm -rf "$T/b"
$OUNCE quantize $M/llama "${S[@]}" -o "$T/b" --scheme W8A8 --method $m >"$T/out" 2>&1 &
for i in $(seq 3000); do grep -qs '"layers_done": [12]' "$T/b.gptq/manifest.json" && break; sleep 0.005; done
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
fails 'resumed by another method' 1 "$T/b.gptq: was begun with another scheme or other option" s llama -o "$T/b" --scheme W8A8 --method awq+gptq --resume
fails 'resumed with another strength' 1 "$T/b.gptq: was begun with another scheme or other option" s llama -o "$T/b" --scheme W8A8 --method $m --resume --smoothing-strength 0.5
ok 'and goes on' s llama -o "$T/b" --scheme W8A8 --method $m --resume >"$T/out"
ok 'to the same bytes' diff -r "$T/$m" "$T/b"

# What a pattern keeps is kept to the byte, and so is what would have to change with it.
s llama -o "$T/k" --scheme W8A8 --method smoothquant --ignore 're:.*layers.1.*q_proj' >"$T/out" 2>&1
for n in self_attn.q_proj.weight input_layernorm.weight; do same "kept: $n" "$(tensor $M/llama model.layers.1.$n)" "$(tensor "$T/k" model.layers.1.$n)"; done
ok 'another norm is not' test "$(tensor $M/llama model.layers.1.post_attention_layernorm.weight)" != "$(tensor "$T/k" model.layers.1.post_attention_layernorm.weight)"

# Other architectures and schemes: nothing is worse than without, and it runs.
seq 3 40 >"$T/ids"
for m in qwen2 phi3 gemma2 mixtral deepseek_v2 jamba; do
    for s in 'W8A8 smoothquant' 'FP8 smoothquant' 'W8A8_STATIC smoothquant' 'W4A16_ASYM awq'; do
        set -- $s
        g= && [ $1 = W4A16_ASYM ] && g='--group-size 16'
        [ $m = jamba ] && [ -n "$g" ] && set -- W8A16 awq && g=
        s $m -o "$T/$m-$1" --num-calibration-samples 8 --max-seq-length 48 --scheme $1 $g --method $2 --json >"$T/r.json" 2>"$T/err" || { echo "not ok $m $1" && head -3 "$T/err"; }
        same "$m $1: folds" true "$(json "$T/r.json" '.folds | length > 5 and (map(.after <= .before) | all)')"
        ok "$m $1: runs" $OUNCE logits "$T/$m-$1" --ids "$T/ids" -o "$T/logits.safetensors" -q
    done
done
