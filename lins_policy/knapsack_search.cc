#include "lins_policy/knapsack_search.h"

#include <algorithm>
#include <tuple>

namespace lins {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many copies may take an item without their extras going beyond the gap.
int64_t MostCopies(int64_t copies, Wide extra, Wide gap) {
  if (extra == 0) return copies;
  return static_cast<int64_t>(std::min(static_cast<Wide>(copies), gap / extra));
}

}  // namespace

KnapsackSearch::KnapsackSearch(const std::vector<KnapsackKind>& kinds, int64_t capacity,
                               int64_t price, int64_t per)
    : kinds_(kinds), capacity_(capacity), price_(price), per_(per) {
  bound_ = -static_cast<Wide>(capacity) * price;
  for (const KnapsackKind& kind : kinds) {
    std::vector<Wide> priced;
    for (const KnapsackKind::Item& x : kind.items) {
      priced.push_back(static_cast<Wide>(x.cost) * per_ + static_cast<Wide>(x.weight) * price_);
    }
    const auto least = std::min_element(priced.begin(), priced.end());
    const Wide base = *least;
    base_.push_back(static_cast<int>(least - priced.begin()));
    bound_ += base * kind.copies;
    base_weight_ += kind.copies * kind.items[base_.back()].weight;
    for (Wide& x : priced) x -= base;
    extra_.push_back(std::move(priced));
  }
}

std::optional<std::vector<std::vector<int64_t>>> KnapsackSearch::CheaperThan(int64_t cost) {
  // A solution better by 1 is within this much of the bound.
  const Wide most = (static_cast<Wide>(cost) - 1) * per_ - bound_;
  if (most < 0) return std::nullopt;
  // The work grows steeply with the gap, so the last round counts most.
  for (Wide gap = std::max<Wide>(most / 4096, 1);; gap += gap / 4 + 1) {
    gap = std::min(gap, most);
    const std::vector<Move> moves = MovesWithin(gap);
    if (const std::optional<Found> found = Enumerate(moves, gap)) return Counts(moves, *found);
    if (gap == most) return std::nullopt;
  }
}

std::vector<KnapsackSearch::Move> KnapsackSearch::MovesWithin(Wide gap) const {
  struct Group {
    double growth;  // how many states it makes out of one, roughly
    std::vector<Move> moves;
  };
  std::vector<Group> groups;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const auto& items = kinds_[k].items;
    Group group{1, {}};
    for (size_t j = 0; j < items.size(); ++j) {
      if (static_cast<int>(j) == base_[k] || extra_[k][j] > gap) continue;
      group.moves.push_back(
          {k, static_cast<int>(j), items[j].weight - items[base_[k]].weight, extra_[k][j]});
      group.growth *= 1 + static_cast<double>(MostCopies(kinds_[k].copies, extra_[k][j], gap));
    }
    if (group.moves.empty()) continue;
    // The one that may be made most often is last: nothing is enumerated for the very last.
    std::stable_sort(group.moves.begin(), group.moves.end(),
                     [](const Move& a, const Move& b) { return a.extra > b.extra; });
    group.moves.back().ends_kind = true;
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.growth < b.growth; });
  std::vector<Move> out;
  for (Group& g : groups) out.insert(out.end(), g.moves.begin(), g.moves.end());

  int64_t least_after = 0, most_after = 0, least = 0, most = 0;
  for (size_t i = out.size(); i-- > 0;) {
    Move& move = out[i];
    if (move.ends_kind) {
      if (i + 1 < out.size()) {
        const int64_t copies = kinds_[out[i + 1].kind].copies;
        least_after += copies * least;
        most_after += copies * most;
      }
      least = most = 0;
    }
    move.least_after = least_after;
    move.most_after = most_after;
    move.least_beside = least;
    move.most_beside = most;
    least = std::min(least, move.weight);
    most = std::max(most, move.weight);
  }
  return out;
}

