// One execution of a prepared plan, in two halves: up to the start of its last collective, and the
// rest.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "comm/communicator.h"
#include "dtensor/prepared_plan.h"

namespace lins {

// Invariant: steps [0, at_) are done and value_ is the result of the last of them, or the input;
// with in_flight_, step at_ has begun and next_ is where its result will be.
class PlanRun {
 public:
  // `local` is contiguous and has the source's local shape. `out`: where the result goes (see
  // ExecuteOptions). The plan outlives the run.
  PlanRun(const PreparedPlan& plan, at::Tensor local, std::optional<at::Tensor> out,
          World::Lane lane);

  // Blocks for one step. In place of Launch; Finish then gives the result.
  void Step();
  // Blocks for all collectives but the last, which it starts.
  void Launch();
  // Blocks for the rest and returns the result. After Launch.
  at::Tensor Finish();
  // Whether Finish would not wait for other ranks. After Launch.
  bool Done() const { return work_.Done(); }

 private:
  void Begin();  // step at_
  void End();
  at::Tensor Target(const PreparedStep& step);
  void Local(const PreparedStep& step);
  void BeginGather(const PreparedStep& step);
  void BeginScatter(const PreparedStep& step);
  void BeginExchange(const PreparedStep& step);
  at::Tensor Buffer(int64_t numel);
  int64_t Room() const;  // bytes that the run may take yet, by what its plan has alive at most
  Communicator& Comm() const { return plan_.Comm(at_, lane_); }

  const PreparedPlan& plan_;
  const World::Lane lane_;
  std::optional<at::Tensor> out_;
  at::Tensor value_, next_;
  bool own_value_ = false, own_next_ = false;  // a buffer of plan_.staging()
  at::Tensor packed_, staged_;  // of the step in flight: what is sent and received, by member
  Work work_;
  size_t at_ = 0;
  bool in_flight_ = false;
};

}  // namespace lins
