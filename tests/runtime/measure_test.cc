// Measuring on ranks that are threads: what is agreed on, what a sample is, how failures spread.
#include "runtime/measure.h"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/trace.h"
#include "mesh/error.h"
#include "tests/dtensor/on_mesh.h"

namespace lins {
namespace {

constexpr StepKind kOps[] = {StepKind::kAllGather, StepKind::kReduceScatter, StepKind::kAllReduce,
                             StepKind::kBroadcast, StepKind::kAllToAll};

// What every rank measures, in rank order.
std::vector<Measurement> Measure(std::vector<int64_t> shape, StepKind op, int64_t gpus,
                                 int64_t nodes, int64_t bytes, const MeasureOptions& options = {}) {
  std::vector<Measurement> out(shape[0] * shape[1]);
  testing::OnMesh(shape, [&](const LiveMesh& mesh) {
    out[mesh.rank()] = MeasureCollective(mesh, op, gpus, nodes, bytes, options);
  });
  return out;
}

TEST(Measure, EveryOperationOnEveryMeshGivesAllRanksTheSamePoint) {
  const std::pair<int64_t, int64_t> meshes[] = {{2, 1}, {4, 1}, {4, 2}, {1, 2}, {2, 2}};
  for (StepKind op : kOps) {
    for (const auto& [gpus, nodes] : meshes) {
      const auto all = Measure({2, 4}, op, gpus, nodes, 1003, {.budget_seconds = 0.02});
      for (const Measurement& m : all) {
        EXPECT_EQ(m.point.bytes, 1003);
        EXPECT_GT(m.point.median, 0);
        EXPECT_GE(m.point.p95, m.point.median);
        EXPECT_GE(m.point.samples, 1);
        EXPECT_EQ(m.point.median, all[0].point.median);
        EXPECT_EQ(m.point.samples, all[0].point.samples);
        EXPECT_EQ(m.elapsed, all[0].elapsed);
      }
    }
  }
}

TEST(Measure, GroupsAreNeighboursAndSendTheGivenBytes) {
  testing::OnMesh({2, 4}, [&](const LiveMesh& mesh) {
    RankContext& context = mesh.world().context();
    const int id = context.StartTrace();
    MeasureCollective(mesh, StepKind::kAllGather, 2, 2, 4096, {.budget_seconds = 0.01});
    int64_t seen = 0;
    for (const TraceRecord& r : context.Trace(id)) {
      if (r.op != "all_gather" || r.role != "gather") continue;
      const int64_t first = mesh.rank() % 4 / 2 * 2;
      EXPECT_EQ(r.group, (std::vector<int64_t>{first, first + 1, first + 4, first + 5}));
      EXPECT_EQ(r.bytes, 4096);
      EXPECT_EQ(r.axes, "node,gpu:2");
      ++seen;
    }
    context.StopTrace(id);
    EXPECT_GE(seen, 3);
  });
}

TEST(Measure, ASampleIsTheSlowestRanksTime) {
  std::vector<double> medians(4);
  testing::OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    RankContext& context = mesh.world().context();
    // A broadcast from rank 2 of its group reaches others late; rank 0 itself need not wait.
    if (mesh.rank() == 3) context.AddDelay({"all_to_all", "", "gather"}, 0.02);
    const Measurement m =
        MeasureCollective(mesh, StepKind::kAllToAll, 2, 1, 4096, {.budget_seconds = 0.3});
    medians[mesh.rank()] = m.point.median;
  });
  for (double m : medians) EXPECT_GT(m, 0.02);  // ranks 0 and 1 have no delay in their own group
}

TEST(Measure, EndsByToleranceBudgetOrNumberOfSamples) {
  const auto loose = Measure({1, 2}, StepKind::kAllGather, 2, 1, 4096,
                             {.budget_seconds = 10, .min_samples = 8, .tolerance = 1e9});
  EXPECT_TRUE(loose[0].stable);
  EXPECT_LE(loose[0].point.samples, 16);
  const auto never = Measure({1, 2}, StepKind::kAllGather, 2, 1, 4096,
                             {.budget_seconds = 10, .max_samples = 40, .tolerance = -1});
  EXPECT_FALSE(never[0].stable);
  EXPECT_GE(never[0].point.samples, 40);
  EXPECT_LT(never[0].point.samples, 60);
  const auto late =
      Measure({1, 2}, StepKind::kAllGather, 2, 1, 1 << 20, {.budget_seconds = 0, .tolerance = -1});
  EXPECT_EQ(late[0].point.samples, 1);
}

