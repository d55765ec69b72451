#include "lins_policy/unit_plan.h"

#include <set>
#include <utility>

#include "lins_policy/paper_plan.h"
#include "mesh/error.h"

namespace lins {
namespace {

Terms SplitBy(const Axes& axes) {
  Terms t;
  if (!axes.empty()) t.shards.push_back({0, axes});
  return t;
}

}  // namespace

absl::StatusOr<Family> ParseFamily(absl::string_view name) {
  for (const Family f : {Family::kPlanned, Family::kPaper}) {
    if (FamilyName(f) == name) return f;
  }
  return InvalidArgument("unknown family '", name, "': legal are 'planned' and 'paper'");
}

absl::string_view FamilyName(Family family) {
  return family == Family::kPlanned ? "planned" : "paper";
}

Axes ChainAxes(const Policy& policy, const Factors& state, const Mesh& mesh) {
  Axes out;
  for (int i = 0; i < mesh.ndim(); ++i) {
    std::set<int64_t> cuts = {1, policy.param[i], policy.grad[i], policy.optim[i]};
    if (!policy.between.empty()) cuts.insert(policy.between[i]);
    for (auto it = cuts.begin(); it != cuts.end() && *it < state[i]; ++it) {
      out.push_back({mesh.ndim() - 1 - i, *std::next(it) / *it, *it});
    }
  }
  return out;
}

int64_t PaddedTotal(int64_t numel, const Mesh& mesh) {
  const int64_t k = mesh.size();
  return (numel + k - 1) / k * k;
}

UnitLayouts MakeUnitLayouts(const Policy& policy, int64_t total, const Mesh& mesh) {
  const Layout whole = Layout::Replicated({total}, mesh);
  const Axes p = ChainAxes(policy, policy.param, mesh);
  const Axes g = ChainAxes(policy, policy.grad, mesh);
  const Axes o = ChainAxes(policy, policy.optim, mesh);
  const Axes b = policy.between.empty() ? p : ChainAxes(policy, policy.between, mesh);
  Terms contribution, grad = SplitBy(g), piece = SplitBy(p);
  const Axes all = Canonical(mesh, mesh.AllAxes());
  const Axes rest = Subtract(mesh, all, g);
  if (mesh.size() > 1) contribution.partials.push_back({ReduceOp::kSum, all});
  if (Mesh::GroupSize(rest) > 1) grad.partials.push_back({ReduceOp::kSum, rest});
  const Axes others = Subtract(mesh, all, p);
  if (Mesh::GroupSize(others) > 1) piece.partials.push_back({ReduceOp::kSum, others});
  return {whole,
          whole.WithTerms(SplitBy(p)),
          whole.WithTerms(SplitBy(o)),
          whole.WithTerms(SplitBy(b)),
          whole.WithTerms(contribution),
          whole.WithTerms(grad),
          whole.WithTerms(piece)};
}

absl::StatusOr<UnitPlan> MakeUnitPlan(const Policy& policy, int64_t numel, const Mesh& mesh,
                                      const StateSizes& sizes, const PlanOptions& options,
                                      Family family, int64_t bucket_bytes) {
  const bool paper = family == Family::kPaper;
  LINS_RETURN_IF_ERROR(ValidatePolicy(policy, mesh, paper ? Space::kNested : Space::kFull));
  if (bucket_bytes < 1) {
    return InvalidArgument("bucket_bytes=", bucket_bytes, ": legal is at least 1");
  }
  const int64_t total = PaddedTotal(numel, mesh);
  const UnitLayouts at = MakeUnitLayouts(policy, total, mesh);
  const auto from_to = [](const Layout& src, const Layout& dst) {
    return RedistributionPlan{src, dst, 0, {}};
  };
  UnitPlan out{policy,
               family,
               bucket_bytes,
               total,
               at.param,
               at.optim,
               at.between,
               at.contribution,
               at.grad,
               from_to(at.param, at.whole),
               from_to(at.between, at.whole),
               from_to(at.contribution, at.piece),
               from_to(at.contribution, at.grad),
               from_to(at.grad, at.optim),
               from_to(at.optim, at.param)};
  if (paper) {
    PlanAsInPaper(at, sizes, options.cost_model, out);
    return out;
  }
  for (const auto& [plan, itemsize] : {std::pair{&out.gather, sizes.param},
                                       {&out.regather, sizes.param},
                                       {&out.accumulate, sizes.grad},
                                       {&out.reduce, sizes.grad},
                                       {&out.update, sizes.param}}) {
    LINS_ASSIGN_OR_RETURN(*plan, PlanRedistribution(plan->src, plan->dst, itemsize, options));
  }
  return out;
}

StateBytes HeldBytes(const UnitPlan& plan, const StateSizes& sizes) {
  return {plan.total / Product(plan.policy.param) * sizes.param,
          plan.total / Product(plan.policy.grad) * sizes.grad,
          plan.total / Product(plan.policy.optim) * (sizes.master + sizes.moments)};
}

StepTraffic Traffic(const UnitPlan& plan, int64_t micro_batches) {
  // The last micro-batch of family planned goes to G as the others do.
  const int64_t accumulations = micro_batches - (plan.family == Family::kPaper ? 1 : 0);
  return {micro_batches * (plan.gather.recv_bytes + plan.regather.recv_bytes),
          micro_batches * plan.scatter.recv_bytes + accumulations * plan.accumulate.recv_bytes,
          plan.reduce.recv_bytes, plan.update.recv_bytes};
}

}  // namespace lins
