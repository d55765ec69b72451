#include "comm/nccl.h"

#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "comm/c10d_backend.h"
#include "mesh/error.h"

namespace lins {

void CheckNccl() {
  if (c10::cuda::device_count() == 0) throw Error("NCCL needs a CUDA device, and there is none");
}

std::unique_ptr<Backend> ConnectNccl(const c10::intrusive_ptr<c10d::Store>& store,
                                     const std::vector<int64_t>& ranks, int64_t index,
                                     const std::string& key, double timeout_seconds) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  options->group_name = key;
  options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(key, store);
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      std::move(prefixed), static_cast<int>(index), static_cast<int>(ranks.size()),
      std::move(options));
  return MakeC10dBackend(std::move(group), index, c10::DeviceType::CUDA);
}

}  // namespace lins
