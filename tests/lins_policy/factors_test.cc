// Factors: how numbers spread along the mesh, which policies are legal, and what is refused.
#include "lins_policy/factors.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "lins_policy/unit_plan.h"

namespace lins {
namespace {

Mesh NodesTimesGpus(int64_t nodes, int64_t gpus) {
  return *Mesh::Create({nodes, gpus}, {"node", "gpu"});
}

TEST(FactorsTest, ANumberFillsTheNodeFirst) {
  const Mesh mesh = NodesTimesGpus(4, 8);
  const std::pair<int64_t, Factors> cases[] = {{1, {1, 1}}, {2, {2, 1}},  {4, {4, 1}},
                                               {8, {8, 1}}, {16, {8, 2}}, {32, {8, 4}}};
  for (const auto& [pieces, want] : cases) {
    EXPECT_EQ(*SpreadFactor(pieces, mesh), want) << pieces;
    EXPECT_EQ(Product(want), pieces);
  }
}

TEST(FactorsTest, AxesOfOneArePassedOver) {
  EXPECT_EQ(*SpreadFactor(2, NodesTimesGpus(4, 1)), Factors({1, 2}));
  EXPECT_EQ(*SpreadFactor(4, NodesTimesGpus(1, 4)), Factors({4, 1}));
  EXPECT_EQ(*SpreadFactor(1, NodesTimesGpus(1, 1)), Factors({1, 1}));
  EXPECT_EQ(*SpreadFactor(4, *Mesh::Create({8}, {"dp"})), Factors({4}));
}

TEST(FactorsTest, ANumberThatDoesNotDivideIsRefused) {
  const Mesh mesh = NodesTimesGpus(4, 8);
  for (int64_t pieces : {-8, -1, 0, 3, 5, 12, 24, 40}) {
    const auto f = SpreadFactor(pieces, mesh);
    ASSERT_FALSE(f.ok()) << pieces;
    EXPECT_TRUE(
        absl::StrContains(f.status().message(), absl::StrCat("factor ", pieces,
                                                             " does not divide along Mesh(node=4, "
                                                             "gpu=8): it must divide the ranks of "
                                                             "a node (8)")))
        << f.status();
  }
  EXPECT_EQ(SpreadFactor(64, mesh).status().message(),
            "factor 64 is larger than the 32 ranks of Mesh(node=4, gpu=8)");
}

// Every combination of numbers, checked by the rules as they are written.
std::vector<Policy> PoliciesByTheRules(int64_t gpus, int64_t nodes, Space space) {
  std::vector<Factors> all;
  for (int64_t g = 1; g <= gpus; ++g) {
    for (int64_t n = 1; n <= nodes; ++n) {
      if (gpus % g == 0 && nodes % n == 0 && (n == 1 || g == gpus)) all.push_back({g, n});
    }
  }
  std::vector<Policy> out;
  for (const Factors& p : all) {
    for (const Factors& g : all) {
      for (const Factors& o : all) {
        const bool ordered =
            g[0] % p[0] == 0 && g[1] % p[1] == 0 && o[0] % g[0] == 0 && o[1] % g[1] == 0;
        if (ordered && (space == Space::kNested || g == p || g == o)) out.push_back({p, g, o});
      }
    }
  }
  return out;
}

std::set<std::string> Names(const std::vector<Policy>& policies) {
  std::set<std::string> out;
  for (const Policy& p : policies) out.insert(p.ToString());
  EXPECT_EQ(out.size(), policies.size()) << "a policy twice";
  return out;
}

TEST(FactorsTest, LegalPoliciesAreThoseOfTheRules) {
  for (int64_t gpus : {1, 2, 4, 6, 8, 12}) {
    for (int64_t nodes : {1, 2, 3, 4, 6}) {
      for (Space space : {Space::kPaper, Space::kNested}) {
        const std::vector<Policy> legal = LegalPolicies(gpus, nodes, space);
        EXPECT_EQ(Names(legal), Names(PoliciesByTheRules(gpus, nodes, space)));
        for (const Policy& p : legal) {
          const Mesh mesh = NodesTimesGpus(nodes, gpus);
          EXPECT_TRUE(ValidatePolicy(p, mesh).ok()) << p.ToString();
          EXPECT_EQ(*ParsePolicy(p.ToString(), mesh), p);
        }
      }
    }
  }
}

struct Count {
  int64_t gpus, nodes;
  size_t meshes, nested, paper;
};

TEST(FactorsTest, CountsOfTheSpaces) {
  for (const Count& c :
       {Count{4, 2, 4, 20, 16}, Count{8, 1, 4, 20, 16}, Count{8, 2, 5, 35, 25},
        Count{8, 4, 6, 56, 36}, Count{8, 16, 8, 120, 64}, Count{8, 128, 11, 286, 121}}) {
    EXPECT_EQ(LegalFactors(c.gpus, c.nodes).size(), c.meshes);
    EXPECT_EQ(LegalPolicies(c.gpus, c.nodes, Space::kNested).size(), c.nested);
    EXPECT_EQ(LegalPolicies(c.gpus, c.nodes, Space::kPaper).size(), c.paper);
  }
}

TEST(FactorsTest, LegalFactorsAreInOrderOfTheirProduct) {
  for (int64_t gpus : {1, 4, 6, 8}) {
    const std::vector<Factors> all = LegalFactors(gpus, 12);
    for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(Product(all[i - 1]), Product(all[i]));
  }
}

TEST(FactorsTest, ValidateRefusesEachBrokenRule) {
  const Mesh mesh = NodesTimesGpus(4, 4);
  const auto why = [&](Factors p, Factors g, Factors o) {
    return std::string(ValidatePolicy({p, g, o}, mesh).message());
  };
  const Factors one = {1, 1}, two = {2, 1}, all = {4, 4};
  EXPECT_EQ(why(one, two, all), "");
  EXPECT_TRUE(absl::StrContains(why({1}, one, one), "factors 1 of P need one number per axis"));
  EXPECT_TRUE(absl::StrContains(why(one, {3, 1}, all), "factor 3x1 of G does not divide"));
  EXPECT_TRUE(absl::StrContains(why(one, {0, 1}, all), "0 is no divisor of 4"));
  EXPECT_TRUE(absl::StrContains(why(one, one, {2, 2}), "without using all 4 of 'gpu'"));
  EXPECT_TRUE(absl::StrContains(why(two, one, all), "P=2x1 is cut finer than G=1x1"));
  EXPECT_TRUE(absl::StrContains(why(one, all, two), "G=4x4 is cut finer than OS=2x1"));
}

TEST(FactorsTest, EachFactorDividesTheNext) {
  const std::string why(ValidatePolicy({{2, 1}, {3, 1}, {6, 1}}, NodesTimesGpus(2, 6)).message());
  EXPECT_TRUE(absl::StrContains(why, "P=2x1 is cut finer than G=3x1, or does not divide it"))
      << why;
}

// Where nodes are no power of two, G and what stays between could be cut in ways that share no
// chain.
TEST(FactorsTest, AllCutsOfAPolicyLieOnOneChain) {
  const Mesh mesh = NodesTimesGpus(2, 6);
  const absl::Status status = ValidatePolicy({{6, 1}, {3, 1}, {6, 2}, {2, 1}}, mesh, Space::kFull);
  EXPECT_EQ(status.message(),
            "between=2x1 and G=3x1 lie on no common chain: one must divide the "
            "other");
  for (const auto& [nodes, gpus] : {std::pair<int64_t, int64_t>{2, 6}, {6, 12}, {4, 8}}) {
    const Mesh each = NodesTimesGpus(nodes, gpus);
    for (const Policy& p : LegalPolicies(gpus, nodes, Space::kFull)) {
      ASSERT_TRUE(ValidatePolicy(p, each, Space::kFull).ok()) << p.ToString();
      const UnitLayouts at = MakeUnitLayouts(p, PaddedTotal(1000, each), each);
      EXPECT_EQ(at.between.LocalNumel(0),
                PaddedTotal(1000, each) / Product(p.between.empty() ? p.param : p.between));
    }
  }
}

}  // namespace
}  // namespace lins
