#include "comm/gloo.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "comm/posted.h"
#include "comm/progress.h"
#include "comm/reduce.h"
#include "comm/wire.h"

namespace lins {
namespace {

// Up to this many bytes an all-reduce gathers all contributions and adds them up on every rank, one
// exchange instead of two, and reductions wait for their caller instead of a thread of their own.
constexpr int64_t kSmall = 32 * 1024;
// Larger reductions go in up to so many segments, of at least so many bytes per rank.
constexpr int64_t kSegments = 8;
constexpr int64_t kSegmentBytes = 256 * 1024;

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
  MoveTask(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int tag, int kind)
      : wire(std::move(group), std::move(ranks), tag, kind) {}
  Wire wire;

 protected:
  void Run(double timeout_seconds) override { wire.WaitAll(Deadline(timeout_seconds)); }
  void Interrupt() override { wire.Interrupt(); }
};

// Reduces n elements of the own part. Contributions arrive segment by segment, so that one is added
// up while the next is on its way; parts[r] is rank r's. An all-reduce sends each reduced segment
// on.
class ReduceTask : public MoveTask {
 public:
  using MoveTask::MoveTask;
  ~ReduceTask() override {
    if (complete_) pool->Give(staging);  // else Gloo may still write to it
  }

  std::shared_ptr<StagingPool> pool;
  at::Tensor staging;
  std::vector<const char*> parts;
  at::Tensor in;   // keeps the own contribution
  at::Tensor out;  // flat; the own part begins at out_offset
  int64_t out_offset = 0, n = 0, segment = 0;
  ReduceOp op = ReduceOp::kSum;
  std::vector<size_t> marks;   // receives that make the first 1, 2, ... segments complete
  std::vector<int64_t> peers;  // who gets the reduced segments

 protected:
  void Run(double timeout_seconds) override {
    const Deadline deadline(timeout_seconds);
    const int64_t size = out.element_size();
    std::vector<const void*> pointers(parts.size());
    for (size_t s = 0; s < marks.size(); ++s) {
      wire.WaitRecvs(marks[s], deadline);
      const int64_t begin = std::min<int64_t>(s * segment, n), end = std::min(begin + segment, n);
      for (size_t r = 0; r < parts.size(); ++r) pointers[r] = parts[r] + begin * size;
      if (begin < end) {
        ReduceInOrder(Data(out, out_offset + begin), pointers, end - begin, out.scalar_type(), op);
      }
      for (const int64_t peer : peers) {
        wire.Send(out, out_offset + begin, end - begin, peer, /*phase=*/1);
      }
    }
    wire.WaitAll(deadline);
    complete_ = true;
  }

