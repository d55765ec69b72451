// The exact search behind PlanRedistribution.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "placement/space.h"

namespace lins {

struct SearchOptions {
  const CostModel* cost_model = nullptr;
  int64_t itemsize = 1;
  int64_t max_peak = std::numeric_limits<int64_t>::max();  // bytes
  bool least_peak = false;  // minimise the highest peak and nothing else
};

struct SearchResult {
  bool found = false;
  std::vector<Step> steps;  // volumes filled in
  int64_t received = 0;     // elements that the worst rank receives over all steps
};

// The best chain of steps from space.src() to space.dst(), under space.dst_pending(). The order of
// preference: seconds (with a cost model), bytes of the worst rank, steps, ranks in the groups,
// first found.
SearchResult SearchPlan(PlanSpace& space, const SearchOptions& options);

// What no continuation from a split with pending reductions can avoid receiving.
class Bound {
 public:
  // With own_steps also what only holds for the steps of lins: avg, min and max begin on ranks that
  // have the whole value, so that only the ranks of a partial sum share what they hold.
  explicit Bound(PlanSpace& space, bool own_steps = false);
  // The least elements the worst rank can have received at dst when each rank has received `so_far`
  // (null: nothing) on reaching `split`.
  int64_t AtLeast(const int64_t* so_far, int split, const PlanSpace::Pending& pending);

 private:
  struct Rest {  // elements that each group of `joint_` still misses
    bool reduces;
    const int64_t* missing;
  };
  void Prepare();
  const int64_t* Missing(int split, bool reduces);
  // What every group still misses where that is one number; -1 where groups differ.
  int64_t EvenMissing(int split, bool reduces) const;

  PlanSpace& space_;
  bool own_steps_;
  AxisMask joint_ = 0;  // atoms over which dst holds contributions of any kind
  int64_t joint_size_ = 1;
  int64_t wanted_ = 0;          // elements that dst's groups hold, summed over the groups
  std::vector<int64_t> group_;  // of each rank, when joint_ is not empty
  int64_t groups_ = 0;
  std::vector<const int64_t*> missing_;  // by split
  std::vector<std::unique_ptr<int64_t[]>> owned_;
  const int64_t* all_missing_ = nullptr;
  std::vector<int64_t> sums_, scratch_;
};

// Sum, avg, min and max can be spread over ranks out of a complete value.
bool CanBegin(ReduceOp op);

}  // namespace lins
