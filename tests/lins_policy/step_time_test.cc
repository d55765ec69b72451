// Exposed seconds of a step, by hand.
#include "lins_policy/step_time.h"

#include <gtest/gtest.h>

#include "problems.h"

namespace lins {
namespace {

const Moments<double> kUnit = {
    .gather = 1, .regather = 2, .scatter = 0, .accumulate = 4, .reduce = 8, .update = 16};

TEST(StepTimeTest, AWindowHidesWhatFitsUnderIt) {
  EXPECT_EQ(Exposed(3, 5, 1), 0);
  EXPECT_EQ(Exposed(5, 3, 1), 2);
  EXPECT_EQ(Exposed(5, 0, 1), 5);
  EXPECT_EQ(Exposed(0, 5, 2), 0);
  // Compute at half speed for 3 s lacks 1.5 s.
  EXPECT_EQ(Exposed(3, 5, 2), 1.5);
  // 2 s of compute take 4 s of the 5.
  EXPECT_EQ(Exposed(5, 2, 2), 3);
}

TEST(StepTimeTest, ComputeOfAUnit) {
  Unit u{.name = "u", .parameters = 1, .forward_flops = 100};
  EXPECT_EQ(ComputeOf(u, Recompute::kNone, 10).forward, 10);
  EXPECT_EQ(ComputeOf(u, Recompute::kNone, 10).backward, 20);
  EXPECT_EQ(ComputeOf(u, Recompute::kFull, 10).backward, 30);
  u.forward_seconds = 3;  // measured: stands before the flops
  EXPECT_EQ(ComputeOf(u, Recompute::kNone, 10).backward, 6);
  u.backward_seconds = 5;
  EXPECT_EQ(ComputeOf(u, Recompute::kFull, 10).backward, 8);
}

TEST(StepTimeTest, WithoutOverlapEverythingIsExposed) {
  OverlapOptions none;
  none.overlap = false;
  // Three micro-batches: gathers 3 (1 + 2), two accumulations, one reduction, one update.
  for (const Edge edge : {Edge::kNone, Edge::kFirst, Edge::kLast, Edge::kBoth}) {
    EXPECT_EQ(ExposedOfUnit(kUnit, {100, 100}, edge, 3, 1, none), 3 * 3 + 2 * 4 + 8 + 16);
  }
}

TEST(StepTimeTest, UnderMuchComputeOnlyTheEdgesShow) {
  const ComputeSeconds much = {1000, 1000};
  EXPECT_EQ(ExposedOfUnit(kUnit, much, Edge::kNone, 3, 1, {}), 0);
  // The first: its gathers, the reduction after the last backward, its update. Other reductions
  // pass under the next forward.
  EXPECT_EQ(ExposedOfUnit(kUnit, much, Edge::kFirst, 3, 1, {}), 3 * 1 + 8 + 16);
  // The last: its second gathers.
  EXPECT_EQ(ExposedOfUnit(kUnit, much, Edge::kLast, 3, 1, {}), 3 * 2);
  EXPECT_EQ(ExposedOfUnit(kUnit, much, Edge::kBoth, 3, 1, {}), 3 * 3 + 8 + 16);
  // An update that waits.
  OverlapOptions waits;
  waits.overlap_update = false;
  EXPECT_EQ(ExposedOfUnit(kUnit, much, Edge::kNone, 3, 1, waits), 16);
  // Gathers that do not run ahead.
  OverlapOptions late;
  late.prefetch = 0;
  EXPECT_EQ(ExposedOfUnit(kUnit, much, Edge::kNone, 3, 1, late), 3 * 3 + 16);
}

TEST(StepTimeTest, WindowsShareTheLinks) {
  // Forward: 1 beside 1; with the update 17 beside 1. Backward: 6 beside 2, and 10 beside 2.
  EXPECT_EQ(ExposedOfUnit(kUnit, {1, 2}, Edge::kNone, 3, 1, {}), 2 * (0 + 4) + 16 + 8);
  // 2 of the forward are free for 1 of an accumulation, which is then all hidden; not the reduction
  // of the last micro-batch.
  EXPECT_EQ(ExposedOfUnit(kUnit, {3, 5}, Edge::kNone, 3, 1, {}), 14 + 5);
  // 1 of the forward is free: 1 of each accumulation trails, into the last one at the end.
  EXPECT_EQ(ExposedOfUnit(kUnit, {2, 4}, Edge::kNone, 3, 1, {}), 15 + 6 + 2 * 1);
}

TEST(StepTimeTest, NeverMoreThanEverythingNorLessThanWhatDoesNotFit) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const Moments<double> s = {random.Real(0, 2), random.Real(0, 2), random.Real(0, 2),
                               random.Real(0, 2), random.Real(0, 2), random.Real(0, 2)};
    const ComputeSeconds c = {random.Real(0, 3), random.Real(0, 3)};
    const int64_t m = random.Int(1, 4);
    const double slow = random.OneOf({1.0, 1.2, 2.0});
    const OverlapOptions o = {random.Int(0, 2), random.Int(0, 4) > 0, random.Coin()};
    CostTerms<double> terms;
    AddTerms(s, 1, m, terms);
    double before = -1;
    for (const double part : {1.0, 0.5, 0.0}) {  // less compute hides less
      const double exposed =
          ExposedOfUnit(s, {part * c.forward, part * c.backward}, Edge::kNone, m, slow, o);
      EXPECT_LE(exposed, terms.total() + 1e-12);
      EXPECT_GE(exposed, before - 1e-12);
      before = exposed;
    }
    const double compute = static_cast<double>(m) * (c.forward + c.backward);
    EXPECT_GE(ExposedOfUnit(s, c, Edge::kNone, m, slow, o), terms.total() - compute - 1e-12);
  }
}

}  // namespace
}  // namespace lins
