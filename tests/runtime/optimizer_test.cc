// Optimizers from C++: a matrix and a vector whose gradients are given.
#include "runtime/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mesh/error.h"
#include "tests/dtensor/on_mesh.h"

namespace lins {
namespace {

struct Model {
  at::Tensor matrix = at::zeros({4, 3}), vector = at::zeros({5});
  std::shared_ptr<ShardedModel> core;

  Model(const LiveMesh& mesh, const std::string& policy) {
    const Policy p = ValueOrThrow(ParsePolicy(policy, mesh));
    matrix.set_requires_grad(true);
    vector.set_requires_grad(true);
    core = ShardedModel::Create(mesh, {{"", {{"matrix", matrix}, {"vector", vector}}, p}}, {});
  }
  // The mean over ranks of (rank + 1) * value, for both.
  void Backward(int64_t rank, double value) {
    const double x = static_cast<double>(rank + 1) * value;
    core->Call(0, {at::full({1}, x)},
               [&](const std::vector<at::Tensor>& in) {
                 return (matrix.sum() + vector.sum()) * in[0].sum();
               })
        .backward();
  }
  at::Tensor Param(size_t i) { return core->States()[i].second.param.FullTensor(); }
};

class RuleTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Two ranks with gradients of 2 and 4: a mean of 3.
  template <typename Rule, typename Options>
  void ExpectSteps(const Options& options, float matrix, float vector) {
    testing::OnMesh({1, 2}, [&](const LiveMesh& mesh) {
      Model model(mesh, GetParam());
      Rule opt(model.core, {options});
      EXPECT_TRUE(opt.Step());  // no gradients: nothing to do
      model.Backward(mesh.rank(), 2);
      EXPECT_TRUE(opt.Step());
      EXPECT_TRUE(at::allclose(model.Param(0), at::full({4, 3}, matrix), 1e-6)) << model.Param(0);
      EXPECT_TRUE(at::allclose(model.Param(1), at::full({5}, vector), 1e-6)) << model.Param(1);
      for (const Optimizer::Record& r : opt.Records()) EXPECT_EQ(r.updates, 1);
    });
  }
};

TEST_P(RuleTest, AdamW) { ExpectSteps<AdamW>(AdamOptions{.lr = 0.5}, -0.5f, -0.5f); }
TEST_P(RuleTest, Adam) { ExpectSteps<Adam>(AdamOptions{.lr = 0.5}, -0.5f, -0.5f); }
TEST_P(RuleTest, AdamW8bit) { ExpectSteps<AdamW8bit>(AdamOptions{.lr = 0.5}, -0.5f, -0.5f); }
TEST_P(RuleTest, SGD) { ExpectSteps<SGD>(SGDOptions{.lr = 0.5, .momentum = 0.9}, -1.5f, -1.5f); }
TEST_P(RuleTest, Lion) { ExpectSteps<Lion>(LionOptions{.lr = 0.25}, -0.25f, -0.25f); }
// alpha = eps2 * min(lr, 1), and u = 1.
TEST_P(RuleTest, Adafactor) {
  ExpectSteps<Adafactor>(AdafactorOptions{.lr = 0.5, .eps2 = 0.5}, -0.25f, -0.25f);
}

TEST_P(RuleTest, MuonMakesMatricesOrthogonalAndLeavesTheRestToAdamW) {
  testing::OnMesh({1, 2}, [&](const LiveMesh& mesh) {
    Model model(mesh, GetParam());
    Muon opt(model.core, {MuonOptions{.lr = 0.5}});
    model.Backward(mesh.rank(), 2);
    EXPECT_TRUE(opt.Step());
    // A matrix of equal elements has one singular value: 1 and a bit, the iteration's own.
    const at::Tensor got = model.Param(0);
    EXPECT_TRUE(at::allclose(got, got[0][0].expand_as(got), 1e-2));
    const double norm = got.norm().item<double>() / (0.5 * std::sqrt(4.0 / 3));
    EXPECT_GT(norm, 0.6);
    EXPECT_LT(norm, 1.3);
    EXPECT_TRUE(at::allclose(model.Param(1), at::full({5}, -0.5f), 1e-6));
  });
}

TEST_P(RuleTest, AnotherRuleOverTheShards) {
  testing::OnMesh({1, 2}, [&](const LiveMesh& mesh) {
    Model model(mesh, GetParam());
    ExternalOptimizer shards(model.core);
    EXPECT_EQ(shards.BeginStep(), ExternalOptimizer::Outcome::kNothing);
    model.Backward(mesh.rank(), 2);
    model.core->ClipGradNorm(std::sqrt(17.0), 2);  // of 3 * sqrt(17)
    ASSERT_EQ(shards.BeginStep(), ExternalOptimizer::Outcome::kReady);
    for (const auto& part : shards.Parts()) at::Tensor(part.param).sub_(part.grad);
    shards.EndStep();
    EXPECT_TRUE(at::allclose(model.Param(0), at::full({4, 3}, -1.0f), 1e-6));
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, RuleTest, ::testing::Values("ddp", "zero1", "zero3"));

TEST(Optimizer, OverflowSkipsAndMistakesAreErrors) {
  testing::OnMesh({1, 2}, [](const LiveMesh& mesh) {
    Model model(mesh, "zero2");
    AdamW opt(model.core, {{}, {.lr = 1}}, {{"vector", 1}});
    model.Backward(mesh.rank(), mesh.rank() == 1 ? INFINITY : 1.0);
    EXPECT_FALSE(opt.Step());
    EXPECT_EQ(opt.skipped_steps(), 1);
    EXPECT_FALSE(model.Param(0).any().item<bool>());
    opt.groups().pop_back();
    EXPECT_THROW(opt.Step(), Error);
    EXPECT_THROW(AdamW(model.core, {}), Error);
    EXPECT_THROW(AdamW(model.core, {{}}, {{"vector", 1}}), Error);
    EXPECT_THROW(AdamW8bit(model.core, {{.amsgrad = true}}), Error);
    EXPECT_THROW(opt.Load({{"tensor", 1, {}}}), Error);
    EXPECT_THROW(opt.Load({{"vector", 1, {{"exp_avg", at::zeros({99})}}}}), Error);
    EXPECT_THROW(opt.Load({{"vector", 1, {{"momentum", at::zeros({2})}}}}), Error);
  });
}

}  // namespace
}  // namespace lins
