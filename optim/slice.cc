#include "optim/slice.h"

namespace lins {
namespace {

template <typename P>
P Advance(P p, int64_t bytes) {
  if (!p) return p;
  if constexpr (std::is_same_v<P, void*>) return static_cast<char*>(p) + bytes;
  if constexpr (std::is_same_v<P, const void*>) return static_cast<const char*>(p) + bytes;
}

}  // namespace

Slice Part(const Slice& slice, int64_t from, int64_t n) {
  const auto size = [](c10::ScalarType t) { return static_cast<int64_t>(c10::elementSize(t)); };
  Slice s = slice;
  s.numel = n;
  s.param = Advance(s.param, from * size(s.type));
  s.grad = Advance(s.grad, from * size(s.grad_type));
  s.copy = Advance(s.copy, from * size(s.copy_type));
  for (void*& state : s.state) state = Advance(state, from * size(s.type));
  s.rounding.index += from;
  return s;
}

}  // namespace lins
