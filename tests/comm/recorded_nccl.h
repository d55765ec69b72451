// What stands in for NCCL where there is no GPU: groups of c10d whose ranks are threads. They carry
// the collectives out and write down what they are asked for. On a SimulatedDevice each has a
// stream of its own, as NCCL's have, that waits for the caller's and is waited for by c10d's
// handles.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "comm/backend.h"
#include "comm/c10d_backend.h"
#include "comm/nodes.h"
#include "comm/stream.h"
#include "comm/threads.h"
#include "tests/comm/simulated_device.h"

namespace lins::testing {

struct NcclCall {
  std::string role;            // of the communicator
  std::vector<int64_t> group;  // its ranks
  std::string op;              // of c10d
  int64_t bytes = 0;           // all_gather: gathered; reduce_scatter: unreduced; else of the input
  int coalesced = 0;           // calls with the same number but 0 were begun together
  std::string stream{};        // that was current, on a simulated device
  bool operator==(const NcclCall& o) const {
    return role == o.role && group == o.group && op == o.op && bytes == o.bytes &&
           (coalesced == 0) == (o.coalesced == 0);
  }
};

// What the ranks of a job share.
class NcclRecorder {
 public:
  // For World::Nccl.
  C10dGroups Groups();
  std::vector<NcclCall> Calls(int64_t rank) const {
    std::lock_guard lock(mutex_);
    const auto it = calls_.find(rank);
    return it == calls_.end() ? std::vector<NcclCall>() : it->second;
  }
  void Forget() {
    std::lock_guard lock(mutex_);
    calls_.clear();
  }
  void Record(int64_t rank, NcclCall call) {
    std::lock_guard lock(mutex_);
    calls_[rank].push_back(std::move(call));
  }
  // Whether the operation's handle throws when it is waited for.
  std::function<bool(const NcclCall&)> aborted;
  // What the watchdog would find, after the operation was waited for; "": nothing.
  std::function<std::string(const NcclCall&)> failure;
  ThreadsHub hub;

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<NcclCall>> calls_;
};

class RecordedWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override {
    if (aborted) throw std::runtime_error("NCCL communicator was aborted");
    for (auto& p : pending) p->Wait(20);
    pending.clear();
    end.Wait();
    return true;
  }
  bool isCompleted() override { return pending.empty(); }
  std::exception_ptr exception() const override { return failed; }

  std::vector<std::unique_ptr<Pending>> pending;
  Event end;
  std::exception_ptr failed;
  bool aborted = false;
};

class RecordedGroup final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Handle = c10::intrusive_ptr<c10d::Work>;

  RecordedGroup(NcclRecorder& recorder, const std::vector<int64_t>& ranks, int64_t index,
                const std::string& key)
      : c10d::Backend(static_cast<int>(index), static_cast<int>(ranks.size())),
        recorder_(recorder),
        ranks_(ranks),
        role_(key.substr(0, key.find('/'))),
        group_(recorder.hub.Join(ranks, index, Nodes(ranks, 0), key)) {
    if (auto* device = SimulatedDevice::active()) {
      stream_ = c10::impl::VirtualGuardImpl(device->queue().type())
                    .getStreamFromGlobalPool(device->queue());
      device->Name(stream_->id(), "nccl");
    }
  }

  const std::string getBackendName() const override { return "recorded"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    coalesced_ = c10::make_intrusive<RecordedWork>();
    ++number_;
  }
  Handle endCoalescing() override {
    auto work = std::move(coalesced_);
    if (stream_) work->end = Event::Of(*stream_);
    return work;
  }

  Handle _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    return Begin("_allgather_base", out, in, out,
                 [&] { return group_->AllGather(out, in, Counts(getSize(), in.numel()), Info()); });
  }
  Handle allgather(std::vector<Tensors>& outs, Tensors& ins,
                   const c10d::AllgatherOptions&) override {
    Counts counts;
    for (const at::Tensor& t : outs[0]) counts.push_back(t.numel());
    const at::Tensor out =
        outs[0][0].as_strided({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, {1});
    return Begin("allgather", out, ins[0], out,
                 [&] { return group_->AllGather(out, ins[0], counts, Info()); });
  }
  Handle _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                              const c10d::ReduceScatterOptions& options) override {
    return Begin("_reduce_scatter_base", in, in, out, [&] {
      return group_->ReduceScatter(out, in, Op(options.reduceOp), Counts(getSize(), out.numel()),
                                   Info());
    });
  }
  Handle allreduce(Tensors& t, const c10d::AllreduceOptions& options) override {
    return Begin("allreduce", t[0], t[0], t[0],
                 [&] { return group_->AllReduce(t[0], Op(options.reduceOp), Info()); });
  }
  Handle broadcast(Tensors& t, const c10d::BroadcastOptions& options) override {
    return Begin("broadcast", t[0], t[0], options.rootRank == getRank() ? at::Tensor() : t[0],
                 [&] { return group_->Broadcast(t[0], options.rootRank, Info()); });
  }
  Handle alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& outs,
                       std::vector<int64_t>& ins, const c10d::AllToAllOptions&) override {
    return Begin("alltoall_base", in, in, out,
                 [&] { return group_->AllToAll(out, in, outs, ins, Info()); });
  }

 private:
  static ReduceOp Op(const c10d::ReduceOp& op) {
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
        return ReduceOp::kSum;
      case c10d::ReduceOp::MAX:
        return ReduceOp::kMax;
      case c10d::ReduceOp::MIN:
        return ReduceOp::kMin;
      case c10d::ReduceOp::PRODUCT:
        return ReduceOp::kProduct;
      default:
        throw std::runtime_error("a reduction that lins does not ask NCCL for");
    }
  }
  static OpInfo Info() {
    return {SimulatedDevice::active() ? SimulatedDevice::announced().second : "", "", ""};
  }

  Handle Begin(const std::string& op, const at::Tensor& counted, const at::Tensor& in,
               const at::Tensor& out, const std::function<std::unique_ptr<Pending>()>& launch) {
    NcclCall call{role_, ranks_, op, static_cast<int64_t>(counted.nbytes()),
                  coalesced_ ? number_ : 0};
    auto work = coalesced_ ? coalesced_ : c10::make_intrusive<RecordedWork>();
    if (stream_) {
      auto* device = SimulatedDevice::active();
      call.stream = device->CurrentName();
      const Event begun = Event::Here(device->queue());
      const c10::StreamGuard on(*stream_);
      begun.Wait();
      const auto& [what, unit] = SimulatedDevice::announced();
      NoteRead(in, what, unit);
      NoteWrite(out, what, unit);
      work->end = Event::Here(device->queue());
    }
    work->aborted = recorder_.aborted && recorder_.aborted(call);
    if (recorder_.failure) {
      if (const std::string what = recorder_.failure(call); !what.empty())
        work->failed = std::make_exception_ptr(std::runtime_error(what));
    }
    recorder_.Record(ranks_[getRank()], std::move(call));
    work->pending.push_back(launch());
    return work;
  }

  NcclRecorder& recorder_;
  const std::vector<int64_t> ranks_;
  const std::string role_;
  const std::unique_ptr<lins::Backend> group_;
  std::optional<c10::Stream> stream_;
  c10::intrusive_ptr<RecordedWork> coalesced_;
  int number_ = 0;
};

inline C10dGroups NcclRecorder::Groups() {
  return [this](const std::vector<int64_t>& ranks, int64_t index, const std::string& key,
                double) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<RecordedGroup>(*this, ranks, index, key);
  };
}

}  // namespace lins::testing
