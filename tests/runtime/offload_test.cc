// Optimizer states in host memory: the bits of every rule stay, whatever the chunks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mesh/error.h"
#include "runtime/optimizer.h"
#include "tests/dtensor/on_mesh.h"

namespace lins {
namespace {

at::Tensor Values(int64_t numel, double scale = 1) {
  return at::arange(numel, at::kFloat).mul(scale).sin();
}

struct Model {
  at::Tensor matrix, vector, odd;
  std::shared_ptr<ShardedModel> core;

  Model(const LiveMesh& mesh, const std::string& policy, ShardOptions options) {
    matrix = Values(2400).view({40, 60});
    vector = Values(1000);
    odd = Values(333);
    for (at::Tensor* t : {&matrix, &vector, &odd}) t->set_requires_grad(true);
    const Policy p = ValueOrThrow(ParsePolicy(policy, mesh));
    core = ShardedModel::Create(
        mesh, {{"", {{"matrix", matrix}}, p}, {"v", {{"vector", vector}, {"odd", odd}}, p}},
        std::move(options));
  }
  void Backward(int64_t rank, int64_t step) {
    at::Tensor loss = at::zeros({1});
    for (int unit : {0, 1}) {
      std::vector<at::Tensor*> params = {&vector, &odd};
      if (unit == 0) params = {&matrix};
      loss = loss + core->Call(unit, {at::ones({1})}, [&](const std::vector<at::Tensor>& in) {
        at::Tensor sum = at::zeros({1});
        for (size_t i = 0; i < params.size(); ++i) {
          const double scale = 0.1 * static_cast<double>(1 + i + step + 3 * rank);
          const at::Tensor x = Values(params[i]->numel(), scale)
                                   .view(params[i]->sizes())
                                   .to(params[i]->scalar_type());
          sum = sum + (*params[i] * x).sum().to(at::kFloat);
        }
        return sum * in[0];
      });
    }
    loss.sum().backward();
  }
};

// What all ranks hold in the end: parameters, masters and states, whole.
std::vector<at::Tensor> Everything(Model& model) {
  std::vector<at::Tensor> out;
  for (auto& [name, s] : model.core->States()) {
    out.push_back(s.param.FullTensor().clone());
    if (s.master) out.push_back(s.master->FullTensor().clone());
    for (auto& [key, state] : s.optim) out.push_back(state.FullTensor().clone());
  }
  return out;
}

using Maker = std::function<std::unique_ptr<Optimizer>(std::shared_ptr<ShardedModel>)>;

template <typename Rule, typename Options>
Maker Make(const Options& options, const Options& other, bool stochastic) {
  return [=](std::shared_ptr<ShardedModel> core) {
    auto rule = std::make_unique<Rule>(std::move(core), std::vector<Options>{options, other},
                                       GroupOf{{"odd", 1}});
    if (stochastic) rule->UseStochasticRounding(7);
    return rule;
  };
}

std::vector<at::Tensor> Trained(const LiveMesh& mesh, const std::string& policy,
                                const ShardOptions& options, const Maker& make) {
  Model model(mesh, policy, options);
  const auto opt = make(model.core);
  for (int64_t step = 0; step < 3; ++step) {
    model.Backward(mesh.rank(), step);
    model.core->ClipGradNorm(0.5, 2);
    EXPECT_TRUE(opt->Step());
    model.core->ZeroGrad();
  }
  std::vector<at::Tensor> out = Everything(model);
  for (const Optimizer::Record& r : opt->Records()) {
    for (const auto& [name, state] : r.states) out.push_back(state.FullTensor().clone());
  }
  return out;
}

struct Case {
  const char* policy;
  bool bf16, overlap;
  int64_t chunk_bytes;
};

class OffloadTest : public ::testing::TestWithParam<Case> {
 protected:
  void ExpectSameBits(const Maker& make) {
    const Case c = GetParam();
    testing::OnMesh({1, 2}, [&](const LiveMesh& mesh) {
      ShardOptions options;
      options.overlap = c.overlap;
      if (c.bf16) options.param_dtype = at::kBFloat16;
      const std::vector<at::Tensor> want = Trained(mesh, c.policy, options, make);
      options.offload_optimizer = true;
      options.offload_chunk_bytes = c.chunk_bytes;
      const std::vector<at::Tensor> got = Trained(mesh, c.policy, options, make);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    });
  }
};

const AdamOptions kAdam = {.lr = 0.1}, kOther = {.lr = 0.05, .weight_decay = 0.1};

TEST_P(OffloadTest, AdamW) { ExpectSameBits(Make<AdamW>(kAdam, kOther, false)); }
TEST_P(OffloadTest, AdamWRoundsAtRandom) { ExpectSameBits(Make<AdamW>(kAdam, kOther, true)); }
TEST_P(OffloadTest, Amsgrad) {
  AdamOptions largest = kOther;
  largest.amsgrad = true;  // a state that some windows have
  ExpectSameBits(Make<Adam>(kAdam, largest, false));
}
TEST_P(OffloadTest, AdamW8bit) { ExpectSameBits(Make<AdamW8bit>(kAdam, kOther, true)); }
TEST_P(OffloadTest, SGD) {
  ExpectSameBits(Make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9}, SGDOptions{.lr = 0.1}, false));
}
TEST_P(OffloadTest, SGDWithoutStates) {
  ExpectSameBits(Make<SGD>(SGDOptions{.lr = 0.1}, SGDOptions{.lr = 0.2}, false));
}
TEST_P(OffloadTest, Lion) {
  ExpectSameBits(Make<Lion>(LionOptions{.lr = 0.1}, LionOptions{.lr = 0.2}, false));
}
TEST_P(OffloadTest, Muon) {
  ExpectSameBits(Make<Muon>(MuonOptions{.lr = 0.1}, MuonOptions{.lr = 0.2}, true));
}

