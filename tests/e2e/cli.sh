# The command line itself: help, versions, mistakes, a stdout that cannot be written.
. tests/lib.sh

same 'version' 'ounce 0.1.0' "$($OUNCE --version)"
same 'help names the commands' 'usage: ounce COMMAND [options]' "$($OUNCE --help | head -1)"
same 'help is help' "$($OUNCE --help)" "$($OUNCE help)"
fails 'no command' 2 'usage: ounce COMMAND' $OUNCE
fails 'unknown command' 2 'error: frobnicate: no such command (ounce --help lists them)' $OUNCE frobnicate
fails 'help of an unknown command' 2 'no such command' $OUNCE help frobnicate
fails 'full disk' 1 'error: stdout: No space left on device' sh -c "$OUNCE --help >/dev/full"
fails 'closed pipe' 1 'error: stdout: Broken pipe' bash -c "set -o pipefail; (sleep 0.3; $OUNCE --help) | true"
same 'no colours without a terminal' '' "$($OUNCE frobnicate 2>&1 | grep "$(printf '\033')")"

for c in $($OUNCE --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    same "$c: usage" "usage: ounce $c" "$($OUNCE $c --help | head -1 | cut -d' ' -f1-3)"
    same "$c: help is help" "$($OUNCE $c --help)" "$($OUNCE help $c)"
    fails "$c: unknown option" 2 'error: --no-such-option: no such option' $OUNCE $c --no-such-option
    fails "$c: misspelt" 2 'did you mean' $OUNCE ${c}x
done
$OUNCE man >"$T/man"
same 'the manual page has every command' "$($OUNCE --help | grep -c '^  [a-z]')" "$(grep -c '^\.SH "OUNCE ' "$T/man")"
