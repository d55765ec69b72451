#include "lins_policy/optimizer_time.h"

namespace lins {

OptimizerSeconds OptimizerSecondsOf(int64_t elements, const StateSizes& sizes, bool offload,
                                    double memory_bandwidth, double host_bandwidth) {
  const auto n = static_cast<double>(elements);
  OptimizerSeconds s;
  if (memory_bandwidth > 0) {
    s.optimizer = n * static_cast<double>(TouchedBytes(sizes)) / memory_bandwidth;
  }
  if (offload)
    s.offload = 2 * n * static_cast<double>(sizes.master + sizes.moments) / host_bandwidth;
  return s;
}

}  // namespace lins
