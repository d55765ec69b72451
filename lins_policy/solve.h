// The cheapest plan within the memory, proven.
//
// uniform   all legal policies of the space, one for all units; of those within tie_epsilon of the
//           best: the cheaper extra micro-batch, then fewer nodes spanned, then less memory
// per unit  a multiple-choice knapsack of the units' costs and bytes under the cap (knapsack.h);
//           what only the largest unit needs (gathered units, buckets) is fixed first, every value
//           of it in turn, so the optimum is exact; costs in whole picoseconds, gap 0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"

namespace lins {

// Errors: what the parts' Validate() say; and where no plan fits, a ResourceExhausted status whose
// message names the least memory that would do, the largest items and the nearest changes that
// help. InfeasibleOf() reads it back.
absl::StatusOr<Plan> Solve(const ModelSpec& spec, const Cluster& cluster,
                           const PlanSettings& settings);

struct InfeasibleAnswer {
  int64_t least_bytes = 0;  // the smallest cap under which there is a plan
  std::vector<std::pair<std::string, int64_t>> largest;  // of that plan's items
  std::vector<std::string> suggestions;
};
std::optional<InfeasibleAnswer> InfeasibleOf(const absl::Status& status);

// Plans that no other beats in both time and memory, by rising memory. Uniform: all of them. Per
// unit: the optima under `points` caps from the least memory to what the fastest plan needs.
absl::StatusOr<std::vector<Plan>> Frontier(const ModelSpec& spec, const Cluster& cluster,
                                           const PlanSettings& settings, int points = 16);

// The presets of factors.h that the mesh allows, priced.
absl::StatusOr<std::vector<Alternative>> PricePresets(const Plan& plan);

}  // namespace lins
