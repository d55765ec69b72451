#include "lins_policy/knapsack.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lins_policy/knapsack_search.h"

namespace lins {
namespace {

// Undominated items by rising weight and falling cost.
std::vector<KnapsackKind::Item> Undominated(const std::vector<KnapsackItem>& items) {
  using Item = KnapsackKind::Item;
  std::vector<Item> all;
  for (size_t i = 0; i < items.size(); ++i) {
    all.push_back({items[i].weight, items[i].cost, static_cast<int>(i)});
  }
  std::sort(all.begin(), all.end(), [](const Item& a, const Item& b) {
    return std::tie(a.weight, a.cost, a.index) < std::tie(b.weight, b.cost, b.index);
  });
  std::vector<Item> out;
  for (const Item& x : all) {
    if (out.empty() || x.cost < out.back().cost) out.push_back(x);
  }
  return out;
}

// One edge of a kind's lower convex hull: going from one item to a heavier and cheaper one.
struct Edge {
  int64_t weight, saving;  // both > 0
  size_t kind;
  int from, to;
};

// Falling saving per weight.
bool Steeper(const Edge& a, const Edge& b) {
  const Wide left = static_cast<Wide>(a.saving) * b.weight;
  const Wide right = static_cast<Wide>(b.saving) * a.weight;
  if (left != right) return left > right;
  return std::tie(a.kind, a.to) < std::tie(b.kind, b.to);
}

void AddHull(const std::vector<KnapsackKind::Item>& items, size_t kind, std::vector<Edge>& edges) {
  std::vector<int> hull;
  for (int i = 0; i < static_cast<int>(items.size()); ++i) {
    const auto above = [&] {  // whether the last hull point lies on or above the new edge
      const auto &a = items[hull[hull.size() - 2]], &b = items[hull.back()], &c = items[i];
      return static_cast<Wide>(a.cost - b.cost) * (c.weight - a.weight) <=
             static_cast<Wide>(a.cost - c.cost) * (b.weight - a.weight);
    };
    while (hull.size() >= 2 && above()) hull.pop_back();
    hull.push_back(i);
  }
  for (size_t i = 1; i < hull.size(); ++i) {
    const auto &a = items[hull[i - 1]], &b = items[hull[i]];
    edges.push_back({b.weight - a.weight, a.cost - b.cost, kind, hull[i - 1], hull[i]});
  }
}

// How many copies of each kind take each item.
using Counts = std::vector<std::vector<int64_t>>;

struct Relaxation {
  int64_t price = 0, per = 1;  // of weight: price / per
  Counts counts;               // a solution that fits
  int64_t room = 0;            // what it leaves of the capacity
};

// Hull edges by steepness until one no longer fits: its steepness is the price. What fits of the
// others makes the first solution. `room` is what the lightest items leave of the capacity.
Relaxation Relax(const std::vector<KnapsackKind>& kinds, int64_t room) {
  std::vector<Edge> edges;
  Relaxation out;
  for (size_t k = 0; k < kinds.size(); ++k) {
    AddHull(kinds[k].items, k, edges);
    out.counts.emplace_back(kinds[k].items.size(), 0);
    out.counts[k][0] = kinds[k].copies;
  }
  std::sort(edges.begin(), edges.end(), Steeper);
  bool broken = false;
  for (const Edge& e : edges) {
    int64_t& from = out.counts[e.kind][e.from];
    const int64_t moved = std::min(from, room / e.weight);
    if (!broken && moved < from) {
      broken = true;
      out.price = e.saving;
      out.per = e.weight;
    }
    from -= moved;
    out.counts[e.kind][e.to] += moved;
    room -= moved * e.weight;
  }
  out.room = room;
  return out;
}

// Better single exchanges into what is left of the capacity, until there is none.
void Improve(const std::vector<KnapsackKind>& kinds, Relaxation& at) {
  for (;;) {
    int64_t gain = 0;
    size_t kind = 0;
    int from = 0, to = 0;
    for (size_t k = 0; k < kinds.size(); ++k) {
      const auto& items = kinds[k].items;
      for (int i = 0; i < static_cast<int>(items.size()); ++i) {
        if (at.counts[k][i] == 0) continue;
        for (int j = static_cast<int>(items.size()) - 1; j > i; --j) {
          if (items[j].weight - items[i].weight > at.room) continue;
          if (items[i].cost - items[j].cost > gain) {
            gain = items[i].cost - items[j].cost;
            std::tie(kind, from, to) = std::tie(k, i, j);
          }
          break;  // lighter ones save less
        }
      }
    }
    if (gain == 0) return;
    const int64_t weight = kinds[kind].items[to].weight - kinds[kind].items[from].weight;
    const int64_t moved = std::min(at.counts[kind][from], at.room / weight);
    at.counts[kind][from] -= moved;
    at.counts[kind][to] += moved;
    at.room -= moved * weight;
  }
}

int64_t CostOf(const std::vector<KnapsackKind>& kinds, const Counts& counts) {
  int64_t cost = 0;
  for (size_t k = 0; k < kinds.size(); ++k) {
    for (size_t i = 0; i < counts[k].size(); ++i) cost += counts[k][i] * kinds[k].items[i].cost;
  }
  return cost;
}

}  // namespace

KnapsackResult SolveKnapsack(const std::vector<std::vector<KnapsackItem>>& classes,
                             int64_t capacity, int64_t below) {
  KnapsackResult result;
  std::map<std::vector<KnapsackItem>, size_t> known;
  std::vector<KnapsackKind> kinds;
  std::vector<size_t> kind_of;
  int64_t lightest = 0;
  for (const auto& items : classes) {
    if (items.empty()) return result;
    const auto [it, added] = known.try_emplace(items, kinds.size());
    if (added) kinds.push_back({Undominated(items), 0});
    ++kinds[it->second].copies;
    kind_of.push_back(it->second);
    lightest += kinds[it->second].items[0].weight;
  }
  if (lightest > capacity) return result;

  Relaxation relaxed = Relax(kinds, capacity - lightest);
  Improve(kinds, relaxed);
  int64_t cost = CostOf(kinds, relaxed.counts);
  result.feasible = cost < below;
  KnapsackSearch search(kinds, capacity, relaxed.price, relaxed.per);
  if (const auto better = search.CheaperThan(std::min(cost, below))) {
    relaxed.counts = *better;
    result.feasible = true;
  }
  result.states = search.states();
  if (!result.feasible) return result;

  // Copies take items by rising weight, in the order of the classes.
  std::vector<size_t> next(kinds.size(), 0);
  for (const size_t k : kind_of) {
    while (relaxed.counts[k][next[k]] == 0) ++next[k];
    --relaxed.counts[k][next[k]];
    const KnapsackKind::Item& x = kinds[k].items[next[k]];
    result.choice.push_back(x.index);
    result.weight += x.weight;
    result.cost += x.cost;
  }
  return result;
}

}  // namespace lins
