// The paper's three plans, and what they hang on.
#include "lins_policy/table3.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "lins_policy/solve.h"

namespace lins {
namespace {

TEST(Table3Test, ThePapersPlansAreFoundAgain) {
  const std::vector<Table3Row> rows = *ReproduceTable3();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].plan.factors(), (Policy{{1, 1}, {1, 1}, {8, 1}}));
  EXPECT_EQ(rows[1].plan.factors(), (Policy{{4, 1}, {4, 1}, {8, 1}}));
  EXPECT_EQ(rows[2].plan.factors(), (Policy{{8, 1}, {8, 1}, {8, 4}}));
  for (const Table3Row& r : rows) EXPECT_TRUE(r.agrees()) << r.model;
}

TEST(Table3Test, EachModelStandsAtTheSmallestScaleAtWhichItFits) {
  const std::vector<Table3Row> rows = *ReproduceTable3();
  for (const Table3Row& r : rows) {
    EXPECT_TRUE(r.plan.fits());
    if (r.plan.cluster.nodes == 1) continue;
    Cluster smaller = r.plan.cluster;
    for (smaller.nodes /= 2; smaller.nodes >= 1; smaller.nodes /= 2) {
      EXPECT_FALSE(Solve(r.plan.spec, smaller, r.plan.settings).ok())
          << r.model << " on " << smaller.nodes;
    }
  }
}

TEST(Table3Test, SettingsUnderWhichResultsChange) {
  int by_recompute = 0, by_ties = 0;
  const std::vector<Table3Row> rows = *ReproduceTable3();
  for (const Table3Row& r : rows) {
    ModelSpec recomputing = r.plan.spec;
    recomputing.training.recompute = Recompute::kFull;
    by_recompute += Solve(recomputing, r.plan.cluster, r.plan.settings)->factors() != r.paper;
    PlanSettings exact = r.plan.settings;
    exact.tie_epsilon = 0;
    by_ties += Solve(r.plan.spec, r.plan.cluster, exact)->factors() != r.paper;
  }
  EXPECT_GT(by_recompute, 0);
  EXPECT_GT(by_ties, 0);
}

TEST(Table3Test, TheReportSaysWhatDecides) {
  const std::vector<Table3Row> rows = *ReproduceTable3();
  const Report report = *ExplainTable3(rows);
  ASSERT_EQ(report.tables.size(), 5u);  // plans, neighbours of three, other settings
  for (size_t i = 0; i < 3; ++i) {
    const ReportTable& t = report.tables[i + 1];
    EXPECT_GE(t.rows.size(), 4u);
    int chosen = 0;
    for (const auto& row : t.rows) {
      if (row.back() == "chosen") {
        ++chosen;
        EXPECT_EQ(row[0], rows[i].plan.factors()->ToString());
      }
    }
    EXPECT_EQ(chosen, 1);
  }
  EXPECT_EQ(report.tables[4].rows.size(), 3u);
}

}  // namespace
}  // namespace lins
