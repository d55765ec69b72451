// The parameters of one unit that share dtype and trainability, as one padded flat buffer, and this
// rank's part of their three states.
//
// Where P is cut, the whole buffer exists only while it is gathered: the parameters are views of
// one storage whose memory is lent by a pool, and reading them otherwise raises an error that says
// so. Where P is not cut the memory is permanent. OS's part of the parameters is a slice of P's
// part (or, with a lower-precision P, a master of its own); OS's part of the gradient is a slice of
// G's.
//
// While an update is on its way, the parameters of a buffer that is not cut cannot be read either:
// from StartUpdate to FinishUpdate reading them raises, instead of giving half of each.
//
// Not thread safe: one rank's methods are called by one thread at a time, except those named for
// streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/lanes.h"
#include "dtensor/live_mesh.h"
#include "dtensor/prepared_plan.h"
#include "lins_policy/unit_plan.h"
#include "runtime/buffer_pool.h"

namespace lins {

struct NamedParam {
  std::string name;
  at::Tensor param;  // a leaf; its data becomes a view of the buffer
};

struct StateTypes {
  at::ScalarType param, grad, reduce, master;
};

// A parameter's place in the buffer.
struct Window {
  std::string name;
  Shape shape;
  int64_t offset, numel;

  // What of it lies in a range of the buffer; where nothing does, begin and end are equal.
  Range PartIn(const Range& held) const;
};

// A state that an optimizer keeps: the parts of OS's slice that belong to some of the windows, one
// after another.
struct OptimState {
  at::Tensor values;
  std::vector<int64_t> at;  // by window: where its part begins in `values`; -1: it has none
};

class FlatBuffer {
 public:
  // Collective: every rank gets rank 0's values; with check_init it is an error when they differ.
  // The cost model, if any, chooses among redistributions; it is not kept.
  struct Options {
    StateTypes types;
    Family family = Family::kPlanned;
    int64_t bucket_bytes = kDefaultBucketBytes;
    bool check_init = false;
    const CostModel* cost_model = nullptr;
    bool offload = false;  // masters, and what optimizers keep, are in host memory
  };
  FlatBuffer(std::string unit, std::vector<NamedParam> params, const Policy& policy,
             const Options& options, const LiveMesh& mesh, std::shared_ptr<BufferPool> pool);
  ~FlatBuffer();
  FlatBuffer(const FlatBuffer&) = delete;

  const std::string& unit() const { return unit_; }
  const UnitPlan& plan() const { return plan_; }
  const StateTypes& types() const { return types_; }
  const std::vector<Window>& windows() const { return windows_; }
  const std::vector<at::Tensor>& params() const { return params_; }
  bool trainable() const { return trainable_; }
  bool offloads() const { return offload_; }
  int64_t padding() const { return plan_.total - numel_; }

  // --- P. Gather is for a stream; the rest for the rank's own thread. Gather waits for what it
  // takes memory from, and for values that came by StartUpdate or KeepBetween.
  bool NeedsGather() const { return !plan_.gather.steps.empty(); }
  void TakeMemory();     // before Gather: borrows memory for the whole buffer
  void Gather() const;   // fills it; collective over P's pieces
  void ReleaseMemory();  // gives it back; reading the parameters raises from here on
  // Where the plan leaves P between forward and backward: true when it stays whole; else
  // KeepBetween saves this rank's piece of the gathered values, from which Gather fills until
  // DropBetween.
  bool StaysWhole() const {
    return NeedsGather() && Product(plan_.policy.between) == 1 && !plan_.policy.between.empty();
  }
  void KeepBetween();
  void DropBetween() { between_lease_.reset(); }
  void WriteBack();  // keeps this rank's pieces of the gathered values, masters included
  bool HasMemory() const { return !NeedsGather() || lease_ != nullptr; }

  // --- G
  // Forgets gradients and accumulations; the first micro-batch of a step begins with it.
  void BeginStep();
  // Whether the next gradient will take memory for a contribution.
  bool StartsContribution() const { return Product(plan_.policy.grad) > 1 && !bucket_.defined(); }
  // Adds a gradient of parameter i to this micro-batch's contribution.
  void AddGradient(size_t i, const at::Tensor& grad);
  // True where AddGradient was called for parameter i since BeginStep.
  const std::vector<bool>& used() const { return used_; }
  // Ends the contribution of a micro-batch and hands out the stages that reduce it: to G, and after
  // the last one on to OS, divided by `divisor`. Every rank must run them, gradients or not. The
  // memory of the contribution is free after stage `freed`, if any.
  struct Reduction {
    std::vector<Stage> stages;
    std::optional<size_t> freed;
    // Of a device, whose stages are over for the host at once: kept by the caller for as long as
    // the memory shall not be taken for another contribution.
    std::shared_ptr<BufferPool::Lease> lease = nullptr;
  };
  Reduction FinishMicroBatch(bool last, double divisor);
  void DropContribution();  // after a failure

