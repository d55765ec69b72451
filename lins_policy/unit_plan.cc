#include "lins_policy/unit_plan.h"

#include <set>

#include "mesh/error.h"

namespace lins {
namespace {

Terms SplitBy(const Axes& axes) {
  Terms t;
  if (!axes.empty()) t.shards.push_back({0, axes});
  return t;
}

}  // namespace

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
  Terms contribution, grad = SplitBy(g);
  const Axes all = Canonical(mesh, mesh.AllAxes());
  const Axes rest = Subtract(mesh, all, g);
  if (mesh.size() > 1) contribution.partials.push_back({ReduceOp::kSum, all});
  if (Mesh::GroupSize(rest) > 1) grad.partials.push_back({ReduceOp::kSum, rest});
  return {whole,
          whole.WithTerms(SplitBy(p)),
          whole.WithTerms(SplitBy(o)),
          whole.WithTerms(SplitBy(b)),
          whole.WithTerms(contribution),
          whole.WithTerms(grad)};
}

absl::StatusOr<UnitPlan> MakeUnitPlan(const Policy& policy, int64_t numel, const Mesh& mesh,
                                      const StateSizes& sizes, const PlanOptions& options) {
  LINS_RETURN_IF_ERROR(ValidatePolicy(policy, mesh, Space::kFull));
  const int64_t total = PaddedTotal(numel, mesh);
  const UnitLayouts at = MakeUnitLayouts(policy, total, mesh);
  const auto plan = [&](const Layout& src, const Layout& dst, int64_t itemsize) {
    return PlanRedistribution(src, dst, itemsize, options);
  };
  LINS_ASSIGN_OR_RETURN(RedistributionPlan gather, plan(at.param, at.whole, sizes.param));
  LINS_ASSIGN_OR_RETURN(RedistributionPlan regather, plan(at.between, at.whole, sizes.param));
  LINS_ASSIGN_OR_RETURN(RedistributionPlan accumulate, plan(at.contribution, at.grad, sizes.grad));
  LINS_ASSIGN_OR_RETURN(RedistributionPlan reduce, plan(at.grad, at.optim, sizes.grad));
  LINS_ASSIGN_OR_RETURN(RedistributionPlan update, plan(at.optim, at.param, sizes.param));
  return UnitPlan{policy,
                  total,
                  at.param,
                  at.optim,
                  at.between,
                  at.contribution,
                  at.grad,
                  std::move(gather),
                  std::move(regather),
                  std::move(accumulate),
                  std::move(reduce),
                  std::move(update)};
}

StateBytes HeldBytes(const UnitPlan& plan, const StateSizes& sizes) {
  return {plan.total / Product(plan.policy.param) * sizes.param,
          plan.total / Product(plan.policy.grad) * sizes.grad,
          plan.total / Product(plan.policy.optim) * (sizes.master + sizes.moments)};
}

StepTraffic Traffic(const UnitPlan& plan, int64_t micro_batches) {
  return {micro_batches * (plan.gather.recv_bytes + plan.regather.recv_bytes),
          micro_batches * plan.accumulate.recv_bytes, plan.reduce.recv_bytes,
          plan.update.recv_bytes};
}

}  // namespace lins
