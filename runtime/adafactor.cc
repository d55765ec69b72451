#include "runtime/adafactor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mesh/error.h"
#include "optim/norm.h"

namespace lins {

Adafactor::Adafactor(std::shared_ptr<ShardedModel> model, std::vector<AdafactorOptions> groups,
                     const GroupOf& group_of)
    : Optimizer(std::move(model), groups.size(), group_of, Place::kHost),
      groups_(std::move(groups)) {
  if (offloads()) {
    throw Error(
        "Adafactor reads its parameters and gradients several times a step, and keeps next to "
        "nothing that offload_optimizer could move: legal with it are AdamW, Adam, AdamW8bit, SGD, "
        "Lion and Muon, or Adafactor without it");
  }
  for (Slot& slot : slots_) {
    const FlatBuffer& b = *slot.buffer;
    std::vector<Factors> factors(b.windows().size());
    int64_t rows = 0, cols = 0;
    for (size_t i = 0; i < factors.size(); ++i) {
      const Shape& shape = b.windows()[i].shape;
      Factors& f = factors[i];
      f.factored = shape.size() >= 2 && b.windows()[i].numel > 0;
      if (!f.factored) continue;
      f.rows = shape[shape.size() - 2];
      f.cols = shape.back();
      f.matrices = b.windows()[i].numel / (f.rows * f.cols);
      rows += f.matrices * f.rows;
      cols += f.matrices * f.cols;
    }
    AddState(slot, "variance", [&](size_t i) { return !factors[i].factored; });
    const auto options = b.OptimParam().options();
    const at::Tensor row = AddOther(slot, "row_var", at::zeros({rows}, options));
    const at::Tensor col = AddOther(slot, "col_var", at::zeros({cols}, options));
    rows = cols = 0;
    for (Factors& f : factors) {
      if (!f.factored) continue;
      f.row_var = row.narrow(0, rows, f.matrices * f.rows);
      f.col_var = col.narrow(0, cols, f.matrices * f.cols);
      rows += f.row_var.numel();
      cols += f.col_var.numel();
    }
    factors_.push_back(std::move(factors));
  }
  teams_ = Teams();
  // Every communicator is made here, in one order.
  std::vector<double> none;
  for (const auto& team : teams_) AddOver(team, none);
}

void Adafactor::AddOver(const std::vector<size_t>& team, std::vector<double>& values) const {
  const LiveMesh& mesh = model_->mesh();
  const Axes axes = slots_[team[0]].buffer->plan().optim.SplitAxes();
  if (Mesh::GroupSize(axes) == 1) return;
  Communicator& comm = mesh.Comm(axes, Role::kOther);
  if (values.empty()) return;
  at::Tensor all = at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                                 at::TensorOptions().dtype(at::kDouble));
  comm.AllReduce(all, ReduceOp::kSum, {"root", mesh.AxesToString(axes), ""}).Wait();
}

Slice Adafactor::SliceFor(const Slot& slot, size_t window) const {
  Slice s = Uphill(SliceOf(slot, window), groups_[slot.group[window]].maximize);
  s.rounding.key = RoundingKey(slot, slot.updates[window]);
  return s;
}

MatrixPart Adafactor::PartOf(const Slot& slot, size_t window) const {
  const Factors& f = factors_[&slot - slots_.data()][window];
  return {f.rows, f.cols,
          slot.buffer->OptimPart(window).first - slot.buffer->windows()[window].offset};
}

double Adafactor::Least(const Slot& slot, size_t window) const {
  const double eps = groups_[slot.group[window]].eps1;
  const double own = slot.buffer->types().master == at::kDouble
                         ? std::numeric_limits<double>::epsilon()
                         : std::numeric_limits<float>::epsilon();
  const double least = eps == 0 ? own : eps;
  return least * least;
}

double Adafactor::Weight(const Slot& slot, size_t window) const {
  return std::pow(static_cast<double>(slot.updates[window]),
                  groups_[slot.group[window]].beta2_decay);
}

void Adafactor::UpdateTogether(const ShardedModel::GradSummary& summary) {
  for (const auto& team : teams_) {
    AddSquareSums(team, summary);
    AddUpdateSquares(team, summary);
  }
}

template <typename Fn>
void Adafactor::ForEachUsed(const std::vector<size_t>& team,
                            const ShardedModel::GradSummary& summary, Fn fn) {
  for (size_t s : team) {
    for (size_t i = 0; i < factors_[s].size(); ++i) {
      if (summary.used[s][i]) fn(slots_[s], factors_[s][i], i);
    }
  }
}

void Adafactor::Move(const at::Tensor& var, const double* sums, int64_t count, double weight,
                     std::vector<double>& out) {
  const at::Tensor now = var.to(at::kDouble);
  double* values = now.mutable_data_ptr<double>();
  for (int64_t i = 0; i < now.numel(); ++i) {
    values[i] += weight * (sums[i] / static_cast<double>(count) - values[i]);
  }
  var.copy_(now);
  out.assign(values, values + now.numel());
}

