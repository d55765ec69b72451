// What all ranks agree on about the gradients of a finished step: norm, finiteness, which are
// there.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "optim/norm.h"
#include "runtime/sharded_model.h"

namespace lins {

const ShardedModel::GradSummary& ShardedModel::SummarizeGradients(std::optional<double> norm_type) {
  c10::NoGradGuard no_grad;
  if (summary_ && (!norm_type || summary_->norm_type == *norm_type)) return *summary_;
  const double p = norm_type.value_or(2);
  if (p != 1 && p != 2 && !(std::isinf(p) && p > 0)) {
    throw Error(absl::StrCat("norm type ", p, ": legal are 1, 2 and inf"));
  }
  const std::vector<FlatBuffer*> buffers = TrainableBuffers();
  // [not finite, power sum, used...]: one reduction serves the norm, the agreement to skip, and the
  // parameters that no rank has a gradient for.
  const bool largest = std::isinf(p);
  std::vector<double> mine = {0, 0};
  for (const FlatBuffer* b : buffers) {
    // A shard that several ranks hold counts once: for the first of them.
    const Axes replicas = Complement(mesh_, b->plan().optim.SplitAxes());
    if (mesh_.IndexInGroup(replicas, mesh_.rank()) == 0 && grads_ready_) {
      const double sum = PowerSum(b->OptimGrad(), p);
      if (!std::isfinite(sum)) mine[0] = 1;
      mine[1] = largest ? std::max(mine[1], sum) : mine[1] + sum;
    }
  }
  if (mine[0] > 0) mine[1] = 0;  // inf - inf must not hide it
  for (const FlatBuffer* b : buffers) {
    for (bool used : b->used()) mine.push_back(used ? 1 : 0);
  }
  at::Tensor all = at::tensor(mine, at::kDouble).to(pool_->device());
  WorldComm()
      .AllReduce(all, largest ? ReduceOp::kMax : ReduceOp::kSum,
                 {"root", mesh_.AxesToString(mesh_.AllAxes()), ""})
      .Wait();
  all = all.cpu();
  const double* v = all.const_data_ptr<double>();
  GradSummary s;
  s.norm_type = p;
  s.finite = v[0] == 0;
  s.norm =
      s.finite ? (largest ? v[1] : std::pow(v[1], 1 / p)) * std::abs(grad_scale_) : std::nan("");
  size_t at = 2;
  for (const FlatBuffer* b : buffers) {
    std::vector<bool> used;
    for (size_t i = 0; i < b->windows().size(); ++i) used.push_back(v[at++] > 0);
    s.used.push_back(std::move(used));
  }
  return summary_.emplace(std::move(s));
}

double ShardedModel::ClipGradNorm(double max_norm, double p) {
  c10::NoGradGuard no_grad;
  CheckComplete();
  const GradSummary& s = SummarizeGradients(p);
  if (!s.finite || !grads_ready_) return s.norm;
  const double norm = s.norm;
  const double scale = std::min(1.0, max_norm / (norm + 1e-6));
  if (scale < 1) ScaleGradients(scale);
  return norm;
}

void ShardedModel::ScaleGradients(double factor) {
  if (!grads_ready_) return;
  grad_scale_ *= factor;
  if (summary_) summary_->norm *= std::abs(factor);
}

void ShardedModel::ApplyGradientScale() const {
  if (grad_scale_ == 1 || !grads_ready_) return;
  c10::NoGradGuard no_grad;
  for (FlatBuffer* b : TrainableBuffers()) b->OptimGrad().mul_(grad_scale_);
  grad_scale_ = 1;
}

}  // namespace lins
