// Transport over NCCL. nccl.cc needs a CUDA build of torch; no_nccl.cc takes its place elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "comm/backend.h"

namespace c10d {
class Store;
}

namespace lins {

// Throws lins::Error where lins was built without CUDA or the machine has no device.
void CheckNccl();

// Connects the ranks that pass the same key, each on its current CUDA device. Collective among
// them. Communication kernels run on streams of high priority, so that compute does not starve
// them.
std::unique_ptr<Backend> ConnectNccl(const c10::intrusive_ptr<c10d::Store>& store,
                                     const std::vector<int64_t>& ranks, int64_t index,
                                     const std::string& key, double timeout_seconds);

}  // namespace lins
