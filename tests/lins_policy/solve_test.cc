// The solver of one choice for all units: as good as pricing every legal plan, ties included.
#include "lins_policy/solve.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "problems.h"

namespace lins {
namespace {

int64_t Nodes(const Policy& p) {
  int64_t most = 1;
  for (const Factors& f : {p.param, p.grad, p.optim}) most = std::max(most, f[1]);
  return most;
}

// Every policy priced by itself; of those that fit and cost at most (1 + epsilon) times the least,
// the least extra micro-batch, then nodes, then memory, then cost.
std::optional<Plan> ByBruteForce(const Problem& p, const std::vector<Policy>& legal) {
  std::vector<Plan> fitting;
  double least = std::numeric_limits<double>::infinity();
  for (const Policy& policy : legal) {
    Plan plan = *PricePlan(p.spec, p.cluster, {policy}, p.settings);
    if (!plan.fits()) continue;
    least = std::min(least, plan.cost.Of(p.settings.objective));
    fitting.push_back(std::move(plan));
  }
  std::optional<Plan> best;
  const auto key = [&](const Plan& plan) {
    return std::make_tuple(std::llround(plan.cost.extra_micro_batch * 1e15),
                           Nodes(plan.policies[0]), plan.memory.total(),
                           plan.cost.Of(p.settings.objective));
  };
  for (Plan& plan : fitting) {
    if (plan.cost.Of(p.settings.objective) > least * (1 + p.settings.tie_epsilon)) continue;
    if (!best || key(plan) < key(*best)) best = std::move(plan);
  }
  return best;
}

// Of brute force and solver: the same plan, or one that no rule tells apart.
void ExpectAsGood(const std::optional<Plan>& want, const absl::StatusOr<Plan>& got,
                  const Problem& p) {
  ASSERT_EQ(want.has_value(), got.ok()) << got.status();
  if (!got.ok()) {
    EXPECT_TRUE(InfeasibleOf(got.status()).has_value()) << got.status();
    return;
  }
  EXPECT_TRUE(got->fits());
  const Policy &a = want->policies[0], &b = got->policies[0];
  EXPECT_TRUE(a == b || (Near(want->cost.extra_micro_batch, got->cost.extra_micro_batch) &&
                         Nodes(a) == Nodes(b) && want->memory.total() == got->memory.total()))
      << a.ToString() << " (brute force) against " << b.ToString() << ": "
      << want->cost.Of(p.settings.objective) << " " << got->cost.Of(p.settings.objective) << " "
      << want->cost.extra_micro_batch << " " << got->cost.extra_micro_batch;
}

TEST(SolveTest, UniformEqualsBruteForce) {
  Random random(1);
  int solved = 0, infeasible = 0, tied = 0;
  for (int instance = 0; instance < 600; ++instance) {
    Problem p = RandomProblem(random, random.Int(1, 3));
    const std::vector<Policy> legal =
        LegalPolicies(p.cluster.gpus_per_node, p.cluster.nodes, p.settings.space);
    // A cap somewhere around what plans need.
    const Policy& some = legal[random.Int(0, static_cast<int64_t>(legal.size()) - 1)];
    const Plan at = *PricePlan(p.spec, p.cluster, {some}, p.settings);
    p.settings.cap_bytes = std::max<int64_t>(1, at.memory.total() - random.Int(0, 1));
    const std::optional<Plan> want = ByBruteForce(p, legal);
    const absl::StatusOr<Plan> got = Solve(p.spec, p.cluster, p.settings);
    ExpectAsGood(want, got, p);
    if (HasFailure()) FAIL() << "instance " << instance;
    (got.ok() ? solved : infeasible)++;
    tied += got.ok() && absl::StrContains(got->reason, "within");
  }
  EXPECT_GT(solved, 300);
  EXPECT_GT(infeasible, 20);
  EXPECT_GT(tied, 50);
}

TEST(SolveTest, AlternativesAndReasonsAgreeWithThePlan) {
  const Plan plan = *Solve(*ModelSpec::Llama("7B", {}), A800(16), {.micro_batches = 8});
  ASSERT_FALSE(plan.alternatives.empty());
  double before = 0;
  int chosen = 0;
  for (const Alternative& a : plan.alternatives) {
    EXPECT_TRUE(a.fits);
    EXPECT_GE(a.cost.Of(Objective::kStep), before);  // cheapest first
    before = a.cost.Of(Objective::kStep);
    const Plan again = *PricePlan(plan.spec, plan.cluster, {a.policy}, plan.settings);
    EXPECT_EQ(again.memory.total(), a.memory_bytes);
    EXPECT_TRUE(Near(again.cost.exposed, a.cost.exposed));
    if (a.policy == plan.policies[0]) ++chosen;
    EXPECT_EQ(a.why_not.empty(), a.policy == plan.policies[0]);
  }
  EXPECT_EQ(chosen, 1);
}

TEST(SolveTest, TheQuotaCountsNotTheCard) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  Cluster cluster = A800(2);
  cluster.memory_bytes = int64_t{1} << 40;
  PlanSettings settings;
  const Plan free = *Solve(spec, cluster, settings);
  cluster.quota_bytes = 60LL << 30;
  const Plan quota = *Solve(spec, cluster, settings);
  EXPECT_EQ(quota.cap_bytes, 60LL << 30);
  EXPECT_LE(quota.memory.total(), 60LL << 30);
  EXPECT_GT(free.memory.total(), quota.memory.total());
  settings.cap_bytes = 1LL << 40;  // given, it stands before both
  EXPECT_EQ(Solve(spec, cluster, settings)->policies, free.policies);
}

// 2 nodes x 4 GPUs, all of it: 4 meshes, 20 nested plans, 16 paper plans.
class TwoByFour : public testing::Test {
 protected:
  static std::vector<Policy> Everything() {  // 7 factors for each state, rules or not
    std::vector<Factors> all;
    for (int64_t g : {1, 2, 4}) {
      for (int64_t n : {1, 2}) all.push_back({g, n});
    }
    all.push_back({3, 1});
    std::vector<Policy> out;
    for (const Factors& p : all) {
      for (const Factors& g : all) {
        for (const Factors& o : all) out.push_back({p, g, o});
      }
    }
    return out;
  }
  static bool Divides(const Factors& f) { return 4 % f[0] == 0 && 2 % f[1] == 0; }
  static bool NodeFirst(const Factors& f) { return f[1] == 1 || f[0] == 4; }
  static bool Nested(const Factors& a, const Factors& b) {
    return b[0] % a[0] == 0 && b[1] % a[1] == 0;
  }
  struct Filters {
    bool order = true, divisibility = true, node_first = true;  // false: reversed
  };
  static std::set<std::string> Left(const Filters& f) {
    std::set<std::string> out;
    for (const Policy& p : Everything()) {
      const auto all = [&](auto rule) { return rule(p.param) && rule(p.grad) && rule(p.optim); };
      if (all(Divides) != f.divisibility) continue;
      if (all(NodeFirst) != f.node_first) continue;
      if ((Nested(p.param, p.grad) && Nested(p.grad, p.optim)) != f.order) continue;
      out.insert(p.ToString());
    }
    return out;
  }
  static std::set<std::string> Names(const std::vector<Policy>& policies) {
    std::set<std::string> out;
    for (const Policy& p : policies) out.insert(p.ToString());
    return out;
  }
};

TEST_F(TwoByFour, IsEnumeratedInFull) {
  EXPECT_EQ(LegalFactors(4, 2).size(), 4u);
  const std::set<std::string> nested = Names(LegalPolicies(4, 2, Space::kNested));
  EXPECT_EQ(nested.size(), 20u);
  EXPECT_EQ(nested, Left({}));
  EXPECT_EQ(LegalPolicies(4, 2, Space::kPaper).size(), 16u);
}

TEST_F(TwoByFour, EachFilterReversedIsNoticed) {
  const std::set<std::string> nested = Names(LegalPolicies(4, 2, Space::kNested));
  EXPECT_NE(nested, Left({.order = false}));
  EXPECT_NE(nested, Left({.divisibility = false}));
  EXPECT_NE(nested, Left({.node_first = false}));
}

TEST_F(TwoByFour, EverythingElseIsRefused) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  const std::set<std::string> nested = Names(LegalPolicies(4, 2, Space::kNested));
  for (const Policy& p : Everything()) {
    EXPECT_EQ(ValidatePolicy(p, mesh).ok(), nested.count(p.ToString()) == 1) << p.ToString();
  }
}

