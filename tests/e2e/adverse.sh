# ounce quantize with calibration text, each method and --target-bytes: text that cannot be read, that is empty or next to nothing, weights that are no numbers, channels that are always zero, experts
# that no token reaches, a disk that is full at any point. Each is a clear error that leaves nothing half-written, or a warning with a name and a checkpoint whose scales are finite.
# FULL=N: so many points for each command at which the disk is full (6; 0: at every call); SEED=N: others.
. tests/lib.sh
M=tests/golden/models RANDOM=${SEED:-1} FULL=${FULL:-6}
ids 8 36 90 1 >"$T/cal.jsonl"
: >"$T/empty.jsonl"
echo '{"ids":[5]}' >"$T/one.jsonl"
ids 1 2 90 1 >"$T/two.jsonl"
{ echo '{"ids":[7]}' && ids 7 36 90 1; } >"$T/some.jsonl"
spoilt() { rm -rf "$T/$1" && cp -r $M/llama "$T/$1" && poison "$T/$1/model.safetensors" "${@:2}"; } # NAME TENSOR BYTE BYTES
spoilt nan model.layers.1.mlp.up_proj.weight $((2 * (3 * 96 + 5))) '\xc0\x7f'
spoilt inf model.layers.0.self_attn.o_proj.weight $((2 * (3 * 96 + 5))) '\x80\x7f'
spoilt norm model.layers.1.post_attention_layernorm.weight 0 '\xc0\x7f'
spoilt head lm_head.weight 6 '\xc0\x7f'
spoilt last model.layers.2.mlp.down_proj.weight $((2 * (3 * 256 + 5))) '\xc0\x7f'
spoilt dead model.layers.0.input_layernorm.weight 8 '\0\0'
for t in self_attn.v_proj mlp.up_proj mlp.gate_proj; do poison "$T/dead/model.safetensors" model.layers.1.$t.weight $((2 * 96 * 3)) "$(printf '\\0%.0s' $(seq 192))"; done # and rows of zeros
q() { $OUNCE quantize "$1" -q --num-calibration-samples 8 --max-seq-length 36 --calibration "$T/cal.jsonl" -o "$T/o" "${@:2}"; }
nothing() { same "$what: $1: nothing is left" '' "$(ls -d "$T"/o "$T"/o.gptq "$T"/.o* 2>/dev/null)" && rm -rf "$T/o" "$T/o.gptq"; }
warns() { # NAME TEXT MODEL OPTIONS...
    ok "$what: $1" q "${@:3}" >"$T/out" 2>"$T/err"
    ok "$what: $1: is said" grep -q "^warning: $2" "$T/err"
    ok "$what: $1: finite scales" $OUNCE verify "$T/o" -q >"$T/out"
    ok "$what: $1: no work is left" test ! -e "$T/o.gptq"
    rm -rf "$T/o"
}
least=$(q $M/mixtral --target-bytes 1 2>&1 | sed 's/.*at least \([0-9]*\).*/\1/')

