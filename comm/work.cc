#include "comm/work.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"

namespace lins {

TraceRecord Work::State::Record() const {
  TraceRecord record;
  record.op = info.op.empty() ? std::string(collective) : info.op;
  record.role = group->role;
  record.unit = info.unit;
  record.axes = info.axes;
  record.group = group->ranks;
  record.bytes = bytes;
  record.recv_bytes = recv_bytes;
  record.start = start;
  record.sequence = sequence;
  record.rank = group->rank;
  return record;
}

void Work::State::Fail(const std::string& reason) {
  const TraceRecord op = Record();
  error = absl::StrCat(
      op.op, " failed on rank ", op.rank,
      op.unit.empty() ? "" : absl::StrCat(" for unit '", op.unit, "'"), " (role ", op.role,
      ", group [", absl::StrJoin(op.group, ", "), "], sequence ", op.sequence, ", ", op.bytes,
      " bytes, ",
      absl::StrFormat("%.3f s elapsed, time-out %g s", MonotonicSeconds() - op.start, timeout),
      "): ", reason);
  context->End(record);
}

void Work::State::Finish() {
  try {
    pending->Wait(timeout);
    if (!waited) context->End(record);
    waited = asynchronous;
  } catch (const std::exception& e) {
    waited = false;
    Fail(e.what());
  }
  if (!waited) pending.reset();
}

bool Work::State::Confirm() {
  try {
    if (!pending->Confirmed()) return false;
  } catch (const std::exception& e) {
    Fail(e.what());
  }
  waited = false;
  pending.reset();
  return true;
}

void Work::Wait() {
  if (state_ == nullptr) return;
  std::lock_guard lock(state_->mutex);
  if (state_->pending != nullptr) state_->Finish();  // again: another stream may be current
  if (!state_->error.empty()) throw Error(state_->error, Error::Kind::kRuntime);
}

bool Work::Done() const {
  if (state_ == nullptr) return true;
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread waits for it
  if (state_->pending == nullptr) return true;
  if (state_->waited) return state_->Confirm();
  if (!state_->pending->Done()) return false;
  state_->Finish();
  return true;
}

}  // namespace lins
