#include "lins_policy/solve.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "lins_policy/report.h"
#include "lins_policy/solve_parts.h"
#include "mesh/error.h"

namespace lins {
namespace {

// Over how many nodes the states of a policy are cut.
int64_t NodesSpanned(const Policy& p) {
  int64_t most = 1;
  for (const Factors* f : {&p.param, &p.grad, &p.optim})
    most = std::max(most, Product(*f) / (*f)[0]);
  return most;
}

struct Candidate {
  Policy policy;
  double cost = 0;  // of the objective, over all scales
  double extra = 0;
  PlanCost own;  // on the cluster itself
  int64_t memory = 0;
};

// Whether a beats b among plans of equal cost, and by what.
std::pair<bool, std::string> Preferred(const Candidate& a, const Candidate& b) {
  const double least = std::min(a.extra, b.extra);
  if (std::abs(a.extra - b.extra) > 1e-9 * least) {
    return {a.extra < b.extra, "an extra micro-batch costs less"};
  }
  const int64_t na = NodesSpanned(a.policy), nb = NodesSpanned(b.policy);
  if (na != nb) return {na < nb, "it is cut over fewer nodes"};
  if (a.memory != b.memory) return {a.memory < b.memory, "it needs less memory"};
  return {a.cost < b.cost, "it costs less"};
}

}  // namespace

std::vector<Policy> LegalOnAll(const std::vector<WeightedEvaluator>& scales) {
  const Evaluator& own = scales[0].evaluator;
  std::vector<Policy> out;
  for (Policy& p : LegalPolicies(own.mesh(), own.settings().space)) {
    const bool legal = std::all_of(scales.begin(), scales.end(), [&](const WeightedEvaluator& s) {
      return ValidatePolicy(p, s.evaluator.mesh(), Space::kFull).ok();
    });
    if (legal) out.push_back(std::move(p));
  }
  return out;
}

int64_t WithoutMargin(int64_t cap_bytes, double margin) {
  const auto with = [&](int64_t n) {
    return n + static_cast<int64_t>(std::ceil(margin * static_cast<double>(n)));
  };
  int64_t n = static_cast<int64_t>(static_cast<double>(cap_bytes) / (1 + margin)) + 2;
  while (n > 0 && with(n) > cap_bytes) --n;
  return n;
}

absl::StatusOr<Plan> SolveUniform(std::vector<WeightedEvaluator>& scales) {
  Evaluator& own = scales[0].evaluator;
  const size_t units = own.share().units.size();
  struct Bounded {
    Candidate candidate;
    double bound;
  };
  std::vector<Bounded> fitting;
  const std::vector<Policy> legal = LegalOnAll(scales);
  // Policies that differ in OS alone share a bound; they come one after another for each P and G.
  absl::flat_hash_map<std::string, double> bounds;
  for (const Policy& p : legal) {
    bool fits = true;
    for (const WeightedEvaluator& s : scales) {
      const std::vector<Policy> all(units, p);
      fits = fits && s.evaluator.Memory(all).total() <= s.evaluator.cap_bytes();
    }
    if (!fits) continue;
    Policy key = p;
    key.optim = Product(p.grad) > Product(p.param) ? p.grad : p.param;
    const auto [it, added] = bounds.try_emplace(key.ToString(), 0);
    if (added) {
      for (WeightedEvaluator& s : scales) {
        LINS_ASSIGN_OR_RETURN(const double least, s.evaluator.LeastCost(key));
        it->second += s.weight * least;
      }
    }
    fitting.push_back(
        {{p, 0, 0, {}, own.Memory(std::vector<Policy>(units, p)).total()}, it->second});
  }
  if (fitting.empty()) return absl::ResourceExhaustedError("nothing fits");
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const Bounded& a, const Bounded& b) { return a.bound < b.bound; });

  // In order of their bounds, until no bound can reach the best.
  const double reach = 1 + own.settings().tie_epsilon;
  std::vector<Candidate> priced;
  double best = std::numeric_limits<double>::infinity();
  for (Bounded& b : fitting) {
    if (b.bound > best * reach) break;
    Candidate& c = b.candidate;
    for (size_t i = 0; i < scales.size(); ++i) {
      LINS_ASSIGN_OR_RETURN(const PlanCost cost,
                            scales[i].evaluator.Cost(std::vector<Policy>(units, c.policy)));
      if (i == 0) c.own = cost;
      c.cost += scales[i].weight * cost.Of(own.settings().objective);
      c.extra += scales[i].weight * cost.extra_micro_batch;
    }
    best = std::min(best, c.cost);
    priced.push_back(std::move(c));
  }
  std::stable_sort(priced.begin(), priced.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });

  size_t chosen = 0, equal = 1;
  for (; equal < priced.size() && priced[equal].cost <= best * reach; ++equal) {
    if (Preferred(priced[equal], priced[chosen]).first) chosen = equal;
  }
  std::string reason = absl::StrFormat("the least cost of %d plans that fit, of %d legal ones",
                                       fitting.size(), legal.size());
  if (equal > 1) {
    const Candidate& other = priced[chosen == 0 ? 1 : 0];
    reason = absl::StrFormat(
        "one of %d within %.3g %% of the least cost, of %d plans that fit (%d "
        "legal): against %s, %s",
        equal, 100 * own.settings().tie_epsilon, fitting.size(), legal.size(),
        other.policy.ToString(), Preferred(priced[chosen], other).second);
  }
  Plan plan = own.MakePlan(std::vector<Policy>(units, priced[chosen].policy), priced[chosen].own,
                           std::move(reason));
  for (size_t i = 0; i < priced.size() && plan.alternatives.size() < 8; ++i) {
    Alternative a{
        priced[i].policy.ToString(), priced[i].policy, priced[i].own, priced[i].memory, true, ""};
    if (i != chosen) {
      a.why_not =
          priced[i].cost <= best * reach
              ? absl::StrCat("equal within the tolerance; of the chosen one, ",
                             Preferred(priced[chosen], priced[i]).second)
          : priced[chosen].cost > 0
              ? absl::StrFormat("costs %.3g times as much", priced[i].cost / priced[chosen].cost)
              : absl::StrCat("costs ", FormatSeconds(priced[i].cost), " more");
    }
    plan.alternatives.push_back(std::move(a));
  }
  return plan;
}

absl::StatusOr<std::vector<WeightedEvaluator>> MakeScales(const ModelSpec& spec,
                                                          const Cluster& cluster,
                                                          const PlanSettings& settings) {
  std::vector<WeightedEvaluator> scales;
  LINS_ASSIGN_OR_RETURN(Evaluator own, Evaluator::Create(spec, cluster, settings));
  scales.push_back({std::move(own), 1.0});
  for (const Scale& s : settings.scales) {
    Cluster there = cluster;
    there.nodes = s.nodes;
    PlanSettings then = settings;
    then.micro_batches = s.micro_batches;
    LINS_ASSIGN_OR_RETURN(Evaluator e, Evaluator::Create(spec, there, then));
    scales.push_back({std::move(e), s.weight});
  }
  return scales;
}

absl::StatusOr<Plan> Solve(const ModelSpec& spec, const Cluster& cluster,
                           const PlanSettings& settings) {
  LINS_ASSIGN_OR_RETURN(std::vector<WeightedEvaluator> scales, MakeScales(spec, cluster, settings));
  absl::StatusOr<Plan> plan =
      settings.uniform ? SolveUniform(scales) : SolvePerUnit(scales[0].evaluator);
  if (!absl::IsResourceExhausted(plan.status())) return plan;
  return Infeasible(scales, spec, cluster, settings);
}

}  // namespace lins
