#include "runtime/external_optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {

ExternalOptimizer::ExternalOptimizer(std::shared_ptr<ShardedModel> model)
    : Optimizer(std::move(model), 1, {}, Place::kAnywhere) {
  for (const Slot& slot : slots_) {
    if (!offloads() || slot.buffer->master()) continue;
    throw Error(absl::StrCat(
        "an optimizer that lins does not know keeps its states where the parameters are, and "
        "those ",
        "of unit '", slot.buffer->unit(), "' have no masters in host memory that ",
        "offload_optimizer could offer it: legal are a param_dtype of lower precision, the ",
        "optimizers of lins, or no offload_optimizer"));
  }
}

ExternalOptimizer::Outcome ExternalOptimizer::BeginStep() {
  c10::NoGradGuard no_grad;
  const ShardedModel::GradSummary* summary = nullptr;
  const Outcome outcome = Begin(&summary, /*in_chunks=*/false);
  if (outcome == Outcome::kReady) {
    model_->BeginUpdate();
    model_->ApplyGradientScale();
    used_ = summary->used;
  }
  return outcome;
}

std::vector<ExternalOptimizer::Part> ExternalOptimizer::Parts() const {
  std::vector<Part> out;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const FlatBuffer& b = *slots_[s].buffer;
    for (size_t i = 0; i < b.windows().size(); ++i) {
      const Range part = b.OptimPart(i);
      const int64_t at = part.first - b.optim_begin(), n = part.second - part.first;
      Part p{b.windows()[i].name, b.OptimParam().narrow(0, at, n), {}};
      if (!used_.empty() && used_[s][i]) p.grad = b.OptimGrad().narrow(0, at, n);
      out.push_back(std::move(p));
    }
  }
  return out;
}

void ExternalOptimizer::EndStep() {
  used_.clear();
  for (Slot& slot : slots_) model_->LaunchUpdate(*slot.buffer);
  model_->EndUpdate();
}

DTensor ExternalOptimizer::AsState(const std::string& name, const at::Tensor& like) const {
  for (const Slot& slot : slots_) {
    for (size_t i = 0; i < slot.group.size(); ++i) {
      if (slot.buffer->windows()[i].name == name) return StatePart(slot, i, like);
    }
  }
  throw Error(absl::StrCat("no parameter '", name, "' here"));
}

}  // namespace lins
