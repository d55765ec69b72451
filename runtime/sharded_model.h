// A model whose units' states are placed by a plan: the executor of training steps.
//
//   auto model = ShardedModel::Create(mesh, {{"", root_params, policy}, {"layers.0", ...}}, {});
//   model->BeginMicroBatch(0, 2);
//   at::Tensor y = model->Call(1, {x}, [&](auto in) { return block->forward(in[0]); });
//
// From Python, hooks call PreForward, EnterUnit, LeaveUnit, PostForward around each module's
// forward. The rest follows from autograd: a unit is gathered when a gradient reaches its outputs,
// and its own gradients are reduced when one has reached its inputs, or else at the end of the
// backward.
//
// On a device all of this is queued: hooks run ahead of it, and streams wait for each other by
// events (comm/stream.h). Forward and backward are called on one stream, which is the one to read
// parameters and gradients on.
//
// Order. Collectives of one role run on one stream. Gathers follow the order in which units
// compute. Reductions follow the static order (units from last to first, the root at the end)
// whatever order gradients come in, so that all ranks agree even when they use different
// parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/lanes.h"
#include "dtensor/dtensor.h"
#include "lins_policy/optimizer_time.h"
#include "runtime/flat_buffer.h"

namespace lins {

struct UnitSpec {
  std::string name;  // of the module; "" for the root, which holds what no other unit does
  std::vector<NamedParam> params;
  Policy policy;
  // For parameters on the meta device: called once, when the unit is about to be cut; returns them
  // with memory and values, in the order of `params`. So one unit at a time is whole.
  std::function<std::vector<at::Tensor>()> materialize = {};
};

struct ShardOptions {
  // Communicate while computing; false: every collective is waited for where it starts.
  bool overlap = true;
  int prefetch = 1;  // units gathered ahead
  // Contributions of units, the root aside, alive at once: one fills while others are reduced.
  int gradient_buckets = 2;
  // With overlap: bring updated parameters to other ranks during the next forward; false: Step
  // waits.
  bool overlap_update = true;
  Family family = Family::kPlanned;
  int64_t bucket_bytes = kDefaultBucketBytes;  // of family paper's all-reduces
  // An error when ranks' initial values differ, instead of rank 0's for all.
  bool check_init = false;
  // Default: the parameter's own.
  std::optional<at::ScalarType> param_dtype = {}, grad_dtype = {}, reduce_dtype = {};
  // Chooses among redistributions, as it did for the plan; null: the fewest received bytes.
  std::shared_ptr<const CostModel> cost_model = nullptr;
  // OS, masters included, in host memory: optimizers update it in chunks of so many bytes
  // (host_pass.h). Where P's slice is the master, it stays where P is.
  bool offload_optimizer = false;
  int64_t offload_chunk_bytes = kDefaultOffloadChunkBytes;
};

// The distributed states of one parameter. What does not exist (yet) is absent.
struct ParamState {
  DTensor param;
  std::optional<DTensor> grad, master;
  std::vector<std::pair<std::string, DTensor>> optim;  // exp_avg, exp_avg_sq, ...
};

// A window's part of this rank's slot of a buffer that is split like `buffer_layout`, as a DTensor:
// `part` is 1-D. Under R the window keeps its shape, otherwise it is flat.
DTensor WindowPart(const Window& w, const Layout& buffer_layout, const at::Tensor& part,
                   const LiveMesh& mesh);

class ShardedModel : public std::enable_shared_from_this<ShardedModel> {
 public:
  // Unit 0 is the root. Collective. Parameters become views of flat buffers, with rank 0's values.
  // An error on every rank when ranks disagree about units, parameters, policies or options.
  static std::shared_ptr<ShardedModel> Create(LiveMesh mesh, std::vector<UnitSpec> units,
                                              ShardOptions options);
  ~ShardedModel();

  // --- Forward of one unit. PreForward returns with its parameters complete; PostForward frees
  // them again unless a backward or a reader needs them.
  void PreForward(int unit);
  void PostForward(int unit);
  // Around the unit's tensors: EnterUnit returns the same inputs with the end of the unit's
  // backward marked, after which it may be reduced and freed; LeaveUnit marks the outputs, where
  // its backward begins.
  std::vector<at::Tensor> EnterUnit(int unit, const std::vector<at::Tensor>& inputs);
  void LeaveUnit(int unit, const std::vector<at::Tensor>& outputs);
  // All four around fn(inputs) -> output.
  at::Tensor Call(int unit, std::vector<at::Tensor> inputs,
                  const std::function<at::Tensor(const std::vector<at::Tensor>&)>& fn);

  // --- Micro-batches: `index` of `count` backwards makes up a step. Index 0 discards what an
  // unfinished step left. Without a call each backward is a step of its own. The summed gradient is
  // divided by `divisor`, by default ranks * count.
  void BeginMicroBatch(int64_t index, int64_t count, std::optional<double> divisor = std::nullopt);
  void EndMicroBatch();

  // --- Gradients of the finished step
  bool GradientsReady() const { return grads_ready_; }
  void ZeroGrad();
  // Throws unless a step's micro-batches are complete, or none has begun.
  void CheckComplete() const;

  struct GradSummary {
    double norm_type = 2;
    double norm = 0;     // of all gradients, each shard counted once; NaN when not finite
    bool finite = true;  // everywhere
    // By trainable buffer and window: has any rank a gradient?
    std::vector<std::vector<bool>> used;
  };
  // Collective, one small reduction; remembered until the gradients change. p: 1, 2 or infinity;
  // absent: a summary with any norm will do.
  const GradSummary& SummarizeGradients(std::optional<double> p = std::nullopt);
  // Scales the gradients to a norm of at most max_norm and returns the norm before. Collective.
  double ClipGradNorm(double max_norm, double p);
  // Multiplies the gradients. Optimizers do it while they update, without a pass of its own: until
  // then, or until somebody looks, the factor is pending.
  void ScaleGradients(double factor);
  double pending_scale() const { return grad_scale_; }
  void ApplyGradientScale() const;

