#include "comm/nodes.h"

#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace lins {

Nodes::Nodes(absl::Span<const int64_t> ranks, int64_t node_size)
    : per_node_(static_cast<int64_t>(ranks.size())), order_(ranks.size()), places_(ranks.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  if (node_size > 1) {
    absl::flat_hash_map<int64_t, size_t> found;
    std::vector<std::vector<int64_t>> members;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto [it, fresh] = found.try_emplace(ranks[i] / node_size, members.size());
      if (fresh) members.emplace_back();
      members[it->second].push_back(static_cast<int64_t>(i));
    }
    bool even = members.size() > 1 && members[0].size() > 1;
    for (const auto& node : members) even &= node.size() == members[0].size();
    if (even) {
      per_node_ = static_cast<int64_t>(members[0].size());
      order_.clear();
      for (const auto& node : members) order_.insert(order_.end(), node.begin(), node.end());
    }
  }
  for (size_t i = 0; i < order_.size(); ++i) places_[order_[i]] = static_cast<int64_t>(i);
}

std::string Nodes::ToString() const { return absl::StrCat(count(), " nodes of ", per_node()); }

}  // namespace lins