INSTANTIATE_TEST_SUITE_P(Plans, OffloadTest,
                         ::testing::Values(Case{"ddp", false, true, 1},  // a block at a time
                                           Case{"zero1", true, true, 1},
                                           Case{"zero2", true, false, 20000},
                                           Case{"zero3", false, true, 9000},
                                           Case{"zero3", true, true, 1 << 25}));

TEST(Offload, BytesAreInHostMemoryAndTheDeviceHoldsChunks) {
  testing::OnMesh({1, 2}, [](const LiveMesh& mesh) {
    ShardOptions options;
    options.param_dtype = at::kBFloat16;
    Model plain(mesh, "zero1", options);
    AdamW before(plain.core, {{}});
    options.offload_optimizer = true;
    options.offload_chunk_bytes = 3 * 1024;  // a block of AdamW with masters
    Model model(mesh, "zero1", options);
    AdamW opt(model.core, {{}});
    const ShardedModel::Memory have = model.core->MemoryUse();
    EXPECT_EQ(have.optim, 0);
    EXPECT_EQ(have.optim_host, plain.core->MemoryUse().optim);
    EXPECT_GT(have.optim_host, 0);
    model.Backward(mesh.rank(), 0);
    model.core->SummarizeGradients();
    const BufferPool::Stats at_rest = model.core->MemoryUse().buffers;
    opt.Step();
    const BufferPool::Stats after = model.core->MemoryUse().buffers;
    EXPECT_EQ(after.pooled_bytes - at_rest.pooled_bytes, 3 * 3 * 1024);
    EXPECT_EQ(after.live_leases, at_rest.live_leases);
    model.Backward(mesh.rank(), 1);
    opt.Step();
    EXPECT_EQ(model.core->MemoryUse().buffers.pooled_bytes, after.pooled_bytes);
  });
}

TEST(Offload, AStepThatThrowsOrIsSkippedChangesNothing) {
  testing::OnMesh({1, 2}, [](const LiveMesh& mesh) {
    ShardOptions options;
    options.offload_optimizer = true;
    options.param_dtype = at::kBFloat16;
    options.offload_chunk_bytes = 4096;
    Model model(mesh, "zero1", options);
    AdamW opt(model.core, {{}, {}}, {{"odd", 1}});
    const std::vector<at::Tensor> want = Everything(model);
    const auto expect_unchanged = [&] {
      const std::vector<at::Tensor> got = Everything(model);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
      for (const Optimizer::Record& r : opt.Records()) EXPECT_EQ(r.updates, 0) << r.name;
      EXPECT_EQ(model.core->MemoryUse().buffers.live_leases, 0);
    };
    model.Backward(mesh.rank(), 0);
    const AdamOptions last = opt.groups().back();
    opt.groups().pop_back();
    EXPECT_THROW(opt.Step(), Error);
    expect_unchanged();
    opt.groups().push_back(last);
    model.core->ScaleGradients(INFINITY);
    model.core->ApplyGradientScale();
    model.core->ZeroGrad();
    EXPECT_TRUE(opt.Step());  // no gradients
    expect_unchanged();
    model.Backward(mesh.rank(), 0);
    EXPECT_TRUE(opt.Step());
    EXPECT_FALSE(at::equal(Everything(model)[0], want[0]));
  });
}

TEST(Offload, RulesThatCannotSayWhatCan) {
  testing::OnMesh({1, 2}, [](const LiveMesh& mesh) {
    ShardOptions options;
    options.offload_optimizer = true;
    Model model(mesh, "zero1", options);
    try {
      Adafactor opt(model.core, {{}});
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("legal with it are AdamW"), std::string::npos);
    }
    EXPECT_THROW(ExternalOptimizer(model.core), Error);  // its own masters, on the device
    options.param_dtype = at::kBFloat16;
    Model masters(mesh, "zero1", options);
    ExternalOptimizer shards(masters.core);
    masters.Backward(mesh.rank(), 0);
    ASSERT_EQ(shards.BeginStep(), ExternalOptimizer::Outcome::kReady);
    for (const auto& part : shards.Parts()) at::Tensor(part.param).zero_();
    shards.EndStep();
    for (auto& [name, s] : masters.core->States()) {
      EXPECT_FALSE(s.param.FullTensor().any().item<bool>()) << name;
    }
    options.offload_chunk_bytes = 0;
    EXPECT_THROW(Model(mesh, "zero1", options), Error);
  });
}

}  // namespace
}  // namespace lins
