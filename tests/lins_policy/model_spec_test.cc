// Models: sizes of known ones, shares of parallel ones, and what is refused.
#include "lins_policy/model_spec.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "problems.h"

namespace lins {
namespace {

TEST(ModelSpecTest, LlamasHaveTheirParameters) {
  // 2 V h + L (4 h^2 + 3 h f + 2 h) + h
  EXPECT_EQ(ModelSpec::Llama("7B", {})->parameters(), 6'738'415'616);
  EXPECT_EQ(ModelSpec::Llama("13B", {})->parameters(), 13'015'864'320);
  EXPECT_NEAR(static_cast<double>(ModelSpec::Llama("30B", {})->parameters()), 27.6e9, 0.1e9);
  EXPECT_EQ(ModelSpec::Llama("tiny", {.hidden = 8, .layers = 2, .ffn = 16, .vocabulary = 10}, {})
                ->parameters(),
            2 * 10 * 8 + 2 * (4 * 64 + 3 * 8 * 16 + 2 * 8) + 8);
  // Grouped queries: keys and values of 2 of 4 heads; a tied head is no second copy.
  const LlamaShape grouped{.hidden = 8,
                           .layers = 1,
                           .ffn = 16,
                           .vocabulary = 10,
                           .heads = 4,
                           .kv_heads = 2,
                           .tied = true};
  EXPECT_EQ(ModelSpec::Llama("g", grouped, {})->parameters(),
            10 * 8 + (2 * 64 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8) + 8);
}

TEST(ModelSpecTest, ActivationsGrowWithTheMicroBatch) {
  const ModelSpec one = *ModelSpec::Llama("7B", {});
  const ModelSpec four = *ModelSpec::Llama("7B", {.micro_batch = 4});
  const ModelSpec scaled = *one.WithMicroBatch(4);
  ASSERT_EQ(scaled.units.size(), four.units.size());
  for (size_t i = 0; i < four.units.size(); ++i) {
    EXPECT_EQ(scaled.units[i].activation_bytes, four.units[i].activation_bytes);
    EXPECT_EQ(scaled.units[i].boundary_bytes, four.units[i].boundary_bytes);
    EXPECT_TRUE(Near(scaled.units[i].forward_flops, four.units[i].forward_flops));
  }
  EXPECT_EQ(scaled.logits_bytes, four.logits_bytes);
  EXPECT_EQ(one.units[1].activation_bytes, 28 * 4096LL * 4096);  // the paper's assumption
}

TEST(ModelSpecTest, TensorParallelismDividesUnits) {
  const ModelSpec whole = *ModelSpec::Llama("7B", {});
  const ModelSpec share = *whole.Parallel(4, 1);
  EXPECT_EQ(share.units[1].parameters, whole.units[1].parameters / 4);
  EXPECT_EQ(share.units[1].activation_bytes, whole.units[1].activation_bytes / 4);
  EXPECT_TRUE(Near(share.units[1].forward_flops, whole.units[1].forward_flops / 4));
  EXPECT_EQ(share.logits_bytes, whole.logits_bytes / 4);
}

TEST(ModelSpecTest, PipelinesKeepTheHeavierEndAndActivationsOfAllStages) {
  const ModelSpec whole = *ModelSpec::Llama("7B", {.recompute = Recompute::kFull});
  const ModelSpec share = *whole.Parallel(1, 4);
  ASSERT_EQ(share.units.size(), 2u);
  EXPECT_EQ(share.units[0].repeat, 8);
  EXPECT_EQ(share.units[1].name, "head");  // one norm heavier than the embedding
  EXPECT_EQ(share.in_flight, 4);
  const Mesh mesh = *Mesh::Create({1, 8}, {"node", "gpu"});
  const MemoryItems m = FixedMemory(share, mesh, {});
  // Boundaries of four micro-batches; what is computed again belongs to one of them.
  EXPECT_EQ(m.activations, 4 * (8 * share.units[0].boundary_bytes + share.units[1].boundary_bytes) +
                               share.units[0].activation_bytes);
}

TEST(ModelSpecTest, FactorsThatDoNotDivideAreRefused) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  EXPECT_EQ(spec.Parallel(1, 5).status().message(),
            "pipeline_parallel=5 does not divide the 32 units 'layers'");
  EXPECT_FALSE(spec.Parallel(0, 1).ok());
  EXPECT_FALSE(spec.Parallel(1, -1).ok());
  Cluster cluster = A800(4);
  cluster.tensor_parallel = 3;
  EXPECT_EQ(cluster.Validate().message(), "tensor_parallel=3 does not divide the 8 GPUs of a node");
  cluster.tensor_parallel = 8;
  cluster.pipeline_parallel = 3;
  EXPECT_EQ(cluster.Validate().message(), "pipeline_parallel=3 does not divide the 4 nodes");
  cluster.pipeline_parallel = 2;
  EXPECT_EQ(cluster.DataParallelMesh()->shape(), (std::vector<int64_t>{2, 1}));
}

TEST(ModelSpecTest, GlobalTokensMakeMicroBatches) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {.seq_len = 4096, .micro_batch = 2});
  EXPECT_EQ(*MicroBatchesOf(4096 * 2 * 16 * 5, spec, A800(2)), 5);
  Cluster half = A800(2);
  half.tensor_parallel = 2;
  EXPECT_EQ(*MicroBatchesOf(4096 * 2 * 16 * 5, spec, half), 10);
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, int64_t{4096}, int64_t{4096 * 32 + 1}}) {
    EXPECT_TRUE(absl::StrContains(MicroBatchesOf(tokens, spec, A800(2)).status().message(),
                                  absl::StrCat("global_tokens=", tokens)));
  }
}

