// Plans under cost models: the fewest seconds of all chains of steps, against brute force; and what
// any cost must satisfy.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "mesh/error.h"
#include "placement/reachable.h"
#include "step_graph.h"

namespace lins {
namespace {

// Start-up and rate as a profile has them: a collective that leaves the node is slower, and
// reductions take longer than moves.
class Links : public CostModel {
 public:
  Links(double alpha, double near, double far) : alpha_(alpha), near_(near), far_(far) {}
  double Seconds(StepKind kind, int64_t bytes, int64_t gpus, int64_t nodes) const override {
    const bool reduces = kind == StepKind::kAllReduce || kind == StepKind::kReduceScatter;
    const double rounds = static_cast<double>(gpus + nodes - 1);
    return alpha_ * rounds + static_cast<double>(bytes) * (nodes > 1 ? far_ : near_) *
                                 (reduces ? 1.5 : 1.0) * (kind == StepKind::kAllReduce ? 2 : 1);
  }

 private:
  double alpha_, near_, far_;
};

// Where start-up decides, where bytes do, where only the slow link counts.
const Links kModels[] = {{1e-6, 1e-9, 1e-9}, {1e-9, 1e-9, 1e-7}, {1e-3, 1e-9, 1e-8}};

struct Case {
  std::vector<int64_t> mesh;
  Shape shape;
};

class SecondsTest : public ::testing::TestWithParam<Case> {
 protected:
  Mesh mesh_ = *Mesh::Create(GetParam().mesh, {"a", "b"});

  std::vector<Layout> Ends(const std::string& op, const Shape& shape) const {
    std::vector<Layout> out;
    for (std::string text :
         {"R", "S0(a)", "S0(b)", "S0(a,b)", "S0(b,a)", "S1(b)", "S0(a) S1(b)", "F(a)", "F(b,a)",
          "O(a; 1)", "O(b,a; 2)", "+op(a)", "+op(b)", "+op(a,b)", "S0(a) +op(b)", "S0(b) +op(a)",
          "S1(b) +op(a)", "F(a) +op(b)", "O(a; 0) +op(b)"}) {
      if (const size_t at = text.find("op"); at != std::string::npos) text.replace(at, 2, op);
      out.push_back(ValueOrThrow(Layout::Parse(text, shape, mesh_)));
    }
    return out;
  }
  static double Seconds(const Layout& src, const Layout& dst, const CostModel& model,
                        int64_t itemsize = 4) {
    PlanOptions options;
    options.cost_model = &model;
    return PlanRedistribution(src, dst, itemsize, options)->seconds;
  }
};

INSTANTIATE_TEST_SUITE_P(Meshes, SecondsTest,
                         ::testing::Values(Case{{2, 2}, {8, 4}}, Case{{2, 2}, {7, 3}},
                                           Case{{2, 4}, {8, 8}}, Case{{3, 2}, {7, 5}}),
                         [](const auto& info) {
                           return absl::StrCat(absl::StrJoin(info.param.mesh, "x"), "_of_",
                                               absl::StrJoin(info.param.shape, "x"));
                         });

TEST_P(SecondsTest, NoChainOfStepsIsFaster) {
  for (const auto& [op, name] : {std::pair(ReduceOp::kSum, "sum"), {ReduceOp::kMax, "max"}}) {
    const std::vector<Layout> ends = Ends(name, GetParam().shape);
    for (const Links& model : kModels) {
      for (const Layout& src : ends) {
        for (const Layout& dst : ends) {
          if (src == dst || !CheckReachable(src, dst).ok()) continue;
          const StepGraph graph =
              StepGraph::Create(GetParam().shape, mesh_, op, {src, dst}, &model);
          PlanOptions options;
          options.cost_model = &model;
          const RedistributionPlan plan = *PlanRedistribution(src, dst, 4, options);
          const double least = graph.LeastSeconds(graph.Find(src), graph.Find(dst),
                                                  src.MaxLocalNumel() + dst.MaxLocalNumel());
          EXPECT_NEAR(plan.seconds, least, 1e-12 + 1e-9 * least) << plan.ToString();
        }
      }
    }
  }
}

// Memory comes first: a detour may pass layouts that the direct way may not, those larger than its
// ends together, and sums that begin where no end has any.
TEST_P(SecondsTest, StayingCostsNothingAndADetourThroughLegalLayoutsIsNeverFaster) {
  const std::vector<Layout> all = Ends("sum", GetParam().shape);
  const size_t n = all.size();
  for (const Links& model : kModels) {
    std::vector<double> cost(n * n);
    std::vector<int64_t> most(n * n);  // elements of the largest layout on the way
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        PlanOptions options;
        options.cost_model = &model;
        const RedistributionPlan plan = *PlanRedistribution(all[i], all[j], 4, options);
        cost[i * n + j] = plan.seconds;
        for (const Step& s : plan.steps) {
          most[i * n + j] = std::max(most[i * n + j], s.after.MaxLocalNumel());
        }
      }
      EXPECT_EQ(cost[i * n + i], 0);
    }
    int64_t compared = 0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        for (size_t k = 0; k < n; ++k) {
          const int64_t limit = all[i].MaxLocalNumel() + all[k].MaxLocalNumel();
          if (std::max(most[i * n + j], most[j * n + k]) > limit) continue;
          if (all[j].IsPartial() && !all[i].IsPartial() && !all[k].IsPartial()) continue;
          ++compared;
          EXPECT_LE(cost[i * n + k], (cost[i * n + j] + cost[j * n + k]) * (1 + 1e-12))
              << all[i].ToString() << " -> " << all[j].ToString() << " -> " << all[k].ToString();
        }
      }
    }
    EXPECT_GT(compared, static_cast<int64_t>(n * n * n / 2));
  }
}

TEST_P(SecondsTest, MoreBytesNeverCostLess) {
  const std::vector<Layout> all = Ends("sum", GetParam().shape);
  for (const Links& model : kModels) {
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < all.size(); ++j) {
        double last = 0;
        for (int64_t itemsize : {1, 2, 4, 8}) {
          const double seconds = Seconds(all[i], all[j], model, itemsize);
          EXPECT_GE(seconds, last) << all[i].ToString() << " -> " << all[j].ToString();
          last = seconds;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lins
