# ounce quantize --method gptq, killed at any point at which a kill can be told from another, twice in a row, with and without a checkpoint to
# replace: what stands at its place is the old one or the new one, whole, and --resume ends in the bytes of a run that nobody killed.
# And ounce convert, which keeps no work: killed before each call, it leaves the old checkpoint, the new one, or none under the name.
# KILLS=N: so many of the former (10); SEED=N: others. Half of the points are among the last calls, where the checkpoint takes its place.
. tests/lib.sh
M=tests/golden/models/llama KILLS=${KILLS:-10} RANDOM=${SEED:=1} LAST=24
gcc -shared -fPIC -O1 -D_GNU_SOURCE -o "$T/kill_at.so" tests/e2e/kill_at.c -ldl || { echo 'not ok kill_at.c'; exit 1; }
awk 'BEGIN { srand(1); for (n = 0; n < 8; n++) { l = ""; for (i = 0; i < 32; i++) l = l (i ? "," : "") int(3 + rand() * 317); print "{\"ids\":[" l "]}" } }' >"$T/cal.jsonl"
g() (
    env LD_PRELOAD="$T/kill_at.so" KILL_COUNT="$T/calls" KILL_AT="$1" "$OUNCE_RELEASE" quantize $M -o "$T/w/b" -q --scheme W4A16 --group-size 32 --method gptq --calibration "$T/cal.jsonl" \
        --num-calibration-samples 8 --max-seq-length 32 "${@:2}" >"$T/out" 2>"$T/err"
    exit $?
) 2>/dev/null # bash tells of every kill
whole() { diff -r "$1" "$T/w/b" >"$T/diff" 2>&1; }
"$OUNCE_RELEASE" quantize $M -o "$T/old" -q --scheme W8A8 >"$T/out" || echo 'not ok the old checkpoint'
mkdir "$T/w"
g 0 && mv "$T/w/b" "$T/new" || echo 'not ok the new checkpoint'
cp -r "$T/old" "$T/w/b" && g 0 --force || echo 'not ok --force'
calls=$(cat "$T/calls")
ok "$calls calls change files" test "$calls" -gt 100

points=()
for ((i = 0; i < KILLS; i++)); do
    ((i % 2)) && points+=($((1 + RANDOM % calls))) || points+=($((calls - RANDOM % LAST)))
done
for ((i = 0; i < KILLS; i++)); do
    rm -rf "$T/w" && mkdir "$T/w"
    force=
    ((i % 4 < 3)) && force=--force && cp -r "$T/old" "$T/w/b"
    what="killed before call ${points[i]} of $calls${force:+ with --force} (seed $SEED)"
    g ${points[i]} $force --resume
    status=$? # 0: without a checkpoint to replace there are fewer calls
    again=$((1 + RANDOM % calls))
    for n in $again 0; do
        if [ -e "$T/w/b" ] && ! whole "$T/old" && ! whole "$T/new"; then echo "not ok $what: neither the old checkpoint nor the new one" && head -3 "$T/diff"; fi
        [ $status = 0 ] && break
        g $n $force --resume
        status=$?
    done
    # Killed when nothing was left but an empty folder, the run was over: that there is a checkpoint is then as true as it is after any other.
    [ $status = 1 ] && [ -z "$force" ] && whole "$T/new" && grep -q 'exists already' "$T/err" && status=0
    [ $status = 0 ] || { echo "not ok $what and before call $again: status $status" && cat "$T/err"; }
    same "$what: the same bytes, and nothing else" "$T/w/b" "$(whole "$T/new" && find "$T/w" -mindepth 1 -maxdepth 1)"
done

# ---- convert ----
c() (
    env LD_PRELOAD="$T/kill_at.so" KILL_COUNT="$T/calls" KILL_AT="$1" "$OUNCE_RELEASE" convert "$T/old" -o "$T/w/b" -q --to compressed-tensors --take "re:.*mlp.*=$M" "${@:2}" >"$T/out" 2>"$T/err"
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
