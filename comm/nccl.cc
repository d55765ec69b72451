#include "comm/nccl.h"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "mesh/error.h"

namespace lins {

void CheckNccl() {
  if (c10::cuda::device_count() == 0) throw Error("NCCL needs a CUDA device, and there is none");
}

namespace {

// While one lives, groups that are made abort what has failed, so that streams go on, and keep
// errors for who asks. c10d's default ends the process, and with it what we have to say about the
// operation. It is read from the environment by each group, and others than ours keep theirs.
class KeepErrors {
 public:
  KeepErrors() : lock_(Mutex()), set_(std::getenv(kName) == nullptr) {
    if (set_) setenv(kName, std::to_string(c10d::CleanUpOnly).c_str(), /*overwrite=*/1);
  }
  ~KeepErrors() {
    if (set_) unsetenv(kName);
  }

 private:
  static constexpr const char* kName = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  static std::mutex& Mutex() {
    static auto* const mutex = new std::mutex();
    return *mutex;
  }
  const std::lock_guard<std::mutex> lock_;
  const bool set_;
};

}  // namespace

// Each group has a communicator from its own rendezvous. ncclCommSplit would save that, but every
// rank of the parent takes part in a split, while groups are made by their members alone, when they
// first need them: ranks of other groups may make none, or others, at that time.
C10dGroups NcclGroups(c10::intrusive_ptr<c10d::Store> store, const std::string& prefix) {
  // Kernels of several communicators on one device start in the order of their calls, which is the
  // same on all ranks: none then holds what another one's peer waits for. NCCL 2.26 and newer.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  return [store = std::move(store), prefix](const std::vector<int64_t>& ranks, int64_t index,
                                            const std::string& key, double timeout_seconds) {
    const std::string name = prefix + "/" + key;
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
    options->group_name = name;
    options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
    const KeepErrors keep;
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(name, store), static_cast<int>(index),
        static_cast<int>(ranks.size()), std::move(options)));
  };
}

}  // namespace lins
