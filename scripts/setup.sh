#!/usr/bin/env bash
# Installs what building and testing need: Debian packages that are missing, and a virtual environment
# in .venv. Does nothing, and uses no network, when all is there.
#
#   setup.sh cuda  another environment, .venv-cuda, with a CUDA build of torch, and nvcc if there is none
#
#   PYTHON         interpreter the environment is made from (default: python3)
#   LINS_TORCH     what pip installs as torch (default: torch==2.13.0; LINS_CUDA_TORCH for .venv-cuda)
#   LINS_PIP_ARGS  more arguments to pip for torch, such as --index-url of PyTorch's CPU wheels
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
kind=${1:-cpu}
case $kind in
  cpu) name=.venv torch=${LINS_TORCH:-torch==2.13.0} ;;
  cuda) name=.venv-cuda torch=${LINS_CUDA_TORCH:-torch==2.14.1} ;;
  *)
    echo "usage: setup.sh [cuda]" >&2
    exit 2
    ;;
esac
read -ra pip_args <<<"${LINS_PIP_ARGS:-}"

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# One set-up at a time in one checkout.
exec 9<"$root"
flock 9

[[ $python == python3 ]] || command -v "$python" >/dev/null || die "PYTHON=$python is not in PATH"

# --- Debian packages ---------------------------------------------------------------------------

# Prints the packages to install. A tool that is in PATH counts, wherever it came from.
missing_packages() {
  local pair
  for pair in g++:g++ cmake:cmake ninja:ninja-build ccache:ccache git:git make:make \
    clang-format:clang-format; do
    command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
  done
  if ! command -v "$python" >/dev/null; then
    printf '%s\n' python3 python3-venv python3-dev
  else
    "$python" - <<'PY'
import importlib.util, os, sysconfig
if not (importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")):
    print("python3-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("python3-dev")
PY
  fi
  command -v dpkg >/dev/null || return 0
  for pair in libabsl-dev libgtest-dev libbenchmark-dev nlohmann-json3-dev libgloo-dev; do
    dpkg -s "$pair" 2>/dev/null | grep -q '^Status: install ok installed$' || echo "$pair"
  done
}

install_packages() {
  command -v apt-get >/dev/null ||
    die "this is no Debian system: install what corresponds to $*, then try again"
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null ||
      die "not root, and no sudo: as root run   apt-get update && apt-get install -y $*"
    as_root=(sudo)
    [[ -t 0 ]] || as_root+=(-n)
  fi
  say "installing Debian packages: $*"
  "${as_root[@]}" apt-get update -q -o Acquire::Retries=3
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    -o Acquire::Retries=3 "$@" </dev/null
}

mapfile -t packages < <(missing_packages)
if ((${#packages[@]})); then
  install_packages "${packages[@]}"
  hash -r
  mapfile -t packages < <(missing_packages)
  ((${#packages[@]} == 0)) || die "still missing after installing packages: ${packages[*]}"
fi

# --- The virtual environment -------------------------------------------------------------------

venv=$root/$name
stamp=$venv/.lins-setup

# The interpreter behind an activated environment, and what identifies it.
base=$("$python" -c 'import sys; print(sys._base_executable)')
identity='import sys; print(sys.implementation.name, sys.version, sys.base_prefix)'
version=$("$base" -c "$identity")
"$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "lins needs Python 3.11 or newer, and $base is ${version%% (*}: set PYTHON=..."

key=$({
  printf '%s\n' "$version" "$venv" "$torch" "${pip_args[*]-}"
  cat requirements.txt requirements-dev.txt
} | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$key" ]]; then
  exit 0
fi

# An environment of another interpreter, or one that was moved, is made anew.
if [[ $("$venv/bin/python" -c "$identity" 2>/dev/null || true) != "$version" ]] ||
  ! grep -qF "$venv" "$venv/bin/activate"; then
  say "making $name with $base"
  "$base" -m venv --clear "$venv"
fi
rm -f "$stamp"

pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install --progress-bar off)
say "installing $torch into $name"
"${pip[@]}" "$torch" "${pip_args[@]}" </dev/null
say "installing requirements-dev.txt into $name"
"${pip[@]}" -r requirements-dev.txt </dev/null
if [[ $kind == cuda ]]; then
  "$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
    die "$torch is no CUDA build here: set LINS_CUDA_TORCH, and LINS_PIP_ARGS to where pip finds one"
  "${pip[@]}" nvidia-cuda-cuobjdump==13.2.86 </dev/null  # it lists the kernels of a library
  # Of the release that torch was built with.
  if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
    cuda=$("$venv/bin/python" -c 'import torch; print(torch.version.cuda)')
    say "installing nvcc $cuda into $name"
    "${pip[@]}" "nvidia-cuda-nvcc==$cuda.*" "nvidia-cuda-cccl==$cuda.*" </dev/null
  fi
fi

# The package is used in-tree: python/ is on the path, and `lins` runs it.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
package=$root/python
[[ $kind == cpu ]] || package=$root/build-cuda/python
printf '%s\n' "$package" >"$site/lins-dev.pth"
printf '#!/bin/sh\nexec "%s" -m lins "$@"\n' "$venv/bin/python" >"$venv/bin/lins"
chmod +x "$venv/bin/lins"

printf '%s\n' "$key" >"$stamp"
say "done"
