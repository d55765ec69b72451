// Memory: every item by hand, and the hand values of well-known settings.
#include "lins_policy/memory.h"

#include <gtest/gtest.h>

#include "problems.h"

namespace lins {
namespace {

MemoryOptions Bare() {
  return {.gathered_units = 1, .gradient_buckets = 0, .communicator_bytes = 0, .margin = 0};
}

Plan Priced(int64_t parameters, int64_t nodes, Policy policy, StateSizes sizes = {2, 2, 4, 8}) {
  ModelSpec spec{.name = "m", .units = {{.name = "u", .parameters = parameters}}};
  spec.training.sizes = sizes;
  PlanSettings settings;
  settings.memory = Bare();
  return *PricePlan(spec, ModelCluster(nodes, 8), {std::move(policy)}, settings);
}

TEST(MemoryTest, StatesOfTheIssue) {
  constexpr int64_t k7 = 7'000'000'000, k13 = 13'000'000'000, k30 = 30'000'000'000;
  EXPECT_EQ(Priced(k7, 1, {{1, 1}, {1, 1}, {8, 1}}).memory.states(), 38'500'000'000);
  EXPECT_EQ(Priced(k7, 1, {{1, 1}, {1, 1}, {1, 1}}).memory.states(), 112'000'000'000);
  EXPECT_EQ(Priced(k7, 1, {{1, 1}, {8, 1}, {8, 1}}).memory.states(), 26'250'000'000);  // ZeRO-2
  EXPECT_EQ(Priced(k7, 1, {{8, 1}, {8, 1}, {8, 1}}).memory.states(), 14'000'000'000);  // ZeRO-3
  EXPECT_EQ(Priced(k13, 1, {{4, 1}, {4, 1}, {8, 1}}).memory.states(), 32'500'000'000);
  EXPECT_EQ(Priced(k30, 4, {{8, 1}, {8, 1}, {8, 4}}).memory.states(), 26'250'000'000);
  // An optimizer of 8 bits: 2 + 2 + 4 + 2 = 10 bytes per parameter.
  EXPECT_EQ(Priced(k7, 1, {{1, 1}, {1, 1}, {1, 1}}, {2, 2, 4, 2}).memory.states(), 10 * k7);
}

TEST(MemoryTest, StatesAreThoseThatTheRuntimeHolds) {
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    const Problem p = RandomProblem(random, 1);
    const Unit& u = p.spec.units[0];
    const StateSizes& sizes = p.spec.training.sizes;
    const Mesh mesh = *p.cluster.DataParallelMesh();
    for (const Policy& policy : LegalPolicies(mesh.shape()[1], mesh.shape()[0], Space::kNested)) {
      const UnitMemory m = MemoryOfUnit(u, policy, mesh, sizes, p.settings.memory);
      const StateBytes held =
          HeldBytes(*MakeUnitPlan(policy, u.parameters - u.frozen, mesh, sizes), sizes);
      const StateBytes frozen = HeldBytes(*MakeUnitPlan(policy, u.frozen, mesh, sizes), sizes);
      EXPECT_EQ(m.param, held.param + frozen.param);
      EXPECT_EQ(m.grad, held.grad);
      EXPECT_EQ(m.optim, held.optim);
    }
  }
}

TEST(MemoryTest, EveryItemByHand) {
  ModelSpec spec{.name = "m", .units = {}};
  spec.units = {{.name = "a", .parameters = 800, .activation_bytes = 10, .boundary_bytes = 1},
                {.name = "b",
                 .parameters = 1600,
                 .repeat = 3,
                 .frozen = 800,
                 .activation_bytes = 100,
                 .boundary_bytes = 7}};
  spec.logits_bytes = 55;
  const Policy policy = {{2, 1}, {4, 1}, {4, 2}};
  PlanSettings settings;
  settings.memory = {.gathered_units = 2,
                     .gradient_buckets = 3,
                     .fp32_gradient_copy = true,
                     .communicator_bytes = 1000,
                     .margin = 0.1,
                     .correction_bytes = -20};
  const Cluster cluster = ModelCluster(2, 4);
  const MemoryItems m = PricePlan(spec, cluster, {policy}, settings)->memory;
  EXPECT_EQ(m.param, (800 + 3 * 1600) / 2 * 2);
  EXPECT_EQ(m.grad, (800 + 3 * 800) / 4 * 2);
  EXPECT_EQ(m.optim, (800 + 3 * 800) / 8 * 12);
  EXPECT_EQ(m.gathered, 2 * 1600 * 2);     // two of the largest
  EXPECT_EQ(m.buckets, 3 * 800 * 2);       // what of it is trained
  EXPECT_EQ(m.fp32_copies, 3200 / 8 * 4);  // of the owned piece
  EXPECT_EQ(m.activations, 10 + 3 * 100);
  EXPECT_EQ(m.logits, 55);
  EXPECT_EQ(m.communicators, 1000);
  EXPECT_EQ(m.correction, -20);
  const int64_t all =
      m.states() + m.gathered + m.buckets + m.fp32_copies + m.activations + m.logits + 1000 - 20;
  EXPECT_EQ(m.margin, (all + 9) / 10);
  EXPECT_EQ(m.total(), all + m.margin);

  spec.training.recompute = Recompute::kFull;  // boundaries, and one unit's activations
  EXPECT_EQ(PricePlan(spec, cluster, {policy}, settings)->memory.activations, 1 + 3 * 7 + 100);

  settings.memory.gathered_units = 100;  // but there are four units
  settings.memory.gradient_buckets = 100;
  const MemoryItems many = PricePlan(spec, cluster, {policy}, settings)->memory;
  EXPECT_EQ(many.gathered, 4 * 1600 * 2);
  EXPECT_EQ(many.buckets, 4 * 800 * 2);

  settings.family = Family::kPaper;  // sums in place
  settings.bucket_bytes = 77;
  EXPECT_EQ(PricePlan(spec, cluster, {policy}, settings)->memory.buckets, 4 * 800 * 2);
}

TEST(MemoryTest, TheRootIsThereAllTheTimeBesideTheUnitsThatComeAndGo) {
  ModelSpec spec{
      .name = "m",
      .units = {{.name = "root", .parameters = 80}, {.name = "a", .parameters = 800, .repeat = 5}}};
  PlanSettings settings;
  settings.memory = {
      .gathered_units = 2, .gradient_buckets = 3, .communicator_bytes = 0, .margin = 0};
  const Policy cut = {{4, 1}, {4, 1}, {4, 1}};
  const MemoryItems m = PricePlan(spec, ModelCluster(1, 4), {cut}, settings)->memory;
  EXPECT_EQ(m.gathered, (80 + 2 * 800) * 2);
  EXPECT_EQ(m.buckets, (80 + 3 * 800) * 2);
}

TEST(MemoryTest, WhatIsNeverGatheredTakesNothing) {
  ModelSpec spec{.name = "m", .units = {{.name = "a", .parameters = 800}}};
  PlanSettings settings;
  const MemoryItems m =
      PricePlan(spec, ModelCluster(1, 4), {{{1, 1}, {1, 1}, {4, 1}}}, settings)->memory;
  EXPECT_EQ(m.gathered, 0);
  EXPECT_EQ(m.buckets, 0);  // G is whole: a backward adds to it in place
}

TEST(MemoryTest, PiecesKeptBetweenForwardAndBackward) {
  ModelSpec spec{.name = "m", .units = {{.name = "a", .parameters = 800, .repeat = 5}}};
  PlanSettings settings;
  settings.space = Space::kFull;
  settings.memory = Bare();
  Policy policy = {{4, 2}, {4, 2}, {4, 2}, {}};
  const Cluster cluster = ModelCluster(2, 4);
  const int64_t without = PricePlan(spec, cluster, {policy}, settings)->memory.gathered;
  policy.between = {4, 1};
  EXPECT_EQ(PricePlan(spec, cluster, {policy}, settings)->memory.gathered,
            without + 5 * 800 / 4 * 2);
  policy.between = {1, 1};
  EXPECT_EQ(PricePlan(spec, cluster, {policy}, settings)->memory.gathered, without + 5 * 800 * 2);
}

TEST(MemoryTest, OfDifferentUnitsTheLargestIsGathered) {
  ModelSpec spec{
      .name = "m",
      .units = {{.name = "small", .parameters = 80}, {.name = "large", .parameters = 8000}}};
  PlanSettings settings;
  settings.memory = Bare();
  const Policy cut = {{4, 1}, {4, 1}, {4, 1}}, whole = {{1, 1}, {1, 1}, {4, 1}};
  const Cluster cluster = ModelCluster(1, 4);
  const auto gathered = [&](const Policy& small, const Policy& large) {
    return PricePlan(spec, cluster, {small, large}, settings)->memory.gathered;
  };
  EXPECT_EQ(gathered(cut, cut), 16000);
  EXPECT_EQ(gathered(cut, whole), 160);
  EXPECT_EQ(gathered(whole, whole), 0);
}

}  // namespace
}  // namespace lins
