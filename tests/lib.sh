# For tests/e2e/*.sh: `. tests/lib.sh`. Scripts run in the repository's root; $OUNCE is the program with sanitizers, $OUNCE_RELEASE the one
# without, $T a folder of the script's own that is removed at its end.
exec 3>&1 # what a check says: where its command's output goes elsewhere (ok NAME COMMAND >FILE), its own line does not
OUNCE=${OUNCE:-./ounce} OUNCE_RELEASE=${OUNCE_RELEASE:-./ounce}
T=$(mktemp -d) && trap 'rm -rf "$T"' EXIT

# NAME COMMAND...: ok if the command succeeds.
ok() {
    local name=$1
    shift
    if "$@"; then echo "ok $name" >&3; else echo "not ok $name" >&3; fi
}

# NAME STATUS TEXT COMMAND...: ok if the command ends with this status and stderr has this text ('': no matter what).
# Its output is in $T/out and $T/err.
fails() {
    local name=$1 want=$2 text=$3 status
    shift 3
    "$@" >"$T/out" 2>"$T/err" </dev/null
    status=$?
    if [ $status = "$want" ] && grep -qF -- "$text" "$T/err"; then
        echo "ok $name"
    else
        echo "not ok $name: expected status $want and '$text', found status $status and:"
        head -5 "$T/err" | sed 's/^/#   /'
    fi
}

# NAME WANTED FOUND
same() {
    if [ "$2" = "$3" ]; then echo "ok $1"; else printf 'not ok %s: expected\n%s\nfound\n%s\n' "$1" "$2" "$3"; fi
}

# FILE JQ BYTES: a safetensors file with another header, and so many zeros more; $last: where its data ended.
header() {
    local n head
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    head=$(tail -c +9 "$1" | head -c "$n" | jq -c "([.[] | .data_offsets? // [0, 0] | .[1]] | max) as \$last | $2")
    { printf "$(printf '\\x%02x\\x%02x\\x%02x\\x00\\x00\\x00\\x00\\x00' $((${#head} % 256)) $((${#head} / 256 % 256)) $((${#head} / 65536)))"; printf %s "$head"; tail -c +$((9 + n)) "$1"; head -c "$3" /dev/zero; } >"$1.new"
    mv "$1.new" "$1"
}

# FILE TENSOR N BYTES: bytes (\x..) from byte N of a tensor on.
poison() {
    local n begin
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    begin=$(tail -c +9 "$1" | head -c "$n" | jq -r --arg t "$2" '.[$t].data_offsets[0]')
    printf "$4" | dd of="$1" bs=1 seek=$((8 + n + begin + $3)) conv=notrunc status=none
}

# SEQUENCES LENGTH VOCABULARY SEED: lines of ids, as calibration takes them.
ids() { awk -v n="$1" -v k="$2" -v v="$3" -v s="$4" 'BEGIN { srand(s); while (n--) { l = ""; for (i = 0; i < k; i++) l = l (i ? "," : "") int(3 + rand() * (v - 3)); print "{\"ids\":[" l "]}" } }'; }

# FOLDER TENSOR: a hash of its bytes.
tensor() {
    python3 -c '
import hashlib, json, struct, sys
d = open(sys.argv[1] + "/model.safetensors", "rb").read()
n = struct.unpack("<Q", d[:8])[0]
a, b = json.loads(d[8:8 + n])[sys.argv[2]]["data_offsets"]
print(hashlib.sha256(d[8 + n + a:8 + n + b]).hexdigest())' "$1" "$2"
}
