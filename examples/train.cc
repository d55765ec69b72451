// Trains a small libtorch model on four ranks, as threads of one process, with parameters whole,
// gradients whole and optimizer state cut over the two ranks of a node; then with libtorch alone,
// and compares.
//
//   build/examples/train ["P=2 G=2 OS=4"]
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

#include "examples/on_threads.h"
#include "runtime/module.h"
#include "runtime/optimizer.h"

namespace {

constexpr double kLearningRate = 1e-2;
constexpr int kSteps = 20, kMicroBatches = 2, kRows = 8, kWidth = 16, kRanks = 4;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
    down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(Block());
    head = register_module("head", torch::nn::Linear(kWidth, 1));
    // The same values in every thread, whatever the others draw meanwhile.
    torch::NoGradGuard no_grad;
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(0);
    for (auto& p : parameters()) p.uniform_(-0.2, 0.2, generator);
  }
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

// Batch of one rank and micro-batch: rows of one global batch, so that one rank can compute what
// four do.
torch::Tensor Batch(int step, int index) {
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(1000 * step + index);
  return torch::randn({kRows, kWidth}, generator);
}

torch::Tensor Loss(const torch::Tensor& x, const torch::Tensor& y) {
  return torch::mse_loss(y.squeeze(1), x.sum(1));
}

// The sum of the loss over micro-batches [first, first + count) of a step; fn takes each one's
// loss.
template <typename Forward, typename Backward>
double Accumulate(int step, int first, int count, Forward forward, Backward backward) {
  double total = 0;
  for (int m = 0; m < count; ++m) {
    const torch::Tensor x = Batch(step, first + m);
    const torch::Tensor loss = Loss(x, forward(m, x));
    backward(loss);
    total += loss.template item<double>();
  }
  return total / count;
}

// One rank's training; returns its mean loss per step.
std::vector<double> Train(const lins::LiveMesh& mesh, const std::string& policy) {
  Net net;
  auto model = lins::LinsShard(*net, mesh, policy);
  lins::AdamW optimizer(model, {{.lr = kLearningRate}}, {});
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto forward = [&](int m, const torch::Tensor& x) {
      model->BeginMicroBatch(m, kMicroBatches);
      return model->Call(0, {x}, [&](const std::vector<torch::Tensor>& in) {
        torch::Tensor h = in[0];
        for (size_t i = 0; i < net->layers->size(); ++i) {
          h = model->Call(model->UnitIndex("layers." + std::to_string(i)), {h},
                          [&](const std::vector<torch::Tensor>& t) {
                            return net->layers->ptr<BlockImpl>(i)->forward(t[0]);
                          });
        }
        return net->head(h);
      });
    };
    const auto backward = [&](const torch::Tensor& loss) {
      loss.backward();
      model->EndMicroBatch();
    };
    const int first = static_cast<int>(mesh.rank()) * kMicroBatches;
    losses.push_back(Accumulate(step, first, kMicroBatches, forward, backward));
    model->ClipGradNorm(1.0, 2);
    optimizer.Step();
  }
  return losses;
}

// The same with libtorch alone: all micro-batches of all ranks, one after another.
std::vector<double> TrainAlone() {
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  constexpr int kAll = kRanks * kMicroBatches;
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto forward = [&](int, torch::Tensor h) {
      for (const auto& block : *net->layers) h = block->as<BlockImpl>()->forward(h);
      return net->head(h);
    };
    losses.push_back(Accumulate(step, 0, kAll, forward,
                                [](const torch::Tensor& loss) { (loss / kAll).backward(); }));
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string policy = argc > 1 ? argv[1] : "P=1 G=1 OS=2";
  const std::vector<double> one = TrainAlone();
  const std::vector<double> four = examples::OnThreads(
      2, 2, kSteps, [&](const lins::LiveMesh& mesh) { return Train(mesh, policy); });
  std::printf("step   4 ranks, %-14s  libtorch alone\n", policy.c_str());
  bool equal = true;
  for (int i = 0; i < kSteps; ++i) {
    std::printf("%4d   %-24.7f  %.7f\n", i, four[i], one[i]);
    equal = equal && std::abs(four[i] - one[i]) <= 1e-5 * std::abs(one[i]);
  }
  std::printf("%s\n", equal ? "losses agree to 1e-5" : "LOSSES DIFFER");
  return equal ? 0 : 1;
}
