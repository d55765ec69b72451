#include "comm/communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "comm/backend.h"
#include "comm/delay_queue.h"
#include "comm/order_checker.h"
#include "comm/reduce.h"
#include "comm/trace.h"
#include "comm/work.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::string List(const std::vector<int64_t>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

int64_t Bytes(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

const char* Address(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

bool Overlap(const at::Tensor& a, const at::Tensor& b) {
  return Address(a) < Address(b) + Bytes(b) && Address(b) < Address(a) + Bytes(a);
}

// Whether `part` is either apart from `whole` or exactly its elements from `offset` on.
bool PartOrApart(const at::Tensor& part, const at::Tensor& whole, int64_t offset) {
  return !Overlap(part, whole) || Address(part) == Address(whole) + offset * whole.element_size();
}

int64_t Offset(const Counts& counts, int64_t index) {
  return std::accumulate(counts.begin(), counts.begin() + index, int64_t{0});
}

// A group of one: the result is the input.
void Copy(const at::Tensor& out, const at::Tensor& in) {
  if (out.numel() == 0 || Address(out) == Address(in)) return;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  out.view(-1).copy_(in.view(-1));
}

}  // namespace

absl::string_view RoleName(Role role) {
  static constexpr absl::string_view kNames[] = {"gather", "reduce", "update", "other"};
  return kNames[static_cast<int>(role)];
}

Communicator::Communicator(std::unique_ptr<Backend> backend, std::vector<int64_t> ranks,
                           int64_t index, Role role, double timeout_seconds,
                           std::shared_ptr<RankContext> context)
    : backend_(std::move(backend)),
      ranks_(std::move(ranks)),
      index_(index),
      role_(role),
      timeout_(timeout_seconds),
      context_(std::move(context)) {
  LINS_CHECK(index_ >= 0 && index_ < size(), "index ", index_, " of ", size());
  LINS_CHECK(size() == 1 || backend_ != nullptr, "group ", List(ranks_), " without a backend");
  facts_ =
      std::make_shared<GroupFacts>(GroupFacts{ranks_, std::string(RoleName(role)), ranks_[index_]});
}

Communicator::~Communicator() = default;

std::vector<int64_t> Communicator::SentBytes() const {
  return backend_ == nullptr ? std::vector<int64_t>() : backend_->SentBytes();
}

std::string Communicator::Describe(absl::string_view op, const OpInfo& info) const {
  return absl::StrCat(op, info.unit.empty() ? "" : absl::StrCat(" for unit '", info.unit, "'"),
                      " (role ", RoleName(role_), ", group ", List(ranks_), "): ");
}

void Communicator::CheckTensor(absl::string_view op, const OpInfo& info, absl::string_view name,
                               const at::Tensor& tensor) const {
  if (!tensor.defined()) throw Error(absl::StrCat(Describe(op, info), name, " is undefined"));
  if (!tensor.is_contiguous()) {
    throw Error(absl::StrCat(Describe(op, info), name, " of shape ", List(tensor.sizes().vec()),
                             " and strides ", List(tensor.strides().vec()), " is not contiguous"));
  }
  if (backend_ != nullptr && tensor.device().type() != backend_->device()) {
    throw Error(absl::StrCat(Describe(op, info), name, " is on ", tensor.device().str(),
                             "; this world needs tensors on ",
                             c10::DeviceTypeName(backend_->device(), /*lower_case=*/true)));
  }
}

void Communicator::CheckPair(absl::string_view op, const OpInfo& info, const at::Tensor& out,
                             const at::Tensor& in) const {
  CheckTensor(op, info, "out", out);
  CheckTensor(op, info, "in", in);
  if (out.scalar_type() != in.scalar_type()) {
    throw Error(absl::StrCat(Describe(op, info), "out is ", c10::toString(out.scalar_type()),
                             " but in is ", c10::toString(in.scalar_type())));
  }
}

Counts Communicator::CompleteCounts(absl::string_view op, const OpInfo& info,
                                    absl::string_view name, const Counts& counts,
                                    int64_t total) const {
  if (counts.empty()) {
    if (total % size() != 0) {
      throw Error(absl::StrCat(Describe(op, info), name, " has ", total,
                               " elements, which do not divide by ", size(),
                               " ranks: pass counts"));
    }
    return Counts(size(), total / size());
  }
  const bool negative = std::any_of(counts.begin(), counts.end(), [](int64_t c) { return c < 0; });
  if (static_cast<int64_t>(counts.size()) != size() || negative ||
      Offset(counts, size()) != total) {
    throw Error(absl::StrCat(Describe(op, info), "counts ", List(counts), " of ", name, " must be ",
                             size(), " numbers >= 0 that add up to its ", total, " elements"));
  }
  return counts;
}

Communicator::Group::Group(Communicator& comm) : comm_(comm) {
  if (comm.backend_ == nullptr || comm.delayed_ != nullptr) return;
  comm.backend_->BeginGroup();
  comm.grouping_ = true;
}

Communicator::Group::~Group() {
  if (std::exchange(comm_.grouping_, false)) comm_.backend_->EndGroup();
}

void Communicator::CheckCompleted() {
  const std::lock_guard lock(unconfirmed_mutex_);
  while (!unconfirmed_.empty()) {
    const std::shared_ptr<Work::State> state = unconfirmed_.front();
    const bool dropped = state.use_count() == 2;  // nobody will wait for it
    const std::unique_lock state_lock(state->mutex, std::try_to_lock);
    if (!state_lock.owns_lock()) return;  // another thread waits for it
    std::string error;
    if (state->pending != nullptr) {
      if (!(state->waited || dropped) || !state->Confirm()) return;
      error = state->error;
    }  // else its own Wait has told, or will
    unconfirmed_.pop_front();
    if (!error.empty()) throw Error(error, Error::Kind::kRuntime);
  }
}

template <typename Fn>
Work Communicator::Start(absl::string_view op, const OpInfo& info, int64_t bytes,
                         int64_t recv_bytes, Fn&& launch) {
  if (backend_->asynchronous()) CheckCompleted();
  auto state = std::make_shared<Work::State>();
  state->collective = op;
  state->info = info;
  state->group = facts_;
  state->bytes = bytes;
  state->recv_bytes = recv_bytes;
  state->start = MonotonicSeconds();
  state->sequence = sequence_;
  state->timeout = timeout_;
  state->context = context_;
  double delay = 0;
  if (context_->Watched()) {
    const TraceRecord record = state->Record();
    context_->CheckAllowed(record);
    state->record = context_->Begin(record);
    delay = context_->Delay(record);
    if (std::string failure = context_->Failure(record); !failure.empty()) {
      ++sequence_;
      state->Fail(failure);
      return Work(std::move(state));
    }
  }
  ++sequence_;
  if (OrderChecker* checker = order_checker.load(std::memory_order_relaxed)) {
    checker->Announce(op, RoleName(role_), info.unit);
  }
  if (delay > 0 && delayed_ == nullptr) {
    if (std::exchange(grouping_, false)) backend_->EndGroup();  // the delay's thread launches
    delayed_ = std::make_shared<DelayQueue>();
  }
  try {
    if (delayed_ == nullptr) {
      state->pending = launch();
    } else if (backend_->device() == c10::DeviceType::CPU) {
      state->pending = delayed_->Post(delay, launch);
    } else {  // on the stream of the caller, which has produced the input
      const c10::impl::VirtualGuardImpl guard(backend_->device());
      const c10::Stream stream = guard.getStream(guard.getDevice());
      state->pending = delayed_->Post(delay, [launch, stream] {
        c10::StreamGuard on(stream);
        return launch();
      });
    }
  } catch (const std::exception& e) {
    state->Fail(e.what());
  }
  if (backend_->asynchronous()) {
    state->asynchronous = true;
    const std::lock_guard lock(unconfirmed_mutex_);
    unconfirmed_.push_back(state);
  }
  return Work(std::move(state));
}

Work Communicator::AllGather(const at::Tensor& out, const at::Tensor& in, const Counts& counts,
                             const OpInfo& info) {
  CheckPair("all_gather", info, out, in);
  Counts all = CompleteCounts("all_gather", info, "out", counts, out.numel());
  if (in.numel() != all[index_]) {
    throw Error(absl::StrCat(Describe("all_gather", info), "in has ", in.numel(),
                             " elements, but this rank's part of out's ", out.numel(), " is ",
                             all[index_]));
  }
  if (!PartOrApart(in, out, Offset(all, index_))) {
    throw Error(absl::StrCat(Describe("all_gather", info),
                             "in overlaps out without being this rank's own part of it"));
  }
  if (size() == 1) return Copy(out, in), Work();
  return Start("all_gather", info, Bytes(out), Bytes(out) - Bytes(in),
               [backend = backend_.get(), out, in, all = std::move(all), info] {
                 return backend->AllGather(out, in, all, info);
               });
}

Work Communicator::ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                 const Counts& counts, const OpInfo& info) {
  CheckPair("reduce_scatter", info, out, in);
  Counts all = CompleteCounts("reduce_scatter", info, "in", counts, in.numel());
  if (out.numel() != all[index_]) {
    throw Error(absl::StrCat(Describe("reduce_scatter", info), "out has ", out.numel(),
                             " elements, but this rank's part of in's ", in.numel(), " is ",
                             all[index_]));
  }
  if (!PartOrApart(out, in, Offset(all, index_))) {
    throw Error(absl::StrCat(Describe("reduce_scatter", info),
                             "out overlaps in without being this rank's own part of it"));
  }
  if (const std::string problem = ReduceProblem(in.scalar_type(), op); !problem.empty()) {
    throw Error(absl::StrCat(Describe("reduce_scatter", info), problem));
  }
  if (size() == 1) return Copy(out, in), Work();
  return Start("reduce_scatter", info, Bytes(in), (size() - 1) * Bytes(out),
               [backend = backend_.get(), out, in, op, all = std::move(all), info] {
                 return backend->ReduceScatter(out, in, op, all, info);
               });
}

