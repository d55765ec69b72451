#!/usr/bin/env bash
# gpu_check.sh: builds lins against the CUDA build of torch that PYTHON has, and checks on this machine's GPU what
# a machine without one cannot: kernels against their twins on the host, bandwidth, plans, memory, a step beside
# FSDP2. Uses no network. Needs nvcc, cmake, ninja, a compiler; libraries from the system, or from gpu-bundle/
# (scripts/gpu_bundle.sh).
#
#   PYTHON   interpreter with a CUDA build of torch (default: python3, or else .venv-cuda's)
#   ARGS     passed on to benchmarks/gpu_check.py: --json FILE, --only kernels, ...
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
cuda_torch='import sys, torch; sys.exit(torch.version.cuda is None)'
if ! "$python" -c "$cuda_torch" 2>/dev/null && [[ -x .venv-cuda/bin/python ]]; then
  python=$root/.venv-cuda/bin/python
fi
python=$("$python" -c 'import sys; print(sys.executable)')
"$python" - <<'PY'
import sys
try:
    import torch
except ImportError:
    sys.exit(f"gpu-check: {sys.executable} has no torch: set PYTHON")
if not torch.version.cuda:
    sys.exit(f"gpu-check: torch {torch.__version__} of {sys.executable} is no CUDA build: set PYTHON")
if not torch.cuda.is_available():
    sys.exit("gpu-check: there is no CUDA device here. What needs none is checked by `make cuda`")
PY

export PYTHONPATH=$root/build-gpu/python:${PYTHONPATH:-}
options=(-DLINS_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DCMAKE_BUILD_TYPE=RelWithDebInfo
  "-DPython_EXECUTABLE=$python" "-DLINS_PACKAGE_DIR=$root/build-gpu/python")
if [[ -d gpu-bundle ]]; then
  options+=("-DCMAKE_PREFIX_PATH=$root/gpu-bundle/usr")
  export CPATH=$root/gpu-bundle/usr/include:${CPATH:-}
  export PYTHONPATH=$PYTHONPATH:$root/gpu-bundle/python
fi
mkdir -p build-gpu
cmake -S . -B build-gpu -G Ninja "${options[@]}" >build-gpu/configure.log ||
  { tail -20 build-gpu/configure.log >&2; exit 1; }
cmake --build build-gpu --target _planning _core kernels_test --parallel "${JOBS:-$(nproc)}" >build-gpu/build.log ||
  { tail -40 build-gpu/build.log >&2; exit 1; }
read -ra args <<<"${ARGS:-}"
exec "$python" benchmarks/gpu_check.py --kernels build-gpu/tests/kernels_test "${args[@]}"
