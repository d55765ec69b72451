#!/usr/bin/env bash
# gpu_bundle.sh: puts into gpu-bundle/ what building and running lins needs besides torch, nvcc, cmake and ninja:
# headers and libraries of the Debian packages, and Python packages without compiled code. With that folder
# beside the sources, `make gpu-check` works on a machine without network. Run it where `make setup` has run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bundle=gpu-bundle
rm -rf "$bundle"
mkdir -p "$bundle/python"

# Abseil's shared libraries are a package of their own, named by its release.
absl=$(dpkg-query -W -f='${Depends}' libabsl-dev | grep -oE 'libabsl[0-9]+[a-z0-9]*')
for package in libabsl-dev "$absl" nlohmann-json3-dev libgtest-dev libgloo-dev; do
  dpkg -L "$package" | grep -E '^/usr/(include|lib|share/cmake|share/pkgconfig)' |
    while read -r file; do
      if [[ -f $file && $file != *libgloo* ]]; then cp --parents -P "$file" "$bundle"; fi
    done
done
# For torch, which pip does not have to bring: the package's own needs.
.venv/bin/python -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: --dest "$bundle/wheels" \
  rich==15.0.0 click==8.5.1 markdown-it-py mdurl pygments pybind11==3.0.4
for wheel in "$bundle"/wheels/*.whl; do
  .venv/bin/python -m zipfile -e "$wheel" "$bundle/python"
done
rm -rf "$bundle/wheels"
du -sh "$bundle"