Work Communicator::AllReduce(const at::Tensor& inout, ReduceOp op, const OpInfo& info) {
  CheckTensor("all_reduce", info, "inout", inout);
  if (const std::string problem = ReduceProblem(inout.scalar_type(), op); !problem.empty()) {
    throw Error(absl::StrCat(Describe("all_reduce", info), problem));
  }
  if (size() == 1) return Work();
  const int64_t n = inout.numel(), chunk = (n + size() - 1) / size();
  const int64_t own = std::clamp<int64_t>(n - index_ * chunk, 0, chunk);
  return Start(
      "all_reduce", info, Bytes(inout),
      ((size() - 1) * own + n - own) * static_cast<int64_t>(inout.element_size()),
      [backend = backend_.get(), inout, op, info] { return backend->AllReduce(inout, op, info); });
}

Work Communicator::AllToAll(const at::Tensor& out, const at::Tensor& in, const Counts& out_counts,
                            const Counts& in_counts, const OpInfo& info) {
  CheckPair("all_to_all", info, out, in);
  Counts outs = CompleteCounts("all_to_all", info, "out", out_counts, out.numel());
  Counts ins = CompleteCounts("all_to_all", info, "in", in_counts, in.numel());
  if (outs[index_] != ins[index_]) {
    throw Error(absl::StrCat(Describe("all_to_all", info), "this rank sends itself ", ins[index_],
                             " elements but receives ", outs[index_], " from itself"));
  }
  if (Overlap(out, in)) throw Error(absl::StrCat(Describe("all_to_all", info), "out overlaps in"));
  if (size() == 1) return Copy(out, in), Work();
  const int64_t others = out.numel() - outs[index_];
  return Start("all_to_all", info, Bytes(in), others * static_cast<int64_t>(out.element_size()),
               [backend = backend_.get(), out, in, outs = std::move(outs), ins = std::move(ins),
                info] { return backend->AllToAll(out, in, outs, ins, info); });
}

Work Communicator::Broadcast(const at::Tensor& inout, int64_t root, const OpInfo& info) {
  CheckTensor("broadcast", info, "inout", inout);
  if (root < 0 || root >= size()) {
    throw Error(absl::StrCat(Describe("broadcast", info), "root ", root,
                             " is not an index of the group, 0 to ", size() - 1));
  }
  if (size() == 1) return Work();
  return Start("broadcast", info, Bytes(inout), root == index_ ? 0 : Bytes(inout),
               [backend = backend_.get(), inout, root, info] {
                 return backend->Broadcast(inout, root, info);
               });
}

Work Communicator::Barrier(const OpInfo& info) {
  if (size() == 1) return Work();
  return Start("barrier", info, 0, 0,
               [backend = backend_.get(), info] { return backend->Barrier(info); });
}

}  // namespace lins
