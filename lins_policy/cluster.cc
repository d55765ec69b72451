#include "lins_policy/cluster.h"

#include <cmath>

#include "mesh/error.h"

namespace lins {
namespace {

constexpr double kA100Flops = 312e12 * 0.6;
constexpr int64_t kMostRanks = 1 << 20;

}  // namespace

absl::Status Cluster::Validate() const {
  if (nodes < 1 || gpus_per_node < 1 || nodes > kMostRanks || gpus_per_node > kMostRanks ||
      nodes * gpus_per_node > kMostRanks) {
    return InvalidArgument("a cluster of ", nodes, " nodes x ", gpus_per_node,
                           " GPUs: legal are 1 to ", kMostRanks, " GPUs in all");
  }
  for (const auto& [what, bytes] :
       {std::pair<absl::string_view, int64_t>{"memory_bytes", memory_bytes},
        {"quota_bytes", usable_bytes()}}) {
    if (bytes < 1 || bytes > kMostMemory) {
      return InvalidArgument(what, "=", bytes, ": legal are 1 to ", kMostMemory);
    }
  }
  if (quota_bytes && *quota_bytes > memory_bytes) {
    return InvalidArgument("quota_bytes=", *quota_bytes,
                           " is more than memory_bytes=", memory_bytes);
  }
  for (const auto& [what, rate] :
       {std::pair<absl::string_view, double>{"flops_per_second", flops_per_second},
        {"host_bandwidth", host_bandwidth},
        {"memory_bandwidth", memory_bandwidth}}) {
    if (!std::isfinite(rate) || rate < 0) {
      return InvalidArgument(what, "=", rate, ": legal are 0 and more");
    }
  }
  if (!profile) return InvalidArgument("a cluster needs a profile");
  if (nodes > 1 && profile->gpus_per_node() != gpus_per_node) {
    return InvalidArgument("profile '", profile->name(), "' was measured on nodes of ",
                           profile->gpus_per_node(), " GPUs, and the cluster has nodes of ",
                           gpus_per_node);
  }
  if (nodes == 1 && gpus_per_node > profile->gpus_per_node()) {
    return InvalidArgument("profile '", profile->name(), "' knows nodes of up to ",
                           profile->gpus_per_node(), " GPUs, and the cluster has ", gpus_per_node);
  }
  LINS_ASSIGN_OR_RETURN(const Mesh mesh, DataParallelMesh());
  if (mesh.shape()[0] > 1 && profile->nodes() == 1) {
    return InvalidArgument("profile '", profile->name(),
                           "' was measured on one node, and says nothing of collectives between ",
                           "the cluster's ", nodes, " nodes");
  }
  return absl::OkStatus();
}

double Cluster::flops() const {
  if (flops_per_second > 0) return flops_per_second;
  const double measured = profile->compute().flops_per_second;
  return measured > 0 ? measured : kA100Flops;
}

absl::StatusOr<Mesh> Cluster::DataParallelMesh() const {
  if (tensor_parallel < 1 || gpus_per_node % tensor_parallel != 0) {
    return InvalidArgument("tensor_parallel=", tensor_parallel, " does not divide the ",
                           gpus_per_node, " GPUs of a node");
  }
  if (pipeline_parallel < 1 || nodes % pipeline_parallel != 0) {
    return InvalidArgument("pipeline_parallel=", pipeline_parallel, " does not divide the ", nodes,
                           " nodes");
  }
  return Mesh::Create({nodes / pipeline_parallel, gpus_per_node / tensor_parallel},
                      {"node", "gpu"});
}

}  // namespace lins
