// Comparisons of whole tensors: one answer, the same on every rank.
#include <limits>

#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

class Comparison : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, Comparison, kMeshes, MeshName);

TEST_P(Comparison, AgreesUnderEveryPairOfLayoutsAndSeesOneElementThatDiffers) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& shape : {Sizes{5}, Sizes{3, 4}, Sizes{1}, Sizes{0}}) {
      const at::Tensor a = Whole(shape, 0, at::kDouble);
      at::Tensor b = a.clone();
      if (b.numel() > 0) b.view(-1)[b.numel() - 1] += 1;
      for (const std::string& p : LayoutsOf(static_cast<int64_t>(shape.size()))) {
        for (const std::string& q : LayoutsOf(static_cast<int64_t>(shape.size()))) {
          const DTensor x = Place(a, mesh, p), y = Place(a, mesh, q), z = Place(b, mesh, q);
          EXPECT_TRUE(Equal(x, y)) << p << ", " << q;
          EXPECT_EQ(Equal(x, z), a.numel() == 0) << p << ", " << q;
          EXPECT_TRUE(AllClose(x, y)) << p << ", " << q;
          EXPECT_EQ(AllClose(x, z), a.numel() == 0) << p << ", " << q;
          EXPECT_TRUE(AllClose(x, z, 0, 1)) << p << ", " << q;
        }
      }
    }
  });
}

TEST(ComparisonRules, AReplicaThatDiffersOnOneRankIsSeenByAll) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({7}, 0, at::kDouble), mesh, "R");
    const DTensor y = Clone(x);
    if (mesh.rank() == 3) y.ToLocal()[6] += 1;
    EXPECT_FALSE(Equal(x, y));
    EXPECT_FALSE(AllClose(x, y));
  });
}

TEST(ComparisonRules, UnlikeShapesAreUnequalAndNanEqualsNanOnlyWhenAsked) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(at::zeros({4}), mesh, "S0(gpu)");
    EXPECT_FALSE(Equal(x, Place(at::zeros({4, 1}), mesh, "S0(gpu)")));
    ExpectError([&] { AllClose(x, Place(at::zeros({5}), mesh, "R")); },
                "allclose: shapes (4,) and (5,) differ");
    const DTensor nan = Place(at::full({4}, std::numeric_limits<float>::quiet_NaN()), mesh, "R");
    EXPECT_FALSE(Equal(nan, nan));
    EXPECT_FALSE(AllClose(nan, nan));
    EXPECT_TRUE(AllClose(nan, nan, 1e-5, 1e-8, /*equal_nan=*/true));
  });
}

TEST(ComparisonRules, TheOnlyElementIsTheSameOnEveryRank) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    for (const std::string& layout : LayoutsOf(0)) {
      EXPECT_EQ(Item(Place(at::tensor(7), mesh, layout)).toLong(), 7) << layout;
    }
    EXPECT_EQ(Item(Place(at::full({1, 1}, 2.5), mesh, "S0(gpu) S1(node)")).toDouble(), 2.5);
    ExpectError([&] { Item(Place(Whole({4, 6}), mesh, "R")); }, "(4, 6) has 24 elements, not one");
  });
}

}  // namespace
}  // namespace lins::testing
