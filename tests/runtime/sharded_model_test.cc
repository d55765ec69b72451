// A small model, y = sum over units of <w_u, x>, whose gradients are its inputs.
#include "runtime/sharded_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mesh/error.h"
#include "runtime/optimizer.h"
#include "tests/dtensor/on_mesh.h"

namespace lins {
namespace {

constexpr int64_t kSize = 7;

struct Model {
  Model(const LiveMesh& mesh, const std::string& policy, ShardOptions options = {}) {
    const Policy p = ValueOrThrow(ParsePolicy(policy, mesh));
    std::vector<UnitSpec> units = {{"", {}, p}};
    for (int u = 0; u < 3; ++u) {
      at::Tensor w = at::full({kSize}, static_cast<float>(u));
      w.set_requires_grad(true);
      weights.push_back(w);
      units.push_back({"layers." + std::to_string(u), {{"w" + std::to_string(u), w}}, p});
    }
    core = ShardedModel::Create(mesh, std::move(units), options);
  }

  at::Tensor Forward(const at::Tensor& x) const {
    return core->Call(0, {x}, [&](const std::vector<at::Tensor>& in) {
      at::Tensor y = at::zeros({});
      for (int u = 0; u < 3; ++u) {
        y = y + core->Call(u + 1, {in[0]}, [&](const std::vector<at::Tensor>& t) {
          return (weights[u] * t[0]).sum();
        });
      }
      return y;
    });
  }

  std::vector<at::Tensor> weights;
  std::shared_ptr<ShardedModel> core;
};

class PlanTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanTest, GradientsAreTheMeanOverRanksAndMicroBatches) {
  for (bool overlap : {true, false}) {
    testing::OnMesh({2, 2}, [&](const LiveMesh& mesh) {
      Model model(mesh, GetParam(), {.overlap = overlap});
      for (int64_t m = 0; m < 2; ++m) {
        model.core->BeginMicroBatch(m, 2);
        model.Forward(at::full({kSize}, static_cast<float>(mesh.rank() + 4 * m))).backward();
        model.core->EndMicroBatch();
      }
      EXPECT_TRUE(model.core->GradientsReady());
      for (const auto& [name, state] : model.core->States()) {
        EXPECT_TRUE(at::equal(state.grad->FullTensor(), at::full({kSize}, 3.5f))) << name;
      }
      // Three units of seven elements: sqrt(21) * 3.5.
      EXPECT_NEAR(model.core->ClipGradNorm(1e9, 2), std::sqrt(21.0) * 3.5, 1e-9);
      EXPECT_EQ(model.core->MemoryUse().buffers.live_leases, 0);
    });
  }
}

TEST_P(PlanTest, AdamWMovesEveryReplicaAlike) {
  testing::OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    Model model(mesh, GetParam());
    AdamW opt(model.core, {{.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 1e-30, .weight_decay = 0}}, {});
    EXPECT_TRUE(opt.Step());  // no gradients: nothing to do
    model.Forward(at::full({kSize}, static_cast<float>(mesh.rank() + 1))).backward();
    EXPECT_TRUE(opt.Step());
    int u = 0;
    for (const auto& [name, state] : model.core->States()) {
      EXPECT_TRUE(at::equal(state.param.FullTensor(), at::full({kSize}, u - 1.0f))) << name;
      ++u;
    }
    model.core->ZeroGrad();
    EXPECT_FALSE(model.core->GradientsReady());
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, PlanTest,
                         ::testing::Values("ddp", "zero1", "zero2", "zero3", "hsdp",
                                           "P=1 G=2x1 OS=4"));

TEST(ShardedModel, UnshardedParametersAreWholeAndWrittenBack) {
  testing::OnMesh({2, 2}, [](const LiveMesh& mesh) {
    Model model(mesh, "zero3");
    c10::NoGradGuard no_grad;
    EXPECT_ANY_THROW(model.weights[1].sum().item<float>());
    model.core->Unshard({2});
    EXPECT_TRUE(at::equal(model.weights[1], at::ones({kSize})));
    model.weights[1].fill_(5);
    model.core->Reshard({2}, /*writeback=*/true);
    EXPECT_TRUE(
        at::equal(model.core->States()[1].second.param.FullTensor(), at::full({kSize}, 5.0f)));
  });
}

TEST(ShardedModel, MistakesAreErrors) {
  testing::OnMesh({1, 2}, [](const LiveMesh& mesh) {
    EXPECT_THROW(Model(mesh, mesh.rank() == 0 ? "zero2" : "zero3"), Error);
    EXPECT_THROW(Model(mesh, "ddp", {.prefetch = -1}), Error);
    Model model(mesh, "zero2");
    EXPECT_THROW(model.core->BeginMicroBatch(1, 2), Error);
    EXPECT_THROW(model.core->UnitIndex("layers.9"), Error);
    EXPECT_EQ(model.core->UnitIndex("layers.2"), 3);
    model.core->BeginMicroBatch(0, 2);
    model.Forward(at::ones({kSize})).backward();
    model.core->EndMicroBatch();
    EXPECT_THROW(model.core->CheckComplete(), Error);
    EXPECT_THROW(AdamW(model.core, {{}}, {{"w7", 0}}), Error);
  });
}

}  // namespace
}  // namespace lins
