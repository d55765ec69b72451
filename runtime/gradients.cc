// What all ranks agree on about the gradients of a finished step: norm, finiteness, which are
// there.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "comm/order_checker.h"
#include "runtime/gradient_norm.h"
#include "runtime/sharded_model.h"

namespace lins {

const ShardedModel::GradSummary& ShardedModel::SummarizeGradients(std::optional<double> norm_type) {
  c10::NoGradGuard no_grad;
  if (summary_ && (!norm_type || summary_->norm_type == *norm_type)) return *summary_;
  const double p = norm_type.value_or(2);
  const GradientNorm norm(p);
  const std::vector<FlatBuffer*> buffers = TrainableBuffers();
  // [the norm's numbers, used...]: one reduction serves the norm, the agreement to skip, and the
  // parameters that no rank has a gradient for.
  std::vector<double> mine(GradientNorm::kNumbers, 0);
  for (const FlatBuffer* b : buffers) {
    if (!grads_ready_ || !b->CountsOptim()) continue;
    NoteRead(b->OptimGrad(), "norm", b->unit());
    norm.Add(b->OptimGrad(), mine.data());
  }
  for (const FlatBuffer* b : buffers) {
    for (bool used : b->used()) mine.push_back(used ? 1 : 0);
  }
  at::Tensor all = at::tensor(mine, at::kDouble).to(pool_->device());
  WorldComm().AllReduce(all, norm.op(), {"root", mesh_.AxesToString(mesh_.AllAxes()), ""}).Wait();
  all = all.cpu();
  mesh_.world().CheckCompleted();
  const double* v = all.const_data_ptr<double>();
  GradSummary s;
  s.norm_type = p;
  s.finite = GradientNorm::Finite(v);
  s.norm = norm.Of(v) * std::abs(grad_scale_);
  size_t at = GradientNorm::kNumbers;
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
