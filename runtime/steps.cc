// What frames the passes of a sharded model: micro-batches, reading whole parameters, updates.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/order_checker.h"
#include "mesh/error.h"
#include "runtime/sharded_model.h"
#include "runtime/verification.h"

namespace lins {

// --- Micro-batches

void ShardedModel::BeginMicroBatch(int64_t index, int64_t count, std::optional<double> divisor) {
  if (count < 1 || index < 0 || index >= count) {
    throw Error(absl::StrCat("micro-batch index ", index, " of ", count,
                             ": legal are 0 to count - 1, count >= 1"));
  }
  if (divisor && !(*divisor > 0))
    throw Error(absl::StrCat("divisor ", *divisor, " must be above 0"));
  if (index > 0 && (index != expected_ || count != count_)) {
    throw Error(absl::StrCat(
        "micro-batch ", index, " of ", count, " cannot follow: expected ",
        expected_ == 0 ? "index 0" : absl::StrCat("index ", expected_, " of ", count_)));
  }
  index_ = index;
  count_ = count;
  divisor_ = divisor;
  explicit_micro_batch_ = true;
}

void ShardedModel::EndMicroBatch() {
  explicit_micro_batch_ = false;
  if (index_ + 1 == count_) divisor_.reset();
}

void ShardedModel::LaunchCountCheck() {
  if (mesh_.size() == 1) return;
  counts_pending_ = true;
  // The host will wait for it, so it does not come after the caller's compute.
  counts_checked_ = other_stream_->Run(
      [this, count = count_] {
        if (!counts_in_.defined()) {
          const auto options = at::TensorOptions().dtype(at::kLong).device(pool_->device());
          counts_in_ = at::empty({1}, options);
          counts_out_ = at::empty({mesh_.size()}, options);
          counts_ = at::empty({mesh_.size()},
                              options.device(at::kCPU).pinned_memory(!pool_->device().is_cpu()));
        }
        counts_in_.fill_(count);
        WorldComm()
            .AllGather(counts_out_, counts_in_, {},
                       {"root", mesh_.AxesToString(mesh_.AllAxes()), ""})
            .Wait();
        NoteRead(counts_out_, "micro-batch counts", "root");
        counts_.copy_(counts_out_, /*non_blocking=*/true);
      },
      Stream::After::kNothing);
}

void ShardedModel::FinishCountCheck() {
  if (!std::exchange(counts_pending_, false)) return;
  counts_checked_.Synchronize();
  mesh_.world().CheckCompleted();
  const int64_t* counts = counts_.const_data_ptr<int64_t>();
  if (std::all_of(counts, counts + counts_.numel(), [&](int64_t n) { return n == count_; })) return;
  throw Error(
      absl::StrCat("ranks disagree about the number of micro-batches of this step: by rank ",
                   absl::StrJoin(counts, counts + counts_.numel(), ", ")));
}

void ShardedModel::CheckComplete() const {
  if (grads_ready_ || expected_ == 0) return;
  throw Error(absl::StrCat("the optimizer steps after micro-batch ", expected_ - 1, " of ", count_,
                           ": ", count_ - expected_,
                           " more must come first, with lins.micro_batch(model, index=", expected_,
                           ", count=", count_, ")"),
              Error::Kind::kRuntime);
}

void ShardedModel::ZeroGrad() {
  grads_ready_ = false;
  grad_scale_ = 1;
  summary_.reset();
  expected_ = 0;
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) b->BeginStep();
  }
}

// --- Reading

void ShardedModel::Unshard(const std::vector<int>& list) {
  for (int u : list) {
    BeginReading(u);
    ++units_[u]->pins;
    EnsureGathered(*units_[u]);
    FinishUpdates(u);
    NoteCompute(*units_[u]);
  }
}

void ShardedModel::Reshard(const std::vector<int>& list, bool writeback) {
  for (int u : list) {
    Unit& unit = *units_[u];
    NoteCompute(unit);
    if (writeback) {
      for (const auto& b : unit.buffers) {
        b->WriteBack();
        b->DropBetween();
      }
      written_ = Event::Here(pool_->queue());
    }
    --unit.pins;
    ReleaseIfIdle(unit);
  }
}

// --- Updating

void ShardedModel::BeginUpdate() {
  for (const auto& unit : units_) {
    // What was gathered for a backward that did not come is out of date from here on.
    unit->uses = 0;
    ReleaseIfIdle(*unit);
    for (const auto& b : unit->buffers) b->DropBetween();
  }
  FinishUpdates();
}

void ShardedModel::LaunchUpdate(FlatBuffer& buffer) {
  if (order_checker.load(std::memory_order_relaxed) != nullptr) buffer.NoteOptimizer();
  buffer.StartUpdate(*update_lanes_);
  if (!options_.overlap_update || !options_.overlap) buffer.FinishUpdate();
}

void ShardedModel::EndUpdate() {
  ++steps_;
  if (!Verifying()) return;
  FinishUpdates();
  verification_->NoteStates();
  verification_->Compare("the update");
}

void ShardedModel::FinishUpdates(int unit) {
  for (const auto& b : units_[unit]->buffers) b->FinishUpdate();
}

void ShardedModel::FinishUpdates() {
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) b->FinishUpdate();
  }
}

bool ShardedModel::Updating() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
    return std::any_of(unit->buffers.begin(), unit->buffers.end(),
                       [](const auto& b) { return b->updating(); });
  });
}

}  // namespace lins