 private:
  bool complete_ = false;
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
                                     const Counts& counts, const OpInfo& info) override {
    const std::vector<int64_t> offsets = Offsets(counts);
    const at::Tensor to = Flat(out), from = Flat(in);
    auto task = NewTask<MoveTask>(kAllGather, info);
    EachPeer([&](int64_t peer, int64_t) { task->wire.Send(from, 0, counts[index_], peer); });
    EachPeer(
        [&](int64_t, int64_t peer) { task->wire.Recv(to, offsets[peer], counts[peer], peer); });
    CopyElements(to, offsets[index_], from, 0, counts[index_]);
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts, const OpInfo& info) override {
    auto task = NewReduce(kReduceScatter, Flat(in), op, counts, info);
    task->out = Flat(out);
    return MakePending(std::move(task), progress_, /*background=*/!Small(in));
  }

  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op,
                                     const OpInfo& info) override {
    const at::Tensor flat = Flat(inout);
    const int64_t k = size(), n = flat.numel();
    if (Small(flat)) {
      // What goes out is a copy: the sum overwrites the tensor while messages may be under way.
      auto task = NewTask<ReduceTask>(kAllReduce + static_cast<int>(op), info);
      task->staging = pool_->Take(k * n * flat.element_size());
      const at::Tensor slots = Typed(task->staging, k * n, flat.scalar_type());
      CopyElements(slots, index_ * n, flat, 0, n);
      for (int64_t r = 0; r < k; ++r) task->parts.push_back(Data(slots, r * n));
      EachPeer([&](int64_t peer, int64_t) { task->wire.Send(slots, index_ * n, n, peer); });
      EachPeer([&](int64_t, int64_t peer) { task->wire.Recv(slots, peer * n, n, peer); });
      task->marks = {task->wire.posted()};
      task->out = flat;
      task->n = task->segment = n;
      task->pool = pool_;
      task->op = op;
      return MakePending(std::move(task), progress_, /*background=*/false);
    }
    const int64_t chunk = (n + k - 1) / k;
    Counts counts(k);
    for (int64_t r = 0; r < k; ++r) counts[r] = std::clamp<int64_t>(n - r * chunk, 0, chunk);
    const std::vector<int64_t> offsets = Offsets(counts);
    auto task = NewReduce(kAllReduce, flat, op, counts, info);
    task->out = flat;
    task->out_offset = offsets[index_];
    // A peer sends a reduced segment only after it has read this rank's contribution to it, so that
    // the results may be received over what is being sent.
    for (int64_t begin = 0; begin < chunk; begin += task->segment) {
      EachPeer([&](int64_t, int64_t peer) {
        const int64_t from = std::min(begin, counts[peer]);
        const int64_t to = std::min(begin + task->segment, counts[peer]);
        task->wire.Recv(flat, offsets[peer] + from, to - from, peer, /*phase=*/1);
      });
    }
    EachPeer([&](int64_t peer, int64_t) { task->peers.push_back(peer); });
    return MakePending(std::move(task), progress_, /*background=*/true);
  }

  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts,
                                    const OpInfo& info) override {
    const std::vector<int64_t> outs = Offsets(out_counts), ins = Offsets(in_counts);
    const at::Tensor to = Flat(out), from = Flat(in);
    auto task = NewTask<MoveTask>(kAllToAll, info);
    EachPeer(
        [&](int64_t peer, int64_t) { task->wire.Send(from, ins[peer], in_counts[peer], peer); });
    EachPeer(
        [&](int64_t, int64_t peer) { task->wire.Recv(to, outs[peer], out_counts[peer], peer); });
    CopyElements(to, outs[index_], from, ins[index_], in_counts[index_]);
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                     const OpInfo& info) override {
    const at::Tensor flat = Flat(inout);
    auto task = NewTask<MoveTask>(kBroadcast, info);
    if (index_ == root) {
      EachPeer([&](int64_t peer, int64_t) { task->wire.Send(flat, 0, flat.numel(), peer); });
    } else {
      task->wire.Recv(flat, 0, flat.numel(), root);
    }
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

  std::unique_ptr<Pending> Barrier(const OpInfo& info) override {
    const at::Tensor tokens = at::zeros({size()}, at::kByte);
    auto task = NewTask<MoveTask>(kBarrier, info);
    EachPeer([&](int64_t peer, int64_t) { task->wire.Send(tokens, index_, 1, peer); });
    EachPeer([&](int64_t, int64_t peer) { task->wire.Recv(tokens, peer, 1, peer); });
    return MakePending(std::move(task), progress_, /*background=*/false);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

  // fn(to, from) for each of the other ranks, each rank beginning with its own neighbours.
  // Operations post their sends first: fewer messages of Gloo's own cross than with the receives
  // first.
  template <typename Fn>
  void EachPeer(Fn fn) const {
    for (int64_t step = 1; step < size(); ++step) {
      fn((index_ + step) % size(), (index_ + size() - step) % size());
    }
  }

  enum Kind { kAllGather, kAllToAll, kBroadcast, kBarrier, kAllReduce, kReduceScatter = 16 };

  // kind: what all ranks must call alike, and for the same unit. For reductions the operation is
  // added.
  template <typename T>
  std::shared_ptr<T> NewTask(int kind, const OpInfo& info) {
    tag_ = (tag_ + 2) & 0x1ffff;  // every operation has the tags of two phases
    return std::make_shared<T>(group_, ranks_, tag_, kind + UnitKind(info.unit));
  }

  // The same on all ranks and in all builds.
  static int UnitKind(const std::string& unit) {
    uint32_t hash = 2166136261u;  // FNV-1a
    for (const char c : unit) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    return static_cast<int>(hash % 8191) * 32;
  }

  static bool Small(const at::Tensor& tensor) {
    return tensor.numel() * static_cast<int64_t>(tensor.element_size()) <= kSmall;
  }

  // The first `n` elements of a staging buffer.
  static at::Tensor Typed(const at::Tensor& staging, int64_t n, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return staging.narrow(0, 0, n * c10::elementSize(dtype)).view(dtype);
  }

  // A reduction of parts of `in`: all its messages up to the sums are posted.
  std::shared_ptr<ReduceTask> NewReduce(Kind kind, at::Tensor in, ReduceOp op, const Counts& counts,
                                        const OpInfo& info) {
    const std::vector<int64_t> offsets = Offsets(counts);
    const int64_t n = counts[index_], size = in.element_size(), slots = counts.size() - 1;
    const int64_t most = std::max<int64_t>(1, *std::max_element(counts.begin(), counts.end()));
    auto task = NewTask<ReduceTask>(kind + static_cast<int>(op), info);
    task->pool = pool_;
    task->staging = pool_->Take(slots * n * size);
    task->n = n;
    task->op = op;
    task->segment = std::max((most + kSegments - 1) / kSegments, kSegmentBytes / size);
    const at::Tensor typed = Typed(task->staging, slots * n, in.scalar_type());
    task->parts.resize(counts.size());
    task->parts[index_] = Data(in, offsets[index_]);
    for (int64_t begin = 0; begin < most; begin += task->segment) {
      EachPeer([&](int64_t peer, int64_t) {
        const int64_t from = std::min(begin, counts[peer]);
        const int64_t to = std::min(begin + task->segment, counts[peer]);
        task->wire.Send(in, offsets[peer] + from, to - from, peer);
      });
    }
    for (int64_t begin = 0; begin < most; begin += task->segment) {
      int64_t slot = 0;
      EachPeer([&](int64_t, int64_t peer) {
        task->parts[peer] = Data(typed, slot * n);
        const int64_t from = std::min(begin, n), to = std::min(begin + task->segment, n);
        task->wire.Recv(typed, slot++ * n + from, to - from, peer);
      });
      task->marks.push_back(task->wire.posted());
    }
    task->in = std::move(in);
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
  return Posted(std::make_unique<GlooBackend>(std::move(group), ranks, index, state_->timeout));
}

}  // namespace lins
