#include "lins_policy/evaluate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {
namespace {

// Each copy of a repeated unit as a unit of its own: layers.0, layers.1, ...
ModelSpec SplitRepeats(const ModelSpec& spec) {
  ModelSpec out = spec;
  out.units.clear();
  for (const Unit& u : spec.units) {
    for (int64_t i = 0; i < u.repeat; ++i) {
      out.units.push_back(u);
      out.units.back().repeat = 1;
      if (u.repeat > 1) out.units.back().name = absl::StrCat(u.name, ".", i);
    }
  }
  return out;
}

void Add(const PlanCost& x, PlanCost& sum) {
  const auto add = [](const auto& a, auto& b) {
    b.t_p += a.t_p;
    b.t_g += a.t_g;
    b.t_os0 += a.t_os0;
    b.t_os1 += a.t_os1;
  };
  add(x.seconds, sum.seconds);
  add(x.bytes, sum.bytes);
  sum.extra_micro_batch += x.extra_micro_batch;
  sum.compute += x.compute;
  sum.exposed += x.exposed;
  sum.update.optimizer += x.update.optimizer;
  sum.update.offload += x.update.offload;
}

}  // namespace

bool UpdatesWhole(const PlanSettings& settings, const std::vector<Policy>& policies) {
  return settings.uniform && settings.family == Family::kPaper &&
         std::all_of(policies.begin(), policies.end(),
                     [&](const Policy& p) { return p == policies[0]; });
}

absl::StatusOr<Evaluator> Evaluator::Create(const ModelSpec& spec, const Cluster& cluster,
                                            const PlanSettings& settings) {
  LINS_RETURN_IF_ERROR(cluster.Validate());
  LINS_RETURN_IF_ERROR(settings.Validate());
  LINS_ASSIGN_OR_RETURN(ModelSpec share,
                        spec.Parallel(cluster.tensor_parallel, cluster.pipeline_parallel));
  if (settings.split_repeats) share = SplitRepeats(share);
  LINS_ASSIGN_OR_RETURN(Mesh mesh, cluster.DataParallelMesh());
  // No rank receives more than this in a step: a few copies of the model in each micro-batch.
  const StateSizes& z = share.training.sizes;
  const double received = 8.0 * static_cast<double>(settings.micro_batches) *
                          static_cast<double>(std::max(z.param, z.grad)) *
                          (static_cast<double>(share.parameters()) + 1e6 * share.units.size());
  if (received > 4e18) {
    return InvalidArgument(settings.micro_batches, " micro-batches of ", share.parameters(),
                           " parameters move more bytes than 64 bits can count");
  }
  return Evaluator(spec, cluster, settings, std::move(share), std::move(mesh));
}

Evaluator::Evaluator(const ModelSpec& spec, const Cluster& cluster, const PlanSettings& settings,
                     ModelSpec share, Mesh mesh)
    : spec_(spec),
      cluster_(cluster),
      settings_(settings),
      share_(std::move(share)),
      cap_bytes_(settings.cap_bytes.value_or(cluster.usable_bytes())),
      pricer_(std::move(mesh), cluster_.profile.get(), share_.training.sizes, settings.family,
              settings.bucket_bytes) {}

OptimizerSeconds Evaluator::Update(size_t i, const Policy& policy) const {
  return OptimizerSecondsOf(
      PaddedTotal(share_.units[i].trainable(), mesh()) / Product(policy.optim),
      share_.training.sizes, settings_.memory.offload, cluster_.memory_bandwidth,
      cluster_.host_bytes_per_second());
}

