// Trains a small causal Transformer on four ranks, as threads of one process, with its states
// placed by a policy; then with libtorch alone, and compares.
//
//   build/examples/transformer ["P=2 G=2 OS=4"]
//
// Values and tokens follow formulas, so that any other program can train the same model:
// tests/python/test_cpp_transformer.py does, and expects the same losses.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "examples/on_threads.h"
#include "runtime/module.h"
#include "runtime/optimizer.h"

namespace {

constexpr double kLearningRate = 1e-2;
constexpr int64_t kSteps = 20, kMicroBatches = 2, kRanks = 4;
constexpr int64_t kRows = 2, kLength = 12;  // of one micro-batch
constexpr int64_t kVocabulary = 17, kWidth = 16, kHeads = 2, kLayers = 3;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(std::vector<int64_t>{kWidth}));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    proj = register_module("proj", torch::nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", torch::nn::LayerNorm(std::vector<int64_t>{kWidth}));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor Attend(const torch::Tensor& x) {
    const int64_t rows = x.size(0), length = x.size(1);
    const torch::Tensor heads = qkv(x).view({rows, length, 3, kHeads, kWidth / kHeads});
    const std::vector<torch::Tensor> t = heads.permute({2, 0, 3, 1, 4}).unbind(0);  // q, k, v
    const torch::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
    const torch::Tensor scores =
        torch::matmul(t[0], t[1].transpose(-2, -1)) * (1 / std::sqrt(kWidth / kHeads * 1.0));
    const torch::Tensor weights = scores.masked_fill(future, -INFINITY).softmax(-1);
    return proj(torch::matmul(weights, t[2]).transpose(1, 2).reshape({rows, length, kWidth}));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + Attend(norm1(x));
    return x + down(torch::gelu(up(norm2(x))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_module("positions", torch::nn::Embedding(kLength, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block());
    norm = register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{kWidth}));
    head = register_module("head", torch::nn::Linear(kWidth, kVocabulary));
    // Element j of parameter i is 0.3 sin(0.7 i + 1.3 j^2).
    torch::NoGradGuard no_grad;
    int64_t i = 0;
    for (torch::Tensor& p : parameters()) {
      const torch::Tensor j = torch::arange(p.numel(), torch::kDouble);
      p.copy_((j * j * 1.3 + 0.7 * static_cast<double>(i++)).sin().mul(0.3).view(p.sizes()));
    }
  }
  torch::Tensor Embed(const torch::Tensor& ids) {
    return tokens(ids) + positions(torch::arange(ids.size(1)));
  }
  torch::Tensor Logits(const torch::Tensor& x) { return head(norm(x)); }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

// Token t of row r of micro-batch m of a step, counted over all ranks: a walk through the
// vocabulary with a stride of 1 or 2.
torch::Tensor Tokens(int64_t step, int64_t m) {
  const torch::Tensor row = torch::arange(kRows).unsqueeze(1) + kRows * (m + step);
  return (row * 3 + torch::arange(kLength + 1) * (row % 2 + 1)) % kVocabulary;
}

// The loss of predicting each token from those before it.
torch::Tensor Loss(const torch::Tensor& logits, const torch::Tensor& tokens) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, kVocabulary}),
                                              tokens.narrow(1, 1, kLength).reshape({-1}));
}

// One rank's training; returns its mean loss per step.
std::vector<double> Train(const lins::LiveMesh& mesh, const std::string& policy) {
  Transformer net;
  auto model = lins::LinsShard(*net, mesh, policy);
  lins::AdamW optimizer(model, {{.lr = kLearningRate}}, {});
  const auto forward = [&](const torch::Tensor& ids) {
    return model->Call(0, {ids}, [&](const std::vector<torch::Tensor>& in) {
      torch::Tensor x = net->Embed(in[0]);
      for (int64_t i = 0; i < kLayers; ++i) {
        x = model->Call(model->UnitIndex("blocks." + std::to_string(i)), {x},
                        [&](const std::vector<torch::Tensor>& t) {
                          return net->blocks->ptr<BlockImpl>(i)->forward(t[0]);
                        });
      }
      return net->Logits(x);
    });
  };
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    double total = 0;
    for (int64_t m = 0; m < kMicroBatches; ++m) {
      const torch::Tensor tokens = Tokens(step, mesh.rank() * kMicroBatches + m);
      model->BeginMicroBatch(m, kMicroBatches);
      const torch::Tensor loss = Loss(forward(tokens.narrow(1, 0, kLength)), tokens);
      loss.backward();
      model->EndMicroBatch();
      total += loss.item<double>();
    }
    losses.push_back(total / kMicroBatches);
    model->ClipGradNorm(1.0, 2);
    optimizer.Step();
    model->ZeroGrad();
  }
  return losses;
}

// The same with libtorch alone: all micro-batches of all ranks, one after another.
std::vector<double> TrainAlone() {
  Transformer net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  constexpr int64_t kAll = kRanks * kMicroBatches;
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double total = 0;
    for (int64_t m = 0; m < kAll; ++m) {
      const torch::Tensor tokens = Tokens(step, m);
      torch::Tensor x = net->Embed(tokens.narrow(1, 0, kLength));
      for (const auto& block : *net->blocks) x = block->as<BlockImpl>()->forward(x);
      const torch::Tensor loss = Loss(net->Logits(x), tokens);
      (loss / kAll).backward();
      total += loss.item<double>();
    }
    losses.push_back(total / kAll);
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string policy = argc > 1 ? argv[1] : "P=2 G=2 OS=4";
  const std::vector<double> alone = TrainAlone();
  const std::vector<double> four = examples::OnThreads(
      2, 2, kSteps, [&](const lins::LiveMesh& mesh) { return Train(mesh, policy); });
  std::printf("step  loss on 4 ranks    with libtorch alone    (%s)\n", policy.c_str());
  bool equal = four.back() < 0.8 * four.front();  // it learns
  for (int64_t i = 0; i < kSteps; ++i) {
    std::printf("%4d  %.12f     %.12f\n", static_cast<int>(i), four[i], alone[i]);
    equal = equal && std::abs(four[i] - alone[i]) <= 1e-5 * alone[i];
  }
  std::printf("%s\n", equal ? "losses agree to 1e-5" : "LOSSES DIFFER");
  return equal ? 0 : 1;
}
