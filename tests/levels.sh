#!/bin/sh
# The rules of ARCHITECTURE.md that a script can check. Prints each offender as FILE:LINE: what; exit 1 if there is any.
cd "$(dirname "$0")/.." || exit 1
bad=$(mktemp) && trap 'rm -f "$bad"' EXIT

# Exemptions: generated tables (any length), and functions that are one table or one format walker (function:limit).
long_files='src/text/unicode_table.c'
long_functions=''

sources=$(find src $([ -d include ] && echo include) -name '*.[ch]' -o -name '*.cu' | sort)

# 1. Includes go to a lower level, or stay in the room. kernel/x86 and kernel/cuda are seen by kernel/ alone.
awk -v levels='base 0 number 1 checkpoint 2 kernel 2 comm 2 text 3 scheme 3 model 4 quantize 5 engine 5 measure 6 serve 6 cli 7' '
    BEGIN { n = split(levels, l, " "); for (i = 1; i < n; i += 2) level[l[i]] = l[i + 1] }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        split(FILENAME, from, "/"); split($0, q, "\""); split(q[2], to, "/"); where = FILENAME ":" FNR ": "
        if (from[1] == "src" && !(from[2] in level)) print where "a file outside the rooms"
        else if (!(to[1] in level)) { if (q[2] != "ounce.h") print where "\"" q[2] "\" is not ROOM/FILE" }
        else if (from[2] != to[1] && level[to[1]] >= level[from[2]]) print where from[2] " (level " level[from[2]] ") includes " to[1] " (level " level[to[1]] ")"
        else if (from[2] != "kernel" && q[2] ~ /^kernel\/./ && q[2] !~ /^kernel\/(kernel|step|calib)\.h$/) print where q[2] " is behind kernel/kernel.h, step.h and calib.h"
    }' $sources >>"$bad"

# 2. to 4. Instruction sets, backends and the end of the process are the business of few rooms.
outside() { # PATTERN FOLDERS-REGEX MESSAGE
    grep -nE "$1" $sources | grep -vE "^($2)" | sed "s|\$|   <- $3|" >>"$bad"
}
outside '(imm|x86|arm_)[a-z]*intrin\.h|arm_neon\.h|\b_mm[0-9]*_|\b__m(128|256|512)|__builtin_ia32|\b_tile_' 'src/kernel/x86/' 'an intrinsic outside kernel/x86'
outside '\bcuda[A-Z_]|\bcu[A-Z][A-Za-z]+\(|\bnccl[A-Z]' 'src/kernel/cuda/|src/comm/' 'CUDA outside kernel/cuda and comm'
outside '^[ \t]*#[ \t]*(el)?if.*(__(AVX|SSE|AMX|FMA|F16C|x86_64|i386|aarch64|ARM|NVCC|CUDA)|OZ_(CUDA|AVX|AMX|NCCL|MPI))' 'src/kernel/|src/comm/' 'a choice of backend outside kernel'
outside '(^|[^a-z_])(_?exit|abort)\(' 'src/cli/|src/base/mem\.c' 'exit or abort below cli'

# 5. Sizes: files, headers, functions.
for f in $sources; do
    case " $long_files " in *" $f "*) continue ;; esac
    case $f in include/*) max=250 ;; *internal.h) max=1000 ;; *.h) max=150 ;; *) max=1000 ;; esac
    n=$(wc -l <"$f")
    [ "$n" -le $max ] || echo "$f:$n: longer than $max lines" >>"$bad"
done
awk -v exempt="$long_functions" '
    BEGIN { n = split(exempt, e, " "); for (i = 1; i <= n; i++) { split(e[i], p, ":"); limit[p[1]] = p[2] } }
    FNR == 1 { inside = 0; head = "" }
    inside { if (/^}/) { inside = 0; head = ""; max = name in limit ? limit[name] : FILENAME ~ /\.cu$/ ? 300 : 120
             if (FNR - start + 1 > max) print FILENAME ":" start ": " name " is " FNR - start + 1 " lines long (limit " max ")" } next }
    /^[#\/ ]|^$/ && head == "" { next }
    { head = head " " $0 }
    /\{[^}]*$/ { if (head ~ /\(/ && head !~ /=/) { inside = 1; start = FNR; name = head; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) } }
    /[;}][^{]*$|^$/ { head = "" }' $(echo "$sources" | grep '\.c') >>"$bad"

cat "$bad"
[ ! -s "$bad" ]
