// Runs a redistribution plan on this rank's local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "dtensor/live_mesh.h"
#include "placement/redistribution.h"

namespace lins {

struct ExecuteOptions {
  Role role = Role::kOther;
  std::string unit;
  // Where the result goes: contiguous, of the destination's local shape. It may share memory with
  // the input where the elements are the same ones (a shard that is gathered into, or reduced
  // within, its own buffer).
  std::optional<at::Tensor> out;
};

// `local` is contiguous and has the source's local shape. Returns a contiguous tensor of the
// destination's local shape; it is `local` itself when the plan is empty and no `out` is given.
// Collective over the groups of the plan's steps. Blocks until the result is there.
at::Tensor Execute(const RedistributionPlan& plan, const at::Tensor& local, const LiveMesh& mesh,
                   const ExecuteOptions& options = {});

}  // namespace lins