// The optimum over the nested space is the best of all that pass the rules, whatever the cap.
TEST_F(TwoByFour, FiltersKeepTheOptimum) {
  Random random(3);
  for (int instance = 0; instance < 40; ++instance) {
    Problem p = RandomProblem(random, 2);
    p.cluster.nodes = 2;
    p.cluster.gpus_per_node = 4;
    p.cluster.profile = std::make_shared<Profile>(RandomProfile(random, 4, 2));
    p.settings.space = Space::kNested;
    std::vector<Policy> by_rules;
    const std::set<std::string> left = Left({});
    for (const Policy& policy : Everything()) {
      if (left.count(policy.ToString()) > 0) by_rules.push_back(policy);
    }
    for (const Policy& at : by_rules) {
      p.settings.cap_bytes = PricePlan(p.spec, p.cluster, {at}, p.settings)->memory.total();
      ExpectAsGood(ByBruteForce(p, by_rules), Solve(p.spec, p.cluster, p.settings), p);
      if (HasFailure()) FAIL() << "instance " << instance;
    }
  }
}

// What the paper's restriction (G placed like P or like OS) costs, in a case where it loses: P is
// best whole, OS must be cut over all ranks, and G is best kept within a node, where every
// micro-batch reduces it, while it is too large to stay whole (docs/policy.md).
TEST(SolveTest, ThePapersRestrictionLosesWhereGWantsAPlaceOfItsOwn) {
  ModelSpec spec{.name = "7e9", .units = {{.name = "b", .parameters = 100'000'000, .repeat = 70}}};
  PlanSettings settings{.micro_batches = 8, .objective = Objective::kComm};
  settings.tie_epsilon = 0;
  settings.cap_bytes = 21'000'000'000;
  const Plan nested = *Solve(spec, A800(4), settings);
  EXPECT_EQ(nested.policies[0].ToString(), "P=1x1 G=8x1 OS=8x4") << nested.ToString();
  settings.space = Space::kPaper;
  const Plan paper = *Solve(spec, A800(4), settings);
  EXPECT_LT(nested.cost.seconds.total(), 0.9 * paper.cost.seconds.total())
      << nested.ToString() << " " << paper.ToString();
}

