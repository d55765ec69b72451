#include "lins_policy/measure_plan.h"

#include <algorithm>
#include <utility>

#include "lins_policy/factors.h"
#include "lins_policy/profile_meshes.h"
#include "mesh/error.h"

namespace lins {
namespace {

// The ends, then the middles of what lies between those that are there.
std::vector<int64_t> CoarseToFine(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> out = {sizes.front()};
  if (sizes.size() > 1) out.push_back(sizes.back());
  std::vector<std::pair<size_t, size_t>> gaps = {{0, sizes.size() - 1}};
  for (size_t i = 0; i < gaps.size(); ++i) {
    const auto [low, high] = gaps[i];
    if (high - low < 2) continue;
    const size_t middle = (low + high) / 2;
    out.push_back(sizes[middle]);
    gaps.emplace_back(low, middle);
    gaps.emplace_back(middle, high);
  }
  return out;
}

// gpus x nodes of every group, the legal placements of a state first.
std::vector<Factors> GroupMeshes(int64_t gpus_per_node, int64_t nodes, bool sub_meshes) {
  std::vector<Factors> out;
  for (const Factors& f : LegalFactors(gpus_per_node, nodes)) {
    if (Product(f) > 1) out.push_back(f);
  }
  for (int64_t n = 2; sub_meshes && n <= nodes; ++n) {
    for (int64_t g = 1; nodes % n == 0 && g < gpus_per_node; ++g) {
      if (gpus_per_node % g == 0) out.push_back({g, n});
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<MeasureTask>> PlanMeasurements(int64_t gpus_per_node, int64_t nodes,
                                                          const MeasureGrid& grid) {
  if (gpus_per_node < 1 || nodes < 1 || gpus_per_node * nodes == 1) {
    return InvalidArgument("a cluster of ", gpus_per_node, " GPUs per node x ", nodes,
                           " nodes: collectives need at least two ranks");
  }
  if (grid.min_bytes < 1 || grid.max_bytes < grid.min_bytes || grid.factor < 2) {
    return InvalidArgument("sizes from ", grid.min_bytes, " to ", grid.max_bytes,
                           " bytes by factors of ", grid.factor,
                           ": legal are 1 <= min <= max and a factor of at least 2");
  }
  std::vector<int64_t> sizes;
  for (int64_t b = grid.min_bytes; b < grid.max_bytes; b *= grid.factor) {
    sizes.push_back(b);
    if (b > grid.max_bytes / grid.factor) break;
  }
  sizes.push_back(grid.max_bytes);
  std::vector<MeasureTask> out;
  for (int64_t bytes : CoarseToFine(sizes)) {
    for (const Factors& f : GroupMeshes(gpus_per_node, nodes, grid.sub_meshes)) {
      for (StepKind op : kProfileOperations) out.push_back({op, f[0], f[1], bytes});
    }
  }
  return out;
}

}  // namespace lins
