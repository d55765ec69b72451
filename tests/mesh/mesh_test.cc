#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "tests/mesh/brute_force.h"

namespace lins {
namespace {

using testing::MakeMesh;
using testing::SmallMeshes;

TEST(MeshTest, RanksAreRowMajorWithTheLastAxisFastest) {
  const Mesh mesh = *Mesh::Create({4, 8}, {"node", "gpu"});
  EXPECT_EQ(mesh.size(), 32);
  for (int64_t node = 0; node < 4; ++node) {
    for (int64_t gpu = 0; gpu < 8; ++gpu) {
      EXPECT_EQ(mesh.Coordinate(node * 8 + gpu), (std::vector<int64_t>{node, gpu}));
    }
  }
}

TEST(MeshTest, CoordinatesCountUpLikeAnOdometer) {
  for (const Mesh& mesh : SmallMeshes()) {
    std::vector<int64_t> want(mesh.ndim(), 0);
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      EXPECT_EQ(mesh.Coordinate(rank), want) << mesh.ToString() << " rank " << rank;
      for (int i = mesh.ndim() - 1; i >= 0 && ++want[i] == mesh.shape()[i]; --i) want[i] = 0;
    }
  }
}

TEST(MeshTest, IsAValue) {
  const Mesh a = MakeMesh({2, 4});
  EXPECT_EQ(a.ToString(), "Mesh(x=2, y=4)");
  EXPECT_EQ(a, MakeMesh({2, 4}));
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(MakeMesh({2, 4})));
  for (const Mesh& b : {MakeMesh({4, 2}), MakeMesh({8}), *Mesh::Create({2, 4}, {"y", "x"})}) {
    EXPECT_FALSE(a == b) << b.ToString();
  }
}

struct BadMesh {
  std::vector<int64_t> shape;
  std::vector<std::string> axes;
  std::string message;
};

TEST(MeshTest, RefusesWhatIsNoMeshAndSaysWhy) {
  for (const BadMesh& bad : std::vector<BadMesh>{
           {{}, {}, "one name per dimension"},
           {{2, 2}, {"a"}, "got shape (2, 2) and axes (a)"},
           {{2}, {"a", "b"}, "got shape (2) and axes (a, b)"},
           {{2, 0}, {"a", "b"}, "mesh axis 'b' has size 0, must be at least 1"},
           {{-3}, {"a"}, "mesh axis 'a' has size -3"},
           {{2}, {""}, "mesh axis name ''"},
           {{2}, {"4a"}, "mesh axis name '4a' must be letters, digits and '_'"},
           {{2}, {"a b"}, "mesh axis name 'a b'"},
           {{2}, {"a-b"}, "mesh axis name 'a-b'"},
           {{2, 2}, {"a", "a"}, "mesh axis 'a' appears twice in (a, a)"},
           {{int64_t{1} << 30, int64_t{1} << 30}, {"a", "b"}, "more than 2^40 ranks"}}) {
    const auto mesh = Mesh::Create(bad.shape, bad.axes);
    ASSERT_FALSE(mesh.ok()) << bad.message;
    EXPECT_TRUE(absl::IsInvalidArgument(mesh.status()));
    EXPECT_TRUE(absl::StrContains(mesh.status().message(), bad.message)) << mesh.status();
  }
}

TEST(MeshTest, ARankOutsideTheMeshIsACheck) {
  EXPECT_DEATH(MakeMesh({2, 2}).Coordinate(4), "rank 4 of Mesh\\(x=2, y=2\\)");
}

}  // namespace
}  // namespace lins
