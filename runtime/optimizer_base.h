// What all optimizers over the optimizer-state shards of a sharded model share.
//
//   AdamW opt(model, {{.lr = 3e-4}}, {});
//   opt.Step();        // updates this rank's slices, then brings them to all ranks that hold them
//
// Collective: every rank steps. A parameter without gradient on every rank is left alone, its step
// count too. A gradient that is not finite anywhere skips the step everywhere.
//
// Where the model offloads OS, states are in host memory and a step goes through them in chunks
// (optimizer_pass.h), with the same bits. Memory for the chunks is taken before anything changes.
//
// A rule is one pass over runs: neighbours of a flat shard with the same options and step count,
// however many parameters they are.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"
#include "optim/slice.h"
#include "runtime/host_pass.h"
#include "runtime/sharded_model.h"

namespace lins {

// The group of each parameter by name; those that are absent belong to group 0.
using GroupOf = std::map<std::string, int>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;

  // False when the step was skipped. Without gradients since ZeroGrad nothing changes. Throws for
  // options that do not fit the states, before anything has changed.
  bool Step();
  int64_t skipped_steps() const { return skipped_; }

  // How masters are rounded to parameters of lower precision.
  void UseStochasticRounding(uint32_t seed);

  // The p-norm of each group's gradients (1, 2 or infinity), each element counted once, NaN where
  // one is not finite. Collective, one reduction.
  std::vector<double> GroupNorms(double p);

  // What a checkpoint holds of a parameter, in the order of the model. No communication; the
  // states of most rules share memory with the optimizer.
  struct Record {
    std::string name;
    int64_t updates = 0;
    std::vector<std::pair<std::string, DTensor>> states;
  };
  std::vector<Record> Records() const;
  // Takes over what another optimizer's records say; parameters that are absent start anew. Of a
  // state, this rank's part. Throws before anything has changed for names, states or sizes that
  // this optimizer does not have.
  struct Loaded {
    std::string name;
    int64_t updates = 0;
    std::vector<std::pair<std::string, at::Tensor>> parts;
  };
  void Load(const std::vector<Loaded>& loaded);

 protected:
  // Where a rule runs: in host memory, there and on devices that lins has kernels for, or wherever
  // torch does.
  enum class Place { kHost, kKernels, kAnywhere };
  // Names that the model does not have, or that are frozen, are errors; so is a model elsewhere.
  Optimizer(std::shared_ptr<ShardedModel> model, size_t groups, const GroupOf& group_of,
            Place runs = Place::kKernels);

  struct State {
    std::string name;
    OptimState data;          // the model shows it too
    std::vector<int64_t> at;  // by window: where its entries begin; -1: it has none by element
    int64_t block = 1;        // elements that share an entry
  };
  using Addresses = std::array<void*, 4>;  // of the states of a slot, in order; null: none
  struct Slot {
    FlatBuffer* buffer;
    std::vector<int> group;        // by window
    std::vector<int64_t> updates;  // so far, by window
    std::vector<State> states;     // in the order of Slice::state
  };
  struct Run {
    int group;
    int64_t step;   // of this update, from 1
    size_t window;  // the first
    Slice slice;
    Addresses states;
  };
  struct Piece;
  struct Touches;
  class Pass;
  using Used = std::vector<bool>;  // by window: does any rank have a gradient?

  // Adds a state of zeros for the windows that want it, of the masters' type.
  void AddState(Slot& slot, const std::string& name, const std::function<bool(size_t)>& wanted);
  // Adds one of zeros with an entry for each `block` elements of a window's part, from its first
  // on; lins::States leaves it out.
  void AddBlocks(Slot& slot, const std::string& name, at::ScalarType dtype, int64_t block);
  // Adds one that is no state by element, and which lins::States therefore leaves out.
  at::Tensor AddOther(Slot& slot, const std::string& name, at::Tensor zeros);
  bool offloads() const { return host_pass_ != nullptr; }
  // All of a window's part as the kernels see it, or [from, to) of the buffer. States in the order
  // of slot.states.
  Slice SliceOf(const Slot& slot, size_t window, int64_t from, int64_t to) const;
  Slice SliceOf(const Slot& slot, size_t window) const;

  // Throws for options that cannot be carried out.
  virtual void Check() const = 0;
  void CheckCount(size_t groups) const;  // as many as the optimizer was made with?
  // Before the slices are updated, with step counts moved on; where ranks talk to each other.
  virtual void UpdateTogether(const ShardedModel::GradSummary&) {}
  // Does the window take part in runs?
  virtual bool RunsOver(const Slot&, size_t) const { return true; }
  virtual void UpdateRun(Slot& slot, const Run& run) = 0;
  virtual void UpdateSlice(Slot& slot, const Used& used, Pass& pass);
  // A window's states for Records, and one of them back.
  virtual std::vector<std::pair<std::string, DTensor>> Export(const Slot& slot,
                                                              size_t window) const;
  virtual void Import(Slot& slot, size_t window, const std::string& state, const at::Tensor& part);

  // Slots whose OS is cut over the same axes, in order.
  std::vector<std::vector<size_t>> Teams() const;
  DTensor StatePart(const Slot& slot, size_t window, const at::Tensor& part) const;
  uint32_t RoundingKey(const Slot& slot, int64_t step) const;

  // Step in two halves: kReady says that step counts are moved on and gradients may be read.
  // `in_chunks`: passes will follow, for which there is memory then.
  enum class Outcome { kNothing, kSkipped, kReady };
  Outcome Begin(const ShardedModel::GradSummary** summary, bool in_chunks);

  std::shared_ptr<ShardedModel> model_;
  std::vector<Slot> slots_;
  bool merge_runs_ = true;  // false: a run never holds more than one window

 private:
  struct Whereabouts {
    size_t slot, window;
  };
  // Where the entries of [from, to) are in a state.
  struct Entries {
    int64_t first = 0, count = 0;
  };
  static Entries EntriesOf(const Slot& slot, const State& state, size_t window, int64_t from,
                           int64_t to);
  Piece PieceOf(const Slot& slot, size_t window, int64_t from, int64_t to) const;
  static void* AddressOf(const at::Tensor& values, int64_t at);
  at::TensorOptions StateOptions(const FlatBuffer& buffer) const;      // of the masters' type
  int64_t BlockBytes(const Slot& slot, const Touches& touches) const;  // of 256 elements in a chunk
  int64_t ChunkBytes() const;                                          // of the largest chunk

  std::unique_ptr<HostPass> host_pass_;        // where the model offloads
  std::map<std::string, Whereabouts> places_;  // of each parameter
  size_t groups_;
  int64_t skipped_ = 0;
  bool stochastic_ = false;
  uint32_t seed_ = 0;
};

}  // namespace lins
