// Costs and memory of policies for one problem: what PricePlan and Solve share. Several scales are
// several evaluators.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"

namespace lins {

// Whether the paper's owners broadcast their pieces of all units at once: under one policy, unless
// units may choose for themselves.
bool UpdatesWhole(const PlanSettings& settings, const std::vector<Policy>& policies);

class Evaluator {
 public:
  // Checks all inputs. The cluster's profile lives on in the evaluator.
  static absl::StatusOr<Evaluator> Create(const ModelSpec& spec, const Cluster& cluster,
                                          const PlanSettings& settings);

  // One policy per unit of share(). A uniform paper plan is updated by broadcasts of whole pieces.
  absl::StatusOr<PlanCost> Cost(const std::vector<Policy>& policies);
  // Of one copy of each unit, as Cost() adds them up.
  absl::StatusOr<std::vector<Moments<double>>> Seconds(const std::vector<Policy>& policies);
  // The optimizer on one copy of unit i.
  OptimizerSeconds Update(size_t i, const Policy& policy) const;
  // What Cost() cannot be below, without planning its reductions and updates.
  absl::StatusOr<double> LeastCost(const Policy& policy);
  MemoryItems Memory(const std::vector<Policy>& policies) const;

  // All copies of unit i under a policy, as Cost() adds them up.
  absl::StatusOr<PlanCost> CostOfUnit(size_t i, const Policy& policy);

  Plan MakePlan(std::vector<Policy> policies, const PlanCost& cost, std::string reason) const;

  const ModelSpec& share() const { return share_; }
  const Mesh& mesh() const { return pricer_.mesh(); }
  int64_t cap_bytes() const { return cap_bytes_; }
  const PlanSettings& settings() const { return settings_; }

 private:
  Evaluator(const ModelSpec& spec, const Cluster& cluster, const PlanSettings& settings,
            ModelSpec share, Mesh mesh);
  absl::StatusOr<std::vector<UnitPrice>> Prices(const std::vector<Policy>& policies);
  absl::Status CheckFinite(const PlanCost& cost) const;
  PlanCost FromPrice(size_t i, const UnitPrice& price, const OptimizerSeconds& update) const;

  ModelSpec spec_;
  Cluster cluster_;
  PlanSettings settings_;
  ModelSpec share_;
  int64_t cap_bytes_;
  Pricer pricer_;
};

}  // namespace lins
