// The one pass over a slice that all elementwise rules share: blocks that stay in the first-level
// cache, spread over as many threads as torch uses. Results do not depend on their number.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "optim/convert.h"
#include "optim/slice.h"

namespace lins {

constexpr int64_t kBlock = 128;                // 256 takes 1.08 times as long, 1024 1.4 times
constexpr int64_t kElementsPerTask = 1 << 14;  // at least, per thread

// A block of a slice: the gradient is of type T, scaled.
template <typename T>
struct Block {
  int64_t at;  // where it begins in the slice
  int64_t numel;
  T* param;
  const T* grad;
  T* state[3];
};

// fn(block) for all blocks, after which param is copied to slice.copy.
template <typename T, int64_t kSize = kBlock, typename Fn>
void ForEachBlock(const Slice& slice, Fn fn) {
  const int64_t blocks = (slice.numel + kSize - 1) / kSize;
  const bool direct =
      slice.grad_type == c10::CppTypeToScalarType<T>::value && slice.grad_scale == 1;
  const auto grad_size = static_cast<int64_t>(c10::elementSize(slice.grad_type));
  const auto copy_size = static_cast<int64_t>(c10::elementSize(slice.copy_type));
  at::parallel_for(0, blocks, kElementsPerTask / kSize, [&](int64_t first, int64_t last) {
    alignas(64) T widened[kSize];
    for (int64_t b = first; b < last; ++b) {
      const int64_t at = b * kSize, n = std::min(kSize, slice.numel - at);
      const void* grad = static_cast<const char*>(slice.grad) + at * grad_size;
      if (!direct) Widen(grad, slice.grad_type, n, slice.grad_scale, widened);
      Block<T> block{at,
                     n,
                     static_cast<T*>(slice.param) + at,
                     direct ? static_cast<const T*>(grad) : widened,
                     {nullptr, nullptr, nullptr}};
      for (int i = 0; i < 3; ++i) {
        if (slice.state[i]) block.state[i] = static_cast<T*>(slice.state[i]) + at;
      }
      fn(block);
      if (slice.copy) {
        Rounding rounding = slice.rounding;
        rounding.index += at;
        Narrow(block.param, n, rounding, slice.copy_type,
               static_cast<char*>(slice.copy) + at * copy_size);
      }
    }
  });
}

}  // namespace lins
