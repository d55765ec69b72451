#include "dtensor/execute.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <mutex>
#include <utility>

#include "comm/stream.h"
#include "comm/trace.h"
#include "dtensor/plan_run.h"

namespace lins {

at::Tensor Execute(const PreparedPlan& plan, const at::Tensor& local,
                   std::optional<at::Tensor> out) {
  c10::NoGradGuard no_grad;
  PlanRun run(plan, local, std::move(out), World::Lane::kCaller);
  run.Launch();
  return run.Finish();
}

at::Tensor Execute(const RedistributionPlan& plan, const at::Tensor& local, const LiveMesh& mesh,
                   const ExecuteOptions& options) {
  return Execute(*PreparedPlan::Create(plan, mesh, options.role, options.unit), local, options.out);
}

struct Execution::State {
  State(std::shared_ptr<const PreparedPlan> p, const at::Tensor& local,
        std::optional<at::Tensor> out, World::Lane lane)
      : plan(std::move(p)), run(std::in_place, *plan, local, std::move(out), lane) {}

  std::mutex mutex;  // held by the thread that waits
  std::shared_ptr<const PreparedPlan> plan;
  std::optional<PlanRun> run;  // none once finished
  Event launched;              // run is past Launch, by another thread
  at::Tensor result;
  std::exception_ptr error;
  std::optional<c10::Event> ready;  // of a device: when `result` is there

  // The mutex is held.
  void Finish() {
    try {
      launched.Wait();
      c10::NoGradGuard no_grad;
      result = run->Finish();
    } catch (...) {
      error = std::current_exception();
    }
    run.reset();
  }
};

Execution::Execution(std::shared_ptr<State> state, std::shared_ptr<World> world)
    : state_(std::move(state)), world_(std::move(world)) {}

at::Tensor Execution::Wait() {
  if (!state_) return {};
  std::lock_guard lock(state_->mutex);
  if (state_->run) state_->Finish();
  if (state_->error) std::rethrow_exception(state_->error);
  if (state_->ready) {
    const c10::impl::VirtualGuardImpl device(state_->result.device().type());
    const c10::Stream current = device.getStream(state_->result.device());
    state_->ready->block(current);
    device.recordDataPtrOnStream(state_->result.storage().data_ptr(), current);
  }
  return state_->result;
}

bool Execution::Done() const {
  if (!state_) return true;
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread waits for it
  if (state_->ready && !state_->ready->query()) return false;
  if (!state_->run) return true;
  return state_->launched.Done() && state_->run->Done();
}

namespace {

// What a device does in order needs no thread: everything is queued on a stream of its own, which
// begins after the caller's and whose end Wait makes the caller's wait for.
void LaunchOnDevice(Execution::State& state, const at::Tensor& local,
                    const std::optional<at::Tensor>& out) {
  const c10::impl::VirtualGuardImpl device(local.device().type());
  const c10::Stream current = device.getStream(local.device());
  const c10::Stream side = device.getStreamFromGlobalPool(local.device(), /*isHighPriority=*/true);
  c10::Event begun(local.device().type());
  begun.record(current);
  begun.block(side);
  const c10::StreamGuard on(side);
  device.recordDataPtrOnStream(local.storage().data_ptr(), side);
  if (out) device.recordDataPtrOnStream(out->storage().data_ptr(), side);
  state.run->Launch();
  state.Finish();
  state.ready.emplace(local.device().type());
  state.ready->record(side);
}

// A collective that begins later, in another thread, is refused here, where the caller is seen.
void CheckAllowed(const PreparedPlan& plan, const at::Tensor& local) {
  const PreparedStep& step = plan.steps()[plan.last_communication()];
  if (step.group.size() == 1) return;
  TraceRecord record;
  record.op = step.info.op;
  record.unit = step.info.unit;
  record.axes = step.info.axes;
  record.role = std::string(RoleName(plan.role()));
  record.group = step.group;
  record.bytes = static_cast<int64_t>(local.nbytes());
  plan.world().context().CheckAllowed(record);
}

}  // namespace

Execution ExecuteAsync(std::shared_ptr<const PreparedPlan> plan, const at::Tensor& local,
                       const LiveMesh& mesh, std::optional<at::Tensor> out) {
  c10::NoGradGuard no_grad;
  const int last = plan->last_communication();
  if (last >= 0) CheckAllowed(*plan, local);
  const bool device = !local.is_cpu();
  const auto state = std::make_shared<Execution::State>(
      plan, local, out, device ? World::Lane::kCaller : World::Lane::kBackground);
  try {
    if (last < 0) {
      state->Finish();
    } else if (device) {
      LaunchOnDevice(*state, local, out);
    } else if (Stream& stream = mesh.world().Background(plan->role()); last == 0 && stream.Idle()) {
      state->run->Launch();  // nothing is before it, and it needs nobody to go on
    } else {
      state->launched = stream.Run([state] { state->run->Launch(); });
    }
  } catch (...) {
    state->error = std::current_exception();
    state->run.reset();
  }
  return Execution(state, mesh.world_ptr());
}

}  // namespace lins
