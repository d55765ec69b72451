#!/usr/bin/env bash
# Builds the C++ benchmarks and runs them one after another; results also go to bench-results/*.json.
# Arguments go to every benchmark, for example --benchmark_filter=gather.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/build.sh build-bench benchmarks/all -DLINS_TESTS=OFF -DLINS_BENCHMARKS=ON
mkdir -p bench-results
ran=0
for program in build-bench/benchmarks/*; do
  [[ -f $program && -x $program ]] || continue
  name=$(basename "$program")
  echo "== $name"
  "$program" --benchmark_out="bench-results/$name.json" --benchmark_out_format=json "$@"
  ran=$((ran + 1))
done
echo "bench: $ran programs, results in bench-results/"
