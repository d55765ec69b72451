// Values for the tests of kernels.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "optim/slice.h"

namespace lins {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline at::Tensor Values(int64_t n, at::ScalarType dtype, int64_t seed) {
  return at::sin(at::arange(n, at::kDouble) * (1.0 + 0.1 * seed) + seed).to(dtype);
}

// Bit for bit, but any NaN is like any other and zeros have no sign.
inline bool Same(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, 0, /*equal_nan=*/true);
}

// 1-D tensors of equal length as a slice.
inline Slice SliceOf(const at::Tensor& param, const at::Tensor& grad,
                     std::initializer_list<at::Tensor> states) {
  Slice s;
  s.numel = param.numel();
  s.type = param.scalar_type();
  s.param = param.mutable_data_ptr();
  s.grad = grad.const_data_ptr();
  s.grad_type = grad.scalar_type();
  int i = 0;
  for (const at::Tensor& t : states) s.state[i++] = t.mutable_data_ptr();
  return s;
}

}  // namespace lins
