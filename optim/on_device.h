// Slices and types as the kernels of a device take them.
#pragma once

#include "kernels/device.h"
#include "mesh/error.h"
#include "optim/slice.h"

namespace lins {

inline device::Element ElementOf(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return device::Element::kFloat;
    case c10::ScalarType::Double:
      return device::Element::kDouble;
    case c10::ScalarType::BFloat16:
      return device::Element::kBFloat16;
    case c10::ScalarType::Half:
      return device::Element::kHalf;
    default:
      LINS_CHECK(false, "no kernels for ", c10::toString(type));
  }
}

inline device::Slice OnDevice(const Slice& s) {
  device::Slice out;
  out.numel = s.numel;
  out.type = ElementOf(s.type);
  out.param = s.param;
  out.grad = s.grad;
  out.grad_type = ElementOf(s.grad_type);
  out.grad_scale = s.grad_scale;
  for (int i = 0; i < 3; ++i) out.state[i] = s.state[i];
  out.copy = s.copy;
  out.copy_type = ElementOf(s.copy_type);
  out.stochastic = s.rounding.stochastic;
  out.key = s.rounding.key;
  out.index = s.rounding.index;
  return out;
}

}  // namespace lins
