#include "lins_policy/paper_plan.h"

#include <algorithm>
#include <utility>

#include "mesh/error.h"

namespace lins {
namespace {

// The axes of a longer prefix of the shard chain beyond those of a shorter one.
Axes Beyond(const Axes& shorter, const Axes& longer) {
  LINS_CHECK(shorter.size() <= longer.size(), shorter.size(), " > ", longer.size());
  return Axes(longer.begin() + shorter.size(), longer.end());
}

RedistributionPlan Follow(const Layout& src, const Layout& dst, int64_t itemsize,
                          std::vector<Step> steps) {
  RedistributionPlan out{src, dst, itemsize, std::move(steps)};
  out.peak_bytes = src.MaxLocalNumel() * itemsize;
  for (const Step& s : out.steps) {
    out.recv_bytes += s.recv_bytes;  // the same on all ranks
    out.peak_bytes = std::max(out.peak_bytes, s.peak_bytes);
    out.seconds += s.seconds;
  }
  out.lower_bound_bytes = LowerBoundBytes(src, dst, itemsize);
  return out;
}

// A gather or scatter over `axes` in one collective, if any.
RedistributionPlan OneStep(StepKind kind, const Axes& axes, const Layout& src, const Layout& dst,
                           int64_t itemsize, const CostModel* cost_model) {
  std::vector<Step> steps;
  if (Mesh::GroupSize(axes) > 1)
    steps.push_back(MakeStep(kind, axes, src, dst, itemsize, cost_model));
  return Follow(src, dst, itemsize, std::move(steps));
}

// piece -> dst: an all-reduce over `summed`, then each rank keeps its part along `cut`.
RedistributionPlan SumAndSelect(const Layout& piece, const Axes& summed, const Axes& cut,
                                const Layout& dst, int64_t itemsize, const CostModel* cost_model) {
  std::vector<Step> steps;
  Terms terms = dst.terms();
  terms.shards = piece.terms().shards;
  const Layout whole = piece.WithTerms(terms);
  if (Mesh::GroupSize(summed) > 1) {
    steps.push_back(MakeStep(StepKind::kAllReduce, summed, piece, whole, itemsize, cost_model));
  }
  if (Mesh::GroupSize(cut) > 1)
    steps.push_back(MakeStep(StepKind::kSlice, cut, whole, dst, itemsize, cost_model));
  return Follow(piece, dst, itemsize, std::move(steps));
}

// OS -> P: every owner within a piece of P broadcasts its slot.
RedistributionPlan Broadcasts(const Layout& optim, const Layout& param, const Axes& owners,
                              int64_t itemsize, const CostModel* cost_model) {
  const int64_t k = Mesh::GroupSize(owners);
  if (k == 1) return Follow(optim, param, itemsize, {});
  Step step{StepKind::kBroadcast, owners, optim, param};
  step.bytes = step.recv_bytes = step.in_bytes = optim.MaxLocalNumel() * itemsize;
  step.out_bytes = step.peak_bytes = param.MaxLocalNumel() * itemsize;
  if (cost_model) {
    const auto [gpus, nodes] = GpusAndNodes(param.mesh(), owners);
    step.seconds = cost_model->Seconds(StepKind::kBroadcast, step.bytes, gpus, nodes);
  }
  RedistributionPlan out = Follow(optim, param, itemsize, std::vector<Step>(k, step));
  out.recv_bytes -= step.bytes;  // its own
  return out;
}

}  // namespace

void PlanAsInPaper(const UnitLayouts& at, const StateSizes& sizes, const CostModel* cost_model,
                   UnitPlan& out) {
  const Mesh& mesh = at.whole.mesh();
  const Policy& policy = out.policy;
  const Axes p = ChainAxes(policy, policy.param, mesh);
  const Axes between = policy.between.empty() ? p : ChainAxes(policy, policy.between, mesh);
  const Axes g = Beyond(p, ChainAxes(policy, policy.grad, mesh));
  const Axes o = Beyond(p, ChainAxes(policy, policy.optim, mesh));
  const Axes all = at.piece.PartialAxes();  // along which P is not cut
  out.gather = OneStep(StepKind::kAllGather, p, at.param, at.whole, sizes.param, cost_model);
  out.regather =
      OneStep(StepKind::kAllGather, between, at.between, at.whole, sizes.param, cost_model);
  out.scatter =
      OneStep(StepKind::kReduceScatter, p, at.contribution, at.piece, sizes.grad, cost_model);
  out.accumulate = SumAndSelect(at.piece, g, g, at.grad, sizes.grad, cost_model);
  out.reduce = SumAndSelect(at.piece, all, o, at.optim, sizes.grad, cost_model);
  out.update = Broadcasts(at.optim, at.param, o, sizes.param, cost_model);
}

}  // namespace lins
