#include "lins_policy/pricing.h"

#include "mesh/error.h"

namespace lins {
namespace {

struct Group {
  int64_t gpus, nodes;
  int64_t size() const { return gpus * nodes; }
};

// The ranks that hold the pieces of `fine` within one piece of `coarse`.
Group Between(const Factors& fine, const Factors& coarse) {
  Group g{fine[0] / coarse[0], 1};
  for (size_t i = 1; i < fine.size(); ++i) g.nodes *= fine[i] / coarse[i];
  return g;
}

Factors One(const Mesh& mesh) { return Factors(mesh.ndim(), 1); }
Factors All(const Mesh& mesh) { return {mesh.shape().rbegin(), mesh.shape().rend()}; }

// What a rank of a ring receives.
int64_t GatherBytes(int64_t v, int64_t k) { return v / k * (k - 1); }

}  // namespace

Pricer::Pricer(Mesh mesh, const Profile* profile, const StateSizes& sizes, Family family,
               int64_t bucket_bytes)
    : mesh_(std::move(mesh)),
      profile_(profile),
      sizes_(sizes),
      family_(family),
      bucket_bytes_(bucket_bytes) {}

absl::StatusOr<Pricer::Transition> Pricer::Find(const Layout& src, const Layout& dst,
                                                int64_t itemsize) {
  if (src == dst) return Transition();
  const std::tuple<Layout, Layout, int64_t> key{src, dst, itemsize};
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  PlanOptions options;
  options.cost_model = profile_;
  LINS_ASSIGN_OR_RETURN(const RedistributionPlan plan,
                        PlanRedistribution(src, dst, itemsize, options));
  return known_[key] = {plan.seconds, plan.recv_bytes};
}

absl::StatusOr<UnitPrice> Pricer::Planned(const Unit& unit, const Policy& policy, bool whole_step) {
  UnitPrice price;
  const auto add = [&](const Layout& src, const Layout& dst, int64_t itemsize, double& seconds,
                       int64_t& bytes) -> absl::Status {
    LINS_ASSIGN_OR_RETURN(const Transition t, Find(src, dst, itemsize));
    seconds += t.seconds;
    bytes += t.bytes;
    return absl::OkStatus();
  };
  // Frozen parameters lie in a buffer of their own, which is only gathered.
  const int64_t numels[] = {unit.trainable(), unit.frozen};
  for (int frozen = 0; frozen < 2; ++frozen) {
    if (numels[frozen] == 0) continue;
    const UnitLayouts at = MakeUnitLayouts(policy, PaddedTotal(numels[frozen], mesh_), mesh_);
    Moments<double>& s = price.seconds;
    Moments<int64_t>& b = price.bytes;
    LINS_RETURN_IF_ERROR(add(at.param, at.whole, sizes_.param, s.gather, b.gather));
    LINS_RETURN_IF_ERROR(add(at.between, at.whole, sizes_.param, s.regather, b.regather));
    if (frozen) continue;
    LINS_RETURN_IF_ERROR(add(at.contribution, at.grad, sizes_.grad, s.accumulate, b.accumulate));
    // The last micro-batch goes to G as the others do, and from there to OS.
    s.reduce = s.accumulate;
    b.reduce = b.accumulate;
    if (!whole_step) continue;
    LINS_RETURN_IF_ERROR(add(at.grad, at.optim, sizes_.grad, s.reduce, b.reduce));
    LINS_RETURN_IF_ERROR(add(at.optim, at.param, sizes_.param, s.update, b.update));
  }
  return price;
}

// What the paper's formulas are made of.
struct Pricer::PaperMessages {
  int64_t all, trainable;  // bytes of the unit's parameters
  Group p, g, dp, o;       // pieces of P, and of G, all ranks and OS within one of P
  double buckets;          // as many as the formula says, a fraction of one included
};

Pricer::PaperMessages Pricer::Messages(const Unit& unit, const Policy& policy) const {
  PaperMessages m{PaddedTotal(unit.parameters, mesh_) * sizes_.param,
                  PaddedTotal(unit.trainable(), mesh_) * sizes_.param,
                  Between(policy.param, One(mesh_)),
                  Between(policy.grad, policy.param),
                  Between(All(mesh_), policy.param),
                  Between(policy.optim, policy.param),
                  0};
  m.buckets = static_cast<double>(m.trainable) / (static_cast<double>(bucket_bytes_) * m.p.size());
  return m;
}

UnitPrice Pricer::Paper(const Unit& unit, const Policy& policy) const {
  const auto [all, trainable, p, g, dp, o, buckets] = Messages(unit, policy);
  const auto time = [&](StepKind op, int64_t bytes, const Group& group) {
    return profile_->Seconds(op, bytes, group.gpus, group.nodes);
  };
  UnitPrice price;
  price.seconds = {.gather = time(StepKind::kAllGather, all, p),
                   .regather = time(StepKind::kAllGather, all, p),
                   .scatter = time(StepKind::kReduceScatter, trainable, p),
                   .accumulate = buckets * time(StepKind::kAllReduce, bucket_bytes_, g),
                   .reduce = buckets * time(StepKind::kAllReduce, bucket_bytes_, dp),
                   .update = PaperUpdate(unit.trainable(), policy)};
  const int64_t piece = trainable / p.size();
  price.bytes = {.gather = GatherBytes(all, p.size()),
                 .regather = GatherBytes(all, p.size()),
                 .scatter = GatherBytes(trainable, p.size()),
                 .accumulate = 2 * GatherBytes(piece, g.size()),
                 .reduce = 2 * GatherBytes(piece, dp.size()),
                 .update = GatherBytes(piece, o.size())};
  return price;
}

double Pricer::PaperUpdate(int64_t parameters, const Policy& policy) const {
  const Group o = Between(policy.optim, policy.param);
  const int64_t bytes = PaddedTotal(parameters, mesh_) * sizes_.param;
  return static_cast<double>(o.size()) *
         profile_->Seconds(StepKind::kBroadcast, bytes / Product(policy.optim), o.gpus, o.nodes);
}

absl::StatusOr<UnitPrice> Pricer::Price(const Unit& unit, const Policy& policy) {
  return family_ == Family::kPaper ? Paper(unit, policy) : Planned(unit, policy, true);
}

absl::StatusOr<UnitPrice> Pricer::PriceOfMicroBatch(const Unit& unit, const Policy& policy) {
  if (family_ == Family::kPlanned) return Planned(unit, policy, false);
  UnitPrice price = Paper(unit, policy);
  price.seconds.reduce = price.seconds.update = 0;
  price.bytes.reduce = price.bytes.update = 0;
  return price;
}

absl::StatusOr<std::vector<PricedCollective>> Pricer::Collectives(const Unit& unit,
                                                                  const Policy& policy,
                                                                  int64_t micro_batches) const {
  std::vector<PricedCollective> out;
  const auto add = [&](absl::string_view term, StepKind op, int64_t bytes, int64_t gpus,
                       int64_t nodes, double times) -> absl::Status {
    if (gpus * nodes == 1 || bytes == 0 || times == 0) return absl::OkStatus();
    LINS_ASSIGN_OR_RETURN(Estimate each, profile_->Time(op, bytes, gpus, nodes));
    out.push_back({term, op, bytes, gpus, nodes, times, std::move(each)});
    return absl::OkStatus();
  };
  const double m = static_cast<double>(micro_batches);
  if (family_ == Family::kPaper) {
    const auto [all, bytes, p, g, dp, o, buckets] = Messages(unit, policy);
    LINS_RETURN_IF_ERROR(add("T_p", StepKind::kAllGather, all, p.gpus, p.nodes, 2 * m));
    LINS_RETURN_IF_ERROR(add("T_p", StepKind::kReduceScatter, bytes, p.gpus, p.nodes, m));
    LINS_RETURN_IF_ERROR(
        add("T_g", StepKind::kAllReduce, bucket_bytes_, g.gpus, g.nodes, (m - 1) * buckets));
    LINS_RETURN_IF_ERROR(
        add("T_os0", StepKind::kAllReduce, bucket_bytes_, dp.gpus, dp.nodes, buckets));
    LINS_RETURN_IF_ERROR(add("T_os1", StepKind::kBroadcast, bytes / Product(policy.optim), o.gpus,
                             o.nodes, static_cast<double>(o.size())));
    return out;
  }
  const auto walk = [&](absl::string_view term, const RedistributionPlan& plan, double times) {
    for (const Step& s : plan.steps) {
      if (s.kind == StepKind::kSlice || s.kind == StepKind::kLocal) continue;
      const bool moved = s.kind == StepKind::kPermute || s.kind == StepKind::kExchange;
      const auto [gpus, nodes] = GpusAndNodes(mesh_, s.axes);
      LINS_RETURN_IF_ERROR(
          add(term, moved ? StepKind::kAllToAll : s.kind, s.bytes, gpus, nodes, times));
    }
    return absl::OkStatus();
  };
  PlanOptions options;
  options.cost_model = profile_;
  const int64_t numels[] = {unit.trainable(), unit.frozen};
  for (int frozen = 0; frozen < 2; ++frozen) {
    const int64_t numel = numels[frozen];
    if (numel == 0) continue;
    LINS_ASSIGN_OR_RETURN(const UnitPlan plan, MakeUnitPlan(policy, numel, mesh_, sizes_, options));
    LINS_RETURN_IF_ERROR(walk("T_p", plan.gather, m));
    LINS_RETURN_IF_ERROR(walk("T_p", plan.regather, m));
    if (frozen) continue;
    LINS_RETURN_IF_ERROR(walk("T_g", plan.accumulate, m - 1));
    LINS_RETURN_IF_ERROR(walk("T_os0", plan.accumulate, 1));
    LINS_RETURN_IF_ERROR(walk("T_os0", plan.reduce, 1));
    LINS_RETURN_IF_ERROR(walk("T_os1", plan.update, 1));
  }
  return out;
}

}  // namespace lins