rows() {
    for m in gptq awq smoothquant smoothquant+gptq awq+gptq imatrix; do echo "--method $m --scheme W8A8"; done
    printf '%s\n' '--method awq+gptq --scheme W4A16_ASYM --group-size 32' '--method smoothquant --scheme FP8' '--method rtn --scheme FP8' '--target-bytes 250K' '--target-bytes 250K --method gptq' '--target-bytes 250K --method awq'
}
while read -r what; do
    fails "$what: text that is not there" 1 "$T/none.jsonl: No such file" q $M/llama $what --calibration "$T/none.jsonl"
    fails "$what: text that is a folder" 1 "$T/nan: Is a directory" q $M/llama $what --calibration "$T/nan"
    fails "$what: empty text" 1 'empty.jsonl: 0 sequences: there is no line in it' q $M/llama $what --calibration "$T/empty.jsonl"
    nothing text
    fails "$what: a weight that is NaN" 1 'model.layers.1.mlp.up_proj' q "$T/nan" $what
    ok "$what: what is said of it" grep -q 'column 5: expected a finite weight, found -\?nan' "$T/err"
    ok "$what: a weight that is NaN: no checkpoint" test ! -e "$T/o"
    nothing 'a weight that is NaN'
    case $what in
    --target*)
        fails "$what: a kept weight that is NaN" 1 'logits are not finite at position 0 of a window; model.layers.2.mlp.down_proj.weight[3, 5] is not finite either' q "$T/last" $what --ignore model.layers.2.mlp.down_proj
        same "$what: a kept weight that is NaN: what was measured can be taken up" 3 "$(jq .measured.layers "$T/o.gptq/manifest.json")"
        rm -rf "$T/o.gptq"
        ;;
    *)
        ok "$what: a kept weight that is NaN, behind all others" q "$T/last" $what --ignore model.layers.2.mlp.down_proj >"$T/out" 2>"$T/err"
        ok "$what: it is named" grep -q '^warning: model.layers.2.mlp.down_proj.weight: expected finite values, found -\?nan at 773 (model.safetensors); it is kept as it is' "$T/err"
        rm -rf "$T/o"
        ;;
    esac
    nothing 'a kept weight that is NaN'
    fails "$what: a weight that is infinite" 1 'model.layers.0.self_attn.o_proj' q "$T/inf" $what
    ok "$what: what is said of it" grep -q 'finite' "$T/err"
    nothing 'a weight that is infinite'
    fails "$what: a norm that is NaN" 1 'model.layers.1.post_attention_layernorm.weight: expected finite values, found nan at 0 (model.safetensors)' q "$T/norm" $what
    nothing 'a norm that is NaN'
    case $what in
    --target*)
        fails "$what: a head that is NaN, which is kept" 1 'logits are not finite at position 0 of a window; lm_head.weight[0, 3] is not finite either' q "$T/head" $what
        same "$what: a head that is NaN: what was measured can be taken up" 3 "$(jq .measured.layers "$T/o.gptq/manifest.json")"
        rm -rf "$T/o.gptq"
        ;;
    *)
        ok "$what: a head that is NaN, which is kept" q "$T/head" $what >"$T/out" 2>"$T/err"
        ok "$what: it is named" grep -q '^warning: lm_head.weight: expected finite values, found -\?nan at 3 (model.safetensors); it is kept as it is' "$T/err"
        rm -rf "$T/o"
        ;;
    esac
    nothing 'a head that is NaN'
    q "$T/dead" $what --json >"$T/json" 2>"$T/err" || { echo "not ok $what: a channel that is always zero" && cat "$T/err"; }
    [[ $what != *method* || $what = *rtn* ]] || same "$what: a channel that is always zero: no error is larger for it" true "$(jq -c '[(.errors, .folds)[] | .after <= .before and .after < 1] | length > 11 and all' "$T/json")"
    ok "$what: a channel that is always zero: finite scales" $OUNCE verify "$T/o" -q >"$T/out"
    rm -rf "$T/o"
    case $what in
    --target*)
        fails "$what: one token" 1 'one.jsonl: no sequence of at least 2 tokens' q $M/llama $what --calibration "$T/one.jsonl" --num-calibration-samples 1
        nothing 'one token'
        ok "$what: sequences of one token among others" q $M/llama $what --calibration "$T/some.jsonl" 2>"$T/err"
        rm -rf "$T/o"
        warns 'experts without a token' 'the calibration text gives [0-9]* modules no input other than zeros, the first model.layers.0.block_sparse_moe.experts' $M/mixtral ${what/250K/$((least * 5 / 4))} --calibration "$T/two.jsonl" --num-calibration-samples 1
        [ "$what" = '--target-bytes 250K' ] || warns 'fewer tokens than columns' 'two.jsonl: 2 tokens, fewer than the columns of attn_q (96)' $M/llama $what --calibration "$T/two.jsonl" --num-calibration-samples 1
        ;;
    *)
        warns 'one token' 'one.jsonl: 1 tokens, fewer than the columns of attn_q (96)' $M/llama $what --calibration "$T/one.jsonl" --num-calibration-samples 1
        warns 'fewer tokens than columns' 'cal.jsonl: 216 tokens, fewer than the columns of ffn_down (256)' $M/llama $what --num-calibration-samples 6
        [[ $what = *W4A16* ]] || warns 'experts without a token' 'no token of the calibration text reached [0-9]* modules, the first model.layers.0.block_sparse_moe.experts' $M/mixtral $what --calibration "$T/one.jsonl" --num-calibration-samples 1
        ;;
    esac
