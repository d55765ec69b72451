// The shards of a sharded model for an optimizer that lins does not know, such as one of torch's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/optimizer_base.h"

namespace lins {

//   ExternalOptimizer shards(model);
//   if (shards.BeginStep() == ExternalOptimizer::Outcome::kReady) {
//     for (auto& part : shards.Parts()) ...   // update part.param where part.grad is defined
//     shards.EndStep();
//   }
class ExternalOptimizer : public Optimizer {
 public:
  using Optimizer::Outcome;
  // A model that offloads OS needs masters: they are updated where they are, in host memory.
  explicit ExternalOptimizer(std::shared_ptr<ShardedModel> model);

  // Collective. kNothing: no gradients; kSkipped: one is not finite; kReady: EndStep must follow.
  Outcome BeginStep();
  // This rank's part of each parameter, 1-D, sharing memory with the model (masters where there
  // are any) and empty where it has none; grad is undefined where no rank has a gradient, and
  // between steps.
  struct Part {
    std::string name;
    at::Tensor param, grad;
  };
  std::vector<Part> Parts() const;
  void EndStep();  // brings the updated slices to all ranks that hold them; collective
  // A part as a DTensor: `like` one of Parts, in shape.
  DTensor AsState(const std::string& name, const at::Tensor& like) const;

 protected:
  void Check() const override {}
  void UpdateRun(Slot&, const Run&) override {}

 private:
  std::vector<std::vector<bool>> used_;  // of the step under way
};

}  // namespace lins
