// Redistribution planning: the cheapest sequence of steps that turns one layout of a tensor into
// another.
//
//   auto plan = *PlanRedistribution(src, dst, /*itemsize=*/4);
//   plan.steps[0].kind        // kAllGather
//   plan.ToString()           // a small table
//
// Each step is itself a transition between two layouts, so a plan is a chain of layouts from src to
// dst and an executor needs nothing but (kind, axes, before, after). The search is deterministic:
// every rank that asks the same question gets the same plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/layout.h"

namespace lins {

// In the order that decides between equals.
enum class StepKind {
  kSlice,          // keep all or part of what is held: nothing is received
  kLocal,          // no communication: begin a partial, change the notation of the same elements
  kAllGather,      // undo the last axes of a split
  kReduceScatter,  // reduce over axes and split over them at once
  kAllReduce,      // reduce over axes
  kAllToAll,       // move the last axes of a split from one dimension to another
  kPermute,        // every rank sends all it has to at most one other
  kBroadcast,      // from the owner to all
  kExchange,       // any complete layout to any other: each element comes from its nearest holder
};
absl::string_view StepKindName(StepKind kind);

struct Step {
  StepKind kind;
  Axes axes;  // over which ranks communicate, major to minor
  Layout before, after;
  int64_t bytes = 0;       // volume in the terms of profiles: see docs/redistribution.md
  int64_t in_bytes = 0;    // held before, worst rank
  int64_t out_bytes = 0;   // held after, worst rank
  int64_t recv_bytes = 0;  // received by the worst rank
  int64_t peak_bytes = 0;  // input and output alive at once, worst rank
  double seconds = 0;      // by the cost model; 0 without one
};

struct RedistributionPlan {
  Layout src, dst;
  int64_t itemsize;
  std::vector<Step> steps;        // empty when nothing has to be done
  int64_t recv_bytes = 0;         // received over all steps by the worst rank
  int64_t peak_bytes = 0;         // the largest of the steps' peaks, or what src holds
  int64_t lower_bound_bytes = 0;  // no plan can receive less on its worst rank
  double seconds = 0;

  std::string ToString() const;
};

// Seconds of one collective. gpus and nodes are the group's size along the mesh's last axis and
// along all others.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual double Seconds(StepKind kind, int64_t bytes, int64_t gpus, int64_t nodes) const = 0;
};

struct PlanOptions {
  const CostModel* cost_model = nullptr;  // null: the fewest received bytes
  std::optional<int64_t> max_peak_bytes;  // refuse steps with a higher peak
};

// Errors: different shapes or meshes; a change between different partial operations; a partial
// product or bitwise operation out of complete values; no plan under the cap (the least possible
// peak is named).
absl::StatusOr<RedistributionPlan> PlanRedistribution(const Layout& src, const Layout& dst,
                                                      int64_t itemsize,
                                                      const PlanOptions& options = {});

// As above with default options, remembered. The result lives as long as the process.
absl::StatusOr<const RedistributionPlan*> CachedPlan(const Layout& src, const Layout& dst,
                                                     int64_t itemsize);

// One step's volumes, filled in from its kind, axes and layouts.
Step MakeStep(StepKind kind, Axes axes, Layout before, Layout after, int64_t itemsize,
              const CostModel* cost_model = nullptr);
// The v of profiles, given what the fullest rank holds before and after: of an exchange, which may
// replicate, the larger one.
int64_t StepVolume(StepKind kind, int64_t in, int64_t out);
// How a CostModel is told of a group: its size along the mesh's last axis, and along all others.
std::pair<int64_t, int64_t> GpusAndNodes(const Mesh& mesh, const Axes& axes);
// Bytes that `rank` receives in the step.
int64_t RecvBytes(const Step& step, int64_t rank, int64_t itemsize);
// The most bytes that `rank` has alive at once while a plan runs, all counted: the source, which is
// the caller's to the end, input and output of a step, and what is packed for its collective.
// peak_bytes, in contrast, is input and output of a step alone.
int64_t LiveBytes(const RedistributionPlan& plan, int64_t rank);
// Received bytes of the worst rank that no plan can avoid (docs/redistribution.md has the
// argument).
int64_t LowerBoundBytes(const Layout& src, const Layout& dst, int64_t itemsize);

// How many elements rank a holds under x that rank b holds under y (same shape).
int64_t OverlapElements(const Layout& x, int64_t a, const Layout& y, int64_t b);

// Under `layout`, the holder nearest to `rank` of the shard with index `shard` (in the group of
// layout.SplitAxes()): the one that differs from `rank` in the split axes only.
int64_t Holder(const Layout& layout, int64_t shard, int64_t rank);

}  // namespace lins