std::vector<KnapsackSearch::State> KnapsackSearch::Apply(const Move& move,
                                                         const std::vector<State>& from,
                                                         Wide gap) const {
  std::vector<State> out;
  const int64_t copies = kinds_[move.kind].copies;
  for (size_t s = 0; s < from.size(); ++s) {
    const State& state = from[s];
    const int64_t most = MostCopies(copies - state.used, move.extra, gap - state.extra);
    for (int64_t count = 0; count <= most; ++count) {
      const int64_t weight = state.weight + count * move.weight;
      const int64_t used = state.used + count;
      const Wide extra = state.extra + count * move.extra;
      // What follows must still reach a weight that fits and leaves little.
      const int64_t free = copies - used;
      if (weight + move.least_after + free * move.least_beside > capacity_) {
        if (move.weight > 0) break;
        continue;
      }
      const int64_t left = capacity_ - weight - move.most_after - free * move.most_beside;
      if (left > 0 && extra + static_cast<Wide>(left) * price_ > gap) continue;
      out.push_back({weight, move.ends_kind ? 0 : used, extra, static_cast<int>(s), count});
    }
  }
  return out;
}

// Less weight and less cost is better, at as many copies left. (Costs differ as extra - weight *
// price does.)
void KnapsackSearch::DropDominated(std::vector<State>& states) const {
  const auto cost = [&](const State& s) { return s.extra - static_cast<Wide>(s.weight) * price_; };
  std::sort(states.begin(), states.end(), [&](const State& a, const State& b) {
    if (a.used != b.used) return a.used < b.used;
    if (a.weight != b.weight) return a.weight < b.weight;
    return std::tie(a.extra, a.parent, a.count) < std::tie(b.extra, b.parent, b.count);
  });
  size_t kept = 0;
  for (const State& s : states) {
    if (kept == 0 || states[kept - 1].used != s.used || cost(s) < cost(states[kept - 1])) {
      states[kept++] = s;
    }
  }
  states.resize(kept);
}

std::optional<KnapsackSearch::Found> KnapsackSearch::Enumerate(const std::vector<Move>& moves,
                                                               Wide gap) {
  layers_ = {{{base_weight_, 0, 0, -1, 0}}};
  for (size_t i = 0; i + 1 < moves.size(); ++i) {
    std::vector<State> next = Apply(moves[i], layers_.back(), gap);
    states_ += static_cast<int64_t>(next.size());
    DropDominated(next);
    if (next.empty()) return std::nullopt;
    layers_.push_back(std::move(next));
  }
  // Heavier items are cheaper: the last move is made as often as fits, or as often as it must.
  std::optional<Found> best;
  for (size_t s = 0; s < layers_.back().size(); ++s) {
    const State& state = layers_.back()[s];
    int64_t weight = state.weight, count = 0;
    Wide extra = state.extra;
    if (!moves.empty()) {
      const Move& move = moves.back();
      const int64_t most =
          MostCopies(kinds_[move.kind].copies - state.used, move.extra, gap - extra);
      if (move.weight > 0 && weight <= capacity_) {
        count = std::min(most, (capacity_ - weight) / move.weight);
      } else if (move.weight < 0 && weight > capacity_) {
        count = std::min(most, CeilDiv(weight - capacity_, -move.weight));
      }
      weight += count * move.weight;
      extra += count * move.extra;
    }
    if (weight > capacity_) continue;
    const Wide all = extra + static_cast<Wide>(capacity_ - weight) * price_;
    if (all > gap) continue;
    if (!best || std::tie(all, weight) < std::tie(best->gap, best->weight)) {
      best = Found{all, weight, count, static_cast<int>(s)};
    }
  }
  return best;
}

std::vector<std::vector<int64_t>> KnapsackSearch::Counts(const std::vector<Move>& moves,
                                                         const Found& found) const {
  std::vector<std::vector<int64_t>> counts;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    counts.emplace_back(kinds_[k].items.size(), 0);
    counts[k][base_[k]] = kinds_[k].copies;
  }
  const auto make = [&](const Move& move, int64_t count) {
    counts[move.kind][base_[move.kind]] -= count;
    counts[move.kind][move.item] += count;
  };
  if (moves.empty()) return counts;
  make(moves.back(), found.last_count);
  int at = found.parent;
  for (size_t i = layers_.size() - 1; i > 0; --i) {
    const State& s = layers_[i][at];
    make(moves[i - 1], s.count);
    at = s.parent;
  }
  return counts;
}

}  // namespace lins
