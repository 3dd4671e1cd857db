# ounce pull, against a server on loopback that plays the hub (hub.py: the owner's name says how it misbehaves), and repositories' names as MODEL.
. tests/lib.sh
unset HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN_PATH http_proxy HTTP_PROXY all_proxy ALL_PROXY
src=tests/golden/models/llama commit=c0ffee0000000000000000000000000000000000
python3 tests/e2e/hub.py $src "$T/ports" "$T/log" & hub=$!
trap 'kill $hub; wait $hub 2>/dev/null; rm -rf "$T"' EXIT
for i in $(seq 100); do [ -s "$T/ports" ] && break; sleep 0.1; done
read -r port other <"$T/ports"
export HF_ENDPOINT=http://127.0.0.1:$port/ HF_HOME=$T/hf HF_TOKEN=secret HF_HUB_DOWNLOAD_TIMEOUT=2
repo() { echo "$HF_HOME/hub/models--$1--m"; }
snap() { echo "$(repo "$1")/snapshots/$commit"; }
weights() { # that came whole
    python3 -c 'import hashlib; print(hashlib.sha256(hashlib.shake_256(b"weights").digest(6_000_000)).hexdigest())'
}
want=$(weights)
whole() { same "$1: the bytes" "$want" "$(sha256sum <"$(snap "$2")/weights.safetensors" | cut -d' ' -f1)"; }
got() { ok "$1" $OUNCE pull "$2/m" -q >"$T/path" 2>"$T/err"; cat "$T/err" >&2; whole "$1" "$2"; }

# The slow ones first, beside the others.
for m in lies down stall; do $OUNCE pull $m/m >"$T/$m.out" 2>"$T/$m.err"; echo $? >"$T/$m.rc"; done & slow=$!

fails 'a name that is not there' 1 'nor a repository in' $OUNCE inspect plain/m
ok 'and how to get it' grep -qF '`ounce pull plain/m` downloads it' "$T/err"
fails 'offline, and not there' 1 'not in the cache' $OUNCE pull plain/m --offline
same 'pull prints the folder' "$(snap plain)" "$($OUNCE pull plain/m -q)"
fails 'no room to print it' 1 "stdout: No space left on device; $(snap plain) is whole all the same" bash -c "exec $OUNCE pull plain/m -q >/dev/full"
same 'its files' 'config.json empty.json model.safetensors weights.safetensors' "$(ls "$(snap plain)" | xargs)"
same 'each a link to its content' ../../blobs/$(printf 'blob %d\0' "$(stat -c %s $src/config.json)" | cat - $src/config.json | sha1sum | cut -d' ' -f1) "$(readlink "$(snap plain)/config.json")"
ok 'as it was' cmp $src/config.json "$(snap plain)/config.json"
same 'large files by their sha256' "../../blobs/$want" "$(readlink "$(snap plain)/weights.safetensors")"
same 'the branch' $commit "$(cat "$(repo plain)/refs/main")"
same 'the token went along' 0 "$(grep -c -v 'Bearer_secret$' "$T/log")"
rm "$(snap plain)/weights.safetensors"
n=$(grep -c 'plain/m/resolve' "$T/log")
same 'again: nothing is fetched' 'false 4' "$($OUNCE pull plain/m --json -q | jq -r '"\(any(.files[]; .fetched)) \(.files | length)"')"
same 'no request but the list' "$n" "$(grep -c 'plain/m/resolve' "$T/log")"
whole 'the link is back' plain
same 'offline' "$(snap plain)" "$(HF_HUB_OFFLINE=1 $OUNCE pull plain/m)"
same 'a commit' "$(snap plain)" "$($OUNCE pull plain/m@$commit -q --offline)"
ok 'a tag' $OUNCE pull plain/m@v1 -q >"$T/path"
ok 'a pull request' $OUNCE pull plain/m@refs/pr/1 -q >"$T/path"
same 'has its name' $commit "$(cat "$(repo plain)/refs/refs/pr/1")"
fails 'no such revision' 1 'plain/m: has no branch, tag or commit v2' $OUNCE pull plain/m@v2
fails 'nowhere for a cache' 1 'x/m: where the hub'"'"'s cache lies is not known: HF_HOME or HOME must be set' env -u HF_HOME -u HOME -u XDG_CACHE_HOME $OUNCE pull x/m
fails 'nor to look in' 1 'x/m: No such file or directory, and where' env -u HF_HOME -u HOME -u XDG_CACHE_HOME $OUNCE inspect x/m
ok 'a folder needs none' env -u HF_HOME -u HOME -u XDG_CACHE_HOME $OUNCE inspect $src -q
ok 'nothing was made here' test ! -e .cache
fails 'no such name' 1 'expected a repository' $OUNCE pull ../m
ok 'patterns' $OUNCE pull plain/m --include 'sub/*' -q >"$T/path"
same 'a file in folders' '{}' "$(cat "$(snap plain)/sub/deep/a b%.json")"