  // --- Reading and writing whole parameters of some units. Collective. Nestable.
  void Unshard(const std::vector<int>& units);
  void Reshard(const std::vector<int>& units, bool writeback);

  // Every parameter by name, or those of one unit. No communication, but updates under way are
  // waited for.
  std::vector<std::pair<std::string, ParamState>> States(std::optional<int> unit = std::nullopt);

  struct Memory {
    int64_t param = 0, grad = 0, optim = 0;  // persistent bytes of this rank, padding included
    int64_t optim_host = 0;                  // of OS, in host memory
    int64_t padding = 0;                     // of param, in bytes
    BufferPool::Stats buffers;
  };
  Memory MemoryUse() const;

  // --- For optimizers
  struct Unit {
    std::string name;
    std::vector<std::unique_ptr<FlatBuffer>> buffers;
    // Forward
    int depth = 0;  // forwards under way
    int pins = 0;   // Unshard without Reshard
    Event gathered;
    // Backward
    int uses = 0;  // forwards whose backward has not ended
    bool in_backward = false;
    bool finished = false;    // contribution handed to the reduce stream in this backward
    bool complete = false;    // nothing more will come in this backward
    bool unrecorded = false;  // recomputed by a reentrant checkpoint: complete only at the end
  };
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  std::vector<FlatBuffer*> TrainableBuffers() const;  // in forward order
  int UnitIndex(const std::string& name) const;       // throws for a name that no unit has
  const LiveMesh& mesh() const { return mesh_; }
  const ShardOptions& options() const { return options_; }
  const std::shared_ptr<BufferPool>& pool() const { return pool_; }
  // A step of an optimizer: BeginUpdate; for every buffer in the order of TrainableBuffers change
  // OS's slice and LaunchUpdate; EndUpdate. What was updated reaches P of all ranks beside what the
  // caller does next; who reads a parameter waits: a unit's forward, Unshard, States,
  // FinishUpdates.
  void BeginUpdate();
  void LaunchUpdate(FlatBuffer& buffer);
  void EndUpdate();
  // Waits for the updates of one unit, or of all.
  void FinishUpdates(int unit);
  void FinishUpdates();
  bool Updating() const;
  int64_t steps() const { return steps_; }
  // Communicator of all ranks for small agreements.
  Communicator& WorldComm() const;

 private:
  ShardedModel(LiveMesh mesh, ShardOptions options);
  void BuildUnits(std::vector<UnitSpec> units);
  std::string Collectives() const;
  void ConnectGroups();
  void WatchGradients(int unit, FlatBuffer& buffer);

  void Drain();
  // Before parameters are read by a gather: what the caller has written to them between steps (the
  // optimizer, a checkpoint) comes before.
  void BeginReading(int unit);
  void NoteCompute(const Unit& unit) const;
  void LaunchGather(Unit& unit);
  void EnsureGathered(Unit& unit);
  void Prefetch(int from, int direction);
  void ReleaseIfIdle(Unit& unit);

  void OnBackwardStart();       // first hook of a backward
  void PreBackward(int unit);   // a gradient has reached the unit's outputs
  void PostBackward(int unit);  // one has reached its inputs
  void OnGradient(int unit, FlatBuffer& buffer, size_t param, at::Tensor& grad);
  void LaunchReductions();  // of complete units, as far as the static order allows
  void FinishBackward();
  void RecoverFromFailure();  // a backward that never ended
  void LaunchCountCheck();    // do all ranks have the same number of micro-batches?
  void FinishCountCheck();    // throws where they do not
  void Register();            // with the rank's context
  bool Verifying() const;

  LiveMesh mesh_;
  ShardOptions options_;
  int executor_ = -1;  // of the rank's context
  int64_t steps_ = 0;  // of an optimizer, so far
  std::shared_ptr<BufferPool> pool_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<int> reduce_order_;

  int64_t index_ = 0, count_ = 1;  // micro-batch under way
  int64_t expected_ = 0;           // index that comes next
  std::optional<double> divisor_;
  bool explicit_micro_batch_ = false;
  bool grads_ready_ = false;
  std::optional<GradSummary> summary_;
  mutable double grad_scale_ = 1;  // pending

  Event written_;  // for the next gather to wait for

  bool in_backward_ = false;
  size_t next_to_reduce_ = 0;  // in reduce_order_
  std::vector<Event> reductions_;
  std::optional<c10::Stream> gradient_stream_;  // of a device: where gradients are added
  // By unit in the order of reduction: when the contribution's memory is free. On a device the
  // lease waits here, so that as many contributions as allowed are in flight.
  struct Freed {
    Event event;
    std::vector<std::shared_ptr<BufferPool::Lease>> leases;
  };
  std::vector<Freed> freed_;
  std::vector<std::shared_ptr<void>> grad_hooks_;
  at::Tensor counts_in_, counts_out_, counts_;  // the last one on the host
  Event counts_checked_;
  bool counts_pending_ = false;

  std::unique_ptr<class Verification> verification_;

  // Last: their threads end before what their tasks use.
  std::shared_ptr<Stream> gather_stream_;
  std::shared_ptr<Lanes> reduce_lanes_, update_lanes_;
  std::shared_ptr<Stream> other_stream_;
};

}  // namespace lins
