#!/bin/sh
# make bench-peers: installs the peer where it is missing, fetches the model, runs peers.py with the arguments given.
set -eu
cd "$(dirname "$0")/.."
venv=build/venv-peers python=${PYTHON:-$venv/bin/python}
if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
    [ -z "${PYTHON:-}" ] || { echo "error: $PYTHON has no llama_cpp" >&2; exit 1; }
    echo "building llama-cpp-python for this machine into $venv (minutes)" >&2
    python3 -m venv "$venv"
    CMAKE_ARGS=-DGGML_NATIVE=ON "$venv/bin/pip" install --quiet --no-binary llama-cpp-python llama-cpp-python
fi
mkdir -p build/peers
exec "$python" bench/peers.py ./ounce "${MODEL:-$(scripts/fetch_smollm2.sh)}" build/peers "$@"
