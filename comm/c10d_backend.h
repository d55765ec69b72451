// Transport over the collectives of any c10d::Backend, for those that have all of them: NCCL first.
#pragma once

#include <cstdint>
#include <memory>

#include "c10/util/intrusive_ptr.h"
#include "comm/backend.h"

namespace c10d {
class Backend;
}

namespace lins {

// Wait has the semantics of c10d's: on a device it makes the current stream wait, not the host, and
// the group's own watchdog enforces the time-out. Barrier does block the host. Equal parts use the
// group's reductions, sum, min, max and product; averages are sums divided afterwards.
// Reduce-scatters of unequal parts are an all-to-all and a sum in rank order, accumulated in float
// for half and bfloat16.
std::unique_ptr<Backend> MakeC10dBackend(c10::intrusive_ptr<c10d::Backend> group, int64_t index,
                                         c10::DeviceType device);

}  // namespace lins
