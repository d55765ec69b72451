// Norms of gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace lins {

// Sum of |x|^p in fp64 (p = 1 or 2), or the largest |x| (p = infinity), 0 over no elements. The
// result is not finite when any element is not. The order of the sum depends on n only. `type`:
// Float, Double, BFloat16 or Half.
double PowerSum(const void* x, c10::ScalarType type, int64_t n, double p);

// Of a contiguous tensor, on any device.
double PowerSum(const at::Tensor& x, double p);

}  // namespace lins
