// A live mesh over recorded groups in place of NCCL's, and a model to train on it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/live_mesh.h"
#include "mesh/error.h"
#include "runtime/sharded_model.h"
#include "tests/comm/ranks.h"
#include "tests/comm/recorded_nccl.h"

namespace lins::testing {

// Runs fn(mesh) on every rank of a mesh over axes node and gpu, over recorded groups. A rank that
// throws wakes the others.
inline void OnRecordedMesh(NcclRecorder& recorder, std::vector<int64_t> shape,
                           const std::function<void(const LiveMesh&)>& fn) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  RunRanks(
      size,
      [&](int64_t rank) {
        RankContext::Scope scope(std::make_shared<RankContext>());
        auto world = World::Nccl(recorder.Groups(), c10::DeviceType::CPU, rank, size, 20.0);
        fn(LiveMesh::Create(world, shape, {"node", "gpu"}));
      },
      [&](const char* what) { recorder.hub.Abort(what); });
}

// x -> tanh(x W + b), four units and a root with a scale: sizes that do not divide by the ranks.
struct SmallModel {
  static constexpr int64_t kWidth = 5;
  static constexpr int kUnits = 4;

  SmallModel(const LiveMesh& mesh, const std::string& policy, ShardOptions options = {}) {
    // "paper P=2 G=4 OS=4": the family in front.
    const bool paper = policy.rfind("paper ", 0) == 0;
    if (paper) options.family = Family::kPaper;
    const std::string text = paper ? policy.substr(6) : policy;
    const Policy p = ValueOrThrow(ParsePolicy(text, mesh, paper ? Space::kNested : Space::kFull));
    scale.set_requires_grad(true);
    std::vector<UnitSpec> units = {{"", {{"scale", scale}}, p}};
    if (text == "fsdp2") units[0].policy.between = Factors(mesh.ndim(), 1);  // as LinsShard does
    for (int u = 0; u < kUnits; ++u) {
      const std::string name = "layers." + std::to_string(u);
      w.push_back(at::eye(kWidth) * 0.5 + 0.01 * u);
      b.push_back(at::full({kWidth}, 0.1f));
      w[u].set_requires_grad(true);
      b[u].set_requires_grad(true);
      units.push_back({name, {{name + ".w", w[u]}, {name + ".b", b[u]}}, p});
    }
    core = ShardedModel::Create(mesh, std::move(units), options);
  }

  // `watch` is given each unit's input.
  at::Tensor Forward(const at::Tensor& x,
                     const std::function<void(at::Tensor&)>& watch = nullptr) const {
    return core->Call(0, {x}, [&](const std::vector<at::Tensor>& in) {
      at::Tensor y = in[0] * scale;
      for (int u = 0; u < kUnits; ++u) {
        y = core->Call(u + 1, {y}, [&](std::vector<at::Tensor> t) {
          if (watch) watch(t[0]);
          return at::tanh(at::matmul(t[0], w[u].to(t[0].scalar_type())) + b[u]);
        });
      }
      return y.to(at::kFloat).square().sum();
    });
  }
  void Backward(const LiveMesh& mesh, int64_t micro_batches) const {
    for (int64_t m = 0; m < micro_batches; ++m) {
      core->BeginMicroBatch(m, micro_batches);
      Forward(at::full({3, kWidth}, 0.1 * static_cast<double>(mesh.rank() + m + 1))).backward();
      core->EndMicroBatch();
    }
  }

  at::Tensor scale = at::ones({kWidth});
  std::vector<at::Tensor> w, b;
  std::shared_ptr<ShardedModel> core;
};

}  // namespace lins::testing
