#include "runtime/paper_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace lins {
namespace {

// Waits for all, also after one has failed: the others still use the tensor.
void WaitAll(std::vector<Work>& works) {
  std::exception_ptr error;
  for (Work& w : works) {
    try {
      w.Wait();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

void AllReduceInBuckets(const RedistributionPlan& plan, int64_t bucket_bytes,
                        const at::Tensor& tensor, const LiveMesh& mesh, const std::string& unit) {
  if (plan.steps.empty() || plan.steps[0].kind != StepKind::kAllReduce) return;
  const Axes& axes = plan.steps[0].axes;
  Communicator& comm = mesh.Comm(axes, Role::kReduce);
  const OpInfo info{unit, mesh.AxesToString(axes), ""};
  const int64_t size = tensor.element_size(), n = tensor.numel();
  const int64_t bucket = std::max<int64_t>(1, bucket_bytes / size);
  std::vector<Work> works;
  for (int64_t at = 0; at < n; at += bucket) {
    works.push_back(
        comm.AllReduce(tensor.narrow(0, at, std::min(bucket, n - at)), ReduceOp::kSum, info));
  }
  WaitAll(works);
}

void BroadcastSlots(const RedistributionPlan& plan, const at::Tensor& tensor, const LiveMesh& mesh,
                    const std::string& unit) {
  if (plan.steps.empty()) return;
  const Axes& axes = plan.steps[0].axes;
  Communicator& comm = mesh.Comm(axes, Role::kUpdate);
  const OpInfo info{unit, mesh.AxesToString(axes), ""};
  const int64_t slot = tensor.numel() / comm.size();
  std::vector<Work> works;
  std::optional<Communicator::Group> together(comm);
  for (int64_t owner = 0; owner < comm.size(); ++owner) {
    works.push_back(comm.Broadcast(tensor.narrow(0, owner * slot, slot), owner, info));
  }
  together.reset();
  WaitAll(works);
}

}  // namespace lins
