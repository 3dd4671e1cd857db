#!/bin/sh
# Installs the Debian packages that building and testing need, and those named as arguments, where they are missing.
# Says what it installs; as root, else with sudo.
set -e
wanted="gcc libc6-dev make pkg-config libpcre2-dev libutf8proc-dev libjansson-dev libyaml-dev libcmocka-dev libopenblas-dev libcurl4-openssl-dev jq python3 $*"

if ! command -v dpkg-query >/dev/null; then
    echo "This is no Debian or Ubuntu: install the equivalents of: $wanted" >&2
    exit 1
fi
missing=
for p in $wanted; do
    dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

echo "installing:$missing" >&2
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "error: not root, and there is no sudo: apt-get install$missing" >&2; exit 1; }
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q >&2
$sudo apt-get install -y -q --no-install-recommends $missing >&2
