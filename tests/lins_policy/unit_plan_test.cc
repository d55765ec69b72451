// Unit plans: three prefixes of one chain, and traffic by formula.
#include "lins_policy/unit_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lins {
namespace {

struct Case {
  Mesh mesh;
  Policy policy;
};

std::vector<Case> AllNestedPlans() {
  std::vector<Case> out;
  for (const auto& [nodes, gpus] :
       {std::pair<int64_t, int64_t>{2, 2}, {2, 4}, {1, 4}, {4, 1}, {1, 1}, {2, 6}}) {
    const Mesh mesh = *Mesh::Create({nodes, gpus}, {"node", "gpu"});
    for (const Policy& p : LegalPolicies(gpus, nodes, Space::kNested)) out.push_back({mesh, p});
  }
  return out;
}

bool IsPrefix(const Axes& a, const Axes& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

TEST(UnitPlanTest, StatesArePrefixesOfOneChain) {
  for (const Case& c : AllNestedPlans()) {
    const Axes p = ChainAxes(c.policy, c.policy.param, c.mesh);
    const Axes g = ChainAxes(c.policy, c.policy.grad, c.mesh);
    const Axes o = ChainAxes(c.policy, c.policy.optim, c.mesh);
    EXPECT_TRUE(IsPrefix(p, g) && IsPrefix(g, o)) << c.policy.ToString();
    EXPECT_TRUE(c.mesh.Validate(o).ok());
    EXPECT_EQ(Mesh::GroupSize(p), Product(c.policy.param));
    EXPECT_EQ(Mesh::GroupSize(g), Product(c.policy.grad));
    EXPECT_EQ(Mesh::GroupSize(o), Product(c.policy.optim));
  }
}

TEST(UnitPlanTest, TheChainRunsFromNeighboursToNodes) {
  const Mesh mesh = *Mesh::Create({4, 8}, {"node", "gpu"});
  const Policy policy = *ParsePolicy("P=2 G=8 OS=8x4", mesh);
  EXPECT_EQ(mesh.AxesToString(ChainAxes(policy, policy.optim, mesh)), "gpu:2,gpu:4@2,node");
  const UnitPlan plan = *MakeUnitPlan(policy, 1000, mesh);
  EXPECT_EQ(plan.param.ToString(), "S0(gpu:2)");
  EXPECT_EQ(plan.grad.ToString(), "S0(gpu:2,gpu:4@2) +sum(node)");
  EXPECT_EQ(plan.optim.ToString(), "S0(gpu:2,gpu:4@2,node)");
  EXPECT_EQ(plan.contribution.ToString(), "+sum(node,gpu)");
  EXPECT_EQ(plan.total, 1024);
}

TEST(UnitPlanTest, ABufferIsPaddedToAMultipleOfTheRanks) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  for (int64_t numel = 0; numel <= 20; ++numel) {
    const int64_t total = PaddedTotal(numel, mesh);
    EXPECT_EQ(total % 8, 0);
    EXPECT_TRUE(total >= numel && total < numel + 8) << numel;
  }
}

TEST(UnitPlanTest, HeldBytesAreTheStatesShares) {
  const StateSizes sizes{2, 4, 4, 8};
  for (const Case& c : AllNestedPlans()) {
    const UnitPlan plan = *MakeUnitPlan(c.policy, 1001, c.mesh, sizes);
    const StateBytes held = HeldBytes(plan, sizes);
    EXPECT_EQ(held.param, plan.total / Product(c.policy.param) * 2);
    EXPECT_EQ(held.grad, plan.total / Product(c.policy.grad) * 4);
    EXPECT_EQ(held.optim, plan.total / Product(c.policy.optim) * 12);
    for (int64_t rank = 0; rank < c.mesh.size(); ++rank) {
      EXPECT_EQ(plan.param.LocalNumel(rank) * 2, held.param);
      EXPECT_EQ(plan.grad.LocalNumel(rank) * 4, held.grad);
      EXPECT_EQ(plan.optim.LocalNumel(rank) * 12, held.optim);
    }
  }
}

// The least bytes of each moment, by formula; d ranks, p, g, o pieces, t elements of `size` bytes.
TEST(UnitPlanTest, TrafficIsTheLeastThereIs) {
  for (const Case& c : AllNestedPlans()) {
    const UnitPlan plan = *MakeUnitPlan(c.policy, 7200, c.mesh);
    const int64_t t = plan.total, d = c.mesh.size(), p = Product(c.policy.param),
                  g = Product(c.policy.grad), o = Product(c.policy.optim);
    const int64_t left = d / g;    // contributions that G has not added up
    const int64_t more = o / g;    // pieces that OS cuts one of G into
    const int64_t copies = d / o;  // holders of one piece of OS
    const std::string name = c.policy.ToString() + " on " + c.mesh.ToString();
    EXPECT_EQ(plan.gather.recv_bytes, t * (p - 1) / p * 4) << name;
    EXPECT_EQ(plan.update.recv_bytes, (t / p - t / o) * 4) << name;
    EXPECT_EQ(plan.accumulate.recv_bytes, t * (g - 1) / g * 4) << name;
    // Reduce-scatter over `more`, then all-reduce over `copies`.
    EXPECT_EQ(left, more * copies) << name;
    EXPECT_EQ(plan.reduce.recv_bytes,
              (t / g * (more - 1) / more + 2 * t / o * (copies - 1) / copies) * 4)
        << name;
    for (int64_t m : {1, 3}) {
      const StepTraffic traffic = Traffic(plan, m);
      EXPECT_EQ(traffic.gather, 2 * m * plan.gather.recv_bytes);
      EXPECT_EQ(traffic.accumulate, m * plan.accumulate.recv_bytes);
      EXPECT_EQ(traffic.reduce, plan.reduce.recv_bytes);
      EXPECT_EQ(traffic.update, plan.update.recv_bytes);
      EXPECT_EQ(traffic.total(),
                traffic.gather + traffic.accumulate + traffic.reduce + traffic.update);
    }
  }
}

TEST(UnitPlanTest, EveryMomentIsAtMostOneStepPerReduction) {
  for (const Case& c : AllNestedPlans()) {
    const UnitPlan plan = *MakeUnitPlan(c.policy, 7200, c.mesh);
    const auto kinds = [](const RedistributionPlan& r) {
      std::vector<StepKind> out;
      for (const Step& s : r.steps) {
        if (s.recv_bytes > 0) out.push_back(s.kind);
      }
      return out;
    };
    using Kinds = std::vector<StepKind>;
    const int64_t d = c.mesh.size(), p = Product(c.policy.param), g = Product(c.policy.grad),
                  o = Product(c.policy.optim);
    const std::string name = c.policy.ToString() + " on " + c.mesh.ToString();
    EXPECT_EQ(kinds(plan.gather), p > 1 ? Kinds{StepKind::kAllGather} : Kinds{}) << name;
    EXPECT_EQ(kinds(plan.update), o > p ? Kinds{StepKind::kAllGather} : Kinds{}) << name;
    EXPECT_EQ(kinds(plan.accumulate), g > 1 ? Kinds{StepKind::kReduceScatter} : Kinds{}) << name;
    Kinds reduce;
    if (o > g) reduce.push_back(StepKind::kReduceScatter);
    if (d > o) reduce.push_back(StepKind::kAllReduce);
    EXPECT_EQ(kinds(plan.reduce), reduce) << name;
  }
}

TEST(UnitPlanTest, AnIllegalPolicyIsAnError) {
  const Mesh mesh = *Mesh::Create({2, 2}, {"node", "gpu"});
  EXPECT_FALSE(MakeUnitPlan({{2, 1}, {1, 1}, {1, 1}}, 8, mesh).ok());
}

}  // namespace
}  // namespace lins
