// Profiles of clusters that have not been measured: the formula of docs/profile.md.
#include <gtest/gtest.h>

#include "lins_policy/profile.h"
#include "lins_policy/profile_meshes.h"

namespace lins {
namespace {

constexpr LinkModel kLinks = {4, 6, 1e9, 2e8, 1e-6, 5e-6};

TEST(ProfileModel, FollowsTheFormulaAtEverySize) {
  const Profile p = *Profile::Model(kLinks);
  EXPECT_EQ(p.source(), "model");
  for (int64_t g : {1, 2, 4}) {
    for (int64_t n : {1, 2, 3, 6}) {
      if (g * n == 1) continue;
      const double k = g * n, siblings = 4.0 / g;
      const double hops = (g - 1) * 1e-6 + (n - 1) * 5e-6;
      for (int64_t v : {1, 3, 4096, 1000000, 1 << 30}) {
        // All-gather and reduce-scatter: v(k-1)/k into each rank, v(n-1)/n a group into each node.
        const double intra = g > 1 ? v * (k - 1) / k / 1e9 : 0;
        const double inter = siblings * v * (n - 1) / n / 2e8;
        const double ring = hops + std::max(intra, inter);
        const double flood = hops + std::max(g > 1 ? v / 1e9 : 0, n > 1 ? siblings * v / 2e8 : 0);
        const double pairs =
            hops + std::max(v * (g - 1) / k / 1e9, n > 1 ? 4.0 * v * (n - 1) / n / 2e8 : 0);
        const std::pair<StepKind, double> expected[] = {{StepKind::kAllGather, ring},
                                                        {StepKind::kReduceScatter, ring},
                                                        {StepKind::kAllReduce, 2 * ring},
                                                        {StepKind::kBroadcast, flood},
                                                        {StepKind::kAllToAll, pairs}};
        for (const auto& [op, seconds] : expected) {
          const Estimate e = *p.Time(op, v, g, n);
          EXPECT_NEAR(e.seconds / seconds, 1, 1e-9)
              << StepKindName(op) << " " << g << "x" << n << " " << v;
          EXPECT_FALSE(e.extrapolated);
        }
      }
    }
  }
}

TEST(ProfileModel, HasNoSpikesAndOneRegime) {
  const Profile p = *Profile::Model({8, 128});
  EXPECT_TRUE(p.Spikes().empty());
  EXPECT_TRUE(p.RegimeChanges().empty());
  EXPECT_EQ(Profile::FromJson(p.ToJson(), "p")->ToJson(), p.ToJson());
}

TEST(ProfileModel, SiblingGroupsShareTheLinksAsTheRuleForUnmeasuredMeshesSays) {
  // The bandwidth part of g x n at v is that of the whole mesh at v R/g.
  LinkModel links = kLinks;
  links.intra_latency = links.inter_latency = 1e-9;
  links.inter_bandwidth = 1e8;  // the slower of the two everywhere
  const Profile p = *Profile::Model(links);
  for (StepKind op : {StepKind::kAllGather, StepKind::kAllReduce}) {
    const double part = p.Time(op, 1 << 20, 2, 3)->seconds;
    EXPECT_NEAR(part / p.Time(op, 2 << 20, 4, 3)->seconds, 1, 1e-4);
  }
}

TEST(ProfileModel, RefusesLinksThatMakeNoSense) {
  const auto message = [](const LinkModel& l) {
    return std::string(Profile::Model(l).status().message());
  };
  EXPECT_EQ(message({8, 2, 0}), "intra_bandwidth is 0 bytes per second: legal are 1e6 to 1e18");
  EXPECT_EQ(message({8, 2, 1e9, -1}),
            "inter_bandwidth is -1 bytes per second: legal are 1e6 to 1e18");
  EXPECT_EQ(message({8, 2, 1e9, 1e9, 0}), "intra_latency is 0 seconds: legal are 1e-9 to 10");
  EXPECT_EQ(message({1, 1}), "a cluster of one GPU has no collectives to model");
  EXPECT_NE(message({0, 1}), "");
  EXPECT_NE(message({8, -1}), "");
}

}  // namespace
}  // namespace lins
