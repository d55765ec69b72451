#include "comm/threads.h"

#include <ATen/ATen.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/nodes.h"
#include "comm/threads_slot.h"
#include "mesh/error.h"

namespace lins {

class ThreadsGroup {
 public:
  ThreadsGroup(std::vector<int64_t> ranks, Nodes nodes)
      : ranks_(std::move(ranks)), nodes_(std::move(nodes)) {}

  std::shared_ptr<ThreadsSlot> Post(int64_t sequence, int64_t index, ThreadsCall call);
  void Wait(ThreadsSlot& slot, int64_t index, double timeout_seconds);
  bool Done(const ThreadsSlot& slot);
  void Abort(const std::string& reason);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::vector<int64_t> ranks_;
  const Nodes nodes_;
  std::string aborted_;
  std::map<int64_t, std::shared_ptr<ThreadsSlot>> slots_;  // those that some rank has yet to reach
};

std::shared_ptr<ThreadsSlot> ThreadsGroup::Post(int64_t sequence, int64_t index, ThreadsCall call) {
  std::shared_ptr<ThreadsSlot> slot;
  {
    std::lock_guard lock(mutex_);
    std::shared_ptr<ThreadsSlot>& entry = slots_[sequence];
    if (entry == nullptr) entry = std::make_shared<ThreadsSlot>(ranks_, nodes_);
    slot = entry;
    if (!aborted_.empty()) slot->Fail(aborted_);
    slot->Arrive(index, std::move(call));
    const bool last = slot->Complete();
    if (last) slots_.erase(sequence);
    if (slot->finished || !last) {
      if (slot->finished) changed_.notify_all();
      return slot;
    }
  }
  slot->Execute();  // nobody else touches the calls of a complete slot
  {
    std::lock_guard lock(mutex_);
    slot->finished = true;
  }
  changed_.notify_all();
  return slot;
}

void ThreadsGroup::Wait(ThreadsSlot& slot, int64_t index, double timeout_seconds) {
  std::unique_lock lock(mutex_);
  const auto finished = [&slot] { return slot.finished; };
  if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), finished)) {
    if (slot.Complete()) {  // being carried out: the tensors are in use until that ends
      changed_.wait(lock, finished);
    } else {
      slot.Fail(absl::StrCat("rank ", ranks_[index], " timed out waiting for ", slot.Missing()));
      changed_.notify_all();
    }
  }
  if (!slot.error.empty()) throw std::runtime_error(slot.error);
}

bool ThreadsGroup::Done(const ThreadsSlot& slot) {
  std::lock_guard lock(mutex_);
  return slot.finished;
}

void ThreadsGroup::Abort(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    aborted_ = absl::StrCat("aborted: ", reason);
    for (auto& [sequence, slot] : slots_) slot->Fail(aborted_);
  }
  changed_.notify_all();
}

namespace {

class ThreadsPending : public Pending {
 public:
  ThreadsPending(std::shared_ptr<ThreadsGroup> group, std::shared_ptr<ThreadsSlot> slot,
                 int64_t index)
      : group_(std::move(group)), slot_(std::move(slot)), index_(index) {}
  void Wait(double timeout_seconds) override { group_->Wait(*slot_, index_, timeout_seconds); }
  bool Done() override { return group_->Done(*slot_); }

 private:
  std::shared_ptr<ThreadsGroup> group_;
  std::shared_ptr<ThreadsSlot> slot_;
  int64_t index_;
};

class ThreadsBackend : public Backend {
 public:
  ThreadsBackend(std::shared_ptr<ThreadsGroup> group, int64_t index)
      : group_(std::move(group)), index_(index) {}

  std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                     const Counts& counts, const OpInfo& info) override {
    return Post({.op = "all_gather", .unit = info.unit, .out = out, .in = in, .in_counts = counts});
  }
  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts, const OpInfo& info) override {
    return Post({.op = "reduce_scatter",
                 .unit = info.unit,
                 .out = out,
                 .in = in,
                 .reduce = op,
                 .in_counts = counts});
  }
  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op,
                                     const OpInfo& info) override {
    return Post({.op = "all_reduce", .unit = info.unit, .out = inout, .in = inout, .reduce = op});
  }
  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts,
                                    const OpInfo& info) override {
    return Post({.op = "all_to_all",
                 .unit = info.unit,
                 .out = out,
                 .in = in,
                 .in_counts = in_counts,
                 .out_counts = out_counts});
  }
  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                     const OpInfo& info) override {
    return Post({.op = "broadcast", .unit = info.unit, .out = inout, .in = inout, .root = root});
  }
  std::unique_ptr<Pending> Barrier(const OpInfo& info) override {
    return Post({.op = "barrier", .unit = info.unit});
  }

 private:
  std::unique_ptr<Pending> Post(ThreadsCall call) {
    std::shared_ptr<ThreadsSlot> slot = group_->Post(sequence_++, index_, std::move(call));
    return std::make_unique<ThreadsPending>(group_, std::move(slot), index_);
  }

  std::shared_ptr<ThreadsGroup> group_;
  int64_t index_;
  int64_t sequence_ = 0;
};

}  // namespace

struct ThreadsHub::State {
  std::mutex mutex;
  std::string aborted;
  std::map<std::string, std::shared_ptr<ThreadsGroup>> groups;
};

ThreadsHub::ThreadsHub() : state_(std::make_unique<State>()) {}
ThreadsHub::~ThreadsHub() = default;

std::unique_ptr<Backend> ThreadsHub::Join(const std::vector<int64_t>& ranks, int64_t index,
                                          const Nodes& nodes, const std::string& key) {
  std::lock_guard lock(state_->mutex);
  std::shared_ptr<ThreadsGroup>& group = state_->groups[key];
  if (group == nullptr) {
    group = std::make_shared<ThreadsGroup>(ranks, nodes);
    if (!state_->aborted.empty()) group->Abort(state_->aborted);
  }
  return std::make_unique<ThreadsBackend>(group, index);
}

void ThreadsHub::Abort(const std::string& reason) {
  std::lock_guard lock(state_->mutex);
  if (!state_->aborted.empty()) return;
  state_->aborted = reason.empty() ? "no reason given" : reason;
  for (auto& [key, group] : state_->groups) group->Abort(state_->aborted);
}

}  // namespace lins
