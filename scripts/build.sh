#!/usr/bin/env bash
# build.sh DIR TARGET [-DNAME=VALUE ...]: configures DIR when the options, the checkout's place or the
# virtual environment changed since, then builds TARGET ("all", "tests/all", "comm_test runtime_test", ...). JOBS=N sets the number
# of compilers at once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
dir=$1 target=$2 venv=${LINS_VENV:-.venv}
shift 2
stamp=$dir/.lins-configured
options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DPython_EXECUTABLE=$root/$venv/bin/python" "$@")
key=$(printf '%s\n' "${options[@]}" "$(<"$venv/.lins-setup")")

if [[ ! -f $dir/build.ninja || ! -f $stamp || $(<"$stamp") != "$key" ]]; then
  rm -f "$stamp" "$dir/CMakeCache.txt"
  cmake -S . -B "$dir" -G Ninja "${options[@]}"
  printf '%s\n' "$key" >"$stamp"
fi
cmake --build "$dir" --target $target --parallel "${JOBS:-$(nproc)}"
