// Slices as the kernels of a device take them.
#pragma once

#include "kernels/device.h"
#include "kernels/element.h"
#include "mesh/error.h"
#include "optim/slice.h"

namespace lins {

inline device::Element KnownElement(c10::ScalarType type) {
  const std::optional<device::Element> element = ElementOf(type);
  LINS_CHECK(element.has_value(), "no kernels for ", c10::toString(type));
  return *element;
}

inline device::Slice OnDevice(const Slice& s) {
  device::Slice out;
  out.numel = s.numel;
  out.type = KnownElement(s.type);
  out.param = s.param;
  out.grad = s.grad;
  out.grad_type = KnownElement(s.grad_type);
  out.grad_scale = s.grad_scale;
  for (int i = 0; i < 3; ++i) out.state[i] = s.state[i];
  out.copy = s.copy;
  out.copy_type = KnownElement(s.copy_type);
  out.stochastic = s.rounding.stochastic;
  out.key = s.rounding.key;
  out.index = s.rounding.index;
  return out;
}

}  // namespace lins
