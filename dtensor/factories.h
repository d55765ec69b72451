// New distributed tensors, whose values do not depend on their layout.
//
//   DTensor w = RandN(*Layout::Parse("S0(gpu)", {1024, 64}, mesh), mesh, /*seed=*/7);
//
// Each rank makes its own part: nothing is communicated. `dtype` defaults to torch's default dtype.
// Under a pending sum one rank holds the value; under avg, min and max all do; other pending
// operations are an Error.
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <optional>

#include "dtensor/dtensor.h"

namespace lins {

using OptionalType = std::optional<at::ScalarType>;

// Without a dtype: that of the value, as torch's full (integer, bool, default float or complex).
DTensor Full(const Layout& layout, const LiveMesh& mesh, const c10::Scalar& value,
             OptionalType dtype = {});
DTensor Empty(const Layout& layout, const LiveMesh& mesh,
              OptionalType dtype = {});  // whatever memory holds
DTensor Zeros(const Layout& layout, const LiveMesh& mesh, OptionalType dtype = {});
DTensor Ones(const Layout& layout, const LiveMesh& mesh, OptionalType dtype = {});
// Uniform in [0, 1), and normal with mean 0 and deviation 1: see random.h. The same seed gives the
// same numbers.
DTensor Rand(const Layout& layout, const LiveMesh& mesh, uint64_t seed, OptionalType dtype = {});
DTensor RandN(const Layout& layout, const LiveMesh& mesh, uint64_t seed, OptionalType dtype = {});

}  // namespace lins
