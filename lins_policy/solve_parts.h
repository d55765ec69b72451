// The parts of Solve(); solve.h is the interface.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/evaluate.h"

namespace lins {

// The most that items other than the margin may add up to under a cap.
int64_t WithoutMargin(int64_t cap_bytes, double margin);

// The best plan of one choice for all units. `scales` are evaluators of further sizes of the job.
struct WeightedEvaluator {
  Evaluator evaluator;
  double weight;
};
// The evaluator of the cluster itself, then one for each of the settings' scales.
absl::StatusOr<std::vector<WeightedEvaluator>> MakeScales(const ModelSpec& spec,
                                                          const Cluster& cluster,
                                                          const PlanSettings& settings);
absl::StatusOr<Plan> SolveUniform(std::vector<WeightedEvaluator>& scales);
// The best plan of one choice per unit.
absl::StatusOr<Plan> SolvePerUnit(Evaluator& evaluator);

// The legal policies that can serve all scales, in their fixed order.
std::vector<Policy> LegalOnAll(const std::vector<WeightedEvaluator>& scales);

// The items of the plan of the settings' space that needs the least; of several scales, on the one
// where it needs most.
MemoryItems LeastMemory(std::vector<WeightedEvaluator>& scales);
// The same where every unit may choose for itself.
MemoryItems LeastMemoryPerUnit(const Evaluator& evaluator);

// What Solve answers when nothing fits.
absl::Status Infeasible(std::vector<WeightedEvaluator>& scales, const ModelSpec& spec,
                        const Cluster& cluster, const PlanSettings& settings);

}  // namespace lins