// Several scales: the weighted sum of costs, feasible on all of them.
TEST(SolveTest, SeveralScalesEqualBruteForce) {
  Random random(5);
  for (int instance = 0; instance < 40; ++instance) {
    Problem p = RandomProblem(random, 2);
    p.cluster.nodes = 2;
    p.cluster.gpus_per_node = 4;
    p.cluster.profile = std::make_shared<Profile>(RandomProfile(random, 4, 4));
    p.settings.scales = {{4, 2, 0.5}, {1, 8, 3.0}};
    const auto on = [&](const Scale& s, const Policy& policy) {
      Cluster there = p.cluster;
      there.nodes = s.nodes;
      PlanSettings then = p.settings;
      then.scales.clear();
      then.micro_batches = s.micro_batches;
      return PricePlan(p.spec, there, {policy}, then);
    };
    std::vector<Scale> scales = {{2, p.settings.micro_batches, 1.0}};
    scales.insert(scales.end(), p.settings.scales.begin(), p.settings.scales.end());
    struct Priced {
      double cost = 0, extra = 0;
      int64_t nodes, memory;
    };
    std::vector<Priced> fitting;
    const int64_t cap = random.Int(1 << 10, 1 << 28);
    p.settings.cap_bytes = cap;
    double least = std::numeric_limits<double>::infinity();
    for (const Policy& policy : LegalPolicies(4, 2, p.settings.space)) {
      if (policy.optim[1] > 1) continue;  // not possible on one node
      Priced sum{0, 0, Nodes(policy), 0};
      bool fits = true;
      for (const Scale& s : scales) {
        const Plan plan = *on(s, policy);
        sum.cost += s.weight * plan.cost.Of(p.settings.objective);
        sum.extra += s.weight * plan.cost.extra_micro_batch;
        if (s.nodes == 2) sum.memory = plan.memory.total();
        fits = fits && plan.fits();
      }
      if (!fits) continue;
      least = std::min(least, sum.cost);
      fitting.push_back(sum);
    }
    std::optional<std::tuple<int64_t, int64_t, int64_t>> want;
    for (const Priced& x : fitting) {
      if (x.cost > least * (1 + p.settings.tie_epsilon)) continue;
      const std::tuple<int64_t, int64_t, int64_t> key = {std::llround(x.extra * 1e15), x.nodes,
                                                         x.memory};
      if (!want || key < *want) want = key;
    }
    const absl::StatusOr<Plan> got = Solve(p.spec, p.cluster, p.settings);
    ASSERT_EQ(got.ok(), want.has_value()) << instance << " " << got.status();
    if (!got.ok()) continue;
    double extra = 0;
    for (const Scale& s : scales) {
      extra += s.weight * on(s, got->policies[0])->cost.extra_micro_batch;
    }
    EXPECT_NEAR(static_cast<double>(std::get<0>(*want)), extra * 1e15, 1e-9 * extra * 1e15 + 1);
    EXPECT_EQ(std::get<1>(*want), Nodes(got->policies[0]));
    EXPECT_EQ(std::get<2>(*want), got->memory.total());
  }
}

TEST(SolveTest, WhatIsLessThanBestIsNeverTheAnswerForOneGpu) {
  Cluster cluster = ModelCluster(1, 8);
  cluster.gpus_per_node = 1;
  const Plan plan = *Solve(*ModelSpec::Llama("7B", {}), cluster, {.cap_bytes = int64_t{1} << 40});
  EXPECT_EQ(plan.cost.seconds.total(), 0);
  EXPECT_EQ(plan.cost.exposed, 0);
  EXPECT_EQ(plan.memory.communicators, 0);
}

TEST(SolveTest, AProfileOfOneNodeSaysNothingOfTwo) {
  Cluster cluster = ModelCluster(1, 4);
  cluster.nodes = 2;
  const auto plan = Solve(*ModelSpec::Llama("7B", {}), cluster, {});
  ASSERT_FALSE(plan.ok());
  EXPECT_TRUE(absl::StrContains(plan.status().message(), "was measured on one node"))
      << plan.status();
}

}  // namespace
}  // namespace lins