PlanCost Evaluator::FromPrice(size_t i, const UnitPrice& price,
                              const OptimizerSeconds& update) const {
  const Unit& unit = share_.units[i];
  const int64_t m = settings_.micro_batches;
  PlanCost out;
  AddTerms(price.seconds, unit.repeat, m, out.seconds);
  AddTerms(price.bytes, unit.repeat, m, out.bytes);
  const Moments<double>& s = price.seconds;
  out.extra_micro_batch =
      static_cast<double>(unit.repeat) * (s.gather + s.regather + s.scatter + s.accumulate);
  const ComputeSeconds c = ComputeOf(unit, share_.training.recompute, cluster_.flops());
  out.compute = static_cast<double>(m * unit.repeat) * (c.forward + c.backward);
  out.update = {static_cast<double>(unit.repeat) * update.optimizer,
                static_cast<double>(unit.repeat) * update.offload};

  const bool first = i == 0, last = i + 1 == share_.units.size();
  const auto exposed = [&](Edge edge) {
    return ExposedOfUnit(s, c, edge, m, cluster_.overlap_slowdown(), settings_.overlap);
  };
  if (unit.repeat == 1) {
    out.exposed = exposed(first && last ? Edge::kBoth
                          : first       ? Edge::kFirst
                          : last        ? Edge::kLast
                                        : Edge::kNone);
  } else {
    if (first) out.exposed += exposed(Edge::kFirst);
    if (last) out.exposed += exposed(Edge::kLast);
    out.exposed += static_cast<double>(unit.repeat - first - last) * exposed(Edge::kNone);
  }
  return out;
}

absl::Status Evaluator::CheckFinite(const PlanCost& cost) const {
  if (std::isfinite(cost.seconds.total()) && std::isfinite(cost.step())) return absl::OkStatus();
  return InvalidArgument("profile '", cluster_.profile->name(), "' has no times for some of the ",
                         "collectives of model '", share_.name, "' on ", mesh().ToString());
}

absl::StatusOr<PlanCost> Evaluator::CostOfUnit(size_t i, const Policy& policy) {
  LINS_ASSIGN_OR_RETURN(const UnitPrice price, pricer_.Price(share_.units[i], policy));
  const PlanCost cost = FromPrice(i, price, Update(i, policy));
  LINS_RETURN_IF_ERROR(CheckFinite(cost));
  return cost;
}

absl::StatusOr<std::vector<UnitPrice>> Evaluator::Prices(const std::vector<Policy>& policies) {
  const bool whole = UpdatesWhole(settings_, policies);
  const int64_t all = share_.trainable();
  // Each unit answers for its part of the time.
  const double update = whole && all > 0 ? pricer_.PaperUpdate(all, policies[0]) : 0;
  std::vector<UnitPrice> out;
  for (size_t i = 0; i < policies.size(); ++i) {
    LINS_ASSIGN_OR_RETURN(UnitPrice price, pricer_.Price(share_.units[i], policies[i]));
    if (whole && all > 0) {
      price.seconds.update =
          update * static_cast<double>(share_.units[i].trainable()) / static_cast<double>(all);
    }
    out.push_back(price);
  }
  return out;
}

absl::StatusOr<PlanCost> Evaluator::Cost(const std::vector<Policy>& policies) {
  LINS_ASSIGN_OR_RETURN(const std::vector<UnitPrice> prices, Prices(policies));
  PlanCost sum;
  for (size_t i = 0; i < prices.size(); ++i) {
    Add(FromPrice(i, prices[i], Update(i, policies[i])), sum);
  }
  LINS_RETURN_IF_ERROR(CheckFinite(sum));
  return sum;
}

absl::StatusOr<std::vector<Moments<double>>> Evaluator::Seconds(
    const std::vector<Policy>& policies) {
  LINS_ASSIGN_OR_RETURN(const std::vector<UnitPrice> prices, Prices(policies));
  std::vector<Moments<double>> out;
  for (const UnitPrice& p : prices) out.push_back(p.seconds);
  return out;
}

absl::StatusOr<double> Evaluator::LeastCost(const Policy& policy) {
  PlanCost sum;
  for (size_t i = 0; i < share_.units.size(); ++i) {
    LINS_ASSIGN_OR_RETURN(const UnitPrice price,
                          pricer_.PriceOfMicroBatch(share_.units[i], policy));
    Add(FromPrice(i, price, {}), sum);
  }
  return sum.Of(settings_.objective);
}

MemoryItems Evaluator::Memory(const std::vector<Policy>& policies) const {
  return MemoryOf(share_, policies, mesh(), settings_.memory);
}

Plan Evaluator::MakePlan(std::vector<Policy> policies, const PlanCost& cost,
                         std::string reason) const {
  MemoryItems memory = Memory(policies);
  return Plan{.spec = spec_,
              .cluster = cluster_,
              .settings = settings_,
              .share = share_,
              .mesh = mesh(),
              .policies = std::move(policies),
              .cost = cost,
              .memory = memory,
              .cap_bytes = cap_bytes_,
              .reason = std::move(reason),
              .alternatives = {}};
}

}  // namespace lins
