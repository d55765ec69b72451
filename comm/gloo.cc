#include "comm/gloo.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "comm/progress.h"
#include "comm/reduce.h"
#include "comm/wire.h"

namespace lins {
namespace {

// Up to this many bytes an all-reduce gathers all contributions and adds them up on every rank: one
// exchange instead of two.
constexpr int64_t kSmallAllReduce = 32 * 1024;

char* Data(const at::Tensor& flat, int64_t offset = 0) {
  return static_cast<char*>(flat.mutable_data_ptr()) + offset * flat.element_size();
}

at::Tensor Flat(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return tensor.view(-1);
}

void CopyElements(const at::Tensor& out, int64_t out_offset, const at::Tensor& in,
                  int64_t in_offset, int64_t n) {
  char* to = Data(out, out_offset);
  const char* from = Data(in, in_offset);
  if (n > 0 && to != from) std::memcpy(to, from, n * out.element_size());
}

std::vector<int64_t> Offsets(const Counts& counts) {
  std::vector<int64_t> offsets(counts.size() + 1, 0);
  for (size_t i = 0; i < counts.size(); ++i) offsets[i + 1] = offsets[i] + counts[i];
  return offsets;
}

// Messages only.
class MoveTask : public Task {
 public:
  MoveTask(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int tag)
      : wire(std::move(group), std::move(ranks), tag) {}
  Wire wire;

 protected:
  void Run(double timeout_seconds) override {
    const Deadline deadline(timeout_seconds);
    wire.WaitRecvs(deadline);
    wire.WaitSends(deadline);
  }
  void Interrupt() override { wire.Interrupt(); }
};

// Contributions of the other ranks arrive in slots of `staging`; then parts[r], rank r's, are
// combined into out. An all-reduce goes on to send that to everybody.
class ReduceTask : public MoveTask {
 public:
  using MoveTask::MoveTask;
  ~ReduceTask() override {
    if (complete) pool->Give(staging);  // else Gloo may still hold it
  }

  std::shared_ptr<StagingPool> pool;
  at::Tensor staging;
  std::vector<const void*> parts;
  at::Tensor flat;  // keeps the memory of out and of the own part
  at::Tensor in;
  void* out = nullptr;
  int64_t n = 0;
  ReduceOp op = ReduceOp::kSum;
  Counts gather;  // all-reduce: elements of flat per rank
  int64_t index = 0;

 protected:
  void Run(double timeout_seconds) override {
    const Deadline deadline(timeout_seconds);
    wire.WaitRecvs(deadline);
    if (n > 0) ReduceInOrder(out, parts, n, flat.scalar_type(), op);
    wire.WaitSends(deadline);  // parts of flat that phase 1 overwrites
    if (!gather.empty()) {
      const std::vector<int64_t> offsets = Offsets(gather);
      const int64_t k = gather.size();
      for (int64_t step = 1; step < k; ++step) {
        const int64_t from = (index + k - step) % k;
        wire.Recv(flat, offsets[from], gather[from], from, /*phase=*/1);
      }
      for (int64_t step = 1; step < k; ++step) {
        wire.Send(flat, offsets[index], n, (index + step) % k, /*phase=*/1);
      }
      wire.WaitRecvs(deadline);
      wire.WaitSends(deadline);
    }
    complete = true;
  }

 private:
  bool complete = false;
};

class GlooBackend : public Backend {
 public:
  GlooBackend(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int64_t index,
              double timeout)
      : group_(std::move(group)),
        ranks_(std::move(ranks)),
        index_(index),
        progress_(std::make_shared<ProgressThread>(timeout)) {}

