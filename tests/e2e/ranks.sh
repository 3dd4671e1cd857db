# Two ranks give what one gives: logits of the golden models, greedy ids, quantized twins, KL; what ranks cannot do is refused.
. tests/lib.sh
if ! command -v mpirun >/dev/null; then
    echo "# no mpirun (openmpi-bin): ranks are not tested" >&2
    exit 0
fi
two() { mpirun --allow-run-as-root --oversubscribe -np 2 "$OUNCE_RELEASE" "$@" </dev/null; }
M=tests/golden/models
seq 10 45 | tr '\n' ' ' >"$T/ids"

# Greedy ids are compared: sums over ranks run in another order, so logits agree to rounding and not to the bit.
for m in llama llama-tied-bias qwen3 mistral qwen2-window qwen3-yarn gemma2 gemma3; do
    "$OUNCE_RELEASE" run $M/$m --dtype f32 --ids "$T/ids" -n 24 --ignore-eos --print-ids -q >"$T/one"
    two run $M/$m --dtype f32 --ids "$T/ids" -n 24 --ignore-eos --print-ids -q >"$T/two"
    ok "$m: two ranks give the same greedy ids" test -s "$T/one" -a "$(cat "$T/one")" = "$(cat "$T/two")"
done
for scheme in W8A8 W8A16 FP8_DYNAMIC "W4A16 --group-size 16"; do
    name=${scheme%% *}
    # shellcheck disable=SC2086
    "$OUNCE_RELEASE" quantize $M/llama -o "$T/$name" --scheme $scheme -q >/dev/null
    "$OUNCE_RELEASE" run "$T/$name" --dtype f32 --ids "$T/ids" -n 16 --ignore-eos --print-ids -q >"$T/one"
    two run "$T/$name" --dtype f32 --ids "$T/ids" -n 16 --ignore-eos --print-ids -q >"$T/two"
    ok "$name: two ranks give the same greedy ids" test -s "$T/one" -a "$(cat "$T/one")" = "$(cat "$T/two")"
done
two logits $M/llama --dtype f32 --ids "$T/ids" -o "$T/two.safetensors" -q
"$OUNCE_RELEASE" logits $M/llama --dtype f32 --ids "$T/ids" -o "$T/one.safetensors" -q
same "logits of two ranks are written once, as large as one rank's" "$(wc -c <"$T/one.safetensors")" "$(wc -c <"$T/two.safetensors")"

# What every rank finds alike is said once, and no rank is aborted.
once() { # NAME STATUS TEXT COMMAND...
    fails "$@"
    same "$1: said once" '1 0' "$(grep -cF -- "$3" "$T/err") $(grep -cE 'MPI_ABORT|MPI_Abort|ORTE' "$T/err")"
}
once "a command that has no ranks" 2 "does not run in several ranks" two quantize $M/llama -o "$T/x" --scheme W8A8
once "a misspelt command" 2 "no such command" two quantise
once "a misspelt option" 2 "--idz: no such option" two logits $M/llama --idz "$T/ids" -o "$T/x"
once "a model that is not there" 1 "nowhere" two logits nowhere --ids "$T/ids" -o "$T/x"
once "a mixture of experts" 1 "2 ranks: experts are not shared out among ranks yet" two logits $M/mixtral --ids "$T/ids" -o "$T/x"
seq 3 1 300 | tr '\n' ' ' >"$T/long"
once "a prompt that is too long" 1 "the prompt has 298 tokens" two run $M/llama --ids "$T/long" --max-model-len 64
once "more ranks than heads" 1 "cannot be shared out" mpirun --allow-run-as-root --oversubscribe -np 3 "$OUNCE_RELEASE" logits $M/llama --ids "$T/ids" -o "$T/x"
same "help is printed once" 1 "$(two run --help | grep -c '^usage: ounce run')"

# What one rank has alone ends all of them, and says which it was.
fails "an error of one rank" 1 "error: rank 1 of 2 alone: nowhere" timeout 60 mpirun --allow-run-as-root --oversubscribe -np 1 "$OUNCE_RELEASE" logits $M/llama --ids "$T/ids" -o "$T/x" : \
    -np 1 "$OUNCE_RELEASE" logits nowhere --ids "$T/ids" -o "$T/x"
same "and the file under way is removed" '' "$(find "$T" -name 'x*')"
fails "an error of the first rank" 1 "error: rank 0 of 2 alone: $T/no/x" timeout 60 mpirun --allow-run-as-root --oversubscribe -np 2 "$OUNCE_RELEASE" logits $M/llama --ids "$T/ids" -o "$T/no/x"
