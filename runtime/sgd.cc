#include "runtime/sgd.h"

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {

SGD::SGD(std::shared_ptr<ShardedModel> model, std::vector<SGDOptions> groups,
         const GroupOf& group_of)
    : Optimizer(std::move(model), groups.size(), group_of), groups_(std::move(groups)) {
  for (const SGDOptions& g : groups_) momentum_.push_back(g.momentum != 0);
  for (Slot& slot : slots_) {
    AddState(slot, "momentum_buffer", [&](size_t i) { return momentum_[slot.group[i]]; });
  }
}

void SGD::Check() const {
  CheckCount(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if ((groups_[g].momentum != 0) != momentum_[g]) {
      throw Error(absl::StrCat("group ", g, " was made ", momentum_[g] ? "with" : "without",
                               " momentum: momentum=", groups_[g].momentum, " is too late"));
    }
  }
}

void SGD::UpdateRun(Slot&, const Run& run) { SGDUpdate(groups_[run.group], run.step, run.slice); }

Lion::Lion(std::shared_ptr<ShardedModel> model, std::vector<LionOptions> groups,
           const GroupOf& group_of)
    : Optimizer(std::move(model), groups.size(), group_of), groups_(std::move(groups)) {
  for (Slot& slot : slots_) AddState(slot, "exp_avg", [](size_t) { return true; });
}

void Lion::UpdateRun(Slot&, const Run& run) { LionUpdate(groups_[run.group], run.slice); }

}  // namespace lins
