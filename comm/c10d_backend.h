// Transport over the collectives of any c10d::Backend, for those that have all of them: NCCL first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10/core/DeviceType.h"
#include "c10/util/intrusive_ptr.h"

namespace c10d {
class Backend;
}

namespace lins {

class Backend;

// Makes the group of `ranks`, of which this one is the index-th. Ranks that pass the same key meet.
using C10dGroups = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::vector<int64_t>& ranks, int64_t index, const std::string& key,
    double timeout_seconds)>;

// Wait has the semantics of c10d's: on a device it makes the current stream wait, not the host, and
// the group's own watchdog enforces the time-out; Confirmed throws what it found. Barrier does
// block the host. Equal parts use the group's reductions, sum, min, max and product; averages are
// sums divided afterwards, so no reduction scales before it adds. Reduce-scatters of unequal parts
// are an all-to-all and a sum in rank order, accumulated in float for half and bfloat16. What
// begins within a group of operations is coalesced where c10d's group can, under one handle.
std::unique_ptr<Backend> MakeC10dBackend(c10::intrusive_ptr<c10d::Backend> group, int64_t index,
                                         c10::DeviceType device);

}  // namespace lins
