#!/usr/bin/env bash
# sanitize.sh [asan | tsan]: the C++ tests under sanitizers; both by default.
# asan: AddressSanitizer and UndefinedBehaviorSanitizer, all folders. tsan: ThreadSanitizer, the folders
# that start threads. libtorch itself is not instrumented: scripts/sanitize/*.supp holds what it needs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
supp=$root/scripts/sanitize
jobs=${JOBS:-$(nproc)}

asan() {
  scripts/build.sh build-asan tests/all -DLINS_SANITIZE=address,undefined
  ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1:${ASAN_OPTIONS:-}" \
    LSAN_OPTIONS="suppressions=$supp/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}" \
    UBSAN_OPTIONS="suppressions=$supp/ubsan.supp:print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}" \
    ctest --test-dir build-asan -j"$jobs" --output-on-failure --timeout 1200 -E '^examples'
}

tsan() {
  scripts/build.sh build-tsan tests/all -DLINS_SANITIZE=thread
  # Its shadow memory needs the classic address space layout.
  local run=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    run=(setarch "$(uname -m)" -R)
  fi
  TSAN_OPTIONS="suppressions=$supp/tsan.supp:second_deadlock_stack=1:halt_on_error=0:allocator_may_return_null=1:${TSAN_OPTIONS:-}" \
    "${run[@]}" ctest --test-dir build-tsan -j"$jobs" --output-on-failure --timeout 1200 \
    -R '^(comm|runtime|lins_policy)$'
}

case ${1:-all} in
  asan) asan ;;
  tsan) tsan ;;
  all)
    asan
    tsan
    ;;
  *)
    echo "usage: sanitize.sh [asan | tsan]" >&2
    exit 2
    ;;
esac
