// What a transport implements. Callers use Communicator, which has checked every argument: tensors
// are contiguous, counts are complete and fit, the group has at least two ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "c10/core/DeviceType.h"
#include "comm/communicator.h"

namespace lins {

// A started operation. Wait returns when it is complete, or throws std::exception: time-out or
// failure. It is called once, not at the same time as Done. An operation that is dropped without
// Wait still takes part, so that the other ranks complete.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void Wait(double timeout_seconds) = 0;
  virtual bool Done() = 0;
  // After Wait, where the transport is asynchronous: has it run? Throws what it failed with.
  virtual bool Confirmed() { return true; }
};

// `info` tells whom an operation serves: transports that see what other ranks call refuse to pair
// operations of different units.
class Backend {
 public:
  virtual ~Backend() = default;
  // Where tensors must be.
  virtual c10::DeviceType device() const { return c10::DeviceType::CPU; }
  // Whether Wait may return before the operation has run, so that it may fail later: Confirmed
  // tells.
  virtual bool asynchronous() const { return false; }
  // Operations that begin between the two may start together, at the end. They are waited for
  // afterwards; what fails at the end fails them.
  virtual void BeginGroup() {}
  virtual void EndGroup() {}
  // Each call starts the operation and returns at once where the transport can.
  virtual std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                             const Counts& counts, const OpInfo& info) = 0;
  virtual std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in,
                                                 ReduceOp op, const Counts& counts,
                                                 const OpInfo& info) = 0;
  virtual std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op,
                                             const OpInfo& info) = 0;
  virtual std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                            const Counts& out_counts, const Counts& in_counts,
                                            const OpInfo& info) = 0;
  virtual std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                             const OpInfo& info) = 0;
  virtual std::unique_ptr<Pending> Barrier(const OpInfo& info) = 0;
  // See Communicator.
  virtual std::vector<int64_t> SentBytes() const { return {}; }
};

}  // namespace lins
