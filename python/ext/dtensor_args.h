// What several bindings of DTensor share.
#pragma once

#include <c10/core/Scalar.h>

#include <complex>
#include <variant>

#include "core.h"
#include "dtensor/dtensor.h"

namespace lins {

inline Shape ShapeOf(const std::vector<int64_t>& v) { return Shape(v.begin(), v.end()); }

// What names a layout in Python: the notation, placements one per axis, or a Layout.
using LayoutArg = std::variant<std::string, Layout, std::vector<Placement>>;

inline Layout Resolve(const LayoutArg& arg, const Shape& shape, const Mesh& mesh) {
  if (const auto* text = std::get_if<std::string>(&arg))
    return ValueOrThrow(Layout::Parse(*text, shape, mesh));
  if (const auto* list = std::get_if<std::vector<Placement>>(&arg)) {
    return ValueOrThrow(Layout::FromPlacements(*list, shape, mesh));
  }
  const Layout& layout = std::get<Layout>(arg);
  if (layout.shape() != shape) {
    throw Error(
        absl::StrCat("layout ", Describe(layout), " is not one of shape ", ShapeToString(shape)));
  }
  return layout;
}

// A Python number; nothing for other objects.
std::optional<c10::Scalar> ToScalar(const py::handle& number);

// None, or a torch.dtype.
std::optional<at::ScalarType> OptionalDtype(const py::object& dtype);

}  // namespace lins
