// The machines of a job: nodes of GPUs, their memory, and the profile of their links.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "lins_policy/model_spec.h"
#include "lins_policy/profile.h"

namespace lins {

// The most bytes that a GPU or a cap may have: far from where sums would overflow.
inline constexpr int64_t kMostMemory = int64_t{1} << 60;

// 0.8 of the 31.5 GB/s of PCIe generation 4 with 16 lanes.
inline constexpr double kAssumedHostBandwidth = 25e9;

struct Cluster {
  int64_t nodes = 1, gpus_per_node = 8;
  int64_t memory_bytes = 80LL << 30;   // of one GPU
  std::optional<int64_t> quota_bytes;  // what a scheduler lets the job use of it
  std::shared_ptr<const Profile> profile;
  // Of one GPU on the products of a training step. 0: the profile's, or that of an A100 or A800,
  // 312e12 at an efficiency of 0.6.
  double flops_per_second = 0;
  // Given, not searched: they divide units and activations and shrink the data-parallel mesh.
  int64_t tensor_parallel = 1, pipeline_parallel = 1;
  // Bytes per second between a GPU and the memory of its host, both ways together. 0: not measured;
  // that of PCIe generation 4 with 16 lanes is assumed.
  double host_bandwidth = 0;
  // Of a GPU's own memory, as an optimizer uses it: 1.6e12 on an A100 or A800 (0.8 of what its data
  // sheet says). 0: the optimizer's seconds are not counted.
  double memory_bandwidth = 0;

  absl::Status Validate() const;
  // What a plan may use of a GPU: the quota when there is one, not the card.
  int64_t usable_bytes() const { return quota_bytes.value_or(memory_bytes); }
  double flops() const;
  double host_bytes_per_second() const {
    return host_bandwidth > 0 ? host_bandwidth : kAssumedHostBandwidth;
  }
  double overlap_slowdown() const { return profile->compute().overlap_slowdown; }
  // The data-parallel mesh (node, gpu). Errors: tensor parallelism that does not divide a node,
  // pipeline parallelism that does not divide the nodes.
  absl::StatusOr<Mesh> DataParallelMesh() const;
};

}  // namespace lins
