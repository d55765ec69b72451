#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_format.h"
#include "lins_policy/knapsack.h"
#include "lins_policy/solve_parts.h"
#include "mesh/error.h"

namespace lins {
namespace {

// A policy of one unit, all copies of it.
struct Option {
  int policy;  // index into the legal ones
  int64_t weight, picoseconds;
  int64_t gathered, bucket;  // of one copy: of these only the largest of the plan counts
};

constexpr double kMostSeconds = 1e6;  // of a step: in picoseconds sums stay below 2^62
int64_t Picoseconds(double seconds) {
  return std::llround(std::min(seconds, 2 * kMostSeconds) * 1e12);
}

// Every value that the largest gathered unit (or bucket) of a plan can have, rising.
std::vector<int64_t> Limits(const std::vector<std::vector<Option>>& units, int64_t Option::*size) {
  std::set<int64_t> out = {0};
  for (const auto& options : units) {
    for (const Option& o : options) out.insert(o.*size);
  }
  return {out.begin(), out.end()};
}

struct Problem {
  std::vector<Policy> legal;
  std::vector<std::vector<Option>> units;
  std::vector<int64_t> gathered, bucket;  // every limit worth setting
  int64_t gathered_alive = 0, bucket_alive = 0;
  int64_t fixed = 0;  // bytes that no choice changes, margin not in it

