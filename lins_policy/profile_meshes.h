// The curves of a profile by operation and mesh, those of meshes never measured included.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lins_policy/profile_curve.h"

namespace lins {

// 0 to 4 for the operations that profiles measure, -1 for others.
int ProfileOperation(StepKind op);
inline constexpr StepKind kProfileOperations[] = {StepKind::kAllGather, StepKind::kReduceScatter,
                                                  StepKind::kAllReduce, StepKind::kBroadcast,
                                                  StepKind::kAllToAll};

// Safe to ask from several threads at once.
class ProfileMeshes {
 public:
  // Curves that Profile::Create has checked.
  ProfileMeshes(int64_t gpus_per_node, const std::vector<ProfileCurve>& curves);

  struct Answer {
    double seconds = -1;  // -1: nothing that was measured says anything of this mesh
    PointSource source = PointSource::kMeasured;
    bool derived = false;  // from other meshes
  };
  // gpus in 1..gpus_per_node and nodes >= 1, more than one rank; bytes > 0.
  Answer Time(StepKind op, int64_t bytes, int64_t gpus, int64_t nodes) const;
  // What an answer of a mesh never measured rests on, or why there is none.
  std::string Derivation(StepKind op, int64_t gpus, int64_t nodes) const;

 private:
  using MeshKey = std::pair<int64_t, int64_t>;  // nodes, gpus
  struct Measured {
    MeshKey mesh;
    TimeCurve time;
  };
  // How the curve of a mesh comes from measured ones: Blend(from, to, weight) at bytes * scale.
  struct Rule {
    const Measured* from = nullptr;  // null: one rank, which takes no time
    const Measured* to = nullptr;    // null: there is no rule
    double weight = 1, scale = 1;
  };
  struct Derived {
    TimeCurve time;  // empty: no rule
    double scale = 1;
  };

  const Measured* Find(int op, int64_t gpus, int64_t nodes) const;
  Rule RuleFor(int op, int64_t gpus, int64_t nodes) const;
  using Line = std::vector<std::pair<int64_t, const Measured*>>;  // by size
  static Rule Along(const Line& line, int64_t size);
  std::shared_ptr<const Derived> Derive(int op, int64_t gpus, int64_t nodes) const;

  int64_t gpus_per_node_;
  std::array<std::vector<Measured>, 5> measured_;  // by nodes, then gpus
  mutable std::shared_mutex mutex_;
  mutable absl::flat_hash_map<std::array<int64_t, 3>, std::shared_ptr<const Derived>> derived_;
};

}  // namespace lins
