// Adafactor over a sharded model.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "optim/adafactor.h"
#include "runtime/optimizer_base.h"

namespace lins {

// States row_var [..., rows, 1] and col_var [..., 1, cols] of parameters with two or more
// dimensions, whole on every rank; variance of the others. Ranks that share OS add up what their
// shards hold twice per step: a number per row and column, then one per parameter. The update
// equals the one of the whole matrices, whatever the layout. Not for models that offload OS.
class Adafactor : public Optimizer {
 public:
  Adafactor(std::shared_ptr<ShardedModel> model, std::vector<AdafactorOptions> groups,
            const GroupOf& group_of = {});
  std::vector<AdafactorOptions>& groups() { return groups_; }

 protected:
  void Check() const override { CheckCount(groups_.size()); }
  void UpdateTogether(const ShardedModel::GradSummary& summary) override;
  void UpdateRun(Slot&, const Run&) override {}
  void UpdateSlice(Slot& slot, const Used& used, Pass& pass) override;
  std::vector<std::pair<std::string, DTensor>> Export(const Slot& slot,
                                                      size_t window) const override;
  void Import(Slot& slot, size_t window, const std::string& state, const at::Tensor& part) override;

 private:
  // Of one parameter.
  struct Factors {
    bool factored = false;
    int64_t rows = 1, cols = 1, matrices = 1;
    at::Tensor row_var, col_var;  // [matrices * rows], [matrices * cols]
    // Of the step under way.
    std::vector<double> row, col;  // row_var over its mean, col_var
    double squares = 0;            // of the parameter
    double update_squares = 0;
  };
  Slice SliceFor(const Slot& slot, size_t window) const;
  MatrixPart PartOf(const Slot& slot, size_t window) const;
  // fn(slot, window) for all parameters of a team that have gradients, in order.
  template <typename Fn>
  void ForEachUsed(const std::vector<size_t>& team, const ShardedModel::GradSummary& summary,
                   Fn fn);
  // Sums `values` over the ranks among which OS of the team is cut.
  void AddOver(const std::vector<size_t>& team, std::vector<double>& values) const;
  // Rows, columns and parameters, and the factors from them; then updates.
  void AddSquareSums(const std::vector<size_t>& team, const ShardedModel::GradSummary& summary);
  void AddUpdateSquares(const std::vector<size_t>& team, const ShardedModel::GradSummary& summary);
  // Moves a variance (one factor) by the means in `sums`; keeps it in `out` as well.
  static void Move(const at::Tensor& var, const double* sums, int64_t count, double weight,
                   std::vector<double>& out);
  double Weight(const Slot& slot, size_t window) const;  // of this step's squares
  double Least(const Slot& slot, size_t window) const;   // eps1 squared

  std::vector<AdafactorOptions> groups_;
  std::vector<std::vector<Factors>> factors_;  // by slot and window
  std::vector<std::vector<size_t>> teams_;     // slots whose OS is cut over the same axes
};

}  // namespace lins