# Every command takes the name; a folder of that name wins.
rm -f "$(snap plain)/weights.safetensors" "$(snap plain)/empty.json"
same 'inspect: the name' plain/m "$($OUNCE inspect plain/m --json -q | jq -r .model)"
same 'inspect: a revision' llama "$($OUNCE inspect plain/m@v1 --json -q | jq -r .model_type)"
echo 1 2 3 >"$T/ids"
ok 'logits' $OUNCE logits plain/m --ids "$T/ids" -o "$T/a.st" -q
$OUNCE logits $src --ids "$T/ids" -o "$T/b.st" -q
ok 'the same model' cmp "$T/a.st" "$T/b.st"
fails '--force spares the snapshot' 1 'would delete the model that is read' $OUNCE convert plain/m -o "$(snap plain)" --to f32 --force
fails 'a revision that was not pulled' 1 '`ounce pull plain/m@v2` downloads it' $OUNCE inspect plain/m@v2
rm "$(snap plain)/model.safetensors"
fails 'a snapshot of some files' 1 '`ounce pull plain/m` completes it: ' $OUNCE inspect plain/m
ok 'and so it is' $OUNCE pull plain/m --include 'model*' -q >"$T/path"
fails 'tokenizer files' 1 'no tokenizer.json' $OUNCE tokenize plain/m
mkdir -p "$T/here/plain/m"
fails 'a folder of that name wins' 1 'plain/m/config.json: No such file' bash -c "cd $T/here && $PWD/${OUNCE#$PWD/} inspect plain/m"
ok 'one GGUF' $OUNCE pull ggufs/m --include '*Q4*' -q >"$T/path"
fails 'it is the model' 1 'a-Q4_0.gguf' $OUNCE inspect ggufs/m

# Servers that misbehave.
got 'redirect to another host' away
same 'which got no token' 0 "$(grep "^$other " "$T/log" | grep -c -v ' -$')"
ok 'and was asked' grep -q "^$other .*weights" "$T/log"
got 'redirect within the host' relative
got 'no Range' norange
got 'breaks off' break
ok 'was resumed' grep -q 'break/m/.*weights.* bytes=3000000- ' "$T/log"
got 'no length' nolength
got 'busy' busy
fails 'wrong hash' 1 'weights.safetensors: expected sha256 abab' $OUNCE pull wronghash/m
ok 'nothing of it stays' test -z "$(find "$(repo wronghash)" -name 'abab*')"
ok 'and the branch is not named' test ! -e "$(repo wronghash)/refs/main"
fails 'wrong git hash' 1 "config.json: expected git's hash abab" $OUNCE pull wronggit/m
fails 'more than it said' 1 'weights.safetensors: expected 5999000 bytes, the server sends more' $OUNCE pull toolong/m
fails 'a range that was not asked for' 1 'weights.safetensors: the server was asked for bytes from 3000000 and answers with Content-Range: bytes 3000005' $OUNCE pull wrongrange/m
fails 'more than fits' 1 'huge/m: 1000000000.00 GB are to be downloaded, and ' $OUNCE pull huge/m
fails 'no hashes' 1 'expected a hash of 40 digits, found none' $OUNCE pull nohash/m
fails 'no JSON' 1 'html/m/revision/main?blobs=true: line 1' $OUNCE pull html/m
fails 'a commit that is a path' 1 'sha: expected a commit of 40 digits' $OUNCE pull nosha/m
fails 'a list without end' 1 'endless/m/revision/main?blobs=true: the list of files is larger than 67108864 bytes' $OUNCE pull endless/m
fails 'names that lead out' 1 'expected a path inside the repository, found "../../../evil.json"' $OUNCE pull traversal/m --include '*'
ok 'nothing there' test -z "$(find "$T" -name 'evil*')"
fails 'redirects in a circle' 1 'more than 5 redirects' $OUNCE pull loop/m
fails 'redirect to http elsewhere' 1 'http://192.0.2.1/x: expected https' $OUNCE pull plainhttp/m
fails 'redirect to a file' 1 'expected an https URL with a host' $OUNCE pull local/m
fails 'redirect with a password' 1 "without a user's name" $OUNCE pull user/m
fails 'come back tomorrow' 1 'asks to come back in 4000 s' $OUNCE pull later/m
fails 'gated' 1 "gated/m: is gated: ask for access at http://127.0.0.1:$port/gated/m, and set HF_TOKEN" $OUNCE pull gated/m
mkdir -p "$HF_HOME" && printf 'good\n' >"$HF_HOME/token"
ok 'the token of HF_HOME' env -u HF_TOKEN $OUNCE pull gated/m -q >"$T/path"
fails 'private or not there' 1 'does not have this repository, or it is private (the token that was found' $OUNCE pull hidden/m
fails 'no token' 1 'no token was found' env -u HF_TOKEN HF_TOKEN_PATH=/none $OUNCE pull hidden/m
fails 'a token that is no header' 1 'HF_TOKEN: expected printable ASCII' env HF_TOKEN="a
X: y" $OUNCE pull plain/m
fails 'https everywhere else' 1 'HF_ENDPOINT: http://hub.example: expected https' env HF_ENDPOINT=http://hub.example $OUNCE pull plain/m
fails '127.0.0.1 as a prefix is elsewhere' 1 'expected https' env HF_ENDPOINT=http://127.0.0.1.example $OUNCE pull plain/m
fails 'other weights' 1 'bins/m: has its weights in pytorch_model.bin' $OUNCE pull bins/m
fails 'nothing to download' 1 'bare/m: holds no file that is downloaded unless --include names it' $OUNCE pull bare/m
ok 'and the branch is not named' test ! -e "$(repo bare)/refs/main"
for t in soon 0 1e3 99999999999999999999; do fails "a timeout of $t" 1 "HF_HUB_DOWNLOAD_TIMEOUT: expected seconds, 1..86400, found $t" env HF_HUB_DOWNLOAD_TIMEOUT=$t $OUNCE pull plain/m; done
fails 'a cache that cannot be made' 1 "error: /sys/none: $(LC_ALL=C mkdir /sys/none 2>&1 | sed 's/.*: //')" env HF_HOME=/sys/none/hf $OUNCE pull plain/m
fails 'which GGUF?' 1 'holds 2 .gguf files; choose with --include: a-Q4_0.gguf, a-Q8_0.gguf' $OUNCE pull ggufs/m
fails 'a full disk' 1 '.incomplete: File too large' bash -c "trap '' XFSZ; ulimit -f 2000; $OUNCE pull plain2/m"
ok 'its part stays' test -s "$(repo plain2)/blobs/$want.incomplete"
got 'and is taken up' plain2
ok 'from where it ended' grep -q 'plain2/m/.*weights.* bytes=[1-9]' "$T/log"

