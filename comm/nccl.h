// Groups over NCCL. nccl.cc needs a CUDA build of torch; no_nccl.cc takes its place elsewhere.
#pragma once

#include <string>

#include "c10/util/intrusive_ptr.h"
#include "comm/c10d_backend.h"

namespace c10d {
class Store;
}

namespace lins {

// Throws lins::Error where lins was built without CUDA or the machine has no device.
void CheckNccl();

// Groups of ranks that meet in a store under `prefix`, each on its current CUDA device.
// Communication kernels run on streams of high priority, so that compute does not starve them. What
// fails or exceeds the time-out is aborted by c10d's watchdog, and raised by lins: unless
// TORCH_NCCL_ASYNC_ERROR_HANDLING is set, the process goes on.
C10dGroups NcclGroups(c10::intrusive_ptr<c10d::Store> store, const std::string& prefix);

}  // namespace lins
