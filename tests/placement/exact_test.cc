// Plans are the best there are: against brute force over every layout of a small tensor, and the
// triangle inequality over all triples.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "mesh/error.h"
#include "placement/reachable.h"
#include "step_graph.h"

namespace lins {
namespace {

struct Case {
  std::vector<int64_t> mesh;
  Shape shape;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(absl::StrJoin(info.param.mesh, "x"), "_of_",
                      absl::StrJoin(info.param.shape, "x"));
}

class ExactTest : public ::testing::TestWithParam<Case> {
 protected:
  Mesh mesh_ = *Mesh::Create(GetParam().mesh, {"a", "b"});
  Layout Parse(absl::string_view text) const {
    return ValueOrThrow(Layout::Parse(text, GetParam().shape, mesh_));
  }
  bool TwoDims() const { return GetParam().shape.size() > 1; }
};

INSTANTIATE_TEST_SUITE_P(EvenAndUneven, ExactTest,
                         ::testing::Values(Case{{2, 2}, {8, 4}}, Case{{2, 2}, {7, 3}},
                                           Case{{2, 2}, {5}}, Case{{2, 2}, {8}},
                                           Case{{2, 4}, {8, 8}}, Case{{2, 3}, {7, 5}},
                                           Case{{3, 2}, {2, 3}}, Case{{4, 2}, {16, 8}}),
                         CaseName);

TEST_P(ExactTest, NoChainOfStepsIsBetter) {
  for (const auto& [op, name] : {std::pair(ReduceOp::kSum, "sum"),
                                 {ReduceOp::kMax, "max"},
                                 {ReduceOp::kAvg, "avg"},
                                 {ReduceOp::kProduct, "product"}}) {
    std::vector<Layout> ends;
    for (std::string text :
         {"R", "S0(a)", "S0(b)", "S0(a,b)", "S0(b,a)", "S1(a)", "S0(a) S1(b)", "F(a)", "F(b,a)",
          "O(a; 1)", "+op(a)", "+op(b)", "+op(a,b)", "S0(a) +op(b)", "S0(b) +op(a)", "S1(a) +op(b)",
          "S1(b) +op(a)", "F(a) +op(b)", "O(a; 0) +op(b)"}) {
      if (!TwoDims() && text.find("S1") != std::string::npos) continue;
      if (const size_t at = text.find("op"); at != std::string::npos) text.replace(at, 2, name);
      ends.push_back(Parse(text));
    }
    // An owner is on the way only where an end has it, as in the planner.
    for (const Layout& src : ends) {
      for (const Layout& dst : ends) {
        if (src == dst || !CheckReachable(src, dst).ok()) continue;
        if (!src.IsPartial() && !dst.IsPartial()) continue;  // one step at the bound: below
        const StepGraph graph = StepGraph::Create(GetParam().shape, mesh_, op, {src, dst});
        const int64_t x = src.MaxLocalNumel(), y = dst.MaxLocalNumel();
        const StepGraph::Cost best = graph.Cheapest(graph.Find(src), graph.Find(dst), x + y);
        const StepGraph::Cost small =
            graph.Cheapest(graph.Find(src), graph.Find(dst), std::max(x, y));
        const RedistributionPlan plan = *PlanRedistribution(src, dst, 4);
        EXPECT_EQ(plan.recv_bytes, best.bytes) << plan.ToString();
        if (small.bytes == best.bytes) {  // no larger layout without need, then the fewest steps
          EXPECT_EQ(static_cast<int>(plan.steps.size()), small.steps) << plan.ToString();
          for (const Step& s : plan.steps) {
            EXPECT_LE(s.after.MaxLocalNumel(), std::max(x, y)) << plan.ToString();
          }
        }
        EXPECT_GE(plan.recv_bytes, plan.lower_bound_bytes) << plan.ToString();
      }
    }
  }
}

TEST_P(ExactTest, ADetourIsNeverShorter) {
  std::vector<Layout> all;
  for (std::string text : {"R",
                           "S0(a)",
                           "S0(b)",
                           "S0(a,b)",
                           "S0(b,a)",
                           "S1(a)",
                           "S1(b,a)",
                           "S0(a) S1(b)",
                           "S0(b) S1(a)",
                           "F(a)",
                           "F(b)",
                           "F(b,a)",
                           "O(a; 1)",
                           "O(b,a; 2)",
                           "+sum(a)",
                           "+sum(b)",
                           "+sum(a,b)",
                           "+avg(a)",
                           "+max(b)",
                           "S0(a) +sum(b)",
                           "S0(b) +sum(a)",
                           "S1(b) +sum(a)",
                           "F(a) +sum(b)",
                           "O(a; 0) +sum(b)",
                           "S0(b) +max(a)",
                           "+sum(a) +max(b)"}) {
    if (!TwoDims() && text.find("S1") != std::string::npos) continue;
    all.push_back(Parse(text));
  }
  const int n = static_cast<int>(all.size());
  std::vector<std::vector<int64_t>> cost(n, std::vector<int64_t>(n, -1));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (CheckReachable(all[i], all[j]).ok()) {
        cost[i][j] = PlanRedistribution(all[i], all[j], 4)->recv_bytes;
      }
    }
    EXPECT_EQ(cost[i][i], 0);
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int k = 0; k < n; ++k) {
        if (cost[i][j] < 0 || cost[j][k] < 0 || cost[i][k] < 0) continue;
        EXPECT_LE(cost[i][k], cost[i][j] + cost[j][k])
            << all[i].ToString() << " -> " << all[j].ToString() << " -> " << all[k].ToString();
      }
    }
  }
}

}  // namespace
}  // namespace lins
