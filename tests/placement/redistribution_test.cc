// Redistribution plans: chains of legal steps, deterministic, under the cap; and what is refused.
// The table of everyday plans is tests/cases/redistribution.txt.
#include "placement/redistribution.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "mesh/error.h"
#include "placement/reachable.h"

namespace lins {
namespace {

const Mesh& TwoByTwo() {
  static const Mesh* mesh = new Mesh(*Mesh::Create({2, 2}, {"a", "b"}));
  return *mesh;
}

Layout Parse(absl::string_view text, Shape shape = {7, 3}, const Mesh& mesh = TwoByTwo()) {
  return ValueOrThrow(Layout::Parse(text, shape, mesh));
}

constexpr const char* kLayouts[] = {"R",
                                    "S0(a)",
                                    "S0(b)",
                                    "S0(a,b)",
                                    "S0(b,a)",
                                    "S1(a)",
                                    "S0(a) S1(b)",
                                    "S1(b,a)",
                                    "F(a)",
                                    "F(b,a)",
                                    "F(a,b; 3/32)",
                                    "O(a; 1)",
                                    "O(b,a; 2)",
                                    "+sum(a)",
                                    "+sum(a,b)",
                                    "+avg(a)",
                                    "+max(b)",
                                    "S0(a) +sum(b)",
                                    "S1(b) +sum(a)",
                                    "F(a) +sum(b)",
                                    "O(a; 0) +sum(b)",
                                    "S0(b) +max(a)",
                                    "+sum(a) +max(b)"};

// Every pair of layouts that values allow.
template <typename F>
void ForEachLegalPair(F f) {
  for (const char* from : kLayouts) {
    for (const char* to : kLayouts) {
      const Layout src = Parse(from), dst = Parse(to);
      if (CheckReachable(src, dst).ok()) f(src, dst);
    }
  }
}

TEST(RedistributionTest, IsAChainOfLayoutsFromSourceToDestination) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    const RedistributionPlan plan = *PlanRedistribution(src, dst, 4);
    ASSERT_EQ(plan.steps.empty(), src == dst) << plan.ToString();
    Layout at = src;
    int64_t peak = src.MaxLocalNumel() * 4;
    for (const Step& s : plan.steps) {
      ASSERT_EQ(s.before, at) << plan.ToString();
      const Step again = MakeStep(s.kind, s.axes, s.before, s.after, 4);
      ASSERT_EQ(again.recv_bytes, s.recv_bytes) << plan.ToString();
      ASSERT_EQ(again.peak_bytes, s.peak_bytes) << plan.ToString();
      ASSERT_EQ(again.bytes, s.bytes) << plan.ToString();
      at = s.after;
      peak = std::max(peak, s.peak_bytes);
    }
    ASSERT_EQ(at, dst);
    ASSERT_EQ(plan.peak_bytes, peak);
    int64_t worst = 0;
    for (int64_t rank = 0; rank < src.mesh().size(); ++rank) {
      int64_t received = 0;
      for (const Step& s : plan.steps) received += RecvBytes(s, rank, 4);
      worst = std::max(worst, received);
    }
    ASSERT_EQ(plan.recv_bytes, worst) << plan.ToString();
  });
}

TEST(RedistributionTest, ReceivesAtLeastTheLowerBound) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    const RedistributionPlan plan = *PlanRedistribution(src, dst, 4);
    ASSERT_GE(plan.recv_bytes, plan.lower_bound_bytes) << plan.ToString();
    ASSERT_EQ(plan.lower_bound_bytes, LowerBoundBytes(src, dst, 4));
  });
}

TEST(RedistributionTest, BetweenCompleteLayoutsReceivesExactlyTheLowerBound) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    if (src.IsPartial() || dst.IsPartial()) return;
    const RedistributionPlan plan = *PlanRedistribution(src, dst, 4);
    ASSERT_EQ(plan.recv_bytes, plan.lower_bound_bytes) << plan.ToString();
  });
}

TEST(RedistributionTest, BytesAreMonotoneInItemsize) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    const RedistributionPlan two = *PlanRedistribution(src, dst, 2);
    const RedistributionPlan eight = *PlanRedistribution(src, dst, 8);
    ASSERT_EQ(two.recv_bytes * 4, eight.recv_bytes) << two.ToString();
    ASSERT_EQ(two.lower_bound_bytes * 4, eight.lower_bound_bytes) << two.ToString();
  });
}

