// Neighbouring elements of a flat shard, as the kernels see them: addresses, no tensors, so that a
// call costs the same whether a shard holds one parameter or five hundred.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

#include "mesh/error.h"

namespace lins {

// How values are rounded to the lower-precision copy. Stochastic rounding goes to one of the two
// neighbours with probabilities that keep the mean (Gupta et al., 2015). The choice depends on
// `key` and the element's index in the flat buffer only, so replicas agree, in any layout.
struct Rounding {
  bool stochastic = false;
  uint32_t key = 0;
  int64_t index = 0;  // of the first element
};

struct Slice {
  int64_t numel = 0;
  bool on_device = false;  // whose memory the addresses are: CUDA's, or the host's
  // Of param and the states: Float or Double.
  c10::ScalarType type = c10::ScalarType::Float;
  void* param = nullptr;
  // Float, Double, BFloat16 or Half. Widened, and multiplied by grad_scale, block by block.
  const void* grad = nullptr;
  c10::ScalarType grad_type = c10::ScalarType::Float;
  double grad_scale = 1;
  std::array<void*, 3> state{};  // what the rule says
  // A copy of param in another type (Float, BFloat16 or Half), written in the same pass; null:
  // none.
  void* copy = nullptr;
  c10::ScalarType copy_type = c10::ScalarType::BFloat16;
  Rounding rounding;
};

// fn(T{}) with the type of a slice's parameters.
template <typename Fn>
void ForType(const Slice& slice, Fn fn) {
  if (slice.type == c10::ScalarType::Double) return fn(double{});
  LINS_CHECK(slice.type == c10::ScalarType::Float, c10::toString(slice.type));
  fn(float{});
}

// A slice whose gradient points uphill, to maximize.
inline Slice Uphill(Slice slice, bool maximize) {
  if (maximize) slice.grad_scale = -slice.grad_scale;
  return slice;
}

}  // namespace lins
