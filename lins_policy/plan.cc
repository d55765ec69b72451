#include "lins_policy/plan.h"

#include <cmath>
#include <tuple>

#include "lins_policy/evaluate.h"
#include "mesh/error.h"

namespace lins {

absl::StatusOr<Objective> ParseObjective(absl::string_view name) {
  for (const Objective o : {Objective::kComm, Objective::kStep}) {
    if (ObjectiveName(o) == name) return o;
  }
  return InvalidArgument("unknown objective '", name, "': legal are 'comm' and 'step'");
}

absl::string_view ObjectiveName(Objective objective) {
  return objective == Objective::kComm ? "comm" : "step";
}

absl::Status PlanSettings::Validate() const {
  constexpr int64_t kMostMicroBatches = 1 << 20, kMostUnits = 256, kMostItem = int64_t{1} << 50;
  const auto check_m = [&](int64_t m) {
    if (m >= 1 && m <= kMostMicroBatches) return absl::OkStatus();
    return InvalidArgument("micro_batches=", m, ": legal are 1 to ", kMostMicroBatches);
  };
  LINS_RETURN_IF_ERROR(check_m(micro_batches));
  if (cap_bytes && (*cap_bytes < 1 || *cap_bytes > kMostMemory)) {
    return InvalidArgument("cap_bytes=", *cap_bytes, ": legal are 1 to ", kMostMemory);
  }
  if (!(tie_epsilon >= 0 && tie_epsilon < 1)) {
    return InvalidArgument("tie_epsilon=", tie_epsilon, ": legal are 0 to below 1");
  }
  const std::tuple<absl::string_view, int64_t, int64_t, int64_t> ranges[] = {
      {"bucket_bytes", bucket_bytes, 1, kMostItem},
      {"prefetch", overlap.prefetch, 0, kMostUnits - 1},
      {"gathered_units", memory.gathered_units, 1, kMostUnits},
      {"gradient_buckets", memory.gradient_buckets, 0, kMostUnits},
      {"communicator_bytes", memory.communicator_bytes, 0, kMostItem},
      {"correction_bytes", memory.correction_bytes, -kMostItem, kMostItem},
      {"offload_chunk_bytes", memory.offload_chunk_bytes, 1, kMostItem}};
  for (const auto& [name, value, least, most] : ranges) {
    if (value < least || value > most) {
      return InvalidArgument(name, "=", value, ": legal are ", least, " to ", most);
    }
  }
  if (!(memory.margin >= 0 && memory.margin < 10)) {
    return InvalidArgument("margin=", memory.margin, ": legal are 0 to below 10");
  }
  if (!uniform && !scales.empty()) {
    return InvalidArgument("plans for several scales are uniform: leave out uniform=False");
  }
  if (family == Family::kPaper && space == Space::kFull) {
    return InvalidArgument(
        "the paper's collectives know no plans of space 'full': legal are 'paper' and 'nested'");
  }
  for (const Scale& s : scales) {
    LINS_RETURN_IF_ERROR(check_m(s.micro_batches));
    if (s.nodes < 1) return InvalidArgument("a scale of ", s.nodes, " nodes: at least 1");
    if (!(s.weight > 0) || !std::isfinite(s.weight)) {
      return InvalidArgument("a scale's weight is ", s.weight, ": legal are numbers above 0");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MicroBatchesOf(int64_t global_tokens, const ModelSpec& spec,
                                       const Cluster& cluster) {
  LINS_ASSIGN_OR_RETURN(const Mesh mesh, cluster.DataParallelMesh());
  const int64_t at_once = mesh.size() * spec.tokens();
  if (global_tokens < 1 || global_tokens % at_once != 0) {
    return InvalidArgument("global_tokens=", global_tokens, " is no multiple of the ", at_once,
                           " tokens that ", mesh.size(),
                           " ranks compute at once (seq_len=", spec.training.seq_len,
                           " x micro_batch=", spec.training.micro_batch, ")");
  }
  return global_tokens / at_once;
}

std::optional<Policy> Plan::factors() const {
  for (const Policy& p : policies) {
    if (p != policies[0]) return std::nullopt;
  }
  return policies[0];
}

std::string Plan::PolicyText() const {
  const std::optional<Policy> all = factors();
  return all ? all->ToString() : "a choice per unit";
}

std::string Plan::ToString() const {
  return absl::StrCat("Plan(", spec.name, " on ", cluster.nodes, " x ", cluster.gpus_per_node, ": ",
                      PolicyText(), ", ", FamilyName(settings.family), ", communication ",
                      cost.seconds.total(), " s, exposed ", cost.exposed, " s, memory ",
                      memory.total(), " bytes)");
}

absl::StatusOr<Plan> PricePlan(const ModelSpec& spec, const Cluster& cluster,
                               const std::vector<Policy>& policies, const PlanSettings& settings) {
  LINS_ASSIGN_OR_RETURN(Evaluator evaluator, Evaluator::Create(spec, cluster, settings));
  const size_t units = evaluator.share().units.size();
  if (policies.size() != 1 && policies.size() != units) {
    return InvalidArgument(policies.size(), " policies for ", units,
                           " units: give one for all, or one for each");
  }
  std::vector<Policy> each = policies;
  each.resize(units, policies[0]);
  for (const Policy& p : each) {
    LINS_RETURN_IF_ERROR(ValidatePolicy(p, evaluator.mesh(), Space::kFull));
    if (settings.family == Family::kPaper) {
      LINS_RETURN_IF_ERROR(ValidatePolicy(p, evaluator.mesh()));
      if (!p.between.empty()) {
        return InvalidArgument("the paper's collectives know no '", p.ToString(),
                               "': leave out between");
      }
    }
  }
  LINS_ASSIGN_OR_RETURN(const PlanCost cost, evaluator.Cost(each));
  return evaluator.MakePlan(std::move(each), cost, kGiven);
}

}  // namespace lins
