// How the ranks of a group lie on nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace lins {

// A group that covers several nodes with the same number of its ranks, more than one, on each; any
// other group counts as one node. Nodes come in the order of their first rank in the group, the
// ranks of a node in the order of the group.
//
//   Nodes({0, 2, 1, 3}, 2).order()   // {0, 2, 1, 3}: indices of ranks 0, 1 (node 0), then 2, 3
class Nodes {
 public:
  // `node_size`: ranks per node of the world, rank = node * node_size + local; 0: all on one.
  Nodes(absl::Span<const int64_t> ranks, int64_t node_size);

  int64_t count() const { return size() / per_node_; }
  int64_t per_node() const { return per_node_; }
  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  // Indices of the group, node by node.
  const std::vector<int64_t>& order() const { return order_; }
  // How many ranks of that order each node has, for ReduceInOrder.
  std::vector<int64_t> runs() const { return std::vector<int64_t>(count(), per_node_); }
  int64_t At(int64_t node, int64_t local) const { return order_[node * per_node_ + local]; }
  int64_t node(int64_t index) const { return places_[index] / per_node_; }
  int64_t local(int64_t index) const { return places_[index] % per_node_; }
  // "2 nodes of 3": the same for groups that take the same way.
  std::string ToString() const;

 private:
  int64_t per_node_;
  std::vector<int64_t> order_, places_;  // places_[order_[i]] = i
};

}  // namespace lins
