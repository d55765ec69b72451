#!/usr/bin/env bash
# cuda.sh: builds lins for CUDA in build-cuda, against the CUDA build of torch in .venv-cuda; checks that the
# libraries hold every kernel for every architecture; runs the tests that need no GPU. No GPU is needed.
#
#   LINS_CUDA_ARCHITECTURES="80 90 100"   what the kernels are compiled for
#   ARGS="-k shard"                       which Python tests run; default: those below
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
architectures=${LINS_CUDA_ARCHITECTURES:-80 90 100}

scripts/setup.sh cuda
# All libraries, the package, and the tests of folders that see torch's CUDA build: others cannot differ.
tests=(kernels comm optim runtime)
LINS_VENV=.venv-cuda scripts/build.sh build-cuda "python/all ${tests[*]/%/_test}" -DLINS_CUDA=ON \
  "-DCMAKE_CUDA_ARCHITECTURES=${architectures// /;}" "-DLINS_PACKAGE_DIR=$root/build-cuda/python"
.venv-cuda/bin/python scripts/check_kernels.py build-cuda $architectures

export OMP_NUM_THREADS=1
ctest --test-dir build-cuda -j"${JOBS:-2}" --output-on-failure -R "^($(IFS='|' && echo "${tests[*]}"))\$"
read -ra args <<<"${ARGS:-test_shard_plans.py test_optimizer.py test_optimizer_rules.py test_gloo.py test_dtensor.py}"
cd tests/python
PYTHONPATH=$root/build-cuda/python "$root/.venv-cuda/bin/python" -m pytest -q "${args[@]}"