TEST(Measure, AFailureOnOneRankIsAnErrorOnAll) {
  std::vector<std::string> errors(4);
  EXPECT_THROW(testing::OnMesh(
                   {2, 2},
                   [&](const LiveMesh& mesh) {
                     if (mesh.rank() == 2) {
                       mesh.world().context().AddFailure({"all_gather", "", "gather"}, "link down");
                     }
                     try {
                       MeasureCollective(mesh, StepKind::kAllGather, 2, 1, 4096);
                     } catch (const Error& e) {
                       errors[mesh.rank()] = e.what();
                       throw;
                     }
                   }),
               Error);
  for (const std::string& e : errors) EXPECT_NE(e, "");
  EXPECT_NE(errors[2].find("link down"), std::string::npos) << errors[2];
}

TEST(Measure, WhatDoesNotFitInMemoryIsAnErrorOnAll) {
  std::vector<std::string> errors(2);
  testing::OnMesh({1, 2}, [&](const LiveMesh& mesh) {
    try {
      MeasureCollective(mesh, StepKind::kAllGather, 2, 1, int64_t{1} << 55);
    } catch (const Error& e) {
      errors[mesh.rank()] = e.what();
    }
    // The world is as good as before.
    MeasureCollective(mesh, StepKind::kAllGather, 2, 1, 4096, {.budget_seconds = 0.01});
  });
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("measuring all_gather of 36028797018963968 bytes on 2x1: an error:"),
              std::string::npos)
        << e;
  }
}

TEST(Measure, WrongArgumentsAreErrors) {
  testing::OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    const auto message = [&](StepKind op, int64_t gpus, int64_t nodes, int64_t bytes) {
      try {
        MeasureCollective(mesh, op, gpus, nodes, bytes);
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    EXPECT_EQ(message(StepKind::kAllGather, 2, 1, 0), "bytes is 0, must be at least 1");
    for (const auto& [gpus, nodes] : {std::pair{1, 1}, {3, 1}, {2, 3}, {4, 1}, {0, 2}, {2, -1}}) {
      EXPECT_NE(message(StepKind::kAllGather, gpus, nodes, 1).find("divisors of both"),
                std::string::npos);
    }
    EXPECT_NE(message(StepKind::kSlice, 2, 1, 1).find("no profile times slice"), std::string::npos);
  });
}

TEST(Measure, ComputeAloneAndBesideCollectives) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 1}, {1, 2}}) {
    std::vector<ComputeProfile> all(shape[1]);
    testing::OnMesh(shape, [&](const LiveMesh& mesh) {
      all[mesh.rank()] = MeasureCompute(mesh, {.budget_seconds = 0.2});
    });
    for (const ComputeProfile& c : all) {
      EXPECT_GT(c.flops_per_second, 1e8);
      EXPECT_LT(c.flops_per_second, 1e13);
      EXPECT_GE(c.overlap_slowdown, 1);
      EXPECT_EQ(c.flops_per_second, all[0].flops_per_second);
      EXPECT_EQ(c.overlap_slowdown, all[0].overlap_slowdown);
    }
  }
}

TEST(Measure, UncertaintyOfAMedian) {
  EXPECT_EQ(MedianUncertainty({1, 2, 3, 4, 5}), HUGE_VAL);
  EXPECT_EQ(MedianUncertainty({7, 7, 7, 7, 7, 7}), 0);
  // 100 samples: the interval is from number 40 to number 60 (counted from 0), 50 -+ 0.98 * 10.
  std::vector<double> samples;
  for (int i = 0; i < 100; ++i) samples.push_back(1000 + i);
  EXPECT_NEAR(MedianUncertainty(samples), 10.5 / 1049.5, 1e-12);
  // One sample far away says nothing.
  samples[99] = 1e9;
  EXPECT_NEAR(MedianUncertainty(samples), 10.5 / 1049.5, 1e-12);
}

}  // namespace
}  // namespace lins
