// How groups lie on nodes.
#include "comm/nodes.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lins {
namespace {

using Ranks = std::vector<int64_t>;

TEST(Nodes, GroupsOfEqualSharesAreSplit) {
  const Nodes nodes(Ranks{0, 1, 2, 3, 4, 5}, 3);
  EXPECT_EQ(nodes.ToString(), "2 nodes of 3");
  EXPECT_EQ(nodes.order(), (Ranks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(nodes.node(4), 1);
  EXPECT_EQ(nodes.local(4), 1);
  EXPECT_EQ(nodes.At(1, 1), 4);
}

TEST(Nodes, AnyOrderOfTheGroup) {
  // gpu before node, as in a shard chain: indices 0 and 2 are ranks 0 and 1, on the first node.
  const Nodes chain(Ranks{0, 2, 1, 3}, 2);
  EXPECT_EQ(chain.order(), (Ranks{0, 2, 1, 3}));
  // Nodes in the order of their first ranks, ranks of a node in the order of the group.
  const Nodes mixed(Ranks{5, 0, 4, 1}, 4);
  EXPECT_EQ(mixed.order(), (Ranks{0, 2, 1, 3}));
  for (int64_t index = 0; index < 4; ++index) {
    EXPECT_EQ(mixed.At(mixed.node(index), mixed.local(index)), index);
  }
}

TEST(Nodes, AllOtherGroupsAreOneNode) {
  const auto one = [](const Ranks& ranks, int64_t node_size) {
    const Nodes nodes(ranks, node_size);
    Ranks indices(ranks.size());
    std::iota(indices.begin(), indices.end(), 0);
    return nodes.count() == 1 && nodes.per_node() == nodes.size() && nodes.order() == indices;
  };
  EXPECT_TRUE(one({0, 1, 2, 3}, 0));  // unknown
  EXPECT_TRUE(one({0, 1, 2, 3}, 4));  // on one
  EXPECT_TRUE(one({3, 1}, 2));        // one on each
  EXPECT_TRUE(one({0, 1, 2}, 2));     // uneven
  EXPECT_TRUE(one({0, 1, 2, 3}, 1));
  EXPECT_TRUE(one({7}, 4));
}

}  // namespace
}  // namespace lins
