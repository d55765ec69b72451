#include "dtensor/live_mesh.h"

#include "absl/strings/str_cat.h"
#include "dtensor/plan_cache.h"
#include "mesh/error.h"

namespace lins {

LiveMesh::LiveMesh(Mesh mesh, std::shared_ptr<World> world)
    : Mesh(std::move(mesh)), world_(std::move(world)), cache_(std::make_shared<PlanCache>()) {}

LiveMesh LiveMesh::Create(std::shared_ptr<World> world, std::vector<int64_t> shape,
                          std::vector<std::string> axes) {
  absl::StatusOr<Mesh> mesh = Mesh::Create(std::move(shape), std::move(axes));
  world->CheckAgreement("the mesh",
                        mesh.ok() ? mesh->ToString() : std::string(mesh.status().message()));
  ThrowIfError(mesh.status());
  if (mesh->size() != world->size()) {
    throw Error(absl::StrCat(mesh->ToString(), " has ", mesh->size(), " ranks, the world has ",
                             world->size(), ": the sizes must multiply to ", world->size()));
  }
  world->SetNodeSize(mesh->shape().back());
  return LiveMesh(*std::move(mesh), std::move(world));
}

}  // namespace lins
