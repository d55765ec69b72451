// Profiles worked out from link speeds (docs/profile.md has the formula).
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "lins_policy/profile.h"
#include "lins_policy/profile_meshes.h"
#include "mesh/error.h"

namespace lins {
namespace {

// What an operation on v bytes moves, in multiples of v: into one rank from its own node, and over
// a node's NICs for all of its sibling groups; and how often each link's latency is paid.
struct Volumes {
  double intra, inter, intra_hops, inter_hops;
};

Volumes VolumesOf(StepKind op, double gpus, double nodes, double gpus_per_node) {
  const double ranks = gpus * nodes, siblings = gpus_per_node / gpus;
  Volumes v{(ranks - 1) / ranks, siblings * (nodes - 1) / nodes, gpus - 1, nodes - 1};
  switch (op) {
    case StepKind::kAllReduce:  // a reduce-scatter and an all-gather
      v = {2 * v.intra, 2 * v.inter, 2 * v.intra_hops, 2 * v.inter_hops};
      break;
    case StepKind::kBroadcast:
      v.intra = 1, v.inter = siblings;
      break;
    case StepKind::kAllToAll:  // v is what each of the node's ranks sends
      v.intra = (gpus - 1) / ranks, v.inter = gpus_per_node * (nodes - 1) / nodes;
      break;
    default:
      break;
  }
  if (gpus == 1) v.intra = 0;
  if (nodes == 1) v.inter = 0;
  return v;
}

double ModelSeconds(StepKind op, double bytes, int64_t gpus, int64_t nodes, const LinkModel& l) {
  const Volumes v = VolumesOf(op, gpus, nodes, l.gpus_per_node);
  return v.intra_hops * l.intra_latency + v.inter_hops * l.inter_latency +
         std::max(v.intra * bytes / l.intra_bandwidth, v.inter * bytes / l.inter_bandwidth);
}

absl::Status CheckLinks(const LinkModel& l) {
  if (l.gpus_per_node < 1 || l.nodes < 1 || l.gpus_per_node > 1024 || l.nodes > (1 << 20)) {
    return InvalidArgument("a cluster of ", l.gpus_per_node, " GPUs per node x ", l.nodes,
                           " nodes: legal are 1 to 1024 x 1 to 1048576");
  }
  if (l.gpus_per_node * l.nodes == 1) {
    return InvalidArgument("a cluster of one GPU has no collectives to model");
  }
  const std::pair<const char*, double> bandwidths[] = {{"intra_bandwidth", l.intra_bandwidth},
                                                       {"inter_bandwidth", l.inter_bandwidth}};
  for (const auto& [name, x] : bandwidths) {
    if (!(x >= 1e6 && x <= 1e18)) {
      return InvalidArgument(name, " is ", x, " bytes per second: legal are 1e6 to 1e18");
    }
  }
  const std::pair<const char*, double> latencies[] = {{"intra_latency", l.intra_latency},
                                                      {"inter_latency", l.inter_latency}};
  for (const auto& [name, x] : latencies) {
    if (!(x >= 1e-9 && x <= 10)) {
      return InvalidArgument(name, " is ", x, " seconds: legal are 1e-9 to 10");
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

}  // namespace

absl::StatusOr<Profile> Profile::Model(const LinkModel& links) {
  LINS_RETURN_IF_ERROR(CheckLinks(links));
  std::vector<ProfileCurve> curves;
  for (StepKind op : kProfileOperations) {
    for (int64_t nodes : Divisors(links.nodes)) {
      for (int64_t gpus : Divisors(links.gpus_per_node)) {
        if (gpus * nodes == 1) continue;
        ProfileCurve curve{op, gpus, nodes, {}};
        for (int shift = 0; shift <= 40; shift += 2) {  // 1 byte to 1 TiB
          const int64_t bytes = int64_t{1} << shift;
          const double seconds = ModelSeconds(op, bytes, gpus, nodes, links);
          curve.points.push_back({bytes, seconds, 0, 0, 1, "model"});
        }
        curves.push_back(std::move(curve));
      }
    }
  }
  std::map<std::string, std::string> environment = {
      {"intra_bandwidth", absl::StrCat(links.intra_bandwidth)},
      {"inter_bandwidth", absl::StrCat(links.inter_bandwidth)},
      {"intra_latency", absl::StrCat(links.intra_latency)},
      {"inter_latency", absl::StrCat(links.inter_latency)}};
  return Create(absl::StrCat("model ", links.gpus_per_node, "x", links.nodes), "model",
                links.gpus_per_node, links.nodes, std::move(curves), {}, std::move(environment));
}

}  // namespace lins