void Adafactor::AddSquareSums(const std::vector<size_t>& team,
                              const ShardedModel::GradSummary& summary) {
  std::vector<double> sums;
  ForEachUsed(team, summary, [&](const Slot& slot, const Factors& f, size_t i) {
    const Slice slice = SliceFor(slot, i);
    const size_t at = sums.size();
    const int64_t rows = f.factored ? f.matrices * f.rows : 0;
    sums.resize(at + 1 + (f.factored ? rows + f.matrices * f.cols : 0));
    sums[at] = PowerSum(slice.param, slice.type, slice.numel, 2);
    if (!f.factored) return;
    AddSquares(slice, PartOf(slot, i), sums.data() + at + 1, sums.data() + at + 1 + rows);
  });
  AddOver(team, sums);
  const double* at = sums.data();
  ForEachUsed(team, summary, [&](const Slot& slot, Factors& f, size_t i) {
    f.squares = *at++;
    if (!f.factored) return;
    Move(f.row_var, at, f.cols, Weight(slot, i), f.row);
    at += f.row_var.numel();
    Move(f.col_var, at, f.rows, Weight(slot, i), f.col);
    at += f.col_var.numel();
    const double eps1 = std::sqrt(Least(slot, i));
    for (int64_t m = 0; m < f.matrices; ++m) {
      double* row = f.row.data() + m * f.rows;
      double mean = 0;
      for (int64_t r = 0; r < f.rows; ++r) mean += row[r];
      mean = std::max(mean / static_cast<double>(f.rows), eps1);
      for (int64_t r = 0; r < f.rows; ++r) row[r] /= mean;
    }
  });
}

void Adafactor::AddUpdateSquares(const std::vector<size_t>& team,
                                 const ShardedModel::GradSummary& summary) {
  std::vector<double> sums;
  ForEachUsed(team, summary, [&](const Slot& slot, const Factors& f, size_t i) {
    const Slice slice = SliceFor(slot, i);
    const double least = Least(slot, i);
    sums.push_back(f.factored ? FactoredUpdateSquares(slice, PartOf(slot, i), f.row.data(),
                                                      f.col.data(), least)
                              : ElementwiseUpdateSquares(slice, Weight(slot, i), least));
  });
  AddOver(team, sums);
  size_t at = 0;
  ForEachUsed(team, summary,
              [&](const Slot&, Factors& f, size_t) { f.update_squares = sums[at++]; });
}

void Adafactor::UpdateSlice(Slot& slot, const Used& used, Pass&) {
  const size_t s = &slot - slots_.data();
  for (size_t i = 0; i < slot.group.size(); ++i) {
    const auto numel = static_cast<double>(slot.buffer->windows()[i].numel);
    if (!used[i] || numel == 0) continue;
    const Factors& f = factors_[s][i];
    const AdafactorOptions& o = groups_[slot.group[i]];
    const double rho = std::min(o.lr, 1 / std::sqrt(static_cast<double>(slot.updates[i])));
    const double alpha = std::max(o.eps2, std::sqrt(f.squares / numel)) * rho;
    const double rms = std::sqrt(f.update_squares / numel);
    const double scale = -alpha / std::max(1.0, rms / o.d);
    const double decay = 1 - o.lr * o.weight_decay;
    const Slice slice = SliceFor(slot, i);
    if (f.factored) {
      FactoredUpdate(slice, PartOf(slot, i), f.row.data(), f.col.data(), Least(slot, i), decay,
                     scale);
    } else {
      ElementwiseUpdate(slice, Least(slot, i), decay, scale);
    }
  }
  slot.buffer->MarkCopied();
}

std::vector<std::pair<std::string, DTensor>> Adafactor::Export(const Slot& slot,
                                                               size_t window) const {
  const Factors& f = factors_[&slot - slots_.data()][window];
  if (!f.factored) return Optimizer::Export(slot, window);
  const auto whole = [&](const at::Tensor& values, size_t ones) {
    const Shape& given = slot.buffer->windows()[window].shape;
    std::vector<int64_t> shape(given.begin(), given.end());
    shape[shape.size() - ones] = 1;
    return DTensor::FromLocal(values.view(shape), model_->mesh(), "R",
                              Shape(shape.begin(), shape.end()));
  };
  return {{"row_var", whole(f.row_var, 1)}, {"col_var", whole(f.col_var, 2)}};
}

void Adafactor::Import(Slot& slot, size_t window, const std::string& name, const at::Tensor& part) {
  const Factors& f = factors_[&slot - slots_.data()][window];
  if (!f.factored) return Optimizer::Import(slot, window, name, part);
  const at::Tensor& var = name == "row_var" ? f.row_var : f.col_var;
  var.copy_(part.reshape({-1}));
}

}  // namespace lins
