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
// accumulate in float and are rounded once; an average is the sum divided by `divisor`, or by the
// number of parts when that is 0; minima and maxima propagate NaN. `out` may be one of the parts.
// CPU memory.
//
// `runs` are lengths that add up to the number of parts: each run of parts is reduced from left to
// right, then the results, just as when each had been made by a call of its own (as a sum, where an
// average is asked for). Half and bfloat16 are then rounded once for each run and once at the end,
// but for averages, whose sums might overflow: they are rounded once. None: a single run.
void ReduceInOrder(void* out, absl::Span<const void* const> parts, int64_t n, c10::ScalarType dtype,
                   ReduceOp op, absl::Span<const int64_t> runs = {}, int64_t divisor = 0);

}  // namespace lins
