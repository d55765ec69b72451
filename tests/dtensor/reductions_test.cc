// Sums, means, extrema and norms along every choice of dimensions equal those of the whole tensor.
#include <cmath>

#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

const Sizes kShapes[] = {{5}, {8}, {1}, {3, 5}, {4, 4}, {5, 1}, {2, 0}, {0}, {}, {2, 3, 4}};

std::vector<Dims> DimsOf(size_t ndim) {
  std::vector<Dims> out = {{}};
  for (int64_t d = 0; d < static_cast<int64_t>(ndim); ++d) out.push_back({d});
  if (ndim > 0) out.push_back({-1});
  if (ndim > 1) out.push_back({1, 0});
  if (ndim > 2) out.push_back({0, 2});
  return out;
}

Sizes All(const at::Tensor& t) {
  Sizes out;
  for (int64_t d = 0; d < t.dim(); ++d) out.push_back(d);
  return out;
}

class Reductions : public OnMeshes {
 protected:
  // check(x, whole, dims, keepdim, what) for every shape, layout and choice of dimensions.
  template <typename Fn>
  static void Sweep(at::ScalarType dtype, const Fn& check) {
    Run([&](const LiveMesh& mesh) {
      for (const Sizes& shape : kShapes) {
        const at::Tensor a = Whole(shape, 0, dtype);
        for (const std::string& layout : LayoutsOf(static_cast<int64_t>(shape.size()))) {
          const DTensor x = Place(a, mesh, layout);
          for (const Dims& dims : DimsOf(shape.size())) {
            for (bool keepdim : {false, true}) {
              const std::string what =
                  absl::StrCat(Describe(x.layout()), " over dimensions ", absl::StrJoin(dims, ","));
              check(x, a, dims, keepdim, what);
            }
          }
        }
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Meshes, Reductions, kMeshes, MeshName);

TEST_P(Reductions, SumsAreExact) {
  Sweep(at::kLong, [](const DTensor& x, const at::Tensor& a, const Dims& dims, bool keepdim,
                      const std::string& what) {
    EXPECT_TRUE(Same(Sum(x, dims, keepdim), at::sum(a, dims.empty() ? All(a) : dims, keepdim)))
        << what;
  });
}

TEST_P(Reductions, ExtremaAreExactAndOverNoElementsAnError) {
  Sweep(at::kLong, [](const DTensor& x, const at::Tensor& a, const Dims& dims, bool keepdim,
                      const std::string& what) {
    const Sizes over = dims.empty() ? All(a) : dims;
    bool none = false;
    for (int64_t d : over) none = none || a.size(d) == 0;
    if (none) {
      ExpectError([&] { Max(x, dims, keepdim); }, "max over no elements");
      ExpectError([&] { Min(x, dims, keepdim); }, "min over no elements");
      return;
    }
    EXPECT_TRUE(Same(Max(x, dims, keepdim), at::amax(a, over, keepdim))) << what;
    EXPECT_TRUE(Same(Min(x, dims, keepdim), at::amin(a, over, keepdim))) << what;
  });
}

TEST_P(Reductions, MeansAndNormsAreThoseOfTheWholeTensor) {
  // Parts of a pending mean are divided before they are added up: what cancels leaves a rounding.
  const auto close = [](const DTensor& got, const at::Tensor& want) {
    const at::Tensor full = got.FullTensor();
    return full.sizes() == want.sizes() && full.scalar_type() == want.scalar_type() &&
           at::allclose(full, want, 1e-12, 1e-14, /*equal_nan=*/true);
  };
  Sweep(at::kDouble, [&](const DTensor& x, const at::Tensor& a, const Dims& dims, bool keepdim,
                         const std::string& what) {
    const Sizes over = dims.empty() ? All(a) : dims;
    EXPECT_TRUE(close(Mean(x, dims, keepdim), at::mean(a, over, keepdim))) << what;
    EXPECT_TRUE(close(Norm(x, 1, dims, keepdim), a.abs().sum(over, keepdim))) << what;
    EXPECT_TRUE(close(Norm(x, 2, dims, keepdim), (a * a).sum(over, keepdim).sqrt())) << what;
    if (a.numel() > 0) {
      EXPECT_TRUE(close(Norm(x, INFINITY, dims, keepdim), a.abs().amax(over, keepdim))) << what;
    }
  });
}

struct Row {
  const char* layout;
  std::function<DTensor(const DTensor&)> op;
  const char* result;
  Strings collectives;
};

void ExpectRows(const std::vector<Row>& rows, bool gradient = false) {
  OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    for (const Row& row : rows) {
      const DTensor x = Place(Whole({4, 6}, 0, at::kDouble), mesh, row.layout);
      if (gradient) x.ToLocal().set_requires_grad(true);
      std::optional<DTensor> y;
      EXPECT_EQ(Collectives(mesh, [&] { y = row.op(x); }), row.collectives) << row.layout;
      EXPECT_EQ(y->layout().ToString(), row.result) << row.layout;
    }
  });
}

TEST(ReductionRules, ASumOverSplitDimensionsStaysPendingOverTheirAxes) {
  const auto sum = [](const DTensor& x) { return Sum(x); };
  const auto mean0 = [](const DTensor& x) { return Mean(x, {0}); };
  ExpectRows({{"S0(gpu) S1(node)", sum, "+sum(node,gpu)", {}},
              {"S0(gpu) S1(node)", mean0, "S0(node) +sum(gpu)", {}},
              {"F(gpu,node)", sum, "+sum(node,gpu)", {}},
              {"S0(gpu) +sum(node)", sum, "+sum(node,gpu)", {}},
              {"+avg(gpu)", sum, "+avg(gpu)", {}}});
}

TEST(ReductionRules, ASumOverOtherDimensionsRenumbersTheSplit) {
  const auto sum0 = [](const DTensor& x) { return Sum(x, {0}); };
  const auto kept = [](const DTensor& x) { return Mean(x, {0}, true); };
  ExpectRows({{"S1(gpu)", sum0, "S0(gpu)", {}},
              {"S1(gpu)", kept, "S1(gpu)", {}},
              {"S1(gpu) +sum(node)", sum0, "S0(gpu) +sum(node)", {}}});
}

TEST(ReductionRules, PendingExtremaAreReducedBeforeASum) {
  const auto sum = [](const DTensor& x) { return Sum(x); };
  ExpectRows({{"+max(gpu)", sum, "R", {"all_reduce"}},
              {"S0(gpu) +min(node)", sum, "+sum(gpu)", {"all_reduce"}}});
}

TEST(ReductionRules, ExtremaOverASplitStayPendingUnlessAGradientIsRecorded) {
  const std::vector<Row> rows = {
      {"S0(gpu)", [](const DTensor& x) { return Max(x); }, "+max(gpu)", {}},
      {"F(gpu)", [](const DTensor& x) { return Min(x); }, "+min(gpu)", {}},
      {"S0(gpu)", [](const DTensor& x) { return Min(x, {1}); }, "S0(gpu)", {}}};
  ExpectRows(rows);
  std::vector<Row> recorded = rows;
  for (size_t i = 0; i < 2; ++i) {
    recorded[i].result = "R";
    recorded[i].collectives = {"all_reduce", "all_reduce"};
  }
  ExpectRows(recorded, /*gradient=*/true);
}

TEST(ReductionRules, NormsFollowTheSumOrTheMaximumTheyAreMadeOf) {
  ExpectRows({{"S0(gpu)", [](const DTensor& x) { return Norm(x, 1); }, "+sum(gpu)", {}},
              {"S0(gpu)", [](const DTensor& x) { return Norm(x, 2); }, "R", {"all_reduce"}},
              {"S0(gpu)", [](const DTensor& x) { return Norm(x, INFINITY); }, "+max(gpu)", {}}});
}

TEST(ReductionRules, FlatShardsAreMadeWholeForSomeDimensionsAndOwnersReduceAlone) {
  const auto sum0 = [](const DTensor& x) { return Sum(x, {0}); };
  ExpectRows({{"F(gpu)", sum0, "R", {"all_gather"}},
              {"F(gpu) +sum(node)", sum0, "+sum(node)", {"all_gather"}},
              {"O(gpu; 1)", sum0, "O(gpu; 1)", {}},
              {"O(gpu; 1) +sum(node)", sum0, "O(gpu; 1) +sum(node)", {}}});
}

TEST(ReductionRules, OverNoElementsASumIsZeroAndAMeanNan) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(at::zeros({0, 3}), mesh, "S1(gpu)");
    EXPECT_EQ(Item(Sum(x)).toDouble(), 0);
    EXPECT_TRUE(std::isnan(Item(Mean(x)).toDouble()));
    EXPECT_TRUE(Same(Max(x, {1}), at::zeros({0})));
  });
}

TEST(ReductionRules, MistakesNameTheDimensionAndTheShape) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({4, 6}, 0, at::kDouble), mesh, "S0(gpu)");
    ExpectError([&] { Sum(x, {2}); },
                "sum: dimension 2 is outside shape (4, 6): legal are -2 to 1");
    ExpectError([&] { Sum(x, {0, -2}); }, "sum: dimension 0 is given twice");
    ExpectError([&] { Norm(x, 3); }, "p=3 is not 1, 2 or inf");
    ExpectError([&] { Mean(To(x, at::kLong)); }, "mean needs a floating-point");
    ExpectError([&] { Norm(To(x, at::kLong)); }, "norm needs a floating-point");
    ExpectError([&] { Max(To(x, at::kComplexDouble)); }, "");
  });
}

}  // namespace
}  // namespace lins::testing
