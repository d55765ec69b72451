// AdamW, Adam and AdamW with 8-bit moments over a sharded model.
#pragma once

#include <memory>
#include <vector>

#include "optim/adam.h"
#include "runtime/optimizer_base.h"

namespace lins {

// States exp_avg, exp_avg_sq, and max_exp_avg_sq for the groups that are made with amsgrad. The
// options of a group may change between steps, amsgrad excepted.
class AdamW : public Optimizer {
 public:
  // One or more groups.
  AdamW(std::shared_ptr<ShardedModel> model, std::vector<AdamOptions> groups,
        const GroupOf& group_of = {});
  std::vector<AdamOptions>& groups() { return groups_; }

 protected:
  void Check() const override;
  void UpdateRun(Slot& slot, const Run& run) override;

 private:
  std::vector<AdamOptions> groups_;
  std::vector<bool> amsgrad_;  // by group, as made
};

// The same with L2 in place of decoupled weight decay.
class Adam : public AdamW {
 public:
  Adam(std::shared_ptr<ShardedModel> model, std::vector<AdamOptions> groups,
       const GroupOf& group_of = {});

 protected:
  void UpdateRun(Slot& slot, const Run& run) override;
};

// exp_avg and exp_avg_sq in 8 bits each and two bytes per block of 256 (optim/adam8bit.h). Blocks
// begin with each parameter's part of the shard. Records hold the values in fp32.
class AdamW8bit : public Optimizer {
 public:
  // No group with amsgrad; masters are fp32.
  AdamW8bit(std::shared_ptr<ShardedModel> model, std::vector<AdamOptions> groups,
            const GroupOf& group_of = {});
  std::vector<AdamOptions>& groups() { return groups_; }

 protected:
  void Check() const override;
  void UpdateRun(Slot& slot, const Run& run) override;
  std::vector<std::pair<std::string, DTensor>> Export(const Slot& slot,
                                                      size_t window) const override;
  void Import(Slot& slot, size_t window, const std::string& state, const at::Tensor& part) override;

 private:
  std::vector<AdamOptions> groups_;
};

}  // namespace lins
