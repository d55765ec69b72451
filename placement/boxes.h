// Counting elements of boxes by their row-major index.
#pragma once

#include "placement/layout.h"

namespace lins {

// Elements of the box whose row-major index in a tensor of `shape` is below x.
int64_t CountBelow(const Shape& shape, const Ranges& box, int64_t x);

}  // namespace lins
