// A mesh with processes behind it: what an abstract Mesh is for planning, a LiveMesh is for
// running.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "mesh/mesh.h"

namespace lins {

class PlanCache;

class LiveMesh : public Mesh {
 public:
  // The shape's product must be the world's size. Collective: every rank must pass the same.
  static LiveMesh Create(std::shared_ptr<World> world, std::vector<int64_t> shape,
                         std::vector<std::string> axes);

  World& world() const { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  int64_t rank() const { return world_->rank(); }
  // This rank's group over `axes`, for one role.
  Communicator& Comm(absl::Span<const SubAxis> axes, Role role) const {
    return world_->Get(Group(axes, rank()), role);
  }
  // Shared by all copies of this mesh.
  PlanCache& cache() const { return *cache_; }

 private:
  LiveMesh(Mesh mesh, std::shared_ptr<World> world);
  std::shared_ptr<World> world_;
  std::shared_ptr<PlanCache> cache_;
};

}  // namespace lins