  // What units alive at once take when the largest of them are these.
  int64_t Largest(int64_t most_gathered, int64_t most_bucket) const {
    return gathered_alive * most_gathered + bucket_alive * most_bucket;
  }
};

// Every unit's bytes under every policy; costs are 0.
Problem MakeProblem(const Evaluator& evaluator) {
  const PlanSettings& settings = evaluator.settings();
  const ModelSpec& share = evaluator.share();
  const Mesh& mesh = evaluator.mesh();
  Problem problem;
  problem.legal = LegalPolicies(mesh, settings.space);
  for (size_t i = 0; i < share.units.size(); ++i) {
    std::vector<Option> options;
    for (size_t j = 0; j < problem.legal.size(); ++j) {
      const UnitMemory m = MemoryOfUnit(share.units[i], problem.legal[j], mesh,
                                        share.training.sizes, settings.memory);
      options.push_back(
          {static_cast<int>(j), share.units[i].repeat * m.sum(), 0, m.gathered, m.bucket});
    }
    problem.units.push_back(std::move(options));
  }
  problem.gathered = Limits(problem.units, &Option::gathered);
  problem.gathered_alive = AliveAtOnce(share, settings.memory.gathered_units);
  problem.fixed = FixedMemory(share, mesh, settings.memory).total();
  problem.bucket = Limits(problem.units, &Option::bucket);
  problem.bucket_alive = AliveAtOnce(share, settings.memory.gradient_buckets);
  return problem;
}

absl::Status AddCosts(Evaluator& evaluator, Problem& problem) {
  const std::vector<Unit>& units = evaluator.share().units;
  std::vector<size_t> priced;  // the first of every kind, the model's edges left out
  for (size_t i = 0; i < units.size(); ++i) {
    // Units that differ in their name alone cost the same, but for the edges.
    if (i > 0 && i + 1 < units.size()) {
      const auto twin = std::find_if(priced.begin(), priced.end(), [&](size_t j) {
        Unit renamed = units[j];
        renamed.name = units[i].name;
        return renamed == units[i];
      });
      if (twin != priced.end()) {
        problem.units[i] = problem.units[*twin];
        continue;
      }
      priced.push_back(i);
    }
    for (Option& o : problem.units[i]) {
      LINS_ASSIGN_OR_RETURN(const PlanCost c, evaluator.CostOfUnit(i, problem.legal[o.policy]));
      o.picoseconds = Picoseconds(c.Of(evaluator.settings().objective));
    }
  }
  double worst = 0;
  for (const auto& options : problem.units) {
    int64_t most = 0;
    for (const Option& o : options) most = std::max(most, o.picoseconds);
    worst += static_cast<double>(most);
  }
  if (worst > kMostSeconds * 1e12) {
    return InvalidArgument("a step may take ", worst / 1e12, " seconds of communication: up to ",
                           kMostSeconds, " can be planned per unit");
  }
  return absl::OkStatus();
}

struct Choices {
  bool feasible = false;
  int64_t cost = std::numeric_limits<int64_t>::max();
  std::vector<int> policies;  // by unit
  int64_t states = 0;
};

// The best choices whose bytes beside the fixed ones are at most `room`.
Choices Best(const Problem& problem, int64_t room) {
  Choices best;
  for (const int64_t most_gathered : problem.gathered) {
    for (const int64_t most_bucket : problem.bucket) {
      const int64_t largest = problem.Largest(most_gathered, most_bucket);
      if (largest > room) break;
      std::vector<std::vector<KnapsackItem>> classes;
      std::vector<std::vector<int>> policies;
      for (const auto& options : problem.units) {
        classes.emplace_back();
        policies.emplace_back();
        for (const Option& o : options) {
          if (o.gathered > most_gathered || o.bucket > most_bucket) continue;
          classes.back().push_back({o.weight, o.picoseconds});
          policies.back().push_back(o.policy);
        }
      }
      const KnapsackResult r = SolveKnapsack(classes, room - largest, best.cost);
      best.states += r.states;
      if (!r.feasible) continue;
      best.feasible = true;
      best.cost = r.cost;
      best.policies.clear();
      for (size_t i = 0; i < r.choice.size(); ++i) {
        best.policies.push_back(policies[i][r.choice[i]]);
      }
    }
  }
  return best;
}

std::vector<Policy> Policies(const Problem& problem, const Choices& choices) {
  std::vector<Policy> out;
  for (const int p : choices.policies) out.push_back(problem.legal[p]);
  return out;
}

}  // namespace

absl::StatusOr<Plan> SolvePerUnit(Evaluator& evaluator) {
  Problem problem = MakeProblem(evaluator);
  LINS_RETURN_IF_ERROR(AddCosts(evaluator, problem));
  const int64_t room =
      WithoutMargin(evaluator.cap_bytes(), evaluator.settings().memory.margin) - problem.fixed;
  const Choices best = Best(problem, room);
  if (!best.feasible) return absl::ResourceExhaustedError("nothing fits");
  std::vector<Policy> each = Policies(problem, best);
  LINS_ASSIGN_OR_RETURN(const PlanCost cost, evaluator.Cost(each));
  return evaluator.MakePlan(
      std::move(each), cost,
      absl::StrFormat("the least cost of all choices per unit (%d units, %d policies each; exact, "
                      "gap 0, %d states)",
                      problem.units.size(), problem.legal.size(), best.states));
}

MemoryItems LeastMemoryPerUnit(const Evaluator& evaluator) {
  const Problem problem = MakeProblem(evaluator);
  int64_t least = std::numeric_limits<int64_t>::max();
  std::vector<Policy> best;
  for (const int64_t most_gathered : problem.gathered) {
    for (const int64_t most_bucket : problem.bucket) {
      int64_t bytes = problem.Largest(most_gathered, most_bucket);
      std::vector<Policy> each;
      for (const auto& options : problem.units) {
        const Option* lightest = nullptr;
        for (const Option& o : options) {
          if (o.gathered > most_gathered || o.bucket > most_bucket) continue;
          if (lightest == nullptr || o.weight < lightest->weight) lightest = &o;
        }
        if (lightest == nullptr) break;
        bytes += lightest->weight;
        each.push_back(problem.legal[lightest->policy]);
      }
      if (each.size() < problem.units.size() || bytes >= least) continue;
      least = bytes;
      best = std::move(each);
    }
  }
  return evaluator.Memory(best);
}

}  // namespace lins
