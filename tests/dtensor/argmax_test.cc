// The index of an extremum is one of the whole tensor, whatever the layout.
#include <limits>

#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

class ArgMaxSweep : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, ArgMaxSweep, kMeshes, MeshName);

// The first of equals, in plain C++.
int64_t First(const at::Tensor& line, bool max) {
  const at::Tensor values = line.contiguous();
  const int64_t* v = values.const_data_ptr<int64_t>();
  int64_t best = 0;
  for (int64_t i = 1; i < values.numel(); ++i) {
    if (max ? v[i] > v[best] : v[i] < v[best]) best = i;
  }
  return best;
}

TEST_P(ArgMaxSweep, InTheFlattenedTensorAndAlongEachDimension) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& shape :
         {Sizes{5}, Sizes{8}, Sizes{1}, Sizes{3, 5}, Sizes{4, 4}, Sizes{5, 1}, Sizes{1, 9}}) {
      const at::Tensor a = Whole(shape).remainder(4);  // with equals
      for (const std::string& layout : LayoutsOf(static_cast<int64_t>(shape.size()))) {
        const DTensor x = Place(a, mesh, layout);
        EXPECT_EQ(Item(ArgMax(x)).toLong(), First(a, true)) << Describe(x.layout());
        EXPECT_EQ(Item(ArgMin(x)).toLong(), First(a, false)) << Describe(x.layout());
        for (int64_t d = 0; d < a.dim(); ++d) {
          for (bool max : {true, false}) {
            const at::Tensor lines = a.movedim(d, -1).reshape({-1, a.size(d)});
            at::Tensor want = at::empty({lines.size(0)}, at::kLong);
            for (int64_t i = 0; i < lines.size(0); ++i) want[i] = First(lines[i], max);
            Sizes dropped = shape;
            dropped.erase(dropped.begin() + d);
            Sizes kept = shape;
            kept[d] = 1;
            const auto arg = max ? ArgMax : ArgMin;
            EXPECT_TRUE(Same(arg(x, d, false), want.view(dropped))) << Describe(x.layout());
            EXPECT_TRUE(Same(arg(x, d - a.dim(), true), want.view(kept))) << Describe(x.layout());
          }
        }
      }
    }
  });
}

TEST(ArgMax, NanIsAboveAllAndInfinityIsNotAnEmptyShard) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    for (const char* layout :
         {"R", "S0(gpu)", "S0(gpu,node)", "S0(node,gpu)", "F(gpu)", "F(node,gpu)", "O(gpu; 1)"}) {
      const DTensor x = Place(at::tensor({1.f, 7.f, 2.f, 7.f, nan, 7.f, nan}), mesh, layout);
      EXPECT_EQ(Item(ArgMax(x)).toLong(), 4) << layout;
      EXPECT_EQ(Item(ArgMin(x)).toLong(), 4) << layout;
      const DTensor low = Place(at::full({5}, -inf), mesh, layout);
      EXPECT_EQ(Item(ArgMax(low)).toLong(), 0) << layout;
    }
  });
}

TEST(ArgMax, TakesTwoSmallReductionsOverTheAxesOfTheSplit) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({8, 3}), mesh, "S0(gpu)");
    const Strings two = {"all_reduce", "all_reduce"};
    EXPECT_EQ(Collectives(mesh, [&] { EXPECT_EQ(ArgMax(x).layout().ToString(), "R"); }), two);
    EXPECT_EQ(Collectives(mesh, [&] { EXPECT_EQ(ArgMax(x, 1).layout().ToString(), "S0(gpu)"); }),
              Strings());
  });
}

TEST(ArgMax, OverNoElementsIsAnError) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(at::zeros({0, 3}), mesh, "S1(gpu)");
    ExpectError([&] { ArgMax(x); }, "argmax over no elements: dimension 0 of shape (0, 3)");
    ExpectError([&] { ArgMin(x, 0); }, "argmin over no elements");
    EXPECT_TRUE(Same(ArgMax(x, 1), at::empty({0}, at::kLong)));
  });
}

}  // namespace
}  // namespace lins::testing
