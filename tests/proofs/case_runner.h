// Redistributions by the thousand: planned, run by the executor on ranks as threads, and compared
// with plain arrays.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "placement/layout.h"

namespace lins::testing {

struct Case {
  Layout src, dst;
  uint64_t seed = 0;  // of the values
  c10::ScalarType dtype = c10::ScalarType::Float;
};

struct Tally {
  int64_t cases = 0, steps = 0, collectives = 0;
  int64_t recv_bytes = 0;             // over all ranks
  std::vector<std::string> failures;  // the first few, each with its plan
};

// Runs make(0) to make(count - 1), which are cases on meshes of `ranks` ranks or nothing, on one
// world. make is called once for each number, by any thread. For each case:
//   - the elements that each rank ends with make the values that the source's make, exactly;
//   - the input of each rank is what it was;
//   - each rank receives, by its trace, what the plan says, and the worst one plan.recv_bytes;
//   - the tensors alive at once on each rank take no more bytes than LiveBytes says.
// Stops at the first batch with a failure.
Tally RunCases(int64_t ranks, int64_t count,
               const std::function<std::optional<Case>(int64_t)>& make);

}  // namespace lins::testing
