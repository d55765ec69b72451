#include "lins_policy/table3.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lins_policy/solve.h"
#include "mesh/error.h"

namespace lins {
namespace {

struct PaperRow {
  const char* size;
  int64_t nodes, micro_batches;
  Policy policy;
};

std::vector<PaperRow> PaperRows() {
  return {{"7B", 1, 128, {{1, 1}, {1, 1}, {8, 1}, {}}},
          {"13B", 1, 128, {{4, 1}, {4, 1}, {8, 1}, {}}},
          {"30B", 4, 32, {{8, 1}, {8, 1}, {8, 4}, {}}}};
}

PlanSettings Settings(int64_t micro_batches) {
  PlanSettings s;
  s.micro_batches = micro_batches;
  s.objective = Objective::kComm;
  s.space = Space::kPaper;
  s.family = Family::kPaper;
  s.cap_bytes = 77'300'000'000;
  s.memory = {.gathered_units = 4,
              .gradient_buckets = 0,
              .fp32_gradient_copy = true,
              .communicator_bytes = 0,
              .margin = 0,
              .correction_bytes = 0};
  return s;
}

absl::StatusOr<Plan> SolveRow(const PaperRow& row, const PlanSettings& settings,
                              Recompute recompute) {
  TrainingShape training{.seq_len = 4096, .micro_batch = 1};
  training.recompute = recompute;
  LINS_ASSIGN_OR_RETURN(const ModelSpec spec, ModelSpec::Llama(row.size, training));
  LINS_ASSIGN_OR_RETURN(Profile profile, Profile::Load("a800"));
  Cluster cluster;
  cluster.nodes = row.nodes;
  cluster.profile = std::make_shared<Profile>(std::move(profile));
  return Solve(spec, cluster, settings);
}

// All legal plans of a solved plan's problem, the cheapest first.
absl::StatusOr<std::vector<Plan>> ByCost(const Plan& solved) {
  std::vector<Plan> out;
  for (const Policy& p : LegalPolicies(solved.mesh, solved.settings.space)) {
    LINS_ASSIGN_OR_RETURN(Plan plan, PricePlan(solved.spec, solved.cluster, {p}, solved.settings));
    out.push_back(std::move(plan));
  }
  std::stable_sort(out.begin(), out.end(), [](const Plan& a, const Plan& b) {
    return a.cost.seconds.total() < b.cost.seconds.total();
  });
  return out;
}

std::string Outcome(const absl::StatusOr<Plan>& plan) {
  if (!plan.ok()) return std::string(plan.status().message());
  return plan->factors()->ToString();
}

}  // namespace

absl::StatusOr<std::vector<Table3Row>> ReproduceTable3() {
  std::vector<Table3Row> out;
  for (const PaperRow& row : PaperRows()) {
    LINS_ASSIGN_OR_RETURN(Plan plan, SolveRow(row, Settings(row.micro_batches), Recompute::kNone));
    out.push_back({row.size, row.policy, std::move(plan)});
  }
  return out;
}

absl::StatusOr<Report> ExplainTable3(const std::vector<Table3Row>& rows) {
  Report report;
  report.title = "Table 3 of the paper, under assumptions that the paper does not state";
  ReportTable plans{
      "Plans", {"model", "nodes x GPUs", "M", "paper", "found", "communication", "memory"}, {}};
  for (const Table3Row& r : rows) {
    plans.rows.push_back({r.model,
                          absl::StrCat(r.plan.cluster.nodes, " x ", r.plan.cluster.gpus_per_node),
                          absl::StrCat(r.plan.settings.micro_batches), r.paper.ToString(),
                          r.plan.factors()->ToString(), FormatSeconds(r.plan.cost.seconds.total()),
                          FormatBytes(r.plan.memory.total())});
  }
  report.tables.push_back(std::move(plans));
  for (const Table3Row& r : rows) {
    ReportTable near{absl::StrCat("Neighbours of ", r.model, ": ", r.plan.reason),
                     {"policy", "communication", "extra micro-batch", "memory", "why not"},
                     {}};
    LINS_ASSIGN_OR_RETURN(const std::vector<Plan> all, ByCost(r.plan));
    // Up to five that are cheaper, and three that cost more.
    const auto at = std::find_if(all.begin(), all.end(),
                                 [&](const Plan& p) { return p.factors() == r.plan.factors(); });
    const auto from = at - all.begin() > 5 ? at - 5 : all.begin();
    const auto to = all.end() - at > 4 ? at + 4 : all.end();
    for (auto it = from; it != to; ++it) {
      const Plan& p = *it;
      const double cost = p.cost.seconds.total(), chosen = r.plan.cost.seconds.total();
      const bool mine = it == at;
      near.rows.push_back({p.factors()->ToString(), FormatSeconds(cost),
                           FormatSeconds(p.cost.extra_micro_batch), FormatBytes(p.memory.total()),
                           mine        ? "chosen"
                           : !p.fits() ? absl::StrCat("misses ", FormatBytes(-p.slack_bytes()))
                           : cost <= chosen * (1 + p.settings.tie_epsilon)
                               ? "equal within the tolerance"
                               : absl::StrFormat("costs %.3g times as much", cost / chosen)});
    }
    report.tables.push_back(std::move(near));
  }
  ReportTable other{"Under other settings", {"model", "recompute='full'", "tie_epsilon=0"}, {}};
  for (const PaperRow& row : PaperRows()) {
    const PlanSettings settings = Settings(row.micro_batches);
    PlanSettings exact = settings;
    exact.tie_epsilon = 0;
    other.rows.push_back({row.size, Outcome(SolveRow(row, settings, Recompute::kFull)),
                          Outcome(SolveRow(row, exact, Recompute::kNone))});
  }
  report.tables.push_back(std::move(other));
  report.notes.push_back(
      "this shows that the paper's plans follow from the measured collectives under these "
      "assumptions, and by how little; it predicts nothing");
  return report;
}

}  // namespace lins