TEST(ModelSpecTest, AbsurdModelsAreRefused) {
  const auto refused = [](const Unit& u) {
    return !ModelSpec{.name = "m", .units = {u}}.Validate().ok();
  };
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_FALSE((ModelSpec{.name = "m", .units = {}}.Validate().ok()));
  EXPECT_TRUE(refused({.name = "u", .parameters = 0}));
  EXPECT_TRUE(refused({.name = "u", .parameters = -1}));
  EXPECT_TRUE(refused({.name = "u", .parameters = kMax}));
  EXPECT_TRUE(refused({.name = "", .parameters = 1}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .repeat = 0}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .repeat = kMax}));
  EXPECT_TRUE(refused({.name = "u", .parameters = int64_t{1} << 44, .repeat = 1000}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .frozen = 2}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .forward_flops = -1}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .forward_flops = inf}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .forward_flops = std::nan("")}));
  EXPECT_TRUE(refused({.name = "u", .parameters = 1, .activation_bytes = kMax}));
  EXPECT_TRUE(refused(
      {.name = "u", .parameters = 1, .repeat = 1000, .activation_bytes = int64_t{1} << 49}));
  const Unit good{.name = "u", .parameters = 1};
  EXPECT_FALSE(refused(good));
  ModelSpec twice{.name = "m", .units = {good, good}};
  EXPECT_TRUE(absl::StrContains(twice.Validate().message(), "are named 'u'"));
  ModelSpec tokens{.name = "m", .units = {good}};
  tokens.training.seq_len = tokens.training.micro_batch = int64_t{1} << 30;
  EXPECT_FALSE(tokens.Validate().ok());
  ModelSpec sizes{.name = "m", .units = {good}};
  sizes.training.sizes.param = 0;
  EXPECT_FALSE(sizes.Validate().ok());
  for (const LlamaShape& s : {LlamaShape{0, 1, 1}, LlamaShape{1, -1, 1}, LlamaShape{1, 1, kMax},
                              LlamaShape{1 << 30, 1, 1 << 30}, LlamaShape{9, 1, 1, 10, 2},
                              LlamaShape{8, 1, 1, 10, 4, 3}, LlamaShape{8, 1, 1, 10, 0, 2}}) {
    EXPECT_FALSE(ModelSpec::Llama("m", s, {}).ok());
  }
  EXPECT_FALSE(ModelSpec::Llama("8B", {}).ok());
  EXPECT_FALSE(ModelSpec::Llama("7B", {.seq_len = 1LL << 40, .micro_batch = 1LL << 40}).ok());
  EXPECT_FALSE(ModelSpec::Llama("7B", {})->WithMicroBatch(1LL << 40).ok());
}

TEST(ModelSpecTest, ClustersAndSettingsAreChecked) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto broken = [&](auto change) {
    Cluster c = A800(2);
    change(c);
    return !c.Validate().ok();
  };
  EXPECT_TRUE(broken([](Cluster& c) { c.nodes = 0; }));
  EXPECT_TRUE(broken([&](Cluster& c) { c.nodes = kMax; }));
  EXPECT_TRUE(broken([](Cluster& c) { c.gpus_per_node = 4; }));  // the profile's nodes have 8
  EXPECT_TRUE(broken([](Cluster& c) { c.memory_bytes = 0; }));
  EXPECT_TRUE(broken([&](Cluster& c) { c.memory_bytes = kMax; }));
  EXPECT_TRUE(broken([](Cluster& c) { c.quota_bytes = 0; }));
  EXPECT_TRUE(broken([](Cluster& c) { c.quota_bytes = c.memory_bytes + 1; }));
  EXPECT_TRUE(broken([](Cluster& c) { c.flops_per_second = -1; }));
  EXPECT_TRUE(broken([](Cluster& c) { c.profile = nullptr; }));
  const auto wrong = [](auto change) {
    PlanSettings s;
    change(s);
    return !s.Validate().ok();
  };
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.micro_batches = 0; }));
  EXPECT_TRUE(wrong([&](PlanSettings& s) { s.micro_batches = kMax; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.cap_bytes = 0; }));
  EXPECT_TRUE(wrong([&](PlanSettings& s) { s.cap_bytes = kMax; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.tie_epsilon = std::nan(""); }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.tie_epsilon = 1; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.bucket_bytes = 0; }));
  EXPECT_TRUE(wrong([&](PlanSettings& s) { s.bucket_bytes = kMax; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.memory.gathered_units = 0; }));
  EXPECT_TRUE(wrong([&](PlanSettings& s) { s.memory.communicator_bytes = kMax; }));
  EXPECT_TRUE(wrong([&](PlanSettings& s) { s.memory.correction_bytes = -kMax; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.memory.margin = -0.1; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.overlap.prefetch = -1; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.scales = {{2, 1, 0}}; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) { s.scales = {{0, 1, 1}}; }));
  EXPECT_TRUE(wrong([](PlanSettings& s) {
    s.scales = {{2, 1, 1}};
    s.uniform = false;
  }));
  EXPECT_TRUE(wrong([](PlanSettings& s) {
    s.family = Family::kPaper;
    s.space = Space::kFull;
  }));
  EXPECT_FALSE(wrong([](PlanSettings&) {}));
  // A step whose bytes 64 bits cannot count.
  ModelSpec large{.name = "m", .units = {{.name = "u", .parameters = int64_t{1} << 45}}};
  PlanSettings many;
  many.micro_batches = 1 << 20;
  EXPECT_FALSE(PricePlan(large, A800(1), {{{1, 1}, {1, 1}, {1, 1}}}, many).ok());
}

}  // namespace
}  // namespace lins
