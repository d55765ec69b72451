// Random meshes, tensors and layouts.
#pragma once

#include <cstdint>

#include "tests/proofs/case_runner.h"

namespace lins::testing {

// A redistribution that values allow, on a mesh of `ranks` ranks (1 to 12) and 1 to 4 axes, of a
// tensor of up to 4 dimensions: a function of the two numbers alone. Axes may be cut into parts, F
// may be a window of a larger buffer, and all reductions occur.
Case RandomCase(int64_t ranks, uint64_t seed);

}  // namespace lins::testing