done < <(rows)

what='--method rtn --scheme W8A8'
$OUNCE quantize "$T/head" -o "$T/o" -q $what >"$T/out" 2>"$T/err"
same "$what: a head that is NaN is named" 'warning: lm_head.weight: expected finite values' "$(cut -d, -f1 "$T/err")"

# ---- a disk that is full: from some call on ----
gcc -shared -fPIC -O1 -D_GNU_SOURCE -o "$T/fail_at.so" tests/e2e/fail_at.c -ldl || { echo 'not ok fail_at.c'; exit 1; }
f() {
    env LD_PRELOAD="$T/fail_at.so" CALLS="$T/calls" FULL_AT="$1" "$OUNCE_RELEASE" quantize $M/llama -o "$T/w/b" -q --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 36 $what "${@:2}" >"$T/out" 2>"$T/err"
}
while read -r what; do
    rm -rf "$T/w" "$T/whole" && mkdir "$T/w"
    f 0 && mv "$T/w/b" "$T/whole" || echo "not ok $what"
    calls=$(cat "$T/calls") bad= n=0 points=$(seq "$FULL")
    [ "$FULL" != 0 ] || points=$(seq "$calls")
    for at in $points; do
        [ "$FULL" = 0 ] || at=$((1 + RANDOM % calls))
        f $at
        status=$?
        if [ $status = 1 ]; then
            n=$((n + 1))
            grep -q "^error: .*$T/w/.*No space left on device" "$T/err" || bad+=" $at: said: $(head -1 "$T/err");"
            [ ! -e "$T/w/b" ] || bad+=" $at: a checkpoint;"
            f 0 --resume || bad+=" $at: not made when there was room: $(head -1 "$T/err");"
        fi
        diff -r "$T/whole" "$T/w/b" >"$T/diff" 2>&1 || bad+=" $at: status $status: $(head -1 "$T/diff");"
        [ "$(ls -A "$T/w")" = b ] || bad+=" $at: left: $(ls -A "$T/w" | xargs);"
        rm -rf "$T/w" && mkdir "$T/w"
    done
    same "$what: a disk that is full before call N of $calls: an error, no checkpoint, and the same bytes when there is room" '' "$bad"
    ok "$what: it was full in time ($n)" test $n -gt $((FULL / 2))
done < <(rows | sed -n '1p;3p;5,6p;9,12p')

# Little memory: an end and a reason, whatever the limit.
limited() { (ulimit -v "$1" && timeout -k 1 60 "${@:2}"); } # KB COMMAND...
ok 'help under a limit of 100 MB' limited 100000 $OUNCE_RELEASE --help >"$T/out"
tight() { limited "$1" $OUNCE_RELEASE quantize $M/llama -o "$T/tight" --force -q -t 2 --scheme W4A16 --group-size 32 --method gptq --calibration "$T/cal.jsonl" --num-calibration-samples 2 --max-seq-length 8; }
for kb in 90000 130000 170000 210000 250000; do fails "GPTQ under a limit of $kb kB" 1 '' tight $kb; done
grep -q 'room that OpenBLAS takes for each thread' "$T/err" || echo 'not ok what there is no room for is said'
for kb in 290000 310000 330000 350000 370000 390000; do tight $kb >"$T/out" 2>"$T/err"; ok "GPTQ under a limit of $kb kB: it ends" test $? -lt 2; done
ok 'GPTQ behind --target-bytes takes its room once' limited 520000 $OUNCE_RELEASE quantize $M/llama -o "$T/tight" --force -q -t 2 --target-bytes 250K --method gptq --calibration "$T/cal.jsonl" --num-calibration-samples 2 --max-seq-length 8 >"$T/out" 2>"$T/err"
ok 'and with enough it is done' tight 700000 >"$T/out" 2>"$T/err"
ok 'nothing is left' test ! -e "$T/tight.gptq"