  // --- OS: this rank's slice of the padded buffer, [optim_begin, optim_begin + numel of it).
  int64_t optim_begin() const { return optim_begin_; }
  at::Tensor OptimParam() const;  // the masters, or P's slice: updated in place by optimizers
  at::Tensor OptimGrad() const;   // reduced and divided, after the last micro-batch
  // The part of a window that lies in the slice, in elements of the buffer.
  Range OptimPart(size_t window) const {
    return windows_[window].PartIn({optim_begin_, optim_begin_ + optim_numel_});
  }
  // Of the ranks that hold the same slice one counts, where all add up: is it this one?
  bool CountsOptim() const;
  // Where masters are copied to: this rank's slice of P, of its type. Undefined without masters.
  at::Tensor OptimCopy() const;
  // The optimizer has written the copy itself: the next StartUpdate leaves it as it is.
  void MarkCopied() { copied_ = true; }
  std::map<std::string, OptimState>& optim_state() { return optim_state_; }
  const std::map<std::string, OptimState>& optim_state() const { return optim_state_; }
  // Brings the updated slice into P of all ranks; collective. Gather comes after what was started.
  // FinishUpdate waits and makes the parameters readable (on a device: by the current stream).
  void StartUpdate(Lanes& lanes);
  void FinishUpdate();
  bool updating() const { return updating_; }

  // For the order checker of tests: compute begins or ends to use the parameters; the optimizer
  // has read its gradients and written its slice.
  void NoteCompute() const;
  void NoteOptimizer() const;

  const at::Tensor& param_shard() const { return param_; }
  const at::Tensor& grad_shard() const { return grad_; }
  const std::optional<at::Tensor>& master() const { return master_; }

 private:
  // From the pool; what for is said where there is none.
  std::shared_ptr<BufferPool::Lease> Borrow(int64_t nbytes, const char* what) const;
  struct Contribution;  // of a micro-batch, on its way to be reduced
  using Shared = std::shared_ptr<Contribution>;
  void LoadInitial(bool check_init);
  void Show();                        // the parameters are readable
  void Hide(const std::string& why);  // and they are not
  void ReducePlanned(const Shared& c, bool last, Reduction& out) const;
  void ReduceAsInPaper(const Shared& c, bool last, Reduction& out) const;
  // The stage of the paper's all-reduces that `plan` begins with.
  Stage SumStage(const RedistributionPlan& plan, const Shared& c) const;
  // Of this rank's slot of a buffer that is split like `held` the part that is its slot under
  // `wanted`, which refines it.
  at::Tensor Part(const at::Tensor& slot, const Layout& held, const Layout& wanted) const;
  at::Tensor Target(size_t i);  // where gradients of parameter i are collected

  std::string unit_;
  std::vector<Window> windows_;
  std::vector<at::Tensor> params_;
  bool trainable_, offload_;
  int64_t numel_;
  LiveMesh mesh_;
  std::shared_ptr<BufferPool> pool_;
  UnitPlan plan_;
  // Its redistributions, as this rank carries them out.
  std::shared_ptr<const PreparedPlan> gather_, regather_, scatter_, accumulate_, reduce_, update_;
  StateTypes types_;

  at::Tensor full_;   // 1-D view of the storage that the parameters are views of
  at::Tensor param_;  // P: memory that full_ shows where P is not cut
  bool updating_ = false;
  Event updated_;
  std::shared_ptr<BufferPool::Lease> lease_;

  std::shared_ptr<BufferPool::Lease> between_lease_;
  Event kept_between_;

  at::Tensor grad_;  // G, made by the first gradient
  std::optional<at::Tensor> master_;
  std::map<std::string, OptimState> optim_state_;
  bool copied_ = false;  // masters, since the last StartUpdate
  int64_t optim_begin_, optim_numel_;

  std::shared_ptr<BufferPool::Lease> bucket_lease_;
  at::Tensor bucket_;          // this micro-batch's contribution where G is cut
  std::vector<bool> arrived_;  // what has been written to it
  std::vector<bool> used_;     // gradients since BeginStep
  bool accumulating_ = false;  // G holds earlier micro-batches
};

}  // namespace lins
