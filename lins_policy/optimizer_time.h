// Seconds of the optimizer itself, and optimizer states in host memory.
//
// Offloaded, OS is in host memory and an update goes through it in chunks: while one is updated on
// the device, the next is copied in and the one before is copied back (runtime/host_pass.h). So the
// device holds no more than the chunks, and an update takes the longer of its two parts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lins_policy/unit_plan.h"

namespace lins {

inline constexpr int64_t kOffloadBuffers = 3;  // one chunk on its way in, one at work, one out
inline constexpr int64_t kDefaultOffloadChunkBytes = 32LL << 20;

// Bytes of the device for chunks of states that take `os_bytes` before they are cut.
inline int64_t StagingBytes(int64_t os_bytes, int64_t chunk_bytes) {
  return kOffloadBuffers * std::min(os_bytes, chunk_bytes);
}

// What an elementwise rule reads and writes of the device's memory, per parameter: moments and
// masters both ways (the parameter itself where it has no master), the gradient once, and the
// parameter written from its master. Rules with passes of their own (Adafactor, Muon) touch more.
inline int64_t TouchedBytes(const StateSizes& sizes) {
  const int64_t both = sizes.moments + (sizes.master > 0 ? sizes.master : sizes.param);
  return 2 * both + sizes.grad + (sizes.master > 0 ? sizes.param : 0);
}

// Of the update of `elements` parameters on one rank. Bandwidths in bytes per second; the memory's
// may be 0: not counted. The link to the host carries what comes in and what goes out.
struct OptimizerSeconds {
  double optimizer = 0;  // over the device's memory
  double offload = 0;    // over the link to the host
  double longer() const { return std::max(optimizer, offload); }
};
OptimizerSeconds OptimizerSecondsOf(int64_t elements, const StateSizes& sizes, bool offload,
                                    double memory_bandwidth, double host_bandwidth);

}  // namespace lins