  std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                     const Counts& counts) override {
    const std::vector<int64_t> offsets = Offsets(counts);
    const at::Tensor to = Flat(out), from = Flat(in);
    auto task = NewTask<MoveTask>();
    EachPeer(
        [&](int64_t, int64_t peer) { task->wire.Recv(to, offsets[peer], counts[peer], peer); });
    EachPeer([&](int64_t peer, int64_t) { task->wire.Send(from, 0, counts[index_], peer); });
    CopyElements(to, offsets[index_], from, 0, counts[index_]);
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts) override {
    const std::vector<int64_t> offsets = Offsets(counts);
    const at::Tensor from = Flat(in);
    auto task = NewReduce(Flat(out), from, offsets[index_], counts[index_], op);
    task->out = Data(out);
    EachPeer(
        [&](int64_t peer, int64_t) { task->wire.Send(from, offsets[peer], counts[peer], peer); });
    const bool small = in.numel() * static_cast<int64_t>(in.element_size()) <= kSmallAllReduce;
    return MakePending(std::move(task), progress_, /*background=*/!small);
  }

  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op) override {
    const at::Tensor flat = Flat(inout);
    const int64_t k = size(), n = flat.numel();
    if (n * static_cast<int64_t>(flat.element_size()) <= kSmallAllReduce) {
      // What goes out is a copy: the sum overwrites the tensor while messages may be under way.
      auto task = NewReduce(flat, flat, 0, n, op, /*extra_slots=*/1);
      const at::Tensor copy = Typed(task->staging, (k - 1) * n, n, flat.scalar_type());
      CopyElements(copy, 0, flat, 0, n);
      task->out = Data(flat);
      EachPeer([&](int64_t peer, int64_t) { task->wire.Send(copy, 0, n, peer); });
      return MakePending(std::move(task), progress_, /*background=*/false);
    }
    const int64_t chunk = (n + k - 1) / k;
    Counts counts(k);
    for (int64_t r = 0; r < k; ++r) counts[r] = std::clamp<int64_t>(n - r * chunk, 0, chunk);
    const std::vector<int64_t> offsets = Offsets(counts);
    auto task = NewReduce(flat, flat, offsets[index_], counts[index_], op);
    task->out = Data(flat, offsets[index_]);
    EachPeer(
        [&](int64_t peer, int64_t) { task->wire.Send(flat, offsets[peer], counts[peer], peer); });
    task->gather = std::move(counts);
    return MakePending(std::move(task), progress_, /*background=*/true);
  }

  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts) override {
    const std::vector<int64_t> outs = Offsets(out_counts), ins = Offsets(in_counts);
    const at::Tensor to = Flat(out), from = Flat(in);
    auto task = NewTask<MoveTask>();
    EachPeer(
        [&](int64_t, int64_t peer) { task->wire.Recv(to, outs[peer], out_counts[peer], peer); });
    EachPeer(
        [&](int64_t peer, int64_t) { task->wire.Send(from, ins[peer], in_counts[peer], peer); });
    CopyElements(to, outs[index_], from, ins[index_], in_counts[index_]);
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root) override {
    const at::Tensor flat = Flat(inout);
    auto task = NewTask<MoveTask>();
    if (index_ == root) {
      EachPeer([&](int64_t peer, int64_t) { task->wire.Send(flat, 0, flat.numel(), peer); });
    } else {
      task->wire.Recv(flat, 0, flat.numel(), root);
    }
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

  std::unique_ptr<Pending> Barrier() override {
    const at::Tensor tokens = at::zeros({size()}, at::kByte);
    auto task = NewTask<MoveTask>();
    EachPeer([&](int64_t, int64_t peer) { task->wire.Recv(tokens, peer, 1, peer); });
    EachPeer([&](int64_t peer, int64_t) { task->wire.Send(tokens, index_, 1, peer); });
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

  // fn(to, from) for each of the other ranks, each rank beginning with its own neighbours.
  template <typename Fn>
  void EachPeer(Fn fn) const {
    for (int64_t step = 1; step < size(); ++step) {
      fn((index_ + step) % size(), (index_ + size() - step) % size());
    }
  }

  template <typename T>
  std::shared_ptr<T> NewTask() {
    tag_ = (tag_ + 2) & 0x3fffffff;  // every operation has the tags of two phases
    return std::make_shared<T>(group_, ranks_, tag_);
  }

  // `n` elements of a staging buffer from `offset` on, both in elements of `dtype`.
  static at::Tensor Typed(const at::Tensor& staging, int64_t offset, int64_t n,
                          at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const int64_t size = c10::elementSize(dtype);
    return staging.narrow(0, offset * size, n * size).view(dtype);
  }

  // Posts the receives of a reduction of n elements; the own part begins at `offset` of `in`.
  std::shared_ptr<ReduceTask> NewReduce(at::Tensor flat, at::Tensor in, int64_t offset, int64_t n,
                                        ReduceOp op, int64_t extra_slots = 0) {
    auto task = NewTask<ReduceTask>();
    const int64_t slots = size() - 1;
    task->pool = pool_;
    task->staging = pool_->Take((slots + extra_slots) * n * in.element_size());
    const at::Tensor typed = Typed(task->staging, 0, slots * n, in.scalar_type());
    task->parts.resize(size());
    task->parts[index_] = Data(in, offset);
    int64_t slot = 0;
    EachPeer([&](int64_t, int64_t peer) {
      task->parts[peer] = Data(typed, slot * n);
      task->wire.Recv(typed, slot * n, n, peer);
      ++slot;
    });
    task->flat = std::move(flat);
    task->in = std::move(in);
    task->n = n;
    task->op = op;
    task->index = index_;
    return task;
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  const std::vector<int64_t> ranks_;
  const int64_t index_;
  int tag_ = 0;
  std::shared_ptr<StagingPool> pool_ = std::make_shared<StagingPool>();
  std::shared_ptr<ProgressThread> progress_;  // released first: its tasks use the group
};

}  // namespace

struct GlooFactory::State {
  c10::intrusive_ptr<c10d::Store> store;
  double timeout;
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options;  // made by the first group
};

GlooFactory::GlooFactory(c10::intrusive_ptr<c10d::Store> store, double timeout_seconds)
    : state_(new State{std::move(store), timeout_seconds, {}}) {}

GlooFactory::~GlooFactory() = default;

std::unique_ptr<Backend> GlooFactory::Connect(const std::vector<int64_t>& ranks, int64_t index,
                                              const std::string& key) {
  using Group = c10d::ProcessGroupGloo;
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(state_->timeout * 1000));
  if (!state_->options) state_->options = Group::Options::create_default(timeout);
  auto options = Group::Options::create(timeout);
  options->devices = state_->options->devices;  // one thread moves the bytes of all groups
  options->threads = 1;                         // only Gloo's own collectives use them
  auto store = c10::make_intrusive<c10d::PrefixStore>(key, state_->store);
  auto group = c10::make_intrusive<Group>(store, static_cast<int>(index),
                                          static_cast<int>(ranks.size()), std::move(options));
  return std::make_unique<GlooBackend>(std::move(group), ranks, index, state_->timeout);
}

}  // namespace lins
