// Forward and backward of a sharded model: gathering ahead, reducing behind.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/order_checker.h"
#include "mesh/error.h"
#include "runtime/autograd_hooks.h"
#include "runtime/sharded_model.h"
#include "runtime/verification.h"

namespace lins {

// --- Gathering

void ShardedModel::LaunchGather(Unit& unit) {
  std::vector<FlatBuffer*> todo;
  for (const auto& b : unit.buffers) {
    if (!b->NeedsGather() || b->HasMemory()) continue;
    b->TakeMemory();
    todo.push_back(b.get());
  }
  if (todo.empty()) return;
  // A unit that is gathered ahead does not wait for compute that the host has queued before.
  unit.gathered = gather_stream_->Run(
      [todo, written = std::exchange(written_, {})] {
        written.Wait();
        for (FlatBuffer* b : todo) b->Gather();
      },
      Stream::After::kNothing);
}

void ShardedModel::BeginReading(int u) {
  const bool within = u != 0 && units_[0]->depth > 0;
  if (!within && !in_backward_ && expected_ == 0) written_ = Event::Here(pool_->queue());
}

void ShardedModel::NoteCompute(const Unit& unit) const {
  if (order_checker.load(std::memory_order_relaxed) == nullptr) return;
  for (const auto& b : unit.buffers) b->NoteCompute();
}

void ShardedModel::EnsureGathered(Unit& unit) {
  LaunchGather(unit);
  unit.gathered.Wait();
}

void ShardedModel::Prefetch(int from, int direction) {
  if (!options_.overlap || from == 0) return;
  for (int i = 1; i <= options_.prefetch; ++i) {
    const int u = from + i * direction;
    if (u < 1 || u >= static_cast<int>(units_.size())) return;
    LaunchGather(*units_[u]);
  }
}

void ShardedModel::ReleaseIfIdle(Unit& unit) {
  if (unit.depth > 0 || unit.pins > 0 || unit.in_backward) return;
  unit.gathered.Wait();
  for (const auto& b : unit.buffers) {
    if (unit.uses == 0) b->DropBetween();
    if (!b->NeedsGather() || !b->HasMemory()) continue;
    if (unit.uses > 0) {
      if (b->StaysWhole()) continue;
      b->KeepBetween();
    }
    b->ReleaseMemory();
  }
}

// --- Forward

void ShardedModel::PreForward(int u) {
  if (in_backward_ && !InsideBackward()) RecoverFromFailure();
  Unit& unit = *units_[u];
  BeginReading(u);
  ++unit.depth;
  EnsureGathered(unit);
  FinishUpdates(u);
  NoteCompute(unit);
  if (Verifying()) verification_->NoteParameters(u, in_backward_);
  // A forward inside a backward recomputes activations: there the next unit is the one before.
  Prefetch(u, in_backward_ ? -1 : 1);
}

void ShardedModel::PostForward(int u) {
  Unit& unit = *units_[u];
  NoteCompute(unit);
  unit.depth = std::max(0, unit.depth - 1);  // also called where a forward failed before it began
  ReleaseIfIdle(unit);
  if (u == 0 && unit.depth == 0 && !in_backward_) {
    for (const auto& other : units_) ReleaseIfIdle(*other);  // gathered ahead but not used
  }
}

std::vector<at::Tensor> ShardedModel::EnterUnit(int u, const std::vector<at::Tensor>& inputs) {
  std::weak_ptr<ShardedModel> weak = weak_from_this();
  return OnInputGradients(inputs, [weak, u] {
    if (auto self = weak.lock()) self->PostBackward(u);
  });
}

void ShardedModel::LeaveUnit(int u, const std::vector<at::Tensor>& outputs) {
  if (!c10::GradMode::is_enabled()) return;
  const bool differentiable = std::any_of(outputs.begin(), outputs.end(), [](const at::Tensor& t) {
    return t.defined() && t.requires_grad();
  });
  if (!differentiable) return;
  Unit& unit = *units_[u];
  if (in_backward_) {
    // Recomputation. A recorded forward has marked its outputs before. A reentrant checkpoint has
    // not recorded it: its own backward follows at once, and how many more will come is not known.
    if (unit.uses == 0) unit.in_backward = unit.unrecorded = true;
    return;
  }
  ++unit.uses;
  std::weak_ptr<ShardedModel> weak = weak_from_this();
  OnOutputGradient(outputs, [weak, u] {
    if (auto self = weak.lock()) self->PreBackward(u);
  });
}

at::Tensor ShardedModel::Call(int u, std::vector<at::Tensor> inputs,
                              const std::function<at::Tensor(const std::vector<at::Tensor>&)>& fn) {
  PreForward(u);
  at::Tensor out;
  try {
    out = fn(EnterUnit(u, inputs));
    LeaveUnit(u, {out});
  } catch (...) {
    PostForward(u);
    throw;
  }
  PostForward(u);
  return out;
}

// --- Backward

void ShardedModel::OnBackwardStart() {
  if (in_backward_) return;
  in_backward_ = true;
  std::weak_ptr<ShardedModel> weak = weak_from_this();
  OnBackwardEnd([weak] {
    if (auto self = weak.lock()) self->FinishBackward();
  });
  if (!explicit_micro_batch_) {
    index_ = 0;
    count_ = 1;
  }
  summary_.reset();
  if (index_ == 0) {
    grads_ready_ = false;
    grad_scale_ = 1;
    for (const auto& unit : units_) {
      for (const auto& b : unit->buffers) b->BeginStep();
    }
    LaunchCountCheck();
  }
  next_to_reduce_ = 0;
  for (const auto& unit : units_) unit->finished = unit->complete = unit->unrecorded = false;
}

void ShardedModel::PreBackward(int u) {
  OnBackwardStart();
  Unit& unit = *units_[u];
  unit.in_backward = true;
  EnsureGathered(unit);
  NoteCompute(unit);
  if (Verifying()) verification_->NoteParameters(u, /*backward=*/true);
  Prefetch(u, -1);
}

void ShardedModel::PostBackward(int u) {
  OnBackwardStart();
  Unit& unit = *units_[u];
  NoteCompute(unit);
  unit.uses = std::max(0, unit.uses - 1);
  unit.in_backward = false;
  ReleaseIfIdle(unit);
  if (unit.uses > 0 || unit.unrecorded) return;
  unit.complete = true;
  LaunchReductions();
}

void ShardedModel::OnGradient(int u, FlatBuffer& buffer, size_t param, at::Tensor& grad) {
  OnBackwardStart();
  if (units_[u]->finished) {
    throw Error(
        absl::StrCat(
            "the gradient of '", buffer.windows()[param].name, "' in unit '", buffer.unit(),
            "' arrived after the unit's gradients were reduced: the parameter is used outside its ",
            "unit's forward"),
        Error::Kind::kRuntime);
  }
  if (u != 0 && buffer.StartsContribution()) {
    // The memory of the next contribution is that of one which has been reduced.
    const size_t limit = options_.gradient_buckets;
    if (freed_.size() >= limit) {
      Freed& oldest = freed_[freed_.size() - limit];
      oldest.event.Wait();
      oldest.leases.clear();
    }
  }
  buffer.AddGradient(param, grad);
  grad.reset();
  if (!pool_->queue().is_cpu()) gradient_stream_ = CurrentStream(pool_->queue());
}

void ShardedModel::LaunchReductions() {
  const bool last = index_ + 1 == count_;
  const double divisor = divisor_.value_or(static_cast<double>(mesh_.size() * count_));
  for (; next_to_reduce_ < reduce_order_.size(); ++next_to_reduce_) {
    Unit& unit = *units_[reduce_order_[next_to_reduce_]];
    if (!unit.complete) return;
    FinishCountCheck();
    // Gradients are added on the streams of their leaves, and this may be another.
    if (gradient_stream_) Event::Of(*gradient_stream_).Wait();
    unit.finished = true;
    Freed freed;
    for (const auto& b : unit.buffers) {
      if (!b->trainable()) continue;
      FlatBuffer::Reduction r = b->FinishMicroBatch(last, divisor);
      if (r.stages.empty()) continue;
      const std::vector<Event> done = reduce_lanes_->Run(std::move(r.stages));
      if (r.freed) freed.event = done[*r.freed];
      if (r.freed && r.lease) freed.leases.push_back(std::move(r.lease));
      reductions_.push_back(done.back());
    }
    freed_.push_back(std::move(freed));
    if (!options_.overlap && !reductions_.empty()) reductions_.back().Wait();
  }
}

void ShardedModel::FinishBackward() {
  for (const auto& unit : units_) {
    if (unit->in_backward) NoteCompute(*unit);
    unit->complete = true;
    unit->uses = 0;
    unit->in_backward = false;
  }
  LaunchReductions();
  for (const auto& unit : units_) ReleaseIfIdle(*unit);
  for (const Event& e : reductions_) e.Wait();
  reductions_.clear();
  freed_.clear();
  in_backward_ = false;
  expected_ = index_ + 1;
  if (index_ + 1 == count_) {
    grads_ready_ = true;
    expected_ = 0;
  }
  if (!Verifying()) return;
  if (grads_ready_) verification_->NoteGradients();
  verification_->Compare("the backward");
}

void ShardedModel::RecoverFromFailure() {
  Drain();
  FinishUpdates();
  gather_stream_->Reset();
  reduce_lanes_->Reset();
  update_lanes_->Reset();
  other_stream_->Reset();
  reductions_.clear();
  freed_.clear();
  counts_pending_ = false;
  in_backward_ = false;
  ZeroGrad();
  for (const auto& unit : units_) {
    unit->uses = unit->depth = 0;
    unit->in_backward = unit->finished = false;
    unit->gathered = Event();
    for (const auto& b : unit->buffers) {
      b->DropBetween();
      if (b->NeedsGather() && b->HasMemory() && unit->pins == 0) b->ReleaseMemory();
    }
  }
}

}  // namespace lins
