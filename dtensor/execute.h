// Runs a redistribution plan on this rank's local tensor.
//
//   auto prepared = PreparedPlan::Create(plan, mesh, Role::kGather, "block.0");   // once
//   Execute(*prepared, shard, whole);                                             // every step
//   Execution e = ExecuteAsync(prepared, shard, whole);  ...  e.Wait();
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "dtensor/live_mesh.h"
#include "dtensor/prepared_plan.h"
#include "placement/redistribution.h"

namespace lins {

// `local` is contiguous and has the source's local shape. Returns a contiguous tensor of the
// destination's local shape; it is `local` itself when the plan is empty and no `out` is given.
// `out`: where the result goes: contiguous, of the destination's local shape. It may share memory
// with `local` where the elements are the same ones (a shard that is gathered into, or reduced
// within, its own buffer). Shards that lie in order in a tensor are sent and received in place; all
// others through buffers that the mesh keeps. Collective over the groups of the plan's steps.
// Blocks until the result is there (on a device: until the current stream has it).
at::Tensor Execute(const PreparedPlan& plan, const at::Tensor& local,
                   std::optional<at::Tensor> out = std::nullopt);

// An execution in flight. Copies share it. Default-constructed: already done, without a result.
class Execution {
 public:
  struct State;
  Execution() = default;
  Execution(std::shared_ptr<State> state, std::shared_ptr<World> world);
  // Blocks until the result is there and returns it; on a device the current stream waits, not the
  // host. Throws what failed, on every rank. Waiting again returns or throws the same.
  at::Tensor Wait();
  // Without blocking: whether Wait would not block for other ranks; true also after a failure.
  bool Done() const;

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<World> world_;  // outlives what runs in it
};

// As Execute, but returns once the execution has begun: all its steps go on without the caller. The
// tensors must be left alone until it has been waited for. Ranks start the executions of one role
// in the same order; they keep it, also against each other, and never wait for what the caller does
// otherwise. Where one fails before its last collective has begun, later ones of the role fail as
// well. An execution that is dropped still takes part.
Execution ExecuteAsync(std::shared_ptr<const PreparedPlan> plan, const at::Tensor& local,
                       const LiveMesh& mesh, std::optional<at::Tensor> out = std::nullopt);

struct ExecuteOptions {
  Role role = Role::kOther;
  std::string unit;
  std::optional<at::Tensor> out;
};

// Prepares and executes: for what happens once.
at::Tensor Execute(const RedistributionPlan& plan, const at::Tensor& local, const LiveMesh& mesh,
                   const ExecuteOptions& options = {});

}  // namespace lins
