// What to measure of a cluster for a profile, most useful first.
//
//   for (const MeasureTask& t : *PlanMeasurements(8, 16, {}))
//     points.push_back(MeasureCollective(mesh, t.op, t.gpus, t.nodes, t.bytes));  //
//     runtime/measure.h
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "placement/redistribution.h"

namespace lins {

struct MeasureTask {
  StepKind op;
  int64_t gpus, nodes, bytes;
};

struct MeasureGrid {
  int64_t min_bytes = 4096, max_bytes = 64 << 20;
  int64_t factor = 2;  // from one size to the next; max_bytes itself is always one
  // Besides the legal placements of a state (g x 1, all x n), the groups between two of them: fewer
  // than all GPUs of a node over several nodes.
  bool sub_meshes = true;
};

// Every operation on every mesh at every size. Sizes come from the coarse to the fine, the extremes
// first, so that whatever is done when time runs out covers the whole range.
// Errors: a cluster of one rank; bytes or a factor that make no range.
absl::StatusOr<std::vector<MeasureTask>> PlanMeasurements(int64_t gpus_per_node, int64_t nodes,
                                                          const MeasureGrid& grid);

}  // namespace lins
