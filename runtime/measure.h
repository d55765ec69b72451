// Measuring a live cluster: collectives for a profile, and the speed of compute beside them.
//
//   LiveMesh mesh = LiveMesh::Create(world, {nodes, gpus}, {"node", "gpu"});
//   Measurement m = MeasureCollective(mesh, StepKind::kAllGather, 8, 2, 1 << 20);
//   m.point.median                              // seconds
//
// Everything here is collective over the mesh's world, with equal arguments on every rank. What
// decides (are the samples enough, is the time up) is agreed on first, so that all ranks repeat
// equally often. A rank that cannot take part (memory, say) makes every rank throw, with its
// reason. A collective that fails throws on every rank of its group, at the latest when the world's
// time-out has passed, and so on all others.
#pragma once

#include <cstdint>

#include "c10/core/ScalarType.h"
#include "dtensor/live_mesh.h"
#include "lins_policy/profile.h"

namespace lins {

struct MeasureOptions {
  double budget_seconds = 1;  // of one point, warm-up included; at least one sample is taken
  int64_t min_samples = 8, max_samples = 500;
  // The samples are enough when the interval that holds the true median with 95 % confidence is not
  // wider than this to either side, relative to the median.
  double tolerance = 0.03;
  c10::ScalarType dtype = c10::kFloat;
};

struct Measurement {
  ProfilePoint point;
  bool stable = false;  // ended by the tolerance, not by the budget or the number of samples
  double elapsed = 0;   // seconds that it took, agreed among ranks
};

// One operation on groups of `gpus` neighbours of a node and `nodes` neighbouring nodes, all
// sibling groups at once. A sample is the time of the slowest rank; short operations are repeated
// within a sample, each waited for before the next. The mesh's last axis are the GPUs of a node.
// `bytes` as in profile.h; elements are rounded up to a multiple of the group.
Measurement MeasureCollective(const LiveMesh& mesh, StepKind op, int64_t gpus, int64_t nodes,
                              int64_t bytes, const MeasureOptions& options = {});

// Matrix products on all ranks at once, alone and during all-gathers over the whole mesh: sets
// flops_per_second (of the slowest rank) and overlap_slowdown (at least 1; 1 on a single rank).
ComputeProfile MeasureCompute(const LiveMesh& mesh, const MeasureOptions& options = {});

// Half the width of the 95 % confidence interval of the median, relative to it, by order
// statistics. Infinity for fewer than 6 samples, of which there is none.
double MedianUncertainty(std::vector<double> samples);

}  // namespace lins
