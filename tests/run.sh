#!/bin/bash
# tests/run.sh BUILD: runs every test on the programs in BUILD and ends with "N passed, N failed"; exit 1 if any failed.
# A test says "ok ..." or "not ok ..." (TAP; the kernel checker: "FAIL ...") on a line of its own. What a program with failures printed is shown.
# ONLY=PATTERN runs the tests whose name matches (a shell pattern: ONLY='unit/*').
cd "$(dirname "$0")/.." || exit 1
build=$1
export OUNCE=$PWD/$build/ounce      # with sanitizers
export OUNCE_RELEASE=$PWD/ounce     # without: for tests of speed and memory
export CHECK=$PWD/$build/check
export CMOCKA_MESSAGE_OUTPUT=TAP NO_COLOR=1
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
out=$(mktemp) && trap 'rm -f "$out"' EXIT
passed=0 failed=0

# NAME COMMAND...: a program that prints no TAP counts as one test, by its exit status.
run() {
    local name=$1 good bad status start=$SECONDS
    shift
    [[ $name == ${ONLY:-*} ]] || return
    timeout 900 "$@" >"$out" 2>&1 </dev/null
    status=$?
    good=$(grep -c '^ok ' "$out")
    bad=$(grep -cE '^(not ok|FAIL) ' "$out")
    if [ "$good$bad" = 00 ]; then
        [ $status = 0 ] && good=1
    fi
    if [ $status != 0 ] && [ "$bad" = 0 ]; then # died on the way: the tests after that are not known
        echo "not ok $name: ended with status $status" >>"$out"
        bad=1
    fi
    passed=$((passed + good)) failed=$((failed + bad))
    printf '%-28s %4d passed, %d failed  %ds\n' "$name" "$good" "$bad" $((SECONDS - start))
    [ "$bad" = 0 ] || grep -vE '^ok ' "$out" | sed 's/^/    /'
}

run levels tests/levels.sh
for t in "$build"/unit/test_*; do
    [ -x "$t" ] && [ -e "tests/unit/$(basename "$t").c" ] && run "unit/${t##*/test_}" "$t"
done
[ -x "$CHECK" ] && run check "$CHECK" && run mutations "$CHECK" --mutations
if [ -x "$CHECK-emulated" ] && grep -qw avx512_bf16 /proc/cpuinfo; then # AMX, in plain C, on what AVX-512 machine there is
    run check-amx "$CHECK-emulated" --level amx && run mutations-amx "$CHECK-emulated" --mutations --level amx --only gemm
fi
for t in tests/e2e/*.sh; do
    [ -e "$t" ] && run "e2e/$(basename "$t" .sh)" bash "$t"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
