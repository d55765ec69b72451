#include "lins_policy/knapsack.h"

#include <algorithm>
#include <tuple>

namespace lins {
namespace {

using Wide = __int128;

struct Item {
  int64_t weight, cost;
  int index;  // in the caller's class
};

// Undominated items by rising weight and falling cost.
std::vector<Item> Undominated(const std::vector<KnapsackItem>& items) {
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

// One edge of a class' lower convex hull: going from one item to a heavier and cheaper one.
struct Edge {
  int64_t weight, saving;  // both > 0
  int class_index, to;     // the item at its end
};

// Falling saving per weight.
bool Steeper(const Edge& a, const Edge& b) {
  const Wide left = static_cast<Wide>(a.saving) * b.weight;
  const Wide right = static_cast<Wide>(b.saving) * a.weight;
  if (left != right) return left > right;
  return std::tie(a.class_index, a.to) < std::tie(b.class_index, b.to);
}

void AddHull(const std::vector<Item>& items, int class_index, std::vector<Edge>& edges) {
  std::vector<int> hull;
  for (int i = 0; i < static_cast<int>(items.size()); ++i) {
    const auto above = [&] {  // whether the last hull point lies on or above the new edge
      const Item &a = items[hull[hull.size() - 2]], &b = items[hull.back()], &c = items[i];
      return static_cast<Wide>(a.cost - b.cost) * (c.weight - a.weight) <=
             static_cast<Wide>(a.cost - c.cost) * (b.weight - a.weight);
    };
    while (hull.size() >= 2 && above()) hull.pop_back();
    hull.push_back(i);
  }
  for (size_t i = 1; i < hull.size(); ++i) {
    const Item &a = items[hull[i - 1]], &b = items[hull[i]];
    edges.push_back({b.weight - a.weight, a.cost - b.cost, class_index, hull[i]});
  }
}

class Solver {
 public:
  Solver(const std::vector<std::vector<KnapsackItem>>& classes, int64_t capacity)
      : capacity_(capacity) {
    for (const auto& items : classes) classes_.push_back(Undominated(items));
  }

  KnapsackResult Run() {
    for (const auto& items : classes_) {
      if (items.empty()) return result_;
      lightest_ += items[0].weight;
    }
    if (lightest_ > capacity_) return result_;
    result_.feasible = true;
    Relax();
    Reduce();
    Combine();
    return Finish();
  }

 private:
  // The linear relaxation: hull edges by steepness until one no longer fits; its steepness is the
  // price of a byte. What fits besides is the first solution.
  void Relax() {
    std::vector<Edge> edges;
    for (size_t k = 0; k < classes_.size(); ++k) AddHull(classes_[k], static_cast<int>(k), edges);
    std::sort(edges.begin(), edges.end(), Steeper);
    best_.assign(classes_.size(), 0);
    int64_t room = capacity_ - lightest_;
    bool broken = false;
    std::vector<char> stopped(classes_.size(), 0);
    for (const Edge& e : edges) {
      if (!broken && e.weight > room) {
        broken = true;
        price_ = e.saving;
        per_ = e.weight;
      }
      // A class that could not take an edge takes none after it: hull points lie in order.
      if (stopped[e.class_index]) continue;
      if (e.weight > room) {
        stopped[e.class_index] = 1;
        continue;
      }
      room -= e.weight;
      best_[e.class_index] = e.to;
    }
    best_cost_ = 0;
    for (size_t k = 0; k < classes_.size(); ++k) best_cost_ += classes_[k][best_[k]].cost;
    Improve(room);
  }

  // Better single exchanges into what is left of the capacity, until there is none.
  void Improve(int64_t room) {
    for (;;) {
      int64_t gain = 0;
      size_t at = 0;
      int to = 0;
      for (size_t k = 0; k < classes_.size(); ++k) {
        const std::vector<Item>& items = classes_[k];
        const Item& now = items[best_[k]];
        for (int j = static_cast<int>(items.size()) - 1; j > best_[k]; --j) {
          if (items[j].weight - now.weight > room) continue;
          if (now.cost - items[j].cost > gain) {
            gain = now.cost - items[j].cost;
            at = k;
            to = j;
          }
          break;  // lighter ones save less
        }
      }
      if (gain == 0) return;
      room -= classes_[at][to].weight - classes_[at][best_[at]].weight;
      best_[at] = to;
      best_cost_ -= gain;
    }
  }

  // Priced cost: cost + weight * price / per, times per.
  Wide Priced(const Item& x) const {
    return static_cast<Wide>(x.cost) * per_ + static_cast<Wide>(x.weight) * price_;
  }

  // Items that can be part of a better solution than the one at hand, with what each adds to the
  // Lagrangian bound.
  void Reduce() {
    Wide bound = -static_cast<Wide>(capacity_) * price_;
    std::vector<Wide> least;
    for (const auto& items : classes_) {
      Wide low = Priced(items[0]);
      for (const Item& x : items) low = std::min(low, Priced(x));
      least.push_back(low);
      bound += low;
    }
    // A solution better by 1 adds at most this much to the bound.
    slack_ = static_cast<Wide>(best_cost_ - 1) * per_ - bound;
    for (size_t k = 0; k < classes_.size(); ++k) {
      std::vector<Choice> kept;
      for (size_t j = 0; j < classes_[k].size(); ++j) {
        const Wide extra = Priced(classes_[k][j]) - least[k];
        if (extra <= slack_) kept.push_back({static_cast<int>(j), extra});
      }
      kept_.push_back(std::move(kept));
    }
  }

  struct Choice {
    int item;
    Wide extra;
  };
  struct State {
    int64_t weight, cost;
    Wide extra;
    int parent, item;  // in the layer before; in its class
  };

  // Layers of states, one per class that has a choice left; classes alike stand together, where
  // most of their states dominate one another.
  void Combine() {
    if (slack_ < 0) return;
    int64_t weight = 0, cost = 0;
    for (size_t k = 0; k < classes_.size(); ++k) {
      if (kept_[k].empty()) return;
      order_.push_back(k);
    }
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      const auto key = [&](size_t k) {
        return std::make_tuple(kept_[k].size(), classes_[k][kept_[k][0].item].weight,
                               classes_[k][kept_[k][0].item].cost, k);
      };
      return key(a) < key(b);
    });
    // What the classes after each one need at least.
    std::vector<int64_t> rest(order_.size() + 1, 0);
    for (size_t i = order_.size(); i-- > 0;) {
      const std::vector<Item>& items = classes_[order_[i]];
      rest[i] = rest[i + 1] + items[kept_[order_[i]][0].item].weight;
    }
    layers_.push_back({{weight, cost, 0, -1, -1}});
    for (size_t i = 0; i < order_.size(); ++i) {
      const size_t k = order_[i];
      std::vector<State> next;
      const std::vector<State>& now = layers_.back();
      next.reserve(now.size() * kept_[k].size());
      for (size_t s = 0; s < now.size(); ++s) {
        for (const Choice& c : kept_[k]) {
          const Item& x = classes_[k][c.item];
          const Wide extra = now[s].extra + c.extra;
          if (extra > slack_ || now[s].weight + x.weight + rest[i + 1] > capacity_) continue;
          next.push_back(
              {now[s].weight + x.weight, now[s].cost + x.cost, extra, static_cast<int>(s), c.item});
        }
      }
      result_.states += static_cast<int64_t>(next.size());
      std::sort(next.begin(), next.end(), [](const State& a, const State& b) {
        return std::tie(a.weight, a.cost, a.parent, a.item) <
               std::tie(b.weight, b.cost, b.parent, b.item);
      });
      size_t kept = 0;
      for (const State& s : next) {
        if (kept == 0 || s.cost < next[kept - 1].cost) next[kept++] = s;
      }
      next.resize(kept);
      if (next.empty()) return;  // nothing better than the solution at hand
      layers_.push_back(std::move(next));
    }
    complete_ = true;
  }

