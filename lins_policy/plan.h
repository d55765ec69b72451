// A plan: the placement of P, G and OS of every unit of a model on a cluster, with what it costs,
// what it needs, and why it was chosen.
//
//   Plan plan = *Solve(spec, cluster, {.micro_batches = 4});       // solve.h
//   plan.factors()->param                                          // {4, 1}
//   plan.cost.step, plan.memory.total(), Explain(plan)             // explain.h
//   SavePlan(plan, "plan.json"); LoadPlan("plan.json")             // plan_file.h
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/cluster.h"
#include "lins_policy/memory.h"
#include "lins_policy/step_time.h"

namespace lins {

enum class Objective {
  kComm,  // seconds of communication, as if nothing ran beside it
  kStep,  // exposed seconds of communication (step_time.h), and those of the update
};
absl::StatusOr<Objective> ParseObjective(absl::string_view name);
absl::string_view ObjectiveName(Objective objective);

// Another size of the same job, which the plan must suit as well.
struct Scale {
  int64_t nodes = 1, micro_batches = 1;
  double weight = 1;  // of its cost in the sum
  friend bool operator==(const Scale&, const Scale&) = default;
};

struct PlanSettings {
  int64_t micro_batches = 1;  // M, per optimizer step
  Objective objective = Objective::kStep;
  Space space = Space::kNested;
  Family family = Family::kPlanned;
  std::optional<int64_t> cap_bytes =
      {};                      // of a GPU's memory; without it the cluster's usable bytes
  bool uniform = true;         // one choice for all units
  bool split_repeats = false;  // per unit: copies of a unit choose for themselves
  double tie_epsilon = 0.02;   // uniform: costs within this part of the best are equal
  int64_t bucket_bytes = 512LL << 20;
  MemoryOptions memory = {};
  OverlapOptions overlap = {};
  std::vector<Scale> scales = {};  // besides the cluster's own; uniform only
  friend bool operator==(const PlanSettings&, const PlanSettings&) = default;
  absl::Status Validate() const;
};

// Micro-batches that make up `global_tokens`. Errors: tokens that do not divide among the ranks.
absl::StatusOr<int64_t> MicroBatchesOf(int64_t global_tokens, const ModelSpec& spec,
                                       const Cluster& cluster);

struct PlanCost {
  CostTerms<double> seconds;        // of communication, by the paper's terms
  CostTerms<int64_t> bytes;         // received by the worst rank
  double extra_micro_batch = 0;     // seconds of communication that one more would add
  double compute = 0, exposed = 0;  // seconds of a step
  // Of the update: over the device's memory, where its bandwidth is given, and over the link to the
  // host with offload. The longer of the two hides the other.
  OptimizerSeconds update = {};
  double step() const { return compute + exposed + update.longer(); }
  // What the objective counts.
  double Of(Objective objective) const {
    return objective == Objective::kComm ? seconds.total() + update.offload
                                         : exposed + update.longer();
  }
};

// Something that was compared with the plan.
struct Alternative {
  std::string name;  // a preset, or the policy itself
  Policy policy;     // of all units
  PlanCost cost;
  int64_t memory_bytes = 0;
  bool fits = false;
  std::string why_not;  // "" for the chosen one
};

inline constexpr char kGiven[] = "given";

struct Plan {
  ModelSpec spec;   // as given
  Cluster cluster;  // as given
  PlanSettings settings;
  ModelSpec share;               // one GPU's share, repeats split where asked
  Mesh mesh;                     // data parallel, (node, gpu)
  std::vector<Policy> policies;  // one for each of share.units
  PlanCost cost;
  MemoryItems memory;
  int64_t cap_bytes = 0;
  std::string reason;  // why this one; kGiven of PricePlan
  std::vector<Alternative> alternatives;

  // The one choice of all units, if there is one.
  std::optional<Policy> factors() const;
  std::string PolicyText() const;  // that choice, or "a choice per unit"
  bool fits() const { return memory.total() <= cap_bytes; }
  int64_t slack_bytes() const { return cap_bytes - memory.total(); }
  std::string ToString() const;  // a line
};

// Prices given policies, one for each unit of the spec's share (or a single one for all), without
// refusing any for its memory. The settings' space is not asked: any legal policy of the full space
// is priced.
absl::StatusOr<Plan> PricePlan(const ModelSpec& spec, const Cluster& cluster,
                               const std::vector<Policy>& policies, const PlanSettings& settings);

}  // namespace lins
