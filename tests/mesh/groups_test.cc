// Groups of ranks: those that differ in the given sub-axes only, in the order of the sub-axes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "mesh/mesh.h"
#include "tests/mesh/brute_force.h"

namespace lins {
namespace {

using testing::AllLists;
using testing::SmallMeshes;
using testing::SubCoordinates;

// Which ranks one reaches by changing one sub-coordinate after another, sorted by their
// sub-coordinates.
std::vector<std::vector<int64_t>> ReachableGroups(const Mesh& mesh, const Axes& axes) {
  std::vector<int64_t> root(mesh.size());
  for (int64_t r = 0; r < mesh.size(); ++r) root[r] = r;
  const auto merge = [&root](int64_t from, int64_t to) {
    for (int64_t& x : root) x = x == from ? to : x;
  };
  for (const SubAxis& a : axes) {
    for (int64_t r = 0; r < mesh.size(); ++r) {
      for (int64_t s = 0; s < r; ++s) {
        std::vector<int64_t> x = mesh.Coordinate(r), y = mesh.Coordinate(s);
        const bool high = x[a.axis] / (a.stride * a.size) == y[a.axis] / (a.stride * a.size);
        const bool low = x[a.axis] % a.stride == y[a.axis] % a.stride;
        x[a.axis] = y[a.axis] = 0;
        if (high && low && x == y) merge(std::max(root[r], root[s]), std::min(root[r], root[s]));
      }
    }
  }
  std::map<int64_t, std::vector<int64_t>> groups;  // by the smallest rank
  for (int64_t r = 0; r < mesh.size(); ++r) groups[root[r]].push_back(r);
  std::vector<std::vector<int64_t>> out;
  for (auto& [first, ranks] : groups) {
    std::sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) {
      return SubCoordinates(mesh, axes, a) < SubCoordinates(mesh, axes, b);
    });
    out.push_back(std::move(ranks));
  }
  return out;
}

TEST(GroupsTest, AreWhatIsReachableByChangingTheSubAxes) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 3)) {
      ASSERT_EQ(mesh.Groups(axes), ReachableGroups(mesh, axes))
          << mesh.AxesToString(axes) << " of " << mesh.ToString();
    }
  }
}

TEST(GroupsTest, IndexPeerAndGroupAgree) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 3)) {
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        const std::vector<int64_t> group = mesh.Group(axes, rank);
        ASSERT_EQ(static_cast<int64_t>(group.size()), Mesh::GroupSize(axes));
        ASSERT_EQ(group[mesh.IndexInGroup(axes, rank)], rank);
        for (size_t i = 0; i < group.size(); ++i) {
          ASSERT_EQ(mesh.Peer(axes, rank, i), group[i]);
          ASSERT_EQ(mesh.IndexInGroup(axes, group[i]), static_cast<int64_t>(i));
          ASSERT_EQ(mesh.Group(axes, group[i]), group);
        }
      }
    }
  }
}

TEST(GroupsTest, OrderOfAxesIsTheOrderOfRanks) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  const auto groups = [&](absl::string_view text) { return mesh.Groups(*mesh.ParseAxes(text)); };
  using Groups = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(groups("node,gpu"), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(groups("gpu,node"), (Groups{{0, 4, 1, 5, 2, 6, 3, 7}}));
  EXPECT_EQ(groups("gpu:2"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups("node,gpu:2@2"), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

}  // namespace
}  // namespace lins
