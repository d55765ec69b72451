// The solver of a choice per unit: as good as pricing every combination.
#include <gtest/gtest.h>

#include <limits>

#include "lins_policy/solve.h"
#include "problems.h"

namespace lins {
namespace {

// Every combination of policies, each priced as a plan of its own.
struct BruteForce {
  bool feasible = false;
  double cost = std::numeric_limits<double>::infinity();
  int64_t least_bytes = std::numeric_limits<int64_t>::max();
};

BruteForce TryAll(const Problem& p, const std::vector<Policy>& legal) {
  BruteForce out;
  const size_t units = p.spec.units.size();
  std::vector<size_t> at(units, 0);
  for (;;) {
    std::vector<Policy> each;
    for (const size_t i : at) each.push_back(legal[i]);
    const Plan plan = *PricePlan(p.spec, p.cluster, each, p.settings);
    out.least_bytes = std::min(out.least_bytes, plan.memory.total());
    if (plan.fits()) {
      out.feasible = true;
      out.cost = std::min(out.cost, plan.cost.Of(p.settings.objective));
    }
    size_t i = 0;
    while (i < units && ++at[i] == legal.size()) at[i++] = 0;
    if (i == units) return out;
  }
}

// Costs are solved for in whole picoseconds of all copies of a unit.
constexpr double kPicosecond = 1e-12;

TEST(SolveUnitsTest, EqualsBruteForce) {
  Random random(1);
  int solved = 0, infeasible = 0;
  for (int instance = 0; instance < 120; ++instance) {
    Problem p = RandomProblem(random, 3);
    p.settings.uniform = false;
    std::vector<Policy> legal =
        LegalPolicies(p.cluster.gpus_per_node, p.cluster.nodes, p.settings.space);
    if (legal.size() > 20) continue;
    if (legal.size() > 10) p.spec.units.pop_back();
    std::vector<Policy> some;
    for (size_t i = 0; i < p.spec.units.size(); ++i) {
      some.push_back(legal[random.Int(0, static_cast<int64_t>(legal.size()) - 1)]);
    }
    const Plan at = *PricePlan(p.spec, p.cluster, some, p.settings);
    p.settings.cap_bytes = std::max<int64_t>(1, at.memory.total() - random.Int(0, 1));
    const BruteForce want = TryAll(p, legal);
    const absl::StatusOr<Plan> got = Solve(p.spec, p.cluster, p.settings);
    ASSERT_EQ(got.ok(), want.feasible) << instance << " " << got.status();
    if (got.ok()) {
      ++solved;
      EXPECT_LE(got->memory.total(), *p.settings.cap_bytes);
      EXPECT_NEAR(got->cost.Of(p.settings.objective), want.cost, 4 * kPicosecond) << instance;
    } else {
      ++infeasible;
      EXPECT_EQ(InfeasibleOf(got.status())->least_bytes, want.least_bytes) << instance;
    }
  }
  EXPECT_GT(solved, 40);
  EXPECT_GT(infeasible, 3);
}

TEST(SolveUnitsTest, NeverWorseThanOneChoiceForAll) {
  Random random(2);
  int better = 0;
  for (int instance = 0; instance < 200; ++instance) {
    Problem p = RandomProblem(random, random.Int(1, 4));
    p.settings.tie_epsilon = 0;
    const std::vector<Policy> legal =
        LegalPolicies(p.cluster.gpus_per_node, p.cluster.nodes, p.settings.space);
    const Policy& some = legal[random.Int(0, static_cast<int64_t>(legal.size()) - 1)];
    p.settings.cap_bytes = PricePlan(p.spec, p.cluster, {some}, p.settings)->memory.total();
    const Plan uniform = *Solve(p.spec, p.cluster, p.settings);
    p.settings.uniform = false;
    // The paper's owners broadcast whole pieces under one choice, and unit by unit otherwise.
    const Plan priced = *PricePlan(p.spec, p.cluster, uniform.policies, p.settings);
    const Plan each = *Solve(p.spec, p.cluster, p.settings);
    EXPECT_LE(each.cost.Of(p.settings.objective),
              priced.cost.Of(p.settings.objective) + 8 * kPicosecond);
    better += each.cost.Of(p.settings.objective) < 0.99 * priced.cost.Of(p.settings.objective);
    // Copies that choose for themselves are never worse either.
    p.settings.split_repeats = true;
    const Plan split = *Solve(p.spec, p.cluster, p.settings);
    EXPECT_LE(split.cost.Of(p.settings.objective),
              each.cost.Of(p.settings.objective) + 40 * kPicosecond);
    EXPECT_LE(split.memory.total(), *p.settings.cap_bytes);
  }
  EXPECT_GT(better, 20);
}

TEST(SolveUnitsTest, SplitCopiesAreUnitsOfTheirOwn) {
  PlanSettings settings;
  settings.uniform = false;
  settings.split_repeats = true;
  const Plan plan = *Solve(*ModelSpec::Llama("7B", {}), A800(1), settings);
  ASSERT_EQ(plan.share.units.size(), 34u);
  EXPECT_EQ(plan.share.units[1].name, "layers.0");
  EXPECT_EQ(plan.share.units[32].name, "layers.31");
  EXPECT_EQ(plan.policies.size(), 34u);
}

// Copies that choose for themselves, under every cap from the least memory on: the optimum falls as
// the cap rises.
TEST(SolveUnitsTest, MoreMemoryIsNeverSlower) {
  PlanSettings settings{.micro_batches = 4, .objective = Objective::kComm};
  settings.uniform = false;
  settings.split_repeats = true;
  const ModelSpec spec = *ModelSpec::Llama("13B", {});
  settings.cap_bytes = 1;
  const auto none = Solve(spec, A800(2), settings);
  const int64_t least = InfeasibleOf(none.status())->least_bytes;
  double before = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i <= 20; ++i) {
    settings.cap_bytes = least + i * (200'000'000'000 - least) / 20;
    const Plan plan = *Solve(spec, A800(2), settings);
    EXPECT_LE(plan.memory.total(), *settings.cap_bytes);
    EXPECT_LE(plan.cost.seconds.total(), before + 40 * kPicosecond);
    before = plan.cost.seconds.total();
  }
}

TEST(SolveUnitsTest, StepsBeyondCountingAreRefused) {
  ModelSpec spec{.name = "slow", .units = {{.name = "slow", .parameters = int64_t{1} << 36}}};
  PlanSettings settings{.micro_batches = 1 << 20, .objective = Objective::kComm};
  settings.cap_bytes = kMostMemory;
  settings.uniform = false;
  const auto plan = Solve(spec, ModelCluster(1, 8), settings);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("can be planned per unit"), std::string::npos)
      << plan.status();
}

}  // namespace
}  // namespace lins