# Killed half-way, then again; a part that is damaged; a part that is too long; interrupted.
$OUNCE pull slow/m -q >"$T/path" & pid=$!
part=$(repo slow)/blobs/$want.incomplete
for i in $(seq 100); do [ "$(stat -c %s "$part" 2>/dev/null || echo 0)" -gt 1500000 ] && break; sleep 0.1; done
kill -9 $pid; wait $pid 2>"$T/err"
ok 'killed: a part is there' test -s "$part"
ok 'killed: no name' test ! -e "$(repo slow)/refs/main"
got 'killed, then again' slow
ok 'it was resumed' grep -q 'slow/m/.*weights.* bytes=[1-9]' "$T/log"
mkdir -p "$(repo damaged)/blobs" "$(repo longer)/blobs"
head -c 1000 /dev/zero >"$(repo damaged)/blobs/$want.incomplete"
got 'a damaged part' damaged
head -c 7000000 /dev/zero >"$(repo longer)/blobs/$want.incomplete"
got 'a part that is too long' longer
mkdir -p "$(repo unsatisfied)/blobs"
head -c 5000 /dev/zero >"$(repo unsatisfied)/blobs/$want.incomplete"
got 'a server that does not go on there (416)' unsatisfied
same 'it was asked twice' 2 "$(grep -c 'unsatisfied/m/.*weights' "$T/log")"
rm "$(repo unsatisfied)/blobs/$want" "$(snap unsatisfied)/weights.safetensors"
python3 -c 'import hashlib, sys; sys.stdout.buffer.write(hashlib.shake_256(b"weights").digest(6_000_000))' >"$(repo unsatisfied)/blobs/$want.incomplete"
got 'a part that is whole' unsatisfied
same 'it was not asked for again' 2 "$(grep -c 'unsatisfied/m/.*weights' "$T/log")"
$OUNCE pull slowly/m >"$T/path" 2>"$T/int" & pid=$!
for i in $(seq 100); do [ -s "$(repo slowly)/blobs/$want.incomplete" ] && break; sleep 0.1; done
kill -INT $pid; wait $pid
same 'interrupted: status' 1 $?
ok 'interrupted: what to do' grep -qF '`ounce pull slowly/m` goes on from here: interrupted' "$T/int"

# Two at once: one downloads, the other waits and takes it.
n=$(grep -c 'slowly/m/.*weights' "$T/log")
$OUNCE pull slowly/m >"$T/p1" 2>"$T/e1" & one=$!
$OUNCE pull slowly/m >"$T/p2" 2>"$T/e2" & two=$!
wait $one; a=$?; wait $two; b=$?
same 'two at once' '0 0' "$a $b"
whole 'two at once' slowly
same 'it came once' $((n + 1)) "$(grep -c 'slowly/m/.*weights' "$T/log")"
ok 'and the other waited' grep -q 'another process downloads it' "$T/e1" "$T/e2"

wait $slow
same 'a length that lies' 1 "$(cat "$T/lies.rc")"
ok 'says so' grep -q 'transfer closed with 1000 bytes remaining' "$T/lies.err"
same 'down' 1 "$(cat "$T/down.rc")"
ok 'says so' grep -q 'answers with status 503' "$T/down.err"
same 'a server that falls silent' 0 "$(cat "$T/stall.rc")"
whole 'a server that falls silent' stall
