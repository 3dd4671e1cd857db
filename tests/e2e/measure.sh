# Measuring on the command line: what a text that is too short for some of it gives.
. tests/lib.sh

G=tests/golden/gguf/llama.gguf
printf 'hello world, this is a text. %.0s' {1..4} >"$T/short" # 112 tokens

"$OUNCE" ppl $G --text "$T/short" --convention all --ctx 64 --json -q -t 1 >"$T/json" 2>"$T/err"
same 'ppl all: which fit' 'hf gptq lm-eval' "$(jq -r 'map(.convention) | join(" ")' "$T/json")"
ok 'ppl all: which did not, and why' grep -qF 'warning: llamacpp: the text has 112 tokens: convention llamacpp with --ctx 64 needs at least 128' "$T/err"
fails 'ppl: one that does not fit' 1 'convention llamacpp' "$OUNCE" ppl $G --text "$T/short" --convention llamacpp --ctx 64 -t 1
"$OUNCE" kl $G $G --text "$T/short" --json -q -t 1 >"$T/json" 2>"$T/err"
ok 'kl: says that its window is short' grep -qF 'warning: the text has 112 tokens, less than --ctx' "$T/err"
$OUNCE convert $G -o "$T/f32" --to f32 -q >"$T/out" && $OUNCE convert $G -o "$T/bf16" --to bf16 -q >"$T/out"
$OUNCE kl "$T/f32" "$T/bf16" --text "$T/short" -q -t 1 >"$T/out" 2>"$T/err"
ok 'kl: small numbers keep their digits' grep -qE 'mean KL +0\.0000[1-9][0-9] \+/- [1-9][.0-9]*e-0[0-9] nats' "$T/out"
same 'kl: of a model to itself' '0 111' "$(jq -r '"\(.[0].mean_kl) \(.[0].positions)"' "$T/json")"
