#include "dtensor/execute.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <mutex>
#include <utility>

#include "comm/order_checker.h"
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
  ~State() {
    // What the caller's stream allocated is let go when that stream comes after its last use.
    if (!inputs) return;
    try {
      launched.Wait();
    } catch (...) {  // nobody asks
    }
  }

  std::mutex mutex;  // held by the thread that waits
  std::shared_ptr<const PreparedPlan> plan;
  std::optional<PlanRun> run;  // none once finished
  Event launched;              // run is past Launch, by another thread; of a device: has ended
  at::Tensor result;
  std::exception_ptr error;
  // Of a device, until waited for: the caller's tensors, which another stream uses.
  std::optional<std::pair<at::Tensor, at::Tensor>> inputs;

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
  state_->launched.Wait();  // again: of a device the current stream waits
  state_->inputs.reset();
  return state_->result;
}

bool Execution::Done() const {
  if (!state_) return true;
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread waits for it
  return state_->launched.Done() && (!state_->run || state_->run->Done());
}

namespace {

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
  // What a device does in order needs no thread: all steps are queued at once. The result is
  // allocated by the caller's stream, which will let it go.
  const c10::Device queue = QueueOf(local.device());
  const bool device = last >= 0 && !queue.is_cpu();
  if (device && !out) out = at::empty(plan->steps().back().sizes, local.options());
  const auto state = std::make_shared<Execution::State>(
      plan, local, out, device ? World::Lane::kCaller : World::Lane::kBackground);
  if (device) state->inputs.emplace(local, *out);
  try {
    if (last < 0) {
      state->Finish();
    } else if (Stream& stream = mesh.world().Background(plan->role(), queue); device) {
      state->launched = stream.Run([state] {
        state->run->Launch();
        state->Finish();
      });
    } else if (last == 0 && stream.Idle()) {
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
