// torch's element types as the kernels of a device know them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "kernels/device.h"

namespace lins {

// None where the kernels do not have the type.
inline std::optional<device::Element> ElementOf(c10::ScalarType type) {
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
      return std::nullopt;
  }
}

}  // namespace lins
