// What a live mesh tells its world.
#include "dtensor/live_mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"
#include "tests/comm/ranks.h"

namespace lins {
namespace {

TEST(LiveMesh, GroupsOverBothAxesKnowTheNodes) {
  testing::RunGloo(4, [](World& world) {
    // Not owned: the mesh goes before the world.
    const std::shared_ptr<World> shared(&world, [](World*) {});
    const LiveMesh mesh = LiveMesh::Create(shared, {2, 2}, {"node", "gpu"});
    Communicator& c = world.Get({0, 1, 2, 3}, Role::kGather);
    const int64_t n = 1 << 18, r = world.rank();
    const at::Tensor out = at::empty({4 * n});
    c.AllGather(out, at::full({n}, r, at::kFloat)).Wait();
    for (int64_t s = 0; s < 4; ++s) {
      if (!(out.narrow(0, s * n, n) == s).all().item<bool>()) throw Error("all_gather");
    }
    // Across to the rank of the same gpu, and within the node what came from there as well.
    std::vector<int64_t> want(4, 0);
    want[(r + 2) % 4] = 4 * n;
    want[r ^ 1] = 8 * n;
    if (c.SentBytes() != want) {
      throw Error(absl::StrCat("sent ", absl::StrJoin(c.SentBytes(), ", ")));
    }
  });
}

}  // namespace
}  // namespace lins
