// AdamW over the optimizer-state shards of a sharded model.
//
//   AdamW opt(model, {{.lr = 3e-4}}, {});
//   opt.Step();        // updates this rank's slices, then brings them to all ranks that hold them
//
// Collective: every rank steps. A parameter without gradient on every rank is left alone, its step
// count too. A gradient that is not finite anywhere skips the step everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optim/kernels.h"
#include "runtime/sharded_model.h"

namespace lins {

class AdamW {
 public:
  // One or more groups; `group_of` gives a parameter's group by name, group 0 where it is absent.
  // The fields `step` of the groups are not used: each parameter counts its own. Names that the
  // model does not have, or that are frozen, are errors.
  AdamW(std::shared_ptr<ShardedModel> model, std::vector<AdamWStep> groups,
        const std::map<std::string, int>& group_of);

  // False when the step was skipped. Without gradients since ZeroGrad nothing changes.
  bool Step();

  std::vector<AdamWStep>& groups() { return groups_; }
  int64_t skipped_steps() const { return skipped_; }

 private:
  struct Slot {
    FlatBuffer* buffer;
    std::vector<int> group;        // by window
    std::vector<int64_t> updates;  // so far, by window
  };
  void UpdateSlice(Slot& slot, const std::vector<bool>& used);

  std::shared_ptr<ShardedModel> model_;
  std::vector<AdamWStep> groups_;
  std::vector<Slot> slots_;
  int64_t skipped_ = 0;
};

}  // namespace lins
