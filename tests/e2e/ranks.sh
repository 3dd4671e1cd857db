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
for m in llama llama-tied-bias qwen3; do
    "$OUNCE_RELEASE" run $M/$m --ids "$T/ids" -n 24 --ignore-eos --print-ids -q >"$T/one"
    two run $M/$m --ids "$T/ids" -n 24 --ignore-eos --print-ids -q >"$T/two"
    same "$m: two ranks give the same greedy ids" "$(cat "$T/one")" "$(cat "$T/two")"
done
for scheme in W8A8 W8A16 FP8_DYNAMIC "W4A16 --group-size 8"; do
    name=${scheme%% *}
    # shellcheck disable=SC2086
    "$OUNCE_RELEASE" quantize $M/llama -o "$T/$name" --scheme $scheme -q >/dev/null
    "$OUNCE_RELEASE" run "$T/$name" --ids "$T/ids" -n 16 --ignore-eos --print-ids -q >"$T/one"
    two run "$T/$name" --ids "$T/ids" -n 16 --ignore-eos --print-ids -q >"$T/two"
    same "$name: two ranks give the same greedy ids" "$(cat "$T/one")" "$(cat "$T/two")"
done
two logits $M/llama --ids "$T/ids" -o "$T/two.safetensors" -q
"$OUNCE_RELEASE" logits $M/llama --ids "$T/ids" -o "$T/one.safetensors" -q
same "logits of two ranks are written once, as large as one rank's" "$(wc -c <"$T/one.safetensors")" "$(wc -c <"$T/two.safetensors")"

fails "a command that has no ranks" 2 "does not run in several ranks" two quantize $M/llama -o "$T/x" --scheme W8A8
fails "a model that is not there" 1 "nowhere" two logits nowhere --ids "$T/ids" -o "$T/x"
fails "more ranks than heads" 1 "cannot be shared out" mpirun --allow-run-as-root --oversubscribe -np 3 "$OUNCE_RELEASE" logits $M/llama --ids "$T/ids" -o "$T/x"
