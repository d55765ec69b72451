// What maxima and minima share. Not for users.
#pragma once

#include <ATen/core/Tensor.h>

namespace lins {

// What changes no maximum (or minimum): the contribution of an empty shard.
c10::Scalar Identity(at::ScalarType dtype, bool max);

}  // namespace lins
