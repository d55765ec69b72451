// DTensor, Execute and Region on ranks as threads.
#include "dtensor/dtensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/execute.h"
#include "dtensor/region.h"
#include "mesh/error.h"
#include "tests/dtensor/on_mesh.h"

namespace lins {
namespace {

at::Tensor Arange(int64_t rows, int64_t columns) {
  return at::arange(rows * columns, at::kFloat).view({rows, columns});
}

const char* const kLayouts[] = {
    "R",         "S0(gpu)",          "S0(gpu,node)",      "S0(node,gpu)",
    "S1(gpu)",   "S0(node) S1(gpu)", "F(gpu,node)",       "F(node)",
    "O(gpu; 1)", "+sum(gpu)",        "S0(gpu) +sum(node)"};

TEST(DTensor, EveryLayoutReachesEveryOther) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 2}, {1, 2}, {2, 1}}) {
    testing::OnMesh(sizes, [](const LiveMesh& mesh) {
      for (const at::Tensor& x : {Arange(5, 3), Arange(1, 4), Arange(0, 2)}) {
        for (const char* from : kLayouts) {
          for (const char* to : kLayouts) {
            // "O(gpu; 1)" needs a second GPU.
            if (mesh.shape()[1] == 1 && (from[0] == 'O' || to[0] == 'O')) continue;
            const DTensor d = DTensor::Distribute(x, mesh, from).Redistribute(to);
            EXPECT_EQ(d.layout().LocalShape(mesh.rank()),
                      Shape(d.ToLocal().sizes().begin(), d.ToLocal().sizes().end()));
            EXPECT_TRUE(at::equal(d.FullTensor(), x)) << from << " -> " << to;
          }
        }
      }
    });
  }
}

TEST(DTensor, MeshesOfOneAreLegal) {
  testing::OnMesh({1, 1}, [](const LiveMesh& mesh) {
    const DTensor d = DTensor::Distribute(Arange(3, 2), mesh, "S0(gpu)");
    EXPECT_TRUE(at::equal(d.FullTensor(), Arange(3, 2)));
  });
}

TEST(DTensor, ReductionsOverAxesOfOneRankBeginAndEndWithoutAChange) {
  testing::OnMesh({1, 1}, [](const LiveMesh& mesh) {
    for (const char* layout : {"+sum(gpu)", "+avg(gpu) +max(node)", "+product(node) +band(gpu)",
                               "S0(node) +avg(gpu)", "O(gpu; 0) +min(node)"}) {
      const Layout pending = ValueOrThrow(Layout::Parse(layout, {3, 2}, mesh));
      const Layout whole = Layout::Replicated({3, 2}, mesh);
      if (!PlanRedistribution(whole, pending, 4).ok()) continue;
      const DTensor d = DTensor::Distribute(Arange(3, 2), mesh, layout);
      EXPECT_TRUE(at::equal(d.ToLocal(), Arange(3, 2))) << layout;
      EXPECT_TRUE(at::equal(d.FullTensor(), Arange(3, 2))) << layout;
    }
  });
}

TEST(DTensor, ShapesComeFromAllRanks) {
  testing::OnMesh({1, 4}, [](const LiveMesh& mesh) {
    const int64_t rows[] = {3, 3, 3, 1};
    const DTensor d = DTensor::FromLocal(at::ones({rows[mesh.rank()], 2}), mesh, "S0(gpu)");
    EXPECT_EQ(d.shape(), (Shape{10, 2}));
    EXPECT_THROW(DTensor::FromLocal(at::ones({2, mesh.rank() + 2}), mesh, "S1(gpu)"), Error);
  });
}

TEST(Execute, GathersIntoTheBufferThatHoldsTheShard) {
  testing::OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const Layout whole = Layout::Replicated({8}, mesh);
    const Layout cut = ValueOrThrow(Layout::Parse("S0(gpu,node)", {8}, mesh));
    const RedistributionPlan plan = ValueOrThrow(PlanRedistribution(cut, whole, 4));
    const at::Tensor out = at::full({8}, -1.0f);
    const Range mine = cut.RangesOf(mesh.rank())[0];
    const at::Tensor shard = out.narrow(0, mine.first, mine.second - mine.first);
    shard.copy_(at::arange(mine.first, mine.second));
    const at::Tensor result = Execute(plan, shard, mesh, {Role::kGather, "unit", out});
    EXPECT_EQ(result.data_ptr(), out.data_ptr());
    EXPECT_TRUE(at::equal(out, at::arange(8, at::kFloat)));
  });
}

TEST(Execute, AnEmptyPlanReturnsItsInput) {
  testing::OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const Layout whole = Layout::Replicated({4}, mesh);
    const RedistributionPlan plan = ValueOrThrow(PlanRedistribution(whole, whole, 4));
    const at::Tensor x = at::ones({4});
    EXPECT_EQ(Execute(plan, x, mesh).data_ptr(), x.data_ptr());
  });
}

TEST(Region, CommonElementsAreAddressedInTheLocalTensor) {
  const Mesh mesh = ValueOrThrow(Mesh::Create({2}, {"x"}));
  const Layout rows = ValueOrThrow(Layout::Parse("S0(x)", {4, 6}, mesh));
  const Layout columns = ValueOrThrow(Layout::Parse("S1(x)", {4, 6}, mesh));
  const at::Tensor x = Arange(4, 6);
  // Rank 1's rows that rank 0 has columns of: rows 2-3, columns 0-2.
  const Region r = Region::Common(rows, 1, columns, 0);
  EXPECT_EQ(r.numel(), 6);
  EXPECT_FALSE(r.IsRun());
  const at::Tensor local = x.narrow(0, 2, 2).contiguous(), flat = at::empty({6});
  r.Extract(local, flat);
  EXPECT_TRUE(at::equal(flat.view({2, 3}), x.narrow(0, 2, 2).narrow(1, 0, 3)));
  const at::Tensor back = at::zeros({2, 6});
  r.Insert(back, flat);
  EXPECT_TRUE(at::equal(back.narrow(1, 0, 3), local.narrow(1, 0, 3)));
  EXPECT_EQ(back.narrow(1, 3, 3).abs().sum().item<float>(), 0);
  const Region same = Region::Common(rows, 1, rows, 1);
  EXPECT_TRUE(same.IsRun());
  EXPECT_EQ(same.Begin(), 0);
  EXPECT_EQ(Region::Common(rows, 0, rows, 1).numel(), 0);
}

}  // namespace
}  // namespace lins
