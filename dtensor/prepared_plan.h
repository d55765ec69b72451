// A redistribution plan as one rank carries it out: what does not depend on the values, worked out
// once. Executions of a prepared plan allocate nothing but their results, and not even those where
// they are given (execute.h).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "dtensor/live_mesh.h"
#include "dtensor/region.h"
#include "dtensor/staging.h"
#include "placement/redistribution.h"

namespace lins {

struct PreparedStep {
  // The group's pieces of a local tensor, by member.
  struct Pieces {
    std::vector<Region> regions;
    Counts counts;
    int64_t numel = 0;
    bool in_order = true;  // they lie one after another and fill the tensor: nothing to pack
  };

  StepKind kind;
  OpInfo info;
  std::vector<int64_t> group;
  ReduceOp op = ReduceOp::kSum;  // that is reduced or begun
  std::vector<int64_t> sizes;    // of the result
  int64_t numel = 0;             // elements of it
  // Where the result goes: into the plan's own result, over the input, or into a buffer.
  enum class Target { kResult, kInput, kBuffer } target = Target::kBuffer;

  Pieces send;                  // of the input: reduce_scatter and the exchanges
  Pieces recv;                  // of the result: all_gather and the exchanges
  Region from, into;            // slice and local: the same elements in the input and in the result
  bool contributes = true;      // local: this rank's elements are not another's replicas
  int64_t root = 0, index = 0;  // broadcast: of the owner, and of this rank
  bool communicates() const { return kind != StepKind::kSlice && kind != StepKind::kLocal; }
};

class PreparedPlan {
 public:
  // The mesh outlives the prepared plan. Not collective.
  static std::shared_ptr<const PreparedPlan> Create(const RedistributionPlan& plan,
                                                    const LiveMesh& mesh, Role role,
                                                    std::string unit = "");

  const Layout& src() const { return src_; }
  const Layout& dst() const { return dst_; }
  int64_t itemsize() const { return itemsize_; }
  Role role() const { return role_; }
  const std::vector<PreparedStep>& steps() const { return steps_; }
  const std::vector<int64_t>& src_sizes() const { return src_sizes_; }
  // The elements that this rank has alive at once, at most (LiveBytes).
  int64_t live_numel() const { return live_numel_; }
  World& world() const { return *world_; }
  Staging& staging() const { return *staging_; }
  // The index of the last step that communicates; -1: none does.
  int last_communication() const { return last_communication_; }
  // Of a step's group; made by its first use, which is collective.
  Communicator& Comm(size_t step, World::Lane lane) const;

 private:
  PreparedPlan(const RedistributionPlan& plan, const LiveMesh& mesh, Role role);

  Layout src_, dst_;
  int64_t itemsize_;
  Role role_;
  World* world_;
  std::shared_ptr<Staging> staging_;
  std::vector<PreparedStep> steps_;
  std::vector<int64_t> src_sizes_;
  int64_t live_numel_;
  int last_communication_ = -1;
  using Comms = std::array<std::atomic<Communicator*>, 2>;  // by lane
  mutable std::vector<Comms> comms_;
};

}  // namespace lins
