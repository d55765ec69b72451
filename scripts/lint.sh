#!/usr/bin/env bash
# lint.sh check | fix: ruff over Python, clang-format over the tracked C++ files.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
ruff=.venv/bin/ruff
# Tracked files that are there: a file may be deleted and not committed yet.
cpp_files() { git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' | while IFS= read -rd '' f; do [[ ! -f $f ]] || printf '%s\0' "$f"; done; }

case ${1:-} in
  check)
    status=0
    "$ruff" check . || status=1
    "$ruff" format --check . || status=1
    cpp_files | xargs -0r clang-format --dry-run -Werror || status=1
    ((status == 0)) || echo "lint: failed; 'make format' mends what is only layout" >&2
    exit "$status"
    ;;
  fix)
    "$ruff" check --fix-only --quiet .
    "$ruff" format .
    cpp_files | xargs -0r clang-format -i
    ;;
  *)
    echo "usage: lint.sh check | fix" >&2
    exit 2
    ;;
esac
