// Muon over a sharded model.
#pragma once

#include <memory>
#include <vector>

#include "optim/muon.h"
#include "runtime/optimizer_base.h"

namespace lins {

// Matrices (parameters of two dimensions) of groups with `muon` are made orthogonal as a whole, by
// one rank each of those among which OS is cut: in batches, every matrix travels to its owner and
// back, both times in bf16 and in one all-to-all per batch. All other parameters take AdamW.
// States momentum_buffer of matrices; exp_avg, exp_avg_sq of the rest.
class Muon : public Optimizer {
 public:
  // Collective: makes communicators. A batch holds at most `batch_numel` elements, or one matrix.
  Muon(std::shared_ptr<ShardedModel> model, std::vector<MuonOptions> groups,
       const GroupOf& group_of = {}, int64_t batch_numel = int64_t{1} << 25);
  std::vector<MuonOptions>& groups() { return groups_; }

 protected:
  void Check() const override;
  void UpdateTogether(const ShardedModel::GradSummary& summary) override;
  bool RunsOver(const Slot& slot, size_t window) const override { return !IsMatrix(slot, window); }
  void UpdateRun(Slot& slot, const Run& run) override;

 private:
  struct Matrix {
    size_t slot, window;
    int64_t owner;  // index within the group
  };
  struct Batch {
    Axes axes;
    std::vector<Matrix> matrices;  // by owner
  };
  bool IsMatrix(const Slot& slot, size_t window) const;
  void MakeBatches(int64_t batch_numel);
  void UpdateBatch(const Batch& batch, const ShardedModel::GradSummary& summary);
  // The part of a matrix that a rank holds, as elements of the matrix.
  Range PartOn(int64_t rank, const Matrix& m) const;
  const MuonOptions& OptionsOf(const Matrix& m) const {
    return groups_[slots_[m.slot].group[m.window]];
  }

  std::vector<MuonOptions> groups_;
  std::vector<bool> muon_;  // by group, as made
  std::vector<Batch> batches_;
  at::Tensor parts_, pieces_;  // bf16: this rank's parts of a batch, and all of its own matrices
};

}  // namespace lins
