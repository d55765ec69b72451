// The steps of family paper that are more than one collective (unit_plan.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dtensor/live_mesh.h"
#include "placement/redistribution.h"

namespace lins {

// The all-reduce that `plan` begins with, if any: of `tensor` in place, at most `bucket_bytes` at
// once. Collective over the step's group, role reduce.
void AllReduceInBuckets(const RedistributionPlan& plan, int64_t bucket_bytes,
                        const at::Tensor& tensor, const LiveMesh& mesh, const std::string& unit);

// `tensor` is cut into a slot for each rank of the group of the plan's broadcasts: each sends its
// own to the others. Collective over the group, role update; all broadcasts are under way at once,
// begun as one group where the transport can.
void BroadcastSlots(const RedistributionPlan& plan, const at::Tensor& tensor, const LiveMesh& mesh,
                    const std::string& unit);

}  // namespace lins
