#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lins_policy/solve.h"
#include "lins_policy/solve_parts.h"
#include "mesh/error.h"

namespace lins {
namespace {

// By rising memory, only those cheaper than all before.
std::vector<Plan> Undominated(std::vector<Plan> plans, Objective objective) {
  std::stable_sort(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) {
    return std::make_pair(a.memory.total(), a.cost.Of(objective)) <
           std::make_pair(b.memory.total(), b.cost.Of(objective));
  });
  std::vector<Plan> out;
  for (Plan& p : plans) {
    if (out.empty() || p.cost.Of(objective) < out.back().cost.Of(objective)) {
      out.push_back(std::move(p));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<Plan>> Frontier(const ModelSpec& spec, const Cluster& cluster,
                                           const PlanSettings& settings, int points) {
  if (points < 2) return InvalidArgument("points=", points, ": at least 2");
  if (!settings.scales.empty()) return InvalidArgument("a frontier is of one scale");
  LINS_ASSIGN_OR_RETURN(Evaluator evaluator, Evaluator::Create(spec, cluster, settings));
  std::vector<Plan> plans;
  if (settings.uniform) {
    for (const Policy& p : LegalPolicies(evaluator.mesh(), settings.space)) {
      std::vector<Policy> all(evaluator.share().units.size(), p);
      LINS_ASSIGN_OR_RETURN(const PlanCost cost, evaluator.Cost(all));
      plans.push_back(evaluator.MakePlan(std::move(all), cost, "on the frontier"));
    }
    return Undominated(std::move(plans), settings.objective);
  }
  // The ends: the least memory of all, and what the fastest plan takes without a cap.
  PlanSettings each = settings;
  each.cap_bytes = kMostMemory;
  LINS_ASSIGN_OR_RETURN(Plan fastest, Solve(spec, cluster, each));
  const int64_t most = fastest.memory.total();
  const int64_t least = LeastMemoryPerUnit(evaluator).total();
  for (int i = 0; i + 1 < points; ++i) {
    each.cap_bytes = least + (most - least) / (points - 1) * i;
    LINS_ASSIGN_OR_RETURN(Plan p, Solve(spec, cluster, each));
    plans.push_back(std::move(p));
  }
  plans.push_back(std::move(fastest));
  // The caps were only a means: the problem's own says which plans fit.
  for (Plan& p : plans) {
    p.settings = settings;
    p.cap_bytes = evaluator.cap_bytes();
    p.reason = absl::StrCat("on the frontier: ", p.reason);
  }
  return Undominated(std::move(plans), settings.objective);
}

absl::StatusOr<std::vector<Alternative>> PricePresets(const Plan& plan) {
  LINS_ASSIGN_OR_RETURN(Evaluator evaluator,
                        Evaluator::Create(plan.spec, plan.cluster, plan.settings));
  std::vector<Alternative> out;
  for (const std::string& name : PresetNames()) {
    const absl::StatusOr<Policy> policy = ParsePolicy(name, evaluator.mesh());
    // Groups that this mesh does not have; the paper's collectives know no second group.
    if (!policy.ok()) continue;
    if (plan.settings.family == Family::kPaper && !policy->between.empty()) continue;
    const std::vector<Policy> all(evaluator.share().units.size(), *policy);
    LINS_ASSIGN_OR_RETURN(const PlanCost cost, evaluator.Cost(all));
    const int64_t memory = evaluator.Memory(all).total();
    out.push_back({name, *policy, cost, memory, memory <= plan.cap_bytes, ""});
  }
  return out;
}

}  // namespace lins