TEST(RedistributionTest, StaysUnderTheCapOrNamesTheLeastThatWorks) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    if (src == dst) return;
    PlanOptions options;
    options.max_peak_bytes = 0;
    const absl::Status refused = PlanRedistribution(src, dst, 4, options).status();
    constexpr absl::string_view kTail = "the least possible is ";
    const size_t at = refused.message().rfind(kTail);
    ASSERT_NE(at, absl::string_view::npos) << refused;
    const int64_t least = std::stoll(std::string(refused.message().substr(at + kTail.size())));
    options.max_peak_bytes = least;
    const auto plan = PlanRedistribution(src, dst, 4, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_LE(plan->peak_bytes, least) << plan->ToString();
    options.max_peak_bytes = least - 1;
    ASSERT_FALSE(PlanRedistribution(src, dst, 4, options).ok()) << plan->ToString();
    ASSERT_LE(least, PlanRedistribution(src, dst, 4)->peak_bytes);
  });
}

TEST(RedistributionTest, TheSameQuestionHasTheSameAnswer) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    const std::string first = PlanRedistribution(src, dst, 4)->ToString();
    ASSERT_EQ(PlanRedistribution(src, dst, 4)->ToString(), first);
    ASSERT_EQ((*CachedPlan(src, dst, 4))->ToString(), first);
    ASSERT_EQ(*CachedPlan(src, dst, 4), *CachedPlan(src, dst, 4)) << "one plan, remembered";
  });
}

TEST(RedistributionTest, HoldsNoMoreOnTheWayThanSourceAndDestinationTogether) {
  ForEachLegalPair([](const Layout& src, const Layout& dst) {
    const RedistributionPlan plan = *PlanRedistribution(src, dst, 4);
    for (const Step& s : plan.steps) {
      ASSERT_LE(s.after.MaxLocalNumel(), src.MaxLocalNumel() + dst.MaxLocalNumel())
          << plan.ToString();
    }
  });
}

// An axis of 12 as 2 x 6 here and as 3 x 2 x 2 there: parts that do not fit into each other.
TEST(RedistributionTest, AnAxisMayBeCutInTwoWaysThatDoNotFit) {
  const Mesh mesh = *Mesh::Create({12}, {"a"});
  for (const auto& [from, to] : {std::pair("O(a:2; 0) +sum(a:6@2)", "S1(a:3) S0(a:2@3,a:2@6)"),
                                 {"S0(a:2) +product(a:6@2)", "S0(a:3) +product(a:2@6)"},
                                 {"+product(a:4)", "S0(a:2@6) +product(a:2)"},
                                 {"S0(a:2) +sum(a:6@2)", "S1(a:3,a:2@3) +sum(a:2@6)"},
                                 {"S0(a:6@2)", "+sum(a:3) S0(a:2@6)"}}) {
    const Layout src = Parse(from, {24, 6}, mesh), dst = Parse(to, {24, 6}, mesh);
    const auto plan = PlanRedistribution(src, dst, 4);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(plan->recv_bytes, plan->lower_bound_bytes) << plan->ToString();
    for (const Step& s : plan->steps) {
      EXPECT_TRUE(mesh.Validate(s.axes).ok()) << plan->ToString();
      EXPECT_LE(Mesh::GroupSize(s.axes), 12) << plan->ToString();
    }
  }
}

struct Refused {
  const char *src, *dst, *message;
};

TEST(RedistributionTest, WhatValuesDoNotAllowIsAnErrorThatNamesBothLayouts) {
  for (const Refused& r : std::vector<Refused>{
           {"R", "+product(a)", "cannot turn R into +product(a): a partial product cannot be made"},
           {"R", "+band(a)", "cannot turn R into +band(a)"},
           {"S0(b)", "+bor(a)", "cannot turn S0(b) into +bor(a)"},
           {"R", "+bxor(a,b)", "cannot turn R into +bxor(a,b)"},
           {"+product(a)", "+product(a,b)", "cannot turn +product(a) into +product(a,b)"},
           {"+sum(a)", "+max(a)", "partial sum is not partial max; redistribute to R first"},
           {"+avg(a,b)", "+sum(b)",
            "cannot turn +avg(a,b) into +sum(b): partial avg is not partial sum"},
           {"+product(a)", "+sum(a)", "partial product is not partial sum"}}) {
    const auto plan = PlanRedistribution(Parse(r.src), Parse(r.dst), 4);
    ASSERT_FALSE(plan.ok()) << r.src << " -> " << r.dst;
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status()));
    EXPECT_TRUE(absl::StrContains(plan.status().message(), r.message)) << plan.status();
  }
}

