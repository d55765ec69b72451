#include "runtime/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"

namespace lins {

AdamW::AdamW(std::shared_ptr<ShardedModel> model, std::vector<AdamWStep> groups,
             const std::map<std::string, int>& group_of)
    : model_(std::move(model)), groups_(std::move(groups)) {
  c10::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (FlatBuffer* b : model_->TrainableBuffers()) {
    Slot slot{b, {}, std::vector<int64_t>(b->windows().size(), 0)};
    for (const Window& w : b->windows()) {
      const auto found = group_of.find(w.name);
      slot.group.push_back(found == group_of.end() ? 0 : found->second);
      names.push_back(w.name);
    }
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      b->optim_state()[state] = at::zeros_like(b->OptimParam());
    }
    slots_.push_back(std::move(slot));
  }
  for (const auto& [name, group] : group_of) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw Error(absl::StrCat(
          "parameter '", name,
          "' is none of the model's trainable parameters: ", absl::StrJoin(names, ", ")));
    }
    LINS_CHECK(group >= 0 && group < static_cast<int>(groups_.size()), "group ", group, " of ",
               groups_.size());
  }
}

bool AdamW::Step() {
  c10::NoGradGuard no_grad;
  model_->CheckComplete();
  if (!model_->GradientsReady()) return true;
  const ShardedModel::GradSummary& summary = model_->SummarizeGradients();
  if (!summary.finite) {
    ++skipped_;
    return false;
  }
  size_t i = 0;
  model_->BeginUpdate();
  for (Slot& slot : slots_) {
    UpdateSlice(slot, summary.used.at(i++));
    model_->LaunchUpdate(*slot.buffer);
  }
  model_->EndUpdate();
  return true;
}

void AdamW::UpdateSlice(Slot& slot, const std::vector<bool>& used) {
  const FlatBuffer& b = *slot.buffer;
  const at::Tensor param = b.OptimParam(), grad = b.OptimGrad();
  const at::Tensor &m = b.optim_state().at("exp_avg"), &v = b.optim_state().at("exp_avg_sq");
  const int64_t begin = b.optim_begin(), end = begin + param.numel();
  // Neighbours with the same group and count are one run.
  int64_t run_begin = 0, run_end = 0;
  AdamWStep run;
  int run_group = -1;
  const auto flush = [&] {
    if (run_begin < run_end) {
      const int64_t at = run_begin - begin, n = run_end - run_begin;
      AdamWUpdate(run, param.narrow(0, at, n), grad.narrow(0, at, n), m.narrow(0, at, n),
                  v.narrow(0, at, n));
    }
    run_begin = run_end = 0;
  };
  for (size_t i = 0; i < b.windows().size(); ++i) {
    if (!used[i]) continue;
    const int64_t count = ++slot.updates[i];
    const int64_t from = std::max(b.windows()[i].offset, begin);
    const int64_t to = std::min(b.windows()[i].offset + b.windows()[i].numel, end);
    if (from >= to) continue;
    if (run_end != from || run_group != slot.group[i] || run.step != count) {
      flush();
      run = groups_[slot.group[i]];
      run.step = count;
      run_group = slot.group[i];
      run_begin = from;
    }
    run_end = to;
  }
  flush();
}

}  // namespace lins