  KnapsackResult Finish() {
    if (complete_) {
      // States stand by rising weight and falling cost: the last is the cheapest.
      int at = static_cast<int>(layers_.back().size()) - 1;
      if (layers_.back()[at].cost < best_cost_) {
        for (size_t i = order_.size(); i-- > 0;) {
          const State& s = layers_[i + 1][at];
          best_[order_[i]] = s.item;
          at = s.parent;
        }
      }
    }
    for (size_t k = 0; k < classes_.size(); ++k) {
      const Item& x = classes_[k][best_[k]];
      result_.choice.push_back(x.index);
      result_.weight += x.weight;
      result_.cost += x.cost;
    }
    return result_;
  }

  const int64_t capacity_;
  std::vector<std::vector<Item>> classes_;
  int64_t lightest_ = 0;
  int64_t price_ = 0, per_ = 1;
  std::vector<int> best_;
  int64_t best_cost_ = 0;
  Wide slack_ = 0;
  std::vector<std::vector<Choice>> kept_;
  std::vector<size_t> order_;
  std::vector<std::vector<State>> layers_;
  bool complete_ = false;
  KnapsackResult result_;
};

}  // namespace

KnapsackResult SolveKnapsack(const std::vector<std::vector<KnapsackItem>>& classes,
                             int64_t capacity) {
  return Solver(classes, capacity).Run();
}

}  // namespace lins
