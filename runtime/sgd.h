// SGD and Lion over a sharded model.
#pragma once

#include <memory>
#include <vector>

#include "optim/sgd.h"
#include "runtime/optimizer_base.h"

namespace lins {

// State momentum_buffer for the groups that are made with momentum, which may change later, but
// not to or from 0.
class SGD : public Optimizer {
 public:
  SGD(std::shared_ptr<ShardedModel> model, std::vector<SGDOptions> groups,
      const GroupOf& group_of = {});
  std::vector<SGDOptions>& groups() { return groups_; }

 protected:
  void Check() const override;
  void UpdateRun(Slot& slot, const Run& run) override;

 private:
  std::vector<SGDOptions> groups_;
  std::vector<bool> momentum_;  // by group, as made
};

// State exp_avg.
class Lion : public Optimizer {
 public:
  Lion(std::shared_ptr<ShardedModel> model, std::vector<LionOptions> groups,
       const GroupOf& group_of = {});
  std::vector<LionOptions>& groups() { return groups_; }

 protected:
  void Check() const override { CheckCount(groups_.size()); }
  void UpdateRun(Slot& slot, const Run& run) override;

 private:
  std::vector<LionOptions> groups_;
};

}  // namespace lins
