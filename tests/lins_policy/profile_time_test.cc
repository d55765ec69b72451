// The shipped profile: what it answers on meshes that were measured, and on others.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "lins_policy/profile.h"
#include "lins_policy/profile_meshes.h"

namespace lins {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

const Profile& A800() {
  static const Profile profile = *Profile::Load("a800");
  return profile;
}

double Seconds(StepKind op, int64_t bytes, int64_t gpus, int64_t nodes) {
  return A800().Time(op, bytes, gpus, nodes)->seconds;
}

bool IsSpike(const Profile& profile, const ProfileCurve& c, int64_t bytes) {
  for (const Profile::Spike& s : profile.Spikes()) {
    if (s.op == c.op && s.gpus == c.gpus && s.nodes == c.nodes && s.bytes == bytes) return true;
  }
  return false;
}

// Whether the table falls next to point i, disregarding point `without`: such points are given
// their mean.
bool Falls(const ProfileCurve& c, size_t i, size_t without = -1) {
  std::vector<double> t;
  for (size_t k = 0; k < c.points.size(); ++k) {
    if (k != without) t.push_back(c.points[k].median);
  }
  if (i > without) --i;
  return (i > 0 && t[i - 1] > t[i]) || (i + 1 < t.size() && t[i] > t[i + 1]);
}

TEST(ProfileTime, EveryMeasuredPointIsExactUnlessItIsASpikeOrTheTableFalls) {
  int exact = 0;
  for (const ProfileCurve& c : A800().curves()) {
    for (size_t i = 0; i < c.points.size(); ++i) {
      if (IsSpike(A800(), c, c.points[i].bytes) || Falls(c, i)) continue;
      const Estimate e = *A800().Time(c.op, c.points[i].bytes, c.gpus, c.nodes);
      EXPECT_EQ(e.seconds, c.points[i].median);
      EXPECT_FALSE(e.extrapolated);
      EXPECT_EQ(e.why, "");
      ++exact;
    }
  }
  EXPECT_GE(exact, 330);  // of 350
}

TEST(ProfileTime, LinearBetweenNeighboursOfOneRegime) {
  const double low = 0.0004457, high = 0.0008661;  // all_gather on 8x1: 64 and 128 MiB
  const Estimate e = *A800().Time(StepKind::kAllGather, 80 * kMiB, 8, 1);
  EXPECT_NEAR(e.seconds, low + (high - low) / 4, 1e-12);
  EXPECT_FALSE(e.extrapolated);
}

TEST(ProfileTime, TheThreeKnownSpikesAreNotUsed) {
  const std::tuple<StepKind, int64_t, int64_t, int64_t, double, double> known[] = {
      {StepKind::kReduceScatter, 4, 1, kMiB, 40.6e-6, 63.0e-6},
      {StepKind::kBroadcast, 2, 1, kMiB / 2, 30e-6, 39.4e-6},
      {StepKind::kAllGather, 8, 2, kMiB / 2, 70e-6, 92.7e-6}};
  for (const auto& [op, gpus, nodes, bytes, low, high] : known) {
    EXPECT_GE(Seconds(op, bytes, gpus, nodes), low);
    EXPECT_LE(Seconds(op, bytes, gpus, nodes), high);
  }
}

TEST(ProfileTime, OutsideTheMeasuredSizesIsExtrapolatedAndSaysSo) {
  const Estimate below = *A800().Time(StepKind::kAllReduce, 1000, 8, 1);
  EXPECT_TRUE(below.extrapolated);
  EXPECT_EQ(below.why, "1000 bytes are below the measured sizes");
  EXPECT_GT(below.seconds, 1e-5);
  EXPECT_LE(below.seconds, 41.11e-6);
  const Estimate above = *A800().Time(StepKind::kAllReduce, 16 * kGiB, 8, 1);
  EXPECT_TRUE(above.extrapolated);
  EXPECT_EQ(above.why, "17179869184 bytes are above the measured sizes");
  EXPECT_NEAR(above.seconds / (4 * 0.0484), 1, 0.01);  // a bandwidth by then
}

TEST(ProfileTime, BetweenRegimesIsExtrapolatedAndSaysSo) {
  const std::vector<Profile::RegimeChange> changes = A800().RegimeChanges();
  ASSERT_FALSE(changes.empty());
  for (const Profile::RegimeChange& c : changes) {
    const int64_t middle = (c.below + c.above) / 2;
    const Estimate e = *A800().Time(c.op, middle, c.gpus, c.nodes);
    EXPECT_TRUE(e.extrapolated);
    EXPECT_EQ(e.why, absl::StrCat(middle, " bytes lie between two regimes"));
    EXPECT_GE(e.seconds, Seconds(c.op, c.below, c.gpus, c.nodes));
    EXPECT_LE(e.seconds, Seconds(c.op, c.above, c.gpus, c.nodes));
  }
}

TEST(ProfileTime, NodesBetweenMeasuredOnesByLog2) {
  const Estimate e = *A800().Time(StepKind::kAllGather, 2 * kGiB, 8, 6);
  const double share = std::log2(6.0 / 4) / std::log2(8.0 / 4);
  EXPECT_NEAR(e.seconds, 0.02203 + share * (0.02257 - 0.02203), 1e-9);
  EXPECT_TRUE(e.extrapolated);
  EXPECT_EQ(e.why, "8x6 was not measured: between 8x4 and 8x8 by log2 of the size");
}

TEST(ProfileTime, MoreNodesContinueByLog2AndNeverFall) {
  const Estimate e = *A800().Time(StepKind::kAllGather, 4 * kGiB, 8, 128);
  EXPECT_NEAR(e.seconds, 0.0465 + 3 * (0.0465 - 0.04625), 1e-9);
  EXPECT_EQ(e.why, "8x128 was not measured: continued from 8x8 and 8x16 by log2 of the size");
  // At 512 MiB the table falls from 8 to 16 nodes: what 16 take is the least.
  EXPECT_GE(Seconds(StepKind::kAllGather, 512 * kMiB, 8, 128), 0.005971);
}

TEST(ProfileTime, OtherGpusOnOneNodeByLog2) {
  const Estimate e = *A800().Time(StepKind::kAllGather, kGiB, 3, 1);
  EXPECT_NEAR(e.seconds, 0.004899 + std::log2(1.5) * (0.005944 - 0.004899), 1e-9);
  EXPECT_TRUE(e.extrapolated);
}

TEST(ProfileTime, SubMeshesShareTheNodesLinks) {
  for (int64_t gpus : {1, 2, 4}) {
    for (int64_t nodes : {2, 4, 16, 64}) {
      const Estimate e = *A800().Time(StepKind::kReduceScatter, 32 * kMiB, gpus, nodes);
      EXPECT_EQ(e.seconds, Seconds(StepKind::kReduceScatter, 32 * kMiB * 8 / gpus, 8, nodes));
      EXPECT_TRUE(e.extrapolated);
    }
  }
  EXPECT_EQ(
      A800().Time(StepKind::kAllReduce, kMiB, 2, 4)->why,
      "2x4 was not measured: taken from 8x4, at 4 times the bytes, as the 4 sibling groups of "
      "a node share its links");
}

TEST(ProfileTime, NeverFallsOnAnyMesh) {
  for (StepKind op : kProfileOperations) {
    for (int64_t gpus = 1; gpus <= 8; ++gpus) {
      for (int64_t nodes : {1, 2, 3, 4, 8, 12, 16, 17, 100, 1024}) {
        if (gpus * nodes == 1) continue;
        double last = 0;
        for (double b = 1; b < 1e12; b = std::ceil(b * 1.05)) {
          const double t = Seconds(op, static_cast<int64_t>(b), gpus, nodes);
          ASSERT_GE(t, last) << StepKindName(op) << " " << gpus << "x" << nodes << " at " << b;
          last = t;
        }
      }
    }
  }
}

TEST(ProfileTime, NothingToSendTakesNoTime) {
  EXPECT_EQ(Seconds(StepKind::kAllReduce, kGiB, 1, 1), 0);
  EXPECT_EQ(Seconds(StepKind::kAllReduce, 0, 8, 16), 0);
  EXPECT_FALSE(A800().Time(StepKind::kAllReduce, 0, 8, 16)->extrapolated);
}

TEST(ProfileTime, WhatCannotBeAskedIsAnError) {
  const auto message = [](StepKind op, int64_t bytes, int64_t gpus, int64_t nodes) {
    return std::string(A800().Time(op, bytes, gpus, nodes).status().message());
  };
  EXPECT_EQ(message(StepKind::kSlice, 1, 8, 1),
            "no profile times slice: legal are all_gather, reduce_scatter, all_reduce, broadcast "
            "and all_to_all");
  EXPECT_EQ(message(StepKind::kAllGather, -1, 8, 1), "bytes is -1, must be at least 0");
  EXPECT_EQ(message(StepKind::kAllGather, 1, 9, 1),
            "mesh 9x1 on profile 'a800': legal are 1 to 8 GPUs per node x at least 1 node");
  EXPECT_NE(message(StepKind::kAllGather, 1, 0, 1), "");
  EXPECT_NE(message(StepKind::kAllGather, 1, 8, 0), "");
}

TEST(ProfileTime, OneNodeSaysNothingOfTwo) {
  std::vector<ProfileCurve> curves;
  for (StepKind op : kProfileOperations) curves.push_back({op, 4, 1, {{kMiB, 1e-3, 0, 0, 1, ""}}});
  const Profile p = *Profile::Create("one", "measured", 8, 1, curves);
  EXPECT_EQ(p.Time(StepKind::kAllGather, kMiB, 8, 2).status().message(),
            "profile 'one': all_gather was measured on 4x1 (GPUs per node x nodes), which says "
            "nothing of 8x2");
  EXPECT_EQ(p.Seconds(StepKind::kAllGather, kMiB, 8, 2), HUGE_VAL);
  EXPECT_TRUE(p.CanPrice(8, 1).ok());
  EXPECT_FALSE(p.CanPrice(8, 2).ok());
  EXPECT_FALSE(p.CanPrice(9, 1).ok());
  // Fewer GPUs take what the fewest measured take, more continue from one GPU, which takes nothing.
  EXPECT_DOUBLE_EQ(p.Time(StepKind::kAllGather, kMiB, 2, 1)->seconds, 1e-3);
  EXPECT_DOUBLE_EQ(p.Time(StepKind::kAllGather, kMiB, 8, 1)->seconds, 1.5e-3);
}

TEST(ProfileTime, FewerNodesThanMeasuredTakeWhatTheFewestTake) {
  std::vector<ProfileCurve> curves;
  for (StepKind op : kProfileOperations) {
    curves.push_back({op, 4, 1, {{kMiB, 1e-4, 0, 0, 1, ""}}});
    curves.push_back({op, 4, 4, {{kMiB, 1e-3, 0, 0, 1, ""}}});
  }
  const Profile p = *Profile::Create("gap", "measured", 4, 4, curves);
  // Not halfway to one node, which has no slow link.
  EXPECT_DOUBLE_EQ(p.Time(StepKind::kAllGather, kMiB, 4, 2)->seconds, 1e-3);
  EXPECT_DOUBLE_EQ(p.Time(StepKind::kAllGather, kMiB, 4, 16)->seconds, 1e-3 + 9e-4);
}

TEST(ProfileTime, AMeasuredSubMeshIsUsed) {
  std::vector<ProfileCurve> curves;
  for (StepKind op : kProfileOperations) {
    curves.push_back({op, 4, 2, {{kMiB, 1e-3, 0, 0, 1, ""}}});
    curves.push_back({op, 1, 2, {{kMiB, 7e-3, 0, 0, 1, ""}}});
  }
  const Profile p = *Profile::Create("sub", "measured", 4, 2, curves);
  const Estimate e = *p.Time(StepKind::kAllGather, kMiB, 1, 2);
  EXPECT_EQ(e.seconds, 7e-3);
  EXPECT_FALSE(e.extrapolated);
}

TEST(ProfileTime, TheCostModelPricesEveryStep) {
  const CostModel& model = A800();
  EXPECT_EQ(model.Seconds(StepKind::kSlice, kMiB, 8, 2), 0);
  EXPECT_EQ(model.Seconds(StepKind::kLocal, kMiB, 8, 2), 0);
  EXPECT_EQ(model.Seconds(StepKind::kAllGather, kMiB, 1, 1), 0);
  const double pairs = Seconds(StepKind::kAllToAll, kMiB, 8, 2);
  EXPECT_EQ(model.Seconds(StepKind::kPermute, kMiB, 8, 2), pairs);
  EXPECT_EQ(model.Seconds(StepKind::kExchange, kMiB, 8, 2), pairs);
  EXPECT_EQ(model.Seconds(StepKind::kAllGather, kMiB, 16, 1), HUGE_VAL);
}

// A tenfold spike at any one point of the table changes no estimate at the size of another point
// that counts, and the one at its own size stays near. (Points where the table falls count as their
// mean, so they may move within the fall; the sizes of the table's own spikes are estimates.)
TEST(ProfileTime, ATenfoldSpikeAtAnyPointDecidesNothing) {
  double worst = 1, sum_of_logs = 0;
  int spikes = 0, moved = 0;
  for (size_t curve = 0; curve < A800().curves().size(); ++curve) {
    const ProfileCurve& c = A800().curves()[curve];
    for (size_t spike = 0; spike < c.points.size(); ++spike) {
      std::vector<ProfileCurve> curves = A800().curves();
      curves[curve].points[spike].median *= 10;
      const Profile spiked = *Profile::Create("spiked", "measured", 8, 16, curves);
      const std::string where =
          absl::StrCat(StepKindName(c.op), " ", c.gpus, "x", c.nodes, " ", c.points[spike].bytes);
      EXPECT_TRUE(IsSpike(spiked, c, c.points[spike].bytes)) << where;
      for (size_t i = 0; i < c.points.size(); ++i) {
        const int64_t bytes = c.points[i].bytes;
        const double before = Seconds(c.op, bytes, c.gpus, c.nodes);
        const double after = spiked.Time(c.op, bytes, c.gpus, c.nodes)->seconds;
        const double ratio = std::max(after / before, before / after);
        if (i == spike) {
          worst = std::max(worst, ratio);
          sum_of_logs += std::log(ratio);
          ++spikes;
        } else if (Falls(c, i) || Falls(c, i, spike) || IsSpike(A800(), c, bytes)) {
          EXPECT_LT(ratio, 2) << where << " moves " << bytes;
          moved += ratio > 1.001;
        } else {
          EXPECT_EQ(after, before) << where << " moves " << bytes;
        }
      }
    }
  }
  EXPECT_EQ(spikes, 350);
  EXPECT_LT(worst, 2.6);
  EXPECT_LT(std::exp(sum_of_logs / spikes), 1.15);
  EXPECT_LT(moved, 50);
  RecordProperty("worst_ratio", std::to_string(worst));
  RecordProperty("mean_ratio", std::to_string(std::exp(sum_of_logs / spikes)));
  RecordProperty("moved", moved);
}

TEST(ProfileTime, ThreadsMayAskAtOnce) {
  const Profile profile = *Profile::Load("a800");
  std::vector<std::thread> threads;
  std::vector<double> sums(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t nodes = 1; nodes < 300; ++nodes) {
        sums[t] += profile.Seconds(StepKind::kAllGather, kMiB, 2 + nodes % 7, nodes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (double s : sums) EXPECT_EQ(s, sums[0]);
}

TEST(ProfileTime, IsFast) {
  const Profile profile = *Profile::Load("a800");
  for (const auto& [gpus, nodes] : {std::pair{8, 2}, std::pair{8, 128}}) {
    double sum = 0;
    const auto begin = std::chrono::steady_clock::now();
    constexpr int kCount = 100000;
    for (int i = 0; i < kCount; ++i) {
      sum += profile.Seconds(StepKind::kAllGather, kMiB + 4099 * i, gpus, nodes);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GT(sum, 0);
    // 0.05 microseconds by itself; the bound leaves room for a busy machine and sanitizers.
    EXPECT_LT(took.count() / kCount, 5e-6);
    RecordProperty(absl::StrCat("nanoseconds_", gpus, "x", nodes),
                   std::to_string(took.count() / kCount * 1e9));
  }
}

}  // namespace
}  // namespace lins
