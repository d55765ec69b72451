// Products of matrices: exact under every pair of layouts, local where the layouts allow it.
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

class MatMulSweep : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, MatMulSweep, kMeshes, MeshName);

TEST_P(MatMulSweep, EveryPairOfLayoutsGivesTheProductOfTheWholeMatrices) {
  Run([](const LiveMesh& mesh) {
    const Sizes sizes[] = {{3, 5, 2}, {4, 4, 4}, {1, 2, 8}, {2, 0, 3}, {5, 1, 1}, {0, 3, 4}};
    for (const Sizes& mkn : sizes) {
      const at::Tensor a = Whole({mkn[0], mkn[1]}), b = Whole({mkn[1], mkn[2]}, 1);
      const at::Tensor want = at::matmul(a, b);
      for (const std::string& p : LayoutsOf(2)) {
        const DTensor x = Place(a, mesh, p);
        for (const std::string& q : LayoutsOf(2)) {
          EXPECT_TRUE(Same(MatMul(x, Place(b, mesh, q)), want)) << p << " @ " << q;
        }
      }
    }
  });
}

TEST(MatMulRules, RowsColumnsAndContractionsAreLocal) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const struct {
      const char *a, *b, *result;
      Strings collectives;
    } rows[] = {
        {"S0(gpu)", "R", "S0(gpu)", {}},
        {"R", "S1(gpu)", "S1(gpu)", {}},
        {"S0(node)", "S1(gpu)", "S0(node) S1(gpu)", {}},
        {"S1(gpu)", "S0(gpu)", "+sum(gpu)", {}},
        {"S1(gpu)", "R", "+sum(gpu)", {}},
        {"R", "S0(gpu)", "+sum(gpu)", {}},
        {"S0(node) S1(gpu)", "S0(gpu)", "S0(node) +sum(gpu)", {}},
        {"S1(gpu)", "S0(gpu) S1(node)", "S1(node) +sum(gpu)", {}},
        {"R", "R", "R", {}},
        {"+sum(gpu)", "R", "+sum(gpu)", {"reduce_scatter"}},
    };
    const at::Tensor a = Whole({4, 4}), b = Whole({4, 4}, 1);
    for (const auto& row : rows) {
      std::optional<DTensor> y;
      const DTensor x = Place(a, mesh, row.a), w = Place(b, mesh, row.b);
      const Strings kinds = Collectives(mesh, [&] { y = MatMul(x, w); });
      EXPECT_TRUE(Same(*y, at::matmul(a, b))) << row.a << " @ " << row.b;
      if (std::string(row.a)[0] == '+') {  // some reduction, and some layout
        EXPECT_FALSE(kinds.empty());
        continue;
      }
      EXPECT_EQ(kinds, row.collectives) << row.a << " @ " << row.b;
      EXPECT_EQ(y->layout().ToString(), row.result) << row.a << " @ " << row.b;
    }
  });
}

TEST(MatMulRules, ShapesThatDoNotMultiplyAreNamed) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({4, 6}), mesh, "S0(gpu)"), v = Place(Whole({6}), mesh, "R");
    ExpectError([&] { MatMul(x, x); },
                "matmul: shapes (4, 6) and (4, 6) are not (m, k) and (k, n)");
    ExpectError([&] { MatMul(x, v); }, "matmul: shapes (4, 6) and (6,)");
    ExpectError([&] { MatMul(x, Place(Whole({6, 2}, 0, at::kDouble), mesh, "R")); }, "matmul of");
  });
}

}  // namespace
}  // namespace lins::testing