TEST(RedistributionTest, PartialProductsAndBitsAreReducedOrKept) {
  for (const char* op : {"product", "band", "bor", "bxor"}) {
    const Layout both = Parse(absl::StrCat("+", op, "(a,b)"), {8, 4}),
                 one = Parse(absl::StrCat("+", op, "(a)"), {8, 4});
    EXPECT_EQ(PlanRedistribution(both, one, 4)->steps.size(), 1u);
    EXPECT_EQ(PlanRedistribution(both, Parse("R", {8, 4}), 4)->steps.size(), 1u);
    EXPECT_EQ(PlanRedistribution(one, one, 4)->steps.size(), 0u);
  }
}

TEST(RedistributionTest, OtherMeshesAndShapesAreErrorsThatNameBoth) {
  const Mesh other = *Mesh::Create({4}, {"a"});
  EXPECT_EQ(PlanRedistribution(Parse("S0(a)"), Parse("S0(a)", {7, 3}, other), 4).status().message(),
            "cannot redistribute between meshes: Mesh(a=2, b=2) and Mesh(a=4)");
  EXPECT_EQ(PlanRedistribution(Parse("R"), Parse("R", {7, 4}), 4).status().message(),
            "cannot redistribute shape (7, 3) to (7, 4)");
  EXPECT_EQ(PlanRedistribution(Parse("R"), Parse("S0(a)"), 0).status().message(),
            "itemsize is 0, must be at least 1 byte");
}

TEST(RedistributionTest, PrintsATable) {
  EXPECT_EQ(PlanRedistribution(Parse("S0(a)", {4}), Parse("R", {4}), 4)->ToString(),
            "S0(a) -> R of (4,) on Mesh(a=2, b=2)\n"
            "  step        group  ranks  layout      bytes in  bytes out  receives  peak  seconds\n"
            "  all_gather  (a)    2      S0(a) -> R  8         16         8         24    -\n"
            "  receives 8 bytes, lower bound 8, ratio 1.00, peak 24");
  EXPECT_EQ(PlanRedistribution(Parse("R", {4}), Parse("R", {4}), 4)->ToString(),
            "R -> R of (4,) on Mesh(a=2, b=2)\n"
            "  nothing to do\n"
            "  receives 0 bytes, lower bound 0, peak 16");
}

// A link between nodes that costs a hundred times one within, and a start-up time.
class SlowNodes : public CostModel {
 public:
  double Seconds(StepKind, int64_t bytes, int64_t, int64_t nodes) const override {
    return 1e-6 + static_cast<double>(bytes) * (nodes > 1 ? 1e-7 : 1e-9);
  }
};

TEST(RedistributionTest, ACostModelDecidesByTime) {
  const SlowNodes slow;
  PlanOptions options;
  options.cost_model = &slow;
  const auto plan =
      *PlanRedistribution(Parse("+sum(a,b)", {1 << 20}), Parse("R", {1 << 20}), 4, options);
  double seconds = 0;
  std::string kinds;
  for (const Step& s : plan.steps) {
    seconds += s.seconds;
    absl::StrAppend(&kinds, StepKindName(s.kind), "(", TwoByTwo().AxesToString(s.axes), ") ");
  }
  EXPECT_GT(seconds, 0);
  EXPECT_DOUBLE_EQ(plan.seconds, seconds);
  const auto fewest = *PlanRedistribution(plan.src, plan.dst, 4);
  double other = 0;
  for (const Step& s : fewest.steps) {
    other += MakeStep(s.kind, s.axes, s.before, s.after, 4, &slow).seconds;
  }
  EXPECT_LE(seconds, other) << kinds;
}

}  // namespace
}  // namespace lins
