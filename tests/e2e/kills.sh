# ounce quantize with calibration text, by every kind of method, killed at any point at which a kill can be told from another, twice in a row, with and without a checkpoint
# to replace: what stands at its place is the old one or the new one, whole, and --resume ends in the bytes of a run that nobody killed.
# And ounce convert, which keeps no work: killed before each call, it leaves the old checkpoint, the new one, or none under the name.
# KILLS=N: so many of the former for each method (3); SEED=N: others. Half of the points are among the last calls, where the checkpoint takes its place.
. tests/lib.sh
M=tests/golden/models/llama KILLS=${KILLS:-3} RANDOM=${SEED:=1} LAST=24
gcc -shared -fPIC -O1 -D_GNU_SOURCE -o "$T/fail_at.so" tests/e2e/fail_at.c -ldl || { echo 'not ok fail_at.c'; exit 1; }
awk 'BEGIN { srand(1); for (n = 0; n < 8; n++) { l = ""; for (i = 0; i < 32; i++) l = l (i ? "," : "") int(3 + rand() * 90); print "{\"ids\":[" l "]}" } }' >"$T/cal.jsonl"
g() (
    env LD_PRELOAD="$T/fail_at.so" CALLS="$T/calls" KILL_AT="$1" "$OUNCE_RELEASE" quantize tests/golden/models/$how -o "$T/w/b" -q --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 32 "${@:2}" >"$T/out" 2>"$T/err"
    exit $?
) 2>/dev/null # bash tells of every kill
whole() { diff -r "$1" "$T/w/b" >"$T/diff" 2>&1; }
"$OUNCE_RELEASE" quantize $M -o "$T/old" -q --scheme W8A8 >"$T/out" || echo 'not ok the old checkpoint'

killed() { # POINT WHAT OPTIONS...: killed there, then anywhere, then not at all
    local status n again what=$2
    g $1 --resume "${@:3}"
    status=$? # 0: without a checkpoint to replace there are fewer calls
    again=$((1 + RANDOM % calls))
    for n in $again 0; do
        if [ -e "$T/w/b" ] && ! whole "$T/old" && ! whole "$T/new"; then echo "not ok $what: neither the old checkpoint nor the new one" && head -3 "$T/diff"; fi
        [ $status = 0 ] && break
        g $n --resume "${@:3}"
        status=$?
    done
    # Killed when nothing was left but an empty folder, the run was over: that there is a checkpoint is then as true as it is after any other.
    [ $status = 1 ] && [ $# = 2 ] && whole "$T/new" && grep -q 'exists already' "$T/err" && status=0
    [ $status = 0 ] || { echo "not ok $what and before call $again: status $status" && cat "$T/err"; }
    same "$what: the same bytes, and nothing else" "$T/w/b" "$(whole "$T/new" && find "$T/w" -mindepth 1 -maxdepth 1)"
}
while read -r how; do
    rm -rf "$T/w" "$T/new" && mkdir "$T/w"
    g 0 && mv "$T/w/b" "$T/new" || echo "not ok $how: the new checkpoint"
    cp -r "$T/old" "$T/w/b" && g 0 --force || echo "not ok $how --force"
    calls=$(cat "$T/calls")
    ok "$how: $calls calls change files" test "$calls" -gt 100
    for ((i = 0; i < KILLS; i++)); do
        rm -rf "$T/w" && mkdir "$T/w"
        ((i % 2)) && at=$((1 + RANDOM % calls)) || at=$((calls - RANDOM % LAST))
        force=
        ((i % 4 < 3)) && force=--force && cp -r "$T/old" "$T/w/b"
        killed $at "$how: killed before call $at of $calls${force:+ with --force} (seed $SEED)" $force
    done
done <<'END'
llama --method gptq --scheme W4A16 --group-size 32
llama --method awq+gptq --scheme W4A16_ASYM --group-size 32
llama --method smoothquant --scheme FP8
llama --method imatrix --scheme W8A16
llama --method gptq --scheme W8A8 --kv-cache-scheme fp8
llama --target-bytes 250K
llama --method awq+gptq --target-bytes 250K
mixtral --method gptq --scheme W8A16 --moe-calibrate-all-experts
END

# ---- convert ----
c() (
    env LD_PRELOAD="$T/fail_at.so" CALLS="$T/calls" KILL_AT="$1" "$OUNCE_RELEASE" convert "$T/old" -o "$T/w/b" -q --to compressed-tensors --take "re:.*mlp.*=$M" "${@:2}" >"$T/out" 2>"$T/err"
    exit $?
) 2>/dev/null
rm -rf "$T/w" "$T/new" && mkdir "$T/w" && c 0 && mv "$T/w/b" "$T/new" || echo 'not ok the new hybrid'
for force in '' --force; do
    rm -rf "$T/w" && mkdir "$T/w"
    [ -z "$force" ] || cp -r "$T/old" "$T/w/b"
    c 0 $force && calls=$(cat "$T/calls") bad=
    ok "convert $force: $calls calls change files" test "$calls" -gt 10
    for ((i = 1; i <= calls; i++)); do
        rm -rf "$T/w" && mkdir "$T/w"
        [ -z "$force" ] || cp -r "$T/old" "$T/w/b"
        c $i $force && bad+=" $i: was not killed;"
        if [ -e "$T/w/b" ]; then whole "$T/new" || { [ -n "$force" ] && whole "$T/old"; } || bad+=" $i: neither the old checkpoint nor the new one;"
        elif [ -n "$force" ]; then bad+=" $i: no checkpoint;"; fi
        ((i % 16)) || { c 0 --force && whole "$T/new" && [ "$(ls -A "$T/w")" = b ]; } || bad+=" $i: not made anew, or what was left is still there;"
    done
    same "convert $force, killed before each of them" '' "$bad"
done
