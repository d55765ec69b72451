// The local half of a reduction: contributions of several ranks combined in rank order.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "c10/core/ScalarType.h"
#include "mesh/reduce_op.h"

namespace lins {

// "" when elements of `dtype` can be reduced with `op`, else the reason why not.
std::string ReduceProblem(c10::ScalarType dtype, ReduceOp op);

// out[i] = parts[0][i] op parts[1][i] op ... for n elements, from left to right. Half and bfloat16
// accumulate in float and are rounded once; an average is the sum divided by the number of parts;
// minima and maxima propagate NaN. `out` may be one of the parts. CPU memory.
void ReduceInOrder(void* out, absl::Span<const void* const> parts, int64_t n, c10::ScalarType dtype,
                   ReduceOp op);

}  // namespace lins
